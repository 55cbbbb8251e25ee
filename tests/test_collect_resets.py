"""Seeds and options of every reset, compared with plain loops that reset the same environment so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import gymnasium as gym
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import episodelake as el
from collecting_parts import LevelEnv, five_hundred, make_levels, tilt, tilting_many, tracked_many
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


def begins(lengths: list[int], num_envs: int) -> list[int]:
    """The environment of each episode, if those that are free take the next one in the order of indices."""
    taken: list[int] = list(range(min(num_envs, len(lengths))))
    left = [lengths[number] for number in taken]
    while len(taken) < len(lengths):
        left = [steps - 1 for steps in left]
        for env, steps in enumerate(left):
            if steps == 0 and len(taken) < len(lengths):
                left[env] = lengths[len(taken)]
                taken.append(env)
    return taken


def recorded(folder: Path, columns: str) -> list[Any]:
    """What DuckDB finds in the episodes files, in the order in which the episodes began."""
    return duckdb.sql(f"select {columns} from '{folder}/store/episodes/*.parquet' order by number").fetchall()


def assert_episodes(store: el.EpisodeStore, expected: list[Rollout]) -> None:
    """Fail unless the store holds these episodes, in the order in which they began."""
    ids = store.refresh().episodes.sort("number").collect()["episode_id"]
    assert len(ids) == len(expected)
    for episode_id, rollout in zip(ids, expected, strict=True):
        assert_recorded(store[episode_id], rollout, LevelEnv())


FORMS: dict[str, Callable[[list[Any]], Any]] = {"list": list, "function": lambda values: values.__getitem__}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("goal", ["episodes", "steps"])
def test_each_episode_has_its_own_seed_and_options(tmp_path: Path, form: str, goal: str) -> None:
    """A single environment's k-th episode is that of a plain loop with the k-th seed and options."""
    store = new_store(tmp_path, LevelEnv())
    expected = [plain_episode(*pair) for pair in zip(SEEDS, LEVELS, strict=True)]
    amount = len(SEEDS) if goal == "episodes" else sum(len(rollout.actions) for rollout in expected)
    given = FORMS[form]
    el.collect(LevelEnv(), tilt_one, store, **{goal: amount}, seed=given(SEEDS), options=given(LEVELS))
    assert_episodes(store, expected)
    assert recorded(tmp_path, "seed, options->>'$.level'") == [
        (seed, str(options["level"])) for seed, options in zip(SEEDS, LEVELS, strict=True)
    ]


def tilt_one(observation: Any, info: Any, state: Any) -> Any:
    """`tilt` as a policy."""
    return tilt(observation, info)


@pytest.mark.sample
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("unbiased", [False, True])
def test_each_seed_of_a_vector_gives_one_episode(tmp_path: Path, mode: AutoresetMode, unbiased: bool) -> None:
    """The n episodes that begin first are recorded, whole and in the order of the seeds, in every mode."""
    store = new_store(tmp_path, vector())
    stats = el.collect(
        vector(mode), tilting_many, store, episodes=len(SEEDS), seed=SEEDS, options=LEVELS, unbiased=unbiased
    )
    expected = [plain_episode(*pair) for pair in zip(SEEDS, LEVELS, strict=True)]
    assert_episodes(store, expected)
    levels = [str(options["level"]) for options in LEVELS]
    assert recorded(tmp_path, "seed, options->>'$.level'") == list(zip(SEEDS, levels, strict=True))
    lengths = [len(rollout.actions) for rollout in expected]
    assert (stats.steps, sorted(stats.lengths)) == (sum(lengths), sorted(lengths))
    if not unbiased:
        assert [env for (env,) in recorded(tmp_path, "env_index")] == begins(lengths, NUM_ENVS)


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


@pytest.mark.sample
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("share", [1, 7, 30])
def test_a_function_goes_on_counting(tmp_path: Path, mode: AutoresetMode, share: int) -> None:
    """Over several calls on one recorder no episode is cut, and each has the next number's seed."""
    store = new_store(tmp_path, vector())
    with store.record(vector(mode)) as recorder:
        for _ in range(60 // share):
            el.collect(recorder, tilting_many, store, steps=share, seed=lambda number: 100 + number)
    found = store.refresh().episodes.sort("number").collect()
    numbers = [seed - 100 for seed in found["seed"]]
    assert sorted(numbers) == list(range(min(numbers), max(numbers) + 1))
    for episode in store:
        rollout = plain_episode(episode.seed)
        whole = episode.end_reason != "cut"
        assert_recorded(episode, rollout if whole else rollout.cut(episode.length), LevelEnv())
    assert found.filter(end_reason="cut").height <= NUM_ENVS


def test_a_single_recorder_goes_on_counting(tmp_path: Path) -> None:
    """A function does not cut the running episode; a list and a number do, and count from 0."""
    store = new_store(tmp_path, LevelEnv())
    with store.record(LevelEnv()) as recorder:
        for _ in range(5):
            el.collect(recorder, tilt_one, store, steps=4, seed=lambda number: 50 + number)
        before = len(store.refresh()) if recorder.seal() is None else 0
        el.collect(recorder, tilt_one, store, steps=1, seed=[9])
    seeds = [seed for (seed,) in recorded(tmp_path, "seed")]
    assert seeds == [*range(50, 50 + len(seeds) - 1), 9] and len(seeds) > 3
    assert before >= len(seeds) - 2


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


@pytest.mark.parametrize("case", range(6))
def test_what_cannot_be_reset_so(tmp_path: Path, case: int) -> None:
    """It is refused before the environment is reset and a run exists."""
    env, arguments, words = list(refused())[case]
    store = new_store(tmp_path, env)
    with pytest.raises(el.errors.InvalidArgumentError, match=words):
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
