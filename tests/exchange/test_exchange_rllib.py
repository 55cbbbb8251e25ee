"""RLlib's files: recorded by RLlib 2.60 (`data/exchange/make_rllib.py`), damaged ones, and exports."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

import episodelake as el
from episodelake.testing.format_cases import write_episodes
from episodelake.testing.format_values import SPACES

DATA = Path(__file__).parents[1] / "data" / "exchange" / "rllib"
FURTHER = pytest.mark.further
DIFFERING = "new_obs that differ from the obs of the next row"
BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)


def rows(lengths: list[int], **columns: Any) -> dict[str, Any]:
    """Rows of episodes e0, e1, ...: observation [episode, t], reward t + 1, the last terminated."""
    ids = [number for number, length in enumerate(lengths) for _ in range(length)]
    steps = [t for length in lengths for t in range(length)]
    made = {
        "eps_id": [f"e{number}" for number in ids],
        "t": steps,
        "obs": [[float(number), float(t)] for number, t in zip(ids, steps, strict=True)],
        "new_obs": [[float(number), t + 1.0] for number, t in zip(ids, steps, strict=True)],
        "actions": [t % 3 for t in steps],
        "rewards": [t + 1.0 for t in steps],
        "terminateds": [t == lengths[number] - 1 for number, t in zip(ids, steps, strict=True)],
        "truncateds": [False] * len(ids),
    }
    return {name: column for name, column in (made | columns).items() if column is not None}


def written(path: Path, columns: dict[str, Any], order: Any = None) -> Path:
    """A Parquet file with these columns, in another order of rows if one is given."""
    path.parent.mkdir(exist_ok=True)
    table = pa.table(columns)
    pq.write_table(table if order is None else table.take(order), path, row_group_size=5)
    return path


def check(store: el.EpisodeStore, lengths: list[int], last: int = 1) -> None:
    """Compare a store with what `rows` gives."""
    for number, (episode, length) in enumerate(zip(store, lengths, strict=True)):
        expected = np.stack([np.full(length + 1, number), np.arange(length + 1.0)], axis=1)
        assert np.array_equal(episode.observations, expected[: length + last])
        assert np.array_equal(episode.actions, np.arange(length) % 3)
        assert np.array_equal(episode.rewards, np.arange(1.0, length + 1))
        assert episode.metadata["source_key"].endswith(f"/e{number}")


@pytest.mark.parametrize(
    "name", ["rows", "chunks", "episodes", pytest.param("episode_chunks", marks=FURTHER), "compressed"]
)
def test_what_rllib_recorded_comes_in_as_rllib_returned_it(tmp_path: Path, name: str) -> None:
    """Values, flags and ids; what its runner writes at every call again comes in once."""
    report = el.import_dataset(DATA / name, tmp_path / "store", trust=name == "compressed")
    truth = json.loads((DATA / "truth.json").read_text())[name]
    store = el.open(tmp_path / "store")
    assert report.format == "rllib" and report.episodes == len(truth)
    for episode, expected in zip(store, truth, strict=True):
        assert np.array_equal(episode.observations, np.array(expected["observations"], np.float32))
        assert episode.actions.tolist() == expected["actions"]
        assert episode.rewards.tolist() == expected["rewards"]
        assert episode.terminated == expected["terminated"] and episode.truncated == expected["truncated"]
        assert episode.metadata["source_key"].endswith(expected["id"])
        assert np.array_equal(episode.policy["weights_seq_no"], np.zeros(episode.length))
    assert bool(report.lost) == ("chunks" in name)
    assert not store.verify().faults
    assert el.import_dataset(DATA / name, store, trust=True).present == len(truth)


@pytest.mark.parametrize(
    ("name", "trust"),
    [("json", False), ("batches", False), pytest.param("json_compressed", True, marks=FURTHER)],
)
@pytest.mark.further
def test_merged_sample_batches_are_split(tmp_path: Path, name: str, trust: bool) -> None:
    """Into the episodes 11, 12 and 13, the second of which is cut by a batch."""
    el.import_dataset(DATA / name, tmp_path / "store", observation_space=BOX, cast="same_kind", trust=trust)
    store = el.open(tmp_path / "store")
    assert [episode.end_reason for episode in store] == ["terminated", "terminated", "truncated"]
    for number, (episode, length) in enumerate(zip(store, (4, 3, 5), strict=True)):
        steps = np.arange(length + 1)
        assert np.array_equal(episode.observations, np.stack([np.full(length + 1, number), steps], axis=1))
        assert np.array_equal(episode.actions, steps[:-1] % 2)
        assert np.array_equal(episode.rewards, steps[1:])
        assert np.array_equal(episode.policy["action_logp"], -steps[1:])
        if name != "batches":
            assert episode.info_arrays["force"] == [None, *(0.5 * steps[1:]).tolist()]


@pytest.mark.further
def test_batches_of_several_policies_need_a_choice(tmp_path: Path) -> None:
    """The error names the policies; with one of them its batches come in."""
    with pytest.raises(el.errors.DatasetError, match="policies walker, chaser"):
        el.import_dataset(DATA / "json_agents", tmp_path / "store")
    el.import_dataset(DATA / "json_agents", tmp_path / "store", mapping={"policy": "chaser"})
    assert [episode.length for episode in el.open(tmp_path / "store")] == [1, 5]


@pytest.mark.parametrize("steps", [True, False])
@pytest.mark.further
def test_rows_in_any_order_are_joined_by_step(tmp_path: Path, steps: bool) -> None:
    """Of row groups of five rows; without steps, rows out of order are an error that names the episode."""
    lengths = [7, 1, 12]
    order = np.random.default_rng(1).permutation(20)
    file = written(tmp_path / "data.parquet", rows(lengths) if steps else rows(lengths, t=None), order)
    if not steps:
        with pytest.raises(el.errors.DatasetError, match=r"Episode e\d of .*data.parquet: `obs` of row"):
            el.import_dataset(file, tmp_path / "store")
        assert not (tmp_path / "store").exists()
        return
    el.import_dataset(file, tmp_path / "store", observation_space=BOX, cast="same_kind")
    store = el.open(tmp_path / "store").sort("metadata.source_key")
    check(store, lengths)  # type: ignore[arg-type]
    assert all(episode.terminated for episode in store)


@pytest.mark.further
def test_damaged_rows_are_named_and_skipped(tmp_path: Path) -> None:
    """A gap, a step with two rows, rows behind a terminated one; equal rows come in once."""
    lengths = [4, 4, 4, 4, 4]
    columns = rows(lengths)
    columns["t"][5:8] = [2, 3, 4]
    columns["t"][9] = 0
    columns["terminateds"][13] = True
    file = written(tmp_path / "data.parquet", columns, [*range(20), 17])
    with pytest.raises(el.errors.DatasetError, match=r"Episode e1 of .* has a gap: t=2 follows t=0"):
        el.import_dataset(file, tmp_path / "store")
    report = el.import_dataset(file, tmp_path / "store", on_error="skip")
    assert [key for key, _ in report.skipped] == ["e1", "e2", "e3"]
    assert "two different rows with t=0" in report.skipped[1][1]
    assert "e3 of" in report.skipped[2][1] and "after row 1, where terminateds is set" in report.skipped[2][1]
    assert [episode.length for episode in el.open(tmp_path / "store")] == [4, 4]
    assert dict(report.lost)["rows that the source repeats"] == 1


@pytest.mark.further
@pytest.mark.parametrize("regrouped", [True, False])
def test_an_import_that_failed_goes_on_with_the_same_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, regrouped: bool
) -> None:
    """The next call reports once what the failed call wrote and lost, in other parts too."""
    columns = rows([4, 4, 4, 4])
    columns["new_obs"][1] = columns["new_obs"][9] = [5.0, 5.0]
    columns["rewards"][6] = None
    file = written(tmp_path / "data.parquet", columns)
    monkeypatch.setattr("episodelake.exchange.rllib.rows._PART_ROWS", 4)
    with pytest.raises(el.errors.SpaceMismatchError, match="Episode e1, row"):
        el.import_dataset(file, tmp_path / "store")
    if regrouped:
        monkeypatch.undo()
    (staged,) = tmp_path.glob(".store.importing-*")
    assert len(el.open(staged)) == 1
    reports = [el.import_dataset(file, tmp_path / name, on_error="skip") for name in ("store", "whole")]
    assert replace(reports[0], store="") == replace(reports[1], store="")
    assert [key for key, _ in reports[0].skipped] == ["e1"]
    assert (reports[0].episodes, dict(reports[0].lost)) == (3, {DIFFERING: 2})


@pytest.mark.further
def test_flags_are_booleans_or_zeros_and_ones(tmp_path: Path) -> None:
    """Another number is no flag, but an error that names it."""
    numbers = [int(flag) for flag in rows([4, 4])["terminateds"]]
    file = written(tmp_path / "numbers.parquet", rows([4, 4], terminateds=numbers))
    el.import_dataset(file, tmp_path / "store", observation_space=BOX, cast="same_kind")
    check(el.open(tmp_path / "store"), [4, 4])
    file = written(tmp_path / "odd.parquet", rows([4, 4], terminateds=[2, *numbers[1:]]))
    with pytest.raises(el.errors.DatasetError, match=r"The flag `terminateds` has the value 2"):
        el.import_dataset(file, tmp_path / "odd")


def test_one_damaged_value_skips_one_episode(tmp_path: Path) -> None:
    """Also where many episodes are read together; their losses count once, and those of a skipped one not."""
    columns = rows([4, 4, 4, 4])
    columns["new_obs"][1] = [5.0, 5.0]
    columns["new_obs"][4] = [5.0, 5.0]
    columns["rewards"][6] = None
    file = written(tmp_path / "data.parquet", columns)
    report = el.import_dataset(file, tmp_path / "store", on_error="skip")
    assert [key for key, _ in report.skipped] == ["e1"]
    store = el.open(tmp_path / "store")
    assert [each.metadata["source_key"].rpartition("/")[2] for each in store] == ["e0", "e2", "e3"]
    assert dict(report.lost) == {DIFFERING: 1}


@pytest.mark.further
def test_rows_without_an_episode_or_whole_file_are_errors(tmp_path: Path) -> None:
    """NULL and NaN ids name the row; a truncated file is named."""
    for value in (None, float("nan")):
        file = written(tmp_path / "data.parquet", rows([2, 1], eps_id=[1.0, value, 2.0]))
        with pytest.raises(
            el.errors.DatasetError, match=r"data.parquet, row group 0: `eps_id` is .* in row 1"
        ):
            el.import_dataset(file, tmp_path / "store")
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(el.errors.DatasetError, match=r"data.parquet is no whole Parquet file"):
        el.import_dataset(file, tmp_path / "store", format="rllib")
    written(tmp_path / "typed" / "a.parquet", rows([2]))
    written(tmp_path / "typed" / "b.parquet", rows([2], eps_id=["f", "f"], rewards=["x", "y"]))
    with pytest.raises(el.errors.DatasetError, match=r"typed has columns of other types .* episode e0"):
        el.import_dataset(tmp_path / "typed", tmp_path / "store")
    (tmp_path / "bad.json").write_text(
        '{"type": "SampleBatch", "obs": [1, 2], "new_obs": [2], "rewards": [1]}\n'
    )
    with pytest.raises(el.errors.DatasetError, match=r"bad.json, line 1 has columns of different lengths"):
        el.import_dataset(tmp_path / "bad.json", tmp_path / "store")


@pytest.mark.further
def test_other_column_names_and_missing_flags(tmp_path: Path) -> None:
    """A mapping names columns as RLlib's own setting does; without flags an episode is "cut"."""
    columns = rows([3, 2], terminateds=None, truncateds=None)
    columns["o_t"] = columns.pop("obs")
    file = written(tmp_path / "data.parquet", columns)
    report = el.import_dataset(file, tmp_path / "store", format="rllib", mapping={"obs": "o_t"})
    check(el.open(tmp_path / "store"), [3, 2])
    assert dict(report.lost) == {"ends of episodes, for which the source has no flags": 2}


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        """What unpickling calls."""
        return Path.touch, (self.path,)


