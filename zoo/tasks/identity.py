"""Which examples transformers were trained and measured on: how many, and a hash of their content.

MNIST, AG News and Shakespeare are recognized by these hashes, wherever their files come from. Only descriptions of AG
News are read, so only they and the classes are hashed.
"""

import hashlib
from dataclasses import dataclass

from zoo.checked import CountOrZero, Sha256

SHORT_HASH = 12


@dataclass(frozen=True)
class DataIdentity:
    """The examples of a task.

    ``train_rows`` is the number of training rows that ``train_fraction`` is a share of. ``train_sha256`` belongs to the
    training set they were drawn from, which is larger where a preset takes a part.
    """

    train_rows: CountOrZero
    test_rows: CountOrZero
    train_sha256: Sha256
    test_sha256: Sha256


@dataclass(frozen=True)
class _KnownData:
    """A data set whose content is known. ``train_sha256`` is None where we never held the whole training set."""

    title: str
    source: str
    train_rows: int
    test_rows: int
    train_sha256: str | None
    test_sha256: str

    def is_complete(self, data: DataIdentity) -> bool:
        """Whether transformers saw the whole training set and were measured on the whole test set."""
        return self.recognizes(data) and data.train_rows == self.train_rows

    def recognizes(self, data: DataIdentity) -> bool:
        """Whether the test set is this one, and the training set this one or a smaller one."""
        whole = data.train_rows >= self.train_rows and self.train_sha256 not in (None, data.train_sha256)
        return data.test_sha256 == self.test_sha256 and data.train_rows <= self.train_rows and not whole


KNOWN = {
    "mnist": _KnownData(
        "MNIST",
        "mnist",
        60_000,
        10_000,
        "0afc076648809c9cccb437285a18c5499c10f94016bccaaeb34d9576fb51506c",
        "b0f4375d4c54f964c3a5b23a15274a58a8f20a4745359f3280bed40c5b2f0cea",
    ),
    "agnews": _KnownData(
        "AG News",
        "ag_news",
        120_000,
        7_600,
        None,
        "09fd65f5dc90c7c742f35b54a4267a5c386d97aa9d1d251aab961b5bf239d0e7",
    ),
    "shakespeare": _KnownData(
        "Shakespeare",
        "shakespeare",
        15_685,
        1_742,
        "a9e24e23a1ec77744dad26844bfd5a09b6e041954e1eef0000e7f24cba6db735",
        "c54f3753a4e6e3c3d1759212815a7caf826e68a33021b25312984400bed40a1f",
    ),
}


def source_of(task: str, data: DataIdentity) -> str:
    """The name of the data: the known one, or one made from the hash, so that two data sets never share a name."""
    known = KNOWN[task]
    return known.source if known.recognizes(data) else _with_hash(f"other data than {known.title}", data)


def name_of(title: str, data: DataIdentity) -> str:
    """The name of data read by a task file: the known name if it is the whole of known data, else title and hash."""
    known = (known.source for known in KNOWN.values() if known.is_complete(data))
    return next(known, None) or _with_hash(title, data)


def _with_hash(title: str, data: DataIdentity) -> str:
    digest = hashlib.sha256(f"{data.train_sha256}{data.test_sha256}".encode()).hexdigest()
    return f"{title}, {digest[:SHORT_HASH]}"


def shortfall(task: str, source: str, data: DataIdentity | None) -> str | None:
    """How the data differ from the whole of the task's own, as the end of "was trained on"; None if they do not."""
    known = KNOWN.get(task)
    if known is None or data is None or known.is_complete(data):
        return None
    if known.recognizes(data):
        return f"{data.train_rows:,} of the {known.train_rows:,} training rows of {known.title}"
    return (
        f"{source} ({data.train_rows:,} training and {data.test_rows:,} test rows), not on the whole of {known.title}"
    )
