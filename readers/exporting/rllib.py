"""RLlib's offline data: rows or `SampleBatch`es in Parquet, JSON lines, or episodes as `item`.

N transitions make N rows. Rows and batches have the columns that `OfflinePreLearner` reads. Episodes are
states of `SingleAgentEpisode`, which keep infos, too, and values of every space. RLlib's readers of batches
and episodes take only those that are terminated or truncated.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...store.batches import slice_batch
from ...store.dynamic.column_groups import EXTRA, INFO, METADATA
from ...store.errors import DatasetError, InvalidArgumentError
from ...store.optional_packages import require
from ..episode import Episode
from .flat import refuse_vector_rewards
from .hdf5 import lose_facts
from .rllib_spaces import space_to_dict
from .target import LOST_EPISODE, LOST_TRANSITION, Export

_FILE_STEPS = 1 << 16
_EXTRA_PACKAGES = "'episodelake[rllib]'"
_TENSOR = "ray.data.arrow_tensor_v2"
_COLUMNS = frozenset({"eps_id", "t", "obs", "new_obs", "actions", "rewards", "terminateds", "truncateds"})
_Space = dict[str, Any] | None
_NOT_POLICY = _COLUMNS | {"agent_id", "module_id", "infos", "agent_index", "dones", "unroll_id", "type"}


class _Format:
    name = "rllib"
    extra = _EXTRA_PACKAGES
    folder = True
    agents = False
    options: ClassVar[dict[str, str]] = {
        "kind": "rows, episodes, batches or json; rows by default",
        "cut": "'truncated' to set that flag where an episode was cut or interrupted; None by default",
    }

    def write(self, export: Export, target: Path) -> None:
        """Write a folder of files with some 65,000 transitions each."""
        kind = export.options.get("kind", "rows")
        write = _WRITERS.get(kind)
        if write is None:
            raise InvalidArgumentError(f"kind={kind!r} is unknown; expected one of {', '.join(_WRITERS)}.")
        if export.options.get("cut") not in (None, "truncated"):
            raise InvalidArgumentError(f"cut={export.options['cut']!r}; expected 'truncated' or None.")
        refuse_vector_rewards(export.context, "RLlib")
        export.lose_columns(EXTRA, METADATA, *([] if kind == "episodes" else [INFO]))
        for key in export.card:
            export.losses.add(f"{key} of the card")
        if kind != "episodes":
            _check_spaces(export, kind)
            export.lose_spaces()
        target.mkdir(parents=True)
        for number, episodes in enumerate(_groups(export)):
            write(export, episodes, target / f"{number:06d}")


def rllib_episodes(module: Any, export: Export) -> list[Any]:
    """Return a `SingleAgentEpisode` of RLlib's `module` for each episode with a transition.

    Infos come along, and numbers that the policy recorded are in `extra_model_outputs`.

    Raises:
        DatasetError: the rewards are vectors.
    """
    refuse_vector_rewards(export.context, "RLlib's SingleAgentEpisode")
    export.lose_columns(EXTRA, METADATA)
    spaces = _spaces(export)
    # What the store hands out may share its memory.
    return [
        module.SingleAgentEpisode.from_state(copy.deepcopy(_state(export, episode, spaces)))
        for episode in _whole(export)
    ]


def _check_spaces(export: Export, kind: str) -> None:
    schema = export.context.snapshot.schema
    for codec in (schema.observation, schema.action):
        whole = len(codec.fields) == 1 and codec.leaves and codec.leaves[0].column == codec.root
        flat = whole and codec.leaves[0].size and (kind == "rows" or len(codec.leaves[0].shape) < 2)
        if not flat:
            raise DatasetError(
                f"RLlib cannot read {kind} with values of the space {codec.space} ({codec.root}). Export "
                "kind='episodes'."
            )


def _groups(export: Export) -> Iterator[list[Episode]]:
    """Yield episodes until they have enough steps for a file."""
    some: list[Episode] = []
    count = 0
    for episode in _whole(export):
        lose_facts(episode, export, metadata=False)
        some.append(episode)
        count += episode.length
        if count >= _FILE_STEPS:
            yield some
            some, count = [], 0
    if some:
        yield some


def _whole(export: Export) -> Iterator[Episode]:
    """Yield the episodes that have a transition with a next observation, and count the others."""
    for episode in export.episodes():
        if _steps(episode):
            yield episode
        else:
            export.losses.add(LOST_EPISODE)


def _steps(episode: Episode) -> int:
    """Return how many transitions have a next observation."""
    return episode._observation_count - 1


def _flags(export: Export, episode: Episode, steps: int) -> tuple[bool, bool]:
    """Return terminated and truncated of the last transition, and count what they do not tell."""
    if steps < episode.length:
        export.losses.add(LOST_TRANSITION)
    elif episode.terminated and episode.truncated:
        return True, True
    elif episode.end_reason in ("terminated", "truncated"):
        return episode.terminated, episode.truncated
    if episode.end_reason == "interrupted":
        export.losses.add("that an episode was interrupted, not cut")
    if export.options.get("cut") == "truncated":
        export.losses.add("that an episode was cut, not truncated")
        return False, True
    return False, False


def _outputs(export: Export, episode: Episode, steps: int) -> dict[str, np.ndarray]:
    """Return what the policy recorded as one array for each key, if it is numbers at every step."""
    found: dict[str, np.ndarray] = {}
    for key, values in episode.policy.items():
        array = np.asarray(values[:steps]) if not isinstance(values, Mapping) else np.empty(0, object)
        if array.dtype.kind not in "biuf" or key in _NOT_POLICY:
            export.losses.add(f"policy.{key}, which is not a number or array of one shape at every step")
        else:
            found[key] = array
    return found


def _columns(export: Export, episode: Episode) -> dict[str, np.ndarray]:
    """Return an episode as RLlib's columns, T values each."""
    steps = _steps(episode)
    last = np.arange(steps) == steps - 1
    terminated, truncated = _flags(export, episode, steps)
    observations: Any = episode.observations
    return {
        "eps_id": np.full(steps, episode.id),
        "t": np.arange(steps),
        "obs": observations[:-1],
        "new_obs": observations[1:],
        "actions": slice_batch(episode.actions, 0, steps),
        "rewards": episode.rewards[:steps],
        "terminateds": last & terminated,
        "truncateds": last & truncated,
        **_outputs(export, episode, steps),
    }


