"""The maintenance commands: what they print and change, whom they ask, and what Ctrl-C leaves."""

import contextlib
import fcntl
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import termios
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
from test_cli import ESCAPE, RUN, call, printed, refused, table
from waiting import PATIENCE, wait_until

SPACE = gymnasium.spaces.Discrete(100)
COMMANDS = ["compact", "delete", "vacuum", "verify", "history", "tag", "annotations"]


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away whatever in the surroundings would make the output look like a terminal's."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)


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


def segments(path: Path) -> int:
    """How many files the table of steps has now."""
    return len(el.open(path).steps.collect()) and len(list((path / "steps").glob("*.parquet")))


# compact


def test_compact_joins_segments(path: Path) -> None:
    """Four segments become one; the episodes and their order stay, and a second time nothing moves."""
    told = pairs(printed("compact", path))
    assert (told["episodes"], told["segments before"], told["segments after"]) == ("4", "4", "1")
    assert all(told[name].endswith(" bytes") for name in ("bytes before", "bytes after"))
    assert lengths(path) == [3, 1, 4, 2]
    again = pairs(printed("compact", path))
    assert (again["episodes"], again["segments before"]) == ("0", "1")


@pytest.mark.parametrize(("words", "order"), [((), [1, 2, 3, 4]), (("--descending",), [4, 3, 2, 1])])
def test_compact_sorts(path: Path, words: tuple[str, ...], order: list[int]) -> None:
    """With --order-by the positions follow the column, upwards or downwards."""
    printed("compact", path, "--order-by", "episode_return", *words)
    assert lengths(path) == order


def test_compact_keeps_to_the_size(path: Path) -> None:
    """Where no two segments fit into the size, none are joined."""
    assert pairs(printed("compact", path, "--segment-size", "1kB"))["segments after"] == "4"


@pytest.mark.parametrize("words", [["--descending"], ["--segment-size", "much"], ["--segment-size", "0MB"]])
def test_compact_called_wrongly(path: Path, words: list[str]) -> None:
    """A direction without a column, and a size that is none, end with status 2."""
    assert "Usage: " in refused(2, "compact", path, *words)
    assert el.open(path).version == el.open(path).history()["version"].max()
    assert segments(path) == 4


def test_compact_names_the_columns_there_are(path: Path) -> None:
    """An unknown column to sort by is refused with those that can be had."""
    assert "episode_return" in refused(1, "compact", path, "--order-by", "nothing")


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


def test_delete_dry_run_shows_the_first_episodes(path: Path) -> None:
    """Of many episodes ten are shown; how many are not goes to standard error."""
    record(el.open(path), [5] * 9)
    result = call("delete", path, "length > 0", "--dry-run")
    assert len(table(result.stdout.split("\n== ")[1])[2:]) == 10
    assert result.stderr == "3 more episodes.\n"


def test_delete_names_the_columns_there_are(path: Path) -> None:
    """A condition that cannot be understood is refused with the columns that can be had."""
    assert "episode_return" in refused(1, "delete", path, "nothing > 2", "--yes")


class Terminal:
    """A command in a process of its own whose input and error output are a terminal.

    Args:
        words: the command.

    Attributes:
        said: what came on the terminal so far.
    """

    def __init__(self, *words: object) -> None:
        self._side, other = pty.openpty()
        self.said = ""
        self._process = subprocess.Popen(
            [sys.executable, *RUN, *map(str, words)],
            stdin=other,
            stderr=other,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(other)

    def wait_for(self, text: str) -> None:
        """Read until the terminal shows a text."""
        while text not in self.said:
            ready, _, _ = select.select([self._side], [], [], PATIENCE)
            assert ready, f"{text!r} did not come; there is {self.said!r}"
            assert self._read(), f"the command ended; there is {self.said!r}"

    def wait_until_idle(self) -> None:
        """Wait until the command sleeps, as it does when it waits for a key."""
        stat = Path(f"/proc/{self._process.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S", "the command to sleep")

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._side, text.encode())

    def end(self) -> tuple[int, str]:
        """Wait for the command; its exit status and its standard output."""
        output, _ = self._process.communicate(timeout=PATIENCE)
        while self._read():
            pass
        os.close(self._side)
        return self._process.returncode, output

    def _read(self) -> bool:
        # On Linux a terminal whose other side is closed gives an error instead of an end.
        try:
            read = os.read(self._side, 4096)
        except OSError:
            return False
        self.said += read.decode()
        return bool(read)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


