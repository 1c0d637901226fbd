"""One long text: its characters, its two parts, its windows, and one line for whatever is wrong with it."""

import gzip
from pathlib import Path

import pytest
import torch

import zoo
from generation.data import TrainingRows
from generation.run import main as run
from tests.refusal import refusal
from zoo.tasks.embedding import WordEmbedding
from zoo.tasks.examples import RawCharacters, TaskData
from zoo.tasks.formats import TextData
from zoo.tasks.identity import KNOWN
from zoo.tasks.paper_data import read_task, task_data
from zoo.tasks.task_file import TaskFile, find_task

SPEC = zoo.TransformerSpec("mine", 5, 4, dim=4, vocabulary=5, causal=True)
LINES = """
name = "mine"
[data]
format = "text"
path = "mine.txt"
[transformer]
tokens = 4
causal = true
[grid]
optimizer = "adam"
learning_rate = 1e-3
init_std = 0.1
"""


def read(folder: Path, content: str | bytes, name: str = "mine.txt") -> RawCharacters:
    data = content.encode() if isinstance(content, str) else content
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return TextData(name).read(folder)


@pytest.mark.parametrize("name", ["mine.txt", "mine.txt.gz"])
def test_characters_are_numbered_in_the_order_of_their_code_points(tmp_path: Path, name: str) -> None:
    text = "b\U0001f600a\u00e9\nb\r\nab\uffff" * 30
    raw = read(tmp_path, text, name)
    assert raw.characters == "\n\rab\u00e9\uffff\U0001f600" == "".join(sorted(set(text)))
    assert (raw.train, raw.test) == (text[:297], text[297:]), "the first 90 % of the characters, not of the bytes"
    task = raw.as_task(zoo.TransformerSpec("mine", 7, 8, dim=4, vocabulary=7, causal=True))
    for examples, part in ((task.train, raw.train), (task.test, raw.test)):
        assert (
            "".join(raw.characters[number] for number in examples.inputs.flatten().tolist())
            == part[: 8 * len(examples)]
        )
    assert task.characters == raw.characters
    assert raw.title == "mine"


@pytest.mark.parametrize("length", [50, 61, 109, 110, 113])
def test_the_last_character_of_a_window_is_the_first_of_the_next(tmp_path: Path, length: int) -> None:
    text = ("abcadbeabcde" * 10)[:length]
    task = read(tmp_path, text).as_task(SPEC)
    cut = length * 9 // 10
    for examples, part in ((task.train, text[:cut]), (task.test, text[cut:])):
        windows = [part[start : start + 5] for start in range(0, len(part), 4)]
        whole = [["abcde".index(character) for character in window] for window in windows if len(window) == 5]
        assert examples.inputs.tolist() == [window[:-1] for window in whole]
        assert examples.labels.tolist() == [window[1:] for window in whole]
        assert examples.labels.numel() >= len(part) - 4, "only a remainder shorter than a window is left out"
        assert examples.inputs[1:, 0].tolist() == examples.labels[:-1, -1].tolist()


@pytest.fixture(scope="module")
def shakespeare() -> TaskData:
    file = find_task("shakespeare")
    return task_data(file, read_task(file, None))


def test_shakespeare_comes_with_the_package(shakespeare: TaskData) -> None:
    assert shakespeare.spec == zoo.SHAKESPEARE
    assert (len(shakespeare.train), len(shakespeare.test)) == (15_685, 1_742)
    assert shakespeare.source == "shakespeare"
    assert shakespeare.identity is not None
    assert KNOWN["shakespeare"].is_complete(shakespeare.identity)
    text = gzip.decompress((Path(zoo.__file__).parent / "tasks/named/shakespeare.txt.gz").read_bytes()).decode()
    assert len(text) == 1_115_394
    assert shakespeare.characters is not None
    assert shakespeare.characters == "".join(sorted(set(text)))
    assert text.startswith("First Citizen:\nBefore we proceed any further")
    shown = "".join(shakespeare.characters[number] for number in shakespeare.test.inputs[0].tolist())
    assert shown == text[1_003_854:][:64]


