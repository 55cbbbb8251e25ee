"""`lake`: a folder, a prefix of an object store, or an organisation of the Hugging Face Hub."""

from __future__ import annotations

import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

from .. import EpisodeStore
from .. import open as open_store
from ..errors import InvalidArgumentError, StoreAccessError, StoreNotFoundError
from ..plugin import Layout
from ..plugin.files import LocalPlace, exists, is_folder, store_at
from ..publishing.contents import CHECKSUMS, is_needed_for_episodes
from ..publishing.fetching import cached_version
from ..publishing.hub import MAIN, SCHEME, Repository, datasets_of, is_organisation, refuse_options
from .lake import Lake

#: Files that every published version has.
_FILES = {Layout.MANIFEST, CHECKSUMS}


class _HubRoot(LocalPlace):
    """An organisation in the place of a lake's folder; the files of its stores are in the cache."""

    @property
    def local(self) -> Any:
        """Return None, as for an object store."""
        return None

    def __init__(self, address: str) -> None:
        super().__init__(Path("/"))
        self._address = address

    def __truediv__(self, name: str) -> _HubRoot:
        """Return the address of a dataset."""
        return _HubRoot(f"{self._address}/{name}")

    def __str__(self) -> str:
        """Return the address."""
        return self._address

    def filesystem(self) -> tuple[Any, str]:
        """Return this machine's; paths of the cache are absolute."""
        return super().filesystem()[0], ""


class HubLake(Lake):
    """The published datasets of an organisation or a user of the Hub; read only."""

    def __init__(self, address: str, storage_options: Mapping[str, str] | None) -> None:
        self._organisation = address.removeprefix(SCHEME).rstrip("/")
        refuse_options(address, storage_options)
        if not is_organisation(address):
            raise InvalidArgumentError(
                f"{address!r:.200} is no lake: expected hf://organisation. episodelake.open takes a dataset."
            )
        super().__init__(_HubRoot(f"{SCHEME}{self._organisation}"))
        self._commits: dict[str, str] = {}

    def _find(self) -> Mapping[str, str | None]:
        listed = datasets_of(self._organisation)
        self._commits = {name: commit for name, (commit, files) in sorted(listed.items()) if files >= _FILES}
        return dict.fromkeys(self._commits)

    def _url_of(self, name: str) -> str:
        return str(cached_version(str(self._root / name), self._commits[name], wanted=is_needed_for_episodes))

    def __contains__(self, name: object) -> bool:
        """Return whether there is a published dataset of this name now."""
        try:
            return {*Repository.of(f"{self._root}/{name}")[0].commit_of(MAIN)[1]} >= _FILES
        except (InvalidArgumentError, StoreNotFoundError):
            return False

    def __getitem__(self, name: str) -> EpisodeStore:
        """Open a dataset at its newest version; see `Lake`."""
        try:
            return open_store(f"{self._root}/{name}")
        except StoreNotFoundError as error:
            raise self._missing(name) from error

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise StoreAccessError(
            f"The lake {self._root} is on the Hugging Face Hub, and is only read: its stores are published "
            "versions, which never change. Publish with EpisodeStore.publish; create, rename and delete "
            "datasets on the Hub."
        )

    create = rename = delete = _refuse


#: The environment variable with the root of the default lake.
ROOT_VARIABLE = "EPISODELAKE_ROOT"


def lake(
    root: str | PathLike[str] | None = None, *, storage_options: Mapping[str, str] | None = None
) -> Lake:
    """Open a lake: the stores below a folder or a prefix of an object store, by name.

    Nothing is read or created yet. A folder that does not exist is a lake without stores.

    Args:
        root: a folder; or `s3://`, `gs://` or `az://` with a prefix; or `hf://organisation`, an organisation
            or a user of the Hugging Face Hub, whose published datasets are the stores. They are read through
            the cache of this machine and verified, steps only when a store is opened; none is changed. None
            for the one that the environment variable EPISODELAKE_ROOT names.
        storage_options: how to reach an object store, as for `open`.

    Raises:
        InvalidArgumentError: it is a store, lies in one, or is a file; or no organisation; or neither `root`
            nor the environment variable is given.
    """
    if root is None:
        root = os.environ.get(ROOT_VARIABLE) or None
    if root is None:
        raise InvalidArgumentError(
            f"lake() needs a root: give a folder or URL, or set the environment variable {ROOT_VARIABLE}."
        )
    if str(root).startswith(SCHEME):
        return HubLake(str(root), storage_options)
    place = Layout.at(root, storage_options).root
    if place.local is not None:
        store: object = store_at(place.local)
        if exists(place.local) and not is_folder(place.local):
            raise InvalidArgumentError(f"{place} is a file. A lake is a folder of stores.")
    else:
        store = place if (place / Layout.MANIFEST).exists() else None
    if store is not None:
        within = "is a store" if str(store) == str(place) else f"is inside the store {store}"
        raise InvalidArgumentError(
            f"{place} {within}. A lake is the folder above stores: give that, or open the store with "
            "episodelake.open."
        )
    return Lake(place, storage_options)
