"""What a step sees: a fixed subset in a new order every epoch, cropped at random."""

import torch

from generation.data.batches import TrainingInputs, crop, epoch_batches, train_subset
from generation.population.initialization import initial_weights
from generation.protocol import Protocol
from zoo.tasks import TaskData
from zoo.transformer.spec import MNIST
from zoo.transformer.weights import TransformerWeights


def test_train_fraction_picks_a_fixed_random_subset() -> None:
    subset = train_subset(1000, 0.7)
    assert len(subset) == len(set(subset.tolist())) == 700
    assert torch.equal(subset, train_subset(1000, 0.7))
    assert subset.tolist() != list(range(700))
    assert set(train_subset(1000, 0.7).tolist()) < set(train_subset(1000, 0.9).tolist())
    assert train_subset(1000, 1.0).tolist() == list(range(1000))


def test_an_epoch_is_the_subset_shuffled_and_cut_into_whole_batches() -> None:
    subset = train_subset(1000, 0.9)
    batches = epoch_batches(subset, Protocol(), epoch=3)
    assert batches.rows.shape == (900 // 128, 128)
    seen = batches.rows.flatten().tolist()
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(subset.tolist())
    assert torch.equal(batches.rows, epoch_batches(subset, Protocol(), epoch=3).rows)
    assert not torch.equal(batches.rows, epoch_batches(subset, Protocol(), epoch=4).rows)


def test_crops_take_all_25_places_equally_often() -> None:
    offsets = epoch_batches(train_subset(60_000, 1.0), Protocol(), epoch=0).offsets.flatten(0, 1)
    counts = torch.bincount(5 * offsets[:, 0] + offsets[:, 1], minlength=25).double()
    expected = len(offsets) / 25
    assert len(counts) == 25
    assert float(((counts - expected) ** 2 / expected).sum()) < 51.2  # χ² with 24 degrees of freedom, p = 0.001


def test_a_crop_shifts_the_padded_image() -> None:
    images = torch.randint(1, 256, (4, 28, 28), dtype=torch.uint8)
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    cropped = crop(padded, torch.tensor([2, 0, 1]), torch.tensor([[2, 2], [0, 4], [4, 1]]))
    assert torch.equal(cropped[0], images[2])
    assert torch.equal(cropped[1, 2:, :-2], images[0, :-2, 2:])
    assert int(cropped[1, :2].max()) == int(cropped[1, :, -2:].max()) == 0
    assert torch.equal(cropped[2, :-2, 1:], images[1, 2:, :-1])


def test_only_the_centered_crop_leaves_a_training_image_as_it_is(digits: TaskData) -> None:
    inputs = TrainingInputs.prepare(digits)
    batches = epoch_batches(torch.arange(len(digits.train)), Protocol(batch_size=160), epoch=0)
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
