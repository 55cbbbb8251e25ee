"""Views of stores of rollouts: `messages`, `rollouts` and `tokens`, on top of `steps` and `episodes`.

A column that no rollout of the store has yet is NULL in them, so that queries do not depend on the data.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...store.layout import EPISODES, STEPS
from .macros import Macro
from .text import quote

MESSAGES, ROLLOUTS, TOKENS = "messages", "rollouts", "tokens"
#: Own columns of steps, in the order of `messages`.
_OF_MESSAGE = {
    "role": "VARCHAR",
    "content": "VARCHAR",
    "parts": "VARCHAR",
    "name": "VARCHAR",
    "reasoning": "VARCHAR",
    "tool_call_id": "VARCHAR",
    "tool_ids": "VARCHAR[]",
    "tool_names": "VARCHAR[]",
    "tool_arguments": "VARCHAR[]",
    "rest": "VARCHAR",
    "time": "DOUBLE",
    "tokens": "INTEGER[]",
    "token_mask": "BOOLEAN[]",
    "logprobs": "FLOAT[]",
    "reference_logprobs": "FLOAT[]",
    "advantages": "FLOAT[]",
    "loss_weights": "FLOAT[]",
    "token_rewards": "FLOAT[]",
}
#: Columns of `messages` in their order; annotations follow.
_OF_MESSAGES = dict.fromkeys(
    ("episode_id", "message", "parent", "sampled", "content", "reward", *_OF_MESSAGE)
)
_NUMBERS = ("logprobs", "reference_logprobs", "advantages", "loss_weights", "token_rewards")
#: What messages are compared by.
_SAID = [name for name in _OF_MESSAGE if name not in ("time", "token_mask", *_NUMBERS[1:])]
#: Metadata of episodes, in the order of `rollouts`.
_OF_ROLLOUT = {
    "group": "VARCHAR",
    "sample": "BIGINT",
    "task": "VARCHAR",
    "policy_version": "BIGINT",
    "stop_reason": "VARCHAR",
    "error": "VARCHAR",
    "advantage": "DOUBLE",
}
#: Columns of `rollouts` in their order; further metadata and annotations follow.
_TAKEN = dict.fromkeys(
    (
        *("episode_id", "run_id", "reward", *_OF_ROLLOUT, "terminated", "truncated", "end_reason"),
        *("messages", "started_at", "ended_at"),
    )
)
_METADATA = "metadata."
_PARTS = (f"{_METADATA}rewards.", f"{_METADATA}weights.")
#: A rollout that was cut ends with a message that has no action yet.
_MESSAGE_COUNT = "length + CASE WHEN terminated OR truncated{} THEN 0 ELSE 1 END"


def rollout_views(
    steps: Collection[str], episodes: Collection[str], annotations: Mapping[str, Collection[str]]
) -> Mapping[str, str]:
    """Return the queries of the views by name, each after those that it reads.

    Args:
        steps, episodes: the columns of the two tables; of steps those that were recorded.
        annotations: of both tables, by its name. The views have those whose names are free.
    """
    shown = [_column(name, name, kind, steps) for name, kind in _OF_MESSAGE.items() if name != "content"]
    # Without a step that has a role there is no message yet.
    there, models = ("role IS NOT NULL", "role = 'assistant'") if "role" in steps else ("false", "false")
    # The last message of a rollout that was cut has no action yet.
    said = "steps.sampled" if "sampled" in steps else "NULL"
    messages = (
        f"SELECT episode_id, t AS message, observation AS parent, coalesce(action = 1, {said}, {models}) AS "
        f"sampled, {_content(steps)} AS content, reward, {', '.join(shown)}"
        f"{_annotated(annotations[STEPS], _OF_MESSAGES)} FROM steps WHERE {there}"
    )
    facts = ", ".join(
        _column(f"{_METADATA}{name}", name, kind, episodes) for name, kind in _OF_ROLLOUT.items()
    )
    short = _further(episodes)
    further = "".join(f", {quote(name)} AS {quote(own)}" for name, own in short.items())
    taken = {*_TAKEN, *(own.lower() for own in short.values())}
    missing = " OR last_observation IS NOT NULL" if "last_observation" in episodes else ""
    rollouts = (
        f"SELECT episode_id, run_id, episode_return AS reward, {facts}, terminated, truncated, end_reason, "
        f"{_MESSAGE_COUNT.format(missing)} AS messages, started_at, ended_at{further}"
        f"{_annotated(annotations[EPISODES], taken)} FROM episodes"
    )
    return {MESSAGES: messages, ROLLOUTS: rollouts, TOKENS: _TOKENS}


def view_columns(episodes: Collection[str]) -> dict[str, list[str]]:
    """Return the columns of the views, without annotations.

    Args:
        episodes: the columns of the table.
    """
    tokens = ["episode_id", "message", "position", "token", "sampled", *_SINGLE]
    return {MESSAGES: [*_OF_MESSAGES], ROLLOUTS: [*_TAKEN, *_further(episodes).values()], TOKENS: tokens}


def compared(there: Collection[str] = tuple(_OF_MESSAGE)) -> str:
    """Return the columns by which messages are compared, as a list in SQL.

    They are all that was said, with its tokens and log-probabilities.

    Args:
        there: the columns to choose from; by default those of the view `messages`.
    """
    return ", ".join(quote(name) for name in _SAID if name in there)


def rollout_names(episodes: Collection[str]) -> dict[str, str]:
    """Return columns of episodes by names of the view `rollouts`; none that episodes have as well.

    They are the reward, the facts of a rollout, and the parts of its reward with their weights.

    Args:
        episodes: the columns of the table; it may lack a fact.
    """
    parts = (name.removeprefix(_METADATA) for name in episodes if name.startswith(_PARTS))
    named = {"reward": "episode_return", **{name: f"{_METADATA}{name}" for name in (*_OF_ROLLOUT, *parts)}}
    there = {name.lower() for name in episodes}
    return {name: column for name, column in named.items() if name.lower() not in there}


def rollout_columns(episodes: Collection[str]) -> str:
    """Return the end of a list of columns of episodes: those of `rollout_names`."""
    return "".join(
        f", {_column(column, name, _OF_ROLLOUT.get(name, 'DOUBLE'), episodes)}"
        for name, column in rollout_names(episodes).items()
    )


def rollout_macros() -> list[Macro]:
    """Return the macros of a store of rollouts."""
    reads = frozenset({EPISODES})
    return [
        Macro("pass_at_k", "_k, threshold := 1.0", _PASS_AT_K, reads=reads),
        Macro("group_advantages", "epsilon := 1e-6", _GROUP_ADVANTAGES, reads=reads),
    ]


#: A rollout that its writer did not end has no reward yet.
_FINISHED = "\"group\" IS NOT NULL AND end_reason IN ('terminated', 'truncated')"
#: The unbiased estimate of Chen et al. (2021), Evaluating Large Language Models Trained on Code, section 2.1:
#: 1 - C(n - c, k) / C(n, k) for n samples of which c are right. NULL where there are fewer than k.
_PASS_AT_K = f"""
SELECT "group", samples, correct,
    CASE WHEN _k < 1 OR _k <> floor(_k)
        THEN error('pass_at_k: k must be a whole number from 1 on, not ' || _k)
    WHEN samples < _k THEN NULL WHEN correct = 0 THEN 0.0
    WHEN samples - correct < _k THEN 1.0
    ELSE 1 - list_product(list_transform(range(samples - correct + 1, samples + 1), lambda i: 1 - _k / i))
    END AS pass_at_k
