"""Minari datasets with their episodes in a store.

    import minari
    from episodelake.integrations import minari as backend

    backend.register()
    env = minari.DataCollector(env, data_format="episodelake")

Minari has no entry points, so on the command line `python -m episodelake.integrations.minari combine ...`
registers the format and runs Minari's own commands.

The folder of such a dataset holds Minari's `metadata.json` and a store, `store/`, which `episodelake.open`
opens like any other. Images are stored without loss: `jpeg_encoding` has no effect.
"""

from __future__ import annotations

import contextlib
import json
import weakref
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from gymnasium import Space, spaces

from .. import Episode, EpisodeStore, EpisodeWriter, create
from .. import open as open_store
from ..errors import InvalidArgumentError, SpaceMismatchError, StoreNotFoundError
from ..plugin import collected, dump_json, load_json, map_leaves, require, slice_batch
from ..plugin.files import read_file, replacing

require("minari", "The Minari backend")

from minari.dataset import _storages  # noqa: E402 (after the check that it is there)
from minari.dataset.minari_storage import METADATA_FILE_NAME, MinariStorage  # noqa: E402

if TYPE_CHECKING:
    from minari.data_collector.episode_buffer import EpisodeBuffer

FORMAT = "episodelake"
STORE_FOLDER = "store"
#: The annotation with those metadata of episodes that no column of one type can hold, as JSON.
_OTHERS = "minari"
_COLUMN_TYPES = frozenset({bool, int, float, str})


def register() -> None:
    """Make Minari accept `data_format="episodelake"`, for new datasets and for those on disk.

    Call it once in each process, before Minari creates or loads such a dataset. A second call does nothing.
    """
    _storages._registry[FORMAT] = lambda: EpisodelakeStorage


