"""Logs of Inspect: what becomes of a sample, and what damaged or hostile archives do."""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import episodelake as el
from effort import with_folders
from episodelake.errors import DatasetError
from episodelake.testing.adapters import case

THOUGHT = {"type": "reasoning", "reasoning": "hm", "redacted": False}
MESSAGES = [
    {"role": "system", "content": "be brief", "id": "m0"},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "attachment://a1", "internal": None},
            {"type": "image", "image": "attachment://a2", "detail": "auto"},
        ],
        "id": "m1",
        "source": "input",
    },
    {
        "role": "assistant",
        "content": [THOUGHT, {"type": "text", "text": "calling"}],
        "tool_calls": [
            {"id": "c", "function": "add", "arguments": {"x": 1}, "type": "function", "parse_error": "odd"}
        ],
        "id": "m2",
        "model": "mock",
    },
    {"role": "tool", "content": "2", "tool_call_id": "c", "function": "add", "error": {"type": "timeout"}},
    {
        "role": "assistant",
        "content": [{**THOUGHT, "signature": "s"}, {"type": "text", "text": "2"}],
        "id": "m4",
    },
]


def sample(**others: Any) -> dict[str, Any]:
    """A sample as Inspect writes it."""
    answer = {"model": "mock", "choices": [{"message": MESSAGES[2], "stop_reason": "tool_calls"}]}
    return {
        "id": 7,
        "epoch": 1,
        "input": MESSAGES[1:2],
        "target": "2",
        "messages": MESSAGES,
        "output": {
            "model": "mock",
            "choices": [{"message": MESSAGES[4], "stop_reason": "stop"}],
            "completion": "2",
        },
        "scores": {
            "match": {"value": "C", "explanation": "it is"},
            "parts": {"value": {"a": 0.5, "b": True, "c": None}},
            "late": {"value": float("nan")},
            "words": {"value": "fine"},
        },
        "metadata": {"level": 3, "tags": ["x"]},
        "store": {"note": "attachment://a1"},
        "events": [
            {"event": "model", "output": answer, "completed": "2026-01-02T03:04:05.250000+00:00"},
            {"event": "tool"},
        ],
        "model_usage": {"mock": {"input_tokens": 3, "output_tokens": 2}, "judge": {"input_tokens": 5}},
        "started_at": "2026-01-02T03:04:00+00:00",
        "total_time": 1.5,
        "attachments": {"a1": "look " * 30, "a2": "data:image/png;base64,AAAA"},
        "limit": None,
        **others,
    }


def header(**others: Any) -> dict[str, Any]:
    """The header of a log."""
    spec = {"eval_id": "e1", "task": "sums", "model": "mock", "dataset": {"sample_ids": [7], "samples": 1}}
    return {"version": 2, "status": "success", "eval": spec, "plan": {"name": "plan"}, **others}


def archive(path: Path, contents: dict[str, Any], kind: int = zipfile.ZIP_DEFLATED) -> Path:
    """A log with JSON in these members; the kind 93 is zstd, as Inspect compresses them."""
    with zipfile.ZipFile(path, "w") as made:
        for name, content in contents.items():
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            if kind != 93:
                made.writestr(name, data, kind)
                continue
            half = len(data) // 2
            frames = [pa.Codec("zstd").compress(part, asbytes=True) for part in (data[:half], data[half:])]
            made.writestr(name, b"".join(frames), zipfile.ZIP_STORED)
            member = made.filelist[-1]
            member.compress_type, member.file_size, member.CRC = kind, len(data), zlib.crc32(data)
    return path


