"""Types of values on their way through tables: dtypes and shapes of arrays, and every type of Arrow."""

from __future__ import annotations

import datetime
import decimal
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import episodelake as el
from effort import examples
from episodelake.store.spaces.arrow import plain_array, plain_type
from strategies import same

FURTHER = pytest.mark.further
SPACES: dict[str, Any] = {
    "observation_space": spaces.Box(-9, 9, (1,), np.float32),
    "action_space": spaces.Discrete(2),
}
DTYPES = ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
DTYPES += ["float16", "float32", "float64"]
SHAPES: Any = st.lists(st.integers(0, 3), max_size=3).map(tuple)
ARRAYS: Any = SHAPES.flatmap(
    lambda shape: st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, shape))
)
LISTS = st.sampled_from(
    [st.integers(-9, 9), st.floats(allow_nan=False), st.booleans(), st.text("ab", max_size=2)]
)
VALUES = st.one_of(ARRAYS, ARRAYS, LISTS.flatmap(lambda each: st.lists(each, max_size=3)), st.integers(-9, 9))


def ordered(value: Any) -> Any:
    """Return nested dicts with their keys in order."""
    if isinstance(value, dict):
        return {key: ordered(value[key]) for key in sorted(value)}
    return [ordered(each) for each in value] if isinstance(value, list | tuple) else value


def dynamic(store: el.EpisodeStore) -> list[Any]:
    """Return the infos, policy values, own columns and metadata of all episodes."""
    return [
        ordered([list(map(dict, each.infos)), dict(each.policy), dict(each.extra), dict(each.metadata)])
        for each in store.refresh()
    ]


def quoted(name: str) -> str:
    """Return the name of a column in SQL."""
    return f'"{name}"'


def copied(store: el.EpisodeStore, way: str, folder: Path) -> el.EpisodeStore:
    """Return a store with the same episodes, which went through tables; formats are in their contract."""
    steps: Any = store.steps.collect()
    episodes: Any = store.episodes.collect()
    if way == "filtered":
        steps = steps.with_columns(pl.col("t") + 0).filter(pl.col("t") >= 0)
    elif way == "sql":
        steps, episodes = (
            store.sql(f"select {', '.join(map(quoted, frame.columns))} from {name} order by episode_id")
            for name, frame in (("steps", steps), ("episodes", episodes))
        )
    elif way == "segments":
        (place,) = (store.path / "steps").glob("*.parquet")
        steps = pq.read_table(place)
    back = el.create(folder / "back", **SPACES)
    with back.writer() as writer:
        writer.write_episodes(steps, episodes=episodes)
    return back


WAYS = ["collect", "filtered", "sql", "segments"]


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=examples(12), deadline=None)
@given(data=st.data())
def test_dtypes_and_shapes_of_all_values_come_through(
    tmp_path_factory: pytest.TempPathFactory, way: str, data: st.DataObject
) -> None:
    """An array is an array of its dtype and shape, a list a list, wherever a store keeps it."""
    folder = tmp_path_factory.mktemp("types")
    store = el.create(folder / "store", **SPACES)
    infos, policy, extra, metadata = (
        data.draw(st.dictionaries(st.sampled_from(["p", "q", "r.s"]), VALUES, max_size=2)) for _ in range(4)
    )
    with store.writer() as writer:
        for _ in range(2):
            writer.write_episode(
                observations=np.zeros((3, 1), np.float32),
                actions=[0, 1],
                rewards=[1.0, 2.0],
                terminations=True,
                truncations=False,
                infos=[infos] * 3,
                policy={key: [value] * 2 for key, value in policy.items()},
                extra={f"own {key}": [value] * 3 for key, value in extra.items()},
                metadata=metadata,
            )
    expected = dynamic(store)
    try:
        read = dynamic(copied(store, way, folder))
    finally:
        shutil.rmtree(folder / "back", ignore_errors=True)
    assert same(read, expected), (read, expected)


