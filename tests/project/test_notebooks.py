"""The first notebook runs from top to bottom, says what it said when it was committed, and is right.

`make test` looks at the committed outputs. `make test-notebooks` executes the notebook in an empty folder
with the interpreter that runs the tests, looks at that too, and compares both: its environments are seeded.
"""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from notebook_runs import (
    MACHINE_PATH,
    NOTEBOOKS,
    charts,
    check_committed,
    check_pictures,
    differences,
    execute,
    outputs,
    shown_lines,
    streams,
    table,
)

QUICKSTART = NOTEBOOKS / "quickstart.ipynb"

# The cells on the pendulum: sines and cosines differ in the last bit between processors. Counts and returns
# of CartPole are the same everywhere.
APPROXIMATE = ("pendulum", "upright", "chart-angles", "rebuild", "card-hardest", "chart-hardest", "video")


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


@pytest.fixture(params=["committed", pytest.param("executed", marks=pytest.mark.slow)])
def notebook(request: pytest.FixtureRequest) -> NotebookNode:
    """The notebook with its committed outputs, and as executed now."""
    return request.getfixturevalue(request.param)


def test_returns_are_right(notebook: NotebookNode) -> None:
    """The table of returns has 100 episodes of each policy, and the script is far better than chance."""
    scripted, random = table(outputs(notebook)["returns"])
    assert (scripted[:2], random[:2]) == (["scripted", "100"], ["random", "100"])
    assert float(scripted[2]) > 400 > 50 > float(random[2]) > 10
    assert float(scripted[4]) == 500.0


def test_every_end_is_counted_once(notebook: NotebookNode) -> None:
    """End reasons add up to all episodes, and as many terminated as have a cause of failure."""
    shown = outputs(notebook)
    ends = {(policy, reason): int(count) for policy, reason, count in table(shown["ends"])}
    assert sum(ends.values()) == 200
    terminated = sum(count for (_, reason), count in ends.items() if reason == "terminated")
    assert sum(int(row[2]) for row in table(shown["fails"])) == terminated


def test_raw_tables_agree(notebook: NotebookNode) -> None:
    """Read without Episodelake, the steps have one row more per episode than they have reward."""
    ((rows, episodes, total_reward),) = table(outputs(notebook)["other"])
    assert int(episodes) == 200
    assert int(rows) == float(total_reward) + 200


def test_pendulum_swings_up(notebook: NotebookNode) -> None:
    """All twenty episodes end upright, the slowest before half of its ten seconds are over."""
    found = {name: float(value) for name, value in table(outputs(notebook)["upright"])}
    assert found["count"] == 20
    assert found["max"] < 5.0


def test_rebuilt_episode_is_what_happened(notebook: NotebookNode) -> None:
    """The replay in the environment gives the recorded observations, rewards and return."""
    shown = outputs(notebook)
    assert "200 transitions, ended as truncated" in shown["rebuild"]
    assert re.search(r"observations\s+\(201, 3\)\s+float32", shown["rebuild"])
    assert [line.split()[-1] for line in shown["replay"].splitlines()] == ["True"] * 3


def test_charts_have_data(notebook: NotebookNode) -> None:
    """The charts hold the rows that they are to show, and title every axis."""
    drawn = charts(notebook)
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


def test_an_episode_shows_itself(notebook: NotebookNode) -> None:
    """The card names the episode and its signals; the replay has a frame for every second step."""
    html = {
        cell.id: "".join(output.data.get("text/html", "") for output in cell.outputs if "data" in output)
        for cell in notebook.cells
        if cell.cell_type == "code"
    }
    assert "swing-up-" in html["card-hardest"] and html["card-hardest"].count("<svg") >= 4
    assert "51 frames of replay" in outputs(notebook)["video"]
    assert "data:video/mp4;base64," in html["video"]


@pytest.mark.slow
def test_nothing_is_left_behind(executed: NotebookNode, folder: Path) -> None:
    """The notebook cleans up, and writes nothing beside itself."""
    assert executed.cells[-1].cell_type == "markdown"
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_execution_is_quiet(executed: NotebookNode) -> None:
    """No cell writes to standard error: no warning, no log."""
    assert streams(executed) == {"stdout"}


@pytest.mark.slow
def test_committed_outputs_come_out_again(committed: NotebookNode, executed: NotebookNode) -> None:
    """The committed outputs are those of an execution now, and the pictures are of its charts."""
    assert differences(committed, executed, APPROXIMATE) == {}
    check_pictures(committed, executed)


def cell(*outputs: dict) -> NotebookNode:
    """A notebook's only cell, with outputs."""
    made = nbformat.v4.new_code_cell(outputs=[nbformat.v4.new_output(**output) for output in outputs])
    made.id = "only"
    return nbformat.v4.new_notebook(cells=[made])


def stream(text: str) -> dict:
    """An output that prints a text."""
    return {"output_type": "stream", "text": text}


def html(text: str) -> dict:
    """An output that shows HTML beside plain text."""
    return {"output_type": "display_data", "data": {"text/plain": "shown", "text/html": text}}


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (stream("took 9.2 ms at 2026-11-22 00:23:21"), stream("took 11 s at 2026-11-23 01:00:00")),
        (stream("swing-up-01m80a5n9pecs5c/000010"), stream("swing-up-01m83w3yq5hzgsv/000010")),
        (stream("<Chart at 0x7f00> 12 kB in /tmp/a/store"), stream("<Chart at 0x1234> 3.5 MB in /var/store")),
        (html('<b style="left: 3px">4 rows</b>'), html('<b style="left: 9px">4 rows</b>')),
    ],
)
def test_what_no_execution_repeats_is_not_compared(before: dict, now: dict) -> None:
    """Durations, moments, ids, addresses, sizes and folders may differ, and so may the style of HTML."""
    assert differences(cell(before), cell(now)) == {}


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (stream("mean 12.5"), stream("mean 12.6")),
        (stream("same as recorded"), stream("same as recorded up to step 100")),
        (html("<b>4 rows</b>"), html("<b>5 rows</b>")),
        (stream("text"), html("text")),
    ],
)
def test_another_output_is_a_difference(before: dict, now: dict) -> None:
    """A number, a word or a kind of output that changed is shown with its cell and a diff."""
    found = differences(cell(before), cell(now))
    assert found.keys() == {"only"} and "+++ executed" in found["only"]


def test_approximate_cells_keep_their_words() -> None:
    """Where numbers follow the processor, other numbers are no difference, and other words are."""
    assert shown_lines(cell(stream("a 1.5\n\na 2.5\nb -3e-7")).cells[0], numbers=False) == ["a #", "b #"]
    assert differences(cell(stream("mean 12.5")), cell(stream("mean 7")), ["only"]) == {}
    assert differences(cell(stream("mean 12.5")), cell(stream("best 12.5")), ["only"])


def test_committed_file_is_in_order(committed: NotebookNode) -> None:
    """Its cells were run in order, every chart has a picture, and it names no machine."""
    check_committed(committed)
    assert len(charts(committed)) == 3


@pytest.mark.parametrize("text", ["in /srv/data/store", "'/tmp/x'", "file:/" + "//x", '"/usr/lib"'])
def test_a_machine_path_is_seen(text: str) -> None:
    """The search for paths finds what it is there to find."""
    assert MACHINE_PATH.search(text)
