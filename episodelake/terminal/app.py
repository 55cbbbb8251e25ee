"""The command line, `episodelake`: puts the commands together; each family of them has a file of its own.

Every command opens a store with the public API and writes to a `Page`, or JSON. `commands` tells how errors
are told and what exit statuses mean.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from . import (
    differences,
    explore,
    info,
    listing,
    maintenance,
    plotting,
    querying,
    showing,
    statistics,
    versions,
)
from .cache import cache
from .commands import BEGIN, KEEP, ReportingGroup, command
from .page import Page

EXAMPLES = """\
episodelake demo                                  record something to look at
episodelake ls data/cartpole --sort episode_return --descending
episodelake sql data/cartpole "SELECT end_reason, count(*) FROM episodes GROUP BY 1"

Exit statuses: 0 done, 1 failed or different, 2 called wrongly, 130 interrupted,
141 the reader of the output has gone.
Shell completion: episodelake --install-completion"""

app = typer.Typer(
    cls=ReportingGroup,
    help="Record reinforcement-learning episodes, query them in SQL, rebuild them exactly.",
    epilog=EXAMPLES,
    no_args_is_help=True,
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


@command(app, BEGIN, "episodelake demo\nepisodelake demo --path /tmp/lake --episodes 20")
def demo(
    path: Annotated[
        Path, typer.Option(help="Folder for the demo's stores; one of an earlier demo is replaced.")
    ] = Path("episodelake-demo"),
    episodes: Annotated[
        int, typer.Option(min=1, help="Episodes to record per environment and policy.")
    ] = 100,
) -> None:
    """Record real environments, ask in SQL, rebuild and replay."""
    # Imported where it runs: it brings environments that no other command needs.
    from .demo import run_demo

    if not run_demo(Page(tabs=False), path, episodes):
        raise typer.Exit(1)


for family in (
    info,
    listing,
    showing,
    statistics,
    plotting,
    querying,
    explore,
    differences,
    maintenance,
    versions,
):
    family.add_to(app)
app.add_typer(cache, name="cache", rich_help_panel=KEEP)


def main() -> None:
    """The entry point: run the command line on the process's own arguments."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Text that the terminal's encoding lacks is spelled out instead of ending the command.
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="episodelake")
