"""What the recorders need to know of a PettingZoo environment, without importing PettingZoo.

An environment is known by what it can do. See PettingZoo's pages on the AEC and Parallel APIs
(https://pettingzoo.farama.org/api/aec/, https://pettingzoo.farama.org/api/parallel/).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata as packages
from typing import Any, Literal, Protocol

import gymnasium
import numpy as np

from ...store.dynamic.values import IMMUTABLE
from ...store.errors import InvalidArgumentError
from ...store.journal.run_journal import RunHeader
from ..environment import KeptEnv
from ..run import run_header

Api = Literal["parallel", "aec"]


class PettingZooEnv(Protocol):
    """What type checkers can tell an environment of PettingZoo by."""

    def observation_space(self, agent: Any, /) -> gymnasium.Space:
        """Return the space of an agent's observations."""
        ...

    def action_space(self, agent: Any, /) -> gymnasium.Space:
        """Return the space of an agent's actions."""
        ...


def pettingzoo_api(env: object) -> Api | None:
    """Return which of PettingZoo's two APIs an environment has; None if it has neither."""
    if isinstance(env, gymnasium.Env | type) or not _can(
        env, "reset", "step", "observation_space", "action_space"
    ):
        return None
    return "aec" if _can(env, "last", "agent_iter", "observe") else "parallel"


def _can(env: object, *names: str) -> bool:
    return all(callable(getattr(env, name, None)) for name in names)


def agent_spaces(env: Any) -> dict[str, tuple[gymnasium.Space, gymnasium.Space]]:
    """Return the spaces of every agent that an environment may have.

    Raises:
        InvalidArgumentError: it does not say which agents there may be.
    """
    agents = getattr(env, "possible_agents", None)
    if not agents:
        raise InvalidArgumentError(
            f"{type(env).__name__} has no possible_agents, so its agents' spaces are unknown. Give them: "
            'create(path, agents={"red": (observation_space, action_space), ...}).'
        )
    return {agent: (env.observation_space(agent), env.action_space(agent)) for agent in agents}


def reward_shape(env: object) -> tuple[int, ...]:
    """Return the shape of an environment's rewards: () for a number, (k,) for k objectives.

    MO-Gymnasium's environments say it with `reward_space`, those with several agents with a function of
    that name (https://mo-gymnasium.farama.org/introduction/api/). A wrapper that makes one number of them,
    such as `LinearReward`, leaves that space in place, so it is recognised by its name.
    """
    layer: Any = env
    while isinstance(layer, gymnasium.Wrapper) and "reward_space" not in vars(layer):
        if type(layer).__name__ == "LinearReward":
            return ()
        layer = layer.env
    space = getattr(layer, "reward_space", None)
    if space is None:
        space = getattr(getattr(env, "unwrapped", None), "reward_space", None)
    agents = getattr(env, "possible_agents", None)
    if callable(space) and agents and not isinstance(space, gymnasium.Space):
        space = space(agents[0])
    shape = getattr(space, "shape", None)
    return (int(shape[0]),) if shape is not None and len(shape) == 1 and shape[0] > 0 else ()


def agents_header(
    name: str | None, metadata: Mapping[str, Any] | None, env: Any, kept: KeptEnv, api: Api
) -> RunHeader:
    """Describe a run of a PettingZoo environment that begins now.

    Such environments have no `EnvSpec`; what there is to say stands in its place under `pettingzoo`.

    Raises:
        InvalidArgumentError: the name is no text, or the metadata no mapping.
    """
    header = run_header(name, metadata, env, kept)
    inner = getattr(env, "unwrapped", env)
    described = {
        "api": api,
        "name": str((getattr(env, "metadata", None) or {}).get("name", "")),
        "class": f"{type(inner).__module__}.{type(inner).__qualname__}",
    }
    versions = json.loads(header.versions or "{}")
    try:
        versions["pettingzoo"] = packages.version("pettingzoo")
    except packages.PackageNotFoundError:
        # An environment with the same functions need not be one of PettingZoo's.
        versions.pop("pettingzoo", None)
    spec = json.dumps({"pettingzoo": described})
    return replace(header, env_spec=spec, versions=json.dumps(versions))


def own(value: Any) -> Any:
    """Return a copy of an action that its caller, and the environment, may go on to change."""
    if value.__class__ in IMMUTABLE:
        return value
    return value.copy() if isinstance(value, np.ndarray) else copy.deepcopy(value)
