"""`store.json` and `card.json`: what a store is, and what its makers say of it.

The manifest is written once, when the store is created, and is the last file to appear: a directory without
it is no store. The card may change and is replaced as a whole.
"""

from __future__ import annotations

import json
import re
import uuid
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import gymnasium

from .agents import AgentGroup, check_groups, column_prefix, joint_spaces
from .errors import (
    CorruptStoreError,
    FormatVersionError,
    InvalidArgumentError,
    StoreExistsError,
    StoreNotFoundError,
)
from .files import guard_access
from .layout import FORMAT_VERSION, MANIFEST, Layout
from .places import Place
from .spaces import SpaceCodec, space_from_json, space_to_json

_LARGEST = 64 << 20
_SUM = b'"crc32": '
_END = re.compile(_SUM + rb'"([0-9a-f]{8})"\n\}')
_END_BYTES = len('"01234567"\n}')

#: Names of a folder that is no store that a message tells.
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
    """

    store_id: str
    created_at: str
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    reward_shape: tuple[int, ...]
    groups: tuple[AgentGroup, ...] = ()

    @staticmethod
    def new(
        observation_space: gymnasium.Space, action_space: gymnasium.Space, reward_shape: tuple[int, ...]
    ) -> Manifest:
        """The identity of a store that is about to be created."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return Manifest(uuid.uuid4().hex, now, observation_space, action_space, reward_shape)

    @staticmethod
    def of_agents(groups: tuple[AgentGroup, ...], reward_shape: tuple[int, ...]) -> Manifest:
        """The identity of a multi-agent store that is about to be created."""
        return replace(Manifest.new(*joint_spaces(groups), reward_shape), groups=groups)

    def to_json(self) -> dict[str, Any]:
        """The content of `store.json`."""
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
        return {
            "format": FORMAT_VERSION,
            "store_id": self.store_id,
            "created_at": self.created_at,
            **held,
            "reward_shape": list(self.reward_shape),
            "columns": {
                root: {column.name: str(column.type) for column in SpaceCodec(space, root).fields}
                for root, space in roots.items()
            },
        }


def write_manifest(layout: Layout, manifest: Manifest) -> None:
    """Write `store.json`; of several processes that create the same store, one succeeds.

    Raises:
        StoreExistsError: another process was first.
        StoreAccessError: the file system refused.
    """
    text = _summed(json.dumps({**manifest.to_json(), "crc32": "0" * 8}, indent=1, allow_nan=False).encode())
    with guard_access("write", layout.manifest):
        try:
            layout.manifest.write(text, exclusive=True)
        except FileExistsError as error:
            raise StoreExistsError(
                f"{layout.root} is a store already. Open it with episodelake.open, or choose another path."
            ) from error


def read_manifest(layout: Layout) -> Manifest:
    """Read and check `store.json`.

    Raises:
        StoreNotFoundError: the directory is missing or is no store.
        FormatVersionError: the store was written in a format that this version does not know.
        CorruptStoreError: the file is damaged.
    """
    content = _read_object(layout.manifest, missing=lambda: _not_found(layout.root))
    version = content.get("format")
    if type(version) is not int:
        raise CorruptStoreError(f"{layout.manifest} names the format {version!r}; expected a whole number.")
    if version > FORMAT_VERSION:
        raise FormatVersionError(
            f"{layout.manifest} has format {version}; this version of Episodelake reads format "
            f"{FORMAT_VERSION}. Upgrade with: pip install --upgrade episodelake"
        )
    if version != FORMAT_VERSION:
        raise CorruptStoreError(
            f"{layout.manifest} names the format {version!r}; expected the number {FORMAT_VERSION}."
        )
    try:
        shape = tuple(content["reward_shape"])
        if not all(type(size) is int and 0 < size < 2**16 for size in shape) or len(shape) > 1:
            raise ValueError(f"reward_shape {shape} is neither [] nor [k]")
        groups, spaces = _spaces(content)
        return Manifest(str(content["store_id"]), str(content["created_at"]), *spaces, shape, groups)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptStoreError(
            f"{layout.manifest} is damaged: {type(error).__name__}: {error}. Restore the file from a copy."
        ) from error


