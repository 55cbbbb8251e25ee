"""An S3 server on loopback for the tests, and a faulty proxy to stand in front of it.

Both run in processes of their own, started by this very file, so that a client that holds the interpreter's
lock during a request cannot wait for itself. A process ends when its standard input closes, and so with the
test run that started it, however that ends.

    python object_server.py server KIND     the `small` server, `moto`'s, or moto's with users (`guarded`)
    python object_server.py proxy PORT      passes requests on to PORT, or does what rules say
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import http.client
import itertools
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import small_objects
from waiting import PATIENCE, line_of

Action = Literal[
    "answer",
    "lose request",
    "cut request",
    "lose answer",
    "cut answer",
    "spoil answer",
    "stall",
    "forget condition",
]
AFTERWARDS = ("lose answer", "cut answer", "spoil answer", "forget condition")
CONDITION = "If-None-Match"
HOST = "127.0.0.1"
BUCKET = "episodes"
REGION = "us-east-1"
NOT_PASSED_ON = {"connection", "keep-alive", "transfer-encoding"}
BLOCK = 1 << 20
GUARDED = "INITIAL_NO_AUTH_ACTION_COUNT"
# An unguarded server wants to see that somebody signed, and asks no further.
ANYBODY = (
    f"AWS4-HMAC-SHA256 Credential=key/20260101/{REGION}/s3/aws4_request, SignedHeaders=host, Signature=-"
)
ON_PURPOSE = b"<Error><Code>OnPurpose</Code></Error>"


# What the tests use


class Child:
    """A process of this file, spoken to by lines.

    Args:
        arguments: what to run.
        environment: added to the variables of this process.

    Attributes:
        port: where it listens.
    """

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
            text=True,
        )
        self.port = int(self.line())

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return f"http://{HOST}:{self.port}"

    def line(self) -> str:
        """The next line that it prints."""
        found = line_of(self._process)
        assert found, f"the process ended with {self._process.wait(PATIENCE)}"
        return found

    def say(self, line: str) -> None:
        """Send it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Let it end."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(timeout=PATIENCE)

    def storage_options(self, **changes: str) -> dict[str, str]:
        """What clients need to reach it, with some options changed or added."""
        return {
            "aws_endpoint": self.url,
            "aws_access_key_id": "key",
            "aws_secret_access_key": "secret",
            "aws_region": REGION,
            "aws_allow_http": "true",
            **changes,
        }


