"""Signals: the parts of an episode that are a few numbers at every step, as plain arrays over t.

The terminal draws them as sparklines, cards as small charts, `Episode.plot` and the explorer as large ones.
Only narrow columns are read, so that episodes of images cost no more than others.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...store.dynamic.column_groups import EXTRA, INFO, POLICY
from ...store.dynamic.logical_types import LogicalType
from ...store.names import ACTION, OBSERVATION, REWARD, is_observation
from ...store.spaces.arrow import values_of
from ..episode_data import EpisodeData

#: Columns that are shown by default.
ROOTS = (REWARD, ACTION, OBSERVATION)
WIDEST = 8
#: Beyond, a column is no heat map either; some of its numbers can be named.
WIDEST_MAP = 512
_ELEMENTS = re.compile(r"(?P<column>.+)\[(?:(?P<index>\d+)|(?P<start>\d*):(?P<stop>\d*))\]")


@dataclass(frozen=True)
class Signal:
    """One number over time.

    Attributes:
        name: the column, with the element's number in C order where there are several: `observation[2]`; of
            an episode of several agents, after the agent's name.
        values: float64, shape (n,); NaN where there is none.
        t: int64, shape (n,): the steps at which they stand; those of the environment where there are agents.
        column: the column that it is part of.
    """

    name: str
    values: np.ndarray
    t: np.ndarray
    column: str


def signals_of(episode: EpisodeData, roots: Sequence[str] = ROOTS, widest: int = WIDEST) -> list[Signal]:
    """Return the signals of an episode, in the order of `roots`.

    Args:
        episode: of one agent or of several; of several, those of each agent.
        roots: `reward`, `action`, `observation`, `info`, `policy`, or whole names of columns, also with some
            of their numbers: `observation[3]`, `observation[8:12]`. A part that is no signal (images, texts,
            more numbers than `widest`) gives none.
        widest: how many numbers a column may have at each step, where the root names none of them; of those
            that it names, `WIDEST_MAP` at most.

    Returns:
        Rewards, actions and policy outputs have T values, observations and infos T+1.

    Raises:
        CorruptStoreError: the steps are damaged; the message names the file.
    """
    if not episode.agents:
        return list(_of_one(episode, roots, widest))
    signals = []
    for name, member in episode._members.items():
        signals += [
            replace(signal, name=f"{name}: {signal.name}") for signal in signals_of(member, roots, widest)
        ]
    return signals


def _of_one(episode: EpisodeData, roots: Sequence[str], widest: int) -> Iterator[Signal]:
    chosen = [elements_of_root(root) for root in roots]
    named = {column for column, elements in chosen if elements is not None}
    fields = _chosen(_narrow(episode, widest, named), [column for column, _ in chosen])
    if not fields:
        return
    table = episode._block.table(fields, episode._start, episode.length + 1)
    schema = episode._own_schema
    t = episode._moments
    for field in fields:
        outcome = schema.is_outcome(field.name)
        observed = is_observation(field.name.removeprefix(schema.prefix))
        count = episode._observation_count if observed else episode.length + (not outcome)
        column = table.column(field.name).slice(0, count)
        if not pa.types.is_list(field.type):
            yield Signal(field.name, _floats(column), t[: len(column)], field.name)
            continue
        wanted = [elements for name, elements in chosen if _belongs(field.name, name)]
        for index, values in sorted(_parts(column, widest, wanted).items()):
            yield Signal(f"{field.name}[{index}]", values, t[: len(column)], field.name)


def elements_of_root(root: str) -> tuple[str, range | None]:
    """Return the column that a root names, and which of its numbers; None for all of them.

    >>> elements_of_root("observation[8:12]"), elements_of_root("observation[3]"), elements_of_root("reward")
    (('observation', range(8, 12)), ('observation', range(3, 4)), ('reward', None))
    """
    match = _ELEMENTS.fullmatch(root)
    if match is None:
        return root, None
    start = int(match["index"] or match["start"] or 0)
    stop = start + 1 if match["index"] else int(match["stop"] or _FAR)
    return match["column"], range(start, stop)


#: No column has so many numbers.
_FAR = 2**31 - 1


def signal_columns(episode: EpisodeData) -> list[str]:
    """Return the columns of an episode that may be signals, all or in part; of several agents, all of theirs.

    Lists of infos and policy outputs are among them, whatever their length.
    """
    members = list(episode._members.values()) if episode.agents else [episode]
    names = [field.name for member in members for field in _narrow(member, _FAR)]
    return list(dict.fromkeys(names))


def _narrow(episode: EpisodeData, widest: int, named: Collection[str] = ()) -> list[pa.Field]:
    """Return the columns of numbers that may be signals.

    Args:
        named: columns of which some numbers are wanted, however wide they are.
    """
    schema = episode._own_schema
    leaves = [leaf for codec in (schema.reward, schema.action, schema.observation) for leaf in codec.leaves]
    narrow = [leaf for leaf in leaves if leaf.size <= widest or leaf.column in named]
    fixed = [leaf.fields[0] for leaf in narrow if not leaf.binary]
    dynamic = [
        field for field in episode._columns if any(group.owns(field) for group in (INFO, POLICY, EXTRA))
    ]
    kinds = [(field, LogicalType.of_column(field)) for field in dynamic]
    return [*fixed, *(field for field, kind in kinds if kind is not None and kind.dtype is not None)]


def _chosen(fields: Iterable[pa.Field], roots: Sequence[str]) -> list[pa.Field]:
    fields = list(fields)
    chosen = [field for root in roots for field in fields if _belongs(field.name, root)]
    return list({field.name: field for field in chosen}.values())


def _belongs(name: str, root: str) -> bool:
    """Return whether a column is a root, or a part of it; in groups of agents, after the group's name."""
    return name == root or name.startswith(f"{root}.") or f".{root}." in f".{name}."


