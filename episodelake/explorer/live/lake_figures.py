"""Figures of each store of a lake beside those of `Lake.stores`: its curve, its last return, its health, and
whether a writer records.

Curves come from one query over the stores that have changed. Health is looked at in the background, the
smallest store first.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from ...errors import EpisodelakeError
from ...plugin import Journals, Layout, literal
from ...types import Lake
from ..checkup import Checkup

_PLACES = 24
#: Bytes of a store whose health is looked at by itself; that of a larger one is once it is opened.
MOST_BYTES = 256_000_000
#: Numbers of episodes in their runs, in equal parts of each store. Those that the recorder ended are left
#: out, unless a store has no others.
_CURVES = """
WITH chosen AS (
        SELECT store, number, ended_at, {value} AS value, end_reason IN ('cut', 'interrupted') AS unfinished
        FROM episodes WHERE store IN ({stores})
    ),
    sizes AS (SELECT store, max(number) + 1 AS most, bool_and(unfinished) AS none FROM chosen GROUP BY store)
SELECT store, number * {places} // most AS place, avg(value) AS mean, max(ended_at) AS ended,
    arg_max(value, ended_at) AS last
FROM chosen JOIN sizes USING (store) WHERE isfinite(value) AND (none OR NOT unfinished)
GROUP BY 1, 2 ORDER BY 1, 2
"""


@dataclass(frozen=True)
class Figures:
    """The figures of a store.

    Attributes:
        version: the version that they are of.
        curve: mean returns over the numbers of its episodes, in equal parts.
        last: the return of the episode that ended last; None without a finite one.
    """

    version: int
    curve: tuple[float, ...] = ()
    last: float | None = None


@dataclass(frozen=True)
class Health:
    """The health of a store.

    Attributes:
        version: the version that was looked at.
        kinds: of its findings, one each.
        problem: why there are none; empty if it could be read.
    """

    version: int
    kinds: tuple[str, ...] = ()
    problem: str = ""


@dataclass
class LakeFigures:
    """The figures of the stores of a lake; safe to use from several threads.

    Attributes:
        figures: of the stores, by name.
        health: of the stores that were looked at, by name.
        checking: the store whose health is looked at now, and how far that is.
        live: the stores that writers of this machine record into.
    """

    lake: Lake
    figures: dict[str, Figures] = field(default_factory=dict)
    health: dict[str, Health] = field(default_factory=dict)
    checking: tuple[str, Checkup] | None = None
    live: frozenset[str] = frozenset()
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _stopped: bool = False
    _thread: threading.Thread | None = None

    def look(self, stores: pl.DataFrame) -> None:
        """Look at the stores that have changed, unless another thread does; health follows in the background.

        Args:
            stores: as of `Lake.stores`.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._look(stores)
            finally:
                self._lock.release()

    def _look(self, stores: pl.DataFrame) -> None:
        readable = stores.filter(pl.col("error").is_null())
        versions = dict(readable.select("store", "version").iter_rows())
        self.live = frozenset(
            name for name, url in readable.select("store", "url").iter_rows() if _is_live(url)
        )
        changed = [
            name
            for name, version in versions.items()
            if name not in self.figures or self.figures[name].version != version
        ]
        if changed:
            self.figures = {
                name: each for name, each in self.figures.items() if name in versions
            } | self._read({name: versions[name] for name in changed})
        if self._thread is None or not self._thread.is_alive():
            small = readable.filter(pl.col("bytes") <= MOST_BYTES).sort("bytes")
            waiting = [
                (name, version)
                for name, version in small.select("store", "version").iter_rows()
                if name not in self.health or self.health[name].version != version
            ]
            if waiting:
                self._thread = threading.Thread(target=self._check, args=[waiting], daemon=True)
                self._thread.start()

    def _read(self, versions: dict[str, int]) -> dict[str, Figures]:
        session, names = self.lake.session(), ", ".join(map(literal, versions))
        rows = pl.DataFrame()
        # Where the returns of some stores are lists, those of all are texts; of lists alone there are none.
        for value in ("episode_return::DOUBLE", "TRY_CAST(episode_return AS DOUBLE)"):
            try:
                rows = session.query(_CURVES.format(value=value, stores=names, places=_PLACES))
                break
            except EpisodelakeError:
                continue
        runs: dict[str, Any] = {}
        for store, _, mean, ended, last in rows.iter_rows():
            runs.setdefault(store, []).append((ended, last, mean))
        return {
            name: Figures(
                version,
                tuple(mean for *_, mean in runs.get(name, ())),
                max(runs[name], key=lambda each: (each[0] is not None, each[0]))[1] if name in runs else None,
            )
            for name, version in versions.items()
        }

    def _check(self, waiting: list[tuple[str, int]]) -> None:
        for name, version in waiting:
            try:
                store = self.lake[name]
                if self._stopped or store.version != version:
                    continue
                checkup = Checkup(store)
                self.checking = name, checkup
                checkup.wait()
                if not self._stopped:
                    findings = checkup.report.findings if checkup.report else ()
                    self.health[name] = Health(
                        version, tuple(each.kind for each in findings), checkup.problem
                    )
            except EpisodelakeError:
                continue  # The list says why, or the next look finds it changed.
        self.checking = None

    def close(self) -> None:
        """Stop what runs in the background."""
        self._stopped = True
        if self.checking is not None:
            self.checking[1].stop()


def _is_live(url: str) -> bool:
    """Return whether a writer of this machine records into a local store."""
    try:
        return "://" not in url and bool(Journals.of(Layout.at(url)).live)
    except EpisodelakeError:
        return False
