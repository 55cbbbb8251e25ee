"""Spaces and specs that `create` takes from an environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from ...store.common.arguments import expect, is_integer
from ...store.errors import InvalidArgumentError
from ...store.spaces import own_classes

AgentSpaces = Mapping[str, tuple[gymnasium.Space, gymnasium.Space]]


def spaces_of_agents(
    env: object, agents: AgentSpaces | None
) -> dict[str, tuple[gymnasium.Space, gymnasium.Space]]:
    """Return the spaces of the agents given, or of a PettingZoo environment's; empty for a single agent.

    Raises:
        InvalidArgumentError: the agents are no mapping from names to pairs of spaces, or cannot be found.
    """
    if agents is None:
        from .env_checks import agent_spaces, pettingzoo_api

        return agent_spaces(env) if pettingzoo_api(env) else {}
    spaces = gymnasium.Space
    valid = isinstance(agents, Mapping) and all(
        isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(each, spaces) for each in pair)
        for pair in agents.values()
    )
    expected = "a mapping from each agent's name to its observation space and its action space"
    expect(valid, "agents", agents, expected)
    return {agent: (pair[0], pair[1]) for agent, pair in agents.items()}


def checked_reward_shape(shape: object) -> tuple[int, ...]:
    """Return a reward shape that a caller gave.

    Raises:
        InvalidArgumentError: it is neither () nor (k,).
    """
    if isinstance(shape, tuple | list) and len(shape) <= 1 and all(is_integer(k) and k > 0 for k in shape):
        return tuple(map(int, shape))
    raise InvalidArgumentError(f"reward_shape={shape!r}: expected () or (k,) with k >= 1.")


def spaces_of(
    env: Any, observation: gymnasium.Space | None, action: gymnasium.Space | None
) -> tuple[gymnasium.Space, gymnasium.Space]:
    """Return the spaces of an environment, of many those of a single one; spaces that were given count before
    them.

    Raises:
        InvalidArgumentError: it is no environment; or there is none, and a space is missing.
    """
    if env is not None:
        from .choice import spaces_of_env

        own = spaces_of_env(env)
        observation = own[0] if observation is None else observation
        action = own[1] if action is None else action
    if observation is None or action is None:
        raise InvalidArgumentError(
            "The spaces are unknown: give an environment, or both observation_space and action_space."
        )
    return observation, action


def base_notes(parts: Mapping[str, tuple[gymnasium.Space, gymnasium.Space]]) -> dict[str, Any]:
    """Return a card's note of the spaces that are stored as the Gymnasium space they derive from.

    Args:
        parts: observation and action space by agent; the only agent has the name "".
    """
    classes: dict[str, str] = {}
    for agent, spaces in parts.items():
        for side, space in zip(("observation", "action"), spaces, strict=True):
            classes.update(own_classes(space, f"{agent}.{side}" if agent else side))
    return {"space_classes": classes} if classes else {}
