"""Rollouts that verl writes below `trainer.rollout_data_dir`: `<step>.jsonl`, a line for each output.

A line has the decoded texts `input` and `output`, so a rollout is two messages without tokens. `score` is the
reward, `gts` the ground truth, other keys are of the reward function. `uid` is
`{sample}_{rollout}_{output}`: the sample is the group. Older trainers write `request_id` in its place, and
the rows of a step with the same input are a group. verl counts steps from 1 and dumps the rollouts of step k,
which the weights of version k - 1 have generated; an asynchronous trainer may have used older ones. See
`_log_rollout_data` in https://github.com/volcengine/verl, verl/trainer/ppo.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import DatasetError
from ...plugin import Format, Match
from ...writers.importing.json_values import first_keys
from .records import (
    Arguments,
    Record,
    RolloutDataset,
    detected,
    files_of,
    json_lines,
    name_of_prompt,
    object_of,
    own_metadata,
    text_or_none,
    version_before,
)

PATTERN = "*.jsonl"
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_NEEDED = ("input", "output", "score")
_PLACED = frozenset({*_NEEDED, "uid", "step"})


def _files(source: Any) -> list[Path]:
    return [path for path in files_of(source, PATTERN) if path.stem.isdecimal()]


def _lacking(names: Collection[str]) -> list[str]:
    return [name for name in (*_NEEDED, "step") if name not in names]


def _detect(source: Any) -> Match:
    return detected(_files(source), "<step>.jsonl", first_keys, _lacking, "rollouts of verl")


class _Dataset(RolloutDataset):
    def records(self) -> Iterator[Record]:
        for path in self.files:
            self._counts: Counter[str] = Counter()
            yield from json_lines([path], self.base, self._of_line)

    def _of_line(self, content: Any, place: str, key: str) -> list[Record]:
        row = object_of(content, place)
        facts, metadata = self._names(row)
        if "output" in metadata:
            key = f"{key.rpartition(':')[0]}:{row['uid']}"
        return [Record(place, key, partial(_arguments, row, facts, metadata, place))]

    def _names(self, row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return group and sample, and what else a `uid` says."""
        task = name_of_prompt(row.get("input"))
        uid = text_or_none(row.get("uid"))
        pieces = uid.rsplit("_", 2) if uid is not None else []
        if len(pieces) == 3 and all(map(_NUMBER.fullmatch, pieces[1:])):
            facts = {"group": pieces[0], "sample": int(pieces[1]), "task": task}
            return facts, {"uid": uid, "output": int(pieces[2])}
        group = f"{row.get('step')}-{task}"
        self._counts[group] += 1
        return {"group": group, "sample": self._counts[group] - 1, "task": task}, {"uid": uid} if uid else {}


FORMAT = Format(
    "verl",
    None,
    "<step>.jsonl with input, output, score and step, as verl writes them, or a folder of such files",
    _detect,
    # Other JSON lines may lie beside those of the steps; a single file may have any name.
    lambda source, options: _Dataset(source, _files(source) or files_of(source, PATTERN), PATTERN),
    (),
)


def _arguments(
    row: Mapping[str, Any], facts: Mapping[str, Any], metadata: Mapping[str, Any], place: str
) -> Arguments:
    for name in ("input", "output"):
        if not isinstance(row.get(name), str):
            raise DatasetError(f"{place}: {name} is {row.get(name)!r:.100}; expected a text.")
    others = {name: value for name, value in row.items() if name not in _PLACED}
    step = row.get("step")
    return {
        "messages": [
            {"role": "user", "content": row["input"]},
            {"role": "assistant", "content": row["output"]},
        ],
        "rewards": row.get("score"),
        "facts": {**facts, "policy_version": version_before(step)},
        "metadata": {
            **own_metadata(others, "verl", place),
            **metadata,
            **({} if step is None else {"step": step}),
        },
    }
