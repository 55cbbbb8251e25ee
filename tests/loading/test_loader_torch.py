"""Worker processes of DataLoader: each unit once, in the loader's order, resumed exactly, with any number."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import episodelake as el
from episodelake.readers.loading.feed import ArrayFeed, Shard
from loader_batches import NESTED, places, random_store
from plain_loader import assert_same
from waiting import PATIENCE

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402 - only where torch is

from episodelake.testing.adapters import case  # noqa: E402 - only where torch is

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create 3 worker processes", "ignore:'set_vital' is deprecated"
)

LENGTHS = [5, 1, 17, 9, 30, 2, 11]
KEYS = ["episode", "t", "observation"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Seven episodes of nested observations, 75 transitions."""
    path = tmp_path_factory.mktemp("workers") / "store"
    return random_store(path, LENGTHS, ["terminated"] * 7, NESTED)


@pytest.fixture(autouse=True)
def no_process_stays() -> Iterator[None]:
    """Every worker of a test ends with it."""
    yield
    assert multiprocessing.active_children() == []


def loader_of(store: el.EpisodeStore, batch_size: int = 4, **options: Any) -> el.Loader:
    """19 batches an epoch, the last one smaller."""
    return store.loader(batch_size, columns=KEYS, shuffle=True, seed=2, **options)


def as_numpy(tree: Any) -> Any:
    """Tensors as numpy arrays."""
    if isinstance(tree, dict):
        return {key: as_numpy(part) for key, part in tree.items()}
    return tuple(map(as_numpy, tree)) if isinstance(tree, tuple) else tree.numpy()


@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 5), st.integers(1, 3), st.integers(0, 20))
def test_workers_share_the_places_of_an_epoch(
    length: int, size: int, workers: int, world: int, position: int
) -> None:
    """Whatever is left of an epoch, in any shard: asked in turn, workers have its batches one by one."""
    places = Shard(world - 1, world).places(min(position, length), length)
    own = places.wrapped(0, places.count).tolist()
    expected = [own[start : start + size] for start in range(0, len(own), size)]
    walks = []
    for worker in range(workers):
        share = places.every(size, worker, workers)
        assert share.part(0, share.count).shape == (share.count,)
        walks.append([share.wrapped(first, first + size).tolist() for first in range(0, share.count, size)])
    assert [walks[number % workers].pop(0) for number in range(len(expected))] == expected
    assert not any(walks)


@pytest.mark.further
def test_a_persistent_loader_is_moved_in_the_middle(store: el.EpisodeStore) -> None:
    """A state that is loaded while workers are ahead, or after `iter`, counts; the old iteration says so."""
    plain = places(loader_of(store))
    loader = loader_of(store).torch_loader(2, persistent_workers=True)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    state = loader.state_dict()
    for _ in range(5):
        next(iterator)
    loader.load_state_dict(state)
    with pytest.raises(el.errors.LoaderStateError, match="was moved"):
        next(iterator)
    assert places(loader) == plain[20:]
    begun = iter(loader)
    loader.load_state_dict(state)
    assert places(begun) == plain[20:]
    loader.set_epoch(0)
    assert places(loader) == plain


def test_the_original_stays_where_it_stood(store: el.EpisodeStore) -> None:
    """A loader with workers begins where the loader stands, and the two move independently."""
    original = loader_of(store)
    iterator = iter(original)
    seen = places([next(iterator)])
    loader = original.torch_loader(2)
    assert seen + places(loader) == places(loader_of(store))
    assert original.state_dict()["position"] == 4 and loader.epoch == 1
    assert loader.state_dict()["identity"] == original.state_dict()["identity"]


@pytest.mark.further
def test_a_tensordict_comes_from_workers_too(store: el.EpisodeStore) -> None:
    """What workers send is put together by the parent, and moved to the device there."""
    tensordict = pytest.importorskip("tensordict")
    plain = loader_of(store)
    found = list(loader_of(store, output="tensordict").torch_loader(2))
    assert all(isinstance(batch, tensordict.TensorDict) for batch in found)
    assert places(found) == places(plain)
    units = store.loader(columns=KEYS, output="tensordict").map_dataset()
    assert units[4]["t"].item() == 4 and units[4]["observation", "pair", "1"].shape == (3,)
    dataset = loader_of(store, output="tensordict").iterable_dataset()
    for made in (
        DataLoader(dataset, batch_size=None, collate_fn=dataset.collate, num_workers=1),
        DataLoader(units, batch_size=4, collate_fn=units.collate, num_workers=1),
    ):
        batch = next(iter(made))
        assert isinstance(batch, tensordict.TensorDict) and batch.batch_size == torch.Size([4])
    on_device = next(iter(loader_of(store, output=el.Output("torch", device="meta")).torch_loader(2)))
    assert on_device["observation"]["image"].device.type == "meta"


