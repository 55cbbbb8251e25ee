"""Histograms: the edges of bins, and how many values of each series are in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..chart_session import ChartSession
from ..formatting import counted
from ..sql.text import literal
from .series import DRAWN, FITS

#: An axis ends before outliers only if without them it covers less than this share of the whole.
_FLAT = 1 / 3
#: Quantiles of more values are those of a sample.
_SAMPLE = 1_000_000
#: The median of so many episodes is no outlier.
_SOLID = 5


@dataclass(frozen=True)
class Bins:
    """Equal stretches of an axis.

    Attributes:
        start: where the first begins.
        width: of each.
        count: how many.
        whole: whether each is one whole number, in its middle.
    """

    start: float
    width: float
    count: int
    whole: bool

    def sql(self, value: str) -> str:
        """Return SQL for the index of the bin that a value belongs to."""
        place = f"floor({value} / {self.width!r} - {self.start / self.width!r})"
        return f"least(greatest({place}, 0), {self.count - 1})::INT"

    def edges(self, index: int) -> tuple[float, float]:
        """Return where a stretch begins and ends."""
        return self.start + index * self.width, self.start + (index + 1) * self.width

    def label(self, index: int) -> str:
        """Return a stretch in words: its number, or from where to where."""
        low, high = self.edges(index)
        return f"{(low + high) / 2:g}" if self.whole else f"{low:.6g} to {high:.6g}"


def bins_for(low: float, high: float, about: int, *, whole: bool) -> Bins:
    """Stretches that cover values from `low` to `high`.

    Args:
        low, high: finite, at most 1e300 from zero.
        about: how many there should be; round edges make it a few more or less.
        whole: whether all values are whole numbers.

    >>> bins_for(0.0, 3.0, 40, whole=True)
    Bins(start=-0.5, width=1.0, count=4, whole=True)
    >>> bins_for(0.0, 0.98, 10, whole=False)
    Bins(start=0.0, width=0.1, count=10, whole=False)
    """
    if whole and high - low < about and abs(low) < 2**52:
        return Bins(low - 0.5, 1.0, int(high - low) + 1, True)
    span = high - low
    if span <= max(abs(low), abs(high)) * 1e-12:
        span = abs(low) or 1.0
        low, high = low - span / 2, high + span / 2
    width = _round(span / about)
    if whole:
        width = max(1.0, width)
    start = math.floor(low / width) * width
    count = max(1, math.floor((high - start) / width) + 1)
    if count > 1 and start + (count - 1) * width >= high:
        count -= 1
    return Bins(start, width, count, False)


def _round(width: float) -> float:
    """Return the next number that is 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(width))
    for step in (1, 2, 5, 10):
        if width <= step * power * (1 + 1e-9):
            return step * power
    return 10 * power


def usual_range(low: float, high: float, inner: Sequence[float]) -> tuple[float, float]:
    """Return where an axis ends that a few outliers do not flatten; the extremes where there are none.

    Args:
        low, high: the extremes.
        inner: the values at `_inner`.

    >>> usual_range(0.0, 1e30, (0.0, 6.0))
    (0.0, 9.0)
    >>> usual_range(0.0, 20.0, (1.0, 13.0))
    (0.0, 20.0)
    """
    least, most = inner
    room = most / 2 - least / 2
    near = max(low, least - room), min(high, most + room)
    return near if 0 < near[1] / 2 - near[0] / 2 < _FLAT * (high / 2 - low / 2) else (low, high)


