"""What the card of a published zoo says, part by part, as Markdown."""

import re
from collections.abc import Iterator, Mapping

import pyarrow as pa

from zoo.format.hyperparameters import HYPERPARAMETERS, meaning_of
from zoo.format.manifest import Manifest
from zoo.format.markdown import plain_markdown
from zoo.format.published import ConfigDetails
from zoo.format.record import DISTINCT_SEEDS, SHARED_SEED
from zoo.format.schema import CHECKPOINTS, PUBLISHED_RUN_SCHEMA, checkpoint_schema
from zoo.format.splits import SPLITS
from zoo.tasks.identity import KNOWN, SHORT_HASH


def summary(details: dict[str, ConfigDetails]) -> str:
    """What the zoo holds, in a sentence."""
    parts = [
        f"`{name}`, {sum(config.runs.values()):,} runs on {title(config.task)}" for name, config in details.items()
    ]
    runs = sum(sum(config.runs.values()) for config in details.values())
    return f"Checkpoints of {runs:,} small transformers ({'; '.join(parts)})"


def title(task: str) -> str:
    return KNOWN[task].title if task in KNOWN else task


def notice(details: dict[str, ConfigDetails]) -> str:
    """Says which configs are not the paper's protocol on the whole of the real data."""
    lines = []
    for name, config in details.items():
        short = config.data_note()
        if config.task_file is not None:
            lines.append(f"> **`{name}` is a task of its own**, not one of the paper's: its task file is below.")
        elif config.preset != "paper" or (short is None and "sample" in config.data_source):
            lines.append(
                f"> **`{name}` is a stand-in**: it was trained with the `{plain_markdown(config.preset)}` preset on "
                f"{plain_markdown(short or config.data_source)}, not with the paper's protocol. It has the right form; "
                "its accuracies are not the paper's."
            )
        elif short is not None:
            lines.append(f"> **`{name}` was trained on {plain_markdown(short)}**, with the paper's protocol.")
    text = lines or ["Every config here was trained with the paper's protocol."]
    repeated = [
        f"> **`{name}` has every configuration {config.repeats} times**, each time with a seed of its own. All repeats "
        "of a configuration are in one split, by the SHA-256 of the configuration instead of `run_id`."
        for name, config in details.items()
        if config.repeats is not None
    ]
    return "\n\n".join([*text, *repeated])


def counts_table(manifest: Manifest, details: dict[str, ConfigDetails]) -> Iterator[str]:
    yield f"| config | {' | '.join(SPLITS)} | runs completed | diverged | MB |"
    yield f"| --- | {'--- | ' * len(SPLITS)}--- | --- | --- |"
    for name, config in details.items():
        size = sum(entry.bytes for file, entry in manifest.files.items() if file.startswith(f"{name}/")) / 1e6
        cells = [name, *(f"{config.rows[split]:,}" for split in SPLITS)]
        cells += [f"{config.runs.get(status, 0):,}" for status in ("completed", "diverged")]
        yield f"| {' | '.join(cells)} | {size:,.1f} |"


MEANINGS = {
    "run_id": "hash of the run's configuration; the same configuration always has the same id",
    "task": "the data it was trained on",
    "checkpoint": "{checkpoints} or best (highest test accuracy)",
    "epoch": "the epoch the weights were taken at",
    "test_accuracy": "share of the whole test set that these very weights classify correctly, in [0, 1]",
    "test_loss": "mean cross entropy on the test set",
    "train_loss": "mean training loss of that epoch",
    **{name: meaning_of(name) for name in HYPERPARAMETERS},
    "weights": "all trainable parameters, flat; the order of the tensors is below",
}
RUN_MEANINGS = MEANINGS | {
    "status": "completed, or diverged: a weight or a loss was no longer finite",
    "shard": "the part of the grid it was trained in",
    "epochs": "how many epochs it was trained",
    "best_epoch": "the epoch of the checkpoint `best`",
    "test_accuracy": "after every epoch",
    "test_loss": "after every epoch",
    "train_loss": "mean over every epoch",
    "code_version": "version of the package that trained it",
    "wall_seconds": "its share of the time its shard took",
}


def checkpoints(details: dict[str, ConfigDetails]) -> str:
    """How many checkpoints a run has, and which; one sentence where all configs have the paper's."""
    if all(config.checkpoints == CHECKPOINTS for config in details.values()):
        return "Each completed run has four: after 50, 75 and 100 % of its epochs, and at its best test accuracy."
    listed = (f"`{name}` {', '.join(config.checkpoints)}" for name, config in details.items())
    return f"Each completed run has all of its config's, named by epochs: {'; '.join(listed)}."


def seeds(details: dict[str, ConfigDetails]) -> str:
    """Which runs share a seed."""
    kinds = {SHARED_SEED: "all runs share one seed", DISTINCT_SEEDS: "every run has a seed of its own"}
    repeated = "each configuration was trained {} times, each time with a seed of its own"
    configs: dict[str, list[str]] = {}
    for name, config in details.items():
        configs.setdefault(kinds.get(config.seeds, repeated.format(config.repeats)), []).append(f"`{name}`")
    listed = (f"in {' and '.join(names)} {kind}" for kind, names in configs.items())
    text = f"Seeds: {'; '.join(listed)}."
    if any(config.seeds == SHARED_SEED for config in details.values()):
        text += " Runs that share a seed start from the same weights, up to their initial scale."
    return text


def residual(details: dict[str, ConfigDetails]) -> str:
    """Which transformers have residual connections."""
    having = [f"`{name}`" for name, config in details.items() if config.spec.residual]
    if not having:
        return "no residual connections"
    which = "" if len(having) == len(details) else f" in {', '.join(having)}, none in the others"
    return f"except for residual connections, x + f(LN(x)){which}"


