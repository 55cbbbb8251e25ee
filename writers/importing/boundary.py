"""The boundary of an untrusted source: nothing outside it is read, and one item of it has bounded memory."""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path, PureWindowsPath
from typing import IO, Any, Protocol
from zipfile import BadZipFile

from ...store.common.arguments import whole_number
from ...store.errors import DatasetError, EpisodelakeError
from ...store.files import (
    access_error,
    exists,
    file_state,
    is_denied,
    is_file,
    is_folder,
    is_passing,
    matching,
    real_path,
    user_path,
)

#: The default limit of an item: these bytes, or so many times the bytes of the source.
_LEAST_BYTES, _EXPANSION = 256 << 20, 200
#: Readers take so much at a time, whatever the limit.
_PART_BYTES = 8 << 20
#: The files of a group that lie at the root of a zarr store.
ZARR_ROOTS = ("zarr.json", ".zgroup")
_WIDTHS = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "INT96": 12}
TRUST = "Pass trust=True (--trust) if you trust the author of the source."


@dataclass(frozen=True)
class Boundary:
    """The limits of one import.

    Attributes:
        trust: whether the source may run code and lead outside itself.
        limit: the most bytes that an item may have in memory; None for objects that are there already.
        chosen: whether the caller gave the limit.
    """

    trust: bool = False
    limit: int | None = _LEAST_BYTES
    chosen: bool = False


_CURRENT: ContextVar[Boundary | None] = ContextVar("boundary", default=None)


@contextmanager
def bounded(source: Any, *, trust: bool, max_bytes: int | None) -> Iterator[None]:
    """Check that a source leads nowhere else, and bound what the block reads of it.

    Args:
        trust: let it lead outside itself.
        max_bytes: the most bytes of an item in memory; None for 256 MiB, or 200 times the bytes of the
            source where that is more.

    Raises:
        DatasetError: a folder has a link that leads out of it, a pipe or a device.
        InvalidArgumentError: `max_bytes` is no whole number above 0.
    """
    limit = None if max_bytes is None else whole_number("max_bytes", max_bytes, 1)
    if isinstance(source, Path | Files):
        paths: Sequence[Path] = source.paths if isinstance(source, Files) else [source]
        if isinstance(source, Files) and source.matched and not trust:
            for path in paths:
                _check_entry(real_path(source.base), path)
        size = sum(_size(path, trust) for path in paths)
        limit = expanded(size) if limit is None else limit
    token = _CURRENT.set(Boundary(trust, limit, max_bytes is not None))
    try:
        yield
    finally:
        _CURRENT.reset(token)


@dataclass(frozen=True)
class Files:
    """Files that are one source.

    Attributes:
        paths: absolute, in order; folders among them are zarr stores.
        base: the folder that they all lie in, at some depth.
        pattern: that they match, below the base; empty if the caller named each.
    """

    paths: tuple[Path, ...]
    base: Path
    pattern: str = ""

    @property
    def matched(self) -> bool:
        """Whether they match a pattern."""
        return bool(self.pattern)

    @property
    def identity(self) -> str:
        """The pattern, or the names, by which files of the folder are chosen."""
        return self.pattern or "\0".join(path.relative_to(self.base).as_posix() for path in self.paths)

    def __str__(self) -> str:
        return str(self.paths[0]) if len(self.paths) == 1 else f"{len(self.paths)} files in {self.base}"


def located(source: Any) -> Any:
    """Return an absolute path for one that is given as text, which no reader takes for a URL.

    A `~` at the beginning is the home folder, unless there is a file of that name. A list of paths, and a
    pattern such as `logs/*.csv` at whose place no file is, become `Files`: a path that exists is no pattern.

    Raises:
        DatasetError: a file of a list is not there, or is a folder; no file matches a pattern; or the text is
            empty.
    """
    if isinstance(source, list | tuple) and source and all(isinstance(p, str | os.PathLike) for p in source):
        return _files([located(path) for path in source])
    if not isinstance(source, str | os.PathLike) or "://" in os.fspath(source):
        return source
    if source == "":
        raise DatasetError("The source is an empty text. Pass the path of a file or folder.")
    path = Path(source)
    path = (path if exists(path) else user_path(source)).absolute()
    if exists(path) or not glob.has_magic(str(path)):
        return path
    anchor = Path(path.anchor)
    matches = matching(anchor, str(path.relative_to(anchor)))
    stores = {each for each in matches if is_zarr_folder(each)}
    # `**` also matches what is in a store.
    paths = [
        each for each in matches if (each in stores or is_file(each)) and stores.isdisjoint(each.parents)
    ]
    if not paths:
        raise DatasetError(f"There is no file {source}, and none matches it as a pattern. Check the path.")
    return replace(_files(paths), pattern=str(path))


