"""Polars LazyFrames over exactly the files and rows of a snapshot."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from ..store.common.habits import meant
from ..store.delta.log import TableFile
from ..store.errors import EpisodelakeError, EpisodeNotFoundError, InvalidArgumentError
from ..store.files import Place, access_error, is_denied, is_passing
from ..store.files.access import check_process
from ..store.layout import EPISODES, RUNS, STEPS
from ..store.parquet.files import known_files
from ..store.snapshot import Snapshot
from ..store.tables.overflow import Overflow
from .context import ReadContext, refresh_hint
from .corruption import check_files, steps_places

POSITION = "_position"
_ROW = "_row"


def polars_schema(schema: pa.Schema) -> pl.Schema:
    """Return the Polars types of an Arrow schema."""
    # Not empty_table(), which imports pandas to make its arrays.
    frame = pl.from_arrow(pa.RecordBatchReader.from_batches(schema, []).read_all())
    assert isinstance(frame, pl.DataFrame)
    return frame.schema


def table_frame(snapshot: Snapshot, table: str, files: Sequence[TableFile] | None = None) -> pl.LazyFrame:
    """Return all rows of one table, in commit order; columns that a file lacks are null.

    Args:
        files: read these of the snapshot's files only; not for steps.
    """
    places = steps_places(snapshot) if table == STEPS else snapshot.places(table, files)
    return _table(snapshot, table, places)


def stored_frame(snapshot: Snapshot, table: str) -> pl.LazyFrame:
    """Return all rows of one table with the values and types of its files; not for steps."""
    return _scan(snapshot, snapshot.places(table), polars_schema(snapshot.table_schema(table)))


def _table(snapshot: Snapshot, table: str, places: list[Place]) -> pl.LazyFrame:
    """Return some files of a table, all numbers of a column in it."""
    frame = _scan(snapshot, places, polars_schema(snapshot.table_schema(table)))
    overflow = snapshot.overflow(table)
    return frame.with_columns(map(_filled, overflow.values())) if overflow else frame


def _filled(overflow: Overflow) -> pl.Expr:
    """Return the column with the numbers that the JSON column has; a predicate on it cannot skip files."""
    kind = polars_schema(pa.schema([(overflow.column.name, overflow.type)]))[overflow.column.name]

    def numbers(texts: pl.Series) -> pl.Series:
        values = pl.from_arrow(overflow.numbers(texts.to_arrow()))
        assert isinstance(values, pl.Series)
        return values

    others = pl.col(overflow.json_column).map_batches(numbers, return_dtype=kind, is_elementwise=True)
    return pl.coalesce(pl.col(overflow.column.name).cast(kind), others).alias(overflow.column.name)


def _scan(snapshot: Snapshot, places: list[Place], schema: pl.Schema) -> pl.LazyFrame:
    # In a forked child Polars would wait for threads that are not there.
    check_process()
    if not places:
        return pl.LazyFrame(schema=schema)
    # What was read to check small files need not be read again.
    known: Any = known_files(places)
    return pl.scan_parquet(
        [str(place) for place in places] if known is None else known,
        schema=schema,
        missing_columns="insert",
        glob=False,
        hive_partitioning=False,
        storage_options=_options(snapshot) if known is None else None,
    )


def _options(snapshot: Snapshot) -> dict[str, Any] | None:
    """`storage_options` as Polars takes them: all texts but one."""
    options = snapshot.layout.root.options
    return options and {name: int(v) if name == "max_retries" else v for name, v in options.items()}


def episodes_frame(snapshot: Snapshot, positions: np.ndarray | None) -> pl.LazyFrame:
    """Return the episodes at `positions` (None: all), in the order of the positions."""
    if positions is None:
        return table_frame(snapshot, EPISODES)
    return positioned_episodes(snapshot, positions).drop(POSITION)


def positioned_episodes(snapshot: Snapshot, positions: np.ndarray | None) -> pl.LazyFrame:
    """Return the same with the column `POSITION` in front."""
    if positions is None:
        return table_frame(snapshot, EPISODES).with_row_index(POSITION)
    # Only the files with these rows: another one may be damaged, and takes its time.
    ends = np.cumsum([file.rows for file in snapshot.episode_files], dtype=np.int64)
    if len(positions) and (np.diff(positions) == 1).all():
        return _neighbours(snapshot, int(positions[0]), len(positions), ends)
    used, holders = np.unique(np.searchsorted(ends, positions, side="right"), return_inverse=True)
    files = [snapshot.episode_files[index] for index in used]
    sizes = np.array([file.rows for file in files], np.int64)
    # Rows before each file that are not read.
    skipped = ends[used] - np.cumsum(sizes)
    frame = table_frame(snapshot, EPISODES, files).with_row_index(_ROW)
    rows = pl.Series(positions - skipped[holders], dtype=frame.collect_schema()[_ROW])
    order = pl.LazyFrame({POSITION: pl.Series(positions, dtype=rows.dtype), _ROW: rows})
    return order.join(frame, on=_ROW, how="left", maintain_order="left").drop(_ROW)


def _neighbours(snapshot: Snapshot, first: int, count: int, ends: np.ndarray) -> pl.LazyFrame:
    """Return `count` episodes from a position on, with the column `POSITION`: no join is needed."""
    low, high = np.searchsorted(ends, [first, first + count - 1], side="right").tolist()
    files = snapshot.episode_files[low : high + 1]
    begin = int(ends[low]) - files[0].rows
    frame = table_frame(snapshot, EPISODES, files).with_row_index(POSITION, begin)
    whole = first == begin and first + count == ends[high]
    return frame if whole else frame.slice(first - begin, count)


def collect_episodes(snapshot: Snapshot, frame: pl.LazyFrame) -> pl.DataFrame:
    """Collect a frame over the episodes table; see `collect_table`."""
    return collect_table(snapshot, EPISODES, frame)


def positions_of_ids(context: ReadContext, ids: Collection[str]) -> dict[str, int]:
    """Return the positions in the snapshot of episodes, by id.

    Raises:
        EpisodeNotFoundError: the context lacks one of them.
    """
    snapshot, wanted = context.snapshot, pl.Series(list(ids), dtype=pl.String)
    frame = positioned_episodes(snapshot, None).filter(pl.col("episode_id").is_in(wanted.implode()))
    rows = collect_episodes(snapshot, frame.select("episode_id", POSITION))
    if context.positions is not None:
        rows = rows.filter(np.isin(rows[POSITION].to_numpy(), context.positions))
    positions = dict(rows.iter_rows())
    for episode_id in ids:
        if episode_id not in positions:
            few = episodes_frame(snapshot, context.all_positions[:3]).select("episode_id")
            shown = collect_episodes(snapshot, few)["episode_id"].to_list()
            raise EpisodeNotFoundError(
                f"There is no episode {episode_id!r} among these {len(context)}. "
                f"Ids look like: {', '.join(map(repr, shown)) or 'none'}."
                + _column_hint(snapshot, episode_id)
                + refresh_hint(snapshot)
            )
    return positions


def _column_hint(snapshot: Snapshot, name: str) -> str:
    """Return the hint for a name that other libraries take for a column of a dataset."""
    columns = {*snapshot.shown_schema("steps").names, *snapshot.shown_schema("episodes").names}
    if name not in columns and meant("view", name) is None:
        return ""
    return " For columns take view.steps, view.episodes or view.loader(); of an episode view[0].observations."


def collect_table(snapshot: Snapshot, table: str, frame: pl.LazyFrame) -> pl.DataFrame:
    """Collect a frame over a table.

    Raises:
        CorruptStoreError: a file of the table is damaged; the message names it.
        StoreAccessError: a file of the table cannot be read.
        pl.exceptions.PolarsError: the frame itself fails.
    """
    try:
        return frame.collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        check_files(snapshot, table, error)
        raise


def collected(frame: pl.LazyFrame, episodes_of: Snapshot | None = None) -> pl.DataFrame:
    """Collect a frame that a view gave, as callers of the library get it: for work of the library's own.

    Args:
        frame: the frame.
        episodes_of: the snapshot whose table of episodes is all that the frame reads; an error then names
            the damaged file.

    Raises:
        CorruptStoreError: a file of `episodes_of` is damaged.
        StoreUnavailableError: a file could not be read for now.
        StoreAccessError: this user may not read it.
        pl.exceptions.PolarsError: the frame itself fails.
    """
    if episodes_of is not None:
        return collect_episodes(episodes_of, frame)
    try:
        return frame.collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        if isinstance(error, EpisodelakeError) or not (is_passing(error) or is_denied(error)):
            raise
        raise access_error("Could not read rows of the store", error, "the store") from error


def arrow_table(frame: Any) -> pa.Table:
    """Return a frame that a caller made, of Polars, pandas or Arrow, as a table.

    Raises:
        InvalidArgumentError: it is something else, cannot be read, or has values that no store holds.
    """
    try:
        if isinstance(frame, pl.LazyFrame):
            frame = collected(frame)
        # Polars before 2.0 ends the process when it hands them out.
        if isinstance(frame, pl.DataFrame) and pl.Object in frame.dtypes:
            raise InvalidArgumentError(
                "The frame has a column of Python objects (Object), which no store holds."
            )
        if isinstance(frame, pl.DataFrame) and pl.Int128 in frame.dtypes:
            raise InvalidArgumentError("The frame has integers beyond 64 bits, which no store holds.")
        if hasattr(frame, "__arrow_c_stream__"):
            return pa.table(frame)
    except (pl.exceptions.PolarsError, pa.ArrowException) as error:
        raise InvalidArgumentError(f"The frame cannot be read: {str(error).partition(chr(10))[0]}") from error
    raise InvalidArgumentError(f"frame is {type(frame).__name__}; expected a Polars, pandas or Arrow frame.")


def steps_frame(snapshot: Snapshot, positions: np.ndarray | None) -> pl.LazyFrame:
    """Return the steps of the episodes at `positions` (None: all of the snapshot), in the files' order, or in
    that of positions which do not ascend.

    Only the files that these episodes point at are scanned; rows of other episodes in them are left out.
    """
    if positions is None and not snapshot.hidden_rows:
        return _annotated(snapshot, table_frame(snapshot, STEPS), snapshot.segments)
    chosen = np.arange(snapshot.episode_count) if positions is None else np.unique(positions)
    if len(chosen) == 1:
        used = [snapshot.place(int(chosen[0]))[0]]
    else:
        used = [snapshot.pointers.segments[index] for index in np.unique(snapshot.pointers.segment[chosen])]
    segments = snapshot.readable(used)
    places = steps_places(snapshot, segments)
    steps = _table(snapshot, STEPS, places)
    if positions is None or (np.diff(positions) > 0).all():
        ids = positioned_episodes(snapshot, chosen).select("episode_id")
        steps = steps.join(ids, on="episode_id", how="semi", maintain_order="left")
    else:
        columns = steps.collect_schema().names()
        ids = positioned_episodes(snapshot, positions).select("episode_id")
        steps = ids.join(steps, on="episode_id", how="inner", maintain_order="left_right").select(columns)
    return _annotated(snapshot, steps, segments)


def _annotated(snapshot: Snapshot, steps: pl.LazyFrame, segments: Sequence[str]) -> pl.LazyFrame:
    """Return the steps with the columns that annotations add."""
    keys = snapshot.schema.step_keys
    for annotation in snapshot.annotation_files.annotations.values():
        places = snapshot.annotation_places(annotation.name, segments)
        added = _scan(snapshot, places, polars_schema(annotation.schema(keys)))
        steps = steps.drop(annotation.name, strict=False)
        steps = steps.join(added, on=[name for name, _ in keys], how="left", maintain_order="left")
    return steps


def transitions_only(steps: pl.LazyFrame) -> pl.LazyFrame:
    """Return the rows that have a transition: all but the last of each episode."""
    return steps.filter(pl.col("terminated").is_not_null())


def runs_frame(snapshot: Snapshot, positions: np.ndarray | None) -> pl.LazyFrame:
    """Return the runs; for a view, and for an older version, only those that its episodes come from."""
    frame = table_frame(snapshot, RUNS)
    if positions is None and snapshot.newest:
        return frame
    ids = episodes_frame(snapshot, positions).select("run_id").unique()
    return frame.join(ids, on="run_id", how="semi", maintain_order="left")
