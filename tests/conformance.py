"""What every kind of place must do alike: a local folder, `memory://`, an object store.

The classes `...Conformance` hold the tests; `test_backends.py` runs them once per kind of place. A test
speaks to a place by `Backend` only, so that its body is the same everywhere. Most stores hold the numbered
episodes of `real_environments.py`, whose every value follows from a number.
"""

from __future__ import annotations

import contextlib
import json
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
from gymnasium import spaces

import episodelake as el
from nasty_environments import Nested, SmallEnv, assert_recorded, play, seeds
from object_server import BUCKET, ObjectServer, new_url
from real_environments import NUMBERED_SPACES, numbered_return, values_of, write_numbered
from strategies import same
from waiting import PATIENCE


class Backend(ABC):
    """A kind of place: how stores are made and opened there, and how their bare files are reached.

    Attributes:
        url: a folder or prefix that is empty at first; stores lie below it.
        storage_options: what reaches it.
    """

    url: str
    storage_options: dict[str, str] | None = None

    def at(self, name: str = "store") -> str:
        """The path or URL of a store."""
        return f"{self.url}/{name}"

    def create(self, name: str = "store", **arguments: Any) -> el.EpisodeStore:
        """Create a store, by default for numbered episodes."""
        made = arguments or NUMBERED_SPACES
        return el.create(self.at(name), **made, storage_options=self.storage_options)

    def open(self, name: str = "store", version: Any = None) -> el.EpisodeStore:
        """Open a store."""
        return el.open(self.at(name), version, storage_options=self.storage_options)

    def recover(self, name: str = "store") -> list[el.types.RecoveredRun]:
        """Recover the journals of a store."""
        return el.recover(self.at(name), storage_options=self.storage_options)

    @abstractmethod
    def files(self, name: str = "store") -> list[str]:
        """The names of all files of a store but its journal, relative to it, sorted."""

    @abstractmethod
    def read(self, file: str, name: str = "store") -> bytes:
        """The bytes of a file of a store."""

    @abstractmethod
    def write(self, file: str, data: bytes, name: str = "store") -> None:
        """Make or replace a file of a store."""

    @abstractmethod
    def remove(self, file: str, name: str = "store") -> None:
        """Delete a file of a store."""

    def contents(self, name: str = "store") -> dict[str, bytes]:
        """All files of a store but its journal, with their bytes."""
        return {file: self.read(file, name) for file in self.files(name)}


class FolderBackend(Backend):
    """Stores whose files lie in a folder of this machine.

    Args:
        folder: an empty folder.
        url: what the library is told; None for the folder's path.
    """

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self._folder = folder
        self.url = str(folder) if url is None else url

    def files(self, name: str = "store") -> list[str]:
        """See `Backend`."""
        root = self._folder / name
        found = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
        return sorted(path.as_posix() for path in found if path.parts[0] != "journal")

    def read(self, file: str, name: str = "store") -> bytes:
        """See `Backend`."""
        return (self._folder / name / file).read_bytes()

    def write(self, file: str, data: bytes, name: str = "store") -> None:
        """See `Backend`."""
        path = self._folder / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def remove(self, file: str, name: str = "store") -> None:
        """See `Backend`."""
        (self._folder / name / file).unlink()


class ObjectBackend(Backend):
    """Stores whose files are objects of an S3 server."""

    def __init__(self, server: ObjectServer) -> None:
        self._server = server
        self.url = new_url()
        self.storage_options = server.storage_options()

    def _key(self, name: str) -> str:
        return self.at(name).removeprefix(f"s3://{BUCKET}/")

    def files(self, name: str = "store") -> list[str]:
        """See `Backend`."""
        return self._server.keys(self._key(name))

    def read(self, file: str, name: str = "store") -> bytes:
        """See `Backend`."""
        return self._server.read(f"{self._key(name)}/{file}")

    def write(self, file: str, data: bytes, name: str = "store") -> None:
        """See `Backend`."""
        self._server.write(f"{self._key(name)}/{file}", data)

    def remove(self, file: str, name: str = "store") -> None:
        """See `Backend`."""
        self._server.remove(f"{self._key(name)}/{file}")


# What tests put in and look for


def abandon(writer: el.EpisodeWriter) -> None:
    """Have a writer that cannot be closed do now what it does when it is garbage collected."""
    session = writer._session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session._abandon()
        session._keeper.join(PATIENCE)
    assert session.closed


def fill(
    store: el.EpisodeStore, values: Iterable[int], *, run: str = "numbered", seal_every: int = 10**9
) -> Any:
    """Write numbered episodes, episode `value` of `value % 4 + 1` steps; return the refreshed store."""
    with store.writer(run=run) as writer:
        for count, value in enumerate(values, 1):
            write_numbered(writer, value, value % 4 + 1)
            if count % seal_every == 0:
                writer.seal()
    return store.refresh()


def all_of(episodes: Iterable[el.Episode]) -> dict[str, tuple[Any, ...]]:
    """Everything that episodes hold, by id, in plain values that compare."""
    return {
        episode.id: (
            np.asarray(episode.observations).tolist(),
            np.asarray(episode.actions).tolist(),
            episode.rewards.tolist(),
            episode.terminations.tolist(),
            episode.truncations.tolist(),
            episode.infos,
            episode.metadata,
            episode.seed,
            episode.end_reason,
            episode.episode_return,
        )
        for episode in episodes
    }


