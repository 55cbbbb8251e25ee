"""Minari 0.5 datasets: a folder with `metadata.json` and HDF5, Arrow or Parquet data, or a `MinariDataset`.

Minari stores T+1 observations and infos and both flags of every transition, so nothing is guessed: terminated
and truncated are its `terminations` and `truncations`, and an episode with neither is "cut".

Arrow and Parquet folders are read here, since Minari's reader takes the first rows of a long episode for the
whole one, and does not read nested infos. Padding is dropped by the length in the episode's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from gymnasium import Space, spaces

from ...store.card import CARD_KEYS
from ...store.common.optional_packages import require
from ...store.errors import DatasetError
from ...store.spaces.arrow import plain_array
from ...writers.importing.boundary import reading
from ...writers.importing.columns import opened_image
from ...writers.importing.formats import (
    ForeignDataset,
    ForeignEpisode,
    Format,
    ImportOptions,
    Match,
    Part,
    look_into_json,
)
from ...writers.importing.hdf5 import open_hdf5, plain

_METADATA = "metadata.json"
_CARD_NAMES = {"algorithm_name": "algorithm", "permissions": "license"}
_NOT_METADATA = frozenset({"id", "total_steps", "seed", "options"})
_NOT_CARD = frozenset(
    {"total_episodes", "total_steps", "dataset_size", "data_format", "jpeg_encoding", "observation_space"}
) | {"action_space"}


def _detect(source: Any) -> Match:
    """Look for the folder's `metadata.json`."""
    if _is_dataset(source):
        return Match("it is a MinariDataset")
    folder = _folder(source)
    if folder is None:
        return Match("it is neither a folder nor a MinariDataset", 2, related=False)
    file = folder / _METADATA
    if not file.is_file():
        return Match(f"{file} is missing", 1)
    return look_into_json(file, "data_format")


def _open(source: Any, options: ImportOptions) -> ForeignDataset:
    """Open a dataset."""
    require("minari", "Importing from Minari", "'episodelake[minari]'")
    from minari.dataset.minari_storage import MinariStorage

    if _is_dataset(source):
        return _Dataset(source.storage, [int(index) for index in source.episode_indices])
    match = _detect(source)
    if match.lacks:
        raise DatasetError(f"{source} is no Minari dataset: {match.reason}. Give its folder `data`.")
    folder = _folder(source)
    assert folder is not None
    for file in folder.glob("*.hdf5"):
        open_hdf5(file).close()
    with reading(folder, "cannot be opened by Minari"):
        storage = MinariStorage.read(folder)
    return _Dataset(storage, range(int(storage.total_episodes)))


