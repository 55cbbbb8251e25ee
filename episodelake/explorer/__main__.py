"""The process behind `store.explore()`: takes a request on standard input, answers with the page's address.

It ends when standard input does, and so with the process that began it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from .. import EpisodeStore, lake
from .. import open as open_store
from ..errors import EpisodelakeError, StoreNotFoundError
from ..types import Lake
from .server import serve_explorer


def _opened(request: dict[str, Any]) -> EpisodeStore | Lake:
    """Open the store of a request, or the lake if there is no store."""
    url, options = request["url"], request["storage_options"] or None
    try:
        return open_store(url, version=request["version"], storage_options=options)
    except StoreNotFoundError:
        opened = lake(url, storage_options=options)
        opened.stores()  # an error belongs to the call
        return opened


def _answer(**values: str) -> None:
    print(json.dumps(values), flush=True)


def _end_with_input() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    """Serve the page until standard input ends."""
    request = json.loads(sys.stdin.readline())

    def ready(url: str, exposed: bool) -> None:
        _answer(url=url)
        threading.Thread(target=_end_with_input, daemon=True).start()

    try:
        serve_explorer(
            _opened(request),
            ready,
            port=0,
            browser=request["browser"],
            exports=Path(request["exports"]),
            pinned=request["version"] is not None,
            writable=request["write"],
            framed=True,
        )
    except EpisodelakeError as error:
        _answer(error=str(error), kind=type(error).__name__)


if __name__ == "__main__":
    main()
