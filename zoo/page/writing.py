"""Writes the folder of a page: index.html, and beside it the data that is read on demand.

index.html                the page with the tables of all configs
curves/0-003.js           the learning curves of 64 runs: the fourth 64 of the first config
runs/0-00012.js           the pictures of one run's checkpoints: the thirteenth of the first config
manifest.json             which files these are

index.html holds its style, its scripts, the charting library and the tables. The charts are Vega-Lite's. Its JavaScript
comes with vl-convert-python and is copied into the page, so the page needs no network; a content security policy in its
head makes the browser enforce that. The policy names every script of the page by its hash: text of a zoo that got into
the HTML by mistake would not run.
"""

import base64
import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment

from zoo.checked import printable
from zoo.command import Advance, how_many, progress_bar
from zoo.format.manifest import FileEntry, Manifest
from zoo.format.published import PublishedZoo, check_target, zoo_files
from zoo.format.schema import usual_label
from zoo.page.options import PageOptions
from zoo.page.pictures import Example, attention_refusal, find_example, picture
from zoo.page.tables import Predictions, band, checkpoint_columns, curves, hyperparameters, packed, run_columns
from zoo.plots import span_of
from zoo.reading.locate import find_folder
from zoo.reading.reader import ZooReader
from zoo.storage.atomic import write_atomically
from zoo.storage.swap import replacing_folder
from zoo.transformer.model import build_model
from zoo.transformer.spec import TransformerSpec
from zoo.transformer.weights import TransformerWeights

_PAGE_FILE, _KIND = "index.html", "page"
_RUNS_PER_FILE = 64
_FOLDER = Path(__file__).parent
_SCRIPTS = (
    *("data", "elements", "charts", "axes", "filters"),
    *("histogram", "marginal", "checkpoint_table", "accuracies"),
    *("curves", "predictors"),
    *("loading_code", "run_curves", "patch_filters", "attention", "checkpoint"),
    "page",
)
"""The files of js/, in the order they are read in."""
_EXPORTED = "window.vegaEmbed = vegaEmbed;"


def _write_page(options: PageOptions, predictions: Sequence[Predictions], advance: Advance) -> Manifest:
    """Writes the page of a zoo; ``advance`` is called with 1 for each run with pictures of its checkpoints.

    ``out`` is replaced whole where it is an older page; a folder with anything else in it is left alone.
    """
    folder, out = find_folder(options.zoo), options.out.resolve()
    check_target(out, _KIND, [folder.resolve()])
    readers = {config: ZooReader(folder, config, "all") for config in PublishedZoo.read(folder).configs}
    path = Path(options.zoo).expanduser()
    name = folder.name if path.is_dir() else options.zoo
    runs, rows = sum(len(reader.runs) for reader in readers.values()), sum(map(len, readers.values()))
    counted = f"{rows:,} checkpoints of {runs:,} trained small transformers in {how_many(len(readers), 'config')}"
    head = {
        "name": printable(name),
        "summary": counted,
        "open": name if path.is_absolute() else options.zoo,
        "configs": list(readers),
        "predictions": [entry.shown() for entry in predictions],
        "runs_per_file": _RUNS_PER_FILE,
    }
    with replacing_folder(out, zoo_files) as new:
        examples: dict[TransformerSpec, Example | str] = {}
        tables = []
        for index, reader in enumerate(readers.values()):
            if reader.spec not in examples:
                examples[reader.spec] = find_example(reader, options.data, fetch=options.fetch)
            tables.append(packed(_write_config(new, index, reader, examples[reader.spec], options.pictures, advance)))
        page = _render(f"{printable(name)}: trained small transformers", head, tables, _summary(readers))
        write_atomically(new / _PAGE_FILE, page.encode())
        names = sorted(path.relative_to(new).as_posix() for path in new.rglob("*") if path.is_file())
        manifest = Manifest({name: FileEntry.of(new / name) for name in names}, {"kind": _KIND})
        manifest.write(new)
    return manifest


