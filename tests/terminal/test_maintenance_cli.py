"""The maintenance commands: what they print and change, whom they ask, and what Ctrl-C leaves."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import gymnasium
import pytest
import typer

import episodelake as el
from episodelake.store.common.progress import progress_meter
from episodelake.store.delta.table import Table
from episodelake.store.rewrite.operation import Operation
from episodelake.store.rewrite.rewriting import DeleteReport
from episodelake.terminal.commands.keeping import size_of, span_of
from episodelake.terminal.reports.maintenance import _agreed
from object_server import BUCKET, ObjectServer
from terminal_sessions import terminal
from test_cli import ESCAPE, call, no_terminal, printed, refused, table
from waiting import PATIENCE, wait_until

__all__ = ["no_terminal"]

SPACE = gymnasium.spaces.Discrete(100)


def record(store: el.EpisodeStore, lengths: list[int]) -> None:
    """Write one episode per length, each into a segment of its own; the rewards are 1."""
    with store.writer(run="run") as writer:
        for length in lengths:
            writer.write_episode(
                observations=list(range(length + 1)),
                actions=[0] * length,
                rewards=[1.0] * length,
                terminations=True,
                truncations=False,
            )
            writer.seal()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with four episodes of 3, 1, 4 and 2 transitions in four segments."""
    path = tmp_path_factory.mktemp("maintenance") / "store"
    record(el.create(path, observation_space=SPACE, action_space=SPACE), [3, 1, 4, 2])
    return path


@pytest.fixture
def path(template: Path, tmp_path: Path) -> Path:
    """A copy of the template, to change."""
    return Path(shutil.copytree(template, tmp_path / "store"))


def lengths(path: Path | str, version: int | str | None = None) -> list[int]:
    """The lengths of the episodes, by position."""
    return el.open(path, version).episodes.select("length").collect()["length"].to_list()


def pairs(text: str) -> dict[str, str]:
    """The names and values that begin an output."""
    return dict(line.split("\t") for line in text.split("\n\n")[0].splitlines())


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("64MB", 64_000_000),
        ("64mb", 64_000_000),
        ("1.5 GiB", 3 << 29),
        ("2k", 2000),
        ("1KiB", 1024),
    ],
)
def test_sizes(text: str, size: int) -> None:
    """Decimal and binary units, in either case, with and without a fraction."""
    assert size_of(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "1XB", "1e3", "0", "0.1B", "1 2", "9" * 400, "nan"])
def test_wrong_sizes(text: str) -> None:
    """What is no positive size is refused."""
    with pytest.raises(typer.BadParameter):
        size_of(text)


# delete


QUESTION = "Delete 2 episodes with 7 transitions? 2 segments will be rewritten or dropped. [y/N] "


@pytest.mark.further
@pytest.mark.sample(1)
@pytest.mark.parametrize("answer", ["y\n", "YES\n"])
def test_delete_asks_and_takes_what_it_counted(path: Path, answer: str) -> None:
    """After a yes exactly the counted episodes go; one that was recorded during the question stays."""
    with terminal("delete", path, "length > 2") as session:
        session.wait_for(QUESTION)
        record(el.open(path), [5])
        session.type(answer)
        assert session.end() == 0
    assert re.search(r"^ *episodes +2$", session.text, re.MULTILINE)
    assert lengths(path) == [1, 2, 5]


@pytest.mark.further
@pytest.mark.sample(1)
@pytest.mark.parametrize("answer", ["n\n", "\n", "yess\n", "\x04", "\x03"])
def test_delete_takes_anything_else_for_a_no(path: Path, answer: str) -> None:
    """Without a clear yes, at the end of the input and after Ctrl-C the store stays as it was."""
    before = el.open(path).version
    with terminal("delete", path, "length > 2") as session:
        session.wait_for(QUESTION)
        session.wait_until_idle()
        session.type(answer)
        assert session.end() == (130 if answer == "\x03" else 1)
    last = session.text.rstrip().splitlines()[-1]
    told = "Error: Interrupted. The store is as it was." if answer == "\x03" else "Nothing was deleted."
    assert last.endswith(told) and el.open(path).version == before