def _inner(count: int) -> list[float]:
    """Return the quantiles, as of `quantile_disc`, that have all values but a few on each side between them.

    Few are 2 %, or up to four values, but no more than a tenth.
    """
    few = max(count // 50, min(4, count // 10))
    return [(few + 0.5) / count, (count - few - 0.5) / count]


def usual_ends(values: np.ndarray) -> tuple[float, float]:
    """Return the `usual_range` of finite values, shape (n,) with n at least 1."""
    inner = np.quantile(values, _inner(len(values)), method="inverted_cdf").tolist()
    return usual_range(float(values.min()), float(values.max()), inner)


def beyond_note(count: int, what: str, ends: tuple[float, float]) -> str:
    """Return a note on values outside an axis; empty if there are none.

    >>> beyond_note(4, "value", (0, 9.5))
    '4 values beyond 0 to 9.5'
    """
    return f"{counted(count, what)} beyond {ends[0]:.6g} to {ends[1]:.6g}" if count else ""


@dataclass(frozen=True)
class Values:
    """Numbers of a table that an axis shows.

    Attributes:
        bench: with the table.
        value: SQL for a DOUBLE.
        table: its name.
        where: a condition that leaves finite numbers, at most 1e300 from zero.
    """

    bench: ChartSession
    value: str
    table: str
    where: str

    def _ask(self, columns: str, where: str = "true") -> dict[str, Any]:
        (row,) = self.bench.rows(f"SELECT {columns} FROM {self.table} WHERE {self.where} AND {where}")
        return row

    @cached_property
    def facts(self) -> dict[str, Any]:
        """count, low, high (None without values), and whole: whether all are whole numbers."""
        value = self.value
        return self._ask(
            f"count(*) AS count, min({value}) AS low, max({value}) AS high, "
            f"bool_and({value} = round({value})) AS whole"
        )

    def usual_ends(self) -> tuple[float, float]:
        """Return the `usual_range`; of many values, by the quantiles of a sample that is always the same."""
        facts = self.facts
        every = -(-facts["count"] // _SAMPLE)
        sample = "true" if every == 1 else f"hash(episode_id, {self.value}) % {every} = 0"
        count = facts["count"] if every == 1 else self._ask("count(*) AS n", sample)["n"]
        inner = self._ask(f"quantile_disc({self.value}, {_inner(count)}) AS ends", sample)["ends"]
        return usual_range(facts["low"], facts["high"], inner)

    def beyond(self, ends: tuple[float, float]) -> int:
        """Return how many values are outside an axis."""
        facts = self.facts
        if ends[0] <= facts["low"] and facts["high"] <= ends[1]:
            return 0
        return self._ask("count(*) AS n", f"NOT {self.value} BETWEEN {ends[0]!r} AND {ends[1]!r}")["n"]

    def binned(self, about: int, *, clip: bool = True) -> Binned:
        """Return about so many bins; `clip` ends them where a few values are far from the others."""
        facts = self.facts
        low, high = self.usual_ends() if clip else (facts["low"], facts["high"])
        bins = bins_for(low, high, about, whole=facts["whole"])
        ends = max(bins.edges(0)[0], facts["low"]), min(bins.edges(bins.count - 1)[1], facts["high"])
        note = beyond_note(self.beyond(ends), "value", ends)
        return Binned(bins, ends, note and f"outer bars: with {note}")


@dataclass(frozen=True)
class Binned:
    """The bins of an axis.

    Attributes:
        bins: the first and the last also hold the values beyond them.
        ends: the lowest and the highest value in them, without those beyond.
        note: on the values beyond; empty if there are none.
    """

    bins: Bins
    ends: tuple[float, float]
    note: str = ""


def panel_values(bench: ChartSession, panel: str, table: str = DRAWN) -> Values:
    """Return the values of a panel of the view `DRAWN` or `VALUED`."""
    return Values(bench, "value", table, f"panel = {literal(panel)} AND {FITS}")


def line_ends(bench: ChartSession, panel: str, table: str = DRAWN) -> tuple[tuple[float, float], str]:
    """Return where the axis of lines over time ends, and a note on outliers.

    The medians of neighbouring episodes are on it: the last ones of a training that succeeds late are no
    outliers.

    Args:
        bench: of the view.
        panel: one of the table.
        table: with the columns series, panel, value and number.
    """
    values = panel_values(bench, panel, table)
    ends, extremes = values.usual_ends(), (values.facts["low"], values.facts["high"])
    if ends == extremes:
        return ends, ""
    size = max(values.facts["count"] // 100, 10)
    (medians,) = bench.rows(
        "SELECT min(median) AS low, max(median) AS high FROM (SELECT median(value) AS median FROM "
        "(SELECT series, value, row_number() OVER (PARTITION BY series ORDER BY number DESC) - 1 AS back "
        f"FROM {table} WHERE {values.where}) GROUP BY series, back // {size} "
        f"HAVING count(*) >= {_SOLID})"
    )
    if medians["low"] is not None:
        ends = min(ends[0], medians["low"]), max(ends[1], medians["high"])
    return ends, beyond_note(values.beyond(ends), "value", ends)


def count_bins(
    bench: ChartSession, panel: str, about: int, table: str = DRAWN, *, clip: bool = True
) -> tuple[Binned, list[dict[str, Any]]]:
    """Count the episodes in each bin of a histogram, by series.

    Args:
        bench, panel, table: as for `panel_values`.
        about, clip: as for `Values.binned`.

    Returns:
        The bins, and rows of series, panel, bin, episodes (count) and share (of the series).
    """
    values = panel_values(bench, panel, table)
    binned = values.binned(about, clip=clip)
    rows = bench.rows(
        f"SELECT series, panel, {binned.bins.sql('value')} AS bin, count(*) AS episodes, "
        f"count(*) / sum(count(*)) OVER (PARTITION BY series) AS share FROM {table} WHERE {values.where} "
        "GROUP BY series, panel, bin ORDER BY bin, series"
    )
    return binned, rows
