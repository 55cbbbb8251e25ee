"""`source_key`: an episode of a dataset is written once, however often it is handed over."""

import builtins
import errno
import gc
import os
import subprocess
import sys
import warnings
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import episodelake as el
from effort import examples
from waiting import PATIENCE, journals

FIRST = np.zeros(1, np.float32)


@pytest.fixture
def store(tmp_path):
    """Return an empty store."""
    return create(tmp_path / "store")


def create(path):
    """Create a store."""
    observation_space, action_space = spaces.Box(-1, 9, (1,), np.float32), spaces.Discrete(2)
    return el.create(path, observation_space=observation_space, action_space=action_space)


def by_steps(writer, key, length):
    """Write an episode step by step; return whether it was written."""
    episode = writer.begin(FIRST, source_key=key)
    if episode is None:
        return False
    for _ in range(length):
        episode.append(0, 1.0, FIRST)
    episode.end()
    return True


def by_arrays(writer, key, length):
    """Write an episode from arrays."""
    row = writer.write_episode(
        source_key=key,
        observations=np.zeros((length + 1, 1), np.float32),
        actions=np.zeros(length, int),
        rewards=np.ones(length),
        terminations=False,
        truncations=False,
    )
    return row is not None


def table(lengths):
    """Return the steps of episodes of these lengths."""
    columns: dict[str, list] = {"episode": [], "action": [], "reward": [], "terminated": [], "truncated": []}
    for number, length in enumerate(lengths):
        columns["episode"] += [number] * (length + 1)
        for name, value in (("action", 0), ("reward", 1.0), ("terminated", False), ("truncated", False)):
            columns[name] += [value] * length + [None]
    observations = pa.array([[0.0]] * len(columns["episode"]), pa.list_(pa.float32()))
    return pa.table({**columns, "observation": observations})


def by_arrow(writer, keys, lengths):
    """Write episodes from a table; return how many were written."""
    facts = pa.table({"source_key": pa.array(keys, pa.string())})
    return writer.write_episodes(table(lengths), episodes=facts)


def stored(store) -> list[tuple[str | None, int]]:
    """Return key and length of each episode, in order."""
    frame = store.refresh().episodes.collect()
    if "metadata.source_key" not in frame.columns:
        return [(None, length) for length in frame["length"]]
    return list(zip(frame["metadata.source_key"], frame["length"], strict=True))


DYING = """
import os, sys
import duckdb
import numpy as np
import episodelake as el

writer = el.open(sys.argv[1]).writer()
episode = writer.begin(np.zeros(1, np.float32), source_key="a")
for _ in range(3):
    episode.append(0, 1.0, np.zeros(1, np.float32))
episode.end()
writer.flush()
os._exit(3)
"""
WAYS = {"steps": by_steps, "arrays": by_arrays}
EPISODE = st.tuples(st.sampled_from([None, "a", "b", "ä/0", "c"]), st.sampled_from([1, 3, 80]))
CALL = st.tuples(
    st.sampled_from(["steps", "arrays", "arrow"]), st.lists(EPISODE, min_size=1, max_size=4)
) | st.tuples(st.sampled_from(["reopen", "seal"]), st.just([]))


@pytest.mark.further
@settings(max_examples=examples(100), deadline=None)
@given(calls=st.lists(CALL, min_size=2, max_size=8))
def test_any_order_of_writers_and_ways_writes_each_key_once(calls, tmp_path_factory):
    """Whatever the way, the writer and the seals between, a dictionary of keys tells what is stored."""
    store = create(tmp_path_factory.mktemp("sources") / "store")
    expected: list[tuple[str | None, int]] = []
    seen: set[str] = set()
    writer = store.writer(on_duplicate="skip")
    for way, episodes in calls:
        new = []
        for key, _ in episodes:
            new.append(key is None or key not in seen)
            if key is not None:
                seen.add(key)
        if way == "reopen":
            writer.close()
            writer = store.refresh().writer(on_duplicate="skip")
        elif way == "seal":
            writer.seal()
        elif way == "arrow":
            assert by_arrow(writer, *zip(*episodes, strict=True)) == sum(new)
        else:
            assert [WAYS[way](writer, *each) for each in episodes] == new
        expected += [each for each, is_new in zip(episodes, new, strict=True) if is_new]
    writer.close()
    assert stored(store) == expected
    for key in seen:
        assert store.refresh().filter(pl.col("metadata.source_key") == key)[0].metadata == {"source_key": key}


