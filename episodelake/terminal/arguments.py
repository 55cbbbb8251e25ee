"""Arguments and options that commands share, and the words that options take.

A PATH is a folder or a URL, optionally with `@` and a version or a tag.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any

import typer

from .completion import complete_columns, complete_episodes

StorePath = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="The store: a folder, or a URL (s3://...); PATH@VERSION or PATH@TAG for an older version.",
    ),
]
#: For commands that change a store, which work on its newest version.
WritablePath = Annotated[
    str,
    typer.Argument(metavar="PATH", help="The store: a folder, or a URL (s3://...)."),
]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="How to reach an object store, such as aws_region=eu-central-1; may be repeated. Give secrets "
        "by environment variables instead, such as AWS_SECRET_ACCESS_KEY.",
    ),
]
EpisodeKey = Annotated[
    str,
    typer.Argument(
        metavar="EPISODE",
        help="An episode's id, which may be shortened, or its position: 0 is the first, -1 the last.",
        autocompletion=complete_episodes,
    ),
]
Condition = Annotated[
    str | None,
    typer.Option(
        "--filter",
        metavar="CONDITION",
        help='Only episodes that fulfil this SQL condition, such as "length < 15".',
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--columns",
        "-c",
        metavar="NAMES",
        help="Only these columns, separated by commas; may be repeated.",
        autocompletion=complete_columns,
    ),
]


Trust = Annotated[
    bool, typer.Option("--trust", help="With --frames: a replay may import the modules that the store names.")
]


def episode_key(text: str) -> int | str:
    """Return a position if it reads as one, else an id. An id never begins with a hyphen."""
    try:
        return int(text)
    except ValueError:
        if text.startswith("-"):
            raise typer.BadParameter(
                f"{text!r} is neither an option, a position nor an episode id."
            ) from None
        return text


def step_range(text: str | None) -> slice | None:
    """Return the steps that `--steps` names; None for all."""
    if text is None:
        return None
    try:
        first, *rest = (int(part) if part else None for part in text.split(":"))
        if not rest:
            return slice(first, None if first == -1 or first is None else first + 1)
        return slice(first, *rest)
    except (TypeError, ValueError):
        raise typer.BadParameter(
            f"{text!r} names no steps; expected FROM:TO or FROM:TO:STRIDE, such as 100:200 or ::4.",
            param_hint="--steps",
        ) from None


def column_names(given: Sequence[str] | None) -> list[str] | None:
    """Return the names of `--columns`, each once; None where none were given."""
    if not given:
        return None
    return list(dict.fromkeys(name.strip() for part in given for name in part.split(",") if name.strip()))


def keyed_values(given: Sequence[str], hint: str = "--option") -> dict[str, Any]:
    """Return repeated `KEY=VALUE`; a value that is JSON, such as a number, is not a text."""
    options: dict[str, Any] = {}
    for each in given:
        key, separator, value = each.partition("=")
        if not key or not separator:
            raise typer.BadParameter(f"{each!r}: expected KEY=VALUE.", param_hint=hint)
        options[key] = value
        with suppress(ValueError):
            options[key] = json.loads(value.lower() if value.lower() in ("true", "false") else value)
    return options


#: The tables of a store.
Table = StrEnum("Table", "STEPS EPISODES RUNS TRANSITIONS")
#: The charts of `plot`.
Chart = StrEnum("Chart", "RETURNS LENGTHS HISTOGRAM LEARNING ACTIONS VISITATION")
#: The quantities that the x axis of a chart may count.
Over = StrEnum("Over", "EPISODES STEPS TIME POLICY")


class LastObservation(StrEnum):
    """Rules of `import` for a source that lacks the observation after the last action."""

    DROP = "drop"
    REPEAT = "repeat"
    MISSING = "missing"


class Cast(StrEnum):
    """The casts that `import` makes."""

    NO = "no"
    SAFE = "safe"
    SAME_KIND = "same_kind"


class OnChanged(StrEnum):
    """Rules of `import` for episodes that the store has with other values."""

    ERROR = "error"
    KEEP = "keep"
    REPLACE = "replace"
