"""A small store with everything that exporters must hold or report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

import episodelake as el
from plain_transitions import ENDS

SPACE = spaces.Dict(
    {
        "arm": spaces.Dict({"a.b/c": spaces.Box(-1, 1, (1,), np.float16), "A": spaces.Discrete(3)}),
        "a": spaces.Box(-9, 9, (2, 2), np.float64),
        "A": spaces.Box(-9, 9, (), np.float32),
        "flags": spaces.Box(0, 1, (2,), np.bool_),  # type: ignore[arg-type]
        "bits": spaces.MultiBinary(4),
        "front": spaces.Box(0, 255, (8, 6, 3), np.uint8),
        "gray": spaces.Box(0, 255, (8, 6, 1), np.uint8),
        "raw": spaces.Box(0, 255, (3, 5), np.uint8),
        "pair": spaces.Tuple([spaces.Box(0, 9, (), np.int32), spaces.Text(5)]),
        "wide": spaces.Box(0, 2**64 - 1, (2,), np.uint64),
        "words": spaces.Box(0, 2**32 - 1, (2,), np.uint32),
        "none": spaces.Box(0, 1, (0,), np.float32),
    }
)
ACTIONS = spaces.Tuple([spaces.Discrete(4, start=2), spaces.Box(-1, 1, (2,), np.float64)])


def rich_store(path: Path) -> el.EpisodeStore:
    """Five episodes, one for each way to end, with infos, policy outputs, own columns and metadata."""
    card = {"description": "A walk.", "robot": {"arms": 2}}
    store = el.create(path, observation_space=SPACE, action_space=ACTIONS, card=card)
    for seed, space in enumerate((SPACE, ACTIONS)):
        space.seed(seed)
    with store.writer() as writer:
        for index, (terminated, truncated, length) in enumerate(ENDS):
            metadata = {"task": "pick", "level": index, "deep": {"gain": 0.5 * index}}
            episode = writer.begin(
                SPACE.sample(),
                info=_info(0),
                seed=2**70 if index == 1 else index,
                options={"level": index} if index else None,
                metadata=metadata | ({"only": np.arange(2)} if index == 2 else {}),
                extra={"mark": 0, "frame": np.full((4, 4, 3), index, np.uint8)},
            )
            for step in range(length):
                last = step == length - 1
                episode.append(
                    ACTIONS.sample(),
                    step + 0.1,
                    SPACE.sample(),
                    terminated=terminated and last,
                    truncated=truncated and last,
                    info=_info(step + 1),
                    policy={"value": float(step)},
                    extra={"mark": step + 1, "frame": np.full((4, 4, 3), step, np.uint8)},
                )
            if not (terminated or truncated):
                episode.end()
    return store.refresh()


def _info(t: int) -> dict[str, Any]:
    everywhere = {"cost": float(t), "ok": t % 2 == 0, "count": -t, "say": f"é{t}", "deep": {"x.y": [t]}}
    force = np.arange(3, dtype=np.float32) + t
    return {**everywhere, "force": force, "grid": np.full((2, 2), t, np.uint8), **({"some": 1} if t else {})}
