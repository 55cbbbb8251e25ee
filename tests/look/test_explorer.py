"""The explorer without a browser: its list, moments, frames, queries, exports, the gate, and bad input."""

import csv
import functools
import io
import json
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st
from mpe2 import simple_spread_v3
from PIL import Image

import episodelake as el
from effort import looped
from episodelake.explorer import queries as explorer_queries
from episodelake.explorer.charts import OVERVIEWS, conditions_of, episode_spec, overview_spec, result_spec
from episodelake.explorer.labels import LabelQueue, read_label_set
from episodelake.explorer.listing import POSITION, Choice, EpisodeList, SeriesColors, positions_by
from episodelake.explorer.live.lake_figures import Figures, LakeFigures
from episodelake.explorer.live.watch import LakeWatch, Watch
from episodelake.explorer.moments import metadata_of, moment_of, summary_of, text_of
from episodelake.explorer.pictures.sources import frame_sources
from episodelake.explorer.queries import MOST_ROWS, Queries, Result, export_folder, ids_as, sql_of_ids
from episodelake.explorer.runs_pane import run_facts
from episodelake.explorer.sql_pane import _usual_kind
from episodelake.lakes import lake as lakes
from episodelake.readers.charts.theme import END_COLORS, PALETTE
from plain_agents import play_parallel, random_policy
from waiting import PATIENCE, wait_until

HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Forty episodes of two runs, of which two share a name, with metadata that is missing here and there."""
    path = tmp_path_factory.mktemp("explorer") / "store"
    found = el.create(path, observation_space=Box(-9, 9, (2,), np.float32), action_space=Discrete(3))
    rng = np.random.default_rng(3)
    for _ in range(2):
        with found.writer(run="same name") as writer:
            for number in range(20):
                length = int(rng.integers(1, 6))
                writer.write_episode(
                    observations=rng.uniform(-1, 1, (length + 1, 2)).astype(np.float32),
                    actions=rng.integers(0, 3, length),
                    rewards=np.round(rng.normal(size=length), 2),
                    terminations=bool(number % 2),
                    truncations=not number % 2,
                    infos=[{"step": t, "note": HOSTILE} for t in range(length + 1)],
                    metadata={"level": number // 3, "note": HOSTILE} if number % 4 else {},
                )
    return found.refresh()


@pytest.fixture(scope="module")
def episodes(store: el.EpisodeStore) -> EpisodeList:
    """Its list."""
    return EpisodeList(store)


@functools.cache
def plain_rows(store: el.EpisodeStore) -> list[dict[str, Any]]:
    """What a loop over the episodes finds, in the order of positions."""
    return [
        {
            POSITION: index,
            "episode_id": episode.id,
            "run_id": episode.run_id,
            "length": len(episode.rewards),
            "episode_return": float(sum(episode.rewards.tolist())),
            "end_reason": episode.end_reason,
            "metadata.level": episode.metadata.get("level"),
        }
        for index, episode in enumerate(store)
    ]


# The list


@looped("column", [POSITION, "episode_id", "length", "episode_return", "end_reason", "metadata.level"])
@looped("descending", [True, False])
def test_order(store: el.EpisodeStore, episodes: EpisodeList, column: str, descending: bool) -> None:
    """Sorting gives the order that Python's sort gives, with the episodes that have no value last."""
    rows = plain_rows(store)
    found = episodes.positions(Choice(sort=column, descending=descending)).tolist()
    values = [rows[position][column] for position in found]
    there = [value for value in values if value is not None]
    assert sorted(found) == list(range(len(rows)))
    assert there == sorted(there, reverse=descending)
    assert values == there + [None] * (len(values) - len(there))


@given(low=st.floats(-3, 3), longest=st.integers(0, 6), ended=st.sampled_from(["terminated", "truncated"]))
def test_filter(store: el.EpisodeStore, episodes: EpisodeList, low: float, longest: int, ended: str) -> None:
    """Conditions hold together, and choose what a loop over the episodes chooses."""
    conditions = (
        f"episode_return >= {low!r} -- a comment",
        "",
        f"length <= {longest}",
        f"end_reason = '{ended}'",
    )
    found = episodes.positions(Choice(conditions, descending=False)).tolist()
    assert found == [
        row[POSITION]
        for row in plain_rows(store)
        if row["episode_return"] >= low and row["length"] <= longest and row["end_reason"] == ended
    ]


def test_choice_as_sql(store: el.EpisodeStore, episodes: EpisodeList) -> None:
    """The query of a choice gives its episodes in its order when the store runs it."""
    run = episodes.runs[1].run_id
    choice = Choice(("length > 1", "episode_return < 2 -- low"), (run,), "episode_return", descending=True)
    wanted = [row["episode_id"] for row in episodes.rows(episodes.positions(choice))]
    assert store.sql(choice.sql).pl()["episode_id"].to_list() == wanted
    assert 0 < len(wanted) < 20
    assert {row["run_id"] for row in episodes.rows(episodes.positions(choice))} == {run}


