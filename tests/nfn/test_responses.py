"""Responses: answers to inputs that nobody trained on, and the predictors that read them."""

import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from nfn import FullGroupElement, GaugeNFN, InvariantNFN, ResponseNFN, load_predictor, save_predictor
from nfn.predictors.responses import response_layout, responses, synthetic_inputs, written_texts
from tests.nfn.conftest import LEARNED_WORDS, LINES, ODD_SPECS, weights_of
from zoo import AGNEWS, MNIST, TransformerSpec, TransformerWeights, build_model
from zoo.transformer.model import Block

TINY_IMAGES = TransformerSpec("tiny", 3, 4, 2, 6, 2, 2, 3, 5, 2, channels=2, residual=True)
TINY_WORDS = TransformerSpec("words", 3, 5, None, 6, 2, 3, 2, 4, 1)


def in_double(weights: TransformerWeights) -> TransformerWeights:
    return TransformerWeights.from_flat(weights.spec, weights.flat().double())


def images_of(spec: TransformerSpec) -> torch.Tensor:
    """The synthetic images again, from their patches, pixel by pixel."""
    assert spec.patch_size is not None
    rows, size = math.isqrt(spec.tokens), spec.patch_size
    pieces = synthetic_inputs(spec).double().view(-1, spec.tokens, spec.channels, size, size)
    images = torch.zeros(len(pieces), spec.channels, rows * size, spec.tokens // rows * size, dtype=torch.float64)
    for token in range(spec.tokens):
        top, left = token // rows * size, token % rows * size
        images[:, :, top : top + size, left : left + size] = pieces[:, token]
    return images


def written_size(spec: TransformerSpec, block: Block, step: str) -> float:
    """The size of what a step can write, head by head or unit by unit."""
    ones = torch.ones(spec.dim, spec.dim, dtype=torch.float64)
    center = torch.eye(spec.dim, dtype=torch.float64) - ones / spec.dim
    total = 0.0
    if step == "attention":
        for head in range(spec.heads):
            own = slice(head * spec.value_dim, (head + 1) * spec.value_dim)
            total += float((center @ block.output.weight[:, own] @ block.value.weight[own] @ center).square().sum())
    else:
        for unit in range(spec.hidden_dim):
            row = float((center @ block.fc1.weight[unit]).square().sum() + block.fc1.bias[unit] ** 2)
            total += row * float((center @ block.fc2.weight[:, unit]).square().sum())
        total += float((center @ block.fc2.bias).square().sum())
    return math.sqrt(total)


@torch.no_grad()
def slow_responses(spec: TransformerSpec, flat: torch.Tensor) -> dict[str, list[float]]:
    """The same numbers by the zoo's own transformer, input by input and row by row."""
    model = build_model(spec, flat)
    inputs = images_of(spec) if spec.patch_size else synthetic_inputs(spec)
    inputs = inputs if spec.vocabulary else inputs.double()
    found: dict[str, list[float]] = {name: [] for name in response_layout(spec)}
    all_logits = []
    for single in inputs:
        mask = None if spec.patch_size else torch.ones(1, len(single), dtype=torch.bool)
        x = model.embed(single[None], mask)
        for number, block in enumerate(model.blocks):
            assert isinstance(block, Block)
            middle = block.add(x, block.attention(F.layer_norm(x, x.shape[-1:]), mask))
            x = block.add(middle, block.fc2(F.relu(block.fc1(F.layer_norm(middle, x.shape[-1:])))))
            for step, rows in (("attention", middle[0]), ("MLP", x[0])):
                logs = [0.5 * math.log(float(row.var(correction=0)) + 1e-5) for row in rows]
                pooled = F.layer_norm(rows, rows.shape[-1:]).mean(0)
                relative = float(sum(logs) / len(logs)) - math.log(written_size(spec, block, step))
                found[f"deviation after {step} {number}"].append(relative)
                found[f"pooled size after {step} {number}"].append(float(pooled.square().mean()))
        (logits,) = model(single[None], mask)
        all_logits.append(logits)
    for logits in all_logits:
        probabilities = logits.exp() / logits.exp().sum()
        found["log probabilities"] += probabilities.log().tolist()
        found["entropies"].append(-float((probabilities * probabilities.log()).sum()))
        best = sorted(logits.tolist())
        found["margins"].append(math.log(1 + best[-1] - best[-2]))
    logits = torch.stack(all_logits)
    found["mean probabilities"] = torch.softmax(logits, -1).mean(0).tolist()
    centered = logits - logits.mean(1, keepdim=True)
    centered = centered - centered.mean(0)
    directions = torch.stack([row / row.norm().clamp_min(1e-12) for row in centered])
    for name, rows in (("spectrum of logits", centered), ("spectrum of directions", directions)):
        found[name] = torch.linalg.svdvals(rows).square().clamp_min(1e-6).log().flip(0).tolist()
    free = {"log probabilities", "mean probabilities", "spectrum of logits", "spectrum of directions"}

    def quantiles(numbers: list[float]) -> list[float]:
        return [sorted(numbers)[round(number * (len(numbers) - 1) / 63)] for number in range(64)]

    return {name: numbers if name in free else quantiles(numbers) for name, numbers in found.items()}


@torch.no_grad()
def slow_answers_to_texts(spec: TransformerSpec, flat: torch.Tensor) -> dict[str, list[float]]:
    """The same for a language model, text by text and position by position."""
    model, texts = build_model(spec, flat), synthetic_inputs(spec)
    places: dict[str, list[float]] = {"losses": [], "entropies": [], "hits": []}
    where = []
    for number, text in enumerate(texts):
        for position, (token, successor) in enumerate(pairwise(text.tolist())):
            probabilities = torch.softmax(model(text[None, : position + 1], None)[0, -1], -1)
            places["losses"].append(-math.log(float(probabilities[successor])))
            places["entropies"].append(-float((probabilities * probabilities.log()).sum()))
            places["hits"].append(float(int(probabilities.argmax()) == successor))
            where.append((number, position, token, successor))
    found = {}
    for name, size in response_layout(spec).items():
        what, _, group = name.partition(" by ")
        index = ("text", "position", "token", "successor").index(group)
        chosen = [
            [value for value, key in zip(places[what], where, strict=True) if key[index] == one] for one in range(size)
        ]
        found[name] = [sum(values) / len(values) if values else 0.0 for values in chosen]
    return found


@pytest.fixture
def few_inputs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As many as are asked of a transformer with many tokens."""
    monkeypatch.setattr("nfn.predictors.responses._MOST_INPUTS", 64)
    monkeypatch.setattr("nfn.predictors.responses._TEXTS", 9)
    for cached in (synthetic_inputs, response_layout):
        cached.cache_clear()
    yield
    for cached in (synthetic_inputs, response_layout):
        cached.cache_clear()


@pytest.mark.usefixtures("few_inputs")
@pytest.mark.parametrize("spec", [TINY_IMAGES, TINY_WORDS, LINES, LEARNED_WORDS], ids=lambda spec: spec.task)
def test_responses_are_those_of_the_zoos_transformer(spec: TransformerSpec):
    weights = in_double(weights_of(spec, 3, seed=1))
    fast = responses(weights).split(list(response_layout(spec).values()), dim=-1)
    for number, flat in enumerate(weights.flat()):
        slow = slow_answers_to_texts(spec, flat) if spec.causal else slow_responses(spec, flat)
        for name, group in zip(response_layout(spec), fast, strict=True):
            expected = torch.tensor(slow[name], dtype=torch.float64)
            torch.testing.assert_close(group[number], expected, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("spec", [MNIST, AGNEWS, *ODD_SPECS], ids=lambda spec: spec.task)
def test_inputs_follow_from_the_dimensions_alone(spec: TransformerSpec):
    inputs = synthetic_inputs(spec)
    assert torch.equal(synthetic_inputs(replace(spec, task="another")), inputs)
    if spec.vocabulary is None:
        assert len(torch.unique(inputs, dim=0)) == len(inputs)
    else:
        assert set(inputs[: spec.vocabulary, 0].tolist()) == set(range(spec.vocabulary)), "each token comes first once"
    if spec.patch_size is not None:
        assert inputs.shape[1:] == (spec.tokens, spec.channels * spec.patch_size**2)
        assert (float(inputs.min()), float(inputs.max()) <= 1) == (-1, True)
        assert float((inputs > -1).float().mean()) > 0.02, "something is drawn"


@pytest.mark.long
def test_no_example_of_a_task_is_used():
    """In a fresh process responses are computed after every file and connection is refused."""
    program = """
import sys, torch
from nfn import GaugeNFN
from zoo import AGNEWS, MNIST
predictors = [GaugeNFN(spec) for spec in (MNIST, AGNEWS)]
flats = [torch.randn(2, spec.num_parameters) / 8 for spec in (MNIST, AGNEWS)]
predictors[0](flats[0] / 2)  # what torch loads when it first computes
assert not [name for name in sys.modules if name.startswith(("zoo.tasks.paper_data", "torchvision", "datasets"))]
from nfn.predictors.responses import synthetic_inputs
synthetic_inputs.cache_clear()
def refuse(event, arguments):
    if event in ("open", "socket.connect", "mmap.__new__", "subprocess.Popen"):
        raise PermissionError(f"{event} {arguments}")
sys.addaudithook(refuse)
for predictor, flat in zip(predictors, flats):
    assert predictor(flat).isfinite().all()
print("answered")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout == "answered\n", done.stderr


def test_a_checkpoint_that_is_not_finite_spoils_no_other():
    flat = weights_of(MNIST, 3).flat().clone()
    flat[1, 7] = math.nan
    features = responses(TransformerWeights.from_flat(MNIST, flat, check_finite=False))
    assert bool(features[1].isnan().any())
    assert bool(features[[0, 2]].isfinite().all())
    logits = ResponseNFN(MNIST).logits(flat)
    assert logits.isnan().tolist() == [False, True, False]


def test_responses_move_with_epsilon_and_logits_alone(generator: torch.Generator):
    """Boundary scales change what ε is compared with; ``logits`` keeps the accuracy and not the probabilities."""
    weights = in_double(weights_of(MNIST, 4))
    before = responses(weights)

    def movement(*parts: str) -> float:
        element = FullGroupElement.sample(MNIST, (4,), parts=parts, generator=generator)
        return float((responses(element.act(weights)) - before).abs().max())

    assert movement("heads", "units") < 1e-9
    assert 1e-9 < movement("boundary_scales") < 0.1
    assert movement("logits") > 1e-3


def test_each_network_reads_its_own_source_and_responses_weigh_twice(generator: torch.Generator):
    predictor = GaugeNFN(MNIST, networks=3, components=4, generator=generator)
    inputs = torch.randn(5, 8, generator=generator)
    votes = predictor.votes(inputs)
    assert votes.shape == (5, 9)
    for source, moved in ((slice(0, 4), slice(0, 3)), (slice(4, 8), slice(3, 9))):
        changed = inputs.clone()
        changed[:, source] += 1
        differs = (predictor.votes(changed) != votes).all(0)
        assert differs.nonzero().flatten().tolist() == list(range(9))[moved]
    torch.testing.assert_close(predictor.logits_of(inputs), (votes[:, :3].sum(-1) + votes[:, 3:].sum(-1)) / 9)


@pytest.mark.parametrize("reads", [[], ["invariants", "answers"]])
def test_what_is_read_has_a_name(reads: list[str]):
    with pytest.raises(ValueError, match="reads must be some of invariants, responses, got"):
        GaugeNFN(MNIST, reads=reads)


def test_files_from_before_responses_are_read_as_they_were(tmp_path):
    predictor = InvariantNFN(MNIST)
    save_predictor(predictor, tmp_path)
    config = tmp_path / "config.json"
    text = config.read_text().replace("invariant_nfn", "gauge_nfn")
    config.write_text(text.replace('"reads": [\n    "invariants"\n  ],\n', ""))
    assert "reads" not in config.read_text()
    weights = weights_of(MNIST, 2)
    loaded = load_predictor(tmp_path)
    assert type(loaded) is GaugeNFN
    assert torch.equal(loaded(weights), predictor(weights))


def test_the_best_language_models_write_what_all_respond_to(tmp_path):
    weights = weights_of(LINES, 12, seed=3)
    goodness = torch.arange(12.0)
    predictor = GaugeNFN(LINES, components=4, networks=1, width=8)
    before = predictor.inputs(weights)
    predictor.fit_inputs(weights, goodness)
    texts = written_texts(TransformerWeights.from_flat(LINES, weights.flat()[4:]), *synthetic_inputs(LINES).shape)
    assert torch.equal(predictor.get_buffer("texts"), texts.float()), "by the best eight"
    assert not torch.equal(predictor.inputs(weights), before)
    assert torch.equal(GaugeNFN(LINES, components=4, networks=1, width=8).inputs(weights), before), "cached by text"
    save_predictor(predictor, tmp_path / "predictor")
    assert torch.equal(load_predictor(tmp_path / "predictor").inputs(weights), predictor.inputs(weights))


def test_only_texts_are_written(generator: torch.Generator):
    predictor, weights = GaugeNFN(MNIST), weights_of(MNIST, 2)
    state = {name: buffer.clone() for name, buffer in predictor.named_buffers()}
    predictor.fit_inputs(weights, torch.rand(2, generator=generator))
    assert all(torch.equal(buffer, state[name]) for name, buffer in predictor.named_buffers())
