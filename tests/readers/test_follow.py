"""Loaders that follow a store: what they show as it grows and is maintained, and how long they wait."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import polars as pl
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import episodelake as el
from checkout import REPOSITORY
from effort import examples, some, with_folders
from episodelake.readers.loading import follow_feed
from episodelake.testing.adapters import case
from episodelake.writers.episodes import whole_rows
from episodelake.writers.session import session
from test_loader_priorities import chi_squared_fits
from waiting import PATIENCE

SPACE = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
KEYS = ["observation", "next_observation", "reward", "t", "episode", "truncated"]
#: Looks for new episodes before each batch.
AT_ONCE: dict[str, Any] = {"refresh_seconds": 0, "wait_seconds": 0}


def new_store(path: Path) -> el.EpisodeStore:
    """An empty store."""
    return el.create(path, observation_space=SPACE, action_space=gym.spaces.Discrete(3))


def record(store: el.EpisodeStore, first: int, lengths: list[int]) -> None:
    """Add episodes in one commit; episode n has the observation (n, t) at step t, and the reward n."""
    with store.writer(run="more") as writer:
        for number, length in enumerate(lengths, first):
            steps = np.arange(length + 1)
            writer.write_episode(
                observations=np.stack([np.full(length + 1, number), steps], axis=1).astype(float),
                actions=np.zeros(length, int),
                rewards=np.full(length, float(number)),
                terminations=np.zeros(length, bool),
                truncations=np.zeros(length, bool),
                metadata={"number": number},
            )


def numbers(batch: dict[str, Any]) -> np.ndarray:
    """The episodes of a batch, whose contents are looked at."""
    found = batch["observation"][:, 0].astype(int)
    np.testing.assert_array_equal(batch["reward"], found)
    np.testing.assert_array_equal(batch["observation"][:, 1], batch["t"])
    np.testing.assert_array_equal(batch["next_observation"], batch["observation"] + [0, 1])
    return found


def shown(loader: el.Loader, batches: int = 20) -> set[int]:
    """The episodes that some batches show."""
    return {number for _ in range(batches) for number in numbers(loader.take(64)).tolist()}


def following(view: el.EpisodeView, **options: Any) -> el.types.FollowingLoader:
    """A loader that follows; options of `Follow` go there."""
    own = {field.name: options.pop(field.name) for field in fields(el.Follow) if field.name in options}
    loader = view.loader(
        **{"batch_size": 32, "columns": KEYS, "follow": el.Follow(**AT_ONCE | own), **options}
    )
    assert isinstance(loader, el.types.FollowingLoader)
    return loader


@pytest.fixture
def store(tmp_path: Path) -> el.EpisodeStore:
    """A store of three episodes."""
    made = new_store(tmp_path / "store")
    record(made, 0, [4, 6, 2])
    return made


def test_each_new_episode_appears_once(store: el.EpisodeStore) -> None:
    """With the batch after its commit; all units are drawn alike, so none is held twice."""
    loader = following(store)
    assert shown(loader) == {0, 1, 2} and loader.units == 12
    batches = iter(loader)
    for first, lengths in [(3, [5]), (4, [1, 9]), (6, [3, 3, 3])]:
        record(store, first, lengths)
        assert set(numbers(next(batches)).tolist()) <= set(range(first + len(lengths)))
        assert shown(loader) == set(range(first + len(lengths)))
        batches = iter(loader)
    assert loader.episodes == store.refresh().episodes.collect()["episode_id"].to_list()
    counts = np.zeros(loader.units, int)
    firsts = np.cumsum([0, 4, 6, 2, 5, 1, 9, 3, 3])
    for _ in range(200):
        batch = loader.take(256)
        counts += np.bincount(firsts[numbers(batch)] + batch["t"], minlength=loader.units)
        np.testing.assert_array_equal(batch["episode"], numbers(batch))
        np.testing.assert_array_equal(
            batch["truncated"], batch["t"] == np.array([4, 6, 2, 5, 1, 9, 3, 3, 3])[numbers(batch)] - 1
        )
    assert chi_squared_fits(counts, np.ones(36))


def test_it_looks_no_more_often_than_asked(store: el.EpisodeStore) -> None:
    """Between two looks it shows what it showed; `refresh` looks at once, and so does a copy."""
    loader = following(store, refresh_seconds=3600)
    assert shown(loader) == {0, 1, 2}
    record(store, 3, [5])
    assert shown(loader) == {0, 1, 2}
    # The clock of another machine may stand anywhere.
    assert shown(pickle.loads(pickle.dumps(loader))) == {0, 1, 2, 3}
    version = loader.version
    loader.refresh()
    assert shown(loader) == {0, 1, 2, 3} and loader.version > version
    late = following(store, refresh_seconds=0.2)
    late.take(1)
    record(store, 4, [5])
    time.sleep(0.2)
    assert shown(late) == {0, 1, 2, 3, 4}


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ({"newest_episodes": 2}, {5, 6}),
        ({"newest_steps": 9}, {5, 6}),
        ({"newest_steps": 10}, {4, 5, 6}),
        ({"newest_steps": 1}, {6}),
        ({"newest_steps": 10, "newest_episodes": 1}, {6}),
        ({"newest_episodes": 100}, {0, 1, 2, 3, 4, 5, 6}),
    ],
)
def test_the_window_moves_on(store: el.EpisodeStore, window: dict[str, int], expected: set[int]) -> None:
    """Only whole episodes, and always the newest one; whether it met them one by one or all at once."""
    loader = following(store, **window)
    shown(loader, 1)
    for first, length in [(3, 5), (4, 2), (5, 4), (6, 4)]:
        record(store, first, [length])
        assert first in shown(loader)
    assert shown(loader) == expected == shown(following(store, **window))


def test_the_window_reaches_back_by_commits(store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer whose clock is an hour ahead, or a day behind, fills no window that others should fill."""
    clock = time.time_ns
    loaders = [following(store, newest_episodes=2), following(store, newest_steps=8)]
    for number, hours in enumerate([1, 0, -24, 0], 3):
        moment = clock() + hours * 3600 * 10**9
        monkeypatch.setattr(time, "time_ns", lambda moment=moment: moment)
        for module in (session, whole_rows):
            monkeypatch.setattr(module, "timestamp_now", lambda moment=moment: moment // 1000)
        record(store, number, [4])
        for loader in [*loaders, following(store, newest_episodes=2)]:
            loader.refresh()
            if number > 3:
                assert shown(loader) == {number - 1, number}
    ended = store.refresh().episodes.collect()["ended_at"]
    assert not ended.is_sorted()


@pytest.mark.further
def test_its_memory_is_bounded_by_the_window(store: el.EpisodeStore) -> None:
    """However many episodes went through; and what stayed was not moved wrongly."""
    loader = following(store, newest_episodes=5, columns=KEYS)
    most = 0
    for number in range(3, 22):
        record(store, number, [number % 7 + 1])
        assert shown(loader, 2) <= set(range(number - 4, number + 1))
        most = max(most, loader.nbytes)
    row = 2 * 8 + 8 + 1
    assert most <= 1.5 * 5 * 8 * row + row


@pytest.mark.further
@given(st.data())
@settings(max_examples=examples(8), phases=[Phase.explicit, Phase.generate])
def test_whatever_happens_it_shows_the_newest_version(data: st.DataObject) -> None:
    """Recording, deletion, compaction, sorting and vacuum, in any order: as a loader made anew does."""
    path = _FOLDER[0] / str(len(list(_FOLDER[0].iterdir())))
    store = new_store(path)
    record(store, 0, [3, 2])
    number = 2
    options = data.draw(
        st.sampled_from([{}, {"newest_episodes": 3}, {"newest_steps": 8}, {"weights": el.Prioritized()}])
    )
    store.refresh()
    view = data.draw(st.sampled_from([store, store.filter('"metadata.number" % 3 <> 1')]))
    loader = following(view, **options)
    for action in data.draw(
        st.lists(st.sampled_from(["record", "delete", "compact", "sort", "vacuum"]), max_size=6)
    ):
        if action == "record":
            lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
            record(store, number, lengths)
            number += len(lengths)
        elif action == "delete":
            store.refresh().delete(f'"metadata.number" = {data.draw(st.integers(1, number))}')
        elif action == "vacuum":
            store.refresh().vacuum(timedelta(0))
        else:
            store.refresh().compact(order_by="length" if action == "sort" else None)
        fresh = following(store.refresh() if view is store else view, **options)
        one, other = shown(loader, 4), shown(fresh, 4)
        assert loader.episodes == fresh.episodes and loader.units == fresh.units
        assert one <= set(range(number)) and other <= set(range(number))
        if "weights" not in options:
            loader.load_state_dict(fresh.state_dict())
            np.testing.assert_array_equal(loader.take(50)["observation"], fresh.take(50)["observation"])


def test_files_that_vanish_while_they_are_read(
    store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction and a vacuum between its look and its reading: it reads the newest version instead."""
    loader = following(store)
    loader.take(1)
    record(store, 3, [5])
    record(store, 4, [5])
    plain, disturbed = follow_feed.read_arrays, 0

    def read(*arguments: Any) -> Any:
        nonlocal disturbed
        disturbed += 1
        if disturbed == 1:
            store.refresh().compact()
            store.vacuum(timedelta(0))
        return plain(*arguments)

    monkeypatch.setattr(follow_feed, "read_arrays", read)
    assert shown(loader) == {0, 1, 2, 3, 4} and disturbed == 2


def test_a_damaged_file_is_told(store: el.EpisodeStore) -> None:
    """And the loader shows what it showed."""
    loader = following(store)
    before = loader.take(1) and loader.episodes
    known = set(store.path.glob("steps/*.parquet"))
    record(store, 3, [5])
    (new,) = set(store.path.glob("steps/*.parquet")) - known
    new.write_bytes(new.read_bytes()[:-30])
    with pytest.raises(el.errors.CorruptStoreError, match=new.name):
        loader.take(1)
    assert loader.episodes == before


_FOLDER: list[Path] = []


@pytest.fixture(autouse=True)
def _keep(tmp_path: Path) -> None:
    _FOLDER[:] = [tmp_path / "drawn"]
    _FOLDER[0].mkdir()


def test_what_was_deleted_is_not_drawn(store: el.EpisodeStore) -> None:
    """Nor what the filter no longer lets through, since it is evaluated anew for all episodes."""
    loader = following(store)
    assert shown(loader) == {0, 1, 2}
    store.refresh().delete('"metadata.number" = 1')
    assert shown(loader) == {0, 2}
    best = following(store.refresh().filter(pl.col("episode_return") >= pl.col("episode_return").max()))
    assert shown(best) == {2}
    record(store, 10, [3])
    assert shown(best) == {10}


def test_filters_hold_for_new_episodes(store: el.EpisodeStore) -> None:
    """Those of Polars and of SQL, one after the other; a slice cannot be followed."""
    view = store.refresh().filter('"metadata.number" <> 1').filter(pl.col("length") > 2)
    loader = following(view)
    assert shown(loader) == {0}
    record(store, 3, [9, 2, 5])
    assert shown(loader) == {0, 3, 5}
    with pytest.raises(el.errors.InvalidArgumentError, match="A slice of a store has no newer version"):
        following(store[1:])
    with pytest.raises(el.errors.InvalidArgumentError, match="A slice of a store"):
        following(store[1:].filter("length > 1"))


def test_weights_follow_too(store: el.EpisodeStore) -> None:
    """By episode, and by an expression over the episodes that are there."""
    by_episode = following(store, weights="episodes")
    record(store, 3, [40])
    counts = sum(np.bincount(numbers(by_episode.take(256)), minlength=4) for _ in range(40))
    assert chi_squared_fits(np.asarray(counts), np.ones(4))
    weighed = following(store, weights=pl.col("metadata.number").cast(pl.Float64))
    counts = sum(np.bincount(numbers(weighed.take(256)), minlength=4) for _ in range(40))
    assert chi_squared_fits(np.asarray(counts), np.arange(4.0))
    with pytest.raises(el.errors.QueryError, match="lengthh"):
        following(store, weights=pl.col("lengthh")).take(1)


@pytest.mark.parametrize("options", [{"window": 3}, {"n_step": 2, "gamma": 0.5}, {"units": el.Episodes()}])
def test_other_units(store: el.EpisodeStore, options: dict[str, Any]) -> None:
    """Each is one that a loader of the newest version has."""
    loader = following(store, columns=["observation", "episode", "reward"], **options)
    loader.take(1)
    record(store, 3, [7, 1, 3])
    store.refresh()
    plain = store.loader(1, columns=["observation", "episode", "reward"], **options)
    known = {batch["reward"].tobytes() + batch["observation"].tobytes() for batch in plain}
    found = set()
    for _ in range(200):
        batch = loader.take(1)
        found.add(batch["reward"].tobytes() + batch["observation"].tobytes())
    assert found == known


def test_it_waits_for_the_first_episode(tmp_path: Path) -> None:
    """As long as asked, and then says what is missing; with a unit it goes on."""
    store = new_store(tmp_path / "store")
    loader = following(store, wait_seconds=0.1)
    with pytest.raises(
        el.errors.EpisodeTimeoutError, match=r"within 0\.1 seconds; it has none that the filter"
    ):
        next(iter(loader))
    short = following(store, window=5, columns=["reward"])
    record(store, 0, [3])
    assert shown(loader) == {0}
    with pytest.raises(TimeoutError, match=r"the 1 that are there have no .*longest has 3 transitions"):
        next(iter(short))
    record(store, 1, [5])
    assert short.take(2)["reward"].shape == (2, 5)
    store.refresh().delete("length = 5")
    with pytest.raises(el.errors.EpisodeTimeoutError):
        short.take(1)


def named_units(batch: dict[str, Any]) -> dict[tuple[int, int], int]:
    """The unit of each episode and step of a batch."""
    places = zip(numbers(batch).tolist(), batch["t"].tolist(), strict=True)
    return dict(zip(places, batch["unit"].tolist(), strict=True))


def test_new_units_get_the_largest_priority(store: el.EpisodeStore) -> None:
    """Units keep their numbers and priorities while episodes come and go; those that went are passed over."""
    rule = el.Prioritized(alpha=1.0, epsilon=0.0)
    loader = following(store, weights=rule, newest_episodes=3)
    batch = loader.take(200)
    units = {
        (number, t): unit for number, t, unit in zip(numbers(batch), batch["t"], batch["unit"], strict=True)
    }
    assert len(units) == len(set(units.values())) == 12
    loader.update_priorities(list(units.values()), [{0: 5.0, 1: 0.0, 2: 2.0}[number] for number, _ in units])
    assert shown(loader) == {0, 2}
    record(store, 3, [2])
    # Episode 0 has gone, so the largest priority is 2.
    counts = np.bincount(np.concatenate([numbers(loader.take(256)) for _ in range(40)]), minlength=4)
    assert chi_squared_fits(counts, np.array([0, 0, 4, 4]))
    loader.update_priorities(list(units.values()), [{0: 50.0, 1: 1.0, 2: 0.0}[number] for number, _ in units])
    counts = np.bincount(np.concatenate([numbers(loader.take(256)) for _ in range(40)]), minlength=4)
    assert chi_squared_fits(counts, np.array([0, 6, 0, 4]))
    batch = loader.take(64)
    assert all(
        units.get((number, t), unit) == unit
        for number, t, unit in zip(numbers(batch), batch["t"], batch["unit"], strict=True)
    )
    with pytest.raises(el.errors.InvalidArgumentError, match="There is no unit 14"):
        loader.update_priorities([14], [1.0])
    assert loader.beta == 0.4
    loader.beta = 1.0


@pytest.mark.parametrize("rule", [None, el.Prioritized(alpha=0.8)])
def test_it_resumes(store: el.EpisodeStore, rule: el.Prioritized | None) -> None:
    """The same batches while the store is the same; otherwise episodes that stayed keep their priorities."""
    record(store, 3, [5, 5])
    options = {"weights": rule, "newest_episodes": 4}
    loader = following(store, **options)
    for _ in range(5):
        batch = loader.take(20)
        if rule is not None:
            loader.update_priorities(batch["unit"], numbers(batch) * 3.0 + batch["t"])
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    resumed = following(store, **options)
    resumed.load_state_dict(state)
    for _ in range(3):
        one, other = loader.take(20), resumed.take(20)
        for key in [*KEYS, *(["weight"] if rule else [])]:
            np.testing.assert_array_equal(one[key], other[key])
    first = [loader.set_epoch(epoch) or loader.take(50)["observation"].tolist() for epoch in (0, 1, 0)]
    assert first[0] == first[2] != first[1]
    record(store, 5, [3])
    late = following(store, **options)
    late.load_state_dict(state)
    if rule is not None:
        loader.load_state_dict(state)
        np.testing.assert_array_equal(late.take(64)["weight"], loader.take(64)["weight"])
    assert shown(late) == {2, 3, 4, 5}


def test_a_state_of_another_follower_is_refused(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Of another store, version, window, filter or order, or of a loader that does not follow."""
    rule = el.Prioritized()
    loader = following(store, weights=rule)
    loader.take(3)
    before = loader.state_dict()
    other = new_store(tmp_path / "other")
    record(other, 0, [3])
    for state, text in [
        (following(other, weights=rule), "store"),
        (following(store, weights=rule, newest_steps=5), "newest"),
        (following(store.refresh().filter("length > 1"), weights=rule), "followed"),
        (following(store, weights=el.Prioritized(alpha=0.1)), "alpha: 0.1 there"),
        (following(store), "order: None there, 'Prioritised' here"),
        (store.loader(columns=KEYS), "followed: None there"),
        ({**before, "version": before["version"] + 1}, "newest version of the store is"),
        ({**before, "episodes": before["episodes"][1:]}, "belong to no episodes"),
        ({**before, "counts": b""}, "belong to no episodes"),
        ({**before, "position": -1}, "position -1"),
        (None, "no state"),
    ]:
        if isinstance(state, el.types.FollowingLoader):
            state.take(1)
        with pytest.raises(el.errors.LoaderStateError, match=text):
            loader.load_state_dict(state.state_dict() if isinstance(state, el.Loader) else state)  # pyright: ignore[reportArgumentType]
    assert loader.state_dict() == before
    with pytest.raises(el.errors.LoaderStateError):
        store.loader(columns=KEYS).load_state_dict(before)


def test_what_makes_no_sense_is_refused(store: el.EpisodeStore) -> None:
    """The error says what was wrong."""
    store.refresh()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"shuffle": True}, "has no end"),
        ({"newest_steps": 0}, "newest_steps=0"),
        ({"newest_episodes": 1.5}, r"newest_episodes=1\.5"),
        ({"refresh_seconds": -1}, "refresh_seconds=-1"),
        ({"wait_seconds": float("nan")}, "wait_seconds=nan"),
        ({"columns": ["observatoin"]}, "There is no column 'observatoin'"),
        ({"weights": el.Prioritized(), "shuffle": True}, "Leave out one"),
        ({"follow": True}, r"follow=True: expected el\.Follow"),
    ]
    for options, text in cases:
        with pytest.raises(el.errors.InvalidArgumentError, match=text):
            following(store, **options)
    loader = following(store)
    with pytest.raises(TypeError, match="no length"):
        len(loader)
    assert loader and "FollowingLoader(0 episodes" in repr(loader)
    for call in (lambda: loader.update_priorities([0], [1.0]), lambda: loader.beta):
        with pytest.raises(el.errors.InvalidArgumentError, match="does not draw by priority"):
            call()


