"""The zoo that is committed beside the code: whole, by the paper's protocol, and a part of what was generated."""

from dataclasses import replace
from pathlib import Path

import pytest

import zoo
from generation.protocol import PRESETS
from generation.sweep import Draw, Sweep
from generation.task import named_task
from zoo.format.card import DEFAULT_CARD, _card_words, _render_card
from zoo.format.faults import _run_faults
from zoo.format.hyperparameters import CONFIGURATION
from zoo.format.manifest import Manifest
from zoo.format.published import RUNS_FILE, PublishedZoo
from zoo.format.record import task_of
from zoo.format.schema import PUBLISHED_RUN_SCHEMA
from zoo.format.shard import Shard
from zoo.format.table_file import read_table
from zoo.verify import _verify

ROOT = Path(__file__).parent.parent.parent
SAMPLE, GENERATED = ROOT / "small-transformer-zoo", ROOT / "benchmarks" / "results" / "generated"
GRID = GENERATED.parent / "grid"
STATUS = Path("/proc/self/status")
CONFIGS = ("agnews", "mnist", "mnist-seeds")


def runs_of(folder: Path, config: str) -> dict[str, dict]:
    table = read_table(folder / config / RUNS_FILE, PUBLISHED_RUN_SCHEMA)
    return {run["run_id"]: run for run in table.to_pylist()}


def shard_runs(config: Path) -> dict[str, dict]:
    shards = (Shard.read(folder) for folder in config.glob("shard-*"))
    return {run["run_id"]: run for shard in shards for run in shard.runs().to_pylist()}


def test_nothing_is_wrong_with_it():
    assert _verify(SAMPLE) == []


@pytest.mark.skipif(not STATUS.exists(), reason="the system does not report the memory of a process")
@pytest.mark.parametrize("shuffle", [False, True])
def test_reading_it_again_and_again_takes_no_more_memory(shuffle: bool):
    """Private memory: pages of mapped files belong to the cache of the system, which can take them back."""
    reader = zoo.open(SAMPLE, "mnist", split="train")
    megabytes = []
    for _ in range(10):
        for weights, _ in reader.batches(64, shuffle=shuffle):
            weights.flat().sum()
        private = next(line for line in STATUS.read_text().splitlines() if line.startswith("RssAnon:"))
        megabytes.append(int(private.split()[1]) / 1024)
    assert max(megabytes[2:]) - megabytes[1] < 0.2 * len(reader) * reader.spec.num_parameters * 4 / 2**20


def test_both_copies_of_its_card_are_rendered_from_its_manifest():
    template = DEFAULT_CARD.read_text(encoding="utf-8")
    card = _render_card(template, _card_words(Manifest.read(SAMPLE), SAMPLE.name, SAMPLE)).encode()
    assert (SAMPLE / "README.md").read_bytes() == card
    assert (ROOT / "DATASET_CARD.md").read_bytes() == card


@pytest.mark.parametrize("config", CONFIGS)
def test_it_has_320_runs_by_the_paper_s_protocol_and_all_checkpoints_of_twenty(config: str):
    details = PublishedZoo.read(SAMPLE).config(config)
    assert (details.preset, details.runs) == ("paper", {"completed": 320})
    assert details.spec == PublishedZoo.read(GENERATED).config(config).spec
    counts = zoo.open(SAMPLE, config, split="all").metadata["checkpoint"].value_counts()
    assert counts.to_dict() == {"epoch_75": 320} | dict.fromkeys(("epoch_50", "epoch_100", "best"), 20)


@pytest.mark.parametrize("config", CONFIGS)
def test_its_runs_are_the_draw_that_the_generator_makes(config: str):
    sweep = Sweep(
        named_task(task_of(config)), PRESETS["paper"], "distinct" if "seeds" in config else "shared", Draw(320)
    )
    drawn = {run.run_id: shard for shard in sweep.shards for run in sweep.shard(shard)}
    assert {name: run["shard"] for name, run in runs_of(SAMPLE, config).items()} == drawn


@pytest.mark.parametrize(
    ("config", "folder", "common"),
    [
        ("agnews", GENERATED, 39),
        ("mnist", GENERATED, 39),
        ("mnist-seeds", GENERATED, 31),
        ("agnews", GRID, 235),
        ("mnist", GRID, 39),
    ],
)
def test_a_run_that_was_also_trained_with_a_shard_of_the_grid_has_the_same_curves(
    config: str, folder: Path, common: int
):
    """Trained on another day, beside other runs, and some with a second shard on the same GPU."""
    sample = runs_of(SAMPLE, config)
    trained = shard_runs(folder / config) if folder == GRID else runs_of(folder, config)
    both = sample.keys() & trained.keys()
    assert len(both) == common
    own = {"shard": None, "wall_seconds": None}
    for name in both:
        assert sample[name] | own == trained[name] | own


def test_the_table_of_generated_runs_is_the_one_in_their_manifest():
    published = PublishedZoo.read(GENERATED)
    assert set(published.configs) == set(CONFIGS)
    for config in CONFIGS:
        published.manifest.check_file(GENERATED, f"{config}/{RUNS_FILE}")


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in GENERATED.glob(f"*/{RUNS_FILE}")))
def test_ids_seeds_and_best_epochs_of_the_generated_runs_follow_from_their_configurations(folder: str):
    """Of those too whose config is not in the manifest: a seed for each run of AG News, repeats, more shards."""
    task = task_of(folder.removesuffix("-shards-4-6"))
    record = PublishedZoo.read(SAMPLE).config(task)
    seeds = {"agnews-seeds": "distinct", "mnist-seeds": "distinct"}.get(folder, "shared")
    seeds = "16" if folder.endswith("-repeats") else seeds
    runs = read_table(GENERATED / folder / RUNS_FILE, PUBLISHED_RUN_SCHEMA)
    shards = sorted(set(runs.column("shard").to_pylist()))
    found = _run_faults(runs, runs.to_pandas(), replace(record, seeds=seeds), shards)
    faults = [line for faulty, line in found if faulty.any()]
    assert faults == []


def test_runs_with_a_seed_each_are_of_the_grid_and_share_none():
    distinct, shared = runs_of(GENERATED, "mnist-seeds"), runs_of(GENERATED, "mnist")
    names = list(CONFIGURATION)
    again, once = ({tuple(run[name] for name in names) for run in runs.values()} for runs in (distinct, shared))
    assert again < once
    assert len(again) == len(distinct)
    assert len({run["seed"] for run in distinct.values()}) == len(distinct)
    assert len({run["seed"] for run in shared.values()}) == 1


def test_the_bundled_repeats_of_language_models_have_the_curves_of_those_generated_in_another_shard():
    sample, generated = runs_of(SAMPLE, "shakespeare-repeats"), runs_of(GENERATED, "shakespeare-repeats")
    assert (len(sample), len(generated)) == (8 * 8, 64 * 16)
    for name, run in sample.items():
        assert run | {"shard": None, "wall_seconds": None} == generated[name] | {"shard": None, "wall_seconds": None}
