"""Features of a LeRobot dataset: the spaces and columns that they become, and the card."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from ...errors import DatasetError
from ...plugin import Losses
from ...plugin.columns import OBSERVATION, escape_distinct
from ...types import EncodedFrames
from ...writers.importing.columns import apart, array_space, read_json
from .files import INFO, VERSIONS
from .videos import Pixels

PICTURES = ("image", "video")
LANGUAGE = "language"
#: Codes of depth maps in videos have 12 bits. LeRobot quantizes metres by these defaults.
_DEPTH_CODES = 4095
_DEPTH_MIN, _DEPTH_MAX, _DEPTH_SHIFT = 0.01, 10.0, 3.5
_NOT_CARD = frozenset(
    {"features", "fps", "robot_type", "data_path", "video_path", "chunks_size", "data_files_size_in_mb"}
) | {
    "video_files_size_in_mb",
    *(f"total_{what}" for what in ("episodes", "frames", "tasks", "chunks", "videos")),
}
#: GR00T's columns of indices of tasks, whose texts annotate the steps.
ANNOTATION = "annotation."
_LISTS = frozenset({"info.json", "episodelake.json", "episodes", "tasks.parquet"}) | {
    *("episodes.jsonl", "episodes_stats.jsonl", "tasks.jsonl")
}
_MOST_META = 1 << 20


def read_features(folder: Path, info: Any) -> dict[str, dict[str, Any]]:
    """Return the features by name.

    Raises:
        DatasetError: the version is unknown, or a feature has no dtype or shape.
    """
    version = info.get("codebase_version") if isinstance(info, dict) else None
    if version not in VERSIONS:
        raise DatasetError(
            f"{folder / INFO}: codebase_version is {version!r}; {', '.join(VERSIONS)} can be read."
        )
    features = info.get("features")
    if not isinstance(features, dict):
        raise DatasetError(f"{folder / INFO} has no features.")
    for name, feature in features.items():
        if (
            not isinstance(feature, dict)
            or "dtype" not in feature
            or not isinstance(feature.get("shape"), list)
        ):
            raise DatasetError(f"{folder / INFO}: the feature {name} has no dtype and shape.")
    for name in ("timestamp", "frame_index", "episode_index"):
        if name not in features:
            raise DatasetError(f"{folder / INFO} has no feature {name}.")
    return features


def column_names(side: str, features: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, str]:
    """Return the features that make up observations or actions, with the names of our columns.

    Args:
        ours: what an export says of them.
    """
    if side in ours:
        return {name: ".".join((side, *path)) for name, path in ours[side]["features"].items()}
    if side in features:
        return {side: side}
    named = [name for name in features if name.startswith(f"{side}.")]
    return apart([name for name in named if features[name]["dtype"] not in ("string", LANGUAGE)])


def is_numeric(kind: str) -> bool:
    """Return whether a dtype is one of numbers or flags."""
    try:
        return np.dtype(kind).kind in "biuf"
    except TypeError:
        return False


def is_depth(feature: Mapping[str, Any]) -> bool:
    """Return whether a feature is a depth map."""
    infos = [feature.get("info") or {}, feature.get("video_info") or {}]
    return any(each.get(key) for each in infos for key in ("is_depth_map", "video.is_depth_map"))


def depth_dtype(feature: Mapping[str, Any]) -> np.dtype:
    """Return the dtype of depths: uint16 for millimetres, as LeRobot reads videos; float32 for metres."""
    unit = (feature.get("info") or {}).get("depth_unit")
    whole = unit == "mm" or (unit is None and feature["dtype"] == "video")
    return np.dtype(np.uint16 if whole else np.float32)


def pixels_of(feature: Mapping[str, Any]) -> Pixels:
    """Return what the frames of a video become."""
    shape = shape_of(feature)
    if not is_depth(feature):
        return Pixels.colors(shape)
    table = _depths(feature)
    return Pixels(shape, table.dtype, lambda frame: table[frame.to_ndarray(format="gray12le")])


def _depths(feature: Mapping[str, Any]) -> np.ndarray:
    """Return the depth of each code: millimetres, or metres where these are the unit.

    Raises:
        DatasetError: the range of the depths makes no sense.
    """
    info = feature.get("info") or {}
    stated = {name: value for name, value in info.items() if value is not None}
    low = float(stated.get("video.depth_min", _DEPTH_MIN))
    high = float(stated.get("video.depth_max", _DEPTH_MAX))
    shift = float(stated.get("video.shift", _DEPTH_SHIFT))
    logarithmic = stated.get("video.use_log", True)
    if not -math.inf < low < high < math.inf or (logarithmic and low + shift <= 0):
        raise DatasetError(
            f"{INFO}: depth from {low} to {high} with the shift {shift} is no range in metres."
        )
    shares = np.arange(_DEPTH_CODES + 1) / _DEPTH_CODES
    if logarithmic:
        first, last = math.log(low + shift), math.log(high + shift)
        depths = np.exp(first + shares * (last - first)) - shift
    else:
        depths = low + shares * (high - low)
    depths = depths.clip(low, high)
    dtype = depth_dtype(feature)
    if dtype == np.float32:
        return depths.astype(np.float32)
    return np.rint(depths * 1000).clip(0, np.iinfo(dtype).max).astype(dtype)


def shape_of(feature: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of a value; images with their channels last."""
    shape = tuple(int(size) for size in feature["shape"])
    if feature["dtype"] in PICTURES and len(shape) == 3:
        names = feature.get("names")
        first = (
            str(names[0]).startswith("channel") if isinstance(names, list) and names else shape[0] in (1, 3)
        )
        if first and not (shape[2] in (1, 3) and shape[0] not in (1, 3)):
            return (*shape[1:], shape[0])
    return shape


