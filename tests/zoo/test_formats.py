"""Your own data in each format: what was written is read back, and every fault is one line with its position."""

import gzip
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import PIL.Image
import pytest
import torch
from pyarrow import parquet

from tests.fabricated import TINY_AGNEWS
from zoo.tasks.embedding import WordEmbedding
from zoo.tasks.examples import RawImages, RawTexts, class_names
from zoo.tasks.formats import CsvData, IdxData, NpzData, TextData, data_section
from zoo.tasks.huggingface import HuggingFaceData
from zoo.tasks.identity import KNOWN, DataIdentity, name_of


def section(**values: Any) -> Any:
    return data_section(values, "my.toml")


@contextmanager
def one_line(message: str, error: type[Exception] = ValueError) -> Iterator[None]:
    with pytest.raises(error, match=message) as caught:
        yield
    assert len(str(caught.value).splitlines()) == 1


# ---------------------------------------------------------------------------------------------------- the [data] table


def test_each_format_has_its_keys_and_defaults() -> None:
    assert section(format="npz", path="a.npz") == NpzData("a.npz")
    assert section(format="idx", path="a") == IdxData("a")
    assert section(format="text", path="a.txt") == TextData("a.txt")
    assert section(format="csv", path="a", text=3, label=1) == CsvData("a", 3, 1, "train.csv", "test.csv")
    assert section(format="huggingface", path="a/b") == HuggingFaceData("a/b", None, None, "label", "train", "test")
    assert section(format="huggingface", path="a", config="c", input="x", label="y", train="t", test="v") == (
        HuggingFaceData("a", "c", "x", "y", "t", "v")
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, r"my.toml: \[data\] format is missing: it must be one of csv, huggingface, idx, npz, text"),
        ({"format": "hdf5"}, r"\[data\] format must be one of csv, huggingface, idx, npz, text, got 'hdf5'"),
        ({"format": "npz"}, r"\[data\] path is missing: it must be text in quotes"),
        ({"format": "npz", "path": "a", "text": 3}, r"\[data\] 'text' is not a key: there are path"),
        ({"format": "idx", "path": 3}, r"\[data\] path must be text in quotes, got 3"),
        (
            {"format": "csv", "path": "a", "label": 1},
            r"text is missing: it must be text in quotes or a whole number",
        ),
        ({"format": "csv", "path": "a", "text": 0, "label": 1}, r"text must be .* from 1 to 1,000, got 0"),
        ({"format": "csv", "path": "a", "text": True, "label": 1}, "text must be .*, got True"),
        ({"format": "csv", "path": "a", "text": "t", "label": 1}, "label must be a column's name as text is, got 1"),
        (
            {"format": "csv", "path": "a", "text": 1, "label": "l"},
            "label must be a column's number as text is, got",
        ),
        ({"format": "csv", "path": "a", "text": 1, "label": 1}, "label must be another column than text, got 1"),
        (
            {"format": "csv", "path": "a", "text": 2, "label": 1, "test": "train.csv"},
            "test must be another file than train, got 'train.csv' for both",
        ),
        ({"format": "huggingface", "path": "a", "input": "label"}, "input must be another column than label"),
        ({"format": "huggingface", "path": "a", "test": "train"}, "test must be another split than train"),
        ({"format": "huggingface", "path": "a", "split": "x"}, "'split' is not a key: there are path, config"),
    ],
)
def test_a_wrong_table_names_file_key_and_what_is_allowed(values: dict, message: str) -> None:
    with one_line(message):
        section(**values)


# ------------------------------------------------------------------------------------------------------------------ npz

IMAGES = np.random.default_rng(0).integers(0, 256, (7, 4, 6, 3), dtype=np.uint8)
LABELS = np.array([2, 0, 1, 2, 1, 0, 2])


def write_npz(folder: Path, write: Callable[..., None] = np.savez, **changes: Any) -> Path:
    arrays = {"x_train": IMAGES[:5, ..., 0], "y_train": LABELS[:5], "x_test": IMAGES[5:, ..., 0], "y_test": LABELS[5:]}
    path = folder / "my.npz"
    write(path, **{name: array for name, array in (arrays | changes).items() if array is not None})
    return path


def read_images(values: Any, base: Path) -> RawImages:
    data = values.read(base)
    assert isinstance(data, RawImages)
    return data


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("channels", [None, 1, 3])
def test_npz_holds_images_of_any_shape(tmp_path: Path, write: Callable[..., None], channels: int | None) -> None:
    images = IMAGES[..., 0] if channels is None else IMAGES[..., :channels]
    write_npz(tmp_path, write, x_train=images[:5], x_test=images[5:])
    data = read_images(section(format="npz", path="my.npz"), tmp_path)
    expected = torch.from_numpy(images[..., 0] if channels == 1 else images)
    assert torch.equal(torch.cat([data.train.inputs, data.test.inputs]), expected)
    assert torch.equal(torch.cat([data.train.labels, data.test.labels]), torch.from_numpy(LABELS))
    assert data.train.labels.dtype == torch.int64
    assert data.classes == 3
    assert (data.identity.train_rows, data.identity.test_rows) == (5, 2)
    assert re.fullmatch("my, [0-9a-f]{12}", data.source)


