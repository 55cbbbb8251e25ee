"""Streaming, beside the rules of `LoaderContract`: what is read when, threads, workers, memory, shuffling."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import episodelake as el
from effort import examples
from episodelake.readers.blocks import SegmentFile
from episodelake.readers.loading.feed import ShardSlice
from episodelake.readers.loading.stream import Group, StreamFeed, _sorting
from loader_batches import (
    BOX,
    NESTED,
    PLACES,
    all_places,
    assert_identical,
    flat,
    places,
    segmented_store,
    small_row_groups,
)
from waiting import PATIENCE, background_threads, wait_until

#: Bytes of a row of the column that the tests of the order read, doubled: half of a buffer is one group.
_ROW = 2 * 16

_kept: list[el.EpisodeStore] = []


@pytest.fixture(scope="module", autouse=True)
def _stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Three stores, made once: many short episodes, a few long ones among them, and nested spaces."""
    rng = np.random.default_rng(5)
    with pytest.MonkeyPatch.context() as patch:
        small_row_groups(patch)
        for number, (count, longest) in enumerate([(40, 9), (24, 70), (9, 30)]):
            lengths = rng.integers(1, longest, count).tolist()
            path = tmp_path_factory.mktemp("stream") / "store"
            _kept.append(segmented_store(path, lengths, [BOX, BOX, NESTED][number]))
    yield
    _kept.clear()


drawn_stores = st.integers(0, 2).map(lambda number: _kept[number])


def stream(
    store: el.EpisodeView, batch_size: int = 4, buffer_bytes: int = 60 * _ROW, **more: Any
) -> el.Loader:
    """A shuffled stream of a store, by default of episode and t alone, in groups of some 60 rows."""
    options = {"columns": [*PLACES, "observation"], "shuffle": True, "seed": 3} | more
    return store.loader(batch_size, cache=el.Cache("stream", buffer_bytes=buffer_bytes), **options)


def test_the_order_is_the_same_for_ever() -> None:
    """The order of a seed, an epoch and a buffer never changes: a training of last year can be repeated."""
    assert places(stream(_kept[0]))[:6] == GOLDEN


GOLDEN = [(5, 0), (35, 0), (7, 1), (37, 2), (6, 1), (36, 2)]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_stream_begins_with_few_rows(monkeypatch: pytest.MonkeyPatch, shuffle: bool) -> None:
    """The first batch waits for a small group; later groups are larger, and all units come once."""
    monkeypatch.setattr("episodelake.readers.loading.stream._FIRST_ROWS", 20)
    store = _kept[0]
    loader = stream(store, buffer_bytes=1 << 12, shuffle=shuffle)
    order = loader._feed.order  # pyright: ignore
    rows = [int(order.blocks.rows[group.blocks].sum()) for group in order.groups(0)]
    assert rows[0] <= 20 < max(rows) <= order.group_rows < sum(rows)
    found = places(loader)
    assert (found if not shuffle else sorted(found)) == all_places(store)
    if shuffle:
        assert found != all_places(store)


def test_what_is_read_ahead_fits_into_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of groups that are read, or begun, and not dropped yet; small groups are all begun at once."""
    monkeypatch.setattr("episodelake.readers.loading.stream._FIRST_ROWS", 10)
    feed: StreamFeed = stream(_kept[0], buffer_bytes=1 << 11)._feed  # pyright: ignore
    begun: list[Group] = []
    read = StreamFeed._read

    def noted(feed: StreamFeed, blocks: Any, run: Any, pool: Any) -> Any:
        begun.append(run.group)
        return read(feed, blocks, run, pool)

    monkeypatch.setattr(StreamFeed, "_read", noted)
    for place, _ in enumerate(feed.take(0, ShardSlice(0, 1, feed.length, feed.length), itertools.repeat(1))):
        held = [group for group in begun if group.stop > place]
        rows = sum(feed.order.blocks.rows[group.blocks].sum() for group in held)
        assert rows <= 2 * feed.order.group_rows
    firsts = sorted(group.first for group in begun)
    assert firsts == [group.first for group in feed.order.groups(0)] and len(firsts) > 4


@given(st.lists(st.integers(0, 40), unique=True, max_size=40), st.integers(0, 58))
def test_units_are_sorted_by_their_keys(keys: list[int], shift: int) -> None:
    """Whichever bits the keys differ in."""
    values = np.array(keys, np.uint64) << np.uint64(shift)
    assert _sorting(values).tolist() == np.argsort(values).tolist()


@pytest.fixture
def read_groups(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The row groups that are decoded from now on, as (file, number)."""
    seen: list[tuple[str, int]] = []
    batches = SegmentFile.batches

    def watched(file: SegmentFile, groups: Any, *args: Any, **more: Any) -> Any:
        seen.extend((file.path.name, group) for group in groups)
        return batches(file, groups, *args, **more)

    monkeypatch.setattr(SegmentFile, "batches", watched)
    return seen


