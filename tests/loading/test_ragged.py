"""Values of different lengths: ranges of them, and loaders that yield them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import episodelake as el
from episodelake.readers.columns.ragged import gather_ranges, range_positions
from episodelake.readers.loading.stream import StreamFeed
from episodelake.testing.adapters import case
from episodelake.types import Ragged
from plain_loader import at


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


WORDS = spaces.Sequence(spaces.Box(-1, 1, (2,), np.float32))
SEEN = spaces.Dict(
    number=spaces.Box(-1, 1, (2,), np.float32),
    words=WORDS,
    said=spaces.Text(6, min_length=0, charset="ab\u00e9\u6f22"),
    deep=spaces.Sequence(spaces.Sequence(spaces.Discrete(4))),
)


def ragged_store(path: Any, lengths: list[int], seed: int = 0) -> el.EpisodeStore:
    """A store of random words, texts and nested lists; its infos have arrays of any length, or none."""
    rng = np.random.default_rng(seed)

    def words() -> tuple[np.ndarray, ...]:
        return tuple(rng.random((rng.integers(4), 2)).astype(np.float32))

    def seen() -> dict[str, Any]:
        deep = tuple(tuple(rng.integers(4, size=rng.integers(3))) for _ in range(rng.integers(3)))
        said = "".join(rng.choice(list("ab\u00e9\u6f22"), rng.integers(6)))
        return {"number": rng.random(2).astype(np.float32), "words": words(), "said": said, "deep": deep}

    def info() -> dict[str, Any]:
        boxes = (
            {"boxes": rng.random((rng.integers(4), 2, 3)).astype(np.float32)} if rng.random() < 0.7 else {}
        )
        return boxes | ({"hits": rng.integers(9, size=rng.integers(4))} if rng.random() < 0.7 else {})

    first = {"hits": rng.integers(9, size=2), "boxes": np.zeros((1, 2, 3), np.float32)}
    store = el.create(path, observation_space=SEEN, action_space=WORDS)
    with store.writer() as writer:
        for number, length in enumerate(lengths):
            episode = writer.begin(seen(), info() if number else first)
            for t in range(length):
                episode.append(words(), 1.0, seen(), terminated=t == length - 1, info=info())
            if number % 2:
                writer.seal()
    return store.refresh()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Nine episodes."""
    return ragged_store(tmp_path_factory.mktemp("ragged") / "store", [3, 1, 7, 2, 5, 4, 1, 6, 2])


# The value


ROWS = Ragged(np.arange(12.0).reshape(6, 2), np.array([0, 2, 2, 5, 6]))


def test_rows_are_indexed_as_an_array() -> None:
    """Numbers give values, slices views of rows, and arrays of numbers or masks copies."""
    assert len(ROWS) == 4 and ROWS.lengths.tolist() == [2, 0, 3, 1]
    assert ROWS.shape == (4, None, 2) and ROWS.dtype == np.float64
    assert repr(ROWS) == "Ragged(shape=(4, None, 2), dtype=float64, lengths 0 to 3)"
    assert [row.tolist() for row in ROWS] == [[[0, 1], [2, 3]], [], [[4, 5], [6, 7], [8, 9]], [[10, 11]]]
    assert ROWS[-1].tolist() == [[10, 11]] and np.shares_memory(ROWS[2], ROWS.values)
    part = ROWS[1:3]
    assert part.lengths.tolist() == [0, 3] and np.shares_memory(part.values, ROWS.values)
    assert len(ROWS[3:1]) == 0 and len(ROWS[9:]) == 0
    assert ROWS[::-2].lengths.tolist() == [1, 0]
    assert ROWS[np.array([True, False, True, False])].values.tolist() == [
        *ROWS[0].tolist(),
        *ROWS[2].tolist(),
    ]
    square = Ragged(ROWS.values, ROWS.offsets, (2, 2))
    assert square.shape == (2, 2, None, 2) and square[1].lengths.tolist() == [3, 1]
    assert square[1, 0].tolist() == ROWS[2].tolist() and square[:, 1].lengths.tolist() == [0, 1]
    with pytest.raises(IndexError, match="no row 4; there are 4"):
        ROWS[4]


def test_rows_are_padded() -> None:
    """To the longest row or to a length; values and mask have the axes of the rows; nested rows too."""
    values, mask = ROWS.to_padded(-1)
    assert values.shape == (4, 3, 2) and mask.tolist()[0] == [True, True, False]
    assert (values[~mask] == -1).all() and values[mask].tolist() == ROWS.values.tolist()
    assert ROWS.to_padded(length=5)[0].shape == (4, 5, 2)
    nested = Ragged(Ragged(np.arange(3), np.array([0, 1, 1, 3])), np.array([0, 2, 3]))
    values, mask = nested.to_padded()
    assert values.tolist() == [[[0, 0], [0, 0]], [[1, 2], [0, 0]]] and mask[1].tolist() == [
        [True] * 2,
        [False] * 2,
    ]
    assert nested.to_padded(length=4)[0].shape == (2, 4, 4)
    assert nested.to_padded(length=(2, 3))[1].shape == (2, 2, 3)
    with pytest.raises(el.errors.InvalidArgumentError, match=r"A row has 3 values.*length=2"):
        ROWS.to_padded(length=2)


