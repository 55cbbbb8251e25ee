"""Progress, rendering and Ctrl-C during a collection.

Progress goes to a bar on standard error, or to the caller's own function, a few times a second. The first
Ctrl-C ends a collection after the current step, the second at once.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from time import sleep
from types import FrameType
from typing import Any

import numpy as np

from ...store.common.arguments import expect
from ...store.common.progress import check_progress, lines_instead, terminal_bar
from ...store.errors import InvalidArgumentError
from ..recorders.pool_recorder import is_pool

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


Callback = Callable[[CollectProgress], Any]


class Display:
    """Output of progress: none, a bar, or a function.

    Args:
        progress: False, True for a bar (without a terminal a line every 10 s), or a function of a
            `CollectProgress`.

    Raises:
        InvalidArgumentError: it is something else.
    """

    def __init__(self, progress: bool | Callback) -> None:
        check_progress(progress, "a CollectProgress")
        self.wanted = progress is not False
        self._callback: Callback | None = None if isinstance(progress, bool) else progress
        self._bar: _Bar | None = _Bar() if progress is True else None
        self._next = 0.0

    def __enter__(self) -> Display:
        """Show the bar."""
        if self._bar is not None:
            self._bar.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.progress.stop()

    @property
    def due(self) -> bool:
        """True if the next report is due."""
        return self.wanted and time.monotonic() >= self._next

    def show(self, state: CollectProgress) -> None:
        """Show the progress."""
        self._next = time.monotonic() + _PAUSE
        if self._callback is not None:
            self._callback(state)
        if self._bar is not None:
            self._bar.update(state)


class _Bar:
    def __init__(self) -> None:
        from rich.progress import TextColumn

        self.progress = terminal_bar(TextColumn("{task.fields[words]}"))
        self._print = lines_instead(self.progress)
        self._task = self.progress.add_task("Collecting", total=None, words="")

    def update(self, state: CollectProgress) -> None:
        words = f"{state.steps:,} steps  {state.episodes:,} episodes"
        if state.return_mean is not None:
            words += f"  return {state.return_mean:,.2f}"
        words += f"  {state.steps_per_second:,.0f} steps/s"
        self.progress.update(self._task, completed=state.done, total=state.total, words=words)
        self._print(f"Collecting: {words}")


def checked_pause(render: Any) -> float | None:
    """Return the seconds to wait after each rendered step; None for no rendering.

    Raises:
        InvalidArgumentError: it is neither a bool nor a finite number of at least 0.
    """
    if render is None or isinstance(render, bool | np.bool_):
        return 0.0 if render else None
    valid = isinstance(render, int | float | np.number) and 0 <= render < math.inf
    expect(valid, "render", render, "True, False, or the seconds to wait after each step, at least 0")
    return float(render)


def check_render_mode(env: Any) -> None:
    """Refuse an environment that cannot be rendered.

    Raises:
        InvalidArgumentError: it is a pool, or has no render mode.
    """
    if is_pool(env):
        raise InvalidArgumentError(
            f"render was given, but {type(env).__name__} is a pool, whose environments are stepped in "
            "threads of their own. Collect from a single environment to watch the policy."
        )
    if getattr(env, "render_mode", None) is None:
        raise InvalidArgumentError(
            f"render was given, but {env} has no render mode. Make the environment with one, such as "
            'gymnasium.make(id, render_mode="human").'
        )


def renderer(env: Any, pause: float | None) -> Callable[[], None] | None:
    """Return a function that renders an environment and waits; None for no rendering."""
    if pause is None:
        return None

    def render() -> None:
        env.render()
        if pause:
            sleep(pause)

    return render


class StopSignal:
    """A request to stop the collection.

    While its `with` block runs in the main thread, and Python's own handler of SIGINT is in place, the first
    Ctrl-C only sets `asked`: nothing is torn, and the environment stands where the recording ends. A second
    one raises KeyboardInterrupt, for an environment or a policy that hangs.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def ask(self) -> None:
        """Ask for the end, as Ctrl-C does."""
        self.asked = True

    def __enter__(self) -> StopSignal:
        """Take the signal over."""
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, *_: object) -> None:
        """Give it back."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
