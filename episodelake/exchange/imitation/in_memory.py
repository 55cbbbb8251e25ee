"""Episodes of a view as imitation's trajectories.

A trajectory is terminal if it has "the final state of an episode", so where an episode ended with either
flag; see the docstring of `imitation.data.types.Trajectory`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from ...readers.columns.tree import map_leaves
from ...readers.episode import Episode
from ...readers.exporting.conversions import Converted, export_of
from ...readers.exporting.holds import Holds, everything
from ...readers.exporting.step_arrays import SIMPLE_SPACES, refuse_spaces, refuse_vector_rewards
from ...readers.exporting.target import Export
from ...readers.loading.feeding import FeedingView
from ...store.common.optional_packages import require
from ...store.spaces.batches import slice_batch

#: What imitation's trajectories hold.
_HOLDS = Holds(info=everything, both="either")


def to_imitation(view: FeedingView, target: str) -> Converted:
    """Return a `TrajectoryWithRew` for each episode with a transition."""
    types = require("imitation.data.types", "view.to.imitation()", "imitation")
    export = export_of(view, target, _HOLDS)
    export.count_losses_of_transitions()
    manifest = export.context.snapshot.manifest
    refuse_vector_rewards(export.context, target)
    refuse_spaces(target, "observation", manifest.observation_space, (*SIMPLE_SPACES, spaces.Dict))
    refuse_spaces(target, "action", manifest.action_space, SIMPLE_SPACES)
    made = (_trajectory(types, episode, export) for episode in export.episodes())
    return [trajectory for trajectory in made if trajectory is not None], export.losses


def _trajectory(types: Any, episode: Episode, export: Export) -> Any:
    """Return the trajectory of an episode; None if it has no transition with a next observation."""
    steps = export.transitions_of(episode)
    if not steps:
        return None
    ended = episode.terminated or episode.truncated
    return types.TrajectoryWithRew(
        obs=types.maybe_wrap_in_dictobs(map_leaves(np.array, episode.observations)),
        acts=np.array(slice_batch(episode.actions, 0, steps)),
        infos=np.array(episode.infos[1 : steps + 1], dtype=object),
        terminal=ended and steps == episode.length,
        rews=np.array(episode.rewards[:steps]),
    )
