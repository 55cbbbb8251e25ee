"""Cards of stores, views and episodes in a notebook.

The card of a view asks the episodes table for aggregates; the card of an episode has its facts and its
signals as small charts. Both read no steps but those of what they show.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from ...store.errors import NothingToDrawError
from ...store.snapshot import Snapshot
from ..chart_session import ChartSession
from ..context import ReadContext
from ..episode_data import EpisodeData
from ..formatting import size_text
from ..pictures.images import image_columns
from ..replaying.run_envs import RunEnv
from . import html
from .bins import count_bins, line_ends
from .series import (
    AGENT,
    FITS,
    LENGTH,
    RETURN,
    RUN,
    VALUED,
    Series,
    episode_series,
    means_over,
    value_episodes,
)
from .signals import signals_of
from .theme import END_COLORS

_SIGNALS = 14
_AGENTS = 20


def episode_card(episode: EpisodeData) -> str:
    """Return the card as HTML; it never raises."""
    try:
        name = episode.id
    except Exception:  # the parts below say what is damaged
        name = f"position {episode.position}"
    agent = getattr(episode, "agent_id", None)
    parts = [
        html.shown_part("The figures", lambda: _figures(episode)),
        html.row(
            [
                html.shown_part("What is known of it", lambda: _facts(episode)),
                html.shown_part("Its metadata", lambda: _metadata(episode)),
            ]
        ),
    ]
    if episode_agents(episode):
        parts.append(html.shown_part("The agents", lambda: _agents(episode)))
    parts.append(html.shown_part("The signals", lambda: _signals(episode)))
    if not episode_agents(episode):
        for column in image_columns(episode._own_schema)[:2]:
            parts.append(
                html.shown_part("The frames", lambda column=column: html.frames_part(episode, column, column))
            )
    kind = type(episode).__name__
    return html.card(kind, name, f"agent {agent}" if agent is not None else "", "".join(parts))


def episode_agents(episode: EpisodeData) -> bool:
    """Return whether there are several agents; by the schema, which was checked when the store was opened."""
    return bool(episode.schema.groups) and not hasattr(episode, "agent_id")


def _figures(episode: EpisodeData) -> str:
    unit = "steps of the environment" if episode_agents(episode) else "steps"
    return html.figures(
        [
            (unit, html.number(episode.length)),
            ("return", html.number(episode.episode_return)),
            ("its end", episode.end_reason),
        ]
    )


def _facts(episode: EpisodeData) -> str:
    flags = [name for name in ("terminated", "truncated") if getattr(episode, name)]
    lasted = (episode.ended_at - episode.started_at).total_seconds()
    pairs = [
        ("run", html.code(episode.run_id)),
        ("position", html.number(episode.position)),
        ("flags", html.text(", ".join(flags) or "none")),
        ("seed", html.text("NULL" if episode.seed is None else episode.seed)),
        ("started (UTC)", html.text(f"{episode.started_at:%Y-%m-%d %H:%M:%S}")),
        ("lasted", html.text(html.duration(lasted))),
    ]
    if episode.options is not None:
        pairs.append(("options", html.code(_json(episode.options))))
    if episode.env_index is not None:
        pairs.append(("environment", html.number(episode.env_index)))
    return html.part("The episode", html.facts(pairs))


def _metadata(episode: EpisodeData) -> str:
    pairs = [(str(key), html.code(_json(value))) for key, value in episode.metadata.items()]
    pairs += [(str(key), html.code(_json(value))) for key, value in episode.annotations.items()]
    return html.part("Metadata", html.facts(pairs)) if pairs else ""


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _agents(episode: EpisodeData) -> str:
    rows = []
    members: Mapping[str, Any] = episode._members
    for name, agent in islice(members.items(), _AGENTS):
        rows.append(
            (
                html.text(name),
                html.text(agent.group),
                html.number(agent.length),
                html.number(agent.episode_return),
                html.text(agent.end_reason),
            )
        )
    left = len(episode.agents) - len(rows)
    more = f", {len(rows)} of {len(episode.agents):,}" if left else ""
    return html.part(
        f"Agents{more}", html.table(("agent", "group", "steps", "return", "its end"), rows, (2, 3))
    )


def _signals(episode: EpisodeData) -> str:
    roots = ("reward",) if episode_agents(episode) else ("reward", "action", "observation")
    signals = signals_of(episode, roots)
    rows = []
    for signal in signals[:_SIGNALS]:
        low, high = html.span_of([signal.values])
        finite = bool(len(signal.values)) and (low, high) != (0.0, 0.0)
        spread = html.number(low) if low == high else f"{html.number(low)} to {html.number(high)}"
        line = html.line_chart(
            signal.values, label=f"{signal.name}: {spread}", stepped=".action" in f".{signal.column}"
        )
        drawable = finite or 0 in signal.values
        words = spread if drawable else "no finite value" if len(signal.values) else "none"
        rows.append((html.text(signal.name, 60), line, html.text(words)))
    if not rows:
        return ""
    left = len(signals) - len(rows)
    more = f'<span class="el-dim">{left:,} more are not drawn.</span>' if left else ""
    return html.part("Over its steps", html.table((), rows) + more)


_RUNS = 5
_MEASURES = 8
_STRETCHES = 100
_BINS = 40
_QUANTILES = (0.1, 0.5, 0.9)
#: The place of an episode among those of its run, in the order of ends.
_RANK = "row_number() OVER (PARTITION BY series, panel ORDER BY ended_at, episode_id) - 1"


def view_card(
    context: ReadContext, kind: str, first: Callable[[], EpisodeData], name: str | None = None
) -> str:
    """Return the card as HTML; it never raises.

    Args:
        context: whose episodes.
        kind: the class that it is the card of.
        first: gives the first of the episodes.
        name: of the store; None for where it is.
    """
    snapshot = context.snapshot
    more = f"version {snapshot.version}" + ("" if context.positions is None else ", some of its episodes")
    body = (
        "" if context.positions is not None else html.shown_part("The dataset card", lambda: _about(snapshot))
    )
    body += html.shown_part("What it holds", lambda: _contents(context, first))
    body += html.shown_part("The spaces", lambda: _spaces(snapshot))
    return html.card(kind, str(snapshot.layout.root) if name is None else name, more, body)


def _about(snapshot: Snapshot) -> str:
    """Return the entries of `card.json` that have a meaning."""
    entries = snapshot.card.texts()
    return (
        html.part("About", html.facts((key, html.text(value)) for key, value in entries.items()))
        if entries
        else ""
    )


def _contents(context: ReadContext, first: Callable[[], EpisodeData]) -> str:
    if not len(context):
        hint = (
            "Record some: store.record(env)." if context.positions is None else "Choose with a wider filter."
        )
        return html.figures([("episodes", "0")]) + f"<p>There are no episodes here. {html.text(hint)}</p>"
    with ChartSession(context, steps=False) as bench:
        parts = [
            html.shown_part("The figures", lambda: _view_figures(context, bench)),
            html.row(
                [
                    html.shown_part("How episodes ended", lambda: _ends(bench)),
                    html.shown_part("Returns and lengths", lambda: _measures(bench)),
                ]
            ),
            html.shown_part("The returns", lambda: _charts(bench)),
            html.shown_part("The runs", lambda: _runs(bench)),
        ]
    columns = image_columns(context.snapshot.schema)
    if columns and not context.snapshot.schema.groups:
        shown = columns[0]
        parts.append(
            html.shown_part(
                "The first frames",
                lambda: html.frames_part(first(), shown, f"{shown} of the first episode"),
            )
        )
    return "".join(parts)


def _view_figures(context: ReadContext, bench: ChartSession) -> str:
    snapshot = bench.snapshot
    transitions = "row_count - len(agents)" if snapshot.schema.groups else "length"
    (counts,) = bench.rows(
        f"SELECT count(*) AS episodes, sum({transitions})::BIGINT AS transitions, "
        "count(DISTINCT run_id) AS runs FROM episodes"
    )
    pairs = [(name, html.number(counts[name])) for name in ("episodes", "transitions", "runs")]
    if snapshot.schema.groups:
        (agents,) = bench.rows(
            "SELECT count(DISTINCT agent) AS n FROM (SELECT unnest(agents) AS agent FROM episodes)"
        )
        pairs.append(("agents", html.number(agents["n"])))
    if context.positions is None:
        files = (snapshot.episode_files, snapshot.step_files, snapshot.run_files)
        count = sum(map(len, files))
        size = size_text(sum(file.size for each in files for file in each))
        pairs.append((f"in {count:,} Parquet file{'' if count == 1 else 's'}", size))
    return html.figures(pairs)


def _ends(bench: ChartSession) -> str:
    reasons = bench.rows(
        "SELECT end_reason AS reason, count(*) AS n FROM episodes GROUP BY 1 ORDER BY n DESC, 1"
    )
    total = sum(each["n"] for each in reasons)
    rows = [
        (
            html.text(each["reason"]),
            html.number(each["n"]),
            html.share_bar(each["n"] / total, END_COLORS.get(each["reason"], "#7d8794")),
            f"{each['n'] / total:.1%}",
        )
        for each in reasons
    ]
    return html.part("How episodes ended", html.table((), rows, (1, 3)))


def _measures(bench: ChartSession) -> str:
    """Quantiles of returns and lengths; of several agents, by agent."""
    grouped = bool(bench.snapshot.schema.groups)
    rows = _quantile_rows(bench, RETURN, AGENT if grouped else RUN)[:_MEASURES]
    rows += _quantile_rows(bench, LENGTH, RUN)
    headers = ("", "least", "10 %", "median", "mean", "90 %", "most", "")
    unit = "sums of rewards, and steps" + (" of the environment" if grouped else "")
    return html.part(f"Returns and lengths ({unit})", html.table(headers, rows, range(1, 7)))


def _quantile_rows(bench: ChartSession, what: str, by: str) -> list[tuple[str, ...]]:
    """Return a row for each objective, of several agents for each of them."""
    value_episodes(bench, what, by)
    quantiles = bench.rows(
        f"SELECT {'series' if by == AGENT else 'NULL'} AS agent, panel, min(value) FILTER ({FITS}) AS least, "
        f"quantile_cont(value, {list(_QUANTILES)}) FILTER ({FITS}) AS quantiles, "
        f"max(value) FILTER ({FITS}) AS most, avg(value / 4) FILTER ({FITS}) * 4 AS mean, "
        f"count(*) FILTER (NOT coalesce({FITS}, false)) AS wild "
        f"FROM {VALUED} GROUP BY 1, 2 ORDER BY count(*) DESC, 1, len(panel), panel"
    )
    rows = []
    for each in quantiles:
        low, median, high = each["quantiles"] or (None,) * 3
        name = (f"{what} of {each['agent']}" if by == AGENT else what) + (
            f", {each['panel']}" if each["panel"] else ""
        )
        cells = (each["least"], low, median, each["mean"], high, each["most"])
        wild = f"{each['wild']:,} not finite" if each["wild"] else ""
        rows.append((html.text(name), *map(html.number, cells), html.text(wild)))
    return rows


def _charts(bench: ChartSession) -> str:
    """Return the return, or that of the first objective, in the order of ends, and how often each is."""
    try:
        series = episode_series(bench, RETURN, RUN)
    except NothingToDrawError:
        return ""
    panel = series.panels[0]
    title = "Return" + (f", {panel}" if panel else "")
    binned, bars_of_runs = count_bins(bench, panel, _BINS, VALUED)
    counts = [0] * binned.bins.count
    for each in bars_of_runs:
        counts[each["bin"]] += each["episodes"]
    line, words = _over_time(bench, series, f"{title} over time")
    low, high = map(html.number, binned.ends)
    bars = html.bar_chart(counts, binned.ends, label=f"How often each return is, from {low} to {high}")
    caption = '<span class="el-dim">{}</span>'
    return html.row(
        [
            html.part(f"{title} over time", line + caption.format(words)),
            html.part("How often each return is", bars + caption.format(html.text(binned.note))),
        ]
    )


def _over_time(bench: ChartSession, series: Series, title: str) -> tuple[str, str]:
    """Return a line for each of the largest runs, with a band if there is one run; and the caption, as
    HTML.
    """
    means = means_over(bench, _RANK, f"least({_STRETCHES}, greatest(n // 4, least(n, 20)))")
    means = [each for each in means if each["panel"] == series.panels[0]]
    ends, note = line_ends(bench, series.panels[0])
    label = f"{title}, from {html.number(ends[0])} to {html.number(ends[1])}"
    limits = ends if note else None
    note = note and f". {html.text(note)}, at the edge"
    if series.total == 1:
        line = [(place, each["value"]) for place, each in enumerate(means)]
        band = [(place, each["low"], each["high"]) for place, each in enumerate(means)]
        chart = html.lines_chart([line], band=band, label=label, scale=True, limits=limits)
        return chart, f"mean, and 10 % to 90 %, in the order of ends{note}"
    names = series.names[:_RUNS]
    lines = [[(each["x"], each["value"]) for each in means if each["series"] == name] for name in names]
    left = f" The {_RUNS} largest of {series.total:,} runs." if series.total > _RUNS else ""
    keys = " ".join(f"{html.color_key(index)}&nbsp;{html.text(name, 40)}" for index, name in enumerate(names))
    chart = html.lines_chart(lines, label=label, scale=True, limits=limits)
    return chart, f"mean by episode of each run: {keys}{note}.{left}"


def _runs(bench: ChartSession) -> str:
    scalar = not bench.snapshot.schema.reward_shape
    mean = "avg(episode_return) FILTER (isfinite(episode_return))" if scalar else "NULL"
    runs = bench.rows(
        f"SELECT run_id, any_value(name) AS name, count(*) AS episodes, {mean} AS mean, "
        "strftime(max(episodes.ended_at), '%Y-%m-%d %H:%M') AS ended "
        "FROM episodes LEFT JOIN runs USING (run_id) "
        "GROUP BY run_id ORDER BY max(episodes.ended_at) DESC, run_id"
    )
    envs = RunEnv.of_runs(bench.snapshot)
    rows = []
    for each in runs[:_RUNS]:
        env = envs[each["run_id"]].title if each["run_id"] in envs else ""
        rows.append(
            (html.text(each["name"] or each["run_id"], 80), html.number(each["episodes"]))
            + ((html.number(each["mean"]),) if scalar else ())
            + (html.text(env, 80), html.text(each["ended"]))
        )
    headers = ("run", "episodes", *(("mean return",) if scalar else ()), "environment", "last episode (UTC)")
    more = f", the last {_RUNS} of {len(runs):,}" if len(runs) > _RUNS else ""
    return html.part(f"Runs{more}", html.table(headers, rows, (1, 2) if scalar else (1,)))


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
    return html.part(
        "Spaces", html.facts((name, html.code(" ".join(str(space).split()))) for name, space in pairs)
    )
