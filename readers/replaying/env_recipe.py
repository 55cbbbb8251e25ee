"""Reads the spec of a run: arguments of `gymnasium.make`, missing parts, and parts that need trust.

The spec is untrusted. Reading it imports nothing; it decides what may be imported later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, WrapperSpec, parse_env_id

from ...store.dynamic.values import OpaqueValue
from ...store.environments.codecs import CodedValue, decode_argument, is_codec, opaque_parts, texts
from ...store.errors import CorruptStoreError, EnvUnavailableError
from .run_envs import RunEnv

HINT = "Make the environment yourself, and pass it where one is needed: episode.replay(env)."
_LONGEST_ID = 500
_ENTRY_POINT = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
#: Wrappers that show or film and change nothing of an episode.
_LEFT_OUT = frozenset({"HumanRendering", "RecordVideo"})
#: Wrappers of Gymnasium whose arguments can name neither code nor files.
_PLAIN_WRAPPERS = frozenset(
    [
        "AddRenderObservation",
        "AddWhiteNoise",
        "AtariPreprocessing",
        "Autoreset",
        "ClipAction",
        "ClipReward",
        "DelayObservation",
        "DiscretizeAction",
        "DiscretizeObservation",
        "DtypeObservation",
        "FilterObservation",
        "FlattenObservation",
        "FrameStackObservation",
        "GrayscaleObservation",
        "MaxAndSkipObservation",
        "NormalizeObservation",
        "NormalizeReward",
        "ObstructView",
        "OrderEnforcing",
        "PassiveEnvChecker",
        "RecordEpisodeStatistics",
        "RenderCollection",
        "RepeatAction",
        "RescaleAction",
        "RescaleObservation",
        "ReshapeObservation",
        "ResizeObservation",
        "StickyAction",
        "TimeAwareObservation",
        "TimeLimit",
    ]
)


@dataclass
class EnvRecipe:
    """A spec that was read, and the obstacles to making it."""

    spec: EnvSpec
    missing: list[str] = field(default_factory=list)
    distrusted: list[str] = field(default_factory=list)
    files: bool = False


def read_recipe(run: RunEnv, where: str, folder: Path, changes: Mapping[str, Any]) -> EnvRecipe:
    """Read the spec and the files that a run kept; none may be missing.

    Args:
        run: the run.
        where: names it in errors.
        folder: where its files will be unpacked.
        changes: arguments that the caller gives instead of the recorded ones.

    Raises:
        EnvUnavailableError: it has no spec, or something was not kept; the message names all of it.
        CorruptStoreError: the spec is damaged.
    """
    if run.spec is None:
        made_by = f"it was made by calling {run.bundle.made_by}" if run.bundle else "the run has none"
        problems = run.bundle.problems if run.bundle else ()
        reasons = " ".join([f"{made_by}.", *problems])
        raise EnvUnavailableError(f"{where} has no spec, as gymnasium.make gives it: {reasons}", hint=HINT)
    content = _checked_spec(run, where)
    if "pettingzoo" in content:
        raise EnvUnavailableError(
            f"{where} was one of PettingZoo ({content['pettingzoo']}), which keep no spec.", hint=HINT
        )
    if "entry_point" not in content:
        raise EnvUnavailableError(
            f"{where} cannot be made again: of its spec only the id {content['id']!r} was kept.",
            hint=HINT,
        )
    recipe = EnvRecipe(_bare_spec(content, where))
    recipe.missing += run.bundle.problems if run.bundle else ()
    files = run.bundle.files if run.bundle else ()
    reading = _Reading(recipe, where, folder, {file.name for file in files})
    recipe.spec.entry_point = reading.entry_point(content["entry_point"])
    recipe.spec.kwargs = reading.arguments(content.get("kwargs", {}), "The argument", changes)
    if recipe.spec.kwargs.get("render_mode") == "human":
        del recipe.spec.kwargs["render_mode"]
    recipe.spec.additional_wrappers = tuple(reading.wrappers(content.get("additional_wrappers", [])))
    if recipe.missing:
        raise EnvUnavailableError(f"{where} cannot be made again: {' '.join(recipe.missing)}", hint=HINT)
    if recipe.files:
        recipe.distrusted.append("It reads files that the store brings.")
    return recipe


def _checked_spec(run: RunEnv, where: str) -> dict[str, Any]:
    """Return the spec as an object with values of the right types."""
    try:
        content = json.loads(run.spec or "")
        if "pettingzoo" in content:
            return {"pettingzoo": str(content["pettingzoo"])[:_LONGEST_ID]}
        if len(content["id"]) > _LONGEST_ID:
            raise ValueError("the id is too long")
        parse_env_id(content["id"])
        wrappers = content.get("additional_wrappers", [])
        kwargs = [content.get("kwargs", {}), *(wrapper["kwargs"] or {} for wrapper in wrappers)]
        points = [content.get("entry_point"), *(wrapper["entry_point"] for wrapper in wrappers)]
        for point in points:
            if isinstance(point, str) and not _ENTRY_POINT.fullmatch(point):
                raise ValueError(f"{point[:200]!r} is no entry point")
        names = [content["id"], *points[1:], *(wrapper["name"] for wrapper in wrappers)]
        if not all(isinstance(each, dict) for each in kwargs) or not all(type(each) is str for each in names):
            raise ValueError("a value has the wrong type")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, gymnasium.error.Error) as error:
        raise CorruptStoreError(f"{where} has a damaged spec: {error!r}.") from error
    return content


def _bare_spec(content: Mapping[str, Any], where: str) -> EnvSpec:
    steps, threshold = content.get("max_episode_steps"), content.get("reward_threshold")
    if steps is not None and (type(steps) is not int or steps <= 0):
        raise CorruptStoreError(f"{where} has a damaged spec: max_episode_steps is {str(steps)[:80]}.")
    return EnvSpec(
        id=content["id"],
        max_episode_steps=steps,
        order_enforce=bool(content.get("order_enforce", True)),
        disable_env_checker=bool(content.get("disable_env_checker", False)),
        nondeterministic=bool(content.get("nondeterministic", False)),
        reward_threshold=threshold if type(threshold) in (int, float) else None,
    )


class _Reading:
    """Turns the parts of a spec from JSON into values, and notes what is missing or needs trust."""

    def __init__(self, recipe: EnvRecipe, where: str, folder: Path, files: set[str]) -> None:
        self._recipe = recipe
        self._where = where
        self._folder = folder
        self._files = files
        self._unpacked: set[str] = set()

    def entry_point(self, value: Any) -> Any:
        """Return where the environment's class is found."""
        there = gymnasium.registry.get(self._recipe.spec.id)
        # The main module of now is another one than that of the recording, as a rule.
        if not isinstance(value, str) or (there is not None and value.startswith("__main__:")):
            if there is not None and there.entry_point is not None:
                self._recipe.distrusted.append(f"The store chooses {there.id!r} among the registered ids.")
                return there.entry_point
            shown = decode_argument(value, self._where, self._file)
            what = shown.text if isinstance(shown, OpaqueValue) else "missing"
            self._recipe.missing.append(
                f"Its entry point is {what}, which no import finds. Register {self._recipe.spec.id!r} first."
            )
            return None
        if value not in _entry_points_of_gymnasium():
            self._recipe.distrusted.append(f"It imports {value.partition(':')[0]!r}.")
        return value

    def wrappers(self, entries: list[dict[str, Any]]) -> Iterator[WrapperSpec]:
        """Yield the wrappers, from the innermost on."""
        for entry in entries:
            point, name = entry["entry_point"], entry["name"]
            own = isinstance(point, str) and point.startswith("gymnasium.wrappers.")
            kind = point.partition(":")[2] if own else None
            if kind in _LEFT_OUT:
                continue
            if entry["kwargs"] is None:
                self._recipe.missing.append(
                    f"The wrapper {name!r} does not keep its arguments; derive it from "
                    "gymnasium.utils.RecordConstructorArgs."
                )
                continue
            if not own or kind not in _PLAIN_WRAPPERS or point != _wrapper_of_gymnasium(kind):
                self._recipe.distrusted.append(f"It imports {point!r} for the wrapper {name!r}.")
            kwargs = self.arguments(entry["kwargs"], f"The wrapper {name!r}: the argument", {})
            yield WrapperSpec(name, point, kwargs)

    def arguments(self, kwargs: Mapping[str, Any], what: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments; those that the caller changes are left out."""
        decoded_arguments = {}
        for name, value in kwargs.items():
            if name in changes:
                continue
            decoded_arguments[name] = decoded = decode_argument(value, self._where, self._file)
            if isinstance(decoded, CodedValue) and not is_codec(decoded.codec):
                self._recipe.missing.append(
                    f"{what} {name!r} has the codec {decoded.codec[:50]!r}, which is not registered here; "
                    "call episodelake.register_artifact_codec."
                )
            for part in opaque_parts(decoded):
                self._recipe.missing.append(f"{what} {name!r} was {part.text}, which cannot be kept.")
            for text in texts(decoded):
                if text in self._unpacked:
                    continue
                if "/" in text or "\\" in text or text.startswith((".", "~")):
                    self._recipe.distrusted.append(f"{what} {name!r} may be a path: {text[:200]!r}.")
        return decoded_arguments

    def _file(self, name: str) -> Path:
        if name not in self._files:
            raise CorruptStoreError(
                f"{self._where} needs the file {name[:200]!r}, which its run does not have."
            )
        self._recipe.files = True
        path = self._folder.joinpath(*name.split("/"))
        self._unpacked.add(str(path))
        return path


def _entry_points_of_gymnasium() -> set[str]:
    """Return the entry points below `gymnasium.envs` under which environments are registered."""
    points = (spec.entry_point for spec in gymnasium.registry.values())
    return {point for point in points if isinstance(point, str) and point.startswith("gymnasium.envs.")}


def _wrapper_of_gymnasium(name: str) -> str | None:
    """Return where Gymnasium itself has a wrapper that it exports."""
    wrapper = getattr(gymnasium.wrappers, name, None)
    return f"{wrapper.__module__}:{name}" if isinstance(wrapper, type) else None
