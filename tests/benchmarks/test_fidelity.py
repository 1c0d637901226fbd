"""Comparing the zoos of two engines: the measures, and a tiny comparison of torch with itself."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from benchmarks import results
from benchmarks.fidelity import _agreement, _compare
from benchmarks.tables import render_table
from generation.protocol import PRESETS, Protocol
from generation.sweep import Sweep
from generation.task import named_task
from zoo.tasks.examples import Examples, TaskData
from zoo.transformer.spec import MNIST


def test_the_measures_are_those_of_numpy_and_scipy() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.random(40), generator.random(40) ** 2
    kolmogorov_smirnov, _ = ks_2samp(first, second)
    agreement = _agreement(torch.from_numpy(first), torch.from_numpy(second))
    assert agreement["distribution_distance"] == pytest.approx(kolmogorov_smirnov)
    assert agreement["mean_distance"] == pytest.approx(np.abs(first - second).mean())
    assert agreement["mean_difference"] == pytest.approx((first - second).mean())


def test_an_engine_agrees_with_itself() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (32, 28, 28), dtype=torch.uint8, generator=generator)
    examples = Examples(images, torch.randint(0, 10, (32,), generator=generator))
    runs = Sweep(named_task("mnist"), PRESETS["paper"]).shard(0)[:2]
    configs = [replace(run, protocol=Protocol(1, 1, batch_size=16), train_fraction=1.0) for run in runs]
    rows = _compare(configs, TaskData(MNIST, examples, examples, "noise"), torch.device("cpu"), "torch")
    same = {row.metric: row.value for row in rows if row.variant == "torch and float32"}
    assert same == {"mean_difference": 0.0, "mean_distance": 0.0, "distribution_distance": 0.0}
    assert {row.variant for row in rows} >= {"torch and float32", "float32, two seeds"}
    assert {row.config for row in rows} == {"mnist"}


def test_the_table_keeps_tasks_and_settings_apart() -> None:
    rows = [row for row in results.read("fidelity") if row.config == "mnist"]
    earlier = [replace(row, value=0.5, setting=row.setting | {"epochs": 7}) for row in rows]
    other_task = [replace(row, config="agnews", value=0.25) for row in rows]
    text = render_table("fidelity", rows=[*earlier, *rows, *other_task])
    of_mnist = [line for line in text.splitlines() if line.startswith("| mnist")]
    assert render_table("fidelity", rows=rows).splitlines()[2:] == of_mnist
    assert text.count("| 0.2500 | 0.2500 | 0.2500 |") == 3
