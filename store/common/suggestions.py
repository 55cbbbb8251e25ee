"""Suggestions for unknown names: those most like it, by letters, or because one holds the other."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

_PARTS = re.compile(r"[._]")


def suggest(wrong: str, names: Sequence[str]) -> str:
    """Return the end of a message about an unknown name: " Did you mean x or y?", or "" if none is like it.

    >>> suggest("lenght", ["length", "seed"])
    ' Did you mean length?'
    """
    near = near_names(wrong, names, 3)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def missing_attribute(owner: object, name: str, other: Mapping[str, str] | None = None) -> AttributeError:
    """Return the error for an attribute that an object lacks, with the public names most like it.

    Args:
        other: names of these attributes elsewhere, which letters do not tell.
    """
    message = f"{type(owner).__name__!r} object has no attribute {name!r}."
    if not name.startswith("_"):
        public = [each for each in dir(type(owner)) if not each.startswith("_")]
        same = (other or {}).get(name)
        message += f" Did you mean {same}?" if same else suggest(name, public)
    return AttributeError(message, name=name, obj=owner)


def near_names(wrong: str, names: Sequence[str], shown: int = 4) -> list[str]:
    """Return the names most like a wrong one, best first."""
    folded = wrong.casefold()

    def likeness(name: str) -> float:
        other = name.casefold()
        whole = difflib.SequenceMatcher(None, folded, other).ratio()
        parts = [difflib.SequenceMatcher(None, folded, part).ratio() for part in _PARTS.split(other)]
        shorter, longer = sorted((folded, other), key=len)
        within = len(shorter) > 2 and shorter in longer
        return max(whole, 0.9 * max(parts), 0.75 if within else 0)

    ranked = sorted(dict.fromkeys(names), key=likeness, reverse=True)
    return [name for name in ranked if likeness(name) >= 0.6][:shown]
