"""Stable-Baselines3: a callback that records what an algorithm plays in its VecEnv.

pip install stable-baselines3
python examples/sb3_callback.py ppo-cartpole
"""

from __future__ import annotations

import sys
from pathlib import Path

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

import episodelake as el
from episodes_by_env import EpisodesByEnv


class StoreCallback(BaseCallback):
    """Records every transition of a VecEnv, for on-policy and off-policy algorithms.

    A VecEnv resets an environment in the step that ends its episode, and puts the last observation into the
    info. The stored action is the one that the environment received. On-policy algorithms add the columns
    `policy.value` and `policy.log_prob`.

    Args:
        writer: of the store; close it after `learn`.
    """

    def __init__(self, writer: el.EpisodeWriter) -> None:
        super().__init__()
        self._episodes = EpisodesByEnv(writer)

    def _on_training_start(self) -> None:
        if self.model.get_vec_normalize_env() is not None:
            raise ValueError(
                "VecNormalize scales observations and rewards as it learns: record below it, with "
                "store.record(env) in the functions that make the environments."
            )

    def _on_step(self) -> bool:
        found = self.locals
        actions = found["clipped_actions"] if "clipped_actions" in found else found["actions"]
        for index, done in enumerate(found["dones"]):
            info = dict(found["infos"][index])
            truncated = bool(done and info.pop("TimeLimit.truncated", False))
            policy = {
                name: float(found[key][index])
                for name, key in (("value", "values"), ("log_prob", "log_probs"))
                if key in found
            }
            self._episodes.add(
                index,
                self.model._last_obs[index],
                actions[index],
                found["rewards"][index],
                info.pop("terminal_observation", found["new_obs"][index]),
                terminated=bool(done) and not truncated,
                truncated=truncated,
                info=info,
                policy=policy,
            )
        return True


def main(folder: str | Path, steps: int = 2048) -> el.EpisodeStore:
    """Train PPO and record its episodes."""
    envs = make_vec_env("CartPole-v1", n_envs=4, seed=0)
    store = el.create(folder, observation_space=envs.observation_space, action_space=envs.action_space)
    model = PPO("MlpPolicy", envs, n_steps=256, seed=0)
    with store.writer(run="ppo") as writer:
        model.learn(steps, callback=StoreCallback(writer))
    return store.refresh()


if __name__ == "__main__":
    print(main(sys.argv[1]).sql("select end_reason, count(*), avg(episode_return) from episodes group by 1"))
