"""benchmarks.scale: what is kept of every run, and the table made from it."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import nfn
from benchmarks import results
from benchmarks.scale import _StoredGauge, _StoredMoments, main
from tests.fabricated import fabricate_runs
from tests.refusal import refusal
from zoo import MNIST, TransformerWeights
from zoo.format.shard import CHECKPOINTS_FILE, Shard
from zoo.reading.reader import MappedCheckpoints
from zoo.thin import main as thin


def test_what_is_kept_is_what_predictors_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    runs = fabricate_runs(tmp_path / "runs")
    shards = {config: Shard.read(next((runs / config).glob("shard-*"))) for config in ("mnist", "agnews")}
    fitted = {task: SimpleNamespace(predictor=nfn.GaugeNFN(shard.record.spec)) for task, shard in shards.items()}
    monkeypatch.setattr(nfn, "load_pretrained", fitted.__getitem__)
    main(["read", str(runs), "--device", "cpu", "--out", str(tmp_path)])
    path = tmp_path / "features" / "mnist" / f"{shards['mnist'].folder.name}.parquet"
    kept, shard = pq.read_table(path), shards["mnist"]
    spec = shard.record.spec
    rows = MappedCheckpoints([shard.folder / CHECKPOINTS_FILE], spec)
    facts = rows.table.to_pandas()
    chosen = np.flatnonzero(facts["checkpoint"] == "epoch_75")
    assert kept.column("run_id").to_pylist() == facts["run_id"].iloc[chosen].tolist()
    assert kept.column("test_accuracy").to_pylist() == facts["test_accuracy"].iloc[chosen].tolist()
    weights = TransformerWeights.from_flat(spec, torch.from_numpy(rows.gather(chosen)))
    stored = {name: np.stack(kept.column(name).to_numpy(zero_copy_only=False)) for name in ("gauge_nfn", "raw_moments")}
    assert np.array_equal(stored["raw_moments"], nfn.RawMomentsPredictor(spec).inputs(weights).half().numpy())
    rounded, exact = stored["gauge_nfn"], fitted["mnist"].predictor.inputs(weights).numpy()
    np.testing.assert_allclose(rounded, exact, rtol=2**-6 + 2**-11, atol=2**-24)
    normal = rounded[np.abs(rounded) > np.finfo(np.float16).tiny]
    assert len(normal)
    assert not (normal.view(np.uint16) % 2**5).any()
    (predictor,) = set(kept.column("predictor").to_pylist())
    other = nfn.GaugeNFN(spec, generator=torch.Generator().manual_seed(1))
    fitted["mnist"].predictor.load_state_dict(other.state_dict())
    main(["read", str(runs), "--device", "cpu", "--out", str(tmp_path / "another")])
    another = pq.read_table(tmp_path / "another" / path.relative_to(tmp_path))
    assert predictor not in another.column("predictor").to_pylist()
    before = path.read_bytes()
    capsys.readouterr()
    main(["read", str(runs), "--device", "cpu", "--out", str(tmp_path)])
    assert capsys.readouterr().out == ""
    assert path.read_bytes() == before
    thin([str(runs), str(tmp_path / "thin"), "--runs", "1"])
    line = refusal(main, ["read", str(tmp_path / "thin"), "--device", "cpu", "--out", str(tmp_path / "other")], capsys)
    assert "is thinned: not all of its runs have weights to read" in line


def test_networks_read_stored_numbers_as_they_read_weights():
    flat = torch.randn(3, MNIST.num_parameters, generator=torch.Generator().manual_seed(0))
    gauge, stored = nfn.GaugeNFN(MNIST), _StoredGauge(MNIST)
    torch.testing.assert_close(stored.logits_of(gauge.inputs(flat)), gauge.logits(flat))
    moments, kept = nfn.RawMomentsPredictor(MNIST), _StoredMoments(MNIST)
    moments.fit_scale(flat)
    kept.fit_scale(moments.inputs(flat))
    torch.testing.assert_close(kept.logits(moments.inputs(flat)), moments.logits(flat))


@pytest.mark.long
def test_the_table_finds_the_numbers_that_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Accuracies that follow from the first component, and from nothing else that was kept."""
    random, count = np.random.default_rng(0), 200
    numbers = {"gauge_nfn": 384, "raw_moments": 52, "statnn": 154}
    features = {name: random.normal(size=(count, size)).astype(np.float16) for name, size in numbers.items()}
    features["gauge_nfn"] *= np.where(np.arange(384) < 1, 3, 0.05).astype(np.float16)
    told = features["gauge_nfn"][:, 0].astype(np.float64)
    table = pa.table(
        {
            "run_id": [f"{number:016x}" for number in range(count)],
            "task": ["mnist"] * count,
            "predictor": ["00000000000000aa"] * count,
            "test_accuracy": pa.array((1 / (1 + np.exp(-told))).astype(np.float32)),
            "optimizer": ["sgd", "adam"] * (count // 2),
            **{name: random.choice([0.1, 0.2], count) for name in ("learning_rate", "weight_decay", "init_std")},
            **{name: random.choice([0.1, 0.2], count) for name in ("dropout", "train_fraction")},
            **{
                name: pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
                for name, values in features.items()
            },
        }
    )
    path = tmp_path / "features" / "mnist" / "shard-00000.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(table, path)
    options = ["--config", "mnist", "--sizes", "100", "--seeds", "1", "--epochs", "8", "--device", "cpu"]
    main(["table", *options, "--out", str(tmp_path)])
    rows = results.read("scale", tmp_path)
    taus = {(row.model, str(row.setting["rows"])): row.value for row in rows if row.metric == "tau"}
    (most,) = {size for _, size in taus} - {"100"}
    assert taus["gauge_nfn", most] > 0.7
    assert all(abs(taus[model, most]) < 0.4 for model in ("hyperparameters", "raw_moments", "statnn"))
    (lead,) = [row for row in rows if row.metric == "tau_above_hyperparameters_low" and row.model == "gauge_nfn"][-1:]
    assert lead.value > 0
    assert "Gauge-NFN" in (tmp_path / "scale.md").read_text()
    other = table.set_column(2, "predictor", pa.array(["00000000000000bb"] * count))
    pq.write_table(other, path.with_name("shard-00001.parquet"))
    line = refusal(main, ["table", *options, "--out", str(tmp_path)], capsys)
    assert "was read by several fitted predictors: read all its shards again with one" in line
    path.with_name("shard-00001.parquet").unlink()
    pq.write_table(table.drop_columns(["statnn", "run_id"]), path)
    line = refusal(main, ["table", *options, "--out", str(tmp_path)], capsys)
    assert line.rstrip().endswith("was not written by `benchmarks.scale read`: it has no run_id, statnn")
    assert "holds no features" in refusal(main, ["table", "--config", "agnews", "--out", str(tmp_path)], capsys)
