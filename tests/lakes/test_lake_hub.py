"""A lake of the datasets of an organisation on the Hub, and who may read what there."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import episodelake as el
from episodelake.terminal.app import app
from episodelake.terminal.reports import lakes
from fake_hub import FakeHub
from publishing_targets import hub
from real_environments import numbered_store, values_of
from test_publishing_hub import cache
from waiting import PATIENCE

__all__ = ["cache", "hub"]

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def lake(tmp_path: Path, hub: FakeHub) -> el.types.Lake:
    """Two published datasets of an organisation, among other datasets."""
    for name, lengths in {"short": [2, 3], "long": [20, 30, 40]}.items():
        numbered_store(tmp_path / name, lengths).publish(f"hf://lab/{name}", tag="v1")
    numbered_store(tmp_path / "theirs", [7]).publish("hf://labs/theirs", tag="v1")
    hub.datasets["lab/other"] = type(hub.datasets["lab/long"])("lab/other", False)
    hub.datasets["lab/other"].add({"README.md": b"# other", "store.json": b"{}"})
    return el.lake("hf://lab")


def asked(hub: FakeHub, part: str) -> list[str]:
    """The requests whose path has a part."""
    return [path for _, path in hub.requests if part in path]


def test_datasets_of_an_organisation_are_stores(lake: el.types.Lake, hub: FakeHub) -> None:
    """They are listed and asked as one without a file of steps, and only what is new is fetched again."""
    hub.requests.clear()
    frame = lake.stores()
    assert frame.select("store", "url", "episodes", "steps", "error").rows() == [
        ("long", "hf://lab/long", 3, 90, None),
        ("short", "hf://lab/short", 2, 5, None),
    ]
    counts = lake.sql("select store, count(*), sum(length) from episodes group by 1 order by 1").fetchall()
    assert counts == [("long", 3, 90), ("short", 2, 5)]
    assert lake.episodes.filter(store="short").collect()["length"].to_list() == [2, 3]
    assert lake.runs.collect().height == 2 and list(lake) == ["long", "short"]
    assert lake.find("length > 25")["matches"].to_list() == [2]
    assert asked(hub, "/resolve/") and not [p for p in asked(hub, "/steps/") if p.endswith(".parquet")]
    hub.requests.clear()
    lake.refresh()
    assert el.lake("hf://lab/").stores().equals(frame) and not asked(hub, "/resolve/")
    assert values_of(lake["short"]) == [0, 1] and [p for p in asked(hub, "/steps/") if p.endswith(".parquet")]
    assert "short" in lake and "other" not in lake and "none" not in lake and "../x" not in lake


def test_commands_take_an_organisation(lake: el.types.Lake) -> None:
    """`episodelake lake` lists and asks the datasets of an organisation, and `explore` opens it as a lake."""
    listed = CliRunner().invoke(app, ["lake", "hf://lab", "--json"])
    assert [row["store"] for row in json.loads(listed.stdout)] == ["long", "short"]
    text = "select store, sum(length) from episodes group by 1 order by 1"
    asked = CliRunner().invoke(app, ["lake", "hf://lab", "--sql", text])
    assert asked.stdout.splitlines()[1:3] == ["long\t90", "short\t5"]
    assert lakes.open_store_or_lake("hf://lab", None).url == lake.url
    assert len(lakes.open_store_or_lake("hf://lab/short", None)) == 2
    with pytest.raises(el.errors.StoreNotFoundError, match="no published datasets at hf://nobody"):
        lakes.open_store_or_lake("hf://nobody", None)


@pytest.mark.further
def test_the_explorer_of_an_organisation(lake: el.types.Lake) -> None:
    """Its process opens the lake, and the page answers."""
    pytest.importorskip("nicegui")
    explorer = lake.explore()
    try:
        assert b"Episodelake" in urllib.request.urlopen(explorer.url, timeout=PATIENCE).read()
    finally:
        explorer.stop()


def test_a_new_version_shows_after_refresh(tmp_path: Path, lake: el.types.Lake, hub: FakeHub) -> None:
    """The lake shows one moment until `refresh`, then the newest version of each dataset."""
    assert len(lake) == 2
    el.open(tmp_path / "short").filter("length = 2").publish("hf://lab/short", tag="v2")
    assert lake.episodes.collect().height == 5
    hub.requests.clear()
    assert lake.refresh().episodes.collect().height == 4
    assert not asked(hub, "lab/long/resolve")
    del hub.datasets["lab/long"]
    assert lake.refresh().stores().select("store", "episodes").rows() == [("short", 1)]


def test_a_lake_of_the_hub_is_only_read(lake: el.types.Lake, hub: FakeHub) -> None:
    """Each call that would change the lake raises a clear error, and sends no request to the Hub."""
    hub.requests.clear()
    for call in (
        lambda: lake.create("new", "CartPole-v1"),
        lambda: lake.rename("short", "new"),
        lambda: lake.delete("short"),
    ):
        with pytest.raises(el.errors.StoreAccessError, match="is only read"):
            call()
    assert not hub.requests
    with pytest.raises(el.errors.StoreNotFoundError, match=r"no store 'shirt'.* 'short'"):
        lake["shirt"]
    for address in ("hf://lab/short", "hf://", "hf://lab@v1"):
        with pytest.raises(el.errors.InvalidArgumentError, match="expected hf://organisation"):
            el.lake(address)
    with pytest.raises(el.errors.InvalidArgumentError, match="Storage options are for object stores"):
        el.lake("hf://lab", storage_options={"aws_region": "x"})


def test_datasets_that_cannot_be_read_are_rows(
    lake: el.types.Lake, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gated dataset, a damaged one and a commit that is none have their error; the others are asked."""
    hub.datasets["lab/short"].gated = True
    files = hub.datasets["lab/long"].commits[hub.datasets["lab/long"].head]
    copied = hub.datasets["lab/bad"] = type(hub.datasets["lab/long"])("lab/bad", False)
    copied.add({**files, "checksums.json": b"{}"})
    errors = dict(lake.stores().select("store", "error").rows())
    assert errors["long"] is None and "it is gated" in errors["short"] and "checksums.json" in errors["bad"]
    with pytest.warns(RuntimeWarning, match="leaves out 2 stores"):
        assert lake.sql("select count(*) from episodes").fetchall() == [(3,)]
    hub.datasets["lab/long"].commits["../../outside"] = files
    error = dict(el.lake("hf://lab").stores().select("store", "error").rows())["long"]
    assert error is not None and "../../outside" in error
    # The package asks again after some seconds.
    monkeypatch.setattr("huggingface_hub.utils._http.time", SimpleNamespace(sleep=lambda seconds: None))
    hub.before = lambda method, path: 503 if path == "/api/datasets" else None
    with pytest.raises(el.errors.StoreUnavailableError, match="list the datasets of hf://lab"):
        el.lake("hf://lab").stores()


