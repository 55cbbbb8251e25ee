"""One call of `collect` in one process: the recorder, the loop, and what to do when it ends.

The recorder is the caller's own, or one that is opened around an environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from ...store.common.arguments import expect, suggest
from ...store.errors import InvalidArgumentError, RecorderStateError
from ...store.schema import OpenStore
from ..recorders.choice import AnyRecorder, TeamOptions, VectorOptions, is_env, made, recorder_of
from ..recorders.env_checks import pettingzoo_api
from ..recorders.pool_recorder import PoolRecorder, is_pool
from ..recorders.recorder import Recorder
from ..recorders.team_recorder import TeamRecorder
from ..recorders.vector_recorder import VectorRecorder
from ..recorders.vector_values import InfoChoice
from ..session.journal import SessionOptions
from .actor import Actor, PolicyConfig
from .display import StopSignal, check_render_mode, renderer
from .goal import CollectProgressState, Goal, Resets
from .loop import Batch, Hooks, Loop
from .memory import Memory, PoolMemory
from .pool import PoolActor, PoolBatch, check_pool_resets
from .single import SingleBatch, TeamBatch
from .stats import CollectStats
from .team_actor import TeamActor, check_team
from .unrecorded import Opened, options_without_store, temporary_store
from .vector import VectorBatch


class RecordingOptions(VectorOptions, TeamOptions, total=False):
    """Options that `collect` passes to the recorder that it opens."""


def check_options(recording: Mapping[str, Any], own: Iterable[str]) -> None:
    """Refuse unknown options and invalid values.

    Args:
        recording: options of the recorder.
        own: names of other arguments of the call.

    Raises:
        InvalidArgumentError: one is unknown, or makes no sense.
    """
    options = RecordingOptions.__annotations__.keys()
    unknown = sorted(recording.keys() - options)
    if unknown:
        raise InvalidArgumentError(
            f"collect knows no option {', '.join(map(repr, unknown))}."
            f"{suggest(unknown[0], [*own, *options], 'collect()')} The options of the recorder are "
            f"{', '.join(options)}."
        )
    SessionOptions(**_disk(recording))
    InfoChoice.of(recording.get("record_infos", True))
    run, metadata = recording.get("run"), recording.get("metadata")
    expect(isinstance(run, str | None), "run", run, "text, a readable name for the run")
    expect(isinstance(metadata, Mapping | None), "metadata", metadata, "a mapping")


def _disk(recording: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that say how to treat the disk."""
    return {key: recording[key] for key in SessionOptions.__annotations__ if key in recording}


def check_store(store: Any) -> None:
    """Refuse what is neither an open store nor None.

    Raises:
        InvalidArgumentError: it is something else.
    """
    expected = "an open store, as episodelake.create and episodelake.open give it, or None to record nothing"
    expect(store is None or hasattr(store, "handle"), "store", store, expected)


def is_recorder(value: Any) -> TypeGuard[AnyRecorder]:
    """Return whether it records already."""
    return isinstance(value, Recorder | VectorRecorder | PoolRecorder | TeamRecorder)


def opened(env: Any, store: OpenStore, recording: RecordingOptions) -> AnyRecorder:
    """Return a recorder around an environment that has none.

    Raises:
        InvalidArgumentError: it is no environment.
        SpaceMismatchError: its spaces are not the store's.
        RecorderStateError: it is closed.
        StoreAccessError: the store cannot be written.
    """
    disk = _disk(recording)
    arguments: dict[str, Any] = {
        **{key: value for key, value in recording.items() if key not in disk},
        "options": SessionOptions(**disk),
    }
    expected = "an environment, a vector environment, a pool, a recorder, an id or spec, or a function"
    expect(is_env(env), "env_or_envs", env, expected)
    return recorder_of(env, store, **arguments)


def check_asked(env: Any, store: OpenStore, policy: PolicyConfig, resets: Resets) -> None:
    """Make sure that a policy and resets fit the kind of an environment, or of its recorder.

    Raises:
        InvalidArgumentError: they do not.
        SpaceMismatchError: an agent's spaces are not the store's.
    """
    if isinstance(env, TeamRecorder) or pettingzoo_api(env) is not None:
        check_team(env, policy, store.handle.schema.groups)
        return
    for name in ("policy", "explore", "map_action", "map_action_inverse"):
        if isinstance(getattr(policy, name), Mapping):
            raise InvalidArgumentError(
                f"{name} is a mapping, which is for the agents of an environment of PettingZoo; this is "
                f"{type(env).__name__}. Pass a function."
            )
    if is_pool(env):
        check_pool_resets(resets)


def check_own(recorder: AnyRecorder, store: OpenStore, recording: Mapping[str, Any]) -> None:
    """Make sure that a recorder of the caller fits the rest of the call.

    Raises:
        InvalidArgumentError: it records into another store; options for a new recorder were given.
        RecorderStateError: it is paused.
    """
    own = recorder.session.store
    if own.layout.journals != store.handle.layout.journals:
        raise InvalidArgumentError(
            f"The recorder records into {own.layout.root}, not into {store.handle.layout.root}. Give "
            "collect the store that the recorder came from."
        )
    if recorder.paused:
        raise RecorderStateError("The recorder is paused: call its resume() before collect().")
    if recording:
        raise InvalidArgumentError(
            f"The options {', '.join(sorted(recording))} belong to the recorder: give them to store.record."
        )


