"""Every ordered pair of types under one key, in every family of columns: what each reader shows.

The oracle is the list of values that went in, and the rule of docs/format.md: the first value that has a
column decides whether a key holds numbers, text, lists or arrays of one shape; all numbers of that form show.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas
import polars as pl
import pytest
from deltalake import DeltaTable
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import episodelake as el
from episodelake.store.delta.table import Table
from episodelake.store.rewrite import compaction
from episodelake.store.segments import seal as sealer
from independent_values import untagged
from maintenance_stores import equal
from waiting import journals, wait_for_journal

SPACES: dict[str, Any] = {"observation_space": spaces.Discrete(3), "action_space": spaces.Discrete(2)}
#: One value of each type, and numbers at the edges of the types that hold them.
VALUES: list[Any] = [
    True,
    3,
    2**70,
    0.5,
    math.nan,
    "text",
    [1, 2],
    [1, 0.25],
    None,
    np.array([1, 2], np.int8),
    np.array([0.5, 1.5], np.float32),
]
MORE_VALUES: list[Any] = [
    *VALUES,
    2**53 + 1,
    -(2**63),
    -0.0,
    -math.inf,
    [True, False],
    [0.5, 1.5],
    ["a", "b"],
    [],
    (1, 2),
    b"bytes",
    np.array([[1, 2], [3, 4]], np.int32),
    np.array([[0.5, 2.0], [1.0, 0.0]], np.float64),
    np.array([2**63], np.uint64),
    np.array(7, np.int16),
]
#: Tables and prefixes of the families whose keys hold one value in each row.
COLUMN_GROUPS = {"info.": "steps", "policy.": "transitions", "": "steps", "metadata.": "episodes"}


def form(value: Any) -> Any:
    """Tell how a value stands in a column: as a number, text, list or array; None for no column."""
    if isinstance(value, bool | int | float):
        return "number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, np.ndarray):
        return {0: "number", 1: "numbers"}.get(value.ndim, value.shape)
    if isinstance(value, list) and value:
        return "texts" if all(isinstance(item, str) for item in value) else "numbers"
    return "nested" if isinstance(value, dict) else None


def shown(values: Sequence[Any]) -> list[Any]:
    """Say what the column of a key shows of its values, in the order in which they came."""
    column = next((form(value) for value in values if form(value) not in (None, "nested")), None)
    if column is None:
        return [None] * len(values)
    found = []
    for value in values:
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value.item()
        if form(value) == column:
            found.append(value)
        elif column == "text" and form(value) == "number":
            found.append(str(value).lower() if isinstance(value, bool) else str(value))
        elif column == "texts" and form(value) == "numbers":
            found.append([shown(["", item])[1] for item in np.asarray(value, object).tolist()])
        else:
            found.append(None)
    return found


def alike(cell: Any, value: Any) -> bool:
    """Compare a cell with the value that it shows: the number as near as its type comes."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, list | np.ndarray):
        flat = np.asarray(value).ravel().tolist()
        return cell is not None and len(cell) == len(flat) and all(map(alike, cell, flat))
    if isinstance(value, bool | int | float) and not isinstance(cell, str | None):
        return cell == value or float(cell) == float(value) or (cell != cell and value != value)
    return type(cell) is type(value) and cell == value


def check_shown(cells: Sequence[Any], values: Sequence[Any], where: str) -> None:
    """Check the cells of a column against the values that went in."""
    for cell, value, expected in zip(cells, values, shown(values), strict=True):
        if isinstance(value, list) and not value:
            assert cell in (None, [])
        else:
            assert alike(cell, expected), f"{where}: {cell!r} shows {value!r} of {list(values)!r}"


def record(store: el.EpisodeStore, rows: Sequence[Mapping[str, Any]], *, seals: bool, runs: bool) -> None:
    """Write an episode for each mapping, with its values in every family; each in its segment or run."""

    def write(writer: el.EpisodeWriter, row: Mapping[str, Any]) -> None:
        episode = writer.begin(0, row, metadata=dict(row), extra=row)
        episode.append(0, 1.0, 1, info=row, terminated=True, policy=row, extra=row)
        episode.end()
        if seals:
            writer.seal()

    if runs:
        for row in rows:
            with store.writer(metadata=dict(row)) as writer:
                write(writer, row)
    else:
        with store.writer() as writer:
            for row in rows:
                write(writer, row)
    store.refresh()


def column(prefix: str, key: str) -> str:
    """Give the name of a key's column."""
    return f"{prefix}{key}"