def test_values_that_no_batch_holds_are_no_damage(store: el.EpisodeStore) -> None:
    """New episodes with a text beside numbers or a longer array are refused by name, as texts are at once."""

    def add(**infos: Any) -> None:
        with store.writer() as writer:
            writer.write_episode(
                observations=np.zeros((2, *store.observation_space.shape), np.float32),
                actions=np.zeros((1, *store.action_space.shape), store.action_space.dtype),
                rewards=np.ones(1),
                terminations=True,
                truncations=False,
                infos=[infos] * 2,
            )
        store.refresh()

    add(cost=1.0, scan=np.ones(3), said="ab")
    loaders = {name: following(store, columns=[f"info.{name}"]) for name in ("cost", "scan")}
    for loader in loaders.values():
        next(iter(loader))
    with pytest.raises(el.errors.InvalidArgumentError, match=r"'info\.said' is a column of texts"):
        following(store, columns=["info.said"])
    add(cost=2, scan=np.ones(3))
    assert np.nanmax(next(iter(loaders["cost"]))["info.cost"]) == 2
    add(cost="none", scan=np.ones(4))
    for name, text in (("cost", "different kinds, such as 'none'"), ("scan", "an array of 4 values")):
        again = following(store, columns=[f"info.{name}"])
        for call in (loaders[name].refresh, lambda again=again: next(iter(again))):
            refused = f"'info.{name}'.*({text}|rows differ in length)"
            with pytest.raises(el.errors.InvalidArgumentError, match=refused):
                call()
    with pytest.raises(el.errors.InvalidArgumentError, match="different kinds, such as 'none'"):
        store.loader(8, columns=["info.cost"])
    (batch,) = store.loader(999, columns=["info.scan"])
    assert batch["info.scan"].lengths.tolist()[-3:] == [3, 3, 4]
    (batch,) = store.loader(999, columns=["info.cost_present"])
    assert batch["info.cost_present"].tolist()[-3:] == [True, True, False]