@pytest.mark.parametrize("kind", [93, zipfile.ZIP_DEFLATED, "json"])
def test_a_sample_is_a_rollout(tmp_path: Path, kind: Any) -> None:
    """Messages in OpenAI's form with their attachments, scores, facts; events count as lost."""
    path = tmp_path / ("log.json" if kind == "json" else "log.eval")
    if kind == "json":
        path.write_text(json.dumps({**header(), "samples": [sample(), sample(epoch=2)]}))
    else:
        members = {"header.json": header(), "samples/7_epoch_1.json": sample(), "summaries.json": []}
        archive(path, {**members, "samples/7_epoch_2.json": sample(epoch=2)}, kind)
    report = el.import_dataset(path, tmp_path / "s")
    assert (report.format, dict(report.lost)) == ("inspect", {"an event of a transcript": 4})
    again = el.import_dataset(path, tmp_path / "s")
    assert (again.episodes, again.present) == (0, 2)
    store = el.open(tmp_path / "s")
    rollout = store.rollout(1)
    system, user, call, result, answer = rollout.messages
    assert system == MESSAGES[0] and rollout.sampled == [False, False, True, False, True]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "auto"}}
    assert user["content"] == [{"type": "text", "text": "look " * 30}, image]
    assert (call["content"], call["reasoning_content"], call["model"]) == ("calling", "hm", "mock")
    function = {"name": "add", "arguments": '{"x": 1}'}
    assert call["tool_calls"] == [{"id": "c", "type": "function", "function": function, "parse_error": "odd"}]
    assert result["name"] == "add" and result["error"] == {"type": "timeout"}
    assert answer["content"][0] == {**THOUGHT, "signature": "s"} and answer["reasoning_content"] == "hm"
    assert rollout.times == [None, None, 1767323045.25, None, None]
    metadata = rollout.metadata
    assert (metadata["group"], metadata["sample"], metadata["task"]) == ("e1/7", 2, "sums/7")
    assert metadata["rewards"] == {"match": 1.0, "parts/a": 0.5, "parts/b": 1.0} and rollout.reward == 1.0
    assert metadata["usage"] == {"prompt_tokens": 8, "completion_tokens": 2}
    assert metadata["timing"] == {"start": 1767323040.0, "total_time": 1.5}
    assert (metadata["stop_reason"], metadata["sample_metadata"]) == ("stop", {"level": 3})
    kept = json.loads(metadata["inspect"])
    assert kept["store"] == {"note": "look " * 30} and kept["metadata"] == {"tags": ["x"]}
    assert kept["scores"]["words"]["value"] == "fine" and not {"input", "events"} & kept.keys()
    assert kept["output"] == {"model": "mock", "choices": [{"stop_reason": "stop"}]}
    assert json.loads(metadata["inspect_eval"])["eval"]["dataset"] == {"samples": 1}
    row = store.query("SELECT * FROM pass_at_k(2) WHERE \"group\" = 'e1/7'").to_dicts()
    assert row[0]["pass_at_k"] == 1.0


def test_limits_errors_and_headlines(tmp_path: Path) -> None:
    """A limit truncates, an error is a fact, and the headline of the log is the reward."""
    headline = {"scorer": "parts", "score": "a", "metric": "mean"}
    members = {
        "header.json": header(results={"headline": headline}),
        "samples/7_epoch_1.json": sample(limit={"type": "token", "limit": 10}),
        "samples/8_epoch_1.json": sample(id="8", error={"message": "boom"}, scores=None),
        "samples/9_epoch_1.json": sample(id="9", messages=[]),
    }
    report = el.import_dataset(archive(tmp_path / "log.eval", members), tmp_path / "s")
    assert dict(report.lost) == {
        "a rollout without messages": 1,
        "an event of a transcript": 4,
        "the results of a log, which follow from its scores": 1,
    }
    store = el.open(tmp_path / "s")
    limited, failed = store.rollout(0), store.rollout(1)
    assert limited.reward == 0.5 and limited.episode.truncated
    assert limited.metadata["stop_reason"] == "token"
    assert (failed.reward, failed.metadata["error"], failed.episode.truncated) == (0.0, "boom", False)


def test_answers_of_the_input_are_not_sampled(tmp_path: Path) -> None:
    """A dataset may give answers as examples."""
    sources = ["input", "operator", "generate", None]
    messages = [{"role": "assistant", "content": "4", "source": source} for source in sources]
    members = {"header.json": header(), "samples/7_epoch_1.json": sample(messages=messages)}
    el.import_dataset(archive(tmp_path / "log.eval", members), tmp_path / "s")
    assert el.open(tmp_path / "s").rollout(0).sampled == [False, False, True, True]


def test_a_folder_of_logs_is_one_source(tmp_path: Path) -> None:
    """Samples of one id in two logs are two groups; a log that did not end has what it has."""
    folder = tmp_path / "logs"
    folder.mkdir()
    archive(folder / "a.eval", {"_journal/start.json": header(), "samples/7_epoch_1.json": sample()}, 93)
    (folder / "b.json").write_text(json.dumps({**header(eval={"task": "sums"}), "samples": [sample()]}))
    (folder / "logs.json").write_text('{"a.eval": {}}')
    report = el.import_dataset(folder, tmp_path / "s")
    assert report.format == "inspect" and report.episodes == 2
    store = el.open(tmp_path / "s")
    assert [store.rollout(at).metadata["group"] for at in range(2)] == ["e1/7", "b/7"]


