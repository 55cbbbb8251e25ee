"""Rollouts of language agents: messages, tokens and branches come back as they were written."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import episodelake as el
from episodelake.testing.adapters import case

CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": "a  b"}'}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "which"}, {"type": "text", "text": " one?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "\ud800 broken", "name": "search"},
    {"role": "assistant", "content": "this", "reasoning_content": "hm", "further": {"$int": 2**70}},
]
IDS = np.arange(100, 120)
MASK = np.isin(np.arange(20), [6, 7, 8, 14, 15, 16, 17, 18, 19])
LOGPROBS = np.random.default_rng(0).normal(size=20).astype(np.float32)


@pytest.fixture
def store(tmp_path: Path) -> el.EpisodeStore:
    """An empty store of rollouts."""
    return el.create(tmp_path / "rollouts", el.Rollouts(tokenizer="t", vocabulary=1000))


def written(store: el.EpisodeStore, *args: Any, **kwargs: Any) -> Any:
    """The rollout that `write_rollout` writes, read by a store that is opened anew."""
    with store.writer() as writer:
        writer.write_rollout(*args, **kwargs)
    return el.open(store.url).rollout(-1)


def test_messages_come_back_equal(store: el.EpisodeStore) -> None:
    """Whatever they have: parts, calls, None, texts that are no UTF-8, keys of their own."""
    rollout = written(store, MESSAGES)
    assert rollout.messages == MESSAGES
    assert rollout.parents == [-1, 0, 1, 2, 3] and rollout.sampled == [False, False, True, False, True]


def test_one_array_of_tokens_is_cut_by_its_mask(store: el.EpisodeStore) -> None:
    """Sampled stretches belong to sampled messages; ids and float32 come back bit for bit."""
    rollout = written(store, MESSAGES, tokens=IDS, mask=MASK, logprobs=LOGPROBS)
    assert [None if each is None else len(each.tokens) for each in rollout.tokens] == [None, 6, 3, 5, 6]
    (branch,) = rollout.branches
    np.testing.assert_array_equal(branch.tokens, IDS)
    np.testing.assert_array_equal(branch.mask, MASK)
    np.testing.assert_array_equal(branch.logprobs[MASK].view(np.int32), LOGPROBS[MASK].view(np.int32))
    assert np.isnan(branch.logprobs[~MASK]).all() and branch.first.all()


def test_branches_share_their_beginning(store: el.EpisodeStore) -> None:
    """A message that two continue is stored once, and belongs to both; only the first one has it first."""
    messages = [*MESSAGES[:3], {"role": "assistant", "content": "other"}]
    tokens = [None, [1, 2], [3, 4], [5]]
    rollout = written(
        store, messages, parents=[-1, 0, 1, 1], tokens=tokens, logprobs=[None, None, [-1, -2], [-3]]
    )
    one, two = rollout.branches
    assert (one.numbers, two.numbers) == ((0, 1, 2), (0, 1, 3))
    assert (one.tokens.tolist(), two.tokens.tolist()) == ([1, 2, 3, 4], [1, 2, 5])
    assert one.first.all() and two.first.tolist() == [False, False, True]
    assert two.messages == [*messages[:2], messages[3]]


def test_facts_are_metadata_and_reward(store: el.EpisodeStore) -> None:
    """The reward is the sum of its weighted parts, the rest is in the view `rollouts`."""
    rollout = written(
        store,
        MESSAGES,
        rewards={"format": 0.2, "answer": 1.0},
        weights={"format": 0.5},
        group="prompt-7",
        sample=3,
        policy_version=12,
        stop_reason="length",
        truncated=True,
        metadata={"usage": {"tokens": 7}},
    )
    assert rollout.reward == 1.1 and rollout.episode.truncated
    assert rollout.metadata["rewards"] == {"format": 0.2, "answer": 1.0}
    (row,) = el.open(store.url).query("SELECT * FROM rollouts").to_dicts()
    assert (row["group"], row["sample"], row["policy_version"], row["reward"]) == ("prompt-7", 3, 12, 1.1)
    assert (row["rewards.answer"], row["usage.tokens"], row["task"]) == (1.0, 7, None)


def test_rewards_named_by_an_enumeration_have_its_texts(store: el.EpisodeStore) -> None:
    """As keys of metadata have."""

    class Part(str, enum.Enum):  # noqa: UP042
        ANSWER = "answer"

    rollout = written(store, MESSAGES, rewards={Part.ANSWER: 1.0}, weights={Part.ANSWER: 0.5})
    assert rollout.metadata["rewards"] == {"answer": 1.0}


def test_views_show_messages_and_tokens(store: el.EpisodeStore) -> None:
    """A row for each message, and one for each token with its number where it was sampled."""
    assert store.query("SELECT count(*) AS n FROM tokens, messages").item() == 0
    mixed = [None, [1, 2], [3, 4, 5], None, [6]]
    masks = [None, None, [0, 1, 1], None, None]
    written(store, MESSAGES, tokens=mixed, mask=masks, logprobs=[None, None, [-1, -2], None, [-3]])
    reader = el.open(store.url)
    messages = reader.query("SELECT * FROM messages ORDER BY message")
    assert messages["role"].to_list() == [each["role"] for each in MESSAGES]
    assert messages["content"].to_list() == [MESSAGES[0]["content"], "which one?", None, None, "this"]
    assert messages["tool_names"].to_list() == [None, None, ["search"], None, None]
    tokens = reader.query(
        "SELECT message, position, token, sampled, logprob FROM tokens ORDER BY message, position"
    )
    assert tokens.rows() == [
        (1, 0, 1, False, None),
        (1, 1, 2, False, None),
        (2, 0, 3, False, None),
        (2, 1, 4, True, -1.0),
        (2, 2, 5, True, -2.0),
        (4, 0, 6, True, -3.0),
    ]


def test_a_rollout_grows_message_by_message(store: el.EpisodeStore) -> None:
    """It equals one that was written whole; one without an end keeps its messages."""
    with store.writer() as writer:
        growing = writer.begin_rollout(group="a")
        assert [growing.append(each) for each in MESSAGES] == [0, 1, 2, 3, 4]
        growing.end(rewards=2.0, stop_reason="stop")
        cut = writer.begin_rollout()
        for each in MESSAGES[:3]:
            cut.append(each, tokens=[1], logprobs=[-1] if each["role"] == "assistant" else None, reward=0.5)
    first, second = (el.open(store.url).rollout(at) for at in (0, 1))
    assert first.messages == MESSAGES and first.reward == 2.0
    assert first.metadata == {"group": "a", "stop_reason": "stop"}
    assert second.messages == MESSAGES[:3] and second.sampled == [False, False, True]
    assert second.episode.end_reason == "cut" and second.tokens[2].numbers["logprobs"].tolist() == [-1]


def test_what_does_not_fit_is_refused(store: el.EpisodeStore) -> None:
    """The error says what and where; nothing is recorded."""
    cases: list[Any] = [
        ({"messages": []}, "has no message"),
        ({"messages": ["hello"]}, "message 0 is str"),
        ({"messages": [{"content": "hello"}]}, "message 0: role is None"),
        ({"parents": [-1, 0, 5, 2, 3]}, r"message 2: parent is 5"),
        ({"parents": [-1]}, "parents has 1 entries, and there are 5 messages"),
        ({"tokens": IDS}, "there is no mask"),
        ({"tokens": IDS, "mask": MASK[:5]}, r"mask has shape \(5,\), and there are 20 tokens"),
        ({"tokens": IDS, "mask": np.ones(20)}, "mask has 1 stretches of sampled tokens, and there are 2"),
        ({"tokens": IDS, "mask": MASK, "logprobs": [0.0] * 8}, r"logprobs has shape \(8,\)"),
        ({"tokens": IDS, "mask": MASK, "logprobs": [np.nan] * 20}, "logprobs has NaN"),
        ({"tokens": IDS * 100, "mask": MASK}, "token id 11900 is out of range; expected 0 to 999"),
        ({"tokens": IDS * 1.5, "mask": MASK}, "expected whole numbers"),
        ({"logprobs": LOGPROBS}, "logprobs came without tokens"),
        ({"tokens": [None, [1], None, None, None], "mask": [[1], None, None, None, None]}, "message 0: mask"),
        ({"rewards": float("nan")}, "rewards=nan"),
        ({"rewards": {"a": 1}, "weights": {"b": 1}}, "weights names b; rewards has a"),
        ({"metadata": {"group": 1}, "group": "a"}, "metadata has group"),
    ]
    for arguments, message in cases:
        with case((arguments, message)):
            with store.writer() as writer, pytest.raises(el.errors.InvalidArgumentError, match=message):
                writer.write_rollout(**{"messages": MESSAGES, **arguments})
            assert len(store.refresh()) == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: el.Rollouts(tokenizer=""),
        lambda: el.Rollouts(vocabulary=0),
        lambda: el.create("memory://refused", el.Rollouts(), reward_shape=()),
    ],
)
def test_declarations_are_checked(make: Callable[[], Any]) -> None:
    """Names are texts, a vocabulary has ids, and spaces are not given beside the declaration."""
    with pytest.raises(el.errors.InvalidArgumentError):
        make()


def test_stores_of_rollouts_stay_such(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Copies and merges keep the declaration; stores of other things, or tokenizers, do not go together."""
    written(store, MESSAGES)
    copied = el.open(store.url).copy(tmp_path / "copy")
    assert copied.rollout(0).messages == MESSAGES
    other = el.create(tmp_path / "other", el.Rollouts(tokenizer="another"))
    with pytest.raises(el.errors.SpaceMismatchError, match="another"):
        el.merge([el.open(store.url)], other)
    plain = el.create(
        tmp_path / "plain", observation_space=store.observation_space, action_space=store.action_space
    )
    with pytest.raises(el.errors.InvalidArgumentError, match="no rollouts"):
        plain.rollout(0)
    assert not hasattr(plain.writer(), "write_rollout")


