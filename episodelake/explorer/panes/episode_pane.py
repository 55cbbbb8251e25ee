"""One episode of the player: figures, the frame and the row of t, signals over time, metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from nicegui import background_tasks, run, ui

from ... import Episode
from ...errors import EpisodelakeError
from ...readers.charts.signals import signal_columns
from ..charts import episode_spec
from ..moments import (
    Moment,
    metadata_of,
    moment_of,
    summary_of,
    text_of,
)
from ..pictures.camera import Camera
from ..pictures.sources import FrameSource, RecordedPictures, frame_sources, has_environment
from ..rollouts.conversation import is_rollout, rollout_facts
from ..rollouts.view import ConversationView
from ..widgets import GONE, Drawing, facts_list, icon_button, note

_NO_SEED = "No replay: no seed was recorded for this episode, so its start cannot be repeated."


class PaneOwner(Protocol):
    """The player as a pane sees it.

    Attributes:
        replaying: whether panes render a replay without being asked.
        signals: what panes draw over time; none for the default.
    """

    replaying: bool
    signals: list[str]

    def close(self, pane: EpisodePane) -> None:
        """Close a pane."""
        ...

    def state_of(self, episode_id: str) -> str | None:
        """Return the state of an unsealed episode, "" of a sealed one, and None of one that is gone."""
        ...

    def again(self) -> None:
        """Show the current step once more: a pane shows something else now."""
        ...

    def jump(self, t: int) -> None:
        """Move to a step."""
        ...

    def samples_beside(self, episode: Episode) -> dict[str, str]:
        """Return the other rollouts of an episode's group: what to call each, by its id."""
        ...

    def open_beside(self, episode_id: str) -> None:
        """Show an episode beside the first one."""
        ...


