"""A rollout in the explorer: its messages as a conversation, in place of signals and steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nicegui import background_tasks, run, ui

from ... import Episode
from ...errors import EpisodelakeError
from ...rollouts.turns import Turn, departures, turns_of
from ...types import Rollout
from .conversation import TINTS, conversation_html

#: Mark a message, and scroll to it.
_POINT = """requestAnimationFrame(() => document.querySelectorAll("#%s .turn").forEach((turn) => {
    const here = turn.dataset.turn === "%d";
    turn.classList.toggle("current", here);
    if (here) turn.scrollIntoView({ block: "nearest" });
}))"""


class ConversationView:
    """The messages of a rollout, one branch at a time.

    Args:
        episode: the rollout.
        samples: other rollouts of its group: the text of each by its id.
        compare: called with the id of one to show beside it.
        jump: called with the number of a message to go to.
        on_problem: called with the reason if the rollout cannot be read.
    """

    def __init__(
        self,
        episode: Episode,
        samples: Mapping[str, str],
        compare: Callable[[str], object],
        jump: Callable[[int], object],
        on_problem: Callable[[str], object],
    ) -> None:
        self._jump, self._on_problem = jump, on_problem
        self._turns: list[Turn] = []
        self._paths: list[tuple[int, ...]] = []
        self._leaves: list[int | None] = []
        self._branch, self._here = 0, 0
        with ui.element("div").classes("bar wrapping"):
            self._tint = ui.toggle({}, on_change=self._draw).props("dense no-caps unelevated flat")
            self._tint.mark("tint")
            if samples:
                select = ui.select(dict(samples), label="Compare with", on_change=lambda e: compare(e.value))
                select.props("outlined dense options-dense").classes("grow").mark("samples")
        self._tabs = ui.tabs(on_change=self._chosen).props("dense no-caps align=left").mark("branches")
        self._html = ui.html("", sanitize=False).classes("w-full").mark("conversation")
        self.show(episode)

    def show(self, episode: Episode) -> None:
        """Show a rollout, in a moment: another one, or more of the same."""
        background_tasks.create(self._load(episode))

    async def _load(self, episode: Episode) -> None:
        try:
            read = await run.io_bound(_read, episode)
        except EpisodelakeError as error:
            self._on_problem(str(error))
            return
        if read is None or self._html.is_deleted:
            return
        self._turns, self._paths, self._leaves = read
        known = {name for turn in self._turns if turn.tokens is not None for name in turn.tokens.numbers}
        tints = {name: f"Tint: {text}" for name, text in TINTS.items() if name in known}
        self._tint.set_options(tints, value=self._tint.value or next(iter(tints), None))
        self._tint.set_visibility(len(tints) > 1)
        self._show_tabs()
        self.point_at(self._here)
        self._draw()

    def _show_tabs(self) -> None:
        self._tabs.set_visibility(len(self._paths) > 1)
        self._tabs.clear()
        with self._tabs:
            for number, leaves in enumerate(self._leaves):
                start = "" if leaves is None else f", from {leaves}"
                ui.tab(str(number), f"Branch {number}{start}")
        self._tabs.set_value(str(self._branch))

    def _chosen(self, event: Any) -> None:
        """Show the branch of a tab, at its first own message."""
        number = int(event.value or 0)
        if number == self._branch or number >= len(self._paths):
            return
        self._branch = number
        leaves = self._leaves[number]
        self._draw()
        self._jump(next(each for each in self._paths[number] if leaves is None or each > leaves))

    def point_at(self, number: int) -> None:
        """Mark a message, in a branch that has it."""
        if not self._turns:
            self._here = number
            return
        self._here = min(number, len(self._turns) - 1)
        if self._here not in self._paths[self._branch]:
            self._branch = next(at for at, path in enumerate(self._paths) if self._here in path)
            self._tabs.set_value(str(self._branch))
            self._draw()
        self._html.client.run_javascript(_POINT % (self._html.html_id, self._here))

    def _draw(self) -> None:
        path = self._paths[self._branch] if self._paths else ()
        self._html.set_content(
            conversation_html([self._turns[number] for number in path], self._tint.value or "", self._here)
        )


def _read(episode: Episode) -> tuple[list[Turn], list[tuple[int, ...]], list[int | None]]:
    rollout = Rollout(episode)
    return turns_of(rollout), rollout.paths, departures(rollout)
