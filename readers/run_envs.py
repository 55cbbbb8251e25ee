"""What the runs of a snapshot kept of their environments, and the choice of one of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ..store.bundle import EnvBundle
from ..store.errors import CorruptStoreError, InvalidArgumentError
from ..store.layout import RUNS
from ..store.parquet import open_parquet, reading_error
from ..store.snapshot import Snapshot

_VERSION = re.compile(r"[\w.+!~ -]{1,200}")
_COLUMNS = ("run_id", "name", "env_spec", "versions", "env_bundle")


@dataclass(frozen=True)
class RunEnv:
    """What one run kept of its environment.

    Attributes:
        run_id, name: the run's.
        spec: the text of its spec; None where there is none.
        versions: distribution to version.
        bundle: None in runs of earlier writers, and of writers without an environment.
    """

    run_id: str
    name: str
    spec: str | None
    versions: Mapping[str, str]
    bundle: EnvBundle | None

    @property
    def title(self) -> str:
        """The environment in a few words, for people: its id and wrappers; empty for a run without one."""
        if self.spec is None:
            return f"{self.bundle.made_by} (no spec)" if self.bundle else ""
        try:
            content = json.loads(self.spec)
            wrappers = [str(wrapper["name"]) for wrapper in content.get("additional_wrappers", [])]
            return ", in ".join([str(content["id"]), *([", ".join(wrappers)] if wrappers else [])])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return "a damaged spec"


def run_envs(snapshot: Snapshot) -> dict[str, RunEnv]:
    """What the runs of a snapshot kept, by run id.

    Raises:
        CorruptStoreError: a file of the runs cannot be read, or a run's row is damaged.
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
    where = f"The run {row['run_id']!r}"
    if not isinstance(row["run_id"], str) or not all(isinstance(each, str | None) for each in row.values()):
        raise CorruptStoreError(f"{where} has values of other types than text.")
    try:
        versions = json.loads(row["versions"] or "{}")
        if not isinstance(versions, dict) or not all(map(_is_version, versions, versions.values())):
            raise ValueError("they are no object of texts")
    except (ValueError, RecursionError) as error:
        raise CorruptStoreError(f"{where} has damaged versions: {error}.") from error
    text = row.get("env_bundle")
    bundle = None if text is None else EnvBundle.from_json(text, where)
    return RunEnv(row["run_id"], row["name"] or "", row["env_spec"], versions, bundle)


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
    if found and len({(each.spec, each.bundle) for each in found}) == 1:
        return found[-1]
    known = ", ".join(repr(each) for each in sorted(envs)[:10]) or "none"
    if not found:
        raise InvalidArgumentError(f"There is no run {run!r} here. Its runs are: {known}.")
    raise InvalidArgumentError(
        f"The runs here have {len(found)} environments that are not all the same. Name one: {known}."
    )
