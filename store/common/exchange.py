"""For imports and exports: the registry of formats, and counts of losses.

`episodelake/exchange` registers the formats of the library, so that readers and writers need not import it.
Other packages register theirs as entry points. The drivers of import, export and `view.to` find a format by
its name here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

#: A method by which a format is known to read a source, to write a target, or to make an object in memory.
Role = Literal["open", "write", "convert"]
#: The group of the entry points of other packages.
ENTRY_POINTS = "episodelake.formats"

_places: dict[Role, dict[str, str]] = {}


def register(role: Role, places: Mapping[str, str]) -> None:
    """Set the formats of the library for a role; nothing is imported.

    Args:
        role: what they do.
        places: by name, as the value of an entry point: "package.module:attribute".
    """
    _places[role] = dict(places)
    formats.cache_clear()


@cache
def formats(role: Role) -> Mapping[str, Any]:
    """Return the objects for a role by name: ours, then those of other packages, which cannot replace ours.

    The object of another package takes every role of which it has the method.
    """
    # Slow to import, with the package `email`, and not needed before the first exchange.
    from importlib import metadata

    registered = {name: _load(role, name) for name in _places[role]}
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        each = entry.load()
        if hasattr(each, role):
            registered.setdefault(entry.name, each)
    return registered


def find_format(role: Role, name: str) -> Any:
    """Return the object of a name for a role, or None; one of ours is imported without the others."""
    return _load(role, name) if name in _places[role] else formats(role).get(name)


def _load(role: Role, name: str) -> Any:
    from importlib import metadata

    return metadata.EntryPoint(name, _places[role][name], ENTRY_POINTS).load()


class Losses(Mapping[str, int]):
    """Counts of what was lost, by a sentence that names it; in the order of first occurrence.

    Two exchanges of the same data give equal losses.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, what: str, count: int = 1) -> None:
        """Count something that was lost; a count of 0 adds nothing."""
        if count:
            self._counts[what] = self._counts.get(what, 0) + count

    def take_back(self, what: str, count: int) -> None:
        """Undo an `add`."""
        self._counts[what] -= count
        if not self._counts[what]:
            del self._counts[what]

    def restore(self, before: Mapping[str, int]) -> None:
        """Undo all that was added since some earlier counts."""
        self._counts = dict(before)

    @contextmanager
    def attempt(self) -> Iterator[dict[str, int]]:
        """Yield the counts before the block, which are restored if the block fails."""
        before = dict(self._counts)
        try:
            yield before
        except BaseException:
            self._counts = before
            raise

    def since(self, before: Mapping[str, int]) -> dict[str, int]:
        """Return what was added since some earlier counts."""
        return {
            what: count - before.get(what, 0) for what, count in self.items() if count != before.get(what)
        }

    def __getitem__(self, what: str) -> int:
        return self._counts[what]

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def __repr__(self) -> str:
        return repr(self._counts)

    def lines(self) -> list[str]:
        """Return a line of text for each loss."""
        return [f"{what} ({count:,})" for what, count in self._counts.items()]
