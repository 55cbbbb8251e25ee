"""Messages for queries that failed: wrong calls of macros, locked files, unknown names, the engine's reason.

An unknown name comes with the nearest names of its kind, and with all of them where none is near or they are
few.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from ...store.common.arguments import near_names
from ...store.dynamic.column_groups import METADATA
from ...store.layout import EPISODES, RUNS, STEPS, TABLES
from ...store.snapshot import Snapshot
from ..context import refresh_hint
from .elements import INDEXED, without_elements
from .macros import TRANSITIONS, WITH_NEXT, Macro, next_columns
from .text import literal, named_words, names_run_keys, quote, run_keys

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
    problem = f"{name} has no parameter {wrong[0]!r}" if wrong else f"{name} does not take these arguments"
    return f"{problem}. It is called as {' or '.join(macro.signature for macro in forms)}."


#: Up to so many names are all listed, even if some are near.
_FEW = 8
#: Macros whose arguments are expressions over the columns of steps.
_OF_STEPS = ("first_hit", "step_percentiles", "step_histogram", "obs", "next_obs", "act")
#: DuckDB's messages for an unknown name; its Python client has no other form of them.
_MISSING = re.compile(
    r"""(?:Referenced column|have a column named|Cannot extract field) (["'])(?P<column>.+?)\1"""
    r"""|(?:Referenced table|Table with name) "?(?P<table>[^\s"]+)"""
    r"""|Function with name (?P<function>\S+)"""
)
_KEY = re.compile(r'Could not find key "([^"]+)" in struct')
_GUESS = re.compile(r'\nDid you mean "([^"\n]*)"\??')
#: These may be internal names.
_CANDIDATES = re.compile(r"\nCandidate (?:bindings|tables): [^\n]*")
_DOTTED = re.compile(r'(?<![\w".])([A-Za-z_]\w*(?:\.\w+)+)')


class _Asked:
    """A query that failed, and the names that it could have used.

    Attributes:
        text: the query.
        words: those in it.
        reason: the engine's message.
        tables: the tables that it could have used.
        stored: the columns of each table of the store.
        columns: the same of the tables that it could have used.
        following: the columns of the next row.
        of_steps: a macro in the text whose brackets see the columns of steps alone.
        named: the columns of the tables that the text names; of all, where it names none.
    """

    def __init__(self, snapshot: Snapshot, text: str, reason: str, tables: Collection[str]) -> None:
        self.text, self.reason, self.tables = text, reason, tables
        self.words = words = named_words(text)
        self.stored = {name: list(snapshot.shown_schema(name).names) for name in {*TABLES, *tables}}
        self.columns = {name: self.stored[name] for name in tables}
        self.following = list(next_columns(self.stored[STEPS]).values())
        self.of_steps = next((name for name in _OF_STEPS if name in words), None)
        reads_transitions = not words.isdisjoint({TRANSITIONS, WITH_NEXT})
        reads = {*words, STEPS} if reads_transitions or self.of_steps else words
        named = {name: names for name, names in self.columns.items() if name in reads}
        self.named = named or {**self.columns}
        if reads_transitions:
            self.named[WITH_NEXT] = self.following


def advice(
    snapshot: Snapshot, text: str, reason: str, macros: Sequence[Macro], tables: Collection[str] = TABLES
) -> str:
    """Return the message for a query that failed: suggestions, if a name is unknown, and the reason.

    Args:
        snapshot: the version that was queried.
        text: the query.
        reason: the engine's message.
        macros: those that the query could have used.
        tables: the tables that it could have used.
    """
    reason = reason.replace("\t", "  ")
    message = misuse(text, reason, macros)
    missing, key = _MISSING.search(reason), _KEY.search(reason)
    if key is not None and names_run_keys(text):
        near = [f"run.{name}" for name in near_names(key[1], list(run_keys(snapshot)))]
        message = f"{_no('key', f'run.{key[1]}', near)}\n{reason}"
    if message is not None or missing is None:
        return message or reason
    wrong = (missing["column"] or missing["table"] or missing["function"]).strip("!\"'").removeprefix("main.")
    if missing["function"]:
        lines = _function(snapshot, wrong, reason, macros)
    else:
        asked = _Asked(snapshot, text, reason, tables)
        known = _of_others(asked, wrong) or (_misplaced(asked, wrong) if missing["column"] else None)
        known = known or _unquoted(asked, wrong) or _run_key(asked, wrong) or _uncalled(macros, wrong)
        lines = [known] if known else (_column if missing["column"] else _table)(asked, wrong)
    # The engine's own guess knows neither macros nor columns of other tables.
    lines.append(_CANDIDATES.sub("", _GUESS.sub("", reason)))
    return "\n".join([*lines, *filter(None, [refresh_hint(snapshot).strip()])])


def _of_others(asked: _Asked, wrong: str) -> str | None:
    """Return the message for a column of runs or steps in a query that sees only episodes."""
    for table, key in ((RUNS, "run_id"), (STEPS, "episode_id")):
        if table in asked.tables:
            continue
        names = asked.stored[table]
        behind = re.search(rf"\b{table}\.(\w+)", asked.text) if wrong == table else None
        plain = behind[1] if behind else wrong
        name = plain if plain in names else _meant_as_one(asked.text, wrong, {table: names})
        if table == RUNS and name is not None and name.startswith(("name", METADATA.prefix)):
            key = name.removeprefix(METADATA.prefix)
            return f"{name} is a column of runs; write run.{key if key.isidentifier() else quote(key)}."
        if name is not None:
            return (
                f"{name} is a column of {table}; write {key} IN (SELECT {key} FROM {table} WHERE "
                f"{quote(name)} ...)."
            )
    return None


def _unquoted(asked: _Asked, wrong: str) -> str | None:
    """Return the message for a name with a dot that lacks quotes."""
    known = {**asked.columns, **asked.named}
    name = _meant_as_one(asked.text, wrong, known)
    if name is None:
        return None
    misplaced = name not in (each for names in asked.named.values() for each in names)
    elsewhere = _misplaced(asked, name) if misplaced else None
    quoted = f"{name} is one name: write it in double quotes, as {quote(name)}."
    return f"{quoted} {elsewhere}" if elsewhere else quoted


def _run_key(asked: _Asked, wrong: str) -> str | None:
    """Return the message for a key of runs in double quotes, without a key, or without episodes."""
    name, _, key = wrong.partition(".")
    if name != "run" or EPISODES not in asked.tables:
        return None
    if EPISODES in asked.words or len(asked.tables) == 1:
        return f"{wrong} is no column: write run.{key or 'name'}, without quotes, for metadata of the run."
    return f"run.KEY, such as run.name, is of episodes. {_way_to(asked, EPISODES)}"


def _uncalled(macros: Sequence[Macro], wrong: str) -> str | None:
    """Return the message for a macro that is written like a column or a table."""
    forms = [macro.signature for macro in macros if macro.name == wrong.casefold()]
    return f"{wrong} is a macro: write {' or '.join(forms)}." if forms else None


def _misplaced(asked: _Asked, wrong: str) -> str | None:
    """Return the message for a column that exists in another table than the query reads."""
    if wrong in asked.following:
        return f"{wrong} is a column of the view {WITH_NEXT}; write FROM {WITH_NEXT}."
    elsewhere = [name for name, names in asked.columns.items() if wrong in names]
    if not elsewhere:
        return None
    # What episodes have, too, needs no second join.
    nearest = EPISODES if EPISODES in elsewhere else elsewhere[0]
    way = _way_to(asked, nearest)
    if nearest == RUNS and _reads_rows(asked):
        own = wrong == "name" or wrong.startswith(METADATA.prefix)
        way = _way_to(asked, EPISODES).partition(" to ask")[0]
        key = wrong.removeprefix(METADATA.prefix)
        way += f", and write run.{key}." if own else " JOIN runs USING (run_id) to ask for both."
    if asked.of_steps and STEPS not in elsewhere:
        return (
            f"{wrong} is a column of {nearest}, and {asked.of_steps}(...) works on steps, whose columns are "
            f"{', '.join(asked.columns[STEPS])}. {way}"
        )
    hint = " obs(...) and act(...) read such columns." if elsewhere == [STEPS] else ""
    return (
        f"{wrong} is a column of {' and '.join(elsewhere)}, which the query does not read here.{hint} {way}"
    )


def _reads_rows(asked: _Asked) -> bool:
    """Return whether a query reads rows of steps."""
    return bool(asked.of_steps) or not asked.words.isdisjoint({STEPS, TRANSITIONS, WITH_NEXT})


def _way_to(asked: _Asked, table: str) -> str:
    """Return advice on reading another table: with a JOIN, where its rows match, or instead."""
    if table == RUNS and EPISODES in asked.words:
        return "JOIN runs USING (run_id) to ask for both."
    if table == EPISODES and _reads_rows(asked):
        return "JOIN episodes USING (episode_id) to ask for both."
    return f"Write FROM {table}."


def _column(asked: _Asked, wrong: str) -> list[str]:
    named = asked.named
    names = [name for of_table in named.values() for name in of_table]
    near = near_names(wrong, names)
    if not near:
        others = {name: f"{name} (of {of})" for of, names in asked.columns.items() for name in names}
        if RUNS not in asked.tables:
            of_runs = ["name", *(name for name in asked.stored[RUNS] if name.startswith(METADATA.prefix))]
            keys = (name.removeprefix(METADATA.prefix) for name in of_runs)
            others |= {key: f"run.{key}" for key in keys}
        near = [others[name] for name in near_names(wrong, list(others))]
    lists = [f"Columns of {table}: {', '.join(of_table)}." for table, of_table in named.items()]
    if any("." in name for name in names):
        lists.append('Names with a dot need double quotes, as in "info.x".')
    text = f" A text has single quotes: {literal(wrong)}." if quote(wrong) in asked.text else ""
    return [_no("column", wrong, near) + text, *(lists if not near or len(names) <= _FEW else [])]


def _table(asked: _Asked, wrong: str) -> list[str]:
    behind = re.search(rf"\b{re.escape(wrong)}((?:\.\w+)+)", asked.text)
    known = (name for table in (*asked.tables, RUNS) for name in asked.stored[table])
    begun = any(name.startswith(f"{wrong}.") for name in known)
    if behind and begun:
        # A name with a dot, misspelt behind it, and without the quotes that it needs.
        return _column(asked, wrong + behind[1])
    views = [*asked.tables, *((TRANSITIONS, WITH_NEXT) if STEPS in asked.tables else ())]
    return [_no("table", wrong, near_names(wrong, views)), f"Tables: {', '.join(views)}."]


def _function(snapshot: Snapshot, wrong: str, reason: str, macros: Sequence[Macro]) -> list[str]:
    single = without_elements(snapshot.schema).get(wrong.casefold()) if macros else None
    if single is not None:
        return [f"{single} is a single number here, without elements: write {single}."]
    near = near_names(wrong, [macro.name for macro in macros])
    if near:
        return [_no("macro", wrong, near)]
    # It guesses whatever the name.
    guessed = near_names(wrong, _GUESS.findall(reason))
    lists = [f"Macros: {', '.join(macro.signature for macro in macros)}."] if macros else []
    return [_no("function", wrong, guessed), *([] if guessed else lists)]


def _no(kind: str, wrong: str, near: Sequence[str]) -> str:
    """Return the sentence for a name that is not there."""
    return f"There is no {kind} {wrong!r}" + (
        f". Nearest: {', '.join(near)}." if near else ", nor any name like it."
    )


def _meant_as_one(text: str, wrong: str, columns: Mapping[str, list[str]]) -> str | None:
    """Return a column whose name has a dot, written without quotes: `info.clock`."""
    known = {name.casefold(): name for names in columns.values() for name in names if "." in name}
    for written in _DOTTED.findall(text):
        parts = written.split(".")
        for stop in range(len(parts), 1, -1):
            name = known.get(".".join(parts[:stop]).casefold())
            if name is not None and f".{wrong}.".casefold() in f".{written}.".casefold():
                return name
    return None
