"""Rollouts as users write them: odd values come back equal, or an error says what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import episodelake as el

USER, MODEL = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


@pytest.fixture
def store(tmp_path: Path) -> el.EpisodeStore:
    """An empty store of rollouts."""
    return el.create(tmp_path / "rollouts", el.Rollouts(tokenizer="t", vocabulary=1000))


def written(store: el.EpisodeStore, messages: Any, **arguments: Any) -> el.types.Rollout:
    """The rollout that `write_rollout` writes, read by a store that is opened anew."""
    with store.writer() as writer:
        writer.write_rollout(messages, **arguments)
    return el.open(store.url).rollout(-1)


def check_views(store: el.EpisodeStore) -> None:
    """Compare the views `messages` and `tokens` with plain loops over all rollouts."""
    reader = el.open(store.url)
    messages, tokens = [], []
    for at in range(len(reader)):
        rollout = reader.rollout(at)
        pairs = zip(rollout.messages, rollout.parents, rollout.sampled, rollout.tokens, strict=True)
        for number, (message, parent, sampled, piece) in enumerate(pairs):
            messages.append((at, number, message["role"], parent, sampled, piece is not None))
            values = {} if piece is None else {name: iter(each) for name, each in piece.numbers.items()}
            own = () if piece is None else zip(piece.tokens, piece.mask, strict=True)
            for position, (token, flag) in enumerate(own):
                names = ("logprobs", "advantages")
                numbers = [
                    float(next(values[name])) if flag and len(piece.numbers.get(name, ())) else None
                    for name in names
                ]
                tokens.append((at, number, position, int(token), bool(flag), *numbers))
    order = {each.id: at for at, each in enumerate(reader)}
    rows = reader.query("SELECT episode_id, message, role, parent, sampled, tokens IS NOT NULL FROM messages")
    assert sorted((order[row[0]], *row[1:]) for row in rows.rows()) == messages
    rows = reader.query(
        'SELECT episode_id, message, "position", token, sampled, logprob, advantage FROM tokens'
    )
    assert sorted((order[row[0]], *row[1:]) for row in rows.rows()) == tokens


@pytest.mark.parametrize("mask", [[[0, 0], [0, 0], [0]], [[1, 1], [1, 1], [1]], [[1, 0], [0, 1], [0]]])
def test_masks_come_back_whoever_wrote_the_message(store: el.EpisodeStore, mask: list[list[int]]) -> None:
    """All or none of a message's tokens may be sampled, whether or not the message is."""
    numbers = [[-float(at) for at in range(sum(each))] for each in mask]
    rollout = written(
        store,
        [USER, MODEL, USER],
        tokens=[[1, 2], [3, 4], [5]],
        mask=mask,
        logprobs=numbers,
        advantages=numbers,
    )
    assert [piece.mask.tolist() for piece in rollout.tokens] == mask
    assert [piece.numbers["logprobs"].tolist() for piece in rollout.tokens] == numbers
    (branch,) = rollout.branches
    assert branch.mask.tolist() == np.concatenate(mask).tolist()
    check_views(store)


@pytest.mark.parametrize(("role", "sampled"), [("user", True), ("assistant", False), ("assistant", None)])
def test_a_cut_rollout_keeps_who_sampled_its_last_message(
    store: el.EpisodeStore, role: str, sampled: bool | None
) -> None:
    """Its action is not recorded yet, and the role alone does not say it."""
    own = role == "assistant" if sampled is None else sampled
    with store.writer() as writer:
        growing = writer.begin_rollout()
        growing.append(USER, tokens=[1])
        last = {"role": role, "content": ""}
        growing.append(last, sampled=sampled, tokens=[1, 2], logprobs=[-1, -2] if own else None)
    rollout = el.open(store.url).rollout(0)
    assert rollout.sampled == [False, own] and rollout.tokens[1].mask.tolist() == [own, own]
    assert rollout.branches[0].mask.tolist() == [False, own, own]
    check_views(store)
