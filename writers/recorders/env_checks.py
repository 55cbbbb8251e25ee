"""Properties of environments: spaces that fit the store, autoreset modes, and PettingZoo's two APIs.

PettingZoo is not imported: an environment is known by what it can do. See PettingZoo's pages on the AEC and
Parallel APIs (https://pettingzoo.farama.org/api/aec/, https://pettingzoo.farama.org/api/parallel/), and
Gymnasium's `vector.AutoresetMode`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import metadata as packages
from typing import Any, Literal, Protocol

import gymnasium
import numpy as np

from ...store.common.compatibility import AutoresetMode
from ...store.dynamic.values import IMMUTABLE
from ...store.errors import InvalidArgumentError, SpaceMismatchError
from ...store.schema import StepSchema, StoreHandle
from ...store.spaces import same_space
from ..session.run import KeptEnv
from ..session.session import RunSession


def stated_mode(metadata: Mapping[str, Any] | None, whose: str) -> AutoresetMode | None:
    """Return the mode that an environment's metadata names; None if it names none.

    Raises:
        InvalidArgumentError: it is none of Gymnasium's.
    """
    mode = (metadata or {}).get("autoreset_mode")
    return None if mode is None else _mode(mode, f"{whose} metadata['autoreset_mode']")


def autoreset_mode_of(metadata: Mapping[str, Any] | None, given: AutoresetMode | str | None) -> AutoresetMode:
    """Return the mode of a vector environment: the one given, else the one that its metadata names.

    Raises:
        InvalidArgumentError: it is none of Gymnasium's, or none is stated.
    """
    stated = stated_mode(metadata, "The vector environment's")
    mode = stated if given is None else _mode(given, "autoreset_mode")
    if mode is None:
        raise InvalidArgumentError(
            "The vector environment does not say how its sub-environments are reset: its metadata has no "
            f"'autoreset_mode'. Pass autoreset_mode=, one of {_known()}."
        )
    return mode


def _mode(value: Any, what: str) -> AutoresetMode:
    if isinstance(value, AutoresetMode):
        return value
    for mode in AutoresetMode:
        if value in (mode.value, mode.name):
            return mode
    raise InvalidArgumentError(f"{what} is {value!r}; expected one of {_known()}.")


def _known() -> str:
    return ", ".join(repr(mode.value) for mode in AutoresetMode)


#: Where wrappers keep what they wrap.
_INNER = ("env", "pool", "aec_env", "par_env")


def check_spaces(schema: StepSchema, given: Mapping[str, gymnasium.Space]) -> None:
    """Compare the two spaces of an environment, observation and action, with the store's.

    Args:
        given: the spaces under their names, for the message.

    Raises:
        SpaceMismatchError: one is another.
    """
    for (name, space), expected in zip(
        given.items(), (schema.observation_space, schema.action_space), strict=True
    ):
        if not same_space(space, expected):
            raise SpaceMismatchError(
                f"The environment's {name} is {space}; the store's is {expected}. Record into a store that "
                "was created with this environment's spaces."
            )


def check_unrecorded(env: Any, store: StoreHandle) -> None:
    """Refuse an environment whose steps are recorded into the same store already; into another is fine.

    Raises:
        InvalidArgumentError: a recorder of this store stands below.
    """
    for inner in _chain(env):
        session = vars(inner).get("_session")
        if not isinstance(session, RunSession) or session.closed:
            continue
        if str(session.store.layout.root) == str(store.layout.root):
            raise InvalidArgumentError(
                f"This environment is recorded into {store.layout.root} already, by a "
                f"{type(inner).__name__} below {type(env).__name__}: each step would be there twice. Step "
                "that recorder, or give collect() the recorder itself, outside all other wrappers."
            )


def _chain(env: Any) -> Iterator[Any]:
    """Yield the environment and everything that it wraps."""
    seen: set[int] = set()
    while hasattr(env, "__dict__") and id(env) not in seen:
        yield env
        seen.add(id(env))
        held = vars(env)
        env = next((held[name] for name in _INNER if name in held), None)


Api = Literal["parallel", "aec"]


class PettingZooEnv(Protocol):
    """The attributes by which type checkers know an environment of PettingZoo."""

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


def kept_agents(kept: KeptEnv, env: Any, api: Api) -> KeptEnv:
    """Return the record of a PettingZoo environment.

    Such environments have no `EnvSpec`: their spec is an object with the key `pettingzoo`.
    """
    inner = getattr(env, "unwrapped", env)
    described = {
        "api": api,
        "name": str((getattr(env, "metadata", None) or {}).get("name", "")),
        "class": f"{type(inner).__module__}.{type(inner).__qualname__}",
    }
    versions = json.loads(kept.versions)
    try:
        versions["pettingzoo"] = packages.version("pettingzoo")
    except packages.PackageNotFoundError:
        # An environment with the same functions need not be one of PettingZoo's.
        versions.pop("pettingzoo", None)
    spec = json.dumps({"pettingzoo": described})
    return replace(kept, env_spec=spec, versions=json.dumps(versions))


def own(value: Any) -> Any:
    """Return a copy of an action that its caller, and the environment, may go on to change."""
    if value.__class__ in IMMUTABLE:
        return value
    return value.copy() if isinstance(value, np.ndarray) else copy.deepcopy(value)
