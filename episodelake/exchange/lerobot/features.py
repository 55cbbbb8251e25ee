"""Features of a LeRobot dataset: the spaces and columns that they become, and the card."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from ...store.errors import DatasetError
from ...writers.importing.columns import apart, array_space, read_json
from .files import INFO, VERSIONS

PICTURES = ("image", "video")
_NOT_CARD = frozenset(
    {"features", "fps", "robot_type", "data_path", "video_path", "chunks_size", "data_files_size_in_mb"}
) | {
    "video_files_size_in_mb",
    *(f"total_{what}" for what in ("episodes", "frames", "tasks", "chunks", "videos")),
}


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
    return apart(
        [name for name in named if features[name]["dtype"] != "string" and not is_depth(features[name])]
    )


def is_numeric(kind: str) -> bool:
    """Return whether a dtype is one of numbers or flags."""
    try:
        return np.dtype(kind).kind in "biuf"
    except TypeError:
        return False


def is_depth(feature: Mapping[str, Any]) -> bool:
    """Return whether a feature is a depth map, which LeRobot stores quantized."""
    infos = [feature.get("info") or {}, feature.get("video_info") or {}]
    return any(each.get(key) for each in infos for key in ("is_depth_map", "video.is_depth_map"))


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
    readable = kind in (*PICTURES, "string") or is_numeric(kind)
    return kind if readable and not is_depth(feature) else None, shape_of(feature)


def feature_space(name: str, feature: Mapping[str, Any]) -> Space:
    """Return the space of a feature; unbounded, since LeRobot states no bounds.

    Raises:
        DatasetError: it has texts.
    """
    kind, shape = feature["dtype"], shape_of(feature)
    if kind in PICTURES:
        return array_space(np.dtype(np.uint8), shape)
    if not is_numeric(kind):
        raise DatasetError(
            f"The feature {name} has the dtype {kind!r}, which no observation or action can have."
        )
    return array_space(np.dtype(kind), shape)


def dataset_card(folder: Path, info: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Return the card: that of an exported store, or what LeRobot says of all episodes."""
    if "card" in ours:
        return dict(ours["card"])
    card: dict[str, Any] = {name: info[name] for name in ("fps", "robot_type") if info.get(name) is not None}
    card["lerobot"] = {name: value for name, value in info.items() if name not in _NOT_CARD}
    names = {name: feature["names"] for name, feature in info["features"].items() if feature.get("names")}
    if names:
        card["lerobot"]["names"] = names
    if (folder / "meta/stats.json").exists():
        card["lerobot"]["stats"] = read_json(folder / "meta/stats.json")
    return card


def shaped(space: Any, values: Any) -> Any:
    """Return values in the shapes of a space: LeRobot has (1,) for a single number."""
    if isinstance(space, spaces.Dict) and isinstance(values, dict):
        return {key: shaped(space.spaces.get(key), part) for key, part in values.items()}
    if isinstance(space, spaces.Tuple) and isinstance(values, dict):
        return tuple(shaped(part, values.get(str(index))) for index, part in enumerate(space.spaces))
    shape = getattr(space, "shape", None)
    if shape is None or not isinstance(values, np.ndarray) or values[0].size != math.prod(shape):
        return values
    return values.reshape(len(values), *shape)
