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


def at(tree: Any, index: Any) -> Any:
    """The part of each leaf at an index."""
    if isinstance(tree, dict):
        return {key: at(value, index) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(at(value, index) for value in tree)
    return tree[index]


def leaves(tree: Any) -> list[np.ndarray]:
    """The arrays of a nested value, in order of their keys."""
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in leaves(tree[key])]
    if isinstance(tree, tuple):
        return [leaf for value in tree for leaf in leaves(value)]
    return [np.asarray(tree)]


def same(one: Any, other: Any) -> bool:
    """Whether two nested values have the same leaves; NaN equals NaN."""
    first, second = leaves(one), leaves(other)
    return len(first) == len(second) and all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(first, second, strict=True)
    )


def identical(one: Any, other: Any) -> bool:
    """Whether two nested values are the same in dtype, shape and every byte."""
    return all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(leaves(one), leaves(other), strict=True)
    )


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
UNITS = st.sampled_from(
    [{}, {"n_step": 3}, {"units": el.Windows(3, pad="left")}, {"units": el.WholeEpisodes()}]
)
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
@given(name=names, unit=UNITS, order=ORDERS, seed=st.integers(0, 99))
def test_memory_and_mapped_files_are_identical(
    world: World, name: str, unit: Any, order: Any, seed: int
) -> None:
    """Both caches give the same batches, byte for byte."""
    view = world.views[name]
    memory = view.loader(13, seed=seed, **unit, **order)
    mapped = view.loader(13, seed=seed, cache="mmap", **unit, **order)
    for one, other in zip(memory, mapped, strict=True):
        assert list(one) == list(other) and identical(one, other)


@quick
@given(
    name=names,
    unit=UNITS,
    shuffle=st.booleans(),
    buffer_bytes=st.sampled_from([1, 2000, 20_000, 1 << 30]),
    world_size=st.integers(1, 5),
    taken=st.integers(0, 3),
)
def test_a_stream_has_each_unit_once(
    world: World, name: str, unit: Any, shuffle: bool, buffer_bytes: int, world_size: int, taken: int
) -> None:
    """A stream's shards have each unit once, with the memory's values, and go on exactly in other shards."""
    view = world.views[name]

    def loader(rank: int, count: int, batch_size: int) -> Any:
        return view.loader(
            batch_size,
            shuffle=shuffle,
            seed=3,
            cache=el.Cache("stream", buffer_bytes=buffer_bytes),
            columns=["episode", "t", "reward", "observation"],
            shard=(rank, count),
            **unit,
        )

    expected = identities(view.loader(9, columns=["episode", "t"], **unit))
    whole = identities(loader(0, 1, 6))
    assert sorted(whole) == sorted(expected) and (shuffle or whole == expected)
    streams = [loader(rank, world_size, 2) for rank in range(world_size)]
    taken = min(taken, len(streams[0]) - 1)
    for stream in streams:
        batches = iter(stream)
        for _ in range(taken):
            next(batches)
        batches.close()
    (state,) = {json.dumps(stream.state_dict()) for stream in streams}
    again = loader(0, 1, 5)
    again.load_state_dict(json.loads(state))
    assert identities(again) == whole[2 * taken * world_size :]
    plains = world.plain(name)
    if not unit:
        for batch in loader(0, 1, 4):
            for row, (position, step) in enumerate(identities([batch])):
                assert same(at(batch["observation"], row), at(plains[position].observations, step))
                assert batch["reward"][row] == plains[position].rewards[step]


def expected_shares(plains: list[el.Episode], weight: Any) -> np.ndarray:
    """How often each transition should be drawn, episode after episode, by the weight of its episode."""
    weights = np.array([float(weight(plain)) for plain in plains])
    each = weights / weights.sum()
    return np.concatenate([np.full(p.length, w / p.length) for p, w in zip(plains, each, strict=True)])


def drawn(world: World, name: str, batches: Any) -> np.ndarray:
    """How often each transition of a view was drawn."""
    starts = np.cumsum([0, *(plain.length for plain in world.plain(name))])
    rows = [starts[episode] + step for episode, step in identities(batches)]
    return np.bincount(rows, minlength=starts[-1])


