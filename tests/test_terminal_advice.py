"""Advice of the library in the words of a shell: what is put otherwise is what the library says."""

import ast
import re
from collections.abc import Iterator

import pytest

from checkout import library_modules
from episodelake.terminal.output.page import _WORDS, for_shell


def messages() -> Iterator[str]:
    """All texts of the library beside the command line; what is put into one stands there as 1."""
    for name, path in library_modules():
        if name.startswith("episodelake.terminal"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(map(text_of, node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def text_of(part: ast.expr) -> str:
    """A part of a formatted text."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    return "'1'" if isinstance(part, ast.FormattedValue) and part.conversion == ord("r") else "1"


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """The texts, found once."""
    return list(messages())


@pytest.mark.parametrize("pattern", [pattern for pattern, _ in _WORDS], ids=lambda each: each.pattern)
def test_what_is_put_otherwise_is_said(pattern: re.Pattern[str], texts: list[str]) -> None:
    """Each pattern stands in a text of the library: a sentence that changes takes its translation along."""
    assert any(map(pattern.search, texts))


def test_advice_names_options_and_commands() -> None:
    """Calls of Python become options and commands; other sentences stay."""
    assert (
        for_shell('Leave it out: store.filter("segment <> 1").') == 'Leave it out: --filter "segment <> 1".'
    )
    assert for_shell("The file is damaged. Run verify.") == "The file is damaged. Run `episodelake verify`."
    assert for_shell("There is no such column.") == "There is no such column."
