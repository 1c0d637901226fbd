"""What a zoo holds a second time, for readers of other formats: README.md, ``croissant.json``, and runs as Parquet.

README.md is a Jinja template whose placeholders ``card_parts.md`` fills from the manifest. The same parts are the words
of ``croissant.json``, the zoo in the vocabulary of MLCommons Croissant, which lists every file with its SHA-256:

    for run in mlcroissant.Dataset("small-transformer-zoo/croissant.json").records("mnist-runs"): ...

What only a publisher knows, such as the license, is there if it was stated.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jinja2 import StrictUndefined, Template, TemplateSyntaxError, meta
from jinja2.sandbox import SandboxedEnvironment

from zoo.format.hyperparameters import DISTINCT_SEEDS, HYPERPARAMETERS, SHARED_SEED, meaning_of
from zoo.format.manifest import FileEntry, Manifest
from zoo.format.published import (
    CARD_FILE,
    CROISSANT_FILE,
    RUNS_FILE,
    RUNS_PARQUET,
    ConfigDetails,
    PublishedZoo,
    configs_of,
    split_files,
)
from zoo.format.schema import CHECKPOINTS, PUBLISHED_RUN_SCHEMA, checkpoint_schema, usual_label
from zoo.format.splits import SPLITS
from zoo.format.statements import Statements
from zoo.format.table_file import read_batches, read_table, unpacked_size
from zoo.storage.atomic import atomic_file, write_atomically
from zoo.storage.untrusted import HeldFile, parse_json, read_bounded
from zoo.tasks.identity import KNOWN, SHORT_HASH
from zoo.terminal import plain_markdown

DEFAULT_CARD = Path(__file__).parent / "card_template.md"
_PARTS, _CROISSANT = (Path(__file__).parent / name for name in ("card_parts.md", "croissant_template.json"))
_MAX_CROISSANT_BYTES, _PARQUET_OVERHEAD = 16 << 20, 1 << 20
_UNSAFE = re.compile(r"[^\w./ -]")  # in a name that stands in YAML, Markdown and code
_Files = dict[str, FileEntry]
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
"""The hub's own words for numbers of rows."""
_ENVIRONMENT = SandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
)
_ENVIRONMENT.filters |= {
    "comma": "{:,}".format,
    "plain": plain_markdown,
    "completed": lambda runs: runs.get("completed", 0),
    # the items of a Markdown list, or one paragraph, without line breaks
    "listed": lambda text: [" ".join(item.split()) for item in text.removeprefix("- ").split("\n- ")],
}


def write_card_and_manifest(
    folder: Path, files: _Files, configs: dict[str, ConfigDetails], template: str, name: str, stated: Statements
) -> Manifest:
    """Ends a zoo whose Arrow files are in place: Parquet files of runs, card, ``croissant.json``, and the manifest.

    ``name`` is what a reader of the card types to load the zoo.
    """
    recorded: dict[str, Any] = {"kind": "zoo", "configs": {name: each.to_dict() for name, each in configs.items()}}
    if stated.stated():
        recorded["stated"] = stated.stated()
    files = files | {f"{config}/{RUNS_PARQUET}": _write_runs_as_parquet(folder, config) for config in configs}
    words = _card_words(Manifest(files, recorded), name, folder)
    described = _compiled(_CROISSANT.read_text(encoding="utf-8")).render(words, files=files)
    texts = {
        CARD_FILE: _render_card(template, words),
        CROISSANT_FILE: json.dumps(json.loads(described), indent=1, ensure_ascii=False) + "\n",
    }
    for file, text in texts.items():
        write_atomically(folder / file, text.encode())
    manifest = Manifest(files | {file: FileEntry.of(folder / file) for file in texts}, recorded)
    manifest.write(folder)
    return manifest


