"""From cells of columns to values: names, spaces and dynamic columns, read by docs/format.md alone.

The middle part of `independent_reader.py`. Values are plain Python ones, arrays of spaces nested lists.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from math import prod
from typing import Any

from independent_tables import Refused


@dataclass(frozen=True)
class Array:
    """An array of a dynamic column: its dtype's name, its shape, its elements in C order."""

    dtype: str
    shape: tuple[int, ...]
    elements: tuple[Any, ...]


def segment(key: str) -> str:
    """A key as a segment of a column name."""
    replaced = re.sub(r"[% .,;{}()=\x00-\x1f\x7f]", lambda found: f"%{ord(found[0]):02X}", key)
    return replaced or "%"


def key_of(name: str) -> str:
    """The key of a segment."""
    if name == "%":
        return ""
    data = re.sub(rb"%([0-9A-F]{2})", lambda found: bytes.fromhex(found[1].decode()), name.encode())
    return data.decode()


def child_segments(keys: Sequence[str]) -> list[str]:
    """The segments of the keys of a Dict space: distinct even where case is ignored."""
    taken: set[str] = set()
    found = []
    for key in keys:
        forms = [
            segment(key),
            "".join(_percent(letter) if letter.isupper() else segment(letter) for letter in key),
            "".join(_percent(letter) if letter.isalpha() else segment(letter) for letter in key),
            "".join(map(_percent, key)),
        ]
        chosen = next(form for form in forms if form.casefold() not in taken)
        taken.add(chosen.casefold())
        found.append(chosen)
    return found


def _percent(letter: str) -> str:
    return "".join(f"%{byte:02X}" for byte in letter.encode())


def space_columns(space: Mapping[str, Any], name: str) -> list[str]:
    """The columns of a space, its root being `name`."""
    match space["type"]:
        case "Dict" | "Tuple":
            return [
                column for child, below in _children(space, name) for column in space_columns(child, below)
            ]
        case "OneOf":
            inner = [
                column for child, below in _children(space, name) for column in space_columns(child, below)
            ]
            return [f"{name}.choice", *inner]
        case "Sequence":
            return space_columns(space["space"], name) or [f"{name}.length"]
        case "Graph":
            nodes = space_columns({"type": "Sequence", "space": space["node_space"]}, f"{name}.nodes")
            edges = []
            if space["edge_space"] is not None:
                edges = space_columns({"type": "Sequence", "space": space["edge_space"]}, f"{name}.edges")
            return [*nodes, *edges, f"{name}.edge_links"]
        case _:
            return [name]


def _children(space: Mapping[str, Any], name: str) -> list[tuple[dict[str, Any], str]]:
    if space["type"] == "Dict":
        keys = [key for key, _ in space["spaces"]]
        below = [f"{name}.{found}" for found in child_segments(keys)]
        return list(zip([child for _, child in space["spaces"]], below, strict=True))
    return [(child, f"{name}.{index}") for index, child in enumerate(space["spaces"])]


def space_value(space: Mapping[str, Any], name: str, cells: Mapping[str, Any]) -> Any:
    """One value of a space from the cells of its columns; arrays as nested lists."""
    match space["type"]:
        case "Dict":
            keys = [key for key, _ in space["spaces"]]
            values = [space_value(child, below, cells) for child, below in _children(space, name)]
            return dict(zip(keys, values, strict=True))
        case "Tuple":
            return [space_value(child, below, cells) for child, below in _children(space, name)]
        case "OneOf":
            choice = cells[f"{name}.choice"]
            child, below = _children(space, name)[choice]
            return [choice, space_value(child, below, cells)]
        case "Sequence":
            return _elements(space["space"], name, cells)
        case "Graph":
            return _graph(space, name, cells)
        case "MultiBinary":
            sizes = space["n"] if isinstance(space["n"], list) else [space["n"]]
            return nested([int(bit) for bit in cells[name]], sizes)
        case "Box" | "MultiDiscrete" | "Discrete":
            return _numbers(space, cells[name])
        case "Text":
            return cells[name]
    raise Refused(f"a space of the type {space['type']}")


def _numbers(space: Mapping[str, Any], cell: Any) -> Any:
    sizes = space.get("shape", [])
    flat = list(cell) if sizes else [cell]
    if space["dtype"].endswith("uint64") or space["dtype"][1:] == "u8":
        flat = [number & (1 << 64) - 1 for number in flat]
    return nested(flat, sizes) if sizes else flat[0]


def _elements(space: Mapping[str, Any], name: str, cells: Mapping[str, Any]) -> list[Any]:
    columns = space_columns(space, name)
    count = len(cells[columns[0]]) if columns else cells[f"{name}.length"]
    rows = [{column: cells[column][index] for column in columns} for index in range(count)]
    return [space_value(space, name, row) for row in rows]


