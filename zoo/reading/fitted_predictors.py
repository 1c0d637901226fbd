"""Files of fitted predictors (``python -m benchmarks.pretrain``) that go to the hub beside a zoo.

Only what this package needs to know of them: a predictor called like a config, whose header says that it reads the
transformers of that config. Their format is that of ``nfn.load_pretrained``.
"""

from pathlib import Path

from safetensors import SafetensorError, safe_open

from zoo.format.published import PREDICTORS_FOLDER, PublishedZoo
from zoo.storage.untrusted import parse_json, refuse_larger

SUFFIX, CARD_SUFFIX = ".safetensors", ".toml"
MAX_BYTES = 64 << 20


def fitted_predictors(folder: Path, zoo: PublishedZoo) -> dict[str, Path]:
    """Name in the repository → file, for each config of the zoo that a predictor with a card in the folder reads."""
    found: dict[str, Path] = {}
    for config, details in zoo.configs.items():
        path = folder / f"{config}{SUFFIX}"
        card = path.with_suffix(CARD_SUFFIX)
        if path.is_file() and card.is_file() and spec_read_by(path) == details.spec.to_dict():
            found |= {f"{PREDICTORS_FOLDER}/{file.name}": file for file in (path, card)}
    if not found:
        raise ValueError(
            f"{folder} holds no fitted predictor for {', '.join(zoo.configs)}: files such as "
            f"{next(iter(zoo.configs))}{SUFFIX} with a card, of transformers with these dimensions"
        )
    return found


def spec_read_by(path: Path) -> object:
    """The dimensions of the transformers that a predictor reads, as its header says them; None where it does not."""
    refuse_larger(path, MAX_BYTES)
    try:
        with safe_open(path, framework="np") as file:
            header = file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    config = parse_json(header.get("config", "{}").encode(), f"the config of {path}")
    return config.get("spec") if isinstance(config, dict) else None
