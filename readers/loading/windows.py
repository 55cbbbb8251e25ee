"""Units of several steps: windows of a fixed length within one episode, and whole episodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from ...store.common.arguments import one_of, step_count
from ...store.errors import InvalidArgumentError
from ...store.names import (
    ACTION,
    AGENT_ID,
    END_REASON,
    EPISODE,
    FLAGS,
    LENGTH,
    MASK,
    OBSERVATION,
    REWARD,
    STEP,
    UNIT,
    WEIGHT,
    is_observation,
)
from ..columns.selection import EpisodeIndex
from ..columns.step_arrays import StepArrays
from ..columns.tree import Tree, blank, joined_leaves, leaves, map_leaves, take_stretches
from .units import Batch, Chosen, Computed, ReadKey, Units, end_reasons

Pad = Literal["left", "right"]


@dataclass(frozen=True)
class Windows(Units):
    """Windows of consecutive transitions within one episode; `store.loader(256, el.Windows(64, pad="left"))`.

    Arrays of a batch have the shape (b, burn_in + length, ...). Steps outside the episode are zero, and False
    in `mask`. Without padding a window begins at every `stride`-th step at which a whole one fits, so an
    episode shorter than `length` has none. Padded on the right, a window begins at every `stride`-th step;
    padded on the left, one ends at the last step and at every `stride`-th step before it.

    Args:
        length: transitions of a window, from 1 on.
        stride: steps from one window to the next, from 1 on.
        pad: "left" or "right": the side on which a window may reach beyond its episode; None for neither.
        burn_in: steps before the window, to warm up a recurrent state; padding at an episode's beginning.

    Raises:
        InvalidArgumentError: a number is no whole number in its range, or `pad` is something else.
    """

    default_keys = (OBSERVATION, ACTION, REWARD, *FLAGS, MASK)
    own_keys: ClassVar = {MASK: ()}

    length: int
    _: KW_ONLY
    stride: int = 1
    pad: Pad | None = None
    burn_in: int = 0

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("stride", 1), ("burn_in", 0)):
            object.__setattr__(self, name, step_count(name, getattr(self, name), least))
        if self.pad is not None:
            one_of("pad", self.pad, ("left", "right"))

    @property
    def every(self) -> int | None:
        """See `Units`; a window begins after its burn-in."""
        return None if self.pad == "left" else self.stride

    @property
    def rows(self) -> float:
        """See `Units`."""
        return self.burn_in + self.length

    def counts(self, index: EpisodeIndex) -> np.ndarray:
        """See `Units`."""
        if self.pad is None:
            return np.maximum((index.usable - self.length) // self.stride + 1, 0)
        return -(-index.usable // self.stride)

    def rows_of(self, index: EpisodeIndex, chosen: Chosen) -> tuple[np.ndarray, np.ndarray]:
        """See `Units`."""
        first = self._first_steps(index, chosen)
        return first, first + self.burn_in + self.length + 1

    def _first_steps(self, index: EpisodeIndex, chosen: Chosen) -> np.ndarray:
        """Return the step at which each begins, burn-in included; negative where it is padded on the left."""
        steps = chosen.numbers * self.stride
        if self.pad == "left":
            lengths = index.usable[chosen.episodes]
            steps += (lengths - 1) % self.stride - self.length + 1
        return steps - self.burn_in

    def gathering(self, arrays: StepArrays, chosen: Chosen) -> tuple[Computed, ReadKey]:
        """See `Units`; arrays have the shape (b, burn_in + length, ...)."""
        index = arrays.index
        size = self.burn_in + self.length
        first = self._first_steps(index, chosen)
        starts = index.starts[chosen.episodes] + first
        mask = self._mask(index, chosen.episodes, first)
        absent = None if mask.all() else ~mask

        def steps() -> np.ndarray:
            return first[:, None] + np.arange(size)

        def read(key: str, column: str, shift: int) -> Tree:
            values = take_stretches(arrays.columns[column], starts + shift, size)
            return values if absent is None else blank(values, absent)

        computed = {
            MASK: lambda: mask,
            STEP: steps,
            END_REASON: lambda: end_reasons(index, chosen.episodes[:, None], steps()),
        }
        return computed, read

    def _mask(self, index: EpisodeIndex, episodes: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Return which steps are real: bool, shape (b, burn_in + length)."""
        if self.pad is None and not self.burn_in:
            return np.ones((len(first), self.length), bool)
        steps = first[:, None] + np.arange(self.burn_in + self.length)
        return (steps >= 0) & (steps < index.usable[episodes][:, None])


