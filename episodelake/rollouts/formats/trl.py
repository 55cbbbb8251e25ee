"""Completions of TRL's GRPO: `completions_00001.parquet`, as `log_completions` writes them for each step.

A row is a prompt and its completion, with a column for each reward function, further columns of the dataset,
and the advantage. Columns of floating-point numbers between `completion` and `advantage` are rewards; where
a function gave none the value is NaN, and that part is left out. TRL weights them, and the file has no
weights: the reward is their plain sum. Rows of a step with the same prompt are a group. Token ids are not in
the file.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import DatasetError
from ...plugin import Format, Match
from .messages import parquet_rows, without_nulls
from .records import Arguments, Record, RolloutDataset, base_of, files_of, is_reserved, kept_json

PATTERN = "completions_*.parquet"
_NEEDED = ("step", "prompt", "completion", "advantage")


def _detect(source: Any) -> Match:
    files = files_of(source, PATTERN)
    if not files:
        return Match(f"it has no {PATTERN}", 2, related=False)
    try:
        names = pq.read_schema(files[0]).names
    except (pa.ArrowException, OSError):
        return Match(f"{files[0].name} is no Parquet", 2, related=False)
    lacking = [name for name in _NEEDED if name not in names]
    if lacking:
        return Match(f"{files[0].name} has no {', '.join(lacking)}", len(lacking), related=len(lacking) == 1)
    return Match(f"{files[0].name} has completions of TRL")


class _Dataset(RolloutDataset):
    def __init__(self, source: Any) -> None:
        super().__init__()
        self._files, self._base = files_of(source, PATTERN), base_of(source)
        if not self._files:
            raise DatasetError(f"{source} has no {PATTERN}.")

    def records(self) -> Iterator[Record]:
        for path in self._files:
            name = path.relative_to(self._base).as_posix()
            counts: Counter[str] = Counter()
            for number, row in enumerate(parquet_rows(path)):
                place = f"{path}, row {number}"
                group = _group(row)
                facts = {"group": group, "sample": counts[group]}
                counts[group] += 1
                yield Record(place, f"{name}:{number}", partial(_arguments, row, facts, place))


FORMAT = Format(
    "trl",
    None,
    f"{PATTERN} of TRL's log_completions, one or a folder of them",
    _detect,
    lambda source, options: _Dataset(source),
    (),
)


def _group(row: Mapping[str, Any]) -> str:
    prompt = hashlib.sha256(repr(row.get("prompt")).encode(errors="surrogatepass")).hexdigest()
    return f"{row.get('step')}-{prompt[:12]}"


def _arguments(row: Mapping[str, Any], facts: Mapping[str, Any], place: str) -> Arguments:
    names = list(row)
    lacking = [name for name in _NEEDED if name not in names]
    if lacking:
        raise DatasetError(f"{place} has no {', '.join(lacking)}.")
    prompt, answer = (_messages(row[name], name, place) for name in ("prompt", "completion"))
    between = names[names.index("completion") + 1 : names.index("advantage")]
    rewards = {
        name: row[name] for name in between if isinstance(row[name], float) and not math.isnan(row[name])
    }
    others = {
        name: value
        for name, value in row.items()
        if name not in _NEEDED and value is not None and not isinstance(value, float)
    }
    plain = {name: value for name, value in others.items() if isinstance(value, str | int)}
    lists = {name: value for name, value in others.items() if name not in plain}
    return {
        "messages": [*prompt, *answer],
        "sampled": [*[False] * len(prompt), *(each["role"] == "assistant" for each in answer)],
        "rewards": rewards or None,
        "numbers": {} if row["advantage"] is None else {"advantages": float(row["advantage"])},
        "facts": facts,
        "metadata": {
            "step": row["step"],
            **{f"trl_{name}" if is_reserved(name) else name: value for name, value in plain.items()},
            **({"record": kept_json(lists, place)} if lists else {}),
        },
    }


def _messages(value: Any, name: str, place: str) -> list[dict[str, Any]]:
    """Return a text as one message; a conversation stays one."""
    if isinstance(value, str):
        return [{"role": "user" if name == "prompt" else "assistant", "content": value}]
    if isinstance(value, list) and all(isinstance(each, Mapping) and "role" in each for each in value):
        return [without_nulls(each) for each in value]
    raise DatasetError(f"{place}: {name} is neither a text nor a list of messages.")