def test_paths_are_relative_to_the_base_unless_absolute(tmp_path: Path) -> None:
    path = write_npz(tmp_path)
    below, anywhere = NpzData("my.npz").read(tmp_path), NpzData(str(path)).read(tmp_path / "elsewhere")
    assert below.identity == anywhere.identity


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", ">f8", "<f2"])
def test_floats_from_0_to_1_are_rounded_to_bytes(tmp_path: Path, dtype: str) -> None:
    write_npz(tmp_path, x_train=(IMAGES[:5, ..., 0] / 255).astype(dtype), x_test=np.full((2, 4, 6), 0.499 / 255))
    data = NpzData("my.npz").read(tmp_path)
    assert torch.equal(data.train.inputs, torch.from_numpy(IMAGES[:5, ..., 0]))
    assert not data.test.inputs.any()


@pytest.mark.parametrize("labels", [LABELS.astype(dtype) for dtype in ("i1", "u1", ">i2", ">u4", "<u8", ">i8")])
def test_labels_of_any_integer_type_and_order_of_bytes(tmp_path: Path, labels: np.ndarray) -> None:
    write_npz(tmp_path, y_train=labels[:5], y_test=labels[5:])
    assert NpzData("my.npz").read(tmp_path).train.labels.tolist() == LABELS[:5].tolist()


def test_columns_may_come_first(tmp_path: Path) -> None:
    write_npz(tmp_path, x_train=np.asfortranarray(IMAGES[:5]), x_test=np.asfortranarray(IMAGES[5:]))
    assert b"'fortran_order': True" in (tmp_path / "my.npz").read_bytes()
    data = NpzData("my.npz").read(tmp_path)
    assert torch.equal(data.train.inputs, torch.from_numpy(IMAGES[:5]))
    write_npz(tmp_path, x_train=IMAGES[:5], x_test=IMAGES[5:])
    assert NpzData("my.npz").read(tmp_path).identity == data.identity


OBJECTS = np.array([{"a": 1}] * 5, dtype=object)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_test": None}, r"my.npz: x_test is missing: an npz file must hold x_train, y_train, x_test, y_test"),
        ({"x_train": IMAGES[:5].astype(int)}, r"my.npz: x_train holds int64: images are .* uint8, or as floats from 0"),
        ({"x_train": IMAGES[:5] > 9}, r"x_train holds bool: images are"),
        ({"x_train": IMAGES[:5] / 16}, r"x_train holds [\d.]+: images are .* floats from 0 to 1"),
        ({"x_train": np.full((5, 4, 6), np.nan)}, r"x_train holds nan: images are"),
        ({"x_test": np.full((2, 4, 6), -0.1)}, r"x_test holds -0.1: images are"),
        ({"x_train": IMAGES[:5].astype(complex)}, r"x_train holds complex128: images are"),
        ({"x_train": OBJECTS}, r"x_train holds Python objects, which are not read: images are"),
        ({"x_train": np.zeros(5, dtype="u1,u1")}, r"x_train holds void16: images are"),
        ({"x_train": np.array(["a"] * 5)}, r"x_train holds str32: images are"),
        ({"x_train": IMAGES[:5, 0, :, 0]}, r"x_train has the shape \(5, 6\): images are \[n, h, w\] or \[n, h, w, c\]"),
        ({"x_train": IMAGES[:5, None]}, r"x_train has the shape \(5, 1, 4, 6, 3\): images are"),
        ({"x_train": IMAGES[:0], "y_train": LABELS[:0]}, r"x_train is empty: its shape is \(0, 4, 6, 3\)"),
        ({"y_test": LABELS[:0]}, r"y_test is empty: its shape is \(0,\)"),
        ({"x_train": IMAGES[:5, :0]}, r"x_train is empty: its shape is \(5, 0, 6, 3\)"),
        ({"x_test": IMAGES[5:, :, :5, 0]}, r"my.npz: x_test holds images 4×5, those of .*my.npz: x_train are 4×6"),
        ({"x_test": IMAGES[5:]}, r"x_test holds images 4×6×3, those of .* are 4×6"),
        ({"y_train": LABELS[:4]}, r"my.npz: y_train holds 4 labels for the 5 images of .*my.npz: x_train"),
        ({"y_train": LABELS[:5] / 2}, r"y_train holds float64: labels are whole numbers from 0 to 255"),
        ({"y_train": np.eye(5, dtype=int)}, r"y_train has the shape \(5, 5\): labels are .* in one dimension"),
        ({"y_train": LABELS[:5] - 1}, r"my.npz: y_train must hold labels from 0 to 255, got -1"),
        ({"y_train": LABELS[:5] * 128}, r"y_train must hold labels from 0 to 255, got 256"),
        ({"y_train": np.array(list("abcab"))}, r"y_train holds str32: labels are"),
        ({"y_test": np.array([0, 3])}, r"my.npz: y_test holds the class 3, which .*my.npz: y_train does not have"),
        ({"y_train": LABELS[:5] * 0, "y_test": LABELS[5:] * 0}, r"y_train holds only the class 0: a task has at least"),
    ],
)
def test_a_wrong_npz_names_file_and_array(tmp_path: Path, changes: dict, message: str) -> None:
    write_npz(tmp_path, **changes)
    with one_line(message):
        NpzData("my.npz").read(tmp_path)


