"""Ctrl-C at any line of the library loses no finished episode, in no writer and recorder.

`interrupted_writers` strikes the lines. The ordinary suite strikes some of them; `make test-crashes` strikes
many more, and all of them with EPISODELAKE_INTERRUPTS=all.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import episodelake as el
import independent_journal
import interrupted_writers as parts
from episodelake.writers.session import journal as run_claim
from episodelake.writers.session import seal_queue, session
from waiting import PATIENCE, background_threads, wait_until

AFTER = ("close", "flush", "exit")
FOREGROUND = (
    *("steps", "arrays", "bulk", "recorder", "vector", "logged_vector", "pool", "parallel", "aec"),
    *("discarding", "discarding_vector", "reopening"),
)
COLLECTING = ("collect", "collect_vector", "collect_pool", "collect_agents")


class Struck:
    """A process that forks a child for every strike."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._process = subprocess.Popen(
            [sys.executable, parts.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, scenario: str, **order: Any) -> dict[str, Any]:
        """Run a scenario, struck or not."""
        assert self._process.stdin is not None and self._process.stdout is not None
        order |= {"scenario": scenario, "folder": self._folder}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def struck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Struck]:
    """One for all tests of this file."""
    process = Struck(tmp_path_factory.mktemp("struck"))
    yield process
    process.close()


def strike(
    struck: Struck,
    scenario: str,
    stride: int,
    start: int,
    visits: int,
    only: Collection[tuple[str, int]] | None = None,
) -> None:
    """Strike every `stride`th line from the `start`th on, at so many of its visits, and look at the store."""
    survey = struck.ask(scenario)
    assert not survey["problems"]
    lines = [
        (file, line, visit)
        for file, line, count in survey["visits"]
        for visit in sorted({1 + step * (count - 1) // max(visits - 1, 1) for step in range(visits)})
    ]
    assert len(lines) > 500
    if only is not None:
        lines = [line for line in lines if line[:2] in only]
        assert len(lines) > 20
    found = []
    for index, line in enumerate(lines[start::stride]):
        after = AFTER[index % 3]
        answer = struck.ask(scenario, strike=line, after=after)
        if answer["problems"]:
            found.append((line, after, answer["problems"]))
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize("scenario", [*FOREGROUND, *COLLECTING][::5])
def test_an_interrupt_at_some_lines_loses_nothing(struck: Struck, scenario: str) -> None:
    """A sample of the lines that some writers and recorders execute in the thread that gets signals."""
    strike(struck, scenario, 1009, 13 * len(scenario), visits=1)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [*FOREGROUND, *COLLECTING])
def test_an_interrupt_at_any_line_loses_nothing(struck: Struck, scenario: str) -> None:
    """Many of these lines, or all of them at several visits with EPISODELAKE_INTERRUPTS=all."""
    everything = os.environ.get("EPISODELAKE_INTERRUPTS") == "all"
    strike(struck, scenario, *((1, 0, 3) if everything else (61, len(scenario), 2)))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["arrays", "collect"])
def test_an_interrupt_at_each_line_of_the_end_of_a_run(struck: Struck, scenario: str) -> None:
    """Whoever closed it, or else the background thread, closes it again."""
    ending = {
        *_lines_of(session.RunSession.close, session.RunSession._close, session.RunSession._finish),
        *_lines_of(session.RunSession._end_keeper, seal_queue.SealQueue.stop, seal_queue.join),
    }
    strike(struck, scenario, 1, 0, visits=2, only=ending)


def _lines_of(*functions: Callable[..., Any]) -> set[tuple[str, int]]:
    found = set()
    for function in functions:
        code = function.__code__
        found |= {(code.co_filename, line) for _, _, line in code.co_lines() if line is not None}
    return found


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("scenario", "running"),
    [
        ("steps", [80]),
        ("arrays", []),
        ("bulk", []),
        ("recorder", [4]),
        ("vector", [1]),
        ("logged_vector", []),
        ("pool", []),
        ("parallel", []),
        ("aec", []),
        ("discarding", []),
        ("discarding_vector", []),
        ("reopening", [2]),
    ],
)
def test_what_was_flushed_survives_a_kill(struck: Struck, scenario: str, running: list[int]) -> None:
    """A process killed right after flush() leaves all episodes, also running ones, in its journal."""
    assert not struck.ask(scenario, kill=running)["problems"]


def test_flush_after_close_is_refused(tmp_path: Path) -> None:
    """There is nothing left to flush into."""
    writer = el.create(tmp_path / "store", parts.Env()).writer()
    writer.close()
    with pytest.raises(el.errors.RecorderStateError, match="closed"):
        writer.flush()


@pytest.mark.parametrize("error", [el.errors.StoreAccessError("refused"), MemoryError()])
@pytest.mark.parametrize("call", ["flush", "seal"])
def test_a_call_that_cannot_write_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: Exception
) -> None:
    """What was flushed before is safe, and the next call brings everything."""

    def refused(*_: Any) -> None:
        raise error

    writer = el.create(tmp_path / "store", parts.Env()).writer(flush_seconds=1e5)
    journal = tmp_path / "store" / "journal" / writer.run_id
    writer.write_episode(**parts._whole(1))
    writer.flush()
    writer.write_episode(**parts._whole(2))
    with monkeypatch.context() as patched:
        patched.setattr(writer.session.journal, "append", refused)
        patched.setattr(seal_queue, "seal_segment", refused)
        with pytest.raises(type(error)):
            getattr(writer, call)()
    assert independent_journal.told(journal)[0].transitions == parts.length_of(1)
    writer.flush()
    assert independent_journal.told(journal)[1].transitions == parts.length_of(2)
    writer.close()
    assert len(el.open(tmp_path / "store")) == 2


