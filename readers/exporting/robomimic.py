"""robomimic datasets: an HDF5 file for `SequenceDataset`, with a group `data/demo_N` for each episode.

`dones` is set in the last row of an episode that terminated. The observation after the last action is the
last row of `next_obs`. Step columns of your own, such as `states`, become arrays beside these, the metadata
`splits` masks, other metadata attributes, and `env_args` of the card those of the data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from ...store.dynamic.column_groups import EXTRA as OWN
from ...store.errors import DatasetError
from ..episode import Episode
from ..episode_data import stack
from .hdf5 import EXTRA, first_rows, flat, is_attribute, is_name, is_numbers, new_file
from .holds import Holds
from .step_arrays import number_array, refuse_vector_rewards
from .target import ENV_SPEC, Export, Option, export_format

_ROWS, _TOTAL, _SPLITS = "num_samples", "total", "splits"
_ENV_ARGS = "env_args"
#: `EnvType.GYM_TYPE` of robomimic.
_GYM = 2
_WRITTEN = frozenset({"obs", "next_obs", "actions", "rewards", "dones"})


def _is_own(path: tuple[Any, ...], values: Any) -> bool:
    return is_numbers(path, values) and path[0] not in _WRITTEN


def _is_metadata(path: tuple[Any, ...], value: Any) -> bool:
    if path == (_SPLITS,) and isinstance(value, list):
        return True
    return len(path) == 1 and path[0] != _ROWS and is_name(path[0]) and is_attribute(value)


def _is_card(path: tuple[Any, ...], value: Any) -> bool:
    plain = len(path) == 1 and path[0] != _TOTAL and is_name(path[0]) and is_attribute(value)
    return path == (_ENV_ARGS,) or plain


@export_format(
    "robomimic",
    extra=EXTRA,
    holds=Holds(
        card=_is_card,
        metadata=_is_metadata,
        own=_is_own,
        form="number of one shape",
        ends={"truncated": "cut", "interrupted": "cut"},
        both="terminated",
    ),
    observation_key=Option(
        "the name of observations that are one array; 'observation' by default", "observation"
    ),
)
def write_robomimic(export: Export, target: Path) -> None:
    """Write the file."""
    manifest = export.context.snapshot.manifest
    _check("observations", manifest.observation_space)
    refuse_vector_rewards(export.context, "robomimic")
    if not _is_array(manifest.action_space) or len(manifest.action_space.shape or ()) != 1:
        raise DatasetError(
            f"robomimic holds actions of shape (n,); the store has {manifest.action_space} actions."
        )
    masks: dict[str, list[str]] = {}
    total = count = 0
    with new_file(target, "robomimic") as file:
        data = file.create_group("data")
        for episode in export.episodes():
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
        observations = {export.options["observation_key"]: observations}
    for name, values in observations.items():
        demo[f"obs/{name}"] = values[:count]
        demo[f"next_obs/{name}"] = values[1 : count + 1]
    demo["actions"] = first_rows(episode.actions, count)
    demo["rewards"] = episode.rewards[:count]
    dones = np.zeros(count, np.int64)
    dones[-1] = count == episode.length and episode.terminated
    demo["dones"] = dones
    demo.attrs[_ROWS] = count
    extra = episode.extra
    if any(row is not None for _, part in flat(extra) for row in part[count:]):
        export.losses.add("the step columns of a last observation")
    rows = {
        key: stack(part) if isinstance(part, list) else part for key, part in first_rows(extra, count).items()
    }
    for name, values in flat(export.of_steps(OWN, rows)):
        demo[name] = number_array(values)
    for key, value in export.metadata(episode).items():
        if key == _SPLITS and isinstance(value, list):
            export.losses.add(f"metadata.{key}", len(value) - len(_splits(episode)))
        else:
            demo.attrs[key] = value


def _splits(episode: Episode) -> list[str]:
    found = episode.metadata.get(_SPLITS, [])
    texts = [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
    return list(filter(is_name, texts))


def _write_card(data: Any, export: Export) -> None:
    card = export.card
    spec = card.get(ENV_SPEC)
    if isinstance(spec, str) and _ENV_ARGS not in card:
        card = {**card, _ENV_ARGS: _env_args(spec)}
    for key, value in card.items():
        data.attrs[key] = value if key != _ENV_ARGS or isinstance(value, str) else json.dumps(value, indent=4)


def _env_args(spec: str) -> dict[str, Any]:
    """Return an environment of Gymnasium as robomimic describes it: https://robomimic.github.io/docs"""
    told = json.loads(spec) if spec.startswith("{") else {"id": spec}
    return {"env_name": told.get("id"), "type": _GYM, "env_kwargs": told.get("kwargs") or {}}


def _check(what: str, space: Space) -> None:
    parts = space.spaces if isinstance(space, spaces.Dict) else {"observation": space}
    if not (parts and all(map(is_name, parts)) and all(map(_is_array, parts.values()))):
        raise DatasetError(
            f"robomimic holds {what} that are an array each, or a Dict of arrays whose names have no '/'; "
            f"the store has {space}."
        )


def _is_array(space: Space) -> bool:
    return isinstance(space, spaces.Box) and bool(space.shape)
