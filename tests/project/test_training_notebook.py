"""The notebook on training runs from top to bottom, and its learners reach what it says.

What is recorded comes out exactly as it was committed. How good a learner is, to the last step, depends on
how a processor adds; so the returns have bounds instead.
"""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from notebook_runs import (
    NOTEBOOKS,
    charts,
    check_committed,
    check_pictures,
    differences,
    execute,
    outputs,
    streams,
    table,
)

pytest.importorskip("torch")
# It trains three learners: `make test-training` runs it, and so does the continuous integration.
pytestmark = pytest.mark.slow

TRAINING = NOTEBOOKS / "training.ipynb"
LEARNERS = ("cloning", "q-learning", "sequence-model")
# What follows from training depends on how a processor adds.
APPROXIMATE = (*LEARNERS, "chart-curves", "chart-asked")


@pytest.fixture(scope="module")
def committed() -> NotebookNode:
    """The notebook as it is in the repository."""
    return nbformat.read(TRAINING, as_version=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the notebook is executed in."""
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def executed(folder: Path) -> NotebookNode:
    """The notebook, executed now."""
    return execute(TRAINING, folder)


@pytest.fixture(params=["committed", "executed"])
def shown(request: pytest.FixtureRequest) -> dict[str, str]:
    """What the cells of both say, one after the other."""
    return outputs(request.getfixturevalue(request.param))


def test_behaviours_are_poor(shown: dict[str, str]) -> None:
    """Fifty episodes of each policy are recorded, and the best policy is far from balancing."""
    rows = table(shown["returns"])
    assert [(row[0], row[1]) for row in rows] == [
        (name, "50") for name in ("contrary", "random", "leaning", "steadying")
    ]
    assert float(rows[-1][3]) < 150


def test_learners_balance(shown: dict[str, str]) -> None:
    """Each learner reaches 400 of 500 steps or more in episodes that it did not see before."""
    for name in LEARNERS:
        found = re.search(r"mean return ([\d.]+) in 50 other episodes", shown[name])
        assert found and float(found[1]) >= 400


def test_training_goes_on_bit_for_bit(shown: dict[str, str]) -> None:
    """Stopped in the middle of an epoch and resumed, training gives the weights of a training in one go."""
    assert re.search(r"epoch 2, position 9728\)\nweights equal: True", shown["resume"])


def test_curves_are_drawn(executed: NotebookNode) -> None:
    """Every learner has a curve that begins below the recorded mean and ends far above it."""
    chart = charts(executed)["chart-curves"]
    (rows,) = chart["datasets"].values()
    by_learner: dict[str, list[dict]] = {}
    for row in rows:
        by_learner.setdefault(row["learner"], []).append(row)
    assert [len(points) for points in by_learner.values()] == [13] * 3
    for points in by_learner.values():
        assert points[0]["mean_return"] < points[0]["recorded"] < 60 and points[-1]["mean_return"] >= 400
    titles = [chart["spec"]["layer"][0]["encoding"][axis]["title"] for axis in "xy"]
    assert titles == ["gradient updates", "mean return of 20 episodes (steps)"] and chart["title"]


def test_sequence_model_does_as_it_is_told(executed: NotebookNode) -> None:
    """Asked for little it reaches little, and asked for all it balances."""
    chart = charts(executed)["chart-asked"]
    (rows,) = chart["datasets"].values()
    reached = {row["asked"]: row["reached"] for row in rows}
    assert reached[25] < 80 and reached[50] < 150 and reached[500] >= 400
    assert chart["title"] and all(chart["encoding"][axis]["title"] for axis in "xy")


def test_committed_outputs_come_out_again(committed: NotebookNode, executed: NotebookNode) -> None:
    """The committed outputs are those of an execution now, and the pictures are of its charts."""
    assert differences(committed, executed, APPROXIMATE) == {}
    check_pictures(committed, executed)


def test_nothing_is_left_behind(executed: NotebookNode, folder: Path) -> None:
    """The notebook cleans up, is quiet, and writes nothing beside itself."""
    assert streams(executed) == {"stdout"}
    assert list(folder.iterdir()) == []


def test_committed_file_is_in_order(committed: NotebookNode) -> None:
    """Its cells were run in order, both charts have pictures, and it names no machine."""
    check_committed(committed)
    assert len(charts(committed)) == 2
