"""The device that a command should use."""

import torch


def choose_device(name: str) -> torch.device:
    """``auto`` is the GPU where there is one; anything torch cannot use here is an error that says so."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"unknown device {name!r}: cpu or cuda, or cuda:1 for a second GPU") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"unknown device {name!r}: cpu or cuda, or cuda:1 for a second GPU")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"there is no device {name!r}: torch sees {torch.cuda.device_count()} CUDA devices here, try cpu"
        )
    return device
