"""Collection from vector environments in all autoreset modes, compared with one-by-one rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import episodelake as el
from collecting_parts import (
    Tensor,
    VaryingEnv,
    make_varying_pair,
    plain_steps,
    tilt,
    tilting_many,
)
from episodelake.testing.adapters import case
from nasty_environments import Rollout, assert_recorded, new_store

MODES = list(AutoresetMode)
NUM_ENVS = 5


def vector(mode: AutoresetMode, num_envs: int = NUM_ENVS) -> SyncVectorEnv:
    """A vector environment of `VaryingEnv`s."""
    return SyncVectorEnv([VaryingEnv] * num_envs, autoreset_mode=mode)


def assert_env_by_env(
    store: el.EpisodeStore, seed: int, num_envs: int = NUM_ENVS
) -> dict[int, list[el.Episode]]:
    """Fail unless each environment's episodes are those of a plain loop, the last one perhaps cut short."""
    by_env: dict[int, list[el.Episode]] = {env: [] for env in range(num_envs)}
    for row in store.refresh().episodes.sort("number").select("env_index", "episode_id").collect().rows():
        by_env[row[0]].append(store[row[1]])
    for env, episodes in by_env.items():
        rollouts: list[Rollout] = plain_steps(VaryingEnv(), tilt, 400, seed=seed + env)
        for episode, rollout in zip(episodes, rollouts, strict=False):
            whole = episode.end_reason != "cut"
            assert episode is not episodes[-1] or whole or episode.length <= len(rollout.actions)
            assert_recorded(episode, rollout if whole else rollout.cut(episode.length), VaryingEnv())
    return by_env


# What is recorded


def test_environments_that_were_given_up_stay_so(tmp_path: Path) -> None:
    """Whom the caller has discarded is recorded again from the next reset on, and not counted until then."""
    store = new_store(tmp_path, VaryingEnv())
    with store.record(vector(AutoresetMode.NEXT_STEP)) as recorder:
        el.collect(recorder, tilting_many, store, steps=10, seed=3)
        recorder.discard([1, 3])
        before = recorder.transitions
        given_up = el.collect(recorder, tilting_many, store, steps=17)
        assert recorder.transitions == before + given_up.steps and given_up.steps >= 17
        envs = np.array([1, 3])
        recorder.reset(seed=4)
        recorder.step(np.zeros((NUM_ENVS, 2), np.float32))
        recorder.discard(envs)
        stats = el.collect(recorder, tilting_many, store, steps=12, seed=5)
    assert 12 <= stats.steps < 12 + NUM_ENVS
    lengths = store.refresh().episodes.collect()["length"].sum()
    assert lengths == before + given_up.steps + (NUM_ENVS - len(envs)) + stats.steps


def test_processes_and_native_batches(tmp_path: Path) -> None:
    """AsyncVectorEnv gives what SyncVectorEnv gives, and natively vectorised environments work."""
    store = new_store(tmp_path, VaryingEnv())
    envs = AsyncVectorEnv([VaryingEnv] * 3, autoreset_mode=AutoresetMode.NEXT_STEP)
    stats = el.collect(envs, tilting_many, store, episodes=9, quotas=True, seed=3)
    envs.close()
    assert stats.episodes == 9
    assert_env_by_env(store, 3, 3)
    cartpoles = gym.make_vec("CartPole-v1", num_envs=16, vectorization_mode="vector_entry_point")
    poles = el.create(tmp_path / "poles", cartpoles)
    stats = el.collect(cartpoles, None, poles, steps=1000, seed=0)
    assert stats.steps == poles.refresh().transitions.collect().height
    assert 1000 <= stats.steps < 1016
    assert np.array_equal(stats.returns, stats.lengths)
    with pytest.raises(el.errors.InvalidArgumentError):
        el.collect(cartpoles, None, poles, steps=10, autoreset_mode="sometimes")


# State, extras, hooks


