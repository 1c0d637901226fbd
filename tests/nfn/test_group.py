"""The group: its axioms, its action, and what the action must leave unchanged."""

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from nfn import GroupElement
from nfn.layers.terms import TENSOR_NAMES
from tests.fabricated import TINY_PHOTOS
from tests.nfn.conftest import assert_group_axioms, inputs_of, random_weights
from zoo import AGNEWS, MNIST, TransformerSpec, TransformerWeights, build_model


def assert_same_element(g: GroupElement, h: GroupElement) -> None:
    for field in fields(GroupElement):
        torch.testing.assert_close(getattr(g, field.name), getattr(h, field.name), rtol=1e-10, atol=1e-10)


def assert_same_weights(u: TransformerWeights, v: TransformerWeights) -> None:
    torch.testing.assert_close(u.flat(), v.flat(), rtol=1e-10, atol=1e-10)


def test_axioms(spec: TransformerSpec, generator: torch.Generator):
    g, h, k = (GroupElement.sample(spec, generator=generator) for _ in range(3))
    identity = GroupElement.identity(spec)
    assert_group_axioms(g, h, k, identity, assert_same_element)


def test_action_respects_identity_composition_and_inverse(spec: TransformerSpec, generator: torch.Generator):
    u = random_weights(spec, (3,), generator)
    g, h = (GroupElement.sample(spec, generator=generator) for _ in range(2))
    assert torch.equal(GroupElement.identity(spec).act(u).flat(), u.flat())
    assert_same_weights(g.compose(h).act(u), g.act(h.act(u)))
    assert_same_weights(g.inverse().act(g.act(u)), u)


def test_composition_order_matters(generator: torch.Generator):
    u = random_weights(MNIST, (), generator)
    g, h = (GroupElement.sample(MNIST, generator=generator) for _ in range(2))
    assert not torch.allclose(g.act(h.act(u)).flat(), h.act(g.act(u)).flat(), rtol=1e-3)


def test_action_follows_the_formula_of_the_paper(spec: TransformerSpec, generator: torch.Generator):
    u = random_weights(spec, (), generator)
    g = GroupElement.sample(spec, generator=generator)
    moved = g.act(u)
    for b, (before, after) in enumerate(zip(u.blocks, moved.blocks, strict=True)):
        tau, features, neurons = g.heads[b], g.features[b], g.neurons[b]
        # Column k of P_π is the unit vector of π(k).
        p_o, p_a = (torch.eye(len(pi), dtype=torch.float64)[:, pi] for pi in (features, neurons))
        for i in range(spec.heads):
            s = int(tau[i])
            m, n = g.m[b, s], g.n[b, s]
            torch.testing.assert_close(after.query[i], before.query[s] @ m.T)
            torch.testing.assert_close(after.key[i], before.key[s] @ m.inverse())
            torch.testing.assert_close(after.value[i], before.value[s] @ n)
            torch.testing.assert_close(after.output[i], n.inverse() @ before.output[s] @ p_o)
        torch.testing.assert_close(after.weight_a, p_o.inverse() @ before.weight_a @ p_a)
        torch.testing.assert_close(after.weight_b, p_a.inverse() @ before.weight_b)
        torch.testing.assert_close(after.bias_a, before.bias_a @ p_a)
        assert torch.equal(after.bias_b, before.bias_b)


def test_batched_action_is_the_action_of_each(spec: TransformerSpec, generator: torch.Generator):
    u = random_weights(spec, (4,), generator)
    g = GroupElement.sample(spec, (4,), generator=generator)
    each = [g.map(lambda t, i=i: t[i]).act(TransformerWeights.from_flat(spec, u.flat()[i])).flat() for i in range(4)]
    torch.testing.assert_close(g.act(u).flat(), torch.stack(each))
    single = TransformerWeights.from_flat(spec, u.flat()[0])
    assert g.act(single).batch_shape == (4,)
    torch.testing.assert_close(g.compose(g.inverse()).act(u).flat(), u.flat())


def test_real_model_computes_the_same_logits(
    checkpoints: TransformerWeights, digits: Tensor, generator: torch.Generator
):
    for row in checkpoints.flat():
        u = TransformerWeights.from_flat(MNIST, row)
        v = GroupElement.sample(MNIST, generator=generator).act(u)
        with torch.no_grad():
            before, after = build_model(MNIST, u)(digits), build_model(MNIST, v)(digits)
        assert (u.flat() - v.flat()).abs().max() > 0.1
        torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-3 * float(before.std()))


