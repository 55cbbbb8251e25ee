"""Transitions of a view in the replay buffers of TorchRL, Tianshou and Stable-Baselines3.

TorchRL: the layout of its collectors, TED
(https://docs.pytorch.org/rl/stable/reference/data.html, "TorchRL Episode Data Format"): the outcome of step t
under "next" in row t, and the flags at the root false, since no episode ends before a transition of it.

Tianshou: a full `ReplayBuffer`, of which `last_index` is the last row; its own `from_data` leaves it at 0, so
that the first transition would have itself as the next one.

Stable-Baselines3: `dones` are either flag, `timeouts` are "TimeLimit.truncated" of its VecEnv: truncated and
not terminated. Its off-policy algorithms store actions of a Box scaled to -1 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from ...store.errors import InvalidArgumentError
from ..context import ReadContext
from .flat import SIMPLE_SPACES, FlatTransitions, refuse_spaces, refuse_vector_rewards


def ted_tensordict(flat: FlatTransitions) -> Any:
    """Return a TensorDict of batch size (N,); its arrays are those of the transitions."""
    import torch

    from ..loading.output.torch_output import TensorDictOutput

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
    count = len(flat)
    if size is not None and size < count:
        raise InvalidArgumentError(
            f"buffer_size={size} is too small for the view's {count:,} transitions. Choose a larger one, or "
            "fewer episodes."
        )
    size = count if size is None else size
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
