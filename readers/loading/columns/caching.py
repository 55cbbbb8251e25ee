"""`Cache`: the place of a loader's columns: decoded in memory, mapped from a cache folder, or streamed."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from ....store.errors import InvalidArgumentError
from ..arguments import whole_number
from .cache_folder import chosen_folder

CacheKind = Literal["memory", "mmap", "stream"]
_OPTIONS = {"memory": (), "mmap": ("folder", "max_bytes"), "stream": ("buffer_bytes",)}


@dataclass(frozen=True)
class Cache:
    """The place of a loader's columns; `store.loader(256, cache=el.Cache("mmap", folder="/scratch"))`.

    Args:
        kind: "memory", decoded; "mmap", decoded once into files of this machine that processes share;
            "stream", read again each epoch, in groups of row groups.
        folder: of "mmap"; None for `EPISODELAKE_CACHE`, or the user's folder for caches.
        max_bytes: of "mmap": most bytes of that folder; None for 50 GiB, or half of the disk if that is less.
        buffer_bytes: of "stream": most bytes of decoded values at a time; None for 1 GiB.

    Raises:
        InvalidArgumentError: there is no such kind, an option is not one of this kind, or a value makes no
            sense.
    """

    kind: CacheKind = "memory"
    _: KW_ONLY
    folder: str | os.PathLike[str] | None = None
    max_bytes: int | None = None
    buffer_bytes: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in _OPTIONS:
            raise InvalidArgumentError(
                f"cache={self.kind!r}: expected 'memory', 'mmap', 'stream' or el.Cache(...)."
            )
        for kind, names in _OPTIONS.items():
            given = [name for name in names if getattr(self, name) is not None]
            if given and kind != self.kind:
                raise InvalidArgumentError(
                    f"{' and '.join(given)} belong to Cache({kind!r}), not to Cache({self.kind!r}). Leave "
                    f"them out, or write Cache({kind!r}, ...)."
                )
        for name in ("max_bytes", "buffer_bytes"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 1)
        if self.kind == "mmap":
            chosen_folder(self.folder)

    @staticmethod
    def of(value: Any) -> Cache:
        """Return the argument `cache` of a loader as an object."""
        return value if isinstance(value, Cache) else Cache(value)