def _parts(column: pa.ChunkedArray, widest: int, wanted: Sequence[range | None]) -> dict[int, np.ndarray]:
    """Return the numbers of a column of lists, float64, by element; none if its lists vary in length.

    Args:
        wanted: which elements; None for all, if there are no more than `widest`.
    """
    lengths = pc.call_function("list_value_length", [column])
    sizes = lengths.unique().drop_null().to_pylist()
    parts: dict[int, np.ndarray] = {}
    if len(sizes) != 1:
        return parts
    for elements in wanted:
        kept = range(sizes[0]) if elements is None else range(sizes[0])[elements.start : elements.stop]
        if not kept or len(kept) > (widest if elements is None else WIDEST_MAP):
            continue
        # Only the wanted numbers are copied.
        some = column if elements is None else _sliced(column, kept)
        numbers = np.full((len(column), len(kept)), np.nan)
        there = values_of(column.is_valid())
        numbers[there] = _floats(pc.call_function("list_flatten", [some])).reshape(-1, len(kept))
        parts |= zip(kept, numbers.T, strict=True)
    return parts


def _sliced(column: pa.ChunkedArray, kept: range) -> pa.ChunkedArray:
    options = pc.ListSliceOptions(kept.start, kept.stop)
    return pc.call_function("list_slice", [column], options)


def _floats(column: pa.ChunkedArray) -> np.ndarray:
    numbers = column.cast(pa.float64(), safe=False)
    return np.where(values_of(numbers.is_valid()), values_of(numbers), np.nan)


def reduced(values: np.ndarray, most: int) -> np.ndarray:
    """Positions that show a long line as it looks: in each of equal stretches the smallest and the largest
    value.

    Args:
        values: float64, shape (n,); NaN where there is none.
        most: how many positions there may be.

    Returns:
        int64, ascending; all of them if there are no more than `most`.
    """
    if len(values) <= most:
        return np.arange(len(values))
    starts = np.linspace(0, len(values), most // 2 + 1).astype(np.int64)
    kept = set()
    for start, stop in pairwise(starts):
        part = values[start:stop]
        if np.isnan(part).all():
            kept.add(int(start))
        else:
            kept.update((int(start + np.nanargmin(part)), int(start + np.nanargmax(part))))
    return np.array(sorted(kept))


_KEYS = {"episode_id", "agent_id", "t"}


def row_values(episode: EpisodeData, t: int) -> tuple[dict[str, Any], dict[Any, Any], dict[Any, Any]]:
    """Return the values at t: the step's columns without images, the infos, and all others.

    The others are policy outputs, own columns and annotations. Of several agents, take one agent's episode.

    Raises:
        CorruptStoreError: the steps are damaged; the message names the file.
    """
    snapshot, start = episode._rows.snapshot, episode._start + t
    annotations = snapshot.annotation_files.annotations
    fields = [
        field
        for field in episode._columns
        if field.name not in _KEYS
        and field.name not in annotations
        and not pa.types.is_binary(field.type)
        and not any(group.owns(field) for group in (INFO, POLICY, EXTRA))
    ]
    step = episode._block.table(fields, start, 1).to_pylist()[0] if fields else {}
    (infos,), (policy,), (extra,) = (episode._dynamic(group, t, 1) for group in (INFO, POLICY, EXTRA))
    others = {**policy, **extra}
    for name, annotation in annotations.items():
        (others[name],) = episode._block.added(snapshot, annotation, start, 1).to_pylist()
    return step, infos, others
