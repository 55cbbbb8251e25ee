"""Logs in every form they are kept in: many files, arrays in dicts, lists of dicts, rows of trajectories."""

from __future__ import annotations

import gzip
import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from gymnasium import spaces

import episodelake as el
from effort import some, with_folders
from episodelake.testing.adapters import case

LENGTHS = (3, 1, 4)
MAPPING: dict[str, Any] = {
    "observation": ["x", "y"],
    "action": "action",
    "reward": "reward",
    "terminated": "terminated",
    "episode": el.FILE,
}


def rollouts(*, last: bool = False) -> list[dict[str, Any]]:
    """Three episodes as arrays; with `last` each has one observation more than actions."""
    episodes = []
    for number, length in enumerate(LENGTHS):
        rng = np.random.default_rng(number)
        episodes.append(
            {
                "observations": rng.normal(size=(length + last, 2)),
                "actions": rng.integers(0, 3, length),
                "rewards": rng.normal(size=length),
                "terminals": np.arange(length) == length - 1,
            }
        )
    return episodes


def rows() -> list[list[dict[str, Any]]]:
    """The rows of each episode, with plain values."""
    return [
        [
            {
                "x": float(each["observations"][t, 0]),
                "y": float(each["observations"][t, 1]),
                "action": int(each["actions"][t]),
                "reward": float(each["rewards"][t]),
                "terminated": bool(each["terminals"][t]),
            }
            for t in range(len(each["rewards"]))
        ]
        for each in rollouts()
    ]


def written(folder: Path, kind: str) -> None:
    """Write each episode to a file of its own, whose name has characters of patterns."""
    folder.mkdir()
    for number, (plain, arrays) in enumerate(zip(rows(), rollouts(), strict=True)):
        name = folder / f"run[{number}]*.{kind}"
        frame = pl.DataFrame(plain)
        lines = "".join(json.dumps(row) + "\n" for row in plain)
        match kind:
            case "csv":
                frame.write_csv(name)
            case "tsv":
                frame.write_csv(name, separator="\t")
            case "csv.gz":
                name.write_bytes(gzip.compress(frame.write_csv().encode()))
            case "jsonl" | "ndjson":
                name.write_text(lines)
            case "jsonl.gz":
                name.write_bytes(gzip.compress(lines.encode()))
            case "npz":
                np.savez(name.open("wb"), **arrays)
            case "parquet":
                frame.write_parquet(name)
            case "arrow":
                frame.write_ipc(name)
    (folder / "README.md").write_text("Runs of a walk.")


def check(store: el.EpisodeStore, *, last: bool = False) -> None:
    """Compare a store with the episodes."""
    expected = rollouts(last=last)
    assert len(store) == len(expected)
    for episode, arrays in zip(store, expected, strict=True):
        assert np.array_equal(episode.observations, arrays["observations"])
        assert episode.actions.tolist() == arrays["actions"].tolist()
        assert episode.rewards.tolist() == arrays["rewards"].tolist()
        assert (episode.end_reason, episode.has_last_observation) == ("terminated", last)


_EACH_FILE_IS_AN_EPISODE: Any = [
    *itertools.product(
        ["folder", "pattern", "list"],
        ["csv", "tsv", "csv.gz", "jsonl", "ndjson", "jsonl.gz", "npz", "parquet", "arrow"],
    )
]


