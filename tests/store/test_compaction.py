"""Compaction: fewer files, and not the least difference in what they hold.

Every test compares whole contents before and after; the stores are as awkward as the format allows.
"""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import episodelake as el
from maintenance_stores import (
    assert_contents,
    assert_faces_agree,
    awkward_store,
    contents,
    ids_of,
    segments_of,
)
from real_environments import NUMBERED_SPACES, numbered_store
from waiting import PATIENCE, line_of


def test_an_empty_store(tmp_path: Path) -> None:
    """There is nothing to compact in an empty store, by any order, and that is no error."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    version = store.version
    assert store.compact() == el.types.CompactReport(0, 0, 0, 0, 0)
    assert store.compact(order_by="length") == el.types.CompactReport(0, 0, 0, 0, 0)
    assert (len(store), store.version) == (0, version)


def test_tiny_segments_are_not_joined(tmp_path: Path) -> None:
    """Where no two files fit into one segment nothing is joined, and nothing lost."""
    store = numbered_store(tmp_path / "store", [2, 3, 4], seal_every=1)
    before = contents(store)
    report = store.compact(segment_bytes=1)
    assert (report.segments_before, report.segments_after) == (3, 3)
    assert_contents(store, before)


def test_segments_stay_below_their_size(tmp_path: Path) -> None:
    """Joined segments are no larger than they may be, neighbours only, and no more than needed."""
    store = numbered_store(tmp_path / "store", [50] * 8, seal_every=1)
    before = contents(store)
    limit = 3 * max((store.path / "steps" / name).stat().st_size for name in segments_of(store))
    report = store.compact(segment_bytes=limit)
    assert 1 <= report.segments_after < 8
    assert all((store.path / "steps" / name).stat().st_size <= limit for name in segments_of(store))
    assert_contents(store, before)
    assert_faces_agree(store)


def ordered(rows: list[tuple[Any, str]], descending: bool) -> list[str]:
    """Return ids by value, then those with NaN, then those with NULL; ties as they were."""
    nulls = [name for value, name in rows if value is None]
    nans = [name for value, name in rows if isinstance(value, float) and math.isnan(value)]
    there = [(value, name) for value, name in rows if name not in {*nulls, *nans}]
    there.sort(key=lambda pair: pair[0], reverse=descending)
    return [name for _, name in there] + nans + nulls


@pytest.mark.sample(1)
@pytest.mark.parametrize("descending", [False, True])
def test_order_by_any_plain_column(tmp_path: Path, descending: bool) -> None:
    """Episodes are sorted by numbers, NaN, NULLs, texts, flags, times and metadata; ties keep their order."""
    store = awkward_store(tmp_path / "store")
    before = {one["id"]: one for one in contents(store)}
    columns = ["episode_return", "seed", "end_reason", "terminated", "metadata.label", "metadata.score"]
    for column in [*columns, "run_id", "started_at"]:
        rows = store.episodes.select(column, "episode_id").collect().rows()
        expected = ordered(rows, descending)
        store.compact(order_by=column, descending=descending)
        assert ids_of(store) == expected, column
        assert [one.position for one in store] == list(range(8))
    assert_contents(store, [before[name] for name in ids_of(store)])
    assert_faces_agree(store)


def test_order_by_makes_filters_read_few_files(tmp_path: Path) -> None:
    """After sorting, the ranges of the segments by that column do not overlap."""
    store = numbered_store(tmp_path / "store", [40, 1, 30, 2, 20, 3], seal_every=1)
    store.compact(segment_bytes=1, order_by="length")
    spans = store.episodes.group_by("segment").agg(low=pl.col("length").min(), high=pl.col("length").max())
    spans = spans.sort("low").collect()
    assert spans.height > 1
    assert all(high <= low for high, low in zip(spans["high"], spans["low"][1:], strict=False))


def test_an_error_in_the_progress_changes_nothing(tmp_path: Path) -> None:
    """Whoever interrupts a compaction has the store as it was, and may compact again."""
    store = awkward_store(tmp_path / "store")
    before, version = contents(store), store.version

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.compact(progress=stop)
    assert el.open(store.path).version == version
    assert_contents(store, before)
    store.compact()
    assert_contents(store, before)
    assert_faces_agree(store)


AT_ONCE = """
import sys
import episodelake as el

path, what = sys.argv[1:]
store = el.open(path)
print("ready", flush=True)
sys.stdin.readline()
refused = 0
for round_ in range(6):
    try:
        if what == "compact":
            store.compact(order_by="length", descending=bool(round_ % 2))
        else:
            store.delete(f"length = {10 + round_}")
    except el.errors.ConcurrentCommitError:
        refused += 1
        if what == "delete":
            sys.exit(3)
print(refused)
"""


@pytest.mark.further
def test_two_processes_at_once(tmp_path: Path) -> None:
    """Two that compact and one that deletes, in processes of their own: what should be there is, once."""
    store = numbered_store(tmp_path / "store", [*range(1, 19)], seal_every=2)
    before = [one for one in contents(store) if not 10 <= one["length"] < 16]
    command = [sys.executable, "-c", AT_ONCE, str(store.path)]
    children = [
        subprocess.Popen([*command, what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for what in ("compact", "delete", "compact")
    ]
    for child in children:
        assert line_of(child) == "ready"
    outputs = []
    for child in children:
        assert child.stdin
        child.stdin.write("\n")
        child.stdin.flush()
    for child in children:
        outputs.append(child.communicate(timeout=PATIENCE)[0])
    assert [child.returncode for child in children] == [0, 0, 0], outputs
    store.refresh()
    assert_contents(sorted(store, key=lambda one: one.number), before)
    assert_faces_agree(store)
