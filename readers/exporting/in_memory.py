"""Episodes of a view in the memory of other libraries: replay buffers, trajectories, datasets.

The rule of every buffer is that of loaders: `terminated` and `truncated` are those of the store, and the last
transition of an episode with neither flag (cut or interrupted) counts as truncated. Otherwise n-step returns
and slices would run on into the next episode.

TorchRL: the layout of its collectors, TED
(https://docs.pytorch.org/rl/stable/reference/data.html, "TorchRL Episode Data Format"): the outcome of step t
under "next" in row t, and the flags at the root false, since no episode ends before a transition of it.

Tianshou: a full `ReplayBuffer`, of which `last_index` is the last row; its own `from_data` leaves it at 0, so
that the first transition would have itself as the next one.

Stable-Baselines3: `dones` are either flag, `timeouts` are "TimeLimit.truncated" of its VecEnv: truncated and
not terminated. Its off-policy algorithms store actions of a Box scaled to -1 to 1.

imitation: a trajectory is terminal if it has "the final state of an episode", so where an episode ended with
either flag; see the docstring of `imitation.data.types.Trajectory`. d3rlpy and Minari: what their exporters
write, read by the libraries themselves.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from gymnasium import spaces

from ...store.common.arguments import whole_number
from ...store.errors import DatasetError, InvalidArgumentError
from ...store.names import ACTION, EPISODE, FLAGS, NEXT_OBSERVATION, OBSERVATION, REWARD
from ...store.spaces.batches import slice_batch
from ..columns.tree import map_leaves
from ..context import ReadContext
from ..episode import Episode
from ..frames import episodes_frame
from ..loading.feeding import FeedingView
from .export import ExportReport, export_view
from .holds import LOST_SPACES, Holds, everything
from .step_arrays import SIMPLE_SPACES, refuse_spaces, refuse_vector_rewards
from .target import Export

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


def flat_transitions(view: FeedingView) -> FlatTransitions:
    """Return the transitions of a view.

    Raises:
        InvalidArgumentError: the view is empty, or a space has values without a fixed shape.
    """
    frame = episodes_frame(view.context.snapshot, view.context.all_positions)
    count = int(frame.select("length").sum().collect().item() or 0)
    (batch,) = view.loader(max(count, 1), columns=_KEYS)
    flat = FlatTransitions(**batch)
    # An episode without its last transition ends with the one before.
    ends = np.append(flat.episode[1:] != flat.episode[:-1], True)
    flat.truncated[ends & ~flat.terminated] = True
    return flat


def ted_tensordict(flat: FlatTransitions) -> Any:
    """Return a TensorDict of batch size (N,); its arrays are those of the transitions."""
    import torch

    from ..loading.torch_output import TensorDictOutput

    rewards = flat.reward.astype(np.float32)
    never = np.zeros((len(flat), 1), bool)
    batch = {
        "observation": flat.observation,
        "action": flat.action,
        "done": never,
        "terminated": never.copy(),
        "next": {
            "observation": flat.next_observation,
            "reward": rewards if rewards.ndim > 1 else rewards[:, None],
            "done": flat.done[:, None],
            "terminated": flat.terminated[:, None],
            "truncated": flat.truncated[:, None],
        },
        "truncated": never.copy(),
        "collector": {"traj_ids": flat.episode},
    }
    output = TensorDictOutput()
    found = output.finish(output.tensors(batch))
    for key in found.keys(include_nested=True, leaves_only=False):
        # Parts of Dict spaces have the batch size too.
        if not torch.is_tensor(found.get(key)):
            found.get(key).batch_size = [len(flat)]
    return found


def torchrl_buffer(data: Any, flat: FlatTransitions) -> Any:
    """Return a full `TensorDictReplayBuffer` of `torchrl.data` in main memory."""
    buffer = data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(len(flat)))
    buffer.extend(ted_tensordict(flat))
    return buffer


def tianshou_buffer(data: Any, flat: FlatTransitions, context: ReadContext) -> Any:
    """Return a full `ReplayBuffer` of `tianshou.data`."""
    manifest = context.snapshot.manifest
    for column, space in (("observation", manifest.observation_space), ("action", manifest.action_space)):
        refuse_spaces("Tianshou's ReplayBuffer", column, space, (*SIMPLE_SPACES, spaces.Dict))
    buffer = data.ReplayBuffer(len(flat))
    buffer.set_batch(
        data.Batch(
            obs=flat.observation,
            act=flat.action,
            rew=flat.reward,
            terminated=flat.terminated,
            truncated=flat.truncated,
            done=flat.done,
            obs_next=flat.next_observation,
        )
    )
    buffer._size = len(flat)
    buffer.last_index[:] = len(flat) - 1
    return buffer


def sb3_buffer(
    buffers: Any, flat: FlatTransitions, context: ReadContext, size: int | None, device: str
) -> Any:
    """Return a `ReplayBuffer` of SB3's `buffers`, or a `DictReplayBuffer` for observations of a Dict."""
    target = "SB3's ReplayBuffer"
    manifest = context.snapshot.manifest
    refuse_vector_rewards(context, target)
    refuse_spaces(target, "observation", manifest.observation_space, (*SIMPLE_SPACES, spaces.Dict))
    refuse_spaces(target, "action", manifest.action_space, SIMPLE_SPACES)
    observation = manifest.observation_space
    for part in observation.spaces.values() if isinstance(observation, spaces.Dict) else [observation]:
        _refuse_axes(target, "observation", part, spaces.MultiDiscrete)
    _refuse_axes(target, "action", manifest.action_space, spaces.MultiDiscrete | spaces.MultiBinary)
    count = len(flat)
    size = count if size is None else whole_number("buffer_size", size, 1)
    if size < count:
        raise InvalidArgumentError(
            f"buffer_size={size} is too small for the view's {count:,} transitions. Choose a larger one, or "
            "fewer episodes."
        )
    nested = isinstance(manifest.observation_space, spaces.Dict)
    buffer = (buffers.DictReplayBuffer if nested else buffers.ReplayBuffer)(
        size, manifest.observation_space, manifest.action_space, device=device
    )
    _fill(buffer.observations, flat.observation)
    _fill(buffer.next_observations, flat.next_observation)
    _fill(buffer.actions, _scaled(flat.action, manifest.action_space))
    _fill(buffer.rewards, flat.reward)
    _fill(buffer.dones, flat.done)
    _fill(buffer.timeouts, flat.truncated & ~flat.terminated)
    buffer.pos, buffer.full = count % size, count == size
    return buffer


