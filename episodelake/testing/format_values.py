"""Values of every kind that an episode can hold, for stores that a contract writes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
from gymnasium import spaces

#: A space whose values alone determine it.
VECTOR = spaces.Box(-np.inf, np.inf, (2,), np.float32)
#: Transitions and flags of the episodes of a store: terminated, truncated, and cut after one step.
EPISODES = ((3, True, False), (2, False, True), (1, False, False))
_NUMBERS = ("float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
_BOOL: Any = np.bool_  # Gymnasium takes it, but does not say so
SPACES: dict[str, spaces.Space] = {
    **{f"box-{kind}": spaces.Box(0, 100, (3,), np.dtype(kind).type) for kind in (*_NUMBERS, "uint64")},
    "box-bool": spaces.Box(0, 1, (3,), _BOOL),
    "box-every-int8": spaces.Box(-128, 127, (2,), np.int8),
    "box-every-float64": spaces.Box(-np.inf, np.inf, (2,), np.float64),
    "scalar": spaces.Box(-9, 9, (), np.float32),
    "one": spaces.Box(-9, 9, (1,), np.float64),
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
    "dict": spaces.Dict({"a": VECTOR, "b": spaces.Discrete(3)}),
    "dict-of-vectors": spaces.Dict({"a": VECTOR, "b": spaces.Box(0, 1, (3,), np.float64)}),
    "tuple": spaces.Tuple([VECTOR, spaces.Discrete(3)]),
    # Formats refuse some of these, so that halves of the others are accepted.
    "empty": spaces.Box(0, 1, (0,), np.float32),
    "text": spaces.Text(6),
    "dict-odd-keys": spaces.Dict({"a.b": VECTOR, "a/b": VECTOR, "ä b": VECTOR}),
    "nested": spaces.Dict({"x": spaces.Dict({"t": spaces.Tuple([VECTOR, spaces.Text(3)])}), "n": VECTOR}),
    "sequence": spaces.Sequence(VECTOR),
    "graph": spaces.Graph(VECTOR, None),
    "one-of": spaces.OneOf([VECTOR, spaces.Discrete(2)]),
}

#: The value at row `t` of episode `e`; a row without it where that raises KeyError.
Value = Callable[[int, int], Any]
STEP_VALUES: dict[str, Value] = {
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
    "array-no-rows": lambda e, t: np.zeros((0, 3), np.int8),
    "array-no-columns": lambda e, t: np.zeros((2, 0), np.uint32),
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
    "dict-of-dtypes": lambda e, t: {kind: np.full((1, 2), t, kind) for kind in (*_NUMBERS, "uint64")},
    "dict-of-scalars": lambda e, t: {kind: np.array(t, kind) for kind in (*_NUMBERS, "uint64", "bool")},
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
#: Names for values of steps that other names, flags or columns could be taken for.
ODD_NAMES = ("b.c", "x y", "Ä", "next_a", "info.x", "a/b", "t", "0", "%", "task")
#: Values of metadata and options.
FACTS: dict[str, Any] = {
    "bool": True,
    "int": 3,
    "huge": 2**70,
    "float": 1.5,
    "text": "é\n",
    "text-nul": "a\0b",
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
    "array": np.arange(2),
    "array-2d": np.full((2, 3), 7, np.int8),
    "dict": {"a": 1, "b": {"c": [1, 2], "none": None}},
    "dict-empty": {},
    "dict-odd-keys": {"a/b": 1, "c.d": 2},
    "a/b": 1,
    "a.b": 2,
    "ü": "ß",
    "id": "x",
    "seed": 5,
    "total_steps": 9,
    "num_samples": 3,
    "task": "walk",
    "splits": ["train"],
}
SEEDS = (0, -3, 7, 2**63 + 5, 2**70)
