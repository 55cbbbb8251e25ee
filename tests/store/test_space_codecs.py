"""Spaces without columns: refused with a reason, until someone registers a codec for them."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces as gym_spaces

from effort import looped
from episodelake.store.errors import (
    InvalidArgumentError,
    SpaceMismatchError,
    UnsupportedSpaceError,
)
from episodelake.store.spaces import SpaceCodec, register_codec, space_from_json, space_to_json
from strategies import buffered, columns, same, stack

BOX = gym_spaces.Box(-1, 1, (2,), np.float32)


class Colour(gym_spaces.Space):
    """A space that nobody knows: the names of some colours."""

    def __init__(self, names: tuple[str, ...]):
        """Keep the names."""
        super().__init__(None, None)
        self.names = names

    def __eq__(self, other: object) -> bool:
        """Compare the names."""
        return isinstance(other, Colour) and self.names == other.names


class PaintedBox(gym_spaces.Box):
    """A Box with a codec of its own, tested against the columns of a plain one."""


class ColourCodec:
    """Stores a colour as its position and its name."""

    def fields(self, space: Colour) -> dict[str, pa.DataType]:
        """Two parts, one of them with a dot in its name."""
        return {"": pa.int64(), "full.name": pa.list_(pa.string())}

    def encode(self, space: Colour, value: str) -> dict[str, Any]:
        """Refuses an unknown colour with a ValueError."""
        return {"": space.names.index(value), "full.name": [value, value.upper()]}

    def decode(self, space: Colour, parts: dict[str, Any]) -> str:
        """Reads the position."""
        assert parts["full.name"][0] == space.names[parts[""]]
        return space.names[parts[""]]

    def to_json(self, space: Colour) -> dict[str, Any]:
        """Keeps the names."""
        return {"names": list(space.names)}

    def from_json(self, description: dict[str, Any]) -> Colour:
        """Reads the names."""
        return Colour(tuple(description["names"]))


class PaintedCodec(ColourCodec):
    """Stores a Box as its sum."""

    def fields(self, space: Any) -> dict[str, pa.DataType]:
        """One number."""
        return {"sum": pa.float64()}

    def encode(self, space: Any, value: Any) -> dict[str, Any]:
        """Adds up."""
        return {"sum": float(np.sum(value))}

    def decode(self, space: Any, parts: dict[str, Any]) -> Any:
        """Returns the sum."""
        return parts["sum"]


def test_unknown_spaces_are_refused_until_a_codec_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown space names itself, its path and register_codec; registered, it round trips in any nest."""
    monkeypatch.setattr("episodelake.store.spaces.node._registered", {})
    colour = Colour(("red", "blue"))
    space = gym_spaces.Dict({"paint": gym_spaces.Sequence(colour), "text": gym_spaces.Text(3)})
    with pytest.raises(
        UnsupportedSpaceError,
        match=r"Colour.*'x\.paint'.*register_codec|'x\.paint' \(Colour\).*register_codec",
    ):
        SpaceCodec(space, "x")
    with pytest.raises(UnsupportedSpaceError, match="register_codec"):
        space_to_json(space)

    register_codec(Colour, ColourCodec())
    codec = SpaceCodec(space, "x")
    assert [field.name for field in codec.fields] == ["x.paint", "x.paint.full%2Ename", "x.text"]
    items = [{"paint": ("red", "blue"), "text": "a"}, {"paint": (), "text": ""}]
    assert same(codec.decode(buffered(codec, items)), stack(space, items))
    with pytest.raises(SpaceMismatchError, match=r"x\.paint"):
        codec.buffer(1).put(0, {"paint": ("green",), "text": ""})

    description = json.loads(json.dumps(space_to_json(space)))
    assert description["spaces"][0][1]["space"] == {
        "type": "custom",
        "name": f"{__name__}.Colour",
        "spec": {"names": ["red", "blue"]},
    }
    assert space_from_json(description) == space
    monkeypatch.setattr("episodelake.store.spaces.node._registered", {})
    with pytest.raises(UnsupportedSpaceError, match=r"Colour.*register_codec"):
        space_from_json(description)


def test_the_codec_of_the_nearest_class_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A codec for a subclass of Box wins over the columns of Box; other subclasses keep those."""
    monkeypatch.setattr("episodelake.store.spaces.node._registered", {})
    painted = PaintedBox(0, 1, (2,), np.float32)
    assert columns(painted) == {"x": "list<item: float>"}
    register_codec(PaintedBox, PaintedCodec())

    class VeryPaintedBox(PaintedBox):
        """A subclass of the registered class."""

    assert columns(painted) == columns(VeryPaintedBox(0, 1, (2,), np.float32)) == {"x.sum": "double"}
    assert columns(gym_spaces.Box(0, 1, (2,))) == {"x": "list<item: float>"}
    codec = SpaceCodec(painted, "x")
    assert codec.decode(buffered(codec, [np.ones(2), np.zeros(2)])) == [2.0, 0.0]


@pytest.mark.parametrize(
    ("space_type", "codec"), [(gym_spaces.Box, ColourCodec()), (int, ColourCodec()), (Colour, object())]
)
def test_nonsense_is_not_registered(space_type: Any, codec: Any) -> None:
    """Gymnasium's own spaces, other classes and incomplete codecs are refused."""
    with pytest.raises(InvalidArgumentError, match=r"Pass the class|Derive a class|See episodelake\.Codec"):
        register_codec(space_type, codec)


def test_codecs_with_columns_that_delta_cannot_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A codec whose fields are not plain types is refused when the store is created."""
    monkeypatch.setattr("episodelake.store.spaces.node._registered", {})
    for fields in ({"a": pa.uint8()}, {}, {"a": pa.list_(pa.float16())}, {1: pa.int64()}):
        codec = ColourCodec()
        codec.fields = lambda space, fields=fields: fields  # pyright: ignore
        register_codec(Colour, codec)
        with pytest.raises(UnsupportedSpaceError, match="plain type"):
            SpaceCodec(Colour(("red",)), "x")


@looped(
    "space",
    [
        gym_spaces.Dict([(1, BOX)]),  # pyright: ignore
        gym_spaces.Dict({"a\ud800": BOX}),
        gym_spaces.Box(0, 1, (2,), np.longdouble),
        gym_spaces.Tuple([gym_spaces.Space()]),
    ],
)
def test_spaces_without_columns_are_refused(space: gym_spaces.Space) -> None:
    """Keys that are no text, dtypes that no column holds and bare spaces are refused, in JSON as well."""
    with pytest.raises(UnsupportedSpaceError, match="register_codec"):
        SpaceCodec(space, "observation")
    with pytest.raises(UnsupportedSpaceError, match="register_codec"):
        space_to_json(space)


def test_spaces_nested_too_deep_are_refused() -> None:
    """More than 64 levels are refused, for columns and for JSON alike."""
    space: gym_spaces.Space = gym_spaces.Discrete(2)
    for _ in range(65):
        space = gym_spaces.Tuple([space])
    with pytest.raises(UnsupportedSpaceError, match="64"):
        SpaceCodec(space, "x")
    with pytest.raises(UnsupportedSpaceError, match="64"):
        space_to_json(space)