def test_pages(store: el.EpisodeStore, episodes: EpisodeList) -> None:
    """Pages put together are the list, and each row says what the episode says."""
    positions = episodes.positions(Choice(sort="episode_return"))
    pages = [episodes.rows(positions[start : start + 7]) for start in range(0, len(positions), 7)]
    rows = [row for page in pages for row in page]
    plain = {row[POSITION]: row for row in plain_rows(store)}
    assert len(rows) == 40
    for row in rows:
        expected = plain[row[POSITION]]
        assert row["episode_return"] == pytest.approx(expected["episode_return"])
        assert {name: row[name] for name in expected if name != "episode_return"} == {
            name: value for name, value in expected.items() if name != "episode_return"
        }


def test_runs_and_columns(episodes: EpisodeList) -> None:
    """Runs of one name are told apart by their ids; columns that nobody filled are not offered."""
    assert [run.label for run in episodes.runs] == [run.run_id for run in episodes.runs]
    assert [run.episodes for run in episodes.runs] == [20, 20]
    assert episodes.columns[:5] == ["episode_id", "run_id", "episode_return", "length", "end_reason"]
    assert "metadata.level" in episodes.columns
    assert not {"seed", "options", "segment", "row_start"} & set(episodes.columns)


@looped(
    ("condition", "told"),
    [
        ("lenght > 3", "no column 'lenght'. Nearest: length"),
        ("levle > 3", "no column 'levle'. Nearest: metadata.level"),
        ("end_reason = truncated", "Texts stand in single quotes"),
        ("length", "gives BIGINT; expected a comparison"),
        ("length >", "syntax error"),
        ("length > 1) OR (true", "syntax error"),
        ("true; DROP TABLE episodes", "more than one statement"),
        ("length > (SELECT count(*) FROM read_csv('/etc/passwd'))", "Permission"),
        ("run_id IN (SELECT content FROM read_text('/etc/hostname'))", "Permission"),
    ],
)
def test_bad_conditions(episodes: EpisodeList, condition: str, told: str) -> None:
    """A condition that cannot be run is refused in words, alone and beside another; none reaches a file."""
    for conditions in ((condition,), ("length > 0", condition)):
        with pytest.raises(el.errors.QueryError) as caught:
            episodes.positions(Choice(conditions))
        assert told in str(caught.value)


def test_condition_with_tables(episodes: EpisodeList) -> None:
    """A condition may ask the tables episodes and runs, as `store.filter` may."""
    best = "episode_return = (SELECT max(episode_return) FROM episodes)"
    known = "run_id IN (SELECT run_id FROM runs WHERE name = 'same name')"
    assert len(episodes.positions(Choice((best, known)))) == 1


def test_unknown_episode(episodes: EpisodeList) -> None:
    """An id that is not there has no position."""
    assert episodes.position_of(episodes.frame["episode_id"][7]) == 7
    assert episodes.position_of("nobody/000001") is None


def test_amounts_of_a_choice(episodes: EpisodeList) -> None:
    """The header says which part of the episodes and of their runs a choice keeps."""
    runs = episodes.frame["run_id"]
    assert episodes.amounts() == f"{len(episodes)} episodes · {runs.n_unique()} runs"
    chosen = episodes.positions(Choice(("length > 3",)))
    kept = len({runs[int(place)] for place in chosen})
    assert episodes.amounts(chosen) == (
        f"{len(chosen)} of {len(episodes)} episodes · {kept} of {runs.n_unique()} runs"
    )


def test_a_living_writer(tmp_path: Path) -> None:
    """The page knows whether somebody writes: from the first step of a run to its end."""
    store = el.create(tmp_path / "live", observation_space=Discrete(3), action_space=Discrete(2))
    watch = Watch(store)
    assert not watch.look(lambda: 0.0).store.runs.collect().height
    assert not watch.recorded(lambda: 0.0).writers
    with store.writer() as writer:
        writer.begin(0)
        writer.flush()
        assert watch.recorded(lambda: 100.0).writers
    assert not watch.recorded(lambda: 200.0).writers


def test_ends_have_colours_of_their_own() -> None:
    """No end reason looks like a run, on the page and in charts."""
    assert not set(END_COLORS.values()) & set(PALETTE)


# One episode


def test_moments(store: el.EpisodeStore) -> None:
    """Each t shows the row that the episode has there, and nothing of the last one's missing action."""
    episode = store[5]
    for t in range(episode.length + 1):
        moment = moment_of(episode, t)
        assert moment.infos == {"step": str(t), "note": text_of(HOSTILE)}
        assert moment.step["observation"] == text_of(episode.observations[t].tolist())
        if t < episode.length:
            assert moment.step["action"] == str(episode.actions[t])
            assert float(moment.step["reward"]) == pytest.approx(episode.rewards[t])
            assert moment.step["terminated"] == str(bool(episode.terminations[t])).lower()
    assert moment_of(episode, episode.length).step["action"] == "\N{EN DASH}"


def test_texts_are_tamed(store: el.EpisodeStore) -> None:
    """Control characters of a store never reach the page, and long values are cut."""
    assert "\x1b" not in metadata_of(store[1])["note"]
    assert len(text_of("x" * 9999)) == 400
    assert text_of(b"abc") == "3 bytes"
    assert summary_of(store[1])["episode"] == store[1].id


