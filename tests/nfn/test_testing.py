"""The test kit itself: it must pass right layers, fail broken ones, and name the symmetry that broke."""

import pytest
import torch
from torch import Tensor, nn

from nfn import EquivariantLayer, InvariantLayer, MLPPredictor, ProbeNFN, TransformerNFN, available_parts, canonicalize
from nfn.layers.polynomial import relu_on_mlp
from nfn.testing import assert_equivariant, assert_invariant
from tests.nfn.conftest import ODD_SPECS
from zoo import BlockWeights, TransformerSpec

SPEC = ODD_SPECS[2]


class Broken(nn.Module):
    """An equivariant layer with one tensor of its output changed."""

    def __init__(self, name: str, change) -> None:
        super().__init__()
        self.layer = EquivariantLayer(SPEC, 2, 2)
        self.name, self.change = name, change

    def forward(self, u: BlockWeights) -> BlockWeights:
        result = self.layer(u)
        return BlockWeights(**{**vars(result), self.name: self.change(getattr(result, self.name))})


def test_passes_layers_that_are_right(spec: TransformerSpec):
    assert_equivariant(EquivariantLayer(spec, 2, 2), spec, channels=2)
    assert_equivariant(lambda u: u, spec)
    assert_invariant(InvariantLayer(spec, 2, 2), spec, channels=2)
    assert_invariant(lambda u: (u.query @ u.key.mT).sum(-3), spec)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("query", torch.relu, "under M on queries and keys: query"),
        ("query", lambda x: x.flip(-3), "under the order of the heads, τ: query"),
        ("key", lambda x: x + 1e-6, "under M on queries and keys: key"),
        ("value", lambda x: x.flip(-1), "under N on values and outputs: value"),
        ("output", lambda x: x.cumsum(-1), "under the permutation π_O of features: output"),
        ("weight_a", lambda x: x.flip(-2), "under the permutation π_O of features: weight_a"),
        ("weight_b", lambda x: x.cumsum(-2), "under the permutation π_A of hidden neurons: weight_b"),
        ("bias_a", lambda x: x.sort(-1).values, "under the permutation π_A of hidden neurons: bias_a"),
        ("bias_b", lambda x: x * float("nan"), "under the order of the heads, τ: bias_b"),
    ],
)
def test_fails_a_broken_layer_and_names_the_symmetry(name: str, change, message: str):
    with pytest.raises(AssertionError, match=f"not equivariant {message}"):
        assert_equivariant(Broken(name, change), SPEC, channels=2)


def test_fails_a_layer_that_treats_m_as_orthogonal():
    """Mixing Q into K is equivariant under orthogonal M only, a mistake that orthogonal test matrices hide."""

    def mixed(u: BlockWeights) -> BlockWeights:
        return BlockWeights(**{**vars(u), "query": u.query + u.key})

    with pytest.raises(AssertionError, match="M on queries and keys"):
        assert_equivariant(mixed, SPEC)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda u: u.query.sum((-1, -2, -3)), "under M on queries and keys"),
        (lambda u: u.weight_a[..., 0, :].sum(-1), "under the permutation π_O of features"),
        (lambda u: u.bias_a[..., 0], "under the permutation π_A of hidden neurons"),
        (lambda u: (u.value @ u.output)[..., 0, :, :].sum((-1, -2)), "under the order of the heads"),
        (lambda u: (u.value @ u.output.mT.mT.abs()).sum(), "under N on values and outputs"),
    ],
)
def test_fails_a_function_that_is_not_invariant(function, message: str):
    with pytest.raises(AssertionError, match=f"not invariant {message}"):
        assert_invariant(function, SPEC)


def test_predictors_are_tested_on_whole_checkpoints():
    assert_invariant(TransformerNFN(SPEC, channels=(2,)), SPEC, channels=None)
    with pytest.raises(AssertionError, match="not invariant under the order of the heads"):
        assert_invariant(MLPPredictor(SPEC), SPEC, channels=None)


def test_the_whole_group_is_tested_part_by_part():
    parts = [part for part in available_parts(SPEC) if part not in ("boundary_scales", "logits")]
    assert_invariant(ProbeNFN(SPEC, probes=2), SPEC, channels=None, parts=parts)
    assert_invariant(lambda w: canonicalize(w).flat(), SPEC, channels=None, parts=[*parts, "boundary_scales"])
    with pytest.raises(AssertionError, match="not invariant under unit_scales"):
        assert_invariant(TransformerNFN(SPEC, channels=(2,)), SPEC, channels=None, parts=["unit_scales", "rotations"])
    with pytest.raises(ValueError, match="with parts, channels must be None"):
        assert_invariant(lambda u: u.query.sum(), SPEC, parts=["heads"])


def test_float32_modules_are_tested_in_float64_and_left_alone():
    layer = EquivariantLayer(SPEC, 1, 2)
    assert_equivariant(layer, SPEC)
    assert all(parameter.dtype == torch.float32 for parameter in layer.parameters())


def test_relu_on_attention_breaks_equivariance():
    def everywhere(u: BlockWeights) -> BlockWeights:
        return u.map(torch.relu)

    assert_equivariant(relu_on_mlp, SPEC)
    with pytest.raises(AssertionError, match="M on queries and keys"):
        assert_equivariant(everywhere, SPEC)


def test_shape_that_depends_on_the_weights_fails():
    calls: list[int] = []

    def growing(u: BlockWeights) -> Tensor:
        calls.append(1)
        return torch.ones(len(calls))

    with pytest.raises(AssertionError, match="differ in shape"):
        assert_invariant(growing, SPEC)
