"""One call of `collect` in one process: the recorder, the loop, and what to do when it ends."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ...store.handle import OpenStore
from .actor import PolicyConfig
from .batch import Batch
from .goal import CollectProgressState, Goal
from .interrupts import StopSignal
from .loop import Hooks, Loop
from .recorders import (
    AnyRecorder,
    RecordingOptions,
    batch_of,
    check_asked,
    check_own,
    is_recorder,
    is_source,
    make,
    opened,
    player_of,
    release,
)
from .rendering import check_render_mode, renderer
from .resets import Resets
from .stats import CollectStats


@dataclass
class RecorderResumeState:
    """Position of a recorder between two calls.

    Attributes:
        batch: its environments, with the observations in hand.
        state: the recurrent state in hand.
    """

    batch: Batch
    state: Any = None


@dataclass(frozen=True)
class Collection:
    """The task of a call of `collect`.

    Attributes:
        goal: how much.
        acting: how actions come about.
        watching: hooks and display.
        resets: seeds and options of the resets.
        stop: who may ask for the end.
    """

    goal: Goal
    acting: PolicyConfig
    watching: Hooks
    resets: Resets
    stop: StopSignal = field(default_factory=StopSignal)

    def run(self, env_or_envs: Any, store: OpenStore, recording: RecordingOptions) -> CollectStats:
        """Collect; see `collect` for what is raised."""
        with self.stop, self.watching.display:
            if is_recorder(env_or_envs):
                return self.fitted(env_or_envs, store)._with_own(env_or_envs, store, recording)
            made = is_source(env_or_envs)
            env = make(env_or_envs) if made else env_or_envs
            try:
                return self.fitted(env, store).with_new(opened(env, store, recording), store)
            finally:
                if made:
                    env.close()

    def fitted(self, env: Any, store: OpenStore) -> Collection:
        """Return the same for an environment, or its recorder.

        Raises:
            InvalidArgumentError: it cannot be played or reset as asked, or not be rendered.
            SpaceMismatchError: an agent's spaces are not the store's.
        """
        check_asked(env, store, self.acting, self.resets)
        if self.watching.render is not None:
            check_render_mode(env)
        return replace(self, resets=self.resets.fitted(env, self.goal))

    def _with_own(self, recorder: AnyRecorder, store: OpenStore, recording: RecordingOptions) -> CollectStats:
        """Collect with a recorder of the caller, and go on where its last collection ended."""
        check_own(recorder, store, recording)
        recorder.session.check_usable()
        if recorder.collection is None:
            recorder.collection = RecorderResumeState(batch_of(recorder))
        course, unfinished = self._play(recorder, recorder.collection)
        if self.stop.asked:
            recorder.seal()
        return self._stats(course, recorder, store, unfinished)

    def with_new(self, recorder: AnyRecorder, store: OpenStore) -> CollectStats:
        """Collect with a recorder that lives for this call only."""
        try:
            course, unfinished = self._play(recorder, RecorderResumeState(batch_of(recorder)))
        finally:
            recorder.detach()
            release(recorder)
        return self._stats(course, recorder, store, unfinished)

    def _play(self, recorder: AnyRecorder, standing: RecorderResumeState) -> tuple[CollectProgressState, int]:
        """Run the loop; the course it took, and how many episodes are running."""
        batch = standing.batch
        actor, memory = player_of(recorder, batch, self.acting)
        memory.kept = standing.state
        course = CollectProgressState(self.goal, batch.size or 1, late=not self.watching.hooks)
        render = renderer(recorder.env, self.watching.render)
        batch.enter(course, self.resets)
        complete = False
        unfinished = 0
        try:
            Loop(batch, actor, memory, course, self.watching, self.stop, render).run()
            complete = course.reached
        finally:
            unfinished = batch.leave(complete)
            standing.state = memory.kept
        return course, unfinished

    def _stats(
        self, course: CollectProgressState, recorder: AnyRecorder, store: OpenStore, unfinished: int
    ) -> CollectStats:
        return course.tally.stats(
            store.handle.manifest.reward_shape,
            unfinished=unfinished,
            interrupted=self.stop.asked,
            run_ids=(recorder.run_id,),
        )