def _files(paths: Sequence[Any]) -> Files:
    for path in paths:
        if isinstance(path, Path) and is_folder(path) and not is_zarr_folder(path):
            raise DatasetError(
                f"{path} is a folder, and a list of sources has files and zarr stores. Import folders one by "
                "one, or list their files."
            )
        if not isinstance(path, Path) or not exists(path):
            raise DatasetError(f"There is no file {path}, which the list of sources has. Check the path.")
    return Files(tuple(paths), Path(os.path.commonpath([path.parent for path in paths])))


def is_zarr_folder(path: Path) -> bool:
    """Return whether a folder has a zarr group at its root, so that it counts as one file."""
    return any(is_file(path / name) for name in ZARR_ROOTS)


@contextmanager
def reading(place: Any, problem: str = "cannot be read") -> Iterator[None]:
    """Turn whatever a library raises at a source into an error of ours.

    Args:
        place: the file, dataset or episode that the message names.
        problem: what failed, as the predicate of `place`.

    Raises:
        StoreUnavailableError: the system could not read for now, as without a free file descriptor.
        StoreAccessError: the system refused access.
        DatasetError: the block failed with another error: the source is damaged, or has an unknown form.
    """
    try:
        yield
    except EpisodelakeError:
        raise
    except Exception as error:
        check_access(place, error, problem)
        is_path = isinstance(place, os.PathLike)
        if is_path and isinstance(error, FileNotFoundError) and not os.path.lexists(place):
            raise DatasetError(
                f"{place} is missing. Check the path; of a dataset, get a whole copy, or leave out what "
                "needs the file with on_error='skip' (--skip-errors)."
            ) from error
        raise DatasetError(
            f"{place} {problem}: {type(error).__name__}: {str(error)[:500].rstrip('.')}. The source is "
            "damaged, or its form is not supported."
        ) from error


@contextmanager
def guarded(place: Any) -> Iterator[None]:
    """Turn errors of the system at a source into errors of ours, and pass all others on.

    Raises:
        StoreUnavailableError: the system could not read for now.
        StoreAccessError: the system refused access.
    """
    try:
        yield
    except OSError as error:
        if not isinstance(error, EpisodelakeError):
            check_access(place, error)
        raise


def check_access(place: Any, error: Exception, problem: str = "cannot be read") -> None:
    """Raise an error of ours for one that says nothing about a source, as `reading` does.

    Memory that runs out says something: a small source may claim any size.
    """
    # For zipfile, a file that it cannot read is no zip file.
    if isinstance(error, BadZipFile) and isinstance(error.__context__, OSError):
        error = error.__context__
    # FFmpeg reports damaged frames of a file that may well be read as "Operation not permitted" (EPERM).
    doubtful = getattr(error, "errno", None) == errno.EPERM and _may_be_read(place)
    denied = is_denied(error) and not doubtful
    if not isinstance(error, MemoryError) and (is_passing(error) or denied):
        raise access_error(f"{place} {problem}", error, place) from error


def _may_be_read(place: Any) -> bool:
    return isinstance(place, str | os.PathLike) and os.path.isfile(place) and os.access(place, os.R_OK)


class Closable(Protocol):
    """Holds files open."""

    def close(self) -> None:
        """Close them."""


@contextmanager
def closed_on_error(files: Closable) -> Iterator[None]:
    """Close files if the block fails."""
    try:
        yield
    except BaseException:
        files.close()
        raise


def boundary() -> Boundary:
    """Return the limits of the import that runs."""
    return _CURRENT.get() or Boundary()


def check_unpickled(place: Any) -> None:
    """Refuse a pickle unless the import trusts its source.

    Raises:
        DatasetError: names the place.
    """
    if not boundary().trust:
        raise DatasetError(f"{place} is pickled, and reading a pickle can run any code. {TRUST}")


def expanded(stored: int) -> int:
    """Return how many bytes so many stored ones may become by default."""
    return max(_LEAST_BYTES, _EXPANSION * stored)


def is_too_large(count: float) -> bool:
    """Return whether an item of so many bytes is too large for memory."""
    limit = boundary().limit
    return limit is not None and count > max(limit, _PART_BYTES)


