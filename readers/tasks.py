"""Episodes for tasks elsewhere: groups of neighbours, and the address of the version that tasks open."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

import numpy as np

from ..store.errors import StoreNotFoundError, replaced_error
from ..store.layout import Layout
from ..store.manifest import read_manifest
from ..store.snapshot import Snapshot
from .context import ReadContext
from .view import ReadView


@dataclass(frozen=True)
class Address:
    """A version of a store, wherever a task runs."""

    path: str
    version: int
    store_id: str | None
    storage_options: tuple[tuple[str, str], ...] = field(repr=False)

    @classmethod
    def of(cls, layout: Layout, version: int) -> Address:
        """Return the address of a version of the store with this layout."""
        root = layout.root
        options = tuple(sorted((root.options or {}).items()))
        return cls(str(root), version, layout.store_id, options)

    @staticmethod
    def groups(sizes: np.ndarray, capacity: int) -> list[slice]:
        """Cut neighbours into groups of about `capacity`.

        Where the sum passes a multiple of it, a group ends.

        Args:
            sizes: int64, shape (E,), such as rows of episodes. Groups have a positive size.
        """
        ends = np.cumsum(sizes)
        if not len(ends) or not ends[-1]:
            return []
        edges = np.unique(np.searchsorted(ends, np.arange(capacity, int(ends[-1]), capacity)) + 1)
        bounds = [0, *edges[edges < len(sizes)].tolist(), len(sizes)]
        return [slice(*pair) for pair in pairwise(bounds)]

    def open(self) -> ReadView:
        """Open all episodes of the version; a process keeps the last few versions open.

        Raises:
            StoreNotFoundError: this machine does not see the store, or another one is there now.
            VersionNotFoundError: the version was vacuumed meanwhile.
        """
        return _opened(self)


@lru_cache(8)
def _opened(address: Address) -> ReadView:
    try:
        layout = Layout.at(address.path, dict(address.storage_options) or None)
        manifest = read_manifest(layout)
    except StoreNotFoundError as error:
        raise StoreNotFoundError(
            f"The machine {socket.gethostname()!r} does not see the store at {address.path!r}. Every machine "
            "of the cluster reads it: put it on a file system that all share, or on an object store."
        ) from error
    if address.store_id not in (None, manifest.store_id):
        raise replaced_error(layout.root)
    snapshot = Snapshot(layout.of_store(manifest.store_id), manifest, address.version)
    snapshot.check_retained()
    return ReadView(ReadContext.of(snapshot))
