"""Processes that write, read and maintain one store at once.

A writer may be killed at any moment, so the processes speak through files only: a lock of `multiprocessing`
that a killed process held would stop the others. A writer notes outside of the store what it was promised:
what reached its journal, and what a seal made visible.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

import episodelake as el
from episodelake.writers.session.journal import RunJournal
from planned_episodes import (
    DOOMED,
    RECORDER,
    SEEDS,
    Plan,
    PlannedEnv,
    doomed,
    plan,
    planned_metadata,
    snapshot_is_consistent,
)

PATIENCE = 600.0
PAUSE = 0.1
OPTIONS: dict[str, Any] = {"flush_seconds": 0.05, "seal_seconds": 1.0}
PER_SEAL = 16
#: An interrupted commit leaves a file that no version lists; a vacuum must wait for longer than any commit.
LONG = timedelta(days=7)
#: Records the episodes of some seeds; gives the ids that ended, each with its seed.
Record = Callable[[Sequence[int]], dict[str, int]]


@dataclass(frozen=True)
class Scene:
    """Where everything happens: a store, and a folder beside it for notes and signals."""

    store: Path
    folder: Path

    def tell(self, word: str) -> None:
        """Give a signal; it lasts."""
        (self.folder / word).touch()

    def told(self, word: str) -> bool:
        """Whether a signal was given."""
        return (self.folder / word).exists()

    def notes(self, pattern: str) -> Iterator[dict[str, Any]]:
        """What the processes of some names have noted so far; a line that a kill cut short does not count."""
        for path in sorted(self.folder.glob(f"{pattern}.notes")):
            whole, _, _ = path.read_bytes().rpartition(b"\n")
            yield from map(json.loads, whole.splitlines())

    def count(self, pattern: str, key: str) -> int:
        """How many notes of a kind there are."""
        mark = f'{{"{key}": '.encode()
        return sum(path.read_bytes().count(mark) for path in self.folder.glob(f"{pattern}.notes"))

    def failures(self) -> list[str]:
        """What the processes raised."""
        return [path.read_text() for path in sorted(self.folder.glob("*.failed"))]


class Role:
    """What a process has: the scene, its notes, and whether it shall go on."""

    def __init__(self, scene: Scene, name: str) -> None:
        self.scene = scene
        self._parent = os.getppid()
        self._notes = os.open(scene.folder / f"{name}.notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, **note: Any) -> None:
        """Add a note; it is there as a whole, even if the process dies next."""
        os.write(self._notes, json.dumps(note).encode() + b"\n")

    @property
    def goes_on(self) -> bool:
        """Whether nobody told it to stop, and whoever started it still lives."""
        return os.getppid() == self._parent and not self.scene.told("stop")


def _enter(body: Callable[..., None], scene: Scene, name: str, arguments: tuple[Any, ...]) -> None:
    try:
        body(Role(scene, name), *arguments)
    except BaseException:
        (scene.folder / f"{name}.failed").write_text(traceback.format_exc())
        raise


class Cast:
    """The processes on a scene; all of them are dead after the `with` block."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._processes: dict[str, Any] = {}

    def __enter__(self) -> Cast:
        """Return the cast itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill whoever lives."""
        for name in self._processes:
            self.kill(name)

    def start(self, body: Callable[..., None], name: str, *arguments: Any) -> None:
        """Start a process with an interpreter of its own."""
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_enter, args=(body, self.scene, name, arguments), daemon=True)
        process.start()
        self._processes[name] = process

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL, wherever it is."""
        self._processes[name].kill()
        self._processes[name].join(PATIENCE)

    def wait(self, reached: Callable[[], bool], what: str) -> None:
        """Wait until something holds; fail with what a process raised meanwhile."""
        latest = time.monotonic() + PATIENCE
        while not reached():
            assert not self.scene.failures(), "\n".join(self.scene.failures())
            assert time.monotonic() < latest, f"waited in vain for {what}"
            time.sleep(PAUSE)

    def finish(self) -> None:
        """Tell all processes to stop, and wait until they have; fail with what one of them raised."""
        self.scene.tell("stop")
        for name, process in self._processes.items():
            process.join(PATIENCE)
            assert process.exitcode is not None, f"{name} does not end"
        assert not self.scene.failures(), "\n".join(self.scene.failures())


# Writing


def write(role: Role, index: int, episodes: int) -> None:
    """Record so many planned episodes from the signal `go-<index>` on; close when told to stop."""
    _note_the_journal(role)
    role.note(ready=index)
    while not role.scene.told(f"go-{index}"):
        if not role.goes_on:
            return
        time.sleep(PAUSE)
    writer, record = (_recorder, _interleaved, _in_bulk)[index % 3](el.open(role.scene.store), index)
    seed, recorded = index * SEEDS, {}
    while role.goes_on:
        if seed % SEEDS < episodes:
            recorded |= record([seed, seed + 1])
            seed += 2
        if len(recorded) >= PER_SEAL:
            _patiently(writer.seal)
            role.note(sealed=[name for name, of in recorded.items() if not doomed(of)])
            recorded = {}
        time.sleep(PAUSE)
    _patiently(writer.close)
    role.note(closed=writer.run_id)


def _patiently(commit: Callable[[], object]) -> None:
    """Commit, and again if the others kept winning: nothing is lost by that."""
    for _ in range(20):
        with contextlib.suppress(el.errors.ConcurrentCommitError):
            commit()
            return
    raise AssertionError("lost against the other writers again and again")


def _recorder(store: el.EpisodeStore, index: int) -> tuple[Any, Record]:
    recorder = store.record(
        PlannedEnv(), run=f"{RECORDER}{index}", episode_callback=planned_metadata, **OPTIONS
    )

    def record(seeds: Sequence[int]) -> dict[str, int]:
        ended = {}
        for seed in seeds:
            recorder.reset(seed=seed)
            ended[str(recorder.episode_id)] = seed
            for action in plan(seed).actions:
                recorder.step(action)
        return ended

    return recorder, record


def _interleaved(store: el.EpisodeStore, index: int) -> tuple[Any, Record]:
    """Several episodes at once. The first one stays open, and keeps others that are sealed in the journal."""
    writer = store.writer(run=f"robots-{index}", **OPTIONS)
    live: list[tuple[el.types.OpenEpisode, int]] = []
    taken: dict[str, int] = {}

    def step(episode: el.types.OpenEpisode, planned: Plan) -> None:
        t = taken[episode.id]
        outcome = planned.rewards[t], planned.observations[t + 1], *planned.flags(t)
        episode.append(planned.actions[t], *outcome, planned.infos[t + 1])
        taken[episode.id] += 1

    def record(seeds: Sequence[int]) -> dict[str, int]:
        ended = {}
        for seed in seeds:
            planned = plan(seed)
            first = planned.observations[0], planned.infos[0]
            live.append((writer.begin(*first, seed=seed, metadata=planned.metadata), seed))
            taken[live[-1][0].id] = 0
        while taken[live[0][0].id] < plan(live[0][1]).length - 1:
            step(live[0][0], plan(live[0][1]))
        while len(live) > 1:
            for episode, seed in live[1:]:
                step(episode, plan(seed))
                if taken[episode.id] == plan(seed).length:
                    live.remove((episode, seed))
                    ended[episode.end().episode_id] = seed
        return ended

    return writer, record


def _in_bulk(store: el.EpisodeStore, index: int) -> tuple[Any, Record]:
    writer = store.writer(run=f"import-{index}", **OPTIONS)

    def record(seeds: Sequence[int]) -> dict[str, int]:
        ended = {}
        for seed in seeds:
            planned = plan(seed)
            row = writer.write_episode(
                observations=planned.observations,
                actions=planned.actions,
                rewards=planned.rewards,
                terminations=planned.terminated,
                truncations=not planned.terminated,
                infos=list(planned.infos),
                seed=seed,
                metadata=planned.metadata,
            )
            ended[row.episode_id] = seed
        return ended

    return writer, record


# What writers were promised


def _note_the_journal(role: Role) -> None:
    """From now on note every batch of this process that has reached its journal."""
    append = RunJournal.append

    def noted(
        parts: RunJournal, batch: pa.RecordBatch, events: Sequence[dict], numbers: Iterable[int], first: int
    ) -> None:
        append(parts, batch, events, numbers, first)
        owners, kinds = (batch.column(name).to_pylist() for name in ("_number", "_kind"))
        role.note(
            journal=parts._header.run_id,
            begun=[[event["number"], event["seed"]] for event in events if event["event"] == "begin"],
            rows=list(Counter(owner for owner, kind in zip(owners, kinds, strict=True) if kind < 2).items()),
            ended=[event["number"] for event in events if event.get("reason", "cut") != "cut"],
        )

    RunJournal.append = noted


@dataclass
class Promise:
    """What has reached the journal of an episode.

    Attributes:
        seed: the episode's.
        rows: how many observations.
        ended: whether its end as planned is among it.
    """

    seed: int
    rows: int = 0
    ended: bool = False


def promises(scene: Scene) -> dict[str, Promise]:
    """What has reached journals, by episode id."""
    found: dict[tuple[str, int], Promise] = {}
    for note in scene.notes("writer-*"):
        run = note.get("journal")
        for number, seed in note.get("begun", ()):
            found[run, number] = Promise(seed)
        for number, rows in note.get("rows", ()):
            found[run, number].rows += rows
        for number in note.get("ended", ()):
            found[run, number].ended = True
    return {f"{run}/{number:06d}": promise for (run, number), promise in found.items()}


def promised_to_be_visible(scene: Scene) -> set[str]:
    """Ids of the episodes that a seal has made visible, without those that may be deleted."""
    return {name for note in scene.notes("writer-*") for name in note.get("sealed", ())}


# Reading and maintaining


def read(role: Role) -> None:
    """Take snapshots and check each of them; the first one is kept and checked again in the end."""
    first = el.open(role.scene.store)
    ids = first.episodes.collect()
    store = el.open(role.scene.store)
    while role.goes_on:
        sealed = promised_to_be_visible(role.scene)
        store.refresh()
        snapshot_is_consistent(store, episodes=50)
        missing = sealed.difference(store.episodes.select("episode_id").collect()["episode_id"])
        assert not missing, f"sealed, but not in version {store.version}: {sorted(missing)[:5]}"
        role.note(checked=store.version, episodes=len(store))
    assert first.episodes.collect().equals(ids)
    snapshot_is_consistent(first)


def maintain(role: Role) -> None:
    """Compact, delete what is doomed, and vacuum, in turn."""
    store = el.open(role.scene.store)
    while role.goes_on:
        _patiently(store.compact)
        chosen = store.filter(DOOMED).episodes.select("episode_id").collect()["episode_id"].to_list()
        if chosen:
            names = ", ".join(f"'{name}'" for name in chosen)
            _patiently(lambda names=names: store.delete(f"episode_id IN ({names})"))
        role.note(deleted=chosen)
        store.vacuum(LONG)
        time.sleep(PAUSE)
