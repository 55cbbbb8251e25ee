"""The recorder of pools: partial batches in any order, against rollouts of each environment alone."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

import episodelake as el
from nasty_environments import Nested, ReusedBuffers, Rollout, SmallEnv, advance, assert_recorded
from strategies import same


class Pool:
    """A pool of our own: environments that become ready in an order that a seed decides.

    An environment that is done is reset by its next action, which is dropped, as EnvPool does it.
    """

    def __init__(self, envs: list[gym.Env], batch_size: int, seed: int = 0) -> None:
        self.envs, self.batch_size = envs, batch_size
        self.num_envs = len(envs)
        self.observation_space, self.action_space = envs[0].observation_space, envs[0].action_space
        self.rng = np.random.default_rng(seed)
        self.ready: list[tuple[int, tuple[Any, ...]]] = []
        self.elapsed = [0] * len(envs)
        self.done = [True] * len(envs)
        self.closed = 0

    def async_reset(self) -> None:
        """Reset all, seeded by their index."""
        self.ready = []
        for index in range(self.num_envs):
            self._reset(index, seed=10 + index)

    def _reset(self, index: int, **arguments: Any) -> None:
        observation, _ = self.envs[index].reset(**arguments)
        self.elapsed[index], self.done[index] = 0, False
        self.ready.append((index, (copy.deepcopy(observation), 0.0, False, False, 0)))

    def send(self, action: Any, env_id: Any = None) -> None:
        """Step each of the environments, or reset it if it is done."""
        ids = np.arange(self.num_envs) if env_id is None else np.asarray(env_id)
        singles = iterate_actions(self.action_space, action, len(ids))
        for index, own in zip(ids.tolist(), singles, strict=True):
            if self.done[index]:
                self._reset(index)
                continue
            env: Any = self.envs[index]
            result = (*copy.deepcopy(env.step(own))[:4], env.t)
            self.elapsed[index] += 1
            self.done[index] = bool(result[2] or result[3])
            self.ready.append((index, result))

    def recv(self) -> tuple[Any, ...]:
        """Return some that are ready."""
        order = self.rng.permutation(len(self.ready))[: self.batch_size].tolist()
        chosen = [self.ready[place] for place in order]
        self.ready = [each for place, each in enumerate(self.ready) if place not in order]
        ids = np.array([index for index, _ in chosen], np.int32)
        space, results = self.observation_space, [result for _, result in chosen]
        batch = create_empty_array(space, len(chosen), fn=np.zeros)
        observations = concatenate(space, [result[0] for result in results], batch)
        infos = {
            "env_id": ids,
            "elapsed_step": np.array([self.elapsed[index] for index in ids], np.int32),
            "t": np.array([result[4] for result in results]),
        }
        rewards = np.array([result[1] for result in results], np.float32)
        return observations, rewards, *(np.array([r[k] for r in results], bool) for k in (2, 3)), infos

    def step(self, action: Any, env_id: Any = None) -> tuple[Any, ...]:
        """Send and receive."""
        self.send(action, env_id)
        return self.recv()

    def close(self) -> None:
        """Count the calls."""
        self.closed += 1


def iterate_actions(space: gym.Space, actions: Any, count: int) -> list[Any]:
    """Return single actions of a batch."""
    if isinstance(space, spaces.Box):
        return list(actions)
    return list(iterate(gym.vector.utils.batch_space(space, count), actions))


def play(pool: Any, batches: int, taken: dict[int, list[Any]], seed: int = 0) -> None:
    """Play a pool for some batches, and note the actions of each environment in the order it got them."""
    pool.action_space.seed(seed)
    for _ in range(batches):
        ids = pool.recv()[-1]["env_id"].copy()
        singles = [pool.action_space.sample() for _ in ids]
        for index, action in zip(ids.tolist(), singles, strict=True):
            taken.setdefault(index, []).append(copy.deepcopy(action))
        batch = create_empty_array(pool.action_space, len(ids), fn=np.zeros)
        pool.send(concatenate(pool.action_space, singles, batch), ids)


def alone(env: gym.Env, index: int, actions: list[Any]) -> list[Rollout]:
    """Play one environment by itself with the actions that it got in the pool."""

    def begin(**arguments: Any) -> Rollout:
        observation, info = env.reset(**arguments)
        return Rollout([copy.deepcopy(observation)], [copy.deepcopy(info)])

    found = [begin(seed=10 + index)]
    for action in actions:
        if found[-1].actions and (found[-1].terminations[-1] or found[-1].truncations[-1]):
            found.append(begin())
        else:
            advance(env, found[-1], action)
            found[-1].rewards[-1] = float(np.float32(found[-1].rewards[-1]))
    return found


MAKERS: dict[str, list[Any]] = {
    "small": [lambda length=length: SmallEnv(length) for length in (3, 1, 6, 2, 4)],
    "reused buffers": [lambda length=length: ReusedBuffers(length) for length in (3, 2)],
    "nested": [lambda length=length: Nested(length) for length in (2, 3, 4)],
}


@pytest.mark.sample
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_partial_batches_give_the_episodes_of_each_environment(
    tmp_path: Path, name: str, batch_size: int
) -> None:
    """Whatever order environments become ready in, each has the episodes that it has alone."""
    makers = MAKERS[name]
    pool = Pool([make() for make in makers], batch_size)
    store = el.create(tmp_path / "store", pool)
    taken: dict[int, list[Any]] = {}
    with store.record(pool) as recorder:
        recorder.async_reset()
        play(recorder, 60, taken)
        while pool.ready:
            recorder.recv()
    assert pool.closed == 1
    store.refresh()
    for index, make in enumerate(makers):
        own = sorted((e for e in store if e.env_index == index), key=lambda e: e.number)
        rollouts = [rollout for rollout in alone(make(), index, taken[index]) if rollout.actions]
        assert len(own) == len(rollouts)
        for episode, rollout in zip(own, rollouts, strict=True):
            assert [info["t"] for info in episode.infos] == list(range(episode.length + 1))
            assert [info["env_id"] for info in episode.infos] == [index] * (episode.length + 1)
            elapsed = [info["elapsed_step"] for info in episode.infos]
            assert elapsed == list(range(episode.length + 1))
            rollout.infos = episode.infos
            assert_recorded(episode, rollout, make())
    assert store.verify().faults == ()


def small(lengths: tuple[int, ...], batch_size: int) -> Pool:
    """Return a pool of small environments."""
    return Pool([SmallEnv(length) for length in lengths], batch_size)


def test_the_caller_gets_the_very_batch_of_the_pool(tmp_path: Path) -> None:
    """What the pool gives passes through without being replaced by copies."""
    pool = small((3, 3), 2)
    given: list[Any] = []
    inner = pool.recv

    def remembering() -> Any:
        given.append(inner())
        return given[-1]

    pool.recv = remembering  # type: ignore[method-assign]
    with el.create(tmp_path / "store", pool).record(pool) as recorder:
        recorder.async_reset()
        assert recorder.recv() is given[-1]
        assert recorder.step(np.zeros((2, 2), np.float32)) is given[-1]


def test_logged_values_stand_beside_the_action_they_were_logged_for(tmp_path: Path) -> None:
    """A value waits for the next batch of its environment; after the last step it stands on the last row."""
    pool = small((2, 3), 1)
    store = el.create(tmp_path / "store", pool)
    with store.record(pool) as recorder:
        recorder.async_reset()
        for _ in range(12):
            info = recorder.recv()[-1]
            ids = info["env_id"]
            recorder.log(value=info["elapsed_step"] + 100 * ids, ids=ids)
            recorder.send(np.zeros((1, 2), np.float32), ids)
    whole = [episode for episode in store.refresh() if episode.end_reason == "terminated"]
    assert len(whole) >= 2
    for episode in whole:
        expected = [100 * episode.env_index + t for t in range(episode.length + 1)]
        assert episode.policy["value"].tolist() == expected
        assert set(episode.policy["ids"].tolist()) == {episode.env_index}


def test_a_reset_of_all_cuts_what_is_running(tmp_path: Path) -> None:
    """`async_reset` in the middle ends running episodes as cut."""
    pool = small((5, 5, 5), 3)
    store = el.create(tmp_path / "store", pool)
    with store.record(pool) as recorder:
        for steps in (2, 1):
            recorder.async_reset()
            recorder.recv()
            for _ in range(steps):
                recorder.step(np.zeros((3, 2), np.float32))
        assert (recorder.episodes, recorder.transitions) == (3, 9)
    rows = store.refresh().episodes.collect().select("length", "end_reason", "env_index").rows()
    assert sorted(rows) == sorted([(n, "cut", i) for n in (1, 2) for i in range(3)])


def test_what_came_before_the_recorder_is_left_out_with_a_warning(tmp_path: Path) -> None:
    """Steps of environments whose reset was not seen are no transitions; they are told of once."""
    pool = small((3, 3), 2)
    store = el.create(tmp_path / "store", pool)
    still = np.zeros((2, 2), np.float32)
    pool.async_reset()
    pool.recv()
    pool.step(still)
    recorder = store.record(pool)
    with pytest.warns(RuntimeWarning, match="reset was not seen"):
        recorder.step(still)
    for _ in range(4):
        recorder.step(still)
    recorder.close()
    assert [episode.observations[:, 0].tolist() for episode in store.refresh()] == [[0, 1, 2]] * 2


@pytest.mark.parametrize(
    ("actions", "ids"),
    [
        (np.zeros((1, 2), np.float32), [0, 1]),
        (np.zeros((2, 2)), [0, 1]),
        (np.zeros((2, 2), np.float32), [0, 0]),
        (np.zeros((2, 2), np.float32), [0, 2]),
        (np.zeros((2, 2), np.float32), [0.0, 1.0]),
    ],
)
def test_actions_that_do_not_fit_are_not_sent(tmp_path: Path, actions: Any, ids: Any) -> None:
    """A wrong batch, dtype or index is refused before the pool sees it."""
    pool = small((3, 3), 2)
    store = el.create(tmp_path / "store", pool)
    with store.record(pool) as recorder:
        recorder.async_reset()
        recorder.recv()
        with pytest.raises(el.errors.SpaceMismatchError):
            recorder.send(actions, ids)
        assert pool.ready == []
        recorder.step(np.zeros((2, 2), np.float32))
    assert [episode.length for episode in store.refresh()] == [1, 1]


def test_other_pools_are_refused(tmp_path: Path) -> None:
    """Spaces that are not the store's, and a pool without a number of environments."""
    store = el.create(tmp_path / "store", small((3,), 1))
    with pytest.raises(el.errors.SpaceMismatchError, match="observation_space"):
        store.record(Pool([Nested()], 1))
    nameless = small((3,), 1)
    nameless.num_envs = None  # type: ignore[assignment]
    with pytest.raises(el.errors.InvalidArgumentError, match="how many environments"):
        store.record(nameless)