ACCESS: list[tuple[str, str | None, dict[str, str]]] = [
    ("private", None, {"read": "private and you are not logged in", "write": "private and you are not"}),
    ("private", "hf_stranger", {"read": "private and you are not logged in"}),
    ("private", "hf_typo", {"read": "does not accept your token", "write": "does not accept your token"}),
    ("gated", None, {"read": r"is gated. Ask for access at http.*/datasets/lab/short"}),
    ("gated", "hf_stranger", {"read": "is gated. Ask for access"}),
    ("gated", "hf_typo", {"read": "does not accept your token"}),
    ("public", "hf_typo", {"read": "does not accept your token"}),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("kind", "token", "messages"), ACCESS)
def test_who_may_not_read_is_told_what_to_do(
    tmp_path: Path,
    hub: FakeHub,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    token: str | None,
    messages: dict[str, str],
) -> None:
    """Without a token, with a wrong one, and before access was granted, each call says what is missing."""
    numbered_store(tmp_path / "short", [2, 3]).publish("hf://lab/short", tag="v1")
    dataset = hub.datasets["lab/short"]
    dataset.private, dataset.gated = kind == "private", kind == "gated"
    hub.tokens.add("Bearer hf_stranger")
    dataset.allowed = {"Bearer hf_lab"}
    if token is None:
        monkeypatch.delenv("HF_TOKEN")
    else:
        monkeypatch.setenv("HF_TOKEN", token)
    reads: list[Callable[[], Any]] = [
        lambda: el.pull("hf://lab/short", tmp_path / "got"),
        lambda: el.open("hf://lab/short@v1"),
        lambda: el.preview("hf://lab/short"),
    ]
    for call in reads:
        with pytest.raises(el.errors.EpisodelakeError, match=messages["read"]):
            call()
    if "write" in messages:
        with pytest.raises(el.errors.EpisodelakeError, match=messages["write"]):
            el.open(tmp_path / "short").publish("hf://lab/short", tag="v2")
    assert not (tmp_path / "got").exists()
    # Access is given, and taken back.
    monkeypatch.setenv("HF_TOKEN", "hf_stranger")
    dataset.allowed.add("Bearer hf_stranger")
    assert len(el.pull("hf://lab/short", tmp_path / "got")) == 2
    dataset.allowed.clear()
    if kind != "public":
        with pytest.raises(el.errors.EpisodelakeError):
            el.preview("hf://lab/short")


def test_no_bars_of_the_client_are_printed(
    tmp_path: Path, hub: FakeHub, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishing prints nothing by itself, also on a terminal; the bars of other uploads stay."""
    from huggingface_hub.utils import are_progress_bars_disabled

    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    store = numbered_store(tmp_path / "store", [2, 3])
    store.publish("hf://lab/numbers", tag="v1")
    el.pull("hf://lab/numbers", tmp_path / "got")
    assert capfd.readouterr() == ("", "") and not are_progress_bars_disabled()
