"""Vector rewards: MO-Gymnasium's environments, and several agents with several objectives."""

from __future__ import annotations

import copy
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import gymnasium
import mo_gymnasium
import numpy as np
import polars as pl
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from mo_gymnasium.wrappers import LinearReward, MONormalizeReward, MORecordEpisodeStatistics
from mo_gymnasium.wrappers.vector import MOSyncVectorEnv
from typer.testing import CliRunner

import episodelake as el
from agent_environments import Comings
from episodelake.terminal.app import app
from plain_agents import check_agents, check_batch, play_parallel, random_policy

REAL = {
    "deep-sea-treasure-v0": 2,
    "resource-gathering-v0": 3,
    "mo-mountaincar-v0": 3,
    "fruit-tree-v0": 6,
    "breakable-bottles-v0": 3,
}


def play(env: gymnasium.Env, seed: int, steps: int = 25) -> tuple[list[Any], list[Any]]:
    """Observations and rewards of one episode, or of its first steps."""
    env.action_space.seed(seed)
    observation, _ = env.reset(seed=seed)
    observations, rewards = [copy.deepcopy(observation)], []
    for _ in range(steps):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        observations.append(copy.deepcopy(observation))
        rewards.append(np.array(reward, np.float64))
        if terminated or truncated:
            break
    return observations, rewards


def filled(path: Path, name: str = "deep-sea-treasure-v0", seeds: range = range(4)) -> el.EpisodeStore:
    """A store with an episode for each seed."""
    env = mo_gymnasium.make(name)
    store = el.create(path, env)
    with store.record(env) as recorder:
        for seed in seeds:
            play(recorder, seed)
    return store.refresh()


@pytest.mark.parametrize("name", REAL)
def test_real_environments_are_recorded_as_a_plain_loop_sees_them(name: str, tmp_path: Path) -> None:
    """The reward shape is found, and rewards and returns are the vectors of a plain loop, to the last bit."""
    store = filled(tmp_path / "store", name)
    assert store.reward_shape == (REAL[name],)
    plain = mo_gymnasium.make(name)
    for seed, episode in enumerate(store):
        observations, rewards = play(plain, seed)
        check_batch(episode.observations, observations)
        assert np.array_equal(episode.rewards, np.stack(rewards))
        total = np.zeros(REAL[name])
        for reward in rewards:
            total = total + reward
        assert episode.episode_return == total.tolist()
    assert not store.verify().faults


def test_wrappers_say_what_the_reward_is(tmp_path: Path) -> None:
    """A wrapper that makes one number of the rewards makes a store of scalar rewards; others keep vectors."""
    scalar = LinearReward(mo_gymnasium.make("deep-sea-treasure-v0"), weight=np.array([0.5, 0.5]))
    store = el.create(tmp_path / "scalar", scalar)
    assert store.reward_shape == ()
    with store.record(scalar) as recorder:
        play(recorder, 0)
    episode = store.refresh()[0]
    vectors = np.array([info["vector_reward"] for info in episode.infos[1:]])
    assert episode.rewards == pytest.approx(vectors.sum(axis=1) * 0.5)
    vector = MORecordEpisodeStatistics(MONormalizeReward(mo_gymnasium.make("deep-sea-treasure-v0"), idx=0))
    store = el.create(tmp_path / "vector", vector)
    assert store.reward_shape == (2,)
    with store.record(vector) as recorder:
        play(recorder, 0, 200)
    episode = store.refresh()[0]
    assert episode.infos[-1]["episode"]["r"] == pytest.approx(episode.episode_return)
    assert el.create(tmp_path / "forced", vector, reward_shape=()).reward_shape == ()


def test_rewards_of_another_shape_are_refused(tmp_path: Path) -> None:
    """A vector in a scalar store, and a number in a store of vectors, name the column reward."""
    env = mo_gymnasium.make("deep-sea-treasure-v0")
    for name, shape in (("scalar", ()), ("three", (3,))):
        with el.create(tmp_path / name, env, reward_shape=shape).record(env) as recorder:
            recorder.reset(seed=0)
            with pytest.raises(el.errors.SpaceMismatchError, match="'reward'"):
                recorder.step(0)
    single = gymnasium.make("CartPole-v1")
    with (
        el.create(tmp_path / "single", single, reward_shape=(2,)).record(single) as recorder,
        pytest.raises(el.errors.SpaceMismatchError, match="'reward'"),
    ):
        recorder.reset(seed=0)
        recorder.step(0)


