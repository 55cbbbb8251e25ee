"""Many episodes as Arrow data: cut a stream of rows into whole episodes, and write them piece by piece.

`EpisodeWriter.write_episodes` is the front. A piece is a few megabytes, so memory is bounded by the
current segments, or by the longest episode if that is larger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...store.errors import EpisodelakeError, InvalidArgumentError, SpaceMismatchError
from ...store.journal.episodes import (
    NO_FACTS,
    EndReason,
    EpisodeColumns,
    end_reason_of,
    sums_in_order,
    timestamp_now,
)
from ...store.schema import StepSchema
from ..session.seal_queue import BulkEpisodes
from ..session.session import RunSession
from .arrow_facts import ArrowFacts, EpisodeSays
from .arrow_rows import EPISODE_KEYS, ArrowRows, Piece
from .source_keys import SourceKeys
from .whole_episode import check_last_missing
from .whole_rows import WholeRows

_PIECE_BYTES = 8 << 20
_ROWS = "An episode of T transitions has T+1 rows."
_ROWS_WITHOUT_LAST = 'With last_observation="missing" an episode of T transitions has T rows.'


def write_arrow(
    session: RunSession[WholeRows],
    schema: StepSchema,
    steps: Any,
    episodes: Any,
    lengths: Any,
    sources: SourceKeys,
    *,
    last_missing: bool,
) -> int:
    """Write the episodes of `EpisodeWriter.write_episodes` and return how many were written.

    Args:
        last_missing: whether the steps lack the last row of each episode; the others are as there.
    """
    facts = ArrowFacts(batches_of(episodes)) if episodes is not None else None
    rows: ArrowRows | None = None
    written = seen = 0
    try:
        for piece in _pieces(batches_of(steps), lengths, last_missing=last_missing):
            rows = rows or ArrowRows(schema, piece.rows.column_names, session.columns)
            said = [facts.take(key) for key in piece.keys] if facts else []
            seen += len(piece.lengths)
            keys = [own.source_key for own in said if own.source_key is not None]
            if keys:
                fresh = sources.fresh([own.source_key for own in said])
                piece, said = piece.chosen(fresh), [said[index] for index in np.flatnonzero(fresh)]
            if not len(piece.lengths):
                continue
            if last_missing:
                said = [own.without_last() for own in said or [EpisodeSays()] * len(piece.lengths)]
            session.rows.add(_bulk(session, schema, rows, piece, said))
            sources.add(keys)
            written += len(piece.lengths)
        if facts:
            facts.check_end(seen)
    except EpisodelakeError as error:
        before = f"The {written} episodes" if written > 1 else "The episode" if written else "No episode"
        error.add_note(f"{before} of this call before it {'are' if written > 1 else 'is'} recorded.")
        raise
    return written


def _bulk(
    session: RunSession[WholeRows],
    schema: StepSchema,
    rows: ArrowRows,
    piece: Piece,
    said: Sequence[EpisodeSays],
) -> BulkEpisodes:
    count = len(piece.lengths)
    missing = np.array([own.facts.last_missing for own in said], bool)
    if missing.any():
        check_last_missing(schema)
        piece = replace(piece, missing=missing)
    numbers = session.take_numbers(count) + np.arange(count)
    most = max(2, min(schema.observation.max_rows, schema.action.max_rows))
    parts = [rows.converted(part, numbers) for part in piece.parts(most)]
    # Only an episode that is alone in its piece has several parts.
    rewards = np.concatenate([outcomes.rewards for _, outcomes in parts])
    terminated, truncated = parts[-1][1].terminated, parts[-1][1].truncated
    lengths = piece.lengths - 1
    said = said or [EpisodeSays()] * count
    reasons: list[EndReason] = []
    for index, own in enumerate(said):
        flags = bool(terminated[index]), bool(truncated[index])
        reasons.append(end_reason_of(*flags, own.end_reason or "cut"))
        own.check(int(lengths[index]), reasons[-1], piece.names[index])
    now = np.full(count, timestamp_now())
    episodes = EpisodeColumns(
        number=numbers,
        env_index=[own.env_index for own in said],
        started_at=now,
        ended_at=now,
        length=lengths,
        episode_return=sums_in_order(rewards, np.repeat(np.arange(count), lengths), count),
        terminated=terminated,
        truncated=truncated,
        end_reason=reasons,
        facts={
            number: own.facts
            for number, own in zip(numbers.tolist(), said, strict=True)
            if own.facts != NO_FACTS
        },
    )
    return BulkEpisodes(episodes, [batch for batch, _ in parts])


def batches_of(source: Any) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of Arrow data of any kind.

    Raises:
        InvalidArgumentError: it is no Arrow data.
    """
    if hasattr(source, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(source)
    elif hasattr(source, "__arrow_c_array__"):
        yield pa.record_batch(source)
    elif isinstance(source, Iterable) and not isinstance(source, Mapping | str | bytes):
        for each in source:
            yield from batches_of(each)
    else:
        hint = "Collect it first: frame.collect()." if hasattr(source, "collect") else "Make a pyarrow.Table."
        raise InvalidArgumentError(
            f"{type(source).__name__} is no Arrow data; expected a pyarrow.Table, RecordBatch or "
            f"RecordBatchReader, an iterable of these, or a data frame that exports Arrow. {hint}"
        )


def _pieces(batches: Iterator[pa.RecordBatch], lengths: Any, *, last_missing: bool) -> Iterator[Piece]:
    """Cut rows into pieces of whole episodes."""
    cutter = _Cutter(None if lengths is None else iter(lengths), last_missing=last_missing)
    for batch in batches:
        rows = max(1, _PIECE_BYTES * batch.num_rows // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, rows):
            yield from cutter.add(batch.slice(start, rows))
    yield from cutter.rest()


class _Cutter:
    """Collects rows until they hold whole episodes of some size.

    Args:
        lengths: transitions of each episode in turn; None if a column names the episodes.
        last_missing: whether an episode of T transitions has T rows.
    """

    def __init__(self, lengths: Iterator[Any] | None, *, last_missing: bool) -> None:
        self._lengths = lengths
        self._last_missing = last_missing
        self._rule = _ROWS_WITHOUT_LAST if last_missing else _ROWS
        self._key: str | None = None
        self._names: list[str] | None = None
        self._kept: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        # First rows of the current episodes, the last of which may go on; their keys; the number before them.
        self._starts: list[int] = []
        self._keys: list[Any] = []
        self._before = 0
        # With `lengths`: the row after the last episode.
        self._stop = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[Piece]:
        """Take some rows; yield a piece if enough of them are whole episodes."""
        self._check(batch)
        batch.validate(full=True)
        if self._lengths is None:
            self._add_keys(batch.column(self._key))
        self._kept.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._lengths is not None:
            self._add_lengths()
        if self._bytes >= _PIECE_BYTES and len(self._starts) > 1:
            yield self._cut(len(self._starts) - 1)

    def rest(self) -> Iterator[Piece]:
        """Yield what is left at the end of the data."""
        if self._lengths is not None:
            if self._stop > self._rows:
                raise SpaceMismatchError(
                    f"`lengths` ask for {self._stop - self._rows} rows more than the data have. {self._rule}"
                )
            left = next(self._lengths, None)
            if left is not None:
                raise SpaceMismatchError(f"`lengths` go on with {left} where the data end.")
        if self._starts:
            yield self._cut(len(self._starts))

    def _check(self, batch: pa.RecordBatch) -> None:
        names = batch.schema.names
        if self._names is None:
            self._names = names
            keys = [name for name in EPISODE_KEYS if name in names]
            self._key = keys[0] if keys else None
            if self._lengths is None and len(keys) != 1:
                fault = f"has both {' and '.join(keys)}" if keys else "names no episodes"
                raise InvalidArgumentError(
                    f"The data {fault}; expected one of the columns {', '.join(EPISODE_KEYS)}, equal in all "
                    "rows of an episode, or `lengths`."
                )
        elif names != self._names:
            raise SpaceMismatchError(f"A batch has the columns {names}; the first one had {self._names}.")

    def _add_keys(self, keys: pa.Array) -> None:
        if keys.null_count:
            raise InvalidArgumentError(
                f"`{self._key}` is NULL in {keys.null_count} rows; each row belongs to an episode."
            )
        if not len(keys):
            return
        changes = pc.call_function("not_equal", [keys.slice(1), keys.slice(0, len(keys) - 1)]).to_numpy(
            zero_copy_only=False
        )
        starts = (np.flatnonzero(changes) + 1).tolist()
        if not self._keys or keys[0].as_py() != self._keys[-1]:
            starts.insert(0, 0)
        self._starts += [self._rows + start for start in starts]
        self._keys += [keys[start].as_py() for start in starts]

    def _add_lengths(self) -> None:
        assert self._lengths is not None
        while self._stop < self._rows:
            length = next(self._lengths, None)
            if length is None:
                raise SpaceMismatchError(
                    f"`lengths` end {self._rows - self._stop} rows before the data. {self._rule}"
                )
            if int(length) != length or length < 1:
                raise InvalidArgumentError(f"`lengths` hold {length!r}; expected whole numbers from 1 on.")
            self._starts.append(self._stop)
            self._keys.append(None)
            self._stop += int(length) + (not self._last_missing)

    def _cut(self, count: int) -> Piece:
        """Hand over the first `count` episodes."""
        stop = self._starts[count] if count < len(self._starts) else self._rows
        rows = pa.Table.from_batches(self._kept)
        edges = np.array([*self._starts[:count], stop])
        keys, self._keys = self._keys[:count], self._keys[count:]
        names = [str(self._before + index if key is None else key) for index, key in enumerate(keys)]
        left = rows.slice(stop)
        self._kept = left.to_batches()
        self._rows, self._bytes = left.num_rows, left.nbytes
        self._starts = [start - stop for start in self._starts[count:]]
        self._stop -= stop
        self._before += count
        piece = Piece(rows.slice(0, stop).drop_columns(self._key or []), np.diff(edges), names, keys)
        if self._last_missing:
            return piece.with_last_rows()
        short = np.flatnonzero(piece.lengths < 2)
        if len(short):
            raise InvalidArgumentError(f"Episode {names[short[0]]} has one row, so no transition. {_ROWS}")
        return piece
