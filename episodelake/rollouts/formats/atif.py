"""ATIF, the Agent Trajectory Interchange Format of Harbor, versions 1.0 to 1.8: `trajectory.json` and trials.

A step is a message of the system, the user or the assistant, and each result of its observation is a message
of the role `tool` after it. A folder of Harbor has trials: `agent/trajectory.json` with `result.json`, and
`verifier/reward.json` or `reward.txt`, at any depth. The reward is the one named `reward` where there are
several. Whatever has no place of its own, of the trajectory and of its steps, is JSON in the metadata `atif`.
See rfcs/0001-trajectory-format.md in https://github.com/harbor-framework/harbor.

`prompt_token_ids` of a step has the whole history. Its ids after those of the steps before belong to the
messages in between; where it does not begin with them, the history was rewritten, and that step and those
after it have no tokens. A step with `is_copied_context`, or with `llm_call_count` 0, is not sampled.

`atif_export.py` writes the format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import DatasetError
from ...plugin import Format, Losses, Match
from ...plugin.files import is_file, is_folder
from ...writers.importing.json_values import first_keys, parsed
from .records import (
    Arguments,
    Record,
    RolloutDataset,
    bounded_text,
    exported_facts,
    files_of,
    is_sum,
    kept_json,
    list_at,
    mapping_at,
    numbers_of,
    object_of,
    seconds_of,
    text_or_none,
)

NAME = "trajectory.json"
#: In a folder of its own, a trial, a job with trials, or a folder of jobs.
_PATTERNS = (NAME, *(f"{outer}agent/{NAME}" for outer in ("", "*/", "*/*/")))
VERSIONS = tuple(f"ATIF-v1.{minor}" for minor in range(9))
#: Metadata with JSON.
KEPT = "atif"
#: In `extra` of a trajectory, what an export writes of the rollout.
ROLLOUT = "rollout"
ROLES = {"system": "system", "user": "user", "agent": "assistant"}
_OF_ROOT = frozenset({"steps", "subagent_trajectories"})
_OF_STEP = frozenset(
    {"step_id", "timestamp", "source", "message", "reasoning_content", "tool_calls", "observation", "metrics"}
)
#: Of what an export writes of a rollout, what is neither fact nor metadata.
_OWN = ("reward", "rewards", "weights", "truncated")
_OF_METRICS = frozenset({"prompt_token_ids", "completion_token_ids", "logprobs"})
_USAGE = {
    "prompt_tokens": "total_prompt_tokens",
    "completion_tokens": "total_completion_tokens",
    "cached_tokens": "total_cached_tokens",
    "cost_usd": "total_cost_usd",
}
_LOST_REWRITTEN = "tokens of a step whose prompt does not continue the steps before"


def _detect(source: Any) -> Match:
    files = files_of(source, *_PATTERNS)
    if not files:
        return Match(f"it has no {NAME}", 2, related=False)
    if {"schema_version", "agent", "steps"} <= first_keys(files[0]) or _states_atif(files[0]):
        return Match(f"{files[0].name} is a trajectory in ATIF")
    return Match(f"{files[0].name} has no schema_version of ATIF", 1, related=False)


def _states_atif(path: Path) -> bool:
    with path.open("rb") as file:
        return re.search(rb'"schema_version"\s*:\s*"ATIF-v', file.read(1 << 10)) is not None


class _Dataset(RolloutDataset):
    def __init__(self, source: Any) -> None:
        super().__init__(source, files_of(source, *_PATTERNS), NAME)
        self._in_folder = isinstance(source, str | Path) and is_folder(source)
        self.count = len(self.files)

    def records(self) -> Iterator[Record]:
        for path in self.files:
            key = path.relative_to(self.base).as_posix()
            # The other files of a trial belong to the source only if its folder does.
            inside = self._in_folder and path.parent.name == "agent" and path.parent != self.base
            yield Record(str(path), key, partial(_read, path, inside, self.losses))


FORMAT = Format(
    "atif",
    None,
    "a trajectory.json of ATIF v1.0 to v1.8, or a folder with such, as Harbor's trials are",
    _detect,
    lambda source, options: _Dataset(source),
    (),
)


def _read(path: Path, in_trial: bool, losses: Losses) -> Arguments:
    trajectory = object_of(parsed(bounded_text(path), str(path)), str(path))
    arguments = dict(trajectory_arguments(trajectory, str(path), losses))
    if in_trial and "facts" not in arguments:
        facts, metadata, rewards = _trial(path.parent.parent)
        arguments["facts"] = facts
        arguments["metadata"] = {**arguments["metadata"], **metadata}
        arguments["rewards"] = rewards or None
        if "reward" in rewards:
            arguments["weights"] = dict.fromkeys(sorted(rewards.keys() - {"reward"}), 0.0) or None
    return arguments


def _trial(folder: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the facts, metadata and rewards of a trial of Harbor."""
    place = folder / "result.json"
    result = _json(place) or {}
    failure = mapping_at(result, "exception_info", str(place))
    error = f"{failure.get('exception_type')}: {failure.get('exception_message')}" if failure else None
    rewards = mapping_at(mapping_at(result, "verifier_result", str(place)), "rewards", str(place))
    named = _json(folder / "verifier" / "reward.json")
    text = folder / "verifier" / "reward.txt"
    if not rewards and named is not None:
        rewards = named if isinstance(named, Mapping) else {"reward": named}
    elif not rewards and is_file(text):
        rewards = {"reward": _number(bounded_text(text), text)}
    names = ("id", "trial_name", "source", "started_at", "finished_at")
    metadata = {name: value for name in names if (value := text_or_none(result.get(name)))}
    if "id" in metadata:
        metadata["trial"] = metadata.pop("id")
    facts = {"task": text_or_none(result.get("task_name")), "error": error}
    return facts, metadata, dict(rewards)


