"""Adding and finding saved environments and named artifacts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from os import PathLike
from pathlib import Path

from ..errors import CorruptStoreError, InvalidArgumentError, StoreExistsError
from ..files import is_file, replacing, user_path
from ..layout import Layout
from ..manifest import check_outside_stores
from .artifacts import EnvBundle, KeptFile, artifact_chunks, file_chunks, is_hash, keep_artifact
from .records import (
    NamedArtifact,
    Records,
    SavedEnvironment,
    checked_name,
    env_content,
    normal,
    now_text,
    split_version,
)


def save(layout: Layout, env: SavedEnvironment, *, chosen: bool) -> SavedEnvironment:
    """Save an environment, unless its content is there under its name.

    Args:
        layout: of the store.
        env: the environment; its artifacts are in the store.
        chosen: whether the caller chose the version. Otherwise the same content of any version will do.

    Returns:
        The environment as the store has it.

    Raises:
        StoreExistsError: there is other content under this name and version, or another version has the
            release.
        CorruptStoreError: a record of this name is damaged.
        StoreAccessError: the store cannot be written.
    """
    records = Records(layout, SavedEnvironment)
    rivals: list[SavedEnvironment] = []
    while not rivals:
        there = records.of(env.name)
        rivals = [each for each in there if each.version == env.version or not chosen]
        same = next((each for each in reversed(rivals) if each.content_hash == env.content_hash), None)
        _check_release(env, same, there)
        if same is not None:
            merged = replace(
                same,
                description=same.description if env.description is None else env.description,
                difficulty=same.difficulty if env.difficulty is None else env.difficulty,
                release=same.release if env.release is None else env.release,
                metadata=same.metadata if env.metadata == "{}" else env.metadata,
            )
            if merged != same:
                records.write(merged, exclusive=False)
            return merged
        # If another process is first, its content is compared.
        if not rivals and records.write(env, exclusive=True):
            return env
    newest = max(each.version for each in records.of(env.name))
    raise StoreExistsError(
        f"The store has other content as the environment {env.name!r}, version {rivals[-1].version}. Raise "
        f"the version: save_environment(..., version={newest + 1})."
    )


def _check_release(
    env: SavedEnvironment, same: SavedEnvironment | None, there: Iterable[SavedEnvironment]
) -> None:
    """Refuse the release of another version."""
    if same is not None and same.release == env.release:
        return
    for other in there if env.release is not None else ():
        if other.release == env.release and other != same:
            raise StoreExistsError(
                f"The version {other.version} of {env.name!r} has the release {env.release!r} already, by "
                f"which make_env({f'{env.name}@{env.release}'!r}) finds it. Choose another release."
            )


def find_saved(layout: Layout, name: str) -> SavedEnvironment | None:
    """Return the saved environment of a name (its newest version), of `name@version` or of `name@release`.

    None if there is none.

    Raises:
        CorruptStoreError: a record of this name is damaged.
    """
    plain, version = split_version(name)
    records = Records(layout, SavedEnvironment)
    saved = next((each for each in reversed(records.of(plain)) if version in (None, each.version)), None)
    plain, _, release = name.rpartition("@")
    if saved is None and plain:
        saved = next((each for each in reversed(records.of(plain)) if each.release == release), None)
    return saved


def chosen_versions(layout: Layout, name: str) -> tuple[str, int | None]:
    """Return the name and the version of `name@version` or `name@release`; None stands for all versions.

    Raises:
        CorruptStoreError: a record that may have the release is damaged.
    """
    plain, version = split_version(name)
    if version is None and not Records(layout, SavedEnvironment).file_names(normal(plain)):
        saved = find_saved(layout, name)
        if saved is not None:
            return saved.name, saved.version
    return plain, version


def saved_as(layout: Layout, spec: str | None, bundle: str | None) -> str | None:
    """Return the key of the saved environment with the same spec and files; None if there is none.

    Args:
        layout: of the store.
        spec, bundle: JSON texts, as in the table of runs.
    """
    records = Records(layout, SavedEnvironment)
    if spec is None or bundle is None or not (names := records.file_names()):
        return None
    content = env_content(spec, EnvBundle.from_json(bundle, "The environment").files)
    for name in sorted(names, reverse=True):
        # A damaged record must not keep a run from being recorded; reading it by name says what is wrong.
        with contextlib.suppress(CorruptStoreError):
            each = records.read(name)
            if env_content(each.env_spec, each.files) == content:
                return each.key
    return None


def add_artifact(layout: Layout, content: bytes | str | PathLike[str], name: str) -> NamedArtifact:
    """Keep a content under a name; doing it twice is harmless.

    Raises:
        InvalidArgumentError: the name is not valid, or the content is not a file.
        StoreExistsError: another content has this name.
        StoreAccessError: the content cannot be read, or the store cannot be written.
    """
    name = checked_name(name)
    if isinstance(content, bytes | bytearray | memoryview):
        data = bytes(content)
        digest, size = keep_artifact(layout, lambda: [data])
    elif isinstance(content, str | PathLike) and is_file(path := user_path(content)):
        digest, size = keep_artifact(layout, lambda: file_chunks(path))
    else:
        named = isinstance(content, str | PathLike)
        problem = f"There is no file {str(content)!r:.200}" if named else f"content={content!r:.200}"
        raise InvalidArgumentError(f"{problem}. Give the path of a file, or its content as bytes.")
    record = NamedArtifact(name, digest, size, now_text())
    records = Records(layout, NamedArtifact)
    if records.write(record, exclusive=True):
        return record
    there = records.read(record.file_name)
    if there.sha256 != digest:
        raise StoreExistsError(
            f"The store has other content as the artifact {name!r} ({there.sha256}). Delete that first "
            "(store.artifacts.delete), or choose another name."
        )
    return there


def find_artifact(layout: Layout, name: str) -> KeptFile:
    """Return the artifact of a name or of a SHA-256.

    Raises:
        InvalidArgumentError: there is none; the message lists names that are.
        CorruptStoreError: the record of the name is damaged.
    """
    if is_hash(name):
        place = layout.artifacts / name
        if place.exists():
            return KeptFile(name, name, place.size())
    artifacts = Records(layout, NamedArtifact).of(name)
    if not artifacts:
        known = ", ".join(repr(each.name) for each in Records(layout, NamedArtifact).all()[:10]) or "none"
        raise InvalidArgumentError(f"{layout.root} has no artifact {name!r}. Its artifacts: {known}.")
    return artifacts[0].files[0]


def write_artifact(layout: Layout, file: KeptFile, into: Path) -> None:
    """Write the content of an artifact to a file, replacing it atomically.

    Raises:
        CorruptStoreError: see `artifact_chunks`; nothing was written.
        StoreAccessError: the file cannot be written.
    """
    check_outside_stores(into)
    with replacing(into) as draft, open(draft, "xb") as target:
        target.writelines(artifact_chunks(layout, file))
