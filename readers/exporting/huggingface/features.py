"""Columns of a table as features of `datasets`: images, vectors of a fixed length, arrays.

`datasets` reads features from the schema's metadata, where they agree with the types of the columns: a vector
is a fixed-size list, an array of two to five dimensions nested lists under the name of an extension type,
and an image a struct of the bytes of a PNG file and a path, which is NULL here. Arrays have the dtype of
their space. https://huggingface.co/docs/datasets/about_dataset_features
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ....store.errors import InvalidArgumentError
from ....store.reserved import next_name
from ....store.schema import StepSchema
from ....store.spaces.arrow import LISTS
from ....store.spaces.fixed import FixedNode
from ..lerobot_files import image_files

#: How frames, arrays of uint8, are kept.
IMAGES = ("png", "array")
IMAGES_OPTION = {"images": "png, which is lossless (the default), or array"}
_IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
_DTYPES = {pa.float16(): "float16", pa.float32(): "float32", pa.float64(): "float64"}
_MOST_DIMENSIONS = 5
_CHANNELS = (1, 3)


class FeatureColumns:
    """The features of tables that have the columns of `steps`, and of their next observations.

    Args:
        schema: of the store.
        images: "png" or "array".

    Raises:
        InvalidArgumentError: `images` is unknown.
    """

    def __init__(self, schema: StepSchema, images: str) -> None:
        if images not in IMAGES:
            raise InvalidArgumentError(
                f"images={images!r} is unknown; expected {' or '.join(map(repr, IMAGES))}."
            )
        codecs = [codec for part in schema.parts for codec in (part.observation, part.action, part.reward)]
        found = {leaf.column: leaf for codec in codecs for leaf in codec.leaves if leaf.shape and leaf.size}
        found |= {after: leaf for name, leaf in found.items() if (after := next_name(name)) is not None}
        self._images = {name: leaf for name, leaf in found.items() if images == "png" and is_image(leaf)}
        self._arrays = {
            name: leaf
            for name, leaf in found.items()
            if name not in self._images and len(leaf.shape) <= _MOST_DIMENSIONS
        }

    def with_images(self, table: pa.Table) -> pa.Table:
        """Return a table with frames as images.

        Raises:
            MissingPackageError: Pillow is not installed.
        """
        for name, leaf in self._images.items():
            if name in table.column_names:
                index = table.column_names.index(name)
                table = table.set_column(index, name, _encoded(table.column(name), leaf))
        return table

    def features(self, schema: pa.Schema) -> dict[str, Any]:
        """Return the features of a table with images, as `datasets.Features.to_dict` gives them."""
        return {field.name: self._feature(field) for field in schema}

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of a table with images as `finish` makes it, with its features."""
        fields = [self._field(field) for field in schema]
        told = json.dumps({"info": {"features": self.features(schema)}})
        return pa.schema(fields, metadata={"huggingface": told})

    def finish(self, table: pa.Table) -> pa.Table:
        """Return a table with images with its vectors and arrays as `datasets` has them."""
        columns = [
            _shaped(table.column(name), self._arrays[name]) if name in self._arrays else table.column(name)
            for name in table.column_names
        ]
        return pa.Table.from_arrays(columns, schema=self.schema(table.schema))

    def _feature(self, field: pa.Field) -> dict[str, Any]:
        leaf = self._arrays.get(field.name)
        if leaf is None:
            return {"_type": "Image"} if field.name in self._images else _plain_feature(field.type)
        dtype = _dtype(pa.from_numpy_dtype(leaf.native))
        if len(leaf.shape) == 1:
            return {"feature": {"dtype": dtype, "_type": "Value"}, "length": leaf.size, "_type": "List"}
        return {"shape": list(leaf.shape), "dtype": dtype, "_type": f"Array{len(leaf.shape)}D"}

    def _field(self, field: pa.Field) -> pa.Field:
        leaf = self._arrays.get(field.name)
        if leaf is None:
            return field.remove_metadata()
        kind = pa.from_numpy_dtype(leaf.native)
        if len(leaf.shape) == 1:
            return pa.field(field.name, pa.list_(kind, leaf.size))
        extension = {
            "ARROW:extension:name": f"datasets.features.features.Array{len(leaf.shape)}DExtensionType",
            "ARROW:extension:metadata": json.dumps([list(leaf.shape), _dtype(kind)]),
        }
        for _ in leaf.shape:
            kind = pa.list_(kind)
        return pa.field(field.name, kind, metadata=extension)


def yaml_features(features: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return features as the front matter of a dataset card has them."""
    return [{"name": name, **_yaml_feature(feature)} for name, feature in features.items()]


def _yaml_feature(feature: Any) -> dict[str, Any]:
    match feature.get("_type"):
        case "Value":
            return {"dtype": feature["dtype"]}
        case "Image":
            return {"dtype": "image"}
        case "List" | "LargeList" as kind:
            inner = _yaml_feature(feature["feature"])
            told = inner.get("dtype", inner.get("struct", inner)) if len(inner) == 1 else inner
            length = {"length": feature["length"]} if "length" in feature else {}
            return {"list" if kind == "List" else "large_list": told, **length}
        case str(kind):
            name = kind.lower().replace("d", "_d")
            return {"dtype": {name: {"shape": feature["shape"], "dtype": feature["dtype"]}}}
    return {"struct": yaml_features(feature)}


def _plain_feature(kind: pa.DataType) -> dict[str, Any]:
    if isinstance(kind, pa.StructType):
        return {field.name: _plain_feature(field.type) for field in kind}
    if isinstance(kind, LISTS):
        name = "LargeList" if isinstance(kind, pa.LargeListType) else "List"
        return {"feature": _plain_feature(kind.value_type), "_type": name}
    return {"dtype": _dtype(kind), "_type": "Value"}


def _dtype(kind: pa.DataType) -> str:
    return _DTYPES.get(kind, str(kind))


def is_image(leaf: FixedNode) -> bool:
    """Return whether values are grey or RGB frames with the channels last, which PNG holds as they are."""
    return leaf.binary and (len(leaf.shape) == 2 or (len(leaf.shape) == 3 and leaf.shape[2] in _CHANNELS))


def _stacked(column: pa.ChunkedArray, leaf: FixedNode) -> np.ndarray:
    """Return the values that are not NULL in the dtype of the space; Polars has other types of lists."""
    array = column.drop_null().combine_chunks()
    return leaf.decode([array if array.type == leaf.fields[0].type else leaf.adopt(array)])


def _encoded(column: pa.ChunkedArray, leaf: FixedNode) -> pa.Array:
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    frames = _stacked(column, leaf)
    files = image_files(frames)
    return files if valid.all() else _spread(files, valid)


def _spread(values: pa.Array, valid: np.ndarray) -> pa.Array:
    """Return values as the rows where `valid` is set; the others are NULL."""
    return values.take(pa.array(np.maximum(np.cumsum(valid) - 1, 0), mask=~valid))


def _shaped(column: pa.ChunkedArray, leaf: FixedNode) -> pa.Array:
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    values = pa.array(np.ascontiguousarray(_stacked(column, leaf)).reshape(-1))
    if len(leaf.shape) == 1:
        found = pa.FixedSizeListArray.from_arrays(values, leaf.size)
    else:
        found = _nested(values, leaf.shape)
    return found if valid.all() else _spread(found, valid)


def _nested(values: pa.Array, shape: Sequence[int]) -> pa.Array:
    for size in reversed(shape):
        offsets = np.arange(0, len(values) + 1, size, dtype=np.int32)
        values = pa.ListArray.from_arrays(pa.array(offsets), values)
    return values
