"""`publish`: write a view as an immutable version at a target, atomically; and `published`, the list of them.

A version is built in a folder for temporary files, sent, and appears with the last step of the target.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from typing import Any

import polars as pl

from ..errors import InvalidArgumentError
from ..plugin import CardEntries, ReadView, flag, progress_meter
from ..types import Progress, PublishReport, SqlCondition
from .building import build
from .contents import CHECKSUMS, Contents, check_tag, working_folder
from .target import target_of

_COLUMNS: dict[str, Any] = {
    "address": pl.String,
    "tag": pl.String,
    "published": pl.Datetime("ms", "UTC"),
    "store_id": pl.String,
    "store_version": pl.Int64,
    "episodes": pl.Int64,
    "steps": pl.Int64,
    "bytes": pl.Int64,
    "error": pl.String,
}


def publish_view(
    view: ReadView,
    target: str | PathLike[str],
    tag: str,
    *,
    where: pl.Expr | str | SqlCondition | None = None,
    card: Mapping[str, Any] | None = None,
    private: bool | None = None,
    storage_options: Mapping[str, str] | None = None,
    dry_run: bool = False,
    progress: bool | Progress = False,
) -> PublishReport:
    """Publish a view; see `EpisodeView.publish`."""
    tag, dry_run = check_tag(tag), flag("dry_run", dry_run)
    chosen = view if where is None else view.filter(where)
    layout = view.context.snapshot.layout
    if not len(chosen) and not any(map(layout.records, layout.RECORDS)):
        raise InvalidArgumentError(
            f"There is no episode to publish in {chosen!r}, and no saved environment or artifact."
        )
    if where is not None and not len(chosen):
        raise InvalidArgumentError(
            f"where={str(where)!r:.200} leaves none of the {len(view):,} episodes to publish. To publish the "
            "saved environments and artifacts alone, publish a view without episodes: store[:0]."
        )
    CardEntries.to_bytes(added := {} if card is None else card)
    whole_card = json.loads(json.dumps({**view.card, **added}))
    CardEntries.to_bytes(whole_card)
    place = target_of(target, storage_options)
    place.check_free(tag, private=private)
    with progress_meter(progress, "Publishing", "segments") as meter, working_folder("publish") as folder:
        contents = build(chosen, folder, whole_card, tag, place.opened_at(tag), meter)
        if not dry_run:
            place.send(folder, contents, private=private)
    return contents.report(f"{place}@{tag}")


def published(
    target: str | PathLike[str], *, storage_options: Mapping[str, str] | None = None
) -> pl.DataFrame:
    """Return the versions at a target, a row for each, in the order of their publication.

    Columns: address (`el.pull` takes it), tag, published (when, UTC), store_id and store_version (of the
    store that it was published from), episodes, steps (transitions), bytes, and error (why its list of files
    cannot be read, or null).

    Args:
        target: what `EpisodeStore.publish` had: a folder, a URL or `hf://organisation/name`.
        storage_options: how to reach an object store.

    Raises:
        StoreExistsError: it is a store or a file.
        StoreNotFoundError: there is no such dataset on the Hub, or none that you may see.
        StoreAccessError: it cannot be read.
    """
    place = target_of(target, storage_options)
    rows = [_row(f"{place}@{tag}", tag, contents) for tag, contents in place.versions().items()]
    return pl.DataFrame(rows, _COLUMNS, orient="row").sort("published", "tag")


def _row(address: str, tag: str, contents: Contents | None) -> tuple[Any, ...]:
    if contents is None:
        return (address, tag, *[None] * 6, f"{CHECKSUMS} of {address} is damaged.")
    origin = contents.origin or (None, None)
    return (address, tag, contents.moment, *origin, contents.episodes, contents.steps, contents.size, None)
