"""How long a shard will take on a CPU, by a few steps of one of its models."""

import time
from dataclasses import replace

from generation.population.torch_engine import EVALUATION_BATCH, TorchEngine
from generation.population.trainer import PopulationTrainer

STEPS = 2
FEW_STEPS = 2_000  # model-steps of a training that is over in minutes: not worth a probe


def estimated_seconds(trainer: PopulationTrainer) -> float:
    """The whole training, from the first epoch on; 0 where it is short, or not torch on a CPU that trains.

    One model trains an epoch of two batches and is evaluated on one, in well under a second; the runs of a CPU train
    one after the other, so the rest is multiplication.
    """
    if trainer.device.type != "cpu" or not isinstance(trainer.engine, TorchEngine):
        return 0.0
    batch, task = trainer.protocol.batch_size, trainer.task
    steps = len(trainer.engine.subset) // batch
    if steps * len(trainer.configs) * trainer.protocol.epochs < FEW_STEPS:
        return 0.0
    run = replace(trainer.configs[0], train_fraction=1.0)
    tested = min(EVALUATION_BATCH, len(task.test))
    small = replace(task, train=task.train[slice(0, STEPS * batch)], test=task.test[slice(0, tested)])
    probe = PopulationTrainer(TorchEngine([run], small, precision=trainer.engine.precision))
    probe.engine.train_epoch(probe.state)  # warms up
    start = time.perf_counter()
    probe.engine.train_epoch(probe.state)
    trained = time.perf_counter()
    probe.engine.evaluate(probe.state.weights, probe.state.alive, small.test)
    per_example = (time.perf_counter() - trained) / tested
    per_epoch = (trained - start) / STEPS * steps + per_example * len(task.test)
    return per_epoch * len(trainer.configs) * trainer.protocol.epochs
