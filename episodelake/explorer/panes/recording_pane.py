"""The episodes that are being recorded, above the list of the sealed ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nicegui import ui

from ...plugin import Unsealed, UnsealedEpisode, counted
from ..live.growing import RECORDING, state_of
from ..moments import text_of
from ..widgets import PageOwner

_COLUMNS = {"episode": "left", "steps": "right", "return": "right", "state": "left"}
_EPISODE_CELL = """<td class="text-left"><button class="open mono" :data-keep="'unsealed ' + props.row._id"
  @click.stop="() => $parent.$emit('open', props.row)">{{ props.value }}</button></td>"""
_STATE_CELL = """<td class="text-left">
  <span :class="['dot', props.row._live && 'following']"></span> {{ props.value }}</td>"""


class RecordingPane:
    """The table of unsealed episodes; it is there only while there are some.

    Args:
        page: the page that it is part of.
    """

    def __init__(self, page: PageOwner) -> None:
        self.page = page
        self._open: Sequence[str] = ()
        with ui.element("section").classes("card recording-part").mark("recording") as self._place:
            with ui.element("div").classes("part-title"):
                self._title = ui.label()
            columns = [
                {"name": name, "label": name, "field": name, "align": align}
                for name, align in _COLUMNS.items()
            ]
            table = ui.table(rows=[], columns=columns, row_key="_id")
            table.props("flat dense hide-bottom").classes("recording-table")
            table.props(''':table-row-class-fn="row => row._open"''')
            table.add_slot("body-cell-episode", _EPISODE_CELL)
            table.add_slot("body-cell-state", _STATE_CELL)
            table.on("open", lambda event: self._opened(event.args["_id"]))
            table.on("rowClick", lambda event: self._opened(event.args[1]["_id"]), [[], ["_id"], None])
            self._table = table
        self.show(Unsealed())

    def _opened(self, episode_id: str) -> None:
        self.page.open_episode(episode_id)
        self.page.look_at_player()

    def show(self, unsealed: Unsealed) -> None:
        """Show the unsealed episodes as of now."""
        self._place.set_visibility(bool(unsealed.episodes))
        title = f"Not sealed yet: {counted(unsealed.count, 'episode')}"
        left_out = unsealed.count - len(unsealed.episodes)
        self._title.set_text(title + (f", the newest {len(unsealed.episodes)} of them" if left_out else ""))
        rows = [self._row(episode) for episode in unsealed.episodes]
        if rows != self._table.rows:
            self._table.rows = rows

    def _row(self, episode: UnsealedEpisode) -> dict[str, Any]:
        record, state = episode.record, state_of(episode)
        name = episode.header.name or episode.header.run_id
        return {
            "episode": text_of(name + episode.id.removeprefix(episode.header.run_id)),
            "steps": f"{record.length:,}",
            "return": text_of(record.episode_return, 40),
            "state": state,
            "_id": episode.id,
            "_live": state == RECORDING,
            "_open": self._class(episode.id),
        }

    def _class(self, episode_id: str) -> str:
        return "open-a" if episode_id in self._open else ""

    def mark_open(self, ids: Sequence[str]) -> None:
        """Show which rows are open beside the list."""
        self._open = ids
        self._table.rows = [{**row, "_open": self._class(row["_id"])} for row in self._table.rows]
