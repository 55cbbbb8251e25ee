"""The card of a store or a view: how much there is, how it ended, what came of it, and how it looks.

It asks the episodes table for aggregates, and reads no steps but those of the frames it shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...store.card import known_entries
from ...store.errors import NothingToDrawError
from ...store.manifest import read_card
from ...store.snapshot import Snapshot
from ..amounts import size_text
from ..context import ReadContext
from ..episode_data import EpisodeData
from ..pictures.images import image_columns
from ..plots.series import (
    AGENT,
    FITS,
    LENGTH,
    RETURN,
    RUN,
    VALUED,
    Series,
    Workbench,
    count_bins,
    episode_bench,
    episode_series,
    means_over,
    value_episodes,
)
from ..plots.theme import END_COLORS
from ..replaying.run_envs import run_envs
from . import drawings
from .html import card, code, facts, figures, frames_part, number, part, row, shown_part, table, text

_RUNS = 5
_MEASURES = 8
_STRETCHES = 100
_BINS = 40
_QUANTILES = (0.1, 0.5, 0.9)
#: The place of an episode among those of its run, in the order of ends.
_RANK = "row_number() OVER (PARTITION BY series, panel ORDER BY ended_at, episode_id) - 1"


def view_card(context: ReadContext, kind: str, first: Callable[[], EpisodeData]) -> str:
    """Return the card as HTML; it never raises.

    Args:
        context: whose episodes.
        kind: the class that it is the card of.
        first: gives the first of the episodes.
    """
    snapshot = context.snapshot
    more = f"version {snapshot.version}" + ("" if context.positions is None else ", some of its episodes")
    body = "" if context.positions is not None else shown_part("The dataset card", lambda: _about(snapshot))
    body += shown_part("What it holds", lambda: _contents(context, first))
    body += shown_part("The spaces", lambda: _spaces(snapshot))
    return card(kind, str(snapshot.layout.root), more, body)


def _about(snapshot: Snapshot) -> str:
    """Return the entries of `card.json` that have a meaning."""
    entries = known_entries(read_card(snapshot.layout))
    return part("About", facts((key, text(value)) for key, value in entries.items())) if entries else ""


def _contents(context: ReadContext, first: Callable[[], EpisodeData]) -> str:
    if not len(context):
        hint = (
            "Record some: store.record(env)." if context.positions is None else "Choose with a wider filter."
        )
        return figures([("episodes", "0")]) + f"<p>There are no episodes here. {text(hint)}</p>"
    with episode_bench(context) as bench:
        parts = [
            shown_part("The figures", lambda: _figures(context, bench)),
            row(
                [
                    shown_part("How episodes ended", lambda: _ends(bench)),
                    shown_part("Returns and lengths", lambda: _measures(bench)),
                ]
            ),
            shown_part("The returns", lambda: _charts(bench)),
            shown_part("The runs", lambda: _runs(bench)),
        ]
    columns = image_columns(context.snapshot.schema)
    if columns and not context.snapshot.schema.groups:
        shown = columns[0]
        parts.append(
            shown_part(
                "The first frames",
                lambda: frames_part(first(), shown, f"{shown} of the first episode"),
            )
        )
    return "".join(parts)


def _figures(context: ReadContext, bench: Workbench) -> str:
    snapshot = bench.snapshot
    transitions = "row_count - len(agents)" if snapshot.schema.groups else "length"
    (told,) = bench.rows(
        f"SELECT count(*) AS episodes, sum({transitions})::BIGINT AS transitions, "
        "count(DISTINCT run_id) AS runs FROM episodes"
    )
    pairs = [(name, number(told[name])) for name in ("episodes", "transitions", "runs")]
    if snapshot.schema.groups:
        (agents,) = bench.rows(
            "SELECT count(DISTINCT agent) AS n FROM (SELECT unnest(agents) AS agent FROM episodes)"
        )
        pairs.append(("agents", number(agents["n"])))
    if context.positions is None:
        files = (snapshot.episode_files, snapshot.step_files, snapshot.run_files)
        count = sum(map(len, files))
        size = size_text(sum(file.size for each in files for file in each))
        pairs.append((f"in {count:,} Parquet file{'' if count == 1 else 's'}", size))
    return figures(pairs)


def _ends(bench: Workbench) -> str:
    found = bench.rows(
        "SELECT end_reason AS reason, count(*) AS n FROM episodes GROUP BY 1 ORDER BY n DESC, 1"
    )
    total = sum(each["n"] for each in found)
    rows = [
        (
            text(each["reason"]),
            number(each["n"]),
            drawings.share_bar(each["n"] / total, END_COLORS.get(each["reason"], "#7d8794")),
            f"{each['n'] / total:.1%}",
        )
        for each in found
    ]
    return part("How episodes ended", table((), rows, (1, 3)))


def _measures(bench: Workbench) -> str:
    """Quantiles of returns and lengths; of several agents, by agent."""
    grouped = bool(bench.snapshot.schema.groups)
    rows = _quantile_rows(bench, RETURN, AGENT if grouped else RUN)[:_MEASURES]
    rows += _quantile_rows(bench, LENGTH, RUN)
    headers = ("", "least", "10 %", "median", "mean", "90 %", "most", "")
    unit = "sums of rewards, and steps" + (" of the environment" if grouped else "")
    return part(f"Returns and lengths ({unit})", table(headers, rows, range(1, 7)))


def _quantile_rows(bench: Workbench, what: str, by: str) -> list[tuple[str, ...]]:
    """Return a row for each objective, of several agents for each of them."""
    value_episodes(bench, what, by)
    found = bench.rows(
        f"SELECT {'series' if by == AGENT else 'NULL'} AS agent, panel, min(value) FILTER ({FITS}) AS least, "
        f"quantile_cont(value, {list(_QUANTILES)}) FILTER ({FITS}) AS quantiles, "
        f"max(value) FILTER ({FITS}) AS most, avg(value / 4) FILTER ({FITS}) * 4 AS mean, "
        f"count(*) FILTER (NOT coalesce({FITS}, false)) AS wild "
        f"FROM {VALUED} GROUP BY 1, 2 ORDER BY count(*) DESC, 1, len(panel), panel"
    )
    rows = []
    for each in found:
        low, median, high = each["quantiles"] or (None,) * 3
        name = (f"{what} of {each['agent']}" if by == AGENT else what) + (
            f", {each['panel']}" if each["panel"] else ""
        )
        cells = (each["least"], low, median, each["mean"], high, each["most"])
        wild = f"{each['wild']:,} not finite" if each["wild"] else ""
        rows.append((text(name), *map(number, cells), text(wild)))
    return rows


def _charts(bench: Workbench) -> str:
    """Return the return, or that of the first objective, in the order of ends, and how often each is."""
    try:
        series = episode_series(bench, RETURN, RUN)
    except NothingToDrawError:
        return ""
    panel = series.panels[0]
    title = "Return" + (f", {panel}" if panel else "")
    bins, (low, high), found = count_bins(bench, panel, _BINS, VALUED)
    counts = [0] * bins.count
    for each in found:
        counts[each["bin"]] += each["episodes"]
    told = f"from {number(low)} to {number(high)}"
    line, words = _over_time(bench, series, f"{title} over time, {told}")
    bars = drawings.bar_chart(counts, label=f"How often each return is, {told}")
    caption = '<span class="el-dim">{}</span>'
    return row(
        [
            part(f"{title} over time", line + caption.format(words)),
            part("How often each return is", bars + caption.format(text(told))),
        ]
    )


def _over_time(bench: Workbench, series: Series, label: str) -> tuple[str, str]:
    """Return a line for each of the largest runs, with a band if there is one run; and the caption, as
    HTML.
    """
    found = means_over(bench, _RANK, f"least({_STRETCHES}, greatest(n // 4, least(n, 20)))")
    found = [each for each in found if each["panel"] == series.panels[0]]
    if series.total == 1:
        middle, low, high = (
            np.array([each[key] for each in found], np.float64) for key in ("value", "low", "high")
        )
        chart = drawings.band_chart(middle, low, high, label=label)
        return chart, "mean, and 10 % to 90 %, in the order of ends"
    names = series.names[:_RUNS]
    lines = [[(each["x"], each["value"]) for each in found if each["series"] == name] for name in names]
    left = f" The {_RUNS} largest of {series.total:,} runs." if series.total > _RUNS else ""
    keys = " ".join(f"{drawings.color_key(index)}&nbsp;{text(name, 40)}" for index, name in enumerate(names))
    return drawings.lines_chart(lines, label=label), f"mean by episode of each run: {keys}.{left}"


def _runs(bench: Workbench) -> str:
    scalar = not bench.snapshot.schema.reward_shape
    mean = "avg(episode_return) FILTER (isfinite(episode_return))" if scalar else "NULL"
    found = bench.rows(
        f"SELECT run_id, any_value(name) AS name, count(*) AS episodes, {mean} AS mean, "
        "strftime(max(episodes.ended_at), '%Y-%m-%d %H:%M') AS ended "
        "FROM episodes LEFT JOIN runs USING (run_id) "
        "GROUP BY run_id ORDER BY max(episodes.ended_at) DESC, run_id"
    )
    envs = run_envs(bench.snapshot)
    rows = []
    for each in found[:_RUNS]:
        env = envs[each["run_id"]].title if each["run_id"] in envs else ""
        rows.append(
            (text(each["name"] or each["run_id"], 80), number(each["episodes"]))
            + ((number(each["mean"]),) if scalar else ())
            + (text(env, 80), text(each["ended"]))
        )
    headers = ("run", "episodes", *(("mean return",) if scalar else ()), "environment", "last episode (UTC)")
    more = f", the last {_RUNS} of {len(found):,}" if len(found) > _RUNS else ""
    return part(f"Runs{more}", table(headers, rows, (1, 2) if scalar else (1,)))


def _spaces(snapshot: Snapshot) -> str:
    schema = snapshot.schema
    pairs: list[tuple[str, Any]] = []
    if schema.groups:
        for group in schema.groups[:_MEASURES]:
            pairs += [
                (f"observation of {group.name}", group.observation_space),
                (f"action of {group.name}", group.action_space),
            ]
    else:
        pairs = [("observation", schema.observation_space), ("action", schema.action_space)]
    if schema.reward_shape:
        pairs.append(("reward", f"{schema.reward_shape[0]} objectives"))
    return part("Spaces", facts((name, code(" ".join(str(space).split()))) for name, space in pairs))