def one_by_arrow(writer, key, length):
    """Write an episode from a table."""
    by_arrow(writer, [key], [length])


@pytest.mark.parametrize("way", [by_steps, by_arrays, one_by_arrow])
def test_duplicates_raise_by_default(way, store):
    """Nothing of the second episode is recorded, in the same run and in a later one."""
    with store.writer() as writer:
        way(writer, "a", 2)
        with pytest.raises(el.errors.InvalidArgumentError, match=r"'a'.* on_duplicate=.skip."):
            way(writer, "a", 3)
        way(writer, "b", 70)
    with store.writer() as writer:
        assert writer.has_source_key("b") and not writer.has_source_key("c")
        with pytest.raises(el.errors.InvalidArgumentError, match="'b'"):
            way(writer, "b", 3)
    assert stored(store) == [("a", 2), ("b", 70)]


def test_keys_twice_in_one_table_raise(store):
    """Two rows of one table with one key are duplicates too; nothing of the table is recorded."""
    with store.writer() as writer:
        with pytest.raises(el.errors.InvalidArgumentError, match="'a'"):
            by_arrow(writer, ["a", "a"], [1, 2])
        assert by_arrow(writer, ["a", None, None], [1, 2, 3]) == 3
    assert [length for _, length in stored(store)] == [1, 2, 3]


def test_failed_episode_leaves_its_key_free(store):
    """An episode that raised, or has no step, was not written, so its key can be written."""
    with store.writer() as writer:
        with pytest.raises(el.errors.SpaceMismatchError):
            writer.begin(np.zeros(3), source_key="a")
        open_episode = writer.begin(FIRST, source_key="a")
        assert open_episode is not None
        with pytest.raises(el.errors.InvalidArgumentError, match="'a'"):
            by_arrays(writer, "a", 2)
        with pytest.raises(el.errors.RecorderStateError, match="no step"):
            open_episode.end()
        with pytest.raises(el.errors.SpaceMismatchError):
            writer.write_episodes(
                table([1]).set_column(1, "action", [[5.5, None]]), episodes=pa.table({"source_key": ["a"]})
            )
        by_arrays(writer, "a", 2)
    assert stored(store) == [("a", 2)]


def test_keys_count_where_the_column_has_another_type(store):
    """Text beside numbers of the same metadata key stands in the JSON column, and is found there."""
    with store.writer() as writer:
        for key in (5, {"source_key": 1}):
            writer.begin(FIRST, metadata={"source_key": key}).append(0, 1.0, FIRST)
    with store.writer(on_duplicate="skip") as writer:
        assert by_steps(writer, "a", 1)
        assert not writer.has_source_key("source_key")
    with store.writer(on_duplicate="skip") as writer:
        assert not by_steps(writer, "a", 1)
    assert len(store.refresh()) == 3
    assert store[2].metadata == {"source_key": "a"}


def test_keys_stay_with_compaction_and_go_with_deletion(store):
    """The keys are those of the episodes that the store shows."""
    for key in "abc":
        with store.refresh().writer() as writer:
            by_arrays(writer, key, 2)
    store.refresh().compact()
    store.refresh().delete("\"metadata.source_key\" = 'b'")
    with store.refresh().writer(on_duplicate="skip") as writer:
        assert [by_arrays(writer, key, 2) for key in "abc"] == [False, True, False]


@pytest.mark.further
def test_keys_of_a_dead_writer_count(store):
    """What its journal has is recovered before the keys are read."""
    assert subprocess.run([sys.executable, "-c", DYING, str(store.path)], timeout=PATIENCE).returncode == 3
    assert journals(Path(str(store.path)))
    with store.writer(on_duplicate="skip") as writer:
        assert not by_steps(writer, "a", 3)
    assert stored(store) == [("a", 3)]


