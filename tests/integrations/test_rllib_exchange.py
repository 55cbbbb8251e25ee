"""What the store exports to RLlib, read by RLlib's own readers; `make test-rllib` runs these tests."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pyarrow.parquet as pq
import pytest

import episodelake as el

pytestmark = pytest.mark.peers
LENGTHS = (7, 3, 12, 1, 5)
BOX = gymnasium.spaces.Box(-100, 100, (2,), np.float32)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A small cluster of Ray, for Ray Data."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=200 * 2**20, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    gc.collect()  # iterators of Ray Data report to the cluster when they go
    ray.shutdown()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Episodes of known lengths: observation [episode, t], action t % 3, reward t + 1."""
    path = tmp_path_factory.mktemp("exchange") / "store"
    made = el.create(path, observation_space=BOX, action_space=gymnasium.spaces.Discrete(3))
    with made.writer() as writer:
        for number, length in enumerate(LENGTHS):
            writer.write_episode(
                observations=expected(number),
                actions=np.arange(length) % 3,
                rewards=np.arange(1.0, length + 1),
                terminations=number % 2 == 0,
                truncations=number % 2 == 1,
                infos=[{"force": 0.5 * t} for t in range(length + 1)],
                policy={"action_logp": -np.arange(length, dtype=np.float32)},
            )
    return made.refresh()


def expected(number: int) -> np.ndarray:
    """The observations of an episode."""
    steps = np.arange(LENGTHS[number] + 1)
    return np.stack([np.full(len(steps), number), steps], axis=1).astype(np.float32)


def prelearner(**offline: Any) -> Any:
    """RLlib's own worker for reading, and its configuration."""
    from ray.rllib.algorithms.bc import BCConfig
    from ray.rllib.offline.offline_prelearner import OfflinePreLearner

    action_space = gymnasium.spaces.Discrete(3)
    config = BCConfig().environment(observation_space=BOX, action_space=action_space)
    config.offline_data(input_=["none"], **offline).training(train_batch_size_per_learner=1000)
    spec = config.get_multi_rl_module_spec(spaces={"default_policy": (BOX, action_space)})
    config.rl_module(rl_module_spec=spec)
    return OfflinePreLearner(config=config, spaces=(BOX, action_space))


def batch(folder: Path) -> dict[str, Any]:
    """A batch of all rows as Ray Data hands it on."""
    import ray.data

    data = ray.data.read_parquet(str(folder))
    return next(iter(data.iter_batches(batch_size=None)))


def check(episodes: list[Any]) -> None:
    """Compare whole episodes of RLlib with the store."""
    episodes = sorted(episodes, key=lambda each: each.get_observations(0)[0])
    assert [len(each) for each in episodes] == list(LENGTHS)
    for number, each in enumerate(episodes):
        each.validate()
        assert np.array_equal(np.stack(list(each.get_observations())), expected(number))
        assert np.array_equal(each.get_actions(), np.arange(len(each)) % 3)
        assert np.array_equal(each.get_rewards(), np.arange(1.0, len(each) + 1))
        assert np.array_equal(each.get_extra_model_outputs("action_logp"), -np.arange(len(each)))
        assert (each.is_terminated, each.is_truncated) == (number % 2 == 0, number % 2 == 1)


@pytest.mark.usefixtures("cluster")
def test_rllib_reads_exported_rows(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Each row is a transition with its own next observation; there are as many as transitions."""
    store.export(tmp_path / "out", format="rllib")
    worker = prelearner()
    found = worker._map_to_episodes(batch(tmp_path / "out"))["episodes"]
    assert len(found) == sum(LENGTHS)
    rows = [(*each.get_observations(0), *each.get_observations(1), each.get_rewards(0)) for each in found]
    assert rows == [
        (number, t, number, t + 1, t + 1) for number, length in enumerate(LENGTHS) for t in range(length)
    ]
    assert sum(each.is_terminated for each in found) == 3 and sum(each.is_truncated for each in found) == 2
    columns = worker(batch(tmp_path / "out"))
    assert np.array_equal(columns["default_policy/obs"][:7], expected(0)[:-1])


@pytest.mark.usefixtures("cluster")
def test_rllib_reads_exported_episodes(store: el.EpisodeStore, tmp_path: Path) -> None:
    """RLlib unpacks whole episodes with infos and spaces, and learns from them."""
    import msgpack
    import msgpack_numpy
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    store.export(tmp_path / "out", format="rllib", kind="episodes")
    (file,) = (tmp_path / "out").glob("*.parquet")
    states = pq.read_table(file)["item"].to_pylist()
    found = [
        SingleAgentEpisode.from_state(msgpack.unpackb(state, object_hook=msgpack_numpy.decode))
        for state in states
    ]
    check(found)
    assert found[0].observation_space == BOX and found[0].get_infos()[3] == {"force": 1.5}
    columns = prelearner(input_read_episodes=True)(batch(tmp_path / "out"))
    assert set(map(tuple, columns["default_policy/obs"].tolist())) <= {
        tuple(row) for number in range(len(LENGTHS)) for row in expected(number)[:-1].tolist()
    }


def test_episodes_in_memory(store: el.EpisodeStore, tmp_path: Path) -> None:
    """A view as a list of SingleAgentEpisodes with arrays of their own; what is lost is a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found = store.to.rllib()
    check(found)
    assert all(each.is_numpy for each in found)
    assert (found[0].observation_space, found[0].id_) == (BOX, store[0].id)
    assert [info["force"] for info in found[1].get_infos()] == [0.0, 0.5, 1.0, 1.5]
    found[0].get_observations()[:] = 0
    assert store[0].observations[-1].tolist() == [0, 7]
    other = el.create(tmp_path / "other", observation_space=BOX, action_space=gymnasium.spaces.Discrete(3))
    with other.writer() as writer:
        for length, flags in ((4, (False, False)), (3, (True, False)), (1, (True, False))):
            writer.write_episode(
                observations=expected(2)[:length],
                actions=np.zeros(length, np.int64),
                rewards=np.ones(length),
                terminations=flags[0],
                truncations=flags[1],
                metadata={"driver": "ann"},
                last_observation="missing",
            )
    with pytest.warns(RuntimeWarning, match="RLlib's SingleAgentEpisode does not hold") as caught:
        first, second = other.refresh().to.rllib()
    assert "metadata.driver (3)" in str(caught[-1].message)
    assert "an episode without a transition between two observations (1)" in str(caught[-1].message)
    assert "a last transition, whose next observation is missing (2)" in str(caught[-1].message)
    assert (len(first), first.is_done, len(second), second.is_done) == (3, False, 2, False)
