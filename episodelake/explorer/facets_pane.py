"""Facets beside the list: counts and small histograms of the listed episodes; a click or a drag filters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from nicegui import run, ui
from nicegui.events import GenericEventArguments

from ..errors import EpisodelakeError
from .facets import Facet
from .listing import METADATA, Choice, EpisodeList
from .moments import text_of
from .widgets import PageOwner

#: The names when no facet is shown; no column begins with an underscore.
NO_FACETS = ("_none",)
LABELS = {
    "episode_return": "return",
    "end_reason": "end",
    "episode_id": "episode",
    "run_id": "run",
    "started_at": "started (UTC)",
}


def label_of(name: str) -> str:
    """Return the name of a column for people; metadata named as another column keep their whole name."""
    key = name.removeprefix(METADATA)
    return LABELS.get(name, name if key in LABELS.values() else key)


class _Bars(ui.element, component="facets.js"):
    """The bars of all facets, drawn by the browser."""

    def show(self, facets: list[dict[str, Any]]) -> None:
        """Draw them."""
        self._props["facets"] = facets
        self.update()


class FacetsPane:
    """The facets.

    Args:
        page: the page that it is part of.
        choice: returns the choice of the list.
        narrow: called with a column in SQL and a condition on it.

    Attributes:
        names: the columns that are shown; None for the usual ones, `NO_FACETS` for none.
    """

    def __init__(
        self,
        page: PageOwner,
        choice: Callable[[], Choice],
        narrow: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self.page, self._choice, self._narrow = page, choice, narrow
        self.names: tuple[str, ...] | None = None
        self._shown: list[str] = []
        self._facets: dict[tuple[str, int], Facet] = {}
        self._of: EpisodeList | None = None
        self._wanted: tuple[tuple[str, ...], Choice] | None = None
        with ui.element("div").classes("facets").mark("facets") as self.place:
            self._select = ui.select([], multiple=True, on_change=self._selected)
            self._select.props('outlined dense options-dense label="Facets"')
            self._bars = _Bars().on("pick", self._picked, ["name", "version", "first", "last"])
        self.offer()

    def offer(self) -> None:
        """Offer the columns of the version that is shown."""
        episodes = self.page.shown.episodes
        names = episodes.usual_facets if self.names is None else self.names
        self._shown = [name for name in names if name in episodes.facetable]
        self._select.set_options(
            {name: text_of(label_of(name), 60) for name in episodes.facetable}, value=list(self._shown)
        )
        self._select.props["display-value"] = f"{len(self._shown)} of {len(episodes.facetable)}"

    async def show(self) -> None:
        """Draw the facets of the listed episodes, unless others are listed meanwhile or they are there."""
        # In another order they are the same.
        choice = self._choice().in_order
        episodes, wanted = self.page.shown.episodes, (tuple(self._shown), choice)
        if episodes is self._of and wanted == self._wanted:
            return
        self._of, self._wanted = episodes, wanted
        drawn = None
        try:
            drawn = await run.io_bound(_drawn, episodes, *wanted)
        except EpisodelakeError:
            pass  # The list shows the error.
        finally:
            if drawn is None and wanted is self._wanted:
                self._of = None
        if drawn is not None and wanted is self._wanted:
            self._facets, bars = drawn
            self._bars.show(bars)

    async def choose(self, names: tuple[str, ...] | None) -> None:
        """Show other facets."""
        if names != self.names:
            self.names = names
            self.offer()
            await self.show()

    async def _selected(self) -> None:
        names = tuple(self._select.value or ())
        if names != tuple(self._shown):
            await self.choose(names or NO_FACETS)

    async def _picked(self, event: GenericEventArguments) -> None:
        """Filter by bars; a click on a version that has since been replaced is ignored."""
        facet = self._facets.get((event.args["name"], event.args["version"]))
        if facet is not None:
            condition = facet.condition(int(event.args["first"]), int(event.args["last"]))
            await self._narrow(facet.expression, condition)


def _drawn(
    episodes: EpisodeList, names: Sequence[str], choice: Choice
) -> tuple[dict[tuple[str, int], Facet], list[dict[str, Any]]]:
    """Return facets by column and version, and what the page draws of them."""
    kept, version = episodes.mask(choice), episodes.version
    facets = {(name, version): episodes.facet(name) for name in names}
    return facets, [
        {
            **{"name": name, "version": version, "title": text_of(label_of(name), 60)},
            **facet.drawn(kept, choice.chips),
        }
        for (name, _), facet in facets.items()
    ]
