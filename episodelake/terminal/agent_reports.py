"""What `episodelake show` says of the agents of a multi-agent store."""

from __future__ import annotations

from typing import Any

from ..readers.agents import MultiAgentEpisode
from .grid import Grid, number_text
from .page import Page


def agents_of(page: Page, episode: MultiAgentEpisode) -> Grid:
    """One row per agent of an episode."""
    rows = []
    for name in episode.agents:
        agent = episode.agent(name)
        steps = agent.env_steps
        rows.append(
            (
                name,
                agent.group,
                agent.length,
                _return_text(page, agent.episode_return),
                agent.end_reason,
                steps[0],
                steps[-1],
            )
        )
    headers = ("agent", "group", "transitions", "return", "end reason", "from env_step", "to env_step")
    return Grid.of(headers, rows, (False, False, True, True, False, True, True))


def _return_text(page: Page, value: Any) -> str:
    return number_text(value) if page.is_terminal and isinstance(value, float) else str(value)
