"""Tianshou: a step hook of a Collector that records what it collects.

pip install tianshou
python examples/tianshou_collector.py tianshou-cartpole
"""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.data.collector import CollectActionBatchProtocol, StepHook
from tianshou.data.types import RolloutBatchProtocol
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Net

import episodelake as el
from episodes_by_env import EpisodesByEnv


class RecordSteps(StepHook):
    """Records every transition of a Collector.

    The stored action is the one that the environment received, not the network's before scaling. Infos are
    left out: the Collector has merged them into one batch, where a key that an environment lacks is zero.

    Args:
        writer: of the store; close it after the last `collect`.
    """

    def __init__(self, writer: el.EpisodeWriter) -> None:
        self._episodes = EpisodesByEnv(writer)

    def __call__(self, action_batch: CollectActionBatchProtocol, rollout_batch: RolloutBatchProtocol) -> None:
        """Record one step of the environments that were ready."""
        for row, env_index in enumerate(rollout_batch.info.env_id):
            self._episodes.add(
                int(env_index),
                rollout_batch.obs[row],
                action_batch.act_normalized[row],
                rollout_batch.rew[row],
                rollout_batch.obs_next[row],
                terminated=bool(rollout_batch.terminated[row]),
                truncated=bool(rollout_batch.truncated[row]),
            )


def main(folder: str | Path, episodes: int = 20) -> el.EpisodeStore:
    """Collect episodes of an untrained network that explores."""
    envs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(4)])
    observations, actions = envs.observation_space[0], envs.action_space[0]
    net = Net(state_shape=observations.shape, action_shape=actions.n, hidden_sizes=[64])
    policy = DiscreteQLearningPolicy(model=net, action_space=actions, eps_inference=0.5)
    store = el.create(folder, observation_space=observations, action_space=actions)
    with store.writer(run="tianshou") as writer:
        collector = Collector(
            policy,
            envs,
            VectorReplayBuffer(10_000, 4),
            exploration_noise=True,
            on_step_hook=RecordSteps(writer),
        )
        collector.reset()
        collector.collect(n_episode=episodes)
    return store.refresh()


if __name__ == "__main__":
    print(main(sys.argv[1]).sql("select end_reason, count(*), avg(episode_return) from episodes group by 1"))
