"""`episodelake explore`: open a store in the browser, on this machine alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..output.grid import clean
from ..output.page import Page
from .opening import open_store_at, split_version

if TYPE_CHECKING:
    from ...explorer.server import Address

_EXPOSED = (
    "Warning: the page listens on {host}, so other machines can reach it. Anyone with the address and its "
    "token can read the store and write new stores below the current folder, and the traffic is not "
    "encrypted. An SSH tunnel to 127.0.0.1 is safer."
)


def open_explorer(
    path: str,
    storage: Sequence[str] | None,
    host: str,
    port: int | None,
    *,
    browser: bool,
    token: str | None,
) -> None:
    """Serve the explorer until Ctrl-C; see `episodelake explore`."""
    if sys.stderr.isatty():
        # Loading the server may take seconds.
        print(f"Opening {clean(path)} ...", file=sys.stderr, flush=True)
    # Imported where it runs: no other command needs it.
    from ...explorer.server import Options, check_packages, serve

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
