"""Collection from pools, which serve the environments that are ready, compared with one-by-one rollouts."""

from __future__ import annotations

import signal
import tempfile
import warnings
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import episodelake as el
from collecting_parts import CoinEnv, VaryingEnv, interrupted, plain_steps, tilt, tilting_many
from effort import examples
from nasty_environments import Nested, assert_recorded
from strategies import same
from test_collect_vector import assert_policy_columns
from test_pool_recorder import Pool

NUM_ENVS = 5
FURTHER = partial(pytest.param, marks=pytest.mark.further)


class StrictPool(Pool):
    """Refuses what EnvPool hangs or aborts at: batches that do not fill up, resets of what is in flight."""

    def async_reset(self) -> None:
        """Reset all of an idle pool."""
        assert not self.ready, "reset while environments are in flight"
        super().async_reset()

    def send(self, action: Any, env_id: Any = None) -> None:
        """Send to idle environments."""
        ids = np.arange(self.num_envs) if env_id is None else np.asarray(env_id)
        assert not {index for index, _ in self.ready}.intersection(ids.tolist()), "sent to twice"
        super().send(action, env_id)

    def recv(self) -> tuple[Any, ...]:
        """Return a full batch."""
        assert len(self.ready) >= self.batch_size, "would wait for ever"
        return super().recv()


def pool_of(batch_size: int, num_envs: int = NUM_ENVS, order: int = 0) -> StrictPool:
    """A pool of `VaryingEnv`s that get ready in a random order."""
    return StrictPool([VaryingEnv() for _ in range(num_envs)], batch_size, order)


def new_store(folder: Path, pool: Any) -> el.EpisodeStore:
    """Return a store for a pool."""
    return el.create(folder / "store", pool)


def by_env(store: el.EpisodeStore) -> dict[int, list[el.Episode]]:
    """Return the episodes of each environment, in order."""
    rows = store.refresh().episodes.sort("started_at", "number").select("env_index", "episode_id").collect()
    found: dict[int, list[el.Episode]] = {}
    for env, episode_id in rows.rows():
        found.setdefault(env, []).append(store[episode_id])
    return found


def assert_env_by_env(store: el.EpisodeStore) -> dict[int, list[el.Episode]]:
    """Fail unless each environment's episodes are those of a plain loop, the last one perhaps cut short."""
    found = by_env(store)
    for env, episodes in found.items():
        rollouts = plain_steps(VaryingEnv(), tilt, 400, seed=10 + env)
        for episode, rollout in zip(episodes, rollouts, strict=False):
            whole = episode.end_reason != "cut"
            assert whole or episode is episodes[-1]
            alone = rollout if whole else rollout.cut(episode.length)
            alone.rewards = [float(np.float32(reward)) for reward in alone.rewards]
            alone.infos = episode.infos
            assert_recorded(episode, alone, VaryingEnv())
            assert_policy_columns(episode)
    return found


@pytest.mark.parametrize("batch_size", [2, FURTHER(5), FURTHER(1), FURTHER(3)])
def test_steps_are_those_of_single_environments(tmp_path: Path, batch_size: int) -> None:
    """Calls on one recorder end with the batch that reaches their steps, and episodes go on without a gap."""
    pool = pool_of(batch_size)
    store = new_store(tmp_path, pool)
    with store.record(pool) as recorder:
        stats = [el.collect(recorder, tilting_many, store, steps=steps) for steps in (1, 7, 1, 91)]
        for each, steps in zip(stats, (1, 7, 1, 91), strict=True):
            assert steps <= each.steps < steps + batch_size
    found = assert_env_by_env(store)
    episodes = [episode for own in found.values() for episode in own]
    assert sum(map(len, episodes)) == sum(each.steps for each in stats)
    finished = [episode for episode in episodes if episode.end_reason != "cut"]
    assert sum(each.episodes for each in stats) == len(finished)
    assert stats[-1].unfinished == len(episodes) - len(finished)
    lengths = np.concatenate([each.lengths for each in stats])
    assert sorted(lengths.tolist()) == sorted(map(len, finished))
    assert store.verify().faults == ()


