"""Tables of any kind: files, data frames, and arrays in dicts, by an `el.ColumnMapping`.

The rule for the end of an episode: `terminated` and `truncated` are the columns of the mapping. `done` with
one of them gives the other; `done` alone does not tell the two apart, so such an episode is "cut", and so is
one without flags. Where a flag has no column, episodes that may have had it are counted as losses.

The rule for row T: a last row with an observation but neither action nor reward is the last observation (the
layout of `steps`); otherwise `next_observation` of the last transition is it; otherwise `last_observation=`
decides. A row without a reward column has the reward NaN.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds

from ...errors import DatasetError
from ...plugin import (
    ForeignDataset,
    ForeignTable,
    Format,
    ImportOptions,
    Losses,
    Match,
    check_bytes,
    space_from_json,
)
from ...plugin.files import exists
from ...readers.exporting.tables import CARD_KEY, ROLLOUTS_KEY, SPACES_KEY
from ...writers.importing.boundary import Files, closed_on_error
from ...writers.importing.episode_rows import SpanDataset
from ...writers.importing.formats import NO_REWARDS, SPACES
from .arrays import is_dicts
from .convert import Endings, convert
from .files import EXPECTED, columns_of_files, kind_of_files
from .mapping import ResolvedMapping, default_mapping, leaves
from .opening import delta_table, is_delta, is_huggingface, is_pandas, table_files
from .rows import TableRows
from .spaces import ImageColumns, LeafRanges, infer_space, kind_of_leaf, shape_of
from .spans import Span, find_spans


def columns_of(source: Any) -> tuple[list[str], int] | None:
    """Return the columns of a table without reading its rows, and how many files it has; None if it is no
    table.
    """
    if isinstance(source, pl.LazyFrame):
        return source.collect_schema().names(), 1
    if isinstance(source, pa.RecordBatchReader):
        return source.schema.names, 1
    if isinstance(source, duckdb.DuckDBPyRelation):
        return source.columns, 1
    files = source if isinstance(source, Files) else None
    if isinstance(source, str | Path):
        path = Path(source)
        if is_delta(path):
            return [field.name for field in delta_table(path).schema().fields], 1
        files = table_files(path)
        if files is None:
            return None
    kind = None if files is None else kind_of_files(files)
    if files is not None and kind not in ("parquet", "ipc"):
        return (columns_of_files(files), len(files.paths)) if kind else None
    dicts = isinstance(source, Mapping) or is_dicts(source)
    table = pl.DataFrame | pa.Table | pa.RecordBatch | ds.Dataset
    known = dicts or isinstance(source, table) or is_huggingface(source) or is_pandas(source)
    if files is None and not known and not hasattr(source, "to_pyarrow_dataset"):
        return None
    rows = TableRows(source, looking=True)
    try:
        return rows.names, 1 if files is None else len(files.paths)
    finally:
        rows.close()


_PART_BYTES = 8 << 20
_MOST_ROWS = 1 << 16


def _detect(source: Any) -> Match:
    """Compare the columns with those of the default mapping."""
    looked_at = columns_of(source)
    if looked_at is None:
        # The columns of a stream show when it is read.
        return Match("it is no table", 9, related=False, mappable=hasattr(source, "__arrow_c_stream__"))
    columns, files = looked_at
    mapping, lacking = default_mapping(columns, many=files > 1)
    if mapping is None:
        return Match(f"it has no column for {', '.join(lacking)}", len(lacking), mappable=True)
    return Match(f"it has the columns {', '.join(columns[:8])}")


def _open(source: Any, options: ImportOptions) -> ForeignDataset:
    """Open a table and find its episodes."""
    if isinstance(source, str | Path) and not exists(Path(source)):
        raise DatasetError(f"{source} does not exist. {EXPECTED}")
    rows = TableRows(source)
    with closed_on_error(rows):
        return _Table(rows, options)


class _Table(SpanDataset[Span]):
    def __init__(self, rows: TableRows, options: ImportOptions) -> None:
        super().__init__()
        self._rows = rows
        self._map = ResolvedMapping.of(options.mapping, rows.schema, rows.name, many=rows.many)
        stated = rows.schema.metadata or {}
        self.card = json.loads(stated.get(CARD_KEY, b"{}"))
        if options.mapping is None and options.observation_space is None and options.action_space is None:
            self.rollouts = json.loads(stated.get(ROLLOUTS_KEY, b"null"))
        options = _as_exported(options, rows.schema)
        names = rows.schema.names
        self._columns = _following_columns(self._map.passed, names)
        self._read = list(dict.fromkeys([*self._map.columns, *self._columns.values()]))
        ranges = LeafRanges(
            self._map,
            rows.schema,
            observation=options.observation_space is None,
            action=options.action_space is None,
        )
        spans = find_spans(rows, self._map, ranges, self._read, sort=True)
        self._endings = Endings(options.last_observation, self._map.following is not None)
        self._spans = [span for span in spans if span.fault or self._endings.length(span) > 0]
        self.count = len(self._spans)
        self.observation_space = options.observation_space or infer_space(
            self._map.observation, rows, ranges, "observation"
        )
        self.action_space = options.action_space or infer_space(self._map.action, rows, ranges, "action")
        self._images = ImageColumns(self._map, rows.schema, self.observation_space, rows.name)
        self.reward_shape = _reward_shape(self._map.reward, rows)
        self.mapping = self._map.described()
        self._reader = _Reader(rows, self._read)
        self._count_losses(spans, names)

    def _count_losses(self, spans: Sequence[Span], names: Sequence[str]) -> None:
        losses = self.losses
        for name in names:
            if name not in self._read and name not in self._rows.added:
                losses.add(
                    f"the column {name}, which the mapping leaves out", sum(span.rows for span in spans)
                )
        self._endings.count_empty(spans, losses)
        losses.add("a source_key that is no text, or that others have too", _drop_unusable_keys(spans))
        if self._map.reward is None:
            losses.add(NO_REWARDS, sum(map(self._endings.length, self._spans)))
        _count_flags(self._map, self._spans, self._endings, losses)
        if self._map.agent is not None:
            losses.add("that agents acted together: each has episodes of its own", len(self._spans))

    def spans(self) -> Sequence[Span]:
        return self._spans

    def part_rows(self) -> int:
        return min(self._rows.rows_of(_PART_BYTES, self._read), self._images.rows or _MOST_ROWS)

    def load_spans(self, spans: Sequence[Span]) -> ForeignTable:
        if spans[0].fault:
            raise DatasetError(
                f"{spans[0].fault} Repair the table, or pass on_error='skip' (--skip-errors) to leave out "
                "such episodes."
            )
        longest = max(spans, key=lambda span: span.rows)
        size = self._rows.bytes_of(longest.rows, self._read)
        check_bytes(f"{self._rows.name}: episode {longest.name}", size)
        rows = self._reader.read(spans[0].start, _end(spans[-1]))
        lasts = [_end(span) - 1 - spans[0].start for span in spans]
        rows = self._images.decode(rows, lasts, self.losses)
        return convert(rows, spans, self._map, self._columns, self._endings, self.losses)

    def close(self) -> None:
        """Delete the copies of rows."""
        self._reader.close()
        self._rows.close()


class _Reader:
    """Reads ranges of rows; quick where each begins after the one before."""

    def __init__(self, rows: TableRows, columns: Sequence[str]) -> None:
        self._rows = rows
        self._columns = columns
        self._batches: Iterator[pa.RecordBatch] = iter(())
        # Buffered rows, and where they begin.
        self._held: list[pa.RecordBatch] = []
        self._start = self._stop = 0
        self._begun = False

    def read(self, start: int, stop: int) -> pa.Table:
        """Return the rows from `start` to `stop`."""
        if not self._begun or start < self._start:
            self._batches, self._held = self._rows.batches(self._columns), []
            self._start = self._stop = 0
            self._begun = True
        while self._held and self._start + self._held[0].num_rows <= start:
            self._start += self._held.pop(0).num_rows
        while self._stop < stop:
            batch = next(self._batches)
            self._stop += batch.num_rows
            if self._stop <= start:
                self._start = self._stop
            else:
                self._held.append(batch)
        return pa.Table.from_batches(self._held).slice(start - self._start, stop - start)

    def close(self) -> None:
        """Stop reading."""
        self._batches, self._held, self._begun = iter(()), [], False


def _as_exported(options: ImportOptions, schema: pa.Schema) -> ImportOptions:
    """Return the options with the spaces that an export to Parquet states, unless others are given."""
    stated = (schema.metadata or {}).get(SPACES_KEY)
    if stated is None or options.mapping is not None:
        return options
    observation_space, action_space = (space_from_json(each) for each in json.loads(stated))
    return replace(
        options,
        observation_space=options.observation_space or observation_space,
        action_space=options.action_space or action_space,
    )


def _drop_unusable_keys(spans: Sequence[Span]) -> int:
    """Take away source keys that are no text, or that several episodes have; return how many."""
    counts = Counter(span.source_key for span in spans if isinstance(span.source_key, str))
    unusable = [span for span in spans if span.source_key is not None and counts[span.source_key] != 1]
    for span in unusable:
        span.source_key = None
    return len(unusable)


def _end(span: Span) -> int:
    return span.start + span.rows


def _following_columns(passed: Any, names: Sequence[str]) -> dict[str, str]:
    """Return columns of our exports whose value on row T is in a column `next_...` of the last transition."""
    return {name: f"next_{column}" for name, column in passed.items() if f"next_{column}" in names}


def _reward_shape(tree: Any, rows: TableRows) -> tuple[int, ...]:
    if tree is None:
        return ()
    (leaf, *others) = leaves(tree)
    if others:
        raise DatasetError(f"{rows.name}: the reward has several parts; expected numbers, or lists of them.")
    if leaf.vector:
        return (len(leaf.columns),)
    kind = kind_of_leaf(leaf, rows.schema)
    return shape_of(leaf, kind, rows)[0][:1]


def _count_flags(mapping: Any, spans: Sequence[Span], endings: Endings, losses: Losses) -> None:
    """Count the episodes that may have had a flag that the table does not state."""
    terminated = mapping.terminated is not None or (
        mapping.done is not None and mapping.truncated is not None
    )
    truncated = mapping.truncated is not None or (mapping.done is not None and mapping.terminated is not None)
    if terminated and truncated:
        return
    cut = sum(not any(endings.flags(span, mapping)) for span in spans if not span.fault)
    lacking = " and ".join(
        name for name, there in (("terminated", terminated), ("truncated", truncated)) if not there
    )
    losses.add(f"whether an episode was {lacking}, which the table does not state: it is cut", cut)


FORMAT = Format(
    "table",
    None,
    "a table, files or dicts of arrays with the columns of `steps` or obvious names; others with "
    "mapping=el.ColumnMapping(...)",
    _detect,
    _open,
    ("mapping", *SPACES),
    general=True,
)
