"""Units that belong to a single transition: itself, n-step transitions, and values at relative steps.

An n-step transition has the discounted reward of the next n steps, and the observation after them: the n-step
return of Sutton and Barto (Reinforcement Learning, 2nd edition, section 7.1). A learner's target is `reward +
discount * value(next_observation)`. A span ends with its episode at the latest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np

from ...store.common.arguments import MOST_STEPS, discount_factor, step_count
from ...store.errors import InvalidArgumentError
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
from ..columns.gather import blank, take_rows, take_stretches
from ..columns.selection import EpisodeIndex
from ..columns.specs import check_names
from ..columns.step_arrays import StepArrays
from ..columns.tree import Tree
from .unit import Chosen, Computed, ReadKey, Units, end_reasons, source_of


@dataclass(frozen=True)
class Transitions(Units):
    """Single transitions, the default; `store.loader(256)`. Arrays of a batch have the shape (b, ...)."""

    default_keys = (OBSERVATION, ACTION, REWARD, NEXT_OBSERVATION, *FLAGS)

    def counts(self, index: EpisodeIndex) -> np.ndarray:
        """See `Units`."""
        return index.usable

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
