"""Formats of rollouts: what comes in, what goes out again, and what is refused or counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import episodelake as el
from effort import with_folders
from episodelake.testing.adapters import case
from episodelake.writers.importing import json_values
from episodelake.writers.importing.json_values import first_keys, parsed

LOGPROBS = np.random.default_rng(0).normal(size=3).astype(np.float32)


def trace(**others: Any) -> dict[str, Any]:
    """A trace of verifiers v1 with two branches, as `Trace.to_record` writes it."""
    nodes = [
        {
            "parent": None,
            "semantic_parents": [],
            "message": {"role": "user", "content": [{"type": "text", "text": "which?"}]},
            "sampled": False,
            "timestamp": 1.5,
            "token_ids": [1, 2, 3],
            "mask": [False, False, False],
            "logprobs": [],
            "advantages": None,
        },
        {
            "parent": 0,
            "message": {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "c", "type": "function", "name": "f", "namespace": None, "arguments": '{"a":  1}'}
                ],
            },
            "sampled": True,
            "timestamp": 2.5,
            "token_ids": [4, 5, 6],
            "mask": [False, True, True],
            "is_content": [False, True, True],
            "logprobs": [float(each) for each in LOGPROBS[:2]],
            "advantages": [0.5, 0.25],
        },
        {
            "parent": 0,
            "semantic_parents": [{"node": 1, "type": "compaction"}],
            "message": {"role": "assistant", "content": "the other", "tool_calls": None},
            "sampled": True,
            "timestamp": 3.0,
            "token_ids": [7],
            "mask": [True],
            "logprobs": [float(LOGPROBS[2])],
        },
    ]
    return {
        "version": 1,
        "id": "t1",
        "verifiers": {"version": "0.4.0"},
        "task": {"type": "Quiz", "data": {"prompt": "which?"}, "key": "quiz-1", "hash": "77"},
        "agent": {"config": {"model": "m"}, "name": "solver", "trainable": True},
        "nodes": nodes,
        "calls": [
            {"node": 1, "finish_reason": "tool_calls", "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
            {"node": 2, "finish_reason": "length", "usage": {"prompt_tokens": 3, "completion_tokens": 1}},
        ],
        "rewards": {"answer": {"score": 1.0, "weight": 0.5}, "style": None},
        "metrics": {"turns": 2.0, "unknown": None},
        "info": {"deep": [1, {"er": None}]},
        "is_completed": True,
        "ok": False,
        "stop_condition": "agent_completed",
        "errors": [{"type": "ToolError", "message": "no such tool"}],
        "timing": {"start": 1.0, "setup": {"start": 1.0, "end": 1.25}},
        "num_output_tokens": 3,
        **others,
    }


def episode(*traces: dict[str, Any]) -> dict[str, Any]:
    """An `Episode` of verifiers v1 with a group and policy versions."""
    work = {"type": "train", "step": 7, "policy": {"start": 5, "end": 6}}
    return {
        "id": "e1",
        "env": {"id": "quiz"},
        "task": {"type": "Quiz", "data": {}},
        "group": {"id": "g1"},
        "run": {"type": "train", "id": "r1", "work": work},
        "ok": True,
        "traces": list(traces),
    }


def lines(path: Path, *contents: Any) -> Path:
    """A file of JSON lines; texts and bytes are lines as they are."""
    made = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in contents]
    path.write_bytes(b"\n".join(made) + b"\n")
    return path


def read_lines(path: Path) -> list[Any]:
    """The contents of JSON lines."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def imported(source: Path, into: Path, **options: Any) -> tuple[el.EpisodeStore, Any]:
    """The store of an import, and the report; a second import adds nothing."""
    report = el.import_dataset(source, into, **options)
    again = el.import_dataset(source, into, **options)
    assert (again.episodes, again.present) == (0, report.episodes)
    return el.open(into), report


def same(one: el.EpisodeStore, two: el.EpisodeStore) -> None:
    """Both stores have the same rollouts: messages, tokens, branches, rewards and metadata."""
    assert len(one) == len(two)
    for at in range(len(one)):
        first, second = one.rollout(at), two.rollout(at)
        assert first.messages == second.messages and first.reward == second.reward
        assert (first.parents, first.sampled, first.times) == (second.parents, second.sampled, second.times)
        for mine, other in zip(first.branches, second.branches, strict=True):
            np.testing.assert_array_equal(mine.tokens, other.tokens)
            for name, values in mine.numbers_of_sampled.items():
                np.testing.assert_array_equal(values, other.numbers_of_sampled[name])
        facts = [
            {name: value for name, value in each.metadata.items() if not name.startswith("source_")}
            for each in (first, second)
        ]
        assert facts[0] == facts[1]
        assert first.episode.truncated == second.episode.truncated


def test_a_trace_of_verifiers_is_a_rollout(tmp_path: Path) -> None:
    """Messages in OpenAI's form, exact tokens, branches, and facts where queries find them."""
    store, report = imported(lines(tmp_path / "traces.jsonl", trace()), tmp_path / "s")
    assert report.format == "verifiers" and report.lost == {"is_content of tokens": 3}
    rollout = store.rollout(0)
    function = {"name": "f", "arguments": '{"a":  1}'}
    assert rollout.messages[1]["tool_calls"] == [{"id": "c", "type": "function", "function": function}]
    assert rollout.messages[2] == {"role": "assistant", "content": "the other"}
    assert rollout.parents == [-1, 0, 0] and rollout.times == [1.5, 2.5, 3.0]
    one, two = rollout.branches
    assert (one.tokens.tolist(), two.tokens.tolist()) == ([1, 2, 3, 4, 5, 6], [1, 2, 3, 7])
    sampled = np.concatenate([one.logprobs[one.mask], two.logprobs[two.mask]])
    np.testing.assert_array_equal(sampled.view(np.int32), LOGPROBS.view(np.int32))
    assert one.numbers_of_sampled["advantages"][one.mask].tolist() == [0.5, 0.25]
    assert rollout.reward == 0.5 and rollout.episode.truncated
    (row,) = store.query("SELECT * FROM rollouts").to_dicts()
    assert (row["task"], row["stop_reason"]) == ("quiz-1", "agent_completed")
    assert (row["error"], row["usage.completion_tokens"]) == ("ToolError: no such tool", 3)
    assert (row["metrics.turns"], row["timing.setup.end"], row["agent"]) == (2.0, 1.25, "solver")


