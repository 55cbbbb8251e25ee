"""Minari 0.5 datasets as HDF5, Arrow or Parquet, written by Minari's own storage.

Minari keeps T+1 observations and infos, both flags, the seed, options and metadata of an episode. An episode
that was cut or interrupted has neither flag there, which no reader can tell from the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium.envs.registration import EnvSpec

from ...store.batches import slice_batch
from ...store.dynamic.column_groups import EXTRA, POLICY
from ...store.errors import InvalidArgumentError
from ...store.optional_packages import require
from ..episode import Episode
from ..iteration import iterate
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
    extra = "'minari[hdf5]'"
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
        export.lose_columns(POLICY, EXTRA)
        manifest = export.context.snapshot.manifest
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
        storage.update_episodes(_buffers(export))
        storage.update_episode_metadata(_metadata(export))
        storage.update_metadata(_dataset_metadata(export))


def _buffers(export: Export) -> Iterator[Any]:
    from minari.data_collector import EpisodeBuffer

    index = 0
    for episode in export.episodes():
        # Minari's episodes have an observation after each transition.
        steps = export.transitions_of(episode)
        if not steps:
            continue
        if episode.end_reason == "interrupted":
            export.losses.add("that an episode was interrupted, not cut")
        yield EpisodeBuffer(
            id=index,
            seed=episode.seed,
            options=episode.options or None,
            observations=episode.observations,
            actions=slice_batch(episode.actions, 0, steps),
            rewards=episode.rewards[:steps],  # type: ignore[arg-type]
            terminations=episode.terminations[:steps],  # type: ignore[arg-type]
            truncations=episode.truncations[:steps],  # type: ignore[arg-type]
            infos=_infos(slice_batch(episode.info_arrays, 0, steps + 1), export) or None,
        )
        index += 1


def _has_transitions(episode: Episode) -> bool:
    return episode._observation_count > 1


def _infos(infos: Mapping[str, Any], export: Export, prefix: str = "info.") -> dict[str, Any]:
    """Return the infos that Minari can store: numbers or texts at every step."""
    kept: dict[str, Any] = {}
    for key, values in infos.items():
        if isinstance(values, Mapping):
            if inner := _infos(values, export, f"{prefix}{key}."):
                kept[key] = inner
        elif "/" in key or np.asarray(values).dtype.kind not in "biufU":
            export.losses.add(f"{prefix}{key}, which is not a number or text at every step", len(values))
        else:
            found = np.asarray(values)
            kept[key] = found.tolist() if found.dtype.kind == "U" else found
    return kept


def _metadata(export: Export) -> Iterator[dict[str, Any]]:
    """Yield the metadata of each episode that Minari can store: numbers, texts and nested ones of them."""
    for episode in filter(_has_transitions, iterate(export.context)):
        kept: dict[str, Any] = {}
        for key, value in _flat(episode):
            if key in _RESERVED or not isinstance(value, bool | int | float | str):
                export.losses.add(f"metadata.{key.replace('/', '.')}")
            else:
                kept[key] = value
        yield kept


def _flat(episode: Episode) -> Iterator[tuple[str, Any]]:
    def walk(found: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in found.items():
            if isinstance(value, Mapping):
                yield from walk(value, f"{prefix}{key}/")
            else:
                yield f"{prefix}{key}", value

    return walk(episode.metadata, "")


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
