"""Minari 0.5 datasets as HDF5, Arrow or Parquet, written by Minari's own storage.

Minari keeps T+1 observations and infos, both flags, the seed, options and metadata of an episode. An episode
that was cut or interrupted has neither flag there, which no reader can tell from the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium import Space, spaces
from gymnasium.envs.registration import EnvSpec

from ...store.batches import slice_batch
from ...store.dynamic.column_groups import EXTRA, POLICY
from ...store.errors import DatasetError, InvalidArgumentError
from ...store.optional_packages import require
from ..episode import Episode
from ..iteration import iterate
from .flat import refuse_vector_rewards
from .hdf5 import flat, is_attribute, is_name
from .step_arrays import leaves
from .target import Export

_RESERVED = frozenset({"id", "total_steps", "seed", "options"})
_DATA_FORMATS = ("hdf5", "arrow", "parquet")
_CARD_NAMES = {
    "algorithm": "algorithm_name",
    **{
        name: name
        for name in (
            "author",
            "author_email",
            "code_permalink",
            "description",
            "ref_min_score",
            "ref_max_score",
            "num_episodes_average_score",
            "requirements",
        )
    },
}


class _Format:
    name = "minari"
    extra = "'episodelake[minari]'"
    folder = True
    agents = False
    options: ClassVar[dict[str, str]] = {
        "data_format": "hdf5, arrow or parquet",
        "dataset_id": "such as cartpole/expert-v0",
        "jpeg_encoding": "store frames as JPEG, which is lossy; False by default",
    }

    def write(self, export: Export, target: Path) -> None:
        """Write the folder of a dataset, with its data in `data`."""
        require("minari", "Exporting to Minari", self.extra)
        from minari.dataset.minari_storage import MinariStorage

        data_format = export.options.get("data_format", "hdf5")
        if data_format not in _DATA_FORMATS:
            raise InvalidArgumentError(
                f"data_format={data_format!r} is unknown; expected one of {', '.join(_DATA_FORMATS)}."
            )
        manifest = export.context.snapshot.manifest
        refuse_vector_rewards(export.context, "Minari")
        hdf5 = data_format == "hdf5"
        _check_names(manifest.observation_space, "observation", hdf5)
        _check_names(manifest.action_space, "action", hdf5)
        export.lose_columns(POLICY, EXTRA)
        data = target / "data"
        data.mkdir(parents=True)
        storage = MinariStorage.new(
            data,
            manifest.observation_space,
            manifest.action_space,
            _env_spec(export),
            data_format,
            jpeg_encoding=bool(export.options.get("jpeg_encoding", False)),
        )
        # Minari measures all files of the dataset after each episode; the metadata below have the size.
        storage.get_size = lambda: 0.0
        storage.update_episodes(_buffers(export, hdf5))
        del storage.get_size
        storage.update_episode_metadata(_metadata(export, hdf5))
        storage.update_metadata(_dataset_metadata(export))


def _check_names(space: Space, place: str, hdf5: bool) -> None:
    """Refuse spaces of which Minari's files would hold something else, or on which Arrow crashes.

    Raises:
        DatasetError: names the part of the space.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in inner:
            if hdf5 and not is_name(str(key)):
                raise DatasetError(
                    f"HDF5 cannot hold {place}[{key!r}]: a name has no '/' and is not '.'. Pass "
                    "data_format='arrow'."
                )
            _check_names(part, f"{place}[{key!r}]", hdf5)
    elif not hdf5 and space.shape and not np.prod(space.shape):
        raise DatasetError(
            f"Minari's Arrow files cannot hold {place}, whose shape {space.shape} has no item. Pass "
            "data_format='hdf5'."
        )


def _buffers(export: Export, hdf5: bool) -> Iterator[Any]:
    from minari.data_collector import EpisodeBuffer

    index = 0
    for episode in export.episodes():
        # Minari's episodes have an observation after each transition.
        steps = export.transitions_of(episode)
        if not steps:
            continue
        if hdf5:
            _check_texts(episode, index)
        if episode.end_reason == "interrupted":
            export.losses.add("that an episode was interrupted, not cut")
        yield EpisodeBuffer(
            id=index,
            seed=_seed(episode, export, hdf5),
            options=_attributes(episode.options or {}, "options", export, hdf5) or None,
            observations=episode.observations,
            actions=slice_batch(episode.actions, 0, steps),
            rewards=episode.rewards[:steps],  # type: ignore[arg-type]
            terminations=episode.terminations[:steps],  # type: ignore[arg-type]
            truncations=episode.truncations[:steps],  # type: ignore[arg-type]
            infos=_infos(slice_batch(episode.info_arrays, 0, steps + 1), export) or None,
        )
        index += 1


