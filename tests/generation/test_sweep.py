"""The paper's grid and its shards."""

import hashlib
from collections import Counter
from dataclasses import replace

import pytest

from generation.protocol import PRESETS
from generation.sweep import Draw, Sweep
from generation.task import named_task, whole
from zoo.format.recipe import seeds_by_policy
from zoo.reading.selection import Selection

MNIST = named_task("mnist")
PAPER = Sweep(MNIST, PRESETS["paper"])
SHARDS = 32
TRAIN_FRACTIONS = (1.0, 0.9, 0.8, 0.7)


def test_the_grid_is_the_papers() -> None:
    runs = list(whole(MNIST))
    assert len(runs) == len({run.run_id for run in runs}) == 16_000
    assert Counter(run.optimizer for run in runs) == dict.fromkeys(("sgd", "sgd_momentum", "adam", "rmsprop"), 4000)
    sgd = [run for run in runs if run.optimizer.startswith("sgd")]
    adaptive = [run for run in runs if not run.optimizer.startswith("sgd")]
    assert len(sgd) == len(adaptive) == 8000
    assert sorted({run.learning_rate for run in sgd}) == [1e-3, 3e-3, 5e-3, 7e-3, 1e-2, 3e-2, 5e-2, 7e-2]
    assert sorted({run.learning_rate for run in adaptive}) == [3e-4, 5e-4, 1e-3, 3e-3, 5e-3, 1e-2, 3e-2, 5e-2]
    assert sorted({run.init_std for run in sgd}) == [0.1, 0.15, 0.2, 0.25, 0.3]
    assert sorted({run.init_std for run in adaptive}) == [0.1, 0.2, 0.3, 0.4, 0.5]
    for some in (sgd, adaptive):
        assert sorted({run.dropout for run in some}) == [0.0, 0.05, 0.1, 0.15, 0.2]
        assert sorted({run.weight_decay for run in some}) == [1e-8, 1e-7, 1e-6, 1e-4, 1e-2]
        assert sorted({run.train_fraction for run in some}) == [0.7, 0.8, 0.9, 1.0]


@pytest.mark.long
def test_ids_of_the_papers_runs_never_change() -> None:
    ids = [run.run_id for task in ("mnist", "agnews") for run in whole(named_task(task))]
    assert len(set(ids)) == 32_000
    digest = hashlib.sha256("".join(ids).encode()).hexdigest()
    assert digest == "1f81d9020def0975e3fd34ed8d54578d455551aafec12ec0b1c5ee215bea856f"


@pytest.mark.long
def test_the_shards_are_the_grid_dealt_out_once() -> None:
    shards = [PAPER.shard(index) for index in range(SHARDS)]
    assert {len(shard) for shard in shards} == {500}
    assert {run.run_id for shard in shards for run in shard} == {run.run_id for run in whole(MNIST)}
    assert all(len({run.train_fraction for run in shard}) == 1 for shard in shards)


def test_the_first_shards_are_an_unbiased_sample() -> None:
    """Every value of every hyperparameter occurs in the first four shards about as often as in the grid."""
    sample = [run for index in range(4) for run in PAPER.shard(index)]
    everything = whole(MNIST)
    assert Counter(run.train_fraction for run in sample) == dict.fromkeys(TRAIN_FRACTIONS, 500)
    for name in ("optimizer", "learning_rate", "weight_decay", "init_std", "dropout"):
        expected = Counter(getattr(run, name) for run in everything)
        seen = Counter(getattr(run, name) for run in sample)
        for value, count in expected.items():
            share = count / len(everything)
            deviation = (len(sample) * share * (1 - share)) ** 0.5
            assert abs(seen[value] - len(sample) * share) < 4 * deviation, (name, value)


@pytest.mark.long
def test_the_permutation_never_changes() -> None:
    ids = "".join(run.run_id for index in range(SHARDS) for run in PAPER.shard(index))
    assert (
        hashlib.sha256(ids.encode()).hexdigest() == "b080bafbdab5ceead20184dabdf4d164a8d7b76c4a2d3d29baf660cd26d4fd36"
    )


