"""Exported datasets as their own libraries read them: episodes as dicts of what the format holds."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from gymnasium import spaces

import episodelake as el
from independent_values import Array, dynamic_values, space_value
from strategies import stack

Episodes = Iterator[dict[str, Any]]


def rows_of(arrays: Any, count: int) -> list[dict[str, Any]]:
    """Arrays by key, nested, as a dict for each row; texts that HDF5 gives as bytes as texts."""
    return [{key: _row(values, t) for key, values in (arrays or {}).items()} for t in range(count)]


def _row(values: Any, t: int) -> Any:
    if isinstance(values, dict):
        return {key: _row(part, t) for key, part in values.items()}
    value = values[t]
    return value.decode() if isinstance(value, bytes) else value


def plain(value: Any) -> Any:
    """A value as dicts, lists and numbers of Python."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value.decode() if isinstance(value, bytes) else value


def minari(target: Path, store: el.EpisodeStore) -> Episodes:
    """By `MinariDataset`, all episodes in one go."""
    dataset = importlib.import_module("minari").MinariDataset(target / "data")
    assert (dataset.observation_space, dataset.action_space) == (store.observation_space, store.action_space)
    assert dataset.total_steps == sum(len(episode.rewards) for episode in dataset.iterate_episodes())
    facts = dataset.storage.get_episode_metadata(dataset.episode_indices)
    for episode, known in zip(dataset.iterate_episodes(), map(plain, facts), strict=True):
        yield {
            "observations": episode.observations,
            "actions": episode.actions,
            "rewards": episode.rewards,
            "flags": (bool(episode.terminations[-1]), bool(episode.truncations[-1])),
            "infos": rows_of(episode.infos, len(episode.rewards) + 1),
            "seed": known.pop("seed", None),
            "options": known.pop("options", None),
            "metadata": {key: part for key, part in known.items() if key not in ("id", "total_steps")},
        }


def d4rl(target: Path, store: el.EpisodeStore) -> Episodes:
    """As `d4rl.qlearning_dataset` takes the arrays of a file."""
    arrays: dict[str, Any] = {}
    with h5py.File(target) as file:
        file.visititems(lambda name, item: arrays.update({name: item[()]} if hasattr(item, "dtype") else {}))
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
        yield {
            "observations": np.concatenate([rows["observations"], rows["next_observations"][-1:]]),
            "actions": rows["actions"],
            "rewards": rows["rewards"],
            "flags": (bool(rows["terminals"][-1]), bool(rows["timeouts"][-1])),
            "infos": [*rows_of(infos, end - first), {}],
        }


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
        yield {
            "observations": _shaped(store.observation_space, observations),
            "actions": _shaped(store.action_space, np.stack([each.action for each in picked])),
            "rewards": np.concatenate([each.reward for each in picked]),
            "flags": (episode.terminated, False),
        }


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
        yield {
            "observations": seen if named else seen["observation"],
            "actions": read["actions"].astype(columns["actions"].dtype),
            "rewards": read["rewards"],
            "flags": (bool(read["dones"][-1]), False),
            "extra": plain({key: part for key, part in columns.items() if key not in _TRAJECTORY}),
            "metadata": {key: plain(part) for key, part in attributes.items() if key != "num_samples"},
        }


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

        yield {
            "observations": side("observation"),
            "actions": side("action"),
            "rewards": np.array([row["next.reward"] for row in own]),
            "flags": (
                own[-1]["next.done"] and not own[-1]["next.truncated"],
                own[-1]["next.truncated"],
            ),
            "seed": fact["episodelake/seed"],
            "options": json.loads(fact["episodelake/options"] or "null"),
            "metadata": json.loads(fact["episodelake/metadata"]),
        }


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
            yield {
                "observations": np.concatenate([own["obs"], own["new_obs"][-1:]]),
                "actions": own["actions"],
                "rewards": own["rewards"],
                "flags": (bool(own["terminateds"][-1]), bool(own["truncateds"][-1])),
                "policy": {key: own[key] for key in own if key not in _RLLIB},
            }


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
            yield {
                "observations": _tuples(store.observation_space, found["observations"]["data"]),
                "actions": _tuples(store.action_space, found["actions"]["data"]),
                "rewards": found["rewards"]["data"],
                "flags": (found["is_terminated"], found["is_truncated"]),
                "infos": found["infos"]["data"],
                "policy": {k: v["data"] for k, v in (found["extra_model_outputs"] or {}).items()},
            }


