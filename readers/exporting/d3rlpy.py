"""d3rlpy datasets: an HDF5 file for `ReplayBuffer.load` of d3rlpy 2.

d3rlpy makes a transition of each row of an episode that terminated, and has no last observation of it. Of any
other episode its last row is the last observation alone, so that is appended, with zeros beside it as action
and reward.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from ...store.errors import DatasetError
from ..episode import Episode
from .hdf5 import EXTRA, first_rows, new_file, single_array
from .holds import Holds
from .step_arrays import refuse_vector_rewards
from .target import Export, export_format

_COLUMNS = ("observations", "actions", "rewards", "terminated")
_VERSION = "2.1"


@export_format(
    "d3rlpy",
    extra=EXTRA,
    holds=Holds(
        ends={"truncated": "cut", "interrupted": "cut"},
        both="terminated",
        last_observation="needed unless terminated",
    ),
)
def write_d3rlpy(export: Export, target: Path) -> None:
    """Write the file."""
    refuse_vector_rewards(export.context, "d3rlpy")
    manifest = export.context.snapshot.manifest
    observation = manifest.observation_space
    for part in observation.spaces if isinstance(observation, spaces.Tuple) else [observation]:
        single_array(part, "observations", "d3rlpy")
    action = single_array(manifest.action_space, "actions", "d3rlpy")
    if isinstance(action, spaces.Discrete) and action.start:
        raise DatasetError(
            f"d3rlpy counts discrete actions from 0; the store has {action}. Write the actions minus "
            f"{action.start} to another store, and export that."
        )
    count = 0
    with new_file(target, "d3rlpy") as file:
        for episode in export.episodes():
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


def _rows(episode: Episode, export: Export) -> dict[str, Any] | None:
    """Return the rows of an episode; None if it has no transition for d3rlpy."""
    actions, rewards = _vectors(episode.actions), _vectors(episode.rewards)
    observations = episode.observations
    several = isinstance(observations, tuple)
    observations = tuple(map(_vectors, observations)) if several else _vectors(observations)
    if episode.terminated:
        observations = first_rows(observations, episode.length)
        return dict(zip(_COLUMNS, (observations, actions, rewards, True), strict=True))
    count = export.transitions_of(episode)
    if not count:
        return None
    if count == episode.length:
        actions = np.concatenate([actions, np.zeros_like(actions[:1])])
        rewards = np.concatenate([rewards, np.zeros_like(rewards[:1])])
    return dict(zip(_COLUMNS, (observations, actions, rewards, False), strict=True))


def _vectors(values: Any) -> np.ndarray:
    """Return rows with an axis of their own, which d3rlpy's batches require of numbers, too."""
    array = np.asarray(values)
    return array[:, None] if array.ndim == 1 else array
