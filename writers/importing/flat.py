"""Flat rows of transitions, whose flags end the episodes: parts of many episodes as Arrow data.

A format gives the columns as `FlatRows`, and `FlatDataset` yields its parts. An episode ends
at a row with a flag, at rows that the format names, and where a lane ends. Its last observation is the next
observation of its last row; where the source lacks that one, `last_observation=` decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from gymnasium import Space, spaces

from ...store.common.arguments import refuse_mask
from ...store.common.foreign_arrays import to_numpy
from ...store.dynamic.column_groups import EXTRA
from ...store.errors import DatasetError, SpaceMismatchError
from ...store.names import (
    ACTION,
    EPISODE,
    OBSERVATION,
    RESERVED,
    REWARD,
    TERMINATED,
    TRUNCATED,
    escape_distinct,
)
from .boundary import check_bytes, reading
from .columns import array_column
from .episode_rows import (
    DIFFERING,
    FOLLOWS,
    NO_TRANSITION,
    NOTHING_LEFT,
    STANDS,
    UNUSED,
    RowLayout,
    SpanDataset,
    count_endings,
    differing_rows,
)
from .formats import ForeignTable, ImportOptions
from .hdf5 import discrete_of, is_discrete, space_of

_PART_BYTES = 8 << 20

#: The losses of episodes whose only row is no transition.
_WITHOUT_LAST = {"drop": NOTHING_LEFT, STANDS: NO_TRANSITION}

#: An array with one row per transition, or dicts and tuples of them as the space has.
Tree = Any


@dataclass(frozen=True, kw_only=True)
class FlatRows:
    """Columns with one row per transition.

    Arrays have `dtype` and `shape`, and give rows for a slice; NumPy arrays and `RolledView` also for an
    array of rows.

    Attributes:
        place: names the source in messages.
        observation, action: as their spaces.
        reward: None if there is none.
        terminated, truncated: bool, one per row.
        ends: int64, rows that end episodes without a flag, in order of time.
        following: next observations; None if there are none.
        followed: bool, one per row: whether its next observation is there, where it ends an episode.
        stands: bool, one per row: whether an episode that ends with this row has its last observation in it,
            beside an action and a reward that mean nothing. None: nowhere.
        passed: columns of `steps` that came with the observation of their row.
        arrived: columns of `steps` that came with the next observation.
        order: int64, the rows in order of time, one lane after the other; None: as they stand.
        lanes: how many of these belong to each lane. Several are environments, by `env_index`.
    """

    place: str
    observation: Tree
    action: Tree
    reward: Any
    terminated: np.ndarray
    truncated: np.ndarray
    ends: np.ndarray | None = None
    following: Tree | None = None
    followed: np.ndarray | None = None
    stands: np.ndarray | None = None
    passed: Mapping[str, Any] = field(default_factory=dict)
    arrived: Mapping[str, Any] = field(default_factory=dict)
    order: np.ndarray | None = None
    lanes: Sequence[int] | None = None

    def ordered(self, values: np.ndarray) -> np.ndarray:
        """Return values of all rows in order of time."""
        return values if self.order is None else values[self.order]

    def read(self, array: Any, name: str, start: int, stop: int) -> np.ndarray:
        """Return the rows of an array at `start` to `stop` in order of time; the caller must not change them.

        Raises:
            DatasetError: they cannot be read.
        """
        with reading(f"{self.place}: rows {start:,} to {stop:,} of {_name(array, name)}"):
            if self.order is None:
                return np.asarray(array[start:stop])
            rows = self.order[start:stop]
            breaks = np.flatnonzero(np.diff(rows) != 1) + 1
            if isinstance(array, np.ndarray | RolledView) and len(breaks):
                return np.asarray(array[rows])
            runs = [array[int(run[0]) : int(run[-1]) + 1] for run in np.split(rows, breaks)]
            return np.asarray(runs[0]) if len(runs) == 1 else np.concatenate(runs)


class RolledView:
    """`np.roll` without a copy: row k is row k + `by` of another array, modulo its length."""

    def __init__(self, array: np.ndarray, by: int) -> None:
        self._array = array
        self._by = by
        self.dtype, self.shape = array.dtype, array.shape

    def __getitem__(self, rows: Any) -> np.ndarray:
        places = np.arange(len(self._array))[rows] if isinstance(rows, slice) else rows
        return self._array[(places + self._by) % len(self._array)]


class _Span(NamedTuple):
    """An episode: its name, rows and number, and where its last observation comes from."""

    name: str
    length: int
    number: int
    kind: str

    def is_adjacent_to(self, before: _Span) -> bool:
        """Return whether it comes next after another."""
        return self.number == before.number + 1


class FlatDataset(SpanDataset[_Span]):
    """A dataset whose episodes are those of flat rows; a format gives them to `set_rows`."""

    def set_rows(self, rows: FlatRows, options: ImportOptions) -> None:
        """Take the columns and find the episodes in them.

        Args:
            options: of the import.
        """
        self._flat_options = options
        self._rows = rows
        terminated, truncated = rows.ordered(rows.terminated), rows.ordered(rows.truncated)
        edges = np.cumsum([len(terminated)] if rows.lanes is None else rows.lanes)
        ended = [np.flatnonzero(terminated | truncated), edges[edges > 0] - 1]
        if rows.ends is not None:
            ended.append(rows.ends)
        self._stops = np.unique(np.concatenate(ended)) + 1
        self.count = len(self._stops)
        self._starts = np.concatenate([[0], self._stops])[:-1]
        self._flags = terminated[self._stops - 1], truncated[self._stops - 1]
        self._lanes = np.searchsorted(edges, self._stops)

    def spans(self) -> Iterator[_Span]:
        """Yield the episodes; count those without a transition as lost."""
        kinds, lengths = self._kinds(), (self._stops - self._starts).tolist()
        for index, (kind, length) in enumerate(zip(kinds, lengths, strict=True)):
            if length > (kind in _WITHOUT_LAST):
                yield _Span(self._key(index), length, index, kind)
            else:
                self.losses.add(_WITHOUT_LAST[kind])

    def part_rows(self) -> int:
        """Return how many rows have some megabytes."""
        return max(1, _PART_BYTES // max(1, self._row_bytes))

    def _key(self, index: int) -> str:
        if len(self._rows.lanes or ()) < 2:
            return str(index)
        # A buffer that grows has more episodes in each lane.
        lane = self._lanes[index]
        return f"{lane}-{index - np.searchsorted(self._lanes, lane)}"

    def _kinds(self) -> list[str]:
        """Return where the last observation of each episode comes from."""
        rows, lasts = self._rows, self._stops - 1
        at = lasts if rows.order is None else rows.order[lasts]
        follows = np.full(len(at), rows.following is not None)
        if rows.followed is not None:
            follows &= rows.followed[at]
        stands = np.zeros(len(at), bool) if rows.stands is None else rows.stands[at]
        kinds = np.where(follows, FOLLOWS, self._flat_options.last_observation)
        return np.where(stands, STANDS, kinds).tolist()

    @cached_property
    def _leaves(self) -> dict[str, Any]:
        """The arrays by column of `steps`; once the dataset has the spaces of the store."""
        rows = self._rows
        columns = leaf_columns(self.observation_space, rows.observation, OBSERVATION, rows.place)
        columns |= leaf_columns(self.action_space, rows.action, ACTION, rows.place)
        if rows.following is not None:
            after = leaf_columns(self.observation_space, rows.following, "next_observation", rows.place)
            for name, array in after.items():
                now = columns[name.removeprefix("next_")]
                if array.shape[1:] != now.shape[1:] or not np.can_cast(array.dtype, now.dtype):
                    raise DatasetError(
                        f"{rows.place}: {_name(array, name)} cannot be read: it has {array.dtype} of shape "
                        f"{array.shape[1:]}; the observations are {now.dtype} of {now.shape[1:]}."
                    )
            columns |= after
        return (
            columns | ({} if rows.reward is None else {REWARD: rows.reward}) | {**rows.passed, **rows.arrived}
        )

    @cached_property
    def _row_bytes(self) -> int:
        return sum(array.dtype.itemsize * math.prod(array.shape[1:]) for array in self._leaves.values())

    def load_spans(self, spans: Sequence[_Span]) -> ForeignTable:
        """Read episodes as rows of `steps`.

        Raises:
            DatasetError: a column cannot be read.
        """
        first, kinds = spans[0].number, [span.kind for span in spans]
        episodes = slice(first, first + len(kinds))
        starts, stops = self._starts[episodes], self._stops[episodes]
        start, stop = int(starts[0]), int(stops[-1])
        longest = int(np.argmax(stops - starts))
        size = int((stops - starts)[longest]) * self._row_bytes
        check_bytes(f"{self._rows.place}: episode {first + longest}", size)
        values = {name: self._rows.read(array, name, start, stop) for name, array in self._leaves.items()}
        lasts = stops - 1 - start
        reward = np.full(stop - start, np.nan) if self._rows.reward is None else values.pop(REWARD)
        rewards = _reward(reward, self.reward_shape)
        count_endings(kinds, rewards[lasts], self.losses)
        self._count(values, rewards, lasts, kinds)
        layout = RowLayout(kinds, stops - starts)
        numbers = np.arange(episodes.start, episodes.stop)
        steps: dict[str, pa.Array] = {EPISODE: pa.array(numbers[layout.numbers.to_numpy()])}
        steps[REWARD] = layout.acted(_arrow(rewards, 1))
        for name, flags in zip((TERMINATED, TRUNCATED), self._flags, strict=True):
            steps[name] = layout.flags(flags[episodes] & (np.array(kinds) != "drop"))
        for name, array in values.items():
            if name in self._rows.passed:
                steps[name] = layout.passed(_arrow(array), None)
            elif name in self._rows.arrived:
                steps[name] = layout.arrived(_arrow(array))
            elif _is_in(name, OBSERVATION):
                after = values.get(f"next_{name}")
                steps[name] = layout.observed(_arrow(array, 1), None if after is None else _arrow(after, 1))
            elif _is_in(name, ACTION):
                steps[name] = layout.acted(_arrow(array, 1))
        facts: dict[str, Any] = {EPISODE: numbers, **layout.facts()}
        if len(self._rows.lanes or ()) > 1:
            facts["env_index"] = self._lanes[episodes]
        return ForeignTable(pa.table(steps), pa.table(facts))

    def _count(
        self, values: Mapping[str, np.ndarray], rewards: np.ndarray, lasts: np.ndarray, kinds: Sequence[str]
    ) -> None:
        """Count next observations that differ, and values beside a last observation."""
        stands = np.array(kinds) == STANDS
        differing = np.zeros(lasts[-1] + 1, bool)
        for name, after in values.items():
            if _is_in(name, "next_observation"):
                now = values[name.removeprefix("next_")]
                differing[:-1] |= differing_rows(after[:-1], now[1:])
        differing[lasts] = False
        self.losses.add(DIFFERING, int(differing.sum()))
        if stands.any():
            beside = [array[lasts[stands]] for name, array in values.items() if _is_in(name, ACTION)]
            beside.append(np.nan_to_num(rewards[lasts[stands]]))
            filled = [(array != 0).any(axis=tuple(range(1, array.ndim))) for array in beside]
            self.losses.add(UNUSED, int(np.any(filled, axis=0).sum()))


def leaf_columns(space: Space, values: Tree, column: str, place: str) -> dict[str, Any]:
    """Return the arrays of a space by column of `steps`.

    Raises:
        DatasetError: a part of the space has no array.
        SpaceMismatchError: the space has an array where the source has a group.
    """
    if isinstance(space, spaces.Dict):
        segments = escape_distinct(space.spaces)
        parts: dict[Any, tuple[str, Space]] = {
            key: (segments[key], part) for key, part in space.spaces.items()
        }
    elif isinstance(space, spaces.Tuple):
        parts = {index: (str(index), part) for index, part in enumerate(space.spaces)}
        if isinstance(values, Mapping):  # a group, whose keys are texts
            values = {index: values[str(index)] for index in parts if str(index) in values}
    elif hasattr(values, "dtype"):
        return {column: values}
    else:
        raise SpaceMismatchError(
            f"{place}: the {column} is a group with {', '.join(map(str, values))}; its space is {space}. "
            "Pass a Dict space with the names of the group."
        )
    given: Mapping[Any, Any] = dict(enumerate(values)) if isinstance(values, tuple) else values
    lacking = [str(key) for key in parts if not isinstance(given, Mapping) or key not in given]
    if lacking:
        raise DatasetError(f"{place}: the {column} has no {', '.join(lacking)}; its space is {space}.")
    columns: dict[str, Any] = {}
    for key, (name, part) in parts.items():
        columns |= leaf_columns(part, given[key], f"{column}.{name}", place)
    return columns


def extra_column(name: str, source: str) -> str:
    """Return the step column of an array of the source; below `source` if a store uses the name itself."""
    taken = name.casefold() in RESERVED or name.startswith("_")
    return EXTRA.column((source, name) if taken else (name,))


def _is_in(name: str, column: str) -> bool:
    return name == column or name.startswith(f"{column}.")


def _name(array: Any, name: str) -> str:
    return str(getattr(array, "name", name)).strip("/")


def _reward(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return rewards as float64; an axis of one item is left out where the store has none."""
    if values.dtype.kind not in "biuf":
        raise DatasetError(f"The rewards have dtype {values.dtype}; expected numbers.")
    if values.size != len(values) * math.prod(shape):
        raise DatasetError(f"The rewards have shape {values.shape}; expected {(len(values), *shape)}.")
    return values.reshape(len(values), *shape).astype(np.float64, copy=False)


