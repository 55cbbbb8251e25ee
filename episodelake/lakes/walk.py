"""Find the stores below a folder or a prefix, and check the names of stores in a lake."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from ..errors import CorruptStoreError, InvalidArgumentError, StoreAccessError, StoreUnavailableError
from ..plugin import Layout
from ..plugin.files import Place, is_link, unusable_part

#: A lake is looked through this deep, and no further than so many folders.
MOST_PARTS, MOST_FOLDERS = 12, 100_000
_REQUESTS = 16
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Mapping = Callable[[Callable[[_Item], _Result], Iterable[_Item]], Iterable[_Result]]


@contextmanager
def mapping(root: Place) -> Iterator[Any]:
    """Yield a `map` for work on the stores of a lake: several at a time where each waits for a service."""
    if root.local is not None:
        yield map
        return
    with ThreadPoolExecutor(_REQUESTS) as pool:
        yield pool.map


def find_stores(root: Place) -> dict[str, str | None]:
    """Return the names of the stores of a lake, sorted, each with what is wrong with its folder, or None.

    A folder with `store.json` is a store. One with tables and without it is a store whose creation goes on,
    or was cut short. Folders whose names begin with a dot, links, and folders in stores are passed over.

    Raises:
        InvalidArgumentError: there are more folders, or deeper ones, than a lake may have.
        StoreAccessError: the root cannot be listed.
        StoreUnavailableError: the system could not list a folder, for now.
    """
    names: dict[str, str | None] = {}
    level, count = [""], 0
    with mapping(root) as in_turn:
        while level:
            count += len(level)
            if count > MOST_FOLDERS or level[0].count("/") >= MOST_PARTS:
                raise InvalidArgumentError(
                    f"{root} has more than {MOST_FOLDERS:,} folders, or folders more than {MOST_PARTS} deep, "
                    f"such as {level[0]!r}. Give a folder nearer to the stores, or move other data away; "
                    "folders whose names begin with a dot are not looked through."
                )
            below = []
            for name, (problem, folders) in zip(
                level, in_turn(lambda name: _look(root, name), level), strict=True
            ):
                if folders is None:
                    names[name] = problem
                else:
                    below += [f"{name}/{folder}" if name else folder for folder in folders]
            level = below
    return dict(sorted(names.items()))


def _look(root: Place, name: str) -> tuple[str | None, list[str] | None]:
    """Return what is wrong with a store, and None; or of a folder that is none, the folders to look into."""
    try:
        return look_at(root / name if name else root, is_root=not name)
    except (StoreAccessError, CorruptStoreError) as error:
        if not name or isinstance(error, StoreUnavailableError):
            raise
        return str(error), None


def look_at(place: Place, *, is_root: bool = False) -> tuple[str | None, list[str] | None]:
    """Return what is wrong with a store, and None; or of a folder that is none, the folders to look into.

    Raises:
        StoreAccessError, CorruptStoreError: it cannot be listed, or has links for folders.
    """
    folders, files = place.listed()
    if not is_root and Layout.MANIFEST in files:
        return None, None
    begun = [table for table in Layout.TABLES if not is_root and table in folders]
    if (not is_root and Layout.UNFINISHED in files) or any(
        "_delta_log" in (place / each).listed()[0] for each in begun
    ):
        return (
            f"{place} has no {Layout.MANIFEST}: a store is being created there, or its creation was cut "
            "short. If no process creates it, create it again or delete it.",
            None,
        )
    return None, [folder for folder in folders if not folder.startswith(".")]


def checked_name(name: object) -> str:
    """Return the name of a store in a lake: its folder below the root, with slashes.

    Raises:
        InvalidArgumentError: it is no such name; the message says what is expected.
    """
    parts = name.split("/") if isinstance(name, str) else []
    if (
        not parts
        or len(parts) > MOST_PARTS
        or any(not part or part.startswith(".") for part in parts)
        or str(name).encode(errors="ignore").decode() != str(name)
        or unusable_part(str(name))
    ):
        raise InvalidArgumentError(
            f"{name!r:.300} is no name of a store in a lake; expected a relative path of up to {MOST_PARTS} "
            "folders such as 'cartpole/ppo', none of which begins with a dot, without backslashes, control "
            "characters and percent signs before two hexadecimal digits."
        )
    return str(name)


def place_of(root: Place, name: object) -> Place:
    """Return where the store of a name is, or would be.

    Raises:
        InvalidArgumentError: it is no name of a store, or a link on the way may lead out of the lake.
        StoreAccessError: the system cannot tell, or the name is too long for it.
    """
    place, way = root, ""
    for part in checked_name(name).split("/"):
        place, way = place / part, f"{way}/{part}".lstrip("/")
        if place.local is not None and is_link(place.local):
            raise InvalidArgumentError(
                f"{way!r} in the lake {root} is a link, which may lead out of the lake. Open the store "
                "behind it with episodelake.open, or make a lake of the folder it points to."
            )
    return place
