"""The explorer's gate and its start: who gets in, which port it takes, bad input."""

import asyncio
import email.message
import http.client
import http.cookiejar
import re
import shutil
import socket
import subprocess
import sys
import time
import types
import urllib.request
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from gymnasium.spaces import Discrete
from typer.testing import CliRunner

import episodelake as el
from effort import looped
from episodelake.explorer import server
from episodelake.explorer.gate import Gate, new_token
from episodelake.explorer.server import USUAL_PORT, hosts_of, is_loopback, listen, serve_explorer
from episodelake.terminal.app import app
from waiting import PATIENCE


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """A store without episodes."""
    path = tmp_path_factory.mktemp("gate") / "store"
    return el.create(path, observation_space=Discrete(2), action_space=Discrete(2))


# The gate

TOKEN = "0123456789abcdef-XYZ"


async def _inside(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"inside"})


def gate() -> Gate:
    """A gate before an application that answers everything."""
    return Gate(_inside, TOKEN, 8000)


def ask(
    gate: Gate, path: str = "/", query: str = "", kind: str = "http", **headers: str
) -> list[MutableMapping[str, Any]]:
    """What a gate answers to one request."""
    sent: list[MutableMapping[str, Any]] = []
    given = {"host": "127.0.0.1:8000", **headers}
    scope = {
        "type": kind,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    asyncio.run(gate(scope, receive, send))
    return sent


def welcomed(gate: Gate) -> tuple[str, str]:
    """The path of the page and the cookie that the first visit gets."""
    (start, body) = ask(gate, query=f"token={TOKEN}")
    assert start["status"] == 200
    (path,) = re.findall(r"url=(/[^/]+/)\"", body["body"].decode())
    return path, dict(start["headers"])[b"set-cookie"].decode()


def test_first_visit_gets_a_cookie() -> None:
    """The token leads to the page and gets a cookie that other sites, ports and scripts cannot use."""
    there = gate()
    path, cookie = welcomed(there)
    pair, *attributes = cookie.split("; ")
    assert attributes == ["HttpOnly", "SameSite=Strict", f"Path={path.rstrip('/')}"]
    assert len(path) >= 32 and pair.startswith("episodelake-8000=") and len(pair) >= 48
    assert TOKEN not in cookie and TOKEN not in path and path.strip("/") not in pair
    (start, body) = ask(there, path, cookie=pair)
    assert (start["status"], body["body"]) == (200, b"inside")
    assert b"default-src 'self'" in dict(start["headers"])[b"content-security-policy"]
    assert welcomed(gate()) != (path, cookie)


def test_other_ports_get_nothing() -> None:
    """A browser that has visited the page sends a server on another port of the host no cookie."""
    there = gate()
    path, cookie = welcomed(there)
    jar = http.cookiejar.CookieJar()
    request = urllib.request.Request(f"http://127.0.0.1:8000/?token={TOKEN}")
    answer = email.message.Message()
    answer["Set-Cookie"] = cookie
    jar.extract_cookies(types.SimpleNamespace(info=lambda: answer), request)  # pyright: ignore[reportArgumentType]
    sent = {}
    for url in (f"http://127.0.0.1:8000{path}", "http://127.0.0.1:9999/", "http://127.0.0.1:9999/vega.js"):
        asked = urllib.request.Request(url)
        jar.add_cookie_header(asked)
        sent[url] = asked.get_header("Cookie")
    assert list(sent.values()) == [cookie.partition(";")[0], None, None]


@looped(
    ("request_", "status"),
    [
        ({}, 403),
        ({"query": "token="}, 403),
        ({"query": f"token={TOKEN[:-1]}"}, 403),
        ({"query": "token=%C3%A9%00"}, 403),
        ({"path": "/vega.js", "query": f"token={TOKEN}"}, 403),
        ({"path": "{path}", "query": f"token={TOKEN}"}, 403),
        ({"path": "{path}", "cookie": f"episodelake-8000={TOKEN}"}, 403),
        ({"path": "{path}", "cookie": "episodelake-8001={secret}"}, 403),
        ({"path": "{path}", "cookie": "episodelake-8000={secret}x"}, 403),
        ({"path": "{path}", "cookie": "episodelake-8000="}, 403),
        ({"path": "{path}", "cookie": "\x00;=;;episodelake-8000"}, 403),
        ({"path": "/", "cookie": "{pair}"}, 403),
        ({"path": "/vega.js", "cookie": "{pair}"}, 403),
        ({"path": "/_nicegui_ws/socket.io/", "cookie": "{pair}"}, 403),
        ({"path": "//{path}", "cookie": "{pair}"}, 403),
        ({"path": "{path}", "cookie": "{pair}", "host": "evil.example"}, 421),
        ({"path": "{path}", "cookie": "{pair}", "host": "127.0.0.1:8001"}, 421),
        ({"path": "{path}", "cookie": "{pair}", "host": ""}, 421),
        ({"path": "{path}", "cookie": "{pair}", "origin": "http://localhost:9999"}, 421),
        ({"path": "{path}", "cookie": "{pair}", "origin": "http://127.0.0.1:9999"}, 421),
        ({"path": "{path}", "cookie": "{pair}", "origin": "null"}, 421),
    ],
)
def test_refused(request_: dict[str, str], status: int) -> None:
    """Without the path, the cookie, the name and the origin nothing is reached, by HTTP or WebSocket."""
    there = gate()
    path, cookie = welcomed(there)
    pair = cookie.partition(";")[0]
    filled = {"path": path, "pair": pair, "secret": pair.partition("=")[2]}
    given = {name: text.format(**filled) for name, text in request_.items()}
    (start, body) = ask(there, **given)
    assert start["status"] == status and body["body"] != b"inside"
    (closed,) = ask(there, kind="websocket", **given)
    assert closed["type"] == "websocket.close"


def test_let_in_by_websocket() -> None:
    """With the cookie a WebSocket from the page itself is let in."""
    there = gate()
    path, cookie = welcomed(there)
    headers = {"cookie": f"a=b; {cookie.partition(';')[0]}", "origin": "http://127.0.0.1:8000"}
    sent = ask(there, f"{path}_nicegui_ws/socket.io/", kind="websocket", **headers)
    assert sent == [{"type": "websocket.accept"}]


def test_tokens() -> None:
    """Tokens differ and are long; one that is easy to guess is refused."""
    assert new_token() != new_token() and len(new_token()) >= 32
    with pytest.raises(el.errors.InvalidArgumentError, match="token"):
        serve_explorer(None, lambda url, exposed: None, token="short")


# Starting


def test_port_in_use() -> None:
    """A port that is taken is named, with a way out; without a wish another one is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(el.errors.StoreAccessError, match=f"Port {port} .* in use"):
            listen("127.0.0.1", port)
    with listen("127.0.0.1", None) as first, listen("127.0.0.1", None) as second:
        ports = {first.getsockname()[1], second.getsockname()[1]}
    assert len(ports) == 2 and USUAL_PORT > 1023


def test_hosts() -> None:
    """Names of this machine are known where the page listens on all of them; strangers' are not."""
    assert is_loopback("127.0.0.1") and not is_loopback("0.0.0.0") and not is_loopback("example.org")
    assert set(hosts_of("127.0.0.1")) == {"127.0.0.1", "localhost", "[::1]"}
    assert socket.gethostname().lower() in hosts_of("0.0.0.0")
    with pytest.raises(el.errors.InvalidArgumentError, match=r"no\.such\.host"):
        listen("no.such.host.invalid", 0)


def test_missing_package(monkeypatch: pytest.MonkeyPatch, store: el.EpisodeStore) -> None:
    """Without what the page is made of, the command says what to install."""
    monkeypatch.setitem(sys.modules, "nicegui", None)
    result = CliRunner().invoke(app, ["explore", str(store.path), "--no-browser"])
    assert result.exit_code == 1
    assert "episodelake[explore]" in result.stderr and "nicegui" in result.stderr


def test_command_without_store(tmp_path: Path) -> None:
    """A path without a store ends with status 1 and says so."""
    result = CliRunner().invoke(app, ["explore", str(tmp_path / "nothing"), "--no-browser"])
    assert result.exit_code == 1 and "no store" in result.stderr


def test_command_with_taken_port(store: el.EpisodeStore) -> None:
    """A port in use ends the command with status 1 and a hint."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["explore", str(store.path), "--no-browser", "--port", str(port)])
    assert result.exit_code == 1 and "in use" in result.stderr and "--port" in result.stderr


def test_command_with_a_lake(store: el.EpisodeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of stores is served as a lake; one without a store, or a version of one, is none."""
    served: list[object] = []
    monkeypatch.setattr(server, "serve_explorer", lambda opened, *_, **__: served.append(opened))
    shutil.copytree(store.path, tmp_path / "lake/one")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    assert CliRunner().invoke(app, ["explore", str(tmp_path / "lake"), "--no-browser"]).exit_code == 0
    assert CliRunner().invoke(app, ["explore", str(tmp_path / "lake/one"), "--no-browser"]).exit_code == 0
    lake, one = served
    assert isinstance(lake, el.types.Lake) and list(lake) == ["one"]
    assert isinstance(one, el.EpisodeStore)
    for name in ("empty", "file", "lake@1"):
        result = CliRunner().invoke(app, ["explore", str(tmp_path / name), "--no-browser"])
        assert result.exit_code == 1 and re.search("no store|not a store", result.stderr)
    assert len(served) == 2


# In a notebook


def visit(url: str) -> http.client.HTTPResponse:
    """The answer behind the gate: with the path and the cookie that the first visit gets."""
    with urllib.request.urlopen(url, timeout=PATIENCE) as welcome:
        (path,) = re.findall(r"url=(/[^/]+/)\"", welcome.read().decode())
        cookie = welcome.headers["set-cookie"].partition(";")[0]
    root = url.partition("/?")[0]
    return urllib.request.urlopen(
        urllib.request.Request(f"{root}{path}", headers={"Cookie": cookie}), timeout=PATIENCE
    )


def refuses(url: str) -> bool:
    """Whether nothing answers at an address any more."""
    try:
        urllib.request.urlopen(url, timeout=PATIENCE).close()
    except OSError:
        return True
    return False


@pytest.mark.further
def test_an_explorer_in_a_process_of_its_own(tmp_path: Path) -> None:
    """`store.explore()` shows the page in a frame; `stop` ends it, and so does the end of our process."""
    path = tmp_path / "lake" / "store"
    el.create(path, observation_space=Discrete(2), action_space=Discrete(2))
    script = (
        "import sys, episodelake as el\n"
        "explorers = [el.open(sys.argv[1]).explore(), el.lake(sys.argv[2]).explore(height=300)]\n"
        "for each in explorers: print(each.url, flush=True)\n"
        "assert 'height=\"300\"' in explorers[1]._repr_html_()\n"
        "explorers[0].stop()\n"
        "assert 'ended' in repr(explorers[0]) and 'ended' in explorers[0]._repr_html_()\n"
        "print('stopped', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path), str(path.parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as notebook:
        assert notebook.stdout is not None
        first, second, said = (notebook.stdout.readline().strip() for _ in range(3))
        assert said == "stopped"
        assert refuses(first)
        page = visit(second)
        assert page.status == 200
        assert (
            "frame-ancestors http://localhost:* http://127.0.0.1:*" in page.headers["content-security-policy"]
        )
        notebook.kill()
    deadline = time.monotonic() + PATIENCE
    while not refuses(second):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_no_process_can_explore_is_refused(store: el.EpisodeStore, tmp_path: Path) -> None:
    """A store that is gone and bad arguments are errors of the caller."""
    with pytest.raises(el.errors.InvalidArgumentError, match="height"):
        store.explore(height=0)
    with pytest.raises(el.errors.InvalidArgumentError, match="browser"):
        store.explore(browser="yes")  # type: ignore[arg-type]
    gone = el.open(shutil.copytree(store.path, tmp_path / "gone"))
    shutil.rmtree(gone.path)
    (tmp_path / "gone").write_text("a file")
    with pytest.raises(el.errors.EpisodelakeError, match="gone"):
        gone.explore()
