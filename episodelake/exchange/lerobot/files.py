"""The files of a LeRobot dataset: what `meta` says of its episodes, rows of Parquet files, frames of videos.

Version 3.0 keeps many episodes in a file, and a row of `meta/episodes` for each; versions 2.0 and 2.1 have a
file for each episode, and JSON lines.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.types import is_boolean, is_primitive

from ...store.common.optional_packages import EXPLORE, require
from ...store.errors import DatasetError
from ...store.spaces.arrow import elements_of
from ...writers.importing.boundary import check_bytes, check_groups, inside, reading

INFO = "meta/info.json"
VERSIONS = ("v2.0", "v2.1", "v3.0")
_GROUPS_BYTES = 8 << 20
_NO_METADATA = ("data/", "videos/", "meta/", "stats/", "dataset_")


@dataclass(frozen=True)
class Place:
    """Where the rows or frames of an episode are.

    Attributes:
        file: the path.
        start: the first row, or the time of the first frame in seconds.
    """

    file: Path
    start: Any


@dataclass(frozen=True)
class EpisodeEntry:
    """Facts of an episode in `meta`.

    Attributes:
        index: its number.
        length: its frames.
        data: where its rows are.
        videos: where its frames are, by feature.
        metadata: everything else, such as `tasks`.
    """

    index: int
    length: int
    data: Place
    videos: Mapping[str, Place]
    metadata: dict[str, Any]


def read_tasks(folder: Path, info: Mapping[str, Any]) -> dict[int, str]:
    """Read the texts of the tasks by their index.

    Raises:
        DatasetError: the file is damaged.
    """
    meta = folder / "meta"
    if not is_v3(info):
        lines = _json_lines(meta / "tasks.jsonl") if (meta / "tasks.jsonl").exists() else ()
        return {int(line["task_index"]): str(line["task"]) for line in lines}
    if not (meta / "tasks.parquet").exists():
        return {}
    table = _table(meta / "tasks.parquet")
    texts = [name for name in table.column_names if name != "task_index"]
    if "task_index" not in table.column_names or not texts:
        raise DatasetError(f"{meta / 'tasks.parquet'} has the columns {table.column_names}, not task_index.")
    text = "task" if "task" in texts else texts[-1]
    return {
        int(index): str(task)
        for index, task in zip(table["task_index"].to_pylist(), table[text].to_pylist(), strict=True)
    }


def is_v3(info: Mapping[str, Any]) -> bool:
    """Return whether many episodes share a file."""
    return info["codebase_version"] == "v3.0"


def entries(folder: Path, info: Mapping[str, Any], videos: Sequence[str]) -> Iterator[EpisodeEntry]:
    """Yield the episodes in the order of `meta`.

    Args:
        videos: features that are videos.

    Raises:
        DatasetError: a file of `meta` is damaged.
    """
    if is_v3(info):
        yield from _entries_v3(folder, info, videos)
        return
    size = int(info.get("chunks_size") or 1000)
    for number, row in enumerate(_json_lines(folder / "meta/episodes.jsonl")):
        try:
            index, length = int(row.pop("episode_index")), int(row.pop("length"))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DatasetError(
                f"{folder / 'meta/episodes.jsonl'}, line {number + 1}: no episode_index and length."
            ) from error
        given = {"episode_chunk": index // size, "episode_index": index}
        shown = {key: Place(_path(folder, info, "video_path", video_key=key, **given), 0.0) for key in videos}
        yield EpisodeEntry(index, length, Place(_path(folder, info, "data_path", **given), 0), shown, row)


def _entries_v3(folder: Path, info: Mapping[str, Any], videos: Sequence[str]) -> Iterator[EpisodeEntry]:
    place = folder / "meta/episodes"
    with reading(place):
        files = sorted(place.glob("*/*.parquet"))
        for file in files:
            check_groups(str(file), pq.read_metadata(file))
        dataset = ds.dataset([str(file) for file in files], format="parquet")
        columns = [name for name in dataset.schema.names if not name.startswith("stats/")]
        batches = dataset.scanner(columns=columns, batch_size=1000).to_batches()
        rows = [row for batch in batches for row in batch.to_pylist()]
    filled: dict[Path, int] = {}
    located = cache(partial(_path, folder, info))
    for row in rows:
        try:
            data = located("data_path", **_chunk(row, "data"))
            shown = {
                key: Place(
                    located("video_path", video_key=key, **_chunk(row, f"videos/{key}")),
                    float(row[f"videos/{key}/from_timestamp"]),
                )
                for key in videos
            }
            index, length = int(row["episode_index"]), int(row["length"])
        except DatasetError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise DatasetError(
                f"{place}: the row of episode {row.get('episode_index')} lacks {error}."
            ) from error
        start = filled.get(data, 0)
        filled[data] = start + length
        metadata = {
            key: value
            for key, value in row.items()
            if not key.startswith(_NO_METADATA) and key not in ("episode_index", "length")
        }
        yield EpisodeEntry(index, length, Place(data, start), shown, metadata)


def _chunk(row: Mapping[str, Any], name: str) -> dict[str, int]:
    return {key: int(row[f"{name}/{key}"]) for key in ("chunk_index", "file_index")}


def _path(folder: Path, info: Mapping[str, Any], name: str, **given: Any) -> Path:
    """Return a path from its pattern; it is in the folder."""
    pattern = info.get(name)
    # Not `str.format`, in which the dataset would choose attributes and widths.
    literal, *parts = re.split(r"\{(\w+)(?::0([1-9])d)?\}", pattern if isinstance(pattern, str) else "{")
    keys, widths, rest = parts[::3], parts[1::3], parts[2::3]
    if not {*keys} <= {*given} or re.search("[{}]", "".join((literal, *rest))):
        raise DatasetError(
            f"{folder / INFO}: {name}={pattern!r:.200} is no pattern of LeRobot for {sorted(given)}."
        )
    values = (str(given[key]).zfill(int(width or 0)) for key, width in zip(keys, widths, strict=True))
    filled = zip(values, rest, strict=True)
    return inside(folder, literal + "".join(f"{value}{text}" for value, text in filled))


def _json_lines(file: Path) -> Iterator[dict[str, Any]]:
    with reading(file), file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            with reading(f"{file}, line {number + 1},", "is no JSON"):
                row = json.loads(line)
            yield row


def _table(file: Path) -> pa.Table:
    with reading(file):
        parquet = pq.ParquetFile(file)
        check_groups(str(file), parquet.metadata)
        return parquet.read()


class Frames:
    """The rows of an episode, as many of so many as a group has.

    Attributes:
        names: the columns.
    """

    def __init__(self, group: _Group, start: int, length: int) -> None:
        self.names = group.names
        self._group, self._rows = group, slice(start, min(start + length, group.table.num_rows))

    def __len__(self) -> int:
        return self._rows.stop - self._rows.start

    @property
    def table(self) -> pa.Table:
        """The rows as Arrow data."""
        return self._group.table.slice(self._rows.start, len(self))

    def numbers(self, name: str) -> np.ndarray | None:
        """Return a column of numbers or flags as (T, n), shared; None if there is a NULL or another size."""
        values = self._group.numbers(name)
        return None if values is None else values[self._rows]

    def flat(self, name: str) -> np.ndarray:
        """Return a column of single numbers as (T,)."""
        values = self.numbers(name)
        return (self.table[name].to_numpy() if values is None else values).reshape(-1)


class _Group:
    """Neighbouring rows of a file, whose columns of numbers are converted once for all episodes.

    Attributes:
        table: the rows.
        names: its columns.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table, self.names = table, frozenset(table.column_names)
        self._numbers: dict[str, np.ndarray | None] = {}

    def numbers(self, name: str) -> np.ndarray | None:
        """Return a column, as `Frames.numbers` does."""
        if name not in self._numbers:
            self._numbers[name] = self._converted(name)
        return self._numbers[name]

    def _converted(self, name: str) -> np.ndarray | None:
        column = self.table[name].combine_chunks()
        if column.null_count or not len(column):
            return None
        flat, shape = elements_of(column)
        if shape is None or flat.null_count or not (is_primitive(flat.type) or is_boolean(flat.type)):
            return None
        return flat.to_numpy(zero_copy_only=False).reshape(len(column), -1)


