"""`episodelake info`: the identity, contents, end reasons and sizes of a store.

It reads the log, and of files of episodes without figures in the log a few columns; and the footers of some
files. No step is decoded, but for the number of tokens of a store of rollouts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import polars as pl

from ... import EpisodeStore
from ...errors import CorruptStoreError
from ...plugin import Journals, Layout, RunEnv, Snapshot, TableSize, counted, size_text
from ...types import AgentGroup
from ..output.cells import Amount, number_text
from ..output.page import Page
from .open_store import Explored, live_message
from .store_figures import is_hidden, rollout_figures, store_figures

RUNS_SHOWN = 10
POLICIES_SHOWN = 20
_OF_RUNS = ("started_at", "episodes", "transitions", "mean_length", "mean_return")


def info_of(opened: Explored) -> dict[str, Any]:
    """Return the report of `info`, as `--json` prints it."""
    store = opened.store
    snapshot = store.selection().snapshot
    on_disk = _on_disk(store.handle.layout)
    sizes = [TableSize.of(snapshot, table) for table in ("steps", "episodes")]
    _check_episodes(snapshot, on_disk, sizes[1])
    figures = store_figures(store)
    card, lost = _card_of(store)
    rollouts, uncounted = rollout_figures(store)
    return {
        "store": store.id,
        "path": store.url,
        "format": store.handle.manifest.format_version,
        "version": store.version,
        "created": store.handle.manifest.created_at,
        "episodes": len(store),
        "transitions": sum(run["transitions"] for run in figures.runs),
        "bytes": sum(on_disk.values()),
        "table_bytes": snapshot.table_bytes,
        "files": len(on_disk),
        "returns": figures.returns,
        "lengths": figures.lengths,
        "end_reasons": figures.end_reasons,
        "spaces": _spaces_report(store),
        "environments": _environments(store),
        "agents": figures.agents,
        "rollouts": rollouts,
        "runs": figures.runs,
        "columns": [column for each in sizes for column in each.columns],
        "sizes_are_exact": all(each.exact for each in sizes),
        **_journals(store.handle.layout),
        "card": card,
        "damaged": [*opened.damaged, *lost, *uncounted, *(error for each in sizes for error in each.damaged)],
    }


def _card_of(store: EpisodeStore) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the card; where it is damaged, None and why."""
    try:
        return store.card, []
    except CorruptStoreError as error:
        return None, [str(error)]


def _on_disk(layout: Layout) -> dict[str, int]:
    """Return the bytes of each file of a store; files that vanish meanwhile do not count."""
    return {entry.name: entry.size for entry in layout.root.entries(deep=True)}


def _check_episodes(snapshot: Snapshot, on_disk: Mapping[str, int], measured: TableSize) -> None:
    """Find damaged files of episodes, which are not read where the log has their figures.

    Raises:
        CorruptStoreError: there is one; the message names it.
    """
    files = snapshot.episode_files
    # Each of these is missing, or another one.
    snapshot.places("episodes", [file for file in files if on_disk.get(f"episodes/{file.name}") != file.size])
    if measured.damaged:
        raise CorruptStoreError(measured.damaged[0])


def _journals(layout: Layout) -> dict[str, Any]:
    """Return how many journals there are, those that were set aside among them; the runs that are recorded;
    and by run the hosts on which others may be recorded.
    """
    journals = Journals.of(layout)
    return {
        "journals": len(journals.folders),
        "damaged_journals": len(journals.damaged),
        "live_runs": journals.live,
        "other_hosts": journals.other_hosts,
    }


def _environments(store: EpisodeStore) -> list[str]:
    """Return the distinct environments of the runs, with their files."""
    texts = dict.fromkeys(map(_environment, RunEnv.of_runs(store.selection().snapshot).values()))
    return [text for text in texts if text]


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
        [
            *_identity(report),
            *_amounts(page, report),
            *(_space_pairs(report["spaces"]) if report["rollouts"] is None else []),
            *_card(page, report),
        ]
    )
    page.heading("End reasons")
    page.table([{"end_reason": name, "episodes": count} for name, count in report["end_reasons"].items()])
    if report["agents"]:
        page.heading("Agents")
        page.frame(pl.DataFrame(report["agents"], infer_schema_length=None))
    if report["rollouts"] and report["rollouts"]["policy_versions"]:
        _write_policies(page, report["rollouts"]["policy_versions"])
    if report["runs"]:
        _write_runs(page, report["runs"])
    page.heading("Columns of steps")
    _write_columns(page, report)


def _identity(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, str(report[name])) for name in ("store", "path", "format", "version", "created")]


