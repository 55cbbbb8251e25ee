"""Spaces to JSON and back: the descriptions of the observation and action space in `store.json`.

The description is strict JSON (infinity is the text "inf"), and gives back a space that equals the
original, with every bound, dtype and key order. It is read from a file that anyone may have written, so
it is measured while it is built, and never names code to run: a custom space is only looked up
among the codecs that this process has registered.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, OneOf, Space, Text, Tuple
from gymnasium.spaces import Sequence as SequenceSpace

from ..common.compatibility import discrete_space
from ..errors import CorruptStoreError, EpisodelakeError, UnsupportedSpaceError
from ..names import has_utf8
from .node import MAX_DEPTH, Codec, check_keys, find, find_named, qualified_name

#: Of spaces of texts that state no length; longer texts are recorded too.
_LONGEST_TEXT = 1000
_MOST_BYTES = 2**31
_SPACE_BYTES = _MOST_BYTES // 16_384
_CHARACTER_BYTES = 256
_LARGEST_SIZE = 2**63 - 1
_NATIVE = [np.dtype(code) for code in "?bBhHiIqQefd"]
_SWAPPED = [dtype.newbyteorder() for dtype in _NATIVE if dtype.itemsize > 1]
#: The dtypes that a space can have, by their names in a description.
_DTYPES = {dtype.name: dtype for dtype in _NATIVE} | {dtype.str: dtype for dtype in _SWAPPED}
_WORDS = {"inf": np.inf, "-inf": -np.inf, "nan": np.nan}


def space_to_json(space: Space) -> dict[str, Any]:
    """Describe a space in plain JSON types.

    Raises:
        UnsupportedSpaceError: a class without a codec, keys that are not text, nested deeper than 64 levels,
            or more than 2 GiB of bounds.
    """
    try:
        description = _describe(space)
        _Builder(codecs=False).build(description)
    except (CorruptStoreError, RecursionError) as error:
        raise UnsupportedSpaceError(
            f"space of class {type(space).__name__} cannot be described: {error}",
            hint="Nest less deeply, or register a codec with episodelake.register_codec().",
        ) from error
    return description


def space_from_json(description: dict[str, Any], source: str = "store.json") -> Space:
    """Build the space that `space_to_json` described.

    Args:
        description: parsed JSON, which need not be trusted.
        source: the file that it came from, named in errors.

    Raises:
        CorruptStoreError: it describes no space, nests deeper than 64 levels, or would take more than 2 GiB.
        UnsupportedSpaceError: it names a custom class for which no codec is registered in this process.
    """
    try:
        return _Builder().build(description)
    except EpisodelakeError as error:
        if isinstance(error, CorruptStoreError):
            raise CorruptStoreError(
                f"{source}: {error}",
                hint="The file is damaged; restore it from a copy.",
            ) from error
        raise
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, AssertionError) as error:
        raise CorruptStoreError(
            f"{source}: the description of a space is wrong ({type(error).__name__}: {error}). Expected "
            "what space_to_json() writes.",
            hint="The file is damaged; restore it from a copy.",
        ) from error


def plain_space(space: Space) -> Space:
    """Return a space as a store gives it back: spaces of classes of their own become Gymnasium's.

    Raises:
        UnsupportedSpaceError: see `space_to_json`.
    """
    return space_from_json(space_to_json(space)) if any(True for _ in own_classes(space, "")) else space


def same_space(space: Space, other: Space) -> bool:
    """Return whether two spaces have the same values, whatever their classes say of each other."""
    try:
        return bool(space == other) or space_to_json(space) == space_to_json(other)
    except UnsupportedSpaceError:
        return False


def own_classes(space: Any, column: str) -> Iterator[tuple[str, str]]:
    """Yield column and class of each part that is stored as the Gymnasium space that it derives from.

    Raises:
        UnsupportedSpaceError: a part has no columns.
    """
    space_type, codec = find(space, f" at '{column}'")
    if codec is not None:
        return
    if space_type is not type(space):
        yield column, f"{qualified_name(type(space))} as {space_type.__name__}"
    parts: dict[str, Any] = {}
    match space:
        case Dict():
            parts = dict(space.spaces)
        case Tuple() | OneOf():
            parts = {str(number): part for number, part in enumerate(space.spaces)}
        case SequenceSpace():
            parts = {"": space.feature_space}
        case Graph():
            parts = {"nodes": space.node_space, "edges": space.edge_space}
    for name, part in parts.items():
        if part is not None:
            yield from own_classes(part, f"{column}.{name}" if name else column)


def _describe(space: Any) -> dict[str, Any]:
    space_type, codec = find(space)
    if codec is not None:
        return _describe_custom(space, space_type, codec)
    if space_type is Text and not isinstance(space, Text):
        space = Text(_LONGEST_TEXT, min_length=0, charset=string.printable)
    match space:
        case Box():
            return _describe_arrays(space, "low", "high") | _infinite_flags(space)
        case Discrete():
            numbers = {"n": int(space.n), "start": int(space.start)}
            return {"type": "Discrete", **numbers, "dtype": _dtype_name(space.dtype)}
        case MultiDiscrete():
            return _describe_arrays(space, "nvec", "start")
        case MultiBinary():
            return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.n)}
        case Text():
            return _describe_text(space)
        case Graph():
            edges = None if space.edge_space is None else _describe(space.edge_space)
            return {"type": "Graph", "node_space": _describe(space.node_space), "edge_space": edges}
        case SequenceSpace():
            return {"type": "Sequence", "space": _describe(space.feature_space), "stack": bool(space.stack)}
        case Dict():
            check_keys(space)
            return {"type": "Dict", "spaces": [[key, _describe(each)] for key, each in space.spaces.items()]}
        case _:
            return {"type": space_type.__name__, "spaces": [_describe(each) for each in space.spaces]}


def _describe_arrays(space: Box | MultiDiscrete, *names: str) -> dict[str, Any]:
    kind = "Box" if isinstance(space, Box) else "MultiDiscrete"
    described = {"type": kind, "dtype": _dtype_name(space.dtype), "shape": list(space.shape)}
    return described | {name: _numbers(getattr(space, name)) for name in names}


def _infinite_flags(space: Box) -> dict[str, Any]:
    """Return the flags of an integer box whose bounds were infinite, which decide how it samples."""
    natural = _natural_flags(space.low, space.high)
    flags = {name: getattr(space, name) for name in natural}
    return {name: _numbers(flags[name]) for name in flags if not np.array_equal(flags[name], natural[name])}


def _describe_text(space: Text) -> dict[str, Any]:
    characters = "".join(space.character_list)
    # JSON would join two surrogates that happen to stand side by side into one character.
    charset = characters if has_utf8(characters) else [ord(character) for character in characters]
    return {
        "type": "Text",
        "min_length": space.min_length,
        "max_length": space.max_length,
        "charset": charset,
    }


def _describe_custom(space: Space, space_type: type, codec: Codec) -> dict[str, Any]:
    spec = codec.to_json(space)
    try:
        again = json.loads(json.dumps(spec, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise UnsupportedSpaceError(
            f"to_json() of the codec for {qualified_name(space_type)} gave something that JSON cannot "
            f"hold ({error}). Expected a dict of plain values.",
            hint="Write infinity and NaN as texts.",
        ) from error
    if not isinstance(spec, dict) or again != spec:
        raise UnsupportedSpaceError(
            f"to_json() of the codec for {qualified_name(space_type)} gave {spec!r}. Expected a dict that "
            "comes back from JSON unchanged.",
            hint="Use lists instead of tuples, and texts as keys.",
        )
    return {"type": "custom", "name": qualified_name(space_type), "spec": again}


class _Builder:
    """Builds described spaces, and counts their bytes before it makes them.

    A few bytes of JSON can ask for a Box of a trillion elements, or for a nest of stacked sequences each of
    which doubles what it holds.

    Args:
        codecs: whether custom spaces come from their codecs; otherwise Discrete spaces replace them.
    """

    def __init__(self, *, codecs: bool = True) -> None:
        self._codecs = codecs
        self._left = _MOST_BYTES

    def build(self, description: Any, depth: int = 0, copies: int = 1) -> Space:
        """Return the space; `depth` spaces are around it, and Gymnasium keeps `copies` of it.

        Raises:
            CorruptStoreError: more than 64 levels or 2 GiB, or something that is no description.
            KeyError, TypeError, ValueError, OverflowError, AttributeError, AssertionError: likewise.
        """
        if depth > MAX_DEPTH:
            raise CorruptStoreError(f"the spaces are nested deeper than {MAX_DEPTH} levels.")
        if not isinstance(description, dict):
            kind = type(description).__name__
            raise CorruptStoreError(f"a space is described by {kind}, expected an object with a type.")
        if description["type"] == "Graph" or description.get("stack") is True:
            copies *= 2  # Gymnasium keeps a batched copy of what is stacked
        self._take(copies * _SPACE_BYTES)
        match description["type"]:
            case "Box" | "MultiDiscrete" | "MultiBinary" | "Discrete" | "Text":
                return self._build_leaf(description, copies)
            case "custom":
                return _build_custom(description) if self._codecs else Discrete(1)
        part = partial(self.build, depth=depth + 1, copies=copies)
        match description["type"]:
            case "Dict":
                pairs = _items(description["spaces"])
                keys = [key for key, _ in pairs]
                if not all(isinstance(key, str) for key in keys) or len(set(keys)) != len(keys):
                    raise CorruptStoreError("the keys of a Dict space are not distinct texts.")
                return Dict([(key, part(child)) for key, child in pairs])
            case "Tuple":
                return Tuple(list(map(part, _items(description["spaces"]))))
            case "OneOf":
                return OneOf(list(map(part, _items(description["spaces"]))))
            case "Sequence":
                return SequenceSpace(part(description["space"]), stack=description["stack"] is True)
            case "Graph":
                edges = description["edge_space"]
                return Graph(part(description["node_space"]), None if edges is None else part(edges))
            case unknown:
                raise CorruptStoreError(f"unknown type of space {unknown!r:.100}.")

    def _take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise CorruptStoreError(f"the space would take more than {_MOST_BYTES} bytes.")

    def _build_leaf(self, description: dict[str, Any], copies: int) -> Space:
        match description["type"]:
            case "Discrete":
                n, start = _integer(description["n"]), _integer(description["start"])
                return discrete_space(n, start, _DTYPES[description["dtype"]])
            case "MultiBinary":
                n = description["n"]
                sizes = _sizes(n if isinstance(n, list) else [n])
                self._take(copies * prod(sizes))
                return MultiBinary(list(sizes) if isinstance(n, list) else n)
            case "Text":
                charset = description["charset"]
                self._take(copies * _CHARACTER_BYTES * len(charset))
                characters = charset if isinstance(charset, str) else "".join(map(chr, _items(charset)))
                shortest, longest = _sizes([description["min_length"], description["max_length"]])
                return Text(longest, min_length=shortest, charset=characters)
        dtype, shape = _DTYPES[description["dtype"]], _sizes(description["shape"])
        self._take(copies * prod(shape) * (2 * dtype.itemsize + 2))
        if description["type"] == "Box":
            return _build_box(description, dtype, shape)
        nvec, start = (_array(description[name], dtype, shape) for name in ("nvec", "start"))
        return MultiDiscrete(nvec, dtype=dtype.str, start=start)


def _build_box(description: dict[str, Any], dtype: np.dtype, shape: tuple[int, ...]) -> Box:
    low, high = (_array(description[name], dtype, shape) for name in ("low", "high"))
    if (low > high).any():
        raise CorruptStoreError("a Box has a lower bound above its upper bound.")
    # Set afterwards, since Box itself would round, warn about or refuse some of the bounds that it can have.
    box = Box(low=0, high=0, shape=shape, dtype=dtype.type)
    box.dtype, box.low, box.high = dtype, low, high
    if hasattr(box, "low_repr"):
        # Gymnasium before 1.3 keeps how the bounds print.
        for name, bounds in (("low_repr", low), ("high_repr", high)):
            alike = bounds.size and bounds.min() == bounds.max()
            setattr(box, name, str(bounds.min() if alike else bounds))
    for name, flags in _natural_flags(low, high).items():
        given = _array(description[name], flags.dtype, shape) if name in description else flags
        setattr(box, name, given)
    return box


def _build_custom(description: dict[str, Any]) -> Space:
    name, spec = description["name"], description["spec"]
    codec = find_named(name)
    if codec is None:
        raise UnsupportedSpaceError(
            f"the store has a space of the class {name}, for which no codec is registered.",
            hint="Call episodelake.register_codec() with this class and its codec before opening the store.",
        )
    space = codec.from_json(spec)
    if not isinstance(space, Space):
        raise TypeError(f"from_json() of the codec for {name} gave {space!r}, not a space")
    return space


def _natural_flags(low: np.ndarray, high: np.ndarray) -> dict[str, np.ndarray]:
    return {"bounded_below": low > -np.inf, "bounded_above": high < np.inf}


def _numbers(array: np.ndarray) -> Any:
    """Return the elements in C order; just the one if all have the same bits."""
    flat = np.ascontiguousarray(array).reshape(-1)
    bits = flat.view(f"u{flat.dtype.itemsize}")
    if flat.size and (bits == bits[0]).all():
        return _number(flat[0])
    return [_number(value) for value in flat]


def _number(value: Any) -> bool | int | float | str:
    number = value.item()
    return number if not isinstance(number, float) or np.isfinite(number) else str(number)


def _array(values: Any, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Make an array of the numbers that `_numbers` wrote."""
    if not isinstance(values, list):
        return np.full(shape, _element(values, dtype), dtype=dtype)
    array = np.array([_element(value, dtype) for value in values], dtype=dtype)
    return array.reshape(shape)


