"""Rollouts as users write them: odd values come back equal, or an error says what is wrong."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import episodelake as el
from effort import examples
from episodelake.rollouts.tokens import PER_SAMPLED
from episodelake.testing.adapters import case

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
    reader = store.refresh()
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
    reader.query("SELECT * FROM messages, rollouts")
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


CHAIN = [USER, MODEL, USER]


@pytest.mark.parametrize("ids", [lambda: [[1, 2], [3, 4], [5, 6]], lambda: ((1, 2), (3, 4), (5, 6))])
@pytest.mark.parametrize(
    "library", ["list", "numpy", "object", "torch", "torches", "uint64", "series", "ranges"]
)
def test_tokens_by_message_come_from_any_library(
    store: el.EpisodeStore, ids: Callable[[], Any], library: str
) -> None:
    """One array with a row for each message is such a list, also where it has as many rows as columns."""
    torch = pytest.importorskip("torch")
    plain = ids()
    boxed = np.empty(3, object)
    boxed[:] = [list(each) for each in plain]
    tokens = {
        "list": plain,
        "numpy": np.array(plain),
        "object": boxed,
        "torch": torch.tensor(plain),
        "torches": [torch.tensor(each) for each in plain],
        "uint64": np.array(plain, np.uint64),
        "series": [pl.Series(each) for each in plain],
        "ranges": [range(each[0], each[1] + 1) for each in plain],
    }[library]
    rollout = written(store, CHAIN, tokens=tokens)
    assert [piece.tokens.tolist() for piece in rollout.tokens] == [[1, 2], [3, 4], [5, 6]]
    check_views(store)


@pytest.mark.parametrize("library", [list, np.array, tuple])
@pytest.mark.parametrize("numbers", [[-1.5], [None, -1.5, None], [np.nan, -1.5, np.nan]])
def test_a_flat_array_as_long_as_the_rollout_stays_one(
    store: el.EpisodeStore, library: Callable[..., Any], numbers: list[Any]
) -> None:
    """Three ids of three messages are no list by message; what unsampled tokens have does not matter."""
    rollout = written(
        store, CHAIN, tokens=library([1, 2, 3]), mask=library([0, 1, 0]), logprobs=library(numbers)
    )
    assert [piece.tokens.tolist() for piece in rollout.tokens] == [[1], [2], [3]]
    assert rollout.tokens[1].numbers["logprobs"].tolist() == [-1.5]
    check_views(store)


@pytest.mark.parametrize("make", ["bfloat16", "grad", "half", "scalars"])
def test_numbers_of_tensors_of_any_type_are_kept(store: el.EpisodeStore, make: str) -> None:
    """A training step hands over what it has: other floats, or tensors with a gradient."""
    torch = pytest.importorskip("torch")
    given = torch.tensor([-0.5, -torch.inf], requires_grad=make == "grad")
    given = {"bfloat16": given.bfloat16(), "half": given.half(), "scalars": list(given)}.get(make, given)
    rollout = written(store, CHAIN, tokens=[None, [1, 2], None], logprobs=[None, given, None])
    assert rollout.branches[0].logprobs.tolist() == [-0.5, -np.inf]


@pytest.mark.parametrize("advantage", [0.5, np.float32(0.5), np.array(0.5), "torch"])
def test_one_advantage_is_that_of_the_rollout(store: el.EpisodeStore, advantage: Any) -> None:
    """A scalar of any library."""
    if advantage == "torch":
        advantage = pytest.importorskip("torch").tensor(0.5)
    assert written(store, CHAIN, advantages=advantage).metadata == {"advantage": 0.5}


ONE = [None, [5], None]


def test_tokens_that_do_not_fit_are_refused(store: el.EpisodeStore) -> None:
    """The error names the message and the argument; nothing is recorded."""
    cases: list[Any] = [
        ({"tokens": [[1], [2]]}, "tokens has 2 entries, and there are 3 messages"),
        ({"tokens": [[1], [2, 3]]}, "tokens has 2 entries, and there are 3 messages"),
        ({"tokens": np.arange(9).reshape(1, 9)}, "tokens has 1 entries, and there are 3 messages"),
        ({"tokens": [[[1], [2, 3]], [1], None]}, "message 0: tokens is"),
        ({"tokens": ["ab", "c", "d"]}, "no mask|tokens have the type"),
        ({"tokens": [None, [2**64], None]}, "message 1: tokens have the type object"),
        ({"tokens": [None, [True], None]}, "message 1: tokens have the type bool"),
        (
            {"tokens": [None, np.array([2**63], np.uint64), None]},
            "token id 9223372036854775808 is out of range",
        ),
        ({"tokens": [None, np.ma.array([1], mask=[True]), None]}, "message 1: tokens has masked elements"),
        ({"tokens": ONE, "logprobs": [None, ["x"], None]}, "message 1: logprobs has the type <U1"),
        ({"tokens": ONE, "logprobs": [None, [1j], None]}, "message 1: logprobs has the type complex"),
        ({"tokens": ONE, "logprobs": [None, [object()], None]}, "message 1: logprobs has the type object"),
        ({"tokens": ONE, "logprobs": [None, [None], None]}, "message 1: logprobs has"),
        ({"tokens": ONE, "logprobs": [None, [-1e300], None]}, "finite number that float32 cannot hold"),
        ({"tokens": ONE, "logprobs": [None, np.ma.array([1.0], mask=[True]), None]}, "masked elements"),
        ({"tokens": [1, 2, 3, 4], "mask": [0, 1, 0, 0], "parents": [-1, 0, 0]}, "the rollout has branches"),
        ({"tokens": [1, 2, 3, 4], "mask": [0, 1, 0, 0], "logprobs": [None, [1], None]}, "logprobs"),
        ({"advantages": "high"}, "advantages='high'"),
    ]
    for arguments, message in cases:
        with case((arguments, message)):
            with store.writer() as writer, pytest.raises(el.errors.InvalidArgumentError, match=message):
                writer.write_rollout(CHAIN, **arguments)
            assert len(store.refresh()) == 0


class Dumped:
    """A stand-in for an object of pydantic."""

    def model_dump(self) -> dict[str, Any]:
        """The mapping of it."""
        return dict(MODEL)


@pytest.mark.parametrize(
    "message",
    [
        Dumped(),
        {**MODEL, "tool_calls": [Dumped()]},
        {**MODEL, "content": [{"type": "text", "text": Dumped()}]},
        {**MODEL, "content": object()},
        {**MODEL, "further": {Dumped: 1}},
        {**MODEL, "content": eval("[" * 80 + "]" * 80)},
    ],
)
def test_objects_of_which_only_a_text_would_be_left_are_refused(store: el.EpisodeStore, message: Any) -> None:
    """A client's objects are no mappings: to store their printed form would lose the message silently."""
    with store.writer() as writer:
        with pytest.raises(el.errors.InvalidArgumentError, match="message 1") as refused:
            writer.write_rollout([USER, message])
        growing = writer.begin_rollout()
        growing.append(USER)
        with pytest.raises(el.errors.InvalidArgumentError, match="message 1"):
            growing.append(message)
        growing.discard()
    assert "model_dump" in str(refused.value)
    assert len(store.refresh()) == 0


