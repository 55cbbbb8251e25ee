"""What `episodelake show` and `replay` say of an episode.

The first asks the store in SQL for the few columns it needs: frames cost nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import polars as pl
import pyarrow as pa

from .._store import EpisodeStore
from ..readers.agents import MultiAgentEpisode
from ..readers.episode import Episode
from ..readers.replay import ReplayReport
from .agent_reports import agents_of
from .charts import sparkline
from .grid import Grid, grid_of, moment_text, number_text
from .page import Page
from .texts import count_text

END_ROWS = 3
SIGNALS_OF_A_COLUMN = 8
SIGNALS = 16


def write_episode(page: Page, store: EpisodeStore, episode: Episode) -> None:
    """Write one episode: what is known of it, its first and last rows, and its signals as sparklines."""
    ends = None if isinstance(episode, MultiAgentEpisode) else _ends(store, episode)
    signals = signals_shown(store, episode)
    page.pairs(_summary(page, episode))
    if isinstance(episode, MultiAgentEpisode):
        page.heading("Agents")
        page.table(agents_of(page, episode))
        page.note("Rows by agent: episodelake sql STORE \"SELECT * FROM steps WHERE agent_id = 'NAME'\"")
        page.heading("Rewards over time")
    if ends is not None:
        page.heading("First and last rows" if episode.length + 1 > 2 * END_ROWS else "Rows")
        page.table(_with_gap(page, grid_of(ends, exact=not page.is_terminal), episode))
        page.heading("Over time")
    _write_signals(page, signals[:SIGNALS])
    if len(signals) > SIGNALS:
        page.note(f"{len(signals) - SIGNALS} more signals are not drawn.")


def signals_shown(store: EpisodeStore, episode: Episode) -> list[_Signal]:
    """What of an episode is a few numbers at every step; of several agents, their rewards."""
    if isinstance(episode, MultiAgentEpisode):
        return [_Signal(f"reward of {name}", values) for name, values in _rewards(episode)]
    return _signals(store, episode, _ends(store, episode))


def write_replay(page: Page, report: ReplayReport, env: gymnasium.Env) -> None:
    """Write what came of a replay, and every value that differs at the first step that does."""
    pairs = [
        ("episode", report.episode_id),
        ("environment", str(env)),
        ("seed", "NULL: it may have started elsewhere" if report.seed is None else str(report.seed)),
        ("transitions", count_text(page, report.transitions)),
        ("same", count_text(page, report.compared)),
    ]
    page.pairs(pairs)
    if report.same:
        page.line("No difference.", "bold green")
        return
    page.heading(f"Differences at step {report.differences[0].step}")
    headers = ("column", "index", "recorded", "now", "elements")
    rows = [
        (each.leaf, str(list(each.index)), str(each.expected), str(each.got), str(each.elements))
        for each in report.differences
    ]
    page.table(Grid.of(headers, rows))


def _rewards(episode: MultiAgentEpisode) -> list[tuple[str, np.ndarray]]:
    """The rewards of each agent over time, each objective by itself."""
    found = []
    for name, rewards in episode.rewards.items():
        many = rewards.ndim > 1
        for index, values in enumerate(rewards.reshape(len(rewards), -1).T):
            found.append((f"{name}[{index}]" if many else name, values))
    return found


def _summary(page: Page, episode: Episode) -> list[tuple[str, str]]:
    ended = [name for name in ("terminated", "truncated") if getattr(episode, name)]
    returned = episode.episode_return
    total = number_text(returned) if isinstance(returned, float) else str(returned)
    pairs = [
        ("episode", episode.id),
        ("position", str(episode.position)),
        ("run", episode.run_id),
        ("steps of the environment" if episode.agents else "transitions", count_text(page, episode.length)),
        ("return", total if page.is_terminal else str(returned)),
        ("end reason", episode.end_reason),
        ("flags", ", ".join(ended) or "none"),
        ("seed", "NULL" if episode.seed is None else str(episode.seed)),
        ("options", "NULL" if episode.options is None else _json_or_text(episode.options)),
        ("started", moment_text(episode.started_at, not page.is_terminal)),
        ("ended", moment_text(episode.ended_at, not page.is_terminal)),
    ]
    if episode.env_index is not None:
        pairs.append(("environment", str(episode.env_index)))
    pairs.append(("metadata", _json_or_text(episode.metadata) if episode.metadata else "none"))
    return pairs


def _json_or_text(value: Any) -> str:
    """JSON where it can be; metadata may hold arrays and other values that JSON cannot say."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _ends(store: EpisodeStore, episode: Episode) -> pa.Table:
    rows = _rows(store, episode)
    near = (pl.col("t") < END_ROWS) | (pl.col("t") > episode.length - END_ROWS)
    return rows.filter(near).drop("episode_id").sort("t").collect().to_arrow()


