"""Write the folders for tests/exchange/test_exchange_dopamine.py with the replay buffer of dopamine-rl 4.1.

`dopamine-ring` has the checkpoints of a full ring, of which the second has rows of the first; some episodes
end at a time limit. `dopamine-logged` is logged as `batch_rl` logs the DQN replay dataset: whenever one slot
is left in the ring, and at the end with the cursor as `add_count`. `dopamine-NAME.npz` has the rows as they
were added, and for the ring all transitions that Dopamine samples from its last checkpoint.

Of TensorFlow the buffer uses `tf.io.gfile` only.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from dopamine.tf.replay_memory.circular_replay_buffer import OutOfGraphReplayBuffer, ReplayElement

FOLDER = Path(__file__).parent
FRAME = (4, 3)


def emptied(name: str) -> Path:
    """Return a new folder."""
    shutil.rmtree(FOLDER / name, ignore_errors=True)
    (FOLDER / name).mkdir()
    return FOLDER / name


def rows(lengths: list[int]) -> dict[str, np.ndarray]:
    """Episodes of random rows, of which every third ends without a terminal."""
    total, lasts = sum(lengths), np.cumsum(lengths) - 1
    random = np.random.default_rng(0)
    return {
        "observation": random.integers(0, 255, (total, *FRAME), dtype=np.uint8),
        "action": random.integers(0, 6, total, dtype=np.int32),
        "reward": random.normal(size=total).astype(np.float32),
        "terminal": np.isin(np.arange(total), [last for i, last in enumerate(lasts) if i % 3]).astype(
            np.uint8
        ),
        "episode_end": np.isin(np.arange(total), lasts),
        "q": random.normal(size=(total, 2)).astype(np.float32),
    }


def ring() -> None:
    """Save two checkpoints of a ring of 60 slots, 25 rows apart."""
    folder, added = emptied("dopamine-ring"), rows([7, 12, 1, 20, 9, 16, 11, 14])
    extra = [ReplayElement("q", (2,), np.float32)]
    shape: dict[str, Any] = {"observation_shape": FRAME, "stack_size": 3, "batch_size": 1}
    buffer = OutOfGraphReplayBuffer(
        **shape, replay_capacity=60, update_horizon=3, extra_storage_types=extra, checkpoint_duration=9
    )
    for t in range(len(added["action"])):
        row = [added[name][t] for name in ("observation", "action", "reward", "terminal", "q")]
        buffer.add(*row, episode_end=bool(added["episode_end"][t]))
        if t in (59, 84):
            buffer.save(str(folder), 3 if t == 59 else 4)
    loaded = OutOfGraphReplayBuffer(**shape, replay_capacity=60, extra_storage_types=extra)
    loaded.load(str(folder), 4)
    valid = [index for index in range(60) if loaded.is_valid_transition(index)]
    elements = [element.name for element in loaded.get_transition_elements()]
    batch = dict(zip(elements, loaded.sample_transition_batch(len(valid), valid), strict=True))
    sampled = {
        f"sampled_{name}": batch[name] for name in ("state", "action", "reward", "next_state", "terminal")
    }
    np.savez_compressed(FOLDER / "dopamine-ring.npz", **added, **sampled)


def logged() -> None:
    """Log a ring of 40 slots whenever all but one are filled, and what is left."""
    folder, added = emptied("dopamine-logged"), rows([6, 11, 3, 17, 30, 8, 13, 5])
    buffer = OutOfGraphReplayBuffer(FRAME, 4, 40, 1, checkpoint_duration=9)
    added["terminal"] = added["episode_end"].astype(np.uint8)
    number = 0
    for t in range(len(added["action"])):
        buffer.add(*[added[name][t] for name in ("observation", "action", "reward", "terminal")])
        if buffer.cursor() == 39:
            buffer.save(str(folder), number)
            number += 1
    buffer.add_count = np.array(buffer.cursor())
    buffer.save(str(folder), number)
    # The dataset is older than these.
    for path in folder.glob("episode_end_indices*"):
        path.unlink()
    np.savez_compressed(FOLDER / "dopamine-logged.npz", **added)


if __name__ == "__main__":
    ring()
    logged()
