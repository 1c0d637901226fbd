"""How fast zoo models and predictors train, each beside its slow twin, and what all speed benchmarks share: warm up,
synchronize, repeat; a row has the median and the spread."""

import gc
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from timeit import timeit
from typing import Any, TypeVar

import pandas as pd
import torch
from torch.nn import functional as F
from torch.utils.benchmark import timer

from benchmarks.data import Checkpoints
from benchmarks.models.registry import builder
from benchmarks.models.training import RECIPES, train_together
from benchmarks.options import EPOCHS
from benchmarks.results import Result, Scalar, Setting
from benchmarks.statistics import standard_error
from generation.data import TrainingInputs, TrainingRows, epoch_batches
from generation.fused.variants import misfits, variant_named
from generation.population.trainer import PopulationTrainer, make_engine
from generation.protocol import RunConfig
from generation.single import make_model, make_optimizer, train_batches
from generation.task import named_task
from nfn import PredictorEnsemble, TrainingStep, TransformerNFN
from nfn.predictors.gauge_nfn import SOURCES
from nfn.predictors.literal import literal_twin
from zoo import TransformerSpec, TransformerWeights
from zoo.command import duration, how_many
from zoo.device import choose_device, fast_small_products
from zoo.format.hyperparameters import OPTIMIZERS, SHARED_SEED, Optimizer
from zoo.tasks.embedding import WordEmbedding
from zoo.tasks.examples import Examples, TaskData
from zoo.tasks.identity import KNOWN
from zoo.terminal import say
from zoo.transformer.spec import PAPER_SPECS, SPECS

_STEPS_OF_MNIST, _SINGLE_STEPS = 468, 30
_DROPOUTS = (0.2, 0.15, 0.1, 0.05, 0.0)
_POPULATIONS = {"torch": "population", "fused": "fused population"}
_BATCHES, _SEEDS = (16, 256), 5
_READ, _TRAIN, _VALIDATION = 1000, 1400, 300
_Name = TypeVar("_Name")


def measure(
    calls: Mapping[_Name, Callable[[], object]], *, repeats: int, warmup: int = 3, calls_per_sample: int = 1
) -> dict[_Name, Sequence[float]]:
    """Seconds per call of each function. They take turns, so that a busy moment of the machine affects all of them.

    ``calls_per_sample`` calls share one synchronization, for work that a GPU queues. If the first samples show that the
    others will take more than some seconds, this is announced.
    """
    for call in calls.values():
        for _ in range(warmup):
            call()
    rounds: list[list[float]] = []
    for left in range(repeats - 1, -1, -1):
        # garbage is collected meanwhile, as in any training; torch's timer waits until a GPU has finished
        rounds.append([timeit(call, gc.enable, timer, calls_per_sample) / calls_per_sample for call in calls.values()])
        if len(rounds) == 1 and (expected := sum(rounds[0]) * calls_per_sample * left) > 5:
            say(f"  about {duration(expected)} more")
    return dict(zip(calls, zip(*rounds, strict=True), strict=True))


def speed_row(benchmark: str, config: str, variant: str, metric: str, samples: Sequence[float], **known: Any) -> Result:
    """A row of the median and its error; ``known`` are other arguments of ``Result.measured``."""
    values = {"device": torch.device("cpu"), "variant": variant, "n": len(samples), "stderr": standard_error(samples)}
    return Result.measured(f"speed.{benchmark}", config, metric, median(samples), **values | known)


def line_of(row: Result) -> str:
    """A row in the terminal: config, variant, metric, value ± standard error, and the setting."""

    def short(value: Scalar | list[Scalar]) -> str:
        if not isinstance(value, float):
            return str(value)
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"

    setting = ", ".join(f"{name} {short(value)}" for name, value in row.setting.items())
    value = short(row.value) + ("" if row.stderr is None else f" ± {short(row.stderr)}")
    return f"{row.config:8s} {row.variant or '':26s} {row.metric:34s} {value:20s} {row.device}: {setting}"


