"""The explorer's page: its layout, and the events between its parts.

One `Page` per open browser tab. It holds the choice; the panes show it and call back.
"""

from __future__ import annotations

import asyncio
import importlib
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastapi
from nicegui import app, background_tasks, run, ui
from nicegui.events import KeyEventArguments

from .. import Episode
from ..errors import EpisodelakeError
from ..plugin import Unsealed, counted
from ..readers.charts.theme import END_COLORS
from ..types import Lake
from .address import COMPARE, OVERVIEW, Address
from .copying import copy_menu
from .dialogs import ExportDialog, keys_dialog
from .episodes_pane import EpisodesPane
from .label_bar import LabelBar
from .lake_page import STORE_PATH, LakePage
from .listing import Choice
from .live.growing import POLL
from .live.watch import PAUSE, LakeWatch, Shown, Watch
from .moments import text_of
from .overview_pane import OverviewPane
from .panes.compare_pane import ComparePane
from .panes.player import Player
from .panes.reasons import ReasonBar
from .panes.recording_pane import RecordingPane
from .sql_pane import SqlPane
from .tab import Tab
from .widgets import BUNDLE_PATH, GONE, add_grip, note, path_label, vega_bundle

#: Seconds that the opening of a large store may take.
_OPENING = 120.0


def add_page(application: fastapi.FastAPI, watch: Watch | LakeWatch, exports: Path) -> None:
    """Give an application the page at `/`, of a lake those of its stores too, and the charts' JavaScript."""

    @application.get(BUNDLE_PATH)
    def send_bundle() -> fastapi.Response:
        return fastapi.Response(
            vega_bundle(), media_type="text/javascript", headers={"cache-control": "private, max-age=86400"}
        )

    pages: weakref.WeakSet[Page] = weakref.WeakSet()
    # A running query would delay the end of the process.
    app.on_shutdown(lambda: [each.close() for each in (watch, *pages, *(page.watch for page in list(pages)))])
    # Load what draws while the browser starts.
    app.on_startup(lambda: run.io_bound(_warm_up))

    if isinstance(watch, LakeWatch):
        _add_lake(watch, lambda store, name: pages.add(Page(store, exports, watch.lake, name)))
        return

    @ui.page("/")
    def index() -> None:
        pages.add(Page(watch, exports))


def _warm_up() -> None:
    vega_bundle()
    importlib.import_module("altair")


def _add_lake(lake: LakeWatch, show: Callable[[Watch, str], None]) -> None:
    """Add the pages of a lake: its list, and each store at its name."""
    ui.page("/")(lambda: LakePage(lake))

    @ui.page(STORE_PATH, response_timeout=_OPENING)
    async def store(name: str = "") -> None:
        problem, opened = "The server is stopping.", None
        try:
            opened = await run.io_bound(lake.store, name)
        except EpisodelakeError as error:
            problem = str(error)
        if opened is None:
            LakePage(lake, problem, name)
        else:
            show(opened, name)