QUESTION = "Delete 2 episodes with 7 transitions? 2 segments will be rewritten or dropped. [y/N] "


@pytest.mark.further
@pytest.mark.sample(1)
@pytest.mark.parametrize("answer", ["y\n", "YES\n"])
def test_delete_asks_and_takes_what_it_counted(path: Path, answer: str) -> None:
    """After a yes exactly the counted episodes go; one that was recorded during the question stays."""
    terminal = Terminal("delete", path, "length > 2")
    terminal.wait_for(QUESTION)
    record(el.open(path), [5])
    terminal.type(answer)
    status, output = terminal.end()
    assert (status, pairs(output)["episodes"]) == (0, "2")
    assert lengths(path) == [1, 2, 5]


@pytest.mark.further
@pytest.mark.sample(1)
@pytest.mark.parametrize("answer", ["n\n", "\n", "yess\n", "\x04"])
def test_delete_takes_anything_else_for_a_no(path: Path, answer: str) -> None:
    """Without a clear yes, or at the end of the input, nothing is deleted and the status is 1."""
    before = el.open(path).version
    terminal = Terminal("delete", path, "length > 2")
    terminal.wait_for(QUESTION)
    terminal.type(answer)
    assert terminal.end() == (1, "")
    assert "Nothing was deleted." in terminal.said
    assert el.open(path).version == before


@pytest.mark.further
def test_delete_asked_and_interrupted(path: Path) -> None:
    """Ctrl-C at the question leaves the store as it was, says so and ends with status 130."""
    before = el.open(path).version
    terminal = Terminal("delete", path, "length > 2")
    terminal.wait_for(QUESTION)
    terminal.wait_until_idle()
    terminal.type("\x03")
    assert terminal.end() == (130, "")
    last = ESCAPE.sub("", terminal.said).rstrip().splitlines()[-1]
    assert last == "Error: Interrupted. The store is as it was."
    assert el.open(path).version == before


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


def test_vacuum_keeps_young_and_tagged_versions(path: Path) -> None:
    """By default what was the newest within a week stays; with 0 only a tagged version does."""
    tagged = el.open(path).version
    printed("compact", path)
    before = files(path)
    assert pairs(printed("vacuum", path))["files"] == "0"
    call("tag", path, "kept", "--version", tagged)
    printed("vacuum", path, "--older-than", "0")
    assert files(path) <= before
    assert lengths(path, "kept") == [3, 1, 4, 2]


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
def test_wrong_spans(path: Path, text: str) -> None:
    """What is no span of time ends with status 2, and no file is deleted."""
    before = files(path)
    assert "Usage: " in refused(2, "vacuum", path, f"--older-than={text}")
    assert files(path) == before


# verify


def test_verify_names_faults(path: Path) -> None:
    """A segment that is gone is named with its kind, and the status is 1; a repair cannot bring it back."""
    segment = sorted((path / "steps").glob("*.parquet"))[0]
    segment.unlink()
    for words in ((), ("--repair",)):
        result = call("verify", path, *words)
        assert result.exit_code == 1
        headers, *rows = table(result.stdout)
        assert headers == ["kind", "file", "message", *(["mended"] if "--repair" in words else [])]
        assert ("missing", f"steps/{segment.name}") in {(row[0], row[1]) for row in rows}
        assert all(row[3] == "no" for row in rows if "--repair" in words)


@pytest.mark.further
def test_verify_repairs(path: Path) -> None:
    """The journal of a dead writer is a fault until --repair has sealed it."""
    program = """
import os, sys
import episodelake as el
episode = el.open(sys.argv[1]).writer(run="dead")
begun = episode.begin(0)
for _ in range(50):
    begun.append(1, 1.0, 2)
begun.end()
os._exit(9)
"""
    subprocess.run(
        [sys.executable, "-c", program, str(path)], check=False, stdin=subprocess.DEVNULL, timeout=PATIENCE
    )
    found = call("verify", path)
    assert found.exit_code == 1
    assert [row[0] for row in table(found.stdout)[1:]] == ["journal"]
    mended = call("verify", path, "--repair")
    assert mended.exit_code == 0
    assert [(row[0], row[3]) for row in table(mended.stdout)[1:]] == [("journal", "yes")]
    assert call("verify", path).exit_code == 0


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


