"""`RecordingStore`: the door from an open store to everything that fills it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Unpack, overload

import gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv

from .readers.view import EpisodeView
from .store.handle import StoreHandle
from .writers.aec_recorder import AECRecorder
from .writers.callbacks import EpisodeCallback, StepCallback
from .writers.episode_writer import EpisodeWriter
from .writers.options import Durability, SessionOptions
from .writers.parallel_recorder import ParallelRecorder
from .writers.pettingzoo_api import PettingZooEnv
from .writers.recorder import Recorder
from .writers.recorders import AnyRecorder, RecordOptions, TeamOptions, VectorOptions, recorder_of
from .writers.vector_recorder import VectorRecorder


class RecordingStore(EpisodeView):
    """The part of an open store that writers begin from."""

    handle: StoreHandle

    @overload
    def record(self, env: gymnasium.Env, **options: Unpack[RecordOptions]) -> Recorder: ...

    @overload
    def record(self, env: VectorEnv, **options: Unpack[VectorOptions]) -> VectorRecorder: ...

    @overload
    def record(
        self, env: PettingZooEnv, **options: Unpack[TeamOptions]
    ) -> ParallelRecorder | AECRecorder: ...

    def record(
        self,
        env: Any,
        *,
        run: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        step_callback: StepCallback | None = None,
        episode_callback: EpisodeCallback | None = None,
        durability: Durability = "flush",
        flush_seconds: float = 1.0,
        seal_seconds: float = 60.0,
        segment_bytes: int = 64 << 20,
        files: Mapping[str, str | PathLike[str]] | None = None,
        packages: Sequence[str] = (),
        state: bool = False,
        autoreset_mode: AutoresetMode | str | None = None,
    ) -> AnyRecorder:
        """Wrap an environment so that every episode is recorded.

        A Gymnasium environment gives a `Recorder`, a vector environment a `VectorRecorder`, one of
        PettingZoo a `ParallelRecorder` or an `AECRecorder`; see these and `SessionOptions`.

        Args:
            run: a readable name for the run.
            metadata: of the run.
            step_callback, episode_callback: see `StepData` and `EpisodeSummary`.
            durability, flush_seconds, seal_seconds, segment_bytes: see `SessionOptions`.
            files, packages: what the environment needs beside its spec: files, by the names under which they
                are to be unpacked, and distributions.
            state: of PettingZoo: record `env.state()` as well.
            autoreset_mode: of a vector environment that does not say it in its metadata.

        Raises:
            SpaceMismatchError: the environment's spaces are not the store's.
            InvalidArgumentError: an option is for another kind of environment; the store is for one agent and
                the environment has several, or vice versa; a file cannot be kept.
            StoreAccessError: the store cannot be written.
        """
        options = SessionOptions(durability, flush_seconds, seal_seconds, segment_bytes)
        return recorder_of(
            env,
            self,
            run=run,
            metadata=metadata,
            step_callback=step_callback,
            episode_callback=episode_callback,
            options=options,
            files=files,
            packages=packages,
            state=state,
            autoreset_mode=autoreset_mode,
        )

    def writer(
        self,
        *,
        run: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        durability: Durability = "flush",
        flush_seconds: float = 1.0,
        seal_seconds: float = 60.0,
        segment_bytes: int = 64 << 20,
    ) -> EpisodeWriter:
        """A writer that needs no environment; see `EpisodeWriter` and `SessionOptions`.

        Raises:
            StoreAccessError: the store cannot be written.
        """
        options = SessionOptions(durability, flush_seconds, seal_seconds, segment_bytes)
        return EpisodeWriter(self, run=run, metadata=metadata, options=options)
