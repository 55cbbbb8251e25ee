"""One episode for `episodelake show` and `replay`: by id or position, as text, as JSON and as a film.

Only the columns that are shown are read.
"""

from __future__ import annotations

import contextlib
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import typer

from ... import AgentEpisode, Episode, EpisodeStore, MultiAgentEpisode
from ...errors import (
    CorruptStoreError,
    EpisodeNotFoundError,
    InvalidArgumentError,
    NothingToDrawError,
    UntrustedEnvError,
)
from ...plugin import QuerySession, collected, counted, suggest
from ...plugin.columns import ACTION, OBSERVATION, REWARD, unescape
from ...types import EpisodeVideo, ReplayReport, Signal
from ..output.exporting import check_target, file_report
from ..output.page import Page
from ..output.sparkline import Line
from ..result import Report
from .open_store import Explored, explored
from .rollout_report import Conversation

END_ROWS = 3
SIGNALS = 16
#: Of a column with many numbers so many are drawn.
FIRST_NUMBERS = 4
_ROOTS = (ACTION, OBSERVATION, "info", "policy")
_METADATA = "metadata."
_SUMMARY = ("run_id", "length", "episode_return", "end_reason", "terminated", "truncated", "seed")
_SUMMARY += ("options", "env_index", "started_at", "ended_at", "metadata")
#: Parts of the report that are tables, or written elsewhere.
_TABLES = ("agents", "signals", "damaged")
#: The most ids that a message names, and the most that are compared with an unknown one.
NEAREST = 3
COMPARED = 20_000


@dataclass(frozen=True)
class EpisodeLook:
    """The facts about an episode, read before anything is printed.

    Attributes:
        episode: the episode.
        position: its position in the whole store.
        signals: its series of few numbers per step, and the first of columns of many.
        ends: its first and last rows; None for several agents.
        run_name, run_metadata: the name and the metadata of its run.
        lost: the error of its steps, if they cannot be read; there are then no signals and rows.
        conversation: of a rollout, in place of signals and ends.
    """

    episode: Episode
    position: int
    signals: list[Signal]
    ends: pa.Table | None
    run_name: str | None
    run_metadata: dict[str, Any]
    lost: CorruptStoreError | None = None
    conversation: Conversation | None = None

    @staticmethod
    def of(opened: Explored, episode: Episode) -> EpisodeLook:
        """Read the facts."""
        position = opened.position(episode.position)
        run = _run_of(opened.store, episode)
        try:
            if opened.store.handle.manifest.rollouts is not None:
                conversation = Conversation.of(opened.store.rollout(episode.position))
                return EpisodeLook(episode, position, [], None, *run, conversation=conversation)
            # Signals first, whose reader checks the checksums that Polars ignores.
            signals = _signals_of(opened.store, episode)
            ends = None if isinstance(episode, MultiAgentEpisode) else _ends(opened.store, episode)
        except CorruptStoreError as error:
            return EpisodeLook(episode, position, [], None, *run, error)
        return EpisodeLook(episode, position, signals, ends, *run)


def find_episode(opened: Explored, key: int | str, agent: str | None = None) -> Episode:
    """Return the episode with an id or at a position of the whole store, or one agent of it.

    As in git, an id may be shortened to a beginning that no other id has; with a slash, to the beginning of
    its run and the number: `lean/19`. If its steps cannot be read, the episode has only its row.

    Raises:
        EpisodeNotFoundError: there is none, or a short id fits several; the message names the nearest, or
            those that it fits.
        InvalidArgumentError: it has no such agent.
    """
    try:
        episode = opened.store.described(opened.here(key))
    except EpisodeNotFoundError as error:
        if not isinstance(key, str):
            raise
        episode = opened.store.described(_full_id(opened.store, key, error))
    return episode if agent is None else episode.agent(agent)


def _full_id(store: EpisodeStore, short: str, error: EpisodeNotFoundError) -> str:
    """Return the id of the only episode that a short id fits."""
    run, slash, number = short.rpartition("/")
    in_run = pl.col("run_id").str.starts_with(run.removesuffix("…"))
    # With zeros in front a number is the beginning of one of all digits.
    begins = number.startswith("0") and number != "0"
    digits = f"{re.escape(number)}[0-9]*" if begins else f"0*{re.escape(number)}"
    fits = pl.col("episode_id").str.starts_with(short)
    if slash:
        fits = in_run & pl.col("episode_id").str.contains(f"/{digits}$")
    ids = _ids(store, fits)
    if len(ids) == 1:
        return ids[0]
    if ids:
        more = " and others" if len(ids) > NEAREST else ""
        raise EpisodeNotFoundError(
            f"{short!r} fits several episodes: {', '.join(map(repr, ids[:NEAREST]))}{more}. Give more of the "
            "id, or the position that `episodelake ls` shows."
        ) from error
    known = _ids(store, in_run, COMPARED) if run else []
    if known:
        count = counted(len(known), "episode")
        raise EpisodeNotFoundError(
            f"There is no episode {short!r}: {run} has {count}, and the last is {known[-1]!r}."
        ) from error
    raise EpisodeNotFoundError(f"{error}{suggest(short, _ids(store, pl.lit(True), COMPARED))}") from error


