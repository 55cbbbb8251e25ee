"""The dialog that draws episodes over each other: those that are ticked, or the first of the list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from nicegui import ui

from ..readers.charts.overlay import END, MOST_EPISODES, START
from ..readers.measures.signals import signal_columns
from .charts import compare_spec
from .episodes_pane import EpisodesPane
from .widgets import Drawing, PageOwner, draw_into, icon_button, note


class CompareDialog:
    """The dialog.

    Args:
        page: the page that it is part of.
        episodes: the list.
    """

    def __init__(self, page: PageOwner, episodes: EpisodesPane) -> None:
        self.page = page
        self.episodes = episodes
        self._ids: tuple[str, ...] = ()
        self._opening = False
        self._dialog = ui.dialog().props("aria-label=Compare")
        with self._dialog, ui.card().classes("compare"):
            with ui.element("div").classes("bar"):
                with ui.element("h2").classes("part-title grow"):
                    ui.label("Compare episodes")
                icon_button("close", "Close the comparison", self._dialog.close)
            with ui.element("div").classes("bar wrapping"):
                choices = "outlined dense options-dense"
                self._align = ui.select(
                    [START, END],
                    value=START,
                    label="Align at: start, end, or the first step with",
                    with_input=True,
                    new_value_mode="add-unique",
                    on_change=self.draw,
                )
                self._align.props(choices).classes("grow").mark("align")
                self._signals = ui.select([], multiple=True, value=[], label="Signals", on_change=self.draw)
                self._signals.props(f"{choices} use-chips").classes("grow picker").mark("compared")
            self._drawing = Drawing().mark("overlay").style("min-height: 300px")
            self._caption = note("caption")

    @property
    def state(self) -> dict[str, Any]:
        """The comparison as an address has it; empty while the dialog is closed."""
        if not self._dialog.value:
            return {}
        signals = tuple(self._signals.value or ())
        return {"compared": self._ids, "align": self._align.value or START, "overlaid": signals}

    async def open(self) -> None:
        """Compare the ticked rows; without any, the first of the list."""
        episodes = self.page.shown.episodes
        first = self.episodes.positions[:MOST_EPISODES]
        ids = self.episodes.marked or episodes.frame["episode_id"].gather(first).to_list()
        await self.show(ids, self._align.value or START, self._signals.value or ())

    async def show(self, ids: Sequence[str], align: str, signals: Sequence[str]) -> None:
        """Compare episodes; close the dialog without any.

        Args:
            ids: those that are gone are left out.
            align: `START`, `END`, or a condition.
            signals: those that the first episode lacks are left out.
        """
        places = map(self.page.shown.episodes.position_of, ids)
        self._ids, self._positions = (
            tuple(ids),
            np.array([each for each in places if each is not None], np.int64),
        )
        if not len(self._positions):
            self._dialog.close()
            return
        first = self.page.shown.store[int(self._positions[0])]
        known = list(dict.fromkeys(["reward", "action", *signal_columns(first)]))
        # The events of the two boxes would draw twice more.
        self._opening = True
        self._signals.set_options(known, value=[each for each in signals if each in known])
        self._align.set_options(list(dict.fromkeys([START, END, align])), value=align)
        self._opening = False
        self._dialog.open()
        await self.draw()

    async def draw(self) -> None:
        """Draw what is chosen."""
        if self._opening:
            return
        view, signals = self.page.shown.store[self._positions], tuple(self._signals.value or ())
        align = self._align.value or START
        await draw_into(
            self._drawing, self._caption, compare_spec, view, signals, align, self.page.watch.colors
        )
