"""Conversations in OpenAI's form: `messages`, in JSON lines and Parquet, as fine-tuning takes them.

A line is an object with the list `messages`, or with `prompt` and `completion` as lists of messages, of
which the model sampled those of the completion. Beside them `reward`, or `rewards` and `weights` by name,
`advantage`, `group`, `sample`, `task`, `policy_version`, `stop_reason`, `error` and `truncated` are those of
the rollout, and `id` names it. Other keys are metadata: numbers, texts and objects of these under their own
name, lists as JSON in `record`.

An export writes a line for each branch, without tokens and times; or, with `layout="pairs"`, `prompt`,
`chosen` and `rejected` for each group, as TRL's DPO takes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import DatasetError
from ...plugin import Export, Format, Match, Option, export_format, reading
from ...plugin.files import is_folder
from ...writers.importing.boundary import Files, check_groups
from ...writers.importing.json_values import first_bytes, first_keys
from ..tokens import TOKEN_COLUMNS
from .records import (
    Arguments,
    Record,
    RolloutDataset,
    files_of,
    is_number,
    is_reserved,
    is_sum,
    json_lines,
    kept_json,
    list_at,
    mapping_at,
    object_of,
    split_plain,
    text_or_none,
)
from .writing import holds, rollouts_of, taken_json, write_json_lines

_SUFFIXES = (".jsonl", ".parquet")
_MESSAGES, _PROMPT, _COMPLETION = "messages", "prompt", "completion"
#: Metadata with JSON.
_RECORD = "record"
#: Keys of a line that say what the rollout is, so that metadata of these names have no place.
_OF_LINE = frozenset({_MESSAGES, _PROMPT, _COMPLETION, "reward", "truncated"})
_TEXT_FACTS = ("group", "task", "stop_reason", "error")
_NUMBER_FACTS = ("sample", "policy_version")
_BATCH = 64
#: `messages` or `prompt` with a list of objects, or with such a list as text.
_LISTED = re.compile(rb'"(?:messages|prompt)"\s*:\s*(?:\[\s*[{\]]|"\s*\[)')


def _files(source: Any) -> list[Path]:
    named = isinstance(source, Files) or (isinstance(source, str | Path) and not is_folder(source))
    return [path for path in files_of(source, "*") if named or path.suffix in _SUFFIXES]


def _detect(source: Any) -> Match:
    files = _files(source)
    if not files:
        return Match("it has no JSON lines or Parquet", 2, related=False)
    try:
        has_messages = (
            _parquet_has_messages(files[0]) if _is_parquet(files[0]) else _lines_have_messages(files[0])
        )
    except (pa.ArrowException, OSError):
        return Match(f"{files[0].name} cannot be read", 2, related=False)
    if has_messages:
        return Match(f"{files[0].name} has {_MESSAGES}")
    return Match(f"{files[0].name} has no {_MESSAGES}", 1, related=False)


def _parquet_has_messages(path: Path) -> bool:
    """Return whether a column may hold messages. A table may have numbers of messages, or lists of texts."""
    schema = pq.read_schema(path)
    if _MESSAGES not in schema.names:
        return False
    kind = schema.field(_MESSAGES).type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):  # JSON
        return True
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return listed and pa.types.is_struct(kind.value_type) and kind.value_type.get_field_index("role") >= 0


def _lines_have_messages(path: Path) -> bool:
    keys = first_keys(path)
    listed = _MESSAGES in keys or {_PROMPT, _COMPLETION} <= keys
    return listed and _LISTED.search(first_bytes(path)) is not None


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


class _Dataset(RolloutDataset):
    def records(self) -> Iterator[Record]:
        for path in self.files:
            if _is_parquet(path):
                yield from parquet_records(path, self.base, self._of_row)
            else:
                yield from json_lines([path], self.base, self._of_line)

    def _of_row(self, row: Mapping[str, Any], place: str, key: str) -> Record:
        # A column has the keys of all its messages.
        return self._record(without_nulls(row), place, key)

    def _of_line(self, content: Any, place: str, key: str) -> list[Record]:
        if isinstance(content, list):
            content = {_MESSAGES: content}
        return [self._record(object_of(content, place), place, key)]

    def _record(self, content: Mapping[str, Any], place: str, key: str) -> Record:
        return Record(place, text_or_none(content.get("id")) or key, partial(_arguments, content, place))


FORMAT = Format(
    "messages",
    None,
    f"JSON lines or Parquet with {_MESSAGES} in OpenAI's form",
    _detect,
    lambda source, options: _Dataset(source, _files(source), f"file of {' or '.join(_SUFFIXES)}"),
    (),
)


def parquet_records(
    path: Path, base: Path, record_of: Callable[[dict[str, Any], str, str], Record]
) -> Iterator[Record]:
    """Yield the records of the rows of a Parquet file; where it cannot be read on, a damaged one.

    Args:
        base: the folder by which files are named in keys.
        record_of: takes a row, its place for messages and its key, the file with the number of the row.
    """
    name = path.relative_to(base).as_posix()
    try:
        for number, row in enumerate(_rows(path)):
            yield record_of(row, f"{path}, row {number}", f"{name}:{number}")
    except DatasetError as error:
        yield Record.damaged(str(path), name, error)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with reading(path, "is no whole Parquet file"), pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            check_groups(f"{path}, row group {group}", file.metadata, [group])
            for batch in file.iter_batches(_BATCH, row_groups=[group]):
                yield from batch.to_pylist()


def _arguments(content: Mapping[str, Any], place: str) -> Arguments:
    messages, sampled = _conversation(content, place)
    if not messages:
        return None
    rest = {name: value for name, value in content.items() if name not in (_MESSAGES, _PROMPT, _COMPLETION)}
    facts: dict[str, Any] = {}
    for name in (*_TEXT_FACTS, *_NUMBER_FACTS):
        fact = _as_text(rest.get(name)) if name in _TEXT_FACTS else _as_number(rest.get(name))
        if fact is not None:
            facts[name] = fact
            del rest[name]
    named = mapping_at(rest, "rewards", place)
    weights = mapping_at(rest, "weights", place)
    reward = rest.get("reward")
    if not named or is_sum(reward, named, weights):
        rest.pop("reward", None)
    numbers = {"advantages": rest.pop("advantage")} if is_number(rest.get("advantage")) else {}
    for name in ("rewards", "weights"):
        rest.pop(name, None)
    truncated = rest.get("truncated")
    if isinstance(truncated, bool):
        del rest["truncated"]
    plain, others = split_plain(rest)
    # Names that a line has itself, and those with a meaning, are no metadata.
    taken = [name for name in plain if name in _OF_LINE or is_reserved(name)]
    others |= {name: plain.pop(name) for name in taken}
    return {
        "messages": messages,
        "sampled": sampled,
        "numbers": numbers,
        "rewards": named or reward,
        "weights": weights or None,
        "facts": facts,
        "truncated": truncated is True,
        "metadata": {**plain, **({_RECORD: kept_json(others, place)} if others else {})},
    }


def _conversation(content: Mapping[str, Any], place: str) -> tuple[list[Any], list[bool] | None]:
    """Return the messages, and which of them were sampled; None for those of the assistant."""
    if content.get(_MESSAGES) is not None:
        return _messages(content, _MESSAGES, place), None
    prompt, completion = (_messages(content, name, place) for name in (_PROMPT, _COMPLETION))
    answers = [isinstance(each, Mapping) and each.get("role") == "assistant" for each in completion]
    return [*prompt, *completion], [*[False] * len(prompt), *answers]


def _messages(content: Mapping[str, Any], name: str, place: str) -> list[Any]:
    given = content.get(name)
    if isinstance(given, str):  # as a column of Parquet
        try:
            content = {name: json.loads(given)}
        except (ValueError, RecursionError) as error:
            raise DatasetError(f"{place}: {name} is a text that is no JSON: {error!s:.200}.") from error
    return list_at(content, name, place)


def without_nulls(value: Any) -> Any:
    """Return a value without keys that are null at any depth, but for the content of messages."""
    if isinstance(value, Mapping):
        return {
            name: without_nulls(part)
            for name, part in value.items()
            if part is not None or (name == "content" and "role" in value)
        }
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def _as_text(value: Any) -> str | None:
    """Return a text or whole number, such as the number of a prompt, as the text of a fact; else None."""
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def _as_number(value: Any) -> int | None:
    """Return a whole number, or a text with one, as a fact; else None."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value, re.ASCII):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


