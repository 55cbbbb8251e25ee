"""Messages for macros that are called wrongly, and for files that a query may not read."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .elements import INDEXED
from .macros import Macro
from .text import named_words

_SUPPLIED = re.compile(r"Macro (\w+)\(\) does not support the supplied arguments")
_NAMED = re.compile(r"(\w+)\s*:=")
#: DuckDB's messages for an index that is not a number.
_NO_INDEX = re.compile(r"argument types 'array_extract\(|function call \"\+\(STRING_LITERAL, INTEGER")
_FROM_ROWS = "Correlated columns not supported in LIMIT/OFFSET"
_LOCKED = re.compile(r'Permission Error: Cannot access \w+ "([^"]*)"')


def misuse(text: str, reason: str, macros: Sequence[Macro]) -> str | None:
    """Return the message for a wrong call or a locked file; None for any other error.

    Args:
        text: the query.
        reason: the engine's message.
        macros: those that the query could have used.
    """
    locked = _LOCKED.search(reason)
    if locked is not None:
        return (
            f"{locked[1]!r} is no part of the store, and this connection, read_only=True, sees nothing else. "
            f"Without read_only a query may read other files too.\n{reason}"
        )
    if _FROM_ROWS in reason and "episode_at" in named_words(text):
        return (
            "episode_at takes one position, and not one for each row. For several, number the episodes: "
            f"SELECT row_number() OVER () - 1 AS place, episode_id FROM episodes.\n{reason}"
        )
    supplied = _SUPPLIED.search(reason)
    if supplied is not None:
        return _arguments(text, supplied[1], macros)
    indexed = [name for name in INDEXED if name in named_words(text)]
    if indexed and _NO_INDEX.search(reason):
        forms = ", ".join(macro.signature for macro in macros if macro.name in indexed)
        return (
            f"{' and '.join(indexed)} takes whole numbers as indices, which count from 0, such as "
            f"{indexed[0]}({'observation, ' if indexed[0] == 'nth' else ''}0): {forms}.\n"
            f"{reason.partition(chr(10))[0]}"
        )
    return None


def _arguments(text: str, name: str, macros: Sequence[Macro]) -> str:
    """Return the message for arguments that a macro does not take."""
    forms = [macro for macro in macros if macro.name == name]
    known = {
        part.partition(" := ")[0]
        for macro in forms
        for part in macro.parameters.split(", ")
        if not part.startswith("_")
    }
    wrong = [given for given in _NAMED.findall(text) if given.casefold() not in known]
    told = f"{name} has no parameter {wrong[0]!r}" if wrong else f"{name} does not take these arguments"
    return f"{told}. It is called as {' or '.join(macro.signature for macro in forms)}."
