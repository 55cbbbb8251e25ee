"""Page of a lake: its stores; each opens in the page of a store."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import polars as pl
from nicegui import run, ui

from ..plugin import counted
from .live.watch import PAUSE, LakeWatch
from .moments import text_of
from .widgets import HEAD_CELL, Tab, note, path_label

STORE_PATH = "/store"
_COLUMNS = {
    "store": "store",
    "episodes": "episodes",
    "steps": "steps",
    "env_ids": "environments",
    "updated": "updated (UTC)",
    "error": "error",
}
_NUMBERS = ("episodes", "steps")
_STORE_CELL = """<td class="text-left"><a class="mono" :href="props.row._href">{{ props.value }}</a></td>"""
_ERROR_CELL = """<td class="text-left error-cell" :title="props.row._error">{{ props.value }}</td>"""


class LakePage(Tab):
    """The page of one browser tab that shows the stores of a lake.

    Args:
        watch: the lake.
        problem: why the store that was asked for cannot be opened.
    """

    def __init__(self, watch: LakeWatch, problem: str = "") -> None:
        super().__init__()
        self.watch = watch
        self._problem = problem
        self._shown = watch.stores
        with ui.element("header").classes("explorer-header"):
            ui.label("Episodelake").classes("brand")
            path_label(watch.lake.url)
            self._amounts = ui.label().classes("muted").mark("amounts")
            ui.space()
            self.dark_button()
        self._banner = note("problem banner")
        with ui.element("div").classes("pane"):
            with ui.element("div").classes("bar"):
                typed = ui.input(placeholder="Part of a name or an environment").props(
                    'outlined dense clearable aria-label="Filter the stores"'
                )
                typed.classes("grow")
            self._table = ui.table(
                rows=[],
                columns=[
                    {
                        **{"name": name, "label": label, "field": name, "sortable": True},
                        "align": "right" if name in _NUMBERS else "left",
                        **({":format": "(value) => value?.toLocaleString('en')"} if name in _NUMBERS else {}),
                    }
                    for name, label in _COLUMNS.items()
                ],
                row_key="store",
                pagination={"rowsPerPage": 50, "sortBy": "store"},
            ).classes("episodes-table")
            self._table.props(
                'flat bordered dense binary-state-sort :rows-per-page-options="[50, 200, 1000]"'
            )
            self._table.props('''rows-per-page-label="Rows" no-data-label="No stores"''')
            self._table.add_slot("header-cell", HEAD_CELL)
            self._table.add_slot("body-cell-store", _STORE_CELL)
            self._table.add_slot("body-cell-error", _ERROR_CELL)
            self._table.on(
                "rowClick", lambda event: ui.navigate.to(event.args[1]["_href"]), [[], ["_href"], None]
            )
            self._table.bind_filter_from(typed, "value")
        self._show()
        self._timer = ui.timer(PAUSE, self._follow)

    def _show(self) -> None:
        frame = self._shown
        total = frame.select(pl.col("episodes", "steps").sum()).row(0)
        stores, episodes, steps = (
            counted(number, word)
            for number, word in zip((frame.height, *total), ("store", "episode", "step"), strict=True)
        )
        self._amounts.set_text(f"{stores} · {episodes} · {steps}")
        self._table.rows = [_texts(row) for row in frame.iter_rows(named=True)]
        self._tell_problem()

    def _tell_problem(self) -> None:
        self._banner.set_text("\n".join(filter(None, (self._problem, self.watch.problem))))

    async def _follow(self) -> None:
        shown = await run.io_bound(self.watch.look)
        if shown is None or self._timer.is_deleted:
            return
        self._tell_problem()
        if not shown.equals(self._shown):
            self._shown = shown
            self._show()


def _texts(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "store": text_of(row["store"]),
        "env_ids": ", ".join(map(text_of, row["env_ids"] or ())),
        "updated": "" if row["updated"] is None else f"{row['updated']:%Y-%m-%d %H:%M:%S}",
        "error": text_of(row["error"] or "", 200),
        **{name: row[name] for name in _NUMBERS},
        "_error": text_of(row["error"] or ""),
        # Relative, since the gate puts a path of its own before it.
        "_href": f"{STORE_PATH[1:]}?name={quote(row['store'], safe='')}",
    }
