"""The protocol between the export of a view and a target format, and what formats share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from gymnasium import Space, spaces

from ...store.dynamic.column_groups import METADATA, ColumnGroup
from ...store.layout import EPISODES, STEPS
from ...store.losses import Losses
from ...store.manifest import read_card
from ...store.tables.annotation_files import episode_annotations
from ..context import ReadContext
from ..episode import Episode
from ..iteration import iterate


@dataclass(frozen=True)
class Export:
    """The episodes to export, and a place for what is lost.

    Attributes:
        context: the episodes.
        losses: what the target cannot hold; formats add to it.
        options: keyword arguments of the format.
        tell: called with the number of episodes done.
        target: where the result will be; None if it is an object in memory.
    """

    context: ReadContext
    losses: Losses
    options: dict[str, Any]
    tell: Callable[[int], Any]
    target: Path | None = None

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes in the order of the view."""
        for done, episode in enumerate(iterate(self.context)):
            yield episode
            self.tell(done + 1)

    def transitions_of(self, episode: Episode) -> int:
        """Return how many transitions have a next observation, and count a last one without as lost.

        An episode without any, 0, has to be left out.
        """
        count = episode._observation_count - 1
        if count < episode.length:
            self.losses.add(LOST_TRANSITION if count else LOST_EPISODE)
        return count

    @property
    def card(self) -> dict[str, Any]:
        """The card of the store."""
        return read_card(self.context.snapshot.layout)

    def lose_spaces(self) -> None:
        """Count the spaces that values do not tell: all but a Box with the bounds of its dtype."""
        manifest = self.context.snapshot.manifest
        for space in (manifest.observation_space, manifest.action_space):
            self.losses.add(LOST_SPACES, int(not _is_unbounded(space)))

    def lose_columns(self, *groups: ColumnGroup) -> None:
        """Count the columns of some groups as lost, each as often as there are episodes."""
        for group in groups:
            columns = self.context.snapshot.shown_schema(EPISODES if group is METADATA else STEPS)
            for column in columns:
                if group.owns(column):
                    self.losses.add(f"the column {column.name}", len(self.context))

    def lose_annotations(self, *, of_steps: bool) -> None:
        """Count the annotations of episodes as lost, and those of steps on request."""
        snapshot = self.context.snapshot
        steps = snapshot.annotation_files.annotations if of_steps else ()
        for name in (*steps, *(field.name for field in episode_annotations(snapshot.episodes_schema))):
            self.losses.add(f"the annotation {name}", len(self.context))


#: A loss of formats that have values, and no spaces.
LOST_SPACES = "spaces, which an import infers from the values"
#: Losses of formats whose episodes have an observation after each transition.
LOST_TRANSITION = "a last transition, whose next observation is missing"
LOST_EPISODE = "an episode without a transition between two observations"


def _is_unbounded(space: Space) -> bool:
    if isinstance(space, spaces.Dict):
        return all(map(_is_unbounded, space.spaces.values()))
    if not isinstance(space, spaces.Box) or space.dtype is None:
        return False
    if space.dtype.kind == "f":
        return bool(np.all(np.isneginf(space.low)) and np.all(np.isposinf(space.high)))
    limits = np.iinfo(space.dtype) if space.dtype.kind in "iu" else None
    return limits is not None and bool(np.all(space.low == limits.min) and np.all(space.high == limits.max))


class TargetFormat(Protocol):
    """A format that can be exported to.

    Attributes:
        name: as `format=` takes it.
        extra: what to install, as `pip install` takes it; None if nothing more is needed.
        folder: whether the target is a folder, not a file.
        options: the keyword arguments that it takes, by name, with what they mean.
        agents: whether it can hold several agents.

    A format with an attribute `annotations` that is True writes those of steps. Otherwise these count as
    lost, and those of episodes always do.
    """

    name: str
    extra: str | None
    folder: bool
    options: dict[str, str]
    agents: bool

    def write(self, export: Export, target: Path) -> None:
        """Write the episodes to a path at which nothing is yet.

        Raises:
            DatasetError: the format cannot hold them; the message names the episode.
            MissingPackageError: a package is not installed.
        """
        ...
