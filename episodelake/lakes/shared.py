"""`SharedEnvironments`: environments that a lake keeps for all its stores.

They lie below the lake's root in `.lake`, as those of a store do in the store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Self

import gymnasium
import polars as pl

from .._saved import SavesEnvironments, delete_environment
from .._store import EpisodeStore
from ..readers.amounts import counted
from ..readers.described import saved_environments
from ..readers.replaying.environment import remake_env
from ..readers.replaying.run_envs import of_saved, run_envs
from ..store.common.arguments import flag, suggest
from ..store.environments.artifacts import KeptFile
from ..store.environments.records import Records, SavedEnvironment, split_version
from ..store.environments.saving import find_saved
from ..store.errors import CorruptStoreError, InvalidArgumentError
from ..store.files import Place, guard_access
from ..store.layout import Layout
from ..store.maintenance.artifacts import orphans
from .listing import lake_layout
from .tables import LakeSnapshot

_FOLDER = ".lake"


class SharedEnvironments(SavesEnvironments):
    """The part of a lake that keeps environments."""

    _root: Place

    def refresh(self) -> Self:
        """Look for stores again."""
        raise NotImplementedError

    def stores(self) -> pl.DataFrame:
        """Return one row per store."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the stores."""
        raise NotImplementedError

    def __getitem__(self, name: str) -> EpisodeStore:
        """Open a store."""
        raise NotImplementedError

    @property
    def _environments_in(self) -> Layout:
        return lake_layout(self._root / _FOLDER)

    def environments(self) -> pl.DataFrame:
        """Return the saved environments of the lake, with the columns of `EpisodeStore.environments`."""
        return saved_environments(self._environments_in)

    def make_env(
        self,
        name: str,
        *,
        trust: bool = False,
        strict: bool = False,
        render_mode: str | None = None,
        **changes: Any,
    ) -> gymnasium.Env:
        """Make a saved environment of the lake again; see `EpisodeView.make_env`.

        Args:
            name: its name, or `name@version`.
            trust, strict, render_mode, changes: as for `EpisodeView.make_env`.

        Raises:
            InvalidArgumentError: the lake has no such environment.
            EnvUnavailableError, UntrustedEnvError, CorruptStoreError: as for `EpisodeView.make_env`.
        """
        trust, strict = flag("trust", trust), flag("strict", strict)
        options: dict[str, Any] = {"trust": trust, "strict": strict, "render_mode": render_mode}
        run = of_saved(self._saved(name))
        return remake_env(
            LakeSnapshot(self._environments_in, {}), run, stacklevel=2, changes=changes, **options
        )

    def _saved(self, name: str) -> SavedEnvironment:
        saved = find_saved(self._environments_in, name) if isinstance(name, str) else None
        if saved is None:
            known = self.environments()["name"].unique().sort().to_list()
            listed = ", ".join(map(repr, known[:10])) or "none"
            raise InvalidArgumentError(
                f"The lake {self._root} has no saved environment {name!r}.{suggest(str(name), known)} "
                f"Its environments: {listed}."
            )
        return saved

    def delete_environment(self, name: str, *, episodes: bool = False) -> int:
        """Delete a saved environment of the lake: all versions of a name, or that of `name@version`.

        Args:
            name: its name.
            episodes: in every store, delete the episodes that were recorded in it: those of runs with the
                same spec, arguments and files. Older versions of the stores show them until their `vacuum`.

        Returns:
            The number of episodes that were deleted.

        Raises:
            InvalidArgumentError: the lake has no such environment.
            CorruptStoreError: with `episodes`, also if a store of the lake cannot be read.
            CorruptStoreError, StoreAccessError, ConcurrentCommitError: some episodes may be deleted, and the
                environment is not; call again.
        """
        newest, deleted = self._saved(name), 0
        if flag("episodes", episodes):
            one = split_version(name)[1] is not None
            chosen = [newest] if one else Records(self._environments_in, SavedEnvironment).of(newest.name)
            deleted = self._delete_episodes({_content(each.env_spec, each.files) for each in chosen})
        delete_environment(self._environments_in, name)
        return deleted

    def _delete_episodes(self, contents: set[str]) -> int:
        deleted = 0
        self.refresh()
        broken = self.stores().filter(pl.col("error").is_not_null())
        if not broken.is_empty():
            raise CorruptStoreError(
                f"{counted(broken.height, 'store')} of the lake {self._root} cannot be read, such as "
                f"{broken['store'][0]!r}: {broken['error'][0]} Nothing was deleted: episodes of the "
                "environment may be there. Restore or delete the store, or call without episodes=True."
            )
        for name in self:
            store = self[name]
            runs = [
                each.run_id
                for each in run_envs(store.context.snapshot).values()
                if each.spec is not None
                and _content(each.spec, each.bundle.files if each.bundle else ()) in contents
            ]
            if runs:
                deleted += store.delete(pl.col("run_id").is_in(runs)).episodes
        return deleted

    def _clean_shared(self) -> None:
        """Delete the files that no saved environment needs."""
        shared = self._environments_in
        with guard_access("delete", shared.artifacts):
            for entry in orphans(shared, (), set(), float("inf")):
                (shared.artifacts / entry.name).remove()


def _content(spec: str, files: Iterable[KeptFile]) -> str:
    """Return the content of an environment, the same for one that was made again."""
    # `gymnasium.make` drops the entry point of the vectorized form.
    plain = {**json.loads(spec), "vector_entry_point": None}
    return json.dumps([plain, sorted((each.name, each.sha256) for each in files)], sort_keys=True)
