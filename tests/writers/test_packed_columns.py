"""Packed columns of the journal: what is unpacked is what was packed, and nothing else is taken for it."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import duckdb
import gymnasium
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import episodelake as el
from effort import with_folders
from episodelake.store.common.prefetch import prefetch
from episodelake.store.journal import packed_columns
from episodelake.store.journal.packed_columns import (
    PACKED,
    PAGE_VALUE_BYTES,
    VALUE_BYTES,
    Arena,
    PackedRows,
    Packer,
    gathered,
    plain_bytes,
    unpack_all,
)
from episodelake.store.journal.reading import PartReader
from episodelake.store.journal.records import RunHeader
from episodelake.store.journal.run_journal import PartWriter, part_path
from episodelake.store.parquet.pages import footer_with_pages
from episodelake.store.segments import steps_file
from episodelake.store.spaces.arrow import UNGATHERED
from episodelake.testing.adapters import case
from waiting import background_threads, line_of, wait_until

SHAPE = (64, 64, 3)
SIZE = 64 * 64 * 3
FRAMES = gymnasium.spaces.Box(0, 255, SHAPE, np.uint8)


def batch_of(lanes: list[int], absent: set[int], *, noise: bool = False) -> pa.RecordBatch:
    """Rows with an image each, NULL where absent; `lanes` says how many of a lane follow one another."""
    rows = sum(lanes)
    generator = np.random.default_rng(rows)
    images = [
        generator.bytes(SIZE) if noise else bytes([row % 256, row // 256]) * (SIZE // 2)
        for row in range(rows)
    ]
    cells = [None if row in absent else image for row, image in enumerate(images)]
    numbers = np.repeat(np.arange(len(lanes)), lanes)
    arrays = [pa.array(numbers), pa.array(cells, pa.binary()), pa.array(np.arange(rows))]
    return pa.record_batch(arrays, names=["_number", "observation", "info.row"])


@st.composite
def batches(draw: st.DrawFn) -> tuple[pa.RecordBatch, int, int]:
    """A batch and a range of its rows."""
    lanes = draw(st.lists(st.integers(1, 400), min_size=1, max_size=6))
    rows = sum(lanes)
    absent = draw(st.sets(st.integers(0, rows - 1), max_size=min(5, rows - 1)))
    start, stop = sorted(draw(st.tuples(st.integers(0, rows), st.integers(0, rows))))
    return batch_of(lanes, absent), start, stop


@given(batches())
def test_any_rows_come_back(drawn: tuple[pa.RecordBatch, int, int]) -> None:
    """Any range of rows is unpacked to what it was, also where it cuts a unit or has NULLs at its ends."""
    batch, start, stop = drawn
    packed = Packer().packed(batch)
    plain = batch.slice(start, stop - start)
    assume(packed.schema.field("observation").type == PACKED)
    assert packed.nbytes < batch.nbytes / 10
    body = batch.nbytes - packed.nbytes
    assert abs(plain_bytes(packed, 0) - body) <= 8 * batch.num_rows + 64
    part = PackedRows.of(packed, None).part(start, stop)
    assert part.unpacked().equals(plain)
    again = PackedRows.of(packed, None)
    (joined, *more) = unpack_all([again.part(start, stop), again.part(0, 0)], Arena(1 << 20))
    assert pa.Table.from_batches([joined, *more]).combine_chunks().equals(pa.table(plain))


@given(batches(), st.booleans())
def test_chosen_rows_of_a_buffer_are_packed_like_a_copy_of_them(
    drawn: tuple[pa.RecordBatch, int, int], noise: bool
) -> None:
    """Frames that are gathered only when they are packed give the same batch, packed or not."""
    plain, start, stop = drawn
    if noise:
        plain = batch_of([stop - start + 1, 3], {0}, noise=True)
    frames = plain.column("observation")
    order = np.random.default_rng(start).permutation(plain.num_rows)
    buffer = frames.fill_null(bytes(SIZE)).take(pa.array(np.argsort(order)))
    rows = pa.array(order, pa.int32(), mask=frames.is_null().to_numpy(zero_copy_only=False))
    chosen = pa.record_batch(
        [plain.column(0), pa.DictionaryArray.from_arrays(rows, buffer), plain.column(2)],
        names=plain.schema.names,
    )
    assert chosen.schema.field("observation").type == UNGATHERED
    assert Packer().packed(chosen).equals(Packer().packed(plain), check_metadata=True)
    assert gathered(chosen).equals(plain)


def test_what_does_not_shrink_stays() -> None:
    """Noise is left as it is, at once where all of it is, and where only some is."""
    noise, images = batch_of([20], set(), noise=True), batch_of([20], set())
    packer = Packer()
    assert packer.packed(noise) is noise
    assert packer.packed(images).schema.field("observation").type == PACKED
    mostly = pa.concat_batches([noise, batch_of([7], set()), batch_of([21], set(), noise=True)])
    assert packer.packed(mostly) is mostly


def test_short_and_uneven_values_stay() -> None:
    """Values of several sizes are no frames, and little ones are not worth packing."""
    uneven = pa.record_batch(
        [pa.array([0, 0]), pa.array([bytes(90_000), bytes(80_000)])], names=["_number", "observation"]
    )
    little = pa.record_batch([pa.array([0, 0]), pa.array([bytes(9)] * 2)], names=["_number", "observation"])
    assert Packer().packed(uneven) is uneven
    assert Packer().packed(little) is little


def packed_by_earlier_writers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The observations of a batch as one LZ4 frame of bare values."""
    place = batch.schema.get_field_index("observation")
    unit = pa.Codec("lz4").compress(b"".join(batch.column(place).to_pylist()), asbytes=True)
    field = pa.field("observation", PACKED, metadata={VALUE_BYTES: str(SIZE).encode()})
    return batch.set_column(place, field, pa.array([unit, *[b""] * (batch.num_rows - 1)], PACKED))


