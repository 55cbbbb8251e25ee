"""Collection without a store: a temporary one, deleted with the call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...store.creation import make_tables
from ...store.errors import InvalidArgumentError
from ...store.layout import Layout
from ...store.manifest import write_manifest
from ...store.schema import StoreHandle
from ..recorders.choice import made, manifest_of

#: Options of a recorder that have an effect where nothing is kept.
_EFFECTIVE = ("autoreset_mode", "step_callback", "episode_callback", "cast")


@dataclass(frozen=True)
class Opened:
    """An open store, as recorders want it."""

    handle: StoreHandle


def options_without_store(recording: Mapping[str, Any]) -> Any:
    """Return the options of a recorder of episodes that are not kept.

    Raises:
        InvalidArgumentError: one says what a store is to keep.
    """
    unused = [name for name in recording if name not in _EFFECTIVE]
    if unused:
        raise InvalidArgumentError(
            f"{unused[0]}={recording[unused[0]]!r:.100} says how episodes are stored, and collect was given "
            f"no store. Without one it takes {', '.join(_EFFECTIVE)}."
        )
    return {"durability": "none", "record_infos": False, **recording}


@contextmanager
def temporary_store(env: Any) -> Iterator[Opened]:
    """Yield an empty store for an environment, or for what one is made from; it goes when the block ends.

    Raises:
        UnsupportedSpaceError: a space has no columns.
        InvalidArgumentError: it is no environment.
    """
    with made(env) as own:
        manifest = manifest_of(own)
    with TemporaryDirectory(prefix="episodelake-", ignore_cleanup_errors=True) as folder:
        layout = Layout.at(Path(folder, "store"))
        make_tables(StoreHandle(layout, manifest))
        write_manifest(layout, manifest)
        yield Opened(StoreHandle(layout.of_store(manifest.store_id), manifest))