def test_each_row_group_is_read_once_an_epoch(read_groups: list[tuple[str, int]]) -> None:
    """By a single reader; and two readers, four, eight divide them, but for those at the borders."""
    store = _kept[0]
    options: dict[str, Any] = {"buffer_bytes": 200 * _ROW}
    places(stream(store, **options))
    groups = len(read_groups)
    assert groups == len(set(read_groups))
    for world in (2, 4):
        for rank in range(world):
            read_groups.clear()
            loader = stream(store, shard=el.Shard(rank, world, uneven="drop"), **options)
            places(loader)
            borders = 2 * len(loader._feed.order.groups(0))  # pyright: ignore
            assert len(read_groups) <= groups / world + borders


def test_what_was_consumed_is_not_read_again(read_groups: list[tuple[str, int]]) -> None:
    """A resumed stream begins with the group in which it stopped."""
    store = _kept[0]
    loader = stream(store)
    order = loader._feed.order.groups(0)  # pyright: ignore
    batches = [batch for _, batch in zip(range(len(loader) * 3 // 4), loader, strict=False)]
    resumed = stream(store)
    resumed.load_state_dict(loader.state_dict())
    position = resumed.state_dict()["position"]
    left = sum(len(group.blocks) for group in order if group.stop > position)
    read_groups.clear()
    assert sorted(places(batches) + places(resumed)) == all_places(store)
    assert 0 < len(read_groups) <= left < sum(len(group.blocks) for group in order) / 2


def no_threads() -> bool:
    """Whether no thread of a stream is left."""
    return not background_threads()


def test_threads_end_with_the_iteration() -> None:
    """When it is dropped, when it is through, and before it has begun there is none."""
    loader = stream(_kept[1])
    batches = iter(loader)
    assert no_threads()
    next(batches)
    assert not no_threads()
    del batches
    wait_until(lambda: not background_threads(), "the end of the background threads")
    for _ in loader:
        pass
    wait_until(lambda: not background_threads(), "the end of the background threads")


def test_an_error_of_the_thread_reaches_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file is named where a batch of it is asked for; batches before it are given."""
    small_row_groups(monkeypatch)
    store = segmented_store(tmp_path / "store", [10] * 20, BOX)
    loader = store.loader(4, cache=el.Cache("stream", buffer_bytes=50 * 100))
    file = sorted((tmp_path / "store" / "steps").glob("*.parquet"))[-1]
    content = bytearray(file.read_bytes())
    content[4 : len(content) // 2] = bytes(len(content) // 2 - 4)
    file.write_bytes(content)
    found = 0
    with pytest.raises(el.errors.CorruptStoreError, match=file.name):
        for _ in loader:
            found += 1
    assert 0 < found < len(loader)
    wait_until(lambda: not background_threads(), "the end of the background threads")


def test_states_of_streams_and_other_caches() -> None:
    """Without shuffling the order is the same, and so are states; shuffled, a stream has its own."""
    store = _kept[1]
    memory, streamed = store.loader(4), store.loader(4, cache="stream")
    next(iter(memory))
    streamed.load_state_dict(memory.state_dict())
    assert_identical(streamed, memory)
    shuffled = store.loader(4, shuffle=True, seed=3)
    narrow, wide = stream(store), stream(store, buffer_bytes=1 << 30)
    for one, other in [(shuffled, narrow), (narrow, shuffled), (narrow, wide)]:
        with pytest.raises(el.errors.LoaderStateError, match="order"):
            one.load_state_dict(other.state_dict())


def test_what_a_stream_cannot_do_is_refused() -> None:
    """Drawing with replacement or by weight, and a buffer that is no size; the error says what to do."""
    for options in ({"weights": "steps"}, {"weights": "episodes"}, {"weights": pl.col("length")}):
        with pytest.raises(el.errors.InvalidArgumentError, match="cache='mmap'"):
            _kept[0].loader(cache="stream", **options)
    for size in (0, -1, 1.5, True):
        with pytest.raises(el.errors.InvalidArgumentError, match="buffer_bytes"):
            stream(_kept[0], buffer_bytes=size)  # pyright: ignore[reportArgumentType]


def test_a_store_in_memory_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that is no folder of this machine works as well."""
    small_row_groups(monkeypatch)
    store = segmented_store("memory://streamed", [7, 20, 31, 2], NESTED, per_segment=2)
    options: dict[str, Any] = {
        "cache": el.Cache("stream", buffer_bytes=3000),
        "columns": ["observation", *PLACES],
    }
    assert_identical(store.loader(5, **options), store.loader(5, columns=options["columns"]))
    assert sorted(places(store.loader(5, shuffle=True, **options))) == all_places(store)


@pytest.mark.parametrize(
    ("units", "columns"),
    [
        (None, [*PLACES, "observation", "next_observation", "truncated", "end_reason", "info.x"]),
        (el.NSteps(3), [*PLACES, "reward", "next_observation", "discount", "truncated"]),
        (el.Windows(4, stride=3, pad="left", burn_in=2), [*PLACES, "observation", "action", "mask"]),
        (el.Deltas({"observation": [-2, 0, 3], "action": [1]}), [*PLACES, "observation", "action"]),
    ],
)
def test_long_episodes_are_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, units: el.Units | None, columns: list[str]
) -> None:
    """Episodes that fill the buffer are read in parts: a batch has units of several, with the same values."""
    small_row_groups(monkeypatch, 50)
    store = segmented_store(tmp_path / "store", [90, 120, 30, 150, 80, 60], BOX, per_segment=2)
    row = store.loader(1, columns=columns, units=units).nbytes // (6 + 530) + 4
    options: dict[str, Any] = {"columns": columns, "units": units}

    def streamed(**more: Any) -> el.Loader:
        cache = el.Cache("stream", buffer_bytes=2 * 100 * row)
        return store.loader(16, shuffle=True, seed=3, cache=cache, **options, **more)

    loader = streamed()
    batches = list(loader)
    assert np.mean([len(np.unique(batch["episode"])) for batch in batches]) > 2.5
    order = loader._feed.order  # pyright: ignore
    assert max(order.blocks.rows[group.blocks].sum() for group in order.groups(0)) <= order.group_rows
    expected = in_order(store.loader(16, **options))
    assert in_order(batches) == expected
    shards = [batch for rank in (0, 1, 2) for batch in streamed(shard=el.Shard(rank, 3, uneven="drop"))]
    assert set(in_order(shards)) <= set(expected) and len(in_order(shards)) == len(expected) // 3 * 3

    resumed, next_epoch = streamed(), list(loader)
    for _ in zip(range(5), resumed, strict=False):
        pass
    state = resumed.state_dict()
    again = streamed()
    again.load_state_dict(state)
    assert_identical(again, batches[5:])
    assert_identical(again, next_epoch)


def test_states_of_groups_of_one_size_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that was saved before the first groups were smaller resumes the order that it had."""
    loader = stream(_kept[0], buffer_bytes=1 << 12)
    state, before = loader.state_dict(), places(loader)
    monkeypatch.setattr("episodelake.readers.loading.stream._FIRST_ROWS", 20)
    for marked, same in ((True, False), (False, True)):
        loader.load_state_dict({key: value for key, value in state.items() if marked or key != "growing"})
        assert ("growing" in loader.state_dict()) is marked
        assert (places(loader) == before) is same


def test_states_of_whole_episodes_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that was saved before episodes were read in parts resumes the order of whole episodes."""
    small_row_groups(monkeypatch, 50)
    store = segmented_store(tmp_path / "store", [90, 120, 30, 150, 80, 60], BOX, per_segment=2)
    loader = stream(store, 16, 100 * _ROW)
    state = loader.state_dict()
    mixed = places(loader)
    loader.load_state_dict({key: value for key, value in state.items() if key != "parts"})
    earlier = places(loader)
    assert earlier[:4] == WHOLE and sorted(earlier) == sorted(mixed) == all_places(store)
    assert "parts" not in loader.state_dict()
    loader.load_state_dict(state)
    assert places(loader) == mixed != earlier


WHOLE = [(2, 0), (2, 15), (2, 8), (2, 23)]


def in_order(batches: Any) -> list[tuple[bytes, ...]]:
    """The bytes of each unit of some batches, sorted by their place in the store."""
    units = [
        tuple(np.ascontiguousarray(array[number]).tobytes() for _, array in flat(batch))
        for batch in batches
        for number in range(len(batch["episode"]))
    ]
    return sorted(units)


@pytest.mark.further
def test_how_well_a_stream_shuffles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures of docs/loading-caches.md: episodes in a batch, and where neighbours of the store go."""
    small_row_groups(monkeypatch, 100)
    store = segmented_store(tmp_path / "store", [19] * 500, gym.spaces.Discrete(3), per_segment=500)
    units, batch_size = 500 * 19, 64
    options: dict[str, Any] = {"columns": [*PLACES, "reward"], "seed": 1}
    distinct, correlations, apart = {}, {}, {}
    for name, buffer_bytes in [("tenth", 2 * 1000 * (8 + 4)), ("all", 1 << 30)]:
        loader = store.loader(
            batch_size, shuffle=True, cache=el.Cache("stream", buffer_bytes=buffer_bytes), **options
        )
        distinct[name], correlations[name], apart[name] = shuffled_figures(loader, units)
    full = store.loader(batch_size, shuffle=True, **options)
    distinct["full"], correlations["full"], apart["full"] = shuffled_figures(full, units)
    groups = 10
    chances = 1 - (1 - groups / 500) ** batch_size
    assert distinct["tenth"] >= 0.98 * (500 / groups) * chances
    assert distinct["all"] >= 0.99 * distinct["full"]
    assert all(abs(value) < 0.12 for value in correlations.values())
    # In a full shuffle two units are a third of the epoch apart, in a stream a third of a group.
    assert abs(apart["full"] - 1 / 3) < 0.02 and abs(apart["all"] - 1 / 3) < 0.02
    assert abs(apart["tenth"] * groups - 1 / 3) < 0.08


def shuffled_figures(loader: el.Loader, units: int) -> tuple[float, float, float]:
    """Over ten epochs: episodes in a batch; correlation of place and store; how far apart neighbours go."""
    distinct, correlations, apart = [], [], []
    for _ in range(10):
        seen = []
        for batch in loader:
            distinct.append(len(np.unique(batch["episode"])))
            seen.append(batch["episode"] * 19 + batch["t"])
        order = np.concatenate(seen)
        stands = np.argsort(order)
        correlations.append(np.corrcoef(stands, np.arange(units))[0, 1])
        apart.append(np.abs(np.diff(stands)).mean() / units)
    return float(np.mean(distinct)), float(np.mean(correlations)), float(np.mean(apart))


MEMORY = """
import sys
from pathlib import Path
import numpy as np, episodelake as el

def held(name):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines()
                if line.startswith(name)) * 1024

store = el.open(sys.argv[1])
for _ in store[:2].loader(8, cache=el.Cache("stream", buffer_bytes=1 << 20), shuffle=True):
    pass
Path("/proc/self/clear_refs").write_text("5")
before = held("VmRSS")
total = 0
for batch in store.loader(8, cache=el.Cache("stream", buffer_bytes=int(sys.argv[2])), shuffle=True):
    total += len(batch["reward"])
print(held("VmHWM") - before, total)
"""


@pytest.mark.further
def test_the_memory_of_a_stream_is_bounded(tmp_path: Path) -> None:
    """470 MB of frames through a buffer of 32 MB: the peak is that and what decoding row groups takes."""
    frames = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    store = el.create(tmp_path / "store", observation_space=frames, action_space=gym.spaces.Discrete(4))
    rng = np.random.default_rng(0)
    with store.writer(run="frames") as writer:
        for _ in range(84):
            flags = np.zeros(199, bool)
            writer.write_episode(
                observations=np.broadcast_to(rng.integers(0, 255, (84, 84, 4), np.uint8), (200, 84, 84, 4)),
                actions=np.zeros(199, np.int64),
                rewards=np.zeros(199),
                terminations=flags,
                truncations=flags,
            )
    buffer = 32 << 20
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "store"), str(buffer)]
    told = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=PATIENCE
    ).stdout.split()
    assert int(told[1]) == 84 * 199
    assert int(told[0]) < buffer + 256 * 2**20


@pytest.mark.further
@settings(max_examples=examples(60))
@given(
    drawn_stores,
    st.integers(1, 9),
    st.integers(1, 4),
    st.sampled_from([40 * _ROW, 300 * _ROW]),
    st.tuples(st.integers(0, 2), st.sampled_from([1, 3])),
    st.booleans(),
)
def test_workers_make_the_batches_of_a_stream_in_turn(
    store: el.EpisodeStore, size: int, workers: int, buffer_bytes: int, shard: tuple[int, int], shuffle: bool
) -> None:
    """The batches of all workers, one of each in turn, are those of one reader."""
    rank, world = shard[0] % shard[1], shard[1]
    options: dict[str, Any] = {"shard": (rank, world), "shuffle": shuffle}
    source = stream(store, size, buffer_bytes, **options)._source  # pyright: ignore[reportPrivateUsage]
    expected = [places([batch]) for batch in source.batches(1, 0)]
    shares = [[places([batch]) for batch in source.batches(1, 0, first, workers)] for first in range(workers)]
    assert [shares[number % workers][number // workers] for number in range(len(expected))] == expected
    assert sum(map(len, shares)) == len(expected)
