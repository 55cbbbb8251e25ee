"""Facts of the datasets that episodes were imported from, such as their frames per second.

The run of an import keeps the facts of its dataset as metadata (`run.fps`), and their names in
`imported_keys`. The card of a store says what holds for all of its episodes: an import that creates the store
writes it, later ones leave it as it is. So a fact of a run counts more than the card, unless the user has
changed the entry: then no run states the value that the card has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pyarrow as pa

from ..store.dynamic.column_groups import METADATA, merge_rows
from ..store.layout import RUNS
from ..store.snapshot import Snapshot
from .frames import collect_episodes, collected, episodes_frame, stored_frame

_FROM, _KEYS = "imported_from", "imported_keys"
#: Facts that the metadata of any run may state, whether it is an import or not.
_OF_ANY_RUN = ("fps", "robot_type")


def _take(metadata: dict[str, Any]) -> dict[str, Any] | None:
    keys = metadata.pop(_KEYS, None)
    if keys is None:
        return None
    facts = {key: metadata.pop(key) for key in keys if key in metadata}
    return {
        key: value[0] if isinstance(value, list) and len(value) == 1 and _is_nested(value[0]) else value
        for key, value in facts.items()
    }


@dataclass
class DatasetFacts:
    """The facts of the datasets that the runs of a store were imported from.

    Attributes:
        imported: those of imports by their run; None for an import of an earlier release.
        own: those that users stated in the metadata of runs.
        metadata: of each run, without the facts of its dataset.
        runs: the table of runs.
    """

    imported: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    own: dict[str, dict[str, Any]] = field(default_factory=dict)
    metadata: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: pl.DataFrame = field(default_factory=pl.DataFrame)
    #: The keys that an import adds to the metadata of its run.
    KEYS: ClassVar = (_FROM, _KEYS)

    @classmethod
    def of(cls, snapshot: Snapshot) -> DatasetFacts:
        """Return the facts of the runs of a snapshot."""
        facts = cls(runs=collected(stored_frame(snapshot, RUNS)))
        fields = [column for column in snapshot.runs_schema if METADATA.owns(column)]
        # In the types of the store, with their kinds.
        columns = facts.runs.select([each.name for each in fields]).to_arrow().cast(pa.schema(fields))
        rows = merge_rows(METADATA, columns) if fields else [{} for _ in range(facts.runs.height)]
        for run_id, metadata in zip(facts.runs["run_id"], rows, strict=True):
            facts.take(run_id, metadata)
        return facts

    @staticmethod
    def as_metadata(facts: Mapping[str, Any], given: Mapping[str, Any], identity: str) -> dict[str, Any]:
        """Return the metadata of the run of an import: those of the caller, and facts under other keys.

        A nested fact becomes a list of one, which takes one cell in place of a column for each of its leaves.

        Args:
            facts: of the dataset.
            given: the metadata that the caller gave.
            identity: of the dataset.
        """
        own = {key: value for key, value in facts.items() if key not in given and value is not None}
        wrapped = {key: [value] if _is_nested(value) else value for key, value in own.items()}
        return {**wrapped, **given, _KEYS: list(own), _FROM: identity}

    def take(self, run_id: str, metadata: dict[str, Any]) -> None:
        """Take the metadata of a run, and remove the facts of its dataset from them."""
        self.metadata[run_id] = metadata
        if _FROM in metadata:
            del metadata[_FROM]
            self.imported[run_id] = _take(metadata)
        self.own[run_id] = {key: metadata[key] for key in _OF_ANY_RUN if metadata.get(key) is not None}

    def stated(self, card: Mapping[str, Any], runs: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return what holds for the episodes of each run: its facts, and the entries of the card."""
        known = [each for each in self.imported.values() if each is not None]
        changed = {
            key: value
            for key, value in card.items()
            # What an earlier release imported may have the value of the card.
            if len(known) == len(self.imported) and any(key in each for each in known)
            if all(each.get(key) != value for each in known)
        }
        return {
            run: {**card, **(self.imported.get(run) or {}), **changed, **self.own.get(run, {})}
            for run in runs
        }

    def rates(self, card: Mapping[str, Any], runs: Sequence[str]) -> dict[str, float | None]:
        """Return the frames per second of the episodes of each run; None where nothing states them."""
        return {run: _rate(each.get("fps")) for run, each in self.stated(card, runs).items()}

    def shared(self, card: Mapping[str, Any], runs: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        """Return the facts and entries of the card on which all runs agree that state them.

        Returns:
            Those, and the names of the facts on which the runs do not agree.
        """
        return _shared(list(self.stated(card, runs).values()) or [card])


def frame_rates(snapshot: Snapshot, positions: np.ndarray | None) -> set[float | None]:
    """Return the frames per second that runs and card state of some episodes; None for those without any.

    Args:
        positions: of the episodes; None for all.
    """
    frame = episodes_frame(snapshot, positions).select(pl.col("run_id").unique())
    runs = collect_episodes(snapshot, frame)["run_id"].to_list()
    return set(DatasetFacts.of(snapshot).rates(snapshot.card, runs).values())


def _rate(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < math.inf else None


def _shared(stated: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Return the facts on which all agree that state them, and the names of those on which they do not."""
    differing: list[str] = []

    def merged(parts: Sequence[Mapping[str, Any]], path: tuple[str, ...]) -> dict[str, Any]:
        shared = {}
        for key in dict.fromkeys(key for part in parts for key in part):
            values = [part[key] for part in parts if key in part]
            if all(value == values[0] for value in values[1:]):
                shared[key] = values[0]
            elif all(isinstance(value, Mapping) for value in values):
                shared[key] = merged(values, (*path, str(key)))
            else:
                differing.append(".".join((*path, str(key))[:2]))
        return shared

    return merged(list(_distinct(stated)), ()), list(dict.fromkeys(differing))


def _distinct(stated: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    seen: list[Mapping[str, Any]] = []
    for each in stated:
        if each not in seen:
            seen.append(each)
            yield each


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, list) and any(isinstance(each, list | Mapping) for each in value)
    )
