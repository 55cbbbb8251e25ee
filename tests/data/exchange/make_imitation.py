"""Write the files for test_exchange_imitation.py with imitation 1.0.1, which needs Gymnasium 0.29.

`imitation` is a folder of `serialize.save` with rollouts of CartPole, a time limit and many infos;
`imitation-fragments` has trajectories without rewards, of which one does not end. `imitation.npz` holds the
rollouts in the form of older releases. `imitation-loaded.npz` has what imitation reads from the folder.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit
from imitation.data import rollout, serialize
from imitation.data.types import Trajectory, TrajectoryWithRew
from stable_baselines3.common.vec_env import DummyVecEnv

FOLDER = Path(__file__).parent
NAMES = ("obs", "acts", "terminal", "rews")


class Infos(gymnasium.Wrapper):
    """Infos with plain values, arrays and numbers of NumPy."""

    def step(self, action: int) -> tuple:
        """Add them to a step."""
        observation, reward, terminated, truncated, _ = self.env.step(action)
        info = {"side": "left" if observation[0] < 0 else "right", "inner": {"x": float(observation[0])}}
        return observation, reward, terminated, truncated, {**info, "speed": np.float32(observation[1])}


def env() -> gymnasium.Env:
    """CartPole with 18 steps."""
    return Infos(TimeLimit(gymnasium.make("CartPole-v1").unwrapped, 18))


def rollouts() -> list[TrajectoryWithRew]:
    """Trajectories of random actions; some end at the time limit."""
    envs = DummyVecEnv([env, env])
    envs.seed(1)
    envs.action_space.seed(1)
    until, random = rollout.make_sample_until(min_episodes=5), np.random.default_rng(0)
    return list(rollout.rollout(None, envs, until, rng=random, exclude_infos=False, unwrap=False))


def save_npz(path: Path, trajectories: list[TrajectoryWithRew]) -> None:
    """Write the form that `serialize.load` still reads."""
    infos = np.concatenate([np.array(each.infos, dtype=object) for each in trajectories])
    np.savez_compressed(
        path,
        obs=np.concatenate([each.obs for each in trajectories]),
        acts=np.concatenate([each.acts for each in trajectories]),
        rews=np.concatenate([each.rews for each in trajectories]),
        infos=infos,
        terminal=np.array([each.terminal for each in trajectories]),
        indices=np.cumsum([len(each) for each in trajectories[:-1]]),
    )


def main() -> None:
    """Write all files, and check that imitation reads both forms alike."""
    made = rollouts()
    for name in ("imitation", "imitation-fragments"):
        shutil.rmtree(FOLDER / name, ignore_errors=True)
    serialize.save(FOLDER / "imitation", made)
    random = np.random.default_rng(0)
    fragments = [
        Trajectory(
            random.integers(0, 255, (length + 1, 2, 3), dtype=np.uint8),
            random.normal(size=(length, 2)).astype(np.float32),
            None,
            terminal,
        )
        for length, terminal in ((3, True), (2, False))
    ]
    serialize.save(FOLDER / "imitation-fragments", fragments)
    save_npz(FOLDER / "imitation.npz", made)
    loaded = serialize.load(FOLDER / "imitation")
    arrays = {f"{name}{i}": getattr(each, name) for i, each in enumerate(loaded) for name in NAMES}
    truncated = [bool(each.infos[-1].get("TimeLimit.truncated")) for each in loaded]
    infos = json.dumps(
        [[[i["side"], i["inner"]["x"], float(i["speed"])] for i in each.infos] for each in loaded]
    )
    np.savez_compressed(FOLDER / "imitation-loaded.npz", truncated=truncated, infos=infos, **arrays)
    for one, two in zip(loaded, serialize.load(FOLDER / "imitation.npz"), strict=True):
        assert all(np.array_equal(getattr(one, name), getattr(two, name)) for name in NAMES)


if __name__ == "__main__":
    main()
