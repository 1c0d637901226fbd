"""Every example of DATASET_CARD.md for another library runs as it stands, and reads the rows of the zoo."""

import contextlib
import re
from pathlib import Path

import numpy as np
import pytest

import zoo
from tests.zoo.own_zoo import publish_own_zoo

ROOT = Path(__file__).parents[2]
SECTION = re.compile(r"^## Read it with other libraries\n(.*?)^## ", re.DOTALL | re.MULTILINE)
LIBRARIES = ("pandas", "polars", "duckdb", "DataLoader", "sklearn")


@pytest.mark.parametrize("bundled", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_examples_run_as_they_stand(tmp_path, bundled):
    card = ROOT / "DATASET_CARD.md" if bundled else publish_own_zoo(tmp_path) / "README.md"
    section = SECTION.search(card.read_text(encoding="utf-8"))
    assert section
    snippets = re.findall(r"```python\n(.*?)```", section[1], re.DOTALL)
    assert [sum(library in snippet for snippet in snippets) for library in LIBRARIES] == [1] * 5
    assert all(snippet.count("\n") <= 5 for snippet in snippets)
    with contextlib.chdir(ROOT if bundled else tmp_path):
        reader = zoo.open("small-transformer-zoo", "agnews") if bundled else zoo.open("my-zoo")
        pandas, polars, duckdb, loader, sklearn = ({} for _ in snippets)
        for snippet, values in zip(snippets, (pandas, polars, duckdb, loader, sklearn), strict=True):
            exec(snippet, values)  # noqa: S102
    assert pandas["rows"].equals(reader.metadata)
    assert list(pandas["runs"]["run_id"]) == list(reader.runs["run_id"])
    assert np.array_equal(polars["rows"]["weights"].to_numpy(), reader.weights(slice(None)).numpy())
    assert polars["best"]["test_accuracy"].list.max().max() == max(map(max, reader.runs["test_accuracy"]))
    groups = reader.metadata.groupby("optimizer")["test_accuracy"]
    expected = {name: float(np.mean(group)) for name, group in groups}
    assert dict(duckdb["means"].itertuples(index=False)) == pytest.approx(expected, rel=1e-6)
    assert duckdb["counts"].values.tolist() == [["completed", len(reader.runs)]]
    assert loader["weights"].flat().shape[1] == reader.spec.num_parameters
    assert sklearn["predicted"].shape == (len(sklearn["X"]),) == (len(set(reader.metadata["run_id"])),)
