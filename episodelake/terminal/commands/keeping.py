"""Commands that look after a store: maintenance, versions, and the cache of loaders."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..arguments import (
    Condition,
    StorageOptions,
    StorePath,
    WritablePath,
    episode_key,
    keyed_values,
)
from ..command import KEEP, ReportingGroup, app, command
from ..completion import complete_columns, complete_tags
from ..result import AsJson, Report

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ?([kmgt]?|[kmgt]i(?=b))b?", re.IGNORECASE)
_SPANS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_SPAN = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)([wdhms])")


def size_of(text: str) -> int:
    """Return a number of bytes.

    >>> size_of("256MB"), size_of("1.5 GiB"), size_of("4096")
    (256000000, 1610612736, 4096)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is not None and (size := int(float(match[1]) * _UNITS[match[2].lower()])) > 0:
        return size
    raise typer.BadParameter(f"{text!r} is no size; expected one such as 64MB, 256MiB or 1GB.")


def span_of(text: str) -> timedelta:
    """Return a span of time.

    >>> span_of("7d"), span_of("1.5h"), span_of("0")
    (datetime.timedelta(days=7), datetime.timedelta(seconds=5400), datetime.timedelta(0))
    """
    if text == "0":
        return timedelta(0)
    match = _SPAN.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is no span of time; expected one such as 7d, 12h, 30m or 0.")
    return timedelta(**{_SPANS[match[2]]: float(match[1])})


@command(
    app,
    KEEP,
    """\
episodelake compact data/cartpole --segment-size 512MB
episodelake compact data/cartpole --order-by episode_return --descending""",
)
def compact(
    path: WritablePath,
    segment_size: Annotated[
        int,
        typer.Option(parser=size_of, metavar="SIZE", help="The largest size of a segment, such as 256MB."),
    ] = "256MiB",  # type: ignore[assignment]  # the parser takes the default too
    order_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Sort all episodes by this column of episodes; positions then follow the new order.",
            autocompletion=complete_columns,
        ),
    ] = None,
    descending: Annotated[
        bool, typer.Option("--descending", help="With --order-by: the largest first.")
    ] = False,
    storage: StorageOptions = None,
) -> Report:
    """Join small segments into large ones.

    Ids, contents and, without --order-by, positions stay. The old files stay until vacuum.
    """
    if descending and order_by is None:
        raise typer.BadParameter("it needs --order-by COLUMN.", param_hint="--descending")
    from ..reports.open_store import changed

    with changed(path, storage, "compact") as store:
        report = store.compact(
            segment_bytes=segment_size, order_by=order_by, descending=descending, progress=True
        )
    return Report(report)


