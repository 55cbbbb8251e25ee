"""The command line's maintenance: `compact | delete | vacuum | verify | recover`.

Each command calls one method of a store and writes its report to a `Page`, or as JSON. Where Ctrl-C ends
one, a line says how it left the store, and the exit status is 130.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from datetime import timedelta
from typing import Annotated

import polars as pl
import typer

from .._store import open_store, recover
from ..readers.amounts import counted
from ..readers.view import EpisodeView
from ..store.maintenance.deletion import DeleteReport
from ..store.maintenance.verification import VerifyReport
from .arguments import AsJson, StorageOptions, WritablePath, storage_options
from .commands import CHECK, FAILED, KEEP, WRONG_USAGE, command, failure
from .grid import Grid, grid_of
from .json_text import write_object, write_rows
from .page import Page
from .progress import Change, interruptible, progress_bar, unchanged
from .texts import bytes_text, count_text

FIRST = 10
FILES_ON_A_TERMINAL = 20

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ?(?:([kmgt]?)b?|([kmgt])ib)", re.IGNORECASE)
_SPANS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_SPAN = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)([wdhms])")


def size_of(text: str) -> int:
    """A number of bytes.

    >>> size_of("256MB"), size_of("1.5 GiB"), size_of("4096")
    (256000000, 1610612736, 4096)
    """
    found = _SIZE.fullmatch(text.strip())
    if found is not None:
        number, decimal, binary = found.groups()
        unit = _BINARY_UNITS[binary.lower()] if binary else _UNITS[decimal.lower()]
        if (size := int(float(number) * unit)) > 0:
            return size
    raise typer.BadParameter(f"{text!r} is no size; expected one such as 64MB, 256MiB or 1GB.")


def span_of(text: str) -> timedelta:
    """A span of time.

    >>> span_of("7d"), span_of("1.5h"), span_of("0")
    (datetime.timedelta(days=7), datetime.timedelta(seconds=5400), datetime.timedelta(0))
    """
    if text == "0":
        return timedelta(0)
    found = _SPAN.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no span of time; expected one such as 7d, 12h, 30m or 0.")
    return timedelta(**{_SPANS[found[2]]: float(found[1])})


EXAMPLES = {
    "compact": """\
episodelake compact data/cartpole --segment-size 512MB
episodelake compact data/cartpole --order-by episode_return --descending""",
    "delete": """\
episodelake delete data/cartpole "length < 15" --dry-run
episodelake delete data/cartpole "end_reason = 'interrupted'" --yes""",
    "vacuum": """\
episodelake vacuum data/cartpole --dry-run
episodelake vacuum data/cartpole --older-than 30d""",
    "verify": """\
episodelake verify data/cartpole
episodelake verify data/cartpole --json | jq .faults""",
    "recover": """\
episodelake recover data/cartpole""",
}


def add_to(app: typer.Typer) -> None:
    """Add the commands to the program."""
    command(app, CHECK, EXAMPLES["verify"])(verify)
    for name, function in {"compact": compact, "delete": delete, "vacuum": vacuum}.items():
        command(app, KEEP, EXAMPLES[name])(function)
    command(app, KEEP, EXAMPLES["recover"], name="recover")(recover_command)


def compact(
    path: WritablePath,
    segment_size: Annotated[
        int,
        typer.Option(parser=size_of, metavar="SIZE", help="How large a segment may become, such as 256MB."),
    ] = "256MiB",  # type: ignore[assignment]  # the parser takes the default too
    order_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Sort all episodes by this column of episodes; positions then follow the new order.",
            show_default=False,
        ),
    ] = None,
    descending: Annotated[
        bool, typer.Option("--descending", help="With --order-by: the largest first.")
    ] = False,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Join small segments into large ones.

    Ids, contents and, without --order-by, positions stay. The old files stay until vacuum.
    """
    if descending and order_by is None:
        raise typer.BadParameter("it needs --order-by COLUMN.", param_hint="--descending")
    change = Change(path, storage_options(storage), "compact")
    with interruptible(change.told):
        store = change.open()
        with progress_bar("Compacting", "rows") as progress:
            report = store.compact(
                segment_bytes=segment_size, order_by=order_by, descending=descending, progress=progress
            )
        page = Page()
        if as_json:
            write_object(page, dataclasses.asdict(report))
            return
        page.pairs(
            [
                ("episodes moved", count_text(page, report.episodes)),
                ("segments before", count_text(page, report.segments_before)),
                ("segments after", count_text(page, report.segments_after)),
                ("size before", bytes_text(page, report.bytes_before)),
                ("size after", bytes_text(page, report.bytes_after)),
            ]
        )


