"""Units: their interface, the search for the episode of a unit, and units of a single transition.

Those are transitions, n-step transitions, and values at relative steps. An n-step transition has the
discounted reward of the next n steps, and the observation after them: the n-step return of Sutton and Barto
(Reinforcement Learning, 2nd edition, section 7.1). A learner's target is `reward + discount *
value(next_observation)`. A span ends with its episode at the latest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal

import numpy as np

from ...store.common.arguments import MOST_STEPS, discount_factor, one_of, step_count
from ...store.errors import CorruptStoreError, InvalidArgumentError
from ...store.frames import DamagedFramesError
from ...store.names import (
    ACTION,
    AGENT_ID,
    DISCOUNT,
    END_REASON,
    EPISODE,
    FLAGS,
    MASK,
    NEXT_OBSERVATION,
    OBSERVATION,
    REWARD,
    SPAN,
    STEP,
    TERMINATED,
    TRUNCATED,
    is_observation,
)
from ...store.names import source_of as uncached_source_of
from ..columns.selection import EpisodeIndex
from ..columns.specs import check_names
from ..columns.step_arrays import StepArrays
from ..columns.tree import Tree, blank, joined_leaves, map_leaves, take_rows, take_stretches
from .number_sets import NumberSet

#: Keys that are computed from a unit's position.
COMPUTED = (AGENT_ID, END_REASON, EPISODE, STEP)

#: Of times, in seconds: how far one may be from a step, as in LeRobot.
_TOLERANCE = 1e-4
#: A batch asks for the same few keys each time.
source_of = lru_cache(1024)(uncached_source_of)

Batch = dict[str, Any]
#: Arrays by key, each computed only if the batch has the key.
Computed = Mapping[str, Callable[[], Any]]
#: Returns the array of a key, given the column it reads and how many rows after the unit's own.
ReadKey = Callable[[str, str, int], Tree]


class Units(ABC):
    """A kind of unit: how many an episode has, and how a batch of them is gathered."""

    #: Whether a batch is padded to its longest unit, so that batches differ in their second axis.
    ragged = False
    #: The keys of a batch if none are named.
    default_keys: tuple[str, ...] = ()
    #: The keys that a batch has whichever columns are named.
    required_keys: tuple[str, ...] = ()
    #: Keys that this kind adds, and the columns that they are made from.
    own_keys: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @property
    def every(self) -> int | None:
        """Steps from one unit's first transition to the next one's; the first unit of an episode begins at
        its step 0. None if units do not begin at a transition of their own.
        """
        return 1

    @property
    def rows(self) -> float:
        """About how many rows that follow each other a unit reads."""
        return 1

    @abstractmethod
    def counts(self, index: EpisodeIndex) -> np.ndarray:
        """Return how many units each episode has; int64, shape (E,)."""

    def rows_of(self, index: EpisodeIndex, chosen: Chosen) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the first row of its episode that each unit reads, and the one after its last: int64, shape
        (b,), ascending with the unit; they may lie outside the episode. None if units read whole episodes.
        """
        return None

    def needs_last(self, keys: Sequence[str]) -> bool:
        """Return whether a batch with such keys has the last observation of an episode."""
        return any(step and is_observation(column) for column, step in map(source_of, keys))

    @abstractmethod
    def gathering(self, arrays: StepArrays, chosen: Chosen) -> tuple[Computed, ReadKey]:
        """Return how to make the arrays of the chosen units: those that are computed, and all others."""

    def gather(self, arrays: StepArrays, keys: Sequence[str], chosen: Chosen) -> Batch:
        """Return a batch of the chosen units: fresh arrays by key, of shape (b, ...).

        Raises:
            CorruptStoreError: frames are damaged; the message names the episode and its step.
        """
        computed, read = self.gathering(arrays, chosen)
        index, episodes = arrays.index, chosen.episodes
        computed = {
            EPISODE: lambda: episodes if index.numbers is None else index.numbers[episodes],
            AGENT_ID: lambda: None if index.agents is None else index.agents[episodes],
            **computed,
        }
        try:
            return {key: computed[key]() if key in computed else read(key, *source_of(key)) for key in keys}
        except CorruptStoreError as error:
            cause = error.__cause__
            if not isinstance(cause, DamagedFramesError):
                raise
            number = int(np.searchsorted(index.starts, cause.row, side="right")) - 1
            position = number if index.numbers is None else int(index.numbers[number])
            place = f"at t={cause.row - int(index.starts[number])} of the episode at position {position}"
            raise CorruptStoreError(cause.named(str(error), place)) from cause

    def join(self, batches: Sequence[Batch]) -> Batch:
        """Join several batches into one, as `gather` would have returned it."""
        return map_leaves(lambda *parts: joined_leaves(parts), *batches)

    def columns(self, keys: Sequence[str]) -> list[str]:
        """Return the columns of the rows that the keys of a batch are made from."""
        made = {**dict.fromkeys(COMPUTED, ()), **self.own_keys}
        return list(dict.fromkeys(name for key in keys for name in made.get(key, (source_of(key)[0],))))


