"""The program `episodelake`: its commands and its entry point."""

from __future__ import annotations

import os
import signal
import sys
from copy import copy
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from typer.models import CommandInfo

from .command import BEGIN, INTERRUPTED, app, command
from .commands import checking, exchanging, keeping, looking, querying, sharing

__all__ = ["app", "checking", "exchanging", "keeping", "looking", "main", "querying", "sharing"]


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


def main() -> None:
    """Run the command line on the process's own arguments."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
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


def _interrupted(number: int, frame: FrameType | None) -> None:
    """End the process while it imports the libraries of a command; afterwards raise KeyboardInterrupt.

    Modules may swallow a KeyboardInterrupt during their import, or print it with a traceback. The handler
    stays installed: restoring Python's own would remove that of Polars, which calls this one.
    """
    if "episodelake.terminal.output.page" not in sys.modules or _is_loading(frame):
        os._exit(INTERRUPTED)
    signal.default_int_handler(number, frame)


def _is_loading(frame: FrameType | None) -> bool:
    """Return whether the function of a command is at one of its imports, which come before its work."""
    importing, commands = False, (__name__, f"{__package__}.commands")
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith(commands):
        importing = frame.f_code.co_filename.startswith("<frozen importlib")
        frame = frame.f_back
    return importing