def generation(options: Any) -> Iterator[Result]:
    """How fast zoo models train: one model at a time, beside populations of many models in one run.

    A model-step is one training step of one model with a batch of 128. Populations mix the four optimizers and the five
    dropout rates. Inputs are random: the time does not depend on them, except on the lengths of texts.
    """
    device = choose_device(options.device)
    on_gpu = device.type == "cuda"
    if on_gpu and device.index:
        torch.cuda.set_device(device)  # which torch's timer waits for
    engines, counts, steps = (["fused", "torch"], [512, 1024], _STEPS_OF_MNIST) if on_gpu else (["torch"], [4], 3)
    for task in options.config:
        say(f"{task}: one model by itself")
        yield _single(task, device, options)
        possible = [name for name in engines if name != "fused" or not misfits(SPECS[task])]
        for engine, count in itertools.product(options.engines or possible, options.models or counts):
            yield from _population(task, engine, count, options.steps or steps, device, options)


def _single(config: str, device: torch.device, options: Any) -> Result:
    """The slow twin: one model with the modules and optimizers of torch; only its training steps."""
    run, spec = _run(config, "adam", 0.1), options.applied_to(SPECS[config])
    task = _random_task(spec, _SINGLE_STEPS * run.protocol.batch_size, 100).to(device)
    model = make_model(task.spec, run, device)
    optimizer, inputs = make_optimizer(run, model), TrainingInputs.prepare(task)
    batches = epoch_batches(TrainingRows.of(task, 1.0), run.protocol, epoch=0).to(device)
    with fast_small_products():
        epoch = partial(train_batches, model, optimizer, inputs, batches)
        seconds = measure({"epoch": epoch}, repeats=options.repeats, warmup=1)["epoch"]
    row = _rows_of("single", config, device, options, models=1, precision="float32")
    return row("us_per_model_step", [epoch * 1e6 / _SINGLE_STEPS for epoch in seconds])


def _population(
    config: str, engine_name: str, models: int, steps: int, device: torch.device, options: Any
) -> Iterator[Result]:
    """Times whole epochs, and training and evaluation alone: in an epoch the two may overlap."""
    kernels = options.variant if engine_name == "fused" else None
    epochs = f"{options.repeats + 1} epochs of {how_many(steps, 'step')}"
    say(f"{config}: {models:,} models at once, {engine_name} engine, {epochs}; the first compiles")
    tests = max(100, round(KNOWN[config].test_rows * min(1.0, steps / _STEPS_OF_MNIST)))
    kinds = zip(range(models), itertools.cycle(OPTIMIZERS), itertools.cycle(_DROPOUTS), strict=False)
    shared = options.seeds == SHARED_SEED
    runs = [_run(config, optimizer, dropout, 0 if shared else number) for number, optimizer, dropout in kinds]
    runs = [replace(run, protocol=run.protocol.lasting(max(run.protocol.epochs, options.repeats + 2))) for run in runs]
    spec = options.applied_to(SPECS[config])
    task = _random_task(spec, steps * runs[0].protocol.batch_size, tests)
    engine = make_engine(engine_name, runs, task, device, variant=kernels and variant_named(kernels))
    trainer = PopulationTrainer(engine)
    trainer.train_epoch()
    variant = ", ".join(filter(None, [_POPULATIONS[engine_name], kernels]))
    setting = {"models": models, "precision": engine.precision, "steps": steps, "test_examples": tests}
    row = _rows_of(variant, config, device, options, **setting, seeds=options.seeds)
    state = trainer.state
    for metric, call, units in (
        ("us_per_model_step_with_evaluation", trainer.train_epoch, steps),
        ("us_per_128_evaluated", partial(engine.evaluate, state.weights, state.alive, trainer.task.test), tests / 128),
        ("us_per_model_step", partial(engine.train_epoch, state), steps),
    ):
        samples = measure({metric: call}, repeats=options.repeats, warmup=0)[metric]
        yield row(metric, [seconds * 1e6 / models / units for seconds in samples])


