"""The queries behind `step_histogram(...)` and `action_histogram()`, which is made for an action space."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gymnasium.spaces import Box, Discrete

from .elements import Leaf
from .text import literal, quote

#: How many bins there are between two ends: one where both are the same.
_PARTS = """CASE
    WHEN NOT coalesce(bins >= 1, false) THEN error('bins is ' || coalesce(bins::VARCHAR, 'NULL')
        || '; expected a whole number of at least 1')::BIGINT
    WHEN low = high THEN 1 ELSE bins END"""
#: Near the largest numbers there are, edges are worked out of smaller ones; a power of 2 changes no digit.
_SCALE = "CASE WHEN greatest(abs(low), abs(high)) > 1e280 THEN pow(2, -100) ELSE 1 END"
_BIN = """greatest(0, least(parts - 1, CASE WHEN high > low
    THEN floor((x * scale - low * scale) / (high * scale - low * scale) * parts) ELSE 0 END))::BIGINT"""


def _edge(number: str) -> str:
    return f"(low * scale + (high * scale - low * scale) * {number} / parts) / scale"


HISTOGRAM_OF_STEPS = f"""
    WITH found AS MATERIALIZED (
        SELECT x FROM (SELECT (_value)::DOUBLE AS x FROM steps) WHERE isfinite(x)
    ), ends AS (
        SELECT *, {_PARTS} AS parts, {_SCALE} AS scale FROM (SELECT min(x) AS low, max(x) AS high FROM found)
    ), counted AS (SELECT {_BIN} AS bin, count(*) AS count FROM found, ends GROUP BY bin)
    SELECT {_edge("number")} AS low, {_edge("(number + 1)")} AS high, coalesce(count, 0) AS count
    FROM (SELECT *, unnest(range(parts)) AS number FROM ends) LEFT JOIN counted ON bin = number
    WHERE low IS NOT NULL ORDER BY number"""


def histogram_of_actions(leaves: Sequence[Leaf]) -> tuple[str, str] | None:
    """Parameters and query of the histogram; None where no part of the action has numbers.

    A Discrete action is counted by value, those that were never taken with 0. Every other is cut into its
    numbers, each with bins between its bounds; without bounds, between the smallest and the largest found.
    """
    if len(leaves) == 1 and isinstance(leaves[0].space, Discrete):
        return "", _by_value(leaves[0])
    parts = [_numbers(leaf) for leaf in leaves if leaf.in_list or not leaf.shape]
    return ("bins := 20", _by_bin(parts)) if parts else None


def _by_value(leaf: Leaf) -> str:
    space = leaf.space
    assert isinstance(space, Discrete)
    first, beyond = int(space.start), int(space.start + space.n)
    column = quote(leaf.column)
    return f"""
        WITH counted AS (
            SELECT {column} AS action, count(*) AS count FROM steps
            WHERE {column} IS NOT NULL GROUP BY ALL
        )
        SELECT action, coalesce(count, 0) AS count, coalesce(count, 0) / sum(count) OVER () AS share
        FROM (SELECT unnest(range({first}, {beyond})) AS action)
        FULL JOIN counted USING (action) ORDER BY action"""


def _numbers(leaf: Leaf) -> str:
    """Return a query for the numbers of one leaf: which, its value, and its bounds if it has finite ones."""
    column = quote(leaf.column)
    lows, highs = _bounds(leaf)
    if not leaf.shape:
        return (
            f"SELECT {literal(leaf.column)} AS action, 0 AS place, {column}::DOUBLE AS x, "
            f"{lows[0]} AS lowest, {highs[0]} AS highest FROM steps WHERE {column} IS NOT NULL"
        )
    names = [literal(f"{leaf.column}[{', '.join(map(str, index))}]") for index in np.ndindex(leaf.shape)]
    return (
        f"SELECT [{', '.join(names)}][place + 1] AS action, place, x, "
        f"[{', '.join(lows)}][place + 1] AS lowest, [{', '.join(highs)}][place + 1] AS highest "
        f"FROM (SELECT unnest({column})::DOUBLE AS x, "
        f"generate_subscripts({column}, 1) - 1 AS place FROM steps WHERE {column} IS NOT NULL)"
    )


def _bounds(leaf: Leaf) -> tuple[list[str], list[str]]:
    """Return the bounds of each number as SQL; NULL where there is none."""
    space, count = leaf.space, int(np.prod(leaf.shape))
    if isinstance(space, Discrete):
        return [_number(space.start)], [_number(space.start + space.n - 1)]
    if isinstance(space, Box):
        low, high = np.ravel(space.low), np.ravel(space.high)
        return [_number(value) for value in low], [_number(value) for value in high]
    beyond = np.ravel(getattr(space, "nvec", np.full(count, 2)))
    start = np.ravel(getattr(space, "start", np.zeros(count)))
    starts = np.broadcast_to(start, beyond.shape)
    return [_number(value) for value in starts], [_number(value) for value in starts + beyond - 1]


def _number(value: float) -> str:
    return f"{float(value)!r}::DOUBLE" if np.isfinite(value) else "NULL::DOUBLE"


def _by_bin(parts: Sequence[str]) -> str:
    numbers = " UNION ALL ".join(f"SELECT {rank} AS rank, * FROM ({part})" for rank, part in enumerate(parts))
    return f"""
        WITH numbers AS MATERIALIZED ({numbers}), found AS (
            SELECT rank, place, action, coalesce(any_value(lowest), min(x) FILTER (isfinite(x))) AS low,
                coalesce(any_value(highest), max(x) FILTER (isfinite(x))) AS high, count(*) AS total
            FROM numbers GROUP BY ALL
        ), ends AS (SELECT *, {_PARTS} AS parts, {_SCALE} AS scale FROM found), counted AS (
            SELECT rank, place, count(*) AS count, {_BIN} AS bin
            FROM numbers JOIN ends USING (rank, place) WHERE isfinite(x) GROUP BY ALL
        )
        SELECT action, {_edge("bin")} AS low, {_edge("(bin + 1)")} AS high,
            coalesce(count, 0) AS count, coalesce(count, 0) / total AS share
        FROM (SELECT *, unnest(range(parts)) AS bin FROM ends) LEFT JOIN counted USING (rank, place, bin)
        ORDER BY rank, place, bin"""
