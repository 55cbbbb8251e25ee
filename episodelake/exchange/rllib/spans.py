"""The episodes among the rows of RLlib: found by their keys alone, before any other column is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import DatasetError
from ...plugin.files import is_file
from ...writers.importing.columns import check_present, column_of
from ...writers.importing.columns import flags_of as flags
from .blocks import Block

#: Columns that RLlib may have for the ends of episodes.
ENDS = ("terminateds", "truncateds", "dones")
#: Columns that the index reads.
KEYS = ("eps_id", "agent_id", "agent_index", "t", *ENDS)


@dataclass(frozen=True)
class Span:
    """Rows of one episode.

    Attributes:
        name: the key of the episode.
        rows: int64, their numbers in the source, in order of time.
        steps: their `t`, or None.
        runs: the call of the recorder that wrote each row.
        plain: whether nothing is repeated or missing, as far as the index tells.
    """

    name: str
    rows: np.ndarray
    steps: np.ndarray | None
    runs: np.ndarray
    plain: bool

    @property
    def length(self) -> int:
        """How many rows there are."""
        return len(self.rows)

    def is_adjacent_to(self, before: Span) -> bool:
        """Return whether it and another are plain; damaged spans have no neighbours."""
        return self.plain and before.plain


def find_spans(blocks: Sequence[Block], path: Path) -> list[Span]:
    """Return the episodes in the order in which they begin.

    Raises:
        DatasetError: a row has no episode or no step.
    """
    codes: dict[str, int] = {}
    folders: dict[Path, int] = {}
    coded: list[tuple[np.ndarray, np.ndarray | None, np.ndarray]] = []
    counts: dict[Path, int] = {}
    for block in blocks:
        keys = block.read(KEYS)
        names = _ids(block, keys) if "eps_id" in keys.column_names else _counted(block, keys, counts, path)
        encoded = names.dictionary_encode()
        own = [codes.setdefault(name, len(codes)) for name in encoded.dictionary.to_pylist()]
        code = np.array(own, np.int64)[encoded.indices.to_numpy()]
        run = np.full(len(keys), folders.setdefault(block.file.parent, len(folders)))
        coded.append((code, _numbers(block, keys), run))
    if len({steps is None for _, steps, _ in coded}) > 1:
        raise DatasetError(f"{path} has a column `t` in some of its files only.")
    code = np.concatenate([each for each, _, _ in coded])
    run = np.concatenate([each for _, _, each in coded])
    steps = (
        None if coded[0][1] is None else np.concatenate([each for _, each, _ in coded if each is not None])
    )
    order = np.argsort(code, kind="stable") if steps is None else np.lexsort((steps, code))
    edges = [*np.flatnonzero(np.diff(code[order], prepend=-1)).tolist(), len(order)]
    names = list(codes)
    spans = []
    for start, stop in pairwise(edges):
        rows = order[start:stop]
        own_steps = None if steps is None else steps[rows]
        runs = run[rows]
        plain = bool((runs == runs[0]).all()) if own_steps is None else bool((np.diff(own_steps) == 1).all())
        spans.append(Span(names[code[rows[0]]], rows, own_steps, runs, plain))
    return spans


def _ids(block: Block, keys: pa.Table) -> pa.Array:
    """Return the key of each row's episode: `eps_id`, with the agent if there is one."""
    check_present(keys, ["eps_id"], "names the episode", block.place)
    names = column_of(keys, "eps_id").cast(pa.string())
    if "agent_id" in keys.column_names:
        return _with_agent(names, column_of(keys, "agent_id").cast(pa.string()))
    if "agent_index" in keys.column_names:
        index = column_of(keys, "agent_index")
        text = index.cast(pa.string())
        first = pc.call_function("equal", [index, pa.scalar(0, index.type)])
        return _with_agent(names, pc.call_function("if_else", [first, pa.scalar(None, pa.string()), text]))
    return names


def _with_agent(names: pa.Array, agents: pa.Array) -> pa.Array:
    if agents.null_count == len(agents):
        return names
    both = pc.call_function("binary_join_element_wise", [names, agents, "/"])
    return pc.call_function("coalesce", [both, names])


def _counted(block: Block, keys: pa.Table, counts: dict[Path, int], path: Path) -> pa.Array:
    """Return names of episodes that end where a flag is set, counted within each file."""
    ends = flags_of(keys, "terminateds") | flags_of(keys, "truncateds")
    numbers = counts.get(block.file, 0) + np.cumsum(np.concatenate([[0], ends[:-1]]))
    counts[block.file] = int(numbers[-1] + ends[-1])
    name = "" if is_file(path) else f"{block.file.absolute().relative_to(path)}:"
    return pa.array([f"{name}{number}" for number in numbers])


def _numbers(block: Block, keys: pa.Table) -> np.ndarray | None:
    if "t" not in keys.column_names:
        return None
    check_present(keys, ["t"], "orders the rows of an episode", block.place)
    steps = column_of(keys, "t")
    if not (pa.types.is_integer(steps.type) or pa.types.is_floating(steps.type)):
        raise DatasetError(f"{block.place}: `t` has type {steps.type}; expected numbers.")
    return steps.to_numpy().astype(np.int64)


def kept_rows(span: Span, rows: pa.Table, path: Path) -> np.ndarray:
    """Return which rows of an episode to read: each transition once.

    Raises:
        DatasetError: rows of one step differ, a step is missing, or rows neither go on nor repeat others.
    """
    if span.steps is not None:
        new = np.diff(span.steps, prepend=span.steps[0] - 1)
        for row in np.flatnonzero(new == 0):
            if not rows.slice(int(row) - 1, 1).equals(rows.slice(int(row), 1)):
                raise DatasetError(
                    f"Episode {span.name} of {path} has two different rows with t={span.steps[row]}."
                )
        gaps = np.flatnonzero(new > 1)
        if len(gaps):
            step, before = span.steps[gaps[0]], span.steps[gaps[0] - 1]
            raise DatasetError(f"Episode {span.name} of {path} has a gap: t={step} follows t={before}.")
        return np.flatnonzero(new)
    edges = [*np.flatnonzero(np.diff(span.runs, prepend=-1)).tolist(), len(rows)]
    kept = np.arange(0)
    for start, stop in pairwise(edges):
        own = np.arange(start, stop)
        # Kept rows are neighbours wherever a run repeats them.
        shared = min(len(kept), len(own))
        if shared and rows.take(pa.array(kept[:shared])).equals(rows.slice(start, shared)):
            kept = own if len(own) > len(kept) else kept
        else:
            kept = np.concatenate([kept, own])
    return kept


def flags_of(rows: pa.Table, name: str) -> np.ndarray:
    """Return a flag of each row; `dones` replace missing `terminateds`, and missing values are False."""
    if name == "terminateds" and name not in rows.column_names:
        name = "dones"
    if name not in rows.column_names:
        return np.zeros(len(rows), bool)
    return flags(column_of(rows, name), name).fill_null(False).to_numpy(zero_copy_only=False)