def check_bytes(place: str, count: int) -> None:
    """Refuse an item that is too large for memory.

    Args:
        place: the item, as the subject of a sentence.
        count: its bytes.

    Raises:
        DatasetError: it is larger than the limit of this import.
    """
    limit = boundary()
    if is_too_large(count):
        reason = "max_bytes" if limit.chosen else f"the larger of 256 MiB and {_EXPANSION} times the source"
        raise DatasetError(
            f"{place} takes {count:,} bytes in memory; the limit is {limit.limit:,} ({reason}). If that size "
            f"is right, pass max_bytes={count} (--max-bytes {count}) or more."
        )


def bounded_line(file: IO[bytes], place: str) -> bytes:
    """Return the next line of a file; empty at its end.

    Args:
        place: the line, as the subject of a sentence.

    Raises:
        DatasetError: it is larger than the limit of this import.
    """
    limit = boundary().limit
    if limit is None:
        return file.readline()
    line = file.readline(max(limit, _PART_BYTES) + 1)
    count, part = len(line), line
    while part and count > max(limit, _PART_BYTES) and not part.endswith(b"\n"):
        part = file.readline(_PART_BYTES)  # so that the error names a limit that suffices
        count += len(part)
    check_bytes(place, count)
    return line


def check_groups(place: str, metadata: Any, groups: Iterable[int] | None = None) -> None:
    """Refuse row groups of a Parquet file that are too large for memory.

    Args:
        metadata: of the file.
        groups: those that are to be in memory together; None for all.

    Raises:
        DatasetError: they are larger than the limit of this import.
    """
    chosen = map(metadata.row_group, range(metadata.num_row_groups) if groups is None else groups)
    columns = (group.column(index) for group in chosen for index in range(group.num_columns))
    # Encodings may make a value of next to nothing.
    count = sum(
        max(each.total_uncompressed_size, each.num_values * _WIDTHS.get(each.physical_type, 0))
        for each in columns
    )
    check_bytes(place, count)


def check_not_empty(path: Path) -> None:
    """Refuse a file of 0 bytes, as an interrupted copy leaves it.

    Raises:
        DatasetError: names the file.
    """
    if not file_state(path).st_size:
        raise DatasetError(f"{path} is empty: it has 0 bytes. Copy or download it again, or leave it out.")


def inside(folder: Path, name: Any) -> Path:
    """Return the path of a file that a dataset names; it is in the folder.

    Raises:
        DatasetError: the name is no relative path, or leads out of the folder.
    """
    # Windows' rules refuse all that POSIX' do.
    path = PureWindowsPath(name) if isinstance(name, str) else None
    if path is None or path.anchor or ".." in path.parts or not path.parts or "\0" in str(name):
        raise DatasetError(f"{folder}: the file name {name!r:.200} leads out of the dataset.")
    return folder / name


def _size(path: Path, trust: bool) -> int:
    """Return the bytes of a file, or of all files of a folder; checks the folder."""
    if not is_folder(path):
        return file_state(path).st_size if is_file(path) else 0
    total = 0
    root = Path(os.path.realpath(path))
    waiting: list[str | Path] = [root]
    while waiting:
        folder = waiting.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except FileNotFoundError:
            continue
        except OSError as error:
            # Its files may be opened by name all the same.
            if trust:
                continue
            raise access_error(f"{folder} of the source cannot be listed", error, folder) from error
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
                continue
            is_plain = entry.is_file(follow_symlinks=False)
            if not (is_plain or trust):
                _check_entry(root, Path(entry.path))
            if is_plain or is_file(entry.path):
                total += entry.stat().st_size
    return total


def _check_entry(root: Path, path: Path) -> None:
    """Refuse a link that leads out of a folder, a pipe or a device."""
    target = Path(os.path.realpath(path))
    if exists(target) and not (is_file(target) or is_folder(target)):
        raise DatasetError(f"{path} is no file, but a pipe or a device. {TRUST}")
    allowed = [root]
    if root.parent.name == "snapshots" and root.parents[1].name.startswith(("datasets--", "models--")):
        # The Hugging Face Hub's cache keeps the files of a snapshot there.
        allowed.append(root.parents[1] / "blobs")
    if not any(target.is_relative_to(each) for each in allowed):
        raise DatasetError(f"{path} is a link to {target}, outside of the source. {TRUST}")
