"""The spaces that the columns of a table suggest, and columns of images.

The spaces are those of `importing/columns.py`, and Dict and Text. Texts make a Text of the lengths and
characters in them. Images are structs of the bytes of a file and its path, as Hugging Face's `datasets` keep
them; they are decoded when the rows of an episode are read, next observations only where these are the last.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from gymnasium import Space, spaces

from ...errors import DatasetError
from ...plugin import LISTS, FixedNode, Losses, SpaceCodec, check_bytes
from ...writers.importing.columns import array_space, column_of, discrete_space, opened_image
from .mapping import Leaf, ResolvedMapping, Tree, is_image, leaves
from .rows import TableRows

#: The characters of texts that are lists of numbers.
_OF_LISTS = frozenset("0123456789+-.,[]() \r\n\tEe")
_WORDS_OF_LISTS = re.compile(
    r"np\.\w+(?=\()|array(?=\()|dtype=\w+|\b(?:nan|NaN|inf|Infinity|None|null|True|False|true|false)\b"
)
_TEXTS = (pa.string(), pa.large_string())


@dataclass
class _Range:
    """The values of a column: least and greatest number or length, and the characters of texts."""

    least: int | None = None
    greatest: int | None = None
    characters: set[str] = field(default_factory=set)

    def add(self, least: int | None, greatest: int | None) -> None:
        if least is not None and greatest is not None:
            self.least = least if self.least is None else min(least, self.least)
            self.greatest = greatest if self.greatest is None else max(greatest, self.greatest)


class LeafRanges:
    """Looks at the columns of observations and actions whose values decide the space.

    Args:
        mapping: which columns there are.
        schema: of the table.
        observation, action: whether to look at these.
    """

    def __init__(
        self, mapping: ResolvedMapping, schema: pa.Schema, *, observation: bool, action: bool
    ) -> None:
        trees = [mapping.observation, mapping.following] if observation else []
        trees += [mapping.action] if action else []
        self._leaves = [
            leaf
            for tree in trees
            if tree is not None
            for leaf in leaves(tree)
            if not leaf.vector and _is_ranged(kind_of_leaf(leaf, schema))
        ]
        self._ranges: dict[str, _Range] = {}

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        return list(dict.fromkeys(leaf.columns[0] for leaf in self._leaves))

    def clear(self) -> None:
        """Forget all values."""
        self._ranges = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Look at the values of some rows."""
        for leaf in self._leaves:
            values = values_of(leaf, batch)
            known = self._ranges.setdefault(leaf.name.removeprefix("next_"), _Range())
            if values.type in _TEXTS:
                texts = values.unique()
                known.characters.update("".join(filter(None, texts.to_pylist())))
                values = pc.call_function("utf8_length", [texts])
            limits = pc.call_function("min_max", [values]).as_py()
            known.add(limits["min"], limits["max"])

    def of(self, leaf: Leaf) -> _Range:
        """Return the values of a leaf."""
        return self._ranges.get(leaf.name, _Range())


