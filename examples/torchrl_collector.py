"""TorchRL: the batches of a collector to a store.

pip install torchrl
python examples/torchrl_collector.py torchrl-cartpole
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import gymnasium
from tensordict import TensorDictBase
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, SerialEnv

import episodelake as el
from episodes_by_env import EpisodesByEnv


def record(batches: Iterable[TensorDictBase], writer: el.EpisodeWriter) -> Iterable[TensorDictBase]:
    """Record the batches of a collector, in order of time, while they are iterated.

    Args:
        batches: of shape (time,) or (environments, time), actions as the environment takes them.
        writer: of the store; close it after the last batch.

    Yields:
        The batches, unchanged.
    """
    episodes = EpisodesByEnv(writer)
    for batch in batches:
        rows = batch.detach().cpu().unsqueeze(0) if batch.batch_dims == 1 else batch.detach().cpu()
        following = rows["next"]
        columns = (
            rows["observation"].numpy(),
            rows["action"].numpy(),
            following["reward"].squeeze(-1).numpy(),
            following["observation"].numpy(),
        )
        terminated, truncated = (following[key].squeeze(-1) for key in ("terminated", "truncated"))
        for env_index in range(rows.shape[0]):
            for t in range(rows.shape[1]):
                episodes.add(
                    env_index,
                    *(column[env_index, t] for column in columns),
                    terminated=bool(terminated[env_index, t]),
                    truncated=bool(truncated[env_index, t]),
                )
        yield batch


def main(folder: str | Path, frames: int = 1000) -> el.EpisodeStore:
    """Collect steps of a random policy in four environments."""
    with gymnasium.make("CartPole-v1") as env:
        store = el.create(folder, env)
    envs = SerialEnv(4, lambda: GymEnv("CartPole-v1", categorical_action_encoding=True))
    collector = Collector(envs, None, frames_per_batch=200, total_frames=frames)
    with store.writer(run="torchrl") as writer:
        for batch in record(collector, writer):
            assert batch.numel() == 200  # train from it
    collector.shutdown()
    return store.refresh()


if __name__ == "__main__":
    print(main(sys.argv[1]).sql("select end_reason, count(*), avg(episode_return) from episodes group by 1"))
