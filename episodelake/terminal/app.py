"""The program `episodelake`: its commands."""

from __future__ import annotations

import sys
from copy import copy
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer
from typer.models import CommandInfo

from .command import BEGIN, app, command
from .commands import checking, exchanging, keeping, looking, querying, sharing

__all__ = ["app", "checking", "exchanging", "keeping", "looking", "querying", "run", "sharing"]


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

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
    path: Annotated[Path, typer.Option(help="A new or empty folder for the demo's stores.")] = Path(
        "episodelake-demo"
    ),
    episodes: Annotated[
        int, typer.Option(min=1, help="Episodes to record per environment and policy.")
    ] = 100,
) -> None:
    """Record real environments, ask in SQL, rebuild and replay."""
    from .output.page import Page
    from .reports.demo import run_demo

    if not run_demo(Page(), path, episodes):
        raise typer.Exit(1)


def run() -> None:
    """Run the command line on the process's own arguments."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Write characters that the terminal's encoding lacks as escapes.
            stream.reconfigure(errors="backslashreplace")
    # typer reads the options of every command that it knows, which takes longer than most of them.
    program = copy(app)
    asked = [each for each in app.registered_commands if _name(each) in sys.argv[1:2]]
    program.registered_commands = asked or app.registered_commands
    program(prog_name="episodelake")


def _name(command: CommandInfo) -> str | None:
    return command.name or (command.callback and command.callback.__name__)
