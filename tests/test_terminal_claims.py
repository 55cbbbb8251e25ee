"""What the help of the commands promises, held against plain loops over the episodes and the raw files."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from pathlib import Path

import gymnasium
import numpy as np
import polars as pl
import pytest
from gymnasium import spaces

import episodelake as el
from claimed_commands import command
from claimed_stores import (
    cartpole,
    columns_with_odd_names,
    damage,
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


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A store of two files of steps, and the one that bytes are flipped in."""
    path = tmp_path_factory.mktemp("damaged") / "store"
    return path, damage(two_segments(path), "first")


def test_info_counts_what_a_loop_counts(folder: Path) -> None:
    """Amounts, end reasons and each run of `info --json` are those of the rebuilt episodes."""
    said = command("info", folder / "cartpole", "--json").json
    episodes = list(el.open(folder / "cartpole"))
    assert said["episodes"] == len(episodes)
    assert said["transitions"] == sum(len(episode.rewards) for episode in episodes)
    reasons = [episode.end_reason for episode in episodes]
    assert said["end_reasons"] == {reason: reasons.count(reason) for reason in set(reasons)}
    for run in said["runs"]:
        mine = [episode for episode in episodes if episode.run_id == run["run_id"]]
        assert run["episodes"] == len(mine)
        assert run["mean_return"] == pytest.approx(np.mean([episode.rewards.sum() for episode in mine]))


def test_info_names_every_column_that_the_files_have(folder: Path) -> None:
    """`info` lists the columns of the Parquet files of steps, with sizes that do not exceed the files."""
    for name in ("cartpole", "names", "hostile"):
        columns = [
            row for row in command("info", folder / name, "--json").json["columns"] if row["table"] == "steps"
        ]
        files = raw_files(folder / name, "steps")
        assert {row["column"] for row in columns} == set(pl.read_parquet(files).columns)
        assert 0 < sum(row["bytes"] for row in columns) <= sum(Path(file).stat().st_size for file in files)


def test_ls_filters_sorts_and_pages_as_python_does(folder: Path) -> None:
    """Filter, order, limit and offset of `ls` give the slice that sorting the episodes gives."""
    store = el.open(folder / "cartpole")
    kept = [episode for episode in store if len(episode.rewards) < 18]
    for extra, descending in (([], False), (["--descending"], True)):
        words = [
            "ls",
            store.path,
            "--filter",
            "length < 18",
            "--order-by",
            "length",
            *extra,
            "--limit",
            5,
            "--offset",
            2,
        ]
        lengths = [row["length"] for row in command(*words, "--json").json]
        assert lengths == sorted((len(episode.rewards) for episode in kept), reverse=descending)[2:7]


def test_positions_of_ls_are_what_show_takes(folder: Path) -> None:
    """A position that `ls` prints of a filtered list names the same episode to `show`."""
    rows = command("ls", folder / "cartpole", "--filter", "end_reason = 'cut'", "--json").json
    assert rows
    for row in rows:
        shown = command("show", folder / "cartpole", row["position"], "--json").json
        assert shown["episode_id"] == row["episode_id"]


def test_ls_in_a_pipe_has_as_many_cells_in_each_row(folder: Path) -> None:
    """What a pipe gets of stores with hostile text is one line per episode with cells between tabs."""
    for name in ("cartpole", "names", "hostile"):
        columns = [row for row in el.open(folder / name).episodes.collect_schema() if "metadata" in row]
        words = ["--columns", ",".join(["length", *columns])] if name == "cartpole" else []
        rows = command("ls", folder / name, *words).rows
        count = len(el.open(folder / name))
        assert len({len(row) for row in rows[: count + 1]}) == 1


def test_lists_are_sorted_with_nothing_last(folder: Path) -> None:
    """`--order-by` puts NULLs last in both directions, as its help says."""
    for extra in ([], ["-d"]):
        words = ["ls", folder / "rewards", "--order-by", "metadata.note", "-c", "metadata.note", *extra]
        notes = [row["metadata.note"] for row in command(*words, "--json").json]
        assert notes == ["only here"] + [None] * 5


def test_head_gives_the_first_rows_of_each_table(folder: Path) -> None:
    """`head` shows rows of steps as the raw files hold them, and no more than asked for."""
    raw = raw_steps(folder / "cartpole")
    said = command("head", folder / "cartpole", "--limit", 7, "-c", "episode_id,t,reward", "--json").json
    assert said == [{key: row[key] for key in ("episode_id", "t", "reward")} for row in raw[:7]]
    for table in ("episodes", "runs", "transitions"):
        assert len(command("head", folder / "cartpole", table, "-n", 2, "--json").json) == 2
    assert command("head", folder / "empty", "--json").json == []


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


