"""AG News: from its CSV files, else through ``datasets``; texts as words, then as ids of a frozen embedding."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from zoo.storage.cache import data_folder
from zoo.tasks.embedding import WordEmbedding
from zoo.tasks.examples import Examples, TaskData
from zoo.tasks.identity import DataIdentity, hash_texts, source_of
from zoo.transformer.spec import AGNEWS

HUB_NAME = "fancyzhx/ag_news"
FIELD_LIMIT = 1 << 20
MAX_CSV_BYTES = 64 << 20  # the training set has 29 MB


@dataclass(frozen=True)
class LabelledTexts:
    """Descriptions of news articles and their classes 0 … 3 (World, Sports, Business, Sci/Tech)."""

    texts: Sequence[str]
    labels: Sequence[int]


@dataclass(frozen=True)
class NewsTexts:
    """The two splits of AG News as text, and where they come from."""

    train: LabelledTexts
    test: LabelledTexts
    source: str

    def encode(self, embedding: WordEmbedding) -> TaskData:
        """The texts as word ids of this embedding, 64 a text."""
        train, test = (
            Examples(embedding.encode(split.texts, AGNEWS.tokens), torch.tensor(split.labels, dtype=torch.long))
            for split in (self.train, self.test)
        )
        return TaskData(AGNEWS, train, test, self.source, embedding, identify(self.train, self.test))


def load_news(folder: Path | None = None) -> NewsTexts:
    """AG News as text.

    With a folder, ``folder/ag_news/train.csv`` and ``test.csv`` or an error; the source is ``ag_news`` only if that is
    what they hold. With none, those files in the default folder, else a download through ``datasets``; the hub's copy
    joins title and description, and the source says so.
    """
    if folder is not None or (data_folder() / "ag_news" / "train.csv").is_file():
        folder = folder or data_folder()
        train, test = (read_csv(folder / "ag_news" / f"{split}.csv") for split in ("train", "test"))
        return NewsTexts(train, test, source_of(AGNEWS.task, identify(train, test)))
    return download_news()


def identify(train: LabelledTexts, test: LabelledTexts) -> DataIdentity:
    hashes = (hash_texts(split.texts, split.labels) for split in (train, test))
    return DataIdentity(len(train.texts), len(test.texts), *hashes)


def read_csv(path: Path) -> LabelledTexts:
    """One split in the standard three columns: class 1 … 4, title, description. The description is the text."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: AG News is train.csv and test.csv in their standard form (class, title, description); "
            f"without --data they are downloaded from the hub as {HUB_NAME}"
        )
    if (size := path.stat().st_size) > MAX_CSV_BYTES:
        raise ValueError(f"{path} is not AG News: {size:,} bytes, at most {MAX_CSV_BYTES:,} are read")
    texts, labels = [], []
    csv.field_size_limit(FIELD_LIMIT)
    with path.open(newline="", encoding="utf-8") as file:
        try:
            for number, row in enumerate(csv.reader(file), start=1):
                if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
                    raise ValueError(f'row {number} is not "class 1-4","title","description"')
                labels.append(int(row[0]) - 1)
                texts.append(row[2])
        except (csv.Error, UnicodeDecodeError, ValueError) as error:
            raise ValueError(f"{path} is damaged: {error}; delete it and fetch it again") from error
    if not texts:
        raise ValueError(f"{path} is empty; delete it and fetch it again")
    return LabelledTexts(texts, labels)


def download_news() -> NewsTexts:
    """AG News through ``datasets``."""
    from datasets import DatasetDict, load_dataset

    try:
        hub = load_dataset(HUB_NAME)
    # datasets and the hub client raise many types for one fact, that the hub did not answer
    except Exception as error:
        raise FileNotFoundError(
            f"AG News is not in {data_folder() / 'ag_news'} and {HUB_NAME} could not be downloaded "
            f"({type(error).__name__}): put train.csv and test.csv there, or name their parent folder with --data"
        ) from error
    assert isinstance(hub, DatasetDict)
    train, test = (LabelledTexts(hub[split]["text"], hub[split]["label"]) for split in ("train", "test"))
    return NewsTexts(train, test, source=f"{HUB_NAME}, title and description joined")