def test_an_interrupt_while_the_journal_is_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is there and not yet known to be durable; recovery removes it."""
    store = el.create(tmp_path / "store", parts.Env())

    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(run_claim, "sync_path", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.writer()
    assert len(list((tmp_path / "store" / "journal").iterdir())) == 2
    el.recover(tmp_path / "store")
    assert not list((tmp_path / "store" / "journal").iterdir())


def test_an_interrupt_as_a_run_begins_leaves_no_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer that was being made is garbage; the background thread closes its run."""
    store = el.create(tmp_path / "store", parts.Env())
    begin = session.RunSession.__init__

    def interrupted(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        patched.setattr(session.RunSession, "__init__", interrupted)
        with contextlib.suppress(KeyboardInterrupt):
            store.writer()
        gc.collect()
        wait_until(lambda: not background_threads(), "the end of the background threads")
    assert not list((tmp_path / "store" / "journal").iterdir())


def _refused(*_: Any) -> None:
    raise el.errors.StoreAccessError("refused")


# Writers that nobody closes


def _writer(store: el.EpisodeStore) -> Any:
    writer = store.writer(run="a")
    writer.write_episode(**parts._whole(0))
    writer.begin(parts.seen(1, 0)).append(1, 1.0, parts.seen(1, 1))
    return writer


def _single(store: el.EpisodeStore) -> Any:
    env = store.record(parts.Env(), run="a")
    _play(env, 2)
    return env


def _vector(store: el.EpisodeStore) -> Any:
    env = store.record(SyncVectorEnv([parts.Env, parts.Env]), run="a")
    observations, _ = env.reset()
    for _ in range(3):
        observations, *_ = env.step(parts._act(observations))
    return env


def _play(env: gymnasium.Env, episodes: int) -> None:
    for _ in range(episodes):
        observation, _ = env.reset()
        done = False
        while not done:
            observation, _, done, *_ = env.step(parts._act(observation))


def _pool(store: el.EpisodeStore) -> Any:
    env = store.record(parts.Pool(), run="a")
    env.async_reset()
    for _ in range(6):
        observations, *_, infos = env.recv()
        env.send(parts._act(observations), infos["env_id"])
    return env


def _parallel(store: el.EpisodeStore) -> Any:
    env = store.record(parts.Pair(), run="a")
    for _ in range(2):
        observations, _ = env.reset()
        while env.agents:
            observations, *_ = env.step({agent: int(parts._act(observations[agent])) for agent in env.agents})
    return env


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("use", [_writer, _single, _vector, _pool, _parallel])
def test_an_unclosed_writer_is_closed_when_it_is_collected(tmp_path: Path, use: Any) -> None:
    """Its episodes reach the store, and its descriptors, threads and journal go."""
    store = el.create(tmp_path / "store", parts.Pair() if use is _parallel else parts.Env())
    with use(store):
        pass
    before = len(store.refresh())
    gc.collect()
    descriptors = _descriptors()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        writer = use(store)
        assert _descriptors() > descriptors and background_threads()
        del writer
        gc.collect()
        wait_until(lambda: not background_threads(), "the end of the background threads")
    told = [str(each.message) for each in caught if each.category is ResourceWarning]
    assert [message for message in told if "never closed" in message]
    assert len(store.refresh()) == 2 * before and store.verify().ok
    assert not list((tmp_path / "store" / "journal").iterdir())
    gc.collect()
    # Those that earlier tests left may go meanwhile.
    assert _descriptors() <= descriptors


def test_an_unclosed_writer_that_cannot_be_sealed_leaves_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next writer of the same process recovers it."""
    store = el.create(tmp_path / "store", parts.Env())
    with warnings.catch_warnings(record=True) as caught, monkeypatch.context() as patched:
        warnings.simplefilter("always")
        writer = _writer(store)
        patched.setattr(writer.session.seals, "work", _refused)
        del writer
        gc.collect()
        wait_until(lambda: not background_threads(), "the end of the background threads")
    assert any("could not be closed" in str(each.message) for each in caught)
    assert not len(store.refresh())
    store.writer().close()
    assert [episode.length for episode in store.refresh()] == [parts.length_of(0), 1]


def test_an_open_episode_keeps_its_writer(tmp_path: Path) -> None:
    """Steps may still come, so the writer is no garbage."""
    store = el.create(tmp_path / "store", parts.Env())
    episode = store.writer().begin(parts.seen(0, 0))
    gc.collect()
    episode.append(0, 0.0, parts.seen(0, 1))
    episode.end()
    episode._writer.close()
    assert len(store.refresh()) == 1


@pytest.mark.further
def test_a_second_interrupt_while_closing_loses_nothing(tmp_path: Path) -> None:
    """Ctrl-C ends the loop, a second one hits the end of the block: the process seals when it exits."""
    code = """
import os, signal, sys
import episodelake as el, interrupted_writers as parts
from episodelake.writers.session import seal_queue
real = seal_queue.seal_segment
def seal(*arguments):
    seal_queue.seal_segment = real
    os.kill(os.getpid(), signal.SIGINT)
    real(*arguments)  # in the background thread, which gets no signal
seal_queue.seal_segment = seal
with el.open(sys.argv[1]).record(parts.Env(), run="a") as env:
    for k in range(50):
        observation, _ = env.reset()
        done = False
        while not done:
            observation, _, done, _, _ = env.step(parts._act(observation))
    os.kill(os.getpid(), signal.SIGINT)
"""
    el.create(tmp_path / "store", parts.Env())
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "store")],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ended.returncode == -signal.SIGINT, ended.stderr
    store = el.open(tmp_path / "store")
    assert len(store) == 50 and not list((tmp_path / "store" / "journal").iterdir())
    assert np.array_equal([episode.observations[0][0] for episode in store], range(50))
