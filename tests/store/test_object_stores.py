"""What only object stores have: lost connections, credentials, conditional puts, a local spool folder.

The S3 server is a small one, on loopback, which is compared with moto's; `FaultyProxy` stands in front of it
where a connection must fail.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import deltalake
import duckdb
import numpy as np
import obstore
import polars as pl
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

import episodelake as el
from conformance import FolderBackend, ObjectBackend, all_of, assert_numbered, fill
from effort import looped
from episodelake.store.delta.log import commit_text
from episodelake.store.files import locate
from episodelake.store.files.objects import arrow_files, as_os_errors
from episodelake.store.files.remote import RemotePlace
from episodelake.store.parquet import files
from episodelake.terminal.app import app
from object_fixtures import backend, one_proxy, proxy, spool
from object_server import ANYBODY, BUCKET, FaultyProxy, ObjectServer, Rule, new_url, shared_server
from real_environments import NUMBERED_SPACES, write_numbered
from strategies import same
from waiting import PATIENCE, said

__all__ = ["backend", "one_proxy", "proxy", "spool"]

# A port of loopback that nobody listens on.
NO_EPISODE = "http://127.0.0.1:9"
# A lost connection is noticed at once; limits in seconds would only strike on a slow machine.
IMPATIENT = {"max_retries": "1", "retry_timeout": "60s", "connect_timeout": "60s", "timeout": "60s"}

SCRIPT = """
import json, os, sys, time
import numpy as np
import episodelake as el
from real_environments import NUMBERED_SPACES, write_numbered
from waiting import Path, wait_for_journal
from waiting import PATIENCE
url, options = sys.argv[1], json.loads(sys.argv[2])
"""


@pytest.fixture
def shaky(backend: ObjectBackend, proxy: FaultyProxy) -> ObjectBackend:
    """A prefix whose stores are reached by way of the proxy."""
    backend.storage_options = proxy.storage_options()
    return backend


@pytest.fixture(scope="module")
def guarded() -> Iterator[ObjectServer]:
    """A server that checks signatures."""
    server = ObjectServer("guarded")
    yield server
    server.close()


def _asked(server: ObjectServer) -> Iterator[tuple[Any, ...]]:
    """The answers of a server to requests of every kind: status, headers that clients read, and the body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)

    def ask(method: str, path: str, body: bytes = b"", **headers: str) -> tuple[Any, ...]:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, f"/{BUCKET}{path}", body, {"Authorization": ANYBODY, **given})
        answer = connection.getresponse()
        content = answer.read().decode()
        asked.append(content)
        if answer.status >= 300:
            return method, path, answer.status, re.findall("<Code>(.*?)</", content)
        shown = {name: answer.headers[name] for name in ("ETag", "Content-Range", "Accept-Ranges")}
        if not content.startswith("<?xml"):
            return method, path, answer.status, shown, content, answer.headers["Content-Length"]
        # Clients read these elements, wherever they are.
        elements = re.findall("<(Key|Size|Prefix|KeyCount|IsTruncated)>(.*?)</", content)
        return method, path, answer.status, sorted(set(elements) - {("Prefix", "")})

    asked: list[str] = []
    names = ("a/one", "a/two", "a/b/three", "a/b/four", "a/ü &<x>", "b/five")
    for name in names:
        yield ask("PUT", f"/{quote(name)}", name.encode() * 3)
    yield ask("PUT", "/a/one", b"other", If_None_Match="*")
    yield ask("PUT", "/a/six", b"six", If_None_Match="*")
    for method in ("GET", "HEAD"):
        yield ask(method, "/a/one")
        yield ask(method, "/a/none")
        for part in ("bytes=2-5", "bytes=3-", "bytes=-4", "bytes=0-999"):
            yield ask(method, "/a/one", Range=part)
    yield ask("GET", "/a/one", Range="bytes=999-")
    for query in ("", "&prefix=a/", "&prefix=a/&delimiter=/", "&delimiter=/", "&prefix=no", "&prefix=a/b"):
        yield ask("GET", f"?list-type=2{query}")
    yield ask("GET", "?list-type=2&prefix=a/&start-after=a/one")
    yield ask("GET", "?list-type=2&prefix=a/&encoding-type=url")
    for delimiter in ("", "&delimiter=/"):
        token = ""
        while True:
            yield ask("GET", f"?list-type=2&prefix=a/&max-keys=2{delimiter}{token}")[2:]
            more = re.search("<NextContinuationToken>(.*?)</", asked[-1])
            if more is None:
                break
            token = f"&continuation-token={quote(more[1])}"
    yield ask("PUT", "/a/copy", x_amz_copy_source=f"/{BUCKET}/a/one")
    yield ask("GET", "/a/copy")
    yield ask("POST", "/a/large?uploads")[2:]
    (upload,) = re.findall("<UploadId>(.*?)</", asked[-1])
    parts = ""
    for number, data in enumerate((b"x" * (5 << 20), b"end"), 1):
        yield ask("PUT", f"/a/large?partNumber={number}&uploadId={upload}", data)[2:]
        tag = hashlib.md5(data).hexdigest()
        parts += f"<Part><PartNumber>{number}</PartNumber><ETag>&quot;{tag}&quot;</ETag></Part>"
    body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
    yield ask("POST", f"/a/large?uploadId={upload}", body)[2]
    yield ask("GET", "/a/large", Range="bytes=-5")[2:]
    yield ask("POST", "/a/large?uploads")[2:]
    (upload,) = re.findall("<UploadId>(.*?)</", asked[-1])
    yield ask("DELETE", f"/a/large?uploadId={upload}")[2:]
    for name in ("a/one", "a/one", "none"):
        yield ask("DELETE", f"/{name}")
    keys = "".join(f"<Object><Key>{name}</Key></Object>" for name in ("a/two", "a/b/three"))
    yield ask("POST", "?delete", f"<Delete>{keys}</Delete>".encode())
    yield ask("GET", "?list-type=2")
    connection.request("GET", "/no-such-bucket?list-type=2", headers={"Authorization": ANYBODY})
    answer = connection.getresponse()
    yield answer.status, re.findall("<Code>(.*?)</", answer.read().decode())
    connection.close()


@pytest.mark.further
def test_the_small_server_answers_as_moto() -> None:
    """Other tests need not wait for moto, which others wrote from what S3 does."""
    with contextlib.closing(ObjectServer()) as small, contextlib.closing(ObjectServer("moto")) as moto:
        for ours, theirs in zip(_asked(small), _asked(moto), strict=True):
            assert ours == theirs


