"""The zoo's transformer as a torch module.

    X₀ = dropout(embed(input) + positions)
    X  ← dropout(MultiHead(LN(X)))                   for each block
    X  ← dropout(ReLU(LN(X)·W_A + b_A)·W_B + b_B)
    y  = W₂·ReLU(W₁·mean_tokens(LN(X)) + b₁) + b₂

The paper's transformers have no residual connections; with ``spec.residual``, both steps of a block are
X ← X + dropout(…). LN has no affine parameters; attention has no biases. With a mask, padded tokens are neither
attended to nor pooled. A language model, ``spec.causal``, attends to no later token and has logits LN(X)·Uᵀ at every
position.
"""

import math
from collections import OrderedDict

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.transformer.spec import TransformerSpec, differences
from zoo.transformer.weights import FlatLike, TransformerWeights

EPSILON = 1e-5  # of LayerNorm


def sinusoidal_positions(tokens: int, dim: int) -> Float[Tensor, "tokens dim"]:
    """p[t, 2i] = sin(t·10000^(−2i/D)), p[t, 2i+1] = cos(t·10000^(−2i/D))."""
    position = torch.arange(tokens, dtype=torch.float64)[:, None]
    frequency = torch.exp(torch.arange(0, dim, 2, dtype=torch.float64) * (-math.log(10_000.0) / dim))
    table = torch.zeros(tokens, dim, dtype=torch.float64)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency)[:, : dim // 2]
    return table.float()


class _Dropout(nn.Module):
    """Inverted dropout whose masks come from a generator that is handed in, so that training needs no global state."""

    def __init__(self, probability: float, generator: torch.Generator | None) -> None:
        super().__init__()
        self.probability = probability
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.probability == 0:
            return x
        keep = torch.rand(x.shape, generator=self.generator, device=x.device) >= self.probability
        return x * keep / (1 - self.probability)


class Block(nn.Module):
    """Attention, then MLP, each after a LayerNorm and before a dropout."""

    def __init__(self, spec: TransformerSpec, dropout: _Dropout) -> None:
        super().__init__()
        self.heads = spec.heads
        self.scale = 1 / math.sqrt(spec.key_dim)
        self.query = nn.Linear(spec.dim, spec.heads * spec.key_dim, bias=False)
        self.key = nn.Linear(spec.dim, spec.heads * spec.key_dim, bias=False)
        self.value = nn.Linear(spec.dim, spec.heads * spec.value_dim, bias=False)
        self.output = nn.Linear(spec.heads * spec.value_dim, spec.dim, bias=False)
        self.fc1 = nn.Linear(spec.dim, spec.hidden_dim)
        self.fc2 = nn.Linear(spec.hidden_dim, spec.dim)
        self.dropout = dropout
        self.residual, self.causal = spec.residual, spec.causal

    def forward(self, x: Float[Tensor, "b t D"], mask: Bool[Tensor, "b t"] | None) -> Float[Tensor, "b t D"]:
        x = self.add(x, self.dropout(self.attention(layer_norm(x), mask)))
        return self.add(x, self.dropout(self.fc2(F.relu(self.fc1(layer_norm(x))))))

    def add(self, x: Float[Tensor, "b t D"], step: Float[Tensor, "b t D"]) -> Float[Tensor, "b t D"]:
        """The input of the next LayerNorm: the step, on top of ``x`` where the transformer is residual."""
        return x + step if self.residual else step

    def attention(self, x: Float[Tensor, "b t D"], mask: Bool[Tensor, "b t"] | None) -> Float[Tensor, "b t D"]:
        """Σ_s softmax(X·W_Q·(X·W_K)ᵀ/√D_k)·X·W_V·W_O over heads s (eq:multihead)."""
        heads = self.attention_map(x, mask) @ self._per_head(self.value, x)
        return self.output(heads.transpose(1, 2).flatten(-2))

    def attention_map(self, x: Float[Tensor, "b t D"], mask: Bool[Tensor, "b t"] | None) -> Float[Tensor, "b h t t"]:
        """softmax(X·W_Q·(X·W_K)ᵀ/√D_k) of every head: row i is what token i attends to; rows sum to 1."""
        scores = self._per_head(self.query, x) @ self._per_head(self.key, x).mT * self.scale
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
        if self.causal:
            scores = scores.masked_fill(later_tokens(scores), -torch.inf)
        return torch.softmax(scores, dim=-1)

    def _per_head(self, projection: nn.Linear, x: Float[Tensor, "b t D"]) -> Float[Tensor, "b h t d"]:
        return projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)