def npy(header: str, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data


def plain(shape: object, descr: str = "|u1") -> str:
    return f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n"


def replace_member(path: Path, name: str, content: bytes, method: int = zipfile.ZIP_DEFLATED) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for member, before in members.items():
            archive.writestr(member, content if member == f"{name}.npy" else before)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy(plain((1 << 20, 1 << 20, 1 << 20))), r"x_train is damaged: its header promises 1,152,.* it holds 0"),
        (npy(plain((5, 4, 6)), bytes(119)), r"x_train is damaged: its header promises 120 bytes, it holds 119"),
        (npy(plain((5, 4, 6)), bytes(121)), r"x_train is damaged: its header promises 120 bytes, it holds 121"),
        (npy(plain("(-5, 4, 6)"), bytes(120)), r"x_train has the shape \(-5, 4, 6\): images are"),
        (npy(plain("(" + "9" * 5000 + ",)")), r"x_train is not a plain NumPy array: images are"),
        (npy(plain("(" + "9 " * 2000 + "x,)")), r"x_train is not a plain NumPy array"),
        (npy("{'descr': print(), 'fortran_order': False, 'shape': (1,), }"), r"x_train is not a plain NumPy array"),
        (npy(" " * 20_000), r"x_train is not a plain NumPy array"),
        (b"\x93NUMPY\x09\x00" + bytes(100), r"x_train is not a plain NumPy array"),
        (b"", r"x_train is not a plain NumPy array"),
        (b"\x80\x04}q\x00.", r"x_train is not a plain NumPy array"),
    ],
)
def test_a_false_header_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    replace_member(write_npz(tmp_path), "x_train", content)
    with one_line(f"my.npz: {message}"):
        NpzData("my.npz").read(tmp_path)


def test_an_array_that_ends_early_names_its_file(tmp_path: Path) -> None:
    path, whole = write_npz(tmp_path), npy(plain((5, 4, 6)), bytes(120))
    replace_member(path, "x_train", whole[:-20])
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"x_train.npy") - 46  # in the directory, which has the size 24 bytes after its beginning
    content[entry + 24 : entry + 28] = len(whole).to_bytes(4, "little")
    path.write_bytes(content)
    with one_line(r"my.npz: x_train is damaged: .*expected 120 bytes got 100"):
        NpzData("my.npz").read(tmp_path)


def test_a_small_file_that_unpacks_to_a_large_one_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zoo.tasks.formats.MAX_BYTES", 1 << 22)
    path = write_npz(tmp_path)
    replace_member(path, "x_train", npy(plain((4, 1 << 10, 1 << 10)), bytes(4 << 20)))
    assert path.stat().st_size < 1 << 13
    monkeypatch.setattr("zipfile.ZipFile.open", None)
    with one_line(r"my.npz: its arrays unpack to 4,19\d,\d\d\d bytes, at most 4,194,304 are read"):
        NpzData("my.npz").read(tmp_path)


def test_a_directory_with_false_sizes_is_refused_before_memory_is_allocated(tmp_path: Path) -> None:
    path = write_npz(tmp_path, np.savez_compressed)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        packed, unpacked = archive.getinfo("x_train.npy").compress_size, archive.getinfo("x_train.npy").file_size
    entry = whole.rindex(packed.to_bytes(4, "little") + unpacked.to_bytes(4, "little"))
    for sizes in ((packed, 1 << 29), (1 << 29, 1 << 29)):
        lie = b"".join(size.to_bytes(4, "little") for size in sizes)
        path.write_bytes(whole[:entry] + lie + whole[entry + 8 :])
        with one_line("my.npz: x_train is damaged: 536,870,912 bytes do not fit in it"):
            NpzData("my.npz").read(tmp_path)


