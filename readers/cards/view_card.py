"""The card of a store or a view: how much there is, how it ended, what came of it, and how it looks.

It asks the episodes table for aggregates, and reads no steps but those of the frames it shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...store.snapshot import Snapshot
from ..amounts import size_text
from ..pictures.images import image_columns
from ..plots.bins import bins_for
from ..plots.series import LARGEST, Workbench, episode_bench
from ..plots.theme import END_COLORS
from ..replaying.run_envs import run_envs
from ..sql.text import literal
from . import drawings
from .html import card, code, facts, figures, part, row, table, text
from .parts import frames_part, number, shown_part

if TYPE_CHECKING:
    from ..view import EpisodeView

_RUNS = 5
_MEASURES = 8
_STRETCHES = 100
_BINS = 40
_QUANTILES = (0.1, 0.5, 0.9)


def view_card(view: EpisodeView) -> str:
    """The card as HTML; it never raises."""
    snapshot = view._reader.snapshot
    whole = view._positions is None
    kind = type(view).__name__
    more = f"version {snapshot.version}" + ("" if whole else ", some of its episodes")
    body = shown_part("What it holds", lambda: _contents(view))
    body += shown_part("The spaces", lambda: _spaces(snapshot))
    return card(kind, str(snapshot.layout.root), more, body)


def _contents(view: EpisodeView) -> str:
    if not len(view):
        hint = "Record some: store.record(env)." if view._positions is None else "Choose with a wider filter."
        return figures([("episodes", "0")]) + f"<p>There are no episodes here. {text(hint)}</p>"
    with episode_bench(view) as bench:
        parts = [
            shown_part("The figures", lambda: _figures(view, bench)),
            row(
                [
                    shown_part("How episodes ended", lambda: _ends(bench)),
                    shown_part("Returns and lengths", lambda: _measures(bench)),
                ]
            ),
            shown_part("The returns", lambda: _charts(bench)),
            shown_part("The runs", lambda: _runs(bench)),
        ]
    columns = image_columns(view._reader.snapshot.schema)
    if columns and not view._reader.snapshot.schema.groups:
        first = columns[0]
        parts.append(
            shown_part(
                "The first frames", lambda: frames_part(view[0], first, f"{first} of the first episode")
            )
        )
    return "".join(parts)


def _figures(view: EpisodeView, bench: Workbench) -> str:
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
    if view._positions is None:
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
    schema = bench.snapshot.schema
    values = ", ".join(f"quantile_cont(value, {share})" for share in _QUANTILES)
    fits = f"isfinite(value) AND abs(value) <= {LARGEST}"
    rows = []
    for name, source in _values_of(bench):
        (told,) = bench.rows(
            f"SELECT min(value) AS least, [{values}] AS quantiles, max(value) AS most, "
            "avg(value / 4) * 4 AS mean, "
            f"(SELECT count(*) FROM ({source}) WHERE NOT coalesce({fits}, false)) AS wild "
            f"FROM ({source}) WHERE {fits}"
        )
        low, median, high = told["quantiles"] if told["least"] is not None else (None,) * 3
        cells = (told["least"], low, median, told["mean"], high, told["most"])
        wild = f"{told['wild']:,} not finite" if told["wild"] else ""
        rows.append((text(name), *map(number, cells), text(wild)))
    headers = ("", "least", "10 %", "median", "mean", "90 %", "most", "")
    unit = "sums of rewards, and steps" + (" of the environment" if schema.groups else "")
    return part(f"Returns and lengths ({unit})", table(headers, rows, range(1, 7)))


def _values_of(bench: Workbench) -> list[tuple[str, str]]:
    """Names of numbers of episodes, and SQL that gives them as `value`."""
    schema = bench.snapshot.schema
    objectives = range(schema.reward_shape[0]) if schema.reward_shape else ()
    found = []
    if schema.groups:
        agents = bench.rows(
            "SELECT unnest(agents) AS agent, count(*) AS n FROM episodes GROUP BY 1 ORDER BY n DESC, 1"
        )
        for each in agents[:_MEASURES]:
            own = literal(each["agent"])
            lane = f"SELECT agent_returns[list_position(agents, {own})] AS value FROM episodes"
            of_agent = f"{lane} WHERE list_contains(agents, {own})"
            if objectives:
                found += [
                    (
                        f"return of {each['agent']}, objective {index}",
                        f"SELECT value[{index + 1}] AS value FROM ({of_agent})",
                    )
                    for index in objectives
                ]
            else:
                found.append((f"return of {each['agent']}", of_agent))
    elif objectives:
        found = [
            (f"return, objective {index}", f"SELECT episode_return[{index + 1}] AS value FROM episodes")
            for index in objectives
        ]
    else:
        found = [("return", "SELECT episode_return AS value FROM episodes")]
    return [*found[:_MEASURES], ("length", "SELECT length::DOUBLE AS value FROM episodes")]


def _charts(bench: Workbench) -> str:
    """The return, or that of the first objective, in the order of ends, and how often each is."""
    schema = bench.snapshot.schema
    value = "episode_return[1]" if schema.reward_shape else "episode_return"
    title = "Return" + (", objective 0" if schema.reward_shape else "")
    fits = f"isfinite({value}) AND abs({value}) <= {LARGEST}"
    (span,) = bench.rows(
        f"SELECT min({value}) AS low, max({value}) AS high, count(*) AS n FROM episodes WHERE {fits}"
    )
    if not span["n"]:
        return ""
    (whole,) = bench.rows(f"SELECT bool_and({value} = round({value})) AS whole FROM episodes WHERE {fits}")
    bins = bins_for(span["low"], span["high"], _BINS, whole=whole["whole"])
    found = bench.rows(
        f"SELECT {bins.sql(value)} AS bin, count(*) AS n FROM episodes WHERE {fits} GROUP BY 1"
    )
    counts = [0] * bins.count
    for each in found:
        counts[each["bin"]] = each["n"]
    told = f"from {number(span['low'])} to {number(span['high'])}"
    line, words = _over_time(bench, value, fits, f"{title} over time, {told}")
    bars = drawings.bar_chart(counts, label=f"How often each return is, {told}")
    caption = '<span class="el-dim">{}</span>'
    return row(
        [
            part(f"{title} over time", line + caption.format(words)),
            part("How often each return is", bars + caption.format(text(told))),
        ]
    )


def _over_time(bench: Workbench, value: str, fits: str, label: str) -> tuple[str, str]:
    """A line for each of the largest runs, with a band if there is one run; and the caption, as HTML."""
    found = bench.rows(
        "SELECT run_id, any_value(name) AS name, max(n) AS n, avg(rank)::DOUBLE AS x, "
        "avg(value / 4) * 4 AS mean, quantile_cont(value, 0.1) AS low, quantile_cont(value, 0.9) AS high "
        f"FROM (SELECT *, rank * least({_STRETCHES}, greatest(n // 4, least(n, 20))) // n AS place "
        f"FROM (SELECT run_id, {value} AS value, count(*) OVER (PARTITION BY run_id) AS n, "
        "row_number() OVER (PARTITION BY run_id ORDER BY ended_at, episode_id) - 1 AS rank "
        f"FROM episodes WHERE {fits})) LEFT JOIN (SELECT run_id, name FROM runs) USING (run_id) "
        "GROUP BY run_id, place ORDER BY n DESC, name, run_id, place"
    )
    runs: dict[str, list[dict[str, Any]]] = {}
    for each in found:
        runs.setdefault(each["run_id"], []).append(each)
    if len(runs) == 1:
        middle, low, high = (
            np.array([each[key] for each in found], np.float64) for key in ("mean", "low", "high")
        )
        chart = drawings.band_chart(middle, low, high, label=label)
        return chart, "mean, and 10 % to 90 %, in the order of ends"
    shown = list(runs.values())[:_RUNS]
    lines = [[(each["x"], each["mean"]) for each in run] for run in shown]
    names = [text(run[0]["name"] or run[0]["run_id"], 40) for run in shown]
    left = f" The {_RUNS} largest of {len(runs):,} runs." if len(runs) > _RUNS else ""
    keys = " ".join(f"{drawings.color_key(index)}&nbsp;{name}" for index, name in enumerate(names))
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
