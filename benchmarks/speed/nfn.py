"""How fast Transformer-NFN trains, beside its literal twin, which computes the same term by term.

python -m benchmarks.speed nfn                    CPU and, where there is one, GPU
python -m benchmarks.speed nfn --device cuda --config mnist

Rows: the time of forward + backward, and of a full training step with Adam, of one predictor and of five seeds in one.
"""

import sys
from collections.abc import Callable

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import results
from benchmarks.results import Result
from benchmarks.speed.timing import Timing, measure_together
from nfn import PredictorEnsemble, TrainingStep, TransformerNFN
from nfn.predictors.literal import literal_twin
from zoo import TransformerSpec
from zoo.command import command_parser
from zoo.transformer.spec import SPECS

DESCRIPTION = "Times Transformer-NFN beside its literal twin and appends the rows to benchmarks/results/."
BATCHES = (16, 256)
SEEDS = 5


def main(arguments: list[str]) -> None:
    parser = command_parser("benchmarks.speed nfn", DESCRIPTION)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: every one there is")
    parser.add_argument("--config", choices=list(SPECS), help="default: all")
    parser.add_argument("--repeats", type=int, default=30, help="samples of each time, default 30")
    parser.add_argument("--threads", type=int, help="CPU threads, default torch's own choice")
    parser.add_argument("--dry-run", action="store_true", help="print the rows, store none")
    options = parser.parse_args(arguments)
    if options.repeats < 2:
        parser.error(f"--repeats must be at least 2 to have a spread, got {options.repeats}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no CUDA device here")
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

    def forward_backward(model: TransformerNFN) -> Callable[[], object]:
        step = TrainingStep(model, graph=False)
        return lambda: step.gradients(flat, accuracy)

    def training_step(model: TransformerNFN | PredictorEnsemble, graph: bool) -> Callable[[], object]:
        step = TrainingStep(model, graph=graph)
        return lambda: step(flat, accuracy)

    graph = device.type == "cuda"
    model = predictor(spec, 0, device)
    ensemble = PredictorEnsemble([predictor(spec, seed, device) for seed in range(SEEDS)])
    calls: dict[tuple[str, str, int, bool], Callable[[], object]] = {
        ("forward_backward_ms", "merged", 1, False): forward_backward(model),
        ("forward_backward_ms", "literal", 1, False): forward_backward(literal_twin(model)),
        ("training_step_ms", "merged", 1, graph): training_step(predictor(spec, 0, device), graph),
        ("training_step_ms", "literal", 1, False): training_step(literal_twin(predictor(spec, 0, device)), False),
        ("training_step_ms", "merged", SEEDS, graph): training_step(ensemble, graph),
    }
    if graph:
        calls["training_step_ms", "merged", 1, False] = training_step(predictor(spec, 0, device), False)
    names = {str(number): key for number, key in enumerate(calls)}
    timings = measure_together(
        {number: calls[key] for number, key in names.items()},
        device=device,
        repeats=repeats,
        # As in a training loop: the step after the same step, not after its twin, whose memory crowds the caches.
        calls_per_sample=10 if graph else 5,
    )
    return [row(config, device, batch, *names[number], timing) for number, timing in timings.items()]


def predictor(spec: TransformerSpec, seed: int, device: torch.device) -> TransformerNFN:
    return TransformerNFN(spec, channels=(10,), generator=torch.Generator().manual_seed(seed)).to(device)


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
    for one in rows:
        table.add_row(
            one.config,
            one.device,
            str(one.setting["batch"]),
            str(one.setting["seeds"]),
            one.metric,
            one.variant,
            "yes" if one.setting["cuda_graph"] else "no",
            f"{one.value:.2f}",
            f"{one.stderr:.2f}",
            f"{one.setting['best_ms']:.2f}",
        )
    Console(width=160).print(table)
