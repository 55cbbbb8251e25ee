"""`episodelake show` and `replay`: one episode, as text, as JSON, as a film, or in its environment again."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from ...readers.episode import Episode
from ...store.errors import CorruptStoreError, NothingToDrawError, UntrustedEnvError
from ..command import FAILED, failure
from ..output.exporting import check_target, report_file
from ..output.page import Page, write_object
from .episode_report import EpisodeLook, episode_report, find_episode, write_episode, write_replay
from .opening import Explored, explored, interruptible, open_store_at, unchanged

#: Formats of the frames of an episode.
PICTURES = (".png", ".gif", ".mp4")


@dataclass(frozen=True)
class Film:
    """The frames to write.

    Attributes:
        file: the target; its suffix gives the format.
        steps: the steps; None for all.
        column: the column of images, if there are several.
        trust: whether a replay may import the modules that the store names.
    """

    file: Path
    steps: slice | None
    column: str | None
    trust: bool

    def made(self, opened: Explored, episode: Episode) -> str:
        """Write the file, and return the id of the episode."""
        try:
            episode.video(self.steps, column=self.column).save(self.file)
        except NothingToDrawError as error:
            if not (self.trust and isinstance(error.__cause__, UntrustedEnvError)):
                raise
            env = opened.store.make_env(episode.run_id, trust=True, render_mode="rgb_array")
            with contextlib.closing(env):
                episode.video(self.steps, env=env).save(self.file)
        return episode.id


def show_episode(
    path: str,
    storage: Sequence[str] | None,
    key: int | str,
    agent: str | None,
    film: Film | None,
    *,
    as_json: bool,
) -> None:
    """Show an episode, or write its frames; see `episodelake show`."""
    if film is not None:
        if film.file.suffix.lower() not in PICTURES:
            raise typer.BadParameter(
                f"{str(film.file)!r} does not end in {', '.join(PICTURES)}.", param_hint="--frames"
            )
        check_target(film.file)
    page = Page()
    with interruptible(unchanged):
        if film is not None:
            found = explored(
                path, storage, lambda opened: film.made(opened, find_episode(opened, key, agent))
            )
            said = f"The frames of {found} are in"
            report_file(page, said, film.file, {"episode_id": found}, as_json=as_json)
            return
        lost = explored(path, storage, lambda opened: _shown(page, opened, key, agent, as_json=as_json))
    if lost is not None:
        raise failure(str(lost))


def _shown(
    page: Page, opened: Explored, key: int | str, agent: str | None, *, as_json: bool
) -> CorruptStoreError | None:
    """Show an episode, and return the error of its steps, if they cannot be read."""
    episode = find_episode(opened, key, agent)
    look = EpisodeLook.of(opened, episode)
    if as_json:
        write_object(page, episode_report(look, agent))
    else:
        write_episode(page, look)
    return look.lost


def replay_episode(
    path: str,
    storage: Sequence[str] | None,
    key: int | str,
    tolerances: tuple[float, float],
    *,
    trust: bool,
    as_json: bool,
) -> None:
    """Replay an episode; see `episodelake replay`."""
    page = Page()
    store = open_store_at(path, storage)
    found = find_episode(Explored(store), key)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", RuntimeWarning)
        env = store.make_env(found.run_id, trust=trust)
    if not as_json:
        for warning in told:
            page.note(str(warning.message))
    with contextlib.closing(env):
        report = found.replay(env, rtol=tolerances[0], atol=tolerances[1])
    if as_json:
        write_object(page, {"same": report.same, "environment": str(env), **dataclasses.asdict(report)})
    else:
        write_replay(page, report, env)
    if not report.same:
        raise typer.Exit(FAILED)
