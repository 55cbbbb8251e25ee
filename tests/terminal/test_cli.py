"""The command line: what each command prints and to where, its exit status, and what it says of bad input."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner, Result

import episodelake as el
from episodelake.terminal.app import app
from episodelake.terminal.output.cells import Column, clean
from episodelake.terminal.output.sparkline import BLOCKS, ODD, Line, sparkline
from episodelake.terminal.output.table import fitted_table
from episodelake.terminal.reports.listing import IMPORTANT
from terminal_stores import make_small_store
from waiting import PATIENCE

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
BOX_DRAWING = re.compile("[\u2500-\u257f]")
#: Controls, and what turns lines round or is not seen.
UNSEEN = (
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
RUN = ["-c", "from episodelake.terminal.start import main; main()"]


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away whatever in the surroundings would make the output look like a terminal's."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the output look like that of a terminal of 80 columns."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store that the commands which change nothing are tried on."""
    return Path(make_small_store(tmp_path_factory.mktemp("cli") / "store").path)


def call(*words: object) -> Result:
    """Run a command in this process; whatever it raises besides its exit status is the test's failure."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def printed(*words: object) -> str:
    """What a command that succeeds prints: plain text without escape sequences or drawn boxes."""
    result = call(*words)
    assert result.exit_code == 0, result.output
    assert not ESCAPE.search(result.stdout)
    assert not BOX_DRAWING.search(result.stdout)
    return result.stdout


def refused(status: int, *words: object) -> str:
    """What a command that fails says on standard error; it prints nothing else."""
    result = call(*words)
    assert (result.exit_code, result.stdout) == (status, "")
    assert "Traceback" not in result.stderr
    return result.stderr


def table(text: str) -> list[list[str]]:
    """The cells of a plain table."""
    return [line.split("\t") for line in text.splitlines()]


# Stores that cannot be opened

READING = [
    ("info",),
    ("sql", "SELECT 1"),
    ("show", "0"),
    ("recover",),
    ("compact",),
    ("delete", "true", "--yes"),
]
READING += [(name,) for name in ("info", "ls", "head", "stats", "verify", "history", "tag", "annotations")]
READING += [(name,) for name in ("recover", "compact", "vacuum")]


@pytest.mark.parametrize("kind", ["missing", "no store", "file", "cut short", "newer"])
def test_a_store_that_cannot_be_opened(example: Path, tmp_path: Path, kind: str) -> None:
    """Each command says in one message what is wrong with the folder, and names it."""
    path = tmp_path / "store"
    if kind == "no store":
        path.mkdir()
    elif kind == "file":
        path.write_text("text")
    elif kind in ("cut short", "newer"):
        shutil.copytree(example, path)
        manifest = path / "store.json"
        content = manifest.read_text()
        newer = json.dumps({**json.loads(content), "format": 99})
        manifest.write_text(content[: len(content) // 2] if kind == "cut short" else newer)
    for words in READING:
        told = refused(1, words[0], path, *words[1:])
        assert told.startswith("Error: ") and str(path) in told, words


# recover


@pytest.mark.further
def test_recover_seals_what_a_dead_writer_left(tmp_path: Path) -> None:
    """Commands name a killed run until `recover`, or `verify --repair`, has sealed its episodes."""
    program = """
import os, sys
import gymnasium
import episodelake as el
space = gymnasium.spaces.Discrete(5)
store = el.create(sys.argv[1], observation_space=space, action_space=space)
writer = store.writer(run="dead")
whole, torn = writer.begin(0), writer.begin(0)
for _ in range(50):
    whole.append(1, 1.0, 2)
    torn.append(1, 1.0, 2)
