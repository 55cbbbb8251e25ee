"""Minari 0.5 datasets: a folder with `metadata.json` and HDF5, Arrow or Parquet data, or a `MinariDataset`.

The name of an installed dataset, such as `D4RL/pen/human-v2`, stands for its folder. Episodes in memory, of
`collector` or of a dataset, are in `episodes.py`.

Minari stores T+1 observations and infos and both flags of every transition, so nothing is guessed: terminated
and truncated are its `terminations` and `truncations`, and an episode with neither is "cut".

Arrow and Parquet folders are read here, since Minari's reader takes the first rows of a long episode for the
whole one, and does not read nested infos. Padding is dropped by the length in the episode's metadata.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from gymnasium import Space, spaces

from ...errors import DatasetError, InvalidArgumentError
from ...plugin import (
    CardEntries,
    ForeignDataset,
    ForeignEpisode,
    Format,
    ImportOptions,
    Match,
    Part,
    check_bytes,
    plain_array,
    reading,
    require,
)
from ...plugin.files import is_file, is_folder, matching, names_in
from ...writers.importing.boundary import is_too_large
from ...writers.importing.columns import column_of, opened_image
from ...writers.importing.formats import SPACES, look_into_json
from ...writers.importing.hdf5 import claimed_bytes, leaves, member, open_hdf5, plain
from ...writers.importing.trees import is_group
from .episodes import MAPPING, Episodes, episodes_of, texts

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
    if (episodes := episodes_of(source)) is not None:
        return Match(f"it has the {type(episodes[0]).__name__} of {len(episodes):,} episodes of Minari")
    folder = _folder(source)
    if folder is None:
        return Match("it is neither a folder nor a MinariDataset", 2, related=False)
    file = folder / _METADATA
    if not is_file(file):
        return Match(f"{file} is missing", 1)
    return look_into_json(file, "data_format")


def _open(source: Any, options: ImportOptions) -> ForeignDataset:
    """Open a dataset, or episodes."""
    if (episodes := episodes_of(source)) is not None:
        return Episodes(episodes, options)
    for name in SPACES:
        if getattr(options, name) is not None:
            raise InvalidArgumentError(
                f"{name} is no option of an import of a dataset of Minari, which states its spaces. Leave it "
                "out: only episodes in memory take it."
            )
    require("minari", "Importing from Minari", "'episodelake[minari]'")
    from minari.dataset.minari_storage import MinariStorage

    if _is_dataset(source):
        return _Dataset(source.storage, [int(index) for index in source.episode_indices])
    match = _detect(source)
    if match.lacks:
        raise DatasetError(f"{source} is no Minari dataset: {match.reason}. Give its folder `data`.")
    folder = _folder(source)
    assert folder is not None
    for file in matching(folder, "*.hdf5"):
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
        #: HDF5: the open file, for the sizes of its episodes.
        self._file: Any = None
        #: Whether all its episodes together are too large for memory.
        self._may_exceed = False
        metadata = storage.metadata
        self.observation_space = storage.observation_space
        self.action_space = storage.action_space
        self.count = len(indices)
        self.card = _card(metadata)
        self.mapping = dict(MAPPING)
        self._jpeg = storage.jpeg_encoding and any(
            map(_has_images, (self.observation_space, self.action_space))
        )

    def _read(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the columns of an episode, and its metadata."""
        index = self._indices[number]
        if self._storage.FORMAT in ("arrow", "parquet"):
            said = dict(next(iter(self._storage.get_episode_metadata([index]))))
            return _read_arrow(self._storage, index, int(said["total_steps"])), said
        self._check_size(index)
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

    def _check_size(self, index: int) -> None:
        """Refuse an episode that is too large, before Minari reads it as a whole."""
        if self._file is None:
            for path in matching(Path(self._storage.data_path), "*.hdf5"):
                self._file = open_hdf5(path)
                self._may_exceed = is_too_large(claimed_bytes(path))
        file = self._file if self._may_exceed else None
        group: Any = None if file is None else member(file, f"episode_{index}")
        if is_group(group):  # Minari names one that is missing
            size = sum(array.nbytes for array in leaves(group).values())
            check_bytes(f"Episode {index} of {self._storage.data_path}", size)

    def close(self) -> None:
        self._ahead, self._next = (), -1
        if self._file is not None:
            self._file.close()
            self._file = None

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
            infos=texts(arrays["infos"] or {}) or None,
            seed=None if said.get("seed") is None else int(said["seed"]),
            options=plain(said.get("options")) or None,
            metadata={key: plain(value) for key, value in said.items() if key not in _NOT_METADATA},
        )


def _read_arrow(storage: Any, index: int, length: int) -> dict[str, Any]:
    folder = f"{storage.data_path}/{index}"
    files = [
        f"{folder}/{name}" for name in names_in(Path(folder)) if not name.startswith(("_", ".", _METADATA))
    ]
    batches, size = [], 0
    for batch in chain.from_iterable(map(_BATCHES[storage.FORMAT], files)):
        batches.append(batch)
        check_bytes(folder, size := size + batch.nbytes)
    rows = pa.Table.from_batches(batches) if batches else pa.table({})
    if rows.num_rows != length + 1:
        raise DatasetError(f"{folder} has {rows.num_rows} rows; expected {length + 1} for {length} steps")
    columns = {name: plain_array(column_of(rows, name)) for name in rows.column_names}
    return {
        "observations": _decoded(storage.observation_space, columns["observations"], storage.jpeg_encoding),
        "actions": _decoded(storage.action_space, columns["actions"].slice(0, length), storage.jpeg_encoding),
        **{
            name: columns[name].slice(0, length).to_numpy(zero_copy_only=False)
            for name in ("rewards", "terminations", "truncations")
        },
        "infos": _infos(columns["infos"]) if "infos" in columns else None,
    }


def _arrow_batches(file: str) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_file(file) as reader:
        yield from map(reader.get_batch, range(reader.num_record_batches))


def _parquet_batches(file: str) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(file) as reader:
        yield from reader.iter_batches()


_BATCHES = {"arrow": _arrow_batches, "parquet": _parquet_batches}


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


def _is_dataset(source: Any) -> bool:
    return type(source).__module__.startswith("minari.") and hasattr(source, "storage")


def _folder(source: Any) -> Path | None:
    """Return the folder with the data: `source`, or its folder `data`."""
    if not isinstance(source, str | Path):
        return None
    folder = Path(source)
    if is_file(folder / "data" / _METADATA):
        return folder / "data"
    return folder if is_folder(folder) else None


def installed(name: str) -> Path | None:
    """Return the folder of an installed dataset by its name; None if there is none."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or parts[0] == "/":
        return None
    root = os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets"
    folder = Path(root, *parts)
    return folder.absolute() if is_file(folder / "data" / _METADATA) else None


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
    return {name: card[name] for name in sorted(card, key=lambda name: (name not in CardEntries.KEYS, name))}


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
    "a folder whose metadata.json names a data_format, a MinariDataset, the name of an installed one, or its "
    "episodes in memory",
    _detect,
    _open,
    named=installed,
)