def _spaces(
    content: Mapping[str, Any],
) -> tuple[tuple[AgentGroup, ...], tuple[gymnasium.Space, gymnasium.Space]]:
    """The groups of a multi-agent store, and the spaces of every store."""
    if "agents" not in content:
        found = content["spaces"]
        return (), (space_from_json(found["observation"]), space_from_json(found["action"]))
    groups = tuple(AgentGroup.from_json(each) for each in content["agents"])
    if not groups:
        raise ValueError("a multi-agent store without agents")
    check_groups(groups)
    return groups, joint_spaces(groups)


def read_card(layout: Layout) -> dict[str, Any]:
    """Read `card.json`; a store without one has an empty card."""
    try:
        return _read_object(layout.card, missing=lambda: f"{layout.card} is gone.")
    except StoreNotFoundError:
        return {}


def card_text(card: Mapping[str, Any]) -> str:
    """The text of `card.json`.

    Raises:
        InvalidArgumentError: the card is not plain JSON.
    """
    try:
        return json.dumps(dict(card), indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"The card is not plain JSON: {error}. Use text, numbers, lists and mappings with text as keys."
        ) from error


def write_card(layout: Layout, text: str) -> None:
    """Replace `card.json` as a whole.

    Raises:
        StoreAccessError: the file system refused; the old card stays.
    """
    with guard_access("write", layout.card):
        layout.card.write(text.encode())


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _not_found(root: Place) -> str:
    if root.local is not None and root.local.is_file():
        return f"{root} is a file, not a store. Give the folder that holds {MANIFEST}."
    if not root.exists():
        return f"There is no store at {root}: the folder does not exist. Create one with episodelake.create."
    names = root.names()
    stores = [name for name in names if root.local is not None and (root.local / name / MANIFEST).is_file()]
    if stores:
        listed = ", ".join(str(root / name) for name in stores[:_NAMED])
        more = f" and {len(stores) - _NAMED} more" if len(stores) > _NAMED else ""
        return f"{root} is a folder with stores, not a store. Give one of them: {listed}{more}."
    found = ", ".join(names[:_NAMED]) or "nothing"
    return (
        f"{root} is no store: it has no {MANIFEST} (found: {found}). Give the folder that holds "
        f"{MANIFEST}, or create a store with episodelake.create."
    )


def _read_object(path: Place, missing: Callable[[], str]) -> dict[str, Any]:
    try:
        with guard_access("read", path):
            if path.local is not None and path.local.is_file() and path.size() > _LARGEST:
                raise CorruptStoreError(f"{path} has {path.size()} bytes; {_LARGEST} are the most.")
            data = path.read()
    except OSError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            with guard_access("look for a store", path):
                message = missing()
            raise StoreNotFoundError(message) from None
        raise
    try:
        content = json.loads(data, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise CorruptStoreError(
            f"{path} is no valid JSON ({error}). Restore the file from a copy."
        ) from error
    if not isinstance(content, dict):
        raise CorruptStoreError(f"{path} holds {type(content).__name__}; expected a JSON object.")
    if not _fits(data):
        raise CorruptStoreError(
            f"{path} is not as it was written: its checksum does not fit. Restore the file from a copy."
        )
    return content


def _summed(text: bytes) -> bytes:
    """The text of an object whose last member is to be the CRC-32 of what stands before its value."""
    before = text[:-_END_BYTES]
    return before + b'"%08x"\n}' % zlib.crc32(before)


def _fits(text: bytes) -> bool:
    """Whether an object is what was summed up; one that ends otherwise has no sum."""
    found = _END.fullmatch(text[-len(_SUM) - _END_BYTES :])
    return found is None or int(found[1], 16) == zlib.crc32(text[:-_END_BYTES])
