"""Each claim about loaders, against a plain loop over the episodes of a store that has everything in it."""

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import episodelake as el
from loader_world import VIEWS, make_views

quick = settings(max_examples=settings().max_examples // 5)  # of the ordinary profile, or of the long one


def joined(batches: Any) -> dict[str, Any]:
    """Batches one after the other, as one."""
    batches = list(batches)

    def join(*parts: Any) -> Any:
        if isinstance(parts[0], dict):
            return {key: join(*(part[key] for part in parts)) for key in parts[0]}
        if isinstance(parts[0], tuple):
            return tuple(join(*group) for group in zip(*parts, strict=True))
        return np.concatenate(parts)

    return join(*batches)


@dataclass(frozen=True, eq=False)
class World:
    """The views of a store, and their episodes."""

    views: dict[str, Any]

    @cache  # noqa: B019 (one object for the module)
    def plain(self, name: str) -> list[el.Episode]:
        """The episodes of a view, one by one."""
        return list(self.views[name])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """One store for the module."""
    return World(make_views(tmp_path_factory.mktemp("claims") / "store"))


names = st.sampled_from(VIEWS)


@pytest.mark.further
def test_the_store_has_everything_in_it(world: World) -> None:
    """All four ends, episodes of length 1 and views in an order of their own are there."""
    reasons = {str(episode.end_reason) for episode in world.views["all"]}
    assert reasons == {"terminated", "truncated", "cut", "interrupted"}
    assert min(plain.length for plain in world.plain("all")) == 1
    assert all(len(world.views[name]) for name in VIEWS)
    assert len(world.views["early"]) == 30


@quick
@given(name=names, batch_size=st.integers(1, 70))
def test_infos_are_those_of_the_steps(world: World, name: str, batch_size: int) -> None:
    """An info stands beside its transition; where it is absent it is NaN, and a flag says so."""
    got = joined(world.views[name].loader(batch_size, columns=["info.battery", "info.battery_present"]))
    infos = [plain.infos[step] for plain in world.plain(name) for step in range(plain.length)]
    assert got["info.battery_present"].tolist() == ["battery" in info for info in infos]
    np.testing.assert_array_equal(got["info.battery"], [info.get("battery", np.nan) for info in infos])


CACHES = st.sampled_from(["memory", "mmap"])
UNITS = st.sampled_from([{}, {"n_step": 3}, {"units": el.Windows(3, pad="left")}, {"units": el.Episodes()}])
ORDERS = st.sampled_from(
    [{}, {"shuffle": True}, {"weights": "steps"}, {"weights": "episodes"}, {"weights": pl.col("length")}]
)


def identities(batches: Any) -> list[tuple[int, int]]:
    """Which units came, as (episode, t of the unit's first column)."""
    return [
        (int(e), int(np.ravel(t)[0]))
        for batch in batches
        for e, t in zip(batch["episode"], batch["t"], strict=True)
    ]


@quick
@given(
    name=names,
    unit=UNITS,
    seed=st.integers(0, 2**40),
    epochs=st.integers(1, 3),
    batch_size=st.integers(1, 50),
)
def test_a_shuffled_epoch_has_each_unit_once(
    world: World, name: str, unit: dict[str, Any], seed: int, epochs: int, batch_size: int
) -> None:
    """Every epoch has the sequential epoch's units, each once, and each epoch in an order of its own."""
    view = world.views[name]
    expected = identities(view.loader(7, columns=["episode", "t"], **unit))
    loader = view.loader(batch_size, shuffle=True, seed=seed, columns=["episode", "t"], **unit)
    orders = [identities(loader) for _ in range(epochs)]
    assert loader.epoch == epochs
    assert all(sorted(order) == sorted(expected) for order in orders)
    assert len(expected) < 8 or len({tuple(order) for order in orders}) == epochs
    loader.set_epoch(epochs - 1)
    assert identities(loader) == orders[-1]


@quick
@given(
    name=names,
    unit=UNITS,
    order=ORDERS,
    cache=CACHES,
    world_size=st.integers(1, 7),
    batch_size=st.integers(1, 20),
    uneven=st.sampled_from(["pad", "drop"]),
)
def test_shards_together_are_the_epoch(
    world: World, name: str, unit: Any, order: Any, cache: Any, world_size: int, batch_size: int, uneven: Any
) -> None:
    """Shares are equally long and interleave to the order; padding repeats, dropping leaves out the end."""
    view = world.views[name]
    whole = identities(view.loader(11, seed=5, columns=["episode", "t"], **unit, **order))
    if uneven == "drop" and len(whole) < world_size:
        return
    shares = [
        identities(
            view.loader(
                batch_size,
                seed=5,
                columns=["episode", "t"],
                cache=cache,
                shard=el.Shard(rank, world_size, uneven=uneven),
                **unit,
                **order,
            )
        )
        for rank in range(world_size)
    ]
    assert len({len(share) for share in shares}) == 1
    merged = [unit for step in zip(*shares, strict=True) for unit in step]
    if uneven == "drop":
        assert merged == whole[: len(whole) // world_size * world_size]
    else:
        assert merged[: len(whole)] == whole and len(merged) - len(whole) < world_size
        assert merged[len(whole) :] == (whole * world_size)[: len(merged) - len(whole)]


@quick
@given(
    name=names,
    unit=UNITS,
    order=ORDERS,
    before=st.tuples(CACHES, st.integers(1, 3), st.integers(1, 9)),
    after=st.tuples(CACHES, st.integers(1, 3), st.integers(1, 9)),
    data=st.data(),
)
def test_resuming_is_the_uninterrupted_order(
    world: World, name: str, unit: Any, order: Any, before: Any, after: Any, data: st.DataObject
) -> None:
    """From any batch, a state goes on in another cache, with other shards and another batch size."""
    view = world.views[name]

    def loaders(cache: str, count: int, batch_size: int) -> list[Any]:
        return [
            view.loader(
                batch_size,
                seed=9,
                columns=["episode", "t"],
                cache=cache,
                shard=(rank, count),
                **unit,
                **order,
            )
            for rank in range(count)
        ]

    whole = identities(view.loader(8, seed=9, columns=["episode", "t"], **unit, **order))
    readers = loaders(*before)
    taken = data.draw(st.integers(0, max(0, len(readers[0]) - 1)))
    for reader in readers:
        batches = iter(reader)
        for _ in range(taken):
            next(batches)
    states = [json.loads(json.dumps(reader.state_dict())) for reader in readers]
    assert all(state == states[0] for state in states)
    others = loaders(*after)
    for other in others:
        other.load_state_dict(states[0])
    shares = [identities(other) for other in others]
    merged = [unit for step in zip(*shares, strict=True) for unit in step]
    rest = whole[taken * before[1] * before[2] :]
    assert merged[: len(rest)] == rest and len(merged) - len(rest) < len(others)


@quick
@given(
    parts=st.integers(1, 9), batch_size=st.integers(1, 20), stop=st.integers(0, 9), more=st.integers(1, 20)
)
def test_a_mixture_is_exact_and_resumes(
    world: World, parts: int, batch_size: int, stop: int, more: int
) -> None:
    """Shares are met to the unit at every batch, each loader goes along its own order, and states go on."""
    names = ("early", "backwards")

    def make(size: int) -> Any:
        pairs = [
            (world.views[name].loader(shuffle=True, seed=4, columns=["episode", "t"]), share)
            for name, share in zip(names, (parts, 10 - parts), strict=True)
        ]
        return el.mix(pairs, size, source=True, epoch=60)

    orders = []
    for name in names:
        loader = world.views[name].loader(shuffle=True, seed=4, columns=["episode", "t"])
        orders.append([unit for _ in range(12) for unit in identities(loader)])
    mixture = make(batch_size)
    came: list[list[tuple[int, int]]] = [[], []]
    state = None
    for number, batch in enumerate(mixture):
        for index in range(2):
            own = batch["source"] == index
            came[index] += identities([{key: batch[key][own] for key in ("episode", "t")}])
        assert abs(len(came[0]) - parts / 10 * (number + 1) * batch_size) < 1
        if number == stop:
            state = json.loads(json.dumps(mixture.state_dict()))
            position = [len(part) for part in came]
    assert all(part == order[: len(part)] for part, order in zip(came, orders, strict=True))
    resumed = make(more if stop % 2 else batch_size)
    resumed.load_state_dict(state)
    batch = next(iter(resumed))
    for index in range(2):
        own = batch["source"] == index
        units = identities([{key: batch[key][own] for key in ("episode", "t")}])
        assert units == orders[index][position[index] : position[index] + len(units)]


GOOD = {"batch_size": 4, "shuffle": True, "seed": 0}


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": None},
        {"window": 2**70},
        {"n_step": 2**70},
        lambda: {"units": el.Windows(3, burn_in=2**70)},
        lambda: {"units": el.Windows(3, stride=-1)},
        {"n_step": 3, "gamma": np.nan},
        lambda: {"units": el.Deltas({"action": None})},  # pyright: ignore[reportArgumentType]
        lambda: {"units": el.Deltas({"action": []})},
        {"units": el.Deltas({"nothing": [0]})},
        lambda: {"units": el.Deltas({"t": [0, 1]})},
        lambda: {"units": el.Deltas({"mask": [0]})},
        {"shuffle": True, "weights": "steps"},
        {"shuffle": True, "weights": "episodes"},
        {"shuffle": False, "weights": pl.lit(None)},
        {"shuffle": False, "weights": pl.lit(np.inf)},
        {"shuffle": False, "weights": [1.0, 2.0]},
        {"shard": None},
        {"cache": "disk"},
        lambda: {"cache": el.Cache("mmap", folder="")},
        lambda: {"cache": el.Cache("mmap", max_bytes=-1)},
        lambda: {"cache": el.Cache("stream", buffer_bytes=0)},
        {"transforms": [lambda batch: None]},
        {"shuffle": True, "weights": el.Prioritized()},
        {"output": 3},
        {"follow": True},
    ],
)
def test_wrong_arguments_are_errors_of_ours(world: World, arguments: Any) -> None:
    """Nothing silly passes in silence or ends in an error of another library."""
    with pytest.raises(el.EpisodelakeError):
        made = arguments() if callable(arguments) else arguments
        next(iter(world.views["all"].loader(**{**GOOD, **made})))
