"""Checkpoints of a table's log: what all commits so far amount to, so that opening need not read them all.

The table library sums up a copy of the log in a temporary folder; the result gets its checksum and appears
in the log as a whole, under a name that is created once. A crash leaves the log without it, never half of it.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from deltalake import DeltaTable

from .log_sums import (
    checkpoint_name,
    checkpoints_of,
    commit_name,
    read_checkpoint,
    read_commit,
    summed_checkpoint,
)
from .places import Place

_HINT = "_last_checkpoint"


def write_checkpoint(table: Place, version: int, *, summed: bool) -> None:
    """Sum up a table's log up to a version; one that is there already stays.

    Args:
        table: the table's folder.
        version: a commit that is there.
        summed: whether the files of the log must have sums that fit.

    Raises:
        CorruptStoreError: a part of the log is damaged.
        OSError, DeltaError: the log cannot be read, or the checkpoint not be written.
    """
    log = table / "_delta_log"
    earlier = [found for found in checkpoints_of(log.names()) if found <= version]
    if version in earlier:
        return
    # The commit of a checkpoint itself is copied too: the library looks for it.
    start = earlier[-1] if earlier else 0
    files = {commit_name(n): read_commit(table, n, summed=summed) for n in range(start, version + 1)}
    if earlier:
        files[checkpoint_name(start)] = read_checkpoint(table, start, summed=summed)
    checkpoint, hint = _made(files, version)
    data = summed_checkpoint(table.name, version, checkpoint)
    with contextlib.suppress(FileExistsError):
        (log / checkpoint_name(version)).write(data, exclusive=True)
    # Where to look first; whoever finds an older one there, or none, finds the same checkpoint by listing.
    (log / _HINT).write(json.dumps({**json.loads(hint), "sizeInBytes": len(data)}).encode())


def _made(files: Mapping[str, bytes], version: int) -> tuple[bytes, bytes]:
    """The checkpoint that the table library makes of the files of a log, and its hint where to look first."""
    with tempfile.TemporaryDirectory(prefix="episodelake-") as folder:
        log = Path(folder) / "_delta_log"
        log.mkdir()
        for name, data in files.items():
            (log / name).write_bytes(data)
        DeltaTable(folder, version=version).create_checkpoint()
        return (log / checkpoint_name(version)).read_bytes(), (log / _HINT).read_bytes()