def test_traces_of_an_episode_share_its_facts(tmp_path: Path) -> None:
    """Group and policy version are those of the episode; one without traces counts as lost."""
    source = lines(tmp_path / "e.jsonl", episode(trace(id="a"), trace(id="b", nodes=[])), episode())
    store, report = imported(source, tmp_path / "s")
    assert dict(report.lost) == {
        "is_content of tokens": 3,
        "a rollout without messages": 1,
        "an episode without traces": 1,
    }
    (row,) = store.query('SELECT "group", policy_version, policy_version_end, env FROM rollouts').to_dicts()
    assert row == {"group": "g1", "policy_version": 5, "policy_version_end": 6, "env": "quiz"}


def test_own_metadata_join_no_traces(tmp_path: Path) -> None:
    """Rollouts with an `episode` of their own are no traces of one episode, with one group."""
    store = el.create(tmp_path / "store", el.Rollouts())
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "4"}]
    with store.writer() as writer:
        for group in ("a", "b"):
            writer.write_rollout(chat, group=group, metadata={"episode": 1})
    assert not store.refresh().export(tmp_path / "traces.jsonl", format="verifiers").lost
    again, _ = imported(tmp_path / "traces.jsonl", tmp_path / "again")
    assert [again.rollout(at).metadata["group"] for at in range(2)] == ["a", "b"]


def test_traces_go_out_as_they_came(tmp_path: Path) -> None:
    """Episodes and traces have the same content, without what was counted as lost."""
    given = [trace(), episode(trace(id="a"), trace(id="b"))]
    store, _ = imported(lines(tmp_path / "traces.jsonl", *given), tmp_path / "s")
    store.export(tmp_path / "out.jsonl", format="verifiers")
    written = read_lines(tmp_path / "out.jsonl")
    assert written[1]["traces"][1]["id"] == "b" and written[1]["run"] == given[1]["run"]
    for name in ("task", "agent", "calls", "rewards", "metrics", "info", "errors", "timing"):
        assert written[0][name] == given[0][name]
    assert written[0]["nodes"][1]["logprobs"] == given[0]["nodes"][1]["logprobs"]
    assert written[0]["nodes"][2]["semantic_parents"] == [{"node": 1, "type": "compaction"}]
    again, _ = imported(tmp_path / "out.jsonl", tmp_path / "again")
    same(store, again)


def changed(place: str, value: Any) -> dict[str, Any]:
    """A trace with another value at a place such as `nodes.1.mask`."""
    made = trace()
    *keys, last = [int(key) if key.isdecimal() else key for key in place.split(".")]
    part: Any = made
    for key in keys:
        part = part[key]
    part[last] = value
    return made


@pytest.mark.further
def test_damaged_traces_are_refused_or_skipped(tmp_path: Path) -> None:
    """The error names the file and line; with `on_error="skip"` the others come in."""
    cases: list[Any] = [
        (changed("nodes.1.mask", [True]), "node 1: mask has 1 values, and there are 3 token ids"),
        (changed("nodes.1.mask", []), "node 1 has 3 token ids and no mask"),
        (changed("nodes.1.logprobs", [-1.0]), r"message 1: logprobs has shape \(1,\)"),
        (changed("nodes.1.logprobs", [-1.0, float("nan")]), "message 1: logprobs has NaN"),
        (changed("nodes.1.logprobs", ["a", "b"]), "node 1: logprobs is no list of such numbers"),
        (changed("nodes.1.token_ids", [1, 2**40, 3]), "token id 1099511627776 is out of range"),
        (changed("nodes.1.token_ids", [1, 2**70, 3]), "node 1: token_ids is no list of such numbers"),
        (changed("nodes.1.token_ids", [1, 2.5, 3]), "node 1: token_ids is no list of such numbers"),
        (changed("nodes.1.mask", [0, 2, 1]), "message 1: mask has values other than 0 and 1"),
        (changed("nodes.1.parent", 2), "node 1: parent is 2; expected the number of an earlier node"),
        (changed("nodes.0.parent", -1), "node 0: parent is -1"),
        (changed("nodes.1.message", "hello"), "message 1 is str"),
        (changed("nodes.1.message", {"content": "a"}), "message 1: role is None"),
        (changed("nodes.0", None), "node 0 is a NoneType; expected an object"),
        (changed("nodes", {"a": 1}), "nodes is a dict; expected a list"),
        (changed("rewards.answer.score", float("nan")), r"rewards\['answer'\]=nan"),
        (changed("rewards.answer", 1.0), "reward 'answer' is a float; expected an object"),
        (changed("version", 2), "has version 2 of traces; known is 1"),
        (trace(id="t0"), "the id 't0' is that of .*traces.jsonl, line 1"),
        (b'{"nodes": [\xff]}', "is no UTF-8: byte 11 is 0xff"),
        (b'{"nodes": [', "is no JSON: .* at character 12"),
        (b"[" * 100_000, "line 2 cannot be read: RecursionError"),
        ([1], "is a list; expected an object"),
    ]
    for folder, (content, message) in with_folders(cases, tmp_path):
        with case((content, message)):
            source = lines(folder / "traces.jsonl", trace(id="t0"), content, trace(id="t2"))
            with pytest.raises(el.errors.DatasetError, match=message) as raised:
                el.import_dataset(source, folder / "s", format="verifiers")
            assert "traces.jsonl, line 2" in str(raised.value)
            assert not (folder / "s").exists()
            report = el.import_dataset(source, folder / "s", format="verifiers", on_error="skip")
            assert report.episodes == 2 and len(report.skipped) == 1
            assert "line 2" in report.skipped[0][1]


