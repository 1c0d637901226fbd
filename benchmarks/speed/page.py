"""How large the page of a zoo is, and how soon its first chart is there: the bundled sample, and 16,000 runs.

python -m benchmarks.speed page                     needs a browser: make browser
python -m benchmarks.speed page --runs 1000 --dry-run

The 16,000 runs are fabricated, with four checkpoints each. The time to the first chart is the browser's own, from the
moment it is told to open index.html on the disk; the time of a filter is from the click to the redrawn charts.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.browser import find_chromium, launched, show
from benchmarks.results import Result, Setting
from benchmarks.speed.record import Record, say
from benchmarks.speed.timing import Timing, measure
from zoo.command import command, command_parser, positive
from zoo.page.writing import PAGE_FILE, write_page
from zoo.publish import publish
from zoo.reading.locate import DEFAULT_NAME, find_folder
from zoo.reading.reader import open_zoo
from zoo.testing import TINY_MNIST, fabricate_shard

CONFIG = "mnist"
PACKAGES = ("vl-convert-python", "playwright")
FIRST_CHART = "performance.getEntriesByName('chart')[0].startTime"
AFTER_THE_CLICK = """(() => {
    const [{ startTime: clicked }] = performance.getEntriesByName("clicked");
    return performance.getEntriesByName("chart").map(chart => chart.startTime - clicked).filter(after => after > 0);
})()"""
CHARTS = 2  # that follow the filters


@command
def main(arguments: list[str] | None = None) -> None:
    parser = command_parser("benchmarks.speed page", __doc__)
    parser.add_argument("--runs", type=positive, default=16_000, help="runs of the fabricated zoo")
    parser.add_argument("--repeats", type=int, default=5, help="times that each page is opened")
    parser.add_argument("--dry-run", action="store_true", help="print the rows without storing them")
    options = parser.parse_args(arguments)
    if options.repeats < 2:
        raise ValueError(f"--repeats must be at least 2 to have a spread, got {options.repeats}")
    record = Record(options.dry_run)
    with launched() as browser, tempfile.TemporaryDirectory(prefix="page-") as folder:
        scratch = Path(folder)
        record.keep(measure_page(browser, find_folder(DEFAULT_NAME), "sample", scratch / "first", options.repeats))
        say(f"fabricating {options.runs:,} runs")
        fabricate_shard(scratch / "runs", TINY_MNIST, count=options.runs)
        publish(scratch / "runs", scratch / "zoo")
        record.keep(measure_page(browser, scratch / "zoo", "fabricated", scratch / "second", options.repeats))


def measure_page(browser: Any, zoo: Path, variant: str, site: Path, repeats: int) -> Iterator[Result]:
    """All rows of one page."""
    setting: Setting = {"runs": len(open_zoo(zoo, CONFIG, "all").runs), "chromium": Path(find_chromium() or "").name}
    writing = measure(lambda: write_page(zoo, site), repeats=1, warmup=0)
    sizes = {path.name: path.stat().st_size for path in site.rglob("*") if path.is_file()}
    yield row(variant, "page_megabytes", Timing((sizes[PAGE_FILE] / 1e6,)), setting)
    yield row(variant, "folder_megabytes", Timing((sum(sizes.values()) / 1e6,)), setting)
    yield row(variant, "write_seconds", writing, setting)
    opened = [open_and_filter(browser, site) for _ in range(repeats)]
    yield row(variant, "first_chart_seconds", Timing(tuple(first for first, _ in opened)), setting)
    yield row(variant, "filter_seconds", Timing(tuple(after for _, after in opened)), setting)


def open_and_filter(browser: Any, site: Path) -> tuple[float, float]:
    """Seconds until the first chart is there, and from a click on a filter until the charts have followed."""
    tab = browser.new_page()
    show(tab, site, f"#{CONFIG}/accuracies")
    first = tab.evaluate(FIRST_CHART)
    chip = tab.get_by_role("group", name="checkpoint").get_by_label("epoch_75")
    chip.evaluate("chip => chip.addEventListener('click', () => performance.mark('clicked'), {capture: true})")
    chip.check()
    while len(after := tab.evaluate(AFTER_THE_CLICK)) < CHARTS:
        tab.wait_for_timeout(20)
    tab.close()
    return first / 1000, max(after) / 1000


def row(variant: str, metric: str, timing: Timing, setting: Setting) -> Result:
    return Result.measured(
        "speed.page",
        CONFIG,
        metric,
        timing.median,
        stderr=timing.stderr,
        n=timing.n,
        device="cpu",
        variant=variant,
        setting=setting,
        packages=PACKAGES,
    )


if __name__ == "__main__":
    main()
