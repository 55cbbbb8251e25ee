"""Episodes of a view in the memory of other libraries: what the conversions of `view.to` share.

The rule of every buffer is that of loaders: `terminated` and `truncated` are those of the store, and the last
transition of an episode with neither flag (cut or interrupted) counts as truncated. Otherwise n-step returns
and slices would run on into the next episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from ...store.common.arguments import one_of
from ...store.common.losses import Losses
from ...store.names import ACTION, EPISODE, FLAGS, NEXT_OBSERVATION, OBSERVATION, REWARD
from ..context import ReadContext
from ..frames import episodes_frame, runs_frame, steps_frame, transitions_only
from ..loading.feeding import FeedingView
from .export import ExportReport, export_view
from .holds import Holds
from .step_arrays import refuse_agents
from .target import Export

TableName = Literal["transitions", "steps", "episodes", "runs"]
#: An object of another library, and what it does not hold: counts, by a sentence that says what.
Converted = tuple[Any, Mapping[str, int]]
_TABLES = ("transitions", "steps", "episodes", "runs")
_KEYS = (OBSERVATION, ACTION, REWARD, NEXT_OBSERVATION, *FLAGS, EPISODE)
#: What buffers of transitions hold.
BUFFERS = Holds(ends={"cut": "truncated", "interrupted": "truncated"})


@dataclass(frozen=True)
class FlatTransitions:
    """N transitions in the order of the view, in arrays that belong to the caller.

    Attributes:
        observation, action, next_observation: shape (N, ...), nested as the spaces are.
        reward: float64, shape (N,) or (N, k).
        terminated, truncated: bool, shape (N,).
        episode: int64, shape (N,): the episode's place in the view.
    """

    observation: Any
    action: Any
    reward: np.ndarray
    next_observation: Any
    terminated: np.ndarray
    truncated: np.ndarray
    episode: np.ndarray

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def done(self) -> np.ndarray:
        """bool, shape (N,): whether an episode ends with the transition."""
        return self.terminated | self.truncated


def flat_transitions(
    view: FeedingView, target: str, holds: Holds = BUFFERS
) -> tuple[FlatTransitions, Export]:
    """Return the transitions of a view, and their export, in which the losses are counted.

    Args:
        view: the episodes.
        target: what they become, for messages.
        holds: what that has a place for.

    Raises:
        DatasetError: the store has several agents.
        InvalidArgumentError: the view is empty, or a space has values without a fixed shape.
    """
    export = export_of(view, target, holds)
    export.count_losses_of_transitions()
    frame = episodes_frame(view.context.snapshot, view.context.all_positions)
    count = int(frame.select("length").sum().collect().item() or 0)
    (batch,) = view.loader(max(count, 1), columns=_KEYS)
    flat = FlatTransitions(**batch)
    # An episode without its last transition ends with the one before.
    ends = np.append(flat.episode[1:] != flat.episode[:-1], True)
    flat.truncated[ends & ~flat.terminated] = True
    return flat, export


def export_of(view: FeedingView, target: str, holds: Holds) -> Export:
    """Return the export of a view to an object in memory.

    Raises:
        DatasetError: the store has several agents.
    """
    refuse_agents(view.context, target)
    return Export(view.context, Losses(), {}, lambda done: None, holds)


def table_of(view: FeedingView, table: str) -> pl.LazyFrame:
    """Return the rows of a view in one of its tables.

    Raises:
        InvalidArgumentError: there is no such table.
    """
    snapshot, positions = view.context.snapshot, view.context.positions
    one_of("table", table, _TABLES)
    if table in ("episodes", "runs"):
        return (episodes_frame if table == "episodes" else runs_frame)(snapshot, positions)
    steps = steps_frame(snapshot, positions)
    return steps if table == "steps" else transitions_only(steps)


def exported(context: ReadContext, target: Path, format: str, **options: Any) -> ExportReport:
    """Export episodes to a file or folder from which another library makes an object."""
    return export_view(
        context, target, format, overwrite=False, strict=False, progress=False, options=options
    )
