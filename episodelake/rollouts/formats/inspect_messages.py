"""A sample of a log of Inspect as a rollout: messages in OpenAI's form, scores as rewards, facts.

Values of scores become numbers as in Inspect's `value_to_float`: "C", "P", "I" and "N" are 1, 0.5, 0 and 0.
The reward is the value of the first scorer, or of the one that the log names as its headline; the other
scores have the weight 0. Of events only the times of answers are kept; what else has no place of its own is
JSON in the metadata `inspect` and `inspect_eval`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import DatasetError
from ...plugin import Losses, check_bytes
from .records import (
    Arguments,
    is_number,
    kept_json,
    list_at,
    mapping_at,
    object_of,
    seconds_of,
    split_plain,
    text_or_none,
)

#: Metadata with JSON: of the sample, and of the log.
SAMPLE, LOG = "inspect", "inspect_eval"
_ATTACHMENT = "attachment://"
#: Of a sample, what has a place of its own, follows from the rest, or is counted.
_OF_SAMPLE = frozenset(
    {"id", "epoch", "messages", "events", "events_data", "attachments", "timelines", "metadata", "uuid"}
    | {"total_time", "working_time", "started_at", "completed_at"}
)
_OF_CALL = frozenset({"id", "function", "arguments", "type"})
_GRADES = {"c": 1.0, "p": 0.5, "i": 0.0, "n": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_USAGE = {
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "total_tokens": "total_tokens",
    "input_tokens_cache_read": "cached_tokens",
    "reasoning_tokens": "reasoning_tokens",
    "total_cost": "cost_usd",
}
#: Reasons of the last answer by which the rollout is truncated.
_LENGTHS = frozenset({"max_tokens", "model_length", "length"})


@dataclass(frozen=True)
class LogFacts:
    """Facts of a log that each of its samples has.

    Attributes:
        eval_id: names the evaluation.
        task: its task.
        headline: scorer and score that count as the reward; None where the log names none.
        metadata: of each rollout.
    """

    eval_id: str
    task: str
    headline: tuple[str | None, str | None]
    metadata: Mapping[str, Any]

    @staticmethod
    def of(header: Mapping[str, Any], name: str, place: str) -> LogFacts:
        """Return those of a header.

        Args:
            name: of the evaluation where the header has no id.
        """
        spec = mapping_at(header, "eval", place)
        results = mapping_at(header, "results", place)
        headline = mapping_at(results, "headline", place)
        dataset = {k: v for k, v in mapping_at(spec, "dataset", place).items() if k != "sample_ids"}
        kept = {"eval": {**spec, "dataset": dataset}, "plan": header.get("plan"), "tags": header.get("tags")}
        facts = {
            "eval_id": spec.get("eval_id"),
            "eval_task": spec.get("task"),
            "eval_created": spec.get("created"),
            "model": spec.get("model"),
            "eval_run": spec.get("run_id"),
            "eval_status": header.get("status"),
        }
        texts = {name: text for name, value in facts.items() if (text := text_or_none(value))}
        return LogFacts(
            texts.get("eval_id", name),
            texts.get("eval_task", name),
            (text_or_none(headline.get("scorer")), text_or_none(headline.get("score"))),
            {**texts, LOG: kept_json(kept, place)},
        )


def sample_arguments(content: Any, log: LogFacts, place: str, losses: Losses) -> Arguments:
    """Return a sample as arguments of `rollout_steps`; None if it has no messages.

    Args:
        losses: counts what has no place.
    """
    sample = object_of(content, place)
    given = [object_of(each, f"{place}: a message") for each in list_at(sample, "messages", place)]
    if not given:
        return None
    name = text_or_none(sample.get("id"))
    if name is None:
        raise DatasetError(f"{place}: id is {sample.get('id')!r:.100}; expected a text or a number.")
    epoch = sample.get("epoch")
    if isinstance(epoch, bool) or not isinstance(epoch, int):
        raise DatasetError(f"{place}: epoch is {epoch!r:.100}; expected a whole number.")
    resolve = _Attachments(mapping_at(sample, "attachments", place), place, losses).resolved
    times = _times(sample, place, losses)
    output = mapping_at(sample, "output", place)
    limit = mapping_at(sample, "limit", place)
    choice = _first(list_at(output, "choices", place))
    stop = text_or_none(limit.get("type")) or text_or_none(choice.get("stop_reason"))
    rest = _rest(sample, given, output, losses)
    own, lists = split_plain(mapping_at(sample, "metadata", place))
    if lists:
        rest["metadata"] = lists
    return {
        "messages": [from_inspect(resolve(message)) for message in given],
        "sampled": [_is_sampled(message) for message in given],
        "times": [times.get(str(message.get("id"))) for message in given],
        **_rewards(sample, log, place),
        "facts": {
            "group": f"{log.eval_id}/{name}",
            "sample": epoch,
            "task": f"{log.task}/{name}",
            "stop_reason": stop,
            "error": text_or_none(mapping_at(sample, "error", place).get("message")),
        },
        "truncated": bool(limit) or stop in _LENGTHS,
        "metadata": {
            **log.metadata,
            "sample_id": name,
            **_metadata(sample, place),
            **({"sample_metadata": own} if own else {}),
            SAMPLE: kept_json(resolve(rest), place),
        },
    }


def _rest(
    sample: Mapping[str, Any], messages: list[Any], output: Mapping[str, Any], losses: Losses
) -> dict[str, Any]:
    """Return what has no place of its own: without copies of messages, and without events, which count."""
    rest = {
        key: value for key, value in sample.items() if key not in _OF_SAMPLE and value not in (None, [], {})
    }
    if isinstance(sample.get("target"), str):
        rest.pop("target", None)
    given = rest.get("input")
    if given in [message.get("content") for message in messages] or (
        isinstance(given, list) and all(each in messages for each in given)
    ):
        del rest["input"]
    if output:
        rest["output"] = {key: value for key, value in output.items() if key != "completion"}
    if output.get("choices"):
        rest["output"]["choices"] = [
            {key: value for key, value in each.items() if value not in messages}
            if isinstance(each, Mapping)
            else each
            for each in output["choices"]
        ]
    retries = rest.get("error_retries")
    if isinstance(retries, list):
        rest["error_retries"] = [_without_events(each, losses) for each in retries]
    return rest


def _is_sampled(message: Mapping[str, Any]) -> bool:
    """Return whether the model sampled a message: answers of the input and of an operator were given."""
    return message.get("role") == "assistant" and message.get("source") in (None, "generate")


def _first(values: list[Any]) -> Mapping[str, Any]:
    return values[0] if values and isinstance(values[0], Mapping) else {}


def _without_events(retry: Any, losses: Losses) -> Any:
    if not isinstance(retry, Mapping) or "events" not in retry:
        return retry
    _count_events(retry["events"], losses)
    return {key: value for key, value in retry.items() if key != "events"}


def _count_events(events: Any, losses: Losses) -> None:
    losses.add("an event of a transcript", len(events) if isinstance(events, list) else 1)


def _times(sample: Mapping[str, Any], place: str, losses: Losses) -> dict[Any, float]:
    """Return when each answer was finished, by the id of its message; counts the events as lost."""
    times: dict[Any, float] = {}
    events = list_at(sample, "events", place)
    _count_events(events, losses)
    losses.add("a timeline", len(list_at(sample, "timelines", place)))
    for event in events:
        if not isinstance(event, Mapping) or event.get("event") != "model":
            continue
        choice = _first(list_at(mapping_at(event, "output", place), "choices", place))
        name = mapping_at(choice, "message", place).get("id")
        moment = event.get("completed") or event.get("timestamp")
        if isinstance(name, str) and moment is not None:
            seconds = seconds_of(moment, f"{place}: an event")
            if seconds is not None:
                times[name] = seconds
    return times


def _metadata(sample: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return what queries ask for: times and usage."""
    usage: dict[str, float] = {}
    for each in mapping_at(sample, "model_usage", place).values():
        for theirs, ours in _USAGE.items():
            value = object_of(each, f"{place}: model_usage").get(theirs)
            if is_number(value):
                usage[ours] = usage.get(ours, 0) + value
    timing = {name: value for name in ("total_time", "working_time") if is_number(value := sample.get(name))}
    for name, key in (("start", "started_at"), ("end", "completed_at")):
        if (moment := seconds_of(sample.get(key), f"{place}: {key}")) is not None:
            timing[name] = moment
    texts = {name: text_or_none(sample.get(name)) for name in ("target", "uuid")}
    facts = {"usage": usage, "timing": timing, **texts}
    return {name: value for name, value in facts.items() if value}


