"""Which recorder an environment gets: `EpisodeStore.record` asks here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, TypedDict

from gymnasium.vector import AutoresetMode, VectorEnv

from ..store.errors import InvalidArgumentError
from ..store.handle import OpenStore
from .aec_recorder import AECRecorder
from .callbacks import EpisodeCallback, StepCallback
from .options import Durability
from .parallel_recorder import ParallelRecorder
from .pettingzoo_api import pettingzoo_api
from .pool_recorder import PoolRecorder, is_pool
from .recorder import Recorder
from .vector_recorder import VectorRecorder

AnyRecorder = Recorder | VectorRecorder | PoolRecorder | ParallelRecorder | AECRecorder


class RecordOptions(TypedDict, total=False):
    """The options of `EpisodeStore.record` that every recorder takes."""

    run: str | None
    metadata: Mapping[str, Any] | None
    step_callback: StepCallback | None
    episode_callback: EpisodeCallback | None
    durability: Durability
    flush_seconds: float
    seal_seconds: float
    segment_bytes: int
    files: Mapping[str, str | PathLike[str]] | None
    packages: Sequence[str]


class VectorOptions(RecordOptions, total=False):
    """The options for vector environments."""

    autoreset_mode: AutoresetMode | str | None


class TeamOptions(RecordOptions, total=False):
    """The options for environments of PettingZoo."""

    state: bool


def recorder_of(
    env: Any, store: OpenStore, *, autoreset_mode: Any = None, state: bool = False, **arguments: Any
) -> AnyRecorder:
    """A recorder for an environment: by what it is, with the arguments that all recorders take.

    Raises:
        InvalidArgumentError: an option is for environments of another kind.
    """
    api = pettingzoo_api(env)
    if state and api is None:
        raise InvalidArgumentError("state=True is for PettingZoo environments, which have state().")
    if autoreset_mode is not None and not isinstance(env, VectorEnv):
        raise InvalidArgumentError(
            f"autoreset_mode={autoreset_mode!r} is for vector environments; this is {type(env).__name__}."
        )
    if api is not None:
        team = {"parallel": ParallelRecorder, "aec": AECRecorder}[api]
        return team(env, store, state=state, **arguments)
    if is_pool(env):
        return PoolRecorder(env, store, **arguments)
    if isinstance(env, VectorEnv):
        return VectorRecorder(env, store, autoreset_mode=autoreset_mode, **arguments)
    return Recorder(env, store, **arguments)
