"""The transformer itself: it equals the formula and ignores padding."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import zoo
from tests.fabricated import TINY_PHOTOS
from zoo.transformer.model import ZooTransformer, sinusoidal_positions


def random_model(spec: zoo.TransformerSpec, dtype: torch.dtype = torch.float64) -> ZooTransformer:
    generator = torch.Generator().manual_seed(3)
    return zoo.build_model(spec, torch.randn(spec.num_parameters, generator=generator, dtype=dtype) * 0.3)


def literal_logits(model: ZooTransformer, x: Tensor) -> Tensor:
    """One example, written out from the formulas of the paper with plain loops over tokens and heads."""

    def norm(rows: Tensor) -> Tensor:
        centered = rows - rows.mean(dim=-1, keepdim=True)
        return centered / torch.sqrt((centered**2).mean(dim=-1, keepdim=True) + 1e-5)

    weights = zoo.TransformerWeights.from_state_dict(model.spec, model.state_dict())
    for block in weights.blocks:
        normed = norm(x)
        attended = torch.zeros_like(x)
        for s in range(model.spec.heads):
            scores = (normed @ block.query[s]) @ (normed @ block.key[s]).T / math.sqrt(model.spec.key_dim)
            share = torch.exp(scores) / torch.exp(scores).sum(dim=1, keepdim=True)
            attended += share @ normed @ block.value[s] @ block.output[s]
        x = attended + x if model.spec.residual else attended
        hidden = torch.clamp(norm(x) @ block.weight_a + block.bias_a, min=0)
        mapped = hidden @ block.weight_b + block.bias_b
        x = mapped + x if model.spec.residual else mapped
    pooled = norm(x).mean(dim=0)
    hidden = torch.clamp(weights["classifier.fc1.weight"] @ pooled + weights["classifier.fc1.bias"], min=0)
    return weights["classifier.fc2.weight"] @ hidden + weights["classifier.fc2.bias"]


def test_logits_equal_the_formulas_on_words() -> None:
    model = random_model(zoo.AGNEWS)
    vectors = torch.randn(9, 32, dtype=torch.float64)
    expected = literal_logits(model, vectors + sinusoidal_positions(9, 32))
    actual = model(vectors[None], torch.ones(1, 9, dtype=torch.bool))[0]
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("spec", "rows", "columns"), [(zoo.MNIST, 7, 7), (TINY_PHOTOS, 2, 3)])
def test_logits_equal_the_formulas_on_images(spec: zoo.TransformerSpec, rows: int, columns: int) -> None:
    model = random_model(spec)
    image = torch.rand(spec.channels, 4 * rows, 4 * columns, dtype=torch.float64)
    kernel, bias = model.state_dict()["embedding.weight"], model.state_dict()["embedding.bias"]
    patches = [image[:, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4] for i in range(rows) for j in range(columns)]
    tokens = torch.stack([(kernel * patch).sum(dim=(1, 2, 3)) + bias for patch in patches])
    expected = literal_logits(model, tokens + sinusoidal_positions(spec.tokens, spec.dim))
    torch.testing.assert_close(model(image[None])[0], expected, rtol=1e-9, atol=1e-9)


def test_logits_do_not_change_when_padding_does() -> None:
    model = random_model(zoo.AGNEWS)
    lengths = torch.tensor([1, 7, 30, 64])
    mask = torch.arange(64) < lengths[:, None]
    vectors = torch.randn(4, 64, 32, dtype=torch.float64)
    clean = model(vectors * mask[..., None], mask)
    dirty = model(torch.where(mask[..., None], vectors, 1e3 * torch.randn_like(vectors)), mask)
    assert torch.equal(clean, dirty)
    alone = model(vectors[2:3, :30], mask[2:3, :30])
    torch.testing.assert_close(alone[0], clean[2], rtol=1e-12, atol=1e-12)


def test_real_tokens_do_change_the_logits() -> None:
    model = random_model(zoo.AGNEWS)
    vectors, mask = torch.randn(1, 64, 32, dtype=torch.float64), torch.arange(64)[None] < 20
    changed = vectors.clone()
    changed[0, 19] = torch.randn(32)  # a constant added to a token would vanish in its LayerNorm
    assert not torch.allclose(model(vectors, mask), model(changed, mask))


def test_positions_are_the_sinusoids() -> None:
    table = sinusoidal_positions(64, 32)
    assert table.shape == (64, 32)
    assert float(table[5, 6]) == pytest.approx(math.sin(5 / 10_000 ** (6 / 32)), abs=1e-7)
    assert float(table[5, 7]) == pytest.approx(math.cos(5 / 10_000 ** (6 / 32)), abs=1e-7)


def test_model_is_in_eval_mode_and_owns_its_weights() -> None:
    flat = torch.randn(zoo.MNIST.num_parameters)
    before, random_state = flat.clone(), torch.random.get_rng_state()
    model = zoo.build_model(zoo.MNIST, flat)
    assert not model.training
    for parameter in model.parameters():
        parameter.data += 1
    assert torch.equal(flat, before)
    assert torch.equal(torch.random.get_rng_state(), random_state)
    assert list(model.state_dict()) == list(zoo.MNIST.tensors)


def test_dropout_acts_only_in_training_and_follows_its_generator() -> None:
    state = random_model(zoo.MNIST, torch.float32).state_dict()

    def logits(seed: int, *, training: bool) -> Tensor:
        model = ZooTransformer(zoo.MNIST, dropout=0.2, dropout_generator=torch.Generator().manual_seed(seed))
        model.load_state_dict(state)
        return model.train(training)(torch.ones(2, 1, 28, 28)).detach()

    assert torch.equal(logits(1, training=True), logits(1, training=True))
    assert not torch.equal(logits(1, training=True), logits(2, training=True))
    assert torch.equal(logits(1, training=False), logits(2, training=False))


@pytest.mark.parametrize(
    ("spec", "inputs", "message"),
    [
        (zoo.MNIST, (torch.zeros(2, 28, 28),), r"reads images \[b, 1, height, width\], got \(2, 28, 28\)"),
        (zoo.MNIST, (torch.zeros(2, 1, 24, 28),), r"must cut into 49 patches, got 42 from 24 × 28"),
        (zoo.MNIST, (torch.zeros(2, 1, 28, 30),), r"patches of 4 × 4 do not divide images of 28 × 30"),
        (TINY_PHOTOS, (torch.zeros(2, 1, 8, 12),), r"reads images \[b, 3, height, width\], got \(2, 1, 8, 12\)"),
        (zoo.AGNEWS, (torch.zeros(2, 5, 32),), r"and a mask \[b, t\], got \(2, 5, 32\) and no mask"),
        (zoo.AGNEWS, (torch.zeros(2, 5, 31), torch.ones(2, 5, dtype=torch.bool)), r"word vectors \[b, t, 32\]"),
        (zoo.AGNEWS, (torch.zeros(2, 65, 32), torch.ones(2, 65, dtype=torch.bool)), r"at most 64 tokens, got 65"),
    ],
)
def test_wrong_inputs_are_refused_and_why(spec: zoo.TransformerSpec, inputs: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_model(spec, torch.float32)(*inputs)


def test_build_model_refuses_batches_and_foreign_weights() -> None:
    with pytest.raises(ValueError, match="takes one weight vector"):
        zoo.build_model(zoo.MNIST, torch.zeros(2, zoo.MNIST.num_parameters))
    foreign = zoo.TransformerWeights.from_flat(zoo.AGNEWS, torch.zeros(zoo.AGNEWS.num_parameters))
    with pytest.raises(ValueError, match="weights of a transformer of agnews do not fit the spec of mnist"):
        zoo.build_model(zoo.MNIST, foreign)
    photos = zoo.TransformerWeights.from_flat(TINY_PHOTOS, torch.zeros(TINY_PHOTOS.num_parameters))
    with pytest.raises(ValueError, match="do not fit the spec of photos: residual False and True"):
        zoo.build_model(replace(TINY_PHOTOS, residual=False), photos)
