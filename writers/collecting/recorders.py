"""The recorder of a collection: the caller's own, or one that is opened for it around an environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from ...store.errors import InvalidArgumentError, RecorderStateError
from ...store.handle import OpenStore
from ..options import SessionOptions
from ..recorders.choice import AnyRecorder, TeamOptions, VectorOptions, recorder_of
from ..recorders.info_choice import InfoChoice
from ..recorders.pettingzoo_api import pettingzoo_api
from ..recorders.pool_recorder import PoolRecorder, is_pool
from ..recorders.recorder import Recorder
from ..recorders.team_recorder import TeamRecorder
from ..recorders.vector_recorder import VectorRecorder
from .actor import Actor, PolicyConfig
from .batch import Batch
from .memory import Memory, PoolMemory
from .pool import PoolActor, PoolBatch, check_pool_resets
from .resets import Resets
from .single import SingleBatch
from .team_actor import TeamActor, check_team
from .teams import TeamBatch
from .vector import VectorBatch


class RecordingOptions(VectorOptions, TeamOptions, total=False):
    """What `collect` hands on to the recorder that it opens."""


EnvSource = str | EnvSpec | Callable[[], Any]


def check_options(recording: Mapping[str, Any]) -> None:
    """Refuse unknown options and invalid values.

    Raises:
        InvalidArgumentError: one is unknown, or makes no sense.
    """
    unknown = recording.keys() - RecordingOptions.__annotations__.keys()
    if unknown:
        raise InvalidArgumentError(
            f"collect knows no option {', '.join(map(repr, sorted(unknown)))}. What goes to the recorder is "
            f"{', '.join(RecordingOptions.__annotations__)}."
        )
    SessionOptions(**_disk(recording))
    InfoChoice.of(recording.get("record_infos", True))
    if not isinstance(recording.get("run"), str | None):
        raise InvalidArgumentError(f"run={recording['run']!r}: expected text, a readable name for the run.")
    if not isinstance(recording.get("metadata"), Mapping | None):
        raise InvalidArgumentError(f"metadata={recording['metadata']!r}: expected a mapping.")


def _disk(recording: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that say how to treat the disk."""
    return {key: recording[key] for key in SessionOptions.__annotations__ if key in recording}


def check_store(store: Any) -> None:
    """Refuse what is no open store.

    Raises:
        InvalidArgumentError: it is none.
    """
    if not hasattr(store, "handle"):
        raise InvalidArgumentError(
            f"store is {type(store).__name__}; expected an open store, as episodelake.create and "
            "episodelake.open give it."
        )


def is_recorder(value: Any) -> TypeGuard[AnyRecorder]:
    """Return whether it records already."""
    return isinstance(value, Recorder | VectorRecorder | PoolRecorder | TeamRecorder)


def is_source(value: Any) -> bool:
    """Return whether an environment can be made from it: an id, a spec, or a function without arguments."""
    return isinstance(value, str | EnvSpec) or (callable(value) and not _is_env(value))


def _is_env(value: Any) -> bool:
    known = isinstance(value, gymnasium.Env | VectorEnv)
    return known or (not isinstance(value, type) and (is_pool(value) or pettingzoo_api(value) is not None))


def make(source: EnvSource) -> Any:
    """Make an environment.

    Raises:
        InvalidArgumentError: the function gave something else.
        gymnasium.error.Error: there is no environment of that id.
    """
    env = gymnasium.make(source) if isinstance(source, str | EnvSpec) else source()
    if not _is_env(env):
        raise InvalidArgumentError(
            f"The function that makes the environment gave {type(env).__name__}; expected a gymnasium.Env, a "
            "gymnasium.vector.VectorEnv, a pool, or an environment of PettingZoo."
        )
    return env


def opened(env: Any, store: OpenStore, recording: RecordingOptions) -> AnyRecorder:
    """Return a recorder around an environment that has none.

    Raises:
        InvalidArgumentError: it is no environment.
        SpaceMismatchError: its spaces are not the store's.
        RecorderStateError: it is closed.
        StoreAccessError: the store cannot be written.
    """
    disk = _disk(recording)
    arguments: dict[str, Any] = {
        **{key: value for key, value in recording.items() if key not in disk},
        "options": SessionOptions(**disk),
    }
    if not _is_env(env):
        raise InvalidArgumentError(
            f"env_or_envs is {type(env).__name__}; expected an environment, a vector environment, a pool, a "
            "recorder of one of them, an environment's id or spec, or a function that makes one."
        )
    return recorder_of(env, store, **arguments)


def check_asked(env: Any, store: OpenStore, acting: PolicyConfig, resets: Resets) -> None:
    """Make sure that a policy and resets fit the kind of an environment, or of its recorder.

    Raises:
        InvalidArgumentError: they do not.
        SpaceMismatchError: an agent's spaces are not the store's.
    """
    if isinstance(env, TeamRecorder) or pettingzoo_api(env) is not None:
        check_team(env, acting, store.handle.schema.groups)
        return
    for name in ("policy", "explore", "map_action", "map_action_inverse"):
        if isinstance(getattr(acting, name), Mapping):
            raise InvalidArgumentError(
                f"{name} is a mapping, which is for the agents of an environment of PettingZoo; this is "
                f"{type(env).__name__}. Pass a function."
            )
    if is_pool(env):
        check_pool_resets(resets)


def check_own(recorder: AnyRecorder, store: OpenStore, recording: Mapping[str, Any]) -> None:
    """Make sure that a recorder of the caller fits the rest of the call.

    Raises:
        InvalidArgumentError: it records into another store; options for a new recorder were given.
        RecorderStateError: it is paused.
    """
    own = recorder.session.store
    if own.layout.journals != store.handle.layout.journals:
        raise InvalidArgumentError(
            f"The recorder records into {own.layout.root}, not into {store.handle.layout.root}. Give "
            "collect the store that the recorder came from."
        )
    if recorder.paused:
        raise RecorderStateError("The recorder is paused: call its resume() before collect().")
    if recording:
        raise InvalidArgumentError(
            f"The options {', '.join(sorted(recording))} belong to the recorder: give them to store.record."
        )


def release(recorder: AnyRecorder) -> None:
    """Leave an environment as others can use it: of a pool, nothing is in flight."""
    if isinstance(recorder, PoolRecorder) and recorder.whole:
        recorder.drain()


def batch_of(recorder: AnyRecorder) -> Batch:
    """Return a recorder as the loop sees it."""
    if isinstance(recorder, VectorRecorder):
        return VectorBatch(recorder)
    if isinstance(recorder, PoolRecorder):
        return PoolBatch(recorder)
    return TeamBatch(recorder) if isinstance(recorder, TeamRecorder) else SingleBatch(recorder)


def player_of(
    recorder: AnyRecorder, batch: Batch, acting: PolicyConfig
) -> tuple[Actor | TeamActor, Memory | PoolMemory]:
    """Return what asks the policy for actions, and what keeps its states."""
    if isinstance(recorder, TeamRecorder):
        return TeamActor(acting, recorder), Memory(None, None)
    if isinstance(batch, PoolBatch):
        space = recorder.session.store.schema.action_space
        return PoolActor(acting, batch, space), PoolMemory(acting.initial_state, batch)
    env: Any = recorder.env
    single_space = env.action_space if batch.size is None else env.single_action_space
    actor = Actor(acting, env.action_space, single_space, batch.size)
    return actor, Memory(acting.initial_state, batch.size)
