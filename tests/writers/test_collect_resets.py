"""Seeds and options of every reset, compared with plain loops that reset the same environment so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import gymnasium as gym
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import episodelake as el
from collecting_parts import LevelEnv, five_hundred, make_levels, tilt, tilting_many, tracked_many
from episodelake.testing.adapters import case
from nasty_environments import Rollout, advance, assert_recorded, new_store

MODES = list(AutoresetMode)
NUM_ENVS = 3
#: Neither ordered nor evenly spaced, and one of them twice.
SEEDS = [7, 3, 2**40, 11, 3, 0, 19, 23, 5, 31]
LEVELS = [{"level": number % 2} for number in range(len(SEEDS))]


def vector(mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> SyncVectorEnv:
    """A vector environment of `LevelEnv`s."""
    return SyncVectorEnv([LevelEnv] * NUM_ENVS, autoreset_mode=mode)


def plain_episode(seed: int | None, options: dict[str, Any] | None = None) -> Rollout:
    """What a plain loop sees of one episode."""
    env = LevelEnv()
    observation, info = env.reset(seed=seed, options=options)
    rollout = Rollout([observation], [info])
    while not (rollout.terminations and (rollout.terminations[-1] or rollout.truncations[-1])):
        advance(env, rollout, tilt(rollout.observations[-1], None))
    return rollout


def recorded(folder: Path, columns: str) -> list[Any]:
    """What DuckDB finds in the episodes files, in the order in which the episodes began."""
    return duckdb.sql(f"select {columns} from '{folder}/store/episodes/*.parquet' order by number").fetchall()


def assert_episodes(store: el.EpisodeStore, expected: list[Rollout]) -> None:
    """Fail unless the store holds these episodes, in the order in which they began."""
    ids = store.refresh().episodes.sort("number").collect()["episode_id"]
    assert len(ids) == len(expected)
    for episode_id, rollout in zip(ids, expected, strict=True):
        assert_recorded(store[episode_id], rollout, LevelEnv())


@pytest.mark.parametrize("mode", MODES)
def test_a_policy_sees_the_infos_of_all(tmp_path: Path, mode: AutoresetMode) -> None:
    """After some environments were reset, the policy has the infos of the others too."""
    store = new_store(tmp_path, vector())

    def policy(observation: Any, info: Any, state: Any) -> Any:
        assert info["_left"].all() and info["deep"]["_left"].all()
        return tilting_many(observation, info, None)[0], {"left": info["left"], "deep": info["deep"]["left"]}

    el.collect(vector(mode), policy, store, steps=60, seed=lambda number: number)
    steps = store.refresh().transitions.collect()
    assert steps["policy.left"].to_list() == steps["info.left"].to_list()
    assert steps["policy.deep"].to_list() == steps["info.left"].to_list()


def test_as_many_seeds_as_environments(tmp_path: Path) -> None:
    """They are those of the first reset, as Gymnasium has it, or of all episodes where they are enough."""
    store = new_store(tmp_path, vector())
    el.collect(vector(), tilting_many, store, steps=60, seed=[1, 2, None])
    by_env = {0: [1], 1: [2], 2: [None]}
    for env, seed in recorded(tmp_path, "env_index, seed"):
        assert seed == (by_env[env].pop() if by_env[env] else None)
    el.collect(vector(), tilting_many, store, episodes=3, seed=[4, 5, 6], run="whole")
    run = store.refresh().runs.collect().filter(name="whole")["run_id"][0]
    assert sorted(str(episode.seed) for episode in store.filter(f"run_id = '{run}'")) == ["4", "5", "6"]


def test_what_every_reset_can_have(tmp_path: Path) -> None:
    """None is no seed; options that are not given stay away, and the first form may go with the other."""
    store = new_store(tmp_path, vector())
    el.collect(vector(), None, store, episodes=5, seed=40, options=lambda number: LEVELS[number])
    found = recorded(tmp_path, "seed, (options->'$.level')::int")
    assert found == [(40, 0), (41, 1), (42, 0), (None, 1), (None, 0)]


def refused() -> Iterator[tuple[Any, dict[str, Any], str]]:
    """Environment, arguments of `collect`, and words of the error."""
    native = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point")
    yield (
        native,
        {"steps": 9, "seed": lambda number: number},
        "need a SyncVectorEnv or an AsyncVectorEnv; CartPole",
    )
    yield native, {"steps": 9, "options": [{}] * 9}, "need a SyncVectorEnv"
    yield LevelEnv(), {"episodes": 3, "seed": [1, 2]}, "seed is a list of 2, .* expected at least 3"
    yield LevelEnv(), {"episodes": 3, "options": [{}]}, "options is a list of 1, .* expected at least 3"
    yield vector(), {"steps": 3, "options": [{}, {}]}, "options is a list of 2, .* expected at least 3"
    yield vector(), {"episodes": 9, "seed": [1, 2, 3, 4]}, "seed is a list of 4, .* expected at least 9"


def test_what_cannot_be_reset_so(tmp_path: Path) -> None:
    """It is refused before the environment is reset and a run exists."""
    for number, (env, arguments, words) in enumerate(refused()):
        store = new_store(tmp_path / str(number), env)
        with case(words), pytest.raises(el.errors.InvalidArgumentError, match=words):
            el.collect(env, None, store, **arguments)
        assert store.refresh().runs.collect().is_empty()


def test_a_list_that_ends_too_early(tmp_path: Path) -> None:
    """With steps nobody knows how many episodes there will be; what was recorded until then is kept."""
    for env in (LevelEnv(), vector()):
        store = new_store(tmp_path / str(type(env).__name__), env)
        with pytest.raises(el.errors.InvalidArgumentError, match=r"seed is a list of 4, .* episode 4 begins"):
            el.collect(env, None, store, steps=500, seed=[1, 2, 3, 4])
        assert [seed for (seed,) in recorded(tmp_path / type(env).__name__, "seed")] == [1, 2, 3, 4]


@pytest.mark.further
def test_workers_share_the_episodes(tmp_path: Path) -> None:
    """Worker w of W plays the seeds and options w, w + W, ...; its policy has no gradients in its states."""
    store = new_store(tmp_path, LevelEnv())
    el.collect(make_levels, tracked_many, store, episodes=7, workers=2, seed=five_hundred, options=LEVELS)
    found = recorded(tmp_path, "run_id, seed, (options->'$.level')::int")
    runs = dict(
        zip(store.refresh().runs.collect()["run_id"], store.runs.collect()["metadata.worker"], strict=True)
    )
    by_worker = {worker: [row[1:] for row in found if runs[row[0]] == worker] for worker in (0, 1)}
    assert by_worker == {w: [(500 + k, k % 2) for k in range(w, 7, 2)] for w in (0, 1)}
    for episode in store:
        assert_recorded(episode, plain_episode(episode.seed, episode.options), LevelEnv())


@pytest.mark.further
@pytest.mark.parametrize("mode", MODES)
def test_environments_in_processes(tmp_path: Path, mode: AutoresetMode) -> None:
    """An AsyncVectorEnv is reset as a SyncVectorEnv is; without shared memory only where that works."""
    expected = [plain_episode(*pair) for pair in zip(SEEDS, LEVELS, strict=True)]
    for shared in (True, False):
        envs = AsyncVectorEnv([LevelEnv] * NUM_ENVS, autoreset_mode=mode, shared_memory=shared)
        store = new_store(tmp_path / str(shared), envs)
        try:
            if mode is AutoresetMode.NEXT_STEP and not shared:
                with pytest.raises(el.errors.InvalidArgumentError, match="shared_memory=True"):
                    el.collect(envs, tilting_many, store, episodes=10, seed=SEEDS)
            else:
                el.collect(envs, tilting_many, store, episodes=10, seed=SEEDS, options=LEVELS)
                assert_episodes(store, expected)
        finally:
            envs.close()
