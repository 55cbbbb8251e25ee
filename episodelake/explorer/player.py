"""The right side of the page: one episode, or two side by side, and the slider that moves them in step."""

from __future__ import annotations

import contextlib
import time
from functools import partial

from nicegui import background_tasks, run, ui

from .. import Episode
from ..errors import EpisodelakeError
from .episode_pane import EpisodePane
from .moments import rate_of
from .rollouts.conversation import is_rollout, samples_of
from .widgets import PageOwner, icon_button, note

SPEEDS = (0.25, 0.5, 1, 2, 4, 8)
_TICK = 1 / 30
#: Time that counts at most between two pictures: a slow browser is waited for.
_LONGEST_TICK = 0.2
_THUMBNAILS = 12
#: A growing episode gets new thumbnails when it is so many times as long.
_LONGER = 1.25
#: Answered when the browser has drawn the last update, and at once by a hidden page.
_WHEN_DRAWN = """new Promise((done) => {
    const seeks = () => [...document.querySelectorAll("video.frame")].some((video) => video.seeking);
    const look = () => document.hidden || !seeks() ? done() : requestAnimationFrame(look);
    document.hidden ? done() : requestAnimationFrame(look);
})"""
_PATIENCE = 5.0


class Pace:
    """The steps for which the time has come while an episode plays.

    Attributes:
        rate: steps in a second at the speed 1.
    """

    def __init__(self) -> None:
        self.rate = 1.0
        self._last, self._passed = 0.0, 0.0

    def begin(self, now: float) -> None:
        """Begin at a moment, in seconds."""
        self._last, self._passed = now, 0.0

    def due(self, now: float, speed: float) -> int:
        """Return how many steps have become due since the last call."""
        self._passed += min(now - self._last, _LONGEST_TICK) * self.rate * speed
        self._last = now
        steps, self._passed = divmod(self._passed, 1)
        return int(steps)


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
        self._looped = False
        self._pace = Pace()
        self._thumbnailed: tuple[str, int] = "", 0
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
            self._loop = icon_button("repeat", "Loop", self.toggle_loop).mark("loop")
            self._loop.props["aria-pressed"] = "false"
            speeds = {speed: f"{speed:g}x" for speed in SPEEDS}
            self._speed = ui.select(speeds, value=1).props("dense borderless options-dense").mark("speed")
            self._speed.props["aria-label"] = "Speed"
            self._slider = ui.slider(min=0, max=1, value=0, on_change=lambda event: self.go(event.value or 0))
            self._slider.props("dense aria-label=Step").classes("grow").mark("slider")
            self._label = ui.label().classes("t").mark("t")
            self._strip = ui.element("div").classes("thumbnails").mark("thumbnails")
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

    def show_problem(self, problem: str) -> None:
        """Show why an episode cannot be opened; those that are open stay."""
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
        self._slider.props(f":max={max(self.longest, 1)}")
        self.t, self._drawn = min(t, self.longest), None
        self._slider.set_value(self.t)
        if episodes:
            talk = is_rollout(episodes[0])
            self._pace.rate = 1.0 if talk else rate_of(episodes[0], self.page.shown.fps)
        self._wake()
        self._renew_thumbnails()

    def _renew_thumbnails(self) -> None:
        """Draw the thumbnails of the first episode with recorded images, unless they are there."""
        pane = next((each for each in self.panes if each.recorded is not None), None)
        if pane is None:
            self._thumbnailed = "", 0
            self._strip.clear()
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
        self._strip.clear()
        with self._strip:
            for t, url in pictures:
                # For the pointer only: keys move the slider.
                image = ui.element("img")
                image.props["src"], image.props["alt"] = url, ""
                image.on("click", partial(self.jump, t))

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
        self._label.set_text(f"t = {self.t:,} / {self.longest:,}")
        background_tasks.create(self._catch_up())

    def go(self, t: float) -> None:
        """Move to a step."""
        if int(t) != self.t:
            self.t = int(t)
            self._wake()

    def step(self, by: int) -> None:
        """Move by some steps, and stay at the ends."""
        if self.panes:
            self._slider.set_value(min(max(self.t + by, 0), self.longest))

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
        if self.t >= self.longest:
            self._slider.set_value(0)
        self._pace.begin(time.monotonic())
        self._timer.activate()
        self._play.props("icon=pause")

    def toggle_loop(self) -> None:
        """Toggle looping."""
        self._looped = not self._looped
        self._loop.props["aria-pressed"] = str(self._looped).lower()
        self._loop.classes(remove="pressed", add="pressed" if self._looped else "")
        self._loop.update()

    def change_speed(self, by: int) -> None:
        """Play faster or slower by one choice of the list."""
        place = SPEEDS.index(self._speed.value) + by
        self._speed.set_value(SPEEDS[min(max(place, 0), len(SPEEDS) - 1)])

    def _stop(self) -> None:
        if self._timer.active:
            self._timer.deactivate()
            self._play.props("icon=play_arrow")
            # Pictures that passed by may have lost some quality.
            self.again()

    def _tick(self) -> None:
        """Move by the steps for which the time has come; those that a slow browser misses are left out."""
        if self._busy:
            return
        steps = self._pace.due(time.monotonic(), self._speed.value)
        if not self.panes or (self.t >= self.longest and not self._looped):
            self._stop()
        elif self.t >= self.longest and steps:
            self._slider.set_value(0)
        else:
            self.step(steps)

    def again(self) -> None:
        """Show this t once more after a pane changed."""
        self._drawn = None
        self._slider.props(f":max={max(self.longest, 1)}")
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
                self._slider.set_value(self.longest)

    def state_of(self, episode_id: str) -> str | None:
        """Return the state of an unsealed episode, "" of a sealed one, and None of one that is gone."""
        return self.page.watch.state_of(episode_id)
