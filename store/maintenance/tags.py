"""Tags: names for versions. A tagged version stays readable whatever is vacuumed.

A tag is the file `tags/<name>.json`; it names a version of the episodes table, and is never changed.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

from ..errors import CorruptStoreError, InvalidArgumentError, StoreExistsError, VersionNotFoundError
from ..files import guard_access
from ..layout import Layout

_SUFFIX = ".json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def write_tag(layout: Layout, name: str, version: int) -> None:
    """Give a version a name; doing it twice is harmless.

    Raises:
        InvalidArgumentError: the name is none.
        StoreExistsError: another version has this name.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"{name!r} cannot be a tag: expected 1 to 100 letters, digits, dots, dashes and underscores, "
            "beginning with a letter or a digit."
        )
    if name.isdigit():
        raise InvalidArgumentError(
            f"{name!r} cannot be a tag: it reads like the number of a version. Add a letter, as in 'v{name}'."
        )
    place = layout.tags / f"{name}{_SUFFIX}"
    content = {"version": version, "created_at": datetime.now(UTC).isoformat(timespec="seconds")}
    with guard_access("write the tag", place):
        layout.tags.make_folder()
        try:
            place.write(json.dumps(content).encode(), exclusive=True)
        except FileExistsError as error:
            there = read_tags(layout)[name]
            if there != version:
                raise StoreExistsError(
                    f"The tag {name!r} names version {there} already. Remove it first (untag), or choose "
                    "another name."
                ) from error


def remove_tag(layout: Layout, name: str) -> None:
    """Take a name away; the version stays until it is vacuumed.

    Raises:
        VersionNotFoundError: there is no such tag; the message lists those that are.
    """
    tagged_version(layout, name)
    place = layout.tags / f"{name}{_SUFFIX}"
    with guard_access("remove the tag", place):
        place.remove()


def read_tags(layout: Layout) -> dict[str, int]:
    """All tags with their versions, by name.

    Raises:
        CorruptStoreError: the file of a tag is damaged.
    """
    with guard_access("read the tags", layout.tags):
        names = [name for name in layout.tags.names() if name.endswith(_SUFFIX) and not name.startswith(".")]
    return {name.removesuffix(_SUFFIX): _read(layout, name) for name in names}


def _read(layout: Layout, name: str) -> int:
    place = layout.tags / name
    try:
        with guard_access("read the tag", place):
            data = place.read()
        version = json.loads(data)["version"]
        if type(version) is not int or version < 0:
            raise ValueError(f"the version is {version!r}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptStoreError(
            f"The tag {place} is damaged: {error}. Restore or delete the file."
        ) from error
    return version


def tagged_version(layout: Layout, name: str) -> int:
    """The version that a tag names.

    Raises:
        VersionNotFoundError: there is no such tag; the message lists those that are.
    """
    tags = read_tags(layout)
    if name not in tags:
        known = ", ".join(sorted(tags)) or "none"
        raise VersionNotFoundError(f"{layout.root} has no tag {name!r}. Its tags: {known}.")
    return tags[name]
