"""Features with names, of which LeRobot and RLDS have datasets: their columns, spaces, texts and images."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from ...store.common.optional_packages import EXPLORE, require
from ...store.errors import DatasetError
from ...store.names import RESERVED
from .boundary import IMAGE_FORMATS, check_bytes, inside, reading
from .columns import nested


def read_json(file: Path) -> Any:
    """Read a JSON file.

    Raises:
        DatasetError: it is missing, or no JSON.
    """
    with reading(file):
        return json.loads(file.read_bytes())


def extra_names(named: Sequence[str], prefix: str) -> dict[str, str]:
    """Return features that become step columns of their own, with the names of the columns.

    Args:
        prefix: of names that mean something else in a store.
    """
    return {
        name: f"{prefix}.{ours}" if ours.partition(".")[0].casefold() in RESERVED or ours[0] == "_" else ours
        for name, ours in apart(named).items()
    }


def apart(named: Sequence[str]) -> dict[str, str]:
    """Return names by feature, of which none goes on from another: a column holds a value or a mapping."""
    if any(other.startswith(f"{name}.") for name in named for other in named):
        return {
            name: "{}{}{}".format(*name.partition(".")[:2], name.partition(".")[2].replace(".", "_"))
            for name in named
        }
    return {name: name for name in named}


def nested_space(leaves: Mapping[str, Any], side: str) -> Any:
    """Return the space of spaces by the names of our columns."""
    if list(leaves) == [side]:
        return leaves[side]
    return _dicts(nested({path[len(side) + 1 :]: space for path, space in leaves.items()}))


def _dicts(tree: Any) -> Any:
    return spaces.Dict({key: _dicts(part) for key, part in tree.items()}) if isinstance(tree, dict) else tree


def joined(values: Mapping[str, Any], named: Mapping[str, str], side: str) -> Any:
    """Return the observations or actions of values by feature."""
    if list(named.values()) == [side]:
        return values[next(iter(named))]
    return nested({path[len(side) + 1 :]: values[name] for name, path in named.items()})


def map_leaves(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested mappings with changed values."""
    if isinstance(tree, tuple):
        return tuple(map_leaves(part, change) for part in tree)
    if isinstance(tree, dict):
        return {key: map_leaves(part, change) for key, part in tree.items()}
    return change(tree)


def plain_texts(values: np.ndarray) -> Any:
    """Return values as they are; texts as a list."""
    return values.tolist() if values.dtype == object else values


def image_frames(
    folder: Path, name: str, values: Sequence[Any], shape: tuple[int, ...]
) -> tuple[np.ndarray, int]:
    """Decode images, as uint8 (T, H, W, C), and count those that are JPEG.

    Args:
        values: of the column `name`: mappings with the `bytes` of an image or its `path`, or bytes.
        shape: (H, W, C) of an image.

    Raises:
        DatasetError: an image does not decode, or has another shape.
    """
    images: Any = require("PIL.Image", "Reading images", EXPLORE)
    check_bytes(f"{name} of an episode", len(values) * math.prod(shape))
    frames = np.empty((len(values), *shape), np.uint8)
    jpeg = 0
    for t, value in enumerate(values):
        data, path = (value, None) if isinstance(value, bytes) else (value["bytes"], value.get("path"))
        with reading(f"Frame {t} of {name}", "is no image"):
            source = io.BytesIO(data) if data is not None else inside(folder, path)
            with images.open(source, formats=IMAGE_FORMATS) as image:
                jpeg += image.format == "JPEG"
                size = image.height, image.width, shape[-1]
                if size == shape:
                    frames[t] = np.asarray(image.convert("L" if shape[-1] == 1 else "RGB")).reshape(shape)
        if size != shape:
            raise DatasetError(f"Frame {t}: {name} has the shape {size}; expected {shape}.")
    return frames, jpeg
