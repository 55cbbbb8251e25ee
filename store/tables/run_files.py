"""Joins the files of the runs table: each run brings a file with one row, and readers open every file.

A writer that closes its run joins files once there are many of a size, so their number grows with the
logarithm of the number of runs; `compact` joins all of them. The row of a run that goes on keeps its file,
which its writer replaces at the end.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from ..delta.files import TableFile
from ..delta.table import Table
from ..errors import EpisodelakeError
from ..layout import segment_name
from ..parquet.files import read_parquet
from .table_files import write_table_file

LIVE = "-live.parquet"
#: So many files of about one size become one; also how much larger the files of the next size are.
_MANY = 128
#: How often a closing writer counts the files, in versions of the table.
_EVERY = 32
_READERS = 8


def closed_files(runs: Table) -> list[TableFile]:
    """Return the files with rows of runs that are over."""
    return [file for file in runs.files() if not file.name.endswith(LIVE)]


def join_many(runs: Table, run_id: str) -> None:
    """Join files of about one size if there are many, for a run that was closed just now.

    The new file has the name of a segment of the run, which keeps vacuum away as long as the run's journal is
    there. What fails is left to the next run: the files stay as they are.
    """
    # A run commits twice: one of two versions in a row is certain to be looked at.
    if runs.version % _EVERY > 1:
        return
    with contextlib.suppress(EpisodelakeError):
        sizes: dict[int, list[TableFile]] = defaultdict(list)
        for file in closed_files(runs):
            sizes[_size(file.rows)].append(file)
        for files in sizes.values():
            if len(files) >= _MANY:
                join(runs, files, segment_name(run_id, 0), join_id(run_id))
                return


def join_id(run_id: str) -> str:
    """Return the transaction of the commit that joins files for a run; the run has one of its own."""
    return f"join.{run_id}"


def _size(rows: int) -> int:
    size = 0
    while rows >= _MANY:
        rows, size = rows // _MANY, size + 1
    return size


def join(
    runs: Table,
    files: list[TableFile],
    name: str,
    operation: str,
    *,
    rewritten: Callable[[pa.Table], pa.Table] | None = None,
    columns: Callable[[pa.Schema], pa.Schema] | None = None,
    check: Callable[[], None] | None = None,
) -> None:
    """Put one file in the place of several, in one commit.

    Args:
        runs: the table.
        files: of its newest version.
        name: of the new file.
        operation: a name that no other operation has.
        rewritten: gives the rows to write for those that the files have.
        columns, check: as for `Table.replace`.

    Raises:
        CorruptStoreError: a file is damaged; nothing was changed.
        ConcurrentCommitError: others joined these files first; nothing was changed.
        StoreAccessError: nothing was changed, or the commit was made.
    """

    def read(file: TableFile) -> pa.Table:
        found = read_parquet(runs.path / file.name, rows=file.rows)
        return found.cast(pa.schema([runs.schema.field(name) for name in found.column_names]))

    new = []
    if files:
        with ThreadPoolExecutor(_READERS, "episodelake runs") as pool:
            rows = pa.concat_tables(pool.map(read, files), promote_options="default")
        rows = rows if rewritten is None else rewritten(rows)
        new.append(write_table_file(runs.path / name, rows, files[0].moment))
    names = [file.name for file in files]
    runs.replace(new, names, operation, {"episodelake.operation": "join runs"}, columns, check)
