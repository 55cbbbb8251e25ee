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
    found = Snapshot(snapshot.layout, snapshot.manifest, snapshot.version)
    episodes, told = _readable(found, EPISODES, found.episode_files)
    runs, also = _readable(found, RUNS, found.run_files)
    # These are what every reader goes by; both are worked out once and kept.
    found.__dict__["episode_files"] = episodes
    found.__dict__["run_files"] = runs
    if steps:
        kept, lost = _readable(found, STEPS, found.step_files)
        names = {file.name for file in kept}
        found.lost_segments = frozenset(file.name for file in found.step_files if file.name not in names)
        also += lost
    return found, told + also


def _readable(
    snapshot: Snapshot, table: str, files: Sequence[TableFile]
) -> tuple[list[TableFile], list[str]]:
    folder, schema = snapshot.layout.table(table), snapshot.table_schema(table)
    kept, told = [], []
    for file in files:
        try:
            check_listed(folder / file.name, file, schema)
            check_pages([folder / file.name])
            kept.append(file)
        except (CorruptStoreError, StoreAccessError) as error:
            rows = f"{file.rows} row" if file.rows == 1 else f"{file.rows} rows"
            told.append(f"{error} Left out: {rows} of {table}.")
    return kept, told
