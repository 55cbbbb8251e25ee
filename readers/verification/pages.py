"""The pass over the pages of steps and annotations: every page is read, every value is decoded.

Rows are compared with the lane that they belong to, one row group at a time. What `relations` needs of them
is one entry for each lane.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...store.checks import Findings, column_types, read_groups
from ...store.errors import CorruptStoreError, MissingPackageError, StoreAccessError
from ...store.files import Place
from ...store.frames import chunk_starts, whole_chunks
from ...store.schema import AGENT_ID, ENV_STEP, FLAGS, REWARD, StepSchema
from ...store.spaces import SpaceCodec
from ...store.tables.annotation_files import StepAnnotation

_BATCH_ROWS = 16_384
#: What encoded frames may take when they are decoded.
_DECODED_BYTES = 32 << 20
#: Columns with names, to be read dictionary-encoded.
NAMES = ("episode_id", AGENT_ID)
#: Kinds and messages of the faults of rows. Of a lane the first of them is reported.
ROW_FAULTS = {
    "alien": ("rows", "Rows of an episode have another episode_id, or their t is not 0, 1, 2, ..."),
    "surplus": ("flags", "The last row has an action, a reward or flags"),
    "lacking": ("flags", "A row before the last one lacks its action, reward or flags"),
    "early": ("flags", "A flag is set before the last transition"),
    "unseen": ("rows", "A row lacks its observation"),
    "shown": ("rows", "The last row has an observation, which is missing by the table episodes"),
    "strange": ("rows", "A row has values of another group of agents"),
    "severed": ("rows", "An episode begins with a frame of a chunk in the episode before it"),
    "falls": ("rows", "env_step is NULL, or does not grow from row to row of an agent"),
}


class Lanes:
    """All lanes, ordered by segment and first row, and what the pass over pages finds in their rows.

    A lane is one agent's rows of an episode; where there is one agent, an episode.

    Args:
        table: what `relations` knows of them.
        schema: of the store.
        segments: the numbers of segments.

    Attributes:
        episode, segment: the numbers of their episodes and segments.
        start, stop: their first rows, and rows behind their last.
        group: the index of their agents' group; 0 where there is one agent.
        last_missing: whose last observation is missing.
        names: the columns of `NAMES` that steps have, with the name of each lane.
        faults: a bit for each of `ROW_FAULTS`.
        there, rewards: how many rows were read, and how many of these have a reward.
        sums: the rewards added one after the other, for each objective.
        flags: those of the last transition.
        last_step: the last `env_step`; -1 before the first row.
    """

    def __init__(self, table: pa.Table, schema: StepSchema, segments: Mapping[str | None, int]) -> None:
        self._table = table
        self._segments = segments
        numbers = ("e", "segment", "start", "count", "agent_group", "last_missing")
        self.episode, self.segment, self.start, count, self.group, self.last_missing = (
            table.column(name).to_numpy() for name in numbers
        )
        self.stop = self.start + count
        keys = NAMES if schema.groups else NAMES[:1]
        self.names = {name: table.column(name).combine_chunks() for name in keys}
        self.faults = np.zeros(len(count), np.uint8)
        self.there, self.rewards = np.zeros((2, len(count)), np.int64)
        self.sums = np.zeros((objectives(schema), len(count)))
        self.flags = np.zeros((len(FLAGS), len(count)), bool)
        self.last_step = np.full(len(count), -1)

    def of(self, segment: str) -> slice:
        """Return which lanes are in a segment."""
        number = self._segments.get(segment, -1)
        return slice(*np.searchsorted(self.segment, [number, number + 1]).tolist())

    def steps(self) -> dict[str, int]:
        """Return the segments that have lanes, with the number of their transitions."""
        names: list[Any] = list(self._segments)
        steps = np.bincount(self.segment, self.stop - self.start - 1)
        return {names[number]: int(steps[number]) for number in np.unique(self.segment).tolist()}

    def found(self) -> pa.Table:
        """Return the lanes with what was found in their rows; of faults the first one only."""
        columns: dict[str, Any] = dict(zip(self._table.column_names, self._table.columns, strict=True))
        columns |= {"fault": self.faults & -self.faults, "there": self.there, "rewards": self.rewards}
        columns |= {"last_step": self.last_step, "ended": self.flags[0], "cut": self.flags[1]}
        return pa.table(columns | {f"sum_{number}": sums for number, sums in enumerate(self.sums)})

    def locate(self, table: pa.Table, first: int, within: slice) -> _Rows | None:
        """Return the rows of a table that belong to a lane; None without any.

        Args:
            table: rows of a file from `first` on.
            first: the number of its first row.
            within: the lanes of its segment.
        """
        stop = first + table.num_rows
        low = within.start + int(np.searchsorted(self.stop[within], first, "right"))
        high = within.start + int(np.searchsorted(self.start[within], stop, "left"))
        if low >= high:
            return None
        begin, end = np.maximum(self.start[low:high], first), np.minimum(self.stop[low:high], stop)
        edges = np.cumsum(end - begin) - (end - begin)
        owner = np.repeat(np.arange(low, high), end - begin)
        row = np.arange(len(owner)) + np.repeat(begin - edges, end - begin)
        if len(row) < table.num_rows:
            chosen = np.zeros(table.num_rows, bool)
            chosen[row - first] = True
            table = table.filter(pa.array(chosen))
        t, after = row - self.start[owner], self.stop[owner] - 1 - row
        return _Rows(table, slice(low, high), edges, owner, t, after)


@dataclass(frozen=True)
class _Rows:
    """Rows of a file that belong to lanes.

    Attributes:
        table: their columns.
        lanes: which lanes they belong to; each has some.
        edges: where the rows of each lane begin.
        owner, t: the lane of each row, and its place in it.
        after: how many rows of the lane follow.
    """

    table: pa.Table
    lanes: slice
    edges: np.ndarray
    owner: np.ndarray
    t: np.ndarray
    after: np.ndarray

    def valid(self, columns: Sequence[str]) -> np.ndarray:
        """Return which rows have a value: bool, shape (columns, rows)."""
        valid = [self.table.column(name).is_valid().to_numpy() for name in columns]
        return np.array(valid, bool).reshape(len(columns), len(self.owner))

    def true(self, column: str) -> np.ndarray:
        """Return in which rows a flag is set."""
        return self.table.column(column).fill_null(False).to_numpy()


class Pages:
    """Reads the files of steps and annotations.

    Args:
        schema: of the store.
        lanes: whose rows they have; it gets what is found.
        findings: where faults of files go.
    """

    def __init__(self, schema: StepSchema, lanes: Lanes, findings: Findings) -> None:
        self._schema = schema
        self._lanes = lanes
        self._findings = findings

    def read_steps(self, parquet: pq.ParquetFile, place: Place, file: str, within: slice | None) -> None:
        """Read a file of steps.

        Args:
            parquet, place, file: the open file, where it is, and its name relative to the store.
            within: the lanes of its segment; None if its columns cannot be compared.
        """
        for rows in self._groups(parquet, place, file, within):
            self._compare(file, rows)

    def read_annotation(
        self,
        parquet: pq.ParquetFile,
        place: Place,
        file: str,
        annotation: StepAnnotation,
        within: slice,
        size: int | None,
    ) -> None:
        """Read the file of a step annotation, and compare its keys with the steps beside it.

        Args:
            parquet, place, file: as for `read_steps`.
            annotation: what it has.
            within: the lanes of its segment.
            size: how many rows the segment has; None if that is not known.
        """
        findings, lanes = self._findings, self._lanes
        expected, has = annotation.schema(self._schema.step_keys), column_types(parquet)
        fits = all(has.get(column.name) == column.type for column in expected)
        if not fits:
            findings.add("annotation", file, f"It has the columns {has}; expected {expected}.")
        if size is not None and parquet.metadata.num_rows != size:
            fits, rows = False, parquet.metadata.num_rows
            findings.add("annotation", file, f"It has {rows} rows; its segment has {size}.")
        wrong = np.zeros(within.stop - within.start, bool)
        for rows in self._groups(parquet, place, file, within if fits else None):
            # Rows without a value may lack their keys, all of them.
            stated = rows.valid(("episode_id", "t", annotation.name)).any(axis=0)
            alien = self._alien(rows) & stated
            wrong[rows.owner[alien] - within.start] = True
        episodes, first = np.unique(lanes.episode[within][wrong], return_index=True)
        if len(episodes):
            at = np.flatnonzero(wrong)[first[:3]] + within.start
            examples = [repr(lanes.names["episode_id"][i].as_py()) for i in at.tolist()]
            message = "Its episode_id or t are not those of the steps beside them"
            findings.add("annotation", file, message, examples, len(episodes))

    def _groups(
        self, parquet: pq.ParquetFile, place: Place, file: str, within: slice | None
    ) -> Iterator[_Rows]:
        """Read every row group, and yield the rows of lanes."""
        stop = 0
        for index, table in enumerate(read_groups(parquet, place, file, self._findings)):
            first, stop = stop, stop + parquet.metadata.row_group(index).num_rows
            rows = None if table is None or within is None else self._lanes.locate(table, first, within)
            if rows is not None:
                yield rows

    def _compare(self, file: str, rows: _Rows) -> None:
        """Compare rows with their lanes, and decode their values."""
        lanes, last = self._lanes, rows.after == 0
        observed = ~last | ~lanes.last_missing[rows.owner]
        outcomes = rows.valid((REWARD, *FLAGS))
        complete, outcome = outcomes.all(axis=0), outcomes.any(axis=0)
        seen, shown, strange = np.ones(len(last), bool), *np.zeros((2, len(last)), bool)
        for number, part in enumerate(self._schema.parts):
            own = lanes.group[rows.owner] == number
            has = [rows.valid(_names(codec.fields)).any(axis=0) for codec in (part.observation, part.action)]
            seen &= ~own | rows.valid(_names(part.observation.required)).all(axis=0)
            complete &= ~own | rows.valid(_names(part.action.required)).all(axis=0)
            shown |= own & has[0]
            outcome |= has[1]
            strange |= ~own & (has[0] | has[1])
            self._decode(file, part.observation, rows.table, own & observed & seen)
            self._decode(file, part.action, rows.table, own & ~last & complete)
        self._mark(
            rows,
            {
                "alien": self._alien(rows),
                "surplus": last & outcome,
                "lacking": ~last & ~complete,
                "early": (rows.after > 1) & (rows.true(FLAGS[0]) | rows.true(FLAGS[1])),
                "unseen": observed & ~seen,
                "shown": ~observed & shown,
                "strange": strange,
                "falls": self._falls(rows),
                "severed": self._severed(rows),
            },
        )
        self._add(file, rows, outcomes[0] & ~last)

    def _severed(self, rows: _Rows) -> np.ndarray:
        """Return which rows begin a lane with a frame of a chunk in another."""
        severed = np.zeros(len(rows.owner), bool)
        for column in self._schema.video:
            severed |= ~chunk_starts(rows.table.column(column.name))
        return severed & (rows.t == 0)

    def _alien(self, rows: _Rows) -> np.ndarray:
        """Return which rows have other keys than their lane and their place in it: bool."""
        wrong = rows.table.column("t").fill_null(-1).to_numpy() != rows.t
        for key, all_names in self._lanes.names.items():
            named = rows.table.column(key).unify_dictionaries().combine_chunks()
            names = all_names[rows.lanes]
            # Agents of an episode share its id: the first lane with a name stands for all.
            options = pc.SetLookupOptions(names)
            position, expected = (
                pc.call_function("index_in", [values], options).fill_null(-1).to_numpy(zero_copy_only=False)
                for values in (named.dictionary, names)
            )
            place = named.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            wrong |= np.append(position, -1)[place] != expected[rows.owner - rows.lanes.start]
        return wrong

    def _mark(self, rows: _Rows, faults: Mapping[str, np.ndarray]) -> None:
        """Note which lanes have rows with faults, and how many rows."""
        bits = np.zeros(len(rows.owner), np.uint8)
        for place, name in enumerate(ROW_FAULTS):
            bits |= faults[name].view(np.uint8) << place
        self._lanes.faults[rows.lanes] |= np.bitwise_or.reduceat(bits, rows.edges)
        self._lanes.there[rows.lanes] += np.diff(rows.edges, append=len(bits))

    def _falls(self, rows: _Rows) -> np.ndarray:
        """Return which rows have no larger `env_step` than the row before them; note the last ones."""
        if not self._schema.groups:
            return np.zeros(len(rows.owner), bool)
        steps = rows.table.column(ENV_STEP).fill_null(-1).to_numpy()
        before = np.roll(steps, 1)
        before[rows.edges] = self._lanes.last_step[rows.lanes]
        self._lanes.last_step[rows.lanes] = steps[np.append(rows.edges[1:], len(steps)) - 1]
        return steps <= before

    def _add(self, file: str, rows: _Rows, chosen: np.ndarray) -> None:
        """Add the rewards of some rows to those of their lanes; note the flags of last transitions."""
        lanes = self._lanes
        ends = np.flatnonzero(rows.after == 1)
        for name, flags in zip(FLAGS, lanes.flags, strict=True):
            flags[rows.owner[ends]] = rows.true(name)[ends]
        try:
            rewards = self._schema.reward.decode([rows.table.column(REWARD).filter(pa.array(chosen))])
        except CorruptStoreError as error:
            self._findings.add("rows", file, str(error))
            return
        owner = rows.owner[chosen]
        for sums, values in zip(lanes.sums, rewards.reshape(-1, len(lanes.sums)).T, strict=True):
            # One after the other, as a plain loop does; opposite infinities sum to NaN.
            with np.errstate(invalid="ignore", over="ignore"):
                np.add.at(sums, owner, values)
        lanes.rewards[rows.lanes] += np.add.reduceat(chosen, rows.edges, dtype=np.int64)

    def _decode(self, file: str, codec: SpaceCodec, table: pa.Table, chosen: np.ndarray) -> None:
        columns = table.select(_names(codec.fields))
        if not chosen.all():
            columns = columns.filter(pa.array(chosen))
        video = {column.name for column in self._schema.video} & {*columns.column_names}
        codecs = [codec]
        if video and len(codec.leaves) == len(codec.fields):
            # Groups of pictures of two cameras may never begin in the same row: one after the other.
            codecs = [SpaceCodec(leaf.space, leaf.column) for leaf in codec.leaves]
        for own in codecs:
            self._decode_columns(file, own, columns.select(_names(own.fields)), video)

    def _decode_columns(self, file: str, codec: SpaceCodec, columns: pa.Table, video: set[str]) -> None:
        names = [name for name in columns.column_names if name in video]
        size = max(1, _DECODED_BYTES // codec.row_bytes) if names else _BATCH_ROWS
        batches = map(pa.Table.from_batches, ([each] for each in columns.to_batches(max_chunksize=size)))
        for batch in whole_chunks(batches, names) if names else batches:
            try:
                codec.decode(batch.columns)
            except (MemoryError, MissingPackageError, StoreAccessError):
                raise
            except Exception as error:  # A registered codec may raise anything.
                self._findings.add("rows", file, f"Values cannot be decoded: {error}")
                return


def _names(fields: Sequence[pa.Field]) -> list[str]:
    return [field.name for field in fields]


def objectives(schema: StepSchema) -> int:
    """Return how many rewards a step has."""
    return schema.reward_shape[0] if schema.reward_shape else 1
