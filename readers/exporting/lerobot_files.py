"""The files of a LeRobot dataset v3.0: rows in Parquet, frames in MP4, and running statistics."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...store.optional_packages import EXPLORE, require
from ..pictures.writing import image_bytes, video_encoding

FILES_IN_CHUNK = 1000
DATA_MB, VIDEO_MB = 100, 200
_GROUP_BYTES = 4 << 20
_FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
DATA_PATH = f"data/{_FILE}.parquet"
VIDEO_PATH = f"videos/{{video_key}}/{_FILE}.mp4"
EPISODES_PATH = f"meta/episodes/{_FILE}.parquet"


class ParquetFiles:
    """Tables of the same columns in files of limited size, in row groups of some megabytes.

    Args:
        target: the folder of the dataset.
        pattern: of the paths in it.
    """

    def __init__(self, target: Path, pattern: str) -> None:
        self._target = target
        self._pattern = pattern
        self._number = -1
        self._bytes = 0
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._writer: pq.ParquetWriter | None = None

    def write(self, table: pa.Table) -> dict[str, int]:
        """Append a table, and return the numbers of the chunk and the file."""
        size = table.nbytes
        if not self._has_room(size):
            self.close()
            self._number += 1
            self._bytes = 0
            path = self._target / self._pattern.format(**self.place)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(path, table.schema, compression="snappy")
        self._waiting.append(table)
        self._bytes, self._waiting_bytes = self._bytes + size, self._waiting_bytes + size
        if self._waiting_bytes >= _GROUP_BYTES:
            self._write_group()
        return self.place

    def place_of_next(self, size: int) -> dict[str, int]:
        """Return the numbers of the chunk and the file that a table of so many bytes will come into."""
        return self.place if self._has_room(size) else place_of(self._number + 1)

    def _has_room(self, size: int) -> bool:
        return self._writer is not None and self._bytes + size <= DATA_MB * 1_000_000

    def _write_group(self) -> None:
        if self._writer is not None and self._waiting:
            rows = pa.concat_tables(self._waiting)
            self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self._waiting, self._waiting_bytes = [], 0

    @property
    def place(self) -> dict[str, int]:
        """The numbers of the chunk and the file."""
        return place_of(max(self._number, 0))

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._write_group()
            self._writer.close()
            self._writer = None


class VideoFiles:
    """The frames of a camera, many episodes in a file, each of which begins with a whole picture.

    Args:
        target: the folder of the dataset.
        key: the feature.
        fps: frames per second.
    """

    def __init__(self, target: Path, key: str, fps: float) -> None:
        self._target = target
        self._key = key
        # The largest that MPEG-4 can state.
        self._fps = Fraction(fps).limit_denominator(65_535)
        self._number = -1
        self._container: Any = None
        self._stream: Any = None
        self._frames = 0

    def write(self, frames: np.ndarray) -> dict[str, float]:
        """Append the frames of an episode, uint8 (T, H, W, 3), and return where they are."""
        av: Any = require("av", "A video", EXPLORE)
        # PyAV makes the file with the first packet.
        size = self._path.stat().st_size if self._container is not None and self._path.exists() else 0
        if self._container is None or size > VIDEO_MB * 1_000_000:
            self.close()
            self._open(av, *frames.shape[1:3])
        container: Any = self._container
        start = self._frames
        for index, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            frame.pts = self._frames
            frame.time_base = 1 / self._fps
            if index == 0:
                frame.pict_type = av.video.frame.PictureType.I
            container.mux(self._stream.encode(frame))
            self._frames += 1
        times = {"from_timestamp": start, "to_timestamp": self._frames}
        return {
            **place_of(self._number),
            **{name: float(count / self._fps) for name, count in times.items()},
        }

    def _open(self, av: Any, height: int, width: int) -> None:
        self._number += 1
        self._path.parent.mkdir(parents=True, exist_ok=True)
        codec, pixels, options = video_encoding(av, lossless=False)
        self._container = av.open(str(self._path), "w", format="mp4")
        self._stream = self._container.add_stream(codec, rate=self._fps, options={**options, "g": "2"})
        self._stream.height, self._stream.width, self._stream.pix_fmt = height, width, pixels
        self._frames = 0

    @property
    def _path(self) -> Path:
        return self._target / VIDEO_PATH.format(video_key=self._key, **place_of(self._number))

    def close(self) -> None:
        """Finish the file."""
        if self._container is not None:
            self._container.mux(self._stream.encode(None))
            self._container.close()
            self._container = None


def place_of(number: int) -> dict[str, int]:
    """Return the numbers of the chunk and of the file in it."""
    return {"chunk_index": number // FILES_IN_CHUNK, "file_index": number % FILES_IN_CHUNK}


class Statistics:
    """Least, greatest, mean and standard deviation of each feature, as LeRobot names them.

    Args:
        pictures: the features that are images or videos, which LeRobot reads as numbers from 0 to 1.
    """

    def __init__(self, pictures: Collection[str]) -> None:
        self._names_of_pictures = frozenset(pictures)
        self._numbers: dict[str, np.ndarray] = {}
        self._pictures: dict[str, dict[str, np.ndarray]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def add(self, values: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Add an episode, and return its own statistics as `stats/FEATURE/STATISTIC`.

        Args:
            values: T numbers, vectors or arrays by feature; pictures, uint8 (T, H, W, C), as they are.
        """
        pictures = {name: each for name, each in values.items() if name in self._names_of_pictures}
        numbers = {name: each for name, each in values.items() if name not in pictures}
        self._shapes = {name: each.shape[1:] or (1,) for name, each in numbers.items()}
        # One matrix for all features, since a call costs more than the numbers of an episode.
        wide = np.concatenate([each.reshape(len(each), -1) for each in numbers.values()], 1, dtype=np.float64)
        # Infinities have no mean.
        with np.errstate(invalid="ignore", over="ignore"):
            found = _statistics(wide)
            self._numbers = _merged(self._numbers, found) if self._numbers else found
        own = self._features(found)
        for name, each in pictures.items():
            found = _picture_statistics(each)
            self._pictures[name] = _merged(self._pictures[name], found) if name in self._pictures else found
            own[name] = found
        return {f"stats/{name}/{key}": value.tolist() for name in values for key, value in own[name].items()}

    def _features(self, found: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
        """Return the statistics of the matrix by feature."""
        stops = np.cumsum([int(np.prod(shape)) for shape in self._shapes.values()])[:-1]
        named: dict[str, dict[str, np.ndarray]] = {name: {} for name in self._shapes}
        for key, values in found.items():
            parts = [values] * len(named) if key == "count" else np.split(values, stops)
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True):
                named[name][key] = part if key == "count" else part.reshape(shape)
        return named

    def to_json(self) -> str:
        """Return the statistics of all episodes; LeRobot reads `NaN`."""
        return json.dumps(
            {
                name: {key: value.tolist() for key, value in each.items()}
                for name, each in (self._features(self._numbers) | self._pictures).items()
            },
            indent=4,
        )


