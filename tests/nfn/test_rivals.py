"""The predictors after ideas of others: each against plain loops, and as invariant as it promises to be."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from nfn import GroupElement, HiddenProbeNFN, ProbeGenNFN, ProbeNFN, QuasiNFN, TransformerNFN
from nfn.layers.polynomial import encoder_as_one_channel, relu_on_mlp
from nfn.predictors.quasi_nfn import _MovedCopies, _QuasiEncoder
from nfn.symmetry.parts import available_parts
from nfn.testing import assert_equivariant, assert_invariant
from tests.nfn.conftest import random_weights
from zoo import BlockWeights, TransformerSpec, TransformerWeights, build_model

IMAGES = TransformerSpec("images", 3, 4, 4, dim=6, heads=2, key_dim=3, value_dim=2, hidden_dim=5, blocks=2)
WORDS = TransformerSpec("words", 2, 5, None, dim=4, heads=2, key_dim=2, value_dim=3, hidden_dim=6, blocks=1)
both_specs = pytest.mark.parametrize("spec", [IMAGES, WORDS], ids=lambda spec: spec.task)


def normalized(row: Tensor) -> Tensor:
    return (row - row.mean()) / torch.sqrt(row.var(correction=0) + 1e-5)


def run_one(spec: TransformerSpec, flat: Tensor, probe: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The logits of one checkpoint for one input, and the rows [t, D] after every block, by hooks."""
    model, after = build_model(spec, flat), []
    for block in model.blocks:
        block.register_forward_hook(lambda _module, _inputs, output: after.append(output[0]))
    mask = () if spec.patch_size else (torch.ones(1, len(probe), dtype=torch.bool),)
    return model(probe[None], *mask)[0], after


