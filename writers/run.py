"""What a run says of itself: its id, its environment's specification and the versions it ran with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..store.dynamic.values import dump_json, freeze
from ..store.errors import InvalidArgumentError
from ..store.journal.run_journal import RunHeader
from ..store.names import time_ordered_suffix
from ..store.segments.episode_record import timestamp_now
from .environment import KeptEnv, keep_env

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 80


def new_run_id(name: str | None) -> str:
    """Return the run's name (or "run") with a short suffix that is unique and grows with time.

    The suffix lets any number of machines make ids without asking each other.
    """
    readable = _UNSAFE.sub("-", name or "run").strip(".-")[:_LONGEST_NAME] or "run"
    return f"{readable}-{time_ordered_suffix()}"


def run_header(
    name: str | None, metadata: Mapping[str, Any] | None, env: Any, kept: KeptEnv | None = None
) -> RunHeader:
    """Describe a run that begins now.

    Args:
        name: a readable name.
        metadata: what to keep with the run.
        env: its environment, of any kind; None without one.
        kept: what is kept of the environment, if that was worked out already.

    Raises:
        InvalidArgumentError: the name is no text, or the metadata no mapping.
    """
    if not isinstance(name, str | None):
        raise InvalidArgumentError(f"run={name!r}: expected text, a readable name for the run.")
    if not isinstance(metadata, Mapping | None):
        raise InvalidArgumentError(f"metadata={metadata!r}: expected a mapping.")
    kept = kept or keep_env(None, env)
    return RunHeader(
        run_id=new_run_id(name),
        name=name or "run",
        started_at=timestamp_now(),
        env_spec=kept.env_spec,
        versions=kept.versions,
        metadata=dump_json(freeze(metadata or {})),
        env_bundle=kept.env_bundle,
    )
