"""Whole episodes: the row source of `EpisodeWriter`.

    write_episode, imports -> block -.
    write_episodes (Arrow) ----------+-> finished rows in memory -> segment
                                     `-> (after `flush_seconds`, or at `flush()`) arrivals -> journal

A finished row has an observation and what followed it: action, reward and flags, NULL on the last row of an
episode. Segments take such rows as they are. The journal has what arrived together, so there an outcome
stands one row further down.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pyarrow as pa

from ...store.dynamic.column_groups import ColumnSet, DynamicRows
from ...store.dynamic.columns import SegmentColumns
from ...store.errors import InvalidArgumentError, SpaceMismatchError, StoreAccessError
from ...store.frames import EncodedFrames
from ...store.journal.episodes import (
    EndReason,
    EpisodeColumns,
    EpisodeFacts,
    EpisodeRecord,
    add_in_order,
    end_reason_of,
    timestamp_now,
)
from ...store.journal.records import begin_and_end_events
from ...store.names import OBSERVATION, escape_distinct
from ...store.schema import JOURNAL_KIND, JOURNAL_NUMBER, LATE_ROW, RESET_ROW, STEP_ROW, StepSchema
from ...store.spaces.arrow import flat_array
from ...store.spaces.codec import slice_batch
from ..rows.arrivals import LiveEpisode, with_dynamic_columns
from ..rows.step_rows import StepRows
from ..session.row_source import JournalRows
from ..session.seal_queue import BulkEpisodes
from ..session.session import RunSession
from .whole_episode import WholeEpisode

_BLOCK_BYTES = 4 << 20
_FIRST_ROWS = 1024
_MOST_ROWS = 131_072
#: Segments of rows in memory: one being written, one that waits, one being filled.
_MOST_SEALS = 1


class WholeBlock:
    """Finished rows of whole episodes, in one block.

    Args:
        schema: the store's step schema.
        capacity: how many rows.

    Attributes:
        since: when it was made, by `time.monotonic`.
        counted: how many rows and episodes are complete; one value, so that they count at once.
        bulk: its content, once nothing more is added.
    """

    def __init__(self, schema: StepSchema, capacity: int) -> None:
        self.capacity = capacity
        self.since = time.monotonic()
        self.counted = (0, 0)
        self.bulk: BulkEpisodes | None = None
        self._schema = schema
        self._records: list[EpisodeRecord] = []
        self._observations = schema.observation.buffer(capacity)
        self._actions = schema.action.buffer(capacity)
        self._rewards = schema.reward.buffer(capacity)
        self._numbers = np.zeros(capacity, np.int64)
        self._observed, self._acted = np.ones((2, capacity), bool)
        self._terminated, self._truncated = np.zeros((2, capacity), bool)
        self._dynamic = DynamicRows(), DynamicRows(), DynamicRows()

    def add(self, record: EpisodeRecord, whole: WholeEpisode) -> None:
        """Add an episode, for which there is room; all values are copied.

        Raises:
            SpaceMismatchError: a value does not fit; nothing was added.
        """
        row, episodes = self.counted
        # An interrupt may have left one that does not count.
        del self._records[episodes:]
        for rows in self._dynamic:
            rows.drop_from(row)
        row = self.put(row, record.number, whole, 0, whole.length + 1)
        self._records.append(record)
        self.counted = row, len(self._records)

    def put(self, row: int, number: int, whole: WholeEpisode, start: int, stop: int) -> int:
        """Copy rows `[start, stop)` of an episode, which do not count yet; return the row after them."""
        observed, acted = min(stop, whole.observed) - start, min(stop, whole.length) - start
        behind = row + stop - start
        self._observations.put_many(row, slice_batch(whole.observations, start, start + observed), observed)
        self._actions.put_many(row, slice_batch(whole.actions, start, start + acted), acted)
        self._rewards.put_many(row, whole.rewards[start : start + acted], acted)
        self._numbers[row:behind] = number
        self._observed[row:behind] = self._acted[row:behind] = True
        self._observed[row + observed : behind] = self._acted[row + acted : behind] = False
        self._terminated[row:behind] = self._truncated[row:behind] = False
        if start < whole.length <= stop:
            last = row + whole.length - 1 - start
            self._terminated[last], self._truncated[last] = whole.terminated, whole.truncated
        for rows, mappings in zip(self._dynamic, (whole.infos, whole.policies, whole.extras), strict=True):
            for at, mapping in enumerate((mappings or ())[start:stop], row):
                if mapping:
                    rows.put(at, mapping)
        return behind

    def batch(self, stop: int, columns: Sequence[ColumnSet]) -> pa.RecordBatch:
        """Return the rows before `stop`, in the columns of the journal; they share memory with the block."""
        acted = self._acted[:stop]
        arrays: list[pa.Array] = [
            pa.array(self._numbers[:stop]),
            pa.array(np.full(stop, STEP_ROW, np.int16)),
            *self._observations.arrays(0, stop, self._observed[:stop]),
            *self._actions.arrays(0, stop, acted),
            *self._rewards.arrays(0, stop, acted),
            *(flat_array(flags[:stop], pa.bool_(), acted) for flags in (self._terminated, self._truncated)),
        ]
        groups = zip(columns, self._dynamic, strict=True)
        dynamic = [column_set.columns(rows, 0, stop) for column_set, rows in groups]
        return with_dynamic_columns(pa.record_batch(arrays, self._schema.journal), dynamic)

    def close(self, columns: Sequence[ColumnSet]) -> BulkEpisodes | None:
        """Return its episodes, None without any; nothing is added afterwards."""
        rows, episodes = self.counted
        if self.bulk is None and episodes:
            records = EpisodeColumns.of(self._records[:episodes])
            self.bulk = BulkEpisodes(records, [self.batch(rows, columns)], self.since)
        return self.bulk


class WholeRows(StepRows):
    """See `StepRows`; the session's finished episodes keep the rows of whole episodes."""

    def __init__(self, session: RunSession[Any]) -> None:
        super().__init__(session)
        self._block: WholeBlock | None = None
        self._block_rows = min(_FIRST_ROWS, self._rows_of_block(self._schema.journal_row_bytes))
        self._most_rows = max(1, min(self._schema.observation.max_rows, self._schema.action.max_rows))
        # Rows of whole episodes since all were last journalled by `flush_steps`.
        self._unflushed = 0
        self._unwritten = False
        # The schemas without columns of encoded frames, which many episodes share.
        self._plain: dict[frozenset[str], StepSchema] = {}

    @property
    def ended(self) -> bool:
        """Whether there are complete episodes that the session does not know yet."""
        return self._block is not None and self._block.counted[1] > 0

    def write(self, whole: WholeEpisode, env_index: int | None, facts: EpisodeFacts) -> EpisodeRecord:
        """Record an episode given as arrays; the caller has looked whether the session is usable.

        Raises:
            SpaceMismatchError: a value does not fit; nothing was recorded.
            InvalidArgumentError: a replay buffer observes this writer.
            StoreAccessError: the journal could not be written; nothing was recorded.
        """
        session = self._session
        self._check_unobserved()
        session.seals.await_backlog(_MOST_SEALS)
        record = _record(self._schema, session.take_numbers(), whole, env_index, facts)
        rows = whole.length + 1
        encoded = self._encoded_parts(whole.observations)
        if encoded:
            self.add(self._copied(record, whole, encoded))
            return record
        if rows > self._most_rows:
            self.add(self._cut(record, whole))
            return record
        with session.lock:
            block = self._room(rows)
            block.add(record, whole)
            if session.options.seals_by_count or block.counted[0] == block.capacity:
                self._close_block()
            self._flush_by_rows(rows)
            session.seal_if_due()
        return record

    def add(self, bulk: BulkEpisodes) -> None:
        """Record finished episodes with all of their rows.

        Raises:
            InvalidArgumentError: a replay buffer observes this writer.
            StoreAccessError: the journal could not be written; nothing was recorded.
        """
        session = self._session
        self._check_unobserved()
        session.check_usable()
        session.seals.await_backlog(_MOST_SEALS)
        with session.lock:
            self._write_unwritten()
            # Before these, as it was filled before.
            self._close_block()
            try:
                session.finished.add_bulk(bulk)
                if self._needs_journal(bulk):
                    session.write_rows()
                    session.write([self._rows_of(bulk)])
            except BaseException:
                if session.finished.take_back(bulk):
                    session.journal.give_up(bulk.episodes.numbers)
                raise
            self._flush_by_rows(bulk.rows)
            session.seal_if_due()

    def end(
        self,
        episode: LiveEpisode,
        otherwise: EndReason = "cut",
        metadata: Mapping | None = None,
        late: Mapping | None = None,
    ) -> EpisodeRecord | None:
        """Finish an episode; see `StepRows.end`."""
        self._session.check_process()
        with self._session.lock:
            # Episodes are listed in the order in which they ended.
            self._close_block()
            return super().end(episode, otherwise, metadata, late)

    def _check_unobserved(self) -> None:
        """Refuse `write_episode` beside a replay buffer, which would silently miss its steps."""
        if self.observer is not None:
            raise InvalidArgumentError(
                "A writer with buffer= takes single steps: a whole episode would not reach the replay "
                "buffer. Use begin() and append(), or a writer without a buffer."
            )

    def _cut(self, record: EpisodeRecord, whole: WholeEpisode) -> BulkEpisodes:
        """Return an episode of more rows than a column can have in one batch."""
        batches, total = [], whole.length + 1
        for start in range(0, total, self._most_rows):
            stop = min(start + self._most_rows, total)
            block = WholeBlock(self._schema, stop - start)
            block.put(0, record.number, whole, start, stop)
            batches.append(block.batch(stop - start, self._session.columns))
        return BulkEpisodes(EpisodeColumns.of([record]), batches)

    def _copied(
        self, record: EpisodeRecord, whole: WholeEpisode, encoded: Mapping[str, EncodedFrames]
    ) -> BulkEpisodes:
        """Return an episode whose encoded frames are taken over."""
        rows, observed = whole.length + 1, whole.observed
        block = WholeBlock(self._without(encoded), rows)
        block.add(record, replace(whole, observations=without(whole.observations, encoded)))
        batch = block.batch(rows, self._session.columns)
        for column, frames in encoded.items():
            if len(frames) != observed:
                raise SpaceMismatchError(f"{column} has {len(frames)} frames; expected {observed}.")
            missing = pa.nulls(rows - observed, pa.binary())
            batch = batch.append_column(column, pa.concat_arrays([frames.cells, missing]))
        names = self._schema.journal.names
        others = [name for name in batch.schema.names if name not in names]
        return BulkEpisodes(EpisodeColumns.of([record]), [batch.select([*names, *others])])

    def _encoded_parts(self, observations: Any) -> dict[str, EncodedFrames]:
        """Return the parts of observations that the store takes over encoded, by column."""
        schema = self._schema
        if not schema.encodings or schema.groups:
            return {}
        video = {column.name: column.image for column in schema.video}
        parts = {
            name: part
            for name, part in _leaves(observations, schema.observation.root)
            if isinstance(part, EncodedFrames) and name in video and part.image == video[name]
        }
        # Names of columns that differ in case alone depend on one another.
        named = parts and {*self._without(parts).journal.names, *parts} == {*schema.journal.names}
        return parts if named else {}

    def _without(self, columns: Collection[str]) -> StepSchema:
        """Return the schema without some columns of encoded frames."""
        key = frozenset(columns)
        if key not in self._plain:
            space = without(self._schema.observation_space, columns)
            self._plain[key] = replace(self._schema, observation_space=space, encodings={})
        return self._plain[key]

    def _room(self, rows: int) -> WholeBlock:
        """Return the block to fill; the caller holds the lock.

        Raises:
            StoreAccessError: an earlier one could not be brought to the journal; call again.
        """
        self._write_unwritten()
        block = self._block
        if block is not None and (block.bulk is not None or block.counted[0] + rows > block.capacity):
            self._close_block()
            self._write_unwritten()
        if self._block is None:
            self._block = WholeBlock(self._schema, min(self._most_rows, max(rows, self._block_rows)))
        return self._block

    def _rows_of_block(self, row_bytes: int) -> int:
        """Return how many rows of a size make a block; segments are larger."""
        most = min(_BLOCK_BYTES, self._session.options.segment_bytes // 2)
        return min(_MOST_ROWS, max(1, most // row_bytes))

    def _close_block(self) -> None:
        """Hand the episodes of the block to the session; the caller holds the lock."""
        block = self._block
        bulk = None if block is None else block.close(self._session.columns)
        if bulk is not None:
            row_bytes = max(self._schema.journal_row_bytes, bulk.nbytes // bulk.rows)
            self._block_rows = self._rows_of_block(row_bytes)
            self._session.finished.add_bulk(bulk)
            self._unwritten = self._unwritten or self._needs_journal(bulk)
        self._block = None

    def _needs_journal(self, bulk: BulkEpisodes) -> bool:
        """Return whether rows are to go to the journal at once: those of an episode larger than a segment,
        and those of a store on another machine, which takes segments slowly.
        """
        session = self._session
        local = session.store.layout.root.local is not None
        return not local or bulk.nbytes > session.options.segment_bytes or session.seals.backlog > _MOST_SEALS

    def _write_unwritten(self) -> None:
        if self._unwritten:
            self._session.write_rows(math.inf)
            self._unwritten = False

    def _flush_by_rows(self, rows: int) -> None:
        """Bring rows to the journal that need it, or all if so many wait as `flush_steps` says."""
        most = self._session.options.flush_steps
        self._unflushed += rows
        if most is not None and self._unflushed >= most:
            self._unflushed, self._unwritten = 0, True
        # The episodes are recorded: the next call raises the error, before it records anything.
        with contextlib.suppress(StoreAccessError):
            self._write_unwritten()

    def pending(self, before: float) -> Iterator[JournalRows]:
        """Yield all complete rows and events, and whole episodes that came before a moment."""
        if self._block is not None and (before == -math.inf or self._block.since < before):
            self._close_block()
        yield from super().pending(before)
        if before == -math.inf:
            return
        for bulk in self._session.finished.bulk():
            # A segment that is being written is about to take its rows.
            about = before < math.inf and self._session.seals.about_to_take(bulk.number)
            if bulk.since < before and not about:
                yield self._rows_of(bulk)

    def _rows_of(self, bulk: BulkEpisodes) -> JournalRows:
        begins, ends = begin_and_end_events(bulk.episodes)
        records: list[tuple[pa.RecordBatch, list[dict[str, Any]]]] = [
            (batch, []) for batch in arrivals(self._schema, bulk.batches)
        ]
        records[0][1].extend(begins)
        records[-1][1].extend(ends)
        done = partial(self._session.finished.journalled, bulk)
        return JournalRows(records, bulk.episodes.numbers, done)


def _leaves(values: Any, column: str) -> Iterator[tuple[str, Any]]:
    if isinstance(values, Mapping):
        for key, name in escape_distinct(values).items():
            yield from _leaves(values[key], f"{column}.{name}")
    else:
        yield column, values


def without(values: Any, columns: Collection[str], column: str = OBSERVATION) -> Any:
    """Return a Dict space, or observations of one, without the parts of some columns."""
    parts = values.spaces if isinstance(values, gymnasium.spaces.Dict) else values
    if not isinstance(parts, Mapping):
        return gymnasium.spaces.Dict({}) if isinstance(values, gymnasium.Space) else {}
    kept = {
        key: without(parts[key], columns, f"{column}.{name}")
        if isinstance(parts[key], Mapping | gymnasium.spaces.Dict)
        else parts[key]
        for key, name in escape_distinct(parts).items()
        if f"{column}.{name}" not in columns
    }
    return gymnasium.spaces.Dict(kept) if isinstance(values, gymnasium.Space) else kept


def _record(
    schema: StepSchema, number: int, whole: WholeEpisode, env_index: int | None, facts: EpisodeFacts
) -> EpisodeRecord:
    """Return the record of an episode that has just ended."""
    now = timestamp_now()
    total: Any = [0.0] * schema.reward_shape[0] if schema.reward_shape else 0.0
    return EpisodeRecord(
        number=number,
        env_index=env_index,
        started_at=now,
        ended_at=now,
        length=whole.length,
        episode_return=add_in_order(total, whole.rewards),
        terminated=whole.terminated,
        truncated=whole.truncated,
        end_reason=end_reason_of(whole.terminated, whole.truncated, "cut"),
        facts=replace(facts, last_missing=True) if whole.last_missing else facts,
    )


# To the journal


def arrivals(schema: StepSchema, batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield finished rows as they would have arrived, with each outcome on the row after.

    Args:
        schema: the store's step schema.
        batches: of whole episodes; one episode may go on from batch to batch.
    """
    if len(batches) > 1:
        alike = SegmentColumns(schema.journal.names, pa.schema([]), [batch.schema for batch in batches])
        batches = [batch for table in map(alike.align, batches) for batch in table.to_batches()]
    before: Mapping[str, pa.Array] = {}
    for batch in batches:
        numbers = batch.column(JOURNAL_NUMBER.name).to_numpy()
        resets = np.concatenate([[not before], numbers[1:] != numbers[:-1]])
        lasts = np.append(resets[1:], batch is batches[-1])
        arrays: list[pa.Array] = []
        outcomes = {name: batch.column(name) for name in batch.schema.names if schema.is_outcome(name)}
        policy = {name: array for name, array in outcomes.items() if name not in schema.journal.names}
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            if name == JOURNAL_KIND.name:
                array = pa.array(np.where(resets, RESET_ROW, STEP_ROW).astype(np.int16))
            elif name in outcomes:
                first = before.get(name, pa.nulls(1, array.type))
                array = pa.concat_arrays([first, array.slice(0, len(array) - 1)])
            if name in policy:
                # The last row of an episode may have some, which go to a late row.
                array = array.take(pa.array(np.arange(len(array)), mask=resets))
            arrays.append(array)
        before = {name: array.slice(len(array) - 1) for name, array in outcomes.items()}
        yield _with_late_rows(pa.record_batch(arrays, batch.schema), np.flatnonzero(lasts), policy)


def _with_late_rows(
    batch: pa.RecordBatch, lasts: np.ndarray, policy: Mapping[str, pa.Array]
) -> pa.RecordBatch:
    """Put the policy's outputs for last observations on rows of their own, after them."""
    said = np.zeros(batch.num_rows, bool)
    for array in policy.values():
        said |= array.is_valid().to_numpy(zero_copy_only=False)
    rows = lasts[said[lasts]]
    if not len(rows):
        return batch
    order = np.insert(np.arange(batch.num_rows), rows + 1, rows)
    late = np.insert(np.zeros(batch.num_rows, bool), rows + 1, True)
    arrays: list[pa.Array] = []
    for column, array in zip(batch.schema, batch.columns, strict=True):
        if column.name == JOURNAL_NUMBER.name:
            arrays.append(array.take(pa.array(order)))
        elif column.name == JOURNAL_KIND.name:
            arrays.append(pa.array(np.where(late, LATE_ROW, array.to_numpy()[order]).astype(np.int16)))
        elif column.name in policy:
            both = pa.concat_arrays([array, policy[column.name]])
            arrays.append(both.take(pa.array(np.where(late, order + batch.num_rows, order))))
        else:
            arrays.append(array.take(pa.array(order, mask=late)))
    return pa.record_batch(arrays, batch.schema)
