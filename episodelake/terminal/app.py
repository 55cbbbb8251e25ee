"""The command line: `episodelake demo | info | sql | show | replay`, and what `maintenance` and `cache` add.

Every command opens a store with the public API and writes to a `Page`. Errors of Episodelake's tree become
one message on standard error and exit status 1; a command that is called wrongly ends with status 2.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from importlib.metadata import version
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import duckdb
import typer
from typer.core import TyperGroup

from .._store import open_store
from ..store.errors import EpisodelakeError
from .cache import cache
from .demo import run_demo
from .explore import explorer
from .grid import grid_of
from .maintenance import StorageOptions, StorePath, maintenance, storage_options
from .page import Page, report_error
from .reports import write_episode, write_info, write_replay


class ReportingGroup(TyperGroup):
    """Runs a command and tells its errors in one message instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error of Episodelake, of a query or of the system ends it with status 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (EpisodelakeError, OSError) as error:
            report_error(str(error))
            raise typer.Exit(1) from error
        except duckdb.Error as error:
            report_error(f"The query failed while it ran: {error}")
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=ReportingGroup,
    help="Record reinforcement-learning episodes, query them in SQL, rebuild them exactly.",
    epilog="Begin with: episodelake demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"episodelake {version('episodelake')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    path: Annotated[
        Path, typer.Option(help="Folder for the demo's stores; one of an earlier demo is replaced.")
    ] = Path("episodelake-demo"),
    episodes: Annotated[
        int, typer.Option(min=1, help="Episodes to record per environment and policy.")
    ] = 100,
) -> None:
    """Record real environments, ask in SQL, rebuild and replay."""
    if not run_demo(Page(tabs=False), path, episodes):
        raise typer.Exit(1)


@app.command()
def info(path: StorePath, storage: StorageOptions = None) -> None:
    """Show what a store is and what it holds."""
    write_info(Page(), open_store(path, storage_options=storage_options(storage)))


@app.command()
def sql(
    path: StorePath,
    query: Annotated[
        str,
        typer.Argument(
            metavar="QUERY",
            help="A DuckDB query over the tables runs, episodes, steps and transitions.",
            show_default=False,
        ),
    ],
    limit: Annotated[int, typer.Option(min=0, help="Print at most so many rows; 0 prints all.")] = 100,
    storage: StorageOptions = None,
) -> None:
    """Run an SQL query and print the result.

    Column names with a dot need double quotes: SELECT "info.x" FROM steps.
    Where the output is not a terminal, cells are separated by tabs and numbers are written in full.
    """
    page = Page()
    store = open_store(path, storage_options=storage_options(storage))
    relation = store.sql(query, read_only=True)
    found = (relation.limit(limit) if limit else relation).to_arrow_table()
    page.table(grid_of(found, exact=not page.is_terminal))
    if not limit or found.num_rows < limit:
        return
    rest = relation.aggregate("count(*)").fetchall()[0][0] - found.num_rows
    if rest > 0:
        page.note(f"{rest} more rows; show more with --limit N, all with --limit 0.")


@app.command(context_settings={"ignore_unknown_options": True})
def show(
    path: StorePath,
    episode: Annotated[
        str,
        typer.Argument(
            metavar="EPISODE",
            help="An episode's id, or its position: 0 is the first, -1 the last.",
            show_default=False,
        ),
    ],
    storage: StorageOptions = None,
) -> None:
    """Show one episode: summary, rows and signals."""
    store = open_store(path, storage_options=storage_options(storage))
    write_episode(Page(), store, _episode_key(episode))


@app.command(context_settings={"ignore_unknown_options": True})
def replay(
    path: StorePath,
    episode: Annotated[
        str,
        typer.Argument(
            metavar="EPISODE",
            help="An episode's id, or its position: 0 is the first, -1 the last.",
            show_default=False,
        ),
    ],
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Import the modules that the store names: you trust whoever wrote it."),
    ] = False,
    rtol: Annotated[float, typer.Option(min=0, help="How far numbers may be apart, relatively.")] = 0.0,
    atol: Annotated[float, typer.Option(min=0, help="How far numbers may be apart, absolutely.")] = 0.0,
    storage: StorageOptions = None,
) -> None:
    """Replay one episode in the environment of its run; status 1 if it differs."""
    store = open_store(path, storage_options=storage_options(storage))
    found = store[_episode_key(episode)]
    page = Page()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", RuntimeWarning)
        env = store.make_env(found.run_id, trust=trust)
    for warning in told:
        page.note(str(warning.message))
    with contextlib.closing(env):
        report = found.replay(env, rtol=rtol, atol=atol)
    write_replay(page, report, env)
    if not report.same:
        raise typer.Exit(1)


def _episode_key(text: str) -> int | str:
    """A position if it reads as one, else an id. An id never begins with a hyphen."""
    try:
        return int(text)
    except ValueError:
        if text.startswith("-"):
            raise typer.BadParameter(
                f"{text!r} is neither an option, a position nor an episode id."
            ) from None
        return text


app.add_typer(maintenance)
app.add_typer(explorer)
app.add_typer(cache, name="cache")


def main() -> None:
    """The entry point: run the command line on the process's own arguments."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Text that the terminal's encoding lacks is spelled out instead of ending the command.
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="episodelake")