@dataclass(frozen=True)
class Chosen:
    """Units of a batch.

    Attributes:
        episodes: int64, shape (b,): the episode of each.
        numbers: int64, shape (b,): the unit's number within its episode.
    """

    episodes: np.ndarray
    numbers: np.ndarray

    def __len__(self) -> int:
        """Return the number of units b."""
        return len(self.episodes)

    def __getitem__(self, some: slice) -> Chosen:
        """Return some of them."""
        return Chosen(self.episodes[some], self.numbers[some])


def end_reasons(index: EpisodeIndex, episodes: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return how the episode ends with the transition from each step: int8, an index into `END_REASONS`."""
    ends = steps == index.lengths[episodes] - 1
    if index.left_out:
        ends &= steps < index.usable[episodes]
    return np.where(ends, index.end_reasons[episodes], np.int8(0))


_ENTRIES_PER_EPISODE = 4


class UnitIndex:
    """Units of all episodes, counted from 0, one episode after the other.

    Args:
        units: the kind of unit.
        index: the episodes.
        spans: int64, shape (2, E): the first unit of each episode to count, and the one after the last; None
            for all.

    Attributes:
        edges: int64, shape (E + 1,): the first unit of each episode, and the number of all.
    """

    #: The units that are counted, of all; None for all.
    _some: NumberSet | None = None

    def __init__(self, units: Units, index: EpisodeIndex, spans: np.ndarray | None = None) -> None:
        counts = units.counts(index) if spans is None else spans[1] - spans[0]
        self.edges = self._all_edges = np.concatenate([[0], np.cumsum(counts)])
        # What is subtracted from a unit's number to get that within its episode.
        self._firsts = self.edges[:-1] if spans is None else self.edges[:-1] - spans[0]

    def only(self, some: NumberSet) -> UnitIndex:
        """Return the index of some of these units, counted from 0."""
        index = copy(self)
        index._some, index.edges = some, some.below(self._all_edges)
        return index

    def __len__(self) -> int:
        """Return how many units there are."""
        return int(self.edges[-1])

    def choose(self, numbers: np.ndarray) -> Chosen:
        """Return the episodes of units, and which of their episode's units they are.

        Args:
            numbers: int64, each in [0, len(self)).
        """
        episodes = self._table[numbers >> self._shift]
        further = np.flatnonzero(self.edges[episodes + 1] <= numbers)
        if len(further):
            episodes[further] += 1
            still = further[self.edges[episodes[further] + 1] <= numbers[further]]
            episodes[still] = np.searchsorted(self.edges, numbers[still], side="right") - 1
        if self._some is not None:
            return Chosen(episodes, self._some[numbers] - self._all_edges[episodes])
        return Chosen(episodes, numbers - self._firsts[episodes])

    @cached_property
    def _shift(self) -> int:
        """The units of a table's entry have this many bits."""
        entries = _ENTRIES_PER_EPISODE * (len(self.edges) - 1)
        return max(len(self) // max(entries, 1), 1).bit_length() - 1

    @cached_property
    def _table(self) -> np.ndarray:
        """The episode of the first unit of each entry."""
        firsts = np.arange((len(self) >> self._shift) + 1) << self._shift
        return np.searchsorted(self.edges, firsts, side="right") - 1


@dataclass(frozen=True)
class Transitions(Units):
    """Single transitions, the default; `store.loader(256)`. Arrays of a batch have the shape (b, ...)."""

    default_keys = (OBSERVATION, ACTION, REWARD, NEXT_OBSERVATION, *FLAGS)

    def counts(self, index: EpisodeIndex) -> np.ndarray:
        """See `Units`."""
        return index.usable

    def rows_of(self, index: EpisodeIndex, chosen: Chosen) -> tuple[np.ndarray, np.ndarray]:
        """See `Units`."""
        return chosen.numbers, chosen.numbers + 2

    def gathering(self, arrays: StepArrays, chosen: Chosen) -> tuple[Computed, ReadKey]:
        """See `Units`."""
        index = arrays.index
        rows = index.starts[chosen.episodes] + chosen.numbers

        def read(key: str, column: str, shift: int) -> Tree:
            return take_rows(arrays.columns[column], rows + shift if shift else rows)

        computed = {
            STEP: lambda: chosen.numbers,
            END_REASON: lambda: end_reasons(index, chosen.episodes, chosen.numbers),
        }
        return computed, read


@dataclass(frozen=True)
class NSteps(Units):
    """n-step transitions, one from each step of an episode; `store.loader(256, el.NSteps(5, gamma=0.99))`.

    A batch has, each of shape (b,): `span` (int64), the k <= n steps up to the episode's end at the latest;
    `reward`, the sum of gamma^i times the i-th reward; `discount` (float64), gamma^k, or 0 where the span
    terminated. `next_observation`, `terminated` and `truncated` are those of the span's end.

    Args:
        n: most transitions of a span, from 1 on.
        gamma: discount of a step, from 0 to 1.

    Raises:
        InvalidArgumentError: a value is outside its range.
    """

    default_keys = (OBSERVATION, ACTION, REWARD, NEXT_OBSERVATION, *FLAGS, DISCOUNT, SPAN)
    own_keys: ClassVar = {DISCOUNT: (TERMINATED,), SPAN: ()}

    n: int
    _: KW_ONLY
    gamma: float = 0.99

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", step_count("n", self.n, 1))
        object.__setattr__(self, "gamma", discount_factor("gamma", self.gamma))

    def counts(self, index: EpisodeIndex) -> np.ndarray:
        """See `Units`."""
        return index.usable

    def rows_of(self, index: EpisodeIndex, chosen: Chosen) -> tuple[np.ndarray, np.ndarray]:
        """See `Units`."""
        return chosen.numbers, chosen.numbers + self.n + 1

    def gathering(self, arrays: StepArrays, chosen: Chosen) -> tuple[Computed, ReadKey]:
        """See `Units`."""
        index, columns = arrays.index, arrays.columns
        rows = index.starts[chosen.episodes] + chosen.numbers
        span = np.minimum(self.n, index.usable[chosen.episodes] - chosen.numbers)
        most = min(self.n, int(index.lengths.max(initial=1)))
        last = rows + span - 1

        def read(key: str, column: str, shift: int) -> Tree:
            return take_rows(columns[column], rows + span if shift else rows)

        computed = {
            REWARD: lambda: self.returns(take_stretches(columns[REWARD], rows, most), span),
            TERMINATED: lambda: take_rows(columns[TERMINATED], last),
            TRUNCATED: lambda: take_rows(columns[TRUNCATED], last),
            DISCOUNT: lambda: self.discounts(columns[TERMINATED][last], span),
            SPAN: lambda: span,
            STEP: lambda: chosen.numbers,
            END_REASON: lambda: end_reasons(index, chosen.episodes, chosen.numbers + span - 1),
        }
        return computed, read

    def discounts(self, terminated: np.ndarray, span: np.ndarray) -> np.ndarray:
        """Return the factors of the values after the spans: float64, shape (b,)."""
        return np.where(terminated, 0.0, self._powers(int(span.max(initial=0)))[span])

    def _powers(self, most: int) -> np.ndarray:
        """Return the powers of gamma from 0 to `most`: float64."""
        return self.gamma ** np.arange(most + 1)

    def returns(self, stretches: np.ndarray, span: np.ndarray) -> np.ndarray:
        """Return discounted sums over the spans, in order of time; shape (b,), or (b, k) for k objectives.

        Args:
            stretches: fresh rewards, shape (b, m) or (b, m, k) with m from the longest span on; those after
                the spans are overwritten.
            span: int64, shape (b,).
        """
        # Not multiplied by 0: what is not a number in one episode must not reach another.
        most = stretches.shape[1]
        inside = np.arange(most) < span[:, None]
        blank(stretches, ~inside)
        factors = np.where(inside, self._powers(most - 1), 0.0)
        return np.einsum("bn,bn...->b...", factors, stretches)


@dataclass(frozen=True)
class Deltas(Units):
    """Transitions with values at relative steps; `store.loader(256, el.Deltas({"observation": [-1, 0]}))`.

    A key with k steps has the shape (b, k, ...), and `mask[key]` the shape (b, k). Before the first and after
    the last value of its episode a key repeats that value, and its mask is False. Observations reach to the
    last one, which no transition follows. Further keys of `columns` have the transition's own value.

    Args:
        steps: by key, one or more whole numbers: steps relative to the transition, which is at 0.
        unit: "seconds" for numbers of seconds, as in `delta_timestamps` of LeRobot: multiples of 1 / fps,
            which the run of each episode or the card of the store states (`store.card["fps"] = 30`).

    Raises:
        InvalidArgumentError: it is no such mapping, or a key has no values at other steps.
    """

    own_keys: ClassVar = {MASK: ()}

    steps: Mapping[str, Sequence[float]]
    _: KW_ONLY
    unit: Literal["steps", "seconds"] = "steps"

    def __post_init__(self) -> None:
        one_of("unit", self.unit, ("steps", "seconds"))
        if not isinstance(self.steps, Mapping) or not self.steps:
            raise InvalidArgumentError(
                f"Deltas({self.steps!r:.200}): expected relative steps by key, such as "
                "{'observation': [-1, 0]}."
            )
        check_names(list(self.steps))
        checked = _relative if self.unit == "steps" else _seconds
        object.__setattr__(self, "steps", {key: checked(key, own) for key, own in self.steps.items()})
        object.__setattr__(self, "required_keys", (*self.steps, MASK))

    def __repr__(self) -> str:
        """Show the steps, and the unit if it is not steps: states of earlier loaders have this text."""
        unit = "" if self.unit == "steps" else f", unit={self.unit!r}"
        return f"Deltas(steps={self.steps!r}{unit})"

    def in_steps(self, rates: Collection[float | None]) -> Deltas:
        """Return the same in steps.

        Args:
            rates: the frames per second of the episodes; None among them where some have none.

        Raises:
            InvalidArgumentError: there is not one rate, or a time is no multiple of a step.
        """
        known = sorted(rate for rate in rates if rate is not None)
        if None in rates or len(known) != 1:
            found = ", ".join(f"{rate:g}" for rate in known)
            problem = f"they have {found}" if found else "they have none"
            problem += " and some have none" if found and None in rates else ""
            raise InvalidArgumentError(
                f"Deltas in seconds need episodes of one number of frames per second; {problem}. Set "
                "store.card['fps'], choose those of one rate with store.filter('run.fps = 30'), or give "
                "steps."
            )
        (rate,) = known
        steps: dict[str, list[int]] = {}
        for key, own in self.steps.items():
            steps[key] = [round(second * rate) for second in own]
            for second, step in zip(own, steps[key], strict=True):
                if abs(second - step / rate) > _TOLERANCE:
                    raise InvalidArgumentError(
                        f"Deltas({{{key!r}: [..., {second}]}}): no step is at {second} s. At {rate:g} frames "
                        f"per second the nearest is at {step / rate:.4f} s; expected one within "
                        f"{_TOLERANCE} s."
                    )
        return Deltas(steps)

    def counts(self, index: EpisodeIndex) -> np.ndarray:
        """See `Units`."""
        return index.usable

    def rows_of(self, index: EpisodeIndex, chosen: Chosen) -> tuple[np.ndarray, np.ndarray]:
        """See `Units`."""
        steps = [0, *(step for own in self.steps.values() for step in own)]
        return chosen.numbers + int(min(steps)), chosen.numbers + int(max(steps)) + 2

    def gathering(self, arrays: StepArrays, chosen: Chosen) -> tuple[Computed, ReadKey]:
        """See `Units`; a key with k steps has the shape (b, k, ...), its mask (b, k)."""
        index = arrays.index
        starts = index.starts[chosen.episodes]
        steps = {key: chosen.numbers[:, None] + np.array(own) for key, own in self.steps.items()}
        inside = {
            key: np.clip(own, 0, self._last_step(index, key)[chosen.episodes, None])
            for key, own in steps.items()
        }

        def read(key: str, column: str, shift: int) -> Tree:
            rows = starts[:, None] + inside[key] if key in steps else starts + chosen.numbers
            return take_rows(arrays.columns[column], rows + shift)

        computed = {
            MASK: lambda: {key: inside[key] == own for key, own in steps.items()},
            STEP: lambda: chosen.numbers,
            END_REASON: lambda: end_reasons(index, chosen.episodes, chosen.numbers),
        }
        return computed, read

    @staticmethod
    def _last_step(index: EpisodeIndex, key: str) -> np.ndarray:
        """Return the last step of each episode at which a key has a value."""
        column, shift = source_of(key)
        return index.last_seen - shift if is_observation(column) else index.lengths - 1


def _relative(key: str, steps: Any) -> tuple[int, ...]:
    _check_relative(key)
    given = list(steps) if isinstance(steps, Iterable) else []
    whole = [int(step) for step in given if isinstance(step, int | np.integer) and not isinstance(step, bool)]
    if not whole or len(whole) < len(given) or max(map(abs, whole)) > MOST_STEPS:
        raise InvalidArgumentError(
            f"Deltas({{{key!r}: {steps!r:.200}}}): expected one or more whole numbers, none beyond "
            f"{MOST_STEPS}. Times need unit='seconds'."
        )
    return tuple(whole)


def _seconds(key: str, times: Any) -> tuple[float, ...]:
    _check_relative(key)
    given = list(times) if isinstance(times, Iterable) and not isinstance(times, str) else []
    try:
        seconds = [float(time) for time in given]
    except (TypeError, ValueError):
        seconds = []
    if not seconds or not np.isfinite(seconds).all() or max(map(abs, seconds)) > MOST_STEPS:
        raise InvalidArgumentError(
            f"Deltas({{{key!r}: {times!r:.200}}}): expected one or more numbers of seconds, none beyond "
            f"{MOST_STEPS}."
        )
    return tuple(seconds)


def _check_relative(key: str) -> None:
    if key in (AGENT_ID, END_REASON, EPISODE, STEP, MASK):
        raise InvalidArgumentError(
            f"Deltas: the key {key!r} has no values at other steps. Name it in columns=[...] instead."
        )
