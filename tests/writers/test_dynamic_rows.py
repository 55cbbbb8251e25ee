"""Rows of mappings on their way to columns and back, against the list of the mappings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from episodelake.store.dynamic import logical_types
from episodelake.store.dynamic.column_groups import INFO, ColumnSet, DynamicRows, merge_rows
from scripted_environment import assert_same_value

LEAVES = st.one_of(
    st.integers(-3, 3), st.floats(allow_nan=False), st.text(max_size=2), st.booleans(), st.none()
)
#: Integers beyond those of a column, and scalars of numpy: kinds and widths mix within a column.
NUMBERS = st.one_of(
    LEAVES,
    st.integers(2**63 - 2, 2**64),
    st.floats(width=32, allow_nan=False).map(np.float32),
    st.floats(width=16, allow_nan=False).map(np.float16),
    st.floats(allow_nan=False).map(np.float64),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.integers(0, 2**64 - 1).map(np.uint64),
    st.booleans().map(np.bool_),
)
VALUES = st.one_of(LEAVES, NUMBERS, st.fixed_dictionaries({"x": LEAVES}, optional={"y": LEAVES}))
KEYS = st.sampled_from([(), ("a",), ("a", "b"), ("b", "a"), ("a", "b", "c"), ("a", 1)])
#: The keys of a row, and those of an attempt before it that was taken back, which may be half put.
ROWS = st.lists(st.tuples(KEYS, st.none() | KEYS, st.booleans()), max_size=12)


@given(rows=ROWS, data=st.data())
def test_any_rows_come_back_in_any_batches(rows: list[Any], data: st.DataObject) -> None:
    """Keys may change from row to row, in number, order and type; rows that were taken back leave nothing."""
    put, expected = DynamicRows(), []
    for row, (keys, attempt, half) in enumerate(rows):
        if attempt:
            put.put(row, dict.fromkeys(attempt, "gone"))
            if half:
                put._alike[attempt][0].pop()
            put.drop(row)
        mapping = {key: data.draw(VALUES) for key in keys}
        if mapping:
            put.put(row, mapping)
        expected.append(mapping)
    columns = ColumnSet(INFO, [])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        made = columns.columns(put, start, stop)
        fields = [logical_types.field(name, kind) for name, (kind, _) in made.items()]
        table = pa.table([array for _, array in made.values()], schema=pa.schema(fields))
        if made:
            for ours, theirs in zip(merge_rows(INFO, table), expected[start:stop], strict=True):
                assert_same_value(ours, theirs)
        else:
            assert not any(expected[start:stop])


FLOATS = st.sampled_from(
    [
        st.floats(),
        st.floats().map(np.float64),
        st.floats(width=32).map(np.float32),
        st.floats(width=16).map(np.float16),
    ]
)


@given(values=FLOATS.flatmap(lambda kind: st.lists(st.none() | kind, max_size=9)))
def test_columns_of_floats_keep_every_bit(values: list[Any]) -> None:
    """A column of one type of floats is that of a plain loop: infinities, NaN, signs of zeros, gaps."""
    put = DynamicRows()
    for row, value in enumerate(values):
        if value is not None:
            put.put(row, {"x": value})
    made = ColumnSet(INFO, []).columns(put, 0, len(values))
    expected = [None if value is None else np.float64(value).tobytes() for value in values]
    cells = made["info.x"][1].to_pylist() if made else [None] * len(values)
    assert [None if cell is None else np.float64(cell).tobytes() for cell in cells] == expected
