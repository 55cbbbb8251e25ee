"""The first notebook runs from top to bottom, says what it said when it was committed, and is right.

It is executed in an empty folder with the interpreter that runs the tests. Its numbers come from seeded
environments, so the tables of the committed outputs must come out again.
"""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from notebook_runs import MACHINE_PATH, NOTEBOOKS, charts, check_committed, execute, outputs, streams, table

QUICKSTART = NOTEBOOKS / "quickstart.ipynb"

# What numpy and the environments compute exactly alike everywhere: counts and returns of CartPole.
REPEATED = ("record", "returns", "ends", "fails", "replay", "other")


@pytest.fixture(scope="module")
def committed() -> NotebookNode:
    """The notebook as it is in the repository."""
    return nbformat.read(QUICKSTART, as_version=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the notebook is executed in."""
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def executed(folder: Path) -> NotebookNode:
    """The notebook, executed now."""
    return execute(QUICKSTART, folder)


def test_returns_are_right(executed: NotebookNode) -> None:
    """The table of returns has 100 episodes of each policy, and the script is far better than chance."""
    scripted, random = table(outputs(executed)["returns"])
    assert (scripted[:2], random[:2]) == (["scripted", "100"], ["random", "100"])
    assert float(scripted[2]) > 400 > 50 > float(random[2]) > 10
    assert float(scripted[4]) == 500.0


def test_every_end_is_counted_once(executed: NotebookNode) -> None:
    """End reasons add up to all episodes, and as many terminated as have a cause of failure."""
    shown = outputs(executed)
    ends = {(policy, reason): int(count) for policy, reason, count in table(shown["ends"])}
    assert sum(ends.values()) == 200
    terminated = sum(count for (_, reason), count in ends.items() if reason == "terminated")
    assert sum(int(row[2]) for row in table(shown["fails"])) == terminated


def test_raw_tables_agree(executed: NotebookNode) -> None:
    """Read without Episodelake, the steps have one row more per episode than they have reward."""
    ((rows, episodes, total_reward),) = table(outputs(executed)["other"])
    assert int(episodes) == 200
    assert int(rows) == float(total_reward) + 200


def test_pendulum_swings_up(executed: NotebookNode) -> None:
    """All twenty episodes end upright, the slowest before half of its ten seconds are over."""
    found = {name: float(value) for name, value in table(outputs(executed)["upright"])}
    assert found["count"] == 20
    assert found["max"] < 5.0


def test_rebuilt_episode_is_what_happened(executed: NotebookNode) -> None:
    """The replay in the environment gives the recorded observations, rewards and return."""
    shown = outputs(executed)
    assert "200 transitions, ended as truncated" in shown["rebuild"]
    assert re.search(r"observations\s+\(201, 3\)\s+float32", shown["rebuild"])
    assert [line.split()[-1] for line in shown["replay"].splitlines()] == ["True"] * 3


def test_charts_have_data(executed: NotebookNode) -> None:
    """The charts hold the rows that they are to show, and title every axis."""
    drawn = charts(executed)
    assert drawn.keys() == {"chart-returns", "chart-angles", "chart-hardest"}
    layers = drawn["chart-returns"]["datasets"].values()
    assert layers
    for bars in layers:
        counted = {
            name: sum(row["episodes"] for row in bars if row["series"] == name)
            for name in ("scripted", "random")
        }
        assert counted == {"scripted": 100, "random": 100}
    angles = drawn["chart-angles"]
    assert sum(map(len, angles["datasets"].values())) == 6 * 81
    assert angles["title"] and all(angles["encoding"][axis]["title"] for axis in "xy")


def test_an_episode_shows_itself(executed: NotebookNode) -> None:
    """The card names the episode and its signals; the replay has a frame for every second step."""
    html = {
        cell.id: "".join(output.data.get("text/html", "") for output in cell.outputs if "data" in output)
        for cell in executed.cells
        if cell.cell_type == "code"
    }
    assert "swing-up-" in html["card-hardest"] and html["card-hardest"].count("<svg") >= 4
    assert "51 frames of replay" in outputs(executed)["video"]
    assert "data:video/mp4;base64," in html["video"]


def test_nothing_is_left_behind(executed: NotebookNode, folder: Path) -> None:
    """The notebook cleans up, and writes nothing beside itself."""
    assert executed.cells[-1].cell_type == "markdown"
    assert list(folder.iterdir()) == []


def test_execution_is_quiet(executed: NotebookNode) -> None:
    """No cell writes to standard error: no warning, no log."""
    assert streams(executed) == {"stdout"}


def test_committed_outputs_come_out_again(committed: NotebookNode, executed: NotebookNode) -> None:
    """The committed tables and lines are those of an execution now."""
    before, now = outputs(committed), outputs(executed)
    assert before.keys() == now.keys()
    assert {name: before[name] for name in REPEATED} == {name: now[name] for name in REPEATED}


def test_committed_file_is_in_order(committed: NotebookNode) -> None:
    """Its cells were run in order, every chart has a picture, and it names no machine."""
    check_committed(committed)
    assert len(charts(committed)) == 3


@pytest.mark.parametrize("text", ["in /srv/data/store", "'/tmp/x'", "file:/" + "//x", '"/usr/lib"'])
def test_a_machine_path_is_seen(text: str) -> None:
    """The search for paths finds what it is there to find."""
    assert MACHINE_PATH.search(text)
