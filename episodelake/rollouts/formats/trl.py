"""Completions of TRL's GRPO: `completions_00001.parquet`, as `log_completions` writes them for each step.

A row is a prompt and its completion, with a column for each reward function, further columns of the dataset,
and the advantage. Columns of floating-point numbers between `completion` and `advantage` are rewards; where
a function gave none the value is NaN, and that part is left out. TRL weights them, and the file has no
weights: the reward is their plain sum. Rows of a step with the same prompt are a group, and those of all
steps a task. Token ids are not in the file.

TRL writes a file when it logs, after the update of its step: the policy version is `step - 1`, the number of
updates before. With `num_iterations` or `steps_per_generation` TRL generates less often, and the version is
the latest that the model can have had.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import DatasetError
from ...plugin import Format, Match
from .messages import parquet_records, without_nulls
from .records import (
    Arguments,
    Record,
    RolloutDataset,
    columns_of_parquet,
    detected,
    files_of,
    is_number,
    name_of_prompt,
    own_metadata,
    version_before,
)

PATTERN = "completions_*.parquet"
_NEEDED = ("step", "prompt", "completion", "advantage")


def _lacking(names: Collection[str]) -> list[str]:
    return [name for name in _NEEDED if name not in names]


def _files(source: Any) -> list[Path]:
    return files_of(source, PATTERN, f"completions/{PATTERN}")


def _detect(source: Any) -> Match:
    return detected(_files(source), PATTERN, columns_of_parquet, _lacking, "completions of TRL")


class _Dataset(RolloutDataset):
    def records(self) -> Iterator[Record]:
        for path in self.files:
            self._counts: Counter[str] = Counter()
            yield from parquet_records(path, self.base, self._of_row)

    def _of_row(self, row: Mapping[str, Any], place: str, key: str) -> Record:
        task = name_of_prompt(row.get("prompt"))
        group = f"{row.get('step')}-{task}"
        facts = {"group": group, "sample": self._counts[group], "task": task}
        self._counts[group] += 1
        return Record(place, key, partial(_arguments, row, facts, place))


FORMAT = Format(
    "trl",
    None,
    f"{PATTERN} of TRL's log_completions: one, their folder, or the output_dir that has it",
    _detect,
    lambda source, options: _Dataset(source, _files(source), PATTERN),
    (),
)


def _arguments(row: Mapping[str, Any], facts: Mapping[str, Any], place: str) -> Arguments:
    names = list(row)
    if lacking := _lacking(names):
        raise DatasetError(f"{place} has no {', '.join(lacking)}.")
    prompt, answer = (_messages(row[name], name, place) for name in ("prompt", "completion"))
    between = names[names.index("completion") + 1 : names.index("advantage")]
    rewards = {name: row[name] for name in between if isinstance(row[name], float)}
    others = {name: value for name, value in row.items() if name not in (*_NEEDED, *rewards)}
    advantage = row["advantage"]
    if advantage is not None and not is_number(advantage):
        raise DatasetError(f"{place}: advantage is {advantage!r:.100}; expected a number.")
    return {
        "messages": [*prompt, *answer],
        "sampled": [*[False] * len(prompt), *(each.get("role") == "assistant" for each in answer)],
        "rewards": {name: value for name, value in rewards.items() if not math.isnan(value)} or None,
        "numbers": {} if advantage is None else {"advantages": advantage},
        "facts": {**facts, "policy_version": version_before(row["step"])},
        "metadata": {"step": row["step"], **own_metadata(others, "trl", place)},
    }


def _messages(value: Any, name: str, place: str) -> list[dict[str, Any]]:
    """Return a text as one message; a conversation stays one."""
    if isinstance(value, str):
        return [{"role": "user" if name == "prompt" else "assistant", "content": value}]
    if isinstance(value, list) and all(isinstance(each, Mapping) and "role" in each for each in value):
        return [without_nulls(each) for each in value]
    raise DatasetError(f"{place}: {name} is neither a text nor a list of messages.")
