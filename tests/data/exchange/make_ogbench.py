"""Write the files for tests/exchange/test_exchange_ogbench.py with OGBench 1.2.

OGBench has no writer: `ogbench-navigate.npz` and `ogbench-visual.npz` are collected from its environments as
its scripts `generate_locomaze.py` and `generate_powderworld.py` do. `ogbench-NAME-loaded.npz` has what its
`load_dataset` reads from them.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import ogbench  # noqa: F401 (registers the environments)
from ogbench.utils import load_dataset

FOLDER = Path(__file__).parent


def collected(env: gymnasium.Env, episodes: int, infos: tuple[str, ...]) -> dict[str, list[Any]]:
    """Rows of random actions until the time limit."""
    rows = defaultdict(list)
    env.action_space.seed(0)
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        done = False
        while not done:
            action = env.action_space.sample()
            following, _, terminated, truncated, info = env.step(action)
            done = terminated or truncated
            rows["observations"].append(observation)
            rows["actions"].append(action)
            rows["terminals"].append(done)
            for name in infos:
                rows[name].append(info[f"prev_{name}"])
            observation = following
    return rows


def main() -> None:
    """Write both files, and what OGBench reads."""
    maze = gymnasium.make("pointmaze-medium-v0", terminate_at_goal=False, max_episode_steps=9)
    rows = collected(maze, 4, ("qpos", "qvel"))
    arrays = {name: np.array(v, bool if name == "terminals" else np.float32) for name, v in rows.items()}
    np.savez_compressed(FOLDER / "ogbench-navigate.npz", **arrays)
    world = gymnasium.make("powderworld-easy-v0", mode="data_collection", max_episode_steps=5)
    rows = collected(world, 2, ())
    arrays = {name: np.array(v, np.uint8 if name == "observations" else np.int32) for name, v in rows.items()}
    np.savez_compressed(FOLDER / "ogbench-visual.npz", **arrays)
    for name, kinds in (("navigate", (np.float32, np.float32)), ("visual", (np.uint8, np.int32))):
        read = load_dataset(str(FOLDER / f"ogbench-{name}.npz"), *kinds, add_info=True)
        np.savez_compressed(FOLDER / f"ogbench-{name}-loaded.npz", **read)


if __name__ == "__main__":
    main()