def test_a_damaged_archive_is_one_line(tmp_path: Path) -> None:
    path = write_npz(tmp_path)
    sound = path.read_bytes()
    for content in (sound[:-30], sound[: len(sound) // 2], b"", b"PK\x03\x04", b"no zip at all"):
        path.write_bytes(content)
        with one_line("my.npz is damaged or not an npz file"):
            NpzData("my.npz").read(tmp_path)
    path.write_bytes(sound.replace(IMAGES[:5, ..., 0].tobytes(), bytes(120), 1))
    with one_line("is damaged or not an npz file: Bad CRC-32"):
        NpzData("my.npz").read(tmp_path)
    path.write_bytes(sound)
    replace_member(path, "x_train", b"", zipfile.ZIP_BZIP2)
    with one_line("x_train is packed by a method that NumPy does not use"):
        NpzData("my.npz").read(tmp_path)
    path.unlink()
    with one_line("my.npz is missing: npz data are one file with the arrays x_train, y_train", FileNotFoundError):
        NpzData("my.npz").read(tmp_path)


# ------------------------------------------------------------------------------------------------------------------ idx


def zipped(content: bytes) -> bytes:
    """Gzipped without the time of day, which would make a different test in each process."""
    return gzip.compress(content, mtime=0)


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes() + array.astype("u1").tobytes()


@pytest.fixture
def idx_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "fashion"
    folder.mkdir()
    (folder / "train-images-idx3-ubyte").write_bytes(idx(IMAGES[:5, ..., 0]))
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(zipped(idx(LABELS[:5])))
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(zipped(idx(IMAGES[5:, ..., 0])))
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(LABELS[5:]))
    return folder


def test_idx_and_npz_of_the_same_images_differ_only_in_name(tmp_path: Path, idx_folder: Path) -> None:
    write_npz(tmp_path)
    other, data = NpzData("my.npz").read(tmp_path), read_images(section(format="idx", path="fashion"), tmp_path)
    assert torch.equal(data.train.inputs, other.train.inputs)
    assert data.identity == other.identity
    assert data.classes == 3
    assert data.source == other.source.replace("my", "fashion")
    assert IdxData(".").read(idx_folder).source == data.source


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t10k-images-idx3-ubyte.gz", zipped(idx(IMAGES[5:, :, :5, 0])), "ubyte.gz holds images 4×5, those of"),
        ("t10k-labels-idx1-ubyte", idx(np.array([0, 9])), "t10k-labels-idx1-ubyte holds the class 9, which .*train"),
        ("t10k-labels-idx1-ubyte", idx(LABELS), "holds 7 labels for the 2 images of"),
        ("train-images-idx3-ubyte", idx(IMAGES[:0, ..., 0]), "train-labels.* holds 5 labels for the 0 images of"),
        ("train-images-idx3-ubyte", idx(IMAGES[:5]), "is not an IDX file of bytes in 3 dimensions"),
        ("t10k-images-idx3-ubyte.gz", zipped(idx(IMAGES[5:, ..., 0]) + b"x"), "promises 48 bytes .* holds more"),
        (
            "t10k-images-idx3-ubyte.gz",
            zipped(bytes([0, 0, 8, 3, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0])),
            "promises 16,777,216 bytes of data, it holds less",
        ),
        (
            "t10k-images-idx3-ubyte.gz",
            zipped(idx(IMAGES[5:, ..., 0])) + bytes(4096),
            "promises 48 bytes of data, it holds more",
        ),
    ],
)
def test_a_wrong_idx_file_is_named(idx_folder: Path, name: str, content: bytes, message: str) -> None:
    (idx_folder / name).write_bytes(content)
    with one_line(message):
        IdxData("fashion").read(idx_folder.parent)


def test_a_missing_idx_file_is_named(idx_folder: Path) -> None:
    (idx_folder / "t10k-labels-idx1-ubyte").unlink()
    with one_line(r"fashion/t10k-labels-idx1-ubyte\[.gz\] is missing: idx data are a folder with", FileNotFoundError):
        IdxData("fashion").read(idx_folder.parent)


# ------------------------------------------------------------------------------------------------------------------ csv


def write_csv(folder: Path, train: str, test: str, encoding: str = "utf-8") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "train.csv").write_text(train, encoding=encoding)
    (folder / "test.csv").write_text(test, encoding=encoding)
    return folder


def test_csv_by_numbers_of_columns_has_no_header(tmp_path: Path) -> None:
    write_csv(tmp_path / "news", '"10","t","ten, ""or"" so"\n\n"9","t",""\n', '9,t,"a\nb"\n')
    data = section(format="csv", path="news", text=3, label=1).read(tmp_path)
    assert isinstance(data, RawTexts)
    assert (list(data.train.texts), list(data.train.labels)) == (['ten, "or" so', ""], [1, 0])
    assert (list(data.test.texts), list(data.test.labels)) == (["a\nb"], [0])
    assert data.classes == 2
    assert re.fullmatch("news, [0-9a-f]{12}", data.source)


