"""Large arrays of integers, as cameras of depth give them, are stored in the encoding that suits them."""

from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium.spaces import Box

import episodelake as el

LENGTH, SHAPE = 5, (48, 64)


def depth() -> np.ndarray:
    """A slope with noise: neighbours differ little, and few values repeat."""
    slope = 700 + 40 * np.arange(SHAPE[0])[:, None] + 9 * np.arange(SHAPE[1])
    noise = np.random.default_rng(0).integers(0, 4, (LENGTH + 1, *SHAPE))
    return (slope + noise).astype(np.uint16)


def labels() -> np.ndarray:
    """A few values far from each other, at random."""
    return np.random.default_rng(1).choice(np.array([3, 21_000, 65_000], np.uint16), (LENGTH + 1, *SHAPE))


def still() -> np.ndarray:
    """A rough scene that a dictionary and zstd find in each frame again."""
    scene = 1000 + np.random.default_rng(2).integers(0, 900, SHAPE)
    frames = np.repeat(scene[None], LENGTH + 1, axis=0)
    for t, frame in enumerate(frames):
        frame[5 + t, 5:9] = 600
    return frames.astype(np.uint16)


def record(path: Path, frames: np.ndarray) -> el.EpisodeStore:
    """Write two episodes of frames."""
    store = el.create(
        path, observation_space=Box(0, 65535, SHAPE, np.uint16), action_space=Box(-1, 1, (2,), np.float32)
    )
    for run in ("one", "two"):
        with store.writer(run=run) as writer:
            writer.write_episode(
                observations=frames,
                actions=np.zeros((LENGTH, 2), np.float32),
                rewards=np.zeros(LENGTH),
                terminations=True,
                truncations=False,
            )
    return store.refresh()


def size_as(folder: Path, frames: np.ndarray, *, differences: bool) -> int:
    """The bytes of the frames as lists in a Parquet file."""
    options = {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"} if differences else {}
    table = pa.table({"frames": [frame.reshape(-1).astype(np.int32) for frame in frames]})
    pq.write_table(table, folder / "one.parquet", compression="zstd", compression_level=1, **options)
    return (folder / "one.parquet").stat().st_size


def encodings(path: Path) -> set[bool]:
    """Whether the column of each file of steps is stored as differences."""
    found = set()
    for file in (path / "steps").glob("*.parquet"):
        group = pq.ParquetFile(file).metadata.row_group(0)
        columns = [group.column(index) for index in range(group.num_columns)]
        (column,) = [each for each in columns if each.path_in_schema.startswith("observation")]
        found.add("DELTA_BINARY_PACKED" in column.encodings)
    return found


@pytest.mark.parametrize(
    ("frames", "near"),
    [(depth(), True), (labels(), False), (still(), None)],
    ids=["depth", "labels", "a still camera"],
)
def test_the_encoding_suits_the_values_and_all_engines_read_it(
    tmp_path: Path, frames: np.ndarray, near: bool | None
) -> None:
    """Recorded, copied and compacted, the same numbers come back from the store, DuckDB and Polars."""
    store = record(tmp_path / "store", frames)
    smaller = size_as(tmp_path, frames, differences=True) < size_as(tmp_path, frames, differences=False)
    assert near in (None, smaller)
    store.copy(tmp_path / "copy")
    whole = el.open(tmp_path / "copy")
    whole.compact()
    assert len(list((tmp_path / "copy" / "steps").glob("*.parquet"))) == 3
    expected = np.concatenate([frames, frames]).reshape(-1).tolist()
    for path in (tmp_path / "store", tmp_path / "copy"):
        assert encodings(path) == {smaller}
        for episode in el.open(path):
            assert episode.observations.dtype == np.uint16
            assert np.array_equal(episode.observations, frames)
    files = (tmp_path / "copy" / "steps").glob("*.parquet")
    for place in (tmp_path / "store" / "steps" / "*.parquet", *files):
        table = duckdb.sql(f"select unnest(observation) from '{place}'").to_arrow_table()
        values = table.column(0).to_pylist()
        assert values[: len(expected)] == expected[: len(values)]
        assert pl.read_parquet(place)["observation"].explode().to_list() == values


def test_differences_take_less_room(tmp_path: Path) -> None:
    """Depth takes less than half of its bytes, and less than with a dictionary."""
    frames = depth()
    record(tmp_path / "store", frames)
    (file, _) = (tmp_path / "store" / "steps").glob("*.parquet")
    pq.write_table(pq.read_table(file), tmp_path / "usual.parquet", compression="zstd")
    assert file.stat().st_size < min(frames.nbytes / 2, (tmp_path / "usual.parquet").stat().st_size)


@pytest.mark.parametrize("value", [0.5, "text"])
def test_columns_that_are_called_as_others_are_stored(tmp_path: Path, value: object) -> None:
    """A key of an info may be the path of a list in Parquet."""
    unit = Box(-1, 1, (2,), np.float32)
    store = el.create(tmp_path / "store", observation_space=unit, action_space=unit)
    numbers = np.arange(3000, dtype=np.int32)
    with store.writer() as writer:
        episode = writer.begin(np.zeros(2, np.float32), info={"x": numbers})
        episode.append(
            np.zeros(2, np.float32), 0.0, np.zeros(2, np.float32), info={"x": {"list": {"element": value}}}
        )
        episode.end()
    first, last = store.refresh()[0].infos
    assert np.array_equal(first["x"], numbers) and last == {"x": {"list": {"element": value}}}