def assert_shares(counts: np.ndarray, shares: np.ndarray) -> None:
    """No count is further from its expectation than six standard deviations, and chi squared is usual."""
    total = counts.sum()
    deviation = np.sqrt(total * shares * (1 - shares))
    assert (np.abs(counts - total * shares) <= 6 * deviation).all()
    positive = shares > 0
    squared = ((counts - total * shares)[positive] ** 2 / (total * shares[positive])).sum()
    free = positive.sum() - 1
    assert abs(squared - free) < 6 * np.sqrt(2 * free)


@pytest.mark.parametrize(
    ("order", "weight"),
    [
        ({"weights": "steps"}, lambda plain: plain.length),
        ({"weights": "steps"}, lambda plain: plain.length),
        ({"weights": "episodes"}, lambda plain: 1),
        ({"weights": pl.col("length") ** 2}, lambda plain: plain.length**2),
        ({"weights": pl.col("score")}, lambda plain: plain.length % 3),
    ],
)
def test_weights_hold_in_distribution(world: World, order: dict[str, Any], weight: Any) -> None:
    """Transitions are drawn as often as their episode's weight says, in an odd order of episodes."""
    view = world.views["sorted backwards"].filter(pl.col("score").is_not_null())
    plains = list(view)
    loader = view.loader(512, seed=1, columns=["episode", "t"], **order)
    starts = np.cumsum([0, *(plain.length for plain in plains)])
    rows = [starts[e] + t for _ in range(400) for e, t in identities(loader)]
    assert_shares(np.bincount(rows, minlength=starts[-1]), expected_shares(plains, weight))


@pytest.mark.parametrize("zeros", [0, 5])
def test_priorities_hold_in_distribution(world: World, zeros: int) -> None:
    """Units are drawn by priority to the power alpha, with the importance weights of the paper."""
    view = world.views["sorted backwards"]

    def make() -> Any:
        prioritized = el.Prioritized(alpha=0.7, beta=0.5, epsilon=0.0)
        return view.loader(64, weights=prioritized, columns=["episode", "t"], seed=2)

    loader = make()
    priorities = np.random.default_rng(0).uniform(0.1, 3, loader.units)
    priorities[:zeros] = 0
    loader.update_priorities(np.arange(loader.units), priorities)
    shares = priorities**0.7 / (priorities**0.7).sum()
    batches = [batch for _ in range(400) for batch in loader]
    units = np.concatenate([batch["unit"] for batch in batches])
    assert_shares(np.bincount(units, minlength=loader.units), shares)
    everything = (loader.units * shares[zeros:]) ** -0.5
    expected = (loader.units * shares[units]) ** -0.5 / everything.max()
    np.testing.assert_allclose(np.concatenate([batch["weight"] for batch in batches]), expected, rtol=1e-5)
    counts = drawn(world, "sorted backwards", batches)
    assert (
        counts == np.bincount(units, minlength=loader.units)
    ).all()  # units are numbered episode after episode
    again = make()
    again.load_state_dict(loader.state_dict())
    assert identical(next(iter(again)), next(iter(loader)))


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


