"""The versions below a folder or a prefix: each is a store in a folder named by its tag."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..store.errors import (
    CorruptStoreError,
    StoreAccessError,
    StoreExistsError,
    StoreNotFoundError,
    VersionNotFoundError,
)
from ..store.files import Place, guard_access, is_absent
from ..store.files.locks import wait_for
from ..store.layout import MANIFEST, read_json
from ..store.manifest import UNFINISHED
from .contents import CHECKSUMS, Contents

_LOCK = ".publish.lock"
#: In `store.unfinished` of a version that was taken back from an object store.
RETIRED = "unpublished"
_TAGGED = re.compile(r"(?P<path>.+)@(?P<tag>[A-Za-z0-9][A-Za-z0-9._-]*)")


@dataclass(frozen=True)
class Version:
    """A published version.

    Attributes:
        tag: its name.
        place: its folder.
        written: when its `store.json` was written, in seconds since 1970.
    """

    tag: str
    place: Place
    written: float

    @cached_property
    def contents(self) -> Contents | None:
        """Its files; None if the list of them is damaged.

        Raises:
            StoreAccessError: it is gone, or cannot be read.
        """
        try:
            return Contents.read(self.place)
        except CorruptStoreError:
            return None

    @property
    def moment(self) -> float:
        """When it was published, in milliseconds since 1970; the date of a file where no list has it."""
        listed = None if self.contents is None else self.contents.moment
        return self.written * 1000 if listed is None else listed


def in_order(versions: Iterable[Version]) -> list[Version]:
    """Return versions in the order of their publication, without those that were taken back meanwhile."""
    there = []
    for version in versions:
        try:
            there.append((version.moment, version.tag, version))
        except StoreAccessError as error:
            if not is_absent(error):
                raise
    return [version for *_, version in sorted(there, key=lambda each: each[:2])]


def published_versions(root: Place) -> tuple[list[Version], list[str]]:
    """Return the versions below a place, by name, and the names of other things.

    Both are empty if nothing is there. Hidden files and unfinished publications are not listed.

    Raises:
        StoreExistsError: it is a file or a store.
        StoreAccessError: it cannot be listed.
    """
    versions, others = [], []
    with guard_access("look for published versions", root):
        if root.local is not None and root.local.is_file():
            raise StoreExistsError(f"{root} is a file; expected a folder of published versions, or nothing.")
        names = root.names()
        if MANIFEST in names:
            raise StoreExistsError(f"{root} is a store, not a folder of published versions. Choose another.")
        for name in names:
            # Hidden files are left alone; our own are among them.
            if name.startswith("."):
                continue
            place = root / name
            try:
                moments = {entry.name: entry.modified for entry in place.entries()}
            except CorruptStoreError:  # a link
                moments = {}
            if moments.keys() >= {MANIFEST, CHECKSUMS}:
                versions.append(Version(name, place, moments[MANIFEST]))
            elif UNFINISHED not in moments:
                others.append(name)
    return versions, others


def chosen_version(root: Place, tag: str | None) -> Place:
    """Return the folder of a version: `root` itself if it is one, else that of a tag, else the newest.

    Raises:
        StoreNotFoundError: nothing was published there.
        VersionNotFoundError: there is no such version; the message lists those that are.
    """
    with guard_access("look for a published version", root):
        names = root.names()
    if MANIFEST in names:
        if CHECKSUMS not in names:
            raise StoreNotFoundError(
                f"{root} is a store that was not published: it has no {CHECKSUMS}. Open it, or copy it with "
                "EpisodeStore.copy."
            )
        if tag is not None and root.name != tag:
            raise VersionNotFoundError(f"{root} is one version; version={tag!r} is none of its.")
        return root
    try:
        versions, others = published_versions(root)
    except StoreExistsError as error:
        raise StoreNotFoundError(str(error)) from error
    if not versions:
        there = f", which holds {', '.join(others[:5])}" if others else ""
        raise StoreNotFoundError(f"Nothing is published at {root}{there}. Publish with EpisodeStore.publish.")
    if tag is None and (ordered := in_order(versions)):
        return ordered[-1].place
    for version in versions:
        if tag == version.tag:
            return version.place
    known = ", ".join(version.tag for version in versions)
    raise VersionNotFoundError(f"There is no version {tag!r} at {root}; there are {known}.")


def is_retired(version: Place) -> bool:
    """Return whether a version on an object store was taken back: its tag is never used again."""
    try:
        return RETIRED in read_json(version / UNFINISHED)
    except StoreAccessError as error:
        if is_absent(error):
            return False
        raise


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder, and wait for other publications to it; a new one stays only if something is in it."""
    new = not folder.exists()
    with guard_access("make the folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
    lock = wait_for(folder / _LOCK, math.inf)
    assert lock is not None
    try:
        yield
    finally:
        lock.release(remove=True)
        if new:
            with contextlib.suppress(OSError):
                folder.rmdir()


def split_tag(source: str) -> tuple[str, str | None]:
    """Return the address and the tag of `address@tag`.

    >>> split_tag("s3://bucket/cartpole@v1"), split_tag("data/me@home/cartpole")
    (('s3://bucket/cartpole', 'v1'), ('data/me@home/cartpole', None))
    """
    match = _TAGGED.fullmatch(source)
    return (source, None) if match is None else (match["path"], match["tag"])
