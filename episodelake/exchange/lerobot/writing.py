"""LeRobot datasets v3.0: Parquet rows, frames as MP4 or PNG, tasks, statistics and rows of `meta/episodes`.

A row is a transition, so the last observation of an episode is lost. `next.done` is set where an episode was
terminated or truncated, `next.truncated` where it was truncated; one that was cut has neither. What LeRobot
has no place for, and ignores, is in `meta/episodelake.json` and columns `episodelake/*` of `meta/episodes`.
Annotations of episodes are columns `annotations/*` there; those of steps are features of frames.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from gymnasium import Space, spaces

from ... import Episode, Video
from ...errors import DatasetError
from ...plugin import (
    Export,
    Holds,
    Option,
    export_format,
    one_of,
    positive_number,
    slice_batch,
    space_to_json,
)
from ...plugin.columns import EXTRA
from ...readers.exporting.capabilities import int64, nothing
from ...readers.exporting.shards import array_column, image_files, is_image
from .features import column_of
from .step_labels import StepLabels
from .written_files import (
    DATA_MB,
    DATA_PATH,
    EPISODES_PATH,
    FILES_IN_CHUNK,
    VIDEO_MB,
    VIDEO_PATH,
    ParquetFiles,
    Statistics,
    VideoFiles,
    place_of,
    write_tasks,
)

_TASK = "task"
_BATCH = 1000
#: Frames of a copied video that statistics are of, at most.
_SAMPLED = 100
_NUMBERS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def _is_task(path: tuple[Any, ...], values: Any) -> bool:
    return path == (_TASK,) and isinstance(values, list) and all(isinstance(text, str) for text in values)


def _is_json(path: tuple[Any, ...], value: Any) -> bool:
    """Return whether JSON gives a value back as it is."""
    if isinstance(value, Mapping):
        return not value
    if isinstance(value, list):
        return all(_is_json(path, part) for part in value)
    return all(isinstance(key, str) for key in path) and isinstance(value, str | int | float | None)


_FPS = partial(positive_number, most=1000)


@export_format(
    "lerobot",
    extra="'episodelake[explore]'",
    folder=True,
    holds=Holds.all_but(
        seed=int64,
        options=_is_json,
        metadata=_is_json,
        info=nothing,
        policy=nothing,
        own=_is_task,
        form="text of a task",
        annotations=True,
        labels="metadata",
        last_observation="lost",
        both="truncated",
    ),
    frames=Option(
        "copy, which keeps encoded frames as they are; video, which encodes; or image. By default copy where "
        "all cameras are encoded by a codec, else video",
        check=lambda name, value: one_of(name, value, ("copy", "video", "image")),
    ),
    fps=Option("frames per second; that of the card by default, or 30", check=_FPS),
    task=Option("the text of the task of episodes whose metadata have no task", ""),
    robot_type=Option("that of the card by default"),
)
def write_lerobot(export: Export, target: Path) -> None:
    """Write the folder of a dataset."""
    if "fps" in export.differing and not export.options["fps"]:
        raise DatasetError(
            "The episodes have several frame rates, and a dataset of LeRobot has one. Export those of one "
            "rate, as store.filter('run.fps = 30').export(...), or pass fps= (--option fps=30)."
        )
    fps = export.options["fps"] or _FPS("fps", export.card.get("fps", 30))
    # PyAV refuses a whole number of frames as a float.
    fps = int(fps) if fps == int(fps) else fps
    _Dataset(export, target, fps).write()


class _Dataset:
    def __init__(self, export: Export, target: Path, fps: float) -> None:
        manifest = export.context.snapshot.manifest
        self._export = export
        self._target = target
        self._fps = fps
        self._robot_type = export.options["robot_type"] or export.card.get("robot_type")
        # Options count more than the card, in an import as well.
        asked = {"fps": fps, "robot_type": self._robot_type}
        self._stated = {name: asked[name] for name in asked if export.options[name] is not None}
        self._sides = {
            "observation": dict(_leaves(manifest.observation_space, "observation")),
            "action": dict(_leaves(manifest.action_space, "action")),
        }
        self._columns = {
            name: column_of(manifest.observation_space, path)[0]
            for name, (path, _) in self._sides["observation"].items()
        }
        chosen = export.options["frames"] or self._default_frames(manifest.encodings)
        video, self._copies = chosen != "image", manifest.encodings if chosen == "copy" else {}
        self._features = {
            name: self._feature(".".join((side, *path)), space, video)
            for side, leaves in self._sides.items()
            for name, (path, space) in leaves.items()
        }
        reward = list(manifest.reward_shape) or [1]
        self._features["next.reward"] = {"dtype": "float64", "shape": reward, "names": None}
        for name in ("next.done", "next.truncated"):
            self._features[name] = {"dtype": "bool", "shape": [1], "names": None}
        self._features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
        for name in ("frame_index", "episode_index", "index", "task_index"):
            self._features[name] = {"dtype": "int64", "shape": [1], "names": None}
        self._labels = StepLabels(export)
        self._features.update(self._labels.features)
        self._tasks: dict[str, int] = {}
        self._statistics = Statistics(
            [name for name, feature in self._features.items() if feature["dtype"] in ("image", "video")]
        )
        self._data = ParquetFiles(target, DATA_PATH)
        self._videos = {
            name: VideoFiles(target, name, fps)
            for name, feature in self._features.items()
            if feature["dtype"] == "video"
        }

    def _default_frames(self, encodings: Mapping[str, Video]) -> str:
        """Return "copy" if all cameras are encoded by a codec."""
        leaves = self._sides["observation"]
        cameras = [name for name, (_, part) in leaves.items() if is_image(part.dtype, part.shape or ())]
        known = [encodings.get(self._columns[name]) for name in cameras]
        return "copy" if known and all(each and not each.lossless for each in known) else "video"

    def _feature(self, column: str, space: Space, video: bool) -> dict[str, Any]:
        shape = list(space.shape or (1,))
        if is_image(space.dtype, shape):
            # H.264 in the colours that every reader knows has even sides and three channels.
            fits = video and shape[2] == 3 and not shape[0] % 2 and not shape[1] % 2
            names = ["height", "width", "channels"]
            return {"dtype": "video" if fits else "image", "shape": shape, "names": names}
        # Those of motors, by which LeRobot's own commands replay actions.
        card = self._export.card
        given = card.dimension_names(column, shape[0]) if len(shape) == 1 else None
        lerobot = card.get("lerobot")
        if given is None and isinstance(lerobot, dict) and column in (lerobot.get("names") or {}):
            self._export.losses.add(f"the names of the numbers of {column}, not one for each")
        return {"dtype": str(space.dtype), "shape": shape, "names": None if given is None else list(given)}

    def write(self) -> None:
        """Write everything."""
        episodes = ParquetFiles(self._target, EPISODES_PATH)
        rows: list[dict[str, Any]] = []
        schema = None
        total = index = 0
        try:
            for index, episode in enumerate(self._export.episodes(), 1):
                rows.append(self._episode(index - 1, episode, total))
                total += episode.length
                if len(rows) == _BATCH or index == len(self._export.context):
                    place = {f"meta/episodes/{key}": 0 for key in place_of(0)}
                    table = pa.Table.from_pylist([{**row, **place} for row in rows], schema=schema)
                    schema = schema or self._with_nulls(table.schema)
                    table = table.cast(schema)
                    for key, value in episodes.place_of_next(table.nbytes).items():
                        at = schema.get_field_index(f"meta/episodes/{key}")
                        numbers = pa.array([value] * len(rows), schema.field(at).type)
                        table = table.set_column(at, schema.field(at), numbers)
                    episodes.write(table)
                    rows.clear()
        finally:
            for each in (episodes, self._data, *self._videos.values()):
                each.close()
        write_tasks(self._target, self._tasks)
        meta = self._target / "meta"
        (meta / "stats.json").write_text(self._statistics.to_json())
        for name, videos in self._videos.items():
            self._features[name]["info"] = videos.info
        (meta / "info.json").write_text(json.dumps(self._info(index, total), indent=4))
        (meta / "episodelake.json").write_text(json.dumps(self._ours(), indent=4))

    def _episode(self, index: int, episode: Episode, first: int) -> dict[str, Any]:
        """Write the rows and frames of an episode, and return its row of `meta/episodes`."""
        length = episode.length
        values = self._values(episode, length)
        tasks = self._task_texts(episode)
        values.update(
            {
                "timestamp": (np.arange(length) / self._fps).astype(np.float32),
                "frame_index": np.arange(length),
                "episode_index": np.full(length, index),
                "index": np.arange(first, first + length),
                "task_index": np.array([self._tasks.setdefault(task, len(self._tasks)) for task in tasks]),
            }
        )
        row: dict[str, Any] = {"episode_index": index, "tasks": list(dict.fromkeys(tasks)), "length": length}
        columns, labels = {}, self._labels.columns(episode)
        for name, feature in self._features.items():
            if name in labels:
                columns[name] = labels[name]
                continue
            if feature["dtype"] == "float64":
                what = f"digits of {name}, which LeRobot reads as float32"
                self._export.losses.add(what, _rounded(values[name], np.float32))
            if feature["dtype"] == "video":
                place = self._video(name, episode, values)
                row.update((f"videos/{name}/{key}", value) for key, value in place.items())
            elif feature["dtype"] == "image":
                columns[name] = image_files(values[name])
            else:
                columns[name] = _column(values[name], feature)
        row.update((f"data/{key}", value) for key, value in self._data.write(pa.table(columns)).items())
        row.update(dataset_from_index=first, dataset_to_index=first + length)
        row.update(self._statistics.add(values))
        row.update(self._facts(episode))
        return row

    def _video(self, name: str, episode: Episode, values: dict[str, Any]) -> dict[str, float]:
        """Write the frames of an episode; return where they are, and put those for statistics into values."""
        videos, losses = self._videos[name], self._export.losses
        column = self._columns.get(name, "")
        if column not in self._copies:
            losses.add("frames of lossy video", episode.length)
            return videos.write(values[name])
        encoded, packets = self._export.encoded(episode, column)
        if packets is None:
            losses.add(f"frames of {name} that cannot be copied, and are encoded again", episode.length)
            values[name] = self._export.observed(episode, column)[: episode.length]
            return videos.write(values[name])
        # All of them would have to be decoded.
        values[name] = encoded[:: max(1, math.ceil(episode.length / _SAMPLED))]
        return videos.copy(packets, episode.length)

    def _values(self, episode: Episode, length: int) -> dict[str, np.ndarray]:
        flags = np.arange(length) == length - 1
        values = {
            "next.reward": np.asarray(episode.rewards, np.float64),
            "next.done": flags & (episode.terminated or episode.truncated),
            "next.truncated": flags & episode.truncated,
        }
        if not self._copies:
            values.update(self._parts("observation", episode.observations, length))
        for name, column in self._columns.items():
            # Those that are copied are not decoded.
            if self._copies and not self._is_copied(name):
                values[name] = np.asarray(self._export.observed(episode, column))[:length]
        values.update(self._parts("action", episode.actions, length))
        return values

    def _parts(self, side: str, stacked: Any, length: int) -> Iterator[tuple[str, np.ndarray]]:
        for name, (path, _) in self._sides[side].items():
            value = stacked
            for key in path:
                value = value[int(key)] if isinstance(value, tuple) else value[key]
            yield name, np.asarray(value)[:length]

    def _is_copied(self, name: str) -> bool:
        return self._columns[name] in self._copies and self._features[name]["dtype"] == "video"

    def _task_texts(self, episode: Episode) -> list[str]:
        """Return the text of the task at every transition."""
        rows = slice_batch(episode.extra, 0, episode.length)
        texts = self._export.of_steps(EXTRA, rows).get(_TASK)
        if texts is not None:
            return list(texts)
        text = episode.metadata.get(_TASK, self._export.options[_TASK])
        return [str(text)] * episode.length

    def _with_nulls(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of `meta/episodes` with the types of columns that may hold NULL."""
        snapshot = self._export.context.snapshot
        kinds = {"episodelake/seed": pa.int64(), "episodelake/options": pa.string()}
        kinds["episodelake/metadata"] = pa.string()
        for name in snapshot.episode_annotations:
            kinds[f"annotations/{name}"] = snapshot.episodes_schema.field(name).type
        return pa.schema([field.with_type(kinds.get(field.name, field.type)) for field in schema])

    def _facts(self, episode: Episode) -> dict[str, Any]:
        export = self._export
        options = export.reset_options(episode)
        return {
            "episodelake/seed": export.seed(episode),
            "episodelake/options": None if options is None else json.dumps(options),
            "episodelake/metadata": json.dumps(export.metadata(episode)),
            **{f"annotations/{name}": value for name, value in episode.annotations.items()},
        }

    def _info(self, episodes: int, frames: int) -> dict[str, Any]:
        return {
            "codebase_version": "v3.0",
            "robot_type": self._robot_type,
            "total_episodes": episodes,
            "total_frames": frames,
            "total_tasks": len(self._tasks),
            "chunks_size": FILES_IN_CHUNK,
            "data_files_size_in_mb": DATA_MB,
            "video_files_size_in_mb": VIDEO_MB,
            "fps": self._fps,
            "splits": {"train": f"0:{episodes}"},
            "data_path": DATA_PATH,
            "video_path": VIDEO_PATH if self._videos else None,
            "features": self._features,
        }

    def _ours(self) -> dict[str, Any]:
        manifest = self._export.context.snapshot.manifest
        both = {"observation": manifest.observation_space, "action": manifest.action_space}
        return {
            **{
                side: {
                    "space": space_to_json(space),
                    "features": {name: list(path) for name, (path, _) in self._sides[side].items()},
                }
                for side, space in both.items()
            },
            "annotations": self._labels.described,
            "card": {**self._export.card, **self._stated},
        }


