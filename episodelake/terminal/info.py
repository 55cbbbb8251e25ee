"""`episodelake info`: what a store is, what it holds, how it ended, and what takes the room on disk.

It reads a few columns of the episodes table and the footers of the other files: no step is decoded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import polars as pl
import typer

from .._store import EpisodeStore
from ..readers.amounts import counted, size_text
from ..readers.replaying.run_envs import RunEnv, run_envs
from ..store.errors import CorruptStoreError
from ..store.journal import DAMAGED_SUFFIX, journal_folders
from ..store.layout import EPISODES, FORMAT_VERSION, STEPS, Layout
from .arguments import AsJson, StorageOptions, StorePath
from .commands import LOOK, command
from .disk_sizes import TableSize, table_size
from .exploring import Explored, explored, live_runs, live_told
from .grid import Grid, grid_of, number_text
from .json_text import write_object
from .page import Page, report_warning
from .spaces_report import space_pairs, spaces_report
from .store_figures import store_figures
from .texts import bytes_text, count_text

RUNS_SHOWN = 10

EXAMPLES = """\
episodelake info data/cartpole
episodelake info data/cartpole@v1.0                  as it was when it was tagged
episodelake info data/cartpole --json | jq .episodes"""


def add_to(app: typer.Typer) -> None:
    """Add the command to the program."""
    command(app, LOOK, EXAMPLES)(info)


def info(path: StorePath, as_json: AsJson = False, storage: StorageOptions = None) -> None:
    """Show what a store is and what it holds.

    Amounts, spaces, runs, ends, and columns with their sizes on disk. No step is decoded. Where a file is
    damaged, the rest is shown and the file is named.
    """
    page = Page()
    report, told = explored(path, storage, lambda opened: (info_of(opened), opened.damaged), tell_live=False)
    if as_json:
        write_object(page, report)
    else:
        write_info(page, report)
    for each in report["damaged"][len(told) :]:
        report_warning(each)


def info_of(opened: Explored) -> dict[str, Any]:
    """Everything that `info` says, as the object that `--json` prints."""
    store = opened.store
    snapshot = store.selection().snapshot
    figures = store_figures(store)
    sizes = {STEPS: table_size(snapshot, STEPS), EPISODES: table_size(snapshot, EPISODES)}
    files, size = _on_disk(store.handle.layout)
    card, lost = _card_of(store)
    return {
        "store": store.id,
        "path": store.url,
        "format": FORMAT_VERSION,
        "version": store.version,
        "created": store.handle.manifest.created_at,
        "episodes": len(store),
        "transitions": sum(run["transitions"] for run in figures.runs),
        "bytes": size,
        "files": files,
        "returns": figures.returns,
        "lengths": figures.lengths,
        "end_reasons": figures.end_reasons,
        "spaces": spaces_report(store),
        "environments": _environments(store),
        "agents": figures.agents,
        "runs": figures.runs,
        "columns": _columns(sizes),
        "sizes_are_exact": all(found.exact for found in sizes.values()),
        **_journals(store.handle.layout),
        "card": card,
        "damaged": [*opened.damaged, *lost, *(each for found in sizes.values() for each in found.damaged)],
    }


def _card_of(store: EpisodeStore) -> tuple[dict[str, Any] | None, list[str]]:
    """The card; where it is damaged, None and why."""
    try:
        return store.card, []
    except CorruptStoreError as error:
        return None, [str(error)]


def _columns(sizes: Mapping[str, TableSize]) -> list[dict[str, Any]]:
    return [
        {"table": table, "column": each.column, "type": each.type, "bytes": each.bytes}
        for table, found in sizes.items()
        for each in found.columns
    ]


def _on_disk(layout: Layout) -> tuple[int, int]:
    """Number of files of a store and their bytes; files that vanish meanwhile do not count."""
    sizes = [entry.size for entry in layout.root.entries(deep=True)]
    return len(sizes), sum(sizes)


def _journals(layout: Layout) -> dict[str, Any]:
    """How many journals there are, those that were set aside among them; and the runs that are recorded."""
    names = [folder.name for folder in journal_folders(layout.journals)]
    aside = sum(name.endswith(DAMAGED_SUFFIX) for name in names)
    return {"journals": len(names), "damaged_journals": aside, "live_runs": live_runs(layout)}


def _environments(store: EpisodeStore) -> list[str]:
    """The environments of the runs, each once, with what is kept of them."""
    told = dict.fromkeys(map(_environment, run_envs(store.selection().snapshot).values()))
    return [text for text in told if text]


def _environment(run: RunEnv) -> str:
    try:
        files = run.bundle.files if run.bundle else ()
    except CorruptStoreError:
        return f"{run.title}, with a damaged bundle"
    if not files:
        return run.title
    return f"{run.title}, with {counted(len(files), 'file')} ({size_text(sum(file.size for file in files))})"


# On the page


def write_info(page: Page, report: Mapping[str, Any]) -> None:
    """Write the report for people, or as plain text for a pipe."""
    page.pairs(
        [*_identity(report), *_amounts(page, report), *space_pairs(report["spaces"]), *_card(page, report)]
    )
    page.heading("End reasons")
    reasons = [(name, count_text(page, count)) for name, count in report["end_reasons"].items()]
    page.table(Grid.of(("end_reason", "episodes"), reasons, (False, True)))
    if report["agents"]:
        page.heading("Agents")
        page.table(_grid(page, report["agents"]))
    if report["runs"]:
        _write_runs(page, report["runs"])
    page.heading("Columns of steps")
    _write_columns(page, report)


def _identity(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, str(report[name])) for name in ("store", "path", "format", "version", "created")]


def _amounts(page: Page, report: Mapping[str, Any]) -> list[tuple[str, str]]:
    size = report["bytes"]
    pairs = [
        ("episodes", count_text(page, report["episodes"])),
        ("transitions", count_text(page, report["transitions"])),
        ("runs", count_text(page, len(report["runs"]))),
        ("size", f"{size_text(size) if page.is_terminal else f'{size} bytes'} in {report['files']:,} files"),
    ]
    for spread in report["returns"]:
        objective = spread["objective"]
        pairs.append(("returns" if objective is None else f"returns of objective {objective}", _told(spread)))
    if report["lengths"]:
        pairs.append(("lengths", _told(report["lengths"])))
    pairs += [("environment", text) for text in report["environments"]]
    return pairs + _journal_pairs(report)


def _journal_pairs(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is recorded and does not show yet."""
    live, pairs = report["live_runs"], []
    if live:
        pairs.append(("recording", live_told(live)))
    aside = report["damaged_journals"]
    left = report["journals"] - len(live) - aside
    if left > 0:
        told = f"{left} of writers that are gone; `episodelake recover` seals what they hold"
        pairs.append(("journals", told))
    if aside:
        pairs.append(("set aside", f"{counted(aside, 'damaged journal')}; `episodelake verify` tells where"))
    return pairs


