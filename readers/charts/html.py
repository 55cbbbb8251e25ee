"""HTML of cards: plain elements that read well without styles, with a few styles that suit any background.

Whatever comes from a store is escaped here, and nowhere else. Small charts are inline SVG, drawn without any
package.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ...store.common.optional_packages import require
from ...store.errors import MissingPackageError
from ..episode_data import EpisodeData
from ..pictures.video import make_video
from .signals import reduced
from .theme import PALETTE, plain

#: Colours are the surroundings' own, or greys that are seen on both white and black. Notebooks align the
#: cells of tables to the right by rules of a higher rank, hence the marks of importance.
STYLE = """<style>
.episodelake-card { font: 13px/1.45 system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif;
  max-width: 880px; border: 1px solid rgba(128,128,128,.35); border-radius: 8px; padding: 12px 16px; }
.episodelake-card .el-head { display: flex; gap: 10px; align-items: baseline; flex-wrap: wrap; }
.episodelake-card .el-head strong { font-size: 15px; }
.episodelake-card .el-dim { opacity: .68; overflow-wrap: anywhere; }
.episodelake-card .el-figures { display: flex; flex-wrap: wrap; gap: 6px 28px; margin: 10px 0 4px; }
.episodelake-card .el-figures b { display: block; font-size: 19px; font-weight: 600; line-height: 1.2; }
.episodelake-card .el-row { display: flex; flex-wrap: wrap; gap: 4px 32px; align-items: flex-start; }
.episodelake-card .el-part { margin-top: 10px; min-width: 0; }
.episodelake-card .el-part > .el-title { font-weight: 600; margin-bottom: 2px; }
.episodelake-card { text-align: left; }
.episodelake-card table { border-collapse: collapse; margin: 0; font-size: 12px; background: none; color:
inherit; } .episodelake-card th, .episodelake-card td { text-align: left !important;
  padding: 2px 14px 2px 0; border: 0;
background: none;
  font-variant-numeric: tabular-nums; vertical-align: middle; overflow-wrap: anywhere; max-width: 460px; }
.episodelake-card th { font-weight: 500; opacity: .68; }
.episodelake-card td.el-number, .episodelake-card th.el-number { text-align: right !important; }
.episodelake-card tr { background: none !important; }
.episodelake-card code { background: rgba(128,128,128,.14); border-radius: 4px; padding: 0 4px; color:
inherit;
  overflow-wrap: anywhere; }