def _json(path: Path) -> Any:
    return parsed(bounded_text(path), str(path)) if is_file(path) else None


def _number(text: bytes, path: Path) -> float:
    try:
        return float(text)
    except ValueError:
        raise DatasetError(f"{path} has {text[:100]!r}; expected a number.") from None


def trajectory_arguments(trajectory: Mapping[str, Any], place: str, losses: Losses) -> dict[str, Any]:
    """Return a trajectory as arguments of `rollout_steps`."""
    version = trajectory.get("schema_version")
    if version not in VERSIONS:
        raise DatasetError(
            f"{place} has schema_version {version!r:.100}; known are {VERSIONS[0]} to {VERSIONS[-1]}."
        )
    steps = list_at(trajectory, "steps", place)
    if not steps:
        raise DatasetError(f"{place} has no steps.")
    made = _Messages(place, losses)
    for number, step in enumerate(steps, 1):
        made.add(object_of(step, f"{place}, step {number}"), number)
    subagents = list_at(trajectory, "subagent_trajectories", place)
    losses.add("a trajectory of a subagent", len(subagents))
    rest = {name: value for name, value in trajectory.items() if name not in _OF_ROOT and value is not None}
    if made.kept:
        rest["steps"] = made.kept
    agent = mapping_at(trajectory, "agent", place)
    final = mapping_at(trajectory, "final_metrics", place)
    usage = {ours: final[theirs] for ours, theirs in _USAGE.items() if final.get(theirs) is not None}
    names = {"agent": agent.get("name"), "model": agent.get("model_name")}
    names |= {"session": trajectory.get("session_id"), "trajectory": trajectory.get("trajectory_id")}
    metadata = {name: text for name, value in names.items() if (text := text_or_none(value))}
    exported = _exported(rest, place)
    arguments = made.arguments()
    return {
        **arguments,
        **exported,
        "numbers": {**arguments.get("numbers", {}), **exported.get("numbers", {})},
        "metadata": {
            **metadata,
            **({"usage": usage} if usage else {}),
            **exported.get("metadata", {}),
            KEPT: kept_json(rest, place),
        },
    }


def _exported(rest: dict[str, Any], place: str) -> dict[str, Any]:
    """Take what our export has written of the rollout; nothing if this is none of ours."""
    extra = mapping_at(rest, "extra", place)
    if ROLLOUT not in extra:
        return {}
    given = dict(mapping_at(extra, ROLLOUT, place))
    rewards, weights = (mapping_at(given, name, place) for name in ("rewards", "weights"))
    own = {name: given.pop(name) for name in _OWN if name in given}
    exported = exported_facts(given)
    reward, truncated = own.get("reward"), own.get("truncated", False)
    if rewards and reward is not None and not is_sum(reward, rewards, weights):
        given["reward"] = reward
    if not isinstance(truncated, bool):
        given["truncated"] = truncated
    # Of another writer.
    kept = {**extra, ROLLOUT: given}
    rest["extra"] = {name: value for name, value in kept.items() if name != ROLLOUT or given}
    if not rest["extra"]:
        del rest["extra"]
    return {
        **exported,
        "rewards": rewards or reward,
        "weights": weights or None,
        "truncated": truncated is True,
    }


