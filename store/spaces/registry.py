"""Codecs for spaces that Episodelake does not know.

`register_codec` binds a codec to a class of spaces for this process. A store keeps only the name of the
class and what the codec's `to_json` says about the space; opening it needs the codec registered again.
Nothing is ever imported by a name that stands in a store.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from gymnasium import spaces
from gymnasium.spaces import Space

from ..errors import InvalidArgumentError, UnsupportedSpaceError
from ..names import has_utf8

BUILT_IN: tuple[type[Space], ...] = (
    *(spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Text),
    *(spaces.Dict, spaces.Tuple, spaces.Sequence, spaces.Graph, spaces.OneOf),
)


@runtime_checkable
class Codec(Protocol):
    """Converts the values of one class of spaces to columns, and back.

    Values of such a space are decoded into a list with one value for each row.
    """

    def fields(self, space: Any) -> dict[str, pa.DataType]:
        """Return the columns: part names relative to the space's column, `""` for that column itself.

        At least one. Types: bool, int16, int32, int64, float32, float64, string, binary, or a list of those.
        """
        ...

    def encode(self, space: Any, value: Any) -> dict[str, Any]:
        """Return a plain Python value for each part, fit for its type (None for NULL); it is copied.

        Raises:
            ValueError, TypeError: the value does not fit the space; the caller gets a `SpaceMismatchError`.
        """
        ...

    def decode(self, space: Any, parts: dict[str, Any]) -> Any:
        """Return the value of which `encode` made these parts."""
        ...

    def to_json(self, space: Any) -> dict[str, Any]:
        """Return a description to make the space again from, in plain JSON types (no NaN, no infinity)."""
        ...

    def from_json(self, description: dict[str, Any]) -> Any:
        """Return the space that `to_json` described; `description` comes from a file, so check it."""
        ...


_registered: dict[type, Codec] = {}


def register_codec(space_type: type, codec: Codec) -> None:
    """Store spaces of a class of your own with a codec of your own, for the rest of this process.

    Subclasses of `space_type` use it too, unless a codec is registered for a class nearer to them. For a
    subclass of a built-in space (such as Box) the codec takes precedence over the built-in columns.
    Registering a class again replaces its codec. Register before a store is created or opened.

    Args:
        space_type: a subclass of `gymnasium.spaces.Space`, but none of Gymnasium's own spaces.
        codec: an object with the methods of `Codec`.

    Raises:
        InvalidArgumentError: `space_type` is no such class, or `codec` lacks a method.
    """
    if not isinstance(space_type, type) or not issubclass(space_type, Space) or space_type is Space:
        raise InvalidArgumentError(
            f"cannot register a codec for {space_type!r}: expected a subclass of gymnasium.spaces.Space. "
            "Hint: pass the class, not an instance."
        )
    if space_type in BUILT_IN:
        raise InvalidArgumentError(
            f"cannot register a codec for {space_type.__name__}: the columns of Gymnasium's own spaces "
            "belong to the file format. Hint: derive a class from it and register that."
        )
    if not isinstance(codec, Codec):
        raise InvalidArgumentError(
            f"cannot register {codec!r}: expected an object with the methods fields, encode, decode, to_json "
            "and from_json. Hint: see episodelake.Codec."
        )
    _registered.pop(space_type, None)  # so that the latest stands last
    _registered[space_type] = codec


def find(space: Any, where: str = "") -> tuple[type, Codec | None]:
    """Return the class that decides how `space` is stored, and its codec (None for a built-in).

    Raises:
        UnsupportedSpaceError: there is none; the message names the place, ` at 'column'`.
    """
    for each in type(space).__mro__ if isinstance(space, Space) else ():
        if each in _registered:
            return each, _registered[each]
        if each in BUILT_IN:
            return each, None
    if is_text(space):
        return spaces.Text, None
    raise UnsupportedSpaceError(
        f"space {space!r}{where} ({type(space).__name__}) is of a class without columns. Expected the spaces "
        "of Gymnasium. Hint: register a codec for the class with episodelake.register_codec()."
    )


def is_text(space: Any) -> bool:
    """Return whether the values of a space are texts, as those of Text and of MiniGrid's missions."""
    dtype = getattr(space, "dtype", None) if isinstance(space, Space) else None
    return dtype is not None and np.dtype(dtype).kind == "U"


def check_keys(space: spaces.Dict, where: str = "") -> None:
    """Refuse a Dict space whose keys cannot be column names.

    Raises:
        UnsupportedSpaceError: names the keys and the place, ` at 'column'`.
    """
    wrong = [key for key in space.spaces if not isinstance(key, str) or not has_utf8(key)]
    if wrong:
        raise UnsupportedSpaceError(
            f"space {space}{where} has the keys {wrong}. Expected keys that are text in UTF-8, since they "
            "become column names. Hint: rename the keys with a wrapper, or register a codec for a class of "
            "your own with episodelake.register_codec()."
        )


def find_named(name: str) -> Codec | None:
    """Return the codec of the registered class of that name, the latest if there are several."""
    return next(
        (codec for each, codec in reversed(_registered.items()) if qualified_name(each) == name), None
    )


def qualified_name(space_type: type) -> str:
    """Return the name under which a store remembers a class."""
    return f"{space_type.__module__}.{space_type.__qualname__}"
