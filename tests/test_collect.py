"""Collection from single environments, compared with plain loops over the same seeded environments."""

from __future__ import annotations

import math
import os
import signal
from collections import namedtuple
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import gymnasium as gym
import numpy as np
import polars as pl
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import episodelake as el
from collecting_parts import CoinEnv, Tensor, VaryingEnv, counting, interrupted, plain_steps, tilting
from nasty_environments import Rollout, assert_recorded, new_store


def sampled(seed: int) -> Any:
    """A plain policy that samples the action space of a `VaryingEnv`."""
    space = VaryingEnv().action_space
    space.seed(seed)
    return lambda observation, info: space.sample()


def assert_all_recorded(store: el.EpisodeStore, rollouts: list[Rollout]) -> None:
    """Fail unless the store holds exactly what a plain loop saw."""
    episodes = list(store.refresh())
    assert len(episodes) == len(rollouts)
    for episode, rollout in zip(episodes, rollouts, strict=True):
        assert_recorded(episode, rollout, VaryingEnv())


def assert_counts(stats: el.types.CollectStats, rollouts: list[Rollout]) -> None:
    """Fail unless the stats are those of the finished ones among these rollouts."""
    done = [rollout for rollout in rollouts if rollout.terminations[-1] or rollout.truncations[-1]]
    assert stats.steps == sum(len(rollout.actions) for rollout in rollouts)
    assert (stats.episodes, stats.unfinished) == (len(done), len(rollouts) - len(done))
    assert stats.lengths.tolist() == [len(rollout.actions) for rollout in done]
    assert stats.returns.tolist() == [sum(rollout.rewards) for rollout in done]
    assert stats.terminated == sum(rollout.terminations[-1] for rollout in done)
    assert stats.truncated == sum(rollout.truncations[-1] for rollout in done)


# What is recorded


@pytest.mark.parametrize("steps", [1, 10, 101])
def test_steps_are_those_of_a_plain_loop(tmp_path: Path, steps: int) -> None:
    """Without a policy the action space is sampled, and exactly so many transitions are recorded."""
    store = new_store(tmp_path, VaryingEnv())
    stats = el.collect(VaryingEnv(), None, store, steps=steps, seed=3, policy_seed=5)
    rollouts = plain_steps(VaryingEnv(), sampled(5), steps, seed=3)
    assert_all_recorded(store, rollouts)
    assert_counts(stats, rollouts)
    assert store[0].seed == 3 and all(episode.seed is None for episode in store[1:])


@pytest.mark.parametrize("episodes", [1, 12])
def test_episodes_are_those_of_a_plain_loop(tmp_path: Path, episodes: int) -> None:
    """Exactly so many whole episodes are recorded, and nothing else."""
    store = new_store(tmp_path, VaryingEnv())
    stats = el.collect(VaryingEnv(), None, store, episodes=episodes, seed=4, policy_seed=5)
    many = plain_steps(VaryingEnv(), sampled(5), 200, seed=4)
    assert_all_recorded(store, many[:episodes])
    assert_counts(stats, many[:episodes])


def test_policy_columns_stand_beside_their_actions(tmp_path: Path) -> None:
    """DuckDB finds every extra, nested ones too, in the row of the observation that it was made from."""
    store = new_store(tmp_path, VaryingEnv())
    el.collect(VaryingEnv(), tilting, store, steps=60, seed=0)
    rollouts = plain_steps(VaryingEnv(), lambda observation, info: tilting(observation, info, None)[0], 60, 0)
    assert_all_recorded(store, rollouts)
    found = duckdb.sql(
        f"""select "policy.value", "policy.distribution.mean", "policy.distribution.scale", "policy.left"
        from '{tmp_path}/store/steps/*.parquet' where action is not null order by episode_id, t"""
    ).fetchall()
    expected = [
        tilting(observation, info, None)[1]
        for rollout in rollouts
        for observation, info in zip(rollout.observations[:-1], rollout.infos[:-1], strict=True)
    ]
    assert found == [(e["value"], e["distribution"]["mean"].tolist(), 0.1, e["left"]) for e in expected]
    last = f"select count(*) from '{tmp_path}/store/steps/*.parquet' where action is null and "
    assert duckdb.sql(last + '"policy.value" is not null').fetchall() == [(0,)]


