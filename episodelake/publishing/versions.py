"""The versions below a folder or a prefix: each is a store in a folder named by its tag."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..store.errors import CorruptStoreError, StoreExistsError, StoreNotFoundError, VersionNotFoundError
from ..store.files import Place, guard_access
from ..store.layout import MANIFEST
from ..store.manifest import UNFINISHED
from .contents import CHECKSUMS

_TAGGED = re.compile(r"(?P<path>.+)@(?P<tag>[A-Za-z0-9][A-Za-z0-9._-]*)")


@dataclass(frozen=True)
class Version:
    """A published version.

    Attributes:
        tag: its name.
        place: its folder.
        moment: when its `store.json` was written, in seconds since 1970.
    """

    tag: str
    place: Place
    moment: float


def published_versions(root: Place) -> tuple[list[Version], list[str]]:
    """Return the versions below a place in the order of their publication, and the names of other things.

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
    return sorted(versions, key=lambda version: (version.moment, version.tag)), others


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
    for version in versions:
        if tag in (None, version.tag):
            return versions[-1].place if tag is None else version.place
    known = ", ".join(version.tag for version in versions)
    raise VersionNotFoundError(f"There is no version {tag!r} at {root}; there are {known}.")


def split_tag(source: str) -> tuple[str, str | None]:
    """Return the address and the tag of `address@tag`.

    >>> split_tag("s3://bucket/cartpole@v1"), split_tag("data/me@home/cartpole")
    (('s3://bucket/cartpole', 'v1'), ('data/me@home/cartpole', None))
    """
    match = _TAGGED.fullmatch(source)
    return (source, None) if match is None else (match["path"], match["tag"])
