"""The `progress` argument of all operations: True for a bar or lines, a function, or False."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .arguments import expect

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

#: Called with how much is done and how much there is to do.
Progress = Callable[[int, int], Any]


def check_progress(progress: object, takes: str) -> None:
    """Refuse a `progress` argument that is neither a bool nor a function.

    Args:
        progress: the argument.
        takes: the arguments of the function, for the message.

    Raises:
        InvalidArgumentError: it is something else.
    """
    valid = isinstance(progress, bool) or callable(progress)
    expect(valid, "progress", progress, f"True for a bar, False, or a function called with {takes}")


def terminal_bar(*columns: Any) -> Bar:
    """Return a bar on standard error with these columns; without a terminal it draws nothing."""
    # Imported where a bar is wanted, so that `import episodelake` does not wait for it.
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    shown = console.is_terminal and not console.is_dumb_terminal
    bars = TextColumn("{task.description}"), BarColumn(), *columns, TimeRemainingColumn()
    return Bar(*bars, console=console, transient=True, disable=not shown)


#: Seconds until a line where no bar is drawn, and between lines. Short calls print none.
_PAUSE = 10.0


def lines_instead(bar: Bar) -> Callable[[str], None]:
    """Return a function that prints a text on standard error now and then, if the bar is not drawn."""
    due = time.monotonic() + _PAUSE

    def show(text: str) -> None:
        nonlocal due
        if bar.disable and time.monotonic() >= due:
            due = time.monotonic() + _PAUSE
            print(text, file=sys.stderr, flush=True)

    return show


@contextlib.contextmanager
def progress_meter(progress: bool | Progress, title: str, unit: str) -> Iterator[Progress]:
    """Yield the function to call with how much is done and how much there is, while the block runs.

    Args:
        progress: the caller's argument: True for a bar (without a terminal a line every 10 s), False for
            nothing, or the function itself.
        title: what the bar says is being done.
        unit: what is counted.

    Raises:
        InvalidArgumentError: `progress` is something else.
    """
    check_progress(progress, "how much is done and how much there is")
    if not isinstance(progress, bool):
        yield progress
    elif not progress:
        yield lambda done, total: None
    else:
        from rich.progress import MofNCompleteColumn, TextColumn

        with terminal_bar(MofNCompleteColumn(), TextColumn(unit)) as bar:
            task = bar.add_task(title, total=None)
            show = lines_instead(bar)

            def report(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total)
                show(f"{title}: {done:,} of {total:,} {unit}")

            yield report
