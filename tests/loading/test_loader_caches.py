"""Mapped columns: the batches of memory, decoded once, shared, bounded, and made again when damaged."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import episodelake as el
from episodelake.readers.columns import cache_folder, step_arrays
from episodelake.readers.columns import mapped as mapped_columns
from episodelake.readers.columns.cache_folder import CacheFolder
from episodelake.terminal.app import app
from loader_batches import (
    BOX,
    NESTED,
    PLACES,
    assert_identical,
    flat,
    segmented_store,
)
from log_edits import read_actions, write_actions
from plain_loader import at
from real_environments import numbered_store
from waiting import PATIENCE


@pytest.fixture
def store(tmp_path: Path) -> el.EpisodeStore:
    """A store that a test may change."""
    return segmented_store(tmp_path / "store", [5, 9, 3, 12], NESTED)


def mapped(view: el.EpisodeView, folder: Path, max_bytes: int | None = None, **more: Any) -> el.Loader:
    """A loader of mapped columns."""
    return view.loader(4, cache=el.Cache("mmap", folder=folder, max_bytes=max_bytes), **more)


def files(folder: Path) -> dict[str, int]:
    """The columns in a cache, with the number that the file system has for their files."""
    entries = CacheFolder(folder).entries()
    return {
        f"{entry.facts['column']} {entry.facts['version']}": entry.path.stat().st_ino for entry in entries
    }


def test_dynamic_columns_and_annotations_are_mapped(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Infos, policy values and added columns too; a version in which an annotation changed has its own."""
    keys = ["info.x", "info.x_present", "policy.value", "quality", *PLACES]
    frame = store.steps.select("episode_id", "t", quality=pl.col("t") * 0.5)
    store.annotate(frame.collect(), on=("episode_id", "t"))
    first = store.loader(4, columns=keys)
    assert_identical(mapped(store, tmp_path / "cache", columns=keys), first)
    store.annotate(frame.with_columns(pl.col("quality") + 1).collect(), on=("episode_id", "t"))
    second = store.loader(4, columns=keys)
    assert_identical(mapped(store, tmp_path / "cache", columns=keys), second)
    assert len(files(tmp_path / "cache")) == 8


