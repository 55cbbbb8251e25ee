"""What `episodelake info`, `show` and `replay` say of a store and of an episode.

The first two ask the store in SQL for the few columns they need: frames and long episodes cost nothing.
"""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pyarrow as pa

from .._store import EpisodeStore
from ..readers.agents import MultiAgentEpisode
from ..readers.episode import Episode
from ..readers.replay import ReplayReport
from ..readers.run_envs import RunEnv, run_envs
from ..readers.signals import Signal, signals_of
from ..store.errors import CorruptStoreError
from ..store.layout import FORMAT_VERSION, Layout
from ..store.schema import REWARD
from .agent_reports import agents_of, agents_query, group_spaces
from .charts import sparkline
from .grid import Grid, grid_of, moment_text, number_text
from .page import Page

END_ROWS = 3
SIGNALS = 16
OBJECTIVES = 8


def write_info(page: Page, store: EpisodeStore) -> None:
    """Write what a store is and what it holds."""
    page.pairs([*_identity(store), *_amounts(page, store), *_spaces(store), *_card(page, store)])
    page.heading("End reasons")
    reasons = "SELECT end_reason, count(*) AS episodes FROM episodes GROUP BY ALL ORDER BY episodes DESC, 1"
    page.table(_ask(page, store, reasons))
    if store.agent_groups:
        page.heading("Agents")
        page.table(_ask(page, store, agents_query(store)))
    page.heading("Columns of steps")
    page.table(_ask(page, store, "SELECT column_name, column_type FROM (DESCRIBE steps)"))


def _ask(page: Page, store: EpisodeStore, text: str) -> Grid:
    return grid_of(store.sql(text).to_arrow_table(), exact=not page.is_terminal)


def _identity(store: EpisodeStore) -> list[tuple[str, str]]:
    return [
        ("store", store.id),
        ("path", store.url),
        ("format", str(FORMAT_VERSION)),
        ("version", str(store.version)),
        ("created", store.handle.manifest.created_at),
    ]


def _amounts(page: Page, store: EpisodeStore) -> list[tuple[str, str]]:
    transitions, runs = _row(
        store,
        f"SELECT (SELECT coalesce(sum({_transitions(store)}), 0)::BIGINT FROM episodes), "
        "(SELECT count(*) FROM runs)",
    )
    files, size = _on_disk(store.handle.layout)
    pairs = [
        ("episodes", _count(page, len(store))),
        ("transitions", _count(page, transitions)),
        ("runs", _count(page, runs)),
        ("size", f"{size_text(size)} in {files} files" if page.is_terminal else f"{size} bytes"),
    ]
    if len(store):
        pairs += _returns(store)
    pairs += _environments(store)
    journals = _journals(store.handle.layout)
    if journals:
        pairs.append(("journals", f"{journals} (a live writer's, or one for `episodelake recover`)"))
    return pairs


def _environments(store: EpisodeStore) -> list[tuple[str, str]]:
    """The environments of the runs, each once, with what is kept of them."""
    told = dict.fromkeys(map(_environment, run_envs(store.selection().snapshot).values()))
    return [("environment", text) for text in told if text]


def _environment(run: RunEnv) -> str:
    try:
        files = run.bundle.files if run.bundle else ()
    except CorruptStoreError:
        return f"{run.title}, with a damaged bundle"
    if not files:
        return run.title
    size = size_text(sum(file.size for file in files))
    return f"{run.title}, with {len(files)} {'file' if len(files) == 1 else 'files'} ({size})"


def _returns(store: EpisodeStore) -> list[tuple[str, str]]:
    """Lowest, mean and highest return, of each objective by itself where there are several."""
    columns = {"returns": "episode_return"}
    if store.reward_shape:
        objectives = range(min(store.reward_shape[0], OBJECTIVES))
        columns = {f"returns of objective {index}": f"episode_return[{index + 1}]" for index in objectives}
    pairs = []
    for name, column in columns.items():
        spread = _row(store, f"SELECT min({column}), avg({column}), max({column}) FROM episodes")
        told = zip(("lowest", "mean", "highest"), spread, strict=True)
        pairs.append((name, ", ".join(f"{kind} {number_text(value)}" for kind, value in told)))
    return pairs


def _transitions(store: EpisodeStore) -> str:
    return "row_count - len(agents)" if store.agent_groups else "length"


def _row(store: EpisodeStore, text: str) -> tuple[Any, ...]:
    return store.sql(text).fetchall()[0]


def _count(page: Page, number: int) -> str:
    return f"{number:,}" if page.is_terminal else str(number)


