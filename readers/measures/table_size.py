"""`TableSize`: the columns of a table, and their bytes by the footers of its files; no row is decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ...store.delta.log import TableFile
from ...store.errors import CorruptStoreError
from ...store.files import Place
from ...store.parquet.files import read_footer
from ...store.snapshot import Snapshot
from ..sql.sources import sql_type

#: The most files of a table that are measured; a sample of this many stands for the others.
MEASURED_FILES = 128
_READERS = 8


@dataclass(frozen=True)
class TableSize:
    """The columns of a table and the room that they take, from the footers of its files.

    Attributes:
        columns: in their order: the table, the column, its type as DuckDB names it, and its compressed bytes
            in all files that this version shows.
        exact: whether every file was measured.
        damaged: the errors of files whose footer cannot be read.
    """

    columns: list[dict[str, Any]]
    exact: bool
    damaged: tuple[str, ...]

    @staticmethod
    def of(snapshot: Snapshot, table: str) -> TableSize:
        """Measure the columns of "steps" (annotations included) or of "episodes"."""
        files = _step_files(snapshot) if table == "steps" else snapshot.episode_files
        folder = snapshot.layout.table(table)
        measured = _sampled(files)
        sizes, damaged = _sizes([folder / file.name for file in measured])
        share = sum(file.size for file in measured)
        scale = sum(file.size for file in files) / share if len(measured) < len(files) and share else 1.0
        if table == "steps":
            sizes |= _annotation_sizes(snapshot)
        columns = [
            {
                "table": table,
                "column": field.name,
                "type": sql_type(field.type),
                "bytes": round(sizes.get(field.name, 0) * scale),
            }
            for field in snapshot.shown_schema(table)
        ]
        return TableSize(columns, len(measured) == len(files), damaged)


def _step_files(snapshot: Snapshot) -> Sequence[TableFile]:
    """Return the files of steps; of the newest version as its log lists them, which asks no file of
    episodes.
    """
    return snapshot.listed_steps if snapshot.newest else snapshot.step_files


def _sampled(files: Sequence[TableFile]) -> list[TableFile]:
    if len(files) <= MEASURED_FILES:
        return list(files)
    return [files[index * len(files) // MEASURED_FILES] for index in range(MEASURED_FILES)]


def _sizes(places: Sequence[Place]) -> tuple[Counter[str], tuple[str, ...]]:
    total: Counter[str] = Counter()
    damaged = []
    with ThreadPoolExecutor(_READERS) as readers:
        for sizes in readers.map(_file_sizes, places):
            if isinstance(sizes, str):
                damaged.append(sizes)
            else:
                total.update(sizes)
    return total, tuple(damaged)


def _file_sizes(place: Place) -> Counter[str] | str:
    """Return the bytes of each top-level column of one file, or its error."""
    try:
        footer = read_footer(place)
    except CorruptStoreError as error:
        return str(error)
    # A list's values stand under `name.list.element`; names themselves may have dots.
    names = footer.schema.to_arrow_schema().names
    paths = [footer.schema.column(index).path for index in range(footer.num_columns)]
    owners = [_owner(path, names) for path in paths]
    sizes: Counter[str] = Counter()
    for group in range(footer.num_row_groups):
        row_group = footer.row_group(group)
        for index, owner in enumerate(owners):
            sizes[owner] += row_group.column(index).total_compressed_size
    return sizes


def _owner(path: str, names: Sequence[str]) -> str:
    """Return the column that a leaf of the file belongs to: the longest name that its path begins with."""
    fitting = [name for name in names if path == name or path.startswith(f"{name}.")]
    return max(fitting, key=len, default=path)


def _annotation_sizes(snapshot: Snapshot) -> Counter[str]:
    sizes: Counter[str] = Counter()
    if not snapshot.annotation_files.annotations:
        return sizes
    segments = snapshot.segments
    for name in snapshot.annotation_files.annotations:
        places = [snapshot.annotation_files.find(name, segment) for segment in segments]
        sizes[name] = sum(place.size() for place in places if place is not None)
    return sizes
