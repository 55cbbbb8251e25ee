"""imitation: lists of `Trajectory` objects, folders of `imitation.data.serialize.save`, and its older files.

A trajectory has T+1 observations. `terminal` states that it contains the end of an episode, however it ended:
the docstring of `Trajectory` says so, and `imitation.data.rollout` sets it for `done` of any kind. The last
info of stable-baselines3 has `TimeLimit.truncated`, which tells truncated from terminated; without it
`terminal` counts as terminated, as imitation's algorithms take it, and as lost. Without `terminal` an episode
is cut.

`infos[t]` came with observation t+1, so the first observation has no infos. stable-baselines3 repeats the
last observation in them as `terminal_observation`, which is left out. On disk infos are texts of jsonpickle:
plain values are read, and others, which jsonpickle makes by running code, only with `trust=True`.

`view.to` makes `TrajectoryWithRew`s, terminal where an episode ended with either flag.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from ... import Episode, EpisodeView
from ...errors import DatasetError
from ...plugin import (
    Export,
    ForeignDataset,
    ForeignEpisode,
    Format,
    Holds,
    ImportOptions,
    Match,
    Part,
    map_leaves,
    require,
    slice_batch,
)
from ...plugin.files import is_folder
from ...readers.exporting.capabilities import everything
from ...readers.exporting.conversions import Converted, export_of
from ...readers.exporting.step_arrays import SIMPLE_SPACES, refuse_spaces
from ...writers.importing.boundary import closed_on_error
from ...writers.importing.formats import NO_REWARDS
from ...writers.importing.hdf5 import discrete_of, is_discrete, space_of
from ...writers.importing.npy import look_into_npz, npz_path
from .forms import NEEDED, Folder, Npz, Objects, Trajectories, folder_features, is_trajectory, unpickled

_TRUNCATED = "TimeLimit.truncated"
_REPEATED = "terminal_observation"
_UNKNOWN_END = "whether an episode was terminated or truncated"
_NOT_PLAIN = "info values that jsonpickle makes by running code: trust=True reads them"


def _detect(source: Any) -> Match:
    """Look at the first object, the columns of a folder, or the arrays of a file."""
    if _is_sequence(source):
        first = source[0] if len(source) else None
        if is_trajectory(first):
            return Match(f"it is a list of imitation's {type(first).__name__}")
        return Match("it is no list of imitation's trajectories", 3, related=False)
    if (path := npz_path(source)) is not None:
        return look_into_npz(path, *NEEDED, "indices")
    if isinstance(source, str | Path) and Path(source).suffix == ".pkl":
        return Match("a pickle is read only with format='imitation' and trust=True", 1)
    features = folder_features(source)
    if features is None:
        return Match("it is not a folder with state.json and dataset_info.json", 3, related=False)
    return Match.of_names(features, *NEEDED, "infos")


def _open(source: Any, options: ImportOptions) -> ForeignDataset:
    """Open trajectories."""
    if _is_sequence(source):
        return _Dataset(Objects(source), options)
    if not isinstance(source, str | Path):
        raise DatasetError(
            f"A {type(source).__name__} is no source for imitation. Give a list of trajectories."
        )
    path = Path(source)
    if is_folder(path):
        form: Trajectories = Folder(path)
    else:
        form = Npz(path, options.trust) if path.suffix == ".npz" else unpickled(path)
    with closed_on_error(form):
        return _Dataset(form, options)


def _is_sequence(source: Any) -> bool:
    return isinstance(source, Sequence) and not isinstance(source, str | bytes)


class _Dataset(ForeignDataset):
    def __init__(self, form: Trajectories, options: ImportOptions) -> None:
        super().__init__()
        self._form = form
        self._trust = options.trust
        self.count = len(form)
        if not self.count:
            raise DatasetError(f"{form.place} has no trajectories.")
        first = form.read(0)
        self.observation_space = options.observation_space or self._space("obs", first["obs"])
        self.action_space = options.action_space or self._space("acts", first["acts"])
        self.mapping = {
            "observation": "obs",
            "action": "acts",
            "reward": "rews" if "rews" in first else "NaN",
            "terminated": f"terminal and not {_TRUNCATED}",
            "truncated": f"terminal and {_TRUNCATED}",
            "info": "infos",
        }
        self.losses.merge(form.lost)

    def _space(self, name: str, first: Any) -> Space:
        if not isinstance(first, Mapping) and is_discrete(first):
            return discrete_of(self._form.read(index, [name])[name] for index in range(len(self._form)))
        return space_of(first, "observation_space" if name == "obs" else "action_space")

    def parts(self) -> Iterator[Part]:
        for index in range(len(self._form)):
            yield Part((str(index),), partial(self._load, index))

    def _load(self, index: int) -> ForeignEpisode:
        place = f"{self._form.place}: trajectory {index}"
        fields = self._form.read(index)
        total = len(fields["acts"])
        infos = self._infos(fields.get("infos"), total, place)
        terminated, truncated = self._end(fields["terminal"], infos, place)
        rewards = fields.get("rews")
        if rewards is None:
            self.losses.add(NO_REWARDS, total)
            rewards = np.full(total, np.nan)
        return ForeignEpisode(fields["obs"], fields["acts"], rewards, terminated, truncated, infos=infos)

    def _end(self, terminal: Any, infos: Sequence[Any] | None, place: str) -> tuple[bool, bool]:
        """Return terminated and truncated."""
        if not isinstance(terminal, bool | np.bool_):
            raise DatasetError(f"{place}: terminal is {terminal!r:.100}; expected a bool.")
        if not terminal:
            return False, False
        truncated = (infos[-1] if infos else {}).get(_TRUNCATED)
        if not isinstance(truncated, bool | np.bool_):
            self.losses.add(_UNKNOWN_END)
            return True, False
        return not truncated, bool(truncated)

    def _infos(self, infos: Any, total: int, place: str) -> list[dict[str, Any]] | None:
        """Return the infos of T+1 observations; None if there are none."""
        if infos is None:
            return None
        if len(infos) != total:
            raise DatasetError(f"{place} has {len(infos)} infos for {total} actions.")
        rows = [{}, *(self._info(info, place) for info in infos)]
        rows[-1].pop(_REPEATED, None)
        return rows if any(rows) else None

    def _info(self, info: Any, place: str) -> dict[str, Any]:
        if isinstance(info, str):
            try:
                info = self._decoded(info)
            except (ValueError, RecursionError) as error:
                raise DatasetError(f"{place}: an info is no JSON: {error}") from error
        if not isinstance(info, Mapping):
            raise DatasetError(f"{place}: an info is a {type(info).__name__}; expected a dict.")
        return dict(info)

    def _decoded(self, text: str) -> Any:
        if self._trust:
            return require("jsonpickle", "Decoding infos with trust=True").decode(text, keys=True)
        info = json.loads(text)
        if not isinstance(info, dict):
            return info
        info.pop(_REPEATED, None)
        plain = {key: value for key, value in info.items() if not key.startswith("py/") and _is_plain(value)}
        self.losses.add(_NOT_PLAIN, len(info) - len(plain))
        return plain

    def close(self) -> None:
        """Close the file."""
        self._form.close()


def _is_plain(value: Any) -> bool:
    """Return whether jsonpickle left a value as it was."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(not key.startswith("py/") and _is_plain(part) for key, part in value.items())
    return True


#: What imitation's trajectories hold.
_HOLDS = Holds(info=everything, both="either")


def to_imitation(view: EpisodeView, target: str) -> Converted:
    """Return a `TrajectoryWithRew` for each episode with a transition."""
    types = require("imitation.data.types", "view.to.imitation()", "imitation")
    export = export_of(view, target, _HOLDS)
    export.count_losses_of_transitions()
    manifest = export.context.snapshot.manifest
    export.refuse_vector_rewards(target)
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


FORMAT = Format(
    "imitation",
    None,
    "a list of imitation's trajectories, or a folder of imitation.data.serialize.save",
    _detect,
    _open,
)
