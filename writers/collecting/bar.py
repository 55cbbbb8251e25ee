"""Progress of a collection: a bar on standard error, or the caller's own function, a few times a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...store.progress import check_progress, terminal_bar

_PAUSE = 0.1


@dataclass(frozen=True)
class CollectProgress:
    """Progress of a collection.

    Attributes:
        done, total: of what was asked for: transitions or episodes.
        steps, episodes: recorded so far.
        return_sum: of the returns of these episodes; of all objectives together where there are several.
        seconds: since the start.
    """

    done: int
    total: int
    steps: int
    episodes: int
    return_sum: float
    seconds: float

    @property
    def return_mean(self) -> float | None:
        """Mean return so far; None without an episode."""
        return self.return_sum / self.episodes if self.episodes else None

    @property
    def steps_per_second(self) -> float:
        """Transitions per second so far."""
        return self.steps / self.seconds if self.seconds > 0 else 0.0


Tell = Callable[[CollectProgress], Any]


class Display:
    """Output of progress: none, a bar, or a function.

    Args:
        progress: False, True for a bar (drawn only on a terminal), or a function of a `CollectProgress`.

    Raises:
        InvalidArgumentError: it is something else.
    """

    def __init__(self, progress: bool | Tell) -> None:
        check_progress(progress, "a CollectProgress")
        self.wanted = progress is not False
        self._tell: Tell | None = None if isinstance(progress, bool) else progress
        self._bar: _Bar | None = _Bar() if progress is True else None
        self._next = 0.0

    def __enter__(self) -> Display:
        """Show the bar."""
        if self._bar is not None:
            self._bar.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.progress.stop()

    @property
    def due(self) -> bool:
        """True if the next report is due."""
        return self.wanted and time.monotonic() >= self._next

    def tell(self, state: CollectProgress) -> None:
        """Show how far it is."""
        self._next = time.monotonic() + _PAUSE
        if self._tell is not None:
            self._tell(state)
        if self._bar is not None:
            self._bar.update(state)


class _Bar:
    def __init__(self) -> None:
        from rich.progress import TextColumn

        self.progress = terminal_bar(TextColumn("{task.fields[words]}"))
        self._task = self.progress.add_task("Collecting", total=None, words="")

    def update(self, state: CollectProgress) -> None:
        words = f"{state.steps:,} steps  {state.episodes:,} episodes"
        if state.return_mean is not None:
            words += f"  return {state.return_mean:,.2f}"
        words += f"  {state.steps_per_second:,.0f} steps/s"
        self.progress.update(self._task, completed=state.done, total=state.total, words=words)
