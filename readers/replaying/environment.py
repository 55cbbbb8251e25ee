"""Making the environment of a run again, from what the run kept.

It is made by `gymnasium.make` of an `EnvSpec`, with the wrappers that the spec lists; nothing is unpickled.
What a store says may come from anybody, so whatever lets it choose code or paths needs the caller's trust.
See Gymnasium's documentation of `make`, `EnvSpec` and `WrapperSpec`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata as packages
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from ...store.bundle import unpack
from ...store.errors import EnvUnavailableError, EpisodelakeError, UntrustedEnvError
from ...store.files import guard_access
from ...store.manifest import Manifest
from ...store.snapshot import Snapshot
from .env_recipe import HINT, read_recipe
from .run_envs import RunEnv

#: Render modes that give frames to the caller, and need no screen.
_FRAMES = ("rgb_array", "rgb_array_list")
#: What pygame and the SDL below it take for: draw without a screen, play no sound, greet nobody.
_UNSEEN = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
#: Recorded for people; another one changes nothing of the environment.
_NOT_COMPARED = frozenset({"python", "episodelake"})


def make_run_env(
    snapshot: Snapshot,
    run: RunEnv,
    *,
    trust: bool = False,
    strict: bool = False,
    render_mode: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> tuple[gymnasium.Env, str | None]:
    """Make the environment of a run.

    Returns:
        The environment, and a sentence on packages of other versions and on other spaces, or None. Files of
        the run lie in a temporary folder that goes with the environment.

    Raises:
        EnvUnavailableError: something it needs was not kept or is not installed; the message names all of it.
        UntrustedEnvError: the store chooses code or paths; the message says which.
        CorruptStoreError: what the run kept is damaged.
    """
    where = f"The environment of the run {run.run_id!r}"
    with _folder_of(run) as (folder, keep):
        recipe = read_recipe(run, where, folder, changes or {})
        if recipe.missing:
            raise EnvUnavailableError(f"{where} cannot be made again: {' '.join(recipe.missing)} {HINT}")
        if recipe.distrusted and not trust:
            raise UntrustedEnvError(
                f"{where} needs your trust: {' '.join(recipe.distrusted)} If you trust whoever wrote the "
                "store, call make_env(trust=True) and pass the environment on; or make it yourself."
            )
        told = _compare_versions(run, where, strict=strict)
        if recipe.files and run.bundle is not None:
            unpack(snapshot.layout, run.bundle.files, folder)
        env = _made(recipe.spec, where, {**(changes or {}), **_rendering(render_mode)})
        keep(env.unwrapped)
    other = None if changes else _other_spaces(env, snapshot.manifest, where)
    if other is not None and strict:
        env.close()
        raise EnvUnavailableError(f"{other} {HINT}")
    return env, " ".join(filter(None, (told, other))) or None


@contextlib.contextmanager
def _folder_of(run: RunEnv) -> Iterator[tuple[Path, Callable[[object], None]]]:
    """A temporary folder for the files of a run, and what ties it to the life of an object.

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


def _rendering(mode: str | None) -> dict[str, str]:
    return {} if mode is None else {"render_mode": mode}


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
            f"{where} cannot be made again: {type(error).__name__}: {error} {HINT}"
        ) from error


def _draw_unseen() -> None:
    """Where there is no screen, spare the caller what SDL says of that while it looks for one.

    The variables stay, since environments begin to draw late. Where there is a screen they are left alone: a
    window that the process opens later would not be seen.
    """
    if sys.platform == "linux" and not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        for name, value in _UNSEEN.items():
            os.environ.setdefault(name, value)


def _other_spaces(env: gymnasium.Env, manifest: Manifest, where: str) -> str | None:
    """What tells by its spaces that an environment is not the recorded one; None if nothing does."""
    pairs = {
        "observation": (env.observation_space, manifest.observation_space),
        "action": (env.action_space, manifest.action_space),
    }
    for name, (made, recorded) in pairs.items():
        if made != recorded:
            return (
                f"{where}, made again, has the {name} space {made}; the store has {recorded}. Its vector "
                "environment did what takes wrappers here, or it has changed since."
            )
    return None


def _compare_versions(run: RunEnv, where: str, *, strict: bool) -> str | None:
    """What is installed in another version.

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
    told = f"{where} was recorded with other versions of packages: {', '.join(other)}."
    if strict:
        raise EnvUnavailableError(f"{told} Install those, or leave strict=True out.")
    return f"{told} It may behave differently."
