"""A rollout as HTML and texts: its messages, the parts of its reward, and the other samples of its group."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence

import numpy as np
import polars as pl

from ... import Episode
from ...plugin import counted
from ...rollouts.turns import Turn, reward_parts
from ..moments import text_of

#: Characters of a text, and cells of tokens, that are shown unasked.
_LONGEST, _MOST_TOKENS = 2_000, 1_000
_MOST_SAMPLES = 256
_GROUP, _SAMPLE = "metadata.group", "metadata.sample"
_ROLES = ("system", "user", "assistant", "tool")
#: What tints tokens, by column.
TINTS = {"logprobs": "log-probability", "advantages": "advantage"}
_FACTS = ("group", "sample", "task", "policy_version", "stop_reason", "error", "advantage")


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


def conversation_html(turns: Sequence[Turn], tint: str, current: int, shown: range | None = None) -> str:
    """Return messages as HTML. All texts come from a store, so all of them are escaped.

    Args:
        turns: the messages.
        tint: the column of `TINTS` that colours sampled tokens.
        current: the number of the message that is marked.
        shown: places of the messages to show; None for all. Colours are those of all messages.
    """
    numbers = [turn.tokens.numbers[tint] for turn in turns if turn.tokens and tint in turn.tokens.numbers]
    largest = max((float(np.abs(each).max()) for each in numbers if len(each)), default=0.0)
    some = range(len(turns)) if shown is None else shown
    return f'<ol class="turns">{"".join(_turn(turns[at], tint, largest, current) for at in some)}</ol>'


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
    """Return a cell for each sampled token: its colour shows its number, its tooltip the id."""
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
