"""Stores with one type of value each: spaces, infos, policy outputs, own columns and facts of episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

import episodelake as el
from strategies import stack

VECTOR = spaces.Box(-np.inf, np.inf, (2,), np.float32)
#: Transitions and flags of the episodes of each store: terminated, truncated, and cut after one step.
EPISODES = ((3, True, False), (2, False, True), (1, False, False))
_NUMBERS = ("float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
SPACES: dict[str, spaces.Space] = {
    **{f"box-{kind}": spaces.Box(0, 100, (3,), np.dtype(kind).type) for kind in (*_NUMBERS, "uint64")},
    "box-bool": spaces.Box(0, 1, (3,), np.bool_),
    "scalar": spaces.Box(-9, 9, (), np.float32),
    "one": spaces.Box(-9, 9, (1,), np.float64),
    "empty": spaces.Box(0, 1, (0,), np.float32),
    "matrix": spaces.Box(-9, 9, (2, 3), np.float64),
    "image": spaces.Box(0, 255, (4, 6, 3), np.uint8),
    "grey": spaces.Box(0, 255, (4, 6, 1), np.uint8),
    "discrete": spaces.Discrete(5),
    "discrete-start": spaces.Discrete(5, start=3),
    "discrete-below": spaces.Discrete(5, start=-3),
    "multi-discrete": spaces.MultiDiscrete([3, 4]),
    "multi-discrete-2d": spaces.MultiDiscrete(np.array([[3, 4], [5, 2]])),
    "multi-binary": spaces.MultiBinary(3),
    "multi-binary-2d": spaces.MultiBinary([2, 2]),
    "text": spaces.Text(6),
    "dict": spaces.Dict({"a": VECTOR, "b": spaces.Discrete(3)}),
    "dict-of-vectors": spaces.Dict({"a": VECTOR, "b": spaces.Box(0, 1, (3,), np.float64)}),
    "dict-odd-keys": spaces.Dict({"a.b": VECTOR, "a/b": VECTOR, "ä b": VECTOR}),
    "tuple": spaces.Tuple([VECTOR, spaces.Discrete(3)]),
    "nested": spaces.Dict({"x": spaces.Dict({"t": spaces.Tuple([VECTOR, spaces.Text(3)])}), "n": VECTOR}),
    "sequence": spaces.Sequence(VECTOR),
    "graph": spaces.Graph(VECTOR, None),
    "one-of": spaces.OneOf([VECTOR, spaces.Discrete(2)]),
}
#: The info `x` of row `t` of episode `e`; a row without it where that raises KeyError.
INFOS: dict[str, Callable[[int, int], Any]] = {
    "bool": lambda e, t: t % 2 == 0,
    "int": lambda e, t: t,
    "float": lambda e, t: t / 3,
    "nan": lambda e, t: float("nan") if t else 1.0,
    "text": lambda e, t: ["", "bé", "c,\n"][t % 3],
    "text-nul": lambda e, t: "a\0",
    "none": lambda e, t: None,
    "sometimes-none": lambda e, t: t if t else None,
    "int-or-float": lambda e, t: t if t % 2 else t / 3,
    "int-or-text": lambda e, t: t if t % 2 else "x",
    "huge": lambda e, t: 2**70 + t,
    "beyond-int64": lambda e, t: 2**63 + t,
    "float32": lambda e, t: np.float32(t / 3),
    "array-0d": lambda e, t: np.array(t / 3),
    "array": lambda e, t: np.arange(3, dtype=np.float32) * t,
    "array-one": lambda e, t: np.array([t], np.int16),
    "array-2d": lambda e, t: np.full((2, 3), t, np.int32),
    "array-bool": lambda e, t: np.array([True, t % 2 == 0]),
    "array-uint64": lambda e, t: np.array([2**64 - 1, t], np.uint64),
    "array-float16": lambda e, t: np.full(2, t, np.float16),
    "array-empty": lambda e, t: np.zeros(0),
    "array-text": lambda e, t: np.array(["a", "bc"]),
    "array-ragged": lambda e, t: np.arange(t),
    "list": lambda e, t: [t / 3, 1.0],
    "list-int": lambda e, t: [t, 1],
    "list-mixed": lambda e, t: [t, 1.5],
    "list-bool-int": lambda e, t: [True, t],
    "list-text": lambda e, t: ["a", str(t)],
    "list-nested": lambda e, t: [[t, 1], [2, 3]],
    "list-ragged": lambda e, t: list(range(t)),
    "list-ragged-inside": lambda e, t: [[1], [1, 2]],
    "list-empty": lambda e, t: [],
    "list-huge": lambda e, t: [2**70, t],
    "list-beyond-int64": lambda e, t: [2**63, -t],
    "list-of-dicts": lambda e, t: [{"a": t}],
    "tuple": lambda e, t: (1, t),
    "dict": lambda e, t: {"a": t, "b": {"c": t / 3, "s": "é"}},
    "dict-of-arrays": lambda e, t: {"v": np.full(2, t / 3), "f": np.full(2, True)},
    "dict-of-matrices": lambda e, t: {"m": np.full((2, 2), t)},
    "dict-empty": lambda e, t: {},
    "dict-int-keys": lambda e, t: {1: t, 2: t},
    "dict-odd-keys": lambda e, t: {"a/b": t, "c.d": t, "": t},
    "dict-changing": lambda e, t: {"a": t} if t % 2 else {"b": t},
    "datetime": lambda e, t: datetime(2024, 1, 1, 12, t, tzinfo=UTC),
    "some-steps": lambda e, t: {1: 1.5}[t],
    "last-step": lambda e, t: {EPISODES[e][0]: 1.5}[t],
    "not-last-step": lambda e, t: [1.5] * 9 if t < EPISODES[e][0] else {}[t],
    "one-episode": lambda e, t: {1: t / 3}[e],
    "not-first-episode": lambda e, t: {1: t, 2: t}[e],
    "other-type": lambda e, t: t if e else t / 3,
    "other-shape": lambda e, t: np.zeros(2 + e),
    "other-dtype": lambda e, t: np.zeros(2, np.float32 if e else np.float64),
}
#: Policy values and own columns of T rows.
COLUMNS = ("bool", "int", "float", "text", "int-or-float", "beyond-int64", "array-0d", "array", "array-2d")
COLUMNS += ("array-uint64", "array-ragged", "array-text", "list", "list-mixed", "list-text", "dict")
COLUMNS += (
    "dict-of-matrices",
    "one-episode",
    "not-first-episode",
    "other-type",
    "other-shape",
    "other-dtype",
)
METADATA: dict[str, Any] = {
    "bool": True,
    "int": 3,
    "huge": 2**70,
    "float": 1.5,
    "text": "é\n",
    "long-text": "x" * 70_000,
    "none": None,
    "list": [1, 2],
    "list-float": [1.5, 2.0],
    "list-text": ["a", "bc"],
    "list-mixed": [1, "a", None],
    "list-nested": [[1, 2], [3, 4]],
    "list-ragged": [[1], [2, 3]],
    "list-empty": [],
    "list-long": list(range(20_000)),
    "dict": {"a": 1, "b": {"c": [1, 2]}},
    "dict-empty": {},
    "dict-odd-keys": {"a/b": 1, "c.d": 2},
}


@dataclass(frozen=True)
class Case:
    """The type of one value of a store."""

    observation: spaces.Space = field(default_factory=lambda: VECTOR)
    action: spaces.Space = field(default_factory=lambda: VECTOR)
    facts: Callable[[int, int], dict[str, Any]] = lambda e, length: {}


def _infos(value: Callable[[int, int], Any]) -> Callable[[int, int], dict[str, Any]]:
    return lambda e, length: {"infos": [_row(value, e, t) for t in range(length + 1)]}


def _row(value: Callable[[int, int], Any], e: int, t: int) -> dict[str, Any]:
    try:
        return {"x": value(e, t)}
    except KeyError:
        return {}


def _columns(group: str, value: Callable[[int, int], Any]) -> Callable[[int, int], dict[str, Any]]:
    def facts(e: int, length: int) -> dict[str, Any]:
        rows = [_row(value, e, t) for t in range(length + (group == "extra"))]
        return {group: {"x": [row["x"] for row in rows]}} if all(rows) else {}

    return facts


CASES: dict[str, Case] = {
    "plain": Case(),
    **{f"observation-{name}": Case(observation=space) for name, space in SPACES.items()},
    **{f"action-{name}": Case(action=space) for name, space in SPACES.items()},
    **{f"info-{name}": Case(facts=_infos(value)) for name, value in INFOS.items()},
    **{f"policy-{name}": Case(facts=_columns("policy", INFOS[name])) for name in COLUMNS},
    **{f"extra-{name}": Case(facts=_columns("extra", INFOS[name])) for name in COLUMNS},
    **{f"metadata-{n}": Case(facts=lambda e, T, v=v: {"metadata": {"x": v}}) for n, v in METADATA.items()},
    **{f"options-{n}": Case(facts=lambda e, T, v=v: {"options": {"x": v}}) for n, v in METADATA.items()},
    **{f"seed-{n}": Case(facts=lambda e, T, n=n: {"seed": n}) for n in (0, -3, 2**63 + 5, 2**70)},
    "some-metadata": Case(facts=lambda e, T: {"metadata": {"x": 1}} if e == 1 else {}),
    "last-missing": Case(facts=lambda e, T: {"last_observation": "missing"} if e == 0 else {}),
}


def build(path: Path, case: Case) -> el.EpisodeStore:
    """A store of three episodes."""
    store = el.create(path, observation_space=case.observation, action_space=case.action)
    case.observation.seed(1)
    case.action.seed(2)
    with store.writer() as writer:
        for index, (length, terminated, truncated) in enumerate(EPISODES):
            facts = case.facts(index, length)
            seen = length + (facts.get("last_observation") != "missing")
            writer.write_episode(
                observations=stack(case.observation, [case.observation.sample() for _ in range(seen)]),
                actions=stack(case.action, [case.action.sample() for _ in range(length)]),
                rewards=np.arange(length) / 3,
                terminations=terminated,
                truncations=truncated,
                **facts,
            )
    return store.refresh()
