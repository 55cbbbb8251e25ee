"""Polars LazyFrames over exactly the files and rows of a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from ..store.layout import EPISODES, RUNS, STEPS
from ..store.places import Place
from ..store.snapshot import Snapshot
from ..store.table_logs import check_process
from .damaged_files import steps_places

POSITION = "_position"


def polars_schema(schema: pa.Schema) -> pl.Schema:
    """The Polars types of an Arrow schema."""
    # Not empty_table(), which imports pandas to make its arrays.
    frame = pl.from_arrow(pa.RecordBatchReader.from_batches(schema, []).read_all())
    assert isinstance(frame, pl.DataFrame)
    return frame.schema


def table_frame(snapshot: Snapshot, table: str) -> pl.LazyFrame:
    """All files of one table; columns that a file lacks are null. Rows come in commit order."""
    schema = polars_schema(snapshot.table_schema(table))
    places = steps_places(snapshot) if table == STEPS else snapshot.places(table)
    return _scan(snapshot, places, schema)


def _scan(snapshot: Snapshot, places: list[Place], schema: pl.Schema) -> pl.LazyFrame:
    # In a forked child Polars would wait for threads that are not there.
    check_process()
    if not places:
        return pl.LazyFrame(schema=schema)
    return pl.scan_parquet(
        [str(place) for place in places],
        schema=schema,
        missing_columns="insert",
        glob=False,
        hive_partitioning=False,
        storage_options=_options(snapshot),
    )


def _options(snapshot: Snapshot) -> dict[str, Any] | None:
    """`storage_options` as Polars takes them: all texts but one."""
    options = snapshot.layout.root.options
    return options and {name: int(v) if name == "max_retries" else v for name, v in options.items()}


def episodes_frame(snapshot: Snapshot, positions: np.ndarray | None) -> pl.LazyFrame:
    """The episodes at `positions` (None: all), in the order of the positions."""
    frame = table_frame(snapshot, EPISODES)
    if positions is None:
        return frame
    return positioned_episodes(snapshot, positions).drop(POSITION)


def positioned_episodes(snapshot: Snapshot, positions: np.ndarray | None) -> pl.LazyFrame:
    """The same with the column `POSITION` in front."""
    frame = table_frame(snapshot, EPISODES).with_row_index(POSITION)
    if positions is None:
        return frame
    order = pl.LazyFrame({POSITION: pl.Series(positions, dtype=frame.collect_schema()[POSITION])})
    return order.join(frame, on=POSITION, how="left", maintain_order="left")


def steps_frame(snapshot: Snapshot, positions: np.ndarray | None) -> pl.LazyFrame:
    """The steps of the episodes at `positions` (None: all of the snapshot), in the files' order.

    Only the files that these episodes point at are scanned; rows of other episodes in them are left out.
    """
    if positions is None and not snapshot.hidden_rows:
        return _annotated(snapshot, table_frame(snapshot, STEPS), snapshot.pointers.segments)
    schema = polars_schema(snapshot.steps_schema)
    pointers = snapshot.pointers
    chosen = np.arange(len(pointers.segment)) if positions is None else np.unique(positions)
    used = np.unique(pointers.segment[chosen])
    segments = snapshot.readable(pointers.segments[index] for index in used)
    places = steps_places(snapshot, segments)
    ids = positioned_episodes(snapshot, chosen).select("episode_id")
    steps = _scan(snapshot, places, schema).join(ids, on="episode_id", how="semi", maintain_order="left")
    return _annotated(snapshot, steps, segments)


def _annotated(snapshot: Snapshot, steps: pl.LazyFrame, segments: Sequence[str]) -> pl.LazyFrame:
    """The steps with the columns that annotations add."""
    keys = snapshot.schema.step_keys
    for annotation in snapshot.annotation_files.annotations.values():
        places = snapshot.annotation_places(annotation.name, segments)
        added = _scan(snapshot, places, polars_schema(annotation.schema(keys)))
        steps = steps.drop(annotation.name, strict=False)
        steps = steps.join(added, on=[name for name, _ in keys], how="left", maintain_order="left")
    return steps


def transitions_only(steps: pl.LazyFrame) -> pl.LazyFrame:
    """The rows that have a transition: all but the last of each episode."""
    return steps.filter(pl.col("terminated").is_not_null())


def runs_frame(snapshot: Snapshot, positions: np.ndarray | None) -> pl.LazyFrame:
    """The runs; for a view, and for an older version, only those that its episodes come from."""
    frame = table_frame(snapshot, RUNS)
    if positions is None and snapshot.newest:
        return frame
    ids = episodes_frame(snapshot, positions).select("run_id").unique()
    return frame.join(ids, on="run_id", how="semi", maintain_order="left")
