"""What the journal says of episodes beside their rows: that they begin, end, or are given up.

An event is a JSON object beside a batch of rows; docs/format.md lists its keys. Episodes that begin or end
together with nothing more to say share one event, `begins` or `ends`, so that a vector environment's short
episodes cost a few numbers each. `expanded` makes single events of them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .record_columns import NO_FACTS, Begins, Ends
from .records import EpisodeFacts, EpisodeRecord
from .values import dump_json


def begin_event(number: int, env_index: int | None, started_at: int, facts: EpisodeFacts) -> dict[str, Any]:
    """One episode begins."""
    return {
        "event": "begin",
        "number": number,
        "env_index": env_index,
        "started_at": started_at,
        "seed": facts.seed,
        "options": facts.options,
        "metadata": dump_json(facts.metadata) if facts.metadata else None,
    }


def end_event(record: EpisodeRecord) -> dict[str, Any]:
    """One episode ends."""
    return _end(record.number, record.ended_at, record.end_reason, record.metadata)


def _end(number: int, ended_at: int, reason: str, metadata: dict[Any, Any]) -> dict[str, Any]:
    return {
        "event": "end",
        "number": number,
        "ended_at": ended_at,
        "reason": reason,
        "metadata": dump_json(metadata) if metadata else None,
    }


def begin_events(begins: Iterable[Begins]) -> list[dict[str, Any]]:
    """Many episodes begin."""
    numbers: list[int] = []
    indices: list[int] = []
    moments: list[int] = []
    events: list[dict[str, Any]] = []
    for begin in begins:
        if begin.facts:
            pairs = zip(begin.numbers.tolist(), begin.env_index.tolist(), strict=True)
            events += [
                begin_event(number, index, begin.started_at, begin.facts.get(number, NO_FACTS))
                for number, index in pairs
            ]
        else:
            numbers += begin.numbers.tolist()
            indices += begin.env_index.tolist()
            moments += [begin.started_at] * len(begin.numbers)
    if numbers:
        events.append({"event": "begins", "number": numbers, "env_index": indices, "started_at": moments})
    return events


def end_events(ends: Iterable[Ends]) -> list[dict[str, Any]]:
    """Many episodes end; those without a step are given up."""
    numbers: list[int] = []
    moments: list[int] = []
    events: list[dict[str, Any]] = []
    for end in ends:
        done = end.terminated | end.truncated
        if end.lengths.all() and done.all() and not end.facts:
            numbers += end.numbers.tolist()
            moments += [end.ended_at] * len(end.numbers)
        else:
            events += _single_ends(end)
    if numbers:
        events.append({"event": "ends", "number": numbers, "ended_at": moments})
    return events


def _single_ends(end: Ends) -> Iterator[dict[str, Any]]:
    rows = zip(
        end.numbers.tolist(),
        end.lengths.tolist(),
        end.terminated.tolist(),
        end.truncated.tolist(),
        strict=True,
    )
    for number, length, terminated, truncated in rows:
        if not length:
            yield {"event": "discard", "number": number}
            continue
        reason = "terminated" if terminated else "truncated" if truncated else "cut"
        facts = end.facts.get(number)
        yield _end(number, end.ended_at, reason, facts.metadata if facts else {})


def expanded(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Single events: `begins` and `ends` taken apart, the others as they are.

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


def told_numbers(events: Iterable[dict[str, Any]]) -> set[int]:
    """The episodes that events speak of."""
    told: set[int] = set()
    for event in events:
        number = event["number"]
        told.update(number if isinstance(number, list) else (number,))
    return told
