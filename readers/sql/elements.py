"""Numbers of observations and actions in SQL: `obs(0)`, `next_obs(0)`, `act(0)`, and their histograms.

The macros are made for the spaces of a store, and count from 0: they know the shape of every leaf, so that
`obs(2, 1)` is row 2, column 1 of a matrix, and `obs('position', 0)` the first number of a leaf of a Dict.
`macros.py` creates them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from ...store.names import next_name, split
from ...store.schema import ACTION, OBSERVATION, StepSchema
from ...store.spaces.fixed import FixedNode
from .text import literal, quote

#: A leaf of so many dimensions is a picture or a volume, without macros for its elements.
_MOST_DIMENSIONS = 4


class Leaf(NamedTuple):
    """A leaf of fixed size of an observation space or an action space.

    Attributes:
        column: its column of steps.
        path: how it is named in `obs(path, ...)`; empty for a space that is a leaf itself.
        node: its space, shape and type.
    """

    column: str
    path: str
    node: FixedNode

    @property
    def in_list(self) -> bool:
        """True if its column is a list, not a single number or the bytes of an image."""
        return bool(self.node.shape) and not self.node.binary


def leaves_of(schema: StepSchema, root: str) -> list[Leaf]:
    """Return the leaves of the observation (`root` is "observation") or of the action, of all groups of
    agents.
    """
    leaves = []
    for part in schema.parts:
        codec = part.observation if root == OBSERVATION else part.action
        group = part.prefix.rstrip(".")
        for node in codec.leaves:
            keys = split(node.column)[len(split(codec.root)) :]
            leaves.append(Leaf(node.column, ".".join([*filter(None, [group]), *keys]), node))
    return leaves


def element_macros(schema: StepSchema) -> dict[str, list[tuple[str, str]]]:
    """Return the scalar macros for single numbers: by name, their forms as (parameters, body)."""
    macros = {"nth": [("list, index", "list[CASE WHEN index < 0 THEN index ELSE index + 1 END]")]}
    for name, leaves in _read_by_elements(schema).items():
        forms = _forms(name, leaves)
        if forms:
            macros[name] = forms
    return macros


def _read_by_elements(schema: StepSchema) -> dict[str, list[Leaf]]:
    """Return the leaves that each macro of `element_macros` reads."""
    observations = leaves_of(schema, OBSERVATION)
    following = [leaf._replace(column=next_name(leaf.column) or leaf.column) for leaf in observations]
    return {"obs": observations, "next_obs": following, "act": leaves_of(schema, ACTION)}


def _forms(name: str, leaves: Sequence[Leaf]) -> list[tuple[str, str]]:
    """Return one form for each number of indices; DuckDB chooses a macro by its number of arguments."""
    forms: list[tuple[str, str]] = []
    for count in range(_MOST_DIMENSIONS + 1):
        fitting = [leaf for leaf in leaves if len(leaf.node.shape) == count and (leaf.in_list or not count)]
        if not fitting:
            continue
        indices = [f"i{number}" for number in range(count)]
        if fitting[0].path:
            forms.append((", ".join(["part", *indices]), _chosen(name, fitting, indices)))
        elif indices:
            forms.append((", ".join(indices), _element(name, fitting[0], indices)))
    return forms


def _chosen(name: str, leaves: Sequence[Leaf], indices: Sequence[str]) -> str:
    """Return the element of the leaf that `part` names; a constant, so that only its column is read."""
    cases = " ".join(
        f"WHEN {literal(leaf.path)} THEN {_element(name, leaf, indices)}::DOUBLE" for leaf in leaves
    )
    known = ", ".join(repr(leaf.path) for leaf in leaves)
    wrong = literal(f"{name}: there is no such part with {len(indices)} indices; there are {known}")
    # The empty text is for DuckDB's check of a new macro, which goes on past a function of a parameter.
    return f"CASE part || '' {cases} ELSE error({wrong}) END"


def _element(name: str, leaf: Leaf, indices: Sequence[str]) -> str:
    column = quote(leaf.column)
    if not indices:
        return column
    sizes = leaf.node.shape
    wrong = " OR ".join(
        f"{index} < {-size} OR {index} >= {size}" for index, size in zip(indices, sizes, strict=True)
    )
    strides = [math.prod(sizes[number + 1 :]) for number in range(len(sizes))]
    place = " + ".join(
        f"({index} + CASE WHEN {index} < 0 THEN {size} ELSE 0 END) * {stride}"
        for index, size, stride in zip(indices, sizes, strides, strict=True)
    )
    said = literal(f"{name}: an index is outside the shape {sizes} of {leaf.column}")
    return f"{column}[CASE WHEN {wrong} THEN error({said})::BIGINT ELSE {place} + 1 END]"


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
    if len(leaves) == 1 and isinstance(leaves[0].node.space, Discrete):
        return "", _by_value(leaves[0])
    parts = [_numbers(leaf) for leaf in leaves if leaf.in_list or not leaf.node.shape]
    return ("bins := 20", _by_bin(parts)) if parts else None


def _by_value(leaf: Leaf) -> str:
    space = leaf.node.space
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
    if not leaf.node.shape:
        return (
            f"SELECT {literal(leaf.column)} AS action, 0 AS place, {column}::DOUBLE AS x, "
            f"{lows[0]} AS lowest, {highs[0]} AS highest FROM steps WHERE {column} IS NOT NULL"
        )
    strides = [math.prod(leaf.node.shape[axis + 1 :]) for axis in range(len(leaf.node.shape))]
    index = " || ', ' || ".join(
        f"(place // {stride} % {size})" for stride, size in zip(strides, leaf.node.shape, strict=True)
    )
    return (
        f"SELECT {literal(f'{leaf.column}[')} || {index} || ']' AS action, place, x, "
        f"{_by_place(lows)} AS lowest, {_by_place(highs)} AS highest "
        f"FROM (SELECT unnest({column})::DOUBLE AS x, "
        f"generate_subscripts({column}, 1) - 1 AS place FROM steps WHERE {column} IS NOT NULL)"
    )


def _by_place(bounds: Sequence[str]) -> str:
    """Return the bound at `place`; large spaces mostly have one bound for all numbers."""
    return bounds[0] if len(set(bounds)) == 1 else f"[{', '.join(bounds)}][place + 1]"


def _bounds(leaf: Leaf) -> tuple[list[str], list[str]]:
    """Return the bounds of each number as SQL; NULL where there is none."""
    space, count = leaf.node.space, leaf.node.size
    if isinstance(space, Discrete):
        return [_number(space.start)], [_number(space.start + space.n - 1)]
    if isinstance(space, Box):
        return _numbers_of(np.ravel(space.low)), _numbers_of(np.ravel(space.high))
    beyond = np.ravel(getattr(space, "nvec", np.full(count, 2)))
    start = np.ravel(getattr(space, "start", np.zeros(count)))
    starts = np.broadcast_to(start, beyond.shape)
    return _numbers_of(starts), _numbers_of(starts + beyond - 1)


def _numbers_of(values: np.ndarray) -> list[str]:
    """Return the numbers; a single one where all are the same."""
    return [_number(value) for value in (values[:1] if (values == values[:1]).all() else values)]


def _number(value: float) -> str:
    return f"{float(value)!r}::DOUBLE" if np.isfinite(value) else "NULL::DOUBLE"


def _by_bin(parts: Sequence[str]) -> str:
    numbers = " UNION ALL ".join(f"SELECT {rank} AS rank, * FROM ({part})" for rank, part in enumerate(parts))
    return f"""
        WITH numbers AS MATERIALIZED ({numbers}), spans AS (
            SELECT rank, place, action, coalesce(any_value(lowest), min(x) FILTER (isfinite(x))) AS low,
                coalesce(any_value(highest), max(x) FILTER (isfinite(x))) AS high, count(*) AS total
            FROM numbers GROUP BY ALL
        ), ends AS (SELECT *, {_PARTS} AS parts, {_SCALE} AS scale FROM spans), counted AS (
            SELECT rank, place, count(*) AS count, {_BIN} AS bin
            FROM numbers JOIN ends USING (rank, place) WHERE isfinite(x) GROUP BY ALL
        )
        SELECT action, {_edge("bin")} AS low, {_edge("(bin + 1)")} AS high,
            coalesce(count, 0) AS count, coalesce(count, 0) / total AS share
        FROM (SELECT *, unnest(range(parts)) AS bin FROM ends) LEFT JOIN counted USING (rank, place, bin)
        ORDER BY rank, place, bin"""
