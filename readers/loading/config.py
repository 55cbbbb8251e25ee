"""`LoaderConfig`: the checked arguments of a loader; its kind of unit, order and weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from ...store.common.arguments import expect, step_count
from ...store.common.warn import warn_caller
from ...store.errors import InvalidArgumentError
from ...store.names import OBSERVATION, OBSERVATION_PRESENT, UNIT, WEIGHT, free_name, next_name
from ...store.snapshot import Snapshot
from ..columns.mapped import Cache
from ..columns.selection import EpisodeIndex, Selection
from ..formatting import counted
from ..frames import POSITION, collect_episodes, positioned_episodes
from .feed import Batches, Shard
from .orders import Drawn, Order, Sequential, Shuffled
from .outputs import BatchOutput, JaxOutput
from .priorities import Prioritized
from .transforms.on_read import TransformPipeline
from .units import NSteps, Transitions, Units, source_of
from .windows import Windows

if TYPE_CHECKING:
    from ..steps_where import Condition

#: Of a weight, as a power of two: the sum over 2**63 units stays within float64, either way.
_LARGEST_EXPONENT = 512
Weights = Literal["steps", "episodes"] | pl.Expr | Sequence[float] | np.ndarray


@dataclass(frozen=True)
class LoaderConfig:
    """The arguments of a loader of any kind.

    Attributes:
        units: the kind of unit.
        columns: keys of a batch; None for the default keys of the kind of unit.
        pipeline: the transforms.
        batching: how an epoch is cut into batches.
        shard: the part of an epoch.
        output: converts batches.
        seed: of the order.
        shuffle: whether each unit comes once an epoch, in random order.
        weights: how units are drawn with replacement; None if they are not.
        cache: where columns are kept.
        agent, group: the agent, or the group of agents, whose parts are the episodes; None for whole ones.
        joint: whether all agents of a step make one row.
        transitions: the condition that the first transition of a unit fulfils; None for all units.
    """

    units: Units
    columns: Sequence[str] | None
    pipeline: TransformPipeline
    batching: Batches
    shard: Shard
    output: BatchOutput
    seed: int
    shuffle: bool
    weights: Weights | Prioritized | None
    cache: Cache
    agent: str | None = None
    group: str | None = None
    joint: bool = False
    transitions: Condition | None = None

    def __post_init__(self) -> None:
        # An expression is neither true nor false.
        if self.shuffle and self.weights is not None:
            raise InvalidArgumentError(
                "shuffle=True gives each unit once an epoch; weights=... draws units, some several times. "
                "Leave out one of them."
            )
        if self.prioritized is not None:
            self.check_no_prefetch("draws by priority")
            self._check_drawn_keys()
        if self.joint:
            self._check_joint()
        if self.transitions is not None:
            self._check_begins()
        if self.pipeline.modules and isinstance(self.output, JaxOutput):
            raise InvalidArgumentError(
                f"{self.pipeline.modules[0]!r} computes torch tensors, but output='jax' was asked for. "
                "Choose 'numpy', 'torch' or 'tensordict'."
            )

    @property
    def prioritized(self) -> Prioritized | None:
        """The rule by which priorities draw units; None for loaders without priorities."""
        return self.weights if isinstance(self.weights, Prioritized) else None

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys of a batch."""
        return self.pipeline.keys(self.units, self.columns)

    @cached_property
    def needs_last(self) -> bool:
        """Whether units leave out a last transition whose next observation is missing."""
        if any(transform.needs_last for transform in self.pipeline.on_read):
            return True
        masked = any(source_of(key)[0] == OBSERVATION_PRESENT for key in self.keys)
        return self.units.needs_last(self.keys) and not masked

    @property
    def left_out_advice(self) -> str:
        """How to load the last transitions that units leave out: the end of a sentence."""
        steps = [
            f"leave out {transform!r}, which needs these observations"
            for transform in self.pipeline.on_read
            if transform.needs_last
        ]
        if self.units.needs_last(self.keys):
            own = self.units.needs_last([OBSERVATION])
            key = OBSERVATION_PRESENT if own else next_name(OBSERVATION_PRESENT)
            kind = "observations" if own else "next observations"
            steps.append(
                f"name {key!r} in columns=..., which is False where the observation is zeros, or name "
                f"columns without {kind}"
            )
        return ", and ".join(steps)

    def warn_left_out(self, index: EpisodeIndex) -> bool:
        """Warn of the last transitions that units leave out; return whether there are any."""
        count = int((index.lengths - index.usable).sum())
        if count:
            warn_caller(
                f"{left_out('The loader', count, index.transitions)} To load them, {self.left_out_advice}."
            )
        return count > 0

    @property
    def stored_columns(self) -> list[str]:
        """The columns of the store that the keys are made from."""
        return self.pipeline.columns(self.units, self.keys)

    @property
    def kept_columns(self) -> list[str]:
        """The columns that units are gathered from."""
        return self.units.columns(self.keys)

    def _check_joint(self) -> None:
        if self.agent is not None:
            raise InvalidArgumentError(
                "joint=True loads all agents together; agent=... loads one. Leave out one of them."
            )
        if isinstance(self.units, NSteps) or self.pipeline.on_read:
            wrong = self.pipeline.on_read[0] if self.pipeline.on_read else self.units
            raise InvalidArgumentError(
                f"joint=True does not go with {wrong!r}, which would reach beyond an agent that leaves "
                "before the episode ends. Load the agents with group=..., or change batches instead."
            )

    def _check_begins(self) -> None:
        if self.units.every is None:
            raise InvalidArgumentError(
                f"transitions=... chooses units by the transition that they begin with; {self.units} "
                "have none. Choose episodes with filter(...), or load windows without pad='left'."
            )
        if self.cache.kind == "stream":
            raise InvalidArgumentError(
                "transitions=... is not there for cache='stream'. Use cache='mmap', which keeps the columns "
                "in files."
            )
        if self.joint or self.agent is not None or self.group is not None:
            raise InvalidArgumentError(
                "transitions=... is for stores of a single agent. Leave it out, and choose among the units "
                "of a batch."
            )

    def _check_drawn_keys(self) -> None:
        taken = [key for key in self.keys if key in (UNIT, WEIGHT)]
        if taken:
            free = free_name(taken[0], {taken[0]: "the batch"})
            raise InvalidArgumentError(
                f"A batch that is drawn by priority has a key {taken[0]!r} of its own, so it cannot have the "
                f"column {taken[0]!r}. Leave it out of columns=..., or give it another name in the store: "
                f"store.rename({{{taken[0]!r}: {free!r}}})."
            )

    def check_no_prefetch(self, reason: str) -> None:
        """Refuse to make batches ahead that depend on what happens until they are asked for.

        Raises:
            InvalidArgumentError: some would be made ahead.
        """
        ahead = self.batching.prefetch
        if ahead:
            raise InvalidArgumentError(
                f"prefetch={ahead} makes batches ahead, but a loader that {reason} decides on "
                "each batch when it is requested. Leave prefetch out."
            )

    def order(self, edges: np.ndarray, weights: np.ndarray | None) -> Order:
        """Return the order of units; priorities replace it where units are drawn by them.

        Args:
            edges: int64, shape (E + 1,): the first unit of each episode.
            weights: as `evaluate_weights` returns them.
        """
        units = int(edges[-1])
        if self.shuffle:
            return Shuffled(units, self.seed)
        if self.weights is None or self.prioritized is not None:
            return Sequential(units)
        return Drawn(units, self.seed, edges, weights)


