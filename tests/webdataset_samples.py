"""Samples of WebDataset shards, read by tarfile and NumPy, beside the episodes of their store."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

import episodelake as el
from episodelake.store.dynamic.values import load_json
from episodelake.testing.format_compare import plain
from episodelake.testing.values import same


def sample_differences(store: el.EpisodeStore, folder: Path) -> list[Any]:
    """Return what samples of episodes have otherwise than the store, by path within an episode.

    Keys that come and go within an episode are columns of their own, and are left out.
    """
    found: dict[str, dict[Any, Any]] = {}
    for file in sorted(folder.glob("*.tar")):
        with tarfile.open(file) as shard:
            for member in shard:
                key, name, suffix = re.fullmatch(r"(\d+)\.(.*?)\.?(npy|json)", member.name).groups()  # type: ignore[union-attr]
                content = shard.extractfile(member).read()  # type: ignore[union-attr]
                value = np.load(io.BytesIO(content)) if suffix == "npy" else load_json(content.decode(), name)
                found.setdefault(key, {})[_path(name)] = value
    assert len(found) == len(store)
    return [
        (episode.id, path, value, parts.get(path))
        for parts, episode in zip(found.values(), store, strict=True)
        for path, value in _sample(episode, parts.pop(("",)), parts)
        if not same(value, parts.get(path)) and plain(value) != plain(parts.get(path))
        if not path[-1].endswith("dict-changing")
    ]


def _sample(episode: el.Episode, facts: dict[str, Any], parts: dict[Any, Any]) -> Any:
    """Yield what the sample of an episode must have; adds the columns of its facts to the parts."""
    parts.update((_path(name), values) for name, values in facts.pop("steps", {}).items())
    for name, value in facts.items():
        if name == "metadata":  # of runs that have a name
            named = {"run", "run_metadata"} - {*episode.metadata}
            value = {key: part for key, part in value.items() if key not in named}
        parts["fact", name] = value
        yield ("fact", name), getattr(episode, name)
    for side in ("observation", "action"):
        yield from _flat(getattr(episode, f"{side}s"), (side,))
    yield ("reward",), episode.rewards
    yield ("terminated",), episode.terminations
    yield ("truncated",), episode.truncations
    yield from _flat({"info": episode.info_arrays, "policy": episode.policy, **episode.extra})


def _path(name: str) -> tuple[str, ...]:
    return tuple("" if part == "%" else unquote(part).strip("<>") for part in name.split("."))


def _flat(values: Any, path: tuple[str, ...] = ()) -> Any:
    if isinstance(values, dict | tuple):
        for key, part in values.items() if isinstance(values, dict) else enumerate(values):
            yield from _flat(part, (*path, str(key)))
    else:
        yield path, values