def test_an_interrupt_that_another_thread_got_ends_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C counts at the question even if the signal came before the read, or to another thread."""
    reading, writing = os.pipe()
    other = threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
    typed: list[int] = []
    end = threading.Timer(PATIENCE / 10, lambda: typed.append(os.write(writing, b"y\n")))
    report = DeleteReport(episodes=2, steps=7, segments=2)
    with open(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        other.start()
        end.start()
        with pytest.raises(KeyboardInterrupt):
            _agreed(report)
        end.cancel()
    os.close(writing)
    assert not typed


# vacuum


def files(path: Path) -> set[str]:
    """The Parquet files of a store."""
    return {str(file.relative_to(path)) for file in path.rglob("*.parquet")}


def test_vacuum_deletes_what_dry_run_names(path: Path) -> None:
    """--dry-run lists exactly the files that then go; the newest version stays readable."""
    printed("compact", path)
    assert pairs(printed("vacuum", path))["files"] == "0", "the default keeps what was newest within a week"
    before = files(path)
    sizes = sum((path / file).stat().st_size for file in before)
    head, listed = printed("vacuum", path, "--older-than", "0", "--dry-run").split("\n== ")
    named = {row[0] for row in table(listed)[2:]}
    assert files(path) == before
    assert len(named) >= 8
    told = pairs(printed("vacuum", path, "--older-than", "0"))
    assert files(path) == before - named
    assert told == pairs(head)
    freed = sizes - sum((path / file).stat().st_size for file in files(path))
    assert told == {"files": str(len(named)), "size": f"{freed} bytes"}
    assert lengths(path) == [3, 1, 4, 2]


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("0", timedelta(0)),
        ("7d", timedelta(days=7)),
        ("12h", timedelta(hours=12)),
        ("30m", timedelta(minutes=30)),
        ("1.5s", timedelta(seconds=1.5)),
        ("2w", timedelta(weeks=2)),
    ],
)
def test_spans(text: str, span: timedelta) -> None:
    """A number with a unit; 0 needs none."""
    assert span_of(text) == span


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "7y", "7d12h", "1e9d", "9" * 20 + "w", "7D"])
def test_wrong_spans(text: str) -> None:
    """What is no span of time is refused."""
    with pytest.raises(typer.BadParameter):
        span_of(text)


# verify


@pytest.mark.parametrize("width", [40, 80])
def test_verify_on_a_terminal_shows_whole_messages(
    path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """In a window messages wrap and are not cut."""
    sorted((path / "steps").glob("*.parquet"))[0].unlink()
    message = table(call("verify", path).stdout)[1][2]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(width))
    shown = ESCAPE.sub("", call("verify", path).stdout)
    assert "".join(message.split()) in "".join(shown.split())
    assert max(map(len, shown.splitlines())) <= width


# Ctrl-C


def interrupt_commit(monkeypatch: pytest.MonkeyPatch, table_name: str, *, after: bool) -> None:
    """Let Ctrl-C come right before or right after the next commit to a table."""
    replace = Table.replace

    def interrupted(self: Table, *arguments: object, **options: object) -> object:
        ours = str(self.path).endswith(table_name)
        if ours and not after:
            raise KeyboardInterrupt
        result = replace(self, *arguments, **options)  # type: ignore[arg-type]
        if ours:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(Table, "replace", interrupted)


@pytest.mark.sample
@pytest.mark.parametrize(
    "words", [("compact",), ("delete", "length > 2", "--yes")], ids=lambda words: words[0]
)
@pytest.mark.parametrize(
    ("table_name", "after"), [("steps", False), ("steps", True), ("episodes", False), ("episodes", True)]
)
def test_interrupted_changes_are_told_truly(
    path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], table_name: str, after: bool
) -> None:
    """Ctrl-C around each commit gives status 130 and one line that says whether the change shows."""
    before = el.open(path).version
    with monkeypatch.context() as patched:
        interrupt_commit(patched, table_name, after=after)
        # A machine that is slow for ten seconds would have a line of progress in between.
        patched.setattr("episodelake.store.common.progress._PAUSE", PATIENCE)
        told = refused(130, words[0], path, *words[1:])
    committed = table_name == "episodes" and after
    left = f"The change was committed before that, as version {before + 1}." if committed else ""
    assert told == f"Error: Interrupted. {left or 'The store is as it was.'}\n"
    assert el.open(path).version == before + committed
    assert sorted(el.open(path).steps.select("t").collect()["t"]) == sorted(
        t for length in lengths(path) for t in range(length + 1)
    )
    printed(words[0], path, *words[1:]) if not committed else None
    assert lengths(path) == ([3, 1, 4, 2] if words[0] == "compact" else [1, 2])


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "words", [("compact",), ("delete", "length > 2", "--yes"), ("vacuum",), ("tag", "x")], ids=lambda w: w[0]
)
def test_interrupted_by_a_signal(path: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    """A real SIGINT, while the command waits for another operation, leaves everything as it was."""
    store = el.open(path)
    before = files(path)
    waits = tmp_path / "waits"
    with Operation.begin(store.handle, "compact"):
        command = subprocess.Popen(
            [sys.executable, "-c", MARK_WAITING, words[0], str(path), *words[1:]],
            env={**os.environ, "WAITS": str(waits)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: waits.exists() or command.poll() is not None, "the command to come to the lock")
        command.send_signal(signal.SIGINT)
        output, told = command.communicate(timeout=PATIENCE)
    assert (waits.exists(), command.returncode, output) == (True, 130, "")
    assert told.startswith("Error: Interrupted. ") and told.count("\n") == 1
    assert (files(path), el.open(path).version, el.open(path).tags) == (before, store.version, {})


#: The program, which makes a file once it has found the lock of maintenance taken.
MARK_WAITING = """
import os
from pathlib import Path
from episodelake.store.files.locks import FileLock

