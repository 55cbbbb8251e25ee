"""`RecordingStore`: the door from an open store to everything that fills it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Unpack, overload

from .readers.view import EpisodeView
from .store.schema import StoreHandle

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec
    from gymnasium.vector import VectorEnv

    from .readers.loading.outputs import Output, OutputName
    from .readers.loading.priorities import Prioritized
    from .replay_buffer.buffer import ReplayBuffer
    from .store.common.compatibility import AutoresetMode
    from .writers.episodes.episode_writer import EpisodeWriter
    from .writers.episodes.source_keys import OnDuplicate
    from .writers.episodes.team_writer import TeamWriter
    from .writers.recorders.callbacks import EpisodeCallback, StepCallback
    from .writers.recorders.choice import AnyRecorder, RecordOptions, RunObserver, TeamOptions, VectorOptions
    from .writers.recorders.env_checks import PettingZooEnv
    from .writers.recorders.pettingzoo_recorders import AECRecorder, ParallelRecorder
    from .writers.recorders.recorder import Recorder
    from .writers.recorders.vector_recorder import VectorRecorder
    from .writers.recorders.vector_values import RecordInfos
    from .writers.session.journal import SessionKeywords


class RecordingStore(EpisodeView):
    """The part of an open store that writers begin from."""

    handle: StoreHandle

    @overload
    def record(
        self,
        env: gymnasium.Env | str | EnvSpec | Callable[[], gymnasium.Env],
        **options: Unpack[RecordOptions],
    ) -> Recorder: ...

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
        files: Mapping[str, str | PathLike[str]] | None = None,
        packages: Sequence[str] = (),
        record_infos: RecordInfos = True,
        state: bool = False,
        autoreset_mode: AutoresetMode | str | None = None,
        buffer: RunObserver | None = None,
        **options: Unpack[SessionKeywords],
    ) -> AnyRecorder:
        """Wrap an environment so that every episode is recorded.

        A Gymnasium environment gives a `Recorder`, a vector environment a `VectorRecorder`, one of
        PettingZoo a `ParallelRecorder` or an `AECRecorder`; see these and `SessionOptions`.

        Args:
            env: the environment; or an id, a spec or a function without arguments to make one from, such as
                `"CartPole-v1"`. Closing the recorder closes it.
            run: a readable name for the run.
            metadata: of the run.
            step_callback, episode_callback: see `StepData` and `EpisodeSummary`.
            files, packages: what the environment needs beside its spec: files, by the names under which they
                are to be unpacked, and distributions.
            record_infos: whether to store the environment's infos, or the keys to store, such as
                `("cost", "success")`. The others are never copied; the caller and the step callback see all.
            state: of PettingZoo: record `env.state()` as well.
            autoreset_mode: of a vector environment whose metadata does not state it.
            options: see `SessionOptions`: `durability`, `seal_seconds`, `cast` and the others.
            buffer: a `ReplayBuffer` of this store, which shows each step as soon as it is recorded.

        Raises:
            SpaceMismatchError: the environment's spaces are not the store's.
            InvalidArgumentError: there is no environment of that id; an option is for another kind of
                environment; the store is for one agent and the environment has several, or vice versa; a file
                cannot be kept.
            StoreAccessError: the store cannot be written.
        """
        from .writers.recorders.choice import recorder_of
        from .writers.session.journal import SessionOptions

        return recorder_of(
            env,
            self,
            run=run,
            metadata=metadata,
            step_callback=step_callback,
            episode_callback=episode_callback,
            options=SessionOptions.of(options),
            files=files,
            packages=packages,
            record_infos=record_infos,
            state=state,
            autoreset_mode=autoreset_mode,
            buffer=buffer,
        )

    def replay_buffer(
        self,
        capacity: int,
        *,
        seed: int = 0,
        prioritized: Prioritized | None = None,
        output: OutputName | Output = "numpy",
    ) -> ReplayBuffer:
        """Return a replay buffer with the newest transitions of this version, for recorders to go on with.

        The newest transitions are those of the episodes committed last. Call `recover` before the store is
        opened if its last writer was killed.

        Args:
            capacity: transitions. Memory for them is allocated at once.
            seed: of the draws.
            prioritized: draw by priority; None to draw all transitions alike.
            output: "numpy" arrays, "torch" tensors, "jax" arrays or a "tensordict"; `Output` for a device.

        Raises:
            InvalidArgumentError: an argument makes no sense, values have no fixed shape, or episodes have
                several agents.
            MissingPackageError: the package of the output is not installed.
            CorruptStoreError: a file of the store is damaged.
        """
        from .replay_buffer.buffer import ReplayBuffer

        return ReplayBuffer(self.context, capacity, seed=seed, prioritized=prioritized, output=output)

    def writer(
        self,
        *,
        run: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        env: gymnasium.Env | VectorEnv | EnvSpec | str | None = None,
        on_duplicate: OnDuplicate = "error",
        **options: Unpack[SessionKeywords],
    ) -> EpisodeWriter:
        """Return a writer that needs no environment; see `EpisodeWriter` and `SessionOptions`.

        Raises:
            InvalidArgumentError: an option has no such value, or `env` is no environment and names none.
            StoreAccessError: the store cannot be written.
        """
        from .writers.episodes.episode_writer import EpisodeWriter
        from .writers.session.journal import SessionOptions

        return EpisodeWriter(
            self,
            run=run,
            metadata=metadata,
            env=env,
            options=SessionOptions.of(options),
            on_duplicate=on_duplicate,
        )

    def team_writer(
        self,
        *,
        run: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        **options: Unpack[SessionKeywords],
    ) -> TeamWriter:
        """Return a writer of episodes with several agents; see `TeamWriter` and `SessionOptions`.

        Raises:
            InvalidArgumentError: the store is for a single agent.
            StoreAccessError: the store cannot be written.
        """
        from .writers.episodes.team_writer import TeamWriter
        from .writers.session.journal import SessionOptions

        return TeamWriter(self, run=run, metadata=metadata, options=SessionOptions.of(options))
