"""tab:augmented_agnews: every split doubled by random group elements."""

from benchmarks.models.registry import SIX_MODELS, known_models
from benchmarks.tables import paper
from benchmarks.tables.markdown import MISSING, number, table, tau_cell
from benchmarks.tables.result_index import ResultIndex


def augmentation_table(index: ResultIndex, config: str) -> str:
    """One row per model, one column per range of the entries of M and N; at the end the lead of Transformer-NFN."""
    rows = []
    in_paper = config == "agnews" and index.whole
    measured = [row.setting.get("entry_range") for row in index.rows]
    wanted = (*measured, *paper.RANGES) if in_paper else measured
    ranges = (None, *sorted({float(size) for size in wanted if isinstance(size, int | float)}))
    others = [name for name in known_models() if name not in SIX_MODELS and index.find("tau", name) is not None]
    for name in (*SIX_MODELS, *others):
        references = paper.AUGMENTATION.get(name, {}) if in_paper else {}
        cells = [tau_cell(index, name, references.get(size), entry_range=size) for size in ranges]
        rows.append([known_models()[name].title, *cells])
    rows.append(["gap", *(gap(index, size) for size in ranges)])
    titles = ["original" if size is None else f"±{size:g}" for size in ranges]
    return table([f"Kendall's τ, {index.title(config)}", *titles], rows)


def gap(index: ResultIndex, size: float | None) -> str:
    """The τ of Transformer-NFN minus the best of the paper's others."""
    ours = index.value("tau", "transformer_nfn", entry_range=size)
    others = [index.value("tau", name, entry_range=size) for name in SIX_MODELS if name != "transformer_nfn"]
    known = [tau for tau in others if tau is not None]
    return MISSING if ours is None or not known else number(ours - max(known), ".3f")
