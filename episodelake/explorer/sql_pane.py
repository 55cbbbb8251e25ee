"""The SQL box: a query, its result as a table and as a chart. It runs beside the page and can be stopped."""

from __future__ import annotations

import csv
import io
import json
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

from nicegui import background_tasks, run, ui
from nicegui.events import GenericEventArguments

from .. import EpisodeStore
from ..errors import EpisodelakeError
from ..types import Lake
from .charts import KINDS, result_spec
from .moments import text_of
from .queries import MOST_ROWS, Queries, Result
from .widgets import Drawing, PageOwner, note

EXAMPLES = {
    "Return by run": "SELECT name AS run, count(*) AS episodes, avg(episode_return) AS mean,\n"
    "    max(episode_return) AS best\n"
    "FROM episodes JOIN runs USING (run_id)\nGROUP BY ALL ORDER BY mean DESC",
    "How episodes end": "SELECT end_reason, count(*) AS episodes, avg(length) AS mean_length\n"
    "FROM episodes GROUP BY ALL ORDER BY episodes DESC",
    "Best episodes": "SELECT episode_id, episode_return, length, end_reason\n"
    "FROM episodes ORDER BY episode_return DESC LIMIT 20",
    "Mean reward over t": "SELECT t, avg(reward) AS mean_reward, count(*) AS steps\n"
    "FROM transitions GROUP BY t ORDER BY t LIMIT 1000",
    "Steps with NaN rewards": "SELECT episode_id, t, reward FROM transitions WHERE isnan(reward)",
}

#: Gives the editor completions beside the keywords of its language; a dotted name completes as a whole first.
_COMPLETE = """
const [place, names] = %s;
const CM = await import("nicegui-codemirror");
const element = getElement(place);
await element.editorPromise;
const source = (context) => {
  const word = context.matchBefore(/[\\w.]+/);
  if (!word && !context.explicit) return null;
  const text = (word?.text ?? "").toLowerCase();
  const whole = names.some((each) => each.label.toLowerCase().startsWith(text));
  const from = word ? word.from + (whole ? 0 : text.lastIndexOf(".") + 1) : context.pos;
  return { from, options: names, validFor: /^\\w*$/ };
};
const data = CM.EditorState.languageData.of(() => [{ autocomplete: source }]);
const named = element.editor.constructor.contentAttributes.of({ "aria-label": "SQL query" });
element.editor.dispatch({ effects: CM.StateEffect.appendConfig.of([data, named]) });
"""


def _usual_kind(x: str, y: str | None, values: list[Any], numeric: bool) -> str:
    """Return what a result is drawn as, unless somebody chooses; `values` are those of `x`.

    Values that come again get points: bars would be stacked, which adds means, and a line would jump.
    """
    if x == y:
        return "histogram"
    if numeric or len(set(map(str, values))) < len(values):
        return "points"
    return "line" if x == "t" else "bars"


