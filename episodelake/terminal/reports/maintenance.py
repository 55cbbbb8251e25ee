"""Maintenance on the page: the question before a deletion, and the texts of the reports."""

from __future__ import annotations

import select
import sys
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import polars as pl
import typer

from ... import EpisodeView, recover
from ...plugin import CacheFolder, collected, counted, size_text
from ...types import DeleteReport, HealthReport, VacuumReport, VerifyReport
from ..command import FAILED, WRONG_USAGE, failure
from ..output.page import Page, report_warning
from ..result import Report
from .open_store import changed, storage_options

FIRST = 10
FILES_ON_A_TERMINAL = 20
_POLL_SECONDS = 0.1


def delete_episodes(
    path: str, storage: Sequence[str] | None, condition: str, *, dry_run: bool, yes: bool, as_json: bool
) -> Report | None:
    """Delete episodes; see `episodelake delete`."""
    page = Page()
    with changed(path, storage, "delete") as store:
        chosen = store.filter(condition)
        if not len(chosen) and not as_json:
            page.note("No episode fulfils the condition.")
            return None
        ids = collected(chosen.episodes.select("episode_id"))["episode_id"]
        exactly = pl.col("episode_id").is_in(ids.implode())
        report = store.delete(exactly, dry_run=True)
        looking = dry_run or not len(chosen)
        if not (looking or yes or sys.stdin.isatty()):
            raise failure(
                f"Nothing was deleted: {counted(len(chosen), 'episode')} would go, and there is no terminal "
                "to ask at. Give --yes, or --dry-run to look.",
                WRONG_USAGE,
            )
        if not looking:
            if not yes and not _agreed(report):
                page.note("Nothing was deleted.")
                raise typer.Exit(FAILED)
            report = store.delete(exactly, progress=True)
    return Report(report, lambda page, report: _write_deletion(page, report, chosen, looking))


def _write_deletion(page: Page, report: DeleteReport, chosen: EpisodeView, looking: bool) -> None:
    page.pairs([("episodes", report.episodes), ("transitions", report.steps), ("segments", report.segments)])
    if looking:
        page.heading("Episodes that would go")
        columns = ("episode_id", "length", "episode_return", "end_reason", "started_at")
        first = collected(chosen.episodes.select(columns).head(FIRST))
        page.frame(first)
        if len(chosen) > first.height:
            page.note(f"{len(chosen) - first.height} more episodes.")


def _agreed(report: DeleteReport) -> bool:
    """Ask at the terminal; anything but a yes, the end of the input too, is a no."""
    question = (
        f"Delete {counted(report.episodes, 'episode')} with {counted(report.steps, 'transition')}? "
        f"{counted(report.segments, 'segment')} will be rewritten or dropped. [y/N] "
    )
    try:
        print(question, end="", file=sys.stderr, flush=True)
        # A signal that comes right before a read starts would be noticed only after the next line.
        while not select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
            pass
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        raise
    return answer.strip().lower() in ("y", "yes")


def write_vacuum(page: Page, report: VacuumReport, *, dry_run: bool) -> None:
    """Write the report of `vacuum`; of a dry run also the files."""
    page.pairs([("files", len(report.files)), ("size", page.size(report.bytes))])
    if report.waiting:
        when = "" if report.free_at is None else f" until {report.free_at:%Y-%m-%d %H:%M} UTC"
        page.note(
            f"{counted(report.waiting, 'more file')} ({size_text(report.waiting_bytes)}) kept{when} for "
            "versions that were the newest within --older-than. With --older-than 0 they go now."
        )
    if not dry_run or not report.files:
        return
    page.heading("Files that would go")
    shown = report.files[:FILES_ON_A_TERMINAL] if page.is_terminal else report.files
    page.table([{"file": file} for file in shown])
    if len(report.files) > len(shown):
        page.note(f"{len(report.files) - len(shown)} more files.")


def write_faults(page: Page, report: VerifyReport, *, repair: bool) -> None:
    """Write the report of `verify`; with `repair` also which faults were mended."""
    faults = report.faults
    if faults and page.is_terminal:
        # Messages are sentences: they wrap instead of being cut as the cells of a table are.
        kinds = [f"{each.kind} (mended)" if each.mended else each.kind for each in faults]
        page.pairs([(kind, f"{each.file}\n{each.message}") for kind, each in zip(kinds, faults, strict=True)])
        page.line()
    elif faults:
        mended = [{"mended": _yes(each.mended)} if repair else {} for each in faults]
        page.table(
            [
                {"kind": each.kind, "file": each.file, "message": each.message} | more
                for each, more in zip(faults, mended, strict=True)
            ]
        )
    read = (
        f"{counted(report.episodes, 'episode')} with {counted(report.steps, 'transition')} in "
        f"{counted(report.files, 'file')}"
    )
    count = counted(len(faults), "fault") if faults else "no faults"
    remaining = sum(not each.mended for each in faults)
    tail = f", {remaining} of them not mended" if repair and faults else ""
    page.note(f"Read {read}: {count}{tail}.")


def health_facts(report: HealthReport) -> dict[str, Any]:
    """Return the report of `health`, as `--json` prints it."""
    ids = (part["episode_id"].unique(maintain_order=True).to_list() for part in report.parts())
    rows = [
        {**row, "episode_ids": listed}
        for row, listed in zip(report.frame().drop("first").to_dicts(), ids, strict=True)
    ]
    return {"episodes": report.count, "share": report.share, "findings": rows}


def write_health(page: Page, report: HealthReport) -> None:
    """Write the report of `health`."""
    if not report.findings:
        page.line(str(report))
        return
    rows = report.frame().drop("column")
    if page.is_terminal:
        # Messages are sentences: they wrap instead of being cut as the cells of a table are.
        firsts = [f"\nfirst: {row['first']}" if row["first"] else "" for row in rows.iter_rows(named=True)]
        texts = [f"{message}{first}" for message, first in zip(rows["message"], firsts, strict=True)]
        page.pairs(list(zip(rows["kind"], texts, strict=True)))
        page.line()
    else:
        page.frame(rows)
    page.note(f"{report.summary} --json names the episodes.")


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def recover_runs(path: str, storage: Sequence[str] | None, *, other_hosts: bool) -> Report:
    """Seal the journals of dead writers; see `episodelake recover`."""
    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always", RuntimeWarning)
        runs = recover(path, storage_options=storage_options(storage), other_hosts=other_hosts, progress=True)
    for warning in left:
        report_warning(str(warning.message))
    none = "Nothing was recovered." if left else "Nothing to recover: no dead writer left a journal."
    return Report([vars(run) for run in runs], empty=none)


def write_history(page: Page, versions: pl.DataFrame, more: int) -> None:
    """Write the newest versions, and how many more there are."""
    page.frame(versions)
    if more:
        page.note(f"{more} more versions; show more with --limit N, all with --limit 0.")


def cached_columns(folder: CacheFolder) -> list[dict[str, Any]]:
    """Return the cached columns, the least recently used first."""
    return [
        {
            **{name: entry.facts.get(name) for name in ("column", "store", "version", "episodes")},
            "bytes": entry.bytes,
            "used": datetime.fromtimestamp(entry.used, UTC),
            "in_use": entry.in_use,
        }
        for entry in folder.entries()
    ]


def write_cached(page: Page, rows: Sequence[dict[str, Any]], folder: CacheFolder) -> None:
    """Write the cached columns and their size in all."""
    page.table(rows)
    total = f"holds {size_text(sum(row['bytes'] for row in rows))}" if rows else "is empty"
    page.note(f"{folder.path} {total}.")
