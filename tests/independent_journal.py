"""A reader of journals that was written from docs/format.md alone; see `independent_reader.py`.

It says which episodes a recovery would find in the journal of a run whose writer died: their rows as values,
their lengths and end reasons.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from independent_reader import Lane, lane_of, roots_of
from independent_tables import read_manifest, read_table
from independent_values import space_columns


@dataclass(frozen=True)
class Frame:
    """One whole frame of a part."""

    kind: bytes
    before: int
    schema: int
    events: bytes
    body: bytes


@dataclass
class Unsealed:
    """An episode in a journal: what its events told, and its arrivals by agent."""

    begin: dict[str, Any]
    end: dict[str, Any] | None = None
    agents: dict[int, dict[str, Any]] = field(default_factory=dict)
    arrivals: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def transitions(self) -> int:
        """How many steps it has, of all agents."""
        return sum(row["_kind"] == 1 for rows in self.arrivals.values() for row in rows)


@dataclass(frozen=True)
class Recoverable:
    """What a recovery would make of an episode."""

    number: int
    end_reason: str
    length: int
    agents: list[str]
    lanes: list[Lane]
    seed: int | None
    continues: str | None


def frames(data: bytes) -> Iterator[Frame | None]:
    """The whole frames of a part; None where bytes had to be passed over."""
    at = 0
    while at < len(data):
        frame, stop = _frame(data, at)
        if frame is None:
            at = next((start for start in range(at + 64, len(data), 64) if _frame(data, start)[0]), len(data))
            yield None
        else:
            yield frame
            at = stop


def _frame(data: bytes, at: int) -> tuple[Frame | None, int]:
    if len(data) < at + 64:
        return None, at
    mark, check, kind, events, body, before, schema = struct.unpack_from("<4sIc7xQQQQ", data, at)
    start = at + 64
    middle = start + events + -events % 64
    stop = middle + body + -body % 64
    if mark != b"ELJ1" or stop > len(data) or zlib.crc32(data[at + 8 : stop]) != check:
        return None, at
    return Frame(kind, before, schema, data[start : start + events], data[middle : middle + body]), stop


def read_journal(store: Path, run_id: str) -> tuple[dict[str, Any], list[Recoverable]]:
    """The run's header, and the episodes of its journal that no segment has yet, by number."""
    manifest = read_manifest(store)
    folder = store / "journal" / run_id
    header, kinds, found = _read_parts(sorted(folder.glob("*.frames")))
    done = _sealed(store, folder, run_id)
    wanted = {
        number: each
        for number, each in sorted(found.items())
        if number not in done and each.transitions > (each.begin.get("continued_steps") or 0)
    }
    return header, [_recoverable(manifest, number, each, kinds) for number, each in wanted.items()]


def told(journal: Path) -> dict[int, Unsealed]:
    """All episodes that the parts in a folder tell of, by number; a segment may have some of them."""
    return _read_parts(sorted(journal.glob("*.frames")))[2]


def _read_parts(parts: Sequence[Path]) -> tuple[dict[str, Any], dict[str, str], dict[int, Unsealed]]:
    header: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    found: dict[int, Unsealed] = {}
    lost: set[int] = set()
    seen, gap, unended = 0, False, False
    for part in parts:
        schemas: dict[int, pa.Schema] = {}
        ended = False
        for frame in frames(part.read_bytes()):
            if frame is None:
                gap = True
                continue
            ended = frame.kind == b"E"
            if frame.kind == b"S":
                schema = pa.ipc.read_schema(pa.py_buffer(frame.body))
                schemas[frame.schema] = schema
                header = json.loads(schema.metadata[b"episodelake.run"])
                marked = [column for column in schema if b"kind" in (column.metadata or {})]
                kinds |= {column.name: column.metadata[b"kind"].decode() for column in marked}
            elif frame.kind == b"B" and frame.schema not in schemas:
                gap = True
            elif frame.kind == b"B":
                if gap or (unended and frame.before > seen):
                    lost |= {number for number, each in found.items() if each.end is None}
                gap = unended = False
                batch = pa.ipc.read_record_batch(pa.py_buffer(frame.body), schemas[frame.schema])
                rows = batch_rows(batch)[max(seen - frame.before, 0) :]
                seen = max(seen, frame.before + batch.num_rows)
                _take(found, lost, json.loads(frame.events or b"[]"), rows)
        gap, unended = False, not ended
    return header, kinds, found


