"""The notebooks that answer a question: run from top to bottom, they find what they tell.

Two learn in a loop of their own and record that; one has an arm with cameras, one a language model. The
committed outputs and those of an execution now must both bear the story out; to the last digit they need not
agree, since a learner follows the last bit of a sum, and sizes the encoder.
"""

from __future__ import annotations

import itertools
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
# They learn for some ten seconds each: `make test-notebooks` runs them, and so does the CI.
pytestmark = pytest.mark.slow

NAMES = ("sql", "dataframes", "cameras", "rollouts")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the notebooks are executed in."""
    return tmp_path_factory.mktemp("notebooks")


@pytest.fixture(scope="module")
def executed(folder: Path) -> dict[str, NotebookNode]:
    """The notebooks, executed now."""
    return {name: execute(NOTEBOOKS / f"{name}.ipynb", folder) for name in NAMES}


@pytest.fixture(scope="module")
def committed() -> dict[str, NotebookNode]:
    """The notebooks as they are in the repository."""
    return {name: nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4) for name in NAMES}


@pytest.fixture(params=["committed", "executed"])
def shown(request: pytest.FixtureRequest) -> dict[str, dict[str, str]]:
    """What the cells of both say, by notebook and cell."""
    return {name: outputs(notebook) for name, notebook in request.getfixturevalue(request.param).items()}


def numbers(text: str) -> list[list[float]]:
    """The rows of a printed frame of numbers; NaN for null."""
    return [[float("nan") if cell == "null" else float(cell) for cell in row] for row in table(text)]


def test_every_episode_of_the_seeds_is_there(shown: dict[str, dict[str, str]]) -> None:
    """Eight seeds play 160 episodes each, begin alike and end far apart."""
    assert shown["sql"]["record"].startswith("1280 episodes of 8 runs")
    rows = numbers(shown["sql"]["returns"])
    assert sorted(int(row[0]) for row in rows) == list(range(8))
    assert all(row[1] < 100 for row in rows)
    assert rows[0][3] > 2 * rows[-1][3]
    assert all(row[2] >= row[3] for row in rows)


def test_ends_of_the_seeds_add_up(shown: dict[str, dict[str, str]]) -> None:
    """Each of the last forty episodes balanced, left the track or fell."""
    rows = numbers(shown["sql"]["ends"])
    assert [sum(row[1:]) for row in rows] == [40] * 8
    assert sum(row[2] for row in rows) > 20 and sum(row[3] for row in rows) > 20


def test_two_weights_are_the_reason(shown: dict[str, dict[str, str]]) -> None:
    """Some seeds got a negative weight or a strong bias; with both mended, every seed balances."""
    weights = {int(seed): (position, bias) for seed, position, bias in numbers(shown["sql"]["weights"])}
    wrong = {seed for seed, (position, _) in weights.items() if position < 0}
    assert wrong and {int(row[0]) for row in numbers(shown["sql"]["when"])} == wrong
    verdict = {int(seed): rest for seed, *rest in numbers(shown["sql"]["test"])}
    learnt, _, _, both = zip(*verdict.values(), strict=True)
    assert min(both) > 350 and min(learnt) < 150
    for seed in wrong:
        assert verdict[seed][3] > 2.5 * verdict[seed][0]


def test_the_bonus_is_earned_and_the_flag_is_not_reached(shown: dict[str, dict[str, str]]) -> None:
    """All learners raise the return; three of five give up the flag that they reached before."""
    assert shown["dataframes"]["record"].startswith("1500 episodes")
    assert all(late > early + 50 for _, early, late in numbers(shown["dataframes"]["curve"]))
    shares = {int(row[0]): row[1:3] for row in numbers(shown["dataframes"]["truth"])}
    fallen = {learner for learner, (best, last) in shares.items() if last < best - 0.3}
    assert len(fallen) >= 3 and len(shares) == 5
    assert any(last >= 0.9 for _, last in shares.values())


def test_the_true_reward_counts_steps(shown: dict[str, dict[str, str]]) -> None:
    """Summed over an episode, the true reward is the length with its sign turned."""
    rows = table(shown["dataframes"]["earned"])
    assert sum(int(row[2]) for row in rows) == 5 * 20 * 5
    for _, reached, _, length, _, true_return in rows:
        assert abs(float(length) + float(true_return)) <= 0.5
        assert (float(length) == 200) == (reached == "false")


def test_those_who_give_up_the_flag_brake_below_it(shown: dict[str, dict[str, str]]) -> None:
    """On the slope, suspicious learners brake nearly always, and the honest one does not."""
    brakes = {int(row[0]): float(row[2]) for row in table(shown["dataframes"]["policy"])}
    suspicious = {int(row[0]) for row in table(shown["dataframes"]["check"]) if row[3] == "true"}
    assert len(suspicious) >= 3
    assert min(brakes[learner] for learner in suspicious) > 0.85
    assert min(brakes.values()) < 0.6


def test_cameras_are_small_and_go_to_lerobot_and_back(shown: dict[str, dict[str, str]]) -> None:
    """Video takes less than a twentieth of raw frames, and every frame of LeRobot's videos comes back."""
    said = shown["cameras"]
    episodes, steps = re.findall(r"\d+", said["record"])
    assert episodes == "12" and int(steps) > 300
    frames, times = (
        int(re.search(pattern, said["size"])[1]) for pattern in (r"(\d+) frames", r"(\d+) times")
    )
    assert frames == 4 * (int(steps) + 12) and times > 20
    ((direct, *_, near, far), (clumsy, *_, also_near, further)) = table(said["query"])
    assert (direct, clumsy) == ("direct", "clumsy") and float(far) < float(further)
    assert max(float(near), float(also_near)) < 0.05
    assert said["decode"].startswith("(12, 96, 128, 3) uint8")
    assert said["train"].count("(16, 2, 96, 128, 3)") == 4
    assert "frames of observation.front, 20 fps" in said["video"]
    assert (said["lerobot"], said["same"]) == ("4 videos\n", "48 of 48 videos have the same frames\n")


