"""Loaders as a plain loop: the columns of each episode row by row, its units, and batches of them.

Nothing here is taken from the library but `Episode` and its tables, which other tests hold to plain rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from gymnasium import spaces

import episodelake as el

CODES = {"terminated": 1, "truncated": 2, "cut": 3, "interrupted": 4}


@dataclass
class Rows:
    """An episode, or an agent's part of one: a row for every observation, zeros where there is no value.

    Attributes:
        number: of the episode in its view.
        length: transitions T.
        end: code of the end reason.
        columns: T + 1 values by name.
        missing: whether the last observation is missing.
        agent: number of the agent among those of the loader.
    """

    number: int
    length: int
    end: int
    columns: dict[str, list[Any]] = field(default_factory=dict)
    missing: bool = False
    agent: int = 0


def at(tree: Any, t: int) -> Any:
    """One step of stacked, maybe nested values."""
    if isinstance(tree, Mapping):
        return {key: at(value, t) for key, value in tree.items()}
    return tuple(at(value, t) for value in tree) if isinstance(tree, tuple) else tree[t]


def stacked(values: Sequence[Any]) -> Any:
    """Single, maybe nested values as stacks."""
    if isinstance(values[0], Mapping):
        return {key: stacked([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(stacked(parts) for parts in zip(*values, strict=True))
    if isinstance(values[0], Row):
        rows = np.empty(len(values), object)
        rows[:] = values
        return rows
    return np.stack(values)


def zeros(tree: Any) -> Any:
    """Zeros in the shape of a single, maybe nested value."""
    if isinstance(tree, Mapping):
        return {key: zeros(value) for key, value in tree.items()}
    if isinstance(tree, Row):
        return Row([], tree.like)
    return tuple(map(zeros, tree)) if isinstance(tree, tuple) else np.zeros_like(tree)


# Values of different lengths


@dataclass(eq=False)
class Row:
    """A value of any length: its items, which are arrays or rows again; and an item of the same kind."""

    items: list[Any]
    like: Any


def as_arrays(space: Any, value: Any) -> Any:
    """A value of a space without texts, tuples and graphs: `Row` where values differ in length."""
    match space:
        case spaces.Dict():
            return {key: as_arrays(part, value[key]) for key, part in space.items()}
        case spaces.Tuple():
            return tuple(as_arrays(*pair) for pair in zip(space, value, strict=True))
        case spaces.Text():
            return Row(list(np.frombuffer(value.encode(), np.uint8)), np.uint8(0))
        case spaces.Sequence():
            return _row(space.feature_space, list(value))
        case spaces.Graph():
            parts = {"nodes": _row(space.node_space, list(value.nodes))}
            if space.edge_space is not None:
                parts["edges"] = _row(space.edge_space, list(() if value.edges is None else value.edges))
            links = () if value.edge_links is None else value.edge_links
            return {
                **parts,
                "edge_links": Row([link.astype(np.int32) for link in links], np.zeros(2, np.int32)),
            }
    return np.asarray(value, space.dtype)[()]


def _row(space: Any, items: list[Any]) -> Any:
    """Items of a space, as an array of each of its parts."""
    if isinstance(space, spaces.Dict):
        return {key: _row(part, [item[key] for item in items]) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_row(part, [item[number] for item in items]) for number, part in enumerate(space))
    return Row([as_arrays(space, item) for item in items], zeros(as_arrays(space, space.sample())))


# Rows


def episode_rows(
    number: int,
    episode: Any,
    infos: Mapping[str, Any] = {},
    form: Callable[[str, Any], Any] = lambda name, value: value,
) -> Rows:
    """The columns that every episode and every agent's part of one has.

    Args:
        number: of the episode in its view.
        episode: an episode, or an agent's part of one.
        infos: value that stands for an absent one, by the key of an info.
        form: of an observation or an action in a batch.
    """
    length = episode.length
    rows = Rows(number, length, CODES[episode.end_reason], missing=not episode.has_last_observation)
    seen = [form("observation", at(episode.observations, t)) for t in range(length + (not rows.missing))]
    seen += [zeros(seen[0])] * rows.missing
    truncated = [
        episode.truncations[t] or (t == length - 1 and episode.end_reason != "terminated")
        for t in range(length)
    ]
    transitions = {
        "action": [form("action", at(episode.actions, t)) for t in range(length)],
        "reward": list(episode.rewards),
        "terminated": list(episode.terminations),
        "truncated": list(map(np.bool_, truncated)),
    }
    rows.columns = {
        "observation": seen,
        "observation_present": [np.bool_(t < length or not rows.missing) for t in range(length + 1)],
        **{name: [*values, zeros(values[0])] for name, values in transitions.items()},
    }
    for key, absent in infos.items():
        add_cells(rows, f"info.{key}", [info.get(key) for info in episode.infos], absent)
    return rows


def add_cells(rows: Rows, name: str, cells: Sequence[Any], absent: Any) -> None:
    """Add a column of values that may be None, and where there is one."""
    there = [*cells, *[None] * (rows.length + 1 - len(cells))]
    if isinstance(absent, Row):
        rows.columns[name] = [absent if cell is None else Row(list(cell), absent.like) for cell in there]
    else:
        rows.columns[name] = [
            absent if cell is None else np.asarray(cell, absent.dtype)[()] for cell in there
        ]
    if isinstance(absent, np.str_):
        rows.columns[name] = [np.str_("" if cell is None else cell) for cell in there]
    rows.columns[f"{name}_present"] = [np.bool_(cell is not None) for cell in there]


def add_table(rows: Sequence[Rows], table: pl.DataFrame, names: Mapping[str, Any]) -> None:
    """Add columns of the table of episodes: each row has the value of its episode."""
    for each in rows:
        for name, absent in names.items():
            add_cells(each, name, [table[name][each.number]] * (each.length + 1), absent)


def add_parts(rows: Sequence[Rows], name: str, part: Callable[[Any], Any]) -> None:
    """Add a part of a column, such as `observation.image`."""
    for each in rows:
        each.columns[name] = [part(value) for value in each.columns[name.partition(".")[0]]]


def joint_rows(number: int, episode: Any, parts: Mapping[str, Rows | None], steps: Any, prefix: str) -> Rows:
    """The agents of each step of an episode side by side, absent ones as zeros.

    Args:
        number: of the episode in its view.
        episode: the episode.
        parts: the rows of each agent; None if it is not there. One at least is.
        steps: the steps of the environment of each agent's rows, by name.
        prefix: of the columns.
    """
    some = next(part for part in parts.values() if part is not None)
    rows = Rows(number, episode.length, CODES[episode.end_reason])
    names = {name: zeros(values[0]) for name, values in some.columns.items()}
    columns = {name: [[] for _ in range(rows.length + 1)] for name in [*names, "agent_mask"]}
    for name, part in parts.items():
        row_at = {} if part is None else {int(step): row for row, step in enumerate(steps[name])}
        for step in range(rows.length + 1):
            row = row_at.get(step)
            for column, absent in names.items():
                value = absent if part is None or row is None else part.columns[column][row]
                columns[column][step].append(value)
            columns["agent_mask"][step].append(np.bool_(row is not None and row < part.length))  # type: ignore
    rows.columns = {f"{prefix}{name}": list(map(stacked, values)) for name, values in columns.items()}
    return rows


# Transforms of rows


def add_returns(rows: Rows, gamma: float, key: str = "return_to_go") -> None:
    """The discounted sum of the rewards up to the end, from the definition."""
    found, following = [np.zeros_like(rows.columns["reward"][0])], 0.0
    for reward in rows.columns["reward"][-2::-1]:
        following = reward + gamma * following
        found.append(np.asarray(following, np.float64)[()])
    rows.columns[key] = found[::-1]


def add_advantages(rows: Rows, gamma: float, lam: float) -> None:
    """Advantages and value targets from the paper's equations; a last value may repeat the one before."""
    length, rewards = rows.length, rows.columns["reward"]
    values = list(rows.columns["policy.value"])
    if not rows.columns["policy.value_present"][length]:
        values[length] = values[length - 1]
    if rows.columns["terminated"][length - 1]:
        values[length] = 0.0
    deltas = [rewards[t] + gamma * values[t + 1] - values[t] for t in range(length)]
    found = [
        sum((gamma * lam) ** (later - t) * deltas[later] for later in range(t, length)) for t in range(length)
    ]
    rows.columns["advantage"] = [*map(np.float64, found), np.float64(0)]
    rows.columns["value_target"] = [*(np.float64(found[t] + values[t]) for t in range(length)), np.float64(0)]


