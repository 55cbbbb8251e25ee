"""Write small datasets with LeRobot, and `expected.npz` with what LeRobot reads from the first.

LeRobot 0.4.4 writes v3.0 (`python make_lerobot.py lerobot-v3`), LeRobot 0.3.3 the same frames in v2.1
(`lerobot-v21`). The statistics of each episode, which are large and not read, are left out.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from lerobot.datasets.lerobot_dataset import LeRobotDataset

IMAGE = ["height", "width", "channels"]
FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
    "observation.images.top": {
        "dtype": "video",
        "shape": (64, 64, 3),
        "names": ["height", "width", "channels"],
    },
    "observation.images.wrist": {
        "dtype": "image",
        "shape": (8, 8, 3),
        "names": ["height", "width", "channels"],
    },
    "action": {"dtype": "float32", "shape": (1,), "names": ["force"]},
    "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    "next.success": {"dtype": "bool", "shape": (1,), "names": None},
}
LENGTHS = (5, 1, 8)


def main(folder: Path) -> None:
    """Write episodes with frames whose brightness tells their number."""
    random = np.random.default_rng(0)
    dataset = LeRobotDataset.create("test/push", 10, FEATURES, root=folder, robot_type="so100")
    for index, length in enumerate(LENGTHS):
        for t in range(length):
            dataset.add_frame(*frame(random, index, t, length, folder))
        dataset.save_episode()
    shutil.rmtree(folder / "images", ignore_errors=True)
    if folder.name == "lerobot-v21":
        return
    dataset.finalize()
    (file,) = folder.glob("meta/episodes/*/*.parquet")
    table = pq.read_table(file)
    kept = [name for name in table.column_names if not name.startswith("stats/")]
    pq.write_table(table.select(kept), file)
    read = LeRobotDataset("test/push", root=folder).hf_dataset
    found = {name: np.stack([np.asarray(row[name]) for row in read]) for name in read.column_names}
    np.savez_compressed(folder / "expected.npz", **found)


def frame(random: np.random.Generator, index: int, t: int, length: int, folder: Path) -> tuple:
    """Return a frame as the version of LeRobot takes it."""
    values = {
        "observation.state": random.normal(size=3).astype(np.float32),
        "observation.images.top": np.full((64, 64, 3), 20 + 60 * index + 8 * t, np.uint8),
        "observation.images.wrist": random.integers(0, 256, (8, 8, 3), np.uint8),
        "action": random.normal(size=1).astype(np.float32),
        "next.reward": np.array([t / 2], np.float32),
        "next.done": np.array([t == length - 1 and index != 1]),
        "next.success": np.array([t == length - 1 and index == 0]),
    }
    task = f"push {index % 2}"
    return ({**values, "task": task},) if folder.name == "lerobot-v3" else (values, task)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
