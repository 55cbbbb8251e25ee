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
from ..recorders.choice import VectorOptions
from ..recorders.info_choice import InfoChoice
from ..recorders.pettingzoo_api import pettingzoo_api
from ..recorders.pool_recorder import is_pool
from ..recorders.recorder import Recorder
from ..recorders.vector_recorder import VectorRecorder
from .batch import Batch
from .single import SingleBatch
from .vector import VectorBatch

AnyRecorder = Recorder | VectorRecorder
#: What `collect` hands on to the recorder that it opens.
RecordingOptions = VectorOptions
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
    return isinstance(value, Recorder | VectorRecorder)


def is_source(value: Any) -> bool:
    """Return whether an environment can be made from it: an id, a spec, or a function without arguments."""
    return isinstance(value, str | EnvSpec) or (
        callable(value) and not isinstance(value, gymnasium.Env | VectorEnv)
    )


def make(source: EnvSource) -> Any:
    """Make an environment.

    Raises:
        InvalidArgumentError: the function gave something else.
        gymnasium.error.Error: there is no environment of that id.
    """
    env = gymnasium.make(source) if isinstance(source, str | EnvSpec) else source()
    if not isinstance(env, gymnasium.Env | VectorEnv):
        raise InvalidArgumentError(
            f"The function that makes the environment gave {type(env).__name__}; expected a gymnasium.Env or "
            "a gymnasium.vector.VectorEnv."
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
    if is_pool(env):
        raise InvalidArgumentError(
            "collect does not play pools that serve a ready subset at a time. Write the loop of send and "
            "recv around store.record(pool)."
        )
    if pettingzoo_api(env) is not None:
        raise InvalidArgumentError(
            "collect does not play environments of PettingZoo. Write the loop around store.record(env)."
        )
    if not isinstance(env, gymnasium.Env | VectorEnv):
        raise InvalidArgumentError(
            f"env_or_envs is {type(env).__name__}; expected an environment, a vector environment, a recorder "
            "of one of them, an environment's id or spec, or a function that makes one."
        )
    if isinstance(env, VectorEnv):
        return VectorRecorder(env, store, **arguments)
    if arguments.pop("autoreset_mode", None) is not None:
        raise InvalidArgumentError("autoreset_mode is for vector environments; this is a single one.")
    return Recorder(env, store, **arguments)


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


def batch_of(recorder: AnyRecorder) -> Batch:
    """Return a recorder as the loop sees it."""
    return VectorBatch(recorder) if isinstance(recorder, VectorRecorder) else SingleBatch(recorder)
