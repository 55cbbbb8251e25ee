"""RLlib's offline data in Parquet: a row for each transition, or episodes as `item`.

N transitions make N rows, with the columns that `OfflinePreLearner` reads. Episodes are states of
`SingleAgentEpisode`, which keep infos, too, and values of nested spaces. RLlib's reader of episodes takes
only those that are terminated or truncated.
"""

from __future__ import annotations

import base64
import copy
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from gymnasium import Space, spaces

from ... import Episode, EpisodeView
from ...errors import DatasetError
from ...plugin import (
    Export,
    Holds,
    Option,
    export_format,
    one_of,
    require,
    slice_batch,
)
from ...plugin.columns import POLICY
from ...readers.exporting.capabilities import everything, nothing
from ...readers.exporting.conversions import Converted, export_of
from ...readers.exporting.step_arrays import check_space, number_array
from .blocks import NUMBERING

_FILE_STEPS = 1 << 16
_EXTRA_PACKAGES = "'episodelake[rllib]'"
_TENSOR = "ray.data.arrow_tensor_v2"
_COLUMNS = frozenset({"eps_id", "t", "obs", "new_obs", "actions", "rewards", "terminateds", "truncateds"})
_Space = dict[str, Any] | None
_NOT_POLICY = _COLUMNS | {"agent_id", "module_id", "infos", "agent_index", "dones", *NUMBERING}


def _is_output(path: tuple[Any, ...], values: Any) -> bool:
    return len(path) == 1 and path[0] not in _NOT_POLICY and number_array(values) is not None


#: What a `SingleAgentEpisode` holds.
EPISODES = Holds(
    spaces="whole",
    info=everything,
    policy=_is_output,
    form="number or array of one shape",
)


def _holds(options: Mapping[str, Any]) -> Holds:
    """Return transitions, flags and outputs of the policy; of episodes spaces and infos too."""
    ends = ("interrupted", "cut") if options["cut"] == "truncated" else ("interrupted",)
    becomes = "truncated" if len(ends) > 1 else "cut"
    holds = replace(EPISODES, ends=dict.fromkeys(ends, becomes))
    return holds if options["kind"] == "episodes" else replace(holds, spaces="dtypes", info=nothing)


@export_format(
    "rllib",
    extra=_EXTRA_PACKAGES,
    folder=True,
    holds=_holds,
    kind=Option.choice("rows or episodes; rows by default", "rows", "episodes"),
    cut=Option(
        "'truncated' to set that flag where an episode was cut or interrupted; None by default",
        check=partial(one_of, choices=("truncated",)),
    ),
)
def write_rllib(export: Export, target: Path) -> None:
    """Write a folder of files with some 65,000 transitions each."""
    kind = export.options["kind"]
    write = _write_episodes if kind == "episodes" else _write_rows
    export.refuse_vector_rewards("RLlib")
    if kind == "episodes":
        manifest = export.context.snapshot.manifest
        check_space(manifest.observation_space, "observation", "RLlib")
        check_space(manifest.action_space, "action", "RLlib")
    else:
        _check_spaces(export)
    target.mkdir(parents=True)
    for number, episodes in enumerate(_groups(export)):
        write(export, episodes, target / f"{number:06d}")


def to_rllib(view: EpisodeView, target: str) -> Converted:
    """Return a `SingleAgentEpisode` for each episode with a transition.

    Infos come along, and numbers that the policy recorded are in `extra_model_outputs`.

    Raises:
        DatasetError: the rewards are vectors.
    """
    module = require("ray.rllib.env.single_agent_episode", "view.to.rllib()", "'ray[rllib]'")
    export = export_of(view, target, EPISODES)
    export.count_losses()
    export.refuse_vector_rewards(target)
    spaces = _spaces(export)
    # What the store hands out may share its memory.
    made = [
        module.SingleAgentEpisode.from_state(copy.deepcopy(_state(export, episode, spaces)))
        for episode in _whole(export)
    ]
    return made, export.losses


def _check_spaces(export: Export) -> None:
    schema = export.context.snapshot.schema
    for codec in (schema.observation, schema.action):
        whole = len(codec.fields) == 1 and codec.leaves and codec.leaves[0].column == codec.root
        if not whole or not codec.leaves[0].size:
            raise DatasetError(
                f"RLlib cannot read rows with values of the space {codec.space} ({codec.root}). Export "
                "kind='episodes'."
            )


def _groups(export: Export) -> Iterator[list[Episode]]:
    """Yield episodes until they have enough steps for a file."""
    some: list[Episode] = []
    count = 0
    for episode in _whole(export):
        some.append(episode)
        count += episode.length
        if count >= _FILE_STEPS:
            yield some
            some, count = [], 0
    if some:
        yield some


def _whole(export: Export) -> Iterator[Episode]:
    """Yield the episodes that have a transition with a next observation."""
    return filter(export.transitions_of, export.episodes())


