"""All commands of the project as verbs: ``small-transformer-zoo verify`` is ``python -m zoo.verify``.

small-transformer-zoo VERB [OPTIONS]            small-transformer-zoo VERB --help
python -m zoo VERB [OPTIONS]                    the same
"""

import runpy
import sys

from zoo.version import VERSION

_VERBS = {
    "generate": ("generation.run", "train one shard of a zoo"),
    "launch": ("generation.launch", "train many shards through Ray"),
    "single": ("generation.single", "train one transformer, slowly"),
    "publish": ("zoo.publish", "merge shards into a published zoo; push it to the hub"),
    "join": ("zoo.join", "join published zoos of different configs"),
    "thin": ("zoo.thin", "all runs of finished shards, and the weights of a few"),
    "verify": ("zoo.verify", "check hashes, schema and splits; measure accuracies again"),
    "describe": ("zoo.describe", "what a zoo holds"),
    "export": ("zoo.export", "checkpoints as safetensors, torch or Parquet files"),
    "page": ("zoo.page", "a zoo as a static page"),
    "kendall": ("benchmarks.kendall", "the paper's table: Kendall's tau of every predictor"),
    "components": ("benchmarks.ablation_components", "the paper's ablation of components"),
    "widths": ("benchmarks.ablation_width", "the paper's ablation of widths"),
    "augmentation": ("benchmarks.augmentation", "checkpoints moved by group elements"),
    "transfer": ("benchmarks.transfer", "predictors tested on other configs and checkpoints"),
    "scale": ("benchmarks.scale", "tables at the number of rows of the paper, from a few numbers of every run"),
    "rows": ("benchmarks.rows", "tau against the number of training rows, and the curve"),
    "merge": ("benchmarks.merge", "what lies between two runs, plain and aligned, and merged runs"),
    "recipe": ("benchmarks.recipe", "which recipe made these weights"),
    "curves": ("benchmarks.curves", "how early a learning curve tells the end"),
    "census": ("benchmarks.census", "count what was generated"),
    "fidelity": ("benchmarks.fidelity", "whether the fused engine trains the same zoo"),
    "speed": ("benchmarks.speed", "how fast"),
    "results-page": ("benchmarks.page", "a zoo as a static page, with the predictors of the tables"),
    "pretrain": ("benchmarks.pretrain", "fit a predictor and store it in one small file"),
    "predict": ("benchmarks.predict", "rank checkpoints with a fitted predictor"),
    "leaderboard": ("benchmarks.leaderboard", "check, rank and write submissions to the leaderboard"),
    "report": ("benchmarks.report", "the repository's tables and plots, from its rows"),
}


def main() -> None:
    """Runs the command behind the first word, as ``python -m`` would."""
    verb = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if verb in ("-h", "--help"):
        print(__doc__)
        for name, (_, what) in _VERBS.items():
            print(f"  {name:13s} {what}")
        sys.exit(0 if len(sys.argv) > 1 else 2)
    if verb == "--version":
        print(VERSION)
        sys.exit(0)
    if verb not in _VERBS:
        print(f"error: unknown verb {verb!r}: one of {', '.join(_VERBS)}", file=sys.stderr)
        sys.exit(2)
    del sys.argv[1]
    runpy.run_module(_VERBS[verb][0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
