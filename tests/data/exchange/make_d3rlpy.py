"""Write the files for tests/exchange/test_exchange_d3rlpy.py with d3rlpy 2.8, which needs Gymnasium 1.0.0.

`d3rlpy_NAME.h5` is a dataset, and `d3rlpy_NAME.npz` its transitions as d3rlpy picks them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import d3rlpy
import h5py
import numpy as np
from d3rlpy.dataset import (
    BasicTransitionPicker,
    Episode,
    FIFOBuffer,
    InfiniteBuffer,
    MDPDataset,
    ReplayBuffer,
    load_v1,
)

FOLDER = Path(__file__).parent
ROWS, TERMINALS, TIMEOUTS = 23, (4, 5, 16), (11, 22)


def columns(actions: np.ndarray) -> dict[str, np.ndarray]:
    """Flat rows of five episodes."""
    random = np.random.default_rng(0)
    return {
        "observations": random.normal(size=(ROWS, 3)).astype(np.float32),
        "actions": actions,
        "rewards": random.normal(size=(ROWS, 1)).astype(np.float32),
        "terminals": np.isin(np.arange(ROWS), TERMINALS).astype(np.float32),
        "timeouts": np.isin(np.arange(ROWS), TIMEOUTS).astype(np.float32),
    }


def joined(observation: Any) -> np.ndarray:
    """Return an observation as one array."""
    return observation if isinstance(observation, np.ndarray) else np.concatenate(observation)


def picked(name: str, episodes: list[Episode]) -> None:
    """Save what d3rlpy makes of episodes."""
    pick = BasicTransitionPicker()
    found = [
        (number, pick(episode, index))
        for number, episode in enumerate(episodes)
        for index in range(episode.transition_count)
    ]
    np.savez_compressed(
        FOLDER / f"d3rlpy_{name}.npz",
        episode=[number for number, _ in found],
        **{
            key: np.stack([np.asarray(getattr(transition, key)) for _, transition in found])
            for key in ("action", "reward", "terminal")
        },
        **{
            key: np.stack([joined(getattr(transition, key)) for _, transition in found])
            for key in ("observation", "next_observation")
        },
    )


def dump(name: str, buffer: ReplayBuffer) -> None:
    """Dump a buffer, and save what d3rlpy reads of it."""
    path = FOLDER / f"d3rlpy_{name}.h5"
    with path.open("w+b") as file:
        buffer.dump(file)
    with path.open("rb") as file:
        picked(name, list(ReplayBuffer.load(file, InfiniteBuffer()).episodes))


def main() -> None:
    """Write all files."""
    random = np.random.default_rng(1)
    dump("continuous", MDPDataset(**columns(random.normal(size=(ROWS, 2)).astype(np.float32))))
    discrete = columns(random.integers(0, 4, (ROWS, 1)))
    dump("discrete", MDPDataset(**discrete))
    # An online buffer with observations of two arrays, whose last episode is clipped.
    signature = d3rlpy.dataset.Signature([np.dtype(np.float32)] * 2, [(2,), (1,)])
    online = ReplayBuffer(
        FIFOBuffer(100),
        observation_signature=signature,
        action_signature=d3rlpy.dataset.Signature([np.dtype(np.float32)], [(2,)]),
        reward_signature=d3rlpy.dataset.Signature([np.dtype(np.float32)], [(1,)]),
        action_size=2,
        action_space=d3rlpy.ActionSpace.CONTINUOUS,
    )
    for length, terminated in ((4, True), (6, False)):
        for _ in range(length):
            seen = tuple(random.normal(size=size).astype(np.float32) for size in (2, 1))
            online.append(seen, random.normal(size=2).astype(np.float32), float(random.normal()))
        online.clip_episode(terminated)
    dump("tuple", online)
    timeouts = discrete.pop("timeouts")
    with h5py.File(FOLDER / "d3rlpy_v1.h5", "w") as file:
        for key, value in discrete.items():
            file[key] = value
        file["episode_terminals"] = np.maximum(discrete["terminals"], timeouts)
        file["discrete_action"] = True
        file["version"] = "1.0"
    with (FOLDER / "d3rlpy_v1.h5").open("rb") as file:
        picked("v1", list(load_v1(file)))


if __name__ == "__main__":
    main()
