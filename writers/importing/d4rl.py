"""D4RL datasets: one HDF5 file with flat rows, of which `terminals` and `timeouts` end the episodes.

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

from typing import Any

import numpy as np

from ...store.dynamic.column_groups import INFO
from ...store.errors import DatasetError
from .boundary import reading
from .flat import FlatDataset, FlatRows
from .formats import ForeignDataset, ImportOptions, Match
from .hdf5 import (
    EXTRA,
    Hdf5Dataset,
    box_of,
    card_values,
    check_lengths,
    discrete_of,
    flags_of,
    is_discrete,
    leaves,
    looked_into,
    missing_arrays,
    plain,
)

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


class _Dataset(Hdf5Dataset, FlatDataset):
    def __init__(self, source: Any, options: ImportOptions) -> None:
        super().__init__(source, "D4RL")
        self.settings = {"last_observation": options.last_observation}
        file = self.file
        match = _look(file)
        if match.lacks:
            raise DatasetError(f"{self.path} is no D4RL file: {match.reason}.")
        with reading(self.path):
            arrays = {name: file[name] for name in (*_COLUMNS, *_OPTIONAL) if name in file}
            infos = leaves(file["infos"], "infos/") if "infos" in file else {}
            check_lengths(self.path, arrays | infos)
            actions = arrays["actions"]
            self.observation_space = options.observation_space or box_of(
                arrays["observations"], "observation_space"
            )
            self.action_space = options.action_space or (
                discrete_of(iter([actions])) if is_discrete(actions) else box_of(actions, "action_space")
            )
            self._read_card(file)
        self.mapping = {
            ours: theirs for ours, theirs in _MAPPING.items() if theirs in file or theirs == "timeouts"
        }
        terminated = flags_of(self.path, arrays["terminals"])
        if "timeouts" in file:
            truncated = flags_of(self.path, arrays["timeouts"])
        else:
            self.mapping["truncated"] = "nothing: the file has no timeouts"
            self.losses.add("where episodes ended that did not terminate: the file has no timeouts")
            truncated = np.zeros(len(terminated), bool)
        rows = FlatRows(
            place=str(self.path),
            observation=arrays["observations"],
            action=actions,
            reward=arrays["rewards"],
            terminated=terminated,
            truncated=truncated,
            following=arrays.get("next_observations"),
            passed={INFO.column(name.split("/")[1:]): array for name, array in infos.items()},
        )
        self.set_rows(rows, options)

    def _read_card(self, file: Any) -> None:
        self.card = {name: plain(value) for name, value in file.attrs.items()}
        found, rest = card_values(leaves(file["metadata"]) if "metadata" in file else {})
        self.card.update(found)
        for name in rest:
            self.losses.add(f"metadata/{name}, an array too large for the card")
        for name in file:
            if name not in (*_COLUMNS, *_OPTIONAL, *_GROUPS):
                self.losses.add(f"{name}, which is no column of D4RL")


FORMAT = _Format()