def first_of(values: Any) -> Any:
    """The value of the first step; dicts are stacked part by part."""
    return {key: first_of(part) for key, part in values.items()} if isinstance(values, dict) else values[0]


def check(
    store: el.EpisodeStore, rows: Sequence[Mapping[str, Any]], *, runs: bool = False, filters: bool = False
) -> None:
    """Check the readers of a store against the values of each key, in the order of the episodes."""
    keys = list(rows[0])
    episodes = list(store)
    for episode, row in zip(episodes, rows, strict=True):
        assert all(equal(info, dict(row)) for info in episode.infos)
        assert equal(episode.metadata, dict(row))
        for key, value in row.items():
            first = first_of(episode.policy[key])
            # Policy values are stacked, so an array without dimensions is an element of one.
            assert equal(np.asarray(first) if isinstance(value, np.ndarray) else first, value), key
    order = {episode.id: number for number, episode in enumerate(episodes)}
    queries = {table: f"select * from {table}" for table in set(COLUMN_GROUPS.values())}
    frames = {"steps": store.steps, "transitions": store.transitions, "episodes": store.episodes}
    for table, text in queries.items():
        for reader, frame in (("SQL", store.sql(text).pl()), ("Polars", frames[table].collect())):
            frame = frame.filter(pl.col("t") == 0) if "t" in frame.columns else frame
            ids = frame["episode_id"].to_list()
            frame = frame[np.argsort([order[one] for one in ids])]
            for prefix in (prefix for prefix, of in COLUMN_GROUPS.items() if of == table):
                check_frame(frame, prefix, rows, f"{reader} {table}")
    if runs:
        own = store.runs.sort("started_at").collect()
        check_frame(own, "metadata.", rows, "Polars runs")
        check_frame(store.sql("select * from runs order by started_at").pl(), "metadata.", rows, "SQL runs")
    numeric = [key for key in keys if any(form(row[key]) == "number" for row in rows)]
    check_loader(store, rows, numeric)
    mixed = [key for key in numeric if len({type(row[key]) for row in rows} & {int, float, bool}) > 1]
    check_filters(store, rows, mixed[:2] if filters else [])


def check_frame(frame: pl.DataFrame, prefix: str, rows: Sequence[Mapping[str, Any]], where: str) -> None:
    """Check every key's column of one family in a frame with a row for each mapping."""
    for key in rows[0]:
        values = [row[key] for row in rows]
        if column(prefix, key) in frame.columns:
            cells = frame[column(prefix, key)].to_list()
            check_shown(cells, values, f"{where} {prefix}{key}")
        else:
            assert not any(form(value) not in (None, "nested") for value in values), (
                f"{where} lacks {prefix}{key}: {values!r}"
            )


def first_numbers(values: Sequence[Any]) -> bool:
    """Tell whether the column of these values is one of numbers."""
    return (
        any(value is not None for value in shown(values))
        and "number" in map(form, values)
        and (next(form(value) for value in values if form(value) not in (None, "nested")) == "number")
    )


