"""`LoaderContract`: the rules that hold for loaders of every kind of unit, order, cache and output.

The truth is a plain loop over episodes (`plain_loader`); `loader_cases` has the cases.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import pickle
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import episodelake as el
import plain_loader as plain
from effort import each_value_once
from episodelake.testing.adapters import case as named
from loader_cases import (
    BATCHES,
    FACTORS,
    FEWER,
    ORDERS,
    PLACES,
    Case,
    Kind,
    as_numpy,
    clashes,
    pairwise,
    spoil,
)
from loader_stores import World
from waiting import PATIENCE


class LoaderContract:
    """Rules for the loaders of a kind of unit. Subclass it in a test module and set `kind`."""

    kind: ClassVar[Kind]
    #: Whether outputs, readers, shards and views have all their values, or only a few, and cases are many.
    thorough: ClassVar[bool] = False
    #: Whether `make test` has every two values of the factors together, for one kind of each store at least.
    paired: ClassVar[bool] = False
    #: Whether worker processes of torch make the batches as well; each imports torch, which takes seconds.
    in_workers: ClassVar[bool] = False

    @property
    def tensors(self) -> str:
        """The output of workers."""
        return "torch padded" if self.kind.store == "ragged" else "torch"

    @pytest.fixture
    def world(self, worlds: Mapping[str, World]) -> World:
        """The store that has the units."""
        return worlds[self.kind.store]

    def possible(self) -> dict[str, Sequence[str]]:
        """The values of the factors that go with the kind of unit."""
        factors = dict(FACTORS) if self.thorough else {**FACTORS, **FEWER}
        if not self.kind.every or self.kind.agents:
            factors["condition"] = ("",)
        if self.kind.store == "ragged":
            factors["output"] = ("rows", "torch padded", "torch fixed")
            factors["columns"] = ("usual", "numbers")
            factors["transforms"] = ("none", "cast", "agents")
            factors["condition"] = ("", "text") if self.kind.every else ("",)
        if self.kind.agents:
            factors["view"] = ("all", "backwards", "long")
            factors["order"] = ("sequential", "shuffled", "episodes")
            factors["transforms"] = ("none", "agents") if self.kind.prefix is None else ("none",)
        return factors

    @pytest.fixture
    def cases(self, world: World, tmp_path: Path) -> list[Case]:
        """The cases of the kind of unit: every two values together."""
        return [Case(world, self.kind, tmp_path, **row) for row in pairwise(self.possible())]

    def test_batches_are_those_of_a_plain_loop(self, cases: list[Case]) -> None:
        """Keys, dtypes, shapes and values of every batch, two epochs long; and each belongs to its reader.

        Kinds that are not `paired` have each value once here.
        """
        chosen = range(len(cases)) if self.paired else sorted(each_value_once(list(map(values_of, cases))))
        for place in chosen:
            with named(str(cases[place])):
                check_epochs(cases[place])

    @pytest.mark.further
    def test_batches_of_every_two_values(self, cases: list[Case]) -> None:
        """As above, for kinds that have each value once there."""
        for case in cases if not self.paired else ():
            with named(str(case)):
                check_epochs(case)

    @pytest.mark.further
    def test_batches_of_any_case_are_those_of_a_plain_loop(self, world: World, tmp_path: Path) -> None:
        """As above, for cases that are drawn from all."""
        rng = np.random.default_rng(7)
        factors = self.possible()
        count = 60 if self.kind.store == "ragged" else 400 if self.thorough else 100
        rows = ({name: str(rng.choice(values)) for name, values in factors.items()} for _ in range(count))
        for row in rows:
            if not clashes(row):
                case = Case(world, self.kind, tmp_path, **row)
                with named(str(case)):
                    check_epochs(case)

    @pytest.mark.sample(4)
    def test_orders(self, world: World, tmp_path: Path) -> None:
        """A seed and an epoch have one order: of each unit once if shuffled, of some units if drawn."""
        for order, cache in itertools.product(ORDERS, ("memory", "stream")):
            if clashes({"order": order, "cache": cache}) or order == "sequential":
                continue
            case = Case(world, self.kind, tmp_path, order=order, cache=cache, batches="1000")
            with named(str(case)):
                every = list(range(len(case.units)))

                def epochs(case: Case = case, **other: Any) -> list[list[int]]:
                    loader = case.loader(**other)
                    return [[number for batch in loader for number in case.numbers(batch)] for _ in range(3)]

                first = epochs()
                assert first == epochs(batch_size=7)
                # A stream permutes blocks, and units only within a 64th of a group: small ones may agree.
                if cache == "memory" or len(every) > 100:
                    assert len({*map(tuple, first)}) == 3
                    assert epochs(seed=4) != first and every not in first
                if order == "shuffled":
                    assert all(sorted(epoch) == every for epoch in first)
                assert all(len(epoch) == len(every) for epoch in first)
                if order == "weighted" and not self.kind.agents:
                    # Its weight is 0 where an episode has one transition.
                    lengths = {rows.number: rows.length for rows in world.episodes("all")}
                    drawn = {lengths[case.units[number][0][0]] for epoch in first for number in epoch}
                    assert min(drawn) > 1 and len(drawn) > 2

    @pytest.mark.sample(5)
    def test_states_continue_at_any_batch(self, cases: list[Case], tmp_path: Path) -> None:
        """With another batch size, cache and reader; a state is small and JSON can hold it."""
        for count, case in enumerate(case for case in cases[::3] if case.units):
            with named(str(case)):
                batches, whole = (
                    case.taken(0),
                    [number for epoch in (0, 1) for part in case.taken(epoch) for number in part],
                )
                stop = (1, len(batches), 0, len(batches) // 2)[count % 4]
                loader = case.loader()
                for _ in zip(range(stop), loader, strict=False):
                    pass
                state = loader.state_dict()
                if case.order != "prioritized":
                    state = json.loads(json.dumps(state))
                other = replace(case, batches="3", reader="iterated")
                if "stream" not in case.cache or case.order == "sequential":
                    other = replace(other, cache="memory" if case.cache == "mmap" else "mmap")
                resumed = other.loader()
                resumed.load_state_dict(state)
                assert resumed.state_dict()["position"] == state["position"]
                if el.Batches.of(BATCHES[case.batches]).drop_last:
                    continue
                found: list[int] = []
                done = sum(map(len, batches[:stop]))
                while done + len(found) < len(whole):
                    for batch in resumed:
                        if case.order == "prioritized":
                            batch = drawn_parts(batch)[0]
                        size = len(np.asarray(plain.first_leaf(as_numpy(batch))))
                        numbers = whole[done + len(found) :][:size]
                        other.check(batch, numbers)
                        found += numbers
                assert done + len(found) == len(whole)

    @pytest.mark.sample(3)
    def test_shards_are_an_epoch_together(self, world: World, tmp_path: Path) -> None:
        """They take turns; one state of all goes on with another number of them."""
        orders = ("sequential", "shuffled", "episodes") if self.thorough else ("shuffled",)
        for order, cache, (uneven, step) in itertools.product(
            orders, ("memory", "stream"), (("pad", 1), ("drop", 2))
        ):
            if clashes({"order": order, "cache": cache}):
                continue
            case = Case(world, self.kind, tmp_path, order=order, cache=cache)
            with named(f"{case}, {uneven}"):
                whole = case.order_of(0)
                if len(whole) < 6 * step + 2:
                    continue
                left, world_size = whole, 3
                states: list[Any] = [None] * world_size
                while world_size:
                    shares = []
                    for rank in range(world_size):
                        loader = case.loader(batch_size=2, shard=el.Shard(rank, world_size, uneven=uneven))
                        if states[0] is not None:
                            loader.load_state_dict(states[0])
                        taken = (
                            zip(range(step), loader, strict=False) if world_size == 3 else enumerate(loader)
                        )
                        shares.append([number for _, batch in taken for number in case.numbers(batch)])
                        states.append(loader.state_dict())
                    assert len({*map(len, shares)}) == 1
                    assert all(state == states[-1] for state in states[-world_size:])
                    merged = [number for together in zip(*shares, strict=True) for number in together]
                    if world_size == 3:
                        assert merged == left[: 6 * step]
                        left, states, world_size = left[6 * step :], states[-1:], 2
                        continue
                    more = len(merged) - len(left)
                    assert more in ((0, 1) if uneven == "pad" else (0, -1))
                    assert (
                        merged[: len(left)] == left[: len(merged)]
                        and merged[len(left) :] == whole[: max(more, 0)]
                    )
                    break

    @pytest.mark.sample(4)
    def test_units_are_taken_a_few_at_a_time(self, world: World, tmp_path: Path) -> None:
        """`take` goes on over the end of epochs, and mixes with iteration and states."""
        for order, cache, shard in (
            ("shuffled", "memory", "whole"),
            ("sequential", "stream", "padded"),
            ("shuffled", "stream", "whole"),
        ):
            transforms = self.possible()["transforms"][-1]
            case = Case(
                world, self.kind, tmp_path, order=order, cache=cache, shard=shard, transforms=transforms
            )
            with named(str(case)):
                order_ = [number for epoch in range(8) for part in case.taken(epoch) for number in part]
                loader, resumed = case.loader(), case.loader()
                done = 0
                for count in (1, 3, len(case.taken(0)) * 4 + 3, 2):
                    numbers = order_[done : done + count]
                    resumed.load_state_dict(loader.state_dict())
                    for each in (loader, resumed):
                        case.check(each.take(count), numbers)
                    done += count
                rest = next(iter(loader))
                size = len(np.asarray(plain.first_leaf(as_numpy(rest))))
                case.check(rest, order_[done : done + size])

    def test_missing_last_observations(self, world: World, tmp_path: Path) -> None:
        """Transitions without their next observation are left out where a batch has it; a warning says so."""
        if self.kind.agents:
            return
        whole = ("reward", "action", *PLACES, "terminated", "truncated", "end_reason", *self.kind.own_keys())
        for cache, columns, needed in itertools.product(
            ("memory", "mmap", "stream"),
            (
                whole,
                (*whole, "observation"),
                (*whole, "next_observation"),
                (*whole, "observation", "observation_present"),
                (*whole, "next_observation", "next_observation_present"),
            ),
            (False, True),
        ):
            after = "next_observation" in columns or (self.kind.ragged and "observation" in columns)
            lacking = after and not columns[-1].endswith("observation_present")
            if lacking != needed:
                continue
            case = Lacking(
                world, self.kind, tmp_path, view="lacking", cache=cache, lacking=lacking, names=columns
            )
            with named(f"{cache}, {columns}"):
                count = sum(rows.missing for rows in world.episodes("lacking"))
                if lacking:
                    with pytest.warns(RuntimeWarning, match=f"leaves out {count} of "):
                        loader = case.loader()
                else:
                    loader = case.loader()
                assert loader.units == len(case.units)
                for batch, numbers in zip(loader, case.taken(0), strict=True):
                    case.check(batch, numbers)

    def test_worker_processes_make_the_batches(self, world: World, tmp_path: Path) -> None:
        """Two processes make those of one, in their order, also after a state; none of them stays."""
        torch = pytest.importorskip("torch")
        if not self.thorough:
            return
        before = multiprocessing.active_children()
        cache = "stream" if self.kind.ragged else "memory"
        case = Case(
            world,
            self.kind,
            tmp_path,
            view="backwards",
            order="shuffled",
            cache=cache,
            output=self.tensors,
            shard="padded",
        )
        loader = case.loader().torch_loader(2)
        for epoch in range(2):
            wanted = case.taken(epoch)
            if epoch:
                copy = case.loader().torch_loader(1)
                copy.load_state_dict(json.loads(json.dumps(loader.state_dict())))
                loader = copy
            for batch, numbers in zip(loader, wanted, strict=True):
                case.check(batch, numbers)
        dataset = case.loader().iterable_dataset()
        made = torch.utils.data.DataLoader(
            dataset, batch_size=None, num_workers=2, collate_fn=dataset.collate
        )
        for batch, numbers in zip(made, case.taken(0), strict=True):
            case.check(batch, numbers)
        assert multiprocessing.active_children() == before

    @pytest.mark.further
    def test_another_process_makes_the_batches(
        self, world: World, tmp_path: Path, spawned: ProcessPoolExecutor
    ) -> None:
        """A loader that has begun is sent, from every cache, and goes on there."""
        for cache in ("memory", "mmap", "stream"):
            case = Case(world, self.kind, tmp_path, order="shuffled", cache=cache)
            with named(str(case)):
                begun = case.loader()
                next(iter(begun))
                rest = spawned.submit(list, pickle.loads(pickle.dumps(begun))).result(PATIENCE)
                for batch, numbers in zip(rest, case.taken(0)[1:], strict=True):
                    case.check(batch, numbers)

    @pytest.mark.further
    @pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
    def test_worker_processes_of_every_kind(self, world: World, tmp_path: Path) -> None:
        """Spawned or forked, and kept, from every cache."""
        if not self.in_workers:
            return
        for cache, method, count in (("memory", "spawn", 3), ("mmap", "fork", 1), ("stream", "spawn", 2)):
            case = Case(world, self.kind, tmp_path, order="shuffled", cache=cache, output=self.tensors)
            with named(f"{case}, {method}"):
                loader = case.loader().torch_loader(
                    count, persistent_workers=True, multiprocessing_context=method
                )
                for epoch in range(2):
                    for batch, numbers in zip(loader, case.taken(epoch), strict=True):
                        case.check(batch, numbers)


@dataclass(frozen=True)
class Lacking(Case):
    """A case with columns of its own."""

    names: tuple[str, ...] = ()

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """See `Case`."""
        required = (*self.kind.units.steps, "mask") if isinstance(self.kind.units, el.Deltas) else ()
        return tuple(dict.fromkeys((*required, *self.names)))


def values_of(case: Case) -> set[tuple[str, str]]:
    """The value of each factor of a case."""
    return {(name, getattr(case, name)) for name in FACTORS}


def check_epochs(case: Case) -> None:
    """Fail unless two epochs of a case are those of a plain loop, or it is refused for having no unit."""
    if not case.units:
        with pytest.raises(el.errors.InvalidArgumentError, match=type(case.kind.units).__name__):
            case.loader()
        return
    loader = case.loader()
    assert loader.units == len(case.units) and len(loader) == len(case.taken(0))
    for epoch, batches in enumerate(case.epochs(loader, 2)):
        wanted = case.taken(epoch)
        count = 0
        # All are kept in the first epoch, and each is overwritten in the second one.
        for batch, numbers in zip(list(batches) if epoch == 0 else batches, wanted, strict=True):
            if case.order == "prioritized":
                batch, units, weights = drawn_parts(batch)
                assert units.tolist() == numbers and weights.tolist() == [1.0] * len(numbers)
            found = case.check(batch, numbers)
            if epoch:
                spoil(found)
            count += 1
        assert count == len(wanted)


def drawn_parts(batch: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """A batch that was drawn by priority, without the units and weights that it ends with; and these."""
    assert list(batch.keys())[-2:] == ["unit", "weight"]
    units, weights = np.asarray(batch["unit"]), np.asarray(batch["weight"])
    assert units.dtype == np.int64 and weights.dtype == np.float64
    names = list(batch.keys())[:-2]
    return (
        batch.select(*names) if hasattr(batch, "batch_size") else {name: batch[name] for name in names},
        units,
        weights,
    )
