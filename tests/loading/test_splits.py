"""Splits: which part an episode belongs to follows from its key and the seed alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import episodelake as el
from effort import some, with_folders
from episodelake.testing.adapters import case
from maintenance_stores import assert_faces_agree, awkward_store, contents, ids_of
from real_environments import NUMBERED_SPACES, numbered_store, write_numbered

SHARES = {"train": 0.7, "validation": 0.2, "test": 0.1}


def parts(store: el.EpisodeView, name: str = "split") -> dict[str, str]:
    """Return the part of every episode."""
    return dict(store.sql(f'select episode_id, "{name}" from episodes').fetchall())


def record(store: el.EpisodeStore, run: str, count: int) -> None:
    """Record episodes of one transition."""
    with store.writer(run=run) as writer:
        for value in range(count):
            write_numbered(writer, value % 90, 1, infos=False)
    store.refresh()


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """A thousand episodes of ten runs; tests give their splits names of their own."""
    store = el.create(tmp_path_factory.mktemp("many") / "store", **NUMBERED_SPACES)
    for run in range(10):
        record(store, f"run-{run}", 100)
    return store


@pytest.mark.further
def test_shares_are_respected(many: el.EpisodeStore) -> None:
    """Of a thousand episodes each part has its share, within five standard deviations."""
    many.split(SHARES, name="shares")
    counts = Counter(parts(many, "shares").values())
    assert set(counts) == set(SHARES)
    for part, share in SHARES.items():
        assert abs(counts[part] - 1000 * share) < 5 * (1000 * share * (1 - share)) ** 0.5


def test_the_same_seed_gives_the_same_split(many: el.EpisodeStore) -> None:
    """A split may be drawn again; another seed gives one that is independent of it."""
    many.split(SHARES, seed=1, name="one")
    many.split(SHARES, seed=1, name="again")
    many.split(SHARES, seed=2, name="two")
    one, two = parts(many, "one"), parts(many, "two")
    assert one == parts(many, "again")
    together = sum(one[name] == two[name] for name in one)
    chance = sum(share**2 for share in SHARES.values())
    assert abs(together - 1000 * chance) < 5 * (1000 * chance * (1 - chance)) ** 0.5


def test_it_does_not_depend_on_the_order_of_the_episodes(many: el.EpisodeStore, tmp_path: Path) -> None:
    """A copy with fewer episodes in another order gives each the same part."""
    many.split(SHARES, seed=3, name="kept")
    other = many.copy(tmp_path / "other", "number % 3 = 0")
    other.compact(order_by="ended_at", descending=True)
    other.split(SHARES, seed=3, name="anew")
    expected = parts(many, "kept")
    assert parts(other, "anew") == {name: expected[name] for name in ids_of(other)}


@pytest.mark.further
def test_runs_stay_together(many: el.EpisodeStore) -> None:
    """By run, all episodes of a run have one part; with enough seeds a run has been in both."""
    seen: dict[str, set[str]] = {}
    for seed in range(5):
        many.split({"a": 0.5, "b": 0.5}, by="run", seed=seed, name=f"by_run_{seed}")
        rows = many.sql(f"select distinct run_id, by_run_{seed} from episodes").fetchall()
        assert len(rows) == 10
        for run, part in rows:
            seen.setdefault(run, set()).add(part)
    assert sum(both == {"a", "b"} for both in seen.values()) >= 3


@pytest.mark.sample(3)
@pytest.mark.parametrize("by", ["metadata.group", "seed", "terminated", "length", "end_reason"])
def test_a_column_stays_together(many: el.EpisodeStore, by: str) -> None:
    """By a column, equal values have one part."""
    name = f"by {by}".replace(" ", "_").replace(".", "_")
    many.split({"a": 0.5, "b": 0.5}, by=by, name=name)
    rows = many.sql(
        f'select "{by}", count(distinct {name}), count({name}), count(*) from episodes group by 1'
    )
    assert all(row[1:] == (1, row[3], row[3]) for row in rows.fetchall())


def test_parts_stay_when_episodes_are_added(tmp_path: Path) -> None:
    """New episodes have no part; after another split they have one, and the old ones theirs."""
    # An empty part would take an episode, and give it back later; of 50, none of these is empty.
    shares = {"train": 0.4, "validation": 0.3, "test": 0.3}
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    record(store, "first", 50)
    store.split(shares)
    before = parts(store)
    assert None not in before.values()
    record(store, "second", 50)
    now = parts(store)
    assert {name: now[name] for name in before} == before
    assert Counter(now.values())[None] == 50
    store.split(shares)
    after = parts(store)
    assert {name: after[name] for name in before} == before
    assert None not in after.values()
    store.delete("number % 2 = 0")
    store.compact()
    store.split(shares)
    assert parts(store) == {name: after[name] for name in ids_of(store)}
    assert_faces_agree(store)


def test_a_part_may_have_all(many: el.EpisodeStore) -> None:
    """A single part takes all, and a share of 0 takes none."""
    many.split({"all": 1.0}, name="single")
    assert set(parts(many, "single").values()) == {"all"}
    try:
        many.split({"all": 1.0, "none": 0.0}, name="zero")
    except el.errors.InvalidArgumentError:
        return
    assert set(parts(many, "zero").values()) == {"all"}


def test_shares_that_add_up_but_for_rounding(many: el.EpisodeStore) -> None:
    """Ten tenths are one, in spite of floating point; integers are numbers too."""
    many.split({f"p{number}": 0.1 for number in range(10)}, name="tenths")
    assert len(set(parts(many, "tenths").values())) == 10
    many.split({"only": 1}, name="integer")
    assert set(parts(many, "integer").values()) == {"only"}


BAD: dict[str, Any] = {
    "empty": {},
    "too much": {"a": 0.9, "b": 0.9},
    "too little": {"a": 0.5},
    "negative": {"a": 1.5, "b": -0.5},
    "nan": {"a": float("nan"), "b": 1.0},
    "infinite": {"a": float("inf")},
    "text": {"a": "1.0"},
    "null": {"a": None},
    "a list": ["a", "b"],
    "number as name": {1: 0.5, 2: 0.5},
}


@pytest.mark.parametrize("cases", some(BAD, 4))
def test_bad_shares(tmp_path: Path, cases: Any) -> None:
    """Shares that are none change nothing."""
    for folder, kind in with_folders(cases, tmp_path):
        with case(kind):
            store = numbered_store(folder / "store", [2, 3])
            version = store.version
            with pytest.raises(el.errors.InvalidArgumentError):
                store.split(BAD[kind])
            assert el.open(store.path).version == version


def test_sizes_are_exact(many: el.EpisodeStore) -> None:
    """Parts have exactly their sizes, the same for the same seed; the rest has no part."""
    parts = []
    for sizes in ({"train": 20, "val": 10}, {"train": 20, "val": 10}, [20, 10]):
        many.split(sizes=sizes, seed=3, name="sized")
        parts.append(many.episodes.collect()["sized"].to_list())
    assert parts[0] == parts[1] == [{"0": "train", "1": "val", None: None}[part] for part in parts[2]]
    assert Counter(parts[0]) == {"train": 20, "val": 10, None: len(many) - 30}
    many.split(sizes=[20, 10], seed=4, name="sized")
    assert many.episodes.collect()["sized"].to_list() != parts[2]
    runs = many.episodes.collect()["run_id"].n_unique()
    many.split(sizes={"one": 1, "others": runs - 1}, by="run", name="sized")
    of_runs = many.episodes.select("run_id", "sized").unique().collect()
    assert sorted(of_runs["sized"].to_list()) == ["one"] + ["others"] * (runs - 1)
    wrong: list[dict[str, Any]] = [
        {"sizes": [len(many), 1]},
        {"sizes": [0, 1]},
        {"sizes": []},
        {"sizes": [0.5]},
        {"sizes": [1], "seed": 0.5},
        {"sizes": [1], "shares": {"a": 1.0}},
        {},
    ]
    for given in wrong:
        with pytest.raises(el.errors.InvalidArgumentError):
            many.split(**given)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_part_of_a_small_store_has_an_episode(tmp_path: Path, count: int) -> None:
    """Shares leave no part empty where there are as many episodes as parts."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    with store.writer() as writer:
        for value in range(count):
            write_numbered(writer, value, 2)
    for seed in range(20):
        store.split({"train": 0.9, "val": 0.05, "test": 0.05}, seed=seed)
        assert store.episodes.collect()["split"].n_unique() == min(count, 3)


