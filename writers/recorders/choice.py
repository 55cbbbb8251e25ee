"""Choice of the recorder for an environment; sources of environments for create, record and collect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from ...store.agents import group_agents
from ...store.common.arguments import expect, flag
from ...store.common.compatibility import AutoresetMode
from ...store.errors import InvalidArgumentError
from ...store.manifest import Manifest
from ...store.schema import OpenStore, StoreHandle
from ..session.journal import SessionKeywords
from ..session.session import RunSession
from .env_checks import agent_spaces, pettingzoo_api, reward_shape
from .env_recorder import RunKeywords
from .observed import ObservationChoice
from .pettingzoo_recorders import AECRecorder, ParallelRecorder
from .pool_recorder import PoolRecorder, is_pool, pool_spaces
from .recorder import Recorder
from .vector_recorder import VectorRecorder

#: An id, a spec, or a function without arguments.
EnvSource = str | EnvSpec | Callable[[], Any]
AnyRecorder = Recorder | VectorRecorder | PoolRecorder | ParallelRecorder | AECRecorder


class RunObserver(Protocol):
    """Takes the rows of runs as they arrive, such as a replay buffer."""

    def check_store(self, store: StoreHandle) -> None:
        """Refuse the runs of a store, before one begins."""
        ...

    def observe(self, session: RunSession[Any]) -> None:
        """Take the rows of a run that has just begun."""
        ...


class RecordOptions(SessionKeywords, RunKeywords, total=False):
    """The options of `EpisodeStore.record` that every recorder takes."""

    buffer: RunObserver | None
    # Refused where there are several agents.
    observation: ObservationChoice | None


class VectorOptions(RecordOptions, total=False):
    """The options for vector environments."""

    autoreset_mode: AutoresetMode | str | None


class TeamOptions(RecordOptions, total=False):
    """The options for environments of PettingZoo."""

    state: bool


def recorder_of(
    env: Any, store: OpenStore, *, buffer: RunObserver | None = None, **arguments: Any
) -> AnyRecorder:
    """Return a recorder for an environment: by what it is, with the arguments that all recorders take.

    Args:
        env: the environment, or what it is made from; the recorder closes it in either case.

    Raises:
        InvalidArgumentError: there is no such environment; an option is for environments of another kind, or
            `buffer` for another store.
    """
    if buffer is not None:
        buffer.check_store(store.handle)
    own = make(env) if is_source(env) else None
    try:
        recorder = _recorder_of(env if own is None else own, store, **arguments)
    except BaseException:
        if own is not None:
            own.close()
        raise
    if buffer is not None:
        buffer.observe(recorder.session)
    return recorder


def _recorder_of(
    env: Any, store: OpenStore, *, autoreset_mode: Any = None, state: bool = False, **arguments: Any
) -> AnyRecorder:
    api, state = pettingzoo_api(env), flag("state", state)
    if state and api is None:
        raise InvalidArgumentError("state=True is for PettingZoo environments, which have state().")
    if autoreset_mode is not None and not isinstance(env, VectorEnv):
        raise InvalidArgumentError(
            f"autoreset_mode={autoreset_mode!r} is for vector environments; this is {type(env).__name__}."
        )
    if api is not None and arguments.pop("observation", None) is not None:
        raise InvalidArgumentError(
            f"observation= is for environments of one agent; {type(env).__name__} has several. Wrap it so "
            "that its observations are what the store keeps."
        )
    if api is not None:
        team = {"parallel": ParallelRecorder, "aec": AECRecorder}[api]
        return team(env, store, state=state, **arguments)
    if is_pool(env):
        return PoolRecorder(env, store, **arguments)
    if isinstance(env, VectorEnv):
        return VectorRecorder(env, store, autoreset_mode=autoreset_mode, **arguments)
    return Recorder(env, store, **arguments)


def is_source(value: Any) -> bool:
    """Return whether an environment can be made from it."""
    return isinstance(value, str | EnvSpec) or (callable(value) and not is_env(value))


def is_env(value: Any) -> bool:
    """Return whether it is an environment of a kind that can be recorded."""
    known = isinstance(value, gymnasium.Env | VectorEnv)
    return known or (not isinstance(value, type) and (is_pool(value) or pettingzoo_api(value) is not None))


def make(source: EnvSource) -> Any:
    """Make an environment.

    Raises:
        InvalidArgumentError: there is no environment of that id, a package of it is missing, or the function
            gave something else.
    """
    if isinstance(source, str | EnvSpec):
        try:
            return gymnasium.make(source)
        except (gymnasium.error.Error, ImportError) as error:
            raise InvalidArgumentError(
                f"The environment {source!r:.200} cannot be made: {type(error).__name__}: {error}. Import "
                "the package that registers it, or pass an environment or a function that makes one."
            ) from error
    env = source()
    if not is_env(env):
        raise InvalidArgumentError(
            f"The function that makes the environment gave {type(env).__name__}; expected a gymnasium.Env, a "
            "gymnasium.vector.VectorEnv, a pool, or an environment of PettingZoo."
        )
    return env


def spaces_of_env(env: Any) -> tuple[gymnasium.Space, gymnasium.Space]:
    """Return the spaces of an environment of one agent; of a vector or a pool those of each in it.

    Raises:
        InvalidArgumentError: it is no environment.
    """
    if is_pool(env):
        return pool_spaces(env)
    if isinstance(env, VectorEnv):
        return env.single_observation_space, env.single_action_space
    expected = "a gymnasium.Env, as gymnasium.make gives it, an environment of PettingZoo, or its id"
    expect(isinstance(env, gymnasium.Env), "env", env, expected)
    return env.observation_space, env.action_space


def manifest_of(env: Any) -> Manifest:
    """Return the description of a new store for an environment, with one agent or several.

    Raises:
        InvalidArgumentError: it is no environment.
        UnsupportedSpaceError: a space has no columns.
    """
    if pettingzoo_api(env) is not None:
        return Manifest.of_agents(group_agents(agent_spaces(env)), reward_shape(env))
    return Manifest.new(*spaces_of_env(env), reward_shape(env))


@contextmanager
def made(env: Any) -> Iterator[Any]:
    """Yield an environment; one that is made from a source is closed when the block ends."""
    if not is_source(env):
        yield env
        return
    own = make(env)
    try:
        yield own
    finally:
        own.close()
