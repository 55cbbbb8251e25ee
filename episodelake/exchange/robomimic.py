"""robomimic datasets: an HDF5 file with a group `data/demo_N` for each episode.

The last observation is the last row of `next_obs`; where a file has none it is missing. The learners of
robomimic treat `dones` as terminals: an episode whose last row is done is terminated, and any other is cut.
Its scripts can also set `dones` before the last row, while a task stays solved; these are reported as lost.
Rewards are never invented: files of bare demonstrations, without `rewards` or `obs`, are refused.

Arrays beside these, such as `states`, become step columns. The masks that name an episode are in its metadata
`splits`, beside its attributes, and `env_args` goes to the card.

An export is a file for `SequenceDataset`. `dones` is set in the last row of an episode that terminated. Step
columns of your own become arrays, the metadata `splits` masks, other metadata attributes, and `env_args` of
the card those of the data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from ..readers.episode import Episode
from ..readers.episode_data import stack
from ..readers.exporting.hdf5 import first_rows, flat, is_attribute, is_name, is_numbers, new_file
from ..readers.exporting.holds import Holds
from ..readers.exporting.step_arrays import number_array, refuse_vector_rewards
from ..readers.exporting.target import ENV_SPEC, Export, Option, export_format
from ..store.common.optional_packages import HDF5
from ..store.dynamic.column_groups import EXTRA as OWN
from ..store.errors import DatasetError
from ..store.spaces.codec import slice_batch
from ..writers.importing.boundary import reading
from ..writers.importing.columns import nested
from ..writers.importing.episode_rows import completed, count_differing, is_left, with_last
from ..writers.importing.formats import ForeignEpisode, Format, ImportOptions, Match, Part
from ..writers.importing.hdf5 import (
    Hdf5Dataset,
    as_flags,
    box_of,
    check_lengths,
    leaves,
    looked_into,
    missing_names,
    plain,
    space_of,
    whole,
)

_ARRAYS = ("obs", "actions", "rewards")
_HINT = "robomimic's dataset_states_to_obs.py adds observations and rewards to demonstrations."
_EARLY = "dones before the last row"


def _look(file: Any) -> Match:
    if not hasattr(file.get("data"), "items"):
        return Match("it has no group data", 2)
    count = sum(name.startswith("demo_") for name in file["data"])
    return Match(f"it has {count} groups data/demo_N") if count else Match("its group data has no demo_N", 1)


class _Dataset(Hdf5Dataset):
    def __init__(self, source: Any, options: ImportOptions) -> None:
        super().__init__(source, "robomimic")
        self._options = options
        _look(self.file).check(f"{self.path} is no robomimic file")
        self._data = self.file["data"]
        with reading(self.path):
            self._demos = sorted((name for name in self._data if name.startswith("demo_")), key=_number)
            first = self._demo(self._demos[0])
            self.observation_space = options.observation_space or space_of(first["obs"], "observation_space")
            self.action_space = options.action_space or box_of(first["actions"], "action_space")
            self._splits = self._read_masks()
            self.card = _card(self._data.attrs)
        self.count = len(self._demos)
        self.mapping = {
            "observation": "obs",
            "action": "actions",
            "reward": "rewards",
            "terminated": "dones",
            "metadata.splits": "mask",
        }

    def parts(self) -> Iterator[Part]:
        for name in self._demos:
            demo = self._data[name]
            # Without rewards, loading it raises.
            if (
                missing_names(demo, "rewards")
                or "next_obs" in demo
                or is_left(len(demo["rewards"]), self._options, self.losses)
            ):
                yield Part((name,), partial(self._load, name))

    def _demo(self, name: str) -> Any:
        demo = self._data[name]
        lacking = missing_names(demo, *_ARRAYS)
        if lacking:
            raise DatasetError(f"{self.path}: {name} has no {', '.join(lacking)}. {_HINT}")
        return demo

    def _load(self, name: str) -> ForeignEpisode:
        place = f"{self.path}: {name}"
        demo = self._demo(name)
        with reading(place):
            arrays = leaves(demo)
            total = check_lengths(place, {path: arrays[path] for path in sorted(arrays, key=_order)})
            values = nested({path: whole(array, f"{place}: {path}") for path, array in arrays.items()}, "/")
        claimed = demo.attrs.get("num_samples", total)
        if int(claimed) != total:
            raise DatasetError(f"{place} has {total} rows; its num_samples is {claimed}.")
        observations, following = values.pop("obs"), values.pop("next_obs", None)
        observations = self._chosen(observations, f"{place}: obs")
        done = as_flags(values.pop("dones", np.zeros(total)), f"{place}: dones")
        self.losses.add(_EARLY, int(done[:-1].sum()))
        episode = ForeignEpisode(
            observations,
            values.pop("actions"),
            values.pop("rewards"),
            bool(done[-1]),
            False,
            extra=values or None,
            metadata=self._metadata(name, demo),
        )
        if following is None:
            return completed(episode, self._options, self.losses)
        following = self._chosen(following, f"{place}: next_obs")
        with reading(f"{place}: next_obs"):
            count_differing(following, observations, self.losses)
            return with_last(episode, slice_batch(following, total - 1, total))

    def _chosen(self, values: Mapping[str, Any], place: str) -> Any:
        """Return the observations of the space, which may be fewer than those of the file."""
        space = self.observation_space
        if isinstance(space, spaces.Dict):
            names = list(space.spaces)
        elif len(values) == 1:
            return next(iter(values.values()))
        else:
            raise DatasetError(f"{place} has {', '.join(values)}; the observation space is {space}.")
        lacking = missing_names(values, *names)
        if lacking:
            raise DatasetError(f"{place} has no {', '.join(lacking)}; it has {', '.join(values)}.")
        for name in sorted(set(values) - set(names)):
            self.losses.add(f"obs/{name}, which the observation space does not have")
        return {name: values[name] for name in names}

    def _metadata(self, name: str, demo: Any) -> dict[str, Any]:
        attributes = {key: plain(value) for key, value in demo.attrs.items() if key != "num_samples"}
        splits = [split for split, demos in self._splits.items() if name in demos]
        return attributes | ({"splits": splits} if splits else {})

    def _read_masks(self) -> dict[str, set[str]]:
        masks = leaves(self.file["mask"]) if "mask" in self.file else {}
        demos_of = {split: set(map(plain, array[()])) for split, array in masks.items()}
        for split, demos in demos_of.items():
            self.losses.add(f"episodes of mask/{split} that the file lacks", len(demos - set(self._demos)))
        return demos_of


def _number(name: str) -> tuple[int, str]:
    digits = name.removeprefix("demo_")
    return (int(digits), "") if digits.isdigit() else (-1, name)


def _order(path: str) -> bool:
    return path != "rewards"


def _card(attributes: Mapping[str, Any]) -> dict[str, Any]:
    card = {key: plain(value) for key, value in attributes.items() if key != "total"}
    try:
        return card | {"env_args": json.loads(card["env_args"])}
    except (KeyError, ValueError, TypeError):
        return card


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
    extra=HDF5,
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


FORMAT = Format(
    "robomimic", HDF5, "an HDF5 file with groups data/demo_N", partial(looked_into, look=_look), _Dataset
)
