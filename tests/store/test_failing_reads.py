"""A read of which one look at a file fails gives the whole answer, or an error of access."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import episodelake as el
import failing_reads
from episodelake.store import files
from episodelake.store.files import (
    access_class,
    exists,
    locate,
    paths,
    read_file,
    rename_durably,
    touching,
)
from episodelake.store.files.access import causes
from episodelake.store.manifest import check_outside_stores, store_at
from episodelake.store.parquet.files import read_footer
from faults.shim import run_with
from test_visible_steps import library

__all__ = ["library"]

SCRIPT = Path(failing_reads.__file__)


@pytest.mark.slow
@pytest.mark.parametrize("name", failing_reads.READS)
def test_any_look_of_a_read_may_fail(library: Path, tmp_path: Path, name: str) -> None:
    """The first look, the last one, and many between them."""
    assert run_with(library, SCRIPT, tmp_path, 40, name) == []


NUMBERS = (errno.ENOENT, errno.EEXIST, errno.EIO, errno.EMFILE, errno.EACCES, errno.ENOSPC, errno.ENOTDIR)


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.__getitem__)
def test_an_error_of_the_system_becomes_ours(number: int) -> None:
    """It names action and path, keeps the number, and is missing, taken, unavailable or refused."""

    @touching("peel")
    def failing(path: str) -> None:
        raise OSError(number, os.strerror(number), path)

    with pytest.raises(el.errors.StoreAccessError, match=r"^Could not peel data/apple: ") as caught:
        failing("data/apple")
    assert (caught.value.errno, caught.value.filename) == (number, "data/apple")
    assert os.strerror(number) in str(caught.value)
    passing = number in (errno.EIO, errno.EMFILE)
    assert isinstance(caught.value, el.errors.StoreUnavailableError) == passing
    assert isinstance(caught.value, FileNotFoundError) == (number in (errno.ENOENT, errno.ENOTDIR))
    assert isinstance(caught.value, FileExistsError) == (number == errno.EEXIST)
    assert type(caught.value) is access_class(OSError(number, ""))


#: Functions of plain paths and methods of places, for a file in a folder.
TOUCHING: dict[str, Callable[[Path], object]] = {
    "exists": exists,
    "is_file": files.is_file,
    "is_folder": files.is_folder,
    "is_link": files.is_link,
    "stat_or_none": files.stat_or_none,
    "file_state": files.file_state,
    "read_file": read_file,
    "read_plain": paths.read_plain,
    "write_file": lambda path: files.write_file(path, b""),
    "names_in": lambda path: files.names_in(path.parent),
    "walk": lambda path: list(files.walk(path.parent)),
    "matching": lambda path: files.matching(path.parent.parent, "*/f*"),
    "make_folder": lambda path: files.make_folder(path.parent / "new"),
    "remove_file": files.remove_file,
    "remove_tree": lambda path: files.remove_tree(path.parent),
    "sync_path": files.sync_path,
    "rename_durably": lambda path: rename_durably(path, path.with_name("new")),
    "Place.exists": lambda path: locate(path).exists(),
    "Place.size": lambda path: locate(path).size(),
    "Place.check_plain": lambda path: locate(path).check_plain(),
    "Place.read": lambda path: locate(path).read(),
    "Place.read_tail": lambda path: locate(path).read_tail(1),
    "Place.chunks": lambda path: list(locate(path).chunks()),
    "Place.write": lambda path: locate(path).write(b""),
    "Place.copy_from": lambda path: locate(path.with_name("new")).copy_from(locate(path), link=True),
    "Place.remove": lambda path: locate(path).remove(),
    "Place.make_folder": lambda path: locate(path.parent / "new").make_folder(),
    "Place.remove_folder": lambda path: locate(path.parent).remove_folder(),
    "Place.entries": lambda path: list(locate(path.parent).entries(deep=True)),
    "Place.names": lambda path: locate(path.parent).names(),
    "Place.listed": lambda path: locate(path.parent).listed(),
    "Place.sync": lambda path: locate(path).sync(),
}
CALLS = (
    "stat",
    "lstat",
    "open",
    "listdir",
    "scandir",
    "mkdir",
    "unlink",
    "rename",
    "replace",
    "link",
    "rmdir",
)


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.EACCES], ids=errno.errorcode.__getitem__)
def test_no_function_takes_trouble_for_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Each one raises what the system said, as an error of access that names a path."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_bytes(b"content")

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def fail(path: Any, *arguments: Any, **options: Any) -> Any:
            if not isinstance(path, int) and os.fspath(path).startswith(str(tmp_path)):
                raise OSError(number, os.strerror(number), os.fspath(path))
            return call(path, *arguments, **options)

        return fail

    wrong = []
    for name, call in TOUCHING.items():
        with monkeypatch.context() as patch:
            for each in CALLS:
                patch.setattr(os, each, failing(getattr(os, each)))
            for module in (builtins, io):
                patch.setattr(module, "open", failing(open))
            try:
                answer = call(folder / "file")
            except Exception as error:
                kind = (
                    el.errors.StoreAccessError if number == errno.EACCES else el.errors.StoreUnavailableError
                )
                if type(error) is not kind or str(tmp_path) not in str(error):
                    wrong.append(f"{name}: {error!r}")
            else:
                wrong.append(f"{name}: {answer!r}")
    assert not wrong, "\n".join(wrong)


def test_an_error_keeps_its_path_through_nested_calls(tmp_path: Path) -> None:
    """The innermost function names the file; an outer one passes its error on, and causes end."""
    with pytest.raises(el.errors.StoreAccessError, match=r"Could not open .*none: No such file") as caught:
        locate(tmp_path / "none").read()
    assert len(list(causes(caught.value))) == 2
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(el.errors.StoreAccessError, match="A file stands where a folder is needed") as caught:
        read_footer(locate(tmp_path / "file" / "part"))
    assert len(list(zip(causes(caught.value), range(9), strict=False))) == 2
    with pytest.raises(FileNotFoundError, match=r"Could not rename .*none"):
        rename_durably(tmp_path / "none", tmp_path / "other")


def test_a_path_with_a_null_byte_is_an_argument(tmp_path: Path) -> None:
    """It is refused as such, and not as a file that is missing."""
    for look in (exists, read_file, store_at, check_outside_stores):
        with pytest.raises(el.errors.InvalidArgumentError, match="holds a null byte"):
            look(tmp_path / "a\0b")