def start(script: str, backend: ObjectBackend, *arguments: object) -> subprocess.Popen[str]:
    """Start a process of its own that works on a store."""
    told = [backend.at(), json.dumps(backend.storage_options), *map(str, arguments)]
    folders = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT + script, *told],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
    )


def spooled(folder: Path) -> list[Path]:
    """The journal parts in a spool folder."""
    return sorted(path for path in folder.rglob("*.frames") if path.is_file())


# Many processes

MANY = """
number = int(sys.argv[3])
made = True
try:
    el.create(url, **NUMBERED_SPACES, storage_options=options)
except el.errors.StoreExistsError:
    made = False
with el.open(url, storage_options=options).writer(run=f"w{number}") as writer:
    for value in range(100 * number, 100 * number + 6):
        write_numbered(writer, value, value % 4 + 1)
        if value % 2:
            writer.seal()
print(made)
"""


@pytest.mark.further
def test_processes_create_and_record_at_once(backend: ObjectBackend) -> None:
    """Of processes that create a store at once one wins; then all record, and each episode is there once."""
    children = [start(MANY, backend, number) for number in range(3)]
    made = [child.communicate(timeout=PATIENCE)[0].strip() for child in children]
    assert [child.returncode for child in children] == [0] * 3
    assert sorted(made) == ["False", "False", "True"]
    store = backend.open()
    wanted = [100 * k + v for k in range(3) for v in range(6)]
    assert_numbered(store, wanted, ordered=False, engines=True)
    assert store.history()["episodes"].sum() == 18
    assert len(set(store.episodes.collect()["episode_id"])) == 18


def test_commits_and_creation_are_conditional(shaky: ObjectBackend, proxy: FaultyProxy) -> None:
    """What two writers may both want to be the first to write is put only if it is not there."""
    fill(shaky.create(), range(4), seal_every=2)
    puts = [request for request in proxy.requests() if request.method == "PUT"]
    log = [put for put in puts if "/_delta_log/" in put.path and put.path.endswith(".json")]
    manifest = [put for put in puts if put.path.endswith("/store.json")]
    assert len(manifest) == 1
    assert len(log) >= 3 + 2 * 2 + 2
    assert all(put.conditional for put in [*log, *manifest])
    # The check for conditional puts alone asks twice for one name, and is refused the second time.
    names = [put.path for put in puts if put.status == 200]
    assert len(set(names)) == len(names)
    assert [put.path.endswith(".tmp") for put in puts if put.status != 200] == [True]


# Lost connections

PUTS = ["/steps/[^_]", "/episodes/[^_]", "/steps/_delta_log", "/episodes/_delta_log"]
LOSSES = ["lose request", "cut request", "lose answer", "spoil answer"]


@pytest.mark.further
def test_a_connection_lost_in_a_seal_costs_nothing(
    shaky: ObjectBackend, proxy: FaultyProxy, spool: Path
) -> None:
    """Whichever upload of a seal is lost, before or after the server did it, each episode is there once."""
    store = shaky.create()
    lost = [(action, path) for path in PUTS for action in (LOSSES[2:] if "log" in path else LOSSES[1:3])]
    with store.writer() as writer:
        for value, (action, path) in enumerate(lost):
            write_numbered(writer, value, value % 4 + 1)
            proxy.rules(Rule(action, "PUT", f"/store{path}", times=2, status=500))
            try:
                writer.seal()
            except (el.errors.StoreAccessError, el.errors.ConcurrentCommitError):
                proxy.rules()
                writer.seal()
            else:
                assert proxy.touched(), (action, path)
            proxy.rules()
    assert_numbered(store.refresh(), range(len(lost)))
    assert spooled(spool) == []


def test_one_lost_connection_is_not_even_noticed(shaky: ObjectBackend, proxy: FaultyProxy) -> None:
    """A single loss at a commit is mended by trying again, within the seal."""
    store = shaky.create()
    lost = [(action, table) for action in LOSSES for table in ("steps", "episodes")]
    with store.writer() as writer:
        for value, (action, table) in enumerate(lost):
            write_numbered(writer, value, value % 4 + 1)
            proxy.rules(Rule(action, "PUT", f"/{table}/_delta_log", status=500))
            writer.seal()
            assert len(proxy.touched()) == 1, (action, table)
    assert_numbered(store.refresh(), range(len(lost)))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("action", "path"),
    [
        ("lose request", "/store.json"),
        ("lose answer", "/store.json"),
        ("spoil answer", "/store.json"),
        ("cut request", "/episodes/_delta_log"),
        ("lose answer", "/episodes/_delta_log"),
    ],
)
def test_a_connection_lost_in_a_creation(
    shaky: ObjectBackend, proxy: FaultyProxy, action: Any, path: str
) -> None:
    """A creation whose upload was lost has made the store, or says so and can be repeated."""
    proxy.rules(Rule(action, "PUT", path, status=500))
    try:
        store = shaky.create()
    except el.errors.StoreAccessError:
        proxy.rules()
        store = shaky.create()
    assert shaky.open().id == store.id
    assert_numbered(fill(store, range(2)), range(2))


def test_an_outage_keeps_all_in_the_journal(shaky: ObjectBackend, proxy: FaultyProxy, spool: Path) -> None:
    """While the store cannot be reached recording goes on; afterwards closing brings it all in."""
    store = shaky.create()
    shaky.storage_options = proxy.storage_options(**IMPATIENT)
    writer = shaky.open().writer()
    write_numbered(writer, 0, 1)
    proxy.rules(Rule("lose request", times=None))
    for value in range(1, 4):
        with pytest.raises(el.errors.StoreAccessError) as caught:
            writer.seal()
        assert isinstance(caught.value, OSError)
        write_numbered(writer, value, value % 4 + 1)
    with pytest.raises(el.errors.StoreAccessError):
        writer.close()
    assert spooled(spool)
    proxy.rules()
    writer.close()
    assert_numbered(store.refresh(), range(4))
    assert spooled(spool) == []


@pytest.mark.further
def test_what_an_outage_outlasts_is_recovered(shaky: ObjectBackend, proxy: FaultyProxy, spool: Path) -> None:
    """A process that ends during an outage leaves its spool; the next writer of this machine brings it in."""
    script = """
writer = el.open(url, storage_options=options).writer(run="outage")
write_numbered(writer, 0, 1)
writer.seal()
write_numbered(writer, 1, 2)
print("ready", flush=True)
sys.stdin.readline()
try:
    writer.close()
except el.errors.StoreAccessError:
    print("kept", flush=True)
os._exit(0)
"""
    shaky.create()
    shaky.storage_options = proxy.storage_options(**IMPATIENT)
    with start(script, shaky) as child:
        assert said(child) == "ready"
        proxy.rules(Rule("lose request", times=None))
        assert child.stdin is not None
        child.stdin.close()
        assert said(child) == "kept"
    proxy.rules()
    assert spooled(spool)
    assert_numbered(shaky.open(), [0])
    fill(shaky.open(), [2], run="next")
    assert_numbered(shaky.open(), range(3), ordered=False)
    assert spooled(spool) == []


