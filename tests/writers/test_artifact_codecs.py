"""Constructor arguments that become artifacts: frames, arrays, containers, and classes of users."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest

import episodelake as el
from episodelake.store.environments import codecs
from kept_environments import record, run_row


@pytest.fixture(autouse=True)
def registered(monkeypatch: Any) -> Any:
    """Register an environment, and forget codecs afterwards."""
    monkeypatch.setattr(codecs, "_registered", {})
    before = dict(gymnasium.registry)
    gymnasium.register("Tabled-v0", "kept_environments:Tabled")
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def made_again(path: Path, value: Any) -> Any:
    """Record an environment with an argument, and return the argument of the one that is made again."""
    store = record(path, gymnasium.make("Tabled-v0", table=value))
    assert store.verify().ok
    return store.make_env(trust=True).unwrapped.table


MOMENTS = pd.date_range("2024-01-01", periods=3, tz="Europe/Berlin")
POLARS = {
    "plain": pl.DataFrame({"a": [1, 2, None], "b": ["x", "\n", "ß"], "c": [0.1, float("nan"), -0.0]}),
    "types": pl.DataFrame(
        {
            "time": [datetime(2024, 1, 1, tzinfo=UTC), None],
            "list": [[1, 2], []],
            "struct": [{"x": 1, "y": "a"}, {"x": 2, "y": None}],
            "category": pl.Series(["a", "b"], dtype=pl.Categorical),
            "enum": pl.Series(["a", "b"], dtype=pl.Enum(["b", "a"])),
            "small": pl.Series([1, 2], dtype=pl.UInt8),
        }
    ),
    "empty": pl.DataFrame(),
    "no rows": pl.DataFrame(schema={"a": pl.Int8}),
}
PANDAS = {
    "plain": pd.DataFrame({"a": [1, 2], "b": ["x", None]}),
    "index": pd.DataFrame({"price": [1.0, np.nan, 3.0]}, index=MOMENTS),
    "levels": pd.DataFrame(
        {"a": [1, 2]}, index=pd.MultiIndex.from_tuples([("x", 1), ("y", 2)], names=["k", "n"])
    ),
    "categories": pd.DataFrame({"a": pd.Categorical(["x", "y"], ["y", "x"], ordered=True)}),
}


@pytest.mark.parametrize("frame", POLARS.values(), ids=POLARS.keys())
def test_polars_frames(frame: pl.DataFrame, tmp_path: Path) -> None:
    """A Polars frame comes back equal, with its types."""
    again = made_again(tmp_path / "store", frame)
    assert again.schema == frame.schema and again.equals(frame)


@pytest.mark.parametrize("frame", PANDAS.values(), ids=PANDAS.keys())
def test_pandas_frames(frame: pd.DataFrame, tmp_path: Path) -> None:
    """A pandas frame comes back equal, with its index and types."""
    again = made_again(tmp_path / "store", frame)
    pd.testing.assert_frame_equal(again, frame, check_exact=True, check_freq=False)


def test_the_content_is_plain_parquet(tmp_path: Path) -> None:
    """Other programs read the artifact of a frame, and the spec names it."""
    record(tmp_path / "store", gymnasium.make("Tabled-v0", table=POLARS["plain"]))
    store = el.open(tmp_path / "store")
    row = run_row(store)
    assert row["env_spec"]["kwargs"] == {"table": {"$coded": ["polars", "argument-0.polars"]}}
    (file,) = row["env_bundle"]["files"]
    assert file["name"] == "argument-0.polars"
    found = pq.read_table(store.path / "artifacts" / file["sha256"])
    assert found.to_pydict()["b"] == ["x", "\n", "ß"]


VALUES = {
    "large array": np.random.default_rng(0).normal(size=(300, 1000)).astype(np.float32),
    "huge array": np.arange(2**20, dtype=np.int64).reshape(2, -1, order="F"),
    "records": np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]),
    "large dict": {"rows": [float(number) for number in range(100_000)], "x": (1, float("inf")), "n": None},
    "large list": ["text"] * 200_000,
}


@pytest.mark.further
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_large_values(value: Any, tmp_path: Path) -> None:
    """Arrays and containers that are too large for the spec come back equal, as the same types."""
    again = made_again(tmp_path / "store", value)
    assert type(again) is type(value)
    if isinstance(value, np.ndarray):
        assert again.dtype == value.dtype
    np.testing.assert_equal(again, value)


def test_small_values_stay_in_the_spec(tmp_path: Path) -> None:
    """A small array or dict needs no artifact."""
    for number, value in enumerate([np.arange(3), {"a": (1, 2)}]):
        store = record(tmp_path / str(number), gymnasium.make("Tabled-v0", table=value))
        assert not (store.path / "artifacts").exists()


class Derived(pd.DataFrame):
    """A frame with more than its rows."""

    @property
    def _constructor(self) -> type:
        return Derived


LOST = {
    "objects": pl.DataFrame({"a": [object()]}),
    "mixed": pd.DataFrame({"a": [1, "x", object()]}),
    "subclass": Derived({"a": [1]}),
    "array of objects": np.array([object()]),
    "functions": {"f": len, "rows": ["x" * 1024] * 1025},
}


@pytest.mark.filterwarnings("ignore:An argument of the environment")
@pytest.mark.parametrize("value", LOST.values(), ids=LOST.keys())
def test_what_would_be_lost_is_named(value: Any, tmp_path: Path) -> None:
    """A value that would come back as another one stops no recording, and is named by `make_env`."""
    store = record(tmp_path / "store", gymnasium.make("Tabled-v0", table=value))
    assert len(store) > 0
    with pytest.raises(el.errors.EnvUnavailableError, match="argument 'table' was"):
        store.make_env(trust=True)
    with pytest.raises(el.errors.EnvUnavailableError, match="argument 'table' was"):
        store.save_environment(gymnasium.make("Tabled-v0", table=value), name="a")


class Level:
    """A class of the user's own."""

    def __init__(self, name: str) -> None:
        self.name = name