def test_a_column_is_decoded_once(
    store: el.EpisodeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader with other columns shares those that are there; once all are, steps are not decoded."""
    folder = tmp_path / "cache"
    mapped(store, folder, columns=["observation", "reward"])
    before = files(folder)
    assert sorted(before) == [f"observation {store.version}", f"reward {store.version}"]
    expected = [store.loader(4), store.loader(4, window=2)]
    mapped(store, folder)
    assert before.items() < files(folder).items() and len(files(folder)) == 5
    monkeypatch.setattr(mapped_columns, "read_arrays", None)
    store = el.open(tmp_path / "store")
    assert_identical(mapped(store, folder), expected[0])
    assert_identical(mapped(store, folder, window=2), expected[1])


@pytest.mark.parametrize("place", ["elsewhere", "here"])
def test_values_of_other_files_are_not_believed(
    store: el.EpisodeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A store with the id and the names of another, at its place or not, gives its own values and statistics,
    and leaves the other one's alone.
    """
    monkeypatch.setenv("EPISODELAKE_CACHE", str(tmp_path / "cache"))
    frame = store.steps.select("episode_id", "t", quality=pl.col("t") * 0.5)
    store.annotate(frame.collect(), on=("episode_id", "t"))
    columns = ["reward", "quality"]

    def seen(path: Path) -> list[float]:
        view = el.open(path)
        batches = list(view.loader(64, columns=columns, cache="mmap"))
        stats = view.stats(columns)
        return [
            *(max(float(batch[name].max()) for batch in batches) for name in columns),
            *(float(stats[name].maximum) for name in columns),
        ]

    path = tmp_path / ("store" if place == "here" else "foreign")
    before = seen(tmp_path / "store")
    if place == "elsewhere":
        shutil.copytree(tmp_path / "store", path)
    for file in [*path.glob("steps/*.parquet"), *path.glob("annotations/*/*.parquet")]:
        grow(file)
    assert all(np.array(seen(path)) > np.array(before) + 900)
    if place == "elsewhere":
        assert seen(tmp_path / "store") == before


def grow(file: Path) -> None:
    """Write a file anew, with all its floating-point values 1000 greater, and list it so in its log."""
    table = pq.read_table(file)
    for index, column in enumerate(table.schema):
        if pa.types.is_floating(column.type):
            values = pc.call_function("add", [table.column(index), pa.scalar(1000.0, column.type)])
            table = table.set_column(index, column, values)
    pq.write_table(table, file, row_group_size=table.num_rows)
    for commit in (file.parent / "_delta_log").glob("*.json"):
        actions = read_actions(commit)
        for added in (action["add"] for action in actions if action.get("add", {}).get("path") == file.name):
            added["size"] = file.stat().st_size
        write_actions(commit, actions)


def test_other_episodes_have_other_files(store: el.EpisodeStore, tmp_path: Path) -> None:
    """A selection, a later version, and a copy of the store that went on by itself are not mixed up."""
    folder = tmp_path / "cache"
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    stores = [store, el.open(tmp_path / "copy")]
    for number, each in enumerate(stores):
        with each.writer(run="later") as writer:
            episode = writer.begin(first_observation(each))
            episode.append(each.action_space.sample(), float(number), first_observation(each))
    stores = [each.refresh() for each in stores]
    assert stores[0].version == stores[1].version
    views = [
        store[:2],
        store[2:],
        store[::-1],
        *stores,
        el.open(tmp_path / "copy", version=store.version - 1),
    ]
    for count, view in enumerate(views, 1):
        assert_identical(mapped(view, folder, columns=["reward"]), view.loader(4, columns=["reward"]))
        assert len(CacheFolder(folder).entries()) == count


def first_observation(store: el.EpisodeView) -> Any:
    """The first observation of a store, one value."""
    return at(store[0].observations, 0)


@pytest.mark.further
def test_processes_share_the_files(store: el.EpisodeStore, tmp_path: Path) -> None:
    """A pickled loader is small, and maps the same files where it arrives; two that build build once."""
    folder = tmp_path / "cache"
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        told = list(pool.map(build, [str(tmp_path / "store")] * 4, [str(folder)] * 4))
    assert all(each == files(folder) for each in told) and len(told[0]) == 5
    loader = mapped(store, folder, shuffle=True)
    expected = store.loader(4, shuffle=True)
    batches = iter(loader)
    assert_identical([next(batches)], [next(iter(expected))])
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        rest = pool.submit(list, pickle.loads(pickle.dumps(loader))).result(PATIENCE)
    assert_identical(rest, expected)


def build(path: str, folder: str) -> dict[str, int]:
    """Make a mapped loader; gives what is in the cache then."""
    loader = mapped(el.open(path), Path(folder))
    return files(Path(folder)) if loader else {}


KILLED = """
import os, signal, sys
import episodelake as el
from episodelake.readers.columns import mapped

def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)

mapped.read_arrays = die
el.open(sys.argv[1]).loader(4, cache=el.Cache("mmap", folder=sys.argv[2]))
"""


def test_a_killed_builder_leaves_nothing_that_counts(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Its unfinished files are no entries, hold nobody up, and go when the next one builds."""
    folder = tmp_path / "cache"
    command = [sys.executable, "-c", KILLED, str(tmp_path / "store"), str(folder)]
    assert subprocess.run(command, timeout=PATIENCE).returncode == -signal.SIGKILL
    left = set(os.listdir(folder))
    assert any(name.endswith(".building") for name in left) and not CacheFolder(folder).entries()
    assert_identical(mapped(store, folder), store.loader(4))
    assert not left & set(os.listdir(folder)) and len(os.listdir(folder)) == 5


def cut(content: bytearray) -> bytearray:
    """Half of a file."""
    return content[: len(content) // 2]


def flipped(place: Callable[[int], int]) -> Callable[[bytearray], bytearray]:
    """A file with one byte changed."""

    def change(content: bytearray) -> bytearray:
        content[place(len(content))] ^= 0xFF
        return content

    return change


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        lambda content: bytearray(),
        lambda content: content + b"more",
        lambda content: bytearray(len(content)),
        flipped(lambda size: 0),
        flipped(lambda size: size // 3),
        flipped(lambda size: size - 40),
        flipped(lambda size: size - 1),
    ],
    ids=["cut", "empty", "longer", "zeros", "first byte", "middle", "its facts", "last byte"],
)
def test_a_damaged_file_is_made_again(
    store: el.EpisodeStore, tmp_path: Path, damage: Callable[[bytearray], bytearray]
) -> None:
    """Whatever happened to it: the batches are right, and the file is whole afterwards."""
    folder = tmp_path / "cache"
    mapped(store, folder)
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    for path in folder.iterdir():
        path.write_bytes(damage(bytearray(path.read_bytes())))
    assert_identical(mapped(store, folder), store.loader(4))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole


def test_a_file_of_another_column_is_not_believed(store: el.EpisodeStore, tmp_path: Path) -> None:
    """A file under the name of another one is made again."""
    folder = tmp_path / "cache"
    mapped(store, folder, columns=["terminated", "truncated"])
    one, other = sorted(folder.iterdir())
    shutil.copyfile(one, other)
    assert_identical(mapped(store, folder), store.loader(4))


def test_a_full_disk_is_told(store: el.EpisodeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is decoded; what to do instead is said, and nothing is left behind."""
    folder = tmp_path / "cache"

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cache_folder.os, "posix_fallocate", full)
    with pytest.raises(el.errors.StoreAccessError, match=r"folder=.*cache='memory'"):
        mapped(store, folder)
    assert os.listdir(folder) == []


def test_a_folder_that_cannot_be_written_is_told(
    store: el.EpisodeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in its place, or a folder without permission; but what is there already is read."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(el.errors.StoreAccessError, match=r"folder=.*EPISODELAKE_CACHE.*cache='memory'"):
        mapped(store, tmp_path / "file")
    folder = tmp_path / "cache"
    mapped(store, folder, columns=["reward"])

    def refused(*args: Any, **more: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    for name in ("utime", "replace"):
        monkeypatch.setattr(cache_folder.os, name, refused)
    assert_identical(mapped(store, folder, columns=["reward"]), store.loader(4, columns=["reward"]))
    with pytest.raises(el.errors.StoreAccessError, match="Permission denied"):
        mapped(store, folder)
    assert len(os.listdir(folder)) == 1


def test_the_cache_is_bounded(tmp_path: Path) -> None:
    """What was not used for longest goes, nothing that is in use; too small a bound is told."""
    folder = tmp_path / "cache"
    store = segmented_store(tmp_path / "store", [500] * 6, BOX)
    one = CacheFolder(folder)
    size = 0

    def reward(number: int, **more: Any) -> el.Loader:
        return mapped(store[number : number + 1], folder, columns=["reward"], **more)

    held = reward(0)
    size = one.entries()[0].bytes
    reward(1), reward(2)
    for number, path in enumerate(sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)):
        os.utime(path, (number, number))
    reward(1)  # used again, so that the file of episode 2 is the older one
    kept = {entry.path for entry in one.entries() if entry.used > 2 or entry.in_use}
    assert len(kept) == 2
    bound = size * 7 // 2
    reward(3, max_bytes=bound)
    reward(4, max_bytes=bound)
    assert kept & {entry.path for entry in one.entries()} >= {
        entry.path for entry in one.entries() if entry.in_use
    }
    assert sum(entry.bytes for entry in one.entries()) <= bound
    before = os.listdir(folder)
    with pytest.raises(el.errors.StoreAccessError, match="max_bytes="):
        reward(5, max_bytes=size * 3 // 2)
    assert [entry.in_use for entry in one.entries()] == [True] and len(before) == 3
    assert_identical(held, store[:1].loader(4, columns=["reward"]))
    held = None
    gc.collect()
    reward(5, max_bytes=size * 3 // 2)
    assert len(one.entries()) == 1


def test_where_the_cache_is(store: el.EpisodeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder that is named, else that of the environment, else the user's folder for caches."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(cache_folder.VARIABLE, raising=False)
    store.loader(4, columns=["reward"], cache="mmap")
    assert len(os.listdir(tmp_path / "home" / "episodelake")) == 1
    monkeypatch.setenv(cache_folder.VARIABLE, str(tmp_path / "named"))
    store.loader(4, columns=["reward"], cache="mmap")
    assert len(os.listdir(tmp_path / "named")) == 1


def test_arguments_that_do_not_go_together(store: el.EpisodeStore, tmp_path: Path) -> None:
    """An unknown cache, and options of another one than is asked for."""
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"kind": "disk"}, "'memory', 'mmap', 'stream' or"),
        ({"folder": tmp_path}, "folder belong"),
        ({"kind": "stream", "max_bytes": 5}, "max_bytes belong"),
        ({"kind": "mmap", "buffer_bytes": 5}, "buffer_bytes belong"),
        ({"kind": "mmap", "folder": tmp_path, "max_bytes": 0}, "max_bytes=0"),
    ]
    for options, text in wrong:
        with pytest.raises(el.errors.InvalidArgumentError, match=text):
            el.Cache(**options)
    with pytest.raises(el.errors.InvalidArgumentError, match="cache='disk'"):
        store.loader(4, cache="disk")  # pyright: ignore[reportArgumentType]


def test_values_without_elements_are_mapped(tmp_path: Path) -> None:
    """A column may have no bytes at all."""
    space = gym.spaces.Dict(nothing=gym.spaces.Box(0, 1, (0,)), x=gym.spaces.Discrete(3))
    store = segmented_store(tmp_path / "store", [4, 2], space)
    for columns in (["observation"], ["observation", "action"]):
        expected = store.loader(4, columns=columns)
        assert_identical(mapped(store, tmp_path / "cache", columns=columns), expected)


def test_a_store_that_is_no_folder_is_mapped(tmp_path: Path) -> None:
    """Its columns lie on this machine afterwards."""
    store = segmented_store("memory://mapped", [7, 20, 3], BOX)
    assert_identical(mapped(store, tmp_path), store.loader(4))
    assert len(files(tmp_path)) == 5


def test_the_command_line_lists_and_clears(store: el.EpisodeStore, tmp_path: Path) -> None:
    """What is in use stays."""
    folder = tmp_path / "cache"
    run = CliRunner().invoke
    assert "empty" in run(app, ["cache", "list", "--folder", str(folder)]).output
    held = mapped(store, folder, columns=["observation"])
    mapped(store, folder, columns=["action", "reward"])
    listed = run(app, ["cache", "list", "--folder", str(folder)])
    assert listed.exit_code == 0 and "observation" in listed.output and "reward" in listed.output
    assert "2 files" in run(app, ["cache", "clear", "--folder", str(folder)]).output
    assert list(files(folder)) == [f"observation {store.version}"] and len(held)


def test_arrays_are_read_into_place(store: el.EpisodeStore) -> None:
    """Whatever the arrays held before, a transition's column is zero where an episode has no transition."""
    loader = store.loader(4)
    feed: Any = loader._feed  # pyright: ignore[reportPrivateUsage]
    for name in ("action", "reward", "terminated", "truncated"):
        for _, array in flat(feed.arrays.columns[name]):
            assert not array[feed.arrays.index.padding].any()
    assert step_arrays.empty_arrays([], 5, step_arrays.pooled) == {}


def test_vacuum_removes_cached_columns_of_what_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After deletion and vacuum no file of the cache has a deleted value, even one that is mapped."""
    monkeypatch.setenv("EPISODELAKE_CACHE", str(tmp_path / "cache"))
    store = numbered_store(tmp_path / "store", [3, 4])
    other = numbered_store(tmp_path / "other", [2])
    loaders = [each.loader(2, cache="mmap", columns=["reward"]) for each in (store, other)]
    assert all(list(loader) for loader in loaders)
    assert len(list((tmp_path / "cache").glob("*.column"))) == 2
    store.delete("true")
    store.vacuum(timedelta(0))
    (left,) = CacheFolder(tmp_path / "cache").entries()
    assert left.facts["store"] == other.selection().snapshot.manifest.store_id


def test_vacuumed_versions_leave_other_caches_with_the_next_column(tmp_path: Path) -> None:
    """A cache that a vacuum does not know loses vacuumed versions once a loader adds a column to it."""
    store = numbered_store(tmp_path / "store", [3, 4])
    folder = tmp_path / "elsewhere"
    list(store.loader(2, cache=el.Cache("mmap", folder=folder), columns=["reward"]))
    store.delete("length = 3")
    store.vacuum(timedelta(0))
    list(store.loader(2, cache=el.Cache("mmap", folder=folder), columns=["reward"]))
    (left,) = CacheFolder(folder).entries()
    assert left.facts["version"] == store.version


def test_cached_columns_are_private(tmp_path: Path) -> None:
    """The folder of a cache and the files in it can be read by their user alone, whatever the umask."""
    store = numbered_store(tmp_path / "store", [3])
    folder = tmp_path / "cache"
    list(store.loader(2, cache=el.Cache("mmap", folder=folder), columns=["reward"]))
    found = [folder, *folder.iterdir()]
    assert [path.stat().st_mode & 0o077 for path in found] == [0] * len(found)


def _advised(folder: Path) -> set[bool]:
    """Whether mappings of the cache's files are read a page at a time, as the kernel says."""
    parts = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    flags = [part.split("VmFlags:")[1].split() for part in parts if str(folder) in part.partition("\n")[0]]
    return {"rr" in each for each in flags}


@pytest.mark.further
@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_files_larger_than_memory_are_read_by_the_page(
    store: el.EpisodeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random rows of large files bring no pages around them; those of small files, or in order, do."""
    cache = el.Cache("mmap", folder=tmp_path)
    plain = list(store.loader(8, shuffle=True, seed=1))
    loader = store.loader(8, shuffle=True, seed=1, cache=cache)
    assert _advised(tmp_path) == {False}
    monkeypatch.setattr(mapped_columns, "memory_bytes", lambda: 1)
    ordered = store.loader(8, cache=cache)
    assert _advised(tmp_path) == {False}
    del loader, ordered
    gc.collect()
    whole = store.loader(2, el.Episodes(), shuffle=True, seed=1, cache=cache)
    assert _advised(tmp_path) == {False}
    del whole
    gc.collect()
    drawn: list[dict[str, Any]] = [
        {"shuffle": True},
        {"weights": "episodes"},
        {"shuffle": True, "units": el.Windows(2)},
    ]
    for options in drawn:
        loader = store.loader(8, seed=1, cache=cache, **options)
        copy = pickle.loads(pickle.dumps(loader))
        del loader
        gc.collect()
        assert True in _advised(tmp_path)
        next(iter(copy))
        del copy
        gc.collect()
        assert not _advised(tmp_path)
    assert_identical(plain, list(store.loader(8, shuffle=True, seed=1, cache=cache)))


@pytest.mark.parametrize(("text", "limited"), [("4096\n", True), ("max\n", False)])
def test_the_memory_of_a_container_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, limited: bool
) -> None:
    """Its limit is the memory, where it has one."""
    (tmp_path / "memory.max").write_text(text)
    monkeypatch.setattr(mapped_columns, "_CONTAINER_LIMITS", (tmp_path / "memory.max", tmp_path / "none"))
    assert (mapped_columns.memory_bytes() == 4096) is limited