def test_macros_compare_the_samples_of_a_group(store: el.EpisodeStore) -> None:
    """`pass_at_k` is the mean over all choices of k samples, `group_advantages` what plain numpy gives."""
    rewards = {"a": [1.0, 0.0, 0.0, 2.0, 0.5], "b": [0.0, 0.0], "c": [1.0]}
    with store.writer() as writer:
        for group, values in rewards.items():
            for value in values:
                writer.write_rollout(MESSAGES, group=group, rewards=value)
        writer.write_rollout(MESSAGES, rewards=1.0)
        open_still = writer.begin_rollout(group="a")
        for message in MESSAGES:
            open_still.append(message)
    reader = el.open(store.url)
    for k in (1, 2, 3, 5):
        rows = reader.query(f'SELECT * FROM pass_at_k({k}) ORDER BY "group"').to_dicts()
        for row, values in zip(rows, rewards.values(), strict=True):
            chosen = [any(each >= 1 for each in some) for some in itertools.combinations(values, k)]
            assert row["pass_at_k"] == (pytest.approx(np.mean(chosen)) if chosen else None)
    half = reader.query("SELECT correct FROM pass_at_k(1, threshold := 0.5) WHERE \"group\" = 'a'").item()
    assert half == 3
    for k in (0, 1.5):
        with pytest.raises(el.errors.EpisodelakeError, match="k must be a whole number from 1 on"):
            reader.query(f"SELECT * FROM pass_at_k({k})")
    rows = reader.query('SELECT * FROM group_advantages() ORDER BY "group", episode_id').to_dicts()
    expected = [
        (each - np.mean(values)) / ((np.std(values, ddof=1) if values[1:] else 0) + 1e-6)
        for values in rewards.values()
        for each in values
    ]
    np.testing.assert_allclose([row["group_advantage"] for row in rows], expected)