class _Failing:
    """Fails at a unit."""

    def __call__(self, batch: Any) -> Any:
        if (batch["t"] == 29).any():
            raise el.errors.InvalidArgumentError("no such reward")
        return batch


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_a_worker_is_raised(store: el.EpisodeStore, workers: int) -> None:
    """It is of the same kind; what came before it is handed out and counted."""
    plain = loader_of(store)
    good = next(number for number, batch in enumerate(plain) if (batch["t"] == 29).any())
    loader = loader_of(store, transforms=[_Failing()]).torch_loader(workers)
    seen = 0
    with pytest.raises(el.errors.InvalidArgumentError, match="no such reward"):
        for _ in loader:
            seen += 1
    assert seen == good and loader.state_dict()["position"] == 4 * good
    with pytest.raises(el.errors.InvalidArgumentError, match="no such reward"):
        next(iter(loader))


@pytest.mark.slow
def test_a_worker_that_is_killed_loses_no_batch(store: el.EpisodeStore) -> None:
    """The iteration ends with an error of torch's; the next one begins with the batch that did not come."""
    loader = loader_of(store, 1).torch_loader(2)
    seen: list[Any] = []
    with pytest.raises((RuntimeError, OSError)):
        for batch in loader:
            seen.append(batch)
            if len(seen) == 3:
                os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
    assert 3 <= len(seen) < 75
    assert places(seen) + places(loader) == places(loader_of(store))


@pytest.mark.further
def test_a_loader_with_workers_is_pickled(store: el.EpisodeStore) -> None:
    """Its copy makes workers of its own, and goes on from the same batch."""
    loader = loader_of(store).torch_loader(2, persistent_workers=True)
    iterator = iter(loader)
    seen = places([next(iterator)])
    copy = pickle.loads(pickle.dumps(loader))
    assert seen + places(copy) == places(loader_of(store))
    stream = store.loader(4, columns=KEYS, cache="stream").torch_loader()
    taken = places([stream.take(3)])
    assert taken + places(pickle.loads(pickle.dumps(stream))) == places(store.loader(4, columns=KEYS))


def test_arguments_that_make_no_sense_are_refused(store: el.EpisodeStore) -> None:
    """The message is that of torch."""
    with pytest.raises(el.errors.InvalidArgumentError, match="persistent_workers"):
        loader_of(store).torch_loader(0, persistent_workers=True)
    with pytest.raises(el.errors.InvalidArgumentError, match="num_workers"):
        loader_of(store).torch_loader(-1)


class _Shared:
    """Tells whether the columns of a loader are where no process has a copy of its own."""

    def __init__(self, arrays: Any) -> None:
        self.arrays = arrays

    def __call__(self, batch: Any) -> Any:
        image = self.arrays.columns["observation"]["image"]
        nameless = "(deleted)" in Path("/proc/self/maps").read_text()
        return batch | {"shared": np.array([not image.flags.writeable and nameless] * len(batch["t"]))}


@pytest.mark.further
def test_spawned_workers_share_the_columns(store: el.EpisodeStore) -> None:
    """The order is the same; no worker has a copy of the arrays: all map one file that has no name."""
    plain = loader_of(store)
    source, identity = plain._source, plain.state_dict()["identity"]  # pyright: ignore[reportPrivateUsage]
    assert isinstance(source.feed, ArrayFeed)
    shared = replace(source, transforms=(_Shared(source.feed.arrays),))
    loader = el.Loader(shared, identity, plain.output)
    loader = loader.torch_loader(2, persistent_workers=True, multiprocessing_context="spawn")
    for _ in range(2):
        for one, other in zip(plain, loader, strict=True):
            assert other.pop("shared").all()
            assert_same(as_numpy(other), one)