def _is_ranged(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or kind in _TEXTS


def kind_of_leaf(leaf: Leaf, schema: pa.Schema) -> pa.DataType:
    """Return the type of the values of a leaf with one column."""
    kind = schema.field(leaf.columns[0]).type
    for key in leaf.path:
        kind = kind.field(key).type
    if isinstance(kind, pa.ExtensionType):  # of `datasets`, whose lists have all that is needed
        kind = kind.storage_type
    return kind


def values_of(leaf: Leaf, rows: pa.RecordBatch | pa.Table) -> pa.Array:
    """Return the values of a leaf with one column, as one array of a plain type."""
    values = column_of(rows, leaf.columns[0])
    for key in leaf.path:
        values = pc.struct_field(values, key)  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.storage
    return values


def _seems_list(text: str) -> bool:
    """Return whether a text is how Python or NumPy writes a list of numbers.

    >>> _seems_list("[np.float64(0.1), 2.]"), _seems_list("(1, None)"), _seems_list("[pick] the cup")
    (True, True, False)
    """
    plain = _WORDS_OF_LISTS.sub("", text).strip()
    return plain[:1] in ("[", "(") and plain[-1:] in ("]", ")") and _OF_LISTS.issuperset(plain)


def infer_space(tree: Tree, rows: TableRows, ranges: LeafRanges, role: str) -> Space:
    """Return the space that the columns of an observation or action suggest.

    Raises:
        DatasetError: they suggest none; names the column.
    """
    if not isinstance(tree, Leaf):
        return spaces.Dict({key: infer_space(part, rows, ranges, role) for key, part in tree.items()})
    if tree.vector:
        dtypes = [_dtype(rows, column, rows.schema.field(column).type, role) for column in tree.columns]
        return array_space(np.result_type(*dtypes), (len(dtypes),))
    kind = kind_of_leaf(tree, rows.schema)
    limits = ranges.of(tree)
    if pa.types.is_integer(kind) and limits.least is not None and limits.greatest is not None:
        if limits.greatest - min(limits.least, 0) >= 2**63 - 1:
            raise _unclear(rows, str(tree), kind, role)
        return discrete_space(limits.least, limits.greatest)
    if kind in _TEXTS and limits.greatest:
        shown = None
        if not limits.characters.isdisjoint("[("):
            shown = rows.first(tree.columns[0], lambda batch: values_of(tree, batch))
        if shown is not None and _seems_list(str(shown)):
            raise DatasetError(
                f"{rows.name}: `{tree}` has the text {shown!r:.80}, which looks like a list of numbers. Make "
                f"lists of the texts first, or pass {role}_space= with a Text space to keep them."
            )
        return spaces.Text(
            limits.greatest, min_length=limits.least or 0, charset="".join(sorted(limits.characters))
        )
    if is_image(kind) and not tree.path:
        shape = image_shape(rows.head(tree.columns).column(0), f"{rows.name}: `{tree}`")
        return spaces.Box(0, 255, shape, np.uint8)
    shape, inner = shape_of(tree, kind, rows)
    return array_space(_dtype(rows, str(tree), inner, role), shape)


def is_number(kind: pa.DataType) -> bool:
    """Return whether a column of a type can be one number of a vector."""
    return pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _dtype(rows: TableRows, column: str, kind: pa.DataType, role: str) -> np.dtype:
    if is_number(kind):
        return np.dtype(kind.to_pandas_dtype())
    raise _unclear(rows, column, kind, role)


def _unclear(rows: TableRows, column: str, kind: pa.DataType, role: str) -> DatasetError:
    return DatasetError(
        f"{rows.name}: the column `{column}` of type {kind} suggests no space. Pass {role}_space=, or leave "
        "the column out of the mapping."
    )


def shape_of(leaf: Leaf, kind: pa.DataType, rows: TableRows) -> tuple[tuple[int, ...], pa.DataType]:
    """Return the shape and type of the values, by the first of them where the type does not fix the shape."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return tuple(kind.shape), kind.value_type
    shape: list[int] = []
    first: Any = None
    if isinstance(kind, LISTS):
        first = rows.first(leaf.columns[0], partial(values_of, leaf))
    while isinstance(kind, LISTS):
        size = kind.list_size if isinstance(kind, pa.FixedSizeListType) else len(first or ())
        shape.append(size)
        first = first[0] if first else None
        kind = kind.value_type
    return tuple(shape), kind


#: Bytes of the frames that are decoded at a time.
_FRAME_BYTES = 64 << 20


def image_shape(column: pa.ChunkedArray, place: str) -> tuple[int, ...]:
    """Return the shape of the first image of a column: (H, W, C).

    Raises:
        DatasetError: there is none, or it does not decode.
        MissingPackageError: Pillow is not installed.
    """
    first = next((value for value in column.to_pylist() if value is not None), None)
    if first is None:
        raise DatasetError(f"{place} has no image in its first rows. State the spaces.")
    frame, _ = _decoded(first["bytes"], place)
    return frame.shape


class ImageColumns:
    """The images among the columns of observations.

    Args:
        mapping: the columns.
        space: of observations.
        place: the table, for errors.

    Raises:
        DatasetError: an image stands where the space has no array of uint8.
    """

    def __init__(self, mapping: ResolvedMapping, schema: pa.Schema, space: Space, place: str) -> None:
        self._place = place
        now = [leaf for leaf in leaves(mapping.observation) if _is_image(leaf, schema)]
        frames = {leaf.column: leaf for leaf in SpaceCodec(space, "observation").leaves if leaf.binary}
        for leaf in now:
            if leaf.name not in frames:
                raise DatasetError(
                    f"{place}: the column `{leaf}` has images, and the space of `{leaf.name}` is no Box of "
                    "uint8 with two or more dimensions."
                )
        after = [] if mapping.following is None else list(leaves(mapping.following))
        self._now = {leaf.columns[0]: frames[leaf.name] for leaf in now}
        self._after = {
            leaf.columns[0]: frames[leaf.name.removeprefix("next_")]
            for leaf in after
            if _is_image(leaf, schema)
        }
        size = sum(leaf.size for leaf in self._now.values())
        #: The most rows to decode at a time.
        self.rows = max(1, _FRAME_BYTES // size) if size else None

    def decode(self, rows: pa.Table, lasts: Sequence[int], losses: Losses) -> pa.Table:
        """Return rows with frames in the place of images; count those that are JPEG.

        Args:
            lasts: the last rows of episodes, the only ones whose next observations are decoded.

        Raises:
            DatasetError: an image does not decode, or has another shape than the space.
        """
        last = np.zeros(rows.num_rows, bool)
        last[list(lasts)] = True
        for columns, chosen in ((self._now, None), (self._after, last)):
            for name, leaf in columns.items():
                index = rows.column_names.index(name)
                frames = self._frames(name, rows, chosen, leaf, losses)
                rows = rows.set_column(index, name, frames)
        return rows

    def _frames(
        self, name: str, rows: pa.Table, chosen: np.ndarray | None, leaf: FixedNode, losses: Losses
    ) -> pa.Array:
        place, column = f"{self._place}: `{name}`", rows.column(name)
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        valid = valid if chosen is None else valid & chosen
        check_bytes(f"{place} of an episode", int(valid.sum()) * leaf.size)
        frames = np.empty((int(valid.sum()), *leaf.shape), np.uint8)
        for index, value in enumerate(column.filter(pa.array(valid)).to_pylist()):
            frame, jpeg = _decoded(value["bytes"], place)
            if frame.shape not in (leaf.shape, (*leaf.shape, 1)):
                raise DatasetError(f"{place} has an image of shape {frame.shape}; expected {leaf.shape}.")
            frames[index] = frame.reshape(leaf.shape)
            losses.add("frames of lossy JPEG", int(jpeg))
        return leaf.spread(frames, valid)


def _decoded(data: Any, place: str) -> tuple[np.ndarray, bool]:
    """Return an image as uint8 (H, W, C), and whether it is a JPEG."""
    if not isinstance(data, bytes):
        raise DatasetError(f"{place} has an image without its bytes. Store the images in the table.")
    with opened_image(data, place, "has an image that does not decode") as image:
        if image.mode not in ("L", "RGB", "RGBA"):
            raise DatasetError(
                f"{place} has an image of the mode {image.mode!r}; expected L, RGB or RGBA. Convert it."
            )
        frame = np.asarray(image)
        return frame.reshape(*frame.shape[:2], -1), image.format == "JPEG"


def _is_image(leaf: Leaf, schema: pa.Schema) -> bool:
    return not leaf.vector and not leaf.path and is_image(schema.field(leaf.columns[0]).type)