def test_conditions_have_the_names_of_the_view(store: el.EpisodeStore) -> None:
    """The reward, facts and parts of rewards, in subqueries and `sort` too; annotations are in the views."""
    with store.writer() as writer:
        for version, answer in enumerate([0.0, 1.0, 1.0]):
            rewards = {"answer": answer, "format": 0.5}
            writer.write_rollout(MESSAGES, group=f"g{version // 2}", policy_version=version, rewards=rewards)
    reader = el.open(store.url)
    conditions = {
        "reward > 1": [1, 2],
        "policy_version >= 1 AND \"group\" = 'g0'": [1],
        '"rewards.answer" = 0 AND error IS NULL': [0],
        '"group" IN (SELECT "group" FROM episodes GROUP BY ALL HAVING max(reward) > min(reward))': [0, 1],
        "episode_id IN (SELECT episode_id FROM steps WHERE reward > 1)": [1, 2],
    }
    for condition, versions in conditions.items():
        found = reader.filter(condition)
        assert [each.metadata["policy_version"] for each in found] == versions, condition
    for by in ("policy_version", "policy_version + 0"):
        assert reader.sort(by, descending=True).rollout(0).metadata["policy_version"] == 2
    with pytest.raises(el.errors.QueryError, match=r"It is the column metadata.policy_version of episodes"):
        reader.filter(pl.col("policy_version") > 1)
    ids = [episode.id for episode in reader]
    reader.annotate(pl.DataFrame({"episode_id": ids, "judged": [1, 2, 3], "Group": ["x", "x", "x"]}))
    of_steps = pl.DataFrame({"episode_id": ids, "t": [1, 1, 1], "teacher": [[0.5], [1.5], [2.5]]})
    reader.annotate(of_steps, on=("episode_id", "t"))
    rows = reader.refresh().query(
        "SELECT judged, rollouts.reward, teacher FROM messages JOIN rollouts USING (episode_id) "
        "WHERE message = 1 ORDER BY judged"
    )
    assert rows.rows() == [(1, 0.5, [0.5]), (2, 1.5, [1.5]), (3, 1.5, [2.5])]
    # An annotation of that name is what a condition means.
    assert len(reader.filter("\"group\" = 'x'")) == 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("SELECT rol FROM messages", "Nearest: role (of messages"),
        ("SELECT * FROM message", "There is no table 'message'. Nearest: messages.\n"),
        ("SELECT logprobz FROM tokens", "Nearest: logprob (of tokens)"),
        ("SELECT rewards.answer FROM rollouts", '"rewards.answer", of rollouts'),
        ("SELECT group FROM rollouts", 'in double quotes, as "group"'),
        ("group = 'g'", 'in double quotes, as "group"'),
        ("polcy_version = 1", "Nearest: policy_version (of episodes)"),
    ],
)
def test_wrong_names_bring_those_of_the_views(store: el.EpisodeStore, wrong: str, said: str) -> None:
    """The message for a wrong name has the nearest one of the views, and says what the views have."""
    with store.writer() as writer:
        writer.write_rollout(MESSAGES, group="g", rewards={"answer": 1.0})
    reader = el.open(store.url)
    ask = reader.query if wrong.startswith("SELECT") else reader.filter
    with pytest.raises(el.errors.QueryError) as caught:
        ask(wrong)
    assert said in str(caught.value)
    view = wrong.partition(" FROM ")[2]
    if view in ("messages", "rollouts", "tokens") and "keyword" not in str(caught.value):
        columns = ", ".join(reader.query(f"SELECT * FROM {view}").columns)
        assert f"Columns of {view}: {columns}." in str(caught.value)