#: Keys that columns, views, SQL or JSON could take for their own.
KEYS = [
    "a.b",
    "a",
    "",
    "$int",
    "$dict",
    "Role",
    "CONTENT",
    "é",
    "\ud800",
    "reasoning",
    "parts",
    "tokens",
    "rest",
]
CALLS: list[Any] = [
    [],
    None,
    "call",
    [None],
    [{"id": "a", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
    [{"type": "function", "function": {"name": "f", "arguments": "{}"}}],
    [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}, "index": 0}],
    [{"id": "\udcff", "type": "function", "function": {"name": "\ud800", "arguments": "\x00"}}],
    [{"id": None, "type": "function", "function": {"name": "f", "arguments": ""}}, {"name": "g"}],
]


@pytest.mark.parametrize(
    "content", [None, "", [], 5, 1e400, {"a": 1}, (1, "x"), b"\xff", [{"$": []}], "\x00\ud800"]
)
def test_content_of_any_type_comes_back(store: el.EpisodeStore, content: Any) -> None:
    """Also beside messages without content, in one rollout and written message by message."""
    messages = [
        USER,
        {"role": "assistant", "content": content},
        {"role": ""},
        {"role": "Ü", "content": content},
    ]
    assert written(store, messages).messages == messages
    with store.writer() as writer:
        growing = writer.begin_rollout()
        for each in messages:
            growing.append(each)
        growing.end()
    assert el.open(store.url).rollout(1).messages == messages
    check_views(store)


