"""An epoch from an object store: vectors and video, beside a plain read of the files, MosaicML and Lance.

The object store is the S3 server of the tests in a process of its own, at once or with 30 ms a request and
200 MB/s for all connections together. `limit` asks for each steps file once and decodes the same columns,
with a thread for each file. A store is opened anew for each epoch. MosaicML's and Lance's data sets are
written from the same arrays; both are measured in their own processes, and Lance shuffles files, not rows.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from gymnasium import spaces

import episodelake as el
from measure import Row, Samples, interleave
from peer_process import LANCE, MOSAIC, Peer
from sampling_data import episodes
from setting import Setting

BUCKET = "episodes"
SEGMENTS, LENGTH, BATCH = 6, 1_000, 256
#: Seconds a request and bytes per second; no limits, and those of a bucket in the same region.
NETWORKS = {"at once": (0.0, 0.0), "30 ms, 200 MB/s": (0.03, 200e6)}
COLUMNS = ("observation", "action", "reward")
SIGNED = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=-"
_PIECE = 1 << 17


def run(setting: Setting) -> list[Row]:
    """Measure epochs of vectors and of video in both networks, and what they ask for."""
    os.environ["EPISODELAKE_SPOOL"] = str(setting.fresh("spool"))
    steps = setting.choose(600_000, 12_000)
    with ExitStack() as stack:
        server = SlowServer(stack)
        write_vectors(server, "vectors", steps)
        write_video(server, "video", setting.choose(24, 2))
        peers = {
            recipe.name: Peer(setting.environments, setting.folder, recipe) for recipe in (LANCE, MOSAIC)
        }
        for peer in peers.values():
            stack.callback(peer.close)
            peer.ask("build", steps=steps, length=LENGTH, options=server.options)
        rows = [*_requests(server)]
        for words, (latency, rate) in NETWORKS.items():
            server.slow_down(latency, rate)
            rows += _epochs(setting, server, peers, steps, words)
    return rows


def _epochs(
    setting: Setting, server: SlowServer, peers: dict[str, Peer], steps: int, words: str
) -> Iterator[Row]:
    vectors: dict[str, Callable[[], tuple[float, float]]] = {
        "limit": lambda: _limit(server, "vectors", COLUMNS),
        "ours": lambda: _epoch(server, "vectors", COLUMNS),
        **{
            name: lambda peer=peer: _asked(peer.ask("epoch", options=server.options, size=BATCH))
            for name, peer in peers.items()
        },
    }
    found = interleave(vectors, setting.repeats)
    ours = [Samples(tuple(each[part] for each in found["ours"])) for part in (0, 1)]
    work = f"epoch of {steps:,} steps, shuffled, {words}"
    for name in ("limit", *peers):
        yield Row(work, "s", ours[0], name, Samples(tuple(each[0] for each in found[name])))
    for name in peers:
        first = Samples(tuple(each[1] for each in found[name]))
        yield Row(f"first batch of it, {words}", "s", ours[1], name, first)
    video = {
        "limit": lambda: _limit(server, "video", ("observation", "reward")),
        "ours": lambda: _epoch(server, "video", ("observation", "reward")),
    }
    found = interleave(video, setting.repeats)
    frames = Samples(tuple(each[0] for each in found["ours"]))
    # The limit does not decode the frames, of which each batch has other ones.
    yield Row(
        f"epoch of video, shuffled, {words}",
        "s",
        frames,
        "limit, frames not decoded",
        Samples(tuple(each[0] for each in found["limit"])),
    )
    workers = [_workers_epoch(server, "vectors") for _ in range(setting.repeats)]
    yield Row(
        f"epoch of vectors, two workers that were started before, {words}", "s", Samples(tuple(workers))
    )


def _asked(answer: dict[str, Any]) -> tuple[float, float]:
    return answer["seconds"], answer["first"]


def _requests(server: SlowServer) -> Iterator[Row]:
    """The requests of opening a store and of an epoch."""
    server.requests()
    store = el.open(f"s3://{BUCKET}/vectors", storage_options=server.options)
    opened = len(server.requests())
    for _ in store.loader(BATCH, cache="stream", columns=list(COLUMNS), shuffle=True):
        pass
    read = server.requests()
    steps = sum("/steps/" in path for path in read)
    yield Row(
        f"requests of an epoch of {SEGMENTS} steps files",
        "requests",
        Samples((opened + len(read),)),
        "steps files",
        Samples((SEGMENTS,)),
        limit=20,
    )
    yield Row("requests of it for the steps files", "requests", Samples((steps,)), limit=2 * SEGMENTS)


def _epoch(server: SlowServer, name: str, columns: tuple[str, ...]) -> tuple[float, float]:
    """Seconds from `open` to the last batch, and to the first."""
    start = time.perf_counter()
    first = 0.0
    store = el.open(f"s3://{BUCKET}/{name}", storage_options=server.options)
    for _ in store.loader(BATCH, cache="stream", columns=list(columns), shuffle=True):
        first = first or time.perf_counter() - start
    return time.perf_counter() - start, first


def _workers_epoch(server: SlowServer, name: str) -> float:
    """Seconds of the second epoch of a loader with two workers, which are spawned before the first one."""
    store = el.open(f"s3://{BUCKET}/{name}", storage_options=server.options)
    loader = store.loader(BATCH, cache="stream", columns=list(COLUMNS), shuffle=True, output="torch")
    workers = loader.torch_loader(2, persistent_workers=True)
    for _ in workers:
        pass
    start = time.perf_counter()
    for _ in workers:
        pass
    return time.perf_counter() - start


def _limit(server: SlowServer, name: str, columns: tuple[str, ...]) -> tuple[float, float]:
    """Seconds to ask for each steps file once and decode some columns."""
    from obstore.store import S3Store

    options = {key: value for key, value in server.options.items() if key != "aws_allow_http"}
    bucket: Any = S3Store(BUCKET, config=options, client_options={"allow_http": True})
    listed = bucket.list_with_delimiter(f"{name}/steps/")["objects"]

    def read(path: str) -> int:
        data = pa.BufferReader(bytes(bucket.get(path).bytes()))
        return pq.read_table(data, columns=list(columns), use_threads=False).num_rows

    start = time.perf_counter()
    with ThreadPoolExecutor(len(listed)) as pool:
        rows = sum(pool.map(read, [entry["path"] for entry in listed]))
    assert rows
    return time.perf_counter() - start, 0.0


def write_vectors(server: SlowServer, name: str, steps: int) -> None:
    """Make a store of the episodes of `sampling_data`, in six segments."""
    data = list(episodes(steps, LENGTH))
    store = el.create(
        f"s3://{BUCKET}/{name}",
        observation_space=spaces.Box(-np.inf, np.inf, data[0].observations.shape[1:], np.float32),
        action_space=spaces.Box(-np.inf, np.inf, data[0].actions.shape[1:], np.float32),
        storage_options=server.options,
    )
    with store.writer(seal_seconds=1e6) as writer:
        for part in np.array_split(np.arange(len(data)), SEGMENTS):
            for number in part:
                each = data[number]
                writer.write_episode(
                    observations=each.observations,
                    actions=each.actions,
                    rewards=each.rewards,
                    terminations=bool(each.terminated),
                    truncations=not each.terminated,
                )
            writer.seal()


def write_video(server: SlowServer, name: str, count: int) -> None:
    """Make a store of episodes of a square that moves, kept as video, in up to six segments."""
    space = spaces.Box(0, 255, (96, 96, 3), np.uint8)
    store = el.create(
        f"s3://{BUCKET}/{name}",
        observation_space=space,
        action_space=spaces.Discrete(2),
        encodings={"observation": el.Video()},
        storage_options=server.options,
    )
    rows = np.arange(301)
    frames = np.zeros((301, *(space.shape or ())), np.uint8)
    for row in rows:
        frames[row, row % 80 : row % 80 + 16, (3 * row) % 80 : (3 * row) % 80 + 16] = 200
    with store.writer(seal_seconds=1e6) as writer:
        for part in np.array_split(np.arange(count), min(SEGMENTS, count)):
            for _ in part:
                writer.write_episode(
                    observations=frames,
                    actions=np.zeros(300, np.int64),
                    rewards=np.ones(300),
                    terminations=True,
                    truncations=False,
                )
            writer.seal()


class SlowServer:
    """The S3 server of the tests in a process of its own, which takes its time."""

    def __init__(self, stack: ExitStack) -> None:
        self._process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        )
        stack.callback(self._process.kill)
        assert self._process.stdout is not None
        port = int(self._process.stdout.readline())
        connection = http.client.HTTPConnection("127.0.0.1", port)
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

    def slow_down(self, latency: float, rate: float) -> None:
        """Let each request take so many seconds, and all together send so many bytes per second."""
        self._ask(f"{latency} {rate}")

    def requests(self) -> list[str]:
        """The paths of the requests since the last call."""
        return self._ask("")

    def _ask(self, line: str) -> list[str]:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


def serve() -> None:
    """Run the server; print its port, and for each line of input the paths of the requests since."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from small_objects import ObjectHandler, Server

    latency = rate = free = 0.0
    seen: list[str] = []
    turn = threading.Lock()

    class Handler(ObjectHandler):
        buckets: ClassVar = {}

        def _treat(self) -> None:
            time.sleep(latency)
            seen.append(self.path)
            super()._treat()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _treat

        def setup(self) -> None:
            super().setup()
            self._plain, self.wfile = self.wfile, self  # type: ignore[assignment]

        def write(self, data: bytes) -> int:
            """Send an answer in pieces, each when those of all connections before it have been sent."""
            nonlocal free
            for start in range(0, len(data), _PIECE):
                piece = memoryview(data)[start : start + _PIECE]
                if rate:
                    with turn:
                        now = time.monotonic()
                        free = max(free, now) + len(piece) / rate
                        pause = free - now
                    time.sleep(max(pause, 0.0))
                self._plain.write(piece)
            return len(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._plain, name)

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    for line in sys.stdin:
        if line.strip():
            latency, rate = map(float, line.split())
        print(json.dumps(seen), flush=True)
        seen.clear()


if __name__ == "__main__":
    serve()
