"""Where exports and other files come to lie: outside of stores, replacing exports only."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el
from episodelake.readers.exporting import atomic
from episodelake.terminal.output.exporting import check_target
from episodelake.testing.adapters import case
from episodelake.testing.format_exports import contents
from waiting import PATIENCE

OBSERVATION = spaces.Box(0, 255, (8, 8, 3), np.uint8)
#: A folder, and a single file.
KINDS = [("webdataset", "out"), ("csv", "out.csv")]


def filled(path: Path, count: int = 3, observation: spaces.Space = OBSERVATION) -> el.EpisodeStore:
    """A store of some episodes with pictures."""
    store = el.create(path, observation_space=observation, action_space=spaces.Discrete(2))
    with store.writer() as writer:
        for value in range(count):
            writer.write_episode(
                observations=np.full((3, *(observation.shape or ())), value, observation.dtype),
                actions=[0, 1],
                rewards=[1.0, float(value)],
                terminations=True,
                truncations=False,
            )
    return store.refresh()


def numbers(path: Path, count: int = 3) -> el.EpisodeStore:
    """A store that CSV holds too."""
    return filled(path, count, spaces.Box(0, 9, (2,), np.float32))


@pytest.mark.parametrize(
    ("first", "second"), [(a, b) for a in ("webdataset", "csv") for b in ("webdataset", "csv")]
)
def test_an_export_takes_the_place_of_another(tmp_path: Path, first: str, second: str) -> None:
    """Of any format, as often as one likes; what stands there then is what a fresh export is."""
    store = numbers(tmp_path / "store")
    (tmp_path / "all").mkdir()
    for format in (first, second, second):
        report = store.export(tmp_path / "all" / "out", format=format, overwrite=True)
        store = store[:2] if format == first else store  # type: ignore[assignment]
    store.export(tmp_path / "fresh" / "out", format=second)
    assert contents(tmp_path / "all").keys() == contents(tmp_path / "fresh").keys()
    assert report.format == second
    moved = tmp_path / "moved"
    (tmp_path / "all").rename(moved)
    store.export(moved / "out", format=second, overwrite=True)


def test_a_file_that_took_the_place_of_an_export_stays(tmp_path: Path) -> None:
    """The mark beside a file names the exported file, and no other of its name."""
    store, target = numbers(tmp_path / "store"), tmp_path / "out.csv"
    store.export(target, format="csv")
    store.export(target, format="csv", overwrite=True)
    target.unlink()
    target.write_text("my own")
    with pytest.raises(el.errors.StoreExistsError, match="no export wrote"):
        store.export(target, format="csv", overwrite=True)
    assert target.read_text() == "my own"
    target.unlink()
    store.export(target, format="csv")
    store.export(target, format="csv", overwrite=True)


def test_a_folder_of_the_name_of_a_draft_keeps_its_files(tmp_path: Path) -> None:
    """Only drafts are deleted."""
    mine = tmp_path / ".out.csv.episodelake-export" / "notes"
    mine.mkdir(parents=True)
    numbers(tmp_path / "store").export(tmp_path / "out.csv", format="csv")
    assert mine.is_dir()


def test_a_store_in_an_export_is_not_deleted(tmp_path: Path) -> None:
    """An export that contains a store, at any depth, is not replaced."""
    store = numbers(tmp_path / "store")
    store.export(tmp_path / "out", format="webdataset")
    inner = numbers(tmp_path / "out" / "below" / "inner")
    with pytest.raises(el.errors.StoreExistsError, match=r"contains the store .*inner"):
        store.export(tmp_path / "out", format="webdataset", overwrite=True)
    assert inner.verify().ok


def test_an_empty_folder_and_a_very_long_name_are_targets(tmp_path: Path) -> None:
    """A folder without a file loses nothing; of the longest names the mark has a digest."""
    store = numbers(tmp_path / "store")
    (tmp_path / "out").mkdir()
    with pytest.raises(el.errors.StoreExistsError, match="overwrite=True"):
        store.export(tmp_path / "out", format="csv")
    store.export(tmp_path / "out", format="csv", overwrite=True)
    assert (tmp_path / "out").is_file()
    (tmp_path / "folder").mkdir()
    store.export(tmp_path / "folder", format="webdataset")
    assert (tmp_path / "folder" / "episodelake.json").is_file()
    (tmp_path / "nested" / "inner").mkdir(parents=True)
    with pytest.raises(el.errors.StoreExistsError, match="is there already"):
        store.export(tmp_path / "nested", format="webdataset")
    for name in ("n" * 255, "ü" * 127):
        for _ in range(2):
            store.export(tmp_path / name, format="csv", overwrite=True)


def test_the_current_folder_is_no_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is one around it: the process would work in a deleted folder afterwards."""
    store, here = numbers(tmp_path / "store"), tmp_path / "here"
    (here / "below").mkdir(parents=True)
    monkeypatch.chdir(here / "below")
    for target, overwrite in ((".", False), (here, True), (here / "below", True)):
        with pytest.raises(el.errors.StoreExistsError, match="is the current folder, or one around it"):
            store.export(target, format="webdataset", overwrite=overwrite)
    assert Path.cwd() == here / "below" and not any(Path.cwd().iterdir())
    store.export("new", format="webdataset")
    assert any((here / "below" / "new").iterdir())


