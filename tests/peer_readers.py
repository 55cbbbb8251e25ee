"""Exported datasets as their own libraries read them: episodes as dicts of what the format holds."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from gymnasium import spaces

import episodelake as el
from episodelake.testing.format_compare import PeerEpisode, plain
from independent_values import Array, dynamic_values, family, space_value
from strategies import stack

Episodes = Iterator[PeerEpisode]


def rows_of(arrays: Any, count: int) -> list[dict[str, Any]]:
    """Arrays by key, nested, as a dict for each row; texts that HDF5 gives as bytes as texts."""
    return [{key: _row(values, t) for key, values in (arrays or {}).items()} for t in range(count)]


def _row(values: Any, t: int) -> Any:
    if isinstance(values, dict):
        return {key: _row(part, t) for key, part in values.items()}
    value = values[t]
    return value.decode() if isinstance(value, bytes) else value


def minari(target: Path, store: el.EpisodeStore) -> Episodes:
    """By `MinariDataset`, all episodes in one go."""
    dataset = importlib.import_module("minari").MinariDataset(target / "data")
    assert (dataset.observation_space, dataset.action_space) == (store.observation_space, store.action_space)
    assert dataset.total_steps == sum(len(episode.rewards) for episode in dataset.iterate_episodes())
    facts = dataset.storage.get_episode_metadata(dataset.episode_indices)
    for episode, known in zip(dataset.iterate_episodes(), map(plain, facts), strict=True):
        yield PeerEpisode(
            observations=episode.observations,
            actions=episode.actions,
            rewards=episode.rewards,
            flags=(bool(episode.terminations[-1]), bool(episode.truncations[-1])),
            infos=rows_of(episode.infos, len(episode.rewards) + 1),
            seed=known.pop("seed", None),
            options=known.pop("options", None),
            metadata={key: part for key, part in known.items() if key not in ("id", "total_steps")},
        )


def d4rl(target: Path, store: el.EpisodeStore) -> Episodes:
    """As `d4rl.qlearning_dataset` takes the arrays of a file."""
    arrays: dict[str, Any] = {}
    with h5py.File(target) as file:
        file.visititems(lambda name, item: arrays.update({name: item[()]} if hasattr(item, "dtype") else {}))
    arrays = {name: array for name, array in arrays.items() if not name.startswith("metadata/")}
    assert all(len(array) == len(arrays["rewards"]) for array in arrays.values())
    ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"]) + 1
    for first, end in zip([0, *ends[:-1]], ends, strict=True):
        rows = {name: array[first:end] for name, array in arrays.items()}
        infos: dict[str, Any] = {}
        for name, values in rows.items():
            if name.startswith("infos/"):
                *parents, last = name.split("/")[1:]
                place = infos
                for key in parents:
                    place = place.setdefault(key, {})
                place[last] = values
        yield PeerEpisode(
            observations=np.concatenate([rows["observations"], rows["next_observations"][-1:]]),
            actions=rows["actions"],
            rewards=rows["rewards"],
            flags=(bool(rows["terminals"][-1]), bool(rows["timeouts"][-1])),
            infos=[*rows_of(infos, end - first), {}],
        )


def d3rlpy(target: Path, store: el.EpisodeStore) -> Episodes:
    """By `ReplayBuffer.load` and its transition picker; batches of all transitions can be made."""
    dataset = importlib.import_module("d3rlpy.dataset")
    with target.open("rb") as file:
        buffer = dataset.ReplayBuffer.load(file, dataset.InfiniteBuffer())
    assert len(buffer.sample_transition_batch(9)) == 9
    if isinstance(store.action_space, spaces.Discrete):
        assert buffer.dataset_info.action_size <= store.action_space.n
    for episode in buffer.episodes:
        picked = [buffer.transition_picker(episode, index) for index in range(episode.transition_count)]
        seen = [each.observation for each in picked]
        if not episode.terminated:
            seen.append(picked[-1].next_observation)
        several = isinstance(store.observation_space, spaces.Tuple)
        observations: Any = tuple(map(np.stack, zip(*seen, strict=True))) if several else np.stack(seen)
        yield PeerEpisode(
            observations=_shaped(store.observation_space, observations),
            actions=_shaped(store.action_space, np.stack([each.action for each in picked])),
            rewards=np.concatenate([each.reward for each in picked]),
            flags=(episode.terminated, False),
        )


def _shaped(space: spaces.Space, values: Any) -> Any:
    """Rows of one number as numbers, where the space has numbers."""
    if isinstance(space, spaces.Tuple):
        return tuple(map(_shaped, space.spaces, values))
    return values.reshape(len(values), *space.shape) if space.shape == () else values


def robomimic(target: Path, store: el.EpisodeStore) -> Episodes:
    """By `SequenceDataset`."""
    dataset = importlib.import_module("robomimic.utils.dataset")
    named = isinstance(store.observation_space, spaces.Dict)
    keys = list(store.observation_space) if named else ["observation"]  # type: ignore[call-overload]
    found = dataset.SequenceDataset(str(target), keys, ("actions", "rewards", "dones"))
    with h5py.File(target) as file:
        demos = {name: (dict(demo.attrs), _arrays(demo)) for name, demo in file["data"].items()}
    for index, (attributes, columns) in enumerate(demos.values()):
        read = found.get_trajectory_at_index(index)
        seen = {
            key: np.concatenate([read["obs"][key], read["next_obs"][key][-1:]]).astype(
                columns["obs"][key].dtype
            )
            for key in keys
        }
        yield PeerEpisode(
            observations=seen if named else seen["observation"],
            actions=read["actions"].astype(columns["actions"].dtype),
            rewards=read["rewards"],
            flags=(bool(read["dones"][-1]), False),
            extra=plain({key: part for key, part in columns.items() if key not in _TRAJECTORY}),
            metadata={key: plain(part) for key, part in attributes.items() if key != "num_samples"},
        )


_TRAJECTORY = ("obs", "next_obs", "actions", "rewards", "dones")


def _arrays(group: Any) -> dict[str, Any]:
    return {key: _arrays(part) if isinstance(part, h5py.Group) else part[()] for key, part in group.items()}


def lerobot(target: Path, store: el.EpisodeStore) -> Episodes:
    """The rows of the Parquet files, with images, by the features of `meta/info.json`."""
    image = importlib.import_module("PIL.Image")
    features = json.loads((target / "meta/info.json").read_text())["features"]
    ours = json.loads((target / "meta/episodelake.json").read_text())
    rows = pa.concat_tables(map(pq.read_table, sorted((target / "data").rglob("*.parquet")))).to_pylist()
    facts = pa.concat_tables(map(pq.read_table, sorted((target / "meta/episodes").rglob("*.parquet"))))
    for fact in facts.to_pylist():
        own = rows[fact["dataset_from_index"] : fact["dataset_to_index"]]
        assert {row["episode_index"] for row in own} == {fact["episode_index"]}

        def side(name: str, own: Any = own) -> Any:
            def read(space: spaces.Space, path: list[str]) -> Any:
                if isinstance(space, spaces.Dict):
                    return {key: read(part, [*path, key]) for key, part in space.spaces.items()}
                if isinstance(space, spaces.Tuple):
                    return tuple(read(part, [*path, str(i)]) for i, part in enumerate(space.spaces))
                (feature,) = (key for key, each in ours[name]["features"].items() if each == path)
                values = [row[feature] for row in own]
                if features[feature]["dtype"] == "image":
                    data = [importlib.import_module("io").BytesIO(each["bytes"]) for each in values]
                    values = [np.asarray(image.open(each)) for each in data]
                return np.array(values, space.dtype).reshape(len(own), *space.shape)

            return read(getattr(store, f"{name}_space"), [])

        yield PeerEpisode(
            observations=side("observation"),
            actions=side("action"),
            rewards=np.array([row["next.reward"] for row in own]),
            flags=(
                own[-1]["next.done"] and not own[-1]["next.truncated"],
                own[-1]["next.truncated"],
            ),
            seed=fact["episodelake/seed"],
            options=json.loads(fact["episodelake/options"] or "null"),
            metadata=json.loads(fact["episodelake/metadata"]),
        )


def rllib_rows(target: Path, store: el.EpisodeStore) -> Episodes:
    """The columns of the Parquet files, tensors by the shape that their type tells Ray."""
    for file in sorted(target.glob("*.parquet")):
        table = pq.read_table(file)
        columns = {}
        for field in table.schema:
            shape = json.loads((field.metadata or {}).get(b"ARROW:extension:metadata", b"[]"))
            values = table[field.name].combine_chunks()
            flat = values.flatten() if shape else values
            columns[field.name] = flat.to_numpy(zero_copy_only=False).reshape(len(table), *shape)
        names = columns.pop("eps_id")
        for name in dict.fromkeys(names):
            own = {key: values[names == name] for key, values in columns.items()}
            assert own["t"].tolist() == list(range(len(own["t"])))
            yield PeerEpisode(
                observations=np.concatenate([own["obs"], own["new_obs"][-1:]]),
                actions=own["actions"],
                rewards=own["rewards"],
                flags=(bool(own["terminateds"][-1]), bool(own["truncateds"][-1])),
                policy={key: own[key] for key in own if key not in _RLLIB},
            )


_RLLIB = ("t", "obs", "new_obs", "actions", "rewards", "terminateds", "truncateds")


def rllib_episodes(target: Path, store: el.EpisodeStore) -> Episodes:
    """The states that `SingleAgentEpisode.from_state` takes, unpacked as msgpack-numpy does."""
    msgpack = importlib.import_module("msgpack")

    def decoded(value: Any) -> Any:
        if b"nd" not in value:
            return value
        array = np.frombuffer(value[b"data"], value[b"type"]) if value[b"data"] else np.zeros(0)
        return array.reshape(value[b"shape"]).astype(value[b"type"]) if value[b"nd"] else array[0]

    for file in sorted(target.glob("*.parquet")):
        for state in pq.read_table(file)["item"].to_pylist():
            found = msgpack.unpackb(state, object_hook=decoded, strict_map_key=False)
            yield PeerEpisode(
                observations=_tuples(store.observation_space, found["observations"]["data"]),
                actions=_tuples(store.action_space, found["actions"]["data"]),
                rewards=found["rewards"]["data"],
                flags=(found["is_terminated"], found["is_truncated"]),
                infos=found["infos"]["data"],
                policy={k: v["data"] for k, v in (found["extra_model_outputs"] or {}).items()},
            )


def _tuples(space: spaces.Space, values: Any) -> Any:
    """Values with tuples where msgpack has lists."""
    if isinstance(space, spaces.Dict):
        return {key: _tuples(part, values[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(_tuples, space.spaces, values))
    return values


def parquet(target: Path, store: el.EpisodeStore) -> Episodes:
    """By Polars, from cells to values by docs/format.md alone."""
    schema = pq.read_schema(target)
    told = json.loads((schema.metadata or {})[b"episodelake.spaces"])
    kinds = {each.name: (each.metadata or {}).get(b"kind", b"").decode() for each in schema}
    after = {f"next_{name}" for name in schema.names} & {*schema.names}
    kinds = {name: kind for name, kind in kinds.items() if kind and name not in after}
    both = (("observation", store.observation_space), ("action", store.action_space))
    by_episode = pl.read_parquet(target).partition_by("episode", maintain_order=True)
    for rows in (frame.to_dicts() for frame in by_episode):
        if after:  # of transitions: what follows the last one is a row of its own
            rows.append({name: rows[-1].get(f"next_{name}") for name in schema.names})
        acted = [row for row in rows if row["reward"] is not None]
        observed = [row for row in rows if any(row[name] is not None for name in row if name[:3] == "obs")]
        seen = {
            side: stack(space, [_typed(space, space_value(each, side, row)) for row in some])
            for (side, space), each, some in zip(both, told, (observed, acted), strict=True)
        }
        infos, policy, extra, metadata = (
            [_unpacked(dynamic_values(prefix, family(prefix, kinds), row)) for row in rows]
            for prefix in ("info.", "policy.", "", "metadata.")
        )
        yield PeerEpisode(
            observations=seen["observation"],
            actions=seen["action"],
            rewards=np.array([row["reward"] for row in acted]),
            flags=(acted[-1]["terminated"], acted[-1]["truncated"]),
            infos=infos,
            policy=columns_of(policy[: len(acted)]),
            extra=columns_of(extra),
            seed=rows[0].get("seed"),
            metadata=metadata[0],
        )


def columns_of(rows: list[Any]) -> dict[str, Any]:
    """Rows of nested dicts as nested columns; dicts of other keys in each row stay as they are."""
    columns: dict[str, Any] = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        values = [row.get(key) for row in rows]
        forms = {tuple(value) if isinstance(value, dict) else None for value in values}
        columns[key] = values if forms & {None, ()} or len(forms) > 1 else columns_of(values)
    return columns


def _unpacked(value: Any) -> Any:
    """A value with arrays of NumPy."""
    if isinstance(value, dict):
        return {key: _unpacked(part) for key, part in value.items()}
    if isinstance(value, Array):
        array = np.array(value.elements, None if value.dtype[0] == "U" else value.dtype)
        return array.reshape(value.shape)
    return [_unpacked(part) for part in value] if isinstance(value, list) else value


def _typed(space: spaces.Space, value: Any) -> Any:
    """A value of a space from nested lists, as Gymnasium has it."""
    match space:
        case spaces.Dict():
            return {key: _typed(part, value[key]) for key, part in space.spaces.items()}
        case spaces.Tuple():
            return tuple(map(_typed, space.spaces, value))
        case spaces.OneOf():
            return np.int64(value[0]), _typed(space.spaces[value[0]], value[1])
        case spaces.Sequence():
            return tuple(_typed(space.feature_space, each) for each in value)
        case spaces.Graph():
            nodes = np.array(value[0], space.node_space.dtype).reshape(-1, *space.node_space.shape)
            return spaces.GraphInstance(nodes, None, None)
    return value if isinstance(space, spaces.Text) else np.array(value, space.dtype)[()]
