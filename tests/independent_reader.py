"""A reader of stores that was written from docs/format.md alone, to prove that the page suffices.

It imports nothing of Episodelake, neither numpy nor a Delta reader: only pyarrow (for Parquet and LZ4) and
the standard library. `independent_tables.py` reads files and logs, `independent_values.py` makes values of
cells, and this module episodes of both. `independent_journal.py` reads journals, and
`independent_writer.py` writes stores.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from independent_tables import Refused, Table, read_json, read_manifest, read_parquet, read_table
from independent_values import dynamic_values, family, segment, space_value, tagged


@dataclass
class Lane:
    """The rows of an episode, or of one agent of one: T+1 observations, T actions, and so on."""

    observations: list[Any]
    actions: list[Any]
    rewards: list[Any]
    terminations: list[bool]
    truncations: list[bool]
    infos: list[dict[Any, Any]]
    policy: list[dict[Any, Any]]
    extra: list[dict[Any, Any]]
    env_steps: list[int] | None = None


@dataclass
class Episode:
    """One row of the episodes table and what it points at."""

    row: dict[str, Any]
    metadata: dict[Any, Any]
    options: Any
    lanes: dict[str | None, Lane]
    step_annotations: dict[str, list[Any]]


@dataclass(frozen=True)
class Roots:
    """The spaces of a single agent or of a group, and the names of their columns."""

    observation: Mapping[str, Any]
    action: Mapping[str, Any]
    prefix: str = ""


def roots_of(manifest: Mapping[str, Any]) -> dict[str | None, Roots]:
    """By group; None for the store of a single agent."""
    if "agents" not in manifest:
        spaces = manifest["spaces"]
        return {None: Roots(spaces["observation"], spaces["action"])}
    groups = manifest["agents"]
    return {
        group["group"]: Roots(
            group["observation"], group["action"], f"{segment(group['group'])}." if len(groups) > 1 else ""
        )
        for group in groups
    }


def read_store(store: Path, version: int | None = None) -> list[Episode]:
    """Every episode of a version of a store, in the order of positions."""
    manifest = read_manifest(store)
    episodes = read_table(store, "episodes", version)
    steps = read_table(store, "steps")
    kept: dict[str, list[dict[str, Any]]] = {}
    found = []
    for add in episodes.ordered():
        rows = episodes.rows(add["path"])
        if len(rows) != json.loads(add["stats"])["numRecords"]:
            raise Refused(f"{add['path']} has another number of rows than was committed")
        for row in rows:
            if row["segment"] not in kept:
                kept[row["segment"]] = _segment_rows(store, manifest, row["segment"], steps, episodes)
            found.append(_episode(manifest, row, kept[row["segment"]], steps, episodes))
    return found


def _segment_rows(
    store: Path, manifest: Mapping[str, Any], name: str, steps: Table, episodes: Table
) -> list[dict[str, Any]]:
    """The rows of a segment, with the columns that annotations added."""
    if "/" in name or "\\" in name:
        raise Refused(f"the segment {name}")
    rows = steps.rows(name)
    for annotation, told in annotations_of(episodes).items():
        folders = [store / "annotations" / each for each in told["ids"]]
        if not all((folder / "annotation.json").exists() for folder in folders):
            raise Refused(f"the annotation {annotation} was vacuumed")
        if any(read_json(folder / "annotation.json")["name"] != annotation for folder in folders):
            raise Refused(f"the marker of another annotation than {annotation}")
        place = next((folder / name for folder in folders if (folder / name).exists()), None)
        values = [None] * len(rows) if place is None else read_parquet(place)[annotation]
        for row, value in zip(rows, values, strict=True):
            row[annotation] = value
    return rows


def annotations_of(episodes: Table) -> dict[str, Any]:
    """The annotations of steps that a version has."""
    return json.loads(episodes.properties.get("episodelake.annotations", "{}"))


def _episode(
    manifest: Mapping[str, Any],
    row: dict[str, Any],
    rows: Sequence[dict[str, Any]],
    steps: Table,
    episodes: Table,
) -> Episode:
    own = rows[row["row_start"] : row["row_start"] + row["row_count"]]
    if row["row_start"] < 0 or row["row_count"] < 2 or len(own) < row["row_count"]:
        raise Refused("row pointers that lead out of the segment")
    if any(each["episode_id"] != row["episode_id"] for each in own):
        raise Refused("rows of another episode")
    added = {name: [each[name] for each in own] for name in annotations_of(episodes)}
    metadata = dynamic_values("metadata.", family("metadata.", episodes.kinds()), row)
    options = None if row["options"] is None else tagged(row["options"])
    lanes = {
        agent: lane_of(own[start:stop], roots, steps.kinds(), row.get("last_observation"))
        for agent, roots, start, stop in _lanes(manifest, row)
    }
    return Episode(row, metadata, options, lanes, added)


def _lanes(
    manifest: Mapping[str, Any], row: Mapping[str, Any]
) -> Iterator[tuple[str | None, Roots, int, int]]:
    roots = roots_of(manifest)
    if None in roots:
        yield None, roots[None], 0, row["row_count"]
        return
    start = 0
    for agent, group, length in zip(row["agents"], row["agent_groups"], row["agent_lengths"], strict=True):
        yield agent, roots[group], start, start + length + 1
        start += length + 1


def lane_of(
    rows: Sequence[Mapping[str, Any]], roots: Roots, kinds: Mapping[str, str], last: str | None = None
) -> Lane:
    """An episode's rows, or those of one agent, as values; `last` is the episode's `last_observation`."""
    count = len(rows) - 1
    if [row["t"] for row in rows] != list(range(count + 1)):
        raise Refused("rows that are not in order")
    observed = rows[:count] if last == "missing" else rows
    name = f"{roots.prefix}observation"
    for row in rows[len(observed) :]:
        if any(row[key] is not None for key in row if key == name or key.startswith(f"{name}.")):
            raise Refused("an observation that is said to be missing")
    return Lane(
        [space_value(roots.observation, name, row) for row in observed],
        [space_value(roots.action, f"{roots.prefix}action", row) for row in rows[:count]],
        [row["reward"] for row in rows[:count]],
        [row["terminated"] for row in rows[:count]],
        [row["truncated"] for row in rows[:count]],
        *(
            [dynamic_values(prefix, family(prefix, kinds), row) for row in rows]
            for prefix in ("info.", "policy.", "")
        ),
        [row["env_step"] for row in rows] if rows and "env_step" in rows[0] else None,
    )
