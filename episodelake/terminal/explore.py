"""`episodelake explore`: open a store in the browser, on this machine alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .._store import open_store
from ..readers.explorer.server import Address, Options, check_packages, serve
from .maintenance import StorageOptions, StorePath, storage_options
from .page import Page

explorer = typer.Typer()
_EXPOSED = (
    "Warning: the page listens on {host}, so other machines can reach it. Whoever has the address with its "
    "token can read the store and write new stores below the current folder, and all goes over the network "
    "unencrypted. An SSH tunnel to 127.0.0.1 is safer."
)


@explorer.command()
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
    version: Annotated[
        str | None, typer.Option(help="A version or a tag to look at, instead of following the newest.")
    ] = None,
    storage: StorageOptions = None,
) -> None:
    """Look at a store in the browser: filter episodes, step through them, chart runs, ask in SQL.

    The page reads the store and changes nothing. It follows what is being written. Ctrl-C ends it.
    """
    check_packages()
    chosen = None if version is None else int(version) if version.isdecimal() else version
    store = open_store(path, chosen, storage_options=storage_options(storage))
    page = Page()

    def ready(address: Address) -> None:
        page.line(f"Exploring {store.url}")
        page.line(address.url)
        if address.exposed:
            page.note(_EXPOSED.format(host=host))
        page.note("Ctrl-C ends it.")
        page.console.file.flush()

    options = Options(host, port, token, browser, Path.cwd(), pinned=chosen is not None)
    serve(store, options, ready)
    page.note("The explorer has ended.")
