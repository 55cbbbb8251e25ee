"""`EnvsRecorder`: what the recorders of many environments, of vectors and of pools, have in common."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import numpy as np

from ..store.block_buffer import NOBODY
from .block_session import BlockSession
from .env_recording import EnvRecording


class EnvsRecorder:
    """The base of both: what was recorded, sealing, and the `with` block."""

    _session: BlockSession
    _recording: EnvRecording

    @property
    def run_id(self) -> str:
        """The id of this recorder's run."""
        return self._session.header.run_id

    @property
    def episode_ids(self) -> list[str | None]:
        """The id of the episode in hand of each environment; None where there is none."""
        numbers = self._recording.state.numbers.tolist()
        return [None if number == NOBODY else self._session.id_of(number) for number in numbers]

    @property
    def episodes(self) -> int:
        """How many episodes were recorded and have ended."""
        return self._recording.episodes

    @property
    def transitions(self) -> int:
        """How many transitions were recorded, those of running episodes included."""
        return self._recording.transitions

    def seal(self) -> None:
        """Make all finished episodes visible to readers, and wait for it.

        Raises:
            StoreAccessError, ConcurrentCommitError: it failed; nothing is lost, call again.
        """
        self._recording.end(np.arange(0))
        self._session.seal()

    def close(self) -> None:
        """End what is open, seal everything, finish the run and close the environments."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Return the recorder itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; an exception from within the block passes on."""
        self.close()
