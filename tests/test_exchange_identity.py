"""An import knows episodes by their source and by their content: nothing comes twice, nothing is skipped."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

import episodelake as el
from episodelake.exchange.rlds.tfrecord import masked_crc
from episodelake.writers.importing.digests import content_digest, table_digests
from episodelake.writers.importing.formats import ForeignEpisode

FURTHER = pytest.mark.further
DATA = Path(__file__).parent / "data" / "exchange"
BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)
#: Targets of exports: the names of files or folders, and options.
EXPORTED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "minari": ("minari", "walk", {}),
    "minari arrow": ("minari", "walk", {"data_format": "arrow"}),
    "d4rl": ("d4rl", "walk.hdf5", {}),
    "d3rlpy": ("d3rlpy", "walk.h5", {}),
    "robomimic": ("robomimic", "walk.hdf5", {}),
    "lerobot": ("lerobot", "walk", {}),
    "rllib rows": ("rllib", "walk", {"kind": "rows"}),
    "rllib episodes": ("rllib", "walk", {"kind": "episodes"}),
    "parquet": ("parquet", "walk.parquet", {}),
    "csv": ("csv", "walk.csv", {}),
}


def recorded(folder: Path, start: float) -> el.EpisodeStore:
    """A store with two truncated episodes that differ from those of another start in one value."""
    store = el.create(folder, observation_space=BOX, action_space=spaces.Box(-1, 1, (1,), np.float32))
    with store.writer() as writer:
        for number in range(2):
            observations = np.arange(10, dtype=np.float32).reshape(5, 2)
            observations[3, 0] = start + number
            writer.write_episode(
                observations=observations,
                actions=np.zeros((4, 1), np.float32),
                rewards=np.zeros(4),
                terminations=False,
                truncations=True,
            )
    return store.refresh()


@pytest.mark.parametrize(
    "kind",
    ["parquet", *(pytest.param(each, marks=FURTHER) for each in EXPORTED if each != "parquet")],
)
def test_copies_are_recognised_and_other_data_are_not_confused(tmp_path: Path, kind: str) -> None:
    """A dataset of the same name with another value adds its episodes; a renamed copy adds none."""
    format, name, options = EXPORTED[kind]
    target = el.create(
        tmp_path / "target", observation_space=BOX, action_space=spaces.Box(-1, 1, (1,), np.float32)
    )
    for start in (0.5, 70.5):
        folder = tmp_path / str(start)
        recorded(folder / "store", start).export(folder / name, format=format, **options)
        assert el.import_dataset(folder / name, target, cast="same_kind").episodes == 2
    (tmp_path / "copies").mkdir()
    copy = shutil.move(tmp_path / "70.5" / name, tmp_path / "copies" / f"other-{name}")
    report = el.import_dataset(copy, target, cast="same_kind")
    assert (report.episodes, report.present) == (0, 2)


@pytest.mark.further
def test_records_of_rlds_with_one_name_and_version_are_told_apart(tmp_path: Path) -> None:
    """Their `dataset_info.json` are equal; one record has another byte."""
    first, second = tmp_path / "a" / "walk", tmp_path / "b" / "moved"
    for folder in (first, second):
        shutil.copytree(next((DATA / "rlds").rglob("features.json")).parent, folder)
    assert el.import_dataset(first, tmp_path / "store").episodes
    assert el.import_dataset(second, tmp_path / "store").episodes == 0
    info = json.loads((second / "dataset_info.json").read_bytes())
    (file, *_) = sorted(second.glob(f"*{info['splits'][0]['name']}*tfrecord*"))
    content = bytearray(file.read_bytes())
    size = int.from_bytes(content[:8], "little")
    record = content[12 : 12 + size]
    place = record.rindex(b"\x3f\x00\x00", 0, size)
    record[place + 1] ^= 1
    content[12 : 12 + size] = record
    content[12 + size : 16 + size] = masked_crc(bytes(record)).to_bytes(4, "little")
    file.write_bytes(content)
    assert el.import_dataset(second, tmp_path / "store").episodes


@pytest.mark.further
def test_a_data_set_that_grows_keeps_its_identity(tmp_path: Path) -> None:
    """The rows of a new episode, of a table and of RLlib's, bring in that one alone."""
    rows = [
        {"eps_id": f"e{e}", "t": t, "obs": [float(e), t / 4], "actions": t % 2, "rewards": 0.0}
        for e in range(3)
        for t in range(3)
    ]
    extra = [{**row, "new_obs": [row["obs"][0], row["obs"][1] + 0.25]} for row in rows]
    for name in ("table", "rllib"):
        words: dict[str, Any] = {"format": name}
        if name == "table":
            words["mapping"] = el.ColumnMapping(
                observation="obs", action="actions", reward="rewards", episode="eps_id", step="t"
            )
        for count in (2, 3):
            pq.write_table(pa.Table.from_pylist(extra[: 3 * count]), tmp_path / "rows.parquet")
            report = el.import_dataset(tmp_path / "rows.parquet", tmp_path / name, **words)
            assert (report.episodes, report.present) == ((2, 0) if count == 2 else (1, 2))


#: RLlib's episodes have ids of their own, which are others in another export.
NUMBERED = [each for each in EXPORTED if not each.startswith("rllib")]
ALL = ["parquet", *(pytest.param(each, marks=FURTHER) for each in NUMBERED if each != "parquet")]


