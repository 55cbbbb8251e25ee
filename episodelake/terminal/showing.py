"""`episodelake show` and `replay`: one episode, as text, as JSON, as a film, or in its environment again."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from pathlib import Path
from typing import Annotated

import typer

from .arguments import AsJson, EpisodeKey, StorageOptions, StorePath, episode_key, open_store_at
from .commands import CHECK, FAILED, LOOK, command
from .episode_report import episode_report, found_episode
from .exploring import Explored, explored
from .json_text import write_object
from .page import Page
from .reports import write_episode, write_replay
from .texts import size_text

EXAMPLES = {
    "show": """\
episodelake show data/cartpole 0
episodelake show data/cartpole -1 --json
episodelake show data/pong ppo-20260101T120000-ab12cd34/000007 --frames pong.mp4""",
    "replay": """\
episodelake replay data/cartpole 0
episodelake replay data/cartpole -1 --rtol 1e-6""",
}


def add_to(app: typer.Typer) -> None:
    """Add the commands to the program."""
    # An episode may be -1, which must not be taken for an option.
    loose = {"ignore_unknown_options": True}
    command(app, LOOK, EXAMPLES["show"], context_settings=loose)(show)
    command(app, CHECK, EXAMPLES["replay"], context_settings=loose)(replay)


def show(
    path: StorePath,
    episode: EpisodeKey,
    frames: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write its frames to this file: .png for a sheet of them, .gif or .mp4 for a film.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Show one episode: summary, rows and signals; --frames writes its frames to a file.

    Frames are those of image observations, or else those of a replay in the environment of its run.
    """
    page = Page()
    key = episode_key(episode)
    if frames is not None:
        _write_frames(page, path, key, (frames, as_json), storage)
    elif as_json:
        write_object(page, explored(path, storage, lambda opened: episode_report(opened.store, key)))
    else:
        explored(path, storage, lambda opened: _shown(page, opened, key))


def _shown(page: Page, opened: Explored, key: int | str) -> None:
    found = found_episode(opened.store, key)
    write_episode(page, opened.store, found)


def _write_frames(
    page: Page, path: str, key: int | str, into: tuple[Path, bool], storage: list[str] | None
) -> None:
    """Write a picture or a film, and say where it is."""
    file, as_json = into
    found = explored(path, storage, lambda opened: found_episode(opened.store, key))
    found.video().save(file)
    size = file.stat().st_size
    if as_json:
        write_object(page, {"episode_id": found.id, "file": str(file), "bytes": size})
    else:
        page.note(f"The frames of {found.id} are in {file} ({size_text(size)}).")


def replay(
    path: StorePath,
    episode: EpisodeKey,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Import the modules that the store names: you trust whoever wrote it."),
    ] = False,
    rtol: Annotated[float, typer.Option(min=0, help="How far numbers may be apart, relatively.")] = 0.0,
    atol: Annotated[float, typer.Option(min=0, help="How far numbers may be apart, absolutely.")] = 0.0,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Replay one episode in the environment of its run; status 1 if it differs."""
    store = open_store_at(path, storage)
    found = found_episode(store, episode_key(episode))
    page = Page()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", RuntimeWarning)
        env = store.make_env(found.run_id, trust=trust)
    if not as_json:
        for warning in told:
            page.note(str(warning.message))
    with contextlib.closing(env):
        report = found.replay(env, rtol=rtol, atol=atol)
    if as_json:
        write_object(page, {"same": report.same, "environment": str(env), **dataclasses.asdict(report)})
    else:
        write_replay(page, report, env)
    if not report.same:
        raise typer.Exit(FAILED)
