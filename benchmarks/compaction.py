"""Compaction against a bare pyarrow read and write of the same files.

Both sides take the same hundred segments to one. pyarrow reads each file and writes it to a new one, table by
table, with the compression, the encodings and the row groups of the segment that the compaction made, and
syncs the result; it keeps no log, moves no pointer and checks nothing.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import episodelake as el
from bare_files import files_of
from bulk_writing import table_and_options
from measure import Row, interleave, scaled
from setting import Setting, create
from trajectories import Trajectories, control

TABLES = ("steps", "episodes")
LENGTH = 1000
#: At least half the speed of the bare read and write.
TARGET = 2.0


def run(setting: Setting) -> list[Row]:
    """Record small segments once, then compact copies of the store."""
    data = control(episodes=setting.choose(1000, 40), length=LENGTH)
    source = setting.fresh("small-segments")
    segments = _record(source, data, per_segment=10)
    size = sum(
        Path(file).stat().st_size for table in ("steps", "episodes") for file in files_of(source, table)
    )
    compacted = setting.folder / "compacted"
    _seconds_ours(source, compacted, segments)
    _check(source, compacted)
    options = {**table_and_options(compacted)[1], **_checks(compacted)}
    sides: dict[str, Callable[[], float]] = {
        "ours": lambda: _seconds_ours(source, compacted, segments),
        "pyarrow": lambda: _seconds_pyarrow(source, setting.folder, options),
    }
    costs = {name: scaled(values, 1e9 / size) for name, values in interleave(sides, setting.repeats).items()}
    speed = 1e3 / costs["ours"].median
    work = f"compact {segments} segments of {size / segments / 1e6:.1f} MB ({speed:.0f} MB/s)"
    return [
        Row(work, "ms/MB", costs["ours"], "pyarrow read and write", costs["pyarrow"], ratio_target=TARGET)
    ]


def _record(path: Path, data: Trajectories, per_segment: int) -> int:
    """Write all episodes, so many to a segment, and return the number of segments."""
    with create(path, data.kind).writer(seal_seconds=1e6, segment_bytes=1 << 40) as writer:
        for number, episode in enumerate(data, start=1):
            writer.write_episode(
                observations=episode.observations,
                actions=episode.actions,
                rewards=episode.rewards,
                terminations=episode.terminations,
                truncations=episode.truncations,
            )
            if number % per_segment == 0:
                writer.seal()
    return len(files_of(path, "steps"))


def _seconds_ours(source: Path, copy: Path, segments: int) -> float:
    """Compact a copy of the store, whose data files are links to the source's."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy, copy_function=_link_data)
    store = el.open(copy)
    start = time.perf_counter()
    report = store.compact(segment_bytes=1 << 40)
    seconds = time.perf_counter() - start
    if (report.segments_before, report.segments_after) != (segments, 1):
        raise AssertionError(f"not compacted as expected: {report}")
    return seconds


def _link_data(source: str, target: str) -> None:
    if "_delta_log" not in source and source.endswith(".parquet"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def _seconds_pyarrow(source: Path, folder: Path, options: dict[str, Any]) -> float:
    start = time.perf_counter()
    for table in TABLES:
        how = options if table == "steps" else {"compression": "zstd", "row_group_size": LENGTH * 64}
        _rewrite(sorted(files_of(source, table)), folder / f"{table}.parquet", dict(how))
    return time.perf_counter() - start


def _checks(store: Path) -> dict[str, Any]:
    """The options that give pyarrow's files statistics of the same columns, and checksums of pages."""
    group = pq.read_metadata(files_of(store, "steps")[0]).row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    statistics = [column.path_in_schema for column in columns if column.is_stats_set]
    return {"write_statistics": statistics, "write_page_checksum": True}


def _rewrite(files: list[str], target: Path, options: dict[str, Any]) -> None:
    """Read files one after the other into row groups of one new file."""
    rows = options.pop("row_group_size")
    waiting: list[pa.Table] = []
    with open(target, "wb") as sink:
        with pq.ParquetWriter(sink, pq.read_schema(files[0]), **options) as writer:
            for file in files:
                waiting.append(pq.read_table(file))
                if sum(table.num_rows for table in waiting) >= rows:
                    writer.write_table(pa.concat_tables(waiting), row_group_size=rows)
                    waiting = []
            if waiting:
                writer.write_table(pa.concat_tables(waiting), row_group_size=rows)
        sink.flush()
        os.fsync(sink.fileno())


def _check(source: Path, compacted: Path) -> None:
    """Raise unless both stores show the same episodes and the same steps in the same order."""
    query = "SELECT count(*), sum(reward), sum(observation[1] * t) FROM steps"
    before, after = el.open(source), el.open(compacted)
    ids = [store.episodes.select("episode_id").collect() for store in (before, after)]
    sums = [store.sql(query).fetchall()[0] for store in (before, after)]
    close = all(abs(one - other) <= 1e-9 * max(1.0, abs(one)) for one, other in zip(*sums, strict=True))
    if not ids[0].equals(ids[1]) or not close:
        raise AssertionError("the compacted store shows something else")