def check_loader(store: el.EpisodeStore, rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> None:
    """Check the numbers of a loader, and the mean that the statistics give.

    Numbers beside texts, arrays, bytes or tuples have no one kind or shape, so a batch of them is refused.
    """
    keys = [key for key in keys if first_numbers([row[key] for row in rows])]
    forms = {
        key: {form(row[key]) or type(row[key]) for row in rows if row[key] is not None} - {"nested"}
        for key in keys
    }
    for key in (key for key in keys if forms[key] != {"number"}):
        with pytest.raises(el.errors.InvalidArgumentError, match=r"different (shapes|kinds)"):
            store.loader(len(rows), columns=[f"info.{key}"])
        (batch,) = store.loader(len(rows), columns=[f"info.{key}_present"])
        assert batch[f"info.{key}_present"].tolist() == [form(row[key]) == "number" for row in rows]
    keys = [key for key in keys if forms[key] == {"number"}]
    names = [name for key in keys for name in (f"info.{key}", f"info.{key}_present")]
    if not keys:
        return
    (batch,) = list(store.loader(len(rows), columns=names))
    for key in keys:
        values = [row[key] for row in rows]
        there = [form(value) == "number" for value in values]
        assert batch[f"info.{key}_present"].tolist() == there
        for cell, value in zip(batch[f"info.{key}"].tolist(), values, strict=True):
            assert form(value) != "number" or alike(cell, value), (key, cell, value)
    finite = [
        key for key in keys if all(form(row[key]) == "number" and abs(row[key]) < 2**53 for row in rows)
    ][:5]
    stats = store.stats([f"info.{key}" for key in finite]) if finite else {}
    for key in finite:
        mean = np.mean([float(row[key]) for row in rows])
        assert np.allclose(stats[f"info.{key}"].mean, mean), key


def check_filters(store: el.EpisodeStore, rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> None:
    """Check conditions on metadata, in SQL and as Polars expressions, against a plain loop."""
    for key in keys:
        values = [row[key] for row in rows]
        if not first_numbers(values):
            continue
        name = f"metadata.{key}"
        for limit in (0.25, 2):
            # SQL and Polars order NaN above all numbers.
            expected = [
                number
                for number, value in enumerate(values)
                if form(value) == "number" and (value != value or value > limit)
            ]
            wanted = [store[number].id for number in expected]
            assert [one.id for one in store.filter(f'"{name}" > {limit}')] == wanted, (name, values)
            assert [one.id for one in store.filter(pl.col(name).cast(pl.Float64) > limit)] == wanted, (
                name,
                values,
            )


def bare(store: el.EpisodeStore, table: str) -> pl.DataFrame:
    """Read a table of the newest version with a Delta reader that knows nothing of the library."""
    return pl.read_delta(DeltaTable(str(store.path / table)))


def check_bare(store: el.EpisodeStore, rows: Sequence[Mapping[str, Any]]) -> None:
    """Check what other engines see in the files themselves."""
    order = {episode.id: number for number, episode in enumerate(store)}
    for table, prefixes in (("steps", ("info.", "policy.", "")), ("episodes", ("metadata.",))):
        frame = bare(store, table)
        files = [str(file) for file in DeltaTable(str(store.path / table)).file_uris()]
        raw = duckdb.sql(f"select * from read_parquet({files!r}, union_by_name = true)").pl()
        for name, found in (("Delta", frame), ("DuckDB", raw)):
            found = found.filter(pl.col("t") == 0) if "t" in found.columns else found
            found = found[np.argsort([order[one] for one in found["episode_id"].to_list()])]
            for prefix in prefixes:
                check_frame(found, prefix, rows, f"bare {name} {table}")


def pairs(values: Sequence[Any] = VALUES) -> list[dict[str, Any]]:
    """Give two mappings whose keys hold every ordered pair of values, and some nested ones."""
    each = list(itertools.product(range(len(values)), repeat=2))
    nested = [{"deep": {"x": 1}, "both": {"x": 1}}, {"deep": {"x": 0.5}, "both": 0.5}]
    return [{f"p{pair[0]}_{pair[1]}": values[pair[of]] for pair in each} | nested[of] for of in (0, 1)]


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Give a store in which the second value of each pair followed in a segment, and a run, of its own."""
    path = tmp_path_factory.mktemp("lattice") / "store"
    rows = pairs()
    record(el.create(path, **SPACES), rows, seals=True, runs=True)
    return path, rows


@pytest.mark.further
def test_every_pair_across_runs(sealed: tuple[Path, list[dict[str, Any]]]) -> None:
    """Whatever type was committed first, every reader shows every number, and episodes give exact values."""
    path, rows = sealed
    check(el.open(path), rows, runs=True, filters=True)


def test_the_format_says_what_columns_show(sealed: tuple[Path, list[dict[str, Any]]]) -> None:
    """A reader that follows the page on overflow, with the log and bare files, sees the same numbers."""
    path, rows = sealed
    store = el.open(path)
    order = {episode.id: number for number, episode in enumerate(store)}
    for table, prefixes in (("steps", ("info.", "policy.", "")), ("episodes", ("metadata.",))):
        frame = bare(store, table)
        frame = frame.filter(pl.col("t") == 0) if "t" in frame.columns else frame
        frame = frame[np.argsort([order[one] for one in frame["episode_id"].to_list()])]
        fields = json.loads(DeltaTable(str(path / table)).schema().to_json())["fields"]
        marks = {each["name"]: each["metadata"].get("overflow", "") for each in fields}
        for prefix in prefixes:
            assert marks[f"{prefix}_json"] == "marked"
            cells = [json.loads(text or "{}") for text in frame[f"{prefix}_json"].to_list()]
            for key in rows[0]:
                values = [row[key] for row in rows]
                mark = marks.get(column(prefix, key), "")
                if any(isinstance(value, np.ndarray) for value in values) or not mark:
                    continue
                known = frame[column(prefix, key)].to_list()
                filled = [
                    untagged(cell.get(key)) if one is None else one
                    for one, cell in zip(known, cells, strict=True)
                ]
                listed = mark.startswith("list:")
                check_shown(
                    [
                        one if isinstance(one, list) == listed and not isinstance(one, str) else None
                        for one in filled
                    ],
                    values,
                    key,
                )


@pytest.mark.further
def test_every_pair_after_compact(sealed: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    """After compact, bare engines see every number too, and the version before stays as it was."""
    path, rows = sealed
    shutil.copytree(path, tmp_path / "store")
    store = el.open(tmp_path / "store")
    before = store.version
    store.compact()
    check(store, rows, runs=True)
    check_bare(store, rows)
    assert store.verify().ok
    check(el.open(tmp_path / "store", version=before), rows)
    again = store.version
    store.compact()
    assert store.version == again


@pytest.mark.further
def test_merge_and_delete_keep_every_number(
    sealed: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """A store that others are merged into, and one that lost an episode, shows all numbers of what it has."""
    path, rows = sealed
    el.merge([path], tmp_path / "merged")
    merged = el.open(tmp_path / "merged")
    check(merged, rows)
    check_bare(merged, rows)
    merged.delete(f"episode_id = '{merged[0].id}'")
    assert equal(merged[0].metadata, dict(rows[1]))
    assert equal(merged[0].infos[0], dict(rows[1]))


@pytest.mark.further
def test_every_pair_in_one_segment(tmp_path: Path) -> None:
    """Types that meet before they are committed make a column that shows all numbers to any engine."""
    store = el.create(tmp_path / "store", **SPACES)
    rows = pairs()
    record(store, rows, seals=False, runs=False)
    check(store, rows)
    check_bare(store, rows)


@pytest.mark.further
def test_stores_of_earlier_writers(tmp_path: Path) -> None:
    """A store whose columns are not marked gives the same answers, and compact marks and widens them."""
    shutil.copytree(Path(__file__).parents[1] / "data" / "format-1-unmarked" / "store", tmp_path / "store")
    (tmp_path / "store" / "journal").mkdir(exist_ok=True)
    store = el.open(tmp_path / "store")
    values = [True, 3, 0.5, "text", [1, 2], [0.5, 1.5]]
    each = list(itertools.product(range(len(values)), repeat=2))
    rows: list[dict[str, Any]] = [
        {f"p{pair[0]}_{pair[1]}": values[pair[of]] for pair in each} for of in (0, 1)
    ]
    rows[0] |= {"big": 2**53 + 1, "huge": 0.5, "nest": {"x": 1}, "null": None, "nan": 0, "bytes": 3}
    rows[1] |= {"big": 0.5, "huge": 2**70, "nest": {"x": 0.5}, "null": 0.5, "nan": -math.inf, "bytes": b"b"}
    rows[0]["array"], rows[1]["array"] = np.array([1, 2], np.int8), np.array([0.5, 1.5], np.float32)
    check(store, rows, runs=True, filters=True)
    later = [{"p1_1": 0.125}]
    record(store, later, seals=True, runs=True)
    shown_later = 'select "info.p1_1" from steps where t = 0 order by 1'
    assert store.sql(shown_later).fetchall() == [(0.125,), (3.0,), (3.0,)]
    store.compact()
    assert store.sql(shown_later).fetchall() == [(0.125,), (3.0,), (3.0,)]
    store.delete(f"episode_id = '{store[2].id}'")
    check(store, rows)
    check_bare(store, rows)
    assert store.verify().ok


@pytest.mark.further
def test_recovered_rows_keep_their_types(tmp_path: Path) -> None:
    """What a killed writer left in its journal is shown like what it sealed itself."""
    store = el.create(tmp_path / "store", **SPACES)
    rows = pairs()
    record(store, rows[:1], seals=True, runs=True)
    with store.writer(metadata=dict(rows[1]), flush_seconds=0.01) as writer:
        episode = writer.begin(0, rows[1], metadata=dict(rows[1]), extra=rows[1])
        episode.append(0, 1.0, 1, info=rows[1], terminated=True, policy=rows[1], extra=rows[1])
        episode.end()
        (journal,) = journals(store.path)
        wait_for_journal(journal, 1, ended=1)
        # A copy has no writer that holds the lock of the journal: as if this one was killed now.
        shutil.copytree(store.path, tmp_path / "killed")
    el.recover(tmp_path / "killed")
    check(el.open(tmp_path / "killed"), rows, runs=True)


def test_kinds_wait_for_runs_that_are_recorded(tmp_path: Path) -> None:
    """While a run is being recorded compact leaves types as they are; its readers miss nothing."""
    store = el.create(tmp_path / "store", **SPACES)
    rows = [{"x": 1}, {"x": 0.5}, {"x": 2}, {"x": 0.25}]
    record(store, rows[:2], seals=True, runs=True)
    with store.writer(metadata=rows[2]) as writer:
        for row in rows[2:]:
            episode = writer.begin(0, row, metadata=row, extra=row)
            episode.append(0, 1.0, 1, info=row, terminated=True, policy=row, extra=row)
            episode.end()
            writer.seal()
            store.refresh()
            store.compact()
    store.refresh()
    check(store, rows)
    assert bare(store, "steps").schema["info.x"] == pl.Int64
    store.compact()
    check(store, rows)
    check_bare(store, rows)


def test_a_seal_that_meets_a_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that was written for a column's former kind is written anew, and not committed as it is."""
    store = el.create(tmp_path / "store", **SPACES)
    rows = [{"x": 1}, {"x": 0.5}, {"x": 2}]
    record(store, rows[:2], seals=True, runs=True)
    monkeypatch.setattr(compaction, "journal_folders", lambda folder: [])
    write, done = sealer.write_table_file, []

    def racing(place: Any, table: Any, *arguments: Any, **named: Any) -> Any:
        if not done and "episode_id" in table.column_names:
            done.append(el.open(store.path).compact())
        return write(place, table, *arguments, **named)

    monkeypatch.setattr(sealer, "write_table_file", racing)
    record(store, rows[2:], seals=True, runs=False)
    assert done
    check(store, rows)
    check_bare(store, rows)
    assert store.verify().ok


class Killed(BaseException):
    """Ends an operation as if its process was killed."""


@pytest.mark.sample(1)
@pytest.mark.parametrize("commits", range(4))
def test_a_compaction_that_dies_between_its_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    """After any number of its commits, every reader shows what it showed, and so does the next compaction."""
    store = el.create(tmp_path / "store", **SPACES)
    rows = [{"x": 1, "y": True}, {"x": 0.5, "y": 3}, {"x": 2, "y": 0.25}]
    record(store, rows, seals=True, runs=True)
    replace, made = Table.replace, []

    def dying(table: Table, *arguments: Any) -> None:
        if len(made) == commits:
            raise Killed
        replace(table, *arguments)
        made.append(table.path.name)

    monkeypatch.setattr(Table, "replace", dying)
    with contextlib.suppress(Killed):
        store.compact()
    monkeypatch.undo()
    assert len(made) == min(commits, 3)
    store.refresh()
    check(store, rows, runs=True)
    store.compact()
    check(store, rows, runs=True)
    check_bare(store, rows)
    assert store.verify().ok


def test_moments_are_columns(tmp_path: Path) -> None:
    """Datetimes and dates can be queried as timestamps and come back as they were; paths are texts."""
    store = el.create(tmp_path / "store", **SPACES)
    berlin = datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=1)))
    rows = [{"at": berlin, "day": date(2026, 1, 2), "out": Path("/runs/1")}, {"at": datetime(2026, 1, 3)}]
    record(store, rows, seals=True, runs=True)
    kept = [{**rows[0], "out": "/runs/1"}, rows[1]]
    for step in ("recorded", "compacted"):
        assert [one.metadata for one in store] == kept, step
        assert [one.infos[0] for one in store] == kept, step
        found = store.sql('select "metadata.at", "metadata.day" from episodes order by 1').fetchall()
        first, second = datetime(2026, 1, 2, 2, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC)
        assert found == [(first, datetime(2026, 1, 2, tzinfo=UTC)), (second, None)], step
        assert store.runs.collect()["metadata.at"].to_list() == [first, second]
        assert [one.metadata for one in store.filter("\"metadata.at\" > '2026-01-02 12:00'")] == kept[1:]
        assert len(store.filter(pl.col("metadata.out") == "/runs/1")) == 1
        store.compact()
    el.merge([store.path], tmp_path / "merged")
    assert [one.metadata for one in el.open(tmp_path / "merged")] == kept


