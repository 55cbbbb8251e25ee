"""Deletion of episodes from the newest version on; older versions show them until they are vacuumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..agents.lanes import transitions_in
from ..handle import StoreHandle
from ..tables.listed_files import TableFile
from .operation import Operation, Progress, reconcile
from .rewriting import NewSegment, freed_segments, write_segments


@dataclass(frozen=True)
class DeleteReport:
    """The result of a deletion, or of its dry run.

    Attributes:
        episodes, steps: how many episodes and transitions.
        segments: how many segments are written anew or go.
    """

    episodes: int
    steps: int
    segments: int


def delete(
    store: StoreHandle, ids: Sequence[str], *, dry_run: bool = False, progress: Progress | None = None
) -> DeleteReport:
    """Delete episodes from the store; those that are gone already do not count.

    Their rows leave the tables with one commit; the files that hold them stay until `vacuum`.

    Raises:
        CorruptStoreError: an old file is damaged; nothing was changed.
        StoreAccessError, ConcurrentCommitError: nothing was changed; call again.
    """
    wanted = pa.array(ids, pa.string())
    with Operation.begin(store, "delete", dry_run=dry_run) as operation:
        if not dry_run:
            reconcile(operation)
        old, new, gone = _affected(operation, wanted)
        freed = freed_segments(operation, old)
        report = DeleteReport(gone.num_rows, transitions_in(gone), len(freed))
        if dry_run or not old:
            return report
        written = write_segments(operation, new, shuffled=False, progress=progress)
        counts = {"episodes": -report.episodes, "steps": -report.steps}
        operation.commit((written.steps, freed), (written.episodes, old), counts)
    return report


def _affected(operation: Operation, wanted: pa.Array) -> tuple[list[TableFile], list[NewSegment], pa.Table]:
    """Return the episodes files with such episodes, what stays of each, and what goes."""
    old: list[TableFile] = []
    new: list[NewSegment] = []
    columns = ["row_count", *(["agents"] if operation.store.schema.groups else [])]
    gone = [operation.read_episodes([], columns)]
    for file in operation.tables.episodes.files():
        ids = operation.read_episodes([file], ["episode_id"]).column("episode_id")
        hit = pc.call_function("is_in", [ids], pc.SetLookupOptions(wanted)).to_numpy()
        if not hit.any():
            continue
        rows = operation.read_episodes([file])
        gone.append(rows.take(pa.array(np.flatnonzero(hit))).select(columns))
        old.append(file)
        if not hit.all():
            new.append(NewSegment(rows.take(pa.array(np.flatnonzero(~hit))), file.moment))
    return old, new, pa.concat_tables(gone)