def choose_units(units: Any, *, window: Any, n_step: Any, gamma: Any) -> Units:
    """Return the kind of unit: the object given, or that of a short form.

    Raises:
        InvalidArgumentError: several kinds are given, or a value makes no sense.
    """
    given = {"units": units, "window": window, "n_step": n_step}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise InvalidArgumentError(f"{' and '.join(named)} were given; expected one kind of unit. Give one.")
    if gamma is not None and n_step is None:
        raise InvalidArgumentError(
            "gamma belongs to n_step=..., which was not given. Write units=el.NSteps(n, gamma=...) or "
            "n_step=n, gamma=..."
        )
    if window is not None:
        return Windows(step_count("window", window, 1))
    if n_step is not None:
        steps = step_count("n_step", n_step, 1)
        return NSteps(steps) if gamma is None else NSteps(steps, gamma=gamma)
    expected = (
        "el.Windows(length), el.NSteps(n), el.Deltas(steps), el.Episodes() or el.Transitions(); "
        "of rollouts also el.Packed(tokens) or el.Padded(tokens)"
    )
    expect(isinstance(units, Units | None), "units", units, expected)
    return Transitions() if units is None else units


def evaluate_weights(
    snapshot: Snapshot, selection: Selection, edges: np.ndarray, weights: Weights | Prioritized | None
) -> np.ndarray | None:
    """Return the weight of each episode; None if all units weigh alike. Agents have that of their episode.

    Raises:
        QueryError: the expression is not valid; the message names the columns that are there.
        InvalidArgumentError: it is no expression, or a weight is negative or not a number, or all are zero.
    """
    if (
        weights is None
        or isinstance(weights, Prioritized)
        or (isinstance(weights, str) and weights == "steps")
    ):
        return None
    if isinstance(weights, str) and weights == "episodes":
        return np.ones(len(selection.index))
    positions, numbers = selection.positions, selection.index.numbers

    def of_each(values: np.ndarray) -> np.ndarray:
        return _checked(values if numbers is None else values[numbers], edges)

    if not isinstance(weights, pl.Expr):
        return of_each(_given(weights, len(positions)))
    try:
        frame = positioned_episodes(snapshot, positions).select(POSITION, _weight=weights.cast(pl.Float64))
        weighed = collect_episodes(snapshot, frame)["_weight"]
    except pl.exceptions.PolarsError as error:
        from ..filters import invalid_expression

        raise invalid_expression(snapshot, "The weights are not valid", weights, error) from error
    return of_each(weighed.fill_null(math.nan).to_numpy())