def test_rows_of_another_process_have_the_types_that_arrow_has(tmp_path: Path) -> None:
    """A frame whose run this process has not read keeps what its own types tell, and is no error."""
    rows = pa.table(
        {
            "episode_id": ["r/000000"] * 2,
            "observation": pa.array([[0.0]] * 2, pa.list_(pa.float32())),
            "action": [0, None],
            "reward": [1.0, None],
            "terminated": [True, None],
            "truncated": [False, None],
            "info.grid": pa.array([[1, 2]] * 2, pa.list_(pa.int16())),
        }
    )
    store = el.create(tmp_path / "s", **SPACES)
    with store.writer() as writer:
        writer.write_episodes(rows)
    assert same(store.refresh()[0].infos[0]["grid"], np.array([1, 2], np.int16))


@pytest.mark.parametrize("kind", ["array:int8:2,3", "array:int8:7", "array:?", "nonsense", "array:int64:*"])
def test_a_kind_that_the_values_do_not_have_is_passed_over(tmp_path: Path, kind: str) -> None:
    """A file may claim any kind for a column; values that are others are read by their own type."""
    values = [[1, 2, 3, 4, 5, 600]] * 2
    field = pa.field("info.grid", pa.list_(pa.int16()), metadata={"kind": kind})
    table = episode_of(pa.array([0, 1])).append_column(field, pa.array(values, field.type))
    el.import_dataset(table, tmp_path / "s", last_observation="missing")
    assert same(el.open(tmp_path / "s")[0].infos[0]["grid"], np.array(values[0], np.int16))


def test_a_source_key_of_your_own_survives_exports(tmp_path: Path) -> None:
    """It is the key of the imported episode; one that is no text, or not unique, counts as lost."""
    store = el.create(tmp_path / "s", **SPACES)
    keys: list[Any] = ["hospital-7/patient-3", "twice", "twice", None]
    with store.writer() as writer:
        for key in keys:
            writer.write_episode(
                observations=np.zeros((2, 1), np.float32),
                actions=[0],
                rewards=[1.0],
                terminations=True,
                truncations=False,
                metadata={} if key is None else {"source_key": key},
            )
    store.refresh().export(tmp_path / "out.parquet", format="parquet", strict=True)
    for added, present in ((4, 0), (0, 4)):
        report = el.import_dataset(tmp_path / "out.parquet", tmp_path / "back")
        assert (report.episodes, report.present) == (added, present)
        assert dict(report.lost) == {"a source_key that is no text, or that others have too": 2}
    kept = [each.metadata["source_key"] for each in el.open(tmp_path / "back")]
    assert kept[0] == keys[0] and len(set(kept)) == 4


# Types of Arrow

TIMES = [
    pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Europe/Berlin")
]
SCALARS = [pa.bool_(), pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.uint64(), pa.float16(), pa.float32()]
SCALARS += [
    pa.float64(),
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.binary(2),
    pa.null(),
]
SCALARS += [pa.large_binary(), pa.binary_view(), pa.date32(), pa.decimal128(20, 3), *TIMES]


def listed(kind: pa.DataType) -> list[pa.DataType]:
    """The types of lists of two values of a type."""
    return [
        pa.list_(kind),
        pa.large_list(kind),
        pa.list_(kind, 2),
        pa.list_view(kind),
        pa.large_list_view(kind),
    ]


TYPES = st.sampled_from(SCALARS).flatmap(
    lambda kind: st.sampled_from(
        [kind, kind, *listed(kind), pa.list_(pa.list_view(kind)), pa.struct({"x": kind})]
    )
)
WRAPPED = st.sampled_from(["plain", "dictionary", "runs", "slice"])