def test_recorded_frames(tmp_path: Path) -> None:
    """The picture of t is the image that was observed at t, pixel by pixel."""
    frames = np.random.default_rng(0).integers(0, 255, (4, 24, 20, 3), np.uint8)
    space = Box(0, 255, (24, 20, 3), np.uint8)
    pictured = el.create(tmp_path / "pictured", observation_space=space, action_space=Discrete(2))
    with pictured.writer() as writer:
        writer.write_episode(
            observations=frames, actions=[0, 1, 0], rewards=[1, 2, 3], terminations=True, truncations=False
        )
    (source,) = frame_sources(pictured.refresh()[0], replayed=False)
    for t in (3, 0, 2):
        picture = source.picture(t)
        shown = np.asarray(Image.open(io.BytesIO(picture.data)))
        assert np.array_equal(shown, frames[t])
        assert picture.t == t
    assert "observation" not in moment_of(pictured[0], 1).step


def test_replayed_frames(tmp_path: Path) -> None:
    """Without images a replay shows what the environment renders, in any order of t."""
    recorded = el.create(tmp_path / "cartpole", gymnasium.make("CartPole-v1"))
    with recorded.record(gymnasium.make("CartPole-v1")) as env:
        env.reset(seed=4)
        while not any(env.step(1)[2:4]):
            pass
    episode = recorded.refresh()[0]
    plain = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    plain.reset(seed=4)
    rendered = [plain.render()]
    for _ in range(episode.length):
        plain.step(1)
        rendered.append(plain.render())
    assert frame_sources(episode, replayed=False) == []
    (source,) = frame_sources(episode, replayed=True)
    for t in (episode.length, 0, 3):
        picture = source.picture(t)
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(picture.data))), rendered[t])
        assert picture.difference is None


def test_replayed_frames_that_differ(tmp_path: Path) -> None:
    """Each frame of a replay says where the replay left the recording, from that step on."""
    recorded = el.create(tmp_path / "cartpole", gymnasium.make("CartPole-v1"))
    made = gymnasium.make("CartPole-v1")
    with recorded.record(made) as env:
        env.reset(seed=4)
        for t in range(6):
            made.unwrapped.force_mag = 10.0 if t < 3 else 11.0  # type: ignore[attr-defined]
            env.step(1)
    (source,) = frame_sources(recorded.refresh()[0], replayed=True)
    # A force acts upon the velocity first.
    assert [source.picture(t).difference for t in range(4)] == [None] * 4
    for t in (4, 6):
        assert (source.picture(t).difference or "").startswith("step 4: observation[1] was ")


def test_no_replay_without_environment(store: el.EpisodeStore) -> None:
    """Where no environment was kept, a replay is refused in words."""
    with pytest.raises(el.EpisodelakeError, match="environment"):
        frame_sources(store[0], replayed=True)


# Charts


@pytest.mark.further
@looped("name", list(OVERVIEWS))
def test_overviews_have_a_brush(store: el.EpisodeStore, name: str) -> None:
    """Dragging over a chart of all runs chooses; each field that it can choose by is a column of episodes."""
    text = json.dumps(overview_spec(name, store, SeriesColors()))
    assert '"name": "brush"' in text and '"bind": "scales"' not in text
    conditions = conditions_of(name, {field: (0.0, 5.0) for field in OVERVIEWS[name].columns})
    assert conditions
    assert len(store.filter(" AND ".join(conditions))) <= len(store)


def test_brush_as_condition(episodes: EpisodeList, store: el.EpisodeStore) -> None:
    """A brush over returns keeps the episodes inside of it; fields without a column are passed over."""
    conditions = conditions_of("returns", {"x": (3.5, 9.2), "value": (-0.5, 1.5), "other": (0, 1)})
    found = episodes.positions(Choice(tuple(conditions), descending=False)).tolist()
    rows = plain_rows(store)
    assert found == [
        row[POSITION]
        for row in rows
        if 3.5 <= int(row["episode_id"][-6:]) <= 9.2 and -0.5 <= row["episode_return"] <= 1.5
    ]


def test_cursor_in_every_panel(store: el.EpisodeStore) -> None:
    """Each panel of an episode has the cursor, and all of them go to the last t."""
    episode = store[5]
    specification = episode_spec(episode)
    assert {"name": "cursor", "value": 0} in specification["params"]
    for panel in specification["vconcat"]:
        assert panel["layer"][-1]["transform"] == [{"calculate": "cursor", "as": "t"}]
        assert panel["layer"][0]["encoding"]["x"]["scale"]["domain"] == [0, episode.length]


def test_charts_of_results(store: el.EpisodeStore) -> None:
    """A result is drawn whatever its columns are called; what has no place on an axis is refused."""
    table = store.sql("""SELECT run_id AS "a.b[0]", avg(length) AS "x:Q", list(length) AS many
        FROM episodes GROUP BY ALL""").to_arrow_table()
    bars = result_spec(table, "bars", "a.b[0]", "x:Q", None, SeriesColors())
    (data,) = bars["datasets"].values() if "datasets" in bars else [bars["data"]["values"]]
    assert len(data) == 2 and set(data[0]) == {"c0", "c1"}
    assert (
        result_spec(table, "histogram", "x:Q", None, "a.b[0]", SeriesColors())["encoding"]["y"]["aggregate"]
        == "count"
    )
    with pytest.raises(el.errors.InvalidArgumentError, match="lists"):
        result_spec(table, "line", "a.b[0]", "many", None, SeriesColors())
    with pytest.raises(el.errors.InvalidArgumentError, match="no column 'z'"):
        result_spec(table, "line", "z", "x:Q", None, SeriesColors())


