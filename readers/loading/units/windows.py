"""Windows: a fixed number of steps in a row, within one episode."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import numpy as np

from ....store.errors import InvalidArgumentError
from ....store.reserved import ACTION, END_REASON, FLAGS, MASK, OBSERVATION, REWARD, STEP
from ..arguments import step_count
from ..columns.episode_index import EpisodeIndex
from ..columns.gather import blank, take_stretches
from ..columns.step_arrays import StepArrays
from ..output.tree import Tree
from .unit import Chosen, Computed, ReadKey, Units, end_reasons

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
        if self.pad not in (None, "left", "right"):
            raise InvalidArgumentError(f"pad={self.pad!r}: expected 'left', 'right' or None.")

    def counts(self, index: EpisodeIndex) -> np.ndarray:
        """See `Units`."""
        if self.pad is None:
            return np.maximum((index.usable - self.length) // self.stride + 1, 0)
        return -(-index.usable // self.stride)

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
            if absent is not None:
                blank(values, absent)
            return values

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
