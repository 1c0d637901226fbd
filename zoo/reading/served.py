"""Checkpoints streamed from a web server, all of them: a file that ends early is read again, or is an error.

An Arrow stream that is cut between two record batches reads as a shorter one, and a connection that drops, or a server
that answers with less than was asked for, can cut it anywhere. So the rows of each file are counted, and compared with
the manifest.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import datasets
import pyarrow as pa
from datasets.builder import Key
from datasets.data_files import DataFilesDict, DataFilesList
from datasets.packaged_modules.arrow.arrow import Arrow, ArrowConfig

from zoo.command import one_line
from zoo.format.manifest import Manifest
from zoo.format.published import ConfigDetails, split_files
from zoo.format.schema import checkpoint_schema
from zoo.format.splits import SPLITS

ATTEMPTS = 3


@dataclass
class ServedConfig(ArrowConfig):
    """``rows`` counts what the manifest promises of each file, by its address."""

    rows: dict[str, int] = field(default_factory=dict)


class ServedArrow(Arrow):
    """The library's own reader of Arrow files, with a count of the rows."""

    BUILDER_CONFIG_CLASS = ServedConfig

    def _generate_tables(self, files: list[str]) -> Generator[tuple[Key, pa.Table], Any, None]:
        for index, file in enumerate(files):
            assert isinstance(self.config, ServedConfig)
            promised = self.config.rows[file]
            batches = rows = 0
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    for number, (_, table) in enumerate(super()._generate_tables([file])):
                        if number >= batches:
                            batches, rows = batches + 1, rows + len(table)
                            yield Key(index, number), table
                    if rows == promised:
                        break
                    fault = "the stream ended"
                # what the library gave up on after its own retries
                except (ConnectionError, FileNotFoundError) as error:
                    raise ConnectionError(f"{file} cannot be read: {one_line(error)}") from error
                except (OSError, ValueError, pa.ArrowException, aiohttp.ClientError) as error:
                    fault = one_line(error)
                if attempt == ATTEMPTS or rows > promised:
                    raise ConnectionError(
                        f"{file} cannot be read: {rows:,} of {promised:,} rows in {attempt} attempts ({fault})"
                    )


def stream_served(
    address: str, config: str, details: ConfigDetails, manifest: Manifest, split: str | None, **arguments: Any
) -> Any:
    """A served config as ``IterableDataset``, or one per split for None."""
    names = {part: split_files(manifest, config, part) for part in SPLITS}
    addresses = {part: [f"{address}/{name}" for name in files] for part, files in names.items()}
    builder = ServedArrow(
        # given outright: the library would ask the server for each file, and open one for its columns
        data_files=DataFilesDict(
            {part: DataFilesList(files, [() for _ in files]) for part, files in addresses.items()}
        ),
        rows={f"{address}/{name}": manifest.files[name].rows or 0 for files in names.values() for name in files},
        **{"features": datasets.Features.from_arrow_schema(checkpoint_schema(details.spec)), **arguments},
    )
    return builder.as_streaming_dataset(split=split)
