"""D4RL datasets: one HDF5 file with flat rows; `terminals` and `timeouts` end the episodes.

Row k holds observation, action, reward and flags of one transition, and `infos/*` of its observation
(`qlearning_dataset` and `sequence_dataset` of D4RL read it so). `terminals` are terminated, `timeouts`
truncated, and rows after the last of them are an episode that was cut. The next row of an episode's last
transition begins another episode, so the last observation comes from `next_observations`; where the file
lacks these it is missing.

Files of version 0 have no `timeouts`. Their episodes end at terminals only, and may run over resets that the
file does not mark. In maze2d all terminals are zero, and a timeout marks a new goal, not a reset; episodes
end there all the same.

An export has `next_observations`, `timeouts` and `infos/*`. There an episode that was cut or interrupted ends
at a timeout, since the rows of the next episode follow.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .. import Episode
from ..plugin import Export, FlatTree, Holds, ImportOptions, Match, TreeLayout, export_format, tree_format
from ..readers.exporting.hdf5 import (
    ColumnWriter,
    InfoColumns,
    episodes_into,
    first_rows,
    is_attribute,
    is_name,
    is_numbers,
    new_file,
    single_array,
)
from ..writers.importing.hdf5 import card_values, leaves, missing_arrays

_COLUMNS = ("observations", "actions", "rewards", "terminals")
_LAYOUT = TreeLayout(
    observation="observations",
    action="actions",
    reward="rewards",
    terminated="terminals",
    truncated="timeouts",
    following="next_observations",
    info="infos",
    unused=("metadata",),
    extra={},
)


def _look(file: Any) -> Match:
    lacking = missing_arrays(file, *_COLUMNS)
    if lacking:
        return Match(f"it has no {', '.join(lacking)}", len(lacking))
    if "episode_terminals" in file:
        return Match("it has episode_terminals, as d3rlpy 1 writes them", 1)
    optional = (name for name in ("timeouts", "next_observations") if name in file)
    return Match(f"it has {', '.join((*_COLUMNS, *optional))}")


class _Dataset(FlatTree):
    left_out = "is no column of D4RL"

    def __init__(self, path: Path, file: Any, options: ImportOptions) -> None:
        super().__init__(path, file, options, _LAYOUT)
        if "timeouts" not in file:
            self.mapping["truncated"] = "nothing: the file has no timeouts"
            self.losses.add("where episodes ended that did not terminate: the file has no timeouts")
        entries, rest = card_values(leaves(file["metadata"]) if "metadata" in file else {})
        self.card.update(entries)
        for name in rest:
            self.losses.add(f"metadata/{name}, an array too large for the card")


def _is_card(path: tuple[Any, ...], value: Any) -> bool:
    return len(path) == 1 and is_name(path[0]) and (is_attribute(value) or is_numbers(path, value))


@export_format(
    "d4rl",
    extra="'episodelake[hdf5]'",
    holds=Holds(
        ends={"cut": "truncated", "interrupted": "truncated"},
        card=_is_card,
        info=is_numbers,
        form="number of one shape",
    ),
)
def write_d4rl(export: Export, target: Path) -> None:
    """Write the file."""
    export.refuse_vector_rewards("D4RL")
    manifest = export.context.snapshot.manifest
    observation = single_array(manifest.observation_space, "observations", "D4RL")
    action = single_array(manifest.action_space, "actions", "D4RL")
    with new_file(target, "D4RL") as file:
        columns = ColumnWriter(file)
        for name, space in (
            ("observations", observation),
            ("actions", action),
            ("next_observations", observation),
        ):
            columns.create(name, space.shape or (), space.dtype)
        columns.create("rewards", (), np.float64)
        columns.create("terminals", (), bool)
        columns.create("timeouts", (), bool)
        infos = InfoColumns(columns, "infos/", export)
        for episode in episodes_into(file, export):
            _append(columns, infos, episode, export)
        columns.flush()
        for key, value in export.card.items():
            file[f"metadata/{key}"] = value


def _append(columns: ColumnWriter, infos: InfoColumns, episode: Episode, export: Export) -> None:
    count = export.transitions_of(episode)
    if not count:
        return
    whole = count == episode.length
    terminals, timeouts = np.zeros(count, bool), np.zeros(count, bool)
    terminals[-1] = whole and episode.terminated
    timeouts[-1] = not terminals[-1] or episode.truncated
    columns.append("observations", episode.observations[:count])
    columns.append("next_observations", episode.observations[1 : count + 1])
    columns.append("actions", first_rows(episode.actions, count))
    columns.append("rewards", episode.rewards[:count])
    columns.append("terminals", terminals)
    columns.append("timeouts", timeouts)
    infos.append(episode, count)


FORMAT = tree_format(
    "d4rl",
    ["hdf5"],
    "'episodelake[hdf5]'",
    "HDF5 files with observations, actions, rewards and terminals, without episode_terminals",
    _look,
    _Dataset,
)
