"""`PoolRecorder`: records environments that are ready at different times, as EnvPool serves them.

Such a pool takes actions for some environments and gives back whichever are ready first: `send(actions,
env_ids)`, `recv()`, `async_reset()`, and `step`, which is both. Its infos say which environments a batch is
of (`env_id`) and how many steps each has taken since its reset (`elapsed_step`, 0 at the reset itself). See
EnvPool's documentation of its Python interface.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeGuard, Unpack, runtime_checkable

import gymnasium
import numpy as np

from ...store.common.foreign_arrays import to_numpy
from ...store.errors import InvalidArgumentError, RecorderStateError, SpaceMismatchError
from ...store.schema import OpenStore
from .batch_step import BatchStep
from .env_checks import check_spaces
from .env_episodes import InFlight
from .env_recorder import EnvsRecorder, RecorderKeywords
from .observed import ObservationChoice, ObservedPart, part_space
from .vector_values import per_env, single


@runtime_checkable
class EnvPool(Protocol):
    """The methods that a pool must have; EnvPool's Gymnasium environments do."""

    observation_space: Any
    action_space: Any

    def async_reset(self) -> None:
        """Ask all environments to reset themselves."""

    def send(self, action: Any, env_id: Any = None) -> None:
        """Hand actions to some environments."""

    def recv(self) -> Any:
        """Wait for the next batch of environments that are ready."""


