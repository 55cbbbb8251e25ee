"""What a run says of itself: its id, its environment's specification and the versions it ran with."""

from __future__ import annotations

import contextlib
import json
import platform
import re
from collections.abc import Mapping
from functools import cache
from importlib import metadata as packages
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from ..store.errors import InvalidArgumentError
from ..store.journal import RunHeader
from ..store.names import time_ordered_suffix
from ..store.records import timestamp_now
from ..store.values import dump_json, freeze

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 80


def new_run_id(name: str | None) -> str:
    """The run's name (or "run") with a short suffix that is unique and grows with time.

    The suffix lets any number of machines make ids without asking each other.
    """
    readable = _UNSAFE.sub("-", name or "run").strip(".-")[:_LONGEST_NAME] or "run"
    return f"{readable}-{time_ordered_suffix()}"


def run_header(
    name: str | None, metadata: Mapping[str, Any] | None, env: gymnasium.Env | VectorEnv | None
) -> RunHeader:
    """Describe a run that begins now.

    Raises:
        InvalidArgumentError: the name is no text, or the metadata no mapping.
    """
    if not isinstance(name, str | None):
        raise InvalidArgumentError(f"run={name!r}: expected text, a readable name for the run.")
    if not isinstance(metadata, Mapping | None):
        raise InvalidArgumentError(f"metadata={metadata!r}: expected a mapping.")
    spec = None if env is None else _spec_json(env)
    return RunHeader(
        run_id=new_run_id(name),
        name=name or "run",
        started_at=timestamp_now(),
        env_spec=spec,
        versions=json.dumps(_versions(env)),
        metadata=dump_json(freeze(metadata or {})),
    )


def _spec_json(env: gymnasium.Env | VectorEnv) -> str | None:
    """The environment's `EnvSpec` as JSON; None if it has none or holds what JSON cannot say."""
    if env.spec is None:
        return None
    try:
        return env.spec.to_json()
    except (ValueError, TypeError, AttributeError):
        return json.dumps({"id": env.spec.id})


def _versions(env: gymnasium.Env | VectorEnv | None) -> dict[str, str]:
    found = {"python": platform.python_version()}
    modules = ["episodelake", "gymnasium", "numpy"]
    if env is not None:
        modules.append(type(env.unwrapped).__module__.partition(".")[0])
    for module in modules:
        version = _version(module)
        if version is not None:
            found[version[0]] = version[1]
    return found


@cache
def _version(module: str) -> tuple[str, str] | None:
    """Name and version of the distribution that a module belongs to; None for a module of no distribution."""
    with contextlib.suppress(packages.PackageNotFoundError):
        return module, packages.version(module)
    # Names differ (ale_py, ale-py): searching all distributions is slow, so it comes second.
    for distribution in packages.packages_distributions().get(module, []):
        return distribution, packages.version(distribution)
    return None
