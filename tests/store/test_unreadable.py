"""Files that cannot be read for now are no damage: nothing is set aside, deleted, skipped or called damaged.

`faults/` makes every look at a file fail below all libraries, one at a time (`make test-faults`); here a few
looks of Python's own fail, and real processes run out of file descriptors.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from gymnasium.spaces import Box

import episodelake as el
from episodelake.store.files import access, is_denied, is_passing, locate
from episodelake.terminal.reports.open_store import explored
from episodelake.terminal.reports.store_figures import store_figures
from episodelake.testing.adapters import case
from waiting import PATIENCE

STORED, JOURNALLED = 5, 10
POINTS = 8
ERRORS = (errno.EMFILE, errno.EIO, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT, errno.EACCES, errno.EAGAIN)

RECORD = """
import os, sys
import numpy as np
import episodelake as el

def record(writer, count):
    for k in range(count):
        writer.write_episode(
            observations=np.full((4, 2), k, np.float32), actions=np.zeros((3, 2), np.float32),
            rewards=np.ones(3), terminations=True, truncations=False,
        )

store = el.open(sys.argv[1])
with store.writer(run="closed") as writer:
    record(writer, int(sys.argv[2]))
dead = store.writer(run="dead", durability="fsync", seal_seconds=1e6)
record(dead, int(sys.argv[3]))
dead.flush()
os._exit(0)
"""

EXHAUST = """
import os, resource, sys, warnings

def exhaust(free):
    held = []
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        for _ in range(min(free, len(held))):
            os.close(held.pop())
    return held

resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
"""


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a closed run, and the journal of a writer that died."""
    path = tmp_path_factory.mktemp("unreadable") / "dead"
    box = Box(-10.0, 10.0, (2,), np.float32)
    el.create(path, observation_space=box, action_space=box)
    command = [sys.executable, "-c", RECORD, str(path), str(STORED), str(JOURNALLED)]
    subprocess.run(command, check=True, timeout=PATIENCE)
    return path


