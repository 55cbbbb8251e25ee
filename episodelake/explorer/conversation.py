"""A rollout in the explorer: its messages as a conversation, in place of signals and steps."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from nicegui import background_tasks, run, ui

from .. import Episode
from ..errors import EpisodelakeError
from ..plugin import counted
from ..rollouts.turns import Turn, departures, reward_parts, turns_of
from ..types import Rollout
from .moments import text_of

#: Characters of a text, and cells of tokens, that are shown unasked.
_LONGEST, _MOST_TOKENS = 2_000, 1_000
_MOST_SAMPLES = 256
_GROUP, _SAMPLE = "metadata.group", "metadata.sample"
_ROLES = ("system", "user", "assistant", "tool")
#: What tints tokens, by column.
TINTS = {"logprobs": "log-probability", "advantages": "advantage"}
_FACTS = ("group", "sample", "task", "policy_version", "stop_reason", "error", "advantage")
#: Mark a message, and scroll to it.
_POINT = """requestAnimationFrame(() => document.querySelectorAll("#%s .turn").forEach((turn) => {
    const here = turn.dataset.turn === "%d";
    turn.classList.toggle("current", here);
    if (here) turn.scrollIntoView({ block: "nearest" });
}))"""


def is_rollout(episode: Episode) -> bool:
    """Return whether an episode is a rollout of a language agent."""
    return episode._rows.snapshot.manifest.rollouts is not None


def rollout_facts(episode: Episode) -> dict[str, dict[str, str]]:
    """Return the parts of a rollout's reward and its facts, as texts by title."""
    metadata = episode.metadata
    parts = {
        text_of(part["name"], 40): text_of(part["value"])
        + ("" if part["weight"] == 1 else f" \N{MULTIPLICATION SIGN} {text_of(part['weight'])}")
        for part in reward_parts(metadata)
    }
    facts = {name.replace("_", " "): text_of(metadata[name]) for name in _FACTS if name in metadata}
    return {"Reward": parts, "Rollout": facts}


def samples_of(rows: pl.DataFrame, episode: Episode) -> dict[str, str]:
    """Return the other rollouts of an episode's group, in the order of their samples.

    Args:
        rows: the table of episodes.
        episode: a rollout.

    Returns:
        What to call each, by its id; empty without a group.
    """
    group = episode.metadata.get("group")
    if not isinstance(group, str) or rows.schema.get(_GROUP) != pl.String:
        return {}
    others = rows.filter(pl.col(_GROUP) == group, pl.col("episode_id") != episode.id)
    if _SAMPLE in rows.columns:
        others = others.sort(_SAMPLE, maintain_order=True)
    return {
        row["episode_id"]: f"sample {text_of(row.get(_SAMPLE))}, reward {text_of(row['episode_return'])}"
        for row in others.head(_MOST_SAMPLES).to_dicts()
    }


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


def conversation_html(turns: Sequence[Turn], tint: str, current: int) -> str:
    """Return messages as HTML. All texts come from a store, so all of them are escaped.

    Args:
        turns: the messages.
        tint: the column of `TINTS` that colours sampled tokens.
        current: the number of the message that is marked.
    """
    numbers = [turn.tokens.numbers[tint] for turn in turns if turn.tokens and tint in turn.tokens.numbers]
    largest = max((float(np.abs(each).max()) for each in numbers if len(each)), default=0.0)
    return f'<ol class="turns">{"".join(_turn(turn, tint, largest, current) for turn in turns)}</ol>'


def _turn(turn: Turn, tint: str, largest: float, current: int) -> str:
    role = turn.role.partition(" ")[0]
    kind = f"{role if role in _ROLES else 'other'}{' current' if turn.number == current else ''}"
    facts = [f"{turn.number}"]
    if turn.continues is not None:
        facts.append("begins anew" if turn.continues < 0 else f"continues {turn.continues}")
    if turn.token_count:
        facts.append(f"{counted(turn.token_count, 'token')}, {turn.sampled_count:,} sampled")
    if turn.mean_logprob is not None:
        facts.append(f"mean log-probability {turn.mean_logprob:.3g}")
    head = f"<b>{_escaped(turn.role, 80)}</b> <span>{' &middot; '.join(facts)}</span>"
    lines = [
        f'<li class="turn {kind}" data-turn="{turn.number}"><div class="turn-head">{head}</div>',
        _folded("Reasoning", turn.reasoning) if turn.reasoning else "",
        _text(turn.text),
        *(_folded(f"Calls {name}", _indented(arguments)) for name, arguments in turn.calls),
        *(_folded(name, value) for name, value in turn.others.items()),
        _tokens(turn, tint, largest),
    ]
    return "".join(lines) + "</li>"


def _escaped(text: str, longest: int | None = None) -> str:
    """Return a text without characters that are not printed, safe in HTML; cut if it is too long."""
    plain = text.replace("\r\n", "\n").expandtabs(4)
    return html.escape(text_of(plain, len(plain) if longest is None else longest))


def _text(text: str) -> str:
    if len(text) <= _LONGEST:
        return f'<div class="turn-text">{_escaped(text)}</div>' if text else ""
    whole = f'<div class="turn-text">{_escaped(text)}</div>'
    return (
        f'<div class="turn-text">{_escaped(text, _LONGEST)}</div>'
        f"<details><summary>All {len(text):,} characters</summary>{whole}</details>"
    )


def _folded(title: str, text: str) -> str:
    return (
        f"<details><summary>{_escaped(title, 80)}</summary>"
        f'<div class="turn-text mono">{_escaped(text)}</div></details>'
    )


def _indented(arguments: str) -> str:
    """Return the arguments of a call with a line for each; as they are if they are no JSON."""
    try:
        return json.dumps(json.loads(arguments), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return arguments


def _tokens(turn: Turn, tint: str, largest: float) -> str:
    """Return a cell for each sampled token: its colour is its number, its id is told by the pointer."""
    if turn.tokens is None or not turn.sampled_count:
        return ""
    ids = turn.tokens.tokens[turn.tokens.mask].tolist()
    given = turn.tokens.numbers
    numbers = {name: given[name].tolist() for name in TINTS if len(given.get(name, ())) == len(ids)}
    cells = []
    for at, token in enumerate(ids[:_MOST_TOKENS]):
        title = "".join(f", {TINTS[name]} {values[at]:.4g}" for name, values in numbers.items())
        value = numbers[tint][at] if tint in numbers else None
        cells.append(f'<i{_tinted(tint, value, largest)} title="token {token}{title}"></i>')
    more = f" {len(ids) - _MOST_TOKENS:,} more" if len(ids) > _MOST_TOKENS else ""
    label = f"{counted(len(ids), 'sampled token')} by {TINTS[tint]}" if tint in numbers else "Sampled tokens"
    return f'<div class="tokens" role="img" aria-label="{label}">{"".join(cells)}{more}</div>'


def _tinted(tint: str, value: float | None, largest: float) -> str:
    """Return the class and the share of colour of a token: how improbable it was, or its advantage."""
    if value is None:
        return ""
    if tint == "logprobs":
        return f' class="down" style="--share: {100 * (1 - np.exp(min(value, 0.0))):.0f}%"'
    share = 100 * abs(value) / largest if largest else 0.0
    return f' class="{"up" if value > 0 else "down"}" style="--share: {share:.0f}%"'
