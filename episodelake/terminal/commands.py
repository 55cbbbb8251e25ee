"""How commands behave: their groups in the help, their examples, their errors and exit statuses.

`command` adds a function to the program as typer does, with its place in the help and its examples. Exit
statuses: 0 done; 1 it failed, or what was compared differs; 2 called wrongly; 130 ended by Ctrl-C; 141 what
read the output has gone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import duckdb
import polars.exceptions
import typer
from typer.core import TyperCommand, TyperGroup

from ..store.errors import EpisodelakeError
from .page import report_error

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130
#: As the shell says it of programs that a closed pipe ends, by SIGPIPE.
PIPE_CLOSED = 141

#: The groups of commands, in the order of the help.
LOOK = "Look at episodes"
CHECK = "Compare and check"
KEEP = "Look after a store"
BEGIN = "Begin"

Function = TypeVar("Function", bound=Callable[..., Any])


def failure(message: str, status: int = FAILED) -> typer.Exit:
    """Tell an error; what comes back is raised to end the command."""
    report_error(message)
    return typer.Exit(status)


@contextlib.contextmanager
def _output_told() -> Iterator[None]:
    """Write out all that the block prints; end the command where that fails.

    A reader that has gone has what it wanted, and nothing is told. What is printed after a failure goes
    nowhere: Python would else try again at its end, and tell that.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        raise typer.Exit(PIPE_CLOSED) from None
    except OSError as error:
        # The library tells those of its files by errors of its own.
        if isinstance(error, EpisodelakeError) or error.errno not in (
            errno.ENOSPC,
            errno.EDQUOT,
            errno.EFBIG,
        ):
            raise
        _discard_output()
        raise failure(
            f"Could not write to standard output: {error.strerror}. What was written is not whole."
        ) from error


def _discard_output() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class ReportingGroup(TyperGroup):
    """Runs a command and tells its errors in one message instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error of Episodelake, of a query or of the system ends it with its status."""
        try:
            with _output_told():
                return super().invoke(ctx)
        except (EpisodelakeError, OSError) as error:
            raise failure(str(error), _trouble(ctx)) from error
        except polars.exceptions.PolarsError as error:
            told = f"A file of the store cannot be read: {error}. `episodelake verify` tells which."
            raise failure(told, _trouble(ctx)) from error
        except duckdb.Error as error:
            raise failure(f"The query failed while it ran: {error}", _trouble(ctx)) from error
        except KeyboardInterrupt:
            raise failure("Interrupted.", INTERRUPTED) from None

    def make_context(self, *words: Any, **settings: Any) -> Any:
        """Take the command line apart, where help is written already."""
        with _output_told():
            return super().make_context(*words, **settings)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under the headings of their groups."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        shown = [(name, found) for name, found in commands if found is not None and not found.hidden]
        width = max(len(name) for name, _ in shown)
        panels: dict[str, list[tuple[str, str]]] = {panel: [] for panel in (LOOK, CHECK, KEEP, BEGIN)}
        for name, found in shown:
            panel = getattr(found, "rich_help_panel", None)
            panels.setdefault(panel if isinstance(panel, str) else "Commands", []).append(
                (name.ljust(width), found.get_short_help_str(formatter.width))
            )
        for panel, rows in panels.items():
            if rows:
                with _section(formatter, panel):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples as they stand."""
        write_examples(self.epilog, formatter)


class ExampleCommand(TyperCommand):
    """A command whose help ends with examples."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples as they stand."""
        write_examples(self.epilog, formatter)


def _trouble(ctx: Any) -> int:
    """The status of an error; that of `diff` is 2, since 1 says there that something differs."""
    return WRONG_USAGE if ctx.invoked_subcommand == "diff" else FAILED


def _section(formatter: Any, heading: str) -> Any:
    return formatter.section(styled(heading))


def write_examples(text: str | None, formatter: Any) -> None:
    """Write examples below their heading, line by line."""
    if not text:
        return
    with _section(formatter, "Examples"):
        for line in text.splitlines():
            formatter.write(f"{'':>{formatter.current_indent}}{line}".rstrip() + "\n")


def styled(heading: str) -> str:
    """A heading of the help; bold where the help goes to a terminal that shows colour."""
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return heading if plain else typer.style(heading, bold=True)


def command(
    app: typer.Typer, panel: str, examples: str, name: str | None = None, **settings: Any
) -> Callable[[Function], Function]:
    """Add a command to a program, under a heading of the help, with examples.

    Args:
        app: the program.
        panel: one of `LOOK`, `CHECK`, `KEEP`, `BEGIN`.
        examples: command lines, one a line.
        name: of the command; else the function's.
        settings: more of what typer takes.
    """
    return app.command(name, cls=ExampleCommand, epilog=examples, rich_help_panel=panel, **settings)
