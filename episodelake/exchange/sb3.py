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

`view.to` makes a `ReplayBuffer` with the same flags. The off-policy algorithms of SB3 store actions of a Box
scaled to -1 to 1.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from .. import EpisodeView
from ..errors import DatasetError, InvalidArgumentError
from ..plugin import (
    ForeignDataset,
    Format,
    ImportOptions,
    Match,
    check_unpickled,
    reading,
    require,
    whole_number,
)
from ..plugin.files import is_file
from ..readers.exporting.conversions import BUFFERS, Converted, flat_transitions
from ..readers.exporting.step_arrays import SIMPLE_SPACES, refuse_spaces
from ..writers.importing.flat import BEGUN, FlatDataset, FlatRows, RolledView, Tree, class_names, unrolled
from ..writers.importing.hdf5 import flags_of

_PACKAGE = "stable_baselines3"
_EXTRA = "stable-baselines3"
_HEAD_BYTES = 512
_ROLLOUT = (
    "A RolloutBuffer of Stable-Baselines3 has no flags, and rewards to which values are added. Record the "
    "environment instead: store.record(env)."
)
_SCALED = "actions in the units of the action space: SB3 scales those of a Box from its bounds to -1 to 1"
_DONES = "whether an episode that ended was terminated or truncated: the buffer has no timeouts, so it is cut"


def _detect(source: Any) -> Match:
    """Look at the classes of an object, or at the first bytes of a pickle, without reading it."""
    names = class_names(source, _PACKAGE)
    if "BaseBuffer" in names:
        return Match(f"it is a {type(source).__name__} of Stable-Baselines3")
    if _is_pickle(source):
        return Match("it is a pickle of a buffer of Stable-Baselines3")
    return Match("it is neither a buffer of Stable-Baselines3 nor a pickle of one", 9, related=False)


def _open(source: Any, options: ImportOptions) -> ForeignDataset:
    """Open a buffer; a file only with `trust`."""
    place = type(source).__name__
    if isinstance(source, str | Path):
        place = str(source)
        source = _unpickled(source)
    names = class_names(source, _PACKAGE)
    if "RolloutBuffer" in names:
        raise DatasetError(_ROLLOUT)
    if "ReplayBuffer" not in names:
        raise DatasetError(f"{place} holds no ReplayBuffer of Stable-Baselines3, but a {type(source)}.")
    return _Buffer(source, place, options)


def _is_pickle(source: Any) -> bool:
    if not isinstance(source, str | Path) or not is_file(Path(source)):
        return False
    with open(source, "rb") as file:
        head = file.read(_HEAD_BYTES)
    return head[:1] == b"\x80" and _PACKAGE.encode() in head


def _unpickled(path: str | Path) -> Any:
    if not _is_pickle(path):
        raise DatasetError(f"{path} is no file of save_replay_buffer.")
    check_unpickled(path)
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
            following = RolledView(observations, count)
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


#: What its buffers hold: `dones` and `timeouts` cannot say both.
_HOLDS = replace(BUFFERS, both="terminated")


def to_sb3(view: EpisodeView, target: str, *, buffer_size: int | None, device: str) -> Converted:
    """Return a `ReplayBuffer`, or a `DictReplayBuffer` for observations of a Dict."""
    buffers = require("stable_baselines3.common.buffers", "view.to.sb3()", _EXTRA)
    flat, export = flat_transitions(view, target, _HOLDS)
    manifest = export.context.snapshot.manifest
    export.refuse_vector_rewards(target)
    refuse_spaces(target, "observation", manifest.observation_space, (*SIMPLE_SPACES, spaces.Dict))
    refuse_spaces(target, "action", manifest.action_space, SIMPLE_SPACES)
    observation = manifest.observation_space
    for part in observation.spaces.values() if isinstance(observation, spaces.Dict) else [observation]:
        _refuse_axes(target, "observation", part, spaces.MultiDiscrete)
    _refuse_axes(target, "action", manifest.action_space, spaces.MultiDiscrete | spaces.MultiBinary)
    count = len(flat)
    size = count if buffer_size is None else whole_number("buffer_size", buffer_size, 1)
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
    return buffer, export.losses


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


FORMAT = Format(
    "sb3",
    None,
    "a ReplayBuffer of Stable-Baselines3, or its pickle, as save_replay_buffer writes it",
    _detect,
    _open,
    (),
)