@both_specs
@torch.no_grad()
def test_hidden_probes_read_what_plain_loops_read(spec: TransformerSpec, generator: torch.Generator):
    predictor = HiddenProbeNFN(spec, probes=3, width=8, generator=generator).double()
    weights = random_weights(spec, (2,), generator)
    for flat, predicted in zip(weights.flat(), predictor.logits(weights), strict=True):
        answers = [run_one(spec, flat, probe) for probe in predictor.probes]
        features = [
            math.copysign(math.log1p(abs(number)), number)
            for logits, _ in answers
            for number in (logits - logits.mean()).tolist()
        ]
        for block in range(spec.blocks):
            pooled = [torch.stack([normalized(row) for row in after[block]]).mean(0) for _, after in answers]
            centered = [row - sum(pooled) / 3 for row in pooled]
            size = sum(float(row @ row) for row in centered) / 3 + 1e-8
            features += [float(centered[i] @ centered[j]) / size for i in range(3) for j in range(i + 1)]
            features.append(math.log(size))
        expected = predictor.network(torch.tensor(features, dtype=torch.float64))[0]
        torch.testing.assert_close(predicted, expected, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_generated_images_are_what_plain_loops_enlarge(generator: torch.Generator):
    predictor = ProbeGenNFN(IMAGES, probes=2, generator=generator).double()
    assert [tuple(kernel.shape) for kernel in predictor.steps] == [(16, 16, 4, 4), (16, 1, 4, 4)]  # 4 = 2 · 2
    for code, probe in zip(predictor.codes, predictor.make_probes(), strict=True):
        image = (code @ predictor.grid).view(16, 2, 2)
        for kernel in predictor.steps:
            side = image.shape[-1]
            enlarged = torch.zeros(kernel.shape[1], 2 * side + 2, 2 * side + 2, dtype=torch.float64)
            for y, x, dy, dx in itertools.product(range(side), range(side), range(4), range(4)):
                enlarged[:, 2 * y + dy, 2 * x + dx] += image[:, y, x] @ kernel[:, :, dy, dx]
            image = enlarged[:, 1:-1, 1:-1]
        torch.testing.assert_close(probe, image, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_generated_words_are_what_plain_loops_stretch(generator: torch.Generator):
    predictor = ProbeGenNFN(WORDS, probes=2, generator=generator).double()
    stretch, channels = predictor.steps
    assert stretch.shape == (5, 2)  # five tokens from a sequence of two
    for code, probe in zip(predictor.codes, predictor.make_probes(), strict=True):
        short = (code @ predictor.grid).view(2, 16)
        rows = [sum(stretch[t, s] * short[s] for s in range(2)) @ channels for t in range(5)]
        torch.testing.assert_close(probe, torch.stack(rows), rtol=1e-10, atol=1e-10)


@both_specs
@torch.no_grad()
def test_generated_probes_are_answered_and_read_as_learned_ones(spec: TransformerSpec, generator: torch.Generator):
    generated = ProbeGenNFN(spec, probes=3, width=8, generator=generator).double()
    learned = ProbeNFN(spec, probes=3, width=8).double()
    learned.probes.copy_(generated.make_probes())
    learned.network.load_state_dict(generated.network.state_dict())
    weights = random_weights(spec, (2,), generator)
    assert torch.equal(generated.logits(weights), learned.logits(weights))
    probe = generated.make_probes()[1]
    torch.testing.assert_close(generated.answers(weights.flat())[0, 1], run_one(spec, weights.flat()[0], probe)[0])


@pytest.mark.parametrize("kind", [HiddenProbeNFN, ProbeGenNFN])
@both_specs
def test_probes_are_invariant_under_all_that_keeps_the_function(kind: type[ProbeNFN], spec: TransformerSpec):
    predictor = kind(spec, probes=4, width=8)
    exact = [part for part in available_parts(spec) if part not in ("boundary_scales", "logits")]
    assert "rotations" in exact
    assert_invariant(predictor, spec, channels=None, parts=exact)
    # the function itself changes by the ε of LayerNorm
    assert_invariant(predictor, spec, channels=None, parts=["boundary_scales"], tolerance=1e-3)
    with pytest.raises(AssertionError, match="not invariant under boundary_scales"):
        assert_invariant(predictor, spec, channels=None, parts=["boundary_scales"])


def test_gram_matrices_of_a_collapsed_checkpoint_are_numbers():
    predictor = HiddenProbeNFN(IMAGES, probes=4, width=8)
    predictor.logits(torch.zeros(2, IMAGES.num_parameters)).sum().backward()
    assert predictor.probes.grad is not None
    assert bool(predictor.probes.grad.isfinite().all())


@pytest.mark.parametrize("kind", [HiddenProbeNFN, ProbeGenNFN, QuasiNFN])
@both_specs
def test_every_learned_part_has_a_gradient(
    kind: type[ProbeNFN | QuasiNFN], spec: TransformerSpec, generator: torch.Generator
):
    predictor = kind(spec, generator=generator).double()
    predictor.logits(random_weights(spec, (6,), generator)).sum().backward()
    for name, parameter in predictor.named_parameters():
        assert parameter.grad is not None, name
        if name.startswith(("probes", "codes", "grid", "steps", "parts.encoder.copies")):
            assert float(parameter.grad.abs().max()) > 0, name


def test_hidden_layers_alone_have_a_gradient_with_respect_to_the_probes(generator: torch.Generator):
    predictor = HiddenProbeNFN(IMAGES, probes=3, generator=generator).double()
    with torch.no_grad():
        first = next(predictor.network.parameters())
        first[:, : ProbeNFN(IMAGES, probes=3).feature_count] = 0  # what reads the logits
    predictor.logits(random_weights(IMAGES, (4,), generator)).sum().backward()
    assert predictor.probes.grad is not None
    assert bool((predictor.probes.grad.abs().amax((1, 2, 3)) > 0).all())


def moved_copy(copies: _MovedCopies, encoder: BlockWeights, chosen: Tensor, copy: int) -> BlockWeights:
    """Copy number ``copy`` of one checkpoint, moved by an element written out as matrices."""
    blocks, heads, dim, key_dim = encoder.query.shape
    value_dim = encoder.value.shape[-1]
    m = torch.empty(blocks, heads, key_dim, key_dim, dtype=torch.float64)
    n = torch.empty(blocks, heads, value_dim, value_dim, dtype=torch.float64)
    for block, head in itertools.product(range(blocks), range(heads)):
        slope_m, scale_m, slope_n, scale_n = chosen[block, head].view(4, 4)[:, copy]
        sums = encoder.weight_a[block].sum(-1)
        first, second = copies.output_a[block, 0, :, copy]
        for target, left, right, a, b, slope, scale in (
            (
                m,
                encoder.query[block, head],
                encoder.key[block, head],
                copies.key_a[block, 0, :, copy],
                copies.query_b[block, 0, :, copy],
                slope_m,
                scale_m,
            ),
            (
                n,
                encoder.value[block, head],
                encoder.output[block, head].T,
                first * torch.ones(dim, dtype=torch.float64) + second * sums / sums.norm(),
                copies.value_b[block, 0, :, copy],
                slope_n,
                scale_n,
            ),
        ):
            u, v = right.T @ a, left.T @ b
            size = (left @ u).norm() * b.norm() + (right @ v).norm() * a.norm() + 1e-12
            one = torch.eye(len(u), dtype=torch.float64)
            on_the_right = scale.exp() * (one + slope / size * torch.outer(u, v))
            target[block, head] = on_the_right.T if target is m else on_the_right
    nothing = {name: torch.arange(size).expand(blocks, size) for name, size in (("heads", heads), ("features", dim))}
    neurons = torch.arange(encoder.bias_a.shape[-1]).expand(blocks, -1)
    return GroupElement(m=m, n=n, neurons=neurons, **nothing).act_on_blocks(encoder)


def quasi(spec: TransformerSpec, generator: torch.Generator) -> tuple[QuasiNFN, _QuasiEncoder]:
    predictor = QuasiNFN(spec, channels=(4, 3), generator=generator).double()
    encoder = predictor.parts["encoder"]
    assert isinstance(encoder, _QuasiEncoder)
    return predictor, encoder


def choices(copies: _MovedCopies, encoder: BlockWeights) -> Tensor:
    """What the network chooses for each block and head, from readings computed in loops."""
    blocks, heads = encoder.query.shape[:2]
    rows = []
    for block, head in itertools.product(range(blocks), range(heads)):
        sums = encoder.weight_a[block].sum(-1)
        basis = torch.stack([torch.ones_like(sums), sums / sums.norm()], dim=1)
        readings = []
        for product, a, b in (
            (encoder.query[block, head] @ encoder.key[block, head].T, copies.key_a[block, 0], copies.query_b[block, 0]),
            (
                encoder.value[block, head] @ encoder.output[block, head],
                basis @ copies.output_a[block, 0],
                copies.value_b[block, 0],
            ),
        ):
            size = [
                (product @ a[:, j]).norm() * b[:, j].norm() + (product.T @ b[:, j]).norm() * a[:, j].norm() + 1e-12
                for j in range(4)
            ]
            readings += [b[:, j] @ product @ a[:, j] / size[j] for j in range(4)] + [number.log() for number in size]
        rows.append(torch.tanh(copies.choice(torch.stack(readings))))
    return torch.stack(rows).view(blocks, heads, 16)


@both_specs
@torch.no_grad()
def test_quasi_nfn_reads_a_mixture_of_copies_that_are_moved_by_group_elements(
    spec: TransformerSpec, generator: torch.Generator
):
    _, encoder = quasi(spec, generator)
    weights = random_weights(spec, (2,), generator)
    for number in range(2):
        one = TransformerWeights.from_flat(spec, weights.flat()[number])
        chosen = choices(encoder.copies, one.encoder)
        copies = [one.encoder, *(moved_copy(encoder.copies, one.encoder, chosen, copy) for copy in range(4))]
        mixture = vars(one.encoder).copy()
        for name, own in zip(("query", "key", "value", "output"), encoder.copies.mixing, strict=True):
            mixture[name] = sum(
                own[:, 0, copy, None, None, None] * getattr(moved, name) for copy, moved in enumerate(copies)
            )
        mixed = TransformerWeights.from_flat(spec, one.flat()[None]).with_encoder(
            BlockWeights(**{name: tensor[None] for name, tensor in mixture.items()})
        )
        hidden = encoder_as_one_channel(mixed)
        for layer in encoder.encoder.equivariant:
            hidden = relu_on_mlp(layer(hidden))
        expected = encoder.encoder.read(encoder.encoder.invariant(hidden))
        torch.testing.assert_close(encoder(weights)[number], expected[0], rtol=1e-9, atol=1e-9)


@both_specs
@torch.no_grad()
def test_every_copy_computes_the_function_of_the_checkpoint(spec: TransformerSpec, generator: torch.Generator):
    _, encoder = quasi(spec, generator)
    weights = random_weights(spec, (), generator)
    probe = ProbeNFN(spec, probes=1).double().probes[0]
    expected, _ = run_one(spec, weights.flat(), probe)
    for copy in range(5):
        encoder.copies.mixing.zero_()
        encoder.copies.mixing[..., copy] = 1.0
        moved = weights.with_encoder(encoder.copies(weights.encoder))
        assert (copy == 0) == torch.allclose(moved.flat(), weights.flat(), rtol=1e-3)
        torch.testing.assert_close(run_one(spec, moved.flat(), probe)[0], expected, rtol=1e-9, atol=1e-9)


def test_quasi_nfn_keeps_the_symmetry_of_the_papers_group_and_no_more(
    spec: TransformerSpec, generator: torch.Generator
):
    predictor, encoder = quasi(spec, generator)
    assert_equivariant(encoder.copies, spec, channels=2)
    assert_invariant(predictor, spec, channels=None)
    weights = random_weights(spec, (8,), generator)
    moved = GroupElement.sample(spec, (8,), generator=generator, entry_range=1.0).act(weights)  # condition up to 10⁴
    with torch.no_grad():
        torch.testing.assert_close(predictor(moved), predictor(weights), rtol=1e-6, atol=1e-6)
    with pytest.raises(AssertionError, match="not invariant under unit_scales"):
        assert_invariant(predictor, spec, channels=None, parts=["unit_scales"])


@both_specs
@torch.no_grad()
def test_without_copies_quasi_nfn_is_transformer_nfn(spec: TransformerSpec, generator: torch.Generator):
    predictor, encoder = quasi(spec, generator)
    plain = TransformerNFN(spec, channels=(4, 3)).double()
    plain.load_state_dict(
        {
            name.replace("encoder.encoder.", "encoder."): tensor
            for name, tensor in predictor.state_dict().items()
            if ".copies." not in name
        }
    )
    weights = random_weights(spec, (4,), generator)
    assert not torch.allclose(predictor(weights), plain(weights), rtol=1e-3)
    encoder.copies.mixing[..., 1:] = 0.0
    torch.testing.assert_close(predictor(weights), plain(weights))
