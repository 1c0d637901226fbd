"""AG News: from its CSV files, else through ``datasets``."""

from dataclasses import replace
from pathlib import Path

from zoo.storage.cache import data_folder
from zoo.tasks.formats.checks import class_numbers
from zoo.tasks.formats.csv import read_columns
from zoo.tasks.formats.huggingface import HuggingFaceData
from zoo.tasks.identity import source_of
from zoo.tasks.raw_data import LabelledTexts, RawTexts, identify_texts
from zoo.transformer.spec import AGNEWS

HUB_NAME = "fancyzhx/ag_news"
CLASSES = ("1", "2", "3", "4")  # World, Sports, Business, Sci/Tech


def load_news(folder: Path | None = None) -> RawTexts:
    """AG News as text.

    With a folder, ``folder/ag_news/train.csv`` and ``test.csv`` or an error; the source is ``ag_news`` only if that is
    what they hold. With none, those files in the default folder, else a download through ``datasets``; the hub's copy
    joins title and description, and the source says so.
    """
    if folder is not None or (data_folder() / "ag_news" / "train.csv").is_file():
        folder = folder or data_folder()
        train, test = (read_news(folder / "ag_news" / f"{split}.csv") for split in ("train", "test"))
        identity = identify_texts(train, test)
        return RawTexts(train, test, source_of(AGNEWS.task, identity), identity, len(CLASSES))
    return download_news()


def read_news(path: Path) -> LabelledTexts:
    """One split in the standard three columns: class 1 … 4, title, description. The description is the text."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: AG News is train.csv and test.csv in their standard form (class, title, description); "
            f"without --data they are downloaded from the hub as {HUB_NAME}"
        )
    texts, labels = read_columns(path, text=3, label=1, width=3)
    return LabelledTexts(texts, class_numbers(labels, CLASSES, str(path)))


def download_news() -> RawTexts:
    """AG News through ``datasets``."""
    try:
        hub = HuggingFaceData(HUB_NAME, input="text").read(data_folder())
    except (ValueError, OSError) as error:
        raise FileNotFoundError(
            f"AG News is not in {data_folder() / 'ag_news'} and {HUB_NAME} could not be downloaded "
            f"({error}): put train.csv and test.csv there, or name their parent folder with --data"
        ) from error
    assert isinstance(hub, RawTexts)
    if hub.classes != len(CLASSES):
        raise ValueError(f"{HUB_NAME} is not AG News: {hub.classes} classes, not {len(CLASSES)}")
    return replace(hub, source=f"{HUB_NAME}, title and description joined")