class ObjectServer(Child):
    """An S3 server with one empty bucket, `BUCKET`, that asks nobody for credentials.

    Args:
        kind: `small` (see `small_objects`), `moto`, or `guarded`: moto checks every signature, against one
            user whose keys are in `storage_options()`.
    """

    def __init__(self, kind: Literal["small", "moto", "guarded"] = "small") -> None:
        # The first four calls of `_admit` are free; all others are checked.
        super().__init__("server", kind, environment={GUARDED: "4"} if kind == "guarded" else None)
        self._keys: dict[str, str] = {}
        if kind == "guarded":
            self._admit()
        else:
            self.request("PUT", f"/{BUCKET}")

    def _admit(self) -> None:
        import boto3

        known = {
            "endpoint_url": self.url,
            "region_name": REGION,
            "aws_access_key_id": "-",
            "aws_secret_access_key": "-",
        }
        boto3.client("s3", **known).create_bucket(Bucket=BUCKET)
        users = boto3.client("iam", **known)
        users.create_user(UserName="laboratory")
        key = users.create_access_key(UserName="laboratory")["AccessKey"]
        statement = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        users.put_user_policy(UserName="laboratory", PolicyName="all", PolicyDocument=policy)
        self._keys = {
            "aws_access_key_id": key["AccessKeyId"],
            "aws_secret_access_key": key["SecretAccessKey"],
        }

    def storage_options(self, **changes: str) -> dict[str, str]:
        """What clients need to reach it, with some options changed or added."""
        return super().storage_options(**{**self._keys, **changes})

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Send a bare request, which needs an unguarded server."""
        connection = http.client.HTTPConnection(HOST, self.port)
        try:
            connection.request(method, path, body, {"Authorization": ANYBODY})
            answer = connection.getresponse()
            content = answer.read()
            assert answer.status in (200, 204), f"{answer.status}: {content[:500]!r}"
            return content
        finally:
            connection.close()

    def read(self, key: str) -> bytes:
        """The bytes of an object."""
        return self.request("GET", f"/{BUCKET}/{key}")

    def write(self, key: str, data: bytes) -> None:
        """Make or replace an object."""
        self.request("PUT", f"/{BUCKET}/{key}", data)

    def remove(self, key: str) -> None:
        """Delete an object."""
        self.request("DELETE", f"/{BUCKET}/{key}")

    def keys(self, prefix: str) -> list[str]:
        """The names of all objects below a prefix, without it, sorted."""
        found: list[str] = []
        token = ""
        while True:
            answer = self.request("GET", f"/{BUCKET}?list-type=2&prefix={prefix}/{token}").decode()
            found += re.findall("<Key>(.*?)</Key>", answer)
            more = re.search("<NextContinuationToken>(.*?)</NextContinuationToken>", answer)
            if more is None:
                return sorted(key.removeprefix(f"{prefix}/") for key in found)
            token = f"&continuation-token={more.group(1)}"


@functools.cache
def shared_server() -> ObjectServer:
    """One server for the whole test run."""
    server = ObjectServer()
    atexit.register(server.close)
    return server


_places = itertools.count()


def new_url() -> str:
    """A URL in the bucket that nothing was written below yet."""
    return f"s3://{BUCKET}/tests/{os.getpid()}-{next(_places)}"


@dataclass(frozen=True)
class Rule:
    """What the proxy does to requests that match.

    Attributes:
        action: `answer` at once with a status, `lose request` (the server never sees it, the connection is
            reset), `cut request` (reset after half of its body), `lose answer` (the server has done it, and
            the connection is reset), `cut answer` (reset after half of its body), `spoil answer` (the
            server has done it, and the status is given instead of its answer), `stall` (nothing is said until
            the client gives up), `forget condition` (the server has done it whatever its headers demand).
        method: a regular expression that the whole method matches.
        path: a regular expression that is found in the path with its query.
        skip: how many matching requests pass before the first that is treated so.
        times: how many are treated so; None for all that follow.
        status: for `answer` and `spoil answer`.
        conditional: whether only requests match that are to be done only if there is no such object.
    """

    action: Action
    method: str = ".*"
    path: str = ""
    skip: int = 0
    times: int | None = 1
    status: int = 503
    conditional: bool = False


@dataclass(frozen=True)
class Request:
    """A request that came to the proxy.

    Attributes:
        method, path: what was asked for.
        action: what a rule had done to it, or "" for a request that was passed on.
        status: what the server or the rule answered; 0 for nothing.
        conditional: whether it was to be done only if there is no such object.
        size: bytes of the answer's body.
    """

    method: str
    path: str
    action: str
    status: int
    conditional: bool
    size: int


class FaultyProxy(Child):
    """Passes requests on to a server, but for those that a rule matches."""

    def __init__(self, server: ObjectServer) -> None:
        super().__init__("proxy", str(server.port))

    def rules(self, *rules: Rule) -> None:
        """Replace all rules, and forget the requests seen so far."""
        self.say(json.dumps([dataclasses.asdict(rule) for rule in rules]))
        self.line()

    def requests(self) -> list[Request]:
        """The requests since the rules were last replaced."""
        self.say("")
        return [Request(*entry) for entry in json.loads(self.line())]

    def touched(self) -> list[Request]:
        """Those of the requests that a rule matched."""
        return [request for request in self.requests() if request.action]

    def bytes_sent(self) -> int:
        """How much was answered since the rules were last replaced."""
        return sum(request.size for request in self.requests())

    def storage_options(self, **changes: str) -> dict[str, str]:
        """What clients need to reach the server by way of this proxy; they give up after a few attempts."""
        patience = {"timeout": "60s", "connect_timeout": "60s", "max_retries": "4", "retry_timeout": "240s"}
        return super().storage_options(**{**patience, **changes})


# What runs in the processes


def serve_objects(kind: str) -> None:
    """Run a server until standard input closes: the small one, moto's, or moto's with users."""
    if kind == "small":
        server: Any = small_objects.server(HOST)
    else:
        from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
        from werkzeug.serving import make_server

        # A guarded server has users besides objects; finding out which of them is meant makes a request slow.
        guarded = kind == "guarded"
        application = DomainDispatcherApplication(create_backend_app) if guarded else create_backend_app("s3")
        MotoRequestHandler.protocol_version = "HTTP/1.1"
        server = make_server(HOST, 0, application, threaded=True, request_handler=MotoRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


class Faults:
    """The rules of the proxy and what it has seen; shared by its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._matched: list[int] = []
        self._seen: list[tuple[Any, ...]] = []

    def replace(self, rules: list[Rule]) -> None:
        """Start anew with other rules."""
        with self._lock:
            self._rules, self._matched, self._seen = rules, [0] * len(rules), []

    def decide(self, method: str, path: str, *, conditional: bool) -> Rule | None:
        """The rule that treats this request, if one does."""
        with self._lock:
            for index, rule in enumerate(self._rules):
                if rule.conditional and not conditional:
                    continue
                if re.fullmatch(rule.method, method) and re.search(rule.path, path):
                    number = self._matched[index] - rule.skip
                    self._matched[index] += 1
                    if number >= 0 and (rule.times is None or number < rule.times):
                        return rule
        return None

    def note(self, *request: Any) -> None:
        """Keep what happened to a request, in the order of the fields of `Request`."""
        with self._lock:
            self._seen.append(request)

    def seen(self) -> list[tuple[Any, ...]]:
        """What happened so far."""
        with self._lock:
            return list(self._seen)


