"""RLlib's offline data: rows, episodes and sample batches in Parquet, and sample batches in JSON lines.

Rows and batches have the columns of RLlib's `Columns` and `SampleBatch`. Rows of one `eps_id` (and agent) are
an episode, in order of `t`, else in the order of the files. Row t has observation t as `obs`; row T is the
last `new_obs`. `terminateds` and `truncateds` (or `dones`, which RLlib reads as terminated) of the last row
hold for the episode; with neither set it is "cut". Without `eps_id` an episode ends where a flag is set.

A runner of RLlib without `output_max_rows_per_file` writes all earlier rows again at each call, so rows that
repeat the episode so far count as duplicates. Episodes (`item` columns) are in `episodes.py`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import DatasetError, InvalidArgumentError
from ...plugin import LISTS, ForeignDataset, Format, ImportOptions, Match
from ...plugin.columns import OBSERVATION
from ...plugin.files import is_file, user_path, walk
from ...writers.importing.boundary import bounded_line, check_access
from ...writers.importing.formats import SPACES
from ...writers.importing.trees import natural
from .blocks import EXTRA, Source, batch_blocks, json_blocks, row_blocks
from .episodes import EpisodesDataset
from .rows import RowsDataset

_POLICY = "policy"
_NEEDED = ("obs", "actions", "rewards")
_MARKS = ("eps_id", "new_obs")
_BATCH = re.compile(rb'"type"\s*:\s*"(SampleBatch|MultiAgentBatch)"')
_HEAD = 1 << 20


def _detect(source: Any) -> Match:
    """Look at the columns or the first line of the first file."""
    path = _path(source)
    first = None if path is None else next(_files(path), None)
    if first is None:
        return Match("it is no Parquet or JSON file, nor a folder of these", 2, related=False)
    kind, reason = _kind(first, {})
    return Match(reason, 0 if kind else 1)


def _open(source: Any, options: ImportOptions) -> ForeignDataset:
    """Open files of one kind."""
    path = _path(source)
    files = [] if path is None else sorted(_files(path), key=natural)
    if path is None or not files:
        raise DatasetError(f"{source} has no Parquet or JSON files.")
    names = _names(options.mapping)
    kinds = {file: _kind(file, names) for file in files}
    first = kinds[files[0]][0]
    for file, (kind, reason) in kinds.items():
        if kind is None:
            raise DatasetError(f"{file} is no data of RLlib: {reason}.")
        if kind != first:
            raise DatasetError(f"{file} has {kind}, but {files[0]} has {first}. Import them one by one.")
    own = {theirs: ours for ours, theirs in names.items() if ours != _POLICY}
    _check_names(names, own, files[0], first or "")
    source = Source(files, own, names.get(_POLICY))
    if first == "episodes":
        return EpisodesDataset(path, source, options)
    blocks = {"rows": row_blocks, "batches": batch_blocks, "json": json_blocks}[first or ""]
    return RowsDataset(path, list(blocks(source)), options, source.left_out)


def _path(source: Any) -> Path | None:
    return user_path(source) if isinstance(source, str | os.PathLike) else None


def _files(path: Path) -> Iterator[Path]:
    if is_file(path):
        if path.suffix.lower() in (".parquet", ".json"):
            yield path
        return
    # The runs of RLlib's recorder are numbered.
    for folder, folders, names in walk(path):
        folders.sort(key=natural)
        for name in sorted(names, key=natural):
            if name.lower().endswith((".parquet", ".json")) and not name.startswith(("_", ".")):
                yield Path(folder, name)


def _names(mapping: Any) -> dict[str, str]:
    if mapping is None:
        return {}
    texts = isinstance(mapping, Mapping) and all(
        isinstance(each, str) for pair in mapping.items() for each in pair
    )
    # Its name for the column of observations, as in a mapping of tables, is none of RLlib's.
    if texts and OBSERVATION not in mapping:
        return dict(mapping)
    raise InvalidArgumentError(
        f"mapping is {mapping!r:.100}; for RLlib expected a dict of its column names to those of the files, "
        "as `input_read_schema`, such as {'obs': 'o_t'}; 'policy' chooses one of several policies. To read "
        "the files as a table by an el.ColumnMapping, pass format='table'."
    )


def _check_names(names: Mapping[str, str], own: Mapping[str, str], file: Path, kind: str) -> None:
    """Refuse a mapping with a part that has no effect.

    Raises:
        InvalidArgumentError: a column is named twice, or is not there; "policy" is given for rows, which have
            none; the source has episodes, whose names are fixed.
    """
    columns = _columns_of(file, names.get(_POLICY)) if kind == "json" else pq.read_schema(file).names
    unknown = [] if columns is None else [theirs for theirs in own if theirs not in columns]
    problem = None
    if names and kind == "episodes":
        problem = "the source has whole episodes of RLlib, whose parts need no names"
    elif _POLICY in names and kind != "json":
        problem = f"'policy' chooses batches of one policy, and {file.name} has {kind}"
    elif len(own) < len(names) - (_POLICY in names):
        problem = "it names a column twice"
    elif unknown:
        known = ", ".join(map(str, columns or ()))
        problem = f"{file.name} has no column {unknown[0]!r}; it has {known}"
    if problem is not None:
        raise InvalidArgumentError(f"mapping={dict(names)!r:.200}: {problem}. Leave out what has no effect.")


def _columns_of(file: Path, policy: str | None) -> list[str] | None:
    """Return the columns of the first batch of JSON lines; None if it is of another policy."""
    with file.open("rb") as lines:
        line = b"\n"
        while line and not line.strip():
            line = bounded_line(lines, f"{file}: its first batch")
    try:
        batch = json.loads(line)
        batches = batch.get("policy_batches")
        if batches is None:
            return [*batch] if policy is None else None
        chosen = batches[policy] if policy is not None else next(iter(batches.values()))
        return [*chosen]
    except (ValueError, AttributeError, KeyError, TypeError, StopIteration):
        return None  # reading the line says what is wrong


def _kind(file: Path, names: Mapping[str, str]) -> tuple[str | None, str]:
    """Return "rows", "batches", "episodes", "json" or None, and why."""
    if file.suffix.lower() == ".json":
        with file.open("rb") as lines:
            head = lines.read(_HEAD)
        batch = _BATCH.search(head)
        return (
            ("json", f"{file.name} has a {batch[1].decode()}")
            if batch
            else (None, f"{file} has no SampleBatch")
        )
    try:
        schema = pq.read_schema(file)
    except (OSError, pa.ArrowException) as error:
        check_access(file, error)
        return None, f"{file} is no whole Parquet file ({error})"
    if schema.names == ["item"] and _is_binary(schema.field("item").type):
        return "episodes", f"{file.name} has a column `item`"
    has = {ours for ours in (*_NEEDED, *_MARKS) if names.get(ours, ours) in schema.names}
    lacking = [name for name in _NEEDED if name not in has]
    if lacking or not has & set(_MARKS):
        return None, f"{file} lacks the columns {', '.join(lacking) or ' or '.join(_MARKS)}"
    batched = isinstance(schema.field(names.get("rewards", "rewards")).type, LISTS)
    kind = "batches" if batched else "rows"
    return kind, f"{file.name} has {kind} with {', '.join(sorted(has))}"


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


FORMAT = Format(
    "rllib",
    EXTRA,
    "Parquet with `item`, or with obs, actions, rewards and eps_id or new_obs; JSON lines of batches",
    _detect,
    _open,
    ("mapping", *SPACES),
)