def test_presets_take_the_same_runs_under_their_own_protocol() -> None:
    paper, lite, demo = (Sweep(named_task("agnews"), PRESETS[name]).shard(5) for name in ("paper", "lite", "demo"))
    assert (len(paper), len(lite), len(demo)) == (500, 500, 8)
    for run, shorter, shortest in zip(paper, lite, demo, strict=False):
        assert run.hyperparameters() == shorter.hyperparameters() == shortest.hyperparameters()
        assert len({run.run_id, shorter.run_id, shortest.run_id}) == 3
    assert (paper[0].protocol.epochs, lite[0].protocol.epochs, demo[0].protocol.epochs) == (100, 20, 6)


@pytest.mark.long
def test_seeds_are_one_or_each_its_own() -> None:
    shared = Sweep(named_task("mnist"), PRESETS["paper"])
    distinct = Sweep(named_task("mnist"), PRESETS["paper"], "distinct")
    assert (shared.config_name, distinct.config_name) == ("mnist", "mnist-seeds")
    assert {run.seed for run in shared.shard(0)} == {0}
    seeds = {run.seed for index in range(SHARDS) for run in distinct.shard(index)}
    assert len(seeds) == 16_000
    lite = Sweep(named_task("mnist"), PRESETS["lite"], "distinct").shard(0)
    assert [run.seed for run in lite] == [run.seed for run in distinct.shard(0)]


@pytest.mark.parametrize("index", [-1, 32, 999])
def test_a_shard_that_does_not_exist_is_refused(index: int) -> None:
    with pytest.raises(ValueError, match=f"shard {index} does not exist: this sweep has 32 shards, numbered 0 to 31"):
        PAPER.shard(index)


def sampled(count: int, seed: int = 0, preset: str = "paper") -> Sweep:
    return Sweep(named_task("mnist"), PRESETS[preset], draw=Draw(count, seed))


def test_a_sample_is_drawn_from_the_grid_and_cut_by_train_fraction() -> None:
    sweep = sampled(200, seed=1)
    assert MNIST.fractions == TRAIN_FRACTIONS
    assert sweep.shards == (2_002_000, 2_002_001, 2_002_002, 2_002_003)
    runs = [run for number in sweep.shards for run in sweep.shard(number)]
    everything = {run.run_id for run in whole(MNIST)}
    assert len(runs) == len({run.run_id for run in runs} & everything) == 200
    for number, fraction in zip(sweep.shards, TRAIN_FRACTIONS, strict=True):
        assert {run.train_fraction for run in sweep.shard(number)} == {fraction}


def test_a_sample_never_changes_and_grows_at_its_end() -> None:
    sweep = sampled(200, seed=1)
    ids = "".join(run.run_id for number in sweep.shards for run in sweep.shard(number))
    assert (
        hashlib.sha256(ids.encode()).hexdigest() == "c9d3c0e830798ff572378de0d75b34c9bf36df8def1c2d6297af03851ffa0937"
    )
    for small, large in zip(sweep.shards, sampled(300, seed=1).shards, strict=True):
        some = sweep.shard(small)
        assert sampled(300, seed=1).shard(large)[: len(some)] == some


def test_samples_are_unbiased() -> None:
    """Over many seeds, every value of every hyperparameter is drawn as often as it is in the grid."""
    sweeps = [sampled(100, seed) for seed in range(40)]
    drawn = [run for sweep in sweeps for number in sweep.shards for run in sweep.shard(number)]
    everything = whole(MNIST)
    assert len(drawn) == 4000
    for name in ("optimizer", "learning_rate", "weight_decay", "init_std", "dropout", "train_fraction"):
        seen = Counter(getattr(run, name) for run in drawn)
        for value, count in Counter(getattr(run, name) for run in everything).items():
            share = count / len(everything)
            deviation = (len(drawn) * share * (1 - share)) ** 0.5
            assert abs(seen[value] - len(drawn) * share) < 4 * deviation, (name, value)


