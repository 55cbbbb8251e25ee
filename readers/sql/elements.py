"""`obs(0)`, `next_obs(0)`, `act(0)`: single numbers of observations and actions in SQL, counted from 0.

The macros are made for the spaces of a store: they know the shape of every leaf, so that `obs(2, 1)` is row
2, column 1 of a matrix, and `obs('position', 0)` the first number of a leaf of a Dict. `macros.py` creates
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import gymnasium
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from ...store.names import escape_distinct
from ...store.reserved import next_name
from ...store.schema import ACTION, OBSERVATION, StepSchema
from .text import literal, quote

#: The macros whose arguments are indices.
INDEXED = ("obs", "next_obs", "act", "nth")
_FIXED = (Box, Discrete, MultiBinary, MultiDiscrete)
#: A leaf of so many dimensions is a picture or a volume, without macros for its elements.
_MOST_DIMENSIONS = 4


@dataclass(frozen=True)
class Leaf:
    """A leaf of fixed size of an observation space or an action space.

    Attributes:
        column: its column of steps.
        path: how it is named in `obs(path, ...)`; empty for a space that is a leaf itself.
        space: its space.
    """

    column: str
    path: str
    space: gymnasium.Space

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its values."""
        return self.space.shape or ()

    @property
    def in_list(self) -> bool:
        """True if its column is a list, not a single number or the bytes of an image."""
        image = isinstance(self.space, Box) and self.space.dtype == "uint8" and len(self.shape) > 1
        return bool(self.shape) and not image


def leaves_of(schema: StepSchema, root: str) -> tuple[Leaf, ...]:
    """Return the leaves of the observation (`root` is "observation") or of the action, of all groups of
    agents.
    """
    found = []
    for part in schema.parts:
        space = part.observation_space if root == OBSERVATION else part.action_space
        group = part.prefix.rstrip(".")
        found += [
            Leaf(f"{part.prefix}{column}", ".".join(name for name in (group, path) if name), leaf)
            for column, path, leaf in _walk(space, root, "")
        ]
    return tuple(found)


def _walk(space: gymnasium.Space, column: str, path: str) -> Iterator[tuple[str, str, gymnasium.Space]]:
    if type(space) is Dict or type(space) is Tuple:
        parts = space.spaces if isinstance(space, Dict) else dict(enumerate(space.spaces))
        segments = escape_distinct(map(str, parts))
        for key, child in parts.items():
            yield from _walk(child, f"{column}.{segments[str(key)]}", f"{path}.{key}" if path else str(key))
    elif type(space) in _FIXED:
        yield column, path, space


def element_macros(schema: StepSchema) -> dict[str, list[tuple[str, str]]]:
    """Return the scalar macros for single numbers: by name, their forms as (parameters, body)."""
    found = {"nth": [("list, index", "list[CASE WHEN index < 0 THEN index ELSE index + 1 END]")]}
    for name, leaves in _read_by_elements(schema).items():
        forms = _forms(name, leaves)
        if forms:
            found[name] = forms
    return found


def without_elements(schema: StepSchema) -> dict[str, str]:
    """Return the macros omitted for scalar columns, mapped to the column."""
    return {
        name: leaves[0].column
        for name, leaves in _read_by_elements(schema).items()
        if len(leaves) == 1 and not leaves[0].path and not leaves[0].shape
    }


def _read_by_elements(schema: StepSchema) -> dict[str, list[Leaf]]:
    """Return the leaves that each macro of `element_macros` reads."""
    observations = leaves_of(schema, OBSERVATION)
    following = [Leaf(next_name(leaf.column) or leaf.column, leaf.path, leaf.space) for leaf in observations]
    return {"obs": [*observations], "next_obs": following, "act": [*leaves_of(schema, ACTION)]}


def _forms(name: str, leaves: Sequence[Leaf]) -> list[tuple[str, str]]:
    """Return one form for each number of indices; DuckDB chooses a macro by its number of arguments."""
    forms: list[tuple[str, str]] = []
    for count in range(_MOST_DIMENSIONS + 1):
        fitting = [leaf for leaf in leaves if len(leaf.shape) == count and (leaf.in_list or not count)]
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
    sizes = leaf.shape
    wrong = " OR ".join(
        f"{index} < {-size} OR {index} >= {size}" for index, size in zip(indices, sizes, strict=True)
    )
    strides = [math.prod(sizes[number + 1 :]) for number in range(len(sizes))]
    place = " + ".join(
        f"({index} + CASE WHEN {index} < 0 THEN {size} ELSE 0 END) * {stride}"
        for index, size, stride in zip(indices, sizes, strides, strict=True)
    )
    said = literal(f"{name}: an index is outside the shape {tuple(map(int, sizes))} of {leaf.column}")
    return f"{column}[CASE WHEN {wrong} THEN error({said})::BIGINT ELSE {place} + 1 END]"
