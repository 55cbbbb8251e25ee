"""The export of rollouts to ATIF: a folder with a trial for each branch, as Harbor's have it.

`NUMBER/agent/trajectory.json` has the trajectory, `NUMBER/verifier/reward.json` the rewards. Facts of the
rollout are in `extra.rollout` of the trajectory, where an import finds them again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ...plugin import Export, Losses, export_format
from ..rollout import Branch, Rollout
from .atif import KEPT, NAME, ROLES, ROLLOUT, VERSIONS
from .writing import holds, json_bytes, rollouts_of, taken_json

_SOURCES = {**{role: source for source, role in ROLES.items()}, "developer": "system"}
_LOST = ("reference_logprobs", "advantages", "loss_weights", "token_rewards")
#: Metadata that follow from a key of the root.
_DERIVED = {"session": "session_id", "trajectory": "trajectory_id", "usage": "final_metrics"}


@export_format("atif", folder=True, holds=holds(*_LOST))
def write_atif(export: Export, target: Path) -> None:
    """Write a trial for each branch."""
    for number, (rollout, metadata) in enumerate(rollouts_of(export)):
        kept = taken_json(metadata, KEPT)
        branches = rollout.branches
        shared = sum(len(each.numbers) for each in branches) - len(rollout.messages)
        export.losses.add("a message that branches share, which each of them repeats", shared)
        for at, branch in enumerate(branches):
            name = f"{number:06d}" if len(branches) == 1 else f"{number:06d}.{at}"
            _write_trial(target / name, rollout, branch, metadata, kept, export.losses)


def _write_trial(
    folder: Path,
    rollout: Rollout,
    branch: Branch,
    metadata: Mapping[str, Any],
    kept: Mapping[str, Any],
    losses: Losses,
) -> None:
    steps = _Steps(rollout, kept.get("steps", {}), losses)
    for number in branch.numbers:
        steps.add(number)
    # As an import has kept it, in the same order.
    root = {name: value for name, value in kept.items() if name != "steps"}
    root.setdefault("schema_version", VERSIONS[-1])
    placed = {"agent", "model", *(name for name, key in _DERIVED.items() if key in root)}
    facts = {name: value for name, value in metadata.items() if name not in placed}
    if rollout.episode.truncated:
        facts["truncated"] = True
    if rollout.reward and "rewards" not in facts:
        facts["reward"] = rollout.reward
    if facts:
        extra = root.get("extra") or {}
        root["extra"] = {**extra, ROLLOUT: {**extra.get(ROLLOUT, {}), **facts}}
    agent = {"name": metadata.get("agent", "agent"), "version": "unknown"}
    if "model" in metadata:
        agent["model_name"] = metadata["model"]
    root.setdefault("agent", agent)
    _write(folder / "agent" / NAME, {**root, "steps": steps.finished()})
    if rollout.reward or "rewards" in facts:
        _write(folder / "verifier" / "reward.json", {**facts.get("rewards", {}), "reward": rollout.reward})


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(json_bytes(content))


@dataclass
class _Steps:
    """The steps of a branch.

    Attributes:
        kept: what an import has kept of steps, by the number of the message.
        history: the token ids so far.
        waiting: how many messages since the last sampled one have some of them.
    """

    rollout: Rollout
    kept: Mapping[str, Any]
    losses: Losses
    steps: list[dict[str, Any]] = field(default_factory=list)
    history: list[int] = field(default_factory=list)
    waiting: int = 0

    def finished(self) -> list[dict[str, Any]]:
        """Return the steps."""
        self.losses.add("tokens of messages after the last answer", self.waiting)
        return self.steps

    def add(self, number: int) -> None:
        """Add a message: a step, or a result of the last one."""
        message = self.rollout.messages[number]
        if message["role"] == "tool" and self.steps:
            self._result(number, message)
            self._tokens(number)
            return
        source = _SOURCES.get(message["role"], "user")
        if ROLES[source] != message["role"]:
            self.losses.add(f"the role {message['role']:.100}, which becomes {ROLES[source]}")
        step: dict[str, Any] = {
            "step_id": len(self.steps) + 1,
            "source": source,
            "message": self._content(message.get("content")),
        }
        if message.get("content") is None:
            self.losses.add("a content that is null, which becomes an empty text")
        if (time := self.rollout.times[number]) is not None:
            step["timestamp"] = datetime.fromtimestamp(time, UTC).isoformat()
        kept = dict(self.kept.get(str(number), {}))
        metrics = self._tokens(number)
        if source == "agent":
            for name in ("reasoning_content", "tool_calls"):
                if message.get(name) is not None:
                    step[name] = message[name]
            if "tool_calls" in step:
                calls = step["tool_calls"] if isinstance(step["tool_calls"], list) else [step["tool_calls"]]
                step["tool_calls"] = list(map(self._call, calls))
            metrics |= kept.pop("metrics", {})
            if metrics:
                step["metrics"] = metrics
            if not self.rollout.sampled[number] and kept.get("llm_call_count") != 0:
                step["is_copied_context"] = True
        known = {"role", "content", "reasoning_content", "tool_calls"}
        self.losses.add("further keys of messages", len(message.keys() - known))
        self.steps.append({**step, **kept})

    def _result(self, number: int, message: Mapping[str, Any]) -> None:
        result: dict[str, Any] = {}
        last = self.steps[-1]
        calls = {call["tool_call_id"] for call in last.get("tool_calls", ())}
        name = message.get("tool_call_id")
        if isinstance(name, str) and name in calls:
            result["source_call_id"] = name
        elif name is not None:
            self.losses.add("the call of a result that the step before it has not made")
        if message.get("content") is not None:
            result["content"] = self._content(message["content"])
        self.losses.add("the time of a result", int(self.rollout.times[number] is not None))
        self.losses.add("further keys of messages", len(message.keys() - {"role", "content", "tool_call_id"}))
        result |= self.kept.get(str(number), {})
        last.setdefault("observation", {"results": []})["results"].append(result)

    def _content(self, content: Any) -> Any:
        if content is None:
            return ""
        if not isinstance(content, list):
            return content
        parts = []
        for part in content:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind == "text" or (kind in ("image", "audio") and "source" in part):
                parts.append(part)
            else:
                self.losses.add(f"a part of the kind {kind!s:.100}")
        return parts

    def _call(self, call: Any) -> dict[str, Any]:
        function = call.get("function", call) if isinstance(call, Mapping) else {}
        if not isinstance(function, Mapping):
            function = {}
        text = function.get("arguments", "{}")
        try:
            arguments = json.loads(text) if isinstance(text, str) else text
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            self.losses.add("arguments of a call that are no object, which become one")
            arguments = {"arguments": text}
        elif text != json.dumps(arguments, ensure_ascii=False):
            self.losses.add("the text of the arguments of a call")
        name = str(call.get("id", "")) if isinstance(call, Mapping) else ""
        return {"tool_call_id": name, "function_name": str(function.get("name")), "arguments": arguments}

    def _tokens(self, number: int) -> dict[str, Any]:
        """Add the tokens of a message to the history; return the metrics of a sampled one."""
        piece = self.rollout.tokens[number]
        if piece is None:
            return {}
        ids, mask = piece.tokens.tolist(), piece.mask
        if not mask.any():
            self.history += ids
            self.waiting += 1
            return {}
        first = int(np.argmax(mask))
        if self.waiting + (first > 0) > 1:
            self.losses.add("which of several messages a token belongs to that was not sampled")
        sampled = ids[first:]
        if not mask[first:].all():
            self.losses.add("which tokens of an answer were sampled: all after the first one")
        prompt = [*self.history, *ids[:first]]
        metrics: dict[str, Any] = {"completion_token_ids": sampled}
        if prompt:
            metrics["prompt_token_ids"] = prompt
        if "logprobs" in piece.numbers and len(piece.numbers["logprobs"]) == len(sampled):
            metrics["logprobs"] = piece.numbers["logprobs"].tolist()
        self.history = [*prompt, *sampled]
        self.waiting = 0
        return metrics