def kind_of(feature: Mapping[str, Any]) -> tuple[str | None, tuple[int, ...]]:
    """Return the dtype of a feature, None where it is not read, and the shape of a value."""
    kind = feature["dtype"]
    readable = kind in (*PICTURES, "string", LANGUAGE) or is_numeric(kind)
    return kind if readable else None, shape_of(feature)


def feature_space(name: str, feature: Mapping[str, Any]) -> Space:
    """Return the space of a feature; unbounded, since LeRobot states no bounds.

    Raises:
        DatasetError: it has texts.
    """
    kind, shape = feature["dtype"], shape_of(feature)
    if kind in PICTURES:
        return array_space(depth_dtype(feature) if is_depth(feature) else np.dtype(np.uint8), shape)
    if not is_numeric(kind):
        raise DatasetError(
            f"The feature {name} has the dtype {kind!r}, which no observation or action can have."
        )
    return array_space(np.dtype(kind), shape)


def dataset_card(
    folder: Path, info: Mapping[str, Any], ours: Mapping[str, Any], tasks: Mapping[int, str], losses: Losses
) -> dict[str, Any]:
    """Return the card: that of an exported store, or the facts that `meta` has of all episodes.

    Args:
        ours: what an export says of them.
        tasks: the texts of the tasks, which annotations of GR00T refer to.
        losses: counts the files of `meta` that are not read.
    """
    if "card" in ours:
        return dict(ours["card"])
    card: dict[str, Any] = {name: info[name] for name in ("fps", "robot_type") if info.get(name) is not None}
    card["lerobot"] = {name: value for name, value in info.items() if name not in _NOT_CARD}
    names = {name: feature["names"] for name, feature in info["features"].items() if feature.get("names")}
    if names:
        card["lerobot"]["names"] = names
    if any(name.startswith(ANNOTATION) for name in info["features"]):
        card["lerobot"]["tasks"] = {str(index): text for index, text in tasks.items()}
    for file in _other_files(folder):
        # Those of LeRobot, and of others, such as GR00T's `modality.json`.
        if file.suffix != ".json" or file.stem in card["lerobot"] or file.stat().st_size > _MOST_META:
            losses.add(f"meta/{file.name}, which is not read")
        else:
            card["lerobot"][file.stem] = read_json(file)
    return card


def _other_files(folder: Path) -> list[Path]:
    """Return the files of `meta` that do not list episodes or tasks."""
    return [file for file in sorted((folder / "meta").iterdir()) if file.name not in _LISTS]


def column_of(space: Space, keys: Sequence[str]) -> tuple[str, Space]:
    """Return the column of steps of a part of the observations, and its space.

    Args:
        space: of the observations.
        keys: of Dicts, and places in Tuples.

    Raises:
        KeyError: there is no such part.
    """
    column = OBSERVATION
    for key in keys:
        if isinstance(space, spaces.Dict):
            column, space = f"{column}.{escape_distinct(space.spaces)[key]}", space.spaces[key]
        elif isinstance(space, spaces.Tuple):
            column, space = f"{column}.{key}", space.spaces[int(key)]
        else:
            raise KeyError(key)
    return column, space


def frame_column(space: Space, path: str) -> str | None:
    """Return the column of steps of a part of the observations that can be video; None if it cannot.

    Args:
        space: of the observations.
        path: the part, such as `observation.front`; in a Tuple nothing can.
    """
    keys = path.split(".")[1:]
    try:
        column, part = column_of(space, keys)
    except KeyError:
        return None
    above = [column_of(space, keys[:depth])[1] for depth in range(len(keys))]
    if not isinstance(part, spaces.Box) or not all(isinstance(each, spaces.Dict) for each in above):
        return None
    return column if part.dtype == np.uint8 and EncodedFrames.can_have(part.shape) else None


def shaped(space: Any, values: Any) -> Any:
    """Return values in the shapes of a space: LeRobot has (1,) for a single number."""
    if isinstance(space, spaces.Dict) and isinstance(values, dict):
        return {key: shaped(space.spaces.get(key), part) for key, part in values.items()}
    if isinstance(space, spaces.Tuple) and isinstance(values, dict):
        return tuple(shaped(part, values.get(str(index))) for index, part in enumerate(space.spaces))
    shape = getattr(space, "shape", None)
    if shape is not None and isinstance(values, EncodedFrames):
        grey = math.prod(shape) == math.prod(values.shape[1:3])
        return values.reshaped(shape) if grey and EncodedFrames.can_have(shape) else values
    if shape is None or not isinstance(values, np.ndarray) or values[0].size != math.prod(shape):
        return values
    return values.reshape(len(values), *shape)
