"""The columns of a table: the JSON text that its log has, and their Arrow schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

_TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", "UTC"),
}
_KINDS = {type: kind for kind, type in _TYPES.items()}


@lru_cache(256)
def columns_of(text: str) -> pa.Schema:
    """Return the columns of a table in the log as Arrow's; many stores have the same."""
    try:
        schema = pa.schema([_column(**column) for column in json.loads(text)["fields"]])
        if len({name.lower() for name in schema.names}) < len(schema):
            raise ValueError("Names that differ in case only")
        return schema
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        # Types that stores lack, and faults, are the table library's, which takes long to import.
        from deltalake import Schema

        return pa.schema(Schema.from_json(text))


def _column(name: str, type: Any, nullable: bool, metadata: Mapping[str, Any]) -> pa.Field:
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    return pa.field(name, _type(type), nullable, texts or None)


def _type(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        return _TYPES[kind]
    return pa.list_(pa.field("element", _type(kind["elementType"]), kind["containsNull"]))


def schema_text(schema: pa.Schema) -> str:
    """Return the columns of a table, in the types that stores have, as a log has them."""
    columns = [
        {
            "name": column.name,
            "type": _kind(column.type),
            "nullable": column.nullable,
            "metadata": {key.decode(): value.decode() for key, value in (column.metadata or {}).items()},
        }
        for column in schema
    ]
    return json.dumps({"type": "struct", "fields": columns}, ensure_ascii=False, separators=(",", ":"))


def _kind(type: pa.DataType) -> Any:
    """Return a type as a log has it."""
    if not pa.types.is_list(type):
        return _KINDS[type]
    element = type.value_field
    return {"type": "array", "elementType": _kind(element.type), "containsNull": element.nullable}