def test_csv_by_names_of_columns_has_a_header_in_any_order(tmp_path: Path) -> None:
    write_csv(tmp_path, "mood,body\ngood,a b\nbad,c\n", "body,mood\nd,bad\n", encoding="utf-8-sig")
    (tmp_path / "test.csv").rename(tmp_path / "dev.csv")
    data = CsvData(".", "body", "mood", test="dev.csv").read(tmp_path)
    assert (list(data.train.texts), list(data.train.labels)) == (["a b", "c"], [1, 0])
    assert (list(data.test.texts), list(data.test.labels)) == (["d"], [0])


def test_texts_become_ids_of_any_spec(tmp_path: Path) -> None:
    write_csv(tmp_path, "1,a b a\n2,c\n", "2,b\n")
    data = CsvData(".", 2, 1).read(tmp_path)
    spec = replace(TINY_AGNEWS, tokens=2)
    task = data.encode(WordEmbedding.from_vectors(("a", "b"), torch.ones(2, spec.dim)), spec)
    assert task.train.inputs.tolist() == [[2, 3], [1, 0]]
    assert (task.source, task.identity, task.spec) == (data.source, data.identity, spec)


@pytest.mark.long
def test_more_rows_or_tokens_than_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(tmp_path, "1,a\n2,c\n" * 35_000, "2,b\n")
    spec = replace(TINY_AGNEWS, tokens=4096)
    with one_line("70,001 texts of 4,096 tokens, at most 268,435,456 tokens are read"):
        CsvData(".", 2, 1).read(tmp_path).encode(WordEmbedding.from_vectors(("a",), torch.ones(1, spec.dim)), spec)
    monkeypatch.setattr("zoo.tasks.limits._MOST_EXAMPLES", 49_999)
    with one_line("train.csv holds 50,000 examples, at most 49,999 are read"):
        CsvData(".", 2, 1).read(tmp_path)
    with one_line("saved: train holds 50,000 examples, at most 49,999 are read"):
        saved(tmp_path, {"text": ["a"] * 50_000, "label": [0, 1] * 25_000}).read(tmp_path)


def test_classes_are_sorted_as_numbers_or_as_text() -> None:
    assert class_names(["10", "9", "-1", "9"], "") == ["-1", "9", "10"]
    assert class_names(["10", "9", "b"], "") == ["10", "9", "b"]
    assert class_names([10, 9, 9], "") == [9, 10]


@pytest.mark.parametrize(
    ("train", "test", "columns", "message"),
    [
        ("", "1,a\n", (2, 1), "train.csv is empty"),
        ("text,label\n", "text,label\na,1\n", ("text", "label"), "train.csv is empty: it has a header and no rows"),
        ("1,a\n2,b\n", "", (2, 1), "test.csv is empty"),
        ("1,a\n2,b\n", "1,a\n", (3, 1), "train.csv has no column 3: it has 2"),
        ("1,a\n2,b,c\n", "1,a\n", (2, 1), "train.csv is damaged: row 2 is not 2 columns, but 3"),
        ("1,a\n,b\n", "1,a\n", (2, 1), "train.csv has no label in row 2"),
        ("a,b\n1,2\n", "a,b\n1,2\n", ("text", "b"), "train.csv has no column 'text': its first line is 'a,b'"),
        ("a,a,b\n1,2,3\n", "a,b\n1,2\n", ("a", "b"), "train.csv has more than one column 'a': its first line"),
        ("1,a\n2,b\n", "1,a\n3,b\n", (2, 1), r"test.csv, column 1, row 2: '3' is none of the classes \['1', '2'\]"),
        ("1,a\n1,b\n", "1,a\n", (2, 1), "train.csv, column 1 holds only the class 0: a task has at least two"),
        ("".join(f"{n},a\n" for n in range(257)), "1,a\n", (2, 1), "train.csv, column 1 holds 257 different labels"),
        ('1,"' + "x" * (1 << 20) + 'x"\n', "1,a\n", (2, 1), "train.csv is damaged: field larger than field limit"),
    ],
)
def test_a_wrong_csv_names_file_and_row(tmp_path: Path, train: str, test: str, columns: tuple, message: str) -> None:
    write_csv(tmp_path, train, test)
    with one_line(message):
        CsvData(".", *columns).read(tmp_path)


def test_a_csv_that_is_not_text_or_not_there_is_one_line(tmp_path: Path) -> None:
    write_csv(tmp_path, "1,ä\n2,b\n", "1,a\n", encoding="latin-1")
    with one_line("train.csv is damaged: 'utf-8' codec can't decode"):
        CsvData(".", 2, 1).read(tmp_path)
    with one_line("nowhere/train.csv is missing: csv data are a folder", FileNotFoundError):
        CsvData("nowhere", 2, 1).read(tmp_path)


