"""Copies: there as a whole or not at all, whoever dies, and valid whoever records meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import episodelake as el
from maintenance_stores import (
    AWKWARD_SPACES,
    assert_contents,
    assert_faces_agree,
    awkward_store,
    contents,
    files_under,
    segments_of,
)
from real_environments import NUMBERED_SPACES, numbered_store, values_of
from waiting import PATIENCE, line_of

# Copies that were cut short

CUT_SHORT = """
import os, sys
import episodelake as el
from episodelake.store.files.local import LocalPlace

left = int(sys.argv[3])
real = LocalPlace.write

def write(self, *words, **named):
    global left
    left -= 1
    if not left:
        os._exit(9)
    real(self, *words, **named)

LocalPlace.write = write
source = el.open(sys.argv[1])
source.copy(sys.argv[2], "length > 1") if sys.argv[4] == "copy" else el.merge([source], into=sys.argv[2])
"""


@pytest.mark.further
@pytest.mark.parametrize("kind", ["copy", "merge"])
def test_a_killed_copy_is_no_store_and_may_be_repeated(tmp_path: Path, kind: str) -> None:
    """Wherever a copy is killed there is no store, or the whole one; to copy again makes the whole one."""
    store = awkward_store(tmp_path / "store")
    store.annotate(store.steps.select("episode_id", "t", v=pl.col("t") * 2), on=("episode_id", "t"))
    store.card = {"about": "copies"}
    whole = contents(store.filter("length > 1") if kind == "copy" else store)
    codes, seen = [], set()
    for number in (3, 7, 99) if kind == "copy" else (5,):
        target = tmp_path / f"{kind}-{number}"
        words = [sys.executable, "-c", CUT_SHORT, str(store.path), str(target), str(number), kind]
        codes.append(subprocess.run(words, timeout=PATIENCE, check=False).returncode)
        try:
            assert_contents(el.open(target), whole)
            seen.add("whole")
        except el.errors.StoreNotFoundError:
            seen.add("nothing")
            if target.exists() and list(target.rglob("*.json")):
                with pytest.raises(el.errors.StoreExistsError, match="not finished"):
                    el.create(target, **AWKWARD_SPACES)
            made = store.copy(target, "length > 1") if kind == "copy" else merged([store], target)
            assert_contents(made, whole)
            assert made.verify().ok and not list(target.glob("*.unfinished"))
            assert made.card == ({"about": "copies"} if kind == "copy" else {})
    assert (codes, seen) == (([9, 9, 0], {"whole", "nothing"}) if kind == "copy" else ([9], {"nothing"}))


def merged(sources: list[el.EpisodeStore], into: Path) -> el.EpisodeStore:
    """Return a new store with the episodes of others."""
    el.merge(sources, into=into)
    return el.open(into)


@pytest.mark.further
def test_what_another_copy_left_does_not_come_along(tmp_path: Path) -> None:
    """A copy that was cut short leaves no column, run or episode in the next one at its place."""
    first, second = awkward_store(tmp_path / "first"), numbered_store(tmp_path / "second", [2, 3])
    first.annotate(first.steps.select("episode_id", "t", v=pl.col("t") * 2), on=("episode_id", "t"))
    target = tmp_path / "copy"
    words = [sys.executable, "-c", CUT_SHORT, str(first.path), str(target), "8", "copy"]
    assert subprocess.run(words, timeout=PATIENCE, check=False).returncode == 9
    (target / "steps" / "mine.txt").write_text("mine", "utf-8")
    copied = second.copy(target)
    assert values_of(copied) == [0, 1] and copied.annotations.height == 0 and copied.card == {}
    assert (
        copied.runs.collect().height == 1 and copied.steps.collect_schema() == second.steps.collect_schema()
    )
    assert (target / "steps" / "mine.txt").read_text("utf-8") == "mine"
    assert copied.verify().ok


@pytest.mark.parametrize("there", [False, True], ids=["no folder", "empty folder"])
@pytest.mark.parametrize("reason", ["damage", "full disk", "Ctrl-C"])
def test_a_failed_copy_leaves_nothing(tmp_path: Path, reason: str, there: bool) -> None:
    """A copy or merge that raises leaves neither file nor folder, but a folder that was there stays."""
    store = numbered_store(tmp_path / "store", [2, 3], seal_every=1)
    target = tmp_path / "some" / "copy" if not there else tmp_path / "copy"
    if reason == "damage":
        (file,) = [store.path / "steps" / name for name in sorted(segments_of(store))[1:]]
        file.write_bytes(b"PAR1")

    def tell(*_: int) -> None:
        if reason != "damage":
            raise KeyboardInterrupt if reason == "Ctrl-C" else OSError(28, "No space left on device")

    errors = (el.errors.CorruptStoreError, OSError, KeyboardInterrupt)
    for make in (
        lambda: store.copy(target, progress=tell),
        lambda: el.merge(store, into=target, progress=tell),
    ):
        if there:
            target.mkdir(exist_ok=True)
        with pytest.raises(errors):
            make()
        assert target.exists() is there
        assert files_under(target) == set() and not (target / "journal").exists()
    assert len(el.create(target, **NUMBERED_SPACES)) == 0


# Copies of a store that is being written

BACKED_UP = """
import sys, time, numpy as np, episodelake as el
with el.open(sys.argv[1]).writer(run="live", flush_seconds=0.01) as writer:
    number = 0
    while True:
        writer.write_episode(
            observations=np.full((3, 2), number, np.float32), actions=np.zeros(2, int),
            rewards=np.full(2, number), terminations=True, truncations=False,
            metadata={"number": number, **({"late": "x"} if number > 3 else {})},
        )
        number += 1
        if number % 2 == 0:
            writer.seal()
            print(number, flush=True)
            time.sleep(0.02)  # whatever is written is copied and verified too
"""


@pytest.mark.further
def test_a_copy_while_writers_record_is_a_whole_snapshot(tmp_path: Path) -> None:
    """Copies beside a writer of another process, compaction and deletion are valid and hold some version."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    words = [sys.executable, "-c", BACKED_UP, str(store.path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as writer:
        try:
            for number in range(2):
                said = int(line_of(writer))
                copied = el.open(store.path).copy(tmp_path / f"backup-{number}")
                assert copied.verify().ok and said <= len(copied)
                found = [episode.metadata["number"] for episode in copied]
                assert found == list(range(len(found)))
                assert_faces_agree(copied)
                if number == 0:
                    store.compact()
        finally:
            writer.kill()
    el.recover(store.path)
    late = el.open(tmp_path / "backup-1")
    assert el.merge([store.path], into=late).episodes == len(el.open(store.path)) - len(found)
    assert len(late) == len(el.open(store.path)) and late.verify().ok
