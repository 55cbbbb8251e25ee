"""Which recorder an environment gets: `EpisodeStore.record` asks here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Protocol

from gymnasium.vector import VectorEnv

from ...store.compatibility import AutoresetMode
from ...store.errors import InvalidArgumentError
from ...store.handle import OpenStore, StoreHandle
from ..options import SessionKeywords
from ..session import RunSession
from .aec_recorder import AECRecorder
from .callbacks import EpisodeCallback, StepCallback
from .info_choice import RecordInfos
from .parallel_recorder import ParallelRecorder
from .pettingzoo_api import pettingzoo_api
from .pool_recorder import PoolRecorder, is_pool
from .recorder import Recorder
from .vector_recorder import VectorRecorder

AnyRecorder = Recorder | VectorRecorder | PoolRecorder | ParallelRecorder | AECRecorder


class RunObserver(Protocol):
    """Takes the rows of runs as they arrive, such as a replay buffer."""

    def check_store(self, store: StoreHandle) -> None:
        """Refuse the runs of a store, before one begins."""
        ...

    def observe(self, session: RunSession[Any]) -> None:
        """Take the rows of a run that has just begun."""
        ...


class RecordOptions(SessionKeywords, total=False):
    """The options of `EpisodeStore.record` that every recorder takes."""

    run: str | None
    metadata: Mapping[str, Any] | None
    step_callback: StepCallback | None
    episode_callback: EpisodeCallback | None
    files: Mapping[str, str | PathLike[str]] | None
    packages: Sequence[str]
    record_infos: RecordInfos
    replay: RunObserver | None


class VectorOptions(RecordOptions, total=False):
    """The options for vector environments."""

    autoreset_mode: AutoresetMode | str | None


class TeamOptions(RecordOptions, total=False):
    """The options for environments of PettingZoo."""

    state: bool


def recorder_of(
    env: Any, store: OpenStore, *, replay: RunObserver | None = None, **arguments: Any
) -> AnyRecorder:
    """Return a recorder for an environment: by what it is, with the arguments that all recorders take.

    Raises:
        InvalidArgumentError: an option is for environments of another kind, or `replay` for another store.
    """
    if replay is None:
        return _recorder_of(env, store, **arguments)
    replay.check_store(store.handle)
    recorder = _recorder_of(env, store, **arguments)
    replay.observe(recorder.session)
    return recorder


def _recorder_of(
    env: Any, store: OpenStore, *, autoreset_mode: Any = None, state: bool = False, **arguments: Any
) -> AnyRecorder:
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