def test_one_store_has_one_highest_return(folder: Path) -> None:
    """`info`, `stats` and `ls` agree on the highest return that is a number."""
    info = command("info", folder / "rewards", "--json").json["returns"][0]["highest"]
    (row,) = (
        row
        for row in command("stats", folder / "rewards", "--episodes-only", "--json").json["episodes"]
        if row["column"] == "episode_return"
    )
    assert info == row["maximum"] == "Infinity"


def test_a_drawing_says_how_much_it_leaves_out(folder: Path) -> None:
    """A histogram of returns of which most are not finite does not pass over them in silence."""
    said = command("plot", folder / "rewards", "histogram")
    assert re.search(r"(?<![\w.-])5(?![\w.])", said.out + said.err)


def test_stats_are_those_of_numpy(folder: Path) -> None:
    """Mean, deviation, extremes and quartiles of `stats` are numpy's over the raw values."""
    said = command("stats", folder / "cartpole", "-c", "observation,reward", "--json").json["columns"]
    raw = raw_steps(folder / "cartpole")
    for row in said:
        if row["column"] == "observation":
            values = np.array([line["observation"] for line in raw], float)[:, int(row["element"])]
        else:
            values = np.array([line["reward"] for line in raw if line["reward"] is not None])
        expected = (values.mean(), values.std(), values.min(), values.max(), np.quantile(values, 0.25))
        found = tuple(row[key] for key in ("mean", "std", "minimum", "maximum", "q0.25"))
        assert found == pytest.approx(expected, rel=1e-6)


def test_stats_take_the_names_that_sql_has(folder: Path) -> None:
    """A leaf of a Dict is measured under the name that `info` prints, whatever is in it."""
    listed = [row["column"] for row in command("info", folder / "names", "--json").json["columns"]]
    wanted = [name for name in listed if name.startswith("observation.")]
    measured = command("stats", folder / "names", "--json").json["columns"]
    assert set(wanted) <= {row["column"] for row in measured}
    for name in ("observation.a%2Eb", "observation.select"):
        rows = command("stats", folder / "names", "-c", name, "--json").json["columns"]
        assert {row["column"] for row in rows} == {name}


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


def test_a_query_comes_from_standard_input(folder: Path) -> None:
    """A pipe and `-` give the query; an empty pipe, two queries and bytes that are no text are told."""
    assert command("sql", folder / "cartpole", given=b"select 41 + 1 as x -- why not\n").out == "x\n42\n"
    assert command("sql", folder / "cartpole", "-", given="select 'Größe' as x".encode()).out == "x\nGröße\n"
    assert command("sql", folder / "cartpole").status == 2
    assert command("sql", folder / "cartpole", "-", given=b"select 1; select 2").status == 1
    assert command("sql", folder / "cartpole", "-", given=b"select '\xff' as x").status in (1, 2)


def test_sql_writes_nothing_and_reads_nothing_else(folder: Path, tmp_path: Path) -> None:
    """A query that would write, read or fetch something beside the store fails with status 1."""
    for query in (
        f"COPY (SELECT 1) TO '{tmp_path}/x.csv'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT content FROM read_text('/etc/hostname')",
        "INSTALL httpfs",
        "ATTACH ':memory:' AS other",
        "SET enable_external_access = true",
    ):
        said = command("sql", folder / "cartpole", query)
        assert (said.status, said.out) == (1, "") and said.err.startswith("Error:")
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_told_with_the_nearest_names(folder: Path) -> None:
    """A misspelt column, table, macro, episode, command's word or file gets what was probably meant."""
    store = folder / "cartpole"
    known = el.open(store)[0].id
    for words, meant in (
        (["sql", store, "select lenght from episodes"], "length"),
        (["sql", store, "select * from episode"], "episodes"),
        (["sql", store, "select * from return_to_go()"], "returns_to_go"),
        (["ls", store, "--order-by", "retrun"], "episode_return"),
        (["ls", store, "--filter", "end_raeson = 'cut'"], "end_reason"),
        (["head", store, "stpes"], "steps"),
        (["head", store, "-c", "obsrvation"], "observation"),
        (["stats", store, "-c", "obsrvation"], "observation"),
        (["show", store, known[:-1]], known),
        (["plot", store, "return"], "returns"),
        (["infoo", store], "info"),
    ):
        said = command(*words)
        assert said.status in (1, 2) and said.out == ""
        assert meant in said.err and "Traceback" not in said.err


