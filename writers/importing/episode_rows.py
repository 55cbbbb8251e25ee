"""Rows of a source to T+1 rows for each episode, and `last_observation` for those that lack row T.

A source whose episodes are spans of rows reads neighbours together, a few megabytes at a time.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from ...store.common.exchange import Losses
from ...store.errors import DatasetError
from ...store.frames import EncodedFrames
from ...store.spaces.codec import slice_batch
from .formats import ForeignDataset, ForeignEpisode, ForeignTable, ImportOptions, Part


class Span(Protocol):
    """The rows of an episode."""

    @property
    def name(self) -> str:
        """The key of the episode within the dataset."""
        ...

    @property
    def length(self) -> int:
        """How many rows there are."""
        ...

    def is_adjacent_to(self, before: Any) -> bool:
        """Return whether it may be read together with the span before it."""
        ...


AnySpan = TypeVar("AnySpan", bound=Span)


class SpanDataset(ForeignDataset, Generic[AnySpan]):
    """A dataset whose episodes are spans of rows."""

    @abstractmethod
    def spans(self) -> Iterable[AnySpan]:
        """Return the spans of episodes that have a transition; others are counted as lost."""

    @abstractmethod
    def part_rows(self) -> int:
        """Return about how many rows to read together."""

    @abstractmethod
    def load_spans(self, spans: Sequence[AnySpan]) -> ForeignTable:
        """Read some neighbours.

        Raises:
            DatasetError: one of them is damaged.
        """

    def parts(self) -> Iterator[Part]:
        """Yield parts of neighbours that may be read together, or of one episode."""
        some: list[AnySpan] = []
        count, most = 0, self.part_rows()
        for span in self.spans():
            if some and (count + span.length > most or not span.is_adjacent_to(some[-1])):
                yield self._part(some)
                some, count = [], 0
            some.append(span)
            count += span.length
        if some:
            yield self._part(some)

    def _part(self, spans: Sequence[AnySpan]) -> Part:
        return Part(
            tuple(span.name for span in spans),
            partial(self.load_spans, spans),
            lambda: (self._part([span]) for span in spans),
            tuple(getattr(span, "source_key", None) for span in spans),
        )


#: Where row T of an episode comes from: it stands in the source, or is made of the last transition's next
#: observation. Otherwise `last_observation` of the import decides.
STANDS, FOLLOWS = "stands", "follows"


class RowLayout:
    """Where the rows of some episodes go.

    Args:
        kinds: of each episode, where its row T comes from: `STANDS`, `FOLLOWS`, or a `LastObservation`.
        counts: the rows of each in the source.

    Attributes:
        numbers: the number of the episode of each row of the result.
        follows: bool, which episodes have their row T made of the last transition's next observation.
    """

    def __init__(self, kinds: Sequence[str], counts: Sequence[int] | np.ndarray) -> None:
        self.follows = np.array([kind == FOLLOWS for kind in kinds])
        self.missing = np.array([kind == "missing" for kind in kinds])
        appended = np.array([kind not in (STANDS, "drop") for kind in kinds])
        rows = np.asarray(counts) + appended
        #: The last row of each episode in the result.
        self.lasts = np.cumsum(rows) - 1
        total = int(np.sum(counts))
        self.first_rows = np.cumsum(counts) - counts
        self.numbers = pa.array(np.repeat(np.arange(len(rows)), rows))
        self._length = int(rows.sum())
        self._firsts = self.lasts + 1 - rows
        self._appended = self.lasts[appended]
        self._identity = not appended.any()
        # Which row of the source each row of the result has; an appended row repeats the one before it.
        self._order = np.arange(self._length) - np.repeat(np.cumsum(appended) - appended, rows)
        self._order[self._appended] -= 1
        self._followed = self._order.copy()
        self._followed[self.lasts[self.follows]] += total

    def facts(self) -> dict[str, pa.Array]:
        """Return the column of the episodes that states which lack their last observation, if one does."""
        if not self.missing.any():
            return {}
        return {
            "last_observation": pa.array(
                ["missing" if each else None for each in self.missing.tolist()], pa.string()
            )
        }

    def mark_missing(self, observations: pa.Array) -> None:
        """Mark the episodes with a last row but without its observation."""
        self.missing |= observations.take(pa.array(self.lasts)).is_null().to_numpy(zero_copy_only=False)

    def observed(self, now: pa.Array, after: pa.Array | None) -> pa.Array:
        """Return observations, with those of row T."""
        if self._identity:
            return now
        return _take(now, self._followed, self.lasts[self.missing], after)

    def acted(self, values: pa.Array) -> pa.Array:
        """Return values that row T lacks."""
        return _take(values, self._order, self.lasts)

    def passed(self, values: pa.Array, after: pa.Array | None) -> pa.Array:
        """Return values that come over as they are; an appended row has those of `after`, or NULL."""
        if self._identity:
            return values
        if after is None:
            return _take(values, self._order, self._appended)
        order = self._order.copy()
        order[self._appended] += len(values)
        return _take(values, order, np.array([], np.int64), after)

    def arrived(self, values: pa.Array) -> pa.Array:
        """Return values that came with the observation after the action of their row."""
        order = self._order - 1
        order[self._appended] += 1
        return _take(values, order, self._firsts)

    def flags(self, ended: np.ndarray) -> pa.Array:
        """Return flags that are set on the last transition."""
        values = np.zeros(self._length, bool)
        values[self.lasts - 1] = ended
        unset = np.zeros(self._length, bool)
        unset[self.lasts] = True
        return pa.array(values, mask=unset)


def _take(
    values: pa.Array, order: np.ndarray, without: np.ndarray, after: pa.Array | None = None
) -> pa.Array:
    """Return rows in an order; those of the result at `without` are NULL.

    Args:
        after: rows that `order` counts after those of `values`.
    """
    unset = np.zeros(len(order), bool)
    unset[without] = True
    given = [values] if after is None else [values, after.cast(values.type)]
    if isinstance(values.type, pa.FixedSizeListType) and all(map(_is_flat, given)):
        # Faster than Arrow's take, by far.
        first, *others = map(_rows_of, given)
        taken = first.take(order, axis=0, mode="clip")
        for rows in others:
            behind = np.flatnonzero(order >= len(first))
            taken[behind] = rows[order[behind] - len(first)]
        flat = pa.array(taken.reshape(-1), values.type.value_type)
        return pa.FixedSizeListArray.from_arrays(flat, values.type.list_size, mask=pa.array(unset))
    joined = values if after is None else pa.concat_arrays(given)
    return joined.take(pa.array(order, mask=unset))


def _rows_of(values: pa.FixedSizeListArray) -> np.ndarray:
    return values.flatten().to_numpy(zero_copy_only=False).reshape(len(values), values.type.list_size)


def _is_flat(values: pa.Array) -> bool:
    inner = values.type.value_type
    flat = pa.types.is_integer(inner) or inner in (pa.float32(), pa.float64())
    return flat and not values.null_count and not values.flatten().null_count


DROPPED = "a last transition, whose next observation is missing"
REPEATED = "a last observation, which repeats the one before"
DIFFERING = "a next observation that differs from the observation of the next row"
UNUSED = "an action and reward beside a last observation, which lead to none"
NO_TRANSITION = "an episode with an observation and no transition"
NOTHING_LEFT = "an episode of one transition, whose next observation is missing"
#: By `last_observation`.
LOST = {"drop": DROPPED, "repeat": REPEATED, "missing": "a last observation, which the source lacks"}
DROPPED_REWARD = "a reward other than 0 of a last transition, whose next observation is missing"


def count_endings(kinds: Sequence[str], rewards: Any, losses: Losses) -> None:
    """Count the episodes whose last observation the source lacks, and the rewards that "drop" leaves out.

    Args:
        kinds: of each episode, where its row T comes from: `STANDS`, `FOLLOWS`, or a `LastObservation`.
        rewards: of the last row of each episode: numbers or vectors of them. NaN states no reward; one that
            is not left out may be None.
    """
    for kind, what in LOST.items():
        losses.add(what, kinds.count(kind))
    dropped = [
        np.asarray(reward, np.float64) for kind, reward in zip(kinds, rewards, strict=True) if kind == "drop"
    ]
    losses.add(DROPPED_REWARD, sum(bool(((each != 0) & ~np.isnan(each)).any()) for each in dropped))


def is_left(transitions: int, options: ImportOptions, losses: Losses) -> bool:
    """Return whether `completed` leaves something of an episode; counts it as lost otherwise."""
    if options.last_observation != "drop" or transitions > 1:
        return True
    losses.add(NOTHING_LEFT)
    return False


def completed(episode: ForeignEpisode, options: ImportOptions, losses: Losses) -> ForeignEpisode:
    """Return an episode with T observations for T transitions as the caller chose; counts what is lost.

    After "drop" the episode is cut: its remaining last transition has neither flag.

    Args:
        episode: its extras, if any, have T rows, and it has no infos.

    Raises:
        DatasetError: nothing is left of it; `is_left` tells sooner.
    """
    total = len(episode.rewards)
    if options.last_observation == "drop" and total == 1:
        raise DatasetError(
            "The episode has one transition, whose next observation is missing, so nothing is left of it. "
            'Pass last_observation="missing".'
        )
    count_endings([options.last_observation], episode.rewards[-1:], losses)
    if options.last_observation == "drop":
        return replace(
            episode,
            actions=slice_batch(episode.actions, 0, total - 1),
            rewards=episode.rewards[: total - 1],
            terminations=False,
            truncations=False,
        )
    if options.last_observation == "repeat":
        return with_last(episode, slice_batch(episode.observations, total - 1, total))
    return replace(episode, last_observation="missing")


def with_last(episode: ForeignEpisode, last: Any) -> ForeignEpisode:
    """Return an episode of T observations with one more, a batch of one; its extras have None there."""
    extra = episode.extra
    return replace(
        episode,
        observations=joined(episode.observations, last),
        extra=padded(extra) if isinstance(extra, Mapping | None) else [*extra, None],
    )


def count_differing(following: Any, observations: Any, losses: Losses) -> None:
    """Count the rows whose next observation is not the observation of the next row, which is the one kept."""
    if isinstance(following, dict):
        for name, part in following.items():
            count_differing(part, observations[name], losses)
        return
    losses.add(DIFFERING, int(differing_rows(following[:-1], observations[1:]).sum()))


def differing_rows(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return which rows of two arrays of one shape differ; NaN equals NaN."""
    # NaN differs from itself. Few rows differ, and numpy searches them faster than it reduces all rows.
    places = np.flatnonzero(first != second)
    theirs, ours = first.reshape(-1)[places], second.reshape(-1)[places]
    places = places[(theirs == theirs) | (ours == ours)]
    differ = np.zeros(len(first), bool)
    differ[places // max(1, math.prod(first.shape[1:]))] = True
    return differ


def differing(left: pa.Array, right: pa.Array) -> np.ndarray:
    """Return which values of two columns differ; NULL at the left states nothing, and NaN is NaN."""
    stated = left.is_valid().to_numpy(zero_copy_only=False)
    try:
        differ = pl.Series(left).ne_missing(pl.Series(right)).to_numpy()
    except pl.exceptions.PolarsError:  # types without a common one
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        differ = np.array([one != other for one, other in pairs], bool)
    return stated & differ


def joined(first: Any, second: Any) -> Any:
    """Return two batches as one: arrays, or nested dicts and tuples of them."""
    if isinstance(first, dict):
        return {key: joined(part, second[key]) for key, part in first.items()}
    if isinstance(first, tuple):
        return tuple(map(joined, first, second))
    if isinstance(first, EncodedFrames):
        return first.joined(second)
    return np.concatenate([first, second])


def padded(columns: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return columns with one more row without a value."""
    if not columns:
        return None
    return {
        name: padded(part) if isinstance(part, Mapping) else [*part, None] for name, part in columns.items()
    }
