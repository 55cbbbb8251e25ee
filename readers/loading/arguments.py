"""Checks what a loader is asked for, and makes its parts of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl
import polars.exceptions

from ...store.errors import InvalidArgumentError, QueryError
from ...store.snapshot import Snapshot
from ..frames import POSITION, positioned_episodes
from ..sql.query import available_episodes
from .columns import check_names
from .episode_index import EpisodeIndex
from .orders import Drawn, Order, Sequential, Shuffled
from .units.deltas import Deltas
from .units.n_steps import NSteps
from .units.transitions import Transitions
from .units.unit import END_REASON, EPISODE, MASK, STEP, Units
from .units.whole_episodes import WholeEpisodes
from .units.windows import Windows

if TYPE_CHECKING:
    from .batch_source import Batching
    from .outputs import Output
    from .priorities import Prioritised
    from .transforms.on_read import Stages

Weights = Literal["steps", "episodes"] | pl.Expr


@dataclass(frozen=True)
class Asked:
    """What is asked of a loader, checked, whatever the kind of loader that is made of it.

    Attributes:
        units: the kind of unit.
        columns: keys of a batch; None for the usual ones.
        stages: the transforms.
        batching: how batches are cut.
        output: what makes of a batch what is handed out.
        seed: of the order.
        weights: as for `evaluate_weights`.
        prioritised: to draw by priority.
    """

    units: Units
    columns: Sequence[str] | None
    stages: Stages
    batching: Batching
    output: Output
    seed: int
    weights: Weights | None
    prioritised: Prioritised | None


#: No episode is as long; beyond it, sums of steps would no longer fit into 64 bits.
MOST_STEPS = 2**40


def whole_number(name: str, value: Any, least: int) -> int:
    """A whole number of at least `least`.

    Raises:
        InvalidArgumentError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InvalidArgumentError(f"{name}={value!r}: expected a whole number from {least} on.")
    return int(value)


def _steps(name: str, value: Any, least: int) -> int:
    if whole_number(name, value, least) > MOST_STEPS:
        raise InvalidArgumentError(f"{name}={value!r}: expected a whole number from {least} to {MOST_STEPS}.")
    return int(value)


