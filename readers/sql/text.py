"""Pieces of SQL text: names and texts as it writes them, and where a query begins in what was asked."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from ...store.dynamic.column_groups import METADATA
from ...store.layout import RUNS
from ...store.snapshot import Snapshot

#: The column that holds the keys of a run beside its episodes.
RUN = "run"

#: How a query begins, apart from EXPLAIN, DESCRIBE and SUMMARIZE.
_OPENINGS = {"select", "from", "with", "values", "pivot", "pivot_wider", "unpivot", "table", "("}
_WORD = re.compile(r"\w+")
#: Digits of an integer that may be beyond 2^53.
MANY_DIGITS = re.compile(r"[0-9][0-9_]{15,}")
_ANALYZE = {"analyze", "analyse"}
_TOLD_OF = {"explain", "describe", "desc", "summarize", "summarise"} | _ANALYZE


class _Word(NamedTuple):
    """A token of a text.

    Attributes:
        text: in lower case.
        start: its offset in bytes of UTF-8.
        kind: DuckDB's type of the token.
    """

    text: str
    start: int
    kind: object


_LISTS = re.compile(r'(?:next_)?(?:observation|action)$|"(?:next_)?(?:observation|action)[."]')
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*", re.IGNORECASE)


def quote(name: str, *, always: bool = True) -> str:
    """Return a name as an SQL identifier.

    Args:
        name: the name.
        always: quote it also where a query can do without.

    >>> quote('info.x'), quote("length", always=False), quote("order", always=False)
    ('"info.x"', 'length', '"order"')
    """
    if not always:
        import duckdb

        if _PLAIN.fullmatch(name) and duckdb.tokenize(name)[0][1] == duckdb.token_type.identifier:
            return name
    return '"' + name.replace('"', '""') + '"'


def literal(value: str) -> str:
    """Return a text as an SQL literal.

    >>> literal("agent's")
    "'agent''s'"
    """
    return "'" + value.replace("'", "''") + "'"


def is_whole(value: str) -> str:
    """Return a condition: whether an expression of any type is an integer; false for NULL and other texts.

    >>> is_whole("2.5")
    'coalesce(try_cast(2.5 AS DOUBLE) = try_cast(2.5 AS BIGINT), false)'
    """
    return f"coalesce(try_cast({value} AS DOUBLE) = try_cast({value} AS BIGINT), false)"


def has_texts_or_long_integers(text: str) -> bool:
    """Return whether a query has a text, or an integer that a double may round to another.

    >>> has_texts_or_long_integers("FROM episodes WHERE length > 100")
    False
    """
    return "'" in text or MANY_DIGITS.search(text) is not None


def named_words(text: str) -> frozenset[str]:
    """Return the words of a text, in small letters: names, and what else there is.

    >>> sorted(named_words("FROM First_hit(t > 3)"))
    ['3', 'first_hit', 'from', 't']
    """
    return frozenset(word.casefold() for word in _WORD.findall(text))


#: What a name that stands behind it is an alias of.
_RELATIONS = {"runs", "episodes", "steps", "transitions", "transitions_with_next", ")"}


def names_run_keys(text: str) -> bool:
    """Return whether a query names keys of runs, as in `run.algo`; not where `run` is a relation of its own.

    >>> names_run_keys("SELECT run.algo FROM episodes"), names_run_keys("SELECT run.name FROM runs AS run")
    (True, False)
    """
    if "run" not in text.casefold():
        return False
    words = ["", "", *(word.text.strip('"') for word in _words(text)), ""]
    places = [at for at, word in enumerate(words) if word == "run" and words[at - 1] != "."]
    for at in places:
        behind = words[at - 2] if words[at - 1] == "as" else words[at - 1]
        if behind in _RELATIONS or words[at - 1] in ("with", "recursive"):
            return False
    return any(words[at + 1] == "." for at in places)


def run_keys(snapshot: Snapshot) -> dict[str, str]:
    """Return the keys that `run.<key>` can name, each with its column of `runs`."""
    metadata = [name for name in snapshot.shown_schema(RUNS).names if name.startswith(METADATA.prefix)]
    return {"name": "name"} | {name.removeprefix(METADATA.prefix): name for name in metadata}


#: The views with lists of observations and actions.
_WITH_LISTS = {"steps", "transitions", "transitions_with_next"}


def element_zero(text: str) -> str | None:
    """Return the first element 0 of an observation or action in a query, as it is written.

    None without one, in a query of other tables, and where the query gives that name to something else.

    >>> element_zero('FROM steps SELECT "observation.arm"[0]'), element_zero("FROM steps SELECT 'action[0]'")
    ('"observation.arm"[0]', None)
    """
    words = _words(text) if "[" in text else []
    texts = [word.text for word in words]
    if _WITH_LISTS.isdisjoint(word.strip('"') for word in texts):
        return None
    aliases = {word.text.strip('"') for before, word in pairwise(words) if _names_what_follows(before)}
    for name, *index in zip(texts, texts[1:], texts[2:], texts[3:], strict=False):
        if index == ["[", "0", "]"] and _LISTS.match(name) and name.strip('"') not in aliases:
            return name + "[0]"
    return None


def _names_what_follows(word: _Word) -> bool:
    """Return whether a name after a word is an alias: after AS, or the end of an expression."""
    import duckdb

    kinds = (duckdb.token_type.identifier, duckdb.token_type.numeric_const, duckdb.token_type.string_const)
    return word.text in ("as", ")", "]", "}") or word.kind in kinds


def explained(text: str) -> str:
    """Return what a text asks to EXPLAIN, without that word and its options; any other text as it is.

    >>> explained("EXPLAIN /* how? */ ANALYZE SELECT 1"), explained("EXPLAIN (FORMAT json) FROM steps")
    ('SELECT 1', 'FROM steps')
    """
    words = _words(text)
    if not words or words[0].text != "explain":
        return text
    place = 1
    if place < len(words) and words[place].text in _ANALYZE:
        place += 1
    if place + 1 < len(words) and words[place].text == "(" and words[place + 1].text not in _OPENINGS:
        place += [word.text for word in words[place:]].index(")") + 1
    return text.encode()[words[place].start :].decode() if place < len(words) else ""


def opens_query(text: str) -> bool:
    """Return whether the first word of a text is one that queries begin with.

    >>> opens_query("PIVOT episodes ON end_reason"), opens_query("CREATE TABLE taken AS FROM steps")
    (True, False)
    """
    words = _words(text)
    return bool(words) and words[0].text in _OPENINGS | _TOLD_OF


def _words(text: str) -> list[_Word]:
    """Return the words and signs of a text, without remarks."""
    import duckdb

    data = text.encode()
    tokens = duckdb.tokenize(text)
    stops = [start for start, _ in tokens[1:]] + [len(data)]
    return [
        _Word(data[start:stop].decode().strip().casefold(), start, kind)
        for (start, kind), stop in zip(tokens, stops, strict=True)
        if kind != duckdb.token_type.comment
    ]
