"""Traces of verifiers v1 (schema version 1): JSON lines, each a `Trace` or an `Episode` with traces.

A trace is a rollout, and its node k is message k: `parent`, `sampled`, `timestamp`, the ids that it adds,
their mask, and a number for each id that is masked in. Facts without a place of their own, such as the task,
the agent, tools and model calls, are JSON in the metadata `verifiers`, and those of an `Episode` in
`verifiers_episode`; an export takes both from there. See `Trace` and `MessageNode` in
https://github.com/PrimeIntellect-ai/verifiers, verifiers/v1/trace.py and graph.py.

As in `Trace.is_truncated`, a rollout is truncated by a limit of turns or tokens, or if its last answer ended
by its length. `to_record` rounds log-probabilities to four decimals by default.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from ...errors import DatasetError
from ...plugin import Export, Format, Losses, Match, export_format
from ...writers.importing.json_values import first_keys
from ..rollout import Rollout
from .records import (
    Arguments,
    Record,
    RolloutDataset,
    detected,
    exported_facts,
    files_of,
    json_lines,
    kept_json,
    list_at,
    mapping_at,
    numbers_of,
    object_of,
    text_or_none,
)
from .writing import holds, rollouts_of, taken_json, without, write_json_lines

VERSION = 1
PATTERN = "traces*.jsonl"
#: Metadata with JSON.
TRACE, EPISODE = "verifiers", "verifiers_episode"
#: Key of `info` under which an export has the facts and metadata that a trace has no other place for.
ROLLOUT = "rollout"
#: Streams of a node with a number for each sampled token.
STREAMS = ("logprobs", "reference_logprobs", "advantages", "loss_weights")
_LIMITS = frozenset(
    {"max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "compaction_failed"}
)
#: Of a node, beside `STREAMS`, what has a place of its own; its reader computes `num_*` again.
_OF_NODE = frozenset({"parent", "message", "sampled", "timestamp", "token_ids", "mask"})
_LOST_STREAMS = ("is_content", "trainer_logprobs", "entropies")
_OF_TRACE = frozenset({"id", "nodes", "rewards", "metrics", "stop_condition", "timing"})
_COMPUTED = "num_"


def _files(source: Any) -> list[Path]:
    return files_of(source, f"**/{PATTERN}")


def _lacking(names: Collection[str]) -> list[str]:
    has = ("task" in names, "nodes" in names or "traces" in names)
    return [name for name, there in zip(("task", "nodes or traces"), has, strict=True) if not there]


def _detect(source: Any) -> Match:
    return detected(_files(source), PATTERN, first_keys, _lacking, "traces of verifiers")


class _Dataset(RolloutDataset):
    def records(self) -> Iterator[Record]:
        return json_lines(self.files, self.base, self._of_line)

    def _of_line(self, content: Any, place: str, key: str) -> Iterator[Record]:
        object_of(content, place)
        if "traces" not in content:
            yield self._record(content, {}, place, key)
            return
        facts = _episode_facts(content, place)
        traces = list_at(content, "traces", place)
        self.losses.add("an episode without traces", int(not traces))
        for number, trace in enumerate(traces):
            yield self._record(trace, facts, f"{place}, trace {number}", f"{key}.{number}")

    def _record(self, trace: Any, facts: Mapping[str, Any], place: str, key: str) -> Record:
        own = trace.get("id") if isinstance(trace, Mapping) else None
        key = own if isinstance(own, str) and own else key
        return Record(place, key, partial(trace_arguments, trace, facts, place, self.losses))


FORMAT = Format(
    "verifiers",
    None,
    f"JSON lines with traces or episodes of verifiers v1, or a folder with {PATTERN}",
    _detect,
    lambda source, options: _Dataset(source, _files(source), PATTERN),
    (),
)


def _episode_facts(episode: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the group, policy versions and metadata of all traces of an episode."""
    run = mapping_at(episode, "run", place)
    policy = mapping_at(mapping_at(run, "work", place), "policy", place)
    group = mapping_at(episode, "group", place).get("id")
    environment = mapping_at(episode, "env", place)
    metadata = {
        "episode": text_or_none(episode.get("id")),
        "env": text_or_none(environment.get("name") or environment.get("id")),
        "policy_version_end": policy.get("end"),
        EPISODE: kept_json(_rest(episode, {"traces"}), place),
    }
    return {
        "facts": {"group": text_or_none(group), "policy_version": policy.get("start")},
        "metadata": {name: value for name, value in metadata.items() if value is not None},
    }


