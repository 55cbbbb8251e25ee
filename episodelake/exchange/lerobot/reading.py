"""LeRobot datasets v3.0, v2.1 and v2.0: a folder with `meta/info.json`, `data` and `videos`.

A row is a frame: an observation, the action that followed, and under `next.*` the outcome of that action.
There is no observation after the last action (`last_observation`), and often no reward: rewards are NaN then,
which no sum hides. The ends of episodes, by `lerobot.rl.buffer` of LeRobot 0.4.4:

- `next.truncated` at the last frame: truncated;
- `next.done` at the last frame without it: terminated, as LeRobot's own replay buffer takes it. A recorder
  may mean any end, so the losses count it unless `next.truncated` or `next.success` confirms it;
- neither, or the last transition is dropped: cut.

`export(format="lerobot")` adds `meta/episodelake.json` and columns `episodelake/*` of `meta/episodes`, with
the spaces, seeds, options and metadata that LeRobot has no place for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space

from ... import Video
from ...errors import DatasetError
from ...plugin import (
    ForeignDataset,
    ForeignEpisode,
    Format,
    ImportOptions,
    Match,
    Part,
    elements_of,
    map_leaves,
    space_from_json,
)
from ...plugin.files import exists, is_file, is_folder
from ...writers.importing.columns import (
    extra_names,
    image_frames,
    joined,
    nested,
    nested_space,
    plain_texts,
    read_json,
)
from ...writers.importing.episode_rows import completed, is_left
from ...writers.importing.formats import NO_REWARDS, SPACES, look_into_json
from ...writers.importing.hdf5 import as_flags
from .features import (
    ANNOTATION,
    LANGUAGE,
    dataset_card,
    depth_dtype,
    feature_space,
    frame_column,
    is_depth,
    is_numeric,
    kind_of,
    pixels_of,
    read_features,
    shape_of,
    shaped,
)
from .files import INFO, EpisodeEntry, Frames, Place, Rows, entries, is_v3, read_tasks
from .mapping import roles_of
from .step_labels import annotated
from .videos import OpenVideos, video_frames

OURS = "meta/episodelake.json"
_COUNTERS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_SUCCESS = "next.success"
#: Columns of `meta/episodes` that hold annotations of an export.
_LABEL = "annotations/"


def _detect(source: Any) -> Match:
    """Look for `meta/info.json`."""
    if not isinstance(source, str | Path) or not is_folder(Path(source)):
        return Match("it is not a folder", 2, related=False)
    file = Path(source) / INFO
    if not is_file(file):
        return Match(f"{file} is missing", 2, related=is_folder(Path(source) / "meta"))
    return look_into_json(file, "codebase_version")


def _open(source: Any, options: ImportOptions) -> ForeignDataset:
    """Open a dataset."""
    _detect(source).check(f"{source} is no LeRobot dataset")
    return _Dataset(Path(source), options)


class _Dataset(ForeignDataset):
    def __init__(self, folder: Path, options: ImportOptions) -> None:
        super().__init__()
        self._folder = folder
        self._info = info = read_json(folder / INFO)
        features = read_features(folder, info)
        self._stored = [name for name, feature in features.items() if feature["dtype"] != "video"]
        self._kind = cache(lambda name: kind_of(self._features[name]))
        self._options = options
        self._tasks = read_tasks(folder, info)
        self._rows, self._videos = Rows(folder, anywhere=is_v3(info)), OpenVideos()
        self._fps = float(info.get("fps") or 0)
        if self._fps <= 0:
            raise DatasetError(f"{folder / INFO}: fps={info.get('fps')!r}; expected a number above 0.")
        self.count = int(info["total_episodes"]) if "total_episodes" in info else None
        ours = read_json(folder / OURS) if exists(folder / OURS) else {}
        if options.mapping is not None:
            # Its spaces are those of other roles.
            ours = {key: value for key, value in ours.items() if key in ("card", "annotations")}
        self._roles = roles = roles_of(options.mapping, features, ours, folder / INFO)
        self._features = {**features, **roles.described}
        self._observations, self._actions = roles.observation, roles.action
        self.observation_space = options.observation_space or self._space(
            self._observations, ours, "observation"
        )
        self.action_space = options.action_space or self._space(self._actions, ours, "action")
        if roles.reward is not None and (shape := shape_of(features[roles.reward])) != (1,):
            self.reward_shape = shape
        self.card = dataset_card(folder, info, ours, self._tasks, self.losses)
        named = {
            ours: theirs for side in (self._observations, self._actions) for theirs, ours in side.items()
        }
        if options.mapping is not None:
            numbers = {
                ours: name for ours, name in named.items() if is_numeric(self._features[name]["dtype"])
            }
            names = {ours: self._features[name].get("names") for ours, name in numbers.items()}
            self.card["names"] = {ours: each for ours, each in names.items() if each}
        self.mapping = {
            **named,
            "reward": roles.reward or "NaN",
            "terminated": roles.terminated or "false",
            "truncated": roles.truncated or "false",
        }
        taken = {*_COUNTERS, *roles.features}
        self._columns = self._video_columns()
        self.encodings = {column: self._encoding(name) for name, column in self._columns.items()}
        free = [name for name in features if name not in taken]
        self._labels = {name: each for name, each in ours.get("annotations", {}).items() if name in free}
        others = [name for name in free if name not in self._labels]
        self._others = extra_names(others, "lerobot")
        self._others.update((name, each["name"]) for name, each in self._labels.items())
        self.mapping.update((ours, theirs) for theirs, ours in self._others.items())

    def _space(self, named: Mapping[str, str], ours: Mapping[str, Any], side: str) -> Space:
        if side in ours:
            return space_from_json(ours[side]["space"], OURS)
        return nested_space(
            {path: feature_space(name, self._features[name]) for name, path in named.items()}, side
        )

    def _video_columns(self) -> dict[str, str]:
        """Return the columns of the features that are video of colours, by feature."""
        features = {name: self._features.get(name, {}) for name in self._observations}
        columns = {
            name: frame_column(self.observation_space, self._observations[name])
            for name, feature in features.items()
            if feature.get("dtype") == "video" and not is_depth(feature)
        }
        return {name: column for name, column in columns.items() if column is not None}

    def _encoding(self, name: str) -> Video:
        """Return how frames are encoded that cannot be copied: with the codec of the feature's videos."""
        infos = [self._features[name].get(key) or {} for key in ("info", "video_info")]
        codec = next((each["video.codec"] for each in infos if "video.codec" in each), "h264")
        return Video(codec if codec in ("h264", "hevc", "av1") else "h264")

    def _entries(self) -> list[EpisodeEntry]:
        videos = [name for name, feature in self._features.items() if feature["dtype"] == "video"]
        return entries(self._folder, self._info, videos)

    def parts(self) -> Iterator[Part]:
        count = 0
        for entry in self._entries():
            count += 1
            if entry.length != 1 or is_left(1, self._options, self.losses):
                yield Part((str(entry.index),), partial(self._load, entry))
        if self.count is not None and count < self.count:
            yield Part((f"missing {count}",), partial(self._lack, count))

    def _lack(self, count: int) -> ForeignEpisode:
        """Refuse a dataset with fewer episodes than its metadata state."""
        raise DatasetError(
            f"{self._folder}: {INFO} counts {self.count} episodes; meta/episodes has {count}. A file is cut, "
            "or is missing: get a whole copy, or leave them out with on_error='skip' (--skip-errors)."
        )

    def close(self) -> None:
        self._rows.close()
        self._videos.close()

    def _load(self, entry: EpisodeEntry) -> ForeignEpisode:
        try:
            return self._read(entry)
        except DatasetError as error:
            raise DatasetError(f"Episode {entry.index} of {self._folder}: {error}") from error

    def _read(self, entry: EpisodeEntry) -> ForeignEpisode:
        place, frames = self._rows.read(entry)
        self._check(frames, place)
        times = frames.flat("timestamp")
        values = {
            name: self._column(frames, name, entry, times)
            for name in (*self._observations, *self._actions, *self._others)
        }
        values = {name: column for name, column in values.items() if column is not None}
        rewards = self._rewards(frames, entry)
        terminated, truncated = self._ends(frames, entry)
        own = {name: self._own_column(name, values[name]) for name in self._others if name in values}
        extra = {self._others[name]: column for name, column in own.items() if column is not None}
        metadata, seed, options = self._metadata(frames, entry, extra)
        expected = np.arange(entry.length) / self._fps
        if not (np.abs(times - expected) <= 1e-3 + 1e-5 * expected).all():
            extra["timestamp"] = times
        episode = ForeignEpisode(
            shaped(self.observation_space, joined(values, self._observations, "observation")),
            shaped(self.action_space, joined(values, self._actions, "action")),
            rewards,
            terminated,
            truncated,
            extra=map_leaves(plain_texts, nested(extra)) or None,
            metadata=metadata,
            seed=seed,
            options=options,
        )
        return completed(episode, self._options, self.losses)

    def _check(self, frames: Frames, place: Place) -> None:
        if missing := [name for name in self._stored if name not in frames.names]:
            raise DatasetError(f"{place.file} lacks the columns {', '.join(missing)}.")
        for name in sorted(frames.names - {*self._features}):
            self.losses.add(f"{name}, which {INFO} does not list", place.length)
        numbers = frames.flat("frame_index")
        wrong = np.flatnonzero(numbers != np.arange(place.length))
        if len(wrong):
            row = int(wrong[0])
            raise DatasetError(
                f"{place.file}, row {place.start + row}: frame_index is {numbers[row]}; expected {row}."
            )

    def _column(self, frames: Frames, name: str, entry: EpisodeEntry, times: np.ndarray) -> Any:
        """Return the values of a feature at every frame; None if there are none, or they cannot be held."""
        if name in self._roles.joined:
            parts = [self._column(frames, part, entry, times) for part in self._roles.joined[name]]
            return np.concatenate([part.reshape(entry.length, -1) for part in parts], 1)
        kind, shape = self._kind(name)
        if kind is None:
            self.losses.add(f"{name}, of a kind that is not read", entry.length)
            return None
        if kind == "video":
            feature = self._features[name]
            lost = "depths quantized to 12 bits in a video" if is_depth(feature) else "frames of lossy video"
            if self._columns.get(name) in self.encodings:
                copied = self._videos.copied(name, entry.videos[name], times, self._fps, shape)
                if copied is not None:
                    return copied
                lost = f"frames of {name} that cannot be copied, and are encoded again"
            self.losses.add(lost, entry.length)
            return video_frames(entry.videos[name], times, self._fps, pixels_of(feature))
        if kind == LANGUAGE:
            return _texts_of_language(frames.table[name].to_pylist())
        numbers = frames.numbers(name) if kind not in ("image", "string") else None
        if numbers is not None and numbers.shape[1] == math.prod(shape):
            return numbers.astype(kind, copy=False).reshape(entry.length, *shape)
        column = frames.table[name].combine_chunks()
        if column.null_count:
            raise DatasetError(f"{entry.data}: {name} has {column.null_count} NULLs in the episode.")
        if kind == "image":
            feature = self._features[name]
            dtype = depth_dtype(feature) if is_depth(feature) else np.uint8
            values, jpeg = image_frames(self._folder, name, column.to_pylist(), shape, dtype)
            self.losses.add("frames of lossy JPEG", jpeg)
            return values
        if kind == "string":
            return np.array(column.to_pylist(), object)
        flat, _ = elements_of(column)
        array = flat.to_numpy(zero_copy_only=False)
        if array.size != entry.length * math.prod(shape):
            raise DatasetError(
                f"{entry.data}: {name} has {array.size} values in {entry.length} frames; {INFO} gives "
                f"the shape {shape}."
            )
        return array.astype(kind, copy=False).reshape(entry.length, *shape)

    def _own_column(self, name: str, values: np.ndarray) -> np.ndarray | None:
        """Return a step column of its own: single numbers as (T,), and the texts of GR00T's annotations.

        Annotations of an export come back with their type; None if the episode has none.
        """
        if name in self._labels:
            return annotated(self._labels[name]["dtype"], values)
        values = values[:, 0] if values.shape[1:] == (1,) else values
        if not name.startswith(ANNOTATION) or values.ndim != 1 or values.dtype.kind not in "iu":
            return values
        texts = [self._tasks.get(int(index)) for index in values]
        return values if None in texts else np.array(texts, object)

    def _rewards(self, frames: Frames, entry: EpisodeEntry) -> np.ndarray:
        if self._roles.reward is not None:
            rewards = self._column(frames, self._roles.reward, entry, np.empty(0))
            return rewards.reshape(entry.length, *self.reward_shape).astype(np.float64)
        self.losses.add(NO_REWARDS, entry.length)
        return np.full(entry.length, np.nan)

    def _ends(self, frames: Frames, entry: EpisodeEntry) -> tuple[bool, bool]:
        ends = (self._roles.terminated, self._roles.truncated)
        flags = {
            name: as_flags(self._column(frames, name, entry, np.empty(0)).reshape(entry.length), name)
            for name in (*ends, _SUCCESS)
            if name in self._features
        }
        for name in ends:
            if name in flags:
                self.losses.add(f"{name} before the last frame of an episode", int(flags[name][:-1].sum()))
        done, truncated, success = (bool(name in flags and flags[name][-1]) for name in (*ends, _SUCCESS))
        terminated = done and not truncated
        if terminated and not success and ends[1] not in flags and self._options.last_observation != "drop":
            self.losses.add(f"whether {ends[0]} means terminated or truncated: taken as terminated")
        return terminated, truncated

    def _metadata(
        self, frames: Frames, entry: EpisodeEntry, extra: dict[str, Any]
    ) -> tuple[dict[str, Any], int | None, dict[str, Any] | None]:
        """Return metadata, seed and options; tasks that change go to `extra`."""
        ours = {name: entry.metadata.get(f"episodelake/{name}") for name in ("metadata", "seed", "options")}
        metadata = {
            name: value for name, value in entry.metadata.items() if not name.startswith("episodelake/")
        }
        indices = frames.flat("task_index") if "task_index" in frames.names else np.empty(0, int)
        tasks = {self._tasks.get(int(index), "") for index in {*indices.tolist()}}
        if len(tasks) == 1 and any(tasks):
            (metadata["task"],) = tasks
            if metadata.get("tasks") == [*tasks]:
                del metadata["tasks"]
        elif any(tasks):
            extra["task"] = np.array([self._tasks.get(int(index), "") for index in indices], object)
        if ours["metadata"] is not None:
            labels = {name: value for name, value in metadata.items() if name.startswith(_LABEL)}
            metadata = json.loads(ours["metadata"])
            for name, value in labels.items():
                if value is not None:
                    metadata.setdefault(name.removeprefix(_LABEL), value)
        options = None if ours["options"] is None else json.loads(ours["options"])
        return metadata, None if ours["seed"] is None else int(ours["seed"]), options


def _texts_of_language(rows: list[Any]) -> np.ndarray | None:
    """Return the messages of each row as JSON; None for a row without any, and if there are none at all."""
    texts = [json.dumps(row, ensure_ascii=False) if row else None for row in rows]
    return np.array(texts, object) if any(texts) else None


FORMAT = Format(
    "lerobot",
    "'episodelake[explore]'",
    f"a folder whose {INFO} has a codebase_version",
    _detect,
    _open,
    ("mapping", *SPACES),
)