def test_pickles_do_not_run(tmp_path: Path) -> None:
    """Not those of compressed columns, nor arrays of objects in episodes, nor pointers for such arrays."""
    with pytest.raises(el.errors.DatasetError, match="trust=True"):
        el.import_dataset(DATA / "compressed", tmp_path / "store")
    (file,) = (DATA / "episodes").glob("**/*0-0.parquet")
    state = msgpack.unpackb(pq.read_table(file)["item"][0].as_py(), strict_map_key=False)
    bomb = {
        b"nd": True,
        b"type": b"|O",
        b"kind": b"O",
        b"shape": [1],
        b"data": pickle.dumps(Bomb(tmp_path / "x")),
    }
    for value, message in (
        (bomb, "trust=True"),
        ({**bomb, b"kind": b"", b"data": b"\1" * 8}, "OBJECT array"),
    ):
        items = [msgpack.packb({**state, "custom_data": value})]
        pq.write_table(pa.table({"item": pa.array(items, pa.binary())}), tmp_path / "bomb.parquet")
        with pytest.raises(el.errors.DatasetError, match=message):
            el.import_dataset(tmp_path / "bomb.parquet", tmp_path / "store")
    assert not (tmp_path / "x").exists()


@pytest.mark.further
def test_a_missing_chunk_is_named(tmp_path: Path) -> None:
    """An episode whose second chunk is there without the first, and one with a hole."""
    chunks = sorted((DATA / "episode_chunks").glob("**/run-000000-00003/*.parquet"))
    states = [msgpack.unpackb(each, strict_map_key=False) for file in chunks for each in items_of(file)]
    states[1]["t_started"], states[1]["t"] = states[1]["t_started"] + 1, states[1]["t"] + 1
    table = pa.table({"item": pa.array(list(map(msgpack.packb, states)), pa.binary())})
    pq.write_table(table, tmp_path / "data.parquet")
    with pytest.raises(el.errors.DatasetError, match=f"Episode {states[1]['id_']}: .* goes on at t=13"):
        el.import_dataset(tmp_path / "data.parquet", tmp_path / "store")
    report = el.import_dataset(tmp_path / "data.parquet", tmp_path / "store", on_error="skip")
    assert [key for key, _ in report.skipped] == [states[1]["id_"]] and report.episodes == 1
    damaged = msgpack.packb({**states[2], "rewards": None})
    pq.write_table(pa.table({"item": pa.array([damaged], pa.binary())}), tmp_path / "damaged.parquet")
    with pytest.raises(el.errors.DatasetError, match=f"Episode {states[2]['id_']} of .* is damaged"):
        el.import_dataset(tmp_path / "damaged.parquet", tmp_path / "other")


