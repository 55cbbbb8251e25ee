"""What must hold after a crash or a failure, one named function for each sentence.

Each takes the evidence and yields what contradicts its sentence. `WHENEVER` holds at every moment, even
before recovery; `AFTER_RECOVERY` holds once recovery has run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import episodelake as el

from .maintenance import ADVANTAGE, LABEL, advantage, digest, label
from .promises import Promises
from .seen import Seen, raw_rows, rows_of
from .teams import TeamScript, untrue_team
from .truth import Script, untrue


@dataclass(frozen=True)
class Evidence:
    """What the invariants judge.

    Attributes:
        seen: the newest version of the store, read through all readers.
        promises: what the workloads were told.
        scripts: by key, what the episodes should have become.
        cards: what the card may be.
        live: the episodes of the writer that lives beside the faults, if there is one.
    """

    seen: Seen
    promises: Promises
    scripts: Mapping[int, Script | TeamScript]
    cards: tuple[dict[str, Any], ...]
    live: tuple[Script, ...]

    @property
    def required(self) -> set[int]:
        """Keys of episodes that must be visible after recovery: journalled, and not being deleted."""
        promised = {key for key, steps in self.promises.steps.items() if steps}
        return (promised | self.promises.finished) - self.promises.doomed


Invariant = Callable[[Evidence], Iterator[str]]


def every_visible_episode_is_true(evidence: Evidence) -> Iterator[str]:
    """What a store shows of an episode is what happened: a beginning of it, or all of it."""
    for episode in evidence.seen.episodes:
        script = evidence.scripts.get(-1 if episode.seed is None else episode.seed)
        if script is None:
            yield f"the episode {episode.id} with the seed {episode.seed} was never recorded"
            continue
        team = isinstance(script, TeamScript)
        for fault in untrue_team(episode, script) if team else untrue(episode, script):
            yield f"episode {episode.seed}: {fault}"


def nothing_appears_twice(evidence: Evidence) -> Iterator[str]:
    """An episode is there once: by its id, by its seed, and by its rows."""
    seen = evidence.seen
    for name, values in (("id", seen.ids), ("seed", [episode.seed for episode in seen.episodes])):
        yield from (f"the {name} {value!r} is there {count} times" for value, count in _repeated(values))
    yield from (f"the row {row} is there {count} times" for row, count in _repeated(seen.rows))


def every_visible_episode_has_exactly_its_rows(evidence: Evidence) -> Iterator[str]:
    """Each visible episode of length T has the rows 0 to T, and no other episode has any."""
    seen = evidence.seen
    wanted = set().union(*map(rows_of, seen.episodes))
    if wanted != set(seen.rows):
        missing, surplus = sorted(wanted - set(seen.rows)), sorted(set(seen.rows) - wanted)
        yield f"rows are missing: {missing[:5]}, or too many: {surplus[:5]}"


def sums_agree_between_episodes_and_steps(evidence: Evidence) -> Iterator[str]:
    """Lengths and returns of the episodes table are what the steps add up to."""
    yield from evidence.seen.polars_disagrees()


def sums_agree_in_sql(evidence: Evidence) -> Iterator[str]:
    """The same in DuckDB, over the store's views, with the flags and the last t."""
    yield from evidence.seen.duckdb_disagrees()


def raw_steps_table_shows_each_row_at_most_once(evidence: Evidence) -> Iterator[str]:
    """A reader that knows only Delta Lake meets no row of the steps table twice, and every visible one that
    is not being deleted.
    """
    rows = raw_rows(evidence.seen.path)
    yield from (f"the raw row {row} is there {count} times" for row, count in _repeated(rows))
    going = {episode.id for episode in evidence.seen.episodes if episode.seed in evidence.promises.doomed}
    if lacking := {row for row in evidence.seen.rows if row[0] not in going} - set(rows):
        yield f"visible rows that the raw steps table lacks: {sorted(lacking)[:5]}"


def what_was_visible_stays_visible(evidence: Evidence) -> Iterator[str]:
    """An episode that a seal made visible is shown by every later version, unless it is deleted."""
    shown = {episode.seed for episode in evidence.seen.episodes}
    for key in evidence.promises.shown() - evidence.promises.doomed - shown:
        yield f"episode {key} was visible and is not any more"


def the_card_is_whole(evidence: Evidence) -> Iterator[str]:
    """The card is what one of its writers wrote, or none."""
    if evidence.seen.store.card not in evidence.cards:
        yield f"the card is {evidence.seen.store.card}"


