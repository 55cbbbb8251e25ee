"""What `create` asks of an environment: whose spaces it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import gymnasium

from .store.agents import AgentGroup, group_agents
from .store.errors import InvalidArgumentError
from .store.manifest import Manifest
from .writers.pettingzoo_api import agent_spaces, pettingzoo_api

AgentSpaces = Mapping[str, tuple[gymnasium.Space, gymnasium.Space]]


def agent_groups(env: object, agents: AgentSpaces | None) -> tuple[AgentGroup, ...]:
    """The groups of the agents given, or of a PettingZoo environment's; empty for a single agent.

    Raises:
        InvalidArgumentError: the agents are no mapping from names to pairs of spaces, or cannot be found.
    """
    if agents is None:
        return group_agents(agent_spaces(env)) if pettingzoo_api(env) else ()
    spaces = gymnasium.Space
    if not isinstance(agents, Mapping) or not all(
        isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(each, spaces) for each in pair)
        for pair in agents.values()
    ):
        raise InvalidArgumentError(
            f"agents={agents!r}: expected a mapping from each agent's name to its observation space and its "
            "action space."
        )
    return group_agents({agent: (pair[0], pair[1]) for agent, pair in agents.items()})


def renewed(manifest: Manifest) -> Manifest:
    """The identity of a new store that holds what another one holds."""
    fresh = Manifest.new(manifest.observation_space, manifest.action_space, manifest.reward_shape)
    return replace(fresh, groups=manifest.groups)