def test_the_last_of_two_members_counts(tmp_path: Path) -> None:
    """Inspect logs a sample again under the same name."""
    path = archive(tmp_path / "log.eval", {"header.json": header(), "samples/7_epoch_1.json": sample()})
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "a") as made:
        made.writestr("samples/7_epoch_1.json", json.dumps(sample(target="3")))
    assert el.import_dataset(path, tmp_path / "s").episodes == 1
    assert el.open(tmp_path / "s").rollout(0).metadata["target"] == "3"


@pytest.mark.further
def test_damaged_logs_are_refused_or_skipped(tmp_path: Path) -> None:
    """The error names the file and member; with `on_error="skip"` the other samples and logs come in."""
    cases: list[Any] = [
        ({"samples/7_epoch_1.json": sample()}, "has neither header.json nor _journal/start.json"),
        ({"header.json": header(version=3)}, "has log version 3; known is 2"),
        ({"header.json": header(), "../x.json": {}}, "the file name '../x.json' leads out"),
        ({"header.json": header(), "/etc/x.json": {}}, "the file name '/etc/x.json' leads out"),
        ({"header.json": b"{"}, r"header.json is no JSON"),
        ({"header.json": []}, "The header of .* is a list; expected an object"),
        ({"samples/x.json": []}, "samples/x.json is a list; expected an object"),
        ({"samples/x.json": sample(id=None)}, "id is None; expected a text or a number"),
        ({"samples/x.json": sample(epoch="one")}, "epoch is 'one'; expected a whole number"),
        ({"samples/x.json": sample(messages=[3])}, "a message is a int; expected an object"),
        ({"samples/x.json": sample(scores={"a": 1})}, "the score 'a' is a int; expected an object"),
        ({"samples/x.json": sample(started_at="noon")}, "started_at: timestamp is 'noon'"),
        ({"samples/7_epoch_1/sample.json": sample()}, "is a part of a sample"),
        ({"samples/7_epoch_1/sample.json": {}, "samples/7_epoch_1/messages/0.json": []}, "is a part of a"),
    ]
    for here, (members, message) in with_folders(cases, tmp_path):
        with case((members, message)):
            folder = here / "logs"
            folder.mkdir()
            whole = {"header.json": header(), "samples/7_epoch_1.json": sample()}
            archive(folder / "a.eval", whole)
            named = any(name.startswith("samples/x") or "/sample.json" in name for name in members)
            archive(folder / "b.eval", {"header.json": header(), **members} if named else members)
            with pytest.raises(DatasetError, match=message) as raised:
                el.import_dataset(folder, here / "s")
            assert "b.eval" in str(raised.value)
            report = el.import_dataset(folder, here / "s", on_error="skip")
            assert report.episodes == 1 and len(report.skipped) == 1


def test_damaged_and_hostile_archives_are_refused(tmp_path: Path) -> None:
    """Cut and changed archives, members that become too large, and attachments that many texts share."""
    members = {"header.json": header(), "samples/7_epoch_1.json": sample()}
    whole = archive(tmp_path / "log.eval", members, 93)
    data = whole.read_bytes()

    def refused(content: bytes, message: str, **options: Any) -> None:
        (tmp_path / "bad.eval").write_bytes(content)
        with pytest.raises(DatasetError, match=message):
            el.import_dataset(tmp_path / "bad.eval", tmp_path / "s", **options)

    refused(data[:-30], "is no whole zip archive")
    refused(data[: len(data) // 2], "is no whole zip archive")
    at = data.index(b"samples/7_epoch_1.json") + 100
    refused(data[:at] + bytes(20) + data[at + 20 :], "samples/7_epoch_1.json (is damaged|cannot be read)")
    # The directory at the end states half of a member's size.
    size = len(json.dumps(sample()).encode())
    at = data.rindex(size.to_bytes(4, "little"))
    refused(data[:at] + (size // 2).to_bytes(4, "little") + data[at + 4 :], "differs from its size")
    large = {**members, "samples/7_epoch_1.json": sample(setup=" " * (9 << 20))}
    for kind in (93, zipfile.ZIP_DEFLATED):
        content = archive(tmp_path / "large.eval", large, kind).read_bytes()
        refused(content, r"samples/7_epoch_1.json takes .* bytes in memory; the limit", max_bytes=1 << 20)
    content = archive(tmp_path / "odd.eval", members, zipfile.ZIP_BZIP2).read_bytes()
    refused(content, "header.json has the compression method 12; known are stored, deflate and zstd")
    shared = sample(store={str(at): "attachment://a1" for at in range(100)}, attachments={"a1": "x" * 10**5})
    content = archive(tmp_path / "shared.eval", {**members, "samples/7_epoch_1.json": shared}).read_bytes()
    refused(content, "with its attachments takes .* bytes in memory", max_bytes=1 << 20)