def stacks(values: Sequence[Any], k: int, pad: str) -> list[Any]:
    """The last k values of an episode up to each, oldest first."""
    blank = zeros(values[0]) if pad == "zero" else values[0]
    return [
        stacked([values[place] if place >= 0 else blank for place in range(t - k + 1, t + 1)])
        for t in range(len(values))
    ]


# Units


def value(rows: Rows, key: str, t: int, ahead: int = 1) -> Any:
    """The value of a key at a step; of a key of the next row, that of the row `ahead`."""
    column = key.replace("next_", "", 1)
    return rows.columns[column][t if column == key else t + ahead]


def window_starts(length: int, window: int, stride: int, pad: str | None) -> list[int]:
    """The steps at which the windows of an episode begin, in order of time."""
    if pad is None:
        return [start for start in range(0, length, stride) if start + window <= length]
    if pad == "right":
        return list(range(0, length, stride))
    return sorted(end - window + 1 for end in range(length - 1, -1, -stride))


def units_of(
    rows: Rows, kind: Any, keys: Sequence[str], usable: int | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The units of an episode with the transition that each begins with.

    Args:
        rows: the episode.
        kind: the kind of unit.
        keys: of the units.
        usable: transitions that units are made of; None for all.
    """
    length = rows.length if usable is None else usable
    if isinstance(kind, el.Episodes):
        if length:
            yield 0, _whole(rows, keys, length)
    elif isinstance(kind, el.Windows):
        for start in window_starts(length, kind.length, kind.stride, kind.pad):
            steps = range(start - kind.burn_in, start + kind.length)
            yield start, {**_of_unit(rows), **_window(rows, keys, steps, length)}
    else:
        for t in range(length):
            found = {"t": np.int64(t), "end_reason": _end(rows, t, length), **_of_unit(rows)}
            own = {key: value(rows, key, t) for key in keys if key not in found and key not in MADE}
            if isinstance(kind, el.NSteps):
                found |= own | _span(rows, keys, t, min(t + kind.n, length), kind.gamma, length)
            elif isinstance(kind, el.Deltas):
                found |= own | _deltas(rows, kind.steps, t)
            else:
                found |= own
            yield t, found


#: Keys that are no columns.
MADE = ("mask", "span", "discount")


def _of_unit(rows: Rows) -> dict[str, Any]:
    return {"episode": np.int64(rows.number), "agent_id": np.int64(rows.agent)}


def _end(rows: Rows, t: int, usable: int) -> Any:
    return np.int8(rows.end if t == rows.length - 1 < usable else 0)


def _span(rows: Rows, keys: Sequence[str], t: int, stop: int, gamma: float, usable: int) -> dict[str, Any]:
    ends = {key: rows.columns[key][stop - 1] for key in ("terminated", "truncated")}
    rewards = rows.columns["reward"][t:stop]
    return {
        **{key: value(rows, key, t, stop - t) for key in keys if "next_" in key},
        **ends,
        "reward": np.asarray(sum(gamma**i * reward for i, reward in enumerate(rewards)), np.float64)[()],
        "discount": np.float64(0.0 if ends["terminated"] else gamma ** (stop - t)),
        "span": np.int64(stop - t),
        "end_reason": _end(rows, stop - 1, usable),
    }


def _window(rows: Rows, keys: Sequence[str], steps: range, usable: int) -> dict[str, Any]:
    real = [0 <= t < usable for t in steps]
    found = {
        "mask": np.array(real),
        "t": np.array(steps, np.int64),
        "end_reason": np.array([_end(rows, t, usable) for t in steps]),
    }
    for key in keys:
        if key not in found and key not in ("episode", "agent_id"):
            blank = zeros(value(rows, key, 0))
            found[key] = stacked(
                [value(rows, key, t) if there else blank for t, there in zip(steps, real, strict=True)]
            )
    return found


def _deltas(rows: Rows, steps: Mapping[str, Sequence[int]], t: int) -> dict[str, Any]:
    found: dict[str, Any] = {"mask": {}}
    for key, own in steps.items():
        column = key.replace("next_", "", 1)
        last = rows.length - rows.missing if column.startswith("observation") else rows.length - 1
        last -= column != key and column.startswith("observation")
        near = [min(max(t + step, 0), last) for step in own]
        found[key] = stacked([value(rows, key, place) for place in near])
        found["mask"][key] = np.array([place == t + step for place, step in zip(near, own, strict=True)])
    return found


def _whole(rows: Rows, keys: Sequence[str], usable: int) -> dict[str, Any]:
    steps = range(usable)
    found = {
        "mask": np.ones(usable, bool),
        "length": np.int64(usable),
        "t": np.arange(usable),
        "end_reason": np.array([_end(rows, t, usable) for t in steps]),
        **_of_unit(rows),
    }
    for key in keys:
        if key not in found:
            extra = "observation" in key.split(".")[:2] or key == "observation_present"
            found[key] = stacked([value(rows, key, t) for t in range(usable + extra)])
    return found


# Batches


def batch_of(units: Sequence[Mapping[str, Any]], keys: Sequence[str], *, ragged: bool) -> dict[str, Any]:
    """Units as a batch; those of whole episodes are padded to the longest, where `t` counts on."""
    found = {}
    for key in keys:
        values = [unit[key] for unit in units]
        if ragged and key not in ("length", "episode", "agent_id"):
            longest = max(len(first_leaf(each)) for each in values)
            values = [_lengthened(each, longest) for each in values]
        found[key] = stacked(values)
        if ragged and key == "t":
            found[key] = np.tile(np.arange(found[key].shape[1]), (len(units), 1))
    return found


def first_leaf(tree: Any) -> np.ndarray:
    """The first array of a nested value."""
    while isinstance(tree, Mapping | tuple):
        tree = tree[0] if isinstance(tree, tuple) else next(iter(tree.values()))
    return tree


def _lengthened(tree: Any, length: int) -> Any:
    if isinstance(tree, Mapping):
        return {key: _lengthened(part, length) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_lengthened(part, length) for part in tree)
    return np.concatenate([tree, np.zeros((length - len(tree), *tree.shape[1:]), tree.dtype)])


def assert_same(found: Any, expected: Any, name: str = "") -> None:
    """Both are the same nested values: keys in order, dtypes, shapes; floats but for the last bits."""
    if isinstance(expected, Mapping):
        assert list(found) == list(expected), f"{name}: {list(found)} are not {list(expected)}"
        for key in expected:
            assert_same(found[key], expected[key], f"{name}.{key}")
    elif isinstance(expected, tuple):
        assert len(found) == len(expected), name
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{name}.{number}")
    elif isinstance(expected, np.ndarray) and expected.dtype.hasobject:
        _assert_rows(found, expected, name)
    else:
        expected = np.asarray(expected)
        assert np.shape(found) == expected.shape, f"{name}: {np.shape(found)} is not {expected.shape}"
        kind = expected.dtype.kind
        assert found.dtype.kind == "U" if kind == "U" else found.dtype == expected.dtype, (
            f"{name}: {found.dtype}"
        )
        if not np.array_equal(found, expected, equal_nan=kind == "f"):
            tolerance = 1e-9 if expected.dtype == np.float64 else 0
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance / 100, err_msg=name)


def _assert_rows(found: Any, expected: np.ndarray, name: str) -> None:
    """Rows of different lengths, padded or not, are those of the plain loop."""
    if isinstance(found, Mapping):
        assert list(found) == ["values", "mask"], name
        padded, mask = found["values"], found["mask"]
        for place in np.ndindex(expected.shape):
            _assert_padded(padded[place], mask[place], expected[place], name)
        return
    assert found.leading == expected.shape and len(found.offsets) == expected.size + 1, name
    for place in np.ndindex(expected.shape):
        row = expected[place]
        # A unit is lengthened by zeros, in whose place rows are empty.
        _assert_items(found[place], row.items if isinstance(row, Row) else [], name)
        if isinstance(row, Row):
            assert found.dtype == _innermost(row).dtype, name


def _innermost(row: Row) -> Any:
    return _innermost(row.like) if isinstance(row.like, Row) else row.like


def _assert_items(found: Any, items: list[Any], name: str) -> None:
    assert len(found) == len(items), f"{name}: {len(found)} values, not {len(items)}"
    if items and isinstance(items[0], Row):
        for one, other in zip(found, items, strict=True):
            _assert_items(one, other.items, name)
    elif items:
        assert np.array_equal(found, np.stack(items)), f"{name}: {found} is not {items}"


def _assert_padded(padded: np.ndarray, mask: np.ndarray, row: Any, name: str) -> None:
    items = row.items if isinstance(row, Row) else []
    count = len(items)
    assert not mask[count:].any() and not padded[count:].any(), f"{name}: {padded}, {mask}"
    if mask.ndim > 1:
        for one, there, item in zip(padded, mask, items, strict=False):
            _assert_padded(one, there, item, name)
    elif count:
        assert mask[:count].all() and np.array_equal(padded[:count], np.stack(items)), f"{name}: {padded}"
