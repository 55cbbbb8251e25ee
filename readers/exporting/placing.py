"""Where an export comes to lie: whole or not at all, and in the place of nothing but an unchanged export.

An export is made in the folder `.NAME.exporting` beside its target, under a lock. When it is whole, it takes
the target's place in one step; what stood there is deleted afterwards. A process that is killed leaves the
old or the new export at the target, and that folder, which the next export beside it removes.

A mark says what an export wrote: its format, and the digest of each file. It is a hidden file in a folder,
and beside a single file. Only exports write one, so what has no mark, or other files than it says, stays.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from ...store.errors import StoreAccessError, StoreExistsError
from ...store.files import guard_access
from ...store.files.locks import FileLock, wait_for
from ...store.manifest import check_outside_stores, store_at

#: In the folder of an export.
MARK = ".episodelake-export.json"
_AREA, _LOCK, _NEW, _OLD, _TOLD = ".exporting", "lock", "new", "old", "mark"
#: How many names of files a message has, and how many files it counts.
_NAMED, _COUNTED = 3, 10_000
_LONGEST, _DIGITS = 200, 64
#: How long the lock of a target is waited for, and how often its folder is made again.
_LOCK_SECONDS, _TRIES = 2.0, 50
_ANYWHERE, _NO_REPLACE, _EXCHANGE = -100, 1, 2


@contextlib.contextmanager
def placed(path: Path, format: str, *, folder: bool, overwrite: bool) -> Iterator[Path]:
    """Yield a path at which nothing is yet; what stands there when the block ends is the export.

    Args:
        path: absolute, where the export will be.
        format: for the mark.
        folder: whether the export is a folder, which also takes the place of an empty one.
        overwrite: replace an export that stands there.

    Raises:
        StoreExistsError: something stands there that may not be replaced; it is as it was.
        InvalidArgumentError: it is a store or holds one, or lies in one.
        StoreAccessError: another process exports there, or the file system refuses.
    """
    check_outside_stores(path)
    with guard_access("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _settle(_hidden(path, _AREA), path)
        for area in path.parent.glob(f".*{_AREA}"):
            name = area.name[1 : -len(_AREA)]
            # Of a longer name only the digest is known.
            if len(name) != _DIGITS:
                _settle(area, area.with_name(name))
        _check_replaceable(path, folder=folder, overwrite=overwrite)
    with _locked(path) as area:
        draft = area / _NEW
        yield draft
        with guard_access("write", path):
            known = _check_replaceable(path, folder=folder, overwrite=overwrite)
            _mark(area, path, format, known)
            _swap(draft, path, area / _OLD)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """Yield a folder for drafts that no other process uses, and remove it at the end."""
    area = _hidden(path, _AREA)
    lock = _lock_of(area)
    if lock is None:
        raise StoreExistsError(f"Another process exports to {path}. Wait for it, or choose another path.")
    tidy = False
    try:
        yield area
    finally:
        try:
            _put_back(area, path)
            _empty(area)
            tidy = True
        finally:
            # The next export finds what is left by the lock's file.
            lock.release(remove=tidy)
            with contextlib.suppress(OSError):
                area.rmdir()


def _lock_of(area: Path) -> FileLock | None:
    """Make a folder for drafts and take its lock; None if another export to the target holds it.

    Exports to other targets beside it take the lock for a moment, to see whether anything was left, and may
    remove the folder before it is locked.
    """
    for _ in range(_TRIES):
        with guard_access("write", area), contextlib.suppress(FileNotFoundError):
            area.mkdir(exist_ok=True)
        try:
            return wait_for(area / _LOCK, _LOCK_SECONDS)
        except StoreAccessError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
    return None


def _hidden(path: Path, ending: str) -> Path:
    """Return the name of a hidden file or folder beside a target."""
    name = os.fsencode(path.name)
    stem = path.name if len(name) <= _LONGEST else hashlib.sha256(name).hexdigest()
    return path.with_name(f".{stem}{ending}")


def _settle(area: Path, path: Path) -> None:
    """Remove what a killed export to a path left, and put back what it had moved away."""
    if area.is_symlink() or not (area / _LOCK).is_file():
        return
    try:
        lock = FileLock.acquire(area / _LOCK)
    except StoreAccessError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return  # its export is done meanwhile
        raise
    if lock is None:
        return
    _put_back(area, path)
    _empty(area)
    lock.release(remove=True)
    with contextlib.suppress(OSError):
        area.rmdir()


def _put_back(area: Path, path: Path) -> None:
    """Give the target back what was moved away from it, if its draft did not come."""
    if (area / _OLD).exists() and (area / _NEW).exists() and not os.path.lexists(path):
        (area / _OLD).rename(path)


def _empty(area: Path) -> None:
    for each in (area / _NEW, area / _OLD, area / _TOLD):
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each, ignore_errors=True)
        else:
            each.unlink(missing_ok=True)


def _check_replaceable(path: Path, *, folder: bool, overwrite: bool) -> list[str]:
    """Refuse to replace anything but an export as it was written; return the digests that a file may have."""
    if not os.path.lexists(path) or (folder and _is_empty_folder(path)):
        return []
    if not overwrite:
        raise StoreExistsError(
            f"{path} is there already. Choose another path, or replace an export with overwrite=True "
            "(--overwrite)."
        )
    problem = _problem(path)
    if problem is not None:
        raise StoreExistsError(
            f"{path} {problem}, and overwrite=True replaces exports only, as they were written. Nothing was "
            "changed: delete it yourself, or choose another path."
        )
    return [] if path.is_dir() else [_digest(path)]


def _is_empty_folder(path: Path) -> bool:
    return not path.is_symlink() and path.is_dir() and not any(path.iterdir())


def _problem(path: Path) -> str | None:
    """Return why what stands at a path is no export as it was written, to follow its name; None if it is."""
    if path.is_symlink():
        return f"is a link to {os.readlink(path)}"
    if (store := store_at(path)) is not None:
        return f"is the store {store}"
    folder = path.is_dir()
    if not folder and not path.is_file():
        return "is no ordinary file or folder"
    entries = dict(_entries(path)) if folder else {path.name: path}
    if not entries:
        return None
    marked = _read(path / MARK if folder else _mark_of_file(path))
    if folder:
        entries.pop(MARK, None)
    if marked is None:
        if not folder:
            return f"is a file of {path.stat().st_size:,} bytes that no export wrote"
        count = f"{len(entries):,}" if len(entries) < _COUNTED else f"over {_COUNTED:,}"
        return f"is a folder with {count} files that no export wrote, such as {_listed(sorted(entries))}"
    format, files = marked
    others = sorted(entries.keys() ^ files.keys())
    others += [
        name
        for name in sorted(entries.keys() & files.keys())
        if entries[name].is_symlink() or _digest(entries[name]) not in files[name]
    ]
    where = f", in {_listed(others)}" if folder else ""
    return f"is an export ({format}) that was changed since{where}" if others else None


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _entries(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield whatever in a folder is no folder, by its path in it; an empty folder too."""
    count = 0
    for inner, folders, files in os.walk(folder, onerror=_raise):
        names = [*files, *(name for name in folders if os.path.islink(os.path.join(inner, name)))]
        if not names and not folders and inner != str(folder):
            names = [""]
        for name in names:
            path_of_entry = Path(inner, name)
            yield path_of_entry.relative_to(folder).as_posix(), path_of_entry
            count += 1
            if count >= _COUNTED and not (folder / MARK).exists():
                return


