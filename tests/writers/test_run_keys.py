"""Metadata of runs as `run.<key>`: in conditions, SQL, charts and the explorer's list."""

import json

import pytest

import episodelake as el
from episodelake.explorer.listing import Choice, EpisodeList
from picture_stores import rows_of, scores
from test_cli import call, no_terminal

__all__ = ["no_terminal"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Three runs of two algorithms."""
    path = tmp_path_factory.mktemp("keys") / "store"
    return scores(
        path, {f"run{k}": [float(k)] * (k + 2) for k in range(3)}, run0="ppo", run1="dqn", run2="ppo"
    )


def algorithms(store: el.EpisodeStore) -> list[str]:
    """The algorithm of each episode's run, by a loop."""
    metadata = {run["run_id"]: run["metadata.algo"] for run in store.runs.collect().to_dicts()}
    return [metadata[episode.run_id] for episode in store]


@pytest.mark.parametrize(
    "condition", ["run.algo = 'ppo'", "RUN.algo = 'ppo'", "run.\"algo\" = 'ppo' AND true"]
)
def test_conditions(store: el.EpisodeStore, condition: str) -> None:
    """A condition chooses by the metadata of runs, also in views and beside steps."""
    wanted = [at for at, name in enumerate(algorithms(store)) if name == "ppo"]
    assert store.filter(condition).positions.tolist() == wanted
    assert store[1:].filter(condition).positions.tolist() == [at for at in wanted if at >= 1]
    beside = f"{condition} AND episode_id IN (SELECT episode_id FROM steps WHERE t = 2)"
    assert store.filter(beside).positions.tolist() == [at for at in wanted if store[at].length >= 2]


@pytest.mark.parametrize("descending", [False, True])
def test_listed_and_sorted(store: el.EpisodeStore, descending: bool) -> None:
    """`ls` shows keys of runs as columns and sorts by them, as `view.sort` does; it refuses unknown ones."""
    names = algorithms(store)
    order = sorted(range(len(names)), key=lambda at: (names[at] < "e") == descending)
    assert store.sort("run.algo", descending=descending).positions.tolist() == order
    options = ["--columns", "run.algo,length,run.name", "--order-by", "run.algo", "--json"]
    rows = json.loads(call("ls", store.url, *options, *(["-d"] if descending else [])).stdout)
    assert [row["position"] for row in rows] == order
    assert [row["run.algo"] for row in rows] == [names[at] for at in order]
    assert [row["run.name"] for row in rows] == [store[at].run_id.partition("-")[0] for at in order]
    assert list(rows[0]) == ["position", "run.algo", "length", "run.name"]
    refused = call("ls", store.url, "--columns", "run.algi")
    assert refused.exit_code == 1 and "run.algo" in refused.output


def test_conditions_of_names(store: el.EpisodeStore) -> None:
    """The name of a run is a key; an unknown key is an error that has the known ones."""
    assert {episode.run_id.partition("-")[0] for episode in store.filter("run.name = 'run1'")} == {"run1"}
    with pytest.raises(el.errors.QueryError, match="algo"):
        store.filter("run.algorithm = 'ppo'")
    # The table may be named, with and without a key.
    named = store.filter("episodes.length > 3 and run.name is not null")
    assert [each.id for each in store.filter("episodes.length > 3")] == [each.id for each in named]


def test_sql(store: el.EpisodeStore) -> None:
    """Queries group by keys, on the store and on views; a query that names none has no such column."""
    counts = dict(store.sql("SELECT run.algo, count(*) FROM episodes GROUP BY ALL").fetchall())
    assert counts == {name: algorithms(store).count(name) for name in ("ppo", "dqn")}
    view = store.filter("run.algo = 'dqn'")
    assert view.sql("SELECT DISTINCT run.algo, run.name FROM episodes").fetchall() == [("dqn", "run1")]
    joined = "SELECT DISTINCT run.algo FROM transitions JOIN episodes USING (episode_id) ORDER BY 1"
    assert store.sql(joined).fetchall() == [("dqn",), ("ppo",)]
    assert "run" not in store.sql("FROM episodes").columns


@pytest.mark.parametrize(
    "query",
    [
        "SELECT run.name FROM runs AS run ORDER BY 1",
        "SELECT run.name FROM episodes JOIN runs run USING (run_id) GROUP BY ALL ORDER BY 1",
        "WITH run AS (SELECT name FROM runs) SELECT run.name FROM run ORDER BY 1",
    ],
)
def test_relations_of_that_name(store: el.EpisodeStore, query: str) -> None:
    """Where a query calls a relation `run`, it means that one."""
    assert store.sql(query).fetchall() == [("run0",), ("run1",), ("run2",)]


@pytest.mark.further
def test_charts_and_the_list(store: el.EpisodeStore) -> None:
    """Charts take keys as series, and the explorer's list has, sorts, groups and filters by them."""
    rows = rows_of(store.plot.returns(by="run.algo"), "circle")
    assert {row["series"] for row in rows} == {"ppo", "dqn"}
    episodes = EpisodeList(store)
    assert episodes.frame["run.algo"].to_list() == algorithms(store) and "run.algo" in episodes.groups
    choice = Choice(("run.algo <> 'x'",), sort="run.algo", descending=False)
    listed = [row["episode_id"] for row in episodes.rows(episodes.positions(choice))]
    assert listed == [store[at].id for at in sorted(range(len(store)), key=lambda at: algorithms(store)[at])]
    # DuckDB leaves the order of equal keys open.
    asked = store.sql(choice.sql).pl()["episode_id"].to_list()
    algorithm = {one.id: name for one, name in zip(store, algorithms(store), strict=True)}
    assert sorted(asked) == sorted(listed)
    assert [algorithm[each] for each in asked] == [algorithm[each] for each in listed]
