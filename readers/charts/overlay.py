"""Episodes over each other: their signals on one axis, aligned, with the first step at which they differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any

import altair as alt
import numpy as np

from ...store.errors import NothingToDrawError
from ..chart_session import ChartSession
from ..context import ReadContext
from ..episode_data import EpisodeData
from ..formatting import counted
from ..sql.session import QuerySession
from .chart import AnyChart, color_channel, finished, stacked, tooltip_of, values_of
from .episode_chart import chosen_signals, signal_labels
from .signals import Signal, reduced
from .theme import WIDTH, shown

MOST_EPISODES = 24
MOST_PANELS = 8
_MOST_STEPS = 1_000
_HEIGHT = 90
#: More of the name of a run has no room in a legend.
_LONGEST_NAME = 14
START, END = "start", "end"


def draw_overlay(
    context: ReadContext, episodes: Iterable[EpisodeData], wanted: Sequence[str] | None, align: str
) -> AnyChart:
    """Return the chart; see `Plots.overlay`."""
    ChartSession.check_any(context)
    some = list(islice(iter(episodes), MOST_EPISODES))
    zeros = _zeros(context, some, align)
    aligned = {episode.id: chosen_signals(episode, wanted) for episode in some if episode.id in zeros}
    if not aligned:
        raise NothingToDrawError(f"There is nothing to draw: {align!r} holds in no step of these episodes.")
    names = list(dict.fromkeys(signal.name for signals in aligned.values() for signal in signals))
    drawn = names[:MOST_PANELS]
    split = _divergence(aligned, zeros, drawn)
    with ChartSession(context, steps=False) as bench:
        runs = {row["run_id"]: row["name"] for row in bench.rows("SELECT run_id, name FROM runs")}
    labels = short_labels(list(aligned), runs)
    first = next(episode for episode in some if episode.id in aligned)
    titles = {name: name for name in drawn}
    for name, label in signal_labels(first, aligned[first.id]).items():
        titles[name] = f"{name.rpartition('[')[0].rpartition('.')[2]} {label}"
    panels = [
        _panel(name, titles[name], aligned, zeros, labels, split, align if name == drawn[-1] else None)
        for name in drawn
    ]
    left, missing = len(context) - len(some), len(some) - len(aligned)
    subtitle = [
        f"{counted(len(aligned), 'episode')}, aligned at {align}",
        f"they first differ at {split[0]}, in {split[1]} (dashed line)" if split else "",
        f"{counted(left, 'more episode')} not drawn" if left else "",
        f"{align} holds nowhere in {counted(missing, 'episode')}" if missing else "",
        f"{counted(len(names) - len(drawn), 'more signal')} not drawn" if len(names) > len(drawn) else "",
    ]
    chart = finished(stacked(panels), "Episodes over each other", subtitle)
    shown_at = {key: {"label": labels[key], "zero": zeros[key]} for key in aligned}
    chart.usermeta = {**chart.usermeta, "episodes": shown_at, "differ": split and split[0]}
    return chart


def short_labels(ids: Sequence[str], named: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return short names of some episodes: the names of their runs, where they differ, and their number.

    Args:
        ids: of the episodes.
        named: the names of runs by id; by default the beginnings of these.

    >>> short_labels(["ppo-lr0.0003-seed1-01m8pv/000003", "ppo-lr0.0003-seed2-01m8pw/000003"])
    {'ppo-lr0.0003-seed1-01m8pv/000003': 'ppo…seed1/3', 'ppo-lr0.0003-seed2-01m8pw/000003': 'ppo…seed2/3'}
    >>> short_labels(["sac-lr0.0003-batch256-seed2-01m8pv/000012"])
    {'sac-lr0.0003-batch256-seed2-01m8pv/000012': 'sac-lr0.0003-…/12'}
    >>> short_labels(["run-01m8pv/000003"], {"run-01m8pv": "обучение"})
    {'run-01m8pv/000003': 'обучение/3'}
    """
    runs = list(dict.fromkeys(each.rpartition("/")[0] for each in ids))
    # The end of the id of a run makes it unique; its name is enough where the names differ.
    names = {run: (named or {}).get(run) or run.rpartition("-")[0] or run for run in runs}
    if len(set(names.values())) < len(runs):
        names = {run: run for run in runs}
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*names.values(), strict=False))
    same = len(list(alike)) if len(runs) > 1 else 0
    words = {run: _shorter(name, name.rfind("-", 0, same) + 1) for run, name in names.items()}
    if len(set(words.values())) < len(runs):
        words = names
    places = {each: each.rpartition("/") for each in ids}
    return {each: f"{words[run]}/{number.lstrip('0') or '0'}" for each, (run, _, number) in places.items()}


