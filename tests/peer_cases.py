"""Stores with one type of value each: spaces, infos, policy outputs, own columns and facts of episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

import episodelake as el
from episodelake.testing.format_values import EPISODES, FACTS, SPACES, VECTOR
from episodelake.testing.format_values import STEP_VALUES as INFOS
from strategies import stack

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
    **{f"metadata-{n}": Case(facts=lambda e, T, v=v: {"metadata": {"x": v}}) for n, v in FACTS.items()},
    **{f"options-{n}": Case(facts=lambda e, T, v=v: {"options": {"x": v}}) for n, v in FACTS.items()},
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
