"""Object stores that ignore, refuse or spoil conditional puts: no writer commits to them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import episodelake as el
from conformance import ObjectBackend, assert_numbered, fill
from episodelake.store.files import remote
from object_fixtures import backend, one_proxy, proxy, spool
from object_server import FaultyProxy, Rule, shared_server
from real_environments import NUMBERED_SPACES, write_numbered

__all__ = ["backend", "one_proxy", "proxy", "spool"]

PROBE = r"/\.store\.json\.[0-9a-f]+\.tmp"
#: What a service or gateway may do to conditional puts, and a part of what the error says of it.
GATEWAYS: dict[str, tuple[Rule, str]] = {
    "ignored": (Rule("forget condition", "PUT", times=None, conditional=True), "accepted a second object"),
    "not implemented": (Rule("answer", "PUT", times=None, conditional=True, status=501), "plain puts only"),
    "bad request": (Rule("answer", "PUT", times=None, conditional=True, status=400), "plain puts only"),
    "not allowed": (Rule("answer", "PUT", times=None, conditional=True, status=405), "plain puts only"),
    "invisible": (Rule("answer", "GET", PROBE, times=None, status=404), "right after it was put"),
}


def through(proxy: FaultyProxy, backend: ObjectBackend) -> ObjectBackend:
    """The same prefix, reached by way of the proxy, with few retries."""
    found = ObjectBackend(shared_server())
    found.url = backend.url
    found.storage_options = proxy.storage_options(max_retries="1")
    return found


def probes(proxy: FaultyProxy) -> list[str]:
    """The probes that were put, with repetitions."""
    return [each.path for each in proxy.requests() if each.method == "PUT" and each.path.endswith(".tmp")]


@pytest.mark.parametrize("name", GATEWAYS)
def test_no_store_is_created_where_commits_could_be_lost(
    name: str, backend: ObjectBackend, proxy: FaultyProxy
) -> None:
    """The error says what the service did, and nothing stays behind."""
    rule, said = GATEWAYS[name]
    proxy.rules(rule)
    with pytest.raises(el.errors.StoreAccessError, match=said) as caught:
        through(proxy, backend).create()
    assert "conditional puts" in str(caught.value) and "docs/object-stores.md" in str(caught.value)
    assert backend.files() == []


def writes(store: el.EpisodeStore) -> dict[str, Callable[[], Any]]:
    """Everything that commits to a store, and cannot be done where commits may be lost."""
    labels = pl.DataFrame({"episode_id": [store[0].id], "label": ["x"]})
    advantages = pl.DataFrame({"episode_id": [store[0].id], "t": [0], "advantage": [1.0]})
    return {
        "writer": store.writer,
        "compact": store.compact,
        "delete": lambda: store.delete("length > 1"),
        "annotate episodes": lambda: store.annotate(labels),
        "annotate steps": lambda: store.annotate(advantages, on=("episode_id", "t")),
        "tag": lambda: store.tag("tagged"),
    }


@pytest.mark.further
def test_no_writer_commits_through_a_gateway_that_forgets_conditions(
    backend: ObjectBackend, proxy: FaultyProxy, spool: Path
) -> None:
    """Recording and maintenance raise before their first commit, and reading goes on."""
    fill(backend.create(), range(4), seal_every=2)
    before = [file for file in backend.files() if "/_delta_log/" in file or "/" not in file]
    proxy.rules(GATEWAYS["ignored"][0])
    store = through(proxy, backend).open()
    for name, write in writes(store).items():
        with pytest.raises(el.errors.StoreAccessError, match="conditional puts"):
            write()
        assert [f for f in backend.files() if "/_delta_log/" in f or "/" not in f] == before, name
    assert_numbered(store, range(4), engines=True)
    assert store.verify().ok and not list(spool.rglob("*.frames"))


@pytest.mark.further
def test_readers_put_nothing(backend: ObjectBackend, proxy: FaultyProxy) -> None:
    """With credentials that may only read, a store is read, verified, and asked what maintenance would do."""
    fill(backend.create(), range(4), seal_every=2)
    backend.open().tag("first")
    version = backend.open().version
    backend.open().compact()
    proxy.rules(Rule("answer", "PUT|POST|DELETE", times=None, status=403))
    store = through(proxy, backend).open()
    assert_numbered(store, range(4), engines=True)
    assert store.verify().ok and store.tags == {"first": version}
    assert store.delete("length > 1", dry_run=True).episodes == 3
    assert store.vacuum(timedelta(0), dry_run=True).files == ()
    assert len(store.refresh().history()) == version + 2
    assert [request.method for request in proxy.touched()] == []
    with pytest.raises(el.errors.StoreAccessError, match="refused"):
        store.writer()
    with pytest.raises(el.errors.StoreAccessError, match="refused"):
        store.delete("length > 1")


def test_a_process_asks_once(backend: ObjectBackend, proxy: FaultyProxy) -> None:
    """Creating a store and writing to it again and again costs two conditional puts."""
    reached = through(proxy, backend)
    store = reached.create()
    for number in range(3):
        fill(store, [number], run=f"run{number}")
    reached.open().tag("done")
    assert len(probes(proxy)) == 2 and len(set(probes(proxy))) == 1
    assert not [file for file in backend.files() if file.endswith(".tmp")]


@pytest.mark.further
def test_probes_at_the_same_time_do_not_meet(backend: ObjectBackend) -> None:
    """Many who write for the first time, as processes of their own would, all find that it works."""
    backend.create()

    def first_write(number: int) -> None:
        # Other options make it another store to the check.
        options = {**(backend.storage_options or {}), "user_agent": f"writer{number}"}
        with el.open(backend.at(), storage_options=options).writer(run=f"run{number}") as writer:
            write_numbered(writer, number, number % 4 + 1)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(first_write, range(8)))
    assert_numbered(backend.open(), range(8), ordered=False)
    assert not [file for file in backend.files() if file.endswith(".tmp")]


@pytest.mark.sample
@pytest.mark.parametrize("action", ["lose request", "cut request", "lose answer", "spoil answer"])
@pytest.mark.parametrize("skip", [0, 1])
def test_a_lost_connection_proves_nothing(
    action: Any, skip: int, backend: ObjectBackend, proxy: FaultyProxy
) -> None:
    """Whichever put of the check is lost, before or after the service did it, the check is right."""
    proxy.rules(Rule(action, "PUT", PROBE, skip=skip, status=500))
    store = through(proxy, backend).create()
    assert len(proxy.touched()) == 1
    assert_numbered(fill(store, range(2)), range(2))


def test_an_outage_is_not_taken_for_a_bad_service(
    backend: ObjectBackend, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the service cannot be reached the error names that, and later the same call succeeds."""
    monkeypatch.setattr(remote, "_PAUSE_SECONDS", 0)
    reached = through(proxy, backend)
    for rule in (Rule("lose request", "PUT", times=None), Rule("answer", "PUT", times=None, status=403)):
        proxy.rules(rule)
        with pytest.raises(el.errors.StoreAccessError) as caught:
            reached.create()
        assert "does not honour" not in str(caught.value)
    proxy.rules()
    reached.create()


@pytest.mark.further
def test_objects_that_may_not_be_deleted_do_no_harm(backend: ObjectBackend, proxy: FaultyProxy) -> None:
    """Where deleting is forbidden the check's object stays, and the store works and verifies as any other."""
    undeletable = Rule("answer", "DELETE|POST", r"\?delete|\.tmp", times=None, status=403)
    proxy.rules(undeletable, Rule("answer", "PUT", "/runs/", status=403))
    reached = through(proxy, backend)
    with pytest.raises(el.errors.StoreAccessError):
        reached.create()
    assert [file for file in backend.files() if file.endswith(".tmp")]
    store = fill(reached.create(), range(3))
    assert_numbered(store, range(3))
    assert store.verify().ok


@pytest.mark.further
def test_an_option_that_switches_conditions_off_is_refused(backend: ObjectBackend) -> None:
    """`aws_conditional_put=disabled` makes every commit impossible, and the error is one of ours."""
    options = {**(backend.storage_options or {}), "aws_conditional_put": "disabled"}
    with pytest.raises(el.errors.StoreAccessError, match="conditional puts"):
        el.create(backend.at(), **NUMBERED_SPACES, storage_options=options)