def test_keys_are_kept_beside_other_metadata(store):
    """The key joins what the caller gives, and contradicts none of it."""
    with store.writer() as writer:
        episode = writer.begin(FIRST, source_key="a", metadata={"site": 1})
        assert episode is not None
        episode.append(0, 1.0, FIRST)
        assert episode.end(metadata={"ok": True}).metadata == {"source_key": "a", "site": 1, "ok": True}
        with pytest.raises(el.errors.InvalidArgumentError, match="metadata have `source_key` 'c'"):
            writer.begin(FIRST, source_key="b", metadata={"source_key": "c"})


@pytest.mark.parametrize("key", ["", 3, b"a", "\ud800", np.str_("a")])
def test_keys_are_text(key, store):
    """Anything else raises, before anything is recorded."""
    with store.writer() as writer, pytest.raises(el.errors.InvalidArgumentError, match="expected text"):
        writer.begin(FIRST, source_key=key)
    with pytest.raises(el.errors.InvalidArgumentError, match="expected 'error' or 'skip'"):
        store.writer(on_duplicate="ignore")


@pytest.mark.parametrize("kept", [False, pytest.param(True, marks=pytest.mark.further)])
@pytest.mark.further
def test_episodes_of_a_failed_close_are_written_once(tmp_path, monkeypatch, kept):
    """Whatever call fails in a close, the same episodes sent again in the process are there once.

    The failed writer is alive in the error's traceback, or is closed in the background meanwhile.
    """
    left, error = [0], [errno.ENOSPC]

    def failing(call, writes):
        def counted(path, *arguments, **options):
            if "writer" in active and writes(*arguments) and str(tmp_path) in str(path):
                left[0] -= 1
                if left[0] == 0:
                    raise OSError(error[0], os.strerror(error[0]), str(path))
            return call(path, *arguments, **options)

        return counted

    active = set()
    for owner, name, writes in (
        (os, "open", lambda flags, *_: flags & os.O_CREAT),
        (builtins, "open", lambda mode="r", *_: "r" not in mode),
        (os, "link", lambda *_: True),
        (os, "replace", lambda *_: True),
    ):
        monkeypatch.setattr(owner, name, failing(getattr(owner, name), writes))

    def send(path):
        with el.open(path).writer(on_duplicate="skip", durability="none") as writer:
            for key in ("a", "b", "c"):
                by_arrays(writer, key, 2)
            active.add("writer")

    failed, point = 0, 0
    while point == 0 or left[0] <= 0:
        point += 1
        path = tmp_path / f"store{point}"
        create(path)
        left[0], error[0] = point, (errno.ENOSPC, errno.EIO)[point % 2]
        try:
            send(path)
        except el.errors.StoreAccessError as raised:
            failed += 1
            held = raised if kept else None
        active.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            send(path)
        active.clear()
        held = None
        gc.collect()
        el.recover(path)
        keys = duckdb.sql(
            f"SELECT \"metadata.source_key\" FROM read_parquet('{path}/episodes/*.parquet')"
        ).fetchall()
        assert sorted(keys) == [("a",), ("b",), ("c",)], point
        assert len(el.open(path)) == 3 and el.open(path).verify().ok
    assert failed > 3
    del held


def test_a_writer_that_cannot_be_finished_refuses_keys(store, monkeypatch):
    """While the room that failed a close is missing, the next writer says so and takes none of its keys."""
    full, low = [True], os.link

    def link(source, path, **options):
        if full[0] and "_delta_log" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return low(source, path, **options)

    monkeypatch.setattr(os, "link", link)
    first = store.writer(on_duplicate="skip")
    by_arrays(first, "a", 2)
    with pytest.raises(el.errors.StoreAccessError):
        first.close()
    second = store.writer(on_duplicate="skip")
    with pytest.raises(el.errors.StoreAccessError):
        by_arrays(second, "a", 2)
    full[0] = False
    assert not by_arrays(second, "a", 2)
    second.close()
    first.close()
    assert len(store.refresh()) == 1
