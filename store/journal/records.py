"""Records of a journal part: checked heads, events as JSON, Arrow IPC messages; and the header of a run.

A part is a sequence of records, each a checked head, events as JSON, and one Arrow IPC message.

    offset  bytes  what
         0      4  "ELJ1"
         4      4  CRC-32 (as in zlib) of all bytes from offset 8 to the end, unsigned, little-endian
         8      1  kind: "S" schema, "B" batch, "E" end of the part
         9      7  zero
        16      8  bytes of the events, unsigned, little-endian
        24      8  bytes of the body, the same
        32      8  rows of the run before this batch, the same
        40      8  number of the schema within its part: of this one, or of this batch's, the same
        48     16  zero
        64         events, body, each padded with zeros to a multiple of 64 bytes

The checksum distinguishes a record that a crash tore, or that was damaged later, from a whole one before any
byte of it is used.

An event is a JSON object beside a batch of rows: an episode begins, ends, or is discarded; docs/format.md
lists its keys. Episodes that begin or end together with nothing more to say share one event, `begins` or
`ends`, so that a vector environment's short episodes cost a few numbers each. `expanded` makes single events
of them again.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..dynamic.values import dump_json
from ..layout import checksum
from ..schema import LAST_OBSERVATION, MISSING
from .episodes import NO_FACTS, Begins, Ends, EpisodeColumns, EpisodeFacts, EpisodeRecord, end_reason_of

SCHEMA, BATCH, END = b"S", b"B", b"E"
_MAGIC = b"ELJ1"
_HEAD = struct.Struct("<c7xQQQQ16x")
_START = struct.Struct("<4sI")
HEAD_BYTES = _START.size + _HEAD.size
_ALIGNMENT = 64
_SEARCH_PASSES = 16
HEADER_KEY = b"episodelake.run"


@dataclass(frozen=True)
class RunHeader:
    """The description of the run in every part, so that a part alone is enough to recover it.

    Attributes:
        run_id, name: see the runs table.
        started_at: microseconds since 1970, UTC.
        env_spec, versions: JSON texts, or None.
        metadata: JSON text of the run's metadata.
        env_bundle: JSON text, see `EnvBundle`; None in headers of earlier writers too.
    """

    run_id: str
    name: str
    started_at: int
    env_spec: str | None
    versions: str | None
    metadata: str
    env_bundle: str | None = None

    def to_bytes(self) -> bytes:
        """Return the header as schema metadata."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(data: bytes) -> RunHeader:
        """Read schema metadata back; raises ValueError, TypeError or KeyError if it is none."""
        return RunHeader(**json.loads(data))


@dataclass(frozen=True)
class PartRecord:
    """A complete record; `events` and `body` are views of the memory it was read from."""

    kind: bytes
    first: int
    schema: int
    events: memoryview
    body: memoryview
    stop: int


def encode(
    kind: bytes, first: int, schema: int, events: bytes, body: bytes | memoryview
) -> list[bytes | memoryview]:
    """Return the pieces to write, one after the other, for one record."""
    head = _HEAD.pack(kind, len(events), len(body), first, schema)
    padded_events = events + bytes(_padding(len(events)))
    padding = bytes(_padding(len(body)))
    check = checksum(head, padded_events, body, padding)
    return [_START.pack(_MAGIC, check) + head + padded_events, body, padding]


def decode(data: memoryview, start: int, *, checked: bool = False) -> PartRecord | None:
    """Return the record at `start`, or None if there is no complete, undamaged one.

    Args:
        data: the part.
        start: where its head begins.
        checked: whether its checksum need not be compared.
    """
    first = start + HEAD_BYTES
    if len(data) < first:
        return None
    magic, check = _START.unpack_from(data, start)
    kind, events_size, body_size, rows_before, schema = _HEAD.unpack_from(data, start + _START.size)
    body_start = first + events_size + _padding(events_size)
    stop = body_start + body_size + _padding(body_size)
    if magic != _MAGIC or len(data) < stop:
        return None
    if not checked and checksum(data[start + _START.size : stop]) != check:
        return None
    events = data[first : first + events_size]
    return PartRecord(kind, rows_before, schema, events, data[body_start : body_start + body_size], stop)


def record_bytes(head: bytes) -> int | None:
    """Return the size of the record that begins with these bytes; None if they are no complete head."""
    if len(head) < HEAD_BYTES or not head.startswith(_MAGIC):
        return None
    _, events_size, body_size, _, _ = _HEAD.unpack_from(head, _START.size)
    return HEAD_BYTES + events_size + _padding(events_size) + body_size + _padding(body_size)


def find_next(data: mmap.mmap, view: memoryview, start: int) -> int | None:
    """Return the offset of the next complete record after a damaged one, or None.

    A part made to be slow could hold very many heads that each claim the rest of it; the search gives up when
    computing the checksums of such heads has taken it over the part a number of times.
    """
    left = _SEARCH_PASSES * len(view)
    at = data.find(_MAGIC, start)
    while at >= 0 and left > 0:
        if at % _ALIGNMENT == 0:
            if decode(view, at) is not None:
                return at
            left -= _claimed_bytes(view, at)
        at = data.find(_MAGIC, at + 1)
    return None


