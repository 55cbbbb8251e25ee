"""The examples that record from other libraries against a log of the environments; PyTupli's quality metrics.

`make test-peers` runs them in an environment of their own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

import episodelake as el

pytestmark = pytest.mark.peers
STEPS, ENVS = 15, 3


class Logged(gymnasium.Wrapper):
    """Notes the transitions of each episode: a plain list."""

    def __init__(self, env: gymnasium.Env, index: int, log: dict[int, list[list[tuple]]]) -> None:
        super().__init__(env)
        self._episodes = log.setdefault(index, [])

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin a list."""
        observation, info = self.env.reset(**options)
        self._last = np.array(observation)
        self._episodes.append([])
        return observation, info

    def step(self, action: Any) -> tuple[Any, ...]:
        """Note a transition."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._episodes[-1].append(
            (self._last, np.array(action), float(reward), np.array(observation), terminated, truncated)
        )
        self._last = np.array(observation)
        return observation, reward, terminated, truncated, info


def makers(name: str, log: dict[int, list[list[tuple]]]) -> list[Callable[[], gymnasium.Env]]:
    """Functions that make a logged environment each."""

    def maker(index: int) -> Callable[[], gymnasium.Env]:
        return lambda: Logged(gymnasium.make(name, max_episode_steps=STEPS), index, log)

    return [maker(index) for index in range(ENVS)]


def new_store(path: Path, name: str) -> el.EpisodeStore:
    """A store for an environment."""
    with gymnasium.make(name) as env:
        return el.create(path / "store", env)


def compare(store: el.EpisodeStore, log: dict[int, list[list[tuple]]], *, one_flag: bool = False) -> set[str]:
    """Every logged transition is in the store once, in its episode; return the end reasons.

    `one_flag`: the library says that a step is truncated only if it is not terminated as well.
    """
    found: dict[int, list[el.Episode]] = {}
    for episode in store.refresh().sort("number"):
        found.setdefault(episode.env_index, []).append(episode)
    reasons = set()
    for index, logged in log.items():
        logged = sorted((episode for episode in logged if episode), key=_key)
        for episode, rows in zip(sorted(found[index], key=_stored_key), logged, strict=True):
            before, actions, rewards, after, terminated, truncated = map(np.array, zip(*rows, strict=True))
            np.testing.assert_array_equal(episode.observations, np.concatenate([before, after[-1:]]))
            np.testing.assert_array_equal(episode.actions, actions.reshape(episode.actions.shape))
            np.testing.assert_allclose(episode.rewards, rewards, rtol=1e-6)
            truncated = truncated & ~(terminated & one_flag)
            assert (episode.terminated, episode.truncated) == (terminated[-1], truncated[-1])
            reasons.add(episode.end_reason)
    return reasons


def _key(rows: list[tuple]) -> tuple[float, ...]:
    return tuple(rows[0][0].tolist())


def _stored_key(episode: el.Episode) -> tuple[float, ...]:
    return tuple(episode.observations[0].tolist())


@pytest.mark.parametrize(
    ("algorithm", "name", "reasons"),
    [
        ("PPO", "Pendulum-v1", {"truncated", "cut"}),
        ("SAC", "Pendulum-v1", {"truncated", "cut"}),
        ("DQN", "CartPole-v1", {"terminated", "truncated", "cut"}),
    ],
)
def test_sb3(tmp_path: Path, algorithm: str, name: str, reasons: set[str]) -> None:
    """On-policy and off-policy, with actions that are clipped, over two calls of learn."""
    import stable_baselines3
    from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

    from sb3_callback import StoreCallback

    log: dict[int, list[list[tuple]]] = {}
    envs = VecMonitor(DummyVecEnv(makers(name, log)))
    store = new_store(tmp_path, name)
    arguments = {"PPO": {"n_steps": 50, "batch_size": 50}}.get(algorithm, {"learning_starts": 50})
    model = getattr(stable_baselines3, algorithm)("MlpPolicy", envs, seed=0, **arguments)
    with store.writer() as writer:
        callback = StoreCallback(writer)
        for _ in range(2):
            model.learn(200, callback=callback)
    assert compare(store, log, one_flag=True) == reasons
    if algorithm == "PPO":
        table = store.sql("select * from transitions").pl()
        assert np.isfinite(table["policy.value"].to_numpy()).all()
        assert table["policy.log_prob"].null_count() == 0
    model.set_env(VecNormalize(DummyVecEnv(makers(name, {}))))
    with store.writer() as writer, pytest.raises(ValueError, match="VecNormalize"):
        model.learn(10, callback=StoreCallback(writer))


def test_tianshou(tmp_path: Path) -> None:
    """By steps, by episodes, and with a reset in the middle of episodes."""
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.utils.net.common import Net

    from tianshou_collector import RecordSteps

    log: dict[int, list[list[tuple]]] = {}
    envs = DummyVectorEnv(makers("CartPole-v1", log))
    store = new_store(tmp_path, "CartPole-v1")
    net = Net(state_shape=(4,), action_shape=2, hidden_sizes=[8])
    policy = DiscreteQLearningPolicy(model=net, action_space=envs.action_space[0], eps_inference=1.0)
    with store.writer() as writer:
        buffer = VectorReplayBuffer(1000, ENVS)
        collector = Collector(policy, envs, buffer, exploration_noise=True, on_step_hook=RecordSteps(writer))
        collector.reset()
        collector.collect(n_step=100)
        collector.collect(n_step=50)
        collector.reset_env()
        collector.collect(n_episode=7)
        collector.collect(n_step=30, random=True, reset_before_collect=True)
    assert compare(store, log) == {"terminated", "truncated", "cut"}
    assert sum(episode.length for episode in store) == len(buffer)


def test_torchrl(tmp_path: Path) -> None:
    """Batches that end in the middle of episodes."""
    from torchrl.collectors import Collector
    from torchrl.envs import GymWrapper, SerialEnv

    from torchrl_collector import record

    log: dict[int, list[list[tuple]]] = {}
    made = [
        lambda maker=maker: GymWrapper(maker(), categorical_action_encoding=True)
        for maker in makers("CartPole-v1", log)
    ]
    store = new_store(tmp_path, "CartPole-v1")
    collector = Collector(SerialEnv(ENVS, made), None, frames_per_batch=60, total_frames=300)
    with store.writer() as writer:
        assert [batch.numel() for batch in record(collector, writer)] == [60] * 5
    collector.shutdown()
    assert compare(store, log) == {"terminated", "truncated", "cut"}


@pytest.mark.parametrize("name", ["sb3_callback", "tianshou_collector", "torchrl_collector"])
def test_examples_run(name: str, tmp_path: Path) -> None:
    """As they stand."""
    store = importlib.import_module(name).main(tmp_path / "store")
    assert len(store) >= 20 and store.verify().ok


def test_quality_equals_that_of_pytupli(tmp_path: Path) -> None:
    """On the same episodes, PyTupli's measures of their lists are ours of the store."""
    from pytupli import quality_metrics as pytupli

    space = gymnasium.spaces.Box(-9, 9, (3,), np.float32)
    store = el.create(tmp_path / "store", observation_space=space, action_space=gymnasium.spaces.Discrete(2))
    random = np.random.default_rng(0)
    with store.writer() as writer:
        for length in random.integers(1, 60, 20):
            writer.write_episode(
                observations=random.integers(-2, 3, (length + 1, 3)).astype(np.float32),
                actions=random.integers(0, 2, length),
                rewards=random.normal(size=length),
                terminations=True,
                truncations=False,
            )
    store.refresh()
    half = store[:10]
    data = [
        SimpleNamespace(
            episodes=[
                SimpleNamespace(tuples=[SimpleNamespace(reward=float(reward)) for reward in episode.rewards])
                for episode in view
            ],
            observations=np.concatenate([episode.observations[:-1] for episode in view]),
            actions=np.concatenate([episode.actions for episode in view]),
        )
        for view in (half, store)
    ]
    environment = SimpleNamespace(
        action_space=store.action_space, observation_space=gymnasium.spaces.Discrete(9)
    )
    expected = {
        "average_return": pytupli.AverageReturnMetric(gamma=0.9),
        "trajectory_quality": pytupli.AverageReturnMetric(gamma=0.9, normalization_range=(-3.0, 5.0)),
        "estimated_return_improvement": pytupli.EstimatedReturnImprovementMetric(gamma=0.9),
        "state_action_coverage": pytupli.SACoMetric(
            environment, data[1].observations, data[1].actions, use_hyperloglog=False
        ),
        "behavioural_entropy": pytupli.GeneralizedBehavioralEntropyMetric(3, alpha=0.5, num_knn=7),
    }
    found = half.quality(gamma=0.9, reference=store, scores=(-3.0, 5.0), alpha=0.5, neighbours=7)
    for name, metric in expected.items():
        assert found[name].item() == pytest.approx(metric.evaluate(data[0]), rel=1e-5), name
