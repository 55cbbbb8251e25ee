"""A pool, recorded by a `PoolRecorder`: each step is one of those environments that are ready.

    recv -> ready environments -> policy -> send, and so on

Other environments are in flight meanwhile. With `steps` the call ends with the batch that reaches them. With
`episodes` every environment has a quota. One whose quota is full is parked: it is sent nothing, except where
a batch would not fill up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array

from ...store.common.foreign_arrays import to_numpy
from ...store.errors import InvalidArgumentError
from ..recorders.callbacks import EpisodeSummary
from ..recorders.pool_recorder import PoolRecorder
from .actor import Actor, PolicyConfig, PolicyOutput, Sample, derived_seed
from .goal import CollectProgressState, Resets, even_shares
from .loop import Batch, Taken
from .memory import map_leaves


class PoolBatch(Batch):
    """Steps those environments of a pool that are ready.

    Args:
        recorder: the recorder. What was done with it meanwhile is seen in `enter`.

    Attributes:
        size, num_envs: how many environments the pool has.
        ids: int64: the environments that are ready.
        observation, info: theirs, as the pool returned them.
    """

    def __init__(self, recorder: PoolRecorder) -> None:
        self.size: int | None = recorder.num_envs
        self.num_envs = recorder.num_envs
        self.ids = np.arange(0)
        self.observation: Any = None
        self.info: Mapping[str, Any] = {}
        self._recorder = recorder
        self._progress = CollectProgressState.unbounded()
        # Episodes that each environment may still give; None where steps are counted.
        self._quotas: np.ndarray | None = None
        self._first = True
        # Of the environments that are ready: whose episode is over.
        self._done = np.zeros(0, bool)
        self._beginning = self.ids
        # The actions that parked environments were not sent.
        self._parked: dict[int, Any] = {}
        self._left: tuple[int, np.ndarray] | None = None

    # Calls

    def enter(self, progress: CollectProgressState, resets: Resets) -> None:
        """Begin a call; episodes go on unless somebody else has used the recorder since."""
        self._progress = progress
        goal = progress.goal
        self._quotas = None if goal.episodes is None else even_shares(goal.episodes, self.num_envs)
        recorder, left = self._recorder, self._left
        untouched = (
            left is not None
            and recorder.whole
            and left[0] == recorder.recording.state.tick
            and np.array_equal(left[1], recorder.in_flight.mask)
        )
        if resets.anew or not untouched:
            self._first = True
            self._parked.clear()

    def leave(self, complete: bool) -> int:
        """End a call; count the episodes that go on."""
        state = self._recorder.recording.state
        self._left = None if self._quotas is not None else (state.tick, self._recorder.in_flight.mask.copy())
        running = state.open_envs(np.arange(self.num_envs))
        return int(np.count_nonzero(state.begun[running] < state.tick))

    # Steps

    def reset_ended(self) -> Sequence[int]:
        """Reset all at first; later the pool does it."""
        if self._first:
            self._recorder.drain()
            self._recorder.async_reset()
            self._receive()
            self._first = False
        beginning, self._beginning = self._beginning, self._beginning[:0]
        return beginning  # type: ignore[return-value]

    def step(self, action: Any, columns: Mapping[str, Any]) -> Taken:
        """Send actions to the environments that are ready, and receive those that are ready next."""
        wanted = np.ones(len(self.ids), bool) if self._quotas is None else self._quotas[self.ids] > 0
        logged = np.flatnonzero(wanted & ~self._done)
        if columns and len(logged):
            self._recorder.log(self.ids[logged], **_rows(columns, logged))
        self._send(_arrays(action), wanted)
        before = self._recorder.transitions
        result = self._receive()
        steps = self._recorder.transitions - before
        return Taken(steps, self._recorder.recording.ended or (), *result[1:4])

    def _send(self, action: Any, wanted: np.ndarray) -> None:
        """Send actions to the wanted environments, and to parked ones where a batch would not fill up."""
        in_flight = self._recorder.in_flight
        if wanted.all() or in_flight.batch_size is None:
            self._recorder.send(action, self.ids)
        else:
            rows = np.flatnonzero(wanted)
            if len(rows):
                self._recorder.send(map_leaves(lambda leaf: leaf[rows], action), self.ids[rows])
            for row in np.flatnonzero(~wanted):
                kept = map_leaves(lambda leaf, row=row: leaf[row : row + 1].copy(), action)
                self._parked[int(self.ids[row])] = kept
        for env in list(self._parked)[: in_flight.missing]:
            self._recorder.send(self._parked.pop(env), np.array([env]))

    def _receive(self) -> tuple:
        result = self._recorder.recv()
        infos = result[-1]
        self.ids = np.array(infos["env_id"], np.int64)
        self.observation, self.info = result[0], infos
        self._done = np.logical_or(to_numpy(result[2]), to_numpy(result[3]))
        self._beginning = self.ids[_fresh(result)]
        if self._quotas is not None:
            self._use_quotas(self._quotas)
        return result

    def _use_quotas(self, quotas: np.ndarray) -> None:
        ended = self._recorder.recording.ended
        if ended is not None:
            quotas[ended.env_index[ended.lengths > 0]] -= 1
        full = self.ids[quotas[self.ids] == 0]
        if len(full):
            self._recorder.mute(full)

    def summaries(self, ended: Any) -> list[EpisodeSummary]:
        """Return the recorder's records of ended episodes."""
        return self._recorder.recording.calls.summaries(ended)