def _flags(export: Export, episode: Episode, steps: int) -> tuple[bool, bool]:
    """Return terminated and truncated of the last transition."""
    if steps == episode.length and (episode.terminated or episode.truncated):
        return episode.terminated, episode.truncated
    return False, export.options.get("cut") == "truncated"


def _outputs(export: Export, episode: Episode, steps: int) -> dict[str, np.ndarray]:
    """Return what the policy recorded as one array for each key, if it is numbers at every step."""
    rows = slice_batch(episode.policy, 0, steps)
    kept = export.of_steps(POLICY, rows).items()
    return {key: numbers for key, values in kept if (numbers := number_array(values)) is not None}


def _columns(export: Export, episode: Episode) -> dict[str, np.ndarray]:
    """Return an episode as RLlib's columns, T values each."""
    steps = export.transitions_of(episode)
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
        metadata = None
        if values.ndim > 1:
            size = int(np.prod(values.shape[1:]))
            array = pa.LargeListArray.from_arrays(np.arange(len(values) + 1) * size, array)
            shape = json.dumps(values.shape[1:])
            metadata = {"ARROW:extension:name": _TENSOR, "ARROW:extension:metadata": shape}
        arrays.append(array)
        fields.append(pa.field(name, array.type, metadata=metadata))
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), file.with_suffix(".parquet"))


def _common(export: Export, episodes: list[Episode]) -> dict[str, list[np.ndarray]]:
    """Return the columns that all episodes have in one shape, with the values of each; counts the others."""
    parts = [_columns(export, episode) for episode in episodes]
    common = [name for name in parts[0] if all(_fits(parts[0][name], part.get(name)) for part in parts)]
    for part in parts:
        for name in part:
            if name not in common:
                export.losses.add(f"policy.{name}, which other episodes do not have in this form")
    return {name: [part[name] for part in parts] for name in common}


def _fits(first: np.ndarray, other: np.ndarray | None) -> bool:
    if other is None or other.shape[1:] != first.shape[1:]:
        return False
    # Texts of other lengths, such as ids of episodes, have another dtype.
    return other.dtype == first.dtype or other.dtype.kind == first.dtype.kind == "U"


def _write_episodes(export: Export, episodes: list[Episode], file: Path) -> None:
    msgpack = require("msgpack", "Exporting episodes to RLlib", _EXTRA_PACKAGES)
    spaces = _spaces(export)
    items = [msgpack.packb(_state(export, episode, spaces), default=_encoded) for episode in episodes]
    pq.write_table(pa.table({"item": pa.array(items, pa.binary())}), file.with_suffix(".parquet"))


def _spaces(export: Export) -> tuple[_Space, _Space]:
    schema = export.context.snapshot.schema
    return _space_to_dict(schema.observation_space), _space_to_dict(schema.action_space)


def _state(export: Export, episode: Episode, spaces: tuple[_Space, _Space]) -> dict[str, Any]:
    """Return the state of a `SingleAgentEpisode`, with stacked values."""
    steps = export.transitions_of(episode)
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
        packed = {b"type": value.dtype.str, b"kind": b"", b"shape": value.shape}
        return {b"nd": True, **packed, b"data": np.ascontiguousarray(value).tobytes()}
    if isinstance(value, np.bool_ | np.number):
        return {b"nd": False, b"type": value.dtype.str, b"data": value.tobytes()}
    raise DatasetError(f"RLlib's episodes cannot hold {value!r:.100}, a {type(value).__name__}.")


def _space_to_dict(space: Space) -> dict[str, Any] | None:
    """Return a space as a dict; None if it, or a part of it, is of another class."""
    match space:
        case spaces.Box():
            stated = {"space": "box", "shape": list(space.shape), "dtype": space.dtype.str}
            return stated | {"low": _packed(space.low), "high": _packed(space.high)}
        case spaces.Discrete():
            return {"space": "discrete", "n": int(space.n), "start": int(space.start)}
        case spaces.MultiBinary():
            return {"space": "multi-binary", "n": space.n}
        case spaces.MultiDiscrete():
            return {"space": "multi-discrete", "nvec": _packed(space.nvec), "dtype": space.dtype.str}
        case spaces.Tuple():
            parts = [_space_to_dict(part) for part in space.spaces]
            return None if None in parts else {"space": "tuple", "spaces": parts}
        case spaces.Dict():
            named = {key: _space_to_dict(part) for key, part in space.spaces.items()}
            return None if None in named.values() else {"space": "dict", "spaces": named}
        case spaces.Text():
            stated = {"space": "text", "min_length": space.min_length, "max_length": space.max_length}
            return stated | {"charset": "".join(sorted(space.character_set))}
    return None


def _packed(array: np.ndarray) -> str:
    file = io.BytesIO()
    np.save(file, array)
    return base64.b64encode(zlib.compress(file.getvalue())).decode("ascii")
