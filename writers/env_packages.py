"""The distributions that an environment runs on, with their versions."""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import metadata as packages
from types import ModuleType

from ..store.errors import InvalidArgumentError

_ALWAYS = ("episodelake", "gymnasium", "numpy")


def versions_of(classes: Iterable[type], modules: Iterable[str], extra: Sequence[str]) -> dict[str, str]:
    """Distribution to version: of Python, of these classes' modules and what they import, and of others.

    Args:
        classes: of the environment and its wrappers.
        modules: more modules, by their dotted names.
        extra: distributions or modules that the caller names.

    Raises:
        InvalidArgumentError: one that the caller names is not installed.
    """
    found = {"python": platform.python_version()}
    tops = dict.fromkeys([*_ALWAYS, *(name.partition(".")[0] for name in modules), *_imported(classes)])
    for top in tops:
        if top not in sys.stdlib_module_names and top not in ("", "__main__"):
            found.update(_installed(top))
    for name in extra:
        there = _installed(name) if isinstance(name, str) else ()
        if not there:
            raise InvalidArgumentError(
                f"packages={list(extra)!r}: {name!r} is not installed here. Name distributions as pip does."
            )
        found.update(there)
    return found


def _imported(classes: Iterable[type]) -> Iterator[str]:
    """Top-level names of the modules of classes and their bases, and of what these modules import whole."""
    names = {base.__module__ for each in classes for base in each.__mro__}
    for name in sorted(names - {"__main__"}):
        yield name.partition(".")[0]
        for value in list(vars(sys.modules.get(name, object)).values()):
            if isinstance(value, ModuleType):
                yield value.__name__.partition(".")[0]


@cache
def _installed(name: str) -> tuple[tuple[str, str], ...]:
    """Name and version of the distribution of a name or of a module; nothing for a module of none."""
    with contextlib.suppress(packages.PackageNotFoundError, ValueError):
        there = packages.distribution(name)
        return ((str(there.metadata["Name"]), str(there.version)),)
    # Names differ (cv2, opencv-python): searching all distributions is slow, so it comes second.
    return tuple((each, str(packages.version(each))) for each in _distributions().get(name, [])[:1])


@cache
def _distributions() -> dict[str, list[str]]:
    return dict(packages.packages_distributions())
