"""The part of a snapshot that stays readable when files of its small tables are damaged.

The rest of a store stays explorable: files of episodes and of runs that cannot be read are left out, with the
episodes and runs in them. Steps are found through the episodes, one file at a time, so that a damaged file of
steps concerns its own episodes only; where all steps are asked for, it is left out on demand.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..store.errors import CorruptStoreError, StoreAccessError
from ..store.layout import EPISODES, RUNS, STEPS
from ..store.segments.file_checks import check_listed, check_pages
from ..store.snapshot import Snapshot
from ..store.tables.listed_files import TableFile


def intact(snapshot: Snapshot, *, steps: bool = False) -> tuple[Snapshot, list[str]]:
    """Return the same version without the files of episodes and runs that cannot be read.

    Every page of these files is read. Positions count the episodes that are left.

    Args:
        snapshot: a version of a store.
        steps: leave out files of steps too; the episodes in them stay, without rows of steps.

    Returns:
        The snapshot, and for each file that was left out its fault and its number of rows.
    """
    whole = Snapshot(snapshot.layout, snapshot.manifest, snapshot.version)
    told = {**_damaged(whole, EPISODES, whole.episode_files), **_damaged(whole, RUNS, whole.run_files)}
    found = Snapshot(snapshot.layout, snapshot.manifest, snapshot.version, frozenset(told))
    if not steps:
        return found, list(told.values())
    # Only readable episodes list the files of steps.
    lost = _damaged(found, STEPS, found.step_files)
    found = Snapshot(snapshot.layout, snapshot.manifest, snapshot.version, frozenset(told), frozenset(lost))
    return found, [*told.values(), *lost.values()]


def _damaged(snapshot: Snapshot, table: str, files: Sequence[TableFile]) -> dict[str, str]:
    """Return the fault of each file that cannot be read, by its name."""
    folder, schema = snapshot.layout.table(table), snapshot.table_schema(table)
    told = {}
    for file in files:
        try:
            check_listed(folder / file.name, file, schema)
            check_pages([folder / file.name])
        except (CorruptStoreError, StoreAccessError) as error:
            rows = f"{file.rows} row" if file.rows == 1 else f"{file.rows} rows"
            told[file.name] = f"{error} Left out: {rows} of {table}."
    return told
