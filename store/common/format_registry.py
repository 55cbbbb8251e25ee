"""Registry of exchange formats: the drivers of import, export and `view.to` find a format by its name here.

`episodelake/exchange` registers the formats of the library, so that readers and writers need not import it.
Other packages register theirs as entry points.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import metadata
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
    return metadata.EntryPoint(name, _places[role][name], ENTRY_POINTS).load()