def test_filters_and_queries_by_objective(tmp_path: Path) -> None:
    """Returns are lists for SQL and Polars, on our frames and on the bare files."""
    store = filled(tmp_path / "store", seeds=range(8))
    returns = np.array([episode.episode_return for episode in store])
    middle = float(np.median(returns[:, 1]))
    wanted = np.flatnonzero(returns[:, 1] > middle).tolist()
    assert [episode.seed for episode in store.filter(f"episode_return[2] > {middle}")] == wanted
    for scalar in ("episode_return > 1", pl.col("episode_return") > 1):
        with pytest.raises(
            el.errors.QueryError, match=r"a vector here: compare one objective, episode_return\[1\]"
        ):
            store.filter(scalar)
    by_polars = store.filter(pl.col("episode_return").list.get(1) > middle)
    assert [episode.seed for episode in by_polars] == wanted
    (found,) = store.sql("select avg(episode_return[1]), max(episode_return[2]) from episodes").fetchall()
    assert found == pytest.approx((returns[:, 0].mean(), returns[:, 1].max()))
    bare = duckdb.sql(
        f"select episode_id, sum(reward[1]), sum(reward[2]) from '{store.path}/steps/*.parquet' "
        "group by 1 order by 1"
    ).fetchall()
    assert np.array([row[1:] for row in bare]) == pytest.approx(returns)
    frame = store.transitions.select("reward").collect()
    assert frame["reward"].list.len().unique().to_list() == [2]


def test_maintenance_keeps_vectors(tmp_path: Path) -> None:
    """Compaction, deletion, copies, and the mending of a wrong return keep every objective."""
    store = filled(tmp_path / "store")
    before = {episode.seed: (episode.episode_return, episode.rewards.tolist()) for episode in store}
    store.compact()
    store.delete("seed = 1")
    part = store.copy(tmp_path / "copy")
    assert {e.seed: (e.episode_return, e.rewards.tolist()) for e in part} == {
        seed: found for seed, found in before.items() if seed != 1
    }
    assert part.reward_shape == (2,) and not part.verify().faults


def test_info_and_show_tell_each_objective(tmp_path: Path) -> None:
    """The command line gives the spread of each objective, and draws each over time."""
    store = filled(tmp_path / "store")
    told = CliRunner().invoke(app, ["info", str(store.path)]).output
    lows = np.min([episode.episode_return for episode in store], axis=0)
    lines = dict(line.split("\t", 1) for line in told.splitlines() if line.count("\t") == 1)
    for objective in range(2):
        assert lines[f"returns of objective {objective}"].startswith(f"lowest {lows[objective]:.6g}")
    shown = CliRunner().invoke(app, ["show", str(store.path), "0"]).output
    assert "reward[0]" in shown and "reward[1]" in shown


class TwoGoals(Comings):
    """Every agent has two objectives."""

    def reward_space(self, agent: str) -> Box:
        """Two numbers."""
        return Box(-np.inf, np.inf, (2,))

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        """As before, with the step as a second objective."""
        observations, rewards, *rest = super().step(actions)
        vectors = {agent: np.array([reward, self._step / 3]) for agent, reward in rewards.items()}
        return observations, vectors, *rest  # type: ignore[return-value]


@pytest.mark.further
def test_several_agents_with_several_objectives(tmp_path: Path) -> None:
    """Each agent's return is a vector, the episode's is their sum, also after a crash and maintenance."""
    store = el.create(tmp_path / "store", TwoGoals())
    assert store.reward_shape == (2,)
    recorder = store.record(TwoGoals())
    play_parallel(recorder, random_policy(recorder, 0), 0)
    play_parallel(recorder, random_policy(recorder, 1), 1, 3)
    recorder.session.flush()
    shutil.copytree(tmp_path / "store", tmp_path / "killed")
    recorder.close()
    el.recover(tmp_path / "killed")
    for each in (store.refresh(), el.open(tmp_path / "killed")):
        episode = each[0]
        check_agents(episode, play_parallel(TwoGoals(), random_policy(TwoGoals(), 0), 0))
        assert np.sum(list(episode.agent_returns.values()), axis=0) == pytest.approx(episode.episode_return)
        # scout_1 came and never acted: its return is a vector all the same.
        assert each[1].agent_lengths["scout_1"] == 1
        assert not each.verify().faults
        kind = str(each.episodes.collect_schema()["agent_returns"])
        assert kind == "List(List(Float64))"
        each.compact()
        assert not each.verify().faults
        (found,) = each.sql("select sum(r[2]) from (select unnest(agent_returns) r from episodes)").fetchall()
        total = sum(e.episode_return[1] for e in each)
        assert found[0] == pytest.approx(total)


