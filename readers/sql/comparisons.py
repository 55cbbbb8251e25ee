"""Comparisons in the parse tree of a query: which columns of metadata meet which integers and texts.

DuckDB gives the tree by `json_serialize_sql`, and the text of a constant by `json_deserialize_sql`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np

from ...store.dynamic.column_groups import METADATA
from ...store.layout import RUNS
from .text import RUN

#: Names of columns by table.
Columns = Mapping[str, frozenset[str]]
#: From here on, integers that differ may be equal as doubles.
_FIRST_ROUNDED = 2**53
_INTEGER = re.compile(r"\s*([+-]?[0-9][0-9_]*)(\.0*)?\s*")


def is_long(value: object) -> bool:
    """Return whether a value is an integer that a double may round to another."""
    return type(value) is int and abs(value) >= _FIRST_ROUNDED


def long_in(value: Any) -> int | None:
    """Return an integer from 2^53 on in a parameter or a constant, also as text or decimal; None for none."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return next((found for item in value if (found := long_in(item)) is not None), None)
    if isinstance(value, str | Decimal):
        match = _INTEGER.fullmatch(str(value))
        value = None if match is None else int(match[1])
    if isinstance(value, np.integer):
        value = int(value)
    return value if is_long(value) else None


class QueryTree:
    """The parse tree of a query.

    Args:
        statement: as DuckDB's `json_serialize_sql` gives it.
        parameters: values of its parameters.
        connection: parses; it sees no table.
    """

    def __init__(self, statement: dict[str, Any], parameters: Any, connection: Any) -> None:
        self._statement = statement
        self._parameters = parameters
        self._connection = connection

    @staticmethod
    def of(text: str, parameters: Any) -> QueryTree | None:
        """Parse a query; None for what is not one SELECT."""
        connection = _parser(os.getpid()).cursor()
        statement = _parsed(connection, text)
        return None if statement is None else QueryTree(statement, parameters, connection)

    def rounded_comparison(self, columns: Columns) -> tuple[str, int] | None:
        """Return a column and an integer that one expression has together; None if there are none.

        Columns keep their property under other names: an alias, a column of a subquery or a common table.
        """
        aliases: dict[str, str] = {}
        numbers: dict[str, int] = {}
        size = -1
        while len(aliases) + len(numbers) > size:
            size = len(aliases) + len(numbers)
            for names, part in _named_parts(self._statement):
                column, number = self._column_in(part, columns, aliases), self._number_in(part, numbers)
                for name in names if column is not None else ():
                    aliases.setdefault(name, column or "")
                for name in names if number is not None else ():
                    numbers.setdefault(name, number or 0)
        for atom in _atoms(self._statement):
            column = self._column_in(atom, columns, aliases)
            number = None if column is None else self._number_in(atom, numbers)
            if column is not None and number is not None:
                return column, number
        return None

    def _column_in(self, part: Any, columns: Columns, aliases: Mapping[str, str]) -> str | None:
        for node in _nodes(part):
            if node["class"] == "STAR" and node.get("columns"):
                # COLUMNS(...) chooses by a pattern.
                return next((name for names in columns.values() for name in names), None)
            if node["class"] == "COLUMN_REF":
                name = _column_of(node, columns) or aliases.get(node["column_names"][-1].casefold())
                if name is not None:
                    return name
        return None

    def _number_in(self, part: Any, names: Mapping[str, int]) -> int | None:
        for node in _nodes(part):
            found = names.get(node["column_names"][-1].casefold()) if node["class"] == "COLUMN_REF" else None
            if node["class"] in ("CONSTANT", "PARAMETER"):
                found = long_in(self._value(node))
            if found is not None:
                return found
        return None

    def _value(self, node: dict[str, Any]) -> Any:
        """Return the value of a parameter; of a constant its text in SQL, without quotes."""
        if node["class"] == "CONSTANT":
            return self._text(node).removeprefix("SELECT ").strip("'")
        name = node["identifier"]
        if isinstance(self._parameters, Mapping):
            return self._parameters.get(name)
        place = int(name) - 1 if name.isdecimal() else len(self._parameters)
        return self._parameters[place] if place < len(self._parameters) else None

    def _is_text(self, node: dict[str, Any]) -> bool:
        if node["class"] == "CONSTANT":
            return self._text(node).startswith("SELECT '")
        return node["class"] == "PARAMETER" and isinstance(self._value(node), str)

    def _text(self, expression: dict[str, Any]) -> str:
        """Return the query that selects one expression."""
        statement = _parsed(self._connection, "SELECT 1")
        assert statement is not None
        statement["statements"][0]["node"]["select_list"] = [{**expression, "alias": ""}]
        return _unparsed(self._connection, statement)

    def text_comparison(self, columns: Columns) -> tuple[str, str] | None:
        """Return a column and a text that one comparison has; None if there are none."""
        for node in _nodes(self._statement):
            parts = list(_operands(node)) if _compares(node) else []
            names = [name for part in parts if (name := _column_of(part, columns)) is not None]
            texts = [str(self._value(part)) for part in parts if self._is_text(part)]
            if names and texts:
                return names[0], texts[0]
        return None


