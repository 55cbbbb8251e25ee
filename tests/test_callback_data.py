"""What callbacks are given beside the step: the environment, and the values of a finished episode."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import episodelake as el
from agent_environments import Comings, Turns
from episodelake.writers.rows import arrivals, step_rows, vector_buffer
from episodelake.writers.session.session import RunSession
from nasty_environments import SmallEnv, TwoGoals, new_store
from scripted_environment import MODES, Scripted, assert_same_value, tables
from strategies import same
from test_pool_recorder import Pool, play


def steps_of(step: el.types.StepData) -> dict[str, Any]:
    """Record how many steps the environment has made, which no observation shows."""
    assert step.env is not None
    return {"stepped": step.env.unwrapped.stepped}


def count(folder: Path, envs: Any, steps: int, mode: AutoresetMode) -> list[list[float]]:
    """Record some steps with the callback, and return its columns by environment."""
    store = el.create(folder, SmallEnv())
    with store.record(envs, step_callback=steps_of) as recorder:
        recorder.reset(seed=0)
        for _ in range(steps):
            _, _, terminated, truncated, _ = recorder.step(recorder.action_space.sample())
            done = np.atleast_1d(terminated | truncated)
            if mode is AutoresetMode.DISABLED and done.any():
                recorder.reset(options={"reset_mask": done} if isinstance(envs, SyncVectorEnv) else None)
    found: dict[int, list[float]] = {}
    for episode in store.refresh():
        found.setdefault(episode.env_index or 0, []).extend(episode.extra["stepped"].tolist())
    return [found[index] for index in sorted(found)]


def counted(length: int, steps: int, mode: AutoresetMode) -> list[int]:
    """Return the same of an environment by a plain loop."""
    env, found = SmallEnv(length), [0]
    env.reset()
    done = False
    for _ in range(steps):
        if done and mode is AutoresetMode.NEXT_STEP:
            env.reset()
            done = False
        else:
            done = env.step(0)[2]
        found.append(env.stepped)
        if done and mode is not AutoresetMode.NEXT_STEP:
            env.reset()
            found.append(env.stepped)
    # An episode without a step stores nothing.
    return found[:-1] if done and mode is not AutoresetMode.NEXT_STEP else found


@pytest.mark.parametrize("mode", MODES, ids=[mode.value for mode in MODES])
def test_a_step_callback_reads_the_state_of_each_sub_environment(tmp_path: Path, mode: AutoresetMode) -> None:
    """Each sub-environment's own, in every autoreset mode, through wrappers."""
    lengths = 3, 1, 4
    envs = SyncVectorEnv(
        [lambda length=length: gym.wrappers.TimeLimit(SmallEnv(length), 9) for length in lengths],
        autoreset_mode=mode,
    )
    assert count(tmp_path / "store", envs, 11, mode) == [counted(length, 11, mode) for length in lengths]


def test_a_step_callback_reads_the_state_of_a_single_environment(tmp_path: Path) -> None:
    """The environment is the one that was given to the recorder."""
    seen = []
    env = gym.wrappers.TimeLimit(SmallEnv(3), 9)
    store = el.create(tmp_path / "seen", env)
    with store.record(env, step_callback=lambda step: seen.append((step.t, step.env))) as recorder:
        recorder.reset()
        recorder.step(recorder.action_space.sample())
    assert [t for t, _ in seen] == [0, 1] and all(found is env for _, found in seen)
    assert "env" not in repr(el.types.StepData(0, None, env=env)).replace("env_index", "")
    mode = AutoresetMode.DISABLED
    assert count(tmp_path / "store", SmallEnv(3), 11, mode) == [counted(3, 11, mode)]


def test_environments_that_are_elsewhere_are_none(tmp_path: Path) -> None:
    """Those of other processes and of pools."""
    seen: list[Any] = []
    store = el.create(tmp_path / "store", SmallEnv())
    with store.record(
        AsyncVectorEnv([SmallEnv] * 2), step_callback=lambda step: seen.append(step.env)
    ) as envs:
        envs.reset()
        envs.step(envs.action_space.sample())
    pool: Any = Pool([SmallEnv(3), SmallEnv(2)], 1)
    with store.record(pool, step_callback=lambda step: seen.append(step.env)) as ready:
        ready.async_reset()
        play(ready, 4, {0: [], 1: []})
    assert len(seen) == 8 and set(seen) == {None}