class PoolActor(Actor):
    """Asks a policy for the actions of the environments that are ready."""

    def __init__(self, policy: PolicyConfig, batch: PoolBatch, space: gymnasium.Space) -> None:
        sample = _Samples(policy.seed, batch, space).draw if policy.policy is None else None
        super().__init__(policy, space, space, batch.size, sample=sample)
        self._batch = batch

    def act(self, observation: Any, info: Mapping[str, Any], state: Any) -> tuple[Any, dict[str, Any], Any]:
        """See `Actor.act`; the batch is that of the environments that are ready."""
        self._size = len(self._batch.ids)
        return super().act(observation, info, state)


class _Samples:
    """Random actions; with a seed each environment draws its own, whatever order they get ready in."""

    def __init__(self, seed: int | None, batch: PoolBatch, space: gymnasium.Space) -> None:
        self._batch = batch
        self._space = space
        self._spaces = [Sample(space, derived_seed(seed, env)).space for env in range(batch.num_envs)]

    def draw(self, observation: Any, info: Mapping[str, Any], state: Any) -> PolicyOutput:
        """Return a batch of actions."""
        singles = [self._spaces[env].sample() for env in self._batch.ids.tolist()]
        actions = concatenate(self._space, singles, create_empty_array(self._space, len(singles)))
        return PolicyOutput(actions, state=state)


def check_pool_resets(resets: Resets) -> None:
    """Refuse what a pool cannot be reset with.

    Raises:
        InvalidArgumentError: there are a seed or options.
    """
    for name, value in (("seed", resets.seed), ("options", resets.options)):
        if value is not None:
            raise InvalidArgumentError(
                f"{name}={value!r}: a pool takes no {name} when it is reset. Pass it where the pool is made, "
                "as in envpool.make(..., seed=0); policy_seed= seeds the policy."
            )


def _fresh(result: tuple) -> np.ndarray:
    """Return which rows of a batch are resets."""
    return np.asarray(to_numpy(result[-1]["elapsed_step"])) == 0


def _rows(value: Any, rows: np.ndarray) -> Any:
    """Return some rows of columns."""
    if isinstance(value, Mapping):
        return {key: _rows(part, rows) for key, part in value.items()}
    return [value[row] for row in rows] if isinstance(value, list | tuple) else value[rows]


def _arrays(action: Any) -> Any:
    """Return a batch of actions as a nest of arrays, by dicts and tuples."""
    action = to_numpy(action)
    return np.asarray(action) if isinstance(action, list) else action
