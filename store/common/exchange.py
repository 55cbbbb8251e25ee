"""For imports and exports: the registry of formats, and counts of losses.

Formats are entry points, those of the library in its `pyproject.toml` and those of other packages alike. The
drivers of import, export and `view.to` find a format by its name here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from ..errors import EpisodelakeError, MissingPackageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: A group of entry points, `episodelake.sources` and so on: objects that read sources or write targets, and
#: functions that make an object of `view.to`.
Role = Literal["sources", "targets", "conversions"]
_ATTRIBUTES: Mapping[Role, tuple[str, ...]] = {
    "sources": ("name", "rule", "detect", "open"),
    "targets": ("name", "options", "holds", "write"),
    "conversions": (),
}
_MADE_BY: Mapping[Role, str] = {
    "sources": "make it with Format or tree_format of episodelake.plugin",
    "targets": "decorate its function with export_format of episodelake.plugin",
}


@cache
def entries(role: Role) -> Mapping[str, EntryPoint]:
    """Return the entry points of a role by name: ours, then those of other packages under other names.

    Raises:
        MissingPackageError: the metadata of this package are missing, or older than its code.
    """
    # Slow to import, with the package `email`, and not needed before the first exchange.
    from importlib import metadata

    ours = f"{__name__.partition('.')[0]}."
    installed = metadata.entry_points(group=f"episodelake.{role}")
    by_name: dict[str, EntryPoint] = {}
    for entry in sorted(installed, key=lambda each: not each.value.startswith(ours)):
        by_name.setdefault(entry.name, entry)
    if not any(entry.value.startswith(ours) for entry in by_name.values()):
        raise MissingPackageError(
            "The metadata of the package episodelake, which lists its formats, is missing or older than its "
            "code. Install the package again: pip install --force-reinstall episodelake, or in a checkout "
            "pip install --editable ."
        )
    return by_name


def formats(role: Role) -> dict[str, Any]:
    """Return the objects of a role by name, all of them imported.

    One that cannot be loaded, or is no object of this role, is left out with a warning.
    """
    objects: dict[str, Any] = {}
    for name, entry in entries(role).items():
        try:
            objects[name] = _loaded(role, entry)
        except MissingPackageError as error:
            warnings.warn(f"{error} It is left out.", RuntimeWarning, stacklevel=2)
    return objects


def find_format(role: Role, name: str) -> Any:
    """Return the object of a name, imported without the others; None if there is none.

    Raises:
        MissingPackageError: it cannot be loaded, or is no object of this role.
    """
    entry = entries(role).get(name)
    return _loaded(role, entry) if entry is not None else None


@cache
def _loaded(role: Role, entry: EntryPoint) -> Any:
    try:
        loaded = entry.load()
    except EpisodelakeError:
        raise
    except Exception as error:
        raise MissingPackageError(
            f"{_place(role, entry)} cannot be loaded: {type(error).__name__}: {error!s:.200}. Repair or "
            "uninstall that package."
        ) from error
    lacking = [name for name in _ATTRIBUTES[role] if not hasattr(loaded, name)]
    if lacking:
        raise MissingPackageError(
            f"{_place(role, entry)} is a {type(loaded).__name__} without {', '.join(lacking)}: "
            f"{_MADE_BY[role]}, then install the package again."
        )
    return loaded


def _place(role: Role, entry: EntryPoint) -> str:
    """Return the entry point as the subject of a sentence; slow, since it parses the package's metadata."""
    package = f" of the package {entry.dist.name}" if entry.dist is not None else ""
    return f"The format {entry.name!r}{package}, {entry.value} in the group episodelake.{role},"


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

    def merge(self, others: Mapping[str, int]) -> None:
        """Add the counts of others."""
        for what, count in others.items():
            self.add(what, count)

    def restore(self, before: Mapping[str, int]) -> None:
        """Undo all that was added since some earlier counts."""
        self._counts = dict(before)

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
