"""Stores with a long history, made from one recorded segment instead of recorded at length.

Ten thousand seals take minutes. Here one segment is recorded, its files are multiplied, and the tables' logs
are continued with the entries that as many seals would have written, checkpoints included. Measurements
on such a store use the public API.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from episodelake.store.delta.checkpoints import write_checkpoint
from episodelake.store.delta.log import FOOTER, commit_name, commit_text
from episodelake.store.files import locate
from episodelake.store.parquet.writing import parquet_writer

TABLES = ("steps", "episodes")
#: A table gets a checkpoint at every multiple of this version.
CHECKPOINT = 100
_FIRST = "-000000.parquet"
#: Of a row, about.
ROW_BYTES = 100


@dataclass(frozen=True)
class Segment:
    """The one recorded segment of a store.

    Attributes:
        store: the store's folder.
        run_id: the run that recorded it.
    """

    store: Path
    run_id: str

    @staticmethod
    def of(store: Path) -> Segment:
        """The segment of a store in which one run sealed once."""
        (file,) = (store / "steps").glob("*.parquet")
        return Segment(store, file.name.removesuffix(_FIRST))

    def path(self, table: str, run_id: str | None = None, number: int = 0) -> Path:
        """Where the file of a table is, or the file of another segment would be."""
        return self.store / table / f"{run_id or self.run_id}-{number:06d}.parquet"

    def read(self, table: str) -> pa.Table:
        """The segment's rows in a table."""
        return pq.read_table(self.path(table))


def link_segments(segment: Segment, version: int, seals_per_run: int = 100) -> None:
    """Bring a store to a version by segments whose files are hard links to the recorded one.

    Its episodes are that many copies of one, so such a store is good for writing to it, not for reading.
    """
    for table in TABLES:

        def prepare(number: int, table: str = table) -> tuple[str, int]:
            run, seal = divmod(number - 1, seals_per_run)
            run_id = f"{segment.run_id[:-6]}{run:06d}"
            os.link(segment.path(table), segment.path(table, run_id, seal))
            return run_id, seal

        _continue_log(segment, table, version, prepare)


def write_segments(segment: Segment, count: int) -> None:
    """Give the run of a segment `count` segments, each with as many episodes, which differ in their ids."""
    episodes, steps = segment.read("episodes"), segment.read("steps")
    height = episodes.num_rows
    owners = pa.array(
        [row for row, count in enumerate(episodes["row_count"].to_pylist()) for _ in range(count)]
    )
    footers: dict[str, str] = {}
    for number in range(1, count):
        numbers = range(number * height, (number + 1) * height)
        ids = pa.array([f"{segment.run_id}/{episode:06d}" for episode in numbers])
        changed = {
            "episode_id": ids,
            "number": pa.array(numbers, pa.int64()),
            "segment": pa.array([segment.path("steps", number=number).name] * height),
        }
        rows = {"episodes": _with(episodes, changed), "steps": _with(steps, {"episode_id": ids.take(owners)})}
        for table in TABLES:
            place = locate(segment.path(table, number=number))
            with parquet_writer(place, rows[table].schema, ROW_BYTES) as writer:
                writer.write_table(rows[table])
            footers[str(place)] = writer.footer
    for table in TABLES:
        _continue_log(segment, table, count, lambda number: (segment.run_id, number), height, footers)


def _with(table: pa.Table, columns: dict[str, pa.Array]) -> pa.Table:
    for name, column in columns.items():
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _continue_log(
    segment: Segment,
    table: str,
    version: int,
    prepare: Callable[[int], tuple[str, int]],
    height: int = 0,
    footers: Mapping[str, str] | None = None,
) -> None:
    """Continue a table's log up to a version.

    Args:
        prepare: makes the file of the segment with a number, counted from 1, and gives its run and number
            within the run.
        height: episodes in a segment, if its ids have to be right.
        footers: checksums of the footers of files; None if all have that of the recorded one.
    """
    folder = segment.store / table
    log = folder / "_delta_log"
    entries = [json.loads(line) for line in (log / commit_name(1)).read_text().splitlines()]
    information = next(entry["commitInfo"] for entry in entries if "commitInfo" in entry)
    actions = [entry for entry in entries if "commitInfo" not in entry]
    checkpoint = version // CHECKPOINT * CHECKPOINT
    for number in range(1, version):
        run_id, seal = prepare(number)
        path = segment.path(table, run_id, seal)
        changed = [_entry(entry, run_id, seal, path, height, footers) for entry in actions]
        (log / commit_name(number + 1)).write_bytes(commit_text(table, number + 1, changed, information))
        if number + 1 == checkpoint:
            write_checkpoint(locate(folder), checkpoint, checksummed=True)


def _entry(
    entry: dict[str, Any],
    run_id: str,
    seal: int,
    path: Path,
    height: int,
    footers: Mapping[str, str] | None,
) -> dict[str, Any]:
    """A line of the recorded segment's commit as the commit of another segment has it."""
    if "txn" in entry:
        return {"txn": {**entry["txn"], "appId": run_id, "version": seal}}
    if "add" not in entry:
        return entry
    add = entry["add"]
    statistics = json.loads(add["stats"])
    first = seal * height
    statistics["minValues"]["episode_id"] = f"{run_id}/{first:06d}"
    statistics["maxValues"]["episode_id"] = f"{run_id}/{first + max(height - 1, 0):06d}"
    moment = add["modificationTime"] + seal
    changed = {"path": path.name, "size": path.stat().st_size, "modificationTime": moment}
    if footers:
        changed["tags"] = {**add["tags"], FOOTER: footers[str(path)]}
    return {"add": {**add, **changed, "stats": json.dumps(statistics)}}