@pytest.mark.further
def test_a_server_in_trouble_is_asked_again(shaky: ObjectBackend, proxy: FaultyProxy) -> None:
    """Answers of 500 and 503 to every kind of request for a while are waited out, by writers and readers."""
    store = shaky.create()
    kinds = [("PUT", "parquet"), ("PUT", "json"), ("GET", "list-type"), ("GET", "json")]
    busy = [
        Rule("answer", method, path, skip=2 * k, times=2, status=status)
        for method, path in kinds
        for k, status in enumerate((500, 503))
    ]
    with store.writer() as writer:
        write_numbered(writer, 0, 1)
        proxy.rules(*busy[:4])
        writer.seal()
        assert {request.status for request in proxy.touched()} == {500, 503}
    proxy.rules(*busy[4:], Rule("answer", "GET", "parquet", times=2))
    assert_numbered(shaky.open(), [0], engines=True)
    assert len(proxy.touched()) >= 8


@pytest.mark.further
def test_readers_wait_for_a_lost_connection(shaky: ObjectBackend, proxy: FaultyProxy) -> None:
    """A read whose connection is lost is repeated; every reader gives the right data."""
    fill(shaky.create(), range(6), seal_every=3)
    actions: list[Any] = ["lose request", "cut answer"]
    for action in actions:
        spread = [Rule(action, "GET", "parquet", skip=8 * k) for k in range(5)]
        proxy.rules(*spread, Rule(action, "GET", "_delta_log/0"))
        assert_numbered(shaky.open(), range(6), engines=True)
        assert len(proxy.touched()) >= 4


@pytest.mark.parametrize(
    ("status", "path"),
    [
        (429, ""),
        pytest.param(503, "/steps/_delta_log", marks=pytest.mark.further),
        pytest.param(503, "", marks=pytest.mark.further),
        pytest.param(500, "_delta_log", marks=pytest.mark.further),
    ],
)
def test_a_service_in_trouble_is_unavailable(
    shaky: ObjectBackend, proxy: FaultyProxy, spool: Path, status: int, path: str
) -> None:
    """While a service answers 429 or 5xx, opening and recovery raise `StoreUnavailableError`, and a journal
    stays; afterwards recovery brings it in.
    """
    shaky.create()
    with start(DYING, shaky) as child:
        assert said(child) == "ready"
        child.kill()
    shaky.storage_options = proxy.storage_options(**IMPATIENT)
    proxy.rules(Rule("answer", path=path, times=None, status=status))
    for attempt in (shaky.open, lambda: el.recover(shaky.at(), storage_options=shaky.storage_options)):
        with pytest.raises(el.errors.StoreUnavailableError):
            attempt()
    assert spooled(spool)
    proxy.rules()
    el.recover(shaky.at(), storage_options=shaky.storage_options)
    assert len(shaky.open()) == 3
    assert spooled(spool) == []


@pytest.mark.further
def test_an_unreachable_store_is_not_called_damaged(shaky: ObjectBackend, proxy: FaultyProxy) -> None:
    """Readers that lose the store get a StoreAccessError or their engine's error, not CorruptStoreError."""
    fill(shaky.create(), range(4), seal_every=2)
    shaky.storage_options = proxy.storage_options(**IMPATIENT)
    store, other = shaky.open(), shaky.open()
    proxy.rules(Rule("lose request", times=None))
    attempts = [
        shaky.open,
        shaky.create,
        store.refresh,
        lambda: all_of(other),
        lambda: other[1],
        lambda: other.filter("length > 1"),
        lambda: other.filter(pl.col("length") > 1),
        lambda: other["nobody"],
        lambda: other.card,
        lambda: other.writer(),
        shaky.recover,
    ]
    for attempt in attempts:
        with pytest.raises(el.errors.StoreAccessError) as caught:
            attempt()
        assert "Debug source" not in str(caught.value)
    for query in (
        lambda: other.sql("select sum(reward) from steps").fetchall(),
        lambda: other.steps.select("reward").collect(),
    ):
        with pytest.raises((el.errors.StoreAccessError, duckdb.Error, pl.exceptions.PolarsError, OSError)):
            query()
    proxy.rules()
    assert_numbered(other, range(4))


def test_a_large_upload_survives_a_cut(shaky: ObjectBackend, proxy: FaultyProxy) -> None:
    """A segment of many megabytes goes up in parts; a part that is cut short is sent again."""
    store = shaky.create(
        observation_space=spaces.Box(0, 255, (64, 64, 3), np.uint8), action_space=spaces.Discrete(2)
    )
    frames = np.random.default_rng(0).integers(0, 255, (1501, 64, 64, 3), np.uint8)
    with store.writer() as writer:
        writer.write_episode(
            observations=frames,
            actions=np.zeros(1500, np.int64),
            rewards=np.zeros(1500),
            terminations=True,
            truncations=False,
        )
        proxy.rules(
            Rule("cut request", "PUT", "/steps/.*partNumber=2"),
            Rule("spoil answer", "PUT", "/steps/.*partNumber=1"),
        )
        writer.seal()
        assert len(proxy.touched()) == 2
    assert same(store.refresh()[0].observations, frames)


# Maintenance


def changes(store: el.EpisodeStore) -> dict[str, Any]:
    """The operations that commit, by the name that the history gives them."""
    first = store[0].id
    labels = pl.DataFrame({"episode_id": [first], "label": ["x"]})
    advantages = pl.DataFrame({"episode_id": [first], "t": [0], "advantage": [1.0]})
    return {
        "compact": store.compact,
        "delete": lambda: store.delete('"metadata.value" = 1'),
        "annotate episodes": lambda: store.annotate(labels),
        "annotate steps": lambda: store.annotate(advantages, on=("episode_id", "t")),
        "drop": lambda: store.drop_annotation("label"),
        "tag": lambda: store.tag("tagged"),
    }


