"""Opening a store of a million episodes in a thousand segments: time, memory, and the first filter.

The store is as a thousand seals leave it, never compacted. `filtering` measures as many episodes in few
segments.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
from gymnasium.spaces import Box, Discrete

import episodelake as el
from bare_files import files_of
from fabricated import Segment, write_segments
from measure import Row, interleave, scaled
from setting import Setting

MEMORY_SCRIPT = Path(__file__).resolve().parent / "memory.py"
PER_SEGMENT = 1000
OPEN_MILLISECONDS = 150.0
BYTES_AN_EPISODE = 100.0
THRESHOLD = 1.5


def run(setting: Setting) -> list[Row]:
    """Build the store once, then open and filter it in turn with DuckDB on its bare files."""
    segments = setting.choose(1000, 50)
    path, small = setting.fresh("many-segments"), setting.fresh("one-segment")
    build(path, segments)
    build(small, 1)
    episodes = segments * PER_SEGMENT
    measured = interleave(
        {"ours": lambda: _open_and_filter(path, episodes), "bare": lambda: _bare(path)}, setting.repeats
    )
    if {answer[-1] for answers in measured.values() for answer in answers} != {measured["bare"][0][-1]}:
        raise AssertionError("the filters of both sides keep different numbers of episodes")
    words = f"{episodes:,} episodes in {segments:,} segments"
    opening = scaled([answer[0] for answer in measured["ours"]], 1e3)
    first = scaled([answer[1] for answer in measured["ours"]], 1e3)
    again = scaled([answer[2] for answer in measured["ours"]], 1e3)
    bare = scaled([answer[0] for answer in measured["bare"]], 1e3)
    return [
        Row(f"open, {words}", "ms", opening, limit=OPEN_MILLISECONDS),
        Row(f"filter by return, {words}, store just opened", "ms", first, "DuckDB on the files", bare),
        Row(f"filter by return, {words}, once more", "ms", again, "DuckDB on the files", bare),
        *_memory_rows(path, small, words, episodes, setting.repeats),
    ]


def build(path: Path, segments: int) -> None:
    """Make a store with a run of so many segments, each of a thousand episodes of one or two steps."""
    spaces = {"observation_space": Box(-1.0, 1.0, (2,), np.float32), "action_space": Discrete(2)}
    rewards = np.random.default_rng(0).standard_normal((PER_SEGMENT, 2))
    with el.create(path, **spaces).writer() as writer:
        for number in range(PER_SEGMENT):
            length = 1 + number % 2
            writer.write_episode(
                observations=np.zeros((length + 1, 2), np.float32),
                actions=np.zeros(length, np.int64),
                rewards=rewards[number, :length],
                terminations=True,
                truncations=False,
            )
    write_segments(Segment.of(path), segments)


def _open_and_filter(path: Path, episodes: int) -> tuple[float, float, float, int]:
    """Seconds to open and count, to filter first, and to filter again; and how many episodes were kept."""
    start = time.perf_counter()
    store = el.open(path)
    counted = len(store)
    opened = time.perf_counter()
    kept = len(store.filter(pl.col("episode_return") > THRESHOLD))
    filtered = time.perf_counter()
    again = len(store.filter(pl.col("episode_return") > THRESHOLD))
    end = time.perf_counter()
    if (counted, again) != (episodes, kept):
        raise AssertionError(f"expected {episodes} episodes, got {counted}; kept {kept}, then {again}")
    return opened - start, filtered - opened, end - filtered, kept


def _bare(path: Path) -> tuple[float, int]:
    """Seconds of DuckDB for the same filter; the files are listed before."""
    files = ", ".join(f"'{file}'" for file in files_of(path, "episodes"))
    query = f"SELECT count(*) FROM read_parquet([{files}]) WHERE episode_return > {THRESHOLD}"
    with duckdb.connect() as connection:
        start = time.perf_counter()
        ((kept,),) = connection.sql(query).fetchall()
        return time.perf_counter() - start, kept


def _memory_rows(path: Path, small: Path, words: str, episodes: int, repeats: int) -> list[Row]:
    """What opening takes in a new process, beyond opening a small store."""
    command = [sys.executable, str(MEMORY_SCRIPT), str(small), str(path)]
    answers = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(repeats)
    ]
    return [
        Row(
            f"open, {words}: memory {name}",
            "B/episode",
            scaled([answer[key] for answer in answers], 1 / episodes),
            limit=BYTES_AN_EPISODE,
        )
        for name, key in (("at its peak", "peak"), ("held", "held"))
    ]
