"""A task is a TOML file: what transformers are trained on, what they look like, over which grid, by which protocol.

The paper's two and Shakespeare's are in ``zoo/tasks/named``; they go by their names, any other by its path. ``zoo``
reads the name, ``[data]`` and ``[transformer]``; ``[grid]`` and ``[protocol]`` are for the generator
(``generation.task``).
"""

import hashlib
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from zoo.checked import Text, checked
from zoo.format.hyperparameters import CONFIGURATION
from zoo.storage.untrusted import faults_named, read_bounded
from zoo.tasks.formats import DataSection, data_section
from zoo.tasks.toml_text import parse_toml, toml_text
from zoo.transformer.spec import TransformerSpec

_PAPER_TASKS = ("mnist", "agnews")
NAMED_TASKS = (*_PAPER_TASKS, "shakespeare")
_NAMED_FOLDER = Path(__file__).parent / "named"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
_RESERVED = (*NAMED_TASKS, "predictors")
"""Reserved names: the named tasks, and the folder of fitted predictors beside a zoo."""
_RESERVED_ENDINGS = ("-seeds", "-repeats", "-runs")
"""Endings that turn the name of a task into the name of a config."""
_MAX_BYTES = 1 << 16
_PAPER_TOKENS, _PAPER_PATCH = 64, 4
_FOR_ONE_TEXT = 'is for one long text (format = "text"): the data are {}'
_FOR_IMAGES = "is for images: the data are texts; tokens says how many of them are read"
_Dimension = Annotated[int, Meta(ge=1, le=1 << 12)] | None


@dataclass(frozen=True)
class _Transformer:
    """``[transformer]``; a key that is left out is None here and has the paper's value."""

    patch_size: _Dimension = None
    tokens: _Dimension = None
    dim: _Dimension = None
    heads: _Dimension = None
    key_dim: _Dimension = None
    value_dim: _Dimension = None
    hidden_dim: _Dimension = None
    blocks: _Dimension = None
    residual: bool | None = None
    causal: bool | None = None
    embedding: Literal["word2vec", "random", "learned"] | None = None


