"""A store that was recorded, killed, deleted from, annotated and compacted, and views of it in odd orders."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import polars as pl

import episodelake as el
from waiting import PATIENCE

OBSERVATIONS = gymnasium.spaces.Dict(
    {
        "image": gymnasium.spaces.Box(0, 255, (4, 3, 3), np.uint8),
        "pair": gymnasium.spaces.Tuple(
            (gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(5))
        ),
    }
)
ACTIONS = gymnasium.spaces.Tuple(
    (gymnasium.spaces.Discrete(3), gymnasium.spaces.Box(-1, 1, (2,), np.float64))
)
VIEWS = ("all", "backwards", "long", "odd", "early", "sorted", "sorted backwards", "scattered")

KILLED = """
import os, sys
import episodelake as el
sys.path.insert(0, sys.argv[2])
from loader_world import play
from waiting import Path, wait_for_journal
writer = el.open(sys.argv[1]).writer(run="killed", flush_seconds=0.02, seal_seconds=1e6)
play(writer, 3, "terminated", 101)
play(writer, 4, "interrupted", 102)
wait_for_journal(Path(sys.argv[1]) / "journal" / writer.run_id, 7)
os._exit(9)
"""


def play(writer: Any, length: int, end: str, seed: int) -> None:
    """Write one random episode that ends in the way named, or that does not end."""
    OBSERVATIONS.seed(seed)
    ACTIONS.seed(seed)
    rng = np.random.default_rng(seed)
    episode = writer.begin(OBSERVATIONS.sample(), {"battery": 1.0}, seed=seed)
    for step in range(length):
        last = step == length - 1
        info = {"battery": float(rng.random())} if rng.random() < 0.6 else {}
        episode.append(
            ACTIONS.sample(),
            float(rng.normal()),
            OBSERVATIONS.sample(),
            info=info,
            terminated=last and end in ("terminated", "both"),
            truncated=last and end in ("truncated", "both"),
            policy={"value": float(rng.normal())},
        )
    if end == "cut":
        episode.end()


def make_views(path: Path) -> dict[str, Any]:
    """Make the store, and return views of it by name."""
    store = el.create(path, observation_space=OBSERVATIONS, action_space=ACTIONS)
    rng = np.random.default_rng(0)
    ends = ["terminated", "truncated", "both", "cut"]
    for run in range(3):
        with store.writer(run=f"run-{run}") as writer:
            for number in range(10):
                length = 1 if number < 4 else int(rng.integers(2, 12))
                play(writer, length, ends[number % 4], 1000 * run + number)
                if number == 5:
                    writer.seal()
    result = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), str(Path(__file__).parent)], check=False, timeout=PATIENCE
    )
    assert result.returncode == 9
    el.recover(path)
    store.refresh()
    first_ids = store.episodes.select("episode_id").collect()["episode_id"]
    store.annotate(store.episodes.select("episode_id", score=pl.col("length") % 3))
    store.delete(pl.col("episode_id").is_in([first_ids[2], first_ids[15]]))
    store.refresh()
    early = el.open(path)
    store.compact(order_by="length")
    store.refresh()
    with store.writer(run="late") as writer:
        for number in range(4):
            play(writer, number + 1, ends[number], 9000 + number)
    store.refresh()
    return {
        "all": store,
        "backwards": store[::-1],
        "long": store.filter("length > 3"),
        "odd": store[1::3],
        "early": early,
        "sorted": store.filter(pl.col("length") < 8),
        "sorted backwards": store.filter(pl.col("length") < 8)[::-2],
        "scattered": store.filter(pl.col("score") == 1)[::-1],
    }
