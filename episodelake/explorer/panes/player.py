"""The right side of the page: one episode, or two side by side, and the slider that moves them in step."""

from __future__ import annotations

from nicegui import background_tasks, run, ui

from ... import Episode
from ...errors import EpisodelakeError
from ..pictures.camera import Playback
from ..pictures.sources import rate_of
from ..rollouts.conversation import is_rollout, samples_of
from ..widgets import PageOwner, note
from .episode_pane import EpisodePane

_THUMBNAILS = 12
#: A growing episode gets new thumbnails when it is so many times as long.
_LONGER = 1.25


class Player:
    """Up to two episodes, and one t for both.

    Args:
        page: the page that it is part of.
    """

    def __init__(self, page: PageOwner) -> None:
        self.page = page
        self.client = ui.context.client
        self.panes: list[EpisodePane] = []
        self.t = 0
        self._drawn: int | None = None
        self._busy = False
        #: Whether steps go by themselves.
        self.playing = False
        self._thumbnailed: tuple[str, int] = "", 0
        #: Somebody asked for a replay: the next episodes show theirs without being asked.
        self.replaying = False
        self.signals: list[str] = []
        with ui.element("div").classes("pane player stepped"):
            #: Where the page may put what belongs to the open episodes.
            self.top = ui.element("div").classes("above")
            self._playback = Playback(self._moved)
            self._problem = note("problem w-full").mark("player-problem")
            self._place = ui.element("div").classes("panes")
            with ui.element("div").classes("empty") as self._empty:
                ui.icon("ads_click", size="36px")
                ui.label("Click an episode to look at it.")
                ui.label("Arrow keys: up and down for the next episode, left and right for the next step.")
        self._playback.set_visibility(False)

    @property
    def ids(self) -> list[str]:
        """The episodes that are open, the first one first."""
        return [pane.episode.id for pane in self.panes]

    def open(self, episode: Episode, *, beside: bool, t: int | None = None) -> None:
        """Show an episode in place of the first one, or beside it; at a step, if one is given."""
        others = self.panes[:1] if beside else self.panes[1:]
        if episode.id in (pane.episode.id for pane in others):
            return
        episodes = [pane.episode for pane in others]
        episodes = [*episodes, episode] if beside else [episode, *episodes]
        self._build(episodes, t=(self.t if beside else 0) if t is None else max(t, 0))

    def jump(self, t: int) -> None:
        """Move the slider to a step."""
        self.t = min(max(t, 0), self.longest)
        self._playback.show(self.t)
        self._wake()

    def _moved(self, t: int, playing: bool) -> None:
        self.t, self.playing = t, playing
        self._wake()

    def show_problem(self, problem: str) -> None:
        """Show why an episode cannot be opened; those that are open stay."""
        self._problem.set_text(problem)

    def close(self, pane: EpisodePane) -> None:
        """Close one of them."""
        self._build([each.episode for each in self.panes if each is not pane], t=self.t)
        self.page.closed_episode()

    def _build(self, episodes: list[Episode], t: int) -> None:
        self.playing = False
        self._problem.set_text("")
        for pane in self.panes:
            pane.leave()
        self._place.clear()
        self._place.classes(remove="two", add="two" if len(episodes) == 2 else "")
        names = ("first", "second")
        with self._place:
            self.panes = [
                EpisodePane(self, episode, name) for episode, name in zip(episodes, names, strict=False)
            ]
        self._empty.set_visibility(not self.panes)
        self._playback.set_visibility(bool(self.panes))
        self.t, self._drawn = min(t, self.longest), None
        talk = bool(episodes) and is_rollout(episodes[0])
        rate = rate_of(episodes[0], self.page.shown.fps) if episodes and not talk else 1.0
        self._playback.open(self.t, last=self.longest, rate=rate)
        self._wake()
        self._renew_thumbnails()

    def _renew_thumbnails(self) -> None:
        """Draw the thumbnails of the first episode with recorded images, unless they are there."""
        pane = next((each for each in self.panes if each.recorded is not None), None)
        if pane is None:
            self._thumbnailed = "", 0
            self._playback.change(thumbnails=[])
            return
        drawn, length = self._thumbnailed
        sealed = pane.length > length and not pane.state
        if drawn != pane.episode.id or sealed or pane.length > _LONGER * length:
            self._thumbnailed = pane.episode.id, pane.length
            background_tasks.create(self._draw_thumbnails(pane))

    async def _draw_thumbnails(self, pane: EpisodePane) -> None:
        source = pane.recorded
        try:
            pictures = await run.io_bound(source.thumbnails, _THUMBNAILS) if source else None
        except EpisodelakeError as error:
            pane.show_problem(str(error))
            return
        if pictures is None or pane not in self.panes:
            return
        self._playback.change(thumbnails=pictures)

    def samples_beside(self, episode: Episode) -> dict[str, str]:
        """Return the other rollouts of an episode's group: what to call each, by its id."""
        return samples_of(self.page.shown.episodes.frame, episode)

    def open_beside(self, episode_id: str) -> None:
        """Show an episode beside the first one."""
        self.page.open_episode(episode_id, beside=True)

    @property
    def longest(self) -> int:
        """The last step of the longest episode that is open."""
        return max((pane.length for pane in self.panes), default=0)

    def _wake(self) -> None:
        background_tasks.create(self._catch_up())

    async def _catch_up(self) -> None:
        """Show the newest t that is wanted; those in between are passed over."""
        if self._busy:
            return
        self._busy = True
        try:
            while self._drawn != self.t and self.panes:
                t, panes = self.t, list(self.panes)
                for pane in panes:
                    await pane.show(t)
                self._drawn = t if panes == self.panes else None
        finally:
            self._busy = False

    def again(self) -> None:
        """Show this t once more after a pane changed."""
        self._drawn = None
        self._playback.change(last=self.longest)
        self._wake()
        self._renew_thumbnails()

    def renew(self) -> None:
        """Show a newer version. An episode never changes, so it stays; a deleted one is marked."""
        for pane in self.panes:
            episode = None if pane.gone else self.page.reopened(pane.episode.id)
            if episode is not None:
                self._take(pane, episode)
            elif self.state_of(pane.episode.id) is None:
                pane.show_gone()

    async def grow(self) -> None:
        """Show what was recorded of unsealed episodes since the last call."""
        watch = self.page.watch
        for pane in [each for each in self.panes if each.state and not each.gone]:
            try:
                episode = await run.io_bound(watch.recordings.episode, pane.episode.id)
            except EpisodelakeError as error:
                pane.show_problem(str(error))
                continue
            state = watch.state_of(pane.episode.id)
            if state is None:
                pane.show_gone()
            elif state and episode is not None and pane in self.panes:
                self._take(pane, episode)

    def _take(self, pane: EpisodePane, episode: Episode) -> None:
        """Go on with the same episode; one that is watched at its end stays at its end."""
        ended = self.t >= self.longest
        if pane.take(episode):
            self.again()
            if ended:
                self.jump(self.longest)

    def state_of(self, episode_id: str) -> str | None:
        """Return the state of an unsealed episode, "" of a sealed one, and None of one that is gone."""
        return self.page.watch.state_of(episode_id)
