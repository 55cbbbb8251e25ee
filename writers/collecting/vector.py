"""A vector environment, recorded by a `VectorRecorder`, in all three autoreset modes.

A batch brings a transition of each environment. With `steps` the call ends with the batch that reaches them.
With `episodes` each environment has a quota of them; one whose quota is full goes on unrecorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...store.common.compatibility import AutoresetMode
from ...store.common.foreign_arrays import to_numpy
from ...store.errors import RecorderStateError
from ...store.journal.episodes import Ends
from ..recorders.callbacks import EpisodeSummary
from ..recorders.vector_recorder import VectorRecorder
from ..rows.arrivals import LiveEpisode
from ..rows.vector_buffer import NO_EPISODE
from .goal import CollectProgressState, Resets, alike, merge_infos
from .loop import Batch, Taken


class VectorBatch(Batch):
    """Steps a recorder of a vector environment.

    Args:
        recorder: the recorder. What was done with it meanwhile is seen in `enter`.

    Attributes:
        size: how many environments.
        observation, info: what the last call of the environment returned.
    """

    def __init__(self, recorder: VectorRecorder) -> None:
        self.size: int | None = recorder.num_envs
        self.observation: Any = None
        self.info: Mapping[str, Any] = {}
        self._recorder = recorder
        self._mode = recorder.autoreset_mode
        self._none = np.arange(0)
        self._progress = CollectProgressState.unbounded()
        # Transitions that were recorded before this call.
        self._before = 0
        self._resets = Resets()
        # Whether all are to be reset next, and the number of the episode that begins next.
        self._first = True
        self._number = 0
        # Environments that reported done in the last step.
        self._done = np.zeros(recorder.num_envs, bool)
        self._any_done = False
        # Transitions of the next step, if all environments are recorded.
        self._acting = recorder.num_envs
        self._all_recorded = False
        # Whose next action is the first of an episode.
        self._beginning = self._none
        self._left: tuple[int, np.ndarray] | None = None

    # Calls

    def enter(self, progress: CollectProgressState, resets: Resets) -> None:
        """Begin a call; episodes go on unless somebody else has stepped or reset the recorder since.

        Raises:
            RecorderStateError: the environment is closed.
        """
        if getattr(self._recorder.env.unwrapped, "closed", False):
            raise RecorderStateError("The vector environment is closed. Make a new one.")
        state = self._recorder.recording.state
        untouched = (
            self._left is not None
            and self._recorder.usable
            and self._left[0] == state.tick
            and np.array_equal(self._left[1], state.numbers)
        )
        self._progress = progress
        self._before = self._recorder.recording.transitions
        self._recorder.recording.gathered.start(wanted=progress.deferred)
        self._resets = resets
        self._look_who_is_recorded()
        if resets.anew:
            self._number = 0
        if resets.anew or not untouched:
            self._first = True

    def leave(self, complete: bool) -> int:
        """End a call; with `episodes`, discard running ones."""
        recording = self._recorder.recording
        recording.gathered.start(wanted=False)
        running = np.flatnonzero(self._running)
        given_up = self._progress.goal.episodes is not None and complete
        if given_up and len(running):
            self._recorder.discard(running)
        # Without the steps of episodes that were given up.
        self._progress.tally.steps = recording.transitions - self._before
        if given_up:
            self._left = None
            return 0
        state = recording.state
        self._left = state.tick, state.numbers
        return int(np.count_nonzero(state.begun[running] < state.tick))

    def _look_who_is_recorded(self) -> None:
        """Decide if every transition is recorded until the call ends, so that no environment is checked."""
        recorder = self._recorder
        self._all_recorded = recorder.records_all and not recorder.recording.silent.any()

    @property
    def _running(self) -> np.ndarray:
        """Bool, shape (num_envs,): whose next transition is to be recorded."""
        state = self._recorder.recording.state
        running = state.running != NO_EPISODE
        if state.restart is not None:
            running[state.restart] = False
        return running

    # Steps

    def reset_ended(self) -> Sequence[int]:
        """Reset all environments at first; later, with autoreset disabled, those whose episode has ended."""
        if self._first:
            return self._reset(np.ones_like(self._done))  # type: ignore[return-value]
        if self._any_done and (self._mode is AutoresetMode.DISABLED or self._resets.per_episode):
            return self._reset(self._done)  # type: ignore[return-value]
        beginning, self._beginning = self._beginning, self._none
        return beginning  # type: ignore[return-value]

    def _reset(self, mask: np.ndarray) -> np.ndarray:
        """Reset some environments; return those that begin, recorded or not."""
        begins = np.flatnonzero(mask)
        if self._resets.per_episode:
            self._reset_each(mask, self._wanted(mask))
        elif self._first:
            self._keep(self._recorder.reset(seed=self._resets.seed, options=self._resets.options))
            self._mute(begins)
        else:
            self._keep(self._recorder.reset(options={"reset_mask": mask}), mask)
            self._mute(begins)
        self._note(np.zeros_like(self._done))
        self._beginning = self._none
        if self._first:
            self._first = False
            self._look_who_is_recorded()
        return begins

    def _wanted(self, mask: np.ndarray) -> np.ndarray:
        """Return those of the environments to be reset whose episodes are to be recorded: indices, int64."""
        begins, progress = np.flatnonzero(mask), self._progress
        return begins if progress.quotas is None else begins[progress.quotas[begins] > 0]

    def _reset_each(self, mask: np.ndarray, wanted: np.ndarray) -> None:
        """Reset with the seeds and options of the episodes that begin; record the wanted ones only."""
        values = [self._resets.at(self._number + index) for index in range(len(wanted))]
        by_env = dict(zip(wanted.tolist(), values, strict=True))
        seeds: list[int | None] = []
        options: list[dict[str, Any] | None] = []
        for env in range(len(mask)):
            # The others are reset together with their neighbours.
            seed, shared = by_env.get(env, (None, options[-1] if options else None))
            seeds.append(seed)
            options.append(shared)
        if self._first and isinstance(self._resets.seed, int):
            seeds = [self._resets.seed + env for env in range(len(mask))]
        given = None if seeds.count(None) == len(seeds) else seeds
        for index, some in enumerate(alike(mask, options)):
            shared = options[int(np.argmax(some))]
            if self._first and index == 0:
                # Gymnasium wants all of them to be reset before some are.
                shared = None if shared is None else dict(shared)
                self._keep(self._recorder.reset(seed=given, options=shared))
            else:
                masked = {**(shared or {}), "reset_mask": some.copy()}
                self._keep(self._recorder.reset(seed=given, options=masked), some)
        self._number += len(wanted)
        unwanted = np.setdiff1d(np.flatnonzero(mask), wanted)
        if len(unwanted):
            self._give_up(unwanted)

    def _keep(self, begun: tuple[Any, Any], mask: np.ndarray | None = None) -> None:
        """Keep the results of a reset for the policy."""
        self.observation, info = begun
        both = isinstance(self.info, Mapping) and isinstance(info, Mapping)
        self.info = info if mask is None or not both else merge_infos(self.info, info, mask)

    def step(self, action: Any, columns: Mapping[str, Any]) -> Taken:
        """Take one step, and record as much of it as is wanted."""
        if columns:
            resetting = self._mode is AutoresetMode.NEXT_STEP and self._any_done
            self._recorder.log(mask=~self._done if resetting else None, **columns)
        # Asking the recorder for running or ended episodes makes it record pending steps: only if needed.
        running = None if self._all_recorded else self._running
        steps = self._acting if running is None else int(np.count_nonzero(running))
        result = self._recorder.step(action)
        self.observation, self.info = result[0], result[4]
        self._note(_flags(result))
        silent = self._progress.deferred or (self._all_recorded and not self._any_done)
        return Taken(steps, () if silent else self._ended(), *result[1:4])

    def _note(self, done: np.ndarray) -> None:
        """Note which environments reported done, and which are at an episode's first observation."""
        if self._any_done and self._mode is AutoresetMode.NEXT_STEP:
            # This step reset those that had reported done before, whatever its flags are.
            self._beginning = np.flatnonzero(self._done)
            done &= ~self._done
        self._any_done = bool(done.any())
        self._acting = len(done)
        if self._any_done and self._mode is AutoresetMode.NEXT_STEP:
            self._acting -= int(np.count_nonzero(done))
        if self._any_done and self._mode is AutoresetMode.SAME_STEP:
            self._beginning = np.flatnonzero(done)
        self._done = done

    def _ended(self) -> Sequence[LiveEpisode] | Ends:
        """Return the episodes that the last step ended, which use up quotas."""
        ended = self._recorder.ended
        if ended is not None and self._progress.quotas is not None:
            self._progress.use_up(ended.env_index[ended.lengths > 0])
            self._mute(ended.env_index)
        return ended or ()

    def _mute(self, envs: np.ndarray) -> None:
        """Record no more of those among these environments whose quota is full."""
        quotas = self._progress.quotas
        if quotas is not None:
            full = envs[quotas[envs] == 0]
            if len(full):
                self._give_up(full)

    def _give_up(self, envs: np.ndarray) -> None:
        """Record nothing of the episodes that these environments begin."""
        self._recorder.discard(envs)
        self._all_recorded = False

    def deferred_ends(self) -> Iterable[Ends]:
        """Return episodes that ended since the last call, where ends are deferred."""
        return self._recorder.recording.gathered.take()

    def summaries(self, ended: Any) -> list[EpisodeSummary]:
        """Return the recorder's records of ended episodes."""
        return self._recorder.recording.calls.summaries(ended)


def _flags(result: tuple) -> np.ndarray:
    """Return which environments say that their episode is over."""
    return np.logical_or(to_numpy(result[2]), to_numpy(result[3]))
