"""Values of different lengths: ranges of them, and loaders that yield them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from episodelake.readers.columns.ragged import gather_ranges, range_positions


@given(st.data())
def test_gathered_ranges_are_those_of_a_loop(data: st.DataObject) -> None:
    """Of any order and lengths, 0 too, with repeats; of scalars and of rows with a shape."""
    count = data.draw(st.integers(0, 20))
    shape = data.draw(st.sampled_from([(), (2,), (0,), (2, 3)]))
    values = np.arange(count * int(np.prod(shape))).reshape(count, *shape)
    ranges = data.draw(
        st.lists(st.tuples(st.integers(0, count), st.integers(0, count)).map(sorted), max_size=8)
    )
    starts = np.array([start for start, _ in ranges], np.int64)
    lengths = np.array([stop - start for start, stop in ranges], np.int64)
    expected = [values[start:stop] for start, stop in ranges]
    gathered = gather_ranges(values, starts, lengths)
    np.testing.assert_array_equal(gathered, np.concatenate([values[:0], *expected]))
    assert gathered.dtype == values.dtype
    assert range_positions(starts, lengths).dtype == np.int64
    assert not np.shares_memory(gathered, values)
