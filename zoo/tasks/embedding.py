"""The frozen word embedding of AG News, on disk as safetensors and JSON."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from zoo.storage.atomic import write_atomically
from zoo.storage.untrusted import HeldFile, faults_named, parse_json

PADDING, _UNKNOWN = 0, 1
RESERVED = 2  # rows of the table that are not words: padding and unknown, both zero
EMBEDDING_FILES = VECTORS_FILE, VOCABULARY_FILE = "embedding.safetensors", "vocabulary.json"
_MAX_VECTORS_BYTES, _MAX_VOCABULARY_BYTES = 256 << 20, 16 << 20  # a million words have half of that


@dataclass(frozen=True, repr=False)
class WordEmbedding:
    """Word ``vocabulary[i]`` has id ``i + 2`` and vector ``table[i + 2]``; id 0 is padding, id 1 an unknown word.

    Vectors have no numbers where each transformer learns its own.
    """

    vocabulary: tuple[str, ...]
    table: Float[Tensor, "words D"]

    def __post_init__(self) -> None:
        if len(self.vocabulary) + RESERVED != len(self.table):
            raise ValueError(
                f"an embedding of {len(self.vocabulary):,} words needs {len(self.vocabulary) + RESERVED:,} rows "
                f"(padding, unknown, words), got {len(self.table):,}"
            )
        if bool(self.table[:RESERVED].any()):
            raise ValueError("rows 0 and 1 of an embedding, padding and unknown, must be zero")

    def __repr__(self) -> str:
        return f"<embedding of {len(self.vocabulary):,} words in {self.table.shape[1]} dimensions>"

    @classmethod
    def from_vectors(cls, vocabulary: Sequence[str], vectors: Float[Tensor, "words D"]) -> "WordEmbedding":
        """Puts the two zero rows in front of the words' vectors."""
        return cls(tuple(vocabulary), torch.cat([vectors.new_zeros(RESERVED, vectors.shape[1]), vectors]))

    @cached_property
    def ids(self) -> dict[str, int]:
        return {word: index + RESERVED for index, word in enumerate(self.vocabulary)}

    def encode(self, texts: Sequence[str], tokens: int) -> Int[Tensor, "n tokens"]:
        """Whitespace tokens as ids, cut or padded to ``tokens``; a text without a token counts as one unknown word."""
        rows = np.zeros((len(texts), tokens), dtype=np.int32)
        ids = self.ids
        for row, text in zip(rows, texts, strict=True):
            words = [ids.get(word, _UNKNOWN) for word in text.split(maxsplit=tokens)[:tokens]] or [_UNKNOWN]
            row[: len(words)] = words
        return torch.from_numpy(rows)

    def __call__(self, ids: Int[Tensor, "b t"]) -> tuple[Float[Tensor, "b t D"], Bool[Tensor, "b t"]]:
        """Word vectors and the mask that is True on real tokens: ``model(*embedding(ids))``."""
        return self.table[ids.long()], ids != PADDING

    def to(self, device: torch.device | str) -> "WordEmbedding":
        return type(self)(self.vocabulary, self.table.to(device))

    @cached_property
    def sha256(self) -> str:
        """Hash of words and vectors: two embeddings with the same hash give every text the same input."""
        digest = hashlib.sha256(json.dumps(self.vocabulary, ensure_ascii=False).encode())
        digest.update(self.table.cpu().numpy().astype("<f4").tobytes())
        return digest.hexdigest()

    def save(self, folder: Path) -> None:
        """Writes ``embedding.safetensors`` and ``vocabulary.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        vectors = safetensors.torch.save({"table": self.table.cpu().contiguous()}, metadata={"sha256": self.sha256})
        write_atomically(folder / VOCABULARY_FILE, json.dumps(self.vocabulary, ensure_ascii=False, indent=0).encode())
        write_atomically(folder / VECTORS_FILE, vectors)

    @classmethod
    def load(cls, folder: Path) -> "WordEmbedding":
        """Reads what ``save`` wrote and checks that vocabulary and vectors belong together."""
        for name in EMBEDDING_FILES:
            if not (folder / name).is_file():
                both = f"{VECTORS_FILE} and {VOCABULARY_FILE}"
                raise FileNotFoundError(f"{folder / name} is missing: the frozen embedding is two files, {both}")
        return cls.read(HeldFile(folder / VECTORS_FILE), HeldFile(folder / VOCABULARY_FILE))

    @classmethod
    def read(cls, vectors: HeldFile, words: HeldFile) -> "WordEmbedding":
        """Like ``load``, for files that are open already."""
        vectors.refuse_larger(_MAX_VECTORS_BYTES)
        with faults_named(f"the embedding in {vectors.path.parent} is damaged", safetensors.SafetensorError):
            vocabulary = parse_json(words.read(_MAX_VOCABULARY_BYTES), str(words.path))
            if not isinstance(vocabulary, list) or not all(isinstance(word, str) for word in vocabulary):
                raise ValueError(f"{words.path.name} must be a JSON list of words")
            with safetensors.safe_open(vectors.alias, framework="pt") as file:
                recorded = (file.metadata() or {}).get("sha256")
                # checked before the tensor is made, since torch cannot make one of every type a header may name
                header = file.get_slice("table")
                if header.get_dtype() != "F32" or len(header.get_shape()) != 2:
                    raise ValueError(f"its table is {header.get_dtype()} {header.get_shape()}, not F32 [words, D]")
                table = file.get_tensor("table")
            embedding = cls(tuple(vocabulary), table)
            sha256 = embedding.sha256  # a ValueError where a word is not Unicode
        if sha256 != recorded:
            raise ValueError(f"{words.path} and {vectors.path.name} do not belong together, or one of them is damaged")
        return embedding


def copy_embedding(task: str, source: Path, target: Path) -> list[str]:
    """Copies the two files of a task as they are; returns their names, which begin with the task's."""
    names = [f"{task}/{file}" for file in EMBEDDING_FILES]
    for name in names:
        write_atomically(target / name, (source / name).read_bytes())
    return names