def test_hostile_beginnings_are_looked_at_quickly(tmp_path: Path) -> None:
    """A text of quotes that goes on beyond the first bytes is one token, and no format is recognised."""
    source = tmp_path / "quotes.jsonl"
    source.write_bytes(b'{"nodes": 1, "a": {"task": "' + b'\\"' * 200_000)
    assert first_keys(source) == {"nodes", "a"}
    with pytest.raises(el.errors.DatasetError, match="has no known format"):
        el.import_dataset(source, tmp_path / "s")


@pytest.mark.parametrize(
    "line",
    [
        *(b"[-0, -0.0, 1E5, 5e-324, 0.1234567890123456789012]", b"[18446744073709551616]", b"[1e400]"),
        *(b"18446744073709551616", b'{"a":\t-99999999999999999999}', b"[18446744073709551615]", b"[NaN]"),
        *(b'"\\ud800"', b'{"a": 1, "a": 2}', b"\xef\xbb\xbf{}", b'"\xff"', b"[01]", b'"\x00"', b"[1,"),
        *(b"[" * 600 + b"]" * 600, b"1" * 5000, b"[123456789012345678901234567890.5]", b'"\xed\xa0\x80"'),
    ],
)
def test_lines_are_read_alike_without_orjson(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package makes reading faster, and neither values nor errors differ."""

    def outcome() -> str:
        try:
            return repr(parsed(line, "line 1"))
        except el.errors.DatasetError as error:
            return str(error)

    expected = outcome()
    monkeypatch.setattr(json_values, "orjson", None)
    assert outcome() == expected


def test_a_cut_last_line_is_named(tmp_path: Path) -> None:
    """A writer that was interrupted leaves a part of a line; the lines before it come in."""
    source = tmp_path / "traces.jsonl"
    source.write_text(json.dumps(trace()) + "\n" + json.dumps(trace(id="t2"))[:500])
    with pytest.raises(el.errors.DatasetError, match=r"line 2 .*its writer was interrupted"):
        el.import_dataset(source, tmp_path / "s")
    assert el.import_dataset(source, tmp_path / "s", on_error="skip").episodes == 1


def test_odd_texts_come_back(tmp_path: Path) -> None:
    """Lone surrogates, ten megabytes of a tool, unknown roles and parts, two roots."""
    messages = [
        {"role": "developer", "content": "\ud800 half"},
        {"role": "tool", "content": "x" * 10_000_000, "tool_call_id": "c"},
        {"role": "critic", "content": [{"type": "hologram", "data": [1, None]}], "weight": 0.5},
    ]
    nodes = [{"parent": None, "message": message} for message in messages]
    store, _ = imported(lines(tmp_path / "traces.jsonl", trace(nodes=nodes)), tmp_path / "s")
    rollout = store.rollout(0)
    assert rollout.messages == messages and rollout.parents == [-1, -1, -1]
    assert len(rollout.branches) == 3
    report = store.export(tmp_path / "out.jsonl", format="verifiers")
    assert dict(report.lost) == {
        "the role developer, which becomes system": 1,
        "the role critic, which becomes user": 1,
    }
    (written,) = read_lines(tmp_path / "out.jsonl")
    assert [each["message"]["role"] for each in written["nodes"]] == ["system", "tool", "user"]


def test_a_folder_is_read_in_the_order_of_its_steps(tmp_path: Path) -> None:
    """Step 10 comes after step 9; other files are left alone."""
    for step in (10, 9):
        folder = tmp_path / "rollouts" / f"step_{step}" / "train" / "all"
        folder.mkdir(parents=True)
        lines(folder / "traces.jsonl", trace(id=f"t{step}"))
        (folder / "notes.txt").write_text("no rollouts")
    store, _ = imported(tmp_path / "rollouts", tmp_path / "s")
    assert [store.rollout(at).metadata["trace"] for at in (0, 1)] == ["t9", "t10"]


def test_rollouts_go_into_stores_of_rollouts(tmp_path: Path) -> None:
    """The declaration of the store counts; a store of other episodes is refused."""
    source = lines(tmp_path / "traces.jsonl", trace())
    declared = el.create(tmp_path / "declared", el.Rollouts(tokenizer="t", vocabulary=10))
    el.import_dataset(source, declared)
    assert el.open(tmp_path / "declared").rollout(0).messages
    small = el.create(tmp_path / "small", el.Rollouts(vocabulary=5))
    with pytest.raises(el.errors.DatasetError, match=r"line 1: message 1: token id 6 is out of range"):
        el.import_dataset(source, small)
    spaces = {"observation_space": declared.observation_space, "action_space": declared.action_space}
    plain = el.create(tmp_path / "plain", **spaces)
    with pytest.raises(el.errors.SpaceMismatchError, match="is a store of no rollouts"):
        el.import_dataset(source, plain)
    rows = [{"episode": 0, "observation": 0, "action": 0, "reward": 0.0}]
    with pytest.raises(el.errors.SpaceMismatchError, match="is a store of rollouts"):
        el.import_dataset(rows, declared, format="table")
    with plain.writer() as writer:
        writer.write_episode(
            observations=[0, 0], actions=[0], rewards=[0.0], terminations=True, truncations=False
        )
    with pytest.raises(el.errors.DatasetError, match="the episodes of this store are none"):
        el.open(tmp_path / "plain").export(tmp_path / "x.jsonl", format="verifiers")


CONVERSATION = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "which?"}]},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function"}], "weight": 0},
    {"role": "tool", "content": "none", "tool_call_id": "c"},
    {"role": "assistant", "content": "this", "reasoning_content": "hm"},
]


def test_messages_come_in_and_go_out(tmp_path: Path) -> None:
    """Messages are equal; facts and rewards have their places, other keys are metadata."""
    given = [
        {
            "messages": CONVERSATION,
            "id": "a",
            "group": "g",
            "sample": 2,
            "advantage": 0.25,
            "rewards": {"answer": 1.0, "style": 0.5},
            "weights": {"style": 0.5},
            "truncated": True,
            "split": "train",
            "usage": {"tokens": 7},
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "reward": 1.25,
        },
        {"messages": CONVERSATION[:2]},
    ]
    store, report = imported(lines(tmp_path / "chats.jsonl", *given), tmp_path / "s")
    assert (report.format, dict(report.lost)) == ("messages", {})
    rollout = store.rollout(0)
    assert rollout.messages == CONVERSATION and rollout.reward == 1.25 and rollout.episode.truncated
    metadata = rollout.metadata
    assert (metadata["group"], metadata["sample"], metadata["advantage"]) == ("g", 2, 0.25)
    assert metadata["usage"] == {"tokens": 7} and "tools" in metadata["record"]
    assert store.rollout(1).reward == 0 and not store.rollout(1).episode.truncated
    assert not store.export(tmp_path / "out.jsonl", format="messages").lost
    assert read_lines(tmp_path / "out.jsonl") == given
    again, _ = imported(tmp_path / "out.jsonl", tmp_path / "again")
    same(store, again)


def test_messages_of_parquet_lack_what_is_null(tmp_path: Path) -> None:
    """A column of structs has the keys of all messages; those that are null were not there."""
    chat = [CONVERSATION[0], *CONVERSATION[2:]]
    frame = pl.DataFrame({"messages": [chat, chat[:1]], "score": [0.5, None]}, strict=False)
    frame.write_parquet(tmp_path / "chats.parquet")
    store, report = imported(tmp_path / "chats.parquet", tmp_path / "s")
    assert report.format == "messages"
    assert store.rollout(0).messages == chat and store.rollout(1).messages == chat[:1]
    assert [store.rollout(at).metadata.get("score") for at in (0, 1)] == [0.5, None]
    texts = pl.DataFrame({"messages": [json.dumps(CONVERSATION), "[1"]})
    texts.write_parquet(tmp_path / "texts.parquet")
    with pytest.raises(el.errors.DatasetError, match="row 1: messages is a text that is no JSON"):
        el.import_dataset(tmp_path / "texts.parquet", tmp_path / "t")
    report = el.import_dataset(tmp_path / "texts.parquet", tmp_path / "t", on_error="skip")
    assert el.open(tmp_path / "t").rollout(0).messages == CONVERSATION and len(report.skipped) == 1


def test_prompts_and_completions_are_conversations(tmp_path: Path) -> None:
    """Of the prompt nothing was sampled, whatever its roles."""
    content = {"prompt": CONVERSATION[:3], "completion": CONVERSATION[3:]}
    source = lines(tmp_path / "a.jsonl", content, CONVERSATION, {"messages": []})
    store, report = imported(source, tmp_path / "s", format="messages")
    assert dict(report.lost) == {"a rollout without messages": 1}
    assert store.rollout(0).sampled == [False, False, False, False, True]
    assert store.rollout(1).sampled == [False, False, True, False, True]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"messages": CONVERSATION, "reward": float("nan")}, "line 1: rewards=nan"),
        ({"messages": CONVERSATION, "reward": "much"}, "line 1: rewards='much'"),
        ({"messages": CONVERSATION, "rewards": [1]}, "line 1: rewards is a list; expected an object"),
        ({"messages": "hello"}, "line 1: messages is a text that is no JSON"),
        ({"messages": 5}, "line 1: messages is a int; expected a list"),
        ({"messages": [{"content": "a"}]}, "line 1: message 0: role is None"),
        (7, "line 1 is a int; expected an object"),
    ],
)
def test_damaged_messages_are_refused(tmp_path: Path, content: Any, message: str) -> None:
    """The error names the file, the line and the value."""
    source = lines(tmp_path / "chats.jsonl", content)
    with pytest.raises(el.errors.DatasetError, match=message):
        el.import_dataset(source, tmp_path / "s", format="messages")


def test_keys_with_names_of_facts_come_in(tmp_path: Path) -> None:
    """`record` has what cannot be metadata of its own: columns know no case."""
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "4"}]
    others = {"Task": "other", "Rewards": 2, "record": "own", "list": [1]}
    line = {"messages": chat, "task": "own", **others}
    store, _ = imported(lines(tmp_path / "in.jsonl", line), tmp_path / "store")
    assert json.loads(store.rollout(0).metadata["record"]) == others
    store.export(tmp_path / "out.jsonl", format="messages")
    assert read_lines(tmp_path / "out.jsonl") == [line]


def test_a_reward_beside_its_parts_is_kept(tmp_path: Path) -> None:
    """Where it is not their sum, and a flag that is none, `record` has them; parts are the reward."""
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "4"}]
    line = {"messages": chat, "rewards": {"a": 1.0, "b": 0.5}, "weights": {"b": 0.5}, "id": "x"}
    given = [{**line, "reward": 1.25}, {**line, "id": "y", "reward": 7.0, "truncated": "no"}]
    store, _ = imported(lines(tmp_path / "in.jsonl", *given), tmp_path / "store")
    assert [store.rollout(at).reward for at in (0, 1)] == [1.25, 1.25]
    assert "record" not in store.rollout(0).metadata
    assert json.loads(store.rollout(1).metadata["record"]) == {"reward": 7.0, "truncated": "no"}
    lost = store.export(tmp_path / "out.jsonl", format="messages").lost
    assert sorted(lost) == [
        f"the metadata {name}, a name that the line itself has" for name in ("reward", "truncated")
    ]


def test_facts_of_other_writers_stay(tmp_path: Path) -> None:
    """Under the key of our exports, names that metadata cannot have go out again as they came."""
    theirs = {"Task": "t", "reward": 7.0, "truncated": "no", "rewards": {"a": 1.0}, "note": "n"}
    source = trial(tmp_path / "t", trajectory(extra={"rollout": theirs}))
    store, report = imported(source, tmp_path / "s")
    assert not report.lost and store.rollout(0).reward == 1.0 and store.rollout(0).metadata["note"] == "n"
    store.export(tmp_path / "out", format="atif")
    written = json.loads((tmp_path / "out" / "000000" / "agent" / "trajectory.json").read_text())
    assert written["extra"]["rollout"] == theirs
    info = {"rollout": {"Task": "t", "record": [1], "note": "n"}, "more": 1}
    store, _ = imported(lines(tmp_path / "traces.jsonl", trace(info=info)), tmp_path / "v")
    assert store.rollout(0).metadata["note"] == "n"
    store.export(tmp_path / "out.jsonl", format="verifiers")
    assert read_lines(tmp_path / "out.jsonl")[0]["info"] == info


def test_long_names_of_strangers_are_cut(tmp_path: Path) -> None:
    """Roles, kinds of parts and ids come from the source, and go into sentences."""
    long = "x" * 10_000
    messages = [{"role": long, "content": [{"type": long}]}]
    store = el.create(tmp_path / "store", el.Rollouts())
    with store.writer() as writer:
        writer.write_rollout(messages)
    for format in ("verifiers", "atif"):
        lost = store.refresh().export(tmp_path / format, format=format).lost
        assert lost and all(len(sentence) < 200 for sentence in lost)
    source = lines(tmp_path / "traces.jsonl", trace(id=long), trace(id=long))
    with pytest.raises(el.errors.DatasetError) as raised:
        el.import_dataset(source, tmp_path / "s")
    assert len(str(raised.value).splitlines()[0]) < 500


@pytest.mark.parametrize("value", [3, ["hello"], "hello"])
def test_tables_with_a_column_of_that_name_stay_tables(tmp_path: Path, value: Any) -> None:
    """`messages` of a table may be their number, or texts."""
    row = {"episode": 0, "observation": [0.5], "action": 1, "reward": 1.0, "messages": value}
    (tmp_path / "log.jsonl").write_text(json.dumps(row) + "\n")
    assert el.import_dataset(tmp_path / "log.jsonl", tmp_path / "from-json", dry_run=True).format == "table"
    if not isinstance(value, str):
        pl.DataFrame([row]).write_parquet(tmp_path / "log.parquet")
        report = el.import_dataset(tmp_path / "log.parquet", tmp_path / "from-parquet", dry_run=True)
        assert report.format == "table"


def test_branches_go_out_as_lines(tmp_path: Path) -> None:
    """Each branch is a conversation; what they share, tokens and times count as lost."""
    store, _ = imported(lines(tmp_path / "traces.jsonl", trace()), tmp_path / "s")
    report = store.export(tmp_path / "out.jsonl", format="messages")
    written = read_lines(tmp_path / "out.jsonl")
    assert [len(each["messages"]) for each in written] == [2, 2]
    assert [each["branch"] for each in written] == [0, 1]
    assert report.lost["a message that branches share, which each of them repeats"] == 1
    assert report.lost["tokens of messages"] == 3 and report.lost["time of messages"] == 3


def test_metadata_do_not_take_the_place_of_messages(tmp_path: Path) -> None:
    """Metadata with names of the line are counted as lost; an own `record` is no JSON of an import."""
    store = el.create(tmp_path / "store", el.Rollouts())
    own = {"messages": 3, "reward": 7, "truncated": True, "prompt": "p", "kept": 1}
    with store.writer() as writer:
        for record in ("session-17", 5):
            writer.write_rollout([{"role": "assistant", "content": "4"}], metadata={**own, "record": record})
    report = store.refresh().export(tmp_path / "out.jsonl", format="messages")
    names = ("messages", "prompt", "reward", "truncated")
    assert report.lost == {f"the metadata {name}, a name that the line itself has": 2 for name in names}
    written = read_lines(tmp_path / "out.jsonl")
    assert [each.pop("record") for each in written] == ["session-17", 5]
    assert written == [{"messages": [{"role": "assistant", "content": "4"}], "kept": 1}] * 2
    for format in ("verifiers", "atif"):
        assert not store.export(tmp_path / format, format=format).lost


def test_groups_go_out_as_pairs(tmp_path: Path) -> None:
    """The best and the worst of a group, after what they share; everything else counts as lost."""
    store = el.create(tmp_path / "s", el.Rollouts())
    given = [("a", 0.5), ("b", 1.0), ("a", 1.0), ("a", -1.0), ("a", 1.0), ("b", 1.0), (None, 2.0)]
    with store.writer() as writer:
        for at, (group, reward) in enumerate(given):
            answer = {"role": "assistant", "content": str(at)}
            writer.write_rollout([CONVERSATION[1], answer], group=group, rewards=reward)
        for group, further in (("same", []), ("longer", [{"role": "assistant", "content": "more"}])):
            for reward, last in ((0.0, []), (1.0, further)):
                messages = [CONVERSATION[1], {"role": "assistant", "content": "x"}, *last]
                writer.write_rollout(messages, group=group, rewards=reward)
    report = store.refresh().export(tmp_path / "pairs.jsonl", format="messages", layout="pairs")
    with store.writer() as writer:
        writer.write_rollout([CONVERSATION[1]], truncated=True)
    lost = store.refresh().export(tmp_path / "cut.jsonl", format="verifiers").lost
    assert dict(lost) == {"that a rollout was truncated": 1}
    pair, longer = read_lines(tmp_path / "pairs.jsonl")
    assert longer["prompt"] == pair["prompt"] and [len(longer[name]) for name in ("chosen", "rejected")] == [
        2,
        1,
    ]
    assert pair == {
        "prompt": [CONVERSATION[1]],
        "chosen": [{"role": "assistant", "content": "2"}],
        "rejected": [{"role": "assistant", "content": "3"}],
        "group": "a",
        "score_chosen": 1.0,
        "score_rejected": -1.0,
    }
    assert dict(report.lost) == {
        "a rollout without a group": 1,
        "a rollout that is neither the best nor the worst of its group": 2,
        "a rollout of a group whose rewards are equal": 2,
        "a rollout of a group whose best and worst say the same": 2,
    }


def trajectory(**others: Any) -> dict[str, Any]:
    """A trajectory in ATIF with tokens, whose prompts have the whole history."""
    return {
        "schema_version": "ATIF-v1.7",
        "session_id": "s1",
        "agent": {"name": "terminus", "version": "2.0", "model_name": "m", "extra": {"a": [1]}},
        "steps": [
            {"step_id": 1, "source": "system", "message": "be brief"},
            {"step_id": 2, "source": "user", "message": [{"type": "text", "text": "which?"}]},
            {
                "step_id": 3,
                "timestamp": "2026-01-02T03:04:05.250000+00:00",
                "source": "agent",
                "model_name": "m2",
                "message": "",
                "reasoning_content": "hm",
                "tool_calls": [{"tool_call_id": "c", "function_name": "f", "arguments": {"é": [1]}}],
                "observation": {
                    "results": [{"source_call_id": "c", "content": "none"}, {"extra": {"b": 1}}],
                },
                "metrics": {
                    "prompt_tokens": 3,
                    "cost_usd": 0.5,
                    "prompt_token_ids": [1, 2, 3],
                    "completion_token_ids": [4, 5],
                    "logprobs": [float(each) for each in LOGPROBS[:2]],
                },
            },
            {
                "step_id": 4,
                "source": "agent",
                "message": "this",
                "metrics": {
                    "prompt_token_ids": [1, 2, 3, 4, 5, 6, 7],
                    "completion_token_ids": [8],
                    "logprobs": [float(LOGPROBS[2])],
                },
            },
        ],
        "final_metrics": {"total_prompt_tokens": 10, "total_cost_usd": 0.5},
        **others,
    }


def trial(folder: Path, content: Any, **files: Any) -> Path:
    """A trial of Harbor: a folder with a trajectory and further JSON files."""
    for name, value in {"agent/trajectory": content, **files}.items():
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
    return folder


def test_a_trajectory_of_atif_is_a_rollout(tmp_path: Path) -> None:
    """Steps and results are messages, and each prompt adds what is new in it."""
    source = trial(tmp_path / "t", trajectory()) / "agent" / "trajectory.json"
    store, report = imported(source, tmp_path / "s")
    assert (report.format, dict(report.lost)) == ("atif", {})
    rollout = store.rollout(0)
    roles = [each["role"] for each in rollout.messages]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant"]
    assert json.loads(rollout.messages[2]["tool_calls"][0]["function"]["arguments"]) == {"é": [1]}
    tokens = [None if each is None else each.tokens.tolist() for each in rollout.tokens]
    assert tokens == [None, [1, 2, 3], [4, 5], None, [6, 7], [8]]
    (branch,) = rollout.branches
    np.testing.assert_array_equal(branch.logprobs[branch.mask].view(np.int32), LOGPROBS.view(np.int32))
    assert branch.mask.tolist() == [False, False, False, True, True, False, False, True]
    assert rollout.times[2] == 1767323045.25
    assert rollout.metadata["usage"] == {"prompt_tokens": 10, "cost_usd": 0.5}


def test_a_trial_of_harbor_has_rewards(tmp_path: Path) -> None:
    """Rewards come from the result, else from the verifier's files; a single file has no neighbours."""
    result = {
        "task_name": "fix-it",
        "trial_name": "fix-it__1",
        "verifier_result": {"rewards": {"reward": 1, "tests": 0.5}},
        "exception_info": {"exception_type": "Timeout", "exception_message": "300 s"},
    }
    trial(tmp_path / "job" / "one", trajectory(), result=result)
    trial(tmp_path / "job" / "two", trajectory(), **{"verifier/reward": {"tests": 0.5, "style": 0.25}})
    trial(tmp_path / "job" / "three", trajectory()).joinpath("verifier").mkdir()
    (tmp_path / "job" / "three" / "verifier" / "reward.txt").write_text("0.75\n")
    trial(tmp_path / "job" / "zero", trajectory())
    store, _ = imported(tmp_path / "job", tmp_path / "s")
    by_name = {each.metadata["source_key"].split("/")[1]: each for each in map(store.rollout, range(4))}
    rewards = {name: rollout.reward for name, rollout in by_name.items()}
    assert rewards == {"one": 1.0, "two": 0.75, "three": 0.75, "zero": 0.0}
    alone = el.import_dataset(tmp_path / "job" / "one" / "agent" / "trajectory.json", tmp_path / "alone")
    assert alone.episodes == 1 and el.open(tmp_path / "alone").rollout(0).reward == 0
    one = by_name["one"].metadata
    assert (one["task"], one["error"]) == ("fix-it", "Timeout: 300 s")
    assert one["rewards"] == {"reward": 1.0, "tests": 0.5} and one["weights"] == {"tests": 0.0}


def test_rewritten_histories_and_subagents_are_counted(tmp_path: Path) -> None:
    """A prompt that does not continue the history ends the tokens; copied steps are not sampled."""
    steps = trajectory()["steps"]
    steps[2]["is_copied_context"] = True
    steps[3]["metrics"]["prompt_token_ids"] = [1, 2, 9, 9, 9, 9, 9]
    steps[2]["observation"]["results"][0]["subagent_trajectory_ref"] = [{"trajectory_id": "x"}]
    content = trajectory(steps=steps, subagent_trajectories=[trajectory(trajectory_id="x")])
    store, report = imported(trial(tmp_path / "t", content), tmp_path / "s")
    assert dict(report.lost) == {
        "log-probabilities of a step that is not sampled": 2,
        "a reference to a trajectory of a subagent": 1,
        "tokens of a step whose prompt does not continue the steps before": 1,
        "a trajectory of a subagent": 1,
    }
    rollout = store.rollout(0)
    assert rollout.sampled == [False] * 5 + [True]
    assert rollout.branches[0].tokens.tolist() == [1, 2, 3, 4, 5] and not rollout.branches[0].mask.any()


@pytest.mark.further
def test_trajectories_go_out_as_they_came(tmp_path: Path) -> None:
    """The export has the same trajectory, of each version, and the rewards for the verifier."""
    for folder, version in with_folders(range(9), tmp_path):
        with case(version):
            given = trajectory(schema_version=f"ATIF-v1.{version}")
            given["steps"][3]["llm_call_count"] = 1
            for step in given["steps"][2:] if version < 3 else ():  # which knew log-probabilities, but no ids
                del step["metrics"]["prompt_token_ids"], step["metrics"]["completion_token_ids"]
            source = trial(folder / "t", given, **{"verifier/reward": 0.5})
            store, _ = imported(source, folder / "s")
            report = store.export(folder / "out", format="atif")
            assert dict(report.lost) == {}
            written = json.loads((folder / "out" / "000000" / "agent" / "trajectory.json").read_text())
            assert written.pop("extra")["rollout"]["rewards"] == {"reward": 0.5}
            assert written == given
            assert json.loads((folder / "out" / "000000" / "verifier" / "reward.json").read_text()) == {
                "reward": 0.5
            }
            again, _ = imported(folder / "out", folder / "again")
            same(store, again)


def test_calls_of_any_form_go_out_as_atif(tmp_path: Path) -> None:
    """One without a function has no name there."""
    store = el.create(tmp_path / "store", el.Rollouts())
    with store.writer() as writer:
        writer.write_rollout([{"role": "assistant", "tool_calls": [{"id": "c", "function": None}, None]}])
    store.refresh().export(tmp_path / "out", format="atif")
    assert len(imported(tmp_path / "out", tmp_path / "again")[0].rollout(0).messages[0]["tool_calls"]) == 2


def test_all_facts_of_a_rollout_go_through_atif(tmp_path: Path) -> None:
    """Those of `write_rollout`, the advantage of the rollout too."""
    store = el.create(tmp_path / "store", el.Rollouts())
    with store.writer() as writer:
        writer.write_rollout(
            [{"role": "user", "content": "?"}, {"role": "assistant", "content": "4"}],
            tokens=[[1], [2, 3]],
            logprobs=[None, [-0.5, -0.25]],
            advantages=0.5,
            rewards={"a": 1.0, "b": 2.0},
            weights={"b": 0.5},
            group="g",
            sample=1,
            task="t",
            policy_version=3,
            stop_reason="length",
            error="boom",
            truncated=True,
        )
    assert not store.refresh().export(tmp_path / "out", format="atif").lost
    rollout = imported(tmp_path / "out", tmp_path / "again")[0].rollout(0)
    mine = store.rollout(0)
    assert {name: rollout.metadata.get(name) for name in mine.metadata} == mine.metadata
    assert rollout.reward == mine.reward and rollout.episode.truncated
    np.testing.assert_array_equal(rollout.branches[0].logprobs, mine.branches[0].logprobs)


def test_other_rollouts_go_out_as_atif(tmp_path: Path) -> None:
    """Branches are trials of their own; what steps have no place for counts as lost."""
    store, _ = imported(lines(tmp_path / "traces.jsonl", trace()), tmp_path / "s")
    report = store.export(tmp_path / "out", format="atif")
    assert report.lost["advantages of messages"] == 1
    assert report.lost["the text of the arguments of a call"] == 1
    again, _ = imported(tmp_path / "out", tmp_path / "again")
    assert len(again) == 2
    for at, branch in enumerate(store.rollout(0).branches):
        (other,) = again.rollout(at).branches
        assert other.tokens.tolist() == branch.tokens.tolist()
        np.testing.assert_array_equal(other.logprobs, branch.logprobs)
        assert again.rollout(at).metadata["rewards"] == {"answer": 1.0} and again.rollout(at).reward == 0.5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (trajectory(schema_version="ATIF-v2.0"), "has schema_version 'ATIF-v2.0'; known are ATIF-v1.0 to"),
        (trajectory(steps=[]), "has no steps"),
        (trajectory(steps=[{"step_id": 2, "source": "user"}]), "step 1: step_id is 2; expected 1"),
        (trajectory(steps=[{"step_id": 1, "source": "robot"}]), "step 1: source is 'robot'; expected one of"),
        (
            trajectory(steps=[{"step_id": 1, "source": "user", "message": "a", "timestamp": "noon"}]),
            "step 1: timestamp is 'noon'",
        ),
        (
            trajectory(
                steps=[
                    {
                        "step_id": 1,
                        "source": "agent",
                        "message": "a",
                        "metrics": {"completion_token_ids": [1], "logprobs": [0.5, 0.5]},
                    }
                ]
            ),
            "step 1: logprobs has 2 values, and there are 1 token ids",
        ),
        ([], "trajectory.json is a list; expected an object"),
    ],
)
def test_damaged_trajectories_are_refused_or_skipped(tmp_path: Path, content: Any, message: str) -> None:
    """The error names the file and step."""
    trial(tmp_path / "job" / "a", trajectory())
    trial(tmp_path / "job" / "b", content)
    with pytest.raises(el.errors.DatasetError, match=message):
        el.import_dataset(tmp_path / "job", tmp_path / "s", format="atif")
    report = el.import_dataset(tmp_path / "job", tmp_path / "s", format="atif", on_error="skip")
    assert report.episodes == 1 and len(report.skipped) == 1


