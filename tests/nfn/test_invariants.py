"""Invariants of the whole group: they do not move, they do where a coupling is broken, their gradients are finite."""

from collections.abc import Callable, Iterable
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import Tensor

import zoo
from nfn import FullGroupElement, GaugeNFN, InvariantNFN, canonicalize, invariant_features, invariants, named_features
from nfn.symmetry.full_group import _random_rotations
from nfn.symmetry.invariant_features import feature_layout
from nfn.symmetry.invariants import eigenvalues
from nfn.symmetry.parts import available_parts
from tests.fabricated import TINY_PHOTOS
from tests.nfn.conftest import LINES, ODD_SPECS, random_weights
from zoo import AGNEWS, MNIST, SHAKESPEARE, TransformerSpec, TransformerWeights

TOLERANCE = 1e-9
PARTS = available_parts(MNIST)


def kept_parts(spec: TransformerSpec) -> tuple[str, ...]:
    """What keeps the accuracy of a classifier, and the loss of a language model, which the size of logits changes."""
    return tuple(part for part in available_parts(spec) if not spec.causal or part != "logits")


def read_real(config: str, chosen: Callable[[np.ndarray], np.ndarray], count: int) -> TransformerWeights:
    """About ``count`` real checkpoints in float64, evenly over the chosen range of accuracies."""
    reader = zoo.open("small-transformer-zoo", config, split="train")
    accuracy = reader.metadata["test_accuracy"].to_numpy()
    rows = [row for row in accuracy.argsort().tolist() if chosen(accuracy[row])]
    picked = rows[:: max(1, len(rows) // count)]
    return TransformerWeights.from_flat(reader.spec, reader.weights(sorted(picked)).double())


@pytest.fixture(scope="module", params=["mnist", pytest.param("mnist-seeds", marks=pytest.mark.long), "agnews"])
def real(request: pytest.FixtureRequest) -> TransformerWeights:
    """Real checkpoints of every accuracy, except those that have collapsed to a constant."""
    return read_real(request.param, lambda accuracy: accuracy > 0.12, 6)


@pytest.mark.parametrize("config", ["mnist", "agnews"])
def test_single_precision_is_rounded_only_at_the_end(config: str):
    reader = zoo.open("small-transformer-zoo", config, split="test")
    weights = TransformerWeights.from_flat(reader.spec, reader.weights(list(range(0, len(reader), 4))))
    exact = TransformerWeights.from_flat(reader.spec, weights.flat().double())
    assert torch.equal(invariant_features(weights), invariant_features(exact).float())
    assert invariants(weights).blocks[0].unit_sizes.dtype == torch.float64


@pytest.fixture(scope="module")
def predictor(real: TransformerWeights) -> InvariantNFN:
    """A predictor whose inputs are in their usual range, with random networks."""
    predictor = InvariantNFN(real.spec, generator=torch.Generator().manual_seed(0)).double()
    predictor.fit_scale(real)
    return predictor


@pytest.fixture(scope="module")
def before(real: TransformerWeights, predictor: InvariantNFN) -> dict[Callable[..., Tensor], Tensor]:
    """What is read from the checkpoints, before anything moves them."""
    with torch.no_grad():
        return {read: read(real) for read in (predictor, predictor.logits, invariant_features)}


def move(weights: TransformerWeights, seed: int, parts: Iterable[str] = PARTS) -> TransformerWeights:
    """Every checkpoint moved by an element of its own."""
    generator = torch.Generator().manual_seed(seed)
    return FullGroupElement.sample(
        weights.spec, tuple(weights.batch_shape), generator=generator, parts=tuple(parts)
    ).act(weights)


@torch.no_grad()
@pytest.mark.parametrize("part", [*PARTS, "all"])
def test_invariants_do_not_move_under_any_part_of_the_group(
    real: TransformerWeights, before: dict[Callable[..., Tensor], Tensor], part: str
):
    moved = move(real, 11, PARTS if part == "all" else (part,))
    assert float((moved.flat() - real.flat()).abs().amax()) > 0.01, "this part moves the weights"
    for read, values in before.items():
        assert float((read(moved) - values).abs().amax()) <= TOLERANCE


@torch.no_grad()
def test_gauge_nfn_moves_by_the_epsilon_of_layernorm_alone(real: TransformerWeights):
    """What a real checkpoint answers is the same under all that keeps its function."""
    predictor = GaugeNFN(real.spec, generator=torch.Generator().manual_seed(0)).double()
    predictor.fit_scale(real)
    before = predictor.logits(real)
    exact = tuple(part for part in PARTS if part not in ("boundary_scales", "logits"))
    assert float((predictor.logits(move(real, 11, exact)) - before).abs().amax()) <= TOLERANCE
    scaled = (predictor.logits(move(real, 11, ("boundary_scales",))) - before).abs()
    assert float(scaled.median()) <= 0.01 * float(before.std()), "scales at boundaries change what ε is compared with"


def test_collapsed_checkpoints_do_not_move_where_the_symmetry_is_exact():
    """Where the weights have decayed to almost nothing, LN's ε has taken the scale of boundaries out of the group."""
    collapsed = read_real("mnist", lambda accuracy: accuracy < 0.12, 30)
    assert bool((collapsed["blocks.1.query.weight"].flatten(-2).abs().amax(-1) < 1e-20).any())
    exact = tuple(part for part in PARTS if part != "boundary_scales")
    change = invariant_features(move(collapsed, 11, exact)) - invariant_features(collapsed)
    assert float(change.abs().amax()) <= 1e-8


def test_random_weights_of_odd_dimensions_do_not_move_either(spec: TransformerSpec, generator: torch.Generator):
    weights = random_weights(spec, (2, 3), generator)
    features = invariant_features(weights)
    assert features.shape == (2, 3, sum(feature_layout(spec).values()))
    assert float((invariant_features(move(weights, 4, kept_parts(spec))) - features).abs().amax()) <= TOLERANCE


@pytest.mark.parametrize("part", ["rotations", "boundary_scales"])
def test_residual_connections_are_not_read_as_if_their_boundaries_were_free(part: str, generator: torch.Generator):
    weights, free = random_weights(TINY_PHOTOS, (3,), generator), replace(TINY_PHOTOS, residual=False)
    moved = replace(move(replace(weights, spec=free), 4, (part,)), spec=TINY_PHOTOS)
    change = (invariant_features(moved) - invariant_features(weights)).abs().amax(-1)
    assert float(change.min()) > 0.1
    before, after = invariants(weights).blocks[1], invariants(moved).blocks[1]
    assert float((after.source_products - before.source_products).abs().amax()) > 0.1


def test_large_patches_and_long_word_vectors_do_not_flood_the_features():
    photos = TransformerSpec("photos", 10, 36, 8, dim=64, heads=8, value_dim=4, blocks=1, channels=3)
    words = TransformerSpec("words", 4, 64, dim=96, blocks=1)
    for spec in (photos, words):
        assert sum(feature_layout(spec).values()) < 20_000
        weights = random_weights(spec, (2,), torch.Generator().manual_seed(0))
        assert float((invariant_features(move(weights, 4)) - invariant_features(weights)).abs().amax()) <= TOLERANCE


def test_named_tensors_change_only_in_the_order_of_heads_and_units(real: TransformerWeights):
    rest = tuple(part for part in PARTS if part not in ("units", "heads"))
    before, after = invariants(real), invariants(move(real, 5, rest))
    for one, other in zip((*before.blocks, before.classifier), (*after.blocks, after.classifier), strict=True):
        for field in fields(one):
            tensor = getattr(one, field.name)
            error = (getattr(other, field.name) - tensor).abs().amax()
            assert float(error / tensor.abs().amax()) <= 1e-8, field.name
    permuted = invariants(move(real, 5, ("units", "heads")))
    sizes, permuted_sizes = before.blocks[0].unit_sizes, permuted.blocks[0].unit_sizes
    assert not torch.allclose(sizes, permuted_sizes)
    torch.testing.assert_close(sizes.sort().values, permuted_sizes.sort().values)
    torch.testing.assert_close(
        before.blocks[1].scores.square().sum((-1, -2)).sort().values,
        permuted.blocks[1].scores.square().sum((-1, -2)).sort().values,
    )


def rotate_writers_alone(state: dict[str, Tensor], name: str) -> None:
    state[name] = _random_rotations((), state[name].shape[-2], torch.Generator().manual_seed(1)) @ state[name]


def exchange_values_of_heads(state: dict[str, Tensor]) -> None:
    value = state["blocks.1.value.weight"]
    state["blocks.1.value.weight"] = value.roll(value.shape[-2] // 2, dims=-2)


def scale_one_row(state: dict[str, Tensor], prefix: str) -> None:
    """The row and bias of the unit with the largest weights, since many are dead; its column stays."""
    reading, writing = state[f"{prefix}.fc1.weight"], state[f"{prefix}.fc2.weight"]
    unit = (reading.norm(dim=-1) * writing.norm(dim=-2)).sum(0).argmax()
    for name in ("weight", "bias"):
        state[f"{prefix}.fc1.{name}"][:, unit] *= 1.5


BROKEN: dict[str, Callable[[dict[str, Tensor]], None]] = {
    "writers of block 0's attention": lambda state: rotate_writers_alone(state, "blocks.0.output.weight"),
    "writers of block 0's MLP": lambda state: rotate_writers_alone(state, "blocks.0.fc2.weight"),
    "writers of block 1's attention": lambda state: rotate_writers_alone(state, "blocks.1.output.weight"),
    "writers of block 1's MLP": lambda state: rotate_writers_alone(state, "blocks.1.fc2.weight"),
    "one head's V with another's O": exchange_values_of_heads,
    "one unit's scale, one-sided, in block 0": lambda state: scale_one_row(state, "blocks.0"),
    "one unit's scale, one-sided, in the classifier": lambda state: scale_one_row(state, "classifier"),
}


@torch.no_grad()
@pytest.mark.parametrize("coupling", BROKEN)
def test_the_prediction_moves_when_one_coupling_is_broken(
    real: TransformerWeights, predictor: InvariantNFN, before: dict[Callable[..., Tensor], Tensor], coupling: str
):
    state = {name: tensor.clone() for name, tensor in real.state_dict().items()}
    BROKEN[coupling](state)
    broken = TransformerWeights.from_state_dict(real.spec, state)
    change = (predictor.logits(broken) - before[predictor.logits]).abs()
    assert float(change.median()) > 1e-5


@pytest.mark.parametrize("spec", [*ODD_SPECS[:2], TINY_PHOTOS, LINES], ids=lambda spec: spec.task)
def test_gradients_agree_with_finite_differences(spec: TransformerSpec, generator: torch.Generator):
    flat = random_weights(spec, (), generator).flat().requires_grad_()
    probe = torch.randn(sum(feature_layout(spec).values()), generator=generator, dtype=torch.float64)

    def read(flat: Tensor) -> Tensor:
        weights = TransformerWeights.from_flat(spec, flat, check_finite=False)
        whole = invariants(weights)
        return torch.stack([invariant_features(weights) @ probe, whole.blocks[-1].readings.square().sum()])

    assert torch.autograd.gradcheck(read, (flat,), fast_mode=True)


def special_checkpoints(spec: TransformerSpec) -> dict[str, Tensor]:
    """Weights at which a careless normalization or eigenvector divides by zero."""
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(spec.num_parameters, generator=generator, dtype=torch.float64) * 0.2
    equal_values, dead_units = plain.clone(), plain.clone()
    for name, slot in spec.tensors.items():
        if len(slot.shape) == 2:
            equal_values[slot.slice] = torch.eye(*slot.shape, dtype=torch.float64).flatten()
        if ".fc1." in name:
            dead_units[slot.slice].view(slot.shape)[:5] = 0
        if ".fc2.weight" in name:
            dead_units[slot.slice].view(slot.shape)[:, 3:8] = 0
    return {
        "equal singular values": equal_values,
        "dead units": dead_units,
        "all zero": torch.zeros_like(plain),
        "all equal": torch.full_like(plain, 0.5),
        "almost nothing": plain * 1e-20,
        "diverged": plain * 1e12,
        "at the end of float32": plain.sign() * 3e38,
    }


@pytest.mark.parametrize("spec", [MNIST, AGNEWS, TINY_PHOTOS, LINES], ids=lambda spec: spec.task)
@pytest.mark.parametrize("case", special_checkpoints(MNIST))
def test_values_and_gradients_are_finite_everywhere(spec: TransformerSpec, case: str):
    flat = special_checkpoints(spec)[case].requires_grad_()
    weights = TransformerWeights.from_flat(spec, flat)
    features = invariant_features(weights)
    whole = invariants(weights)
    assert bool(torch.isfinite(features).all())
    assert bool(torch.isfinite(whole.blocks[1].readings).all())
    end = getattr(whole.classifier, "class_products" if spec.causal else "readings")
    total = features.square().sum() + whole.blocks[1].readings.square().sum() + end.sum()
    (gradient,) = torch.autograd.grad(total, flat)
    assert bool(torch.isfinite(gradient).all())


def test_a_checkpoint_with_nan_is_nan_and_leaves_the_others_alone():
    flat = torch.randn(3, MNIST.num_parameters, generator=torch.Generator().manual_seed(0)) * 0.2
    predictor = GaugeNFN(MNIST)
    expected = predictor.logits(flat)
    flat[1, 700] = float("inf")
    logits = predictor.logits(flat)
    assert bool(logits[1].isnan())
    torch.testing.assert_close(logits[[0, 2]], expected[[0, 2]])
    with pytest.raises(ValueError, match=r"weights hold NaN or infinity, first in blocks.0.query.weight"):
        predictor(flat)


def test_features_have_names_that_cover_the_vector():
    weights = TransformerWeights.from_flat(MNIST, torch.randn(2, MNIST.num_parameters) * 0.2)
    named = named_features(weights)
    assert torch.equal(torch.cat(list(named.values()), dim=-1).float(), invariant_features(weights))
    assert {"block 0, units, sizes", "classifier, source", "products of filters"} <= named.keys()


@torch.no_grad()
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("spec", [MNIST, AGNEWS, SHAKESPEARE], ids=lambda spec: spec.task)
def test_a_gpu_computes_the_same_invariants_and_canonical_form(spec: TransformerSpec):
    weights = random_weights(spec, (4,), torch.Generator().manual_seed(0))
    on_gpu = TransformerWeights.from_flat(spec, weights.flat().cuda())
    torch.testing.assert_close(invariant_features(on_gpu).cpu(), invariant_features(weights), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(canonicalize(on_gpu).flat().cpu(), canonicalize(weights).flat(), rtol=1e-7, atol=1e-7)


def test_eigenvalues_that_a_gpu_does_not_find_are_computed_elsewhere(monkeypatch: pytest.MonkeyPatch):
    find, tried = torch.linalg.eigvalsh, []

    def fail_once(matrix: torch.Tensor) -> torch.Tensor:
        tried.append(matrix)
        if len(tried) == 1:
            raise torch.linalg.LinAlgError("did not converge")  # pyright: ignore[reportPrivateImportUsage]
        return find(matrix)

    monkeypatch.setattr(torch.linalg, "eigvalsh", fail_once)
    torch.testing.assert_close(eigenvalues(torch.diag(torch.tensor([3.0, 1.0, 2.0]))), torch.tensor([1.0, 2.0, 3.0]))
    assert len(tried) == 2


def test_the_features_of_a_large_vocabulary_take_no_memory_for_all_pairs_of_tokens():
    """A file of a fitted predictor may name any spec, and what it reads is counted before the file is."""
    many = 300_000
    spec = TransformerSpec(
        "lines", many, 8, dim=1, key_dim=1, value_dim=1, hidden_dim=1, residual=True, vocabulary=many, causal=True
    )
    assert sum(feature_layout(spec).values()) < many + 50_000
