"""`EpisodeWriter`: fill a store without an environment, step by step or in whole episodes.

For imports, for robots, for anything that has its own loop. A thin front for a run session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, get_args, overload

from ...store.common.arguments import one_of
from ...store.errors import RecorderStateError
from ...store.journal.episodes import EpisodeRecord
from ...store.recovery.reopening import LastRow, reopening
from ...store.schema import OpenStore
from ..rows.arrivals import LiveEpisode
from ..rows.step_rows import EpisodeRow, StepRows, env_index_of
from ..session.journal import NotCopyable, SessionOptions
from ..session.run import RunOwner, run_header
from .bulk_writer import BulkWriter
from .source_keys import SOURCE_KEY, OnDuplicate, with_source_key
from .whole_rows import WholeRows


class OpenRecording(NotCopyable):
    """The base of open episodes, of one agent or several.

    Args:
        writer: the writer that began it. A writer that is garbage collected is closed, so its open episodes
            keep it.
        live: the episode.
    """

    def __init__(self, writer: RunOwner[Any], live: LiveEpisode) -> None:
        self._writer = writer
        self._session = writer.session
        self._rows: StepRows = writer.session.rows
        self._live = live
        self._ended = False

    @property
    def id(self) -> str:
        """The episode's id."""
        return self._session.episode_id(self._live.number)

    @property
    def length(self) -> int:
        """Its transitions so far; of several agents, the steps of the environment."""
        return self._live.length

    def end(self, metadata: Mapping[str, Any] | None = None) -> EpisodeRow:
        """Finish the episode; unless the flags of its agents ended it, its end reason is "cut".

        Raises:
            RecorderStateError: it has ended already, or has no step (then nothing is stored).
        """
        self._check_open()
        record = self._rows.end(self._live, "cut", metadata)
        self._ended = True
        if record is None:
            raise RecorderStateError(self._nothing_stored())
        return self._finished(record)

    def discard(self) -> None:
        """Drop the episode: none of its rows are stored, also after a crash.

        A call that failed or was interrupted may be repeated; `close` drops the episode then, too.

        Raises:
            RecorderStateError: it has ended already, or the writer is closed.
            StoreAccessError: the journal has rows of it and cannot be written; call again, or the next flush
                writes that it is discarded.
        """
        self._check_open()
        self._rows.discard(self._live)
        self._session.confirm_discard({self._live.number})
        self._ended = True

    def _finished(self, record: EpisodeRecord) -> EpisodeRow:
        """Return the row of the episode, which has ended."""
        return EpisodeRow.of(self._session, record)

    def _nothing_stored(self) -> str:
        return f"The episode {self.id} has no step: nothing was stored. Append steps before end()."

    def _check_open(self) -> None:
        """Raise if the episode has ended, or nothing can be recorded now."""
        if self._ended:
            raise RecorderStateError(f"The episode {self.id} has ended already.")
        self._session.check_usable()

    def _refuse_step(self) -> NoReturn:
        """Raise since no step can follow."""
        self._session.check_usable()
        raise RecorderStateError(f"The episode {self.id} has ended: begin a new one before the next step.")


