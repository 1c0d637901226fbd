"""Names that would run a script, if a page took them for anything but text."""

import pandas as pd
import pytest

import zoo

HOSTILE = '</script><script>window.hacked=1</script><img src=x onerror="window.hacked=1">\'&\u2028é\u202e'


def make_hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reader finds hostile text in the columns that hold text, as those of a later format might."""

    def hostile(table: pd.DataFrame) -> pd.DataFrame:
        names = [name for name in ("run_id", "checkpoint", "optimizer", "status") if name in table]
        return table.assign(**{name: table[name].astype(str) + HOSTILE for name in names})

    columns = {name: getattr(zoo.ZooReader, name) for name in ("metadata", "runs")}
    for name, column in columns.items():
        changed = property(lambda reader, column=column: hostile(column.func(reader)))
        monkeypatch.setattr(zoo.ZooReader, name, changed)