def _rewards(sample: Mapping[str, Any], log: LogFacts, place: str) -> dict[str, Any]:
    """Return scores that are numbers by name, and weights of 0 for those that are not the reward."""
    scores = mapping_at(sample, "scores", place)
    if not scores and sample.get("score") is not None:  # of early releases
        scores = {"score": sample["score"]}
    parts = [
        (scorer, *part)
        for scorer, score in scores.items()
        for part in _parts(scorer, object_of(score, f"{place}: the score {scorer!r:.100}").get("value"))
    ]
    if not parts:
        return {}
    scorer, part = log.headline
    counted = {name for own, key, name, _ in parts if own == scorer and part in (None, own, key)}
    counted = counted or {name for own, _, name, _ in parts if own == parts[0][0]}
    values = {name: value for _, _, name, value in parts}
    weights = {name: 0.0 for name in values if name not in counted}
    return {"rewards": values, "weights": weights or None}


def _parts(scorer: str, value: Any) -> Iterator[tuple[str, str, float]]:
    """Yield key, name and number of each part of a score that has one."""
    if isinstance(value, list | Mapping):
        parts = value.items() if isinstance(value, Mapping) else enumerate(value)
        named = [(str(key), f"{scorer}/{key}", part) for key, part in parts]
    else:
        named = [(scorer, scorer, value)]
    for key, name, part in named:
        number = _number(part)
        if number is not None:
            yield key, name, number