def release(recorder: AnyRecorder) -> None:
    """Leave an environment as others can use it: of a pool, nothing is in flight."""
    if isinstance(recorder, PoolRecorder) and recorder.whole:
        recorder.drain()


def batch_of(recorder: AnyRecorder) -> Batch:
    """Return a recorder as the loop sees it."""
    if isinstance(recorder, VectorRecorder):
        return VectorBatch(recorder)
    if isinstance(recorder, PoolRecorder):
        return PoolBatch(recorder)
    return TeamBatch(recorder) if isinstance(recorder, TeamRecorder) else SingleBatch(recorder)


def player_of(
    recorder: AnyRecorder, batch: Batch, policy: PolicyConfig
) -> tuple[Actor | TeamActor, Memory | PoolMemory]:
    """Return what asks the policy for actions, and what keeps its states."""
    if isinstance(recorder, TeamRecorder):
        return TeamActor(policy, recorder), Memory(None, None)
    if isinstance(batch, PoolBatch):
        space = recorder.session.store.schema.action_space
        return PoolActor(policy, batch, space), PoolMemory(policy.initial_state, batch)
    env: Any = recorder.env
    single_space = env.action_space if batch.size is None else env.single_action_space
    actor = Actor(policy, env.action_space, single_space, batch.size)
    return actor, Memory(policy.initial_state, batch.size)


@dataclass(frozen=True)
class Collection:
    """The task of a call of `collect`.

    Attributes:
        goal: the number of steps or episodes.
        policy: the source of actions.
        hooks: hooks and display.
        resets: seeds and options of the resets.
        stop: set to request an early end.
    """

    goal: Goal
    policy: PolicyConfig
    hooks: Hooks
    resets: Resets
    stop: StopSignal = field(default_factory=StopSignal)

    def run(self, env_or_envs: Any, store: OpenStore | None, recording: RecordingOptions) -> CollectStats:
        """Collect; see `collect` for what is raised."""
        with self.stop, self.hooks.display:
            if is_recorder(env_or_envs):
                # A store without episodes is false.
                store = Opened(env_or_envs.session.store) if store is None else store
                return self.fitted(env_or_envs, store)._with_own(env_or_envs, store, recording)
            with made(env_or_envs) as env:
                if store is not None:
                    return self.fitted(env, store).with_new(opened(env, store, recording), store)
                with temporary_store(env) as store:
                    recorder = opened(env, store, options_without_store(recording))
                    return self.fitted(env, store).with_new(recorder, store).unrecorded()

    def fitted(self, env: Any, store: OpenStore) -> Collection:
        """Return the same for an environment, or its recorder.

        Raises:
            InvalidArgumentError: it cannot be played or reset as asked, or not be rendered.
            SpaceMismatchError: an agent's spaces are not the store's.
        """
        check_asked(env, store, self.policy, self.resets)
        if self.hooks.render is not None:
            check_render_mode(env)
        return replace(self, resets=self.resets.fitted(env, self.goal))

    def _with_own(self, recorder: AnyRecorder, store: OpenStore, recording: RecordingOptions) -> CollectStats:
        """Collect with a recorder of the caller, and go on where its last collection ended."""
        check_own(recorder, store, recording)
        recorder.session.check_usable()
        progress, unfinished = self._play(recorder, *(recorder.collection or (batch_of(recorder), None)))
        if self.stop.asked:
            recorder.seal()
        return self._stats(progress, recorder, store, unfinished)

    def with_new(self, recorder: AnyRecorder, store: OpenStore) -> CollectStats:
        """Collect with a recorder that lives for this call only."""
        try:
            progress, unfinished = self._play(recorder, batch_of(recorder), None)
        finally:
            # It refers to the recorder, which would keep its environment alive.
            recorder.collection = None
            recorder.detach()
            release(recorder)
        return self._stats(progress, recorder, store, unfinished)

    def _play(self, recorder: AnyRecorder, batch: Batch, state: Any) -> tuple[CollectProgressState, int]:
        """Run the loop; return its progress, and the number of running episodes."""
        actor, memory = player_of(recorder, batch, self.policy)
        memory.kept = state
        progress = CollectProgressState(self.goal, batch.size or 1, deferred=not self.hooks.has_callbacks)
        render = renderer(recorder.env, self.hooks.render)
        batch.enter(progress, self.resets)
        complete = False
        unfinished = 0
        try:
            Loop(batch, actor, memory, progress, self.hooks, self.stop, render).run()
            complete = progress.reached
        finally:
            unfinished = batch.leave(complete)
            recorder.collection = batch, memory.kept
        return progress, unfinished

    def _stats(
        self, progress: CollectProgressState, recorder: AnyRecorder, store: OpenStore, unfinished: int
    ) -> CollectStats:
        return progress.tally.stats(
            store.handle.manifest.reward_shape,
            unfinished=unfinished,
            interrupted=self.stop.asked,
            run_id=recorder.run_id,
        )
