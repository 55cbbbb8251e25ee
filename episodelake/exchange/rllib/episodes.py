"""RLlib's `item` columns: states of `SingleAgentEpisode`s, packed by msgpack and msgpack-numpy.

Chunks of one episode have its id and begin at `t_started`; what they repeat of the chunk before, their
lookback, is left out. `is_terminated` and `is_truncated` of the last chunk hold; with neither set the episode
is "cut". Arrays of objects are pickles in this encoding, so they are read only with `trust=True`.
"""

from __future__ import annotations

import base64
import io
import pickle
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces

from ...errors import DatasetError
from ...plugin import (
    ForeignDataset,
    ForeignEpisode,
    ImportOptions,
    Part,
    check_unpickled,
    reading,
    require,
    slice_batch,
)
from ...writers.importing.boundary import check_groups
from ...writers.importing.hdf5 import as_flags
from .blocks import EXTRA, Source, parquet_file

_ITEM = "item"
#: What a state says of the agent whose episode it is.
_IDS = ("agent_id", "module_id", "multi_agent_episode_id")


@dataclass(frozen=True)
class _Chunk:
    """Where a state is, and the steps that it has."""

    path: Path
    group: int
    row: int
    start: int
    stop: int


class EpisodesDataset(ForeignDataset):
    """Episodes from states.

    Raises:
        DatasetError: a state cannot be read.
        MissingPackageError: msgpack is not installed.
    """

    def __init__(self, path: Path, source: Source, options: ImportOptions) -> None:
        super().__init__()
        self._msgpack = require("msgpack", "Reading episodes of RLlib", EXTRA)
        self._source = source
        self._chunks: dict[str, dict[int, _Chunk]] = {}
        self._cached: tuple[tuple[Path, int], list[bytes]] | None = None
        first: dict[str, Any] | None = None
        for each, state in self._states():
            first = first or state
            chunks = self._chunks.setdefault(str(state["id_"]), {})
            known = chunks.get(each.start)
            self.losses.add("chunks of episodes that the source repeats", int(known is not None))
            if known is None or known.stop < each.stop:
                chunks[each.start] = each
        if first is None:
            raise DatasetError(f"{path} has no episodes.")
        self.count = len(self._chunks)
        self.observation_space = options.observation_space or self._space(first, "observation", path)
        self.action_space = options.action_space or self._space(first, "action", path)
        self.mapping = {
            **{name: f"{name}s" for name in ("observation", "action", "reward", "info")},
            **{name: f"is_{name}" for name in ("terminated", "truncated")},
            **{
                f"policy.{name}": f"extra_model_outputs.{name}" for name in first["extra_model_outputs"] or {}
            },
        }

    def parts(self) -> Iterator[Part]:
        """Yield each episode."""
        for key in self._chunks:
            yield Part((key,), partial(self._load, key))

    def _load(self, key: str) -> ForeignEpisode:
        try:
            return self._episode(key)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, DatasetError):
                raise
            path = next(iter(self._chunks[key].values())).path
            raise DatasetError(
                f"Episode {key} of {path} is damaged: {type(error).__name__}: {error}"
            ) from error

    def _episode(self, key: str) -> ForeignEpisode:
        chunks = sorted(self._chunks[key].values(), key=lambda chunk: chunk.start)
        if chunks[0].start:
            self.losses.add("first steps of episodes, whose chunks the source lacks", chunks[0].start)
        states = []
        for chunk in chunks:
            if states and chunk.start != states[-1]["t"]:
                raise DatasetError(
                    f"Episode {key}: {chunk.path} goes on at t={chunk.start}, but the chunk before ends at "
                    f"t={states[-1]['t']}."
                )
            states.append(self._state(chunk.path, chunk.group, chunk.row))
        last = states[-1]
        policy = {
            name: _joined([_values(state["extra_model_outputs"][name]) for state in states])
            for name in last["extra_model_outputs"] or {}
        }
        # A chunk begins with the observation and info with which the one before it ends.
        observations, actions, rewards = (
            _joined([_values(state[name], space) for state in states], repeated)
            for name, space, repeated in (
                ("observations", self.observation_space, 1),
                ("actions", self.action_space, 0),
                ("rewards", None, 0),
            )
        )
        return ForeignEpisode(
            observations,
            actions,
            rewards,
            _flag(last, "is_terminated"),
            _flag(last, "is_truncated"),
            infos=_infos(_joined([list(_values(state["infos"])) for state in states], 1)),
            policy=policy or None,
            metadata={
                **{name: last[name] for name in _IDS if last.get(name) is not None},
                **(last.get("custom_data") or {}),
            },
        )

    def _states(self) -> Iterator[tuple[_Chunk, dict[str, Any]]]:
        for path in self._source.files:
            file = parquet_file(path)
            for group in range(file.num_row_groups):
                for row in range(file.metadata.row_group(group).num_rows):
                    state = self._state(path, group, row, whole=not self._chunks)
                    yield _Chunk(path, group, row, int(state["t_started"]), int(state["t"])), state

    def _state(self, path: Path, group: int, row: int, *, whole: bool = True) -> dict[str, Any]:
        """Return the state of a chunk; unless it is `whole`, arrays stay packed, which is faster."""
        if self._cached is None or self._cached[0] != (path, group):
            file = parquet_file(path)
            check_groups(f"{path}, row group {group}", file.metadata, [group])
            items = file.read_row_group(group, [_ITEM]).column(_ITEM).to_pylist()
            self._cached = (path, group), items
        place = f"{path}, row {row}"
        decode = partial(_decoded, place=place)
        with reading(place, "has no state of an episode"):
            # Most maps are empty infos.
            hook = (lambda packed: packed and decode(packed)) if whole else None
            state = self._msgpack.unpackb(self._cached[1][row], object_hook=hook, strict_map_key=False)
            facts = {name: state[name] for name in ("id_", "t_started", "t")}
            return {**state, **{k: decode(v) if isinstance(v, dict) else v for k, v in facts.items()}}

    def _space(self, state: Mapping[str, Any], name: str, path: Path) -> Space:
        stated = state[f"_{name}_space"] or state[f"{name}s"]["space"]
        if stated is None:
            raise DatasetError(f"{path} states no {name} space. Pass {name}_space=.")
        try:
            return _SPACES[stated["space"]](stated)
        except (KeyError, ValueError, TypeError) as error:
            raise DatasetError(f"{path} has the {name} space {stated!r:.200}. Pass {name}_space=.") from error


