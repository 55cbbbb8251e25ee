"""Bulk writing: whole episodes from Arrow data and arrays, directly to segments and through the journal."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from gymnasium.spaces import Box, Discrete

import episodelake as el
from episodelake.store import errors
from episodelake.testing.adapters import case
from episodelake.writers.session import seal_queue
from waiting import PATIENCE, wait_until

OURS = ["episode_id", "run_id", "started_at", "ended_at", "segment", "row_start"]
QUIET: dict[str, Any] = {"flush_seconds": 1e6, "seal_seconds": 1e6}
FLOATS = {"observation_space": Box(-9, 9, (2,), np.float32), "action_space": Discrete(3)}


def content(store: el.EpisodeStore) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the steps and episodes of a store without ids and timestamps."""
    steps, episodes = store.refresh().steps.collect(), store.episodes.collect()
    order = dict(zip(episodes["episode_id"], episodes["number"], strict=True))
    steps = steps.with_columns(pl.col("episode_id").replace_strict(order).alias("number"))
    keep = [name for name in episodes.columns if name not in OURS]
    return steps.sort("number", "t").drop("episode_id"), episodes.sort("number").select(keep)


def table(*lengths: int, **changes: Any) -> pa.Table:
    """Return steps of episodes 0, 1, ... of such lengths, some columns changed or left out (None)."""
    columns: dict[str, Any] = {
        name: []
        for name in ("episode", "observation", "action", "reward", "terminated", "truncated", "info.x", "own")
    }
    for episode, length in enumerate(lengths):
        for t in range(length + 1):
            acted = t < length
            columns["episode"].append(episode)
            columns["observation"].append([episode, t])
            columns["action"].append((episode + t) % 3 if acted else None)
            columns["reward"].append(episode + t / 2 if acted else None)
            columns["terminated"].append(t == length - 1 if acted else None)
            columns["truncated"].append(False if acted else None)
            columns["info.x"].append(t if t % 2 else None)
            columns["own"].append(f"{episode}.{t}")
    columns |= changes
    if "observation" not in changes:
        columns["observation"] = pa.array(columns["observation"], pa.list_(pa.float32()))
    return pa.table({name: values for name, values in columns.items() if values is not None})


def numbered(store: el.EpisodeStore, count: int, length: int) -> None:
    """Check the episodes that `table` or `arrays` made."""
    found = store.refresh().steps.collect()
    assert len(store) == count and len(found) == count * (length + 1)
    numbers = found["observation"].list.get(0).to_numpy().reshape(count, length + 1)
    assert (np.sort(numbers, axis=0) == np.arange(count)[:, None]).all()
    assert store.verify().ok


def arrays(number: int, length: int) -> dict[str, Any]:
    """Return arguments of `write_episode`."""
    return {
        "observations": np.stack([np.full(length + 1, number), np.arange(length + 1)], 1).astype(np.float32),
        "actions": np.arange(length) % 3,
        "rewards": np.ones(length),
        "terminations": True,
        "truncations": False,
    }


def parts_of(path: Path) -> list[Path]:
    """Return the parts of all journals of a store."""
    return list((path / "journal").glob("*/*.frames"))


FOREIGN: dict[str, pa.Array] = {
    "a fixed size list": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2)),
    "a large list": pa.array([[1, 2], [3, 4], [5, 6]], pa.large_list(pa.float32())),
    "small integers": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int8())),
    "nested lists": pa.array([[[1], [2]], [[3], [4]], [[5], [6]]], pa.list_(pa.list_(pa.float32()))),
    "a dictionary of lists": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32())),
}


def test_other_arrow_types_are_taken(tmp_path: Path) -> None:
    """Lists of any layout and numbers of any type that casts safely fit a column of the space."""
    for number, name in enumerate(FOREIGN):
        with case(name):
            _check_other_arrow_types_are_taken(tmp_path / str(number), name)


