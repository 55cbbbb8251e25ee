"""Filtering and opening a store of a million episodes: time, and memory per episode.

The episodes have one or two steps, so the store is small in steps and large in episodes. No peer is run on
it: Minari's arrow backend would need two million files for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
from gymnasium.spaces import Box, Discrete

import episodelake as el
from measure import Row, Samples, interleave, scaled
from setting import Setting

MEMORY_SCRIPT = Path(__file__).resolve().parent / "memory.py"


def run(setting: Setting) -> list[Row]:
    """Build the store once, then measure opening and filtering it."""
    episodes = setting.choose(1_000_000, 20_000)
    rewards = np.random.default_rng(0).standard_normal((episodes, 2))
    path = setting.fresh("million")
    build_seconds = build(path, rewards)
    small = setting.fresh("small")
    build(small, rewards[:100])
    returns = np.where(np.arange(episodes) % 2, rewards.sum(axis=1), rewards[:, 0])
    threshold = float(np.quantile(returns, 0.99))
    expected = int((returns > threshold).sum())
    store = el.open(path)
    sides = {
        "open": lambda: _seconds(lambda: len(el.open(path)), episodes),
        "filter fresh": lambda: _seconds_filter(el.open(path), threshold, expected),
        "filter again": lambda: _seconds_filter(store, threshold, expected),
    }
    costs = {name: scaled(values, 1e3) for name, values in interleave(sides, setting.repeats).items()}
    many = f"{episodes:,} episodes"
    return [
        Row(f"write {many} of 1 or 2 steps", "us/episode", Samples((build_seconds / episodes * 1e6,))),
        Row(f"open, {many}", "ms", costs["open"], limit=150.0),
        Row(f"filter by return, {many}, store just opened", "ms", costs["filter fresh"], limit=50.0),
        Row(f"filter by return, {many}, once more", "ms", costs["filter again"], limit=50.0),
        *_memory_rows(path, small, many, episodes, setting.repeats),
    ]


def build(path: Path, rewards: np.ndarray) -> float:
    """Write episodes of one step and of two in turn, and return the seconds until they are committed."""
    spaces = {"observation_space": Box(-1.0, 1.0, (2,), np.float32), "action_space": Discrete(2)}
    store = el.create(path, **spaces)
    observations = np.zeros((3, 2), np.float32)
    actions = np.zeros(2, np.int64)
    start = time.perf_counter()
    with store.writer() as writer:
        for number in range(len(rewards)):
            length = 1 + number % 2
            writer.write_episode(
                observations=observations[: length + 1],
                actions=actions[:length],
                rewards=rewards[number, :length],
                terminations=True,
                truncations=False,
            )
    return time.perf_counter() - start


def _seconds_filter(store: el.EpisodeStore, threshold: float, expected: int) -> float:
    return _seconds(lambda: len(store.filter(pl.col("episode_return") > threshold)), expected)


def _seconds(count: Callable[[], int], expected: int) -> float:
    """Time a call that counts episodes, and check the count."""
    start = time.perf_counter()
    counted = count()
    seconds = time.perf_counter() - start
    if counted != expected:
        raise AssertionError(f"expected {expected} episodes, got {counted}")
    return seconds


def _memory_rows(path: Path, small: Path, many: str, episodes: int, repeats: int) -> list[Row]:
    answers = []
    for _ in range(repeats):
        command = [sys.executable, str(MEMORY_SCRIPT), str(small), str(path)]
        answers.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    peak = scaled([answer["peak"] for answer in answers], 1 / episodes)
    held = scaled([answer["held"] for answer in answers], 1 / episodes)
    return [
        Row(f"open, {many}: memory at its peak", "B/episode", peak, limit=100.0),
        Row(f"open, {many}: memory held", "B/episode", held, limit=100.0),
    ]
