"""Tags: names for versions. A tagged version stays readable whatever is vacuumed.

A tag is the file `tags/<name>.json`; it names a version of the episodes table, and is never changed. It
has a checksum and its own name, so neither a flipped bit nor another tag's file opens another version.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from .errors import CorruptStoreError, InvalidArgumentError, StoreExistsError, VersionNotFoundError
from .files import visible_step
from .layout import Layout, check_identity, checked_json, read_json

_SUFFIX = ".json"
#: A larger file is no tag.
LARGEST_TAG = 1 << 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def write_tag(layout: Layout, name: str, version: int) -> None:
    """Give a version a name; doing it twice is harmless.

    Raises:
        InvalidArgumentError: the name is invalid.
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
    content = {"tag": name, "version": version, "created_at": datetime.now(UTC).isoformat(timespec="seconds")}
    with visible_step(f"The tag {name!r} is written"):
        layout.tags.make_folder()
        try:
            place.write(checked_json(content), exclusive=True)
        except FileExistsError as error:
            there = read_tag(layout, place.name)
            if there != version:
                raise StoreExistsError(
                    f"The tag {name!r} names version {there} already. Remove it first (untag), or choose "
                    "another name."
                ) from error


def remove_tag(layout: Layout, name: str) -> None:
    """Remove a tag; the version stays until it is vacuumed.

    Raises:
        VersionNotFoundError: there is no such tag; the message lists those that are.
        StoreNotFoundError: another store has replaced this one.
    """
    check_identity(layout)
    place = layout.tags / _found(layout, name)
    place.remove()


def read_tags(layout: Layout) -> dict[str, int]:
    """Return all tags with their versions, by name.

    Raises:
        CorruptStoreError: the file of a tag is damaged.
    """
    return {name.removesuffix(_SUFFIX): read_tag(layout, name) for name in tag_files(layout)}


def tag_files(layout: Layout) -> list[str]:
    """Return the names of the tags' files."""
    return [name for name in layout.tags.names() if name.endswith(_SUFFIX) and not name.startswith(".")]


def read_tag(layout: Layout, name: str) -> int:
    """Return the version that the tag in the file `name` names.

    Raises:
        CorruptStoreError: the file is damaged, or is the file of another tag.
    """
    place = layout.tags / name
    try:
        content = read_json(place, LARGEST_TAG)
    except CorruptStoreError as error:
        raise CorruptStoreError(
            f"{error} Or remove the tag (untag): vacuum deletes nothing until then."
        ) from error
    version, tag = content.get("version"), content.get("tag", name.removesuffix(_SUFFIX))
    if type(version) is not int or version < 0 or f"{tag}{_SUFFIX}" != name:
        raise CorruptStoreError(
            f"The tag {place} is damaged: it names version {version!r} as {tag!r}. Restore the file from a "
            "copy, or remove the tag (untag), after which vacuum may delete the version that it named."
        )
    return version


def tagged_version(layout: Layout, name: str) -> int:
    """Return the version that a tag names.

    Raises:
        VersionNotFoundError: there is no such tag; the message lists those that are.
        CorruptStoreError: its file is damaged.
    """
    return read_tag(layout, _found(layout, name))


def _found(layout: Layout, name: str) -> str:
    """Return the file of a tag, readable or not."""
    files = tag_files(layout)
    if f"{name}{_SUFFIX}" not in files:
        known = ", ".join(sorted(file.removesuffix(_SUFFIX) for file in files)) or "none"
        raise VersionNotFoundError(f"{layout.root} has no tag {name!r}. Its tags: {known}.")
    return f"{name}{_SUFFIX}"
