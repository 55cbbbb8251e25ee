"""The dialog that draws episodes over each other: those that are ticked, or the first of the list."""

from __future__ import annotations

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

    async def open(self) -> None:
        """Compare the ticked rows; without any, the first of the list."""
        places = map(self.page.shown.episodes.position_of, self.episodes.marked)
        ticked = [place for place in places if place is not None]
        self._positions = np.array(ticked or self.episodes.positions[:MOST_EPISODES].tolist(), np.int64)
        if len(self._positions):
            first = self.page.shown.store[int(self._positions[0])]
            self._signals.set_options(["reward", "action", *signal_columns(first)], value=self._signals.value)
        self._dialog.open()
        await self.draw()

    async def draw(self) -> None:
        """Draw what is chosen."""
        view, signals = self.page.shown.store[self._positions], tuple(self._signals.value or ())
        align = self._align.value or START
        await draw_into(
            self._drawing, self._caption, compare_spec, view, signals, align, self.page.watch.colors
        )
