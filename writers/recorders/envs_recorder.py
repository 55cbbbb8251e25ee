"""`EnvsRecorder`: the base of the recorders of many environments, of vectors and of pools."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...store.errors import InvalidArgumentError
from ...store.handle import OpenStore
from ..block_rows import BlockRows
from ..buffers.vector_buffer import NO_EPISODE
from .callbacks import EpisodeCallback, StepCallback
from .env_recorder import EnvRecorder, RunArguments
from .env_recording import EnvRecording


class EnvsRecorder(EnvRecorder[BlockRows]):
    """The base of both."""

    _recording: EnvRecording

    def _begin_run(
        self,
        store: OpenStore,
        envs: Any,
        num_envs: int,
        step_callback: StepCallback | None,
        episode_callback: EpisodeCallback | None,
        given: RunArguments,
    ) -> None:
        """Begin without episodes."""
        # A call may bring the first rows of new episodes beside the last ones of others.
        rows = partial(BlockRows, rows=2 * num_envs)
        self._record_into(store, envs, rows, given)
        self._step_callback, episode_callback = self._guarded(step_callback, episode_callback)
        self._recording = EnvRecording(
            self._session, store.handle.schema, num_envs, episode_callback, given.infos
        )

    @property
    def episode_ids(self) -> list[str | None]:
        """The id of the episode in hand of each environment; None where there is none."""
        numbers = self._recording.state.numbers.tolist()
        return [None if number == NO_EPISODE else self._session.episode_id(number) for number in numbers]

    @property
    def episodes(self) -> int:
        """How many episodes were recorded and have ended."""
        return self._recording.episodes

    @property
    def transitions(self) -> int:
        """How many transitions were recorded, those of running episodes included."""
        return self._recording.transitions

    def discard_episode(self, env_index: int | Sequence[int] | np.ndarray | None = None) -> None:
        """Drop the episodes in hand of some environments: none of their rows are stored, also after a crash.

        An environment's episode in hand is the running one, or the one that has just ended, until the
        environment's next episode begins or `flush` or `seal` is called. Its steps up to the next episode are
        not recorded.

        Args:
            env_index: the environment, or several; needed unless there is only one.

        Raises:
            InvalidArgumentError: `env_index` is missing, or does not name environments.
            RecorderStateError: an environment has no episode (then none is discarded), the recorder is
                closed, or a callback called this.
            StoreAccessError: the journal has rows of the episodes and cannot be written; the next flush
                writes that they are discarded.
        """
        self._check_between_steps()
        self._session.confirm_discard(self._recording.discard(self._checked_envs(env_index), ended=True))

    def _checked_envs(self, env_index: Any) -> np.ndarray:
        count = self._recording.num_envs
        if env_index is None and count == 1:
            return np.zeros(1, np.int64)
        envs = np.atleast_1d(np.asarray([] if env_index is None else env_index))
        fits = envs.ndim == 1 and envs.dtype.kind in "iu" and len(envs) and len(np.unique(envs)) == len(envs)
        if not fits or not 0 <= envs.min() <= envs.max() < count:
            raise InvalidArgumentError(
                f"env_index is {env_index!r}; expected the index of an environment, or several different "
                f"ones, from 0 to {count - 1}."
            )
        return envs.astype(np.int64)

    def _pause(self) -> None:
        self._recording.end(self._recording.everyone)
        self._recording.discard(self._recording.everyone, ended=False)
        self._paused = True
        self._recording.raise_late()

    def _end_finished(self) -> None:
        self._recording.end(np.arange(0))
