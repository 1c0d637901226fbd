"""The published README.md: a template with its marked places filled from the manifest."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from zoo.format import card_parts
from zoo.format.manifest import FileEntry, Manifest
from zoo.format.published import (
    CARD_FILE,
    RUNS_FILE,
    ConfigDetails,
    configs_of,
    filled_splits,
    split_files,
    split_pattern,
)
from zoo.storage.atomic import write_atomically

DEFAULT_CARD = Path(__file__).parent / "card_template.md"
PLACE = re.compile(r"\{\{(\w+)\}\}")
UNSAFE = re.compile(r"[^\w./ -]")  # in a name that stands in YAML, Markdown and code


def write_card_and_manifest(
    folder: Path, files: dict[str, FileEntry], configs: dict[str, ConfigDetails], template: str, name: str
) -> Manifest:
    """Ends a zoo whose other files are in place: the card, rendered from the manifest, which then holds its hash.

    ``name`` is what a reader of the card types to load the zoo.
    """
    recorded = {"kind": "zoo", "configs": {name: config.to_dict() for name, config in configs.items()}}
    card = render_card(template, Manifest(files, recorded), name)
    write_atomically(folder / CARD_FILE, card.encode())
    manifest = Manifest(files | {CARD_FILE: FileEntry.of(folder / CARD_FILE)}, recorded)
    manifest.write(folder)
    return manifest


def render_card(template: str, manifest: Manifest, name: str) -> str:
    """Fills the marked places of a template, such as ``{{configs}}``; an unknown one is an error."""
    details = configs_of(manifest, "the zoo")
    first, config = next(iter(details.items()))
    contents = {
        "name": UNSAFE.sub("_", name),
        "config": first,
        "checkpoint": config.checkpoints[len(config.checkpoints) // 2 - 1],
        "weights": str(config.spec.num_parameters),
        "configs": "\n".join(yaml_configs(manifest, details)),
        "size": size_category(sum(sum(config.rows.values()) for config in details.values())),
        "summary": card_parts.summary(details),
        "notice": card_parts.notice(details),
        "counts": "\n".join(card_parts.counts_table(manifest, details)),
        "checkpoints": card_parts.checkpoints(details),
        "seeds": card_parts.seeds(details),
        "residual": card_parts.residual(details),
        "task_files": card_parts.task_files(details),
        "columns": "\n".join(card_parts.columns_table(details)),
        "run_columns": "\n".join(card_parts.run_columns_table(details)),
        "transformers": "\n".join(card_parts.transformers_table(details)),
        "layout": "\n".join(card_parts.layout_table(details)),
        "data": "\n".join(card_parts.data_table(details)),
        "provenance": "\n".join(card_parts.provenance_table(details)),
        "sources": card_parts.sources(details),
    }
    if unknown := set(PLACE.findall(template)) - contents.keys():
        raise ValueError(f"the card has unknown places {sorted(unknown)}: it may have {sorted(contents)}")
    if "configs" not in PLACE.findall(template):
        raise ValueError("the card lacks {{configs}} in its YAML head, without which `datasets` finds no config")
    return PLACE.sub(lambda place: contents[place[1]], template)


def yaml_configs(manifest: Manifest, details: dict[str, ConfigDetails]) -> Iterator[str]:
    """What `datasets` needs to find the splits; the runs of a config are a config of their own.

    A split without rows is left out, and so is a config without splits: `datasets` refuses them. It keys its cache by
    this text and looks at no file, so the text must change whenever the rows do: each config names the edition of its
    files.
    """
    yield "configs:"
    for config in details:
        edition = f"  description: edition {config_edition(manifest, config)}"
        splits = filled_splits(details[config])
        if splits:
            yield f"- config_name: {config}"
            yield edition
            yield "  data_files:"
        for split in splits:
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
