"""Delta windows: for each key the values at some steps before and after a transition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ....store.errors import InvalidArgumentError
from ....store.reserved import AGENT_ID, END_REASON, EPISODE, MASK, STEP, is_observation
from ..arguments import MOST_STEPS
from ..columns.episode_index import EpisodeIndex
from ..columns.gather import take_rows
from ..columns.specs import check_names
from ..columns.step_arrays import StepArrays
from ..output.tree import Tree
from .unit import Chosen, Computed, ReadKey, Units, end_reasons, source_of


@dataclass(frozen=True)
class Deltas(Units):
    """Transitions with values at relative steps; `store.loader(256, el.Deltas({"observation": [-1, 0]}))`.

    A key with k steps has the shape (b, k, ...), and `mask[key]` the shape (b, k). Before the first and after
    the last value of its episode a key repeats that value, and its mask is False. Observations reach to the
    last one, which no transition follows. Further keys of `columns` have the transition's own value.

    Args:
        steps: by key, one or more whole numbers: steps relative to the transition, which is at 0.

    Raises:
        InvalidArgumentError: it is no such mapping, or a key has no values at other steps.
    """

    own_keys: ClassVar = {MASK: ()}

    steps: Mapping[str, Sequence[int]]

    def __post_init__(self) -> None:
        if not isinstance(self.steps, Mapping) or not self.steps:
            raise InvalidArgumentError(
                f"Deltas({self.steps!r:.200}): expected relative steps by key, such as "
                "{'observation': [-1, 0]}."
            )
        check_names(list(self.steps))
        object.__setattr__(self, "steps", {key: _relative(key, own) for key, own in self.steps.items()})
        object.__setattr__(self, "required_keys", (*self.steps, MASK))

    def counts(self, index: EpisodeIndex) -> np.ndarray:
        """See `Units`."""
        return index.usable

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
    if key in (AGENT_ID, END_REASON, EPISODE, STEP, MASK):
        raise InvalidArgumentError(
            f"Deltas: the key {key!r} has no values at other steps. Name it in columns=[...] instead."
        )
    given = list(steps) if isinstance(steps, Iterable) else []
    whole = [int(step) for step in given if isinstance(step, int | np.integer) and not isinstance(step, bool)]
    if not whole or len(whole) < len(given) or max(map(abs, whole)) > MOST_STEPS:
        raise InvalidArgumentError(
            f"Deltas({{{key!r}: {steps!r:.200}}}): expected one or more whole numbers, none beyond "
            f"{MOST_STEPS}."
        )
    return tuple(whole)