def test_completions_of_trl_are_groups(tmp_path: Path) -> None:
    """Rewards by function, groups by prompt and step; a function without a value is left out."""
    for step in (10, 9):
        pl.DataFrame(
            {
                "step": [step] * 3,
                "prompt": ["which?", "which?", "why?"],
                "completion": ["this", "that", "so"],
                "correct": [1.0, 0.0, float("nan")],
                "style": [0.5, 0.25, 0.125],
                "solution": ["this", "this", None],
                "advantage": [0.5, -0.5, 0.0],
                "entropy": [0.125, 0.25, 0.5],
            }
        ).write_parquet(tmp_path / f"completions_{step:05}.parquet")
    store, report = imported(tmp_path, tmp_path.parent / f"{tmp_path.name}-s")
    assert (report.format, len(store)) == ("trl", 6)
    first, second, third = (store.rollout(at) for at in range(3))
    assert first.metadata["step"] == 9 and first.metadata["policy_version"] == 8 and first.reward == 1.5
    assert first.messages[1] == {"role": "assistant", "content": "this"}
    assert first.metadata["rewards"] == {"correct": 1.0, "style": 0.5}
    assert first.metadata["group"] == second.metadata["group"] != third.metadata["group"]
    assert [each.metadata["sample"] for each in (first, second, third)] == [0, 1, 0]
    assert (third.metadata["rewards"], third.metadata["advantage"]) == ({"style": 0.125}, 0.0)
    assert first.metadata["entropy"] == 0.125
    assert (
        first.metadata["solution"] == "this" and first.metadata["group"] != store.rollout(3).metadata["group"]
    )


