"""Every example of DATASET_CARD.md for another library runs as it stands, and reads the rows of the zoo."""

import contextlib
import re
from pathlib import Path

import numpy as np
import pytest

import zoo
from tests.fabricated import fabricate_shard, publish
from tests.generation.small_tasks import TINY_LINES, few_lines, write_lines
from tests.zoo.own_zoo import publish_own_zoo
from zoo.format.schema import usual_label
from zoo.tasks.task_file import find_task

ROOT = Path(__file__).parents[2]
SECTION = re.compile(r"^## Read it with other libraries\n(.*?)^## ", re.DOTALL | re.MULTILINE)
WHERE = re.compile(r'where="(.*?)"')
LIBRARIES = ("pandas", "polars", "duckdb", "DataLoader", "sklearn")


def publish_language_models(folder: Path) -> Path:
    """Writes ``my-zoo`` with language models whose losses were measured, and returns it."""
    text = find_task(write_lines(folder)).text
    fabricate_shard(folder / "runs", TINY_LINES, count=24, task=few_lines(20, 5), task_file=text)
    publish(folder / "runs", folder / "my-zoo")
    return folder / "my-zoo"


@pytest.mark.parametrize("kind", ["bundled", pytest.param("own", marks=pytest.mark.long), "language"])
def test_the_examples_run_as_they_stand(tmp_path, kind):
    bundled = kind == "bundled"
    make = publish_language_models if kind == "language" else publish_own_zoo
    card = ROOT / "DATASET_CARD.md" if bundled else make(tmp_path) / "README.md"
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
    label, more = usual_label(reader.spec)
    best = sorted((max if more else min)(curve) for curve in reader.runs[label])
    shown = polars["best"][label].list.max() if more else polars["best"][label].list.min()
    assert sorted(shown.to_list()) == (best[-5:] if more else best[:5])
    groups = reader.metadata.groupby("optimizer")[label]
    expected = {name: float(np.mean(group)) for name, group in groups}
    assert dict(duckdb["means"].itertuples(index=False)) == pytest.approx(expected, rel=1e-6)
    assert duckdb["counts"].values.tolist() == [["completed", len(reader.runs)]]
    assert loader["weights"].flat().shape[1] == reader.spec.num_parameters
    assert sklearn["y"].tolist() == reader.metadata[label][reader.rows(WHERE.findall(snippets[-1])[0])].tolist()
    assert sklearn["predicted"].shape == (len(sklearn["X"]),) == (len(set(reader.metadata["run_id"])),)
    threshold = WHERE.findall(card.read_text(encoding="utf-8"))[0]
    at_checkpoint, _, condition = threshold.partition(" and ")
    assert condition.startswith(f"{label} {'>=' if more else '<='} ")
    assert len(reader.rows(at_checkpoint)) / 2 <= len(reader.rows(threshold)) < len(reader.rows(at_checkpoint))
