"""Compaction: fewer files, and not the least difference in what they hold.

Every test compares whole contents before and after; the stores are as awkward as the format allows.
"""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from gymnasium import spaces

import episodelake as el
from maintenance_stores import (
    INFOS,
    assert_contents,
    assert_faces_agree,
    awkward_store,
    contents,
    crashed_copy,
    ids_of,
    segments_of,
    write_awkward,
)
from real_environments import NUMBERED_SPACES, numbered_store, values_of, write_numbered
from waiting import PATIENCE, line_of


def steps_bytes(store: el.EpisodeStore) -> int:
    """Return the size of the steps files that the episodes point at."""
    return sum((store.path / "steps" / name).stat().st_size for name in segments_of(store))


def test_contents_order_and_ids_stay(tmp_path: Path) -> None:
    """Four awkward segments become one, and every value, id and position stays."""
    store = awkward_store(tmp_path / "store")
    before, size = contents(store), steps_bytes(store)
    report = store.compact()
    assert_contents(store, before)
    assert_contents(el.open(store.path), before)
    assert_faces_agree(store)
    assert len(segments_of(store)) == 1
    assert report == el.types.CompactReport(4, 1, size, steps_bytes(store), 8)


def test_twice_is_once(tmp_path: Path) -> None:
    """A second compaction finds nothing to do, makes no version and moves no episode."""
    store = awkward_store(tmp_path / "store")
    store.compact()
    version, segments = store.version, segments_of(store)
    report = store.compact()
    assert (report.segments_before, report.segments_after, report.episodes) == (1, 1, 0)
    assert report.bytes_before == report.bytes_after
    assert (store.version, segments_of(store)) == (version, segments)
    assert el.open(store.path).version == version


def test_an_empty_store(tmp_path: Path) -> None:
    """There is nothing to compact in an empty store, by any order, and that is no error."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    version = store.version
    assert store.compact() == el.types.CompactReport(0, 0, 0, 0, 0)
    assert store.compact(order_by="length") == el.types.CompactReport(0, 0, 0, 0, 0)
    assert (len(store), store.version) == (0, version)


def test_a_single_segment_is_left_alone(tmp_path: Path) -> None:
    """One segment is as compact as can be."""
    store = numbered_store(tmp_path / "store", [2, 3])
    version = store.version
    report = store.compact()
    assert (report.segments_before, report.segments_after, report.episodes) == (1, 1, 0)
    assert store.version == version


def test_tiny_segments_hold_an_episode_each_at_most_one_more(tmp_path: Path) -> None:
    """With segments of one byte nothing is joined, and nothing lost."""
    store = numbered_store(tmp_path / "store", [2, 3, 4], seal_every=1)
    before = contents(store)
    report = store.compact(segment_bytes=1)
    assert (report.segments_before, report.segments_after) == (3, 3)
    assert_contents(store, before)
    store.compact(segment_bytes=1, order_by="length", descending=True)
    assert values_of(store) == [2, 1, 0]
    assert_faces_agree(store)


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


@pytest.mark.parametrize("size", [0, -1])
def test_senseless_sizes_are_refused(tmp_path: Path, size: int) -> None:
    """A segment of no or negative size is no sensible wish."""
    store = numbered_store(tmp_path / "store", [2, 3], seal_every=1)
    with pytest.raises(el.errors.InvalidArgumentError):
        store.compact(segment_bytes=size)


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


def test_order_by_is_done_once(tmp_path: Path) -> None:
    """A store that stands in the order already is left alone."""
    store = numbered_store(tmp_path / "store", [5, 2, 4], seal_every=1)
    store.compact(order_by="length")
    assert values_of(store) == [1, 2, 0]
    version = store.version
    assert store.compact(order_by="length").episodes == 0
    assert store.version == version


def test_order_by_sorts_within_one_segment(tmp_path: Path) -> None:
    """A single segment in the wrong order is written anew in the right one."""
    store = numbered_store(tmp_path / "store", [5, 2, 4])
    store.compact(order_by="length")
    assert values_of(store) == [1, 2, 0]
    assert_faces_agree(store)


def test_order_by_makes_filters_read_few_files(tmp_path: Path) -> None:
    """After sorting, the ranges of the segments by that column do not overlap."""
    store = numbered_store(tmp_path / "store", [40, 1, 30, 2, 20, 3], seal_every=1)
    store.compact(segment_bytes=1, order_by="length")
    spans = store.episodes.group_by("segment").agg(low=pl.col("length").min(), high=pl.col("length").max())
    spans = spans.sort("low").collect()
    assert spans.height > 1
    assert all(high <= low for high, low in zip(spans["high"], spans["low"][1:], strict=False))


@pytest.mark.sample(3)
@pytest.mark.parametrize("column", ["no_such", "", "reward", "steps", "length desc", "position"])
def test_order_by_a_column_that_is_not_there(tmp_path: Path, column: str) -> None:
    """A wrong column is an error of ours, and nothing was changed."""
    store = numbered_store(tmp_path / "store", [2, 3], seal_every=1)
    version = store.version
    with pytest.raises(el.errors.InvalidArgumentError):
        store.compact(order_by=column)
    assert el.open(store.path).version == version


def test_vector_rewards(tmp_path: Path) -> None:
    """Vector rewards come through; an order by a list is refused or done, never a foreign error."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES, reward_shape=(2,))
    with store.writer() as writer:
        for number in range(3):
            episode = writer.begin(np.zeros(2, np.float32))
            episode.append(0, np.array([number, float("nan")]), np.ones(2, np.float32), terminated=True)
            episode.end()
            writer.seal()
    before = contents(store.refresh())
    store.compact()
    assert_contents(store, before)
    try:
        store.compact(order_by="episode_return", descending=True)
        assert values_of_rewards(store) == [2, 1, 0]
    except el.errors.InvalidArgumentError:
        assert_contents(store, before)


