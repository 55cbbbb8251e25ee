"""Values as JSON (RFC 8259).

JSON has no form for some values: NaN and infinities are the texts "NaN", "Infinity" and "-Infinity"; moments
are ISO 8601 in UTC; bytes are base64; a map is a list of pairs; spans of time are seconds.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np

from .cells import SPELLED

#: JSON itself escapes those below the space; beyond 16 bits it takes two escapes.
_CONTROLS = {code: f"\\u{code:04x}" for code in range(127, 160)}
_CONTROLS |= {code: json.dumps(chr(code))[1:-1] for code in SPELLED}


def plain(value: Any) -> Any:
    """Return a value in the types of JSON.

    >>> plain({"a": float("nan"), "b": (1, b"x")})
    {'a': 'NaN', 'b': [1, 'eA==']}
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _unbounded(value)
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        # DuckDB's sums of whole numbers come as decimals of any size.
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value)


def _unbounded(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def json_of(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON text; no control character of the data is left to steer a terminal."""
    text = json.dumps(plain(value), ensure_ascii=False, indent=indent, allow_nan=False)
    return text.translate(_CONTROLS)