class ProxyHandler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    faults: Faults
    target: int

    def handle_one_request(self) -> None:
        """Treat a request; a client that has gone is no error."""
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _treat(self) -> None:
        rule = self.faults.decide(self.command, self.path, conditional=CONDITION in self.headers)
        action = rule.action if rule else ""
        if rule is None or action in AFTERWARDS:
            status, headers, content = self._pass_on({CONDITION} if action == "forget condition" else set())
            self._note(action, status, len(content))
            if action == "lose answer":
                self._reset()
            if rule is not None and action == "spoil answer":
                self._answer(rule.status, [], ON_PURPOSE)
            else:
                self._answer(status, headers, content, cut=action == "cut answer")
            return
        self._note(action, rule.status if action == "answer" else 0)
        if action == "answer":
            self._body()
            self._answer(rule.status, [], ON_PURPOSE)
        elif action == "stall":
            self._body()
            while self.connection.recv(BLOCK):
                time.sleep(0.01)
            self.close_connection = True
        else:
            if action == "cut request":
                self.rfile.read(int(self.headers.get("Content-Length", 0)) // 2)
            self._reset()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _treat

    def _note(self, action: str, status: int, size: int = 0) -> None:
        conditional = CONDITION in self.headers
        self.faults.note(self.command, self.path, action, status, conditional, size)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def setup(self) -> None:
        """Connect to the server for as long as the client is connected."""
        super().setup()
        self._server = http.client.HTTPConnection(HOST, self.target)

    def finish(self) -> None:
        """Leave the server."""
        self._server.close()
        with contextlib.suppress(OSError):
            super().finish()

    def _pass_on(self, forgotten: set[str]) -> tuple[int, list[tuple[str, str]], bytes]:
        self._server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in NOT_PASSED_ON | {each.lower() for each in forgotten}:
                self._server.putheader(name, value)
        self._server.endheaders(self._body())
        answer = self._server.getresponse()
        return answer.status, answer.getheaders(), answer.read()

    def _answer(
        self, status: int, headers: list[tuple[str, str]], content: bytes, *, cut: bool = False
    ) -> None:
        self.send_response_only(status)
        kept = {name.lower(): value for name, value in headers if name.lower() not in NOT_PASSED_ON}
        if self.command != "HEAD" or "content-length" not in kept:
            kept["content-length"] = str(len(content))
        for name, value in kept.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self._reset()

    def _reset(self) -> None:
        """Close the connection as a machine does that has lost it: no more data, and no farewell."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True
        raise ConnectionAbortedError


class ProxyServer(ThreadingHTTPServer):
    """Many connections, none of which keeps the process alive."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is what this is for."""


def serve_faults(target: int) -> None:
    """Run the proxy until standard input closes. A line replaces the rules, an empty line asks what came."""
    ProxyHandler.faults = Faults()
    ProxyHandler.target = target
    server = ProxyServer((HOST, 0), ProxyHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    for answer in _commands(ProxyHandler.faults):
        print(answer, flush=True)


def _commands(faults: Faults) -> Iterator[str]:
    for line in sys.stdin:
        if line.strip():
            faults.replace([Rule(**entry) for entry in json.loads(line)])
            yield "replaced"
        else:
            yield json.dumps(faults.seen())


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve_objects(sys.argv[2])
    else:
        serve_faults(int(sys.argv[2]))
