"""The loop: reset, act, step, count, until the goal is reached or the caller stops it.

batch.observation -> actor (policy, hooks) -> batch.step -> recorder
                        ^ memory (recurrent state)  -> tally, hooks, display

`Batch` is its view of an environment: a batch of one or many, with a recorder behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...store.errors import InvalidArgumentError
from ...store.journal.episodes import Ends
from ..recorders.callbacks import EpisodeSummary
from ..rows.arrivals import LiveEpisode
from .actor import Actor
from .display import Display, StopSignal
from .goal import CollectProgressState, Resets
from .memory import Memory, PoolMemory
from .team_actor import TeamActor


@dataclass(frozen=True)
class Taken:
    """Result of one step of a batch.

    Attributes:
        steps: transitions that were recorded.
        ended: recorded episodes that ended with the step; of a vector environment in columns. Empty where
            the progress defers ends.
        reward, terminated, truncated: as the environment gave them.
    """

    steps: int
    ended: Sequence[LiveEpisode] | Ends
    reward: Any
    terminated: Any
    truncated: Any


class Batch(Protocol):
    """An environment, or many, whose steps are recorded."""

    #: How many environments; None for a single one, whose values have no batch axis.
    size: int | None
    #: What the policy is given next. The environment's own objects.
    observation: Any
    info: Mapping[str, Any]

    def enter(self, progress: CollectProgressState, resets: Resets) -> None:
        """Begin a call: record until `progress` reaches its goal."""
        ...

    def reset_ended(self) -> Sequence[int]:
        """Reset environments whose episode has ended; return those whose next action begins an episode."""
        ...

    def step(self, action: Any, columns: Mapping[str, Any]) -> Taken:
        """Take one step with the environment's action; `columns` are recorded beside it."""
        ...

    def deferred_ends(self) -> Iterable[Ends]:
        """Return ended episodes that no step has reported; none by default."""
        return ()

    def leave(self, complete: bool) -> int:
        """End a call, and return the number of running episodes.

        Args:
            complete: whether the goal is reached. With `episodes`, running episodes are then discarded.
        """
        ...

    def summaries(self, ended: Any) -> list[EpisodeSummary]:
        """Return the summaries of ended episodes for a hook, in the form of `Taken`."""
        ...


# After so many turns deferred ends are counted, so that they do not pile up.
_DEFERRED_TURNS = 1024


@dataclass(frozen=True)
class CollectStep:
    """One step of the environment, or of the whole vector environment, as the hook `on_step` sees it.

    The values are the environment's and the policy's own objects: copy what you keep. Of several agents they
    are mappings by agent. Of a pool, what came back is the next batch, of the environments
    `next_info["env_id"]`.

    Attributes:
        observation, info: the policy's input.
        action: the environment's action.
        policy: values recorded beside it, by key.
        reward, terminated, truncated: returned by the environment.
        next_observation, next_info: returned by the environment.
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
    def has_callbacks(self) -> bool:
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
        progress: the goal and the counts so far.
        hooks: hooks and display.
        stop: set when an early end is requested.
        render: called after every step.
    """

    batch: Batch
    actor: Actor | TeamActor
    memory: Memory | PoolMemory
    progress: CollectProgressState
    hooks: Hooks
    stop: StopSignal
    render: Callable[[], None] | None = None

    def run(self) -> None:
        """Step until the goal is reached, or until Ctrl-C."""
        progress, stop, display = self.progress, self.stop, self.hooks.display
        try:
            turns = 0
            while not progress.reached and not stop.asked:
                self._turn()
                turns += 1
                if turns % _DEFERRED_TURNS == 0:
                    self._count_deferred()
                if display.due:
                    self._report()
        except KeyboardInterrupt:
            stop.ask()
        self._count_deferred()
        if display.wanted:
            display.show(progress.report())

    def _report(self) -> None:
        self._count_deferred()
        self.hooks.display.show(self.progress.report())

    def _count_deferred(self) -> None:
        """Count deferred episode ends."""
        for ended in self.batch.deferred_ends():
            self.progress.tally.add(ended)

    def _turn(self) -> None:
        batch, memory = self.batch, self.memory
        beginning = batch.reset_ended()
        if len(beginning):
            memory.renew(beginning)
        seen = batch.observation, batch.info
        action, columns, memory.state = self.actor.act(*seen, memory.state)
        taken = batch.step(action, columns)
        self._count(taken)
        if self.render is not None:
            self.render()
        if self.hooks.on_step is not None:
            self.hooks.on_step(self._seen_step(seen, action, columns, taken))

    def _count(self, taken: Taken) -> None:
        tally = self.progress.tally
        tally.steps += taken.steps
        if taken.ended:
            tally.add(taken.ended)
            if self.hooks.on_episode is not None:
                for episode in self.batch.summaries(taken.ended):
                    self.hooks.on_episode(episode)

    def _seen_step(
        self, seen: tuple[Any, Mapping[str, Any]], action: Any, columns: Mapping[str, Any], taken: Taken
    ) -> CollectStep:
        tally = self.progress.tally
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
