"""Learning curves: the median of episodes over training, and groups of runs with their spread.

Altair is imported by the first chart, so that a terminal can draw the numbers without it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...store.common.arguments import one_of, whole_number
from ..chart_session import ChartSession
from ..context import ReadContext
from ..formatting import counted
from .bins import usual_range
from .series import OVER, PLACED, Series, episode_series, place_values, values_of_episodes
from .theme import HEIGHT, WIDTH, shown

if TYPE_CHECKING:
    from .chart import AnyChart
    from .returns import Axes

STRETCHES = 100
MOST_SMOOTH = 50
BANDS = ("episodes", "runs")
_SMALLEST = 8
_KEY = ("series", "panel")
_DRAWS = 1_000
_INTERVAL = (2.5, 97.5)
#: The share of a band's stretches that may leave the axis on each side.
_OUTSIDE = 0.1
_WORDS = {
    "episodes": "line: {} of the episodes, band: {}",
    "runs": "line: interquartile mean of the runs' {}s, band: 95 % of it by bootstrap over runs",
}
#: The band of each middle. The median of values such as 0 and 1 says little: their mean is a rate.
_MIDDLES = {"median": "10 % to 90 %", "mean": "95 % interval of it (the values are only two)"}
#: Of a normal distribution, for 95 %.
_DEVIATIONS = 1.959964


def learning_curves(
    context: ReadContext, what: str, over: str, by: str | None, smooth: int, band: str
) -> tuple[Series, pl.DataFrame]:
    """Return the curves of `Plots.learning_curve`.

    Returns:
        The series with their `middle`, and a row for each of their stretches: series, panel, x (mean of what
        `over` counts; of "time" in ms), value, low and high (the band), episodes and runs (counts), ordered
        by the first three.
    """
    one_of("over", over, OVER)
    one_of("what", what, values_of_episodes(context.snapshot))
    one_of("band", band, BANDS)
    whole_number("smooth", smooth, 0, MOST_SMOOTH)
    with ChartSession(context, steps=False) as bench:
        series = episode_series(bench, what, by, finished=True)
        several = band == "runs"
        shared = "n // runs" if several else "n"
        # Enough episodes in each stretch that an outlier does not move the median.
        place_values(
            bench, OVER[over][0], f"greatest(least({shared} // {_SMALLEST}, {STRETCHES}), least({shared}, 5))"
        )
        (values,) = bench.rows(
            f"SELECT min(value) AS low, max(value) AS high, count(DISTINCT value) AS n FROM {PLACED}"
        )
        if values["n"] == 2:
            series = replace(series, middle="mean")
        if several:
            return series, _of_runs(bench, smooth, series.middle)
        curves = _of_episodes(bench, series.middle)
        if values["n"] == 2:
            curves = _with_interval(curves, values["low"], values["high"])
        return series, _smoothed(curves, ["value", "low", "high"], _KEY, smooth)


def _of_episodes(bench: ChartSession, middle: str) -> pl.DataFrame:
    """Median or mean, 10 % and 90 % of the episodes of each stretch."""
    values = bench.table(
        f"SELECT series, panel, avg(x)::DOUBLE AS x, {middle}(value) AS value, "
        "quantile_cont(value, 0.1) AS low, quantile_cont(value, 0.9) AS high, "
        "count(*) AS episodes, count(DISTINCT run_id) AS runs "
        f"FROM {PLACED} GROUP BY series, panel, place ORDER BY series, panel, x"
    )
    return pl.DataFrame(values)


def _with_interval(curves: pl.DataFrame, least: float, most: float) -> pl.DataFrame:
    """Return means of two values with Wilson's interval of their rate in place of the quantiles."""
    rate, n, square = (pl.col("value") - least) / (most - least), pl.col("episodes"), _DEVIATIONS**2
    centre = (rate + square / (2 * n)) / (1 + square / n)
    half = _DEVIATIONS / (1 + square / n) * (rate * (1 - rate) / n + square / (4 * n**2)).sqrt()
    low, high = (least + each * (most - least) for each in (centre - half, centre + half))
    return curves.with_columns(low=low, high=high)


def _smoothed(frame: pl.DataFrame, columns: list[str], key: tuple[str, ...], smooth: int) -> pl.DataFrame:
    """Return the columns as means of so many neighbours on each side; at the ends of those that there are."""
    means = pl.col(columns).rolling_mean(2 * smooth + 1, min_samples=1, center=True).over(key)
    return frame.with_columns(means) if smooth else frame


