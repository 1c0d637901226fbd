"""find_group_element: finds a hidden group element, refuses near misses, and gives the reason."""

from dataclasses import fields

import pytest
import torch

from nfn import GroupElement, find_group_element, match_paper_group
from nfn.layers.terms import TENSOR_NAMES
from tests.nfn.conftest import ODD_SPECS, random_weights
from zoo import MNIST, BlockWeights, TransformerSpec, TransformerWeights

SEEDS = range(25)


def checkpoint(checkpoints: TransformerWeights, index: int) -> TransformerWeights:
    return TransformerWeights.from_flat(MNIST, checkpoints.flat()[index % len(checkpoints.flat())])


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_finds_a_hidden_element_on_a_real_checkpoint(checkpoints: TransformerWeights, seed: int):
    generator = torch.Generator().manual_seed(seed)
    u = checkpoint(checkpoints, seed)
    # Every fifth is one of the paper's augmentations, which are worse conditioned.
    hidden = GroupElement.sample(MNIST, generator=generator, entry_range=(None, None, None, None, 10.0)[seed % 5])
    element = find_group_element(u, hidden.act(u))
    assert element is not None
    for field in fields(GroupElement):
        torch.testing.assert_close(
            getattr(element, field.name),
            getattr(hidden, field.name),
            rtol=1e-2,
            atol=1e-4 * float(hidden.m.abs().max()),
        )


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_refuses_a_near_miss_on_a_real_checkpoint(checkpoints: TransformerWeights, seed: int):
    """One of five small changes to a moved checkpoint that would match without it."""
    generator = torch.Generator().manual_seed(1000 + seed)
    u = checkpoint(checkpoints, seed)
    v = GroupElement.sample(MNIST, generator=generator).act(u)
    changes = (one_weight, one_neuron_swapped_in_one_matrix, one_feature_swapped, one_head_with_other_n, one_bias)
    changed = changes[seed % len(changes)](v, generator)
    assert match_paper_group(u, v)
    assert not torch.equal(changed.flat(), v.flat())
    match = match_paper_group(u, changed)
    assert match.element is None
    assert match.reason
    assert find_group_element(u, changed) is None


def one_weight(v: TransformerWeights, generator: torch.Generator) -> TransformerWeights:
    """A weight of ordinary size, of any tensor, off by a part in a thousand."""
    flat = v.flat().clone()
    order = torch.randperm(len(flat), generator=generator)
    index = next(int(i) for i in order if abs(flat[i]) > 0.05)
    flat[index] *= 1.001
    return TransformerWeights.from_flat(MNIST, flat)


def one_neuron_swapped_in_one_matrix(v: TransformerWeights, generator: torch.Generator) -> TransformerWeights:
    name = ("weight_a", "weight_b", "bias_a")[int(torch.randint(3, (), generator=generator))]
    return swapped(v, name, -2 if name == "weight_b" else -1, generator)


def one_feature_swapped(v: TransformerWeights, generator: torch.Generator) -> TransformerWeights:
    name, dim = (("weight_a", -2), ("output", -1))[int(torch.randint(2, (), generator=generator))]
    return swapped(v, name, dim, generator)


def one_head_with_other_n(v: TransformerWeights, generator: torch.Generator) -> TransformerWeights:
    g = GroupElement.sample(MNIST, generator=generator)
    value = v.encoder.value.clone()
    value[1, 0] = (value[1, 0].double() @ g.n[1, 0]).float()
    return v.with_encoder(BlockWeights(**{**vars(v.encoder), "value": value}))


def one_bias(v: TransformerWeights, generator: torch.Generator) -> TransformerWeights:
    name = ("bias_a", "bias_b")[int(torch.randint(2, (), generator=generator))]
    bias = getattr(v.encoder, name).clone()
    bias[0, int(torch.randint(bias.shape[-1], (), generator=generator))] += 1e-4
    return v.with_encoder(BlockWeights(**{**vars(v.encoder), name: bias}))


def swapped(v: TransformerWeights, name: str, dim: int, generator: torch.Generator) -> TransformerWeights:
    tensor = getattr(v.encoder, name)
    i, j = torch.randperm(tensor.shape[dim], generator=generator)[:2].tolist()
    order = torch.arange(tensor.shape[dim])
    order[i], order[j] = j, i
    return v.with_encoder(BlockWeights(**{**vars(v.encoder), name: tensor.index_select(dim, order)}))


@pytest.mark.parametrize("spec", [*ODD_SPECS[:3], *ODD_SPECS[4:]], ids=lambda spec: spec.task)
def test_finds_the_element_for_any_dimensions(spec: TransformerSpec, generator: torch.Generator):
    u = random_weights(spec, (), generator)
    hidden = GroupElement.sample(spec, generator=generator)
    element = find_group_element(u, hidden.act(u))
    assert element is not None
    for field in fields(GroupElement):
        torch.testing.assert_close(getattr(element, field.name), getattr(hidden, field.name), rtol=1e-8, atol=1e-8)


@pytest.mark.long
def test_a_checkpoint_is_itself_and_not_another(checkpoints: TransformerWeights):
    u, v = checkpoint(checkpoints, 0), checkpoint(checkpoints, 1)
    element = find_group_element(u, u)
    assert element is not None
    torch.testing.assert_close(element.m, GroupElement.identity(MNIST).m, rtol=0, atol=1e-6)
    match = match_paper_group(u, v)
    assert not match
    assert match.reason == "embedding.weight differs, and the group does not move it"


