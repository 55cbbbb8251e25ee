"""The right side of the page: one episode, or two side by side, and the slider that moves them in step."""

from __future__ import annotations

import contextlib

from nicegui import background_tasks, run, ui

from ..readers.episode import Episode
from ..store.errors import EpisodelakeError
from .episode_pane import EpisodePane
from .widgets import PageOwner, icon_button, note

_SPEEDS = {1: "1 step", 2: "2 steps", 5: "5 steps", 20: "20 steps"}
_TICK = 0.1
#: Answered when the browser has drawn the last update, and at once by a hidden page.
_WHEN_DRAWN = "new Promise((done) => (document.hidden ? done() : requestAnimationFrame(() => done())))"
_PATIENCE = 5.0


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
        #: Somebody asked for a replay: the next episodes show theirs without being asked.
        self.replaying = False
        self.signals: list[str] = []
        with ui.element("div").classes("pane player"):
            #: Where the page may put what belongs to the open episodes.
            self.top = ui.element("div")
            self._timeline()
            self._problem = note("problem w-full").mark("player-problem")
            self._place = ui.element("div").classes("panes")
            with ui.element("div").classes("empty") as self._empty:
                ui.icon("ads_click", size="36px")
                ui.label("Click an episode to look at it.")
                ui.label("Arrow keys: up and down for the next episode, left and right for the next step.")
        self._card.set_visibility(False)

    def _timeline(self) -> None:
        with ui.element("div").classes("card timeline") as self._card:
            self._play = icon_button("play_arrow", "Play or pause", self.toggle_play).mark("play")
            self._speed = ui.select(_SPEEDS, value=1).props("dense borderless options-dense").mark("speed")
            self._speed.props["aria-label"] = "Steps at a time"
            self._slider = ui.slider(min=0, max=1, value=0, on_change=lambda event: self.go(event.value or 0))
            self._slider.props("dense aria-label=Step").classes("grow").mark("slider")
            self._label = ui.label().classes("t").mark("t")
        self._timer = ui.timer(_TICK, self._tick, active=False)

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

    @property
    def playing(self) -> bool:
        """Whether steps go by themselves."""
        return self._timer.active

    def jump(self, t: int) -> None:
        """Move the slider to a step."""
        self._slider.set_value(t)

    def tell(self, problem: str) -> None:
        """Say why an episode cannot be opened; those that are open stay."""
        self._problem.set_text(problem)

    def close(self, pane: EpisodePane) -> None:
        """Close one of them."""
        self._build([each.episode for each in self.panes if each is not pane], t=self.t)
        self.page.closed_episode()

    def _build(self, episodes: list[Episode], t: int) -> None:
        self._stop()
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
        self._card.set_visibility(bool(self.panes))
        self._slider.props(f":max={max(self._longest, 1)}")
        self.t, self._drawn = min(t, self._longest), None
        self._slider.set_value(self.t)
        self._wake()

    @property
    def _longest(self) -> int:
        """The last step of the longest episode that is open."""
        return max((pane.length for pane in self.panes), default=0)

    def _wake(self) -> None:
        self._label.set_text(f"t = {self.t:,} / {self._longest:,}")
        background_tasks.create(self._catch_up())

    def go(self, t: float) -> None:
        """Move to a step."""
        if int(t) != self.t:
            self.t = int(t)
            self._wake()

    def step(self, by: int) -> None:
        """Move by some steps, and stay at the ends."""
        if self.panes:
            self._slider.set_value(min(max(self.t + by, 0), self._longest))

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
                # Without waiting for it a slow browser falls behind, and answers no click for long.
                with contextlib.suppress(TimeoutError):
                    await self.client.run_javascript(_WHEN_DRAWN, timeout=_PATIENCE)
        finally:
            self._busy = False

    def toggle_play(self) -> None:
        """Begin to play, or stop."""
        if not self.panes:
            return
        if self._timer.active:
            self._stop()
            return
        if self.t >= self._longest:
            self._slider.set_value(0)
        self._timer.activate()
        self._play.props("icon=pause")

    def _stop(self) -> None:
        self._timer.deactivate()
        self._play.props("icon=play_arrow")

    def _tick(self) -> None:
        if self._busy:
            return
        if not self.panes or self.t >= self._longest:
            self._stop()
            return
        self.step(self._speed.value or 1)

    def again(self) -> None:
        """Show this t once more after a pane changed."""
        self._drawn = None
        self._slider.props(f":max={max(self._longest, 1)}")
        self._wake()

    def renew(self) -> None:
        """Show a newer version. An episode never changes, so it stays; a deleted one is marked."""
        for pane in self.panes:
            episode = None if pane.gone else self.page.reopened(pane.episode.id)
            if episode is not None:
                self._take(pane, episode)
            elif self.state_of(pane.episode.id) is None:
                pane.tell_gone()

    async def grow(self) -> None:
        """Show what was recorded of unsealed episodes since the last call."""
        watch = self.page.watch
        for pane in [each for each in self.panes if each.state and not each.gone]:
            try:
                episode = await run.io_bound(watch.recordings.episode, pane.episode.id)
            except EpisodelakeError as error:
                pane.tell(str(error))
                continue
            state = watch.state_of(pane.episode.id)
            if state is None:
                pane.tell_gone()
            elif state and episode is not None and pane in self.panes:
                self._take(pane, episode)

    def _take(self, pane: EpisodePane, episode: Episode) -> None:
        """Go on with the same episode; one that is watched at its end stays at its end."""
        ended = self.t >= self._longest
        if pane.take(episode):
            self.again()
            if ended:
                self._slider.set_value(self._longest)

    def state_of(self, episode_id: str) -> str | None:
        """Return the state of an unsealed episode, "" of a sealed one, and None of one that is gone."""
        return self.page.watch.state_of(episode_id)
