"""An import knows episodes by their source key and digest: none comes in twice, no change is missed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import episodelake as el
from episodelake.importing.digests import content_digest, table_digests
from episodelake.writers.importing.formats import ForeignEpisode


@pytest.mark.further
def test_a_data_set_that_grows_keeps_its_identity(tmp_path: Path) -> None:
    """The rows of a new episode of RLlib bring in that one alone; other formats are in the contract."""
    rows = [
        {"eps_id": f"e{e}", "t": t, "obs": [float(e), t / 4], "new_obs": [float(e), (t + 1) / 4]}
        | {"actions": t % 2, "rewards": 0.0}
        for e in range(3)
        for t in range(3)
    ]
    for count, (added, present) in ((2, (2, 0)), (3, (1, 2))):
        pq.write_table(pa.Table.from_pylist(rows[: 3 * count]), tmp_path / "rows.parquet")
        report = el.import_dataset(tmp_path / "rows.parquet", tmp_path / "store", format="rllib")
        assert (report.episodes, report.present) == (added, present)


def test_only_the_changed_episodes_are_replaced(tmp_path: Path) -> None:
    """The other episodes of their segment stay, with their ids; the values are those of the table."""

    def write(rewards: list[float]) -> pl.DataFrame:
        steps = [(e, t) for e in range(5) for t in range(3)]
        return pl.DataFrame(
            {
                "episode": [e for e, _ in steps],
                "t": [t for _, t in steps],
                "observation": [[float(e), float(t)] for e, t in steps],
                "next_observation": [[float(e), t + 1.0] for e, t in steps],
                "action": [0] * 15,
                "reward": [rewards[e] for e, _ in steps],
                "terminated": [t == 2 for _, t in steps],
                "truncated": [False] * 15,
            }
        )

    file = tmp_path / "x.parquet"
    write([0.0, 1.0, 2.0, 3.0, 4.0]).write_parquet(file)
    el.import_dataset(file, tmp_path / "store")
    ids = {episode.metadata["source_key"]: episode.id for episode in el.open(tmp_path / "store")}
    write([0.0, 7.0, 2.0, 8.0, 4.0]).write_parquet(file)
    report = el.import_dataset(file, tmp_path / "store", on_changed="replace")
    assert (report.episodes, report.replaced, report.present) == (0, 2, 3)
    store = el.open(tmp_path / "store")
    by_key = {episode.metadata["source_key"].rpartition("/")[2]: episode for episode in store}
    assert {key: each.rewards[0] for key, each in by_key.items()} == {
        "0": 0,
        "1": 7,
        "2": 2,
        "3": 8,
        "4": 4,
    }
    changed = {key for key, id in ids.items() if id not in {episode.id for episode in store}}
    assert {key.rpartition("/")[2] for key in changed} == {"1", "3"}


def test_equal_first_rows_do_not_make_datasets_equal(tmp_path: Path) -> None:
    """Two files that part in their last step are two datasets; objects, too."""
    for index in range(2):
        values = np.zeros((300, 2), np.float32)
        values[-1] = index
        terminals = np.zeros(300, bool)
        terminals[99::100] = True
        arrays = {"observations": values, "actions": values[:, :1], "terminals": terminals}
        np.savez(tmp_path / f"{index}.npz", **arrays)
        frame = pl.DataFrame(
            {
                "episode": np.arange(300) // 100,
                "observation": values,
                "action": values[:, :1],
                "reward": values[:, 0],
            }
        )
        for source in (tmp_path / f"{index}.npz", frame):
            store = tmp_path / ("npz" if isinstance(source, Path) else "frame")
            if index and not isinstance(source, Path):
                # Its first episode is the same, so that it looks like the same object, corrected.
                with pytest.raises(el.errors.DatasetError, match="name="):
                    el.import_dataset(source, store, last_observation="missing")
                report = el.import_dataset(source, store, last_observation="missing", name="second")
            else:
                report = el.import_dataset(source, store, last_observation="missing")
            assert (report.episodes, report.present) == (3, 0)


def test_digests_tell_values_shapes_and_nesting_apart() -> None:
    """Equal values in other containers, shapes or dtypes differ."""

    def digest(part: Any, name: str = "infos") -> str:
        values = np.zeros(2)
        return content_digest(replace(ForeignEpisode(values, values, values, True, False), **{name: part}))

    array = np.arange(6, dtype=np.int64)
    different: list[Any] = [
        array,
        array.reshape(2, 3),
        array.astype(np.int32),
        array.tolist(),
        {"a": array},
        {"b": array},
        [array],
        [array, []],
        b"ab",
        "ab",
        ["a", "b"],
        None,
        0,
        False,
        0.0,
        float("nan"),
    ]
    assert len({digest(part) for part in different}) == len(different)
    assert digest({"x": ["y", None]}) == digest({"x": ["y", None]}) != digest({"x": ["y", None]}, "extra")
    assert digest(array) == digest(np.asfortranarray(array.reshape(2, 3)).reshape(-1))


def test_digests_of_a_table_are_those_of_each_episode_alone() -> None:
    """Whatever the types, an episode has one digest among others and alone; each changed value is seen."""
    rows = 6
    columns: dict[str, pa.Array] = {
        "float": pa.array([0.5, None, -0.0, float("nan"), 1.0, 2.0]),
        "int": pa.array([1, 2, None, 4, 5, 6], pa.int16()),
        "flag": pa.array([True, None, False, True, True, False]),
        "text": pa.array(["a", None, "", "bc", "d", "e"]),
        "bytes": pa.array([b"a", b"", None, b"bc", b"d", b"e"]),
        "list": pa.array([[1.0], None, [], [2.0, None], [3.0], [4.0]]),
        "fixed": pa.array([[1, 2], None, [3, 4], [5, 6], [7, 8], [9, 0]], pa.list_(pa.int64(), 2)),
        "lists": pa.array(
            [[[1.0, 2.0]], None, [[3.0, 4.0]], [[5.0, 6.0]], None, [[7.0, 8.0]]],
            pa.list_(pa.list_(pa.float32(), 2), 1),
        ),
        "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}, *[{"a": 2, "b": "z"}] * 3]),
        "nested": pa.array([[[1], []], [], None, [[2, 3]], [[4]], [[5]]]),
        "time": pa.array([1, None, 3, 4, 5, 6], pa.timestamp("us")),
        "category": pa.array(["u", None, "v", "u", "u", "v"]).dictionary_encode(),
        "none": pa.nulls(rows),
        "image": pa.array([b"x", None, b"y", b"z", b"", b"w"], pa.large_binary()),
    }
    steps = pa.table({"episode": [7, 7, 7, 3, 3, 3], **columns})
    facts = pa.table({"episode": [7, 3], "seed": [1, 1]})
    whole = table_digests(steps, facts)
    # Those of earlier commits: stores have them as metadata.
    assert whole == ["28e0e81f38c8e9ab6a21e1e92548ce24", "5f18800adf59005188ad107a4cfacd47"]
    for index in range(2):
        assert table_digests(steps.slice(3 * index, 3), facts.slice(index, 1)) == [whole[index]]
        assert table_digests(steps, facts.take([1, 0]))[1 - index] == whole[index]
    for name, column in columns.items():
        for row in range(rows):
            other = next((r for r in range(rows) if not column[r].equals(column[row])), None)
            if other is None:
                continue
            order = pa.array([other if r == row else r for r in range(rows)])
            place = steps.column_names.index(name)
            digests = table_digests(steps.set_column(place, name, column.take(order)), facts)
            assert [a != b for a, b in zip(digests, whole, strict=True)] == [row < 3, row >= 3], (name, row)
    assert table_digests(steps, facts.set_column(1, "seed", pa.array([1, 2])))[0] == whole[0]
    assert table_digests(steps, facts.set_column(1, "seed", pa.array([1, 2])))[1] != whole[1]
