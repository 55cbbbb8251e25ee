"""Two segments of a run are written at a time; they are committed in order, each once and whole."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import gymnasium
import numpy as np
import pytest

import episodelake as el
from episodelake.store.segments import seal
from episodelake.writers.session import seal_queue
from waiting import PATIENCE, wait_until

SPACE = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
EARLY = {"segment_bytes": 1, "flush_seconds": 1e6, "seal_seconds": 1e6}
LENGTH = 70


def written(number: int) -> dict[str, Any]:
    """Arrays of an episode that its number tells."""
    return {
        "observations": np.full((LENGTH + 1, 3), float(number)),
        "actions": np.full((LENGTH, 3), number / 2),
        "rewards": np.full(LENGTH, float(number)),
        "terminations": True,
        "truncations": False,
    }


@pytest.fixture
def store(tmp_path: Path) -> el.EpisodeStore:
    """An empty store."""
    return el.create(tmp_path / "store", observation_space=SPACE, action_space=SPACE)


@contextlib.contextmanager
def first_seal_waits(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> Iterator[None]:
    """The first seal waits for the end of the block, then goes on or fails once."""
    go_on, true_seal, errors = threading.Event(), seal_queue.seal_segment, [error] if error else []

    def late(*arguments: Any) -> None:
        assert go_on.wait(PATIENCE)
        if errors:
            raise errors.pop()
        true_seal(*arguments)

    monkeypatch.setattr(seal_queue, "seal_segment", late)
    try:
        yield
    finally:
        go_on.set()


@pytest.fixture
def segments(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The segments whose steps files are complete, once for each time that they were written."""
    true_write, numbers = seal._write_steps, []

    def write(tables: Any, schema: Any, job: seal.Seal, **options: Any) -> Any:
        written = true_write(tables, schema, job, **options)
        numbers.append(job.segment)
        return written

    monkeypatch.setattr(seal, "_write_steps", write)
    return numbers


def assert_whole(store: el.EpisodeStore, count: int) -> None:
    """The store has the episodes once and in order, for us and for DuckDB on the bare files."""
    store = store.refresh()
    assert [episode.rewards.tolist() for episode in store] == [[float(k)] * LENGTH for k in range(count)]
    assert all((episode.observations == k).all() for k, episode in enumerate(store))
    listed = sorted({f"{store.path}/steps/{name}" for name in store.episodes.collect()["segment"]})
    columns = "count(*), min(reward), max(observation[3])"
    rows = duckdb.connect().execute(f"select {columns} from read_parquet({listed}) group by episode_id")
    assert sorted(rows.fetchall()) == [(LENGTH + 1, float(k), float(k)) for k in range(count)]
    assert store.verify().ok


@pytest.mark.parametrize("error", [None, el.errors.StoreAccessError("full")])
def test_the_next_segment_is_written_while_one_waits(error, store, segments, monkeypatch):
    """Its file is there before the first commit, which it follows, and is not written again."""
    writer = store.writer(**EARLY)
    with first_seal_waits(monkeypatch, error):
        writer.write_episode(**written(0))
        writer.write_episode(**written(1))
        wait_until(lambda: 1 in segments, "the second segment")
        assert not len(store.refresh())
    with contextlib.suppress(el.errors.StoreAccessError):
        writer.close()
    writer.close()
    assert sorted(segments) == [0, 1]
    assert_whole(store, 2)


@pytest.mark.parametrize("error", [OSError(28, "full"), MemoryError(), KeyboardInterrupt()])
def test_an_error_ahead_is_left_to_the_seal(error, store, monkeypatch):
    """A file that could not be written before its turn is written then; no error is raised."""
    true_write, met = seal._write_steps, threading.Event()

    def write(*arguments: Any, **options: Any) -> Any:
        if threading.current_thread().name.startswith("episodelake segments"):
            met.set()
            raise error
        return true_write(*arguments, **options)

    monkeypatch.setattr(seal, "_write_steps", write)
    with store.writer(**EARLY) as writer:
        with first_seal_waits(monkeypatch):
            for number in range(2):
                writer.write_episode(**written(number))
            assert met.wait(PATIENCE)
        for number in range(2, 5):
            writer.write_episode(**written(number))
    assert_whole(store, 5)


def test_columns_of_segments_that_are_written_together(store, segments, monkeypatch):
    """The second segment is written before the first has added its columns, and with others."""
    notes = [
        {"note": np.full(LENGTH + 1, 1)},
        {"note": np.full(LENGTH + 1, 0.5), "text": ["a"] * (LENGTH + 1)},
    ]
    with store.writer(**EARLY) as writer, first_seal_waits(monkeypatch):
        for number, note in enumerate(notes):
            writer.write_episode(**written(number), infos=note)
        wait_until(lambda: 1 in segments, "the second segment")
    assert_whole(store, 2)
    first, second = store.refresh()
    assert first.infos[0] == {"note": 1} and second.infos[LENGTH] == {"note": 0.5, "text": "a"}
    assert store.refresh().sql('select sum("info.note") from steps').fetchall() == [((LENGTH + 1) * 1.5,)]


KILLED = """
import os, sys, threading
sys.path[:0] = sys.argv[2:]
import episodelake as el
import test_seals_ahead as ahead
from waiting import wait_until
from episodelake.writers.session import seal_queue
seal_queue.seal_segment = lambda *arguments: threading.Event().wait()
store = el.open(sys.argv[1])
writer = store.writer(**ahead.EARLY)
writer.write_episode(**ahead.written(0))
writer.write_episode(**ahead.written(1))
wait_until((store.path / "steps" / f"{writer.run_id}-000001.parquet").exists, "the second segment")
writer.flush()
os._exit(0)
"""


@pytest.mark.further
def test_a_kill_before_the_commits(store, tmp_path):
    """The journal has the episodes of both segments; the file that was written ahead stays unlisted."""
    command = [sys.executable, "-c", KILLED, str(store.path), *map(str, Path(__file__).parents[:2])]
    subprocess.run(command, check=True, timeout=PATIENCE, env={**os.environ})
    assert el.recover(store.path)
    assert_whole(store, 2)
