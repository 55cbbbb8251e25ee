"""Formats of rollouts at damaged sources: valid ones, changed at random places."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import episodelake as el
from test_rollout_formats import CONVERSATION, episode, lines, trace, trajectory, trial
from test_rollout_inspect import archive, header, sample

ODD: list[Any] = [
    *(None, True, False, 0, -1, 2**31, 2**63, 10**30, 1.5, float("nan"), float("inf"), 1e308),
    *("", "x", "\ud800", "a" * 500, "attachment://a1", [], {}, [1], [None], [[]], {"a": 1}, {"": None}),
]
KEYS = ("Group", "record", "reward", "rewards", "role", "rollout", "", "k" * 300)
#: Names of Python's errors, which say nothing to a user.
PYTHON = re.compile(
    r"\b(Attribute|Type|Key|Index|Value|Recursion|Overflow|Assertion|Arrow\w*)(Error|Invalid)\b"
)
CHAT = {"messages": CONVERSATION, "id": "a", "rewards": {"a": 1.0}, "weights": {"a": 0.5}, "tools": [{}]}
OURS = {"rewards": {"a": 1.0}, "group": "g", "sample": 1, "advantage": 0.5, "note": {"a": 1}}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all parts of a value."""
    if path:
        yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from places(part, (*path, key))


def changed(value: Any, chance: random.Random) -> Any:
    """A value with one to three changes: other types, missing and further keys, depth, copies elsewhere."""
    made = copy.deepcopy(value)
    for _ in range(chance.choice([1, 1, 2, 3])):
        found = list(places(made))
        if not found:
            return made
        *above, last = chance.choice(found)
        part = made
        for key in above:
            part = part[key]
        kind = chance.choice(["odd"] * 5 + ["missing", "key", "deep", "twice"])
        if kind == "missing":
            del part[last]
        elif kind == "key" and isinstance(part, dict):
            part[chance.choice(KEYS)] = copy.deepcopy(chance.choice(ODD))
        elif kind == "deep":
            part[last] = nested(chance.choice([5, 100]))
        elif kind == "twice" and isinstance(part, list):
            part.insert(last, copy.deepcopy(part[last]))
        else:
            part[last] = copy.deepcopy(chance.choice(ODD))
    return made


def nested(depth: int) -> Any:
    """A list in lists."""
    made: Any = 1
    for _ in range(depth):
        made = [made]
    return made


def source(format: str, folder: Path, chance: random.Random) -> Path:
    """A source of a format with changes."""
    if format == "verifiers":
        content = chance.choice([trace(), episode(trace()), trace(info={"rollout": OURS})])
        return lines(folder / "traces.jsonl", changed(content, chance))
    if format == "messages":
        pair = {"prompt": CONVERSATION[:2], "completion": CONVERSATION[2:], "reward": 1.0}
        return lines(folder / "chats.jsonl", changed(chance.choice([CHAT, pair]), chance))
    if format == "verl":
        row = {
            "input": "a",
            "output": "b",
            "gts": ["c"],
            "score": 1.0,
            "step": 1,
            "uid": "a_0_0",
            "acc": True,
        }
        return lines(folder / "1.jsonl", changed(row, chance))
    if format == "atif":
        result = {"task_name": "t", "verifier_result": {"rewards": {"reward": 1, "other": 0.5}}}
        content = chance.choice([trajectory(), trajectory(extra={"rollout": OURS})])
        return trial(folder / "trial", changed(content, chance), result=changed(result, chance))
    if format == "inspect":
        log = header(results={"headline": {"scorer": "parts", "score": "a"}})
        own = sample(error={"message": "m"}, limit={"type": "token"}, error_retries=[{"events": [1]}])
        members = {"header.json": changed(log, chance), "samples/7_epoch_1.json": changed(own, chance)}
        return archive(folder / "log.eval", members)
    row = {
        "step": 1,
        "prompt": "a",
        "completion": CONVERSATION[4:],
        "acc": 1.0,
        "info": ["b"],
        "advantage": 0.5,
    }
    while True:
        try:
            pq.write_table(pa.Table.from_pylist([changed(row, chance)]), folder / "completions_00001.parquet")
            return folder / "completions_00001.parquet"
        except (pa.ArrowException, OverflowError, UnicodeEncodeError, RecursionError):  # no Parquet has it
            continue


@pytest.mark.parametrize("format", ["verifiers", "messages", "atif", "inspect", "verl", "trl"])
@pytest.mark.parametrize("count", [25, pytest.param(250, marks=pytest.mark.further)])
def test_only_our_errors_come(tmp_path: Path, format: str, count: int) -> None:
    """A changed source comes in, or is refused by an error that names the file and not Python's trouble."""
    chance = random.Random(f"{format} {count}")
    refused = 0
    for number in range(count):
        changes = source(format, tmp_path, chance)
        store = tmp_path / str(number)
        try:
            report = el.import_dataset(changes, store, format=format)
        except el.errors.EpisodelakeError as error:
            refused += 1
            text = str(error)
            assert not PYTHON.search(text) and str(tmp_path) in text and len(text) < 3000
        else:
            assert not report.episodes or el.open(store).rollout(0).messages
    assert 0 < refused < count


@pytest.mark.parametrize("depth", [300, 900])
def test_deep_values_come_in_or_are_refused(tmp_path: Path, depth: int) -> None:
    """A value of any depth is kept, or an error names the line."""
    places = [
        {"message": {"role": "user", "content": nested(depth)}},
        {"message": CONVERSATION[0], "x": nested(depth)},
    ]
    for number, node in enumerate(places):
        content = lines(tmp_path / "traces.jsonl", trace(nodes=[node]))
        try:
            report = el.import_dataset(content, tmp_path / f"{number}")
        except el.errors.DatasetError as error:
            assert "traces.jsonl, line 1" in str(error) and "nested too deep" in str(error)
        else:
            assert report.episodes == 1 and el.open(tmp_path / f"{number}").rollout(0).messages
