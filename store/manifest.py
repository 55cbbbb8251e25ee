"""`store.json` and `card.json`: the identity of a store, and its description by its makers.

The manifest is written once, when the store is created, and is the last file to appear: a directory without
it is no store. The card may change and is replaced as a whole.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium

from .agents import AgentGroup, check_groups, column_prefix, joint_spaces
from .card import CardEntries
from .common.arguments import expect, suggest
from .errors import (
    CorruptStoreError,
    FormatVersionError,
    InvalidArgumentError,
    MissingFileError,
    SpaceMismatchError,
    StoreExistsError,
    StoreNotFoundError,
)
from .files import Place, is_file, real_path, touching, visible_step
from .files.paths import read_plain
from .frames import ImageShape, Video
from .frames.ffmpeg import check_encoder
from .layout import (
    MANIFEST,
    PLAIN_FORMAT,
    STAGING,
    UNFINISHED,
    VIDEO_FORMAT,
    Layout,
    checked_json,
    read_json,
)
from .spaces import SpaceCodec, plain_space, space_from_json, space_to_json

#: How many names a message lists for a folder that is no store.
_NAMED = 8


@dataclass(frozen=True)
class Manifest:
    """The identity of a store: everything in it that never changes.

    Attributes:
        store_id: a random UUID in hexadecimal.
        created_at: UTC time of creation, ISO 8601.
        observation_space, action_space: spaces of every episode; of a multi-agent store the one group's, or a
            Dict with an entry per group.
        reward_shape: () for a scalar reward, (k,) for k objectives.
        groups: the agents of a multi-agent store, by their spaces; else empty.
        encodings: how new frames of a column are encoded, by column.
        rollouts: of a store of rollouts of language agents, the tokenizer and so on; None for others.
    """

    store_id: str
    created_at: str
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    reward_shape: tuple[int, ...]
    groups: tuple[AgentGroup, ...] = ()
    encodings: Mapping[str, Video] = field(default_factory=dict)
    rollouts: Mapping[str, Any] | None = None

    @property
    def format_version(self) -> int:
        """The version of the format: only stores with encoded frames need the later one."""
        return VIDEO_FORMAT if self.encodings else PLAIN_FORMAT

    @staticmethod
    def new(
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        reward_shape: tuple[int, ...],
        *,
        rollouts: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """Return the identity of a store that is about to be created."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        spaces = plain_space(observation_space), plain_space(action_space)
        return Manifest(uuid.uuid4().hex, now, *spaces, reward_shape, rollouts=rollouts)

    @staticmethod
    def of_agents(groups: tuple[AgentGroup, ...], reward_shape: tuple[int, ...]) -> Manifest:
        """Return the identity of a multi-agent store that is about to be created."""
        return replace(Manifest.new(*joint_spaces(groups), reward_shape), groups=groups)

    def renewed(self) -> Manifest:
        """Return the identity of a new store with the same spaces, agents and encodings."""
        fresh = Manifest.new(self.observation_space, self.action_space, self.reward_shape)
        return replace(self, store_id=fresh.store_id, created_at=fresh.created_at)

    @cached_property
    def content(self) -> Mapping[str, Any]:
        """The content of `store.json`; spaces of images take long to describe.

        Raises:
            UnsupportedSpaceError: a space has no description.
        """
        spaces = {"observation": self.observation_space, "action": self.action_space}
        roots = dict(spaces)
        if self.groups:
            held: dict[str, Any] = {"agents": [group.to_json() for group in self.groups]}
            roots = {}
            for index, group in enumerate(self.groups):
                prefix = column_prefix(self.groups, index)
                roots[f"{prefix}observation"] = group.observation_space
                roots[f"{prefix}action"] = group.action_space
        else:
            held = {"spaces": {root: space_to_json(space) for root, space in spaces.items()}}
        if self.encodings:
            held["encodings"] = {column: each.to_json() for column, each in self.encodings.items()}
        if self.rollouts is not None:
            held["rollouts"] = dict(self.rollouts)
        return {
            "format": self.format_version,
            "store_id": self.store_id,
            "created_at": self.created_at,
            **held,
            "reward_shape": list(self.reward_shape),
            "columns": {
                root: {column.name: str(column.type) for column in SpaceCodec(space, root).fields}
                for root, space in roots.items()
            },
        }


