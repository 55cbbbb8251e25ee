"""Spaces to columns and back: every space, nested at will, exact in value, dtype and shape."""

import copy
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces as gym_spaces
from gymnasium.spaces import GraphInstance
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples, looped
from episodelake.readers.blocks import is_numeric
from episodelake.store.spaces import SpaceCodec, space_from_json, space_to_json
from episodelake.store.spaces.arrow import PLAIN_TYPES, values_of
from episodelake.testing.adapters import case as named
from strategies import buffered, columns, same, spaces, stack, values

PLAIN = [pa.bool_(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary()]


@st.composite
def spaces_with_values(draw: st.DrawFn) -> tuple[gym_spaces.Space, list[Any]]:
    """Draw a space and up to six values of it."""
    space = draw(spaces())
    return space, draw(values(space, draw(st.integers(0, 6))))


def spoil(value: Any) -> None:
    """Overwrite every array in a nest, as an environment does that reuses its buffers."""
    if isinstance(value, np.ndarray):
        value[...] = 1 - value if value.dtype != np.bool_ else ~value
    elif isinstance(value, dict):
        for part in value.values():
            spoil(part)
    elif isinstance(value, tuple | list):
        for part in value:
            spoil(part)


def is_plain(kind: pa.DataType) -> bool:
    """Tell whether a column type is one that every Delta reader takes."""
    return is_plain(kind.value_type) if pa.types.is_list(kind) else kind in PLAIN


# Round trips


# Buffers that take values one by one.
ONE_BY_ONE = pytest.mark.parametrize("kind", ["buffer", "row_buffer"])


@given(spaces_with_values())
def test_bulk_round_trip(case: tuple[gym_spaces.Space, list[Any]]) -> None:
    """A stacked batch and a list of single values encode to the same columns, and come back exactly."""
    space, items = case
    codec = SpaceCodec(space, "observation")
    expected = stack(space, items)
    for batch in (expected, items):
        arrays = codec.encode_many(batch, len(items))
        assert [array.type for array in arrays] == [field.type for field in codec.fields]
        assert same(codec.decode(arrays), expected)


@ONE_BY_ONE
@given(case=spaces_with_values(), data=st.data())
def test_masked_rows_are_null_and_the_others_exact(
    kind: str, case: tuple[gym_spaces.Space, list[Any]], data: st.DataObject
) -> None:
    """Rows marked invalid are NULL in every column, whether they were put or not; the rest comes back."""
    space, items = case
    codec = SpaceCodec(space, "action")
    valid = np.array(data.draw(st.lists(st.booleans(), min_size=len(items), max_size=len(items))), dtype=bool)
    buffer = getattr(codec, kind)(len(items))
    for index, item in enumerate(items):
        if valid[index] or data.draw(st.booleans()):
            buffer.put(index, item)
    arrays = buffer.arrays(0, len(items), valid)
    for array in arrays:
        array.validate(full=True)
    if arrays and isinstance(space, gym_spaces.Box | gym_spaces.Text | gym_spaces.Sequence):
        assert all(array.is_valid().to_pylist() == valid.tolist() for array in arrays)
    assert all(array.filter(pa.array(~valid)).null_count == (~valid).sum() for array in arrays)
    kept = [array.filter(pa.array(valid)) for array in arrays]
    assert same(
        codec.decode(kept), stack(space, [item for item, keep in zip(items, valid, strict=True) if keep])
    )


@ONE_BY_ONE
@given(case=spaces_with_values(), data=st.data())
def test_any_slice_decodes(kind: str, case: tuple[gym_spaces.Space, list[Any]], data: st.DataObject) -> None:
    """Slices of arrays, and chunked arrays cut anywhere, decode to the same slice of the values."""
    space, items = case
    codec = SpaceCodec(space, "observation")
    start = data.draw(st.integers(0, len(items)))
    stop = data.draw(st.integers(start, len(items)))
    arrays = codec.encode_many(items, len(items))
    assert same(codec.decode([array[start:stop] for array in arrays]), stack(space, items[start:stop]))
    chunked = [pa.chunked_array([array[:start], array[start:stop], array[stop:]]) for array in arrays]
    assert same(codec.decode(chunked), stack(space, items))
    several = getattr(codec, kind)(len(items) + 1)
    for index, item in enumerate(items):
        several.put(index, item)
    assert same(codec.decode(several.arrays(start, stop)), stack(space, items[start:stop]))


@looped(
    "space",
    [
        gym_spaces.Box(0, 255, (2, 3), np.uint8),
        gym_spaces.Box(0, 1, (2, 3), np.float32),
        gym_spaces.Box(0, 255, (), np.uint8),
        gym_spaces.MultiBinary(3),
        gym_spaces.Sequence(gym_spaces.Box(0, 255, (2, 2), np.uint8)),
        gym_spaces.OneOf([gym_spaces.Box(0, 255, (2, 2), np.uint8), gym_spaces.Text(5)]),
    ],
)
def test_a_slice_from_the_middle_decodes(space: gym_spaces.Space) -> None:
    """Arrays with an offset decode from that offset, in each layout of columns."""
    space.seed(3)
    items = [space.sample() for _ in range(9)]
    codec = SpaceCodec(space, "observation")
    arrays = codec.encode_many(items, 9)
    assert same(codec.decode([array[4:7] for array in arrays]), stack(space, items[4:7]))


@settings(max_examples=examples(50))
@given(case=spaces_with_values())
def test_parquet_round_trip(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[gym_spaces.Space, list[Any]]
) -> None:
    """The columns, with a NULL row, go through a Parquet file unchanged, without an Arrow schema in it."""
    space, items = case
    codec = SpaceCodec(space, "observation")
    if not codec.fields:
        return
    buffer = codec.buffer(len(items) + 1)
    for index, item in enumerate(items):
        buffer.put(index, item)
    valid = np.arange(len(items) + 1) < len(items)
    table = pa.Table.from_arrays(buffer.arrays(0, len(items) + 1, valid), schema=pa.schema(codec.fields))
    path = tmp_path_factory.mktemp("columns") / "values.parquet"
    pq.write_table(table, path, store_schema=False)
    read = pq.read_table(path)
    assert read.column_names == [field.name for field in codec.fields]
    assert same(codec.decode(read.slice(0, len(items)).columns), stack(space, items))


@ONE_BY_ONE
@given(case=spaces_with_values())
def test_values_are_copied_when_put(kind: str, case: tuple[gym_spaces.Space, list[Any]]) -> None:
    """Changing a value after it was put changes no row."""
    space, items = case
    codec = SpaceCodec(space, "observation")
    expected = stack(space, copy.deepcopy(items))
    buffer = getattr(codec, kind)(len(items))
    for index, item in enumerate(items):
        buffer.put(index, item)
        spoil(item)
    assert same(codec.decode(buffer.arrays(0, len(items))), expected)


@ONE_BY_ONE
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.int64, np.bool_])
def test_arrays_of_any_memory_layout_are_put(kind: str, dtype: type) -> None:
    """Strides, byte order and bits of the arrays change nothing; rows that were never put are zeros."""
    space = gym_spaces.Box(0, 1, (2, 3), dtype)
    values = np.array([[0, 1, 0], [1, 1, 0]], dtype)
    if values.dtype.kind == "f":
        values = np.array([[np.nan, -0.0, np.inf], [1e-40, -1, 2]], dtype)
    layouts = [
        values,
        np.asfortranarray(values),
        values[::-1].copy()[::-1],
        np.repeat(values, 2, axis=1)[:, ::2],
        values.astype(values.dtype.newbyteorder(">")),
        values.view(type("Own", (np.ndarray,), {})),
        np.ascontiguousarray(values).data,
    ]
    buffer = getattr(SpaceCodec(space, "x"), kind)(len(layouts) + 1)
    for row, value in enumerate(layouts):
        buffer.put(row, value)
    rows = SpaceCodec(space, "x").decode(buffer.arrays(0, len(layouts) + 1))
    shown = buffer.values(0, len(layouts) + 1)
    for row in range(len(layouts)):
        assert rows[row].tobytes() == shown[row].tobytes() == values.tobytes()
    assert not shown[-1].any() and len(buffer.values(3, 3)) == 0


