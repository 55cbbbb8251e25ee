"""Source keys: text that names an episode in the dataset it was imported from, so that it is written once.

The key of an episode is its metadata `source_key`. `EpisodeWriter` asks here before it writes an episode.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...store.common.arguments import expect
from ...store.delta.version import TableVersion
from ...store.dynamic.column_groups import METADATA
from ...store.dynamic.values import load_object
from ...store.errors import InvalidArgumentError
from ...store.layout import EPISODES, Layout
from ...store.names import SOURCE_DIGEST as SOURCE_DIGEST
from ...store.names import SOURCE_KEY, has_utf8
from ...store.parquet.files import read_parquet
from ...store.schema import StoreHandle
from ..rows.step_rows import StepRows
from ..session.run import recover_unclosed

OnDuplicate = Literal["error", "skip"]


class SourceKeys:
    """The source keys of a store's episodes, as one writer knows them.

    Args:
        store: the store. Writers of this process whose close has failed are finished before its keys are
            read.
        on_duplicate: "error": a key that is there already raises; "skip": its episode is left out.
        rows: the writer's; the keys of its open episodes count.
    """

    def __init__(self, store: StoreHandle, on_duplicate: OnDuplicate, rows: StepRows) -> None:
        self._rows = rows
        self._store = store
        self._on_duplicate = on_duplicate
        # Read with the first key: writers without keys need none of them.
        self._known: set[str] | None = None

    def assume(self, keys: Collection[str]) -> None:
        """Take these for the keys of the store, to which no other process writes, without reading it."""
        self._known = {*keys}

    def add(self, keys: Collection[str]) -> None:
        """Remember the keys of episodes that were written, which `is_new` has looked at."""
        # The episodes are recorded: reading the store now could fail, and the call would be repeated.
        if keys:
            self._all().update(keys)

    def is_known(self, key: Any) -> bool:
        """Return whether there is an episode with this key.

        Raises:
            InvalidArgumentError: the key is no text.
        """
        # An open episode that is discarded gives its key back.
        return _checked(key) in self._all() or any(
            live.facts.metadata.get(SOURCE_KEY) == key for live in self._rows.live
        )

    def is_new(self, key: Any, others: Collection[str] = ()) -> bool:
        """Return whether to write an episode with this key; True without a key.

        Args:
            others: keys of episodes that are being written.

        Raises:
            InvalidArgumentError: the key is no text, or is there already and `on_duplicate` is "error".
        """
        if key is None:
            return True
        if not self.is_known(key) and key not in others:
            return True
        if self._on_duplicate == "error":
            raise InvalidArgumentError(
                f"source_key={key!r}: {self._store.layout.root} has an episode with this key already. Give "
                'each episode a key of its own, or open the writer with on_duplicate="skip" to leave such '
                "episodes out."
            )
        return False

    def fresh(self, keys: Sequence[Any]) -> np.ndarray:
        """Return which of some episodes to write, by their keys; raises as `is_new`.

        Returns:
            bool, one for each key.
        """
        chosen: set[str] = set()
        fresh = np.ones(len(keys), bool)
        for index, key in enumerate(keys):
            fresh[index] = self.is_new(key, chosen)
            if key is not None:
                chosen.add(key)
        return fresh

    def _all(self) -> set[str]:
        if self._known is None:
            self._known = {*known_sources(self._store)}
        return self._known


def with_source_key(metadata: Any, key: str | None) -> Any:
    """Return an episode's metadata with its source key, if it has one.

    Raises:
        InvalidArgumentError: the metadata is no mapping, or has another key.
    """
    if key is None:
        return metadata
    expect(isinstance(metadata, Mapping | None), "metadata", metadata, "a mapping")
    stated = (metadata or {}).get(SOURCE_KEY, key)
    if stated != key:
        raise InvalidArgumentError(
            f"source_key={key!r}, but the metadata have `{SOURCE_KEY}` {stated!r}. Give one of them."
        )
    return {**(metadata or {}), SOURCE_KEY: key}


def _checked(key: Any) -> str:
    valid = type(key) is str and key and has_utf8(key)
    expect(valid, "source_key", key, "text, such as the path and number of an episode")
    return key


@dataclass(frozen=True, slots=True)
class Source:
    """Where an episode of a store comes from.

    Attributes:
        id: of the episode.
        key: its source key.
        digest: of its content; None where it was written without one.
    """

    id: str
    key: str
    digest: str | None


def known_sources(store: StoreHandle) -> dict[str, Source]:
    """Commit the episodes of unclosed writers, and return the sources of all episodes by key.

    Raises:
        StoreAccessError, ConcurrentCommitError: those cannot be committed for now; call again.
    """
    recover_unclosed(store)
    return {source.key: source for source in _committed(store.layout)}


def _committed(layout: Layout) -> Iterator[Source]:
    """Yield the sources of those episodes in the newest version of the store that have a key."""
    table = layout.table(EPISODES)
    columns = [METADATA.column((name,)) for name in (SOURCE_KEY, SOURCE_DIGEST)]
    for file in TableVersion(table).files():
        names = [name for name in (*columns, METADATA.json_column) if name in file.columns]
        if not names:
            continue
        rows = read_parquet(table / file.name, ["episode_id", *names]).to_pydict()
        # A value is in the JSON column where its own has another type, or stands under another spelling.
        texts = rows.get(METADATA.json_column, itertools.repeat(None))
        keys, digests = (rows.get(name, itertools.repeat(None)) for name in columns)
        for id, key, digest, text in zip(rows["episode_id"], keys, digests, texts, strict=False):
            if text is not None and SOURCE_KEY in text:
                rest = load_object(text, f"the column {METADATA.json_column!r}")
                key, digest = rest.get(SOURCE_KEY, key), rest.get(SOURCE_DIGEST, digest)
            if isinstance(key, str):
                yield Source(id, key, digest if isinstance(digest, str) else None)
