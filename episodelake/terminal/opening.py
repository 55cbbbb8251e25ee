"""Open the store that PATH, with `@` and a version or a tag, and `--storage-option` name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import typer

from .._store import EpisodeStore, open_store

_VERSIONED = re.compile(r"(?P<path>.+)@(?P<version>[A-Za-z0-9_.-]+)")


def storage_options(given: Sequence[str] | None) -> dict[str, str] | None:
    """Return the repeated `--storage-option KEY=VALUE` as one dictionary; None where there is none."""
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
    """Return a path and the version behind its last `@`; a folder that exists is taken as it is.

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