class Rows:
    """Reads rows of Parquet files, some megabytes of row groups at a time.

    One may hold many episodes, or an episode only.
    """

    def __init__(self) -> None:
        self._file: Path | None = None
        self._parquet: pq.ParquetFile | None = None
        self._starts = np.zeros(1, np.int64)
        # The first row of the group in the file.
        self._kept: tuple[int, _Group] | None = None

    def read(self, place: Place, length: int) -> Frames:
        """Read some rows.

        Raises:
            DatasetError: the file is damaged or too short.
        """
        with reading(place.file):
            parquet = self._opened(place.file)
            stop = place.start + length
            if stop > self._starts[-1]:
                raise DatasetError(
                    f"{place.file} has {self._starts[-1]} rows; expected at least {stop} by meta/episodes."
                )
            parts, row = [], place.start
            while row < stop:
                first, group = self._around(parquet, row)
                parts.append(Frames(group, row - first, stop - row))
                if not len(parts[-1]):
                    raise DatasetError(f"{place.file} has fewer rows than its footer lists.")
                row += len(parts[-1])
        if len(parts) == 1:
            return parts[0]
        return Frames(_Group(pa.concat_tables([part.table for part in parts])), 0, length)

    def _around(self, parquet: pq.ParquetFile, row: int) -> tuple[int, _Group]:
        """Return rows of the file that begin at or before a row, and the number of the first of them."""
        if self._kept is None or not self._kept[0] <= row < self._kept[0] + self._kept[1].table.num_rows:
            self._kept = None
            first = int(np.searchsorted(self._starts, row, "right")) - 1
            groups, size = [first], parquet.metadata.row_group(first).total_byte_size
            for group in range(first + 1, parquet.num_row_groups):
                size += parquet.metadata.row_group(group).total_byte_size
                if size > _GROUPS_BYTES:
                    break
                groups.append(group)
            check_groups(f"Row group {first} of {self._file}", parquet.metadata, groups)
            self._kept = int(self._starts[first]), _Group(parquet.read_row_groups(groups))
        return self._kept

    def _opened(self, file: Path) -> pq.ParquetFile:
        if self._parquet is None or self._file != file:
            self.close()
            self._parquet, self._file = pq.ParquetFile(file), file
            metadata = self._parquet.metadata
            sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
            self._starts = np.cumsum([0, *sizes])
        return self._parquet

    def close(self) -> None:
        """Close the file."""
        if self._parquet is not None:
            self._parquet.close()
        self._parquet = self._kept = None


