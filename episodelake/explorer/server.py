"""The explorer's server: finds a port, puts the gate before the page, and runs until it is stopped."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from .. import EpisodeStore
from ..errors import InvalidArgumentError, StoreAccessError
from ..plugin import require
from ..types import Lake
from .gate import LOOPBACK, Gate, new_token

if TYPE_CHECKING:
    from .live.watch import LakeWatch, Watch

#: The default port, if it is free: the address then stays the same from day to day.
USUAL_PORT = 8642
PACKAGES = ("nicegui", "altair", "vl_convert", "PIL")


def serve_explorer(
    opened: EpisodeStore | Lake,
    ready: Callable[[str, bool], None],
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    browser: bool = True,
    exports: Path | None = None,
    pinned: bool = False,
    writable: bool = False,
    framed: bool = False,
) -> None:
    """Serve the page of the explorer until the process is interrupted.

    Args:
        opened: an open store, or a lake.
        ready: called once when the page answers, with its address, whose token opens it, and whether other
            machines can reach it. Of a framed page already when its port is taken: visits wait there.
        host: the address to listen on.
        port: the port; None for the usual one or any that is free, 0 for any.
        token: what opens the page; None for a new one.
        browser: open the page in the browser.
        exports: the folder below which the page may write new stores; None for the current one.
        pinned: show one version, and look for no newer one.
        writable: the page may label episodes.
        framed: pages of this machine may show it in a frame, as a notebook does.

    Raises:
        InvalidArgumentError: the port may not be taken, the host is none, the token is too short.
        StoreAccessError, CorruptStoreError: the store or the lake cannot be read, or the port is in use.
        MissingPackageError: a package is not installed.
    """
    _check_packages()
    token = _checked_token(token)
    listening = listen(host, port)
    with contextlib.closing(listening):
        bound = listening.getsockname()[1]
        url = f"http://{'localhost' if framed else _in_url(host)}:{bound}/?token={token}"
        if framed:
            # The imports below take a second or more; meanwhile a notebook goes on.
            ready(url, not is_loopback(host))
        for package in PACKAGES:
            require(package, "The explorer")
        # pyarrow looks for pandas then: beside a thread that draws, Altair would meet a part of it.
        pa.array([])
        from .live.watch import LakeWatch, Watch

        if isinstance(opened, Lake):
            watch = LakeWatch(opened, writable=writable)
        else:
            watch = Watch(opened, pinned=pinned, writable=writable)
        application = _application(watch, exports or Path.cwd())
        server = _Server(Gate(application, token, bound, hosts_of(host), framed=framed))

        def begun() -> None:
            if not framed:
                ready(url, not is_loopback(host))
            if browser:
                # In a thread, since a browser may start slowly.
                threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

        server.run_on(listening, begun)


def _check_packages() -> None:
    """Refuse to begin without a package; those that are there are imported later."""
    for package in PACKAGES:
        if find_spec(package) is None:
            require(package, "The explorer")


def listen(host: str, port: int | None) -> socket.socket:
    """Take a port.

    Raises:
        InvalidArgumentError: it is in use, may not be taken, or the host is no address of this machine.
    """
    try:
        return _bound(host, USUAL_PORT if port is None else port)
    except OSError as error:
        if port is None and error.errno in (errno.EADDRINUSE, errno.EACCES):
            return _bound(host, 0)
        if error.errno == errno.EADDRINUSE:
            raise StoreAccessError(
                f"Port {port} of {host} is in use, perhaps by another explorer. Choose another port, or "
                "leave --port away to take one that is free."
            ) from error
        if error.errno == errno.EACCES:
            raise StoreAccessError(
                f"Port {port} may not be taken by this user. Choose one above 1023."
            ) from error
        raise InvalidArgumentError(
            f"Cannot listen on {host!r}: {error}. Expected an address of this machine, such as 127.0.0.1."
        ) from error
    except OverflowError as error:
        raise InvalidArgumentError(f"{port} is no port; expected a number from 0 to 65535.") from error


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def hosts_of(host: str) -> tuple[str, ...]:
    """Return the names under which the page may be asked for: those of this machine, as far as they are
    known.
    """
    names = [*LOOPBACK, _in_url(host)]
    if not is_loopback(host):
        own = {socket.gethostname(), socket.getfqdn()}
        with contextlib.suppress(OSError):
            own.update(str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None))
        names += [_in_url(name) for name in sorted(own)]
    return tuple(dict.fromkeys(name.lower() for name in names))


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _checked_token(token: str | None) -> str:
    if token is None:
        return new_token()
    if len(token) < 16 or not all(sign.isascii() and (sign.isalnum() or sign in "-_") for sign in token):
        raise InvalidArgumentError(
            "The token is too easy to guess, or has characters that are not allowed in addresses; expected "
            "at least 16 letters, digits, '-' and '_'. Leave it out to get one."
        )
    return token


class _Server:
    """uvicorn around the application; it announces when it answers, and ends at Ctrl-C without a trace."""

    def __init__(self, application: Any) -> None:
        import uvicorn

        config = uvicorn.Config(
            application,
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
            ws_max_size=8 << 20,
        )
        self._server = uvicorn.Server(config)

    def run_on(self, listening: socket.socket, begun: Callable[[], None]) -> None:
        """Serve on a port until interrupted."""
        server = self._server
        startup = server.startup

        async def announced(sockets: list[socket.socket] | None = None) -> None:
            await startup(sockets)
            if server.started:
                begun()

        server.startup = announced
        with contextlib.suppress(KeyboardInterrupt):
            server.run([listening])


def _application(watch: Watch | LakeWatch, exports: Path) -> Any:
    # NiceGUI creates a folder for visitors' data; keep it away from the user's files.
    os.environ.setdefault("NICEGUI_STORAGE_PATH", str(Path(tempfile.gettempdir()) / "episodelake-explorer"))
    import fastapi
    from nicegui import ui

    from .page import add_page
    from .pictures.served import add_frames

    application = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    add_page(application, watch, exports)
    add_frames(application)
    ui.run_with(
        application,
        title="Episodelake",
        favicon=_ICON,
        dark=None,
        show_welcome_message=False,
        language="en-US",
        reconnect_timeout=20,
    )
    return application


_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">'
    '<rect width="32" height="32" rx="7" fill="#0f766e"/><circle cx="22" cy="9" r="3" fill="#fff"/>'
    '<path d="M5 19c3.7 0 3.7-3 7.3-3s3.7 3 7.4 3 3.6-3 7.3-3'
    'M5 25c3.7 0 3.7-3 7.3-3s3.7 3 7.4 3 3.6-3 7.3-3" '
    'fill="none" stroke="#fff" stroke-width="2.4" stroke-linecap="round"/></svg>'
)