.episodelake-card img { image-rendering: pixelated; border-radius: 4px; display: block; }
.episodelake-card figure { margin: 0; } .episodelake-card figcaption { font-size: 11px; opacity: .68; }
.episodelake-card svg { display: block; max-width: 100%; }
.episodelake-card .el-fault { border-left: 3px solid #e0524c; padding-left: 8px; }
</style>"""
_LONGEST = 400


def text(value: object, longest: int = _LONGEST) -> str:
    r"""Return a value as text of a page: escaped, without control characters, cut if it is long.

    >>> text("<b>&\x07")
    '&lt;b&gt;&amp; '
    """
    return html.escape(plain(value, longest), quote=True)


def code(value: object, longest: int = _LONGEST) -> str:
    """Return a value in the letters of code."""
    return f"<code>{text(value, longest)}</code>"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Return a table of cells that are HTML already.

    Args:
        headers: plain text; none of them for a table of names and values.
        rows: cells.
        numbers: the columns that are aligned to the right.
    """
    right = set(numbers)

    def cells(tag: str, values: Sequence[str]) -> str:
        marks = (' class="el-number"' if index in right else "" for index in range(len(values)))
        return "".join(f"<{tag}{mark}>{value}</{tag}>" for mark, value in zip(marks, values, strict=True))

    head = f"<thead><tr>{cells('th', [text(name) for name in headers])}</tr></thead>" if headers else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table>{head}<tbody>{body}</tbody></table>"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Return names with values that are HTML already."""
    return table((), ((f'<span class="el-dim">{text(name)}</span>', value) for name, value in pairs))


def figures(pairs: Iterable[tuple[str, str]]) -> str:
    """Return large figures: pairs of a plural noun and a value."""
    named = ((name.removesuffix("s") if value == "1" else name, value) for name, value in pairs)
    parts = (f"<span><b>{text(value)}</b> {text(name)}</span>" for name, value in named)
    return f'<div class="el-figures">{" ".join(parts)}</div>'


def part(title: str, body: str) -> str:
    """Return a part of a card under a title."""
    return f'<div class="el-part"><div class="el-title">{text(title)}</div>{body}</div>'


def row(parts: Iterable[str]) -> str:
    """Parts beside each other."""
    return f'<div class="el-row">{"".join(parts)}</div>'


def card(kind: str, name: str, more: str, body: str) -> str:
    """Return a card as HTML.

    Args:
        kind, name, more: its first line, plain text.
        body: HTML.
    """
    head = (
        f'<div class="el-head"><strong>{text(kind)}</strong> {code(name)} '
        f'<span class="el-dim">{text(more)}</span></div>'
    )
    return f'{STYLE}<div class="episodelake-card">{head}{body}</div>'


_FRAMES = 6
_FRAME_HEIGHT = 110


def shown_part(what: str, make: Callable[[], str]) -> str:
    """Return a part of a card, or its error as text: a damaged file must not stop a notebook."""
    try:
        return make()
    except Exception as error:
        reason = text(str(error) or type(error).__name__, 600)
        return f'<div class="el-part el-fault"><strong>{text(what)} cannot be shown.</strong> {reason}</div>'


def number(value: Any) -> str:
    """Return a number for people; NULL where there is none.

    >>> number(1234567), number(0.123456), number(None)
    ('1,234,567', '0.1235', 'NULL')
    """
    if value is None:
        return "NULL"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(number, value)) + "]"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Return a time for people: thousandths of a second below one second.

    >>> duration(0.0003), duration(0.25), duration(75.5)
    ('0.3 ms', '250 ms', '75.500 s')
    """
    return f"{seconds * 1000:.3g} ms" if 0 <= seconds < 0.9995 else f"{seconds:,.3f} s"


def frames_part(episode: EpisodeData, column: str, title: str) -> str:
    """Return some evenly spaced frames of an episode's images; a word where Pillow is not installed."""
    steps = np.unique(np.linspace(0, episode._observation_count - 1, _FRAMES).round().astype(int)).tolist()
    try:
        images: Any = require("PIL.Image", "Frames in a card")
    except MissingPackageError as error:
        return part(title, f'<span class="el-dim">{text(error)}</span>')
    pictures = []
    for t, frame in make_video(episode, steps, column, None, None, None):
        written = io.BytesIO()
        images.fromarray(frame).save(written, format="png")
        content = base64.b64encode(written.getvalue()).decode()
        pictures.append(
            f'<figure><img alt="frame {t}" height="{_FRAME_HEIGHT}" style="height:{_FRAME_HEIGHT}px" '
            f'src="data:image/png;base64,{content}">'
            f"<figcaption>t = {t:,}</figcaption></figure>"
        )
    return part(title, f'<div class="el-row" style="gap:6px 10px">{"".join(pictures)}</div>')


_PAD = 3.0
#: The width of a scale, and the size of its numbers.
_SCALE, _TEXT = 48, 10


def line_chart(
    values: np.ndarray, *, width: int = 260, height: int = 44, label: str = "", stepped: bool = False
) -> str:
    """Return a line over equal distances; it breaks where a value is not finite.

    Args:
        values: float64, shape (n,); long lines are drawn by the smallest and largest of equal stretches.
        width, height: in pixels.
        label: description for screen readers.
        stepped: hold each value until the next, and the last for a step.
    """
    finite = np.where(np.isfinite(values), values, np.nan)
    line = [(index, float(finite[index])) for index in reduced(finite, 2 * width).tolist()]
    if stepped and line:
        line.append((len(values), line[-1][1]))
    return lines_chart([line], width=width, height=height, label=label, stepped=stepped)


