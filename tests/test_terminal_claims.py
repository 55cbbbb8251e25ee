"""What the help of the commands promises, held against plain loops over the episodes and the raw files."""

from __future__ import annotations

import csv
import io
import shutil
import unicodedata
from pathlib import Path

import gymnasium
import numpy as np
import polars as pl
import pytest

import episodelake as el
from claimed_commands import command
from claimed_stores import (
    cartpole,
    columns_with_odd_names,
    hostile_texts,
    odd_rewards,
    raw_files,
    raw_steps,
    two_segments,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store of each kind, only looked at."""
    root = tmp_path_factory.mktemp("claims")
    cartpole(root / "cartpole")
    odd_rewards(root / "rewards")
    columns_with_odd_names(root / "names")
    hostile_texts(root / "hostile")
    el.create(root / "empty", gymnasium.make("CartPole-v1"))
    return root


def test_info_names_every_column_that_the_files_have(folder: Path) -> None:
    """`info` lists the columns of the Parquet files of steps, with sizes that do not exceed the files."""
    for name in ("cartpole", "names", "hostile"):
        columns = [
            row for row in command("info", folder / name, "--json").json["columns"] if row["table"] == "steps"
        ]
        files = raw_files(folder / name, "steps")
        assert {row["column"] for row in columns} == set(pl.read_parquet(files).columns)
        assert 0 < sum(row["bytes"] for row in columns) <= sum(Path(file).stat().st_size for file in files)


def test_lists_are_sorted_with_nothing_last(folder: Path) -> None:
    """`--order-by` puts NULLs last in both directions, as its help says."""
    for extra in ([], ["-d"]):
        words = ["ls", folder / "rewards", "--order-by", "metadata.note", "-c", "metadata.note", *extra]
        notes = [row["metadata.note"] for row in command(*words, "--json").json]
        assert notes == ["only here"] + [None] * 5


def test_numbers_that_are_not_finite_are_strict_json(folder: Path) -> None:
    """Every `--json` of a store with NaN and infinities parses strictly and keeps them apart."""
    store = folder / "rewards"
    for words in (["info"], ["ls"], ["head"], ["stats"], ["plot"], ["show"], ["sql"]):
        extra = {"plot": ["returns"], "show": ["0"], "sql": ["FROM transitions"]}.get(words[0], [])
        assert command(*words, store, *extra, "--json").json
    rewards = [row["reward"] for row in command("sql", store, "FROM transitions", "--json").json]
    read = [float(str(value).replace("Infinity", "inf")) for value in rewards]
    np.testing.assert_array_equal(
        read, [row["reward"] for row in raw_steps(store) if row["reward"] is not None]
    )


def test_csv_json_and_parquet_say_the_same(folder: Path, tmp_path: Path) -> None:
    """The three forms of a result of `sql` hold the same rows, with quotes, newlines and tabs in them."""
    query = """SELECT episode_id, t, "info.text" AS text, reward FROM steps WHERE length("info.text") < 200"""
    (tmp_path / "query.sql").write_text(query)
    as_json = command("sql", folder / "hostile", query, "--json").json
    as_csv = list(
        csv.DictReader(io.StringIO(command("sql", folder / "hostile", query, "--csv").out, newline=""))
    )
    assert command("sql", folder / "hostile", query, "--parquet", tmp_path / "result.parquet").status == 0
    as_parquet = pl.read_parquet(tmp_path / "result.parquet").to_dicts()
    assert as_json == as_parquet
    assert [(row["episode_id"], row["text"]) for row in as_csv] == [
        (row["episode_id"], row["text"]) for row in as_json
    ]


def test_text_of_a_store_stays_text(folder: Path) -> None:
    """No command passes a control character, an escape or a reversal of direction from a store on."""
    for words in (["info"], ["ls"], ["head"], ["show", 0], ["sql", "FROM steps"], ["sql", "FROM runs"]):
        said = command(words[0], folder / "hostile", *words[1:])
        assert said.status == 0
        assert [c for c in said.out if unicodedata.category(c) in ("Cc", "Cf") and c not in "\n\t"] == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of steps; copies of it are ruined."""
    return Path(two_segments(tmp_path_factory.mktemp("whole") / "store").path)


def ruin(path: Path, pattern: str, how: str) -> None:
    """Ruin the files of a pattern: their end, their middle, or the whole file."""
    if how == "text":
        (path / pattern).write_text("{oops")
        return
    for file in path.glob(pattern):
        data = bytearray(file.read_bytes())
        if how == "gone":
            file.unlink()
        elif how == "cut":
            file.write_bytes(data[: len(data) // 2])
        else:
            end = 1500 if file.parent.name == "episodes" else len(data) // 2
            data[100:end] = bytes(255 - byte for byte in data[100:end])
            file.write_bytes(data)


RUINS = [
    ("steps/first*.parquet", "gone"),
    ("steps/first*.parquet", "cut"),
    ("steps/first*.parquet", "middle"),
    ("episodes/first*.parquet", "cut"),
    ("episodes/first*.parquet", "gone"),
    ("runs/first*.parquet", "cut"),
    ("card.json", "text"),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("pattern", "how"), RUINS)
def test_looking_goes_on_beside_a_ruined_file(whole: Path, tmp_path: Path, pattern: str, how: str) -> None:
    """Whatever single file is ruined, `info` and `ls` answer, and the second run's last episode is shown."""
    path = tmp_path / "store"
    shutil.copytree(whole, path)
    last = el.open(path)[-1].id
    ruin(path, pattern, how)
    assert command("info", path, "--json").status == 0
    assert command("ls", path, "--json").json[-1]["episode_id"] == last
    assert command("show", path, last, "--json").json["length"] == 2000
    assert command("verify", path).status == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize(("pattern", "how"), RUINS[:5])
def test_what_is_asked_of_a_ruined_file_is_no_traceback(
    whole: Path, tmp_path: Path, pattern: str, how: str
) -> None:
    """Commands that need the ruined file name it, whichever way it is ruined."""
    path = tmp_path / "store"
    shutil.copytree(whole, path)
    ruin(path, pattern, how)
    table = pattern.split("/")[0]
    for words in (["head", path, table], ["sql", path, f"SELECT * FROM {table}"], ["diff", whole, path]):
        said = command(*words)
        assert "first-" in said.err and ".parquet" in said.err and "Traceback" not in said.err
