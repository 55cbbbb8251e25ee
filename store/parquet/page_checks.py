"""Checksums of Parquet pages, which engines skip; and digests of files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ..files import Place, file_state
from .files import file_key, footer_bytes, open_parquet, reading_file

#: Files whose pages were all read, by their identity: a file that was changed since has another.
_read: set[object] = set()
#: Digests of footers, likewise.
_digests: dict[object, str] = {}
_READERS = 16


def content_digests(places: Sequence[Place]) -> list[str]:
    """Return a text for each of some files that another file, or a changed one, does not have.

    It is the hash of the file's footer, read once in this process (see `_footer_digest`); and of a local file
    its size, and when its inode changed, which no program can set: a footer says little of lists.

    Raises:
        CorruptStoreError: one is damaged or missing; the message names it.
    """
    keys = [file_key(place) for place in places]
    # Files whose identity cannot be had for now share none.
    digests = [None if key is None else _digests.get(key) for key in keys]
    new = [index for index, digest in enumerate(digests) if digest is None]
    # Object stores answer many requests at once in the time of one.
    with ThreadPoolExecutor(_READERS) as pool:
        read = pool.map(_footer_digest, [places[index] for index in new])
        for index, digest in zip(new, read, strict=True):
            digests[index] = digest
            if keys[index] is not None:
                _digests[keys[index]] = digest
    return [f"{digest}{_changed(place)}" for digest, place in zip(digests, places, strict=True)]


def _changed(place: Place) -> str:
    if place.local is None:
        return ""
    with reading_file(place):
        state = file_state(place.local)
    return f"-{state.st_size}-{state.st_ctime_ns}"


def check_pages(places: Sequence[Place]) -> None:
    """Compare every page of some files with its checksum, once in this process: engines do not.

    Raises:
        CorruptStoreError: one is damaged; the message names the file.
    """
    for place in places:
        key = file_key(place)
        if key is not None and key in _read:
            continue
        with reading_file(place):
            file = open_parquet(place)
            for group in range(file.num_row_groups):
                file.read_row_group(group)
        _read.add(key)


def _footer_digest(place: Place) -> str:
    """Return the SHA-256 of a footer: places, sizes and statistics of its pages."""
    with reading_file(place):
        return hashlib.sha256(footer_bytes(place)).hexdigest()
