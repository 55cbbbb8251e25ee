"""Plain loops over the rewards of one episode, to compare macros and Polars expressions with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def returns_to_go(rewards: Sequence[float | None], gamma: float) -> list[Any]:
    """`R_t = r_t + gamma * R_(t+1)`, from the end; with gamma 0 nothing that follows counts.

    None counts as 0, and stays None.
    """
    total, sums = 0.0, []
    for reward in reversed(rewards):
        total = (0.0 if reward is None else reward) + (gamma * total if gamma else 0.0)
        sums.append(None if reward is None else total)
    return sums[::-1]


def n_step_returns(rewards: Sequence[float | None], n: int, gamma: float) -> list[Any]:
    """The discounted sum of each reward and the n - 1 after it; None as in `returns_to_go`."""
    return [
        None
        if rewards[t] is None
        else sum(
            gamma**ahead * (rewards[t + ahead] or 0.0)
            for ahead in range(min(n, len(rewards) - t))
            if gamma or not ahead
        )
        for t in range(len(rewards))
    ]


def close(found: float | None, wanted: float | None, scale: float = 1.0) -> bool:
    """Whether two numbers are the same but for rounding, beside numbers of a certain size."""
    if found is None or wanted is None:
        return found is wanted
    if math.isfinite(found) and math.isfinite(wanted):
        return abs(found - wanted) <= 1e-11 * max(scale, abs(wanted))
    return found == wanted or (math.isnan(found) and math.isnan(wanted))