def test_a_recovered_return_is_a_vector(tmp_path: Path) -> None:
    """Of episodes whose writer was killed: one that had ended, one that had just begun to step."""
    store = el.create(
        tmp_path / "store", observation_space=Discrete(5), action_space=Discrete(2), reward_shape=(2,)
    )
    writer = store.writer()
    for length in (3, 1):
        episode = writer.begin(0)
        for t in range(length):
            episode.append(0, [t, 0.1], t + 1, terminated=length == t + 1 == 3)
        if length == 3:
            episode.end()
    writer.flush()
    shutil.copytree(tmp_path / "store", tmp_path / "killed")
    writer.close()
    el.recover(tmp_path / "killed")
    recovered = el.open(tmp_path / "killed")
    assert [episode.episode_return for episode in recovered] == [[3.0, 0.1 + 0.1 + 0.1], [0.0, 0.1]]
    assert [episode.end_reason for episode in recovered] == ["terminated", "interrupted"]


class MultiVector(SyncVectorEnv):
    """Gymnasium's own vector environment, with room for rewards of several objectives."""

    def __init__(self, count: int, name: str, mode: AutoresetMode) -> None:
        super().__init__([lambda: mo_gymnasium.make(name)] * count, autoreset_mode=mode)
        self.reward_space = self.envs[0].get_wrapper_attr("reward_space")
        self._rewards = np.zeros((count, *self.reward_space.shape))


VECTORS = {
    "MO-Gymnasium's": lambda name: MOSyncVectorEnv([lambda: mo_gymnasium.make(name)] * 3),
    **{mode.value: partial(MultiVector, 3, mode=mode) for mode in AutoresetMode},
}


@pytest.mark.sample
@pytest.mark.parametrize("kind", VECTORS)
@pytest.mark.parametrize("name", ["deep-sea-treasure-v0", "resource-gathering-v0"])
def test_vectors_of_environments_give_what_each_gives_alone(tmp_path: Path, kind: str, name: str) -> None:
    """`collect` with a vector environment records the rewards and returns of one-by-one rollouts."""
    envs = VECTORS[kind](name)
    store = el.create(tmp_path / "store", envs)
    assert store.reward_shape == (REAL[name],)
    actions: list[np.ndarray] = []

    def policy(observation: Any, info: Any, state: Any) -> np.ndarray:
        actions.append(np.random.default_rng(len(actions)).integers(4, size=3))
        return actions[-1]

    stats = el.collect(envs, policy, store, episodes=9, seed=5)
    store.refresh()
    assert stats.returns.shape == (9, REAL[name]) and len(store) == 9
    assert sorted(stats.returns.tolist()) == sorted(episode.episode_return for episode in store)
    narrow = np.float32 if kind == "MO-Gymnasium's" else np.float64
    for episode in store:
        if episode.seed is None:
            continue
        plain = mo_gymnasium.make(name)
        observation, _ = plain.reset(seed=episode.seed)
        observations, rewards = [observation], []
        for step in range(len(episode)):
            found = plain.step(int(actions[step][episode.env_index]))
            observations.append(found[0])
            rewards.append(np.array(found[1], narrow).astype(np.float64))
        check_batch(episode.observations, observations)
        assert np.array_equal(episode.rewards, np.stack(rewards))
        assert episode.episode_return == [sum(column) for column in np.stack(rewards).T.tolist()]
    assert not store.verify().faults
    plain_sums = duckdb.sql(f"select sum(reward[1]) from read_parquet('{tmp_path}/store/steps/*.parquet')")
    assert plain_sums.fetchall()[0][0] == pytest.approx(stats.returns[:, 0].sum())
