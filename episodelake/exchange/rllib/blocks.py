"""RLlib's Parquet and JSON files as blocks of rows: one row per transition, with RLlib's column names.

Ray Data stores arrays as lists with the shape in the column's metadata, and other objects pickled. RLlib can
compress columns: base64 of LZ4 of a pickled array. Both kinds of pickle are read only with `trust=True`.
"""

from __future__ import annotations

import base64
import json
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...errors import DatasetError
from ...plugin import LISTS, check_unpickled, plain_array, reading, require
from ...writers.importing.boundary import bounded_line, check_groups
from ...writers.importing.columns import array_column, fixed_lists

EXTRA = "'episodelake[rllib]'"
#: Columns of a batch that have one value for each sequence, not for each transition.
_SEQUENCES = re.compile(r"seq_lens|state_(in|out)(_\d+)?")
#: Columns with RLlib's own numbers of fragments and kinds of batches; no outputs of a policy.
NUMBERING = ("unroll_id", "type")
#: How base64 of an LZ4 frame begins.
_LZ4 = "BCJNGG"
_TENSOR, _RAGGED, _OBJECT = "arrow_tensor", "arrow_variable_shaped_tensor", "arrow_pickled_object"


@dataclass(frozen=True)
class Source:
    """Files in order, and how they are read.

    Attributes:
        files: the files.
        names: RLlib's name of each column whose name in the files is another.
        policy: which of several policies to read; None if there is one.
        left_out: columns that were skipped so far, each with the reason.
    """

    files: Sequence[Path]
    names: Mapping[str, str]
    policy: str | None
    left_out: dict[str, str] = field(default_factory=dict)

    def own(self, name: str) -> str | None:
        """Return RLlib's name of a column; None if another column has that name, and this one is left out."""
        own = self.names.get(name, name)
        if own == name and name not in self.names and name in self.names.values():
            self.left_out[name] = "whose name the mapping gives to another column"
            return None
        return own


@dataclass(frozen=True)
class Block:
    """Rows of one row group, or of one batch.

    Attributes:
        place: the file, and where in it, for errors.
        file: the file; those of one call of RLlib's recorder have a folder of their own.
        rows: how many there are.
        read: reads some columns, those of them that exist; None for all.
    """

    place: str
    file: Path
    rows: int
    read: Callable[[Sequence[str] | None], pa.Table]


def row_blocks(source: Source) -> Iterator[Block]:
    """Yield the row groups of Parquet files with a row for each transition.

    Raises:
        DatasetError: a file cannot be read.
    """
    for path in source.files:
        file = parquet_file(path)
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            yield Block(f"{path}, row group {group}", path, rows, partial(_read_rows, source, path, group))


def batch_blocks(source: Source) -> Iterator[Block]:
    """Yield the batches of Parquet files with a `SampleBatch` in each row.

    Raises:
        DatasetError: a file cannot be read, or a batch has columns of different lengths.
    """
    groups = _RowGroups(source)
    for path in source.files:
        file = parquet_file(path)
        for group in range(file.num_row_groups):
            for row in range(file.metadata.row_group(group).num_rows):
                read = partial(_read_batch, groups, path, group, row)
                yield Block(f"{path}, batch {row}", path, read(["rewards"]).num_rows, read)


def json_blocks(source: Source) -> Iterator[Block]:
    """Yield the batches of JSON lines, as `JsonWriter` writes them.

    Raises:
        DatasetError: a line is no batch, or has columns of different lengths.
    """
    for path in source.files:
        offset, number = 0, 1
        with path.open("rb") as lines:
            while line := bounded_line(lines, place := f"{path}, line {number}"):
                if line.strip():
                    read = partial(_read_line, source, path, offset, place)
                    yield Block(place, path, read(["rewards"]).num_rows, read)
                offset, number = offset + len(line), number + 1


def parquet_file(path: Path) -> pq.ParquetFile:
    """Open a Parquet file.

    Raises:
        DatasetError: it is damaged.
    """
    with reading(path, "is no whole Parquet file"):
        return pq.ParquetFile(path)


def _read_rows(source: Source, path: Path, group: int, columns: Sequence[str] | None) -> pa.Table:
    table = _read_group(source, path, group, columns)
    place = f"{path}, row group {group}"
    present = [_plain(column, own, f"{place}, column {own.name!r}") for column, own in _columns(table)]
    return pa.table(present, names=table.column_names)