def _write_rows(export: Export, episodes: list[Episode], file: Path) -> None:
    arrays: list[pa.Array] = []
    fields: list[pa.Field] = []
    for name, parts in _common(export, episodes).items():
        values = np.concatenate(parts)
        array = pa.array(values.reshape(-1))
        told = None
        if values.ndim > 1:
            size = int(np.prod(values.shape[1:]))
            array = pa.LargeListArray.from_arrays(np.arange(len(values) + 1) * size, array)
            shape = json.dumps(values.shape[1:])
            told = {"ARROW:extension:name": _TENSOR, "ARROW:extension:metadata": shape}
        arrays.append(array)
        fields.append(pa.field(name, array.type, metadata=told))
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), file.with_suffix(".parquet"))


def _common(export: Export, episodes: list[Episode]) -> dict[str, list[np.ndarray]]:
    """Return the columns that all episodes have in one shape, with the values of each; counts the others."""
    parts = [_columns(export, episode) for episode in episodes]
    common = [name for name in parts[0] if all(_fits(parts[0][name], part.get(name)) for part in parts)]
    for part in parts:
        for name in part:
            if name not in common:
                export.losses.add(f"policy.{name}, which other episodes do not have in this shape")
    return {name: [part[name] for part in parts] for name in common}


def _fits(first: np.ndarray, other: np.ndarray | None) -> bool:
    return other is not None and other.shape[1:] == first.shape[1:]


