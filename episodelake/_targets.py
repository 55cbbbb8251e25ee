"""Where a new store may come to lie, and what it may be made of: checked before anything of it is created."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

from .store.errors import InvalidArgumentError
from .store.handle import StoreHandle
from .store.layout import Layout
from .store.maintenance.merging import check_spaces
from .store.places import locate
from .store.snapshot import Snapshot


def check_sources(into: str | PathLike[str], snapshots: Sequence[Snapshot]) -> None:
    """Make sure that a new store can be made of others.

    Args:
        into: where it would be.
        snapshots: the others; the first one's spaces are the new store's.

    Raises:
        SpaceMismatchError: one has other spaces than the first.
        InvalidArgumentError: the new store would lie in one of them.
    """
    first = StoreHandle(snapshots[0].layout, snapshots[0].manifest)
    for snapshot in snapshots:
        check_spaces(first, snapshot)
        check_outside(into, snapshot.layout)


def check_outside(into: str | PathLike[str], source: Layout) -> None:
    """Refuse a folder for a new store that lies in a store.

    Raises:
        InvalidArgumentError: it does, or it is no path.
    """
    if source.root.local is None or "://" in str(into):
        return
    target = locate(into).local
    folder = source.root.local.resolve()
    if target is not None and folder in target.resolve().parents:
        raise InvalidArgumentError(
            f"{target} lies in the store {folder}, which holds its own files only. Choose a path outside."
        )