def assert_numbered(view: Any, values: Iterable[int], *, ordered: bool = True, engines: bool = False) -> None:
    """Fail unless a view holds exactly these numbered episodes.

    Args:
        view: a store or a view.
        values: the numbers of the episodes.
        ordered: whether they stand in this order.
        engines: ask all engines too, and not the episodes alone.
    """
    wanted = list(values)
    episodes = list(view)
    found = values_of(episodes)
    assert (found if ordered else sorted(found)) == (wanted if ordered else sorted(wanted))
    assert len(view) == len(wanted)
    for value, episode in zip(found, episodes, strict=True):
        length = value % 4 + 1
        assert episode.observations.tolist() == [[value, t] for t in range(length + 1)]
        assert episode.actions.tolist() == [(value + t) % 10 for t in range(length)]
        assert episode.rewards.tolist() == [value + t / 8 for t in range(length)]
        assert episode.infos == [{"clock": t} for t in range(length + 1)]
        assert episode.metadata == {"value": value, "group": "odd" if value % 2 else "even"}
        assert episode.seed == 1000 + value
        assert episode.end_reason == ("truncated" if value % 2 else "terminated")
        assert episode.episode_return == numbered_return(value, length)
    if engines:
        assert_engines_count(view, wanted)


def assert_engines_count(view: Any, values: list[int]) -> None:
    """Fail unless Polars and DuckDB count and add up what follows from these numbered episodes."""
    steps = sum(value % 4 + 1 for value in values)
    total = sum(numbered_return(value, value % 4 + 1) for value in values)
    assert view.episodes.select(pl.len(), pl.sum("length")).collect().row(0) == (len(values), steps)
    assert view.steps.select(pl.len(), pl.sum("reward")).collect().row(0) == (steps + len(values), total)
    assert view.transitions.select(pl.len(), pl.sum("reward")).collect().row(0) == (steps, total)
    counted = view.sql(
        "select (select count(*) from episodes), (select coalesce(sum(length), 0) from episodes), "
        "(select count(*) from steps), (select count(*) from transitions), "
        "(select coalesce(sum(reward), 0) from transitions), "
        "(select coalesce(sum(episode_return), 0) from episodes)"
    ).fetchall()
    assert counted == [(len(values), steps, steps + len(values), steps, total, total)]


class Place:
    """What every test is given."""

    @pytest.fixture
    def backend(self) -> Backend:
        """The place under test; each subclass gives its own."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def spool(self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A spool folder of the test's own."""
        folder = tmp_path_factory.mktemp("spool")
        monkeypatch.setenv("EPISODELAKE_SPOOL", str(folder))
        return folder


