"""Events of the journal beside its rows: episodes begin, end, or are discarded.

An event is a JSON object beside a batch of rows; docs/format.md lists its keys. Episodes that begin or end
together with nothing more to say share one event, `begins` or `ends`, so that a vector environment's short
episodes cost a few numbers each. `expanded` makes single events of them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..dynamic.values import dump_json
from ..schema import LAST_OBSERVATION, MISSING
from .episodes import NO_FACTS, Begins, Ends, EpisodeColumns, EpisodeFacts, EpisodeRecord, end_reason_of


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
    """Return the events of whole episodes: their begins, and their ends."""
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