@pytest.mark.sample
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("given", [False, True])
def test_rows_of_tensors_are_replaced(tmp_path: Path, mode: AutoresetMode, given: bool) -> None:
    """A tensor's rows are those of the initial state, or zeros, exactly where an episode begins."""
    before: list[Tensor] = []

    def policy(observation: Any, info: Any, state: Any) -> Any:
        hidden = Tensor(np.zeros((NUM_ENVS, 2))) if state is None else state[0]
        for old in before:
            assert old.data is not hidden.data  # what the policy returned is never changed in place
        after = Tensor(hidden.data + 1)
        copy = after.clone()
        before.append(copy)
        actions = Tensor(np.zeros((NUM_ENVS, 2), np.float32))
        return actions, {"hidden": hidden}, (after, {"none": None})

    start = np.arange(10.0).reshape(NUM_ENVS, 2)
    initial = (Tensor(start), {"none": None}) if given else None
    store = new_store(tmp_path, VaryingEnv())
    el.collect(
        vector(mode), el.Policy(policy, initial_state=initial, record_state=True), store, steps=150, seed=3
    )
    rows = store.refresh().sql(
        'select e.env_index, s.t, s."policy.hidden", s."policy.state.0" from steps s join episodes e '
        "using (episode_id) where s.action is not null"
    )
    for env, t, hidden, state in rows.fetchall():
        expected = (start[env] if given else np.zeros(2)) + t
        assert hidden == expected.tolist()
        assert state == hidden or (state is None and not given and t == 0)
    assert start.tolist() == np.arange(10.0).reshape(NUM_ENVS, 2).tolist()


