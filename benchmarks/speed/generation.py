"""How fast zoo models train: one model at a time, beside populations of many models in one run.

python -m benchmarks.speed generation                          a whole epoch on a GPU, a few steps on a CPU
python -m benchmarks.speed generation --models 512 1024 --config mnist --device cuda
python -m benchmarks.speed generation --engines fused --variant small      the kernels of GPUs with less shared memory
python -m benchmarks.speed generation --engines fused --dim 64 --blocks 4  a transformer with other dimensions

A model-step is one training step of one model with a batch of 128. Populations mix the four optimizers and the five
dropout rates. Inputs are random: of them the time depends on nothing but the lengths of texts.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from benchmarks import results
from benchmarks.results import Result, Setting, describe_device
from benchmarks.speed.record import Record, say
from benchmarks.speed.timing import Timing, measure, seconds_of
from generation.data.batches import TrainingInputs, epoch_batches, train_subset
from generation.engines import make_engine
from generation.fused.variants import VARIANTS as FUSED_VARIANTS
from generation.fused.variants import variant_named
from generation.population.trainer import PopulationTrainer
from generation.protocol import Protocol, RunConfig
from generation.reference import make_model, make_optimizer, train_batches
from zoo.command import command, command_parser, duration, positive
from zoo.device import choose_device, fast_small_products
from zoo.format.record import SEED_POLICIES, SHARED_SEED
from zoo.format.schema import OPTIMIZERS
from zoo.tasks.embedding import WordEmbedding
from zoo.tasks.examples import Examples, TaskData
from zoo.tasks.identity import KNOWN
from zoo.transformer.dimensions import add_dimensions, chosen_dimensions, with_dimensions
from zoo.transformer.spec import SPECS, TransformerSpec

STEPS_OF_MNIST = 468
SINGLE_STEPS = 30
LEARNING_RATE = 1e-3
DROPOUTS = (0.2, 0.15, 0.1, 0.05, 0.0)
VARIANTS = {"torch": "population", "fused": "fused population"}
WITH_EVALUATION = "us_per_model_step_with_evaluation"


def described(dimensions: dict[str, int]) -> list[str]:
    """Such as ["dim 64", "blocks 4"]."""
    return [f"{name} {size}" for name, size in dimensions.items()]


@dataclass(frozen=True)
class Population:
    """Models that train together; ``steps`` is the number of training steps per epoch, ``seeds`` shared or distinct."""

    config: str
    engine: str
    models: int
    steps: int
    seeds: str
    fused_variant: str | None = None
    dimensions: dict[str, int] = field(default_factory=dict)  # other than the paper's

    @property
    def variant(self) -> str:
        """As its rows call it: fused population, small, dim 64, blocks 4."""
        return ", ".join([VARIANTS[self.engine], *filter(None, [self.fused_variant]), *described(self.dimensions)])

    @property
    def spec(self) -> TransformerSpec:
        return with_dimensions(SPECS[self.config], self.dimensions)

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
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, or auto: the GPU where there is one")
    parser.add_argument("--config", choices=list(SPECS), nargs="+", default=list(SPECS), help="tasks")
    parser.add_argument(
        "--models", type=positive, nargs="+", help="population sizes (default: 512 1024 on a GPU, 4 on a CPU)"
    )
    parser.add_argument(
        "--engines",
        choices=("fused", "torch"),
        nargs="+",
        help="what trains populations (default: both on a GPU, torch on a CPU)",
    )
    parser.add_argument(
        "--steps", type=positive, help="steps per epoch (default: on a GPU 468, a whole epoch of MNIST; on a CPU 3)"
    )
    parser.add_argument("--repeats", type=positive, default=3, help="epochs timed")
    parser.add_argument(
        "--seeds",
        choices=SEED_POLICIES,
        default=SHARED_SEED,
        help="shared: one seed for all models; distinct: a seed for each",
    )
    parser.add_argument(
        "--variant",
        choices=[variant.name for variant in FUSED_VARIANTS],
        help="the fused engine's variant (default: the best that fits this GPU)",
    )
    add_dimensions(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the rows without storing them")
    return parser.parse_args(arguments)


@command
def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    device = choose_device(options.device)
    on_gpu = device.type == "cuda"
    steps = options.steps or (STEPS_OF_MNIST if on_gpu else 3)
    record, dimensions = Record(options.dry_run), chosen_dimensions(options)
    for config in options.config:
        say(f"{config}: one model by itself")
        record.keep([measure_single(config, device, options.repeats, dimensions)])
        for engine in options.engines or (["fused", "torch"] if on_gpu else ["torch"]):
            for models in options.models or ([512, 1024] if on_gpu else [4]):
                variant = options.variant if engine == "fused" else None
                population = Population(config, engine, models, steps, options.seeds, variant, dimensions)
                say(announcement(population, device, options.repeats, results.read("speed.generation")))
                record.keep(measure_population(population, device, options.repeats))


def announcement(population: Population, device: torch.device, repeats: int, known: list[Result]) -> str:
    """What comes and, by the last row of its kind on such a device, how long it takes; compiling is not in the rows."""
    what = f"{population.config}: {population.models:,} models at once, {population.engine} engine"
    work = f"{repeats + 1} epochs of {population.steps} steps"
    kind = (population.config, population.variant, WITH_EVALUATION, describe_device(device))
    micros = [row.value for row in known if (row.config, row.variant, row.metric, row.device) == kind]
    seconds = micros[-1] * 1e-6 * population.models * population.steps * (repeats + 1) if micros else None
    time = f"about {duration(seconds)}" if seconds else "no row of this device says how long"
    compiling = device.type == "cuda" and population.engine == "torch"
    return f"{what}, {work}, {time}{', and a minute or two before that to compile' if compiling else ''}"


def fabricate(spec: TransformerSpec, train: int, test: int) -> TaskData:
    """Random examples of the right kind. The texts have 31 words on average, like the descriptions of AG News: 128 of
    them make 87 packs for the fused engine, 128 descriptions make 89."""
    generator = torch.Generator().manual_seed(0)

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


def measure_single(config: str, device: torch.device, repeats: int, dimensions: dict[str, int]) -> Result:
    """The slow twin: one model with the modules and optimizers of torch; only its training steps."""
    task = fabricate(with_dimensions(SPECS[config], dimensions), SINGLE_STEPS * Protocol().batch_size, 100).to(device)
    run = RunConfig(config, "adam", LEARNING_RATE, 1e-6, 0.1, 0.1, 1.0)
    model = make_model(task.spec, run, device)
    optimizer, inputs = make_optimizer(run, model), TrainingInputs.prepare(task)
    batches = epoch_batches(train_subset(len(task.train), 1.0), Protocol(), epoch=0).to(device)
    with fast_small_products():
        timing = measure(
            lambda: train_batches(model, optimizer, inputs, batches), device=device, repeats=repeats, warmup=1
        )
    variant = ", ".join(["single", *described(dimensions)])
    measured = Measured(config, variant, device, {"models": 1, "precision": "float32", **dimensions})
    return measured.row("us_per_model_step", timing, 1e6 / SINGLE_STEPS)


def measure_population(population: Population, device: torch.device, repeats: int) -> Iterator[Result]:
    """Times whole epochs with their evaluation and the evaluation alone; the difference is the training."""
    steps, all_tests = population.steps, KNOWN[population.config].test_rows
    tests = max(100, round(all_tests * min(1.0, steps / STEPS_OF_MNIST)))
    task = fabricate(population.spec, steps * Protocol().batch_size, tests)
    runs = population.runs()
    variant = None if population.fused_variant is None else variant_named(population.fused_variant)
    engine = make_engine(population.engine, runs, task, device, variant=variant)
    trainer = PopulationTrainer(engine)
    trainer.train_epoch()  # compiles

    def evaluate() -> None:
        engine.evaluate(trainer.state.weights, trainer.state.alive, trainer.task.test)

    setting: Setting = {
        "models": population.models,
        "precision": engine.precision,
        "steps": steps,
        "test_examples": tests,
        "seeds": population.seeds,
        **population.dimensions,
    }
    measured = Measured(population.config, population.variant, device, setting)
    model_steps = population.models * steps
    epochs = Timing(tuple(seconds_of(trainer.train_epoch, device) for _ in range(repeats)))
    yield measured.row(WITH_EVALUATION, epochs, 1e6 / model_steps)
    evaluations = Timing(tuple(seconds_of(evaluate, device) for _ in range(repeats)))
    yield measured.row("us_per_128_evaluated", evaluations, 1e6 * 128 / population.models / tests)
    training = Timing(tuple(epoch - evaluations.median for epoch in epochs.samples))
    yield measured.row("us_per_model_step", training, 1e6 / model_steps)


if __name__ == "__main__":
    main()