def test_rollouts_train_again_with_equal_losses(shown: dict[str, dict[str, str]]) -> None:
    """The model learns, its samplers fall behind, and a training from the store has the same losses."""
    said = shown["rollouts"]
    assert said["train"] == "7680 rollouts of 60 steps\n" and said["advantages"] == "True"
    rewards, formats, answers = list(zip(*numbers(said["parts"]), strict=True))[2:]
    assert rewards[0] < 0.3 and rewards[-1] > 1 and answers[-1] > 0.6 and formats[-1] > 0.9
    for _, one, four, _, deviation, without, groups in numbers(said["groups"]):
        assert one < four and deviation > 0 and without < groups == 192
    assert said["replay"] == "60 losses and 7 tensors of weights are equal\n"
    gap = numbers(said["gap"])
    assert [row[0] for row in gap] == [0, 1, 2, 3] and abs(gap[0][2]) < 1e-4 and gap[0][3] == 0
    assert all(0 < before[3] < after[3] for before, after in itertools.pairwise(gap[1:]))


def test_charts_are_titled_and_hold_data(executed: dict[str, NotebookNode]) -> None:
    """Every chart has a title and rows."""
    for name, count in (("sql", 2), ("dataframes", 2), ("rollouts", 1)):
        drawn = charts(executed[name])
        assert len(drawn) == count
        for chart in drawn.values():
            assert chart["title"] and sum(map(len, chart["datasets"].values())) > 5


def test_nothing_is_left_behind(executed: dict[str, NotebookNode], folder: Path) -> None:
    """The notebooks are quiet and write nothing beside themselves."""
    assert [streams(notebook) for notebook in executed.values()] == [{"stdout"}] * len(NAMES)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", NAMES)
def test_committed_outputs_come_out_again(
    name: str, committed: dict[str, NotebookNode], executed: dict[str, NotebookNode]
) -> None:
    """The committed outputs are those of an execution now, numbers aside, which follow from learning."""
    before, now = committed[name], executed[name]
    assert differences(before, now, [cell.id for cell in now.cells if cell.cell_type == "code"]) == {}
    check_pictures(before, now)


@pytest.mark.parametrize("name", NAMES)
def test_committed_files_are_in_order(name: str, committed: dict[str, NotebookNode]) -> None:
    """Their cells were run in order, charts have pictures, and they name no machine."""
    check_committed(committed[name])
