"""Which split a run belongs to: a function of its id alone, so that adding runs never moves one."""

import hashlib

SPLITS = ("train", "validation", "test")
TRAIN_SHARE, VALIDATION_SHARE = 0.70, 0.15


def run_digest(run_id: str) -> bytes:
    """The hash that places a run; in the order of these digests any stretch of runs is a random sample of them."""
    return hashlib.sha256(run_id.encode()).digest()


def split_of(run_id: str) -> str:
    """The first 64 bits of the digest, as a number in [0, 1): below 0.70 train, below 0.85 validation, else test."""
    position = int.from_bytes(run_digest(run_id)[:8], "big") / 2**64
    if position < TRAIN_SHARE:
        return "train"
    return "validation" if position < TRAIN_SHARE + VALIDATION_SHARE else "test"
