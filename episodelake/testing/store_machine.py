"""`StoreMachine`: recording and maintenance in any order, beside a model of plain Python values.

It needs hypothesis. Each rule does one operation to the store and to the model; after each step the newest
version must be what the model says, for every reader.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import polars
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from .. import EpisodeStore, errors, merge
from ..writers.episodes.episode_writer import EpisodeWriter
from .backends import Backend
from .store_model import SPACES, ModelEpisode, Shown, check_raw, ids_of, kill, label_frame, mark_frame

#: An info or metadata value of any kind, so that typed columns, the JSON column and late columns all occur.
_values = st.one_of(
    st.integers(-5, 5),
    st.sampled_from([2**53 + 1, 2**63 - 1, -(2**70)]),
    st.text("ab", max_size=2),
    st.booleans(),
    st.none(),
    st.floats(width=16),
    st.lists(st.integers(0, 3), max_size=2),
)
_infos = st.dictionaries(st.sampled_from(["x", "y", "late"]), _values, max_size=2)
_lengths = st.integers(1, 4)
_numbers = st.integers(0, 255)
_rewards = st.sampled_from([-1.0, 0.0, 2.0, math.nan])
_flags = st.sampled_from([(False, False), (True, False), (False, True)])
_slots = st.integers(0, 1)
_parts = st.none() | _lengths
_NONE: Mapping[str, Any] = {}
_CARD = {"made": ["by", {"a": "machine"}]}
_LABELS: dict[str, st.SearchStrategy[Any]] = {"good": st.booleans(), "note": st.text("xyz", max_size=2)}
_MARKS: dict[str, st.SearchStrategy[Any]] = {
    "gain": st.sampled_from([0.5, -1.0]),
    "word": st.text("xyz", max_size=2),
}
_RENAMED = {"good": "fine", "note": "text", "gain": "profit", "word": "term"}
_SORTS: dict[str, Any] = {
    "length": lambda each: each.length,
    "episode_return": lambda each: sum(each.rewards),
    "seed": lambda each: each.number,
}
_labels = st.sampled_from([*_LABELS]).flatmap(
    lambda name: st.tuples(st.just(name), st.lists(st.none() | _LABELS[name], min_size=1, max_size=3))
)
_marks = st.sampled_from([*_MARKS]).flatmap(
    lambda name: st.tuples(st.just(name), st.lists(st.none() | _MARKS[name], min_size=1, max_size=4))
)


class StoreMachine(RuleBasedStateMachine):
    """A store and a second one, beside plain values; two writers may be open in the store.

    Rules may be called by hand too, as in `StoreContract.test_each_operation_keeps_the_model`.

    Args:
        backend: the place for the stores, which must be empty.

    Attributes:
        store: the store at its newest version.
        shown: what this version shows.
        waiting: what each writer has finished and not sealed.
        versions: older versions that may be opened, by number, with what they show.
        tags: tagged versions, and what they show.
        alone: names of splits, and episodes that were the only one of their part.
        checked: the version that was compared last.
    """

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.backend = backend
        self.store = backend.create(**SPACES, card=_CARD)
        self.other = backend.create("other", **SPACES)
        self.shown, self.of_other = Shown(), Shown()
        self.writers: dict[int, EpisodeWriter] = {}
        self.waiting: dict[int, list[ModelEpisode]] = {0: [], 1: []}
        self.open: dict[int, tuple[Any, ModelEpisode]] = {}
        self.tags: dict[str, tuple[int, Shown]] = {}
        self.versions: dict[int, Shown] = {}
        self.readers: list[tuple[EpisodeStore, Shown]] = []
        self.alone: set[tuple[str, str]] = set()
        self.copies = 0
        self.checked = -1
        for number in range(4):
            self.record(0, number, 1 + number, info={"x": number})
            if number % 2:
                self.seal(0)
        self.record_elsewhere([7, 8], {"x": "text"})

    # Recording

    def writer(self, slot: int) -> EpisodeWriter:
        """Return an open writer; opening one recovers what killed writers left."""
        if slot not in self.writers:
            store = self.backend.open()
            self.writers[slot] = store.writer(run=f"run{slot}", seal_seconds=1e6, flush_seconds=1e6)
        return self.writers[slot]

    @rule(
        slot=_slots,
        number=_numbers,
        length=_lengths,
        reward=_rewards,
        info=_infos,
        ended=_flags,
        arrays=st.booleans(),
    )
    def record(
        self,
        slot: int,
        number: int,
        length: int,
        reward: float = 0.0,
        info: Mapping[str, Any] = _NONE,
        ended: tuple[bool, bool] = (True, False),
        arrays: bool = False,
    ) -> None:
        """Write an episode, step by step or from arrays."""
        model = ModelEpisode(number, length, reward, dict(info), ended)
        if arrays:
            row: Any = self.writer(slot).write_episode(**model.arrays())
            model.episode_id = row.episode_id
            model.finish("cut")
        else:
            row = model.write(self.writer(slot))
        assert (row.episode_id, row.length, row.end_reason) == (model.episode_id, length, model.end_reason)
        self.waiting[slot].append(model)

    @rule(slot=_slots, number=_numbers, length=_lengths)
    def leave_open(self, slot: int, number: int, length: int) -> None:
        """Begin an episode that stays open, or go on with the one that is."""
        if slot in self.open:
            handle, model = self.open[slot]
            first, model.length = model.length, model.length + length
            model.append(handle, first)
        else:
            model = ModelEpisode(number, length)
            handle = model.begin(self.writer(slot))
            model.append(handle)
            self.open[slot] = handle, model

    @precondition(lambda self: self.writers)
    @rule(slot=_slots)
    def seal(self, slot: int) -> None:
        """Make what a writer has finished visible; its open episode goes on."""
        if slot in self.writers:
            self.writers[slot].seal()
            self.bring(slot)

    @precondition(lambda self: self.writers)
    @rule(slot=_slots)
    def close(self, slot: int) -> None:
        """Close a writer, which ends its open episode as cut."""
        if slot in self.writers:
            writer = self.writers.pop(slot)
            writer.close()
            writer.close()
            self.end_open(slot, "cut")
            self.bring(slot)

    @precondition(lambda self: self.writers)
    @rule(slot=_slots, by_writer=st.booleans())
    def kill_and_recover(self, slot: int, by_writer: bool) -> None:
        """Kill a writer; recovery, or the next writer, brings all of its episodes, each once."""
        if slot in self.writers:
            kill(self.writers.pop(slot))
            self.end_open(slot, "interrupted")
            if by_writer:
                self.writer(slot)
            else:
                recovered = self.backend.recover()
                assert sum(each.episodes for each in recovered) == len(self.waiting[slot])
            self.bring(slot)
            assert self.backend.recover() == []

    def end_open(self, slot: int, reason: str) -> None:
        """Count the open episode of a writer that is gone among the finished ones."""
        if slot in self.open:
            _, model = self.open.pop(slot)
            model.finish(reason)
            self.waiting[slot].append(model)

    def bring(self, slot: int) -> None:
        """Move what a writer had finished to what is shown, behind all that was there."""
        self.store.refresh()
        models = {each.episode_id: each for each in self.waiting[slot]}
        new = ids_of(self.store)[len(self.shown.episodes) :]
        assert sorted(new) == sorted(models), f"{new} are new, not {[*models]}"
        self.changed().episodes += [models[each] for each in new]
        self.waiting[slot] = []

    # Maintenance

    def changed(self) -> Shown:
        """Return a copy of what is shown, which is going to be changed."""
        self.shown = self.shown.copy()
        return self.shown

    def handle(self, old: bool) -> EpisodeStore:
        """Return the store; `old` at the oldest version that opens: operations work on the newest one."""
        return self.backend.open(version=min(self.versions)) if old and self.versions else self.store

    @rule(size=st.sampled_from([1, 3000, 1 << 28]), old=st.booleans())
    def compact(self, size: int, old: bool = False) -> None:
        """Compact in the order that there is; a second time finds nothing to do."""
        before = self.store.version
        handle = self.handle(old)
        report = handle.compact(segment_bytes=size)
        assert report.segments_after <= report.segments_before
        if size == 1 << 28:
            assert report.segments_after <= 1
        assert (report.episodes == 0) == (handle.version == before)
        assert handle.compact(segment_bytes=size).episodes == 0
        self.store.refresh()

    @rule(column=st.sampled_from([*_SORTS]), descending=st.booleans())
    def sort(self, column: str, descending: bool = False) -> None:
        """Compact in the order of a column; equal ones keep their order, NaN comes last."""
        self.store.compact(order_by=column, descending=descending)
        self.changed().episodes = _sorted(self.shown.episodes, column, descending, nan_last=True)
        assert self.store.compact(order_by=column, descending=descending).episodes == 0

    @rule(lengths=st.sampled_from([{1}, {2}, {3}, {4}, {1, 4}, {1, 2, 3, 4}]), old=st.booleans())
    def delete(self, lengths: set[int], old: bool = False) -> None:
        """Delete the episodes of some lengths; a second time there is nothing to do."""
        condition = polars.col("length").is_in(lengths)
        gone = [each for each in self.shown.episodes if each.length in lengths]
        dry = self.store.delete(condition, dry_run=True)
        report = self.handle(old).delete(" or ".join(f"length = {each}" for each in lengths))
        assert dry == report
        assert (report.episodes, report.steps) == (len(gone), sum(each.length for each in gone))
        self.changed().episodes = [each for each in self.shown.episodes if each.length not in lengths]
        version = self.store.refresh().version
        assert self.store.delete(condition).episodes == 0
        assert self.store.version == version

    @precondition(lambda self: self.shown.episodes)
    @rule(given=_labels, first=_numbers, old=st.booleans())
    def label(self, given: tuple[str, list[Any]], first: int, old: bool = False) -> None:
        """Annotate some episodes; the others keep what they have."""
        (name, values), shown = given, self.changed()
        chosen = [shown.episodes[(first + i) % len(shown.episodes)] for i in range(len(values))]
        named = {each.episode_id: value for each, value in zip(chosen, values, strict=True)}
        self.handle(old).annotate(label_frame(name, named))
        shown.labels.add(name)
        for each in shown.episodes:
            if each.episode_id in named:
                each.labels[name] = named[each.episode_id]
        self.store.refresh()

    @precondition(lambda self: self.shown.episodes)
    @rule(given=_marks, first=_numbers, old=st.booleans())
    def mark(self, given: tuple[str, list[Any]], first: int, old: bool = False) -> None:
        """Annotate some steps; the others keep what they have."""
        (name, values), shown = given, self.changed()
        rows = [(each, t) for each in shown.episodes for t in range(each.length + 1)]
        named: dict[tuple[str, int], Any] = {}
        for i, value in enumerate(values):
            # Rows of several episodes.
            each, t = rows[(first + 3 * i) % len(rows)]
            named[each.episode_id, t] = each.marks.setdefault(name, {})[t] = value
        self.handle(old).annotate(mark_frame(name, named), on=("episode_id", "t"))
        shown.marks.add(name)
        self.store.refresh()

    @rule(name=st.sampled_from([*_LABELS, *_MARKS]), renamed=st.booleans())
    def drop(self, name: str, renamed: bool = False) -> None:
        """Drop or rename an annotation; what cannot be done is an error, and changes nothing."""
        shown, new = self.changed(), _RENAMED[name] if renamed else None
        names = shown.labels | shown.marks
        try:
            if new is None:
                self.store.drop_annotation(name)
            else:
                self.store.rename({name: new})
        except errors.InvalidArgumentError:
            assert name not in names or new in names
        else:
            assert name in names and new not in names
            shown.rename(name, new)

    @precondition(lambda self: self.shown.episodes)
    @rule(seed=st.integers(0, 1))
    def split(self, seed: int) -> None:
        """Split; what has a part keeps it."""
        name = f"split{seed}"
        self.store.split({"a": 0.5, "b": 0.5}, seed=seed, name=name)
        shown = self.changed()
        shown.labels.add(name)
        parts = [episode.annotations[name] for episode in self.store]
        assert set(parts) <= {"a", "b"}
        for model, part in zip(shown.episodes, parts, strict=True):
            # A part that would be empty takes an episode, and may give it back; see `EpisodeStore.split`.
            lent = parts.count(part) == 1 or (name, model.episode_id) in self.alone
            assert lent or model.labels.get(name) in (None, part)
            model.labels[name] = part
            if parts.count(part) == 1:
                self.alone.add((name, model.episode_id))

    # Versions

    @rule(name=st.sampled_from(["one", "two"]))
    def tag(self, name: str) -> None:
        """Tag the newest version; a tag of another one must be removed first."""
        if name in self.tags and self.tags[name][0] != self.store.version:
            try:
                self.store.tag(name)
            except errors.StoreExistsError:
                self.store.untag(name)
            else:
                raise AssertionError(f"the tag {name} was moved")
        self.store.tag(name)
        self.tags[name] = self.store.version, self.shown

    @precondition(lambda self: self.tags)
    @rule(name=st.sampled_from(["one", "two"]))
    def untag(self, name: str) -> None:
        """Remove a tag."""
        if self.tags.pop(name, None):
            self.store.untag(name)

    @rule()
    def remember(self) -> None:
        """Keep the newest version's number, and a reader that stays at it."""
        self.versions[self.store.version] = self.shown
        self.readers = [*self.readers[-1:], (self.backend.open(), self.shown)]

    @precondition(lambda self: self.versions or self.tags)
    @rule(number=_numbers)
    def look_back(self, number: int) -> None:
        """Open an older version or a tag, and read on in older objects: they show what they showed."""
        kept: list[tuple[int | str, Shown]] = [*self.versions.items()]
        kept += [(name, shown) for name, (_, shown) in self.tags.items()]
        version, shown = kept[number % len(kept)]
        shown.check(self.backend.open(version=version))
        for reader, shown in self.readers:
            shown.check(reader)

    @rule(dry=st.booleans())
    def vacuum(self, dry: bool = False) -> None:
        """Delete all that neither the newest version, nor a tag, nor a writer needs."""
        assert self.store.verify().faults == ()
        before = set(self.backend.files())
        report = self.store.vacuum(timedelta(0), dry_run=dry)
        gone = before - set(self.backend.files())
        assert gone == (set() if dry else set(report.files))
        self.checked = -1
        if not dry:
            tagged = {version for version, _ in self.tags.values()}
            self.versions = {number: each for number, each in self.versions.items() if number in tagged}
            self.readers = []

    # Views

    @rule(column=st.sampled_from([*_SORTS]), descending=st.booleans(), length=_parts, step=st.integers(1, 2))
    def view(self, column: str, descending: bool, length: int | None, step: int) -> None:
        """Filter, sort and slice: the views have the episodes that lists have."""
        models = _sorted(self.shown.episodes, column, descending, nan_last=not descending)
        view = self.store.sort(column, descending=descending)
        if length is not None:
            view = view.filter(polars.col("length") <= length)
            models = [each for each in models if each.length <= length]
        view, models = view[::-step], models[::-step]
        assert [each.id for each in view] == [each.episode_id for each in models] == ids_of(view)
        rows = view.steps.collect()
        assert rows.height == sum(each.length + 1 for each in models)
        assert view.sql("select count(*) from transitions").fetchall() == [(sum(x.length for x in models),)]
        if models:
            models[-1].check(view[-1])
            models[0].check(self.store[models[0].episode_id])

    # A second store

    @rule(numbers=st.lists(_numbers, min_size=1, max_size=2), info=_infos, labelled=st.booleans())
    def record_elsewhere(self, numbers: list[int], info: Mapping[str, Any], labelled: bool = False) -> None:
        """Record a segment of the second store, and annotate what it has."""
        new = [ModelEpisode(number, 1 + number % 4, 1.0, dict(info), (True, False)) for number in numbers]
        with self.other.writer(run="other") as writer:
            for model in new:
                model.write(writer)
        self.other.refresh()
        self.of_other.episodes += new
        if labelled:
            self.of_other.labels.add("good")
            self.of_other.marks.add("gain")
            for model in self.of_other.episodes:
                model.labels["good"], model.marks["gain"] = model.number % 2 == 0, {0: 0.5}
            ids = self.of_other.ids
            goods = {each.episode_id: each.labels["good"] for each in self.of_other.episodes}
            self.other.annotate(label_frame("good", goods))
            self.other.annotate(mark_frame("gain", {(each, 0): 0.5 for each in ids}), ("episode_id", "t"))

    @precondition(lambda self: self.of_other.episodes)
    @rule(length=_parts, link=st.booleans())
    def merge(self, length: int | None = None, link: bool = False) -> None:
        """Bring in the second store, or a view of it; what is there already stays as it is."""
        source = self.other if length is None else self.other.filter(f"length <= {length}")
        here = set(self.shown.ids)
        wanted = [each for each in self.of_other.episodes if length is None or each.length <= length]
        new = [each for each in wanted if each.episode_id not in here]
        assert merge([source], self.store, link=link).episodes == len(new)
        shown = self.changed()
        shown.episodes += Shown(new).copy().episodes
        shown.labels |= self.of_other.labels
        shown.marks |= self.of_other.marks
        version = self.store.refresh().version
        assert merge([source], self.store, link=link).episodes == 0
        assert self.store.refresh().version == version
        self.of_other.check(self.other)

    @rule(length=_parts, link=st.booleans())
    def copy(self, length: int | None = None, link: bool = False) -> None:
        """Copy to a new store, which shows the same and has an id of its own."""
        self.copies += 1
        name = f"copy{self.copies}"
        condition = None if length is None else f"length <= {length}"
        options = self.backend.storage_options
        copied = self.store.copy(self.backend.at(name), condition, link=link, storage_options=options)
        shown = self.shown.copy()
        shown.episodes = [each for each in shown.episodes if length is None or each.length <= length]
        shown.check(copied)
        check_raw(self.backend, shown, name)
        assert copied.id != self.store.id and copied.card == _CARD and copied.verify().faults == ()

    # Invariants

    @invariant()
    def check(self) -> None:
        """The newest version, opened afresh, is what the model says, for every reader."""
        store = self.backend.open()
        assert store.version == self.store.version
        assert store.tags == {name: version for name, (version, _) in self.tags.items()}
        assert store.card == _CARD
        if self.checked != store.version:
            self.shown.check(store)
            check_raw(self.backend, self.shown)
            self.checked = store.version

    def teardown(self) -> None:
        """Close the writers; everything is there and sound, and the tags show what they showed."""
        for slot in [*self.writers]:
            self.close(slot)
        self.checked = -1
        self.check()
        assert self.backend.open().verify().faults == ()
        self.of_other.check(self.other)
        for name, (_, shown) in self.tags.items():
            shown.check(self.backend.open(version=name))


def _sorted(
    episodes: list[ModelEpisode], column: str, descending: bool, *, nan_last: bool
) -> list[ModelEpisode]:
    """Return episodes in the order of a column; equal ones keep their order."""
    key = _SORTS[column]
    nans = [each for each in episodes if math.isnan(key(each))]
    numbers = sorted((each for each in episodes if not math.isnan(key(each))), key=key, reverse=descending)
    return [*numbers, *nans] if nan_last else [*nans, *numbers]