@dataclass(frozen=True)
class Episodes(Units):
    """Whole episodes, padded to the longest of a batch; `store.loader(8, el.Episodes())`.

    With T the longest length, observations have the shape (b, T + 1, ...) and everything else (b, T, ...).
    Zeros follow the shorter episodes, as `mask` (bool, shape (b, T)) and `length` (int64, shape (b,)) show.
    `unpadded` splits a batch into its episodes.
    """

    ragged = True
    default_keys = (OBSERVATION, ACTION, REWARD, *FLAGS, MASK, LENGTH)
    own_keys: ClassVar = {MASK: (), LENGTH: ()}

    @property
    def every(self) -> None:
        """None: the unit is a whole episode."""
        return

    @property
    def rows(self) -> float:
        """See `Units`."""
        return math.inf

    def counts(self, index: EpisodeIndex) -> np.ndarray:
        """See `Units`."""
        return np.minimum(index.usable, 1)

    def needs_last(self, keys: Sequence[str]) -> bool:
        """See `Units`."""
        return any(map(is_observation, keys)) or super().needs_last(keys)

    def gathering(self, arrays: StepArrays, chosen: Chosen) -> tuple[Computed, ReadKey]:
        """See `Units`; with T the longest, observations are (b, T + 1, ...), everything else (b, T, ...)."""
        index = arrays.index
        lengths = index.usable[chosen.episodes]
        starts = index.starts[chosen.episodes]
        longest = int(lengths.max(initial=0))
        steps = np.broadcast_to(np.arange(longest), (len(chosen), longest))

        def read(key: str, column: str, shift: int) -> Tree:
            extra = is_observation(key)
            values = take_stretches(arrays.columns[column], starts + shift, longest + extra)
            return blank(values, np.arange(longest + extra) >= (lengths + extra)[:, None])

        computed = {
            MASK: lambda: steps < lengths[:, None],
            STEP: steps.copy,
            LENGTH: lambda: lengths,
            END_REASON: lambda: end_reasons(index, chosen.episodes[:, None], steps),
        }
        return computed, read

    def join(self, batches: Sequence[Batch]) -> Batch:
        """See `Units`; pads all batches to the longest."""
        joined = map_leaves(lambda *parts: joined_leaves(_lengthened(parts)), *batches)
        if STEP in joined:
            joined[STEP][:] = np.arange(joined[STEP].shape[1])
        return joined


def _lengthened(parts: Sequence[Any]) -> list[Any]:
    """Pad arrays of shape (b, T, ...) with zeros to the largest T; return those of shape (b,) unchanged."""
    if parts[0].ndim < 2:
        return list(parts)
    longest = max(part.shape[1] for part in parts)
    if not isinstance(parts[0], np.ndarray):
        return [part.lengthened(longest) for part in parts]
    unchanged = [(0, 0)] * (parts[0].ndim - 2)
    return [
        np.pad(part, [(0, 0), (0, longest - part.shape[1]), *unchanged], constant_values=part.dtype.type())
        for part in parts
    ]


def unpadded(batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the episodes of a batch of `Episodes`, one by one, without padding.

    Args:
        batch: of a loader of `Episodes()`, with the key `length`; numpy arrays, torch tensors or
            JAX arrays, with an axis of b episodes first.

    Returns:
        b dicts with the keys of the batch but `mask`; of an episode of T transitions, observations have
        T + 1 rows and everything else T; `length` and `episode` are single numbers. Of numpy arrays and
        tensors they are views, which share the batch's memory.

    Raises:
        InvalidArgumentError: the batch has no lengths, or is one of other units.
    """
    if not isinstance(batch, Mapping) or LENGTH not in batch:
        raise InvalidArgumentError(
            f"unpadded() got {type(batch).__name__} without the key {LENGTH!r}; expected a batch of a loader "
            "made with units=el.Episodes(). Where columns are named, name 'length' too."
        )
    for key, tree in batch.items():
        for part, leaf in leaves(tree, key):
            right = leaf.ndim == 1 if key in _SINGLE else leaf.ndim > 1
            if not right:
                raise InvalidArgumentError(
                    f"unpadded() got a batch whose key {part!r} has the shape {tuple(leaf.shape)}; batches "
                    "of a loader made with units=el.Episodes() have one length for each episode, and an axis "
                    "of steps in everything else. Batches of other units have nothing to split."
                )
    return [_episode(batch, number, int(length)) for number, length in enumerate(batch[LENGTH])]


#: Keys with one number for each episode.
_SINGLE = (LENGTH, EPISODE, AGENT_ID, UNIT, WEIGHT)


def _episode(batch: Mapping[str, Any], number: int, length: int) -> dict[str, Any]:
    return {key: _rows(key, tree, number, length) for key, tree in batch.items() if key != MASK}


def _rows(key: str, tree: Tree, number: int, length: int) -> Tree:
    if key in _SINGLE:
        return tree[number]
    rows = length + is_observation(key)
    return map_leaves(lambda leaf: leaf[number][:rows], tree)
