"""The demo: what it records, what it says of it, that it replays, and that it destroys nothing of others."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from typer.testing import CliRunner

import episodelake as el
from episodelake.readers.replaying.replay import replay
from episodelake.terminal.app import app
from episodelake.terminal.reports.demo import IMAGES, QUESTIONS, TASKS, Task, next_commands
from waiting import PATIENCE

EPISODES = 6
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
TERMINAL = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "80"}
NO_TERMINAL = dict.fromkeys(["FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"])


@dataclass(frozen=True)
class Demo:
    """A finished demo: its folder and what it printed."""

    path: Path
    output: str


def run(path: Path, episodes: int = EPISODES, terminal: bool = False) -> str:
    """Run the demo; gives what it printed."""
    words = ["demo", "--path", str(path), "--episodes", str(episodes)]
    result = CliRunner().invoke(app, words, env=TERMINAL if terminal else NO_TERMINAL)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def refused(path: Path) -> str:
    """Run the demo where it must not; gives what it said, after a look that nothing changed."""
    before = {entry: entry.read_bytes() for entry in path.rglob("*") if entry.is_file()}
    result = CliRunner().invoke(app, ["demo", "--path", str(path), "--episodes", "1"], env=NO_TERMINAL)
    assert (result.exit_code, result.stdout) == (1, "")
    assert {entry: entry.read_bytes() for entry in path.rglob("*") if entry.is_file()} == before
    return result.stderr


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """One demo that the tests look at and leave as it is."""
    path = tmp_path_factory.mktemp("demo") / "stores"
    return Demo(path, run(path))


# What it records


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_every_store_holds_both_policies(demo: Demo, task: Task) -> None:
    """Each store has one run per policy, told by the run's metadata, with the episodes asked for."""
    store = el.open(demo.path / task.name)
    query = """SELECT runs."metadata.policy", list(seed ORDER BY seed) FROM episodes JOIN runs USING (run_id)
        GROUP BY ALL ORDER BY ALL"""
    seeds = list(range(EPISODES))
    assert store.sql(query).fetchall() == [("random", seeds), ("scripted", seeds)]
    assert task.env_id in store.card["description"]
    assert store.sql("SELECT count(*) FROM runs WHERE ended_at IS NULL").fetchall() == [(0,)]
    assert list((demo.path / task.name / "journal").iterdir()) == []


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_every_episode_is_what_the_environment_does(demo: Demo, task: Task) -> None:
    """A plain loop over the seeded environment with the stored actions sees what the store holds."""
    env = gymnasium.make(task.env_id)
    for episode in el.open(demo.path / task.name):
        observation, _ = env.reset(seed=episode.seed)
        for t, action in enumerate(episode.actions):
            parts = (
                episode.observations if isinstance(episode.observations, tuple) else (episode.observations,)
            )
            seen = observation if isinstance(observation, tuple) else (observation,)
            assert all(np.array_equal(part[t], value) for part, value in zip(parts, seen, strict=True))
            observation, reward, terminated, truncated, _ = env.step(action)
            told = (episode.rewards[t], episode.terminations[t], episode.truncations[t])
            assert told == (reward, terminated, truncated)
        assert terminated or truncated


def test_pictures_are_those_of_the_environment(demo: Demo) -> None:
    """The frames of the image store are what the environment renders after the stored actions."""
    episode = el.open(demo.path / IMAGES)[0]
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    env.reset(seed=episode.seed)
    for t, action in enumerate(episode.actions):
        assert np.array_equal(episode.observations["pixels"][t], env.render())
        env.step(action)
    env.close()


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_scripted_runs_follow_the_controller(demo: Demo, task: Task) -> None:
    """The actions of the scripted run are the controller's; those of the random run are not all."""
    store = el.open(demo.path / task.name)
    follows = {"random": [], "scripted": []}
    for episode in store:
        parts = episode.observations
        observations = list(zip(*parts, strict=True)) if isinstance(parts, tuple) else list(parts)
        policy = episode.run_id.partition("-")[0]
        wanted = [task.control(observation) for observation in observations[:-1]]
        follows[policy].append(wanted == episode.actions.tolist())
    assert all(follows["scripted"])
    assert not all(follows["random"])


# What it says


def test_answers_are_those_of_the_episodes(demo: Demo) -> None:
    """The printed returns, end reasons and longest episodes are those of a count without SQL."""
    lines = [line.split() for line in demo.output.splitlines()]
    for task in TASKS:
        episodes = list(el.open(demo.path / task.name))
        for policy in ("random", "scripted"):
            own = [episode for episode in episodes if episode.run_id.startswith(policy)]
            returns = np.array([episode.rewards.sum() for episode in own])
            (row,) = [
                line for line in lines if line[:3] == [task.name, policy, str(EPISODES)] and len(line) == 6
            ]
            assert [float(cell) for cell in row[3:]] == pytest.approx(
                [returns.mean(), returns.min(), returns.max()], rel=1e-4
            )
            for reason in {episode.end_reason for episode in own}:
                count = sum(episode.end_reason == reason for episode in own)
                assert [task.name, policy, reason, str(count)] in lines
        longest = max(len(episode) for episode in episodes)
        shown = [line for line in lines if line[0:1] == [task.name] and len(line) == 5 and "/" in line[1]]
        assert len(shown) == 3
        assert shown[0][2] == str(longest)


