"""Where exports and other files come to lie: outside of stores, in the place of unchanged exports only."""

from __future__ import annotations

import contextlib
import errno
import hashlib
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
from episodelake.readers.exporting import placing
from episodelake.terminal.output.exporting import check_target
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


def content(folder: Path) -> dict[str, str]:
    """Return a digest of each file, and where links lead."""
    return {
        str(each.relative_to(folder)): os.readlink(each)
        if each.is_symlink()
        else hashlib.sha256(each.read_bytes()).hexdigest()
        for each in sorted(folder.rglob("*"))
        if each.is_symlink() or each.is_file()
    }


def _folder_of_files(at: Path, store: el.EpisodeStore, format: str) -> None:
    (at / "thesis").mkdir(parents=True)
    (at / "thesis" / "final.tex").write_text("x")


def _file(at: Path, store: el.EpisodeStore, format: str) -> None:
    at.write_text("a,b\n1,2\n")


def _store(at: Path, store: el.EpisodeStore, format: str) -> None:
    numbers(at)


def _folder_of_stores(at: Path, store: el.EpisodeStore, format: str) -> None:
    numbers(at / "one")


def _link_to_folder(at: Path, store: el.EpisodeStore, format: str) -> None:
    _folder_of_files(at.with_name("elsewhere"), store, format)
    at.symlink_to(at.with_name("elsewhere"))


def _link_to_nothing(at: Path, store: el.EpisodeStore, format: str) -> None:
    at.symlink_to("nowhere")


def _link_to_export(at: Path, store: el.EpisodeStore, format: str) -> None:
    store.export(at.with_name("elsewhere"), format=format)
    at.symlink_to(at.with_name("elsewhere"))


def _fifo(at: Path, store: el.EpisodeStore, format: str) -> None:
    os.mkfifo(at)


def _edited(at: Path, store: el.EpisodeStore, format: str) -> None:
    store.export(at, format=format)
    file = at if at.is_file() else next(at.glob("*.tar"))
    file.write_bytes(file.read_bytes()[:-1] + b"#")


def _with_a_file_more(at: Path, store: el.EpisodeStore, format: str) -> None:
    store.export(at, format="webdataset")
    (at / "notes.txt").write_text("mine")


def _with_a_link_more(at: Path, store: el.EpisodeStore, format: str) -> None:
    store.export(at, format="webdataset")
    (at / "data").symlink_to(at.parent)


def _with_an_empty_folder_more(at: Path, store: el.EpisodeStore, format: str) -> None:
    store.export(at, format="webdataset")
    (at / "mine").mkdir()


def _with_a_file_less(at: Path, store: el.EpisodeStore, format: str) -> None:
    store.export(at, format="webdataset")
    next(at.glob("*.tar")).unlink()


def _without_a_mark(at: Path, store: el.EpisodeStore, format: str) -> None:
    store.export(at, format="webdataset")
    (at / placing.MARK).unlink()


def _with_a_damaged_mark(at: Path, store: el.EpisodeStore, format: str) -> None:
    store.export(at, format="webdataset")
    (at / placing.MARK).write_text("[" * 100_000)


#: What stands at the target, and how the message names it.
STANDING: list[tuple[Callable[[Path, el.EpisodeStore, str], None], str]] = [
    (_folder_of_files, r"is a folder with 1 files that no export wrote, such as thesis/final\.tex"),
    (_file, "is a file of 8 bytes that no export wrote"),
    (_store, "is the store "),
    (_folder_of_stores, r"is a folder with \d+ files that no export wrote"),
    (_link_to_folder, "is a link to .*elsewhere"),
    (_link_to_nothing, "is a link to nowhere"),
    (_link_to_export, "is a link to .*elsewhere"),
    (_fifo, "is no ordinary file or folder"),
    (_edited, r"is an export \((csv|webdataset)\) that was changed since"),
    (_with_a_file_more, r"that was changed since, in notes\.txt"),
    (_with_a_link_more, "that was changed since, in data"),
    (_with_an_empty_folder_more, "that was changed since, in mine"),
    (_with_a_file_less, r"that was changed since, in shard-000000\.tar"),
    (_without_a_mark, "files that no export wrote"),
    (_with_a_damaged_mark, "files that no export wrote"),
]


