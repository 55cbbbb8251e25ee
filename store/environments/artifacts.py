"""Contents of files in a store, named by their SHA-256 and streamed in constant memory.

Runs, saved environments and named artifacts refer to them; equal contents are kept once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ..errors import CorruptStoreError, InvalidArgumentError
from ..files import guard_access, replacing
from ..layout import Layout
from ..places import Place
from ..places.place import CHUNK_BYTES
from .bundle import KeptFile


def file_chunks(path: Path) -> Iterator[bytes]:
    """Yield a file of the caller in pieces."""
    with open(path, "rb") as file:
        while data := file.read(CHUNK_BYTES):
            yield data


def keep_artifact(layout: Layout, read: Callable[[], Iterable[bytes]]) -> tuple[str, int]:
    """Keep a content once, durably and whole or not at all.

    A content that is there already gets a new modification time, so no vacuum deletes it before the caller
    has committed what refers to it.

    Args:
        layout: of the store.
        read: returns the content's pieces, from the beginning with each call.

    Returns:
        The SHA-256 in hexadecimal, and the number of bytes.

    Raises:
        InvalidArgumentError: the content changed while it was read; nothing was kept.
        StoreAccessError: the store cannot be written.
    """
    digest, size = measure(read())
    place = layout.artifacts / digest
    with guard_access("keep the file", place):
        layout.artifacts.make_folder()
        if not _renewed(place, digest):
            place.write(_checked(read(), digest))
    return digest, size


def measure(pieces: Iterable[bytes]) -> tuple[str, int]:
    """Return the SHA-256 of a content in hexadecimal, and its bytes."""
    found, size = hashlib.sha256(), 0
    for piece in pieces:
        found.update(piece)
        size += len(piece)
    return found.hexdigest(), size


def _renewed(place: Place, digest: str) -> bool:
    """Return whether a content is there, is whole, and got a new modification time.

    Objects have no modification time to set: they are written anew, as are damaged files.
    """
    if place.local is None or not place.exists() or measure(place.chunks())[0] != digest:
        return False
    with contextlib.suppress(PermissionError):  # another user's file
        os.utime(place.local)
        return True
    return False


def _checked(pieces: Iterable[bytes], digest: str) -> Iterator[bytes]:
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
        yield piece
    if found.hexdigest() != digest:
        raise InvalidArgumentError("A file changed while it was read. Keep it when no program writes it.")


def artifact_chunks(layout: Layout, file: KeptFile) -> Iterator[bytes]:
    """Yield the content of a kept file; it is checked once the last piece was taken.

    Raises:
        CorruptStoreError: it is missing, or is not what was kept; the message names it.
        StoreAccessError: it cannot be read.
    """
    place = layout.artifacts / file.sha256
    found, size = hashlib.sha256(), 0
    try:
        with guard_access("read the file", place):
            # Before it is read: what stands there may be of any size.
            size = place.size()
            if size == file.size:
                for piece in place.chunks():
                    found.update(piece)
                    yield piece
    except OSError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise CorruptStoreError(
                f"The artifact {place} is missing; it is the file {file.name!r}. Restore it from a copy."
            ) from error
        raise
    if size != file.size or found.hexdigest() != file.sha256:
        raise CorruptStoreError(
            f"The artifact {place} is damaged: its content ({size} bytes; {file.size} were kept) has another "
            f"SHA-256 than its name. It is the file {file.name!r}; restore it from a copy."
        )


def unpack(layout: Layout, files: Iterable[KeptFile], folder: Path) -> None:
    """Write the files below a folder, under their names, each in place of a file that is there.

    Raises:
        CorruptStoreError: see `artifact_chunks`; the file was not written.
        StoreAccessError: the folder cannot be written.
    """
    for file in files:
        path = folder.joinpath(*file.name.split("/"))
        with guard_access("unpack the file", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as draft, open(draft, "xb") as target:
                target.writelines(artifact_chunks(layout, file))