def with_encodings(manifest: Manifest, encodings: Any) -> Manifest:
    """Return the identity of a new store that encodes some columns of frames, beside those it does already.

    Args:
        manifest: without them.
        encodings: by column.

    Raises:
        InvalidArgumentError: it is no mapping, names another column, or this machine cannot encode so.
        MissingPackageError: PyAV is not installed.
    """
    expect(
        isinstance(encodings, Mapping), "encodings", encodings, "a mapping from columns to episodelake.Video"
    )
    others = [column for column, own in manifest.encodings.items() if encodings.get(column, own) != own]
    if others:
        raise InvalidArgumentError(
            f"encodings names {', '.join(others)}, whose frames are encoded otherwise already, and encoded "
            "frames are copied. Leave it out."
        )
    made = replace(manifest, encodings={**manifest.encodings, **encodings})
    check_encodings(made)
    for encoding in encodings.values():
        check_encoder(encoding)
    return made


def check_encodings(manifest: Manifest) -> None:
    """Check that a manifest's encodings are of columns that hold frames.

    Raises:
        InvalidArgumentError: there is no such column, or its frames cannot be encoded.
    """
    if not manifest.encodings:
        return
    parts: Sequence[tuple[str, gymnasium.Space]] = [("", manifest.observation_space)]
    if manifest.groups:
        parts = [
            (column_prefix(manifest.groups, index), group.observation_space)
            for index, group in enumerate(manifest.groups)
        ]
    leaves = [leaf for prefix, space in parts for leaf in SpaceCodec(space, f"{prefix}observation").leaves]
    frames = {leaf.column: leaf.shape for leaf in leaves if leaf.binary}
    for column, encoding in manifest.encodings.items():
        if column not in frames:
            others = {leaf.column: f"{leaf.space.dtype} of shape {leaf.space.shape}" for leaf in leaves}
            hint = suggest(str(column), list(frames))
            if column in others:
                hint = f" It holds {others[column]}, which every store keeps exactly."
            raise InvalidArgumentError(
                f"encodings names {column!r}, which is no column of frames: images of uint8 in the "
                f"observations.{hint} Those are: {', '.join(frames) or 'none'}."
            )
        expect(isinstance(encoding, Video), f"encodings[{column!r}]", encoding, "episodelake.Video")
        ImageShape(frames[column])


def check_same_spaces(expected: Manifest, other: Manifest, *, at: Any, source: str) -> None:
    """Compare the spaces, agents and reward shape of a store with others.

    Args:
        expected: of the store.
        other: of the store whose episodes come into it, or that was to be created in its place.
        at: where the store is.
        source: whose the others are, for the message: "of data/pole", "that was given".

    Raises:
        SpaceMismatchError: an observation, action or reward differs; the message names it.
    """
    mine, others = ({group.name: _spaces_of(group) for group in each.groups} for each in (expected, other))
    if mine != others:
        own, given = (
            "; ".join(f"{group.name}: {', '.join(group.agents)}" for group in each.groups) or "a single agent"
            for each in (expected, other)
        )
        raise SpaceMismatchError(
            f"The environment {source} has other agents ({given}) than the store {at} ({own}), or their "
            "spaces differ. Use a store of the same agents and spaces."
        )
    for root, expects, got in zip(
        ("observation", "action"), _spaces_of(expected), _spaces_of(other), strict=True
    ):
        if expects != got:
            space, given = (getattr(each, f"{root}_space") for each in (expected, other))
            raise SpaceMismatchError(
                f"The {root} space {source} is {given}; the store {at} has {space}. Use a store of the same "
                "spaces."
            )
    if expected.reward_shape != other.reward_shape:
        raise SpaceMismatchError(
            f"The reward shape {source} is {other.reward_shape}; the store {at} has {expected.reward_shape}. "
            "Use a store of the same shape."
        )
    if expected.rollouts != other.rollouts:
        own, given = (
            "no rollouts" if each is None else f"rollouts of {dict(each) or 'no tokenizer'}"
            for each in (expected.rollouts, other.rollouts)
        )
        raise SpaceMismatchError(
            f"The store {at} has {own}; {source} there are {given}. Use a store of the same declaration."
        )
    lacking = sorted(set(other.encodings) - set(expected.encodings))
    if lacking:
        raise SpaceMismatchError(
            f"The observation space {source} has encoded frames in {', '.join(lacking)}; the store {at} "
            "keeps these raw. Create the store with encodings for these columns, such as "
            f"{dict(other.encodings)}."
        )


