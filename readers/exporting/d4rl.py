"""D4RL datasets: one HDF5 file with flat rows, with `next_observations`, `timeouts` and `infos/*`.

An episode ends at a terminal or a timeout. One that was cut or interrupted ends at a timeout, since the rows
of the next episode follow. The observation after the last action is in `next_observations` alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..episode import Episode
from .hdf5 import (
    EXTRA,
    ColumnWriter,
    InfoColumns,
    first_rows,
    is_attribute,
    is_name,
    is_numbers,
    new_file,
    single_array,
)
from .holds import Holds
from .step_arrays import refuse_vector_rewards
from .target import Export, export_format


def _is_card(path: tuple[Any, ...], value: Any) -> bool:
    return len(path) == 1 and is_name(path[0]) and (is_attribute(value) or is_numbers(path, value))


@export_format(
    "d4rl",
    extra=EXTRA,
    holds=Holds(
        ends={"cut": "truncated", "interrupted": "truncated"},
        card=_is_card,
        info=is_numbers,
        form="number of one shape",
    ),
)
def write_d4rl(export: Export, target: Path) -> None:
    """Write the file."""
    refuse_vector_rewards(export.context, "D4RL")
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
        for episode in export.episodes():
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
