"""Word vectors: the same texts give the same bytes; given vectors are reduced by PCA."""

import gzip
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from generation.data import load_task_data, with_fewer_examples
from generation.run import main as run
from generation.word_vectors import _principal_components, _random_embedding, _reduce_vectors, _train_embedding
from tests.refusal import refusal
from zoo.format.shard import Shard
from zoo.publish import main as publish
from zoo.tasks.embedding import WordEmbedding
from zoo.tasks.task_file import find_task
from zoo.verify import main as verify

AGNEWS = find_task("agnews")
SCRIPT = """
import sys
from pathlib import Path
from generation.word_vectors import _train_embedding
_train_embedding(Path(sys.argv[1]).read_text().splitlines(), 32).save(Path(sys.argv[2]))
"""


def texts() -> list[str]:
    chooser = random.Random(0)
    words = [f"w{index}" for index in range(60)]
    return [" ".join(chooser.choices(words, weights=range(60, 0, -1), k=20)) for _ in range(200)]


@pytest.mark.long
def test_the_same_texts_give_the_same_bytes_whatever_the_hash_seed(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(texts()))
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-c", SCRIPT, str(corpus), str(tmp_path / hash_seed)]
        subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": hash_seed}, capture_output=True)
    for name in ("embedding.safetensors", "vocabulary.json"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


@pytest.mark.parametrize("dim", [32, 12])
def test_vectors_have_the_given_dimensions_and_frequent_words_come_first(dim: int) -> None:
    embedding = _train_embedding([*texts(), "rare"], dim)
    assert embedding.table.shape == (len(embedding.vocabulary) + 2, dim)
    assert embedding.table.dtype == torch.float32
    assert "rare" not in embedding.vocabulary
    counts = {word: sum(text.split().count(word) for text in texts()) for word in embedding.vocabulary}
    assert list(counts.values()) == sorted(counts.values(), reverse=True)


def test_too_little_text_is_refused() -> None:
    with pytest.raises(ValueError, match="no word occurs 5 times in the 2 texts"):
        _train_embedding(["one two", "three four"], 32)


def test_principal_components_explain_the_most_variance() -> None:
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(500, 6)) * np.array([5, 4, 3, 0.1, 0.1, 0.1]) + 7
    axes = _principal_components(vectors, 3)
    np.testing.assert_allclose(axes.T @ axes, np.eye(3), atol=1e-10)
    kept = ((vectors - vectors.mean(axis=0)) @ axes).var(axis=0)
    assert kept.sum() > 0.99 * vectors.var(axis=0).sum()
    assert list(kept) == sorted(kept, reverse=True)


def test_given_vectors_are_reduced_and_kept_for_the_words_of_the_texts(tmp_path: Path) -> None:
    words = [f"w{index}" for index in range(50)]
    vectors = np.random.default_rng(0).normal(size=(50, 40)).astype(np.float32)
    lines = [f"{word} {' '.join(map(repr, map(float, row)))}" for word, row in zip(words, vectors, strict=True)]
    file = tmp_path / "vectors.txt"
    file.write_text("50 40\n" + "\n".join(lines) + "\n")
    embedding = _reduce_vectors(str(file), ["w3 w4 unknown", "w3"], 32)
    assert embedding.vocabulary == ("w3", "w4")
    expected = (vectors[3:5] - vectors.mean(axis=0)) @ _principal_components(vectors, 32)
    np.testing.assert_allclose(embedding.table[2:].numpy(), expected, atol=1e-4)


def test_binary_vectors_are_recognized_by_their_content_not_their_name(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 35)).astype(np.float32)
    rows = b"".join(f"w{index} ".encode() + row.tobytes() + b"\n" for index, row in enumerate(vectors))
    file = tmp_path / "word2vec-google-news-300.gz"
    file.write_bytes(gzip.compress(b"40 35\n" + rows))
    embedding = _reduce_vectors(str(file), ["w7 w1"], 32)
    assert set(embedding.vocabulary) == {"w1", "w7"}