class Page(Tab):
    """The page of one browser tab that shows a store.

    Args:
        watch: the store.
        exports: the folder below which new stores may be written.
        lake, name: the lake that the page leads back to, and the name of the store there.
    """

    def __init__(self, watch: Watch, exports: Path, lake: Lake | None = None, name: str = "") -> None:
        super().__init__()
        self.watch = watch
        self.lake, self.name = lake, name
        self.shown: Shown = watch.shown
        self.exports = exports
        self._opening = 0
        ui.add_css("".join(f".end.{end}::before {{ background: {END_COLORS[end]} }}" for end in END_COLORS))
        self._header()
        with (
            ui.tab_panels(self.tabs, value="overview", keep_alive=True)
            .classes("explorer-body")
            .props("animated=false tabindex=-1")
        ):
            with ui.tab_panel("overview").classes("explorer-panel"):
                self.overview = OverviewPane(self)
            with ui.tab_panel("episodes").classes("explorer-panel"):
                self._episodes_tab()
            with ui.tab_panel(COMPARE).classes("explorer-panel"):
                self._compare = ComparePane(self, self.episodes)
            with ui.tab_panel("sql").classes("explorer-panel"):
                self.sql_place = ui.element("div").classes("w-full h-full")
        self.export = ExportDialog(self, self.episodes)
        self._keys = keys_dialog(writable=self.watch.labels is not None)
        ui.keyboard(on_key=self._arrow_key, ignore=["input", "select", "textarea"])
        self._timer = ui.timer(PAUSE, self._follow)
        if not self.watch.pinned:
            ui.timer(POLL, self._follow_writers)
        self.begin()
        ui.context.client.on_delete(self.close)
        if self.watch.labels is not None:
            ui.context.client.on_disconnect(self.watch.labels.hurry)
        self._show_version()
        self._show_writers(self.watch.recordings.unsealed)
        self._show_problems()

    def _header(self) -> None:
        first: Any = "overview"
        skip = ui.link("Skip to the content", "#").classes("skip")
        skip.on("click.prevent", js_handler="() => document.querySelector('.explorer-body').focus()")
        with ui.element("header").classes("explorer-header"):
            ui.label("Episodelake").classes("brand")
            if self.lake is not None:
                with ui.link("\N{LEFTWARDS ARROW} All stores", "./").classes("muted").mark("lake"):
                    ui.tooltip(text_of(self.lake.url))
            self._title = path_label(self.shown.store.url, self.name)
            self._amounts = ui.label().classes("muted")
            with ui.element("div").classes("live"):
                with ui.element("span").classes("dot") as self._dot:
                    self._live = ui.tooltip("")
                self._version = ui.label().classes("muted").mark("version")
                self._writers = note().mark("writers")
            ui.space()
            with ui.tabs(value=first, on_change=self._tab_changed).props(
                "dense no-caps inline-label"
            ) as self.tabs:
                ui.tab("overview", "Overview", icon="insights")
                ui.tab("episodes", "Episodes", icon="view_list")
                ui.tab(COMPARE, "Compare", icon="stacked_line_chart")
                ui.tab("sql", "SQL", icon="terminal")
            copy_menu(lambda: (self.address, self.episodes.chosen, self.shown.episodes))
            ui.button("Export", icon="ios_share", on_click=lambda: self.export.open()).props(
                "flat dense no-caps"
            ).mark("export")
            self.dark_button()
        self._banner = note("problem banner").mark("banner")

    def _episodes_tab(self) -> None:
        with ui.splitter(value=46, limits=(25, 75)).classes("explorer-split") as splitter:
            add_grip(splitter)
            with splitter.before, ui.element("div").classes("list-side"):
                self.recording = RecordingPane(self)
                self.episodes = EpisodesPane(self)
            with splitter.after:
                self.player = Player(self)
                with self.player.top:
                    self.reasons = ReasonBar(self)
                self.labels: LabelBar | None = None
                if self.watch.labels is not None:
                    with self.player.top:
                        self.labels = LabelBar(self, self.watch.labels, self.episodes, self.player)

    # Events of the panes

    def open_episode(
        self, episode_id: str, *, beside: bool = False, t: int | None = None
    ) -> asyncio.Task[None] | None:
        """Show an episode, alone or beside the one that is shown; at a step, if one is given.

        Returns:
            Of an unsealed one a task that ends when it is shown, or another one was opened meanwhile.
        """
        self._opening += 1
        try:
            position = self.shown.episodes.position_of(episode_id)
            if position is None and self.watch.recordings.find(episode_id) is not None:
                return background_tasks.create(self._open_unsealed(episode_id, beside, t, self._opening))
            if position is None:
                self.player.show_problem(f"{text_of(episode_id)} {GONE}")
            else:
                self.player.open(self.shown.store[position], beside=beside, t=t)
        except EpisodelakeError as error:
            self.player.show_problem(str(error))
        self.closed_episode()
        return None

    async def _open_unsealed(self, episode_id: str, beside: bool, t: int | None, opening: int) -> None:
        """Show an episode that is being recorded, at its last step, unless another was opened meanwhile."""
        problem, episode = f"{text_of(episode_id)} has no step yet.", None
        try:
            episode = await run.io_bound(self.watch.recordings.episode, episode_id)
        except EpisodelakeError as error:
            problem = str(error)
        if opening != self._opening:
            return
        if episode is None:
            self.player.show_problem(problem)
            return
        with self.player.client:
            self.player.open(episode, beside=beside, t=episode.length if t is None else t)
            self.closed_episode()

    def closed_episode(self) -> None:
        """React to an episode that was closed or opened in the player."""
        self.episodes.mark_open(self.player.ids)
        self.recording.mark_open(self.player.ids)
        self.reasons.show(next(iter(self.player.ids), ""))
        if self.labels is not None:
            self.labels.show(next(iter(self.player.ids), ""))

    def ticked(self) -> None:
        """Show what labels go to, and how they are."""
        if self.labels is not None:
            self.labels.renew()

    def look_at_player(self) -> None:
        """Scroll to the player on a narrow page, where it is below the list."""
        ui.run_javascript(
            "if (getComputedStyle(document.querySelector('.explorer-split')).flexDirection === 'column') "
            "document.querySelector('.player').scrollIntoView()"
        )

    def show_list(self) -> None:
        """Open the tab with the list."""
        self.tabs.set_value("episodes")

    def show_ids(self, ids: Sequence[str]) -> None:
        """Let the list show some episodes, by id."""
        self.show_list()
        self.episodes.show_ids(ids)

    async def compare(self) -> None:
        """Show the ticked episodes beside each other."""
        if self._compare.state["compared"]:
            await self._compare.open()
        self.tabs.set_value(COMPARE)

    async def narrow(self, column: str, condition: str) -> None:
        """Let the list show those of its episodes that fulfil an SQL condition on a column."""
        self.show_list()
        if condition not in self.episodes.choice.chips:
            await self.episodes.narrow(column, condition)

    async def show_whole(self) -> None:
        """Remove the filter of the list."""
        choice = self.episodes.choice
        await self.episodes.choose(Choice(sort=choice.sort, descending=choice.descending))
        await self.overview.follow(self.episodes.chosen)

    async def show_finding(self, name: str) -> None:
        """Let the list show the episodes of a finding, and open the first one where it shows."""
        self.show_list()
        await self.episodes.choose(await self._with_finding(Choice(), name))
        first = self.watch.checkup().first(name)
        if first is not None:
            self.show_reason(*first)

    def show_reason(self, episode_id: str, column: str | None, t: int | None) -> None:
        """Open an episode at the step of a finding, with the signal of its column."""
        self.show_list()
        self.player.signals = self.reasons.signals(episode_id, column, t)
        self.open_episode(episode_id, t=t)
        self.look_at_player()

    async def choose_runs(self, run_ids: Sequence[str]) -> None:
        """Let the list and the overview show the episodes of some runs; of all without any."""
        chosen = replace(self.episodes.choice, run_ids=tuple(run_ids))
        await self.episodes.choose(chosen, self.episodes.brushed)

    async def _with_finding(self, choice: Choice, name: str) -> Choice:
        """Return a choice with the episodes of a finding, once the health of the store is known."""
        while (checkup := self.watch.checkup()).report is None and not checkup.problem:
            await asyncio.sleep(PAUSE / 10)
        return replace(choice, ids=checkup.ids(name), about=name)

    # The address

    @property
    def address(self) -> Address:
        """State of this tab, as its URL has it."""
        choice, ids = self.episodes.choice, [*self.player.ids, "", ""]
        step: dict[str, Any] = {"t": self.player.t}
        return Address(
            pane=str(self.tabs.value or OVERVIEW),
            where=" AND ".join(choice.conditions),
            brush=tuple(self.episodes.brushed),
            chips=choice.chips,
            facets=self.episodes.facets.names or (),
            runs=choice.run_ids,
            finding=choice.about,
            sort=("-" if choice.descending else "") + choice.sort,
            gallery=self.episodes.gallery,
            episode=ids[0],
            beside=ids[1],
            signals=tuple(self.player.signals),
            query=self.sql.text if self.sql else "",
            curve=self.overview.curve,
            **(self._compare.state if self.tabs.value == COMPARE else step),
        )

    async def show_address(self, address: Address) -> None:
        """Show what an address says. What is not there any more is left out."""
        choice = address.choice
        if address.finding:
            choice = await self._with_finding(choice, address.finding)
        await self.overview.choose(address.curve)
        self.episodes.show_gallery(address.gallery)
        await self.episodes.facets.choose(address.facets or None)
        await self.episodes.choose(choice, address.brush)
        await run.io_bound(self.watch.recorded)
        await self._open(address)
        if address.compared:
            await self._compare.show(address.compared, address.align, address.overlaid, address.t)
        self.tabs.set_value(COMPARE if address.compared else address.pane)
        await self.follow_list()
        if self.sql is not None:
            self.sql.write(address.query)

    async def _open(self, address: Address) -> None:
        """Open the episodes of an address at its step, with its signals."""
        ids = [each for each in (address.episode, address.beside) if each]
        if ids and (ids, list(address.signals)) != (self.player.ids, self.player.signals):
            self.player.signals = list(address.signals)
            for place, each in enumerate(ids):
                opening = self.open_episode(each, beside=place > 0, t=address.t)
                if opening is not None:
                    await opening
        elif ids:
            self.player.jump(address.t)

    def keep_address(self) -> None:
        """Write what the tab shows into the address bar, once it stands still."""
        if not self.player.playing:
            super().keep_address()

    # Following

    async def _follow(self) -> None:
        shown = await run.io_bound(self.watch.look)
        if shown is None or self._timer.is_deleted:
            return
        self._show_problems()
        if shown.episodes.version == self.shown.episodes.version:
            self.ticked()
            return
        self.shown = shown
        self._show_version()
        await self.episodes.renew()
        await self.overview.renew()
        self.player.renew()
        self.ticked()
        if self.sql is not None:
            self.sql.renew()

    async def _follow_writers(self) -> None:
        unsealed = await run.io_bound(self.watch.recorded)
        if unsealed is not None and not self._timer.is_deleted:
            self._show_writers(unsealed)
            self.recording.show(unsealed)
            await self.player.grow()

    def reopened(self, episode_id: str) -> Episode | None:
        """Return an episode of the version that is shown now; None if it is gone."""
        position = self.shown.episodes.position_of(episode_id)
        return None if position is None else self.shown.store[position]

    def _show_version(self) -> None:
        self._version.set_text(f"version {self.shown.episodes.version}")

    def tell_chosen(self, amounts: str) -> None:
        """Say in the header which part of the episodes the list shows."""
        self._amounts.set_text(amounts)

    def _show_writers(self, unsealed: Unsealed) -> None:
        writers = unsealed.writers
        self._dot.classes(replace="dot following" if writers else "dot")
        self._live.set_text("Writers record into this store." if writers else "Nothing records.")
        since, today = datetime.fromtimestamp(writers[0] if writers else 0, UTC), datetime.now(UTC).date()
        time = f"{since:%H:%M}" if since.date() == today else f"{since:%Y-%m-%d %H:%M}"
        self._writers.set_text(f"{counted(len(writers), 'writer')} since {time} UTC" if writers else "")

    def _show_problems(self) -> None:
        problems = list(self.watch.left_out)
        if self.watch.problem is not None:
            problems.append(f"A newer version cannot be read, so this stays as it was. {self.watch.problem}")
        if self.watch.recordings.unsealed.problems:
            unread = " ".join(self.watch.recordings.unsealed.problems)
            problems.append(f"Some episodes that are not sealed cannot be read. {unread}")
        self._banner.set_text("\n".join(problems))

    # Small things

    async def follow_list(self) -> None:
        """Show the overview of what the list shows, if the overview is open."""
        if self.tabs.value == OVERVIEW:
            await self.overview.follow(self.episodes.chosen)

    async def _tab_changed(self) -> None:
        await self.follow_list()
        if self.tabs.value == "episodes" and not self.player.panes:
            self.episodes.move(0)  # The pane never starts empty.
        if self.tabs.value == COMPARE and not self._compare.state["compared"]:
            await self._compare.open()
        if self.tabs.value == "sql" and self.sql is None:
            with self.sql_place:
                self.sql = SqlPane(self)

    def _arrow_key(self, event: KeyEventArguments) -> None:
        if not event.action.keydown:
            return
        if event.key.name == "?":
            self._keys.open()
        if self.tabs.value != "episodes" or event.modifiers.ctrl or event.modifiers.meta:
            return
        if event.key.name == "c" and not event.action.repeat:
            background_tasks.create(self.compare())
        elif event.key.arrow_up or event.key.arrow_down:
            self.episodes.move(1 if event.key.arrow_down else -1)
