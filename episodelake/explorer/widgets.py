"""Parts of the page that several panes share: icon buttons, drawings of Altair, and the page as parts see it.

Vega, which draws the charts, is bundled out of vl-convert.
"""

from __future__ import annotations

import functools
import html
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from nicegui import run, ui
from nicegui.events import GenericEventArguments, ValueChangeEventArguments

from .. import Episode
from ..errors import EpisodelakeError
from ..plugin import require
from ..readers.charts.bins import usual_ends
from .live.watch import Shown, Watch
from .moments import text_of

#: Behind the id of an episode.
GONE = "is not in the newest version of the store any more."


def icon_button(icon: str, name: str, on_click: Callable[..., Any] | None = None) -> ui.button:
    """Return a round button.

    Args:
        icon: of Material Icons.
        name: what it does, in a few words without quotes.
        on_click: called when it is clicked.
    """
    button = ui.button(icon=icon, on_click=on_click).props("flat dense round")
    button.props["aria-label"] = name
    with button:
        # A screen reader has the label.
        ui.tooltip(name).props("aria-hidden=true")
    return button


#: The name under which the browser remembers the place of the splitter.
_PLACE = "episodelake-split"


def add_grip(splitter: ui.splitter) -> None:
    """Add a handle to a splitter that the pointer drags and the arrow keys move. The browser remembers its
    place.
    """

    def move(by: int) -> None:
        show((splitter.value or low) + by)

    def show(place: object) -> None:
        if isinstance(place, int | float):
            splitter.set_value(min(max(place, low), high))

    def keep(event: ValueChangeEventArguments[Any]) -> None:
        grip.props["aria-valuenow"] = round(event.value)
        ui.run_javascript(f"localStorage.setItem('{_PLACE}', {event.value})")

    low, high = splitter.props["limits"]
    splitter.on_value_change(keep)
    ui.on("split", lambda event: show(event.args))
    ui.run_javascript(f"const at = Number(localStorage.getItem('{_PLACE}')); if (at) emitEvent('split', at)")
    with splitter.separator:
        grip = ui.element("div").classes("grip").props("role=separator tabindex=0")
        grip.props["aria-label"] = "Border between the list and the episode: drag it, or press left and right"
        grip.props["aria-valuenow"] = 46
        # The arrow keys of the page move through steps.
        for key, by in (("left", -3), ("right", 3)):
            grip.on(f"keydown.{key}.stop.prevent", functools.partial(move, by), [])


def note(classes: str = "muted") -> ui.label:
    """Return a label that shows only while it has a text."""
    label = ui.label().classes(classes)
    return label.bind_visibility_from(label, "text", backward=bool)


def path_label(url: str, name: str = "") -> str:
    """Add the name of a store or a lake to the header, and return it; by default the last part of its URL."""
    title = text_of(name or url.rstrip("/").rpartition("/")[2])
    with ui.element("h1").classes("store-path"):
        ui.label(title)
        ui.tooltip(text_of(url))
    ui.page_title(f"{title} \N{MIDDLE DOT} Episodelake")
    return title


class DataTable(ui.table, component="episodes_table.js"):
    """A table of episodes, runs or stores; its cells are in the script beside this module.

    A row is sorted by its values and shows `_texts` in their place, by column, with `_titles` under the
    pointer.
    """


def spark(values: Sequence[float | None], limits: tuple[float, float] | None = None) -> str:
    """Return the points of a small curve in a box of 100 by 20; empty for less than two values.

    Args:
        values: from left to right; None leaves a place out.
        limits: the values at the bottom and the top; by default the usual range of these.
    """
    numbers = [(place, value) for place, value in enumerate(values) if value is not None]
    if len(numbers) < 2:
        return ""
    low, high = limits or usual_ends(np.array([value for _, value in numbers]))
    span = high - low or 1.0
    heights = ((place, min(max((value - low) / span, 0.0), 1.0)) for place, value in numbers)
    return " ".join(f"{100 * place / (len(values) - 1):.4g},{19 - 18 * at:.3g}" for place, at in heights)


BUNDLE_PATH = "/vega.js"


@functools.cache
def vega_bundle() -> bytes:
    """Return the JavaScript of Vega, Vega-Lite and vega-embed. The first call takes a second.

    Raises:
        MissingPackageError: vl-convert-python is not installed.
    """
    return require("vl_convert", "The explorer").javascript_bundle().encode()


