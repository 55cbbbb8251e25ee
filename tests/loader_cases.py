"""Cases of loaders: a choice of a value for each factor, such as the cache, and the batches that must come.

`pairwise` has every two values of two factors together.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import episodelake as el
import plain_loader as plain
from episodelake.readers.columns.tree import leaves
from episodelake.types import Ragged
from loader_stores import World, halved, moved

PLACES = ("episode", "t")
USUAL = ("observation", "action", "reward", "next_observation", "terminated", "truncated")
#: Columns of numbers, beside those of every batch.
NUMBERS = (
    *("end_reason", "observation.image", "observation.pair.1", "next_observation.image"),
    *(
        "info.battery",
        "info.battery_present",
        "next_info.battery",
        "info.force",
        "policy.value",
        "next_policy.value",
    ),
    *("quality", "quality_present", "score", "score_present", "episode_return"),
)
#: Of a store of values of different lengths.
RAGGED = (
    *("end_reason", "observation.words", "next_observation.words"),
    *("info.hits", "info.hits_present", "next_info.hits"),
)
TEXTS = ("info.said", "next_info.said", "info.said_present", "caption", "level", "run_id", "metadata.task")


# Factors


def _returns(rows: plain.Rows) -> None:
    plain.add_returns(rows, 0.9)
    plain.add_advantages(rows, 0.9, 0.8)


def _relabelled(rows: plain.Rows) -> None:
    reward, number = rows.columns["reward"], rows.columns["observation.pair.1"]
    rows.columns["reward"] = [moved(*pair) for pair in zip(reward[:-1], number, strict=False)] + [
        np.float64(0)
    ]
    plain.add_returns(rows, 1.0)


def _stacked(rows: plain.Rows) -> None:
    images = plain.stacks([seen["image"] for seen in rows.columns["observation"]], 3, "first")
    numbers = plain.stacks([seen["pair"][1] for seen in rows.columns["observation"]], 2, "zero")
    rows.columns["observation"] = [
        {"image": image, "pair": (seen["pair"][0], number)}
        for seen, image, number in zip(rows.columns["observation"], images, numbers, strict=True)
    ]


#: By name: the transforms, and what they do to the rows of an episode.
TRANSFORMS: dict[str, tuple[list[Any], Any, tuple[str, ...]]] = {
    "none": ([], None, ()),
    "returns": (
        [el.ReturnToGo(0.9), el.GAE(0.9, 0.8, missing="repeat")],
        _returns,
        ("return_to_go", "advantage", "value_target"),
    ),
    "relabelled": (
        [el.Relabel("reward", moved, ["reward", "observation.pair.1"]), el.ReturnToGo(), halved],
        _relabelled,
        ("reward", "return_to_go"),
    ),
    "stacked": (
        [el.FrameStack(3, "observation.image"), el.FrameStack(2, "observation.pair.1", pad="zero")],
        _stacked,
        (),
    ),
    "cast": ([halved, el.Cast("reward", "float32"), el.Clip("reward", -0.5, None)], None, ()),
    "agents": ([el.ReturnToGo(0.9), halved], lambda rows: plain.add_returns(rows, 0.9), ("return_to_go",)),
}


def of_batch(batch: dict[str, Any], transforms: str) -> dict[str, Any]:
    """What the transforms of batches make of a batch."""
    if transforms in ("relabelled", "agents", "cast"):
        batch = {
            key: tree * 0.5 if key in ("reward", "return_to_go") else tree for key, tree in batch.items()
        }
    if transforms == "cast":
        batch["reward"] = np.maximum(batch["reward"].astype(np.float32), np.float32(-0.5))
    return batch


ORDERS: dict[str, dict[str, Any]] = {
    "sequential": {},
    "shuffled": {"shuffle": True},
    "steps": {"weights": "steps"},
    "episodes": {"weights": "episodes"},
    "weighted": {"weights": pl.col("length") - 1},
    "prioritized": {"weights": el.Prioritized()},
}
DRAWN = ("steps", "episodes", "weighted", "prioritized")
CACHES = ("memory", "mmap", "stream", "wide stream")
SHARDS = {"whole": (0, 1), "padded": (2, 3), "uneven": el.Shard(1, 4, uneven="drop")}
BATCHES: dict[str, Any] = {
    "2": 2,
    "4": 4,
    "7 whole": el.Batches(7, drop_last=True),
    "5 ahead": el.Batches(5, prefetch=2),
    "1000": 1000,
    "3": 3,
}
READERS = ("iterated", "pickled", "torch loader", "dataset")
#: Outputs of values of different lengths.
OUTPUTS: dict[str, Any] = {
    "rows": "numpy",
    "numpy padded": el.Output("numpy", ragged="padded"),
    "torch padded": el.Output("torch", ragged="padded"),
    "torch fixed": el.Output("torch", ragged=24),
    "tensordict padded": el.Output("tensordict", ragged="padded"),
}
CONDITIONS: dict[str, Any] = {"": None, "text": "reward > 0", "next row": pl.col("next_info.battery") > 0.4}
FACTORS: dict[str, Sequence[str]] = {
    "view": ("all", "backwards", "long", "odd", "early", "scattered"),
    "order": tuple(ORDERS),
    "cache": CACHES,
    "output": ("numpy", "torch", "tensordict"),
    "columns": ("usual", "numbers", "texts"),
    "shard": tuple(SHARDS),
    "batches": tuple(BATCHES)[:5],
    "reader": READERS,
    "transforms": ("none", "returns", "relabelled", "stacked", "cast"),
    "condition": tuple(CONDITIONS),
}

#: Of kinds of units that are like others in these.
FEWER = {
    "view": ("all", "backwards", "early", "scattered"),
    "order": ("sequential", "shuffled", "weighted", "prioritized"),
    "cache": ("memory", "mmap", "stream"),
    "output": ("numpy", "torch"),
    "shard": ("whole", "padded"),
    "batches": ("4", "7 whole", "5 ahead"),
    "reader": ("iterated", "pickled"),
    "condition": ("", "next row"),
}


def clashes(chosen: Mapping[str, str]) -> bool:
    """Whether some values do not go together; others may be missing yet."""
    get = chosen.get
    order, columns, cached = get("order"), get("columns"), get("cache") or ""
    live = order == "prioritized"
    return (
        ("stream" in cached and (order in DRAWN or bool(get("condition"))))
        # Nothing shows which units these are.
        or (columns == "usual" and "stream" in cached and order == "shuffled")
        or (live and (get("batches") == "5 ahead" or get("reader") in ("torch loader", "dataset")))
        or (columns == "texts" and get("output") in ("tensordict", "jax"))
        # Tensors have no rows within rows.
        or (get("output") in ("jax", "rows") and get("reader") in ("torch loader", "dataset"))
        or (get("transforms") == "stacked" and columns in ("numbers", "texts"))
    )


def pairwise(factors: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Choices of a value for each factor, so that every two values that go together occur together."""
    names = list(factors)
    left = {
        frozenset(((one, first), (two, second)))
        for one, two in itertools.combinations(names, 2)
        for first in factors[one]
        for second in factors[two]
        if not clashes({one: first, two: second})
    }

    def gain(chosen: Mapping[str, str], name: str, value: str) -> int:
        return sum(frozenset(((name, value), pair)) in left for pair in chosen.items())

    def completed(chosen: dict[str, str]) -> dict[str, str] | None:
        if len(chosen) == len(names):
            return chosen
        name = next(name for name in names if name not in chosen)
        # Ties turn with the number of pairs left, so that rows differ.
        turn = len(left) % len(factors[name])
        values = [*factors[name][turn:], *factors[name][:turn]]
        for value in sorted(values, key=lambda value: -gain(chosen, name, value)):
            more = {**chosen, name: value}
            if not clashes(more) and (found := completed(more)) is not None:
                return found
        return None

    rows: list[dict[str, str]] = []
    while left:
        first = min(left, key=sorted)
        row = completed(dict(first))
        if row is None:
            left.discard(first)
            continue
        rows.append({name: row[name] for name in names})
        left -= {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}
    return rows