def _check_other_arrow_types_are_taken(tmp_path: Path, name: str) -> None:
    store = el.create(tmp_path / "store", **FLOATS)
    changes = {
        "observation": FOREIGN[name],
        "action": pa.array([0, 1, None], pa.uint8()),
        "reward": pa.array([1, 2, None], pa.int32()),
        "own": pa.array(["a", "b", "a"]).dictionary_encode(),
        "info.x": pa.array([1, None, 3], pa.int16()),
        "info.y": pa.array([[1, 2], None, []], pa.list_(pa.float32())),
        "info.z": pa.array([{"a": 1}, None, {"a": 2}]),
    }
    with store.writer() as writer:
        assert writer.write_episodes(table(2, **changes)) == 1
    episode = store.refresh()[0]
    assert episode.observations.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert (episode.actions.tolist(), episode.rewards.tolist()) == ([0, 1], [1.0, 2.0])
    assert [info.get("z") for info in episode.infos] == [{"a": 1}, None, {"a": 2}]
    assert store.steps.collect()["info.x"].to_list() == [1, None, 3]
    assert store.steps.collect()["own"].to_list() == ["a", "b", "a"]


def test_values_behind_null_rows_are_skipped(tmp_path: Path) -> None:
    """Lists of other programs may hold values behind NULL rows; they do not shift the others."""
    for number, kind in enumerate(
        [pa.list_(pa.float32()), pa.list_(pa.float32(), 2), pa.large_list(pa.float32())]
    ):
        with case(kind):
            _check_values_behind_null_rows_are_skipped(tmp_path / str(number), kind)


def _check_values_behind_null_rows_are_skipped(tmp_path: Path, kind: pa.DataType) -> None:
    values = pa.array(np.arange(14, dtype=np.float32))
    rows = np.array([True, True, False, True, True, True, False])
    if isinstance(kind, pa.FixedSizeListType):
        actions: Any = pa.FixedSizeListArray.from_arrays(values, 2, mask=pa.array(~rows))
    else:
        form = pa.ListArray if kind == pa.list_(pa.float32()) else pa.LargeListArray
        offsets = pa.array(np.arange(0, 15, 2), pa.int32() if form is pa.ListArray else pa.int64())
        actions = form.from_arrays(offsets, values, mask=pa.array(~rows))
    space = Box(-99, 99, (2,), np.float32)
    store = el.create(tmp_path / "store", observation_space=FLOATS["observation_space"], action_space=space)
    with store.writer() as writer:
        writer.write_episodes(table(2, 3, action=actions))
    found = [episode.actions.tolist() for episode in store.refresh()]
    assert found == [[[0, 1], [2, 3]], [[6, 7], [8, 9], [10, 11]]]
    assert store.verify().ok


def test_each_form_of_arrow_data_is_taken(tmp_path: Path) -> None:
    """A table, its batches, one batch, a reader, a data frame, and lengths in place of a column."""
    for number, form in enumerate(["table", "batches", "batch", "reader", "frame", "lengths"]):
        with case(form):
            _check_each_form_of_arrow_data_is_taken(tmp_path / str(number), form)


def _check_each_form_of_arrow_data_is_taken(tmp_path: Path, form: str) -> None:
    steps = table(2, 5, 1)
    forms: dict[str, Any] = {
        "table": steps,
        "batches": steps.to_batches(2),
        "batch": steps.to_batches()[0],
        "reader": steps.to_reader(3),
        "frame": pl.from_arrow(steps),
        "lengths": steps.drop_columns("episode"),
    }
    store = el.create(tmp_path / "store", **FLOATS)
    with store.writer() as writer:
        assert writer.write_episodes(forms[form], lengths=iter([2, 5, 1]) if form == "lengths" else None) == 3
        assert writer.write_episodes([]) == 0
    assert [len(episode) for episode in store.refresh()] == [2, 5, 1]
    assert content(store)[0]["own"].to_list() == steps["own"].to_pylist()