class SqlPane:
    """The SQL tab; made when it is first opened.

    Args:
        page: the page that it is part of.
        examples: queries by name, the first of which is in the box at first.
    """

    def __init__(self, page: PageOwner, examples: Mapping[str, str] = EXAMPLES) -> None:
        self.page, self._examples = page, examples
        self._first = next(iter(examples.values()))
        self._queries = Queries(self._opened)
        self._stopped = threading.Event()
        self._outdated = False
        self._result: Result | None = None
        with ui.element("div").classes("pane scrolling"):
            self._editor()
            self._problem = note("problem w-full").mark("sql-problem")
            self._outcome()
        ui.timer(0.05, self._complete, once=True)

    async def _complete(self) -> None:
        """Let the editor know the tables, columns and functions."""
        names = await run.io_bound(self._queries.completions)
        ui.run_javascript(_COMPLETE % json.dumps([self._text.id, names]))

    def _editor(self) -> None:
        tables = f"Tables: {', '.join(self._tables)}. Ctrl-Enter runs the query."
        with ui.element("div").classes("sql-text card"):
            self._text = ui.codemirror(self._first, language="SQL", line_wrapping=True)
            self._text.style("height: 150px").mark("sql")
            self.recolour()
            for key in ("ctrl", "meta"):
                # Before the editor has it, which would begin a new line.
                self._text.on(f"keydown.{key}.enter.capture.stop.prevent", self.run)
        with ui.element("div").classes("bar wrapping"):
            self._run = (
                ui.button("Run", icon="play_arrow", on_click=self.run)
                .props("dense no-caps unelevated")
                .mark("run")
            )
            self._stop = (
                ui.button("Stop", icon="stop", on_click=self.stop)
                .props("dense no-caps outline color=negative")
                .mark("stop")
            )
            self._stop.set_visibility(False)
            with ui.button("Examples", icon="menu_book").props("dense no-caps flat"), ui.menu():
                for name, query in self._examples.items():
                    ui.menu_item(name, partial(self._text.set_value, query)).props("role=menuitem")
            self._message = ui.label(tables).classes("muted").mark("sql-message")
            ui.space()
            self._take = ui.button("Show these episodes", icon="view_list", on_click=self._to_list)
            self._take.props("dense no-caps flat").mark("to-list")
            self._download = ui.button("CSV", icon="download", on_click=self._csv).props("dense no-caps flat")
            for button in (self._take, self._download):
                button.set_visibility(False)

    def _outcome(self) -> None:
        with ui.element("div").classes("card w-full p-2") as self._chart_card:
            with ui.element("div").classes("bar wrapping"):
                kinds = {kind: kind.capitalize() for kind in KINDS}
                self._kind = ui.toggle(kinds, value="points", on_change=self._draw).props(
                    "dense no-caps unelevated flat"
                )
                self._x = ui.select([], label="x", on_change=self._draw).classes("w-40")
                self._y = ui.select([], label="y", on_change=self._draw).classes("w-40")
                self._color = ui.select([], label="colour", clearable=True, on_change=self._draw).classes(
                    "w-40"
                )
                for select in (self._x, self._y, self._color):
                    select.props("outlined dense options-dense")
            self._drawing = Drawing().mark("result-chart")
            self._no_chart = note()
        self._chart_card.set_visibility(False)
        self._table = ui.table(rows=[], columns=[], row_key="_row", pagination=25)
        self._table.props('flat bordered dense :rows-per-page-options="[25, 100, 0]"')
        self._table.classes("episodes-table result-table").style("flex: none").mark("result")
        self._table.set_visibility(False)
        self._table.on("rowClick", self._clicked, [[], ["_store", "_episode", "_t"], None])

    #: Whether the page has a list of episodes.
    _listed = True
    _tables = ("episodes", "steps", "transitions", "runs")

    @property
    def _opened(self) -> EpisodeStore | Lake:
        """The store or the lake that queries see."""
        return self.page.shown.store

    @property
    def text(self) -> str:
        """The query in the box; empty for the initial one."""
        text = self._text.value or ""
        return "" if text == self._first else text

    def write(self, query: str) -> None:
        """Put a query into the box, without running it."""
        self._text.set_value(query or self._first)

    def recolour(self) -> None:
        """Take the colours of the page."""
        self._text.theme = "vscodeDark" if self.page.is_dark else "vscodeLight"

    async def run(self) -> None:
        """Run the query; the page goes on meanwhile."""
        if self._stop.visible:
            return
        if self._outdated:
            self._queries.close()
            self._queries, self._outdated = Queries(self._opened), False
        self._stopped = threading.Event()
        self._running(True)
        try:
            result = await run.io_bound(self._queries.run, self._text.value or "", self._stopped)
        except EpisodelakeError as error:
            self._problem.set_text(text_of(str(error), 4000))
            self._message.set_text("")
            self._clear()
            return
        finally:
            self._running(False)
        if result is not None:
            self._problem.set_text("")
            self._show(result)

    def _running(self, running: bool) -> None:
        self._run.set_visibility(not running)
        self._stop.set_visibility(running)
        if running:
            self._message.set_text("Running …")

    def stop(self) -> None:
        """End the running query."""
        self._stopped.set()

    def _clear(self) -> None:
        """Hide the last result, which does not belong to the next query."""
        self._result = None
        self._drawing.show(None)
        for element in (self._chart_card, self._table, self._take, self._download):
            element.set_visibility(False)

    def _show(self, result: Result) -> None:
        self._clear()
        self._result = result
        names = result.table.column_names
        rows = []
        for number, row in enumerate(
            result.table.to_pylist() if len(set(names)) == len(names) else _by_order(result)
        ):
            texts = {f"c{index}": text_of(value, 200) for index, value in enumerate(row.values())}
            place = {"_store": row.get("store"), "_episode": row.get("episode_id"), "_t": row.get("t")}
            rows.append({**texts, "_row": number, **place})
        self._table.columns = [
            {
                "name": f"c{index}",
                "field": f"c{index}",
                "label": text_of(name, 60),
                "align": _align(result, index),
            }
            for index, name in enumerate(names)
        ]
        self._table.rows = rows
        self._table.set_visibility(True)
        self._download.set_visibility(True)
        self._take.set_visibility(self._listed and "episode_id" in names and bool(rows))
        more = "" if result.complete else f"; the first {MOST_ROWS:,} rows are shown"
        self._message.set_text(f"{len(rows):,} rows in {result.seconds:.2f} s{more}")
        self._offer_axes(result)

    def _offer_axes(self, result: Result) -> None:
        names = result.table.column_names
        kinds = {field.name: str(field.type) for field in result.table.schema}
        # Means before counts: the first that is not whole, if there is one.
        numeric = sorted(
            (name for name in names if kinds[name] in _NUMBERS and name != "t"),
            key=lambda name: "int" in kinds[name],
        )
        # Ids and other texts alone have no chart.
        drawable = len(set(names)) == len(names) and result.table.num_rows > 0 and bool(numeric)
        self._chart_card.set_visibility(drawable)
        if not drawable:
            return
        plain = [name for name in names if not name.endswith("_id")]
        y = self._y.value if self._y.value in numeric else next(iter(numeric), None)
        x = self._x.value if self._x.value in plain else next((name for name in plain if name != y), y)
        self._result = None  # Three selects change; one drawing is enough.
        self._x.set_options(names, value=x)
        self._y.set_options(names, value=y)
        self._color.set_options(names, value=self._color.value if self._color.value in names else None)
        self._kind.set_value(_usual_kind(str(x), y, result.table.column(x).to_pylist(), x in numeric))
        self._result = result
        self._draw()

    def _draw(self) -> None:
        if self._result is not None:
            chosen = (self._kind.value, self._x.value, self._y.value, self._color.value)
            given = (self._result.table, *chosen, self.page.watch.colors)
            background_tasks.create(self._drawing.draw(self._no_chart, result_spec, *given))

    def _clicked(self, event: GenericEventArguments) -> None:
        identity, t = event.args[1].get("_episode"), event.args[1].get("_t")
        if isinstance(identity, str):
            self.page.show_list()
            self.page.open_episode(identity, t=t if isinstance(t, int) else None)
            self.page.look_at_player()

    def _to_list(self) -> None:
        if self._result is not None:
            ids = dict.fromkeys(self._result.table.column("episode_id").to_pylist())
            self.page.show_ids([each for each in ids if isinstance(each, str)])

    def _csv(self) -> None:
        if self._result is None:
            return
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self._result.table.column_names)
        writer.writerows(zip(*(column.to_pylist() for column in self._result.table.columns), strict=True))
        ui.download.content(text.getvalue().encode(), "result.csv")

    def renew(self) -> None:
        """Show a newer version: the next query sees it."""
        self._outdated = True

    def close(self) -> None:
        """Stop the query when the tab closes."""
        self.stop()


_NUMBERS = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float", "double"}


def _align(result: Result, index: int) -> str:
    return "right" if str(result.table.schema.field(index).type) in _NUMBERS else "left"


def _by_order(result: Result) -> list[dict[str, Any]]:
    """Rows of a result in which two columns have one name."""
    columns = [column.to_pylist() for column in result.table.columns]
    return [dict(zip(map(str, range(len(row))), row, strict=True)) for row in zip(*columns, strict=True)]
