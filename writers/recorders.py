"""Which recorder an environment gets: `EpisodeStore.record` asks here."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import VectorEnv

from ..store.handle import OpenStore
from .recorder import Recorder
from .vector_recorder import VectorRecorder


def recorder_of(env: Any, store: OpenStore, *, autoreset_mode: Any = None, **arguments: Any) -> Any:
    """A recorder for an environment: by what it is, with the arguments that all recorders take."""
    if isinstance(env, VectorEnv):
        return VectorRecorder(env, store, autoreset_mode=autoreset_mode, **arguments)
    return Recorder(env, store, **arguments)