@pytest.mark.parametrize("calls", CALLS)
def test_tool_calls_of_any_form_come_back(store: el.EpisodeStore, calls: Any) -> None:
    """Those of OpenAI's form have columns, all others come back as well."""
    messages = [
        {**MODEL, "tool_calls": calls},
        {"role": "tool", "tool_call_id": None, "content": "x", "name": 5},
    ]
    assert written(store, messages).messages == messages
    check_views(store)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(st.characters(), max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
MESSAGE_KEYS = ["content", "name", "reasoning_content", "tool_call_id", "tool_calls", *KEYS]
ANY_MESSAGE = st.builds(
    lambda role, rest: {**rest, "role": role},
    st.sampled_from(["user", "assistant", "tool", ""]),
    st.dictionaries(st.sampled_from(MESSAGE_KEYS), JSON | st.sampled_from(CALLS), max_size=6),
)


@pytest.mark.further
@settings(max_examples=examples(30))
@given(st.lists(st.lists(ANY_MESSAGE, min_size=1, max_size=4), min_size=1, max_size=6))
def test_any_messages_come_back(rollouts: list[list[dict[str, Any]]]) -> None:
    """Random values under every key, in one store; the views show all of them."""
    store = el.create(f"memory://any-{uuid.uuid4().hex}", el.Rollouts())
    with store.writer() as writer:
        for messages in rollouts:
            writer.write_rollout(messages)
    reader = store.refresh()
    assert [reader.rollout(at).messages for at in range(len(reader))] == rollouts
    check_views(store)


def test_a_role_that_is_no_unicode_is_refused(store: el.EpisodeStore) -> None:
    """No column can hold it, and the view `messages` has no row without a role."""
    with store.writer() as writer, pytest.raises(el.errors.InvalidArgumentError, match="message 1: role is"):
        writer.write_rollout([USER, {"role": "\ud800", "content": ""}])
    assert len(store.refresh()) == 0


def test_facts_of_another_type_are_refused(store: el.EpisodeStore) -> None:
    """No value is taken for another one, and each fact has one type in all rollouts; nothing is recorded."""
    cases: list[Any] = [
        ({"messages": 5}, "messages=5: expected a list"),
        ({"messages": USER}, "messages={.*}: expected a list"),
        ({"parents": 5}, "parents=5"),
        ({"parents": [-1, 0.7, 1]}, r"message 1: parent is 0.7"),
        ({"parents": [-1, "0", 1]}, r"message 1: parent is '0'"),
        ({"parents": [-1, np.nan, 1]}, r"message 1: parent is nan"),
        ({"parents": [-1, False, 1]}, r"message 1: parent is False"),
        ({"parents": {-1, 0, 1}}, "parents={.*}: expected a list"),
        ({"sampled": 5}, "sampled=5"),
        ({"sampled": ["no", "yes", "no"]}, r"message 0: sampled is 'no'"),
        ({"sampled": [0, 0.5, 0]}, r"message 1: sampled is 0.5"),
        ({"sampled": [0, [1], 0]}, r"message 1: sampled is \[1\]"),
        ({"times": 5}, "times=5"),
        ({"times": ["1.0", 2, 3]}, ": time='1.0'"),
        ({"times": [10**400, 2, 3]}, ": time=1"),
        ({"rewards": "1.5"}, "rewards='1.5'"),
        ({"rewards": 10**400}, "rewards=1"),
        ({"rewards": [1, 2]}, r"rewards=\[1, 2\]"),
        ({"rewards": {"a": None}}, r"rewards\['a'\]=None"),
        ({"rewards": {"a": 1e308, "b": 1e308}}, "the sum of rewards=inf"),
        ({"rewards": {"a": 1e200}, "weights": {"a": 1e200}}, "the sum of rewards=inf"),
        (
            {"rewards": {"a": 1e200, "b": -1e200}, "weights": {"a": 1e200, "b": 1e200}},
            "the sum of rewards=inf",
        ),
        ({"rewards": {1: 1.0, "1": 2.0}}, "rewards={1: .*}: expected a mapping of names, as texts"),
        ({"rewards": {"a": 1}, "weights": [1]}, r"weights=\[1\]"),
        ({"weights": {"a": 1}}, "weights names a; rewards has no names"),
        ({"rewards": 1.0, "weights": {"a": 1}}, "weights names a; rewards has no names"),
        ({"metadata": [1]}, r"metadata=\[1\]"),
        ({"metadata": "abc"}, "metadata='abc'"),
        ({"metadata": {"policy_version": 3}}, "metadata has policy_version"),
        (
            {"metadata": {"GROUP": "x", "Rewards": 1, "k": 2}, "group": "g"},
            "metadata has GROUP, Rewards, which",
        ),
        ({"group": 5}, "group=5: expected a text"),
        ({"task": 5}, "task=5: expected a text"),
        ({"stop_reason": 5}, "stop_reason=5: expected a text"),
        ({"sample": "x"}, "sample='x'"),
        ({"sample": 1.5}, "sample=1.5"),
        ({"policy_version": "v1"}, "policy_version='v1'"),
        ({"policy_version": 2**70}, "policy_version=1180591620717411303424"),
    ]
    for arguments, message in cases:
        with case((arguments, message)):
            with store.writer() as writer, pytest.raises(el.errors.InvalidArgumentError, match=message):
                writer.write_rollout(**{"messages": CHAIN, **arguments})
            assert len(store.refresh()) == 0


@pytest.mark.parametrize(
    ("rewards", "reward"),
    [({}, 0.0), (True, 1.0), ({"a": True, "b": np.float32(0.5)}, 1.5), (np.array(2.0), 2.0), ({"": 1}, 1.0)],
)
def test_rewards_of_any_number_type_count(store: el.EpisodeStore, rewards: Any, reward: float) -> None:
    """A verifier says True; numpy's numbers and arrays without a shape are numbers."""
    assert written(store, CHAIN, rewards=rewards).reward == reward


def test_names_of_rewards_are_kept_apart(store: el.EpisodeStore) -> None:
    """Names with dots, other cases of a name, and names that no column can have."""
    rewards = {"a.b": 1.0, "a": 2.0, "A": 4.0, "": 8.0, "\ud800": 16.0}
    rollout = written(store, CHAIN, rewards=rewards, weights=dict.fromkeys(rewards, 0.5))
    assert rollout.reward == 15.5 and rollout.metadata["rewards"] == rewards
    assert rollout.metadata["weights"] == dict.fromkeys(rewards, 0.5)


def test_an_error_may_be_an_exception(store: el.EpisodeStore) -> None:
    """It is kept as text, which the view shows."""
    written(store, CHAIN, error=TimeoutError("no answer"))
    rows = el.open(store.url).query("SELECT error FROM rollouts").rows()
    assert rows == [("TimeoutError: no answer",)]


@pytest.mark.parametrize(
    "sampled", [[0, 1, 0], [None, True, None], np.array([False, True, False]), [0.0, 1.0, 0]]
)
def test_sampled_flags_have_any_number_type(store: el.EpisodeStore, sampled: Any) -> None:
    """None leaves a message to its role."""
    assert written(store, CHAIN, sampled=sampled).sampled == [False, True, False]


def test_the_view_counts_the_messages_of_cut_rollouts(store: el.EpisodeStore) -> None:
    """Their last message has no action, and is no step yet."""
    with store.writer() as writer:
        writer.write_rollout(CHAIN)
        writer.write_rollout(CHAIN, truncated=True)
        growing = writer.begin_rollout()
        for each in CHAIN:
            growing.append(each)
    rows = store.refresh().query("SELECT messages FROM rollouts").rows()
    assert rows == [(3,), (3,), (3,)]


def test_metadata_with_names_of_the_view_keeps_its_full_name(store: el.EpisodeStore) -> None:
    """SQL knows no case, and would number equal names in the order of the columns."""
    metadata = {"messages": 5, "Reward": 7, "RUN_ID": "x", "episode_id": "y", "a.b": 1, "a": {"b": 2}, "": 3}
    rollout = written(store, CHAIN, metadata=metadata, group="g")
    assert rollout.metadata == {**metadata, "group": "g"}
    (row,) = el.open(store.url).query("SELECT * FROM rollouts").to_dicts()
    assert (row["messages"], row["reward"], row["group"]) == (3, 0.0, "g")
    own = ("metadata.messages", "metadata.Reward", "metadata.RUN_ID", "metadata.episode_id")
    assert [row[name] for name in own] == [5, 7, "x", "y"]


@pytest.mark.parametrize(
    "over", ["end", "discard", "empty end", "empty discard", "skipped end", "skipped discard"]
)
def test_nothing_follows_the_end_of_a_rollout(store: el.EpisodeStore, over: str) -> None:
    """Also of one without messages, and of one whose source key the store has."""
    with store.writer() as writer:
        writer.write_rollout(CHAIN, source_key="k")
    with store.writer(on_duplicate="skip") as writer:
        growing = writer.begin_rollout(source_key="k" if "skipped" in over else None)
        if "empty" not in over:
            growing.append(USER)
        if over == "empty end":
            with pytest.raises(el.errors.RecorderStateError, match="no message"):
                growing.end()
        else:
            row = growing.end() if "end" in over else growing.discard()
            assert (row is not None) == (over == "end")
        for call in (lambda: growing.append(USER), growing.end, growing.discard):
            with pytest.raises(el.errors.RecorderStateError, match="ended"):
                call()
    assert len(store.refresh()) == (2 if over == "end" else 1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"metadata": {"x": np.ma.array([1.0], mask=[True])}},
        {"metadata": {"group": "other"}},
        {"rewards": float("nan")},
        {"rewards": 1e308},
        {"truncated": "no"},
    ],
)
def test_an_end_that_fails_can_be_repeated(store: el.EpisodeStore, arguments: dict[str, Any]) -> None:
    """The rollout is still open, and grows."""
    with store.writer() as writer:
        growing = writer.begin_rollout(group="g")
        growing.append(USER, reward=1e308)
        with pytest.raises((el.errors.InvalidArgumentError, el.errors.SpaceMismatchError)):
            growing.end(**arguments)
        growing.append(MODEL)
        growing.end(rewards=2.0)
    rollout = el.open(store.url).rollout(0)
    assert rollout.messages == [USER, MODEL] and rollout.metadata == {"group": "g"}


