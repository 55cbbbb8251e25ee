"""Published versions, of a target or of a store, and how one is taken back.

A store keeps the addresses of its targets, a file for each, and no list of versions: the targets have that.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

import polars as pl

from ..store.errors import (
    EpisodelakeError,
    InvalidArgumentError,
    StoreAccessError,
    StoreNotFoundError,
    VersionNotFoundError,
)
from ..store.files import Place, guard_access, locate
from ..store.files.local import LocalPlace
from ..store.layout import MANIFEST, PUBLISHED, checked_json, read_json
from ..store.manifest import UNFINISHED
from .contents import (
    CHECKSUMS,
    Contents,
    check_removable,
    check_tag,
    is_of_version,
    place_of,
    remove_unfinished,
    temporary_folder,
)
from .fetching import fetch, source_of
from .hub import SCHEME, Repository
from .versions import RETIRED, chosen_version, in_order, is_retired, locked, published_versions

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
_Row = tuple[Any, ...]


def published(
    target: str | PathLike[str], *, storage_options: Mapping[str, str] | None = None
) -> pl.DataFrame:
    """Return the versions at a target, a row for each, in the order of their publication.

    Columns: address (`el.pull` takes it), tag, published (when, UTC), store_id and store_version (of the
    store that it was published from; null for versions of early releases), episodes, steps (transitions),
    bytes, and error (why its list of files cannot be read, or null).

    Args:
        target: what `EpisodeStore.publish` had: a folder, a URL or `hf://organisation/name`.
        storage_options: how to reach an object store.

    Raises:
        StoreExistsError: it is a store or a file.
        StoreNotFoundError: there is no such dataset on the Hub, or none that you may see.
        StoreAccessError: it cannot be read.
    """
    return _frame(_versions_at(target, storage_options))


def publications(store: Place, store_id: str, storage_options: Mapping[str, str] | None) -> pl.DataFrame:
    """Return the published versions of a store; see `EpisodeStore.published`."""
    rows: list[_Row] = []
    with guard_access("list the targets", store):
        names = (store / PUBLISHED).names()
    for name in names:
        target = str(store / PUBLISHED / name)
        try:
            target = str(read_json(store / PUBLISHED / name)["target"])
            remote = "://" in target and not target.startswith(SCHEME)
            rows += [
                row for row in _versions_at(target, storage_options if remote else None) if row[3] == store_id
            ]
        except (EpisodelakeError, KeyError) as error:
            rows.append((target, *[None] * 7, str(error)))
    return _frame(rows).sort("published", "address", maintain_order=True)


def _frame(rows: list[_Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, _COLUMNS, orient="row")


def _versions_at(target: str | PathLike[str], storage_options: Mapping[str, str] | None) -> list[_Row]:
    found: list[tuple[str, float, Contents | None]]
    if str(target).startswith(SCHEME):
        repository, _ = Repository.of(str(target), storage_options)
        root: object = repository
        listed = repository.versions().items()
        found = [(tag, 0 if each is None else each.moment or 0, each) for tag, each in listed]
        found.sort(key=lambda each: each[1:2])
    else:
        root = place = locate(target, storage_options)
        found = [(each.tag, each.moment, each.contents) for each in in_order(published_versions(place)[0])]
    return [_row(f"{root}@{tag}", tag, moment, contents) for tag, moment, contents in found]


def _row(address: str, tag: str, moment: float, contents: Contents | None) -> _Row:
    if contents is None:
        return (address, tag, *[None] * 6, f"{CHECKSUMS} of {address} is damaged.")
    origin = contents.origin or (None, None)
    return (address, tag, int(moment), *origin, contents.episodes, contents.steps, contents.size, None)


def note_target(store: Place, target: str) -> None:
    """Keep the address of a target in a store; one that cannot be written goes without, with a warning."""
    place = store / PUBLISHED / f"{hashlib.sha256(os.fsencode(target)).hexdigest()[:32]}.json"
    try:
        with guard_access("note the target", place):
            # A published version never changes.
            if not (store / CHECKSUMS).exists():
                place.parent.make_folder()
                with contextlib.suppress(FileExistsError):
                    place.write(checked_json({"target": target}), exclusive=True)
    except StoreAccessError as error:
        warnings.warn(f"EpisodeStore.published will not list {target}: {error}", RuntimeWarning, stacklevel=2)


def unpublish(
    target: str | PathLike[str], tag: str, *, storage_options: Mapping[str, str] | None = None
) -> None:
    """Take a published version back: it disappears from the target in one step, and its files are deleted.

    Other versions stay. What others have pulled stays with them. If the call is interrupted, call it again.
    On an object store the tag stays taken. On the Hub the tag is removed, and if the newest commit is this
    version, the one published before it becomes the newest; the history still shows the commit, so that
    who knows it can fetch it: to erase it, delete the dataset.

    Args:
        target: what `EpisodeStore.publish` had: a folder, a URL or `hf://organisation/name`.
        tag: the version's name.
        storage_options: how to reach an object store.

    Raises:
        StoreNotFoundError, VersionNotFoundError: there is no such version; the message lists those that are.
        InvalidArgumentError: the target is a store.
        StoreExistsError: its folder, or the newest commit, holds other things; nothing was changed.
        StoreAccessError: the target cannot be written; call again.
    """
    check_tag(tag)
    if str(target).startswith(SCHEME):
        _from_hub(Repository.of(str(target), storage_options)[0], tag)
        return
    root = locate(target, storage_options)
    with guard_access("look for a published version", root):
        if (root / MANIFEST).exists():
            raise InvalidArgumentError(f"{root} is a store: give the folder above a version, and its tag.")
    if root.local is None:
        _from_objects(root, tag)
    elif not root.local.is_dir():
        raise StoreNotFoundError(f"Nothing is published at {fspath(target)}.")
    else:
        with locked(root.local):
            _from_folder(root, tag)


def _from_folder(root: Place, tag: str) -> None:
    folder = root.local
    assert folder is not None
    stage = folder / f".{tag}.unfinished"
    continued = remove_unfinished(stage)
    try:
        chosen_version(root, tag)
    except (StoreNotFoundError, VersionNotFoundError):
        if continued:
            return
        raise
    with guard_access("take back", root / tag):
        check_removable(folder / tag)
        os.rename(folder / tag, stage)
        LocalPlace(folder).sync()
    remove_unfinished(stage)


def _from_objects(root: Place, tag: str) -> None:
    version = root / tag
    if not is_retired(version):
        chosen_version(root, tag)
    with guard_access("take back", version):
        # First: a publication of this tag that goes on at the same time then shows nothing.
        (version / UNFINISHED).write(checked_json({RETIRED: tag}))
        (version / MANIFEST).remove()
        for entry in list(version.entries(deep=True)):
            if is_of_version(entry.name) or entry.name == CHECKSUMS:
                place_of(version, entry.name).remove()


def _from_hub(repository: Repository, tag: str) -> None:
    versions = repository.versions()
    if tag not in versions:
        known = ", ".join(versions) or "none"
        raise VersionNotFoundError(f"There is no version {tag!r} at {repository}; there are {known}.")
    shown = repository.head()[1]
    if shown is not None and shown.tag == tag:
        earlier = [(each.moment or 0, name) for name, each in versions.items() if each and name != tag]
        with temporary_folder("unpublish") as folder:
            contents = None
            if earlier:
                source = source_of(str(repository), max(earlier)[1], None)
                contents = source.contents
                fetch(source, contents.files, folder, lambda done, total: None)
                (folder / CHECKSUMS).write(contents.to_bytes())
            repository.commit(folder.local, contents, f"Take back {tag}", instead_of=tag)
    repository.remove_tag(tag)
