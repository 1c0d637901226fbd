"""Language models: they equal the formulas, look at no later token, and have the documented layout."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import zoo
from generation.population.dropout import drop_threshold, dropout_bits, mask_dropout
from zoo.transformer.population import _attention, _padded_attention, population_logits, population_losses

SIZES = {"dim": 6, "heads": 2, "key_dim": 3, "value_dim": 2, "hidden_dim": 5, "blocks": 2}
TINY = zoo.TransformerSpec("lines", 11, 8, residual=True, vocabulary=11, causal=True, **SIZES)
MANY_WORDS = replace(TINY, classes=600, vocabulary=600)
"""More than are looked up by a matrix product."""
LEARNED = replace(TINY, classes=3, vocabulary=11, causal=False)
"""A classifier of texts whose word vectors are learned."""


def random_weights(spec: zoo.TransformerSpec, models: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return 0.5 * torch.randn(models, spec.num_parameters, generator=generator, dtype=torch.float64)


def random_tokens(spec: zoo.TransformerSpec, rows: int = 4, tokens: int | None = None) -> Tensor:
    assert spec.vocabulary is not None
    return torch.randint(spec.vocabulary, (rows, tokens or spec.tokens), generator=torch.Generator().manual_seed(4))


def written_out(spec: zoo.TransformerSpec, flat: Tensor, tokens: list[int], kept: list[Tensor] | None = None) -> Tensor:
    """The logits at every position of one sequence, from the formulas, one number at a time.

    ``kept`` has a factor for each element after each dropout, in the order of the forward pass.
    """
    weights = zoo.TransformerWeights.from_flat(spec, flat).state_dict()
    factors = iter(kept or [torch.ones(len(tokens), spec.dim)] * (1 + 2 * spec.blocks))

    def rows_times(rows: list[Tensor], matrix: Tensor) -> list[Tensor]:
        return [torch.stack([(row * out).sum() for out in matrix]) for row in rows]

    def norm(rows: list[Tensor]) -> list[Tensor]:
        centered = [row - row.sum() / spec.dim for row in rows]
        return [row / ((row * row).sum() / spec.dim + 1e-5).sqrt() for row in centered]

    def step(rows: list[Tensor], change: list[Tensor]) -> list[Tensor]:
        return [a + b * c for a, b, c in zip(rows, change, next(factors), strict=True)]

    embedding, positions = weights["embedding.weight"], weights["positions.weight"]
    zero = [torch.zeros(spec.dim, dtype=flat.dtype)] * len(tokens)
    x = step(zero, [embedding[token] + positions[place] for place, token in enumerate(tokens)])
    for i in range(spec.blocks):
        query, key, value, output, fc1, bias1, fc2, bias2 = (
            weights[f"blocks.{i}.{name}"]
            for name in (
                *(f"{part}.weight" for part in ("query", "key", "value", "output")),
                *(f"{layer}.{part}" for layer in ("fc1", "fc2") for part in ("weight", "bias")),
            )
        )
        read, attended = norm(x), [torch.zeros(spec.dim, dtype=flat.dtype) for _ in tokens]
        for s in range(spec.heads):
            own, own_values = (slice(s * d, (s + 1) * d) for d in (spec.key_dim, spec.value_dim))
            queries, keys, values = (
                rows_times(read, query[own]),
                rows_times(read, key[own]),
                rows_times(read, value[own_values]),
            )
            for here in range(len(tokens)):
                scores = [
                    float((queries[here] * keys[there]).sum()) / math.sqrt(spec.key_dim) for there in range(here + 1)
                ]
                total = sum(math.exp(score) for score in scores)
                for there, score in enumerate(scores):
                    attended[here] += math.exp(score) / total * (output[:, own_values] @ values[there])
        x = step(x, attended)
        hidden = [torch.clamp(row + bias1, min=0) for row in rows_times(norm(x), fc1)]
        x = step(x, [row + bias2 for row in rows_times(hidden, fc2)])
    return torch.stack(rows_times(norm(x), weights["unembedding.weight"]))


@pytest.mark.parametrize("spec", [TINY, MANY_WORDS], ids=["as a product", "looked up"])
def test_logits_equal_the_formulas_at_every_position(spec: zoo.TransformerSpec) -> None:
    flat, tokens = random_weights(spec, 2), random_tokens(spec, 2)
    expected = torch.stack([torch.stack([written_out(spec, one, row) for row in tokens.tolist()]) for one in flat])
    actual = population_logits(spec, flat, tokens, None, dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)
    for one, logits in zip(flat, expected, strict=True):
        torch.testing.assert_close(zoo.build_model(spec, one)(tokens), logits, rtol=1e-11, atol=1e-11)
    rounded = population_logits(spec, flat.float(), tokens.int(), None)
    torch.testing.assert_close(rounded.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [1, 5])
def test_a_shorter_sequence_has_the_first_logits_of_a_longer(length: int) -> None:
    flat, tokens = random_weights(TINY, 2), random_tokens(TINY)
    whole = population_logits(TINY, flat, tokens, None, dtype=torch.float64)
    short = population_logits(TINY, flat, tokens[:, :length], None, dtype=torch.float64)
    torch.testing.assert_close(short, whole[:, :, :length], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(zoo.build_model(TINY, flat[1])(tokens[:, :length]), short[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("spec", [TINY, MANY_WORDS, replace(TINY, residual=False)], ids=["small", "large", "feed"])
def test_no_later_token_changes_an_earlier_logit_and_every_earlier_one_does(spec: zoo.TransformerSpec) -> None:
    flat, tokens = random_weights(spec, 2), random_tokens(spec, 1)
    model = zoo.build_model(spec, flat[0])
    before = population_logits(spec, flat, tokens, None, dtype=torch.float64), model(tokens)
    for place in range(spec.tokens):
        changed = tokens.clone()
        changed[0, place] = (tokens[0, place] + 1) % spec.classes
        after = population_logits(spec, flat, changed, None, dtype=torch.float64), model(changed)
        for old, new in zip(before, after, strict=True):
            assert torch.equal(old[..., :place, :], new[..., :place, :])
            assert bool((old != new)[..., place:, :].flatten(-2).any(-1).all())
            assert bool((old != new)[..., -1, :].any()), "the last position reads them all"


@pytest.mark.parametrize("spec", [TINY, replace(LEARNED, tokens=5)])
def test_attention_by_batched_products_is_that_of_torchs_kernel(spec: zoo.TransformerSpec) -> None:
    """The products are for GPUs: keys padded to a multiple of eight are attended to by none."""
    generator = torch.Generator().manual_seed(0)
    x, qkv, output = (
        torch.randn(2, *shape, generator=generator, dtype=torch.float64)
        for shape in ((4, spec.tokens, spec.dim), (16, spec.dim), (spec.dim, 4))
    )
    mask = None if spec.causal else torch.arange(spec.tokens) < torch.tensor([[1], [2], [5], [3]])
    heads = (x.flatten(1, 2) @ qkv.mT).unflatten(1, (4, spec.tokens)).split([6, 6, 4], dim=-1)
    query, key, value = (part.unflatten(-1, (2, -1)).transpose(2, 3) for part in heads)
    products = _padded_attention(spec, query, key, value, mask).transpose(2, 3).flatten(3)
    expected = _attention(spec, x, mask, qkv, output)
    torch.testing.assert_close((products.flatten(1, 2) @ output.mT).view_as(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("spec", [TINY, MANY_WORDS], ids=["as a product", "looked up"])
def test_gradients_are_those_of_finite_differences(spec: zoo.TransformerSpec) -> None:
    """Along random directions, so that each covers all weights; tokens that repeat add up."""
    flat, tokens = random_weights(spec, 2), random_tokens(spec)
    tokens[:, ::2] = tokens[0, 0]
    labels = random_tokens(spec).flip(0)

    def losses(weights: Tensor) -> Tensor:
        return population_losses(population_logits(spec, weights, tokens, None, dtype=torch.float64), labels)

    weights = flat.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(losses(weights).sum(), weights)
    for name, slot in spec.tensors.items():
        direction = torch.zeros_like(flat)
        direction[:, slot.slice] = torch.randn(2, slot.size, dtype=torch.float64)
        expected = (losses(flat + 1e-6 * direction) - losses(flat - 1e-6 * direction)) / 2e-6
        torch.testing.assert_close((gradient * direction).sum(1), expected, rtol=1e-6, atol=1e-8, msg=name)
    absent = sorted(set(range(spec.classes)) - set(tokens.flatten().tolist()))
    assert not bool(gradient[:, : spec.classes * spec.dim].view(2, spec.classes, spec.dim)[:, absent].any())


def test_dropout_after_each_layer_follows_its_counters() -> None:
    """Philox2x32 of the seed, the step and the layer decides which numbers are dropped, four numbers at a time."""
    seed, step, rate, tokens = 7, 5, 0.3, random_tokens(TINY, 2)
    flat, layers = random_weights(TINY, 1), 1 + 2 * TINY.blocks
    groups = torch.arange(-(-tokens.numel() * TINY.dim // 4))
    bits = [dropout_bits(torch.tensor([seed]), torch.tensor(8 * step + layer), groups) for layer in range(layers)]
    thresholds = torch.tensor([drop_threshold(rate)], dtype=torch.int16)
    dropout = mask_dropout(bits, thresholds, torch.tensor([1 / (1 - rate)], dtype=torch.float64))
    actual = population_logits(TINY, flat, tokens, None, dropout, torch.float64)[0]
    kept = [((layer >= thresholds[0]) / (1 - rate)).view(2, TINY.tokens, TINY.dim) for layer in bits]
    for row, sequence in enumerate(tokens.tolist()):
        expected = written_out(TINY, flat[0], sequence, [layer[row].double() for layer in kept])
        torch.testing.assert_close(actual[row], expected, rtol=1e-11, atol=1e-11)
    assert len({tuple(layer.flatten().tolist()) for layer in kept}) == layers


BLOCK = (
    "query.weight",
    "key.weight",
    "value.weight",
    "output.weight",
    "fc1.weight",
    "fc1.bias",
    "fc2.weight",
    "fc2.bias",
)


def test_the_layout_is_the_documented_one() -> None:
    spec = zoo.SHAKESPEARE
    assert (spec.vocabulary, spec.tokens, spec.dim, spec.heads, spec.key_dim, spec.value_dim) == (65, 64, 32, 2, 16, 16)
    assert (spec.hidden_dim, spec.blocks, spec.residual, spec.causal) == (64, 2, True, True)
    shapes = {"embedding.weight": (65, 32), "positions.weight": (64, 32)}
    in_block = ((32, 32), (32, 32), (32, 32), (32, 32), (64, 32), (64,), (32, 64), (32,))
    for i in range(2):
        shapes |= {f"blocks.{i}.{name}": shape for name, shape in zip(BLOCK, in_block, strict=True)}
    shapes["unembedding.weight"] = (65, 32)
    assert [(name, slot.shape) for name, slot in spec.tensors.items()] == list(shapes.items())
    offset = 0
    for slot in spec.tensors.values():
        assert slot.offset == offset
        offset += math.prod(slot.shape)
    assert offset == spec.num_parameters == 22_784
    assert spec.components == {
        "embedding": slice(0, 4128),
        "encoder": slice(4128, 20_704),
        "classifier": slice(20_704, 22_784),
    }
    for each in (spec, TINY, LEARNED):
        assert each.num_parameters == sum(slot.size for slot in each.tensors.values())
        assert list(zoo.build_model(each, random_weights(each)[0]).state_dict()) == list(each.tensors)
        assert zoo.TransformerSpec(**each.to_dict()) == each
    assert "vocabulary" not in zoo.MNIST.to_dict()
    tokens = torch.randint(65, (3, 64))
    assert zoo.build_model(spec, random_weights(spec)[0].float())(tokens).shape == (3, 64, 65)


class Foreign(nn.Module):
    """A decoder as others write it: packed projections, torch's own attention, names of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(65, 32), nn.Embedding(64, 32)
        self.h = nn.ModuleList(
            nn.ModuleDict(
                {
                    "c_attn": nn.Linear(32, 96, bias=False),
                    "c_proj": nn.Linear(32, 32, bias=False),
                    "mlp": nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)),
                }
            )
            for _ in range(2)
        )
        self.norm, self.lm_head = nn.LayerNorm(32, elementwise_affine=False), nn.Linear(32, 65, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        b, t = tokens.shape
        x = self.wte(tokens) + self.wpe(torch.arange(t))
        for layer in self.h:
            assert isinstance(layer, nn.ModuleDict)
            q, k, v = (
                part.view(b, t, 2, 16).transpose(1, 2) for part in layer["c_attn"](self.norm(x)).split(32, dim=2)
            )
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + layer["c_proj"](y.transpose(1, 2).reshape(b, t, 32))
            x = x + layer["mlp"](self.norm(x))
        return self.lm_head(self.norm(x))


def test_a_model_from_outside_has_the_same_logits() -> None:
    foreign = Foreign().double()
    for parameter in foreign.parameters():
        nn.init.normal_(parameter, std=0.3)
    state = foreign.state_dict()
    named = {"embedding.weight": state["wte.weight"], "positions.weight": state["wpe.weight"]}
    for i in range(2):
        tensors = [
            *state[f"h.{i}.c_attn.weight"].chunk(3),
            state[f"h.{i}.c_proj.weight"],
            *(state[f"h.{i}.mlp.{place}.{part}"] for place in (0, 2) for part in ("weight", "bias")),
        ]
        named |= {f"blocks.{i}.{name}": tensor for name, tensor in zip(BLOCK, tensors, strict=True)}
    named["unembedding.weight"] = state["lm_head.weight"]
    flat = zoo.TransformerWeights.from_state_dict(zoo.SHAKESPEARE, named).flat()
    assert torch.equal(flat, torch.cat([tensor.flatten() for tensor in named.values()]))
    tokens = torch.randint(65, (2, 64))
    expected = foreign(tokens)
    torch.testing.assert_close(zoo.build_model(zoo.SHAKESPEARE, flat)(tokens), expected, rtol=1e-10, atol=1e-10)
    actual = population_logits(zoo.SHAKESPEARE, flat[None], tokens, None, dtype=torch.float64)[0]
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


REAL = torch.ones(2, 8, dtype=torch.bool)


@pytest.mark.parametrize(
    ("spec", "inputs", "message"),
    [
        (TINY, (torch.full((2, 8), 11),), "tokens of lines are numbers from 0 to 10, got 11"),
        (TINY, (torch.tensor([[3, -1, 70]]),), "tokens of lines are numbers from 0 to 10, got -1"),
        (
            TINY,
            (torch.zeros(2, 8),),
            r"reads whole numbers of tokens \[b, t\] without a mask, got torch.float32 \(2, 8\) and no mask",
        ),
        (TINY, (torch.zeros(2, 8, dtype=torch.long), REAL), r"without a mask, got torch.int64 \(2, 8\) and a mask"),
        (TINY, (torch.zeros(8, dtype=torch.long),), r"tokens \[b, t\] without a mask, got torch.int64 \(8,\)"),
        (TINY, (torch.zeros(2, 9, dtype=torch.long),), "reads at most 8 tokens, got 9"),
        (TINY, (torch.zeros(2, 8, dtype=torch.bool),), "got torch.bool"),
        (LEARNED, (torch.zeros(2, 8, dtype=torch.long),), r"tokens \[b, t\] and a mask \[b, t\], got .* and no mask"),
        (LEARNED, (torch.full((2, 8), 11), REAL), "tokens of lines are numbers from 0 to 10, got 11"),
    ],
)
def test_wrong_tokens_are_one_line(spec: zoo.TransformerSpec, inputs: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        zoo.build_model(spec, random_weights(spec)[0])(*inputs)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocabulary": None}, "predicts the next token: its classes are its vocabulary, got 11 and None"),
        ({"classes": 12}, "its classes are its vocabulary, got 12 and 11"),
        ({"patch_size": 4, "causal": False}, "images, which have no vocabulary: got one of 11"),
        ({"patch_size": 4}, "images, which have no vocabulary: got one of 11"),
        ({"vocabulary": 0, "causal": False}, "vocabulary must be a whole number of at least 1, got 0"),
        ({"vocabulary": True, "causal": False}, "vocabulary must be a whole number of at least 1, got True"),
        ({"channels": 3}, "channels are those of images"),
        ({"classes": 1 << 25, "vocabulary": 1 << 25}, "is not a small one"),
    ],
)
def test_a_spec_that_contradicts_itself_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **changes)


