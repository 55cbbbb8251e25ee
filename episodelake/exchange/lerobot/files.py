"""The files of a LeRobot dataset: the episodes that `meta` lists, and rows of Parquet files.

Version 3.0 keeps many episodes in a file, and a row of `meta/episodes` for each; versions 2.0 and 2.1 have a
file for each episode, and JSON lines. Rows are found by their `episode_index`: the file that `meta` names is
a hint, since converters of LeRobot left stale ones.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.types import is_boolean, is_primitive

from ...errors import DatasetError
from ...plugin import check_bytes, elements_of, inside, reading
from ...plugin.files import exists, matching
from ...writers.importing.boundary import check_groups
from .videos import VideoSpan

INFO = "meta/info.json"
VERSIONS = ("v2.0", "v2.1", "v3.0")
_GROUPS_BYTES = 8 << 20
_NO_METADATA = ("data/", "videos/", "meta/", "stats/", "dataset_")


@dataclass(frozen=True)
class EpisodeEntry:
    """Facts of an episode in `meta`.

    Attributes:
        index: its number.
        length: its frames.
        data: the file of its rows; None where `meta` names none.
        videos: where its frames are, by feature.
        metadata: everything else, such as `tasks`.
    """

    index: int
    length: int
    data: Path | None
    videos: Mapping[str, VideoSpan]
    metadata: dict[str, Any]


def read_tasks(folder: Path, info: Mapping[str, Any]) -> dict[int, str]:
    """Read the texts of the tasks by their index.

    Raises:
        DatasetError: the file is damaged.
    """
    meta = folder / "meta"
    if not is_v3(info):
        lines = _json_lines(meta / "tasks.jsonl") if exists(meta / "tasks.jsonl") else ()
        return {int(line["task_index"]): str(line["task"]) for line in lines}
    if not exists(meta / "tasks.parquet"):
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


def entries(folder: Path, info: Mapping[str, Any], videos: Sequence[str]) -> list[EpisodeEntry]:
    """Return the episodes by their number; of several rows for one, the last counts, as in LeRobot.

    Args:
        videos: features that are videos.

    Raises:
        DatasetError: a file of `meta` is damaged.
    """
    read = _entries_v3 if is_v3(info) else _entries_v2
    by_index = {entry.index: entry for entry in read(folder, info, videos)}
    return [by_index[index] for index in sorted(by_index)]


def _entries_v2(folder: Path, info: Mapping[str, Any], videos: Sequence[str]) -> Iterator[EpisodeEntry]:
    size = int(info.get("chunks_size") or 1000)
    for number, row in enumerate(_json_lines(folder / "meta/episodes.jsonl")):
        try:
            index, length = int(row.pop("episode_index")), int(row.pop("length"))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DatasetError(
                f"{folder / 'meta/episodes.jsonl'}, line {number + 1}: no episode_index and length."
            ) from error
        given = {"episode_chunk": index // size, "episode_index": index}
        shown = {key: VideoSpan(_path(folder, info, "video_path", video_key=key, **given)) for key in videos}
        yield EpisodeEntry(index, length, _path(folder, info, "data_path", **given), shown, row)


def _entries_v3(folder: Path, info: Mapping[str, Any], videos: Sequence[str]) -> Iterator[EpisodeEntry]:
    place = folder / "meta/episodes"
    rows: list[dict[str, Any]] = []
    with reading(place):
        # One by one, since a file may have columns that the first lacks.
        for file in matching(place, "*/*.parquet"):
            with pq.ParquetFile(file) as parquet:
                check_groups(str(file), parquet.metadata)
                columns = [name for name in parquet.schema_arrow.names if not name.startswith("stats/")]
                rows += parquet.read(columns).to_pylist()
    located = cache(partial(_path, folder, info))
    starts = {key: _starts(rows, f"videos/{key}") for key in videos}
    for row in rows:
        try:
            index, length = int(row["episode_index"]), int(row["length"])
            shown = {
                key: _span(row, f"videos/{key}", partial(located, "video_path", video_key=key), starts[key])
                for key in videos
            }
            data = None
            if row.get("data/file_index") is not None:
                data = located("data_path", **_chunk(row, "data"))
        except DatasetError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise DatasetError(
                f"{place}: the row of episode {row.get('episode_index')} lacks {error}."
            ) from error
        metadata = {
            key: value
            for key, value in row.items()
            if not key.startswith(_NO_METADATA) and key not in ("episode_index", "length")
        }
        yield EpisodeEntry(index, length, data, shown, metadata)


def _starts(rows: Sequence[Mapping[str, Any]], name: str) -> dict[tuple[Any, Any], np.ndarray]:
    """Return the times at which episodes begin in each file of a camera, in order."""
    begins: dict[tuple[Any, Any], list[float]] = {}
    for row in rows:
        if row.get(f"{name}/from_timestamp") is not None:
            file = row.get(f"{name}/chunk_index"), row.get(f"{name}/file_index")
            begins.setdefault(file, []).append(float(row[f"{name}/from_timestamp"]))
    return {file: np.unique(times) for file, times in begins.items()}


def _span(
    row: Mapping[str, Any],
    name: str,
    located: Callable[..., Path],
    starts: Mapping[tuple[Any, Any], np.ndarray],
) -> VideoSpan:
    """Return the range of an episode: to its own end, and never into the next episode."""
    chunk = _chunk(row, name)
    start = float(row[f"{name}/from_timestamp"])
    times = starts[chunk["chunk_index"], chunk["file_index"]]
    later = times[times > start]
    stop = float(later[0]) if len(later) else math.inf
    own = row.get(f"{name}/to_timestamp")
    return VideoSpan(located(**chunk), start, stop if own is None or own <= start else min(stop, float(own)))


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


@dataclass(frozen=True)
class Place:
    """Rows of an episode that follow each other in a file."""

    file: Path
    start: int
    length: int


class _Places:
    """Finds the rows of episodes by the column `episode_index`, which is read of each file once.

    Args:
        folder: of the dataset.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[int, list[Place]] = {}
        self._seen: set[Path] = set()

    def find(self, entry: EpisodeEntry, *, anywhere: bool) -> Place:
        """Return the rows of an episode.

        Args:
            anywhere: look into the other files too, if the one that `meta` names has no such rows.

        Raises:
            DatasetError: there are none, or not as many as `meta` lists.
        """
        if entry.data is not None and (exists(entry.data) or not anywhere):
            self._look_into(entry.data)
        if anywhere and entry.index not in self._found:
            for file in matching(self._folder / "data", "*/*.parquet"):
                self._look_into(file)
        places = self._found.get(entry.index, [])
        for place in places:
            if place.length == entry.length:
                return place
        where = entry.data or self._folder / "data"
        if not places:
            raise DatasetError(f"{where} has no rows with the episode_index {entry.index}.")
        counts = " and ".join(f"{place.length:,}" for place in places)
        raise DatasetError(
            f"{places[0].file} has {counts} rows of episode {entry.index}; expected {entry.length:,} by meta."
        )

    def _look_into(self, file: Path) -> None:
        if file in self._seen:
            return
        with reading(file), pq.ParquetFile(file) as parquet:
            check_bytes(f"episode_index of {file}", parquet.metadata.num_rows * 8)
            if "episode_index" not in parquet.schema_arrow.names:
                raise DatasetError(f"{file} lacks the column episode_index.")
            numbers = parquet.read(["episode_index"])["episode_index"].to_numpy()
        self._seen.add(file)
        bounds = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
        for start, stop in itertools.pairwise(bounds):
            if stop > start and np.isfinite(numbers[start]):
                place = Place(file, start, stop - start)
                self._found.setdefault(int(numbers[start]), []).append(place)