# ---------------------------------------------------------------------------------------------------------- huggingface


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))


def image(value: int, mode: str = "L", size: tuple[int, int] = (8, 6)) -> PIL.Image.Image:
    return PIL.Image.new(mode, size, value if mode in ("L", "P") else (value, value + 1, value + 2, 255)[: len(mode)])


def test_a_folder_of_images(tmp_path: Path) -> None:
    for split, count in (("train", 3), ("test", 1)):
        for label, name in enumerate(("cat", "dog")):
            (tmp_path / "pets" / split / name).mkdir(parents=True)
            for number in range(count):
                image(10 * label + number, "RGB").save(tmp_path / "pets" / split / name / f"{number}.png")
    data = read_images(section(format="huggingface", path="pets"), tmp_path)
    assert data.train.inputs.shape == (6, 6, 8, 3)
    assert data.train.inputs[:, 0, 0].tolist() == [[v, v + 1, v + 2] for v in (0, 1, 2, 10, 11, 12)]
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test.labels.tolist() == [0, 1]
    assert data.classes == 2
    assert re.fullmatch("pets, [0-9a-f]{12}", data.source)


def dataset(**splits: datasets.Dataset) -> datasets.DatasetDict:
    joined = datasets.DatasetDict()
    joined.update(splits)
    return joined


def saved(folder: Path, train: dict, test: dict | None = None, features: dict | None = None) -> HuggingFaceData:
    """A folder of ``save_to_disk``; the test split is like the training split unless it is given."""
    kinds = datasets.Features(features) if features else None
    rows = {"train": train, "test": train if test is None else test}
    splits = {name: datasets.Dataset.from_dict(columns, features=kinds) for name, columns in rows.items()}
    dataset(**splits).save_to_disk(str(folder / "saved"))
    return HuggingFaceData("saved")


@pytest.mark.parametrize(("mode", "shape"), [("L", (2, 6, 8)), ("RGB", (2, 6, 8, 3)), ("RGBA", (2, 6, 8, 3))])
def test_a_saved_folder_of_images_in_every_mode(tmp_path: Path, mode: str, shape: tuple[int, ...]) -> None:
    data = saved(tmp_path, {"picture": [image(3, mode), image(7, mode)], "note": ["a", "b"], "label": [4, 2]})
    read = read_images(data, tmp_path)
    assert read.train.inputs.shape == shape
    assert read.train.inputs.flatten(1)[:, 0].tolist() == [3, 7]
    assert read.train.labels.tolist() == [1, 0], "the classes are the labels that there are"


def test_a_saved_folder_of_texts_with_class_labels(tmp_path: Path) -> None:
    features = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "maybe", "yes"])}
    section = saved(tmp_path, {"text": ["a", "b"], "label": [2, 0]}, {"text": ["c"], "label": [2]}, features)
    data = section.read(tmp_path)
    assert isinstance(data, RawTexts)
    assert (list(data.train.texts), list(data.train.labels), list(data.test.labels)) == (["a", "b"], [2, 0], [2])
    assert data.classes == 3


def test_a_folder_of_csv_files_is_the_same_data_in_both_formats(tmp_path: Path) -> None:
    write_csv(tmp_path / "news", "body,mood,stars\na b,good,5\nc,bad,1\n", "body,mood,stars\nd,bad,1\n")
    for label in ("mood", "stars"):
        other = CsvData("news", "body", label).read(tmp_path)
        data = HuggingFaceData("news", input="body", label=label).read(tmp_path)
        assert data == other


TWO = {"text": ["a", "b"], "label": [0, 1]}
CLASSES = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}