def _claimed_bytes(data: memoryview, start: int) -> int:
    """Return how many bytes the checksum of a record covers; 0 where it claims more than there are."""
    if len(data) < start + HEAD_BYTES:
        return 0
    _, events_size, body_size, _, _ = _HEAD.unpack_from(data, start + _START.size)
    size = HEAD_BYTES + events_size + body_size
    return size if start + size <= len(data) else 0


def _padding(size: int) -> int:
    return -size % _ALIGNMENT


def begin_event(number: int, env_index: int | None, started_at: int, facts: EpisodeFacts) -> dict[str, Any]:
    """Return the event of an episode that begins."""
    event = {
        "event": "begin",
        "number": number,
        "env_index": env_index,
        "started_at": started_at,
        "seed": facts.seed,
        "options": facts.options,
        "metadata": dump_json(facts.metadata) if facts.metadata else None,
    }
    if facts.continues is not None:
        event |= {"continues": facts.continues.episode_id, "continued_steps": facts.continues.length}
    return event


def begin_and_end_events(episodes: EpisodeColumns) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the events of complete episodes: their begins, and their ends."""
    begins: list[dict[str, Any]] = []
    ends: list[dict[str, Any]] = []
    for place, number in enumerate(episodes.number.tolist()):
        facts = episodes.facts.get(number, NO_FACTS)
        begins.append(begin_event(number, episodes.env_index[place], int(episodes.started_at[place]), facts))
        reason = episodes.end_reason[place]
        end = _end(number, int(episodes.ended_at[place]), reason, facts.metadata)
        # At the end: an episode whose last rows the journal lost has the observations of the others.
        ends.append({**end, LAST_OBSERVATION.name: MISSING} if facts.last_missing else end)
    return begins, ends


def end_event(record: EpisodeRecord) -> dict[str, Any]:
    """Return the event of an episode that ends."""
    event = _end(record.number, record.ended_at, record.end_reason, record.facts.metadata)
    if record.agents:
        event["flags"] = [[agent.terminated, agent.truncated] for agent in record.agents]
    return event


def _end(number: int, ended_at: int, reason: str, metadata: dict[Any, Any]) -> dict[str, Any]:
    return {
        "event": "end",
        "number": number,
        "ended_at": ended_at,
        "reason": reason,
        "metadata": dump_json(metadata) if metadata else None,
    }


def begin_events(begins: Sequence[Begins]) -> list[dict[str, Any]]:
    """Return the events of many episodes that begin: one event for all without further facts."""
    plain = [begin for begin in begins if not begin.facts and len(begin.numbers)]
    events: list[dict[str, Any]] = []
    for begin in begins:
        if begin.facts:
            columns = (begin.numbers.tolist(), begin.env_index.tolist(), begin.started_at.tolist())
            events += [
                begin_event(number, index, moment, begin.facts.get(number, NO_FACTS))
                for number, index, moment in zip(*columns, strict=True)
            ]
    if plain:
        events.append(
            {
                "event": "begins",
                "number": np.concatenate([begin.numbers for begin in plain]).tolist(),
                "env_index": np.concatenate([begin.env_index for begin in plain]).tolist(),
                "started_at": np.concatenate([begin.started_at for begin in plain]).tolist(),
            }
        )
    return events


def end_events(ended: Ends) -> list[dict[str, Any]]:
    """Return the events of many episodes that end, one for all without facts; empty ones are discarded."""
    plain = (ended.terminated | ended.truncated) & ~ended.empty
    if ended.facts:
        plain &= ~np.isin(ended.table[:, 0], list(ended.facts))
    events: list[dict[str, Any]] = []
    for index in np.flatnonzero(~plain).tolist():
        number, _, length, _ = ended.table[index].tolist()
        if not length:
            events.append({"event": "discard", "number": number})
            continue
        reason = end_reason_of(bool(ended.terminated[index]), bool(ended.truncated[index]), "cut")
        facts = ended.facts.get(number, NO_FACTS)
        events.append(_end(number, int(ended.ended_at[index]), reason, facts.metadata))
    if plain.any():
        numbers, moments = ended.table[plain, 0].tolist(), ended.ended_at[plain].tolist()
        events.append({"event": "ends", "number": numbers, "ended_at": moments})
    return events


def expanded(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return single events: `begins` and `ends` taken apart, the others as they are.

    Raises:
        ValueError: the lists of an event differ in length.
    """
    single: list[dict[str, Any]] = []
    for event in events:
        kind = event.get("event")
        if kind not in ("begins", "ends"):
            single.append(event)
            continue
        lists = {key: values for key, values in event.items() if key != "event"}
        for values in zip(*lists.values(), strict=True):
            single.append({"event": kind[:-1], **dict(zip(lists, values, strict=True))})
    return single


def numbers_in(events: Iterable[dict[str, Any]], *kinds: str) -> set[int]:
    """Return the numbers of the episodes in events; with `kinds`, only in events of these."""
    numbers: set[int] = set()
    for event in events:
        if not kinds or event["event"] in kinds:
            number = event["number"]
            numbers.update(number if isinstance(number, list) else (number,))
    return numbers
