"""What is done to a store while faults strike, and the stores that it is done to.

A workload is a function of a `Context`. It promises what it was told is safe, and answers errors as its stage
says. A template is a workload too: it is run unharmed, and every trial that names it begins with a copy of
what it left.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import episodelake as el

from . import maintenance, team_recording
from .promises import PromiseLog, Promises
from .recording import Act, Context, Performance, Recording
from .sabotage import SABOTAGE
from .truth import CARD, SPACES, Script

Workload = Callable[[Context], None]

NEXT_CARD = {**CARD, "version": 2}
CARDS: tuple[dict[str, Any], ...] = ({}, CARD, NEXT_CARD)


def _scripts(*scripts: Script) -> dict[int, Script]:
    return {script.key: script for script in scripts}


# Episodes 0 to 3 come before the first seal, 4 to 6 before the second, with columns that did not exist
# before. Episode 1 lasts over two parts of the journal, and its end comes with no row of its own. Episodes 4
# and 7 are open when the run is closed. Episodes 3, 6 and 8 stay in memory until they
# are flushed.
ALPHA = _scripts(
    Script(0, 6, "terminated"),
    Script(1, 8, "cut"),
    Script(2, 5, "truncated"),
    Script(3, 70, "terminated"),
    Script(4, 20, "terminated", late=True),
    Script(5, 3, "cut", late=True),
    Script(6, 65, "truncated", late=True),
    Script(7, 30, "cut"),
    Script(8, 66, "terminated"),
)
ALPHA_FIRST: list[Act] = [
    ("begin", 0),
    ("step", 0, 4),
    ("begin", 1),
    ("step", 1, 2),
    ("step", 0, 6),
    ("end", 0),
    ("whole", 2),
    ("whole", 3),
    ("flush",),
    ("step", 1, 5),
    ("seal",),
]
ALPHA_SECOND: list[Act] = [
    ("begin", 4),
    ("step", 4, 7),
    ("whole", 5),
    ("step", 1, 8),
    ("whole", 6),
    ("flush",),
    ("end", 1),
    ("seal",),
]
ALPHA_THIRD: list[Act] = [
    ("begin", 7),
    ("step", 7, 3),
    ("step", 4, 9),
    ("whole", 8),
    ("flush",),
]
ALPHA_ACTS: list[Act] = [*ALPHA_FIRST, *ALPHA_SECOND, *ALPHA_THIRD, ("close",)]

BETA = _scripts(Script(60, 4, "terminated"), Script(61, 5, "truncated", late=True))
BETA_ACTS: list[Act] = [("begin", 60), ("step", 60, 4), ("end", 60), ("seal",), ("whole", 61), ("close",)]

ROLLOUTS = _scripts(
    *(Script(key, 3 + key % 4, "terminated", late=key > 22, bare=True) for key in range(20, 26))
)
BUSY = _scripts(*(Script(key, 66, "terminated", late=key > 42) for key in range(40, 46)))
BULK = _scripts(*(Script(key, 66 + key % 5, "truncated", late=key > 305) for key in range(300, 312)))
LIVE = _scripts(Script(90, 9, "terminated"), Script(91, 70, "truncated"), Script(92, 6, "cut"))
AGED = _scripts(*(Script(key, 1, "terminated", bare=True) for key in range(200, 298)))
LAST = Script(99, 3, "terminated")

SCRIPTS = {**ALPHA, **BETA, **ROLLOUTS, **BUSY, **BULK, **LIVE, **AGED, LAST.key: LAST}


def record(context: Context) -> None:
    """Record, journal, seal twice, commit, clean up: the whole path through a writer."""
    Performance(context, "alpha", ALPHA, {}).play(ALPHA_ACTS)


def roll_out(context: Context) -> None:
    """The same through a recorder, with a journal that survives the machine."""
    acts: list[Act] = []
    for key, script in ROLLOUTS.items():
        acts += [("begin", key), ("step", key, script.length if key != 25 else 2)]
        acts += [("seal",)] if key in (21, 23) else []
    Recording(context, "rollouts", ROLLOUTS, {"durability": "fsync"}).play([*acts, ("close",)])


def record_busily(context: Context) -> None:
    """Every finished episode is sealed at once, by the background thread, while recording goes on."""
    acts = [act for key in BUSY for act in (("whole", key), ("flush",))]
    Performance(context, "busy", BUSY, {"segment_bytes": 1, "flush_seconds": 0.002}).play([*acts, ("close",)])


def record_in_bulk(context: Context) -> None:
    """Whole episodes go from memory to segments; some are flushed, so that the journal has them too."""
    one, two, three, *more = BULK
    acts: list[Act] = [("whole", one), ("whole", two), ("flush",), ("whole", three), ("bulk", *more[:3])]
    acts += [("begin", more[3]), ("step", more[3], 5), ("bulk", *more[4:6]), ("whole", more[6]), ("seal",)]
    acts += [("bulk", *more[7:]), ("flush",), ("step", more[3], 9), ("close",)]
    Performance(context, "bulk", BULK, {"segment_bytes": 24_000}).play(acts)


def die(context: Context) -> None:
    """Record, seal once, fill the journal, and end without closing."""
    # Kept: a writer that is garbage collected would be closed.
    performance = Performance(context, "alpha", ALPHA, {})
    performance.play([*ALPHA_FIRST, *ALPHA_SECOND[:-1], *ALPHA_THIRD])
    os._exit(0)


def create_and_die(context: Context) -> None:
    """The same in a new store."""
    _create(context)
    die(context)


def recover(context: Context) -> None:
    """Seal what dead writers left."""
    context.attempt(lambda: el.recover(context.path), last=True)


def succeed(context: Context) -> None:
    """The next writer comes: it recovers what dead writers left, and records."""
    Performance(context, "beta", BETA, {}).play(BETA_ACTS)


def read(context: Context) -> None:
    """Open the store and read it through each reader: all that was visible, or an error of the tree."""
    visible = Promises.read(context.folder / "promises").shown()
    if visible != context.attempt(lambda: _read(context), last=True):
        context.log.note(wrong=f"a reader shows other episodes than {sorted(visible)}")


def _read(context: Context) -> set[int | None]:
    store = el.open(context.path)
    steps = {episode.seed: len(episode.rewards) for episode in store}
    query = "select seed, count(*) - 1 from steps join episodes using (episode_id) group by 1"
    # `query`, since DuckDB raises errors of its own where a relation of `sql` is run.
    rows = store.query(query).rows()
    if steps != dict(rows) or store.runs.collect().height != 2:
        context.log.note(wrong=f"readers disagree: {steps}, {rows}")
    return set(steps)


def create(context: Context) -> None:
    """Create a store with a card."""
    context.attempt(lambda: _create(context), last=True)


def _create(context: Context) -> None:
    try:
        el.create(context.path, **SPACES, card=CARD)
    except el.errors.StoreExistsError:
        if not (context.path / "store.json").exists():
            raise


def change_card(context: Context) -> None:
    """Replace the card."""
    store: Any = context.attempt(lambda: el.open(context.path))
    context.attempt(lambda: setattr(store, "card", NEXT_CARD), last=True)


def stand_by(context: Context, wait: Callable[[], object]) -> None:
    """Record beside everything else: journal, wait while the others do what they do, go on, close."""
    performance = Performance(context, "live", LIVE, {})
    performance.play([("begin", 90), ("step", 90, 4), ("whole", 91), ("flush",)])
    wait()
    performance.play([("step", 90, 9), ("end", 90), ("begin", 92), ("step", 92, 6), ("seal",), ("close",)])


BYSTANDER = stand_by


def create_aged(context: Context) -> None:
    """A store of so many commits that the next ones sum up the log in a checkpoint."""
    _create(context)
    performance = Performance(context, "aged", AGED, {})
    for key in AGED:
        performance.play([("begin", key), ("step", key, 1), ("end", key)])
        performance.writer.seal()
    performance.play([("close",)])


def create_full(context: Context) -> None:
    """A store with two closed runs in five segments, its version tagged."""
    _create(context)
    record(context)
    succeed(context)
    el.open(context.path).tag("first")
    maintenance.promise_tag(context, "first")


def create_worn(context: Context) -> None:
    """A full store that was annotated, compacted and deleted from: only old versions need some files."""
    create_full(context)
    maintenance.annotate(context)
    maintenance.compact(context)
    maintenance.delete(context)


def create_pair(context: Context) -> None:
    """A store with one run, and beside it, outside of the faults, one with another run and annotations."""
    log = PromiseLog(maintenance.other_log(context))
    other = replace(context, path=context.folder / "other", log=log)
    _create(other)
    record(other)
    maintenance.annotate(other)
    _create(context)
    succeed(context)


def nothing(context: Context) -> None:
    """Leave the place empty."""


WORKLOADS: dict[str, Workload] = {
    **SABOTAGE,
    "record": record,
    "roll_out": roll_out,
    "record_busily": record_busily,
    "record_in_bulk": record_in_bulk,
    "die": die,
    "recover": recover,
    "succeed": succeed,
    "record_team": team_recording.record_team,
    "take_turns": team_recording.take_turns,
    "take_turns_busily": team_recording.take_turns_busily,
    "read": read,
    "create": create,
    "change_card": change_card,
    "compact": maintenance.compact,
    "cluster": maintenance.cluster,
    "delete": maintenance.delete,
    "vacuum": maintenance.vacuum,
    "annotate": maintenance.annotate,
    "drop_annotations": maintenance.drop_annotations,
    "tag": maintenance.tag,
    "merge": maintenance.merge,
    "verify": maintenance.verify,
    "repair": maintenance.repair,
    "copy": maintenance.copy,
}

TEMPLATES: dict[str, Workload] = {
    "none": nothing,
    "empty": create,
    "dead": create_and_die,
    "aged": create_aged,
    "full": create_full,
    "worn": create_worn,
    "pair": create_pair,
    "team": team_recording.create_team,
    "dead team": team_recording.create_dead_team,
}
