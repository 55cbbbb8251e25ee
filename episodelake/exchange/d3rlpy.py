"""d3rlpy datasets: HDF5 files that `ReplayBuffer.dump` of d3rlpy 2 or `MDPDataset.dump` of d3rlpy 1 wrote.

d3rlpy has no last observation of an episode that terminated: it is missing. Of any other episode the last row
is the last observation; d3rlpy makes no transition of the action and reward beside it
(`Episode.transition_count`), and neither does the import, which reports those that are not zero.

Version 2 states `terminated` alone, so other episodes are cut. In version 1 the rows are flat: terminated are
`terminals`, truncated those `episode_terminals` that are not `terminals`, and rows after the last of them are
an episode that was cut.

An export is a file for `ReplayBuffer.load` of d3rlpy 2. An episode that did not terminate gets a last row
with its last observation, and zeros beside it as action and reward. `ReplayBuffer.load` takes no action
space: it calls the actions discrete if those of the first episode are whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from gymnasium import spaces

from .. import Episode, EpisodeView
from ..errors import DatasetError
from ..plugin import (
    Export,
    ForeignDataset,
    ForeignEpisode,
    Format,
    Holds,
    ImportOptions,
    Match,
    Part,
    export_format,
    reading,
    require,
)
from ..readers.exporting.capabilities import LOST_SPACES
from ..readers.exporting.conversions import Converted, exported
from ..readers.exporting.hdf5 import episodes_into, first_rows, new_file, single_array
from ..writers.importing.episode_rows import NO_TRANSITION, UNUSED, completed, is_left
from ..writers.importing.flat import FlatDataset, FlatRows
from ..writers.importing.hdf5 import (
    Hdf5Dataset,
    as_flags,
    box_of,
    check_lengths,
    discrete_of,
    flags_of,
    is_discrete,
    looked_into,
    member,
    missing_arrays,
    missing_names,
    plain,
    whole,
)

_V1 = ("observations", "actions", "rewards", "terminals")
_V2 = ("columns", "num_episodes", "version")
_READ = {"observations", "actions", "rewards", "terminated"}


def _open(source: Any, options: ImportOptions) -> ForeignDataset:
    """Open a file."""
    dataset = _Flat if _is_flat(source) else _Dumped
    return dataset(source, options)


def _look(file: Any) -> Match:
    lacking = missing_names(file, *_V2)
    if not lacking:
        return Match(f"it has columns, and {plain(file['num_episodes'][()])} episodes")
    flat = missing_arrays(file, *_V1, "episode_terminals")
    if not flat:
        return Match("it has episode_terminals, as d3rlpy 1 writes them")
    nearest = min(lacking, flat, key=len)
    return Match(f"it has no {', '.join(nearest)}", len(nearest))


def _is_flat(source: Any) -> bool:
    """Return whether a file has the columns of version 1; `episode_terminals` may be missing."""
    match = looked_into(source, lambda file: Match("", len(missing_arrays(file, *_V1))))
    return match.lacks == 0


class _Dataset(Hdf5Dataset):
    def __init__(self, source: Any, options: ImportOptions) -> None:
        super().__init__(source, "d3rlpy")
        self.options = options
        self.mapping = {
            "observation": "observations",
            "action": "actions",
            "reward": "rewards",
            "terminated": "terminated",
        }

    def use_spaces(self, observations: list[Any], actions: list[Any], *, several: bool = False) -> None:
        """Take the spaces of the options, or those of arrays; of several a Tuple."""
        chosen = self.options.observation_space
        if chosen is None:
            boxes = [box_of(each, "observation_space") for each in observations]
            chosen = spaces.Tuple(boxes) if several else boxes[0]
        self.observation_space = chosen
        discrete = all(map(is_discrete, actions))
        self.action_space = self.options.action_space or (
            discrete_of(iter(actions)) if discrete else box_of(actions[0], "action_space")
        )


class _Dumped(_Dataset):
    """A file of version 2, with arrays of their own for each episode."""

    def __init__(self, source: Any, options: ImportOptions) -> None:
        super().__init__(source, options)
        _look(self.file).check(f"{self.path} is no d3rlpy file")
        with reading(self.path):
            version = plain(self.file["version"][()])
            if version != "2.1":
                raise DatasetError(f"{self.path} has d3rlpy's version {version}; expected 2.1.")
            columns = set(plain(self.file["columns"][()]))
            self.count = int(self.file["num_episodes"][()])
        if not columns >= _READ:
            raise DatasetError(f"{self.path} has no {', '.join(sorted(_READ - columns))}.")
        for name in sorted(columns - _READ):
            self.losses.add(f"the column {name}", self.count)
        if not self.count:
            raise DatasetError(f"{self.path} has no episodes, so nothing shows its spaces.")
        self._several = "observations_0" not in self.file
        first = self._arrays("observations", 0)
        actions = [self._array("actions", index) for index in range(self.count)]
        self.use_spaces(first, actions, several=self._several)
        chosen = self.observation_space
        self._observation_spaces = list(chosen) if isinstance(chosen, spaces.Tuple) else [chosen] * len(first)

    def parts(self) -> Iterator[Part]:
        for index in range(self.count or 0):
            yield Part((str(index),), partial(self._load, index))

    def _load(self, index: int) -> ForeignEpisode | None:
        place = f"{self.path}: episode {index}"
        with reading(place):
            rewards = self._array("rewards", index)
            terminated = self._terminated(index)
            if not self._is_whole(len(rewards), terminated):
                return None
            parts = tuple(whole(array, place) for array in self._arrays("observations", index))
            actions, rewards = whole(self._array("actions", index), place), whole(rewards, place)
        counts = {len(each) for each in (*parts, actions, rewards)}
        if len(counts) > 1:
            raise DatasetError(
                f"{place} has {len(parts[0])} observations, {len(actions)} actions and {len(rewards)} "
                "rewards; they must be as many."
            )
        parts = tuple(map(_shaped, parts, self._observation_spaces))
        observations = parts if self._several else parts[0]
        actions = _shaped(actions, self.action_space)
        if terminated:
            episode = ForeignEpisode(observations, actions, rewards, True, False)
            return completed(episode, self.options, self.losses)
        if np.any(actions[-1]) or np.any(rewards[-1]):
            self.losses.add(UNUSED)
        return ForeignEpisode(observations, actions[:-1], rewards[:-1], False, False)

    def _is_whole(self, rows: int, terminated: bool) -> bool:
        """Return whether rows make an episode; counts it as lost otherwise."""
        if terminated:
            return is_left(rows, self.options, self.losses)
        if rows < 2:
            self.losses.add(NO_TRANSITION)
        return rows > 1

    def _terminated(self, index: int) -> bool:
        place = f"{self.path}: terminated_{index}"
        with reading(place):
            value = np.asarray(self._array("terminated", index)[()]).reshape(-1)
        return bool(as_flags(value, place).all())

    def _array(self, name: str, index: int) -> Any:
        path = f"{name}_{index}"
        array = member(self.file, path)
        if array is None:
            raise DatasetError(f"{self.path}: episode {index} has no {path}.")
        return array

    def _arrays(self, name: str, index: int) -> list[Any]:
        """Return an array of an episode, or those of a tuple."""
        arrays = []
        while self._several and (path := f"{name}_{index}_{len(arrays)}") in self.file:
            arrays.append(self.file[path])
        return arrays or [self._array(name, index)]


def _shaped(values: np.ndarray, space: Any) -> np.ndarray:
    """Return rows of one number each as numbers if the values of the space are numbers."""
    numbers = getattr(space, "shape", None) == () and values.shape[1:] == (1,)
    return values.reshape(len(values)) if numbers else values


class _Flat(_Dataset, FlatDataset):
    """A file of version 1, with flat rows."""

    def __init__(self, source: Any, options: ImportOptions) -> None:
        super().__init__(source, options)
        optional = [name for name in ("episode_terminals",) if name in self.file]
        with reading(self.path):
            arrays = {name: self.file[name] for name in (*_V1, *optional)}
            check_lengths(self.path, arrays)
            self.use_spaces([arrays["observations"]], [arrays["actions"]])
        self.mapping["terminated"] = "terminals"
        self.mapping["truncated"] = "episode_terminals without terminals"
        terminated = flags_of(self.path, arrays["terminals"])
        ended = flags_of(self.path, arrays["episode_terminals"]) if optional else terminated
        rows = FlatRows(
            place=str(self.path),
            observation=arrays["observations"],
            action=arrays["actions"],
            reward=arrays["rewards"],
            terminated=terminated,
            truncated=ended & ~terminated,
            stands=~terminated,
        )
        self.set_rows(rows, options)


_COLUMNS = ("observations", "actions", "rewards", "terminated")
_VERSION = "2.1"
_SEEM_DISCRETE = (
    "that actions are not discrete: those of the first episode are whole numbers, and ReplayBuffer.load "
    "takes such for discrete ones (view.to.d3rlpy() does not)"
)


@export_format(
    "d3rlpy",
    extra="'episodelake[hdf5]'",
    holds=Holds(
        ends={"truncated": "cut", "interrupted": "cut"},
        both="terminated",
        last_observation="needed unless terminated",
    ),
)
def write_d3rlpy(export: Export, target: Path) -> None:
    """Write the file."""
    export.refuse_vector_rewards("d3rlpy")
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
        for episode in episodes_into(file, export):
            rows = _rows(episode, export)
            if rows is None:
                continue
            if not count and not isinstance(action, spaces.Discrete) and _seem_discrete(rows["actions"]):
                export.losses.add(_SEEM_DISCRETE)
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


def _seem_discrete(actions: np.ndarray) -> bool:
    """Return whether d3rlpy takes actions for discrete ones: they are whole numbers of 32 bits."""
    limits = np.iinfo(np.int32)
    if actions.dtype.kind == "f":  # float16 does not hold the limits
        actions = actions.astype(np.float64)
    within = (actions >= limits.min) & (actions <= limits.max)
    return bool(np.all(within & (np.trunc(actions) == actions)))


def _vectors(values: Any) -> np.ndarray:
    """Return rows with an axis of their own, which d3rlpy's batches require of numbers, too."""
    array = np.asarray(values)
    return array[:, None] if array.ndim == 1 else array