def test_a_journal_that_claims_other_sizes_is_set_aside(tmp_path: Path) -> None:
    """Nobody unpacks more or less than what was packed, nor makes room for what cannot be there."""
    sizes = [str(SIZE - 1), str(SIZE + 1), str(2**31 - 1), str(2**40), "0", "-1", "many", ""]
    cases = itertools.product([PAGE_VALUE_BYTES, VALUE_BYTES], sizes)
    for folder, (key, value_bytes) in with_folders(cases, tmp_path):
        with case((key, value_bytes)):
            path = folder / "store"
            spaces = {"observation_space": FRAMES, "action_space": gymnasium.spaces.Discrete(2)}
            store = el.create(path, **spaces)
            pack = Packer().packed if key == PAGE_VALUE_BYTES else packed_by_earlier_writers
            batch = pack(journal_rows(store, 5))
            place = batch.schema.get_field_index("observation")
            field = pa.field("observation", PACKED, metadata={key: value_bytes.encode()})
            dead_journal(path, batch.set_column(place, field, batch.column(place)))
            with pytest.raises(el.errors.CorruptStoreError, match=r"000000\.frames"):
                el.recover(path)
            assert [each.name for each in (path / "journal").iterdir()] == ["run-0123456789abcde.damaged"]


@pytest.mark.parametrize("pack", [Packer().packed, packed_by_earlier_writers, lambda batch: batch])
def test_journals_with_and_without_packed_columns_are_recovered(
    pack: Callable[[pa.RecordBatch], pa.RecordBatch], tmp_path: Path
) -> None:
    """What earlier writers journalled is read as what is journalled now."""
    store = el.create(tmp_path / "store", observation_space=FRAMES, action_space=gymnasium.spaces.Discrete(2))
    dead_journal(tmp_path / "store", pack(journal_rows(store, 5)))
    (run,) = el.recover(tmp_path / "store")
    assert (run.episodes, run.steps) == (1, 4)
    (episode,) = store.refresh()
    assert np.array_equal(episode.observations, np.arange(5)[:, None, None, None] + np.zeros(SHAPE, np.uint8))
    assert not store.verify().faults