def _refuse_axes(target: str, column: str, space: spaces.Space, kinds: Any) -> None:
    """Refuse a space of some kinds with several axes, and actions that have no scale from -1 to 1."""
    whole = column == "action" and isinstance(space, spaces.Box) and space.dtype.kind != "f"
    if whole or (isinstance(space, kinds) and len(space.shape or ()) > 1):
        what = "Box actions of floats" if whole else "vectors of them"
        raise DatasetError(f"{target} cannot hold {column!r}, which is {space}; it holds {what}.")


def _fill(into: Any, values: Any) -> None:
    """Copy N values to the first rows of arrays of shape (size, 1, ...)."""
    if isinstance(values, Mapping):
        for key, part in values.items():
            _fill(into[key], part)
    else:
        into[: len(values)] = values.reshape(len(values), *into.shape[1:])


def _scaled(actions: np.ndarray, space: spaces.Space) -> np.ndarray:
    """Return actions of a Box scaled from its bounds to -1 to 1, others as they are.

    Raises:
        InvalidArgumentError: the Box has no bounds.
    """
    if not isinstance(space, spaces.Box):
        return actions
    if not space.is_bounded("both"):
        raise InvalidArgumentError(
            f"The action space {space} has no bounds to scale actions by, as SB3's algorithms do."
        )
    return 2.0 * ((actions - space.low) / (space.high - space.low)) - 1.0


#: What imitation's trajectories hold.
TRAJECTORIES = Holds(info=everything, both="either")


def imitation_trajectories(types: Any, export: Export) -> list[Any]:
    """Return a `TrajectoryWithRew` of `imitation.data.types` for each episode with a transition."""
    target = "imitation's TrajectoryWithRew"
    manifest = export.context.snapshot.manifest
    refuse_vector_rewards(export.context, target)
    refuse_spaces(target, "observation", manifest.observation_space, (*SIMPLE_SPACES, spaces.Dict))
    refuse_spaces(target, "action", manifest.action_space, SIMPLE_SPACES)
    made = (_trajectory(types, episode, export) for episode in export.episodes())
    return [trajectory for trajectory in made if trajectory is not None]


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
