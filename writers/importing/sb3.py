"""Stable-Baselines3's replay buffers, in memory or as `save_replay_buffer` writes them.

Row k of an environment holds one transition. `dones` are set where it ended for either reason, and `timeouts`
where it was truncated and not terminated (`TimeLimit.truncated`). So truncated are the timeouts, and
terminated the other dones. With `handle_timeout_termination=False` the buffer has no timeouts, and its
episodes are cut. In a full buffer the oldest row is the one at `pos`.

With `optimize_memory_usage=True` the next observation is the observation of the next row. Behind the end of
an episode that one begins another, so only the newest row has its last observation. In a full buffer this
has replaced the oldest observation, whose row is left out.

A `RolloutBuffer` is refused: it has no flags, and A2C and PPO add the value of truncated observations to its
rewards.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from ...store.common.optional_packages import require
from ...store.errors import DatasetError
from .boundary import reading
from .flat import BEGUN, FlatDataset, FlatRows, Rolled, Tree, class_names, unrolled
from .formats import ForeignDataset, ImportOptions, Match
from .hdf5 import flags_of

_PACKAGE = "stable_baselines3"
_EXTRA = "stable-baselines3"
_HEAD_BYTES = 512
_ROLLOUT = (
    "A RolloutBuffer of Stable-Baselines3 has no flags, and rewards to which values are added. Record the "
    "environment instead: store.record(env)."
)
_SCALED = "actions in the units of the action space: SB3 scales those of a Box from its bounds to -1 to 1"
_DONES = "whether an episode that ended was terminated or truncated: the buffer has no timeouts, so it is cut"


class _Format:
    name = "sb3"
    extra = None
    rule = "a ReplayBuffer of Stable-Baselines3, or its pickle, as save_replay_buffer writes it"

    def detect(self, source: Any) -> Match:
        """Look at the classes of an object, or at the first bytes of a pickle, without reading it."""
        names = class_names(source, _PACKAGE)
        if "BaseBuffer" in names:
            return Match(f"it is a {type(source).__name__} of Stable-Baselines3")
        if _is_pickle(source):
            return Match("it is a pickle of a buffer of Stable-Baselines3")
        return Match("it is neither a buffer of Stable-Baselines3 nor a pickle of one", 9, related=False)

    def open(self, source: Any, options: ImportOptions) -> ForeignDataset:
        """Open a buffer; a file only with `trust`."""
        place = type(source).__name__
        if isinstance(source, str | Path):
            place = str(source)
            source = _unpickled(source, options)
        names = class_names(source, _PACKAGE)
        if "RolloutBuffer" in names:
            raise DatasetError(_ROLLOUT)
        if "ReplayBuffer" not in names:
            raise DatasetError(f"{place} holds no ReplayBuffer of Stable-Baselines3, but a {type(source)}.")
        return _Buffer(source, place, options)


def _is_pickle(source: Any) -> bool:
    if not isinstance(source, str | Path) or not Path(source).is_file():
        return False
    with open(source, "rb") as file:
        head = file.read(_HEAD_BYTES)
    return head[:1] == b"\x80" and _PACKAGE.encode() in head


def _unpickled(path: str | Path, options: ImportOptions) -> Any:
    if not _is_pickle(path):
        raise DatasetError(f"{path} is no file of save_replay_buffer.")
    if not options.trust:
        raise DatasetError(
            f"{path} is a pickle, and reading it runs the code in it. Pass trust=True if you trust it."
        )
    require(_PACKAGE, "Importing a pickled ReplayBuffer", _EXTRA)
    with reading(path), open(path, "rb") as file:
        return pickle.load(file)


class _Buffer(FlatDataset):
    def __init__(self, buffer: Any, place: str, options: ImportOptions) -> None:
        super().__init__()
        size, count, pos = int(buffer.buffer_size), int(buffer.n_envs), int(buffer.pos)
        filled, oldest = (size, pos) if buffer.full else (pos, 0)
        newest = (pos - 1) % size
        if buffer.optimize_memory_usage and buffer.full:
            filled, oldest = size - 1, (pos + 1) % size
        if filled < 1:
            raise DatasetError(f"{place} holds no transitions: it is empty.")
        self.observation_space, self.action_space = buffer.observation_space, buffer.action_space
        observations = _flat(buffer.observations, self.observation_space)
        following: Tree
        followed = None
        if buffer.optimize_memory_usage:
            following = Rolled(observations, count)
            followed = np.arange(size * count) // count == newest
        else:
            following = _flat(buffer.next_observations, self.observation_space)
        dones = flags_of(place, buffer.dones.reshape(-1), "dones")
        timeouts = flags_of(place, buffer.timeouts.reshape(-1), "timeouts")
        never = np.zeros(len(dones), bool)
        handled = buffer.handle_timeout_termination
        order = unrolled([(env, size, filled, oldest) for env in range(count)], count)
        rows = FlatRows(
            place=place,
            observation=observations,
            action=_flat(buffer.actions, self.action_space),
            reward=buffer.rewards.reshape(-1),
            terminated=dones & ~timeouts if handled else never,
            truncated=dones & timeouts if handled else never,
            ends=np.flatnonzero(dones[order]),
            following=following,
            followed=followed,
            order=order,
            lanes=[filled] * count,
        )
        self.set_rows(rows, options)
        self.settings = {"last_observation": options.last_observation}
        self.mapping = {
            "observation": "observations",
            "action": "actions, as the algorithm gave them to the buffer",
            "reward": "rewards",
            "terminated": "dones without timeouts" if handled else "nothing: the buffer has no timeouts",
            "truncated": "timeouts" if handled else "nothing: the buffer has no timeouts",
        }
        self.losses.add(BEGUN, count * (oldest > 0))
        if not handled:
            self.losses.add(_DONES, int(dones[order].sum()))
        if _is_scaled(self.action_space):
            self.losses.add(_SCALED, filled * count)


def _flat(values: Any, space: spaces.Space) -> Tree:
    """Return arrays of shape (rows, environments, ...) with the environments of a row as neighbours."""
    if isinstance(space, spaces.Dict):
        return {key: _flat(values[key], part) for key, part in space.spaces.items()}
    return values.reshape(values.shape[0] * values.shape[1], *(space.shape or ()))


def _is_scaled(space: spaces.Space) -> bool:
    """Return whether scaling to -1 to 1 changes actions."""
    if not isinstance(space, spaces.Box):
        return False
    return not (np.all(space.low == -1) and np.all(space.high == 1))


FORMAT = _Format()
