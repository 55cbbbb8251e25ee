"""Rollouts on a terminal: long messages are cut, texts of strangers steer nothing, broken ones are named."""

import json
import unicodedata
from pathlib import Path

import pytest

import episodelake as el
from rollout_stores import MESSAGES, PARENTS, make_rollouts
from test_cli import ESCAPE, call, no_terminal, printed

__all__ = ["no_terminal"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six rollouts with hostile texts."""
    path = tmp_path_factory.mktemp("talk") / "rollouts"
    make_rollouts(path)
    return path


def test_data_are_those_of_the_rollout(path: Path) -> None:
    """`show --json` has each message as it was written, its tokens, and where branches leave."""
    report = json.loads(printed("show", path, 1, "--json"))
    assert [each["message"] for each in report["messages"]] == MESSAGES
    assert [each["continues"] for each in report["messages"]] == PARENTS
    assert [each["sampled_tokens"] for each in report["messages"]] == [0, 0, 2, 0, 1, 40, 0]
    assert [(each["messages"], each["leaves"]) for each in report["branches"]] == [
        ([0, 1, 2, 3, 4], None),
        ([0, 1, 5, 6], 1),
    ]
    assert report["branches"][1]["tokens"] == len(el.open(path).rollout(1).branches[1].tokens)


def test_terminals_show_long_messages_in_part(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long message is cut with a note, and whole with --all; no text brings its own escape sequences."""
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    cut = call("show", path, 0).stdout
    assert "500 more characters; --all shows them." in cut and cut.count("word") == 400
    whole = call("show", path, 0, "--all").stdout
    assert "--all" not in whole and whole.count("word") == 500
    for text in (cut, whole, call("info", path).stdout):
        left = ESCAPE.sub("", text)
        assert "\\x1b[31mred\\x07 \\u202e" in "".join(left.split("\n"))
        assert [c for c in left if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c != "\n"] == []
    assert "\x1b[31mred" not in cut


@pytest.mark.parametrize("parent", [0, 1, -2])
def test_messages_without_an_earlier_parent_are_named(tmp_path: Path, parent: int) -> None:
    """Another writer may store any parent; a cycle does not hang, and `show` says what is wrong."""
    store = el.create(tmp_path / "store", el.Rollouts())
    with store.writer() as writer:
        episode = writer.begin(parent, extra={"role": "assistant", "content": "x"})
        episode.append(1, 0.0, -1, terminated=True)
        episode.end()
    result = call("show", tmp_path / "store", 0)
    assert result.exit_code == 1 and "episode id" in result.stdout
    assert f"continues message {parent}; expected an earlier one" in result.stderr


def test_info_counts_what_it_can(path: Path, tmp_path: Path) -> None:
    """Without a file of steps `info` still has the rewards of each policy version."""
    make_rollouts(tmp_path / "store")
    figures = json.loads(printed("info", path, "--json"))["rollouts"]
    assert (figures["messages"], figures["tokens"], figures["sampled_tokens"]) == (42, 282, 258)
    (file,) = (tmp_path / "store" / "steps").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-20])
    report = json.loads(printed("info", tmp_path / "store", "--json"))
    assert report["rollouts"]["tokens"] is None and len(report["damaged"]) == 2
    assert report["rollouts"]["policy_versions"] == figures["policy_versions"]