def _given(weights: Any, count: int) -> np.ndarray:
    """Return a copy of weights that were given as an array, one for each episode of the view."""
    try:
        values = np.asarray(weights, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"weights={weights!r:.200}: expected 'steps', 'episodes', a Polars expression over the episodes, "
            "an array with a number for each episode of the view, or el.Prioritized(...)."
        ) from error
    if values.shape != (count,):
        raise InvalidArgumentError(
            f"weights has the shape {values.shape}; expected ({count},): one for each episode of the view, "
            "in its order."
        )
    return values.copy()


def _checked(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    wrong = np.flatnonzero(~np.isfinite(values) | (values < 0))
    if len(wrong):
        raise InvalidArgumentError(
            f"The weight of the episode at position {wrong[0]} is {values[wrong[0]]}; {len(wrong)} of "
            f"{len(values)} weights are like that. Expected numbers from 0 on: fill nulls, clip."
        )
    if not values[np.diff(edges) > 0].any():
        raise InvalidArgumentError(
            "All weights are zero, so no unit can be drawn. Give one episode a weight above zero."
        )
    exponent = int(np.frexp(values.max())[1])
    # Sums over all units must neither overflow nor underflow; a power of two keeps the shares exact.
    return np.ldexp(values, -exponent) if abs(exponent) > _LARGEST_EXPONENT else values


def left_out(what: str, count: int, transitions: int) -> str:
    """Return the sentence that counts the last transitions without a next observation."""
    return (
        f"{what} leaves out {count} of {transitions} transitions, with their rewards: the last of "
        f"{counted(count, 'episode')} whose last observation is missing."
    )


def check_selection(config: LoaderConfig, index: EpisodeIndex, edges: np.ndarray) -> None:
    """Refuse a selection without a single unit.

    Raises:
        InvalidArgumentError: there is no episode, or none is long enough.
    """
    if not len(index):
        raise InvalidArgumentError("There is no episode to load: the view is empty. Check the filter.")
    if not edges[-1] and index.usable.max() < index.lengths.max():
        raise InvalidArgumentError(
            f"No episode has {config.units} without its last transition, whose next observation is missing. "
            f"To load it, {config.left_out_advice}."
        )
    if not edges[-1]:
        raise InvalidArgumentError(
            f"No episode has a whole {config.units}: the longest of {len(index)} has "
            f"{int(index.lengths.max())} transitions. Choose a shorter window, or pad it with pad='left' or "
            "pad='right'."
        )