def test_two_exports_to_one_target_do_not_disturb_each_other(tmp_path: Path) -> None:
    """The second is refused while the first is under way."""
    store = numbers(tmp_path / "store")

    def export_again(done: int, total: int) -> None:
        with pytest.raises(el.errors.StoreExistsError, match="Another process exports to"):
            store.export(tmp_path / "out", format="webdataset")

    store.export(tmp_path / "out", format="webdataset", progress=export_again)
    assert sorted(os.listdir(tmp_path)) == ["out", "store"]


@pytest.fixture
def inside(tmp_path: Path) -> tuple[el.EpisodeStore, Path]:
    """A store, and a path in the folder of another one."""
    other = filled(tmp_path / "other")
    (other.path / "below").mkdir()
    return filled(tmp_path / "store"), other.path / "below" / "target"


def _import(store: el.EpisodeStore, path: Path) -> None:
    store.export(store.path.with_name("rows.parquet"), format="parquet")
    el.import_dataset(store.path.with_name("rows.parquet"), path)


def _artifact(store: el.EpisodeStore, path: Path) -> None:
    store.artifacts.add(b"content", name="a.bin")
    store.artifacts.get("a.bin", into=path)


WRITERS: dict[str, Callable[[el.EpisodeStore, Path], Any]] = {
    "create": lambda store, path: filled(path),
    "copy": lambda store, path: store.copy(path),
    "merge": lambda store, path: el.merge([store, store], path),
    "import": _import,
    "mp4": lambda store, path: store[0].video().save(path.with_suffix(".mp4")),
    "gif": lambda store, path: store[0].video().save(path.with_suffix(".gif")),
    "png": lambda store, path: store[0].video().save(path.with_suffix(".png")),
    "artifact": _artifact,
    "output of a command": lambda store, path: check_target(path.with_suffix(".csv")),
    "cache": lambda store, path: next(iter(store.loader(2, cache=el.Cache("mmap", folder=path)))),
}


def test_nothing_is_written_into_another_store(inside: tuple[el.EpisodeStore, Path]) -> None:
    """Every function that takes a path for its result refuses one in the folder of a store."""
    for name in WRITERS:
        with case(name):
            store, path = inside
            before = contents(path.parent.parent)
            with pytest.raises(
                el.errors.InvalidArgumentError,
                match=r"is inside the store .*other, which holds its own files",
            ):
                WRITERS[name](store, path)
            assert contents(path.parent.parent) == before and not os.listdir(path.parent)


def test_a_file_of_the_name_of_a_manifest_is_no_store(tmp_path: Path) -> None:
    """Other programs have a store.json too."""
    for number, text in enumerate(("{}", "[]", "no JSON", "[" * 100_000)):
        (tmp_path / "store.json").write_text(text)
        numbers(tmp_path / f"store-{number}").export(tmp_path / "out.csv", format="csv", overwrite=True)


