"""RLDS datasets as TFDS stores them: `dataset_info.json`, `features.json` and TFRecord files.

A step is an observation, the action that followed and its reward. By the RLDS specification the last step
(`is_last`) has an observation only: T+1 steps are T transitions. `is_terminal` there means terminated, else
the episode was truncated; an episode whose last step is not `is_last` was cut. Many Open X datasets end with
a transition instead, without the observation after it (`last_observation`). `last_step="auto"` decides once
for the dataset: last steps are observations alone if the action and the reward of each of the first 32 are
zero, as the specification has them; then each counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from gymnasium import Space

from ...errors import DatasetError, EpisodelakeError
from ...plugin import ForeignDataset, ForeignEpisode, Format, ImportOptions, Match, Part, inside, map_leaves
from ...plugin.files import is_file, is_folder
from ...writers.importing.columns import (
    array_space,
    extra_names,
    image_frames,
    joined,
    nested,
    nested_space,
    plain_texts,
    read_json,
)
from ...writers.importing.episode_rows import NO_TRANSITION, UNUSED, completed, is_left
from ...writers.importing.formats import NO_REWARDS, SPACES
from ...writers.importing.hdf5 import as_flags
from .exported import FACTS, Exported, exported_episode, read_exported
from .tfrecord import read_example, read_record, record_offsets

_INFO, _FEATURES = "dataset_info.json", "features.json"
_FLAGS = ("is_first", "is_last", "is_terminal")
#: How many episodes decide whether last steps are observations alone.
_DECIDING = 32


@dataclass(frozen=True)
class _Leaf:
    """A feature: of kind "image", "text" or a dtype; `shape` is that of one value."""

    kind: str
    shape: tuple[int, ...] = ()
    encoding: str = "none"

    @cached_property
    def readable(self) -> bool:
        return self.kind != "?" and all(size >= 0 for size in self.shape)

    @property
    def space(self) -> Space:
        return array_space(np.dtype("uint8" if self.kind == "image" else self.kind), self.shape)


def _detect(source: Any) -> Match:
    """Look for the two files."""
    if not isinstance(source, str | Path) or not is_folder(Path(source)):
        return Match("it is not a folder", 3, related=False)
    lacking = [name for name in (_FEATURES, _INFO) if not is_file(Path(source) / name)]
    if lacking:
        why = f"{', '.join(lacking)} missing; give the folder of the version, such as NAME/1.0.0"
        return Match(why, len(lacking), related=len(lacking) == 1)
    try:
        steps = "steps" in json.loads((Path(source) / _FEATURES).read_bytes())["featuresDict"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return Match(f"{_FEATURES} is not that of a TFDS dataset", 1)
    return Match(f"{_FEATURES} has steps") if steps else Match(f"{_FEATURES} has no steps", 1)


def _open(source: Any, options: ImportOptions) -> ForeignDataset:
    """Open a dataset."""
    _detect(source).check(f"{source} is no RLDS dataset")
    return _Dataset(Path(source), options)


class _Dataset(ForeignDataset):
    def __init__(self, folder: Path, options: ImportOptions) -> None:
        super().__init__()
        self._folder = folder
        self._info = read_json(folder / _INFO)
        if self._info.get("fileFormat", "tfrecord") != "tfrecord":
            raise DatasetError(
                f"{folder / _INFO}: fileFormat is {self._info['fileFormat']!r}; only tfrecord can be read."
            )
        leaves = dict(_leaves(read_json(folder / _FEATURES), ""))
        self._steps = {
            name.removeprefix("steps/"): leaf for name, leaf in leaves.items() if name.startswith("steps/")
        }
        self._metadata = {name: leaf for name, leaf in leaves.items() if not name.startswith("steps/")}
        self._options = options
        # The file of records that was read last.
        self._shard: tuple[Path, IO[bytes]] | None = None
        self._ours = read_exported(folder)
        named = (self._info.get(key) for key in ("name", "configName", "version"))
        name = "/".join(str(part) for part in named if part)
        splits = self._info.get("splits") or []
        self.count = sum(int(length) for split in splits for length in split.get("shardLengths", []))
        if self._ours is None:
            self._find_columns(options, name)
        else:
            self._take_ours(self._ours, options)

    def _take_ours(self, ours: Exported, options: ImportOptions) -> None:
        if FACTS not in self._metadata:
            raise DatasetError(f"{self._folder / _FEATURES} has no {FACTS}, which our export writes.")
        self.observation_space = options.observation_space or ours.observation_space
        self.action_space = options.action_space or ours.action_space
        self.reward_shape, self.card = ours.reward_shape, ours.card
        self._ours = replace(ours, observation_space=self.observation_space, action_space=self.action_space)
        self.mapping = {name: name for name in ("observation", "action", "reward")}
        self.mapping |= {"terminated": "is_terminal", "truncated": "is_last and not is_terminal"}

    def _find_columns(self, options: ImportOptions, name: str) -> None:
        self._observations, self._actions = self._side("observation"), self._side("action")
        taken = {*self._observations, *self._actions, *_FLAGS, "reward"}
        others = [name for name in self._steps if name not in taken]
        columns = extra_names([_dotted(each) for each in others], "rlds")
        self._others = dict(zip(others, columns.values(), strict=True))
        self.observation_space = options.observation_space or self._space(self._observations, "observation")
        self.action_space = options.action_space or self._space(self._actions, "action")
        stated = {"title": name, **{key: self._info.get(key) for key in ("description", "citation")}}
        self.card = {key: value for key, value in stated.items() if value}
        self.mapping = {
            **{ours: theirs for theirs, ours in (self._observations | self._actions | self._others).items()},
            "reward": "reward" if "reward" in self._steps else "NaN",
            "terminated": "is_terminal",
            "truncated": "is_last and not is_terminal",
        }

    def _side(self, side: str) -> dict[str, str]:
        """Return the features of observations or actions, with the names of our columns."""
        parts = {
            name: _dotted(name)
            for name, leaf in self._steps.items()
            if (name == side or name.startswith(f"{side}/")) and leaf.kind != "text" and leaf.readable
        }
        if not parts:
            raise DatasetError(
                f"{self._folder / _FEATURES}: steps have no {side} of numbers or images; they have "
                f"{', '.join(self._steps)}."
            )
        return parts

    def _space(self, named: Mapping[str, str], side: str) -> Space:
        return nested_space({path: self._steps[name].space for name, path in named.items()}, side)

    def _records(self) -> Iterator[tuple[str, Path, int]]:
        """Yield the key and the place of each record."""
        for split in self._info.get("splits") or []:
            number = 0
            for file in self._shards(split):
                for offset in record_offsets(file):
                    yield f"{split['name']}/{number}", file, offset
                    number += 1

    def parts(self) -> Iterator[Part]:
        for key, file, offset in self._records():
            yield Part((key,), partial(self._load, file, offset, key))

    def _shards(self, split: Mapping[str, Any]) -> Iterator[Path]:
        count = len(split.get("shardLengths") or [])
        pattern = split.get("filepathTemplate") or "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
        for index in range(count):
            given = {
                "DATASET": self._info.get("name"),
                "SPLIT": split["name"],
                "FILEFORMAT": "tfrecord",
                "SHARD_X_OF_Y": f"{index:05d}-of-{count:05d}",
                "SHARD_INDEX": f"{index:05d}",
                "NUM_SHARDS": f"{count:05d}",
            }
            name = str(pattern)
            for key, value in given.items():
                name = name.replace(f"{{{key}}}", str(value))
            yield inside(self._folder, name)

    def _example(self, file: Path, offset: int) -> dict[str, Any]:
        if self._shard is None or self._shard[0] != file:
            self.close()
            self._shard = file, file.open("rb")
        return read_example(read_record(self._shard[1], offset))

    def close(self) -> None:
        if self._shard is not None:
            self._shard[1].close()
            self._shard = None

    def _load(self, file: Path, offset: int, key: str) -> ForeignEpisode | None:
        try:
            return self._read(self._example(file, offset), key)
        except EpisodelakeError as error:
            error.add_note(f"Episode {key} of {self._folder}.")
            raise

    def _read(self, example: Mapping[str, Any], key: str) -> ForeignEpisode | None:
        length = len(example.get("steps/is_last", example.get("steps/is_first", ())))
        if not length:
            raise DatasetError("The episode has no steps with is_first and is_last.")
        columns = {
            name: self._values(example, f"steps/{name}", leaf, length) for name, leaf in self._steps.items()
        }
        values = {name: value for name, value in columns.items() if value is not None}
        last, terminal = (
            as_flags(np.asarray(values.get(flag, np.zeros(length, bool))), f"{key}: {flag}")
            for flag in ("is_last", "is_terminal")
        )
        if (early := np.flatnonzero((last | terminal)[:-1])).size:
            raise DatasetError(f"is_last or is_terminal is set at step {early[0]} of {length}.")
        ends = bool(terminal[-1]), bool(last[-1] and not terminal[-1])
        if self._ours is not None:
            (facts,) = self._values(example, FACTS, self._metadata[FACTS], 1)
            return exported_episode(values, facts, ends, self._ours)
        actions = joined(values, self._actions, "action")
        rewards = values.get("reward")
        if rewards is None:
            self.losses.add(NO_REWARDS, length)
            rewards = np.full(length, np.nan)
        metadata = self._episode_metadata(example, key)
        extra = self._extra(values, metadata)
        rows = {"seen": joined(values, self._observations, "observation"), "extra": nested(extra)}
        return self._settled(rows, actions, rewards.astype(np.float64), ends, metadata)

    def _settled(
        self,
        rows: dict[str, Any],
        actions: Any,
        rewards: np.ndarray,
        ends: tuple[bool, bool],
        metadata: dict[str, Any],
    ) -> ForeignEpisode | None:
        """Return the episode after what its last step is has been decided; None if no transition is left.

        Args:
            rows: "seen" and "extra", values at every step, as the actions and rewards are.
            ends: whether it was terminated, and truncated.
        """
        extra = map_leaves(plain_texts, rows["extra"]) or None
        episode = ForeignEpisode(rows["seen"], actions, rewards, *ends, extra=extra, metadata=metadata)
        if not self._ends_with_observation:
            if not is_left(len(rewards), self._options, self.losses):
                return None
            return completed(episode, self._options, self.losses)
        if len(rewards) == 1:
            self.losses.add(NO_TRANSITION)
            return None
        if not _is_padding(actions, rewards):
            self.losses.add(UNUSED)
        elif self._options.last_step == "auto":
            self.losses.add("the action of a last step, which is zero: taken as an observation alone")
        return replace(episode, actions=map_leaves(lambda each: each[:-1], actions), rewards=rewards[:-1])

    @cached_property
    def _ends_with_observation(self) -> bool:
        """Whether the last step of each episode is an observation alone; one answer for the dataset."""
        if self._options.last_step != "auto":
            return self._options.last_step == "observation"
        names = [*self._actions, *(["reward"] if "reward" in self._steps else [])]
        for _, file, offset in islice(self._records(), _DECIDING):
            with suppress(DatasetError):  # damaged: an error names it once it is read
                example = self._example(file, offset)
                length = len(example.get("steps/is_last", example.get("steps/is_first", ())))
                lasts = {
                    name: self._values(example, f"steps/{name}", self._steps[name], length) for name in names
                }
                actions = joined(lasts, self._actions, "action")
                if length and not _is_padding(actions, lasts.get("reward")):
                    return False
        return True

    def _extra(self, values: Mapping[str, Any], metadata: dict[str, Any]) -> dict[str, Any]:
        """Return step columns; texts that are the same at every step go to the metadata."""
        extra = {}
        for name, column in self._others.items():
            if name not in values:
                continue
            part = values[name]
            if part.dtype == object and len(set(part)) == 1:
                metadata.setdefault(name.rpartition("/")[2], part[0])
            else:
                extra[column] = part
        return extra

    def _episode_metadata(self, example: Mapping[str, Any], key: str) -> dict[str, Any]:
        metadata: dict[str, Any] = {"split": key.rpartition("/")[0]}
        for name, leaf in self._metadata.items():
            single = self._values(example, name, leaf, 1)
            if single is not None and leaf.kind != "image":
                value = single.tolist()[0]
                metadata[_dotted(name.removeprefix("episode_metadata/"))] = value
        return nested(metadata)

    def _values(self, example: Mapping[str, Any], name: str, leaf: _Leaf, length: int) -> Any:
        """Return the values of a feature, one for each step; None, and a loss, if they cannot be held."""
        if not leaf.readable:
            self.losses.add(f"{name}, of a kind that is not read", length)
            return None
        stored = example.get(name)
        if stored is None:
            raise DatasetError(f"A record has no feature {name}.")
        if leaf.kind == "image":
            frames, jpeg = image_frames(self._folder, name, _counted(stored, name, length), leaf.shape)
            self.losses.add("frames of lossy JPEG", jpeg)
            return frames
        if leaf.kind == "text":
            return np.array(
                [item.decode(errors="replace") for item in _counted(stored, name, length)], object
            )
        if isinstance(stored, list) or stored.dtype.kind == "V":
            if leaf.encoding != "bytes":
                self.losses.add(f"{name}, of a kind that is not read", length)
                return None
            joined = b"".join(stored) if isinstance(stored, list) else stored.tobytes()
            stored = np.frombuffer(joined, leaf.kind)
        size = math.prod(leaf.shape)
        if stored.size != size * length:
            raise DatasetError(
                f"{name} has {stored.size} values; expected {size * length} in {length} steps."
            )
        return stored.astype(leaf.kind, copy=False).reshape(length, *leaf.shape)


def _is_padding(actions: Any, rewards: np.ndarray | None) -> bool:
    """Return whether the last action and the last reward, if there are any, are zero."""
    last = [rewards is not None and bool(np.nan_to_num(rewards[-1]).any())]
    map_leaves(lambda each: last.append(each is not None and bool(np.any(each[-1]))), actions)
    return not any(last)


def _counted(items: Any, name: str, length: int) -> list[bytes]:
    if isinstance(items, np.ndarray) and items.dtype.kind == "V":
        items = items.tolist()
    if not isinstance(items, list) or len(items) != length:
        raise DatasetError(f"{name} has {len(items)} values; expected {length}, one for each step.")
    return items


def _leaves(node: Any, path: str) -> Iterator[tuple[str, _Leaf]]:
    """Yield the features of `features.json` by their names in records."""
    if "featuresDict" in node:
        for name, part in node["featuresDict"]["features"].items():
            yield from _leaves(part, f"{path}/{name}" if path else name)
    elif path == "steps" and "sequence" in node:
        yield from _leaves(node["sequence"]["feature"], path)
    elif "image" in node:
        yield path, _Leaf("image", _shape(node["image"]))
    elif "text" in node:
        yield path, _Leaf("text")
    elif "classLabel" in node:
        yield path, _Leaf("int64")
    elif "tensor" in node:
        tensor = node["tensor"]
        kind = tensor.get("dtype", "?")
        if kind in ("string", "object") and not _shape(tensor):
            yield path, _Leaf("text")
        else:
            known = kind in np.sctypeDict and np.dtype(kind).kind in "biuf"
            yield path, _Leaf(kind if known else "?", _shape(tensor), tensor.get("encoding", "none"))
    else:
        yield path, _Leaf("?")


def _shape(node: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(size) for size in node.get("shape", {}).get("dimensions", ()))


def _dotted(name: str) -> str:
    return name.replace(".", "_").replace("/", ".")


FORMAT = Format(
    "rlds",
    "'episodelake[explore]'",
    f"a folder with {_FEATURES}, which has steps, and {_INFO}",
    _detect,
    _open,
    ("last_step", *SPACES),
)
