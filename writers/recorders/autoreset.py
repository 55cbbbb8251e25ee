"""How environments reset themselves: what their metadata says of it, or what the caller says.

See Gymnasium's `vector.AutoresetMode`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...store.compatibility import AutoresetMode
from ...store.errors import InvalidArgumentError


def stated_mode(metadata: Mapping[str, Any] | None, whose: str) -> AutoresetMode | None:
    """Return the mode that an environment's metadata names; None if it names none.

    Raises:
        InvalidArgumentError: it is none of Gymnasium's.
    """
    mode = (metadata or {}).get("autoreset_mode")
    return None if mode is None else _mode(mode, f"{whose} metadata['autoreset_mode']")


def autoreset_mode_of(metadata: Mapping[str, Any] | None, given: AutoresetMode | str | None) -> AutoresetMode:
    """Return the mode of a vector environment: the one given, else the one that its metadata names.

    Raises:
        InvalidArgumentError: it is none of Gymnasium's, or nobody says it.
    """
    stated = stated_mode(metadata, "The vector environment's")
    mode = stated if given is None else _mode(given, "autoreset_mode")
    if mode is None:
        raise InvalidArgumentError(
            "The vector environment does not say how its sub-environments are reset: its metadata has no "
            f"'autoreset_mode'. Pass autoreset_mode=, one of {_known()}."
        )
    return mode


def _mode(value: Any, what: str) -> AutoresetMode:
    if isinstance(value, AutoresetMode):
        return value
    for mode in AutoresetMode:
        if value in (mode.value, mode.name):
            return mode
    raise InvalidArgumentError(f"{what} is {value!r}; expected one of {_known()}.")


def _known() -> str:
    return ", ".join(repr(mode.value) for mode in AutoresetMode)