class EpisodePane:
    """One episode.

    Args:
        player: what it is part of.
        episode: the episode.
        name: "first" or "second".
    """

    def __init__(self, player: PaneOwner, episode: Episode, name: str) -> None:
        self.player = player
        self.episode = episode
        self.gone = False
        self.state = player.state_of(episode.id) or ""
        self._agent: str | None = None
        self._cameras: list[Camera] = []
        self._conversation: ConversationView | None = None
        self._left = False
        with ui.element("section").classes(f"card episode {name}").mark(f"episode-{name}") as self._place:
            self._heading()
            self._problem = note("problem").mark("episode-problem")
            try:
                self._figures()
                if is_rollout(episode):
                    self._converse()
                else:
                    self._now()
                    self._signals()
                self._rest()
                if self._conversation is None:
                    self._look_for_frames()
            except EpisodelakeError as error:
                self.show_problem(str(error))

    @property
    def length(self) -> int:
        """The last t of what is shown."""
        return self._shown.length

    @property
    def recorded(self) -> RecordedPictures | None:
        """The first camera whose images were recorded."""
        sources = (camera.source for camera in self._cameras)
        return next((source for source in sources if isinstance(source, RecordedPictures)), None)

    @property
    def _shown(self) -> Episode:
        """The episode, or the agent of it that is looked at."""
        return self.episode if self._agent is None else self.episode.agent(self._agent)

    @property
    def step_key(self) -> tuple[str, ...]:
        """Id that labels of its steps refer to, and of several agents the one that is shown."""
        return (self.episode.id,) if self._agent is None else (self.episode.id, self._agent)

    @property
    def step_labels(self) -> Mapping[str, Any]:
        """The annotations of its steps."""
        return self._shown.step_annotations

    # Layout

    def _heading(self) -> None:
        with ui.element("div").classes("bar"):
            ui.label(text_of(self.episode.id)).classes("episode-id").mark("episode-id")
            self._figure_place = ui.element("div").classes("figures").mark("figures")
            icon_button("content_copy", "Copy the id", self._copy).props("size=sm")
            icon_button("close", "Close", lambda: self.player.close(self)).props("size=sm")

    def _figures(self) -> None:
        episode = self.episode
        self._show_figures()
        if episode.agents:
            self._agent = episode.agents[0]
            agents = {agent: text_of(agent) for agent in episode.agents}
            ui.select(agents, value=self._agent, label="Agent", on_change=self._agent_changed).props(
                "outlined dense"
            ).mark("agent")

    def _show_figures(self) -> None:
        episode = self.episode
        rollout = is_rollout(episode)
        figures = {
            "reward" if rollout else "return": text_of(episode.episode_return, 40),
            "messages" if rollout else "steps": text_of(episode.length),
            "end": self.state or episode.end_reason,
        }
        if not rollout:
            figures["seed"] = "\N{EN DASH}" if episode.seed is None else str(episode.seed)
        self._figure_place.clear()
        with self._figure_place:
            for name, value in figures.items():
                with ui.element("div"):
                    ui.label(text_of(value)).classes(
                        "figure-value" + (f" end {value}" if name == "end" else "")
                    )
                    ui.label(name).classes("figure-name")

    def _now(self) -> None:
        with ui.element("div").classes("now"):
            with ui.element("div") as self._frame_place:
                self._camera_place = ui.element("div").classes("cameras")
                self._render = ui.button("Render a replay", icon="movie", on_click=self._replay).props(
                    "outline dense no-caps"
                )
                self._render.mark("render")
                self._frame_note = note().style("white-space: normal; max-width: 300px")
            self._render.set_visibility(False)
            self._facts = ui.html("", sanitize=False).mark("facts")

    def _converse(self) -> None:
        """Lay out a rollout in place of frames, values and signals."""
        ui.html(facts_list(rollout_facts(self.episode)), sanitize=False).mark("rollout-facts")
        self._conversation = ConversationView(
            self.episode,
            self.player.samples_beside(self.episode),
            self.player.open_beside,
            self.player.jump,
            self.show_problem,
        )

    def _signals(self) -> None:
        known = ["reward", "action", "observation", "info", "policy", *signal_columns(self._shown)]
        options = list(dict.fromkeys([*known, *self.player.signals]))
        # With an input a new value may be typed: some numbers of a column.
        self._picker = ui.select(
            options,
            multiple=True,
            with_input=True,
            new_value_mode="add-unique",
            clearable=True,
            value=list(self.player.signals),
            label="Signals, such as observation[8:12]",
            on_change=self._picked,
        )
        self._picker.props("outlined dense options-dense use-chips").classes("w-full picker").mark("picker")
        self._drawing = Drawing().mark("signals")
        self._no_signals = note()
        self.draw_signals()

    def _rest(self) -> None:
        metadata = metadata_of(self.episode)
        with ui.expansion("Metadata and summary", value=bool(metadata)).props("dense").classes("w-full"):
            parts = {"Metadata": metadata, "Summary": summary_of(self.episode)}
            ui.html(facts_list(parts), sanitize=False).mark("summary")

    # Showing

    async def show(self, t: int) -> None:
        """Show the row of a step; beyond the end the last one. Frames and cursors are there before."""
        if self._left:
            return
        here = min(t, self.length)
        if self._conversation is not None:
            self._conversation.point_at(here)
            return
        try:
            moment = await run.io_bound(moment_of, self._shown, here)
        except EpisodelakeError as error:
            self.show_problem(str(error))
            return
        if moment is not None and not self._left:
            self._facts.set_content(_facts_of(moment, ended=here < t))

    def _show_cameras(self, sources: Sequence[FrameSource]) -> None:
        """Lay out the cameras side by side, each with its name."""
        self._camera_place.clear()
        with self._camera_place:
            self._cameras = [Camera(source, self.show_problem) for source in sources]

    def draw_signals(self) -> None:
        """Draw the signals over time; in a moment, so that the rest is there before."""
        signals = tuple(self._picker.value or ())
        background_tasks.create(self._drawing.draw(self._no_signals, episode_spec, self._shown, signals))

    def _picked(self) -> None:
        self.player.signals = list(self._picker.value or ())
        self.draw_signals()

    def _look_for_frames(self) -> None:
        self._show_cameras(self._sources())
        missing = not self._cameras and has_environment(self.episode)
        replayable = missing and self.episode.seed is not None
        self._render.set_visibility(replayable)
        self._frame_note.set_text(_NO_SEED if missing and not replayable else "")
        if replayable and self.player.replaying:
            background_tasks.create(self._replay())

    def _sources(self) -> list[FrameSource]:
        # Frames are encoded when an episode is sealed.
        return frame_sources(self._shown, replayed=False, encoded=not self.state)

    async def _replay(self) -> None:
        """Make the environment again, without trust, and draw what it renders."""
        self._render.props("loading")
        self.player.replaying = True
        try:
            sources = await run.io_bound(frame_sources, self.episode, replayed=True)
            if sources is None or self._left:
                return
            self._show_cameras(sources)
            self._render.set_visibility(False)
        except EpisodelakeError as error:
            self._render.set_visibility(False)
            self.player.replaying = False
            self._frame_note.set_text(text_of(str(error)))
        finally:
            self._render.props(remove="loading")

    def _agent_changed(self, event: Any) -> None:
        self._agent = event.value
        self._look_for_frames()
        self.draw_signals()
        self.player.again()

    def take(self, episode: Episode) -> bool:
        """Go on with the same episode of a newer version, since files of the old one may be vacuumed, or with
        more steps; return whether it looks different now.
        """
        before = self.state, self.episode.length
        self.episode, self.state = episode, self.player.state_of(episode.id) or ""
        if before == (self.state, episode.length):
            return False
        if self._conversation is not None:
            self._show_figures()
            self._conversation.show(episode)
            return True
        for camera, source in zip(self._cameras, self._sources(), strict=False):
            camera.show(source)
        self._show_figures()
        if before[1] != episode.length:
            self.draw_signals()
        return True

    def show_problem(self, problem: str) -> None:
        """Show what went wrong with this episode."""
        self._problem.set_text(problem)

    def show_gone(self) -> None:
        """Show that the newest version does not have this episode."""
        self.gone = True
        self.show_problem(f"This episode {GONE}")

    def leave(self) -> None:
        """Close the pane; drop what still comes for it."""
        self._left = True

    def _copy(self) -> None:
        ui.clipboard.write(self.episode.id)
        ui.notify("Copied", timeout=1000)


def _facts_of(moment: Moment, *, ended: bool) -> str:
    parts = {
        "Step" + (", the last one" if ended else ""): moment.step,
        "Info": moment.infos,
        "Policy and own": moment.others,
    }
    return facts_list(parts)
