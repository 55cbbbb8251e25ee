"""`episodelake show` and `replay`: one episode, as text, as JSON, as a film, or in its environment again."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from ...readers.episode import Episode
from ...readers.replaying.replay import ReplayReport
from ...store.errors import CorruptStoreError, NothingToDrawError, UntrustedEnvError
from ..output.exporting import check_target, report_file
from ..output.page import Page, emit
from .episode_report import EpisodeLook, episode_report, find_episode, write_episode, write_replay
from .opening import Explored, explored, open_store_at

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

    def save(
        self, path: str, storage: Sequence[str] | None, key: int | str, agent: str | None, *, as_json: bool
    ) -> None:
        """Write the file, and report it."""
        if self.file.suffix.lower() not in PICTURES:
            raise typer.BadParameter(
                f"{str(self.file)!r} does not end in {', '.join(PICTURES)}.", param_hint="--frames"
            )
        check_target(self.file)
        identity = explored(
            path, storage, lambda opened: self._made(opened, find_episode(opened, key, agent))
        )
        beginning = f"The frames of {identity} are in"
        report_file(beginning, self.file, {"episode_id": identity}, as_json=as_json)

    def _made(self, opened: Explored, episode: Episode) -> str:
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
    opened: Explored, key: int | str, agent: str | None, *, as_json: bool
) -> CorruptStoreError | None:
    """Show an episode, and return the error of its steps, if they cannot be read."""
    look = EpisodeLook.of(opened, find_episode(opened, key, agent))
    emit(episode_report(look, agent), lambda page, _: write_episode(page, look), as_json=as_json)
    return look.lost


def replay_episode(
    path: str,
    storage: Sequence[str] | None,
    key: int | str,
    tolerances: tuple[float, float],
    *,
    trust: bool,
    as_json: bool,
) -> ReplayReport:
    """Replay an episode; see `episodelake replay`."""
    store = open_store_at(path, storage)
    episode = find_episode(Explored(store), key)
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always", RuntimeWarning)
        env = store.make_env(episode.run_id, trust=trust)
    if not as_json:
        for warning in noted:
            Page().note(str(warning.message))
    with contextlib.closing(env):
        report = episode.replay(env, rtol=tolerances[0], atol=tolerances[1])
    facts = {"same": report.same, "environment": str(env), **vars(report)}
    emit(facts, lambda page, _: write_replay(page, report, str(env)), as_json=as_json)
    return report
