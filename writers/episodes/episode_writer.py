"""`EpisodeWriter`: fill a store without an environment, step by step or in whole episodes.

For imports, for robots, for anything that has its own loop. A thin front for a run session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Any, overload

from ...store.common.arguments import whole_number
from ...store.handle import OpenStore
from ...store.journal.episodes import EpisodeFacts, EpisodeRecord
from ...store.maintenance.reopening import reopening
from ..session.journal import SessionOptions
from ..session.run import RunOwner, run_header
from .arrow_episodes import write_arrow
from .open_episode import EpisodeRow, OpenEpisode, ReopenedEpisode
from .source_keys import SOURCE_KEY, OnDuplicate, SourceKeys, check_on_duplicate, with_source_key
from .whole_episode import LastObservation, WholeEpisode, is_last_missing
from .whole_rows import WholeRows

#: Arguments of `write_episode` that are not about steps.
_FACTS = ("seed", "options", "metadata", "env_index", "source_key")


class EpisodeWriter(RunOwner[WholeRows]):
    """Write episodes of one run.

    An instance belongs to one thread and one process; use one writer per process.

    Args:
        store: the store, as `episodelake.open` gives it.
        run: a readable name for the run.
        metadata: what to keep with the run.
        options: durability and when to flush and seal; see `SessionOptions`.
        on_duplicate: if the store has an episode with the `source_key` of one that is to be written: "error"
            raises, "skip" leaves the new one out. The keys of the store are read with the first key that
            this writer is given; those that other writers commit later do not count.

    Raises:
        InvalidArgumentError: an option has no such value.
        StoreAccessError: the store cannot be written.
    """

    def __init__(
        self,
        store: OpenStore,
        *,
        run: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        options: SessionOptions | None = None,
        on_duplicate: OnDuplicate = "error",
    ) -> None:
        check_on_duplicate(on_duplicate)
        self._rows = self._open_run(store, run_header(run, metadata), options, WholeRows)
        self._schema = self._session.store.schema
        self._sources = SourceKeys(store.handle.layout, on_duplicate, self._rows)

    def has_source_key(self, key: str) -> bool:
        """Return whether an episode with this source key is in the store or was written or begun here.

        Raises:
            InvalidArgumentError: the key is no text.
        """
        return self._sources.is_known(key)

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
        if not self._sources.is_new(source_key):
            return None
        metadata = with_source_key(metadata, source_key)
        live = self._rows.begin(
            observation,
            info,
            seed=seed,
            options=options,
            metadata=metadata,
            env_index=_index(env_index),
            extra=extra,
        )
        return OpenEpisode(self, live, self.finished)

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
        return ReopenedEpisode(self, live, self.finished, reopened.id, last)

    @overload
    def write_episode(
        self,
        *,
        observations: Any,
        actions: Any,
        rewards: Any,
        terminations: Any,
        truncations: Any,
        source_key: None = None,
        last_observation: LastObservation = "present",
        infos: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        env_index: int | None = None,
    ) -> EpisodeRow: ...

    @overload
    def write_episode(
        self,
        *,
        observations: Any,
        actions: Any,
        rewards: Any,
        terminations: Any,
        truncations: Any,
        source_key: str | None,
        last_observation: LastObservation = "present",
        infos: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        env_index: int | None = None,
    ) -> EpisodeRow | None: ...

    def write_episode(
        self,
        *,
        observations: Any,
        actions: Any,
        rewards: Any,
        terminations: Any,
        truncations: Any,
        source_key: str | None = None,
        last_observation: LastObservation = "present",
        infos: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        env_index: int | None = None,
    ) -> EpisodeRow | None:
        """Write a whole episode of T transitions from arrays.

        Args:
            observations: T+1 stacked values (nested dicts and tuples of arrays for Dict and Tuple spaces,
                a list of values for ragged ones); T if the last observation is missing.
            actions: T stacked values.
            rewards: shape (T,), or (T, 1) of arrays of one item; (T, k) for vector rewards.
            terminations, truncations: bool, shape (T,), or one bool for the last transition.
            source_key: names the episode in the dataset it comes from; kept as metadata `source_key`.
            last_observation: "missing" if the source has T observations only. Readers then show T of them,
                and loaders leave out what needs the last one.
            infos: T+1 mappings, or one mapping of arrays of length T+1; T if the last observation is missing.
            policy: arrays of length T (or T+1 with a value for the last observation).
            extra: arrays of length T+1, your own columns; T if the last observation is missing.
            seed, options, metadata, env_index: of the episode.

        Returns:
            The episode; None if there is one with this source key and `on_duplicate` is "skip".

        Raises:
            SpaceMismatchError: shapes, dtypes or lengths do not fit, or a flag is set before the last
                transition; nothing was recorded.
            InvalidArgumentError: there is no transition, there is an episode with this source key, or
                the observation space has no column in which a missing observation shows.
            RecorderStateError: the writer is closed.
        """
        given = {
            "observations": observations,
            "actions": actions,
            "rewards": rewards,
            "terminations": terminations,
            "truncations": truncations,
            "source_key": source_key,
            "last_observation": last_observation,
            "infos": infos,
            "policy": policy,
            "extra": extra,
            "seed": seed,
            "options": options,
            "metadata": metadata,
            "env_index": env_index,
        }
        records = self._write_many([given])
        return EpisodeRow.of(self._session, records[0]) if records else None

    def write_episodes(
        self,
        steps: Any,
        *,
        episodes: Any = None,
        lengths: Iterable[int] | None = None,
        last_observation: LastObservation = "present",
    ) -> int:
        """Write many whole episodes from Arrow data.

        The data have the columns of `steps`: those of observation and action, `reward`, `terminated`,
        `truncated`, and if you like `info.*`, `policy.*` and your own. The rows of an episode are neighbours,
        in order of time. The last of them has the last observation; its action, reward and flags are NULL.
        The data are streamed: memory holds a few segments, or the longest episode if that is larger.

        Args:
            steps: a `pyarrow.Table`, `RecordBatch`, `RecordBatchReader`, an iterable of these, or a data
                frame that exports Arrow. A column `episode` (or `episode_id`) of any type names the episode
                of each row; a column `t` is checked.
            episodes: Arrow data with one row per episode in the same order: `seed`, `options` (JSON or a
                struct), `env_index`, `end_reason`, `source_key`, `last_observation`, `metadata.*`. A column
                `episode` is compared with that of the steps, `length` and `end_reason` with the episodes;
                `store.episodes` fits. Where `last_observation` is "missing", the observation of the
                episode's last row is NULL.
            lengths: the transitions T of each episode, T+1 rows each, in place of the column.
            last_observation: "missing" if the source lacks the last observation of all episodes. Each has T
                rows then, without the row of the last observation.

        Returns:
            How many episodes were written, without those that `on_duplicate="skip"` left out.

        Raises:
            SpaceMismatchError: a value does not fit, or a row or a column is missing; the message names the
                episode and the row. The episodes before it may be recorded, as a note of the error says.
            InvalidArgumentError: a column has a reserved name, an episode has no transition, `episodes`
                does not go with the steps, or there is an episode with this source key.
            RecorderStateError: the writer is closed.
        """
        self._session.check_usable()
        missing = is_last_missing(self._schema, last_observation)
        return write_arrow(
            self._session, self._schema, steps, episodes, lengths, self._sources, last_missing=missing
        )

    def _write_many(self, episodes: Sequence[Mapping[str, Any]]) -> list[EpisodeRecord]:
        """Write several episodes, all or none, without those that `on_duplicate="skip"` leaves out.

        Args:
            episodes: keyword arguments of `write_episode`, which raises the same.
        """
        self._session.check_usable()
        fresh = self._sources.fresh([each.get("source_key") for each in episodes])
        wholes, facts, keys = [], [], []
        for given in compress(episodes, fresh):
            seed, options, metadata, env_index, key = (given.get(name) for name in _FACTS)
            steps = {name: value for name, value in given.items() if name not in _FACTS}
            own = EpisodeFacts.of(seed, options, with_source_key(metadata, key))
            wholes.append(WholeEpisode.checked(self._schema, **steps))
            facts.append((_index(env_index), own))
            keys += [] if key is None else [key]
        records = self._rows.write(wholes, facts) if wholes else []
        self._sources.add(keys)
        return records

    def finished(self, record: EpisodeRecord) -> EpisodeRow:
        """Remember the source key of a finished episode, and return it as its caller sees it."""
        key = record.facts.metadata.get(SOURCE_KEY)
        if isinstance(key, str):
            self._sources.add((key,))
        return EpisodeRow.of(self._session, record)


def _index(env_index: int | None) -> int | None:
    return None if env_index is None else whole_number("env_index", env_index, 0, 2**63 - 1)