@quick
@given(
    name=names,
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    lam=st.sampled_from([0.0, 0.95, 1.0]),
    k=st.integers(1, 5),
)
def test_transforms_on_reading_know_the_episode(
    world: World, name: str, gamma: float, lam: float, k: int
) -> None:
    """Returns, advantages and stacked frames are those of a loop over the episode."""
    loader = world.views[name].loader(
        9,
        n_step=2,
        columns=["episode", "t", "observation", "next_observation", "policy.value", "span"],
        transforms=[
            el.ReturnToGo(gamma),
            el.GAE(gamma, lam, missing="repeat"),
            el.FrameStack(k, key="observation.image"),
        ],
    )
    got = joined(loader)
    row = 0
    for plain in world.plain(name):
        first = row
        values = got["policy.value"][first : first + plain.length]
        returns, advantages = np.zeros(plain.length + 1), np.zeros(plain.length + 1)
        for step in reversed(range(plain.length)):
            last = step == plain.length - 1
            following = (0.0 if plain.terminations[step] else values[step]) if last else values[step + 1]
            delta = plain.rewards[step] + gamma * following - values[step]
            returns[step] = plain.rewards[step] + gamma * returns[step + 1]
            advantages[step] = delta + gamma * lam * advantages[step + 1]
        stop = first + plain.length
        np.testing.assert_allclose(got["return_to_go"][first:stop], returns[:-1], rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(got["advantage"][first:stop], advantages[:-1], rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(
            got["value_target"][first:stop], advantages[:-1] + values, rtol=1e-6, atol=1e-9
        )
        images = plain.observations["image"]
        for step in range(plain.length):
            for key, end in (("observation", step), ("next_observation", step + int(got["span"][row]))):
                frames = [images[max(0, end - back)] for back in reversed(range(k))]
                assert np.array_equal(got[key]["image"][row], np.stack(frames)), (key, step)
            row += 1


def test_worker_processes_keep_order_and_state(world: World) -> None:
    """Two forked workers give the order of none, and their state goes on without them."""
    pytest.importorskip("torch")
    view = world.views["scattered"]

    def make(**more: Any) -> Any:
        return view.loader(7, shuffle=True, seed=8, output="torch", columns=["episode", "t"], **more)

    whole = identities(make())
    workers = make().torch_loader(num_workers=2, multiprocessing_context="fork")
    batches = iter(workers)
    taken = identities(next(batches) for _ in range(3))
    state = json.loads(json.dumps(workers.state_dict()))
    batches.close()
    other = make()
    other.load_state_dict(state)
    assert taken + identities(other) == whole
    assert taken + identities(workers) == whole


GOOD = {"batch_size": 4, "shuffle": True, "seed": 0}


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 0},
        {"batch_size": None},
        {"window": 10_000},
        {"window": 2**70},
        {"n_step": 2**70},
        lambda: {"units": el.Windows(3, burn_in=2**70)},
        lambda: {"units": el.Windows(3, stride=-1)},
        {"n_step": 3, "gamma": np.nan},
        lambda: {"units": el.Deltas({"action": None})},  # pyright: ignore[reportArgumentType]
        lambda: {"units": el.Deltas({"action": 3})},  # pyright: ignore[reportArgumentType]
        lambda: {"units": el.Deltas({"action": []})},
        {"units": el.Deltas({"nothing": [0]})},
        lambda: {"units": el.Deltas({"action": [2**70]})},
        lambda: {"units": el.Deltas({"t": [0, 1]})},
        lambda: {"units": el.Deltas({"end_reason": [0, 1]})},
        lambda: {"units": el.Deltas({"mask": [0]})},
        {"columns": ["observation", 3]},
        {"columns": "observation"},
        {"columns": []},
        {"columns": ["nothing"]},
        {"shuffle": True, "weights": "steps"},
        {"shuffle": True, "weights": "episodes"},
        {"shuffle": False, "weights": pl.lit(-1)},
        {"shuffle": False, "weights": pl.lit(np.nan)},
        {"shuffle": False, "weights": pl.lit(0)},
        {"shuffle": False, "weights": pl.lit(None)},
        {"shuffle": False, "weights": pl.lit(np.inf)},
        {"shuffle": False, "weights": pl.col("nothing")},
        {"shuffle": False, "weights": [1.0, 2.0]},
        {"shard": (2, 2)},
        {"shard": (-1, 2)},
        {"shard": None},
        {"cache": "disk"},
        lambda: {"cache": el.Cache("mmap", folder=3)},  # pyright: ignore[reportArgumentType]
        lambda: {"cache": el.Cache("mmap", folder="")},
        lambda: {"cache": el.Cache("mmap", max_bytes=-1)},
        lambda: {"cache": el.Cache("stream", buffer_bytes=0)},
        {"transforms": [lambda batch: None]},
        {"shuffle": True, "weights": el.Prioritized()},
        {"units": el.Windows(3), "window": 3},
        {"units": 3},
        {"output": 3},
        {"follow": True},
    ],
)
def test_wrong_arguments_are_errors_of_ours(world: World, arguments: Any) -> None:
    """Nothing silly passes in silence or ends in an error of another library."""
    with pytest.raises(el.EpisodelakeError):
        made = arguments() if callable(arguments) else arguments
        next(iter(world.views["all"].loader(**{**GOOD, **made})))