def _write_config(
    folder: Path, index: int, reader: ZooReader, found: Example | str, pictured: int, advance: Advance
) -> dict[str, Any]:
    """Writes the files of one config and returns its tables; ``found`` is an example, or why there is none."""
    missing = attention_refusal(reader.spec, found) if isinstance(found, Example) else found
    example = found if isinstance(found, Example) and missing is None else None
    runs = reader.runs
    for number, start in enumerate(range(0, len(runs), _RUNS_PER_FILE)):
        _write_script(folder / "curves" / f"{index}-{number:03d}.js", curves(runs.iloc[start : start + _RUNS_PER_FILE]))
    rows = checkpoint_columns(reader)
    label, more = usual_label(reader.spec)
    chosen = _pictured_runs(rows["run"], [(value or 0.0) * (1 if more else -1) for value in rows[label]], pictured)
    model = build_model(reader.spec, np.zeros(reader.spec.num_parameters, dtype=np.float32))
    for run in chosen:
        pictures = {}
        for row in np.flatnonzero(np.array(rows["run"]) == run).tolist():
            weights = TransformerWeights.from_flat(reader.spec, reader.weights(row))
            pictures[rows["labels"][rows["label"][row]]] = picture(model, weights, example)
        _write_script(folder / "runs" / f"{index}-{run:05d}.js", pictures)
        advance(1)
    details = reader.details
    return {
        "name": reader.config,
        "task": details.task,
        "note": details.data_note(),
        "spec": details.spec.to_dict(),
        "runs": run_columns(reader),
        "hyperparameters": hyperparameters(reader),
        "rows": rows,
        "ranked": {"label": label, "more": more, "span": span_of(reader.metadata[label])},
        "band": band(runs[label]),
        "pictured": chosen,
        "example": {"missing": missing} if example is None else example.shown(),
    }


def _pictured_runs(runs: Sequence[int], merits: Sequence[float], count: int) -> list[int]:
    """The numbers of ``count`` runs, spread evenly over the order of their best checkpoints; all, if there are fewer.

    The first and the last are among them, if there is room for two.
    """
    best = pd.Series(list(merits), list(runs), dtype=float).groupby(level=0).max().sort_values(kind="stable")
    ranks = np.unique(np.linspace(0, len(best) - 1, min(count, len(best))).round().astype(int))
    return sorted(best.index[ranks].tolist())


def _write_script(path: Path, value: Any) -> None:
    """Data as a script that hands it to the page: a page on a disk may load no other files beside it."""
    write_atomically(path, f'zooFile("{path.parent.name}/{path.stem}", "{packed(value)}");\n'.encode())


@functools.cache
def _charting_library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, after their licenses."""
    import vl_convert

    return f"/*\n{_read('library_notice.txt')}*/\n(() => {{\n{vl_convert.javascript_bundle(_EXPORTED)}\n}})();"


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _page_script() -> str:
    """The page's own scripts as one."""
    return '"use strict";\n(() => {\n' + "\n".join(_read(f"js/{name}.js") for name in _SCRIPTS) + "})();"


def _render(title: str, head: Mapping[str, Any], configs: Sequence[str], summary: Sequence[Sequence[str]]) -> str:
    """The HTML: ``head`` is available to the page at once, ``configs`` are packed tables that it unpacks to show them.

    ``summary`` is the table that readers without JavaScript see: a line of headings, then a line per config.
    """
    scripts = [_in_script(_charting_library()), _in_script(_page_script())]
    environment = Environment(autoescape=True, keep_trailing_newline=True)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment.from_string(_read("page.html")).render(
        title=title,
        policy=_policy(scripts),
        style=_read("page.css"),
        summary=summary,
        head=head,
        configs=configs,
        scripts=scripts,
    )


def _policy(scripts: Sequence[str]) -> str:
    """Allows nothing from elsewhere, and no scripts but the page's own, by their hashes, and the files beside it.

    Files beside it are ``'self'`` on a web server and ``file:`` on a disk.
    """
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src 'self' file: {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _in_script(code: str) -> str:
    """Code that cannot end the script element it stands in; its meaning is the same."""
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _summary(readers: dict[str, ZooReader]) -> list[list[str]]:
    """A line of headings, and how much each config holds."""
    lines = [["config", "runs", "checkpoints", "label", "median", "best"]]
    for config, reader in readers.items():
        label, more = usual_label(reader.spec)
        values = reader.metadata[label]
        best = values.max() if more else values.min()
        numbers = [f"{values.median():.4f}", f"{best:.4f}"] if len(reader) else ["–", "–"]
        lines.append([config, f"{len(reader.runs):,}", f"{len(reader):,}", label.replace("_", " "), *numbers])
    return lines


def run(options: PageOptions, predictions: Sequence[Predictions]) -> None:
    """Writes a page according to the options and prints where it is."""
    with progress_bar() as bar:
        task = bar.add_task("looking into runs", total=None)
        manifest = _write_page(options, predictions, functools.partial(bar.advance, task))
    size = sum(entry.bytes for entry in manifest.files.values())
    page = manifest.files[_PAGE_FILE].bytes
    where = printable(options.out / _PAGE_FILE)
    print(f"{where}: {page / 1e6:,.1f} MB; {len(manifest.files):,} files, {size / 1e6:,.1f} MB; open it in a browser")
