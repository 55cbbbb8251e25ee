"""`SavingStore`: environments and artifacts that a store keeps by themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any

import polars as pl

from .readers.view import EpisodeView
from .store.environments.artifacts import artifact_chunks
from .store.environments.records import (
    NamedArtifact,
    Records,
    SavedEnvironment,
    checked_name,
    checked_version,
    normal,
    now_text,
    split_version,
)
from .store.environments.saving import add_artifact, find_artifact, save, write_artifact
from .store.errors import EnvUnavailableError, InvalidArgumentError
from .store.files import user_path
from .store.layout import Layout
from .store.schema import StoreHandle


class Artifacts:
    """The named artifacts of a store: files of any kind and size, kept once by their SHA-256.

    Contents are streamed in constant memory. A content without a name that no run and no saved environment
    refers to is deleted by `vacuum` when it is a day old.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def add(self, content: bytes | str | PathLike[str], *, name: str) -> str:
        """Keep a content under a name, and return its SHA-256; doing it twice is harmless.

        Args:
            content: the path of a file, or its content as bytes.
            name: a printable text of up to 200 bytes, such as "tables/prices.parquet".

        Raises:
            InvalidArgumentError: the name is not valid, or the content is not a file or changed meanwhile.
            StoreExistsError: another content has this name.
            StoreAccessError: the content cannot be read, or the store cannot be written.
        """
        return add_artifact(self._layout, content, name).sha256

    def list(self) -> pl.DataFrame:
        """Return the named artifacts: name, sha256, bytes and created (UTC).

        Raises:
            CorruptStoreError: the record of a name is damaged.
        """
        rows = [
            (each.name, each.sha256, each.size, each.created_at)
            for each in Records(self._layout, NamedArtifact).all()
        ]
        return _frame(rows, {"name": pl.String, "sha256": pl.String, "bytes": pl.Int64})

    def get(self, name: str, into: str | PathLike[str] | None = None) -> bytes | Path:
        """Return the content of an artifact as bytes, or write it to a file and return the path.

        Args:
            name: its name, or the SHA-256 of any artifact of the store.
            into: the path of a file, which is replaced as a whole; memory then stays constant.

        Raises:
            InvalidArgumentError: there is no such artifact.
            CorruptStoreError: its content is missing or damaged; nothing was written.
            StoreAccessError: it cannot be read or written.
        """
        file = find_artifact(self._layout, name)
        if into is None:
            return b"".join(artifact_chunks(self._layout, file))
        path = user_path(into)
        write_artifact(self._layout, file, path)
        return path

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the content of an artifact in pieces of some MiB; see `get`.

        Whether the content is whole is known after the last piece.
        """
        return artifact_chunks(self._layout, find_artifact(self._layout, name))

    def delete(self, name: str) -> None:
        """Take a name away; `vacuum` deletes the content when nothing else refers to it.

        Raises:
            InvalidArgumentError: there is no artifact with this name.
        """
        records = Records(self._layout, NamedArtifact)
        names = records.file_names(normal(name))
        if not names:
            raise InvalidArgumentError(f"{self._layout.root} has no artifact with the name {name!r}.")
        records.remove(names)


class SavesEnvironments:
    """The part of an open store, or of a lake, that keeps environments."""

    @property
    def _environments_in(self) -> Layout:
        """Where they are kept."""
        raise NotImplementedError

    def save_environment(
        self,
        env: Any,
        *,
        name: str,
        description: str | None = None,
        difficulty: str | None = None,
        version: int | None = None,
        files: Mapping[str, str | PathLike[str]] | None = None,
        packages: Sequence[str] = (),
    ) -> SavedEnvironment:
        """Keep an environment by itself, so that `make_env(name)` makes it again.

        It may have other spaces than the episodes. If the same content has this name already, nothing is
        saved; a description and a difficulty that are given replace those of before.

        Args:
            env: a Gymnasium environment with a spec, as `gymnasium.make` gives it.
            name: a printable text of up to 200 bytes, such as "ALE/Pong-v5".
            description, difficulty: texts for people.
            version: from 1; several are kept side by side. None stands for the one with this content, or 1.
            files, packages: as for `record`.

        Raises:
            EnvUnavailableError: it could not be made again; the message names what is missing.
            StoreExistsError: other content has this name and version.
            InvalidArgumentError: an argument is not valid, or a file cannot be kept.
            StoreAccessError: the store cannot be written.
        """
        from .readers.replaying.env_recipe import read_recipe
        from .readers.replaying.run_envs import of_saved
        from .writers.session.environment import keep_env

        name = checked_name(name)
        number = 1 if version is None else checked_version(version)
        for key, text in {"description": description, "difficulty": difficulty}.items():
            if not isinstance(text, str | None):
                raise InvalidArgumentError(f"{key}={text!r:.200}: expected a text or None.")
        kept = keep_env(self._environments_in, env, files, packages)
        if kept.env_spec is None or kept.env_bundle is None:
            raise EnvUnavailableError(
                f"{type(env).__name__} has no spec. Register its class with gymnasium.register, and make it "
                "by its id with gymnasium.make."
            )
        texts = (kept.env_spec, kept.versions, kept.env_bundle)
        saved = SavedEnvironment(name, number, description, difficulty, now_text(), *texts)
        read_recipe(of_saved(saved), f"The environment {name!r}", Path(), {})
        return save(self._environments_in, saved, chosen=version is not None)


class SavingStore(SavesEnvironments, EpisodeView):
    """The part of an open store that keeps environments and artifacts by themselves."""

    handle: StoreHandle

    @property
    def _environments_in(self) -> Layout:
        return self.handle.layout

    @property
    def artifacts(self) -> Artifacts:
        """The named artifacts of the store."""
        return Artifacts(self.handle.layout)

    def delete_environment(self, name: str) -> None:
        """Delete a saved environment: all versions of a name, or that of `name@version`.

        `vacuum` deletes its files when nothing else refers to them.

        Raises:
            InvalidArgumentError: there is none.
        """
        delete_environment(self.handle.layout, name)


def delete_environment(layout: Layout, name: str) -> None:
    """Delete a saved environment of a store or of a lake; see `SavingStore.delete_environment`."""
    plain, version = split_version(name)
    records = Records(layout, SavedEnvironment)
    ending = "" if version is None else f"-{version}.json"
    names = [each for each in records.file_names(normal(plain)) if each.endswith(ending)]
    if not names:
        raise InvalidArgumentError(f"{layout.root} has no saved environment {name!r}.")
    records.remove(names)


def _frame(rows: list[tuple[Any, ...]], columns: Mapping[str, Any]) -> pl.DataFrame:
    """Return rows that end with a moment, as ISO 8601, as a frame."""
    rows = [(*row[:-1], datetime.fromisoformat(row[-1])) for row in rows]
    return pl.DataFrame(rows, schema={**columns, "created": pl.Datetime("ms", "UTC")}, orient="row")