@pytest.mark.sample
@pytest.mark.parametrize(("standing", "words"), STANDING)
@pytest.mark.parametrize(("format", "name"), KINDS)
def test_overwriting_replaces_nothing_but_an_unchanged_export(
    tmp_path: Path, standing: Callable[..., None], words: str, format: str, name: str
) -> None:
    """Whatever else stands at the target stays as it is, and the message names it."""
    store = numbers(tmp_path / "store")
    standing(tmp_path / name, store, format)
    before = content(tmp_path)
    with pytest.raises(el.errors.StoreExistsError, match=words):
        store.export(tmp_path / name, format=format, overwrite=True)
    assert content(tmp_path) == before
    assert not list(tmp_path.glob(".*.exporting*"))


def test_a_live_writer_of_another_store_goes_on(tmp_path: Path) -> None:
    """Its acknowledged episodes are there after an export was to overwrite its store."""
    store, other = numbers(tmp_path / "store"), numbers(tmp_path / "other")
    with other.writer(durability="fsync") as writer:
        episode = writer.begin(np.zeros(2, np.float32))
        episode.append(1, 1.0, np.ones(2, np.float32), terminated=True)
        writer.flush()
        for format in ("webdataset", "csv"):
            with pytest.raises(el.errors.StoreExistsError, match="is the store"):
                store.export(other.path, format=format, overwrite=True)
    assert len(other.refresh()) == 4 and other.verify().ok


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
    assert content(tmp_path / "all").keys() == content(tmp_path / "fresh").keys()
    assert report.format == second
    moved = tmp_path / "moved"
    (tmp_path / "all").rename(moved)
    store.export(moved / "out", format=second, overwrite=True)


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
        (tmp_path / name).write_text("mine")
        with pytest.raises(el.errors.StoreExistsError, match="changed since"):
            store.export(tmp_path / name, format="csv", overwrite=True)


def test_two_exports_to_one_target_do_not_disturb_each_other(tmp_path: Path) -> None:
    """The second is refused while the first is under way."""
    store = numbers(tmp_path / "store")

    def export_again(done: int, total: int) -> None:
        with pytest.raises(el.errors.StoreExistsError, match="Another process exports to"):
            store.export(tmp_path / "out", format="webdataset")

    store.export(tmp_path / "out", format="webdataset", progress=export_again)
    assert sorted(os.listdir(tmp_path)) == ["out", "store"]


@pytest.mark.parametrize(("format", "name"), KINDS)
def test_what_appears_at_the_target_meanwhile_stays(tmp_path: Path, format: str, name: str) -> None:
    """A file that the user writes during the export is not replaced, with `overwrite` or without."""
    store = numbers(tmp_path / "store")

    def write(done: int, total: int) -> None:
        (tmp_path / name).write_text("mine")

    for overwrite in (False, True):
        with pytest.raises(el.errors.StoreExistsError):
            store.export(tmp_path / name, format=format, overwrite=overwrite, progress=write)
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()
    assert os.listdir(tmp_path) == ["store"]


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
    "export of a folder": lambda store, path: store.export(path, format="webdataset"),
    "export of a file": lambda store, path: store.export(path, format="parquet", overwrite=True),
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


@pytest.mark.parametrize("name", WRITERS)
def test_nothing_is_written_into_another_store(inside: tuple[el.EpisodeStore, Path], name: str) -> None:
    """Every function that takes a path for its result refuses one in the folder of a store."""
    store, path = inside
    before = content(path.parent.parent)
    with pytest.raises(
        el.errors.InvalidArgumentError, match=r"lies in the store .*other, which holds its own files"
    ):
        WRITERS[name](store, path)
    assert content(path.parent.parent) == before and not os.listdir(path.parent)