@dataclass(frozen=True)
class _Content:
    """A whole task file."""

    name: Text
    data: dict[str, Any]
    grid: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    transformer: _Transformer = field(default_factory=_Transformer)
    protocol: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskFile:
    """A task file whose name, data and transformer were checked.

    ``text`` is the file without comments and in one way of writing, ``where`` its path for messages, and ``base`` the
    folder that the paths in it start from. ``fetch`` is whether data that it names on the hub may be downloaded.
    """

    name: str
    text: str
    where: str
    base: Path
    content: _Content = field(compare=False, repr=False)
    data: DataSection = field(compare=False, repr=False)
    fetch: bool = True

    @classmethod
    def read(cls, path: Path) -> "TaskFile":
        """Your own file; it cannot have the name of a named task."""
        if not path.is_file():
            raise FileNotFoundError(
                f"there is no task {str(path)!r}: {', '.join(NAMED_TASKS)}, or the path of a TOML file"
            )
        return cls.own(read_bounded(path, _MAX_BYTES), str(path), path.absolute().parent)

    @classmethod
    def own(cls, text: str | bytes, where: str, base: Path) -> "TaskFile":
        """The text of your own task file, from a file or a manifest."""
        task = cls.parse(text, where, base)
        if task.name in _RESERVED or task.name.endswith(_RESERVED_ENDINGS) or not _NAME.fullmatch(task.name):
            raise ValueError(
                f"{where}: name must be 1 to 48 small letters, digits, - and _, not {' or '.join(_RESERVED)}, and "
                f"not end in {', '.join(_RESERVED_ENDINGS)}; got {task.name[:80]!r}"
            )
        return task

    @classmethod
    def parse(cls, text: str | bytes, where: str, base: Path) -> "TaskFile":
        if len(text.encode() if isinstance(text, str) else text) > _MAX_BYTES:
            raise ValueError(f"{where} is not a task file: at most {_MAX_BYTES:,} bytes are read")
        raw = parse_toml(text, where)
        grid = [raw["grid"]] if isinstance(raw.get("grid"), dict) else raw.get("grid")
        # a single value of a grid as an array of one: both ways of writing it are one task
        for table in grid if isinstance(grid, list) else ():
            if isinstance(table, dict):
                table |= {key: [table[key]] for key in CONFIGURATION if not isinstance(table.get(key, []), list)}
        content = checked(raw | ({} if grid is None else {"grid": grid}), _Content, f"{where}: ")
        data = data_section(content.data, where)
        with faults_named(where):
            return cls(content.name, toml_text(raw), where, base, content, data)

    @classmethod
    def named(cls, name: str) -> "TaskFile":
        """One that lies in this package."""
        path = _NAMED_FOLDER / f"{name}.toml"
        return cls.parse(path.read_text(encoding="utf-8"), name, path.parent)

    @property
    def is_paper(self) -> bool:
        return self.name in _PAPER_TASKS

    @property
    def is_named(self) -> bool:
        return self.name in NAMED_TASKS

    @cached_property
    def sha256(self) -> str:
        """The hash of the text, which is part of the ids of runs."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def dimensions(self) -> dict[str, Any]:
        """The keys of ``[transformer]`` that are there but ``embedding``; the others have the paper's values."""
        given = vars(self.content.transformer).items()
        return {name: value for name, value in given if value is not None and name != "embedding"}

    def image_spec(self, height: int, width: int, channels: int, classes: int) -> TransformerSpec:
        """The transformer for images of this size, cut into square patches."""
        self._refuse(
            causal=_FOR_ONE_TEXT.format("images"),
            tokens="is for texts: the data are images, whose patches are the tokens",
            embedding="is for texts: the data are images, whose patches have no vectors",
        )
        given = dict(self.dimensions)
        patch = given.setdefault("patch_size", _PAPER_PATCH)
        if height % patch or width % patch:
            sizes = [str(size) for size in range(1, min(height, width) + 1) if height % size == width % size == 0]
            raise self._fault(
                "patch_size",
                f"must divide images of {height} × {width}, got {patch}: it can be {', '.join(sizes)}",
            )
        return self._spec(classes, tokens=(height // patch) * (width // patch), channels=channels, **given)

    def text_spec(self, classes: int, words: int | None = None) -> TransformerSpec:
        """The transformer for labeled texts: as word vectors, or as numbers of ``words`` whose vectors are learned."""
        self._refuse(causal=_FOR_ONE_TEXT.format("labeled texts"), patch_size=_FOR_IMAGES)
        vocabulary = {"vocabulary": words} if self.content.transformer.embedding == "learned" else {}
        return self._spec(classes, **{"tokens": _PAPER_TOKENS, **self.dimensions, **vocabulary})

    def language_spec(self, characters: int) -> TransformerSpec:
        """The transformer for one long text without labels, which predicts its next character."""
        if not self.dimensions.get("causal"):
            raise self._fault("causal", "must be true: the data are a text without labels, to be predicted")
        if self.content.transformer.embedding not in (None, "learned"):
            raise self._fault("embedding", "of characters is learned: leave it out")
        self._refuse(patch_size=_FOR_IMAGES)
        return self._spec(characters, **{"tokens": _PAPER_TOKENS, "vocabulary": characters, **self.dimensions})

    def _refuse(self, **problems: str) -> None:
        """Refuses keys of ``[transformer]`` that these data have no use for."""
        for key, problem in problems.items():
            if getattr(self.content.transformer, key):
                raise self._fault(key, problem)

    def _spec(self, classes: int, **dimensions: Any) -> TransformerSpec:
        if classes < 2:
            raise ValueError(f"{self.where}: [data] has {classes} class: a task needs at least 2")
        try:
            return TransformerSpec(self.name, classes, **dimensions)
        except ValueError as error:
            raise ValueError(f"{self.where}: [transformer] {error}") from error

    def _fault(self, key: str, problem: str) -> ValueError:
        return ValueError(f"{self.where}: [transformer] {key} {problem}")


def find_task(name: str | Path) -> TaskFile:
    """A named task, any other by the path of its file."""
    return TaskFile.named(str(name)) if str(name) in NAMED_TASKS else TaskFile.read(Path(name))
