"""Completion of SQL at the prompt: tables, their columns, functions and macros, keywords.

All candidates come from the connection, so a query can use each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import duckdb
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from ...readers.sql.text import quote

_WORD = re.compile(r'(?:(?P<owner>\w+)\.)?(?P<start>"[^"]*|\w*)$')
_NAMED = re.compile(r"\b(?:from|join)\s+(?P<table>\w+)(?:\s+(?:as\s+)?(?P<alias>\w+))?", re.IGNORECASE)
_AFTER_TABLE = re.compile(r"\b(?:from|join|describe|summarize)\s+\w*$", re.IGNORECASE)
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*", re.IGNORECASE)

_COLUMNS = """SELECT table_name, column_name, data_type FROM duckdb_columns()
    WHERE NOT internal AND table_name NOT LIKE '\\_%' ESCAPE '\\' ORDER BY table_name, column_index"""
_FUNCTIONS = """SELECT function_name, any_value(parameters), bool_and(internal) FROM duckdb_functions()
    WHERE regexp_full_match(function_name, '[a-z][a-z0-9_]*') GROUP BY 1 ORDER BY 3, 1"""


class SqlCompleter(Completer):
    """Offers candidates for the cursor's place.

    Args:
        connection: the source of tables, functions and keywords.

    Attributes:
        tables: columns and their types by table.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.tables: dict[str, dict[str, str]] = {}
        self._functions: dict[str, str] = {}
        self._keywords: list[str] = []
        self.look_up(connection)

    def look_up(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Read the names of a connection."""
        tables: dict[str, dict[str, str]] = {}
        for table, column, kind in connection.execute(_COLUMNS).fetchall():
            tables.setdefault(table, {})[column] = kind
        self.tables = tables
        self._functions = {
            name: "function" if internal else f"macro({', '.join(parameters or ())})"
            for name, parameters, internal in connection.execute(_FUNCTIONS).fetchall()
        }
        rows = connection.execute("SELECT keyword_name FROM duckdb_keywords() ORDER BY 1").fetchall()
        self._keywords = [name.upper() for (name,) in rows]

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Yield candidates for the cursor's place: columns first, then tables, functions and keywords."""
        before = document.text_before_cursor
        found = _WORD.search(before)
        assert found is not None
        owner, start = found["owner"], found["start"]
        if owner:
            yield from _matching(self.columns_of(document.text, owner), start)
        elif start or complete_event.completion_requested:
            if _AFTER_TABLE.search(before):
                yield from _matching(dict.fromkeys(self.tables, "table"), start)
                return
            yield from _matching(self.columns_of(document.text), start)
            yield from _matching(dict.fromkeys(self.tables, "table"), start)
            if start and not start.startswith('"'):
                yield from _matching(self._functions, start, call=True)
                yield from self._keywords_matching(start)

    def columns_of(self, text: str, owner: str | None = None) -> dict[str, str]:
        """Columns of the tables that a query names (else of all), or of one table or alias in it."""
        named = {}
        for found in _NAMED.finditer(text):
            named[found["table"].lower()] = found["table"].lower()
            if found["alias"]:
                named[found["alias"].lower()] = found["table"].lower()
        if owner is not None:
            return self.tables.get(named.get(owner.lower(), owner.lower()), {})
        chosen = [self.tables[table] for table in dict.fromkeys(named.values()) if table in self.tables]
        merged: dict[str, str] = {}
        for columns in chosen or self.tables.values():
            merged |= columns
        return merged

    def _keywords_matching(self, start: str) -> Iterator[Completion]:
        for keyword in self._keywords:
            if keyword.startswith(start.upper()):
                text = keyword.lower() if start.islower() else keyword
                yield Completion(text, -len(start), display_meta="keyword")


def _matching(names: dict[str, str], start: str, *, call: bool = False) -> Iterator[Completion]:
    wanted = start.removeprefix('"').lower()
    for name, told in names.items():
        if name.lower().startswith(wanted):
            text = name if _PLAIN.fullmatch(name) and not start.startswith('"') else quote(name)
            yield Completion(f"{text}(" if call else text, -len(start), display=name, display_meta=told)