def _ids(store: EpisodeStore, fits: pl.Expr, limit: int = NEAREST + 1) -> list[str]:
    ids = collected(store.episodes.filter(fits).select("episode_id").head(limit))
    return ids["episode_id"].to_list()


def episode_report(look: EpisodeLook, agent: str | None) -> dict[str, Any]:
    """Return the report of `show`, as `--json` prints it."""
    episode = look.episode
    signals = [
        {"name": signal.name, "values": len(signal.values), **_figures(signal.values)}
        for signal in look.signals
    ]
    conversation = {} if look.conversation is None else look.conversation.report()
    return {
        "episode_id": episode.id,
        "position": look.position,
        **{name: getattr(episode, name) for name in _SUMMARY},
        "run_name": look.run_name,
        "run_metadata": look.run_metadata,
        "annotations": episode.annotations,
        "agent": agent,
        "agents": [] if look.lost else _agent_rows(episode),
        "signals": signals,
        **conversation,
        "damaged": [str(look.lost)] if look.lost else [],
    }


def _agent_rows(episode: Episode) -> list[dict[str, Any]]:
    if not isinstance(episode, MultiAgentEpisode):
        return []
    names = ("group", "length", "episode_return", "end_reason")
    return [
        {"agent": name, **{fact: getattr(episode.agent(name), fact) for fact in names}}
        for name in episode.agents
    ]


def _figures(values: np.ndarray) -> dict[str, float | None]:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return dict.fromkeys(("first", "last", "lowest", "mean", "highest"))
    return {
        "first": float(values[0]),
        "last": float(values[-1]),
        "lowest": float(finite.min()),
        "mean": float(finite.mean()),
        "highest": float(finite.max()),
    }


def write_episode(page: Page, look: EpisodeLook, report: Mapping[str, Any], whole: bool = False) -> None:
    """Write one episode: its summary, its first and last rows, and its signals as sparklines; a rollout as a
    conversation, on a terminal with long messages cut unless they are wanted `whole`.
    """
    episode, signals, ends = look.episode, look.signals, look.ends
    if look.conversation is not None:
        look.conversation.write(page, report, whole=whole)
        return
    page.pairs([(name.replace("_", " "), report[name]) for name in report if name not in _TABLES])
    if look.lost is not None:
        page.note("Its rows and signals cannot be read.")
        return
    if isinstance(episode, MultiAgentEpisode):
        page.heading("Agents")
        page.table(_agents_of(episode))
        page.note("Rows by agent: episodelake sql STORE \"SELECT * FROM steps WHERE agent_id = 'NAME'\"")
        page.heading("Over time")
    if ends is not None:
        page.heading("First and last rows" if episode.length + 1 > 2 * END_ROWS else "Rows")
        page.frame(ends)
        page.heading("Over time")
    _write_signals(page, signals[:SIGNALS])
    if len(signals) > SIGNALS:
        page.note(f"{counted(len(signals) - SIGNALS, 'more signal')} not drawn.")


def write_replay(page: Page, report: ReplayReport, env: str) -> None:
    """Write the result of a replay, and every value that differs at the first different step."""
    seed = "NULL: it may have started elsewhere" if report.seed is None else str(report.seed)
    page.pairs(
        [
            ("episode", report.episode_id),
            ("environment", env),
            ("seed", seed),
            ("transitions", report.transitions),
            ("same", report.compared),
        ]
    )
    if report.same:
        page.line("No difference.", "bold green")
        return
    page.heading(f"Differences at step {report.differences[0].step}")
    page.table(
        [
            {
                "column": each.leaf,
                "index": str(list(each.index)),
                "recorded": str(each.expected),
                "now": str(each.got),
                "elements": each.elements,
            }
            for each in report.differences
        ]
    )