def test_a_damaged_file_of_completions_is_skipped_alone(tmp_path: Path) -> None:
    """The files before and after one that cannot be read come in, from the folder of the trainer too."""
    folder = tmp_path / "run" / "completions"
    folder.mkdir(parents=True)
    rows = pl.DataFrame(
        {"step": [1], "prompt": ["which?"], "completion": ["this"], "right": [1.0], "advantage": [0.0]}
    )
    for step in (1, 2, 3):
        rows.write_parquet(folder / f"completions_{step:05}.parquet")
    for damaged in (folder / "completions_00001.parquet", folder / "completions_00003.parquet"):
        whole = damaged.read_bytes()
        damaged.write_bytes(whole[:-20])
        with pytest.raises(el.errors.DatasetError, match=f"{damaged.name} is no whole Parquet file"):
            el.import_dataset(folder.parent, tmp_path / f"{damaged.stem}-raise")
        report = el.import_dataset(folder.parent, tmp_path / damaged.stem, on_error="skip")
        assert (report.format, report.episodes, len(report.skipped)) == ("trl", 2, 1)
        assert damaged.name in report.skipped[0][1]
        damaged.write_bytes(whole)


def test_a_byte_order_mark_is_no_damage(tmp_path: Path) -> None:
    """Files of programs that begin them with a mark are recognised and read."""
    made = lines(tmp_path / "traces.jsonl", trace(), trace(id="t2"))
    made.write_bytes(b"\xef\xbb\xbf" + made.read_bytes())
    folder = trial(tmp_path / "trial", trajectory())
    (path,) = folder.rglob("trajectory.json")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert el.import_dataset(made, tmp_path / "a").episodes == 2
    assert el.import_dataset(folder, tmp_path / "b").format == "atif"