def test_agents_share_their_environment(tmp_path: Path) -> None:
    """In multi-agent episodes it is that of all."""
    env, seen = Comings(), []
    store = el.create(tmp_path / "store", env)
    with store.record(env, step_callback=lambda step: seen.append(step.env)) as recorder:
        recorder.reset(seed=1)
        recorder.step({agent: env.action_space(agent).sample() for agent in env.agents})
    assert len(seen) == 4 and all(found is env for found in seen)


def simulator(step: el.types.StepData) -> dict[str, Any]:
    """Record the state of MuJoCo."""
    assert step.env is not None
    data = step.env.unwrapped.data
    return {"qpos": data.qpos.copy(), "qvel": data.qvel.copy()}


@pytest.mark.further
@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("workers", [None, 2])
def test_workers_record_the_state_of_the_simulator(tmp_path: Path, vector: bool, workers: int | None) -> None:
    """Played again from its seed by a plain loop, each recorded episode has the states of MuJoCo."""
    pytest.importorskip("mujoco")
    store = el.create(tmp_path / "store", gym.make("InvertedPendulum-v5"))
    make = make_pendulums if vector else "InvertedPendulum-v5"
    el.collect(make, None, store, steps=60, seed=4, workers=workers, step_callback=simulator)
    checked = 0
    for episode in store.refresh():
        if episode.seed is None:
            continue
        env: Any = gym.make("InvertedPendulum-v5")
        env.reset(seed=episode.seed)
        for t in range(episode.length + 1):
            assert np.array_equal(episode.extra["qpos"][t], env.unwrapped.data.qpos)
            assert np.array_equal(episode.extra["qvel"][t], env.unwrapped.data.qvel)
            if t < episode.length:
                env.step(episode.actions[t])
        checked += 1
    assert checked == (workers or 1) * (2 if vector else 1)


def make_pendulums() -> Any:
    """The vector environment of a worker."""
    return gym.make_vec("InvertedPendulum-v5", 2, vectorization_mode="sync")


@pytest.fixture(params=["in memory", "in the journal"])
def small_buffers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Row buffers that hold whole episodes, or parts of them."""
    read, journalled = [], RunSession.journalled
    monkeypatch.setattr(RunSession, "journalled", lambda *args: read.append(args) or journalled(*args))
    if request.param == "in the journal":
        monkeypatch.setattr(arrivals, "_FEWEST_ROWS", 4)
        monkeypatch.setattr(arrivals, "_MOST_ROWS", 4)
        monkeypatch.setattr(step_rows, "_FIRST_ROWS", 4)
        monkeypatch.setattr(vector_buffer, "_MOST_ROWS", 4)
    yield
    assert bool(read) == (request.param == "in the journal")


class Keeper:
    """An episode callback that keeps what it can read."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}
        self.summaries: list[el.types.EpisodeSummary] = []

    def __call__(self, episode: el.types.EpisodeSummary) -> dict[str, float]:
        """Read everything."""
        self.summaries.append(episode)
        names = "observations", "actions", "rewards", "infos"
        self.found[episode.id] = {name: getattr(episode, name) for name in names}
        kinds = "mean", "std", "min", "max"
        return {kind: np.asarray(getattr(episode, f"reward_{kind}")).tolist() for kind in kinds}

    def check(self, store: el.EpisodeStore) -> None:
        """Compare with the store, and the statistics with numpy's of the stored rewards."""
        stored = {episode.id: episode for episode in store.refresh()}
        assert stored.keys() == self.found.keys() and stored
        for key, episode in stored.items():
            found = self.found[key]
            assert same(found["observations"], episode.observations)
            assert same(found["actions"], episode.actions)
            assert same(found["rewards"], episode.rewards)
            agents = episode.agents
            for name in agents:
                for ours, theirs in zip(found["infos"][name], episode.infos[name], strict=True):  # type: ignore[call-overload]
                    assert_same_value(ours, theirs)
            for ours, theirs in zip(found["infos"], episode.infos, strict=True) if not agents else ():
                assert_same_value(ours, theirs)
            rewards: Any = list(episode.rewards.values()) if agents else [episode.rewards]  # type: ignore[attr-defined]
            rewards = np.concatenate(rewards)
            for kind in ("mean", "std", "min", "max"):
                np.testing.assert_allclose(episode.metadata[kind], getattr(np, kind)(rewards, 0), 1e-9, 1e-9)


