"""Creation of a store: its tables first, `store.json` last, so that a store appears atomically.

A store that begins with episodes (a copy, a merge into a new one) has the file `store.unfinished` until it
has `store.json`. Where only the former is there, a process is making a copy, or died at it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from .delta.table import Table
from .errors import CorruptStoreError, StoreExistsError
from .files import make_folder, remove_file, stat_or_none
from .files.local import LocalPlace
from .files.locks import MAINTENANCE_LOCK
from .layout import (
    CARD,
    EPISODES,
    JOURNAL,
    MANIFEST,
    RUNS,
    STEPS,
    TABLES,
    UNFINISHED,
    UNFINISHED_NOTE,
    Layout,
    checked_json,
)
from .manifest import check_outside_stores, exists_error, write_card, write_manifest
from .schema import RUNS_SCHEMA, StoreHandle

_LEFTOVER = re.compile(r"\.(store\.json|store\.unfinished|card\.json)\.[0-9a-f]+\.tmp")
#: Files of an unfinished store that the next attempt deletes.
_OWN = re.compile(
    r"(.*/)?(\d{20}\.json|\d{20}\.checkpoint\.parquet|_last_checkpoint|[^/.][^/]*\.parquet|annotation\.json|"
    r"[0-9a-f]{64}(-\d+)?(\.json)?|\.[^/]*\.tmp)"
)


def check_free(layout: Layout, *, copied: bool = False) -> None:
    """Refuse a place for a new store that holds something else.

    Args:
        layout: of the new store.
        copied: a copy is made there; a local one that was not finished is made again, once its lock is free.

    Raises:
        StoreExistsError: there is a store, an unfinished copy, or something else.
        InvalidArgumentError: it lies in another store.
    """
    if layout.root.local is not None:
        check_outside_stores(layout.root.local)
    names = layout.root.names()
    if MANIFEST in names:
        raise exists_error(layout)
    if UNFINISHED in names and not (copied and layout.root.local is not None):
        raise StoreExistsError(
            f"{layout.root} holds a copy or merge that was not finished, or that another process is "
            "still making. If none is, delete it and call again, or choose another path."
        )
    # What a creation that was cut short leaves behind is taken over.
    if UNFINISHED in names:
        ours = [*TABLES, *Layout.FOLDERS, CARD, UNFINISHED]
    else:
        ours = [name for name in TABLES if set(layout.table(name).names()) <= {"_delta_log"}]
    others = [name for name in names if name not in (*ours, JOURNAL) and not _LEFTOVER.fullmatch(name)]
    if others:
        raise StoreExistsError(
            f"{layout.root} is not empty (it holds {', '.join(others[:5])}). Choose a new or empty folder."
        )


def make_tables(store: StoreHandle) -> None:
    """Make everything of an empty store but `store.json`.

    Raises:
        StoreExistsError: there are tables of something else.
        StoreAccessError: the file system refused.
    """
    columns = {RUNS: RUNS_SCHEMA, EPISODES: store.schema.episodes, STEPS: store.schema.steps}
    for table, schema in columns.items():
        Table.create(store.layout.table(table), schema)
    make_folder(store.layout.journals)


def created_atomically(store: StoreHandle, card: bytes | None) -> contextlib.AbstractContextManager[None]:
    """Create a store atomically: it appears when the block ends, with the tables that the block filled.

    The caller holds the lock of the store's maintenance when it enters the block. If the block raises,
    nothing of the store stays; its folder stays if it is there now.

    Args:
        store: the new store.
        card: the content of `card.json`; None for no card.

    Raises:
        StoreExistsError: see `check_free`.
        StoreAccessError: the file system refused.
    """
    root = store.layout.root.local
    return _created_atomically(store, card, new=root is not None and stat_or_none(root) is None)


@contextlib.contextmanager
def _created_atomically(store: StoreHandle, card: bytes | None, *, new: bool) -> Iterator[None]:
    layout = store.layout
    check_free(layout, copied=True)
    mark, ours = layout.root / UNFINISHED, True
    try:
        if mark.exists():
            _discard(layout)
        layout.root.make_folder()
        try:
            mark.write(checked_json({"store_id": store.manifest.store_id}), exclusive=True)
        except FileExistsError:
            ours = False
            check_free(layout)
            ours = True
        make_tables(store)
        if card is not None:
            write_card(layout, card)
        yield
        write_manifest(layout, store.manifest)
    except BaseException:
        # If this fails too, the next attempt does it.
        with contextlib.suppress(OSError, CorruptStoreError):
            if ours and not layout.manifest.exists():
                _discard(layout)
                _discard_folders(layout, root=new)
        raise
    finally:
        with contextlib.suppress(OSError, CorruptStoreError):
            if layout.manifest.exists():
                mark.remove()


def _discard(layout: Layout) -> None:
    """Delete what an unfinished copy wrote; what is not named as a file of a store stays."""
    for name in (*TABLES, *Layout.FOLDERS):
        place = layout.root / name
        place.check_plain()
        folders = {"", *place.listed()[0]}
        for entry in list(place.entries(deep=True)):
            if _OWN.fullmatch(entry.name):
                (place / entry.name).remove()
                folders.add(entry.name.rpartition("/")[0])
        for folder in sorted(folders, reverse=True):
            (place / folder if folder else place).remove_folder()
    layout.card.remove()
    (layout.root / UNFINISHED).remove()


def _discard_folders(layout: Layout, *, root: bool) -> None:
    """Delete the folder of journals, in which this process holds the lock, and that of the store if asked."""
    for name in (MAINTENANCE_LOCK, UNFINISHED_NOTE):
        remove_file(layout.journals / name)
    LocalPlace(layout.journals).remove_folder()
    if root:
        layout.root.remove_folder()
