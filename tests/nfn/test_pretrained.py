"""Fitted predictors: those of the package load and match their cards, intervals cover, bad files are refused."""

import tomllib
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import nfn
import zoo
from nfn.predictors.conformal import LEVEL, ConformalInterval
from nfn.predictors.storage import _PRETRAINED, _packaged, pretrained_names, save_pretrained
from tests.fabricated import TINY_MNIST

MAX_BYTES = 5_000_000


def tiny(path: Path, components: int = 4) -> nfn.GaugeNFN:
    predictor = nfn.GaugeNFN(TINY_MNIST, components=components, width=4, networks=2)
    save_pretrained(predictor, ConformalInterval(torch.tensor([0.5]), torch.tensor([0.1, 0.2])), path)
    return predictor


def test_the_package_has_a_small_predictor_with_a_card_for_each_config_of_the_sample() -> None:
    fitted_on = set()
    for name in pretrained_names():
        assert _packaged(name).stat().st_size <= MAX_BYTES
        card = tomllib.loads((_PRETRAINED / f"{name}.toml").read_text(encoding="utf-8"))
        configs, tests = card["data"]["config"], card["test"]
        if isinstance(configs, str):  # of a predictor that was fitted when it could be on one config alone
            configs, tests = [configs], [{"config": configs, "configurations": "all", **tests, **card["storage"]}]
        fitted_on |= set(configs)
        assert name in configs
        assert card["storage"]["bytes"] == _packaged(name).stat().st_size
        assert {test["config"] for test in tests} == set(configs)
        for test in tests:
            assert test["tau_low"] < test["tau"] < test["tau_high"]
            if test["configurations"] == "all":
                assert abs(test["tau_before_storing"] - test["tau"]) < 0.005
        assert "must not" in card["limits"]
    assert fitted_on >= {"agnews", "mnist", "mnist-seeds"}


def test_a_packaged_predictor_predicts_and_does_not_move_under_the_group() -> None:
    predictor = nfn.load_pretrained("mnist")
    reader = zoo.open("small-transformer-zoo", "mnist", split="test")
    weights = zoo.TransformerWeights.from_flat(zoo.MNIST, reader.weights(slice(0, 6)))
    accuracy, low, high = predictor.predict(weights)
    assert torch.equal(accuracy, predictor(weights))
    assert ((low <= accuracy) & (accuracy <= high)).all()
    g = nfn.FullGroupElement.sample(zoo.MNIST, (6,), generator=torch.Generator().manual_seed(0))
    double = zoo.TransformerWeights.from_flat(zoo.MNIST, weights.flat().double())
    moved = g.act(double).flat().float()
    assert torch.allclose(predictor(moved), accuracy, atol=1e-3)


def test_large_matrices_are_stored_in_half_precision_and_all_are_read_as_float32(tmp_path: Path) -> None:
    predictor = nfn.GaugeNFN(zoo.MNIST, components=16, width=4, networks=2)
    save_pretrained(predictor, ConformalInterval(torch.empty(0), torch.tensor([0.1])), tmp_path / "a.safetensors")
    stored = load_file(tmp_path / "a.safetensors")
    assert {name for name, tensor in stored.items() if tensor.dtype == torch.float16} == {"principal.directions"}
    loaded = nfn.load_pretrained(tmp_path / "a.safetensors")
    assert {tensor.dtype for tensor in loaded.state_dict().values()} == {torch.float32}
    assert loaded.card == {}
    weights = 0.2 * torch.randn(5, zoo.MNIST.num_parameters)
    assert torch.allclose(loaded(weights), predictor(weights), atol=1e-3)


def test_an_interval_covers_its_share_of_new_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    predicted = torch.rand(6000, generator=generator)
    # errors grow with the prediction, so one width for all would be wrong at both ends
    accuracy = predicted + predicted * 0.1 * torch.randn(6000, generator=generator)
    interval = ConformalInterval.fit(predicted[:1000], accuracy[:1000])
    assert len(interval.half_widths) == 8
    low, high = interval(predicted[1000:])
    inside = (low <= accuracy[1000:]) & (accuracy[1000:] <= high)
    for part in (predicted[1000:] < 0.3, (predicted[1000:] > 0.4) & (predicted[1000:] < 0.7)):
        assert inside[part].float().mean() == pytest.approx(LEVEL, abs=0.05)
    assert interval.half_widths[0] < interval.half_widths[-1] / 3


def test_with_few_rows_the_largest_error_is_the_half_width() -> None:
    errors = {count: torch.arange(1.0, count + 1) for count in (1, 8, 9, 19)}
    ranks = [float(ConformalInterval.fit(torch.zeros(count), each).half_widths) for count, each in errors.items()]
    assert ranks == [1, 8, 9, 18]
    interval = ConformalInterval.fit(torch.tensor([0.2, 0.6]), torch.tensor([0.3, 0.65]))
    assert interval.half_widths.tolist() == pytest.approx([0.1])
    with pytest.raises(ValueError, match="there are none"):
        ConformalInterval.fit(torch.empty(0), torch.empty(0))


@pytest.mark.parametrize("name", ["cifar", "../pretrained/mnist", "", "MNIST"])
def test_an_unknown_name_shows_those_there_are(name: str) -> None:
    with pytest.raises(ValueError, match=f"no fitted predictor called .*: there are {', '.join(pretrained_names())}"):
        nfn.load_pretrained(name)


def test_a_predictor_that_holds_nan_or_infinity_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    predictor = tiny(path)
    for name, value in (
        ("first.weight", torch.nan),
        ("interval.half_widths", torch.inf),
        ("interval.edges", torch.nan),
    ):
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
        save_file(load_file(path) | {name: torch.full_like(load_file(path)[name], value)}, path, metadata=metadata)
        with pytest.raises(ValueError, match=f"a.safetensors in .* holds NaN or infinity in {name}"):
            nfn.load_pretrained(path)
        tiny(path)
    with torch.no_grad():
        predictor.last.bias.fill_(torch.nan)
    nfn.save_predictor(predictor, tmp_path / "folder")
    with pytest.raises(ValueError, match=r"holds NaN or infinity in last\.bias"):
        nfn.load_predictor(tmp_path / "folder")


@pytest.mark.parametrize("width", [-0.1, float("nan")])
def test_an_interval_has_half_widths_of_at_least_zero(width: float) -> None:
    with pytest.raises(ValueError, match="half-widths of an interval are at least 0, got"):
        ConformalInterval(torch.empty(0), torch.tensor([width]))


def test_a_file_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tiny(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])
    with pytest.raises(ValueError, match="damaged"):
        nfn.load_pretrained(path)
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match=r"the config of .* is damaged"):
        nfn.load_pretrained(path)
    save_file({"weight": torch.zeros(3)}, path, metadata={"config": '{"kind": "gauge_nfn"}'})
    with pytest.raises(ValueError, match="has no interval"):
        nfn.load_pretrained(path)
    path.write_bytes(whole)
    path.with_suffix(".toml").write_text("name = = 1")
    with pytest.raises(ValueError, match="is not TOML"):
        nfn.load_pretrained(path)
    with pytest.raises(FileNotFoundError):
        nfn.load_pretrained(tmp_path / "nowhere.safetensors")
