"""How fast zoo models and predictors train, each beside its slow twin."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.data import Checkpoints
from benchmarks.models.registry import builder
from benchmarks.models.training import RECIPES, TrainingGroup, train_together
from benchmarks.options import EPOCHS
from benchmarks.results import Result, Setting
from benchmarks.speed.measurements import measure, say, speed_row
from generation.data import TrainingInputs, epoch_batches, train_subset
from generation.fused.variants import misfits, variant_named
from generation.population.trainer import PopulationTrainer, make_engine
from generation.protocol import RunConfig
from generation.single import make_model, make_optimizer, train_batches
from generation.task import named_task
from nfn import PredictorEnsemble, TrainingStep, TransformerNFN
from nfn.predictors.gauge_nfn import SOURCES
from nfn.predictors.literal import literal_twin
from zoo import TransformerSpec, TransformerWeights
from zoo.command import how_many
from zoo.device import choose_device, fast_small_products
from zoo.format.hyperparameters import OPTIMIZERS, SHARED_SEED, Optimizer
from zoo.tasks.embedding import WordEmbedding
from zoo.tasks.examples import Examples, TaskData
from zoo.tasks.identity import KNOWN
from zoo.transformer.dimensions import chosen_dimensions, with_dimensions
from zoo.transformer.spec import PAPER_SPECS, SPECS

_STEPS_OF_MNIST, _SINGLE_STEPS = 468, 30
_DROPOUTS = (0.2, 0.15, 0.1, 0.05, 0.0)
_POPULATIONS = {"torch": "population", "fused": "fused population"}
_BATCHES, _SEEDS = (16, 256), 5
_READ, _TRAIN, _VALIDATION = 1000, 1400, 300


def generation(
    *,
    config: Sequence[str],
    device: str,
    models: Sequence[int] | None,
    engines: Sequence[str] | None,
    steps: int | None,
    seeds: str,
    variant: str | None,
    repeats: int,
    **dimensions: int | None,
) -> Iterator[Result]:
    """How fast zoo models train: one model at a time, beside populations of many models in one run.

    A model-step is one training step of one model with a batch of 128. Populations mix the four optimizers and the five
    dropout rates. Inputs are random: the time does not depend on them, except on the lengths of texts.
    """
    where, other = choose_device(device), chosen_dimensions(dimensions)
    usual = (["fused", "torch"], [512, 1024], _STEPS_OF_MNIST) if where.type == "cuda" else (["torch"], [4], 3)
    for task in config:
        say(f"{task}: one model by itself")
        yield _single(task, where, other, repeats)
        possible = [name for name in usual[0] if name != "fused" or not misfits(SPECS[task])]
        for engine, count in itertools.product(engines or possible, models or usual[1]):
            kernels = variant if engine == "fused" else None
            yield from _population(task, engine, kernels, count, steps or usual[2], seeds, where, other, repeats)


def _single(config: str, device: torch.device, dimensions: dict[str, int], repeats: int) -> Result:
    """The slow twin: one model with the modules and optimizers of torch; only its training steps."""
    spec, run = with_dimensions(SPECS[config], dimensions), _run(config, "adam", 0.1)
    task = _random_task(spec, _SINGLE_STEPS * run.protocol.batch_size, 100).to(device)
    model = make_model(task.spec, run, device)
    optimizer, inputs = make_optimizer(run, model), TrainingInputs.prepare(task)
    batches = epoch_batches(train_subset(len(task.train), 1.0), run.protocol, epoch=0).to(device)
    with fast_small_products():
        calls = {"epoch": lambda: train_batches(model, optimizer, inputs, batches)}
        seconds = measure(calls, device=device, repeats=repeats, warmup=1)["epoch"]
    per_step = [epoch * 1e6 / _SINGLE_STEPS for epoch in seconds]
    setting: Setting = {"models": 1, "precision": "float32", **dimensions}
    variant = _variant("single", dimensions)
    return speed_row("generation", config, variant, "us_per_model_step", per_step, setting=setting, device=device)


def _population(
    config: str,
    engine_name: str,
    fused_variant: str | None,
    models: int,
    steps: int,
    seeds: str,
    device: torch.device,
    dimensions: dict[str, int],
    repeats: int,
) -> Iterator[Result]:
    """Times whole epochs with their evaluation and the evaluation alone; the difference is the training."""
    variant = _variant(", ".join(filter(None, [_POPULATIONS[engine_name], fused_variant])), dimensions)
    epochs = f"{repeats + 1} epochs of {how_many(steps, 'step')}"
    say(f"{config}: {models:,} models at once, {engine_name} engine, {epochs}; the first compiles")
    tests = max(100, round(KNOWN[config].test_rows * min(1.0, steps / _STEPS_OF_MNIST)))
    kinds = zip(range(models), itertools.cycle(OPTIMIZERS), itertools.cycle(_DROPOUTS), strict=False)
    shared = seeds == SHARED_SEED
    runs = [_run(config, optimizer, dropout, 0 if shared else number) for number, optimizer, dropout in kinds]
    task = _random_task(with_dimensions(SPECS[config], dimensions), steps * runs[0].protocol.batch_size, tests)
    kernels = None if fused_variant is None else variant_named(fused_variant)
    engine = make_engine(engine_name, runs, task, device, variant=kernels)
    trainer = PopulationTrainer(engine)
    trainer.train_epoch()
    setting: Setting = {"models": models, "precision": engine.precision, "steps": steps, "test_examples": tests}
    setting |= {"seeds": seeds, **dimensions}
    row = partial(speed_row, "generation", config, variant, device=device, setting=setting)

    def evaluate() -> None:
        engine.evaluate(trainer.state.weights, trainer.state.alive, trainer.task.test)

    epoch = measure({"epoch": trainer.train_epoch}, device=device, repeats=repeats, warmup=0)["epoch"]
    yield row("us_per_model_step_with_evaluation", [seconds * 1e6 / models / steps for seconds in epoch])
    evaluation = measure({"test": evaluate}, device=device, repeats=repeats, warmup=0)["test"]
    yield row("us_per_128_evaluated", [seconds * 1e6 * 128 / models / tests for seconds in evaluation])
    yield row("us_per_model_step", [(seconds - median(evaluation)) * 1e6 / models / steps for seconds in epoch])


def _variant(name: str, dimensions: dict[str, int]) -> str:
    """Such as "fused population, small, dim 64, blocks 4"."""
    return ", ".join([name, *(key if size is True else f"{key} {size}" for key, size in dimensions.items())])


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


def nfn(*, config: str | None, device: str | None, repeats: int) -> Iterator[Result]:
    """How fast Transformer-NFN trains, beside its literal twin, which computes the same thing term by term.

    Rows: the time of forward + backward, and of a full training step with Adam, for one predictor and for five seeds
    together. The step is the one that trains the predictors of the tables; the twin takes a plain step of torch.
    """
    for task, where in _cases(config, device):
        for batch in _BATCHES:
            yield from _steps(task, where, batch, repeats)


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
    literal = literal_twin(predictor(0).to(device))
    # metric → variant, seeds and CUDA graph → call; "merged" are the grouped terms of the layers
    calls: dict[str, dict[tuple[str, int, bool], Callable[[], object]]] = {
        "forward_backward_ms": {
            ("merged", 1, False): training_step(predictors[:1], False).gradients,
            ("literal", 1, False): _plain_step(literal, rows.weights, rows.goodness, update=False),
        },
        "training_step_ms": {
            ("merged", 1, graph): training_step(predictors[:1], graph),
            ("literal", 1, False): _plain_step(literal, rows.weights, rows.goodness, update=True),
            ("merged", _SEEDS, graph): training_step(predictors, graph),
        },
    }
    if graph:
        calls["training_step_ms"]["merged", 1, False] = training_step(predictors[:1], False)
    for metric, compared in calls.items():
        say(f"{config}, {device}, batch {batch}: {metric}, {repeats} samples of {len(compared)} variants")
        # As in a training loop: a step follows the same step, not its twin, whose memory would fill the caches.
        times = measure(compared, device=device, repeats=repeats, calls_per_sample=10 if graph else 5)
        for (variant, seeds, as_graph), seconds in times.items():
            ms = [value * 1e3 for value in seconds]
            setting: Setting = {"batch": batch, "channels": [10], "seeds": seeds, "cuda_graph": as_graph}
            setting["best_ms"] = min(ms)
            yield speed_row("nfn", config, variant, metric, ms, setting=setting, device=device)


def _plain_step(predictor: TransformerNFN, flat: Tensor, accuracy: Tensor, *, update: bool) -> Callable[[], None]:
    """The usual step of one predictor in torch, so that the literal twin does not pay for what an ensemble needs."""
    optimizer = torch.optim.Adam(predictor.parameters(), fused=True)
    weights = TransformerWeights.from_flat(predictor.spec, flat)

    @fast_small_products()
    def step() -> None:
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(predictor.logits(weights), accuracy).backward()
        if update:
            optimizer.step()

    return step


def gauge(*, config: str | None, device: str | None, repeats: int) -> Iterator[Result]:
    """How fast Gauge-NFN reads and learns: invariants and responses of 1,000 checkpoints, and one fit on 1,400 of them.

    The checkpoints are random. A fit is that of the tables, 50 epochs by Gauge-NFN's own recipe and 300 rows to choose
    the epoch by, once with all that is read to compute and once with that already in memory, as every later fit finds
    it.
    """
    for task, where in _cases(config, device):
        yield from _fits(task, where, repeats)


def _fits(config: str, device: torch.device, repeats: int) -> Iterator[Result]:
    train = _random_checkpoints(PAPER_SPECS[config], _TRAIN, 0, device)
    validation = _random_checkpoints(PAPER_SPECS[config], _VALIDATION, 1, device)
    group = TrainingGroup(np.arange(_TRAIN), np.arange(_VALIDATION), (0,))

    def read(source: str) -> None:
        SOURCES[source].features.clear()
        SOURCES[source].features(TransformerWeights.from_flat(train.spec, train.weights[:_READ]))

    def fit() -> None:
        build = builder("gauge_nfn", train.spec, None, None)
        train_together(build, [group], train, validation, RECIPES["gauge"], EPOCHS)

    def first_fit() -> None:
        for source in SOURCES.values():
            source.features.clear()
        fit()

    for metric, call, warmup in (
        *((f"{source}_of_1000_seconds", partial(read, source), 1) for source in SOURCES),
        ("first_fit_of_1400_seconds", first_fit, 0),
        ("fit_of_1400_seconds", fit, 0),
    ):
        seconds = measure({metric: call}, device=device, repeats=repeats, warmup=warmup)[metric]
        setting: Setting = {"best_seconds": min(seconds)}
        yield speed_row("nfn", config, "gauge_nfn", metric, seconds, setting=setting, device=device)


def _cases(config: str | None, device: str | None) -> list[tuple[str, torch.device]]:
    """Every config on every device, or the ones that were chosen."""
    devices = [device] if device else ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    return [(task, choose_device(each)) for task in ([config] if config else PAPER_SPECS) for each in devices]


def _random_checkpoints(spec: TransformerSpec, count: int, seed: int, device: torch.device) -> Checkpoints:
    """Random weights with random accuracies: how long a fit takes does not depend on what there is to learn."""
    generator = torch.Generator().manual_seed(seed)
    flat = torch.randn(count, spec.num_parameters, generator=generator) * 0.1
    accuracy = torch.rand(count, generator=generator)
    runs = np.array([f"{seed}-{number}" for number in range(count)])
    return Checkpoints(spec, flat.to(device), accuracy.to(device), runs, pd.DataFrame(index=range(count)))
