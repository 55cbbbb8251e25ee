"""RLDS datasets: the folder of a TFDS dataset with TFRecord files, written without TensorFlow.

T transitions are T+1 steps: the last one (`is_last`) has the last observation, and zeros for action and
reward (https://github.com/google-research/rlds#dataset-format). `is_terminal` there means terminated; any
other end is a last step without it. An episode that lacks its last observation ends with a transition.
Numbers that an `Example` would round are stored as bytes (`encoding="bytes"`), so each reads as recorded.

Our import also reads spaces and the card from `episodelake.json`, and the seed, options and metadata of an
episode from the text `episode_metadata/episodelake`. TFDS takes no notice of the file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ... import Episode
from ...errors import DatasetError, InvalidArgumentError
from ...plugin import (
    Export,
    Holds,
    Option,
    dump_json,
    export_format,
    space_to_json,
)
from ...plugin.columns import EXTRA, INFO, POLICY, escape
from ...readers.exporting.images import image_bytes
from ...readers.exporting.shards import ShardWriter, is_image, write_json
from ...readers.exporting.step_arrays import StepColumns, check_space, leaves, text_keys
from .tfrecord import write_example, write_record

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

    def take(self, columns: Mapping[str, Any]) -> dict[str, np.ndarray | list[bytes]]:
        """Return what an `Example` holds of a record's features.

        Args:
            columns: arrays with a row for each step, or as many texts; None for a column without a form.
        """
        forms = {
            name: _form(values, self._pictures) for name, values in columns.items() if values is not None
        }
        self._seen.update(list(columns))
        if not self._records:
            # A feature holds a value or features.
            outer = {name[:end] for name in forms for end, each in enumerate(name) if each == "/"}
            self.forms = {name: form for name, form in forms.items() if name not in outer}
        else:
            self.forms = {name: form for name, form in self.forms.items() if forms.get(name) == form}
        self._records += 1
        return {name: _content(columns[name], form) for name, form in self.forms.items()}

    def lost(self) -> dict[str, int]:
        """Return the names of the other features, and how many records have them."""
        return {name: count for name, count in self._seen.items() if name not in self.forms}


def _form(values: Any, pictures: bool) -> dict[str, Any]:
    if isinstance(values, list):
        return {"pythonClassName": f"{_CLASSES}text_feature.Text", "text": {}}
    return _array_form(
        values.dtype.name, values.shape[1:], pictures and is_image(values.dtype, values.shape[1:])
    )


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
    features: dict[str, Any] = {}
    for name, form in forms.items():
        first, _, rest = name.partition("/")
        if rest:
            parts.setdefault(first, {})[rest] = form
        else:
            features[first] = form
    return _dict_feature(features | {name: _nested(inner) for name, inner in parts.items()})


def _dict_feature(features: Mapping[str, Any]) -> dict[str, Any]:
    name = f"{_CLASSES}features_dict.FeaturesDict"
    return {"pythonClassName": name, "featuresDict": {"features": dict(features)}}


def append_record(shards: ShardWriter, record: bytes, episode: Episode) -> None:
    """Append the record of an episode.

    Raises:
        DatasetError: it is larger than TensorFlow reads.
    """
    if len(record) > _LARGEST:
        raise DatasetError(
            f"The episode {episode.id} takes {len(record):,} bytes; a record has at most {_LARGEST:,}."
        )
    write_record(shards.file_for(len(record)), record)


def split_info(shards: ShardWriter, prefix: str) -> dict[str, Any]:
    """Give the files of a split their names, and return the split for `dataset_info.json`."""
    shards.rename(lambda number, count: f"{prefix}-{number:05d}-of-{count:05d}")
    return {
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "name": "train",
        "numBytes": str(shards.total),
        "shardLengths": [str(count) for count in shards.counts],
    }


_VERSION = re.compile(r"\d+\.\d+\.\d+")
_FLAGS = ("is_first", "is_last", "is_terminal")
_SCALARS = {bool: np.bool_, int: np.int64, float: np.float64}


@export_format(
    "rlds",
    extra="'episodelake[explore]'",
    folder=True,
    holds=Holds.all_but(
        last_observation="padded",
        ends={"cut": "truncated", "interrupted": "truncated"},
        both="terminated",
    ),
    images=Option.choice("png, which is lossless, the default; or raw, which needs no Pillow", "png", "raw"),
    name=Option("of the dataset; by default that of the folder, or NAME for a folder NAME/1.0.0"),
    version=Option("that of the folder by default, or 1.0.0"),
    shard_bytes=Option.count(
        "the size of a file, which only a single larger episode exceeds; 256 MiB by default", 256 << 20
    ),
)
def write_rlds(export: Export, target: Path) -> None:
    """Write the folder of a version of the dataset."""
    name, version = _named(export)
    manifest = export.context.snapshot.manifest
    check_space(manifest.observation_space, "observation", "RLDS")
    check_space(manifest.action_space, "action", "RLDS")
    columns = StepColumns(export)
    steps, episodes = Features(export.options["images"] == "png"), Features(False)
    target.mkdir(parents=True)
    prefix = f"{name}-train.tfrecord"
    with ShardWriter(
        lambda number: target / f"{prefix}-{number:05d}",
        lambda path: path.open("wb"),
        export.options["shard_bytes"],
    ) as shards:
        for episode in export.episodes():
            append_record(shards, _record(episode, columns, export, steps, episodes), episode)
    for what, count in steps.lost().items():
        column = what.replace("/", ".")
        own = "" if column.startswith((INFO.prefix, POLICY.prefix)) else "the column "
        export.losses.add(
            f"{own}{column}, which is not a number, image or text of one form at every step", count
        )
    write_features(target / "features.json", steps, episodes)
    card = export.card
    stated = {key: card[key] for key in ("description", "citation") if isinstance(card.get(key), str)}
    info = {"name": name, "version": version, "fileFormat": "tfrecord", "moduleName": "episodelake"}
    write_json(target / "dataset_info.json", {**info, **stated, "splits": [split_info(shards, prefix)]})
    ours = {
        "observation_space": space_to_json(manifest.observation_space),
        "action_space": space_to_json(manifest.action_space),
        "reward_shape": list(manifest.reward_shape),
        "card": card,
    }
    write_json(target / "episodelake.json", ours)


def _named(export: Export) -> tuple[str, str]:
    """Return the name and version of the dataset."""
    folder = export.target or Path("episodes")
    versioned = _VERSION.fullmatch(folder.name)
    version = export.options["version"] or (folder.name if versioned else "1.0.0")
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise InvalidArgumentError(f"version={version!r}: expected three numbers, such as '1.0.0'.")
    name = export.options["name"]
    if name is None:
        name = re.sub(r"\W", "_", (folder.parent if versioned else folder).name, flags=re.ASCII)
        name = name if name[:1].isalpha() else f"dataset_{name}"
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
        raise InvalidArgumentError(f"name={name!r}: expected a letter, then letters, digits and underscores.")
    return name, version


def _record(
    episode: Episode, columns: StepColumns, export: Export, steps: Features, episodes: Features
) -> bytes:
    """Return the record of an episode."""
    features = dict(_steps(episode, terminated=episode.end_reason == "terminated"))
    taken = {name.partition("/")[0] for name in features} | {"info", "policy"}
    for group, path, values in columns.of(episode):
        if group is EXTRA and path[0] in taken:
            export.losses.add(f"the column {path[0]}, whose name RLDS has for something else")
            continue
        if group is POLICY and values is not None and len(values) > episode.length:
            export.losses.add(f"{POLICY.column(path)} at the last observation")
            values = values[: episode.length]
        root = (group.prefix[:-1],) if group.prefix else ()
        features[_name(*root, *text_keys(path))] = _padded(values, episode._observation_count)
    content = {f"steps/{name}": values for name, values in steps.take(features).items()}
    facts = episodes.take(dict(_facts(episode, export.metadata(episode))))
    return write_example(content | {f"episode_metadata/{name}": values for name, values in facts.items()})


def _steps(episode: Episode, *, terminated: bool) -> Iterator[tuple[str, Any]]:
    """Yield the features that every RLDS dataset has."""
    rows = episode._observation_count
    for side, stacked in (("observation", episode.observations), ("action", episode.actions)):
        for path, values in leaves(stacked):
            yield _name(side, *path), _padded(values, rows)
    yield "reward", _padded(episode.rewards, rows)
    discount = np.ones(episode.length, np.float32)
    discount[-1] = not terminated
    yield "discount", _padded(discount, rows)
    place = np.arange(rows)
    for name, values in zip(_FLAGS, (place == 0, place == rows - 1, place == rows - 1), strict=True):
        yield name, values & (name != "is_terminal" or terminated)


def _padded(values: Any, rows: int) -> Any:
    """Return T values, and zero or an empty text at a last observation."""
    if values is None or len(values) == rows:
        return values
    if isinstance(values, list):
        return [*values, ""]
    return np.concatenate([values, np.zeros((1, *values.shape[1:]), values.dtype)])


def _facts(episode: Episode, metadata: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the features of an episode, each with a single value."""
    seed = episode.seed
    facts = {"seed": seed, "options": episode.options, "metadata": metadata}
    if episode._observation_count == episode.length:
        facts["last_observation"] = "missing"
    yield "episodelake", [dump_json(facts)]
    scalars: list[tuple[tuple[Any, ...], Any]] = [(("seed",), seed)]
    scalars += [each for each in leaves_of(metadata) if each[0] not in (("seed",), ("episodelake",))]
    for path, value in scalars:
        if isinstance(value, str):
            yield _name(*path), [value]
        elif type(value) in _SCALARS and (not isinstance(value, int) or abs(value) < 1 << 63):
            yield _name(*path), np.array([value], _SCALARS[type(value)])


def leaves_of(values: Mapping[Any, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the values in nested mappings whose keys are texts, with their paths."""
    for key, value in values.items():
        if isinstance(key, str) and isinstance(value, Mapping):
            yield from leaves_of(value, (*path, key))
        elif isinstance(key, str):
            yield (*path, key), value


def _name(*path: str) -> str:
    """Return the name of a feature."""
    return "/".join(escape(key).replace("/", "%2F") for key in path)
