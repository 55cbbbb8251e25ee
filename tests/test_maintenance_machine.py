"""A state machine: recording and every kind of maintenance against a model of plain Python values.

The model keeps what was handed over, episode by episode, in the order in which a store must show them, and a
copy of that for every version and tag that may be opened again. After each step the newest version is
compared with it by the Episode API, Polars, DuckDB and a bare Delta reader.
"""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from gymnasium import spaces
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import episodelake as el
from effort import examples
from maintenance_stores import assert_faces_agree, equal, ids_of

SPACES: dict[str, spaces.Space] = {
    "observation_space": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "action_space": spaces.Discrete(10),
}
KEYS = ("x", "y", "late")
# Kinds change at will, so that typed columns, the JSON column and columns that appear later are all met.
values = st.one_of(
    st.integers(-5, 5),
    st.text("ab", max_size=2),
    st.booleans(),
    st.none(),
    st.floats(width=16),
    st.lists(st.integers(0, 3), max_size=2),
)
infos = st.dictionaries(st.sampled_from(KEYS), values, max_size=2)
lengths = st.integers(1, 4)
rewards = st.sampled_from([-1.0, 0.0, 0.5, 2.0, float("nan")])
LABELS = ("good", "note")
MARKS = ("gain", "word")


@dataclass
class ModelEpisode:
    """What was handed over for one episode, and what was said of it afterwards."""

    episode_id: str
    rewards: list[float]
    infos: list[dict[str, Any]]
    policy: list[float]
    extra: list[float]
    metadata: dict[str, Any]
    start: float
    annotations: dict[str, Any] = field(default_factory=dict)
    marks: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Return the number of transitions."""
        return len(self.rewards)


@dataclass
class Shown:
    """What a version of a store shows: its episodes by position, and the names of its annotations."""

    episodes: list[ModelEpisode] = field(default_factory=list)
    labels: set[str] = field(default_factory=set)
    marks: set[str] = field(default_factory=set)


def draw_episode(draw: Any, start: int) -> dict[str, Any]:
    """Draw what is handed over for an episode."""
    length = draw(lengths)
    return {
        "rewards": [draw(rewards) for _ in range(length)],
        "infos": [draw(infos) for _ in range(length + 1)],
        "metadata": draw(infos),
        "start": float(start),
    }


def write(writer: el.EpisodeWriter, given: dict[str, Any]) -> ModelEpisode:
    """Write an episode; its model."""
    start, count = given["start"], len(given["rewards"])
    episode = writer.begin(
        np.array([start, 0], np.float32),
        given["infos"][0],
        metadata=given["metadata"],
        extra={"height": start},
    )
    for t, reward in enumerate(given["rewards"]):
        episode.append(
            t % 10,
            reward,
            np.array([start, t + 1], np.float32),
            terminated=t == count - 1,
            info=given["infos"][t + 1],
            policy={"p": t / 2},
            extra={"height": start + t + 1},
        )
    name = episode.end().episode_id
    policy, extra = [t / 2 for t in range(count)], [start + t for t in range(count + 1)]
    model = ModelEpisode(name, given["rewards"], given["infos"], policy, extra, given["metadata"], start)
    return copy.deepcopy(model)


def assert_shown(store: el.EpisodeStore, shown: Shown, newest: bool) -> None:
    """Check a store against the model: order, contents, annotations, and all ways to read it."""
    assert ids_of(store) == [one.episode_id for one in shown.episodes]
    listed = {(row[0], row[1]) for row in store.annotations.select("name", "table").rows()}
    assert listed == {(one, "episodes") for one in shown.labels} | {(one, "steps") for one in shown.marks}
    for found, model in zip(store, shown.episodes, strict=True):
        assert_episode(found, model, shown)
    steps = store.steps.collect()
    for name in shown.marks:
        expected = [mark for one in shown.episodes for mark in one.marks.get(name, [None] * (one.length + 1))]
        assert equal(steps[name].to_list(), expected), f"{name}: {steps[name].to_list()}, not {expected}"
    assert_faces_agree(store, raw=newest)


def assert_episode(found: el.Episode, model: ModelEpisode, shown: Shown) -> None:
    """Check everything that an episode says."""
    length = model.length
    expected = np.array([[model.start, t] for t in range(length + 1)], np.float32)
    assert equal(found.observations, expected)
    assert found.actions.tolist() == [t % 10 for t in range(length)]
    assert equal(found.rewards.tolist(), model.rewards)
    assert found.terminations.tolist() == [False] * (length - 1) + [True]
    assert equal(found.infos, model.infos), f"{found.infos} is not {model.infos}"
    assert equal(found.metadata, model.metadata), f"{found.metadata} is not {model.metadata}"
    assert list(found.policy["p"]) == model.policy
    assert list(found.extra["height"]) == model.extra
    assert equal(found.episode_return, float(sum(model.rewards)))
    labels = {name: model.annotations.get(name) for name in shown.labels}
    assert equal(dict(found.annotations), labels), f"{found.annotations} is not {labels}"


class MaintenanceMachine(RuleBasedStateMachine):
    """A store and a second one on one side, plain values on the other."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="episodelake-maintenance-"))
        self.store = el.create(self.folder / "store", **SPACES)
        self.other = el.create(self.folder / "other", **SPACES)
        self.shown, self.of_other = Shown(), Shown()
        self.waiting: list[ModelEpisode] = []
        self.writer: el.EpisodeWriter | None = None
        self.tags: dict[str, tuple[int, Shown]] = {}
        self.versions: dict[int, Shown] = {}
        self.snapshots: list[tuple[el.EpisodeStore, Shown]] = []
        self.count = 0

    # Rules of recording

    @initialize(data=st.data())
    def begin(self, data: Any) -> None:
        """Start with two segments."""
        for _ in range(2):
            self.record(data)
            self.seal()

    @rule(data=st.data())
    def record(self, data: Any) -> None:
        """Write an episode, with a writer that stays open."""
        if self.writer is None:
            self.writer = self.store.writer(run="machine", seal_seconds=1e6)
        self.count += 1
        self.waiting.append(write(self.writer, draw_episode(data.draw, self.count)))

    @rule()
    def seal(self) -> None:
        """Make what waits visible."""
        if self.writer is not None:
            self.writer.seal()
            self.keep_waiting()

    @rule()
    def close(self) -> None:
        """Close the writer; the next episode is another run's."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None
            self.keep_waiting()

    def keep_waiting(self) -> None:
        """Move what waited to what is shown."""
        self.store.refresh()
        self.shown = copy.deepcopy(self.shown)
        self.shown.episodes += self.waiting
        self.waiting = []

    # Rules of maintenance

    def changed(self) -> Shown:
        """Return a copy of what is shown, which is going to be changed."""
        self.shown = copy.deepcopy(self.shown)
        return self.shown

    @rule(size=st.sampled_from([1, 3000, 1 << 28]))
    def compact(self, size: int) -> None:
        """Compact in the order that there is."""
        before = self.store.version
        report = self.store.compact(segment_bytes=size)
        assert report.segments_after <= report.segments_before
        assert (report.episodes == 0) == (self.store.version == before)
        assert self.store.compact(segment_bytes=size).episodes == 0

    @rule(column=st.sampled_from(["length", "episode_return", "end_reason"]), descending=st.booleans())
    def sort(self, column: str, descending: bool) -> None:
        """Compact in the order of a column; equal ones keep their order, NaN comes last."""
        self.store.compact(order_by=column, descending=descending)

        def key(one: ModelEpisode) -> float:
            return {"length": one.length, "episode_return": sum(one.rewards), "end_reason": 0}[column]

        shown = self.changed()
        numbers = [one for one in shown.episodes if key(one) == key(one)]
        nans = [one for one in shown.episodes if key(one) != key(one)]
        shown.episodes = sorted(numbers, key=key, reverse=descending) + nans

    @rule(limit=lengths)
    def delete(self, limit: int) -> None:
        """Delete by length; a second time there is nothing to do."""
        gone = [one for one in self.shown.episodes if one.length == limit]
        dry = self.store.delete(f"length = {limit}", dry_run=True)
        report = self.store.delete(f"length = {limit}")
        assert (report.episodes, report.steps) == (len(gone), sum(one.length for one in gone))
        assert dry == report
        shown = self.changed()
        shown.episodes = [one for one in shown.episodes if one.length != limit]
        assert self.store.delete(pl.col("length") == limit) == el.types.DeleteReport(0, 0, 0)

    @rule()
    def delete_everything(self) -> None:
        """Leave nothing."""
        assert self.store.delete("true").episodes == len(self.shown.episodes)
        self.changed().episodes = []

    @precondition(lambda self: self.shown.episodes)
    @rule(name=st.sampled_from(LABELS), data=st.data())
    def label(self, name: str, data: Any) -> None:
        """Annotate some episodes."""
        shown = self.changed()
        chosen = data.draw(st.lists(st.sampled_from(range(len(shown.episodes))), unique=True, min_size=1))
        given = data.draw(
            st.lists(st.none() | label_values(name), min_size=len(chosen), max_size=len(chosen))
        )
        ids = [shown.episodes[one].episode_id for one in chosen]
        types = {name: pl.Boolean if name == "good" else pl.String}
        self.store.annotate(pl.DataFrame({"episode_id": ids, name: given}, schema_overrides=types))
        shown.labels.add(name)
        for position, value in zip(chosen, given, strict=True):
            shown.episodes[position].annotations[name] = value

    @precondition(lambda self: self.shown.episodes)
    @rule(name=st.sampled_from(MARKS), data=st.data())
    def mark(self, name: str, data: Any) -> None:
        """Annotate some steps."""
        shown = self.changed()
        rows = [(one, t) for one in shown.episodes for t in range(one.length + 1)]
        chosen = data.draw(
            st.lists(st.sampled_from(range(len(rows))), unique=True, min_size=1, max_size=6).map(
                lambda picks: [rows[pick] for pick in picks]
            )
        )
        given = data.draw(st.lists(mark_values(name), min_size=len(chosen), max_size=len(chosen)))
        keys = {"episode_id": [one.episode_id for one, _ in chosen], "t": [t for _, t in chosen]}
        types = {name: pl.Float64 if name == "gain" else pl.String}
        frame = pl.DataFrame({**keys, name: given}, schema_overrides=types)
        self.store.annotate(frame, on=("episode_id", "t"))
        shown.marks.add(name)
        for (one, t), value in zip(chosen, given, strict=True):
            one.marks.setdefault(name, [None] * (one.length + 1))[t] = value

    @rule(name=st.sampled_from(LABELS + MARKS))
    def drop(self, name: str) -> None:
        """Drop an annotation, or learn that there is none."""
        shown = self.changed()
        if name not in shown.labels | shown.marks:
            with pytest.raises(el.errors.InvalidArgumentError):
                self.store.drop_annotation(name)
            return
        self.store.drop_annotation(name)
        shown.labels.discard(name)
        shown.marks.discard(name)
        for one in shown.episodes:
            one.annotations.pop(name, None)
            one.marks.pop(name, None)

    @precondition(lambda self: self.shown.episodes)
    @rule(seed=st.integers(0, 2))
    def split(self, seed: int) -> None:
        """Split; what has a part keeps it as long as the seed is the same."""
        self.store.split({"a": 0.5, "b": 0.5}, seed=seed, name=f"split{seed}")
        shown = self.changed()
        shown.labels.add(f"split{seed}")
        for one, found in zip(shown.episodes, self.store, strict=True):
            part = found.annotations[f"split{seed}"]
            assert part in ("a", "b")
            assert one.annotations.get(f"split{seed}") in (None, part)
            one.annotations[f"split{seed}"] = part

    @rule(name=st.sampled_from(["one", "two"]))
    def tag(self, name: str) -> None:
        """Tag the version shown, taking the tag from where it was."""
        if name in self.tags:
            self.store.untag(name)
        self.store.tag(name)
        self.tags[name] = self.store.version, self.shown

    @rule(name=st.sampled_from(["one", "two"]))
    def untag(self, name: str) -> None:
        """Take a tag away."""
        if self.tags.pop(name, None):
            self.store.untag(name)

    @rule(dry=st.booleans())
    def vacuum(self, dry: bool) -> None:
        """Keep nothing but the newest version and the tagged ones."""
        files = {one for one in self.store.path.rglob("*") if one.is_file()}
        report = self.store.vacuum(timedelta(0), dry_run=dry)
        gone = {str(one.relative_to(self.store.path)) for one in files if not one.exists()}
        if dry:
            assert gone == set()
        else:
            assert set(report.files) == gone
            tagged = {version for version, _ in self.tags.values()}
            self.versions = {number: one for number, one in self.versions.items() if number in tagged}
            self.snapshots = []

    # Rules with a second store

    @rule(data=st.data())
    def record_elsewhere(self, data: Any) -> None:
        """Record a segment of the second store."""
        with self.other.writer(run="other") as writer:
            for _ in range(2):
                self.count += 1
                self.of_other.episodes.append(write(writer, draw_episode(data.draw, self.count)))
        self.other.refresh()

    @rule(link=st.booleans(), part=st.none() | lengths)
    def merge(self, link: bool, part: int | None) -> None:
        """Bring in the second store, or a view of it; what is there already stays as it is."""
        source = self.other if part is None else self.other.filter(f"length <= {part}")
        here = {one.episode_id for one in self.shown.episodes}
        new = [
            one
            for one in self.of_other.episodes
            if one.episode_id not in here and (part is None or one.length <= part)
        ]
        assert el.merge([source], self.store, link=link).episodes == len(new)
        self.store.refresh()
        self.changed().episodes += copy.deepcopy(new)

    @rule(link=st.booleans(), part=st.none() | lengths)
    def copy_out(self, link: bool, part: int | None) -> None:
        """Copy to a new store, which shows the same, and go on with the copy as the second store."""
        if len(list(self.folder.iterdir())) > 6:
            return
        condition = None if part is None else f"length <= {part}"
        path = self.folder / f"copy-{len(os.listdir(self.folder))}"
        copied = self.store.copy(path, condition, link=link)
        shown = copy.deepcopy(self.shown)
        shown.episodes = [one for one in shown.episodes if part is None or one.length <= part]
        assert_shown(copied, shown, newest=True)

    # Rules of looking back

    @rule()
    def remember(self) -> None:
        """Keep the version's number, and an open object at it."""
        self.versions[self.store.version] = self.shown
        self.snapshots = [*self.snapshots[-1:], (el.open(self.store.path), self.shown)]

    @rule(data=st.data())
    def look_back(self, data: Any) -> None:
        """Open an older version or a tag, or read on in an older object."""
        kept: list[tuple[int | str, Shown]] = [*self.versions.items()]
        kept += [(name, one) for name, (_, one) in self.tags.items()]
        if kept:
            version, shown = data.draw(st.sampled_from(kept))
            assert_shown(el.open(self.store.path, version=version), shown, newest=False)
        for store, shown in self.snapshots:
            assert_shown(store, shown, newest=False)

    @rule()
    def crash(self) -> None:
        """As if the writer died now: recovery on a copy brings back nothing deleted, and nothing twice."""
        path = self.folder / "crashed"
        shutil.copytree(self.store.path, path)
        try:
            el.recover(path)
            recovered = el.open(path)
            ids, expected = ids_of(recovered), [one.episode_id for one in self.shown.episodes]
            assert ids[: len(expected)] == expected
            assert len(set(ids)) == len(ids)
            assert set(ids[len(expected) :]) <= {one.episode_id for one in self.waiting}
            assert_faces_agree(recovered)
        finally:
            shutil.rmtree(path)

    @invariant()
    def everything_is_as_the_model_says(self) -> None:
        """The newest version, opened afresh, and the object that made it, agree with the model."""
        store = el.open(self.store.path)
        assert store.version == self.store.version
        assert store.tags == {name: version for name, (version, _) in self.tags.items()}
        assert_shown(store, self.shown, newest=True)

    def teardown(self) -> None:
        """Close what is open; the tags show what they showed."""
        try:
            if self.writer is not None:
                self.writer.close()
            for name, (_, shown) in self.tags.items():
                assert_shown(el.open(self.store.path, version=name), shown, newest=False)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def label_values(name: str) -> st.SearchStrategy[Any]:
    """Draw values of an annotation of episodes."""
    return st.booleans() if name == "good" else st.text("xyz", max_size=2)


def mark_values(name: str) -> st.SearchStrategy[Any]:
    """Draw values of an annotation of steps."""
    return st.none() | (st.sampled_from([0.5, -1.0, 2.0]) if name == "gain" else st.text("xyz", max_size=2))


TestMaintenance = MaintenanceMachine.TestCase
TestMaintenance.__doc__ = "The store and the model agree after any sequence of maintenance."
TestMaintenance.settings = settings(max_examples=examples(3), stateful_step_count=12)


@pytest.mark.slow
class TestMaintenanceAtLength(MaintenanceMachine.TestCase):
    """The same with many more and longer sequences."""

    settings = settings(max_examples=40, stateful_step_count=30, derandomize=False)
