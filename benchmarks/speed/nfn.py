"""How fast Transformer-NFN trains, beside its literal twin, which computes the same thing term by term.

python -m benchmarks.speed nfn                    on the CPU and, where there is one, the GPU
python -m benchmarks.speed nfn --device cuda --config mnist

Rows: the time of forward + backward, and of a full training step with Adam, for one predictor and for five seeds
together. The step is the one that trains the predictors of the tables; the twin takes a plain step of torch.
"""

import sys
from collections.abc import Callable, Sequence

import torch
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from benchmarks import results
from benchmarks.results import Result
from benchmarks.speed.timing import Timing, measure_together
from nfn import PredictorEnsemble, TrainingStep, TransformerNFN
from nfn.predictors.literal import literal_twin
from zoo import TransformerSpec, TransformerWeights
from zoo.command import command, command_parser
from zoo.terminal import PlainConsole
from zoo.transformer.onednn import fast_small_products
from zoo.transformer.spec import SPECS

BATCHES = (16, 256)
SEEDS = 5


@command
def main(arguments: list[str] | None = None) -> None:
    parser = command_parser("benchmarks.speed nfn", __doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: all that this machine has")
    parser.add_argument("--config", choices=list(SPECS), help="default: all")
    parser.add_argument("--repeats", type=int, default=30, help="samples of each time (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's own choice)")
    parser.add_argument("--dry-run", action="store_true", help="print the rows, store none")
    options = parser.parse_args(arguments)
    if options.repeats < 2:
        raise ValueError(f"--repeats must be at least 2 to have a spread, got {options.repeats}")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device on this machine, use --device cpu")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    devices = [options.device] if options.device else ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    configs = [options.config] if options.config else list(SPECS)
    cases = [(config, device, batch) for config in configs for device in devices for batch in BATCHES]
    rows: list[Result] = []
    for config, device, batch in track(cases, description="timing", disable=not sys.stderr.isatty()):
        measured = measure_case(config, torch.device(device), batch, options.repeats)
        rows += measured
        if not options.dry_run:  # at once, since the next case may take minutes
            results.append(measured)
    show(rows)


def measure_case(config: str, device: torch.device, batch: int, repeats: int) -> list[Result]:
    """All rows of one config, device and batch size."""
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
    names = {str(number): key for number, key in enumerate(calls)}
    timings = measure_together(
        {number: calls[key] for number, key in names.items()},
        device=device,
        repeats=repeats,
        # As in a training loop: a step follows the same step, not its twin, whose memory would fill the caches.
        calls_per_sample=10 if graph else 5,
    )
    return [row(config, device, batch, *names[number], timing) for number, timing in timings.items()]


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


def show(rows: list[Result]) -> None:
    table = Table(title="Transformer-NFN, channels [10]")
    for heading in ("config", "device", "batch", "seeds", "metric", "variant", "graph", "median", "± stderr", "best"):
        table.add_column(heading)
    for result in rows:
        setting = result.setting
        table.add_row(
            result.config,
            result.device,
            str(setting["batch"]),
            str(setting["seeds"]),
            result.metric,
            result.variant,
            "yes" if setting["cuda_graph"] else "no",
            f"{result.value:.2f}",
            f"{result.stderr:.2f}",
            f"{setting['best_ms']:.2f}",
        )
    PlainConsole(width=160).print(table)