def _tuples(space: spaces.Space, values: Any) -> Any:
    """Values with tuples where msgpack has lists."""
    if isinstance(space, spaces.Dict):
        return {key: _tuples(part, values[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(_tuples, space.spaces, values))
    return values


def parquet(target: Path, store: el.EpisodeStore) -> Episodes:
    """By Polars, from cells to values by docs/format.md alone; arrays of infos and the like are flat."""
    told = json.loads((pq.read_schema(target).metadata or {})[b"episodelake.spaces"])
    both = (("observation", store.observation_space), ("action", store.action_space))
    by_episode = pl.read_parquet(target).partition_by("episode", maintain_order=True)
    for rows in (frame.to_dicts() for frame in by_episode):
        acted = [row for row in rows if row["action" if "action" in row else "reward"] is not None]
        observed = [row for row in rows if any(row[name] is not None for name in row if name[:3] == "obs")]
        seen = {
            side: stack(space, [space_value(each, side, row) for row in some])
            for (side, space), each, some in zip(both, told, (observed, acted), strict=True)
        }
        yield {
            "observations": seen["observation"],
            "actions": seen["action"],
            "rewards": np.array([row["reward"] for row in acted]),
            "flags": (acted[-1]["terminated"], acted[-1]["truncated"]),
            "rows": {part: [_family(prefix, row) for row in rows] for part, prefix in _FAMILIES.items()},
            "seed": rows[0]["seed"],
            "metadata": _family("metadata.", rows[0]),
        }


_FAMILIES = {"infos": "info.", "policy": "policy.", "extra": ""}


def _family(prefix: str, row: dict[str, Any]) -> dict[Any, Any]:
    """The values of a family of columns in a row, arrays as their elements."""
    own = [name for name in row if (name.startswith(prefix) if prefix else name[:2] in ("x", "x.", "_j"))]
    return elements(dynamic_values(prefix, dict.fromkeys(own, ""), row))


def elements(value: Any) -> Any:
    """A value with the elements of arrays in C order, in place of arrays."""
    if isinstance(value, dict):
        return {key: elements(part) for key, part in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return value.ravel().tolist() if value.shape else value.item()
    if isinstance(value, Array):
        return list(value.elements) if value.shape else value.elements[0]
    if isinstance(value, list | tuple):
        return [elements(part) for part in value]
    return list(value) if isinstance(value, bytes) else value


#: Formats by name: the options of the export, the suffix of the target, and the reader.
READERS: dict[str, tuple[dict[str, Any], str, Callable[[Path, el.EpisodeStore], Episodes]]] = {
    "minari-hdf5": ({}, "", minari),
    "minari-arrow": ({"data_format": "arrow"}, "", minari),
    "minari-parquet": ({"data_format": "parquet"}, "", minari),
    "d4rl": ({}, ".hdf5", d4rl),
    "d3rlpy": ({}, ".h5", d3rlpy),
    "robomimic": ({}, ".hdf5", robomimic),
    "lerobot": ({"frames": "image"}, "", lerobot),
    "parquet": ({"layout": "steps"}, ".parquet", parquet),
    "rllib-rows": ({"kind": "rows"}, "", rllib_rows),
    "rllib-episodes": ({"kind": "episodes"}, "", rllib_episodes),
}
#: Formats whose readers are in `make test-peers` alone.
PEERS = ("d3rlpy", "robomimic")
