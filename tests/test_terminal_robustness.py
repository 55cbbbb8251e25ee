"""The command line where names are odd, numbers are not finite, windows are narrow and files are damaged."""

import io
import json
import sys
import unicodedata
from pathlib import Path

import gymnasium
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import episodelake as el
from claimed_stores import hostile_texts, odd_rewards, raw_steps
from episodelake.terminal.command import message_of
from episodelake.terminal.commands.querying import _query_text
from episodelake.terminal.output.cells import clean
from episodelake.terminal.output.exporting import _write_csv
from episodelake.terminal.output.json_text import json_of
from terminal_stores import MAKERS, TURNED
from test_cli import call, no_terminal, printed, refused, table

__all__ = ["no_terminal"]


def two_files(path: Path) -> Path:
    """A store with three episodes in a file of each of two runs, recorded in CartPole."""
    store = el.create(path, gymnasium.make("CartPole-v1"))
    for run in ("first", "second"):
        with store.record(gymnasium.make("CartPole-v1"), run=run) as env:
            for seed in range(3):
                env.action_space.seed(seed)
                env.reset(seed=seed)
                done = False
                while not done:
                    _, _, terminated, truncated, _ = env.step(env.action_space.sample())
                    done = terminated or truncated
    return path


def spoil(path: Path, kind: str, *, footer: bool) -> Path:
    """Spoil the first run's file of a table: its pages, or its footer."""
    (file,) = (path / kind).glob("first-*.parquet")
    data = bytearray(file.read_bytes())
    places = [len(data) - 30]
    if not footer:
        # The headers of the pages, which no reader passes over.
        group = pq.read_metadata(file).row_group(0)
        columns = [group.column(index) for index in range(group.num_columns)]
        places = [column.data_page_offset for column in columns]
        places += [column.dictionary_page_offset for column in columns if column.has_dictionary_page]
    for place in places:
        data[place : place + 12] = bytes(255 - byte for byte in data[place : place + 12])
    file.write_bytes(data)
    return file


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with odd names and texts, and returns that are not finite."""
    path = tmp_path_factory.mktemp("odd") / "store"
    MAKERS["odd"](path)
    return path


def test_texts_do_not_turn_a_line_round(path: Path) -> None:
    """Characters that change the direction of writing are spelled out, on the page and in JSON."""
    assert clean(TURNED) == "a\\u202eb\\u2066c\\u200fd\\ufeffe"
    assert json_of(TURNED) == '"a\\u202eb\\u2066c\\u200fd\\ufeffe"'
    assert json.loads(json_of(TURNED + "\U000e0041")) == TURNED + "\U000e0041"
    assert clean("Zoë 👩\u200d🔬") == "Zoë 👩\u200d🔬"
    for words in (["show", path, 0], ["head", path, "episodes"], ["head", path, "runs", "--json"]):
        assert "\u202e" not in printed(*words)


def test_hostile_texts_and_numbers(tmp_path: Path) -> None:
    """No command passes a control character or a reversal of direction on; lists put NULL last, and JSON of
    NaN and infinities is strict.
    """
    hostile_texts(tmp_path / "hostile")
    for words in (["info"], ["ls"], ["head"], ["show", 0], ["sql", "FROM steps"], ["sql", "FROM runs"]):
        out = printed(words[0], tmp_path / "hostile", *words[1:])
        assert [c for c in out if unicodedata.category(c) in ("Cc", "Cf") and c not in "\n\t"] == []
    odd_rewards(tmp_path / "rewards")
    for direction in ([], ["-d"]):
        words = ["--order-by", "metadata.note", "-c", "metadata.note", *direction, "--json"]
        rows = json.loads(printed("ls", tmp_path / "rewards", *words))
        assert [row["metadata.note"] for row in rows] == ["only here"] + [None] * 5
    text = printed("sql", tmp_path / "rewards", "FROM transitions", "--json")
    rewards = [row["reward"] for row in json.loads(text, parse_constant=pytest.fail)]
    read = [float(str(value).replace("Infinity", "inf")) for value in rewards]
    true = [row["reward"] for row in raw_steps(tmp_path / "rewards") if row["reward"] is not None]
    np.testing.assert_array_equal(read, true)


def test_wrong_calls_and_texts(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A film of no known kind is a wrong call; a query that is no text fails with a message."""
    assert ".png, .gif, .mp4" in refused(2, "show", path, 0, "--frames", tmp_path / "a.bmp")
    assert "no text in UTF-8" in refused(1, "sql", path, "select '\udcff' as x")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"select '\xff'"), "utf-8"))
    with pytest.raises(el.errors.QueryError, match="no text in UTF-8"):
        _query_text("-", prompt_fits=False)