def test_metadata_is_that_of_the_beginning(store: el.EpisodeStore) -> None:
    """Later changes of the caller's mapping do not reach what is recorded."""
    metadata = {"usage": {"tokens": [1]}}
    with store.writer() as writer:
        growing = writer.begin_rollout(metadata=metadata)
        metadata["usage"]["tokens"].append(2)
        growing.append(USER)
        growing.end()
    assert el.open(store.url).rollout(0).metadata == {"usage": {"tokens": [1]}}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("advantages", [0.5, 0.6]),
        ("parts", ["not JSON", "["]),
        ("sampled", [True, False]),
        ("Message", [7, 7]),
    ],
)
def test_annotations_with_names_of_messages_leave_the_views_alone(
    store: el.EpisodeStore, name: str, values: list[Any]
) -> None:
    """They are columns of steps, of any type; the parts of messages are what was written."""
    written(store, [USER, MODEL], tokens=[[1], [2, 3]])
    annotated = el.open(store.url)
    ids = [annotated[0].id] * 2
    annotated.annotate(pl.DataFrame({"episode_id": ids, "t": [0, 1], name: values}), on=("episode_id", "t"))
    check_views(store)
    rows = el.open(store.url).query(f'SELECT "{name}" FROM steps ORDER BY t LIMIT 2').rows()
    assert rows == [(value,) for value in values]


