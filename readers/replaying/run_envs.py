"""What the runs of a snapshot kept of their environments, and the choice of one of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from ...store.bundle import EnvBundle
from ...store.errors import CorruptStoreError, InvalidArgumentError
from ...store.layout import RUNS
from ...store.parquet import open_parquet, reading_error
from ...store.snapshot import Snapshot

_VERSION = re.compile(r"[\w.+!~ -]{1,200}")
_COLUMNS = ("run_id", "name", "env_spec", "versions", "env_bundle")


@dataclass(frozen=True)
class RunEnv:
    """What one run kept of its environment; parsed when it is asked for, so a damaged run spoils no other.

    Attributes:
        run_id, name: the run's.
        spec: the text of its spec; None where there is none.
        versions_text, bundle_text: the texts of its versions and its bundle.
    """

    run_id: str
    name: str | None
    spec: str | None
    versions_text: str | None
    bundle_text: str | None

    @cached_property
    def versions(self) -> dict[str, str]:
        """Distribution to version.

        Raises:
            CorruptStoreError: the text is damaged.
        """
        try:
            versions = json.loads(self.versions_text or "{}")
            if not isinstance(versions, dict) or not all(map(_is_version, versions, versions.values())):
                raise ValueError("they are no object of texts")
        except (ValueError, RecursionError) as error:
            raise CorruptStoreError(f"The run {self.run_id!r} has damaged versions: {error}.") from error
        return versions

    @cached_property
    def bundle(self) -> EnvBundle | None:
        """None in runs of earlier writers, and of writers without an environment.

        Raises:
            CorruptStoreError: the text is damaged.
        """
        text = self.bundle_text
        return None if text is None else EnvBundle.from_json(text, f"The run {self.run_id!r}")

    @property
    def env_id(self) -> str | None:
        """The id of its spec, as Gymnasium registers it; None without one, or where the spec is damaged."""
        try:
            found = json.loads(self.spec or "{}")["id"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return found if isinstance(found, str) else None

    @property
    def title(self) -> str:
        """The environment in a few words, for people: its id and wrappers; empty for a run without one."""
        try:
            if self.spec is None:
                return f"{self.bundle.made_by} (no spec)" if self.bundle else ""
            content = json.loads(self.spec)
            if "pettingzoo" in content:
                return f"{content['pettingzoo']['name']} (PettingZoo, {content['pettingzoo']['api']})"
            wrappers = [str(wrapper["name"]) for wrapper in content.get("additional_wrappers", [])]
            return ", in ".join([str(content["id"]), *([", ".join(wrappers)] if wrappers else [])])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, CorruptStoreError):
            return "damaged"


def run_envs(snapshot: Snapshot) -> dict[str, RunEnv]:
    """What the runs of a snapshot kept, by run id.

    Raises:
        CorruptStoreError: a file of the runs cannot be read, or has columns of other types.
    """
    return {found.run_id: found for found in map(_run_env, _rows(snapshot))}


def _rows(snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    for file in snapshot.run_files:
        place = snapshot.layout.table(RUNS) / file.name
        try:
            table = open_parquet(place).read(columns=[name for name in _COLUMNS if name in file.columns])
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise reading_error(place, error) from error
        yield from table.to_pylist()


def _run_env(row: dict[str, Any]) -> RunEnv:
    values = [row.get(name) for name in _COLUMNS]
    if not isinstance(row["run_id"], str) or not all(isinstance(value, str | None) for value in values):
        raise CorruptStoreError(f"The run {row['run_id']!r} has values of other types than text.")
    return RunEnv(row["run_id"], *values[1:])


def _is_version(name: str, version: object) -> bool:
    return isinstance(version, str) and all(map(_VERSION.fullmatch, (name, version)))


def chosen_run(envs: Mapping[str, RunEnv], run: str | None) -> RunEnv:
    """The run of an id or a name; without one, the last of runs that all have the same environment.

    Raises:
        InvalidArgumentError: there is no such run, or there are several environments to choose from.
    """
    found = [each for each in envs.values() if run is None or run in (each.run_id, each.name)]
    exact = [each for each in found if each.run_id == run]
    found = exact or found
    if found and len({(each.spec, each.bundle_text) for each in found}) == 1:
        return found[-1]
    known = ", ".join(repr(each) for each in sorted(envs)[:10]) or "none"
    if not found:
        raise InvalidArgumentError(f"There is no run {run!r} here. Its runs are: {known}.")
    raise InvalidArgumentError(
        f"The runs here have {len(found)} environments that are not all the same. Name one: {known}."
    )