def to_d3rlpy(view: EpisodeView, target: str) -> Converted:
    """Return a `d3rlpy.dataset.ReplayBuffer` with the episodes of an export."""
    dataset = require("d3rlpy.dataset", "view.to.d3rlpy()", "d3rlpy")
    context = view.context
    with TemporaryDirectory(prefix="episodelake-") as folder:
        report = exported(context, Path(folder, "episodes.h5"), "d3rlpy")
        with open(report.target, "rb") as file:
            loaded = dataset.ReplayBuffer.load(file, dataset.InfiniteBuffer())
    space = context.snapshot.manifest.action_space
    discrete = isinstance(space, spaces.Discrete)
    info = loaded.dataset_info
    kind = type(info.action_space)
    buffer = dataset.ReplayBuffer(
        dataset.InfiniteBuffer(),
        episodes=loaded.episodes,
        action_space=kind.DISCRETE if discrete else kind.CONTINUOUS,
        action_size=int(space.n) if discrete else info.action_signature.shape[0][0],
    )
    return buffer, {
        what: count for what, count in report.lost.items() if what not in (LOST_SPACES, _SEEM_DISCRETE)
    }


FORMAT = Format(
    "d3rlpy",
    "'episodelake[hdf5]'",
    "an HDF5 file with num_episodes, columns and version (d3rlpy 2) or with episode_terminals (1)",
    partial(looked_into, look=_look),
    _open,
)
