"""Plays scripts of episodes through a writer or a recorder, promises what is safe, and goes on after errors.

A performance is a list of acts:

    ("begin", key)  ("step", key, until)  ("end", key)  ("whole", key)  ("bulk", keys)
    ("flush",)  ("seal",)  ("close",)

An act that raises an error of the tree is answered as the stage says: it is done again once the fault has
gone, or the run is closed, or the process ends without closing. Any other exception is a fault of the
library.
"""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import episodelake as el

from .promises import PromiseLog
from .shim import Shim
from .truth import ScriptedEnv

Act = tuple[Any, ...]
_PATIENCE = 6
DIED = 90


@dataclass(frozen=True)
class Context:
    """What a workload is given.

    Attributes:
        path: of the store.
        folder: outside of the store, for what the workload keeps.
        log: where to promise.
        shim: to end faults with.
        answer: what to do after an error; see `faults.ANSWERS`.
    """

    path: Path
    folder: Path
    log: PromiseLog
    shim: Shim
    answer: str

    def attempt(self, act: Callable[[], Any], *, last: bool = False) -> Any:
        """Do something until it succeeds, ending the fault after the first error.

        Args:
            act: may be called again after an error of the tree.
            last: there is nothing to give up: answer "close" as "repeat".

        Raises:
            GiveUp: it failed, and the answer is to close.
        """
        for _ in range(_PATIENCE):
            try:
                return act()
            except el.EpisodelakeError as error:
                self.log.note(error=type(error).__name__, text=describe(error))
                if self.answer == "die":
                    os._exit(DIED)
                self.shim.disarm()
                if self.answer == "close" and not last:
                    raise GiveUp from error
        raise RuntimeError("it still fails when the fault has gone")


class GiveUp(Exception):
    """The workload is to close and do nothing more."""


def guarded(work: Callable[[], None], log: PromiseLog) -> None:
    """Run a workload; what it raises is noted as wrong."""
    try:
        work()
    except BaseException as error:
        log.note(wrong=describe(error))


def describe(error: BaseException) -> str:
    """An exception and where it came from, in one line."""
    places = traceback.extract_tb(error.__traceback__)
    where = " < ".join(f"{Path(place.filename).name}:{place.lineno}" for place in reversed(places[-5:]))
    return f"raised {type(error).__name__}: {' '.join(str(error).split()):.300} at {where}"