def test_a_folder_may_hold_shakespeare_or_another_text(
    shakespeare: TaskData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, path = find_task("shakespeare"), tmp_path / "shakespeare/input.txt"
    with pytest.warns(UserWarning, match=r"has no shakespeare/input\.txt: the text is the one in this package"):
        assert task_data(file, read_task(file, tmp_path)).sha256 == shakespeare.sha256
    path.parent.mkdir()
    text = gzip.decompress((Path(zoo.__file__).parent / "tasks/named/shakespeare.txt.gz").read_bytes())
    path.write_bytes(text)
    same = task_data(file, read_task(file, tmp_path))
    assert (same.sha256, same.source) == (shakespeare.sha256, "shakespeare")
    path.write_text(300 * "to be or not to be ")
    other = task_data(file, read_task(file, tmp_path))
    assert other.source.startswith("other data than Shakespeare, ")
    assert other.characters == " benort"
    with pytest.raises(NotADirectoryError, match="nowhere is not a folder"):
        read_task(file, tmp_path / "nowhere")
    path.write_bytes(b"\xff")
    words = ["--task", "shakespeare", "--preset", "demo", "--shard", "0", "--out", str(tmp_path / "runs"), "--data"]
    assert "input.txt is not UTF-8 text: byte 1 is 0xff" in refusal(run, [*words, str(tmp_path)], capsys)


@pytest.mark.parametrize(("fraction", "windows"), [(1.0, 15_685), (0.5, 7842), (0.2, 3137), (0.05, 784)])
def test_every_part_of_shakespeare_has_490_steps(shakespeare: TaskData, fraction: float, windows: int) -> None:
    training, content = TrainingRows.of(shakespeare, fraction), find_task("shakespeare").content
    assert training.rows.tolist() == list(range(windows))
    assert training.per_epoch // content.protocol["batch_size"] == 490
    assert all(fraction in table["train_fraction"] for table in content.grid)


PLENTY = "".join(map(chr, [*range(65, 0xD800), *range(0xE000, 0xFFFF), *range(0x10000, 0x10000 + 12_000)]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"abc\xffdef", "mine.txt is not UTF-8 text: byte 4 is 0xff"),
        ("é".encode() * 500 + b"\xc3", "mine.txt is not UTF-8 text: byte 1,001 is 0xc3"),
        (b"\xed\xa0\x80 a surrogate", "mine.txt is not UTF-8 text: byte 1 is 0xed"),
        (b"", "mine.txt is empty"),
        (
            "ab" * 45 + "abzayb" + "ab" * 2,
            "mine.txt: character 93, 'z', is in the last tenth, the test text, and nowhere",
        ),
        (PLENTY + "A" * 9000, "mine.txt has 75,422 different characters, at most 65,536 are possible"),
        ("ab" * 15, "has 27 characters to train and 3 to test on: a window of 4 tokens takes 5 of each"),
    ],
)
def test_a_wrong_text_is_one_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        read(tmp_path, content).as_task(SPEC)
    assert "\n" not in str(refusal.value)
    assert "mine.txt" in str(refusal.value)


def test_exactly_as_many_characters_as_are_possible_are_read(tmp_path: Path) -> None:
    most = PLENTY[: 1 << 16]
    raw = read(tmp_path, most + most[-1:] * 8000)
    task = raw.as_task(zoo.TransformerSpec("mine", 1 << 16, 64, dim=4, vocabulary=1 << 16, causal=True))
    assert raw.characters == most
    assert task.train.inputs.flatten().tolist() == [*range(1 << 16), *[65_535] * 8000][: task.train.inputs.numel()]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda packed: packed[: len(packed) // 2], "is damaged: Compressed file ended before"),
        (lambda packed: b"abc" + packed, "is damaged: Not a gzipped file"),
        (lambda packed: packed[:40] + bytes([packed[40] ^ 0x10]) + packed[41:], "is damaged: "),
        (lambda packed: packed[:-8] + bytes(8), "is damaged: CRC check failed"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, damage, message: str) -> None:
    content = "".join(chr(97 + (i * i) % 23) for i in range(5000))
    (tmp_path / "mine.txt.gz").write_bytes(damage(gzip.compress(content.encode())))
    with pytest.raises(ValueError, match=f"mine.txt.gz {message}") as refusal:
        TextData("mine.txt.gz").read(tmp_path)
    assert "\n" not in str(refusal.value)


def test_what_is_missing_or_too_large_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"mine.txt is missing: text data are one file of UTF-8 text"):
        TextData("mine.txt").read(tmp_path)
    with pytest.raises(FileNotFoundError, match="is a folder: text data are one file"):
        TextData(".").read(tmp_path)
    with (tmp_path / "mine.txt").open("wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(ValueError, match="1,099,511,627,776 bytes, at most 268,435,456 are read"):
        TextData("mine.txt").read(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "causal = true",
            "",
            r"\[transformer\] causal must be true: the data are a text without labels, to be predicted",
        ),
        ("causal = true", "causal = false", r"\[transformer\] causal must be true"),
        ("causal = true", 'causal = true\nembedding = "random"', r"\[transformer\] embedding of characters is learned"),
        ("tokens = 4", "patch_size = 4", r"\[transformer\] patch_size is for images: the data are texts"),
    ],
)
def test_a_transformer_that_does_not_fit_a_text_is_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    raw = read(tmp_path, "abcde" * 20)
    with pytest.raises(ValueError, match=message):
        task_data(TaskFile.parse(LINES.replace(old, new), "my.toml", tmp_path), raw)
    assert task_data(TaskFile.parse(LINES, "my.toml", tmp_path), raw).spec.causal


def test_a_language_model_is_not_for_images_or_labeled_texts(tmp_path: Path) -> None:
    file = TaskFile.parse(LINES.replace("tokens = 4", ""), "my.toml", tmp_path)
    message = r"my.toml: \[transformer\] causal is for one long text \(format = \"text\"\): the data are {}"
    with pytest.raises(ValueError, match=message.format("images")):
        file.image_spec(8, 8, 1, 10)
    with pytest.raises(ValueError, match=message.format("labeled texts")):
        file.text_spec(4)


def test_learned_word_vectors_have_a_row_for_padding_and_for_unknown_words(tmp_path: Path) -> None:
    text = LINES.replace("causal = true", 'embedding = "learned"')
    file = TaskFile.parse(text, "my.toml", tmp_path)
    words = WordEmbedding.from_vectors(["a", "b", "c"], torch.randn(3, 32))
    spec = file.text_spec(4, len(words.table))
    assert (spec.vocabulary, spec.causal, spec.tokens) == (5, False, 4)