class OpenEpisode(OpenRecording):
    """An episode that `EpisodeWriter.begin` started; several may be open at once."""

    _writer: EpisodeWriter

    def append(
        self,
        action: Any,
        reward: Any,
        observation: Any,
        terminated: bool = False,
        truncated: bool = False,
        info: Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Add one transition and the observation that it led to; all values are copied now.

        Args:
            action: taken at the observation before.
            reward: a number, or k numbers for vector rewards.
            observation: what came back.
            terminated, truncated: what the environment said; see Gymnasium's `Env.step`.
            info: came with the observation.
            policy: values beside the action, become `policy.<key>`.
            extra: your own columns, on the row of the observation.

        Raises:
            SpaceMismatchError: a value does not fit; nothing of the step was recorded.
            RecorderStateError: the episode has ended.
        """
        live = self._live
        if self._ended or live.terminated or live.truncated or live.discarded or self._session.closing:
            self._refuse_step()
        if extra:
            self._session.store.schema.check_extra(extra)
        buffer = self._rows.room()
        buffer.put_action(buffer.count, action)
        buffer.add_step(live, reward, observation, terminated, truncated, info, policy, extra)

    def _finished(self, record: EpisodeRecord) -> EpisodeRow:
        self._writer._remember_source(record)
        return super()._finished(record)


class ReopenedEpisode(OpenEpisode):
    """An episode of the store that `EpisodeWriter.reopen` continues.

    Attributes:
        continues: the id of the episode that it continues.
        observation, info: the last that were recorded before it was reopened.
    """

    def __init__(
        self,
        writer: EpisodeWriter,
        live: LiveEpisode,
        continues: str,
        last: LastRow,
    ) -> None:
        super().__init__(writer, live)
        self.continues = continues
        self.observation = last.observation
        self.info = last.info
        self._policy = last.policy

    def append(
        self,
        action: Any,
        reward: Any,
        observation: Any,
        terminated: bool = False,
        truncated: bool = False,
        info: Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Add one transition; see `OpenEpisode.append`.

        Policy outputs that were recorded before the episode was reopened stay where `policy` lacks the key.
        """
        first = self._live.length == self._live.continued
        if first and self._policy and isinstance(policy, Mapping | None):
            policy = {**self._policy, **(policy or {})}
        super().append(action, reward, observation, terminated, truncated, info, policy, extra)

    def _nothing_stored(self) -> str:
        return f"Nothing was appended to {self.continues!r}: it stays as it was."


class EpisodeWriter(BulkWriter):
    """Write episodes of one run.

    An instance belongs to one thread and one process; use one writer per process.

    Args:
        store: the store, as `episodelake.open` gives it.
        run: a readable name for the run.
        metadata: what to keep with the run.
        env: where the episodes come from, if that is known, to be kept with the run: an environment, its spec
            or its id. It is not made, and its spaces are not compared.
        options: durability and when to flush and seal; see `SessionOptions`.
        on_duplicate: if the store has an episode with the `source_key` of one that is to be written: "error"
            raises, "skip" leaves the new one out. The keys of the store are read with the first key that
            this writer is given; those that other writers commit later do not count.

    Raises:
        InvalidArgumentError: an option has no such value, or `env` is no environment and names none.
        StoreAccessError: the store cannot be written.
    """

    def __init__(
        self,
        store: OpenStore,
        *,
        run: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        env: Any = None,
        options: SessionOptions | None = None,
        on_duplicate: OnDuplicate = "error",
    ) -> None:
        one_of("on_duplicate", on_duplicate, get_args(OnDuplicate))
        kept = None
        if env is not None:
            from ..session.environment import keep_stated_env

            kept = keep_stated_env(store.handle.layout, env)
        header = run_header(run, metadata, kept)
        self._rows = self._open_run(store, header, options, WholeRows)
        self._schema = self._session.store.schema
        self._on_duplicate = on_duplicate

    @overload
    def begin(
        self,
        observation: Any,
        info: Mapping[str, Any] | None = None,
        *,
        source_key: None = None,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        env_index: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> OpenEpisode: ...

    @overload
    def begin(
        self,
        observation: Any,
        info: Mapping[str, Any] | None = None,
        *,
        source_key: str | None,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        env_index: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> OpenEpisode | None: ...

    def begin(
        self,
        observation: Any,
        info: Mapping[str, Any] | None = None,
        *,
        source_key: str | None = None,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        env_index: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> OpenEpisode | None:
        """Start an episode with its first observation.

        Args:
            source_key: names the episode in the dataset it comes from; kept as metadata `source_key`.

        Returns:
            The episode; None if there is one with this source key and `on_duplicate` is "skip".

        Raises:
            SpaceMismatchError: the observation does not fit; no episode was started.
            InvalidArgumentError: there is an episode with this source key.
            RecorderStateError: the writer is closed.
        """
        self._session.check_usable()
        if source_key is not None:
            if not self._sources.is_new(source_key):
                return None
            metadata = with_source_key(metadata, source_key)
        live = self._rows.begin(
            observation,
            info,
            seed=seed,
            options=options,
            metadata=metadata,
            env_index=env_index_of(env_index),
            extra=extra,
        )
        return OpenEpisode(self, live)

    def reopen(self, episode_id: str) -> ReopenedEpisode:
        """Continue an episode that was cut or interrupted, of any run.

        The new episode has the rows of the old one and those that are appended, an id of this run, and the
        ids of the episodes that it took the place of as its metadata `continues`. One commit adds it and
        removes the old episode. Until then, readers see the old one; it stays if nothing is appended. What
        this writer has finished is sealed first.

        Args:
            episode_id: the episode, or one that it took the place of.

        Raises:
            EpisodeNotFoundError: the newest version of the store has no such episode.
            InvalidArgumentError: it is terminated or truncated, or its last observation is missing.
            RecorderStateError: another writer of this machine, or this one, continues it already; or this
                writer is closed.
            StoreAccessError: its rows cannot be read, or the journal cannot be written.
        """
        self._session.check_usable()
        self._session.seal()
        with reopening(self._session.store, episode_id) as reopened:
            last = reopened.last_row()
            live = self._rows.resume(reopened)
        return ReopenedEpisode(self, live, reopened.id, last)

    def _remember_source(self, record: EpisodeRecord) -> None:
        """Remember the source key of a finished episode, if it has one."""
        key = record.facts.metadata.get(SOURCE_KEY)
        if isinstance(key, str):
            self._sources.add((key,))
