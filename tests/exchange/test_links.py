"""Links in a store that lead out of it: nothing behind them is deleted, created or overwritten.

Nor is anything in a journal's folder that no journal made. A store that itself lies behind a link is fine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el
from episodelake.store.journal.run_journal import remove_journal
from waiting import PATIENCE

FOLDERS = [
    "journal",
    "annotations",
    "tags",
    "artifacts",
    "artifact_names",
    "environments",
    *(table for table in ("runs", "episodes", "steps")),
    *(f"{table}/_delta_log" for table in ("runs", "episodes", "steps")),
]


def add(store: el.EpisodeStore) -> None:
    """Record an episode."""
    with store.writer(run="a") as writer:
        writer.write_episode(
            observations=np.zeros((3, 1), np.float32),
            actions=np.zeros(2, int),
            rewards=np.ones(2),
            terminations=True,
            truncations=False,
        )


def annotate(store: el.EpisodeStore) -> None:
    """Add a column to the episodes."""
    store.annotate(store.episodes.select("episode_id").collect().with_columns(label=1))


OPERATIONS: dict[str, Callable[[Path], object]] = {
    "recover": el.recover,
    "writer": lambda path: add(el.open(path)),
    "vacuum": lambda path: el.open(path).vacuum(timedelta(0)),
    "compact": lambda path: el.open(path).compact(),
    "delete": lambda path: el.open(path).delete("length = 2"),
    "annotate": lambda path: annotate(el.open(path)),
    "tag": lambda path: el.open(path).tag("new"),
    "verify": lambda path: el.open(path).verify(repair=True),
    "copy": lambda path: el.open(path).copy(path.with_name("copied")),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with two segments, a tag, and a folder of the user's beside it."""
    store = el.create(
        tmp_path / "store",
        observation_space=spaces.Box(-9, 9, (1,)),
        action_space=spaces.Discrete(2),
    )
    add(store)
    add(store)
    store.refresh().tag("t")
    home = tmp_path / "home"
    for name in ("photos/2024/a.jpg", "data/table.parquet", "note.json", "old-live.parquet", "x.frames"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("precious")
        os.utime(home / name, (0, 0))
    return tmp_path / "store"


def content(folder: Path) -> dict[str, tuple[bytes, float]]:
    """All files below a folder, with their times."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file): (file.read_bytes(), file.stat().st_mtime) for file in files} | {
        str(found): (b"", 0) for found in folder.rglob("*") if found.is_dir()
    }


def run_all(path: Path) -> None:
    """Run every operation; what a link makes impossible must be an error of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for name, operation in OPERATIONS.items():
            try:
                operation(path)
            except el.EpisodelakeError as error:
                assert str(error), name


@pytest.mark.sample
@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("moved", [False, True], ids=["other", "moved"])
def test_nothing_behind_a_linked_folder_changes(folder: str, moved: bool, path: Path) -> None:
    """Every operation leaves what a linked folder leads to as it was, even the store's own moved folder."""
    outside = path.parent / "home"
    if moved and (path / folder).exists():
        outside = path.parent / "moved"
        shutil.move(path / folder, outside)
    shutil.rmtree(path / folder, ignore_errors=True)
    (path / folder).symlink_to(outside, target_is_directory=True)
    before = content(outside)
    run_all(path)
    assert content(outside) == before


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["journal/maintenance.lock", "journal/x.lock"])
@pytest.mark.parametrize("target", ["note.json", "new"])
def test_a_linked_lock_is_not_followed(name: str, target: str, path: Path) -> None:
    """A lock that is a link creates, locks and overwrites nothing where it leads."""
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(path.parent / "home" / target)
    before = content(path.parent / "home")
    run_all(path)
    assert content(path.parent / "home") == before


@pytest.mark.further
def test_a_link_in_the_way_of_a_new_file_is_refused(path: Path) -> None:
    """A recovery whose steps file would have the name of a link writes nothing through it."""
    script = (
        "import os, sys, numpy as np, episodelake as el\n"
        "writer = el.open(sys.argv[1]).writer(run='b')\n"
        "writer.begin(np.zeros(1, np.float32)).append(1, 1.0, np.zeros(1, np.float32))\n"
        "writer.flush(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=PATIENCE)
    (journal,) = (path / "journal").glob("b-*/")
    note = path.parent / "home" / "note.json"
    for table in ("steps", "episodes"):
        (path / table / f"{journal.name}-000000.parquet").symlink_to(note)
    with pytest.raises(el.errors.CorruptStoreError, match="is a link"):
        el.recover(path)
    assert note.read_text() == "precious"


def test_folders_and_files_of_the_user_survive_recovery(path: Path) -> None:
    """A folder in `journal/` without a journal stays, and so does the user's file beside a lock's name."""
    notes = path / "journal" / "my-notes"
    notes.mkdir()
    (notes / "notes.txt").write_text("mine")
    (path / "journal" / "my.lock").write_text("mine too")
    (path / "journal" / "empty").mkdir()
    assert el.recover(path) == []
    add(el.open(path))
    assert (notes / "notes.txt").read_text() == "mine"
    assert (path / "journal" / "my.lock").read_text() == "mine too"
    assert (path / "journal" / "empty").is_dir()
    assert el.open(path).verify().faults == ()


def test_the_users_files_in_a_journal_stay(tmp_path: Path) -> None:
    """Deleting a journal deletes its parts and its log; a warning lists other files and links."""
    journal = tmp_path / "run"
    journal.mkdir()
    (tmp_path / "outside").write_text("precious")
    for name in ("000000.frames", "seals.log", "notes.txt", "mine.frames"):
        (journal / name).write_text("")
    (journal / "000001.frames").symlink_to(tmp_path / "outside")
    with pytest.warns(RuntimeWarning, match=r"000001.frames, mine.frames, notes.txt"):
        remove_journal(journal)
    assert sorted(os.listdir(journal)) == ["000001.frames", "mine.frames", "notes.txt"]
    assert (tmp_path / "outside").read_text() == "precious"


def test_a_linked_journal_is_not_deleted(tmp_path: Path) -> None:
    """Deleting a journal whose folder is a link fails, whatever lies behind it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "000000.frames").write_text("precious")
    (tmp_path / "run").symlink_to(tmp_path / "outside")
    with pytest.raises(el.errors.StoreAccessError):
        remove_journal(tmp_path / "run")
    assert (tmp_path / "outside" / "000000.frames").read_text() == "precious"


def test_damaged_journals_are_never_replaced(path: Path) -> None:
    """A second damaged journal of a run gets a name of its own beside the first one."""
    for _ in range(3):
        journal = path / "journal" / "c-1"
        journal.mkdir()
        (journal / "000000.frames").symlink_to("/nowhere")
        with pytest.raises(el.errors.CorruptStoreError):
            el.recover(path)
    aside = sorted(file.name for file in (path / "journal").glob("c-1*"))
    assert aside == ["c-1.2.damaged", "c-1.3.damaged", "c-1.damaged"]


def test_a_store_behind_a_link_is_fine(path: Path) -> None:
    """A store that is reached through a link, or whose folder is one, is written as any other."""
    (path.parent / "linked").symlink_to(path)
    (path.parent / "above").symlink_to(path.parent)
    for place in (path.parent / "linked", path.parent / "above" / "store"):
        count = len(el.open(place))
        add(el.open(place))
        store = el.open(place)
        assert len(store) == count + 1
        store.compact()
        store.vacuum(timedelta(0))
        assert el.recover(place) == []
        assert el.open(place).verify().faults == ()
