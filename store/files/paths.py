"""Plain paths of this machine, with errors as for `Place`: `StoreAccessError`, `MissingFileError`.

Depending on its version, Python's `exists`, `is_dir` and `is_file` return False for an error or raise it.
"""

from __future__ import annotations

import errno
import glob
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from .access import read_chunks, touching

_NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
_BINARY: int = getattr(os, "O_BINARY", 0)
_PLAIN: int = _NOFOLLOW | getattr(os, "O_NONBLOCK", 0) | _BINARY


@touching("look at")
def file_state(path: str | os.PathLike[str]) -> os.stat_result:
    """Return the `stat` of a path."""
    return os.stat(path)


@touching("look at")
def stat_or_none(path: str | os.PathLike[str], *, follow: bool = True) -> os.stat_result | None:
    """Return the `stat` of a path; None if nothing is there.

    Raises:
        StoreAccessError: the system cannot tell.
    """
    try:
        return os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise


def exists(path: str | os.PathLike[str], *, follow: bool = True) -> bool:
    """Return whether something is at a path; raises as `stat_or_none`."""
    return stat_or_none(path, follow=follow) is not None


def is_folder(path: str | os.PathLike[str], *, follow: bool = True) -> bool:
    """Return whether a path is a folder, or a link to one; raises as `stat_or_none`."""
    state = stat_or_none(path, follow=follow)
    return state is not None and stat.S_ISDIR(state.st_mode)


def is_file(path: str | os.PathLike[str], *, follow: bool = True) -> bool:
    """Return whether a path is a file, or a link to one; raises as `stat_or_none`."""
    state = stat_or_none(path, follow=follow)
    return state is not None and stat.S_ISREG(state.st_mode)


def is_link(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a link; raises as `stat_or_none`."""
    state = stat_or_none(path, follow=False)
    return state is not None and stat.S_ISLNK(state.st_mode)


@touching("look at")
def real_path(path: Path) -> Path:
    """Return an absolute path without links; what is missing of it stays as it is.

    Raises:
        StoreAccessError: links in it lead in a circle.
    """
    try:
        os.stat(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise
    return Path(os.path.realpath(path))


@touching("open")
def open_plain(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Open a file without following a link or waiting for a pipe; like `os.open`.

    Raises:
        StoreAccessError: among others with the `errno` `ELOOP` for a link.
    """
    if not _NOFOLLOW and is_link(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
    return os.open(path, flags | _PLAIN, mode)


@touching("read")
def read_plain(path: Path) -> bytes:
    """Return the content of a file of ours, which is no link."""
    return b"".join(read_chunks(open_plain(path)))


@touching("read")
def read_file(path: Path) -> bytes:
    """Return the content of a file of the user, which may be a link."""
    return b"".join(read_chunks(os.open(path, os.O_RDONLY | _BINARY)))


@touching("write")
def write_file(path: Path, data: bytes) -> None:
    """Write a file of the user in place, which may be a link."""
    path.write_bytes(data)


@touching("list")
def names_in(path: Path) -> list[str]:
    """Return the names in a folder, sorted."""
    return sorted(os.listdir(path))


def _raise_unless_absent(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


@touching("list")
def walk(path: str | os.PathLike[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk as `os.walk` does, and raise where a folder cannot be listed; one that is gone counts as empty."""
    yield from os.walk(os.fspath(path), onerror=_raise_unless_absent)


def matching(folder: Path, pattern: str) -> list[Path]:
    """Return the files and folders below a folder that match a pattern, sorted; none without a folder.

    Python's `glob` leaves out a folder that it cannot list; here that is an error.

    Args:
        pattern: of relative paths; `*` stands for no name with a dot at its beginning, `**` for any folders.

    Raises:
        StoreAccessError: the system cannot list a folder.
    """
    return sorted(set(_matching(folder, Path(pattern).parts))) if is_folder(folder) else []


def _matching(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    if not parts:
        yield folder
        return
    first, rest = parts[0], parts[1:]
    names = [first] if exists(folder / first, follow=False) else []
    if glob.has_magic(first):
        hidden = first.startswith(".")
        names = [each for each in names_in(folder) if fnmatch(each, first) and each.startswith(".") == hidden]
    if first == "**":
        yield from _matching(folder, rest)
    for path in (folder / name for name in names):
        inner = is_folder(path)
        if first == "**" and inner:
            leads_up = is_link(path) and Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(path))
            yield from () if leads_up else _matching(path, parts)
        elif inner or not rest:
            yield from _matching(path, rest) if first != "**" else [path]


@touching("create")
def make_folder(path: Path) -> None:
    """Make a folder and those above it, where they are missing."""
    path.mkdir(parents=True, exist_ok=True)


@touching("make a temporary folder")
def temporary_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """Return a new folder of this process, with a name that begins so; it is deleted with the object."""
    return tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)


@touching("delete")
def remove_file(path: Path) -> None:
    """Delete a file; one that is not there is no error."""
    path.unlink(missing_ok=True)


@touching("delete")
def remove_tree(path: Path) -> None:
    """Delete a folder with all that is in it."""
    shutil.rmtree(path)
