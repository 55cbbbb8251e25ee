"""A writer of journals that was written from docs/format.md alone; see `independent_reader.py`.

It journals arrivals of CartPole's spaces, with a policy's value beside each action, as a writer would that
died before it sealed anything.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from independent_writer import Rollout, Run

COLUMNS = pa.schema(
    [
        pa.field("_number", pa.int64()),
        pa.field("_kind", pa.int16()),
        pa.field("observation", pa.list_(pa.float32())),
        pa.field("action", pa.int64()),
        pa.field("reward", pa.float64()),
        pa.field("terminated", pa.bool_()),
        pa.field("truncated", pa.bool_()),
        pa.field("policy.value", pa.float64(), metadata={"kind": "float"}),
    ]
)
RESET, STEP, LATE = 0, 1, 2


def frame(kind: bytes, before: int, schema: int, events: bytes, body: bytes) -> bytes:
    """One frame of a part."""
    head = struct.pack("<c7xQQQQ16x", kind, len(events), len(body), before, schema)
    rest = head + events + bytes(-len(events) % 64) + body + bytes(-len(body) % 64)
    return struct.pack("<4sI", b"ELJ1", zlib.crc32(rest)) + rest


def schema_frame(run: Run) -> bytes:
    """The first frame of a part: the columns, and what there is to say of the run."""
    header = {
        "run_id": run.id,
        "name": run.name,
        "started_at": run.started_at,
        "env_spec": None,
        "versions": None,
        "metadata": json.dumps({"by": "the page", "rate": {"$float": "inf"}}),
    }
    columns = COLUMNS.with_metadata({"episodelake.run": json.dumps(header)})
    return frame(b"S", 0, 1, b"", columns.serialize().to_pybytes())


def batch_frame(before: int, rows: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]) -> bytes:
    """Some arrivals with the events that belong to them."""
    batch = pa.RecordBatch.from_pylist([dict(row) for row in rows], COLUMNS)
    return frame(b"B", before, 1, json.dumps(list(events)).encode(), batch.serialize().to_pybytes())


def arrivals(number: int, rollout: Rollout) -> list[dict[str, Any]]:
    """What a reset and the steps of an episode brought; the value at each observation is its place."""
    rows: list[dict[str, Any]] = [
        {"_number": number, "_kind": RESET, "observation": rollout.observations[0]},
    ]
    length = len(rollout.actions)
    for t in range(length):
        rows.append(
            {
                "_number": number,
                "_kind": STEP,
                "observation": rollout.observations[t + 1],
                "action": rollout.actions[t],
                "reward": rollout.rewards[t],
                "terminated": t == length - 1 and rollout.terminated,
                "truncated": t == length - 1 and not rollout.terminated,
                "policy.value": float(t),
            }
        )
    return rows


def write_part(run: Run, frames: Sequence[bytes], number: int = 0, *, ended: bool = True) -> Path:
    """A part of the run's journal, with its mark of the end unless its writer died in it."""
    path = run.journal / f"{number:06d}.frames"
    marks = [frame(b"E", 0, 0, b"", b"")] if ended else []
    path.write_bytes(b"".join([*frames, *marks]))
    return path


def die(run: Run) -> None:
    """Let go of the lock as a process does that is killed: the journal stays, and so does the lock's file."""
    os.close(run.lock)