def test_times_and_spans_of_time_come_back(tmp_path: Path) -> None:
    """As infos, as metadata and within lists, whoever made them, before and after a merge; never as text."""
    store = el.create(tmp_path / "store", **SPACES)
    span, at = timedelta(days=-2, seconds=3, microseconds=4), time(3, 4, 5, 6, timezone(timedelta(hours=-3)))
    given = {"lag": span, "at": at, "all": [span, {"at": time(3)}], "numpy": np.timedelta64(5, "ms")}
    given |= {"pandas": pandas.Timedelta(seconds=7), "days": np.timedelta64(2, "D")}
    record(store, [given, {"lag": timedelta.max, "at": time.max}, {"lag": 1.5}], seals=True, runs=True)
    others = {"numpy": timedelta(milliseconds=5), "pandas": timedelta(seconds=7), "days": timedelta(2)}
    kept = [{**given, **others}, {"lag": timedelta.max, "at": time.max}, {"lag": 1.5}]
    el.merge([store.path], tmp_path / "merged")
    for shown in (store, el.open(tmp_path / "merged")):
        assert [one.metadata for one in shown] == kept == [one.infos[0] for one in shown]
        assert type(shown[0].metadata["pandas"]) is timedelta
    fine = {"a": pandas.Timedelta(5, "ns"), "b": np.timedelta64(5, "ns"), "c": np.timedelta64(5, "M")}
    record(store, [fine], seals=False, runs=False)
    assert {type(value) for value in store.refresh()[-1].infos[0].values()} == {el.types.OpaqueValue}


