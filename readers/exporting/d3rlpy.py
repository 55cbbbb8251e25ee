"""d3rlpy datasets: an HDF5 file for `ReplayBuffer.load` of d3rlpy 2.

d3rlpy makes a transition of each row of an episode that terminated, and has no last observation of it. Of any
other episode its last row is the last observation alone, so that is appended, with zeros beside it as action
and reward.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from ...store.dynamic.column_groups import EXTRA as OWN_COLUMNS
from ...store.dynamic.column_groups import INFO, POLICY
from ..episode import Episode
from .flat import refuse_vector_rewards
from .hdf5 import EXTRA, first_rows, lose_facts, new_file, single_array
from .target import Export

_COLUMNS = ("observations", "actions", "rewards", "terminated")
_VERSION = "2.1"


class _Format:
    name = "d3rlpy"
    extra = EXTRA
    folder = False
    agents = False
    options: ClassVar[dict[str, str]] = {}

    def write(self, export: Export, target: Path) -> None:
        """Write the file."""
        refuse_vector_rewards(export.context, "d3rlpy")
        manifest = export.context.snapshot.manifest
        observation = manifest.observation_space
        for part in observation.spaces if isinstance(observation, spaces.Tuple) else [observation]:
            single_array(part, "observations", "d3rlpy")
        single_array(manifest.action_space, "actions", "d3rlpy")
        export.lose_columns(INFO, POLICY, OWN_COLUMNS)
        export.lose_spaces()
        count = 0
        with new_file(target, "d3rlpy") as file:
            for episode in export.episodes():
                lose_facts(episode, export)
                rows = _rows(episode, export)
                if rows is None:
                    continue
                for name, values in rows.items():
                    parts = values if isinstance(values, tuple) else None
                    if parts is None:
                        file[f"{name}_{count}"] = values
                    for index, part in enumerate(parts or ()):
                        file[f"{name}_{count}_{index}"] = part
                count += 1
            file["columns"] = list(_COLUMNS)
            file["num_episodes"] = count
            file["version"] = _VERSION
        for key in export.card:
            export.losses.add(f"{key} of the card")


def _rows(episode: Episode, export: Export) -> dict[str, Any] | None:
    """Return the rows of an episode; None if it has no transition for d3rlpy."""
    actions, rewards = np.asarray(episode.actions), episode.rewards
    if rewards.ndim == 1:
        rewards = rewards[:, None]
    if actions.ndim == 1:
        actions = actions[:, None]
    if episode.terminated:
        if episode.has_last_observation:
            export.losses.add("the last observation of an episode that terminated")
        if episode.truncated:
            export.losses.add("that an episode that terminated was truncated as well")
        observations = first_rows(episode.observations, episode.length)
        return dict(zip(_COLUMNS, (observations, actions, rewards, True), strict=True))
    if episode.end_reason != "cut":
        export.losses.add(f"that an episode was {episode.end_reason}, not cut")
    count = export.transitions_of(episode)
    if not count:
        return None
    if count == episode.length:
        actions = np.concatenate([actions, np.zeros_like(actions[:1])])
        rewards = np.concatenate([rewards, np.zeros_like(rewards[:1])])
    return dict(zip(_COLUMNS, (episode.observations, actions, rewards, False), strict=True))


FORMAT = _Format()