def _shorter(name: str, same: int) -> str:
    """Return a name without the most of what others have too."""
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:3]}…{name[same:][:_LONGEST_NAME]}" if same > 3 else f"{name[: _LONGEST_NAME - 1]}…"


def _zeros(context: ReadContext, episodes: Sequence[EpisodeData], align: str) -> dict[str, int]:
    """Return the t of each episode that is drawn at 0; episodes without one are left out."""
    if align == START:
        return {episode.id: 0 for episode in episodes}
    if align == END:
        return {episode.id: episode.length for episode in episodes}
    some = context.choose(np.array([episode.position for episode in episodes]))
    hits = f"SELECT episode_id, min(t) AS t FROM steps WHERE ({align}\n) GROUP BY episode_id"
    return dict(QuerySession(some, read_only=True).query(hits).iter_rows())


def _divergence(
    aligned: dict[str, list[Signal]], zeros: dict[str, int], names: Sequence[str]
) -> tuple[int, str] | None:
    """Return the first aligned step at which two episodes have different values, and the signal."""
    first, *others = (
        {signal.name: (signal.t - zeros[key], signal.values) for signal in signals}
        for key, signals in aligned.items()
    )
    splits = []
    for other in others:
        for name in names:
            if name in first and name in other:
                _, mine, theirs = np.intersect1d(first[name][0], other[name][0], return_indices=True)
                one, two = first[name][1][mine], other[name][1][theirs]
                differs = np.flatnonzero((one != two) & ~(np.isnan(one) & np.isnan(two)))
                if len(differs):
                    splits.append((int(first[name][0][mine[differs[0]]]), name))
    return min(splits, default=None, key=lambda split: split[0])


def _panel(
    name: str,
    title: str,
    aligned: dict[str, list[Signal]],
    zeros: dict[str, int],
    labels: dict[str, str],
    split: Any,
    align: str | None,
) -> Any:
    rows = [
        {
            "episode": key,
            "label": shown(labels[key]),
            "t": int(signal.t[at]),
            "at": int(signal.t[at]) - zeros[key],
            "value": signal.values[at],
        }
        for key, signals in aligned.items()
        for signal in signals
        if signal.name == name
        for at in reduced(signal.values, _MOST_STEPS).tolist()
    ]
    legend = alt.selection_point(fields=["label"], bind="legend", name="legend")
    zoom = alt.selection_interval(bind="scales", encodings=["x"], name="zoom")
    # The last panel has the title of the axis.
    time = None if align is None else "t" if align == START else f"t from {shown(align, 40)}"
    scale = alt.Scale(nice=False, zero=False)
    lines = alt.Chart(values_of(rows)).mark_line(strokeWidth=1.4, clip=True)
    lines = lines.encode(
        alt.X("at:Q", title=time, scale=scale),
        alt.Y("value:Q", title=shown(title, 30), scale=alt.Scale(zero=False, padding=4)),
        color_channel("label", "episode", list(labels.values())),
        opacity=alt.when(legend).then(alt.value(0.85)).otherwise(alt.value(0.06)),
        tooltip=tooltip_of(("episode", "episode"), ("t", "t"), ("value", "value")),
    ).add_params(legend, zoom)
    if split is None:
        return lines.properties(width=WIDTH, height=_HEIGHT)
    rule = alt.Chart(values_of([{"at": split[0]}])).mark_rule(strokeDash=[4, 3], strokeWidth=1.5, clip=True)
    rule = rule.encode(alt.X("at:Q", scale=scale))
    return alt.layer(lines, rule).properties(width=WIDTH, height=_HEIGHT)