def batch_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a batch, packed columns unpacked."""
    columns = {}
    for column, values in zip(batch.schema, batch.columns, strict=True):
        metadata, cells = column.metadata or {}, values.to_pylist()
        if b"page_value_bytes" in metadata:
            cells = _unpacked(cells, int(metadata[b"page_value_bytes"]), "zstd")
        elif b"value_bytes" in metadata:
            cells = _unpacked(cells, int(metadata[b"value_bytes"]), "lz4")
        columns[column.name] = cells
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _unpacked(cells: Sequence[bytes | None], size: int, codec: str) -> list[bytes | None]:
    values: list[bytes | None] = []
    unit, at, prefix = b"", 0, 4 if codec == "zstd" else 0
    for cell in cells:
        if cell is None:
            values.append(None)
            continue
        if cell:
            unit, at = pa.CompressedInputStream(pa.BufferReader(cell), codec).read(), 0
            if prefix:
                at = 4 + int.from_bytes(unit[:4], "little")
        assert unit[at : at + prefix] == size.to_bytes(4, "little")[:prefix]
        values.append(unit[at + prefix : at + prefix + size])
        at += prefix + size
    return values


def _take(
    found: dict[int, Unsealed],
    lost: set[int],
    events: Sequence[Mapping[str, Any]],
    rows: Sequence[dict[str, Any]],
) -> None:
    single = list(_single(events))
    for event in single:
        number = event["number"]
        if event["event"] == "begin":
            found.setdefault(number, Unsealed(event))
        elif event["event"] == "agent" and number in found and number not in lost:
            found[number].agents.setdefault(event["agent"], event)
    for row in rows:
        if row["_number"] in found and row["_number"] not in lost:
            found[row["_number"]].arrivals.setdefault(row.get("_agent", 0), []).append(row)
    for event in single:
        if event["event"] == "end" and event["number"] in found and event["number"] not in lost:
            found[event["number"]].end = event
        elif event["event"] == "discard":
            found.pop(event["number"], None)


def _single(events: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for event in events:
        if event["event"] in ("begins", "ends"):
            keys = [key for key in event if key != "event"]
            for values in zip(*(event[key] for key in keys), strict=True):
                yield {"event": event["event"][:-1], **dict(zip(keys, values, strict=True))}
        else:
            yield dict(event)


def _sealed(store: Path, folder: Path, run_id: str) -> set[int]:
    """The numbers of the run's episodes that are committed, or were."""
    episodes = read_table(store, "episodes")
    done = {
        row["number"] for name in episodes.files for row in episodes.rows(name) if row["run_id"] == run_id
    }
    log = folder / "seals.log"
    by_segment: dict[int, list[int]] = {}
    for line in log.read_bytes().split(b"\n") if log.exists() else []:
        check, _, text = line.partition(b" ")
        if text and check == b"%08x" % zlib.crc32(text):
            told = json.loads(text)
            by_segment[told["segment"]] = told["numbers"]
    committed = episodes.applied.get(run_id, -1)
    return done.union(*(numbers for segment, numbers in by_segment.items() if segment <= committed))


def _recoverable(
    manifest: Mapping[str, Any], number: int, episode: Unsealed, kinds: Mapping[str, str]
) -> Recoverable:
    roots = roots_of(manifest)
    groups = [group["group"] for group in manifest.get("agents", [])]
    lanes, flags = [], []
    for agent in sorted(episode.arrivals):
        own = roots[None] if not groups else roots[groups[episode.agents[agent]["group"]]]
        actions = space_columns(own.action, f"{own.prefix}action")
        last = (episode.end or {}).get("last_observation")
        lanes.append(lane_of(_steps(episode.arrivals[agent], actions), own, kinds, last))
        flags.append((lanes[-1].terminations[-1:] == [True], lanes[-1].truncations[-1:] == [True]))
    done = all(any(each) for each in flags)
    reason = "interrupted"
    if done:
        reason = "terminated" if all(terminated for terminated, _ in flags) else "truncated"
    steps = [row for rows in episode.arrivals.values() for row in rows]
    return Recoverable(
        number,
        (episode.end or {}).get("reason") or reason,
        max(row["env_step"] for row in steps) if groups else episode.transitions,
        [episode.agents[agent]["agent_id"] for agent in sorted(episode.agents)],
        lanes,
        episode.begin.get("seed"),
        episode.begin.get("continues"),
    )


def _steps(arrivals: Sequence[Mapping[str, Any]], actions: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of steps that arrivals amount to: the outcome of arrival t+1 stands on row t."""
    rows = []
    for t, arrival in enumerate(each for each in arrivals if each["_kind"] != 2):
        following = arrivals[t + 1] if t + 1 < len(arrivals) else {}
        row = {"t": t}
        for name, cell in arrival.items():
            outcome = name in (*actions, "reward", "terminated", "truncated") or name.startswith("policy.")
            row[name] = following.get(name) if outcome else cell
        rows.append(row)
    return rows