def _with(name: str, row: int, value: Any) -> dict[str, Any]:
    column = table(2, 3)[name]
    values = column.to_pylist()
    values[row] = value
    return {name: pa.array(values, column.type)}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a short observation": (_with("observation", 4, [1]), r"Episode 1, row 1: .*'observation'"),
    "a NULL observation": (_with("observation", 4, None), r"Episode 1, row 1: .*'observation'"),
    "a NULL in an observation": (_with("observation", 0, [1, None]), r"Episode 0, row 0: .*NULL"),
    "an integer that floats round": (
        {"reward": pa.array([1, 2, None, 3, 2**53 + 1, 5, None])},
        r"Episode 1, row 1: .*'reward'.*integer",
    ),
    "doubles in a float column": (
        {"observation": pa.array([[1, 2]] * 7, pa.list_(pa.float64()))},
        r"Episode 0, row 0: .*float32.*float64",
    ),
    "text for a number": ({"action": ["a", "b", None, "a", "b", "a", None]}, r"row 0: .*'action'"),
    "a missing action": (_with("action", 4, None), r"Episode 1, row 1: `action` is NULL"),
    "a missing reward": (_with("reward", 0, None), r"Episode 0, row 0: `reward` is NULL"),
    "an action at the end": (_with("action", 2, 1), r"Episode 0, row 2: `action` has a value"),
    "an early flag": (_with("truncated", 3, True), r"Episode 1, row 0: `truncated` is set before"),
    "a flag that is 2": ({"terminated": [0, 2, None, 0, 0, 1, None]}, "`terminated` has the value .*2"),
    "a flag that is NaN": ({"terminated": [0.0, float("nan"), None, 0, 0, 1, None]}, "has the value .*nan"),
    "a flag that is text": ({"terminated": ["0", "False", None, "0", "0", "1", None]}, "has type string"),
    "a wrong step": ({"t": [0, 1, 2, 0, 2, 1, 3]}, r"Episode 1, row 1: `t` is 2; expected 1"),
    "an episode in two places": ({"episode": [0, 0, 0, 1, 1, 0, 0]}, r"Episode 1, row 1: .*last row"),
    "one row": ({"episode": [0, 0, 0, 1, 1, 1, 2]}, r"Episode 1, row 2|Episode 2 has one row"),
    "a NULL episode": (_with("episode", 3, None), "`episode` is NULL"),
    "no episode": ({"episode": None}, "names no episodes"),
    "two columns of episodes": ({"episode_id": ["a"] * 7}, "has both episode and episode_id"),
    "no reward": ({"reward": None}, r"lack the columns \['reward'\]"),
    "a reserved name": ({"next_observation": [1] * 7}, "'next_observation' cannot be the name"),
    "a name within a reserved one": ({"observation.more": [1] * 7}, "'observation' cannot be the name"),
    "an underscore": ({"_mine": [1] * 7}, "'_mine' cannot be the name"),
    "a name that is not escaped": ({"a%b": [1] * 7}, "'a%b' cannot be the name"),
    "names that differ in case": ({"OWN": [1] * 7}, "more than one column"),
}


def test_wrong_data_are_refused_with_their_place(tmp_path: Path) -> None:
    """The error names the episode and the row, nothing of the piece is recorded, and the writer goes on."""
    for number, name in enumerate(WRONG):
        with case(name):
            _check_wrong_data_are_refused_with_their_place(tmp_path / str(number), name)


def _check_wrong_data_are_refused_with_their_place(tmp_path: Path, name: str) -> None:
    changes, message = WRONG[name]
    store = el.create(tmp_path / "store", **FLOATS)
    with store.writer() as writer:
        with pytest.raises((el.errors.SpaceMismatchError, el.errors.InvalidArgumentError), match=message):
            writer.write_episodes(table(2, 3, **changes))
        writer.write_episodes(table(4))
    assert [len(episode) for episode in store.refresh()] == [4]


FACTS: dict[str, tuple[dict[str, list[Any]], str]] = {
    "too few": ({"seed": [1]}, "has 1 rows"),
    "too many": ({"seed": [1, 2, 3]}, "more rows"),
    "another order": ({"episode": [1, 0]}, "of the episode 1; the steps go on with 0"),
    "another length": ({"length": [2, 4]}, r"Episode 1: `length` is 4 in `episodes`, and 3"),
    "another reason": (
        {"end_reason": ["cut", None]},
        "`end_reason` is 'cut' in `episodes`, and 'terminated'",
    ),
    "an unknown reason": ({"end_reason": ["done", None]}, "'done'; expected one of"),
    "an unknown column": ({"score": [1, 2]}, r"\['score'\]"),
    "a seed that is text": ({"seed": ["a", "b"]}, "seed='a'"),
}


def test_episodes_that_do_not_go_with_the_steps_are_refused(tmp_path: Path) -> None:
    """Rows, keys, lengths and reasons are compared with the steps."""
    for number, name in enumerate(FACTS):
        with case(name):
            _check_episodes_that_do_not_go_with_the_steps_are_refused(tmp_path / str(number), name)


def _check_episodes_that_do_not_go_with_the_steps_are_refused(tmp_path: Path, name: str) -> None:
    columns, message = FACTS[name]
    writer = el.create(tmp_path / "store", **FLOATS).writer()
    with writer, pytest.raises(el.errors.InvalidArgumentError, match=message):
        writer.write_episodes(table(2, 3), episodes=pa.table(columns))