def drawn(data: st.DataObject, kind: pa.DataType) -> Any:
    """Draw a value of a type, as pyarrow takes it; never NULL."""
    if pa.types.is_struct(kind):
        return {"x": drawn(data, kind.field("x").type)}
    if pa.types.is_nested(kind):
        return [drawn(data, kind.value_type) for _ in range(2)]
    if pa.types.is_integer(kind):
        bits, signed = kind.bit_width, pa.types.is_signed_integer(kind)
        high = 2 ** (bits - signed) - 1
        return data.draw(st.sampled_from([0, 1, high, high - 1, -high - 1 if signed else 2]))
    if pa.types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype()).type(data.draw(st.sampled_from([0.5, -2.0, np.inf])))
    if pa.types.is_timestamp(kind):
        fine = kind.unit in ("us", "ns")
        return data.draw(st.sampled_from([0, 1_700_000_000, 1_700_000_123_456_789 if fine else 1]))
    if pa.types.is_decimal(kind):
        return decimal.Decimal(data.draw(st.sampled_from(["0.125", "-3.000", "12345678901234567.891"])))
    if pa.types.is_date(kind):
        return datetime.date(2020, 1, 2)
    if pa.types.is_boolean(kind):
        return data.draw(st.booleans())
    if pa.types.is_null(kind):
        return None
    text = data.draw(st.sampled_from(["ab", "ßx"[:1] + "y"]))
    binary = "binary" in str(kind)
    return b"ab" if binary else text


def column(data: st.DataObject, rows: int, kinds: Any = TYPES, *, wrapped: bool = True) -> pa.Array:
    """Draw a column of a type."""
    kind = data.draw(kinds)
    try:
        array = pa.array([drawn(data, kind) for _ in range(rows)], kind)
    except (pa.ArrowInvalid, OverflowError, pa.ArrowNotImplementedError):
        array = pa.array(range(rows))
    how = data.draw(WRAPPED) if wrapped else "plain"
    if how == "slice":
        return pa.concat_arrays([array, array]).slice(rows)
    simple = not pa.types.is_nested(array.type) and not pa.types.is_null(array.type)
    try:
        if how == "dictionary" and simple:
            return array.dictionary_encode()
        if how == "runs" and simple:
            # By hand: Arrow encodes no view.
            return pa.RunEndEncodedArray.from_arrays(pa.array(np.arange(1, rows + 1), pa.int32()), array)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        pass
    return array


def episode_of(action: pa.Array, **columns: Any) -> pa.Table:
    """A table of one episode that ends with a transition."""
    rows = len(action)
    given = {
        "episode": ["e"] * rows,
        "observation": pa.array([[0.5]] * rows, pa.list_(pa.float32())),
        "action": action,
        "reward": [1.0] * rows,
        "terminated": [False] * (rows - 1) + [True],
        "truncated": [False] * rows,
    }
    return pa.table(given | columns)


def number(value: Any) -> Any:
    """Return a value as plain numbers, so that 1, 1.0 and True are equal, and arrays are lists."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    return [number(each) for each in value] if isinstance(value, list | tuple) else value


@pytest.mark.further
@settings(max_examples=examples(120), deadline=None)
@given(data=st.data())
def test_a_table_of_any_types_comes_in_exactly_or_not_at_all(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Every value is the one that pyarrow reads, or opaque, or an error of ours names it."""
    rows = 3
    numeric = st.sampled_from([*SCALARS[:9], *listed(pa.float32()), *listed(pa.int64()), *listed(pa.bool_())])
    reward = st.sampled_from([*SCALARS[:9], pa.decimal128(20, 3), *listed(pa.float64()), *listed(pa.int64())])
    table = episode_of(
        column(data, rows, numeric),
        observation=column(data, rows, numeric),
        reward=column(data, rows, reward),
        **{"info.a": column(data, rows), "info.b": column(data, rows), "metadata.m": column(data, rows)},
    )
    expected = [column.to_pylist() for column in table.columns]
    values = dict(zip(table.column_names, expected, strict=True))
    target = tmp_path_factory.mktemp("any") / "s"
    try:
        report = el.import_dataset(table, target, last_observation="missing")
    except (el.errors.DatasetError, el.errors.SpaceMismatchError):
        return
    (episode,) = el.open(target)
    assert number(episode.observations) == number(values["observation"]), report
    assert number(episode.actions) == number(values["action"])
    assert number(episode.rewards) == number(
        [float(x) if isinstance(x, decimal.Decimal) else x for x in values["reward"]]
    )
    for name in ("a", "b"):
        for info, true in zip(episode.infos, values[f"info.{name}"], strict=False):
            check_value(info.get(name), true)
    if report.lost.get("values of metadata.m that differ from the first of their episode") is None:
        check_value(episode.metadata.get("m"), values["metadata.m"][0])