@pytest.fixture
def store(dead: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(dead, tmp_path / "store")


def assert_whole(path: Path) -> None:
    """Fail unless a recovery finds every episode, and nothing was set aside before."""
    assert not [name for name in os.listdir(path / "journal") if ".damaged" in name]
    el.recover(path)
    assert len(el.open(path)) == STORED + JOURNALLED
    assert os.listdir(path / "journal") in ([], ["maintenance.lock"])


class Looks:
    """Python's own looks at files below a folder: counted, and one of them made to fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.count, self.fails_at, self.error = 0, -1, 0
        self._root = str(root)
        for module, name in (
            (os, "open"),
            (os, "stat"),
            (os, "lstat"),
            (os, "listdir"),
            (os, "scandir"),
            (os, "access"),
            (builtins, "open"),
        ):
            monkeypatch.setattr(module, name, self._counted(getattr(module, name)))

    def _counted(self, look: Callable[..., Any]) -> Callable[..., Any]:
        def counted(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            if not isinstance(path, int) and os.fspath(path).startswith(self._root):
                self.count += 1
                if self.count == self.fails_at:
                    raise OSError(self.error, os.strerror(self.error), os.fspath(path))
            return look(path, *arguments, **options)

        return counted

    def fail(self, at: int, error: int) -> None:
        """Let one look fail, counted from now on; 0 for none."""
        self.count, self.fails_at, self.error = 0, at, error


OPERATIONS: dict[str, Callable[[el.EpisodeStore], object]] = {
    "open": lambda store: [episode.rewards.sum() for episode in store],
    "recover": lambda store: el.recover(store.path),
    "record": lambda store: store.writer().close(),
    "verify": lambda store: store.verify(),
    "compact": lambda store: store.compact(),
    "delete": lambda store: store.delete("length > 1000"),
    "vacuum": lambda store: store.vacuum(timedelta(0)),
}


@pytest.mark.sample(3)
@pytest.mark.filterwarnings("ignore:The journal at .* is left for its owner")
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_look_that_fails_once_loses_nothing(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """An operation whose look at a file fails raises that it could not look, or succeeds; it never sets a
    journal aside or speaks of damage, and the next call does all.
    """
    copies = [shutil.copytree(store, tmp_path / f"copy-{number}") for number in range(POINTS)]
    looks = Looks(monkeypatch, tmp_path)
    looks.fail(0, 0)
    OPERATIONS[name](el.open(store))
    points = np.linspace(1, looks.count, POINTS).astype(int).tolist()
    for number, (copy, point) in enumerate(zip(copies, points, strict=True)):
        error = ERRORS[number % len(ERRORS)]
        looks.fail(point, error)
        try:
            OPERATIONS[name](el.open(copy))
        except el.errors.StoreAccessError as raised:
            assert isinstance(raised, el.errors.StoreUnavailableError) == (error != errno.EACCES)
        looks.fail(0, 0)
        OPERATIONS[name](el.open(copy))
        assert_whole(copy)


def test_files_whose_state_was_refused_share_no_statistics(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at the state of a steps file fails once; a file that is missing later is still named."""
    copy, cache = shutil.copytree(store, tmp_path / "copy"), tmp_path / "cache"
    file = min((copy / "steps").glob("*.parquet"))
    looks = Looks(monkeypatch, copy / "steps")
    el.open(copy).stats(cache_folder=cache)
    for point in range(1, looks.count + 1):
        looks.fail(point, errno.EIO)
        with contextlib.suppress(el.errors.StoreUnavailableError):
            el.open(copy).stats(cache_folder=cache / str(point))
    looks.fail(0, 0)
    file.unlink()
    with pytest.raises(el.errors.CorruptStoreError, match=f"{file.name} is missing"):
        el.open(copy).stats(cache_folder=cache)


QUESTIONS: dict[str, Callable[[el.EpisodeStore], object]] = {
    "query": lambda store: store.query("SELECT sum(reward) FROM transitions").item(),
    "filter": lambda store: len(
        store.filter("episode_id IN (SELECT episode_id FROM steps WHERE reward > 0)")
    ),
    "chart": lambda store: store.plot.actions().to_dict(),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_whose_file_was_refused_can_be_asked_again(
    store: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It raises an error of access or answers, and no connection keeps the refusal: the next call answers."""
    pytest.importorskip("altair")
    ask, looks = QUESTIONS[name], Looks(monkeypatch, store)
    expected, opened = ask(el.open(store)), el.open(store)
    looks.fail(0, 0)
    ask(opened)
    for point in range(1, looks.count + 1):
        opened = el.open(store)
        looks.fail(point, errno.EACCES)
        try:
            assert ask(opened) == expected
        except el.errors.StoreAccessError as refused:
            assert "Permission denied" in str(refused)
        looks.fail(0, 0)
        assert ask(opened) == expected


@pytest.mark.further
def test_recovery_without_descriptors_leaves_the_journal(dead: Path, tmp_path: Path) -> None:
    """However few descriptors are free, recovery raises `StoreUnavailableError` and sets nothing aside."""
    copies = [shutil.copytree(dead, tmp_path / str(free)) for free in range(1, 9)]
    code = EXHAUST + (
        "import episodelake as el\n"
        "warm, *paths = sys.argv[1:]\n"
        "el.recover(warm)\n"
        "for path in paths:\n"
        "    held = exhaust(int(os.path.basename(path)))\n"
        "    try:\n"
        "        el.recover(path)\n"
        "        print('recovered')\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__)\n"
        "    for descriptor in held:\n"
        "        os.close(descriptor)\n"
    )
    warm = shutil.copytree(dead, tmp_path / "warm")
    command = [sys.executable, "-c", code, str(warm), *map(str, copies)]
    result = subprocess.run(command, check=True, timeout=PATIENCE, capture_output=True, text=True)
    told = result.stdout.split()
    assert len(told) == len(copies)
    assert "StoreUnavailableError" in told
    assert set(told) <= {"StoreUnavailableError", "recovered"}
    for copy in copies:
        assert_whole(copy)


@pytest.mark.parametrize("table", ["runs", "episodes", "steps"])
def test_a_journal_outlives_a_table_that_is_away(store: Path, table: str) -> None:
    """While the log of a table is away (not mounted, being restored), the journal stays where it is."""
    away = store / table / "away"
    (store / table / "_delta_log").rename(away)
    with pytest.raises(el.errors.CorruptStoreError, match=r"is missing.*stays for the next recovery"):
        el.recover(store)
    away.rename(store / table / "_delta_log")
    assert_whole(store)


def test_bulk_writing_needs_no_table_behind_the_recording(store: Path) -> None:
    """Episodes without source keys are written while the log of the episodes is away: nothing reads it."""
    writer = el.open(store).writer(seal_seconds=1e6)
    log = store / "episodes" / "_delta_log"
    log.rename(store / "away")
    values = [[0.0, 0.0]] * 4
    kind = pa.list_(pa.float32())
    spaces = {"observation": pa.array(values, kind), "action": pa.array([*values[:3], None], kind)}
    steps = {**spaces, "reward": [1.0, 1.0, 1.0, None]}
    flags = {"terminated": [False, False, True, None], "truncated": [False, False, False, None]}
    assert writer.write_episodes(pa.table({"episode": [0] * 4, **steps, **flags})) == 1
    (store / "away").rename(log)
    writer.close()
    assert len(el.open(store)) == STORED + JOURNALLED + 1


def test_a_journal_outlives_a_damaged_table(store: Path) -> None:
    """A damaged file of a table is no reason to set a journal aside either."""
    commit = max((store / "steps" / "_delta_log").glob("*.json"))
    content = commit.read_bytes()
    commit.write_bytes(content.replace(b'"add"', b'"dad"'))
    with pytest.raises(el.errors.CorruptStoreError, match="stays for the next recovery"):
        el.recover(store)
    commit.write_bytes(content)
    assert_whole(store)


READ = (
    EXHAUST
    + """
import duckdb, polars, pyarrow, pyarrow.dataset, pyarrow.parquet
from deltalake import DeltaTable
from episodelake.store.files import access, is_denied, is_passing, locate

file, table = sys.argv[1:3]
readers = {
    "open": lambda: open(file).close(),
    "arrow": lambda: pyarrow.parquet.read_table(file),
    "arrow dataset": lambda: pyarrow.dataset.dataset(file).to_table(),
    "arrow map": lambda: pyarrow.memory_map(file),
    "polars": lambda: polars.read_parquet(file),
    "polars scan": lambda: polars.scan_parquet(file).collect(),
    "duckdb": lambda: duckdb.sql(f"from read_parquet('{file}')").fetchall(),
    "delta": lambda: DeltaTable(table).file_uris(),
}
# Threads and descriptors that the libraries keep are there before none is left.
for read in readers.values():
    try:
        read()
    except Exception:
        pass
held = exhaust(0) if sys.argv[3] == "exhausted" else []
for name, read in readers.items():
    try:
        read()
        print(name, "read")
    except Exception as error:
        print(name, "passing" if is_passing(error) else "denied" if is_denied(error) else "other", sep=": ")
"""
)


@pytest.mark.parametrize(("state", "verdict"), [("exhausted", "passing"), ("damaged", "other")])
def test_errors_of_libraries_are_classified(dead: Path, tmp_path: Path, state: str, verdict: str) -> None:
    """Errors of Python, Arrow, Polars, DuckDB and delta-rs pass by themselves without a free descriptor, and
    not where bytes are damaged.
    """
    path = shutil.copytree(dead, tmp_path / "store")
    file = next((path / "steps").glob("*.parquet"))
    if state == "damaged":
        file.write_bytes(b"PAR1" + bytes(200) + b"PAR1")
        for commit in (path / "steps" / "_delta_log").glob("*.json"):
            commit.write_bytes(b"{")
    command = [sys.executable, "-c", READ, str(file), str(path / "steps"), state]
    result = subprocess.run(command, check=True, timeout=PATIENCE, capture_output=True, text=True)
    told = dict(line.split(": ") for line in result.stdout.splitlines() if ": " in line)
    assert set(told.values()) == {verdict}, result.stdout
    assert len(told) >= 6


def test_messages_of_services_are_classified() -> None:
    """Answers 429 and 5xx, timeouts and lost connections pass by themselves; 401 and 403 deny access."""
    cases: list[Any] = [
        ("Generic S3 error: HTTP error: request or response body error: operation timed out", "passing"),
        ("Client error with status 429 Too Many Requests: SlowDown", "passing"),
        ("Server returned non-2xx status code: 503 Service Unavailable", "passing"),
        ("Generic S3 error: Error performing GET in 3.2s: connection refused", "passing"),
        ("Generic S3 error: Server returned error status code: 403 Forbidden", "denied"),
        ("HTTP Error: HTTP GET error on 'https://x' (HTTP 401)", "denied"),
        ("Couldn't deserialize thrift: TProtocolException: Invalid data", "other"),
        ("Server returned error status code: 404 Not Found", "other"),
        ("Unexpected end of stream: Page was smaller (5) than expected (503)", "other"),
    ]
    for text, verdict in cases:
        with case((text, verdict)):
            error = ValueError(text)
            assert (is_passing(error), is_denied(error)) == (verdict == "passing", verdict == "denied")


VIEWS: dict[str, Callable[[el.EpisodeStore, Path], object]] = {
    "sql": lambda store, _: store.sql("SELECT count(*) FROM transitions").fetchall(),
    "query": lambda store, _: store.query("SELECT count(*) FROM episodes"),
    "filter": lambda store, _: len(store.filter("length > 1")),
    "filter steps": lambda store, _: len(store.filter("episode_id IN (SELECT episode_id FROM steps)")),
    "filter expression": lambda store, _: len(store.filter(pl.col("length") > 1)),
    "sort": lambda store, _: len(store.sort("length")),
    "label": lambda store, _: store.label(0, note="b"),
    "delete": lambda store, _: store.delete("length > 1000"),
    "split": lambda store, _: store.split({"a": 0.5, "b": 0.5}, seed=1),
    "stats": lambda store, _: store.stats(["reward"]),
    "quality": lambda store, _: store.quality(),
    "export": lambda store, path: store.export(path / f"{secrets.token_hex(4)}.parquet", format="parquet"),
    "preview": lambda _, path: el.preview(f"{path / 'published'}@v1"),
    "terminal": lambda _, path: explored(
        str(path / "store"), None, lambda opened: store_figures(opened.store)
    ),
    "lake": lambda _, path: el.lake(path).find("length > 1"),
}


@pytest.mark.further
@pytest.mark.filterwarnings("ignore")
def test_a_passing_error_reaches_the_caller_as_ours_and_does_not_stick(
    dead: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of an open store whose look at a file, or whose frame, fails once raise `StoreUnavailableError`
    or succeed, and the same call on the same object succeeds afterwards.
    """
    folder = tmp_path / "lake"
    shutil.copytree(dead, folder / "store")
    el.recover(folder / "store")
    el.open(folder / "store").publish(folder / "published", tag="v1")
    looks = Looks(monkeypatch, folder / "store")
    collect, left = pl.LazyFrame.collect, [0]

    def collected(frame: pl.LazyFrame, *arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise failures[kind]
        return collect(frame, *arguments, **options)

    monkeypatch.setattr(pl.LazyFrame, "collect", collected)
    failures = {
        "frame": OSError(errno.EIO, os.strerror(errno.EIO)),
        "polars": pl.exceptions.ComputeError("Input/output error (os error 5)"),
    }
    raw = []
    for name, call in VIEWS.items():
        for kind in ("look", *failures):
            for point, error in ((1, errno.EMFILE), (2, errno.EIO), (5, errno.EAGAIN)):
                looks.fail(0, 0)
                store = el.open(folder / "store")
                if kind == "look":
                    looks.fail(point, error)
                else:
                    left[0] = point
                try:
                    call(store, folder)
                except el.errors.StoreUnavailableError:
                    pass
                except Exception as raised:
                    raw.append(f"{name}, {kind} {point}: {type(raised).__name__}: {raised!s:.300}")
                failed = looks.count >= point if kind == "look" else left[0] <= 0
                looks.fail(0, 0)
                left[0] = 0
                call(store, folder)
                if not failed:
                    break
    assert not raw, "\n".join(raw)


@pytest.mark.further
def test_a_forked_child_is_told_so(dead: Path) -> None:
    """Every way to ask DuckDB raises `StoreAccessError` in a child of a process that has asked."""
    asking = """
import os, sys, warnings
import episodelake as el
warnings.simplefilter("ignore")
store = el.open(sys.argv[1])
lake = el.lake(os.path.dirname(sys.argv[1]))
text = "SELECT count(*) FROM episodes"
views = (lambda: store.filter("length > 1"), store.connect)
asked = (lambda: store.sql(text), lambda: store.query(text), lambda: lake.sql(text), *views)
for ask in asked:
    ask()
    child = os.fork()
    if child == 0:
        try:
            ask()
        except el.errors.StoreAccessError as error:
            os._exit(0 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0, ask
"""
    subprocess.run([sys.executable, "-c", asking, str(dead)], check=True, timeout=PATIENCE)


def test_a_read_that_would_block_is_not_the_end_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`EAGAIN` in the middle of a streamed file is an error; the file does not end there."""
    path, calls = tmp_path / "file", [0]
    path.write_bytes(bytes(2 * access.CHUNK_BYTES))
    read_at = access._read_at

    def blocked(*arguments: int) -> bytes:
        calls[0] += 1
        if calls[0] == 2:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return read_at(*arguments)

    monkeypatch.setattr(access, "_read_at", blocked)
    with pytest.raises(el.errors.StoreUnavailableError):
        list(locate(path).chunks())
    assert b"".join(locate(path).chunks()) == path.read_bytes()