def test_columns_of_the_views_do_not_depend_on_the_data(store: el.EpisodeStore) -> None:
    """An empty version, one without tokens and one with all of them have the same columns and types."""
    full = [*CHAIN, {"role": "tool", "tool_call_id": "i", "content": [], "name": "n", "zz": 1}]
    full[1] = {**MODEL, "reasoning_content": "r", "tool_calls": CALLS[6], "name": "x"}
    full[2] = {
        **MODEL,
        "tool_calls": [{"id": "i", "type": "function", "function": {"name": "n", "arguments": ""}}],
    }
    names = ("logprobs", "reference_logprobs", "advantages", "loss_weights", "token_rewards")
    numbers: Any = {name: [None, [1], [1, 2], None] for name in names}
    tokens: Any = {"tokens": [[1, 2], [3, 4], [5, 6], []], "mask": [None, [0, 1], None, None]}
    with store.writer() as writer:
        writer.write_rollout(CHAIN)
        writer.seal()
        facts: Any = {
            "group": "g",
            "sample": 1,
            "task": "t",
            "policy_version": 2,
            "stop_reason": "s",
            "error": "e",
        }
        writer.write_rollout(full, **tokens, **numbers, **facts, times=[1, 2, 3, 4])
        writer.write_rollout(CHAIN, advantages=0.5)
    newest = el.open(store.url)
    assert newest.version >= 2
    for view in ("messages", "rollouts", "tokens"):
        schemas = [
            newest.query(f"SELECT * FROM {view} LIMIT 0").schema
            if version is None
            else el.open(store.url, version=version).query(f"SELECT * FROM {view} LIMIT 0").schema
            for version in (0, 1, None)
        ]
        assert schemas[0] == schemas[1] == schemas[2]
    check_views(store)


