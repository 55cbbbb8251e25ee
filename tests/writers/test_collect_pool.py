"""Collection from pools, which serve the environments that are ready, compared with one-by-one rollouts."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import episodelake as el
from collecting_parts import VaryingEnv
from nasty_environments import Nested
from pools import Pool
from strategies import same

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
    with pytest.raises(el.errors.SpaceMismatchError, match="initial_state"):
        el.collect(pool, el.Policy(initial_state=np.zeros(2)), store, steps=1)
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