@export_format(
    "messages",
    holds=holds(*TOKEN_COLUMNS),
    layout=Option.choice(
        "a line for each of conversations, the default, or of pairs, the best and the worst of a group",
        "conversations",
        "pairs",
    ),
)
def write_messages(export: Export, target: Path) -> None:
    """Write a line for each branch of a rollout, or for each group."""
    lines = _pairs(export) if export.options["layout"] == "pairs" else _lines(export)
    write_json_lines(target, lines)


def _lines(export: Export) -> Iterator[dict[str, Any]]:
    for rollout, metadata in rollouts_of(export):
        record = taken_json(metadata, _RECORD)
        facts = {**metadata, **record}
        for name in sorted(_OF_LINE.intersection(facts)):
            export.losses.add(f"the metadata {name}, a name that the line itself has")
            del facts[name]
        if rollout.reward or "rewards" in facts:
            facts["reward"] = rollout.reward
        if rollout.episode.truncated:
            facts["truncated"] = True
        branches = rollout.branches
        shared = sum(len(each.numbers) for each in branches) - len(rollout.messages)
        export.losses.add("a message that branches share, which each of them repeats", shared)
        inferred = [message["role"] == "assistant" for message in rollout.messages]
        differing = sum(one != two for one, two in zip(inferred, rollout.sampled, strict=True))
        export.losses.add("whether the model sampled a message, which follows from its role", differing)
        for number, branch in enumerate(branches):
            own = facts
            if len(branches) > 1:
                own = {**facts, "branch": number}
                if "id" in facts:
                    own["id"] = f"{facts['id']}.{number}"
            yield {_MESSAGES: branch.messages, **own}