@pytest.mark.further
@pytest.mark.parametrize(
    "action",
    ["lose answer", *(pytest.param(a, marks=pytest.mark.slow) for a in LOSSES if a != "lose answer")],
)
def test_maintenance_outlives_a_lost_connection(
    shaky: ObjectBackend, proxy: FaultyProxy, action: Any
) -> None:
    """Whichever commit of an operation is lost, repeating the operation leaves the store right."""
    store = fill(shaky.create(), range(4), seal_every=2)
    for name, change in changes(store).items():
        proxy.rules(
            *(Rule(action, "PUT", path, status=500) for path in ("/steps/_", "/episodes/_", "/tags/"))
        )
        try:
            change()
        except (el.errors.StoreAccessError, el.errors.ConcurrentCommitError):
            change()
        assert proxy.touched(), name
    proxy.rules()
    assert_numbered(shaky.open(), [0, 2, 3])
    assert shaky.open().verify().ok
    assert shaky.open().sql("select sum(advantage) from steps").fetchall() == [(1.0,)]
    assert shaky.open().annotations["name"].to_list() == ["advantage"]
    assert shaky.open().tags.keys() == {"tagged"}


@pytest.mark.further
def test_operations_of_two_machines_do_not_spoil_each_other(
    backend: ObjectBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines share no lock: of two operations at once one may lose, and what is there stays right."""
    fill(backend.create(), range(6), seal_every=1)
    stores = []
    for machine in ("a", "b"):
        monkeypatch.setenv("EPISODELAKE_SPOOL", str(tmp_path / machine))
        stores.append(backend.open())
    ids = {episode.id for episode in stores[0] if episode.length == 1}
    together = threading.Barrier(2)

    def work(store: el.EpisodeStore, change: Any) -> int:
        lost = 0
        for _ in range(2):
            together.wait(PATIENCE)
            try:
                change(store)
            except el.errors.ConcurrentCommitError:
                lost += 1
        return lost

    with ThreadPoolExecutor(2) as pool:
        compacting = pool.submit(work, stores[0], lambda store: store.compact(order_by="episode_id"))
        deleting = pool.submit(work, stores[1], lambda store: store.delete("length = 1"))
        lost = compacting.result(PATIENCE) + deleting.result(PATIENCE)
    found = backend.open()
    assert lost < 4
    assert found.verify().ok
    found.delete("length = 1")
    assert not ids & set(all_of(found))
    assert_numbered(found, [1, 2, 3, 5])


@pytest.mark.further
def test_a_store_is_copied_from_place_to_place(backend: ObjectBackend, tmp_path: Path) -> None:
    """A store copied from S3 to a folder, to memory and back to S3 holds the same all along."""
    first = fill(backend.create(**NUMBERED_SPACES, card={"author": "A"}), range(6), seal_every=2)
    first.annotate(pl.DataFrame({"episode_id": [first[0].id], "label": ["good"]}))
    local = first.copy(tmp_path / "local")
    memory = local.copy(f"memory://copied-{os.getpid()}-{tmp_path.name}")
    back = memory.copy(backend.at("back"), storage_options=backend.storage_options)
    for store in (local, memory, back, backend.open("back")):
        assert all_of(store) == all_of(first)
        assert_numbered(store, range(6))
        assert store.card == {"author": "A"}
        assert store.filter("label = 'good'")[0].id == first[0].id
        assert store.verify().ok
    fill(local, [6])
    assert el.merge([local], back).episodes == 1
    assert_numbered(backend.open("back"), range(7))


# Credentials and addresses


@pytest.mark.further
def test_wrong_credentials_are_refused(guarded: ObjectServer) -> None:
    """Keys that the server does not take are a StoreAccessError everywhere and not told."""
    url = new_url()
    right = guarded.storage_options()
    store = el.create(url, **NUMBERED_SPACES, storage_options=right)
    fill(store, range(2))
    assert_numbered(el.open(url, storage_options=right), range(2))
    for name in ("aws_secret_access_key", "aws_access_key_id"):
        wrong = {**right, name: "wrong-and-not-to-be-told"}
        attempts = [
            lambda wrong=wrong: el.open(url, storage_options=wrong),
            lambda wrong=wrong: el.create(f"{url}/other", **NUMBERED_SPACES, storage_options=wrong),
            lambda wrong=wrong: el.recover(url, storage_options=wrong),
        ]
        for attempt in attempts:
            with pytest.raises(el.errors.StoreAccessError) as caught:
                attempt()
            assert "wrong-and-not-to-be-told" not in str(caught.value)
            assert right["aws_secret_access_key"] not in str(caught.value)


def test_credentials_that_expire_keep_the_journal(shaky: ObjectBackend, proxy: FaultyProxy) -> None:
    """When the server stops taking the keys a seal fails at once; later nothing is missing."""
    store = shaky.create()
    with store.writer() as writer:
        write_numbered(writer, 0, 1)
        writer.seal()
        write_numbered(writer, 1, 2)
        proxy.rules(Rule("answer", times=None, status=403))
        with pytest.raises(el.errors.StoreAccessError):
            writer.seal()
        assert len(proxy.touched()) <= 3
        with pytest.raises(el.errors.StoreAccessError):
            shaky.open()
        proxy.rules()
    assert_numbered(store.refresh(), range(2))


def test_a_missing_bucket_is_named() -> None:
    """A bucket that is not there is no store to open, and none can be created in it."""
    options = shared_server().storage_options()
    with pytest.raises(el.errors.StoreNotFoundError, match=r"no-such-bucket.*its bucket, or every object"):
        el.open("s3://no-such-bucket/store", storage_options=options)
    with pytest.raises(el.errors.StoreAccessError, match=r"no-such-bucket.*Check the address"):
        el.create("s3://no-such-bucket/store", **NUMBERED_SPACES, storage_options=options)


def test_no_secret_is_kept(spool: Path) -> None:
    """No object, no journal, no message and no text of an object holds the keys that reached the store."""
    server = shared_server()
    url = new_url()
    hidden = {"aws_access_key_id": "hidden-name", "aws_secret_access_key": "hidden-word"}
    options = server.storage_options(**hidden)
    store = el.create(url, **NUMBERED_SPACES, storage_options=options)
    with store.writer() as writer:
        write_numbered(writer, 0, 1)
        writer.seal()
        write_numbered(writer, 1, 2)
        shown = [repr(thing) for thing in (store, store.handle, store[:1], writer, store.connect())]
        shown += [store.url, repr(store.steps), str(store.history())]
        local = [path.read_bytes() for path in spool.rglob("*") if path.is_file()]
    prefix = url.removeprefix(f"s3://{BUCKET}/")
    remote = [server.read(f"{prefix}/{key}") for key in server.keys(prefix)]
    for word in hidden.values():
        assert not any(word in text for text in shown)
        assert not any(word.encode() in data for data in [*local, *remote])


@looped(
    ("url", "options"),
    [
        (
            "s3://bucket/store",
            {"aws_endpoint": NO_EPISODE, "aws_access_key_id": "k", "aws_secret_access_key": "s"},
        ),
        ("gs://bucket/store", {"google_base_url": NO_EPISODE, "google_skip_signature": "true"}),
        (
            "az://container/store",
            {
                "azure_storage_account_name": "account",
                "azure_storage_account_key": "a2V5",
                "azure_storage_endpoint": NO_EPISODE,
            },
        ),
        (
            "abfss://container@account.dfs.core.windows.net/store",
            {"azure_storage_account_key": "a2V5", "azure_storage_endpoint": NO_EPISODE},
        ),
    ],
)
def test_a_service_that_does_not_answer_is_named(url: str, options: dict[str, str]) -> None:
    """Every kind of URL is understood; where nobody listens, the error says so and names the place."""
    scheme = url.partition(":")[0]
    reach = {f"{'aws_' if scheme == 's3' else ''}allow_http": "true", **IMPATIENT}
    for attempt in (
        lambda: el.open(url, storage_options={**options, **reach}),
        lambda: el.create(url, **NUMBERED_SPACES, storage_options={**options, **reach}),
    ):
        with pytest.raises(el.errors.StoreAccessError) as caught:
            attempt()
        assert "store" in str(caught.value)
        assert scheme in str(caught.value)


@looped(
    "options",
    [
        {"aws_no_such_option": "1"},
        {"max_retries": "many"},
        {"retry_timeout": "soon"},
        {"timeout": "soon"},
        {"aws_allow_http": "perhaps"},
        {"google_base_url": "x"},
    ],
)
def test_an_option_that_is_none_is_refused(options: dict[str, str]) -> None:
    """An unknown key, or a value that is none, is an InvalidArgumentError that names the key."""
    with pytest.raises(el.errors.InvalidArgumentError, match=next(iter(options))):
        el.open(new_url(), storage_options=shared_server().storage_options(**options))


@looped(
    "url", ["s3://", "s3:///store", "ftp://host/store", "http://host/store", "s3://UPPER CASE/x", "memory://"]
)
def test_a_url_that_names_no_place_is_refused(url: str) -> None:
    """A URL without a bucket or of an unknown kind is an InvalidArgumentError, and makes no folder."""
    before = set(Path.cwd().iterdir())
    for attempt in (lambda: el.open(url), lambda: el.create(url, **NUMBERED_SPACES)):
        with pytest.raises(el.errors.InvalidArgumentError):
            attempt()
    assert set(Path.cwd().iterdir()) == before


KEYS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_region": "us-east-1"}
ACCOUNT = {"azure_storage_account_name": "account", "azure_storage_account_key": "a2V5"}


@looped(
    ("options", "settings"),
    [
        (KEYS, {}),
        ({**KEYS, "aws_session_token": "token"}, {"session_token": "token"}),
        ({**KEYS, "aws_virtual_hosted_style_request": "true"}, {"force_virtual_addressing": True}),
        ({**KEYS, "aws_endpoint": NO_EPISODE}, {"endpoint_override": "127.0.0.1:9", "scheme": "http"}),
    ],
)
def test_options_mean_the_same_to_arrow(options: dict[str, str], settings: dict[str, Any]) -> None:
    """Where to ask and who is asking are told to pyarrow's file system as to the other engines."""
    files, path = arrow_files("s3://bucket/store", options)
    known = {"access_key": "key", "secret_key": "secret", "region": "us-east-1"}
    assert files.equals(pyarrow.fs.S3FileSystem(**known, **settings))
    assert path == "bucket/store"


@looped("text", ["true", "True", "1", "yes"])
def test_unsigned_requests_are_unsigned_by_arrow_too(text: str) -> None:
    """Whoever asks for unsigned requests sends no keys of the environment along."""
    options = {"aws_skip_signature": text, "aws_region": "us-east-1"}
    files, _ = arrow_files("s3://bucket/store", options)
    assert files.equals(pyarrow.fs.S3FileSystem(anonymous=True, region="us-east-1"))


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("az://container/store", ACCOUNT),
        ("abfss://container@account.dfs.core.windows.net/store", {"azure_storage_account_key": "a2V5"}),
    ],
    ids=["az", "abfss"],
)
def test_azure_urls_name_account_and_container(url: str, options: dict[str, str]) -> None:
    """Both kinds of URL lead pyarrow to the same account and container."""
    files, path = arrow_files(url, options)
    assert files.equals(pyarrow.fs.AzureFileSystem("account", account_key="a2V5"))
    assert path == "container/store"