class _Dataset(ForeignDataset):
    def __init__(self, storage: Any, indices: Sequence[int]) -> None:
        super().__init__()
        self._storage = storage
        self._indices = indices
        #: HDF5: metadata and arrays from the episode `_next` on; one open file serves neighbours.
        self._ahead: tuple[Iterator[Any], ...] = ()
        self._next = -1
        metadata = storage.metadata
        self.observation_space = storage.observation_space
        self.action_space = storage.action_space
        self.count = len(indices)
        self.card = _card(metadata)
        self.mapping = {
            "observation": "observations",
            "action": "actions",
            "reward": "rewards",
            "terminated": "terminations",
            "truncated": "truncations",
            "info": "infos",
        }
        self._jpeg = storage.jpeg_encoding and any(
            map(_has_images, (self.observation_space, self.action_space))
        )

    def _read(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the columns of an episode, and its metadata."""
        index = self._indices[number]
        if self._storage.FORMAT in ("arrow", "parquet"):
            said = dict(next(iter(self._storage.get_episode_metadata([index]))))
            return _read_arrow(self._storage, index, int(said["total_steps"])), said
        if number != self._next:
            wanted = self._indices[number:]
            readers = self._storage.get_episode_metadata, self._storage.get_episodes
            self._ahead = tuple(iter(reader(wanted)) for reader in readers)
        # An iterator that raises has ended.
        self._next = -1
        said, yielded = (next(values) for values in self._ahead)
        arrays = dict(yielded)
        # Minari keeps the dict while it reads the next episode; let it not keep the arrays.
        yielded.clear()
        self._next = number + 1
        return arrays, dict(said)

    def close(self) -> None:
        self._ahead, self._next = (), -1

    def parts(self) -> Iterator[Part]:
        for number, index in enumerate(self._indices):
            yield Part((str(index),), partial(self._load, number))

    def _load(self, number: int) -> ForeignEpisode:
        place = f"Episode {self._indices[number]} of {self._storage.data_path}"
        with reading(place):
            arrays, said = self._read(number)
            length = int(said["total_steps"])
        if len(arrays["rewards"]) != length:
            raise DatasetError(
                f"{place} has {len(arrays['rewards'])} rewards; its metadata give {length} steps."
            )
        if self._jpeg:
            self.losses.add("frames that Minari had stored as JPEG, which is lossy", length + 1)
        return ForeignEpisode(
            arrays["observations"],
            arrays["actions"],
            arrays["rewards"],
            arrays["terminations"],
            arrays["truncations"],
            infos=_texts(arrays["infos"] or {}) or None,
            seed=None if said.get("seed") is None else int(said["seed"]),
            options=plain(said.get("options")) or None,
            metadata={key: plain(value) for key, value in said.items() if key not in _NOT_METADATA},
        )


def _read_arrow(storage: Any, index: int, length: int) -> dict[str, Any]:
    folder = f"{storage.data_path}/{index}"
    files = ds.dataset(
        folder, format=storage.FORMAT, ignore_prefixes=["_", ".", _METADATA], exclude_invalid_files=False
    )
    rows = files.to_table()
    if rows.num_rows != length + 1:
        raise DatasetError(f"{folder} has {rows.num_rows} rows; expected {length + 1} for {length} steps")
    columns = {name: _joined(rows.column(name)) for name in rows.column_names}
    return {
        "observations": _decoded(storage.observation_space, columns["observations"], storage.jpeg_encoding),
        "actions": _decoded(storage.action_space, columns["actions"].slice(0, length), storage.jpeg_encoding),
        **{
            name: columns[name].slice(0, length).to_numpy(zero_copy_only=False)
            for name in ("rewards", "terminations", "truncations")
        },
        "infos": _infos(columns["infos"]) if "infos" in columns else None,
    }


def _joined(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return plain_array(pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined)


def _decoded(space: Space, values: pa.Array, jpeg: bool) -> Any:
    """Return stacked values of a space from the columns of Minari's Arrow format."""
    if isinstance(space, spaces.Dict):
        return {name: _decoded(part, _field(values, name), jpeg) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_decoded(part, _field(values, str(i)), jpeg) for i, part in enumerate(space.spaces))
    if jpeg and _is_image(space):
        return np.stack([_frame(value.as_py()) for value in values])
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return _fixed(values).reshape(-1, *space.shape)
    if isinstance(space, spaces.Discrete):
        return values.to_numpy(zero_copy_only=False)
    return values.to_pylist()


def _field(values: pa.StructArray, name: str) -> pa.Array:
    # `flatten` heeds the offset of a slice, which `field` does not.
    return values.flatten()[values.type.get_field_index(name)]


def _fixed(values: pa.Array) -> np.ndarray:
    """Return fixed-size lists as an array of shape (rows, items)."""
    return values.flatten().to_numpy(zero_copy_only=False).reshape(len(values), -1)


def _frame(data: bytes) -> np.ndarray:
    with opened_image(data, "A frame") as image:
        return np.array(image, np.uint8)


def _infos(values: pa.StructArray) -> dict[str, Any]:
    infos: dict[str, Any] = {}
    for field, column in zip(values.type, values.flatten(), strict=True):
        if pa.types.is_struct(field.type):
            infos[field.name] = _infos(column)
        elif pa.types.is_fixed_size_list(field.type):
            shape = (field.metadata or {}).get(b"shape", b"-1").split(b",")
            infos[field.name] = _fixed(column).reshape(len(column), *(int(size) for size in shape if size))
        else:
            infos[field.name] = column.to_pylist()
    return infos


def _texts(infos: Mapping[str, Any]) -> dict[str, Any]:
    """Return infos with the texts of HDF5, which Minari reads as bytes, as texts."""
    texts: dict[str, Any] = {}
    for key, values in infos.items():
        if isinstance(values, Mapping):
            texts[key] = _texts(values)
        elif isinstance(values, np.ndarray) and values.dtype.kind == "O":
            texts[key] = [value.decode() if isinstance(value, bytes) else value for value in values]
        else:
            texts[key] = values
    return texts


def _is_dataset(source: Any) -> bool:
    return type(source).__module__.startswith("minari.") and hasattr(source, "storage")


def _folder(source: Any) -> Path | None:
    """Return the folder with the data: `source`, or its folder `data`."""
    if not isinstance(source, str | Path):
        return None
    folder = Path(source)
    if (folder / "data" / _METADATA).is_file():
        return folder / "data"
    return folder if folder.is_dir() else None


def _card(metadata: Mapping[str, Any]) -> dict[str, Any]:
    card: dict[str, Any] = {}
    for key, value in metadata.items():
        if key in _NOT_CARD or value is None:
            continue
        name = _CARD_NAMES.get(key, key)
        card[name] = sorted(value) if isinstance(value, set) else plain(value)
    for name in ("env_spec", "eval_env_spec"):
        if name in card and not isinstance(card[name], str):
            card[name] = card[name].to_json() if hasattr(card[name], "to_json") else json.dumps(card[name])
    return {name: card[name] for name in sorted(card, key=lambda name: (name not in CARD_KEYS, name))}


def _has_images(space: Space) -> bool:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return any(map(_has_images, parts))
    return _is_image(space)


def _is_image(space: Space) -> bool:
    from minari.dataset.minari_storage import is_image_space

    return bool(is_image_space(space))


FORMAT = Format(
    "minari",
    "'episodelake[minari]'",
    "a folder whose metadata.json names a data_format, or a MinariDataset",
    _detect,
    _open,
    (),
)