def check_value(value: Any, true: Any) -> None:
    """Compare a value with that of pyarrow; what has no type of ours is opaque, and says so."""
    if isinstance(value, el.types.OpaqueValue):
        assert not isinstance(true, decimal.Decimal) or value.text == repr(true)
    elif isinstance(true, dict):
        assert set(value or {}) <= set(true)
        for key, inner in true.items():
            check_value((value or {}).get(key), inner)
    elif isinstance(true, list) and isinstance(value, list):
        for inner, true_inner in zip(value, true, strict=True):
            check_value(inner, true_inner)
    else:
        assert number(value) == number(true), (value, true)
        assert not isinstance(true, datetime.datetime) or not getattr(true, "nanosecond", 0)


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        (pa.timestamp("s"), 1_700_000_123_456),
        (pa.timestamp("ns", "UTC"), 1_700_000_000_123_456_789),
        (pa.list_(pa.timestamp("ns")), [1]),
        (pa.struct({"x": pa.timestamp("ns")}), {"x": 1}),
        (pa.time64("ns"), 1),
        (pa.duration("ns"), 1),
    ],
)
def test_times_that_python_does_not_have_are_opaque(tmp_path: Path, kind: pa.DataType, count: Any) -> None:
    """A time finer than a microsecond, or after the year 9999, is not cut; its text tells all of it."""
    table = episode_of(pa.array([0, 1]), **{"info.when": pa.array([count] * 2, kind)})
    store = el.create(tmp_path / "s", **SPACES)
    with store.writer() as writer:
        writer.write_episodes(table, last_observation="missing")
    when = store.refresh()[0].infos[0]["when"]
    when = when["x"] if isinstance(when, dict) else when
    assert isinstance(when, el.types.OpaqueValue) and when.text


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_plain_arrays_have_the_values_of_what_they_are_made_of(data: st.DataObject) -> None:
    """Views, dictionaries and runs at any depth, sliced, as pyarrow reads them."""
    array = column(data, 3)
    for each in (array, array.slice(1), array.slice(1, 1), array.slice(0, 0)):
        plain = plain_array(each)
        plain.validate(full=True)
        assert plain.type == plain_type(each.type)
        assert plain.to_pylist() == each.to_pylist()


def test_list_views_in_another_order_keep_their_values() -> None:
    """A cast by pyarrow 26 gives such a view other rows."""
    array = pa.ListViewArray.from_arrays([2, 0, 0], [1, 2, 0], pa.array([1, 2, 3]))
    assert plain_array(array).to_pylist() == array.to_pylist() == [[3], [1, 2], []]


# Single faults of their kind


def test_integers_that_a_float_would_round_are_named(tmp_path: Path) -> None:
    """In a vector of mixed columns, and in rewards, with the episode and the row."""
    whole, near = 2**53 + 1, 2**53
    for name, values in (("reward", [1, whole]), ("x", [near, whole]), ("x", [-whole, near])):
        table = episode_of(pa.array([0, 1]), **{"x": [0, 0], "y": [0.5, 0.5]} | {name: values})
        mapping = el.ColumnMapping(
            observation=["x", "y"],
            action="action",
            reward="reward",
            terminated="terminated",
            episode="episode",
        )
        row = values.index(max(values, key=abs))
        with pytest.raises(
            el.errors.DatasetError, match=rf"Episode e, row {row}: .*`{name}`.* {values[row]},"
        ):
            el.import_dataset(table, tmp_path / "s", mapping=mapping, last_observation="missing")
    exact = episode_of(pa.array([0, 1]), x=[2**60, near], y=[0.5, 0.5], reward=[2**60, 1])
    el.import_dataset(exact, tmp_path / "s", mapping=mapping, last_observation="missing")
    assert el.open(tmp_path / "s")[0].observations[0, 0] == 2**60