def _raise(error: OSError) -> None:
    """Let a folder that cannot be listed be no empty one."""
    raise error


def _mark_of_file(path: Path) -> Path:
    return _hidden(path, MARK)


def _mark(area: Path, path: Path, format: str, known: list[str]) -> None:
    """Say what an export wrote; a file's mark lies beside it, and knows the file that it replaces as well."""
    draft = area / _NEW
    if draft.is_dir():
        files = {name: [_digest(file)] for name, file in sorted(_entries(draft))}
        file = draft / MARK
    else:
        files = {path.name: [_digest(draft), *known]}
        file = _mark_of_file(path)
        if os.path.lexists(file) and _read(file) is None:
            raise StoreExistsError(f"{file} is in the way of the mark of the export. Move it away.")
    mark = {"made_by": "episodelake export", "format": format, "files": files}
    (area / _TOLD).write_text(json.dumps(mark, indent=1))
    (area / _TOLD).replace(file)


def _read(file: Path) -> tuple[str, dict[str, list[str]]] | None:
    """Return the format and the digests of a mark; None if it is none."""
    try:
        mark: Any = None if file.is_symlink() else json.loads(file.read_bytes())
        if mark["made_by"] == "episodelake export":
            return str(mark["format"]), {name: [*digests] for name, digests in mark["files"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    return None


def _digest(file: Path) -> str:
    if file.is_dir():
        return ""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _swap(draft: Path, path: Path, old: Path) -> None:
    """Give a draft the name of the target; what stood there comes to `old`, or is gone if both are files."""
    if not os.path.lexists(path):
        if not _renamed(draft, path, _NO_REPLACE):
            draft.rename(path)
    elif draft.is_file() and path.is_file():
        draft.replace(path)
    elif _renamed(draft, path, _EXCHANGE):
        if draft.is_file():
            # The folder has its own mark.
            _mark_of_file(path).unlink(missing_ok=True)
    else:
        path.rename(old)
        try:
            draft.rename(path)
        except BaseException:
            old.rename(path)
            raise


def _renamed(source: Path, target: Path, flag: int) -> bool:
    """Rename as Linux can in one step: exchange both, or replace nothing; False where it cannot."""
    rename = _renameat2()
    if rename is None:
        return False
    names = os.fsencode(source), os.fsencode(target)
    if not rename(_ANYWHERE, names[0], _ANYWHERE, names[1], flag):
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM):
        return False
    raise OSError(code, os.strerror(code), str(target))


@cache
def _renameat2() -> Any:
    if sys.platform != "linux":
        return None
    try:
        return ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
