"""Environments and artifacts that a store keeps by themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any

import polars as pl

from .readers.replaying.run_envs import RunEnv
from .store.common.arguments import expect
from .store.dynamic.values import dump_json, freeze
from .store.environments.artifacts import artifact_chunks
from .store.environments.records import (
    NamedArtifact,
    Records,
    SavedEnvironment,
    checked_name,
    checked_release,
    checked_version,
    env_content,
    normal,
    now_text,
)
from .store.environments.saving import add_artifact, chosen_versions, find_artifact, save, write_artifact
from .store.errors import EnvUnavailableError, InvalidArgumentError
from .store.files import user_path
from .store.layout import Layout


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


def save_environment(
    layout: Layout,
    env: Any,
    name: str,
    version: int | None,
    release: str | None,
    metadata: Mapping[str, Any] | None,
    texts: Mapping[str, Any],
    *,
    files: Mapping[str, str | PathLike[str]] | None,
    packages: Sequence[str],
) -> SavedEnvironment:
    """Save an environment in a store; see `EpisodeStore.save_environment`. `texts` has what people read."""
    from .readers.replaying.env_recipe import read_recipe
    from .readers.replaying.run_envs import of_saved
    from .writers.session.environment import keep_env

    name = checked_name(name)
    number = 1 if version is None else checked_version(version)
    release = checked_release(release)
    for key, text in texts.items():
        expect(isinstance(text, str | None), key, text, "a text or None")
    kept = keep_env(layout, env, files, packages)
    if kept.env_spec is None or kept.env_bundle is None:
        raise EnvUnavailableError(
            f"{type(env).__name__} has no spec. Register its class with gymnasium.register, and make it "
            "by its id with gymnasium.make."
        )
    expect(isinstance(metadata, Mapping | None), "metadata", metadata, "a mapping")
    own = (kept.env_spec, kept.versions, kept.env_bundle)
    saved = SavedEnvironment(
        name,
        number,
        texts["description"],
        texts["difficulty"],
        now_text(),
        *own,
        release=release,
        metadata=dump_json(freeze(metadata or {})),
    )
    read_recipe(of_saved(saved), f"The environment {name!r}", Path(), {})
    return save(layout, saved, chosen=version is not None)


def delete_environment(store: Any, name: str, *, episodes: bool) -> int:
    """Delete a saved environment of a store; see `EpisodeStore.delete_environment`."""
    layout = store.handle.layout
    plain, version = chosen_versions(layout, name)
    records, deleted = Records(layout, SavedEnvironment), 0
    if episodes:
        saved = [each for each in records.of(plain) if version in (None, each.version)]
        deleted = _delete_episodes(store, {env_content(each.env_spec, each.files) for each in saved})
    ending = "" if version is None else f"-{version}.json"
    names = [each for each in records.file_names(normal(plain)) if each.endswith(ending)]
    if not names:
        raise InvalidArgumentError(f"{layout.root} has no saved environment {name!r}.")
    records.remove(names)
    return deleted


def _delete_episodes(store: Any, contents: Collection[str]) -> int:
    """Delete the episodes of a store whose runs have an environment of these contents; return how many."""
    runs = [
        each.run_id
        for each in RunEnv.of_runs(store.refresh().context.snapshot).values()
        if each.spec is not None
        and env_content(each.spec, each.bundle.files if each.bundle else ()) in contents
    ]
    return store.delete(pl.col("run_id").is_in(runs)).episodes if runs else 0


def _frame(rows: list[tuple[Any, ...]], columns: Mapping[str, Any]) -> pl.DataFrame:
    """Return rows that end with a moment, as ISO 8601, as a frame."""
    rows = [(*row[:-1], datetime.fromisoformat(row[-1])) for row in rows]
    return pl.DataFrame(rows, schema={**columns, "created": pl.Datetime("ms", "UTC")}, orient="row")