@given(spaces())
def test_columns_are_plain_and_unique(space: gym_spaces.Space) -> None:
    """Every column is nullable, of a plain type, under the root's name, and unique ignoring case."""
    codec = SpaceCodec(space, "observation")
    names = [field.name for field in codec.fields]
    assert all(field.nullable and is_plain(field.type) for field in codec.fields)
    assert all(name == "observation" or name.startswith("observation.") for name in names)
    assert len({name.casefold() for name in names}) == len(names)


# The columns of each space


def test_box_columns() -> None:
    """A Box is a list of the next plain type that holds its dtype; of shape () it is a scalar."""
    cases: list[Any] = [
        ("bool", "bool"),
        ("int8", "int16"),
        ("uint8", "int16"),
        ("int16", "int16"),
        ("uint16", "int32"),
        ("int32", "int32"),
        ("uint32", "int64"),
        ("int64", "int64"),
        ("uint64", "int64"),
        ("float16", "float"),
        ("float32", "float"),
        ("float64", "double"),
    ]
    for dtype, kind in cases:
        with named((dtype, kind)):
            numpy_type = np.dtype(dtype).type
            assert columns(gym_spaces.Box(0, 1, (3,), numpy_type)) == {"x": f"list<item: {kind}>"}
            assert columns(gym_spaces.Box(0, 1, (), numpy_type)) == {"x": kind}


