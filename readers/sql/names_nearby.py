"""What to say of a name that is not there: the nearest names, the engine's reason, and all there is."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Sequence

from ...store.layout import RUNS, STEPS, TABLES
from ...store.snapshot import Snapshot
from .elements import without_elements
from .macros import TRANSITIONS, WITH_NEXT, Macro, next_columns
from .text import quote

_SHOWN = 4
#: How DuckDB says that a name is not there; with what kind of name it was.
_MISSING = (
    ("column", re.compile(r'Referenced column "([^"]+)" (?:was )?not found')),
    ("column", re.compile(r'does not have a column named "([^"]+)"')),
    ("column", re.compile(r"Cannot extract field '([^']+)' from expression")),
    ("table", re.compile(r'Referenced table "([^"]+)" not found')),
    ("table", re.compile(r"Table with name (\S+) does not exist")),
    ("macro", re.compile(r"Function with name (\S+) does not exist")),
)
_GUESS = re.compile(r'\nDid you mean "[^"\n]*"\??')
_PARTS = re.compile(r"[._]")
_DOTTED = re.compile(r'(?<![\w".])([A-Za-z_]\w*(?:\.\w+)+)')


def advice(
    snapshot: Snapshot, text: str, reason: str, macros: Sequence[Macro], tables: Collection[str] = TABLES
) -> str:
    """The message for a query that failed: what was meant, perhaps; why; and what there is.

    Args:
        snapshot: what was asked.
        text: the query.
        reason: what the engine said.
        macros: those that the query could have used.
        tables: the tables that it could have used.
    """
    columns = {name: list(snapshot.shown_schema(name).names) for name in tables}
    nearest = _nearest(snapshot, text, reason, columns, macros)
    # The engine's own guess knows neither macros nor columns of other tables.
    told = _GUESS.sub("", reason) if nearest else reason
    lines = [*nearest, told.replace("\t", "  ")]
    if len(tables) < len(TABLES):
        return "\n".join([*lines, ""])
    lines.append("Available (transitions has the columns of steps):")
    lines += [f"  {name}: {', '.join(names)}" for name, names in columns.items()]
    lines.append(f"  {WITH_NEXT}: those of transitions, and {', '.join(next_columns(snapshot.schema))}")
    lines.append(f"  macros: {', '.join(macro.signature for macro in macros)}")
    lines.append('Names with a dot need double quotes, as in "info.x".' + _newer(snapshot))
    return "\n".join(lines)


def missing_next(snapshot: Snapshot, reason: str) -> str | None:
    """The next observation that the engine did not find, if that is what it says."""
    found = [pattern.search(reason) for kind, pattern in _MISSING if kind == "column"]
    names = {match[1] for match in found if match}
    return next((name for name in next_columns(snapshot.schema) if name in names), None)


def _newer(snapshot: Snapshot) -> str:
    newer = snapshot.newer_version()
    if newer is None:
        return ""
    return f" This shows version {snapshot.version}; refresh() moves to version {newer}."


def _nearest(
    snapshot: Snapshot, text: str, reason: str, columns: dict[str, list[str]], macros: Sequence[Macro]
) -> list[str]:
    """A sentence with the names that were meant, perhaps; none where no name is missing."""
    for kind, pattern in _MISSING:
        found = pattern.search(reason)
        if found is None:
            continue
        wrong = found[1].strip("!\"'").removeprefix("main.")
        if wrong in next_columns(snapshot.schema):
            return [f"{wrong} is a column of the view {WITH_NEXT}; write FROM {WITH_NEXT}."]
        elsewhere = [name for name, names in columns.items() if wrong in names]
        if kind == "column" and elsewhere:
            asked = " obs(...) and act(...) read such columns." if elsewhere == [STEPS] else ""
            return [
                f"{wrong} is a column of {' and '.join(elsewhere)}, and not of what stands there.{asked} "
                f"Write FROM {elsewhere[0]}."
            ]
        if kind == "column" and len(columns) < len(TABLES) and wrong in snapshot.shown_schema(RUNS).names:
            rows = f"run_id IN (SELECT run_id FROM runs WHERE {quote(wrong)} ...)"
            return [f"{wrong} is a column of runs; write {rows}."]
        dotted = _meant_as_one(text, wrong, columns)
        if dotted:
            return [f"{dotted} is one name: write it in double quotes, as {quote(dotted)}."]
        single = without_elements(snapshot.schema).get(wrong.casefold())
        if kind == "macro" and single is not None:
            return [f"{single} is a single number here, without elements: write {single}."]
        near = near_names(wrong, _candidates(kind, columns, macros))
        if near:
            return [f"There is no {kind} {wrong!r}. Nearest: {', '.join(near)}."]
        return [f"There is no {kind} {wrong!r}, nor any name like it."]
    return []


def _meant_as_one(text: str, wrong: str, columns: dict[str, list[str]]) -> str | None:
    """A column whose name has a dot, written without quotes: `info.clock`."""
    known = {name.casefold(): name for names in columns.values() for name in names if "." in name}
    for written in _DOTTED.findall(text):
        parts = written.split(".")
        for stop in range(len(parts), 1, -1):
            name = known.get(".".join(parts[:stop]).casefold())
            if name is not None and wrong.casefold() in (part.casefold() for part in parts):
                return name
    return None


def _candidates(kind: str, columns: dict[str, list[str]], macros: Iterable[Macro]) -> list[str]:
    """The names of a kind, those of others behind them: a name may be missing in the wrong place."""
    names = {
        "column": list(dict.fromkeys(name for found in columns.values() for name in found)),
        "table": [*columns, TRANSITIONS, WITH_NEXT] if len(columns) > 1 else list(columns),
        "macro": list(dict.fromkeys(macro.name for macro in macros)),
    }
    first = names.pop("column" if kind == "column" else kind)
    return [*first, *(name for found in names.values() for name in found)]


def near_names(wrong: str, names: Sequence[str], shown: int = _SHOWN) -> list[str]:
    """The names most like a wrong one, best first: by letters, or because one holds the other."""
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