@pytest.mark.filterwarnings("ignore:the word vectors hardly differ")
def test_the_embedding_is_made_once_and_then_read(tmp_path: Path) -> None:
    data = tmp_path / "data" / "ag_news"
    data.mkdir(parents=True)
    rows = "".join(f'"{index % 4 + 1}","t","{text}"\n' for index, text in enumerate(texts()))
    for split in ("train", "test"):
        (data / f"{split}.csv").write_text(rows)
    made = load_task_data(AGNEWS, tmp_path / "data", embedding_folder=tmp_path / "out")
    read = load_task_data(AGNEWS, tmp_path / "data", embedding_folder=tmp_path / "out")
    read = with_fewer_examples(read, 50)
    assert made.embedding is not None
    assert read.embedding is not None
    assert made.embedding.sha256 == read.embedding.sha256 == WordEmbedding.load(tmp_path / "out").sha256
    assert (len(made.train), len(read.train), len(read.test)) == (200, 50, 200)
    assert read.source == f"{made.source}, 50 of 200 training examples"
    with pytest.raises(ValueError, match=r"are 'trained on other data .*', these would be 'other.bin, reduced by PCA'"):
        load_task_data(AGNEWS, tmp_path / "data", embedding_folder=tmp_path / "out", vectors="other.bin")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1000000000 300\nw1 0.5 0.5\n", "do not fit in it"),
        (b"many words\nw1 0.5 0.5\n", "not a word2vec file"),
        (b"", "not a word2vec file"),
        (b"1 32\nw1" + b" 0.5" * 1000, "a line of 506 numbers"),
        (b"1 32\nw1" + b"x" * 100_000, "a word without an end"),
        (b"2 32\nw1 " + bytes(128) + b"w2 " + bytes(100), "in the middle of a vector"),
        (b"1 8\nw1" + b" 0.5" * 8, "vectors of 8 dimensions cannot be reduced to 32"),
        (b"0 32\n", "it has no words"),
        (b"1 32\nw1 nan" + b" 0.5" * 31, "a number of the vector of 'w1' is not finite"),
        (b"1 32\nw1 inf" + b" 0.5" * 31, "a number of the vector of 'w1' is not finite"),
        (b"1 32\nw2" + b" 0.5" * 32, "none of its 1 words occurs in the 1 texts"),
    ],
)
def test_a_file_without_sound_vectors_of_these_words_is_refused_by_name(
    tmp_path: Path, content: bytes, message: str
) -> None:
    for name, data in (("v.txt", content), ("v.txt.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"{re.escape(str(tmp_path / name))}.*{message}"):
            _reduce_vectors(str(tmp_path / name), ["w1"], 32)


SENTENCES = """
name = "sentences"
[data]
format = "csv"
path = "."
text = "text"
label = "label"
train = "train.csv"
test = "test.csv"
[transformer]
tokens = 8
embedding = "word2vec"
[grid]
optimizer = "adam"
learning_rate = 1e-3
init_std = 0.1
[protocol]
epochs = 3
batch_size = 32
"""


def write_sentences(folder: Path, embedding: str, train: int = 600) -> Path:
    """Sentences whose class decides half of their words, and a task file about them."""
    chooser = random.Random(0)
    for split, count in (("train", train), ("test", 200)):
        rows = ["text,label"]
        for label in (index % 2 for index in range(count)):
            words = [chooser.choice([f"w{10 * label + chooser.randrange(10)}", f"v{index}"]) for index in range(8)]
            rows.append(f"{' '.join(words)},{label}")
        (folder / f"{split}.csv").write_text("\n".join(rows) + "\n")
    path = folder / f"{embedding}.toml"
    path.write_text(SENTENCES.replace("word2vec", embedding))
    return path


def test_a_random_vector_belongs_to_its_word_in_any_task_on_any_machine() -> None:
    embedding, other = _random_embedding([*texts(), "rare"], 32), _random_embedding(["w7 w7 w7 w7 w7"], 32)
    assert set(embedding.vocabulary) == set(_train_embedding([*texts(), "rare"], 32).vocabulary)
    assert torch.equal(other.table[2], embedding.table[embedding.ids["w7"]])
    assert other.table[2, :3].tolist() == [-1.7111637592315674, 1.1371251344680786, 1.7253334522247314]
    vectors = embedding.table[2:]
    assert vectors.mean() == pytest.approx(0, abs=0.1)
    assert vectors.var() == pytest.approx(1, abs=0.1)
    assert torch.corrcoef(vectors).fill_diagonal_(0).abs().mean() < 0.2


def test_vectors_that_hardly_differ_are_announced_with_the_way_out(tmp_path: Path) -> None:
    for count in (200, 600):
        task = find_task(write_sentences(tmp_path, "word2vec", count))
        for _ in ("trained", "read"):
            with pytest.warns(UserWarning, match=r'the word vectors hardly differ .* set embedding = "random"'):
                load_task_data(task, None, embedding_folder=tmp_path / str(count))
    load_task_data(find_task(write_sentences(tmp_path, "random")), None)
    load_task_data(find_task(write_sentences(tmp_path, "word2vec", 2500)), None)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the word vectors hardly differ")
def test_few_sentences_are_learned_with_random_vectors_and_the_zoo_carries_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    accuracy = {}
    for name in ("word2vec", "random"):
        path, out = write_sentences(tmp_path, name), tmp_path / f"{name}-runs"
        run(["--task", str(path), "--shard", "0", "--device", "cpu", "--out", str(out)])
        (runs,) = Shard.read(out / "sentences" / "shard-00000").runs().to_pylist()
        accuracy[name] = runs["test_accuracy"][-1]
    assert accuracy["word2vec"] < 0.6
    assert accuracy["random"] > 0.9
    publish([str(tmp_path / "random-runs"), str(tmp_path / "zoo")])
    verify([str(tmp_path / "zoo"), "--evaluate", "4", "--data", str(tmp_path)])
    assert "3 random rows per config measured again: all within 0.002" in capsys.readouterr().out
    arguments = ["--task", str(path), "--shard", "0", "--vectors", "google", "--out", str(tmp_path / "other")]
    assert 'has embedding = "random"; use one or the other' in refusal(run, arguments, capsys)
