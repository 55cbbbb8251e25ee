"""Minari 0.5 datasets as HDF5, Arrow or Parquet, written by Minari's own storage.

Minari keeps T+1 observations and infos, both flags, the seed, options and metadata of an episode. An episode
that was cut or interrupted has neither flag there, which no reader can tell from the other.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.envs.registration import EnvSpec

from ... import Episode, EpisodeView
from ...errors import DatasetError
from ...plugin import (
    Export,
    Holds,
    Option,
    export_format,
    flag,
    iterate_episodes,
    require,
    slice_batch,
)
from ...plugin.columns import INFO
from ...readers.exporting.capabilities import Fits, everything, fitting
from ...readers.exporting.conversions import Converted, exported
from ...readers.exporting.hdf5 import flat, is_attribute, is_name
from ...readers.exporting.step_arrays import KeyPath, check_space, leaves, number_array
from ...readers.exporting.target import ENV_SPEC

_EXTRA = "'episodelake[minari]'"
#: Arrow writes and reads longer columns in parts, and Minari takes each part for an episode.
_ARROW_ROWS = 1 << 15
_RESERVED = frozenset({"id", "total_steps", "seed", "options"})
#: Entries of the card that Minari's metadata have in a place of their own.
_KEPT = frozenset({"dataset_id", "minari_version"})
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


def _holds(options: Mapping[str, Any]) -> Holds:
    """Return what attributes of HDF5 give back as it is, or whatever JSON can say."""
    hdf5 = options["data_format"] == "hdf5"
    facts = _is_attribute if hdf5 else everything
    return Holds(
        spaces="whole",
        card=_is_card,
        seed=_is_seed if hdf5 else everything,
        options=facts,
        metadata=partial(_is_metadata, facts),
        info=partial(_is_info, hdf5),
        form="number or text",
    )


@export_format(
    "minari",
    extra=_EXTRA,
    folder=True,
    holds=_holds,
    data_format=Option.choice("hdf5, arrow or parquet", "hdf5", "arrow", "parquet"),
    dataset_id=Option("such as cartpole/expert-v0"),
    jpeg_encoding=Option("store frames as JPEG, which is lossy; False by default", False, flag),
)
def write_minari(export: Export, target: Path) -> None:
    """Write the folder of a dataset, with its data in `data`."""
    require("minari", "Exporting to Minari", _EXTRA)
    from minari.dataset.minari_storage import MinariStorage

    data_format = export.options["data_format"]
    manifest = export.context.snapshot.manifest
    export.refuse_vector_rewards("Minari")
    hdf5 = data_format == "hdf5"
    for place, space in (("observation", manifest.observation_space), ("action", manifest.action_space)):
        check_space(space, place, "Minari")
        _check_names(space, place, hdf5)
    if not hdf5:
        _check_lengths(export)
    data = target / "data"
    data.mkdir(parents=True)
    storage = MinariStorage.new(
        data,
        manifest.observation_space,
        manifest.action_space,
        _env_spec(export.card.get(ENV_SPEC)),
        data_format,
        jpeg_encoding=export.options["jpeg_encoding"],
    )
    # Minari measures all files of the dataset after each episode; the metadata below have the size.
    storage.get_size = lambda: 0.0
    storage.update_episodes(_buffers(export, hdf5))
    del storage.get_size
    storage.update_episode_metadata(_metadata(export, hdf5))
    storage.update_metadata(_dataset_metadata(export))


def _check_lengths(export: Export) -> None:
    """Refuse episodes that Minari would read in part.

    Raises:
        DatasetError: there is one.
    """
    longest = export.ends["length"].max()
    if longest >= _ARROW_ROWS:  # type: ignore[operator]
        raise DatasetError(
            f"The longest episode has {longest:,} steps; of an episode in Arrow files Minari reads up to "
            f"{_ARROW_ROWS - 1:,}. Pass data_format='hdf5'."
        )


def _check_names(space: Space, place: str, hdf5: bool) -> None:
    """Refuse spaces that Minari's files hold as something else, or that crash Arrow.

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
    common = None if hdf5 else _common_infos(export)
    for episode in export.episodes():
        # Minari's episodes have an observation after each transition.
        steps = export.transitions_of(episode)
        if not steps:
            continue
        if hdf5:
            _check_texts(episode, index)
        yield EpisodeBuffer(
            id=index,
            seed=export.seed(episode),
            options=export.reset_options(episode),
            observations=episode.observations,
            actions=slice_batch(episode.actions, 0, steps),
            rewards=episode.rewards[:steps],  # type: ignore[arg-type]
            terminations=episode.terminations[:steps],  # type: ignore[arg-type]
            truncations=episode.truncations[:steps],  # type: ignore[arg-type]
            infos=_infos(episode, export, common) or None,
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


def _is_seed(path: tuple[Any, ...], seed: int) -> bool:
    return -(2**63) <= seed < 2**64


def _is_attribute(path: tuple[Any, ...], value: Any) -> bool:
    return all(map(is_name, path)) and is_attribute(value)


def _is_metadata(facts: Fits, path: tuple[Any, ...], value: Any) -> bool:
    return path[0] not in _RESERVED and facts(path, value)


def _is_info(hdf5: bool, path: tuple[Any, ...], values: Any) -> bool:
    """Return whether values are numbers or texts at every step, and their names those of HDF5."""
    if not all(map(is_name, path)):
        return False
    if isinstance(values, list) and all(isinstance(value, str) for value in values):
        return not any("\0" in value for value in values)
    numbers = number_array(values)
    # Minari's Arrow reader flattens arrays in nested infos.
    return numbers is not None and bool(numbers.size) and (hdf5 or len(path) == 1 or numbers.ndim < 3)


def _is_card(path: tuple[Any, ...], value: Any) -> bool:
    if path[0] == ENV_SPEC:
        return _env_spec(value) is not None
    return path[0] in _CARD_NAMES or path[0] in _KEPT


def _info_arrays(episode: Episode) -> dict[str, Any]:
    """Return the infos that came with an observation, by key."""
    return slice_batch(episode.info_arrays, 0, episode._observation_count)


def _common_infos(export: Export) -> list[KeyPath]:
    """Return the infos that all episodes have in one form, which Minari's Arrow reader expects."""
    common: dict[KeyPath, Any] | None = None
    for episode in filter(export.transitions_of, iterate_episodes(export.context)):
        kept = fitting(_info_arrays(episode), export.holds.info, lambda path, values: None)
        forms = {path: _form(values) for path, values in leaves(kept)}
        if common is not None:
            forms = {path: form for path, form in common.items() if forms.get(path) == form}
        common = forms
    return list(common or ())


def _form(values: Any) -> Any:
    numbers = number_array(values)
    return str if numbers is None else (numbers.dtype, numbers.shape[1:])


def _infos(episode: Episode, export: Export, common: list[KeyPath] | None) -> dict[str, Any]:
    """Return the infos that Minari can hold, of Arrow those that are common to all episodes."""
    infos = dict(leaves(export.of_steps(INFO, _info_arrays(episode))))
    kept: dict[str, Any] = {}
    for path in infos if common is None else common:
        place = kept
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = _column(infos[path], hdf5=common is None)
    for path, values in infos.items():
        if common is not None and path not in common:
            lost = f"info.{'.'.join(path)}, which not every episode has in one form"
            export.losses.add(lost, len(values))
    return kept


def _column(values: Any, hdf5: bool) -> Any:
    numbers = number_array(values)
    if numbers is None:
        return values
    # Minari's Arrow writer takes numbers only as a list, arrays only as an array.
    return numbers if hdf5 or numbers.ndim > 1 else list(numbers)


def _metadata(export: Export, hdf5: bool) -> Iterator[dict[str, Any]]:
    """Yield the metadata of each episode that Minari can store."""
    for episode in iterate_episodes(export.context):
        if export.transitions_of(episode):
            kept = export.metadata(episode)
            yield dict(flat(kept)) if hdf5 else kept


def _env_spec(text: Any) -> EnvSpec | None:
    """Return an environment; None if Gymnasium does not read it."""
    if not isinstance(text, str) or not text.startswith("{"):
        return None
    try:
        return EnvSpec.from_json(text)
    except Exception:
        return None


def _dataset_metadata(export: Export) -> dict[str, Any]:
    minari = require("minari", "Exporting to Minari")
    metadata: dict[str, Any] = {
        "dataset_id": export.options["dataset_id"] or export.card.get("dataset_id", "episodelake/export-v0"),
        "minari_version": minari.__version__,
    }
    for key, value in export.card.items():
        name = _CARD_NAMES.get(key)
        if name is None:
            continue
        if name in ("author", "author_email"):
            metadata[name] = {value} if isinstance(value, str) else set(value)
        else:
            metadata[name] = value
    return metadata


def to_minari(view: EpisodeView, target: str, *, data_format: str) -> Converted:
    """Return a dataset in a temporary folder that is deleted with it."""
    minari = require("minari", "view.to.minari()", _EXTRA)
    folder = TemporaryDirectory(prefix="episodelake-")
    try:
        report = exported(view.context, Path(folder.name, "dataset"), "minari", data_format=data_format)
        dataset = minari.MinariDataset(report.target / "data")
    except BaseException:
        folder.cleanup()
        raise
    weakref.finalize(dataset, folder.cleanup)
    return dataset, report.lost
