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
import functools
import inspect
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import typer
from typer.core import TyperGroup

from ..errors import (
    CorruptStoreError,
    EnvUnavailableError,
    EpisodelakeError,
    QueryError,
    StoreNotFoundError,
    UntrustedEnvError,
)
from .result import AsJson, Report

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

#: Advice in place of hints for Python, by the class of the error or of its cause.
_ADVICE = {
    UntrustedEnvError: "If you trust the author of the store, add --trust.",
    EnvUnavailableError: "In Python, replay it in an environment of your own: episode.replay(env).",
    CorruptStoreError: "To leave its episodes out, add --filter \"segment <> 'NAME.parquet'\".",
    QueryError: "`episodelake sql` changes nothing; --output FILE writes the result of a query.",
    StoreNotFoundError: "Check the path, or record stores to look at with `episodelake demo`.",
}
#: What Ctrl-C leaves, by command.
_INTERRUPTED: dict[str, str] = {}

Function = TypeVar("Function", bound=Callable[..., Any])

EXAMPLES = """\
episodelake demo                                  record something to look at
episodelake ls data/cartpole --order-by episode_return --descending
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
            left = _INTERRUPTED.get(ctx.invoked_subcommand, "")
            raise failure(f"Interrupted. {left}".strip(), INTERRUPTED) from None
        except typer.BadParameter as error:
            # What typer puts before the message of a converter.
            error.message = error.message.removeprefix("Value error, ")
            raise
        except Exception as error:
            message = message_of(error)
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
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        width = max(map(len, commands))
        for panel in PANELS:
            rows = [
                (name.ljust(width), each.get_short_help_str(formatter.width))
                for name, each in commands.items()
                if each is not None and getattr(each, "rich_help_panel", None) == panel
            ]
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows)


def message_of(error: Exception) -> str | None:
    """Return the message for an error that is no bug; None for others.

    The hints of the library are for Python; `_ADVICE` has those for a shell.
    """
    if isinstance(error, EpisodelakeError):
        kinds = [kind for kind in _ADVICE if isinstance(error, kind) or isinstance(error.__cause__, kind)]
        advice = f" {_ADVICE[kinds[0]]}" if error.hint and kinds else ""
        return "\n".join([f"{error.problem}{advice}", *getattr(error, "__notes__", ())])
    if isinstance(error, OSError):
        return str(error)
    # These are loaded if they raised the error.
    package = type(error).__module__.partition(".")[0]
    if package == "polars":
        return f"A file of the store cannot be read: {error}. `episodelake verify` finds it."
    return f"The query failed while it ran: {error}" if package in ("duckdb", "_duckdb") else None


def _examples(lines: str) -> str:
    """Return an epilog that the help prints line by line."""
    return "\b\nExamples:\n" + textwrap.indent(lines, "  ").replace("\n\n", "\n\n\b\n")


def command(
    app: typer.Typer,
    panel: str,
    examples: str,
    name: str | None = None,
    interrupted: str = "The store is as it was.",
    **settings: Any,
) -> Callable[[Function], Function]:
    """Add a command to a program, under a heading of the help, with examples.

    A function that returns a `Report` gets the option `--json`, and need not take it.

    Args:
        app: the program.
        panel: one of `PANELS`.
        examples: command lines, one a line.
        name: of the command; else the function's.
        interrupted: what Ctrl-C leaves.
        settings: more of what typer takes.
    """

    def add(function: Function) -> Function:
        app.command(name, epilog=_examples(examples), rich_help_panel=panel, **settings)(_printing(function))
        _INTERRUPTED[name or function.__name__] = interrupted
        return function

    return add


def _printing(function: Callable[..., Any]) -> Callable[..., None]:
    """Return the function of a command that prints its report, with the option `--json` if it has one."""
    signature = inspect.signature(function, eval_str=True)
    parameters = dict(signature.parameters)
    takes_json = "as_json" in parameters
    if signature.return_annotation is Report and not takes_json:
        last = parameters.pop("storage", None)
        parameters["as_json"] = inspect.Parameter(
            "as_json", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=False, annotation=AsJson
        )
        parameters |= {"storage": last} if last else {}

    def run(**given: Any) -> None:
        as_json = given.get("as_json", False) if takes_json else given.pop("as_json", False)
        report = function(**given)
        if report is None:
            return
        from .output.page import print_report

        print_report(report, as_json=as_json)
        if report.error:
            raise failure(report.error)
        if report.status:
            raise typer.Exit(report.status)

    functools.update_wrapper(run, function)
    run.__signature__ = signature.replace(parameters=list(parameters.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters.values()}
    return run


app = typer.Typer(
    cls=ReportingGroup,
    help="Record reinforcement-learning episodes, query them in SQL, rebuild them exactly.",
    epilog=_examples(EXAMPLES),
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
