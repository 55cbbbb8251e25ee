"""Adding and finding saved environments and named artifacts."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path

from ..errors import InvalidArgumentError, StoreExistsError
from ..files import guard_access, replacing, user_path
from ..layout import Layout
from ..manifest import check_outside_stores
from .artifacts import KeptFile, artifact_chunks, file_chunks, is_hash, keep_artifact
from .records import NamedArtifact, Records, SavedEnvironment, checked_name, now_text, split_version


def save(layout: Layout, env: SavedEnvironment, *, chosen: bool) -> SavedEnvironment:
    """Save an environment, unless its content is there under its name.

    Args:
        layout: of the store.
        env: the environment; its artifacts are in the store.
        chosen: whether the caller chose the version. Otherwise the same content of any version will do.

    Returns:
        The environment as the store has it.

    Raises:
        StoreExistsError: there is other content under this name and version.
        CorruptStoreError: a record of this name is damaged.
        StoreAccessError: the store cannot be written.
    """
    records = Records(layout, SavedEnvironment)
    rivals: list[SavedEnvironment] = []
    while not rivals:
        there = records.of(env.name)
        rivals = [each for each in there if each.version == env.version or not chosen]
        same = next((each for each in reversed(rivals) if each.content_hash == env.content_hash), None)
        if same is not None:
            merged = replace(
                same,
                description=same.description if env.description is None else env.description,
                difficulty=same.difficulty if env.difficulty is None else env.difficulty,
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


def find_saved(layout: Layout, name: str) -> SavedEnvironment | None:
    """Return the saved environment of a name (its newest version) or of `name@version`; None if there is
    none.

    Raises:
        CorruptStoreError: a record of this name is damaged.
    """
    plain, version = split_version(name)
    saved = Records(layout, SavedEnvironment).of(plain)
    return next((each for each in reversed(saved) if version in (None, each.version)), None)


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
    elif isinstance(content, str | PathLike) and (path := user_path(content)).is_file():
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
        with guard_access("look for the artifact", place):
            if place.exists():
                return KeptFile(name, name, place.size())
    artifacts = Records(layout, NamedArtifact).of(name)
    if not artifacts:
        known = ", ".join(repr(each.name) for each in Records(layout, NamedArtifact).all()[:10]) or "none"
        raise InvalidArgumentError(f"{layout.root} has no artifact {name!r}. Its artifacts: {known}.")
    return artifacts[0].files[0]


def write_artifact(layout: Layout, file: KeptFile, into: Path) -> None:
    """Write the content of an artifact to a file, which it replaces as a whole.

    Raises:
        CorruptStoreError: see `artifact_chunks`; nothing was written.
        StoreAccessError: the file cannot be written.
    """
    check_outside_stores(into)
    with guard_access("write", into), replacing(into) as draft, open(draft, "xb") as target:
        target.writelines(artifact_chunks(layout, file))