def _write_runs_as_parquet(folder: Path, config: str) -> FileEntry:
    """Writes the runs of a config a second time, for readers of Parquet.

    Of losses, no two of which are the same, the bytes of each significance lie together, which takes two fifths off.
    """
    runs = read_table(folder / config / RUNS_FILE, PUBLISHED_RUN_SCHEMA)
    path, losses = folder / config / RUNS_PARQUET, ["test_loss.list.element", "train_loss.list.element"]
    repeated = [name for name in runs.column_names if f"{name}.list.element" not in losses]
    repeated[repeated.index("test_accuracy")] += ".list.element"
    # pyarrow's types lack the lists of columns that both may be
    columns: dict[str, Any] = {"use_dictionary": repeated, "use_byte_stream_split": losses}
    with atomic_file(path) as file:
        pq.write_table(runs, file, compression="zstd", **columns)
    return FileEntry.of(path, len(runs))


def _card_words(manifest: Manifest, name: str, folder: Path) -> dict[str, Any]:
    """Everything that a card may name: the parts of ``card_parts.md``, and what the examples need."""
    details = configs_of(manifest, "the zoo")
    facts = _facts(manifest, details)
    parts = _compiled(_PARTS.read_text(encoding="utf-8")).make_module(facts)
    rows = sum(sum(config.rows.values()) for config in details.values())
    words = facts | {part: text.strip("\n") if isinstance(text, str) else text for part, text in vars(parts).items()}
    words |= {
        "name": _UNSAFE.sub("_", name),
        "license": facts["stated"].license,
        "language": "en" if any(config.task in ("agnews", "shakespeare") for config in details.values()) else None,
        "size": next((name for limit, name in _SIZES if rows < limit), "1M<n<10M"),
        "task_files": _task_files(details),
    }
    return words | _example(manifest, details, folder)


def _example(manifest: Manifest, details: dict[str, ConfigDetails], folder: Path) -> dict[str, Any]:
    """A config, its usual label, a split that has rows, and a value that half of them reach; no split where no run
    completed."""
    name, config = next((each for each in details.items() if each[1].filled_splits), next(iter(details.items())))
    label, more = usual_label(config.spec)
    chosen = {"config": name, "weights": config.spec.num_parameters, "split": None, "threshold": None}
    chosen |= {"label": label, "more_is_better": more, "checkpoint": config.usual_checkpoint}
    if splits := config.filled_splits:
        values: dict[str, list[float]] = {}
        for file in split_files(manifest, name, splits[0]):
            source = pa.py_buffer(HeldFile(folder / file).map())
            for batch in read_batches(source, checkpoint_schema(config.spec), file):
                for checkpoint, value in zip(batch.column("checkpoint"), batch.column(label), strict=True):
                    values.setdefault(checkpoint.as_py(), []).append(value.as_py())
        if chosen["checkpoint"] not in values:  # thinned shards may have kept another one
            chosen["checkpoint"] = next(iter(values))
        rounded = (np.floor if more else np.ceil)(100 * np.median(values[chosen["checkpoint"]]))
        chosen |= {"split": splits[0], "threshold": float(rounded / 100)}
    return chosen


def _render_card(template: str, words: dict[str, Any]) -> str:
    """Fills the placeholders of a template, such as ``{{configs}}``; an unknown one is an error."""
    try:
        places = meta.find_undeclared_variables(_ENVIRONMENT.parse(template))
    except TemplateSyntaxError as error:
        raise ValueError(f"line {error.lineno} of the card is not a Jinja template: {error.message}") from error
    if unknown := places - words.keys():
        raise ValueError(f"the card has unknown places {sorted(unknown)}: it may have {sorted(words)}")
    if "configs" not in places:
        raise ValueError("the card lacks {{configs}} in its YAML head, without which `datasets` finds no config")
    return _compiled(template).render(words)


@cache
def _compiled(template: str) -> Template:
    return _ENVIRONMENT.from_string(template)


