"""Two stores for the explorer: a robot with four cameras, and runs with planted faults.

python examples/stores_to_look_at.py stores
episodelake explore stores
episodelake health stores/faults
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

import episodelake as el

JOINTS = 14
CAMERAS = {"front": (96, 128), "top": (96, 128), "left_wrist": (64, 64), "right_wrist": (64, 64)}
#: The faults of the second store: kind of finding, and the episode of run "faulty" that has it.
FAULTS = {"nan": 3, "infinite": 5, "constant": 8, "saturated": 11, "outlier": 14, "duplicate": 17, "cut": 19}


class FourCameras(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """Two arms of seven joints reach for a ball, which four cameras see as a disc on a grid."""

    observation_space = Dict(
        {name: Box(0, 255, (*size, 3), np.uint8) for name, size in CAMERAS.items()}
        | {"joints": Box(-np.pi, np.pi, (JOINTS,), np.float32)}
    )
    action_space = Box(-1, 1, (JOINTS,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Put the arms and the ball somewhere."""
        super().reset(seed=seed, options=options)
        self._joints = self.np_random.uniform(-1, 1, JOINTS)
        self._goal = self.np_random.uniform(-1, 1, JOINTS)
        return self._look(), {"distance": self._distance()}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Turn each joint by at most 0.1 rad; done where all are close to the goal."""
        self._joints = np.clip(self._joints + 0.1 * action, -np.pi, np.pi)
        distance = self._distance()
        return self._look(), -distance, distance < 0.2, False, {"distance": distance}

    def goal_action(self) -> np.ndarray:
        """Return the action that leads to the goal."""
        return np.clip((self._goal - self._joints) * 10, -1, 1).astype(np.float32)

    def _distance(self) -> float:
        return float(np.abs(self._joints - self._goal).mean())

    def _look(self) -> dict[str, np.ndarray]:
        images = {name: self._image(index, size) for index, (name, size) in enumerate(CAMERAS.items())}
        return {**images, "joints": self._joints.astype(np.float32)}

    def _image(self, camera: int, size: tuple[int, int]) -> np.ndarray:
        """Return what a camera sees: the goal in red and the joints that it watches in its own colour."""
        image = np.full((*size, 3), 24, np.uint8)
        image[:: size[0] // 8] = image[:, :: size[1] // 8] = 48
        places = [(self._goal[camera], self._goal[camera + 7], (210, 60, 50))]
        colour = ((70, 130, 240), (60, 180, 110), (230, 160, 40), (190, 90, 170))[camera]
        places += [(self._joints[j], self._joints[j + 7], colour) for j in (camera, camera + 3)]
        rows, columns = np.mgrid[: size[0], : size[1]]
        for x, y, shade in places:
            row, column = (y / np.pi + 1) / 2 * size[0], (x / np.pi + 1) / 2 * size[1]
            image[(rows - row) ** 2 + (columns - column) ** 2 < (size[0] / 14) ** 2] = shade
        return image


def record_robot(path: Path, episodes: int = 6) -> el.EpisodeStore:
    """Record an operator with a trembling hand, and a beginner, on the robot."""
    env = FourCameras()
    names = [f"{arm}_{joint}" for arm in ("left", "right") for joint in range(1, 8)]
    store = el.create(path, env, card={"names": {"observation.joints": names, "action": names}})
    for run, tremble in (("operator", 0.1), ("beginner", 0.8)):
        rng = np.random.default_rng(0)
        with store.record(env, run=run, metadata={"tremble": tremble}) as recorder:
            for seed in range(episodes):
                recorder.reset(seed=seed)
                for _ in range(40):
                    action = env.goal_action() + rng.normal(0, tremble, JOINTS)
                    *_, terminated, _, _ = recorder.step(np.clip(action, -1, 1).astype(np.float32))
                    if terminated:
                        break
    return store.refresh()


def write_faults(path: Path, episodes: int = 20, length: int = 60) -> el.EpisodeStore:
    """Write two runs of the same made-up task; the second has one fault of each kind in `FAULTS`."""
    spaces = {"observation_space": Box(-np.inf, np.inf, (4,)), "action_space": Box(-1, 1, (2,))}
    store = el.create(path, **spaces)
    for run in ("sound", "faulty"):
        rng = np.random.default_rng(len(run))
        with store.writer(run=run) as writer:
            last: dict[str, Any] = {}
            for number in range(episodes):
                observations = rng.normal(size=(length + 1, 4)).cumsum(axis=0) / 10
                episode = {
                    "observations": observations.astype(np.float32),
                    "actions": rng.uniform(-0.9, 0.9, (length, 2)).astype(np.float32),
                    "rewards": rng.normal(1, 0.2, length),
                    "terminations": True,
                    "truncations": False,
                }
                if run == "faulty":
                    _plant(episode, number, last)
                writer.write_episode(**episode)
                last = episode
    return store.refresh()


def _plant(episode: dict[str, Any], number: int, last: dict[str, Any]) -> None:
    """Give an episode the fault of its number, if there is one."""
    if number == FAULTS["nan"]:
        episode["observations"][10:13, 2] = np.nan
    elif number == FAULTS["infinite"]:
        episode["rewards"][7] = np.inf
    elif number == FAULTS["constant"]:
        episode["observations"][:, 1] = 0.25
    elif number == FAULTS["saturated"]:
        episode["actions"][5:55, 0] = 1.0
    elif number == FAULTS["outlier"]:
        episode["rewards"][30] = -5_000.0
    elif number == FAULTS["duplicate"]:
        episode.update(last)
    elif number == FAULTS["cut"]:
        episode["terminations"] = False


def main() -> None:
    """Make both stores in a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the stores `robot` and `faults` are made")
    folder = parser.parse_args().folder
    print(record_robot(folder / "robot"))
    faults = write_faults(folder / "faults")
    print(faults)
    print(faults.health())


if __name__ == "__main__":
    main()