# Cases


@dataclass(frozen=True)
class Kind:
    """A kind of unit, and whose units they are.

    Attributes:
        units: the kind.
        agents: the agents of a store of several; empty for a single agent.
        chosen: the arguments that choose them.
        prefix: of the columns, if the agents of a step make one row.
        store: its name.
    """

    units: Any
    agents: tuple[str, ...] = ()
    chosen: tuple[tuple[str, Any], ...] = ()
    prefix: str | None = None
    store: str = "one"

    @property
    def ragged(self) -> bool:
        """Whether units differ in length."""
        return isinstance(self.units, el.Episodes)

    @property
    def every(self) -> int:
        """Transitions from one unit's first to the next one's; 0 if units begin at no transition."""
        if self.ragged or (isinstance(self.units, el.Windows) and self.units.pad == "left"):
            return 0
        return getattr(self.units, "stride", 1)

    def default_keys(self) -> tuple[str, ...]:
        """The keys of a batch if none are named, as the documentation has them."""
        flags = ("terminated", "truncated")
        match self.units:
            case el.Windows():
                return ("observation", "action", "reward", *flags, "mask")
            case el.Episodes():
                return ("observation", "action", "reward", *flags, "mask", "length")
            case el.NSteps():
                return (*USUAL, "discount", "span")
            case el.Deltas():
                return (*self.units.steps, "mask")
        return USUAL

    def own_keys(self) -> tuple[str, ...]:
        """The keys that no column gives."""
        return tuple(key for key in self.default_keys() if key in (*plain.MADE, "length"))


