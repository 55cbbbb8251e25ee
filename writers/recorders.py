"""Which recorder an environment gets: `EpisodeStore.record` asks here."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import VectorEnv

from ..store.errors import InvalidArgumentError
from ..store.handle import OpenStore
from .pool_recorder import PoolRecorder, is_pool
from .recorder import Recorder
from .vector_recorder import VectorRecorder


def recorder_of(env: Any, store: OpenStore, *, autoreset_mode: Any = None, **arguments: Any) -> Any:
    """A recorder for an environment: by what it is, with the arguments that all recorders take."""
    if is_pool(env):
        if arguments.pop("step_callback", None) is not None:
            raise InvalidArgumentError("A recorder of a pool takes no step_callback; use episode_callback.")
        return PoolRecorder(env, store, **arguments)
    if isinstance(env, VectorEnv):
        return VectorRecorder(env, store, autoreset_mode=autoreset_mode, **arguments)
    return Recorder(env, store, **arguments)
