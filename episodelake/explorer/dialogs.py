"""The dialog over the list that exports ids, SQL, or a store of their own."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import polars as pl
from nicegui import run, ui

from .. import EpisodeStore
from ..errors import EpisodelakeError
from ..plugin import counted
from .episodes_pane import EpisodesPane
from .moments import text_of
from .queries import FORMATS, export_folder, ids_as, sql_of_ids
from .widgets import GONE, PageOwner, facts_list, note

#: The keys of the page: where they hold, and what they do.
KEYS = {
    "Everywhere": {"?": "show the keys", "Tab": "next row, head of a column, or button"},
    "Episodes": {
        "Up, Down": "previous and next episode of the list",
        "Left, Right": "previous and next step; with Shift ten steps",
        "Home, End": "first and last step",
        "Space": "play or pause",
        "+, -": "play faster or slower",
        "L": "loop",
        "C": "compare the ticked rows, or the first of the list",
    },
    "A row of the list": {
        "Enter": "open its episode",
        "Shift and Enter": "open it beside the first",
        "Space": "tick it",
    },
    "Labels": {
        "The keys on the buttons": "label the episode and open the next; with Shift stay",
        "N": "write a note; Enter keeps it, Escape drops it",
        "M": "mark the first step of a range; the next label ends it. Escape removes the mark",
        "U": "undo the last label",
    },
    "SQL": {"Ctrl and Enter": "run the query"},
}


def keys_dialog(*, writable: bool) -> ui.dialog:
    """Return the dialog that lists the keys."""
    with ui.dialog().props("aria-label=Keys") as dialog, ui.card().classes("gap-3"):
        with ui.element("h2").classes("part-title"):
            ui.label("Keys")
        parts = {where: keys for where, keys in KEYS.items() if writable or where != "Labels"}
        ui.html(facts_list(parts), sanitize=False).classes("keys")
    return dialog


class ExportDialog:
    """Exports of the listed episodes, or of the ticked rows.

    Args:
        page: the page that it is part of.
        episodes: the list.
    """

    def __init__(self, page: PageOwner, episodes: EpisodesPane) -> None:
        self.page = page
        self.episodes = episodes
        with (
            ui.dialog().props("aria-label=Export") as self._dialog,
            ui.card().classes("w-[640px] max-w-full gap-3"),
        ):
            ui.label("Export").classes("text-base font-semibold")
            self._what = (
                ui.radio({"list": ""}, value="list", on_change=self._show_query).props("dense").mark("what")
            )
            with ui.element("div").classes("bar wrapping"):
                ui.label("Ids").classes("muted")
                for kind in FORMATS:
                    button = ui.button(kind.upper(), icon="download", on_click=partial(self._download, kind))
                    button.props("outline dense no-caps").mark(f"download-{kind}")
                ui.button("Copy", icon="content_copy", on_click=self._copy_ids).props(
                    "outline dense no-caps aria-label='Copy the ids'"
                )
            ui.separator()
            with ui.element("div").classes("bar wrapping"):
                ui.label("SQL, for store.sql").classes("muted grow")
                ui.button("Copy", icon="content_copy", on_click=self._copy_sql).props(
                    "outline dense no-caps aria-label='Copy the query'"
                )
            self._sql = (
                ui.label().classes("mono").style("white-space: pre-wrap; max-height: 180px; overflow: auto")
            )
            self._sql.mark("sql-text")
            ui.separator()
            ui.label(f"A store of its own, in a new folder below {page.exports.resolve()}").classes(
                "muted"
            ).style("white-space: normal")
            with ui.element("div").classes("bar wrapping"):
                self._folder = (
                    ui.input(placeholder="best-episodes")
                    .props("outlined dense")
                    .classes("grow mono")
                    .mark("folder")
                )
                self._save = (
                    ui.button("Write", icon="save", on_click=self._write)
                    .props("dense no-caps unelevated")
                    .mark("write")
                )
            self._problem = note("problem w-full").mark("export-problem")
            self._message = note("w-full").style("color: var(--strong)").mark("export-done")

    def open(self) -> None:
        """Show the dialog for what is chosen now."""
        marked = self.episodes.marked
        options = {"list": f"All that the list shows ({len(self.episodes.positions):,})"}
        if marked:
            options["marked"] = f"The rows that are ticked ({len(marked):,})"
        self._what.set_options(options, value="marked" if marked else "list")
        self._message.set_text("")
        self._show_query()
        self._dialog.open()

    @property
    def _ids(self) -> list[str]:
        if self._what.value == "marked":
            return self.episodes.marked
        frame = self.page.shown.episodes.frame
        return frame["episode_id"][self.episodes.positions].to_list()

    def _query(self) -> str:
        return sql_of_ids(self._ids) if self._what.value == "marked" else self.episodes.chosen.sql

    def _show_query(self) -> None:
        self._sql.set_text(self._query())
        self._name_gone()

    def _name_gone(self) -> None:
        """Name the ticked rows that exports leave out, since their episodes are gone."""
        position_of = self.page.shown.episodes.position_of
        gone = [each for each in self.episodes.marked if position_of(each) is None]
        if gone and self._what.value == "marked":
            left = f"{counted(len(gone), 'ticked row')} left out: {text_of(', '.join(gone), 200)} {GONE}"
            self._problem.set_text(left)
        else:
            self._problem.set_text("")

    async def _download(self, kind: str) -> None:
        self._name_gone()
        text = await run.io_bound(self._text, kind)
        if text is not None:
            ui.download.content(text.encode(), f"episodes.{kind}")

    def _text(self, kind: str) -> str:
        episodes = self.page.shown.episodes
        if self._what.value == "marked":
            places = map(episodes.position_of, self._ids)
            positions = [place for place in places if place is not None]
        else:
            positions = self.episodes.positions
        return ids_as(episodes.rows(positions), kind)

    async def _copy_ids(self) -> None:
        self._name_gone()
        ui.clipboard.write(await run.io_bound(self._text, "txt") or "")
        ui.notify("Copied", timeout=1000)

    def _copy_sql(self) -> None:
        ui.clipboard.write(self._query())
        ui.notify("Copied", timeout=1000)

    async def _write(self) -> None:
        """Write a store with these episodes; the one that is explored is only read."""
        self._message.set_text("")
        self._save.props("loading")
        try:
            target = export_folder(self._folder.value or "", self.page.exports)
            count = await run.io_bound(_copied, self.page.shown.store, target, self._ids)
        except EpisodelakeError as error:
            self._problem.set_text(str(error))
            return
        finally:
            self._save.props(remove="loading")
        self._name_gone()
        self._message.set_text(f"Wrote {count:,} episodes to {target}")


def _copied(store: EpisodeStore, target: Path, ids: list[str]) -> int:
    copied = store.copy(target, filter=pl.col("episode_id").is_in(ids))
    return len(copied)