def _number(value: Any) -> float | None:
    """Return the value of a score as a number; None where it has none, as of a sample that was not scored."""
    if isinstance(value, str):
        value = _GRADES.get(value.lower(), value)
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


@dataclass
class _Attachments:
    """The attachments of a sample, which texts refer to.

    Attributes:
        added: the bytes that references have become.
    """

    contents: Mapping[str, Any]
    place: str
    losses: Losses
    added: int = 0

    def resolved(self, value: Any) -> Any:
        """Return a value with attachments in place of references, at any depth.

        Raises:
            DatasetError: it becomes too large, because many references share an attachment.
        """
        if isinstance(value, str):
            return self._text(value) if value.startswith(_ATTACHMENT) else value
        if isinstance(value, Mapping):
            return {name: self.resolved(part) for name, part in value.items()}
        return list(map(self.resolved, value)) if isinstance(value, list) else value

    def _text(self, reference: str) -> str:
        content = self.contents.get(reference.removeprefix(_ATTACHMENT))
        if not isinstance(content, str):
            self.losses.add("an attachment that the sample does not have")
            return reference
        self.added += len(content)
        check_bytes(f"{self.place} with its attachments", self.added)
        return content


def from_inspect(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message in OpenAI's form; keys of Inspect that it does not have stay as they are."""
    made = {name: value for name, value in message.items() if value is not None or name == "content"}
    if made.get("role") == "tool" and isinstance(made.get("function"), str) and "name" not in made:
        made["name"] = made.pop("function")
    calls = made.get("tool_calls")
    if isinstance(calls, list):
        made["tool_calls"] = [_call(call) if isinstance(call, Mapping) else call for call in calls]
    content = made.get("content")
    if isinstance(content, list):
        made |= _content(content)
    return made


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = call.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    others = {name: value for name, value in call.items() if name not in _OF_CALL and value is not None}
    function = {"name": call.get("function"), "arguments": text}
    return {"id": call.get("id"), "type": call.get("type", "function"), "function": function, **others}


def _content(parts: list[Any]) -> dict[str, Any]:
    """Return content and reasoning of a message in parts.

    The text of all reasoning is `reasoning_content`. A part of it stays beside the others where it is not the
    only one, or has more than its text. A single part that is nothing but text is a text.
    """
    thoughts = [each for each in parts if _is(each, "reasoning")]
    texts = [each["reasoning"] for each in thoughts if not each.get("redacted")]
    texts = [text for text in texts if isinstance(text, str)]
    facts = {key for each in thoughts for key, value in each.items() if value not in (None, False)}
    plain = len(thoughts) == 1 == len(texts) and facts == {"type", "reasoning"}
    left = [_part(each) for each in parts if not (plain and _is(each, "reasoning"))]
    content: Any = left
    if not left or (len(left) == 1 and _is(left[0], "text") and left[0].keys() == {"type", "text"}):
        content = left[0]["text"] if left else ""
    return {"content": content, **({"reasoning_content": "\n".join(texts)} if texts else {})}


def _is(part: Any, kind: str) -> bool:
    return isinstance(part, Mapping) and part.get("type") == kind and kind in part


def _part(part: Any) -> Any:
    """Return a part of content; an image as OpenAI has it."""
    if not isinstance(part, Mapping):
        return part
    made = {name: value for name, value in part.items() if value is not None}
    if not _is(made, "image"):
        return made
    image = {"url": made.pop("image")}
    if "detail" in made:
        image["detail"] = made.pop("detail")
    return {**made, "type": "image_url", "image_url": image}
