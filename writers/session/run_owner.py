"""`RunOwner`: the base of recorders and writers: opening a run, flushing, sealing and the `with` block."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from ...store.handle import OpenStore
from ...store.journal.records import RunHeader
from .row_source import RowSource
from .run import NotCopyable, SessionOptions
from .session import RunSession

Rows = TypeVar("Rows", bound=RowSource)


class RunOwner(NotCopyable, Generic[Rows]):
    """The base of all recorders and of `EpisodeWriter`."""

    _session: RunSession[Rows]

    def _open_run(
        self,
        store: OpenStore,
        header: RunHeader,
        options: SessionOptions | None,
        rows: Callable[[RunSession[Any]], Rows],
    ) -> Rows:
        """Begin the run and return its row source."""
        self._session = RunSession(store.handle, header, options or SessionOptions(), rows, self)
        return self._session.rows

    @property
    def session(self) -> RunSession[Rows]:
        """The run that it writes."""
        return self._session

    @property
    def run_id(self) -> str:
        """The id of this run."""
        return self._session.header.run_id

    def flush(self) -> None:
        """Bring everything recorded so far into the journal, as durably as `durability` says.

        With `durability="fsync"` it then survives a crash of the machine, otherwise the end of the process.

        Raises:
            StoreAccessError: the journal cannot be written; nothing is lost, call again.
            RecorderStateError: it is closed.
        """
        self._end_finished()
        self._session.flush()

    def seal(self) -> None:
        """Make all finished episodes visible to readers, and wait for it.

        Raises:
            StoreAccessError, ConcurrentCommitError: it failed; nothing is lost, call again.
        """
        self._end_finished()
        self._session.seal()

    def close(self) -> None:
        """End what is open, seal everything and finish the run; a second call does nothing.

        Raises:
            StoreAccessError, ConcurrentCommitError: sealing failed; the journal keeps everything, call again.
        """
        self._session.close()

    def _end_finished(self) -> None:
        """End episodes that have finished and that the session does not know as ended yet."""

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; an exception from within the block passes on."""
        self.close()