def test_rows_become_arrow_lists_of_the_same_memory() -> None:
    """Axes of values and of windows are lists of a fixed size; the data is not copied."""
    lists = ROWS.to_arrow()
    lists.validate(full=True)
    assert lists.to_pylist() == [row.tolist() for row in ROWS]
    assert lists.values.flatten().buffers()[1].address == ROWS.values.ctypes.data
    assert lists.buffers()[1].address == ROWS.offsets.ctypes.data
    square = Ragged(ROWS.values > 3, ROWS.offsets, (2, 2)).to_arrow()
    square.validate(full=True)
    assert square.to_pylist()[0] == [[[False, False], [False, False]], []]
    empty = Ragged(np.zeros((0, 0, 2), np.int8), np.zeros(3, np.int64)).to_arrow()
    empty.validate(full=True)
    assert empty.to_pylist() == [[], []]


def test_what_makes_no_sense_is_refused() -> None:
    """With what was expected."""
    cases: list[Any] = [
        (lambda: Ragged(np.arange(3), np.array([0, 2])), "do not cut 3 values"),
        (lambda: Ragged(np.arange(3), np.array([0, 2, 1, 3])), "ascending"),
        (lambda: Ragged(np.arange(3), np.array([0.0, 3.0])), "expected integers"),
        (lambda: Ragged(np.arange(3), np.array([0, 3]), (2,)), "1 rows have not the shape"),
        (lambda: np.asarray(ROWS), "is no array, since its rows differ in length"),
        (lambda: ROWS.texts(), "has no texts"),
        (lambda: Ragged(np.array([200], np.uint8), np.array([0, 1])).texts(), "not UTF-8"),
        (lambda: el.Output("torch", ragged="jagged"), r"ragged='jagged': expected 'nested' or 'padded'"),
        (lambda: el.Output("numpy", ragged="nested"), r"expected 'padded' with 'numpy'"),
        (lambda: el.Output("torch", ragged=0), "ragged=0"),
    ]
    for make, message in cases:
        with case((make, message)), pytest.raises(el.errors.InvalidArgumentError, match=message):
            make()


# Loaders


def test_texts_are_those_of_the_episodes(store: el.EpisodeStore) -> None:
    """As text, of transitions and of windows."""
    said = [seen["said"] for episode in store for seen in at_all(episode)]
    (batch,) = store.loader(1000, columns=["observation.said"])
    assert batch["observation.said"].dtype == np.uint8
    assert batch["observation.said"].texts() == said
    (batch,) = store.loader(1000, el.Windows(2), columns=["observation.said"])
    assert all(len(row) == 2 for row in batch["observation.said"].texts())


def at_all(episode: Any) -> list[Any]:
    """The observations of an episode's transitions."""
    return [at(episode.observations, t) for t in range(episode.length)]


def test_batches_have_what_duckdb_reads_in_the_files(store: el.EpisodeStore) -> None:
    """Lengths and sums of the values, of the raw Parquet files."""
    files = [str(path) for path in Path(store.path).rglob("*.parquet") if "steps" in str(path)]
    names = 'len("observation.words"), list_sum(flatten("observation.words")), len("action")'
    names += ', strlen("observation.said")'
    query = f"select {names} from read_parquet({files!r}) where terminated is not null"
    expected = sorted(duckdb.sql(query).fetchall(), key=str)
    (batch,) = store.loader(1000, columns=["observation.words", "action", "observation.said"])
    words = batch["observation.words"]
    found = [
        (count, float(row.sum(dtype=np.float64)) if count else None, acted, said)
        for row, count, acted, said in zip(
            words, words.lengths, batch["action"].lengths, batch["observation.said"].lengths, strict=True
        )
    ]
    assert len(found) == len(expected)
    for one, other in zip(sorted(found, key=lambda row: str(row)), expected, strict=True):
        assert one == pytest.approx(other)