def filled(url: Any) -> el.EpisodeStore:
    """A store with rollouts of all kinds: with tokens, masks and branches, without, failed, and cut."""
    store = el.create(url, el.Rollouts(tokenizer="t"))
    with store.writer() as writer:
        for at in range(4):
            tokens: Any = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
            writer.write_rollout(
                [USER, {**MODEL, "n": at}, USER],
                tokens=tokens,
                logprobs=[None, [-1, -2, -at], None],
                rewards=at,
            )
        writer.write_rollout([USER, MODEL, MODEL], parents=[-1, 0, 0], tokens=[[1], [2, 3], None])
        writer.write_rollout([MODEL], tokens=[5, 6], mask=[0, 1], error="x", truncated=True)
        growing = writer.begin_rollout(group="cut")
        growing.append(USER)
        growing.append({**USER, "n": 9}, sampled=True, tokens=[7, 8], logprobs=[-1, -2])
    return el.open(store.url)


def contents(view: Any) -> list[Any]:
    """Everything that the rollouts of a view hold, in its order."""
    rollouts = [view.rollout(at) for at in range(len(view))]
    return [(each.messages, each.parents, each.sampled, str(each.tokens), each.reward) for each in rollouts]


@pytest.mark.sample(1)
@pytest.mark.parametrize("place", ["folder", "memory", "objects"])
def test_rollouts_stay_equal_wherever_they_go(tmp_path: Path, place: str) -> None:
    """Filters, orders, copies, merges, compaction, deletion and publishing keep them, and the views."""
    if place == "objects":
        from conformance import ObjectBackend
        from object_server import shared_server

        backend = ObjectBackend(shared_server())
        store = filled(tmp_path / "first").copy(backend.url, storage_options=backend.storage_options)
    else:
        store = filled(tmp_path / "s" if place == "folder" else f"memory://{uuid.uuid4().hex}")
    expected = contents(store)
    check_views(store)
    assert contents(store.filter("episode_return > 1")) == expected[2:4]
    assert contents(store.sort("episode_return", descending=True))[:3] == expected[3:0:-1]
    assert contents(store[-1:]) == expected[-1:]
    assert store[4:6].query("SELECT count(*) FROM messages").item() == 4
    copied = store.copy(tmp_path / "copied", encodings=None)
    assert contents(copied) == expected
    check_views(copied)
    merged = el.create(tmp_path / "merged", el.Rollouts(tokenizer="t"))
    el.merge([store, copied], merged)
    check_views(merged)
    assert len(merged.refresh()) in (7, 14)
    store.compact()
    store.publish(tmp_path / "published", tag="v1")
    pulled = el.pull(tmp_path / "published", tmp_path / "pulled")
    assert contents(pulled) == expected
    check_views(pulled)
    store.delete("episode_return > 1")
    assert contents(store.refresh()) == expected[:2] + expected[4:]
    check_views(store)


@pytest.mark.parametrize(("name", "format"), [("rows.parquet", "parquet"), ("hub", "huggingface")])
@pytest.mark.parametrize("layout", ["transitions", "steps"])
def test_exported_rows_are_rollouts_again(tmp_path: Path, name: str, format: Any, layout: str) -> None:
    """The files of tables have the declaration; an import into a store of rollouts goes by that store's."""
    store = filled(tmp_path / "s")
    assert not store.export(tmp_path / name, format=format, layout=layout).lost
    assert not el.import_dataset(tmp_path / name, tmp_path / "back").lost
    back = el.open(tmp_path / "back")
    assert back.handle.manifest.rollouts == {"tokenizer": "t"} and contents(back) == contents(store)
    check_views(back)
    plain = el.create(
        tmp_path / "plain", observation_space=store.observation_space, action_space=store.action_space
    )
    with pytest.raises(el.errors.SpaceMismatchError, match="store of no rollouts"):
        el.import_dataset(tmp_path / name, plain.url)