@dataclass(frozen=True)
class Case:
    """A loader, as a choice of arguments by name; `lacking` leaves last transitions out as it should."""

    world: World
    kind: Kind
    folder: Path
    view: str = "all"
    order: str = "sequential"
    cache: str = "memory"
    output: str = "numpy"
    columns: str = "numbers"
    shard: str = "whole"
    batches: str = "4"
    reader: str = "iterated"
    transforms: str = "none"
    condition: str = ""
    lacking: bool = False

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name in FACTORS if (value := getattr(self, name)))

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys of a batch, in their order."""
        kind, prefix = self.kind, self.kind.prefix or ""
        own = kind.own_keys() if kind.prefix is None else (*kind.own_keys(), f"{prefix}agent_mask")
        number = ("agent_id",) if kind.agents and kind.prefix is None else ()
        if self.columns == "places":
            names: tuple[str, ...] = (*PLACES, *number)
        elif self.columns == "usual":
            made = kind.own_keys()
            of_agents = (*(key for key in kind.default_keys() if key not in made),)
            names = (*(prefix + key for key in of_agents), *own[len(made) :], *made)
            names = kind.default_keys() if kind.prefix is None else names
        elif kind.agents:
            more = ("episode_id", "length") if self.columns == "texts" else ()
            step = () if kind.prefix is not None else ("env_step", "end_reason")
            seen = "info.turn" if kind.store == "turns" else "info.mask"
            of_agents = (*USUAL, seen, *more)
            names = (*(prefix + key for key in of_agents), *PLACES, *own, *number, *step)
        elif kind.store == "ragged":
            names = (*USUAL, *PLACES, *RAGGED, *own)
        elif self.transforms == "stacked":
            names = (*USUAL, *PLACES, *own)
        else:
            names = (*USUAL, *PLACES, *NUMBERS, *(TEXTS if self.columns == "texts" else ()), *own)
        required = (*kind.units.steps, "mask") if isinstance(kind.units, el.Deltas) else ()
        return tuple(dict.fromkeys((*required, *names, *TRANSFORMS[self.transforms][2])))

    def loader(self, **other: Any) -> el.Loader:
        """The loader, with other arguments where they are given."""
        caches: dict[str, Any] = {
            "memory": "memory",
            "mmap": el.Cache("mmap", folder=self.folder),
            "stream": el.Cache("stream", buffer_bytes=6000),
            "wide stream": "stream",
        }
        arguments: dict[str, Any] = {
            "batch_size": BATCHES[self.batches],
            "units": self.kind.units,
            "columns": None if self.columns == "usual" else self.keys,
            "seed": 3,
            "cache": caches[self.cache],
            "output": OUTPUTS.get(self.output, self.output),
            "shard": SHARDS[self.shard],
            "transforms": TRANSFORMS[self.transforms][0],
            "transitions": CONDITIONS[self.condition],
            **dict(self.kind.chosen),
            **ORDERS[self.order],
        }
        return self.world.views[self.view].loader(**arguments | other)

    @cached_property
    def units(self) -> list[tuple[tuple[int, ...], dict[str, Any]]]:
        """All units in the order of the view, each with its place: episode, agent, step of its first row."""
        return _units(self)

    def expected(self, numbers: Sequence[int]) -> dict[str, Any]:
        """The batch of some units."""
        units = [self.units[number][1] for number in numbers]
        return of_batch(plain.batch_of(units, self.keys, ragged=self.kind.ragged), self.transforms)

    def numbers(self, batch: Mapping[str, Any]) -> list[int]:
        """Which units a batch has, by their places."""
        places = {place: number for number, (place, _) in enumerate(self.units)}
        agents = batch["agent_id"] if "agent_id" in batch else np.zeros_like(batch["episode"])
        firsts = batch["t"].reshape(len(batch["t"]), -1)[:, 0]
        return [
            places[row]
            for row in zip(*map(np.ndarray.tolist, (batch["episode"], agents, firsts)), strict=True)
        ]

    def order_of(self, epoch: int) -> list[int]:
        """The units of an epoch of all shards, as a loader of their places alone has them."""
        if self.order == "sequential":
            return list(range(len(self.units)))
        plainer = replace(self, output="numpy", shard="whole", batches="1000", reader="iterated")
        if "stream" not in self.cache:
            plainer = replace(plainer, cache="memory", transforms="none", columns="places")
        return _order(plainer, epoch)

    def taken(self, epoch: int) -> list[list[int]]:
        """What the shard takes of an epoch, cut into batches."""
        order, shard, batches = self.order_of(epoch), SHARDS[self.shard], el.Batches.of(BATCHES[self.batches])
        rank, world, drop = (
            (shard.rank, shard.world, True) if isinstance(shard, el.Shard) else (*shard, False)
        )
        count = len(order) // world if drop else -(-len(order) // world)
        own = [order[(rank + world * place) % len(order)] for place in range(count)]
        cut = [own[first : first + batches.size] for first in range(0, len(own), batches.size)]
        return [part for part in cut if len(part) == batches.size or not batches.drop_last]

    def check(self, batch: Any, numbers: Sequence[int]) -> dict[str, Any]:
        """Fail unless a batch is that of some units; return it as numpy arrays, which share its memory."""
        expected = self.expected(numbers)
        if self.output.startswith("tensordict"):
            assert tuple(batch.batch_size) == (len(numbers),)
            expected = without_tuples(expected)
        found = as_numpy(batch)
        if self.output in ("numpy", "rows") and self.reader in ("iterated", "pickled"):
            assert all(isinstance(leaf, np.ndarray | Ragged) for _, leaf in leaves(batch))
        plain.assert_same(found, expected)
        return found

    def epochs(self, loader: el.Loader, count: int) -> Iterator[Iterator[Any]]:
        """The batches of the next epochs, as the reader of the case makes them."""
        if self.reader == "pickled":
            loader = pickle.loads(pickle.dumps(loader))
        elif self.reader == "torch loader":
            loader = loader.torch_loader()
        elif self.reader == "dataset":
            dataset = loader.iterable_dataset()
            for epoch in range(count):
                dataset.set_epoch(epoch)
                yield iter(dataset)
            return
        for _ in range(count):
            yield iter(loader)


_MADE: dict[Any, Any] = {}


def _units(case: Case) -> list[tuple[tuple[int, ...], dict[str, Any]]]:
    kind, view = case.kind, case.view
    made = id(case.world), repr(kind), view, case.transforms, case.keys, case.condition, case.lacking
    if made not in _MADE:
        world = case.world
        episodes = world.agents(view, kind.agents, joint=kind.prefix) if kind.agents else world.episodes(view)
        change = TRANSFORMS[case.transforms][1]
        _MADE[made] = found = []
        for stored in episodes:
            rows = replace(stored, columns=dict(stored.columns))
            if change is not None:
                change(rows)
            usable = rows.length - (rows.missing and case.lacking)
            for begin, unit in plain.units_of(rows, kind.units, case.keys, usable):
                if not case.condition or _fulfils(stored, begin, case.condition):
                    first = int(np.ravel(unit["t"])[0])
                    found.append(((rows.number, rows.agent, first), unit))
    return _MADE[made]


def _fulfils(rows: plain.Rows, t: int, condition: str) -> bool:
    if condition == "next row":
        return bool(rows.columns["info.battery"][t + 1] > 0.4)
    # In SQL a NaN is above every number.
    return not rows.columns["reward"][t] <= 0


def _order(case: Case, epoch: int) -> list[int]:
    made = "order", id(case.world), repr(case.kind), epoch, *(getattr(case, name) for name in FACTORS)
    if made not in _MADE:
        loader = case.loader()
        loader.set_epoch(epoch)
        _MADE[made] = [number for batch in loader for number in case.numbers(batch)]
    return _MADE[made]


def as_numpy(tree: Any) -> Any:
    """Batches of any output as numpy arrays, which share their memory."""
    if hasattr(tree, "batch_size"):
        return {key: as_numpy(part) for key, part in tree.items()}
    if isinstance(tree, dict):
        return {key: as_numpy(part) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map(as_numpy, tree))
    if getattr(tree, "is_nested", False):
        return Ragged(tree.values().numpy(), tree.offsets().numpy())
    return tree if isinstance(tree, Ragged) else np.asarray(tree)


def without_tuples(tree: Any) -> Any:
    """Tuples as dicts, as a TensorDict has them."""
    if isinstance(tree, tuple):
        return {str(number): without_tuples(part) for number, part in enumerate(tree)}
    return {key: without_tuples(part) for key, part in tree.items()} if isinstance(tree, dict) else tree


def spoil(batch: Any) -> None:
    """Write other values into every array of a batch."""
    for name, leaf in leaves(batch):
        while isinstance(leaf, Ragged):
            leaf = leaf.values
        assert leaf.flags.writeable, f"{name} cannot be written to"
        leaf[...] = (
            np.char.add(leaf, "?") if leaf.dtype.kind == "U" else ~leaf if leaf.dtype == bool else leaf + 1
        )
