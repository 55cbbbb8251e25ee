"""`BulkWriter`: the part of `EpisodeWriter` that writes whole episodes, from arrays or Arrow data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

from ...store.journal.episodes import EpisodeFacts
from ...store.schema import StepSchema
from ..rows.step_rows import EpisodeRow, env_index_of
from ..session.run import RunOwner
from .arrow_episodes import write_arrow
from .source_keys import OnDuplicate, SourceKeys, with_source_key
from .whole_episode import LastObservation, WholeEpisode, is_last_missing
from .whole_rows import WholeRows


class BulkWriter(RunOwner[WholeRows]):
    """See `EpisodeWriter`."""

    _rows: WholeRows
    _schema: StepSchema
    _on_duplicate: OnDuplicate

    @cached_property
    def _sources(self) -> SourceKeys:
        return SourceKeys(self._session.store, self._on_duplicate, self._rows)

    def has_source_key(self, key: str) -> bool:
        """Return whether an episode with this source key is in the store or was written or begun here.

        Raises:
            InvalidArgumentError: the key is no text.
        """
        return self._sources.is_known(key)

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
        extra: Sequence[Mapping[str, Any] | None] | Mapping[str, Any] | None = None,
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
        extra: Sequence[Mapping[str, Any] | None] | Mapping[str, Any] | None = None,
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
        extra: Sequence[Mapping[str, Any] | None] | Mapping[str, Any] | None = None,
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
            extra: your own columns: one mapping of arrays of length T+1, or T+1 mappings, of which each may
                lack keys; T if the last observation is missing.
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
        self._session.check_usable()
        if not self._sources.is_new(source_key):
            return None
        facts = EpisodeFacts.of(seed, options, with_source_key(metadata, source_key))
        whole = WholeEpisode.checked(
            self._schema,
            observations=observations,
            actions=actions,
            rewards=rewards,
            terminations=terminations,
            truncations=truncations,
            infos=infos,
            policy=policy,
            extra=extra,
            last_observation=last_observation,
        )
        record = self._rows.write(whole, env_index_of(env_index), facts)
        self._sources.add([] if source_key is None else [source_key])
        return EpisodeRow.of(self._session, record)

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
