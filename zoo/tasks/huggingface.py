"""Images or texts that ``datasets`` can load: by a name on the Hugging Face hub, or from a folder.

A folder and what it holds may come from anywhere. Nothing outside it is read, whatever its README, its links and its
tables name, and what a file unpacks to is measured before ``datasets`` sees it.
"""

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import UInt8
from torch import Tensor

from zoo.checked import Text, shown
from zoo.format.table_file import read_stream, unpacked_size
from zoo.storage.untrusted import HeldFile, read_bounded, read_json
from zoo.tasks.examples import ImageSplit, LabeledTexts, RawImages, RawTexts, class_names, class_numbers
from zoo.tasks.limits import LONGEST_TEXT, MAX_BYTES, MAX_TEXT_BYTES, check_count

if TYPE_CHECKING:
    from datasets import Dataset, DatasetBuilder, DatasetDict

_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_SPLITS_FILE, _STATE_FILE = "dataset_dict.json", "state.json"
"""Written by ``save_to_disk``."""
_KINDS = ("parquet", "arrow", "csv", "json", "imagefolder")
_PACKED = (".7z", ".bz2", ".gz", ".lz4", ".rar", ".tar", ".tgz", ".xz", ".zip", ".zst")
_ELSEWHERE = re.compile(r"^[/~]|\.\.|:[/:]")
_MAX_CARD_BYTES = 1 << 20
_ROWS_AT_ONCE = 100
_IMAGE_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Pillow starts other programs to read some of its other formats."""


@dataclass(frozen=True)
class HuggingFaceData:
    """A data set with an image or text column and a label column.

    ``path`` is a folder (of ``save_to_disk``, of images, of parquet or CSV files, …) or else a name on the hub.
    ``input`` is by default the only column of images, else the only one of texts. Class labels are taken as they are;
    of numbers and texts, the classes are the distinct ones of the training set.
    """

    path: Text
    config: Text | None = None
    input: Text | None = None
    label: Text = "label"
    train: Text = "train"
    test: Text = "test"

    def __post_init__(self) -> None:
        if self.input == self.label:
            raise ValueError(f"input must be another column than label, got {shown(self.label)} for both")
        if self.train == self.test:
            raise ValueError(f"test must be another split than train, got {shown(self.test)} for both")

    def is_local(self, base: Path) -> bool:
        """Whether this is a folder, so that reading it contacts nobody."""
        return (base / self.path).is_dir()

    def read(self, base: Path) -> RawImages | RawTexts:
        folder, local = base / self.path, self.is_local(base)
        where = str(folder) if local else " ".join(filter(None, (self.path, self.config)))
        loaded = _load(self.path, folder, self.config)
        for split in (self.train, self.test):
            if split not in loaded:
                raise ValueError(f"{where} has no split {split!r}: it has {', '.join(map(str, loaded))}")
            if len(loaded[split]) == 0:
                raise ValueError(f"{where}: the split {split!r} is empty")
            check_count(len(loaded[split]), f"{where}: {split}")
        roots = (folder,) if local else _caches()
        train, test = (_Split(loaded[split], f"{where}: {split}", roots) for split in (self.train, self.test))
        column = self.input or train.only_input(self.label)
        _check_columns(train, test, (column, self.label))
        labels, test_labels, classes = _read_labels(train, test, self.label)
        title = folder.resolve().name if local else where
        at, test_at = (split.at(self.label) for split in (train, test))
        if train.holds_images(column):
            seen = ImageSplit(train.images(column, MAX_BYTES), torch.tensor(labels), train.at(column), at)
            left = MAX_BYTES - seen.images.numel()
            unseen = ImageSplit(test.images(column, left), torch.tensor(test_labels), test.at(column), test_at)
            return RawImages.joined(title, seen, unseen, classes)
        if not train.holds_texts(column):
            raise ValueError(f"{train.at(column)} holds neither images nor texts")
        texts = LabeledTexts(train.values(column), labels), LabeledTexts(test.values(column), test_labels)
        return RawTexts.joined(title, *texts, classes, at, test_at)


@dataclass(frozen=True)
class _Split:
    """The rows of a split, what to call them in a message, and the folders that their files may lie in."""

    rows: "Dataset"
    where: str
    roots: tuple[Path, ...]

    def at(self, column: str) -> str:
        return f"{self.where}, column {column}"

    def holds_images(self, column: str) -> bool:
        from datasets import Image

        return isinstance(self.rows.features[column], Image)

    def holds_texts(self, column: str) -> bool:
        return getattr(self.rows.features[column], "dtype", None) in ("string", "large_string")

    def only_input(self, label: str) -> str:
        """The only column of images; where there is none, the only one of texts beside the label."""
        columns = [column for column in self.rows.column_names if column != label]
        found = [column for column in columns if self.holds_images(column)]
        found = found or [column for column in columns if self.holds_texts(column)]
        if not found:
            raise ValueError(f"{self.where} has no column of images or texts: it has {', '.join(columns)}")
        if len(found) > 1:
            raise ValueError(f"{self.where} has several columns to read, {', '.join(found)}: name one as input")
        return found[0]

    def images(self, column: str, most: int) -> UInt8[Tensor, "n height width *channels"]:
        """The images as at most ``most`` bytes; those that are neither gray nor RGB become RGB."""
        images = None
        for row, cell in enumerate(self._cells(column)):
            if not cell.is_valid:
                raise ValueError(f"{self.at(column)}, row {row + 1:,} is empty")
            try:
                pixels = self._pixels(cell.as_py(), self.rows.features[column], most // len(self.rows))
            # Pillow raises many types for an image that it cannot read
            except Exception as error:
                raise ValueError(f"{self.at(column)}, row {row + 1:,} cannot be read: {_reason(error)}") from error
            if images is None:
                images = np.empty((len(self.rows), *pixels.shape), dtype=np.uint8)
            if pixels.shape != images.shape[1:]:
                raise ValueError(
                    f"{self.at(column)} must hold images of one size and mode: row {row + 1:,} is "
                    f"{_described(pixels)}, the first is {_described(images[0])}"
                )
            images[row] = pixels
        assert images is not None, "a split has rows"
        return torch.from_numpy(images)

    def _pixels(self, value: dict[str, Any], feature: Any, most: int) -> UInt8[np.ndarray, "height width *channels"]:
        """One image, which the table holds, or names as a file."""
        import PIL.Image

        data, path = value["bytes"], Path(value["path"] or "")
        if data is None:
            if not any(_lies_in(path, root) for root in self.roots):
                raise ValueError(f"{path} is not a file of this data set")
            data = read_bounded(path, MAX_BYTES)
        with PIL.Image.open(io.BytesIO(data), formats=_IMAGE_FORMATS) as image:
            size = image.width * image.height * (1 if (feature.mode or image.mode) == "L" else 3)
        if size > most:
            raise ValueError(f"{size:,} bytes are too many for {len(self.rows):,} rows: at most {most:,} are read")
        image = feature.decode_example({"bytes": data, "path": None})
        return np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))

    def _cells(self, column: str) -> pa.ChunkedArray:
        return self.rows.select_columns(column).with_format("arrow")[:][column]

    def values(self, column: str) -> list[Any]:
        """The texts or labels of a column."""
        cells = self._cells(column)
        if cells.nbytes > MAX_TEXT_BYTES:
            raise ValueError(f"{self.at(column)} holds {cells.nbytes:,} bytes, at most {MAX_TEXT_BYTES:,} are read")
        values = cells.to_pylist()
        if None in values:
            raise ValueError(f"{self.at(column)}, row {values.index(None) + 1:,} is empty")
        if self.holds_texts(column) and (longest := max(map(len, values))) > LONGEST_TEXT:
            raise ValueError(
                f"{self.at(column)} holds a text of {longest:,} letters, at most {LONGEST_TEXT:,} are read"
            )
        return values


def _described(pixels: np.ndarray) -> str:
    return f"{pixels.shape[0]}×{pixels.shape[1]} {'gray' if pixels.ndim == 2 else 'RGB'}"


def _load(name: str, folder: Path, config: str | None) -> "DatasetDict":
    """The data set in a folder, or where there is none, under this name on the hub or in the hub's cache."""
    from datasets import DatasetDict, load_dataset_builder

    local = folder.is_dir()
    saved = any((folder / file).is_file() for file in (_SPLITS_FILE, _STATE_FILE))
    if saved and config is not None:
        raise ValueError(f"{folder} was written by save_to_disk and has no config: leave config out, got {config!r}")
    if not local and Path(name).exists():
        # datasets would take it for the data, whatever it is
        raise ValueError(f"{name!r} is not a folder beside the task file, but there is one in the working directory")
    # a name without an owner would be one of a reader in datasets, which looks for files in the working directory
    if not local and not _HUB_NAME.fullmatch(name):
        raise FileNotFoundError(f"{folder} is not a folder, and {name!r} is not a name on the hub such as OWNER/NAME")
    try:
        if saved:
            return _load_saved(folder)
        if local:
            _check_card(folder)
        builder = load_dataset_builder(str(folder.resolve()) if local else name, config)
        _check_files(builder, folder if local else None)
        builder.download_and_prepare()
        loaded = builder.as_dataset()
        assert isinstance(loaded, DatasetDict), "no split was named"
        return loaded
    # datasets and the hub client raise many types for one fact, that there is no data set to read
    except Exception as error:
        if local:
            raise ValueError(f"datasets cannot load {folder}: {_reason(error)}") from error
        raise FileNotFoundError(
            f"{folder} is not a folder, and datasets cannot load {name!r} from the hub: {_reason(error)}"
        ) from error


