"""Large stores beside small ones: many runs, many segments, and a follower of a store that grows.

The logs and files equal those of as many runs and seals (see `fabricated`); measurements use the public API.
The peer of each row is the same work on the small store.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import episodelake as el
from episodelake.store.delta.checkpoints import _made, summed_checkpoint
from episodelake.store.delta.log import checkpoint_name, commit_name, commit_text, read_commit
from episodelake.store.files import locate
from fabricated import Segment
from measure import Row, scaled
from opening import build
from setting import Setting

PER_FILE = 16_384
#: A day of a run that seals once a minute.
DAY = 1_440
#: Commits between two checkpoints; cleaning leaves those since the last checkpoint but one.
PER_CHECKPOINT = 100


def run(setting: Setting) -> list[Row]:
    """Measure a store of many runs, one of many segments, and a follower of each."""
    runs, segments = setting.choose(200_000, 2_000), setting.choose(10_000, 50)
    paths = {name: setting.fresh(name) for name in ("small", "runs", "segments")}
    build(paths["small"], 1)
    build(paths["runs"], 1)
    add_runs(paths["runs"], runs)
    build(paths["segments"], segments)
    found = {name: [_measured(path) for _ in range(setting.repeats)] for name, path in paths.items()}
    rows = []
    for name, words in (("runs", f"{runs:,} runs"), ("segments", f"{segments:,} segments")):
        for work in found[name][0]:
            large, small = ([answer[work] for answer in found[each]] for each in (name, "small"))
            rows.append(
                Row(f"{work}, {words}", "ms", scaled(large, 1e3), "a store of one", scaled(small, 1e3))
            )
    return [*rows, *_follow_a_day(setting)]


def _follow_a_day(setting: Setting) -> list[Row]:
    """Follow a run seal by seal, in one process, and compare the last tenth of the day with the first."""
    versions = setting.choose(DAY, 60)
    store = el.create(
        setting.fresh("followed"),
        observation_space=gymnasium.spaces.Box(-9, 9, (2,)),
        action_space=gymnasium.spaces.Discrete(2),
    )
    seconds: list[float] = []
    bytes_held: list[float] = []
    with store.writer() as writer:
        _write_episode(writer)
        writer.seal()
        batches = iter(store.refresh().loader(64, follow=el.Follow(refresh_seconds=0, newest_episodes=300)))
        for _ in range(versions):
            _write_episode(writer)
            writer.seal()
            start = time.process_time()
            next(batches)
            seconds.append(time.process_time() - start)
            bytes_held.append(_resident_bytes())
    tenth = versions // 10
    work = f"a follower's batch at the end of {versions:,} seals"

    def row(what: str, unit: str, values: list[float], factor: float) -> Row:
        last, first = (scaled(part, factor) for part in (values[-tenth:], values[:tenth]))
        return Row(f"{work}, {what}", unit, last, "at their begin", first)

    return [row("CPU", "ms", seconds, 1e3), row("memory of the process", "MB", bytes_held, 1e-6)]


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _measured(path: Path) -> dict[str, float]:
    """Seconds of each piece of work on a store, which is a run longer afterwards."""
    seconds: dict[str, float] = {}

    def timed(work: str, action: Callable[[], object]) -> None:
        start = time.perf_counter()
        action()
        seconds[work] = time.perf_counter() - start

    store = el.open(path)
    timed("open", lambda: len(el.open(path)))
    timed("connect and query runs", lambda: store.connect().sql("SELECT count(*) FROM runs").fetchall())
    timed("filter", lambda: len(store.filter(pl.col("episode_return") > 1)))
    loader = store.loader(256, follow=el.Follow(refresh_seconds=0, newest_episodes=300))
    batches = iter(loader)
    timed("first batch of a follower", lambda: next(batches))
    timed("record a run", lambda: _record(store))
    timed("refresh", store.refresh)
    timed("batch of a follower after a new version", lambda: next(batches))
    return seconds


def _record(store: el.EpisodeStore) -> None:
    with store.writer() as writer:
        _write_episode(writer)


def _write_episode(writer: el.EpisodeWriter) -> None:
    writer.write_episode(
        observations=np.zeros((3, 2), np.float32),
        actions=np.zeros(2, np.int64),
        rewards=np.ones(2),
        terminations=True,
        truncations=False,
    )


def add_runs(path: Path, count: int) -> None:
    """Bring the runs table of a store with one run to so many, as their writers leave it.

    Each run brought two commits, two transactions, and two files that were joined later. The log was cleaned
    behind its last checkpoint but one; commits that the last one replaces are empty, as nothing reads them.
    """
    folder, log = path / "runs", path / "runs" / "_delta_log"
    first = pq.read_table(next(folder.glob("*-closed.parquet")))
    prefix = Segment.of(path).run_id[:-6]
    names = [f"{prefix}{number:06d}" for number in range(count)]
    version = max(int(file.stem) for file in log.glob("*.json"))
    actions: list[dict] = []
    for start in range(0, count, PER_FILE):
        part = names[start : start + PER_FILE]
        rows = pa.concat_tables([first] * len(part)).combine_chunks()
        rows = rows.set_column(rows.column_names.index("run_id"), "run_id", pa.array(part))
        file = folder / f"{part[0]}-000000.parquet"
        pq.write_table(rows, file, compression="zstd", store_schema=False)
        statistics = {
            "numRecords": len(part),
            "minValues": {"run_id": part[0]},
            "maxValues": {"run_id": part[-1]},
            "nullCount": {name: rows.column(name).null_count for name in rows.column_names},
        }
        added = {"path": file.name, "partitionValues": {}, "size": file.stat().st_size, "dataChange": True}
        added |= {"modificationTime": time.time_ns() // 1_000_000, "stats": json.dumps(statistics)}
        actions.append({"add": added})
    for name in names:
        actions.append({"txn": {"appId": name, "version": 1}})
        gone = {"deletionTimestamp": time.time_ns() // 1_000_000, "dataChange": True}
        actions += [{"remove": {"path": f"{name}-{end}.parquet", **gone}} for end in ("live", "closed")]
    place = locate(folder)
    files = {commit_name(number): read_commit(place, number) for number in range(version + 1)}
    information = {"timestamp": time.time_ns() // 1_000_000, "operation": "WRITE", "operationParameters": {}}
    files[commit_name(version + 1)] = commit_text("runs", version + 1, actions, information)
    last = version + 2 * count
    data, hint = _made(files, version + 1)
    for name in files.keys() - {commit_name(version + 1)}:
        (log / name).unlink()
    before = last - PER_CHECKPOINT
    for number in range(before - 1, last + 1):
        (log / commit_name(number)).write_bytes(commit_text("runs", number, [], information))
    for number in (before, last):
        (log / checkpoint_name(number)).write_bytes(summed_checkpoint("runs", number, data))
    hinted = {**json.loads(hint), "version": last, "sizeInBytes": len(data) + 8}
    (log / "_last_checkpoint").write_text(json.dumps(hinted))
