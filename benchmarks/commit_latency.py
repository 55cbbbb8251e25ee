"""Commit latency: the time to seal one short episode as the number of versions grows.

Stores at version 10, 1,000 and 10,000 are sealed to in turn, in one run. Each sample is the median of twenty
seals, each by the one writer that has been open since the start; five repeats cover the hundred commits
between two checkpoints of a table. The slowest seal, which writes a checkpoint, is a separate row.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import episodelake as el
from fabricated import Segment, link_segments
from measure import Row, Samples, interleave
from setting import Setting, create

VERSIONS = (10, 1_000, 10_000)
QUICK_VERSIONS = (10, 100, 200)
SEALS = 20
STEPS = 10
TARGET = 3.0


def run(setting: Setting) -> list[Row]:
    """Build the stores, then seal to them in turn."""
    versions = QUICK_VERSIONS if setting.quick else VERSIONS
    taken: dict[int, list[float]] = {version: [] for version in versions}
    sides: dict[str, Callable[[], float]] = {}
    with ExitStack() as stack:
        for version in versions:
            store = build(setting.fresh(f"version-{version}"), version)
            writer = stack.enter_context(store.writer(seal_seconds=1e6))
            sides[str(version)] = _sealing(writer, taken[version])
        medians = interleave(sides, setting.repeats)
    young, *old = ((version, _milliseconds(medians[str(version)])) for version in versions)
    rows = [Row(f"seal an episode of {STEPS} steps, version {young[0]:,}", "ms", young[1])]
    for version, cost in old:
        work, peer = f"seal an episode of {STEPS} steps, version {version:,}", f"version {young[0]:,}"
        rows.append(Row(work, "ms", cost, peer, young[1], ratio_target=TARGET))
    for version in versions:
        # The first seal of a writer also commits its run.
        slowest = Samples((max(taken[version][1:]) * 1e3,))
        rows.append(Row(f"the slowest of {len(taken[version])} seals, version {version:,}", "ms", slowest))
    return rows


def build(path: Path, version: int) -> el.EpisodeStore:
    """Make a store at a version, each version with a segment of one short episode."""
    with create(path, "control").writer() as writer:
        write_short(writer)
    link_segments(Segment.of(path), version)
    store = el.open(path)
    if store.version != version:
        raise AssertionError(f"the store is at version {store.version}, not {version}")
    return store


def _sealing(writer: el.EpisodeWriter, taken: list[float]) -> Callable[[], float]:
    def median() -> float:
        for _ in range(SEALS):
            write_short(writer)
            start = time.perf_counter()
            writer.seal()
            taken.append(time.perf_counter() - start)
        return statistics.median(taken[-SEALS:])

    return median


def write_short(writer: el.EpisodeWriter) -> None:
    """Write an episode of `STEPS` steps, so that a seal costs little but its commit."""
    writer.write_episode(
        observations=np.zeros((STEPS + 1, 17)),
        actions=np.zeros((STEPS, 6), np.float32),
        rewards=np.ones(STEPS),
        terminations=True,
        truncations=False,
    )


def _milliseconds(seconds: list[float]) -> Samples:
    return Samples(tuple(value * 1e3 for value in seconds))
