"""The constants that docs/scale.md calculates with: requests, commits per second, bytes of logs, memory.

Object stores are a server of moto in a process of its own, which answers each request after a given latency
and counts them. Writers are threads that each have a writer of their own and seal one short episode after
the other, so that all of them always want to commit. Memory is that of a process that opens a store of many
segments (see `memory`), the peer a store with half of them.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import polars as pl

import episodelake as el
from commit_latency import write_short
from measure import Row, Samples
from memory import memory_of
from opening import PER_SEGMENT, build
from setting import Setting, create

BUCKET = "episodes"
#: The server wants to see that a request is signed, and asks no further.
SIGNED = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=-"
LATENCY = 0.05
WRITERS = (1, 4, 16)
SECONDS = 20.0
SEGMENTS = 2_000
MEMORY_SCRIPT = Path(__file__).resolve().parent / "memory.py"


def run(setting: Setting) -> list[Row]:
    """Measure all constants."""
    os.environ["EPISODELAKE_SPOOL"] = str(setting.fresh("spool"))
    return [*_logs(setting), *_memory(setting), *_writers(setting), *_requests(setting), *_commits(setting)]


class ObjectServer:
    """A server of moto in a process of its own."""

    def __init__(self, stack: ExitStack, latency: float) -> None:
        command = [sys.executable, __file__, str(latency)]
        self._process = stack.enter_context(
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        )
        stack.callback(self._process.kill)
        port = self._line()
        connection = http.client.HTTPConnection("127.0.0.1", int(port))
        connection.request("PUT", f"/{BUCKET}", headers={"Authorization": SIGNED})
        assert connection.getresponse().status == 200
        connection.close()
        self.options = {
            "aws_endpoint": f"http://127.0.0.1:{port}",
            "aws_access_key_id": "key",
            "aws_secret_access_key": "secret",
            "aws_region": "us-east-1",
            "aws_allow_http": "true",
        }

    def requests(self) -> Counter[str]:
        """The requests by method since the last call."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        return Counter(json.loads(self._line()))

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def serve(latency: float) -> None:
    """Run a server with the bucket `b`; print its port, then for each line of input the requests since."""
    from moto.server import (  # pyright: ignore[reportPrivateImportUsage]
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    application: Any = create_backend_app("s3")
    seen: Counter[str] = Counter()
    one = threading.Lock()

    def counted(environ: dict[str, Any], start: Any) -> Any:
        method = environ["REQUEST_METHOD"]
        listing = method == "GET" and "list-type" in environ.get("QUERY_STRING", "")
        seen["LIST" if listing else method] += 1
        time.sleep(latency)
        with one:  # Moto looks for an object and puts it in two steps.
            return list(application(environ, start))

    MotoRequestHandler.protocol_version = "HTTP/1.1"
    server = make_server("127.0.0.1", 0, counted, threaded=True, request_handler=MotoRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    for _ in sys.stdin:
        print(json.dumps(seen), flush=True)
        seen.clear()


def _logs(setting: Setting) -> list[Row]:
    """Bytes of a log: of a commit, and of a segment in a checkpoint."""
    path, segments = setting.fresh("logs"), setting.choose(SEGMENTS, 200)
    build(path, segments)
    rows = []
    for table in ("steps", "episodes"):
        log = path / table / "_delta_log"
        commit = max(log.glob("*.json")).stat().st_size
        checkpoint = max(log.glob("*.checkpoint.parquet"))
        size = checkpoint.stat().st_size / int(checkpoint.name[:20])
        rows.append(Row(f"log of {table}, a commit", "bytes", Samples((commit,))))
        rows.append(Row(f"log of {table}, a segment in a checkpoint", "bytes", Samples((size,))))
    return rows


def _memory(setting: Setting) -> list[Row]:
    """Memory and time to open a store, for each segment and each episode."""
    segments = setting.choose(SEGMENTS, 200)
    tiny, half, whole = setting.fresh("tiny"), setting.fresh("half"), setting.fresh("whole")
    for path, count in ((tiny, 1), (half, segments // 2), (whole, segments)):
        build(path, count)
    found = {}
    for path in (half, whole):
        command = [sys.executable, str(MEMORY_SCRIPT), str(tiny), str(path)]
        answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        found[path] = {**answer, "open": _open(path), "filter": _filter(path)}
    more = segments - segments // 2
    rows = []
    for key, words, unit, factor in (
        ("held", "open: memory held", "bytes/segment", 1),
        ("open", "open", "us/segment", 1e6),
        ("filter", f"filter, {PER_SEGMENT:,} episodes each", "us/segment", 1e6),
    ):
        value = (found[whole][key] - found[half][key]) / more * factor
        rows.append(Row(f"{words}, {segments:,} segments beside half", unit, Samples((value,))))
    return rows


def _open(path: Path) -> float:
    return _fastest(lambda: len(el.open(path)))


def _filter(path: Path) -> float:
    def work() -> int:
        return len(el.open(path).filter(pl.col("episode_return") > 1.5))

    return _fastest(work)


def _fastest(work: Callable[[], Any]) -> float:
    """Return the fewest seconds of three calls."""
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


def _writers(setting: Setting) -> list[Row]:
    """Descriptors, threads and memory of a recorder that is open, beside those of the process without."""
    count = 20
    store = create(setting.fresh("open"), "control")
    with ExitStack() as stack:
        for opened in (1, count):  # The first one loads code.
            before = _held()
            for _ in range(opened):
                writer = stack.enter_context(store.writer(seal_seconds=1e6))
                write_short(writer)
                writer.flush()
        after = _held()
    units = ("descriptors", "threads", "kB")
    return [
        Row("a writer that is open", unit, Samples(((more - less) / count,)))
        for unit, less, more in zip(units, before, after, strict=True)
    ]


def _held() -> tuple[int, int, float]:
    return len(os.listdir("/proc/self/fd")), threading.active_count(), memory_of("RssAnon") / 1e3


def _requests(setting: Setting) -> list[Row]:
    """The requests of common work on an object store, with nothing else going on."""
    with ExitStack() as stack:
        server = ObjectServer(stack, 0.0)
        store = _create(f"s3://{BUCKET}/requests", server)
        rows = []

        def note(words: str) -> None:
            seen = server.requests()
            rows.append(Row(f"requests: {words}", _methods(seen), Samples((seen.total(),))))

        writer = stack.enter_context(store.writer(seal_seconds=1e6))
        for _ in range(3):
            write_short(writer)
            writer.seal()
        server.requests()
        for _ in range(10):
            write_short(writer)
            writer.seal()
        seen = server.requests()
        tenth = Counter({method: count / 10 for method, count in seen.items()})
        rows.append(Row("requests: a seal, mean of ten", _methods(tenth), Samples((tenth.total(),))))
        store.refresh()
        note("refresh after ten seals")
        store.refresh()
        note("refresh of the newest version")
        opened = el.open(f"s3://{BUCKET}/requests", storage_options=server.options)
        note("open")
        len(opened.filter(pl.col("episode_return") > 1))
        note("filter, 13 segments")
        opened.sql("select sum(reward) from transitions").fetchall()
        note("SQL over steps, 13 segments")
    return rows


def _commits(setting: Setting) -> Iterator[Row]:
    """Seals per second of all writers together: in a local store, and in an object store with a latency."""
    counts = WRITERS[: setting.choose(len(WRITERS), 2)]
    seconds = setting.choose(int(SECONDS), 2)
    for count in counts:
        rate, failed, _ = _rate(create(setting.fresh("local"), "control"), count, seconds)
        yield Row(f"seals in a local store, {count} writers{_words(failed)}", "1/s", Samples((rate,)))
    for count in counts:
        with ExitStack() as stack:
            server = ObjectServer(stack, LATENCY)
            store = _create(f"s3://{BUCKET}/writers-{count}", server)
            rate, failed, requests = _rate(store, count, seconds, server)
            words = f"seals in an object store of {LATENCY * 1e3:.0f} ms, {count} writers{_words(failed)}"
            yield Row(words, "1/s", Samples((rate,)))
            yield Row(f"requests of a seal, {count} writers", "requests", Samples((requests,)))


def _words(failed: int) -> str:
    return f", {failed} seals gave up" if failed else ""


def _rate(
    store: el.EpisodeStore, count: int, seconds: float, server: ObjectServer | None = None
) -> tuple[float, int, float]:
    """Let writers seal; return seals per second, how many gave up, and requests per seal."""
    done, failed = Counter[int](), Counter[int]()
    ready, go = threading.Barrier(count + 1), threading.Event()
    stop = threading.Event()

    def work(number: int) -> None:
        with store.writer(seal_seconds=1e6) as writer:
            write_short(writer)
            writer.seal()
            ready.wait()
            go.wait()
            while not stop.is_set():
                write_short(writer)
                try:
                    writer.seal()
                except el.errors.ConcurrentCommitError:
                    failed[number] += 1
                else:
                    done[number] += not stop.is_set()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    ready.wait()
    if server is not None:
        server.requests()
    go.set()
    time.sleep(seconds)
    stop.set()
    sealed = done.total()
    requests = server.requests().total() / max(sealed, 1) if server is not None else 0.0
    for thread in threads:
        thread.join()
    return sealed / seconds, failed.total(), requests


def _create(url: str, server: ObjectServer) -> el.EpisodeStore:
    from trajectories import spaces

    observation_space, action_space = spaces("control")
    return el.create(
        url,
        observation_space=observation_space,
        action_space=action_space,
        storage_options=server.options,
    )


def _methods(seen: Counter[str]) -> str:
    return ", ".join(f"{count:.3g} {method}" for method, count in sorted(seen.items()))


if __name__ == "__main__":
    serve(float(sys.argv[1]))
