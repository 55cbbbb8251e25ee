"""Elements of step columns for charts: their names, their SQL, and the rows that are counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import gymnasium
import numpy as np

from ...store.errors import CorruptStoreError
from ...store.schema import StepSchema
from ...store.snapshot import Snapshot
from ..chart_session import ChartSession
from ..sql.text import literal, quote
from .bins import Binned, Bins, Values
from .series import AGENT, LARGEST, MOST_SERIES, label_episodes

#: About how many rows a chart reads; of larger views, it takes a sample of episodes.
MOST_ROWS = 20_000_000
ALL = "all"


@dataclass(frozen=True)
class Element:
    """One number of a column of steps.

    Attributes:
        name: as signals are called: `action`, `observation[0]`.
        column: the column of steps.
        sql: SQL for it, a DOUBLE.
        discrete: True if its values are categories, not amounts.
        kinds: number of categories; 0 if it is not discrete.
        start: the smallest category.
    """

    name: str
    column: str
    sql: str
    discrete: bool
    kinds: int
    start: int


def elements_of(schema: StepSchema, root: str) -> list[Element]:
    """Return the numbers of the fixed parts of the observation or the action; frames are no numbers here."""
    codecs = [part.observation if root == "observation" else part.action for part in schema.parts]
    nodes = [node for codec in codecs for node in codec.leaves if not node.binary]
    return [
        _element(node.column, node.space, node.shape, index) for node in nodes for index in range(node.size)
    ]


def named(elements: Sequence[Element], snapshot: Snapshot) -> list[Element]:
    """Return elements whose names have those of the card behind them: `action[0] (shoulder)`."""
    try:
        card = snapshot.card
    except CorruptStoreError:
        return [*elements]
    codecs = [codec for part in snapshot.schema.parts for codec in (part.observation, part.action)]
    sizes = {leaf.column: leaf.size for codec in codecs for leaf in codec.leaves if leaf.shape}
    columns = {each.column for each in elements if each.column in sizes}
    names = {column: card.dimension_names(column, sizes[column]) for column in columns}
    renamed = []
    for each in elements:
        index = each.name.rpartition("[")[2].removesuffix("]")
        given = names.get(each.column)
        renamed.append(replace(each, name=f"{each.name} ({given[int(index)]})") if given else each)
    return renamed


def _element(column: str, space: gymnasium.Space, shape: tuple[int, ...], index: int) -> Element:
    name = f"{column}[{index}]" if shape else column
    sql = f"{quote(column)}[{index + 1}]::DOUBLE" if shape else f"{quote(column)}::DOUBLE"
    kinds, start = 0, 0
    match space:
        case gymnasium.spaces.Discrete():
            kinds, start = int(space.n), int(space.start)
        case gymnasium.spaces.MultiDiscrete():
            kinds, start = int(space.nvec.reshape(-1)[index]), int(np.reshape(space.start, -1)[index])
        case gymnasium.spaces.MultiBinary():
            kinds = 2
    return Element(name, column, sql, bool(kinds), kinds, start)


@dataclass(frozen=True)
class StepRows:
    """Rows of steps that a chart counts: the view `counted` of the bench, with the column `_series`.

    Attributes:
        by: the column, "run" or "agent" that defines the series; "all" for a single one.
        names: of the series.
        count: number of rows.
        notes: sentences on what is left out.
    """

    by: str
    names: tuple[str, ...]
    count: int
    notes: tuple[str, ...]


def step_rows(bench: ChartSession, by: str | None, table: str) -> StepRows:
    """Choose the rows of `steps` or `transitions` that a chart counts.

    Args:
        bench: of the view.
        by: see `Plots.actions`.
        table: the one or the other.
    """
    condition, note = _sample(bench)
    names: tuple[str, ...] = (ALL,)
    if by is None:
        body = f"SELECT '{ALL}' AS _series, * FROM {table} WHERE {condition}"
    elif by == AGENT and bench.snapshot.schema.groups:
        body = f"SELECT agent_id AS _series, * FROM {table} WHERE {condition}"
        sizes = bench.rows("SELECT unnest(agents) AS name FROM episodes GROUP BY 1 ORDER BY count(*) DESC, 1")
        names = tuple(row["name"] for row in sizes)
    else:
        names, left = label_episodes(bench, by)
        body = f"SELECT * FROM {table} JOIN labels USING (episode_id) WHERE {condition}"
        note = "; ".join(filter(None, (note, left)))
    more = ""
    if len(names) > MOST_SERIES:
        names, more = names[:MOST_SERIES], f"the first {MOST_SERIES} of {len(names):,} by {by}"
    if len(names) > 1 or by is not None:
        body = f"SELECT * FROM ({body}) WHERE _series IN ({', '.join(map(literal, names))})"
    bench.rows(f"CREATE TEMP VIEW counted AS {body}")
    (row,) = bench.rows("SELECT count(*) AS n FROM counted")
    return StepRows(by or ALL, names, row["n"], tuple(filter(None, (note, more))))


def _sample(bench: ChartSession) -> tuple[str, str]:
    """Return a condition that keeps about `MOST_ROWS` rows, of the same episodes every time; and a note on
    it.
    """
    (row,) = bench.rows("SELECT coalesce(sum(row_count), 0)::BIGINT AS n FROM episodes")
    every = -(-row["n"] // MOST_ROWS)
    if every <= 1:
        return "true", ""
    return f"hash(episode_id) % {every} = 0", f"of 1 episode in {every}, drawn by hash of its id"


def bins_of(bench: ChartSession, element: Element, about: int, most_kinds: int) -> Binned | None:
    """Return the bins of an element in the view `counted`; None if it has no value that fits on an axis.

    Args:
        about: how many bins there should be, of amounts.
        most_kinds: categories have a bin each, unless there are more.
    """
    if element.discrete and element.kinds <= most_kinds:
        last = element.start + element.kinds - 1
        return Binned(Bins(element.start - 0.5, 1.0, element.kinds, True), (element.start, last))
    values = Values(bench, element.sql, "counted", finite(element.sql))
    return values.binned(about) if values.facts["count"] else None


def finite(sql: str) -> str:
    """Return a condition: the value is finite and fits on an axis."""
    return f"coalesce(isfinite({sql}) AND abs({sql}) <= {LARGEST}, false)"