whole.end()
writer.seal()
os._exit(9)
"""
    path, copy = tmp_path / "s", tmp_path / "copy"
    subprocess.run([sys.executable, "-c", program, path], stdin=subprocess.DEVNULL, timeout=PATIENCE)
    shutil.copytree(path, copy)
    told = printed("info", path)
    assert "journals\t1 of writers that are gone; `episodelake recover`" in told
    assert "recording\t" not in told
    warning = call("ls", path).stderr
    assert "1 run ended without closing: dead-" in warning and f"`episodelake recover {path}`" in warning
    headers, row = table(printed("recover", path))
    assert "without closing" not in call("ls", path).stderr
    told = dict(zip(headers, row, strict=True))
    assert (told["episodes"], told["interrupted"], told["steps"]) == ("1", "1", "50")
    ends = "SELECT end_reason, length FROM episodes ORDER BY 1"
    assert el.open(path).sql(ends).fetchall() == [("cut", 50), ("interrupted", 50)]
    again = call("recover", path)
    assert (again.exit_code, again.stdout) == (0, "")
    found, mended = call("verify", copy), call("verify", copy, "--repair")
    assert [row[0] for row in table(found.stdout)[1:]] == ["journal"]
    assert [(row[0], row[3]) for row in table(mended.stdout)[1:]] == [("journal", "yes")]
    assert (found.exit_code, mended.exit_code, call("verify", copy).exit_code) == (1, 0, 0)
    assert el.open(copy).sql(ends).fetchall() == [("cut", 50), ("interrupted", 50)]


# The program


@pytest.mark.further
def test_output_that_cannot_be_encoded_is_spelled_out(example: Path) -> None:
    """Where standard output takes only ASCII, other characters are spelled out and charts use ASCII."""
    environment = {"PYTHONIOENCODING": "ascii", "PATH": ""}
    outputs = [
        subprocess.run(
            [sys.executable, *RUN, *words],
            env=environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE,
        )
        for words in (["sql", example, "SELECT '雪' AS snow"], ["show", example, "0"])
    ]
    assert [output.returncode for output in outputs] == [0, 0]
    assert outputs[0].stdout == b"snow\n\\u96ea\n"
    assert b"reward\t_#\t0.0\t0.5" in outputs[1].stdout


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "words",
    [
        ("sql", "STORE", "SELECT * FROM range(200000)", "--limit", "0"),
        ("sql", "STORE", "SELECT * FROM range(200000)", "--csv"),
        ("sql", "STORE", "SELECT * FROM range(200000)", "--json"),
        ("info", "STORE"),
        ("ls", "STORE"),
        ("show", "STORE", "0"),
        ("--help",),
        ("plot", "--help"),
    ],
    ids=" ".join,
)
def test_a_reader_that_has_gone_ends_every_command_alike(example: Path, words: tuple[str, ...]) -> None:
    """The program ends without a word, with the status that the shell gives to a closed pipe."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, *RUN, *(example if word == "STORE" else word for word in words)]
    with os.fdopen(writing, "wb") as closed:
        ended = subprocess.run(
            command, stdout=closed, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=PATIENCE
        )
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.sample(1)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize(
    "words",
    [("sql", "STORE", "SELECT * FROM range(9)", "--csv"), ("info", "STORE"), ("--help",)],
    ids=" ".join,
)
def test_a_full_disk_is_told(example: Path, words: tuple[str, ...]) -> None:
    """Output that cannot be written is an error in one line, also where it is less than a buffer."""
    command = [sys.executable, *RUN, *(example if word == "STORE" else word for word in words)]
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            command,
            stdout=full,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=PATIENCE,
        )
    assert ended.returncode == 1
    assert ended.stderr == (
        "Error: Could not write to standard output: No space left on device. The output is incomplete.\n"
    )


# On a terminal


@pytest.mark.sample
@pytest.mark.parametrize(
    "words",
    [("info",), ("sql", "SELECT * FROM steps"), ("sql", "SELECT * FROM episodes"), ("show", "1")],
    ids=" ".join,
)
@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.usefixtures("terminal")
def test_terminal_output_has_colour_and_fits(
    example: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], width: int
) -> None:
    """On a terminal there is colour, and no line is longer than the window is wide."""
    monkeypatch.setenv("COLUMNS", str(width))
    result = call(words[0], example, *words[1:])
    assert result.exit_code == 0
    assert ESCAPE.search(result.stdout)
    assert max(len(line) for line in ESCAPE.sub("", result.stdout).splitlines()) <= width


@pytest.mark.usefixtures("terminal")
def test_terminal_table_names_what_it_leaves_out(example: Path) -> None:
    """Columns that do not fit are named below the table."""
    shown = ESCAPE.sub("", call("sql", example, "SELECT * FROM episodes").stdout)
    shortened = [word.removesuffix("…") for word in shown.splitlines()[0].split()]
    said = " ".join(shown.split())
    left_out = re.findall(r"[\w.]+", said[said.index("do not fit") : said.index(". A wider")])
    columns = el.open(example).episodes.collect_schema().names()
    kept = [column for column in columns if column not in left_out]
    assert len(kept) == len(shortened) >= 4
    assert all(column.startswith(start) for column, start in zip(kept, shortened, strict=True))