def test_an_azure_account_is_needed() -> None:
    """A URL without an account, which no option names either, is refused by name."""
    with pytest.raises(el.errors.InvalidArgumentError, match="account"):
        arrow_files("az://container/store", {})


@pytest.mark.parametrize(
    ("endpoint", "blob", "dfs"),
    [
        ("https://account.blob.core.cloud.example", ".blob.core.cloud.example", ".dfs.core.cloud.example"),
        ("http://127.0.0.1:10000/account", "127.0.0.1:10000", "127.0.0.1:10000"),
    ],
    ids=["host", "path"],
)
def test_an_azure_endpoint_leads_pyarrow_there(endpoint: str, blob: str, dfs: str) -> None:
    """An account in the host or in the path of an endpoint, as emulators have it, is that of pyarrow."""
    files, _ = arrow_files("az://container/store", {**ACCOUNT, "azure_storage_endpoint": endpoint})
    scheme = endpoint.partition(":")[0]
    expected = pyarrow.fs.AzureFileSystem(
        "account",
        account_key="a2V5",
        blob_storage_authority=blob,
        blob_storage_scheme=scheme,
        dfs_storage_authority=dfs,
        dfs_storage_scheme=scheme,
    )
    assert files.equals(expected)


def test_an_option_that_pyarrow_lacks_is_refused_by_name(backend: ObjectBackend) -> None:
    """SQL refuses such an option as our own error when it is asked, not as one of DuckDB."""
    fill(backend.create(), [1])
    backend.storage_options = {**(backend.storage_options or {}), "aws_unsigned_payload": "true"}
    with pytest.raises(el.errors.InvalidArgumentError, match="option 'unsigned_payload'"):
        backend.open().sql("select 1 from steps")


class NoSuffixes:
    """An obstore object that, as Azure, refuses ranges that are counted from the end."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str, *, options: dict[str, Any] | None = None) -> Any:
        """As obstore's."""
        if "suffix" in ((options or {}).get("range") or {}):
            raise obstore.exceptions.NotSupportedError("Azure does not support suffix range requests")
        return self._store.get(key, options=options)