def test_a_file_of_the_name_of_a_manifest_is_no_store(tmp_path: Path) -> None:
    """Other programs have a store.json too."""
    for number, text in enumerate(("{}", "[]", "no JSON", "[" * 100_000)):
        (tmp_path / "store.json").write_text(text)
        numbers(tmp_path / f"store-{number}").export(tmp_path / "out.csv", format="csv", overwrite=True)


#: Exports `new` of a store over `old` of it in child processes, which it kills at each of their steps.
KILLING = """
import ctypes, os, signal, sys
from pathlib import Path
import episodelake as el
from episodelake.readers.exporting import placing

path, format, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
fallback, stride = sys.argv[4] == "fallback", int(sys.argv[5])
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

    real = placing._renamed

    def renamed(*arguments):
        step()
        done = False if fallback else real(*arguments)
        step()
        return done

    placing._renamed = renamed
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
    if not (fallback and not (path / "all" / name).exists()):
        check("killed", [old, new])
    at += stride
check("done", [new])
assert set(os.listdir(path / "all")) == names
assert at > 8, at
print(at)
"""


@pytest.mark.parametrize(
    ("format", "name", "renaming", "stride"),
    [
        ("webdataset", "out", "exchange", 16),
        *(
            pytest.param(*kind, renaming, 1, marks=pytest.mark.further)
            for kind in KINDS
            for renaming in ("exchange", "fallback")
        ),
    ],
)
def test_an_overwrite_that_is_killed_leaves_the_old_or_the_new_export(
    tmp_path: Path, format: str, name: str, renaming: str, stride: int
) -> None:
    """At whatever step; the next call removes what it left, and puts back what it had moved away."""
    numbers(tmp_path / "store", 4)
    script = [sys.executable, "-c", KILLING, str(tmp_path), format, name, renaming, str(stride)]
    result = subprocess.run(script, capture_output=True, text=True, timeout=PATIENCE)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("marked", [False, True])
def test_a_folder_that_cannot_be_listed_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marked: bool
) -> None:
    """An error while the target is looked through is an error of the call, and the files stay."""
    store, target = filled(tmp_path / "store"), tmp_path / "home"
    if marked:
        store.export(target, format="webdataset")
    (target / "notes").mkdir(parents=True)
    (target / "notes" / "thesis.tex").write_text("mine")
    refused = os.scandir

    def scandir(path: Any = ".") -> Any:
        if Path(path) == (target / "notes" if marked else target):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return refused(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        with pytest.raises(el.errors.StoreUnavailableError):
            store.export(target, format="webdataset", overwrite=True)
    assert (target / "notes" / "thesis.tex").read_text() == "mine"


def test_an_interrupt_between_two_renames_keeps_the_old_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a file system cannot exchange two names, what was moved away comes back."""
    target, rename = tmp_path / "out", Path.rename

    def interrupted(self: Path, to: Any) -> None:
        rename(self, to)
        monkeypatch.setattr(Path, "rename", rename)
        raise KeyboardInterrupt

    for content in ("old", "new"):
        with (
            contextlib.suppress(KeyboardInterrupt),
            placing.placed(target, "x", folder=False, overwrite=True) as draft,
        ):
            draft.mkdir()
            (draft / "file").write_text(content)
            if content == "new":
                monkeypatch.setattr(placing, "_renameat2", lambda: None)
                monkeypatch.setattr(Path, "rename", interrupted)
    assert (target / "file").read_text() == "old"
    assert not (tmp_path / ".out.exporting").exists()


def test_many_exports_into_one_folder(tmp_path: Path) -> None:
    """Exports to other targets beside one neither fail nor disturb it."""

    def export(number: int) -> None:
        for turn in range(30):
            with placing.placed(tmp_path / f"{number}-{turn}", "x", folder=True, overwrite=False) as draft:
                draft.write_text("content")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(export, range(4)))
    assert len([path for path in tmp_path.iterdir() if path.name[0] != "."]) == 120
