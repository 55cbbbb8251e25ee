"""Pictures of the newest episodes on the overview."""

from __future__ import annotations

from functools import partial

from nicegui import ui

from ..moments import text_of
from ..widgets import PageOwner

#: The newest runs share so many pictures; each has at least one.
_MOST = 12


class RunPictures:
    """Pictures of the newest episodes of each run, which play under the pointer; a click opens the episode.

    Args:
        page: the page that it is part of.
    """

    def __init__(self, page: PageOwner) -> None:
        self.page = page
        self._shown: list[str] = []
        with ui.element("section").classes("card part").mark("run-pictures") as self._part:
            with ui.element("h2").classes("part-title"):
                ui.label("Newest episodes")
            self._place = ui.element("div").classes("run-pictures")
            self._place.style(f"--ratio: {page.watch.sheets.ratio or 1:.4g}")
        self.show()

    def show(self) -> None:
        """Show the version that the page shows."""
        episodes = self.page.shown.episodes
        runs = episodes.frame.select("run_id", "episode_id").group_by("run_id", maintain_order=True)
        newest = runs.tail(max(1, _MOST // max(1, len(episodes.runs))))["episode_id"]
        ids = newest.tail(_MOST).to_list()[::-1]
        self._part.set_visibility(bool(ids) and self.page.watch.sheets.ratio is not None)
        if ids == self._shown:
            return
        self._shown = ids
        self._place.clear()
        with self._place:
            for episode_id in ids:
                with ui.element("button").classes("shot shot-open") as shot:
                    shot.props["title"] = text_of(episode_id)
                    with ui.element("span").classes("thumb"):
                        image = ui.element("img").props("loading=lazy fetchpriority=low")
                        image.props["src"], image.props["alt"] = self.page.watch.sheets.url_of(episode_id), ""
                    ui.label(text_of(episodes.short_id(episode_id))).classes("shot-name mono")
                shot.on("click", partial(self._open, episode_id))

    def _open(self, episode_id: str) -> None:
        self.page.show_list()
        self.page.open_episode(episode_id)
        self.page.look_at_player()