def _load_saved(folder: Path) -> "DatasetDict":
    """What ``save_to_disk`` wrote: a folder for each split, with tables as Arrow streams."""
    from datasets import Dataset, DatasetDict
    from datasets.table import InMemoryTable

    if not (folder / _SPLITS_FILE).is_file():
        raise ValueError(
            f"{folder} holds rows without splits: save a DatasetDict, with one split to train on, one to test"
        )
    loaded = DatasetDict()
    for split in read_json(folder / _SPLITS_FILE)["splits"]:
        files = sorted((folder / split).glob("data*.arrow"))
        if not files or not all(_lies_in(file, folder) for file in files):
            raise ValueError(f"{folder} is damaged: the split {shown(split)} has no table in it")
        tables = [read_stream(file, MAX_BYTES) for file in files]
        loaded[split] = Dataset(InMemoryTable(pa.concat_tables(tables)))
    return loaded


def _lies_in(path: Path, folder: Path) -> bool:
    """Whether a path leads to something in a folder, by links too."""
    return path.resolve().is_relative_to(folder.resolve())


def _caches() -> tuple[Path, ...]:
    """The folders that hold what was downloaded from the hub."""
    from datasets import config
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE), Path(config.HF_DATASETS_CACHE), Path(config.DOWNLOADED_DATASETS_PATH)