@pytest.mark.parametrize("name", ["small", "reused buffers"])
def test_a_step_callback_sees_what_is_recorded(tmp_path: Path, name: str) -> None:
    """It is shown every reset and step of every environment, and what it adds stands on that row."""
    makers = MAKERS[name]
    pool = Pool([make() for make in makers], 2)
    store = el.create(tmp_path / "store", pool)
    shown: dict[int, list[el.types.StepData]] = {index: [] for index in range(len(makers))}

    def watch(step: el.types.StepData) -> dict[str, Any]:
        shown[step.env_index].append(copy.deepcopy(step))
        return {"twice": 2 * step.t}

    taken: dict[int, list[Any]] = {}
    with store.record(pool, step_callback=watch) as recorder:
        recorder.async_reset()
        play(recorder, 40, taken)
        while pool.ready:
            recorder.recv()
    store.refresh()
    for index, make in enumerate(makers):
        rollouts = [rollout for rollout in alone(make(), index, taken[index]) if rollout.actions]
        own = sorted((e for e in store if e.env_index == index), key=lambda e: e.number)
        steps = iter(shown[index])
        for episode, rollout in zip(own, rollouts, strict=True):
            mine = [next(steps) for _ in range(len(episode) + 1)]
            assert [step.t for step in mine] == list(range(len(mine)))
            assert episode.extra["twice"].tolist() == [2 * step.t for step in mine]
            for step, observation in zip(mine, rollout.observations, strict=True):
                assert same(step.observation, observation)
            for step, action, reward in zip(mine[1:], rollout.actions, rollout.rewards, strict=True):
                assert same(step.action, action) and step.reward == reward
            rollout.infos = episode.infos
            assert [info["t"] for info in episode.infos] == list(range(len(mine)))
            assert [step.info for step in mine] == episode.infos
            assert_recorded(episode, rollout, make())
    assert not store.verify().faults


