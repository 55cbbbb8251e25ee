"""Contents of files in a store, named by their SHA-256 and streamed in constant memory.

Runs, saved environments and named artifacts refer to them; equal contents are kept once. The bundle of a run
is a JSON text in its row that lists the files of its environment: writers make it, readers make the
environment again with it, and a merge carries the artifacts along.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import CorruptStoreError, InvalidArgumentError, MissingFileError
from ..files import Place, make_folder, replacing
from ..files.access import read_chunks, touching
from ..layout import Layout

MOST_FILES = 1000

_LONGEST_NAME = 200
_HASH = re.compile(r"[0-9a-f]{64}")
_PART = re.compile(r"(?! )[^/\\:*?\"<>|\x00-\x1f\x7f]+(?<![ .])")


@dataclass(frozen=True)
class KeptFile:
    """A file that an environment needs.

    Attributes:
        name: a relative path with slashes, under which it is unpacked.
        sha256: of its content, in hexadecimal; the artifact's name.
        size: bytes.
    """

    name: str
    sha256: str
    size: int


@dataclass(frozen=True)
class EnvBundle:
    """The part of a run's environment that is kept beside its spec and the versions of packages.

    Attributes:
        made_by: the class of the innermost environment, as `module:Name`; for people.
        files: the files that it needs.
        problems: sentences on what could not be kept.
    """

    made_by: str
    files: tuple[KeptFile, ...] = ()
    problems: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the text of the column `env_bundle`."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str, where: str) -> EnvBundle:
        """Read a bundle that any program may have written.

        Raises:
            CorruptStoreError: it is no bundle, or a file's name or hash is not valid; names `where`.
        """
        try:
            content = json.loads(text)
            files = tuple(checked_file(entry) for entry in content["files"])
            made_by, problems = content["made_by"], tuple(content["problems"])
            if not all(type(each) is str for each in (made_by, *problems)):
                raise ValueError("a value is no text")
            check_names([file.name for file in files])
            if len(files) > MOST_FILES:
                raise ValueError(f"it has {len(files)} files")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptStoreError(f"{where} has a damaged environment bundle: {error}.") from error
        return EnvBundle(made_by, files, problems)


def checked_file(entry: Mapping[str, Any]) -> KeptFile:
    """Read the description of a kept file; raises ValueError, KeyError or TypeError if it is not valid."""
    file = KeptFile(entry["name"], entry["sha256"], entry["size"])
    if type(file.sha256) is not str or not is_hash(file.sha256):
        raise ValueError(f"{str(file.sha256)[:80]!r} is no SHA-256")
    if type(file.size) is not int or not 0 <= file.size < 1 << 63:
        raise ValueError(f"a file of {str(file.size)[:80]} bytes")
    return file


def is_hash(text: str) -> bool:
    """Return whether a text is a SHA-256 in lower-case hexadecimal."""
    return _HASH.fullmatch(text) is not None


def check_names(names: Iterable[object]) -> None:
    """Refuse names that lead out of the folder that files are unpacked to, or get in each other's way.

    Raises:
        InvalidArgumentError: which one, and what is expected.
    """
    seen: dict[str, str] = {}
    for name in names:
        parts = name.split("/") if isinstance(name, str) else []
        if (
            not isinstance(name, str)
            or not name.isprintable()
            or not 0 < len(name.encode()) <= _LONGEST_NAME
            or not all(_PART.fullmatch(part) for part in parts)
        ):
            raise InvalidArgumentError(
                f"{str(name)[:_LONGEST_NAME]!r} is no name for a file of an environment; expected a relative "
                "path with slashes, such as 'assets/torso.stl'."
            )
        folded = name.casefold()
        if folded in seen:
            raise InvalidArgumentError(f"The files {seen[folded]!r} and {name!r} have the same name.")
        seen[folded] = name
    for folded, name in seen.items():
        above = folded.rpartition("/")[0]
        while above:
            if above in seen:
                raise InvalidArgumentError(f"{seen[above]!r} is a file and the folder of {name!r}.")
            above = above.rpartition("/")[0]


@touching("read")
def file_chunks(path: Path) -> Iterator[bytes]:
    """Yield a file of the caller in pieces."""
    yield from read_chunks(os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0)))


def keep_artifact(layout: Layout, read: Callable[[], Iterable[bytes]]) -> tuple[str, int]:
    """Keep a content once, durably and atomically.

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
    layout.artifacts.make_folder()
    if not _renewed(place, digest):
        place.write(_checked(read(), digest))
    return digest, size


def measure(pieces: Iterable[bytes]) -> tuple[str, int]:
    """Return the SHA-256 of a content in hexadecimal, and its bytes."""
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
    return digest.hexdigest(), size


@touching("keep")
def _renewed(place: Place, digest: str) -> bool:
    """Return whether an intact content is there, with a new modification time.

    Objects have no modification time to set: they are written anew, as are damaged files.
    """
    if place.local is None or not place.exists() or measure(place.chunks())[0] != digest:
        return False
    with contextlib.suppress(PermissionError):  # another user's file
        os.utime(place.local)
        return True
    return False


def _checked(pieces: Iterable[bytes], digest: str) -> Iterator[bytes]:
    hashed = hashlib.sha256()
    for piece in pieces:
        hashed.update(piece)
        yield piece
    if hashed.hexdigest() != digest:
        raise InvalidArgumentError("A file changed while it was read. Keep it when no program writes it.")


def artifact_chunks(layout: Layout, file: KeptFile) -> Iterator[bytes]:
    """Yield the content of a kept file; it is checked once the last piece was taken.

    Raises:
        CorruptStoreError: it is missing, or is not what was kept; the message names it.
        StoreAccessError: it cannot be read.
    """
    place = layout.artifacts / file.sha256
    digest, size = hashlib.sha256(), 0
    try:
        # Before it is read: what stands there may be of any size.
        size = place.size()
        if size == file.size:
            for piece in place.chunks():
                digest.update(piece)
                yield piece
    except MissingFileError as error:
        raise CorruptStoreError(
            f"The artifact {place} is missing; it is the file {file.name!r}. Restore it from a copy."
        ) from error
    if size != file.size or digest.hexdigest() != file.sha256:
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
        make_folder(path.parent)
        with replacing(path) as draft, open(draft, "xb") as target:
            target.writelines(artifact_chunks(layout, file))