FROM (
    SELECT "group", count(*) AS samples, count(*) FILTER (WHERE reward >= threshold) AS correct
    FROM rollouts WHERE {_FINISHED} GROUP BY "group"
)"""
#: As GRPO has them, Shao et al. (2024), DeepSeekMath, section 4.1.2; with the deviation of a sample.
_GROUP_ADVANTAGES = f"""
SELECT episode_id, "group", reward, group_mean, group_std,
    (reward - group_mean) / (coalesce(group_std, 0) + epsilon) AS group_advantage
FROM (
    SELECT episode_id, "group", reward, avg(reward) OVER (PARTITION BY "group") AS group_mean,
        stddev_samp(reward) OVER (PARTITION BY "group") AS group_std
    FROM rollouts WHERE {_FINISHED}
)"""


def _column(column: str, name: str, kind: str, there: Collection[str]) -> str:
    value = quote(column) if column in there else f"NULL::{kind}"
    return f"{value} AS {quote(name)}"


def _annotated(names: Collection[str], taken: Collection[str]) -> str:
    """Return the end of a list of columns: annotations, but those whose names are taken, in any case."""
    return "".join(f", {quote(name)}" for name in names if name.lower() not in taken)


def _further(episodes: Collection[str]) -> dict[str, str]:
    """Return the names in `rollouts` of metadata that are no facts of a rollout, by column."""
    return {
        name: _short(name)
        for name in episodes
        if name.startswith(_METADATA) and name.removeprefix(_METADATA) not in _OF_ROLLOUT
    }


def _short(column: str) -> str:
    """Return the name of a further metadata column: SQL would rename one that the view has in any case."""
    name = column.removeprefix(_METADATA)
    return column if name.lower() in _TAKEN else name


def _content(steps: Collection[str]) -> str:
    """Return the text of a message; of one in parts, its texts, one after the other."""
    plain = "content" if "content" in steps else "NULL::VARCHAR"
    if "parts" not in steps:
        return plain
    # Parts with lone surrogates are no JSON for SQL.
    texts = (
        "CASE WHEN json_valid(parts) THEN array_to_string(json_extract_string(parts, '$[*].text'), '') END"
    )
    return f"coalesce({plain}, {texts})"


_SINGLE = [name[:-1] for name in _NUMBERS]
_KEYS, _PLACE = "episode_id, message", 'unnest(range(len(tokens))) AS "position", unnest(tokens) AS token'
#: Where all tokens of a message are sampled or none, there are as many numbers as tokens, or none. Otherwise
#: the sampled tokens are counted, and the k-th has number k: lists beside unnested tokens would be copied for
#: each token.
_TOKENS = f"""
SELECT {_KEYS}, {_PLACE}, unnest(list_transform(tokens, lambda _: message_sampled)) AS sampled,
    {", ".join(f"unnest({name}) AS {one}" for name, one in zip(_NUMBERS, _SINGLE, strict=True))}
FROM (SELECT {_KEYS}, tokens, {", ".join(_NUMBERS)}, sampled AS message_sampled FROM messages
    WHERE tokens IS NOT NULL AND token_mask IS NULL)
UNION ALL
SELECT {_KEYS}, "position", token, sampled, {", ".join(_SINGLE)}
FROM (
    SELECT *, CASE WHEN sampled THEN count(*) FILTER (WHERE sampled) OVER
        (PARTITION BY {_KEYS} ORDER BY "position") END AS number
    FROM (SELECT {_KEYS}, {_PLACE}, unnest(token_mask) AS sampled FROM messages WHERE token_mask IS NOT NULL)
) LEFT JOIN (
    SELECT {_KEYS}, unnest(range(1, len(tokens) + 1)) AS number,
        {", ".join(f"unnest({name}) AS {one}" for name, one in zip(_NUMBERS, _SINGLE, strict=True))}
    FROM messages WHERE token_mask IS NOT NULL
) USING ({_KEYS}, number)"""