def test_lengths_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """Rows left over, rows that are missing, and no length at all."""
    for number, (lengths, message) in enumerate(
        [([2], "end 4 rows before"), ([2, 9], "6 rows more"), ([2, 3, 1], "go on with 1"), ([2, 0], "hold 0")]
    ):
        with case((lengths, message)):
            _check_lengths_that_do_not_fit_are_refused(tmp_path / str(number), lengths, message)


def _check_lengths_that_do_not_fit_are_refused(tmp_path: Path, lengths: list[int], message: str) -> None:
    writer = el.create(tmp_path / "store", **FLOATS).writer()
    with writer, pytest.raises((el.errors.SpaceMismatchError, el.errors.InvalidArgumentError), match=message):
        writer.write_episodes(table(2, 3), lengths=lengths)


def test_what_is_no_arrow_data_is_refused(tmp_path: Path) -> None:
    """A dict and a lazy frame, with a hint."""
    with el.create(tmp_path / "store", **FLOATS).writer() as writer:
        for wrong, hint in (
            ({"a": [1]}, "Make a pyarrow.Table"),
            (pl.LazyFrame({"a": [1]}), r"frame.collect\(\)"),
        ):
            with pytest.raises(el.errors.InvalidArgumentError, match=hint):
                writer.write_episodes(wrong)


def test_memory_is_bounded(tmp_path: Path) -> None:
    """A stream of 160 MB passes with a tenth of it in Arrow's memory."""
    store = el.create(tmp_path / "store", observation_space=Box(0, 1, (2000,)), action_space=Discrete(2))
    peak = [0]
    before = pa.total_allocated_bytes()

    def stream() -> Iterator[pa.RecordBatch]:
        for number in range(200):
            peak[0] = max(peak[0], pa.total_allocated_bytes() - before)
            rows = np.full((100, 2000), number, np.float32)
            outcome = [0.0] * 99 + [None]
            yield pa.record_batch(
                {
                    "episode": [number] * 100,
                    "observation": pa.FixedSizeListArray.from_arrays(rows.reshape(-1), 2000),
                    "action": pa.array(outcome).cast(pa.int64()),
                    "reward": outcome,
                    "terminated": [False] * 99 + [None],
                    "truncated": [False] * 99 + [None],
                }
            )

    with store.writer(segment_bytes=4 << 20) as writer:
        assert writer.write_episodes(stream()) == 200
    assert peak[0] < 64 << 20
    assert len(store.refresh()) == 200


def test_an_episode_larger_than_a_segment_goes_through_the_journal(tmp_path: Path) -> None:
    """It is not kept in memory; parts of it that one Arrow array cannot hold follow one another."""
    store = el.create(tmp_path / "store", **FLOATS)
    store.handle.schema.observation.max_rows = 50
    steps = table(333, 2).append_column("policy.v", pa.array([float(row) for row in range(337)]))
    with store.writer(segment_bytes=2000, **QUIET) as writer:
        writer.write_episodes(steps)
        assert parts_of(tmp_path / "store")
    assert [len(episode) for episode in store.refresh()] == [333, 2]
    assert content(store)[0]["policy.v"].to_list() == list(range(337))
    assert content(store)[0]["info.x"].to_list() == steps["info.x"].to_pylist()


@pytest.mark.parametrize("arrow", [True, False])
def test_whole_episodes_reach_a_segment_without_the_journal(tmp_path: Path, arrow: bool) -> None:
    """Enough of them make segments, no row of which the journal ever had."""
    path = tmp_path / "store"
    store = el.create(path, **FLOATS)
    with store.writer(segment_bytes=20_000, **QUIET) as writer:
        for number in range(20):
            if arrow:
                steps = table(100).set_column(
                    1, "observation", pa.array([[number, t] for t in range(101)], pa.list_(pa.float32()))
                )
                writer.write_episodes(steps)
            else:
                writer.write_episode(**arrays(number, 100))
            assert not parts_of(path)
        wait_until(lambda: len(el.open(path)) > 0, "a segment")
    numbered(store, 20, 100)


def test_episodes_that_wait_go_to_the_journal(tmp_path: Path) -> None:
    """After `flush_seconds` the journal has what makes no segment."""
    path = tmp_path / "store"
    writer = el.create(path, **FLOATS).writer(flush_seconds=0.01, seal_seconds=1e6)
    writer.write_episode(**arrays(0, 100))
    wait_until(lambda: sum(part.stat().st_size for part in parts_of(path)) > 1000, "the rows in the journal")
    writer.close()
    assert len(el.open(path)) == 1