# tag


def test_tags_come_and_go(path: Path) -> None:
    """A tag names the newest version or the given one, is listed, opens the version, and goes again."""
    newest = el.open(path).version
    assert call("tag", path).stderr == "The store has no tags.\n"
    assert call("tag", path, "paper").stderr == f"paper is version {newest}.\n"
    assert call("tag", path, "early", "--version", newest - 1).exit_code == 0
    assert table(printed("tag", path)) == [
        ["tag", "version"],
        ["early", str(newest - 1)],
        ["paper", str(newest)],
    ]
    assert lengths(path, "early") == [3, 1, 4]
    assert call("tag", path, "early", "--remove").exit_code == 0
    assert el.open(path).tags == {"paper": newest}


def test_tags_that_cannot_be(path: Path) -> None:
    """A taken name, an unknown version, an impossible name and a missing tag are errors."""
    call("tag", path, "one", "--version", 1)
    assert "'one'" in refused(1, "tag", path, "one", "--version", 2)
    assert "99" in refused(1, "tag", path, "two", "--version", 99)
    assert "'a/b'" in refused(1, "tag", path, "a/b")
    assert "one" in refused(1, "tag", path, "none", "--remove")
    assert el.open(path).tags == {"one": 1}


@pytest.mark.parametrize(
    "words", [["--remove"], ["--version", "1"], ["x", "--remove", "--version", "1"], ["x", "--version=-1"]]
)
def test_tag_called_wrongly(path: Path, words: list[str]) -> None:
    """Options without a name, options that contradict each other and a negative version: status 2."""
    assert "Usage: " in refused(2, "tag", path, *words)
    assert el.open(path).tags == {}


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


@pytest.mark.parametrize("words", [("compact",), ("delete", "length > 2", "--yes")], ids=lambda w: w[0])
def test_progress_stays_out_of_pipes(path: Path, words: tuple[str, ...]) -> None:
    """Without a terminal, standard error stays empty."""
    assert call(words[0], path, *words[1:]).stderr == ""


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


@pytest.mark.parametrize("command", ["info", "history", "recover", "verify"])
def test_a_url_is_named_as_it_was_given(command: str) -> None:
    """The message about a store that is not there has the URL's two slashes, as every scheme's."""
    assert "nowhere://bucket/store" in refused(1, command, "nowhere://bucket/store")


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


@pytest.mark.parametrize("command", ["info", "history", "recover", "vacuum"])
def test_wrong_storage_option(path: Path, command: str) -> None:
    """An option without a key or an equals sign ends with status 2, and its text is not repeated."""
    for wrong in ("hunter2", "=hunter2"):
        told = refused(2, command, path, "--storage-option", wrong)
        assert "KEY=VALUE" in told
        assert "hunter2" not in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["info", "--storage-option", "aws_region=x"], "Storage options are for object stores"),
        (
            ["stats", "--episodes-only", "--columns", "reward"],
            "--columns: it does not go with --episodes-only",
        ),
        (["show", "0", "--trust"], "--trust: it needs --frames FILE"),
        (["diff", "--version-a", "0", "--quiet", "--json"], "--quiet: it does not go with --json"),
    ],
)
def test_options_without_effect_are_refused(path: Path, words: list[str], message: str) -> None:
    """An option that a command has no use for beside the others is an error that names it."""
    command, *options = words
    assert message in refused(1 if command == "info" else 2, command, path, *options)


# The program


@pytest.mark.parametrize("command", COMMANDS)
def test_missing_store(tmp_path: Path, command: str) -> None:
    """A path without a store is one message and status 1."""
    words = ["length > 2", "--yes"] if command == "delete" else []
    assert "There is no store" in refused(1, command, tmp_path / "none", *words)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_describes_every_option(command: str) -> None:
    """The program's help lists the command, and every line of an option in its help goes on."""
    assert f"  {command} " in printed("--help")
    lines = printed(command, "--help").split("Options:\n")[1].splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("  -"):
            assert len(line.strip().split("  ", 1)) == 2 or after.startswith(" " * 10)