@pytest.mark.parametrize("batch_size", [3, FURTHER(1), FURTHER(5)])
@pytest.mark.parametrize("episodes", [13, FURTHER(2)])
def test_episodes_do_not_depend_on_who_is_ready_first(tmp_path: Path, batch_size: int, episodes: int) -> None:
    """Each environment gives its first episodes, as many as its share, in whatever order they get ready."""
    for order in (0, 1):
        pool = pool_of(batch_size, order=order)
        store = new_store(tmp_path / str(order), pool)
        stats = el.collect(pool, tilting_many, store, episodes=episodes)
        found = assert_env_by_env(store)
        shares = [episodes // NUM_ENVS + (env < episodes % NUM_ENVS) for env in range(NUM_ENVS)]
        assert [len(found.get(env, [])) for env in range(NUM_ENVS)] == shares
        assert all(episode.end_reason != "cut" for own in found.values() for episode in own)
        assert (stats.episodes, stats.unfinished, stats.steps) == (episodes, 0, stats.lengths.sum())
        assert pool.closed == 0 and pool.ready == []


@pytest.mark.further
def test_short_episodes_are_not_preferred(tmp_path: Path) -> None:
    """Of episodes of 2 or 20 steps both kinds are as frequent as they are drawn, which is 11 on average."""
    pool = StrictPool([CoinEnv() for _ in range(32)], 8)
    store = new_store(tmp_path, pool)
    taken = el.collect(pool, None, store, episodes=128, policy_seed=0)
    drawn = []
    for env in range(32):
        coin = CoinEnv()
        for seed in (10 + env, None, None, None):
            coin.reset(seed=seed)
            drawn.append(coin.length)
    assert sorted(taken.lengths.tolist()) == sorted(drawn) and abs(taken.return_mean - 11) < 3


def test_the_policy_is_asked_for_those_that_are_ready(tmp_path: Path) -> None:
    """It sees the very batch of the pool, and an environment is not sent anything once its share is full."""
    pool = pool_of(2)
    store = new_store(tmp_path, pool)
    given: list[Any] = []
    sent: list[int] = []
    recv, send = pool.recv, pool.send
    pool.recv = lambda: given.append(recv()) or given[-1]  # type: ignore[method-assign]

    def counting(action: Any, env_id: Any = None) -> None:
        sent.extend(env_id.tolist())
        send(action, env_id)

    pool.send = counting  # type: ignore[method-assign]

    def policy(observation: Any, info: Any, state: Any) -> Any:
        assert observation is given[-1][0] and info is given[-1][-1] and len(observation) == 2
        return np.zeros((2, 2), np.float32)

    el.collect(pool, policy, store, episodes=5)
    steps = {episode.env_index: len(episode) for episode in store.refresh()}
    assert sum(sent.count(env) for env in range(5)) <= sum(steps.values()) + 4 * max(steps.values())
    slowest = max(steps, key=steps.__getitem__)
    assert sent.count(slowest) == steps[slowest]


@settings(max_examples=examples(40), deadline=None)
@given(
    batch_size=st.integers(1, 4),
    num_envs=st.integers(1, 4),
    calls=st.lists(st.tuples(st.sampled_from(["steps", "episodes", "bare"]), st.integers(1, 9)), max_size=4),
)
def test_calls_of_all_kinds_count_exactly(batch_size: int, num_envs: int, calls: list) -> None:
    """Whatever calls follow one another, each records its episodes exactly and its steps to a whole batch."""
    with tempfile.TemporaryDirectory() as folder:
        pool = pool_of(min(batch_size, num_envs), num_envs)
        store = new_store(Path(folder), pool)
        expected = {"steps": 0, "episodes": 0}
        recorder = store.record(pool)
        for kind, count in calls:
            if kind == "bare":
                recorder.detach()
                recorder.drain()
                stats = el.collect(pool, tilting_many, store, steps=count)
                recorder = store.record(pool)
            else:
                stats = el.collect(recorder, tilting_many, store, **{kind: count})
            if kind == "episodes":
                assert stats.episodes == count
            else:
                assert count <= stats.steps < count + batch_size
            expected["steps"] += stats.steps
            expected["episodes"] += stats.episodes
        recorder.close()
        recorded = list(store.refresh())
        assert sum(map(len, recorded)) == expected["steps"]
        assert sum(episode.end_reason != "cut" for episode in recorded) == expected["episodes"]
        for episode in recorded:
            assert_policy_columns(episode)
            assert episode.observations[:, 0].tolist() == list(range(episode.length + 1))
            assert len(set(episode.observations[:, 1].tolist())) == 1


def test_states_begin_with_the_rows_of_their_environments(tmp_path: Path) -> None:
    """`initial_state` has a row for each environment; a state goes on by environment and is recorded."""
    pool = pool_of(2)
    store = new_store(tmp_path, pool)

    def count(observation: Any, info: Any, state: Any) -> Any:
        assert state["asked"][0].shape == (len(observation),)
        after = {"asked": (state["asked"][0] + 1,)}
        return np.zeros((len(observation), 2), np.float32), {}, after

    initial = {"asked": (100 * np.arange(NUM_ENVS),)}
    el.collect(pool, el.Policy(count, initial_state=initial, record_state=True), store, steps=60)
    for episode in store.refresh():
        (asked,) = episode.policy["state"]["asked"]
        first = 100 * episode.env_index
        assert list(asked)[: episode.length] == list(range(first, first + episode.length))
    assert initial["asked"][0].tolist() == [0, 100, 200, 300, 400]
    with pytest.raises(el.errors.SpaceMismatchError, match="initial_state"):
        el.collect(pool, el.Policy(count, initial_state=np.zeros(2)), store, steps=1)


@pytest.mark.further
def test_states_of_torch_keep_no_graph(tmp_path: Path) -> None:
    """A tensor that needs a gradient comes back by environment, without its graph."""
    torch = pytest.importorskip("torch")
    pool = pool_of(3)
    store = new_store(tmp_path, pool)
    weight = torch.ones(1, requires_grad=True)

    def policy(observation: Any, info: Any, state: Any) -> Any:
        hidden = torch.zeros(len(observation), 1) if state is None else state
        assert not hidden.requires_grad
        extras = {"asked": hidden[:, 0].clone()}
        return np.zeros((len(observation), 2), np.float32), extras, hidden + weight

    el.collect(pool, policy, store, steps=80)
    for episode in store.refresh():
        assert list(episode.policy["asked"])[: episode.length] == list(range(episode.length))


@pytest.mark.parametrize("make", [VaryingEnv, FURTHER(Nested)])
def test_random_actions_follow_from_the_seed_alone(tmp_path: Path, make: Any) -> None:
    """With a policy seed each environment draws the same actions, in whatever order they get ready."""
    taken: list[Any] = []
    for order in (0, 1):
        pool = StrictPool([make() for _ in range(4)], 2, order)
        store = new_store(tmp_path / str(len(taken)), pool)
        el.collect(pool, None, store, episodes=9, policy_seed=5)
        taken.append({env: [each.actions for each in own] for env, own in by_env(store).items()})
    first, second = taken
    assert first.keys() == second.keys() and len(first) == 4
    assert all(same(a, b) for env in first for a, b in zip(first[env], second[env], strict=True))
    assert not same(first[0][0], first[1][0])


def test_random_actions_go_back_to_the_policy(tmp_path: Path) -> None:
    """`random=True` asks no policy and draws what `policy=None` draws; `raw_action` is its inverse."""

    def never(*arguments: Any) -> Any:
        raise AssertionError(f"called with {arguments}")

    taken = []
    for policy in (never, None):
        pool = pool_of(2)
        store = new_store(tmp_path / str(len(taken)), pool)
        el.collect(
            pool,
            el.Policy(policy, explore=never, map_action_inverse=lambda actions: 2 * actions),
            store,
            episodes=9,
            policy_seed=5,
            random=policy is not None,
        )
        taken.append(store.refresh().transitions.sort("episode_id", "t").collect())
        actions = np.array(taken[-1]["action"].to_list())
        assert np.array_equal(np.array(taken[-1]["policy.raw_action"].to_list()), 2 * actions)
    one, two = (
        sorted(zip(steps["observation"].to_list(), steps["action"].to_list(), strict=True)) for steps in taken
    )
    assert one == two and len({tuple(action) for _, action in one}) == len(one)


def test_hooks_see_batches_and_ends(tmp_path: Path) -> None:
    """`map_action` changes what is sent; steps, ends and progress are told as they are counted."""
    pool = pool_of(2)
    store = new_store(tmp_path, pool)
    steps: list[el.types.CollectStep] = []
    ended: list[el.types.EpisodeSummary] = []
    told: list[el.types.CollectProgress] = []
    stats = el.collect(
        pool,
        el.Policy(
            lambda observation, info, state: np.ones((len(observation), 2), np.float32),
            map_action=lambda action: action / 2,
        ),
        store,
        episodes=8,
        on_step=steps.append,
        on_episode=ended.append,
        progress=told.append,
    )
    assert sum(step.recorded for step in steps) == steps[-1].steps == stats.steps
    assert [len(step.reward) for step in steps] == [2] * len(steps)
    assert (told[-1].done, told[-1].total, told[-1].steps) == (8, 8, stats.steps)
    rows = {episode.id: (episode.length, episode.env_index) for episode in ended}
    assert rows == {e.id: (len(e), e.env_index) for e in store.refresh()} and len(rows) == 8
    for episode in store:
        assert (episode.actions == 0.5).all()
        assert (np.stack(list(episode.policy["raw_action"])[: len(episode)]) == 1).all()


def test_a_callback_ends_episodes(tmp_path: Path) -> None:
    """Episodes that a step callback ends count, and what the pool goes on with is left out."""
    pool = pool_of(2)
    store = new_store(tmp_path, pool)

    def end(step: el.types.StepData) -> el.types.StepData:
        return replace(step, end=step.t == 3)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stats = el.collect(pool, tilting_many, store, episodes=11, step_callback=end)
        assert stats.episodes == len(store.refresh()) == 11 and max(map(len, store)) == 3
        stats = el.collect(pool, tilting_many, store, steps=25, step_callback=end)
    assert stats.steps in (25, 26) and stats.steps == sum(map(len, store.refresh()[11:]))


@pytest.mark.parametrize("goal", [{"episodes": 10_000}, FURTHER({"steps": 10_000})])
def test_an_interrupt_keeps_what_there_is(tmp_path: Path, goal: dict[str, int]) -> None:
    """Ctrl-C seals what was recorded, and the pool can be used again."""
    pool = pool_of(2)
    store = new_store(tmp_path, pool)

    def interrupt(step: el.types.CollectStep) -> None:
        if step.steps >= 40:
            signal.raise_signal(signal.SIGINT)

    stats = interrupted(pool, tilting_many, store, on_step=interrupt, **goal)
    episodes = [episode for own in assert_env_by_env(store).values() for episode in own]
    assert stats.interrupted and 40 <= stats.steps < 43 and sum(map(len, episodes)) == stats.steps
    assert stats.episodes == sum(episode.end_reason != "cut" for episode in episodes)
    assert el.collect(pool, tilting_many, store, episodes=3).episodes == 3


@pytest.mark.parametrize("who", ["policy", "pool"])
def test_an_exception_keeps_what_was_recorded(tmp_path: Path, who: str) -> None:
    """The exception passes on; everything before it is in the store."""
    pool = pool_of(2)
    store = new_store(tmp_path, pool)
    calls = 0

    def broken(*_: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 20:
            raise ZeroDivisionError("broken")

    def policy(observation: Any, info: Any, state: Any) -> Any:
        broken()
        return tilting_many(observation, info, state)

    recv = pool.recv
    if who == "pool":
        pool.recv = lambda: broken() or recv()  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError, match="broken"):
        el.collect(pool, policy if who == "policy" else tilting_many, store, steps=1000)
    episodes = [episode for own in assert_env_by_env(store).values() for episode in own]
    assert 20 < sum(map(len, episodes)) < 40
    if who == "policy":
        assert el.collect(pool, tilting_many, store, steps=9).steps in (9, 10)


def test_what_a_pool_cannot_do_is_told(tmp_path: Path) -> None:
    """Seeds, options, mappings of policies and answers of another size are refused; no run is left."""
    pool = pool_of(2)
    store = new_store(tmp_path, pool)
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"seed": 3}, "seed=3: a pool takes no seed"),
        ({"seed": [3]}, r"seed=\[3\]: a pool takes no seed"),
        ({"options": {"a": 1}}, "a pool takes no options"),
        ({"options": lambda number: {}}, "a pool takes no options"),
        ({"render": True}, "render was given, but StrictPool is a pool"),
    )
    for arguments, words in refused:
        with pytest.raises(el.errors.InvalidArgumentError, match=words):
            el.collect(pool, None, store, steps=1, **arguments)
    with pytest.raises(el.errors.InvalidArgumentError, match="map_action_inverse is a mapping"):
        el.collect(pool, el.Policy(map_action_inverse={}), store, steps=1)
    with pytest.raises(el.errors.InvalidArgumentError, match=r"policy is a mapping, .* this is StrictPool"):
        el.collect(pool, {"scout": None}, store, steps=1)
    assert store.refresh().runs.collect().is_empty()
    with pytest.raises(el.errors.SpaceMismatchError, match="each of the 2 environments"):
        el.collect(pool, lambda observation, info, state: np.zeros((5, 2), np.float32), store, steps=1)


