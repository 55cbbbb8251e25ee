"""Episodes beside each other: their frames in step, and their signals on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from nicegui import background_tasks, ui

from ... import Episode
from ...readers.charts.overlay import END, MOST_EPISODES, START
from ...readers.charts.signals import signal_columns
from ...readers.charts.theme import PALETTE
from ..charts import compare_spec
from ..episodes_pane import EpisodesPane
from ..moments import text_of
from ..pictures.camera import Camera, Playback
from ..pictures.sources import frame_sources, rate_of
from ..widgets import Drawing, PageOwner, note

#: More episodes have lines, and no frames.
_MOST_CAMERAS = 8


class ComparePane:
    """Compares the episodes that are ticked, or the first of the list.

    Args:
        page: the page that it is part of.
        episodes: the list.

    Attributes:
        t: the aligned step that is shown.
    """

    def __init__(self, page: PageOwner, episodes: EpisodesPane) -> None:
        self.page = page
        self.episodes = episodes
        self.t = 0
        self._ids: tuple[str, ...] = ()
        self._positions = np.empty(0, np.int64)
        self._opening = False
        self._aligned: str | None = None
        self._differ: int | None = None
        with ui.element("div").classes("pane scrolling stepped compare"):
            self._playback = Playback(self._moved)
            with ui.element("div").classes("bar wrapping"):
                self._align = self._select(
                    [START, END],
                    "Align at: start, end, or the first step with",
                    value=START,
                    with_input=True,
                    new_value_mode="add-unique",
                )
                self._align.classes("grow").mark("align")
                self._signals = self._select([], "Signals", multiple=True, value=[])
                self._signals.props("use-chips").classes("grow picker").mark("compared")
                self._camera = self._select([], "Camera")
                self._over = ui.switch("Over each other").on_value_change(self._stack).mark("stacked")
                self._first = ui.button("First difference", on_click=self._to_difference)
                self._first.props("outline dense no-caps").mark("difference")
            self._frames = ui.element("div").classes("cameras")
            self._drawing = Drawing().mark("overlay").style("min-height: 300px")
            self._caption = note("caption")

    def _select(self, options: list[str], label: str, **more: Any) -> ui.select:
        box = ui.select(options, label=label, on_change=self._changed, **more)
        return box.props("outlined dense options-dense")

    def _changed(self) -> None:
        # The boxes of another comparison change before it is drawn.
        if not self._opening:
            background_tasks.create(self.draw())

    @property
    def state(self) -> dict[str, Any]:
        """The comparison as an address has it."""
        signals = tuple(self._signals.value or ())
        return {"compared": self._ids, "align": self._align.value or START, "overlaid": signals, "t": self.t}

    async def open(self) -> None:
        """Compare the ticked rows; without any, the first of the list."""
        first = self.episodes.positions[:MOST_EPISODES]
        ids = self.episodes.marked or self.page.shown.episodes.frame["episode_id"].gather(first).to_list()
        await self.show(ids, self._align.value or START, self._signals.value or ())

    async def show(
        self, ids: Sequence[str], align: str, signals: Sequence[str], t: int | None = None
    ) -> None:
        """Compare episodes.

        Args:
            ids: those that are gone are left out.
            align: `START`, `END`, or a condition.
            signals: those that the first episode lacks are left out.
            t: the aligned step to show; None for the first one that there is.
        """
        places = map(self.page.shown.episodes.position_of, ids)
        self._ids = tuple(ids)
        self._positions = np.array([each for each in places if each is not None], np.int64)
        if not len(self._positions):
            self._caption.set_text("Tick episodes in the list and press Compare.")
            return
        first = self.page.shown.store[int(self._positions[0])]
        known = list(dict.fromkeys(["reward", "action", *signal_columns(first)]))
        cameras = [source.name for source in frame_sources(first, replayed=False)]
        self._opening = True
        self._signals.set_options(known, value=[each for each in signals if each in known])
        self._align.set_options(list(dict.fromkeys([START, END, align])), value=align)
        chosen = self._camera.value if self._camera.value in cameras else next(iter(cameras), None)
        self._camera.set_options(cameras, value=chosen)
        for part, wanted in ((self._camera, len(cameras) > 1), (self._over, bool(cameras))):
            part.set_visibility(wanted)
        self._opening = False
        self._aligned = None
        await self.draw(t)

    async def draw(self, t: int | None = None) -> None:
        """Draw what is chosen, at a step; without one at that which is shown then, if the alignment stays."""
        if not len(self._positions):
            return
        view, signals = self.page.shown.store[self._positions], tuple(self._signals.value or ())
        align = self._align.value or START
        colors = self.page.watch.colors
        drawn = await self._drawing.draw(self._caption, compare_spec, view, signals, align, colors)
        if drawn is None:
            return
        meta = drawn["usermeta"]
        self._differ = meta["differ"]
        self._first.set_visibility(self._differ is not None)
        episodes = {each.id: each for each in view}
        self._show_frames(episodes, meta["episodes"])
        zeros = {key: each["zero"] for key, each in meta["episodes"].items()}
        begin, end = -max(zeros.values()), max(episodes[key].length - zero for key, zero in zeros.items())
        # Another change may come while this one is drawn, and the step may move on.
        if t is None:
            t = self.t if align == self._aligned else begin
        self.t, self._aligned = min(max(t, begin), end), align
        rate = rate_of(next(iter(episodes.values())), self.page.shown.fps)
        self._playback.open(self.t, first=begin, last=end, rate=rate)

    def _show_frames(self, episodes: dict[str, Episode], shown: dict[str, dict[str, Any]]) -> None:
        self._frames.clear()
        with self._frames:
            for number, (key, each) in enumerate(list(shown.items())[:_MOST_CAMERAS]):
                sources = frame_sources(episodes[key], replayed=False)
                for source in (source for source in sources if source.name == self._camera.value):
                    camera = Camera(source, self._caption.set_text, text_of(each["label"]), each["zero"])
                    camera.style(f"--series: {PALETTE[number % len(PALETTE)]}")

    def _stack(self) -> None:
        self._frames.classes(remove="stacked", add="stacked" if self._over.value else "")

    def _to_difference(self) -> None:
        if self._differ is not None:
            self._playback.show(self._differ)

    def _moved(self, t: int, _: bool) -> None:
        self.t = t
