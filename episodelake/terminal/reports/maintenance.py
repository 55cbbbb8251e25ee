"""The command line's care of a store: maintenance, versions, tags, annotations, and the cache of loaders.

After Ctrl-C a line states the condition of the store, and the exit status is 130.
"""

from __future__ import annotations

import dataclasses
import select
import sys
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import typer

from ..._store import open_store, recover
from ...readers.amounts import counted, size_text
from ...readers.columns.cache_folder import CacheEntry, CacheFolder, chosen_folder
from ...readers.view import EpisodeView
from ...store.maintenance.rewriting import DeleteReport
from ...store.maintenance.verification import VerifyReport
from ..command import FAILED, WRONG_USAGE, failure
from ..output.grid import Grid
from ..output.page import Page, report_warning, write_object, write_rows
from .opening import Change, interruptible, open_store_at, storage_options, unchanged

FIRST = 10
FILES_ON_A_TERMINAL = 20
_POLL_SECONDS = 0.1


def compact_store(
    path: str,
    storage: Sequence[str] | None,
    segment_size: int,
    order_by: str | None,
    *,
    descending: bool,
    as_json: bool,
) -> None:
    """Join small segments into large ones; see `episodelake compact`."""
    change = Change(path, storage_options(storage), "compact")
    with interruptible(change.told):
        store = change.open()
        report = store.compact(
            segment_bytes=segment_size, order_by=order_by, descending=descending, progress=True
        )
        page = Page()
        if as_json:
            write_object(page, dataclasses.asdict(report))
            return
        page.pairs(
            [
                ("episodes moved", page.number(report.episodes)),
                ("segments before", page.number(report.segments_before)),
                ("segments after", page.number(report.segments_after)),
                ("size before", page.size(report.bytes_before)),
                ("size after", page.size(report.bytes_after)),
            ]
        )


