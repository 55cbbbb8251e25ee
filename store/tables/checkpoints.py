"""Checkpoints of a table's log: the state after a commit, so opening need not read the commits before.

The table library makes one of a copy of the log in a temporary folder; it gets a checksum and appears
in the log as a whole, under a name that is created once. A crash leaves the log without it, never half of it.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from deltalake import DeltaTable

from ..places import Place
from .checksums import (
    HINT,
    checkpoint_name,
    checkpoints_of,
    commit_name,
    read_checkpoint,
    read_commit,
    summed_checkpoint,
)


def write_checkpoint(table: Place, version: int, *, summed: bool) -> int | None:
    """Write a checkpoint of a table's log at a version; one that is there already stays.

    Args:
        table: the table's folder.
        version: a commit that is there.
        summed: whether the files of the log must have checksums that match.

    Returns:
        The checkpoint before, which was read and is whole; None if there is none, or nothing was written.

    Raises:
        CorruptStoreError: a part of the log is damaged.
        OSError, DeltaError: the log cannot be read, or the checkpoint not be written.
    """
    log = table / "_delta_log"
    earlier = [found for found in checkpoints_of(log.names()) if found <= version]
    if version in earlier:
        return None
    # The commit of a checkpoint itself is copied too: the library looks for it.
    start = earlier[-1] if earlier else 0
    files = {commit_name(n): read_commit(table, n, summed=summed) for n in range(start, version + 1)}
    if earlier:
        files[checkpoint_name(start)] = read_checkpoint(table, start, summed=summed)
    checkpoint, hint = _made(files, version)
    data = summed_checkpoint(table.name, version, checkpoint)
    with contextlib.suppress(FileExistsError):
        (log / checkpoint_name(version)).write(data, exclusive=True)
    # A hint for readers; with an older hint, or none, they find the same checkpoint by listing.
    (log / HINT).write(json.dumps({**json.loads(hint), "sizeInBytes": len(data)}).encode())
    return earlier[-1] if earlier else None


def _made(files: Mapping[str, bytes], version: int) -> tuple[bytes, bytes]:
    """Return the checkpoint that the table library makes of the files of a log, and its hint where to look
    first.
    """
    with tempfile.TemporaryDirectory(prefix="episodelake-") as folder:
        log = Path(folder) / "_delta_log"
        log.mkdir()
        for name, data in files.items():
            (log / name).write_bytes(data)
        DeltaTable(folder, version=version).create_checkpoint()
        return (log / checkpoint_name(version)).read_bytes(), (log / HINT).read_bytes()
