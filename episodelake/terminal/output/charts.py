"""Charts made of characters: sparklines and histograms for the terminal, from numpy arrays to text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Glyphs:
    """The characters that charts are drawn with.

    Attributes:
        levels: from the lowest mark to a full cell.
        rule: draws a base line.
        cut: stands where text was left out.
        odd: stands for NaN and infinities.
    """

    levels: str
    rule: str
    cut: str
    odd: str


BLOCKS = Glyphs("▁▂▃▄▅▆▇█", "─", "…", "x")
BLOCKS_PLAIN = Glyphs("▁▂▃▄▅▆▇█", "-", "…", "x")
ASCII = Glyphs("_.:-=+*#", "-", "~", "x")


@dataclass(frozen=True)
class Histogram:
    """Histograms of several series over one axis.

    Attributes:
        bars: for each series its lines, from the top down, all of the chart's width.
        axis: the labels below the bars.
        highest: for each series how often its most frequent bar occurs.
        counts: for each series the line of how often each bar occurs; empty where bars are too narrow.
    """

    bars: Mapping[str, tuple[str, ...]]
    axis: str
    highest: Mapping[str, int]
    counts: Mapping[str, str]


def means(values: np.ndarray, width: int) -> np.ndarray:
    """Return a series as at most `width` means of equal stretches; NaN where they have no finite value."""
    if len(values) > width:
        values = np.array([_finite_mean(part) for part in stretches(values, width)])
    return values.astype(np.float64)


def sparkline(
    values: np.ndarray, width: int, glyphs: Glyphs = BLOCKS, span: tuple[float, float] | None = None
) -> str:
    """Draw a series as one line of at most `width` characters.

    A longer series is drawn as means of equal stretches. NaN and infinities are marked; a constant series
    is a line at half height.

    Args:
        values: shape (n,).
        width: in characters.
        glyphs: what to draw with.
        span: the values at the bottom and the top; None for the smallest and the largest mean.

    >>> sparkline(np.arange(8.0), 8)
    '▁▂▃▄▅▆▇█'
    """
    values = means(values, width)
    finite = np.isfinite(values)
    if not finite.any():
        return glyphs.odd * len(values)
    low, high = span or (values[finite].min(), values[finite].max())
    top = len(glyphs.levels) - 1
    if low == high:
        steps = np.full(len(values), top // 2)
    else:
        # Halves first: the span of two finite numbers need not be finite.
        shares = (np.where(finite, values, low) / 2 - low / 2) / (high / 2 - low / 2)
        steps = np.rint(shares * top).astype(int)
    return "".join(
        glyphs.levels[step] if seen else glyphs.odd for step, seen in zip(steps, finite, strict=True)
    )


def stretches(values: np.ndarray, count: int) -> list[np.ndarray]:
    """Cut a series into stretches that are as equal, and as evenly spread, as its length allows."""
    return np.split(values, np.linspace(0, len(values), count + 1).astype(int)[1:-1])


def _finite_mean(values: np.ndarray) -> float:
    kept = values[np.isfinite(values)]
    # Divided first, so that the sum of large numbers stays finite.
    return float((kept / len(kept)).sum()) if len(kept) else float("nan")


def histogram(series: Mapping[str, np.ndarray], width: int, height: int, glyphs: Glyphs) -> Histogram:
    """Draw how often each value occurs, one set of bars per series, all over the same axis.

    Each series is scaled to its own highest bar. A few whole numbers get one wide bar each.

    Args:
        series: values by name, each of shape (n,), n >= 1, finite.
        width, height: of each set of bars, in characters.
        glyphs: what to draw with.
    """
    together = np.concatenate(list(series.values()))
    low, high = float(together.min()), float(together.max())
    widest = max(3, *(len(text) for text in (f"{low:g}", f"{high:g}", f"{len(together):,}"))) + 1
    whole = bool((together == np.rint(together)).all()) and (high - low + 1) * widest <= width
    if whole:
        count = int(high - low) + 1
        cell = min(width // count, 16)
        edges = np.arange(count + 1) + (low - 0.5)
        labels = [f"{value:g}".center(cell) for value in np.arange(count) + low]
        axis = "".join(labels).rstrip()
    else:
        cell, edges = 1, np.linspace(low, high, width + 1)
        axis = _axis(low, high, width)
    occurrences = {name: np.histogram(values, edges)[0] for name, values in series.items()}
    return Histogram(
        bars={name: _bars(counts, cell, height, glyphs) for name, counts in occurrences.items()},
        axis=axis,
        highest={name: int(counts.max()) for name, counts in occurrences.items()},
        counts={name: _count_line(counts, cell) if whole else "" for name, counts in occurrences.items()},
    )


def _count_line(counts: np.ndarray, cell: int) -> str:
    return "".join((f"{count:,}" if count else "").center(cell) for count in counts.tolist()).rstrip()


def _bars(counts: np.ndarray, cell: int, height: int, glyphs: Glyphs) -> tuple[str, ...]:
    top = len(glyphs.levels)
    marks = np.ceil(counts / max(counts.max(), 1) * height * top).astype(int)
    gap = 1 if cell >= 4 else 0
    lines = []
    for row in range(height - 1, -1, -1):
        filled = np.clip(marks - row * top, 0, top)
        glyph_of = [" " if mark == 0 else glyphs.levels[mark - 1] for mark in filled]
        lines.append("".join(" " * gap + glyph * (cell - 2 * gap) + " " * gap for glyph in glyph_of))
    return tuple(lines)


def _axis(low: float, high: float, width: int) -> str:
    """Return the smallest, the middle (where it fits) and the largest value, at their places."""
    left, middle, right = (f"{value:.6g}" for value in (low, (low + high) / 2, high))
    if len(left) + len(middle) + len(right) + 4 > width:
        middle = ""
    line = left.ljust((width - len(middle)) // 2) + middle
    return line + right.rjust(width - len(line))
