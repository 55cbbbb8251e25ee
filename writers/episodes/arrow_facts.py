"""Episode facts from a table: seed, options, metadata and end reason.

`EpisodeWriter.write_episodes` takes it as `episodes=`, with one row per episode, in the order of the steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from ...store.dynamic import logical_types as kinds
from ...store.dynamic.column_groups import METADATA
from ...store.dynamic.columns import array_kinds, remembered
from ...store.dynamic.values import load_object
from ...store.errors import InvalidArgumentError
from ...store.journal.episodes import NO_FACTS, EndReason, EpisodeFacts
from ...store.schema import LAST_OBSERVATION, MISSING
from .arrow_kinds import python_values
from .arrow_rows import EPISODE_KEYS, owned
from .source_keys import SOURCE_KEY, with_source_key

_ENV_INDEX, _END_REASON, _LENGTH = "env_index", "end_reason", "length"
_SEED, _WIDE_SEED, _OPTIONS = "seed", "wide_seed", "options"
_TAKEN = (
    *(_ENV_INDEX, _END_REASON, _LENGTH, _SEED, _WIDE_SEED, _OPTIONS, SOURCE_KEY),
    LAST_OBSERVATION.name,
)
#: Columns of the episodes table that follow from the steps or belong to the store that they come from.
_FOLLOWS = ("run_id", "number", "started_at", "ended_at", "episode_return", "terminated", "truncated")
_POINTERS = ("segment", "row_start", "row_count")
_REASONS = ("terminated", "truncated", "cut", "interrupted")
_JSON = METADATA.json_column
_path_of = lru_cache(METADATA.path)


@dataclass(frozen=True)
class EpisodeSays:
    """One row of the table.

    Attributes:
        facts: seed, options and metadata.
        env_index: the environment it came from.
        end_reason: why it ended, which counts where no flag is set.
        length: its transitions, to be compared with the steps.
        source_key: names it in the dataset that it comes from.
    """

    facts: EpisodeFacts = NO_FACTS
    env_index: int | None = None
    end_reason: EndReason | None = None
    length: int | None = None
    source_key: str | None = None

    def without_last(self) -> EpisodeSays:
        """Return the same for an episode whose last observation is missing."""
        return replace(self, facts=replace(self.facts, last_missing=True))

    def check(self, length: int, reason: EndReason, name: str) -> None:
        """Compare the row with the steps of its episode.

        Raises:
            InvalidArgumentError: the two do not agree.
        """
        for column, said, actual in ((_LENGTH, self.length, length), (_END_REASON, self.end_reason, reason)):
            if said is not None and said != actual:
                raise InvalidArgumentError(
                    f"Episode {name}: `{column}` is {said!r} in `episodes`, and {actual!r} by its steps."
                )


class ArrowFacts:
    """Reads such a table row by row.

    Args:
        batches: the table.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._rows = (row for batch in batches for row in _rows(self._checked(batch)))
        self._taken = 0

    def take(self, key: Any) -> EpisodeSays:
        """Return the next row, which is that of the episode with this key.

        Args:
            key: None if only the order assigns rows to episodes.

        Raises:
            InvalidArgumentError: there is no row, it is of another episode, or a value is of no use.
        """
        row = next(self._rows, None)
        if row is None:
            raise InvalidArgumentError(f"`episodes` has {self._taken} rows, and the steps more episodes.")
        self._taken += 1
        named = [row[name] for name in EPISODE_KEYS if name in row]
        if key is not None and named and named[0] != key:
            raise InvalidArgumentError(
                f"Row {self._taken - 1} of `episodes` is of the episode {named[0]!r}; the steps go on with "
                f"{key!r}. Bring both in one order."
            )
        reason = row.get(_END_REASON)
        if reason not in (None, *_REASONS):
            raise InvalidArgumentError(f"`{_END_REASON}` is {reason!r}; expected one of {list(_REASONS)}.")
        options = row.get(_OPTIONS)
        if isinstance(options, str):
            options = load_object(options, f"`{_OPTIONS}` of `episodes`")
        seed = row.get(_SEED)
        if seed is None and row.get(_WIDE_SEED) is not None:
            seed = int(row[_WIDE_SEED])
        source_key = row.get(SOURCE_KEY)
        last = row.get(LAST_OBSERVATION.name)
        if last not in (None, MISSING):
            raise InvalidArgumentError(
                f"`{LAST_OBSERVATION.name}` is {last!r} in `episodes`; expected NULL or {MISSING!r}."
            )
        metadata = with_source_key(_metadata(row), source_key)
        facts = EpisodeFacts.of(seed, options, metadata, last_missing=last == MISSING)
        return EpisodeSays(facts, row.get(_ENV_INDEX), reason, row.get(_LENGTH), source_key)

    def check_end(self, episodes: int) -> None:
        """Refuse rows that are left over.

        Raises:
            InvalidArgumentError: there are some.
        """
        if next(self._rows, None) is not None:
            raise InvalidArgumentError(f"`episodes` has more rows than the steps have episodes ({episodes}).")

    @staticmethod
    def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
        known = (*EPISODE_KEYS, *_TAKEN, *_FOLLOWS, *_POINTERS)
        unknown = [
            name for name in batch.schema.names if name not in known and not name.startswith(METADATA.prefix)
        ]
        if unknown:
            raise InvalidArgumentError(
                f"`episodes` has the columns {unknown}; expected {list(_TAKEN)} and `{METADATA.prefix}*`. "
                f"Leave out annotations; call values of your own `{METADATA.prefix}{unknown[0]}`."
            )
        return batch


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table as mappings, arrays in their shapes."""
    keys = [name for name in EPISODE_KEYS if name in batch.schema.names][:1]
    declared = (remembered(batch.column(keys[0]).to_pylist()) if keys else {}) | array_kinds(batch.schema)
    columns = [
        python_values(owned(column), declared.get(name))
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return (dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True))


def _metadata(row: dict[str, Any]) -> dict[Any, Any]:
    metadata: dict[Any, Any] = {}
    for name, value in row.items():
        if value is not None and name.startswith(METADATA.prefix) and name != _JSON:
            kinds.nest(metadata, _path_of(name), value)
    rest = row.get(_JSON)
    if rest is not None:
        for key, value in load_object(rest, f"`{_JSON}` of `episodes`").items():
            kinds.nest(metadata, (key,), value)
    return metadata
