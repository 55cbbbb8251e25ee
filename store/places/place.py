"""`Place`: a file or folder of a store, wherever it lies."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError

_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")
_URL = re.compile("^([a-zA-Z][a-zA-Z0-9+.-]*)://")
_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "memory", "file")


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

    `str(place)` is what delta-rs and Polars take: an absolute path, or a URL. What the system refuses is an
    `OSError`; `guard_access` turns it into a `StoreAccessError` that names the place.
    """

    @abstractmethod
    def __truediv__(self, name: str) -> Place:
        """The file or folder `name` in this folder."""

    @abstractmethod
    def __str__(self) -> str:
        """An absolute path, or a URL."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The last part of the path."""

    @property
    @abstractmethod
    def parent(self) -> Place:
        """The folder that this lies in."""

    @property
    def local(self) -> Path | None:
        """The path on this machine's file system; None if it has none."""
        return None

    @property
    def options(self) -> dict[str, str] | None:
        """`storage_options` for delta-rs and Polars; None if there are none."""
        return None

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is such a file, or a folder with something in it."""

    @abstractmethod
    def size(self) -> int:
        """Bytes of the file."""

    @abstractmethod
    def check_plain(self) -> None:
        """Refuse what is no file of its own.

        Raises:
            CorruptStoreError: it is a link, which may lead out of the store, or a pipe.
        """

    @abstractmethod
    def read(self) -> bytes:
        """The whole file."""

    @abstractmethod
    def read_tail(self, count: int) -> tuple[bytes, int]:
        """The last `count` bytes (all, if there are fewer), and the size of the file."""

    @abstractmethod
    def write(self, data: bytes, *, exclusive: bool = False) -> None:
        """Write a file that readers see either whole or not at all, and make it durable.

        Args:
            data: the content.
            exclusive: fail if the name is taken, instead of replacing the file.

        Raises:
            FileExistsError: `exclusive`, and the name is taken; of several that try, one succeeds.
        """

    @abstractmethod
    def written(self) -> AbstractContextManager[Path]:
        """A local path to write the content to; when the block ends without an error it is made durable here.

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
        """The files in this folder (`deep`: and in the folders below); none if there is no such folder."""

    @abstractmethod
    def names(self) -> list[str]:
        """Names of the files and folders in this folder, sorted; empty if there is no such folder."""

    @abstractmethod
    def sync(self) -> None:
        """Make the file, or the names in the folder, durable."""

    @abstractmethod
    def parquet_source(self) -> Any:
        """What `pyarrow.parquet.ParquetFile` takes."""

    @abstractmethod
    def filesystem(self) -> tuple[Any, str]:
        """A `pyarrow.fs.FileSystem` and this place's path in it."""


def _plain(path: Path) -> Path:
    """An absolute path without the steps `folder/..`, for people to read.

    What stands behind a link is left as it is: there `..` leads to where the link points, not back. So is
    what stands behind a folder that is not there.
    """
    plain = Path(path.anchor)
    for part in path.parts[1:]:
        back = part == ".." and plain.name != ".." and plain.is_dir() and not plain.is_symlink()
        plain = plain.parent if back else plain / part
    return plain


def locate(path: str | PathLike[str], storage_options: Mapping[str, str] | None = None) -> Place:
    """The place that a path or a URL names.

    Args:
        path: a path of this machine, made absolute and plain; or `s3://`, `gs://`, `az://` or `memory://`.
        storage_options: keys of object_store, as delta-rs, Polars and obstore take them.

    Raises:
        InvalidArgumentError: it is neither text nor a path object, the scheme is unknown, a library is
            missing, or the path holds a percent escape.
    """
    try:
        text = fspath(path)
    except TypeError as error:
        raise InvalidArgumentError(
            f"{path!r} is no path of a store; expected text or a path object, such as 'data/cartpole'."
        ) from error
    found = _URL.match(text) if isinstance(text, str) else None
    scheme = found.group(1).lower() if found else "file"
    if found and scheme not in _SCHEMES:
        raise InvalidArgumentError(
            f"{text!r} has the unknown scheme {scheme}://. Use a path, or one of: "
            f"{', '.join(f'{known}://' for known in _SCHEMES)}."
        )
    place: Place
    if scheme == "file":
        from .local import LocalPlace

        place = LocalPlace(_plain(Path(text[len("file://") :] if found else text).absolute()))
    elif scheme == "memory":
        from .memory import memory_place

        place = memory_place(text[len("memory://") :])
    else:
        from .remote import remote_place

        place = remote_place(text, dict(storage_options or {}))
    if _ESCAPE.search(str(place)):
        raise InvalidArgumentError(
            f"The path {place} holds a percent sign with two hexadecimal digits, which the table library "
            "takes for an escaped character. Choose or rename the folder so that it has none."
        )
    return place
