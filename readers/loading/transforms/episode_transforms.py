"""Transforms of whole episodes: `ReturnToGo`, `GAE`, `Relabel` and `FrameStack`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ....store.common.arguments import discount_factor, one_of, whole_number
from ....store.errors import InvalidArgumentError
from ....store.names import FLAGS, NEXT_OBSERVATION, OBSERVATION, REWARD, TERMINATED
from ...columns.ragged import Ragged
from ...columns.selection import EpisodeIndex
from ...columns.specs import PRESENT
from ...columns.step_arrays import StepArrays
from ...columns.tree import StackedRows, map_leaves, take_rows
from .key_transforms import replace_part
from .on_read import DerivedColumns, EpisodeTransform


def discounted_sums(values: np.ndarray, index: EpisodeIndex, factor: float) -> np.ndarray:
    """Return what `sum_t = values_t + factor * sum_(t+1)` gives, within each episode.

    Each pass doubles how far a sum reaches, so that episodes of T steps take log2(T) passes over all rows,
    and no sum is of one row at a time; rounding errors grow with log2(T) too.

    Args:
        values: float64, shape (rows, ...).
        index: where the episodes are.
        factor: from 0 to 1.

    Returns:
        A fresh array of the same shape.
    """
    sums = values.copy()
    if not len(index):
        return sums
    left = np.repeat(index.starts[1:], index.lengths + 1) - np.arange(index.rows)
    longest = int(index.lengths.max()) + 1
    reach = 1
    with np.errstate(invalid="ignore", over="ignore"):  # infinite rewards are data
        while reach < longest and factor**reach > 0:
            inside = (left[:-reach] > reach).reshape(-1, *[1] * (values.ndim - 1))
            further = sums[reach:] * factor**reach
            # Chosen, not multiplied by 0: what is not a number in one episode must not reach another.
            np.add(sums[:-reach], further, out=sums[:-reach], where=inside)
            reach *= 2
    return sums


@dataclass(frozen=True)
class ReturnToGo(DerivedColumns):
    """Adds the discounted sum of the rewards from each step to its episode's end; float64.

    `R_t = reward_t + gamma * R_(t+1)`: Sutton and Barto, Reinforcement Learning, 2nd edition, section 3.3.
    With gamma 1 it is what a Decision Transformer is conditioned on (Chen et al. 2021, "Decision Transformer:
    Reinforcement Learning via Sequence Modeling"). The sum ends with the recorded rewards, also where the
    episode was truncated or cut; what might have come later is not guessed.

    Args:
        gamma: discount of a step.
        key: the name of the column, so that a batch can have several.
    """

    gamma: float = 1.0
    key: str = "return_to_go"

    def __post_init__(self) -> None:
        """Check the discount."""
        object.__setattr__(self, "gamma", discount_factor("gamma", self.gamma))

    @property
    def reads(self) -> tuple[str, ...]:
        """See `EpisodeTransform`."""
        return (REWARD,)

    @property
    def writes(self) -> tuple[str, ...]:
        """See `EpisodeTransform`."""
        return (self.key,)

    def compute(self, arrays: StepArrays) -> Mapping[str, np.ndarray]:
        """See `DerivedColumns`."""
        rewards = np.asarray(arrays.columns[REWARD], np.float64)
        return {self.key: discounted_sums(rewards, arrays.index, self.gamma)}


ADVANTAGE = "advantage"
VALUE_TARGET = "value_target"


@dataclass(frozen=True)
class GAE(DerivedColumns):
    """Adds `advantage` and `value_target`: generalised advantage estimation (Schulman et al. 2016).

    "High-Dimensional Continuous Control Using Generalized Advantage Estimation", equations 10 to 16:
    `delta_t = reward_t + gamma * V_(t+1) - V_t`, `advantage_t = delta_t + gamma * lam * advantage_(t+1)`, and
    `value_target_t = advantage_t + V_t`. The sums end with the episode. The V after the last
    transition is 0 where the episode terminated, and the value of the last observation elsewhere (truncated,
    cut, interrupted), which the policy must have logged: `env.log(value=...)` after the last step, or T + 1
    values for `write_episode`. Both columns are float64.

    Args:
        gamma: discount of a step.
        lam: the lambda of the paper, from 0 (one step) to 1 (the whole rest of the episode).
        value: the column of V. Shape () or (1,), or that of the rewards.
        missing: the V of a last observation that has none: "error"; "zero"; or "repeat", the V
            of the observation before it.
    """

    gamma: float = 0.99
    lam: float = 0.95
    value: str = "policy.value"
    missing: Literal["error", "zero", "repeat"] = "error"

    def __post_init__(self) -> None:
        """Check the numbers."""
        object.__setattr__(self, "gamma", discount_factor("gamma", self.gamma))
        object.__setattr__(self, "lam", discount_factor("lam", self.lam))
        one_of("missing", self.missing, ("error", "zero", "repeat"))

    @property
    def reads(self) -> tuple[str, ...]:
        """See `EpisodeTransform`."""
        return (REWARD, TERMINATED, self.value, self.value + PRESENT)

    @property
    def writes(self) -> tuple[str, ...]:
        """See `EpisodeTransform`."""
        return (ADVANTAGE, VALUE_TARGET)

    def compute(self, arrays: StepArrays) -> Mapping[str, np.ndarray]:
        """See `DerivedColumns`.

        Raises:
            InvalidArgumentError: a value is missing; the message says where and what to do.
        """
        index = arrays.index
        rewards = np.asarray(arrays.columns[REWARD], np.float64)
        values = self._values(arrays, rewards.shape)
        deltas = rewards - values
        deltas[:-1] += self.gamma * values[1:]
        deltas[index.padding] = 0
        advantage = discounted_sums(deltas, index, self.gamma * self.lam)
        targets = advantage + values
        targets[index.padding] = 0
        return {ADVANTAGE: advantage, VALUE_TARGET: targets}

    def _values(self, arrays: StepArrays, shape: tuple[int, ...]) -> np.ndarray:
        """Return the V of every row: float64, in the shape of the rewards."""
        index, present = arrays.index, arrays.columns[self.value + PRESENT]
        values = np.array(arrays.columns[self.value], np.float64)
        if values.shape == (*shape, 1):
            values = values[..., 0]
        if values.shape != shape:
            raise InvalidArgumentError(
                f"The values in {self.value!r} have the shape {values.shape[1:]}, rewards {shape[1:]}. GAE "
                "needs one value for each reward."
            )
        self._check_steps(index, present)
        ended = arrays.columns[TERMINATED][index.last_transitions]
        absent = ~present[index.padding]
        self._check_last(index, np.flatnonzero(absent & ~ended))
        values[index.padding[absent]] = 0 if self.missing == "zero" else values[index.padding[absent] - 1]
        values[index.padding[ended]] = 0
        return values

    def _check_steps(self, index: EpisodeIndex, present: np.ndarray) -> None:
        lost = ~present
        lost[index.padding] = False
        rows = np.flatnonzero(lost)
        if len(rows):
            episode = int(np.searchsorted(index.starts, rows[0], side="right")) - 1
            raise InvalidArgumentError(
                f"{len(rows)} of {index.transitions} transitions have no {self.value!r}, the first at t="
                f"{rows[0] - index.starts[episode]} of the episode at position {episode} of those loaded. "
                "GAE needs a value for each: load only episodes whose policy logged one, or name another "
                "column with value=..."
            )

    def _check_last(self, index: EpisodeIndex, episodes: np.ndarray) -> None:
        if self.missing == "error" and len(episodes):
            raise InvalidArgumentError(
                f"{len(episodes)} of {len(index)} episodes did not terminate and have no {self.value!r} at "
                f"their last observation, the first at position {episodes[0]} of those loaded; GAE needs it "
                "for what the rest would have brought. Log it after the last step (env.log(value=...), or "
                "T + 1 values for write_episode), load only terminated episodes (filter('terminated')), or "
                "choose a substitute: missing='zero' or missing='repeat'."
            )


#: A function gets about so many transitions at a time, so that what it makes on its way stays small.
_AT_ONCE = 1 << 15


@dataclass(frozen=True)
class Relabel(DerivedColumns):
    """Replaces or adds a column, as a function of the values at each transition.

    It comes before all that is made of the column: with a relabelled `reward`, n-step rewards, returns to go
    and advantages are those of the new reward. (To change a batch after it was gathered, put a function of
    the batch in the list of transforms instead.)

    Args:
        key: the column; any but observations.
        function: gets an array (or a nested value) of shape (n, ...) for each of `of`, in that order, and
            gives an array of shape (n, ...). It is called for some transitions at a time, so each row may
            depend only on the same row of what it gets. To be used in spawned processes it must be picklable.
        of: the columns that it gets; `next_observation` may be among them.
    """

    key: str
    function: Callable[..., Any]
    of: Sequence[str] = (REWARD,)

    def __post_init__(self) -> None:
        """Check the arguments."""
        if not callable(self.function):
            raise InvalidArgumentError(f"{self.function!r} cannot be called; expected a function.")
        if self.key in (OBSERVATION, NEXT_OBSERVATION):
            raise InvalidArgumentError(
                "Relabel does not change observations. Put a function that gets a batch and gives a batch in "
                "the list of transforms."
            )
        object.__setattr__(self, "of", (self.of,) if isinstance(self.of, str) else tuple(self.of))

    @property
    def reads(self) -> tuple[str, ...]:
        """See `EpisodeTransform`."""
        return tuple(dict.fromkeys(OBSERVATION if name == NEXT_OBSERVATION else name for name in self.of))

    @property
    def writes(self) -> tuple[str, ...]:
        """See `EpisodeTransform`."""
        return (self.key,)

    @property
    def needs_last(self) -> bool:
        """See `EpisodeTransform`."""
        return NEXT_OBSERVATION in self.of

    def compute(self, arrays: StepArrays) -> Mapping[str, np.ndarray]:
        """See `DerivedColumns`.

        Raises:
            InvalidArgumentError: the function gave another number of values than it got.
        """
        index = arrays.index
        stepped = index.stepped
        if self.needs_last and index.missing is not None:
            stepped[index.last_transitions[index.missing]] = False
        parts = [self._called(arrays, rows) for rows in _stretches(stepped)]
        results = np.concatenate(parts) if parts else np.zeros(0)
        dtype = np.float64 if self.key == REWARD else results.dtype
        full = np.zeros((index.rows, *results.shape[1:]), dtype)
        full[stepped] = results
        return {self.key: full}

    def _called(self, arrays: StepArrays, rows: np.ndarray) -> np.ndarray:
        given = [
            take_rows(arrays.columns[OBSERVATION], rows + 1)
            if name == NEXT_OBSERVATION
            else take_rows(arrays.columns[name], rows)
            for name in self.of
        ]
        results = np.asarray(self.function(*given))
        if results.shape[:1] != rows.shape:
            raise InvalidArgumentError(
                f"The function of {self!r} got {len(rows)} transitions and gave an array of shape "
                f"{results.shape}; expected one value for each."
            )
        return results


def _stretches(stepped: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows of all transitions, some at a time."""
    for first in range(0, len(stepped), _AT_ONCE):
        rows = np.flatnonzero(stepped[first : first + _AT_ONCE]) + first
        if len(rows):
            yield rows


@dataclass(frozen=True)
class FrameStack(EpisodeTransform):
    """Gives observations an axis of the last k frames, oldest first; memory keeps each frame once.

    `observation` and `next_observation` then have the shape (b, k, ...), those of windows (b, n, k, ...),
    each stack ending at its own step, as `gymnasium.wrappers.FrameStackObservation` gives them to a policy.
    A stack never reaches before its episode; it does reach before the beginning of a window.

    Args:
        k: frames of a stack.
        key: what is stacked: a column, or a part of one by its dotted name ("observation.image").
        pad: the padding before an episode's first frame: "first", that frame again (Gymnasium's padding
            "reset", and that of Atari's), or "zero".
    """

    k: int
    key: str = "observation"
    pad: Literal["first", "zero"] = "first"

    def __post_init__(self) -> None:
        """Check the arguments."""
        object.__setattr__(self, "k", whole_number("k", self.k, 1))
        one_of("pad", self.pad, ("first", "zero"))
        if self.key.partition(".")[0] == NEXT_OBSERVATION:
            raise InvalidArgumentError("key='observation' stacks next observations too; name that.")
        if self.key in (REWARD, *FLAGS):
            raise InvalidArgumentError(f"{self.key!r} cannot be stacked; expected observations or actions.")

    def prepare(self, arrays: StepArrays) -> StepArrays:
        """See `EpisodeTransform`.

        Raises:
            InvalidArgumentError: there is nothing of that name, or it is stacked already.
        """
        before = _rows_before(arrays.index, self.k)

        def stacked(leaf: np.ndarray | StackedRows) -> StackedRows:
            if isinstance(leaf, StackedRows):
                raise InvalidArgumentError(f"{self!r}: {self.key!r} is stacked already.")
            if isinstance(leaf, Ragged):
                raise InvalidArgumentError(
                    f"{self!r}: rows of {self.key!r} differ in length, so they cannot be stacked. Name a "
                    "part of one shape, or take the rows before with units=el.Deltas({...: [-1, 0]})."
                )
            return StackedRows(leaf, before, self.k, self.pad == "zero")

        columns = replace_part(arrays.columns, self.key, lambda part: map_leaves(stacked, part))
        return StepArrays(arrays.index, columns)


def _rows_before(index: EpisodeIndex, k: int) -> np.ndarray:
    """Return the number of frames before each row in its episode, k - 1 at most."""
    rows = np.arange(index.rows) - np.repeat(index.starts[:-1], index.lengths + 1)
    return np.minimum(rows, k - 1).astype(np.min_scalar_type(k - 1))
