"""The findings of `health` in a store of rollouts, asked in SQL of its views."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ..context import ReadContext
from .findings import KINDS, Finding, finding

#: The ids of the rollouts that have the finding.
_QUERIES = {
    "lengths": """
        SELECT DISTINCT episode_id FROM (
            SELECT *, CASE WHEN token_mask IS NULL THEN CASE WHEN sampled THEN len(tokens) ELSE 0 END
                ELSE len(list_filter(token_mask, lambda each: each)) END AS wanted FROM messages
        ) WHERE len(token_mask) <> len(tokens) OR len(logprobs) <> wanted OR len(reference_logprobs) <> wanted
            OR len(advantages) <> wanted OR len(loss_weights) <> wanted OR len(token_rewards) <> wanted""",
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
        ), named AS (SELECT episode_id, prompt, "group" FROM prompts JOIN rollouts USING (episode_id))
        SELECT episode_id FROM named SEMI JOIN (
            SELECT prompt FROM named GROUP BY prompt HAVING count(DISTINCT "group") > 1
        ) USING (prompt)""",
    "duplicate": """
        WITH texts AS (
            SELECT episode_id, list(hash(parent, sampled, role, content, parts, reasoning, tool_ids,
                tool_names, tool_arguments, rest, tokens, logprobs) ORDER BY message) AS said
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

    session = QuerySession(context, read_only=False)
    declared = context.snapshot.manifest.rollouts or {}
    queries = dict(_QUERIES)
    if isinstance(vocabulary := declared.get("vocabulary"), int):
        queries["vocabulary"] = f"""
            SELECT DISTINCT episode_id FROM messages
            WHERE list_max(tokens) >= {vocabulary} OR list_min(tokens) < 0"""
    if isinstance(context_size := declared.get("context"), int):
        queries["context"] = _too_long(context_size)
    for kind, query in queries.items():
        rows = pl.DataFrame({"episode_id": ids}).join(
            session.query(query).with_columns(found=True),
            on="episode_id",
            how="left",
            maintain_order="left",
        )
        found = rows["found"].fill_null(False).to_numpy()
        yield from finding(kind, "", found, None, "{episodes} with " + KINDS[kind])
    session.close()


def _too_long(context: int) -> str:
    """Return a query for the rollouts with a branch of more tokens."""
    return f"""
        WITH RECURSIVE reached AS (
            SELECT episode_id, message, coalesce(len(tokens), 0) AS size FROM messages WHERE parent < 0
            UNION ALL
            SELECT m.episode_id, m.message, r.size + coalesce(len(m.tokens), 0)
            FROM reached AS r JOIN messages AS m ON m.episode_id = r.episode_id AND m.parent = r.message
        )
        SELECT DISTINCT episode_id FROM reached WHERE size > {context}"""