@pytest.mark.sample
@pytest.mark.usefixtures("small_buffers")
@pytest.mark.parametrize("seen", [False, True], ids=["alone", "with a step callback"])
@pytest.mark.parametrize("mode", MODES, ids=[mode.value for mode in MODES])
def test_an_episode_callback_reads_sub_environments(tmp_path: Path, mode: AutoresetMode, seen: bool) -> None:
    """Observations, actions, rewards and infos of each episode are those that are stored."""
    envs = SyncVectorEnv([lambda n=n: Scripted(n) for n in (2, 9, 30)], autoreset_mode=mode)
    store = el.create(tmp_path / "store", Scripted())
    keep = Keeper()
    step_callback = (lambda step: {"double": 2.0 * step.t}) if seen else None
    with store.record(envs, episode_callback=keep, step_callback=step_callback) as recorder:
        recorder.reset(seed=3)
        for count, actions in enumerate(tables(2, 40, 3)):
            if count % 3 == 0:
                recorder.log(value=np.arange(3.0))
            _, _, terminated, truncated, _ = recorder.step(actions)
            done = terminated | truncated
            if mode is AutoresetMode.DISABLED and done.any():
                recorder.reset(options={"reset_mask": done})
    keep.check(store)


@pytest.mark.usefixtures("small_buffers")
@pytest.mark.parametrize("keys", [True, ("speed",)])
def test_an_episode_callback_reads_single_environments(tmp_path: Path, keys: Any) -> None:
    """Also of an episode that is cut, and infos as they are recorded."""
    store, keep = el.create(tmp_path / "store", Scripted()), Keeper()
    with store.record(Scripted(30), episode_callback=keep, record_infos=keys) as recorder:
        for seed in range(6):
            recorder.reset(seed=seed)
            for action in tables(seed, 12, 1)[:, 0].tolist():
                recorder.log(value=0.5)
                *_, terminated, truncated, _ = recorder.step(action)
                if terminated or truncated:
                    break
            recorder.log(value=0.5)
    assert {each.end_reason for each in keep.summaries} >= {"cut"}
    keep.check(store)


@pytest.mark.usefixtures("small_buffers")
def test_an_episode_callback_reads_pools(tmp_path: Path) -> None:
    """Whatever the order in which the environments become ready."""
    store, keep = el.create(tmp_path / "store", SmallEnv()), Keeper()
    pool: Any = Pool([SmallEnv(length) for length in (3, 1, 14)], 2)
    with store.record(pool, episode_callback=keep) as ready:
        ready.async_reset()
        play(ready, 40, {0: [], 1: [], 2: []})
    keep.check(store)


@pytest.mark.usefixtures("small_buffers")
@pytest.mark.parametrize("make", [Comings, Turns])
def test_an_episode_callback_reads_agents(tmp_path: Path, make: Any) -> None:
    """By agent, in the spaces of its group."""
    store, keep, env = el.create(tmp_path / "store", make()), Keeper(), make()
    with store.record(env, episode_callback=keep) as recorder:
        for seed in range(3):
            recorder.reset(seed=seed)
            while recorder.agents:
                if make is Comings:
                    recorder.step({agent: env.action_space(agent).sample() for agent in env.agents})
                else:
                    gone = env.last()[2] or env.last()[3]
                    recorder.step(None if gone else env.action_space(env.agent_selection).sample())
    keep.check(store)


@pytest.mark.usefixtures("small_buffers")
def test_vector_rewards_have_statistics_by_objective(tmp_path: Path) -> None:
    """A number for each."""
    env, keep = TwoGoals(), Keeper()
    store = new_store(tmp_path, env, reward_shape=(2,))
    with store.record(env, episode_callback=keep) as recorder:
        recorder.reset(seed=0)
        while not recorder.step(recorder.action_space.sample())[2]:
            pass
    keep.check(store)
    assert keep.found[store[0].id]["rewards"].shape[1] == len(store[0].metadata["mean"]) == 2


def test_after_the_callback_nothing_more_is_read(tmp_path: Path) -> None:
    """What was read stays; the rest raises, as it does where there was no callback."""
    store, keep, late = el.create(tmp_path / "store", SmallEnv(3)), Keeper(), []
    with store.record(SmallEnv(3), episode_callback=late.append) as recorder:
        recorder.reset()
        while not recorder.step(recorder.action_space.sample())[2]:
            pass
    with pytest.raises(el.errors.RecorderStateError, match="while its episode callback runs"):
        late[0].rewards  # noqa: B018
    told: list[el.types.EpisodeSummary] = []
    el.collect(SmallEnv, None, store, episodes=1, on_episode=told.append, episode_callback=keep)
    assert keep.summaries[0].rewards.shape == (5,)
    assert pickle.loads(pickle.dumps(keep.summaries[0])) == keep.summaries[0]
    with pytest.raises(el.errors.RecorderStateError, match="can be read in an episode callback"):
        told[0].reward_mean  # noqa: B018