def _facts(manifest: Manifest, details: dict[str, ConfigDetails]) -> dict[str, Any]:
    """The names that ``card_parts.md`` refers to."""
    specs = [config.spec for config in details.values()]
    return {
        "details": details,
        "stated": Statements.recorded(manifest.details, "the zoo"),
        "splits": SPLITS,
        "CHECKPOINTS": CHECKPOINTS,
        "hyperparameter_meanings": {name: meaning_of(name) for name in HYPERPARAMETERS},
        "SHARED_SEED": SHARED_SEED,
        "DISTINCT_SEEDS": DISTINCT_SEEDS,
        "SHORT_HASH": SHORT_HASH,
        "checkpoint_columns": checkpoint_schema(max(specs, key=lambda spec: spec.causal)),
        "run_schema": PUBLISHED_RUN_SCHEMA,
        # blocks are alike, so only the first; the embedding comes first even if the first config has none
        "tensors": sorted(
            dict.fromkeys(name for spec in specs for name in spec.tensors if not re.match(r"blocks\.[^0]", name)),
            key=lambda name: not name.startswith("embedding."),
        ),
        "KNOWN": KNOWN,
        "split_pattern": lambda config, split: _split_pattern(split_files(manifest, config, split)),
        "edition": lambda config: _config_edition(manifest, config),
        "megabytes": lambda config: f"{sum(entry.bytes for entry in _files_of(manifest, config).values()) / 1e6:,.1f}",
    }


def _split_pattern(names: Sequence[str]) -> str:
    """The glob that matches these files of a split and none of another edition's: ``mnist/train-*-of-00086.arrow``."""
    head, _, count = names[0].rpartition("-of-")
    return f"{head.rpartition('-')[0]}-*-of-{count}"


def _files_of(manifest: Manifest, config: str) -> _Files:
    """A config's files but the Parquet file, which holds the rows of another once more."""
    own = (item for item in sorted(manifest.files.items()) if item[0].startswith(f"{config}/"))
    return {name: entry for name, entry in own if not name.endswith(RUNS_PARQUET)}


def _config_edition(manifest: Manifest, config: str) -> str:
    """A short hash of everything in a config's files."""
    hashes = [f"{name} {entry.sha256}" for name, entry in _files_of(manifest, config).items()]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()[:16]


def _task_files(details: dict[str, ConfigDetails]) -> str:
    """The files of tasks that are not the paper's, each once, in a code fence that none of its lines can end."""
    texts = {config.task: config.task_file for config in details.values() if config.task_file is not None}
    listed = ""
    for task, text in texts.items():
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
        listed += f"\n\nThe task file of `{task}`:\n\n{fence}toml\n{text.rstrip()}\n{fence}"
    return listed


def croissant_faults(zoo: PublishedZoo) -> Iterator[str]:
    """What ``croissant.json`` states otherwise than the manifest: files, their sizes or their hashes."""
    path = zoo.folder / CROISSANT_FILE
    if CROISSANT_FILE not in zoo.manifest.files:
        return  # a zoo of the first release
    try:
        content = parse_json(read_bounded(path, _MAX_CROISSANT_BYTES), str(path))
        stated = {str(each["@id"]): (each["sha256"], each["contentSize"]) for each in content["distribution"]}
    except (ValueError, KeyError, TypeError) as error:
        yield f"{path} is damaged: it is not a description of the zoo's files ({type(error).__name__})"
        return
    files = {name: entry for name, entry in zoo.manifest.files.items() if name not in (CARD_FILE, CROISSANT_FILE)}
    for name in sorted(files.keys() | stated.keys()):
        entry = files.get(name)
        if entry is None or stated.get(name) != (entry.sha256, f"{entry.bytes} B"):
            yield f"{path} is damaged: size or SHA-256 of {name} is not the one in the manifest"


def parquet_fault(path: Path, runs: pa.Table) -> str | None:
    """What is wrong with a second table of runs: nothing if it holds the same rows."""
    try:
        file = pq.ParquetFile(path)
        alike = file.schema_arrow.equals(runs.schema) and file.metadata.num_rows == len(runs)
        if alike:
            unpacked_size(str(path), 4 * runs.nbytes + _PARQUET_OVERHEAD)
            # without the metadata, which pandas would obey; where NaN equals NaN
            alike = file.read().replace_schema_metadata().to_pandas().equals(runs.to_pandas())
        return None if alike else f"{path} is damaged: its rows are not those of {RUNS_FILE}"
    except (pa.ArrowException, OSError, ValueError) as error:
        return f"{path} is damaged: {error}"
