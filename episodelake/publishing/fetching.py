"""Files of a published version, compared with their checksums before anything opens them.

What was fetched waits in a hidden folder beside the target, so an interrupted pull goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from os import PathLike, fspath
from pathlib import Path

from ..errors import (
    CorruptStoreError,
    InvalidArgumentError,
    StoreAccessError,
    StoreExistsError,
    StoreNotFoundError,
)
from ..plugin import CacheFolder, Layout
from ..plugin.files import (
    FileLock,
    LocalPlace,
    Place,
    check_free,
    check_outside_stores,
    exists,
    is_file,
    is_link,
    make_folder,
    names_in,
    read_file,
    rename_durably,
    visible_step,
)
from ..types import Progress
from .contents import CHECKSUMS, Contents, KnownFile, Source, digest_of, place_of
from .hub import COMMIT, MAIN, SCHEME, Repository, is_organisation
from .target import PlaceTarget

_ATTEMPTS = 3
_FETCHES = 4
_TAGGED = re.compile(r"(?P<path>.+)@(?P<tag>[A-Za-z0-9][A-Za-z0-9._-]*)")


def chosen_tag(address: str, version: int | str | None, tag: str | None) -> str | None:
    """Return the one of `version=` and of the address's tag that was given.

    Raises:
        InvalidArgumentError: they differ, or `version` is no text.
    """
    if version is not None and (not isinstance(version, str) or not version or tag not in (None, version)):
        raise InvalidArgumentError(f"{address} and version={version!r}: expected one tag, as text.")
    return tag if version is None else version


def source_of(
    source: str | PathLike[str], version: str | None, storage_options: Mapping[str, str] | None
) -> Source:
    """Return a published version.

    Raises:
        StoreNotFoundError, VersionNotFoundError: there is none.
        CorruptStoreError: its list of files is damaged, or names a file that no version has.
    """
    if str(source).startswith(SCHEME):
        repository, tag = Repository.of(str(source), storage_options)
        return repository.source(chosen_tag(str(source), version, tag))
    text, tag = os.fspath(source), None
    if isinstance(text, str) and (match := _TAGGED.fullmatch(text)):
        root = Layout.at(text, storage_options).root
        # A folder may have such a name.
        if root.local is None or not root.exists():
            text, tag = match["path"], match["tag"]
    return PlaceTarget(Layout.at(text, storage_options).root).source(chosen_tag(str(source), version, tag))


def free_target(into: str | PathLike[str], *, copied: bool) -> Path:
    """Return the path of the new folder.

    Args:
        into: what the caller gave.
        copied: whether a copy will be made there, which replaces one that was not finished.

    Raises:
        StoreExistsError: there is something.
        InvalidArgumentError: it is none of this machine, or lies in a store.
    """
    target = Layout.at(into).root.local
    if target is None:
        raise InvalidArgumentError(f"into={fspath(into)!r}: expected a folder of this machine.")
    check_outside_stores(target)
    odd = is_link(target) or is_file(target)
    if odd or (not copied and LocalPlace(target).names()):
        raise StoreExistsError(f"There is something at {target} already. Choose a new or empty folder.")
    if copied:
        check_free(Layout.at(target), copied=True)
    return target


@contextlib.contextmanager
def staged(target: Path, contents: Contents) -> Iterator[LocalPlace]:
    """Wait for other pulls to a target, and yield the folder for what is fetched.

    What an earlier pull left in it stays; every file is compared with its checksum anyway.
    """
    stage = target.parent / f".{target.name}.unfinished"
    checksums = stage / CHECKSUMS
    make_folder(target.parent)
    lock = FileLock.wait_for(target.parent / f".{target.name}.pull.lock", math.inf)
    assert lock is not None
    try:
        ours = not exists(stage) or is_file(checksums) or all(name[0] == "." for name in names_in(stage))
        if is_link(stage) or not ours:
            raise StoreExistsError(f"There is something at {stage}, where the pull works. Remove it.")
        make_folder(stage)
        if not is_file(checksums) or read_file(checksums) != contents.to_bytes():
            LocalPlace(checksums).write(contents.to_bytes())
        yield LocalPlace(stage)
    finally:
        lock.release(remove=True)


def fetch(published: Source, names: Iterable[str], stage: Place, meter: Progress) -> None:
    """Fetch files that are not there yet, several at a time."""
    pool = ThreadPoolExecutor(_FETCHES, "episodelake pull")
    try:
        jobs = [pool.submit(_fetch_one, published, name, stage) for name in names]
        for done, job in enumerate(as_completed(jobs)):
            job.result()
            meter(done + 1, len(jobs))
    finally:
        pool.shutdown(cancel_futures=True)


def _fetch_one(published: Source, name: str, stage: Place) -> None:
    place, file = place_of(stage, name), published.contents.files[name]
    for attempt in range(_ATTEMPTS):
        try:
            place.parent.make_folder()
            if not place.exists() or digest_of(place.chunks()) != file:
                place.write(_checked(published, name, file))
            return
        except (CorruptStoreError, StoreAccessError) as error:
            # Bytes may be lost on their way.
            if attempt == _ATTEMPTS - 1 or isinstance(error, FileNotFoundError):
                raise


def _checked(published: Source, name: str, file: KnownFile) -> Iterator[bytes]:
    """Yield a file in pieces.

    Raises:
        CorruptStoreError: it differs from its checksum.
    """
    digest, size = hashlib.sha256(), 0
    for piece in published.chunks(name):
        digest.update(piece)
        size += len(piece)
        if size > file.size:
            break
        yield piece
    if (digest.hexdigest(), size) != (file.sha256, file.size):
        raise CorruptStoreError(
            f"The file {name} of {published.address} does not have the checksum in {CHECKSUMS}: it was "
            "damaged or changed after it was published. Nothing appears at the target."
        )


def fetch_whole(
    published: Source, stage: LocalPlace, meter: Progress, wanted: Callable[[str], bool] | None = None
) -> None:
    """Fetch a version, or its wanted files, and delete what an interrupted write left beside them."""
    names = {name for name in published.contents.files if wanted is None or wanted(name)}
    fetch(published, names, stage, meter)
    for entry in list(stage.entries(deep=True)):
        if entry.name not in names and entry.name != CHECKSUMS:
            (stage / entry.name).remove()


def appear(published: Source, made: Path, target: Path) -> None:
    """Publish the fetched folder under its final name."""
    with visible_step(f"{published.address} is pulled to {target}"):
        rename_durably(made, target)


def cached_version(
    address: str,
    version: int | str | None,
    storage_options: Mapping[str, str] | None = None,
    wanted: Callable[[str], bool] | None = None,
) -> Path:
    """Return a folder of the cache with a version of the Hub; it is fetched once, and verified.

    The version may be a commit. If `wanted` is given, only the files are fetched whose names it accepts.

    Raises:
        StoreNotFoundError, VersionNotFoundError, CorruptStoreError, StoreAccessError: as for `pull`.
    """
    if is_organisation(address):
        raise StoreNotFoundError(
            f"{address} is an organisation or a user, which has datasets. Open one of them, as "
            f"{address}/name, or all with episodelake.lake."
        )
    repository, tag = Repository.of(address, storage_options)
    commit = chosen_tag(address, version, tag) or MAIN
    if not COMMIT.fullmatch(commit):
        commit, _ = repository.commit_of(commit)
    target = (
        CacheFolder.of(None).path
        / ("hub" if wanted is None else "hub-episodes")
        / repository.name.replace("/", "--")
        / commit
    )
    if not exists(target):
        published = source_of(f"{repository}", commit, None)
        with staged(target, published.contents) as stage:
            if not exists(target):
                fetch_whole(published, stage, lambda done, total: None, wanted)
                appear(published, stage.local, target)
    return target