@command(
    app,
    KEEP,
    """\
episodelake delete data/cartpole "length < 15" --dry-run
episodelake delete data/cartpole "end_reason = 'interrupted'" --yes""",
)
def delete(
    path: WritablePath,
    condition: Annotated[
        str,
        typer.Argument(
            metavar="FILTER", help='An SQL condition over the columns of episodes, such as "length < 15".'
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the episodes that would be deleted.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> Report | None:
    """Delete episodes from the store; asks first.

    Exactly the episodes that were counted are deleted, whatever is recorded meanwhile. Older versions show
    them until vacuum.
    """
    from ..reports.maintenance import delete_episodes

    return delete_episodes(path, storage, condition, dry_run=dry_run, yes=yes, as_json=as_json)


@command(
    app,
    KEEP,
    """\
episodelake vacuum data/cartpole --dry-run
episodelake vacuum data/cartpole --older-than 30d""",
    interrupted="Every file that a retained version needs is there; call again to delete the rest.",
)
def vacuum(
    path: WritablePath,
    older_than: Annotated[
        timedelta,
        typer.Option(
            parser=span_of,
            metavar="SPAN",
            help="Keep the versions that were the newest at some time within this span, such as 7d, 12h or "
            "30m; 0 keeps the newest alone. Tagged versions are always kept.",
        ),
    ] = "7d",  # type: ignore[assignment]  # the parser takes the default too
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the files that would be deleted.")
    ] = False,
    storage: StorageOptions = None,
) -> Report:
    """Delete the files that no retained version needs."""
    from ..reports.maintenance import write_vacuum
    from ..reports.open_store import open_newest

    report = open_newest(path, storage).vacuum(older_than, dry_run=dry_run, progress=True)
    return Report(report, partial(write_vacuum, dry_run=dry_run))


@command(app, KEEP, "episodelake recover data/cartpole", interrupted="Nothing is lost; call again to go on.")
def recover(
    path: WritablePath,
    other_hosts: Annotated[
        bool,
        typer.Option(
            "--other-hosts",
            help="Also what was left on hosts whose locks do not reach this one; nothing may write there.",
        ),
    ] = False,
    storage: StorageOptions = None,
) -> Report:
    """Seal the journals of dead writers.

    Live writers are not touched. The next writer on the store does the same by itself.
    """
    from ..reports.maintenance import recover_runs

    return recover_runs(path, storage, other_hosts=other_hosts)


@command(
    app,
    KEEP,
    """\
episodelake history data/cartpole
episodelake history data/cartpole --limit 0 --json""",
)
def history(
    path: StorePath,
    limit: Annotated[int, typer.Option(min=0, help="Print at most this many versions; 0 prints all.")] = 20,
    storage: StorageOptions = None,
) -> Report:
    """List the versions, newest first."""
    from ..reports.maintenance import write_history
    from ..reports.open_store import open_store_at

    versions = open_store_at(path, storage).history()
    shown = versions.head(limit) if limit else versions
    return Report(shown, partial(write_history, more=versions.height - shown.height))


@command(
    app,
    KEEP,
    """\
episodelake tag data/cartpole
episodelake tag data/cartpole v1.0 --version 12
episodelake tag data/cartpole v1.0 --remove""",
    interrupted="Whether the tag changed, `episodelake tag` shows.",
)
def tag(
    path: WritablePath,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="The tag; without it, tags are listed.", autocompletion=complete_tags
        ),
    ] = None,
    version: Annotated[
        int | None, typer.Option(min=0, help="The version to tag; the default is the newest.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the tag; the version stays.")] = False,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> Report | None:
    """Give a version a name, or list the tags.

    A tagged version opens by its name and survives vacuum.
    """
    if name is None and (remove or version is not None):
        raise typer.BadParameter("it is missing.", param_hint="NAME")
    if remove and version is not None:
        raise typer.BadParameter("it does not go with --remove.", param_hint="--version")
    from ..output.page import Page
    from ..reports.open_store import open_store_at

    store = open_store_at(path, storage)
    if name is not None and remove:
        store.untag(name)
        Page().note(f"The tag {name} is gone; its version stays until it is vacuumed.")
    elif name is not None:
        store.tag(name, version)
        Page().note(f"{name} is version {store.tags[name]}.")
    tags = [{"tag": each, "version": number} for each, number in store.tags.items()]
    return Report(tags, empty="The store has no tags.") if name is None or as_json else None


@command(app, KEEP, "episodelake annotations data/cartpole", name="annotations")
def annotations_command(path: StorePath, storage: StorageOptions = None) -> Report:
    """List the annotations: columns that were added later."""
    from ..reports.open_store import open_store_at

    return Report(open_store_at(path, storage).annotations, empty="The store has no annotations.")


@command(
    app,
    KEEP,
    """\
episodelake label data/cartpole 12 good=false note="gripper slipped"
episodelake label data/cartpole --filter "length < 15" good=false
episodelake label data/cartpole 12 note=null              (clear a label)""",
    context_settings={"ignore_unknown_options": True},
)
def label(
    path: WritablePath,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[EPISODE] NAME=VALUE...",
            help="An episode's id or position, unless --filter chooses; then the labels. Values are JSON, or "
            "text.",
        ),
    ],
    condition: Condition = None,
    storage: StorageOptions = None,
) -> Report:
    """Write labels of episodes, such as good=false.

    A label is an annotation, which filters and queries know. Prints the values before.
    """
    from ..reports.episode_report import find_episode
    from ..reports.open_store import Explored, open_newest

    key, given = (None, words) if condition is not None else (words[0], words[1:])
    if key is not None and "=" in key:
        raise typer.BadParameter("Name an episode before the labels, or give --filter.", param_hint="EPISODE")
    labels = keyed_values(given, "NAME=VALUE")
    position_or_id = episode_key(key) if key is not None else None
    store = open_newest(path, storage)
    if position_or_id is None:
        episodes = store.filter(str(condition))
    else:
        episodes = find_episode(Explored(store), position_or_id).id
    return Report(store.label(episodes, **labels))


cache = typer.Typer(
    cls=ReportingGroup,
    help="List and clear the columns that loaders cache on this machine.",
    no_args_is_help=True,
)
app.add_typer(cache, name="cache", rich_help_panel=KEEP)

Folder = Annotated[
    Path | None,
    typer.Option(help="The cache folder; the default is EPISODELAKE_CACHE, or the user's folder for caches."),
]


@command(cache, KEEP, "episodelake cache list --json", name="list")
def list_command(folder: Folder = None) -> Report:
    """List the cached columns, the least recently used first."""
    from ...plugin import CacheFolder
    from ..reports.maintenance import cached_columns, write_cached

    cached = CacheFolder.of(folder)
    return Report(cached_columns(cached), partial(write_cached, folder=cached))


@command(cache, KEEP, "episodelake cache clear", name="clear")
def clear_command(folder: Folder = None) -> Report:
    """Remove the cached columns that no process uses; loaders make them again when they need them."""
    from ...plugin import CacheFolder, counted, size_text

    cached = CacheFolder.of(folder)
    removed = cached.clear()
    freed = sum(entry.bytes for entry in removed)
    message = f"Removed {counted(len(removed), 'file')} of {cached.path}; {size_text(freed)} are free again."
    report = {"path": cached.path, "files": len(removed), "bytes": freed}
    return Report(report, lambda page, _: page.note(message))