@pytest.mark.parametrize("cases", some(_EACH_FILE_IS_AN_EPISODE))
def test_each_file_is_an_episode(tmp_path: Path, cases: Any) -> None:
    """In a folder, by a pattern, and in a list; names are no patterns themselves."""
    for folder, (how, kind) in with_folders(cases, tmp_path):
        with case((how, kind)):
            written(folder / "logs", kind)
            source: Any = folder / "logs"
            if how == "pattern":
                source = f"{source}/run*.{kind}"
            elif how == "list":
                source = sorted(str(path) for path in source.glob(f"*.{kind}"))
            mapping = None if kind == "npz" else MAPPING
            report = el.import_dataset(source, folder / "s", mapping=mapping, last_observation="missing")
            check(el.open(folder / "s"))
            assert dict(report.lost) == {"a last observation, which the source lacks": 3}
            again = el.import_dataset(source, folder / "s", mapping=mapping, last_observation="missing")
            assert (again.episodes, again.present) == (0, 3)


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_a_folder_that_has_grown_adds_its_new_files(tmp_path: Path, kind: str) -> None:
    """Wherever the new name stands in order."""
    written(tmp_path / "logs", kind)
    late = sorted((tmp_path / "logs").glob(f"*.{kind}"))[1]
    late.rename(tmp_path / late.name)
    options: dict[str, Any] = {"mapping": None if kind == "npz" else MAPPING, "last_observation": "missing"}
    assert el.import_dataset(tmp_path / "logs", tmp_path / "s", **options).episodes == 2
    (tmp_path / late.name).rename(late)
    report = el.import_dataset(tmp_path / "logs", tmp_path / "s", **options)
    assert (report.episodes, report.present) == (1, 2)
    keys = [each.metadata["source_key"].rpartition("/")[2] for each in el.open(tmp_path / "s")]
    assert sorted(keys) == [f"run[{number}]*.{kind}" for number in range(3)]


