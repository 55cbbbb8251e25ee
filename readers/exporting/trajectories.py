"""Whole episodes of a view as objects of imitation, d3rlpy and Minari.

imitation: a trajectory is terminal if it has "the final state of an episode", so where an episode ended with
either flag; see the docstring of `imitation.data.types.Trajectory`. d3rlpy and Minari: what their exporters
write, read by the libraries themselves.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from gymnasium import spaces

from ...store.batches import slice_batch
from ...store.dynamic.column_groups import EXTRA, POLICY
from ..context import ReadContext
from ..episode import Episode
from ..loading.output.tree import map_leaves
from .export import ExportReport, export_view
from .flat import SIMPLE_SPACES, refuse_spaces, refuse_vector_rewards
from .target import LOST_SPACES, Export


def imitation_trajectories(types: Any, export: Export) -> list[Any]:
    """Return a `TrajectoryWithRew` of `imitation.data.types` for each episode with a transition."""
    target = "imitation's TrajectoryWithRew"
    manifest = export.context.snapshot.manifest
    refuse_vector_rewards(export.context, target)
    refuse_spaces(target, "observation", manifest.observation_space, (*SIMPLE_SPACES, spaces.Dict))
    refuse_spaces(target, "action", manifest.action_space, SIMPLE_SPACES)
    export.lose_columns(POLICY, EXTRA)
    made = (_trajectory(types, episode, export) for episode in export.episodes())
    return [trajectory for trajectory in made if trajectory is not None]


def _trajectory(types: Any, episode: Episode, export: Export) -> Any:
    """Return the trajectory of an episode; None if it has no transition with a next observation."""
    steps = export.transitions_of(episode)
    if not steps:
        return None
    ended = episode.terminated or episode.truncated
    if ended:
        export.losses.add("whether an episode was terminated or truncated")
    return types.TrajectoryWithRew(
        obs=types.maybe_wrap_in_dictobs(map_leaves(np.array, episode.observations)),
        acts=np.array(slice_batch(episode.actions, 0, steps)),
        infos=np.array(episode.infos[1 : steps + 1], dtype=object),
        terminal=ended and steps == episode.length,
        rews=np.array(episode.rewards[:steps]),
    )


def d3rlpy_buffer(dataset: Any, context: ReadContext) -> tuple[Any, Mapping[str, int]]:
    """Return a `ReplayBuffer` of `d3rlpy.dataset`, and what is lost."""
    with TemporaryDirectory(prefix="episodelake-") as folder:
        report = _exported(context, Path(folder, "episodes.h5"), "d3rlpy")
        with open(report.target, "rb") as file:
            loaded = dataset.ReplayBuffer.load(file, dataset.InfiniteBuffer())
    space = context.snapshot.manifest.action_space
    discrete = isinstance(space, spaces.Discrete)
    info = loaded.dataset_info
    kind = type(info.action_space)
    found = dataset.ReplayBuffer(
        dataset.InfiniteBuffer(),
        episodes=loaded.episodes,
        action_space=kind.DISCRETE if discrete else kind.CONTINUOUS,
        action_size=int(space.n) if discrete else info.action_signature.shape[0][0],
    )
    return found, {what: count for what, count in report.lost.items() if what != LOST_SPACES}


def minari_dataset(minari: Any, context: ReadContext, data_format: str) -> tuple[Any, Mapping[str, int]]:
    """Return a `MinariDataset` in a temporary folder that is deleted with it, and what is lost."""
    folder = TemporaryDirectory(prefix="episodelake-")
    try:
        report = _exported(context, Path(folder.name, "dataset"), "minari", data_format=data_format)
        found = minari.MinariDataset(report.target / "data")
    except BaseException:
        folder.cleanup()
        raise
    weakref.finalize(found, folder.cleanup)
    return found, report.lost


def _exported(context: ReadContext, target: Path, format: str, **options: Any) -> ExportReport:
    return export_view(
        context, target, format, overwrite=False, strict=False, progress=False, options=options
    )