def test_rollouts_of_verl_have_groups(tmp_path: Path) -> None:
    """The parts of a uid are group, sample and output; without one, the input makes the group."""
    folder = tmp_path / "rollouts"
    folder.mkdir()
    row = {"input": "which?", "output": "this", "gts": "this", "score": 1.0, "step": 10, "acc": True}
    new = [{**row, "uid": f"a_b_{rollout}_0", "info": [1]} for rollout in (0, 1)]
    old = [
        {**row, "step": 9, "request_id": "r", "group": "x"},
        {**row, "step": 9, "input": "why?", "score": 0},
    ]
    lines(folder / "10.jsonl", *new)
    lines(folder / "9.jsonl", *old)
    lines(folder / "metrics.jsonl", {"loss": 0.5})  # is none of a step
    store, report = imported(folder, tmp_path / "s")
    assert report.format == "verl"
    facts = [store.rollout(at).metadata for at in range(4)]
    assert [(each["step"], each["sample"]) for each in facts] == [(9, 0), (9, 0), (10, 0), (10, 1)]
    assert facts[0]["group"] != facts[1]["group"] and facts[2]["group"] == facts[3]["group"] == "a_b"
    assert (facts[0]["verl_group"], facts[2]["output"], facts[2]["gts"]) == ("x", 0, "this")
    assert [store.rollout(at).reward for at in range(4)] == [1.0, 0.0, 1.0, 1.0]
    stale = store.query(
        "SELECT policy_version, max(policy_version) OVER () - policy_version AS age FROM rollouts "
        "WHERE policy_version IS NOT NULL GROUP BY policy_version ORDER BY policy_version"
    )
    assert stale.rows() == [(8, 1), (9, 0)]
    assert facts[0]["task"] == facts[2]["task"] != facts[1]["task"]
    assert "duplicate_prompt" not in {finding.kind for finding in store.health().findings}
    lines(folder / "11.jsonl", new[0], new[0], {**row, "score": None}, {**row, "output": None})
    with pytest.raises(el.errors.DatasetError, match=r"the id '11.jsonl:a_b_0_0' is that of .*line 1"):
        el.import_dataset(folder, tmp_path / "s")
    report = el.import_dataset(folder, tmp_path / "s", on_error="skip")
    assert (report.episodes, report.present, len(report.skipped)) == (2, 4, 2)
    assert "output is None; expected a text" in report.skipped[1][1]