def _arrow(values: np.ndarray, dimensions: int | None = None) -> pa.Array:
    """Return rows of numbers as an Arrow array; with `dimensions`, of lists of so many levels at most."""
    if values.dtype.kind not in "biuf":
        return pa.array(values.tolist())
    shape = values.shape[1:]
    if dimensions is not None and len(shape) > dimensions:
        shape = (int(np.prod(shape)),)
    return array_column(values, shape)


BEGUN = "the beginning of the first episode of a full buffer, whose rows newer ones may have replaced"


def class_names(source: Any, package: str) -> set[str]:
    """Return the names of those classes of an object that a package defines."""
    classes = type(source).__mro__
    return {each.__name__ for each in classes if each.__module__.partition(".")[0] == package}


def array_tree(values: Any) -> Tree:
    """Return tensors as arrays in nested mappings, sharing memory where they can; None for other objects."""
    if isinstance(values, Mapping):
        return {str(key): array_tree(part) for key, part in values.items()}
    refuse_mask(values, "an array of the source")
    array = to_numpy(values)
    return np.asarray(array) if isinstance(array, np.ndarray | np.number | np.bool_) else None


def tree_leaves(tree: Tree, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return the arrays of nested mappings by path."""
    if not isinstance(tree, Mapping):
        return {path: tree}
    arrays: dict[tuple[str, ...], Any] = {}
    for key, part in tree.items():
        arrays |= tree_leaves(part, (*path, key))
    return arrays


def action_space_of(actions: Tree) -> Space:
    """Return a Discrete space of integers from 0 to the largest, or that of other arrays.

    Arrays that have `blocks` are read in these.
    """
    if isinstance(actions, Mapping) or not is_discrete(actions):
        return space_of(actions, "action_space")
    return discrete_of(actions.blocks() if hasattr(actions, "blocks") else iter([actions]))


def unrolled(lanes: Sequence[tuple[int, int, int, int]], step: int = 1) -> np.ndarray:
    """Return the rows of rings in order of time, one ring after the other, as int64.

    Args:
        lanes: of each ring the row where it begins, how many rows it has, how many of these are filled, and
            the place of the oldest among them.
        step: how many rows of the arrays one row of a ring is away from the next.
    """
    rows = [
        first + step * ((oldest + np.arange(filled)) % capacity) for first, capacity, filled, oldest in lanes
    ]
    return np.concatenate(rows) if rows else np.array([], np.int64)