def values_of_rewards(store: el.EpisodeView) -> list[float]:
    """Return the first reward of every episode."""
    return [float(one.rewards[0, 0]) for one in store]


@pytest.mark.further
def test_an_episode_longer_than_a_row_group(tmp_path: Path) -> None:
    """A very long episode among short ones is moved whole."""
    length = 300_000
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    random = np.random.default_rng(0)
    observations = random.normal(size=(length + 1, 2)).astype(np.float32)
    with store.writer() as writer:
        write_numbered(writer, 1, 3)
        writer.seal()
        writer.write_episode(
            observations=observations,
            actions=np.arange(length) % 10,
            rewards=np.arange(length, dtype=np.float64),
            terminations=True,
            truncations=False,
            infos={"clock": np.arange(length + 1)},
        )
        writer.seal()
        write_numbered(writer, 3, 2)
    store.refresh().compact()
    assert len(segments_of(store)) == 1
    assert [len(one) for one in store] == [3, length, 2]
    assert np.array_equal(store[1].observations, observations)
    assert np.array_equal(store[1].rewards, np.arange(length))
    assert store[1].infos[-1] == {"clock": length}
    store.compact(order_by="length", segment_bytes=1)
    assert [len(one) for one in store] == [2, 3, length]
    assert np.array_equal(store[2].observations, observations)
    assert values_of(store[:2]) == [3, 1]


def test_images_and_ragged_values_of_equal_bytes(tmp_path: Path) -> None:
    """Equal frames, empty sequences and empty texts in every file stay what they are."""
    space = spaces.Dict(
        {"image": spaces.Box(0, 255, (8, 8, 3), np.uint8), "s": spaces.Sequence(spaces.Text(3))}
    )
    store = el.create(tmp_path / "store", observation_space=space, action_space=spaces.Discrete(2))
    value = {"image": np.full((8, 8, 3), 7, np.uint8), "s": ()}
    other = {"image": np.zeros((8, 8, 3), np.uint8), "s": ("", "ab")}
    with store.writer() as writer:
        for _ in range(3):
            episode = writer.begin(value)
            episode.append(1, 0.0, other, truncated=True)
            episode.end()
            writer.seal()
    before = contents(store.refresh())
    store.compact()
    assert_contents(store, before)
    assert_faces_agree(store)


def test_an_old_object_reads_on(tmp_path: Path) -> None:
    """A snapshot, its views, episodes and lazy frames taken before show the same afterwards."""
    store = awkward_store(tmp_path / "store")
    before = contents(store)
    old = el.open(store.path)
    view, lazy, episode = old.filter("length > 2"), old.steps, old[3]
    rows, of_view = lazy.collect().height, contents(view)
    store.compact(order_by="length", descending=True)
    assert_contents(old, before)
    assert_contents(view, of_view)
    assert lazy.collect().height == rows
    assert episode.observations["frame"].shape[0] == len(episode) + 1
    assert_faces_agree(old, raw=False)
    old.refresh()
    assert ids_of(old) == ids_of(store)


