"""Rows of mappings on their way to columns and back, against the list of the mappings."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from episodelake.store.dynamic import logical_types
from episodelake.store.dynamic.column_groups import INFO, ColumnSet, DynamicRows, merge_rows
from scripted_environment import assert_same_value

LEAVES = st.one_of(
    st.integers(-3, 3), st.floats(allow_nan=False), st.text(max_size=2), st.booleans(), st.none()
)
VALUES = st.one_of(LEAVES, st.fixed_dictionaries({"x": LEAVES}, optional={"y": LEAVES}))
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