@pytest.mark.parametrize("longest", [0, 1, 3])
def test_a_step_callback_may_change_and_end(
    tmp_path: Path, longest: int, recwarn: pytest.WarningsRecorder
) -> None:
    """Rewards that it changes count, and an episode that it ends takes nothing more until its next reset."""
    pool = small((5, 2, 4), 2)
    store = el.create(tmp_path / "store", pool)

    def change(step: el.types.StepData) -> el.types.StepData:
        reward = None if step.reward is None else step.reward + 1.0
        return replace(step, reward=reward, end=step.t == longest)

    taken: dict[int, list[Any]] = {}
    with store.record(pool, step_callback=change) as recorder:
        recorder.async_reset()
        play(recorder, 40, taken)
        while pool.ready:
            recorder.recv()
    counted = recorder.episodes, recorder.transitions
    store.refresh()
    assert not [warning for warning in recwarn if warning.category is RuntimeWarning]
    lengths: list[int] = []
    for index, length in enumerate((5, 2, 4)):
        rollouts = alone(SmallEnv(length), index, taken[index])
        lengths += [len(rollout.actions[:longest]) for rollout in rollouts if rollout.actions[:longest]]
        own = sorted((e for e in store if e.env_index == index), key=lambda e: e.number)
        rollouts = [rollout for rollout in rollouts if rollout.actions[:longest]]
        for episode, rollout in zip(own, rollouts, strict=True):
            expected = [reward + 1.0 for reward in rollout.rewards[:longest]]
            assert episode.rewards.tolist() == expected and episode.episode_return == sum(expected)
            assert episode.terminated == (any(rollout.terminations[:longest]))
    assert sorted(map(len, store)) == sorted(lengths)
    assert counted == (len(lengths), sum(lengths))
    assert not store.verify().faults