@looped("descending", [False, True])
@looped(
    "column",
    [
        pl.Series([], dtype=pl.Float64),
        pl.Series([2.0, -1.0, 2.0, -0.0, 0.0, float("inf"), -1.0]),
        pl.Series([2.0, float("nan"), 2.0, None, float("inf"), float("nan"), None]),
        pl.Series([3, 1, 3, 2**63 - 1, -(2**63), 1]),
        pl.Series([3, 1, 3, 0, 2**64 - 1, 1], dtype=pl.UInt64),
        pl.Series([3, None, 3, 0, 1]),
        pl.Series(["b", "a", None, "b", "aa"]),
        pl.Series([True, False, True, None]),
    ],
)
def test_positions_by(column: pl.Series, descending: bool) -> None:
    """The order is that of a plain stable sort, with nulls last and NaN above all numbers."""

    def rank(position: int) -> Any:
        value = column[position]
        return (1, 0) if isinstance(value, float) and np.isnan(value) else (0, value)

    places = [place for place in range(len(column)) if column[place] is not None]
    wanted = sorted(places, key=rank)
    if descending:
        wanted = sorted(places[::-1], key=rank)[::-1]
    wanted += [place for place in range(len(column)) if column[place] is None]
    frame = column.alias("key").to_frame().with_row_index(POSITION)
    found = positions_by(frame, "key", descending)
    assert (found.tolist(), found.dtype) == (wanted, np.int64)


# SQL


def ask(queries: Queries, text: str, most: int = MOST_ROWS) -> Result:
    """The result of a query that nobody stops."""
    return queries.run(text, threading.Event(), most)


def test_queries(store: el.EpisodeStore) -> None:
    """A query gives its first rows and says whether these are all; a limit of its own is obeyed."""
    queries = Queries(store)
    total = sum(len(episode) + 1 for episode in store)
    whole = ask(queries, "SELECT * FROM steps", total)
    part = ask(queries, "SELECT * FROM steps", 7)
    assert (whole.table.num_rows, whole.complete) == (total, True)
    assert (part.table.num_rows, part.complete) == (7, False)
    assert ask(queries, "DESCRIBE episodes").table.num_rows > 5
    queries.close()


@looped(
    ("text", "told"),
    [
        ("SELECT returns FROM episodes", "episode_return"),
        ("SELECT * FROM read_csv('/etc/passwd')", "Permission"),
        ("COPY episodes TO '/tmp/out.csv'", "not a query"),
        ("SELECT 1; SELECT 2", "2 statements"),
        ("SELECT error('no')", "no"),
    ],
)
def test_bad_queries(store: el.EpisodeStore, text: str, told: str) -> None:
    """A query that cannot be run says why, and the next one runs."""
    queries = Queries(store)
    with pytest.raises(el.errors.QueryError, match=told):
        ask(queries, text)
    assert ask(queries, "SELECT 1").complete
    queries.close()


LONG = "SELECT count(*) FROM range(1000000000000) AS many WHERE range % 7 = 3"


@pytest.mark.parametrize("connected", [True, False])
def test_stopping_a_query(store: el.EpisodeStore, connected: bool) -> None:
    """One word ends a long query, also while it connects; none starts beside it, and the next one runs."""
    queries = Queries(store)
    if connected:
        ask(queries, "SELECT 1")
    problems: list[str] = []
    stopped = threading.Event()

    def long() -> None:
        try:
            queries.run(LONG, stopped)
        except el.errors.QueryError as error:
            problems.append(str(error))

    thread = threading.Thread(target=long, daemon=True)
    thread.start()
    wait_until(queries._busy.locked, "the query to begin")
    with pytest.raises(el.errors.QueryError, match="is running"):
        ask(queries, "SELECT 1")
    stopped.set()
    thread.join(PATIENCE)
    assert problems == ["The query was stopped."]
    assert ask(queries, "SELECT 1").table.num_rows == 1
    queries.close()


def test_stopping_a_query_before_it_runs(store: el.EpisodeStore) -> None:
    """A query that waits for its turn when it is stopped does not begin, and the next one runs."""
    queries = Queries(store)
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(el.errors.QueryError, match="was stopped"):
        queries.run(LONG, stopped)
    assert ask(queries, "SELECT 1").table.num_rows == 1
    queries.close()