@pytest.mark.parametrize(
    ("train", "test", "features", "changes", "message"),
    [
        (TWO, None, None, {"test": "validation"}, r"saved has no split 'validation': it has train, test"),
        (TWO, None, None, {"input": "image"}, r"saved: train has no column 'image': it has text, label"),
        (TWO, None, None, {"input": "text", "label": "y"}, r"saved: train has no column 'y': it has text, label"),
        (TWO, {"text": ["a"]}, None, {}, r"saved: test has no column 'label': it has text"),
        (TWO, {"text": ["a"], "label": ["0"]}, None, {}, r"test, column label is of another type than .*train, column"),
        (TWO, None, None, {"config": "main"}, r"saved was written by save_to_disk and has no config: .* got 'main'"),
        (TWO | {"more": ["a", "b"]}, None, None, {}, r"train has several columns to read, text, more: name one"),
        ({"label": [0, 1]}, None, None, {}, r"saved: train has no column of images or texts: it has"),
        ({"x": [1, 2], "label": [0, 1]}, None, None, {"input": "x"}, r"train, column x holds neither images nor texts"),
        ({"text": ["a", "b"], "label": [0.5, 1]}, None, None, {}, r"column label holds float64: labels are class"),
        ({"text": ["a", None], "label": [0, 1]}, None, None, {}, r"saved: train, column text, row 2 is empty"),
        ({"image": [image(0), None], "label": [0, 1]}, None, None, {}, r"saved: train, column image, row 2 is empty"),
        ({"text": ["a", "b"], "label": [0, None]}, None, None, {}, r"saved: train, column label, row 2 is empty"),
        (
            {"text": ["a", "b"], "label": [-1, 1]},
            None,
            CLASSES,
            {},
            r"label, row 1: -1 is none of the classes \[0, 1\]",
        ),
        ({"text": ["a", "b"], "label": [1, 1]}, None, None, {}, r"train, column label holds only the class 0: a task"),
        (TWO, {"text": ["a"], "label": [2]}, None, {}, r"test, column label, row 1: 2 is none of the classes \[0, 1\]"),
        (
            {"image": [image(0), image(1, size=(8, 8))], "label": [0, 1]},
            None,
            None,
            {},
            r"column image must hold images of one size and mode: row 2 is 8×8 gray, the first is 6×8 gray",
        ),
        ({"image": [image(0), image(1, "RGB")], "label": [0, 1]}, None, None, {}, r"row 2 is 6×8 RGB, the first is"),
        (
            {"image": [{"bytes": b"no image", "path": None}] * 2, "label": [0, 1]},
            None,
            {"image": datasets.Image(), "label": datasets.Value("int64")},
            {},
            r"train, column image, row 1 cannot be read: UnidentifiedImageError",
        ),
    ],
)
def test_wrong_rows_name_split_column_and_row(
    tmp_path: Path, train: dict, test: dict | None, features: dict | None, changes: dict, message: str
) -> None:
    section = saved(tmp_path, train, test, features)
    with one_line(message):
        replace(section, **changes).read(tmp_path)


def test_what_datasets_cannot_load_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    with one_line("datasets cannot load .*empty: "):
        HuggingFaceData("empty").read(tmp_path)
    datasets.Dataset.from_dict(TWO).save_to_disk(str(tmp_path / "rows"))
    with one_line("rows holds rows without splits: save a DatasetDict"):
        HuggingFaceData("rows").read(tmp_path)
    with one_line(r"nowhere is not a folder, and '\.\./nowhere' is not a name on the hub", FileNotFoundError):
        HuggingFaceData("../nowhere").read(tmp_path)

    def unreachable(name: str, config: str | None) -> None:
        raise ConnectionError(f"no answer for {name} {config}\nat all")

    monkeypatch.setattr("datasets.load_dataset_builder", unreachable)
    message = "'owner/name' from the hub: ConnectionError: no answer for owner/name small$"
    with one_line(message, FileNotFoundError):
        HuggingFaceData("owner/name", config="small").read(tmp_path)
    monkeypatch.chdir(tmp_path)
    with one_line("'rows' is not a folder beside the task file, but there is one in the working directory"):
        HuggingFaceData("rows").read(tmp_path / "elsewhere")


def put_on_hub(monkeypatch: pytest.MonkeyPatch, **splits: datasets.Dataset) -> None:
    builder = SimpleNamespace(
        name="csv",
        config=SimpleNamespace(data_files=None),
        download_and_prepare=lambda: None,
        as_dataset=lambda: dataset(**splits),
    )
    monkeypatch.setattr("datasets.load_dataset_builder", lambda *_: builder)


def test_an_empty_split_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = datasets.Dataset.from_dict(TWO)
    put_on_hub(monkeypatch, train=rows, test=rows.select([]))
    with one_line("owner/name: the split 'test' is empty"):
        HuggingFaceData("owner/name").read(tmp_path)


def test_a_name_on_the_hub_is_part_of_the_name_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = datasets.Dataset.from_dict(TWO)
    put_on_hub(monkeypatch, train=rows, test=rows)
    data = HuggingFaceData("owner/name", config="small").read(tmp_path)
    assert re.fullmatch("owner/name small, [0-9a-f]{12}", data.source)


@pytest.mark.parametrize("name", ["pandas", "csv", "parquet", "imagefolder", "csv/", "./csv", "a/b/c", "hf://a/b"])
def test_a_reader_of_datasets_is_not_a_name_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write_csv(tmp_path, "text,label\na,1\nb,2\n", "text,label\na,1\n")
    for split in ("train", "test"):
        (tmp_path / f"{split}.pkl").write_bytes(b"cos\nmkdir\n(S'unpickled'\ntR.")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.load_dataset_builder", None)
    monkeypatch.setattr("datasets.load_dataset", None)
    with one_line("is not a name on the hub such as OWNER/NAME", FileNotFoundError):
        HuggingFaceData(name).read(tmp_path / "elsewhere")
    assert not (tmp_path / "unpickled").exists()


