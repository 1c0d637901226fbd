"""A few models, one per optimizer, through all kernels of the tasks and of other shapes, for NVIDIA's sanitizer.

compute-sanitizer --error-exitcode 1 --tool memcheck --report-api-errors no python tests/generation/sanitized.py

The other tools are racecheck, synccheck and initcheck.
"""

from dataclasses import replace
from itertools import product

import torch
from small_tasks import few_digits, few_news, few_scans, few_windows

from generation.fused.compiled import CudaKernels
from generation.fused.engine import FusedEngine
from generation.fused.variants import _VARIANTS
from generation.population.engine import PopulationState
from generation.protocol import Protocol, RunConfig
from zoo.format.hyperparameters import OPTIMIZERS
from zoo.transformer.spec import AGNEWS, SHAKESPEARE, TransformerSpec

SQUARES = TransformerSpec("squares", classes=7, tokens=36, patch_size=4, blocks=1)
DEEP = TransformerSpec("deep", classes=5, tokens=12, dim=16, heads=3, hidden_dim=32, blocks=4)
WIDE = TransformerSpec("wide", classes=9, tokens=10, dim=64, heads=2, key_dim=32, value_dim=32, hidden_dim=128)


def main() -> None:
    texts = (few_news(64, 70, spec) for spec in (AGNEWS, DEEP, WIDE))
    added = few_news(64, 70, replace(AGNEWS, task="added", residual=True))
    tasks = few_digits(64, 70), few_scans(64, 70, SQUARES, 24, 24), *texts, added, few_windows(64, 70, SHAKESPEARE)
    for task, variant in product(tasks, _VARIANTS):
        if variant.use(task.spec) is None:
            continue
        protocol = Protocol(epochs=2, warmup_epochs=1, batch_size=32)
        runs = [
            RunConfig(
                task=task.spec.task,
                optimizer=name,
                learning_rate=1e-3,
                weight_decay=1e-4,
                init_std=0.2,
                dropout=0.2,
                protocol=protocol,
            )
            for name in OPTIMIZERS
        ]
        engine = FusedEngine(runs, task, CudaKernels(task.spec, torch.device("cuda"), variant))
        state = PopulationState.initial(task.spec, runs, engine.device)
        state.alive[-1] = False
        for _ in range(protocol.epochs):
            engine.train_and_test(state)
        for exact in (False, True):
            accuracy, loss = engine.evaluate(state.weights, state.alive, engine.task.test, exact=exact)
            torch.cuda.synchronize()
            print(task.spec.task, variant.name, accuracy.tolist(), loss.tolist())


if __name__ == "__main__":
    main()