def video_frames(place: Place, times: np.ndarray, fps: float, shape: tuple[int, ...]) -> np.ndarray:
    """Decode the frames that are nearest to some times, as uint8 (T, H, W, C).

    Args:
        times: in seconds from the first frame of the episode, ascending.
        shape: (H, W, C) of a frame.

    Raises:
        DatasetError: the file is damaged, frames have another shape, or one is missing.
    """
    av: Any = require("av", "Reading videos", EXPLORE)
    check_bytes(f"The video {place.file} of an episode", len(times) * math.prod(shape))
    frames = np.empty((len(times), *shape), np.uint8)
    wanted = place.start + times.astype(np.float64)
    done = 0
    # From an open file, with a fixed format, FFmpeg opens no other file or address.
    with (
        reading(place.file, "cannot be decoded"),
        place.file.open("rb") as file,
        av.open(file, format=_container(file, place.file)) as container,
    ):
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        container.seek(int(wanted[0] / stream.time_base), stream=stream)
        for frame in container.decode(stream):
            offset = float(frame.pts * stream.time_base) - wanted[done]
            if offset < -0.5 / fps:
                continue
            if offset > 0.5 / fps:
                break
            image = frame.to_ndarray(format="gray" if shape[-1] == 1 else "rgb24").reshape(
                frame.height, frame.width, -1
            )
            if image.shape != shape:
                raise DatasetError(f"{place.file} has frames of {image.shape}; {INFO} gives {shape}.")
            frames[done] = image
            done += 1
            if done == len(times):
                return frames
    raise DatasetError(f"{place.file} has no frame at {wanted[done]:.4f} s; frame {done} of the episode.")


def _container(file: IO[bytes], path: Path) -> str:
    """Return FFmpeg's name for the container of an open video: MP4 or Matroska, none that lists files."""
    head = file.read(12)
    file.seek(0)
    if head[4:8] in (b"ftyp", b"moov"):
        return "mov"
    if head[:4] == b"\x1aE\xdf\xa3":
        return "matroska"
    raise DatasetError(f"{path} is no MP4 or Matroska file; LeRobot writes no other videos.")