class EpisodelakeStorage(MinariStorage):
    """A Minari storage that keeps its episodes in a store.

    One writer records all episodes that arrive between two reads. It is closed, and its episodes become
    visible, when anything is read through this object, when metadata change, when the object is deleted, and
    when the process exits. After a crash the store recovers them from the writer's journal.
    """

    FORMAT = FORMAT

    def __init__(
        self, data_path: Path, observation_space: Space, action_space: Space, jpeg_encoding: bool = True
    ) -> None:
        super().__init__(data_path, observation_space, action_space, jpeg_encoding)
        self._recording = _Recording(Path(data_path), (observation_space, action_space))
        weakref.finalize(self, self._recording.finish_if_there)

    @classmethod
    def _create(
        cls, data_path: Path, observation_space: Space, action_space: Space, jpeg_encoding: bool = True
    ) -> EpisodelakeStorage:
        folder = Path(data_path) / STORE_FOLDER
        create(folder, observation_space=observation_space, action_space=action_space)
        return cls(data_path, observation_space, action_space, jpeg_encoding)

    @property
    def store(self) -> EpisodeStore:
        """The store, with all episodes that were recorded through this object."""
        self._recording.finish()
        return self._recording.store.refresh()

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the dataset; the totals are those of the store."""
        return {**super().metadata, **_totals(self.store)}

    def update_metadata(self, metadata: dict[str, Any]) -> None:
        """Add or change metadata of the dataset; see Minari."""
        self._recording.finish()
        super().update_metadata(metadata)

    def get_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield episodes in the order of `episode_indices`; their arrays are read-only."""
        wanted = [int(index) for index in episode_indices]
        return map(_as_dict, wanted, _chosen(self.store, wanted))

    def update_episodes(self, episodes: Iterable[EpisodeBuffer]) -> None:
        """Record episodes after those that are there.

        Raises:
            InvalidArgumentError: the id of an episode is not the next one: what is stored cannot grow.
            SpaceMismatchError: a value does not fit the spaces; the episodes before it are recorded.
        """
        for episode in episodes:
            self._recording.add(episode)

    def get_episode_metadata(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the metadata of episodes, with `id`, `total_steps`, and `seed` and `options` of the reset."""
        wanted = [int(index) for index in episode_indices]
        return map(_metadata, wanted, _chosen(self.store, wanted))

    def update_episode_metadata(
        self, metadatas: Iterable[Mapping[str, Any]], episode_indices: Iterable[int] | None = None
    ) -> None:
        """Add or change metadata of episodes, as annotations of the store.

        A key whose values are all bool, int, float or text becomes a column of that type in the store's
        `episodes`; other values go to its column `minari`, as JSON.

        Raises:
            ValueError: there are not as many metadata as episodes.
        """
        store = self.store
        wanted = range(len(store)) if episode_indices is None else episode_indices
        try:
            given = {int(index): dict(new) for new, index in zip(metadatas, wanted, strict=True)}
        except ValueError as error:
            raise ValueError("There must be one mapping of metadata for each episode index.") from error
        _annotate(store, given)
        self.update_metadata({"dataset_size": self.get_size()})


class _Recording:
    """The writer of one storage, as long as it has something to record."""

    def __init__(self, folder: Path, spaces_: tuple[Space, Space]) -> None:
        self._folder = folder
        self._spaces = spaces_
        self._writer: EpisodeWriter | None = None
        self._next_id = 0

    @cached_property
    def store(self) -> EpisodeStore:
        return open_store(self._folder / STORE_FOLDER)

    def add(self, episode: EpisodeBuffer) -> None:
        """Record one episode; see `EpisodelakeStorage.update_episodes`."""
        if self._writer is None:
            self._next_id = len(self.store.refresh())
            self._writer = self.store.writer(run="minari")
        if episode.id is not None and episode.id != self._next_id:
            raise InvalidArgumentError(
                f"The episode has the id {episode.id}; the next one of this dataset is {self._next_id}. "
                "Episodes that are stored cannot grow: leave out the id to append one."
            )
        observation_space, action_space = self._spaces
        self._writer.write_episode(
            observations=_batch(observation_space, episode.observations),
            actions=_batch(action_space, episode.actions),
            rewards=np.asarray(episode.rewards, np.float64).reshape(-1),
            terminations=np.asarray(episode.terminations, bool).reshape(-1),
            truncations=np.asarray(episode.truncations, bool).reshape(-1),
            infos=_info_rows(episode.infos, len(episode.rewards) + 1),
            seed=None if episode.seed is None else int(episode.seed),
            options=episode.options,
        )
        self._next_id += 1

    def finish_if_there(self) -> None:
        """Finish, unless a collector deleted its folder because no dataset was made of it."""
        with contextlib.suppress(StoreNotFoundError):
            self.finish()

    def finish(self) -> None:
        """Seal what was recorded and bring the totals of `metadata.json` up to date."""
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        path = self._folder / METADATA_FILE_NAME
        content = json.loads(read_file(path)) | _totals(self.store.refresh())
        size = sum(file.stat().st_size for file in self._folder.rglob("*")) / 1e6
        with replacing(path) as draft:
            draft.write_text(json.dumps(content | {"dataset_size": float(np.round(size, 1))}))


def _totals(store: EpisodeStore) -> dict[str, int]:
    steps = collected(store.episodes.select(pl.col("length").sum())).item()
    missing = store.context.snapshot.last_missing
    return {
        "total_episodes": len(store),
        "total_steps": steps - (0 if missing is None else int(missing.sum())),
    }


def _steps_of(episode: Episode) -> int:
    """Return the transitions between two observations: Minari has no place for another one."""
    return episode.length - (not episode.has_last_observation)


def _chosen(store: EpisodeStore, wanted: list[int]) -> Iterable[Episode]:
    """Return episodes by position, in this order; a row group that several of them share is decoded once."""
    if len({*wanted}) < len(wanted):
        return map(store.__getitem__, wanted)
    return store[np.array(wanted, np.int64)]


def _as_dict(index: int, episode: Episode) -> dict[str, Any]:
    steps = _steps_of(episode)
    arrays = {
        "actions": episode.actions,
        "rewards": episode.rewards,
        "terminations": episode.terminations,
        "truncations": episode.truncations,
    }
    infos = episode.info_arrays
    if steps < episode.length:
        arrays = {name: slice_batch(values, 0, steps) for name, values in arrays.items()}
        infos = {name: slice_batch(values, 0, steps + 1) for name, values in infos.items()}
    return {"id": index, "observations": episode.observations, **arrays, "infos": infos}


def _batch(space: Space, values: Any) -> Any:
    """Return a batch of values of a space: its arrays in the space's dtype where the cast keeps integers."""
    if isinstance(space, spaces.Dict):
        return {key: _batch(part, values[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(_batch, space.spaces, values))
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete):
        return list(values)
    array = np.asarray(values)
    if not np.can_cast(array.dtype, space.dtype, "same_kind"):
        return array
    cast = array.astype(space.dtype, copy=False)
    if cast.dtype.kind in "iu" and not np.array_equal(cast, array):
        raise SpaceMismatchError(
            f"The value {array[cast != array].flat[0]} does not fit {cast.dtype}, the dtype of {space}. "
            "Declare the dataset's space with a wider dtype."
        )
    return cast


def _info_rows(infos: Mapping[str, Any] | None, count: int) -> list[dict[str, Any]] | None:
    """Return one mapping per observation; infos that begin with the first step leave the first one empty."""
    if not infos:
        return None
    lengths: set[int] = set()
    map_leaves(lambda part: lengths.add(len(part)), infos)
    (length,) = lengths or {0}
    return [{}] * (count - length) + [map_leaves(itemgetter(row), infos) for row in range(length)]


def _metadata(index: int, episode: Episode) -> dict[str, Any]:
    metadata: dict[str, Any] = {"id": index, "total_steps": _steps_of(episode)}
    if episode.seed is not None:
        metadata["seed"] = episode.seed
    if episode.options is not None:
        metadata["options"] = episode.options
    columns = {
        key: value for key, value in episode.annotations.items() if value is not None and key != _OTHERS
    }
    return metadata | {**columns, **_other_metadata(episode)}


def _other_metadata(episode: Episode) -> dict[str, Any]:
    text = episode.annotations.get(_OTHERS)
    return {} if text is None else load_json(text, f"the column {_OTHERS}")


def _annotate(store: EpisodeStore, given: Mapping[int, Mapping[str, Any]]) -> None:
    ids = {index: store[index].id for index in given}
    # Keys that the same episodes have make one frame: a cell that is empty would overwrite what is there.
    groups: dict[tuple[int, ...], list[str]] = {}
    others: dict[int, dict[str, Any]] = {}
    for key in dict.fromkeys(key for new in given.values() for key in new):
        rows = tuple(index for index, new in given.items() if key in new)
        kinds = {type(given[index][key]) for index in rows}
        if len(kinds) == 1 and kinds <= _COLUMN_TYPES:
            groups.setdefault(rows, []).append(key)
        else:
            _put_aside(others, given, rows, key)
    for rows, keys in groups.items():
        for key in _refused(store, ids, given, rows, keys):
            _put_aside(others, given, rows, key)
    if others:
        texts = [dump_json({**_other_metadata(store[index]), **new}) for index, new in others.items()]
        store.annotate(pl.DataFrame({"episode_id": [ids[index] for index in others], _OTHERS: texts}))


def _put_aside(
    others: dict[int, dict[str, Any]], given: Mapping[int, Mapping[str, Any]], rows: Iterable[int], key: str
) -> None:
    for index in rows:
        others.setdefault(index, {})[key] = given[index][key]


def _refused(
    store: EpisodeStore,
    ids: Mapping[int, str],
    given: Mapping[int, Mapping[str, Any]],
    rows: tuple[int, ...],
    keys: list[str],
) -> list[str]:
    """Annotate the episodes `rows`; return the keys whose name or type no column can have."""
    columns = {key: [given[index][key] for index in rows] for key in keys}
    try:
        store.annotate(pl.DataFrame({"episode_id": [ids[index] for index in rows], **columns}))
    except InvalidArgumentError:
        if len(keys) == 1:
            return keys
        return [key for each in keys for key in _refused(store, ids, given, rows, [each])]
    return []


if __name__ == "__main__":
    from minari.cli import app

    register()
    app(prog_name="python -m episodelake.integrations.minari")
