"""The card of an episode: its facts, its signals as small charts, and some of its frames."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

from ..episode_data import EpisodeData
from ..pictures.images import image_columns
from ..signals import signals_of
from . import drawings
from .html import (
    card,
    code,
    duration,
    facts,
    figures,
    frames_part,
    number,
    part,
    row,
    shown_part,
    table,
    text,
)

_SIGNALS = 14
_AGENTS = 20


def episode_card(episode: EpisodeData) -> str:
    """Return the card as HTML; it never raises."""
    try:
        name = episode.id
    except Exception:  # the parts below say what is damaged
        name = f"position {episode.position}"
    agent = getattr(episode, "agent_id", None)
    parts = [
        shown_part("The figures", lambda: _figures(episode)),
        row(
            [
                shown_part("What is known of it", lambda: _facts(episode)),
                shown_part("Its metadata", lambda: _metadata(episode)),
            ]
        ),
    ]
    if episode_agents(episode):
        parts.append(shown_part("The agents", lambda: _agents(episode)))
    parts.append(shown_part("The signals", lambda: _signals(episode)))
    if not episode_agents(episode):
        for column in image_columns(episode._own_schema)[:2]:
            parts.append(shown_part("The frames", lambda column=column: frames_part(episode, column, column)))
    kind = type(episode).__name__
    return card(kind, name, f"agent {agent}" if agent is not None else "", "".join(parts))


def episode_agents(episode: EpisodeData) -> bool:
    """Return whether it is one of several agents; told by the schema, which cannot be damaged any more."""
    return bool(episode.schema.groups) and not hasattr(episode, "agent_id")


def _figures(episode: EpisodeData) -> str:
    unit = "steps of the environment" if episode_agents(episode) else "steps"
    return figures(
        [
            (unit, number(episode.length)),
            ("return", number(episode.episode_return)),
            ("its end", episode.end_reason),
        ]
    )


def _facts(episode: EpisodeData) -> str:
    flags = [name for name in ("terminated", "truncated") if getattr(episode, name)]
    lasted = (episode.ended_at - episode.started_at).total_seconds()
    pairs = [
        ("run", code(episode.run_id)),
        ("position", number(episode.position)),
        ("flags", text(", ".join(flags) or "none")),
        ("seed", text("NULL" if episode.seed is None else episode.seed)),
        ("started (UTC)", text(f"{episode.started_at:%Y-%m-%d %H:%M:%S}")),
        ("lasted", text(duration(lasted))),
    ]
    if episode.options is not None:
        pairs.append(("options", code(_json(episode.options))))
    if episode.env_index is not None:
        pairs.append(("environment", number(episode.env_index)))
    return part("The episode", facts(pairs))


def _metadata(episode: EpisodeData) -> str:
    pairs = [(str(key), code(_json(value))) for key, value in episode.metadata.items()]
    pairs += [(str(key), code(_json(value))) for key, value in episode.annotations.items()]
    return part("Metadata", facts(pairs)) if pairs else ""


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _agents(episode: EpisodeData) -> str:
    rows = []
    members: Mapping[str, Any] = episode._members
    for name, agent in islice(members.items(), _AGENTS):
        rows.append(
            (
                text(name),
                text(agent.group),
                number(agent.length),
                number(agent.episode_return),
                text(agent.end_reason),
            )
        )
    left = len(episode.agents) - len(rows)
    more = f", {len(rows)} of {len(episode.agents):,}" if left else ""
    return part(f"Agents{more}", table(("agent", "group", "steps", "return", "its end"), rows, (2, 3)))


def _signals(episode: EpisodeData) -> str:
    roots = ("reward",) if episode_agents(episode) else ("reward", "action", "observation")
    found = signals_of(episode, roots)
    rows = []
    for signal in found[:_SIGNALS]:
        low, high = drawings.span_of([signal.values])
        finite = bool(len(signal.values)) and (low, high) != (0.0, 0.0)
        spread = number(low) if low == high else f"{number(low)} to {number(high)}"
        line = drawings.line_chart(
            signal.values, label=f"{signal.name}: {spread}", stepped=".action" in f".{signal.column}"
        )
        drawable = finite or 0 in signal.values
        words = spread if drawable else "no finite value" if len(signal.values) else "none"
        rows.append((text(signal.name, 60), line, text(words)))
    if not rows:
        return ""
    left = len(found) - len(rows)
    more = f'<span class="el-dim">{left:,} more are not drawn.</span>' if left else ""
    return part("Over its steps", table((), rows) + more)