def delete_episodes(
    path: str, storage: Sequence[str] | None, condition: str, *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Delete episodes; see `episodelake delete`."""
    if not (dry_run or yes or sys.stdin.isatty()):
        told = "Nothing was deleted: there is no terminal to ask at. Give --yes, or --dry-run to look."
        raise failure(told, WRONG_USAGE)
    page = Page()
    change = Change(path, storage_options(storage), "delete")
    with interruptible(change.told):
        store = change.open()
        chosen = store.filter(condition)
        if not len(chosen) and not as_json:
            page.note("No episode fulfils the condition.")
            return
        ids = chosen.episodes.select("episode_id").collect()["episode_id"]
        exactly = pl.col("episode_id").is_in(ids.implode())
        report = store.delete(exactly, dry_run=True)
        if dry_run or not len(chosen):
            _write_deletion(page, report, as_json=as_json)
            if not as_json:
                _write_first(page, chosen)
            return
        if not yes and not _agreed(report):
            page.note("Nothing was deleted.")
            raise typer.Exit(FAILED)
        report = store.delete(exactly, progress=True)
        _write_deletion(page, report, as_json=as_json)


def _write_deletion(page: Page, report: DeleteReport, *, as_json: bool) -> None:
    if as_json:
        write_object(page, dataclasses.asdict(report))
        return
    page.pairs(
        [
            ("episodes", page.number(report.episodes)),
            ("transitions", page.number(report.steps)),
            ("segments", page.number(report.segments)),
        ]
    )


def _write_first(page: Page, chosen: EpisodeView) -> None:
    page.heading("Episodes that would go")
    columns = ("episode_id", "length", "episode_return", "end_reason", "started_at")
    first = chosen.episodes.select(columns).head(FIRST).collect()
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


def vacuum_store(
    path: str, storage: Sequence[str] | None, older_than: timedelta, *, dry_run: bool, as_json: bool
) -> None:
    """Delete unneeded files; see `episodelake vacuum`."""
    page = Page()
    kept = "Every file that a retained version needs is there; call again to delete the rest."
    with interruptible(unchanged if dry_run else lambda: kept):
        store = open_store(path, storage_options=storage_options(storage))
        report = store.vacuum(older_than, dry_run=dry_run, progress=True)
        if as_json:
            write_object(page, dataclasses.asdict(report))
            return
        page.pairs([("files", page.number(len(report.files))), ("size", page.size(report.bytes))])
        if not dry_run or not report.files:
            return
        page.heading("Files that would go")
        shown = report.files[:FILES_ON_A_TERMINAL] if page.is_terminal else report.files
        page.table(Grid.of(("file",), [(file,) for file in shown]))
        if len(report.files) > len(shown):
            page.note(f"{len(report.files) - len(shown)} more files.")


def verify_store(path: str, storage: Sequence[str] | None, *, repair: bool, as_json: bool) -> None:
    """Check a store; see `episodelake verify`."""
    page = Page()
    mended = "What was mended stays mended; call again to go on."
    with interruptible((lambda: mended) if repair else unchanged):
        store = open_store(path, storage_options=storage_options(storage))
        report = store.verify(repair=repair, progress=True)
        if as_json:
            write_object(page, {"ok": report.ok, **dataclasses.asdict(report)})
        else:
            _write_faults(page, report, repair=repair)
    if not report.ok:
        raise typer.Exit(FAILED)


def _write_faults(page: Page, report: VerifyReport, *, repair: bool) -> None:
    faults = report.faults
    if faults and page.is_terminal:
        # Messages are sentences: they wrap instead of being cut as the cells of a table are.
        told = [(f"{each.kind} (mended)" if each.mended else each.kind, each) for each in faults]
        page.pairs([(kind, f"{each.file}\n{each.message}") for kind, each in told])
        page.line()
    elif faults:
        rows = [(each.kind, each.file, each.message, *([_yes(each.mended)] * repair)) for each in faults]
        page.table(Grid.of(("kind", "file", "message", *(["mended"] * repair)), rows))
    read = (
        f"{counted(report.episodes, 'episode')} with {counted(report.steps, 'transition')} in "
        f"{counted(report.files, 'file')}"
    )
    count = counted(len(faults), "fault") if faults else "no faults"
    remaining = sum(not each.mended for each in faults)
    tail = f", {remaining} of them not mended" if repair and faults else ""
    page.note(f"Read {read}: {count}{tail}.")


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def recover_store(path: str, storage: Sequence[str] | None, *, other_hosts: bool, as_json: bool) -> None:
    """Seal the journals of dead writers; see `episodelake recover`."""
    page = Page()
    with (
        interruptible(lambda: "Nothing is lost; call again to go on."),
        warnings.catch_warnings(record=True) as left,
    ):
        warnings.simplefilter("always", RuntimeWarning)
        runs = recover(path, storage_options=storage_options(storage), other_hosts=other_hosts)
    for warning in left:
        report_warning(str(warning.message))
    if as_json:
        write_rows(page, [dataclasses.asdict(run) for run in runs])
        return
    if not runs:
        page.note("Nothing was recovered." if left else "Nothing to recover: no dead writer left a journal.")
        return
    headers = ("run", "episodes", "interrupted", "transitions", "torn_bytes")
    rows = [(run.run_id, run.episodes, run.interrupted, run.steps, run.torn_bytes) for run in runs]
    page.table(Grid.of(headers, rows, (False, True, True, True, True)))


def list_versions(path: str, storage: Sequence[str] | None, limit: int, *, as_json: bool) -> None:
    """List the versions; see `episodelake history`."""
    page = Page()
    with interruptible(unchanged):
        versions = open_store_at(path, storage).history()
    shown = versions.head(limit) if limit else versions
    if as_json:
        write_rows(page, shown.iter_rows(named=True))
    else:
        page.frame(shown)
    if versions.height > shown.height:
        more = versions.height - shown.height
        page.note(f"{more} more versions; show more with --limit N, all with --limit 0.")


def change_tags(
    path: str,
    storage: Sequence[str] | None,
    name: str | None,
    version: int | None,
    *,
    remove: bool,
    as_json: bool,
) -> None:
    """Set, remove or list tags; see `episodelake tag`."""
    page = Page()
    with interruptible(lambda: "Whether the tag changed, `episodelake tag` shows."):
        store = open_store_at(path, storage)
        if name is None:
            if not as_json:
                _write_tags(page, store.tags)
        elif remove:
            store.untag(name)
            page.note(f"The tag {name} is gone; its version stays until it is vacuumed.")
        else:
            store.tag(name, version)
            page.note(f"{name} is version {store.tags[name]}.")
        if as_json:
            write_rows(page, [{"tag": each, "version": number} for each, number in store.tags.items()])


def _write_tags(page: Page, tags: dict[str, int]) -> None:
    if tags:
        page.table(Grid.of(("tag", "version"), list(tags.items()), (False, True)))
    else:
        page.note("The store has no tags.")


def list_annotations(path: str, storage: Sequence[str] | None, *, as_json: bool) -> None:
    """List the annotations; see `episodelake annotations`."""
    page = Page()
    with interruptible(unchanged):
        found = open_store_at(path, storage).annotations
    if as_json:
        write_rows(page, found.iter_rows(named=True))
    elif found.height:
        page.frame(found)
    else:
        page.note("The store has no annotations.")


def list_cache(folder: Path | None, *, as_json: bool) -> None:
    """List the cached columns; see `episodelake cache list`."""
    page = Page()
    found = _folder(folder)
    entries = found.entries()
    if as_json:
        write_rows(page, map(_entry, entries))
        return
    rows = [
        (
            str(entry.facts.get("column", "damaged")),
            str(entry.facts.get("store", "")),
            str(entry.facts.get("version", "")),
            str(entry.facts.get("episodes", "")),
            size_text(entry.bytes) if page.is_terminal else f"{entry.bytes} bytes",
            datetime.fromtimestamp(entry.used).isoformat(" ", "seconds"),
            "yes" if entry.in_use else "no",
        )
        for entry in entries
    ]
    if rows:
        headers = ("column", "store", "version", "episodes", "size", "last used", "in use")
        page.table(Grid.of(headers, rows, (False, False, True, True, True, False, False)))
        page.note(f"{found.path} holds {size_text(sum(entry.bytes for entry in entries))}.")
    else:
        page.note(f"{found.path} is empty.")


def clear_cache(folder: Path | None, *, as_json: bool) -> None:
    """Remove the cached columns that no process uses; see `episodelake cache clear`."""
    found = _folder(folder)
    removed = found.clear()
    freed = sum(entry.bytes for entry in removed)
    if as_json:
        write_object(Page(), {"path": str(found.path), "files": len(removed), "bytes": freed})
        return
    removed_files = counted(len(removed), "file")
    Page().note(f"Removed {removed_files} of {found.path}; {size_text(freed)} are free again.")


def _entry(entry: CacheEntry) -> dict[str, Any]:
    told = {name: entry.facts.get(name) for name in ("column", "store", "version", "episodes")}
    used = datetime.fromtimestamp(entry.used, UTC)
    return {**told, "bytes": entry.bytes, "used": used, "in_use": entry.in_use}


def _folder(folder: Path | None) -> CacheFolder:
    return CacheFolder(chosen_folder(folder))