def test_decimals_are_the_same_digits_or_refused(tmp_path: Path) -> None:
    """A reward of decimals, as SQL makes them, is the nearest float if that has all of the digits."""
    for values, fits in ((["0.1", "12.345"], True), (["0.1", "12345678901234567.891"], False)):
        reward = pa.array(map(decimal.Decimal, values), pa.decimal128(20, 3))
        table = episode_of(pa.array([0, 1]), reward=reward)
        if fits:
            el.import_dataset(table, tmp_path / "s", last_observation="missing")
            assert el.open(tmp_path / "s")[0].rewards.tolist() == [0.1, 12.345]
        else:
            with pytest.raises(el.errors.DatasetError, match="more digits than float64 holds"):
                el.import_dataset(table, tmp_path / "t", last_observation="missing")


def test_booleans_are_a_discrete_space(tmp_path: Path) -> None:
    """Of an observation and an action, alone and in a Dict, from tables and from arrays."""
    flags = pa.array([True, False])
    table = episode_of(flags, observation=pa.StructArray.from_arrays([flags, flags], ["a", "b"]))
    report = el.import_dataset(table, tmp_path / "s", last_observation="missing")
    assert report.action_space == spaces.Discrete(2)
    assert report.observation_space == spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(2))
    (episode,) = el.open(tmp_path / "s")
    assert episode.actions.tolist() == episode.observations["a"].tolist()[:2] == [1, 0]
    again = el.import_dataset(table, tmp_path / "t", last_observation="missing", dry_run=True)
    assert again.preview is not None and again.preview["action"].to_list() == [1, 0, None]


@pytest.mark.parametrize("first", [None, []])
def test_a_list_of_rewards_may_begin_with_null(tmp_path: Path, first: Any) -> None:
    """The number of objectives is that of the first value, in rewards and in observations, however late."""
    rows = 40
    kind = pa.list_(pa.float64())
    names = [f"e{row // 2}" for row in range(rows)]
    pairs = pa.array([None if row % 2 else [1.0, 2.0] for row in range(rows)], kind)
    table = pa.table(
        {
            "episode": names,
            "observation": pa.array([[0.5]] * rows, pa.list_(pa.float32())),
            "action": pa.array([None if row % 2 else 1 for row in range(rows)]),
            "reward": pairs,
        }
    )
    late = pa.concat_tables([table.slice(1, 1), table.slice(0, 1), table.slice(2)])
    late = late.append_column("t", pa.array([1, 0] + [row % 2 for row in range(2, rows)]))
    el.import_dataset(late, tmp_path / "s")
    assert el.open(tmp_path / "s").reward_shape == (2,)
    assert el.open(tmp_path / "s")[0].rewards.tolist() == [[1.0, 2.0]]


def test_a_filtered_dataset_gives_the_rows_of_its_filter(tmp_path: Path) -> None:
    """A filter of `pyarrow.dataset` holds for the import, whatever the columns that it reads."""
    tables = [episode_of(pa.array([0, 1])).set_column(0, "episode", pa.array([name] * 2)) for name in "abc"]
    pq.write_table(pa.concat_tables(tables), tmp_path / "all.parquet")
    chosen = ds.dataset(tmp_path / "all.parquet").filter(pc.field("episode") != "b")
    report = el.import_dataset(chosen, tmp_path / "s", last_observation="missing")
    assert (report.episodes, report.steps) == (2, 4)


def test_paths_may_begin_with_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every function that takes a path takes `~`: stores, exports, imports, and artifacts."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    table = episode_of(pa.array([0, 1]))
    pq.write_table(table, tmp_path / "t.parquet")
    el.import_dataset("~/t.parquet", "~/store", last_observation="missing")
    store = el.open("~/store")
    store.copy("~/copy")
    el.merge(["~/copy"], "~/merged")
    (tmp_path / "elsewhere").mkdir()
    el.recover("~/store", journals="~/elsewhere")
    store.export("~/out.parquet", format="parquet")
    store.artifacts.add("~/t.parquet", name="table")
    store.artifacts.get("table", into="~/again.parquet")
    store.plot.returns().save("~/returns.json")
    el.create("~/made", **SPACES)
    made = {each.name for each in tmp_path.iterdir() if each.name[0] != "."}
    assert made == {
        "t.parquet",
        "store",
        "copy",
        "elsewhere",
        "merged",
        "out.parquet",
        "again.parquet",
        "returns.json",
        "made",
    }
