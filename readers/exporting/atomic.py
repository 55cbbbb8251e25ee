"""Atomic exports: write beside the target, then rename.

An export is written to the hidden folder `.NAME.episodelake-export` beside its target, under a lock, and
renamed to the target when it is complete. An older export is moved into that folder first and deleted
afterwards. A process that is killed leaves the old or the new export at the target; between the two renames
of a folder it leaves neither, and the next export to this target moves the old one back.

A mark, a hidden file in a folder and beside a single file, says that an export wrote the target: only such a
target may be replaced. The mark beside a file names its size and time, so it does not fit a file of the user.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...store.errors import StoreExistsError
from ...store.files import (
    afterwards,
    exists,
    guard_access,
    is_file,
    is_folder,
    is_link,
    make_folder,
    names_in,
    real_path,
)
from ...store.files.locks import FileLock
from ...store.layout import Layout
from ...store.manifest import check_outside_stores, store_at

#: In the folder of an export.
MARK = ".episodelake-export.json"
_AREA, _NEW, _OLD, _MARK = ".episodelake-export", "new", "old", "mark"
#: The longest name, in bytes, that hidden names repeat.
_LONGEST = 200


@contextlib.contextmanager
def atomic_target(path: Path, format: str, *, folder: bool, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary path, and move it to `path` on success.

    Args:
        path: absolute, where the export will be.
        format: for the mark.
        folder: whether the export is a folder, which also replaces an empty one.
        overwrite: replace an export that is there.

    Raises:
        StoreExistsError: something is there that may not be replaced; it is unchanged.
        InvalidArgumentError: the path is in a store.
        StoreAccessError: the file system refuses.
    """
    check_outside_stores(path)
    area = _hidden(path, _AREA)
    make_folder(path.parent)
    lock = FileLock.acquire(_hidden(path, f"{_AREA}.lock"))
    if lock is None:
        raise StoreExistsError(f"Another process exports to {path}. Wait for it, or choose another path.")
    try:
        with guard_access("write", path):
            _clear(area, path)
            _check_replaceable(path, folder=folder, overwrite=overwrite)
            area.mkdir(exist_ok=True)
        yield area / _NEW
        with guard_access("write", path):
            _check_replaceable(path, folder=folder, overwrite=overwrite)
            _swap(area, path, format)
    finally:
        with contextlib.suppress(OSError):
            _clear(area, path)
        lock.release(remove=True)


def _hidden(path: Path, ending: str) -> Path:
    """Return the name of a hidden file or folder beside a target."""
    name = os.fsencode(path.name)
    stem = path.name if len(name) <= _LONGEST else hashlib.sha256(name).hexdigest()
    return path.with_name(f".{stem}{ending}")


def _clear(area: Path, path: Path) -> None:
    """Delete a draft, and move the old export back if it was moved away and the draft did not replace it."""
    if (
        exists(area / _OLD, follow=False)
        and exists(area / _NEW, follow=False)
        and not exists(path, follow=False)
    ):
        (area / _OLD).rename(path)
    for name in (_NEW, _OLD):
        shutil.rmtree(area / name, ignore_errors=True)
    for name in (_NEW, _OLD, _MARK):
        with contextlib.suppress(OSError):
            (area / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        area.rmdir()


def _check_replaceable(path: Path, *, folder: bool, overwrite: bool) -> None:
    if _is_current_folder(path):
        raise StoreExistsError(
            f"{path} is the current folder, or one around it, which the export would replace. Name a new "
            "folder in it, or change to another folder."
        )
    if not exists(path, follow=False) or (folder and _is_empty_folder(path)):
        return
    if not overwrite:
        raise StoreExistsError(
            f"{path} is there already. Choose another path, or replace an export with overwrite=True "
            "(--overwrite)."
        )
    problem = _why_not_replaceable(path)
    if problem is not None:
        raise StoreExistsError(
            f"{path} {problem}, and overwrite=True replaces exports only. Nothing was changed: delete it "
            "yourself, or choose another path."
        )


def _is_current_folder(path: Path) -> bool:
    """Return whether the process works in a folder: it would be in a deleted one afterwards."""
    try:
        return is_folder(path) and Path.cwd().is_relative_to(real_path(path))
    except FileNotFoundError:  # the current folder was deleted
        return False


def _is_empty_folder(path: Path) -> bool:
    return is_folder(path, follow=False) and not names_in(path)


def _why_not_replaceable(path: Path) -> str | None:
    """Return why a target cannot be replaced, to follow its name; None if an export wrote it."""
    if is_link(path):
        return f"is a link to {os.readlink(path)}"
    if (store := store_at(path)) is not None:
        return f"is the store {store}"
    if is_folder(path):
        if not (_is_empty_folder(path) or is_file(path / MARK)):
            return "is a folder that no export wrote"
        stores = filter(None, (store_at(each.parent) for each in path.rglob(Layout.MANIFEST)))
        return next((f"contains the store {store}" for store in stores), None)
    if not is_file(path):
        return "is no ordinary file or folder"
    if _identity(path) in _marked(_hidden(path, MARK)):
        return None
    return f"is a file of {path.stat().st_size:,} bytes that no export wrote, or that was changed since"


def _identity(path: Path) -> list[int]:
    """Return the size of a file and the time of its content, which a rename keeps."""
    state = path.stat()
    return [state.st_size, state.st_mtime_ns]


def _marked(mark: Path) -> list[Any]:
    """Return the identities of the files that a mark beside a file names."""
    try:
        return list(json.loads(mark.read_bytes())["files"])
    except (FileNotFoundError, ValueError, LookupError, TypeError):
        return []


def _swap(area: Path, path: Path, format: str) -> None:
    """Move a draft to the target, with its mark; an older export moves to the area."""
    draft, mark, hidden = area / _NEW, area / _MARK, _hidden(path, MARK)
    about: dict[str, Any] = {"made_by": "episodelake export", "format": format}
    single = is_file(draft)
    replaced = single and is_file(path)
    if single:
        about["files"] = [_identity(each) for each in (draft, *([path] if replaced else []))]
    mark.write_text(json.dumps(about))
    # Before the file: whatever is killed, the mark names the file that is there.
    mark.replace(hidden if single else draft / MARK)
    if exists(path, follow=False) and not replaced:
        path.rename(area / _OLD)
    draft.replace(path)
    if not single:
        with afterwards(f"The export is at {path}", f"{hidden} is no longer needed."):
            hidden.unlink(missing_ok=True)