@dataclass
class _Group:
    """The best and the worst rollout of a group so far: rewards and messages, the first of equal ones."""

    best: tuple[float, list[dict[str, Any]]]
    worst: tuple[float, list[dict[str, Any]]]
    count: int = 1

    def add(self, reward: float, messages: list[dict[str, Any]]) -> None:
        """Add a rollout."""
        self.count += 1
        if reward > self.best[0]:
            self.best = reward, messages
        if reward < self.worst[0]:
            self.worst = reward, messages


def _pairs(export: Export) -> Iterator[dict[str, Any]]:
    """Yield a line for each group whose rewards differ, in the order of their first rollouts."""
    groups: dict[str, _Group] = {}
    losses = export.losses
    for rollout, metadata in rollouts_of(export):
        name, reward = metadata.get("group"), rollout.reward
        if name is None:
            losses.add("a rollout without a group")
            continue
        branches = rollout.branches
        losses.add("a further branch of a rollout", len(branches) - 1)
        messages = branches[0].messages
        if name in groups:
            groups[name].add(reward, messages)
        else:
            groups[name] = _Group((reward, messages), (reward, messages))
    for name, group in groups.items():
        if group.best[0] == group.worst[0]:
            losses.add("a rollout of a group whose rewards are equal", group.count)
            continue
        losses.add("a rollout that is neither the best nor the worst of its group", group.count - 2)
        (high, chosen), (low, rejected) = group.best, group.worst
        if chosen == rejected:
            losses.add("a rollout of a group whose best and worst say the same", 2)
            continue
        # An answer is never empty, also where one rollout goes on after the other's end.
        ends = zip(chosen[:-1], rejected[:-1], strict=False)
        shared = sum(takewhile(bool, (one == two for one, two in ends)))
        yield {
            "prompt": chosen[:shared],
            "chosen": chosen[shared:],
            "rejected": rejected[shared:],
            "group": name,
            "score_chosen": high,
            "score_rejected": low,
        }