class Conformance(Place):
    """Creating, recording, reading and their errors."""

    # Creating and opening

    def test_a_created_store_opens_again(self, backend: Backend) -> None:
        """Identity, spaces, reward shape and card of a new store come back when it is opened."""
        observation = spaces.Dict({"b": spaces.Tuple([spaces.Text(4)]), "a": spaces.MultiBinary([2, 2])})
        action = spaces.Discrete(3)
        made = backend.create(
            observation_space=observation, action_space=action, reward_shape=(2,), card={"author": "A"}
        )
        store = backend.open()
        assert store.id == made.id
        assert store.url == made.url
        assert el.open(store.url, storage_options=backend.storage_options).id == made.id
        assert (store.observation_space, store.action_space) == (observation, action)
        assert store.reward_shape == (2,)
        assert store.card == {"author": "A"}
        assert len(store) == 0
        assert store.sql("select count(*) from steps").fetchall() == [(0,)]
        assert store.steps.collect().height == store.episodes.collect().height == 0

    def test_a_store_is_not_created_twice(self, backend: Backend) -> None:
        """Creating where a store is raises and leaves every file as it was."""
        fill(backend.create(), [1, 2])
        before = backend.contents()
        with pytest.raises(el.errors.StoreExistsError):
            backend.create()
        assert backend.contents() == before

    def test_a_place_with_other_files_is_refused(self, backend: Backend) -> None:
        """A store is not created among files of something else, which stay."""
        backend.write("notes.txt", b"mine")
        with pytest.raises(el.errors.StoreExistsError, match=r"notes\.txt"):
            backend.create()
        assert backend.files() == ["notes.txt"]

    def test_only_a_store_opens(self, backend: Backend) -> None:
        """Opening or recovering what is not there raises, and makes nothing."""
        for attempt in (backend.open, backend.recover):
            with pytest.raises(el.errors.StoreNotFoundError) as caught:
                attempt()
            assert isinstance(caught.value, FileNotFoundError)
            assert backend.at().rpartition("://")[2] in str(caught.value)
        assert backend.files() == []

    def test_an_interrupted_creation_is_taken_over(self, backend: Backend) -> None:
        """Tables without the manifest, which is written last, are no store yet and become one."""
        backend.create()
        backend.remove("store.json")
        with pytest.raises(el.errors.StoreNotFoundError):
            backend.open()
        assert_numbered(fill(backend.create(), range(3)), range(3))

    def test_one_of_several_creators_wins(self, backend: Backend) -> None:
        """Of creators at the same moment exactly one has made the store; the others are told."""
        start = threading.Barrier(4)

        def attempt(_: int) -> str | None:
            start.wait(PATIENCE)
            try:
                return backend.create().id
            except el.errors.StoreExistsError:
                return None

        with ThreadPoolExecutor(4) as pool:
            won = [found for found in pool.map(attempt, range(4)) if found]
        assert won == [backend.open().id]
        assert_numbered(fill(backend.open(), range(2)), range(2))

    def test_the_card_is_replaced_as_a_whole(self, backend: Backend) -> None:
        """An assigned card is seen by the next to open the store, and nothing of the old one is left."""
        store = backend.create(**NUMBERED_SPACES, card={"a": 1, "b": 2})
        store.card = {"c": ["é", {"d": None}]}
        assert backend.open().card == store.card == {"c": ["é", {"d": None}]}
        with pytest.raises(el.errors.InvalidArgumentError):
            store.card = {"object": object()}
        assert backend.open().card == {"c": ["é", {"d": None}]}

    # Recording

    def test_a_recorded_environment_comes_back(self, backend: Backend) -> None:
        """Episodes of a recorder, infos included, are what a plain loop sees."""
        store = backend.create(env=SmallEnv())
        with store.record(SmallEnv(), run="small", metadata={"algo": "random"}) as recorder:
            play(recorder, seeds(0, 1, 2))
            recorder.reset(seed=3)
            recorder.action_space.seed(0)
            recorder.step(recorder.action_space.sample())
        env = SmallEnv()
        plain = play(env, seeds(0, 1, 2))
        store.refresh()
        assert len(store) == 4
        for episode, rollout in zip(store[:3], plain, strict=True):
            assert_recorded(episode, rollout, env)
        assert (store[3].end_reason, store[3].length) == ("cut", 1)
        assert store.runs.collect()["metadata.algo"].to_list() == ["random"]

    def test_whole_episodes_and_images_come_back(self, backend: Backend) -> None:
        """Stacked arrays, images among them, handed over as one episode come back exact."""
        random = np.random.default_rng(0)
        frames = random.integers(0, 255, (301, 24, 24, 3), np.uint8)
        store = backend.create(
            observation_space=spaces.Box(0, 255, (24, 24, 3), np.uint8), action_space=spaces.Discrete(4)
        )
        actions = random.integers(0, 4, 300)
        with store.writer() as writer:
            writer.write_episode(
                observations=frames,
                actions=actions,
                rewards=np.arange(300.0),
                terminations=False,
                truncations=True,
                infos={"lives": np.arange(301)},
            )
        episode = store.refresh()[0]
        assert same(episode.observations, frames)
        assert same(episode.actions, actions)
        assert [info["lives"] for info in episode.infos] == list(range(301))

    def test_several_runs_and_seals_make_one_store(self, backend: Backend) -> None:
        """Episodes of several runs and segments stand in the order of their commits, each with its run."""
        store = backend.create()
        fill(store, range(5), run="first", seal_every=2)
        fill(store, range(5, 8), run="second", seal_every=1)
        assert_numbered(backend.open(), range(8), engines=True)
        runs = backend.open().sql(
            "select name, count(*) from episodes join runs using (run_id) group by 1 order by 1"
        )
        assert runs.fetchall() == [("first", 5), ("second", 3)]

    def test_writers_of_one_moment_all_get_through(self, backend: Backend) -> None:
        """Three writers that seal as fast as they can lose nothing, and nothing is there twice."""
        backend.create()

        def write(number: int) -> None:
            fill(backend.open(), range(100 * number, 100 * number + 6), run=f"w{number}", seal_every=2)

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(write, range(3)))
        wanted = [100 * number + value for number in range(3) for value in range(6)]
        assert_numbered(backend.open(), wanted, ordered=False, engines=True)

    def test_a_later_info_column_is_null_in_older_rows(self, backend: Backend) -> None:
        """A key that appears in a later segment is a column; older rows read NULL and have no key."""
        store = backend.create()
        with store.writer() as writer:
            write_numbered(writer, 0, 2)
            writer.seal()
            episode = writer.begin(np.zeros(2, np.float32), {"fresh": 7.5}, metadata={"label": "new"})
            episode.append(1, 0.0, np.ones(2, np.float32), terminated=True, info={"clock": 1})
            episode.end()
        store.refresh()
        assert store.sql('select "info.fresh" from steps order by "info.fresh"').fetchall() == [
            (7.5,),
            *[(None,)] * 4,
        ]
        assert store.steps.collect()["info.fresh"].drop_nulls().to_list() == [7.5]
        assert store.episodes.collect()["metadata.label"].to_list() == [None, "new"]
        assert [episode.infos[0] for episode in store] == [{"clock": 0}, {"fresh": 7.5}]

    def test_nothing_is_left_in_the_journal_of_a_closed_run(
        self, backend: Backend, spool: Path, tmp_path: Path
    ) -> None:
        """A closed run leaves no journal behind, in the store or in the spool; recovery finds nothing."""
        fill(backend.create(), range(3))
        left = [path for folder in (spool, tmp_path) for path in folder.rglob("*.frames")]
        assert left == []
        assert backend.recover() == []

    # Versions

    def test_a_snapshot_stays_until_it_is_refreshed(self, backend: Backend) -> None:
        """An open store shows what it showed, whatever others commit; `refresh` moves it on."""
        fill(backend.create(), [0, 1])
        reader = backend.open()
        view = reader.filter("length = 1")
        fill(backend.open(), [2, 3, 4])
        assert_numbered(reader, [0, 1], engines=True)
        assert_numbered(view, [0])
        reader.refresh()
        assert_numbered(reader, range(5), engines=True)
        assert_numbered(view, [0])

    def test_every_version_opens(self, backend: Backend) -> None:
        """Each version shows the episodes of its time; one that never was is refused."""
        store = fill(backend.create(), range(4), seal_every=1)
        shown = [len(backend.open(version=version)) for version in range(store.version + 1)]
        assert shown == sorted(shown)
        assert set(shown) == {0, 1, 2, 3, 4}
        assert_numbered(backend.open(version=shown.index(2)), [0, 1], engines=True)
        for wrong in (store.version + 1, -1, 10**9):
            with pytest.raises(el.errors.VersionNotFoundError):
                backend.open(version=wrong)

    # Reading

    def test_views_choose_and_compose(self, backend: Backend) -> None:
        """Filters of both kinds, slices, ids, negative positions and samples agree on what they choose."""
        store = fill(backend.create(), range(9), seal_every=4)
        even = store.filter(pl.col("metadata.group") == "even")
        assert_numbered(even, [0, 2, 4, 6, 8])
        assert_numbered(store.filter("\"metadata.group\" = 'even'"), [0, 2, 4, 6, 8])
        assert_numbered(even.filter("episode_return > 4")[1:], [6, 8], engines=True)
        assert_numbered(store[2:7:2], [2, 4, 6])
        assert_numbered(store[::-1], range(8, -1, -1))
        assert values_of([store[-1], store[store[3].id]]) == [8, 3]
        assert all_of(store.sample_episodes(4, seed=1)) == all_of(store.sample_episodes(4, seed=1))

    def test_every_engine_reads_the_same(self, backend: Backend) -> None:
        """DuckDB, DuckDB confined, Polars and the episodes give the same values of every column of steps."""
        store = fill(backend.create(), range(6), seal_every=3)
        wanted = [
            (episode.id, t, list(map(float, observation)), episode.infos[t]["clock"])
            for episode in store
            for t, observation in enumerate(episode.observations)
        ]
        text = 'select episode_id, t, observation, "info.clock" from steps order by 1, 2'
        assert store.sql(text).fetchall() == wanted
        assert store.sql(text, read_only=True).fetchall() == wanted
        frame = store.steps.select("episode_id", "t", "observation", "info.clock").sort("episode_id", "t")
        assert frame.collect().rows() == wanted
        with store.connect() as connection:
            assert connection.sql(text).fetchall() == wanted

    def test_an_episode_longer_than_a_segment_comes_back(self, backend: Backend) -> None:
        """An episode of many row groups is read whole, and so are its neighbours."""
        store = backend.create()
        length = 70_000
        observations = np.stack([np.full(length + 1, 3.0), np.arange(length + 1.0)], 1).astype(np.float32)
        with store.writer(segment_bytes=1 << 18) as writer:
            write_numbered(writer, 0, 1)
            writer.write_episode(
                observations=observations,
                actions=np.arange(length) % 10,
                rewards=np.ones(length),
                terminations=True,
                truncations=False,
            )
            write_numbered(writer, 1, 2)
        store.refresh()
        assert [episode.length for episode in store] == [1, length, 2]
        assert same(store[1].observations, observations)
        assert store.sql("select count(*), sum(reward) from transitions where t > 2").fetchall() == [
            (length - 3, length - 3.0)
        ]

    # Errors

    @pytest.mark.parametrize(
        ("table", "damage"),
        [("steps", "missing"), ("episodes", "missing"), ("episodes", "cut"), ("steps", "overwritten")],
    )
    def test_a_damaged_segment_is_named(self, backend: Backend, table: str, damage: str) -> None:
        """A segment that is gone, cut short or no Parquet file is named by every reader that needs it."""
        fill(backend.create(), range(3))
        (file,) = [name for name in backend.files() if name.startswith(table) and name.endswith(".parquet")]
        data = backend.read(file)
        if damage == "missing":
            backend.remove(file)
        else:
            backend.write(file, data[:-20] if damage == "cut" else b"x" * len(data))
        name = file.rpartition("/")[2]
        with pytest.raises(el.errors.CorruptStoreError) as caught:
            all_of(backend.open())
        assert name in str(caught.value)
        with pytest.raises((el.EpisodelakeError, duckdb.Error)) as caught:
            backend.open().sql(f"select sum(length(episode_id)) from {table}").fetchall()
        assert name in str(caught.value)

    def test_a_missing_table_is_named(self, backend: Backend) -> None:
        """A store without the log of a table is damaged, not empty."""
        fill(backend.create(), range(2))
        for file in backend.files():
            if file.startswith("episodes/_delta_log"):
                backend.remove(file)
        with pytest.raises(el.errors.CorruptStoreError, match="episodes"):
            len(backend.open())