def exported(folder: Path, kind: str, start: float) -> Path:
    """A dataset of two episodes at one place, in which one value of each follows from `start`."""
    format, name, options = EXPORTED[kind]
    shutil.rmtree(folder / "store", ignore_errors=True)
    target = folder / name
    shutil.rmtree(target, ignore_errors=True) if target.is_dir() else target.unlink(missing_ok=True)
    recorded(folder / "store", start).export(target, format=format, **options)
    return target


def starts_of(store: el.EpisodeStore) -> list[float]:
    """The value that tells the episodes apart, in the order of the store."""
    seen = [episode.observations for episode in store]
    arrays = [next(iter(each.values())) if isinstance(each, dict) else each for each in seen]
    return [float(array[3, 0]) for array in arrays]


@pytest.mark.further
@pytest.mark.parametrize("kind", ALL)
def test_a_corrected_source_is_an_error_is_kept_or_replaces(tmp_path: Path, kind: str) -> None:
    """What became of an episode that changed is the choice of the caller; one that did not is present."""
    store = tmp_path / "into"
    words: dict[str, Any] = {"cast": "same_kind", "last_observation": "missing"}
    source = exported(tmp_path, kind, 0.5)
    assert el.import_dataset(source, store, **words).episodes == 2
    before = el.open(store)
    first, version = starts_of(before), before.version
    again = el.import_dataset(source, store, on_changed="replace", **words)
    assert (again.episodes, again.present, again.replaced, again.kept) == (0, 2, 0, 0)
    source = exported(tmp_path, kind, 70.5)
    message = r"(?s)episodes with other values than in .* \(2\).*on_changed='replace'"
    with pytest.raises(el.errors.DatasetError, match=message):
        el.import_dataset(source, store, **words)
    assert el.open(store).version == version
    kept = el.import_dataset(source, store, on_changed="keep", **words)
    assert (kept.episodes, kept.steps, kept.kept) == (0, 0, 2)
    assert starts_of(el.open(store)) == first
    replaced = el.import_dataset(source, store, on_changed="replace", **words)
    assert (replaced.episodes, replaced.replaced, replaced.present) == (0, 2, 0)
    after = el.open(store)
    assert starts_of(after) == [start + 70 for start in first]
    assert after.version == version + 1  # one commit: no reader sees both, or neither
    assert after.verify().ok
    assert el.import_dataset(source, store, **words).present == 2
    assert not list(tmp_path.glob(".*importing*"))


@pytest.mark.parametrize("kind", [*ALL, pytest.param("rllib rows", marks=FURTHER)])
def test_a_source_that_changes_while_an_import_is_interrupted_is_read_anew(tmp_path: Path, kind: str) -> None:
    """The episodes that the interrupted call staged come from the repaired source, too."""
    words: dict[str, Any] = {"cast": "same_kind", "last_observation": "missing"}
    source = exported(tmp_path, kind, 0.5)

    def stop(done: int, _: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        el.import_dataset(source, tmp_path / "into", progress=stop, **words)
    source = exported(tmp_path, kind, 70.5)
    report = el.import_dataset(source, tmp_path / "into", **words)
    assert report.episodes == 2 and not report.present
    el.import_dataset(source, tmp_path / "expected", **words)
    assert starts_of(el.open(tmp_path / "into")) == starts_of(el.open(tmp_path / "expected"))
    assert not list(tmp_path.glob(".*importing*"))


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
    for place in (tmp_path / "store", store):
        frame = write([0.0, 7.0, 2.0, 8.0, 4.0])
        assert el.import_dataset(frame, place).present == 5  # the same table in memory is a copy
    assert el.import_dataset(file, store, name="other").present == 5


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


@pytest.mark.parametrize("key", ["d4rl:0123456789abcdef/{}", "d4rl:0123456789ab/{}"])
def test_imports_of_earlier_releases_are_recognised(tmp_path: Path, key: str) -> None:
    """Keys without a place and episodes without a digest: equal values are present, others are new."""
    source = exported(tmp_path, "d4rl", 0.5)
    el.import_dataset(source, tmp_path / "new", cast="same_kind")
    old = el.create(tmp_path / "old", observation_space=BOX, action_space=spaces.Box(-1, 1, (1,), np.float32))
    with old.writer() as writer:
        for number, episode in enumerate(el.open(tmp_path / "new")):
            writer.write_episode(
                observations=episode.observations,
                actions=episode.actions,
                rewards=episode.rewards,
                terminations=episode.terminations,
                truncations=episode.truncations,
                source_key=key.format(number),
            )
    report = el.import_dataset(source, tmp_path / "old", cast="same_kind")
    assert (report.episodes, report.present) == (0, 2)
    report = el.import_dataset(exported(tmp_path, "d4rl", 70.5), tmp_path / "old", cast="same_kind")
    assert (report.episodes, report.present) == (2, 0)


def test_unknown_choices_are_refused(tmp_path: Path) -> None:
    """`on_changed` and `name` are checked before anything is read."""
    for words in ({"on_changed": "skip"}, {"on_changed": None}, {"name": ""}, {"name": 3}):
        with pytest.raises(el.errors.InvalidArgumentError, match=next(iter(words))):
            el.import_dataset(tmp_path / "none", tmp_path / "into", **words)  # type: ignore[arg-type]


def test_digests_tell_values_shapes_and_nesting_apart() -> None:
    """Equal values in other containers, shapes or dtypes differ; objects without bytes have no digest."""

    def digest(part: Any, name: str = "infos") -> str | None:
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
    assert digest([object()]) is None


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
    assert len({*whole}) == 2 and None not in whole
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