def _element(value: Any, dtype: np.dtype) -> Any:
    wanted = {"b": bool, "f": int | float}.get(dtype.kind, int)
    value = _WORDS.get(value, value) if isinstance(value, str) and dtype.kind == "f" else value
    if not isinstance(value, wanted) or (isinstance(value, bool) and dtype.kind != "b"):
        raise CorruptStoreError(f"{value!r} is no number of dtype {dtype}.")
    if dtype.kind == "f" and float(np.finfo(dtype).max) < abs(value) != np.inf:
        raise CorruptStoreError(f"{value!r} is beyond the numbers of dtype {dtype}.")
    return value


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise CorruptStoreError(f"a space has {type(value).__name__} where a list is expected.")
    return value


def _sizes(values: Any) -> tuple[int, ...]:
    sizes = tuple(map(_integer, _items(values)))
    if not all(0 <= size <= _LARGEST_SIZE for size in sizes):
        raise CorruptStoreError("a space has a size or a length below 0 or above 2**63 - 1.")
    return sizes


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise CorruptStoreError(f"{value!r} is not an integer.")
    return value


def _dtype_name(dtype: np.dtype) -> str:
    name = dtype.name if dtype.isnative else dtype.str
    if name not in _DTYPES:
        raise UnsupportedSpaceError(
            f"dtype {dtype} cannot be stored exactly. Expected a boolean, an integer or a float of at "
            "most 64 bits.",
            hint="Choose such a dtype, or register a codec with episodelake.register_codec().",
        )
    return name