class Film(gymnasium.Env):
    """Shows frames by episode and step; episodes have these lengths."""

    observation_space, action_space = FRAMES, gymnasium.spaces.Discrete(2)

    def __init__(self, frame: Callable[[int, int], np.ndarray], lengths: list[int]) -> None:
        self._frame, self._lengths = frame, lengths
        self._number, self._t = -1, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Begin the next episode."""
        self._number, self._t = self._number + 1, 0
        return self._frame(self._number, 0), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Show the next frame."""
        self._t += 1
        frame = self._frame(self._number, self._t)
        return frame, 1.0, self._t == self._lengths[self._number], False, {}


@pytest.mark.parametrize("case", ["short", "long", "noise", "late"])
def test_a_segment_takes_the_pages_of_the_journal(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines and checksums find each frame in its row, whether pages are copied, cut or made anew."""
    monkeypatch.setattr(steps_file, "GROUP_BYTES", 100 * SIZE)
    lengths = [230, 60] if case == "long" else [40, 3, 25]
    noisy = range(20, 90) if case == "noise" else range(0)
    if case == "short":
        monkeypatch.setattr(packed_columns, "_unpack", lambda *_: pytest.fail("a page was unpacked"))

    def frame(number: int, t: int) -> np.ndarray:
        noise = np.random.default_rng(t).integers(0, 256, SHAPE, np.uint8)
        return noise if t in noisy else np.full(SHAPE, (number + t) % 256, np.uint8)

    env = Film(frame, lengths)
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder:
        for length in lengths:
            recorder.reset()
            for t in range(1, length + 1):
                recorder.step(0)
                if t % 30 == 0:
                    recorder.flush()
            if case == "late":
                recorder.log(value=1.0)
    expected = [frame(number, t) for number, length in enumerate(lengths) for t in range(length + 1)]
    assert not store.refresh().verify().faults
    (path,) = (tmp_path / "store" / "steps").glob("*.parquet")
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
        cells = [pq.read_table(path), pl.read_parquet(path).to_arrow(), file.read()]
    cells.append(duckdb.sql(f"SELECT observation FROM '{path}'").to_arrow_table())
    for table in cells:
        assert table.column("observation").to_pylist() == [each.tobytes() for each in expected]
    for group in groups:
        columns = [group.column(index) for index in range(group.num_columns)]
        assert group.total_byte_size == sum(column.total_uncompressed_size for column in columns)
    assert np.array_equal(np.concatenate([each.observations for each in store.refresh()]), expected)


def test_a_footer_is_written_as_it_was_read() -> None:
    """Encoded footers are those that Arrow wrote, of columns of all kinds."""
    values = {"a.b": [1, None], "list": [[1.5], []], "text": ["x", "y"], "flag": [True, None]}
    sink = pa.BufferOutputStream()
    table = pa.table({**values, **{f"column {index}": [0, 1] for index in range(40)}})
    pq.write_table(
        table, sink, row_group_size=1, write_page_index=True, sorting_columns=[pq.SortingColumn(0)]
    )
    data = sink.getvalue().to_pybytes()
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    assert footer_with_pages(footer, [{}, {}]) == footer


@pytest.mark.parametrize("own", [False, True])
def test_rows_that_were_given_in_part_before_are_unpacked(own: bool, tmp_path: Path) -> None:
    """Of a batch whose first rows were in an earlier one only the others count."""
    store = el.create(tmp_path / "store", observation_space=FRAMES, action_space=gymnasium.spaces.Discrete(2))
    batch = journal_rows(store, 5)
    directory = dead_journal(tmp_path / "store", batch.slice(0, 2), (Packer().packed(batch), 0))
    read = [found.rows for found in PartReader(part_path(directory, 0), own=own).batches()]
    assert [rows.num_rows for rows in read] == [2, 3]
    assert read[1].column("observation").equals(batch.column("observation").slice(2))


def journal_rows(store: el.EpisodeStore, count: int) -> pa.RecordBatch:
    """Arrivals of one episode in which observation t has the value t everywhere."""
    schema = store.handle.schema
    steps = np.arange(count) > 0
    flags = pa.array([False] * count, mask=~steps)
    columns = {
        "_number": pa.array(np.zeros(count, np.int64)),
        "_kind": pa.array(steps.astype(np.int16)),
        "observation": pa.array([bytes([t]) * SIZE for t in range(count)]),
        "action": pa.array(np.zeros(count, np.int64), mask=~steps),
        "reward": pa.array(np.ones(count), mask=~steps),
        "terminated": flags,
        "truncated": flags,
    }
    return pa.record_batch([columns[name] for name in schema.journal.names], schema=schema.journal)


def dead_journal(path: Path, batch: pa.RecordBatch, *more: tuple[pa.RecordBatch, int]) -> Path:
    """Write the journal of a dead writer with these batches."""
    directory = path / "journal" / "run-0123456789abcde"
    directory.mkdir()
    header = RunHeader("run-0123456789abcde", "run", 0, None, "{}", "{}")
    writer = PartWriter(part_path(directory, 0), header, sync=False)
    writer.append(batch, [{"event": "begin", "number": 0, "env_index": 0, "started_at": 0}], 0)
    for following, first in more:
        writer.append(following, [], first)
    writer.close()
    return directory


KILLED = """
import os, sys, time
from pathlib import Path
import gymnasium, numpy as np
import episodelake as el
sys.path.insert(0, sys.argv[2])
from waiting import wait_for_journal

space = gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)
store = el.create(sys.argv[1], observation_space=space, action_space=gymnasium.spaces.Discrete(2))
writer = store.writer(flush_seconds=0.01, seal_seconds=1e6)
episode = writer.begin(np.zeros((64, 64, 3), np.uint8))
sizes = []
for t in range(1, 1001):
    noise = np.random.default_rng(t).integers(0, 256, (64, 64, 3), np.uint8)
    episode.append(0, float(t), noise if 300 <= t < 600 else np.full((64, 64, 3), t % 251, np.uint8))
