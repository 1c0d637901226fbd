"""The bridge to ``datasets``: a builder whose files are those a manifest lists, read with the zoo's own checks.

The library's own reader takes what a folder's card names, wherever that is, unpacks compressed batches, and reads an
Arrow stream that is cut between two record batches as a shorter one. Here the files come from the manifest alone, every
message is checked before Arrow sees it, and the names in its rows after; the rows of each file are compared with the
manifest. So however a split is written (``train+test``, ``train[:100%]``), rows that are missing are an error.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import datasets
import pyarrow as pa
from datasets.builder import Key
from datasets.table import table_cast

from zoo.format.faults import name_faults, refuse
from zoo.reading.listed_file import ListedFile


@dataclass
class ManifestConfig(datasets.BuilderConfig):
    """``files`` are those of each split; ``schema`` is what each of them must have."""

    files: dict[str, list[ListedFile]] = field(default_factory=dict)
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    features: datasets.Features | None = None


class ManifestBuilder(datasets.ArrowBasedBuilder):
    """Rows of a published zoo, from a folder or a web server."""

    BUILDER_CONFIG_CLASS = ManifestConfig

    @property
    def listed(self) -> ManifestConfig:
        assert isinstance(self.config, ManifestConfig)
        return self.config

    def _info(self) -> datasets.DatasetInfo:
        features = self.listed.features or datasets.Features.from_arrow_schema(self.listed.schema)
        return datasets.DatasetInfo(features=features)

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        return [
            datasets.SplitGenerator(name=split, gen_kwargs={"files": files})
            for split, files in self.listed.files.items()
        ]

    def _generate_tables(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, files: list[ListedFile]
    ) -> Generator[tuple[Key, pa.Table], Any, None]:
        for number, file in enumerate(files):
            before = 0
            for index, batch in enumerate(file.batches(self.listed.schema)):
                table = pa.Table.from_batches([batch])
                refuse(name_faults(table), lambda row, file=file, before=before: (str(file), before + row))
                before += len(table)
                if self.listed.features is not None:
                    table = table_cast(table, self.listed.features.arrow_schema)
                yield Key(number, index), table
