"""Our episodes beside those that the independent reader found; shared by the tests of docs/format.md."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import GraphInstance

import episodelake as el
import independent_reader
from independent_reader import read_store
from independent_values import Array


def spread(space: spaces.Space, value: Any) -> Any:
    """A value of a space as the independent reader gives it: lists, dicts and Python numbers."""
    match space:
        case spaces.Dict():
            return {key: spread(child, value[key]) for key, child in space.spaces.items()}
        case spaces.Tuple():
            return [spread(child, part) for child, part in zip(space.spaces, value, strict=True)]
        case spaces.OneOf():
            return [int(value[0]), spread(space.spaces[int(value[0])], value[1])]
        case spaces.Sequence():
            return [spread(space.feature_space, each) for each in elements(space, value)]
        case spaces.Graph():
            return _spread_graph(space, value)
        case spaces.Text():
            return value
    return np.asarray(value).tolist()


def elements(space: spaces.Sequence, value: Any) -> list[Any]:
    """The elements of a value of a Sequence, stacked or not."""
    return unstacked(space.feature_space, value) if space.stack else list(value)


def unstacked(space: spaces.Space, batch: Any) -> list[Any]:
    """The values that were stacked, one by one."""
    match space:
        case spaces.Dict() if space.spaces:
            columns = {key: unstacked(child, batch[key]) for key, child in space.spaces.items()}
            return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        case spaces.Tuple() if space.spaces:
            parts = [unstacked(child, part) for child, part in zip(space.spaces, batch, strict=True)]
            return list(zip(*parts, strict=True))
    return list(batch)


def _spread_graph(space: spaces.Graph, value: GraphInstance) -> list[Any]:
    nodes = [spread(space.node_space, each) for each in value.nodes]
    edges = None
    if value.edges is not None and space.edge_space is not None:
        edges = [spread(space.edge_space, each) for each in value.edges]
    return [nodes, edges, None if value.edge_links is None else value.edge_links.tolist()]


def plain(value: Any) -> Any:
    """A dynamic value as the independent reader gives it."""
    match value:
        case np.ndarray():
            name = value.dtype.name if value.dtype.kind in "biuf" else value.dtype.str[1:]
            return Array(name, value.shape, tuple(value.ravel().tolist()))
        case np.generic():
            return value.item()
        case el.types.OpaqueValue():
            return ("an object", value.type_name, value.text)
        case dict():
            return {plain(key): plain(item) for key, item in value.items()}
        case list():
            return [plain(item) for item in value]
        case tuple():
            return tuple(plain(item) for item in value)
        case frozenset():
            return frozenset(plain(item) for item in value)
    return value


def same(left: Any, right: Any) -> bool:
    """Whether two plain values agree in type and value; NaN equals NaN, a scalar its array of shape ()."""
    if isinstance(left, Array) and isinstance(right, Array):
        return (left.dtype, left.shape) == (right.dtype, right.shape) and same(left.elements, right.elements)
    if isinstance(left, Array) and left.shape == () and isinstance(right, int | float):
        return same(left.elements[0], right)
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and type(left) is type(right):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return type(left) is type(right) and left == right


def by_key(rows: list[dict[Any, Any]], *, trimmed: bool) -> dict[Any, list[Any]]:
    """Rows of mappings as columns; with `trimmed` without the last row where nothing is there."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return {
        key: [row.get(key) for row in (rows if key in rows[-1] or not trimmed else rows[:-1])] for key in keys
    }


def assert_lane(lane: independent_reader.Lane, ours: el.Episode, observation: Any, action: Any) -> None:
    """An episode of one agent, or one agent of an episode, is what the independent reader found."""
    count = len(ours.rewards)
    rows = strategies_rows(observation, ours.observations, count + ours.has_last_observation)
    assert same(lane.observations, rows)
    assert same(lane.actions, strategies_rows(action, ours.actions, count))
    assert same(lane.rewards, ours.rewards.tolist())
    assert lane.terminations == ours.terminations.tolist()
    assert lane.truncations == ours.truncations.tolist()
    assert same(lane.infos, plain(ours.infos))
    short = not ours.has_last_observation
    for found, wanted, trimmed in ((lane.policy, ours.policy, True), (lane.extra, ours.extra, short)):
        columns = by_key(found, trimmed=trimmed)
        assert same(columns, {key: [plain(each) for each in values] for key, values in wanted.items()})


def strategies_rows(space: spaces.Space, batch: Any, count: int) -> list[Any]:
    """The values of a batch that the Episode API gave, each as the independent reader has it."""
    match space:
        case spaces.Dict() if space.spaces:
            columns = {key: strategies_rows(child, batch[key], count) for key, child in space.spaces.items()}
            return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        case spaces.Tuple() if space.spaces:
            parts = [
                strategies_rows(child, part, count) for child, part in zip(space.spaces, batch, strict=True)
            ]
            return [list(row) for row in zip(*parts, strict=True)]
        case spaces.Dict():
            return [{}] * count
        case spaces.Tuple():
            return [[]] * count
    return [spread(space, value) for value in batch]


def assert_agree(path: Path, version: int | None = None) -> list[independent_reader.Episode]:
    """The independent reader finds in a version of a store what ours does, episode by episode."""
    store = el.open(path, version)
    found = read_store(path, version)
    rows = store.episodes.collect().to_dicts()
    assert [each.row["episode_id"] for each in found] == [row["episode_id"] for row in rows]
    groups = {group.name: (group.observation_space, group.action_space) for group in store.agent_groups}
    spaces_of = {None: (store.observation_space, store.action_space)}
    for each, ours, row in zip(found, store, rows, strict=True):
        if groups:
            named = zip(row["agents"], row["agent_groups"], strict=True)
            spaces_of = {agent: groups[group] for agent, group in named}
        assert all(same(value, row[name]) for name, value in each.row.items())
        assert same(each.metadata, plain(ours.metadata)) and same(each.options, plain(ours.options))
        added = {
            name: values[:-1] if values[-1] is None else values
            for name, values in each.step_annotations.items()
        }
        for agent, lane in each.lanes.items():
            one = ours if agent is None else ours.agent(agent)
            assert_lane(lane, one, *spaces_of[agent])
            if agent is None:
                assert same(
                    added, {key: [plain(v) for v in values] for key, values in ours.step_annotations.items()}
                )
            else:
                assert lane.env_steps == one.env_steps.tolist()
    return found


def play_some(recorder: Any, seeds: range, steps: int) -> int:
    """Play episodes with logged values, and some steps of one more; how many transitions that were."""
    total = 0
    for seed in [*seeds, seeds.stop]:
        recorder.reset(seed=seed)
        for _ in range(steps if seed == seeds.stop else 10_000):
            recorder.log(value=float(total))
            total += 1
            if any(recorder.step(recorder.action_space.sample())[2:4]):
                recorder.log(value=-1.0)
                break
    return total