def test_columns_of_every_other_space() -> None:
    """Names and types of columns are the file format, and stay as they are."""
    box = gym_spaces.Box(0, 1, (2,), np.float32)
    frame = gym_spaces.Box(0, 255, (2, 2), np.uint8)
    discrete = gym_spaces.Discrete(3)
    floats = "list<item: float>"
    assert columns(frame) == {"x": "binary"}
    assert columns(discrete) == {"x": "int64"}
    assert columns(gym_spaces.MultiDiscrete([2, 3])) == {"x": "list<item: int64>"}
    assert columns(gym_spaces.MultiBinary(3)) == {"x": "list<item: bool>"}
    assert columns(gym_spaces.Text(3)) == {"x": "string"}
    assert columns(gym_spaces.Dict({"a.b": box, "c": gym_spaces.Tuple([discrete, frame])})) == {
        "x.a%2Eb": floats,
        "x.c.0": "int64",
        "x.c.1": "binary",
    }
    assert columns(gym_spaces.Sequence(box)) == {"x": f"list<item: {floats}>"}
    assert columns(gym_spaces.Sequence(gym_spaces.Sequence(gym_spaces.Tuple([])))) == {
        "x.length": "list<item: int64>"
    }
    assert columns(gym_spaces.Graph(box, discrete)) == {
        "x.nodes": f"list<item: {floats}>",
        "x.edges": "list<item: int64>",
        "x.edge_links": "list<item: list<item: int32>>",
    }
    assert columns(gym_spaces.OneOf([box, gym_spaces.Text(2)])) == {
        "x.choice": "int64",
        "x.0": floats,
        "x.1": "string",
    }
    assert columns(gym_spaces.Dict({})) == {}


def test_row_bytes() -> None:
    """A row counts its fixed leaves exactly, and 64 bytes for each ragged space."""
    box = gym_spaces.Box(0, 1, (17,), np.float32)
    assert SpaceCodec(box, "x").row_bytes == 68
    nest = gym_spaces.Dict({"a": box, "b": gym_spaces.Text(3), "c": gym_spaces.Discrete(2)})
    assert SpaceCodec(nest, "x").row_bytes == 68 + 64 + 8


def test_uint64_keeps_its_bits() -> None:
    """The upper half of uint64 is stored as negative int64, and comes back."""
    space = gym_spaces.Box(0, 1, (2,), np.uint64)
    codec = SpaceCodec(space, "x")
    arrays = codec.encode_many(np.array([[2**64 - 1, 2**63]], dtype=np.uint64), 1)
    assert arrays[0].to_pylist() == [[-1, -(2**63)]]
    assert codec.decode(arrays).tolist() == [[2**64 - 1, 2**63]]