class _RowGroups:
    """Reads row groups and keeps the last one, whose batches are asked for one by one."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._last: tuple[Any, pa.Table] | None = None

    def read(self, path: Path, group: int, columns: Sequence[str] | None) -> pa.Table:
        """Return some columns of a row group; None for all."""
        asked = (path, group, columns)
        if self._last is None or self._last[0] != asked:
            self._last = None
            self._last = asked, _read_group(self.source, path, group, columns)
        return self._last[1]


def _read_batch(
    groups: _RowGroups, path: Path, group: int, row: int, columns: Sequence[str] | None
) -> pa.Table:
    table = groups.read(path, group, columns).slice(row, 1)
    place = f"{path}, batch {row}"
    arrays: dict[str, pa.Array] = {}
    for column, own in _columns(table):
        where = f"{place}, column {own.name!r}"
        if isinstance(column.type, LISTS):
            arrays[own.name] = _unpacked(_flattened(column), where)
        elif own.name not in ("type", "count"):
            (whole,) = column.to_pylist()
            arrays[own.name] = to_arrow(_unpack(whole, where), where)
    return _batch(groups.source, arrays, place)


def _read_line(
    source: Source, path: Path, offset: int, place: str, columns: Sequence[str] | None
) -> pa.Table:
    with path.open("rb") as file:
        file.seek(offset)
        line = bounded_line(file, place)
    try:
        batch = json.loads(line)
        kind = batch.get("type")
    except (ValueError, AttributeError) as error:
        raise DatasetError(f"{place} is no JSON object: {error}") from error
    if kind == "MultiAgentBatch":
        batch = _of_policy(batch["policy_batches"], source.policy, place)
    elif kind != "SampleBatch":
        raise DatasetError(f"{place} has type {kind!r}; expected SampleBatch or MultiAgentBatch.")
    arrays: dict[str, pa.Array] = {}
    for name, values in batch.items():
        own = source.own(name)
        if own not in ("type", "count", None) and (columns is None or own in columns):
            where = f"{place}, column {name!r}"
            arrays[own] = to_arrow(_unpack(values, where) if isinstance(values, str) else values, where)
    return _batch(source, arrays, place)


def _of_policy(batches: Mapping[str, Any], policy: str | None, place: str) -> Any:
    if policy is None and len(batches) == 1:
        (batch,) = batches.values()
        return batch
    if policy is None or policy not in batches:
        raise DatasetError(
            f"{place} has batches of the policies {', '.join(batches)}; policy {policy!r} is none of them. "
            f"Choose one with mapping={{'policy': {next(iter(batches), '')!r}}}, and a store for each."
        )
    return batches[policy]


def _batch(source: Source, columns: dict[str, pa.Array], place: str) -> pa.Table:
    kept = {name: column for name, column in columns.items() if not _SEQUENCES.fullmatch(name)}
    for name in columns.keys() - kept.keys():
        source.left_out[name] = "which has values of sequences, not of steps"
    lengths = {name: len(column) for name, column in kept.items()}
    if len(set(lengths.values())) > 1:
        raise DatasetError(f"{place} has columns of different lengths: {lengths}.")
    return pa.table(kept)


def _read_group(source: Source, path: Path, group: int, columns: Sequence[str] | None) -> pa.Table:
    file = parquet_file(path)
    owned = {name: source.own(name) for name in file.schema_arrow.names}
    wanted = [name for name, own in owned.items() if own and (columns is None or own in columns)]
    check_groups(f"{path}, row group {group}", file.metadata, [group])
    with reading(f"{path}, row group {group},"):
        table = file.read_row_group(group, wanted)
    return table.rename_columns([owned[name] for name in table.column_names])


def _columns(table: pa.Table) -> Iterator[tuple[pa.Array, pa.Field]]:
    for column, own in zip(table.columns, table.schema, strict=True):
        yield plain_array(pa.concat_arrays([*column.chunks, pa.nulls(0, column.type)])), own


def _flattened(column: pa.Array) -> pa.Array:
    return pc.call_function("list_flatten", [column])


def _plain(column: pa.Array, field: pa.Field, place: str) -> pa.Array:
    """Return a column of Ray Data, or one that RLlib compressed, as plain Arrow values."""
    name = (field.metadata or {}).get(b"ARROW:extension:name", b"").decode()
    stated = (field.metadata or {}).get(b"ARROW:extension:metadata", b"")
    if isinstance(column.type, pa.BaseExtensionType):
        name, stated = column.type.extension_name, column.type.__arrow_ext_serialize__()
        column = column.storage
    if _OBJECT in name:
        check_unpickled(place)
        return to_arrow(
            [None if value is None else pickle.loads(value) for value in column.to_pylist()], place
        )
    if _RAGGED in name:
        shapes = column.field("shape").to_pylist()
        if any(shape != shapes[0] for shape in shapes):
            raise DatasetError(f"{place} has arrays of different shapes, such as {shapes[0]}.")
        return fixed_lists(_flattened(column.field("data")), shapes[0] if shapes else [0], len(column))
    if _TENSOR in name:
        return fixed_lists(_flattened(column), json.loads(stated), len(column))
    return _unpacked(column, place)


def _unpacked(column: pa.Array, place: str) -> pa.Array:
    """Decompress each value of a column, if they are compressed."""
    texts = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if not texts or not _is_packed(next(iter(column.drop_null()), pa.scalar(""))):
        return column
    return to_arrow([_unpack(value, place) for value in column.to_pylist()], place)


def _is_packed(text: Any) -> bool:
    return str(text).startswith(_LZ4)


def _unpack(packed: str, place: str) -> Any:
    """Return the values of a text that RLlib's `pack` made."""
    check_unpickled(place)
    lz4 = require("lz4.frame", "Reading compressed columns of RLlib", EXTRA)
    with reading(place, "cannot be decompressed"):
        return pickle.loads(lz4.decompress(base64.b64decode(packed)))


def to_arrow(values: Any, place: str) -> pa.Array:
    """Return stacked or listed values as Arrow: arrays as nested lists of a fixed size, dicts as structs.

    Raises:
        DatasetError: they have no common type.
    """
    if isinstance(values, Mapping):
        parts = {str(key): to_arrow(part, place) for key, part in values.items()}
        return pa.StructArray.from_arrays(list(parts.values()), list(parts))
    if isinstance(values, list) and values and isinstance(values[0], np.ndarray | np.generic):
        try:
            values = np.stack(values)
        except ValueError as error:
            raise DatasetError(f"{place} has arrays of different shapes: {error}") from error
    if isinstance(values, np.ndarray) and values.dtype != object:
        return array_column(values)
    if isinstance(values, list) and values and _holds_arrays(values[0]):
        return to_arrow({key: [value[key] for value in values] for key in values[0]}, place)
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DatasetError(f"{place} has values of several types: {error}") from error


def _holds_arrays(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return True
    return isinstance(value, Mapping) and any(map(_holds_arrays, value.values()))