@pytest.mark.long
def test_an_action_computed_in_float32_is_recognized(checkpoints: TransformerWeights, generator: torch.Generator):
    u = checkpoint(checkpoints, 0)
    g = GroupElement.sample(MNIST, generator=generator)
    m, n = g.m.float(), g.n.float()
    encoder = u.encoder
    moved = BlockWeights(
        **{
            **vars(encoder),
            "query": encoder.query @ m.mT,
            "key": encoder.key @ torch.linalg.inv(m),
            "value": encoder.value @ n,
            "output": torch.linalg.inv(n) @ encoder.output,
        }
    )
    assert find_group_element(u, u.with_encoder(moved)) is not None


@pytest.mark.long
def test_attention_alone_ignores_the_mlp_but_not_the_heads(checkpoints: TransformerWeights, generator: torch.Generator):
    u = checkpoint(checkpoints, 0)
    identity = GroupElement.identity(MNIST)
    sampled = GroupElement.sample(MNIST, generator=generator)
    g = GroupElement(**{**vars(identity), "heads": sampled.heads, "m": sampled.m, "n": sampled.n})
    v = g.act(u)
    other_mlp = v.with_encoder(BlockWeights(**{**vars(v.encoder), "weight_a": v.encoder.weight_a * 2}))
    match = match_paper_group(u, other_mlp, attention_only=True)
    assert match.element is not None
    assert torch.equal(match.element.heads, g.heads)
    assert not match_paper_group(u, other_mlp)
    permuted = GroupElement(**{**vars(identity), "features": sampled.features}).act(u)
    reason = match_paper_group(u, permuted, attention_only=True).reason
    assert reason == "block 0: W^(V)·W^(O) of the heads differ"


@pytest.mark.long
def test_equal_neurons_do_not_prevent_a_match(checkpoints: TransformerWeights, generator: torch.Generator):
    u = checkpoint(checkpoints, 0)
    twins = u.encoder.map(torch.clone)
    for name in ("weight_a", "bias_a"):
        getattr(twins, name)[..., 5] = getattr(twins, name)[..., 9]
    twins.weight_b[:, 5] = twins.weight_b[:, 9]
    u = u.with_encoder(twins)
    v = GroupElement.sample(MNIST, generator=generator).act(u)
    element = find_group_element(u, v)
    assert element is not None
    torch.testing.assert_close(element.act(u).flat(), v.flat(), rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_failing_conditions_are_named(checkpoints: TransformerWeights, generator: torch.Generator):
    u = checkpoint(checkpoints, 0)

    def with_tensor(name: str, change) -> TransformerWeights:
        tensor = getattr(u.encoder, name).clone()
        change(tensor)
        return u.with_encoder(BlockWeights(**{**vars(u.encoder), name: tensor}))

    def rank_one_less(tensor: torch.Tensor) -> None:
        tensor[1, 0, :, 3] = tensor[1, 0, :, 4]

    deficient = with_tensor("query", rank_one_less)
    expected = "block 1: condition (b) fails: W^(Q,0) of the first is not of full rank"
    assert match_paper_group(deficient, u).reason == expected

    same = u.encoder.map(torch.clone)
    same.query[0, 1], same.key[0, 1] = same.query[0, 0], same.key[0, 0]
    equal_heads = u.with_encoder(same)
    assert "condition (c) fails: heads 0 and 1 of the first" in (match_paper_group(equal_heads, u).reason or "")
    assert "condition (d) fails: heads 0 and 1 of the second" in (match_paper_group(u, equal_heads).reason or "")

    wide = random_weights(ODD_SPECS[3], (), generator)
    assert match_paper_group(wide, wide).reason == "condition (a) fails: max(D_k, D_v) ≤ D, got 4 > 3"

    reasons = {
        name: match_paper_group(u, with_tensor(name, lambda tensor: tensor.mul_(1.5))).reason or ""
        for name in TENSOR_NAMES
    }
    assert "no head of the first" in reasons["query"]
    assert "no head of the first" in reasons["key"]
    assert "even with the output features permuted" in reasons["value"]
    assert "W_A differs" in reasons["weight_a"]
    assert "no permutation of the hidden neurons" in reasons["weight_b"]
    assert "b_B differs" in reasons["bias_b"]


@pytest.mark.long
def test_bad_input_is_refused_in_one_clear_line(checkpoints: TransformerWeights, generator: torch.Generator):
    u = checkpoint(checkpoints, 0)
    with pytest.raises(ValueError, match=r"single checkpoints are compared, got a batch of shape \(3,\)"):
        find_group_element(checkpoints, checkpoints)
    with pytest.raises(ValueError, match="same dimensions"):
        find_group_element(u, random_weights(ODD_SPECS[0], (), generator))
    broken = u.flat().clone()
    broken[7] = float("nan")
    with pytest.raises(ValueError, match=r"weights hold NaN or infinity, first in embedding.weight"):
        find_group_element(u, TransformerWeights.from_flat(MNIST, broken, check_finite=False))
