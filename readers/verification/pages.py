"""The pass over the pages of steps and annotations: every page is read, every value is decoded.

What `relations` needs of a row is small: its keys, its reward and flags, and whether the columns of its
group have values. Only that stays in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...store.checks import Findings, check_file, column_types, read_groups
from ...store.errors import CorruptStoreError
from ...store.files import Place
from ...store.schema import ENV_STEP, FLAGS, REWARD, StepSchema
from ...store.spaces import SpaceCodec
from ...store.tables.annotation_files import StepAnnotation

_BATCH_ROWS = 16_384


@dataclass(frozen=True)
class SegmentLanes:
    """Lanes with rows in one steps file, ordered by their first row.

    A lane is one agent's rows of an episode; where there is one agent, an episode.

    Attributes:
        lane, episode: their numbers and those of their episodes, as `relations` counts them.
        start, stop: their first rows, and rows behind their last.
        group: the index of their agents' group; 0 where there is one agent.
        last_missing: whose last observation is missing.
    """

    lane: np.ndarray
    episode: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    group: np.ndarray
    last_missing: np.ndarray

    def locate(self, table: pa.Table, first: int) -> tuple[pa.Table, np.ndarray, np.ndarray] | None:
        """Return the rows that belong to a lane, with their numbers in the file and indices of their lanes.

        Args:
            table: rows of the file from `first` on.
        """
        row = np.arange(first, first + table.num_rows)
        owner = np.searchsorted(self.start, row, side="right") - 1
        owned = owner >= 0
        owned[owned] = row[owned] < self.stop[owner[owned]]
        if owned.all():
            return table, row, owner
        return (table.filter(pa.array(owned)), row[owned], owner[owned]) if owned.any() else None


class StepsPages:
    """Reads steps files.

    Args:
        schema: of the store.
        findings: where faults go.
    """

    def __init__(self, schema: StepSchema, findings: Findings) -> None:
        self._schema = schema
        self._findings = findings
        self._keys = [name for name, _ in schema.step_keys]

    def read(
        self, parquet: pq.ParquetFile, place: Place, file: str, lanes: SegmentLanes | None
    ) -> Iterator[tuple[int, pa.Table | None]]:
        """Read a file, and yield for each row group the row behind it and what `relations` needs of its rows.

        Args:
            parquet, place, file: the open file, where it is, and its name relative to the store.
            lanes: whose rows it has; None if its columns cannot be compared.
        """
        stop = 0
        for index, table in enumerate(read_groups(parquet, place, file, self._findings)):
            first, stop = stop, stop + parquet.metadata.row_group(index).num_rows
            located = None if lanes is None or table is None else lanes.locate(table, first)
            rows = None if lanes is None or located is None else self._rows(file, lanes, *located)
            yield stop, rows

    def _rows(
        self, file: str, lanes: SegmentLanes, table: pa.Table, row: np.ndarray, owner: np.ndarray
    ) -> pa.Table:
        """Decode rows; return what relations need of them."""
        after = lanes.stop[owner] - 1 - row
        observed = (after > 0) | ~lanes.last_missing[owner]
        outcomes = _valid(table, (REWARD, *FLAGS))
        complete, outcome = outcomes.all(axis=0), outcomes.any(axis=0)
        seen, shown, strange = np.ones(len(row), bool), *np.zeros((2, len(row)), bool)
        for number, part in enumerate(self._schema.parts):
            own = lanes.group[owner] == number
            required = [_valid(table, _names(codec.required)) for codec in (part.observation, part.action)]
            has = [
                _valid(table, _names(codec.fields)).any(axis=0) for codec in (part.observation, part.action)
            ]
            seen &= ~own | required[0].all(axis=0)
            complete &= ~own | required[1].all(axis=0)
            shown |= own & has[0]
            outcome |= has[1]
            strange |= ~own & (has[0] | has[1])
            self._decode(file, part.observation, table, own & observed & seen)
            self._decode(file, part.action, table, own & (after > 0) & complete)
        columns = {name: table.column(name) for name in (*self._keys, *FLAGS)}
        columns |= self._rewards(file, table, outcomes[0] & (after > 0))
        if self._schema.groups:
            columns[ENV_STEP] = table.column(ENV_STEP)
        marks = {"complete": complete, "outcome": outcome, "seen": seen, "shown": shown, "strange": strange}
        places = {"lane": lanes.lane[owner], "row": row, "after": after, "observed": observed}
        return pa.table({**places, **columns, **marks})

    def _rewards(self, file: str, table: pa.Table, chosen: np.ndarray) -> dict[str, pa.Array]:
        """Return a column for each objective; NULL without a reward, or if they cannot be decoded."""
        values = np.zeros((len(chosen), objectives(self._schema)))
        try:
            rewards = self._schema.reward.decode([table.column(REWARD).filter(pa.array(chosen))])
            values[chosen] = rewards.reshape(-1, values.shape[1])
        except CorruptStoreError as error:
            self._findings.add("rows", file, str(error))
            chosen = np.zeros(len(chosen), bool)
        return {f"reward_{number}": pa.array(column, mask=~chosen) for number, column in enumerate(values.T)}

    def _decode(self, file: str, codec: SpaceCodec, table: pa.Table, chosen: np.ndarray) -> None:
        columns = table.select(_names(codec.fields))
        if not chosen.all():
            columns = columns.filter(pa.array(chosen))
        for batch in columns.to_batches(max_chunksize=_BATCH_ROWS):
            try:
                codec.decode(batch.columns)
            except MemoryError:
                raise
            except Exception as error:  # A registered codec may raise anything.
                self._findings.add("rows", file, f"Values cannot be decoded: {error}")
                return


def read_annotation(
    place: Place,
    file: str,
    annotation: StepAnnotation,
    expected: pa.Schema,
    lanes: SegmentLanes,
    rows: int | None,
    findings: Findings,
) -> Iterator[pa.Table]:
    """Read the file of a step annotation, and yield the keys of its rows that have a key or a value.

    Args:
        expected: the columns that it should have.
        lanes: whose rows its segment has.
        rows: how many rows the segment has; None if that is not known.
    """
    parquet = check_file(place, file, None, findings, ["episode_id"])
    if parquet is None:
        return
    has = column_types(parquet)
    fits = all(has.get(column.name) == column.type for column in expected)
    if not fits:
        findings.add("annotation", file, f"It has the columns {has}; expected {expected}.")
    if rows is not None and parquet.metadata.num_rows != rows:
        message = f"It has {parquet.metadata.num_rows} rows; its segment has {rows}."
        findings.add("annotation", file, message)
        fits = False
    stop = 0
    for index, table in enumerate(read_groups(parquet, place, file, findings)):
        first, stop = stop, stop + parquet.metadata.row_group(index).num_rows
        located = lanes.locate(table, first) if table is not None and fits else None
        if located is not None:
            table, row, owner = located
            # Rows without a value may lack their keys, all of them.
            stated = _valid(table, ("episode_id", "t", annotation.name)).any(axis=0)
            keys = table.select([name for name in expected.names if name != annotation.name])
            places = {"lane": lanes.lane[owner], "row": row}
            yield pa.table({**places, **dict(zip(keys.column_names, keys.columns, strict=True))}).filter(
                pa.array(stated)
            )


def compared_columns(schema: StepSchema) -> pa.Schema:
    """Return the columns that relations need of steps."""
    numbers, marks = ("lane", "row", "after"), ("observed", "complete", "outcome", "seen", "shown", "strange")
    rewards = [f"reward_{number}" for number in range(objectives(schema))]
    return pa.schema(
        [
            *((name, pa.int64()) for name in (*numbers, *([ENV_STEP] if schema.groups else []))),
            *schema.step_keys,
            *((name, pa.bool_()) for name in (*FLAGS, *marks)),
            *((name, pa.float64()) for name in rewards),
        ]
    )


def objectives(schema: StepSchema) -> int:
    """Return how many rewards a step has."""
    return schema.reward_shape[0] if schema.reward_shape else 1


def _names(fields: Sequence[pa.Field]) -> list[str]:
    return [field.name for field in fields]


def _valid(table: pa.Table, columns: Sequence[str]) -> np.ndarray:
    """Return which rows have a value: bool, shape (columns, rows)."""
    valid = [table.column(name).is_valid().to_numpy() for name in columns]
    return np.array(valid, bool).reshape(len(columns), table.num_rows)
