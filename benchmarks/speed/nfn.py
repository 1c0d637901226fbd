"""How fast Transformer-NFN trains, beside its literal twin, which computes the same thing term by term.

python -m benchmarks.speed nfn                    on the CPU and, where there is one, the GPU
python -m benchmarks.speed nfn --device cuda --config mnist

Rows: the time of forward + backward, and of a full training step with Adam, for one predictor and for five seeds
together. The step is the one that trains the predictors of the tables; the twin takes a plain step of torch.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.results import Result
from benchmarks.speed.options import read_options
from benchmarks.speed.record import say, say_seconds
from benchmarks.speed.timing import Timing, measure_together
from nfn import PredictorEnsemble, TrainingStep, TransformerNFN
from nfn.predictors.literal import literal_twin
from zoo import TransformerSpec, TransformerWeights
from zoo.command import command
from zoo.device import fast_small_products
from zoo.transformer.spec import SPECS

BATCHES = (16, 256)
SEEDS = 5


@command
def main(arguments: list[str] | None = None) -> None:
    options = read_options("nfn", __doc__, arguments, repeats=30)
    for config, device in options.cases:
        for batch in BATCHES:
            options.record.keep(measure_case(config, device, batch, options.repeats))


def measure_case(config: str, device: torch.device, batch: int, repeats: int) -> Iterator[Result]:
    """All rows of one config, device and batch size. Calls of the same metric are compared, so they take turns."""
    spec = SPECS[config]
    generator = torch.Generator().manual_seed(0)
    flat = (torch.randn(batch, spec.num_parameters, generator=generator) * 0.1).to(device)
    accuracy = torch.rand(batch, generator=generator).to(device)

    def training_step(predictors: Sequence[TransformerNFN], graph: bool) -> TrainingStep:
        ensemble = PredictorEnsemble(predictors, device)
        step = TrainingStep(ensemble, flat, accuracy, batch_size=batch, graph=graph)
        step.set_batches(torch.arange(batch))
        return step

    graph = device.type == "cuda"
    predictors = [build_predictor(spec, seed) for seed in range(SEEDS)]
    literal = literal_twin(build_predictor(spec, 0).to(device))
    # "merged" are the grouped terms of the layers; the names are those of the rows measured so far.
    calls: dict[tuple[str, str, int, bool], Callable[[], object]] = {
        ("forward_backward_ms", "merged", 1, False): training_step(predictors[:1], False).gradients,
        ("forward_backward_ms", "literal", 1, False): plain_step(literal, flat, accuracy, update=False),
        ("training_step_ms", "merged", 1, graph): training_step(predictors[:1], graph),
        ("training_step_ms", "literal", 1, False): plain_step(literal, flat, accuracy, update=True),
        ("training_step_ms", "merged", SEEDS, graph): training_step(predictors, graph),
    }
    if graph:
        calls["training_step_ms", "merged", 1, False] = training_step(predictors[:1], False)
    for metric in dict.fromkeys(metric for metric, *_ in calls):
        names = {str(number): key for number, key in enumerate(calls) if key[0] == metric}
        say(f"{config}, {device}, batch {batch}: {metric}, {repeats} samples of {len(names)} variants")
        timings = measure_together(
            {number: calls[key] for number, key in names.items()},
            device=device,
            repeats=repeats,
            # As in a training loop: a step follows the same step, not its twin, whose memory would fill the caches.
            calls_per_sample=10 if graph else 5,
            expect=say_seconds,
        )
        yield from (row(config, device, batch, *names[number], timing) for number, timing in timings.items())


def build_predictor(spec: TransformerSpec, seed: int) -> TransformerNFN:
    return TransformerNFN(spec, channels=(10,), generator=torch.Generator().manual_seed(seed))


def plain_step(predictor: TransformerNFN, flat: Tensor, accuracy: Tensor, *, update: bool) -> Callable[[], None]:
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


def row(
    config: str, device: torch.device, batch: int, metric: str, variant: str, seeds: int, graph: bool, timing: Timing
) -> Result:
    assert timing.stderr is not None
    return Result.measured(
        "speed.nfn",
        config,
        metric,
        timing.median * 1e3,
        stderr=timing.stderr * 1e3,
        n=timing.n,
        device=device,
        variant=variant,
        setting={"batch": batch, "channels": [10], "seeds": seeds, "cuda_graph": graph, "best_ms": timing.best * 1e3},
    )