def task_files(details: dict[str, ConfigDetails]) -> str:
    """The files of tasks that are not the paper's, each once."""
    texts = {config.task: config.task_file for config in details.values() if config.task_file is not None}
    return "".join(f"\n\nThe task file of `{task}`:\n\n{fenced(text, 'toml')}" for task, text in texts.items())


def fenced(text: str, language: str) -> str:
    """A block of code that no line of it can end."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def columns_table(details: dict[str, ConfigDetails]) -> Iterator[str]:
    """Name, type and meaning of each column, from the schema itself."""
    lengths = " or ".join(sorted({f"{config.spec.num_parameters:,}" for config in details.values()}))
    standard = all(config.checkpoints == CHECKPOINTS for config in details.values())
    named = "epoch_50, epoch_75, epoch_100 (50, 75, 100 % of the epochs)" if standard else "epoch_N, after N epochs,"
    meanings = MEANINGS | {"checkpoint": MEANINGS["checkpoint"].format(checkpoints=named)}
    yield from schema_table(checkpoint_schema(next(iter(details.values())).spec), meanings, lengths)


def run_columns_table(details: dict[str, ConfigDetails]) -> Iterator[str]:
    """The same for the configs of runs."""
    lengths = " or ".join(sorted({plain_markdown(config.protocol.get("epochs")) for config in details.values()}))
    yield from schema_table(PUBLISHED_RUN_SCHEMA, RUN_MEANINGS, f"up to {lengths}")


def schema_table(schema: pa.Schema, meanings: Mapping[str, str], length: str) -> Iterator[str]:
    yield "| column | type | meaning |"
    yield "| --- | --- | --- |"
    for field in schema:
        listed = isinstance(field.type, pa.FixedSizeListType | pa.ListType)
        kind = f"{length} × {field.type.value_type}" if listed else str(field.type)
        yield f"| {field.name} | {kind} | {meanings[field.name]} |"


def transformers_table(details: dict[str, ConfigDetails]) -> Iterator[str]:
    """The dimensions of each config's transformer."""
    columns = ("weights", "dimension", "blocks", "heads", "key", "value", "hidden", "tokens", "classes", "input")
    yield f"| config | {' | '.join(columns)} |"
    yield f"| --- |{' --- |' * len(columns)}"
    for name, config in details.items():
        spec = config.spec
        sizes = (spec.num_parameters, spec.dim, spec.blocks, spec.heads, spec.key_dim, spec.value_dim, spec.hidden_dim)
        channels = f" of {spec.channels} channels" if spec.channels > 1 else ""
        kind = f"{spec.patch_size}×{spec.patch_size} patches{channels}" if spec.patch_size else "word vectors"
        yield f"| {name} | {' | '.join(f'{size:,}' for size in (*sizes, spec.tokens, spec.classes))} | {kind} |"


def layout_table(details: dict[str, ConfigDetails]) -> Iterator[str]:
    """The tensors in the order of the flat vector; of the blocks, which are alike, the first."""
    specs = {name: config.spec for name, config in details.items()}
    tensors = list(dict.fromkeys(tensor for spec in specs.values() for tensor in spec.tensors))
    # a config without an embedding must not put it last
    tensors.sort(key=lambda tensor: not tensor.startswith("embedding."))
    yield f"| tensor | {' | '.join(specs)} |"
    yield f"| --- |{' --- |' * len(specs)}"
    for tensor in tensors:
        if tensor.startswith("blocks.") and not tensor.startswith("blocks.0."):
            continue
        shapes = (spec.tensors.get(tensor) for spec in specs.values())
        cells = ("–" if slot is None else " × ".join(map(str, slot.shape)) for slot in shapes)
        yield f"| `{tensor.replace('blocks.0.', 'blocks.i.')}` | {' | '.join(cells)} |"


def data_table(details: dict[str, ConfigDetails]) -> Iterator[str]:
    """What each config was trained and measured on."""
    yield "| config | data | training rows | test rows | SHA-256 of training set | of test set |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, config in details.items():
        data = config.data
        cells = ("not recorded",) * 4
        if data is not None:
            known = KNOWN.get(config.task)
            part = known is not None and known.recognizes(data) and not known.is_complete(data)
            whole = f" of {known.train_rows:,}" if known is not None and part else ""
            counts = (f"{data.train_rows:,}{whole}", f"{data.test_rows:,}")
            cells = (*counts, f"`{data.train_sha256[:SHORT_HASH]}…`", f"`{data.test_sha256[:SHORT_HASH]}…`")
        yield f"| {' | '.join((name, plain_markdown(config.data_source), *cells))} |"


SOURCES = {
    "mnist": "MNIST (LeCun, Cortes, Burges), which is not included",
    "agnews": (
        "AG News (Gulli; Zhang, Zhao, LeCun 2015), which is not included, except that `vocabulary.json` lists words "
        "that occur in it"
    ),
}


def sources(details: dict[str, ConfigDetails]) -> str:
    """Whose data the transformers were trained on."""
    tasks = dict.fromkeys(config.task for config in details.values())
    return "; ".join(SOURCES.get(task, title(task)) for task in tasks)


def provenance_table(details: dict[str, ConfigDetails]) -> Iterator[str]:
    """How each config was made, as recorded by the machine that made it."""
    yield "| config | preset | protocol | seeds | trained on | engine | precision | code |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for name, config in details.items():
        protocol = ", ".join(f"{key} {value}" for key, value in sorted(config.protocol.items()))
        cells = (name, config.preset, protocol, config.seeds, config.data_source)
        lists = (", ".join(values) for values in (config.engines, config.precisions, config.code_versions))
        yield f"| {' | '.join(plain_markdown(cell) for cell in (*cells, *lists))} |"