#: Exports `new` of a store over `old` of it in child processes, which it kills at each of their steps.
KILLING = """
import contextlib, importlib, os, signal, sys
from pathlib import Path
import episodelake as el

path, format, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
stride = int(sys.argv[4])
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def child(work):
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def export(count, **given):
    el.open(path / "store")[:count].export(path / "all" / name, format=format, **given)


def export_killed(at):
    seen = 0

    def step():
        nonlocal seen
        seen += 1
        if seen > at:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event, arguments):
        changing = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link")
        if changing or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING):
            step()

    sys.addaudithook(hook)
    export(4, overwrite=True)


def contents(folder):
    files = {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    return {key: value for key, value in files.items() if not key.endswith("export.json")}


def check(what, allowed):
    target = path / "all" / name
    left = contents(target) if target.is_dir() else target.read_bytes()
    assert left in allowed, (at, what)


def states():
    for count in (2, 4):
        assert child(lambda: export(count, overwrite=True)) == 0
        target = path / "all" / name
        yield contents(target) if target.is_dir() else target.read_bytes()


# A process that has used a store cannot fork, but one that has imported what an export needs can.
assert child(lambda: (export(1), (path / "modules").write_text(" ".join(sys.modules)))) == 0
for module in (path / "modules").read_text().split():
    with contextlib.suppress(ImportError):
        importlib.import_module(module)
old, new = states()
assert old != new
names = set(os.listdir(path / "all"))
at = 0
while True:
    assert child(lambda: export(2, overwrite=True)) == 0
    check("restored", [old])
    assert set(os.listdir(path / "all")) == names, (at, os.listdir(path / "all"))
    code = child(lambda: export_killed(at))
    if code == 0:
        break
    assert code == -signal.SIGKILL, (at, code)
    if (path / "all" / name).exists() or format == "csv":
        check("killed", [old, new])
    at += stride
check("done", [new])
assert set(os.listdir(path / "all")) == names
assert at >= 8, at
print(at)
"""


@pytest.mark.parametrize(
    ("format", "name", "stride"),
    [
        ("webdataset", "out", 16),
        *(pytest.param(*kind, 1, marks=pytest.mark.further) for kind in KINDS),
    ],
)
@pytest.mark.further
def test_an_overwrite_that_is_killed_leaves_the_old_or_the_new_export(
    tmp_path: Path, format: str, name: str, stride: int
) -> None:
    """At whatever step; the next call removes what it left, and puts back what it had moved away."""
    numbers(tmp_path / "store", 4)
    script = [sys.executable, "-c", KILLING, str(tmp_path), format, name, str(stride)]
    result = subprocess.run(script, capture_output=True, text=True, timeout=PATIENCE)
    assert result.returncode == 0, result.stderr


def test_an_interrupt_between_two_renames_keeps_the_old_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt after the old export was moved away moves it back."""
    target, rename = tmp_path / "out", Path.rename

    def interrupted(self: Path, to: Any) -> None:
        rename(self, to)
        monkeypatch.setattr(Path, "rename", rename)
        raise KeyboardInterrupt

    for content in ("old", "new"):
        with (
            contextlib.suppress(KeyboardInterrupt),
            atomic.atomic_target(target, "x", folder=False, overwrite=True) as draft,
        ):
            draft.mkdir()
            (draft / "file").write_text(content)
            if content == "new":
                monkeypatch.setattr(Path, "rename", interrupted)
    assert (target / "file").read_text() == "old"
    assert not (tmp_path / ".out.episodelake-export").exists()


def test_many_exports_into_one_folder(tmp_path: Path) -> None:
    """Exports to other targets beside one neither fail nor disturb it."""

    def export(number: int) -> None:
        for turn in range(30):
            with atomic.atomic_target(
                tmp_path / f"{number}-{turn}", "x", folder=True, overwrite=False
            ) as draft:
                draft.write_text("content")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(export, range(4)))
    assert len([path for path in tmp_path.iterdir() if path.name[0] != "."]) == 120