@pytest.mark.further
def test_the_real_envpool_is_recorded_as_it_serves(tmp_path: Path) -> None:
    """CartPole of EnvPool, two of six at a time: every episode is what the batches said of it."""
    envpool = pytest.importorskip("envpool")
    pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=6, batch_size=2, seed=3)
    store = el.create(tmp_path / "store", pool)
    rng = np.random.default_rng(0)
    seen: dict[int, list[tuple[Any, ...]]] = {index: [] for index in range(6)}
    sent: dict[int, Any] = {}
    with store.record(pool) as recorder:
        recorder.async_reset()
        for _ in range(400):
            observations, rewards, terminated, truncated, info = recorder.recv()
            ids = info["env_id"].copy()
            for place, index in enumerate(ids.tolist()):
                row = observations[place].copy(), rewards[place], terminated[place], truncated[place]
                seen[index].append((*row, int(info["elapsed_step"][place]), sent.get(index)))
            actions = rng.integers(2, size=2)
            sent.update(zip(ids.tolist(), actions.tolist(), strict=True))
            recorder.send(actions, ids)
    store.refresh()
    assert store.verify().faults == ()
    for index, rows in seen.items():
        starts = [place for place, row in enumerate(rows) if row[4] == 0] + [len(rows)]
        parts = [rows[start:stop] for start, stop in pairwise(starts)]
        own = sorted((e for e in store if e.env_index == index), key=lambda e: e.number)
        parts = [part for part in parts if len(part) > 1]
        assert len(own) == len(parts)
        for episode, part in zip(own, parts, strict=True):
            assert same(episode.observations, np.array([row[0] for row in part]))
            assert episode.actions.tolist() == [row[5] for row in part[1:]]
            assert episode.rewards.tolist() == [row[1] for row in part[1:]]
            assert (episode.terminated, episode.truncated) == (part[-1][2], part[-1][3])