def _on_disk(layout: Layout) -> tuple[int, int]:
    """Number of files of a store and their bytes; files that vanish meanwhile do not count."""
    sizes = [entry.size for entry in layout.root.entries(deep=True)]
    return len(sizes), sum(sizes)


def _journals(layout: Layout) -> int:
    folder = layout.journals
    return sum(entry.is_dir() for entry in folder.iterdir()) if folder.is_dir() else 0


def size_text(size: float) -> str:
    """A number of bytes for people, in decimal units.

    >>> size_text(999), size_text(1_234_567)
    ('999 B', '1.2 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _spaces(store: EpisodeStore) -> list[tuple[str, str]]:
    pairs = group_spaces(store) or [
        ("observation space", " ".join(str(store.observation_space).split())),
        ("action space", " ".join(str(store.action_space).split())),
    ]
    if store.reward_shape:
        pairs.append(("reward shape", str(store.reward_shape)))
    return pairs


def _card(page: Page, store: EpisodeStore) -> list[tuple[str, str]]:
    card = store.card
    if not page.is_terminal:
        return [("card", json.dumps(card, ensure_ascii=False))]
    if not card:
        return [("card", "empty")]
    return [("card", "\n".join(f"{key}: {_plain_json(value)}" for key, value in card.items()))]


def _plain_json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def write_episode(page: Page, store: EpisodeStore, key: int | str) -> None:
    """Write one episode: what is known of it, its first and last rows, and its signals as sparklines."""
    episode = store[key]
    page.pairs(_summary(page, episode))
    if isinstance(episode, MultiAgentEpisode):
        page.heading("Agents")
        page.table(agents_of(page, episode))
        page.note("Rows by agent: episodelake sql STORE \"SELECT * FROM steps WHERE agent_id = 'NAME'\"")
        page.heading("Rewards over time")
        _write_signals(page, signals_of(episode, [REWARD])[:SIGNALS])
        return
    ends = _ends(store, episode)
    page.heading("First and last rows" if episode.length + 1 > 2 * END_ROWS else "Rows")
    page.table(_with_gap(page, grid_of(ends, exact=not page.is_terminal), episode))
    page.heading("Over time")
    signals = signals_of(episode)
    _write_signals(page, signals[:SIGNALS])
    if len(signals) > SIGNALS:
        page.note(f"{len(signals) - SIGNALS} more signals are not drawn.")


def write_replay(page: Page, report: ReplayReport, env: gymnasium.Env) -> None:
    """Write what came of a replay, and every value that differs at the first step that does."""
    pairs = [
        ("episode", report.episode_id),
        ("environment", str(env)),
        ("seed", "NULL: it may have started elsewhere" if report.seed is None else str(report.seed)),
        ("transitions", _count(page, report.transitions)),
        ("same", _count(page, report.compared)),
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


def _summary(page: Page, episode: Episode) -> list[tuple[str, str]]:
    ended = [name for name in ("terminated", "truncated") if getattr(episode, name)]
    returned = episode.episode_return
    total = number_text(returned) if isinstance(returned, float) else str(returned)
    pairs = [
        ("episode", episode.id),
        ("position", str(episode.position)),
        ("run", episode.run_id),
        ("steps of the environment" if episode.agents else "transitions", _count(page, episode.length)),
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
    text = "SELECT * EXCLUDE episode_id FROM steps WHERE episode_id = ? AND (t < ? OR t > ?) ORDER BY t"
    return _fetch(store, text, [episode.id, END_ROWS, episode.length - END_ROWS])


def _fetch(store: EpisodeStore, text: str, values: list[Any]) -> pa.Table:
    connection = store.connect()
    try:
        return connection.sql(text, params=values).to_arrow_table()
    finally:
        connection.close()


def _with_gap(page: Page, grid: Grid, episode: Episode) -> Grid:
    """On a terminal, mark where rows are left out; a script sees it by the column t."""
    if not page.is_terminal or len(grid.rows) > episode.length:
        return grid
    gap = tuple(page.glyphs.cut for _ in grid.headers)
    return Grid(grid.headers, (*grid.rows[:END_ROWS], gap, *grid.rows[END_ROWS:]), grid.right)


def _write_signals(page: Page, signals: list[Signal]) -> None:
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


def _span(signal: Signal) -> tuple[str, str]:
    finite = signal.values[np.isfinite(signal.values)]
    if not len(finite):
        return "NULL", "NULL"
    return number_text(float(finite.min())), number_text(float(finite.max()))
