"""The files of a LeRobot dataset v3.0: rows in Parquet, frames in MP4, and running statistics."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...plugin import require
from ...readers.exporting.shards import ShardWriter

FILES_IN_CHUNK = 1000
DATA_MB, VIDEO_MB = 100, 200
_GROUP_BYTES = 4 << 20
_FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
DATA_PATH = f"data/{_FILE}.parquet"
VIDEO_PATH = f"videos/{{video_key}}/{_FILE}.mp4"
EPISODES_PATH = f"meta/episodes/{_FILE}.parquet"
#: Videos of a camera that are written at a time.
_MOST_OPEN = 8
#: Names of codecs that differ from those of their decoders.
_CODECS = {"libdav1d": "av1", "libaom-av1": "av1"}

_NAMES = ("min", "max", "mean", "std")
_QUANTILES = ("q01", "q10", "q50", "q90", "q99")
_SHARES = np.array([0.01, 0.10, 0.50, 0.90, 0.99])


class _GroupedParquet:
    """A Parquet file with row groups of some megabytes."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(path, schema, compression="snappy")
        self._waiting: list[pa.Table] = []
        self._bytes = 0

    def write(self, table: pa.Table) -> None:
        """Append a table."""
        self._waiting.append(table)
        self._bytes += table.nbytes
        if self._bytes >= _GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if self._waiting:
            rows = pa.concat_tables(self._waiting)
            self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self._waiting, self._bytes = [], 0

    def close(self) -> None:
        """Finish the file."""
        self._write_group()
        self._writer.close()


class ParquetFiles:
    """Tables of the same columns in files of limited size.

    Args:
        target: the folder of the dataset.
        pattern: of the paths in it.
    """

    def __init__(self, target: Path, pattern: str) -> None:
        self._schema: Any = None
        self._shards = ShardWriter(
            lambda number: target / pattern.format(**place_of(number)),
            lambda path: _GroupedParquet(path, self._schema),
            DATA_MB * 1_000_000,
        )

    def close(self) -> None:
        """Finish the file."""
        self._shards.close()

    def write(self, table: pa.Table) -> dict[str, int]:
        """Append a table, and return the numbers of the chunk and the file."""
        self._schema = table.schema
        self._shards.file_for(table.nbytes).write(table)
        return place_of(len(self._shards.counts) - 1)

    def place_of_next(self, size: int) -> dict[str, int]:
        """Return the numbers of the chunk and the file that a table of so many bytes will come into."""
        return place_of(len(self._shards.counts) - self._shards.has_room(size))


class VideoFiles:
    """Frames of a camera: many episodes in a file, each beginning with a keyframe.

    Packets that are copied and frames that are encoded go to files of their own, as do packets with other
    parameters of the decoder.

    Args:
        target: the folder of the dataset.
        key: the feature.
        fps: frames per second.
    """

    def __init__(self, target: Path, key: str, fps: float) -> None:
        # The largest that MPEG-4 can state.
        self._fps = Fraction(fps).limit_denominator(65_535)
        self._pattern = str(target / VIDEO_PATH.replace("{video_key}", _braced(key)))
        self._count = 0
        self._open: dict[Any, tuple[int, _Video]] = {}

    @property
    def info(self) -> dict[str, Any]:
        """Facts of the videos as LeRobot has them, by the first one; close them before."""
        av: Any = require("av", "A video")
        with av.open(self._pattern.format(**place_of(0))) as container:
            stream = container.streams.video[0]
            context = stream.codec_context
            return {
                "video.height": context.height,
                "video.width": context.width,
                "video.codec": _CODECS.get(context.name, context.name),
                "video.pix_fmt": context.pix_fmt,
                "video.is_depth_map": False,
                "video.fps": float(self._fps),
                "video.channels": 3,
                "has_audio": False,
            }

    def close(self) -> None:
        """Finish the files."""
        for key in [*self._open]:
            self._close(key)

    def _close(self, key: Any) -> None:
        self._open.pop(key)[1].close()

    def write(self, frames: np.ndarray) -> dict[str, float]:
        """Append the frames of an episode, uint8 (T, H, W, 3), and return where they are."""
        return self._write(None, frames)

    def copy(self, packets: Any, frames: int) -> dict[str, float]:
        """Append the packets of an episode, and return where its frames are.

        Args:
            packets: a `PacketStream`.
            frames: of the episode.
        """
        key = packets.codec, packets.extradata
        if key in self._open and self._open[key][1].delay < packets.delay:
            self._close(key)
        place = self._write(key, packets)
        return {**place, "to_timestamp": place["from_timestamp"] + float(frames / self._fps)}

    def _write(self, key: Any, content: Any) -> dict[str, float]:
        if key in self._open and self._open[key][1].size > VIDEO_MB * 1_000_000:
            self._close(key)
        if key not in self._open:
            if len(self._open) == _MOST_OPEN:
                self._close(next(iter(self._open)))
            path = Path(self._pattern.format(**place_of(self._count)))
            path.parent.mkdir(parents=True, exist_ok=True)
            video = (
                _EncodedVideo(path, self._fps, *content.shape[1:3])
                if key is None
                else content.new_file(path, self._fps, quick=False)
            )
            self._open[key] = self._count, video
            self._count += 1
        number, video = self._open[key]
        start, stop = video.write(content)
        times = {"from_timestamp": float(start / self._fps), "to_timestamp": float(stop / self._fps)}
        return {**place_of(number), **times}


def _braced(key: str) -> str:
    return key.replace("{", "{{").replace("}", "}}")


