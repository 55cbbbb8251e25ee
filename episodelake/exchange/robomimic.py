"""robomimic datasets: an HDF5 file with a group `data/demo_N` for each episode, or a folder of such files.

MimicGen, RoboCasa, LIBERO and Isaac Lab write the same layout. The last observation is the last row of
`next_obs`; where a file has none it is missing. The learners of robomimic treat `dones` as terminals: an
episode whose last row is done is terminated, and any other is cut. Its scripts can also set `dones` before
the last row, while a task stays solved; these are reported as lost. Rewards that a file lacks are NaN; files
of bare demonstrations, without `obs`, are refused.

Arrays beside these, such as `states`, become step columns, and those of another length are lost, but for
`initial_state` of Isaac Lab and `src_demo_inds` of MimicGen, which are metadata. The masks that name an
episode are in its metadata `splits`, beside its attributes, and `env_args` goes to the card. In a folder, as
of a LIBERO suite, attributes that differ between files are metadata of the episodes.

An export is a file for `SequenceDataset`. `dones` is set in the last row of an episode that terminated. Step
columns of your own become arrays, the metadata `splits` masks, other metadata attributes, and `env_args` of
the card those of the data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from .. import Episode
from ..errors import DatasetError
from ..plugin import (
    Export,
    GroupedTree,
    Holds,
    Match,
    Option,
    TreeLayout,
    export_format,
    stack,
    tree_format,
)
from ..plugin.columns import EXTRA as OWN
from ..readers.exporting.hdf5 import (
    episodes_into,
    first_rows,
    flat,
    is_attribute,
    is_name,
    is_numbers,
    new_file,
)
from ..readers.exporting.step_arrays import number_array
from ..readers.exporting.target import ENV_SPEC
from ..writers.importing.hdf5 import leaves, member, members, plain

#: Isaac Lab writes `initial_state`, MimicGen the demonstrations after each subtask.
_LAYOUT = TreeLayout(
    episode="data/demo_*",
    observation="obs",
    action="actions",
    following="next_obs",
    reward="rewards",
    terminated="dones",
    metadata={name: name for name in ("initial_state", "src_demo_inds")},
    counted="num_samples",
    hint="robomimic's dataset_states_to_obs.py adds observations to demonstrations.",
)


def _look(file: Any) -> Match:
    if not hasattr(member(file, "data"), "items"):
        return Match("it has no group data", 2)
    count = sum(name.startswith("demo_") for name in file["data"])
    return Match(f"it has {count} groups data/demo_N") if count else Match("its group data has no demo_N", 1)


class _Dataset(GroupedTree):
    own_name = "robomimic"

    def card_of(self) -> dict[str, Any]:
        """Return the attributes of the data; read the masks."""
        self._splits = self._read_masks()
        card = _card(members(self.file["data"].attrs))
        # LIBERO's number of the groups, which is not that of all files of a folder.
        if card.get(_COUNT) == len(self.groups):
            del card[_COUNT]
        return card

    def facts_of(self, name: str, group: Any) -> dict[str, Any]:
        """Return the attributes of a demonstration, and the masks that name it."""
        splits = [split for split, demos in self._splits.items() if name in demos]
        return super().facts_of(name, group) | ({"splits": splits} if splits else {})

    def chosen(self, values: Any, space: Space, place: str) -> Any:
        """Return the observations of the space; of a single array those of the only name.

        An export gives observations that are one array a name, which the space of its store takes back.
        """
        if isinstance(values, Mapping) and len(values) == 1 and isinstance(space, spaces.Box):
            (values,) = values.values()
        return super().chosen(values, space, place)

    def _read_masks(self) -> dict[str, set[str]]:
        masks = leaves(self.file["mask"]) if "mask" in self.file else {}
        demos_of = {split: set(map(plain, array[()])) for split, array in masks.items()}
        for split, demos in demos_of.items():
            self.losses.add(f"episodes of mask/{split} that the file lacks", len(demos - set(self.groups)))
        return demos_of


#: Returns the episodes of an open HDF5 file, as `tree_format` calls it.
open_demonstrations = partial(_Dataset, layout=_LAYOUT)


def _card(attributes: Mapping[str, Any]) -> dict[str, Any]:
    card = {key: plain(value) for key, value in attributes.items() if key != "total"}
    try:
        return card | {"env_args": json.loads(card["env_args"])}
    except (KeyError, ValueError, TypeError):
        return card


_COUNT = "num_demos"
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
    extra="'episodelake[hdf5]'",
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
    export.refuse_vector_rewards("robomimic")
    if not _is_array(manifest.action_space) or len(manifest.action_space.shape or ()) != 1:
        raise DatasetError(
            f"robomimic holds actions of shape (n,); the store has {manifest.action_space} actions."
        )
    if not isinstance(manifest.observation_space, spaces.Dict):
        export.losses.add("spaces: observations of one array come back as a Dict with a key for it")
    masks: dict[str, list[str]] = {}
    total = count = 0
    with new_file(target, "robomimic") as file:
        data = file.create_group("data")
        for episode in episodes_into(file, export):
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
    splits = episode.metadata.get(_SPLITS, [])
    texts = [each for each in splits if isinstance(each, str)] if isinstance(splits, list) else []
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
    environment = json.loads(spec) if spec.startswith("{") else {"id": spec}
    return {"env_name": environment.get("id"), "type": _GYM, "env_kwargs": environment.get("kwargs") or {}}


def _check(what: str, space: Space) -> None:
    parts = space.spaces if isinstance(space, spaces.Dict) else {"observation": space}
    if not (parts and all(map(is_name, parts)) and all(map(_is_array, parts.values()))):
        raise DatasetError(
            f"robomimic holds {what} that are an array each, or a Dict of arrays whose names have no '/'; "
            f"the store has {space}."
        )


def _is_array(space: Space) -> bool:
    return isinstance(space, spaces.Box) and bool(space.shape)


FORMAT = tree_format(
    "robomimic",
    ["hdf5"],
    "'episodelake[hdf5]'",
    "HDF5 files with groups data/demo_N, one or a folder",
    _look,
    open_demonstrations,
)
