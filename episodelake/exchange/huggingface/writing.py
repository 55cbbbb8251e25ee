"""A folder for `datasets.load_dataset`: shards of Parquet in `data/`, and the dataset card `README.md`.

The rows are those of the format `parquet`, so the import of tables reads the folder back. Frames are PNG
images. The card's front matter states features and sizes; its text comes from the card of the store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ... import EpisodeView
from ...errors import DatasetError, InvalidArgumentError
from ...plugin import (
    LISTS,
    Export,
    FixedNode,
    Option,
    StepSchema,
    collected,
    export_format,
    require,
    suggest,
)
from ...plugin.columns import EPISODE, METADATA, next_name
from ...readers.exporting.conversions import Converted, table_of
from ...readers.exporting.shards import ShardWriter, array_column, image_files, is_image
from ...readers.exporting.tables import LAYOUT, TABLES, TableExport
from .card import SplitSizes, write_card

#: How frames, arrays of uint8, are kept.
IMAGES = Option.choice("png, which is lossless (the default), or array", "png", "array")
_DTYPES = {pa.float16(): "float16", pa.float32(): "float32", pa.float64(): "float64"}
_MOST_DIMENSIONS = 5
#: Rows that become features at a time: the files of their images fit into one Arrow array.
_FEATURE_ROWS = 1 << 12


class FeatureColumns:
    """The features of tables that have the columns of `steps`, and of their next observations.

    Args:
        schema: of the store.
        images: "png" or "array".
    """

    def __init__(self, schema: StepSchema, images: str) -> None:
        codecs = [codec for part in schema.parts for codec in (part.observation, part.action, part.reward)]
        by_column = {
            leaf.column: leaf for codec in codecs for leaf in codec.leaves if leaf.shape and leaf.size
        }
        by_column |= {
            after: leaf for name, leaf in by_column.items() if (after := next_name(name)) is not None
        }
        # Imports decode images of observations alone.
        seen = {
            leaf.column
            for part in schema.parts
            for leaf in part.observation.leaves
            if is_image(leaf.native, leaf.shape, grey=True)
        }
        self._images = {
            name: leaf for name, leaf in by_column.items() if images == "png" and leaf.column in seen
        }
        self._arrays = {
            name: leaf
            for name, leaf in by_column.items()
            if name not in self._images and len(leaf.shape) <= _MOST_DIMENSIONS
        }

    def with_images(self, table: pa.Table) -> pa.Table:
        """Return a table with frames as images.

        Raises:
            MissingPackageError: Pillow is not installed.
        """
        for name, leaf in self._images.items():
            if name in table.column_names:
                index = table.column_names.index(name)
                table = table.set_column(index, name, _encoded(table.column(name), leaf))
        return table

    def features(self, schema: pa.Schema) -> dict[str, Any]:
        """Return the features of a table with images, as `datasets.Features.to_dict` gives them."""
        return {field.name: self._feature(field) for field in schema}

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of a table with images as `finish` makes it, with its features."""
        fields = [self._field(field) for field in schema]
        described = json.dumps({"info": {"features": self.features(schema)}})
        return pa.schema(fields, metadata={"huggingface": described})

    def finish(self, table: pa.Table) -> pa.Table:
        """Return a table with images with its vectors and arrays as `datasets` has them."""
        columns = [
            _shaped(table.column(name), self._arrays[name]) if name in self._arrays else table.column(name)
            for name in table.column_names
        ]
        return pa.Table.from_arrays(columns, schema=self.schema(table.schema))

    def _feature(self, field: pa.Field) -> dict[str, Any]:
        leaf = self._arrays.get(field.name)
        if leaf is None:
            return {"_type": "Image"} if field.name in self._images else _plain_feature(field.type)
        dtype = _dtype(pa.from_numpy_dtype(leaf.native))
        if len(leaf.shape) == 1:
            return {"feature": {"dtype": dtype, "_type": "Value"}, "length": leaf.size, "_type": "List"}
        return {"shape": list(leaf.shape), "dtype": dtype, "_type": f"Array{len(leaf.shape)}D"}

    def _field(self, field: pa.Field) -> pa.Field:
        leaf = self._arrays.get(field.name)
        if leaf is None:
            return field
        kind = pa.from_numpy_dtype(leaf.native)
        if len(leaf.shape) == 1:
            return pa.field(field.name, pa.list_(kind, leaf.size))
        extension = {
            "ARROW:extension:name": f"datasets.features.features.Array{len(leaf.shape)}DExtensionType",
            "ARROW:extension:metadata": json.dumps([list(leaf.shape), _dtype(kind)]),
        }
        for _ in leaf.shape:
            kind = pa.list_(kind)
        return pa.field(field.name, kind, metadata=extension)


