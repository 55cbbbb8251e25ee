"""Reasons for looking at an episode: its findings, each with its step and its signal."""

from __future__ import annotations

from functools import partial

import numpy as np
import polars as pl
from nicegui import ui

from ... import Episode
from ...errors import CorruptStoreError
from ...readers.charts.signals import row_values, signal_columns
from ...types import HealthReport
from ..moments import text_of
from ..widgets import PageOwner

_MOST_REASONS, _MOST_SIGNALS = 4, 4
_NO_REASONS = pl.DataFrame(schema={"column": pl.String, "reason": pl.String, "t": pl.Int64})


class ReasonBar:
    """The reasons of the first open episode; a click leads to the step.

    Args:
        page: the page that it is part of.
    """

    def __init__(self, page: PageOwner) -> None:
        self.page = page
        self._episode_id = ""
        self._shown: tuple[str, HealthReport | None] = "", None
        self._place = ui.element("div").classes("findings reason-bar").mark("reasons")
        # The health of a version takes a while.
        ui.timer(0.5, lambda: self.show(self._episode_id))

    def show(self, episode_id: str) -> None:
        """Show the reasons of an episode, once the health is known; of none without an id."""
        self._episode_id = episode_id
        now = episode_id, self.page.watch.checkup().report
        if now == self._shown:
            return
        self._shown = now
        self._place.clear()
        rows = self._rows(episode_id)
        with self._place:
            for row in rows.head(_MOST_REASONS).iter_rows(named=True):
                look = partial(self.page.show_reason, episode_id, row["column"], row["t"])
                with ui.element("button").classes("finding hint").on("click", look):
                    ui.label(text_of(row["reason"], 160))
            if rows.height > _MOST_REASONS:
                ui.label(f"and {rows.height - _MOST_REASONS} more").classes("muted")
        self._place.set_visibility(rows.height > 0)

    def _rows(self, episode_id: str) -> pl.DataFrame:
        """Return the reasons of an episode, without findings that most of the episodes have."""
        report = self.page.watch.checkup().report
        position = self.page.shown.episodes.position_of(episode_id)
        if report is None or position is None:
            return _NO_REASONS
        usual = {
            (each.kind, each.column) for each in report.findings if 2 * len(each.positions) > report.count
        }
        # The report may be of an older version, in which another episode had this position.
        rows = report.reasons(position).filter(pl.col("episode_id") == episode_id)
        return rows.filter([kind not in usual for kind in rows.select("kind", "column").iter_rows()])

    def signals(self, episode_id: str, column: str | None, t: int | None) -> list[str]:
        """Return the signals of an episode's findings in the newest version.

        Args:
            episode_id: its id.
            column: that of the finding; None for that of its first reason at this step.
            t: the step; None where the finding has none.
        """
        if column is None:
            columns = self._rows(episode_id).filter(pl.col("t").eq_missing(t))["column"]
            column = str(columns[0]) if len(columns) else ""
        episode = self.page.reopened(episode_id)
        try:
            return [] if episode is None else signals_at(episode, column, t)
        except CorruptStoreError:
            return []  # Its pane says what is damaged.


def signals_at(episode: Episode, column: str, t: int | None) -> list[str]:
    """Return the signals that show a finding: the column, or its numbers that are not finite at t.

    Returns:
        None of a column that is no signal, such as `length`.

    Raises:
        CorruptStoreError: the steps are damaged.
    """
    column = "reward" if column == "episode_return" else column
    if column.partition("[")[0] not in signal_columns(episode):
        return []
    if t is None or "[" in column or episode.agents:
        return [column]
    value = row_values(episode, t)[0].get(column)
    wrong = np.flatnonzero(~np.isfinite(np.array(value, np.float64))) if isinstance(value, list) else []
    return [f"{column}[{k}]" for k in wrong[:_MOST_SIGNALS]] or [column]