def test_moments_of_numpy_are_moments(tmp_path: Path) -> None:
    """Datetimes of every unit come back as Python's; what Python lacks is opaque, never a bare number."""
    store = el.create(tmp_path / "store", **SPACES)
    nanoseconds = np.datetime64("2026-01-02T03:00:00.000000001")
    given = {
        "ns": np.datetime64("2026-01-02T03:00", "ns"),
        "ms": np.datetime64("2026-01-02T03:00", "ms"),
        "day": np.datetime64("2026-01-02"),
        "fine": nanoseconds,
        "far": np.datetime64("12026-01-02T03:00", "ms"),
        "none": np.datetime64("NaT", "ns"),
        "lag": np.timedelta64(5, "ns"),
    }
    record(store, [given], seals=False, runs=False)
    at = datetime(2026, 1, 2, 3)
    found = store[0].infos[0]
    assert (found.pop("ns"), found.pop("ms"), found.pop("day")) == (at, at, date(2026, 1, 2))
    assert {key: type(value) for key, value in found.items()} == dict.fromkeys(found, el.types.OpaqueValue)
    assert found["fine"].text == repr(nanoseconds) and len(found) == 4
    assert store.query('select max("info.ns") from steps').item() == at.replace(tzinfo=UTC)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_many_pairs(tmp_path: Path, part: int) -> None:
    """The same for every pair of many more values, in two runs, after compact, and in one segment."""
    whole = pairs(MORE_VALUES)
    keys = list(whole[0])
    half = keys[part * len(keys) // 2 : (part + 1) * len(keys) // 2]
    rows = [{key: row[key] for key in half} for row in whole]
    for number, seals in enumerate((True, False)):
        store = el.create(tmp_path / f"store{number}", **SPACES)
        record(store, rows, seals=seals, runs=seals)
        check(store, rows)
        store.compact()
        check(store, rows)
        check_bare(store, rows)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    values=st.lists(
        st.lists(st.sampled_from(range(len(MORE_VALUES))), min_size=3, max_size=3), min_size=2, max_size=5
    ),
    cuts=st.sets(st.integers(0, 4)),
    compacted=st.sets(st.integers(0, 4)),
)
def test_sequences(values: list[list[int]], cuts: set[int], compacted: set[int]) -> None:
    """Any sequence of values, in runs and segments of any cut, compacted at any time, is shown in full."""
    rows = [{f"k{key}": MORE_VALUES[index] for key, index in enumerate(row)} for row in values]
    with tempfile.TemporaryDirectory() as folder:
        store = el.create(Path(folder) / "store", **SPACES)
        start = 0
        for stop in sorted({*(cut for cut in cuts if 0 < cut < len(rows)), len(rows)}):
            record(store, rows[start:stop], seals=stop % 2 == 0, runs=False)
            start = stop
            if stop in compacted:
                store.compact()
        check(store, rows)
        store.compact()
        check(store, rows)
        check_bare(store, rows)
        assert store.verify().ok