class ZooTransformer(nn.Module):
    """One transformer of the zoo; the names of its parameters are the names of ``spec.tensors``.

    Takes images [b, channels, height, width] where the spec has patches, numbers of tokens [b, t] where it has a
    vocabulary, else word vectors [b, t, D]. Texts to classify need a mask [b, t] that is True on real tokens, at least
    one in every row. A language model returns logits [b, t, V], any other [b, classes].
    """

    positions: Tensor | nn.Embedding

    def __init__(
        self, spec: TransformerSpec, dropout: float = 0.0, dropout_generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.spec = spec
        patch, words = spec.patch_size, spec.vocabulary
        self.embedding = nn.Conv2d(spec.channels, spec.dim, patch, patch) if patch else None
        if words is not None:
            self.embedding, self.positions = nn.Embedding(words, spec.dim), nn.Embedding(spec.tokens, spec.dim)
        else:
            self.register_buffer("positions", sinusoidal_positions(spec.tokens, spec.dim), persistent=False)
        self.dropout = _Dropout(dropout, dropout_generator)
        self.blocks = nn.ModuleList(Block(spec, self.dropout) for _ in range(spec.blocks))
        if spec.causal:
            self.unembedding = nn.Linear(spec.dim, spec.classes, bias=False)
        else:
            first, second = nn.Linear(spec.dim, spec.dim), nn.Linear(spec.dim, spec.classes)
            self.classifier = nn.Sequential(OrderedDict(fc1=first, relu=nn.ReLU(), fc2=second))

    def forward(
        self, x: Shaped[Tensor, "b ..."], mask: Bool[Tensor, "b t"] | None = None
    ) -> Float[Tensor, "b *t classes"]:
        x = self.embed(x, mask)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x, mask)

    def head(self, x: Float[Tensor, "b t D"], mask: Bool[Tensor, "b t"] | None) -> Float[Tensor, "b *t classes"]:
        """The logits, from what the last block gives."""
        if self.spec.causal:
            return self.unembedding(layer_norm(x))
        return self.classifier(masked_mean(layer_norm(x), mask))

    def embed(self, x: Tensor, mask: Tensor | None) -> Float[Tensor, "b t D"]:
        if self.spec.vocabulary is not None:
            _check_tokens(self.spec, x, mask)
            assert isinstance(self.embedding, nn.Embedding)
            x = self.embedding(x)
        elif self.embedding is not None:
            check_images(self.spec, x)
            x = self.embedding(x).flatten(2).mT
        elif x.ndim != 3 or x.shape[-1] != self.spec.dim or mask is None:
            got = f"{tuple(x.shape)} and {'no mask' if mask is None else 'a mask'}"
            raise ValueError(
                f"a transformer of {self.spec.task} reads word vectors [b, t, {self.spec.dim}] and a mask [b, t], "
                f"got {got}: call it as model(*embedding(word_ids))"
            )
        if x.shape[1] > self.spec.tokens:
            raise ValueError(
                f"a transformer of {self.spec.task} reads at most {self.spec.tokens} tokens, got {x.shape[1]}"
            )
        positions = self.positions.weight if isinstance(self.positions, nn.Embedding) else self.positions
        return self.dropout(x + positions[: x.shape[1]])


def later_tokens(scores: Float[Tensor, "... t s"]) -> Bool[Tensor, "t s"]:
    """True where a query [t] comes before a key [s]."""
    return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)


def _check_tokens(spec: TransformerSpec, tokens: Tensor, mask: Tensor | None) -> None:
    """Refuses what is not numbers of tokens, with a mask where texts are classified."""
    if tokens.ndim != 2 or tokens.dtype not in (torch.int32, torch.int64) or (mask is None) != spec.causal:
        got = f"{tokens.dtype} {tuple(tokens.shape)} and {'no mask' if mask is None else 'a mask'}"
        needs = "without a mask" if spec.causal else "and a mask [b, t]"
        raise ValueError(f"a transformer of {spec.task} reads whole numbers of tokens [b, t] {needs}, got {got}")
    low, high = (int(tokens.min()), int(tokens.max())) if tokens.numel() else (0, 0)
    assert spec.vocabulary is not None
    if low < 0 or high >= spec.vocabulary:
        raise ValueError(
            f"tokens of {spec.task} are numbers from 0 to {spec.vocabulary - 1:,}, got {low if low < 0 else high:,}"
        )


def check_images(spec: TransformerSpec, images: Tensor) -> None:
    """Refuses images that do not cut into exactly the patches that the spec has positions for."""
    if images.ndim != 4 or images.shape[1] != spec.channels:
        raise ValueError(
            f"a transformer of {spec.task} reads images [b, {spec.channels}, height, width], got {tuple(images.shape)}"
        )
    size, (height, width) = spec.patch_size, images.shape[2:]
    assert size is not None
    if height % size or width % size:
        raise ValueError(f"patches of {size} × {size} do not divide images of {height} × {width}")
    if (patches := (height // size) * (width // size)) != spec.tokens:
        raise ValueError(f"images must cut into {spec.tokens} patches, got {patches} from {height} × {width}")


def layer_norm(x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
    """(x − mean) / √(variance + ε) over the last dimension, no affine parameters."""
    return F.layer_norm(x, x.shape[-1:], eps=EPSILON)


def masked_mean(x: Float[Tensor, "*models b t D"], mask: Bool[Tensor, "b t"] | None) -> Float[Tensor, "*models b D"]:
    """Mean over the real tokens."""
    if mask is None:
        return x.mean(dim=-2)
    return (x * mask[..., None]).sum(dim=-2) / mask.sum(dim=-1, keepdim=True)


def build_model(spec: TransformerSpec, flat: FlatLike | TransformerWeights) -> ZooTransformer:
    """The transformer with these weights, in eval mode; a copy of the weights, so training it changes nothing."""
    weights = flat if isinstance(flat, TransformerWeights) else TransformerWeights.from_flat(spec, flat)
    if weights.spec != spec:
        raise ValueError(
            f"weights of a transformer of {weights.spec.task} do not fit the spec of {spec.task}: "
            f"{differences(spec, weights.spec)}"
        )
    if weights.batch_shape:
        raise ValueError(f"build_model takes one weight vector, got a batch of shape {tuple(weights.batch_shape)}")
    with torch.random.fork_rng(devices=[]):  # torch draws initial weights, which are overwritten
        model = ZooTransformer(spec)
    model.to(weights.flat())
    model.load_state_dict(weights.state_dict())
    return model.eval()
