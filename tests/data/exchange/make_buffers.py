"""Write the files for test_exchange_buffers.py: Tianshou 2.0, Stable-Baselines3 2.9, TorchRL 0.14.

A loop over numbers fills each buffer beyond its size. `buffers.npz` has the rows of both environments as they
were added, from the first to the last.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import save_to_pkl
from tensordict import TensorDict
from tianshou.data import Batch, VectorReplayBuffer
from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer

FOLDER = Path(__file__).parent
STEPS, SIZE = 29, 20


def main() -> None:
    """Write all files."""
    random = np.random.default_rng(0)
    walk = random.normal(size=(STEPS + 1, 2, 3)).astype(np.float32)
    number = np.arange(STEPS)[:, None]
    rows = {
        "obs": walk[:-1],
        "obs_next": walk[1:],
        "act": random.integers(0, 4, (STEPS, 2)),
        "rew": random.normal(size=(STEPS, 2)),
        "terminated": (number + np.array([0, 2])) % 6 == 5,
        "truncated": (number + np.array([3, 0])) % 8 == 7,
        "cost": number + np.array([0.0, 0.5]),
        "logits": random.normal(size=(STEPS, 2, 4)),
    }
    np.savez_compressed(FOLDER / "buffers.npz", **rows)
    tianshou = VectorReplayBuffer(2 * SIZE, 2)
    sb3 = ReplayBuffer(2 * SIZE, spaces.Box(-9, 9, (3,)), spaces.Discrete(4), "cpu", n_envs=2)
    folder = FOLDER / "torchrl-dumps"
    torchrl = TensorDictReplayBuffer(storage=LazyMemmapStorage(2 * SIZE, ndim=2), batch_size=2)
    for row in range(STEPS):
        values = {name: column[row] for name, column in rows.items()}
        cost, logits = values.pop("cost"), values.pop("logits")
        tianshou.add(Batch(**values, info=Batch(cost=cost), policy=Batch(logits=logits)), buffer_ids=[0, 1])
        done = values["terminated"] | values["truncated"]
        timeouts = values["truncated"] & ~values["terminated"]
        sb3.add(
            values["obs"],
            values["obs_next"],
            values["act"],
            values["rew"],
            done,
            [{"TimeLimit.truncated": bool(each)} for each in timeouts],
        )
    for start in range(0, STEPS, 5):
        torchrl.extend(_ted({name: column[start : start + 5] for name, column in rows.items()}))
    tianshou.save_hdf5(str(FOLDER / "tianshou.hdf5"))
    save_to_pkl(FOLDER / "sb3_buffer.pkl", sb3)
    shutil.rmtree(folder, ignore_errors=True)
    torchrl.dumps(folder)


def _ted(rows: dict[str, np.ndarray]) -> TensorDict:
    """Some rows of both environments, of batch size (2, steps)."""
    shape = rows["rew"].T.shape

    def column(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values.swapaxes(0, 1)).reshape(*shape, -1))

    following = {
        "observation": column(rows["obs_next"]),
        "reward": column(rows["rew"]),
        "cost": column(rows["cost"]),
        "terminated": column(rows["terminated"]),
        "truncated": column(rows["truncated"]),
        "done": column(rows["terminated"] | rows["truncated"]),
    }
    return TensorDict(
        {
            "observation": column(rows["obs"]),
            "action": column(rows["act"])[..., 0],
            "logits": column(rows["logits"]),
            "next": TensorDict(following, shape),
        },
        shape,
    )


if __name__ == "__main__":
    main()
