"""Environments of runs, made again from their records.

It is made by `gymnasium.make` of an `EnvSpec`, with the wrappers that the spec lists; nothing is unpickled.
The content of a store is untrusted, so anything that lets it choose code or paths needs the caller's trust.
See Gymnasium's documentation of `make`, `EnvSpec` and `WrapperSpec`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata as packages
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, WrapperSpec

from ...store.environments.artifacts import unpack
from ...store.environments.codecs import decode_contents
from ...store.errors import EnvUnavailableError, EpisodelakeError, UntrustedEnvError
from ...store.files import guard_access
from ...store.manifest import Manifest
from ...store.snapshot import Snapshot
from .env_recipe import HINT, read_recipe
from .run_envs import RunEnv

#: Render modes that give frames to the caller, and need no screen.
_FRAMES = ("rgb_array", "rgb_array_list")
#: Settings of pygame and SDL: no screen, no sound, no greeting.
_UNSEEN = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
#: Recorded for people; another one changes nothing of the environment.
_NOT_COMPARED = frozenset({"python", "episodelake"})


def remake_env(
    snapshot: Snapshot,
    run: RunEnv,
    *,
    stacklevel: int,
    trust: bool = False,
    strict: bool = False,
    render_mode: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> gymnasium.Env:
    """Make the environment of a run, or a saved one, and warn of other packages and spaces than recorded.

    Files of the run lie in a temporary folder that goes with the environment.

    Args:
        run: the environment.
        stacklevel: of the warning, as the caller would give it to `warnings.warn`.
        trust, strict, render_mode, changes: as for `make_env` of a view.

    Raises:
        EnvUnavailableError: something it needs was not kept or is not installed; the message names all of it.
        UntrustedEnvError: the store chooses code or paths; the message says which.
        CorruptStoreError: what the run kept is damaged.
    """
    where = run.where if run.saved else f"The environment of the run {run.run_id!r}"
    with _folder_of(run) as (folder, keep):
        recipe = read_recipe(run, where, folder, changes or {})
        if recipe.distrusted and not trust:
            raise UntrustedEnvError(
                f"{where} needs your trust: {' '.join(recipe.distrusted)}",
                hint="If you trust the author of the store, call make_env(trust=True) and pass the "
                "environment on; or make it yourself.",
            )
        versions = _compare_versions(run, where, strict=strict)
        if recipe.files and run.bundle is not None:
            unpack(snapshot.layout, run.bundle.files, folder)
            _decode(recipe.spec, where)
        rendering = {} if render_mode is None else {"render_mode": render_mode}
        env = _made(recipe.spec, where, {**(changes or {}), **rendering})
        keep(env.unwrapped)
    other = None if changes or run.saved else _other_spaces(env, snapshot.manifest, where)
    if other is not None and strict:
        env.close()
        raise EnvUnavailableError(other, hint=HINT)
    if versions or other:
        differences = " ".join(filter(None, (versions, other)))
        warnings.warn(differences, RuntimeWarning, stacklevel=stacklevel + 1)
    return env


def _decode(spec: EnvSpec, where: str) -> None:
    """Give a spec the values of arguments that were kept as files."""
    spec.kwargs = decode_contents(spec.kwargs, where)
    spec.additional_wrappers = tuple(
        WrapperSpec(each.name, each.entry_point, decode_contents(each.kwargs or {}, where))
        for each in spec.additional_wrappers
    )


@contextlib.contextmanager
def _folder_of(run: RunEnv) -> Iterator[tuple[Path, Callable[[object], None]]]:
    """Provide a temporary folder for the files of a run that lives as long as an object.

    Without that it goes at the end of the block. A run without files gets none.
    """
    if run.bundle is None or not run.bundle.files:
        yield Path(), lambda owner: None
        return
    with guard_access("make a temporary folder", tempfile.gettempdir()):
        folder = Path(tempfile.mkdtemp(prefix="episodelake-env-"))
    owners: list[object] = []
    try:
        yield folder, owners.append
    finally:
        if owners:
            weakref.finalize(owners.pop(), _remove, os.getpid(), folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _remove(process: int, folder: Path) -> None:
    # A forked child inherits the duty of its parent, whose folder is not its to remove.
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _made(spec: EnvSpec, where: str, changes: Mapping[str, Any]) -> gymnasium.Env:
    if {**spec.kwargs, **changes}.get("render_mode") in _FRAMES:
        _draw_unseen()
    try:
        return gymnasium.make(spec, **changes)
    except EpisodelakeError:
        raise
    except ImportError as error:
        raise EnvUnavailableError(
            f"{where} cannot be made again: {error}. Install what is missing, or put its module on the "
            "path of Python."
        ) from error
    except Exception as error:  # whatever the environment's own code raises
        raise EnvUnavailableError(
            f"{where} cannot be made again: {type(error).__name__}: {error}", hint=HINT
        ) from error


def _draw_unseen() -> None:
    """Silence SDL's messages about a missing screen.

    The variables stay, since environments begin to draw late. Where there is a screen they are left alone: a
    window that the process opens later would not be seen.
    """
    if sys.platform == "linux" and not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        for name, value in _UNSEEN.items():
            os.environ.setdefault(name, value)


def _other_spaces(env: gymnasium.Env, manifest: Manifest, where: str) -> str | None:
    """Return a sentence if the spaces of an environment are not the recorded ones, else None."""
    pairs = {
        "observation": (env.observation_space, manifest.observation_space),
        "action": (env.action_space, manifest.action_space),
    }
    for name, (made, recorded) in pairs.items():
        if made != recorded:
            return (
                f"{where}, made again, has the {name} space {made}; the store has {recorded}. The run "
                "stored a part of the observations (record(observation=)), its vector environment did what "
                "takes wrappers here, or it has changed since."
            )
    return None


def _compare_versions(run: RunEnv, where: str, *, strict: bool) -> str | None:
    """Return a sentence on packages that are installed in another version, or None.

    Raises:
        EnvUnavailableError: something is not installed; or, if `strict`, differs.
    """
    missing, other = [], []
    for name, version in sorted(run.versions.items()):
        if name in _NOT_COMPARED:
            continue
        try:
            here = packages.version(name)
        except (packages.PackageNotFoundError, ValueError):
            missing.append(f"{name}=={version}")
            continue
        if here != version:
            other.append(f"{name} {version} (here {here})")
    if missing:
        raise EnvUnavailableError(
            f"{where} needs packages that are not installed: {', '.join(missing)}. Install them, if you know "
            "and want them."
        )
    if not other:
        return None
    differences = f"{where} was recorded with other versions of packages: {', '.join(other)}."
    if strict:
        raise EnvUnavailableError(f"{differences} Install those, or leave strict=True out.")
    return f"{differences} It may behave differently."
