"""A minimal writer of stores that was written from docs/format.md alone; see `independent_reader.py`.

It makes a store of CartPole's spaces and adds segments of whole episodes to it. Its journal is an empty
folder, which keeps its files from a vacuum: what is not committed when it dies is lost. Only pyarrow and the
standard library are used.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import struct
import time
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from independent_tables import read_table

SPACES = {
    "observation": {
        "type": "Box",
        "dtype": "float32",
        "shape": [4],
        "low": [-4.800000190734863, "-inf", -0.41887903213500977, "-inf"],
        "high": [4.800000190734863, "inf", 0.41887903213500977, "inf"],
    },
    "action": {"type": "Discrete", "n": 2, "start": 0, "dtype": "int64"},
}
MOMENT = pa.timestamp("us", "UTC")
RUNS = pa.schema(
    {
        "run_id": pa.string(),
        "name": pa.string(),
        "started_at": MOMENT,
        "ended_at": MOMENT,
        "env_spec": pa.string(),
        "versions": pa.string(),
    }
)
EPISODES = pa.schema(
    {
        "episode_id": pa.string(),
        "run_id": pa.string(),
        "number": pa.int64(),
        "env_index": pa.int64(),
        "started_at": MOMENT,
        "ended_at": MOMENT,
        "length": pa.int64(),
        "episode_return": pa.float64(),
        "terminated": pa.bool_(),
        "truncated": pa.bool_(),
        "end_reason": pa.string(),
        "seed": pa.int64(),
        "wide_seed": pa.string(),
        "options": pa.string(),
        "segment": pa.string(),
        "row_start": pa.int64(),
        "row_count": pa.int64(),
    }
)
STEPS = pa.schema(
    {
        "episode_id": pa.string(),
        "t": pa.int64(),
        "observation": pa.list_(pa.float32()),
        "action": pa.int64(),
        "reward": pa.float64(),
        "terminated": pa.bool_(),
        "truncated": pa.bool_(),
    }
)
DELTA_TYPES = {
    pa.string(): "string",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    MOMENT: "timestamp",
}


@dataclass(frozen=True)
class Rollout:
    """One episode: T+1 observations, T actions and rewards, and how it ended."""

    observations: Sequence[Sequence[float]]
    actions: Sequence[int]
    rewards: Sequence[float]
    terminated: bool
    seed: int | None = None


def create(store: Path) -> None:
    """Make an empty store: the tables first, `store.json` last, under its name at once."""
    store.mkdir(parents=True)
    (store / "journal").mkdir()
    for name, schema in (("runs", RUNS), ("episodes", EPISODES), ("steps", STEPS)):
        (store / name / "_delta_log").mkdir(parents=True)
        metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(
                {"type": "struct", "fields": [_delta_field(field) for field in schema]}
            ),
            "partitionColumns": [],
            "configuration": {"delta.dataSkippingNumIndexedCols": "-1", "episodelake.sums": "1"},
            "createdTime": _now() // 1000,
        }
        actions = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
        _commit(store, name, 0, actions, "CREATE TABLE", {})
    manifest = {
        "format": 1,
        "store_id": uuid.uuid4().hex,
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        "spaces": SPACES,
        "reward_shape": [],
        "columns": {"observation": {"observation": "list<item: float>"}, "action": {"action": "int64"}},
        "made_by": "a key that readers do not know",
    }
    _appear(store / "store.json", _checked(manifest))


def tag(store: Path, name: str, version: int) -> None:
    """Name a version of the table `episodes`."""
    created_at = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    (store / "tags").mkdir(exist_ok=True)
    content = {"tag": name, "version": version, "created_at": created_at}
    _appear(store / "tags" / f"{name}.json", _checked(content))


def _checked(content: dict[str, Any]) -> bytes:
    """An object as JSON with its checksum at the end."""
    text = json.dumps(content)[:-1] + ', "crc32": '
    return f'{text}"{zlib.crc32(text.encode()):08x}"\n}}'.encode()


def new_run_id(name: str) -> str:
    """A run's name, ten characters of time and five of chance."""
    alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
    moment = _now() // 1000
    digits = [alphabet[moment >> shift & 31] for shift in range(45, -1, -5)]
    return f"{name}-{''.join(digits)}{''.join(secrets.choice(alphabet) for _ in range(5))}"


