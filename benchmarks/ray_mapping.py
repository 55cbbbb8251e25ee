"""Computing over episodes on Ray, beside a plain pool of processes with the same function.

Run it by itself, in the environment of `make test-rllib`: `.venv-rllib/bin/python benchmarks/ray_mapping.py
[--quick]`. Both sides have two workers that are up and have imported everything, read the same store, and
annotate it at the end. The pool's workers get a fiftieth of the episodes at a time.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from functools import partial
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")

import numpy as np
import polars as pl
from gymnasium.spaces import Box
from rich.console import Console

import episodelake as el
from measure import Row, Samples, interleave
from report import print_table

WORKERS, SHARES = 2, 50
TARGET = 1.3


def to_go(episode: el.Episode) -> np.ndarray:
    """The rewards to go: little work for each step."""
    return np.cumsum(episode.rewards[::-1])[::-1]


def embedding(episode: el.Episode) -> np.ndarray:
    """A vector for an episode, of a small network: much work for each step."""
    rng = np.random.default_rng(0)
    values = episode.observations
    for width in (256, 256, 32):
        values = np.tanh(values @ rng.standard_normal((values.shape[1], width), np.float32))
    return values.mean(0)


def recorded(path: Path, episodes: int, length: int) -> el.EpisodeStore:
    """A store of episodes of vectors."""
    rng = np.random.default_rng(0)
    seen, taken = (Box(-np.inf, np.inf, (size,), np.float32) for size in (8, 2))
    store = el.create(path, observation_space=seen, action_space=taken)
    with store.writer() as writer:
        for _ in range(episodes):
            writer.write_episode(
                observations=rng.standard_normal((length + 1, 8), np.float32),
                actions=rng.standard_normal((length, 2), np.float32),
                rewards=rng.standard_normal(length),
                terminations=True,
                truncations=False,
            )
    return store.refresh()


def apart(path: str, function: Any, positions: np.ndarray) -> list[tuple[str, Any]]:
    """Compute a share of the episodes in a worker of the pool."""
    return [(episode.id, function(episode)) for episode in el.open(path)[positions]]


def pooled(pool: Pool, store: el.EpisodeStore, function: Any, of: str) -> float:
    """Compute with the pool, and annotate."""
    start = time.perf_counter()
    shares = np.array_split(np.arange(len(store)), SHARES)
    parts = pool.imap(partial(apart, str(store.path), function), shares)
    rows = [row for part in parts for row in part]
    ids = [name for name, _ in rows]
    if of == "episode":
        store.annotate(pl.DataFrame({"episode_id": ids, "value": [list(map(float, row)) for _, row in rows]}))
    else:
        counts = [len(values) for _, values in rows]
        columns = {"episode_id": np.repeat(ids, counts), "t": np.concatenate([np.arange(n) for n in counts])}
        frame = pl.DataFrame(columns | {"gain": np.concatenate([values for _, values in rows])})
        store.annotate(frame, on=("episode_id", "t"))
    return time.perf_counter() - start


def mapped(store: el.EpisodeStore, function: Any, of: Any) -> float:
    """Compute on Ray, and annotate."""
    start = time.perf_counter()
    store.map_episodes(function, "value" if of == "episode" else "gain", of=of, engine="ray")
    return time.perf_counter() - start


def main(quick: bool, repeats: int) -> None:
    """Measure and print."""
    import ray

    ray.init(num_cpus=WORKERS, object_store_memory=150 << 20, include_dashboard=False, log_to_driver=False)
    episodes, length = (200, 100) if quick else (1_000, 100)
    rows = []
    with tempfile.TemporaryDirectory() as folder, get_context("spawn").Pool(WORKERS) as pool:
        store = recorded(Path(folder, "store"), episodes, length)
        for of, function in (("episode", embedding), ("step", to_go)):
            sides = {
                "ray": partial(mapped, store, function, of),
                "pool": partial(pooled, pool, store, function, of),
            }
            taken = {name: Samples(tuple(each)) for name, each in interleave(sides, repeats).items()}
            work = f"{function.__name__} of {episodes:,} episodes of {length} steps"
            rows.append(Row(work, "s", taken["ray"], "pool of processes", taken["pool"], TARGET))
    print_table("map_episodes with Ray", rows, Console(width=170))


if __name__ == "__main__":
    main("--quick" in sys.argv, 3 if "--quick" in sys.argv else 7)