def test_float64_model_computes_the_same_logits_to_rounding(spec: TransformerSpec, generator: torch.Generator):
    u = random_weights(spec, (), generator)
    v = GroupElement.sample(spec, generator=generator).act(u)
    inputs = inputs_of(spec, generator)
    with torch.no_grad():
        before, after = (build_model(spec, w).double()(*inputs) for w in (u, v))
    torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("entry_range", [1.0, 10.0, 100.0])
def test_uniform_entries_fill_the_range_and_stay_invertible(entry_range: float, generator: torch.Generator):
    g = GroupElement.sample(AGNEWS, (50,), generator=generator, entry_range=entry_range)
    for matrices in (g.m, g.n):
        assert 0.99 * entry_range < matrices.abs().max() <= entry_range
        assert abs(matrices.mean()) < 0.05 * entry_range
        assert torch.linalg.cond(matrices).max() <= 1e4


def test_default_matrices_are_well_conditioned_but_not_orthogonal(generator: torch.Generator):
    g = GroupElement.sample(MNIST, (20,), generator=generator)
    assert torch.linalg.cond(g.m).max() <= 4.0 + 1e-9
    assert torch.linalg.cond(g.m).min() > 1.5


def test_sampling_is_reproducible_and_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    g, h = (GroupElement.sample(MNIST, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert_same_element(g, h)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_action_keeps_dtype_and_does_not_write_to_its_input(generator: torch.Generator):
    u = TransformerWeights.from_flat(MNIST, torch.randn(2, MNIST.num_parameters, generator=generator))
    copy = u.flat().clone()
    v = GroupElement.sample(MNIST, generator=generator).act(u)
    assert v.flat().dtype == torch.float32
    assert torch.equal(u.flat(), copy)
    for name in ("embedding.weight", "embedding.bias", "classifier.fc1.weight", "classifier.fc2.bias"):
        assert torch.equal(u[name], v[name])


def test_action_passes_gradients(generator: torch.Generator):
    flat = torch.randn(MNIST.num_parameters, generator=generator, dtype=torch.float64, requires_grad=True)
    moved = GroupElement.sample(MNIST, generator=generator).act(TransformerWeights.from_flat(MNIST, flat))
    moved.flat().square().sum().backward()
    assert flat.grad is not None
    assert bool((flat.grad != 0).all())


@pytest.mark.parametrize("entry_range", [0.0, -1.0, float("nan")])
def test_bad_range_is_refused_in_one_clear_line(entry_range: float, generator: torch.Generator):
    with pytest.raises(ValueError, match="entry_range must be a positive number"):
        GroupElement.sample(MNIST, generator=generator, entry_range=entry_range)


def test_element_of_other_dimensions_is_refused(generator: torch.Generator, spec: TransformerSpec):
    g = GroupElement.sample(MNIST, generator=generator)
    with pytest.raises(ValueError, match=r"acts on weights of its own dimensions, got blocks|got h|got D"):
        g.act(random_weights(spec, (), generator))


@pytest.mark.parametrize("name", ["heads", "neurons", "features"])
def test_an_element_that_permutes_what_is_not_there_is_refused(name: str, generator: torch.Generator):
    g, weights = GroupElement.sample(MNIST, generator=generator), random_weights(MNIST, (), generator)
    order = getattr(g, name)
    assert torch.equal(replace(g, **{name: order.int()}).act(weights).flat(), g.act(weights).flat())
    for offset in (1, -order.shape[-1]):
        with pytest.raises((RuntimeError, IndexError), match=r"out of bounds|out of range"):
            replace(g, **{name: order + offset}).act(weights)


def test_features_of_residual_transformers_stay_in_place(generator: torch.Generator):
    g, u = GroupElement.sample(TINY_PHOTOS, generator=generator), random_weights(TINY_PHOTOS, (), generator)
    assert torch.equal(g.features, GroupElement.identity(TINY_PHOTOS).features)
    assert not torch.equal(g.neurons, GroupElement.identity(TINY_PHOTOS).neurons)
    with pytest.raises(ValueError, match="the features of a transformer of photos cannot be permuted"):
        replace(g, features=g.features.flip(-1)).act(u)


def test_every_tensor_is_moved(generator: torch.Generator):
    u = random_weights(MNIST, (), generator)
    v = GroupElement.sample(MNIST, generator=generator).act(u)
    moved = {name for name in TENSOR_NAMES if not torch.equal(getattr(u.encoder, name), getattr(v.encoder, name))}
    assert moved == set(TENSOR_NAMES) - {"bias_b"}
