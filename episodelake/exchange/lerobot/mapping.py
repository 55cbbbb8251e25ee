"""Features of a LeRobot dataset by their role: by LeRobot's names, or by the `mapping` of the caller.

Datasets that LeRobot does not record have names of their own: those of openpi are `image`, `state` and
`actions`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import DatasetError, InvalidArgumentError
from ...plugin import suggest
from .features import column_names, is_numeric, shape_of

_DONE, _TRUNCATED = "next.done", "next.truncated"
_SIDES = ("observation", "action")
_SINGLE = {"reward": "next.reward", "terminated": _DONE, "truncated": _TRUNCATED}


@dataclass(frozen=True)
class Roles:
    """The features that make up transitions.

    Attributes:
        observation, action: features to our columns.
        reward, terminated, truncated: features; None if there is none.
        joined: vectors of several features: their parts by the name that stands for them.
        described: those of `joined`, as `meta/info.json` has features.
    """

    observation: dict[str, str]
    action: dict[str, str]
    reward: str | None
    terminated: str | None
    truncated: str | None
    joined: Mapping[str, Sequence[str]] = field(default_factory=dict)
    described: Mapping[str, Any] = field(default_factory=dict)

    @property
    def features(self) -> set[str]:
        """All features with a role."""
        sides = {*self.observation, *self.action, self.reward, self.terminated, self.truncated}
        parts = {part for name in sides for part in self.joined.get(name or "", ())}
        return {name for name in sides | parts if name is not None}


def roles_of(mapping: Any, features: Mapping[str, Any], ours: Mapping[str, Any], place: Any) -> Roles:
    """Return the features by role.

    Args:
        mapping: of the caller; None for LeRobot's names.
        ours: what an export says of the features.
        place: the dataset, for messages.

    Raises:
        InvalidArgumentError: the mapping has unknown keys, or names something other than features.
        DatasetError: there is no such feature, or none for observations or actions.
    """
    if mapping is not None:
        return _Chosen(features, place).roles(mapping)
    observation, action = (column_names(side, features, ours) for side in _SIDES)
    for side, named in (("observation.*", observation), ("action", action)):
        if not named:
            raise DatasetError(
                f"{place} has no feature {side}; it has {', '.join(sorted(features))}. Name them with "
                "mapping={'observation': {'state': 'state'}, 'action': 'actions'} (--map)."
            )
    reward, terminated, truncated = (name if name in features else None for name in _SINGLE.values())
    return Roles(observation, action, reward, terminated, truncated)


class _Chosen:
    """Features that a mapping names."""

    def __init__(self, features: Mapping[str, Any], place: Any) -> None:
        self._features, self._place = features, place
        self._joined: dict[str, Sequence[str]] = {}
        self._described: dict[str, Any] = {}

    def roles(self, mapping: Any) -> Roles:
        known = [*_SIDES, *_SINGLE]
        if not isinstance(mapping, Mapping) or not {*_SIDES} <= {*mapping} <= {*known}:
            shown = list(mapping) if isinstance(mapping, Mapping) else mapping
            raise InvalidArgumentError(
                f"mapping (--map) is {shown!r:.200}; for LeRobot expected a dict with observation and "
                f"action, and perhaps {', '.join(_SINGLE)}, such as "
                "{'observation': {'state': 'state'}, 'action': 'actions'}."
            )
        observation, action = (self._side(mapping[side], side) for side in _SIDES)
        reward, terminated, truncated = (self._single(mapping, role) for role in _SINGLE)
        return Roles(observation, action, reward, terminated, truncated, self._joined, self._described)

    def _single(self, mapping: Mapping[str, Any], role: str) -> str | None:
        if role not in mapping:  # LeRobot's own name needs no mapping
            return _SINGLE[role] if _SINGLE[role] in self._features else None
        return None if mapping[role] is None else self._feature(role, mapping[role])

    def _side(self, given: Any, side: str) -> dict[str, str]:
        named: dict[str, str] = {}

        def add(columns: Any, path: str) -> None:
            if isinstance(columns, Mapping) and columns:
                for key, part in columns.items():
                    add(part, f"{path}.{key}")
                return
            name = self._vector(path, columns)
            if name in named:
                raise InvalidArgumentError(f"mapping (--map) names {name} for {named[name]} and for {path}.")
            named[name] = path

        add(given, side)
        return named

    def _vector(self, path: str, columns: Any) -> str:
        """Return the feature of a name or a list of names, which become one vector."""
        if isinstance(columns, str):
            return self._feature(path, columns)
        parts = [self._feature(path, name) for name in columns] if isinstance(columns, Sequence) else []
        if len(parts) < 2:
            if parts:
                return parts[0]
            raise InvalidArgumentError(
                f"mapping (--map) has {columns!r:.200} for {path}; expected a feature, a list of features "
                "that make a vector, or a mapping of keys to these."
            )
        for name in parts:
            feature = self._features[name]
            if not is_numeric(feature["dtype"]) or len(shape_of(feature)) > 1:
                raise DatasetError(
                    f"{self._place}: {name} has the dtype {feature['dtype']} and the shape "
                    f"{feature['shape']}; {path} can only join vectors of numbers. Give it a key of its own."
                )
        name = ", ".join(parts)
        shapes = [shape_of(self._features[part]) for part in parts]
        dtype = np.result_type(*(np.dtype(self._features[part]["dtype"]) for part in parts))
        self._joined[name] = parts
        self._described[name] = {"dtype": str(dtype), "shape": [sum(map(math.prod, shapes))]}
        return name

    def _feature(self, role: str, name: Any) -> str:
        if not isinstance(name, str):
            raise InvalidArgumentError(f"mapping (--map) has {name!r} for {role}; expected a feature.")
        if name not in self._features:
            raise DatasetError(
                f"{self._place} has no feature {name!r}, which the mapping names for {role}."
                f"{suggest(name, list(self._features))} Features: {', '.join(self._features)}."
            )
        return name