def test_offline_with_online(store: el.EpisodeStore, tmp_path: Path) -> None:
    """A mixture of a store that stands and one that grows; while it waits nothing is lost of either."""
    online = new_store(tmp_path / "online")
    standing = store.refresh().loader(columns=KEYS, shuffle=True)
    mixture = el.mix([(standing, 0.75), (following(online), 0.25)], 4, source=True)
    assert len(mixture) == 4
    before = mixture.state_dict()
    with pytest.raises(el.errors.EpisodeTimeoutError):
        next(iter(mixture))
    assert mixture.state_dict() == {
        **before,
        "loaders": [before["loaders"][0], {**before["loaders"][1], "version": 0}],
    }
    record(online, 7, [3])
    seen = [
        pair for batch in mixture for pair in zip(numbers(batch), batch["t"], batch["source"], strict=True)
    ]
    assert len({unit[:2] for unit in seen if unit[2] == 0}) == 12
    assert [unit[0] for unit in seen if unit[2] == 1] == [7] * 4
    again = el.mix(
        [(store.loader(columns=KEYS, shuffle=True), 0.75), (following(online), 0.25)], 4, source=True
    )
    again.load_state_dict(mixture.state_dict())
    for _ in range(3):
        np.testing.assert_array_equal(again.take(5)["observation"], mixture.take(5)["observation"])