def test_info_tells_of_a_live_writer(tmp_path: Path) -> None:
    """While a run is recorded info names it, leaves its journal alone, and says nothing of recovery."""
    space = gymnasium.spaces.Discrete(5)
    store = el.create(tmp_path / "s", observation_space=space, action_space=space)
    with store.writer(run="alive") as writer:
        episode = writer.begin(0)
        episode.append(1, 1.0, 2, terminated=True)
        episode.end()
        for _ in range(2):
            told = json.loads(printed("info", tmp_path / "s", "--json"))
            assert (told["episodes"], told["journals"], told["live_runs"]) == (0, 1, [writer.run_id])
        said = printed("info", tmp_path / "s")
        assert f"recording\t1 live run: {writer.run_id}. Episodes show once they are sealed" in said
        assert "recover" not in said
        for words in (["ls"], ["stats"], ["head"]):
            assert f"1 live run: {writer.run_id}" in call(*words, tmp_path / "s").stderr
        assert f"1 live run: {writer.run_id}" in refused(1, "show", tmp_path / "s", 0)
    assert "live run" not in call("ls", tmp_path / "s").stderr
    told = json.loads(printed("info", tmp_path / "s", "--json"))
    assert (told["episodes"], told["journals"], told["live_runs"]) == (1, 0, [])


# The parts


@given(hnp.arrays(np.float64, st.integers(0, 100)), st.integers(1, 40))
def test_sparkline_takes_any_numbers(values: np.ndarray, width: int) -> None:
    """A sparkline is as long as it may be and has marks exactly where nothing is finite."""
    line = sparkline(Line(values), width)
    assert len(line) == min(len(values), width)
    assert set(line) <= {ODD, *BLOCKS}
    if len(values) <= width:
        assert [glyph == ODD for glyph in line] == [not np.isfinite(value) for value in values]


def test_sparklines_of_one_span_are_comparable() -> None:
    """A series that stays low beside others is low, and one without a finite value is all marks."""
    assert sparkline(Line(np.array([1.0, 2.0]), (0.0, 14.0)), 8) == "▁▂"
    assert sparkline(Line(np.array([14.0, np.nan, 7.0]), (0.0, 14.0)), 8) == "█x▅"
    assert sparkline(Line(np.array([np.nan, np.inf]), (0.0, 14.0)), 8) == "xx"


def fitted(
    names: list[str], rows: list[list[str]], width: int, first: tuple[str, ...]
) -> tuple[str, list[str]]:
    """A table as lines of text, and the columns that it leaves out."""
    columns = [Column(name, [row[k] for row in rows], False) for k, name in enumerate(names)]
    table, left_out = fitted_table(columns, width, first, ellipsis=True)
    console = Console(width=width, color_system=None, force_terminal=True)
    with console.capture() as capture:
        console.print(table)
    return capture.get(), left_out


@given(
    st.lists(st.lists(st.text(max_size=30).map(clean), min_size=7, max_size=7), max_size=4),
    st.integers(20, 90),
)
def test_a_table_is_no_wider_than_the_window(rows: list[list[str]], width: int) -> None:
    """What is left out is named, in order, and the rest stays."""
    names = [f"column {index}" for index in range(7)]
    text, left_out = fitted(names, rows, width, ())
    assert max(map(cell_len, text.splitlines())) <= width
    assert left_out == names[7 - len(left_out) :]


@pytest.mark.parametrize(("width", "kept"), [(20, 2), (40, 2), (60, 3), (80, 5), (300, 7)])
def test_narrow_windows_keep_what_matters(width: int, kept: int) -> None:
    """Of a list of episodes position, id and return stay longest; `show` takes an id that is cut."""
    names = ["position", "episode_id", "length", "episode_return", "end_reason", "seed", "started_at"]
    row = [
        "3",
        "a-run-with-a-name-01m8/000003",
        "12",
        "1234567.5",
        "terminated",
        "7",
        "2026-01-01 00:00:00.000",
    ]
    text, left_out = fitted(names, [row], width, IMPORTANT)
    assert set(left_out).isdisjoint([name for name in IMPORTANT if name in names][:kept])
    assert len(left_out) == 7 - kept
    shown = {20: "a-…/000003", 40: "a-run-with-a…/000003"}.get(width, "a-run-with-a-name-01m8/000003")
    assert shown in text


@pytest.mark.usefixtures("terminal")
def test_a_wide_terminal_shows_all_statistics(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of 240 columns shows every quantile."""
    monkeypatch.setenv("COLUMNS", "240")
    said = " ".join(ESCAPE.sub("", call("stats", example).stdout).split())
    assert "not fit" not in said and "q0.95" in said


@given(st.text())
def test_clean_text_has_no_control_characters(text: str) -> None:
    """No control character is left, and text without them stays as it is."""
    cleaned = clean(text)
    assert not re.search(UNSEEN, cleaned)
    assert (cleaned == text) == (not re.search(UNSEEN, text))
