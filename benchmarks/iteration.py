"""Iteration: every episode of a store as arrays, against Minari's `iterate_episodes`, on the same data.

Opening the store is timed on both sides, so neither profits from an earlier repeat. One value of every array
is added up, so that none is left undecoded; the sums of both sides must agree.
"""

from __future__ import annotations

import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

import episodelake as el
from measure import Row, interleave, scaled
from setting import FORMATS, Setting, create, write_all
from trajectories import control

TARGET = 1 / 10
RETURN_THRESHOLD = 10.0


def run(setting: Setting) -> list[Row]:
    """Measure iteration, and a filter by return, over 1000 episodes of 1000 steps."""
    data = control(episodes=setting.choose(1000, 50), length=1000)
    store = setting.fresh("iterated")
    write_all(create(store, data.kind), data)
    arrays = str(data.save(setting.folder / "iterated-arrays"))
    for form in FORMATS:
        setting.minari.ask("build", arrays=arrays, dataset=f"iterated-{form}-v0", data_format=form)
    return _iterate(setting, store) + _filter(setting, store, len(data))


def _iterate(setting: Setting, store: Path) -> list[Row]:
    sides: dict[str, Any] = {"ours": lambda: iterate(store)}
    for form in FORMATS:
        sides[form] = partial(setting.minari.ask, "iterate", dataset=f"iterated-{form}-v0")
    measured = interleave(sides, setting.repeats)
    _check_agreement([answers[0] for answers in measured.values()])
    costs = {
        name: scaled([answer["seconds"] / answer["steps"] for answer in answers], 1e6)
        for name, answers in measured.items()
    }
    work = "iterate all episodes, 1000 steps each"
    return [
        Row(work, "us/step", costs["ours"], f"Minari {form}", costs[form], ratio_target=TARGET)
        for form in FORMATS
    ]


def iterate(path: Path) -> dict[str, Any]:
    """Open a store and read every episode as arrays."""
    total, steps = 0.0, 0
    start = time.perf_counter()
    for episode in el.open(path):
        total += episode.observations[-1, 0] + episode.actions[-1, 0] + episode.rewards[-1]
        total += episode.terminations[-1] + episode.truncations[-1]
        steps += len(episode.rewards)
    return {"seconds": time.perf_counter() - start, "total": float(total), "steps": steps}


def _filter(setting: Setting, store: Path, episodes: int) -> list[Row]:
    sides: dict[str, Any] = {"ours": lambda: filter_by_return(store, RETURN_THRESHOLD)}
    ask = partial(setting.minari.ask, "filter_by_return", threshold=RETURN_THRESHOLD)
    for form in FORMATS:
        sides[form] = partial(ask, dataset=f"iterated-{form}-v0")
    measured = interleave(sides, setting.repeats)
    counts = {answers[0]["count"] for answers in measured.values()}
    if len(counts) != 1:
        raise AssertionError(f"the filters keep different numbers of episodes: {sorted(counts)}")
    costs = {
        name: scaled([answer["seconds"] for answer in answers], 1e3) for name, answers in measured.items()
    }
    work = f"open and filter by return, {episodes:,} episodes of 1000 steps"
    return [Row(work, "ms", costs["ours"], f"Minari {form}", costs[form]) for form in FORMATS]


def filter_by_return(path: Path, threshold: float) -> dict[str, Any]:
    """Open a store and keep the episodes whose return is above a threshold."""
    start = time.perf_counter()
    count = len(el.open(path).filter(pl.col("episode_return") > threshold))
    return {"seconds": time.perf_counter() - start, "count": count}


def _check_agreement(answers: list[dict[str, Any]]) -> None:
    """Raise unless all sides read the same number of steps and the same values."""
    first = answers[0]
    for answer in answers[1:]:
        if answer["steps"] != first["steps"] or not math.isclose(
            answer["total"], first["total"], rel_tol=1e-9
        ):
            raise AssertionError(f"the sides read different data: {answers}")
