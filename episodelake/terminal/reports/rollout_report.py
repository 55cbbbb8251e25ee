"""A rollout in the terminal: as a conversation, for `show`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...plugin import counted
from ...rollouts.turns import Turn, departures, reward_parts, turns_of
from ...types import Rollout
from ..output.cells import number_text
from ..output.page import Page

#: A message of more characters or lines is cut on a terminal.
LONGEST, MOST_LINES = 2_000, 24
#: The most characters of a role in a heading.
_ROLE = 60
_COLORS = {"system": "magenta", "user": "green", "assistant": "cyan", "tool": "yellow"}
_FACTS = ("episode_id", "position", "run_id", "end_reason", "started_at", "ended_at")
#: Metadata that has a line of its own.
_OWN = ("group", "sample", "task", "policy_version", "stop_reason", "error", "advantage")


@dataclass(frozen=True)
class Conversation:
    """A rollout that was read as a whole.

    Attributes:
        rollout: the rollout.
        turns: its messages.
    """

    rollout: Rollout
    turns: list[Turn]

    @staticmethod
    def of(rollout: Rollout) -> Conversation:
        """Read a rollout.

        Raises:
            CorruptStoreError: its steps are damaged.
        """
        return Conversation(rollout, turns_of(rollout))

    def report(self) -> dict[str, Any]:
        """Return what `show --json` has beside the facts of an episode."""
        messages = zip(self.turns, self.rollout.messages, self.rollout.times, strict=True)
        branches = zip(self.rollout.paths, departures(self.rollout), strict=True)
        return {
            "reward_parts": reward_parts(self.rollout.metadata),
            "messages": [
                {
                    "number": turn.number,
                    "continues": turn.parent,
                    "sampled": turn.sampled,
                    "time": time,
                    "tokens": turn.token_count,
                    "sampled_tokens": turn.sampled_count,
                    "mean_logprob": turn.mean_logprob,
                    "message": message,
                }
                for turn, message, time in messages
            ],
            "branches": [
                {
                    "messages": list(path),
                    "leaves": leaves,
                    "tokens": sum(self.turns[number].token_count for number in path),
                    "sampled_tokens": sum(self.turns[number].sampled_count for number in path),
                }
                for path, leaves in branches
            ],
        }

    def write(self, page: Page, report: Mapping[str, Any], *, whole: bool) -> None:
        """Write the facts, every message, and the branches if there are several.

        Args:
            page: what to write on.
            report: that of `show`.
            whole: do not cut long messages.
        """
        page.pairs(self._facts(report))
        for turn in self.turns:
            _write_turn(page, turn, whole=whole or not page.is_terminal)
        if len(report["branches"]) > 1:
            page.heading("Branches")
            page.table(_branch_rows(report["branches"]))

    def _facts(self, report: Mapping[str, Any]) -> list[tuple[str, object]]:
        metadata = dict(report["metadata"])
        facts: dict[str, object] = {name: report[name] for name in _FACTS}
        facts["reward"] = report["episode_return"]
        if parts := reward_parts(metadata):
            facts["reward parts"] = ", ".join(map(_part_text, parts))
            metadata = {name: metadata[name] for name in metadata if name not in ("rewards", "weights")}
        facts |= {name: metadata[name] for name in _OWN if name in metadata}
        facts["messages"] = len(self.turns)
        if total := sum(turn.token_count for turn in self.turns):
            facts["tokens"] = f"{total:,}, {sum(turn.sampled_count for turn in self.turns):,} sampled"
        if (mean := self._mean_logprob()) is not None:
            facts["mean log-probability"] = mean
        others = {name: value for name, value in metadata.items() if name not in _OWN}
        facts |= {"metadata": others, **{name: report[name] for name in ("run_metadata", "annotations")}}
        return [(name.replace("_", " "), value) for name, value in facts.items()]

    def _mean_logprob(self) -> float | None:
        """Return the mean log-probability of all sampled tokens; None if none has one."""
        means = [(turn.mean_logprob, turn.sampled_count) for turn in self.turns]
        known = [(mean, count) for mean, count in means if mean is not None]
        if not known:
            return None
        return math.fsum(mean * count for mean, count in known) / sum(count for _, count in known)


def _part_text(part: Mapping[str, Any]) -> str:
    weight = "" if part["weight"] == 1 else f" x {_number(part['weight'])}"
    return f"{part['name']} {_number(part['value'])}{weight}"


def _number(value: Any) -> str:
    return number_text(value) if isinstance(value, float) else str(value)


def _write_turn(page: Page, turn: Turn, *, whole: bool) -> None:
    facts = [f"{turn.number} {turn.role[:_ROLE]}"]
    if turn.continues is not None:
        facts.append("begins anew" if turn.continues < 0 else f"continues {turn.continues}")
    if turn.sampled:
        facts.append("sampled")
    if turn.token_count:
        own = "" if turn.sampled_count in (0, turn.token_count) else f", {turn.sampled_count:,} sampled"
        facts.append(counted(turn.token_count, "token") + own)
    if turn.mean_logprob is not None:
        facts.append(f"mean log-probability {page.text(turn.mean_logprob)}")
    page.heading("  ".join(facts), _COLORS.get(turn.role.partition(" ")[0], "white"))
    if turn.reasoning:
        _write_text(page, f"reasoning: {turn.reasoning}", whole=whole, style="dim italic")
    _write_text(page, turn.text, whole=whole)
    for name, arguments in turn.calls:
        _write_text(page, f"-> {name} {arguments}", whole=whole, style="yellow")
    for name, value in turn.others.items():
        _write_text(page, f"{name}: {value}", whole=whole, style="bright_black")


def _write_text(page: Page, text: str, *, whole: bool, style: str = "") -> None:
    if not text:
        return
    shown = text if whole else "\n".join(text[:LONGEST].split("\n")[:MOST_LINES])
    page.block(shown, style)
    if len(shown) < len(text):
        page.note(f"  {counted(len(text) - len(shown), 'more character')}; --all shows them.")


def _branch_rows(branches: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
    return [
        {
            "branch": number,
            "leaves message": branch["leaves"],
            "last message": branch["messages"][-1],
            **{name: branch[name] for name in ("tokens", "sampled_tokens")},
            "messages": " ".join(map(str, branch["messages"])),
        }
        for number, branch in enumerate(branches)
    ]
