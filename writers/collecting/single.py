"""A single environment, recorded by a `Recorder`, as a batch of one without a batch axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...store.segments.episode_columns import Ends
from ..buffers.arrivals import LiveEpisode
from ..recorders.callbacks import EpisodeSummary
from ..recorders.recorder import Recorder
from .batch import Taken
from .goal import CollectProgressState
from .resets import Resets

_NONE: tuple[int, ...] = ()
_FIRST = (0,)


class SingleBatch:
    """Steps a recorder, and resets it where an episode has ended.

    Args:
        recorder: the recorder. What was done with it meanwhile is seen in `enter`.
    """

    size: int | None = None

    def __init__(self, recorder: Recorder) -> None:
        self.observation: Any = None
        self.info: Mapping[str, Any] = {}
        self._recorder = recorder
        self._resets = Resets()
        # The number of the episode that the next reset begins.
        self._number = 0
        # The episode that goes on, and its length when the last call ended; None if a reset comes next.
        self._live: LiveEpisode | None = None
        self._length = 0
        self._beginning = False

    def enter(self, course: CollectProgressState, resets: Resets) -> None:
        """Begin a call; an episode goes on unless somebody else has stepped the recorder since."""
        running = self._recorder.running
        untouched = running is self._live and running is not None and running.length == self._length
        if resets.anew or not untouched:
            self._live = None
        if resets.anew:
            self._number = 0
        self._resets = resets

    def settle(self) -> Sequence[int]:
        """Reset if an episode has ended."""
        if self._live is None:
            seed, options = self._resets.at(self._number)
            self.observation, self.info = self._recorder.reset(seed=seed, options=options)
            self._number += 1
            self._live = self._recorder.episode
            return _FIRST
        if self._beginning:
            self._beginning = False
            return _FIRST
        return _NONE

    def catch_up(self) -> Taken | None:
        """Nothing is ever left."""
        return None

    def step(self, action: Any, columns: Mapping[str, Any]) -> Taken:
        """Step the recorder."""
        recorder, live = self._recorder, self._live
        assert live is not None  # settle comes first
        before = live.length
        if columns:
            recorder.log(**columns)
        self.observation, reward, terminated, truncated, self.info = recorder.step(action)
        ended: Sequence[LiveEpisode] = ()
        running = recorder.running
        if running is not live:
            ended = (live,) if live.length else ()
            # An environment that resets itself within the step has begun the next episode already.
            self._live = running
            if self._resets.per_episode and (terminated or truncated):
                self._live = None
            self._beginning = self._live is not None
        return Taken(live.length - before, ended, reward, terminated, truncated)

    def ended_late(self) -> Iterable[Ends]:
        """None: each step tells."""
        return ()

    def leave(self, complete: bool) -> int:
        """End a call. A single environment never has a surplus episode."""
        live = self._live
        self._length = live.length if live is not None else 0
        return int(self._length > 0)

    def summaries(self, ended: Any) -> list[EpisodeSummary]:
        """Return the recorder's records of ended episodes."""
        return [self._recorder.summary(episode) for episode in ended]