def test_csv_does_not_steer_a_terminal() -> None:
    """CSV keeps texts as they are, and spells them out where it goes to a terminal."""
    rows = pa.table({"a": ["\x1b]0;title\x07"]})
    for terminal, expected in ((True, "a\n\\x1b]0;title\\x07\n"), (False, "a\n\x1b]0;title\x07\n")):
        file = io.StringIO()
        file.isatty = lambda terminal=terminal: terminal
        assert _write_csv(rows.to_reader(), file) == 1
        assert file.getvalue() == expected


def test_a_damaged_card_costs_the_card(tmp_path: Path) -> None:
    """Info says everything else, names the file, and ends with status 0."""
    path = two_files(tmp_path / "store")
    (path / "card.json").write_text("{")
    result = call("info", path, "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["card"], told["episodes"]) == (0, None, 6)
    assert "card.json" in result.stderr and "card.json" in told["damaged"][0]
    assert call("info", path).exit_code == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("footer", [True, False])
def test_positions_are_those_of_the_whole_store(tmp_path: Path, footer: bool) -> None:
    """Without its first file of episodes a store lists the others at their places, and shows them there."""
    path = two_files(tmp_path / "store")
    before = {row["position"]: row["episode_id"] for row in json.loads(printed("ls", path, "--json"))}
    spoil(path, "episodes", footer=footer)
    after = {row["position"]: row["episode_id"] for row in json.loads(call("ls", path, "--json").stdout)}
    assert after == {position: before[position] for position in (3, 4, 5)}
    for position in (3, 5, -1, -3):
        told = json.loads(call("show", path, position, "--json").stdout)
        assert (told["episode_id"], told["position"]) == (before[position % 6], position % 6)
    assert call("show", path, 1).exit_code == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("footer", [True, False])
def test_healthy_steps_can_be_asked(tmp_path: Path, footer: bool) -> None:
    """Commands over all steps go on without a damaged file, name it, and end with status 1."""
    path = two_files(tmp_path / "store")
    whole = el.open(path).transitions.collect()
    healthy = whole.filter(pl.col("episode_id").str.starts_with("second"))
    file = spoil(path, "steps", footer=footer)
    for words in (
        ["head"], ["stats"], ["plot", "actions"], ["sql", "SELECT sum(hash(observation)) FROM steps"],
    ):  # fmt: skip
        result = call(words[0], path, *words[1:], "--json")
        assert (result.exit_code, file.name in result.stderr) == (1, True)
        assert json.loads(result.stdout)
    result = call("sql", path, "SELECT episode_id, t, observation FROM transitions ORDER BY ALL", "--json")
    assert [row["t"] for row in json.loads(result.stdout)] == healthy.sort("episode_id", "t")["t"].to_list()
    rows = table(call("sql", path, "SELECT count(DISTINCT observation) FROM transitions").stdout)[1:]
    assert rows == [[str(healthy["observation"].n_unique())]]
    assert file.name in call("diff", path, path, "--json").stderr or not footer


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (el.errors.StoreNotFoundError("None.", hint="create()"), "Check the path"),
        (el.errors.QueryError("No query.", hint="connect()"), "--output FILE"),
        (el.errors.CorruptStoreError("Damaged.", hint="filter()"), "--filter"),
        (el.errors.UntrustedEnvError("Trust.", hint="trust=True"), "--trust"),
        (el.errors.EnvUnavailableError("Gone.", hint="replay(env)"), "In Python"),
        (el.errors.EnvUnavailableError("Gone."), ""),
    ],
)
def test_errors_with_a_hint_for_python_have_advice_for_a_shell(error: Exception, advice: str) -> None:
    """The advice of an error, or of its cause, replaces the hint; an error without a hint gets none."""
    problem = error.args[0]
    drawing = el.errors.NothingToDrawError(problem, hint=error.hint)  # type: ignore[attr-defined]
    drawing.__cause__ = error
    for each in (error, drawing):
        text = message_of(each)
        assert text is not None and text.startswith(problem) and advice in text
        assert (text == problem) == (not advice)