def lines_chart(
    lines: Sequence[Sequence[tuple[float, float]]],
    *,
    band: Sequence[tuple[float, float, float]] = (),
    width: int = 300,
    height: int = 80,
    label: str = "",
    stepped: bool = False,
    scale: bool = False,
    limits: tuple[float, float] | None = None,
) -> str:
    """Several lines on one scale, each in the colour of its number.

    Args:
        lines: pairs of a place, from 0, and a value; a line breaks where that is not finite.
        band: a place with the lowest and the highest value there, drawn behind the lines.
        width, height, label, stepped: as for `line_chart`.
        scale: write the lowest and the highest value of the scale beside it.
        limits: these; values beyond are at the edge. None for those of the lines and the band.
    """
    edge = [(x, low) for x, low, _ in band] + [(x, high) for x, _, high in reversed(band)]
    values = [np.array([value for _, value in line], np.float64) for line in (*lines, edge)]
    bottom, top = limits or span_of(values)
    count = max((place for line in lines for place, _ in line), default=0) + 1
    area = filter(None, _points(edge, count, bottom, top, width, height))
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in area)
    body = f'<polygon points="{corners}" fill="{PALETTE[0]}" fill-opacity="0.2"/>' if band else ""
    for index, line in enumerate(lines):
        points = _points(line, count, bottom, top, width, height)
        body += _line(points, _path(points, stepped=stepped), index)
    if not scale:
        return _svg(width, height, label, body)
    ticks = _scale_text(_SCALE - 4, _TEXT, "end", top) + _scale_text(_SCALE - 4, height - _PAD, "end", bottom)
    return _svg(width + _SCALE, height, label, f'{ticks}<g transform="translate({_SCALE})">{body}</g>')


def _scale_text(x: float, y: float, anchor: str, value: float) -> str:
    # Grey is readable on white and on black, also where the drawing is a picture of its own.
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{_TEXT}" '
        f'font-family="sans-serif" fill="#808080">{text(number(value))}</text>'
    )


def color_key(index: int) -> str:
    """Return a small square in the colour of a line, for words beside it."""
    return (
        '<span style="display:inline-block;width:9px;height:9px;border-radius:2px;'
        f'background:{PALETTE[index]}"></span>'
    )


def bar_chart(counts: Sequence[int], edges: tuple[float, float], *, label: str = "") -> str:
    """Bars beside each other, from 0, with the largest count and the values at both ends as a scale."""
    top = max([*counts, 1])
    width, height = 300, 80
    each = (width - 2 * _PAD) / max(len(counts), 1)
    bars = []
    for index, count in enumerate(counts):
        tall = (height - 2 * _PAD) * count / top
        # Small counts stay visible.
        tall = max(tall, 1.0) if count else 0.0
        bars.append(
            f'<rect x="{_SCALE + _PAD + index * each:.1f}" y="{height - _PAD - tall:.1f}" '
            f'width="{max(each - 1, 0.5):.1f}" height="{tall:.1f}" fill="{PALETTE[0]}"/>'
        )
    below = height + _TEXT
    bars += [
        _scale_text(_SCALE - 4, _TEXT, "end", top),
        _scale_text(_SCALE + _PAD, below, "start", edges[0]),
        _scale_text(_SCALE + width - _PAD, below, "end", edges[1]),
    ]
    return _svg(width + _SCALE, below + 4, label, "".join(bars))


def share_bar(share: float, color: str) -> str:
    """Return a part of a whole."""
    whole = '<rect width="90" height="10" rx="2" fill="#888" fill-opacity="0.18"/>'
    shown = f'<rect width="{max(90 * share, 1):.1f}" height="10" rx="2" fill="{color}"/>'
    return _svg(90, 10, f"{share:.1%}", whole + shown)


def span_of(lines: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the smallest and the largest finite value; 0 and 0 if there is none."""
    values = np.concatenate([each[np.isfinite(each)] for each in lines])
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)


def _points(
    kept: Sequence[tuple[float, float]], count: float, low: float, high: float, width: int, height: int
) -> list[tuple[float, float] | None]:
    """Return the positions of values in the drawing; None for a gap."""
    across = (width - 2 * _PAD) / max(count - 1, 1)
    points: list[tuple[float, float] | None] = []
    for place, value in kept:
        if not np.isfinite(value):
            points.append(None)
            continue
        # Halves first: the span of two finite numbers need not be finite.
        share = (min(max(value, low), high) / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5
        points.append((_PAD + place * across, height - _PAD - share * (height - 2 * _PAD)))
    return points


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
    """Return a path, and a dot for each point between two gaps, in the colour of a number."""
    stroke = f'fill="none" stroke="{PALETTE[index]}" stroke-width="1.5" stroke-linejoin="round"'
    line = f'<path d="{path}" {stroke}/>'
    for before, point, after in zip((None, *points), points, (*points[1:], None), strict=False):
        if point is not None and before is None and after is None:
            x, y = point
            line += f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{PALETTE[index]}"/>'
    return line


def _svg(width: int, height: int, label: str, body: str) -> str:
    title = f"<title>{text(label)}</title>" if label else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img">{title}{body}</svg>'
    )
