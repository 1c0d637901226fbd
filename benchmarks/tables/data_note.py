"""The sentence beside a table whose transformers did not see the whole of their task's data."""

from collections.abc import Mapping


def with_data_notes(text: str, trained_on: Mapping[str, str | None]) -> str:
    """A table, followed by a sentence about the configs whose data fall short; ``trained_on`` says by what."""
    short: dict[str, list[str]] = {}
    for config, note in trained_on.items():
        if note is not None:
            short.setdefault(note, []).append(config)
    notes = [
        f"The transformers of {' and '.join(configs)} were trained on {note}, the paper's on all of it."
        for note, configs in short.items()
    ]
    return "\n\n".join([text, *notes])
