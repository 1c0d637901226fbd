"""The examples of a step: a fixed subset in a new order every epoch, cropped at random."""

import pytest
import torch
from jaxtyping import UInt8
from torch import Tensor

from generation.data import EpochBatches, TrainingInputs, TrainingRows, epoch_batches, model_batch
from generation.population.engine import initial_weights
from generation.protocol import Protocol
from zoo.tasks.examples import Examples, TaskData
from zoo.transformer.spec import MNIST, TransformerSpec
from zoo.transformer.weights import TransformerWeights


def of_a_thousand(fraction: float) -> TrainingRows:
    return TrainingRows.of(image_task(torch.zeros(1000, 4, 4, dtype=torch.uint8)), fraction)


def test_train_fraction_picks_a_fixed_random_subset() -> None:
    subset = of_a_thousand(0.7).rows
    assert len(subset) == len(set(subset.tolist())) == 700
    assert torch.equal(subset, of_a_thousand(0.7).rows)
    assert subset.tolist() != list(range(700))
    assert set(of_a_thousand(0.7).rows.tolist()) < set(of_a_thousand(0.9).rows.tolist())
    assert of_a_thousand(1.0).rows.tolist() == list(range(1000))


def test_an_epoch_is_the_subset_shuffled_and_cut_into_whole_batches() -> None:
    training = of_a_thousand(0.9)
    batches = epoch_batches(training, Protocol(), epoch=3)
    assert batches.rows.shape == (900 // 128, 128)
    seen = batches.rows.flatten().tolist()
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(training.rows.tolist())
    assert torch.equal(batches.rows, epoch_batches(training, Protocol(), epoch=3).rows)
    assert not torch.equal(batches.rows, epoch_batches(training, Protocol(), epoch=4).rows)


def test_crops_take_all_25_offsets_equally_often() -> None:
    offsets = epoch_batches(TrainingRows(torch.arange(60_000), 60_000), Protocol(), epoch=0).offsets.flatten(0, 1)
    counts = torch.bincount(5 * offsets[:, 0] + offsets[:, 1], minlength=25).double()
    expected = len(offsets) / 25
    assert len(counts) == 25
    assert float(((counts - expected) ** 2 / expected).sum()) < 51.2  # χ² with 24 degrees of freedom, p = 0.001


def image_task(images: UInt8[Tensor, "n height width *channels"], patch_size: int = 4) -> TaskData:
    _, height, width, *channels = images.shape
    tokens = height * width // patch_size**2
    spec = TransformerSpec("images", 2, tokens, patch_size, dim=4, channels=channels[0] if channels else 1)
    examples = Examples(images, torch.zeros(len(images), dtype=torch.int64))
    return TaskData(spec, examples, examples, "made up")


@pytest.mark.parametrize("shape", [(28, 28), (12, 20), (8, 12, 3)])
def test_a_crop_shifts_the_padded_image(shape: tuple[int, ...]) -> None:
    images = torch.randint(1, 256, (4, *shape), dtype=torch.uint8)
    inputs = TrainingInputs.prepare(image_task(images))
    cropped = inputs.crop(torch.tensor([2, 0, 1]), torch.tensor([[2, 2], [0, 4], [4, 1]]))
    assert cropped.shape == (3, *shape)
    assert torch.equal(cropped[0], images[2])
    assert torch.equal(cropped[1, 2:, :-2], images[0, :-2, 2:])
    assert int(cropped[1, :2].max()) == int(cropped[1, :, -2:].max()) == 0
    assert torch.equal(cropped[2, :-2, 1:], images[1, 2:, :-1])


def test_without_padding_every_image_stays_as_it_is() -> None:
    images = torch.randint(0, 256, (32, 8, 12, 3), dtype=torch.uint8)
    task, protocol = image_task(images), Protocol(batch_size=16, crop_padding=0)
    batches = epoch_batches(TrainingRows(torch.arange(32), 32), protocol, epoch=0)
    assert int(batches.offsets.max()) == 0
    seen = TrainingInputs.prepare(task, protocol.crop_padding).batch(batches, 1)
    assert torch.equal(seen.inputs, images[batches.rows[1]])


def test_wider_padding_takes_more_offsets_and_leaves_the_order_alone() -> None:
    training = TrainingRows(torch.arange(8192), 8192)
    wide, paper = (epoch_batches(training, Protocol(crop_padding=padding), epoch=0) for padding in (8, 2))
    assert torch.equal(wide.rows, paper.rows)
    assert wide.offsets.unique().tolist() == list(range(17))
    assert paper.offsets.unique().tolist() == list(range(5))


def test_a_model_reads_channels_first() -> None:
    images = torch.randint(0, 256, (2, 4, 8, 3), dtype=torch.uint8)
    batches = EpochBatches(torch.tensor([[1, 0]]), torch.zeros(1, 2, 2, dtype=torch.int64))
    x, mask, _ = model_batch(TrainingInputs.prepare(image_task(images), 0), batches, 0)
    assert mask is None
    assert x.shape == (2, 3, 4, 8)
    torch.testing.assert_close(x[0, 2], images[1, :, :, 2] / 127.5 - 1)
    gray, _ = image_task(images[..., 0]).model_inputs(images[..., 0])
    assert torch.equal(gray, image_task(images[..., :1]).model_inputs(images[..., :1])[0])


def test_only_the_centered_crop_leaves_a_training_image_as_it_is(digits: TaskData) -> None:
    inputs = TrainingInputs.prepare(digits)
    batches = epoch_batches(TrainingRows.of(digits, 1.0), Protocol(batch_size=160), epoch=0)
    seen = inputs.batch(batches, 0)
    originals = digits.train[batches.rows[0]]
    assert torch.equal(seen.labels, originals.labels)
    centered = (batches.offsets[0] == 2).all(dim=1)
    assert 1 <= int(centered.sum()) < 160
    assert torch.equal(seen.inputs[centered], originals.inputs[centered])
    same = (seen.inputs == originals.inputs).flatten(1).all(dim=1)
    assert torch.equal(same, centered)


def test_initial_weights_are_normal_cut_at_two_and_biases_zero() -> None:
    flat = initial_weights(MNIST, std=0.5, seed=3)
    weights = TransformerWeights.from_flat(MNIST, flat)
    values = torch.cat([weights[name].flatten() for name in MNIST.tensors if name.endswith("weight")])
    assert float(values.abs().max()) <= 2
    assert abs(float(values.std()) - 0.5) < 0.01
    assert abs(float(values.mean())) < 0.02
    assert all(not bool(weights[name].any()) for name in MNIST.tensors if name.endswith("bias"))


def test_runs_of_one_seed_start_from_the_same_weights_up_to_scale() -> None:
    narrow, wide = initial_weights(MNIST, 0.1, seed=0), initial_weights(MNIST, 0.3, seed=0)
    torch.testing.assert_close(wide, 3 * narrow, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(narrow, initial_weights(MNIST, 0.1, seed=1), atol=1e-2)