def items_of(file: Path) -> list[bytes]:
    """The states in a file."""
    return pq.read_table(file)["item"].to_pylist()


@pytest.mark.further
def test_rows_of_nested_spaces_are_refused(tmp_path: Path) -> None:
    """The message names the kind that holds them."""
    store = write_episodes(tmp_path / "store", SPACES["nested"])
    with pytest.raises(el.errors.DatasetError, match="kind='episodes'"):
        store.export(tmp_path / "rows", format="rllib")


@pytest.mark.further
def test_other_files_are_no_rllib(tmp_path: Path) -> None:
    """The error names what is lacking; damaged and foreign files raise no other."""
    written(tmp_path / "a.parquet", rows([2], eps_id=None, new_obs=None))
    with pytest.raises(
        el.errors.DatasetError, match=r"rllib: .*a.parquet lacks the columns eps_id or new_obs"
    ):
        el.import_dataset(tmp_path / "a.parquet", tmp_path / "store")
    shutil.copytree(DATA / "json", tmp_path / "mixed")
    written(tmp_path / "mixed" / "b.parquet", rows([2]))
    with pytest.raises(el.errors.DatasetError, match="one by one"):
        el.import_dataset(tmp_path / "mixed", tmp_path / "store")


def test_episodes_of_runs_with_names_of_other_lengths_are_exported_together(tmp_path: Path) -> None:
    """Their ids have other lengths; each row keeps the one of its episode."""
    given = {"observation_space": BOX, "action_space": spaces.Discrete(3)}

    def whole(steps: int) -> dict[str, Any]:
        arrays = {"observations": np.ones((steps + 1, 2), np.float32), "actions": np.arange(steps)}
        return arrays | {"rewards": np.ones(steps), "terminations": True, "truncations": False}

    with el.create(tmp_path / "store", **given).writer(run="a") as short:
        short.write_episode(**whole(2))
    with el.open(tmp_path / "store").writer(run="longer") as writer:
        writer.write_episode(**whole(3))
    store = el.open(tmp_path / "store")
    report = store.export(tmp_path / "rows", format="rllib", kind="rows")
    (file,) = (tmp_path / "rows").glob("*.parquet")
    assert pq.read_table(file)["eps_id"].to_pylist() == [store[0].id] * 2 + [store[1].id] * 3
    assert not any("policy" in what for what in report.lost)