def test_no_shard_of_a_sample_has_the_number_of_another() -> None:
    numbers = [n for count in (1, 99, 100, 16_000) for seed in (0, 1, 999) for n in sampled(count, seed).shards]
    assert len(numbers) == len(set(numbers))
    assert min(numbers) >= SHARDS
    assert max(numbers) < 2**31, "the column of shards is int32"


def test_a_sample_has_its_size_under_every_preset_and_only_shards_with_runs() -> None:
    demo = sampled(50, preset="demo")
    assert sum(len(demo.shard(number)) for number in demo.shards) == 50
    assert len(sampled(1).shards) == 1


@pytest.mark.parametrize(
    ("count", "seed", "fault"),
    [
        (0, 0, "count must be a whole number of at least 1, got 0"),
        (16_001, 0, "the grid has 16,000 configurations: a sample of 16,001 cannot be drawn"),
        (5, 1000, "seed must be a whole number from 0 to 999, got 1000"),
        (5, -1, "seed must be a whole number from 0 to 999, got -1"),
    ],
)
def test_an_impossible_sample_is_refused(count: int, seed: int, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        _ = sampled(count, seed).shards


def test_a_sample_can_be_drawn_from_a_part_of_the_grid() -> None:
    where = Selection.parse("learning_rate >= 0.01 and optimizer == 'adam'").expression
    part = Sweep(MNIST, PRESETS["paper"], draw=Draw(60, 0, where))
    runs = [run for number in part.shards for run in part.shard(number)]
    assert len(runs) == 60
    assert {run.optimizer for run in runs} == {"adam"}
    assert min(run.learning_rate for run in runs) == 0.01
    others = [Draw(60, 1, where), Draw(61, 0, where), Draw(60, 0, "learning_rate >= 0.03"), Draw(60)]
    assert all(sample.number(0) != Draw(60, 0, where).number(0) for sample in others)
    assert max(part.shards) < 2**31, "the column of shards is int32"
    with pytest.raises(ValueError, match=r"the part of the grid where .* has 1,500 configurations: a sample of 4,000"):
        _ = Sweep(MNIST, PRESETS["paper"], draw=Draw(4000, 0, where)).shards
    with pytest.raises(ValueError, match="no column 'epoch': there are optimizer"):
        _ = Sweep(MNIST, PRESETS["paper"], draw=Draw(4, 0, "epoch > 3")).shards


@pytest.mark.long
def test_repeats_are_runs_of_one_configuration_with_seeds_of_their_own() -> None:
    once, repeats = PAPER.shard(3), Sweep(named_task("mnist"), PRESETS["paper"], "16")
    assert repeats.config_name == "mnist-repeats"
    runs = repeats.shard(3)
    assert len(runs) == len({run.run_id for run in runs}) == 16 * len(once)
    for index, run in enumerate(once[:50]):
        group = runs[16 * index : 16 * (index + 1)]
        assert {replace(repeat, seed=0) for repeat in group} == {run}
        assert len({repeat.seed for repeat in group}) == 16
    few = Sweep(named_task("mnist"), PRESETS["lite"], "4").shard(3)
    assert [run.seed for run in few[:4]] == [run.seed for run in runs[:4]], "more repeats change none"
    assert [run.seed for run in runs[:2]] == [1209417631, 1384024547], "the seeds never change"


def test_seeds_that_collide_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.format.recipe._own_seed", lambda run, task, repeat: repeat // 2)
    assert seeds_by_policy("3", PAPER.shard(0)[0].hyperparameters(), "mnist") == [0, 1, 2]


@pytest.mark.long
def test_a_sample_can_be_repeated() -> None:
    sweep = Sweep(named_task("agnews"), PRESETS["demo"], "3", Draw(10))
    assert sweep.config_name == "agnews-repeats"
    assert sum(len(sweep.shard(number)) for number in sweep.shards) == 30


@pytest.mark.parametrize("seeds", ["1", "0", "-3", "016", "1001", "9" * 5000, "²", "1.5", "many", ""])
def test_seeds_that_make_no_sense_are_refused(seeds: str) -> None:
    with pytest.raises(ValueError, match="shared, distinct, or how often to train each configuration, 2 to 1000"):
        _ = Sweep(named_task("mnist"), PRESETS["demo"], seeds).config_name
