"""The bar that labels the open episode, on pages that may write, and the dialog that declares its keys."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import polars as pl
from nicegui import background_tasks, run, ui
from nicegui.events import GenericEventArguments

from .. import EpisodeStore
from ..errors import EpisodelakeError
from .labels import AT, BY, ENTRY, NOTE, Key, LabelQueue, declared, label_lines, read_label_set
from .moments import text_of
from .panes.episode_pane import EpisodePane
from .panes.player import Player
from .widgets import PageOwner, note

#: Episodes that the browser can go on to before it hears from the server.
_AHEAD = 200
#: Answered when the browser has drawn the last update, and at once by a hidden page.
_WHEN_DRAWN = """new Promise((done) =>
    document.hidden ? done() : requestAnimationFrame(() => setTimeout(done)))"""
_PATIENCE = 5.0


class Listed(Protocol):
    """The list as the bar sees it.

    Attributes:
        positions: of the listed episodes.
    """

    positions: np.ndarray

    @property
    def marked(self) -> list[str]:
        """The ids of the ticked rows."""
        ...

    def after(self, episode_id: str, count: int) -> list[str]:
        """Return the ids of the episodes below one."""
        ...

    def open_listed(self, episode_id: str) -> None:
        """Open an episode, on its page of the list."""
        ...


class LabelBar(ui.element, component="labels.js"):
    """The bar above the open episode.

    The browser binds a key to the episode on its screen and goes on to the next; the server follows. Labels
    go to the ticked rows, or without any to that episode, or to steps of it from a mark on.

    Args:
        page: the page that it is part of.
        queue: commits the labels.
        listed: the list.
        player: the open episodes.
    """

    def __init__(self, page: PageOwner, queue: LabelQueue, listed: Listed, player: Player) -> None:
        super().__init__()
        self.page = page
        self._queue, self._listed, self._player = queue, listed, player
        self._open = self._wanted = ""
        self._mark: int | None = None
        self._handled, self._following = 0, False
        #: What labels of this page replaced, the newest last; and the episode that was labelled.
        self._undo: list[tuple[str, dict[Key, dict[str, Any]]]] = []
        self.labels, self._problem = declared(page.shown.labels, page.shown.store)
        self.mark("labels").on("label", self._labelled).on("undo", self._undone)
        self.on("mark", self._marked).on("save", queue.hurry).on("declare", lambda: self._dialog.open())
        self._declare()
        self.show("")

    @property
    def _schema(self) -> Mapping[str, Any]:
        return self.page.shown.episodes.frame.schema

    # Declaring

    def _declare(self) -> None:
        """Lay out the dialog with the keys, and the name of who labels."""
        with ui.dialog().props("aria-label=Labels") as self._dialog, ui.card().classes("w-[480px] gap-3"):
            with ui.element("h2").classes("part-title"):
                ui.label("Labels")
            self._lines = ui.textarea("A key and a label in each line").props("outlined autogrow")
            self._lines.classes("mono w-full").set_value("\n".join(label_lines(self.labels)))
            self._who = ui.input("Your name", value=getpass.getuser()).props("outlined dense")
            self._wrong = note("problem w-full")
            ui.button("Save", on_click=self._save_keys).props("dense no-caps unelevated")

    async def _save_keys(self) -> None:
        """Keep the declaration in the card, for everybody who labels this store."""

        def write(labels: Any) -> None:
            handle = self.page.shown.store.handle
            EpisodeStore(handle.layout, handle.manifest).card[ENTRY] = label_lines(labels)

        try:
            labels = read_label_set((self._lines.value or "").splitlines(), self.page.shown.store)
            if labels != self.labels:
                await run.io_bound(write, labels)
        except EpisodelakeError as error:
            self._wrong.set_text(str(error))
            return
        self.labels, self._problem = labels, ""
        self._wrong.set_text("")
        self._dialog.close()
        self.renew()

    # Showing

    def show(self, episode_id: str) -> None:
        """Show the labels of an episode; of none without an id."""
        if episode_id != self._open:
            self._mark = None
        self._open = self._wanted = episode_id
        self.renew()

    def renew(self) -> None:
        """Show the labels as they are now."""
        values = self._values((self._open,))
        names = dict.fromkeys(name for name, _ in self.labels.values())
        lines = [_caption(name, values[name]) for name in names if values.get(name) is not None]
        if pane := self._pane:
            lines += [line for name in names for line in self._ranges(pane, name)]
        if lines and isinstance(values.get(AT), datetime):
            lines.append(f"{text_of(values.get(BY), 40)}, {values[AT]:%Y-%m-%d %H:%M} UTC")
        waiting = self._queue.waiting
        problems = [self._problem, *self._queue.refused[-3:], self._queue.problem and self._failed]
        before = dict(self._props)
        self._props.update(
            current=self._wanted,
            drawn=self._open,
            handled=self._handled,
            following=self._listed.after(self._wanted, _AHEAD) if self._wanted else [],
            keys=[{"key": key, "title": _caption(*label)} for key, label in self.labels.items()],
            state=" \N{MIDDLE DOT} ".join(lines),
            note=text_of(values[NOTE]) if values.get(NOTE) is not None else "",
            ticked=len(self._listed.marked),
            steps="" if self._mark is None else f"from t = {self._mark:,}",
            undoable=bool(self._undo),
            left=self._left(list(names)),
            waiting=f"{waiting:,} not saved yet" if waiting else "",
            problem=text_of("\n".join(filter(None, problems)), 2000),
        )
        if self._props != before:
            self.update()

    @property
    def _failed(self) -> str:
        return f"{self._queue.waiting:,} labels wait for the next attempt. {self._queue.problem}"

    def _left(self, names: Sequence[str]) -> str:
        """Return how many of the listed episodes have no label."""
        episodes, listed = self.page.shown.episodes, self._listed.positions
        there = [name for name in names if name in self._schema]
        empty = np.ones(len(episodes), bool)
        if there:
            empty = episodes.frame.select(pl.all_horizontal(pl.col(there).is_null())).to_series().to_numpy()
            empty = empty.copy()
        for key in self._queue.newer(episodes.version):
            position = episodes.position_of(key[0]) if len(key) == 1 else None
            if position is not None:
                empty[position] = all(self._values(key).get(name) is None for name in names)
        left = int(empty[listed].sum())
        return f"{left:,} left" if left == len(listed) else f"{left:,} of {len(listed):,} left"

    def _values(self, key: Key) -> dict[str, Any]:
        """Return the values of an episode, or of a step, which is of the open one."""
        episodes = self.page.shown.episodes
        committed: dict[str, Any] = {}
        if len(key) > 1:
            columns = self._pane.step_labels if self._pane else {}
            committed = {name: column[key[-1]] for name, column in columns.items() if key[-1] < len(column)}
        elif (position := episodes.position_of(key[0])) is not None:
            committed = episodes.frame.row(position, named=True)
        return self._queue.over(key, episodes.version, committed)

    @property
    def _pane(self) -> EpisodePane | None:
        """The open episode, once the player has it."""
        panes = self._player.panes
        return panes[0] if panes and panes[0].episode.id == self._open and not panes[0].state else None

    def _ranges(self, pane: EpisodePane, name: str) -> list[str]:
        """Return the ranges of steps that have a label, as texts."""
        newer = self._queue.newer(self.page.shown.episodes.version)
        if name not in pane.step_labels and not any(key[:-1] == pane.step_key for key in newer):
            return []
        values = [self._values((*pane.step_key, t)).get(name) for t in range(pane.length + 1)]
        bounds = [t for t in range(len(values)) if t == 0 or values[t] != values[t - 1]] + [len(values)]
        return [
            f"{_caption(name, values[first])} at t = {first:,} to {end - 1:,}"
            for first, end in pairwise(bounds)
            if values[first] is not None
        ]

    # Events

    async def _labelled(self, event: GenericEventArguments) -> None:
        """Take a label from the browser, and follow it to the next episode."""
        given = event.args
        self._handled = given["seq"]
        label = (NOTE, given["note"] or None) if given["key"] is None else self.labels.get(given["key"])
        ids = [given["id"]] if self._mark is not None else self._listed.marked or [given["id"]]
        if label is None or ids == [""]:
            self.renew()
            return
        if self.page.watch.state_of(ids[0]):
            self._problem = "Label this episode once it is sealed."
            self.renew()
            return
        name, value = label
        signed: dict[str, Any] = {BY: (self._who.value or "").strip() or None, AT: datetime.now(UTC)}
        keys: list[Key] = [(each,) for each in ids]
        changes: dict[Key, dict[str, Any]] = {key: {name: value, **signed} for key in keys}
        if self._mark is not None and given["key"] is not None and (pane := self._pane):
            first, last = sorted((self._mark, min(given["t"], pane.length)))
            steps: dict[Key, dict[str, Any]] = {
                (*pane.step_key, t): {name: value} for t in range(first, last + 1)
            }
            changes = {**steps, keys[0]: signed}
            self._mark = None
        before = {
            key: {each: self._values(key).get(each) for each in values} for key, values in changes.items()
        }
        self._problem = ""
        self._undo.append((ids[0] if len(ids) == 1 else "", before))
        self._queue.add(changes)
        following = given["next"]
        if following and given["id"] == self._wanted and ids == [given["id"]]:
            self._wanted = following
            background_tasks.create(self._follow())
        else:
            self.renew()

    async def _follow(self) -> None:
        """Open the episode that the browser has gone on to; of several in a row the last."""
        if self._following:
            return
        self._following = True
        try:
            while self._wanted != self._open:
                # Keys that have come meanwhile go first.
                await asyncio.sleep(0.02)
                with self.client:
                    self._listed.open_listed(self._wanted)
                with suppress(TimeoutError):
                    await self.client.run_javascript(_WHEN_DRAWN, timeout=_PATIENCE)
        finally:
            self._following = False

    def _undone(self) -> None:
        if self._undo:
            episode_id, before = self._undo.pop()
            self._queue.add(before)
            if episode_id and episode_id != self._open and self.page.watch.state_of(episode_id) == "":
                self._listed.open_listed(episode_id)
            else:
                self.renew()

    def _marked(self, event: GenericEventArguments) -> None:
        self._mark = event.args
        self.renew()


def _caption(name: str, value: Any) -> str:
    """Return a label for people: `good` and `bad`, `slip`, `grasp = 2`."""
    if isinstance(value, bool):
        return name if value else {"good": "bad"}.get(name, f"not {name}")
    return text_of(value, 60) if isinstance(value, str) else f"{name} = {value}"