def test_output_shows_the_queries_and_the_proof(demo: Demo) -> None:
    """The SQL texts stand in the output, the charts too, and all episodes replayed the same."""
    for question, text in QUESTIONS:
        assert all(line in demo.output for line in (question, *text.splitlines()))
    for task in TASKS:
        assert f"{task.env_id}: how often each return occurs" in demo.output
    stores = [el.open(demo.path / task.name) for task in TASKS]
    steps = sum(store.sql("SELECT sum(length)::BIGINT FROM episodes").fetchall()[0][0] for store in stores)
    count = 2 * EPISODES * len(TASKS)
    assert f"All {count} episodes were replayed so: {steps:,} transitions, no difference." in demo.output
    assert "DIFFER" not in demo.output


def test_output_without_a_terminal_is_plain(demo: Demo) -> None:
    """There are neither colours nor drawn lines."""
    assert not ESCAPE.search(demo.output)
    assert not re.search("[\u2500-\u257f]", demo.output)


@pytest.mark.further
def test_output_on_a_terminal_fits(tmp_path: Path) -> None:
    """On a terminal of 80 columns there is colour, and no line is longer."""
    shown = run(tmp_path / "d", episodes=2, terminal=True)
    assert ESCAPE.search(shown)
    assert max(len(line) for line in ESCAPE.sub("", shown).splitlines()) <= 80


def test_next_commands_work(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands that the demo ends with run and print something; the last opens all stores on a page."""
    monkeypatch.setattr("sys.argv", ["episodelake"])
    *commands, page = next_commands(demo.path)
    assert len(commands) == 3 and page == ["episodelake", "explore", str(demo.path)]
    assert {*el.lake(demo.path)} == {IMAGES, *(task.name for task in TASKS)}
    for program, *words in commands:
        result = CliRunner().invoke(app, words, env=NO_TERMINAL)
        assert program.endswith("episodelake")
        assert (result.exit_code, result.stderr) == (0, "")
        assert len(result.stdout.splitlines()) >= 3


def test_next_commands_are_printed_for_a_shell(demo: Demo) -> None:
    """A shell reads the printed commands, line breaks and quotes included, as the words that are meant."""
    printed = demo.output[demo.output.index("Try next") :].split("\n", 1)[1]
    program = f"episodelake() {{ printf '%s\\n' \"$@\"; }}\n{printed}"
    shell = subprocess.run(
        ["sh", "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    words = shell.stdout.splitlines()
    assert words == [word for command in next_commands(demo.path) for word in command[1:]]


# Replay


def test_replay_notices_a_different_environment(demo: Demo) -> None:
    """With another gravity the observations differ from the first step on, and the reward there does not."""
    episode = el.open(demo.path / "cartpole")[0]
    env = gymnasium.make("CartPole-v1")
    assert replay(episode, env).same
    env.unwrapped.gravity = 9.80001
    told = replay(episode, env)
    assert not told.same
    assert [(each.step, each.leaf) for each in told.differences] == [(1, "observation")]


def test_replay_notices_an_episode_that_goes_on(demo: Demo) -> None:
    """An environment that ends the episode at another step gives other flags."""
    episode = el.open(demo.path / "mountaincar")[0]
    env = gymnasium.make("MountainCar-v0", max_episode_steps=episode.length - 1)
    told = replay(episode, env)
    assert [(each.step, each.leaf) for each in told.differences] == [(episode.length - 1, "truncated")]


@pytest.mark.further
def test_a_difference_ends_the_demo_with_status_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an episode does not replay, the demo says how many and fails."""

    def in_weak_gravity(episode: el.Episode, env: gymnasium.Env) -> object:
        env.unwrapped.gravity = 1.0
        return replay(episode, env)

    monkeypatch.setattr(el.Episode, "replay", in_weak_gravity)
    words = ["demo", "--path", str(tmp_path / "d"), "--episodes", "2"]
    result = CliRunner().invoke(app, words, env=NO_TERMINAL)
    assert result.exit_code == 1
    assert re.search(r"\d+ of 12 replayed episodes differ", result.stdout)
    assert "DIFFERS at step" in result.stdout


# The folder


@pytest.mark.further
def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    """A folder that is there but empty will do, and so will one whose parents are missing."""
    run(tmp_path, episodes=1)
    (tmp_path / "more").mkdir()
    run(tmp_path / "more" / "deep", episodes=1)


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    """A folder that is not empty, and a file in the way, are refused untouched."""
    (tmp_path / "cartpole").mkdir()
    (tmp_path / "cartpole" / "thesis.txt").write_text("years")
    assert "is not empty: it holds cartpole. Remove it, or choose another with --path" in refused(tmp_path)
    file = tmp_path / "cartpole" / "thesis.txt"
    assert str(file) in refused(file)
