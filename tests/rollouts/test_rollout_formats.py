"""Formats of rollouts: what comes in, what goes out again, and what is refused or counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import episodelake as el

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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed("nodes.1.mask", [True]), "node 1: mask has 1 values, and there are 3 token ids"),
        (changed("nodes.1.mask", []), "node 1 has 3 token ids and no mask"),
        (changed("nodes.1.logprobs", [-1.0]), r"message 1: logprobs has shape \(1,\)"),
        (changed("nodes.1.logprobs", [-1.0, float("nan")]), "message 1: logprobs has NaN"),
        (changed("nodes.1.logprobs", ["a", "b"]), "node 1: logprobs is no list of numbers"),
        (changed("nodes.1.token_ids", [1, 2**40, 3]), "token id 1099511627776 is out of range"),
        (changed("nodes.1.token_ids", [1, 2**70, 3]), "node 1: token_ids is no list of numbers"),
        (changed("nodes.1.parent", 2), "node 1: parent is 2; expected the number of an earlier node"),
        (changed("nodes.0.parent", -1), "node 0: parent is -1"),
        (changed("nodes.1.message", "hello"), "message 1 is str"),
        (changed("nodes.1.message", {"content": "a"}), "message 1: role is None"),
        (changed("nodes.0", None), "node 0 is a NoneType; expected an object"),
        (changed("nodes", {"a": 1}), "nodes is a dict; expected a list"),
        (changed("rewards.answer.score", float("nan")), r"rewards\['answer'\] is nan"),
        (changed("rewards.answer", 1.0), "reward 'answer' is a float; expected an object"),
        (changed("version", 2), "has version 2 of traces; known is 1"),
        (trace(id="t0"), "the id 't0' is that of .*traces.jsonl, line 1"),
        (b'{"nodes": [\xff]}', "is no UTF-8: byte 11 is 0xff"),
        (b'{"nodes": [', "is no JSON: .* at character 12"),
        (b"[" * 100_000, "line 2 cannot be read: RecursionError"),
        ([1], "is a list; expected an object"),
    ],
)
def test_damaged_traces_are_refused_or_skipped(tmp_path: Path, content: Any, message: str) -> None:
    """The error names the file and line; with `on_error="skip"` the others come in."""
    source = lines(tmp_path / "traces.jsonl", trace(id="t0"), content, trace(id="t2"))
    with pytest.raises(el.errors.DatasetError, match=message) as raised:
        el.import_dataset(source, tmp_path / "s", format="verifiers")
    assert "traces.jsonl, line 2" in str(raised.value)
    assert not (tmp_path / "s").exists()
    report = el.import_dataset(source, tmp_path / "s", format="verifiers", on_error="skip")
    assert report.episodes == 2 and len(report.skipped) == 1
    assert "line 2" in report.skipped[0][1]


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
    assert dict(report.lost) == {"the role critic, which becomes user": 1}
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
        writer.write_episode(observations=[0, 0], actions=[0], rewards=[0.0], terminations=True)
    with pytest.raises(el.errors.DatasetError, match="the episodes of this store are none"):
        el.open(tmp_path / "plain").export(tmp_path / "x.jsonl", format="verifiers")