class MaintenanceConformance(Place):
    """What changes and checks episodes that are committed already."""

    # Compaction

    def test_compaction_joins_segments(self, backend: Backend) -> None:
        """Small segments become one; ids, order and contents stay, and older versions still read."""
        store = fill(backend.create(), range(7), seal_every=2)
        before, old = all_of(store), store.version
        report = store.compact()
        assert (report.segments_before, report.segments_after, report.episodes) == (4, 1, 7)
        assert report.bytes_after > 0
        for found in (store, backend.open()):
            assert_numbered(found, range(7), engines=True)
            assert all_of(found) == before
        assert backend.open().history()["operation"][0] == "compact"
        assert_numbered(backend.open(version=old), range(7))
        fill(backend.open(), [7])
        assert_numbered(backend.open(), range(8))

    # Deletion and vacuum

    def test_deletion_takes_episodes_away(self, backend: Backend) -> None:
        """Deleted episodes are gone from the newest version by every reader, and stay in the older ones."""
        store = fill(backend.create(), range(8), seal_every=3)
        old = store.version
        would = store.delete("length = 1", dry_run=True)
        assert (would.episodes, would.steps) == (2, 2)
        assert_numbered(backend.open(), range(8))
        report = store.delete(pl.col("length") == 1)
        assert (report.episodes, report.steps) == (2, 2)
        for found in (store, backend.open()):
            assert_numbered(found, [1, 2, 3, 5, 6, 7], engines=True)
        assert_numbered(backend.open(version=old), range(8), engines=True)
        assert backend.open().history()["operation"][0] == "delete"
        with pytest.raises(el.errors.QueryError):
            store.delete("no_such_column = 1")
        assert store.delete("length > 1000").episodes == 0
        store.delete("true")
        assert_numbered(backend.open(), [])

    def test_vacuum_deletes_what_no_version_needs(self, backend: Backend) -> None:
        """Files that only untagged older versions need go; all others stay."""
        store = fill(backend.create(), range(6), seal_every=3)
        store.tag("before")
        store.delete("length = 1")
        fill(store, [6])
        store.delete("length = 2")
        assert store.vacuum().files == ()
        would = store.vacuum(timedelta(0), dry_run=True)
        there = set(backend.files())
        assert set(would.files) <= there
        assert would.bytes == sum(len(backend.read(file)) for file in would.files)
        done = store.vacuum(timedelta(0))
        assert (done.files, done.bytes) == (would.files, would.bytes)
        assert set(backend.files()) == there - set(done.files)
        assert_numbered(backend.open(), [2, 3, 6])
        assert_numbered(backend.open(version="before"), range(6), engines=True)
        assert backend.open().verify().ok

    def test_vacuum_deletes_replaced_files_at_once_when_told_to(self, backend: Backend) -> None:
        """With an age of nothing the files that a compaction replaced go, wherever the store lies."""
        store = fill(backend.create(), range(4), seal_every=1)
        replaced = {file for file in backend.files() if file.startswith("steps/numbered")}
        assert len(replaced) == 4
        store.compact()
        assert replaced <= set(store.vacuum(timedelta(0)).files)
        assert not replaced & set(backend.files())
        assert_numbered(backend.open(), range(4))

    def test_vacuum_spares_a_live_writer(self, backend: Backend) -> None:
        """Vacuum of everything that is old, again and again beside a writer, loses nothing."""
        store = backend.create()
        done = threading.Event()

        def clean() -> None:
            while not done.is_set():
                backend.open().vacuum(timedelta(0))

        with ThreadPoolExecutor(1) as pool:
            cleaning = pool.submit(clean)
            try:
                fill(store, range(5), seal_every=1)
            finally:
                done.set()
            cleaning.result(PATIENCE)
        assert_numbered(backend.open(), range(5))
        assert backend.open().verify().ok

    # Verification

    @pytest.mark.parametrize(
        ("table", "damage"),
        [("steps", "missing"), ("episodes", "cut"), ("episodes", "overwritten"), ("steps", "flipped")],
    )
    def test_verification_names_a_damaged_file(self, backend: Backend, table: str, damage: str) -> None:
        """A file that is gone, cut, overwritten or changed in one byte is named."""
        fill(backend.create(), range(4), seal_every=2)
        file = next(name for name in backend.files() if name.startswith(table) and name.endswith(".parquet"))
        data = bytearray(backend.read(file))
        if damage == "missing":
            backend.remove(file)
        elif damage == "cut":
            backend.write(file, bytes(data[:-20]))
        elif damage == "overwritten":
            backend.write(file, b"x" * len(data))
        else:
            data[len(data) // 3] ^= 255
            backend.write(file, bytes(data))
        report = backend.open().verify()
        assert not report.ok
        assert file in {fault.file for fault in report.faults}
        assert all(fault.kind and fault.message for fault in report.faults)

    # Tags

    def test_tags_name_versions(self, backend: Backend) -> None:
        """A tag opens its version, cannot name another one, and goes by `untag`."""
        store = fill(backend.create(), range(2))
        store.tag("paper-v1")
        fill(store, [2])
        store.tag("all", store.version)
        assert backend.open().tags == {"paper-v1": store.tags["paper-v1"], "all": store.version}
        assert_numbered(backend.open(version="paper-v1"), range(2))
        assert_numbered(backend.open(version="all"), range(3))
        with pytest.raises(el.errors.StoreExistsError, match="paper-v1"):
            store.tag("paper-v1")
        store.untag("paper-v1")
        store.tag("paper-v1")
        assert_numbered(backend.open(version="paper-v1"), range(3))
        for wrong in ("../escape", "a/b", "", ".hidden", "ä"):
            with pytest.raises(el.errors.InvalidArgumentError):
                store.tag(wrong)
        with pytest.raises(el.errors.VersionNotFoundError):
            store.tag("later", store.version + 1)
        for attempt in (lambda: backend.open(version="no-such-tag"), lambda: store.untag("no-such-tag")):
            with pytest.raises(el.errors.VersionNotFoundError, match="all"):
                attempt()

    # Annotations

    def test_annotations_of_steps(self, backend: Backend) -> None:
        """Values for some steps are a column of steps for every reader, through compaction and deletion."""
        store = fill(backend.create(), range(4), seal_every=2)
        ids = [episode.id for episode in store]
        frame = pl.DataFrame(
            {"episode_id": [ids[3], ids[1], ids[3]], "t": [2, 0, 0], "advantage": [0.5, -1.0, 2.0]}
        )
        store.annotate(frame, on=("episode_id", "t"))

        def check(found: Any) -> None:
            text = "select episode_id, t, advantage from steps where advantage is not null order by 1, 2"
            wanted = [(ids[1], 0, -1.0), (ids[3], 0, 2.0), (ids[3], 2, 0.5)]
            assert found.sql(text).fetchall() == wanted
            steps = found.steps.select("episode_id", "t", "advantage").collect().drop_nulls()
            assert sorted(steps.rows()) == wanted
            assert found.transitions.collect()["advantage"].sum() == 1.5
            values = found[ids[3]].step_annotations["advantage"]
            assert [None if value is None else float(value) for value in values][:3] == [2.0, None, 0.5]

        check(store)
        check(backend.open())
        store.compact()
        store.delete(pl.col("metadata.value") == 0)
        check(backend.open())
        assert store.verify().ok
        store.drop_annotation("advantage")
        assert "advantage" not in backend.open().steps.collect().columns
        assert_numbered(backend.open(), [1, 2, 3])

    # Other stores

    def test_merging_brings_episodes(self, backend: Backend) -> None:
        """Stores and views merged into one stand there under their ids, once; the sources stay."""
        first = fill(backend.create("first"), range(4), seal_every=2)
        second = fill(backend.create("second"), range(4, 9))
        kept = {name: backend.contents(name) for name in ("first", "second")}
        wanted = [20, 0, 1, 2, 3, 5, 6, 7]
        for name, link in (("linked", True), ("copied", False)):
            target = fill(backend.create(name), [20])
            report = el.merge([first, second.filter("length > 1")], target, link=link)
            assert report.episodes == 4 + 3
            found = backend.open(name)
            assert_numbered(found, wanted, engines=True)
            assert set(all_of(found)) > set(all_of(first))
            assert found.runs.collect().height == 3
            assert found.history()["operation"][0] == "merge"
            assert found.verify().ok
            assert el.merge([first, second.filter("length > 1")], target, link=link).episodes == 0
            assert_numbered(backend.open(name), wanted)
        assert {name: backend.contents(name) for name in kept} == kept

    def test_merging_outlives_its_sources(self, backend: Backend) -> None:
        """A merged store reads when the files of its sources are gone."""
        first = fill(backend.create("first"), range(4), seal_every=2)
        el.merge([first], backend.create())
        for file in backend.files("first"):
            backend.remove(file, "first")
        assert_numbered(backend.open(), range(4))
        assert backend.open().verify().ok

    def test_copies_are_stores_of_their_own(self, backend: Backend) -> None:
        """A copy of all episodes or some has their ids, runs, contents and card, and another identity."""
        store = fill(backend.create(**NUMBERED_SPACES, card={"author": "A"}), range(6), seal_every=3)
        options = backend.storage_options
        whole = store.copy(backend.at("whole"), storage_options=options)
        some = store.copy(backend.at("some"), "length > 2", storage_options=options)
        assert all_of(whole) == all_of(backend.open("whole")) == all_of(store)
        assert_numbered(backend.open("some"), [2, 3])
        assert len({store.id, whole.id, some.id}) == 3
        assert whole.card == {"author": "A"}
        assert whole.runs.collect().height == 1
        fill(backend.open("whole"), [6])
        assert_numbered(backend.open(), range(6))
        with pytest.raises(el.errors.StoreExistsError):
            store.copy(backend.at("whole"), storage_options=options)

    # Together

    def test_maintenance_beside_a_writer(self, backend: Backend) -> None:
        """Compactions, deletions and annotations while a writer seals: what was not deleted is there once."""
        store = fill(backend.create(), range(4), seal_every=1)
        done = threading.Event()

        def maintain() -> None:
            mine = backend.open()
            while not done.is_set():
                for change in (
                    mine.compact,
                    lambda: mine.delete('"metadata.value" = 1'),
                    lambda: mine.annotate(pl.DataFrame({"episode_id": [mine[0].id], "label": ["x"]})),
                ):
                    with contextlib.suppress(el.errors.ConcurrentCommitError):
                        change()

        with ThreadPoolExecutor(1) as pool:
            maintaining = pool.submit(maintain)
            try:
                fill(store, range(10, 15), seal_every=1)
            finally:
                done.set()
            maintaining.result(PATIENCE)
        found = backend.open()
        assert_numbered(found, [0, 2, 3, *range(10, 15)], ordered=False, engines=True)
        assert found.verify().ok


class DetailsConformance(Place):
    """What depends little on the place, since other tests of the same files and commits pass there."""

    def test_nested_spaces_come_back(self, backend: Backend) -> None:
        """Nests of Dict and Tuple with unusual keys come back exact."""
        env = Nested()
        store = backend.create(env=env)
        with store.record(Nested()) as recorder:
            play(recorder, seeds(5))
        (rollout,) = play(env, seeds(5))
        assert_recorded(store.refresh()[0], rollout, env)

    def test_history_names_every_version(self, backend: Backend) -> None:
        """History counts the versions down to 0 and the episodes and steps that each commit added."""
        store = fill(backend.create(), range(4), seal_every=2)
        history = store.history()
        assert history["version"].to_list() == list(range(store.version, -1, -1))
        assert history["episodes"].sum() == 4
        assert history["steps"].sum() == 1 + 2 + 3 + 4
        assert history["timestamp"].null_count() == 0

    def test_queries_join_group_and_filter(self, backend: Backend) -> None:
        """A query over several tables with a filter on steps gives what follows from the episodes."""
        store = fill(backend.create(), range(8), seal_every=3)
        found = store.sql(
            "select e.end_reason, count(*), sum(s.reward) from transitions s "
            "join episodes e using (episode_id) where s.t >= 1 and e.episode_return > 3 group by 1 order by 1"
        ).fetchall()
        wanted = {"terminated": [0, 0.0], "truncated": [0, 0.0]}
        for value in range(8):
            length = value % 4 + 1
            if numbered_return(value, length) > 3:
                for t in range(1, length):
                    entry = wanted["truncated" if value % 2 else "terminated"]
                    entry[0] += 1
                    entry[1] += value + t / 8
        assert found == [(reason, *numbers) for reason, numbers in sorted(wanted.items())]

    def test_wrong_questions_are_named(self, backend: Backend) -> None:
        """Unknown columns, positions and ids and bad SQL are errors of our tree that say what there is."""
        store = fill(backend.create(), range(2))
        with pytest.raises(el.errors.QueryError, match="episode_return"):
            store.filter("no_such_column > 1")
        with pytest.raises(el.errors.QueryError, match="episode_return"):
            store.filter(pl.col("no_such_column") > 1)
        with pytest.raises(el.errors.QueryError):
            store.sql("select from where")
        with pytest.raises(el.errors.EpisodeNotFoundError):
            store[2]
        with pytest.raises(el.errors.EpisodeNotFoundError, match="numbered"):
            store["nobody/000000"]

    def test_a_wrong_value_costs_no_episode(self, backend: Backend) -> None:
        """A value that does not fit is refused; what came before it is kept, and the run goes on."""
        store = backend.create()
        with store.writer() as writer:
            write_numbered(writer, 0, 1)
            episode = writer.begin(np.zeros(2, np.float32))
            episode.append(1, 0.5, np.ones(2, np.float32))
            with pytest.raises(el.errors.SpaceMismatchError):
                episode.append(1, 0.5, np.ones(3, np.float32))
            episode.end()
            write_numbered(writer, 1, 2)
        assert [(found.length, found.end_reason) for found in store.refresh()] == [
            (1, "terminated"),
            (1, "cut"),
            (2, "truncated"),
        ]

    def test_a_newer_format_is_refused(self, backend: Backend) -> None:
        """A manifest of a later format is refused by its number."""
        backend.create()
        manifest = json.loads(backend.read("store.json"))
        manifest["format"] = 99
        backend.write("store.json", json.dumps(manifest).encode())
        with pytest.raises(el.errors.FormatVersionError, match="99"):
            backend.open()

    def test_seal_makes_episodes_visible_while_the_run_goes_on(self, backend: Backend) -> None:
        """After `seal` a reader sees the finished episodes; the running one is not seen before its end."""
        store = backend.create()
        with store.writer() as writer:
            write_numbered(writer, 0, 1)
            episode = writer.begin(np.zeros(2, np.float32))
            episode.append(1, 1.0, np.ones(2, np.float32))
            writer.seal()
            assert_numbered(backend.open(), [0])
            episode.append(1, 1.0, np.ones(2, np.float32), terminated=True)
            episode.end()
        assert [found.length for found in backend.open()] == [1, 2]

    def test_a_damaged_manifest_is_named(self, backend: Backend) -> None:
        """A `store.json` that is no manifest is a CorruptStoreError that names it."""
        backend.create()
        for text in (b"", b"{", b"[]", b"\xff\xfe", b"{}" * 3):
            backend.write("store.json", text)
            with pytest.raises(el.errors.CorruptStoreError, match=r"store\.json"):
                backend.open()

    def test_compaction_sorts_by_a_column(self, backend: Backend) -> None:
        """Compaction by a column of episodes puts them in its order; contents stay."""
        store = fill(backend.create(), [3, 8, 1, 6, 2], seal_every=2)
        before = all_of(store)
        store.compact(order_by="episode_return", descending=True)
        returns = [episode.episode_return for episode in store]
        assert returns == sorted(returns, reverse=True)
        assert all_of(backend.open()) == before
        store.compact(order_by="metadata.value")
        assert_numbered(backend.open(), [1, 2, 3, 6, 8])
        with pytest.raises(el.errors.InvalidArgumentError, match="no_such"):
            store.compact(order_by="no_such")

    def test_verification_finds_nothing_wrong(self, backend: Backend) -> None:
        """A store that was recorded, compacted, annotated, deleted from and vacuumed verifies."""
        store = fill(backend.create(), range(6), seal_every=2)
        store.annotate(pl.DataFrame({"episode_id": [store[0].id], "label": ["good"]}))
        store.compact()
        store.delete("length = 1")
        fill(store, [7])
        store.vacuum(timedelta(0))
        report = backend.open().verify()
        assert report.ok
        assert report.faults == ()
        assert report.episodes == 5

    def test_annotations_of_episodes(self, backend: Backend) -> None:
        """Labels given later are columns for every reader; rows left out are NULL; a name drops."""
        store = fill(backend.create(), range(4), seal_every=2)
        ids, old = [episode.id for episode in store], store.version
        files = [file for file in backend.files() if file.startswith("steps/") and file.endswith(".parquet")]
        store.annotate(
            pl.DataFrame({"episode_id": [ids[1], ids[3]], "label": ["a", "b"], "score": [1.5, 2.5]})
        )
        store.annotate(pl.DataFrame({"episode_id": [ids[3], ids[0]], "label": ["c", "d"]}))
        for found in (store, backend.open()):
            assert found.episodes.collect()["label"].to_list() == ["d", "a", None, "c"]
            assert found.sql("select label, score from episodes order by episode_id").fetchall() == [
                ("d", None),
                ("a", 1.5),
                (None, None),
                ("c", 2.5),
            ]
            assert (
                values_of(found.filter("label = 'c'")) == values_of(found.filter(pl.col("score") > 2)) == [3]
            )
            assert [episode.annotations["label"] for episode in found] == ["d", "a", None, "c"]
            assert sorted(found.annotations["name"]) == ["label", "score"]
        assert set(files) <= set(backend.files())
        assert_numbered(store, range(4))
        assert "label" not in backend.open(version=old).episodes.collect().columns
        fill(store, [4])
        assert backend.open().episodes.collect()["label"].to_list() == ["d", "a", None, "c", None]
        store.drop_annotation("label")
        assert "label" not in backend.open().episodes.collect().columns
        assert backend.open().annotations["name"].to_list() == ["score"]
        with pytest.raises(el.errors.InvalidArgumentError, match="score"):
            store.drop_annotation("label")

    def test_wrong_annotations_change_nothing(self, backend: Backend) -> None:
        """Unknown or repeated keys, missing key columns and names that are taken are refused."""
        store = fill(backend.create(), range(2))
        before, one = store.version, store[0].id
        frames: list[tuple[dict[str, list[Any]], Any]] = [
            ({"episode_id": ["nobody/000000"], "label": ["a"]}, "episode_id"),
            ({"episode_id": [one, one], "label": ["a", "b"]}, "episode_id"),
            ({"id": [one], "label": ["a"]}, "episode_id"),
            ({"episode_id": [one], "length": [3]}, "episode_id"),
            ({"episode_id": [one], "t": [999], "label": ["a"]}, ("episode_id", "t")),
            ({"episode_id": [one], "t": [0], "reward": [1.0]}, ("episode_id", "t")),
        ]
        for columns, on in frames:
            with pytest.raises(el.errors.InvalidArgumentError):
                store.annotate(pl.DataFrame(columns), on=on)
        assert backend.open().version == before

    def test_splits_stay_when_episodes_are_added(self, backend: Backend) -> None:
        """A split is the same whenever it is made, and an episode keeps its part when others are added."""
        store = fill(backend.create(), range(12))
        store.split({"train": 0.5, "val": 0.5}, seed=1)
        first = dict(store.episodes.select("episode_id", "split").collect().iter_rows())
        assert set(first.values()) == {"train", "val"}
        fill(store, range(12, 16))
        store.split({"train": 0.5, "val": 0.5}, seed=1)
        second = dict(backend.open().episodes.select("episode_id", "split").collect().iter_rows())
        assert first.items() <= second.items()
        assert None not in second.values()
        assert len(backend.open().filter("split = 'train'")) == sum(v == "train" for v in second.values())

    def test_merging_refuses_other_spaces(self, backend: Backend) -> None:
        """A source with other spaces is refused, and nothing is changed."""
        other = backend.create("other", env=SmallEnv())
        with other.record(SmallEnv()) as recorder:
            play(recorder, seeds(0))
        target = fill(backend.create(), [1])
        before = backend.contents()
        with pytest.raises(el.errors.SpaceMismatchError):
            el.merge([other.refresh()], target)
        assert backend.contents() == before
