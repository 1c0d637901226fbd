"""The sentence beside a table whose transformers did not see the whole of their task's data."""

from collections.abc import Mapping


def with_data_notes(text: str, trained_on: Mapping[str, str | None]) -> str:
    """A table, followed by a sentence for each config whose data fall short; ``trained_on`` says by what."""
    notes = [
        f"The transformers of {config} were trained on {note}, the paper's on all of it."
        for config, note in trained_on.items()
        if note is not None
    ]
    return "\n\n".join([text, *notes])