def trace_arguments(content: Any, episode: Mapping[str, Any], place: str, losses: Losses) -> Arguments:
    """Return a trace as arguments of `rollout_steps`; None if it has no node.

    Args:
        episode: `facts` and `metadata` of its episode.
        losses: counts what has no place.
    """
    trace = object_of(content, place)
    version = trace.get("version", VERSION)
    if version != VERSION:
        raise DatasetError(f"{place} has version {version!r:.100} of traces; known is {VERSION}.")
    nodes = [object_of(node, f"{place}, node {at}") for at, node in enumerate(list_at(trace, "nodes", place))]
    if not nodes:
        return None
    rest = _rest(trace, _OF_TRACE)
    kept_nodes = {str(at): kept for at, node in enumerate(nodes) if (kept := _node_rest(node, losses))}
    if kept_nodes:
        rest["nodes"] = kept_nodes
    exported = _exported(rest, place)
    calls = [object_of(call, f"{place}, a call") for call in list_at(trace, "calls", place)]
    stop = text_or_none(trace.get("stop_condition"))
    tokens = _tokens(nodes, place)
    return {
        "messages": [from_verifiers(node.get("message")) for node in nodes],
        "parents": [_parent(node, at, place) for at, node in enumerate(nodes)],
        "sampled": [node.get("sampled") is True for node in nodes],
        "times": [node.get("timestamp") for node in nodes],
        **tokens,
        "numbers": {**tokens.get("numbers", {}), **exported["numbers"]},
        **_rewards(trace, rest, place),
        "facts": {
            "task": _task(trace, place),
            "stop_reason": stop,
            "error": _error(list_at(trace, "errors", place)),
            **episode.get("facts", {}),
            **exported["facts"],
        },
        "truncated": stop in _LIMITS or _ended_by_length(calls),
        "metadata": {
            **_metadata(trace, calls, rest, place),
            **episode.get("metadata", {}),
            **exported["metadata"],
            TRACE: kept_json(rest, place),
        },
    }


def _exported(rest: dict[str, Any], place: str) -> dict[str, dict[str, Any]]:
    """Take what our export has written of the rollout; nothing if the trace is none of ours."""
    info = mapping_at(rest, "info", place)
    given = dict(mapping_at(info, ROLLOUT, place))
    exported = exported_facts(given)
    if ROLLOUT in info:
        rest["info"] = {**info, ROLLOUT: given}
        if not given:  # nothing of another writer is left
            del rest["info"][ROLLOUT]
    return exported


def _rest(values: Mapping[str, Any], known: Any) -> dict[str, Any]:
    """Return what has no place of its own and is neither empty nor computed."""
    return {
        name: value
        for name, value in values.items()
        if name not in known and not name.startswith(_COMPUTED) and value not in (None, [], {})
    }


def _node_rest(node: Mapping[str, Any], losses: Losses) -> dict[str, Any]:
    rest = _rest(node, {*_OF_NODE, *STREAMS, *_LOST_STREAMS})
    for name in _LOST_STREAMS:
        losses.add(f"{name} of tokens", _length(node.get(name)))
    streams = node.get("loss_weights")
    if isinstance(streams, Mapping):
        losses.add("loss_weights of tokens", sum(map(_length, streams.values())))
    return rest


def _length(values: Any) -> int:
    """Return how many values there are; 1 for anything else than a list."""
    return len(values) if isinstance(values, list) else int(values is not None)


def _parent(node: Mapping[str, Any], at: int, place: str) -> int:
    parent = node.get("parent")
    if parent is None:
        return -1
    if isinstance(parent, bool) or not isinstance(parent, int) or not 0 <= parent < at:
        raise DatasetError(
            f"{place}, node {at}: parent is {parent!r:.100}; expected the number of an earlier node, or null."
        )
    return parent


def _tokens(nodes: list[Mapping[str, Any]], place: str) -> dict[str, Any]:
    """Return ids, masks and numbers by message; nothing if no node has ids."""
    places = [f"{place}, node {at}" for at in range(len(nodes))]

    def column(name: str, code: Literal["q", "d", "B"]) -> list[Any]:
        values = [None if isinstance(node.get(name), Mapping) else node.get(name) for node in nodes]
        return [
            numbers_of(each, code, f"{where}: {name}") for each, where in zip(values, places, strict=True)
        ]

    tokens, mask = column("token_ids", "q"), column("mask", "B")
    for at, (ids, own) in enumerate(zip(tokens, mask, strict=True)):
        if own is not None and (ids is None or len(own) != len(ids)):
            count = 0 if ids is None else len(ids)
            raise DatasetError(f"{places[at]}: mask has {len(own)} values, and there are {count} token ids.")
        if ids is not None and own is None:
            raise DatasetError(f"{places[at]} has {len(ids)} token ids and no mask.")
    numbers = {name: column(name, "d") for name in STREAMS}
    given = {name: lists for name, lists in numbers.items() if any(each is not None for each in lists)}
    if all(each is None for each in tokens):
        return {"numbers": given} if given else {}
    return {"tokens": tokens, "mask": mask, "numbers": given}


