"""What the arguments of commands have in common: the store, how to reach it, JSON, an episode.

`open_store_at` opens what a PATH names: a folder, a URL, or either with `@` and a version or a tag behind it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from episodelake_command.folders import complete_stores

from .._store import EpisodeStore, open_store
from .completion import complete_columns, complete_episodes

_VERSIONED = re.compile(r"(?P<path>.+)@(?P<version>[A-Za-z0-9_.-]+)")

StorePath = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="The store: a folder, or a URL (s3://...); PATH@VERSION or PATH@TAG for an older version.",
        show_default=False,
        autocompletion=complete_stores,
    ),
]
#: Of commands that change a store: they work on its newest version.
WritablePath = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="The store: a folder, or a URL (s3://...).",
        show_default=False,
        autocompletion=complete_stores,
    ),
]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="How to reach an object store, such as aws_region=eu-central-1; may be repeated. Give secrets "
        "by environment variables instead, such as AWS_SECRET_ACCESS_KEY.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON; docs/terminal.md has its shape.")]
EpisodeKey = Annotated[
    str,
    typer.Argument(
        metavar="EPISODE",
        help="An episode's id, which may be shortened, or its position: 0 is the first, -1 the last.",
        show_default=False,
        autocompletion=complete_episodes,
    ),
]
Condition = Annotated[
    str | None,
    typer.Option(
        "--filter",
        metavar="CONDITION",
        help='Only episodes that fulfil this SQL condition, such as "length < 15".',
        show_default=False,
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--columns",
        "-c",
        metavar="NAMES",
        help="Columns to show, separated by commas; may be repeated.",
        show_default=False,
        autocompletion=complete_columns,
    ),
]


def storage_options(given: Sequence[str] | None) -> dict[str, str] | None:
    """The repeated `--storage-option KEY=VALUE` as one dictionary; None where there is none."""
    options = {}
    for each in given or ():
        key, separator, value = each.partition("=")
        if not key or not separator:
            # The text may hold a secret, so the message leaves it out.
            raise typer.BadParameter("expected KEY=VALUE.", param_hint="--storage-option")
        options[key] = value
    return options or None


def open_store_at(
    path: str, storage: Sequence[str] | None = None, version: str | None = None
) -> EpisodeStore:
    """Open what a PATH names.

    Args:
        path: a folder or a URL; `@` and a version or a tag may follow it.
        storage: the `--storage-option`s.
        version: a version or a tag that was given apart.

    Raises:
        StoreNotFoundError, VersionNotFoundError: there is none.
    """
    place, found = split_version(path)
    chosen = version if version is not None else found
    number: int | str | None = int(chosen) if chosen is not None and chosen.isdigit() else chosen
    return open_store(place, number, storage_options=storage_options(storage))


def split_version(path: str) -> tuple[str, str | None]:
    """A path and the version behind its last `@`; a folder that exists is taken as it is.

    >>> split_version("data/cartpole@12"), split_version("s3://user@host/store")
    (('data/cartpole', '12'), ('s3://user@host/store', None))
    """
    scheme, separator, rest = path.rpartition("://")
    found = _VERSIONED.fullmatch(rest)
    if found is None or (separator and "/" not in found["path"]):
        return path, None
    if not separator and Path(path).exists():
        return path, None
    return scheme + separator + found["path"], found["version"]


def episode_key(text: str) -> int | str:
    """A position if it reads as one, else an id. An id never begins with a hyphen."""
    try:
        return int(text)
    except ValueError:
        if text.startswith("-"):
            raise typer.BadParameter(
                f"{text!r} is neither an option, a position nor an episode id."
            ) from None
        return text


def column_names(given: Sequence[str] | None) -> list[str] | None:
    """The names of `--columns`; None where none were given."""
    if not given:
        return None
    return [name.strip() for part in given for name in part.split(",") if name.strip()]
