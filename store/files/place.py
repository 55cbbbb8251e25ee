"""`Place`: a file or folder of a store, local or remote."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CorruptStoreError
from .access import CHUNK_BYTES as CHUNK_BYTES


@dataclass(frozen=True)
class Entry:
    """A file below a folder.

    Attributes:
        name: relative to the folder that was listed, with slashes.
        size: bytes.
        modified: seconds since 1970.
    """

    name: str
    size: int
    modified: float


class Place(ABC):
    """A file or a folder of a store.

    `str(place)` is what delta-rs and Polars take: an absolute path, or a URL. What the system refuses is a
    `StoreAccessError` that names the place; of a file that is not there a `MissingFileError`, of a name that
    is taken a `FileTakenError`. Code that has another library open a path uses `guard_access`.
    """

    @abstractmethod
    def __truediv__(self, name: str) -> Place:
        """Return the file or folder `name` in this folder."""

    @abstractmethod
    def __str__(self) -> str:
        """Return an absolute path, or a URL."""

    def __repr__(self) -> str:
        """Return the path or URL, quoted; options are left out, since they may hold secrets."""
        return f"{type(self).__name__}({str(self)!r})"

    @property
    @abstractmethod
    def name(self) -> str:
        """The last part of the path."""

    @property
    @abstractmethod
    def parent(self) -> Place:
        """The folder that contains it."""

    @property
    def local(self) -> Path | None:
        """The path on this machine's file system; None if it has none."""
        return None

    @property
    def remote(self) -> bool:
        """Whether it is on an object store; of thousands of places this costs less than `local`."""
        return self.local is None

    @property
    def options(self) -> dict[str, str] | None:
        """`storage_options` for delta-rs and Polars; None if there are none."""
        return None

    @abstractmethod
    def exists(self) -> bool:
        """Return whether there is such a file, or a folder with something in it."""

    @abstractmethod
    def size(self) -> int:
        """Bytes of the file."""

    @abstractmethod
    def check_plain(self) -> None:
        """Refuse links and special files, before an engine opens the file by name.

        Raises:
            CorruptStoreError: it is a link, which may lead out of the store, or a pipe.
        """

    @abstractmethod
    def read(self, most: int | None = None) -> bytes:
        """Read the file.

        Args:
            most: the largest size that makes sense, in bytes; None for any.

        Raises:
            CorruptStoreError: it is larger; nothing was read.
        """

    @abstractmethod
    def chunks(self) -> Iterator[bytes]:
        """Yield the file in pieces, so that memory stays constant whatever its size."""

    @abstractmethod
    def read_tail(self, count: int) -> tuple[bytes, int]:
        """Return the last `count` bytes (all, if there are fewer), and the size of the file."""

    @abstractmethod
    def write(self, data: bytes | Iterator[bytes], *, exclusive: bool = False) -> None:
        """Write a file atomically and durably.

        Args:
            data: the content, or its pieces, which are never all in memory. If they raise an error, nothing
                is written.
            exclusive: fail if the name is taken, instead of replacing the file; takes bytes only.

        Raises:
            FileTakenError: `exclusive`, and the name is taken; of several that try, one succeeds.
            StoreAccessError: it is not written; if `unsynced`, readers see it, and a crash of the machine may
                undo that.
        """

    @abstractmethod
    def check_exclusive(self) -> None:
        """Make sure, once per process and store, that this folder's system honours `exclusive` writes.

        The first exclusive write checks it too; recorders check it before they begin.

        Raises:
            StoreAccessError: it does not, so writers would overwrite each other's commits.
        """

    @abstractmethod
    def written(self) -> AbstractContextManager[Path]:
        """Return a local path to write the content to; when the block ends without an error it is made
        durable here.

        On failure the file is not there, or is part of a file that no table lists.
        """

    @abstractmethod
    def copy_from(self, source: Place, *, link: bool = False) -> None:
        """Take over the bytes of another place; `link` lets both names share them where that is possible."""

    @abstractmethod
    def remove(self) -> None:
        """Delete the file; one that is not there is no error."""

    @abstractmethod
    def make_folder(self) -> None:
        """Make the folder and those above it, if they are missing."""

    @abstractmethod
    def remove_folder(self) -> None:
        """Delete the folder if it is empty."""

    @abstractmethod
    def entries(self, *, deep: bool = False) -> Iterator[Entry]:
        """Return the files in this folder (`deep`: and in the folders below); none if there is no such
        folder.
        """

    @abstractmethod
    def names(self) -> list[str]:
        """Return names of the files and folders in this folder, sorted; empty if there is no such folder."""

    @abstractmethod
    def listed(self) -> tuple[list[str], list[str]]:
        """Return names of the folders in this folder, without links, and of the files, both sorted.

        A folder that is not there is empty.
        """

    @abstractmethod
    def sync(self) -> None:
        """Make the file, or the names in the folder, durable."""

    @abstractmethod
    def parquet_source(self, size: int | None = None) -> Any:
        """Return what `pyarrow.parquet.ParquetFile` takes.

        Args:
            size: bytes of the file, where they are known; spares a request to an object store.
        """

    @abstractmethod
    def filesystem(self) -> tuple[Any, str]:
        """Return a `pyarrow.fs.FileSystem` and this place's path in it."""


def oversized_error(place: object, size: int, most: int) -> CorruptStoreError:
    """Return the error for a file that is too large to be what it should be."""
    return CorruptStoreError(
        f"{place} has {size:,} bytes; expected {most:,} at most. It is damaged: restore it from a copy."
    )