def _graph(space: Mapping[str, Any], name: str, cells: Mapping[str, Any]) -> list[Any]:
    edges = None
    if (
        space["edge_space"] is not None
        and cells[space_columns(space["edge_space"], f"{name}.edges")[0]] is not None
    ):
        edges = _elements(space["edge_space"], f"{name}.edges", cells)
    return [_elements(space["node_space"], f"{name}.nodes", cells), edges, cells[f"{name}.edge_links"]]


def nested(flat: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """Elements in C order as nested lists of a shape."""
    if len(flat) != prod(sizes):
        raise Refused(f"{len(flat)} elements for the shape {sizes}")
    if len(sizes) <= 1:
        return list(flat)
    step = prod(sizes[1:])
    return [nested(flat[index * step : (index + 1) * step], sizes[1:]) for index in range(sizes[0])]


def dynamic_values(prefix: str, kinds: Mapping[str, str], row: Mapping[str, Any]) -> dict[Any, Any]:
    """What the columns of a family say on one row, its JSON column merged in."""
    found: dict[Any, Any] = {}
    for name, kind in kinds.items():
        if row.get(name) is None or name == f"{prefix}_json":
            continue
        path = [key_of(part) for part in name.removeprefix(prefix).split(".")]
        _merge(found, path, _dynamic_value(kind, row[name]))
    if row.get(f"{prefix}_json") is not None:
        for key, value in tagged(row[f"{prefix}_json"]).items():
            _merge(found, [key], value)
    return found


def family(prefix: str, kinds: Mapping[str, str]) -> dict[str, str]:
    """The dynamic columns of a family; the user's own have no prefix."""
    others = ("info.", "policy.", "metadata.")
    if prefix:
        return {name: kind for name, kind in kinds.items() if name.startswith(prefix)}
    return {name: kind for name, kind in kinds.items() if not name.startswith(others)}


def _merge(target: dict[Any, Any], path: Sequence[Any], value: Any) -> None:
    for key in path[:-1]:
        target = target.setdefault(key, {})
    if isinstance(value, dict) and isinstance(target.get(path[-1]), dict):
        for key, item in value.items():
            _merge(target[path[-1]], [key], item)
    else:
        target[path[-1]] = value


def _dynamic_value(kind: str, cell: Any) -> Any:
    if not kind.startswith("array:"):
        return cell
    _, dtype, sizes = kind.split(":")
    if not sizes:
        return Array(dtype, (), (cell,))
    shape = (len(cell),) if sizes == "*" else tuple(map(int, sizes.split(",")))
    return Array(dtype, shape, tuple(cell))


def tagged(text: str) -> Any:
    """A value from tagged JSON."""
    return untagged(json.loads(text))


def untagged(value: Any) -> Any:
    """A value of tagged JSON."""
    if isinstance(value, list):
        return [untagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, content),) = value.items()
        match tag:
            case "$float":
                return float(content)
            case "$int":
                return int(content, 16)
            case "$array":
                return _tagged_array(*content)
            case "$tuple":
                return tuple(map(untagged, content))
            case "$set":
                return frozenset(map(untagged, content))
            case "$bytes":
                return base64.b64decode(content)
            case "$complex":
                return complex(*map(untagged, content))
            case "$dict":
                return {untagged(key): untagged(item) for key, item in content}
            case "$datetime":
                return datetime.fromisoformat(content)
            case "$date":
                return date.fromisoformat(content)
            case "$time":
                return time.fromisoformat(content)
            case "$timedelta":
                days, seconds, microseconds = content
                return timedelta(days=days, seconds=seconds, microseconds=microseconds)
            case "$object":
                return ("an object", *content)
    return {key: untagged(item) for key, item in value.items()}


def _tagged_array(code: str, shape: list[int], data: str) -> Array:
    order, letter, size = code[0], code[1], int(code[2:])
    raw = base64.b64decode(data)
    pieces = [raw[start : start + size] for start in range(0, len(raw), size or 1)]
    if letter == "U":
        texts = base64.b64decode(data).decode("utf-32-be" if order == ">" else "utf-32-le")
        cut = [texts[start : start + size] for start in range(0, len(texts), size or 1)]
        return Array(code[1:], tuple(shape), tuple(text.rstrip("\0") for text in cut))
    if letter == "S":
        return Array(code[1:], tuple(shape), tuple(piece.rstrip(b"\0") for piece in pieces))
    name = {"b": "bool", "i": f"int{8 * size}", "u": f"uint{8 * size}", "f": f"float{8 * size}"}[letter]
    one = {"b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q"}
    one |= {"f2": "e", "f4": "f", "f8": "d"}
    byte_order = ">" if order == ">" else "<"
    elements = struct.unpack(f"{byte_order}{len(raw) // size}{one[code[1:]]}", raw)
    return Array(name, tuple(shape), elements)
