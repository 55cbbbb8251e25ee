"""Health of a version for the page: computed once in the background, and stopped with the server."""

from __future__ import annotations

import threading
import time

import polars as pl

from .. import EpisodeStore
from ..errors import EpisodelakeError
from ..types import Finding, HealthReport

#: Findings that make an episode unusable; others are hints.
SEVERE = ("nan", "infinite", "missing_observation", "interrupted", "unsealed")


class _StoppedError(Exception):
    """Ends a checkup from within."""


class Checkup:
    """The findings of one version.

    Args:
        store: pinned at the version.
        before: the checkup of an older version, whose report stands until this one is done.

    Attributes:
        version: the version that is checked.
        report: the newest report; None before the first.
        problem: why there is none; empty if there is.
        share: how much of the episodes has been read, 0 to 1.
        ended: when it ended, in seconds of `time.monotonic`; None while it runs.
        seconds: how long it took.
    """

    def __init__(self, store: EpisodeStore, before: Checkup | None = None) -> None:
        self.version = store.version
        self.report: HealthReport | None = before.report if before else None
        self.problem, self.share = "", 0.0
        self.ended: float | None = None
        self.seconds = 0.0
        self._stopped = False
        self._thread = threading.Thread(
            target=self._run, args=[store], daemon=True, name="episodelake-health"
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until it has ended."""
        self._thread.join()

    def _run(self, store: EpisodeStore) -> None:
        started = time.monotonic()
        try:
            self.report = store.health(progress=self._read)
        except EpisodelakeError as error:
            self.problem = str(error)
        except _StoppedError:
            pass
        self.ended = time.monotonic()
        self.seconds = self.ended - started

    def _read(self, done: int, total: int) -> None:
        if self._stopped:
            raise _StoppedError
        self.share = done / max(total, 1)

    def stop(self) -> None:
        """End it at the next part of the episodes."""
        self._stopped = True

    def ids(self, name: str) -> tuple[str, ...]:
        """Return the ids of the episodes of a finding, by its name; none where there is no such finding."""
        rows = self._rows(name)
        return () if rows is None else tuple(rows["episode_id"].unique(maintain_order=True))

    def first(self, name: str) -> tuple[str, str, int | None] | None:
        """Return the first episode of a finding: its id, the column, and the step where it shows."""
        rows = self._rows(name)
        return None if rows is None else rows.select("episode_id", "column", "t").row(0)

    def _rows(self, name: str) -> pl.DataFrame | None:
        if self.report is None:
            return None
        findings = zip(self.report.findings, self.report.parts(), strict=True)
        return next((part for each, part in findings if name_of(each) == name and len(part)), None)


def name_of(finding: Finding) -> str:
    """Return the name of a finding in addresses, such as `nan:observation` or `outlier:largest reward`."""
    of = f"{finding.extreme} {finding.column}".strip()
    return f"{finding.kind}:{of}" if of else finding.kind