def test_state_begins_anew_with_every_episode(tmp_path: Path) -> None:
    """A recurrent policy sees no state at an episode's first step, and its own at all others."""
    store = new_store(tmp_path, VaryingEnv())
    el.collect(VaryingEnv(), el.Policy(counting, record_state=True), store, episodes=20, seed=1)
    for episode in store.refresh():
        assert episode.policy["asked"].tolist() == list(range(episode.length))
    steps = store.transitions.select("t", "observation", "policy.state.asked", "policy.state.sum.0").collect()
    before = np.zeros(3)
    for t, observation, asked, total in steps.iter_rows():
        # The state that was used to act: there is none at first.
        assert asked is None if t == 0 else asked == [t]
        before = np.zeros(3) if t == 0 else before
        assert total is None if t == 0 else total == before.tolist()
        before = before + np.array(observation)


def test_state_begins_with_the_initial_one(tmp_path: Path) -> None:
    """An initial state is given at every episode's first step, unspoilt by a policy that changes it."""

    def spoiling(observation: Any, info: Any, state: Any) -> Any:
        seen = state["count"].copy()
        state["count"] += 1
        return np.zeros(2, np.float32), {"seen": seen}, state

    store = new_store(tmp_path, VaryingEnv())
    initial = {"count": np.array([10])}
    el.collect(VaryingEnv(), el.Policy(spoiling, initial_state=initial, record_state=True), store, episodes=9)
    assert initial["count"].tolist() == [10]
    for episode in store.refresh():
        expected = [[10 + t] for t in range(episode.length)]
        assert episode.policy["seen"].tolist() == expected
        assert episode.policy["state"]["count"].tolist() == expected


@pytest.mark.parametrize("initial", [True, False])
def test_the_state_of_an_lstm_comes_back_as_a_tuple(tmp_path: Path, initial: bool) -> None:
    """A tuple of arrays of T rows where each step has a state, else a list with a tuple for each state."""

    def policy(observation: Any, info: Any, state: Any) -> Any:
        h, c = (np.zeros(2), {"cell": np.zeros((1, 3))}) if state is None else state
        extras = {"h": h.copy(), "deep": {"h": h.copy(), "one": {"t": int(h[0])}}}
        return np.zeros(2, np.float32), extras, (h + 1, {"cell": c["cell"] + 2})

    store = new_store(tmp_path, VaryingEnv())
    begin = (np.zeros(2), {"cell": np.zeros((1, 3))}) if initial else None
    el.collect(VaryingEnv(), el.Policy(policy, initial_state=begin, record_state=True), store, episodes=4)
    for episode in store.refresh():
        found, rows = episode.policy, np.arange(episode.length)
        assert found["deep"]["h"].tolist() == found["h"].tolist() == [[t, t] for t in rows]
        assert found["deep"]["one"]["t"].tolist() == rows.tolist()
        if initial:
            h, c = found["state"]
            assert np.array_equal(h, found["h"]) and c["cell"].shape == (episode.length, 1, 3)
            assert np.array_equal(c["cell"][:, 0, 0], 2 * rows)
        else:
            states = found.get("state", [None])  # an episode of one step has none
            assert states[0] is None and len(states) == episode.length
            for t, (h, c) in enumerate(states[1:], 1):
                assert h.tolist() == [t, t] and c["cell"].tolist() == [[2 * t] * 3]