class Drawing(ui.element, component="vega.js"):
    """A chart as wide as the room for it.

    Args:
        on_brush: called with the interval of a brush by field of the chart's data; empty for none.
        on_scale: draws the chart again after somebody chose another scale; there is a choice where the
            specification has values `beyond` a clipped axis.

    Attributes:
        specification: what is drawn; None for nothing.
        scale: "clipped", or "linear" for all values.
    """

    def __init__(self, on_brush: Any = None, on_scale: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self._props["bundle"] = BUNDLE_PATH.removeprefix("/")
        self._props["spec"] = None
        self.specification: Any = None
        self._turn = 0
        self.classes("w-full")
        if on_brush is not None:
            self.on("brush", lambda event: on_brush(_chosen(event)))
        self.scale = "clipped"
        self._on_scale = on_scale
        self._beyond = ui.button(on_click=self._rescale).props("flat dense no-caps").classes("beyond")
        self._beyond.set_visibility(False)

    async def _rescale(self) -> None:
        self.scale = "clipped" if self.scale == "linear" else "linear"
        if self._on_scale is not None:
            await self._on_scale()

    def show(self, specification: dict[str, Any] | None) -> None:
        """Draw a specification; hide the chart for None."""
        self._turn += 1
        beyond = (specification or {}).get("usermeta", {}).get("beyond", "")
        whole = specification is not None and self.scale == "linear"
        self._beyond.set_text("All values are shown: clip outliers" if whole else f"{beyond}: show")
        self._beyond.set_visibility(whole or bool(beyond))
        self._props["spec"] = self.specification = specification
        self.set_visibility(specification is not None)
        self.update()

    async def draw(
        self, caption: ui.label, make: Callable[..., Any], *arguments: Any
    ) -> dict[str, Any] | None:
        """Draw what a function returns, or show in the caption why there is nothing to draw.

        Args:
            caption: shows the chart's notes, too.
            make: returns a specification, in a thread; a result that comes after that of a later call is
                dropped.
            arguments: those of `make`.

        Returns:
            What is drawn; None if nothing is, or something else already.
        """
        self._turn = turn = self._turn + 1
        specification, problem = None, ""
        try:
            specification = await run.io_bound(make, *arguments)
        except EpisodelakeError as error:
            problem = str(error)
        if turn == self._turn and not self.is_deleted and (problem or specification is not None):
            notes = () if specification is None else specification.get("usermeta", {}).get("notes", ())
            caption.set_text(problem or "\n".join(notes))
            self.show(specification)
            return specification
        return None


def _chosen(event: GenericEventArguments) -> dict[str, tuple[float, float]]:
    """Return the intervals of numbers of a brush."""
    intervals = {}
    for name, value in (event.args or {}).items():
        if isinstance(value, list) and len(value) == 2 and all(isinstance(end, int | float) for end in value):
            intervals[name] = (float(min(value)), float(max(value)))
    return intervals


def facts_list(parts: Mapping[str, Mapping[str, str]]) -> str:
    """Return the names and values as HTML. All of it comes from a store, so all of it is escaped."""
    lines = []
    for title, pairs in parts.items():
        if pairs:
            lines += [f'<p class="facts-title">{html.escape(title)}</p><dl class="facts">']
            lines += [
                f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in pairs.items()
            ]
            lines.append("</dl>")
    # It scrolls, so it takes the focus of the keyboard.
    return f'<div class="facts-list" tabindex="0" role="group" aria-label="Values">{"".join(lines)}</div>'


class PageOwner(Protocol):
    """The page of one browser tab.

    Attributes:
        watch: the store.
        shown: the version that the page shows.
        exports: the folder below which new stores may be written.
        is_dark: whether its colours are dark.
    """

    watch: Watch
    shown: Shown
    exports: Path
    is_dark: bool

    def open_episode(self, episode_id: str, *, beside: bool = False, t: int | None = None) -> object:
        """Show an episode, alone or beside the one that is shown; at a step, if one is given."""
        ...

    def tell_chosen(self, amounts: str) -> None:
        """Say in the header which part of the episodes the list shows."""
        ...

    async def follow_list(self) -> None:
        """Show the overview of what the list shows, if the overview is open."""
        ...

    def ticked(self) -> None:
        """Take note that other rows of the list are ticked."""
        ...

    def closed_episode(self) -> None:
        """Take note that the player has closed an episode."""
        ...

    def reopened(self, episode_id: str) -> Episode | None:
        """Return an episode of the version that is shown now; None if it is gone."""
        ...

    def look_at_player(self) -> None:
        """Scroll a narrow page to the player below the list."""
        ...

    def show_list(self) -> None:
        """Open the tab with the list."""
        ...

    def show_ids(self, ids: Sequence[str]) -> None:
        """Let the list show some episodes, by id."""
        ...

    async def compare(self) -> None:
        """Draw the ticked episodes over each other."""
        ...

    async def narrow(self, column: str, condition: str) -> None:
        """Let the list show those of its episodes that fulfil an SQL condition on a column."""
        ...

    async def show_whole(self) -> None:
        """Remove the filter of the list."""
        ...

    async def show_finding(self, name: str) -> None:
        """Let the list show the episodes of a finding, and open the first one where it shows."""
        ...

    def show_reason(self, episode_id: str, column: str | None, t: int | None) -> None:
        """Open an episode at the step of a finding, with the signal of its column."""
        ...

    async def choose_runs(self, run_ids: Sequence[str]) -> None:
        """Let the list and the overview show the episodes of some runs; of all without any."""
        ...
