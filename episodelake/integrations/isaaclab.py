"""Isaac Lab records into a store.

    from episodelake.integrations.isaaclab import StoreFileHandler

    env_cfg.recorders.dataset_file_handler_class_type = StoreFileHandler

Isaac Lab's `RecorderManager` then makes the store `DIRECTORY/FILENAME` of its configuration, and hands over
each episode at its end. An episode holds what `import_dataset` reads from the HDF5 file that Isaac Lab writes
otherwise: observations, actions, `states` and other terms as step columns, `initial_state` as metadata.
Rewards are NaN unless a term records `rewards`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from .. import EpisodeStore, EpisodeWriter, create
from ..errors import InvalidArgumentError
from ..exchange.robomimic import open_demonstrations
from ..plugin import ForeignDataset, ForeignEpisode, ImportOptions, Losses, require, to_numpy

_ENV_NAME = "env_name"


class StoreFileHandler:
    """A `dataset_file_handler_class_type` that writes episodes into a store.

    It has the methods of Isaac Lab's `DatasetFileHandlerBase`, and needs h5py, which Isaac Lab has. The store
    is made with the spaces of the first episode; one that is there already gets another run. `flush`, which
    Isaac Lab calls after each export, makes episodes durable; `close` makes them visible to readers. If the
    process dies, `episodelake recover` brings what was flushed into the store.

    Attributes:
        lost: counts of what the store does not take.
    """

    def __init__(self) -> None:
        self.lost = Losses()
        self._path: Path | None = None
        self._env_args: dict[str, Any] = {}
        self._count = 0
        self._spaces: Any = None
        self._store: EpisodeStore | None = None
        self._writer: EpisodeWriter | None = None

    def create(self, file_path: str, env_name: str | None = None) -> None:
        """Take the path of the store, which the first episode creates.

        Raises:
            InvalidArgumentError: the handler has a path already.
        """
        if self._path is not None:
            raise InvalidArgumentError(f"The handler records into {self._path} already. Use another one.")
        self._path = Path(file_path)
        self.add_env_args({_ENV_NAME: env_name or ""})

    def open(self, file_path: str, mode: str = "r") -> None:
        """Refuse to read: a store is opened with `episodelake.open`.

        Raises:
            InvalidArgumentError: always.
        """
        raise InvalidArgumentError(
            f"The handler only records. Read the episodes of {file_path} with episodelake.open, or export "
            'them with format="robomimic".'
        )

    def load_episode(self, episode_name: str, device: str | None = None) -> None:
        """Refuse to read, as `open`."""
        self.open(episode_name)

    def add_env_args(self, env_args: Mapping[str, Any]) -> None:
        """Take arguments of the environment: those before the first episode are metadata of the run."""
        self._env_args.update(env_args)

    def set_env_name(self, env_name: str) -> None:
        """Take the name of the environment."""
        self.add_env_args({_ENV_NAME: env_name})

    def get_env_name(self) -> str | None:
        """Return the name of the environment."""
        return self._env_args.get(_ENV_NAME)

    def get_num_episodes(self) -> int:
        """Return how many episodes were recorded."""
        return self._count

    def get_episode_names(self) -> list[str]:
        """Return the names that the HDF5 file would have for them."""
        return [f"demo_{index}" for index in range(self._count)]

    def write_episode(self, episode: Any, demo_id: int | None = None) -> None:
        """Record an `EpisodeData`; one without data is left out.

        Args:
            demo_id: has no effect.

        Raises:
            InvalidArgumentError: `create` was not called, or the arguments of the environment are not JSON.
            DatasetError: it has no observations or no actions, or terms of other lengths.
            SpaceMismatchError: a value does not fit the spaces of the store; the episode is not recorded.
        """
        if self._path is None:
            raise InvalidArgumentError("The handler has no path. Call create(file_path) first.")
        if episode.is_empty():
            return
        h5py: Any = require("h5py", "Recording from Isaac Lab")
        with h5py.File(io.BytesIO(), "w") as file:
            _write(file, episode)
            dataset = open_demonstrations(self._path, file, ImportOptions())
            if self._spaces is not None:
                dataset.observation_space, dataset.action_space = self._spaces
            loaded = next(iter(dataset.parts())).load()
            values = {each.name: getattr(loaded, each.name) for each in fields(ForeignEpisode)}
            self._writer_for(dataset).write_episode(**values)
        self.lost.merge(dataset.losses)
        self._count += 1

    def _plain_args(self) -> Any:
        """Return the arguments of the environment as the JSON that a file of Isaac Lab has.

        Raises:
            InvalidArgumentError: they are none.
        """
        try:
            return json.loads(json.dumps(self._env_args))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgumentError(
                f"add_env_args({self._env_args!r:.300}) is not JSON: {error}. Pass numbers, texts, lists and "
                "dicts with texts as keys."
            ) from error

    def _writer_for(self, dataset: ForeignDataset) -> EpisodeWriter:
        if self._writer is None:
            self._spaces = dataset.observation_space, dataset.action_space
            self._store = create(
                str(self._path),
                observation_space=self._spaces[0],
                action_space=self._spaces[1],
                exist_ok=True,
            )
            self._writer = self._store.writer(metadata={"env_args": self._plain_args()})
        return self._writer

    def flush(self) -> None:
        """Make the episodes durable.

        Raises:
            StoreAccessError: they could not be written.
        """
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Make the episodes visible; a second call does nothing.

        Raises:
            StoreAccessError: they could not be written; the journal keeps them, call again.
        """
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _write(file: Any, episode: Any) -> None:
    """Write an episode as the handler of Isaac Lab for HDF5 does."""
    demo = file.create_group("data/demo_0")
    for name in ("seed", "success"):
        if getattr(episode, name, None) is not None:
            demo.attrs[name] = getattr(episode, name)
    for path, value in _arrays(episode.data):
        demo[path] = value


def _arrays(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, np.ndarray]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _arrays(value, f"{path}{name}/")
        else:
            yield f"{path}{name}", np.asarray(to_numpy(value))
