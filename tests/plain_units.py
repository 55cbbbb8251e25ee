"""A loader's units as a slow loop over the episodes gives them, a few lines for each kind.

Nothing here is taken from the library but `Episode`, which other tests hold to plain rollouts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import episodelake as el

CODES = {"terminated": 1, "truncated": 2, "cut": 3, "interrupted": 4}


def at(tree: Any, t: int) -> Any:
    """One step of stacked, maybe nested values."""
    if isinstance(tree, dict):
        return {key: at(value, t) for key, value in tree.items()}
    return tuple(at(value, t) for value in tree) if isinstance(tree, tuple) else tree[t]


def stacked(values: list[Any]) -> Any:
    """Single, maybe nested values as stacks."""
    if isinstance(values[0], dict):
        return {key: stacked([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(stacked(list(parts)) for parts in zip(*values, strict=True))
    return np.stack(values)


def zeros(tree: Any) -> Any:
    """Zeros in the shape of a single, maybe nested value."""
    if isinstance(tree, dict):
        return {key: zeros(value) for key, value in tree.items()}
    return tuple(map(zeros, tree)) if isinstance(tree, tuple) else np.zeros_like(tree)


def flags(episode: el.Episode, t: int) -> tuple[bool, bool]:
    """Terminated and truncated of a transition, as a learner sees them."""
    last = t == episode.length - 1
    cut = last and episode.end_reason != "terminated"
    return bool(episode.terminations[t]), bool(episode.truncations[t]) or cut


def transition(episode: el.Episode, t: int) -> dict[str, Any]:
    """One transition."""
    terminated, truncated = flags(episode, t)
    return {
        "observation": at(episode.observations, t),
        "action": at(episode.actions, t),
        "reward": episode.rewards[t],
        "next_observation": at(episode.observations, t + 1),
        "terminated": terminated,
        "truncated": truncated,
        "end_reason": CODES[episode.end_reason] if t == episode.length - 1 else 0,
        "t": t,
    }


def n_steps(episode: el.Episode, t: int, n: int, gamma: float) -> dict[str, Any]:
    """One n-step transition."""
    total, factor, stop = 0.0, 1.0, t
    while stop < episode.length and stop < t + n:
        total += factor * episode.rewards[stop]
        factor *= gamma
        stop += 1
    terminated, truncated = flags(episode, stop - 1)
    return {
        "observation": at(episode.observations, t),
        "action": at(episode.actions, t),
        "reward": total,
        "next_observation": at(episode.observations, stop),
        "terminated": terminated,
        "truncated": truncated,
        "discount": 0.0 if terminated else factor,
        "span": stop - t,
    }


def window_starts(length: int, window: int, stride: int, pad: str | None) -> list[int]:
    """The steps at which the windows of an episode begin, in order of time."""
    if pad is None:
        return [start for start in range(0, length, stride) if start + window <= length]
    if pad == "right":
        return list(range(0, length, stride))
    return sorted(end - window + 1 for end in range(length - 1, -1, -stride))


def window(episode: el.Episode, start: int, size: int) -> dict[str, Any]:
    """`size` steps in a row, zeros where the episode has none, but for `t`, which counts on."""
    rows: dict[str, list[Any]] = {}
    for t in range(start, start + size):
        real = 0 <= t < episode.length
        values = transition(episode, t if real else 0)
        for key in ("observation", "action", "reward", "next_observation", "terminated", "truncated"):
            rows.setdefault(key, []).append(values[key] if real else zeros(values[key]))
        rows.setdefault("mask", []).append(real)
        rows.setdefault("t", []).append(t)
    return {key: stacked(values) for key, values in rows.items()}


def delta_values(episode: el.Episode, t: int, key: str, steps: list[int]) -> tuple[np.ndarray, list[bool]]:
    """The values of a key at steps relative to t, the nearest where there is none; and where there is one."""
    values = {"observation": episode.observations, "action": episode.actions, "reward": episode.rewards}[key]
    last = episode.length - (key != "observation")
    near = [min(max(t + step, 0), last) for step in steps]
    mask = [place == t + step for place, step in zip(near, steps, strict=True)]
    return stacked([at(values, place) for place in near]), mask
