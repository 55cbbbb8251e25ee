"""Environments that the runs of a snapshot kept, and the choice of one of them."""

from __future__ import annotations

import contextlib
import json
import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import gymnasium

from ...store.common.arguments import suggest
from ...store.environments.artifacts import EnvBundle
from ...store.environments.records import Records, SavedEnvironment
from ...store.environments.saving import find_saved
from ...store.errors import CorruptStoreError, EnvUnavailableError, InvalidArgumentError
from ...store.layout import RUNS, Layout
from ...store.parquet.files import open_parquet, reading_file
from ...store.snapshot import Snapshot
from ..context import ReadContext
from ..frames import collect_episodes, episodes_frame

_VERSION = re.compile(r"[\w.+!~ -]{1,200}")
_COLUMNS = ("run_id", "name", "env_spec", "versions", "env_bundle")


@dataclass(frozen=True)
class RunEnv:
    """Environment of one run, or a saved environment.

    It is parsed on access, so that a damaged run does not affect others.

    Attributes:
        run_id, name: the run's; of a saved environment its name, with the version and without.
        spec: the text of its spec; None where there is none.
        versions_text, bundle_text: the texts of its versions and its bundle.
        saved: whether it was saved by itself, or is named by the card.
    """

    run_id: str
    name: str | None
    spec: str | None
    versions_text: str | None
    bundle_text: str | None
    saved: bool = False

    @staticmethod
    def of_runs(snapshot: Snapshot) -> dict[str, RunEnv]:
        """Return the environments that the runs of a snapshot kept, by run id.

        Raises:
            CorruptStoreError: a file of the runs cannot be read, or has columns of other types.
        """
        return {env.run_id: env for env in map(_run_env, _rows(snapshot))}

    @staticmethod
    def chosen(envs: Mapping[str, RunEnv], run: str | None) -> RunEnv:
        """Return the run of an id or a name.

        Without one, return the last of runs that all have the same environment.

        Raises:
            InvalidArgumentError: there is no such run, or there are several environments to choose from.
        """
        matches = [each for each in envs.values() if run is None or run in (each.run_id, each.name)]
        exact = [each for each in matches if each.run_id == run]
        matches = exact or matches
        if matches and len({(each.spec, each.bundle_text) for each in matches}) == 1:
            return matches[-1]
        known = ", ".join(repr(each) for each in sorted(envs)[:10]) or "none"
        if not matches:
            raise InvalidArgumentError(f"There is no run {run!r} here. Its runs are: {known}.")
        raise InvalidArgumentError(
            f"The runs here have {len(matches)} environments that are not all the same. Name one: {known}."
        )

    @property
    def where(self) -> str:
        """Its place, for messages."""
        return f"The {'saved environment' if self.saved else 'run'} {self.run_id!r}"

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
            raise CorruptStoreError(f"{self.where} has damaged versions: {error}.") from error
        return versions

    @cached_property
    def bundle(self) -> EnvBundle | None:
        """None in runs of earlier writers, and of writers without an environment.

        Raises:
            CorruptStoreError: the text is damaged.
        """
        text = self.bundle_text
        return None if text is None else EnvBundle.from_json(text, self.where)

    @property
    def env_id(self) -> str | None:
        """The id of its spec, as Gymnasium registers it; None without one, or where the spec is damaged."""
        env_id = self.part_of_spec("id")
        return env_id if isinstance(env_id, str) else None

    def part_of_spec(self, *keys: str) -> Any:
        """Return a value of its spec; None without one, or where the spec is damaged."""
        try:
            return reduce(operator.getitem, keys, json.loads(self.spec or "{}"))
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

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


def run_envs_of(context: ReadContext) -> dict[str, RunEnv]:
    """Return the environments of the runs of some episodes; for a whole snapshot, of all its runs."""
    envs = RunEnv.of_runs(context.snapshot)
    if context.positions is None:
        return envs
    frame = episodes_frame(context.snapshot, context.positions)
    here = set(collect_episodes(context.snapshot, frame.select("run_id").unique())["run_id"].to_list())
    return {run_id: env for run_id, env in envs.items() if run_id in here}


def _rows(snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    for file in snapshot.run_files:
        place = snapshot.layout.table(RUNS) / file.name
        with reading_file(place):
            table = open_parquet(place).read(columns=[name for name in _COLUMNS if name in file.columns])
        yield from table.to_pylist()


def _run_env(row: dict[str, Any]) -> RunEnv:
    run_id, name, spec, versions, bundle = values = [row.get(name) for name in _COLUMNS]
    if not isinstance(run_id, str) or not all(isinstance(value, str | None) for value in values):
        raise CorruptStoreError(f"The run {run_id!r} has values of other types than text.")
    return RunEnv(run_id, name, spec, versions, bundle)


def _is_version(name: str, version: object) -> bool:
    return isinstance(version, str) and all(map(_VERSION.fullmatch, (name, version)))


def chosen_env(layout: Layout, envs: Mapping[str, RunEnv], name: str | None) -> RunEnv:
    """Return the environment of a run, or the saved environment of a name or of `name@version`.

    Raises:
        InvalidArgumentError: there is no such environment, or there are several to choose from.
        CorruptStoreError: the record of a saved environment of this name is damaged.
    """
    saved = find_saved(layout, name) if isinstance(name, str) else None
    runs = [each.run_id for each in envs.values() if name in (each.run_id, each.name)]
    if saved is None:
        keys: list[str] = []
        if isinstance(name, str) and not runs:
            with contextlib.suppress(CorruptStoreError):  # a damaged record of another name does no harm
                keys = [each.key for each in Records(layout, SavedEnvironment).all()]
        if keys:
            known = ", ".join(sorted(envs)[:10]) or "none"
            raise InvalidArgumentError(
                f"There is no run and no saved environment {name!r} here.{suggest(str(name), keys)} The "
                f"saved environments are: {', '.join(keys[:10])}; the runs are: {known}."
            )
        return RunEnv.chosen(envs, name)
    if runs:
        raise InvalidArgumentError(
            f"{name!r} is ambiguous: a saved environment and {len(runs)} of the runs here have this name. "
            f"For the saved one give {saved.key!r}, for a run its id: {', '.join(map(repr, runs[:10]))}."
        )
    return of_saved(saved)


def of_saved(env: SavedEnvironment) -> RunEnv:
    """Return a saved environment as one that can be made."""
    return RunEnv(env.key, env.name, env.env_spec, env.versions, env.env_bundle, saved=True)


def evaluation_env(snapshot: Snapshot) -> RunEnv:
    """Return the environment for evaluation that the card names: by its id, or by the JSON text of its spec.

    Raises:
        EnvUnavailableError: the card names none, or an id that is not registered here.
    """
    text = snapshot.card.get("eval_env_spec")
    if text is None:
        raise EnvUnavailableError(
            "The card names no environment for evaluation (`eval_env_spec`). Set it: "
            'store.card = {**store.card, "eval_env_spec": "CartPole-v1"}; or make that of a run: make_env().'
        )
    if isinstance(text, str) and not text.lstrip().startswith("{"):
        spec = gymnasium.registry.get(text)
        if spec is None:
            raise EnvUnavailableError(
                f"The card's eval_env_spec {text!r:.200} is not registered here. Import the package that "
                "registers it."
            )
        text = spec.to_json()
    return RunEnv("eval_env_spec of the card", None, str(text), None, None, saved=True)