def _amounts(page: Page, report: Mapping[str, Any]) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = [
        ("episodes", report["episodes"]),
        ("transitions", report["transitions"]),
        ("runs", len(report["runs"])),
        ("size", f"{page.size(report['bytes'])} in {page.text(report['files'])} files"),
        ("size of tables", page.size(report["table_bytes"])),
    ]
    for spread in report["returns"]:
        objective = spread["objective"]
        pairs.append(
            ("returns" if objective is None else f"returns of objective {objective}", _spread_text(spread))
        )
    if report["lengths"]:
        pairs.append(("lengths", _spread_text(report["lengths"])))
    pairs += _rollout_pairs(report["rollouts"] or {})
    pairs += [("environment", text) for text in report["environments"]]
    return [*pairs, *_journal_pairs(report)]


def _rollout_pairs(figures: Mapping[str, Any]) -> list[tuple[str, object]]:
    names = ("tokenizer", "vocabulary", "context", "groups", "messages", "tokens", "sampled_tokens")
    return [(name.replace("_", " "), value) for name in names if (value := figures.get(name)) is not None]


def _write_policies(page: Page, policies: list[dict[str, Any]]) -> None:
    page.heading("Rewards by policy version")
    shown = policies[-POLICIES_SHOWN:] if page.is_terminal else policies
    page.table(shown, ("policy_version", "rollouts", "mean_reward"))
    if len(policies) > len(shown):
        page.note(f"{counted(len(policies) - len(shown), 'older version')} not shown; --json has all.")


def _journal_pairs(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return lines about episodes that are recorded but not visible yet."""
    live, pairs = report["live_runs"], []
    if live:
        pairs.append(("recording", live_message(live)))
    aside = report["damaged_journals"]
    elsewhere = report["other_hosts"]
    left = report["journals"] - len(live) - len(elsewhere) - aside
    if elsewhere:
        runs = ", ".join(f"{run} on {host}" for run, host in elsewhere.items())
        pairs.append(("other hosts", f"{runs}; if nothing writes there, `episodelake recover --other-hosts`"))
    if left > 0:
        pairs.append(
            ("journals", f"{left} of writers that are gone; `episodelake recover` seals what they hold")
        )
    if aside:
        pairs.append(("set aside", f"{counted(aside, 'damaged journal')}; `episodelake verify` tells where"))
    return pairs


def _spread_text(spread: Mapping[str, Any]) -> str:
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
    entries = card.texts(others=True)
    # A value of several lines is indented, so that none of them passes for another entry.
    lines = (f"{key}: {value}".replace("\n", "\n  ") for key, value in entries.items())
    return [("card", "\n".join(lines))]


def _write_runs(page: Page, runs: list[dict[str, Any]]) -> None:
    page.heading("Runs")
    hidden = any(is_hidden(run["run_id"], run["name"]) for run in runs)
    names = ("run_id", *(("name",) if hidden else ()), *_OF_RUNS)
    shown = [
        {name: run[name] for name in names if name in run}
        for run in (runs[:RUNS_SHOWN] if page.is_terminal else runs)
    ]
    page.frame(pl.DataFrame(shown, infer_schema_length=None), ("run_id", "name", "episodes", "mean_return"))
    if len(runs) > len(shown):
        page.note(f"{len(runs) - len(shown)} older runs; `episodelake head STORE runs` shows the table.")


def _write_columns(page: Page, report: Mapping[str, Any]) -> None:
    steps = [column for column in report["columns"] if column["table"] == "steps"]
    total = sum(column["bytes"] for column in steps)
    about = "" if report["sizes_are_exact"] else "about "
    page.table(
        [
            {
                "column_name": column["column"],
                "column_type": column["type"],
                "size": Amount(about + page.size(column["bytes"])),
                "share": Amount(f"{column['bytes'] / total:.1%}" if total else "-"),
            }
            for column in steps
        ]
    )
    other = sum(column["bytes"] for column in report["columns"]) - total
    count = len(report["columns"]) - len(steps)
    if page.is_terminal:
        page.note(f"The table of episodes has {count} columns, {about}{size_text(other)} in all.")


def _spaces_report(store: EpisodeStore) -> dict[str, Any]:
    """Return the spaces as texts, the shape of rewards, and of several agents those of each group."""
    groups = [
        {"group": group.name, "agents": group.agents, **_space_texts(group)} for group in store.agent_groups
    ]
    return {**_space_texts(store), "reward_shape": store.reward_shape, "groups": groups}


def _space_texts(source: EpisodeStore | AgentGroup) -> dict[str, str]:
    names = ("observation_space", "action_space")
    return {name: " ".join(str(getattr(source, name)).split()) for name in names}


def _space_pairs(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the same as lines of names and values."""
    pairs = []
    for group in report["groups"]:
        name = group["group"]
        pairs += [
            (f"agents of {name}", ", ".join(group["agents"])),
            (f"  observation space of {name}", group["observation_space"]),
            (f"  action space of {name}", group["action_space"]),
        ]
    if not pairs:
        pairs = [(name.replace("_", " "), report[name]) for name in ("observation_space", "action_space")]
    if report["reward_shape"]:
        pairs.append(("reward shape", str(tuple(report["reward_shape"]))))
    return pairs
