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


#: Messages that are drawn at a time.
_PAGE = 50


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
        #: The first place of the branch's messages that is drawn, and the one after the last.
        self._first, self._stop = 0, _PAGE
        with ui.element("div").classes("bar wrapping"):
            self._tint = ui.toggle({}, on_change=lambda: self._draw()).props("dense no-caps unelevated flat")
            self._tint.mark("tint")
            if samples:
                select = ui.select(dict(samples), label="Compare with", on_change=lambda e: compare(e.value))
                select.props("outlined dense options-dense").classes("grow").mark("samples")
        self._tabs = ui.tabs(on_change=self._chosen).props("dense no-caps align=left").mark("branches")
        self._earlier = self._paging(lambda: self._draw(self._first - _PAGE))
        self._html = ui.html("", sanitize=False).classes("w-full").mark("conversation")
        self._later = self._paging(lambda: self._draw(stop=self._stop + _PAGE))
        self.show(episode)

    @staticmethod
    def _paging(draw: Callable[[], object]) -> ui.button:
        button = ui.button(on_click=draw).props("flat dense no-caps")
        button.set_visibility(False)
        return button

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
        own = next(each for each in self._paths[number] if leaves is None or each > leaves)
        self._draw_around(own)
        self._jump(own)

    def point_at(self, number: int) -> None:
        """Mark a message, in a branch that has it."""
        if not self._turns:
            self._here = number
            return
        self._here = min(number, len(self._turns) - 1)
        if self._here not in self._paths[self._branch]:
            self._branch = next(at for at, path in enumerate(self._paths) if self._here in path)
            self._tabs.set_value(str(self._branch))
            self._draw_around(self._here)
        elif not self._first <= self._paths[self._branch].index(self._here) < self._stop:
            self._draw_around(self._here)
        self._html.client.run_javascript(_POINT % (self._html.html_id, self._here))

    def _draw_around(self, number: int) -> None:
        """Draw a page with a message of the branch, and some before it."""
        first = max(self._paths[self._branch].index(number) - _PAGE // 5, 0)
        self._draw(first, first + _PAGE)

    def _draw(self, first: int | None = None, stop: int | None = None) -> None:
        """Draw messages of the branch: those that are there now, or others by their places."""
        path = self._paths[self._branch] if self._paths else ()
        self._first = max(self._first if first is None else first, 0)
        self._stop = self._stop if stop is None else stop
        shown = range(self._first, min(self._stop, len(path)))
        turns = [self._turns[number] for number in path]
        self._html.set_content(conversation_html(turns, self._tint.value or "", self._here, shown))
        for button, left, where in (
            (self._earlier, self._first, "earlier"),
            (self._later, len(path) - self._stop, "more"),
        ):
            button.set_visibility(left > 0)
            button.set_text(f"Show {min(left, _PAGE)} {where} of {len(path):,} messages")


def _read(episode: Episode) -> tuple[list[Turn], list[tuple[int, ...]], list[int | None]]:
    rollout = Rollout(episode)
    return turns_of(rollout), rollout.paths, departures(rollout)