def _statistics(values: np.ndarray) -> dict[str, np.ndarray]:
    """Return the statistics of each column."""
    found = [values.min(0), values.max(0), values.mean(0), values.std(0), np.array([len(values)])]
    return dict(zip(("min", "max", "mean", "std", "count"), found, strict=True))


def _picture_statistics(frames: np.ndarray) -> dict[str, np.ndarray]:
    """Return the statistics of each channel, from 0 to 1, shape (C, 1, 1), by the counts of its levels."""
    channels = [frames[..., channel].reshape(-1) for channel in range(frames.shape[-1])]
    shares = np.stack([np.bincount(values, minlength=256) for values in channels]) / len(channels[0])
    levels = np.arange(256) / 255
    low, high = (shares > 0).argmax(1), 255 - (shares[:, ::-1] > 0).argmax(1)
    mean = shares @ levels
    deviation = np.sqrt((shares * (levels - mean[:, None]) ** 2).sum(1))
    found = dict(
        zip(("min", "max", "mean", "std"), (levels[low], levels[high], mean, deviation), strict=True)
    )
    shaped = {key: value.reshape(-1, 1, 1) for key, value in found.items()}
    return {**shaped, "count": np.array([len(frames)])}


def _merged(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    count = one["count"] + other["count"]
    share = other["count"] / count
    mean = one["mean"] * (1 - share) + other["mean"] * share
    variance = (one["std"] ** 2 + (one["mean"] - mean) ** 2) * (1 - share) + (
        other["std"] ** 2 + (other["mean"] - mean) ** 2
    ) * share
    return {
        "min": np.minimum(one["min"], other["min"]),
        "max": np.maximum(one["max"], other["max"]),
        "mean": mean,
        "std": np.sqrt(variance),
        "count": count,
    }


def image_files(frames: np.ndarray, kind: str = "png") -> pa.Array:
    """Return frames, uint8 (T, H, W, C) or (T, H, W), as images of a Hugging Face dataset."""
    found = [{"bytes": data, "path": None} for data in image_bytes(frames, kind)]
    return pa.array(found, pa.struct({"bytes": pa.binary(), "path": pa.string()}))


def write_tasks(target: Path, tasks: Mapping[str, int]) -> None:
    """Write the texts of the tasks, as pandas has them: as the index of the table."""
    columns = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy, "metadata": None}
        for name, kind, numpy in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ]
    told = {"index_columns": ["task"], "column_indexes": [], "columns": columns, "pandas_version": "2.0.0"}
    schema = pa.schema({"task_index": pa.int64(), "task": pa.string()}, metadata={"pandas": json.dumps(told)})
    table = pa.table({"task_index": list(tasks.values()), "task": list(tasks)}, schema=schema)
    pq.write_table(table, target / "meta/tasks.parquet")
