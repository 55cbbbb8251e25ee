"""Collection from single environments, compared with plain loops over the same seeded environments."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import polars as pl
import pytest
from gymnasium import spaces

import episodelake as el
from collecting_parts import CoinEnv, Tensor, VaryingEnv, interrupted
from episodelake.testing.adapters import case
from nasty_environments import new_store

# What is recorded


def test_tensors_become_arrays(tmp_path: Path) -> None:
    """Actions, extras and states may be tensors of a library that is never imported."""

    def policy(observation: Any, info: Any, state: Any) -> Any:
        state = Tensor(np.zeros(2)) if state is None else Tensor(state.data + 1)
        action = Tensor(np.array([0.25, -0.25], np.float32))
        return action, {"value": Tensor(np.array(1.5)), "deep": {"x": Tensor(np.arange(2))}}, state

    store = new_store(tmp_path, VaryingEnv())
    el.collect(VaryingEnv(), el.Policy(policy, record_state=True), store, episodes=5, seed=0)
    for episode in store.refresh():
        assert episode.actions.tolist() == [[0.25, -0.25]] * episode.length
        assert episode.policy["value"].tolist() == [1.5] * episode.length
        states = [state.tolist() for state in episode.policy["state"] if state is not None]
        assert states == [[t, t] for t in range(episode.length - 1)]


def test_rewards_of_several_objectives(tmp_path: Path) -> None:
    """Returns are vectors where rewards are, in the stats, the frame and the table."""

    class TwoGoals(VaryingEnv):
        def step(self, action: Any) -> Any:
            observation, reward, *rest = super().step(action)
            return observation, np.array([reward, 1.0]), *rest

    store = new_store(tmp_path, TwoGoals(), reward_shape=(2,))
    stats = el.collect(TwoGoals(), None, store, episodes=8, seed=0)
    returns = np.array([episode.rewards.sum(axis=0) for episode in store.refresh()])
    assert stats.returns.shape == (8, 2) and np.allclose(stats.returns, returns)
    assert np.array_equal(stats.returns[:, 1], stats.lengths)
    assert np.allclose(stats.return_mean, returns.mean(axis=0))
    assert stats.frame()["return_max"].to_list() == [stats.return_max.tolist()]
    assert "return 1" in str(stats)


# What a policy returns

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
PAIR = spaces.Tuple((spaces.Discrete(3), spaces.Dict({"x": spaces.Discrete(2)})))


SPACES = [("box", BOX), ("pair", PAIR)]
PUSHES = np.ones(2, np.float32)
FORMS: list[tuple[Any, Any, Any, dict[str, Any]]] = [
    (BOX, PUSHES, [1, 1], {}),
    (BOX, [0.5, 0.5], [0.5, 0.5], {}),
    (BOX, (0.5, 0.5), [0.5, 0.5], {}),
    (BOX, (PUSHES, {"v": 1.0}), [1, 1], {"v": 1.0}),
    (BOX, (PUSHES, None), [1, 1], {}),
    (BOX, (PUSHES, {"v": 1.0}, "state"), [1, 1], {"v": 1.0}),
    (BOX, (PUSHES, None, "state"), [1, 1], {}),
    (BOX, el.PolicyOutput(PUSHES, {"v": 2.0}), [1, 1], {"v": 2.0}),
    (PAIR, (2, {"x": 1}), (2, {"x": 1}), {}),
    (PAIR, el.PolicyOutput((2, {"x": 1}), {"x": 5.0}), (2, {"x": 1}), {"x": 5.0}),
]


def test_the_forms_of_an_answer(tmp_path: Path) -> None:
    """A tuple whose second item is a dict has extras, except where actions are tuples themselves."""
    stores = {id(space): new_store(tmp_path / name, VaryingEnv(action_space=space)) for name, space in SPACES}
    for space, output, action, extras in FORMS:
        store = stores[id(space)]
        with case(output):
            el.collect(VaryingEnv(action_space=space), lambda *_, output=output: output, store, steps=1)
            episode = max(store.refresh(), key=lambda each: each.started_at)
            if isinstance(action, tuple):
                recorded: Any = (int(episode.actions[0][0]), {"x": int(episode.actions[1]["x"][0])})
            else:
                recorded = episode.actions[0].tolist()
            assert recorded == action
            assert {key: values[0] for key, values in episode.policy.items()} == extras


# Hooks, callbacks, progress


def test_progress_without_a_terminal_and_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Where no bar is drawn a line appears now and then, and the logger names seals and commits."""
    monkeypatch.setattr("episodelake.store.common.progress._PAUSE", 0.0)
    env = gym.make("CartPole-v1")
    store = el.create(tmp_path / "store", env)
    with caplog.at_level("DEBUG", logger="episodelake"):
        el.collect(env, None, store, episodes=20, seed=0, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines and all(line.startswith("Collecting: ") for line in lines)
    said = [record.getMessage() for record in caplog.records if record.name == "episodelake"]
    assert any(line.startswith("sealed segment 0 of run") and "20 episodes" in line for line in said)
    assert any(line.startswith("committed version") for line in said)


def test_a_bar_in_a_pipe_draws_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Where there is no terminal, the progress bar leaves no trace."""
    store = new_store(tmp_path, VaryingEnv())
    el.collect(VaryingEnv(), None, store, steps=10, progress=True)
    assert capfd.readouterr() == ("", "")


def test_a_bar_on_a_terminal_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the bar names steps, episodes, mean return and rate."""
    reader, writer = os.openpty()
    store = new_store(tmp_path, VaryingEnv())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    with os.fdopen(writer, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        el.collect(VaryingEnv(), None, store, episodes=20, seed=0, progress=True)
    shown = b""
    try:
        while part := os.read(reader, 65536):
            shown += part
    except OSError:  # the terminal has been closed at the other end, and everything was read
        os.close(reader)
    words = shown.decode()
    assert "20 episodes" in words and "return" in words and "steps/s" in words


# Stats


def test_stats_are_measures_of_the_episodes(tmp_path: Path) -> None:
    """Mean, std, min and max are numpy's, in the properties and in the frame, and the table prints them."""
    store = new_store(tmp_path, VaryingEnv())
    stats = el.collect(VaryingEnv(), None, store, steps=100, seed=0, run="first")
    frame = stats.frame()
    assert frame.shape[0] == 1
    rows = store.refresh().episodes.filter(pl.col("end_reason") != "cut").collect()
    for measure in ("mean", "std", "min", "max"):
        expected = getattr(np, measure)(rows["episode_return"].to_numpy())
        assert getattr(stats, f"return_{measure}") == pytest.approx(expected)
        assert frame[f"return_{measure}"].item() == pytest.approx(expected)
        assert getattr(stats, f"length_{measure}") == pytest.approx(
            getattr(np, measure)(rows["length"].to_numpy())
        )
    assert frame["steps"].dtype == frame["length_max"].dtype == pl.Int64
    assert frame["run_ids"].to_list() == [list(stats.run_ids)] and stats.run_ids[0].startswith("first-")
    assert math.isclose(stats.steps_per_second, stats.steps / stats.seconds)
    assert "100 steps" in str(stats) and f"{stats.return_mean:,.3f}" in str(stats)
    with pytest.raises(AttributeError):
        stats.steps = 3  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        stats.returns[0] = 1


def test_stats_without_an_episode(tmp_path: Path) -> None:
    """Where no episode ended there is no mean, and the frame has nulls of the usual types."""
    store = new_store(tmp_path, CoinEnv())
    stats = el.collect(CoinEnv(), None, store, steps=1)
    assert (stats.episodes, stats.unfinished, stats.return_mean, stats.length_max) == (0, 1, None, None)
    assert stats.frame().select("return_mean", "length_max").row(0) == (None, None)
    assert stats.frame().schema == el.collect(CoinEnv(), None, store, episodes=3).frame().schema
    assert "0 episodes (1 unfinished)" in str(stats)


# The end comes early


def test_an_interrupt_ends_a_loop_of_calls(tmp_path: Path) -> None:
    """Ctrl-C ends the program, not one call of many; `on_interrupt="return"` leaves that to the caller."""
    store = new_store(tmp_path, VaryingEnv())
    interrupt = lambda step: signal.raise_signal(signal.SIGINT) if step.steps == 7 else None  # noqa: E731
    calls = []
    with pytest.raises(KeyboardInterrupt):
        for _ in range(3):
            calls.append(el.collect(VaryingEnv(), None, store, steps=5))
            el.collect(VaryingEnv(), None, store, steps=100, on_step=interrupt)
    assert len(calls) == 1 and sum(map(len, store.refresh())) == 12
    stats = el.collect(VaryingEnv(), None, store, steps=100, on_step=interrupt, on_interrupt="return")
    assert stats.interrupted and stats.steps == 7
    for wrong in (None, True, "ignore"):
        with pytest.raises(el.errors.InvalidArgumentError, match="on_interrupt"):
            el.collect(VaryingEnv(), None, store, steps=1, on_interrupt=wrong)  # type: ignore[arg-type]


def test_a_second_interrupt_does_not_wait(tmp_path: Path) -> None:
    """The second Ctrl-C ends a call whose policy does not return."""
    store = new_store(tmp_path, VaryingEnv())

    def hangs(observation: Any, info: Any, state: Any) -> Any:
        if state == 5:
            while True:
                signal.raise_signal(signal.SIGINT)
        return np.zeros(2, np.float32), None, (state or 0) + 1

    stats = interrupted(VaryingEnv(longest=1000), hangs, store, steps=1000, seed=5)
    assert stats.interrupted
    assert sum(episode.length for episode in store.refresh()) == stats.steps


# Bad input


def give(name: str, value: Any) -> dict[str, Any]:
    """An option beside the steps."""
    return {"steps": 5, name: value}


SENSELESS: list[tuple[dict[str, Any], str]] = [
    ({}, "neither"),
    ({"steps": 5, "episodes": 5}, "steps=5 and episodes=5"),
    ({"steps": 0}, "from 1 on"),
    ({"steps": -3}, "steps=-3"),
    ({"episodes": -3}, "episodes=-3"),
    ({"episodes": 2.5}, "episodes=2.5"),
    ({"steps": True}, "steps=True"),
    (give("quotas", True), "goes with episodes"),
    (give("workers", 0), "workers=0"),
    (give("colour", "red"), "knows no option 'colour'"),
    (give("durability", "never"), "durability='never'"),
    (give("progress", "yes"), "progress='yes'"),
    (give("metadata", 3), "metadata=3"),
    (give("run", 3), "run=3"),
    (give("seed", "one"), "seed='one'"),
    (give("seed", -1), "seed=-1"),
    (give("seed", [1, "two"]), r"seed\[1\]='two'"),
    (give("seed", []), "seed is a list of 0"),
    (give("seed", {1, 2}), "seed={1, 2}"),
    (give("seed", lambda number: 0.5), "seed=0.5 for episode 0"),
    (give("options", ["hard"]), r"options\[0\]='hard'"),
    (give("options", lambda number: 3), "options=3 for episode 0"),
    (give("policy_seed", 0.5), "policy_seed=0.5"),
    (give("options", "hard"), "options='hard'"),
    (give("on_step", 3), "on_step is int"),
    (give("record_infos", "cost"), "expected True, False, or the keys to record"),
    (give("on_episode", 3), "on_episode is int"),
]


def test_options_that_make_no_sense(tmp_path: Path) -> None:
    """Each is refused with its name, before the environment is touched and a run exists."""
    env = VaryingEnv()
    store = new_store(tmp_path, env)
    for options, words in SENSELESS:
        with case(options), pytest.raises(el.errors.InvalidArgumentError, match=words):
            el.collect(env, None, store, **options)
    assert env.episode == -1 and store.refresh().runs.collect().is_empty()


def test_things_of_the_wrong_kind(tmp_path: Path) -> None:
    """What is no environment, no policy or no store is named."""
    env = VaryingEnv()
    store = new_store(tmp_path, env)
    with pytest.raises(el.errors.InvalidArgumentError, match=r"env_or_envs=\d+: expected"):
        el.collect(3, None, store, steps=1)
    with pytest.raises(el.errors.InvalidArgumentError, match="gave int; expected"):
        el.collect(lambda: 3, None, store, steps=1)
    with pytest.raises(el.errors.InvalidArgumentError, match="policy is int"):
        el.collect(env, 3, store, steps=1)  # type: ignore[arg-type]
    with pytest.raises(el.errors.InvalidArgumentError, match="store="):
        el.collect(env, None, "store", steps=1)  # type: ignore[arg-type]
    with pytest.raises(el.errors.SpaceMismatchError, match="_space"):
        el.collect(CoinEnv(), None, store, steps=1)


MISFITS: list[tuple[Any, type[Exception], str]] = [
    (np.zeros((1, 2), np.float32), el.errors.SpaceMismatchError, "action"),
    (np.zeros(3, np.float32), el.errors.SpaceMismatchError, "action"),
    ("left", el.errors.SpaceMismatchError, "action"),
    (
        el.PolicyOutput(np.zeros(2, np.float32), [1, 2]),
        el.errors.InvalidArgumentError,
        "extras of .* list",
    ),
    ((np.zeros(2, np.float32), {3: 4}), el.errors.InvalidArgumentError, "key 3"),
]


def test_answers_that_do_not_fit(tmp_path: Path) -> None:
    """An answer that is none is an error of ours, and the steps before it are kept."""
    store = new_store(tmp_path, VaryingEnv(longest=50))
    for number, (answer, error, words) in enumerate(MISFITS):

        def policy(observation: Any, info: Any, state: Any, answer: Any = answer) -> Any:
            if state == 3:
                return answer
            return np.zeros(2, np.float32), None, (state or 0) + 1

        with case(answer), pytest.raises(error, match=words):
            el.collect(VaryingEnv(longest=50), policy, store, steps=50, seed=1)
        assert [episode.length for episode in store.refresh()] == [3] * (number + 1)


def test_a_recorder_that_cannot_be_used(tmp_path: Path) -> None:
    """A closed recorder, another store's recorder, and options that are the recorder's own are refused."""
    store = new_store(tmp_path, VaryingEnv())
    other = new_store(tmp_path / "other", VaryingEnv())
    with store.record(VaryingEnv()) as recorder:
        with pytest.raises(el.errors.InvalidArgumentError, match="not into"):
            el.collect(recorder, None, other, steps=1)
        with pytest.raises(el.errors.InvalidArgumentError, match="run belong to the recorder"):
            el.collect(recorder, None, store, steps=1, run="x")
        el.collect(recorder, None, store, steps=2)
    with pytest.raises(el.errors.RecorderStateError, match="closed"):
        el.collect(recorder, None, store, steps=1)
    assert sum(episode.length for episode in store.refresh()) == 2


def test_an_extra_may_not_hide_what_the_collector_records(tmp_path: Path) -> None:
    """An extra called `raw_action` beside a hook is refused."""
    store = new_store(tmp_path, VaryingEnv())

    def policy(observation: Any, info: Any, state: Any) -> Any:
        return np.zeros(2, np.float32), {"raw_action": 1}

    with pytest.raises(el.errors.InvalidArgumentError, match="'raw_action'"):
        el.collect(VaryingEnv(), el.Policy(policy, map_action=lambda action: action), store, steps=1)


def test_policies_are_seeded(tmp_path: Path) -> None:
    """A policy with a method `seed` gets the policy's seed, which follows from the environment's."""

    class Rolling:
        def __init__(self) -> None:
            self.seeds: list[int] = []

        def seed(self, number: int) -> None:
            self.seeds.append(number)

        def __call__(self, observation: Any, info: Any, state: Any) -> Any:
            return np.zeros(2, np.float32)

    store = new_store(tmp_path, VaryingEnv())
    policy = Rolling()
    for options in ({"seed": 1}, {"seed": 1}, {"seed": 2}, {"policy_seed": 11}, {}):
        el.collect(VaryingEnv(), policy, store, steps=1, **options)
    one, again, two, given_one = policy.seeds
    assert one == again != two and given_one == 11 and one != 1
