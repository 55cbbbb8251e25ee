"""robomimic datasets: an HDF5 file for `SequenceDataset`, with a group `data/demo_N` for each episode.

`dones` is set in the last row of an episode that terminated. The observation after the last action is the
last row of `next_obs`. Step columns of your own, such as `states`, become arrays beside these, the metadata
`splits` masks, other metadata attributes, and `env_args` of the card those of the data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium import Space, spaces

from ...store.dynamic.column_groups import INFO, POLICY
from ...store.errors import DatasetError
from ..episode import Episode
from ..episode_data import stack
from .flat import refuse_vector_rewards
from .hdf5 import EXTRA, first_rows, flat, is_attribute, is_name, lose_facts, new_file
from .target import Export

_KEY = "observation_key"
_ROWS, _TOTAL, _SPLITS = "num_samples", "total", "splits"
_WRITTEN = frozenset({"obs", "next_obs", "actions", "rewards", "dones"})


class _Format:
    name = "robomimic"
    extra = EXTRA
    folder = False
    agents = False
    options: ClassVar[dict[str, str]] = {
        _KEY: "the name of observations that are one array; 'observation' by default"
    }

    def write(self, export: Export, target: Path) -> None:
        """Write the file."""
        manifest = export.context.snapshot.manifest
        _check("observations", manifest.observation_space)
        refuse_vector_rewards(export.context, "robomimic")
        if not _is_array(manifest.action_space) or len(manifest.action_space.shape or ()) != 1:
            raise DatasetError(
                f"robomimic holds actions of shape (n,); the store has {manifest.action_space} actions."
            )
        export.lose_columns(INFO, POLICY)
        export.lose_spaces()
        masks: dict[str, list[str]] = {}
        total = count = 0
        with new_file(target, "robomimic") as file:
            data = file.create_group("data")
            for episode in export.episodes():
                lose_facts(episode, export, metadata=False)
                steps = export.transitions_of(episode)
                if not steps:
                    continue
                name = f"demo_{count}"
                _write_demo(data.create_group(name), episode, steps, export)
                for split in _splits(episode):
                    masks.setdefault(split, []).append(name)
                total, count = total + steps, count + 1
            data.attrs[_TOTAL] = total
            for split, names in masks.items():
                file[f"mask/{split}"] = np.array(names, dtype="S")
            _write_card(data, export)


def _write_demo(demo: Any, episode: Episode, count: int, export: Export) -> None:
    observations = episode.observations
    if not isinstance(observations, Mapping):
        observations = {export.options.get(_KEY, "observation"): observations}
    for name, values in observations.items():
        demo[f"obs/{name}"] = values[:count]
        demo[f"next_obs/{name}"] = values[1 : count + 1]
    demo["actions"] = first_rows(episode.actions, count)
    demo["rewards"] = episode.rewards[:count]
    dones = np.zeros(count, np.int64)
    dones[-1] = count == episode.length and episode.terminated
    demo["dones"] = dones
    demo.attrs[_ROWS] = count
    if not dones[-1] and episode.end_reason != "cut":
        export.losses.add(f"that an episode was {episode.end_reason}, not cut")
    elif episode.terminated and episode.truncated:
        export.losses.add("that an episode that terminated was truncated as well")
    extra = episode.extra
    if any(row is not None for _, part in flat(extra) if part is not None for row in part[count:]):
        export.losses.add("the step columns of a last observation")
    rows = {key: None if part is None else part[:count] for key, part in flat(extra)}
    stacked = {key: stack(part) if isinstance(part, list) else part for key, part in rows.items()}
    for name, values in stacked.items():
        if isinstance(values, np.ndarray) and values.dtype.kind in "biuf" and name not in _WRITTEN:
            demo[name] = values
        else:
            export.losses.add(f"the column {name}, which is not a number of one shape at every step", count)
    for key, value in episode.metadata.items():
        if key == _SPLITS and isinstance(value, list):
            export.losses.add(f"metadata.{key}", len(value) - len(_splits(episode)))
        elif is_name(key) and is_attribute(value) and key != _ROWS:
            demo.attrs[key] = value
        else:
            export.losses.add(f"metadata.{key}")


def _splits(episode: Episode) -> list[str]:
    found = episode.metadata.get(_SPLITS, [])
    texts = [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
    return list(filter(is_name, texts))


def _write_card(data: Any, export: Export) -> None:
    for key, value in export.card.items():
        if key == "env_args":
            data.attrs[key] = value if isinstance(value, str) else json.dumps(value, indent=4)
        elif is_name(key) and is_attribute(value) and key != _TOTAL:
            data.attrs[key] = value
        else:
            export.losses.add(f"{key} of the card")


def _check(what: str, space: Space) -> None:
    parts = space.spaces if isinstance(space, spaces.Dict) else {_KEY: space}
    if not (parts and all(map(is_name, parts)) and all(map(_is_array, parts.values()))):
        raise DatasetError(
            f"robomimic holds {what} that are an array each, or a Dict of arrays whose names have no '/'; "
            f"the store has {space}."
        )


def _is_array(space: Space) -> bool:
    return isinstance(space, spaces.Box) and bool(space.shape)


FORMAT = _Format()
