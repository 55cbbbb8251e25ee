"""Access control in front of the page, for HTTP and WebSocket.

The first visit brings the token in the address and gets a cookie with another secret, so that the token is in
no bookmark and no referrer. Browsers send cookies to every port of a host, so the page lies below a random
path and the cookie belongs to that path: a server on another port is sent neither.

The gate also refuses unknown names in the Host header (DNS rebinding) and requests whose Origin is another
page.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_REFUSED = (
    "This page needs the token that `episodelake explore` printed. Open the address that it printed, with "
    "everything after the question mark.\n"
)
#: With an empty icon, or the browser would ask for one outside of the page's path.
_WELCOME = (
    '<!doctype html><title>Episodelake</title><link rel="icon" href="data:,">'
    '<meta http-equiv="refresh" content="0;url={path}/">\n'
)
_FOREIGN = "This is not an address of this page.\n"
#: Nothing is loaded from elsewhere, whatever a store's texts say. Vue and Vega compile what they show.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self' {sockets}; frame-ancestors {frames}; base-uri 'self'; "
    "form-action 'self'; object-src 'none'"
)

_FRAMES = "http://localhost:* http://127.0.0.1:*"


def new_token() -> str:
    """Return a secret of 192 random bits, as text for addresses and cookies."""
    return secrets.token_urlsafe(24)


class Gate:
    """An ASGI application that serves another one below a random path, to browsers that have the cookie.

    Args:
        application: the application behind the gate.
        token: the token; `/?token=...` sets the cookie and leads to the page.
        port: where the server listens; cookies of several explorers do not overwrite each other.
        hosts: the names and addresses under which the page may be asked for, without port.
        framed: pages of this machine may show the page in a frame. Browsers then send the cookie if the
            other page has the same host name.
    """

    def __init__(
        self,
        application: Application,
        token: str,
        port: int,
        hosts: Iterable[str] = LOOPBACK,
        *,
        framed: bool = False,
    ) -> None:
        self._application = application
        self._token = token
        self._secret = new_token()
        self._path = f"/{new_token()}"
        self._frames = _FRAMES if framed else "'none'"
        self._cookie = f"episodelake-{port}"
        self._hosts = {name for host in hosts for name in (host.lower(), f"{host.lower()}:{port}")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        host, origin, cookies = (_header(scope, name) for name in ("host", "origin", "cookie"))
        own = not origin or urlsplit(origin).netloc.lower() == host.lower()
        if host.lower() not in self._hosts or not own:
            await _refuse(scope, send, 421, _FOREIGN)
            return
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
        if scope["type"] == "http" and scope["path"] == "/" and _equal(given, self._token):
            await self._welcome(scope, send)
            return
        below = _equal(scope["path"][: len(self._path) + 1], f"{self._path}/")
        if not below or not _equal(self._kept(cookies), self._secret):
            await _refuse(scope, send, 403, _REFUSED)
            return
        inner = {**scope, "root_path": scope.get("root_path", "") + self._path}
        await self._application(inner, receive, self._guarded(send, host))

    async def _welcome(self, scope: Scope, send: Send) -> None:
        """Set the cookie and lead to the page.

        The answer is a document and not a redirect: where a page of another site has the link, a browser
        would follow a redirect without the cookie, which is strict.
        """
        cookie = f"{self._cookie}={self._secret}; HttpOnly; SameSite=Strict; Path={self._path}"
        page = _WELCOME.format(path=self._path)
        await _answer(scope, send, 200, page, "html", {"set-cookie": cookie})

    def _kept(self, text: str) -> str:
        """Return the secret in the cookies of a request."""
        try:
            cookie = SimpleCookie(text).get(self._cookie)
        except CookieError:
            return ""
        return cookie.value if cookie else ""

    def _guarded(self, send: Send, host: str) -> Send:
        """Answers get headers that keep the browser from reaching elsewhere."""
        policy = _POLICY.format(sockets=f"ws://{host}", frames=self._frames)
        added = [
            (b"content-security-policy", policy.encode("latin-1")),
            (b"referrer-policy", b"no-referrer"),
            (b"x-content-type-options", b"nosniff"),
            (b"cross-origin-opener-policy", b"same-origin"),
            (b"cross-origin-resource-policy", b"same-origin"),
        ]

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        return guarded


def _equal(given: str, expected: str) -> bool:
    """Compare texts in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def _header(scope: Scope, name: str) -> str:
    """Return a header of a request; of several with one name all values, which no single one equals."""
    from starlette.datastructures import Headers

    return "; ".join(Headers(scope=scope).getlist(name))


async def _refuse(scope: Scope, send: Send, status: int, text: str) -> None:
    if scope["type"] == "websocket":
        # Closing before accepting makes the server answer the handshake with 403.
        await send({"type": "websocket.close", "code": 1008, "reason": text.strip()[:120]})
        return
    await _answer(scope, send, status, text, "plain", {})


async def _answer(
    scope: Scope, send: Send, status: int, text: str, kind: str, headers: Mapping[str, str]
) -> None:
    from starlette.responses import Response

    always = {"cache-control": "no-store", "referrer-policy": "no-referrer"}
    answer = Response(text, status, {**always, **headers}, f"text/{kind}")
    await answer(scope, _nothing, send)


async def _nothing() -> MutableMapping[str, Any]:
    return {"type": "http.disconnect"}
