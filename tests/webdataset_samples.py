"""Samples of WebDataset shards, read by tarfile, NumPy and Pillow, beside the episodes of their store."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from gymnasium import spaces
from PIL import Image

import episodelake as el
from episodelake.store.dynamic.values import load_json
from episodelake.testing.format_compare import PeerEpisode, plain
from episodelake.testing.values import same
from peer_readers import columns_of
from strategies import stack


def samples(folder: Path) -> dict[str, dict[tuple[str, ...], Any]]:
    """The samples of all shards by key; their members by path, which readers that ignore case tell apart."""
    found: dict[str, dict[Any, Any]] = {}
    names: set[str] = set()
    for file in sorted(folder.glob("*.tar")):
        with tarfile.open(file) as shard:
            for member in shard:
                assert (member.mtime, member.uid, member.uname, member.mode) == (0, 0, "", 0o644)
                key, name, suffix = re.fullmatch(r"(.+?)\.(.*?)\.?(npy|json|png|txt)", member.name).groups()  # type: ignore[union-attr]
                content = shard.extractfile(member).read()  # type: ignore[union-attr]
                assert member.name.lower() not in names
                names.add(member.name.lower())
                found.setdefault(key, {})[_path(name)] = _decoded(content, suffix, name)
    return found


def _decoded(content: bytes, suffix: str, name: str) -> Any:
    match suffix:
        case "npy":
            return np.load(io.BytesIO(content))
        case "png":
            return np.asarray(Image.open(io.BytesIO(content)))
    return content.decode() if suffix == "txt" else load_json(content.decode(), name)


def transitions(folder: Path, store: el.EpisodeStore) -> Iterator[PeerEpisode]:
    """The episodes of samples of transitions."""
    for _, group in groupby(samples(folder).items(), lambda item: item[0].partition("-")[0]):
        own = [parts for _, parts in group]
        facts = [parts[("",)] for parts in own]
        assert [each["t"] for each in facts] == list(range(len(own)))
        seen = [_value(store.observation_space, parts, ("observation",)) for parts in own]
        last = _value(store.observation_space, own[-1], ("next_observation",))
        for t, parts in enumerate(own[:-1]):
            assert same(_value(store.observation_space, parts, ("next_observation",)), seen[t + 1])
            assert plain(facts[t]["next_info"]) == plain(facts[t + 1]["info"])
        yield PeerEpisode(
            observations=stack(store.observation_space, [*seen, last]),
            actions=stack(
                store.action_space, [_value(store.action_space, parts, ("action",)) for parts in own]
            ),
            rewards=np.array([parts[("reward",)] for parts in own]),
            flags=(facts[-1]["terminated"], facts[-1]["truncated"]),
            infos=[*(each["info"] for each in facts), facts[-1]["next_info"]],
            policy=columns_of([each["policy"] for each in facts]),
            extra=columns_of([each["extra"] for each in facts]),
            seed=facts[0]["seed"],
            options=facts[0]["options"],
            metadata=facts[0]["metadata"],
            ended=facts[0]["end_reason"],
        )


def _value(space: spaces.Space, parts: dict[tuple[str, ...], Any], path: tuple[str, ...]) -> Any:
    """The value of a space in a sample."""
    if isinstance(space, spaces.Dict):
        return {key: _value(part, parts, (*path, key)) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_value(part, parts, (*path, str(i))) for i, part in enumerate(space.spaces))
    value = parts[path]
    return value if isinstance(space, spaces.Text) else value.reshape(space.shape)


def sample_differences(store: el.EpisodeStore, folder: Path) -> list[Any]:
    """Return what samples of episodes have otherwise than the store, by path within an episode.

    Keys that come and go within an episode are columns of their own, and are left out.
    """
    found = samples(folder)
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
