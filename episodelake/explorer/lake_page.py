"""Page of a lake: its stores, each with its curve and its health, and SQL over all of them."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

import polars as pl
from nicegui import run, ui
from nicegui.events import GenericEventArguments

from ..plugin import counted, size_text
from ..types import Lake
from .address import OVERVIEW, SQL, Address
from .checkup import SEVERE
from .live.lake_figures import Health
from .live.watch import PAUSE, LakeWatch
from .moments import text_of
from .sql_pane import SqlPane
from .tab import Tab
from .widgets import DataTable, note, path_label, spark

STORE_PATH = "/store"
_COLUMNS = {
    "store": "store",
    "curve": "curve",
    "last": "last return",
    "health": "health",
    "episodes": "episodes",
    "steps": "steps",
    "bytes": "size",
    "env_ids": "environments",
    "updated": "updated (UTC)",
    "error": "error",
}
_NUMBERS = ("last", "episodes", "steps", "bytes")
_EXAMPLES = {
    "Return by store": "SELECT store, count(*) AS episodes, avg(episode_return) AS mean,\n"
    "    max(episode_return) AS best\nFROM episodes GROUP BY ALL ORDER BY store",
    "Episodes by environment": "SELECT env_ids[1] AS environment, count(*) AS stores,\n"
    "    sum(episodes) AS episodes, sum(steps) AS steps\nFROM stores GROUP BY ALL ORDER BY episodes DESC",
    "Best episodes": "SELECT store, episode_id, episode_return, length, end_reason\n"
    "FROM episodes ORDER BY episode_return DESC NULLS LAST LIMIT 20",
    "Runs": "SELECT store, name, count(*) AS episodes, avg(episode_return) AS mean\n"
    "FROM episodes JOIN runs USING (store, run_id) GROUP BY ALL ORDER BY mean DESC",
}


class LakePage(Tab):
    """The page of one browser tab that shows the stores of a lake.

    Args:
        watch: the lake.
        problem, name: why the store of this name, which was asked for, cannot be opened.
    """

    def __init__(self, watch: LakeWatch, problem: str = "", name: str = "") -> None:
        super().__init__()
        self.watch, self.name = watch, name
        self._problem = problem
        self._sql: _LakeSqlPane | None = None
        with ui.element("header").classes("explorer-header"):
            ui.label("Episodelake").classes("brand")
            path_label(watch.lake.url)
            self._amounts = ui.label().classes("muted").mark("amounts")
            ui.space()
            tabs = ui.tabs(value=OVERVIEW, on_change=self._tab_changed)  # type: ignore[arg-type]
            with tabs.props("dense no-caps inline-label") as self._tabs:
                ui.tab(OVERVIEW, "Stores", icon="view_list")
                ui.tab(SQL, "SQL", icon="terminal")
            self.dark_button()
        self._banner = note("problem banner")
        panels = ui.tab_panels(self._tabs, value=OVERVIEW, keep_alive=True).classes("explorer-body")
        with panels.props("animated=false"):
            with ui.tab_panel(OVERVIEW).classes("explorer-panel"), ui.element("div").classes("pane"):
                self._stores()
            with ui.tab_panel(SQL).classes("explorer-panel") as self._sql_place:
                pass
        self._shown = watch.stores
        self._show()
        self._timer = ui.timer(PAUSE, self._follow)
        ui.timer(0.05, self._look, once=True)
        self.begin()
        ui.context.client.on_delete(self.close)

    def _stores(self) -> None:
        with ui.element("div").classes("bar"):
            self._typed = typed = ui.input(placeholder="Part of a name or an environment").props(
                'outlined dense clearable aria-label="Filter the stores"'
            )
            with typed.classes("grow").add_slot("prepend"):
                ui.icon("search", size="18px")
        self._table = DataTable(
            rows=[], columns=[], row_key="store", pagination={"rowsPerPage": 50, "sortBy": "store"}
        )
        self._table.classes("episodes-table lake-table").props('no-data-label="No stores"')
        self._table.on(
            "rowClick", lambda event: ui.navigate.to(event.args[1]["_href"]), [[], ["_href"], None]
        )
        typed.on_value_change(lambda event: self._table.props.update(filter=event.value or ""))

    def _show(self) -> None:
        frame = self._shown
        total = frame.select(pl.col("episodes", "steps").sum()).row(0)
        stores, episodes, steps = (
            counted(number, word)
            for number, word in zip((frame.height, *total), ("store", "episode", "step"), strict=True)
        )
        self._amounts.set_text(f"{stores} · {episodes} · {steps}")
        rows = [self._row(row) for row in frame.iter_rows(named=True)]
        shown = [name for name in _COLUMNS if name != "error" or any(row["error"] for row in rows)]
        columns = [
            {
                **{"name": name, "label": _COLUMNS[name], "field": name, "sortable": name != "curve"},
                **{"align": "right" if name in _NUMBERS else "left", "classes": f"{name}-cell"},
            }
            for name in shown
        ]
        if (columns, rows) != (self._table.columns, self._table.rows):
            self._table.columns, self._table.rows = columns, rows
        self._tell_problem()

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        name, watched = row["store"], self.watch.figures
        figures, health = watched.figures.get(name), watched.health.get(name)
        numbers = {each: row[each] for each in ("episodes", "steps", "bytes")}
        numbers["last"] = figures.last if figures else None
        checking = watched.checking is not None and watched.checking[0] == name
        caption = ("checking" if checking else "not checked") if health is None else _caption(health)
        error = row["error"] or ""
        texts = {
            each: "" if numbers[each] is None else f"{numbers[each]:,}" for each in ("episodes", "steps")
        }
        texts["bytes"] = "" if row["bytes"] is None else size_text(row["bytes"])
        texts["last"] = text_of(numbers["last"]) if row["episodes"] else ""
        return {
            "store": text_of(name),
            "curve": spark(figures.curve) if figures else "",
            **({"health": caption, "_severe": _severity(health)} if row["episodes"] else {}),
            "env_ids": ", ".join(map(text_of, row["env_ids"] or ())),
            "updated": "" if row["updated"] is None else f"{row['updated']:%Y-%m-%d %H:%M:%S}",
            "error": text_of(error, 200),
            **numbers,
            **{"_texts": texts, "_titles": {"error": text_of(error)}, "_id": text_of(name)},
            **{"_live": name in watched.live, "_href": store_address(name)},
        }

    def _tell_problem(self) -> None:
        self._banner.set_text("\n".join(filter(None, (self._problem, self.watch.problem))))

    async def _look(self) -> None:
        """Show the curves as soon as they are there."""
        await run.io_bound(self.watch.figures.look, self._shown)
        if not self._timer.is_deleted:
            self._show()

    async def _follow(self) -> None:
        shown = await run.io_bound(self.watch.look)
        if shown is None or self._timer.is_deleted:
            return
        if not shown.equals(self._shown) and self._sql is not None:
            self._sql.renew()
        self._shown = shown
        self._show()

    @property
    def address(self) -> Address:
        """State of this tab; `where` is what the names of stores are searched for."""
        query = self._sql.text if self._sql else ""
        return Address(pane=str(self._tabs.value), where=self._typed.value or "", query=query)

    async def show_address(self, address: Address) -> None:
        """Show what an address says; the query of another page is not run."""
        self._typed.set_value(address.where)
        self._tabs.set_value(address.pane if address.pane == SQL else OVERVIEW)
        self._tab_changed()
        if self._sql is not None:
            self._sql.write(address.query)

    def _tab_changed(self) -> None:
        if self._tabs.value == SQL and self._sql is None:
            with self._sql_place:
                self._sql = _LakeSqlPane(self)

    def darkened(self, event: GenericEventArguments) -> None:
        """Redraw after the page became dark or light."""
        super().darkened(event)
        if self._sql is not None:
            self._sql.recolour()

    def close(self) -> None:
        """Stop the query when the tab closes."""
        if self._sql is not None:
            self._sql.close()


def store_address(name: str, **more: Any) -> str:
    """Return the address of a store's page, relative since the gate puts a path of its own before it."""
    given = {key: value for key, value in more.items() if value is not None}
    return f"{STORE_PATH[1:]}?{urlencode({'name': name, **given}, quote_via=quote, safe='')}"


class _LakeSqlPane(SqlPane):
    """SQL over all stores; a row with a store and an episode leads to it."""

    _listed = False
    _tables = ("episodes", "runs", "stores")

    def __init__(self, page: Any) -> None:
        self._lake: Lake = page.watch.lake
        super().__init__(page, _EXAMPLES)

    @property
    def _opened(self) -> Lake:
        return self._lake

    def _clicked(self, event: GenericEventArguments) -> None:
        row = event.args[1]
        if isinstance(row.get("_store"), str):
            episode = row.get("_episode")
            ui.navigate.to(
                store_address(
                    row["_store"], pane="episodes" if episode else None, episode=episode, t=row.get("_t")
                )
            )


def _caption(health: Health) -> str:
    if health.problem:
        return "unreadable"
    return counted(len(health.kinds), "finding") if health.kinds else "no findings"


def _severity(health: Health | None) -> str:
    """Return the class of a store's health."""
    if health is None:
        return ""
    return "severe" if health.problem or {*health.kinds} & {*SEVERE} else "hint" if health.kinds else "fine"