def check_same_encodings(expected: Manifest, other: Manifest, *, at: Any) -> None:
    """Compare the encodings of a store with those that were given for one in its place.

    Raises:
        SpaceMismatchError: a column of frames is encoded otherwise.
    """
    if expected.encodings != other.encodings:
        given, own = dict(other.encodings), dict(expected.encodings)
        raise SpaceMismatchError(
            f"The encodings that were given are {given!r:.300}; the store {at} has {own!r:.300}. Use a "
            "store of the same encodings, or leave them out."
        )


def _spaces_of(owner: Manifest | AgentGroup) -> tuple[Any, Any]:
    return space_to_json(owner.observation_space), space_to_json(owner.action_space)


def write_manifest(layout: Layout, manifest: Manifest) -> None:
    """Write `store.json`; of several processes that create the same store, one succeeds.

    Raises:
        StoreExistsError: another process was first.
        StoreAccessError: the file system refused.
    """
    text = checked_json(manifest.content)
    with visible_step(f"The store {layout.root} is created"):
        try:
            layout.manifest.write(text, exclusive=True)
        except FileExistsError as error:
            raise exists_error(layout) from error


def exists_error(layout: Layout) -> StoreExistsError:
    """Return the error for a place of a new store that holds a store."""
    return StoreExistsError(
        f"{layout.root} is a store already. Open it with episodelake.open, or choose another path."
    )


def read_manifest(layout: Layout) -> Manifest:
    """Read and check `store.json`.

    Raises:
        StoreNotFoundError: the directory is missing or is no store.
        FormatVersionError: the store was written in a format that this version does not know.
        CorruptStoreError: the file is damaged.
    """
    content = _read_object(layout.manifest, missing=lambda: _not_found(layout.root))
    version = content.get("format")
    if type(version) is int and version > VIDEO_FORMAT:
        raise FormatVersionError(
            f"{layout.manifest} has format {version}; this version of Episodelake reads formats "
            f"{PLAIN_FORMAT} and {VIDEO_FORMAT}. Upgrade with: pip install --upgrade episodelake"
        )
    if type(version) is not int or version not in (PLAIN_FORMAT, VIDEO_FORMAT):
        raise CorruptStoreError(
            f"{layout.manifest} names the format {version!r}; expected {PLAIN_FORMAT} or {VIDEO_FORMAT}."
        )
    try:
        shape = tuple(content["reward_shape"])
        if not all(type(size) is int and 0 < size < 2**16 for size in shape) or len(shape) > 1:
            raise ValueError(f"reward_shape {shape} is neither [] nor [k]")
        groups, spaces = _spaces(content)
        described = content["encodings"] if version == VIDEO_FORMAT else {}
        if not isinstance(described, dict):
            raise TypeError(f"encodings is a {type(described).__name__}, not an object")
        encodings = {str(column): Video.from_json(each) for column, each in described.items()}
        rollouts = content.get("rollouts")
        if not isinstance(rollouts, dict | None):
            raise TypeError(f"rollouts is a {type(rollouts).__name__}, not an object")
        identity = str(content["store_id"]), str(content["created_at"])
        manifest = Manifest(*identity, *spaces, shape, groups, encodings, rollouts)
        check_encodings(manifest)
        return manifest
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptStoreError(
            f"{layout.manifest} is damaged: {type(error).__name__}: {str(error).rstrip('.')}. "
            "Restore the file from a copy."
        ) from error


def _spaces(
    content: Mapping[str, Any],
) -> tuple[tuple[AgentGroup, ...], tuple[gymnasium.Space, gymnasium.Space]]:
    """Return the groups of a multi-agent store, and the spaces of every store."""
    if "agents" not in content:
        described = content["spaces"]
        return (), (space_from_json(described["observation"]), space_from_json(described["action"]))
    groups = tuple(AgentGroup.from_json(each) for each in content["agents"])
    if not groups:
        raise ValueError("a multi-agent store without agents")
    check_groups(groups)
    return groups, joint_spaces(groups)