class PoolRecorder(EnvsRecorder):
    """Record the episodes of a pool of environments into a store.

    Use it in the place of the pool. Every batch is copied when it is handed over. What else the pool has is
    reached through the recorder. An instance belongs to one thread and one process.

    Args:
        pool: the pool; its spaces (of one environment) must be the store's.
        store: the store, as `episodelake.open` gives it.
        run: a readable name for the run.
        metadata: what to keep with the run.
        step_callback: sees, and may change, each reset and step of each environment; see `StepData`.
        episode_callback: sees each finished episode and returns metadata for it; see `EpisodeSummary`.
        options: durability and when to flush and seal; see `SessionOptions`.
        files, packages: what the environment needs beside its spec; see `EpisodeStore.record`.
        record_infos, observation: which infos, and which part of observations, to store; see
            `EpisodeStore.record`.

    Raises:
        SpaceMismatchError: the pool's spaces are not the store's.
        InvalidArgumentError: the pool does not say how many environments it has.
        StoreAccessError: the store cannot be written.
    """

    def __init__(
        self,
        pool: EnvPool,
        store: OpenStore,
        *,
        observation: ObservationChoice | None = None,
        **given: Unpack[RecorderKeywords],
    ) -> None:
        self.pool = pool
        schema = store.handle.schema
        observation_space, action_space = pool_spaces(pool)
        part = ObservedPart.of(observation_space, observation)
        compared = part_space(part, observation_space, schema.observation_space)
        check_spaces(schema, {"observation_space": compared, "action_space": action_space})
        self.num_envs = _count(pool)
        self._begin_envs(store, pool, self.num_envs, part, **given)
        # The action that each environment was sent last, and room to check a batch of them.
        action = self.session.store.schema.action  # with `cast`
        self._sent = action.buffer(self.num_envs)
        self._staged = action.buffer(self.num_envs)
        self._last_ids = self._recording.everyone
        self._warned = False
        # For the callback: the same actions as single values.
        self._actions: dict[int, Any] = {}
        # Environments that were never seen to be reset, although they are recorded.
        self._unseen = np.ones(self.num_envs, bool)
        # Whether an exception came between the pool and what is recorded, and no reset since.
        self._interrupted = False
        self.in_flight = InFlight(pool, action_space, self.num_envs)

    @property
    def env(self) -> EnvPool:
        """The pool."""
        return self.pool

    @property
    def whole(self) -> bool:
        """False after an exception of the pool, until the next reset."""
        return not self._interrupted

    def __getattr__(self, name: str) -> Any:
        """Everything else is the pool's."""
        if name.startswith("_") or name == "pool":
            raise AttributeError(name)
        return getattr(self.pool, name)

    # The pool

    def async_reset(self) -> None:
        """Ask all environments to reset themselves; running episodes end as `cut`."""
        self._session.check_usable()
        self._recording.end_all()
        self._asked("async_reset")
        self.in_flight.mask[:] = True
        self._interrupted = False

    def reset(self, env_ids: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reset these environments, all by default; their running episodes end as `cut`.

        Raises:
            SpaceMismatchError: the observations do not fit the store's space.
        """
        self._session.check_usable()
        self.in_flight.mask[slice(None) if env_ids is None else np.asarray(to_numpy(env_ids))] = True
        result: Any = self._asked("reset") if env_ids is None else self._asked("reset", env_ids)
        self._interrupted = False
        observations, infos = result
        self.in_flight.landed(infos)
        count = len(np.atleast_1d(_told(infos, "env_id")))
        unset = np.zeros(count, bool)
        self._recorded((observations, np.zeros((count, *self._reward_shape)), unset, unset, infos))
        return result

    def send(self, actions: Any, env_ids: Any = None) -> None:
        """Hand actions to the environments `env_ids`, all by default.

        Raises:
            SpaceMismatchError: the actions do not fit; nothing was sent.
            RecorderStateError: an exception of the pool, or a value that did not fit, ended the episodes, and
                no reset came since; or the recorder is closed.
        """
        if not self._paused:
            self._check_going_on()
            ids = self._stage(actions, env_ids)
            self._recording.check_going_on(ids.tolist())
        self._asked("send", actions, *(() if env_ids is None else (env_ids,)))
        self.in_flight.mask[slice(None) if env_ids is None else np.asarray(to_numpy(env_ids))] = True

    def recv(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Wait for the next batch of environments that are ready, record it and return it as it is.

        Raises:
            SpaceMismatchError: a value does not fit; nothing of the batch is recorded, and all episodes end
                as they were before it.
            RecorderStateError: as for `send`.
        """
        if not self._paused:
            self._check_going_on()
        result = self._asked("recv")
        try:
            self.in_flight.landed(result[-1])
        except BaseException:
            self._interrupt()
            raise
        self._recorded(result)
        return result

    def mute(self, envs: np.ndarray) -> None:
        """Give up the running episodes of these environments, and record them from their next reset on."""
        running = self._recording.state.open_envs(envs)
        if len(running):
            self._recording.discard(running, ended=False)

    def drain(self) -> None:
        """Receive, unrecorded, all that is in flight; a reset must follow."""
        self._interrupted = True
        self.in_flight.drain()

    def step(self, actions: Any, env_ids: Any = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Send actions and receive the next batch."""
        self.send(actions, env_ids)
        return self.recv()

    def log(self, /, env_ids: Any = None, **values: Any) -> None:
        """Add `policy.<key>` values to the current step of some environments.

        Args:
            env_ids: whose they are, in this order; those of the last batch if None.
            values: arrays of shape (len(env_ids), ...).

        Raises:
            RecorderStateError: no environment has an episode, or those of all these have ended, and the next
                `recv`, `flush` or `seal` has stored them; where it has stored some, a `RuntimeWarning` says
                once that their values have no row.
            SpaceMismatchError: a value has not one entry for each of them.
        """
        ids = self._last_ids if env_ids is None else self._checked_ids(env_ids)
        mask = np.zeros(self.num_envs, bool)
        mask[ids] = True
        spread = {key: self._spread(key, to_numpy(value), ids) for key, value in values.items()}
        self._recording.log(spread, mask)

    def discard_episode(self, env_index: int | Sequence[int] | np.ndarray | None = None) -> None:
        """See `VectorRecorder.discard_episode`; an ended episode can be discarded until the next batch."""
        super().discard_episode(env_index)

    def _pause(self) -> None:
        super()._pause()
        self._unseen[:] = False

    def _close_env(self, **kwargs: Any) -> None:
        close = getattr(self.pool, "close", None)
        if close is not None:
            close(**kwargs)

    # Batches

    @property
    def _reward_shape(self) -> tuple[int, ...]:
        return self._recording.state.returns.shape[1:]

    def _asked(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self.pool, method)(*arguments)
        except BaseException:
            self._interrupt()
            raise

    def _interrupt(self) -> None:
        """End all episodes: what is under way may be lost, so the next transitions would not follow on."""
        self._interrupted = True
        self._unseen[:] = True
        self._recording.interrupted()

    def _check_going_on(self) -> None:
        self._session.check_usable()
        if self._interrupted:
            raise RecorderStateError(
                "An exception interrupted the last call of the pool, and its environments may have moved. "
                "Call async_reset() or reset() before the next send() or recv()."
            )

    def _stage(self, actions: Any, env_ids: Any) -> np.ndarray:
        """Copy the actions, and give the environments that they are for."""
        ids = self._recording.everyone if env_ids is None else self._checked_ids(env_ids)
        self._staged.put_many(0, to_numpy(actions), len(ids))
        self._sent.copy_rows(ids, self._staged, np.arange(len(ids)))
        if self._step_callback is not None:
            kept, space = copy.deepcopy(to_numpy(actions)), self._recording.action_space
            self._actions |= {env: single(space, kept, place) for place, env in enumerate(ids.tolist())}
        return ids

    def _checked_ids(self, env_ids: Any) -> np.ndarray:
        ids = np.atleast_1d(np.asarray(to_numpy(env_ids)))
        fits = ids.ndim == 1 and ids.dtype.kind in "iu" and len(np.unique(ids)) == len(ids)
        if not fits or (len(ids) and not 0 <= ids.min() <= ids.max() < self.num_envs):
            raise SpaceMismatchError(
                f"env_ids are {env_ids!r}; expected different numbers from 0 to {self.num_envs - 1}."
            )
        return ids.astype(np.int64)

    def _spread(self, key: str, values: Any, ids: np.ndarray) -> Any:
        """Expand values of some environments to all; the other entries are not used."""
        if isinstance(values, Mapping):
            return {inner: self._spread(inner, each, ids) for inner, each in values.items()}
        try:
            array = np.asarray(values)
        except ValueError:  # values of different shapes, one for each environment
            array = per_env(values, len(values))
        if array.ndim == 0 or len(array) != len(ids):
            raise SpaceMismatchError(
                f"The logged value {key!r} has shape {array.shape}; expected one entry for each of the "
                f"{len(ids)} environments."
            )
        spread = np.zeros((self.num_envs, *array.shape[1:]), array.dtype)
        spread[ids] = array
        return spread

    def _recorded(self, result: tuple[Any, Any, Any, Any, Mapping[str, Any]]) -> None:
        infos = result[-1]
        try:
            ids = self._checked_ids(_told(infos, "env_id"))
            self._last_ids = ids
            if self._paused:
                return
            block = self._recording.block()
            block.actions.copy_rows(np.arange(block.count, block.count + len(ids)), self._sent, ids)
            fresh = np.asarray(to_numpy(_told(infos, "elapsed_step"))).reshape(len(ids)) == 0
            self._unseen[ids[fresh]] = False
            if self._unseen[ids].any():
                self._warn()
            resets = np.flatnonzero(fresh) if fresh.any() else None
            step = BatchStep(self._recording, block, ids, resets, result)
            step.record(self._step_callback, self._actions.__getitem__)
        except BaseException:
            self._interrupt()
            raise
        self._recording.end_call()

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                "The pool gave steps of environments whose reset was not seen; they are recorded from their "
                "next reset on. Make the recorder before async_reset().",
                RuntimeWarning,
                stacklevel=4,
            )


def is_pool(env: Any) -> TypeGuard[EnvPool]:
    """Return whether an environment is a pool that takes and gives batches of some of its environments."""
    return all(callable(getattr(env, name, None)) for name in ("send", "recv", "async_reset"))


def pool_spaces(pool: Any) -> tuple[gymnasium.Space, gymnasium.Space]:
    """Return the spaces of one environment of a pool."""
    both = []
    for name in ("observation_space", "action_space"):
        single = getattr(pool, f"single_{name}", None)
        both.append(single if isinstance(single, gymnasium.Space) else getattr(pool, name))
    return both[0], both[1]


def _count(pool: Any) -> int:
    """Return how many environments a pool has."""
    config = getattr(pool, "config", None)
    count = config.get("num_envs") if isinstance(config, Mapping) else None
    count = getattr(pool, "num_envs", None) if count is None else count
    if not isinstance(count, int | np.integer) or count < 1:
        raise InvalidArgumentError(
            f"The pool {type(pool).__name__} does not say how many environments it has: expected "
            "pool.config['num_envs'] or pool.num_envs."
        )
    return int(count)


def _told(infos: Mapping[str, Any], key: str) -> Any:
    if not isinstance(infos, Mapping) or key not in infos:
        raise SpaceMismatchError(f"The pool's infos have no {key!r}; expected it beside every batch.")
    return infos[key]