def test_services_without_ranges_from_the_end_are_read(
    backend: ObjectBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure has none; ends of files are read there all the same, and so are stores."""
    fill(backend.create(), range(3))
    plain = RemotePlace._store.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(RemotePlace, "_store", property(lambda place: NoSuffixes(plain(place))))
    assert_numbered(backend.open(), range(3))
    place = locate(backend.at("tail"), backend.storage_options)
    for data in (b"", b"short", b"longer than eight"):
        place.write(data)
        assert place.read_tail(8) == (data[-8:], len(data))


@pytest.mark.parametrize("code", ["NoSuchBucket", "ContainerNotFound"])
def test_codes_of_a_missing_bucket(code: str) -> None:
    """Each service has its own code for a bucket that is not there."""
    with pytest.raises(FileNotFoundError, match="there is no such bucket"), as_os_errors("az://lab"):
        raise obstore.exceptions.GenericError(f"status code: 404 <Code>{code}</Code>")


def test_no_other_place_is_asked_than_the_one_named() -> None:
    """An endpoint of one's own is either taken by pyarrow too, or refused; the public one is never asked."""
    try:
        files, _ = arrow_files("az://container/store", {**ACCOUNT, "azure_storage_endpoint": NO_EPISODE})
    except el.errors.InvalidArgumentError:
        return
    assert not files.equals(pyarrow.fs.AzureFileSystem("account", account_key="a2V5"))


@pytest.mark.further
@pytest.mark.sample(1)
@pytest.mark.parametrize("change", [str.upper, lambda key: key.removeprefix("aws_")], ids=["upper", "bare"])
def test_options_have_several_spellings(backend: ObjectBackend, change: Any) -> None:
    """Options in capitals, as in environment variables, and without `aws_` reach the store by all engines."""
    fill(backend.create(), range(3))
    backend.storage_options = {change(key): value for key, value in (backend.storage_options or {}).items()}
    assert_numbered(backend.open(), range(3), engines=True)
    fill(backend.open(), [3])
    assert_numbered(backend.open(), range(4), engines=True)


def test_options_may_come_from_the_environment(
    backend: ObjectBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variables of AWS stand in for options that are not given, for all engines."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in (backend.storage_options or {}).items():
        monkeypatch.setenv({"aws_endpoint": "AWS_ENDPOINT_URL"}.get(name, name.upper()), value)
    backend.storage_options = None
    fill(backend.create(), range(3))
    assert_numbered(backend.open(), range(3), engines=True)


@pytest.mark.further
def test_the_command_line_takes_urls(backend: ObjectBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands work on a URL, with the variables of AWS for options."""
    fill(backend.create(), range(4), seal_every=2)
    for name, value in (backend.storage_options or {}).items():
        monkeypatch.setenv({"aws_endpoint": "AWS_ENDPOINT_URL"}.get(name, name.upper()), value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for command, arguments, shown in [
        ("info", [], "4"),
        ("show", ["0"], "numbered"),
        ("sql", ["select sum(length) from episodes"], "10"),
        ("delete", ["length = 1", "--yes"], "1"),
        ("compact", [], ""),
        ("history", [], "compact"),
        ("recover", [], ""),
        ("verify", [], "no faults"),
    ]:
        result = CliRunner().invoke(app, [command, backend.at(), *arguments])
        assert result.exit_code == 0, f"{command}: {result.output}"
        assert shown in result.output
    assert_numbered(backend.open(), [1, 2, 3])


@pytest.mark.further
def test_patience_reaches_every_engine(backend: ObjectBackend) -> None:
    """Options of patience, given as text, are taken by all engines."""
    patience = {"timeout": "20s", "connect_timeout": "3s", "max_retries": "2", "retry_timeout": "9s"}
    backend.storage_options = {**(backend.storage_options or {}), **patience}
    fill(backend.create(), range(3))
    assert_numbered(backend.open(), range(3), engines=True)


# The spool

DYING = """
store = el.open(url, storage_options=options)
writer = store.writer(run="dying", flush_seconds=0.02, seal_seconds=1e6)
write_numbered(writer, 0, 1)
writer.seal()
write_numbered(writer, 1, 2)
episode = writer.begin(np.array([7, 0], np.float32), {"clock": 0}, seed=5)
for t in range(3):
    episode.append(t, t / 2, np.array([7, t + 1], np.float32), info={"clock": t + 1})
(journal,) = Path(os.environ["EPISODELAKE_SPOOL"]).rglob(writer.run_id)
wait_for_journal(journal, 5, ended=1, first=1)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.further
def test_the_next_writer_of_a_store_recovers_by_itself(backend: ObjectBackend, spool: Path) -> None:
    """A new writer on the same machine brings in what a killed one left; one of another store leaves it."""
    backend.create()
    other = ObjectBackend(shared_server())
    other.create()
    with start(DYING, backend) as child:
        said(child)
        child.send_signal(signal.SIGKILL)
    left = spooled(spool)
    assert other.recover() == []
    fill(other.open(), [2])
    assert spooled(spool) == left
    fill(backend.open(), [2], run="next")
    assert sorted(episode.length for episode in backend.open()) == [1, 2, 3, 3]
    assert spooled(spool) == []


@pytest.mark.further
def test_journals_lie_where_no_cache_is_cleared(
    backend: ObjectBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spool is in the user's state folder; what earlier versions left in a cache is recovered."""
    backend.create()
    for name in ("state", "cache"):
        monkeypatch.setenv(f"XDG_{name.upper()}_HOME", str(tmp_path / name))
    # Where earlier versions put the journals.
    monkeypatch.setenv("EPISODELAKE_SPOOL", str(tmp_path / "cache" / "episodelake" / "spool"))
    with start(DYING, backend) as child:
        said(child)
        child.send_signal(signal.SIGKILL)
    monkeypatch.delenv("EPISODELAKE_SPOOL")
    assert spooled(tmp_path / "cache") and not spooled(tmp_path / "state")
    writer = backend.open().writer(run="next")
    assert sorted(episode.length for episode in backend.open()) == [1, 2, 3]
    assert not spooled(tmp_path / "cache")
    (journal,) = tmp_path.rglob(writer.run_id)
    assert journal.is_relative_to(tmp_path / "state")
    write_numbered(writer, 2, 3)
    shutil.rmtree(tmp_path / "cache")
    writer.close()
    assert len(backend.open()) == 4


def test_a_spool_that_cannot_be_written_is_named(
    backend: ObjectBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spool folder that is a file is a StoreAccessError that names it; readers need no spool."""
    fill(backend.create(), range(2))
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("EPISODELAKE_SPOOL", str(tmp_path / "file"))
    assert_numbered(backend.open(), range(2))
    with pytest.raises(el.errors.StoreAccessError, match="file"):
        backend.open().writer()


# Engines

WITHOUT_EXTENSIONS = """
import duckdb, polars as pl
store = el.open(url, storage_options=options)
print(store.sql("select count(*), sum(reward) from transitions where t >= 1").fetchall())
print(store.sql("select count(*), sum(reward) from transitions where t >= 1", read_only=True).fetchall())
with store.connect() as connection:
    loaded = connection.sql("select extension_name from duckdb_extensions() where loaded").fetchall()
print(sorted(name for (name,) in loaded if name in ("httpfs", "aws", "azure", "delta")))
"""


@pytest.mark.further
def test_duckdb_reads_without_an_extension(
    backend: ObjectBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB reads a store on S3 with nothing installed or downloaded: its home stays empty."""
    values = range(8)
    fill(backend.create(), values, seal_every=3)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, NO_EPISODE)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with start(WITHOUT_EXTENSIONS, backend) as child:
        lines = child.communicate(timeout=PATIENCE)[0].splitlines()
    rows = [(value, t) for value in values for t in range(1, value % 4 + 1)]
    wanted = str([(len(rows), sum(value + t / 8 for value, t in rows))])
    assert lines[:2] == [wanted, wanted]
    assert lines[2] == "[]"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


STOPPING_EARLY = """
from concurrent.futures import ThreadPoolExecutor
store = el.open(url, storage_options=options)

def query(_):
    with store.connect() as connection:
        assert len(connection.sql("select * from steps limit 3").fetchall()) == 3
        connection.sql("select sum(s.reward) from steps s join episodes e using (episode_id)").fetchall()

with ThreadPoolExecutor(4) as pool:
    list(pool.map(query, range(8)))
print(len(store.sql("select * from steps limit 1").fetchall()), flush=True)
"""


@pytest.mark.further
def test_queries_in_threads_that_stop_early_neither_hang_nor_crash(backend: ObjectBackend) -> None:
    """Queries at once over many files, which leave reads unfinished, end, and so does the process."""
    fill(backend.create(), range(12), seal_every=1)
    with start(STOPPING_EARLY, backend) as child:
        assert child.communicate(timeout=PATIENCE)[0] == "1\n"
    assert child.returncode == 0


@pytest.mark.further
def test_a_commit_of_another_program(backend: ObjectBackend) -> None:
    """It is refused as in a folder, and undone by deleting it."""
    store = fill(backend.create(), range(4), seal_every=2)
    before = set(backend.files())
    table = deltalake.DeltaTable(f"{backend.at()}/steps", storage_options=backend.storage_options)
    deltalake.write_deltalake(table, table.to_pyarrow_table(), mode="append")
    for use in (backend.open, store.refresh, store.compact):
        with pytest.raises(el.errors.CorruptStoreError, match="is not one of Episodelake: delta-rs"):
            use()
    for file in set(backend.files()) - before:
        backend.remove(file)
    assert_numbered(fill(backend.open(), [4]), range(5))


def test_a_store_is_its_files(backend: ObjectBackend, tmp_path: Path) -> None:
    """The objects of a store downloaded into a folder are the same store, and so are they uploaded again."""
    first = fill(backend.create(), range(6), seal_every=2)
    local = FolderBackend(tmp_path)
    for file, data in backend.contents().items():
        local.write(file, data)
    copied = local.open()
    assert copied.id == first.id
    assert all_of(copied) == all_of(first)
    fill(copied, [6], run="local")
    for file, data in local.contents().items():
        backend.write(file, data, "back")
    assert_numbered(backend.open("back"), range(7))
    assert_numbered(backend.open(), range(6))


@pytest.mark.further
def test_a_query_asks_for_the_columns_it_needs(shaky: ObjectBackend, proxy: FaultyProxy) -> None:
    """A query over small columns does not download the frames, and one episode not the others."""
    store = shaky.create(
        observation_space=spaces.Box(0, 255, (64, 64, 3), np.uint8), action_space=spaces.Discrete(2)
    )
    frames = np.random.default_rng(0).integers(0, 255, (201, 64, 64, 3), np.uint8)
    with store.writer() as writer:
        for _ in range(3):
            writer.write_episode(
                observations=frames,
                actions=np.zeros(200, np.int64),
                rewards=np.ones(200),
                terminations=True,
                truncations=False,
            )
            writer.seal()
    store.refresh()
    proxy.rules()
    assert store.sql("select sum(reward) from transitions").fetchall() == [(600.0,)]
    assert store.transitions.select(pl.sum("reward")).collect().item() == 600.0
    assert proxy.bytes_sent() < 3 * frames.nbytes / 4
    proxy.rules()
    assert same(store[1].observations, frames)
    assert proxy.bytes_sent() < 2 * frames.nbytes


def test_damage_after_a_read_is_found(backend: ObjectBackend) -> None:
    """`verify` reads a changed file again, although this process has read it before."""
    store = fill(backend.create(), range(4))
    assert all_of(store) and not store.verify().faults
    (name,) = [name for name in backend.contents() if name.startswith("steps/") and "_delta_log" not in name]
    whole = backend.contents()[name]
    group = pq.read_metadata(pa.BufferReader(whole)).row_group(0)
    # The last byte of a column's pages: no checksum has the statistics in their headers, wherever these are.
    for column in map(group.column, (0, 2, group.num_columns - 1)):
        first = column.dictionary_page_offset or column.data_page_offset
        place = first + column.total_compressed_size - 1
        backend.write(name, whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        assert store.verify().faults, place
    backend.write(name, whole)
    assert not store.verify().faults


@pytest.mark.parametrize("cache", ["memory", "stream"])
def test_a_loader_makes_few_requests(shaky: ObjectBackend, proxy: FaultyProxy, cache: str) -> None:
    """Opening asks for 8 objects, an epoch for each file once where it wants most of it, and for no sizes."""
    store = shaky.create(
        observation_space=spaces.Box(0, 1, (17,), np.float32), action_space=spaces.Discrete(2)
    )
    with store.writer() as writer:
        for number in range(3):
            for each in range(12):
                writer.write_episode(
                    observations=np.random.default_rng([number, each]).random((512, 17), np.float32),
                    actions=np.zeros(511, np.int64),
                    rewards=np.ones(511),
                    terminations=True,
                    truncations=False,
                )
            writer.seal()
    assert not [request for request in proxy.requests() if request.method == "HEAD"]
    proxy.rules()
    opened = shaky.open()
    # The manifest before and after, and of each log the list and the last commit.
    assert len(proxy.requests()) == 2 + 2 * 3
    proxy.rules()
    batches = list(opened.loader(256, cache=cache, columns=["observation", "reward"]))
    assert sum(len(batch["reward"]) for batch in batches) == 3 * 12 * 511
    requests = proxy.requests()
    asked = Counter(request.path for request in requests)
    assert len(asked) == 3 + 3 and set(asked.values()) == {1}, asked
    assert not [request for request in requests if request.method == "HEAD"]
    proxy.rules()
    # Little of a file: its end, which is known by now, and the column in each of two row groups.
    assert sum(len(batch["reward"]) for batch in opened.loader(256, cache=cache, columns=["reward"])) > 0
    few = proxy.requests()
    assert max(Counter(request.path for request in few).values()) <= 2
    assert 10 * sum(request.size for request in few) < sum(request.size for request in requests)


@pytest.mark.further
def test_a_commit_repeats_those_before_it(backend: ObjectBackend) -> None:
    """A reader needs the last commit only, at any version; commits of earlier releases repeat nothing."""
    store = backend.create()
    fill(store, range(7), seal_every=1)
    log = sorted(name for name in backend.contents() if name.startswith("episodes/_delta_log/"))
    whole = {name: backend.contents()[name] for name in log}
    lines = [json.loads(line) for line in whole[log[-1]].splitlines()]
    repeated = lines[-1]["commitInfo"]["episodelake.repeated"]
    # What it repeats is what the commits say, but for their entries of the history.
    for name, text in zip(log, repeated, strict=False):
        assert text.encode().splitlines() == whole[name].splitlines()[:-1], name
    assert len(repeated) == len(log) - 1
    assert "episodelake.repeated" not in str(store.history().to_dicts())
    versions = [len(backend.open(version=number)) for number in range(len(log))]
    for name in log[:-1]:
        backend.write(name, b"never read")
    assert_numbered(backend.open(), range(7))
    for name, data in whole.items():
        *actions, information = (json.loads(line) for line in data.splitlines())
        information["commitInfo"].pop("episodelake.repeated", None)
        number = int(Path(name).stem)
        backend.write(name, commit_text("episodes", number, actions, information["commitInfo"]))
    assert [len(backend.open(version=number)) for number in range(len(log))] == versions
    assert_numbered(fill(backend.open(), [7], run="next"), range(8))


def _batch_in_child(loader: el.Loader, answers: Connection) -> None:
    try:
        next(iter(loader))
    except el.errors.StoreAccessError as error:
        answers.send(str(error))


@pytest.mark.further
def test_forked_workers_of_a_stream(backend: ObjectBackend) -> None:
    """Threads of obstore do not survive a fork: workers are spawned, and a forked one raises, which hung."""
    pytest.importorskip("torch")
    fill(backend.create(), range(6), seal_every=2)
    expected = [batch["reward"].tolist() for batch in backend.open().loader(4, cache="stream")]
    spawned = backend.open().loader(4, cache="stream").torch_loader(1)
    assert [batch["reward"].tolist() for batch in spawned] == expected
    fork = multiprocessing.get_context("fork")
    answer, answers = fork.Pipe(duplex=False)
    child = fork.Process(target=_batch_in_child, args=(backend.open().loader(4, cache="stream"), answers))
    child.start()
    assert answer.poll(PATIENCE) and "forked" in answer.recv()
    child.join(PATIENCE)


@pytest.mark.further
def test_a_job_over_episodes_goes_on(backend: ObjectBackend) -> None:
    """What an interrupted job computed waits beside the tables; a call elsewhere goes on and commits once."""
    store = backend.create()
    fill(store, range(4), seal_every=2)
    last = store.refresh()[3].id

    def fails(episode: el.Episode) -> int:
        if episode.id == last:
            raise OSError("later")
        return len(episode)

    with pytest.raises(el.errors.ComputationError, match="later"):
        store.map_episodes(fails, "n", of="episode", job_id="a")
    other = backend.open()
    report = other.map_episodes(len, "n", of="episode", job_id="a", workers=1)
    assert (report.episodes, report.resumed) == (4, 3)
    frame = other.episodes.collect()
    assert frame["n"].to_list() == frame["length"].to_list()
    assert store.map_episodes(fails, "n", of="episode", job_id="a").present
    assert not (store.handle.layout.root / ".writing").names()


def test_files_are_read_side_by_side(backend: ObjectBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Footers and row pointers of many files are asked for at once: alone, none of these reads would end."""
    store = backend.create()
    fill(store, range(8), seal_every=1)
    together, read_tail = threading.Barrier(4), RemotePlace.read_tail

    def waiting(place: RemotePlace, count: int) -> tuple[bytes, int]:
        if place.name.endswith(".parquet") and place.parent.name in ("episodes", "steps"):
            together.wait(PATIENCE)
        return read_tail(place, count)

    monkeypatch.setattr(RemotePlace, "read_tail", waiting)
    fresh, lengths = backend.open(), [value % 4 + 1 for value in range(8)]
    assert fresh.episodes.select("length").collect()["length"].to_list() == lengths
    assert fresh.context.snapshot.pointers.row_count.tolist() == [length + 1 for length in lengths]
    assert fresh.transitions.select(pl.len()).collect().item() == sum(lengths)


@pytest.mark.further
def test_an_error_ends_reads_side_by_side(backend: ObjectBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a file that cannot be read no other one is begun; the error is that of the first such file."""
    monkeypatch.setattr(files, "_READERS", 16)
    fill(backend.create(), range(40), seal_every=1)
    fresh = backend.open()
    names = [file.name for file in fresh.context.snapshot.episode_files]
    begun: list[str] = []
    together, read_tail = threading.Barrier(16), RemotePlace.read_tail

    def failing(place: RemotePlace, count: int) -> tuple[bytes, int]:
        if place.parent.name != "episodes":
            return read_tail(place, count)
        begun.append(place.name)
        together.wait(PATIENCE)
        raise PermissionError(f"not {place.name}")

    monkeypatch.setattr(RemotePlace, "read_tail", failing)
    with pytest.raises(el.errors.CorruptStoreError, match=names[0]):
        fresh.episodes.collect()
    assert sorted(begun) == sorted(names[:16])


AT_EXIT = """
import atexit
store = el.open(url, storage_options=options)
atexit.register(lambda: print(store.episodes.collect().height))
"""


@pytest.mark.further
def test_files_are_read_while_the_interpreter_ends(backend: ObjectBackend) -> None:
    """A handler at exit may read a store, though no more threads start then."""
    fill(backend.create(), range(3), seal_every=1)
    process = start(AT_EXIT, backend)
    out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (0, "3\n")
