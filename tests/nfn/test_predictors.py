"""The predictors: exact sizes, one interface, any components, clear errors, and a round trip through the disk."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nfn import (
    GaugeNFN,
    GroupElement,
    HiddenProbeNFN,
    InvariantNFN,
    MLPPredictor,
    Predictor,
    ProbeGenNFN,
    ProbeNFN,
    QuasiNFN,
    RawMomentsPredictor,
    ResponseNFN,
    StatNN,
    TransformerNFN,
    load_predictor,
    save_predictor,
)
from nfn.predictors.baselines import tensor_statistics
from nfn.predictors.component_predictor import ComponentPredictor
from nfn.symmetry.parts import available_parts
from nfn.testing import assert_invariant
from tests.nfn.conftest import MARKED_SPECS, ODD_SPECS, weights_of
from zoo import AGNEWS, MNIST, TransformerSpec, TransformerWeights

COMPONENT_KINDS = [TransformerNFN, MLPPredictor, StatNN, QuasiNFN]
KINDS = [*COMPONENT_KINDS, GaugeNFN, ResponseNFN, RawMomentsPredictor, ProbeNFN, HiddenProbeNFN, ProbeGenNFN]


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("kind", "spec", "parameters"),
    [
        (TransformerNFN, MNIST, 1_812_181),
        (TransformerNFN, AGNEWS, 1_804_741),
        (MLPPredictor, MNIST, 933_251),
        (MLPPredictor, AGNEWS, 896_051),
        (StatNN, MNIST, 203_393),
        (StatNN, AGNEWS, 168_449),
    ],
)
def test_parameter_counts_of_tab_params(kind: type[Predictor], spec: TransformerSpec, parameters: int):
    with torch.device("meta"):
        assert count(kind(spec)) == parameters


@pytest.mark.parametrize(
    ("channels", "parameters"),
    [
        ((3,), 490_848),
        ((5,), 840_340),
        ((10,), 1_792_610),
        ((15,), 2_857_080),
        ((3, 3), 1_900_932),
        ((5, 5), 4_756_800),
        ((10, 10), 17_457_130),
        ((15, 15), 38_101_260),
    ],
)
def test_parameter_counts_of_tab_ablation_hidden_dim(channels: tuple[int, ...], parameters: int):
    with torch.device("meta"):
        assert count(TransformerNFN(AGNEWS, channels=channels).parts["encoder"]) == parameters


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", [MNIST, AGNEWS, *MARKED_SPECS], ids=lambda spec: spec.task)
def test_all_kinds_have_one_interface(kind: type[Predictor], spec: TransformerSpec):
    model, weights = kind(spec), weights_of(spec)
    predicted = model(weights)
    assert predicted.shape == (6,)
    assert bool(((predicted > 0) & (predicted < 1)).all())
    torch.testing.assert_close(torch.sigmoid(model.logits(weights)), predicted)
    single = TransformerWeights.from_flat(spec, weights.flat()[2])
    torch.testing.assert_close(model(single), predicted[2])
    grid = TransformerWeights.from_flat(spec, weights.flat().unflatten(0, (2, 3)))
    torch.testing.assert_close(model(grid), predicted.unflatten(0, (2, 3)))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", ODD_SPECS[-2:], ids=lambda spec: spec.task)
def test_all_kinds_learn_from_transformers_unlike_the_papers(
    kind: type[Predictor], spec: TransformerSpec, tmp_path: Path, generator: torch.Generator
):
    predictor, weights = kind(spec, generator=generator), weights_of(spec)
    predictor.fit_scale(weights)
    targets = torch.linspace(0.1, 0.9, 6)
    loss = (predictor(weights) - targets).square().mean()
    loss.backward()
    with torch.no_grad():
        for parameter in predictor.parameters():
            assert parameter.grad is not None
            parameter -= 1e-3 * parameter.grad
        assert float((predictor(weights) - targets).square().mean()) < float(loss)
    save_predictor(predictor, tmp_path / "predictor.safetensors")
    assert torch.equal(load_predictor(tmp_path / "predictor.safetensors")(weights), predictor(weights))


@pytest.mark.parametrize("spec", ODD_SPECS[-3:], ids=lambda spec: spec.task)
def test_gauge_and_probes_are_invariant_for_transformers_unlike_the_papers(
    spec: TransformerSpec, generator: torch.Generator
):
    # the size of logits changes the loss, by which language models are ranked
    available = [part for part in available_parts(spec) if not spec.causal or part != "logits"]
    assert_invariant(InvariantNFN(spec, generator=generator), spec, channels=None, parts=available)
    exact = [part for part in available if part not in ("boundary_scales", "logits")]
    assert_invariant(GaugeNFN(spec, generator=generator), spec, channels=None, parts=exact)
    assert_invariant(ProbeNFN(spec, probes=4, generator=generator), spec, channels=None, parts=exact)


@pytest.mark.parametrize("kind", KINDS)
def test_flat_vectors_are_read_by_the_predictors_own_spec(kind: type[Predictor]):
    predictor, weights = kind(AGNEWS), weights_of(AGNEWS, 3)
    assert torch.equal(predictor(weights.flat()), predictor(weights))
    torch.testing.assert_close(predictor.logits(weights.flat()[0]), predictor.logits(weights)[0])
    predictor.fit_scale(weights.flat())
    with pytest.raises(ValueError, match="have 17,764 weights along the last dimension"):
        predictor(torch.zeros(2, 100))


@pytest.mark.parametrize("kind", COMPONENT_KINDS)
@pytest.mark.parametrize(
    "components",
    [
        ["embedding"],
        ["encoder"],
        ["classifier"],
        ["embedding", "encoder"],
        ["embedding", "classifier"],
        ["encoder", "classifier"],
    ],
)
def test_only_the_chosen_components_are_read(kind: type[ComponentPredictor], components: list[str]):
    model = kind(MNIST, components=components)
    weights = weights_of(MNIST)
    for name, part in MNIST.components.items():
        changed = weights.flat().clone()
        changed[:, part] = torch.randn(6, part.stop - part.start, generator=torch.Generator().manual_seed(9))
        unchanged = torch.equal(model(TransformerWeights.from_flat(MNIST, changed)), model(weights))
        assert unchanged == (name not in components)


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_and_lists_are_read_as_tensors_are(kind: type[Predictor]):
    predictor, flat = kind(ODD_SPECS[0]), weights_of(ODD_SPECS[0], 2).flat()
    expected = predictor(flat)
    assert torch.equal(predictor(flat.numpy()), expected)
    assert torch.equal(predictor(flat.double().numpy()), expected)
    torch.testing.assert_close(predictor(flat[0].tolist()), expected[0])
    with pytest.raises(
        ValueError, match=r"weights are TransformerWeights or floats \[..., d\], got a ndarray: could not"
    ):
        predictor(np.array(["a", "b"]))
    with pytest.raises(ValueError, match="along the last dimension, got shape"):
        predictor(np.zeros((2, 3)))


def test_order_of_components_does_not_matter():
    first, second = (
        TransformerNFN(MNIST, components=c) for c in (["classifier", "encoder"], ["encoder", "classifier"])
    )
    assert torch.equal(first(weights_of(MNIST)), second(weights_of(MNIST)))


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_is_refused_in_one_clear_line(kind: type[Predictor]):
    model = kind(MNIST)
    with pytest.raises(ValueError, match=r"reads mnist transformers.*got agnews transformers: .*classes 10 and 4"):
        model(weights_of(AGNEWS))
    double = TransformerWeights.from_flat(MNIST, weights_of(MNIST).flat().double())
    with pytest.raises(ValueError, match=r"weights are torch.float64 but the predictor is torch.float32: convert"):
        model(double)
    broken = weights_of(MNIST).flat().clone()
    broken[3, 600] = float("nan")
    with pytest.raises(ValueError, match=r"weights hold NaN or infinity, first in blocks.0.query.weight"):
        model(TransformerWeights.from_flat(MNIST, broken, check_finite=False))


@pytest.mark.parametrize("kind", COMPONENT_KINDS)
def test_components_that_do_not_exist_are_refused_in_one_clear_line(kind: type[ComponentPredictor]):
    with pytest.raises(ValueError, match="agnews transformers have no trainable embedding: choose from encoder"):
        kind(AGNEWS, components=["embedding"])
    with pytest.raises(ValueError, match="components must be some of embedding, encoder, classifier, got head"):
        kind(MNIST, components=["head"])
    with pytest.raises(ValueError, match="got none"):
        kind(MNIST, components=[])


@pytest.mark.filterwarnings("ignore:var")  # torch warns of the variance of an empty batch
@pytest.mark.parametrize("kind", KINDS)
def test_no_checkpoints_have_no_predictions(kind: type[Predictor]):
    assert kind(MNIST)(torch.zeros(0, MNIST.num_parameters)).shape == (0,)


def test_one_channel_that_normalization_would_make_a_constant_is_refused():
    with pytest.raises(ValueError, match="the last layer needs 2 channels or more"):
        TransformerNFN(MNIST, channels=(10, 1))


def test_no_channels_are_refused_in_one_clear_line():
    with pytest.raises(ValueError, match="has 1 to 16 equivariant layers, got 0"):
        TransformerNFN(MNIST, channels=())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.long)])
def test_save_and_load_give_the_same_predictor(kind: type[Predictor], dtype: torch.dtype, tmp_path: Path):
    weights = TransformerWeights.from_flat(MNIST, weights_of(MNIST).flat().to(dtype))
    model = kind(MNIST, generator=torch.Generator().manual_seed(5)).to(dtype)
    model.fit_scale(weights)
    save_predictor(model, tmp_path / "predictor")
    loaded = load_predictor(tmp_path / "predictor")
    assert type(loaded) is kind
    assert loaded.config() == model.config()
    assert torch.equal(loaded(weights), model(weights))
    assert {file.name for file in (tmp_path / "predictor").iterdir()} == {"config.json", "model.safetensors"}


def test_damaged_files_are_refused_in_one_clear_line(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"does not hold a predictor: config.json is missing"):
        load_predictor(tmp_path)
    save_predictor(StatNN(MNIST), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"width": 8}))
    with pytest.raises(ValueError, match=r"does not fit its config.json"):
        load_predictor(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"depth": 8}))
    with pytest.raises(ValueError, match="config of a statnn predictor does not fit"):
        load_predictor(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"kind": "oracle"}))
    with pytest.raises(ValueError, match="unknown kind of predictor 'oracle': one of transformer_nfn, mlp, statnn"):
        load_predictor(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"half a file")
    with pytest.raises(ValueError, match="is damaged"):
        load_predictor(tmp_path)


def test_scale_keeps_invariance_and_does_not_depend_on_the_group(generator: torch.Generator):
    spec = ODD_SPECS[2]
    weights = weights_of(spec, 20)
    model = TransformerNFN(spec, channels=(3,), components=["encoder"])
    model.fit_scale(weights)
    assert_invariant(model, spec, channels=None)
    moved = TransformerNFN(spec, channels=(3,), components=["encoder"])
    moved.fit_scale(GroupElement.sample(spec, (20,), generator=generator, entry_range=100.0).act(weights))
    torch.testing.assert_close(moved.scale.factor, model.scale.factor, rtol=1e-3, atol=0)


def test_scale_brings_weights_to_unit_size_and_survives_zero_biases():
    weights = weights_of(MNIST, 20)
    flat = weights.flat().clone()
    flat[:, MNIST.tensors["blocks.0.fc1.bias"].slice] = 0
    model = TransformerNFN(MNIST)
    model.fit_scale(TransformerWeights.from_flat(MNIST, flat))
    scaled = model.scale(weights)
    for name in ("embedding.weight", "blocks.0.query.weight", "blocks.1.output.weight", "blocks.1.fc2.weight"):
        assert 0.8 < float(scaled[name].square().mean().sqrt()) < 1.25, name
    assert torch.equal(scaled["blocks.0.fc1.bias"], weights["blocks.0.fc1.bias"])
    with pytest.raises(ValueError, match=r"fitted on a batch \[n, d\] of checkpoints, got \[18506\]"):
        model.fit_scale(TransformerWeights.from_flat(MNIST, flat[0]))


def test_the_variance_of_a_single_number_is_zero():
    spec = replace(MNIST, hidden_dim=1)
    assert bool(torch.isfinite(StatNN(spec)(weights_of(spec))).all())


def test_statistics_are_the_seven_of_each_tensor():
    weights = weights_of(AGNEWS, 3)
    features = tensor_statistics(weights, "classifier")
    assert features.shape == (3, 4 * 7)
    tensor = weights["classifier.fc1.bias"]
    expected = torch.stack(
        [tensor.mean(-1), tensor.var(-1), *torch.quantile(tensor, torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]), dim=-1)],
        -1,
    )
    torch.testing.assert_close(features[:, 7:14], expected)