def test_an_object_at_an_old_version_compacts_the_newest(tmp_path: Path) -> None:
    """Compaction through an object at an old version works on the newest one and moves the object there."""
    store = numbered_store(tmp_path / "store", [2, 3, 4], seal_every=1)
    old = el.open(store.path, version=store.version - 1)
    assert len(old) == 2
    old.compact()
    assert values_of(old) == [0, 1, 2]
    assert old.version == el.open(store.path).version
    assert len(segments_of(old)) == 1


def test_beside_an_open_writer(tmp_path: Path) -> None:
    """What an open writer seals after a compaction stands behind it, once; the next one takes it."""
    store = awkward_store(tmp_path / "store")
    with store.writer(run="beside") as writer:
        write_awkward(writer, 20, 3, INFOS[1])
        writer.seal()
        write_awkward(writer, 21, 4, INFOS[0])
        store.compact()
        assert len(store) == 9
        before = contents(store)
        writer.seal()
        write_awkward(writer, 22, 2, INFOS[3])
    store.refresh()
    assert_contents(store[:9], before)
    assert [len(one) for one in store[9:]] == [4, 2]
    before = contents(store)
    store.compact()
    assert_contents(store, before)
    assert_faces_agree(store)


def test_compacted_episodes_do_not_come_back_from_a_journal(tmp_path: Path) -> None:
    """A journal that still has the rows of sealed episodes brings none of them a second time."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    with store.writer(run="dying", flush_seconds=0.01) as writer:
        pending = writer.begin(np.zeros(2, np.float32))
        pending.append(1, 1.0, np.ones(2, np.float32))
        for value in range(4):
            write_numbered(writer, value, 3)
            writer.seal()
        store.compact()
        path = crashed_copy(store, tmp_path / "crashed")
    el.recover(path)
    el.recover(path)
    recovered = el.open(path)
    ids = ids_of(recovered)
    assert len(ids) == len(set(ids))
    assert values_of(recovered)[:4] == [0, 1, 2, 3]
    assert len(ids) in (4, 5)
    assert_faces_agree(recovered)


def test_progress_reaches_its_end(tmp_path: Path) -> None:
    """The progress is called with growing numbers, up to all rows."""
    store = awkward_store(tmp_path / "store")
    calls: list[tuple[int, int]] = []
    store.compact(progress=lambda done, total: calls.append((done, total)))
    rows = sum(len(one) + 1 for one in store)
    assert calls and calls[-1] == (rows, rows)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert {total for _, total in calls} == {rows}


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


def test_history_names_it(tmp_path: Path) -> None:
    """The history says `compact`, and what the version before said stays."""
    store = numbered_store(tmp_path / "store", [2, 3], seal_every=1)
    before = store.history()
    store.compact()
    after = store.history()
    assert after.row(0, named=True)["operation"] == "compact"
    assert after[1:].equals(before)


def test_a_damaged_file_is_named_and_nothing_changes(tmp_path: Path) -> None:
    """A segment with a spoilt byte is refused, and the version stays."""
    store = numbered_store(tmp_path / "store", [200, 3, 4], seal_every=1)
    name = store.episodes.select("segment").collect()["segment"][0]
    file = store.path / "steps" / name
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 0xFF
    file.write_bytes(data)
    version = store.version
    with pytest.raises(el.errors.CorruptStoreError, match=name):
        store.compact()
    assert el.open(store.path).version == version
    assert values_of(el.open(store.path)[1:]) == [1, 2]


def test_compacting_what_compaction_left(tmp_path: Path) -> None:
    """Round after round of new segments and compaction keeps positions, and one segment at the end."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    for round_ in range(4):
        with store.writer(run=f"r{round_}") as writer:
            for value in range(2):
                write_numbered(writer, 2 * round_ + value, 2)
                writer.seal()
        store.compact()
        assert values_of(store) == list(range(2 * round_ + 2))
        assert len(segments_of(store)) == 1
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