def _signals_of(store: EpisodeStore, episode: Episode) -> list[Signal]:
    """Return rewards, then actions, observations, infos and policy values."""
    signals = episode.signals([REWARD])
    for root in _ROOTS:
        # Other episodes may have other infos.
        signals += [signal for signal in episode.signals([root]) if np.isfinite(signal.values).any()]
        drawn = {signal.column for signal in signals}
        names = store.context.snapshot.shown_schema("steps").names
        wide = [name for name in names if name.partition(".")[0] == root and name not in drawn]
        if not episode.agents:
            signals += [signal for name in wide for signal in episode.signals([f"{name}[0:{FIRST_NUMBERS}]"])]
    return signals


def _run_of(store: EpisodeStore, episode: Episode) -> tuple[str | None, dict[str, Any]]:
    """Return the name of the episode's run, and its metadata by key."""
    rows = collected(store.runs.filter(pl.col("run_id") == episode.run_id)).to_dicts()
    values = {name: value for row in rows for name, value in row.items() if value is not None}
    metadata = {name: value for name, value in values.items() if name.startswith(_METADATA)}
    others = json.loads(metadata.pop(f"{_METADATA}_json", "{}"))
    named = {unescape(name.removeprefix(_METADATA)): value for name, value in metadata.items()}
    return values.get("name"), named | others


def _ends(store: EpisodeStore, episode: Episode) -> pa.Table:
    rows = _rows(store, episode)
    near = (pl.col("t") < END_ROWS) | (pl.col("t") > episode.length - END_ROWS)
    try:
        return collected(rows.filter(near).drop("episode_id").sort("t")).to_arrow()
    except pl.exceptions.PolarsError as error:
        snapshot = store.selection().snapshot
        segment = snapshot.pointers.segments[snapshot.pointers.segment[episode.position]]
        QuerySession.name_damaged(snapshot, error, ("steps",), frozenset({segment}))
        raise


def _rows(store: EpisodeStore, episode: Episode) -> pl.LazyFrame:
    """Return the rows of one episode; of all steps only the file with them is touched."""
    rows = store[episode.position : episode.position + 1].steps.filter(pl.col("episode_id") == episode.id)
    if isinstance(episode, AgentEpisode):
        return rows.filter(pl.col("agent_id") == episode.agent_id)
    return rows


def _write_signals(page: Page, signals: list[Signal]) -> None:
    if not signals:
        page.line("No column holds a few numbers at every step.")
        return
    rows = []
    for signal in signals:
        figures = _figures(signal.values)
        spread = {name: figures[name] for name in ("lowest", "highest")}
        rows.append({"signal": signal.name, "line": Line(signal.values), **spread})
    page.table(rows)


def _agents_of(episode: MultiAgentEpisode) -> list[dict[str, Any]]:
    """Return one row per agent of an episode."""
    return [
        {
            "agent": name,
            "group": agent.group,
            "transitions": agent.length,
            "return": agent.episode_return,
            "end reason": agent.end_reason,
            "from env_step": int(agent.env_steps[0]),
            "to env_step": int(agent.env_steps[-1]),
        }
        for name, agent in ((name, episode.agent(name)) for name in episode.agents)
    ]


# Frames


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

    def save(self, path: str, storage: Sequence[str] | None, key: int | str, agent: str | None) -> Report:
        """Write the file, and report it; frames of another motion are an error, though the file is there."""
        if self.file.suffix.lower() not in PICTURES:
            raise typer.BadParameter(
                f"{str(self.file)!r} does not end in {', '.join(PICTURES)}.", param_hint="--frames"
            )
        check_target(self.file)
        (identity, difference), _ = explored(
            path, storage, lambda opened: self._made(opened, find_episode(opened, key, agent))
        )
        beginning = f"The frames of {identity} are in"
        return file_report(beginning, self.file, {"episode_id": identity}, error=difference)

    def _made(self, opened: Explored, episode: Episode) -> tuple[str, str]:
        """Write the file, and return the id of the episode, and how a replay differs from it."""
        if episode.agents:
            raise InvalidArgumentError(
                f"{episode.id!r} has several agents: {', '.join(episode.agents)}. Choose one with --agent."
            )
        try:
            return episode.id, self._written(episode.video(self.steps, column=self.column))
        except NothingToDrawError as error:
            if not (self.trust and isinstance(error.__cause__, UntrustedEnvError)):
                raise
            env = opened.store.make_env(episode.run_id, trust=True, render_mode="rgb_array")
            with contextlib.closing(env):
                return episode.id, self._written(episode.video(self.steps, env=env))

    def _written(self, video: EpisodeVideo) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            video.save(self.file)
        return video.difference
