"""The published README.md: DATASET_CARD.md with its marked places filled from the manifest."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from zoo.format.manifest import FileEntry, Manifest
from zoo.format.markdown import plain_markdown
from zoo.format.published import CARD_FILE, RUNS_FILE, ConfigDetails, configs_of, split_files, split_pattern
from zoo.format.schema import checkpoint_schema
from zoo.format.splits import SPLITS
from zoo.storage.atomic import write_atomically

DEFAULT_CARD = (
    Path(__file__).parent.parent / "DATASET_CARD.md"
)  # a link to the one at the top, and a copy of it in a wheel
PLACE = re.compile(r"\{\{(\w+)\}\}")


def write_card_and_manifest(
    folder: Path, files: dict[str, FileEntry], configs: dict[str, ConfigDetails], template: str
) -> Manifest:
    """Ends a zoo whose other files are in place: the card, rendered from the manifest, which then holds its hash."""
    recorded = {"kind": "zoo", "configs": {name: config.to_dict() for name, config in configs.items()}}
    card = render_card(template, Manifest(files, recorded))
    write_atomically(folder / CARD_FILE, card.encode())
    manifest = Manifest(files | {CARD_FILE: FileEntry.of(folder / CARD_FILE)}, recorded)
    manifest.write(folder)
    return manifest


def render_card(template: str, manifest: Manifest) -> str:
    """Fills ``{{configs}}``, ``{{size}}``, ``{{notice}}``, ``{{counts}}``, ``{{columns}}`` and ``{{provenance}}``."""
    details = configs_of(manifest, "the zoo")
    contents = {
        "configs": "\n".join(yaml_configs(manifest, details)),
        "size": size_category(sum(sum(config.rows.values()) for config in details.values())),
        "notice": notice(details),
        "counts": "\n".join(counts_table(manifest, details)),
        "columns": "\n".join(columns_table(details)),
        "provenance": "\n".join(provenance_table(manifest, details)),
    }
    if unknown := set(PLACE.findall(template)) - contents.keys():
        raise ValueError(f"the card has unknown places {sorted(unknown)}: it may have {sorted(contents)}")
    if "configs" not in PLACE.findall(template):
        raise ValueError("the card lacks {{configs}} in its YAML head, without which `datasets` finds no config")
    return PLACE.sub(lambda place: contents[place[1]], template)


def yaml_configs(manifest: Manifest, details: dict[str, ConfigDetails]) -> Iterator[str]:
    """What `datasets` needs to find the splits; the runs of a config are a config of their own.

    `datasets` keys its cache by this text and looks at no file, so the text must change whenever the rows do: each
    config names the edition of its files.
    """
    yield "configs:"
    for config in details:
        edition = f"  description: edition {config_edition(manifest, config)}"
        yield f"- config_name: {config}"
        yield edition
        yield "  data_files:"
        for split in SPLITS:
            yield f"  - split: {split}"
            yield f"    path: {split_pattern(split_files(manifest, config, split))}"
        yield f"- config_name: {config}-runs"
        yield edition
        yield "  data_files:"
        yield "  - split: runs"
        yield f"    path: {config}/{RUNS_FILE}"


def config_edition(manifest: Manifest, config: str) -> str:
    """A short hash of everything in a config's files."""
    hashes = [
        f"{name} {entry.sha256}" for name, entry in sorted(manifest.files.items()) if name.startswith(f"{config}/")
    ]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()[:16]


def size_category(rows: int) -> str:
    """The hub's own word for a number of rows."""
    steps = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
    return next((name for limit, name in steps if rows < limit), "1M<n<10M")


def notice(details: dict[str, ConfigDetails]) -> str:
    """Says which configs are not the paper's protocol on the whole of the real data."""
    lines = [
        f"> **`{name}` is a stand-in**: it was trained with the `{plain_markdown(config.preset)}` preset on "
        f"{plain_markdown(config.data_source)}, "
        "not with the paper's protocol. It has the right form; its accuracies are not the paper's."
        for name, config in details.items()
        if config.preset != "paper" or "sample" in config.data_source
    ]
    return "\n\n".join(lines) or "Every config here was trained with the paper's protocol."


def counts_table(manifest: Manifest, details: dict[str, ConfigDetails]) -> Iterator[str]:
    yield f"| config | {' | '.join(SPLITS)} | runs completed | diverged | MB |"
    yield f"| --- | {'--- | ' * len(SPLITS)}--- | --- | --- |"
    for name, config in details.items():
        size = sum(entry.bytes for file, entry in manifest.files.items() if file.startswith(f"{name}/")) / 1e6
        cells = [name, *(f"{config.rows[split]:,}" for split in SPLITS)]
        cells += [f"{config.runs.get(status, 0):,}" for status in ("completed", "diverged")]
        yield f"| {' | '.join(cells)} | {size:,.1f} |"


MEANINGS = {
    "run_id": "hash of the run's configuration; the same configuration always has the same id",
    "task": "mnist or agnews",
    "checkpoint": "epoch_50, epoch_75, epoch_100 (50, 75, 100 % of the epochs) or best (highest test accuracy)",
    "epoch": "the epoch the weights were taken at",
    "test_accuracy": "share of the whole test set classified rightly by these very weights, in [0, 1]",
    "test_loss": "mean cross entropy on the test set",
    "train_loss": "mean training loss of that epoch",
    "optimizer": "sgd, sgd_momentum, adam or rmsprop",
    "learning_rate": "peak learning rate",
    "weight_decay": "L2 coefficient",
    "init_std": "standard deviation of the truncated normal the weights start from",
    "dropout": "dropout probability",
    "train_fraction": "share of the training set used",
    "seed": "seed of initialisation and dropout; subsets, batches and crops are the same for all runs",
    "weights": "all trainable parameters, flat; the order of the tensors is below",
}


def columns_table(details: dict[str, ConfigDetails]) -> Iterator[str]:
    """Name, type and meaning of each column, from the schema itself."""
    lengths = " or ".join(sorted({f"{config.spec.num_parameters:,}" for config in details.values()}))
    yield "| column | type | meaning |"
    yield "| --- | --- | --- |"
    for field in checkpoint_schema(next(iter(details.values())).spec):
        fixed = isinstance(field.type, pa.FixedSizeListType)
        kind = f"{lengths} × {field.type.value_type}" if fixed else str(field.type)
        yield f"| {field.name} | {kind} | {MEANINGS[field.name]} |"


def provenance_table(manifest: Manifest, details: dict[str, ConfigDetails]) -> Iterator[str]:
    """How each config was made, as recorded by the machine that made it."""
    yield "| config | preset | protocol | seeds | trained on | engine | precision | code |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for name, config in details.items():
        protocol = ", ".join(f"{key} {value}" for key, value in sorted(config.protocol.items()))
        cells = (name, config.preset, protocol, config.seeds, config.data_source)
        lists = (", ".join(values) for values in (config.engines, config.precisions, config.code_versions))
        yield f"| {' | '.join(plain_markdown(cell) for cell in (*cells, *lists))} |"