def test_float32_arrays_share_memory_both_ways() -> None:
    """A list column of the Box's own type is neither copied into Arrow nor out of it, and is read-only."""
    codec = SpaceCodec(gym_spaces.Box(0, 1, (4,), np.float32), "x")
    stacked = np.ones((5, 4), dtype=np.float32)
    decoded = codec.decode(codec.encode_many(stacked, 5))
    assert np.shares_memory(decoded, stacked)
    assert not decoded.flags.writeable


def test_frames_share_memory_both_ways() -> None:
    """Frames go into a binary column and come out of it without a copy."""
    codec = SpaceCodec(gym_spaces.Box(0, 255, (4, 4, 3), np.uint8), "x")
    stacked = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 3), dtype=np.uint8)
    arrays = codec.encode_many(stacked, 5)
    assert arrays[0][2].as_py() == stacked[2].tobytes()
    assert np.shares_memory(codec.decode(arrays), stacked)


def test_a_graph_may_have_composite_nodes() -> None:
    """Nodes and edges may be any space; the columns compose."""
    node = gym_spaces.Dict({"kind": gym_spaces.Text(3), "size": gym_spaces.Box(0, 1, (), np.float64)})
    codec = SpaceCodec(gym_spaces.Graph(node, gym_spaces.Text(2)), "x")
    assert [field.name for field in codec.fields] == [
        "x.nodes.kind",
        "x.nodes.size",
        "x.edges",
        "x.edge_links",
    ]
    nodes = {"kind": ("a", "b"), "size": np.array([1.0, np.nan])}
    graphs = [
        GraphInstance(nodes, ("ab",), np.array([[0, 1]], dtype=np.int32)),
        GraphInstance(nodes, None, np.array([[1, 1]], dtype=np.int32)),
        GraphInstance(nodes, (), np.zeros((0, 2), dtype=np.int32)),
    ]
    assert same(codec.decode(codec.encode_many(graphs, 3)), graphs)


def test_other_byte_orders_come_back() -> None:
    """A space of swapped byte order keeps its dtype in JSON and in values."""
    space = gym_spaces.Box(0, 9, (2,), np.dtype(">f4"))  # pyright: ignore
    codec = SpaceCodec(space, "x")
    decoded = codec.decode(buffered(codec, [np.array([1, 2], dtype=">f4"), np.array([3, 4], dtype="<f4")]))
    assert decoded.dtype == np.dtype(">f4")
    assert decoded.tolist() == [[1, 2], [3, 4]]
    assert space_from_json(space_to_json(space)).dtype == np.dtype(">f4")


def test_rows_that_were_rewritten_with_large_types_still_decode() -> None:
    """Arrays that another engine handed back with 64-bit offsets are cast, then decoded."""
    space = gym_spaces.Dict({"a": gym_spaces.Box(0, 1, (2,)), "b": gym_spaces.Text(3)})
    codec = SpaceCodec(space, "x")
    batch = {"a": np.ones((2, 2), np.float32), "b": ["é", ""]}
    floats, text = codec.encode_many(batch, 2)
    assert same(codec.decode([floats.cast(pa.large_list(pa.float32())), text.cast(pa.large_string())]), batch)


@looped("kind", [kind for kind in PLAIN_TYPES if is_numeric(kind)])
def test_values_of_any_part_are_those_of_arrow(kind: pa.DataType) -> None:
    """Arrays, slices and chunks come as numpy, empty ones too; only values at NULLs are undefined."""
    whole = pa.array([1, 0, None, 1, 1, 0, 0, 1, 0, 1, 1], pa.int8()).cast(kind)
    chunks = [
        pa.chunked_array([whole[1:4], whole[5:]]),
        pa.chunked_array([whole]),
        pa.chunked_array([], kind),
    ]
    for part in (whole, whole[3:], whole[4:9], whole[:0], pa.nulls(0, kind), *chunks):
        valid, values = values_of(part.is_valid()), values_of(part)
        assert valid.tolist() == [value is not None for value in part.to_pylist()]
        assert values.dtype == kind.to_pandas_dtype()
        assert values[valid].tolist() == part.drop_null().to_pylist()
