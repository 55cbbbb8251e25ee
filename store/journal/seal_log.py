"""The seal log of a run's journal: which episodes went into which segment.

A line is written before its seal. With the last segment that was committed, the log says
which episodes of the journal are in the store already, whatever became of them there: recovery must not
bring back what was compacted or deleted meanwhile.
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Iterable
from pathlib import Path

from ..checksums import checksum
from ..errors import CorruptStoreError
from ..files import guard_access, sync_path
from ..system import open_plain

SEAL_LOG = "seals.log"


def note_seal(directory: Path, segment: int, numbers: Iterable[int]) -> None:
    """Record, durably, that the next seal brings these episodes into a segment.

    Raises:
        StoreAccessError: it could not be written; nothing was sealed.
    """
    text = json.dumps({"segment": segment, "numbers": sorted(numbers)}).encode()
    path = directory / SEAL_LOG
    with guard_access("write the journal", path):
        new = not path.exists()
        descriptor = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            # The line begins with a line feed, so that a torn one before it spoils itself alone.
            line = b"\n%08x %s\n" % (checksum(text), text)
            while line:
                line = line[os.write(descriptor, line) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            sync_path(directory)


def sealed_numbers(directory: Path, committed: int) -> set[int]:
    """Return the numbers of the episodes that the segments up to `committed` took; lines that are torn do not
    count.

    Raises:
        StoreAccessError: the log cannot be read.
    """
    by_segment: dict[int, list[int]] = {}
    path = directory / SEAL_LOG
    with guard_access("read the journal", path):
        data = path.read_bytes() if path.exists() and not path.is_symlink() else b""
    for line in data.split(b"\n"):
        check, _, text = line.partition(b" ")
        if text and check == b"%08x" % checksum(text):
            try:
                content = json.loads(text)
                segment, numbers = (
                    operator.index(content["segment"]),
                    [*map(operator.index, content["numbers"])],
                )
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise CorruptStoreError(f"The seal log {path} has an impossible line: {error}.") from error
            # A segment that was never committed may have been begun again with other episodes.
            by_segment[segment] = numbers
    return {number for segment, found in by_segment.items() if segment <= committed for number in found}