def discount_factor(name: str, value: Any) -> float:
    """A number from 0 to 1.

    Raises:
        InvalidArgumentError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 <= value <= 1:
        raise InvalidArgumentError(f"{name}={value!r}: expected a number from 0 to 1.")
    return float(value)


def choose_units(
    *,
    n_step: int | None,
    gamma: float | None,
    window: int | None,
    stride: int,
    pad: Any,
    burn_in: int,
    deltas: Mapping[str, Sequence[int]] | None,
    whole_episodes: bool,
) -> Units:
    """The kind of unit that the arguments of a loader name.

    Raises:
        InvalidArgumentError: they name several, or a value makes no sense.
    """
    named = {"n_step": n_step, "window": window, "deltas": deltas, "whole_episodes": whole_episodes or None}
    given = [name for name, value in named.items() if value is not None]
    if len(given) > 1:
        raise InvalidArgumentError(
            f"{' and '.join(given)} were given; a unit is one of these. Give one of them."
        )
    if window is None and (stride != 1 or pad is not None or burn_in):
        raise InvalidArgumentError("stride, pad and burn_in belong to window=..., which was not given.")
    if n_step is None and gamma is not None:
        raise InvalidArgumentError("gamma belongs to n_step=..., which was not given.")
    if n_step is not None:
        discount = discount_factor("gamma", 0.99 if gamma is None else gamma)
        return NSteps(_steps("n_step", n_step, 1), discount)
    if window is not None:
        return _windows(window, stride, pad, burn_in)
    if deltas is not None:
        return _deltas(deltas)
    return WholeEpisodes() if whole_episodes else Transitions()


def _windows(window: Any, stride: Any, pad: Any, burn_in: Any) -> Windows:
    if pad not in (None, "left", "right"):
        raise InvalidArgumentError(f"pad={pad!r}: expected 'left', 'right' or None.")
    return Windows(
        _steps("window", window, 1), _steps("stride", stride, 1), pad, _steps("burn_in", burn_in, 0)
    )


def _deltas(deltas: Any) -> Deltas:
    if not isinstance(deltas, Mapping) or not deltas:
        raise InvalidArgumentError(
            f"deltas={deltas!r}: expected relative steps by key, such as {{'observation': [-1, 0]}}."
        )
    found = []
    check_names(list(deltas))
    for key, steps in deltas.items():
        if key in (END_REASON, EPISODE, STEP, MASK):
            raise InvalidArgumentError(
                f"deltas[{key!r}]: this key has no values at other steps. Name it in columns=[...] instead."
            )
        given = list(steps) if isinstance(steps, Iterable) else []
        whole = [
            int(step) for step in given if isinstance(step, int | np.integer) and not isinstance(step, bool)
        ]
        if not whole or len(whole) < len(given) or max(map(abs, whole)) > MOST_STEPS:
            raise InvalidArgumentError(
                f"deltas[{key!r}]={steps!r}: expected one or more whole numbers, none beyond {MOST_STEPS}."
            )
        found.append((key, tuple(whole)))
    return Deltas(tuple(found))


def choose_order(
    edges: np.ndarray, *, shuffle: bool, replacement: bool, weights: np.ndarray | None, seed: int
) -> Order:
    """The order that the arguments of a loader name; weights draw with replacement.

    Raises:
        InvalidArgumentError: they name two.
    """
    units = int(edges[-1])
    if shuffle and replacement:
        raise InvalidArgumentError(
            "shuffle=True gives each unit once an epoch; weights=... and replacement=True draw units, some "
            "several times. Leave out shuffle, or leave out the others."
        )
    if weights is not None or replacement:
        return Drawn(units, seed, edges, weights)
    return Shuffled(units, seed) if shuffle else Sequential(units)


def evaluate_weights(
    snapshot: Snapshot, positions: np.ndarray, edges: np.ndarray, weights: Weights | None
) -> np.ndarray | None:
    """The weight of each episode; None if all units weigh alike.

    Raises:
        QueryError: the expression is not valid; the message names the columns that are there.
        InvalidArgumentError: it is no expression, or a weight is negative or not a number, or all are zero.
    """
    if weights is None or (isinstance(weights, str) and weights == "steps"):
        return None
    if isinstance(weights, str) and weights == "episodes":
        return np.ones(len(positions))
    if not isinstance(weights, pl.Expr):
        raise InvalidArgumentError(
            f"weights={weights!r}: expected 'steps', 'episodes', or a Polars expression over the episodes."
        )
    try:
        frame = positioned_episodes(snapshot, positions).select(POSITION, _weight=weights.cast(pl.Float64))
        found = frame.collect()["_weight"]
    except polars.exceptions.PolarsError as error:
        reason = str(error).partition("\n")[0]
        raise QueryError(f"The weights are not valid: {reason}\n{available_episodes(snapshot)}") from error
    return _checked(found, edges)


def _checked(found: pl.Series, edges: np.ndarray) -> np.ndarray:
    values = found.fill_null(math.nan).to_numpy()
    wrong = np.flatnonzero(~np.isfinite(values) | (values < 0))
    if len(wrong):
        raise InvalidArgumentError(
            f"The weight of the episode at position {wrong[0]} is {found[int(wrong[0])]}; {len(wrong)} of "
            f"{len(values)} weights are like that. Expected numbers from 0 on: fill nulls, clip."
        )
    if not values[np.diff(edges) > 0].any():
        raise InvalidArgumentError(
            "All weights are zero, so no unit can be drawn. Give one episode a weight above zero."
        )
    return values


def check_single_agents(snapshot: Snapshot) -> None:
    """Refuse a store whose episodes have several agents.

    Raises:
        InvalidArgumentError: it is one.
    """
    if snapshot.schema.groups:
        raise InvalidArgumentError(
            "Loaders and statistics take episodes of a single agent; those of this store have several. Read "
            "them with store[0].agent(name), or query steps by agent_id."
        )


def check_selection(units: Units, index: EpisodeIndex, edges: np.ndarray) -> None:
    """Refuse a selection without a single unit.

    Raises:
        InvalidArgumentError: there is no episode, or none is long enough.
    """
    if not len(index):
        raise InvalidArgumentError("There is no episode to load: the view is empty. Check the filter.")
    if not edges[-1]:
        raise InvalidArgumentError(
            f"No episode has a whole {units}: the longest of {len(index)} has {int(index.lengths.max())} "
            "transitions. Choose a shorter window, or pad it with pad='left' or pad='right'."
        )
