"""A folder for `datasets.load_dataset`: shards of Parquet in `data/`, and the dataset card `README.md`.

The rows are those of the format `parquet`, so the import of tables reads the folder back. Frames are PNG
images. The card's front matter states features and sizes; its text comes from the card of the store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ....store.dynamic.column_groups import METADATA
from ....store.errors import DatasetError, InvalidArgumentError
from ....store.names import SPACES_KEY
from ....store.optional_packages import EXPLORE
from ....store.reserved import EPISODE
from ....store.spaces import space_to_json
from ....store.suggestions import suggest
from ..tables import OPTIONS, TableExport
from ..target import Export
from .card import SplitSizes, write_card
from .features import IMAGES, IMAGES_OPTION, FeatureColumns

_SHARD_MB = 500
_TRAIN = "train"
#: As `datasets` has it.
_SPLIT = re.compile(r"\w+(\.\w+)*")


class _Format:
    name = "huggingface"
    extra = EXPLORE
    folder = True
    agents = False
    annotations = True
    options: ClassVar[dict[str, str]] = {
        **OPTIONS,
        **IMAGES_OPTION,
        "split": "the key of the metadata that names the split of an episode; all are in train by default",
        "shard_mb": f"megabytes of a shard before compression, {_SHARD_MB} by default",
    }

    def write(self, export: Export, target: Path) -> None:
        """Write the folder.

        Raises:
            InvalidArgumentError: an option is not valid.
            DatasetError: an episode has no split.
            MissingPackageError: there are images, and Pillow is not installed.
        """
        limit = export.options.get("shard_mb", _SHARD_MB)
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0:
            raise InvalidArgumentError(f"shard_mb={limit!r}: expected a number above 0.")
        snapshot = export.context.snapshot
        columns = FeatureColumns(snapshot.schema, export.options.get("images", IMAGES[0]))
        table = TableExport(export, columns.with_images)
        key = export.options.get("split")
        column = None if key is None else _split_column(table.schema, key)
        manifest = snapshot.manifest
        spaces = [space_to_json(manifest.observation_space), space_to_json(manifest.action_space)]
        schema = columns.schema(table.schema)
        schema = schema.with_metadata({**schema.metadata, SPACES_KEY: json.dumps(spaces)})
        (target / "data").mkdir(parents=True)
        shards = {_TRAIN: _Shards(target / "data", _TRAIN, schema, limit * 1e6)} if column is None else {}
        try:
            for rows in table.batches():
                for name, part in [(_TRAIN, rows)] if column is None else _by_split(rows, column):
                    if name not in shards:
                        shards[name] = _Shards(target / "data", name, schema, limit * 1e6)
                    shards[name].write(columns.finish(part).cast(schema))
            sizes = [each.finish() for each in shards.values()]
        finally:
            for each in shards.values():
                each.close()
        write_card(export, target / "README.md", columns.features(table.schema), sizes)


@dataclass
class _Shards:
    """The shards of a split, which get their names when their number is known."""

    folder: Path
    split: str
    schema: pa.Schema
    limit: float
    files: list[Path] = field(default_factory=list)
    rows: int = 0
    size: int = 0
    _held: int = 0
    _writer: pq.ParquetWriter | None = None

    def write(self, rows: pa.Table) -> None:
        """Append rows as a row group."""
        if self._writer is None or (self._held and self._held + rows.nbytes > self.limit):
            self.close()
            self.files.append(self.folder / f"{self.split}-{len(self.files):05d}.parquet")
            self._writer = pq.ParquetWriter(self.files[-1], self.schema, compression="zstd")
            self._held = 0
        self._writer.write_table(rows)
        self.rows += rows.num_rows
        self.size += rows.nbytes
        self._held += rows.nbytes

    def close(self) -> None:
        """Close the file that is being written."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def finish(self) -> SplitSizes:
        """Give the shards their names; a split has one at least."""
        if not self.files:
            self.write(self.schema.empty_table())
        self.close()
        size = 0
        for index, file in enumerate(self.files):
            name = f"{self.split}-{index:05d}-of-{len(self.files):05d}.parquet"
            size += file.rename(file.with_name(name)).stat().st_size
        return SplitSizes(self.split, self.rows, self.size, size)


def _split_column(schema: pa.Schema, key: Any) -> str:
    name = METADATA.column([key]) if isinstance(key, str) else ""
    if name not in schema.names:
        known = [column for column in schema.names if column.startswith(METADATA.prefix)]
        keys = [".".join(METADATA.path(column)) for column in known]
        raise InvalidArgumentError(
            f"split={key!r}: episodes have no metadata of this key.{suggest(str(key), keys)} Keys: "
            f"{', '.join(keys) or 'none'}."
        )
    return name


def _by_split(rows: pa.Table, column: str) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each split; the rows of an episode are neighbours."""
    episodes = rows.column(EPISODE).to_numpy()
    numbers, first, owner = np.unique(episodes, return_index=True, return_inverse=True)
    values = rows.column(column).take(pa.array(first)).to_pylist()
    names = [_split_name(value, number, column) for number, value in zip(numbers, values, strict=True)]
    for name in dict.fromkeys(names):
        chosen = np.array([each == name for each in names])[owner]
        yield name, rows.filter(pa.array(chosen))


def _split_name(value: Any, number: int, column: str) -> str:
    name = value[0] if isinstance(value, list) and len(value) == 1 else value
    if not isinstance(name, str) or not _SPLIT.fullmatch(name):
        raise DatasetError(
            f"Episode {number} of the view has {column} = {value!r:.100}, which names no split; expected one "
            "word of letters, digits and underscores, such as 'train'. Annotate the episodes, or leave out "
            "split=."
        )
    return name


FORMAT = _Format()
