"""Spaces to columns, exactly and both ways.

`SpaceCodec` turns the values of one Gymnasium space into Arrow columns and back; `space_to_json` and
`space_from_json` do the same for the space itself; `register_codec` teaches both a space class of your own.
The writers put values in here, the readers take them out. Imports only the errors, the names and the checks
of arguments.
"""

from __future__ import annotations

from .codec import SpaceCodec
from .describe import own_classes, plain_space, same_space, space_from_json, space_to_json
from .node import Codec, ValueBuffer, register_codec

__all__ = [
    "Codec",
    "SpaceCodec",
    "ValueBuffer",
    "own_classes",
    "plain_space",
    "register_codec",
    "same_space",
    "space_from_json",
    "space_to_json",
]
