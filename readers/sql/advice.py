"""Messages for queries that failed: the nearest names, DuckDB's reason, and the tables and columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from ...store.common.arguments import near_names
from ...store.layout import EPISODES, STEPS, TABLES
from ...store.snapshot import Snapshot
from ..context import refresh_hint
from .macros import TRANSITIONS, WITH_NEXT, Macro, next_columns
from .rollout_views import rollout_names, view_columns
from .text import RUN, literal, named_words, names_run_keys, quote, run_keys

_LOCKED = re.compile(r'Permission Error: Cannot access \w+ "([^"]*)"')
#: DuckDB's messages for an unknown name; its Python client has no other form of them.
_MISSING = re.compile(
    r"""(?:Referenced column|have a column named|Cannot extract field) (["'])(?P<column>.+?)\1"""
    r"""|(?:Referenced table|Table with name) "?(?P<table>[^\s"]+)"""
    r"""|Function with name (?P<function>\S+)"""
    r"""|Could not find key "(?P<key>[^"]+)" in struct"""
)
#: DuckDB's guesses know neither macros nor columns of other tables, and may be internal names.
_GUESSES = re.compile(r'\nDid you mean "[^"\n]*"\??|\nCandidate (?:bindings|tables): [^\n]*')
_OTHERS = (
    "Queries JOIN episodes USING (episode_id) and JOIN runs USING (run_id), or write run.KEY for metadata of "
    "runs. Conditions on episodes write run.KEY, or episode_id IN (SELECT episode_id FROM steps WHERE ...)."
)
_GROUP = re.compile(r"""(?<![\w"'.])group(?![\w"'.]|\s+by\b)""", re.IGNORECASE)
_DOTTED = re.compile(r'(?<![\w".])([A-Za-z_]\w*(?:\.\w+)+)')


def advice(
    snapshot: Snapshot, text: str, reason: str, macros: Sequence[Macro], tables: Collection[str] = TABLES
) -> str:
    """Return the message for a query that failed: where a name is unknown, what there is, and the reason.

    Args:
        snapshot: the version that was queried.
        text: the query.
        reason: the engine's message.
        macros: those that the query could have used.
        tables: the tables that it could have used.
    """
    reason = reason.replace("\t", "  ")
    locked = _LOCKED.search(reason)
    if locked is not None:
        return (
            f"{locked[1]!r} is no part of the store, and read-only queries see nothing else. Others may read "
            f"other files too.\n{reason}"
        )
    missing = _MISSING.search(reason)
    if snapshot.of_rollouts and "syntax error" in reason and _GROUP.search(text):
        return f'{reason}\ngroup is a keyword of SQL: write the column in double quotes, as "group".'
    if missing is None or (missing["key"] and not names_run_keys(text)):
        return reason
    kind = str(missing.lastgroup)
    wrong = missing[kind].strip("!\"'").removeprefix("main.")
    columns = {table: list(snapshot.shown_schema(table).names) for table in dict.fromkeys((*tables, *TABLES))}
    readable = dict.fromkeys(tables)
    if STEPS in tables:
        columns[WITH_NEXT] = list(next_columns(columns[STEPS]).values())
        views = view_columns(columns[EPISODES]) if snapshot.of_rollouts else {}
        columns = {**views, **columns}
        readable |= dict.fromkeys((*views, WITH_NEXT))
    elif snapshot.of_rollouts:
        columns[EPISODES] += rollout_names(columns[EPISODES])
    readable = {table: names for table, names in columns.items() if table in readable}
    lines = [
        _first_line(snapshot, text, kind, wrong, macros, columns, readable),
        _GUESSES.sub("", reason),
        _what_there_is(text, kind, macros, readable),
        refresh_hint(snapshot).strip(),
    ]
    return "\n".join(filter(None, lines))


def _first_line(
    snapshot: Snapshot,
    text: str,
    kind: str,
    wrong: str,
    macros: Sequence[Macro],
    columns: Mapping[str, list[str]],
    readable: Collection[str],
) -> str:
    """Return what is wrong with a name, and the nearest ones of all tables."""
    owners: dict[str, list[str]] = {}
    for table, names in columns.items():
        for name in names:
            owners.setdefault(name, []).append(table)
    dotted = _written_without_quotes(text, wrong, owners)
    if dotted is not None and any(table in readable for table in owners[dotted]):
        return f"{dotted} is one name: write it in double quotes, as {quote(dotted)}, of {owners[dotted][0]}."
    if dotted is not None:
        kind, wrong = "column", dotted
    if kind == "table":
        behind = next((name for name in _DOTTED.findall(text) if name.startswith(f"{wrong}.")), None)
        if behind is not None and any(name.startswith(f"{wrong}.") for name in owners):
            kind, wrong = "column", behind
        elif wrong in (*columns, TRANSITIONS):
            return f"The table {wrong} is not read here. {_OTHERS}"
    if kind == "column" and owners.get(wrong) == [WITH_NEXT]:
        return f"{wrong} is a column of {WITH_NEXT}, which is not read here. Write FROM {WITH_NEXT}."
    if kind == "column" and wrong in owners:
        return f"{wrong} is a column of {' and '.join(owners[wrong])}, which is not read here. {_OTHERS}"
    keys = {column: f"run.{key}" for key, column in run_keys(snapshot).items()}
    choices = {
        "column": {
            **{name: f"{name} (of {' and '.join(tables)})" for name, tables in owners.items()},
            **keys,
        },
        "key": {name: name for name in keys.values()},
        "table": {name: name for name in (*columns, TRANSITIONS)},
        "function": {macro.name: macro.signature for macro in macros},
    }[kind]
    if wrong in keys.values() or wrong == RUN:
        return (
            f"Write metadata of runs as run.KEY, without quotes, of episodes: {', '.join(keys.values())}."
            " Queries of steps JOIN episodes USING (episode_id)."
        )
    asked = f"run.{wrong}" if kind == "key" else wrong
    near = [choices[name] for name in near_names(asked, list(choices))]
    nearest = f". Nearest: {', '.join(near)}." if near else ", nor any name like it."
    hint = f" Texts stand in single quotes: {literal(wrong)}." if quote(wrong) in text else ""
    return f"There is no {kind} {asked!r}{nearest}{hint}"


def _what_there_is(
    text: str, kind: str, macros: Sequence[Macro], columns: Mapping[str, list[str]]
) -> str | None:
    """Return the macros; or the tables, and the columns of those that a query names, or of all."""
    if kind == "function":
        return f"Macros: {', '.join(macro.signature for macro in macros)}." if macros else None
    words = named_words(text)
    if words & {TRANSITIONS, WITH_NEXT}:
        words |= {STEPS}
    named = {table: names for table, names in columns.items() if table in words} or columns
    lists = [f"Columns of {table}: {', '.join(names)}." for table, names in named.items()]
    if any("." in name for names in named.values() for name in names):
        lists.append('Names with a dot need double quotes, as in "info.x".')
    views = [*columns, *([TRANSITIONS] if STEPS in columns else [])]
    return "\n".join([f"Tables: {', '.join(views)}.", *lists])


def _written_without_quotes(text: str, wrong: str, columns: Collection[str]) -> str | None:
    """Return a column whose name has a dot, written without quotes: `info.clock`."""
    known = {name.casefold(): name for name in columns if "." in name}
    for written in _DOTTED.findall(text):
        parts = written.split(".")
        for stop in range(len(parts), 1, -1):
            name = known.get(".".join(parts[:stop]).casefold())
            if name is not None and f".{wrong}.".casefold() in f".{written}.".casefold():
                return name
    return None
