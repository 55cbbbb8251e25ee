"""What is claimed of vector recording and of `collect`, against plain loops over the same environments."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import polars as pl
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import example, given, settings
from hypothesis import strategies as st

import episodelake as el
from effort import examples
from scripted_environment import (
    MODES,
    Played,
    Scripted,
    alone_by_place,
    assert_prefix,
    assert_recorded,
    assert_table_played,
    by_place,
    copied,
    rollout,
    tables,
)

Stores = Callable[[], el.EpisodeStore]


@pytest.fixture(scope="module")
def new_store(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    """Makes an empty store: every example has its own, since logs of many versions take long to open."""
    return lambda: el.create(tmp_path_factory.mktemp("claims") / "store", Scripted())


def of_run(store: el.EpisodeStore, *run_ids: str) -> list[list[el.Episode]]:
    """The episodes of some runs, by environment, each in the order in which they began."""
    view = store.refresh().filter(pl.col("run_id").is_in(run_ids))
    by_env: dict[int, list[el.Episode]] = {}
    for episode in view:
        by_env.setdefault(episode.env_index, []).append(episode)
    return [
        sorted(by_env.get(index, []), key=lambda episode: episode.number)
        for index in range(max(by_env, default=-1) + 1)
    ]


def made(envs: int, mode: AutoresetMode, **arguments: Any) -> SyncVectorEnv:
    """So many scripted environments in one process."""
    return SyncVectorEnv([lambda: Scripted(**arguments)] * envs, autoreset_mode=mode)


def step_by_table(recorder: Any, table: np.ndarray, mode: AutoresetMode, seed: int) -> None:
    """Take the rows of a table as actions; reset by hand what has ended where nobody else does."""
    recorder.reset(seed=seed)
    for row in table:
        *_, terminations, truncations, _ = recorder.step(row)
        ended = terminations | truncations
        if mode is AutoresetMode.DISABLED and ended.any():
            recorder.reset(options={"reset_mask": ended})


@settings(max_examples=examples(20))
@given(
    mode=st.sampled_from(MODES),
    envs=st.integers(1, 5),
    seed=st.integers(0, 2**31),
    calls=st.integers(1, 25),
    longest=st.integers(1, 6),
    reuse=st.booleans(),
)
def test_a_vector_is_recorded_as_its_environments_alone(
    new_store: Stores, mode: AutoresetMode, envs: int, seed: int, calls: int, longest: int, reuse: bool
) -> None:
    """All modes: the observations, infos, rewards, flags and lengths of one environment after the other."""
    store = new_store()
    reuse = (
        reuse and mode is not AutoresetMode.SAME_STEP
    )  # there Gymnasium itself loses what a single buffer held
    table = tables(seed, calls, envs)
    with store.record(made(envs, mode, longest=longest, reuse=reuse)) as recorder:
        step_by_table(recorder, table, mode, seed)
        run = recorder.run_id
    assert_table_played(of_run(store, run), table, mode, seed, longest)


@settings(max_examples=examples(12))
@given(
    seed=st.integers(0, 2**31),
    picks=st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=3, max_size=12),
)
def test_masks_reset_exactly_the_masked(new_store: Stores, seed: int, picks: list[list[bool]]) -> None:
    """Who is reset in the middle of an episode is cut there and has its own seed; nobody else notices."""
    store = new_store()
    envs = made(3, AutoresetMode.DISABLED, longest=5)
    plain = [Scripted(5) for _ in range(3)]
    played: list[list[Played]] = [[], [], []]

    def begin(index: int, own_seed: int) -> None:
        observation, info = plain[index].reset(seed=own_seed)
        played[index].append(Played([copied(observation)], infos=[info], seed=own_seed))

    with store.record(envs) as recorder:
        recorder.reset(seed=[seed, seed + 10, seed + 20])
        for index in range(3):
            begin(index, seed + 10 * index)
        for number, pick in enumerate(picks):
            row = np.array([number, number + 1, number + 2]) % 7
            *_, terminations, truncations, _ = recorder.step(row)
            for index in range(3):
                now = played[index][-1]
                observation, reward, now.terminated, now.truncated, info = plain[index].step(row[index])
                now.observations.append(copied(observation))
                now.actions.append(int(row[index]))
                now.rewards.append(float(reward))
                now.infos.append(info)
            mask = terminations | truncations | np.array(pick)
            if mask.any():
                seeds: list[int | None] = [seed + 100 * number + index for index in range(3)]
                recorder.reset(seed=seeds, options={"reset_mask": mask})
                for index in np.flatnonzero(mask).tolist():
                    begin(index, seed + 100 * number + index)
        run = recorder.run_id
    for index, episodes in enumerate(of_run(store, run)):
        alone = [episode for episode in played[index] if episode.actions]
        assert_recorded(episodes, alone)
        assert [episode.seed for episode in episodes] == [episode.seed for episode in alone]


@settings(max_examples=examples(15))
@given(
    mode=st.sampled_from(MODES),
    envs=st.integers(1, 5),
    seed=st.integers(0, 2**31),
    steps=st.lists(st.integers(1, 30), min_size=1, max_size=3),
    longest=st.integers(1, 6),
)
@example(mode=AutoresetMode.NEXT_STEP, envs=5, seed=3, steps=[150], longest=6)
@example(mode=AutoresetMode.SAME_STEP, envs=5, seed=3, steps=[7] * 9, longest=6)
@example(mode=AutoresetMode.DISABLED, envs=5, seed=3, steps=[3] * 9, longest=6)
def test_steps_end_with_a_batch_and_go_on(
    new_store: Stores, mode: AutoresetMode, envs: int, seed: int, steps: list[int], longest: int
) -> None:
    """Each call ends with the batch that reaches its steps, and together they are one uninterrupted play."""
    store = new_store()
    vector = made(envs, mode, longest=longest)
    totals, ended = 0, []
    with store.record(vector) as recorder:
        for number, count in enumerate(steps):
            stats = el.collect(
                recorder,
                lambda observation, info, state: by_place(observation),
                store,
                steps=count,
                seed=seed if number == 0 else None,
            )
            assert count <= stats.steps < count + envs
            totals += stats.steps
            ended += stats.lengths.tolist()
        run = recorder.run_id
    stored = of_run(store, run)
    flat = [episode for episodes in stored for episode in episodes]
    finished = [episode.length for episode in flat if episode.end_reason != "cut"]
    assert sum(episode.length for episode in flat) == totals
    assert sorted(ended) == sorted(finished) and stats.unfinished == len(flat) - len(finished)
    for index, episodes in enumerate(stored):
        assert_prefix(episodes, alone_by_place(index, seed, mode, 2 * totals + 2, longest))


@settings(max_examples=examples(15))
@given(
    mode=st.sampled_from(MODES),
    envs=st.integers(1, 5),
    seed=st.integers(0, 2**31),
    episodes=st.integers(1, 14),
    longest=st.integers(1, 6),
    unbiased=st.booleans(),
)
@example(mode=AutoresetMode.NEXT_STEP, envs=5, seed=3, episodes=23, longest=6, unbiased=True)
@example(mode=AutoresetMode.SAME_STEP, envs=5, seed=3, episodes=3, longest=6, unbiased=False)
@example(mode=AutoresetMode.DISABLED, envs=5, seed=3, episodes=23, longest=6, unbiased=False)
def test_episodes_are_exact(
    new_store: Stores, mode: AutoresetMode, envs: int, seed: int, episodes: int, longest: int, unbiased: bool
) -> None:
    """Exactly n whole episodes: the first to end, or by quota the first of each; the stats agree."""
    store = new_store()
    ends: list[el.types.EpisodeSummary] = []
    stats = el.collect(
        made(envs, mode, longest=longest),
        lambda observation, info, state: by_place(observation),
        store,
        episodes=episodes,
        seed=seed,
        unbiased=unbiased,
        on_episode=ends.append,
    )
    stored = of_run(store, *stats.run_ids)
    flat = [episode for of_env in stored for episode in of_env]
    assert len(flat) == stats.episodes == len(ends) == episodes
    alone = [alone_by_place(index, seed, mode, 200, longest) for index in range(envs)]
    stored += [[] for _ in range(envs - len(stored))]
    for of_env, theirs in zip(stored, alone, strict=True):
        assert_recorded(of_env, theirs[: len(of_env)])
    counts = [len(of_env) for of_env in stored]
    if unbiased:
        assert counts == [episodes // envs + (index < episodes % envs) for index in range(envs)]
    else:
        kept = [theirs[count - 1].ended_at for theirs, count in zip(alone, counts, strict=True) if count]
        left = [theirs[count].ended_at for theirs, count in zip(alone, counts, strict=True)]
        assert max(end for end in kept if end is not None) <= min(end for end in left if end is not None)
    returns = sorted(episode.episode_return for episode in flat)
    assert sorted(stats.returns.tolist()) == returns
    assert np.isclose(stats.return_mean, np.mean(returns))
    assert np.isclose(stats.return_std, np.std(returns))
    assert (stats.return_min, stats.return_max) == (returns[0], returns[-1])
    assert stats.steps == sum(episode.length for episode in flat) == stats.lengths.sum()
    assert stats.unfinished == 0
    assert stats.terminated == sum(episode.terminated for episode in flat)
    assert stats.truncated == sum(episode.truncated for episode in flat)
    row = stats.frame().row(0, named=True)
    assert (row["episodes"], row["steps"], row["return_mean"]) == (episodes, stats.steps, stats.return_mean)


@settings(max_examples=examples(15))
@given(
    seed=st.integers(0, 2**31),
    amount=st.integers(1, 12),
    longest=st.integers(1, 5),
    whole=st.booleans(),
    own=st.booleans(),
)
def test_a_single_environment_is_collected_as_by_a_plain_loop(
    new_store: Stores, seed: int, amount: int, longest: int, whole: bool, own: bool
) -> None:
    """N steps or n episodes of one environment that reuses its buffer, also of one that resets itself."""
    store = new_store()
    env: gymnasium.Env = Scripted(longest, reuse=True)
    env = gymnasium.wrappers.Autoreset(env) if own else env
    wanted = {"episodes": amount} if whole else {"steps": amount}
    stats = el.collect(env, lambda seen, info, state: int(by_place(seen)), store, seed=seed, **wanted)
    (stored,) = of_run(store, *stats.run_ids)
    alone = rollout(Scripted(longest), lambda _, seen: int(by_place(seen)), 100, seed=seed, waits=False)
    assert_prefix(stored, alone)
    assert sum(episode.length for episode in stored) == stats.steps
    assert (len(stored) if whole else stats.steps) == amount


@settings(max_examples=examples(15))
@given(mode=st.sampled_from(MODES), envs=st.integers(1, 4), seed=st.integers(0, 2**31), started=st.booleans())
def test_recurrent_state_begins_where_an_episode_begins(
    new_store: Stores, mode: AutoresetMode, envs: int, seed: int, started: bool
) -> None:
    """A state that counts is at its start on row 0 of every episode and at t on row t, in each array."""
    store = new_store()
    start = {"h": (np.full((envs, 2), 50.0), np.arange(envs) * 100)}
    given_back: list[Any] = []

    def counting(observation: Any, info: Any, state: Any) -> el.PolicyOutput:
        if state is None:
            state = {"h": (np.zeros((envs, 2)), np.zeros(envs, np.int64))}
        given_back.append(state)
        first, second = state["h"]
        extras = {"first": first[:, 1], "second": second}
        return el.PolicyOutput(by_place(observation), extras, {"h": (first + 1, second + 1)})

    stats = el.collect(
        made(envs, mode, longest=4),
        el.Policy(counting, initial_state=start if started else None),
        store,
        steps=20 * envs,
        seed=seed,
    )
    for index, episodes in enumerate(of_run(store, *stats.run_ids)):
        for episode in episodes:
            t = np.arange(episode.length)
            assert np.array_equal(episode.policy["first"][: episode.length], t + (50 if started else 0))
            assert np.array_equal(
                episode.policy["second"][: episode.length], t + (100 * index if started else 0)
            )
    assert np.array_equal(start["h"][0], np.full((envs, 2), 50.0)), "the caller's own state was changed"


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seeds_give_the_same_episodes(new_store: Stores, mode: AutoresetMode) -> None:
    """Random actions are drawn from the seed alone, whatever the process drew before."""
    store = new_store()
    calls = []
    for _ in range(2):
        stats = el.collect(made(3, mode), None, store, steps=50, seed=11)
        calls.append([[e.actions.tolist() for e in of_env] for of_env in of_run(store, *stats.run_ids)])
        np.random.default_rng().random()
    assert calls[0] == calls[1]


def test_keys_of_infos_that_are_no_text(new_store: Stores) -> None:
    """A key that is a number has a mask like any other, which is no info of its own."""

    class Numbered(Scripted):
        """Says the step under a number as key, at even steps."""

        def _info(self) -> dict[Any, Any]:
            return {} if self.t % 2 else {7: self.t}

    store = new_store()
    with store.record(SyncVectorEnv([Numbered, lambda: Numbered(9)])) as recorder:
        recorder.reset(seed=2)
        for _ in range(12):
            recorder.step(np.zeros(2, np.int64))
    for episode in store.refresh():
        assert episode.infos == [{} if t % 2 else {7: t} for t in range(episode.length + 1)]
