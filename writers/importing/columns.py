"""Columns and spaces that formats share: checked flags and ids, named features, and the spaces of values.

Floats make a Box without bounds, whole numbers a Discrete that has them and 0, arrays of whole numbers a Box
over their dtype, booleans a Discrete(2), and arrays of them a MultiBinary.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from gymnasium import Space, spaces

from ...store.common.arguments import refuse_mask
from ...store.common.optional_packages import require
from ...store.errors import DatasetError
from ...store.names import RESERVED
from ...store.spaces import SpaceCodec
from .boundary import check_bytes, inside, reading

#: Images that Pillow decodes by itself; for EPS it runs Ghostscript.
_IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")


def column_of(rows: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    """Return a column as one array."""
    column = rows.column(name)
    if isinstance(column, pa.Array):
        return column
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays([*column.chunks, pa.nulls(0, column.type)])
    )


def check_present(
    rows: pa.Table | pa.RecordBatch, names: Sequence[str], purpose: str, place: str, first: int = 0
) -> None:
    """Refuse NULL and NaN in some columns.

    Args:
        purpose: of these columns.
        place: the table, for errors.
        first: the number of the first row.

    Raises:
        DatasetError: names the column and the row.
    """
    for name in names:
        column = column_of(rows, name)
        wrong = column.is_null(nan_is_null=True)
        if wrong.true_count:
            row = int(np.flatnonzero(wrong.to_numpy(zero_copy_only=False))[0])
            value = "NaN" if column[row].is_valid else "NULL"
            raise DatasetError(
                f"{place}: `{name}` is {value} in row {first + row}; it {purpose}. Filter such rows out, or "
                "fill in the column."
            )


def flags_of(column: pa.Array, name: str) -> pa.Array:
    """Return flags as booleans.

    Raises:
        DatasetError: they are neither booleans nor 0 and 1.
    """
    if pa.types.is_boolean(column.type):
        return column
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        given = column.drop_null().to_numpy(zero_copy_only=False)
        if ((given == 0) | (given == 1)).all():
            return column.cast(pa.bool_())
        wrong = given[(given != 0) & (given != 1)][0]
        raise DatasetError(f"The flag `{name}` has the value {wrong}; expected booleans, or 0 and 1.")
    raise DatasetError(f"The flag `{name}` has type {column.type}; expected booleans, or 0 and 1.")


def nested(columns: Mapping[str, Any], separator: str = ".") -> dict[str, Any]:
    """Return columns named by path as nested dicts."""
    groups_of: dict[str, Any] = {}
    for path, values in columns.items():
        *groups, name = path.split(separator)
        inner = groups_of
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[name] = values
    return groups_of


def fixed_lists(values: pa.Array, shape: Sequence[int], count: int) -> pa.Array:
    """Return flat values as `count` rows of nested lists of a fixed size; as they are for the shape ()."""
    for axis, size in reversed([*enumerate(shape)]):
        if size:
            values = pa.FixedSizeListArray.from_arrays(values, size)
        else:  # which Arrow has no fixed size for
            offsets = np.zeros(count * math.prod(shape[:axis]) + 1, np.int32)
            values = pa.ListArray.from_arrays(pa.array(offsets), values)
    return values


def array_column(values: np.ndarray, shape: Sequence[int] | None = None) -> pa.Array:
    """Return an array of numbers, (T, ...), as T numbers or nested lists of a fixed size.

    Args:
        shape: of a row, in place of that of the array.

    Raises:
        SpaceMismatchError: an element is masked.
    """
    refuse_mask(values, "an array of the source")
    flat = np.ascontiguousarray(values).reshape(-1)
    native = pa.array(flat.astype(flat.dtype.newbyteorder("="), copy=False))
    return fixed_lists(native, values.shape[1:] if shape is None else shape, len(values))


def array_space(dtype: np.dtype, shape: tuple[int, ...]) -> Space:
    """Return the space of arrays of numbers or booleans.

    Raises:
        DatasetError: one is larger than the limit of the import.
    """
    check_bytes(f"A value of shape {shape}", math.prod(shape) * dtype.itemsize)
    if dtype.kind == "b":
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape) if shape else spaces.Discrete(2)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, dtype.type)
    limits = np.iinfo(dtype)
    return spaces.Box(dtype.type(limits.min), dtype.type(limits.max), shape, dtype.type)


def numbered(space: Space, values: Any) -> Any:
    """Return stacked values with 0 and 1 for the booleans of a Discrete space."""
    if isinstance(space, spaces.Dict) and isinstance(values, Mapping):
        parts = space.spaces
        return {key: numbered(parts[key], part) if key in parts else part for key, part in values.items()}
    if isinstance(space, spaces.Tuple) and isinstance(values, tuple) and len(values) == len(space.spaces):
        return tuple(numbered(part, each) for part, each in zip(space.spaces, values, strict=True))
    boolean = isinstance(space, spaces.Discrete) and getattr(values, "dtype", None) == np.bool_
    return np.asarray(values).astype(np.int8) if boolean else values


def numbered_columns(space: Space, root: str, rows: pa.Table) -> pa.Table:
    """Return rows with 0 and 1 for the booleans of the Discrete parts of a space.

    Args:
        root: the column name under which the space stands.
    """
    if pa.bool_() not in rows.schema.types:
        return rows
    for leaf in SpaceCodec(space, root).leaves:
        index = rows.schema.get_field_index(leaf.column)
        if isinstance(leaf.space, spaces.Discrete) and index >= 0 and rows.schema.types[index] == pa.bool_():
            rows = rows.set_column(index, leaf.column, rows.column(index).cast(pa.int8()))
    return rows


def discrete_space(least: int, greatest: int) -> spaces.Discrete:
    """Return the space of all integers between these; it has 0."""
    start = min(least, 0)
    return spaces.Discrete(max(greatest, 0) - start + 1, start=start)


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
    """Return names by feature; none extends another: a column holds a value or a mapping."""
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


def plain_texts(values: np.ndarray) -> Any:
    """Return values as they are; texts as a list."""
    return values.tolist() if values.dtype == object else values


@contextmanager
def opened_image(source: bytes | Path, place: str, problem: str = "is no image") -> Iterator[Any]:
    """Yield an image of the bytes of a file, or of its path, which Pillow has not decoded yet.

    Raises:
        DatasetError: it is no image, or is larger than the limit of the import.
        MissingPackageError: Pillow is not installed.
    """
    images: Any = require("PIL.Image", "Reading images")
    with reading(place, problem):
        # A text is no path, wherever it comes from.
        file = source if isinstance(source, Path) else io.BytesIO(source)
        with images.open(file, formats=_IMAGE_FORMATS) as image:
            check_bytes(f"{place}: an image", image.height * image.width * len(image.getbands()))
            yield image


def image_frames(
    folder: Path, name: str, values: Sequence[Any], shape: tuple[int, ...], dtype: Any = np.uint8
) -> tuple[np.ndarray, int]:
    """Decode images, as (T, H, W, C), and count those that are JPEG.

    Args:
        values: of the column `name`: mappings with the `bytes` of an image or its `path`, or bytes.
        shape: (H, W, C) of an image.
        dtype: uint8 for levels of gray or colours; another for the numbers of images of one channel as they
            are, such as depths.

    Raises:
        DatasetError: an image does not decode, or has another shape.
    """
    check_bytes(f"{name} of an episode", len(values) * math.prod(shape) * np.dtype(dtype).itemsize)
    frames = np.empty((len(values), *shape), dtype)
    jpeg = 0
    for t, value in enumerate(values):
        data, path = (value, None) if isinstance(value, bytes) else (value["bytes"], value.get("path"))
        with opened_image(inside(folder, path) if data is None else data, f"Frame {t} of {name}") as image:
            jpeg += image.format == "JPEG"
            size = image.height, image.width, shape[-1]
            if size == shape:
                mode = "L" if shape[-1] == 1 else "RGB"
                converted = image.convert(mode) if frames.dtype == np.uint8 else image
                frames[t] = np.asarray(converted).reshape(shape)
        if size != shape:
            raise DatasetError(f"Frame {t}: {name} has the shape {size}; expected {shape}.")
    return frames, jpeg
