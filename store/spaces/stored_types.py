"""The Arrow types of columns on disk, and of what their lists hold."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

#: Types that values of spaces have.
PLAIN_TYPES = (
    pa.bool_(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
)
STORED_TYPES = (*PLAIN_TYPES, pa.timestamp("us", "UTC"))


#: The dtypes in which values are stored: what Parquet's plain types lack is widened.
STORED_DTYPES: dict[str, str] = {
    **{name: name for name in ("bool", "int16", "int32", "int64", "float32", "float64")},
    **{"int8": "int16", "uint8": "int16", "uint16": "int32", "uint32": "int64", "uint64": "int64"},
    "float16": "float32",
}


def inner_type(kind: Any) -> Any:
    """Return the type of what a list, or a list of lists, holds; any other type as it is."""
    while isinstance(kind, pa.ListType):
        kind = kind.value_type
    return kind
