"""The spaces of a store for `episodelake info`: as JSON, and as lines for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..._store import EpisodeStore


def spaces_report(store: EpisodeStore) -> dict[str, Any]:
    """Return the spaces as texts, the shape of rewards, and of several agents those of each group."""
    groups = [
        {
            "group": group.name,
            "agents": list(group.agents),
            "observation_space": _one_line(group.observation_space),
            "action_space": _one_line(group.action_space),
        }
        for group in store.agent_groups
    ]
    return {
        "observation_space": _one_line(store.observation_space),
        "action_space": _one_line(store.action_space),
        "reward_shape": list(store.reward_shape),
        "groups": groups,
    }


def _one_line(space: object) -> str:
    return " ".join(str(space).split())


def space_pairs(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the same as lines of names and values."""
    pairs = []
    for group in report["groups"]:
        name = group["group"]
        pairs += [
            (f"agents of {name}", ", ".join(group["agents"])),
            (f"  observation space of {name}", group["observation_space"]),
            (f"  action space of {name}", group["action_space"]),
        ]
    if not pairs:
        pairs = [
            ("observation space", report["observation_space"]),
            ("action space", report["action_space"]),
        ]
    if report["reward_shape"]:
        pairs.append(("reward shape", str(tuple(report["reward_shape"]))))
    return pairs