acquire = FileLock.acquire

def marked(path, **options):
    lock = acquire(path, **options)
    if lock is None and path.name == "maintenance.lock":
        Path(os.environ["WAITS"]).touch()
    return lock

FileLock.acquire = staticmethod(marked)

from episodelake.terminal.start import main
main()
"""


# Progress


def test_progress_is_drawn_for_those_who_watch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal a bar with its title and unit is drawn on standard error; in a pipe nothing is."""
    for watched in (False, True):
        if watched:
            monkeypatch.setenv("FORCE_COLOR", "1")
            monkeypatch.setenv("TERM", "xterm-256color")
            monkeypatch.setenv("COLUMNS", "80")
        with progress_meter(True, "Weighing", "stones") as tell:
            tell(3, 7)
        drawn = capsys.readouterr()
        assert drawn.out == ""
        assert ("Weighing" in drawn.err, "3/7" in drawn.err, "stones" in drawn.err) == (watched,) * 3
        assert bool(drawn.err) == watched


# Places


def test_every_command_takes_a_url() -> None:
    """A URL reaches the store as it was given, in every command."""
    url = "memory://maintenance-cli"
    record(el.create(url, observation_space=SPACE, action_space=SPACE), [3, 1])
    assert pairs(printed("info", url))["episodes"] == "2"
    assert table(printed("sql", url, "SELECT count(*) AS n FROM steps")) == [["n"], ["6"]]
    assert "length\t3" in printed("show", url, 0)
    assert pairs(printed("compact", url))["segments after"] == "1"
    printed("delete", url, "length = 1", "--yes")
    assert call("tag", url, "now").exit_code == 0
    assert table(printed("tag", url))[1][0] == "now"
    assert table(printed("history", url))[1][2] == "delete"
    assert pairs(printed("vacuum", url, "--older-than", "0"))["files"] != "0"
    assert call("recover", url).exit_code == 0
    assert call("annotations", url).exit_code == 0
    assert lengths(url) == [3]


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    """An S3 server on loopback."""
    with contextlib.closing(ObjectServer()) as server:
        yield server


@pytest.mark.further
def test_storage_options_reach_an_object_store(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options on the command line, and credentials in the environment, are what a store on S3 needs."""
    monkeypatch.setenv("EPISODELAKE_SPOOL", str(tmp_path))
    options = server.storage_options()
    url = f"s3://{BUCKET}/cli"
    store = el.create(url, observation_space=SPACE, action_space=SPACE, storage_options=options)
    record(store, [3, 1, 4])
    given = [f"--storage-option={key}={value}" for key, value in options.items()]
    assert pairs(printed("info", url, *given))["episodes"] == "3"
    assert pairs(printed("compact", url, *given))["segments after"] == "1"
    for key in ("aws_access_key_id", "aws_secret_access_key"):
        monkeypatch.setenv(key.upper(), options[key])
        given.remove(f"--storage-option={key}={options[key]}")
    assert pairs(printed("delete", url, "length > 3", "--yes", *given))["episodes"] == "1"
    assert len(table(printed("history", url, *given))) == 7
    assert table(printed("sql", url, "SELECT sum(length) AS n FROM episodes", *given)) == [["n"], ["4"]]
    # Of a path of this machine and a URL, the options are for the latter.
    here = tmp_path / "here"
    el.open(url, storage_options=options).copy(here)
    assert "No difference" in printed("diff", here, url, *given)
    printed("publish", here, f"s3://{BUCKET}/out", "--tag", "v1", *given)
    assert len(table(printed("published", f"s3://{BUCKET}/out", *given))) == 2