def _rows(store: EpisodeStore, episode: Episode) -> pl.LazyFrame:
    """The rows of one episode; of all steps only the file with them is touched."""
    view = store[episode.position : episode.position + 1]
    return view.steps.filter(pl.col("episode_id") == episode.id)


def _with_gap(page: Page, grid: Grid, episode: Episode) -> Grid:
    """On a terminal, mark where rows are left out; a script sees it by the column t."""
    if not page.is_terminal or len(grid.rows) > episode.length:
        return grid
    gap = tuple(page.glyphs.cut for _ in grid.headers)
    return Grid(grid.headers, (*grid.rows[:END_ROWS], gap, *grid.rows[END_ROWS:]), grid.right)


@dataclass(frozen=True)
class _Signal:
    """One number over time; `values` is float64, NaN where there is none."""

    name: str
    values: np.ndarray


def _signals(store: EpisodeStore, episode: Episode, ends: pa.Table) -> list[_Signal]:
    """The reward, the action and the parts of the observation that are a few numbers at every step."""
    names = [name for name in _ordered(ends.column_names) if _is_narrow(ends.column(name))]
    if not names:
        return []
    table = _rows(store, episode).sort("t").select(names).collect().to_arrow()
    signals = []
    for name in names:
        outcome = not name.startswith("observation")
        signals += _parts(name, table.column(name).slice(0, episode.length + (not outcome)))
    return signals


def _ordered(columns: list[str]) -> list[str]:
    roots = ("reward", "action", "observation")
    return [name for root in roots for name in columns if name == root or name.startswith(f"{root}.")]


def _is_narrow(column: pa.ChunkedArray) -> bool:
    kind = column.type
    if not _is_list(kind):
        return _is_numeric(kind)
    lengths = {len(value) for value in column.to_pylist() if value is not None}
    return _is_numeric(kind.value_type) and len(lengths) == 1 and 0 < max(lengths) <= SIGNALS_OF_A_COLUMN


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _is_numeric(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _parts(name: str, column: pa.ChunkedArray) -> list[_Signal]:
    """The signals of one column; none if its lists differ in length."""
    if not _is_list(column.type):
        return [_Signal(name, _floats(column))]
    flat = _floats(pa.chunked_array([chunk.flatten() for chunk in column.chunks], column.type.value_type))
    size = len(column.slice(0, 1).to_pylist()[0] or ()) if len(column) else 0
    if column.null_count or size == 0 or len(flat) != size * len(column):
        return []
    stacked = flat.reshape(len(column), size)
    return [_Signal(f"{name}[{index}]", stacked[:, index]) for index in range(size)]


def _floats(column: pa.ChunkedArray) -> np.ndarray:
    if pa.types.is_boolean(column.type):
        return np.array([np.nan if value is None else float(value) for value in column.to_pylist()])
    return column.to_numpy().astype(np.float64)


def _write_signals(page: Page, signals: list[_Signal]) -> None:
    if not signals:
        page.line("No column holds a few numbers at every step.")
        return
    label = max(len(signal.name) for signal in signals)
    width = max(page.width - label - 30, 16)
    rows = [(signal.name, sparkline(signal.values, width, page.glyphs), *_span(signal)) for signal in signals]
    if not page.is_terminal:
        page.table(Grid.of(("signal", "line", "lowest", "highest"), rows))
        return
    drawn = max(len(row[1]) for row in rows)
    for name, line, low, high in rows:
        spread = low if low == high else f"{low} .. {high}"
        page.parts((name.ljust(label + 2), "cyan"), (line.ljust(drawn + 2), "green"), (spread, ""))


def _span(signal: _Signal) -> tuple[str, str]:
    finite = signal.values[np.isfinite(signal.values)]
    if not len(finite):
        return "NULL", "NULL"
    return number_text(float(finite.min())), number_text(float(finite.max()))