def test_calls_that_cannot_be_meant_have_status_two(folder: Path, tmp_path: Path) -> None:
    """An unknown suffix, a bad range and options that exclude each other are wrong calls: status 2."""
    store = folder / "cartpole"
    for words in (
        ["plot", store, "returns", "-o", tmp_path / "x.pdf"],
        ["show", store, 0, "--frames", tmp_path / "x.bmp"],
        ["show", store, 0, "--frames", tmp_path / "x.png", "--steps", "a:b"],
        ["sql", store, "FROM steps", "--csv", "--json"],
        ["ls", store, "--limit", "-3"],
        ["diff", store],
    ):
        assert command(*words).status == 2
    assert list(tmp_path.iterdir()) == []


def test_an_empty_store_has_answers(folder: Path) -> None:
    """Every look at a store without episodes ends quietly; `show` and `plot` say what is missing."""
    for words in (["info"], ["ls"], ["head"], ["stats"], ["sql"]):
        extra = {"sql": ["FROM returns_to_go()"]}.get(words[0], [])
        assert command(*words, folder / "empty", *extra).status == 0
        assert command(*words, folder / "empty", *extra, "--json").json is not None
    assert command("plot", folder / "empty", "returns", "--json").json == []
    for words in (["show", folder / "empty", 0], ["plot", folder / "empty", "returns"]):
        said = command(*words)
        assert said.status == 1 and "no episode" in said.err


def test_text_of_a_store_stays_text(folder: Path) -> None:
    """No command passes a control character, an escape or a reversal of direction from a store on."""
    for words in (["info"], ["ls"], ["head"], ["show", 0], ["sql", "FROM steps"], ["sql", "FROM runs"]):
        said = command(words[0], folder / "hostile", *words[1:])
        assert said.status == 0
        assert [c for c in said.out if unicodedata.category(c) in ("Cc", "Cf") and c not in "\n\t"] == []


def test_what_is_whole_of_a_damaged_store_is_shown(damaged: tuple[Path, Path]) -> None:
    """With one file of steps damaged, episodes, runs and the steps of the other file are all there."""
    path, _ = damaged
    for words in (["info"], ["ls"], ["head", "episodes"], ["stats", "--episodes-only"], ["plot", "returns"]):
        assert command(words[0], path, *words[1:]).status == 0
    assert command("show", path, 5, "--json").json["length"] == 2000
    query = "SELECT count(observation) AS n FROM steps WHERE episode_id LIKE 'second%'"
    assert command("sql", path, query, "--json").json == [{"n": 4 * 2001}]


@pytest.mark.parametrize("words", [["head"], ["show", 0], ["stats"], ["sql", "FROM steps"], ["verify"]])
def test_what_is_damaged_is_named(damaged: tuple[Path, Path], words: list[str | int]) -> None:
    """A command that needs the damaged file fails with a message that names the file."""
    path, file = damaged
    said = command(words[0], path, *words[1:])
    assert said.status == 1
    assert file.name in said.out + said.err and "Traceback" not in said.err


def test_diff_knows_versions_stores_and_single_values(folder: Path, tmp_path: Path) -> None:
    """`diff` is 0 for the same, 1 for more episodes or one other value, 2 for what is not there."""
    store = folder / "cartpole"
    assert command("diff", store, store).status == 0
    more = command("diff", f"{store}@1", store, "--json")
    assert more.status == 1 and len(more.json["episodes"]["only_b"]) == 8
    assert command("diff", store, folder / "nowhere").status == 2
    assert command("diff", store, folder / "names", "--quiet").out == ""


def test_metadata_that_begins_with_an_option(tmp_path: Path) -> None:
    """A store whose name begins with a dash or has spaces and an @ is still reached."""
    for name in ("a b", "é@home"):
        store = el.create(
            tmp_path / name, observation_space=spaces.Discrete(3), action_space=spaces.Discrete(2)
        )
        with store.writer(run="r") as writer:
            writer.write_episode(
                observations=[0, 1], actions=[1], rewards=[1.0], terminations=True, truncations=False
            )
        said = command("info", tmp_path / name, "--json")
        assert said.json["episodes"] == 1


def test_one_writer_meanwhile(tmp_path: Path) -> None:
    """A store that a run is writing into is looked at, shows what is sealed, and more after the next seal."""
    store = el.create(tmp_path / "live", gymnasium.make("CartPole-v1"))
    with store.record(gymnasium.make("CartPole-v1")) as env:
        env.action_space.seed(0)
        for number in range(3):
            env.reset(seed=number)
            while True:
                _, _, terminated, truncated, _ = env.step(env.action_space.sample())
                if terminated or truncated:
                    break
            assert command("info", tmp_path / "live", "--json").json["episodes"] == number
            env.seal()
            assert command("ls", tmp_path / "live", "--json").json[-1]["seed"] == number
    assert pl.read_parquet(f"{tmp_path}/live/episodes/*.parquet").height == 3