class Rows:
    """Reads rows of Parquet files, some megabytes of row groups at a time.

    One may hold many episodes, or an episode only.

    Args:
        folder: of the dataset.
        anywhere: whether any file may hold the rows of an episode, as in version 3.0.
    """

    def __init__(self, folder: Path, *, anywhere: bool) -> None:
        self._places, self._anywhere = _Places(folder), anywhere
        self._file: Path | None = None
        self._parquet: pq.ParquetFile | None = None
        self._starts = np.zeros(1, np.int64)
        # The first row of the group in the file.
        self._kept: tuple[int, _Group] | None = None

    def read(self, entry: EpisodeEntry) -> tuple[Place, Frames]:
        """Read the rows of an episode, and return their places.

        Raises:
            DatasetError: the file is damaged or has other rows.
        """
        place = self._places.find(entry, anywhere=self._anywhere)
        with reading(place.file):
            parquet = self._opened(place.file)
            stop = place.start + place.length
            parts, row = [], place.start
            while row < stop:
                first, group = self._around(parquet, row)
                parts.append(Frames(group, row - first, stop - row))
                if not len(parts[-1]):
                    raise DatasetError(f"{place.file} has fewer rows than its footer lists.")
                row += len(parts[-1])
        if len(parts) == 1:
            return place, parts[0]
        return place, Frames(_Group(pa.concat_tables([part.table for part in parts])), 0, place.length)

    def _around(self, parquet: pq.ParquetFile, row: int) -> tuple[int, _Group]:
        """Return rows of the file that begin at or before a row, and the number of the first of them."""
        if self._kept is None or not 0 <= row - self._kept[0] < self._kept[1].table.num_rows:
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