def _told(spread: Mapping[str, Any]) -> str:
    def text(value: Any) -> str:
        return "NULL" if value is None else number_text(value) if isinstance(value, float) else f"{value:,}"

    numbers = ", ".join(f"{name} {text(spread[name])}" for name in ("lowest", "mean", "highest"))
    return f"{numbers}; {counted(spread['nan'], 'episode')} NaN" if spread.get("nan") else numbers


def _card(page: Page, report: Mapping[str, Any]) -> list[tuple[str, str]]:
    card = report["card"]
    if card is None:
        return [("card", "damaged")]
    if not card:
        return []
    if not page.is_terminal:
        return [("card", json.dumps(card, ensure_ascii=False))]
    return [("card", "\n".join(f"{key}: {_plain_json(value)}" for key, value in card.items()))]


def _plain_json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _write_runs(page: Page, runs: list[dict[str, Any]]) -> None:
    page.heading("Runs")
    names = ("run_id", "started_at", "episodes", "transitions", "mean_length", "mean_return")
    shown = [
        {name: run[name] for name in names if name in run}
        for run in (runs[:RUNS_SHOWN] if page.is_terminal else runs)
    ]
    page.table(_grid(page, shown))
    if len(runs) > len(shown):
        page.note(f"{len(runs) - len(shown)} older runs; `episodelake head STORE runs` shows the table.")


def _grid(page: Page, rows: list[dict[str, Any]]) -> Grid:
    frame = pl.DataFrame(rows, infer_schema_length=None)
    return grid_of(frame.to_arrow(), exact=not page.is_terminal)


def _write_columns(page: Page, report: Mapping[str, Any]) -> None:
    steps = [column for column in report["columns"] if column["table"] == STEPS]
    total = sum(column["bytes"] for column in steps)
    about = "" if report["sizes_are_exact"] else "about "
    rows = [
        (column["column"], column["type"], about + bytes_text(page, column["bytes"]), _share(column, total))
        for column in steps
    ]
    page.table(Grid.of(("column_name", "column_type", "size", "share"), rows, (False, False, True, True)))
    other = sum(column["bytes"] for column in report["columns"]) - total
    count = len(report["columns"]) - len(steps)
    if page.is_terminal:
        page.note(f"The table of episodes has {count} columns, {about}{size_text(other)} in all.")


def _share(column: Mapping[str, Any], total: int) -> str:
    return f"{column['bytes'] / total:.1%}" if total else "-"
