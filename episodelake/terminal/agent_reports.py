"""What `episodelake info` and `episodelake show` say of the agents of a multi-agent store."""

from __future__ import annotations

from typing import Any

from .._store import EpisodeStore
from ..readers.agents import MultiAgentEpisode
from .grid import Grid, number_text
from .page import Page

#: Sums over agents come from the episodes table, so that no step is read.
_AGENTS = """
SELECT agent, any_value(agent_group) AS "group", count(*) AS episodes, sum(transitions)::BIGINT AS transitions
{mean} FROM (SELECT unnest(agents) AS agent, unnest(agent_groups) AS agent_group,
unnest(agent_lengths) AS transitions, unnest(agent_returns) AS total FROM episodes)
GROUP BY agent ORDER BY episodes DESC, agent
"""


def agents_query(store: EpisodeStore) -> str:
    """The query for a row per agent: group, episodes, transitions and, of scalar rewards, the mean return."""
    return _AGENTS.format(mean="" if store.reward_shape else ", avg(total) AS mean_return")


def group_spaces(store: EpisodeStore) -> list[tuple[str, str]]:
    """The agents and the spaces of each group."""
    pairs = []
    for group in store.agent_groups:
        pairs += [
            (f"agents of {group.name}", ", ".join(group.agents)),
            (f"  observation space of {group.name}", " ".join(str(group.observation_space).split())),
            (f"  action space of {group.name}", " ".join(str(group.action_space).split())),
        ]
    return pairs


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