def _write_batches(export: Export, episodes: list[Episode], file: Path) -> None:
    columns = {name: _batch_column(parts) for name, parts in _common(export, episodes).items()}
    pq.write_table(pa.table(columns), file.with_suffix(".parquet"))


def _batch_column(parts: list[np.ndarray]) -> pa.Array:
    """Return a row for each episode: the list of its values, in their dtype."""
    values = np.concatenate(parts)
    array = pa.array(values.reshape(-1))
    if values.ndim > 1:
        array = pa.ListArray.from_arrays(
            pa.array(np.arange(len(values) + 1) * values.shape[1], pa.int32()), array
        )
    return pa.ListArray.from_arrays(pa.array(np.cumsum([0, *map(len, parts)]), pa.int32()), array)


def _write_json(export: Export, episodes: list[Episode], file: Path) -> None:
    with file.with_suffix(".json").open("w") as lines:
        for episode in episodes:
            lines.write(json.dumps({"type": "SampleBatch", **_listed(_columns(export, episode))}) + "\n")


def _listed(columns: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name: np.asarray(values).tolist() for name, values in columns.items()}


def _write_episodes(export: Export, episodes: list[Episode], file: Path) -> None:
    msgpack = require("msgpack", "Exporting episodes to RLlib", _EXTRA_PACKAGES)
    spaces = _spaces(export)
    items = [msgpack.packb(_state(export, episode, spaces), default=_encoded) for episode in episodes]
    pq.write_table(pa.table({"item": pa.array(items, pa.binary())}), file.with_suffix(".parquet"))


def _spaces(export: Export) -> tuple[_Space, _Space]:
    schema = export.context.snapshot.schema
    return space_to_dict(schema.observation_space), space_to_dict(schema.action_space)


def _state(export: Export, episode: Episode, spaces: tuple[_Space, _Space]) -> dict[str, Any]:
    """Return the state of a `SingleAgentEpisode`, with stacked values."""
    steps = _steps(episode)
    terminated, truncated = _flags(export, episode, steps)
    outputs = _outputs(export, episode, steps)
    return {
        "id_": episode.id,
        "agent_id": None,
        "module_id": None,
        "multi_agent_episode_id": None,
        "observations": _buffer(episode.observations, spaces[0]),
        "actions": _buffer(slice_batch(episode.actions, 0, steps), spaces[1]),
        "rewards": _buffer(episode.rewards[:steps]),
        "infos": _buffer([dict(info) for info in episode.infos[: steps + 1]]),
        "extra_model_outputs": {key: _buffer(values) for key, values in outputs.items()} or None,
        "is_terminated": terminated,
        "is_truncated": truncated,
        "t_started": 0,
        "t": steps,
        "_observation_space": spaces[0],
        "_action_space": spaces[1],
        "_start_time": None,
        "_last_step_time": None,
        "custom_data": {},
    }


def _buffer(values: Any, space: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"data": values, "lookback": 0, "finalized": not isinstance(values, list), "space": space}


def _encoded(value: Any) -> Any:
    """Return arrays and numbers of NumPy as msgpack-numpy stores them."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        told = {b"type": value.dtype.str, b"kind": b"", b"shape": value.shape}
        return {b"nd": True, **told, b"data": np.ascontiguousarray(value).tobytes()}
    if isinstance(value, np.bool_ | np.number):
        return {b"nd": False, b"type": value.dtype.str, b"data": value.tobytes()}
    raise DatasetError(f"RLlib's episodes cannot hold {value!r:.100}, a {type(value).__name__}.")


_WRITERS: dict[str, Callable[[Export, list[Episode], Path], None]] = {
    "rows": _write_rows,
    "episodes": _write_episodes,
    "batches": _write_batches,
    "json": _write_json,
}
FORMAT = _Format()