# ------------------------------------------------------------------------------- classifiers of words that are learned


def test_padding_changes_no_logit() -> None:
    """Neither the vector of the padding nor what stands in its place is ever read."""
    flat, tokens = random_weights(LEARNED), random_tokens(LEARNED)
    mask = torch.arange(LEARNED.tokens) < torch.tensor([1, 3, 7, 8])[:, None]
    clean = population_logits(LEARNED, flat, tokens * mask, mask, dtype=torch.float64)
    assert clean.shape == (3, 4, LEARNED.classes)
    dirty = torch.where(mask, tokens, (tokens + 5) % 11)
    assert torch.equal(clean, population_logits(LEARNED, flat, dirty, mask, dtype=torch.float64))
    other = flat.clone()
    other[:, : LEARNED.dim] = 100.0
    unpadded = torch.where(mask, tokens.clamp(min=1), 0)
    same = [population_logits(LEARNED, each, unpadded, mask, dtype=torch.float64) for each in (flat, other)]
    assert torch.equal(*same)
    for one, expected in zip(flat, clean, strict=True):
        model = zoo.build_model(LEARNED, one)
        assert torch.equal(model(tokens * mask, mask), model(dirty, mask))
        torch.testing.assert_close(model(dirty, mask), expected, rtol=1e-12, atol=1e-12)
        alone = model(tokens[1:2, :3], mask[1:2, :3])
        torch.testing.assert_close(alone[0], expected[1], rtol=1e-12, atol=1e-12)


def test_a_real_word_and_its_place_change_the_logits() -> None:
    flat, tokens, mask = random_weights(LEARNED, 1), random_tokens(LEARNED, 1), torch.arange(8)[None] < 5
    before = population_logits(LEARNED, flat, tokens, mask)
    for place in range(5):
        changed = tokens.clone()
        changed[0, place] = (tokens[0, place] + 1) % 11
        assert not torch.allclose(population_logits(LEARNED, flat, changed, mask), before)
    assert not torch.allclose(population_logits(LEARNED, flat, tokens[:, [1, 0, 2, 3, 4, 5, 6, 7]], mask), before)
    names = list(LEARNED.tensors)
    assert names[:2] + names[-1:] == ["embedding.weight", "positions.weight", "classifier.fc2.bias"]