class _Video(Protocol):
    """A file of frames.

    Attributes:
        delay: how many frames later than it is decoded a frame may be shown.
        size: the bytes of its packets.
    """

    delay: int
    size: int

    def write(self, content: Any, /) -> tuple[int, int]:
        """Append an episode, which begins with a keyframe; return the numbers of its frames in the file."""
        ...

    def close(self) -> None:
        """Finish the file."""
        ...


class _EncodedVideo:
    """See `_Video`; takes frames."""

    delay = 0

    def __init__(self, path: Path, fps: Fraction, height: int, width: int) -> None:
        self._av: Any = require("av", "A video")
        # Not every PyAV has H.264.
        codec, options = "mpeg4", {"qscale": "2"}
        if "libx264" in self._av.codecs_available:
            codec, options = "libx264", {"crf": "18", "preset": "veryfast"}
        self._container = self._av.open(str(path), "w", format="mp4")
        self._stream = self._container.add_stream(codec, rate=fps, options={**options, "g": "2"})
        self._stream.height, self._stream.width, self._stream.pix_fmt = height, width, "yuv420p"
        self._fps = fps
        self._frames = self.size = 0

    def write(self, frames: np.ndarray) -> tuple[int, int]:
        """Append frames, the first a keyframe; return their numbers in the file."""
        start = self._frames
        for index, pixels in enumerate(frames):
            frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            frame.pts = self._frames
            frame.time_base = 1 / self._fps
            if index == 0:
                frame.pict_type = self._av.video.frame.PictureType.I
            self._mux(self._stream.encode(frame))
            self._frames += 1
        return start, self._frames

    def close(self) -> None:
        """Finish the file."""
        self._mux(self._stream.encode(None))
        self._container.close()

    def _mux(self, packets: Sequence[Any]) -> None:
        self.size += sum(packet.size for packet in packets)
        self._container.mux(packets)


def place_of(number: int) -> dict[str, int]:
    """Return the numbers of the chunk and of the file in it."""
    return {"chunk_index": number // FILES_IN_CHUNK, "file_index": number % FILES_IN_CHUNK}


class Statistics:
    """Least, greatest, mean, standard deviation and quantiles of each feature, as LeRobot names them.

    The quantiles of all episodes are the mean of those of each, weighted by its length, as in LeRobot.

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
            values: T numbers, vectors or arrays by feature; pictures, uint8 (n, H, W, C), as they are, of
                some frames or all.
        """
        pictures = {name: each for name, each in values.items() if name in self._names_of_pictures}
        numbers = {name: each for name, each in values.items() if name not in pictures}
        self._shapes = {name: each.shape[1:] or (1,) for name, each in numbers.items()}
        # One matrix for all features, since a call costs more than the numbers of an episode.
        wide = np.concatenate([each.reshape(len(each), -1) for each in numbers.values()], 1, dtype=np.float64)
        # Infinities have no mean.
        with np.errstate(invalid="ignore", over="ignore"):
            statistics = _statistics(wide)
            self._numbers = _merged(self._numbers, statistics) if self._numbers else statistics
        own = self._features(statistics)
        for name, each in pictures.items():
            statistics = _picture_statistics(each)
            self._pictures[name] = (
                _merged(self._pictures[name], statistics) if name in self._pictures else statistics
            )
            own[name] = statistics
        return {f"stats/{name}/{key}": value.tolist() for name in values for key, value in own[name].items()}

    def _features(self, statistics: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
        """Return the statistics of the matrix by feature."""
        stops = np.cumsum([int(np.prod(shape)) for shape in self._shapes.values()])[:-1]
        named: dict[str, dict[str, np.ndarray]] = {name: {} for name in self._shapes}
        for key, values in statistics.items():
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
    moments = [values.min(0), values.max(0), values.mean(0), values.std(0), np.array([len(values)])]
    # The least value that so many of all rows do not exceed.
    places = np.ceil(_SHARES * len(values)).astype(int) - 1
    quantiles = np.partition(values, places, axis=0)[places]
    return dict(zip((*_NAMES, "count", *_QUANTILES), (*moments, *quantiles), strict=True))


def _picture_statistics(frames: np.ndarray) -> dict[str, np.ndarray]:
    """Return the statistics of each channel, from 0 to 1, shape (C, 1, 1), by the counts of its levels."""
    channels = [frames[..., channel].reshape(-1) for channel in range(frames.shape[-1])]
    counts = np.stack([np.bincount(values, minlength=256) for values in channels])
    shares = counts / len(channels[0])
    levels = np.arange(256) / 255
    low, high = (shares > 0).argmax(1), 255 - (shares[:, ::-1] > 0).argmax(1)
    mean = shares @ levels
    deviation = np.sqrt((shares * (levels - mean[:, None]) ** 2).sum(1))
    reached = counts.cumsum(1) >= _SHARES[:, None, None] * len(channels[0])
    quantiles = levels[reached.argmax(2)]
    statistics = (levels[low], levels[high], mean, deviation, *quantiles)
    named = zip((*_NAMES, *_QUANTILES), statistics, strict=True)
    shaped = {key: value.reshape(-1, 1, 1) for key, value in named}
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
        **{name: one[name] * (1 - share) + other[name] * share for name in _QUANTILES},
        "count": count,
    }


def write_tasks(target: Path, tasks: Mapping[str, int]) -> None:
    """Write the texts of the tasks, as pandas has them: as the index of the table."""
    columns = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy, "metadata": None}
        for name, kind, numpy in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ]
    described = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": columns,
        "pandas_version": "2.0.0",
    }
    schema = pa.schema(
        {"task_index": pa.int64(), "task": pa.string()}, metadata={"pandas": json.dumps(described)}
    )
    table = pa.table({"task_index": list(tasks.values()), "task": list(tasks)}, schema=schema)
    pq.write_table(table, target / "meta/tasks.parquet")
