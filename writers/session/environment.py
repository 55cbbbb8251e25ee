"""A run's record of its environment: the spec, versions of packages, and files.

Recorders call `keep_env` before a run begins. Describing an environment never raises: the bundle lists what
could not be saved, and `make_env` reports it. See the
documentation of Gymnasium's `EnvSpec`, `WrapperSpec` and `utils.RecordConstructorArgs` for what a spec holds.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, parse_env_id
from gymnasium.vector import VectorEnv, VectorWrapper

from ...store.common.arguments import expect
from ...store.environments.artifacts import (
    MOST_FILES,
    EnvBundle,
    KeptFile,
    check_names,
    file_chunks,
    keep_artifact,
)
from ...store.environments.codecs import (
    encode_argument,
    encode_coded,
    encode_content,
    encode_file,
    encode_opaque,
    is_opaque,
)
from ...store.errors import EpisodelakeError, InvalidArgumentError, StoreAccessError
from ...store.files import file_state, is_file, user_path
from ...store.layout import Layout
from .run import KeptEnv, versions_of

#: A keyword argument is plainly a file if its name ends so and its value names a scene like this.
_FILE_ARGUMENTS = ("file", "path", "xml")
LARGEST_UNASKED = 64 << 20
_SCENES = (".xml", ".mjcf", ".mjb", ".urdf", ".sdf", ".usd", ".usda")
#: What `gymnasium.make_vec` adds to the arguments of one environment.
_VECTOR_ARGUMENTS = ("num_envs", "vectorization_mode", "vector_kwargs", "max_episode_steps")
#: Vector wrappers that change nothing of what an agent sees.
_WATCHING = ("RecordEpisodeStatistics", "RecordVideo", "HumanRendering")


def keep_env(
    layout: Layout | None,
    env: Any,
    files: Mapping[str, str | PathLike[str]] | None = None,
    packages: Sequence[str] = (),
) -> KeptEnv:
    """Describe an environment and keep its files in the store.

    Args:
        layout: the store; None keeps no files.
        env: an environment of any kind, a spec, or None.
        files: files that it needs, by the names under which they are to be unpacked.
        packages: distributions that it needs beside those that its spec and its modules show.

    Raises:
        InvalidArgumentError: a file or its name cannot be kept, or a package is not installed.
        StoreAccessError: a file that the caller names cannot be kept in the store.
    """
    shelf = _ArtifactWriter(layout, files or {})
    valid = not isinstance(packages, str) and isinstance(packages, Sequence)
    expect(valid, "packages", packages, "a list of names")
    if env is None:
        return KeptEnv(None, json.dumps(versions_of((), (), packages)), None)
    problems: list[str] = []
    layers = [] if isinstance(env, EnvSpec) else list(_layers(env))
    spec = env if isinstance(env, EnvSpec) else _spec(env, layers, problems)
    text = None if spec is None else json.dumps(_spec_object(spec, shelf))
    modules = [] if spec is None else [_module(each) for each in (spec, *spec.additional_wrappers)]
    versions = versions_of([type(layer) for layer in layers], modules, packages)
    made_by = _name(type(layers[-1])) if layers else str(_importable(env.entry_point))
    bundle = EnvBundle(made_by, tuple(shelf.kept.values()), tuple(problems))
    return KeptEnv(text, json.dumps(versions), bundle.to_json())


def stated_spec(text: str) -> dict[str, Any] | None:
    """Return the spec that an id or a JSON text states; None if it is neither."""
    try:
        spec = json.loads(text) if text.lstrip().startswith("{") else {"id": text}
        parse_env_id(spec["id"])
    except (ValueError, KeyError, TypeError, RecursionError, gymnasium.error.Error):
        return None
    return spec


def keep_stated_env(layout: Layout, env: Any) -> KeptEnv:
    """Describe the environment of a writer, which does not need it: only its name may be known.

    Args:
        layout: the store.
        env: an environment, a spec, an id or the JSON text of a spec. An id need not be registered here.

    Raises:
        InvalidArgumentError: a text is neither an id nor a spec, or `env` is something else.
    """
    env = gymnasium.registry.get(env, env) if isinstance(env, str) else env
    if not isinstance(env, str):
        if isinstance(env, EnvSpec) or hasattr(env, "reset"):
            return keep_env(layout, env)
        raise InvalidArgumentError(
            f"env={str(env)[:200]!r} ({type(env).__name__}); expected an environment, its spec or its id."
        )
    spec = stated_spec(env)
    if spec is None:
        raise InvalidArgumentError(
            f"env={env[:200]!r} is no id of an environment; expected one such as 'CartPole-v1', which need "
            "not be registered here, a spec or an environment."
        )
    return KeptEnv(json.dumps(spec), json.dumps(versions_of((), (), ())), None)


def _layers(env: Any) -> Iterator[Any]:
    """Yield the wrappers from the outermost on, and the innermost environment; of a vector, its first one's
    too.
    """
    while isinstance(env, gymnasium.Wrapper | VectorWrapper):
        yield env
        env = env.env
    yield env
    inner = getattr(env, "envs", None) if isinstance(env, VectorEnv) else None
    if isinstance(inner, list | tuple) and inner:
        yield from _layers(inner[0])
    # Environments of other libraries have wrappers of their own.
    unwrapped = getattr(env, "unwrapped", env)
    if not isinstance(env, gymnasium.Env | VectorEnv) and unwrapped is not env:
        yield unwrapped


def _spec(env: Any, layers: Sequence[Any], problems: list[str]) -> EnvSpec | None:
    """Return the spec of one environment."""
    problems += [
        f"The vector environment had the wrapper {type(layer).__name__}, and it is made as a single one."
        for layer in layers
        if isinstance(layer, VectorWrapper) and type(layer).__name__ not in _WATCHING
    ]
    single = [layer for layer in layers if not isinstance(layer, VectorEnv)]
    try:
        spec = getattr(env, "spec", None)
        if isinstance(env, VectorEnv):
            spec = _single_spec(spec) if isinstance(spec, EnvSpec) else single and single[0].spec
        limits = [each.spec for each in single if isinstance(each, gymnasium.wrappers.TimeLimit)]
    except Exception as error:  # a spec is made of the user's own objects: they must not stop a recording
        problems.append(f"Its spec could not be read: {type(error).__name__}: {str(error)[:500]}")
        return None
    if not isinstance(spec, EnvSpec):
        return None
    steps = [limit.max_episode_steps for limit in limits if limit and limit.max_episode_steps]
    bare = {_name(type(each)) for each in single if isinstance(each, gymnasium.Wrapper) and _is_bare(each)}
    wrappers = tuple(
        replace(wrapper, kwargs={}) if wrapper.kwargs is None and wrapper.entry_point in bare else wrapper
        for wrapper in spec.additional_wrappers
    )
    if wrappers != spec.additional_wrappers:
        spec = _changed(spec, additional_wrappers=wrappers)
    if len(steps) > 1:
        # A spec has room for one limit, and the outermost wrapper's wins; the shortest is what counted.
        spec = _changed(spec, max_episode_steps=min(steps))
    return spec


def _is_bare(wrapper: gymnasium.Wrapper) -> bool:
    """Return whether a wrapper is made from an environment alone, so that there are no arguments to keep."""
    try:
        parameters = inspect.signature(type(wrapper)).parameters.values()
    except (TypeError, ValueError):
        return False
    return [(each.name, each.kind) for each in parameters] == [
        ("env", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ]


def _single_spec(spec: EnvSpec) -> EnvSpec:
    """Return the spec of one environment of a vector."""
    kwargs = {name: value for name, value in spec.kwargs.items() if name not in _VECTOR_ARGUMENTS}
    return _changed(spec, kwargs=kwargs)


def _changed(spec: EnvSpec, **changes: Any) -> EnvSpec:
    names = ("id", "entry_point", "reward_threshold", "nondeterministic", "max_episode_steps")
    names += ("order_enforce", "disable_env_checker", "kwargs", "additional_wrappers", "vector_entry_point")
    return EnvSpec(**{**{name: getattr(spec, name) for name in names}, **changes})


def _spec_object(spec: EnvSpec, shelf: _ArtifactWriter) -> dict[str, Any]:
    """Return the spec as JSON, with the keys that `EnvSpec.to_json` writes."""
    return {
        "id": spec.id,
        "entry_point": _importable(spec.entry_point),
        "reward_threshold": encode_argument(spec.reward_threshold),
        "nondeterministic": bool(spec.nondeterministic),
        "max_episode_steps": encode_argument(spec.max_episode_steps),
        "order_enforce": bool(spec.order_enforce),
        "disable_env_checker": bool(spec.disable_env_checker),
        "kwargs": shelf.arguments(spec.kwargs),
        "additional_wrappers": [
            {
                "name": wrapper.name,
                "entry_point": wrapper.entry_point,
                "kwargs": None if wrapper.kwargs is None else shelf.arguments(wrapper.kwargs),
            }
            for wrapper in spec.additional_wrappers
        ],
        "vector_entry_point": _importable(spec.vector_entry_point),
    }


def _importable(entry_point: str | Callable | None) -> Any:
    """Return an entry point as `module:name`; one that no import finds is kept as its printed form."""
    if entry_point is None or isinstance(entry_point, str):
        return entry_point
    module, name = getattr(entry_point, "__module__", ""), getattr(entry_point, "__qualname__", "")
    there = getattr(sys.modules.get(module), name, None)
    return f"{module}:{name}" if there is entry_point else encode_opaque(entry_point)


def _module(spec: Any) -> str:
    point = _importable(spec.entry_point)
    return point.partition(":")[0] if isinstance(point, str) else ""


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


class _ArtifactWriter:
    """The files of one run: those that the caller names, and those that its arguments plainly name.

    Attributes:
        kept: by name.
    """

    def __init__(self, layout: Layout | None, files: Mapping[str, str | PathLike[str]]) -> None:
        self.kept: dict[str, KeptFile] = {}
        self._layout = layout
        self._names: dict[str, str] = {}
        expect(isinstance(files, Mapping), "files", files, "a mapping from names to paths")
        if files:
            check_names(files)
        for name, path in files.items():
            self._keep_named(name, path)

    def _keep_named(self, name: str, path: str | PathLike[str]) -> None:
        try:
            self._keep(name, user_path(path))
        except (OSError, TypeError, ValueError) as error:
            if isinstance(error, EpisodelakeError):
                raise
            raise InvalidArgumentError(
                f"files: {name!r} is {str(path)!r}, which cannot be read: {error}. Give the path of a file."
            ) from error
        self._names[os.fspath(path)] = self._names[os.path.realpath(user_path(path))] = name

    def _keep(self, name: str, path: Path) -> None:
        if not is_file(path):  # a folder, or a pipe that cannot be read twice
            raise InvalidArgumentError(f"{str(path)!r} is not a regular file. Give the path of a file.")
        if len(self.kept) == MOST_FILES:
            raise InvalidArgumentError(f"The file {name!r} is one too many: an environment has {MOST_FILES}.")
        if self._layout is not None:
            self.kept[name] = KeptFile(name, *keep_artifact(self._layout, lambda: file_chunks(path)))

    def arguments(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments as JSON; paths of kept files become references to them."""
        return {name: self._argument(name, value) for name, value in kwargs.items()}

    def _argument(self, argument: str, value: Any) -> Any:
        if isinstance(value, str | PathLike) and self._layout is not None:
            text = os.fspath(value)
            if isinstance(text, str) and "\0" not in text:
                name = self._names.get(text) or self._names.get(os.path.realpath(os.path.expanduser(text)))
                name = name or self._found(argument, text)
                if name is not None:
                    return encode_file(name, "str" if isinstance(value, str) else "path")
        encoded = encode_argument(value)
        content = None if self._layout is None else encode_content(value, large=is_opaque(encoded))
        if content is None or self._layout is None:
            return encoded
        codec, data = content
        name = self._free_name(f"argument-{number}.{codec}" for number in range(MOST_FILES))
        self.kept[name] = KeptFile(name, *keep_artifact(self._layout, lambda: [data]))
        return encode_coded(codec, name)

    def _free_name(self, names: Iterable[str]) -> str:
        taken = {name.casefold() for name in self.kept}
        return next(name for name in names if name.casefold() not in taken)

    def _found(self, argument: str, text: str) -> str | None:
        """Return the name of a file that was not declared, but that is plainly one; None for others."""
        path = Path(os.path.expanduser(text))
        # Other relative paths are looked for among the environment's own files, not in the current folder.
        explicit = text.startswith((".", "~")) or path.is_absolute()
        plainly = argument.lower().endswith(_FILE_ARGUMENTS) and path.suffix.lower() in _SCENES
        try:
            size = file_state(path).st_size if explicit and plainly and is_file(path) else None
        except StoreAccessError as error:
            warnings.warn(f"A file of the environment is not kept: {error}", RuntimeWarning, stacklevel=2)
            return None
        if size is None:
            return None
        if size > LARGEST_UNASKED:
            warnings.warn(
                f"The file {text[:200]!r} has more than {LARGEST_UNASKED} bytes and is not kept. "
                'Name it to keep it: store.record(env, files={"model.xml": path}).',
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        names = [path.name, *(f"{argument}-{number}{path.suffix}" for number in range(MOST_FILES))]
        name = self._free_name(names)
        try:
            check_names([*self.kept, name])
            self._keep(name, path)
        except (OSError, ValueError) as error:
            warnings.warn(f"A file of the environment is not kept: {error}", RuntimeWarning, stacklevel=2)
            return None
        self._names[text] = self._names[os.path.realpath(path)] = name
        return name
