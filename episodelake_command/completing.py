"""Completion of names from a table of the commands, without the program itself.

`commands.json` says which commands, options and arguments there are; `python -m
episodelake.terminal.command_table` writes it, and the tests compare it with the program. Whatever needs a
store, or is not plain, is left to the program.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .folders import complete_stores

TABLE = Path(__file__).with_name("commands.json")
#: What stands in the table where folders are completed.
STORES = "stores"
#: What means something to the shell within a word.
_SPECIAL = re.compile(r"([\s\\\"'`$&|;<>()\[\]{}*?!#])")


def completed(instruction: str, variable: str) -> str | None:
    """What the shell is told, in its own way; None if the program itself has to be asked.

    Args:
        instruction: how the shell asks, such as "complete_bash".
        variable: of the environment, that held it.
    """
    try:
        from typer._click.shell_completion import CompletionItem, get_completion_class
        from typer._completion_classes import completion_init
    except ImportError:
        # These are typer's own, and may move with its next version.
        return None
    action, _, shell = instruction.partition("_")
    completion_init()
    found: Any = get_completion_class(shell)
    if action != "complete" or found is None:
        return None
    asked = found(None, {}, "episodelake", variable)
    args, incomplete = asked.get_completion_args()
    items = offered(json.loads(TABLE.read_text("utf-8")), args, incomplete)
    if items is None:
        return None
    if shell == "bash":
        items = [(escaped(name), told) for name, told in items]
    asked.get_completions = lambda args, incomplete: [CompletionItem(name, help=told) for name, told in items]
    return asked.complete()


def escaped(name: str) -> str:
    r"""A name as it is typed in bash, which takes what it is offered as text of the line.

    >>> print(escaped("~/my stores/cart'pole"))
    ~/my\ stores/cart\'pole
    """
    return _SPECIAL.sub(r"\\\1", name)


def offered(
    table: Mapping[str, Any], args: Sequence[str], incomplete: str
) -> list[tuple[str, str | None]] | None:
    """The names that may stand at the end of a line, each with its help; None if the table cannot say.

    Args:
        table: see `command_table`.
        args: the words before the last.
        incomplete: the last word, as far as it was typed.
    """
    node, rest = table, list(args)
    while rest and "commands" in node:
        node = node["commands"].get(rest.pop(0), {})
    if "commands" in node and incomplete[:1].isalnum() | (not incomplete):
        return [
            (name, each["help"]) for name, each in node["commands"].items() if name.startswith(incomplete)
        ]
    if "commands" in node or "arguments" not in node or "=" in incomplete:
        return None
    return _of_command(node, rest, incomplete)


def _of_command(
    node: Mapping[str, Any], rest: list[str], incomplete: str
) -> list[tuple[str, str | None]] | None:
    options = {name: option for option in node["options"] for name in option["names"]}
    given, values = [], 0
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            values += 1
            continue
        option = options.get(word)
        if option is None:
            return None
        given.append(option)
        if option["value"]:
            if not rest:
                return None if incomplete.startswith("-") else _values(option["completes"], incomplete)
            rest.pop(0)
    if incomplete.startswith("-"):
        open_options = [each for each in node["options"] if each["repeated"] or each not in given]
        return [
            (name, each["help"])
            for each in open_options
            for name in each["names"]
            if name.startswith(incomplete)
        ]
    if values >= len(node["arguments"]):
        return None
    return _values(node["arguments"][values], incomplete)


def _values(completes: str | list[str] | None, incomplete: str) -> list[tuple[str, str | None]] | None:
    if completes is None:
        return None
    if completes == STORES:
        return [*complete_stores(incomplete)]
    return [(value, None) for value in completes if value.startswith(incomplete)]