def _of_runs(bench: ChartSession, smooth: int, middle: str) -> pl.DataFrame:
    """Interquartile mean of the runs of each series, with an interval by bootstrap."""
    medians = bench.table(
        f"SELECT series, panel, place, run_id, sum(x)::DOUBLE AS x, {middle}(value) AS value, "
        f"count(*) AS episodes FROM {PLACED} GROUP BY ALL ORDER BY series, panel, run_id, place"
    )
    frame = _smoothed(pl.DataFrame(medians), ["value"], (*_KEY, "run_id"), smooth)
    stretches = frame.group_by(*_KEY, "place").agg(
        x=pl.col("x").sum() / pl.col("episodes").sum(),
        episodes=pl.col("episodes").sum(),
        runs=pl.len(),
        values=pl.col("value").sort_by("run_id"),
        # Stretches of the same runs are drawn together, so that a resampled run is one over all of them.
        runs_key=pl.col("run_id").sort().str.join("\n"),
    )
    parts = [_banded(part) for _, part in stretches.group_by(*_KEY, "runs_key")]
    return pl.concat(parts).drop("runs_key", "values").sort(*_KEY, "x")


def _banded(part: pl.DataFrame) -> pl.DataFrame:
    low, value, high = interquartile_band(np.array(part["values"].to_list()).T)
    return part.with_columns(value=pl.Series(value), low=pl.Series(low), high=pl.Series(high))


def interquartile_band(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the interquartile mean of runs, and a 95 % interval of it by bootstrap over runs.

    Args:
        values: shape (runs, stretches).

    Returns:
        Lower end, mean, and upper end, each of shape (stretches,). Of a single run all three are its values.
    """
    draws = np.random.default_rng(0).integers(0, len(values), (_DRAWS, len(values)))
    low, high = np.percentile(interquartile_mean(values[draws]), _INTERVAL, axis=0)
    return low, interquartile_mean(values), high


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over the last but one axis without the lowest and the highest quarter."""
    cut = values.shape[-2] // 4
    ordered = np.sort(values, axis=-2)
    return ordered[..., cut : values.shape[-2] - cut, :].mean(axis=-2)


def draw_learning_curve(
    context: ReadContext, what: str, over: str, by: str | None, smooth: int, band: str
) -> AnyChart:
    """Return the chart; see `Plots.learning_curve`."""
    import altair as alt

    from .chart import finished, only, stacked, title_of
    from .returns import Axes, Shape

    series, curves = learning_curves(context, what, over, by, smooth, band)
    rows = curves.to_dicts()
    legend = alt.selection_point(fields=["series"], bind="legend", name="legend")
    limits = {panel: _limits(only(rows, panel)) for panel in series.panels}
    limits = {panel: (low, high) for panel, (low, high) in limits.items() if low < high}
    shape = Shape(STRETCHES, "clipped", limits)
    panels = [
        _panel(Axes(series, what, over, panel, shape), legend, only(rows, panel)) for panel in series.panels
    ]
    smoothed = f"; mean of {2 * smooth + 1} neighbouring stretches" if smooth else ""
    words = _WORDS[band].format(series.middle, _MIDDLES[series.middle])
    subtitle = [f"{counted(series.count, 'value')}; {words}{smoothed}", *series.notes]
    return finished(
        stacked(panels), f"{shown(what).capitalize()} over training by {title_of(series.by)}", subtitle
    )


def _panel(axes: Axes, legend: Any, rows: list[dict[str, Any]]) -> Any:
    import altair as alt

    from .chart import title_of, tooltip_of, values_of

    seen = alt.when(legend)
    base = alt.Chart(values_of(rows))
    band = base.mark_area(clip=True).encode(
        axes.x,
        axes.y("low"),
        alt.Y2("high:Q"),
        axes.color,
        opacity=seen.then(alt.value(0.16)).otherwise(alt.value(0.02)),
    )
    line = base.mark_line(strokeWidth=2, clip=True).encode(
        axes.x,
        axes.y("value"),
        axes.color,
        opacity=seen.then(alt.value(1)).otherwise(alt.value(0.08)),
        tooltip=tooltip_of(
            *(("series", title_of(axes.series.by)), ("value", axes.what)),
            *(("episodes", "episodes"), ("runs", "runs")),
        ),
    )
    zoom = alt.selection_interval(bind="scales", name="zoom")
    return alt.layer(band, line.add_params(legend, zoom)).properties(width=WIDTH, height=HEIGHT)


def _limits(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Return an axis for all lines, and for the bands but the widest few, which end at its edge."""
    values, low, high = (np.array([row[name] for row in rows]) for name in ("value", "low", "high"))
    least = np.quantile(low, _OUTSIDE, method="higher")
    most = np.quantile(high, 1 - _OUTSIDE, method="lower")
    ends = usual_range(float(low.min()), float(high.max()), (float(least), float(most)))
    return min(float(values.min()), ends[0]), max(float(values.max()), ends[1])
