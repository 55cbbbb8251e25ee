"""What `create` and `record` ask of an environment: which spaces it has, and which recorder it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypedDict

import gymnasium

from .store.agents import AgentGroup, group_agents
from .store.errors import InvalidArgumentError
from .store.manifest import Manifest
from .writers.aec_recorder import AECRecorder
from .writers.callbacks import EpisodeCallback, StepCallback
from .writers.options import Durability
from .writers.parallel_recorder import ParallelRecorder
from .writers.pettingzoo_api import agent_spaces, pettingzoo_api

AgentSpaces = Mapping[str, tuple[gymnasium.Space, gymnasium.Space]]


class RecordOptions(TypedDict, total=False):
    """The options of `EpisodeStore.record`, whatever the environment."""

    run: str | None
    metadata: Mapping[str, Any] | None
    step_callback: StepCallback | None
    episode_callback: EpisodeCallback | None
    durability: Durability
    flush_seconds: float
    seal_seconds: float
    segment_bytes: int
    state: bool


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


def team_recorder(env: object) -> type[ParallelRecorder] | type[AECRecorder] | None:
    """The recorder of a PettingZoo environment; None for any other."""
    return {"parallel": ParallelRecorder, "aec": AECRecorder, None: None}[pettingzoo_api(env)]


def renewed(manifest: Manifest) -> Manifest:
    """The identity of a new store that holds what another one holds."""
    fresh = Manifest.new(manifest.observation_space, manifest.action_space, manifest.reward_shape)
    return replace(fresh, groups=manifest.groups)
