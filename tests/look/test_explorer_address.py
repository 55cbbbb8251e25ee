"""Addresses of the explorer's page, and the code that it copies: parsed, run, and compared."""

import io
import json
import shlex
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

import episodelake as el
from effort import looped
from episodelake.explorer.address import PANES, Address
from episodelake.explorer.charts import Curve
from episodelake.explorer.listing import Choice, EpisodeList
from picture_stores import raw, scores
from test_cli import call

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
ADDRESSES = st.builds(
    Address,
    pane=st.sampled_from(PANES),
    gallery=st.booleans(),
    where=TEXTS,
    brush=st.lists(TEXTS).map(tuple),
    runs=st.lists(TEXTS).map(tuple),
    finding=TEXTS,
    sort=TEXTS,
    episode=TEXTS,
    beside=TEXTS,
    t=st.integers(0, 10**9),
    signals=st.lists(TEXTS).map(tuple),
    chips=st.lists(TEXTS).map(tuple),
    compared=st.lists(TEXTS).map(tuple),
    align=TEXTS,
    overlaid=st.lists(TEXTS).map(tuple),
    facets=st.lists(TEXTS).map(tuple),
    query=TEXTS,
    curve=st.builds(Curve, by=TEXTS, smooth=st.integers(0, 50), band=st.sampled_from(["episodes", "runs"])),
)


@given(address=ADDRESSES)
def test_addresses_come_back(address: Address) -> None:
    """An address comes back from its own text, whatever it contains."""
    assert Address.of(parse_qs(address.text, keep_blank_values=True)) == address


@looped("query", ["pane=nowhere", "t=-3&smooth=x", "t=" + "9" * 40, "t=%D9%A3", "x=y&pane="])
def test_bad_addresses(query: str) -> None:
    """Parts of a query without a meaning are left out."""
    assert Address.of(parse_qs(query)) == Address()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Two runs with returns from 0 to 29."""
    path = tmp_path_factory.mktemp("address") / "store"
    return scores(path, {"a": [float(k) for k in range(30)], "b": [5.0, 7.0]})


def lines_of(command: str) -> str:
    """The output of a command."""
    return call(*shlex.split(command)[1:]).stdout


def run(address: Address, store: el.EpisodeStore) -> dict[str, Any]:
    """The names that copied code has defined."""
    names: dict[str, Any] = {}
    exec(address.python(EpisodeList(store)), names)
    return names


@pytest.fixture(scope="module")
def wild(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Runs with returns from 0 to 29, and one of a single episode that is an outlier."""
    path = tmp_path_factory.mktemp("wild") / "store"
    return scores(path, {"a": [float(k) for k in range(30)], "b": [5.0, 7.0], "c's": [1e6]})


@looped(
    ("address", "wanted"),
    [
        (Address(), "true"),
        (
            Address(where="episode_return > 25 -- high", chips=("length = 1",)),
            "episode_return > 25 AND length = 1",
        ),
        (
            Address(runs=("b", "c's"), brush=("length = 1",), sort="length"),
            "number = 0 AND run_id NOT LIKE 'a%'",
        ),
        (Address(runs=("b",)), "run_id LIKE 'b%'"),
        (Address(finding="outlier:largest reward", chips=("length > 0",)), "episode_return = 1e6"),
    ],
)
def test_copied_code_trains(wild: el.EpisodeStore, address: Address, wanted: str) -> None:
    """Copied Python has the conditions of the list, and its loader feeds each step of these episodes once."""
    ids = {run.label: run.run_id for run in EpisodeList(wild).runs}
    address = replace(address, pane="episodes", runs=tuple(ids[name] for name in address.runs))
    ((steps, total),) = raw(wild, f"SELECT sum(length), sum(episode_return) FROM episodes WHERE {wanted}")
    names = run(address, wild)
    batches = list(names["loader"])
    assert sum(len(batch["action"]) for batch in batches) == steps
    assert sum(float(batch["reward"].sum()) for batch in batches) == total
    assert "filter" in address.python(EpisodeList(wild)) or address == Address(pane="episodes")


def test_code_of_a_comparison(store: el.EpisodeStore) -> None:
    """Copied Python chooses the episodes that are compared, and draws them."""
    ids = (store[31].id, store[3].id)
    address = Address(pane="compare", compared=ids, align="end", overlaid=("reward",))
    assert {episode.id for episode in run(address, store)["episodes"]} == {*ids}


def test_code_gives_what_the_list_shows(store: el.EpisodeStore) -> None:
    """Python, SQL and the command of the list have its episodes in its order, and the open one."""
    episode = store[3].id
    address = Address(
        pane="episodes",
        where="episode_return > 25",
        chips=("episode_return < 29",),
        sort="-episode_return",
        episode=episode,
    )
    query = address.choice.sql
    wanted = [store[k].id for k in (28, 27, 26)]
    names = run(address, store)
    assert [each.id for each in names["episodes"]] == wanted and names["episode"].id == episode
    assert store.sql(address.sql(query)).pl()["episode_id"].to_list() == wanted
    listed, shown = address.command(store.url, query).rsplit("\n", 2)[:2]
    assert [each["episode_id"] for each in json.loads(lines_of(listed + " --json"))] == wanted
    assert episode in lines_of(shown)


def test_code_of_a_filtered_overview(store: el.EpisodeStore) -> None:
    """The code of an overview that follows a filter has that filter; health is of the whole store."""
    address = Address(where="episode_return > 3", brush=("length = 1",), chips=("episode_return < 9",))
    with redirect_stdout(io.StringIO()) as printed:
        names = run(address, store)
    kept = len(store.filter("episode_return > 3 and length = 1 and episode_return < 9"))
    assert len(names["episodes"]) == kept == store.sql(address.sql("")).pl()["episodes"].sum()
    whole = str(store.health())
    assert whole != str(names["episodes"].health())
    assert whole == printed.getvalue().strip()
    assert lines_of(address.command(store.url, "")) == lines_of(Address().command(store.url, "")) != ""


@pytest.mark.parametrize("address", [Address(), Address(pane="sql", query="SELECT 'it''s' AS x, 1 AS y")])
def test_code_of_other_panes_runs(store: el.EpisodeStore, address: Address) -> None:
    """Copied code of the overview and of the SQL box runs as it is."""
    run(address, store)
    assert len(store.sql(address.sql("")).fetchall()) > 0
    assert lines_of(address.command(store.url, "")) != ""


def test_a_brush_is_copied_as_sql(store: el.EpisodeStore) -> None:
    """The command is `sql` where `ls` has no option for the choice."""
    choice = Choice(("episode_return > 3", "length = 1"), sort="length")
    address = Address(pane="episodes", where="episode_return > 3", brush=("length = 1",), sort="length")
    printed = lines_of(address.command(store.url, choice.sql).strip() + " --csv")
    assert len(printed.splitlines()) == 1 + len(store.filter("episode_return > 3 and length = 1"))