def test_a_query_waits_for_completions(store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that is run while the editor asks for its completions waits for them, and then has its rows."""
    queries, asked, go_on = Queries(store), threading.Event(), threading.Event()
    names = explorer_queries.QuerySession.names

    def slow(*arguments: Any) -> Any:
        asked.set()
        assert go_on.wait(PATIENCE)
        return names(*arguments)

    monkeypatch.setattr(explorer_queries.QuerySession, "names", slow)
    with ThreadPoolExecutor(2) as pool:
        completions = pool.submit(queries.completions)
        assert asked.wait(PATIENCE)
        result = pool.submit(ask, queries, "SELECT 1")
        wait_until(queries._busy.locked, "the query to begin")
        go_on.set()
        assert result.result(PATIENCE).table.num_rows == 1
        assert completions.result(PATIENCE)
    queries.close()


# Exports


def test_ids(episodes: EpisodeList) -> None:
    """Ids leave as lines, as CSV and as JSON, in the order of the list."""
    rows = episodes.rows(episodes.positions(Choice(sort="length"))[:5])
    ids = [row["episode_id"] for row in rows]
    assert ids_as(rows, "txt").splitlines() == ids
    assert [row["episode_id"] for row in csv.DictReader(io.StringIO(ids_as(rows, "csv")))] == ids
    assert [row["episode_return"] for row in json.loads(ids_as(rows, "json"))] == [
        r["episode_return"] for r in rows
    ]
    assert ids_as([{"episode_id": "=1+1"}], "csv") == "episode_id\n'=1+1\n"
    with pytest.raises(el.errors.InvalidArgumentError):
        ids_as(rows, "xml")


def test_sql_of_ids(store: el.EpisodeStore) -> None:
    """The query for ticked rows gives them; a quote in an id ends nothing."""
    ids = [store[3].id, store[9].id]
    assert sorted(store.sql(sql_of_ids(ids)).pl()["episode_id"].to_list()) == sorted(ids)
    assert store.sql(sql_of_ids(["x' OR true --"])).fetchall() == []


def test_export_folder(tmp_path: Path) -> None:
    """A new store goes below the folder of the page and nowhere else, and never over something."""
    (tmp_path / "there").mkdir()
    (tmp_path / "out").symlink_to("/")
    assert export_folder(" best/of ", tmp_path) == tmp_path.resolve() / "best" / "of"
    for name in ("", " ", "/abs", "../up", "a/../..", "out/x", "."):
        with pytest.raises(el.errors.InvalidArgumentError):
            export_folder(name, tmp_path)
    with pytest.raises(el.errors.StoreExistsError):
        export_folder("there", tmp_path)


# Following


def copied(store: el.EpisodeStore, path: Path) -> el.EpisodeStore:
    """A store of the same episodes, to be written to."""
    return store.copy(path)


def write_one(store: el.EpisodeStore) -> None:
    """Record one more episode."""
    with store.writer(run="later") as writer:
        writer.write_episode(
            observations=np.zeros((2, 2), np.float32),
            actions=[0],
            rewards=[5.0],
            terminations=True,
            truncations=False,
        )


def test_watch_follows(store: el.EpisodeStore, tmp_path: Path) -> None:
    """A newer version is found once the pause is over; what was open still shows its own version."""
    path = tmp_path / "growing"
    watch = Watch(copied(store, path))
    before = watch.shown
    assert watch.look(lambda: 0.0) is before
    write_one(el.open(path))
    assert watch.look(lambda: 0.1) is before
    after = watch.look(lambda: 1000.0)
    assert (len(before.episodes), len(after.episodes)) == (40, 41)
    assert len(before.store) == 40 and before.store[3].rewards.shape == (before.store[3].length,)
    assert after.episodes.position_of(before.episodes.frame["episode_id"][3]) == 3


def test_watch_keeps_what_it_has(store: el.EpisodeStore, tmp_path: Path) -> None:
    """When a newer version cannot be read, the older one stays and the file is named."""
    path = tmp_path / "damaged"
    watch = Watch(copied(store, path))
    known = set((path / "episodes").glob("*.parquet"))
    write_one(el.open(path))
    (added,) = set((path / "episodes").glob("*.parquet")) - known
    added.write_bytes(b"PAR1 nothing PAR1")
    assert len(watch.look(lambda: 1000.0).episodes) == 40
    assert watch.problem is not None and added.name in watch.problem


def test_watch_of_a_damaged_store(store: el.EpisodeStore, tmp_path: Path) -> None:
    """A store with a damaged file of episodes is shown without it, the file is named, and it is followed."""
    path = tmp_path / "damaged"
    copied(store, path)
    write_one(el.open(path))
    victim = max((path / "episodes").glob("*.parquet"), key=lambda file: file.stat().st_size)
    lost = pq.read_metadata(victim).num_rows
    victim.write_bytes(b"PAR1 nothing PAR1")
    watch = Watch(el.open(path))
    assert len(watch.shown.episodes) == 41 - lost > 0
    (told,) = watch.left_out
    assert victim.name in told and f"Left out: {lost} row" in told
    write_one(el.open(path))
    assert len(watch.look(lambda: 1000.0).episodes) == 42 - lost
    assert (watch.problem, watch.left_out) == (None, (told,))


def test_pinned_watch(store: el.EpisodeStore, tmp_path: Path) -> None:
    """A version that was asked for is not left."""
    path = tmp_path / "pinned"
    copied(store, path)
    watch = Watch(el.open(path), pinned=True)
    write_one(el.open(path))
    assert len(watch.look(lambda: 1000.0).episodes) == 40


def test_watch_of_a_lake(store: el.EpisodeStore, tmp_path: Path) -> None:
    """A store is opened once for all pages, again after it was replaced; the list follows after a pause."""
    copied(store, tmp_path / "lake/one")
    watch = LakeWatch(el.lake(tmp_path / "lake"))
    assert watch.stores["episodes"].to_list() == [40]
    assert watch.store("one") is watch.store("one")
    copied(store, tmp_path / "lake/two")
    assert watch.look(lambda: 0.0).height == 1
    assert watch.look(lambda: time.monotonic() + 1000.0)["store"].to_list() == ["one", "two"]
    shutil.rmtree(tmp_path / "lake/one")
    before = watch.store("one")
    before.look(lambda: 1e9)
    assert before.problem is not None and len(before.shown.episodes) == 40
    with pytest.raises(el.errors.StoreNotFoundError, match="has no store 'one'"):
        watch.store("one")
    others = [watch.store("two")]
    for number in range(9):
        copied(store, tmp_path / f"lake/more{number}")
        others.append(watch.store(f"more{number}"))
    assert watch.store("more8") is others[-1] and watch.store("two") is not others[0]


def test_figures_of_a_lake(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Curves and last returns are those of a plain loop, none of several objectives; health follows."""
    copied(store, tmp_path / "lake/one")
    lake = el.lake(tmp_path / "lake")
    vectors = lake.create(
        "vectors", observation_space=Box(0, 1, (2,)), action_space=Discrete(2), reward_shape=(2,)
    )
    for _ in range(2):
        figures = LakeFigures(lake)
        figures.look(lake.refresh().stores())
        one = figures.figures["one"]
        places: dict[int, list[float]] = {}
        for episode in store:
            places.setdefault(episode.number * 24 // 20, []).append(episode.episode_return)
        assert one.curve == pytest.approx([np.mean(places[place]) for place in sorted(places)])
        assert one.last == max(store, key=lambda episode: episode.ended_at).episode_return
        assert figures.figures["vectors"] == Figures(vectors.refresh().version)
        wait_until(lambda figures=figures: len(figures.health) == 2, "the health of both")
        assert list(figures.health["one"].kinds) == [each.kind for each in store.health().findings]
        assert figures.live == frozenset()
        with vectors.writer() as writer:
            writer.write_episode(
                observations=np.zeros((3, 2), np.float32),
                actions=[0, 1],
                rewards=np.ones((2, 2)),
                terminations=True,
                truncations=False,
            )
            figures.look(lake.refresh().stores())
            assert figures.live == {"vectors"}


def test_rows_of_runs() -> None:
    """Finals, bests and curves of runs are those of a plain loop, whatever the order of their episodes. Those
    that the recorder ended are left out, but for runs without others.
    """
    random = np.random.default_rng(4)
    runs = ["a"] * 25 + ["b"] * 3 + ["c"] + ["d"] * 100 + ["e"] * 40
    random.shuffle(runs)
    returns = random.normal(size=len(runs))
    returns[np.flatnonzero(np.array(runs) == "c")] = np.nan
    returns[np.flatnonzero(np.array(runs) == "a")[-1]] = np.inf
    ends = np.array(["terminated", "truncated", "cut", "interrupted"])[random.integers(0, 4, len(runs))]
    ends[np.array(runs) == "b"] = "cut"
    moments = pl.Series(range(len(runs)), dtype=pl.Datetime("us", "UTC"))
    frame = pl.DataFrame(
        {
            "run_id": runs,
            "episode_return": returns,
            "end_reason": ends,
            "started_at": moments,
            "ended_at": moments,
        }
    )
    found = {each.run_id: each for each in run_facts(frame)}
    assert [*found] == sorted(set(runs), key=runs.index, reverse=True)
    for name, each in found.items():
        whole = [(value, end) for run, value, end in zip(runs, returns, ends, strict=True) if run == name]
        own = [value for value, end in whole if end not in ("cut", "interrupted")]
        own = own or [value for value, _ in whole]
        finite = [value for value in own if np.isfinite(value)]
        late = [value for value in own[-max(1, len(own) // 10) :] if np.isfinite(value)]
        assert each.episodes == len(whole) and each.best == (max(finite) if finite else None)
        assert each.final == (pytest.approx(np.mean(late)) if late else None)
        places: dict[int, list[float]] = {}
        for at, value in enumerate(own):
            places.setdefault(at * 24 // len(own), []).append(value)
        for mean, values in zip(each.curve, places.values(), strict=True):
            kept = [value for value in values if np.isfinite(value)]
            assert mean == (pytest.approx(np.mean(kept)) if kept else None)
    assert len(run_facts(frame, most=2)) == 2
    vectors = frame.with_columns(episode_return=pl.concat_list("episode_return", "episode_return"))
    assert {(each.final, each.best) for each in run_facts(vectors)} == {(None, None)}


def test_watch_of_a_lake_in_trouble(
    store: el.EpisodeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lake that cannot be listed for now stays as it was, with the reason."""
    copied(store, tmp_path / "lake/one")
    watch = LakeWatch(el.lake(tmp_path / "lake"))

    def failing(*_: object) -> None:
        raise el.errors.StoreUnavailableError("no descriptors")

    with monkeypatch.context() as patch:
        patch.setattr(lakes, "look", failing)
        assert watch.look(lambda: time.monotonic() + 1000.0).height == 1
        assert watch.problem == "no descriptors"
    assert watch.look(lambda: time.monotonic() + 9000.0).height == 1 and watch.problem is None


def test_damaged_steps(store: el.EpisodeStore, tmp_path: Path) -> None:
    """A damaged file of steps is named where it is met; the list and the other episodes stay."""
    path = tmp_path / "broken"
    copied(store, path)
    victim = el.open(path)[0]._block.file.path
    Path(str(victim)).write_bytes(b"PAR1" + bytes(200) + b"PAR1")
    broken = el.open(path)
    episodes = EpisodeList(broken)
    assert len(episodes.positions(Choice(("length > 0",)))) == 40
    with pytest.raises(el.errors.CorruptStoreError, match=Path(str(victim)).name):
        moment_of(broken[0], 0)
    with pytest.raises(el.errors.CorruptStoreError):
        ask(Queries(broken), "SELECT sum(reward) FROM steps")
    assert moment_of(broken[-1], 0).t == 0


# Stores of other kinds


def test_empty_store(tmp_path: Path) -> None:
    """An empty store has an empty list; its charts say that there is nothing to draw."""
    empty = el.create(tmp_path / "empty", observation_space=Box(0, 1, (2,)), action_space=Discrete(2))
    episodes = EpisodeList(empty)
    assert (
        len(episodes) == 0
        and episodes.rows(episodes.positions(Choice(sort="length"))) == []
        and episodes.runs == []
    )
    assert len(episodes.positions(Choice(("length > 1",)))) == 0
    for name in OVERVIEWS:
        with pytest.raises(el.EpisodelakeError):
            overview_spec(name, empty, SeriesColors())


def test_vector_rewards_and_nested_spaces(tmp_path: Path) -> None:
    """Several objectives and nested spaces are listed and shown, without a brush."""
    space = gymnasium.spaces.Dict({"text": gymnasium.spaces.Text(9), "place": Box(-1, 1, (2,), np.float32)})
    nested = el.create(
        tmp_path / "nested",
        observation_space=space,
        action_space=gymnasium.spaces.Tuple((Discrete(2), Discrete(3))),
        reward_shape=(2,),
    )
    place = np.zeros(2, np.float32)
    with nested.writer() as writer:
        episode = writer.begin({"text": "go", "place": place})
        episode.append((1, 2), [1.0, -1.0], {"text": "on", "place": place}, terminated=True, truncated=False)
        episode.end()
    nested.refresh()
    episodes = EpisodeList(nested)
    assert episodes.rows([0])[0]["episode_return"] == [1.0, -1.0]
    assert not episodes.sortable("episode_return")
    with pytest.raises(el.errors.QueryError, match="lists"):
        episodes.positions(Choice(sort="episode_return"))
    step = moment_of(nested[0], 0).step
    assert (step["observation.text"], step["action.1"], step["reward"]) == ("go", "2", "[1, -1]")
    assert overview_spec("returns", nested, SeriesColors())["usermeta"] == {
        "brush": False,
        "notes": [],
        "beyond": "",
    }


def test_agents(tmp_path: Path) -> None:
    """Of several agents, each one's steps are shown by themselves."""
    env = simple_spread_v3.parallel_env(max_cycles=6)
    agents = el.create(tmp_path / "agents", env)
    with agents.record(env) as recorder:
        play_parallel(recorder, random_policy(env, 1), seed=1)
    episode = agents.refresh()[0]
    assert EpisodeList(agents).rows([0])[0]["agents"] == list(episode.agents)
    member = episode.agent(episode.agents[1])
    assert moment_of(member, 0).step["action"] == str(member.actions[0])
    assert frame_sources(episode, replayed=True) == []
    assert overview_spec("returns", agents, SeriesColors())["usermeta"] == {
        "brush": False,
        "notes": [],
        "beyond": "",
    }


@looped(
    ("x", "y", "values", "kind"),
    [
        ("name", "n", ["a", "b"], "bars"),
        ("name", "n", ["a", "a"], "points"),
        ("t", "n", [0, 1], "line"),
        ("t", "n", [0, 1, 0], "points"),
        ("length", "n", [0, 1], "points"),
        ("n", "n", [0, 1], "histogram"),
    ],
)
def test_results_are_drawn_as_they_are(x: str, y: str, values: list[Any], kind: str) -> None:
    """Names that come again are no bars, which would be added, and steps that come again are no line."""
    assert _usual_kind(x, y, values, x in ("length", "n")) == kind


def labelled_store(path: Path) -> tuple[el.EpisodeStore, list[str]]:
    """A store of forty episodes, and their ids."""
    store = el.create(path, observation_space=Box(-1, 1, (1,)), action_space=Discrete(2))
    with store.writer() as writer:
        for _ in range(40):
            writer.write_episode(
                observations=np.zeros((4, 1), np.float32),
                actions=[0, 1, 0],
                rewards=np.ones(3),
                terminations=True,
                truncations=False,
            )
    return store.refresh(), store.episodes.collect()["episode_id"].to_list()


@pytest.mark.further
def test_labels_are_batched_and_none_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Many labels are few versions, the last value of each holds, one that the store refuses stops no other,
    and what a store that is out of reach did not take is tried again, or left in files when the queue closes.
    """
    store, ids = labelled_store(tmp_path / "store")
    queue = LabelQueue(store, tmp_path)
    for number, each in enumerate(ids):
        queue.add({(each,): {"good": number % 2 == 0}})
    queue.add({(ids[0],): {"good": None}, (ids[1],): {"note": "slipped"}, (ids[2], 1): {"slip": True}})
    assert queue.over((ids[3],), store.version, {"good": True, "length": 3}) == {"good": False, "length": 3}
    wait_until(lambda: not queue.waiting, "the commit")
    newest = el.open(store.path)
    assert newest.version - store.version <= 4
    assert newest.episodes.collect()["good"].to_list() == [None, *(n % 2 == 0 for n in range(1, 40))]
    assert newest[1].annotations["note"] == "slipped"
    assert newest[2].step_annotations["slip"][:3] == [None, True, None]
    assert queue.over((ids[3],), newest.version, {"good": True}) == {"good": True}, "the version has it"

    newest.delete(f"episode_id = '{ids[5]}'")
    queue.add({(each,): {"good": True} for each in ids[4:8]})
    queue.hurry()
    wait_until(lambda: not queue.waiting, "the commit of the others")
    assert [el.open(store.path)[each].annotations["good"] for each in (ids[4], *ids[6:8])] == [True] * 3
    assert len(queue.refused) == 1 and ids[5] in queue.refused[0]

    shutil.move(store.path, tmp_path / "away")
    queue.add({(ids[0],): {"note": "kept"}})
    queue.hurry()
    wait_until(lambda: bool(queue.problem), "a commit that fails")
    assert queue.waiting == 1
    shutil.move(tmp_path / "away", store.path)
    wait_until(lambda: not queue.waiting, "another attempt")
    assert el.open(store.path)[ids[0]].annotations["note"] == "kept" and not queue.problem

    shutil.move(store.path, tmp_path / "away")
    queue.add({(ids[1],): {"note": "later"}})
    queue.close()
    (left,) = tmp_path.glob(".labels-*.jsonl")
    assert str(left) in capsys.readouterr().err
    shutil.move(tmp_path / "away", store.path)
    queue = LabelQueue(store, tmp_path)
    queue.close()
    assert el.open(store.path)[ids[1]].annotations["note"] == "later"
    assert not [*tmp_path.glob(".labels-*")]


KILLED = """
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
import numpy as np
import episodelake as el
from episodelake.explorer import labels

labels._FIRST = 3600.0
store = el.open(sys.argv[1])
ids = store.episodes.collect()["episode_id"].to_list()
queue = labels.LabelQueue(store, Path(sys.argv[2]))
for each in ids:
    queue.add({(each,): {"good": True, "labelled_at": datetime(2026, 1, 2, tzinfo=UTC)}})
queue.add({(ids[0],): {"good": None}, (ids[1], 2): {"фаза": "захват", "held": np.True_}})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_command_loses_no_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one takes over what waited, also before a cut line, but nothing of a command that lives."""
    monkeypatch.setattr("episodelake.explorer.labels._FIRST", 3600.0)
    store, ids = labelled_store(tmp_path / "store")
    live = LabelQueue(store, tmp_path)
    live.add({(ids[39],): {"note": "of the other"}})
    subprocess.run([sys.executable, "-c", KILLED, store.path, tmp_path], timeout=PATIENCE)
    assert el.open(store.path).version == store.version
    left = {*tmp_path.glob(".labels-*.jsonl")}
    assert len(left) == 2
    for each in left:
        with each.open("a") as file:
            file.write('[["ru')
    queue = LabelQueue(store, tmp_path)
    assert queue.waiting == 41
    queue.close()
    found = el.open(store.path)
    assert found.episodes.collect()["good"].to_list() == [None] + [True] * 39
    assert found[3].annotations["labelled_at"] == datetime(2026, 1, 2, tzinfo=UTC)
    assert [[*found[1].step_annotations[name]][:3] for name in ("фаза", "held")] == [
        [None, None, "захват"],
        [None, None, True],
    ]
    live.close()
    assert el.open(store.path)[39].annotations["note"] == "of the other"
    assert not [*tmp_path.glob(".labels-*")]


def test_declarations_of_labels(tmp_path: Path) -> None:
    """A line declares a key and a label; names, keys and types that cannot be are refused."""
    store, _ = labelled_store(tmp_path / "store")
    store.label(0, grasp=1)
    wanted = {"s": ("outcome", "slip"), "1": ("grasp", 1), "g": ("good", True)}
    assert read_label_set(["S outcome=slip", "", "1 grasp=1", "g good=true"], store) == wanted
    cases = {
        "outcome": "expected a key and a label",
        "s length=3": "was recorded",
        "s grasp=firm": "takes a number",
        "u good=true": "a key of the page",
        "s tags=[1]": "a boolean, a number or a text",
    }
    for line, message in cases.items():
        with pytest.raises(el.errors.InvalidArgumentError, match=message):
            read_label_set([line], store)