@pytest.mark.sample(2)
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_an_iterable_dataset_has_the_order_of_the_loader(store: el.EpisodeStore, workers: int) -> None:
    """For every epoch that is set, also where workers are kept; an epoch that is not set comes again."""
    plain = loader_of(store)
    epochs = [places(plain) for _ in range(3)]
    dataset = loader_of(store).iterable_dataset()
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    assert len(loader) == 19
    assert places(loader) == epochs[0] and places(loader) == epochs[0]
    for epoch in (1, 2, 0):
        dataset.set_epoch(epoch)
        assert places(loader) == epochs[epoch]
    if workers > 1:
        # An iteration that is left while workers are ahead does not disturb the next one.
        for _ in loader:
            break
        dataset.set_epoch(2)
        assert places(loader) == epochs[2]


def test_an_iterable_dataset_begins_where_the_loader_stands(store: el.EpisodeStore) -> None:
    """Its first epoch is what is left of the loader's."""
    original = loader_of(store)
    iterator = iter(original)
    seen = places([next(iterator), next(iterator)])
    dataset = pickle.loads(pickle.dumps(original.iterable_dataset()))
    assert seen + places(dataset) == places(loader_of(store))
    with pytest.raises(el.errors.InvalidArgumentError, match="epoch"):
        dataset.set_epoch(-1)


@pytest.mark.sample
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [0, 1, 6, 18])
def test_a_stateful_data_loader_resumes(store: el.EpisodeStore, workers: int, stop: int) -> None:
    """The loader of torchdata asks the dataset where it stands, and goes on there without reading anew."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def make() -> Any:
        dataset = loader_of(store).iterable_dataset()
        dataset.set_epoch(4)
        return stateful(dataset, batch_size=None, num_workers=workers)

    plain = loader_of(store)
    plain.set_epoch(4)
    first, seen = make(), []
    iterator = iter(first)
    for _ in range(stop):
        seen.append(next(iterator))
    state = first.state_dict()
    del iterator
    second = make()
    second.load_state_dict(state)
    assert places(seen) + places(second) == places(plain)


def test_a_state_of_another_dataset_is_refused(store: el.EpisodeStore) -> None:
    """Another batch size cuts the epoch otherwise; and a loader's state is not a dataset's."""
    dataset = loader_of(store).iterable_dataset()
    state = dataset.state_dict()
    dataset.load_state_dict(state)
    with pytest.raises(el.errors.LoaderStateError, match="batching"):
        loader_of(store, 5).iterable_dataset().load_state_dict(state)
    with pytest.raises(el.errors.LoaderStateError, match="batching"):
        dataset.load_state_dict(loader_of(store).state_dict())
    with pytest.raises(el.errors.LoaderStateError, match="batch is None"):
        dataset.load_state_dict(state | {"batch": None})
    with pytest.raises(el.errors.LoaderStateError, match="no state"):
        dataset.load_state_dict({})


def test_a_map_style_dataset_has_each_unit(store: el.EpisodeStore) -> None:
    """By number, in the order of the episodes, without the axis of a batch."""
    dataset = store.loader(columns=KEYS).map_dataset()
    units = [unit for batch in store.loader(1, columns=KEYS) for unit in [batch]]
    assert len(dataset) == len(units) == 75
    for number in (0, 4, 5, 74, -1, -75):
        assert_same(as_numpy(dataset[number]), _first(units[number]))
    assert sum(1 for _ in dataset) == 75
    for number in (75, -76):
        with pytest.raises(el.errors.UnitNotFoundError, match="from 0 to 74"):
            dataset[number]
    with pytest.raises(IndexError):
        dataset.__getitems__([3, 75])


def _first(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _first(part) for key, part in tree.items()}
    return tuple(map(_first, tree)) if isinstance(tree, tuple) else tree[0]


@pytest.mark.sample(1)
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_a_sampler_of_torch_chooses_units(store: el.EpisodeStore, workers: int) -> None:
    """Gathered in one go a batch is what torch's own collate function makes of its units one by one."""
    dataset = pickle.loads(pickle.dumps(store.loader(columns=KEYS).map_dataset()))

    def batches(**options: Any) -> list[Any]:
        generator = torch.Generator().manual_seed(3)
        loader: Any = DataLoader(
            dataset, batch_size=4, shuffle=True, num_workers=workers, generator=generator, **options
        )
        return [as_numpy(_tuples(batch)) for batch in loader]

    gathered, collated = batches(collate_fn=dataset.collate), batches()
    assert len(gathered) == len(collated) == 19
    for one, other in zip(gathered, collated, strict=True):
        assert_same(one, other)
    assert sorted(places(gathered)) == sorted(places(loader_of(store)))
    assert places(gathered) != sorted(places(gathered))