class HuggingFace:
    """A dataset with the methods of `datasets.Dataset` that are used; a test of peers has the real one."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.column_names = table.column_names

    def with_format(self, kind: str) -> HuggingFace:
        """Return batches as Arrow tables."""
        assert kind == "arrow"
        return self

    def iter(self, size: int) -> Any:
        """Yield the rows, a few at a time."""
        return (self._table.slice(start, 2) for start in range(0, len(self._table), 2))


HuggingFace.__name__, HuggingFace.__module__ = "Dataset", "datasets.arrow_dataset"


def in_memory(form: str, folder: Path) -> Any:
    """The episodes as an object, or as one file."""
    several = rollouts()
    flat = {name: np.concatenate([each[name] for each in several]) for name in several[0]}
    named = [
        {
            "episode": number,
            "observation": [row["x"], row["y"]],
            **{k: row[k] for k in ("action", "reward", "terminated")},
        }
        for number, each in enumerate(rows())
        for row in each
    ]
    match form:
        case "dict of arrays":
            return flat
        case "dict of lists":
            return {name: values.tolist() for name, values in flat.items()}
        case "rollouts":
            return several
        case "rollouts with scalars":
            return tuple({**each, "level": f"l{number}", "note": None} for number, each in enumerate(several))
        case "rows":
            return named
        case "rows of arrays":
            return [row | {"observation": np.array(row["observation"])} for row in named]
        case "datasets":
            return HuggingFace(pa.Table.from_pylist(named))
    lists = [{name: values.tolist() for name, values in each.items()} for each in several]
    if form == "trajectories with ids":
        lists = [{"episode_id": f"e{number}", **each} for number, each in enumerate(lists)]
    pl.DataFrame(lists).write_parquet(folder / "walks.parquet")
    return folder / "walks.parquet"


FORMS = [
    "dict of arrays",
    "dict of lists",
    "rollouts",
    "rollouts with scalars",
    "rows",
    "rows of arrays",
    "datasets",
]


def test_arrays_and_lists_are_tables(tmp_path: Path) -> None:
    """Without a mapping, by obvious names; flags and dicts separate the episodes."""
    for folder, form in with_folders([*FORMS, "trajectories", "trajectories with ids"], tmp_path):
        with case(form):
            report = el.import_dataset(in_memory(form, folder), folder / "s", last_observation="missing")
            check(el.open(folder / "s"))
            left_out = {"the column level, which the mapping leaves out": 8} if "scalars" in form else {}
            assert dict(report.lost) == {**left_out, "a last observation, which the source lacks": 3}


@pytest.mark.parametrize("form", ["npz", "list", "trajectories"])
def test_one_observation_more_is_the_last_one(tmp_path: Path, form: str) -> None:
    """T+1 observations beside T actions need no `last_observation`."""
    several: Any = rollouts(last=True)
    if form == "npz":
        (tmp_path / "logs").mkdir()
        for number, each in enumerate(several):
            np.savez(tmp_path / f"logs/{number}.npz", **each)
    elif form == "trajectories":
        lists = [{name: values.tolist() for name, values in each.items()} for each in several]
        pl.DataFrame(lists).write_parquet(tmp_path / "walks.parquet")
    source = {"npz": tmp_path / "logs", "list": several, "trajectories": tmp_path / "walks.parquet"}[form]
    el.import_dataset(source, tmp_path / "s")
    check(el.open(tmp_path / "s"), last=True)


def test_observations_may_be_dicts_and_images(tmp_path: Path) -> None:
    """A dict of arrays of any shape becomes a Dict space, with the dtypes of its arrays."""
    rng = np.random.default_rng(0)
    seen = {"camera": rng.integers(0, 255, (4, 2, 3, 3), dtype=np.uint8), "speed": rng.normal(size=4)}
    arrays = {"observations": seen, "actions": rng.normal(size=(4, 2)), "rewards": np.ones(4), "level": 7}
    arrays["terminals"] = np.array([False, True, False, True])
    mapping = {
        "observation": "observations",
        "action": "actions",
        "reward": "rewards",
        "terminated": "terminals",
        "episode": "episode",
        "metadata": ["level"],
    }
    el.import_dataset(arrays, tmp_path / "s", mapping=mapping, last_observation="missing")
    store = el.open(tmp_path / "s")
    assert isinstance(store.observation_space, spaces.Dict)
    assert store.observation_space["camera"] == spaces.Box(0, 255, (2, 3, 3), np.uint8)
    assert np.array_equal(store[1].observations["camera"], seen["camera"][2:])
    assert np.array_equal(store[0].observations["speed"], seen["speed"][:2])
    assert [each.metadata["level"] for each in store] == [7, 7]


def test_a_path_that_exists_is_no_pattern(tmp_path: Path) -> None:
    """Only where no file has the name do its characters match others; nothing that matches is an error."""
    frame = pl.DataFrame([row | {"episode": 0} for row in rows()[0]])
    other = frame.with_columns(pl.lit(1).alias("episode"))
    mapping = MAPPING | {"episode": "episode"}
    frame.write_csv(tmp_path / "log[1].csv")
    other.write_csv(tmp_path / "log1.csv")
    report = el.import_dataset(
        tmp_path / "log[1].csv", tmp_path / "one", mapping=mapping, last_observation="missing"
    )
    assert report.steps == 3 and "episode/1" not in str(report)
    assert el.open(tmp_path / "one")[0].metadata["source_key"].endswith("/0")
    (tmp_path / "log[1].csv").unlink()
    el.import_dataset(tmp_path / "log[1].csv", tmp_path / "two", mapping=mapping, last_observation="missing")
    assert el.open(tmp_path / "two")[0].metadata["source_key"].endswith("/1")
    with pytest.raises(el.errors.DatasetError, match="none matches it as a pattern"):
        el.import_dataset(tmp_path / "log[2].csv", tmp_path / "three")
    with pytest.raises(el.errors.DatasetError, match=r"There is no file .*absent\.csv"):
        el.import_dataset([tmp_path / "log1.csv", tmp_path / "absent.csv"], tmp_path / "three")


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")
def test_a_pattern_does_not_leave_its_folder(tmp_path: Path) -> None:
    """A link that matches is followed only with trust; one that the caller names is."""
    (tmp_path / "logs").mkdir()
    frame = pl.DataFrame([row | {"episode": 0} for row in rows()[0]])
    frame.write_csv(tmp_path / "secret.csv")
    frame.write_csv(tmp_path / "logs/a.csv")
    (tmp_path / "logs/b.csv").symlink_to(tmp_path / "secret.csv")
    options: dict[str, Any] = {"mapping": MAPPING, "last_observation": "missing"}
    for source in (tmp_path / "logs", tmp_path / "logs/*.csv"):
        with pytest.raises(el.errors.DatasetError, match="outside of the source"):
            el.import_dataset(source, tmp_path / "s", **options)
    report = el.import_dataset([tmp_path / "logs/a.csv", tmp_path / "logs/b.csv"], tmp_path / "s", **options)
    assert report.episodes == 2


def test_files_of_several_kinds_are_named(tmp_path: Path) -> None:
    """A folder with tables of two kinds says so, since they may be the same rows."""
    written(tmp_path / "logs", "csv")
    pl.DataFrame(rows()[0]).write_ipc(tmp_path / "logs/all.arrow")
    with pytest.raises(el.errors.DatasetError, match=r"several kinds: csv .*, ipc \(all.arrow\)"):
        el.import_dataset(tmp_path / "logs", tmp_path / "s", mapping=MAPPING)


def test_files_may_have_other_types_and_orders_of_columns(tmp_path: Path) -> None:
    """Whole numbers in one file and fractions in another are floats; columns go by their names."""
    for kind in ("csv", "jsonl", "npz"):
        folder = tmp_path / kind
        folder.mkdir()
        values = [{"reward": [1, 2], "action": [0, 1]}, {"action": [1, 1], "reward": [0.5, 1.5]}]
        for number, each in enumerate(values):
            named = {"observation": [0.5, 1.5], **each, "terminated": [False, True]}
            if kind == "csv":
                pl.DataFrame(named).write_csv(folder / f"{number}.csv")
            elif kind == "jsonl":
                pl.DataFrame(named).write_ndjson(folder / f"{number}.jsonl")
            else:
                np.savez(folder / f"{number}.npz", **named)
        el.import_dataset(folder, tmp_path / f"s-{kind}", last_observation="missing")
        store = el.open(tmp_path / f"s-{kind}")
        assert [each.rewards.tolist() for each in store] == [[1.0, 2.0], [0.5, 1.5]]
        assert [each.actions.tolist() for each in store] == [[0, 1], [1, 1]]


def test_texts_of_json_lines_stay_texts(tmp_path: Path) -> None:
    """Dates, times and UUIDs are what the log says; wide integers keep their digits."""
    facts = {
        "id": "550e8400-e29b-41d4-a716-446655440000",
        "day": "2020-01-01",
        "moment": "2020-01-01 10:00:00",
        "code": "007",
        "wide": 2**63 + 1,
    }
    lines = [
        json.dumps({"obs": [0.5, t], "act": t, "reward": 1.0, "done": t == 1, **facts}) for t in range(2)
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    mapping = {
        "observation": "obs",
        "action": "act",
        "reward": "reward",
        "done": "done",
        "episode": "id",
        "metadata": ["day", "moment", "code"],
    }
    el.import_dataset(tmp_path / "log.jsonl", tmp_path / "s", mapping=mapping, last_observation="missing")
    (episode,) = el.open(tmp_path / "s")
    metadata = dict(episode.metadata)
    assert metadata.pop("source_key").endswith(facts["id"])
    assert {name: metadata[name] for name in ("day", "moment", "code")} == {
        name: facts[name] for name in ("day", "moment", "code")
    }


def test_integers_in_lists_of_csv_are_exact(tmp_path: Path) -> None:
    """Of 64 bits with and without a sign; beyond that decimals, or an error that names the integer."""
    exact = {"a": 2**64 - 1, "b": -(2**63), "c": 10**30}
    rows = "\n".join(
        f'0,0,0.0,"[{exact["a"]}, 1]","[{exact["b"]}, 1]","[-1, {exact["c"]}]"' for _ in range(3)
    )
    (tmp_path / "log.csv").write_text(f"episode,action,reward,a,b,c\n{rows}\n")
    mapping: dict[str, Any] = {"episode": "episode", "action": "action", "reward": "reward"}
    mapping |= {"observation": {"a": "a", "b": "b"}, "extra": "c"}
    el.import_dataset(tmp_path / "log.csv", tmp_path / "store", mapping=mapping)
    (episode,) = el.open(tmp_path / "store")
    assert episode.observations["a"].tolist() == [[2**64 - 1, 1]] * 3
    assert episode.observations["b"].tolist() == [[-(2**63), 1]] * 3
    assert str(10**30) in str(episode.extra["c"][0])
    (tmp_path / "wide.csv").write_text((tmp_path / "log.csv").read_text().replace(str(10**30), "9" * 50))
    with pytest.raises(
        el.errors.DatasetError, match=rf"`c` has the integer {'9' * 50}, which would be rounded"
    ):
        el.import_dataset(tmp_path / "wide.csv", tmp_path / "other", mapping=mapping)


def test_lists_in_cells_of_csv_are_lists(tmp_path: Path) -> None:
    """As pandas writes lists and arrays, of several axes, with NaN and empty cells; other texts stay."""
    columns = {
        "obs": [[0.1 * t, -2e-7 * t] for t in range(6)],
        "printed": [np.linspace(-1, 1, 30) * t for t in range(6)],
        "frame": [np.arange(6).reshape(2, 3) - t for t in range(6)],
        "gaps": [[float("nan"), float(t)] for t in range(6)],
    }
    texts = {
        "words": ["['a', 'b']"] * 6,
        "mixed": ["none", *["[1, 2]"] * 5],
        "dotted": ["[1.2.3]"] * 6,
        "short": ["[0.1 ... 0.2]"] * 6,
    }
    rest = {
        "episode": [0, 0, 0, 1, 1, 1],
        "action": [0, 1] * 3,
        "reward": [1.0] * 6,
        "few": [None, [1, 2]] * 3,
    }
    frame = pd.DataFrame({**columns, **texts, **rest})
    frame.to_csv(tmp_path / "log.csv", index=False)
    mapping = {
        "observation": {name: name for name in columns}, "action": "action", "reward": "reward",
        "episode": "episode", "extra": [*texts, "few"],
    }  # fmt: skip
    report = el.import_dataset(tmp_path / "log.csv", tmp_path / "s", mapping=mapping)
    shapes = {name: space.shape for name, space in report.observation_space.spaces.items()}  # type: ignore
    assert shapes == {"obs": (2,), "printed": (30,), "frame": (2, 3), "gaps": (2,)}
    store = el.open(tmp_path / "s")
    for name, values in columns.items():
        seen = np.concatenate([episode.observations[name] for episode in store])  # type: ignore[index]
        assert np.allclose(seen, np.array(values), atol=1e-6, equal_nan=True)
    extra = store[0].extra
    assert {name: extra[name][0] for name in texts} == {name: values[0] for name, values in texts.items()}
    assert [None if value is None else list(value) for value in extra["few"][:3]] == [None, [1, 2], None]
    with pytest.raises(el.errors.DatasetError, match=r"`obs` has the text .* looks like a list of numbers"):
        el.import_dataset(pd.read_csv(tmp_path / "log.csv"), tmp_path / "t")
    for cell in ("[np.float64(0.1), np.float64(1.0)]", "(0.1, 1)", "[0.1, None]", "[True, False]"):
        frame = pd.DataFrame({"episode": [0, 0], "obs": [cell] * 2, "action": [0, 1], "reward": [0.0, 1.0]})
        with pytest.raises(el.errors.DatasetError, match="looks like a list of numbers"):
            el.import_dataset(frame, tmp_path / "t")


def test_a_single_file_is_one_episode_only_when_asked(tmp_path: Path) -> None:
    """A log without a column for episodes may hold several, so `el.FILE` has to be named."""
    pl.DataFrame(rows()[0]).write_csv(tmp_path / "log.csv")
    frame = pl.read_csv(tmp_path / "log.csv").rename({"x": "obs_0", "y": "obs_1"})
    frame.write_csv(tmp_path / "obvious.csv")
    with pytest.raises(el.errors.DatasetError, match="no column for episode"):
        el.import_dataset(tmp_path / "obvious.csv", tmp_path / "s")
    report = el.import_dataset(
        tmp_path / "log.csv", tmp_path / "s", mapping=MAPPING, last_observation="missing"
    )
    assert (report.episodes, report.mapping["episode"]) == (1, el.FILE)


def test_a_column_filename_of_your_own_is_kept(tmp_path: Path) -> None:
    """Files that have such a column mean it, not their names."""
    (tmp_path / "logs").mkdir()
    for number, plain in enumerate(rows()):
        frame = pl.DataFrame(plain).with_columns(pl.lit("walk" if number < 2 else "run").alias("filename"))
        frame.write_csv(tmp_path / f"logs/{number}.csv")
    mapping = MAPPING | {"terminated": None}
    report = el.import_dataset(tmp_path / "logs", tmp_path / "s", mapping=mapping, last_observation="missing")
    assert [each.length for each in el.open(tmp_path / "s")] == [4, 4] and report.episodes == 2


def test_arrays_of_other_lengths_are_named(tmp_path: Path) -> None:
    """The array, its length and that of the longest, and the dict or file that has them."""
    wrong: dict[str, Any] = rollouts()[0] | {"rewards": np.ones(1)}
    with pytest.raises(
        el.errors.DatasetError, match="Dict 1 of the list: `rewards` has 1 rows, and `observations` 3"
    ):
        el.import_dataset([rollouts()[0], wrong], tmp_path / "s")
    (tmp_path / "logs").mkdir()
    np.savez(tmp_path / "logs/a.npz", **wrong)
    with pytest.raises(el.errors.DatasetError, match=r"a\.npz: `rewards` has 1 rows"):
        el.import_dataset(tmp_path / "logs", tmp_path / "s")


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_integers_beyond_63_bits_stay_apart(tmp_path: Path, suffix: str) -> None:
    """Ids and values that doubles cannot tell apart come in as they are; DuckDB would write doubles."""
    ids = [2**64 - 1, 2**64 - 1, 2**64 - 2]
    rows = [
        {"episode": each, "observation": 0.5, "action": 1, "reward": 1.0, "info.n": 2**63 + number}
        for number, each in enumerate(ids)
    ]
    source = tmp_path / f"ids.{suffix}"
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    source.write_text("\n".join(lines if suffix == "csv" else map(json.dumps, rows)))
    report = el.import_dataset(source, tmp_path / "store", last_observation="missing")
    assert (report.episodes, report.steps) == (2, 3)
    store = el.open(tmp_path / "store")
    assert [episode.infos[0]["n"] for episode in store] == [2**63, 2**63 + 2]
    assert [int(episode.metadata["source_key"].rpartition("/")[2]) for episode in store] == ids[1:]


def test_patterns_of_one_folder_are_datasets_of_their_own(tmp_path: Path) -> None:
    """Months whose episodes begin at 0 again are added, also where their values agree."""
    for name in ("jan1", "jan2", "feb1", "feb2"):
        number = int(name[-1])
        rows = {"episode": [number] * 2, "observation": [0.5, 1.0], "action": [0, 1], "reward": [1.0, 2.0]}
        pl.DataFrame(rows).write_csv(tmp_path / f"{name}.csv")
    pl.DataFrame(rows | {"reward": [1.0, 3.0]}).write_csv(tmp_path / "feb2.csv")
    store = tmp_path / "store"
    for month in ("jan", "feb", "jan"):
        el.import_dataset(tmp_path / f"{month}*.csv", store, last_observation="missing")
    assert sorted(float(episode.rewards[1]) for episode in el.open(store)) == [2, 2, 2, 3]


def test_scalars_that_become_vectors_are_a_change(tmp_path: Path) -> None:
    """A corrected source whose values have another form is an error of ours, and replaces."""
    source, store = tmp_path / "log.jsonl", tmp_path / "store"
    for value in (1.5, [1.5, 2.5]):
        rows = [{"episode": 0, "observation": 0.5, "action": 0, "reward": 1.0, "info.x": value}] * 2
        source.write_text("\n".join(map(json.dumps, rows)))
        el.import_dataset(source, store, last_observation="missing", on_changed="replace")
    (episode,) = el.open(store)
    assert np.asarray(episode.infos[0]["x"]).tolist() == [1.5, 2.5]


_MASKED_ELEMENTS_ARE_REFUSED: Any = [
    *itertools.product(["obs", "action", "reward", "terminated"], ["arrays", "rollouts", "rows"])
]


@pytest.mark.parametrize("cases", some(_MASKED_ELEMENTS_ARE_REFUSED))
def test_masked_elements_are_refused(tmp_path: Path, cases: Any) -> None:
    """A value under a mask is not part of the data."""
    for folder, (column, form) in with_folders(cases, tmp_path):
        with case((column, form)):
            arrays: dict[str, Any] = {
                "obs": np.arange(3.0),
                "action": np.array([0, 1, 1]),
                "reward": np.arange(3.0),
                "terminated": np.array([False, False, True]),
            }
            arrays[column] = np.ma.masked_array(arrays[column], mask=[False, True, False])
            rows = [{name: values[index] for name, values in arrays.items()} for index in range(3)]
            source = {"arrays": arrays, "rollouts": [arrays], "rows": rows}[form]
            with pytest.raises(
                el.errors.SpaceMismatchError, match=rf"`{column}`.* masked array with 1 masked"
            ):
                el.import_dataset(source, folder / "store", last_observation="missing")
            assert not list(folder.iterdir())


_HALF_OF_A_LAST_TRANSITION_IS_C: Any = [
    *itertools.product(
        ["drop", "missing"],
        [
            ("reward", "actions of a last row without a reward"),
            ("action", "rewards of a last row without an action"),
        ],
        ["frame", "short array"],
    )
]


@pytest.mark.parametrize("cases", some(_HALF_OF_A_LAST_TRANSITION_IS_C))
def test_half_of_a_last_transition_is_counted_as_lost(tmp_path: Path, cases: Any) -> None:
    """A last row with only one of action and reward is that of the last observation; the other is lost."""
    for folder, (last, (column, lost), form) in with_folders(cases, tmp_path):
        with case((last, column, lost, form)):
            columns: dict[str, Any] = {"obs": [1.0, 2.0, 3.0], "action": [0, 1, 1], "reward": [1.0, 2.0, 5.0]}
            if form == "frame":
                columns[column] = [*columns[column][:2], None]
                source: Any = pl.DataFrame({"episode": [0, 0, 0], **columns})
            else:
                source = {name: np.array(values) for name, values in columns.items()}
                source[column] = source[column][:2]
            report = el.import_dataset(source, folder / "store", last_observation=last)
            assert report.lost[lost] == 1
            (episode,) = el.open(folder / "store")
            assert episode.rewards.tolist() == [1.0, 2.0] and episode.observations.tolist() == [1.0, 2.0, 3.0]


def test_rollouts_with_nested_observations(tmp_path: Path) -> None:
    """Dicts of arrays, whose observations are dicts of arrays, and which have no rewards."""
    random = np.random.default_rng(0)
    logs = [
        {
            "obs": {"q": random.random((4, 3)), "cam": random.integers(0, 255, (4, 2, 2, 3), np.uint8)},
            "act": random.random((4, 2)),
        }
        for _ in range(2)
    ]
    mapping = {"observation": "obs", "action": "act", "episode": "episode"}
    assert el.import_dataset(logs, tmp_path / "store", mapping=mapping).episodes == 2
    for episode, log in zip(el.open(tmp_path / "store"), logs, strict=True):
        assert np.isnan(episode.rewards).all()
        assert np.array_equal(episode.actions, log["act"])
        assert all(np.array_equal(episode.observations[name], log["obs"][name]) for name in ("q", "cam"))