@pytest.mark.further
def test_programs_that_look_at_stores_take_rollouts(tmp_path: Path) -> None:
    """The terminal, health, quality and the report, on an empty store and on one with all kinds."""
    empty = el.create(tmp_path / "empty", el.Rollouts())
    for store in (empty, filled(tmp_path / "filled")):
        store.health()
        store.report(tmp_path / "report.html")
        commands = [["info"], ["ls"], ["health"], ["stats"], ["verify"], ["head", "steps"]]
        commands += [["sql", f"SELECT * FROM {view}"] for view in ("messages", "rollouts", "tokens")]
        commands += [["show", "0"], ["show", "-1"]] if len(store) else []
        for name, *further in commands:
            call = [sys.executable, "-m", "episodelake", name, str(store.url), *further]
            ended = subprocess.run(call, capture_output=True, text=True, timeout=300)
            assert "Traceback" not in ended.stderr, (name, ended.stderr)
            assert ended.returncode in ((0, 1) if name == "health" else (0,)), (name, ended.stderr)


def test_texts_that_are_no_unicode_fail_no_query(store: el.EpisodeStore) -> None:
    """Parts with a lone surrogate are no JSON for SQL: only their own content is NULL."""
    parts = [{"type": "text", "text": "a\ud800"}, {"type": "text", "text": "b"}]
    others: list[Any] = [["x"], [{"text": None}, {"text": "y"}, 7, {"type": "image"}], [{"text": "é\x00"}]]
    messages = [{"role": "user", "content": content} for content in ("\ud800", parts, *others, "z")]
    assert written(store, messages).messages == messages
    rows = el.open(store.url).query("SELECT content FROM messages ORDER BY message").rows()
    assert [row[0] for row in rows] == [None, None, "", "y", "é\x00", "z"]


def test_a_rollout_is_one_episode(store: el.EpisodeStore) -> None:
    """Slices and lists give views, of which none is a rollout."""
    written(store, CHAIN)
    view: Any = el.open(store.url)
    for key in (slice(0, 1), [0], None, 1.5):
        with pytest.raises(el.errors.EpisodelakeError):
            view.rollout(key)
    assert view.rollout(np.int64(0)).id == view.rollout(view[0].id).id


def test_arrays_are_copied_when_they_are_given(store: el.EpisodeStore) -> None:
    """Buffers that a training loop uses again do not change what was appended."""
    ids, numbers = np.array([1, 2]), np.array([-1, -2], np.float32)
    message = {"role": "user", "content": ["x"]}
    with store.writer() as writer:
        growing = writer.begin_rollout()
        growing.append(message)
        growing.append(MODEL, tokens=ids, logprobs=numbers)
        message["content"], ids[:], numbers[:] = ["y"], 9, 9
        growing.end()
    rollout = el.open(store.url).rollout(0)
    assert rollout.messages[0]["content"] == ["x"]
    assert rollout.branches[0].tokens.tolist() == [1, 2] and rollout.branches[0].logprobs.tolist() == [-1, -2]


def test_numbers_are_kept_bit_for_bit(store: el.EpisodeStore) -> None:
    """Negative zero, denormal and infinite numbers, in the rollout, in SQL and in the files."""
    bits = [0, 2**31, 1, 2**31 + 1, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0xBDCCCCCD]
    given = np.array(bits, np.uint32).view(np.float32)
    columns = {name: [None, given, None] for name in PER_SAMPLED}
    rollout = written(store, CHAIN, tokens=[None, range(len(bits)), None], **columns)
    reader = el.open(store.url)
    for name in PER_SAMPLED:
        assert rollout.tokens[1].numbers[name].view(np.uint32).tolist() == bits
        shown = reader.query(f'SELECT {name[:-1]} FROM tokens ORDER BY "position"').to_series()
        assert shown.to_numpy().view(np.uint32).tolist() == bits
    (file,) = (Path(str(store.url)) / "steps").rglob("*.parquet")
    (row,) = duckdb.sql(f"SELECT logprobs FROM '{file}' WHERE tokens IS NOT NULL").fetchall()
    assert np.array(row[0], np.float32).view(np.uint32).tolist() == bits


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit()", "writer.close()"])
def test_one_message_alone_is_kept(store: el.EpisodeStore, end: str) -> None:
    """Of a rollout that goes no further: after a kill, an exit and a close; the next writer continues it."""
    program = f"""
import os, signal, sys
import episodelake as el
with el.open(sys.argv[1]).writer() as writer:
    rollouts = [writer.begin_rollout(group=group, source_key=group) for group in "abcd"]
    rollouts[0].append({{"role": "user", "content": "hi"}}, tokens=[1, 2], time=3.0)
    rollouts[1].append({{"role": "assistant", "content": None}}, tokens=[3], logprobs=[-1])
    rollouts[2].append({{"role": "user", "content": "me"}}, sampled=True)
    rollouts[3].append({{"role": "user", "content": "dropped"}})
    rollouts[3].discard()
    writer.flush()
    {end}
"""
    ended = subprocess.run([sys.executable, "-c", program, str(store.url)], capture_output=True, timeout=300)
    assert ended.returncode == (-signal.SIGKILL if "kill" in end else 0), ended.stderr
    el.recover(store.url)
    reader = el.open(store.url)
    found = {each.metadata["group"]: each for each in map(reader.rollout, range(len(reader)))}
    reasons = {each.episode.end_reason for each in found.values()}
    assert sorted(found) == ["a", "b", "c"] and reasons == {"interrupted" if "kill" in end else "cut"}
    assert [each.sampled for each in found.values()] == [[False], [True], [True]]
    assert found["a"].messages == [{"role": "user", "content": "hi"}] and found["a"].times == [3.0]
    assert found["b"].branches[0].logprobs.tolist() == [-1] and found["b"].parents == [-1]
    assert reader.query("SELECT messages, reward FROM rollouts").rows() == [(1, 0.0)] * 3
    assert not reader.verify().faults and not el.recover(store.url)
    check_views(store)


