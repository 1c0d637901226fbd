"""``croissant.json``: the zoo in the vocabulary of MLCommons Croissant 1.0, with its responsible-AI fields.

    dataset = mlcroissant.Dataset("small-transformer-zoo/croissant.json")
    for run in dataset.records("mnist-runs"): ...

It lists every file with its SHA-256. mlcroissant does not read Arrow streams, so its record sets are tables of runs,
which are there as Parquet too. What only a publisher knows, such as the license, is there if it was stated.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from zoo.format.manifest import FileEntry
from zoo.format.published import CARD_FILE, CROISSANT_FILE, RUNS_FILE, RUNS_PARQUET, ConfigDetails, PublishedZoo
from zoo.format.schema import PUBLISHED_RUN_SCHEMA
from zoo.format.statements import Statements
from zoo.format.table_file import MAX_TABLE_BYTES, read_table
from zoo.storage.atomic import atomic_file
from zoo.storage.untrusted import parse_json, read_bounded

_MAX_BYTES = 16 << 20
_FORMATS = {
    ".arrow": "application/vnd.apache.arrow.stream",
    ".json": "application/json",
    ".parquet": "application/x-parquet",
    ".safetensors": "application/octet-stream",
}
_TERMS = re.findall(
    r"\w+",
    """citeAs column equivalentProperty extract field fileObject fileProperty fileSet format includes isLiveDataset
    jsonPath key md5 parentField path recordSet references regex repeated replace samplingRate separator source subField
    transform""",
)
"""The words of the vocabulary, all of which a standard context has."""
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _TERMS},
}


def write_runs_as_parquet(folder: Path, config: str) -> FileEntry:
    """Writes the runs of a config a second time, for readers of Parquet."""
    runs = read_table(folder / config / RUNS_FILE, PUBLISHED_RUN_SCHEMA)
    path = folder / config / RUNS_PARQUET
    with atomic_file(path) as file:
        pq.write_table(runs, file, compression="zstd")
    return FileEntry.of(path, len(runs))


def croissant_text(
    files: Mapping[str, FileEntry],
    configs: Mapping[str, ConfigDetails],
    name: str,
    stated: Statements,
    words: Mapping[str, Any],
) -> str:
    """The file's content; ``words`` are the parts of the card, by name."""
    on_hub = f"https://huggingface.co/datasets/{name}" if "/" in name else None
    fields = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": ["http://mlcommons.org/croissant/1.0", "http://mlcommons.org/croissant/RAI/1.0"],
        "name": name.rpartition("/")[2],
        "description": f"{words['summary']}, each checkpoint with the test accuracy of those very weights.",
        "license": stated.license,
        "creator": [{"@type": "sc:Person", "name": creator} for creator in stated.creators or ()],
        "url": stated.url or on_hub,
        "datePublished": stated.date_published,
        "citeAs": words["bibtex"] if any(config.task_file is None for config in configs.values()) else None,
        "keywords": ["weight-space learning", "model zoo", "transformers"],
        **_responsible_ai(words),
        "distribution": [
            _file_object(file, entry, f"{on_hub}/resolve/main/" if on_hub else "")
            for file, entry in sorted(files.items())
            if file != CARD_FILE
        ],
        "recordSet": [_record_set(config, words["run_meanings"]) for config in configs],
    }
    return json.dumps({key: value for key, value in fields.items() if value}, indent=1, ensure_ascii=False) + "\n"


def _responsible_ai(words: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that venues ask for; all of them hold for any zoo, or are taken from its card."""
    return {
        "rai:dataCollection": "Every row is the outcome of a training run of small-transformer-zoo. The transformers "
        f"were trained on {words['sources']}.",
        "rai:dataCollectionType": ["Experiments"],
        "rai:dataCollectionMissingData": "Runs that diverged have no checkpoints; the tables of runs list them.",
        "rai:dataPreprocessingProtocol": _items(words["inputs"]),
        "rai:dataAnnotationProtocol": ["Accuracies and losses are measured on the whole test set of the task."],
        "rai:dataBiases": _items(words["biases"]),
        "rai:dataLimitations": _items(words["limitations"]),
        "rai:dataUseCases": [
            "Learning on the weights of networks: predicting accuracy, testing invariance, searching, merging, "
            "editing. The transformers are not meant to be used for their task."
        ],
        "rai:personalSensitiveInformation": [
            "No column is about a person. What the training data tell about persons may leave traces in the weights."
        ],
        "rai:dataReleaseMaintenancePlan": "The SHA-256 of the manifest identifies an edition. More runs may be added; "
        "they move no run to another split.",
    }


def _items(text: str) -> list[str]:
    """The items of a Markdown list, or one paragraph, without line breaks."""
    return [" ".join(item.split()) for item in text.removeprefix("- ").split("\n- ")]


def _file_object(name: str, entry: FileEntry, base: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name,
        "contentUrl": f"{base}{name}",
        "contentSize": f"{entry.bytes} B",
        "encodingFormat": _FORMATS[Path(name).suffix],
        "sha256": entry.sha256,
    }


def _record_set(config: str, meanings: Mapping[str, str]) -> dict[str, Any]:
    name = f"{config}-runs"
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "description": f"One record per run of {config}, diverged ones included.",
        "key": {"@id": f"{name}/run_id"},
        "field": [_field(name, column, f"{config}/{RUNS_PARQUET}", meanings) for column in PUBLISHED_RUN_SCHEMA],
    }


def _field(record_set: str, column: pa.Field, file: str, meanings: Mapping[str, str]) -> dict[str, Any]:
    repeated = isinstance(column.type, pa.ListType)
    kind = column.type.value_type if repeated else column.type
    return {
        "@type": "cr:Field",
        "@id": f"{record_set}/{column.name}",
        "name": column.name,
        "description": meanings[column.name],
        "dataType": "sc:Integer"
        if pa.types.is_integer(kind)
        else "sc:Float"
        if pa.types.is_floating(kind)
        else "sc:Text",
        **({"repeated": True} if repeated else {}),
        "source": {"fileObject": {"@id": file}, "extract": {"column": column.name}},
    }


def croissant_faults(zoo: PublishedZoo) -> Iterator[str]:
    """What ``croissant.json`` states otherwise than the manifest: files, their sizes or their hashes."""
    path = zoo.folder / CROISSANT_FILE
    if CROISSANT_FILE not in zoo.manifest.files:
        return  # a zoo of the first release
    try:
        content = parse_json(read_bounded(path, _MAX_BYTES), str(path))
        stated = {each["@id"]: (each["sha256"], each["contentSize"]) for each in content["distribution"]}
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
        groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
        if file.metadata.num_rows == len(runs) and sum(group.total_byte_size for group in groups) <= MAX_TABLE_BYTES:
            table = file.read()
            return None if table.equals(runs) else f"{path} is damaged: its rows are not those of {RUNS_FILE}"
        return f"{path} is damaged: it has {file.metadata.num_rows:,} rows, {RUNS_FILE} has {len(runs):,}"
    except (pa.ArrowException, OSError) as error:
        return f"{path} is damaged: {error}"