def _decoded(packed: dict[Any, Any], place: str) -> Any:
    """Return the array, number or complex number that msgpack-numpy stored as a map."""
    if b"nd" in packed:
        if packed.get(b"kind") == b"O":
            check_unpickled(place)
            return pickle.loads(packed[b"data"])
        if packed.get(b"kind") == b"V":
            raise ValueError("it has an array of records")
        # Not np.ndarray, which takes bytes for pointers to objects if the dtype says so.
        values = np.frombuffer(packed[b"data"], np.dtype(packed[b"type"]))
        return values.reshape(packed[b"shape"]) if packed[b"nd"] else values[0]
    return complex(packed[b"data"]) if b"complex" in packed else packed


def _flag(state: Mapping[str, Any], name: str) -> bool:
    return bool(as_flags(np.array([state[name]]), name)[0])


def _values(buffer: Mapping[str, Any], space: Space | None = None) -> Any:
    """Return what a buffer has after its lookback."""
    if buffer["finalized"]:
        return slice_batch(_with_tuples(buffer["data"], space), buffer["lookback"], sys.maxsize)
    values = buffer["data"][buffer["lookback"] :]
    if not isinstance(space, spaces.Tuple | spaces.Dict):
        return values
    return [_with_tuples(value, space) for value in values]


def _with_tuples(value: Any, space: Space | None) -> Any:
    """Return a value or a stack of a space with the tuples that msgpack stored as lists."""
    if isinstance(space, spaces.Tuple):
        return tuple(_with_tuples(part, own) for part, own in zip(value, space.spaces, strict=True))
    if isinstance(space, spaces.Dict):
        return {key: _with_tuples(value[key], own) for key, own in space.spaces.items()}
    return value


def _joined(parts: list[Any], repeated: int = 0) -> Any:
    """Join the values of chunks; each repeats some of the chunk before it."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], tuple):
        return tuple(_joined(list(each), repeated) for each in zip(*parts, strict=True))
    if isinstance(parts[0], Mapping):
        return {key: _joined([part[key] for part in parts], repeated) for key in parts[0]}
    kept = [part if not index else part[repeated:] for index, part in enumerate(parts)]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(kept)
    return [value for part in kept for value in part]


def _infos(infos: list[Any]) -> list[Any] | None:
    return infos if any(infos) else None


def _array(text: str) -> np.ndarray:
    return np.load(io.BytesIO(zlib.decompress(base64.b64decode(text))), allow_pickle=False)


def _box(stated: Mapping[str, Any]) -> Space:
    return spaces.Box(
        _array(stated["low"]), _array(stated["high"]), tuple(stated["shape"]), np.dtype(stated["dtype"])
    )


def _text(stated: Mapping[str, Any]) -> Space:
    return spaces.Text(stated["max_length"], min_length=stated["min_length"], charset=stated["charset"])


def _part(stated: Mapping[str, Any]) -> Space:
    return _SPACES[stated["space"]](stated)


#: RLlib's dicts of spaces.
_SPACES: dict[str, Callable[[Mapping[str, Any]], gymnasium.Space]] = {
    "box": _box,
    "discrete": lambda given: spaces.Discrete(given["n"], start=given.get("start", 0)),
    "multi-binary": lambda given: spaces.MultiBinary(given["n"]),
    "multi-discrete": lambda given: spaces.MultiDiscrete(_array(given["nvec"]), np.dtype(given["dtype"])),
    "tuple": lambda given: spaces.Tuple([_part(each) for each in given["spaces"]]),
    "dict": lambda given: spaces.Dict({key: _part(each) for key, each in given["spaces"].items()}),
    "text": _text,
}