@lru_cache(1)
def _parser(process: int) -> Any:
    """Return the connection of a process whose cursors parse: opening one takes longer than parsing."""
    import duckdb

    return duckdb.connect(":memory:")


def _parsed(connection: Any, text: str) -> dict[str, Any] | None:
    statement = json.loads(connection.execute("SELECT json_serialize_sql(?)", [text]).fetchone()[0])
    return None if statement["error"] or len(statement["statements"]) != 1 else statement


def _unparsed(connection: Any, statement: dict[str, Any]) -> str:
    return connection.execute("SELECT json_deserialize_sql(?::JSON)", [json.dumps(statement)]).fetchone()[0]


def _nodes(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the expressions in a part of a tree."""
    if isinstance(part, list):
        for item in part:
            yield from _nodes(item)
    elif isinstance(part, dict):
        if "class" in part:
            yield part
        for item in part.values():
            yield from _nodes(item)


def _atoms(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the expressions of a tree; of conditions the parts that AND, OR and NOT combine."""
    if isinstance(part, list):
        for item in part:
            yield from _atoms(item)
    elif isinstance(part, dict):
        if "class" in part and part["class"] != "CONJUNCTION" and part["type"] != "OPERATOR_NOT":
            yield part
        else:
            for item in part.values():
                yield from _atoms(item)


def _named_parts(part: Any) -> Iterator[tuple[list[str], Any]]:
    """Yield the parts of a tree that get names of their own, with these names in small letters."""
    if isinstance(part, list):
        for item in part:
            yield from _named_parts(item)
    elif isinstance(part, dict):
        names = [*(part.get("aliases") or []), *(part.get("column_name_alias") or [])]
        if "class" in part:
            names.append(part.get("alias", ""))
        elif part.get("type") == "EXPRESSION_LIST":
            names += [f"col{number}" for number in range(max(map(len, part["values"]), default=0))]
        if part.get("class") == "COLUMN_REF":
            # A subquery shows `run.k` as `k`.
            names.append(part["column_names"][-1])
        given = [name.casefold() for name in names if isinstance(name, str) and name]
        if given:
            yield given, part
        for item in part.values():
            yield from _named_parts(item)


def _column_of(node: dict[str, Any], columns: Columns) -> str | None:
    """Return the column of metadata that a node refers to, also as `run.key`."""
    if node.get("class") != "COLUMN_REF":
        return None
    *qualifier, last = (name.casefold() for name in node["column_names"])
    for table, names in columns.items():
        for name in names:
            key = name.removeprefix(METADATA.prefix).casefold()
            of_run = table == RUNS and RUN in (qualifier[-1:] or [last])
            if last == name.casefold() or (of_run and (last in (key, RUN))):
                return name
    return None


def _compares(node: dict[str, Any]) -> bool:
    kind = node.get("class")
    is_operator = kind == "FUNCTION" and node.get("is_operator")
    listed = kind == "OPERATOR" and node.get("type") in ("COMPARE_IN", "COMPARE_NOT_IN")
    return kind in ("COMPARISON", "BETWEEN") or listed or bool(is_operator)


def _operands(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what a comparison compares."""
    parts = [node[name] for name in ("left", "right", "input", "lower", "upper") if name in node]
    parts += node.get("children", [])
    for argument in node.get("arguments", []):
        parts.append(argument.get("expression", argument))
    yield from (part for part in parts if isinstance(part, dict) and "class" in part)