def _rewards(trace: Mapping[str, Any], rest: dict[str, Any], place: str) -> dict[str, Any]:
    """Return scores and weights by name; those that were not computed join the rest."""
    scores, weights, unscored = {}, {}, {}
    for name, reward in mapping_at(trace, "rewards", place).items():
        if reward is None:
            unscored[name] = None
            continue
        content = object_of(reward, f"{place}: the reward {name!r:.100}")
        scores[name] = content.get("score")
        if content.get("weight", 1.0) != 1.0:
            weights[name] = content["weight"]
    if unscored:
        rest["rewards"] = unscored
    return {"rewards": scores or None, "weights": weights or None}


def _task(trace: Mapping[str, Any], place: str) -> str | None:
    task = mapping_at(trace, "task", place)
    return next((text for name in ("key", "hash", "type") if (text := text_or_none(task.get(name)))), None)


def _error(errors: list[Any]) -> str | None:
    if not errors:
        return None
    last = errors[-1] if isinstance(errors[-1], Mapping) else {}
    return f"{last.get('type', 'Error')}: {last.get('message', '')}"


def _ended_by_length(calls: list[Mapping[str, Any]]) -> bool:
    last = next((call for call in reversed(calls) if call.get("error") is None), None)
    return last is not None and last.get("finish_reason") == "length"


def _metadata(
    trace: Mapping[str, Any], calls: list[Mapping[str, Any]], rest: dict[str, Any], place: str
) -> dict[str, Any]:
    """Return what queries ask for: names, metrics, timing, usage."""
    agent = mapping_at(trace, "agent", place)
    metrics = mapping_at(trace, "metrics", place)
    usage: dict[str, float] = {}
    for call in calls:
        for name, value in mapping_at(call, "usage", place).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                usage[name] = usage.get(name, 0) + value
    missing = {name: None for name, value in metrics.items() if value is None}
    if missing:
        rest["metrics"] = missing
    model = next((call["model"] for call in calls if call.get("model")), None)
    facts = {
        "trace": text_or_none(trace.get("id")),
        "agent": text_or_none(agent.get("name")),
        "model": text_or_none(model or mapping_at(agent, "config", place).get("model")),
        "metrics": {name: value for name, value in metrics.items() if value is not None},
        "timing": mapping_at(trace, "timing", place),
        "usage": usage,
    }
    return {name: value for name, value in facts.items() if value}


def from_verifiers(message: Any) -> Any:
    """Return a message of a node in OpenAI's form: without nulls, and with `function` in tool calls."""
    if not isinstance(message, Mapping):
        return message
    made = {name: value for name, value in message.items() if value is not None or name == "content"}
    calls = made.get("tool_calls")
    if isinstance(calls, list):
        made["tool_calls"] = list(map(_call_from_verifiers, calls))
    return made


def _call_from_verifiers(call: Any) -> Any:
    if not isinstance(call, Mapping):
        return call
    given = {name: value for name, value in call.items() if value is not None}
    if {*given} - {"type"} != {"id", "name", "arguments"} or given.get("type", "function") != "function":
        return given
    function = {"name": given["name"], "arguments": given["arguments"]}
    return {"id": given["id"], "type": "function", "function": function}


_ROLES = frozenset({"system", "user", "assistant", "tool"})
#: Metadata that an export has other places for; what is not among them goes to `info`.
_PLACED = frozenset({"trace", "metrics", "timing", "task", "stop_reason", "error", "rewards", "weights"})
#: Those that follow from the rest of a trace or its episode, as `usage` does from calls.
_DERIVED = frozenset({"agent", "model"})
_OF_EPISODE = frozenset({"episode", "env", "policy_version", "policy_version_end", "group"})


@export_format("verifiers", holds=holds("loss_weights", "token_rewards"))
def write_verifiers(export: Export, target: Path) -> None:
    """Write a line for each trace; one for the traces of an episode that are neighbours."""
    write_json_lines(target, _lines(export))


