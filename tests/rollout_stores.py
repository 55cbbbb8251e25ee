"""A store of rollouts to look at: two policy versions, groups, branches, tool calls, and hostile texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import episodelake as el

#: A text that draws, steers and loads where it is not escaped.
HOSTILE = "<img src=http://evil/x.png onerror=alert(1)> ![](http://evil/y.png) \x1b[31mred\x07 \u202e"
CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": "a  b"}'}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "which"}, {"type": "text", "text": " one?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": HOSTILE, "name": "search"},
    {"role": "assistant", "content": "this", "reasoning_content": "hm\nwell", "further": [1]},
    {"role": "assistant", "content": f"other\r\n\tlines {HOSTILE}", "tool_calls": [{"odd": HOSTILE}]},
    {"role": HOSTILE, "content": "word " * 500, "name": "\ud800"},
]
#: The answers of messages 2 and 5 to message 1 begin branches.
PARENTS = [-1, 0, 1, 2, 3, 1, 5]


def make_rollouts(path: Path) -> None:
    """Two groups of three samples, one for each policy version; the first sample of each fails."""
    store = el.create(path, el.Rollouts(tokenizer=f"Qwen {HOSTILE}", vocabulary=1000))
    with store.writer(run="talk") as writer:
        for number in range(6):
            version, sample = divmod(number, 3)
            writer.write_rollout(
                MESSAGES,
                parents=PARENTS,
                tokens=[None, [1, 2], [3, 4, 5], None, [6], list(range(40)), [7]],
                mask=[None, None, [0, 1, 1], None, None, None, None],
                logprobs=[None, None, [-1, -2], None, [-3], np.linspace(-4, 0, 40), None],
                advantages=[None, None, [-1, 1], None, [0], np.linspace(-1, 1, 40), None],
                rewards={"answer": float(sample > 0), "format": 0.2, HOSTILE: 0.0},
                weights={"format": 0.5},
                group=f"p{version}",
                sample=sample,
                task=HOSTILE,
                policy_version=version,
                stop_reason="stop" if sample else "length",
                truncated=not sample,
                metadata={"usage": {"tokens": 47}},
            )
