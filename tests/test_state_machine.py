"""A state machine: writers, sealing and snapshots against a model that is nothing but Python lists.

The model keeps every episode as the lists of what was handed over. The store is driven at random: episodes
begin, grow and end while others are open, whole ones are written, writers are sealed, closed and opened
again, and snapshots are taken at the newest and at older versions. After each step the invariants below must
hold; what a snapshot must show never changes once it was taken.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from gymnasium import spaces
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

import episodelake as el
from effort import examples
from real_environments import equal_values
from strategies import same, stack

OBSERVATION = spaces.Dict(
    {
        "frame": spaces.Box(0, 255, (2, 3), np.uint8),
        "pair": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.Box(-np.inf, np.inf, (2,), np.float32)]),
    }
)
ACTION = spaces.Tuple([spaces.Discrete(4), spaces.Box(-1, 1, (1,), np.float64)])

numbers = st.integers(0, 2**32 - 1)
rewards = st.integers(-64, 64).map(lambda eighths: eighths / 8)
dynamic_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=3),
    st.lists(st.integers(-9, 9), max_size=3),
    st.builds(lambda n: np.arange(n, dtype=np.float32), st.integers(0, 3)),
    st.dictionaries(st.sampled_from(["x", "y.z"]), st.integers(0, 9), max_size=2),
)
# One kind of value per key more often than not, as in real environments; "any" changes its kind at will.
dynamic = st.fixed_dictionaries(
    {},
    optional={
        "count": st.integers(0, 9),
        "ok": st.booleans(),
        "a.b": st.text(max_size=2),
        "speed": st.floats(),
        "any": dynamic_values,
    },
)
flags = st.sampled_from([(False, False)] * 6 + [(True, False), (False, True), (True, True)])


@dataclass
class ModelEpisode:
    """One episode as the lists of what was handed to the writer."""

    episode_id: str
    observations: list[Any]
    infos: list[dict[str, Any]]
    metadata: dict[str, Any]
    seed: int | None
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminations: list[bool] = field(default_factory=list)
    truncations: list[bool] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        """Tell whether the environment said that it was over."""
        return bool(self.rewards) and (self.terminations[-1] or self.truncations[-1])

    @property
    def end_reason(self) -> str:
        """Return the end reason by the meaning of the flags."""
        if self.terminations[-1]:
            return "terminated"
        return "truncated" if self.truncations[-1] else "cut"


@dataclass
class Snapshot:
    """An open store object, the ids that it showed when it was taken, and its lengths in a lazy frame."""

    store: el.EpisodeStore
    ids: list[str]
    frame: pl.LazyFrame


def sample(space: spaces.Space, number: int) -> Any:
    """Return the value of a space that follows from a number."""
    space.seed(number)
    return space.sample()


def ids_of(store: el.EpisodeView) -> list[str]:
    """Return the ids that a view shows, by position."""
    return store.episodes.select("episode_id").collect()["episode_id"].to_list()


class StoreMachine(RuleBasedStateMachine):
    """The store on one side, plain lists on the other."""

    live: Bundle[Any] = Bundle("live")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="episodelake-machine-"))
        store = el.create(self.folder / "store", observation_space=OBSERVATION, action_space=ACTION)
        self.path = store.path
        self.finished: dict[str, ModelEpisode] = {}
        self.sealed: set[str] = set()
        self.open: dict[str, tuple[el.OpenEpisode, ModelEpisode]] = {}
        self.by_version: dict[int, list[str]] = {store.version: []}
        self.newest = Snapshot(store, [], store.episodes)
        self.snapshots = [Snapshot(el.open(self.path), [], el.open(self.path).steps)]
        self.writer = store.writer(run="machine", metadata={"turn": 0})

    # Rules of writing

    @rule(target=live, number=numbers, info=dynamic, metadata=dynamic, seed=st.none() | numbers)
    def begin(self, number: int, info: dict, metadata: dict, seed: int | None) -> str:
        """Begin an episode; spoil the arrays handed over, which must have been copied."""
        observation = sample(OBSERVATION, number)
        kept, kept_info = copy.deepcopy((observation, info))
        handle = self.writer.begin(observation, info, seed=seed, metadata=metadata)
        observation["frame"][...] = 77
        observation["pair"][1][...] = np.nan
        self.open[handle.id] = handle, ModelEpisode(handle.id, [kept], [kept_info], dict(metadata), seed)
        return handle.id

    @rule(name=live, number=numbers, reward=rewards, ended=flags, info=dynamic)
    def append(self, name: str, number: int, reward: float, ended: tuple[bool, bool], info: dict) -> None:
        """Append a step to an open episode; after its end that is an error, and changes nothing."""
        if name not in self.open:
            return
        handle, model = self.open[name]
        action, observation = sample(ACTION, number), sample(OBSERVATION, number)
        if model.has_ended:
            try:
                handle.append(action, reward, observation, *ended, info=info)
            except el.errors.RecorderStateError:
                return
            raise AssertionError("a step after the end was taken")
        model.actions.append(copy.deepcopy(action))
        model.observations.append(copy.deepcopy(observation))
        model.infos.append(copy.deepcopy(info))
        handle.append(action, reward, observation, *ended, info=info)
        action[1][...] = 9
        observation["frame"][...] = 0
        model.rewards.append(reward)
        model.terminations.append(ended[0])
        model.truncations.append(ended[1])

    @rule(name=consumes(live), metadata=dynamic)
    def end(self, name: str, metadata: dict) -> None:
        """End an open episode that has a step; its row must say what the lists say."""
        if name not in self.open or not self.open[name][1].rewards:
            return
        handle, model = self.open.pop(name)
        row = handle.end(metadata)
        model.metadata.update(metadata)
        assert row.episode_id == name
        assert (row.length, row.end_reason) == (len(model.rewards), model.end_reason)
        assert row.episode_return == sum(model.rewards)
        self.finished[name] = model

    @rule(seeds=st.lists(numbers, min_size=2, max_size=6), reward=rewards, ended=flags, data=st.data())
    def write_episode(self, seeds: list[int], reward: float, ended: tuple[bool, bool], data: Any) -> None:
        """Write a whole episode from stacked arrays."""
        observations = [sample(OBSERVATION, number) for number in seeds]
        actions = [sample(ACTION, number) for number in seeds[1:]]
        infos = [data.draw(dynamic) for _ in seeds]
        length = len(actions)
        row = self.writer.write_episode(
            observations=stack(OBSERVATION, observations),
            actions=stack(ACTION, actions),
            rewards=np.full(length, reward),
            terminations=ended[0],
            truncations=ended[1],
            infos=infos,
            metadata={"whole": True},
        )
        before = [False] * (length - 1)
        self.finished[row.episode_id] = ModelEpisode(
            row.episode_id,
            observations,
            infos,
            {"whole": True},
            None,
            actions,
            [reward] * length,
            [*before, ended[0]],
            [*before, ended[1]],
        )

    @rule()
    def seal(self) -> None:
        """Seal: what is finished becomes visible to the next refresh."""
        self.writer.seal()
        self.sealed |= set(self.finished)

    @rule(turn=st.integers(0, 9))
    def close_and_reopen(self, turn: int) -> None:
        """Close the writer, which ends what is open, and go on with a new one."""
        self.close_writer()
        self.writer = el.open(self.path).writer(run="machine", metadata={"turn": turn})

    def close_writer(self) -> None:
        """Close the writer; open episodes with a step end by their flags, those without are no episodes."""
        self.writer.close()
        self.writer.close()
        self.finished |= {name: model for name, (_, model) in self.open.items() if model.rewards}
        self.open.clear()
        self.sealed |= set(self.finished)

    # Rules of reading

    @rule()
    def refresh(self) -> None:
        """Move the reading store to the newest version and note what it shows from now on."""
        before = self.newest.ids
        store = self.newest.store.refresh()
        ids = ids_of(store)
        assert ids[: len(before)] == before, "positions follow the order of commits"
        assert self.sealed <= set(ids)
        self.newest = Snapshot(store, ids, store.steps)
        assert self.by_version.setdefault(store.version, ids) == ids

    @rule()
    def take_snapshot(self) -> None:
        """Open the newest version afresh and keep it."""
        store = el.open(self.path)
        self.snapshots = [*self.snapshots[-2:], Snapshot(store, ids_of(store), store.steps)]
        assert self.sealed <= set(self.snapshots[-1].ids)

    @precondition(lambda self: len(self.by_version) > 1)
    @rule(data=st.data())
    def open_old_version(self, data: Any) -> None:
        """Open a version that was seen before; it must show the ids that it showed then."""
        version = data.draw(st.sampled_from(sorted(self.by_version)))
        store = el.open(self.path, version=version)
        assert ids_of(store) == self.by_version[version]
        self.snapshots = [*self.snapshots[-2:], Snapshot(store, self.by_version[version], store.steps)]

    @rule(data=st.data())
    def read_one_episode(self, data: Any) -> None:
        """Rebuild one episode of some snapshot whole, by position and by id."""
        snapshot = data.draw(st.sampled_from([self.newest, *self.snapshots]))
        if snapshot.ids:
            position = data.draw(st.integers(0, len(snapshot.ids) - 1))
            episode = snapshot.store[position]
            check_episode_equals_its_lists(episode, self.finished[snapshot.ids[position]])
            assert snapshot.store[episode.id].position == position

    # Invariants

    @invariant()
    def every_finished_episode_is_shown_once(self) -> None:
        """A snapshot holds no id twice, and none of an episode that was never finished."""
        for snapshot in (self.newest, *self.snapshots):
            assert len(set(snapshot.ids)) == len(snapshot.ids)
            assert set(snapshot.ids) <= set(self.finished)

    @invariant()
    def snapshots_do_not_change(self) -> None:
        """Every snapshot shows, by position, the ids that it showed when it was taken."""
        for snapshot in (self.newest, *self.snapshots):
            assert len(snapshot.store) == len(snapshot.ids)
            assert ids_of(snapshot.store) == snapshot.ids

    @invariant()
    def returns_are_sums_of_rewards(self) -> None:
        """The steps of the last snapshot sum up to its episodes table, and both to the lists."""
        snapshot = self.snapshots[-1]
        steps = snapshot.frame.group_by("episode_id").agg(pl.col("reward").sum(), pl.len()).collect()
        found = {name: (total, rows) for name, total, rows in steps.rows()}
        models = {name: self.finished[name] for name in snapshot.ids}
        assert found == {name: (sum(one.rewards), len(one.observations)) for name, one in models.items()}
        episodes = snapshot.store.episodes.select("episode_id", "episode_return", "length", "end_reason")
        assert episodes.collect().rows() == [
            (name, sum(one.rewards), len(one.rewards), one.end_reason) for name, one in models.items()
        ]

    def teardown(self) -> None:
        """Close the writer; then every finished episode is there exactly once and equals its lists."""
        try:
            self.close_writer()
            store = el.open(self.path)
            ids = ids_of(store)
            assert sorted(ids) == sorted(self.finished)
            for name, episode in zip(ids, store, strict=True):
                check_episode_equals_its_lists(episode, self.finished[name])
            flags = "count(*) filter (terminated), count(*) filter (truncated)"
            models = self.finished.values()
            assert store.sql(f"select count(*), sum(reward), {flags} from transitions").fetchall() == [
                (
                    sum(len(one.rewards) for one in models),
                    sum(sum(one.rewards) for one in models) if models else None,
                    sum(sum(one.terminations) for one in models),
                    sum(sum(one.truncations) for one in models),
                )
            ]
            self.snapshots_do_not_change()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def check_episode_equals_its_lists(episode: el.Episode, model: ModelEpisode) -> None:
    """Check every array, flag, info and metadata value of an episode against the model."""
    assert episode.id == model.episode_id
    assert same(episode.observations, stack(OBSERVATION, model.observations))
    assert same(episode.actions, stack(ACTION, model.actions))
    assert same(episode.rewards, np.array(model.rewards, np.float64))
    assert same(episode.terminations, np.array(model.terminations, bool))
    assert same(episode.truncations, np.array(model.truncations, bool))
    assert equal_values(episode.infos, model.infos), f"{episode.infos} is not {model.infos}"
    assert equal_values(episode.metadata, model.metadata), f"{episode.metadata} is not {model.metadata}"
    assert episode.seed == model.seed
    assert episode.end_reason == model.end_reason
    assert episode.episode_return == sum(model.rewards)


TestStore = StoreMachine.TestCase
TestStore.__doc__ = "The store and the model agree after any sequence of operations."
if settings.get_current_profile_name() == "long":
    TestStore.settings = settings(max_examples=100, stateful_step_count=50)
else:
    TestStore.settings = settings(max_examples=examples(20), stateful_step_count=25)