def _rows_of(variant: str, config: str, device: torch.device, options: Any, **setting: Any) -> Callable[..., Result]:
    """Makes a row of a metric and its samples; a variant is "fused population, small, dim 64, blocks 4"."""
    sizes = options.chosen()
    name = ", ".join([variant, *(key if size is True else f"{key} {size}" for key, size in sizes.items())])
    return partial(speed_row, "generation", config, name, device=device, setting=setting | sizes)


def _run(config: str, optimizer: Optimizer, dropout: float, seed: int = 0) -> RunConfig:
    return RunConfig(
        task=config,
        optimizer=optimizer,
        learning_rate=1e-3,
        weight_decay=1e-6,
        init_std=0.1,
        dropout=dropout,
        train_fraction=1.0,
        seed=seed,
        protocol=named_task(config).protocol,
    )


def _random_task(spec: TransformerSpec, train: int, test: int) -> TaskData:
    """Random examples of the right kind. The texts have 31 words on average, like the descriptions of AG News: 128 of
    them make 87 packs for the fused engine, 128 descriptions make 89."""
    generator = torch.Generator().manual_seed(0)

    def examples(count: int) -> Examples:
        if spec.causal:
            windows = torch.randint(0, spec.classes, (count, spec.tokens + 1), generator=generator)
            return Examples(windows[:, :-1].int(), windows[:, 1:])
        labels = torch.randint(0, spec.classes, (count,), generator=generator)
        if spec.patch_size is not None:
            images = torch.randint(0, 256, (count, 28, 28), generator=generator, dtype=torch.uint8)
            return Examples(images, labels)
        ids = torch.randint(1, 1000, (count, spec.tokens), generator=generator, dtype=torch.int32)
        lengths = torch.randint(1, 62, (count, 1), generator=generator)
        return Examples(torch.where(torch.arange(spec.tokens) < lengths, ids, 0), labels)

    embedding = None
    if spec.patch_size is None and not spec.causal:
        words = tuple(f"w{index}" for index in range(1000))
        embedding = WordEmbedding.from_vectors(words, torch.randn(1000, spec.dim, generator=generator))
    return TaskData(spec, examples(train), examples(test), "random", embedding)


def nfn(options: Any) -> Iterator[Result]:
    """How fast Transformer-NFN trains, beside its literal twin, which computes the same thing term by term.

    Rows: the time of forward + backward, and of a full training step with Adam, for one predictor and for five seeds
    together. The step is the one that trains the predictors of the tables; the twin takes a plain step of torch.
    """
    for task, where in _cases(options, PAPER_SPECS):
        for batch in _BATCHES:
            yield from _steps(task, where, batch, options.repeats)