def delete(
    path: WritablePath,
    condition: Annotated[
        str,
        typer.Argument(
            metavar="FILTER",
            help='An SQL condition over the columns of episodes, such as "length < 15".',
            show_default=False,
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Take episodes out of the store; asks first.

    Exactly the episodes that were counted go, whatever is recorded meanwhile. Older versions show them
    until vacuum.
    """
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
        with progress_bar("Deleting", "rows") as progress:
            report = store.delete(exactly, progress=progress)
        _write_deletion(page, report, as_json=as_json)


def _write_deletion(page: Page, report: DeleteReport, *, as_json: bool) -> None:
    if as_json:
        write_object(page, dataclasses.asdict(report))
        return
    page.pairs(
        [
            ("episodes", count_text(page, report.episodes)),
            ("transitions", count_text(page, report.steps)),
            ("segments", count_text(page, report.segments)),
        ]
    )


def _write_first(page: Page, chosen: EpisodeView) -> None:
    page.heading("Episodes that would go")
    columns = ("episode_id", "length", "episode_return", "end_reason", "started_at")
    first = chosen.episodes.select(columns).head(FIRST).collect()
    page.table(grid_of(first.to_arrow(), exact=not page.is_terminal))
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
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        raise
    return answer.strip().lower() in ("y", "yes")


def vacuum(
    path: WritablePath,
    older_than: Annotated[
        timedelta,
        typer.Option(
            parser=span_of,
            metavar="SPAN",
            help="Keep the versions that were the newest at some time since so long ago, such as 7d, 12h or "
            "30m; 0 keeps the newest alone. Tagged versions are always kept.",
        ),
    ] = "7d",  # type: ignore[assignment]  # the parser takes the default too
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Delete the files that no retained version needs."""
    page = Page()
    kept = "Every file that a retained version needs is there; call again to delete the rest."
    with interruptible(unchanged if dry_run else lambda: kept):
        store = open_store(path, storage_options=storage_options(storage))
        with progress_bar("Deleting", "files") as progress:
            report = store.vacuum(older_than, dry_run=dry_run, progress=progress)
        if as_json:
            write_object(page, dataclasses.asdict(report))
            return
        page.pairs([("files", count_text(page, len(report.files))), ("size", bytes_text(page, report.bytes))])
        if not dry_run or not report.files:
            return
        page.heading("Files that would go")
        shown = report.files[:FILES_ON_A_TERMINAL] if page.is_terminal else report.files
        page.table(Grid.of(("file",), [(file,) for file in shown]))
        if len(report.files) > len(shown):
            page.note(f"{len(report.files) - len(shown)} more files.")


def verify(
    path: WritablePath,
    repair: Annotated[bool, typer.Option("--repair", help="Mend what can be mended.")] = False,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Read everything and check it against everything else.

    Each fault is named with its file. The exit status is 1 if faults remain.
    """
    page = Page()
    mended = "What was mended stays mended; call again to go on."
    with interruptible((lambda: mended) if repair else unchanged):
        store = open_store(path, storage_options=storage_options(storage))
        with progress_bar("Reading", "segments") as progress:
            report = store.verify(repair=repair, progress=progress)
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


def recover_command(path: WritablePath, as_json: AsJson = False, storage: StorageOptions = None) -> None:
    """Seal what writers that died left behind.

    Live writers are not touched. The next writer on the store does the same by itself.
    """
    page = Page()
    with interruptible(lambda: "Nothing is lost; call again to go on."):
        runs = recover(path, storage_options=storage_options(storage))
    if as_json:
        write_rows(page, [dataclasses.asdict(run) for run in runs])
        return
    if not runs:
        page.note("Nothing to recover: no dead writer left a journal.")
        return
    headers = ("run", "episodes", "interrupted", "transitions", "torn_bytes")
    rows = [(run.run_id, run.episodes, run.interrupted, run.steps, run.torn_bytes) for run in runs]
    page.table(Grid.of(headers, rows, (False, True, True, True, True)))
