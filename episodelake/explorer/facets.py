"""Facets of a column: categories, or a histogram, with the SQL condition of each bar.

The bar of each episode is computed once, a byte each; then a filter costs one count per facet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from ..plugin import counted, literal
from ..readers.charts.bins import bins_for, usual_ends
from ..readers.charts.series import LARGEST
from .moments import NOTHING, text_of

_BINS = 24
_MOST_CATEGORIES = 8
_LONGEST = 40
#: Measures, whose range matters also where they have few values.
_MEASURES = ("episode_return", "length")


@dataclass(frozen=True, eq=False)
class Facet:
    """The bars of a column.

    Attributes:
        expression: the column in SQL; each condition of the facet begins with it.
        codes: uint8, shape (episodes,): the bar of each episode. The bars of the histogram come first.
        labels: of each bar.
        edges: the lower ends of the histogram's bars, and the largest value; empty without a histogram.
        others: the conditions of the bars behind the histogram, without the column.
        note: on values beyond the edges; empty if there are none.
    """

    expression: str
    codes: np.ndarray
    labels: tuple[str, ...]
    edges: tuple[float, ...]
    others: tuple[str, ...]
    note: str = ""

    @property
    def bins(self) -> int:
        """The number of bars of the histogram."""
        return max(len(self.edges) - 1, 0)

    @cached_property
    def totals(self) -> np.ndarray:
        """The episodes in each bar."""
        return np.bincount(self.codes, minlength=len(self.labels))

    def counts(self, kept: np.ndarray | None) -> np.ndarray:
        """Return the episodes in each bar, of those that a mask keeps; None keeps all."""
        return self.totals if kept is None else np.bincount(self.codes[kept], minlength=len(self.labels))

    def condition(self, first: int, last: int) -> str:
        """Return the SQL condition of a bar, or of neighbouring ones of the histogram.

        Raises:
            IndexError: there are no such bars.
        """
        if not 0 <= first <= last < (self.bins if first < self.bins else len(self.labels)):
            raise IndexError(f"bars {first} to {last} of {self.expression}")
        if first >= self.bins:
            return f"{self.expression} {self.others[first - self.bins]}"
        low, high = self._range(first, last)
        if isinstance(low, float) and last < self.bins - 1:
            return f"{self.expression} >= {exact_literal(low)} AND {self.expression} < {exact_literal(high)}"
        # The last bar has an end, since DuckDB takes NaN and infinity for larger than all numbers.
        between = (
            f"= {exact_literal(low)}"
            if low == high
            else f"BETWEEN {exact_literal(low)} AND {exact_literal(high)}"
        )
        return f"{self.expression} {between}"

    def _range(self, first: int, last: int) -> tuple[float, float]:
        """Return the ends of neighbouring bars of the histogram."""
        low, high = self.edges[first], self.edges[last + 1]
        return low, high - (isinstance(low, int) and last < self.bins - 1)

    def drawn(self, kept: np.ndarray | None, chips: Sequence[str]) -> dict[str, Any]:
        """Return what the page draws of the episodes that a mask keeps."""
        return {
            **{"bins": self.bins, "labels": self.labels, "note": self.note},
            "counts": self.counts(kept).tolist(),
            "totals": self.totals.tolist(),
            "pressed": [f"{self.expression} {other}" in chips for other in self.others],
            "ends": [list(map(text_of, self._range(bar, bar))) for bar in range(self.bins)],
        }


def facet_of(column: pl.Series, expression: str, labels: Mapping[str, str]) -> Facet:
    """Return the facet of a column of numbers, texts or booleans.

    Args:
        column: a value per episode.
        expression: the column in SQL.
        labels: of its texts, where they differ from these.
    """
    if column.dtype.is_decimal() or column.dtype == pl.Float32:
        # Otherwise DuckDB rounds the ends of bars to the type of the column.
        column, expression = column.cast(pl.Float64), f"{expression}::DOUBLE"
    plain = column.drop_nulls()
    if column.dtype.is_float():
        plain = plain.filter(plain.is_finite())
    many = column.name in _MEASURES or plain.n_unique() > _MOST_CATEGORIES
    if column.dtype.is_numeric() and many and len(plain):
        return _histogram(column, plain, expression)
    counts = plain.to_frame("value").group_by("value").agg(episodes=pl.len().cast(pl.Int64))
    most = counts.top_k(_MOST_CATEGORIES, by=["episodes", "value"], reverse=[False, True])
    order = ["value"] if column.dtype.is_numeric() else [-pl.col("episodes"), pl.col("value")]
    values = most.sort(order)["value"].to_list()
    texts = [text_of(labels.get(value, value), _LONGEST) for value in values]
    others = [f"= {exact_literal(value)}" for value in values]
    if len(counts) > len(values):
        texts.append("other")
        others.append(f"NOT IN ({', '.join(map(exact_literal, values))})")
    codes = column.replace_strict(values, range(len(values)), default=len(values), return_dtype=pl.UInt8)
    return _assembled(column, expression, codes.to_numpy(), texts, others)


def _histogram(column: pl.Series, plain: pl.Series, expression: str) -> Facet:
    """Count numbers in bars; the outer ones hold what is far from the others.

    Args:
        column: the numbers.
        plain: those that are finite, at least one.
        expression: the column in SQL.
    """
    numbers = plain.cast(pl.Float64).clip(-LARGEST, LARGEST).to_numpy()
    low, high = usual_ends(numbers)
    whole = column.dtype.is_integer()
    bins = bins_for(low, high, _BINS, whole=whole)
    shift = 0.5 if bins.whole else 0.0
    least: Any = plain.min()
    most: Any = plain.max()
    kind = int if whole else float
    inner: Any = [kind(float(f"{bins.edges(k)[0] + shift:.15g}")) for k in range(1, bins.count)]
    inner = [min(max(edge, least), most) for edge in inner]
    edges = (least, *inner, most)
    values = column.fill_null(0).to_numpy()
    codes = np.searchsorted(np.array(inner, values.dtype), values, side="right").astype(np.uint8)
    ends = [*inner, most] if not whole else [*(edge - 1 for edge in inner), most]
    labels = [
        text_of(a) if a == b else f"{text_of(a)} to {text_of(b)}" for a, b in zip(edges, ends, strict=False)
    ]
    beyond = int(((numbers < bins.edges(0)[0]) | (numbers > bins.edges(bins.count - 1)[1])).sum())
    note = f"outer bars: with {counted(beyond, 'value')} beyond {low:.6g} to {high:.6g}" if beyond else ""
    return _assembled(column, expression, codes, labels, [], edges, note)


def _assembled(
    column: pl.Series,
    expression: str,
    codes: np.ndarray,
    labels: list[str],
    others: list[str],
    edges: tuple[float, ...] = (),
    note: str = "",
) -> Facet:
    """Return a facet with bars for what has no place among its values."""
    special = {NOTHING: (column.is_null(), "IS NULL")}
    if column.dtype.is_float():
        special["NaN"] = column.is_nan(), "= 'nan'"
        special["inf"] = column == np.inf, "= 'inf'"
        special["-inf"] = column == -np.inf, "= '-inf'"
    codes = codes.copy()
    for label, (mask, condition) in special.items():
        if mask.any():
            codes[mask.fill_null(False).to_numpy()] = len(labels)
            labels, others = [*labels, label], [*others, condition]
    return Facet(expression, codes, tuple(labels), edges, tuple(others), note)


def exact_literal(value: Any) -> str:
    """Return a value in SQL, exactly."""
    if isinstance(value, str):
        return literal(value)
    if isinstance(value, float):
        text = f"{value:.15g}"
        # With an exponent it is a DOUBLE, without one a DECIMAL of these digits.
        return text if float(text) == value else f"{value!r}{'' if 'e' in repr(value) else 'e0'}"
    return str(value).lower()