def encode(level: Level) -> bytes:
    """Return its name."""
    return level.name.encode()


def test_codecs_of_users(tmp_path: Path) -> None:
    """A registered class is kept and made again; a process without the codec is told what to register."""
    el.register_artifact_codec(Level, "level", encode, lambda data: Level(data.decode()))
    store = record(tmp_path / "store", gymnasium.make("Tabled-v0", table=Level("first")))
    assert store.make_env(trust=True).unwrapped.table.name == "first"
    with pytest.raises(el.errors.UntrustedEnvError, match="files that the store brings"):
        store.make_env()
    el.register_artifact_codec(Level, "level", encode, lambda data: 1 / 0)
    with pytest.raises(el.errors.EnvUnavailableError, match="ZeroDivisionError"):
        store.make_env(trust=True)
    codecs._registered.clear()
    with pytest.raises(el.errors.EnvUnavailableError, match="register_artifact_codec"):
        store.make_env(trust=True)


@pytest.mark.parametrize("name", ["npy", "../x", "", "a.", 5])
def test_codecs_that_are_refused(name: Any) -> None:
    """A codec's name is a plain one, and none of the library's."""
    with pytest.raises(el.errors.InvalidArgumentError, match="name="):
        el.register_artifact_codec(Level, name, encode, Level)
    with pytest.raises(el.errors.InvalidArgumentError, match="expected a class"):
        el.register_artifact_codec(Level(""), "a", encode, Level)  # pyright: ignore[reportArgumentType]


def test_failing_encoders_stop_no_recording(tmp_path: Path) -> None:
    """An encoder that fails, or gives no bytes, is a warning."""
    for number, wrong in enumerate([lambda level: 1 / 0, lambda level: level.name]):
        el.register_artifact_codec(Level, "level", wrong, Level)
        with pytest.warns(RuntimeWarning, match="codec 'level' failed"):
            store = record(tmp_path / str(number), gymnasium.make("Tabled-v0", table=Level("a")))
        assert len(store) > 0


def test_pickles_are_not_read(tmp_path: Path) -> None:
    """An npy content with pickled objects, as a hostile store may have it, is damage."""
    hostile = io.BytesIO()
    np.save(hostile, np.array([{"a": 1}], object), allow_pickle=True)
    el.register_artifact_codec(Level, "level", lambda level: hostile.getvalue(), Level)
    store = el.create(tmp_path / "store", gymnasium.make("Tabled-v0"))
    store.save_environment(gymnasium.make("Tabled-v0", table=Level("a")), name="a")
    (file,) = (store.path / "environments").iterdir()
    content = json.loads(file.read_text())
    del content["crc32"]
    content["env_spec"] = content["env_spec"].replace('"level"', '"npy"')
    file.write_text(json.dumps(content))
    with pytest.raises(el.errors.CorruptStoreError, match="allow_pickle"):
        store.make_env("a", trust=True)
