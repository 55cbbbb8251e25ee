"""`Report`: the result of a command before it is printed, as text or as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; docs/terminal.md has its shape.")]


@dataclass(frozen=True)
class Report:
    """The result of a command.

    Attributes:
        value: a mapping or a dataclass, which is one JSON object; or rows, a list of mappings or a frame.
        write: writes it as text on a `Page`; None for a table, or for pairs of names and values.
        empty: written below a table without rows.
        status: the exit status.
        error: written last; the command then fails.
    """

    value: Any
    write: Callable[[Any, Any], None] | None = None
    empty: str = ""
    status: int = 0
    error: str = ""
