"""`episodelake show` and `replay`: one episode, as text, as JSON, as a film, or in its environment again."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..readers.amounts import size_text
from ..readers.episode import Episode
from ..store.errors import CorruptStoreError, NothingToDrawError, UntrustedEnvError
from .arguments import AsJson, EpisodeKey, StorageOptions, StorePath, episode_key, open_store_at
from .commands import CHECK, FAILED, LOOK, command, failure
from .episode_report import episode_report, found_episode
from .exploring import Explored, explored
from .exporting import check_target
from .json_text import write_object
from .page import Page
from .progress import interruptible, unchanged
from .reports import EpisodeLook, write_episode, write_replay

#: What the frames of an episode are written as.
PICTURES = (".png", ".gif", ".mp4")

FilmFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write its frames to this file: .png for a sheet of them, .gif or .mp4 for a film.",
        show_default=False,
    ),
]
FilmSteps = Annotated[
    str | None,
    typer.Option(
        metavar="FROM:TO:STRIDE",
        help="With --frames: only these steps, such as 100:200 or ::4.",
        show_default=False,
    ),
]
Agent = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Only this agent of several.", show_default=False),
]
FilmColumn = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="With --frames: the images of this column.", show_default=False),
]
FilmTrust = Annotated[
    bool,
    typer.Option("--trust", help="With --frames: a replay may import the modules that the store names."),
]

EXAMPLES = {
    "show": """\
episodelake show data/cartpole 0
episodelake show data/cartpole -1 --json
episodelake show data/pong ppo-01m808c5aj5vtzk/000007 --frames pong.mp4
episodelake show data/cartpole -1 --frames sheet.png --steps ::10""",
    "replay": """\
episodelake replay data/cartpole 0
episodelake replay data/cartpole -1 --rtol 1e-6""",
}


@dataclass(frozen=True)
class Film:
    """The frames that are asked for.

    Attributes:
        file: where they go; its suffix says as what.
        steps: which; None for all.
        column: of images, where there are several.
        trust: whether a replay may import what the store names.
    """

    file: Path
    steps: slice | None
    column: str | None
    trust: bool

    def made(self, opened: Explored, episode: Episode) -> str:
        """Write the file; the id of the episode."""
        try:
            episode.video(self.steps, column=self.column).save(self.file)
        except NothingToDrawError as error:
            if not (self.trust and isinstance(error.__cause__, UntrustedEnvError)):
                raise
            env = opened.store.make_env(episode.run_id, trust=True, render_mode="rgb_array")
            with contextlib.closing(env):
                episode.video(self.steps, env=env).save(self.file)
        return episode.id


def add_to(app: typer.Typer) -> None:
    """Add the commands to the program."""
    # An episode may be -1, which must not be taken for an option.
    loose = {"ignore_unknown_options": True}
    command(app, LOOK, EXAMPLES["show"], context_settings=loose)(show)
    command(app, CHECK, EXAMPLES["replay"], context_settings=loose)(replay)


def show(
    path: StorePath,
    episode: EpisodeKey,
    frames: FilmFile = None,
    steps: FilmSteps = None,
    agent: Agent = None,
    column: FilmColumn = None,
    trust: FilmTrust = False,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Show one episode, or write its frames to a file.

    A summary, its first and last rows, and a line for reward, action and each observation.

    Frames are those of image observations, or else those of a replay in the environment of its run.
    """
    key, part = episode_key(episode), _steps(steps)
    if frames is not None and frames.suffix.lower() not in PICTURES:
        raise typer.BadParameter(
            f"{str(frames)!r} does not end in {', '.join(PICTURES)}.", param_hint="--frames"
        )
    if frames is not None:
        check_target(frames)
    for name, given in (("--steps", steps), ("--column", column)):
        if frames is None and given is not None:
            raise typer.BadParameter("it needs --frames FILE.", param_hint=name)
    page = Page()
    with interruptible(unchanged):
        if frames is not None:
            film = Film(frames, part, column, trust)
            found = explored(
                path, storage, lambda opened: film.made(opened, found_episode(opened, key, agent))
            )
            _told(page, found, frames, as_json=as_json)
            return
        lost = explored(path, storage, lambda opened: _shown(page, opened, key, agent, as_json=as_json))
    if lost is not None:
        raise failure(str(lost))


def _shown(
    page: Page, opened: Explored, key: int | str, agent: str | None, *, as_json: bool
) -> CorruptStoreError | None:
    """Show an episode; what is wrong with its steps, if they cannot be read."""
    episode = found_episode(opened, key, agent)
    look = EpisodeLook.of(opened, episode)
    if as_json:
        write_object(page, episode_report(look, agent))
    else:
        write_episode(page, look)
    return look.lost


def _steps(text: str | None) -> slice | None:
    """The steps that `--steps` names."""
    if text is None:
        return None
    try:
        first, *rest = (int(part) if part else None for part in text.split(":"))
        if not rest:
            return slice(first, None if first == -1 or first is None else first + 1)
        return slice(first, *rest)
    except (TypeError, ValueError):
        raise typer.BadParameter(
            f"{text!r} names no steps; expected FROM:TO or FROM:TO:STRIDE, such as 100:200 or ::4.",
            param_hint="--steps",
        ) from None


def _told(page: Page, episode_id: str, file: Path, *, as_json: bool) -> None:
    """Say where a picture or a film is."""
    size = file.stat().st_size
    if as_json:
        write_object(page, {"episode_id": episode_id, "file": str(file), "bytes": size})
    else:
        page.note(f"The frames of {episode_id} are in {file} ({size_text(size)}).")


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
    """Replay one episode in the environment of its run.

    The exit status is 1 if it differs.
    """
    store = open_store_at(path, storage)
    found = found_episode(Explored(store), episode_key(episode))
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