def _tuples(tree: Any) -> Any:
    """Torch's collate function makes lists of tuples."""
    if isinstance(tree, dict):
        return {key: _tuples(part) for key, part in tree.items()}
    return tuple(map(_tuples, tree)) if isinstance(tree, list | tuple) else tree


@pytest.mark.parametrize("options", [{"shuffle": True}, {"weights": "steps"}, {"shard": (0, 2)}])
def test_a_map_style_dataset_has_no_order_of_its_own(store: el.EpisodeStore, options: Any) -> None:
    """What only torch's sampler can decide there is refused, not ignored."""
    with pytest.raises(el.errors.InvalidArgumentError, match="sampler"):
        store.loader(4, **options).map_dataset()


def _train(path: str, rank: int, world: int, meeting: Path, pipe: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    try:
        loader = el.open(path).loader(4, columns=["episode", "t"], shuffle=True, shard="distributed")
        own = places(loader)
        total = torch.tensor([len(own)])
        torch.distributed.all_reduce(total)
        pipe.send((own, int(total)))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.further
def test_processes_of_torch_distributed_share_an_epoch(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Two processes of a gloo group on this machine take one half each; a process in no group takes all."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for rank in range(2):
        here, there = context.Pipe()
        arguments = (str(store.path), rank, 2, tmp_path / "meeting", there)
        processes.append(context.Process(target=_train, args=arguments))
        pipes.append(here)
    for process in processes:
        process.start()
    found = [pipe.recv() if pipe.poll(PATIENCE) else pytest.fail("no answer") for pipe in pipes]
    for process in processes:
        process.join(PATIENCE)
        assert process.exitcode == 0
    shards = [
        places(store.loader(4, columns=["episode", "t"], shuffle=True, shard=(rank, 2))) for rank in range(2)
    ]
    assert [own for own, _ in found] == shards and {total for _, total in found} == {76}
    alone = store.loader(4, columns=["episode", "t"], shuffle=True, shard="distributed")
    assert sorted(places(alone)) == sorted(places(loader_of(store)))


def test_a_shard_that_makes_no_sense_is_refused(store: el.EpisodeStore) -> None:
    """The message says what is expected."""
    for shard in ["everything", (0,), (0, 1, 2), 3, (0.5, 2), (2, 2), (-1, 2), None]:
        with case(shard), pytest.raises(el.errors.InvalidArgumentError, match="rank, world"):
            store.loader(4, shard=shard)


@pytest.mark.parametrize("workers", [0, 1])
def test_values_of_every_dtype_and_shape_come_from_workers(store: el.EpisodeStore, workers: int) -> None:
    """What a worker sends is what it made, bit for bit: single numbers and empty arrays too."""
    loader = loader_of(store, transforms=[_odd_values]).torch_loader(workers)
    found = as_numpy(next(iter(loader)))
    expected = _odd_values({})
    assert_same(found, expected)
    found["u2"][0] = 9  # it can be written to


def _odd_values(batch: Any) -> Any:
    dtypes = ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "?", "c8", "c16"]
    values = {dtype: np.array([0, 1, 3], "u1").astype(dtype) for dtype in dtypes}
    nan = np.array([[np.nan, np.inf, -0.0]])
    nested = {
        "empty": np.zeros((0, 3), "f4"),
        "pair": (np.array(5, "i2"), nan.T),
        "byte": np.ones((3, 1), "u1"),
    }
    return values | nested


@pytest.mark.further
def test_a_loader_of_another_process_has_a_position_of_its_own(store: el.EpisodeStore) -> None:
    """What is sent to a process shares tensors with its sender, but not the epoch that comes next."""
    loader = loader_of(store, output="torch").torch_loader(1, multiprocessing_context="spawn")
    sent = pickle.loads(bytes(ForkingPickler.dumps(loader)))
    loader.set_epoch(7)
    first = next(iter(loader))
    assert sent.epoch == 0
    assert_same(as_numpy(next(iter(sent))), as_numpy(next(iter(loader_of(store, output="torch")))))
    assert loader.epoch == 7 and first