@dataclass
class Immutable:
    """Behaves like an array of JAX: rows are replaced in a copy that `at[rows].set` gives."""

    data: np.ndarray
    rows: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an array."""
        return self.data.shape

    @property
    def at(self) -> Immutable:
        """What `set` is called on, with rows in brackets."""
        return self

    def __getitem__(self, rows: Any) -> Immutable:
        return Immutable(self.data, rows)

    def set(self, value: Any) -> Immutable:
        """A changed copy."""
        changed = self.data.copy()
        changed[self.rows] = value
        return Immutable(changed)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.data


def test_rows_of_immutable_arrays_are_replaced(tmp_path: Path) -> None:
    """Arrays that cannot be written to are renewed too, and are recorded as arrays."""

    def policy(observation: Any, info: Any, state: Any) -> Any:
        asked = np.zeros((NUM_ENVS, 1)) if state is None else state.data
        return np.zeros((NUM_ENVS, 2), np.float32), {"asked": Immutable(asked)}, Immutable(asked + 1)

    store = new_store(tmp_path, VaryingEnv())
    el.collect(vector(AutoresetMode.NEXT_STEP), policy, store, steps=100, seed=3)
    for episode in store.refresh():
        asked = list(episode.policy["asked"])[: episode.length]
        assert [row.tolist() for row in asked] == [[t] for t in range(episode.length)]


# Bad input


ANSWERS: list[tuple[Any, str]] = [
    (np.zeros((NUM_ENVS - 1, 2), np.float32), "action has the shape"),
    (np.zeros(2, np.float32), "action has the shape"),
    (np.float32(0), "action has"),
    (None, "returned None as the action"),
    ((np.zeros((NUM_ENVS, 2), np.float32), {"v": np.zeros(3)}), "extra 'v' has the shape"),
    ((np.zeros((NUM_ENVS, 2), np.float32), {"v": {"w": [1, 2]}}), "extra 'v'.w has the shape"),
]


def test_answers_of_the_wrong_size(tmp_path: Path) -> None:
    """An answer for another number of environments is refused, and the steps before it are kept."""
    store = new_store(tmp_path, VaryingEnv())
    right = np.zeros((NUM_ENVS, 2), np.float32)
    for number, (answer, words) in enumerate(ANSWERS, 1):
        answers = iter([right, right, right, answer])
        with case(words), pytest.raises(el.errors.SpaceMismatchError, match=words):
            policy = lambda *_, answers=answers: next(answers)  # noqa: E731
            el.collect(vector(AutoresetMode.SAME_STEP), policy, store, steps=1000, seed=3)
        assert sum(episode.length for episode in store.refresh()) == 3 * NUM_ENVS * number


def answer_with(answer: Any, *_: Any) -> Any:
    """A policy that always answers the same."""
    return answer


def test_states_of_the_wrong_size(tmp_path: Path) -> None:
    """A recurrent state without a row for each environment is refused where a row has to be replaced."""
    store = new_store(tmp_path, VaryingEnv())
    actions = np.zeros((NUM_ENVS, 2), np.float32)
    states = {
        "layers first": (np.zeros((1, NUM_ENVS, 4)), "policy's state is the shape"),
        "a part": ({"deep": (np.zeros(3),)}, "policy's state.deep.0 is the shape"),
        "an object": (object(), "policy's state is a object"),
    }
    for state, words in states.values():
        with pytest.raises(el.errors.SpaceMismatchError, match=words):
            policy = partial(answer_with, (actions, {}, state))
            el.collect(vector(AutoresetMode.SAME_STEP), policy, store, steps=1000, seed=3)
    with pytest.raises(el.errors.SpaceMismatchError, match="initial_state"):
        el.collect(vector(AutoresetMode.SAME_STEP), el.Policy(initial_state=np.zeros(2)), store, steps=1)


def test_a_closed_vector_environment(tmp_path: Path) -> None:
    """It is refused with a word of ours."""
    store = new_store(tmp_path, VaryingEnv())
    envs = vector(AutoresetMode.SAME_STEP)
    envs.close()
    with pytest.raises(el.errors.RecorderStateError, match="closed"):
        el.collect(envs, None, store, steps=1)


def test_batches_of_nested_actions(tmp_path: Path) -> None:
    """Batches of Dict actions are checked part by part; those of Tuple actions need a `PolicyOutput`."""
    turn = spaces.Dict({"move": spaces.Box(-1, 1, (2,), np.float32), "push": spaces.Discrete(2)})
    pair = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (1,), np.float32)))
    moves = {"move": np.ones((3, 2), np.float32), "push": np.arange(3) % 2}
    pairs = (np.arange(3), np.ones((3, 1), np.float32))
    for name, space, answer in (("dict", turn, (moves, {"v": np.arange(3)})), ("tuple", pair, pairs)):
        make = partial(VaryingEnv, action_space=space)
        store = new_store(tmp_path / name, make())
        el.collect(SyncVectorEnv([make] * 3), partial(answer_with, answer), store, steps=30, seed=3)
        el.collect(SyncVectorEnv([make] * 3), None, store, steps=30, seed=3)
        assert 60 <= store.refresh().transitions.collect().height < 60 + 2 * 3
    extras = el.PolicyOutput(pairs, {"v": np.arange(3)})
    el.collect(SyncVectorEnv([make] * 3), partial(answer_with, extras), store, steps=30, run="extras")
    query = 'select "action.0", "policy.v", env_index from transitions join episodes using (episode_id)'
    found = store.refresh().sql(f"{query} where run_id like 'extras%'")
    assert all(action == value == env for action, value, env in found.fetchall())
    wrong = partial(answer_with, {"move": moves["move"]})
    store = el.open(tmp_path / "dict" / "store")
    with pytest.raises(el.errors.SpaceMismatchError, match="lacks the part 'push'"):
        make = partial(VaryingEnv, action_space=turn)
        el.collect(SyncVectorEnv([make] * 3), wrong, store, steps=30)


def test_initial_states_that_do_not_fit(tmp_path: Path) -> None:
    """An initial state that is nested otherwise than the policy's, or has other rows, is refused."""
    store = new_store(tmp_path, VaryingEnv())
    actions = np.zeros((NUM_ENVS, 2), np.float32)
    policy = partial(answer_with, (actions, {}, {"h": np.zeros((NUM_ENVS, 4))}))
    for initial, words in (
        ({"c": np.zeros((NUM_ENVS, 4))}, "nested otherwise"),
        ({"h": np.zeros((NUM_ENVS, 3))}, "cannot be replaced"),
    ):
        with pytest.raises(el.errors.SpaceMismatchError, match=words):
            envs = vector(AutoresetMode.SAME_STEP)
            el.collect(envs, el.Policy(policy, initial_state=initial), store, steps=1000, seed=3)


@pytest.mark.slow
def test_vector_environments_in_workers(tmp_path: Path) -> None:
    """A worker may make a vector environment; exactly so many episodes are recorded in all."""
    store = new_store(tmp_path, VaryingEnv())
    stats = el.collect(make_varying_pair, tilting_many, store, episodes=7, quotas=True, workers=2, seed=1)
    assert stats.failures == () and [worker.episodes for worker in stats.workers] == [4, 3]
    counts = store.refresh().sql("select run_id, env_index, count(*) from episodes group by all").fetchall()
    assert sorted(count for *_, count in counts) == [1, 2, 2, 2]
