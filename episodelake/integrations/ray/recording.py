"""An actor of Ray that records for others.

Its methods return when their rows are durable, so the reply to a call is the acknowledgement.
"""

# Ray has an environment of its own, without the type checker.
# pyright: reportMissingImports=false, reportCallIssue=false

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

import ray

from ... import open as open_store
from ...errors import InvalidArgumentError
from ...plugin import expect
from ...types import OpenEpisode
from .datasource import check_path


class RecorderActor:
    """An actor that records for others; `recorder_actor` starts one.

    Each method returns when the rows that it took are durable: after a death of the actor, `recover` or the
    next writer brings back all that was acknowledged. With `durability="fsync"`, the default, that holds for
    a crash of the machine too, with "flush" for one of the process. Calls are made one after the other. A
    call that raises keeps what it recorded before the error.

    Args:
        path, storage_options: the store.
        options: those of `EpisodeStore.writer`.
    """

    def __init__(self, path: str, storage_options: dict[str, str] | None, options: dict[str, Any]) -> None:
        self._writer = open_store(path, storage_options=storage_options).writer(**options)
        self._open: dict[str, OpenEpisode] = {}

    @contextlib.contextmanager
    def _durable(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._writer.flush()

    def run_id(self) -> str:
        """Return the id of its run."""
        return self._writer.run_id

    def write_episode(self, **arrays: Any) -> str | None:
        """Record a whole episode; see `EpisodeWriter.write_episode`.

        Returns:
            Its id; None if the store has its `source_key` and duplicates are skipped.
        """
        with self._durable():
            row = self._writer.write_episode(**arrays)
        return None if row is None else row.episode_id

    def write_episodes(self, steps: Any, **options: Any) -> int:
        """Record many episodes; see `EpisodeWriter.write_episodes`. Returns how many."""
        with self._durable():
            return self._writer.write_episodes(steps, **options)

    def begin(self, observation: Any, info: Any = None, **options: Any) -> str | None:
        """Start an episode; see `EpisodeWriter.begin`.

        Returns:
            Its id, which names it in further calls; None for a duplicate that is skipped.
        """
        with self._durable():
            episode = self._writer.begin(observation, info, **options)
            if episode is None:
                return None
            self._open[episode.id] = episode
            return episode.id

    def append(self, episode_id: str, steps: Sequence[Mapping[str, Any]]) -> int:
        """Append transitions to an episode.

        Args:
            episode_id: as `begin` returned it.
            steps: for each transition the arguments of `OpenEpisode.append` by name: `action`, `reward`,
                `observation`, `terminated`, `truncated`, `info`, `policy`, `extra`.

        Returns:
            How many transitions the episode has now.

        Raises:
            InvalidArgumentError: no such episode is open, or `steps` is no list.
            SpaceMismatchError: a value does not fit; the steps before it were recorded.
        """
        episode = self._episode(episode_id)
        valid = isinstance(steps, list | tuple) and all(isinstance(step, Mapping) for step in steps)
        expect(valid, "steps", steps, "a list with a dict for each step, such as [step]")
        with self._durable():
            for place, step in enumerate(steps):
                try:
                    episode.append(**step)
                except Exception as error:
                    error.add_note(f"Step {place} of {len(steps)} failed; those before it were recorded.")
                    raise
        return episode.length

    def end(self, episode_id: str, metadata: Mapping[str, Any] | None = None) -> None:
        """Finish an episode; see `OpenEpisode.end`."""
        episode = self._episode(episode_id)
        with self._durable():
            episode.end(metadata)
            del self._open[episode_id]

    def seal(self) -> None:
        """Make finished episodes visible to readers."""
        self._writer.seal()

    def close(self) -> None:
        """Make all episodes visible to readers, and end the run; open ones end as `cut`."""
        self._writer.close()

    def _episode(self, episode_id: str) -> OpenEpisode:
        if episode_id not in self._open:
            raise InvalidArgumentError(
                f"No episode {episode_id!r} is open in the run {self._writer.run_id}; open are "
                f"{', '.join(self._open) or 'none'}. Begin one: a restarted actor has a new run."
            )
        return self._open[episode_id]


def recorder_actor(
    path: str | PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    actor_options: Mapping[str, Any] | None = None,
    durability: str = "fsync",
    **options: Any,
) -> Any:
    """Start an actor that records what other actors and tasks send; see `RecorderActor` for its methods.

        recorder = recorder_actor("data/robots", run="arms", seal_seconds=5)
        ray.get(recorder.write_episode.remote(observations=..., actions=..., ...))  # durable from here on

    Args:
        path, storage_options: the store, as for `collect`.
        actor_options: those of the actor, such as `num_cpus` (0 by default), `name` and `lifetime`.
        durability: what a crash leaves; see `RecorderActor`.
        options: others of `EpisodeStore.writer`: `run`, `metadata`, `on_duplicate`, `seal_seconds`.

    Returns:
        The actor's handle.

    Raises:
        StoreNotFoundError: there is no store at `path`.
        InvalidArgumentError: an option is not valid; or the store is in memory.
    """
    check_path(path)
    options["durability"] = durability
    store = open_store(path, storage_options=storage_options)
    store.writer(**options).close()  # wrong options raise here; a run without an episode leaves nothing
    kind = ray.remote(RecorderActor).options(**{"num_cpus": 0, **(actor_options or {})})
    given = None if storage_options is None else dict(storage_options)
    return kind.remote(str(store.context.snapshot.layout.root), given, options)
