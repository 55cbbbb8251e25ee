"""What of a snapshot can still be read where files of its small tables are damaged.

The rest of a store stays explorable: files of episodes and of runs that cannot be read are left out, with the
episodes and runs in them. Steps are found through the episodes, one file at a time, so that a damaged file of
steps concerns its own episodes only; where all steps are asked for, it is left out on demand.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..store.errors import CorruptStoreError, StoreAccessError
from ..store.file_checks import check_listed, check_pages
from ..store.layout import EPISODES, RUNS, STEPS
from ..store.listed_files import TableFile
from ..store.snapshot import Snapshot


def intact(snapshot: Snapshot, *, steps: bool = False) -> tuple[Snapshot, list[str]]:
    """The same version without the files of episodes and runs that cannot be read.

    Every page of these files is read. Positions count the episodes that are left.

    Args:
        snapshot: a version of a store.
        steps: leave out files of steps too; the episodes in them stay, without rows of steps.

    Returns:
        The snapshot, and for each file that was left out what is wrong with it and how many rows it had.
    """
    whole = Snapshot(snapshot.layout, snapshot.manifest, snapshot.version)
    told = {**_damaged(whole, EPISODES, whole.episode_files), **_damaged(whole, RUNS, whole.run_files)}
    found = Snapshot(snapshot.layout, snapshot.manifest, snapshot.version, frozenset(told))
    if not steps:
        return found, list(told.values())
    # Which files of steps there are, only readable episodes say.
    lost = _damaged(found, STEPS, found.step_files)
    found = Snapshot(snapshot.layout, snapshot.manifest, snapshot.version, frozenset(told), frozenset(lost))
    return found, [*told.values(), *lost.values()]


def _damaged(snapshot: Snapshot, table: str, files: Sequence[TableFile]) -> dict[str, str]:
    """What is wrong with each file that cannot be read, by its name."""
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