def test_hooks_change_the_action_and_keep_the_raw_one(tmp_path: Path) -> None:
    """Noise comes from the seeded generator, the mapping from the hook; both actions are recorded."""
    store = new_store(tmp_path, VaryingEnv())

    def explore(action: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        action += generator.normal(size=2).astype(np.float32)  # in place: the raw action must not change
        return action

    def map_action(action: np.ndarray) -> np.ndarray:
        return np.clip(action, -0.5, 0.5)

    el.collect(
        VaryingEnv(),
        el.Policy(tilting, explore=explore, map_action=map_action),
        store,
        steps=50,
        seed=2,
        policy_seed=8,
    )
    generator = np.random.default_rng(8)
    for episode in store.refresh():
        for observation, action, raw in zip(
            episode.observations, episode.actions, episode.policy["raw_action"], strict=False
        ):
            expected = np.array([np.sin(observation[2]), 0.5], np.float32)
            assert np.array_equal(raw, expected)
            noisy = expected + generator.normal(size=2).astype(np.float32)
            assert np.array_equal(action, np.clip(noisy, -0.5, 0.5))


def test_actions_that_are_not_numbers_are_recorded(tmp_path: Path) -> None:
    """NaN and infinite actions go to the environment and to the store."""
    store = new_store(tmp_path, VaryingEnv())
    wild = np.array([np.nan, np.inf], np.float32)
    el.collect(VaryingEnv(), lambda observation, info, state: wild, store, steps=5)
    actions = np.concatenate([episode.actions for episode in store.refresh()])
    assert np.array_equal(actions, np.tile(wild, (5, 1)), equal_nan=True)


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


def test_environments_that_reset_themselves(tmp_path: Path) -> None:
    """A single environment in NEXT_STEP mode gives the episodes that it gives without."""
    store = new_store(tmp_path, VaryingEnv())
    env = gym.wrappers.Autoreset(VaryingEnv())
    stats = el.collect(env, None, store, steps=40, seed=3, policy_seed=5)
    rollouts = plain_steps(VaryingEnv(), sampled(5), 40, seed=3)
    assert_all_recorded(store, rollouts)
    assert_counts(stats, rollouts)


class SameStep(VaryingEnv):
    """Resets itself within the last step of an episode."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        """Step, and reset."""
        observation, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated:
            final = {"final_obs": observation, "final_info": info}
            observation, info = self.reset()
            info = {**info, **final}
        return observation, reward, terminated, truncated, info


def test_environments_that_reset_within_the_step(tmp_path: Path) -> None:
    """A single environment in SAME_STEP mode gives the episodes that it gives without."""
    store = new_store(tmp_path, VaryingEnv())
    stats = el.collect(SameStep(), counting, store, steps=40, seed=3)
    rollouts = plain_steps(VaryingEnv(), lambda *_: np.zeros(2, np.float32), 40, seed=3)
    assert_all_recorded(store, rollouts)
    assert_counts(stats, rollouts)
    for episode in store:
        assert episode.policy["asked"].tolist() == list(range(episode.length))


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

Pair = namedtuple("Pair", ["left", "right"])
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
PAIR = spaces.Tuple((spaces.Discrete(3), spaces.Dict({"x": spaces.Discrete(2)})))


@pytest.mark.parametrize(
    ("space", "output", "action", "extras"),
    [
        (BOX, np.ones(2, np.float32), [1, 1], {}),
        (BOX, [0.5, 0.5], [0.5, 0.5], {}),
        (BOX, (0.5, 0.5), [0.5, 0.5], {}),
        (BOX, (np.ones(2, np.float32), {"v": 1.0}), [1, 1], {"v": 1.0}),
        (BOX, (np.ones(2, np.float32), None), [1, 1], {}),
        (BOX, (np.ones(2, np.float32), {"v": 1.0}, "state"), [1, 1], {"v": 1.0}),
        (BOX, (np.ones(2, np.float32), None, "state"), [1, 1], {}),
        (BOX, el.PolicyOutput(np.ones(2, np.float32), {"v": 2.0}), [1, 1], {"v": 2.0}),
        (PAIR, (2, {"x": 1}), (2, {"x": 1}), {}),
        (PAIR, el.PolicyOutput((2, {"x": 1}), {"x": 5.0}), (2, {"x": 1}), {"x": 5.0}),
    ],
)
def test_the_forms_of_an_answer(tmp_path: Path, space: Any, output: Any, action: Any, extras: Any) -> None:
    """A tuple whose second item is a dict has extras, except where actions are tuples themselves."""
    store = new_store(tmp_path, VaryingEnv(action_space=space))
    el.collect(VaryingEnv(action_space=space), lambda *_: output, store, steps=1)
    (episode,) = store.refresh()
    if isinstance(action, tuple):
        recorded: Any = (int(episode.actions[0][0]), {"x": int(episode.actions[1]["x"][0])})
    else:
        recorded = episode.actions[0].tolist()
    assert recorded == action
    assert {key: values[0] for key, values in episode.policy.items()} == extras


@given(st.integers(0, 4), st.booleans(), st.sampled_from(["dict", "none", "number"]))
def test_only_two_and_three_items_with_a_dict_are_forms(size: int, tuples: bool, second: str) -> None:
    """Every other tuple is an action."""
    from episodelake.writers.collecting.actor import read_output

    items: list[Any] = [f"item {index}" for index in range(size)]
    if size > 1:
        items[1] = {"dict": {"a": 1}, "none": None, "number": 3.0}[second]
    output = tuple(items)
    action, extras, state = read_output(output, tuples)
    if not tuples and size in (2, 3) and second != "number":
        assert (action, extras) == output[:2]
        assert state == (output[2] if size == 3 else None)
    else:
        assert (action, extras, state) == (output, None, None)


# Going on


def test_a_recorder_goes_on_where_it_stood(tmp_path: Path) -> None:
    """Many small calls on one recorder record what one large call does, recurrent state included."""
    one, many = new_store(tmp_path / "one", VaryingEnv()), new_store(tmp_path / "many", VaryingEnv())
    whole = el.collect(VaryingEnv(), counting, one, steps=63, seed=6)
    with many.record(VaryingEnv()) as recorder:
        parts = [el.collect(recorder, counting, many, steps=7, seed=None if part else 6) for part in range(9)]
    assert [part.steps for part in parts] == [7] * 9
    assert [value for part in parts for value in part.returns] == whole.returns.tolist()
    columns = ["t", "observation", "action", "reward", "terminated", "truncated", "policy.asked"]
    left, right = (store.refresh().steps.select(columns).collect() for store in (one, many))
    assert left.equals(right)
    assert len(many) == len(one)


def test_a_bare_environment_begins_anew_each_time(tmp_path: Path) -> None:
    """Every call with an environment is a run of its own, and the environment stays open."""
    store = new_store(tmp_path, VaryingEnv())
    env = VaryingEnv(longest=40)
    stats = [el.collect(env, None, store, steps=3, seed=seed) for seed in (1, 2)]
    assert env.closed == 0
    assert len({run for each in stats for run in each.run_ids}) == 2
    assert [episode.seed for episode in store.refresh() if episode.seed is not None] == [1, 2]
    assert {episode.run_id for episode in store} == {run for each in stats for run in each.run_ids}


def test_somebody_else_steps_the_recorder(tmp_path: Path) -> None:
    """A recorder that was stepped by hand meanwhile is reset: the observation in hand is not known."""
    env = VaryingEnv(longest=1000)
    store = new_store(tmp_path, env)
    with store.record(env) as recorder:
        el.collect(recorder, counting, store, steps=4, seed=1)
        recorder.step(np.ones(2, np.float32))
        el.collect(recorder, counting, store, steps=4)
        el.collect(recorder, counting, store, steps=1)
    assert [episode.length for episode in store.refresh()] == [5, 5]
    assert [list(episode.policy["asked"])[:4] for episode in store] == [[0, 1, 2, 3]] * 2


def test_episodes_and_seeds_begin_with_a_reset(tmp_path: Path) -> None:
    """A call with episodes, or with a seed, cuts what is running."""
    env = VaryingEnv(longest=1)
    env.longest = 1000
    store = new_store(tmp_path, env)
    with store.record(env) as recorder:
        el.collect(recorder, None, store, steps=2, seed=1)
        el.collect(recorder, None, store, steps=2, seed=9)
        env.longest = 5
        el.collect(recorder, None, store, episodes=1)
    assert [(e.length, e.end_reason) for e in store.refresh()[:2]] == [(2, "cut"), (2, "cut")]
    assert store[1].seed == 9 and store[2].end_reason != "cut" and len(store) == 3


@pytest.mark.parametrize("source", ["id", "spec", "function"])
def test_environments_are_made_and_closed(tmp_path: Path, source: str) -> None:
    """An id, a spec and a function make an environment, which is closed afterwards."""
    made: list[gym.Env] = []

    def make() -> gym.Env:
        made.append(VaryingEnv())
        return made[-1]

    of_id = {"id": "CartPole-v1", "spec": gym.spec("CartPole-v1")}
    store = new_store(tmp_path, VaryingEnv() if source == "function" else gym.make("CartPole-v1"))
    stats = el.collect(of_id.get(source, make), None, store, steps=5, seed=0)
    assert stats.steps == 5 and sum(episode.length for episode in store.refresh()) == 5
    assert [env.closed for env in made] == ([1] if source == "function" else [])


# Hooks, callbacks, progress


def test_hooks_see_every_step_and_every_end(tmp_path: Path) -> None:
    """`on_step` sees what was given and taken, `on_episode` the summary of each episode that is recorded."""
    store = new_store(tmp_path, VaryingEnv())
    steps: list[el.types.CollectStep] = []
    ends: list[el.types.EpisodeSummary] = []
    el.collect(VaryingEnv(), tilting, store, steps=30, seed=0, on_step=steps.append, on_episode=ends.append)
    rows = store.refresh().transitions.collect()
    assert [step.observation.tolist() for step in steps] == rows["observation"].to_list()
    assert [step.action.tolist() for step in steps] == rows["action"].to_list()
    assert [step.reward for step in steps] == rows["reward"].to_list()
    assert [step.policy["value"] for step in steps] == rows["policy.value"].to_list()
    assert [step.terminated for step in steps] == rows["terminated"].to_list()
    assert [step.steps for step in steps] == list(range(1, 31))
    finished = [episode for episode in store if episode.end_reason != "cut"]
    assert [(end.id, end.length, end.episode_return) for end in ends] == [
        (episode.id, episode.length, episode.episode_return) for episode in finished
    ]


def test_callbacks_of_the_recorder_decide_what_counts(tmp_path: Path) -> None:
    """A step callback may end episodes: the environment is then reset, and the recorded steps count."""
    store = new_store(tmp_path, VaryingEnv(longest=1000))

    def third(step: el.types.StepData) -> Any:
        from dataclasses import replace

        return replace(step, end=step.t == 3)

    stats = el.collect(
        VaryingEnv(longest=1000),
        counting,
        store,
        episodes=4,
        seed=0,
        step_callback=third,
        episode_callback=lambda episode: {"label": episode.length},
    )
    assert stats.lengths.tolist() == [3] * 4 and stats.steps == 12
    assert [(e.length, e.end_reason, e.metadata) for e in store.refresh()] == [(3, "cut", {"label": 3})] * 4
    assert all(episode.policy["asked"].tolist() == [0, 1, 2] for episode in store)


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


def test_progress_goes_to_a_function(tmp_path: Path) -> None:
    """The last report of progress has everything in it."""
    told: list[el.types.CollectProgress] = []
    store = new_store(tmp_path, VaryingEnv())
    stats = el.collect(VaryingEnv(), None, store, episodes=10, seed=0, progress=told.append)
    assert told
    last = told[-1]
    assert (last.done, last.total, last.steps, last.episodes) == (10, 10, stats.steps, 10)
    assert last.return_mean == pytest.approx(stats.return_mean)
    assert last.steps_per_second > 0


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


@pytest.mark.parametrize("way", ["signal", "exception"])
@pytest.mark.parametrize("own", [False, True])
def test_an_interrupt_seals_what_there_is(tmp_path: Path, way: str, own: bool) -> None:
    """Ctrl-C ends the call after the step in hand; what was recorded is visible, and the stats say so."""
    store = new_store(tmp_path, VaryingEnv())

    def interrupt(step: el.types.CollectStep) -> None:
        if step.steps == 16:
            if way == "exception":
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    env = store.record(VaryingEnv()) if own else VaryingEnv()
    stats = interrupted(env, None, store, steps=1000, seed=0, policy_seed=5, on_step=interrupt)
    assert signal.getsignal(signal.SIGINT) is before
    assert stats.interrupted and stats.steps == 16 and stats.frame()["interrupted"].item()
    assert "interrupted" in str(stats)
    rollouts = plain_steps(VaryingEnv(), sampled(5), 16, seed=0)
    if own:
        assert len(store.refresh()) == stats.episodes == len(rollouts) - 1
        env.close()
    assert_all_recorded(store, rollouts)


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


@pytest.mark.parametrize("who", ["policy", "env"])
def test_an_exception_keeps_what_was_recorded(tmp_path: Path, who: str) -> None:
    """What the policy or the environment raises passes on, and the steps before it are in the store."""
    store = new_store(tmp_path, VaryingEnv())

    class Breaking(VaryingEnv):
        def step(self, action: Any) -> Any:
            if who == "env" and self.taken == 12:
                raise ZeroDivisionError("broken")
            self.taken += 1
            return super().step(action)

        taken = 0

    env = Breaking()

    def policy(observation: Any, info: Any, state: Any) -> Any:
        if who == "policy" and env.taken == 12:
            raise ZeroDivisionError("broken")
        return np.zeros(2, np.float32)

    with pytest.raises(ZeroDivisionError, match="broken"):
        el.collect(env, policy, store, steps=100, seed=1)
    assert_all_recorded(store, plain_steps(VaryingEnv(), lambda *_: np.zeros(2, np.float32), 12, seed=1))


# Bad input


def give(name: str, value: Any) -> dict[str, Any]:
    """An option beside the steps."""
    return {"steps": 5, name: value}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "neither"),
        ({"steps": 5, "episodes": 5}, "steps=5 and episodes=5"),
        ({"steps": 0}, "from 1 on"),
        ({"steps": -3}, "steps=-3"),
        ({"episodes": -3}, "episodes=-3"),
        ({"episodes": 2.5}, "episodes=2.5"),
        ({"steps": True}, "steps=True"),
        (give("unbiased", True), "goes with episodes"),
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
        (give("on_episode", 3), "on_episode is int"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    """Each is refused with its name, before the environment is touched and a run exists."""
    env = VaryingEnv()
    store = new_store(tmp_path, env)
    with pytest.raises(el.errors.InvalidArgumentError, match=words):
        el.collect(env, None, store, **options)
    assert env.episode == -1 and store.refresh().runs.collect().is_empty()


def test_things_of_the_wrong_kind(tmp_path: Path) -> None:
    """What is no environment, no policy or no store is named."""
    env = VaryingEnv()
    store = new_store(tmp_path, env)
    with pytest.raises(el.errors.InvalidArgumentError, match="env_or_envs is int"):
        el.collect(3, None, store, steps=1)
    with pytest.raises(el.errors.InvalidArgumentError, match="gave int; expected"):
        el.collect(lambda: 3, None, store, steps=1)
    with pytest.raises(el.errors.InvalidArgumentError, match="policy is int"):
        el.collect(env, 3, store, steps=1)  # type: ignore[arg-type]
    with pytest.raises(el.errors.InvalidArgumentError, match="store is str"):
        el.collect(env, None, "store", steps=1)  # type: ignore[arg-type]
    with pytest.raises(el.errors.SpaceMismatchError, match="_space"):
        el.collect(CoinEnv(), None, store, steps=1)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (np.zeros((1, 2), np.float32), el.errors.SpaceMismatchError, "action"),
        (np.zeros(3, np.float32), el.errors.SpaceMismatchError, "action"),
        ("left", el.errors.SpaceMismatchError, "action"),
        (
            el.PolicyOutput(np.zeros(2, np.float32), [1, 2]),
            el.errors.InvalidArgumentError,
            "extras of .* list",
        ),
        ((np.zeros(2, np.float32), {3: 4}), el.errors.InvalidArgumentError, "key 3"),
    ],
)
def test_answers_that_do_not_fit(tmp_path: Path, answer: Any, error: type[Exception], words: str) -> None:
    """An answer that is none is an error of ours, and the steps before it are kept."""
    store = new_store(tmp_path, VaryingEnv(longest=50))

    def policy(observation: Any, info: Any, state: Any) -> Any:
        if state == 3:
            return answer
        return np.zeros(2, np.float32), None, (state or 0) + 1

    with pytest.raises(error, match=words):
        el.collect(VaryingEnv(longest=50), policy, store, steps=50, seed=1)
    assert [episode.length for episode in store.refresh()][-1] == 3


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
