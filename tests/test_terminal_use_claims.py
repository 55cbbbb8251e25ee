"""The command line as it is used: in narrow windows and broken pipes, with Ctrl-C, on half-ruined stores."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import av
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

import episodelake as el
from claimed_commands import command
from claimed_stores import cartpole, hostile_texts, two_segments
from terminal_sessions import RUN, TerminalSession
from waiting import PATIENCE

LONG_QUERY = "SELECT count(*) FROM range(1000000000) a, range(99999) b WHERE a.range % 7 = b.range % 3"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of CartPole, only looked at."""
    return Path(cartpole(tmp_path_factory.mktemp("use") / "cartpole").path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of steps; copies of it are ruined."""
    return Path(two_segments(tmp_path_factory.mktemp("whole") / "store").path)


@pytest.mark.further
def test_a_reader_that_leaves_gets_no_traceback(store: Path) -> None:
    """`episodelake sql ... | head -1` ends quietly, however much was still to come."""
    words = [sys.executable, *RUN, "sql", str(store), "FROM range(2000000)", "--csv"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"range\n"
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.further
def test_ctrl_c_stops_a_query_and_the_prompt_goes_on(store: Path, tmp_path: Path) -> None:
    """In the prompt Ctrl-C ends the query alone; the next one is answered; `exit` leaves with status 0."""
    session = TerminalSession("sql", store, width=200, environment={"EPISODELAKE_DATA": str(tmp_path)})
    session.wait_for("sql>")
    session.type(LONG_QUERY + ";\r")
    session.wait_until_computing()
    session.type("\x03")
    place = session.wait_for("sql>", session.wait_for("nterrupted"))
    session.type("select 40 + 2 as answer;\r")
    session.wait_for("sql>", session.wait_for("42", place))
    session.type("exit\r")
    assert session.end() == 0
    assert "Traceback" not in session.text


@pytest.mark.further
def test_narrow_terminals_keep_what_matters(store: Path) -> None:
    """No line is wider than the window, and the length and return of an episode stay before the date."""
    session = TerminalSession("ls", store, width=40, environment={"NO_COLOR": "1"})
    assert session.end() == 0
    lines = session.text.replace("\r", "").split("\n")
    assert max(map(len, lines)) <= 40
    header = lines[0]
    assert "started_at" not in header or {"length", "episode_return"} <= set(header.split())


@pytest.mark.further
def test_terminals_get_no_bidi_from_a_store(tmp_path: Path) -> None:
    """On a terminal too, text of a store cannot turn the line round or set the title of the window."""
    path = hostile_texts(tmp_path / "store").path
    session = TerminalSession("show", path, 0, width=200)
    assert session.end() == 0
    assert "\u202e" not in session.said and "\x1b]0;title" not in session.said


@pytest.mark.further
def test_csv_on_a_terminal_is_harmless(tmp_path: Path) -> None:
    """CSV is raw in a pipe; on a terminal it sets no colour and no title for the data's sake."""
    path = hostile_texts(tmp_path / "store").path
    assert "\x1b]0;title" in command("sql", path, 'SELECT "metadata.note" FROM runs', "--csv").out
    session = TerminalSession("sql", path, 'SELECT "metadata.note" FROM runs', "--csv")
    assert session.end() == 0
    assert "\x1b]0;title" not in session.said


@pytest.mark.further
def test_frames_and_charts_go_into_files(store: Path, tmp_path: Path) -> None:
    """`show --frames` and `plot --output` write files that others decode, of the steps asked for."""
    images = el.create(
        tmp_path / "images",
        observation_space=spaces.Box(0, 255, (24, 32, 3), np.uint8),
        action_space=spaces.Discrete(2),
    )
    frames = np.random.default_rng(0).integers(0, 256, (13, 24, 32, 3), np.uint8)
    with images.writer(run="r") as writer:
        writer.write_episode(
            observations=frames, actions=[0] * 12, rewards=[1.0] * 12, terminations=True, truncations=False
        )
    said = command("show", tmp_path / "images", 0, "--frames", tmp_path / "x.gif", "--steps", "::4", "--json")
    assert said.json["bytes"] == (tmp_path / "x.gif").stat().st_size
    with Image.open(tmp_path / "x.gif") as gif:
        assert getattr(gif, "n_frames", 1) == 4
    assert command("show", tmp_path / "images", -1, "--frames", tmp_path / "x.mp4").status == 0
    with av.open(str(tmp_path / "x.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) == 13
    for kind in ("returns", "lengths", "histogram", "actions", "visitation"):
        assert command("plot", store, kind, "-o", tmp_path / f"{kind}.svg").status == 0
        assert ElementTree.parse(tmp_path / f"{kind}.svg").getroot().tag.endswith("svg")


@pytest.mark.further
def test_an_episode_that_a_crash_cut_off_is_listed_and_shown(tmp_path: Path) -> None:
    """After a writer died in the middle, `recover` seals its episode, and it is listed as interrupted."""
    code = f"""
import os, gymnasium, episodelake as el
make = lambda: gymnasium.make("CartPole-v1")
store = el.create({str(tmp_path / "s")!r}, make())
env = store.record(make(), flush_seconds=0.05, seal_seconds=1e6)
for seed in range(2):
    env.reset(seed=seed)
    for step in range(5):
        env.step(step % 2)
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from waiting import wait_for_journal
journal = store.path / "journal" / env.run_id
wait_for_journal(journal, 10, ended=1)
env.step(0)
wait_for_journal(journal, 11, ended=1)
os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=PATIENCE).returncode == 9
    assert command("ls", tmp_path / "s", "--json").status == 0
    assert command("recover", tmp_path / "s").status == 0
    rows = command("ls", tmp_path / "s", "--json").json
    assert [row["end_reason"] for row in rows] == ["cut", "interrupted"]
    returned = command(
        "sql", tmp_path / "s", "SELECT discounted_return AS d FROM discounted_return()", "--json"
    ).json
    assert sorted(row["d"] for row in returned) == sorted(row["length"] for row in rows)


def ruin(path: Path, pattern: str, how: str) -> None:
    """Ruin the files of a pattern: their end, their middle, or the whole file."""
    if how == "text":
        (path / pattern).write_text("{oops")
        return
    for file in path.glob(pattern):
        data = bytearray(file.read_bytes())
        if how == "gone":
            file.unlink()
        elif how == "cut":
            file.write_bytes(data[: len(data) // 2])
        else:
            end = 1500 if file.parent.name == "episodes" else len(data) // 2
            data[100:end] = bytes(255 - byte for byte in data[100:end])
            file.write_bytes(data)


RUINS = [
    ("steps/first*.parquet", "gone"),
    ("steps/first*.parquet", "cut"),
    ("steps/first*.parquet", "middle"),
    ("episodes/first*.parquet", "cut"),
    ("episodes/first*.parquet", "gone"),
    ("runs/first*.parquet", "cut"),
    ("card.json", "text"),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("pattern", "how"), RUINS)
def test_looking_goes_on_beside_a_ruined_file(whole: Path, tmp_path: Path, pattern: str, how: str) -> None:
    """Whatever single file is ruined, `info` and `ls` answer, and the second run's last episode is shown."""
    path = tmp_path / "store"
    shutil.copytree(whole, path)
    last = el.open(path)[-1].id
    ruin(path, pattern, how)
    assert command("info", path, "--json").status == 0
    assert command("ls", path, "--json").json[-1]["episode_id"] == last
    assert command("show", path, last, "--json").json["length"] == 2000
    assert command("verify", path).status == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize(("pattern", "how"), RUINS[:5])
def test_what_is_asked_of_a_ruined_file_is_no_traceback(
    whole: Path, tmp_path: Path, pattern: str, how: str
) -> None:
    """Commands that need the ruined file name it, whichever way it is ruined."""
    path = tmp_path / "store"
    shutil.copytree(whole, path)
    ruin(path, pattern, how)
    table = pattern.split("/")[0]
    for words in (["head", path, table], ["sql", path, f"SELECT * FROM {table}"], ["diff", whole, path]):
        said = command(*words)
        assert "first-" in said.err and ".parquet" in said.err and "Traceback" not in said.err


@pytest.mark.further
def test_positions_stay_when_a_file_of_episodes_is_ruined(whole: Path, tmp_path: Path) -> None:
    """The position that `ls` prints leads `show` to the same episode, in a store that lost some too."""
    path = tmp_path / "store"
    shutil.copytree(whole, path)
    ruin(path, "episodes/first*.parquet", "middle")
    listed = {row["position"]: row["episode_id"] for row in command("ls", path, "--json").json}
    for position, episode_id in listed.items():
        assert command("show", path, position, "--json").json["episode_id"] == episode_id
    shown = [command("show", path, position, "--json") for position in range(8)]
    named = [said.json["episode_id"] for said in shown if said.status == 0]
    assert len(named) == len(set(named))


def test_files_are_replaced_only_when_the_new_one_is_whole(store: Path, tmp_path: Path) -> None:
    """A query that fails half-way leaves the file as it was, and no rest of its own."""
    file = tmp_path / "result.csv"
    file.write_text("before")
    said = command(
        "sql",
        store,
        "SELECT CASE WHEN range > 90000 THEN error('late') ELSE range END FROM range(100000)",
        "-o",
        file,
    )
    assert said.status == 1 and "late" in said.err
    assert file.read_text() == "before" and os.listdir(tmp_path) == ["result.csv"]


def test_visitation_has_json(store: Path) -> None:
    """`plot visitation --json` gives counts that add up to all observations, as every command has --json."""
    rows = command("plot", store, "visitation", "--json").json
    assert sum(row["visits"] for row in rows) == sum(episode.length + 1 for episode in el.open(store))


def test_keys_of_json_are_names(store: Path) -> None:
    """No key of `info --json` and `diff --json` begins with a blank or is a sentence."""
    agents = Path(__file__).parent / "data" / "format-1-agents" / "store"
    for said in (
        command("info", agents, "--json").json["spaces"],
        command("diff", store, agents, "--json").json["a"],
    ):
        assert [key for key in said if " " in key.strip() or key != key.strip()] == []