def test_outputs(store: el.EpisodeStore) -> None:
    """Nested tensors, also in a TensorDict and from workers; padded to the longest row or to a length."""
    torch = pytest.importorskip("torch")
    columns = ["observation.number", "observation.words", "action"]
    (rows,) = store.loader(100, columns=columns)
    words = rows["observation.words"]
    for output in ("torch", "tensordict"):
        loader = store.loader(100, columns=columns, output=output)
        for made in (loader, loader.torch_loader(1)):
            (batch,) = made
            nested = batch["observation.words"]
            assert nested.layout == torch.jagged and len(nested) == len(words)
            assert nested.values().numpy().tobytes() == words.values.tobytes()
            assert nested.offsets().tolist() == words.offsets.tolist()
            assert batch["observation.number"].numpy().tobytes() == rows["observation.number"].tobytes()
    dataset = store.loader(columns=columns, output="torch").map_dataset()
    assert dataset[4]["observation.words"].tolist() == words[4].tolist()
    for ragged, size in (("padded", words.lengths.max()), (9, 9)):
        (batch,) = store.loader(100, columns=columns, output=el.Output("torch", ragged=ragged))
        values, mask = words.to_padded(length=int(size))
        assert torch.equal(batch["observation.words"]["values"], torch.from_numpy(values))
        assert torch.equal(batch["observation.words"]["mask"], torch.from_numpy(mask))
    with pytest.raises(el.errors.InvalidArgumentError, match=r"words' cannot be padded: A row has 3 values"):
        next(iter(store.loader(100, columns=columns, output=el.Output("torch", ragged=1))))
    for units, key in ((el.Windows(2), "observation.words"), (None, "observation.deep")):
        with pytest.raises(el.errors.InvalidArgumentError, match=r"nested tensors lack.*ragged='padded'"):
            next(iter(store.loader(100, units, columns=[key], output="torch")))


def test_mixtures(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Units of two stores one after the other, with states; other values are refused."""
    other = ragged_store(tmp_path / "other", [4, 2], 7)
    columns = ["observation", "action"]

    def mixed() -> el.types.MixedLoader:
        loaders = [each.loader(columns=columns, shuffle=True) for each in (store, other)]
        return el.mix([(loader, 0.5) for loader in loaders], 6, epoch=4)

    batches = list(mixed())
    assert len(batches) == 4 and all(len(batch["action"]) == 6 for batch in batches)
    again = mixed()
    first = next(iter(again))
    (one,) = (take.take(3) for take in [store.loader(columns=columns, shuffle=True)])
    assert first["action"][:3].values.tolist() == one["action"].values.tolist()
    resumed = mixed()
    resumed.load_state_dict(json.loads(json.dumps(again.state_dict())))
    second = next(iter(resumed))
    assert second["action"].offsets.tolist() == batches[1]["action"].offsets.tolist()
    assert (
        second["observation"]["deep"].values.values.tolist()
        == batches[1]["observation"]["deep"].values.values.tolist()
    )
    plain = store.loader(columns=["reward"]), other.loader(columns=["action"])
    with pytest.raises(el.errors.InvalidArgumentError, match="different batches"):
        next(iter(el.mix([(loader, 0.5) for loader in plain], 4)))


def test_episodes_are_unpadded(store: el.EpisodeStore) -> None:
    """Of each episode the rows that it has."""
    for batch in store.loader(4, el.Episodes(), columns=["observation", "action", "length", "episode"]):
        for episode in el.unpadded(batch):
            stored = store[int(episode["episode"])]
            assert len(episode["observation"]["said"]) == stored.length + 1
            assert episode["observation"]["said"].texts() == list(stored.observations["said"])
            assert [len(row) for row in episode["action"]] == [len(row) for row in stored.actions]


def test_transforms(store: el.EpisodeStore) -> None:
    """`Cast` and `Clip` change values; what needs one shape is refused, with what to do instead."""
    cast = [el.Cast("action", "float64"), el.Clip("observation.words", 0.2, 0.5)]
    (batch,) = store.loader(100, transforms=cast)
    assert batch["action"].dtype == np.float64 and batch["action"].values.size
    words = batch["observation"]["words"].values
    assert words.min() == np.float32(0.2) and words.max() == np.float32(0.5)
    with pytest.raises(el.errors.InvalidArgumentError, match=r"differ in length.*el.Deltas"):
        store.loader(4, transforms=[el.FrameStack(2, "observation.words")])
    with pytest.raises(el.errors.InvalidArgumentError, match="no fixed shape"):
        store.replay_buffer(10)
    with pytest.raises(el.errors.InvalidArgumentError, match=r"rows differ in length.*store.refresh\(\)"):
        next(iter(store.loader(4, follow=el.Follow())))
    torch = pytest.importorskip("torch")
    module = el.TorchModule(torch.nn.Identity(), ["action"], "same")
    with pytest.raises(el.errors.InvalidArgumentError, match=r"one shape.*'action' differ.*ragged='padded'"):
        next(iter(store.loader(4, output="torch", columns=["action"], transforms=[module])))


def test_streams_count_values(store: el.EpisodeStore) -> None:
    """The rows of a group are those whose values fit into half of the buffer, by the footers."""
    loader = store.loader(4, columns=["observation"], cache=el.Cache("stream", buffer_bytes=1 << 20))
    held = store.loader(4, columns=["observation"]).nbytes / sum(episode.length + 1 for episode in store)
    feed = loader._feed
    assert isinstance(feed, StreamFeed)
    assert held * 0.6 < feed.source.row_bytes < held * 2.5