@pytest.mark.further
def test_a_killed_process_keeps_what_it_flushed(store: el.EpisodeStore) -> None:
    """Of several open rollouts; a discarded one stays discarded."""
    program = """
import os, signal, sys, time
import episodelake as el
writer = el.open(sys.argv[1]).writer(flush_seconds=0.05)
one, two, dropped = (writer.begin_rollout(group=group) for group in "abc")
for at in range(4):
    one.append({"role": "user", "content": str(at)}, tokens=[at])
    two.append({"role": "user", "content": [at]}, sampled=True, tokens=[at, at], logprobs=[-1, -2])
    dropped.append({"role": "user", "content": "dropped"})
dropped.discard()
writer.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program, str(store.url)], capture_output=True, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    el.recover(store.url)
    reader = el.open(store.url)
    rollouts = {each.metadata["group"]: each for each in map(reader.rollout, range(len(reader)))}
    assert sorted(rollouts) == ["a", "b"]
    assert [each["content"] for each in rollouts["a"].messages] == ["0", "1", "2", "3"]
    assert rollouts["b"].sampled == [True] * 4
    assert rollouts["b"].branches[0].logprobs.tolist() == [-1, -2] * 4
    check_views(store)
    # Each may go on, in another run, and takes the place of the interrupted one.
    with reader.writer(run="later") as writer:
        again = writer.reopen_rollout(rollouts["b"].id)
        assert len(again) == 4
        assert again.append({"role": "user", "content": "on"}, tokens=[9], parent=1) == 4
        again.end(rewards=1.5, stop_reason="stop")
        cut = writer.reopen_rollout(rollouts["a"].id)
        cut.append(MODEL, tokens=[7], logprobs=[-3], reward=0.5)
    reader = el.open(store.url)
    ended, cut = (reader.rollout(each.id) for each in reader.sort("episode_return", descending=True))
    assert ended.messages == [*rollouts["b"].messages, {"role": "user", "content": "on"}]
    assert ended.sampled == [True] * 4 + [False] and ended.reward == 1.5
    assert ended.parents == [-1, 0, 1, 2, 1] and ended.episode.end_reason == "terminated"
    assert ended.metadata == {"group": "b", "continues": [rollouts["b"].id], "stop_reason": "stop"}
    assert cut.messages == [*rollouts["a"].messages, MODEL] and cut.episode.end_reason == "cut"
    check_views(store)
    ended_already = pytest.raises(el.errors.InvalidArgumentError, match="is terminated after 5 steps")
    with reader.writer() as writer, ended_already:
        writer.reopen_rollout(ended.id)


@pytest.mark.further
def test_huge_texts_come_back(store: el.EpisodeStore) -> None:
    """Ten million characters as text and as a part."""
    text = "é" * 10_000_000
    messages = [{"role": "user", "content": text}, {**MODEL, "content": [{"type": "text", "text": text}]}]
    assert written(store, messages).messages == messages
    rows = el.open(store.url).query("SELECT length(content) FROM messages").rows()
    assert rows == [(10_000_000,), (10_000_000,)]
