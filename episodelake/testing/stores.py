"""`StoreContract`: the rules that stores keep in every kind of place.

`test_each_operation_keeps_the_model` and `test_any_operations_keep_the_model` drive a `StoreMachine`. The
other rules are those that depend on the place: creation, processes and threads, replaced stores.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from gymnasium import spaces

from .. import EpisodelakeError, EpisodeStore, errors, merge
from .adapters import case
from .backends import Backend
from .store_model import SPACES, ModelEpisode, Shown, check_raw, kill, label_frame, mark_frame

if TYPE_CHECKING:
    from .store_machine import StoreMachine

#: Seconds until a thread or process is given up.
_PATIENCE = 280.0
_NOW = timedelta(0)
_DYING = """
import sys
from episodelake import open
from episodelake.testing.store_model import ModelEpisode
writer = open(sys.argv[1], storage_options=eval(sys.argv[2])).writer(run="dying", seal_seconds=1e6)
for number in range(3):
    model = ModelEpisode(number, 2, ended=(number < 2, False))
    handle = model.begin(writer)
    model.append(handle)
    if number < 2:
        handle.end()
writer.flush()
print("flushed", flush=True)
sys.stdin.readline()
"""


def fill(store: EpisodeStore, count: int, first: int = 0, *, seal_each: bool = False) -> Shown:
    """Record numbered episodes of 1 to 4 steps, and refresh the store; return what was recorded."""
    models = [ModelEpisode(n, n % 4 + 1, ended=(True, False)) for n in range(first, first + count)]
    with store.writer(run="filled") as writer:
        for model in models:
            model.write(writer)
            if seal_each:
                writer.seal()
    store.refresh()
    return Shown(models)


class StoreContract:
    """Rules of stores in a kind of place. Subclass it in a test module and set `backend`.

        class TestBucket(StoreContract):
            backend = Backend("s3://bucket/tests", {"aws_endpoint": "http://127.0.0.1:9000", ...})

    Attributes:
        backend: the place; each test writes below a new folder of it.
        examples, steps: how many sequences of operations `test_any_operations_keep_the_model` runs, and how
            long each is.
        derandomized: whether these are the same in every run.
    """

    backend: ClassVar[Backend]
    examples: ClassVar[int] = 3
    steps: ClassVar[int] = 12
    derandomized: ClassVar[bool] = True

    @pytest.fixture
    def place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
        """Return an empty place; journals of remote stores go to a folder of the test."""
        monkeypatch.setenv("EPISODELAKE_SPOOL", str(tmp_path / "spool"))
        return self.backend.new()

    # The model

    def test_each_operation_keeps_the_model(self, place: Backend) -> None:
        """Every operation, once or twice, in an order in which each has something to do."""
        from .store_machine import StoreMachine

        machine = StoreMachine(place)
        for number, operation in enumerate(_tour(machine)):
            with case(f"operation {number}"):
                operation()
                machine.check()
        machine.teardown()

    def test_any_operations_keep_the_model(self, place: Backend) -> None:
        """Operations in any order; see `StoreMachine`."""
        from hypothesis import HealthCheck, settings
        from hypothesis.stateful import run_state_machine_as_test

        from .store_machine import StoreMachine

        factory: Any = lambda: StoreMachine(place.new())  # noqa: E731
        run_state_machine_as_test(
            factory,
            settings=settings(
                max_examples=self.examples,
                stateful_step_count=self.steps,
                derandomize=self.derandomized,
                database=None,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
                print_blob=True,
            ),
        )

    # Creation

    def test_a_created_store_opens_again(self, place: Backend) -> None:
        """Identity, spaces, reward shape and card come back; another creation there changes nothing."""
        action = spaces.Discrete(3)
        arguments = {"observation_space": spaces.Dict({"a": spaces.Text(4)}), "action_space": action}
        made = place.create(**arguments, reward_shape=(2,), card={"c": ["é", {"d": None}]})
        store = place.open()
        assert (store.id, store.url, store.version) == (made.id, made.url, made.version)
        assert (store.observation_space, store.action_space) == tuple(arguments.values())
        assert (store.reward_shape, store.card, len(store)) == ((2,), {"c": ["é", {"d": None}]}, 0)
        assert store.sql("select count(*) from steps").fetchall() == [(0,)]
        before = place.contents()
        with pytest.raises(errors.StoreExistsError):
            place.create(**arguments)
        with pytest.raises(errors.InvalidArgumentError):
            store.card = {"object": object()}
        assert place.contents() == before

    def test_only_a_store_opens_and_only_an_empty_place_becomes_one(self, place: Backend) -> None:
        """A missing store is named; other files stay; a creation that was cut short is done again."""
        for attempt in (place.open, place.recover):
            with pytest.raises(errors.StoreNotFoundError) as caught:
                attempt()
            assert isinstance(caught.value, FileNotFoundError)
            assert place.at().rpartition("://")[2] in str(caught.value)
        assert place.files() == []
        place.write("notes.txt", b"mine", "other")
        with pytest.raises(errors.StoreExistsError, match=r"notes\.txt"):
            place.create("other", **SPACES)
        assert place.files("other") == ["notes.txt"]
        place.create(**SPACES)
        place.remove("store.json")
        with pytest.raises(errors.StoreNotFoundError):
            place.open()
        fill(place.create(**SPACES), 2).check(place.open())

    def test_one_of_several_creators_wins(self, place: Backend) -> None:
        """Of several creators at the same moment exactly one makes the store; the others get an error."""
        start = threading.Barrier(4)

        def attempt(_: int) -> str | None:
            start.wait(_PATIENCE)
            try:
                return place.create(**SPACES).id
            except errors.StoreExistsError:
                return None

        with ThreadPoolExecutor(4) as pool:
            assert [each for each in pool.map(attempt, range(4)) if each] == [place.open().id]

    # Recording

    def test_writers_and_maintenance_of_one_moment_all_get_through(self, place: Backend) -> None:
        """Writers that seal beside compaction, deletion, annotation and vacuum lose and repeat nothing."""
        store = place.create(**SPACES)
        kept = fill(store, 4, seal_each=True)
        done = threading.Event()

        def maintain() -> None:
            mine = place.open()
            changes: list[Callable[[], object]] = [
                mine.compact,
                lambda: mine.delete("seed = 1"),
                lambda: mine.annotate(label_frame("note", {mine[0].id: "x"})),
                lambda: mine.vacuum(_NOW),
            ]
            while not done.is_set():
                for change in changes:
                    with contextlib.suppress(errors.ConcurrentCommitError):
                        change()

        with ThreadPoolExecutor(3) as pool:
            maintaining = pool.submit(maintain)
            try:
                firsts = (10, 20)
                written = list(pool.map(lambda first: fill(place.open(), 4, first, seal_each=True), firsts))
            finally:
                done.set()
            maintaining.result(_PATIENCE)
        models = {
            each.episode_id: each for each in [*kept.episodes, *written[0].episodes, *written[1].episodes]
        }
        store = place.open()
        assert sorted(each.seed or 0 for each in store) == [0, 2, 3, *range(10, 14), *range(20, 24)]
        for episode in store:
            models[episode.id].check(episode)
        check_raw(place, Shown([models[episode.id] for episode in store]))
        assert store.verify().faults == ()

    def test_a_killed_process_loses_nothing(self, place: Backend) -> None:
        """Its episodes come in once, by `recover` or the next writer; a live writer is left alone."""
        if not place.shared:
            pytest.skip("other processes do not see this place")
        for by_writer in (False, True):
            name = f"store{by_writer}"
            store = place.create(name, **SPACES)
            with _process(_DYING, place.at(name), repr(place.storage_options)) as child:
                assert child.stdout is not None and child.stdout.readline() == b"flushed\n"
                assert place.recover(name) == []
                child.send_signal(signal.SIGKILL)
                child.wait(_PATIENCE)
            if by_writer:
                store.writer().close()
            else:
                assert [(each.episodes, each.interrupted) for each in place.recover(name)] == [(3, 1)]
            assert [each.end_reason for each in store.refresh()] == ["terminated"] * 2 + ["interrupted"]
            assert [each.seed for each in store] == [0, 1, 2]
            assert place.recover(name) == [] and store.verify().faults == ()

    # Replacement

    def test_no_operation_changes_another_store(self, place: Backend) -> None:
        """Objects and writers of a store that another one has replaced raise, and change nothing."""
        store = place.create(**SPACES)
        fill(store, 2, seal_each=True)
        elsewhere = place.create("elsewhere", **SPACES)
        fill(elsewhere, 1, 7)
        writer = store.writer(run="old")
        ModelEpisode(9, 1).write(writer)
        first = store[0].id
        operations: dict[str, Callable[[], object]] = {
            "compact": store.compact,
            "delete": lambda: store.delete("length > 1"),
            "annotate": lambda: store.annotate(label_frame("good", {first: True})),
            "annotate steps": lambda: store.annotate(
                mark_frame("gain", {(first, 0): 0.5}), ("episode_id", "t")
            ),
            "drop": lambda: store.drop_annotation("good"),
            "merge": lambda: merge([elsewhere], store),
            "tag": lambda: store.tag("tagged"),
            "untag": lambda: store.untag("kept"),
            "card": lambda: setattr(store, "card", {"title": "old"}),
            "vacuum": lambda: store.vacuum(_NOW),
            "repair": lambda: store.verify(repair=True),
            "writer": store.writer,
            "refresh": store.refresh,
            "seal": writer.seal,
            "close": writer.close,
        }
        place.wipe()
        new = place.create(**SPACES)
        shown = fill(new, 2, 10, seal_each=True)
        new.tag("kept")
        there = place.contents()
        for name, operation in operations.items():
            with case(name), pytest.raises(errors.StoreNotFoundError, match="no longer holds the store"):
                operation()
        assert place.contents() == there
        shown.check(place.open())
        with contextlib.suppress(EpisodelakeError):
            kill(writer)


def _tour(machine: StoreMachine) -> list[Callable[[], object]]:
    """Return operations in an order in which each has something to do."""
    return [
        lambda: machine.record(1, 9, 3, float("nan"), {"x": "text", "late": [1]}, (False, True)),
        lambda: machine.record(0, 10, 2, 0.5, {"x": None, "y": 2.5}, (False, False), arrays=True),
        machine.remember,
        lambda: machine.leave_open(1, 11, 2),
        lambda: machine.seal(1),
        lambda: machine.label(("good", [True, None, False]), 0, old=True),
        lambda: machine.mark(("gain", [0.5, -1.0, None]), 1, old=True),
        lambda: machine.mark(("word", ["x", ""]), 9),
        # What these leave out keeps what it has.
        lambda: machine.label(("good", [False]), 1),
        lambda: machine.mark(("gain", [-1.0, None]), 4),
        lambda: machine.tag("one"),
        machine.remember,
        lambda: machine.compact(1 << 28, old=True),
        lambda: machine.look_back(0),
        lambda: machine.delete({2}, old=True),
        lambda: machine.kill_and_recover(1, by_writer=False),
        lambda: machine.leave_open(0, 12, 1),
        lambda: machine.leave_open(0, 12, 2),
        lambda: machine.record(0, 13, 2, 0.0, {"x": 2**53 + 1}),
        lambda: machine.kill_and_recover(0, by_writer=True),
        lambda: machine.tag("two"),
        lambda: machine.sort("episode_return", descending=True),
        lambda: machine.view("episode_return", True, 3, 2),
        lambda: machine.merge(3, link=True),
        lambda: machine.record_elsewhere([14, 15, 17], {"late": "text"}, labelled=True),
        lambda: machine.merge(link=False),
        lambda: machine.drop("good", renamed=True),
        lambda: machine.drop("gain", renamed=True),
        lambda: machine.label(("good", [True]), 3),
        lambda: machine.split(0),
        lambda: machine.vacuum(dry=True),
        machine.vacuum,
        lambda: machine.look_back(1),
        lambda: machine.tag("one"),
        lambda: machine.drop("word"),
        lambda: machine.delete({3}),
        lambda: machine.copy(2, link=True),
        machine.copy,
        lambda: machine.untag("two"),
        lambda: machine.close(0),
        lambda: machine.delete({1, 2, 3, 4}),
        machine.vacuum,
        lambda: machine.merge(link=True),
        lambda: machine.record(1, 18, 1, 0.0, {"y": {"a": 1}}),
        lambda: machine.close(1),
        lambda: machine.compact(1 << 28),
        lambda: machine.record(1, 19, 2),
        lambda: machine.close(1),
        # Two segments become one.
        lambda: machine.compact(1 << 28),
    ]


@contextlib.contextmanager
def _process(script: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a script in another process, which ends with the block."""
    child = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
    )
    with child:
        try:
            yield child
        finally:
            child.kill()
