"""Recording of several environments: rows of a batch, infos, logged values, begins and ends.

    env -> VectorRecorder or PoolRecorder -> EnvRecording -> BlockRows -> session -> journal

A call of the environment is one transaction: rows are put into the block after those that count, the next
`EnvState` is made, and `commit` makes both count at once.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...store.common.foreign_arrays import to_numpy
from ...store.errors import RecorderStateError
from ...store.journal.episodes import Ends, EpisodeFacts
from ...store.schema import LATE_ROW, RESET_ROW, StepSchema
from ..rows.block_rows import BlockRows
from ..rows.vector_buffer import NO_EPISODE, DynamicBlock, DynamicEntry, VectorBuffer, owned_values
from ..session.session import RunSession
from .callbacks import ENDED_EARLY, EpisodeCallback
from .env_episodes import EnvState, EpisodeCalls, GatheredEnds, StoredEnds
from .observed import ObservedPart
from .plain_steps import PlainSteps
from .vector_values import InfoChoice, LoggedValues, final_value, info_leaves


class EnvRecording:
    """The episodes of `num_envs` environments on their way into a session.

    Attributes:
        session: where rows go.
        observation_space, action_space: the store's.
        num_envs: how many environments.
        infos: the keys of infos that are stored.
        reset_keys: the keys of infos that resets gave; None where it does not matter. See `SameStepInfos`.
        part: the part of observations that is stored; None for all of it.
        sub_envs: the environments, where they are in this process.
        everyone: the indices of all of them.
        plain: steps that are added in the shortest way, if any.
        silent: environments whose episodes are not recorded until the caller resets them.
        ended_early: environments whose episodes ended by a flag that only a step callback set.
        going_on: environments that go on unrecorded after a step callback ended their episodes.
        logged: policy values that were logged since the last call.
        calls: of the episode callback.
    """

    def __init__(
        self,
        session: RunSession[BlockRows],
        schema: StepSchema,
        num_envs: int,
        episode_callback: EpisodeCallback | None,
        infos: InfoChoice,
    ) -> None:
        self.session = session
        self.infos = infos
        self.reset_keys: set[Any] | None = None
        self.part: ObservedPart | None = None
        self.sub_envs: Sequence[Any] = ()
        self.observation_space = schema.observation_space
        self.action_space = schema.action_space
        self.num_envs = num_envs
        self.everyone = np.arange(num_envs)
        self.plain: PlainSteps | None = None
        self._state = EnvState.empty(num_envs, schema.reward_shape)
        self._ended: Ends | None = None
        self._gathered = GatheredEnds()
        self._episodes = self._transitions = 0
        self._pending_lock = threading.Lock()
        self.silent = np.zeros(num_envs, bool)
        self.ended_early: set[int] = set()
        self.going_on: set[int] = set()
        # Whether environments go on whose episodes were discarded.
        self._gave_up = False
        self.calls = EpisodeCalls(session, episode_callback)
        self.logged = LoggedValues(num_envs)
        self._stored = StoredEnds(num_envs)
        self._warned_of_loss = False
        options = session.options
        self._counts = options.flush_steps is not None or options.seals_by_count
        session.rows.end_all = self.end_all
        session.rows.record_pending = self.record_pending

    @property
    def state(self) -> EnvState:
        """The current episodes."""
        self.record_pending()
        return self._state

    @property
    def ended(self) -> Ends | None:
        """The episodes that the last call ended, or None."""
        self.record_pending()
        return self._ended

    @property
    def gathered(self) -> GatheredEnds:
        """The episodes that calls of the environment ended, in order of time."""
        self.record_pending()
        # Another thread may have resolved the steps, and be about to add the result.
        with self._pending_lock:
            return self._gathered

    @property
    def episodes(self) -> int:
        """How many episodes were recorded and have ended."""
        self.record_pending()
        return self._episodes

    @property
    def transitions(self) -> int:
        """How many transitions were recorded."""
        self.record_pending()
        return self._transitions

    def add_transitions(self, count: int) -> None:
        """Count the transitions of a call without ends, before it is committed."""
        self._transitions += count

    def begin_call(self) -> None:
        """Begin a call that has ended no episode so far."""
        self.record_pending()
        self._ended = None

    def block(self) -> VectorBuffer:
        """Return the block to fill by a call that is no plain step; raises as `BlockRows.block`."""
        self.record_pending()
        self.plain = None
        block = self.session.rows.block()
        if (block.count, len(block.begins), len(block.ends)) != block.counted:
            block.drop_uncounted(block.count)
        return block

    # Observations

    def observed(self, observations: Any, count: int) -> Any:
        """Return what is stored of a batch of observations, as numpy."""
        return to_numpy(observations if self.part is None else self.part.each(observations, count))

    def last_observed(self, final: Any, env: int) -> Any:
        """Return what is stored of one environment's last observation, from `final_obs`."""
        if self.part is not None:
            return to_numpy(self.part.final(final, env))
        return final_value(self.observation_space, to_numpy(final), env)

    # Plain steps

    def plain_steps(self, block: VectorBuffer) -> PlainSteps | None:
        """Return where to add plain steps of this block; None while some environment is not recorded."""
        if self.plain is None and self._state.whole and not self.calls.wanted:
            self.plain = PlainSteps(block, self._state)
        return self.plain

    def record_pending(self) -> None:
        """Record the outcome of pending plain steps; any thread may do it."""
        plain = self.plain
        if plain is None:
            return
        # Asked for in any case: its writer has counted the rows before all that is known of them.
        with self._pending_lock:
            # Somebody else may have done it meanwhile, and the block may be in use for other rows by now.
            resolved = plain.resolve(self._state, self.session.next_number) if plain is self.plain else None
            if resolved is None:
                return
            block, before = plain.block, self._state.stopped
            self.session.take_numbers(len(resolved.begins.numbers))
            # An interrupt may have left some that do not count.
            del block.begins[block.counted[1] :], block.ends[block.counted[2] :]
            block.begins.append(resolved.begins)
            block.ends += [*before, resolved.finished]
            self._put(block, resolved.stop, resolved.state)
            self._ended = resolved.ended if len(resolved.ended.table) else None
            self._episodes += resolved.episodes
            self._gathered.add(resolved.finished, resolved.ended)
            self._transitions += resolved.transitions

    # Transactions

    def commit(
        self, block: VectorBuffer, count: int, state: EnvState, envs: np.ndarray | None = None
    ) -> None:
        """Make the rows up to `count` and the state count.

        Args:
            envs: what was logged for these environments is used up; None: for all.
        """
        self._put(block, count, state)
        self.plain = None
        self.logged.use_up(envs)

    def _put(self, block: VectorBuffer, count: int, state: EnvState) -> None:
        # One assignment, which no signal interrupts.
        block.counted, self._state = (count, len(block.begins), len(block.ends)), state

    def interrupted(self) -> None:
        """End every episode after an exception in the middle of a call; keep its recorded rows."""
        block, plain = self.session.rows.current, self.plain
        with self._pending_lock:
            block.drop_uncounted(plain.stop if plain is not None and plain.block is block else block.count)
        self.logged.clear()
        self.ended_early.clear()
        self.going_on.clear()
        self._gave_up = False
        self.end(self.everyone)

    def end_all(self) -> None:
        """End open episodes: `cut`, or by their flags. Values logged last go to the last rows."""
        self.end(self.everyone)
        self.calls.raise_late()

    def end(self, envs: np.ndarray) -> None:
        """End the running episodes of these environments, and all that were stopped before."""
        state = self.state
        open_envs = state.open_envs(envs)
        stopped = [env for ends in state.stopped for env in ends.env_index.tolist()]
        if not len(open_envs) and not stopped:
            return
        block = self.block()
        try:
            ending = np.union1d(open_envs, np.array(stopped, np.int64))
            at = self.late(block, block.count, ending, state)
            ends = (*state.stopped, self.noted(state.ends(open_envs)))
            block.ends += ends
            after = state.copy()
            after.finish()
            after.leave(envs)
            after.forget(ends)
            self.stored(ending, state)
            # Values for environments that go on wait for their next step.
            self.commit(block, at, after, (after.running == NO_EPISODE).nonzero()[0])
        except BaseException:
            block.drop_uncounted(block.count)
            raise

    def discard(self, envs: np.ndarray, *, ended: bool) -> set[int]:
        """Give up the running episodes of these environments, and record no more of them for now.

        Args:
            ended: also those that were stopped; each environment must have an episode.

        Returns:
            The numbers of the discarded episodes.

        Raises:
            RecorderStateError: with `ended`, an environment has no episode; nothing was discarded.
        """
        state = self.state
        given_up = [state.ends(state.open_envs(envs))]
        after = state.copy()
        if ended:
            mine = [np.isin(ends.env_index, envs) for ends in state.stopped]
            given_up += [ends.chosen(mask) for ends, mask in zip(state.stopped, mine, strict=True)]
            after.stopped = tuple(e.chosen(~mask) for e, mask in zip(state.stopped, mine, strict=True))
            missing = np.setdiff1d(envs, np.concatenate([ends.env_index for ends in given_up])).tolist()
            if missing:
                raise RecorderStateError(
                    f"The environments {missing} have no episode to discard: the recorder is paused, none "
                    "has begun, or the last one is stored already. Discard an episode before the next "
                    "reset(), flush() or seal()."
                )
        # Also those whose episode has ended and that are about to restart.
        after.mute(envs)
        block = self.block()
        self._gave_up = True
        dropped = Ends.joined(given_up)
        if dropped is not None:
            self._episodes -= sum(int(np.count_nonzero(ends.lengths)) for ends in given_up[1:])
            self._drop(block, after, dropped)
        self._put(block, block.count, after)
        return set() if dropped is None else set(dropped.numbers.tolist())

    def _drop(self, block: VectorBuffer, state: EnvState, ends: Ends) -> None:
        """Give up episodes: nothing of them is stored."""
        self._transitions -= int(ends.lengths.sum())
        ends.lengths[:] = 0
        block.ends.append(ends)
        state.leave(ends.env_index)
        state.forget((ends,))

    def watch(self, restart: np.ndarray | None) -> None:
        """Keep which environments are about to restart, or wait for a reset, while nothing is recorded."""
        after = self.state.copy()
        after.restart = restart if restart is not None and len(restart) else None
        block = self.block()
        self._put(block, block.count, after)

    def begin(
        self, envs: np.ndarray, facts: Mapping[int, EpisodeFacts] | None = None
    ) -> tuple[VectorBuffer, EnvState]:
        """Start an episode in each of these environments, whose first rows are the next ones of the block."""
        block = self.block()
        self.begun(envs)
        row, stop = block.count, block.count + len(envs)
        state = self.state.copy()
        begins = state.start(self.session.take_numbers(len(envs)), envs, facts)
        block.numbers[row:stop] = begins.numbers
        block.kinds[row:stop] = RESET_ROW
        block.begins.append(begins)
        state.whole = bool((state.running != NO_EPISODE).all())
        return block, state

    def begun(self, envs: np.ndarray) -> None:
        """Note that the environments were reset: their steps are recorded again, or wanted no more."""
        self.ended_early.difference_update(envs.tolist())
        self.going_on.difference_update(envs.tolist())
        self._stored.forget(envs)

    def stored(self, envs: np.ndarray, state: EnvState) -> None:
        """Note that the last observations of these environments take no more values than were logged."""
        # Where an environment goes on unrecorded, its values stay unrecorded with it.
        waiting = np.setdiff1d(envs, list(self.going_on)) if self.going_on else envs
        self._stored.add(waiting, state, self.logged)

    def noted(self, ends: Ends, stop: int | None = None) -> Ends:
        """Count episodes that have just ended, and let the episode callback add its metadata.

        Args:
            ends: the episodes.
            stop: the row of the block after their last ones, where these do not count yet.
        """
        self._ended = ends
        self._episodes += int(np.count_nonzero(ends.lengths))
        self.calls.add_metadata(ends, stop)
        return ends

    def end_call(self) -> None:
        """End a call whose rows are recorded: flush and seal by count, and raise what a callback raised."""
        if self._counts:
            self.record_pending()
            # A flush that failed is tried again where plain steps would not look.
            self.plain = None
            rows = self.session.rows
            rows.end_call(rows.current.count, self._episodes, self._transitions)
        self.calls.raise_late()

    def check_going_on(self, envs: Sequence[int]) -> None:
        """Refuse a step of environments whose episodes a step callback ended by a flag alone.

        Raises:
            RecorderStateError: there are such environments, which were not reset since.
        """
        ended = sorted(self.ended_early.intersection(envs))
        if ended:
            raise RecorderStateError(
                f"{ENDED_EARLY} Call reset() for the environments {ended} before the next step()."
            )

    # Dynamic values

    def log(self, values: Mapping[str, Any], mask: Any) -> None:
        """Keep policy values of the environments in `mask` until the next call.

        Raises:
            RecorderStateError: no environment has an episode, or all those in `mask` have ended and are
                stored.
            SpaceMismatchError: a value has not one entry for each environment.
        """
        state = self.state
        if not (state.numbers != NO_EPISODE).any():
            if self._gave_up:
                return
            raise RecorderStateError("There is no step to log for: call reset() first.")
        paths = self.logged.add(values, mask)
        chosen = np.ones(self.num_envs, bool) if mask is None else np.asarray(to_numpy(mask))
        lost = self._stored.without_row(state, paths) & chosen
        if lost.any():
            self.logged.use_up(lost.nonzero()[0])
            self._refuse_late(lost, everything=not (chosen & ~lost).any())

    def _refuse_late(self, lost: np.ndarray, *, everything: bool) -> None:
        """Raise if no value has a row, else warn once."""
        message = (
            f"The episodes of the environments {lost.nonzero()[0].tolist()} have ended and are stored: their "
            "last observations take no more values. Log these after the step() that ends the episodes, and "
            "before flush(), seal(), reset() or the next recv() of a pool."
        )
        if everything:
            raise RecorderStateError(message)
        if not self._warned_of_loss:
            self._warned_of_loss = True
            warnings.warn(f"{message} The other values are kept.", RuntimeWarning, stacklevel=4)

    def late(self, block: VectorBuffer, row: int, envs: np.ndarray, state: EnvState) -> int:
        """Put what was logged for the last observations of these environments; return the next free row."""
        if not self.logged or not len(envs):
            return row
        envs = self.logged.among(envs)
        stop = row + len(envs)
        block.numbers[row:stop] = state.numbers[envs]
        block.kinds[row:stop] = LATE_ROW
        self.logged.put(block, np.arange(row, stop), envs)
        return stop


def add_infos(
    dynamic: DynamicBlock, infos: Mapping[Any, Any], num_envs: int, rows: np.ndarray, chosen: InfoChoice
) -> None:
    """Add the infos of a vector environment; `rows` has the row of each environment, -1 for none."""
    everywhere = bool((rows >= 0).all())
    chosen.note(infos)
    for path, values, present in info_leaves(infos, num_envs, keys=chosen.keys):
        if present is None and everywhere:
            dynamic.add(DynamicEntry(path, rows, owned_values(values)))
            continue
        here = rows >= 0 if present is None else present & (rows >= 0)
        if here.any():
            dynamic.add(DynamicEntry(path, rows[here], owned_values(values[here])))
