"""The whole group: its axioms, what its action leaves unchanged, and what breaks when one side of it is left out."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nfn import FullGroupElement, GroupElement
from nfn.symmetry.parts import Part, available_parts, boundaries, centered, shift_component
from tests.fabricated import TINY_PHOTOS
from tests.nfn.conftest import Bundled, assert_group_axioms, change, inputs_of, logits, random_weights
from zoo import AGNEWS, MNIST, TransformerSpec, TransformerWeights
from zoo.transformer import model

EXACT = tuple(part for part in available_parts(MNIST) if part not in ("boundary_scales", "logits"))


def assert_same_element(g: FullGroupElement, h: FullGroupElement) -> None:
    for name, tensor in g.tensors().items():
        torch.testing.assert_close(tensor, h.tensors()[name], rtol=1e-9, atol=1e-9, msg=name)


def assert_same_weights(u: TransformerWeights, v: TransformerWeights) -> None:
    torch.testing.assert_close(u.flat(), v.flat(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("part", EXACT)
def test_each_exact_part_keeps_the_function_to_rounding(bundled: Bundled, part: Part, generator: torch.Generator):
    u = bundled.checkpoint(0)
    g = FullGroupElement.sample(bundled.spec, generator=generator, parts=[part], scale_range=100.0)
    v = g.act(u)
    assert change(u.flat(), v.flat()) > 1e-2
    assert change(logits(u, bundled.inputs), logits(v, bundled.inputs)) < 1e-12


def test_all_exact_parts_together_keep_the_function_to_rounding(bundled: Bundled, generator: torch.Generator):
    for row in (0, 3):
        u = bundled.checkpoint(row)
        v = FullGroupElement.sample(bundled.spec, generator=generator, parts=EXACT, scale_range=100.0).act(u)
        assert change(logits(u, bundled.inputs), logits(v, bundled.inputs)) < 1e-11


@pytest.mark.parametrize("parts", [("boundary_scales",), None], ids=["alone", "with all others"])
def test_boundary_scales_keep_the_function_as_epsilon_vanishes(
    bundled: Bundled, parts: tuple[Part, ...] | None, generator: torch.Generator
):
    for row in (0, 3):
        u = bundled.checkpoint(row)
        v = FullGroupElement.sample(bundled.spec, generator=generator, parts=parts).act(u)
        changes = [
            change(logits(u, bundled.inputs, epsilon), logits(v, bundled.inputs, epsilon))
            for epsilon in (1e-5, 1e-8, 1e-11, 1e-14)
        ]
        assert changes[1] < 1e-2 * changes[0]
        assert changes[2] < 1e-2 * changes[1]
        assert changes[3] < 1e-9


def test_reflections_belong_to_the_group(bundled: Bundled, generator: torch.Generator):
    g = FullGroupElement.sample(bundled.spec, (40,), generator=generator, parts=["rotations"])
    determinants = torch.linalg.det(g.rotations)
    torch.testing.assert_close(determinants.abs(), torch.ones_like(determinants))
    assert 0.3 < (determinants < 0).double().mean() < 0.7
    torch.testing.assert_close(g.rotations.sum(-1), torch.ones(40, 2 * bundled.spec.blocks, 32, dtype=torch.float64))
    # Swapping two coordinates is a reflection that keeps 1.
    swap = torch.eye(32, dtype=torch.float64)[[1, 0, *range(2, 32)]]
    rotations = torch.where(determinants[0, :, None, None] > 0, swap @ g.rotations[0], g.rotations[0])
    assert bool((torch.linalg.det(rotations) < 0).all())
    reflection = replace(FullGroupElement.identity(bundled.spec), rotations=rotations)
    u = bundled.checkpoint(1)
    assert change(logits(u, bundled.inputs), logits(reflection.act(u), bundled.inputs)) < 1e-12


@pytest.mark.parametrize(
    ("part", "left_behind"),
    [
        ("heads", "blocks.0.value.weight"),
        ("query_key", "blocks.1.key.weight"),
        ("value_output", "blocks.0.output.weight"),
        ("units", "blocks.1.fc1.bias"),
        ("units", "classifier.fc2.weight"),
        ("unit_scales", "blocks.0.fc2.weight"),
        ("unit_scales", "classifier.fc1.bias"),
        ("rotations", "blocks.0.fc1.weight"),
        ("rotations", "blocks.1.query.weight"),
        ("rotations", "blocks.1.output.weight"),
        ("rotations", "classifier.fc1.weight"),
        ("boundary_scales", "blocks.0.fc2.bias"),
    ],
)
def test_one_side_without_the_other_changes_the_function(
    bundled: Bundled, part: Part, left_behind: str, generator: torch.Generator
):
    u = bundled.checkpoint(2)
    g = FullGroupElement.sample(bundled.spec, generator=generator, parts=[part])
    if part == "heads":
        g = replace(g, heads=torch.tensor([[1, 0], [1, 0]]))
    state = g.act(u).state_dict() | {left_behind: u[left_behind]}
    broken = TransformerWeights.from_state_dict(bundled.spec, state)
    assert change(logits(u, bundled.inputs, 1e-12), logits(broken, bundled.inputs, 1e-12)) > 1e-4


def test_a_rotation_that_moves_the_ones_changes_the_function(bundled: Bundled, generator: torch.Generator):
    u = bundled.checkpoint(0)
    any_rotation = torch.linalg.qr(torch.randn(4, 32, 32, generator=generator, dtype=torch.float64)).Q
    g = replace(FullGroupElement.identity(bundled.spec), rotations=any_rotation)
    assert change(logits(u, bundled.inputs), logits(g.act(u), bundled.inputs)) > 1e-3


def test_logits_part_keeps_every_argmax_and_not_the_logits(bundled: Bundled, generator: torch.Generator):
    u = bundled.checkpoint(0)
    v = FullGroupElement.sample(bundled.spec, generator=generator, parts=["logits"]).act(u)
    before, after = logits(u, bundled.inputs), logits(v, bundled.inputs)
    assert torch.equal(before.argmax(-1), after.argmax(-1))
    assert change(before, after) > 0.1
    slope = (after - after.mean(-1, keepdim=True)) / (before - before.mean(-1, keepdim=True))
    torch.testing.assert_close(slope, slope[0, 0].expand_as(slope))


def test_axioms(spec: TransformerSpec, generator: torch.Generator):
    g, h, k = (FullGroupElement.sample(spec, generator=generator, parts=available_parts(spec)) for _ in range(3))
    identity = FullGroupElement.identity(spec)
    assert_group_axioms(g, h, k, identity, assert_same_element)


def test_action_respects_identity_composition_and_inverse(spec: TransformerSpec, generator: torch.Generator):
    u = random_weights(spec, (3,), generator)
    g, h = (FullGroupElement.sample(spec, generator=generator, parts=available_parts(spec)) for _ in range(2))
    assert torch.equal(FullGroupElement.identity(spec).act(u).flat(), u.flat())
    assert_same_weights(g.compose(h).act(u), g.act(h.act(u)))
    assert_same_weights(g.inverse().act(g.act(u)), u)
    assert change(h.act(g.act(u)).flat(), g.act(h.act(u)).flat()) > 1e-3


def test_float64_models_of_any_dimensions_compute_the_same(spec: TransformerSpec, generator: torch.Generator):
    u = random_weights(spec, (), generator)
    exact = [part for part in available_parts(spec) if part not in ("boundary_scales", "logits")]
    v = FullGroupElement.sample(spec, generator=generator, parts=exact).act(u)
    inputs = inputs_of(spec, generator)
    assert change(logits(u, inputs), logits(v, inputs)) < 1e-9


def test_batched_action_is_the_action_of_each(spec: TransformerSpec, generator: torch.Generator):
    u = random_weights(spec, (4,), generator)
    g = FullGroupElement.sample(spec, (4,), generator=generator, parts=available_parts(spec))
    each = [g.map(lambda t, i=i: t[i]).act(TransformerWeights.from_flat(spec, u.flat()[i])).flat() for i in range(4)]
    torch.testing.assert_close(g.act(u).flat(), torch.stack(each))
    assert g.act(TransformerWeights.from_flat(spec, u.flat()[0])).batch_shape == (4,)


def test_the_papers_group_is_a_subgroup(spec: TransformerSpec, generator: torch.Generator):
    u = random_weights(spec, (), generator)
    g, h = (GroupElement.sample(spec, generator=generator) for _ in range(2))
    inside = FullGroupElement.from_paper(spec, g)
    assert_same_weights(inside.act(u), g.act(u))
    assert_same_element(inside.compose(FullGroupElement.from_paper(spec, h)), inside.from_paper(spec, g.compose(h)))


def test_parts_that_are_not_named_stay_the_identity(generator: torch.Generator):
    identity = FullGroupElement.identity(MNIST).tensors()
    moved = {"units": {"units", "classifier_units"}, "rotations": {"rotations"}, "reader_shifts": {"shifts"}}
    for part, names in moved.items():
        g = FullGroupElement.sample(MNIST, generator=generator, parts=[part])
        assert {name for name, tensor in g.tensors().items() if not torch.equal(tensor, identity[name])} == names


def test_action_keeps_dtype_passes_gradients_and_does_not_write_to_its_input(generator: torch.Generator):
    flat = torch.randn(2, AGNEWS.num_parameters, generator=generator).requires_grad_()
    copy = flat.detach().clone()
    moved = FullGroupElement.sample(AGNEWS, generator=generator).act(TransformerWeights.from_flat(AGNEWS, flat))
    assert moved.flat().dtype == torch.float32
    moved.flat().square().sum().backward()
    assert flat.grad is not None
    assert bool((flat.grad != 0).all())
    assert torch.equal(flat.detach(), copy)


def test_centering_removes_shifts_and_nothing_else(spec: TransformerSpec, generator: torch.Generator):
    u = random_weights(spec, (2,), generator)
    shifts = [part for part in available_parts(spec) if "shifts" in part]
    g = FullGroupElement.sample(spec, (2,), generator=generator, parts=shifts)
    assert_same_weights(centered(g.act(u)), centered(u))
    assert float(shift_component(centered(u)).abs().max()) < 1e-12
    shifts = TransformerWeights.from_flat(spec, g.shifts)
    torch.testing.assert_close(shift_component(shifts), g.shifts)


def test_residual_connections_leave_what_the_input_does_not_pin(generator: torch.Generator):
    missing = {"rotations", "boundary_scales"}
    assert set(available_parts(TINY_PHOTOS)) == set(available_parts(MNIST)) - missing
    (stream,) = boundaries(TINY_PHOTOS)
    assert stream.pinned
    assert list(stream.writers)[:3] == ["embedding.weight", "embedding.bias", "blocks.0.output.weight"]
    with pytest.raises(ValueError, match="a transformer of photos has no rotations: it has heads"):
        FullGroupElement.sample(TINY_PHOTOS, generator=generator, parts=["rotations"])
    u, free = random_weights(TINY_PHOTOS, (), generator), replace(TINY_PHOTOS, residual=False)
    images = inputs_of(TINY_PHOTOS, generator)
    for part in missing:
        moved = FullGroupElement.sample(free, generator=generator, parts=[part]).act(replace(u, spec=free))
        assert change(logits(u, images), logits(replace(moved, spec=TINY_PHOTOS), images)) > 1e-3, part


class GainSpec(TransformerSpec):
    @property
    def tensors(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return {**TransformerSpec.tensors.func(self), "blocks.0.norm1.weight": None}


class BiasSpec(TransformerSpec):
    @property
    def tensors(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return {**TransformerSpec.tensors.func(self), "blocks.0.query.bias": None}


def test_gains_leave_what_needs_no_basis(bundled: Bundled, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch):
    missing = {"rotations", "reader_shifts"}
    assert set(available_parts(GainSpec("gains", 10, 49, 4))) == set(available_parts(MNIST)) - missing
    gain, bias = torch.rand(2, 32, generator=generator, dtype=torch.float64)
    u = bundled.checkpoint(0)

    def outputs(weights: TransformerWeights) -> Tensor:
        with monkeypatch.context() as context:
            context.setattr(model, "layer_norm", lambda x: F.layer_norm(x, x.shape[-1:], eps=1e-14) * gain + bias)
            with torch.no_grad():
                return model.build_model(weights.spec, weights)(*bundled.inputs)

    def changed(parts: tuple[str, ...]) -> float:
        return change(
            outputs(u), outputs(FullGroupElement.sample(bundled.spec, generator=generator, parts=parts).act(u))
        )

    assert changed(tuple(part for part in (*EXACT, "boundary_scales") if part not in missing)) < 1e-8
    assert changed(("rotations",)) > 1e-3
    assert changed(("reader_shifts",)) > 1e-3


def test_bad_input_is_refused_in_one_clear_line(generator: torch.Generator, spec: TransformerSpec):
    with pytest.raises(ValueError, match=r"symmetry of a transformer of biased is not known: .*blocks\.0\.query\.bias"):
        available_parts(BiasSpec("biased", 10, 49, 4))
    with pytest.raises(ValueError, match="the group has no part 'rotation': its parts are heads, query_key"):
        FullGroupElement.sample(MNIST, generator=generator, parts=["rotation"])
    with pytest.raises(ValueError, match=r"scale_range must be a number of at least 1, got 0\.5"):
        FullGroupElement.sample(MNIST, generator=generator, scale_range=0.5)
    g = FullGroupElement.sample(MNIST, generator=generator)
    with pytest.raises(ValueError, match=r"sample it for weights\.spec"):
        g.act(random_weights(spec, (), generator))
    residual = replace(MNIST, residual=True)
    with pytest.raises(ValueError, match="cannot be permuted: its connections are residual"):
        FullGroupElement.from_paper(residual, GroupElement.sample(MNIST, generator=generator))
    with pytest.raises(ValueError, match="these elements act on different transformers"):
        g.compose(FullGroupElement.identity(residual))
    with pytest.raises(ValueError, match=r"rotations must be float64, got torch\.float32"):
        replace(g, rotations=g.rotations.float())
