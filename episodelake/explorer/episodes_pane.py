"""The left side of the page: charts over runs, the filter, and the list of episodes, a page at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from nicegui import background_tasks, run, ui
from nicegui.events import GenericEventArguments

from ..errors import EpisodelakeError
from ..plugin import counted, literal
from .charts import OVERVIEWS, conditions_of, overview_spec, to_extremes
from .facets_pane import FacetsPane, label_of
from .listing import POSITION, RUN_KEY, Choice, EpisodeList
from .moments import text_of
from .widgets import DataTable, Drawing, PageOwner, facts_list, icon_button, note

ROWS_OF_A_PAGE = 50
#: A list of episodes shows so many columns, without these, unless others are chosen.
_MOST_COLUMNS = 30
_LEFT_OUT = ("run_id", "terminated", "truncated", "ended_at", "wide_seed", "options", "number", "env_index")
_CHART_PAUSE = 4.0
#: A menu of boxes to tick, which would be no items of a menu.
_BOXES = "auto-close=false role=dialog aria-label=Columns"
_ABOUT = "role=dialog aria-label=About"


class EpisodesPane:
    """The list of episodes and its filters.

    Args:
        page: the page that it is part of.
    """

    def __init__(self, page: PageOwner) -> None:
        self.page = page
        self.choice = Choice()
        self.brushed: list[str] = []
        self.positions = page.shown.episodes.positions(self.choice)
        self._first = 0
        self._count = ROWS_OF_A_PAGE
        self._open: Sequence[str] = ()
        self._charted = 0.0
        self._sheets = page.watch.sheets
        with ui.element("div").classes("pane"):
            self._filter_bar()
            self._overview()
            with ui.element("div").classes("list-row"):
                self.facets = FacetsPane(page, lambda: self.chosen, self.narrow)
                self._table()
        page.tell_chosen(page.shown.episodes.amounts())
        self._show()
        ui.timer(0.05, self._draw, once=True)

    # Layout

    def _filter_bar(self) -> None:
        with ui.element("div").classes("bar wrapping"):
            example = "episode_return > 100 and end_reason = 'truncated'"
            self._input = ui.input(placeholder=f"SQL condition, such as  {example}").props(
                "outlined dense clearable"
            )
            self._input.props["aria-label"] = "SQL condition"
            self._input.classes("mono grow").mark("filter")
            with self._input.add_slot("prepend"):
                ui.icon("filter_alt", size="18px")
            self._input.on("keydown.enter", self._filter).on("clear", self._filter)
            self._runs = ui.select(self._run_labels(), multiple=True, label="Runs", clearable=True)
            self._runs.props("outlined dense options-dense use-chips=false").classes("w-44").mark("runs")
            self._runs.on_value_change(self._filter)
            icon_button("bar_chart", "Facets", self._toggle_facets).mark("facets-button")
            icon_button("stacked_line_chart", "Compare", lambda: self.page.compare()).mark("compare")
            self._gallery = icon_button("grid_view", "Gallery", lambda: self.show_gallery(not self.gallery))
            self._gallery.mark("gallery").set_visibility(self._sheets.ratio is not None)
            with icon_button("view_column", "Columns").mark("columns"), ui.menu().props(_BOXES):
                self._boxes: dict[str, ui.checkbox] = {}
                self._column_menu = ui.column().classes("p-3 gap-0")
            self._offer_columns()
        self._about_chip = ui.chip(removable=True, icon="rule", color="primary")
        self._about_chip.props("dense outline size=12px").mark("about-chip")
        self._about_chip.on("remove", lambda: self.choose(replace(self.choice, ids=None, about="")))
        self._about_chip.set_visibility(False)
        self._chips = ui.element("div").classes("chips")
        with ui.element("div").classes("problem bar") as place:
            self._problem = ui.label().classes("grow").mark("filter-problem")
            ui.button("Clear the condition", on_click=self._clear).props(
                "dense no-caps outline color=negative"
            )
        place.bind_visibility_from(self._problem, "text", backward=bool)

    def _toggle_facets(self) -> None:
        self.facets.place.set_visibility(not self.facets.place.visible)

    def _offer_columns(self) -> None:
        """Offer the columns of the version that is shown; a new one is ticked if it is usual."""
        names, groups = self.page.shown.episodes.columns, self.page.shown.episodes.groups
        if names == list(self._boxes):
            return
        ticked = {name: box.value for name, box in self._boxes.items()}
        self._boxes.clear()
        self._column_menu.clear()
        # Keys that all runs share are alike in each row.
        varied = (name for name in names if name in groups or not name.startswith(RUN_KEY))
        usual = set(islice((name for name in varied if name not in _LEFT_OUT), _MOST_COLUMNS))
        with self._column_menu:
            for name in names:
                box = ui.checkbox(name, value=ticked.get(name, name in usual), on_change=self._choose_columns)
                self._boxes[name] = box.props("dense").classes("py-1")

    def _show_columns(self) -> None:
        self._table_place.columns = self._column_specs()

    def _choose_columns(self) -> None:
        self._show_columns()
        self._show()

    def _overview(self) -> None:
        with ui.element("div").classes("card overview") as self._drawing_place:
            first: Any = next(iter(OVERVIEWS))
            with ui.row().classes("w-full items-center gap-2 overview-head"):
                tabs = ui.tabs(value=first, on_change=self._kind_changed)
                with tabs.props("dense no-caps align=left mobile-arrows").classes("grow"):
                    for name, overview in OVERVIEWS.items():
                        ui.tab(name, overview.label)
                self._kind = tabs
                self._about()
                self._chip = ui.chip(removable=True, icon="highlight_alt", color="primary").props(
                    "dense outline size=12px"
                )
                self._chip.classes("mono").mark("brush").on("remove", self._clear_brush)
                self._chip.set_visibility(False)
            self._drawing = Drawing(on_brush=self._brush, on_scale=self.chart)
            self._drawing.mark("overview").style("min-height: 124px")
            self._no_chart = note("muted pb-2").style("white-space: normal")

    def _about(self) -> None:
        """Offer the dataset card, whose title the overview shows too."""
        card = self.page.shown.card
        if card:
            entries = {key: text_of(value) for key, value in card.items()}
            with (
                icon_button("info", "About the data").props("size=sm").mark("about"),
                ui.menu().props(_ABOUT),
            ):
                ui.html(facts_list({"About": entries}), sanitize=False).classes("about p-3")

    def _table(self) -> None:
        table = DataTable(
            rows=[],
            columns=self._column_specs(),
            row_key="_id",
            selection="multiple",
            pagination={"rowsPerPage": self._count},
            on_select=lambda: self.page.ticked(),
        )
        table.classes("episodes-table").mark("episodes")
        table.on("request", self._request)
        table.on("rowClick", self._clicked, [[], ["_id", POSITION], None])
        table.on("open", lambda event: self._opened(event.args["_id"]))
        table.on("beside", self._beside_clicked)
        table.on("clear", lambda: self.page.show_whole())
        table.props["quick"] = self._sheets.quick
        table.style(f"--ratio: {self._sheets.ratio or 1:.4g}")
        self._table_place = table

    @property
    def gallery(self) -> bool:
        """Whether the list is a grid of pictures."""
        return bool(self._table_place.props.get("grid"))

    def show_gallery(self, wanted: bool) -> None:
        """Show the list as a grid of pictures, or as a table."""
        wanted = wanted and self._sheets.ratio is not None
        self._table_place.props["grid"] = wanted
        self._gallery.props["aria-pressed"] = str(wanted).lower()
        self._gallery.classes(remove="pressed", add="pressed" if wanted else "")
        self._drawing_place.set_visibility(not wanted)

    def _column_specs(self) -> list[dict[str, Any]]:
        episodes = self.page.shown.episodes
        specs = [{"name": POSITION, "label": "#", "field": POSITION, "sortable": True, "align": "right"}]
        for name in (name for name, box in self._boxes.items() if box.value):
            numeric = name in episodes.frame.columns and episodes.frame.schema[name].is_numeric()
            label = label_of(name)
            specs.append(
                {
                    **{"name": name, "label": label, "field": name, "align": "right" if numeric else "left"},
                    "sortable": name in episodes.frame.columns and episodes.sortable(name),
                }
            )
        return specs

    def _run_labels(self) -> dict[str, str]:
        return {run.run_id: f"{run.label} ({run.episodes:,})" for run in self.page.shown.episodes.runs}

    # Showing

    @property
    def marked(self) -> list[str]:
        """The ids of the rows that are ticked."""
        return [row["_id"] for row in self._table_place.selected]

    @property
    def chosen(self) -> Choice:
        """The choice of the list: the typed filter, the runs and the brush."""
        return replace(self.choice, conditions=tuple(filter(None, (*self.choice.conditions, *self.brushed))))

    def _show(self) -> None:
        """Fill the table with the page that is wanted."""
        total = len(self.positions)
        self._first = min(self._first, max(0, (total - 1) // self._count * self._count))
        episodes = self.page.shown.episodes
        rows = episodes.rows(self.positions[self._first : self._first + self._count])
        self._table_place.rows = [self._texts(row) for row in rows]
        self._table_place.props["no-data-label"] = self._nothing()
        self._table_place.props["clearable"] = bool(len(episodes))
        self._table_place.pagination = {
            "sortBy": self.choice.sort,
            "descending": self.choice.descending,
            "page": self._first // self._count + 1,
            "rowsPerPage": self._count,
            "rowsNumber": total,
        }

    def _nothing(self) -> str:
        """Why the list is empty, for a list that is."""
        if len(self.page.shown.episodes):
            return "No episode fulfils the filter"
        if self.page.watch.pinned:
            return f"Version {self.page.shown.episodes.version} of the store has no episodes"
        return "The store has no episodes yet; those of a recorder appear once it has sealed them"

    def _texts(self, row: dict[str, Any]) -> dict[str, Any]:
        texts = {name: text_of(row.get(name), 120) for name, box in self._boxes.items() if box.value}
        identity = row["episode_id"]
        texts["episode_id"] = text_of(self.page.shown.episodes.short_id(identity))
        own = {"_id": identity, "_open": self._open_class(identity), "_sheet": self._sheets.url_of(identity)}
        return {**texts, **own, POSITION: row[POSITION]}

    def _open_class(self, identity: str) -> str:
        classes = [
            name for name, each in zip(("open-a", "open-b"), self._open, strict=False) if each == identity
        ]
        return classes[0] if classes else ""

    def mark_open(self, ids: Sequence[str]) -> None:
        """Show which rows are open beside the list."""
        self._open = ids
        for row in self._table_place.rows:
            row["_open"] = self._open_class(row["_id"])
        self._table_place.update()

    async def _draw(self) -> None:
        await self.facets.show()
        await self.chart()

    async def chart(self) -> None:
        """Draw the chart of the episodes that the filter and the runs leave."""
        self._charted = time.monotonic()
        name, shown, choice = str(self._kind.value), self.page.shown, self.choice
        scale = self._drawing.scale
        await self._drawing.draw(
            self._no_chart,
            shown.episodes.cached,
            ("overview", name, scale, choice.in_order),
            lambda: overview_spec(name, shown.episodes.chosen(choice), self.page.watch.colors, scale),
        )

    # Events

    async def _filter(self) -> None:
        """Take over the typed condition and the chosen runs."""
        typed = (self._input.value or "").strip()
        wanted = replace(
            self.choice, conditions=(typed,) if typed else (), run_ids=tuple(self._runs.value or ())
        )
        if wanted == self.choice and not self._problem.text:
            return
        self._first = 0
        if await self._take(wanted, self.brushed):
            await self.chart()

    async def _clear(self) -> None:
        """Remove the typed condition."""
        self._input.value = ""
        await self._filter()

    async def choose(self, wanted: Choice, brushed: Sequence[str] = ()) -> None:
        """Show the episodes of a choice that was not typed."""
        if (wanted, list(brushed)) == (self.choice, self.brushed):
            return
        self._first = 0
        if await self._take(wanted, list(brushed)):
            self._input.value = " AND ".join(wanted.conditions)
            self._runs.value = list(wanted.run_ids)
            await self.chart()

    async def _take(self, wanted: Choice, brushed: list[str]) -> bool:
        """Show other episodes; an invalid condition changes nothing and is reported."""
        together = replace(wanted, conditions=tuple(filter(None, (*wanted.conditions, *brushed))))
        episodes = self.page.shown.episodes
        try:
            chosen = await run.io_bound(lambda: _listed(episodes, together))
        except EpisodelakeError as error:
            self._problem.set_text(str(error))
            return False
        if chosen is None:
            return False
        positions, amounts = chosen
        self._problem.set_text("")
        self.choice, self.brushed, self.positions = wanted, brushed, positions
        self._tell_brush()
        self._show_chips()
        self._about_chip.set_visibility(wanted.ids is not None)
        self._about_chip.set_text(
            f"{wanted.about.replace(':', ' of ')}: {counted(len(wanted.ids or ()), 'episode')}"
        )
        self.page.tell_chosen(amounts)
        self._show()
        await self.facets.show()
        # Somebody may have gone back to the overview meanwhile.
        background_tasks.create(self.page.follow_list())
        return True

    def _show_chips(self) -> None:
        self._chips.clear()
        with self._chips:
            for condition in self.choice.chips:
                chip = ui.chip(text_of(condition, 100), removable=True, icon="filter_alt", color="primary")
                chip.props("dense outline size=12px").classes("mono").mark("chip")
                chip.on("remove", partial(self._without, condition))

    async def _without(self, condition: str) -> None:
        chips = tuple(each for each in self.choice.chips if each != condition)
        await self.choose(replace(self.choice, chips=chips), self.brushed)

    async def narrow(self, column: str, condition: str) -> None:
        """Add a condition on a column as a chip, in place of the one that it has; remove it if it is there.

        Args:
            column: the column in SQL, which the condition begins with.
        """
        if condition in self.choice.chips:
            await self._without(condition)
            return
        kept = (each for each in self.choice.chips if not each.startswith(f"{column} "))
        await self.choose(replace(self.choice, chips=(*kept, condition)), self.brushed)

    async def _brush(self, chosen: dict[str, tuple[float, float]]) -> None:
        name, frame = str(self._kind.value), self.page.shown.episodes.frame
        if "from" in chosen:
            column = frame[OVERVIEWS[name].columns["from"]]
            chosen = {"from": to_extremes(chosen["from"], self._drawing.specification, column)}
        conditions = conditions_of(name, chosen)
        if conditions == self.brushed:
            return
        self._first = 0
        await self._take(self.choice, conditions)

    def _tell_brush(self) -> None:
        self._chip.set_visibility(bool(self.brushed))
        self._chip.set_text(f"{len(self.positions):,} chosen")

    async def _clear_brush(self) -> None:
        await self._take(self.choice, [])
        await self.chart()

    async def _kind_changed(self) -> None:
        if self.brushed:
            await self._take(self.choice, [])
        await self.chart()

    async def _request(self, event: GenericEventArguments) -> None:
        wanted = event.args["pagination"]
        sort = wanted["sortBy"] or POSITION
        self._count = int(wanted["rowsPerPage"]) or ROWS_OF_A_PAGE
        self._first = max(0, (int(wanted["page"]) - 1) * self._count)
        sorted_as = self.choice.sorted_by(sort, bool(wanted["descending"]))
        if sorted_as != self.choice:
            await self._take(sorted_as, self.brushed)
        else:
            self._show()

    def _clicked(self, event: GenericEventArguments) -> None:
        self._opened(event.args[1]["_id"])

    def _opened(self, episode_id: str) -> None:
        self.page.open_episode(episode_id)
        self.page.look_at_player()

    def _beside_clicked(self, event: GenericEventArguments) -> None:
        self.page.open_episode(event.args["_id"], beside=True)
        self.page.look_at_player()

    def move(self, by: int) -> None:
        """Open the next episode of the list, or the one before."""
        if not len(self.positions):
            return
        here = self._place(self._open[0]) if self._open else None
        there = self._first if here is None else min(max(here + by, 0), len(self.positions) - 1)
        self.open_listed(self.page.shown.episodes.frame["episode_id"][int(self.positions[there])])

    def _place(self, episode_id: str) -> int | None:
        """Return where an episode is in the list."""
        places = np.flatnonzero(self.positions == self.page.shown.episodes.position_of(episode_id))
        return int(places[0]) if len(places) else None

    def after(self, episode_id: str, count: int) -> list[str]:
        """Return the ids of the episodes below one; of the page without it."""
        place = self._place(episode_id)
        first = self._first if place is None else place + 1
        ids = self.page.shown.episodes.frame["episode_id"]
        return ids.gather(self.positions[first : first + count]).to_list()

    def open_listed(self, episode_id: str) -> None:
        """Open an episode, on its page of the list."""
        place = self._place(episode_id)
        if place is not None and not self._first <= place < self._first + self._count:
            self._first = place // self._count * self._count
            self._show()
        self.page.open_episode(episode_id)

    def show_ids(self, ids: Sequence[str]) -> None:
        """Filter by ids."""
        listed = ", ".join(map(literal, ids))
        self._input.value = f"episode_id IN ({listed})"
        ui.timer(0.01, self._filter, once=True)

    async def renew(self) -> None:
        """Show a newer version; keep filter, order and page."""
        self._runs.set_options(self._run_labels(), value=self._runs.value)
        self.facets.offer()
        self._offer_columns()
        self._show_columns()
        if not await self._take(self.choice, self.brushed):
            self.page.tell_chosen(self.page.shown.episodes.amounts())
        if not self.brushed and time.monotonic() - self._charted > _CHART_PAUSE:
            await self.chart()


def _listed(episodes: EpisodeList, choice: Choice) -> tuple[np.ndarray, str]:
    """Return the positions of a choice, and how many episodes and runs these are in words."""
    positions = episodes.positions(choice)
    return positions, episodes.amounts(positions)
