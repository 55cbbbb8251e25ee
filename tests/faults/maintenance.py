"""Workloads that change what is committed, check it or copy it: maintenance, verification, merging."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl

import episodelake as el

from .promises import Promises
from .recording import Context
from .truth import Script

DOOMED = (2, 5)
LABEL, ADVANTAGE = "label", "advantage"


def label(script: Script) -> str:
    """What the annotation `label` says of an episode."""
    return f"label of {script.key}"


def advantage(script: Script, t: int) -> float:
    """What the annotation `advantage` says of a step."""
    return script.key - t / 4


def _maintain(context: Context, work: Callable[[el.EpisodeStore], Any]) -> None:
    """Open the store and do one thing to it until it succeeds."""
    store = context.attempt(lambda: el.open(context.path), last=True)
    context.attempt(lambda: work(store), last=True)


def compact(context: Context) -> None:
    """Join all small segments."""
    _maintain(context, lambda store: store.compact())


def cluster(context: Context) -> None:
    """Sort all episodes by their return."""
    _maintain(context, lambda store: store.compact(order_by="episode_return", descending=True))


def delete(context: Context) -> None:
    """Delete two episodes of different segments."""
    context.log.note(deleting=list(DOOMED))
    _maintain(context, lambda store: store.delete(pl.col("seed").is_in(DOOMED)))
    context.log.note(deleted=list(DOOMED))


def vacuum(context: Context) -> None:
    """Delete all files that neither the newest version nor a tag needs."""
    context.log.note(vacuuming=True)
    _maintain(context, lambda store: store.vacuum(timedelta(0)))


def annotate(context: Context) -> None:
    """Label episodes, then add a column to the steps."""
    seeds = context.attempt(lambda: [episode.seed for episode in el.open(context.path)], last=True)
    context.log.note(annotating=seeds)
    _maintain(context, _label)
    context.log.note(annotated=LABEL)
    _maintain(context, _advise)
    context.log.note(annotated=ADVANTAGE)


def _label(store: el.EpisodeStore) -> None:
    rows = [(episode.id, f"label of {episode.seed}") for episode in store]
    store.annotate(pl.DataFrame(rows, schema=["episode_id", LABEL], orient="row"))


def _advise(store: el.EpisodeStore) -> None:
    rows = [
        (episode.id, t, (episode.seed or 0) - t / 4) for episode in store for t in range(episode.length + 1)
    ]
    frame = pl.DataFrame(rows, schema=["episode_id", "t", ADVANTAGE], orient="row")
    store.annotate(frame, on=("episode_id", "t"))


def drop_annotations(context: Context) -> None:
    """Take both annotations away again."""
    for name in (LABEL, ADVANTAGE):
        context.log.note(dropping=name)
        _maintain(context, lambda store, name=name: _drop(store, name))
        context.log.note(dropped=name)


def _drop(store: el.EpisodeStore, name: str) -> None:
    if name in store.refresh().annotations["name"]:
        store.drop_annotation(name)


def tag(context: Context) -> None:
    """Name the newest version."""
    _maintain(context, lambda store: store.tag("second"))
    promise_tag(context, "second")


def promise_tag(context: Context, name: str) -> None:
    """Note what a tagged version shows."""

    def note() -> None:
        tagged = el.open(context.path, name)
        context.log.note(tagged=[name, tagged.version, digest(tagged)])

    context.attempt(note, last=True)


def digest(store: el.EpisodeStore) -> list[list[Any]]:
    """What tells one content of a store from another: ids, lengths, returns and end reasons."""
    return sorted(
        [episode.id, episode.length, episode.episode_return, episode.end_reason] for episode in store
    )


def verify(context: Context) -> None:
    """Check everything; a store without damage has no faults, whatever cannot be read meanwhile."""
    _maintain(context, lambda store: _report(context, store.verify()))


def repair(context: Context) -> None:
    """Check everything and mend what can be mended, which is nothing."""
    _maintain(context, lambda store: _report(context, store.verify(repair=True)))


def _report(context: Context, report: el.types.VerifyReport) -> None:
    for fault in report.faults:
        context.log.note(wrong=f"verify reports {fault.kind} in {fault.file}: {fault.message}")


def copy(context: Context) -> None:
    """Copy all episodes into a new store."""
    targets = (context.folder / f"copied-{number}" for number in itertools.count())
    copied: list[Any] = []
    _maintain(context, lambda store: copied.append(store.copy(next(targets))))
    original, made = context.attempt(lambda: (digest(el.open(context.path)), digest(copied[-1])), last=True)
    if original != made:
        context.log.note(wrong="the copy holds other episodes")


def merge(context: Context) -> None:
    """Bring in the episodes of the store that stands beside, sharing its files."""
    source = context.folder / "other"
    foreign = Promises.read(other_log(context))
    context.log.note(merging=sorted(foreign.steps))
    context.log.note(annotating=sorted(foreign.annotatable()))
    context.attempt(lambda: el.merge([source], context.path), last=True)
    _note_visible(context)
    context.log.note(
        journalled=foreign.steps, finished=sorted(foreign.finished), orderly=sorted(foreign.orderly)
    )
    for name in foreign.noted("annotated"):
        context.log.note(annotated=name)


def _note_visible(context: Context) -> None:
    def note() -> None:
        store = el.open(context.path)
        context.log.note(visible=[episode.seed for episode in store], version=store.version)

    context.attempt(note, last=True)


def other_log(context: Context) -> Path:
    """The promises of the store beside."""
    return context.folder / "other-promises"
