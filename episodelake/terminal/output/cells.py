"""Values as texts: for a terminal rounded to what the eye can use, for a pipe in full.

A script reads back from a pipe what is stored. Control characters are escaped everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

NULL = "NULL"
_BYTES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
#: Characters that reverse the direction of a line, break it, are invisible, or have no form in UTF-8.
_UNSEEN = (0x00AD, 0x061C, 0x180E, 0x200B, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2060, 0x2070))
_UNSEEN += (*range(0xD800, 0xE000), 0xFEFF, *range(0xFFF9, 0xFFFC), *range(0xE0000, 0xE0080))
#: Escapes of these characters, as in JSON and Python.
SPELLED = {code: f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}" for code in _UNSEEN}
_CONTROLS = _BYTES | SPELLED | {ord("\t"): "\\t", ord("\n"): "\\n", ord("\r"): "\\r"}


def clean(text: str) -> str:
    """Escape control characters, so that data neither breaks a line nor controls a terminal.

    Characters that reverse the direction of writing, or are invisible, are escaped too.
    """
    return text.translate(_CONTROLS)


class Amount(str):
    """A text that is set flush right, as numbers are."""


@dataclass(frozen=True)
class Column:
    """A column of texts.

    Attributes:
        name: its header.
        cells: the texts, one a row.
        right: whether they are set flush right, as numbers are.
    """

    name: str
    cells: list[str]
    right: bool


def columns_of(table: pa.Table, exact: bool) -> list[Column]:
    """Return the columns of an Arrow table as texts.

    Args:
        table: any Arrow table.
        exact: write numbers and times in full; otherwise about six digits.
    """
    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        write = writer(column.type, exact)
        cells = [clean(write(value)) for value in _values(column)]
        columns.append(Column(clean(name), cells, _is_number(column.type)))
    return columns


def _values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type) and column.type.unit != "ns":
        # pyarrow would import pandas for timestamps, which takes a quarter of a second; Polars imports
        # pyarrow.compute for a series.
        return pl.DataFrame(pa.table([column], names=["moment"])).to_series().to_list()
    return column.to_pylist()


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def writer(kind: pa.DataType, exact: bool, inside: bool = False) -> Callable[[Any], str]:
    """Return the formatter of an Arrow type; `inside` a list or struct, texts are quoted."""
    write = _write_known(kind, exact, inside)
    return lambda value: NULL if value is None else write(value)


def _write_known(kind: pa.DataType, exact: bool, inside: bool) -> Callable[[Any], str]:
    if pa.types.is_float32(kind) and exact:
        return lambda value: str(np.float32(value))
    if pa.types.is_floating(kind):
        return repr if exact else number_text
    if pa.types.is_boolean(kind):
        return lambda value: "true" if value else "false"
    if pa.types.is_timestamp(kind):
        return lambda value: moment_text(value, exact)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda value: f"<{len(value)} bytes>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        element = writer(kind.value_type, exact, inside=True)
        return lambda values: f"[{', '.join(map(element, values))}]"
    if pa.types.is_struct(kind):
        parts = {part.name: writer(part.type, exact, inside=True) for part in kind}
        return lambda value: (
            "{" + ", ".join(f"{name}: {write(value[name])}" for name, write in parts.items()) + "}"
        )
    if pa.types.is_map(kind):
        key, item = (writer(part, exact, inside=True) for part in (kind.key_type, kind.item_type))
        return lambda pairs: "{" + ", ".join(f"{key(name)}: {item(value)}" for name, value in pairs) + "}"
    if inside and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return lambda value: json.dumps(value, ensure_ascii=False)
    return str


def number_text(value: float) -> str:
    """Return a number with about six digits; no digit before the point is dropped.

    >>> number_text(0.123456789), number_text(-200.0), number_text(1234567.5)
    ('0.123457', '-200.0', '1234567.5')
    """
    if not np.isfinite(value) or value == 0:
        return str(float(value))
    if 1e5 <= abs(value) < 1e15 or (abs(value) < 1e15 and value == int(value)):
        return f"{value:.1f}"
    return f"{value:.6g}"


def moment_text(moment: datetime, exact: bool) -> str:
    """Return a time, ISO 8601; to the millisecond and without its zone unless `exact`."""
    if exact:
        return moment.isoformat()
    return moment.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