@pytest.mark.parametrize("by", ["no_such", "", "t", "reward", "Run"])
def test_a_column_that_is_not_there(tmp_path: Path, by: str) -> None:
    """An unknown column changes nothing; so does a name that is taken."""
    store = numbered_store(tmp_path / "store", [2, 3])
    with pytest.raises(el.errors.InvalidArgumentError):
        store.split(SHARES, by=by)
    with pytest.raises(el.errors.InvalidArgumentError):
        store.split(SHARES, name="length")
    assert el.open(store.path).annotations.height == 0


def test_null_keys_and_lists(tmp_path: Path) -> None:
    """Episodes whose key is NULL, and keys of kinds that change, all get a part or are refused as a whole."""
    store = awkward_store(tmp_path / "store")
    before = contents(store)
    store.split({"a": 0.5, "b": 0.5}, by="seed")
    found = parts(store)
    assert set(found.values()) <= {"a", "b", None}
    seeded = [one for one in before if one["seed"] is not None]
    assert all(found[one["id"]] in {"a", "b"} for one in seeded)
    assert_faces_agree(store)


def test_an_empty_store_and_a_single_episode(tmp_path: Path) -> None:
    """There is nothing to split in an empty store; one episode has one part."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    store.split(SHARES)
    record(store, "run", 1)
    store.split(SHARES)
    assert set(parts(store).values()) < set(SHARES)


def test_seeds_of_any_size(tmp_path: Path) -> None:
    """Large and negative seeds are seeds, and differ."""
    store = numbered_store(tmp_path / "store", [1] * 40)
    found = set()
    for number, seed in enumerate((0, -1, 2**40, 2**80)):
        store.split({"a": 0.5, "b": 0.5}, seed=seed, name=f"s{number}")
        found.add(tuple(parts(store, f"s{number}").values()))
    assert len(found) == 4


def test_numbers_of_numpy_are_seeds_and_shares(tmp_path: Path) -> None:
    """They give what Python's own numbers give."""
    store = numbered_store(tmp_path / "store", [1] * 40)
    store.split({"train": 0.75, "test": 0.25}, seed=3)
    before = parts(store)
    store.split({"train": np.float64(0.75), "test": np.float32(0.25)}, seed=np.int64(3), name="again")
    assert parts(store, "again") == before
    store.compact(segment_bytes=np.int64(1 << 20))
