"""D4RL data sets: one HDF5 file with flat rows, of which `terminals` and `timeouts` end the episodes.

Row k holds observation, action, reward and flags of one transition, and `infos/*` of its observation
(`qlearning_dataset` and `sequence_dataset` of D4RL read it so). `terminals` are terminated, `timeouts`
truncated, and rows after the last of them are an episode that was cut. The next row of an episode's last
transition begins another episode, so the last observation comes from `next_observations`; where the file
lacks these it is missing.

Files of version 0 have no `timeouts`. Their episodes end at terminals only, and may run over resets that the
file does not mark. In maze2d all terminals are zero, and a timeout marks a new goal, not a reset; episodes
end there all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ...store.errors import DatasetError
from .dataset import ForeignDataset, ForeignEpisode, ImportOptions, Match, Part
from .hdf5 import (
    EXTRA,
    Columns,
    Hdf5Dataset,
    box_of,
    card_values,
    discrete_of,
    fingerprint,
    is_discrete,
    leaves,
    looked_into,
    missing_arrays,
    nested,
    plain,
    reading,
)
from .last_observation import completed, count_differing, is_left, with_last

_COLUMNS = ("observations", "actions", "rewards", "terminals")
_OPTIONAL = ("timeouts", "next_observations")
_GROUPS = ("infos", "metadata")
_MAPPING = {
    "observation": "observations",
    "action": "actions",
    "reward": "rewards",
    "terminated": "terminals",
    "truncated": "timeouts",
    "info": "infos",
}


class _Format:
    name = "d4rl"
    extra = EXTRA
    rule = "an HDF5 file with observations, actions, rewards and terminals, without episode_terminals"

    def detect(self, source: Any) -> Match:
        """Look for the columns."""
        return looked_into(source, _look)

    def open(self, source: Any, options: ImportOptions) -> ForeignDataset:
        """Open a file."""
        return _Dataset(source, options)


def _look(file: Any) -> Match:
    lacking = missing_arrays(file, *_COLUMNS)
    if lacking:
        return Match(f"it has no {', '.join(lacking)}", len(lacking))
    if "episode_terminals" in file:
        return Match("it has episode_terminals, as d3rlpy 1 writes them", 1)
    return Match(f"it has {', '.join(name for name in (*_COLUMNS, *_OPTIONAL) if name in file)}")


class _Dataset(Hdf5Dataset):
    def __init__(self, source: Any, options: ImportOptions) -> None:
        super().__init__(source, "D4RL")
        self._options = options
        self.settings = {"last_observation": options.last_observation}
        file = self.file
        match = _look(file)
        if match.lacks:
            raise DatasetError(f"{self.path} is no D4RL file: {match.reason}.")
        with reading(self.path):
            arrays = {name: file[name] for name in (*_COLUMNS, *_OPTIONAL) if name in file}
            infos = leaves(file["infos"], "infos/") if "infos" in file else {}
            self._infos = [name.removeprefix("infos/") for name in infos]
            self._columns = Columns(self.path, arrays | infos)
            self.identity = f"d4rl:{fingerprint(*arrays.values())}"
            actions = arrays["actions"]
            self.observation_space = options.observation_space or box_of(
                arrays["observations"], "observation_space"
            )
            self.action_space = options.action_space or (
                discrete_of(iter([actions])) if is_discrete(actions) else box_of(actions, "action_space")
            )
            self._read_card(file)
        self._terminals, self._timeouts = self._flags()
        self.mapping = {
            ours: theirs for ours, theirs in _MAPPING.items() if theirs in file or theirs == "timeouts"
        }
        if "timeouts" not in file:
            self.mapping["truncated"] = "nothing: the file has no timeouts"
        self._ends = np.flatnonzero(self._terminals | self._timeouts) + 1
        if self._columns.rows and (not len(self._ends) or self._ends[-1] < self._columns.rows):
            self._ends = np.append(self._ends, self._columns.rows)
        self.count = len(self._ends)

    def _read_card(self, file: Any) -> None:
        self.card = {name: plain(value) for name, value in file.attrs.items()}
        found, rest = card_values(leaves(file["metadata"]) if "metadata" in file else {})
        self.card.update(found)
        for name in rest:
            self.losses.add(f"metadata/{name}, an array too large for the card")
        for name in file:
            if name not in (*_COLUMNS, *_OPTIONAL, *_GROUPS):
                self.losses.add(f"{name}, which is no column of D4RL")

    def _flags(self) -> tuple[np.ndarray, np.ndarray]:
        terminals = self._columns.flags("terminals")
        if "timeouts" in self._columns:
            return terminals, self._columns.flags("timeouts")
        self.losses.add("where episodes ended that did not terminate: the file has no timeouts")
        return terminals, np.zeros(len(terminals), bool)

    def parts(self) -> Iterator[Part]:
        start = 0
        for index, stop in enumerate(self._ends.tolist()):
            if "next_observations" in self._columns or is_left(stop - start, self._options, self.losses):
                yield Part((str(index),), partial(self._load, start, stop))
            start = stop

    def _load(self, start: int, stop: int) -> ForeignEpisode:
        read = self._columns.read
        infos = {name: read(f"infos/{name}", start, stop) for name in self._infos}
        actions = read("actions", start, stop)
        episode = ForeignEpisode(
            read("observations", start, stop),
            actions.reshape(len(actions)) if is_discrete(actions) else actions,
            read("rewards", start, stop),
            bool(self._terminals[stop - 1]),
            bool(self._timeouts[stop - 1]),
            infos=nested(infos) or None,
        )
        if "next_observations" not in self._columns:
            return completed(episode, self._options, self.losses)
        following = read("next_observations", start, stop)
        with reading(f"{self.path}: next_observations"):
            count_differing(following, episode.observations, self.losses)
            return with_last(episode, following[-1:])


FORMAT = _Format()