@pytest.mark.parametrize("format", ["verifiers", "atif"])
def test_facts_come_back(tmp_path: Path, format: str) -> None:
    """Groups, versions, advantages and metadata of a rollout of our own survive both ways."""
    store = el.create(tmp_path / "store", el.Rollouts())
    facts = {"group": "g", "sample": 2, "policy_version": 7, "stop_reason": "stop"}
    own = {
        "note": "mine",
        "usage": {"prompt_tokens": 3},
        "session": "s1",
        "model": "m",
        "timing": {"start": 1.5},
    }
    with store.writer() as writer:
        for task in ("quiz", None):
            writer.write_rollout(
                [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}],
                tokens=[[1], [2, 3]],
                advantages=0.5,
                rewards=1.0,
                task=task,
                metadata=own,
                **facts,
            )
    el.open(store.url).export(tmp_path / "out", format=format)
    assert el.import_dataset(tmp_path / "out", tmp_path / "again", format=format).episodes == 2
    again = el.open(tmp_path / "again")
    for position, task in enumerate(("quiz", None)):
        metadata = again.rollout(position).metadata
        expected = {**facts, **own, "advantage": 0.5, "task": task}
        assert {name: metadata.get(name) for name in expected} == expected
    (batch,) = again.loader(2, el.Padded(3))
    assert batch["advantages"].tolist() == [[0.0, 0.5, 0.5]] * 2


def test_lines_of_prompts_are_recognised_and_numbers_are_facts(tmp_path: Path) -> None:
    """A line with `prompt` and `completion` is a conversation; the number of a prompt is its group."""
    line = {
        "prompt": [{"role": "user", "content": "?"}],
        "completion": [{"role": "assistant", "content": "!"}],
        "group": 7,
        "policy_version": "3",
    }
    (tmp_path / "lines.jsonl").write_text(json.dumps(line) + "\n")
    assert el.import_dataset(tmp_path / "lines.jsonl", tmp_path / "store").episodes == 1
    rollout = el.open(tmp_path / "store").rollout(0)
    assert rollout.sampled == [False, True]
    assert (rollout.metadata["group"], rollout.metadata["policy_version"]) == ("7", 3)