def _lines(export: Export) -> Iterator[dict[str, Any]]:
    pairs = rollouts_of(export)
    for _, neighbours in groupby(pairs, _episode_of):
        facts: dict[str, Any] = {}
        traces = []
        for rollout, metadata in neighbours:
            group = metadata.get("group")
            facts = taken_json(metadata, EPISODE) or facts
            if facts:
                metadata = without(metadata, _OF_EPISODE)
            trace = _trace(rollout, metadata, export.losses)
            if not facts and group is not None:
                facts = {"id": rollout.id, "task": trace["task"], "group": {"id": group}, "ok": trace["ok"]}
                trace["info"][ROLLOUT].pop("group")
            traces.append(trace)
        if facts:
            yield {**facts, "traces": traces}
        else:
            yield from traces


def _episode_of(pair: tuple[Rollout, Mapping[str, Any]]) -> str:
    """Return the name of the episode that a trace came in with; for others that of the rollout."""
    rollout, metadata = pair
    return (metadata.get("episode") if EPISODE in metadata else None) or rollout.id


def _trace(rollout: Rollout, metadata: dict[str, Any], losses: Losses) -> dict[str, Any]:
    """Return the record of a rollout; where it was none of verifiers, with the least that a reader needs."""
    rest = taken_json(metadata, TRACE)
    kept_nodes = rest.pop("nodes", {})
    error, name = metadata.get("error"), metadata.get("task")
    is_made = not rest
    if is_made:
        rest = {
            "version": VERSION,
            "task": {"type": name or "task", "data": {}, **({"key": name} if name else {})},
            "agent": {"config": {"model": metadata.get("model")}, "name": metadata.get("agent", "agent")},
            "is_completed": True,
            "ok": error is None,
            "errors": [] if error is None else [{"type": "Error", "message": str(error)}],
        }
    scores, weights = metadata.get("rewards"), metadata.get("weights", {})
    if scores is None:
        scores = {"reward": rollout.reward} if rollout.reward else {}
    shown = metadata.get("stop_reason") in _LIMITS or _ended_by_length(rest.get("calls", []))
    losses.add("that a rollout was truncated", int(rollout.episode.truncated and not shown))
    derived = {*_DERIVED, "usage"} if rest.get("calls") else _DERIVED
    further = without(metadata, {*_PLACED, *derived})
    if is_made:
        # The type of a task must be a text; this says whether the rollout has a task.
        further["task"] = name
    return {
        **rest,
        "id": metadata.get("trace", rollout.id),
        "nodes": [{**node, **kept_nodes.get(str(at), {})} for at, node in enumerate(_nodes(rollout, losses))],
        "rewards": {
            **{name: {"score": score, "weight": weights.get(name, 1.0)} for name, score in scores.items()},
            **rest.get("rewards", {}),
        },
        "metrics": {**metadata.get("metrics", {}), **rest.get("metrics", {})},
        "info": _info(rest.get("info", {}), further),
        "stop_condition": metadata.get("stop_reason"),
        "timing": metadata.get("timing", {}),
    }


def _info(kept: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """Return `info` with what a trace has no other place for."""
    own = {**kept.get(ROLLOUT, {}), **further}
    return {**kept, **({ROLLOUT: own} if own else {})}


def _nodes(rollout: Rollout, losses: Losses) -> Iterator[dict[str, Any]]:
    rows = zip(rollout.messages, rollout.parents, rollout.sampled, rollout.times, rollout.tokens, strict=True)
    for message, parent, sampled, time, tokens in rows:
        node: dict[str, Any] = {
            "parent": None if parent < 0 else parent,
            "message": to_verifiers(message, losses),
            "sampled": sampled,
        }
        if time is not None:
            node["timestamp"] = time
        if tokens is not None:
            node |= {"token_ids": tokens.tokens.tolist(), "mask": tokens.mask.tolist()}
            node |= {name: tokens.numbers[name].tolist() for name in STREAMS[:-1] if name in tokens.numbers}
        yield node


def to_verifiers(message: Mapping[str, Any], losses: Losses) -> dict[str, Any]:
    """Return a message as a node has it; unknown roles become those of the user."""
    made = dict(message)
    role = made["role"]
    if role == "developer":
        losses.add("the role developer, which becomes system")
        made["role"] = "system"
    elif role not in _ROLES:
        losses.add(f"the role {role:.100}, which becomes user")
        made["role"] = "user"
    content = made.get("content")
    if made["role"] == "assistant" and isinstance(content, list):
        losses.add("parts of an answer, which become one text")
        made["content"] = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    elif made["role"] != "assistant" and content is None:
        made["content"] = ""
    if isinstance(made.get("tool_calls"), list):
        made["tool_calls"] = [_call_to_verifiers(call) for call in made["tool_calls"]]
    return made


def _call_to_verifiers(call: Any) -> Any:
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        return call
    others = {name: value for name, value in call.items() if name != "function"}
    return {**others, **call["function"]}