@dataclass
class _Messages:
    """Messages of a trajectory, step by step.

    Attributes:
        history: the token ids of all steps so far.
        rewritten: whether a prompt did not continue them.
        kept: what steps have beside messages and tokens, by the number of the message.
    """

    place: str
    losses: Losses
    messages: list[dict[str, Any]] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    times: list[float | None] = field(default_factory=list)
    tokens: list[list[int] | None] = field(default_factory=list)
    mask: list[list[bool] | None] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    history: list[int] = field(default_factory=list)
    rewritten: bool = False
    kept: dict[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Return them as arguments of `rollout_steps`."""
        made: dict[str, Any] = {"messages": self.messages, "sampled": self.sampled, "times": self.times}
        if any(each is not None for each in self.tokens):
            made |= {"tokens": self.tokens, "mask": self.mask, "numbers": {"logprobs": self.logprobs}}
        return made

    def add(self, step: Mapping[str, Any], number: int) -> None:
        """Add a step and the results of its observation."""
        place = f"{self.place}, step {number}"
        source = step.get("source")
        if step.get("step_id") != number:
            raise DatasetError(f"{place}: step_id is {step.get('step_id')!r:.100}; expected {number}.")
        if not isinstance(source, str) or source not in ROLES:
            raise DatasetError(f"{place}: source is {source!r:.100}; expected one of {', '.join(ROLES)}.")
        message: dict[str, Any] = {"role": ROLES[source], "content": step.get("message")}
        if step.get("reasoning_content") is not None:
            message["reasoning_content"] = step["reasoning_content"]
        if calls := list_at(step, "tool_calls", place):
            message["tool_calls"] = [self._call(object_of(call, place)) for call in calls]
        at = len(self.messages)
        drawn = source == "agent" and not step.get("is_copied_context") and step.get("llm_call_count") != 0
        self._append(message, drawn, seconds_of(step.get("timestamp"), place))
        metrics = {
            name: value for name, value in mapping_at(step, "metrics", place).items() if value is not None
        }
        # Before v1.3 a step had log-probabilities, but no ids that they could be of: they stay as they are.
        placed = _OF_METRICS if "completion_token_ids" in metrics else _OF_METRICS - {"logprobs"}
        self._tokens({name: metrics[name] for name in placed & {*metrics}}, at, place)
        rest = {name: value for name, value in step.items() if name not in _OF_STEP and value is not None}
        if numbers := {name: value for name, value in metrics.items() if name not in placed}:
            rest["metrics"] = numbers
        if rest:
            self.kept[str(at)] = rest
        observation = mapping_at(step, "observation", place)
        for result in list_at(observation, "results", place):
            self._result(object_of(result, f"{place}: a result"))

    def _append(self, message: dict[str, Any], sampled: bool, time: float | None) -> None:
        self.messages.append(message)
        self.sampled.append(sampled)
        self.times.append(time)
        for column in (self.tokens, self.mask, self.logprobs):
            column.append(None)

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        self.losses.add("extra of a tool call", int(bool(call.get("extra"))))
        arguments = json.dumps(call.get("arguments"), ensure_ascii=False)
        function = {"name": call.get("function_name"), "arguments": arguments}
        return {"id": call.get("tool_call_id"), "type": "function", "function": function}

    def _result(self, result: Mapping[str, Any]) -> None:
        references = result.get("subagent_trajectory_ref")
        self.losses.add("a reference to a trajectory of a subagent", len(references or ()))
        message = {"role": "tool", "content": result.get("content")}
        if result.get("source_call_id") is not None:
            message["tool_call_id"] = result["source_call_id"]
        if result.get("extra"):
            self.kept[str(len(self.messages))] = {"extra": result["extra"]}
        self._append(message, False, None)

    def _tokens(self, metrics: Mapping[str, Any], at: int, place: str) -> None:
        """Give message `at` its tokens, and those before it what its prompt adds to the history."""
        prompt = _ids(metrics, "prompt_token_ids", place)
        completion = _ids(metrics, "completion_token_ids", place)
        logprobs = numbers_of(metrics.get("logprobs"), "d", f"{place}: logprobs")
        if logprobs is not None and len(logprobs) != len(completion):
            raise DatasetError(
                f"{place}: logprobs has {len(logprobs)} values, and there are {len(completion)} token ids of "
                "the completion."
            )
        if not prompt and not completion:
            return
        known = len(self.history)
        if self.rewritten or (prompt and prompt[:known] != self.history):
            self.rewritten = True
            self.losses.add(_LOST_REWRITTEN)
            return
        added = prompt[known:]
        drawn = self.sampled[at]
        own, flags = completion, [drawn] * len(completion)
        if added and at and not self.sampled[at - 1]:
            self.tokens[at - 1], self.mask[at - 1] = added, [False] * len(added)
        elif added:
            own, flags = [*added, *completion], [*[False] * len(added), *flags]
        if own:
            self.tokens[at], self.mask[at] = own, flags
        if drawn and logprobs is not None:
            self.logprobs[at] = logprobs
        elif logprobs is not None:
            self.losses.add("log-probabilities of a step that is not sampled", len(logprobs))
        self.history = [*prompt, *completion] if prompt else [*self.history, *completion]


def _ids(metrics: Mapping[str, Any], name: str, place: str) -> list[int]:
    values = list_at(metrics, name, place)
    if not all(type(each) is int for each in values):
        raise DatasetError(f"{place}: {name} is no list of whole numbers.")
    return values
