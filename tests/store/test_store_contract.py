"""`StoreContract` for every kind of place that a store can lie in.

Checkpoints are frequent here and logs are cleaned at once, so that few operations reach both.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import ClassVar

import numpy as np
import polars as pl
import pytest
from gymnasium import spaces
from hypothesis import settings

import episodelake as el
from episodelake.store.delta import checkpoints
from episodelake.store.delta import table as delta_table
from episodelake.testing import Backend, StoreContract
from episodelake.testing.adapters import case
from episodelake.testing.store_model import SPACES, label_frame, mark_frame
from episodelake.testing.stores import fill
from episodelake.testing.values import same
from object_server import new_url, shared_server

_PROFILE = settings.get_current_profile_name()
_LONG = _PROFILE == "long"
#: Sequences and their length: of a local store, and of others, which share most of its code.
_LOCAL, _OTHERS = {
    "ordinary": ((2, 10), (1, 6)),
    "full": ((15, 25), (5, 15)),
    "long": ((150, 40), (30, 30)),
}[_PROFILE]


@pytest.fixture(autouse=True)
def _short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_table, "_CHECKPOINT_EVERY", 5)
    monkeypatch.setattr(delta_table, "_REMOTE_CHECKPOINT_EVERY", 5)
    monkeypatch.setattr(checkpoints, "_RETENTION_SECONDS", -3600.0)


class PlaceRules(StoreContract):
    """The contract, and rules of the library alone: messages, wrong arguments, damage."""

    @pytest.mark.sample(1)
    def test_an_episode_of_many_row_groups_comes_back(self, place: Backend) -> None:
        """An episode longer than a segment is read whole, also after a compaction among short ones."""
        length = 70_000
        store = place.create(
            observation_space=spaces.Box(0, 1e6, (2,), np.float64), action_space=SPACES["action_space"]
        )
        seen = np.stack([np.full(length + 1, 3.0), np.arange(length + 1.0)], 1)
        with store.writer(segment_bytes=1 << 18) as writer:
            for count in (1, length, 2):
                writer.write_episode(
                    observations=seen[: count + 1],
                    actions=np.arange(count) % 10,
                    rewards=np.ones(count),
                    terminations=True,
                    truncations=False,
                )
        for _ in range(2):
            store.refresh()
            assert [each.length for each in store] == [1, length, 2]
            assert same(store[1].observations, seen)
            late = "select count(*), sum(reward) from transitions where t > 2"
            assert store.sql(late).fetchall() == [(length - 3, length - 3.0)]
            store.compact()
        store.delete("length < 3")
        assert [each.length for each in store] == [length] and same(store[0].observations, seen)

    @pytest.mark.sample(1)
    def test_history_names_every_version(self, place: Backend) -> None:
        """History counts the versions down to 0, with the operation and what each added."""
        store = place.create(**SPACES)
        shown = fill(store, 4, seal_each=True)
        store.annotate(label_frame("good", {shown.ids[0]: True}))
        store.annotate(mark_frame("gain", {(shown.ids[0], 0): 0.5}), ("episode_id", "t"))
        store.drop_annotation("good")
        store.delete("length = 4")
        store.compact()
        history = store.history()
        assert history["version"].to_list() == list(range(store.version, -1, -1))
        assert history["operation"].to_list()[:5] == ["compact", "delete", "drop", "annotate", "annotate"]
        assert (history["episodes"].sum(), history["steps"].sum()) == (3, 1 + 2 + 3)
        assert history["timestamp"].null_count() == 0
        assert place.open(version=0).history().height == 1

    @pytest.mark.sample(1)
    def test_a_damaged_file_is_named(self, place: Backend) -> None:
        """A segment that is gone, cut, overwritten or changed is named by what needs it."""
        fill(place.create(**SPACES), 3)
        whole = place.contents()
        for table in ("steps", "episodes"):
            (file,) = [
                each for each in whole if each.startswith(f"{table}/filled") and each.endswith(".parquet")
            ]
            data = whole[file]
            # Some of these bytes are of pages, whatever the headers between them are.
            middle = len(data) // 3
            changed = bytes(each ^ 255 for each in data[middle : middle + 64])
            flipped = data[:middle] + changed + data[middle + 64 :]
            for damage, other in {
                "gone": None,
                "cut": data[:-20],
                "other": b"x" * len(data),
                "changed": flipped,
            }.items():
                with case(f"{table}, {damage}"):
                    if other is None:
                        place.remove(file)
                    else:
                        place.write(file, other)
                    store = place.open()
                    faults = store.verify().faults
                    assert file in {fault.file for fault in faults} and all(fault.message for fault in faults)
                    with pytest.raises(el.errors.CorruptStoreError, match=file.rpartition("/")[2]):
                        _read_all(store)
                    with pytest.raises(el.errors.CorruptStoreError, match=file.rpartition("/")[2]):
                        store.compact(order_by="length", descending=True)
                    assert place.open().version == store.version
                    place.write(file, data)
        for file in whole:
            if file.startswith("episodes/_delta_log"):
                place.remove(file)
        with pytest.raises(el.errors.CorruptStoreError, match="episodes"):
            place.open()

    @pytest.mark.sample(1)
    def test_wrong_arguments_are_named_and_change_nothing(self, place: Backend) -> None:
        """Each operation refuses what it cannot do, by name, before anything is written."""
        store = place.create(**SPACES)
        shown = fill(store, 2)
        store.tag("all")
        other = place.create(
            "other", observation_space=SPACES["action_space"], action_space=SPACES["action_space"]
        )
        before, one = place.contents(), shown.ids[0]
        wrong: list[tuple[type[el.EpisodelakeError], str, Callable[[], object]]] = [
            (el.errors.QueryError, "episode_return", lambda: store.filter("no_such > 1")),
            (el.errors.QueryError, "episode_return", lambda: store.filter(pl.col("no_such") > 1)),
            (el.errors.QueryError, "", lambda: store.sql("select from where")),
            (el.errors.EpisodeNotFoundError, "", lambda: store[2]),
            (el.errors.EpisodeNotFoundError, "filled", lambda: store["none/000000"]),
            (el.errors.QueryError, "no_such", lambda: store.delete("no_such = 1")),
            (el.errors.QueryError, "", lambda: store.delete("length")),
            (el.errors.InvalidArgumentError, "no_such", lambda: store.compact(order_by="no_such")),
            (el.errors.InvalidArgumentError, "segment_bytes", lambda: store.compact(segment_bytes=0)),
            (el.errors.InvalidArgumentError, "older_than", lambda: store.vacuum(timedelta(-1))),
            (el.errors.InvalidArgumentError, "good", lambda: store.drop_annotation("good")),
            (
                el.errors.InvalidArgumentError,
                "none",
                lambda: store.annotate(label_frame("good", {"none/0": True})),
            ),
            (
                el.errors.InvalidArgumentError,
                "more than once",
                lambda: store.annotate(pl.DataFrame({"episode_id": [one, one], "label": ["a", "b"]})),
            ),
            (
                el.errors.InvalidArgumentError,
                "episode_id",
                lambda: store.annotate(pl.DataFrame({"id": [one]})),
            ),
            (
                el.errors.InvalidArgumentError,
                "length",
                lambda: store.annotate(pl.DataFrame({"episode_id": [one], "length": [3]})),
            ),
            (
                el.errors.InvalidArgumentError,
                "999",
                lambda: store.annotate(mark_frame("gain", {(one, 999): 0.5}), ("episode_id", "t")),
            ),
            (el.errors.SpaceMismatchError, "observation", lambda: el.merge([other], store)),
            (
                el.errors.StoreExistsError,
                "",
                lambda: store.copy(place.at("other"), storage_options=place.storage_options),
            ),
            (el.errors.VersionNotFoundError, "later", lambda: store.untag("later")),
            (el.errors.VersionNotFoundError, "", lambda: store.tag("later", store.version + 1)),
            *(
                (el.errors.InvalidArgumentError, "", lambda name=name: store.tag(name))
                for name in ("../escape", "a/b", "", ".hidden", "ä", "7")
            ),
            *(
                (el.errors.VersionNotFoundError, "", lambda version=version: place.open(version=version))
                for version in (store.version + 1, -1, 10**9, "no-such-tag")
            ),
        ]
        for number, (error, match, attempt) in enumerate(wrong):
            with case(f"call {number}"), pytest.raises(error, match=match or None):
                attempt()
        assert place.contents() == before
        shown.check(place.open())


def _read_all(store: el.EpisodeStore) -> None:
    for each in store:
        each.frame()
        assert each.metadata


class TestLocal(PlaceRules):
    """A folder of the file system."""

    examples, steps = _LOCAL
    derandomized = not _LONG

    @pytest.fixture
    def place(self, tmp_path_factory: pytest.TempPathFactory) -> Backend:
        """An empty folder."""
        return Backend(str(tmp_path_factory.mktemp("stores")))


class OtherPlaceRules(PlaceRules):
    """The rules for a place that shares most of its code with a folder."""

    examples, steps = _OTHERS
    derandomized = not _LONG
    further_rules: ClassVar = ("test_each_operation_keeps_the_model",)


class TestMemory(OtherPlaceRules):
    """A folder in memory."""

    backend = Backend("memory://contract", shared=False)


class TestObjects(OtherPlaceRules):
    """A bucket of an S3 server; these rules take many requests."""

    further_rules: ClassVar = (
        *OtherPlaceRules.further_rules,
        "test_writers_and_maintenance_of_one_moment_all_get_through",
        "test_no_operation_changes_another_store",
    )

    @pytest.fixture
    def place(self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Backend:
        """A prefix that no other test uses."""
        monkeypatch.setenv("EPISODELAKE_SPOOL", str(tmp_path_factory.mktemp("spool")))
        return Backend(new_url(), shared_server().storage_options())