def _check_card(folder: Path) -> None:
    """Refuses a README that names files elsewhere, which datasets would look for before we could ask."""
    from datasets import config
    from huggingface_hub import DatasetCard

    card = folder / config.REPOCARD_FILENAME
    if (folder / config.REPOYAML_FILENAME).exists():
        raise ValueError(f"{config.REPOYAML_FILENAME} is not read: move its content to {card.name}")
    if not card.exists():
        return
    HeldFile(card).refuse_larger(_MAX_CARD_BYTES)
    configs = DatasetCard.load(card).data.get("configs") or []
    # YAML can hold a list many times, and in itself
    found, seen = [each.get(key) for each in configs for key in ("data_files", "data_dir")], set()
    while found:
        value = found.pop()
        if isinstance(value, str) and _ELSEWHERE.search(value):
            raise ValueError(f"its {card.name} leads outside it: {shown(value)}")
        if isinstance(value, dict | list) and id(value) not in seen:
            seen.add(id(value))
            found += value.values() if isinstance(value, dict) else value


def _check_files(builder: "DatasetBuilder", folder: Path | None) -> None:
    """Refuses files that unpack to too much, and in a folder those that lead outside it."""
    from datasets import DownloadManager
    from pyarrow import parquet

    kind: str = builder.name
    files = [file for split in (builder.config.data_files or {}).values() for file in split]
    if folder is not None:
        if kind not in _KINDS:
            raise ValueError(f"it holds files for {kind}, only those for {', '.join(_KINDS)} are read")
        for file in files:
            if not _lies_in(Path(file), folder):
                raise ValueError(f"{file} leads outside it")
            if file.lower().endswith(_PACKED):
                raise ValueError(f"{file} is packed: unpack it")
            HeldFile(Path(file)).refuse_larger(MAX_TEXT_BYTES if kind in ("csv", "json") else MAX_BYTES)
            if kind == "arrow":
                read_stream(Path(file), MAX_BYTES)
    if kind == "parquet":
        vars(builder.config)["batch_size"] = _ROWS_AT_ONCE
        left = MAX_BYTES
        for path in files if folder else DownloadManager().download(files):
            check_count(parquet.read_metadata(path).num_rows, path)
            left -= unpacked_size(path, left)


def _reason(error: Exception) -> str:
    """The type of an error and its first line."""
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])


def _check_columns(train: _Split, test: _Split, columns: tuple[str, ...]) -> None:
    """Refuses a column that is not in both splits, or is of two types."""
    for column in columns:
        for split in (train, test):
            if column not in split.rows.features:
                raise ValueError(
                    f"{split.where} has no column {shown(column)}: it has {', '.join(split.rows.column_names)}"
                )
        if train.rows.features[column] != test.rows.features[column]:
            raise ValueError(f"{test.at(column)} is of another type than {train.at(column)}")


def _read_labels(train: _Split, test: _Split, column: str) -> tuple[list[int], list[int], int]:
    """The labels of both splits as numbers, and how many classes there are."""
    from datasets import ClassLabel

    feature = train.rows.features[column]
    dtype = str(getattr(feature, "dtype", None))
    if not dtype.startswith(("int", "uint")) and not train.holds_texts(column):
        raise ValueError(f"{train.at(column)} holds {dtype}: labels are class labels, whole numbers or texts")
    labels, test_labels = train.values(column), test.values(column)
    known = range(len(feature.names)) if isinstance(feature, ClassLabel) else labels
    names = class_names(known, train.at(column))
    train_numbers = class_numbers(labels, names, train.at(column))
    return train_numbers, class_numbers(test_labels, names, test.at(column)), len(names)