@pytest.mark.sample(2)
@pytest.mark.parametrize("how", ["flush", "seal", "close"])
def test_what_was_acknowledged_survives_a_kill(tmp_path: Path, how: str) -> None:
    """A process killed right after flush, seal or close leaves all episodes to its recovery."""
    code = f"""
        import os, sys
        sys.path[:0] = {[str(each) for each in Path(__file__).parents[:2]]!r}
        import episodelake as el, test_bulk_writing as parts
        writer = el.open({str(tmp_path / "store")!r}).writer(segment_bytes=40_000, **parts.QUIET)
        for number in range(11):
            writer.write_episode(**parts.arrays(number, 100))
        writer.{how}()
        os._exit(0)
    """
    el.create(tmp_path / "store", **FLOATS)
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=PATIENCE)
    el.recover(tmp_path / "store")
    numbered(el.open(tmp_path / "store"), 11, 100)


def test_a_seal_that_fails_leaves_the_rows_to_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If close() fails the journal has all rows, and closing again brings each episode in once."""
    path = tmp_path / "store"
    store = el.create(path, **FLOATS)
    writer = store.writer(segment_bytes=20_000, **QUIET)
    with monkeypatch.context() as patched:
        patched.setattr(seal_queue, "seal_segment", _refuse)
        for number in range(20):
            try:
                writer.write_episode(**arrays(number, 100))
            except el.errors.StoreAccessError:
                writer.write_episode(**arrays(number, 100))
        with pytest.raises(el.errors.StoreAccessError, match="disk is full"):
            writer.close()
        assert sum(part.stat().st_size for part in parts_of(path)) > 20 * 100 * 20
    writer.close()
    numbered(store, 20, 100)
    assert not os.listdir(path / "journal")


def _refuse(*_: object) -> None:
    raise errors.StoreAccessError("The disk is full.")


def test_arrays_may_be_changed_after_the_call(tmp_path: Path) -> None:
    """Rows in memory are copies of the caller's arrays, of Arrow data too."""
    store = el.create(tmp_path / "store", **FLOATS)
    given, flat = arrays(0, 100), np.ones(202, np.float32)
    steps = table(100).set_column(1, "observation", pa.FixedSizeListArray.from_arrays(flat, 2))
    with store.writer(**QUIET) as writer:
        writer.write_episode(**given)
        writer.write_episodes(steps)
        given["observations"][:] = -1
        flat[:] = -1
    one, two = store.refresh()
    assert one.observations[:, 1].tolist() == list(range(101))
    assert (two.observations == 1).all()


def test_an_error_tells_how_many_episodes_are_recorded(tmp_path: Path) -> None:
    """Pieces before the one with the error stay, and a note of the error counts their episodes."""
    store = el.create(tmp_path / "store", observation_space=Box(0, 1, (200_000,)), action_space=Discrete(2))

    def stream() -> Iterator[pa.RecordBatch]:
        for number in range(20):
            yield pa.record_batch(
                {
                    "episode": [number] * 3,
                    "observation": pa.FixedSizeListArray.from_arrays(np.ones(600_000, np.float32), 200_000),
                    "action": pa.array([0, 1, None if number < 19 else 1]),
                    "reward": [0.0, 1.0, None],
                    "terminated": [False, False, None],
                    "truncated": [False, False, None],
                }
            )

    place = "Episode 19, row 2: `action` has a value"
    with store.writer() as writer, pytest.raises(el.errors.SpaceMismatchError, match=place) as raised:
        writer.write_episodes(stream())
    (note,) = raised.value.__notes__
    count = len(store.refresh())
    assert 0 < count < 20 and note == f"The {count} episodes of this call before it are recorded."


def test_no_episode_before_an_error_is_counted_in_words(tmp_path: Path) -> None:
    """The note of a call whose first episode is refused says that none is recorded."""
    store = el.create(tmp_path / "store", observation_space=Box(0, 1, (2,)), action_space=Discrete(2))
    with store.writer() as writer, pytest.raises(el.EpisodelakeError) as raised:
        writer.write_episodes(pa.table({"episode": [0, 0]}))
    assert "No episode of this call before it is recorded." in raised.value.__notes__
