"""Collecting with two actors of Ray against one, and with as many worker processes.

Run it by itself, in the environment of `make test-rllib`: `.venv-rllib/bin/python
benchmarks/ray_collecting.py [--quick]`. Every call collects the same number of steps of CartPole into a new
store. Playing is measured from each worker's first episode to its last, and the whole call with the start of
the workers and their imports. With two free cores, two workers can take half the time of one; the row of
processes shows what the machine allows.
"""

from __future__ import annotations

import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["POLARS_MAX_THREADS"] = "1"
os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")

import polars as pl
from rich.console import Console

import episodelake as el
from measure import Row, Samples, interleave
from report import print_table

TARGET = 1 / 1.8


def balance(observation: Any, info: Any, state: Any) -> int:
    """Push towards the falling pole; episodes then take about 200 steps."""
    return int(observation[2] + observation[3] > 0)


def collected(folder: str, steps: int, count: int, actors: bool) -> tuple[float, float]:
    """Collect into a new store; return the seconds of the call, and the microseconds of a step in play."""
    from episodelake.integrations.ray import collect

    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place, "store")
        store = el.create(path, "CartPole-v1")
        if actors:
            stats = collect("CartPole-v1", balance, path, steps=steps, actors=count, seed=0)
        else:
            stats = el.collect("CartPole-v1", balance, store, steps=steps, workers=count, seed=0)
        assert stats.steps == steps and not stats.failures
        runs = store.refresh().episodes.group_by("run_id")
        first, last = pl.col("started_at").min(), pl.col("ended_at").max()
        played = runs.agg(pl.col("length").sum() / (last - first).dt.total_microseconds()).collect()
        return stats.seconds, 1 / float(played["length"].sum())


def main(quick: bool, repeats: int) -> None:
    """Measure and print."""
    import ray

    ray.init(num_cpus=2, object_store_memory=150 << 20, include_dashboard=False, log_to_driver=False)
    steps = 20_000 if quick else 200_000
    with tempfile.TemporaryDirectory() as folder:
        sides = {
            f"{count} {'actors' if actors else 'processes'}": partial(collected, folder, steps, count, actors)
            for count in (2, 1)
            for actors in (True, False)
        }
        taken = interleave(sides, repeats)
    rows = []
    for place, unit, work in (
        (1, "us/step", "play and record CartPole"),
        (0, "s", f"collect {steps:,} steps"),
    ):
        cost = {name: Samples(tuple(each[place] for each in many)) for name, many in taken.items()}
        target = TARGET if place else None
        rows += [
            Row(f"{work}, 2 actors", unit, cost["2 actors"], "1 actor", cost["1 actors"], target),
            Row(f"{work}, 2 processes", unit, cost["2 processes"], "1 process", cost["1 processes"]),
            Row(f"{work}, 2 actors", unit, cost["2 actors"], "2 processes", cost["2 processes"]),
            Row(f"{work}, 1 actor", unit, cost["1 actors"], "1 process", cost["1 processes"]),
        ]
    print_table("Collecting with Ray", rows, Console(width=170))


if __name__ == "__main__":
    main("--quick" in sys.argv, 3)
