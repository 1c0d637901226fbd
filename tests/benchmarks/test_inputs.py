"""The ablation of synthetic inputs: what each predictor reads, and that a table takes them."""

from pathlib import Path

import pytest
import torch

from benchmarks import inputs, kendall, results
from benchmarks.models.registry import _load_model
from benchmarks.results import ResultIndex
from nfn import ResponseNFN
from nfn.predictors.responses import response_layout, responses, synthetic_inputs
from tests.fabricated import TINY_AGNEWS, TINY_MNIST
from tests.refusal import refusal
from zoo import AGNEWS, MNIST, SHAKESPEARE, TransformerSpec, TransformerWeights

NAMES = ("Noise", "Dots", "Half", "Quarter", "Logits", "Hidden")


def weights_of(spec: TransformerSpec, count: int = 3) -> TransformerWeights:
    generator = torch.Generator().manual_seed(0)
    return TransformerWeights.from_flat(spec, torch.randn(count, spec.num_parameters, generator=generator) / 4)


def read_by(name: str, weights: TransformerWeights) -> torch.Tensor:
    return getattr(inputs, name).known["responses"].features(weights)


@pytest.mark.parametrize("spec", [TINY_MNIST, TINY_AGNEWS], ids=lambda spec: spec.task)
def test_each_reads_what_its_name_promises(spec: TransformerSpec) -> None:
    weights, usual = weights_of(spec), synthetic_inputs(spec)
    whole = dict(
        zip(response_layout(spec), responses(weights).split(list(response_layout(spec).values()), 1), strict=True)
    )
    hidden = [group for name, group in whole.items() if " after " in name]
    answers = [group for name, group in whole.items() if " after " not in name]
    torch.testing.assert_close(read_by("Hidden", weights), torch.cat(hidden, 1))
    torch.testing.assert_close(read_by("Logits", weights), torch.cat(answers, 1))
    for name, share in (("Half", 2), ("Quarter", 4)):
        torch.testing.assert_close(read_by(name, weights), responses(weights, usual[: len(usual) // share]))
    first = whole["log probabilities"][:, : len(usual) // 4 * spec.classes]
    torch.testing.assert_close(read_by("Quarter", weights)[:, : first.shape[1]], first)
    for name in ("Noise", "Dots"):
        assert read_by(name, weights).shape == responses(weights).shape
        assert not torch.allclose(read_by(name, weights), responses(weights), atol=0.01)


@pytest.mark.parametrize("spec", [MNIST, AGNEWS], ids=lambda spec: spec.task)
def test_other_inputs_have_the_range_or_the_size_of_the_usual_ones(spec: TransformerSpec) -> None:
    usual = synthetic_inputs(spec)
    for make in (inputs._noise, inputs._dots):
        made = make(spec, usual, torch.Generator().manual_seed(0))
        assert made.shape == usual.shape
        if spec.patch_size:
            assert float(made.min()) == pytest.approx(-1, abs=1e-3)
            assert float(made.max()) == pytest.approx(1, abs=1e-3)
        else:
            assert float(made.std()) == pytest.approx(float(usual.std()), rel=0.02)
    sparse = inputs._dots(spec, usual, torch.Generator().manual_seed(0))
    assert float((sparse == sparse.median()).float().mean()) == pytest.approx(0.9, abs=0.01)


def test_short_sequences_are_of_texts_alone() -> None:
    weights, usual = weights_of(TINY_AGNEWS), synthetic_inputs(TINY_AGNEWS)
    torch.testing.assert_close(read_by("Short", weights), responses(weights, usual[:, :6]))
    with pytest.raises(ValueError, match="Short reads shorter texts, but mnist transformers read images"):
        inputs.Short(TINY_MNIST)


@pytest.mark.parametrize("make", [inputs._noise, inputs._dots])
def test_tokens_are_not_noise(make: inputs._Inputs) -> None:
    with pytest.raises(ValueError, match="is images or word vectors, but shakespeare transformers read tokens"):
        make(SHAKESPEARE, torch.zeros(2, 3), torch.Generator())


def test_they_are_built_and_trained_like_response_nfn() -> None:
    for name in NAMES:
        model = _load_model(f"benchmarks.inputs:{name}")
        assert model.kind is not None
        assert issubclass(model.kind, ResponseNFN)
        assert (model.recipe, model.stacked) == ("gauge", True)
        built, usual = model.kind(TINY_MNIST), ResponseNFN(TINY_MNIST)  # pyright: ignore[reportCallIssue]
        assert [p.shape for p in built.parameters()] == [p.shape for p in usual.parameters()]
    assert len({inputs.Noise.kind, inputs.Dots.kind, ResponseNFN.kind}) == 3


@pytest.mark.long
def test_a_table_takes_them(tiny_zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--zoo", str(tiny_zoo), "--out", str(tmp_path), "--quick", "--epochs", "1", "--folds", "3"]
    kendall.main([*words, "--split", "train+validation", "--models", "benchmarks.inputs:Quarter"])
    assert "\nQuarter " in capsys.readouterr().out
    index = ResultIndex.latest(results.read("kendall", tmp_path), "mnist", folds=3)
    row = index.find("tau", "benchmarks.inputs:Quarter", recipe="gauge", split="train+validation")
    assert row is not None
    assert "Short reads shorter texts" in refusal(kendall.main, [*words, "--models", "benchmarks.inputs:Short"], capsys)
