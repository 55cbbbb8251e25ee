"""The list of the stores of a lake for `episodelake lake`, and queries over all of them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from ... import EpisodeStore, lake
from ...errors import InvalidArgumentError, StoreNotFoundError
from ...plugin import counted
from ...plugin.files import exists
from ...types import Lake
from ..output.exporting import Export, write_result
from ..output.page import Page, report_warning
from .open_store import open_store_at, storage_options

_SHOWN = ("store", "episodes", "steps", "env_ids", "updated", "bytes")


def open_lake(root: str, storage: Sequence[str] | None) -> Lake:
    """Open the lake at a folder or a URL.

    Raises:
        StoreNotFoundError: the folder does not exist, where `episodelake.lake` gives a lake without stores.
    """
    if "://" not in root and not exists(root):
        raise StoreNotFoundError(
            f"There are no stores at {Path(root).absolute()}: the folder does not exist.",
            hint="Create stores in it with episodelake.lake(path).create(name, env).",
        )
    return lake(root, storage_options=storage_options(storage))


def open_store_or_lake(path: str, storage: Sequence[str] | None) -> EpisodeStore | Lake:
    """Open the store that PATH names; where there is none, the lake with the stores below it.

    Raises:
        StoreNotFoundError, VersionNotFoundError: there is neither.
    """
    try:
        return open_store_at(path, storage)
    except StoreNotFoundError as missing:
        try:
            opened = open_lake(path, storage)
            count = opened.stores().height
        except (InvalidArgumentError, StoreNotFoundError) as error:
            raise missing from error
        if count:
            return opened
        if path.startswith("hf://"):
            raise StoreNotFoundError(
                f"There are no published datasets at {path} that you may see (`hf auth login`, or HF_TOKEN)."
            ) from missing
        raise


def write_stores(page: Page, stores: pl.DataFrame, url: str) -> None:
    """Write the stores that can be read as a table, and a warning for each other."""
    broken = stores.filter(pl.col("error").is_not_null())
    readable = stores.filter(pl.col("error").is_null())
    if readable.height:
        page.frame(readable.select(_SHOWN))
    page.note(f"{counted(readable.height, 'store')} in {url}.")
    for name, error in broken.select("store", "error").iter_rows():
        report_warning(f"{name} cannot be read: {error}")


def answer(page: Page, opened: Lake, text: str, export: Export | None, rows: int) -> None:
    """Write the answer to a query, on a connection that sees nothing but the lake."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opened.sql(text, read_only=True)
    for each in caught:
        report_warning(str(each.message))
    write_result(page, opened.session(), text, rows, export)
