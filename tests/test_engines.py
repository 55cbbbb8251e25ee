"""Operations on other engines than this process give what they give in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import episodelake as el
from log_edits import read_actions, write_actions
from test_ray_reading import SPACES, recorded


def damaged_store(path: Path) -> el.EpisodeStore:
    """Four segments with annotations: a changed reward, a changed t, a damaged page, a damaged annotation."""
    store, _ = recorded(path, *SPACES["vectors"])
    for length in (3, 4, 5):
        with store.writer() as writer:
            writer.write_episode(
                observations=np.zeros((length + 1, 3, 2), np.float32),
                actions=np.zeros((length, 2)),
                rewards=np.ones(length),
                terminations=True,
                truncations=False,
            )
    store.refresh()
    keys = ["episode_id", "t"]
    store.annotate(store.transitions.select(*keys, half=pl.col("reward") / 2), on=keys)
    segments = sorted((path / "steps").glob("*.parquet"), key=lambda each: pq.read_metadata(each).num_rows)
    change(segments[0], "reward")
    change(segments[1], "t")
    for file in (segments[2], *(path / "annotations").glob(f"*/{segments[3].name}")):
        data = file.read_bytes()
        file.write_bytes(data[:40] + bytes([data[40] ^ 0xFF]) + data[41:])
    return el.open(path)


def change(segment: Path, column: str) -> None:
    """Change the first value of a column of a segment, and what the log says of the file."""
    table = pq.read_table(segment)
    field = table.schema.field(column)
    values = pa.array([7, *table.column(column).to_pylist()[1:]], field.type)
    table = table.set_column(table.schema.get_field_index(column), field, values)
    pq.write_table(table, segment, store_schema=False)
    for commit in (segment.parent / "_delta_log").glob("*.json"):
        actions = read_actions(commit)
        for action in actions:
            if action.get("add", {}).get("path") == segment.name:
                action["add"]["size"] = segment.stat().st_size
        write_actions(commit, actions)


def check_verified(store: el.EpisodeStore, **where: Any) -> None:
    """The reports are those of this process, for a second time and in a repair too; progress ends."""
    expected = store.verify()
    assert {fault.kind for fault in expected.faults} >= {"return", "rows", "unreadable"}
    seen: list[tuple[int, int]] = []
    assert store.verify(progress=lambda *state: seen.append(state), **where) == expected
    assert seen == [(done, 4) for done in (1, 2, 3, 4)]
    assert store.verify(**where) == expected
    mended = store.verify(repair=True, **where)
    assert [fault.kind for fault in mended.faults if fault.mended] == ["return"]
    assert store.verify(**where) == store.verify()


@pytest.mark.further
def test_verify_in_processes(tmp_path: Path) -> None:
    """Processes find what this one finds, and a repair writes the returns that they summed up."""
    check_verified(damaged_store(tmp_path / "s"), workers=2)


def test_verify_in_this_process(tmp_path: Path) -> None:
    """The faults are those that were made."""
    check_verified(damaged_store(tmp_path / "s"))