def _steps(config: str, device: torch.device, batch: int, repeats: int) -> Iterator[Result]:
    """All rows of one config, device and batch size. Calls of the same metric are compared, so they take turns."""
    rows = _random_checkpoints(PAPER_SPECS[config], batch, 0, device)

    def training_step(predictors: Sequence[TransformerNFN], graph: bool) -> TrainingStep:
        ensemble = PredictorEnsemble(predictors, device)
        step = TrainingStep(ensemble, rows.weights, rows.goodness, batch_size=batch, graph=graph)
        step.set_batches(torch.arange(batch))
        return step

    def predictor(seed: int) -> TransformerNFN:
        return TransformerNFN(rows.spec, channels=(10,), generator=torch.Generator().manual_seed(seed))

    graph = device.type == "cuda"
    predictors = [predictor(seed) for seed in range(_SEEDS)]
    literal, weights = literal_twin(predictor(0).to(device)), TransformerWeights.from_flat(rows.spec, rows.weights)
    optimizer = torch.optim.Adam(literal.parameters(), fused=True)

    @fast_small_products()
    def literal_gradients() -> None:
        """As usual in torch, so that the literal twin does not pay for what an ensemble needs."""
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(literal.logits(weights), rows.goodness).backward()

    def literal_step() -> None:
        literal_gradients()
        optimizer.step()

    # metric → variant, seeds and CUDA graph → call; "merged" are the grouped terms of the layers
    calls: dict[str, dict[tuple[str, int, bool], Callable[[], object]]] = {
        "forward_backward_ms": {
            ("merged", 1, False): training_step(predictors[:1], False).gradients,
            ("literal", 1, False): literal_gradients,
        },
        "training_step_ms": {
            ("merged", 1, graph): training_step(predictors[:1], graph),
            ("literal", 1, False): literal_step,
            ("merged", _SEEDS, graph): training_step(predictors, graph),
        },
    }
    if graph:
        calls["training_step_ms"]["merged", 1, False] = training_step(predictors[:1], False)
    for metric, compared in calls.items():
        say(f"{config}, {device}, batch {batch}: {metric}, {repeats} samples of {len(compared)} variants")
        # As in a training loop: a step follows the same step, not its twin, whose memory would fill the caches.
        times = measure(compared, repeats=repeats, calls_per_sample=10 if graph else 5)
        for (variant, seeds, as_graph), seconds in times.items():
            ms = [value * 1e3 for value in seconds]
            setting: Setting = {"batch": batch, "channels": [10], "seeds": seeds, "cuda_graph": as_graph}
            yield speed_row("nfn", config, variant, metric, ms, setting=setting, device=device)


def gauge(options: Any) -> Iterator[Result]:
    """How fast Gauge-NFN reads and learns: invariants and responses of 1,000 checkpoints, and one fit on 1,400 of them.

    The checkpoints are random. A fit is that of the tables, 50 epochs by Gauge-NFN's own recipe and 300 rows to choose
    the epoch by, once with all that is read to compute and once with that already in memory, as every later fit finds
    it.
    """
    for task, where in _cases(options, SPECS):
        yield from _fits(task, where, options.repeats)


def _fits(config: str, device: torch.device, repeats: int) -> Iterator[Result]:
    train = _random_checkpoints(SPECS[config], _TRAIN, 0, device)
    validation = _random_checkpoints(SPECS[config], _VALIDATION, 1, device)

    def read(source: str) -> None:
        SOURCES[source].features.clear()
        SOURCES[source].features(TransformerWeights.from_flat(train.spec, train.weights[:_READ]))

    def fit(first: bool) -> None:
        for source in SOURCES.values() if first else ():
            source.features.clear()
        build = builder("gauge_nfn", train.spec, None, None)
        train_together(build, (0,), train, validation, RECIPES["gauge"], EPOCHS)

    for metric, call, warmup in (
        *((f"{source}_of_1000_seconds", partial(read, source), 1) for source in SOURCES),
        ("first_fit_of_1400_seconds", partial(fit, True), 0),
        ("fit_of_1400_seconds", partial(fit, False), 0),
    ):
        seconds = measure({metric: call}, repeats=repeats, warmup=warmup)[metric]
        yield speed_row("nfn", config, "gauge_nfn", metric, seconds, device=device)


def _cases(options: Any, tasks: Iterable[str]) -> list[tuple[str, torch.device]]:
    """Every task on every device, or the ones that were chosen."""
    devices = [options.device] if options.device else ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    chosen = [options.config] if options.config else tasks
    return [(task, choose_device(each)) for task in chosen for each in devices]


def _random_checkpoints(spec: TransformerSpec, count: int, seed: int, device: torch.device) -> Checkpoints:
    """Random weights with random accuracies: how long a fit takes does not depend on what there is to learn."""
    generator = torch.Generator().manual_seed(seed)
    flat = torch.randn(count, spec.num_parameters, generator=generator) * 0.1
    accuracy = torch.rand(count, generator=generator).numpy()
    runs = [f"{seed}-{number}" for number in range(count)]
    return Checkpoints(spec, flat.to(device), pd.DataFrame({"run_id": runs, "goodness": accuracy}))
