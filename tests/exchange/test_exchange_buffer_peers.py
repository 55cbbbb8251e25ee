"""Imports of replay buffers that Tianshou, Stable-Baselines3 and TorchRL filled themselves.

Each buffer is compared with the transitions that the environment itself gave while the library filled it: a
wrapper of ours notes them. `make test-peers` runs these tests.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el
from plain_transitions import plain_transitions, tree_equal, written_store

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore:.* does not hold:RuntimeWarning")]


class Walk(gymnasium.Env):
    """A seeded walk that terminates at times; it notes what it gives, episode by episode."""

    def __init__(self, seed: int = 0, kind: str = "box", limit: int = 7) -> None:
        self._random = np.random.default_rng(seed)
        self._limit = limit
        box = spaces.Box(-9, 9, (3,), np.float32)
        self.observation_space = spaces.Dict({"x": box, "n": spaces.Discrete(9)}) if kind == "dict" else box
        self.action_space = spaces.Box(-2, 2, (2,), np.float32) if kind == "dict" else spaces.Discrete(3)
        self.episodes: list[dict[str, list[Any]]] = []

    def _observation(self) -> Any:
        x = self._random.normal(size=3).astype(np.float32)
        if isinstance(self.observation_space, spaces.Dict):
            return {"x": x, "n": int(self._random.integers(9))}
        return x

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a new episode."""
        observation = self._observation()
        self.episodes.append(
            {"observations": [observation], "actions": [], "rewards": [], "ends": [], "costs": []}
        )
        return observation, {"cost": 0.0}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step."""
        episode, observation = self.episodes[-1], self._observation()
        terminated = bool(self._random.random() < 0.15)
        truncated = len(episode["actions"]) + 1 >= self._limit
        row = (observation, np.asarray(action).copy(), float(np.float32(self._random.normal())))
        for name, value in zip(("observations", "actions", "rewards"), row, strict=True):
            episode[name].append(value)
        episode["ends"].append((terminated, truncated))
        episode["costs"].append(float(len(episode["actions"])))
        return observation, row[2], terminated, truncated, {"cost": episode["costs"][-1]}


def digests(store: el.EpisodeStore) -> list[str]:
    """The digests of the content of the episodes that a store has from imports."""
    return sorted(episode.metadata["source_digest"] for episode in store)


def noted(env: Walk, last: int | None = None) -> list[dict[str, Any]]:
    """The episodes with a transition; with `last`, of the last transitions only that many."""
    played = [dict(episode) for episode in env.episodes if episode["actions"]]
    surplus = sum(len(each["actions"]) for each in played) - (last or 10**9)
    while surplus > 0:
        drop = min(surplus, len(played[0]["actions"]))
        played[0] = {name: values[drop:] for name, values in played[0].items()}
        surplus -= drop
        played = played if played[0]["actions"] else played[1:]
    return played


def compare(
    store: el.EpisodeStore, expected: list[dict[str, Any]], action: Callable[[Any], Any] = lambda value: value
) -> None:
    """Compare episodes with what environments noted."""
    assert len(store) == len(expected)
    for episode, given in zip(store, expected, strict=True):
        assert tree_equal(episode.observations, stacked(given["observations"]))
        assert np.array_equal(episode.actions, np.stack([action(each) for each in given["actions"]]))
        assert np.array_equal(episode.rewards, given["rewards"])
        assert (episode.terminated, episode.truncated) == given["ends"][-1]


def stacked(values: list[Any]) -> Any:
    """Values as a batch."""
    if isinstance(values[0], dict):
        return {key: stacked([each[key] for each in values]) for key in values[0]}
    return np.stack(values)


def imported(source: Any, path: Path, **options: Any) -> tuple[el.EpisodeStore, Any]:
    """The store of an import, and its report."""
    report = el.import_dataset(source, path, **options)
    assert el.import_dataset(source, path, **options).episodes == 0
    return el.open(path), report


BEGUN = "the beginning of the first episode of a full buffer, whose rows newer ones may have replaced"


@pytest.mark.parametrize("kind", ["box", "dict"])
@pytest.mark.parametrize("steps", [60, 150])
def test_tianshou_collects_into_lanes(tmp_path: Path, kind: str, steps: int) -> None:
    """A collector fills a buffer of three environments, also beyond its size; its file is equal."""
    data = importlib.import_module("tianshou.data")
    environments = [Walk(seed, kind) for seed in range(3)]
    vector = importlib.import_module("tianshou.env").DummyVectorEnv(
        [lambda env=env: env for env in environments]
    )
    buffer = data.VectorReplayBuffer(90, 3)
    collector = data.Collector(_random_policy(environments[0]), vector, buffer)
    collector.reset()
    collector.collect(n_step=steps)
    store, report = imported(buffer, tmp_path / "a")
    last = None if steps < 90 else 30
    expected = [episode for env in environments for episode in noted(env, last)]
    compare(store, expected, action=lambda value: value)
    assert dict(report.lost) == ({} if last is None else {BEGUN: 3})
    costs = [row["cost"] for episode in store for row in episode.infos[1:]]
    assert costs == [cost for episode in expected for cost in episode["costs"]]
    lanes = [number for number, env in enumerate(environments) for _ in noted(env, last)]
    assert store.episodes.collect()["env_index"].to_list() == lanes
    buffer.save_hdf5(str(tmp_path / "buffer.hdf5"))
    again, _ = imported(tmp_path / "buffer.hdf5", tmp_path / "b")
    compare(again, expected)
    el.import_dataset(tmp_path / "buffer.hdf5", tmp_path / "again")
    assert digests(el.open(tmp_path / "again")) == digests(store)


def _random_policy(env: Walk) -> Any:
    base = importlib.import_module("tianshou.algorithm.random")
    return base.MARLRandomDiscreteMaskedOffPolicyAlgorithm if env is None else _Random(env.action_space)


def _Random(space: spaces.Space) -> Any:
    module = importlib.import_module("tianshou.algorithm.algorithm_base")
    data = importlib.import_module("tianshou.data")
    space.seed(1)

    class RandomPolicy(module.Policy):
        def forward(self, batch: Any, state: Any = None, **_: Any) -> Any:
            return data.Batch(act=np.stack([space.sample() for _ in range(len(batch))]))

    return RandomPolicy(space, action_scaling=False, action_bound_method=None)


def test_tianshou_without_next_observations(tmp_path: Path) -> None:
    """The last observations are missing, as the caller says, in buffers that run over and prioritize."""
    data = importlib.import_module("tianshou.data")
    env = Walk()
    buffer = data.PrioritizedReplayBuffer(20, alpha=0.5, beta=0.5, ignore_obs_next=True)
    for row in _rows(env, 33):
        buffer.add(data.Batch(**row))
    expected = noted(env, 20)
    store, _ = imported(buffer, tmp_path / "missing", last_observation="missing")
    assert [episode.length for episode in store] == [len(each["actions"]) for each in expected]
    for episode, given in zip(store, expected, strict=True):
        assert tree_equal(episode.observations, np.stack(given["observations"][:-1]))
        assert (episode.terminated, episode.truncated) == given["ends"][-1]
    store, report = imported(buffer, tmp_path / "drop", last_observation="drop")
    kept = [each for each in expected if len(each["actions"]) > 1]
    assert [episode.length for episode in store] == [len(each["actions"]) - 1 for each in kept]
    assert report.lost["a last transition, whose next observation is missing"] == len(kept)


def _rows(env: Walk, steps: int) -> Iterator[dict[str, Any]]:
    """Rows of Tianshou from a plain loop."""
    env.action_space.seed(0)
    observation, _ = env.reset()
    for _ in range(steps):
        action = env.action_space.sample()
        following, reward, terminated, truncated, info = env.step(action)
        flags = {"terminated": terminated, "truncated": truncated}
        yield {"obs": observation, "act": action, "rew": reward, "obs_next": following, "info": info, **flags}
        observation = env.reset()[0] if terminated or truncated else following


@pytest.mark.parametrize("kind", ["box", "dict"])
@pytest.mark.parametrize("size", [60, 400])
def test_sb3_learns_into_a_buffer(tmp_path: Path, kind: str, size: int) -> None:
    """DQN and SAC fill a buffer of two environments; actions of a Box stay scaled."""
    sb3 = importlib.import_module("stable_baselines3")
    vector = importlib.import_module("stable_baselines3.common.vec_env").DummyVecEnv
    environments = [Walk(seed, kind) for seed in range(2)]
    algorithm, policy = (sb3.SAC, "MultiInputPolicy") if kind == "dict" else (sb3.DQN, "MlpPolicy")
    model = algorithm(
        policy, vector([lambda env=env: env for env in environments]), buffer_size=size, learning_starts=200,
        policy_kwargs={"net_arch": [8]}, device="cpu", seed=0,
    )  # fmt: skip
    model.learn(100)
    buffer = model.replay_buffer
    store, report = imported(buffer, tmp_path / "a")
    count = 30 if buffer.full else buffer.pos
    for env in environments:
        # The model resets an environment whose episode ended.
        env.episodes = [each for each in env.episodes if each["actions"]]
    expected = [episode for env in environments for episode in noted(env, count)]
    scale = (lambda value: value / np.float32(2)) if kind == "dict" else (lambda value: value)
    assert len(store) == len(expected)
    for episode, given in zip(store, expected, strict=True):
        assert tree_equal(episode.observations, stacked(given["observations"]))
        assert np.allclose(episode.actions, np.stack([scale(each) for each in given["actions"]]), atol=1e-6)
        assert np.array_equal(episode.rewards, given["rewards"])
        terminated, truncated = given["ends"][-1]
        assert (episode.terminated, episode.truncated) == (terminated, truncated and not terminated)
    assert [what.partition(":")[0] for what in report.lost] == [
        *([BEGUN] if size == 60 else []),
        *(["actions in the units of the action space"] if kind == "dict" else []),
    ]
    model.save_replay_buffer(tmp_path / "buffer")
    with pytest.raises(el.errors.DatasetError, match="trust=True"):
        el.import_dataset(tmp_path / "buffer.pkl", tmp_path / "b")
    el.import_dataset(tmp_path / "buffer.pkl", tmp_path / "again", trust=True)
    assert digests(el.open(tmp_path / "again")) == digests(store)


@pytest.mark.parametrize("size", [30, 200])
def test_sb3_shares_observations(tmp_path: Path, size: int) -> None:
    """With `optimize_memory_usage` the newest observation is there; those behind other ends are missing."""
    buffers = importlib.import_module("stable_baselines3.common.buffers")
    environments = [Walk(seed) for seed in range(2)]
    space = environments[0].observation_space, environments[0].action_space
    buffer = buffers.ReplayBuffer(
        size, *space, device="cpu", n_envs=2, optimize_memory_usage=True, handle_timeout_termination=False
    )
    for rows in zip(*(_rows(env, 40) for env in environments), strict=True):
        columns = ([row[name] for row in rows] for name in ("obs", "obs_next", "act", "rew"))
        done = np.array([row["terminated"] or row["truncated"] for row in rows])
        buffer.add(*map(np.stack, columns), done, [{}, {}])
    store, report = imported(buffer, tmp_path / "a", last_observation="missing")
    expected = [noted(env, 14 if size == 30 else 40) for env in environments]
    assert [episode.length for episode in store] == [
        len(each["actions"]) for lane in expected for each in lane
    ]
    dones = 0
    episodes = iter(store)
    for lane in expected:
        for given in lane:
            episode, done = next(episodes), any(given["ends"][-1])
            dones += done
            newest = given is lane[-1]
            observations = stacked(given["observations"])
            assert tree_equal(episode.observations, observations if newest else observations[:-1])
            assert episode.end_reason == "cut"
    assert sum(count for what, count in report.lost.items() if what.startswith("whether an episode")) == dones


def test_sb3_rollouts_are_refused(tmp_path: Path) -> None:
    """They have no flags, and rewards to which values are added."""
    buffers = importlib.import_module("stable_baselines3.common.buffers")
    env = Walk()
    buffer = buffers.RolloutBuffer(8, env.observation_space, env.action_space, device="cpu")
    with pytest.raises(el.errors.DatasetError, match="RolloutBuffer"):
        el.import_dataset(buffer, tmp_path / "a")


@pytest.mark.parametrize("spaces_of", ["box", "dict"])
def test_conversions_to_sb3_come_back_scaled(tmp_path: Path, spaces_of: str) -> None:
    """A buffer of `view.to` comes back with the transitions of its store; the contract has the others."""
    store = written_store(tmp_path / "store", spaces_of)
    back, report = imported(store.to.sb3(), tmp_path / "back")
    assert set(report.lost) <= {what for what in report.lost if what.startswith("actions in the units")}
    ours, theirs = plain_transitions(store), plain_transitions(back)
    assert len(ours) == len(theirs)
    for row, their_row in zip(ours, theirs, strict=True):
        expected, single = dict(row), dict(their_row)
        space = store.action_space
        if isinstance(space, spaces.Box):
            expected["action"] = 2.0 * ((row["action"] - space.low) / (space.high - space.low)) - 1.0
        expected["truncated"] = row["truncated"] and not row["terminated"]
        expected["reward"] = float(np.float32(row["reward"]))
        assert tree_equal(single, expected)


@pytest.mark.parametrize("environments", [1, 3])
def test_torchrl_collects(tmp_path: Path, environments: int) -> None:
    """Batches of a collector, and buffers and folders of them, have the transitions of the environments."""
    envs = importlib.import_module("torchrl.envs")
    collectors = importlib.import_module("torchrl.collectors")
    walks = [Walk(seed) for seed in range(environments)]
    made = [lambda walk=walk: envs.GymWrapper(walk, categorical_action_encoding=True) for walk in walks]
    env = made[0]() if environments == 1 else envs.SerialEnv(environments, made)
    collector = collectors.Collector(env, None, frames_per_batch=60, total_frames=60)
    (batch,) = [each.clone() for each in collector]
    steps = 60 // environments
    expected = [episode for walk in walks for episode in first(noted(walk), steps)]
    store, report = imported(batch, tmp_path / "a")
    compare(store, expected, action=lambda value: value)
    assert dict(report.lost) == {}
    batch.memmap(tmp_path / "folder")
    el.import_dataset(tmp_path / "folder", tmp_path / "again")
    assert digests(el.open(tmp_path / "again")) == digests(store)
    flat = batch.transpose(0, -1).reshape(-1)
    store, _ = imported(flat, tmp_path / "b")
    assert sorted(episode.length for episode in store) == sorted(len(each["actions"]) for each in expected)
    for episode in store:
        assert any(tree_equal(episode.observations, stacked(each["observations"])) for each in expected)


def first(episodes: list[dict[str, Any]], steps: int) -> list[dict[str, Any]]:
    """The first steps of some episodes."""
    firsts = []
    for episode in episodes:
        kept = min(steps, len(episode["actions"]))
        if kept:
            firsts.append(
                {name: values[: kept + (name == "observations")] for name, values in episode.items()}
            )
        steps -= kept
    return firsts


@pytest.mark.parametrize("storage", ["LazyTensorStorage", "LazyMemmapStorage"])
@pytest.mark.parametrize("environments", [1, 2])
def test_torchrl_buffers_run_over(tmp_path: Path, storage: str, environments: int) -> None:
    """A full buffer is read from its oldest row on, in memory and from its folder."""
    data = importlib.import_module("torchrl.data")
    envs = importlib.import_module("torchrl.envs")
    collectors = importlib.import_module("torchrl.collectors")
    walks = [Walk(seed) for seed in range(environments)]
    made = [lambda walk=walk: envs.GymWrapper(walk, categorical_action_encoding=True) for walk in walks]
    env = made[0]() if environments == 1 else envs.SerialEnv(environments, made)
    buffer = data.TensorDictReplayBuffer(
        storage=getattr(data, storage)(50 * environments, ndim=min(2, environments)), batch_size=4
    )
    batches = collectors.Collector(
        env, None, frames_per_batch=40 * environments, total_frames=80 * environments
    )
    for batch in batches:
        buffer.extend(batch.clone())
    store, report = imported(buffer, tmp_path / "a")
    expected = []
    for walk in walks:
        walk.episodes = first(noted(walk), 80)
        expected += noted(walk, 50)
    compare(store, expected)
    assert dict(report.lost) == {BEGUN: environments}
    buffer.dumps(tmp_path / "dumps")
    el.import_dataset(tmp_path / "dumps", tmp_path / "again")
    assert digests(el.open(tmp_path / "again")) == digests(store)


@pytest.mark.parametrize("size", [50, 200])
def test_torchrl_lists_of_transitions(tmp_path: Path, size: int) -> None:
    """A `ListStorage`, in a buffer or alone, full or not; items that are no transitions are refused."""
    data = importlib.import_module("torchrl.data")
    envs = importlib.import_module("torchrl.envs")
    collectors = importlib.import_module("torchrl.collectors")
    walk = Walk(0)
    buffer = data.TensorDictReplayBuffer(storage=data.ListStorage(size), batch_size=4)
    env = envs.GymWrapper(walk, categorical_action_encoding=True)
    for batch in collectors.Collector(env, None, frames_per_batch=40, total_frames=80):
        buffer.extend(batch.clone())
    store, report = imported(buffer, tmp_path / "a")
    walk.episodes = first(noted(walk), 80)
    compare(store, noted(walk, size))
    assert dict(report.lost) == ({BEGUN: 1} if size < 80 else {})
    if size > 80:
        store, _ = imported(buffer._storage, tmp_path / "b")
        compare(store, noted(walk, size))
    trajectories = data.ListStorage(3)
    trajectories.set(0, batch)
    with pytest.raises(el.errors.DatasetError, match=r"item 0 is .*40.*expected TensorDicts of one"):
        el.import_dataset(trajectories, tmp_path / "c")


def test_torchrl_zeros_are_no_observations(tmp_path: Path) -> None:
    """Where all next observations of done steps are zero, the last ones are missing."""
    store = written_store(tmp_path / "store", "box")
    rows = store.to.torchrl()
    rows["next", "observation"][rows["next", "done"][:, 0]] = 0
    back, _ = imported(rows, tmp_path / "back", last_observation="missing")
    assert [episode.length for episode in back] == [episode.length for episode in store]
    for ours, theirs in zip(store, back, strict=True):
        assert np.array_equal(ours.observations[:-1], theirs.observations)
