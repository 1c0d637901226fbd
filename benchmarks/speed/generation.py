"""How fast zoo models train: one model at a time, beside populations of many models in one run.

python -m benchmarks.speed generation                          a whole epoch on a GPU, a few steps on a CPU
python -m benchmarks.speed generation --models 512 1024 --config mnist --device cuda

A model-step is one training step of one model with a batch of 128. Populations mix the four optimizers and the five
dropout rates. Inputs are random: the time does not depend on them.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from rich.table import Table

from benchmarks import results
from benchmarks.data.benchmark_data import TEST_EXAMPLES
from benchmarks.results import Result, Setting
from benchmarks.speed.timing import Timing, measure, synchronize
from generation.data.batches import TrainingInputs, epoch_batches, train_subset
from generation.engines import make_engine
from generation.population.trainer import PopulationTrainer
from generation.protocol import Protocol, RunConfig
from generation.reference import make_model, make_optimizer, train_batches
from generation.sweep import DROPOUTS
from zoo.command import command, command_parser
from zoo.device import choose_device
from zoo.format.record import SEED_POLICIES, SHARED_SEED
from zoo.format.schema import OPTIMIZERS
from zoo.tasks import Examples, TaskData, WordEmbedding
from zoo.terminal import PlainConsole
from zoo.transformer.onednn import fast_small_products
from zoo.transformer.spec import SPECS

STEPS_OF_MNIST = 468
SINGLE_STEPS = 30
LEARNING_RATE = 1e-3
VARIANTS = {"torch": "population", "fused": "fused population"}


@dataclass(frozen=True)
class Population:
    """Models that train together; ``steps`` is the number of training steps per epoch, ``seeds`` shared or distinct."""

    config: str
    engine: str
    models: int
    steps: int
    seeds: str

    def runs(self) -> list[RunConfig]:
        """All optimizers and dropout rates in turn."""
        return [
            RunConfig(
                task=self.config,
                optimizer=OPTIMIZERS[index % len(OPTIMIZERS)],
                learning_rate=LEARNING_RATE,
                weight_decay=1e-6,
                init_std=0.1,
                dropout=DROPOUTS[index % len(DROPOUTS)],
                train_fraction=1.0,
                seed=0 if self.seeds == "shared" else index,
            )
            for index in range(self.models)
        ]


@dataclass(frozen=True)
class Measured:
    """What was timed: the fields that all its rows share."""

    config: str
    variant: str
    device: torch.device
    setting: Setting

    def row(self, metric: str, timing: Timing, factor: float) -> Result:
        """The time multiplied by ``factor``."""
        return Result.measured(
            "speed.generation",
            self.config,
            metric,
            timing.median * factor,
            stderr=None if timing.stderr is None else timing.stderr * factor,
            n=timing.n,
            device=self.device,
            variant=self.variant,
            setting=self.setting,
        )


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("benchmarks.speed generation", __doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--config", choices=list(SPECS), nargs="+", default=list(SPECS))
    parser.add_argument("--models", type=int, nargs="+", help="population sizes (512 1024 on a GPU, 4 on a CPU)")
    parser.add_argument("--engines", choices=("fused", "torch"), nargs="+", help="both on a GPU, torch on a CPU")
    parser.add_argument("--steps", type=int, help="steps per epoch (on a GPU 468, a whole epoch of MNIST; on a CPU 3)")
    parser.add_argument("--repeats", type=int, default=3, help="epochs timed (3)")
    parser.add_argument("--seeds", choices=SEED_POLICIES, default=SHARED_SEED, help="default: %(default)s")
    parser.add_argument("--dry-run", action="store_true", help="print the rows without storing them")
    return parser.parse_args(arguments)


@command
def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    device = choose_device(options.device)
    on_gpu = device.type == "cuda"
    steps = options.steps or (STEPS_OF_MNIST if on_gpu else 3)
    rows: list[Result] = []

    def keep(measured: Sequence[Result]) -> None:
        """Stores the rows at once, since the next measurement may take minutes."""
        rows.extend(measured)
        if not options.dry_run:
            results.append(measured)

    for config in options.config:
        keep([measure_single(config, device, options.repeats)])
        for engine in options.engines or (["fused", "torch"] if on_gpu else ["torch"]):
            for models in options.models or ([512, 1024] if on_gpu else [4]):
                population = Population(config, engine, models, steps, options.seeds)
                keep(measure_population(population, device, options.repeats))
    show(rows)


def fabricate(config: str, train: int, test: int) -> TaskData:
    """Random examples of the right kind; the texts have 31 words on average, like the descriptions of AG News."""
    spec, generator = SPECS[config], torch.Generator().manual_seed(0)

    def examples(count: int) -> Examples:
        labels = torch.randint(0, spec.classes, (count,), generator=generator)
        if spec.patch_size is not None:
            images = torch.randint(0, 256, (count, 28, 28), generator=generator, dtype=torch.uint8)
            return Examples(images, labels)
        ids = torch.randint(1, 1000, (count, spec.tokens), generator=generator, dtype=torch.int32)
        lengths = torch.randint(1, 62, (count, 1), generator=generator)
        return Examples(torch.where(torch.arange(spec.tokens) < lengths, ids, 0), labels)

    embedding = None
    if spec.patch_size is None:
        words = tuple(f"w{index}" for index in range(1000))
        embedding = WordEmbedding.from_vectors(words, torch.randn(1000, spec.dim, generator=generator))
    return TaskData(spec, examples(train), examples(test), "random", embedding)


def measure_single(config: str, device: torch.device, repeats: int) -> Result:
    """The slow twin: one model with the modules and optimizers of torch; only its training steps."""
    task = fabricate(config, SINGLE_STEPS * Protocol().batch_size, 100).to(device)
    run = RunConfig(config, "adam", LEARNING_RATE, 1e-6, 0.1, 0.1, 1.0)
    model = make_model(run, device)
    optimizer, inputs = make_optimizer(run, model), TrainingInputs.prepare(task)
    batches = epoch_batches(train_subset(len(task.train), 1.0), Protocol(), epoch=0).to(device)
    with fast_small_products():
        timing = measure(
            lambda: train_batches(model, optimizer, inputs, batches), device=device, repeats=repeats, warmup=1
        )
    measured = Measured(config, "single", device, {"models": 1, "precision": "float32"})
    return measured.row("us_per_model_step", timing, 1e6 / SINGLE_STEPS)


def measure_population(population: Population, device: torch.device, repeats: int) -> list[Result]:
    """Times whole epochs with their evaluation and the evaluation alone; the difference is the training."""
    steps, all_tests = population.steps, TEST_EXAMPLES[population.config]
    tests = max(100, round(all_tests * min(1.0, steps / STEPS_OF_MNIST)))
    task = fabricate(population.config, steps * Protocol().batch_size, tests)
    runs = population.runs()
    engine = make_engine(population.engine, runs, task, device)
    trainer = PopulationTrainer(engine)
    trainer.train_epoch()  # compiles

    def evaluate() -> None:
        engine.evaluate(trainer.state.weights, trainer.state.alive, trainer.task.test)

    epochs = Timing(tuple(seconds(trainer.train_epoch, device) for _ in range(repeats)))
    evaluations = Timing(tuple(seconds(evaluate, device) for _ in range(repeats)))
    training = Timing(tuple(epoch - evaluations.median for epoch in epochs.samples))
    setting: Setting = {
        "models": population.models,
        "precision": engine.precision,
        "steps": steps,
        "test_examples": tests,
        "seeds": population.seeds,
    }
    measured = Measured(population.config, VARIANTS[engine.name], device, setting)
    model_steps = population.models * steps
    return [
        measured.row("us_per_model_step", training, 1e6 / model_steps),
        measured.row("us_per_model_step_with_evaluation", epochs, 1e6 / model_steps),
        measured.row("us_per_128_evaluated", evaluations, 1e6 * 128 / population.models / tests),
    ]


def seconds(call: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - start


def show(rows: Sequence[Result]) -> None:
    table = Table(title="training zoo models, batch 128")
    for heading in ("config", "variant", "models", "precision", "metric", "µs", "± stderr"):
        table.add_column(heading)
    for row in rows:
        error = "" if row.stderr is None else f"{row.stderr:.2f}"
        setting = (str(row.setting["models"]), str(row.setting["precision"]))
        table.add_row(row.config, row.variant, *setting, row.metric, f"{row.value:.2f}", error)
    PlainConsole(width=140).print(table)


if __name__ == "__main__":
    main()