def read_card(layout: Layout) -> CardEntries:
    """Read `card.json`; a store without one has an empty card."""
    try:
        card = _read_object(layout.card, missing=lambda: StoreNotFoundError(f"{layout.card} is gone."))
    except StoreNotFoundError:
        return CardEntries()
    if "licence" in card:
        # The name of the key in stores of 0.1.0.
        card.setdefault("license", card.pop("licence"))
    return CardEntries(card)


def dimension_names(layout: Layout, column: str, size: int) -> tuple[str, ...] | None:
    """Return the card's names of the numbers of a column; None if it gives none, or is damaged."""
    try:
        return read_card(layout).dimension_names(column, size)
    except CorruptStoreError:
        return None


def write_card(layout: Layout, data: bytes) -> None:
    """Replace `card.json` atomically.

    Args:
        data: from `CardEntries.to_bytes`.

    Raises:
        StoreAccessError: the file system refused; the old card stays.
    """
    with visible_step(f"The card {layout.card} is written"):
        layout.card.write(data)


def _not_found(root: Place) -> StoreNotFoundError:
    if root.local is not None and is_file(root.local):
        return StoreNotFoundError(f"{root} is a file, not a store. Give the folder that holds {MANIFEST}.")
    if not root.exists():
        name, at, tag = root.name.rpartition("@")
        if at and name and ((beside := root.parent / name) / MANIFEST).exists():
            version = int(tag) if tag.isdecimal() else tag
            return StoreNotFoundError(
                f"There is no store at {root}; there is one at {beside}.",
                hint="Pass a version or tag as an argument of its own: "
                f"episodelake.open({str(beside)!r}, {version!r}).",
            )
        missing = (
            "the folder" if root.local is not None else "its bucket, or every object under this address,"
        )
        return StoreNotFoundError(
            f"There is no store at {root}: {missing} does not exist.",
            hint="Create one with episodelake.create.",
        )
    names = root.names()
    # Those with a dot are unfinished imports and copies.
    shown = [name for name in names if not name.startswith(".")] if root.local is not None else []
    stores = [name for name in shown if root.local is not None and is_file(root.local / name / MANIFEST)]
    if stores:
        listed = ", ".join(str(root / name) for name in stores[:_NAMED])
        more = f" and {len(stores) - _NAMED} more" if len(stores) > _NAMED else ""
        return StoreNotFoundError(
            f"{root} is a folder with stores, not a store. Give one of them: {listed}{more}. "
            f"For all of them: `episodelake lake {root}`, in Python episodelake.lake({str(root)!r})."
        )
    holds = ", ".join(names[:_NAMED]) or "nothing"
    return StoreNotFoundError(
        f"{root} is no store: it has no {MANIFEST} (found: {holds}). Give the folder that holds {MANIFEST}.",
        hint="To make a new store, call episodelake.create.",
    )


def _read_object(path: Place, missing: Callable[[], StoreNotFoundError]) -> dict[str, Any]:
    try:
        return read_json(path)
    except MissingFileError:
        raise missing() from None


@touching("look for a store at")
def store_at(path: Path) -> Path | None:
    """Return the folder of the store, finished or not, that a local path is or is inside of.

    Raises:
        StoreAccessError: the folders above it cannot be read.
    """
    real = real_path(path)
    return next((each for each in (real, *real.parents) if _is_store(each)), None)


@touching("look for a store at")
def check_outside_stores(path: Path) -> None:
    """Refuse a target inside a store, which holds only its own files and parts of writes into it.

    Raises:
        InvalidArgumentError: it is inside a store, or no path.
        StoreAccessError: the folders above it cannot be read.
    """
    real = real_path(path)
    store = store_at(real.parent)
    if store is not None and real.relative_to(store).parts[0] != STAGING:
        raise InvalidArgumentError(
            f"{path} is inside the store {store}, which holds its own files only. Choose a path outside."
        )


def _is_store(folder: Path) -> bool:
    for name in (MANIFEST, UNFINISHED):
        file = folder / name
        if is_file(file):
            # Other programs have files of this name.
            try:
                if "store_id" in json.loads(read_plain(file)):
                    return True
            except (ValueError, TypeError, RecursionError):
                continue
    return False