def test_columns_that_stay_out_are_counted(tmp_path: Path) -> None:
    """Columns that number batches or that a mapping replaces are losses; exported ones come back."""
    own = {"unroll_id": [5] * 3, "type": ["p"] * 3, "batch_id": [1, 2, 3], "shaped": [7.0] * 3}
    file = written(tmp_path / "data.parquet", rows([3], **own))
    report = el.import_dataset(file, tmp_path / "first", mapping={"rewards": "shaped"})
    assert {what.split(",")[0]: count for what, count in report.lost.items()} == {
        "the column rewards": 3,
        "the column type": 3,
        "the column unroll_id": 3,
    }
    first = el.open(tmp_path / "first")
    assert first[0].rewards.tolist() == [7.0] * 3 and first[0].policy["batch_id"].tolist() == [1, 2, 3]
    first.export(tmp_path / "rows", format="rllib", kind="rows")
    again = el.import_dataset(tmp_path / "rows", tmp_path / "second", format="rllib")
    assert not again.lost and el.open(tmp_path / "second")[0].policy["batch_id"].tolist() == [1, 2, 3]


def test_a_mapping_without_effect_is_refused(tmp_path: Path) -> None:
    """A column that is not there, one that is named twice, and a policy where rows have none."""
    file = written(tmp_path / "data.parquet", rows([3], shaped=[7.0] * 3))
    for mapping, message in (
        ({"action_logp": "typo"}, "no column 'typo'"),
        ({"policy": "walker"}, "'policy' chooses batches"),
        ({"obs": "obs", "state": "obs"}, "names a column twice"),
    ):
        with pytest.raises(el.errors.InvalidArgumentError, match=message):
            el.import_dataset(file, tmp_path / "store", format="rllib", mapping=mapping)
    line = {"type": "SampleBatch", **{name: list(values) for name, values in rows([2]).items()}}
    (tmp_path / "batches.json").write_text(json.dumps(line))
    with pytest.raises(el.errors.InvalidArgumentError, match="no column 'typo'"):
        el.import_dataset(tmp_path / "batches.json", tmp_path / "store", mapping={"action_logp": "typo"})
    with pytest.raises(el.errors.InvalidArgumentError, match="whole episodes"):
        el.import_dataset(DATA / "episodes", tmp_path / "store", format="rllib", mapping={"action_logp": "a"})
    assert not (tmp_path / "store").exists()


def test_lines_of_json_have_bounded_memory(tmp_path: Path) -> None:
    """Also the first, from which the columns of a mapping are known."""
    (tmp_path / "a.json").write_text('{"type": "SampleBatch", "obs": [' + "0.25, " * 2_000_000 + "0.5]}\n")
    for mapping in (None, {"obs": "o_t"}):
        with pytest.raises(el.errors.DatasetError, match=r"takes 12,000,038 bytes in memory.*\(max_bytes\)"):
            el.import_dataset(tmp_path / "a.json", tmp_path / "store", mapping=mapping, max_bytes=1000)
