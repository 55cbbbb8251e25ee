"""The files of a TFDS dataset: records in TFRecord files of limited size, and their features as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from ....store.errors import DatasetError
from ....store.tfrecord import write_record
from ...episode import Episode
from ...pictures.writing import image_bytes
from ..step_arrays import is_picture

#: TensorFlow parses no larger message.
_LARGEST = (1 << 31) - 1
_CLASSES = "tensorflow_datasets.core.features."
#: Dtypes of which an `Example` holds single numbers as they are.
_PLAIN = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8", "uint16"})


class Features:
    """The features that every record has in the same form.

    Args:
        pictures: store frames as PNG.

    Attributes:
        forms: the features by name, as `features.json` has them.
    """

    def __init__(self, pictures: bool) -> None:
        self.forms: dict[str, dict[str, Any]] = {}
        self._pictures = pictures
        self._seen: Counter[str] = Counter()
        self._records = 0

    def take(self, found: Mapping[str, Any]) -> dict[str, np.ndarray | list[bytes]]:
        """Return what an `Example` holds of a record's features.

        Args:
            found: arrays with a row for each step, or as many texts; None for a column without a form.
        """
        forms = {name: _form(values, self._pictures) for name, values in found.items() if values is not None}
        self._seen.update(list(found))
        if not self._records:
            # A feature holds a value or features.
            outer = {name[:end] for name in forms for end, each in enumerate(name) if each == "/"}
            self.forms = {name: form for name, form in forms.items() if name not in outer}
        else:
            self.forms = {name: form for name, form in self.forms.items() if forms.get(name) == form}
        self._records += 1
        return {name: _content(found[name], form) for name, form in self.forms.items()}

    def lost(self) -> dict[str, int]:
        """Return the names of the other features, and how many records have them."""
        return {name: count for name, count in self._seen.items() if name not in self.forms}


def _form(values: Any, pictures: bool) -> dict[str, Any]:
    if isinstance(values, list):
        return {"pythonClassName": f"{_CLASSES}text_feature.Text", "text": {}}
    return _array_form(values.dtype.name, values.shape[1:], pictures and is_picture(values))


@cache
def _array_form(name: str, inner: tuple[int, ...], picture: bool) -> dict[str, Any]:
    shape = {"dimensions": [str(size) for size in inner]} if inner else {}
    if picture:
        image = {"dtype": "uint8", "encodingFormat": "png", "shape": shape}
        return {"pythonClassName": f"{_CLASSES}image_feature.Image", "image": image}
    plain = name == "uint32" or (name == "float32" and 0 not in inner) or (name in _PLAIN and not inner)
    tensor = {"dtype": name, "shape": shape, "encoding": "none" if plain else "bytes"}
    return {"pythonClassName": f"{_CLASSES}tensor_feature.Tensor", "tensor": tensor}


def _content(values: Any, form: Mapping[str, Any]) -> np.ndarray | list[bytes]:
    if isinstance(values, list):
        return [text.encode() for text in values]
    if "image" in form:
        return image_bytes(values)
    if form["tensor"]["encoding"] == "none":
        return values
    size = values[:1].nbytes
    if not size:
        return [b""] * len(values)
    whole = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return whole.reshape(-1).view(np.dtype((np.void, size)))


def write_features(file: Path, steps: Features, episodes: Features) -> None:
    """Write `features.json`."""
    sequence = {"feature": _nested(steps.forms), "length": "-1"}
    both = {
        "steps": {"pythonClassName": f"{_CLASSES}dataset_feature.Dataset", "sequence": sequence},
        "episode_metadata": _nested(episodes.forms),
    }
    write_json(file, _dict_feature(both))


def _nested(forms: Mapping[str, Any]) -> dict[str, Any]:
    """Return features by path as features in each other."""
    parts: dict[str, dict[str, Any]] = {}
    found: dict[str, Any] = {}
    for name, form in forms.items():
        first, _, rest = name.partition("/")
        if rest:
            parts.setdefault(first, {})[rest] = form
        else:
            found[first] = form
    return _dict_feature(found | {name: _nested(inner) for name, inner in parts.items()})


def _dict_feature(features: Mapping[str, Any]) -> dict[str, Any]:
    name = f"{_CLASSES}features_dict.FeaturesDict"
    return {"pythonClassName": name, "featuresDict": {"features": dict(features)}}


def write_json(file: Path, content: Any) -> None:
    """Write a JSON file."""
    file.write_text(json.dumps(content, indent=2))


class Shards:
    """The TFRecord files of a split.

    Args:
        target: the folder.
        prefix: of the names of files.
        limit: after how many bytes a file is followed by another.
    """

    def __init__(self, target: Path, prefix: str, limit: int) -> None:
        self._target = target
        self._prefix = prefix
        self._limit = limit
        self._file: IO[bytes] | None = None
        self._lengths: list[int] = []
        self._total = 0

    def append(self, record: bytes, episode: Episode) -> None:
        """Append the record of an episode.

        Raises:
            DatasetError: it is larger than TensorFlow reads.
        """
        if len(record) > _LARGEST:
            raise DatasetError(
                f"The episode {episode.id} takes {len(record):,} bytes; a record has at most {_LARGEST:,}."
            )
        if self._file is None or (self._file.tell() and self._file.tell() + len(record) > self._limit):
            self._close()
            self._file = self._place(len(self._lengths)).open("wb")
            self._lengths.append(0)
        write_record(self._file, record)
        self._lengths[-1] += 1
        self._total += len(record)

    def split(self) -> dict[str, Any]:
        """Give the files their names, and return the split for `dataset_info.json`."""
        count = len(self._lengths)
        for index in range(count):
            self._place(index).rename(self._target / f"{self._prefix}-{index:05d}-of-{count:05d}")
        return {
            "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            "name": "train",
            "numBytes": str(self._total),
            "shardLengths": [str(length) for length in self._lengths],
        }

    def _place(self, index: int) -> Path:
        return self._target / f"{self._prefix}-{index:05d}"

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