def _check_texts(episode: Episode, index: int) -> None:
    """Refuse texts that HDF5 does not hold.

    Raises:
        DatasetError: names the episode, and the part of the space.
    """
    for side, values in (("observation", episode.observations), ("action", episode.actions)):
        for path, part in leaves(values):
            if isinstance(part, list) and any("\0" in text for text in part):
                raise DatasetError(
                    f"HDF5 cannot hold {'.'.join((side, *path))} of episode {index}: a text has a "
                    "NUL character. Pass data_format='arrow'."
                )


def _seed(episode: Episode, export: Export, hdf5: bool) -> int | None:
    """Return the seed of an episode; None if it is none that HDF5 holds as a number."""
    seed = episode.seed
    if hdf5 and seed is not None and not -(2**63) <= seed < 2**64:
        export.losses.add("a seed beyond 64 bits")
        return None
    return seed


def _has_transitions(episode: Episode) -> bool:
    return episode._observation_count > 1


def _infos(infos: Mapping[str, Any], export: Export, prefix: str = "info.") -> dict[str, Any]:
    """Return the infos that Minari can store: numbers or texts at every step."""
    kept: dict[str, Any] = {}
    for key, values in infos.items():
        if isinstance(values, Mapping) and is_name(key):
            if inner := _infos(values, export, f"{prefix}{key}."):
                kept[key] = inner
        elif is_name(key) and _is_column(values):
            kept[key] = np.asarray(values) if isinstance(values[0], np.ndarray) else values
        else:
            export.losses.add(f"{prefix}{key}, which is not a number or text at every step", _rows(values))
    return kept


def _is_column(values: Any) -> bool:
    if isinstance(values, list) and all(isinstance(value, str) for value in values):
        return not any("\0" in value for value in values)
    try:
        found = np.asarray(values)
    except ValueError:  # arrays of several shapes
        return False
    return found.dtype.kind in "biuf" and bool(found.size)


def _rows(values: Any) -> int:
    while isinstance(values, Mapping):
        values = next(iter(values.values()), ())
    return len(values)


def _metadata(export: Export, hdf5: bool) -> Iterator[dict[str, Any]]:
    """Yield the metadata of each episode that Minari can store."""
    for episode in filter(_has_transitions, iterate(export.context)):
        found = {key: value for key, value in episode.metadata.items() if key not in _RESERVED}
        for key in _RESERVED.intersection(episode.metadata):
            export.losses.add(f"metadata.{key}")
        kept = _attributes(found, "metadata", export, hdf5)
        yield dict(flat(kept)) if hdf5 else kept


def _attributes(values: Mapping[str, Any], place: str, export: Export, hdf5: bool) -> dict[str, Any]:
    """Return the values that attributes of HDF5 give back as they are; all of them for JSON."""
    kept: dict[str, Any] = {}
    for key, value in values.items():
        inner = isinstance(value, Mapping) and bool(value) and is_name(key)
        if not hdf5:
            kept[key] = value
        elif inner and (part := _attributes(value, f"{place}.{key}", export, hdf5)):
            kept[key] = part
        elif not inner and is_name(key) and is_attribute(value):
            kept[key] = value
        elif not inner:
            export.losses.add(f"{place}.{key}")
    return kept


def _env_spec(export: Export) -> EnvSpec | None:
    """Return the environment of the card; None if there is none that Gymnasium reads."""
    text = export.card.get("env_spec")
    if not isinstance(text, str) or not text.startswith("{"):
        return None
    try:
        return EnvSpec.from_json(text)
    except Exception:
        export.losses.add("env_spec of the card, which Gymnasium does not read")
        return None


def _dataset_metadata(export: Export) -> dict[str, Any]:
    minari = require("minari", "Exporting to Minari")
    found: dict[str, Any] = {
        "dataset_id": export.options.get("dataset_id")
        or export.card.get("dataset_id", "episodelake/export-v0"),
        "minari_version": minari.__version__,
    }
    for key, value in export.card.items():
        name = _CARD_NAMES.get(key)
        if name is None:
            if key not in ("dataset_id", "env_spec", "minari_version"):
                export.losses.add(f"{key} of the card")
        elif name in ("author", "author_email"):
            found[name] = {value} if isinstance(value, str) else set(value)
        else:
            found[name] = value
    return found


FORMAT = _Format()
