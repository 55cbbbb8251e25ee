"""The loop: settle, act, step, count, until it is enough or somebody asks for the end.

batch.observation -> actor (policy, hooks) -> batch.step -> recorder
                        ^ memory (recurrent state)  -> tally, hooks, display
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...store.errors import InvalidArgumentError
from ..recorders.callbacks import EpisodeSummary
from .actor import Actor
from .bar import Display
from .batch import Batch, Taken
from .goal import CollectProgressState
from .interrupts import StopSignal
from .memory import Memory, PoolMemory
from .team_actor import TeamActor

# After so many turns episodes are counted that were not told of, so that they do not pile up.
_LATEST = 1024


@dataclass(frozen=True)
class CollectStep:
    """One step of the environment, or of the whole vector environment, as the hook `on_step` sees it.

    The values are the environment's and the policy's own objects: copy what you keep. Of several agents they
    are mappings by agent. Of a pool, what came back is the next batch, of the environments
    `next_info["env_id"]`.

    Attributes:
        observation, info: what the policy was given.
        action: what the environment was given.
        policy: what was recorded beside it, by key.
        reward, terminated, truncated: what the environment gave back.
        next_observation, next_info: what the environment gave back.
        recorded: how many transitions of this step were recorded; at most the number of environments.
        steps, episodes: how many this call has recorded so far, this step included.
    """

    observation: Any
    info: Mapping[str, Any]
    action: Any
    policy: Mapping[str, Any]
    reward: Any
    terminated: Any
    truncated: Any
    next_observation: Any
    next_info: Mapping[str, Any]
    recorded: int
    steps: int
    episodes: int


OnStep = Callable[[CollectStep], Any]
OnEpisode = Callable[[EpisodeSummary], Any]


@dataclass(frozen=True)
class Hooks:
    """Observers of a collection: hooks on a step and on an episode's end, the display of progress, and the
    pause after each rendered step.

    Raises:
        InvalidArgumentError: a hook cannot be called.
    """

    on_step: OnStep | None = None
    on_episode: OnEpisode | None = None
    display: Display = field(default_factory=lambda: Display(False))
    render: float | None = None

    @property
    def hooks(self) -> bool:
        """True if a hook is called for steps or episodes."""
        return self.on_step is not None or self.on_episode is not None

    def __post_init__(self) -> None:
        for name in ("on_step", "on_episode"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise InvalidArgumentError(
                    f"{name} is {type(value).__name__}, which cannot be called; expected a function or None."
                )


@dataclass
class Loop:
    """Everything that takes part in a call of `collect`.

    Attributes:
        batch: the environments and their recorder.
        actor: from observations to actions.
        memory: the recurrent state.
        course: what is wanted and how far it is.
        watching: hooks and display.
        stop: whether somebody asked for the end.
        render: called after every step.
    """

    batch: Batch
    actor: Actor | TeamActor
    memory: Memory | PoolMemory
    course: CollectProgressState
    watching: Hooks
    stop: StopSignal
    render: Callable[[], None] | None = None

    def run(self) -> None:
        """Go on until it is enough, or until Ctrl-C."""
        course, stop, display = self.course, self.stop, self.watching.display
        try:
            turns = 0
            while not course.reached and not stop.asked:
                self._turn()
                turns += 1
                if turns % _LATEST == 0:
                    self._count_late()
                if display.due:
                    self._tell()
        except KeyboardInterrupt:
            stop.ask()
        self._count_late()
        if display.wanted:
            display.tell(course.progress())

    def _tell(self) -> None:
        self._count_late()
        self.watching.display.tell(self.course.progress())

    def _count_late(self) -> None:
        """Count the episodes that steps ended without telling."""
        for ended in self.batch.ended_late():
            self.course.tally.add(ended)

    def _turn(self) -> None:
        batch, memory = self.batch, self.memory
        late = batch.catch_up()
        if late is not None:
            self._count(late)
            return
        beginning = batch.settle()
        if len(beginning):
            memory.renew(beginning)
        seen = batch.observation, batch.info
        action, columns, memory.state = self.actor.act(*seen, memory.state)
        taken = batch.step(action, columns)
        self._count(taken)
        if self.render is not None:
            self.render()
        if self.watching.on_step is not None:
            self.watching.on_step(self._seen_step(seen, action, columns, taken))

    def _count(self, taken: Taken) -> None:
        tally = self.course.tally
        tally.steps += taken.steps
        if taken.ended:
            tally.add(taken.ended)
            if self.watching.on_episode is not None:
                for episode in self.batch.summaries(taken.ended):
                    self.watching.on_episode(episode)

    def _seen_step(
        self, seen: tuple[Any, Mapping[str, Any]], action: Any, columns: Mapping[str, Any], taken: Taken
    ) -> CollectStep:
        tally = self.course.tally
        return CollectStep(
            observation=seen[0],
            info=seen[1],
            action=action,
            policy=columns,
            reward=taken.reward,
            terminated=taken.terminated,
            truncated=taken.truncated,
            next_observation=self.batch.observation,
            next_info=self.batch.info,
            recorded=taken.steps,
            steps=tally.steps,
            episodes=tally.episodes,
        )