@dataclass(frozen=True)
class Run:
    """A run that goes on: its lock is held, and its journal is there."""

    store: Path
    id: str
    name: str
    started_at: int
    lock: int

    @property
    def journal(self) -> Path:
        """The folder that says that it lives."""
        return self.store / "journal" / self.id


def begin_run(store: Path, name: str) -> Run:
    """Take the lock, make the journal, and commit the run's row without an end."""
    run_id = new_run_id(name)
    lock = os.open(store / "journal" / f"{run_id}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    run = Run(store, run_id, name, _now(), lock)
    run.journal.mkdir()
    _commit_run(store, run_id, name, run.started_at, None)
    return run


def end_run(run: Run) -> None:
    """Commit the run's row with its end, in the place of the one without; then let go."""
    _commit_run(run.store, run.id, run.name, run.started_at, _now())
    run.journal.rmdir()
    os.unlink(run.journal.with_name(f"{run.id}.lock"))
    os.close(run.lock)


def _commit_run(store: Path, run_id: str, name: str, started_at: int, ended_at: int | None) -> None:
    file = f"{run_id}-{'live' if ended_at is None else 'closed'}.parquet"
    row = [run_id, name, started_at, ended_at, None, None]
    columns = [pa.array([value], field.type) for value, field in zip(row, RUNS, strict=True)]
    table = pa.table(columns, RUNS)
    _write_parquet(store / "runs" / file, table)
    removed = [] if ended_at is None else [f"{run_id}-live.parquet"]
    _add(store, "runs", file, table, ["run_id"], (run_id, 0 if ended_at is None else 1), removed, {})


def add_segment(run: Run, number: int, first: int, rollouts: Sequence[Rollout]) -> None:
    """Commit one segment: its steps, then its episodes; only the second commit shows anything.

    Args:
        number: of the segment within the run.
        first: the number of its first episode within the run.
    """
    store, name = run.store, f"{run.id}-{number:06d}.parquet"
    steps: list[dict[str, Any]] = []
    episodes: list[dict[str, Any]] = []
    for index, rollout in enumerate(rollouts, start=first):
        episodes.append(_episode_row(run, index, rollout, name, len(steps)))
        steps += _step_rows(f"{run.id}/{index:06d}", rollout)
    if read_table(store, "episodes").applied.get(run.id, -1) >= number:
        return
    steps_table, episodes_table = pa.Table.from_pylist(steps, STEPS), pa.Table.from_pylist(episodes, EPISODES)
    _write_parquet(store / "steps" / name, steps_table)
    _write_parquet(store / "episodes" / name, episodes_table)
    transaction = (run.id, number)
    _add(store, "steps", name, steps_table, ["episode_id"], transaction, [], {})
    told = {
        "episodelake.operation": "seal",
        "episodelake.episodes": str(len(rollouts)),
        "episodelake.steps": str(len(steps) - len(rollouts)),
    }
    bounds = ["episode_id", "length", "episode_return"]
    _add(store, "episodes", name, episodes_table, bounds, transaction, [], told)


def _step_rows(episode_id: str, rollout: Rollout) -> list[dict[str, Any]]:
    length = len(rollout.actions)
    flags = [
        (t == length - 1 and rollout.terminated, t == length - 1 and not rollout.terminated)
        for t in range(length)
    ]
    rows = [
        {
            "episode_id": episode_id,
            "t": t,
            "observation": rollout.observations[t],
            "action": rollout.actions[t],
            "reward": rollout.rewards[t],
            "terminated": flags[t][0],
            "truncated": flags[t][1],
        }
        for t in range(length)
    ]
    return [*rows, {"episode_id": episode_id, "t": length, "observation": rollout.observations[length]}]


def _episode_row(run: Run, number: int, rollout: Rollout, segment: str, row_start: int) -> dict[str, Any]:
    now = _now()
    return {
        "episode_id": f"{run.id}/{number:06d}",
        "run_id": run.id,
        "number": number,
        "env_index": 0,
        "started_at": now,
        "ended_at": now,
        "length": len(rollout.actions),
        "episode_return": float(sum(rollout.rewards)),
        "terminated": rollout.terminated,
        "truncated": not rollout.terminated,
        "end_reason": "terminated" if rollout.terminated else "truncated",
        "seed": rollout.seed,
        "segment": segment,
        "row_start": row_start,
        "row_count": len(rollout.actions) + 1,
    }


def _delta_field(field: pa.Field) -> dict[str, Any]:
    kind: Any = DELTA_TYPES.get(field.type)
    if kind is None:
        kind = {"type": "array", "elementType": DELTA_TYPES[field.type.value_type], "containsNull": True}
    return {"name": field.name, "type": kind, "nullable": True, "metadata": {}}


def _write_parquet(path: Path, table: pa.Table) -> None:
    """A file and, behind its footer, the footer's sum; synced."""
    pq.write_table(table, path, compression="zstd", store_schema=False, write_page_checksum=True)
    with open(path, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(end - 8)
        (length,) = struct.unpack("<I4x", file.read(8))
        file.seek(end - 8 - length)
        footer = file.read(length)
        file.write(struct.pack("<4sII4s", b"ELF1", zlib.crc32(footer), length + 8, b"PAR1"))
        os.fsync(file.fileno())


def _add(
    store: Path,
    table: str,
    name: str,
    rows: pa.Table,
    bounds: Sequence[str],
    transaction: tuple[str, int],
    removed: Sequence[str],
    told: Mapping[str, str],
) -> None:
    """Commit a file to a table, behind whatever others committed meanwhile."""
    while True:
        known = read_table(store, table)
        application, version = transaction
        if known.applied.get(application, -1) >= version:
            return
        moment = max([_now() // 1000, *(add["modificationTime"] + 1 for add in known.files.values())])
        lowest = {column: min(rows.column(column).to_pylist()) for column in bounds}
        highest = {column: max(rows.column(column).to_pylist()) for column in bounds}
        nulls = {column: rows.column(column).null_count for column in rows.column_names}
        statistics = {
            "numRecords": rows.num_rows,
            "minValues": lowest,
            "maxValues": highest,
            "nullCount": nulls,
        }
        add = {
            "path": name,
            "partitionValues": {},
            "size": (store / table / name).stat().st_size,
            "modificationTime": moment,
            "dataChange": True,
            "stats": json.dumps(statistics),
        }
        removals = [
            {"remove": {"path": each, "deletionTimestamp": moment, "dataChange": True}} for each in removed
        ]
        actions = [*removals, {"add": add}, {"txn": {"appId": application, "version": version}}]
        if _commit(store, table, known.version + 1, actions, "WRITE", told):
            return


def _commit(
    store: Path,
    table: str,
    version: int,
    actions: Sequence[Mapping[str, Any]],
    operation: str,
    told: Mapping[str, str],
) -> bool:
    """Make a commit with its sum; False if another took its number, or cleaning freed it meanwhile."""
    log = store / table / "_delta_log"
    before = _bytes_of(log / f"{version - 1:020d}.json")
    name = f"{version:020d}.json"
    info = {"timestamp": _now() // 1000, "operation": operation, "operationParameters": {}, **told}
    lines = [*actions, {"commitInfo": info}]
    text = "\n".join(map(json.dumps, lines))[:-2] + ', "episodelake.crc32": "'
    check = zlib.crc32(text.encode(), zlib.crc32(f"{table}/{name}".encode()))
    if not _appear(log / name, f'{text}{check:08x}"}}}}'.encode()):
        return False
    if _bytes_of(log / f"{version - 1:020d}.json") != before:
        (log / name).unlink(missing_ok=True)
        return False
    return True


def _bytes_of(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _appear(path: Path, data: bytes) -> bool:
    """Write a file that appears under its name as a whole, unless there is one of that name."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with open(draft, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def _now() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000
