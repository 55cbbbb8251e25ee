"""The command line where names are odd, numbers are not finite, windows are narrow and files are damaged."""

import io
import json
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import episodelake as el
from claimed_stores import hostile_texts, odd_rewards, raw_steps
from effort import looped
from episodelake.terminal.command import message_of
from episodelake.terminal.commands.querying import _query_text
from episodelake.terminal.output.cells import clean
from episodelake.terminal.output.exporting import _write_csv
from episodelake.terminal.output.json_text import json_of
from terminal_stores import MAKERS, TURNED
from test_cli import no_terminal, printed, refused

__all__ = ["no_terminal"]


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


@looped(
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