class Performance:
    """One run through an `EpisodeWriter`.

    Args:
        context: of the workload.
        name: of the run.
        scripts: its episodes, by key.
        options: for the writer; nothing is flushed or sealed by age.
    """

    def __init__(
        self, context: Context, name: str, scripts: Mapping[int, Any], options: Mapping[str, Any]
    ) -> None:
        self.context = context
        self.name = name
        self.scripts = scripts
        self.options = {"flush_seconds": 1e6, "seal_seconds": 1e6, "run": name, **options}
        self.steps: dict[int, int] = {}
        self.ended: list[int] = []
        self.orderly: list[int] = []
        self.open: dict[int, Any] = {}
        self.store = context.attempt(lambda: el.open(context.path))
        self.writer = context.attempt(self._start, last=True)
        context.log.note(run=name, id=self.writer.run_id)

    def _start(self) -> Any:
        return self.store.writer(metadata={"run": self.name}, **self.options)

    def play(self, acts: Sequence[Act]) -> None:
        """Perform the acts; close if one of them is given up."""
        try:
            for act in acts:
                self.context.attempt(lambda act=act: self._do(*act), last=act[0] == "close")
        except GiveUp:
            self.context.attempt(self._do_close, last=True)

    def _do(self, what: str, *arguments: Any) -> None:
        getattr(self, f"_do_{what}")(*arguments)

    def _do_begin(self, key: int) -> None:
        script = self.scripts[key]
        self.open[key] = self.writer.begin(
            script.observation(0), script.info(0), seed=key, metadata=script.metadata
        )
        self.steps[key] = 0

    def _do_step(self, key: int, until: int) -> None:
        script, episode = self.scripts[key], self.open[key]
        for t in range(self.steps[key], until):
            ending = script.ending if t + 1 == script.length else ""
            episode.append(
                script.action(t),
                script.reward(t),
                script.observation(t + 1),
                ending == "terminated",
                ending == "truncated",
                script.info(t + 1),
                script.policy(t),
            )
            self.steps[key] = t + 1

    def _do_end(self, key: int) -> None:
        self.open[key].end(self.scripts[key].last_metadata)
        del self.open[key]
        self._end(key)

    def _do_whole(self, key: int) -> None:
        script = self.scripts[key]
        places, steps = range(script.length + 1), range(script.length)
        self.writer.write_episode(
            observations=np.array([script.observation(t) for t in places]),
            actions=np.array([script.action(t) for t in steps]),
            rewards=np.array([script.reward(t) for t in steps]),
            terminations=script.ending == "terminated",
            truncations=script.ending == "truncated",
            infos=[script.info(t) for t in places],
            policy={"value": np.array([script.policy(t)["value"] for t in steps])},
            seed=key,
            metadata={**script.metadata, **script.last_metadata},
        )
        self.steps[key] = script.length
        self._end(key)

    def _do_bulk(self, *keys: int) -> None:
        """Write several whole episodes from Arrow data."""
        scripts = [self.scripts[key] for key in keys]
        facts = [
            {"episode": script.key, "seed": script.key}
            | {f"metadata.{name}": value for name, value in (script.metadata | script.last_metadata).items()}
            for script in scripts
        ]
        rows = [row for script in scripts for row in _rows(script)]
        types = {"observation": pa.list_(pa.float32())}
        steps = _table(rows)
        steps = steps.cast(
            pa.schema([pa.field(each.name, types.get(each.name, each.type)) for each in steps.schema])
        )
        self.writer.write_episodes(steps, episodes=_table(facts))
        for script in scripts:
            self.steps[script.key] = script.length
            self._end(script.key)

    def _do_flush(self) -> None:
        self.writer.flush()
        self._promise_journal()

    def _end(self, key: int) -> None:
        self.ended.append(key)
        self.orderly.append(key)

    def _promise_journal(self) -> None:
        self.context.log.note(journalled=self.steps, finished=self.ended, orderly=self.orderly)

    def _do_seal(self) -> None:
        self.writer.seal()
        self._promise_journal()
        self._promise_visible()

    def _promise_visible(self) -> None:
        self.context.log.note(visible=self.ended, version=el.open(self.context.path).version)

    def _do_close(self) -> None:
        self.context.log.note(closing=self.name)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            self.writer.close()
        if any("Its journal" in str(each.message) for each in warned):
            self.context.log.note(left=self.name)
        self.ended += [key for key in self.open if self.steps[key]]
        self.context.log.note(closed=self.name)
        self._promise_journal()
        self._promise_visible()


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows with the columns that any of them has."""
    names = {name: None for row in rows for name in row}
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def _rows(script: Any) -> list[dict[str, Any]]:
    """The rows of a script as they stand in `steps`."""
    rows = []
    for t in range(script.length + 1):
        row = {"episode": script.key, "observation": script.observation(t).tolist()}
        row |= {f"info.{name}": value for name, value in script.info(t).items()}
        row |= dict.fromkeys(("action", "reward", "terminated", "truncated", "policy.value"))
        if t < script.length:
            ending = script.ending if t + 1 == script.length else ""
            row |= {
                "action": script.action(t),
                "reward": script.reward(t),
                "policy.value": script.policy(t)["value"],
            }
            row |= {flag: ending == flag for flag in ("terminated", "truncated")}
        rows.append(row)
    return rows


class Recording(Performance):
    """The same through a `Recorder`; it has no acts "end", "whole" and "bulk"."""

    def _start(self) -> Any:
        return self.store.record(ScriptedEnv(dict(self.scripts)), metadata={"run": self.name}, **self.options)

    def _do_begin(self, key: int) -> None:
        self.writer.reset(seed=key)
        self.open = {key: None}
        self.steps[key] = 0

    def _do_step(self, key: int, until: int) -> None:
        script = self.scripts[key]
        for t in range(self.steps[key], until):
            self.writer.log(**script.policy(t))
            self.writer.step(script.action(t))
            self.steps[key] = t + 1
        if self.steps[key] == script.length:
            self.open = {}
            self._end(key)