def _leaves(space: Space, side: str) -> Iterator[tuple[str, tuple[tuple[str, ...], Space]]]:
    """Yield the features of observations or actions: name, path in the space, and part of the space.

    Raises:
        DatasetError: a part is no array.
    """

    def walk(part: Space, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Space]]:
        if isinstance(part, spaces.Dict | spaces.Tuple):
            inner: Mapping[Any, Space] | Any = part.spaces
            named = inner.items() if isinstance(inner, Mapping) else enumerate(inner)
            for key, each in named:
                if "/" in str(key) or "." in str(key):
                    raise DatasetError(f"LeRobot cannot hold {side}[{key!r}]: names have no '/' and no '.'.")
                yield from walk(each, (*path, str(key)))
        elif isinstance(part, _NUMBERS) and len(part.shape or ()) <= 5 and 0 not in (part.shape or ()):
            yield path, part
        else:
            shown = ".".join((side, *path))
            raise DatasetError(
                f"LeRobot cannot hold {shown}, which is {part}: it holds arrays of at least one number."
            )

    for path, part in walk(space, ()):
        single = "image" if is_image(part.dtype, part.shape or ()) else "state"
        name = ".".join((side, *(path or ((single,) if side == "observation" else ()))))
        yield name, (path, part)


def _column(values: np.ndarray, feature: Mapping[str, Any]) -> pa.Array:
    shape = () if feature["shape"] == [1] else feature["shape"]
    return array_column(values.astype(feature["dtype"], copy=False).reshape(len(values), *shape))


def _rounded(values: np.ndarray, dtype: Any) -> int:
    """Return how many numbers another dtype would change."""
    with np.errstate(over="ignore"):
        other = values.astype(dtype).astype(values.dtype)
    return int(np.count_nonzero((values != other) & ~np.isnan(values)))
