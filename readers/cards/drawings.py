"""Small charts as inline SVG, drawn without any package, in colours that suit any background."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..plots.theme import PALETTE
from ..signals import reduced
from .html import text

_PAD = 3.0


def line_chart(
    values: np.ndarray, *, width: int = 260, height: int = 44, label: str = "", stepped: bool = False
) -> str:
    """Return a line over equal distances; it breaks where a value is not finite.

    Args:
        values: float64, shape (n,); long lines are drawn by the smallest and largest of equal stretches.
        width, height: in pixels.
        label: description for screen readers.
        stepped: hold each value until the next.
    """
    low, high = span_of([values])
    # The last of stepped values lasts one step more.
    points = _points(_kept(values, width), len(values) + stepped, low, high, width, height)
    path = _path(points, stepped=stepped)
    if stepped and points and points[-1] is not None:
        path += f"H{width - _PAD:.1f}"
    return _svg(width, height, label, _line(points, path, 0))


def band_chart(
    middle: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    *,
    width: int = 300,
    height: int = 80,
    label: str = "",
) -> str:
    """Return a line with a band around it."""
    bottom, top = span_of([low, high, middle])
    count = len(middle)
    upper, lower, line = (
        _points(list(enumerate(each)), count, bottom, top, width, height) for each in (high, low, middle)
    )
    edge = [point for point in (*upper, *reversed(lower)) if point is not None]
    area = " ".join(f"{x:.1f},{y:.1f}" for x, y in edge)
    return _svg(
        width,
        height,
        label,
        f'<polygon points="{area}" fill="{PALETTE[0]}" fill-opacity="0.2"/>'
        f'<path d="{_path(line)}" {_stroke(0)}/>',
    )


def lines_chart(
    lines: Sequence[Sequence[tuple[float, float]]], *, width: int = 300, height: int = 80, label: str = ""
) -> str:
    """Several lines on one scale, each in the colour of its number.

    Args:
        lines: pairs of a place, from 0, and a finite value; at least one in each.
    """
    bottom, top = span_of([np.array([value for _, value in line]) for line in lines])
    count = max(place for line in lines for place, _ in line) + 1
    body = ""
    for index, line in enumerate(lines):
        points = _points(line, count, bottom, top, width, height)
        body += _line(points, _path(points), index)
    return _svg(width, height, label, body)


def color_key(index: int) -> str:
    """Return a small square in the colour of a line, for words beside it."""
    return (
        '<span style="display:inline-block;width:9px;height:9px;border-radius:2px;'
        f'background:{PALETTE[index]}"></span>'
    )


def bar_chart(counts: Sequence[int], *, width: int = 300, height: int = 80, label: str = "") -> str:
    """Bars beside each other, from 0."""
    top = max([*counts, 1])
    each = (width - 2 * _PAD) / max(len(counts), 1)
    bars = []
    for index, count in enumerate(counts):
        tall = (height - 2 * _PAD) * count / top
        # Small counts stay visible.
        tall = max(tall, 1.0) if count else 0.0
        bars.append(
            f'<rect x="{_PAD + index * each:.1f}" y="{height - _PAD - tall:.1f}" '
            f'width="{max(each - 1, 0.5):.1f}" height="{tall:.1f}" fill="{PALETTE[0]}"/>'
        )
    return _svg(width, height, label, "".join(bars))


def share_bar(share: float, color: str, width: int = 90) -> str:
    """Return a part of a whole."""
    return _svg(
        width,
        10,
        f"{share:.1%}",
        f'<rect width="{width}" height="10" rx="2" fill="#888" fill-opacity="0.18"/>'
        f'<rect width="{max(width * share, 1):.1f}" height="10" rx="2" fill="{color}"/>',
    )


def span_of(lines: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the smallest and the largest finite value; 0 and 0 if there is none."""
    values = np.concatenate([each[np.isfinite(each)] for each in lines])
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)


def _kept(values: np.ndarray, width: int) -> list[tuple[int, float]]:
    """Return the points of a line that are drawn: pairs of an index and a value."""
    finite = np.where(np.isfinite(values), values, np.nan)
    return [(index, float(finite[index])) for index in reduced(finite, 2 * width).tolist()]


def _points(
    kept: Sequence[tuple[float, float]], count: float, low: float, high: float, width: int, height: int
) -> list[tuple[float, float] | None]:
    """Return where values stand in the drawing; None for a gap."""
    across = (width - 2 * _PAD) / max(count - 1, 1)
    found: list[tuple[float, float] | None] = []
    for place, value in kept:
        if not np.isfinite(value):
            found.append(None)
            continue
        # Halves first: the span of two finite numbers need not be finite.
        share = (value / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5
        found.append((_PAD + place * across, height - _PAD - share * (height - 2 * _PAD)))
    return found


def _path(points: Sequence[tuple[float, float] | None], *, stepped: bool = False) -> str:
    parts, open_line = [], False
    for point in points:
        if point is None:
            open_line = False
            continue
        x, y = point
        if not open_line:
            parts.append(f"M{x:.1f} {y:.1f}")
        elif stepped:
            parts.append(f"H{x:.1f}V{y:.1f}")
        else:
            parts.append(f"L{x:.1f} {y:.1f}")
        open_line = True
    return "".join(parts)


def _line(points: Sequence[tuple[float, float] | None], path: str, index: int) -> str:
    """Return a path, and a dot for a single point, in the colour of a number."""
    line = f'<path d="{path}" {_stroke(index)}/>'
    if len(points) != 1 or points[0] is None:
        return line
    x, y = points[0]
    return f'{line}<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{PALETTE[index]}"/>'


def _stroke(index: int) -> str:
    return f'fill="none" stroke="{PALETTE[index]}" stroke-width="1.5" stroke-linejoin="round"'


def _svg(width: int, height: int, label: str, body: str) -> str:
    told = f"<title>{text(label)}</title>" if label else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img">{told}{body}</svg>'
    )
