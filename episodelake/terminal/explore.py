"""`episodelake explore`: open a store in the browser, on this machine alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .arguments import StorageOptions, StorePath, open_store_at, split_version
from .commands import LOOK, command
from .grid import clean
from .page import Page

if TYPE_CHECKING:
    from ..readers.explorer.server import Address

EXAMPLES = """\
episodelake explore data/cartpole
episodelake explore data/cartpole@v1.0 --no-browser --port 9000"""
_EXPOSED = (
    "Warning: the page listens on {host}, so other machines can reach it. Whoever has the address with its "
    "token can read the store and write new stores below the current folder, and all goes over the network "
    "unencrypted. An SSH tunnel to 127.0.0.1 is safer."
)


def add_to(app: typer.Typer) -> None:
    """Add the command to the program."""
    command(app, LOOK, EXAMPLES)(explore)


def explore(
    path: StorePath,
    host: Annotated[
        str, typer.Option(help="The address to listen on. Beyond 127.0.0.1, others reach the page too.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="The port; 0 for any that is free.",
            show_default="8642, or any that is free",
        ),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="EPISODELAKE_TOKEN",
            show_envvar=True,
            help="What opens the page; at least 16 letters and digits.",
            show_default="a new one each time",
        ),
    ] = None,
    storage: StorageOptions = None,
) -> None:
    """Explore a store in the browser, on this machine.

    Filter episodes, step through them, chart runs, ask in SQL, export what you chose. The page reads the
    store and changes nothing. It follows what is being written, unless PATH names a version or a tag.
    Ctrl-C ends it.
    """
    if sys.stderr.isatty():
        # What serves the page takes seconds to load on a slow machine, and silence looks like a hang.
        print(f"Opening {clean(path)} ...", file=sys.stderr, flush=True)
    # Imported where it runs: no other command needs it.
    from ..readers.explorer.server import Options, check_packages, serve

    check_packages()
    store = open_store_at(path, storage)
    page = Page()

    def ready(address: Address) -> None:
        page.line(f"Exploring {store.url}")
        page.line(address.url)
        if address.exposed:
            page.note(_EXPOSED.format(host=host))
        page.note("Ctrl-C ends it.")
        page.console.file.flush()

    options = Options(host, port, token, browser, Path.cwd(), pinned=split_version(path)[1] is not None)
    serve(store, options, ready)
    page.note("The explorer has ended.")
