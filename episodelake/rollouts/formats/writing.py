"""Exports of rollouts: the rollouts of an export, and files of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CorruptStoreError, DatasetError
from ...plugin import Export, Holds, load_json
from ..messages import COLUMNS
from ..rollout import Rollout
from ..tokens import TOKEN_COLUMNS

#: Metadata that an import gives each episode.
_OF_IMPORTS = ("source_key", "source_digest")


def holds(*lost: str) -> Holds:
    """Return the declaration of a format of rollouts.

    Args:
        lost: own columns of messages without a place; `rollouts_of` counts them.
    """
    return Holds(
        spaces="whole",
        metadata=lambda path, value: True,
        own=lambda path, value: path[0] not in lost,
        last_observation="kept",
        ends={"cut": "terminated", "interrupted": "terminated"},
    )


def rollouts_of(export: Export) -> Iterator[tuple[Rollout, dict[str, Any]]]:
    """Yield the rollouts with their metadata, without those of an import.

    Raises:
        DatasetError: the store has other episodes.
    """
    manifest = export.context.snapshot.manifest
    if manifest.rollouts is None:
        raise DatasetError(
            "The format holds rollouts of language agents, and the episodes of this store are none. Choose "
            "another format; el.formats() lists them."
        )
    known = (*COLUMNS, *TOKEN_COLUMNS)
    for episode in export.episodes():
        for name, values in episode.extra.items():
            count = sum(value is not None for value in values)
            if name not in known or not export.holds.own((name,), values):
                export.losses.add(f"{name} of messages", count)
        metadata = {str(name): value for name, value in export.metadata(episode).items()}
        for name in _OF_IMPORTS:
            metadata.pop(name, None)
        yield Rollout(episode), metadata


def taken_json(metadata: dict[str, Any], name: str) -> dict[str, Any]:
    """Take the JSON that an import has kept in metadata; an empty object if there is none.

    What somebody else has under this name stays.
    """
    text = metadata.get(name)
    try:
        value = load_json(text, f"The metadata {name}") if isinstance(text, str) else None
    except CorruptStoreError:  # a text of other use
        value = None
    if not isinstance(value, dict):
        return {}
    del metadata[name]
    return value


def write_json_lines(target: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write a file of JSON lines."""
    with target.open("wb") as file:
        for line in lines:
            file.write(json_bytes(line) + b"\n")


def json_bytes(value: Any) -> bytes:
    """Return JSON in UTF-8; with escapes where a text has no UTF-8."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def without(metadata: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the metadata that have no place of their own."""
    return {name: value for name, value in metadata.items() if name not in names}