def deleted_episodes_stay_away(evidence: Evidence) -> Iterator[str]:
    """An episode whose deletion has returned is not shown again."""
    shown = {episode.seed for episode in evidence.seen.episodes}
    for key in shown & evidence.promises.deleted:
        yield f"episode {key} was deleted and is there again"


def a_closed_run_left_nothing(evidence: Evidence) -> Iterator[str]:
    """A run whose close has returned has no journal, or its close warned of that, and is marked as ended.

    A lock may be left: recovery removes it.
    """
    ended, warned = evidence.seen.ended_runs, evidence.promises.noted("left")
    for name in sorted(evidence.promises.closed):
        for run_id in evidence.promises.runs.get(name, []):
            left = {entry for entry in evidence.seen.journal if entry.startswith(run_id)} - {f"{run_id}.lock"}
            if left and name not in warned:
                yield f"the closed run {run_id} left {sorted(left)}"
            if any(episode.run_id == run_id for episode in evidence.seen.episodes) and run_id not in ended:
                yield f"the closed run {run_id} has no end in the runs table"


def nothing_journalled_is_lost(evidence: Evidence) -> Iterator[str]:
    """Every step that was in the journal is in the store."""
    lengths = {episode.seed: episode.length for episode in evidence.seen.episodes}
    for key in sorted(evidence.required):
        promised = evidence.promises.steps.get(key, 1)
        if lengths.get(key, 0) < promised:
            yield f"episode {key} has {lengths.get(key, 0)} steps; {promised} were journalled"


def finished_episodes_are_whole(evidence: Evidence) -> Iterator[str]:
    """An episode whose end was in the journal has its end reason, its metadata and all its steps."""
    episodes = {episode.seed: episode for episode in evidence.seen.episodes}
    for key in sorted(evidence.promises.finished & set(episodes)):
        episode, script = episodes[key], evidence.scripts[key]
        steps = evidence.promises.steps[key]
        reason = script.ending if steps == script.length else "cut"
        ordered = key in evidence.promises.orderly
        metadata = {**script.metadata, **(script.last_metadata if ordered else {})}
        got = (episode.length, episode.end_reason, episode.metadata)
        if got != (steps, reason, metadata):
            yield f"episode {key} is {got}; expected {(steps, reason, metadata)}"


def unfinished_is_interrupted_with_its_true_rows(evidence: Evidence) -> Iterator[str]:
    """An episode without an end is `interrupted`; it is `cut` only if its run was being closed."""
    closing = {run for name in evidence.promises.closing for run in evidence.promises.runs.get(name, [])}
    for episode in evidence.seen.episodes:
        script = evidence.scripts.get(-1 if episode.seed is None else episode.seed)
        if script is None or episode.seed in evidence.promises.finished | evidence.promises.foreign:
            continue
        ended = episode.length == script.length
        reasons = {script.ending} if ended and script.ending != "cut" else {"interrupted"}
        if ended and isinstance(script, TeamScript) and script.turns:
            # Dead agents are still told of their ends after the last turn.
            reasons |= {"interrupted"}
        if episode.run_id in closing or (ended and script.ending == "cut"):
            reasons |= {script.ending if ended else "cut"}
        if episode.end_reason not in reasons:
            yield f"episode {episode.seed} with {episode.length} steps is {episode.end_reason}, not {reasons}"


def live_writer_untouched(evidence: Evidence) -> Iterator[str]:
    """A writer that lived through the faults and recoveries of others closed in order, and none of its
    episodes was ended by anyone else.
    """
    for run_id in evidence.promises.runs.get("live", []):
        if "live" not in evidence.promises.closed:
            yield f"the live run {run_id} never closed"
        mine = [episode for episode in evidence.seen.episodes if episode.run_id == run_id]
        got = {episode.seed: (episode.length, episode.end_reason) for episode in mine}
        wanted = {script.key: (script.length, script.ending) for script in evidence.live}
        if got != wanted:
            yield f"the live run has {got}, expected {wanted}"


def journals_are_gone_after_recovery(evidence: Evidence) -> Iterator[str]:
    """Recovery leaves no journal, no part of one and no lock; what it could not read may be set aside."""
    kept = (".damaged", "maintenance.lock")
    left = [name for name in evidence.seen.journal if not name.endswith(kept)]
    if left:
        yield f"the journal folder holds {left}"


def recovered_runs_have_ended(evidence: Evidence) -> Iterator[str]:
    """Every episode belongs to one row of the runs table, and that run has an end."""
    yield from (f"the run {run} is there {count} times" for run, count in _repeated(evidence.seen.runs))
    owners = {episode.run_id for episode in evidence.seen.episodes}
    if endless := sorted(owners - evidence.seen.ended_runs):
        yield f"runs with episodes and without an end: {endless}"


