"""The findings of `health` in a store of rollouts, asked in SQL of its views."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import polars as pl

from ..context import ReadContext
from ..sql.rollout_views import compared
from .findings import KINDS, Finding, finding

#: The ids of the rollouts that have the finding.
_QUERIES = {
    "lengths": """
        SELECT DISTINCT episode_id FROM (
            SELECT episode_id, len(token_mask) AS masked, len(tokens) AS size,
                [len(logprobs), len(reference_logprobs), len(advantages), len(loss_weights),
                    len(token_rewards)] AS sizes,
                CASE WHEN token_mask IS NULL THEN CASE WHEN sampled THEN len(tokens) ELSE 0 END
                    ELSE len(list_filter(token_mask, lambda each: each)) END AS wanted
            FROM messages
        ) WHERE masked <> size OR len(list_filter(sizes, lambda each: each <> wanted)) > 0""",
    "empty_message": """
        SELECT DISTINCT episode_id FROM messages
        WHERE sampled AND coalesce(content, '') = '' AND coalesce(parts, '[]') = '[]'
            AND coalesce(len(tool_names), 0) = 0 AND coalesce(rest NOT LIKE '%"tool_calls"%', true)
            AND coalesce(len(tokens), 0) = 0""",
    "equal_rewards": """
        SELECT episode_id FROM rollouts SEMI JOIN (
            SELECT "group" FROM rollouts WHERE "group" IS NOT NULL GROUP BY "group"
            HAVING count(*) > 1 AND min(reward) = max(reward)
        ) USING ("group")""",
    # Texts and tokens are compared by their hashes.
    "duplicate_prompt": """
        WITH firsts AS (SELECT episode_id, min(message) AS first FROM messages WHERE sampled GROUP BY ALL),
        prompts AS (
            SELECT episode_id, list(hash(role, content, parts) ORDER BY message) AS prompt
            FROM messages LEFT JOIN firsts USING (episode_id)
            WHERE message < first OR first IS NULL GROUP BY episode_id
        ), named AS (
            SELECT episode_id, prompt, coalesce(task, "group") AS name
            FROM prompts JOIN rollouts USING (episode_id)
            WHERE "group" IS NOT NULL
        )
        SELECT episode_id FROM named SEMI JOIN (
            SELECT prompt FROM named GROUP BY prompt HAVING count(DISTINCT name) > 1
        ) USING (prompt)""",
    "duplicate": f"""
        WITH texts AS (
            SELECT episode_id, list(hash(parent, sampled, {compared()}) ORDER BY message) AS said
            FROM messages GROUP BY episode_id
        ), ordered AS (
            SELECT episode_id, row_number() OVER (PARTITION BY said ORDER BY episode_id) AS place FROM texts
        )
        SELECT episode_id FROM ordered WHERE place > 1""",
}


def rollout_findings(context: ReadContext, ids: pl.Series) -> Iterator[Finding]:
    """Yield the findings of rollouts.

    Args:
        ids: of the episodes, in the order of the view.
    """
    from ..sql.session import QuerySession

    declared = context.snapshot.manifest.rollouts or {}
    queries = dict(_QUERIES)
    if isinstance(vocabulary := declared.get("vocabulary"), int):
        queries["vocabulary"] = f"""
            SELECT DISTINCT episode_id FROM messages
            WHERE list_max(tokens) >= {vocabulary} OR list_min(tokens) < 0"""
    with closing(QuerySession(context, read_only=False)) as session:
        for kind, query in queries.items():
            affected = session.query(query).get_column("episode_id")
            yield from _finding(kind, ids, affected)
        if isinstance(size := declared.get("context"), int):
            yield from _finding("context", ids, _too_long(session.query(_SIZES), size))


def _finding(kind: str, ids: pl.Series, affected: pl.Series) -> Iterator[Finding]:
    yield from finding(
        kind, "", ids.is_in(affected.implode()).to_numpy(), None, "{episodes} with " + KINDS[kind]
    )


#: The messages of all rollouts, with the place of the one that each continues among them.
_SIZES = """
    WITH sizes AS MATERIALIZED (
        SELECT episode_id, message, parent, coalesce(len(tokens), 0) AS size,
            row_number() OVER (ORDER BY episode_id, message) - 1 AS place
        FROM messages
    )
    SELECT m.episode_id, m.size, coalesce(p.place, -1) AS above
    FROM sizes AS m LEFT JOIN sizes AS p
        ON p.episode_id = m.episode_id AND p.message = m.parent AND p.message < m.message
    ORDER BY m.place"""


def _too_long(messages: pl.DataFrame, context: int) -> pl.Series:
    """Return the ids of the rollouts with a branch of more tokens than the context; messages as of `_SIZES`.

    Each round doubles the number of messages that are added up, so there are few, however long branches are.
    """
    reached = messages["size"].to_numpy().astype(np.int64)
    above = messages["above"].to_numpy().astype(np.int64)
    while len(below := np.flatnonzero(above >= 0)):
        reached[below] += reached[above[below]]
        above[below] = above[above[below]]
    return messages["episode_id"].filter(pl.Series(reached > context))