def test_a_folder_named_like_a_reader_of_datasets_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(tmp_path / "csv", "text,label\nours,1\nb,2\n", "text,label\na,1\n")
    write_csv(tmp_path, "text,label\nnot ours,1\nb,2\n", "text,label\na,1\n")
    monkeypatch.chdir(tmp_path)
    data = HuggingFaceData("csv").read(Path())
    assert isinstance(data, RawTexts)
    assert list(data.train.texts) == ["ours", "b"]


def card(files: str) -> str:
    return f"---\nconfigs:\n- config_name: all\n  data_files:\n  - split: train\n    path: {files}\n---\n"


@pytest.mark.parametrize(
    "files", ["OUTSIDE/train.csv", "../train.csv", "hf://datasets/a/b/x.csv", "https://x.org/x.csv"]
)
@pytest.mark.usefixtures("no_network")
def test_a_readme_does_not_lead_outside_its_folder(tmp_path: Path, files: str) -> None:
    write_csv(tmp_path, "text,label\na,1\nb,2\n", "text,label\na,1\n")
    write_csv(tmp_path / "news", "text,label\na,1\nb,2\n", "text,label\na,1\n")
    (tmp_path / "news" / "README.md").write_text(card("'train.csv'"))
    with one_line("news has no split 'test': it has train"):
        HuggingFaceData("news").read(tmp_path)
    (tmp_path / "news" / "README.md").write_text(card(files.replace("OUTSIDE", str(tmp_path))))
    with one_line("datasets cannot load .*news: ValueError: its README.md leads outside it: "):
        HuggingFaceData("news").read(tmp_path)


def test_nothing_leads_outside_a_folder(tmp_path: Path) -> None:
    write_csv(tmp_path, "text,label\na,1\nb,2\n", "text,label\na,1\n")
    write_csv(tmp_path / "news", "text,label\na,1\nb,2\n", "text,label\na,1\n")
    (tmp_path / "news" / "test.csv").unlink()
    (tmp_path / "news" / "test.csv").symlink_to(tmp_path / "test.csv")
    with one_line("datasets cannot load .*news: ValueError: .*test.csv leads outside it"):
        HuggingFaceData("news").read(tmp_path)
    image(0).save(tmp_path / "secret.png")
    outside = {"bytes": None, "path": str(tmp_path / "secret.png")}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    rows = datasets.Dataset.from_dict({"image": [outside] * 2, "label": [0, 1]}, features)
    (tmp_path / "tables").mkdir()
    for split in ("train", "test"):
        parquet.write_table(rows.data.table, tmp_path / "tables" / f"{split}.parquet")
    with one_line("column image, row 1 cannot be read: ValueError: .*secret.png is not a file of this data set"):
        HuggingFaceData("tables").read(tmp_path)
    saved(tmp_path, TWO)
    (tmp_path / "saved" / "test").rename(tmp_path / "other")
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "../other"]}')
    with one_line("saved is damaged: the split '../other' has no table in it"):
        HuggingFaceData("saved").read(tmp_path)


def test_a_folder_of_files_that_unpack_to_any_size_is_refused(tmp_path: Path) -> None:
    folder = write_csv(tmp_path / "news", "text,label\na,1\nb,2\n", "text,label\na,1\n")
    for split in ("train", "test"):
        (folder / f"{split}.csv.gz").write_bytes(zipped((folder / f"{split}.csv").read_bytes()))
        (folder / f"{split}.csv").unlink()
    with one_line(r"csv.gz is packed: unpack it"):
        HuggingFaceData("news").read(tmp_path)
    (tmp_path / "notes").mkdir()
    for split in ("train", "test"):
        (tmp_path / "notes" / f"{split}.txt").write_text("a\nb\n")
    with one_line("it holds files for text, only those for parquet, arrow, csv, json, imagefolder are read"):
        HuggingFaceData("notes").read(tmp_path)


# ---------------------------------------------------------------------------------------------------------------- names


def test_data_are_named_by_their_content() -> None:
    mnist = KNOWN["mnist"]
    assert mnist.train_sha256 is not None
    whole = DataIdentity(60_000, 10_000, mnist.train_sha256, mnist.test_sha256)
    part = replace(whole, train_rows=1000, train_sha256="a" * 64)
    assert name_of("mine", whole) == "mnist"
    assert name_of("mine", part).startswith("mine, "), "a part of known data is other data than the whole"
    assert name_of("mine", replace(part, train_sha256="b" * 64)) != name_of("mine", part)
