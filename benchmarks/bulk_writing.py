"""Bulk writing: whole episodes through `write_episode` and `write_episodes`, against pyarrow and Minari.

Ours is timed from the first call until the writer is closed, journal and commits included. pyarrow
writes the same columns as ours, from memory, with the compression, encodings and row group size of
our files; making its table is not timed. Minari makes a dataset from buffers of the same arrays.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import episodelake as el
from bare_files import files_of
from measure import Row, Samples, interleave, scaled
from setting import FORMATS, Setting, create, write_all
from trajectories import Trajectories, control

WORK = "write_episode, episodes of 1000 steps"
ARROW = "write_episodes, episodes of 1000 steps"
TARGET, ARROW_TARGET = 1.3, 1.15


def run(setting: Setting) -> list[Row]:
    """Measure the writing of control data."""
    data = control(episodes=setting.choose(200, 20), length=1000)
    arrays = str(data.save(setting.folder / "bulk-arrays"))
    _seconds_ours(data, setting)
    table, options = table_and_options(setting.folder / "bulk")
    sides: dict[str, Any] = {
        "ours": lambda: _seconds_ours(data, setting),
        "write_episodes": lambda: _seconds_arrow(data, table, setting),
        "pyarrow": lambda: _seconds_pyarrow(table, options, setting.folder / "bulk.parquet"),
    }
    for form in FORMATS:
        build = partial(
            setting.minari.ask, "build", arrays=arrays, dataset=f"bulk-{form}-v0", data_format=form
        )
        sides[form] = lambda build=build: build()["seconds"]
    measured = {
        name: scaled(values, 1e6 / data.steps) for name, values in interleave(sides, setting.repeats).items()
    }
    ours = measured["ours"]
    written = _sizes(setting.folder, data.steps)
    rows = [Row(WORK, "us/step", ours, "pyarrow write_table", measured["pyarrow"], ratio_target=TARGET)]
    rows.append(
        Row(
            ARROW,
            "us/step",
            measured["write_episodes"],
            "pyarrow write_table",
            measured["pyarrow"],
            ratio_target=ARROW_TARGET,
        )
    )
    rows.append(Row("the files of steps so written", "B/step", written[0], "pyarrow write_table", written[1]))
    return rows + [Row(WORK, "us/step", ours, f"Minari {form}", measured[form]) for form in FORMATS]


def table_and_options(store: Path) -> tuple[pa.Table, dict[str, Any]]:
    """Return the steps of a store as a table, and the options that make `write_table` write such files."""
    files = files_of(store, "steps")
    metadata = pq.ParquetFile(files[0]).metadata
    group = metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    dictionaries = [c.path_in_schema for c in columns if any("DICTIONARY" in name for name in c.encodings)]
    encodings = {
        c.path_in_schema: name
        for c in columns
        for name in c.encodings
        if name == "BYTE_STREAM_SPLIT" or name.startswith("DELTA")
    }
    options = {
        "compression": {c.path_in_schema: c.compression.lower() for c in columns},
        "use_dictionary": dictionaries or False,
        "column_encoding": encodings or None,
        "row_group_size": max(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)),
    }
    return pa.concat_tables([pq.read_table(file) for file in files]).combine_chunks(), options


def _sizes(folder: Path, steps: int) -> tuple[Samples, Samples]:
    """Return the bytes per step of both sides' files, which are nearly equal if their settings agree."""
    ours = sum(Path(file).stat().st_size for file in files_of(folder / "bulk", "steps"))
    theirs = (folder / "bulk.parquet").stat().st_size
    return Samples((ours / steps,)), Samples((theirs / steps,))


def _seconds_ours(data: Trajectories, setting: Setting) -> float:
    store: el.EpisodeStore = create(setting.fresh("bulk"), data.kind)
    start = time.perf_counter()
    write_all(store, data)
    return time.perf_counter() - start


def _seconds_arrow(data: Trajectories, table: pa.Table, setting: Setting) -> float:
    store = create(setting.fresh("bulk-arrow"), data.kind)
    start = time.perf_counter()
    with store.writer() as writer:
        writer.write_episodes(table)
    return time.perf_counter() - start


def _seconds_pyarrow(table: pa.Table, options: dict[str, Any], path: Path) -> float:
    path.unlink(missing_ok=True)
    start = time.perf_counter()
    pq.write_table(table, path, **options)
    return time.perf_counter() - start