@pytest.mark.further
def test_the_real_envpool_gives_the_same_episodes_in_any_order(tmp_path: Path) -> None:
    """CartPole of EnvPool, two or all of six at a time: the same episodes, as a plain loop sees them."""
    envpool = pytest.importorskip("envpool")

    def tilt_pole(observation: Any, info: Any, state: Any) -> Any:
        return (observation[:, 2] > 0).astype(np.int64)

    def make(batch_size: int) -> Any:
        return envpool.make("CartPole-v1", env_type="gymnasium", num_envs=6, batch_size=batch_size, seed=3)

    plain = make(6)
    observations, info = plain.reset()
    rows: dict[int, list[tuple[Any, bool]]] = {env: [] for env in range(6)}
    for _ in range(300):
        for env, observation in enumerate(observations):
            rows[env].append((observation.copy(), info["elapsed_step"][env] == 0))
        observations, _, _, _, info = plain.step(tilt_pole(observations, info, None))
    for batch_size in (2, 4):
        pool = make(batch_size)
        store = new_store(tmp_path / str(batch_size), pool)
        stats = el.collect(pool, tilt_pole, store, episodes=15)
        found = by_env(store)
        assert (stats.episodes, [len(found[env]) for env in range(6)]) == (15, [3, 3, 3, 2, 2, 2])
        for env, episodes in found.items():
            starts = [place for place, (_, fresh) in enumerate(rows[env]) if fresh]
            for episode, (start, stop) in zip(episodes, pairwise(starts), strict=False):
                expected = np.stack([observation for observation, _ in rows[env][start:stop]])
                assert same(episode.observations, expected)
        again = el.collect(pool, tilt_pole, store, steps=50)
        files = f"{store.path}/steps/*.parquet"
        (counted,) = duckdb.sql(f"select count(action) from '{files}'").fetchall()
        assert again.steps == 50 and counted == (stats.steps + 50,)
    assert stats.steps == stats.lengths.sum()


def two_small_ones() -> StrictPool:
    """Make a pool in a worker."""
    return pool_of(1, 2)


@pytest.mark.further
def test_pools_in_workers(tmp_path: Path) -> None:
    """Each worker plays a pool of its own."""
    store = new_store(tmp_path, two_small_ones())
    stats = el.collect(two_small_ones, None, store, steps=21, workers=2, policy_seed=1)
    assert stats.steps == 21 == sum(map(len, store.refresh())) and len(stats.run_ids) == 2
