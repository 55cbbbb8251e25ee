"""Text, OneOf and custom spaces: values that differ in size or kind from row to row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from gymnasium.spaces import Space

from ..errors import UnsupportedSpaceError
from ..names import escape_distinct, has_utf8
from .arrow import PLAIN_TYPES, flat_array, inner_type, mask_of
from .node import Node, RaggedNode, cut_arrays, decode_where, describe
from .registry import Codec


class TextNode(RaggedNode):
    """A Text: one string column; other characters and lengths than the space's are recorded too."""

    def __init__(self, space: Space, column: str):
        super().__init__(space, column, [pa.field(column, pa.string())])

    def take(self, value: Any) -> str:
        """Return the text; one that UTF-8 cannot hold is refused."""
        if not isinstance(value, str):
            raise self.mismatch("a str", describe(value), "Text values are Python strings")
        if not has_utf8(value):
            hint = "replace the surrogate, for example with value.encode(errors='replace').decode()"
            raise self.mismatch("a text that UTF-8 can hold", f"{value!r}, which has a lone surrogate", hint)
        return str(value)

    def encode(self, taken: list[Any]) -> list[pa.Array]:
        """Encode strings."""
        return [_one_array(self, taken, pa.string())]

    def decode_plain(self, arrays: Sequence[pa.Array]) -> list[str]:
        """Decode strings."""
        return arrays[0].to_pylist()


class OneOfNode(RaggedNode):
    """A OneOf: the column `.choice`, and the columns of every branch under its number, NULL unless chosen."""

    def __init__(self, space: Space, column: str, branches: Sequence[Node]):
        fields = [pa.field(f"{column}.choice", pa.int64())]
        super().__init__(space, column, fields + [field for branch in branches for field in branch.fields])
        self.branches = tuple(branches)
        self.required = self.fields[:1]

    def take(self, value: Any) -> tuple[int, Any]:
        """Return the branch number and the taken value."""
        if (
            not isinstance(value, tuple | list)
            or len(value) != 2
            or not isinstance(value[0], int | np.integer)
        ):
            raise self.mismatch("a tuple (branch, value)", describe(value), "name the branch by its position")
        choice = int(value[0])
        if not 0 <= choice < len(self.branches):
            raise self.mismatch(
                f"a branch from 0 to {len(self.branches) - 1}", str(choice), "the space has no such branch"
            )
        return choice, self.branches[choice].take(value[1])

    def encode(self, taken: list[Any]) -> list[pa.Array]:
        """Encode the choices and each branch."""
        choices = np.fromiter(
            (0 if pair is None else pair[0] for pair in taken), dtype=np.int64, count=len(taken)
        )
        arrays = [flat_array(choices, pa.int64(), mask_of(taken))]
        for number, branch in enumerate(self.branches):
            arrays += branch.encode(
                [pair[1] if pair is not None and pair[0] == number else None for pair in taken]
            )
        return arrays

    def decode_plain(self, arrays: Sequence[pa.Array]) -> list[tuple[np.int64, Any]]:
        """Return tuples of the branch number, as an int64 like Gymnasium's samples, and the value."""
        if arrays[0].null_count:
            raise self.corrupt("some choices are NULL")
        choices = arrays[0].to_numpy()
        if len(choices) and not (choices.min() >= 0 and choices.max() < len(self.branches)):
            raise self.corrupt("some choices name no branch")
        values: list[Any] = [None] * len(choices)
        for number, own in enumerate(cut_arrays(self.branches, arrays[1:])):
            chosen = choices == number
            decoded = decode_where(self.branches[number], own, chosen)
            for index in np.flatnonzero(chosen).tolist():
                values[index] = (choices[index], decoded[index])
        return values


class CustomNode(RaggedNode):
    """A space with a registered codec: the columns that it names, the values that it makes."""

    def __init__(self, space: Space, column: str, codec: Codec):
        types = codec.fields(space)
        self.codec = codec
        self.types = _checked_types(space, column, types)
        names = escape_distinct(part for part in types if part)
        fields = [
            pa.field(f"{column}.{names[part]}" if part else column, kind) for part, kind in types.items()
        ]
        super().__init__(space, column, fields)
        # The meaning of NULL is the codec's own.
        self.required = ()

    def take(self, value: Any) -> list[Any]:
        """Return an owned copy of the parts that the codec makes of the value."""
        try:
            parts = self.codec.encode(self.space, value)
            if not isinstance(parts, Mapping) or parts.keys() != self.types.keys():
                raise ValueError(f"the codec must give the parts {list(self.types)}, and gave {parts!r}")
            # Through Arrow and back: checks the type, and cuts every tie to the caller's objects.
            return [pa.scalar(parts[part], type=kind).as_py() for part, kind in self.types.items()]
        except MemoryError:
            raise
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            hint = "see encode() of the codec that is registered for this space"
            raise self.mismatch(f"a value of {self.space}", f"{describe(value)}: {error}", hint) from error

    def encode(self, taken: list[Any]) -> list[pa.Array]:
        """Encode each part."""
        return [
            _one_array(self, [None if parts is None else parts[index] for parts in taken], kind)
            for index, kind in enumerate(self.types.values())
        ]

    def decode_plain(self, arrays: Sequence[pa.Array]) -> list[Any]:
        """Let the codec make each value of its parts; what the codec raises passes on unchanged."""
        columns = zip(*(array.to_pylist() for array in arrays), strict=True)
        return [self.codec.decode(self.space, dict(zip(self.types, parts, strict=True))) for parts in columns]


def _one_array(node: Node, values: list[Any], kind: pa.DataType) -> pa.Array:
    array = pa.array(values, type=kind)
    if isinstance(array, pa.ChunkedArray):
        raise node.mismatch(
            "at most 2 GiB of data in one array", f"{array.nbytes} bytes", "encode fewer rows at a time"
        )
    return array


def _checked_types(space: Space, column: str, types: Any) -> dict[str, pa.DataType]:
    wrong = not isinstance(types, Mapping) or not types
    wrong = wrong or not all(
        isinstance(part, str) and has_utf8(part) and inner_type(kind) in PLAIN_TYPES
        for part, kind in types.items()
    )
    if wrong:
        raise UnsupportedSpaceError(
            f"the codec of space {space} at '{column}' gives the fields {types!r}. Expected at least one "
            "part, each of a plain type: bool, int16, int32, int64, float32, float64, string, binary, or a "
            "list of those. Hint: correct fields() of the codec given to episodelake.register_codec()."
        )
    return dict(types)