def _plain_feature(kind: pa.DataType) -> dict[str, Any]:
    if isinstance(kind, pa.StructType):
        return {field.name: _plain_feature(field.type) for field in kind}
    if isinstance(kind, LISTS):
        name = "LargeList" if isinstance(kind, pa.LargeListType) else "List"
        return {"feature": _plain_feature(kind.value_type), "_type": name}
    return {"dtype": _dtype(kind), "_type": "Value"}


def _dtype(kind: pa.DataType) -> str:
    return _DTYPES.get(kind, str(kind))


def _stacked(column: pa.ChunkedArray, leaf: FixedNode) -> np.ndarray:
    """Return the values that are not NULL in the dtype of the space; Polars has other types of lists."""
    array = column.drop_null().combine_chunks()
    return leaf.decode([array if array.type == leaf.fields[0].type else leaf.adopt(array)])


def _encoded(column: pa.ChunkedArray, leaf: FixedNode) -> pa.Array:
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    frames = _stacked(column, leaf)
    files = image_files(frames)
    return files if valid.all() else _spread(files, valid)


def _spread(values: pa.Array, valid: np.ndarray) -> pa.Array:
    """Return values as the rows where `valid` is set; the others are NULL."""
    return values.take(pa.array(np.maximum(np.cumsum(valid) - 1, 0), mask=~valid))


def _shaped(column: pa.ChunkedArray, leaf: FixedNode) -> pa.Array:
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    values = array_column(_stacked(column, leaf))
    return values if valid.all() else _spread(values, valid)


_SHARD_MB = 500
_TRAIN = "train"
#: As `datasets` has it.
_SPLIT = re.compile(r"\w+(\.\w+)*")


@export_format(
    "huggingface",
    extra="'episodelake[explore]'",
    folder=True,
    holds=TABLES,
    layout=LAYOUT,
    images=IMAGES,
    split=Option("the key of the metadata that names the split of an episode; all are in train by default"),
    shard_mb=Option.positive(f"megabytes of a shard before compression, {_SHARD_MB} by default", _SHARD_MB),
)
def write_huggingface(export: Export, target: Path) -> None:
    """Write the folder.

    Raises:
        InvalidArgumentError: an option is not valid.
        DatasetError: an episode has no split.
        MissingPackageError: there are images, and Pillow is not installed.
    """
    limit = export.options["shard_mb"] * 1e6
    snapshot = export.context.snapshot
    columns = FeatureColumns(snapshot.schema, export.options["images"])
    table = TableExport(export, columns.with_images, layout=export.options["layout"])
    key = export.options["split"]
    column = None if key is None else _split_column(table.schema, key)
    schema = columns.schema(table.schema)
    schema = schema.with_metadata({**schema.metadata, **table.file_metadata})
    (target / "data").mkdir(parents=True)
    shards = {_TRAIN: _Shards(target / "data", _TRAIN, schema, limit)} if column is None else {}
    try:
        for rows in table.batches():
            for name, part in [(_TRAIN, rows)] if column is None else _by_split(rows, column):
                if name not in shards:
                    shards[name] = _Shards(target / "data", name, schema, limit)
                shards[name].write(columns.finish(part).cast(schema))
        sizes = [each.finish() for each in shards.values()]
    finally:
        for each in shards.values():
            each.close()
    write_card(export, target / "README.md", columns.features(table.schema), sizes)


class _Shards(ShardWriter):
    """The shards of a split, which get their names when their number is known; each write is a row group."""

    def __init__(self, folder: Path, split: str, schema: pa.Schema, limit: float) -> None:
        super().__init__(
            lambda number: folder / f"{split}-{number:05d}.parquet",
            lambda path: pq.ParquetWriter(path, schema, compression="zstd"),
            limit,
        )
        self._split, self._schema, self._rows = split, schema, 0

    def write(self, rows: pa.Table) -> None:
        """Append rows as a row group."""
        self.file_for(rows.nbytes).write_table(rows)
        self._rows += rows.num_rows

    def finish(self) -> SplitSizes:
        """Give the shards their names; a split has one at least."""
        if not self.counts:
            self.write(self._schema.empty_table())
        files = self.rename(lambda number, count: f"{self._split}-{number:05d}-of-{count:05d}.parquet")
        return SplitSizes(self._split, self._rows, self.total, sum(file.stat().st_size for file in files))


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


def to_huggingface(view: EpisodeView, target: str, *, table: str, images: str) -> Converted:
    """Return the rows with their features; nothing is lost."""
    datasets = require("datasets", "view.to.huggingface()")
    columns = FeatureColumns(view.context.snapshot.schema, images)
    rows = collected(table_of(view, table)).to_arrow()
    starts = range(0, max(rows.num_rows, 1), _FEATURE_ROWS)
    parts = [columns.with_images(rows.slice(start, _FEATURE_ROWS)) for start in starts]
    features = datasets.Features.from_dict(columns.features(parts[0].schema))
    finished = pa.concat_tables(map(columns.finish, parts))
    return datasets.Dataset(datasets.table.table_cast(finished, features.arrow_schema)), {}
