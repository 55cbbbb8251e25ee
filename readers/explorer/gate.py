"""The gate in front of the page: who has the token gets in, by HTTP and by WebSocket, and nobody else.

The first visit brings the token in the address and gets a cookie instead, so that the token stands in no
bookmark and no referrer. A name in the Host header that is not ours is refused, or a page of a stranger could
reach this one by pointing its own name here; so is a request whose Origin is another page.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
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
    "all that stands behind the question mark.\n"
)
_FOREIGN = "This is not an address of this page.\n"
#: Nothing is loaded from elsewhere, whatever a store's texts say. Vue and Vega compile what they show.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self' {sockets}; frame-ancestors 'none'; base-uri 'self'; "
    "form-action 'self'; object-src 'none'"
)


def new_token() -> str:
    """A token that nobody guesses: 192 random bits."""
    return secrets.token_urlsafe(24)


class Gate:
    """An ASGI application that lets requests with the token through to another.

    Args:
        application: what stands behind the gate.
        token: the token.
        port: where the server listens; cookies of several explorers do not overwrite each other.
        hosts: the names and addresses under which the page may be asked for, without port.
    """

    def __init__(
        self, application: Application, token: str, port: int, hosts: Iterable[str] = LOOPBACK
    ) -> None:
        self._application = application
        self._token = token.encode()
        self._cookie = f"episodelake-{port}"
        self._hosts = {name for host in hosts for name in (host.lower(), f"{host.lower()}:{port}")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        headers = _Headers(scope)
        if headers.get("host").lower() not in self._hosts or not self._own_origin(headers):
            await _refuse(scope, send, 421, _FOREIGN)
            return
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
        if scope["type"] == "http" and scope["path"] == "/" and self._fits(given):
            await _answer(send, 303, [("location", "/"), ("set-cookie", self._set_cookie())], "")
            return
        if not self._fits(self._kept(headers.get("cookie"))):
            await _refuse(scope, send, 403, _REFUSED)
            return
        await self._application(scope, receive, self._guarded(send, headers.get("host")))

    def _fits(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token)

    def _own_origin(self, headers: _Headers) -> bool:
        origin = headers.get("origin")
        return not origin or urlsplit(origin).netloc.lower() == headers.get("host").lower()

    def _kept(self, text: str) -> str:
        """The token in the cookies of a request."""
        try:
            found = SimpleCookie(text).get(self._cookie)
        except CookieError:
            return ""
        return found.value if found else ""

    def _set_cookie(self) -> str:
        return f"{self._cookie}={self._token.decode()}; HttpOnly; SameSite=Lax; Path=/"

    def _guarded(self, send: Send, host: str) -> Send:
        """Answers get headers that keep the browser from reaching elsewhere."""
        policy = _POLICY.format(sockets=f"ws://{host}")
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


class _Headers:
    """The headers of a request, by name in lower case; of several with one name all values."""

    def __init__(self, scope: Scope) -> None:
        self._found: dict[str, list[str]] = {}
        for name, value in scope.get("headers", ()):
            self._found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))

    def get(self, name: str) -> str:
        return "; ".join(self._found.get(name, ()))


async def _refuse(scope: Scope, send: Send, status: int, text: str) -> None:
    if scope["type"] == "websocket":
        # Closing before accepting makes the server answer the handshake with 403.
        await send({"type": "websocket.close", "code": 1008, "reason": text.strip()[:120]})
        return
    await _answer(send, status, [], text)


async def _answer(send: Send, status: int, headers: list[tuple[str, str]], text: str) -> None:
    told = [
        ("content-type", "text/plain; charset=utf-8"),
        ("cache-control", "no-store"),
        ("referrer-policy", "no-referrer"),
    ]
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in (*told, *headers)]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": text.encode()})