journal = Path(sys.argv[1]) / "journal" / writer.run_id
wait_for_journal(journal, 1000)
print(sum(file.stat().st_size for file in journal.glob("*.frames")), flush=True)
time.sleep(600)
"""


@pytest.mark.further
def test_a_killed_writer_of_frames_loses_nothing(tmp_path: Path) -> None:
    """Frames that shrink and frames that do not come back from the journal of a killed process."""
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path / "store"), tests]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        size = int(line_of(child))
        os.kill(child.pid, signal.SIGKILL)
    # Noise takes its room, the rest hardly any.
    assert 300 * SIZE < size < 650 * SIZE
    (run,) = el.recover(tmp_path / "store")
    assert (run.steps, run.torn_bytes) == (1000, 0)
    (episode,) = el.open(tmp_path / "store")
    for t, observation in enumerate(episode.observations):
        noise = np.random.default_rng(t).integers(0, 256, SHAPE, np.uint8)
        assert np.array_equal(observation, noise if 300 <= t < 600 else np.full(SHAPE, t % 251, np.uint8))


# Making the next item beside


def test_items_come_in_order_from_other_threads() -> None:
    """All items come, in order, made by one other thread."""
    makers: list[int] = []

    def items() -> Generator[int, None, None]:
        for item in range(5):
            makers.append(threading.get_ident())
            yield item

    assert list(prefetch(items())) == [0, 1, 2, 3, 4]
    assert list(prefetch(item for item in ())) == []
    assert len(set(makers)) == 1 and threading.get_ident() not in makers


def test_what_making_an_item_raises_comes_where_it_would_have_come() -> None:
    """The items before come first; nothing is made behind an error, or when the caller has gone."""
    made: list[int] = []

    def items() -> Generator[int, None, None]:
        for item in range(5):
            made.append(item)
            if item == 2:
                raise KeyError(item)
            yield item

    found = prefetch(items())
    assert [next(found), next(found)] == [0, 1]
    with pytest.raises(KeyError, match="2"):
        next(found)
    assert made == [0, 1, 2]
    made.clear()
    left = prefetch(items())
    assert next(left) == 0
    left.close()
    assert made in ([0], [0, 1])
    wait_until(lambda: not background_threads(), "the end of the background threads")