def old_snapshot_still_reads(evidence: Evidence) -> Iterator[str]:
    """A version that was shown once shows the same episodes again, with all their rows, until a vacuum."""
    if evidence.promises.noted("vacuuming"):
        return
    for version, keys in sorted(evidence.promises.visible.items()):
        old = Seen.at(evidence.seen.path, version)
        shown = {episode.seed for episode in old.episodes}
        if keys - shown:
            yield f"version {version} shows {sorted(map(str, shown))}, not all of {sorted(keys)}"
        then = replace(evidence, seen=old)
        for invariant in (every_visible_episode_is_true, every_visible_episode_has_exactly_its_rows):
            yield from (f"version {version}: {fault}" for fault in invariant(then))


def tagged_version_still_reads(evidence: Evidence) -> Iterator[str]:
    """A version with a tag shows what it showed when it was tagged, whatever was done since."""
    for name, version, content in evidence.promises.noted("tagged"):
        found = Seen.at(evidence.seen.path, name)
        if (found.version, digest(found.store)) != (version, content):
            yield f"the tag {name} shows version {found.version} not {version}, or other episodes"


def annotations_are_there_wholly_or_not_at_all(evidence: Evidence) -> Iterator[str]:
    """An annotation gives every episode or step its value; one whose making has returned is there."""
    seen, promises = evidence.seen, evidence.promises
    names = set(seen.store.annotations["name"])
    if lacking := set(promises.noted("annotated")) - set(promises.noted("dropping")) - names:
        yield f"the annotations {sorted(lacking)} are gone"
    if there := set(promises.noted("dropped")) & names:
        yield f"the annotations {sorted(there)} were dropped and are there"
    for episode in seen.episodes:
        if episode.seed not in promises.annotatable():
            continue
        script = evidence.scripts[episode.seed]
        assert isinstance(script, Script)
        steps = [advantage(script, t) for t in range(episode.length + 1)]
        wanted = {LABEL: label(script)} if LABEL in names else {}
        stepwise = {ADVANTAGE: steps} if ADVANTAGE in names else {}
        got = {name: list(values) for name, values in episode.step_annotations.items()}
        if episode.annotations != wanted or got != stepwise:
            yield f"episode {episode.seed} has the annotations {episode.annotations} and {got!r:.100}"


def verification_finds_only_what_it_mends(evidence: Evidence) -> Iterator[str]:
    """The store's own verification finds at most that the two tables disagree on files, since an operation
    died between its commits; it mends that, and then finds nothing.
    """
    store = el.open(evidence.seen.path)
    faults = store.verify().faults
    if faults and all(fault.kind == "listing" for fault in faults):
        store.verify(repair=True)
        faults = store.verify().faults
    yield from (f"{fault.kind} in {fault.file}: {fault.message}" for fault in faults)


def recovery_repeats_harmlessly(evidence: Evidence) -> Iterator[str]:
    """A second recovery finds nothing and changes nothing."""
    again = el.recover(evidence.seen.path)
    if again:
        yield f"a second recovery found {again}"
    store = el.open(evidence.seen.path)
    if (store.version, [episode.id for episode in store]) != (evidence.seen.version, evidence.seen.ids):
        yield f"a second recovery made version {store.version} of {evidence.seen.version}"


def _repeated(values: list[Any]) -> list[tuple[Any, int]]:
    return [(value, count) for value, count in Counter(values).items() if count > 1][:5]


#: Holds at every moment, recovered or not.
WHENEVER: tuple[Invariant, ...] = (
    every_visible_episode_is_true,
    nothing_appears_twice,
    every_visible_episode_has_exactly_its_rows,
    sums_agree_between_episodes_and_steps,
    raw_steps_table_shows_each_row_at_most_once,
    what_was_visible_stays_visible,
    the_card_is_whole,
    deleted_episodes_stay_away,
    a_closed_run_left_nothing,
    unfinished_is_interrupted_with_its_true_rows,
)

#: Holds once recovery has run.
AFTER_RECOVERY: tuple[Invariant, ...] = (
    *WHENEVER,
    sums_agree_in_sql,
    nothing_journalled_is_lost,
    finished_episodes_are_whole,
    live_writer_untouched,
    journals_are_gone_after_recovery,
    recovered_runs_have_ended,
    old_snapshot_still_reads,
    tagged_version_still_reads,
    annotations_are_there_wholly_or_not_at_all,
    recovery_repeats_harmlessly,
    verification_finds_only_what_it_mends,
)
