"""Golden texts: what each command prints in a pipe, with its exit status, on one small store.

`PYTHONPATH=tests python tests/terminal/test_terminal_golden.py` writes the texts that have changed; look at
the difference before you commit it.
"""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import polars as pl
import pytest

import episodelake as el
from terminal_stores import MAKERS, make_small_store
from test_cli import call, no_terminal
from test_terminal_page import settled
from waiting import PATIENCE

__all__ = ["no_terminal"]

#: Ids and sizes in places where the page has none, and last digits, which depend on the order of a sum.
CHANGING = (r"\b01[0-9a-z]{13}\b", r"\b\d+(?= bytes)", r"(?<=\.\d{10})\d+", r"\b\d{4,6}\b(?!\.parquet)")
GOLDEN = Path(__file__).parents[1] / "data" / "terminal.txt"


def make_store(path: Path) -> None:
    """The small store, and beside it a table of grades of its episodes."""
    store = make_small_store(path)
    grades = pl.DataFrame({"episode_id": [each.id for each in store], "grade": [1, 2, 3]})
    grades.write_parquet(path.parent / "grades.parquet")


def printed(line: str) -> str:
    """Run a command line; what it printed, errors last, and its status if that is not 0."""
    words = shlex.split(line)
    if words[0] == "python":
        known = {
            "el": el,
            "pl": pl,
            "Path": Path,
            "shutil": shutil,
            "MAKERS": MAKERS,
            "make_store": make_store,
            "make_small_store": make_small_store,
            "os": os,
        }
        exec(words[-1], known)
        return ""
    result = call(*words[1:])
    status = f"[status {result.exit_code}]\n" if result.exit_code else ""
    # How typer says what the usage is changes with its releases.
    return re.sub(r"(?s)\AUsage: .*?\n\n", "", result.stdout + result.stderr) + status


def blocks() -> list[tuple[str, str]]:
    """The command lines of the golden file with what stands below each."""
    parts = f"{GOLDEN.read_text()}\n".split("$ ")[1:]
    return [(line, text.removesuffix("\n")) for line, _, text in (part.partition("\n") for part in parts)]


def stable(text: str) -> str:
    """A text without what changes from run to run."""
    text = settled(text)
    for pattern in CHANGING:
        text = re.sub(pattern, "N", text)
    return text


def test_commands_print_their_golden_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command line, in their order, prints its text, but for ids, moments and sizes."""
    monkeypatch.chdir(tmp_path)
    # A machine that is slow for ten seconds would have a line of progress in between.
    monkeypatch.setattr("episodelake.store.common.progress._PAUSE", PATIENCE)
    make_store(tmp_path / "small")
    for line, text in blocks():
        assert stable(printed(line).replace(str(tmp_path), "/lake")) == stable(text), line


def renewed(old: str, new: str) -> str:
    """The text to keep: the old one where nothing but ids, moments and sizes differ."""
    return old if stable(old) == stable(new) else new


def test_only_changed_texts_are_written() -> None:
    """Another id or size leaves a text as it is; another word replaces it."""
    old = "first-01m8ke0wbk6n1n7/000000\n1 episode of 410 bytes\n"
    same = "first-01m8kerkbj785n4/000000\n1 episode of 412 bytes\n"
    other = same.replace("1 episode", "2 episodes")
    assert (renewed(old, same), renewed(old, other)) == (old, other)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make_store(Path(folder) / "small")
        texts = [(line, renewed(old, printed(line).replace(folder, "/lake"))) for line, old in blocks()]
    GOLDEN.write_text("\n".join(f"$ {line}\n{text}" for line, text in texts))
    sys.stdout.write(f"{len(texts)} commands in {GOLDEN.name}\n")
