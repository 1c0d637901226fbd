"""What a job will take, before anything is trained, for ``generation.run --dry-run``; nothing is written.

The time is measured: the engine trains throwaway models for a few steps, on examples of the task's shape.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import ceil

import torch

from generation.data import TrainingRows, part_for, read_training_data
from generation.fused.variants import obstacle
from generation.job import Job
from generation.population.engine import checkpoint_labels
from generation.population.torch_engine import fitting_models
from generation.population.trainer import PopulationTrainer, make_engine
from generation.protocol import RunConfig
from generation.word_vectors import frozen_embedding
from zoo.command import duration, how_many
from zoo.device import choose_device, name_device
from zoo.reading.locate import data_folder
from zoo.tasks.embedding import RESERVED, WordEmbedding
from zoo.tasks.examples import Examples, RawTexts, TaskData
from zoo.tasks.identity import KNOWN
from zoo.tasks.paper_data import task_data
from zoo.transformer.spec import SPECS

_TIMED_STEPS, _TIMED_ROUNDS = {"cpu": 4, "cuda": 64}, 2
_ROW_BYTES, _RUN_BYTES, _EPOCH_BYTES = 150, 250, 12  # of a checkpoint without its weights, of a run, of its curves
_FOLDERS = {"mnist": "MNIST", "agnews": "ag_news"}
_BLANK = {"mnist": torch.ones(28, 28, dtype=torch.uint8), "agnews": torch.ones(64, dtype=torch.int32)}
"""An example of each of the paper's tasks."""


def estimate_seconds(job: Job, configs: Sequence[RunConfig], task: TaskData, steps: int) -> tuple[float, str]:
    """The time that training these runs takes, and the engine that trains them.

    This many steps are timed, and as small a share of the tests. A GPU trains all runs at once; the threads of a CPU
    train them in rounds, of which a few are timed.
    """
    device, protocol = choose_device(job.device), configs[0].protocol
    stacked = job.models_per_pass or fitting_models(device, task.spec, protocol.batch_size)
    at_once = len(configs) if device.type == "cuda" else torch.get_num_threads() * stacked
    timed = [replace(config, train_fraction=1.0) for config in configs[: _TIMED_ROUNDS * at_once]]
    rounds = ceil(len(configs) / at_once) / ceil(len(timed) / at_once)
    training = TrainingRows.of(task, configs[0].train_fraction)
    count = min(steps * protocol.batch_size, training.per_epoch)
    few = training.rows.repeat(ceil(count / max(1, len(training.rows))))[:count].to(task.train.labels.device)
    share = len(few) / max(1, training.per_epoch)
    part = replace(task, train=task.train[few], test=task.test[slice(ceil(share * len(task.test)))])
    trainer = PopulationTrainer(make_engine(job.engine, timed, part, device, job.models_per_pass))

    def seconds(work: Callable[[], object]) -> float:
        for _ in ("compile and warm up", "time it"):
            trainer.state.epoch = 0
            start = time.perf_counter()
            work()
            trainer.state.weights.cpu()  # waits for the device
        return time.perf_counter() - start

    total = protocol.epochs * seconds(trainer.train_epoch) + seconds(trainer.measure_checkpoints)
    return total * rounds / share, trainer.engine.name


def describe_work(job: Job, shards: Iterable[int]) -> str:
    """What it takes to train the missing runs of these shards, in a few lines."""
    missing = [configs for shard in shards if (configs := job.configs(shard)[job.held_runs(shard) :])]
    if not missing:
        return f"all runs are finished in {job.destination}: nothing to do"
    task, protocol, device = _shaped_data(job), job.sweep.preset.protocol, choose_device(job.device)
    kinds = {(len(configs), configs[0].train_fraction): configs for configs in missing}
    timed = _TIMED_STEPS[device.type]
    estimates = {kind: estimate_seconds(job, configs, task, timed) for kind, configs in kinds.items()}
    runs = steps = seconds = 0
    for configs in missing:
        fraction = configs[0].train_fraction
        runs += len(configs)
        steps += len(configs) * protocol.epochs * (TrainingRows.of(task, fraction).per_epoch // protocol.batch_size)
        seconds += estimates[len(configs), fraction][0]
    rows = len(checkpoint_labels(missing[0][0])) * (4 * task.spec.num_parameters + _ROW_BYTES)
    megabytes = runs * (rows + _RUN_BYTES + _EPOCH_BYTES * protocol.epochs) / 1e6
    engine = next(iter(estimates.values()))[1]
    problem = obstacle(task.spec, missing[0], device) if engine != "fused" else None
    return (
        f"{job.sweep.config_name}, preset {job.sweep.preset.name}: {how_many(runs, 'run')} to train in "
        f"{how_many(len(missing), 'shard')}, {protocol.epochs} epochs each, {steps:,} training steps in all\n"
        f"data: {task.source}, {len(task.train):,} training and {len(task.test):,} test examples\n"
        f"engine: {engine}{f'; the fused engine cannot train here: {problem}' if problem else ''}\n"
        f"time: about {duration(seconds)} on this machine ({name_device(device)}), by timing {timed} steps\n"
        f"size: about {megabytes:,.1f} MB in {job.destination}, less if runs diverge"
    )


def _shaped_data(job: Job) -> TaskData:
    """The job's data, with no words unless their vectors are learned and so are weights; blank examples for a paper's
    task whose data would be downloaded."""
    file, preset = job.sweep.task.file, job.sweep.preset
    sample = preset.name == "demo"
    at_hand = job.data is not None or not file.is_paper or (sample and file.name == "mnist")
    if at_hand or (data_folder() / _FOLDERS[file.name]).is_dir():
        raw = read_training_data(file, job.data, sample=sample)
        words = None
        if isinstance(raw, RawTexts):
            learned = file.content.transformer.embedding == "learned"
            none = _no_words(file.text_spec(raw.classes).dim)
            words = frozen_embedding(file, raw, None, job.vectors) if learned else none
        data = task_data(file, raw, words)
    else:
        known, spec, blank = KNOWN[file.name], SPECS[file.name], _BLANK[file.name]
        train, test = (
            Examples(blank.expand(rows, *blank.shape), torch.zeros(rows, dtype=torch.long))
            for rows in (known.train_rows, known.test_rows)
        )
        words = None if spec.patch_size else _no_words(spec.dim)
        data = TaskData(spec, train, test, f"{known.title}, which is not at hand: blank examples", words)
    return part_for(preset, data)


def _no_words(dim: int) -> WordEmbedding:
    return WordEmbedding((), torch.zeros(RESERVED, dim))