WRITER = """
import sys, time
import numpy as np
import episodelake as el
sys.path[:0] = [sys.argv[2], sys.argv[2] + "/loading", sys.argv[2] + "/readers"]
from test_follow import record
from waiting import wait_for_journal
store = el.open(sys.argv[1])
for number in range(int(sys.argv[3])):
    record(store, number, [number % 5 + 1])
    print(number, flush=True)
with store.writer(run="unfinished", flush_seconds=0.01) as writer:
    episode = writer.begin(np.array([99.0, 0.0]))
    for t in range(1, 4):
        episode.append(0, 99.0, np.array([99.0, float(t)]))
        wait_for_journal(store.path / "journal" / writer.run_id, t)
    print("unfinished", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[tuple[el.EpisodeStore, subprocess.Popen[str]]]:
    """An empty store, and a process that records ten episodes into it and begins another."""
    store = new_store(tmp_path / "shared")
    command = [sys.executable, "-c", WRITER, str(store.path), str(REPOSITORY / "tests"), "10"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    yield store, process
    process.kill()
    process.communicate(timeout=PATIENCE)


@pytest.mark.further
def test_a_writer_of_another_process(writing: tuple[el.EpisodeStore, subprocess.Popen[str]]) -> None:
    """What it has committed is in the next batch; after it was killed too, and what is recovered then."""
    store, process = writing
    loader = following(store, wait_seconds=PATIENCE)
    shown(loader, 1)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "unfinished":
            break
        loader.take(1)
        assert len(loader.episodes) == len(set(loader.episodes)) > int(line)
    assert shown(loader, 30) == set(range(10))
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE)
    assert shown(loader, 5) <= set(range(10))
    el.recover(store.path)
    assert shown(loader, 30) == {*range(10), 99}


# What a look costs


@pytest.mark.sample
@pytest.mark.parametrize("condition", [None, pl.col("length") > 0], ids=["all", "filtered"])
@pytest.mark.parametrize("newest", [None, 5])
def test_old_files_are_not_read_again(tmp_path: Path, newest: int | None, condition: pl.Expr | None) -> None:
    """A look reads what was committed since: it works when all older files and commits are gone."""
    store = el.create(tmp_path / "s", observation_space=Box(-9, 9, (1,)), action_space=Discrete(2))
    with store.writer() as writer:

        def seal(first: int, stop: int) -> None:
            for number in range(first, stop):
                writer.write_episode(
                    observations=np.full((3, 1), number, np.float32),
                    actions=[0, 1],
                    rewards=[number, 0],
                    terminations=True,
                    truncations=False,
                )
            writer.seal()

        for number in range(0, 8, 2):
            seal(number, number + 2)
        view = store.refresh() if condition is None else store.refresh().filter(condition)
        loader = view.loader(64, follow=el.Follow(refresh_seconds=0, newest_episodes=newest))
        next(iter(loader))
        assert len(loader.episodes) == (newest or 8)
        known = store.version
        tables = [store.path / table for table in ("steps", "episodes")]
        files = [file for table in tables for file in table.glob("*.parquet")]
        # Writers and readers compare the last commit that they know (decision 007, commits);
        # they read none before it.
        seal(8, 10)
        for file in files:
            file.unlink()
        for table in tables:
            for commit in sorted((table / "_delta_log").glob("*.json"))[:known]:
                commit.write_bytes(b"")
        assert set(next(iter(loader))["reward"].tolist()) >= {8.0, 9.0}
        assert [int(name[-6:]) for name in loader.episodes] == list(range(10))[-(newest or 10) :]
        assert len(store.refresh()) == 10 and store.version == known + 1


CONDITIONS = [
    pl.col("length") >= pl.col("length").mean(),
    pl.col("episode_return").rank() > 3,
    pl.col("length").shift(1) > 2,
    pl.col("length") >= pl.Series([3] * 12),
    pl.col("episode_id").is_in(["x"]),
    pl.col("length").is_between(3, 4),
    (pl.col("length") > 3) & ~pl.col("terminated"),
    pl.col("seed").is_null(),
    pl.col("length") % 2 == 0,
    pl.lit(True),
    pl.col("end_reason") == "terminated",
    pl.int_range(pl.len()) > 6,
    pl.col("length") == pl.col("length").max(),
]


@pytest.mark.parametrize("cases", some(CONDITIONS, 5))
def test_filters_of_followers(tmp_path: Path, cases: Any) -> None:
    """A follower shows what the same filter of the whole store gives, whatever rows the filter looks at."""
    for folder, condition in with_folders(cases, tmp_path):
        with case(condition):
            store = el.create(folder / "s", observation_space=Box(-9, 9, (1,)), action_space=Discrete(2))
            with store.writer() as writer:
                for number in range(12):
                    length = 2 + number % 4
                    writer.write_episode(
                        observations=np.zeros((length + 1, 1), np.float32),
                        actions=np.zeros(length, np.int64),
                        rewards=np.full(length, number),
                        terminations=number % 3 > 0,
                        truncations=number % 3 == 0,
                    )
                    if number % 4 == 3:
                        writer.seal()
            expected = store.refresh().filter(condition).episodes.collect()["episode_id"].to_list()
            for newest in (None, 3):
                loader = store.filter(condition).loader(8, follow=el.Follow(newest_episodes=newest))
                loader.refresh()
                assert loader.episodes == expected[-(newest or 12) :]
