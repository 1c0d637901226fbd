"""Weights as views: round trips, the paper's shapes, and refusals."""

import numpy as np
import pytest
import torch
from torch import Tensor

import zoo
from zoo import TransformerWeights
from zoo.transformer.spec import TransformerSpec

ODD = TransformerSpec("odd", classes=3, tokens=5, dim=7, heads=3, key_dim=2, value_dim=4, hidden_dim=5, blocks=3)
SPECS = [zoo.MNIST, zoo.AGNEWS, ODD]


def random_flat(spec: TransformerSpec, *batch: int) -> Tensor:
    return torch.randn(*batch, spec.num_parameters, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.task)
@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_flat_tensors_and_state_dict_are_the_same_numbers(spec: TransformerSpec, batch: tuple[int, ...]) -> None:
    flat = random_flat(spec, *batch)
    weights = TransformerWeights.from_flat(spec, flat)
    again = TransformerWeights.from_state_dict(spec, weights.state_dict())
    assert torch.equal(again.flat(), flat)
    assert weights.batch_shape == torch.Size(batch)


def test_everything_is_a_view_of_the_flat_vector() -> None:
    flat = random_flat(zoo.MNIST, 2)
    weights = TransformerWeights.from_flat(zoo.MNIST, flat)
    assert weights.flat() is flat
    first, end = flat.data_ptr(), flat.data_ptr() + flat.nbytes
    encoder = weights.encoder
    for tensor in [*weights.state_dict().values(), encoder.query, encoder.output, encoder.weight_b, encoder.bias_a]:
        assert first <= tensor.data_ptr() < end
    flat[:, 0] = 7.0
    assert bool((weights["embedding.weight"][:, 0, 0, 0, 0] == 7.0).all())


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.task)
def test_block_tensors_have_the_papers_shapes_and_entries(spec: TransformerSpec) -> None:
    weights = TransformerWeights.from_flat(spec, random_flat(spec, 2))
    h, d, dk, dv = spec.heads, spec.dim, spec.key_dim, spec.value_dim
    for index, block in enumerate(weights.blocks):
        assert block.query.shape == block.key.shape == (2, h, d, dk)
        assert block.value.shape == (2, h, d, dv)
        assert block.output.shape == (2, h, dv, d)
        assert block.weight_a.shape == (2, d, spec.hidden_dim)
        assert block.weight_b.shape == (2, spec.hidden_dim, d)
        head = h - 1
        rows = weights[f"blocks.{index}.query.weight"][:, head * dk : (head + 1) * dk]
        assert torch.equal(block.query[:, head], rows.mT)
        columns = weights[f"blocks.{index}.output.weight"][:, :, head * dv : (head + 1) * dv]
        assert torch.equal(block.output[:, head], columns.mT)
        assert torch.equal(block.weight_a, weights[f"blocks.{index}.fc1.weight"].mT)
        assert torch.equal(block.bias_b, weights[f"blocks.{index}.fc2.bias"])
        assert torch.equal(weights.encoder.value[:, index], block.value)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.task)
def test_with_encoder_replaces_the_blocks_alone(spec: TransformerSpec) -> None:
    weights = TransformerWeights.from_flat(spec, random_flat(spec, 2))
    before = weights.flat().clone()
    doubled = weights.with_encoder(weights.encoder.map(lambda tensor: 2 * tensor))
    inside = spec.components["encoder"]
    expected = before.clone()
    expected[:, inside] *= 2
    assert torch.equal(doubled.flat(), expected)
    assert torch.equal(weights.flat(), before)


def test_numpy_and_lists_are_taken_as_datasets_gives_them() -> None:
    flat = random_flat(zoo.MNIST)
    array = flat.numpy()
    assert TransformerWeights.from_flat(zoo.MNIST, array).flat().data_ptr() == array.ctypes.data
    assert torch.equal(TransformerWeights.from_flat(zoo.MNIST, flat.tolist()).flat(), flat)


def spoiled(position: int, value: float) -> Tensor:
    flat = random_flat(zoo.MNIST)
    flat[position] = value
    return flat


@pytest.mark.parametrize(
    ("flat", "message"),
    [
        (torch.zeros(18_505), r"18,506 weights along the last dimension, got shape \(18505,\)"),
        (torch.zeros(()), r"got shape \(\)"),
        (torch.zeros(18_506, dtype=torch.int64), r"must be float32 or float64, got torch.int64"),
        (torch.zeros(18_506, dtype=torch.float16), r"must be float32 or float64, got torch.float16"),
        (np.zeros(18_506, dtype=np.int32), r"must be float32 or float64"),
        (spoiled(0, float("nan")), r"NaN or infinity, first in embedding.weight"),
        (spoiled(18_505, float("inf")), r"NaN or infinity, first in classifier.fc2.bias"),
    ],
    ids=["short", "scalar", "int64", "float16", "numpy int32", "nan", "inf"],
)
def test_a_bad_vector_is_refused_with_the_reason(flat: Tensor | np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransformerWeights.from_flat(zoo.MNIST, flat)


def test_a_bad_state_dict_is_refused_with_the_reason() -> None:
    state = TransformerWeights.from_flat(zoo.AGNEWS, random_flat(zoo.AGNEWS)).state_dict()
    with pytest.raises(ValueError, match=r"missing \['embedding.bias', 'embedding.weight'\]"):
        TransformerWeights.from_state_dict(zoo.MNIST, state)
    with pytest.raises(ValueError, match=r"blocks.1.fc2.bias must end in shape \(32,\), got \(31,\)"):
        TransformerWeights.from_state_dict(zoo.AGNEWS, state | {"blocks.1.fc2.bias": torch.zeros(31)})
    with pytest.raises(ValueError, match="one dtype"):
        TransformerWeights.from_state_dict(zoo.AGNEWS, state | {"blocks.1.fc2.bias": torch.zeros(32).double()})
    with pytest.raises(KeyError, match=r"no tensor 'head.weight'"):
        TransformerWeights.from_flat(zoo.MNIST, random_flat(zoo.MNIST))["head.weight"]
