"""`health` of stores of rollouts: what is wrong with tokens, groups and prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import episodelake as el

USER = {"role": "user", "content": "2 + 2?"}
GOOD = {"role": "assistant", "content": "4"}


def findings(tmp_path: Path, *rollouts: dict[str, Any], **declared: Any) -> dict[str, list[int]]:
    """The kinds of findings, with the positions of their rollouts."""
    store = el.create(tmp_path / "rollouts", el.Rollouts(**declared))
    with store.writer() as writer:
        for each in rollouts:
            writer.write_rollout(**{"messages": [USER, GOOD], **each})
    report = store.refresh().health(ignore=["outlier"])
    assert len(report.affected) == sum(len(each.positions) for each in report.findings)
    return {each.kind: each.positions.tolist() for each in report.findings}


def test_groups_without_a_difference_are_named(tmp_path: Path) -> None:
    """Equal rewards give no gradient; a group of one, and rollouts without a group, are not meant."""
    other = [USER, {"role": "assistant", "content": "5"}]
    found = findings(
        tmp_path,
        {"group": "a", "rewards": 1.0},
        {"group": "a", "rewards": 1.0, "messages": other},
        {"group": "b", "rewards": 1.0, "messages": [{"role": "user", "content": "?"}, GOOD]},
        {"messages": [GOOD], "rewards": 1.0},
    )
    assert found == {"equal_rewards": [0, 1]}


def test_repetitions_are_named(tmp_path: Path) -> None:
    """The same rollout again, and a prompt of two groups; another answer to the same prompt is neither."""
    found = findings(
        tmp_path,
        {"group": "a", "rewards": 0.0},
        {"group": "a", "rewards": 1.0, "messages": [USER, {"role": "assistant", "content": "5"}]},
        {"group": "b", "rewards": 1.0},
    )
    assert found == {"duplicate": [2], "duplicate_prompt": [0, 1, 2]}
    measured = el.open(tmp_path / "rollouts").quality().row(0, named=True)
    assert (measured["duplicates"], measured["near_duplicates"], measured["unique_state_actions"]) == (
        1,
        1,
        3,
    )


def test_a_task_may_have_groups_of_several_steps(tmp_path: Path) -> None:
    """A prompt that is sampled again at another step is no duplicate where its task has a name."""
    five = [USER, {"role": "assistant", "content": "5"}]
    steps = [{"group": f"step-{step}", "task": "sum"} for step in range(2)]
    found = findings(
        tmp_path,
        *({**each, "rewards": 1.0, "messages": [USER, {**GOOD, "name": each["group"]}]} for each in steps),
        *({**each, "rewards": 0.0, "messages": [*five, {**GOOD, "name": each["group"]}]} for each in steps),
    )
    assert found == {}


def test_empty_messages_and_long_branches_are_named(tmp_path: Path) -> None:
    """A sampled message with nothing in it; a branch beyond the context, not a rollout whose branches fit."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    found = findings(
        tmp_path,
        {"messages": [USER, {"role": "assistant", "content": ""}]},
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]},
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [{"function": 1}]}]},
        {"tokens": [[1, 2], [3, 4]]},
        {"messages": [USER, GOOD, GOOD], "parents": [-1, 0, 0], "tokens": [[1], [3, 4], [5, 6]]},
        context=3,
    )
    assert found == {"context": [3], "empty_message": [0]}


def test_contexts_of_deep_trees_are_those_of_their_branches(tmp_path: Path) -> None:
    """Every branch is added up, however many messages it has."""
    generator = np.random.default_rng(0)
    sizes, trees = [], []
    for count in (1, 2, 7, 40, 90):
        parents = [int(generator.integers(max(-1, at - 3), at)) for at in range(count)]
        tokens = [[1] * int(generator.integers(0, 4)) for _ in range(count)]
        sizes.append(0)
        reached = [0] * count
        for at, parent in enumerate(parents):
            reached[at] = len(tokens[at]) + (reached[parent] if parent >= 0 else 0)
            sizes[-1] = max(sizes[-1], reached[at])
        trees.append({"messages": [GOOD] * count, "parents": parents, "tokens": tokens})
    for number, context in enumerate(sorted(sizes)[1:]):
        found = findings(tmp_path / str(number), *trees, context=context)
        beyond = [at for at, size in enumerate(sizes) if size > context]
        assert found.get("context", []) == beyond


def test_tokens_of_other_writers_are_checked(tmp_path: Path) -> None:
    """A mask or log-probabilities of another length, and ids beyond the vocabulary."""
    store = el.create(tmp_path / "rollouts", el.Rollouts(vocabulary=10))
    rows: list[dict[str, Any]] = [
        {"tokens": [1, 2], "token_mask": [True]},
        {"tokens": [1, 2], "logprobs": [-1.0]},
        {"tokens": [1, 10]},
        {"tokens": [1, 2], "token_mask": [True, False], "logprobs": [-1.0]},
    ]
    with store.writer() as writer:
        for number, row in enumerate(rows):
            open_episode = writer.begin(-1, extra={"role": "assistant", "content": str(number), **row})
            open_episode.append(1, 0.0, -1, terminated=True)
            open_episode.end()
    found = {each.kind: each.positions.tolist() for each in store.refresh().health().findings}
    assert found == {"lengths": [0, 1], "vocabulary": [2]}
