"""Labels of episodes, on pages that may write: good, bad, a note, and undo."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import polars as pl
from nicegui import run, ui

from .. import EpisodeStore
from ..errors import EpisodelakeError
from .moments import text_of
from .widgets import PageOwner, icon_button, note

#: The annotations that the bar writes.
GOOD, NOTE = "good", "note"


class LabelBar:
    """The bar above the open episode.

    Labels go to the ticked rows, or without any to the open episode; after good or bad the next one opens.
    Each label is a commit of its own.

    Args:
        page: the page that it is part of.
        marked: gives the ids of the ticked rows.
        moved: opens the next episode of the list.
    """

    def __init__(
        self, page: PageOwner, marked: Callable[[], Sequence[str]], moved: Callable[[int], None]
    ) -> None:
        self.page = page
        self._marked, self._moved = marked, moved
        self._open = ""
        self._noted: tuple[str, str] | None = None
        #: Values before, of the labels of this page; the newest last.
        self._before: list[pl.DataFrame] = []
        self._turn = asyncio.Lock()
        with ui.element("div").classes("card timeline").mark("labels"):
            for value, name, icon in ((True, "Good (G)", "thumb_up"), (False, "Bad (B)", "thumb_down")):
                icon_button(icon, name, partial(self.label, good=value)).mark(name.split()[0].lower())
            self._state = ui.label().classes("label-state")
            self._note = ui.input(placeholder="Note (N), then Enter").props("outlined dense clearable")
            self._note.props["aria-label"] = "Note"
            self._note.classes("grow").mark("label-note").on("keydown.enter", self._note_entered)
            self._undo = icon_button("undo", "Undo the last label (U)", self.undo).mark("undo")
            self._problem = note("problem").mark("label-problem")
        self.show("")

    def show(self, episode_id: str) -> None:
        """Show the labels of an episode; of none without an id."""
        self._open = episode_id
        values = self._values(episode_id)
        good = values.get(GOOD)
        self._state.set_text("" if good is None else "good" if good is True else "bad")
        noted = (episode_id, text_of(values[NOTE]) if values.get(NOTE) is not None else "")
        if noted != self._noted:
            # Otherwise a note that is being typed stays.
            self._note.set_value(noted[1])
            self._noted = noted
        self._undo.set_enabled(bool(self._before))

    def _values(self, episode_id: str) -> dict[str, Any]:
        episodes = self.page.shown.episodes
        position = episodes.position_of(episode_id) if episode_id else None
        return {} if position is None else episodes.frame.row(position, named=True)

    async def label(self, **labels: Any) -> None:
        """Label the ticked or the open episodes; after good or bad, open the next one."""
        opened = self._open
        ids = list(self._marked()) or [opened]
        if ids == [""]:
            return
        if self.page.watch.state_of(ids[0]):
            self._problem.set_text("Label this episode once it is sealed.")
            return

        def write(store: EpisodeStore) -> None:
            self._before.append(store.label(store.filter(pl.col("episode_id").is_in(ids)), **labels))

        def move() -> None:
            # A key that is pressed again before the next episode is shown moves no further.
            if GOOD in labels and self._open == opened:
                self._moved(1)

        await self._write(write, move)

    async def undo(self) -> None:
        """Bring back the values before the last label."""

        def restore(store: EpisodeStore) -> None:
            # In its turn: another label or undo may have come first.
            if self._before:
                store.annotate(self._before[-1])
                self._before.pop()

        await self._write(restore)

    def focus_note(self) -> None:
        """Put the cursor into the note."""
        self._note.run_method("focus")

    async def _note_entered(self) -> None:
        # The next key is a label again.
        self._note.run_method("blur")
        await self.label(**{NOTE: str(self._note.value).strip() or None if self._note.value else None})

    async def _write(
        self, change: Callable[[EpisodeStore], None], then: Callable[[], None] = lambda: None
    ) -> None:
        """Change the store and show the new version. Call `then` before, since charts take a while."""
        handle = self.page.shown.store.handle
        async with self._turn:
            self._problem.set_text("")
            try:
                # Pages still read the version that is shown.
                await run.io_bound(lambda: change(EpisodeStore(handle.layout, handle.manifest)))
            except EpisodelakeError as error:
                self._problem.set_text(text_of(str(error)))
                return
            then()
            await self.page.follow_now()
            self.show(self._open)
