"""`episodelake sql`: what comes out and where to, what comes in, the prompt, and Ctrl-C."""

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
from gymnasium import spaces
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from typer.testing import CliRunner

import episodelake as el
from effort import looped
from episodelake.terminal.app import app
from episodelake.terminal.reports.prompt import SqlCompleter
from terminal_sessions import terminal
from test_cli import call, no_terminal, printed, refused, table

__all__ = ["no_terminal"]

#: Runs until it is interrupted.
ENDLESS = "SELECT count(*) FROM range(100000000000) a, range(100000) b"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three episodes, infos with a dot in their name, and a NaN."""
    path = tmp_path_factory.mktemp("queries") / "store"
    store = el.create(
        path, observation_space=spaces.Box(-9, 9, (2,), np.float32), action_space=spaces.Discrete(3)
    )
    with store.writer(run="first") as writer:
        for length in (2, 4, 3):
            writer.write_episode(
                observations=np.arange(2 * length + 2, dtype=np.float32).reshape(-1, 2) / 10,
                actions=np.arange(length) % 3,
                rewards=np.append(np.arange(length - 1) / 3, np.nan),
                terminations=True,
                truncations=False,
                infos=[{"x": t / 7, "note": 'say "hi",\nplease'} for t in range(length + 1)],
            )
    return path


def fed(text: str, *words: object) -> Any:
    """Run a command in this process with a text on standard input."""
    result = CliRunner().invoke(app, [str(word) for word in words], input=text)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


# What comes out


def test_csv_reads_back(path: Path) -> None:
    """CSV holds every row without a limit, exact numbers, quotes where they are needed, and empty NULLs."""
    query = 'SELECT t, reward, observation, "info.note" AS note FROM steps ORDER BY episode_id, t'
    rows = list(csv.DictReader(io.StringIO(printed("sql", path, query, "--csv"))))
    expected = el.open(path).sql(query).fetchall()
    assert len(rows) == 12
    for row, (t, reward, observation, note) in zip(rows, expected, strict=True):
        assert (int(row["t"]), row["note"]) == (t, note)
        assert json.loads(row["observation"]) == observation
        assert row["reward"] == ("" if reward is None else repr(reward))


def test_json_reads_back(path: Path) -> None:
    """JSON holds every row; NaN is a text, and NULL is null."""
    rows = json.loads(printed("sql", path, "FROM steps ORDER BY episode_id, t", "--json"))
    expected = el.open(path).sql("FROM steps ORDER BY episode_id, t").pl().to_dicts()
    assert len(rows) == 12
    for row, wanted in zip(rows, expected, strict=True):
        assert list(row) == list(wanted)
        assert row["observation"] == wanted["observation"]
        reward = wanted["reward"]
        assert row["reward"] == ("NaN" if reward is not None and np.isnan(reward) else reward)


def test_parquet_reads_back(path: Path, tmp_path: Path) -> None:
    """A Parquet file has the rows and the types of the result."""
    file = tmp_path / "out.parquet"
    result = call("sql", path, "FROM steps ORDER BY episode_id, t", "--parquet", file)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "12 rows" in result.stderr
    query = f"FROM read_parquet('{file}')"
    assert str(duckdb.sql(query).fetchall()) == str(
        el.open(path).sql("FROM steps ORDER BY episode_id, t").fetchall()
    )
    assert pl.read_parquet(file).schema["observation"] == pl.List(pl.Float32)


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_output_goes_by_its_name(path: Path, tmp_path: Path, suffix: str) -> None:
    """--output writes what the name of the file says, in full, and leaves nothing else behind."""
    file = tmp_path / f"out.{suffix}"
    printed("sql", path, "SELECT * FROM range(150) r(n)", "--output", file)
    read = {"csv": pl.read_csv, "json": pl.read_json, "parquet": pl.read_parquet}[suffix]
    assert read(file)["n"].to_list() == list(range(150))
    assert list(tmp_path.iterdir()) == [file]
    assert file.stat().st_mode & 0o777 == 0o666 & ~_mask()


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_query_that_fails_leaves_the_file(path: Path, tmp_path: Path) -> None:
    """What stood in the file stays where a query fails half way."""
    file = tmp_path / "out.csv"
    file.write_text("kept")
    query = "SELECT CASE WHEN n < 30000 THEN '1' ELSE 'x' END::INT AS n FROM range(60000) r(n)"
    assert refused(1, "sql", path, query, "--output", file).startswith("Error: ")
    assert (file.read_text(), list(tmp_path.iterdir())) == ("kept", [file])


# What comes in


@pytest.mark.parametrize("words", [[], ["-"]])
def test_a_query_from_a_pipe(path: Path, words: list[str]) -> None:
    """Without a query, or with a hyphen, standard input is read: comments, lines and semicolon included."""
    text = "-- how long\nSELECT count(*) AS n,\n  sum(length) AS steps\nFROM episodes;\n"
    assert table(fed(text, "sql", path, *words).stdout) == [["n", "steps"], ["3", "9"]]


def test_an_empty_pipe_is_wrong_usage(path: Path) -> None:
    """Nothing on standard input ends with status 2."""
    result = fed(" \n", "sql", path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "QUERY" in result.stderr


# Ctrl-C


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--csv"], ["--json"]])
def test_interrupting_a_query(path: Path, words: list[str]) -> None:
    """Ctrl-C ends a long query at once: one line, status 130, no trace."""
    with terminal("sql", path, f"{ENDLESS} -- ", *words) as session:
        session.wait_until_computing()
        session.interrupt()
        assert session.end() == 130
        assert session.text == "Error: Interrupted. The store is as it was.\n"


# The prompt


@pytest.fixture
def prompt(path: Path, tmp_path: Path) -> dict[str, Any]:
    """How a prompt is started: with a history of its own."""
    return {"environment": {"EPISODELAKE_DATA": str(tmp_path / "data"), "COLUMNS": ""}}


@pytest.mark.slow
def test_the_prompt(path: Path, tmp_path: Path, prompt: dict[str, Any]) -> None:
    """Queries over several lines are answered, also after errors and one that Ctrl-C stopped; the tab key
    completes; Ctrl-D leaves.
    """
    with terminal("sql", path, **prompt) as session:
        at = session.wait_for("sql> ")
        session.type("select sum(length)\r")
        at = session.wait_for("...> ", at)
        session.type("  as total from episodes;\r")
        at = session.wait_for("total", session.wait_for(" s\n", at) - 60)
        assert "9" in session.text[at:]
        at = session.wait_for("sql> ", session.wait_for(" s\n", at))
        session.type("select lenght from episodes;\r")
        at = session.wait_for("length", session.wait_for("Error: ", at))
        at = session.wait_for("sql> ", at)
        session.type(f"{ENDLESS};\r")
        session.wait_until_computing()
        session.interrupt()
        at = session.wait_for("sql> ", session.wait_for("Interrupted.", at))
        session.type("select episode_ret")
        at = session.wait_for("DOUBLE", at)
        session.type("\t")
        at = session.wait_for("urn", at)
        session.type(" from episo")
        at = session.wait_for("table", at)
        session.type("\t")
        at = session.wait_for("des", at)
        session.type(" limit 1;\r")
        at = session.wait_for("sql> ", session.wait_for(" s\n", at))
        for typed, answer in (
            ("describe episodes;", "episode_return"),
            ("from range(3) r(n);", " s\n"),
        ):
            session.type(f"{typed}\r")
            at = session.wait_for("sql> ", session.wait_for(answer, at))
        session.type("\x04")
        assert session.end() == 0
    kept = tmp_path / "data" / "sql_history"
    assert "+select sum(length)\n+  as total from episodes;" in kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_leaving_the_prompt(path: Path, prompt: dict[str, Any]) -> None:
    """`exit` leaves, without a semicolon."""
    with terminal("sql", path, **prompt) as session:
        session.wait_for("sql> ")
        session.type("exit\r")
        assert session.end() == 0


@pytest.fixture(scope="module")
def completer(path: Path) -> SqlCompleter:
    """What completes on a connection of the store."""
    return SqlCompleter(el.open(path).connect(read_only=True))


def offered(completer: SqlCompleter, text: str) -> list[str]:
    """What the tab key would insert at the end of a text."""
    event = CompleteEvent(completion_requested=True)
    return [found.text for found in completer.get_completions(Document(text), event)]


@looped(
    ("text", "wanted"),
    [
        ("SELECT * FROM ", {"runs", "episodes", "steps", "transitions"}),
        ("SELECT e.episode_r", {"episode_return"}),
        ('SELECT "info', {'"info.x"', '"info.note"'}),
        ("SELECT quantile_co", {"quantile_cont("}),
        ("select 1 order b", {"BY"}),
    ],
)
def test_completion_offers_what_fits(completer: SqlCompleter, text: str, wanted: set[str]) -> None:
    """Columns, tables, functions and keywords that begin like this; names with a dot get quotes."""
    assert wanted <= set(offered(completer, text))
