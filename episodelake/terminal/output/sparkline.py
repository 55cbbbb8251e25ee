"""Sparklines: a series of numbers as one line of characters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

BLOCKS = "▁▂▃▄▅▆▇█"
#: For terminals that lack these.
ASCII = "_.:-=+*#"
#: Draws NaN and infinities.
ODD = "x"


@dataclass(frozen=True)
class Line:
    """The cell of a table that is drawn as a sparkline.

    Attributes:
        values: shape (n,).
        span: the values at the bottom and the top; None for the smallest and the largest mean.
    """

    values: np.ndarray
    span: tuple[float, float] | None = None


def span_of(series: Iterable[np.ndarray]) -> tuple[float, float] | None:
    """Return the lowest and the highest finite value of all series; None where there is none."""
    values = np.concatenate([np.zeros(0), *series])
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if len(finite) else None


def sparkline(line: Line, width: int, levels: str = BLOCKS) -> str:
    """Draw a series as one line of at most `width` characters.

    A longer series is drawn as means of equal stretches. NaN and infinities are marked; a constant series
    is a line at half height.

    >>> sparkline(Line(np.arange(8.0)), 8)
    '▁▂▃▄▅▆▇█'
    """
    values = line.values.astype(np.float64)
    if len(values) > width:
        values = np.array([_finite_mean(part) for part in stretches(values, width)])
    low, high = line.span or span_of([values]) or (0.0, 0.0)
    top = len(levels) - 1
    if low == high:
        shares = np.where(np.isfinite(values), 0.45, np.nan)
    else:
        # Halves first: the span of two finite numbers need not be finite.
        shares = (np.clip(values, low, high) / 2 - low / 2) / (high / 2 - low / 2)
    shares[~np.isfinite(values)] = np.nan
    return "".join(ODD if np.isnan(share) else levels[round(share * top)] for share in shares.tolist())


def stretches(values: np.ndarray, count: int) -> list[np.ndarray]:
    """Cut a series into stretches that are as equal, and as evenly spread, as its length allows."""
    return np.split(values, np.linspace(0, len(values), count + 1).astype(int)[1:-1])


def _finite_mean(values: np.ndarray) -> float:
    kept = values[np.isfinite(values)]
    # Divided first, so that the sum of large numbers stays finite.
    return float((kept / len(kept)).sum()) if len(kept) else float("nan")
