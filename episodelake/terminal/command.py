"""How commands behave: their groups in the help, their examples, their errors and exit statuses.

`command` adds a function to the program as typer does, with its place in the help and its examples. Exit
statuses: 0 done; 1 failed, or different; 2 called wrongly; 130 ended by Ctrl-C; 141 the reader of the output
closed it.

The help and the shell's completion load this module and `commands/`, and must be quick. So these import the
rest of the library only in the body of a function.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from ..store.errors import EpisodelakeError

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130
#: The status that shells give to programs ended by SIGPIPE.
PIPE_CLOSED = 141

#: The groups of commands, in the order of the help.
LOOK = "Look at episodes"
CHECK = "Compare and check"
KEEP = "Look after a store"
EXCHANGE = "Import and export"
BEGIN = "Begin"
PANELS = (LOOK, CHECK, KEEP, EXCHANGE, BEGIN)

Function = TypeVar("Function", bound=Callable[..., Any])

EXAMPLES = """\
episodelake demo                                  record something to look at
episodelake ls data/cartpole --sort episode_return --descending
episodelake sql data/cartpole "SELECT end_reason, count(*) FROM episodes GROUP BY 1"

Exit statuses: 0 done, 1 failed or different, 2 called wrongly, 130 interrupted,
141 the reader of the output has gone.
Shell completion: episodelake --install-completion"""


def failure(message: str, status: int = FAILED) -> typer.Exit:
    """Report an error, and return the exception that ends the command."""
    from .output.page import report_error

    report_error(message)
    return typer.Exit(status)


@contextlib.contextmanager
def _flushed_output() -> Iterator[None]:
    """Flush standard output at the end of the block, and end the command if that fails.

    A closed pipe is no error to report. Later output is discarded, since Python would flush again at exit and
    print a traceback.
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
        # The library has errors of its own for its files.
        if isinstance(error, EpisodelakeError) or error.errno not in (
            errno.ENOSPC,
            errno.EDQUOT,
            errno.EFBIG,
        ):
            raise
        _discard_output()
        raise failure(
            f"Could not write to standard output: {error.strerror}. The output is incomplete."
        ) from error


def _discard_output() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class ReportingGroup(TyperGroup):
    """Runs a command and reports its errors in one message instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error of Episodelake, of a query or of the system ends it with its status."""
        try:
            with _flushed_output():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise failure("Interrupted.", INTERRUPTED) from None
        except Exception as error:
            message = _message(error)
            if message is None:
                raise
            # 1 means "different" for `diff`.
            raise failure(message, WRONG_USAGE if ctx.invoked_subcommand == "diff" else FAILED) from error

    def make_context(self, *words: Any, **settings: Any) -> Any:
        """Parse the command line; `--help` prints here already."""
        with _flushed_output():
            return super().make_context(*words, **settings)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under the headings of their groups."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        shown = [(name, found) for name, found in commands if found is not None and not found.hidden]
        width = max(len(name) for name, _ in shown)
        panels: dict[str, list[tuple[str, str]]] = {
            panel: [] for panel in (LOOK, CHECK, KEEP, EXCHANGE, BEGIN)
        }
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
        """Write the examples unchanged."""
        write_examples(self.epilog, formatter)


class ExampleCommand(TyperCommand):
    """A command whose help ends with examples."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples unchanged."""
        write_examples(self.epilog, formatter)


def _message(error: Exception) -> str | None:
    """Return the message for an error that is no bug; None for others."""
    if isinstance(error, EpisodelakeError | OSError):
        return str(error)
    # These are loaded if they raised the error.
    package = type(error).__module__.partition(".")[0]
    if package == "polars":
        return f"A file of the store cannot be read: {error}. `episodelake verify` finds it."
    return f"The query failed while it ran: {error}" if package in ("duckdb", "_duckdb") else None


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
    """Return a heading of the help: bold on a terminal that shows colour."""
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return heading if plain else typer.style(heading, bold=True)


def command(
    app: typer.Typer, panel: str, examples: str, name: str | None = None, **settings: Any
) -> Callable[[Function], Function]:
    """Add a command to a program, under a heading of the help, with examples.

    Args:
        app: the program.
        panel: one of `PANELS`.
        examples: command lines, one a line.
        name: of the command; else the function's.
        settings: more of what typer takes.
    """
    return app.command(name, cls=ExampleCommand, epilog=examples, rich_help_panel=panel, **settings)


app = typer.Typer(
    cls=ReportingGroup,
    help="Record reinforcement-learning episodes, query them in SQL, rebuild them exactly.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
