"""Which trials to run: a choice of the telling ones, all of them, or combinations drawn at random."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from .faults import ANSWERS, FAILURES, KILLS, LOOKING, Stage, Trial
from .shim import Call, Spot, spots

#: One trial for each workload, unharmed; its last stage is the one to strike.
PLAIN: dict[str, Trial] = {
    "create": Trial("none", (Stage("create"),)),
    "change_card": Trial("empty", (Stage("change_card"),)),
    "record": Trial("empty", (Stage("record"),)),
    "roll_out": Trial("empty", (Stage("roll_out"),)),
    "record_busily": Trial("empty", (Stage("record_busily"),)),
    "record_in_bulk": Trial("empty", (Stage("record_in_bulk"),)),
    "record_team": Trial("team", (Stage("record_team"),)),
    "take_turns": Trial("team", (Stage("take_turns"),)),
    "take_turns_busily": Trial("team", (Stage("take_turns_busily"),)),
    "recover a team": Trial("dead team", (Stage("recover"),)),
    "recover": Trial("dead", (Stage("recover"),)),
    "succeed": Trial("dead", (Stage("succeed"),)),
    "recover beside a live writer": Trial("empty", (Stage("die"), Stage("recover")), bystander=True),
    "checkpoint": Trial("aged", (Stage("succeed"),)),
    "compact": Trial("full", (Stage("compact"),)),
    "cluster": Trial("full", (Stage("cluster"),)),
    "delete": Trial("full", (Stage("delete"),)),
    "vacuum": Trial("worn", (Stage("vacuum"),)),
    "annotate": Trial("full", (Stage("annotate"),)),
    "drop_annotations": Trial("worn", (Stage("drop_annotations"),)),
    "tag": Trial("full", (Stage("tag"),)),
    "merge": Trial("pair", (Stage("merge"),)),
    "two recoveries": Trial("dead", (Stage("recover", twin=True),)),
}

#: The same for looks at files: all that opens, recovers, seals or maintains a store.
LOOKED: dict[str, Trial] = {
    "open and read": Trial("full", (Stage("read"),)),
    **{name: trial for name, trial in PLAIN.items() if not any(stage.twin for stage in trial.stages)},
    "verify": Trial("full", (Stage("verify"),)),
    "repair": Trial("full", (Stage("repair"),)),
    "copy": Trial("full", (Stage("copy"),)),
}

#: Workloads of stores for several agents; those of other writers have no place beside them.
TEAMS = ("record_team", "take_turns", "take_turns_busily", "recover a team")


def choose(calls: Sequence[Call], most: int) -> list[Spot]:
    """Choose spots of a workload: first those around turning points, then evenly among other calls that are
    not routine, and always a few of the routine ones.

    Args:
        calls: as surveyed.
        most: how many at most.
    """
    everywhere = spots(calls)
    turning = [spot for spot in everywhere if spot.call.turning]
    routine = [spot for spot in everywhere if spot.call.routine]
    others = [spot for spot in everywhere if not spot.call.turning and not spot.call.routine]
    chosen = spread(turning, most - most // 8)
    chosen += spread(others, most - most // 8 - len(chosen))
    return sorted(chosen + spread(routine, most - len(chosen)), key=lambda spot: spot.point)


def spread(spots: Sequence[Spot], most: int) -> list[Spot]:
    """At most so many of them, evenly."""
    count = min(len(spots), max(most, 0))
    return [spots[index * len(spots) // count] for index in range(count)]


def killed(before: Trial, chosen: Iterable[Spot]) -> list[Trial]:
    """The last stage killed at each spot, in each of the ways in turn."""
    return [
        _in_turn(before, spot, index, [(mode, "repeat") for mode in KILLS])
        for index, spot in enumerate(chosen)
    ]


def failing(before: Trial, chosen: Iterable[Spot]) -> list[Trial]:
    """The last stage suffering a failure at each spot, of each sort and with each answer in turn."""
    turns = [(mode, answer) for answer in ANSWERS for mode in FAILURES]
    fit = [spot for spot in chosen if any(spot.suffers(mode) for mode in FAILURES)]
    return [_in_turn(before, spot, index, turns) for index, spot in enumerate(fit)]


def blinded(before: Trial, calls: Sequence[Call], most: int) -> list[Trial]:
    """The last stage failing to look at some of its files, evenly chosen, in each of the ways in turn."""
    fit = [spot for spot in spots(calls) if any(spot.suffers(mode) for mode in LOOKING)]
    turns = [(mode, "repeat") for mode in LOOKING]
    return [_in_turn(before, spot, index, turns) for index, spot in enumerate(spread(fit, most))]


def _in_turn(before: Trial, spot: Spot, index: int, turns: Sequence[tuple[str, str]]) -> Trial:
    """The next mode that acts at the spot."""
    shifted = [turns[(index + step) % len(turns)] for step in range(len(turns))]
    mode, answer = next(turn for turn in shifted if spot.suffers(turn[0]))
    return strike(before, mode, spot.point, answer)


def strike(before: Trial, mode: str, point: int, answer: str = "repeat") -> Trial:
    """The trial with its last stage suffering a fault."""
    stage = replace(before.stages[-1], mode=mode, point=point, answer=answer)
    return replace(before, stages=(*before.stages[:-1], stage))


def every(before: Trial, calls: Sequence[Call]) -> Iterator[Trial]:
    """The last stage with every fault at every spot at which it acts, and every answer."""
    for spot in spots(calls):
        for mode in KILLS:
            if spot.suffers(mode):
                yield strike(before, mode, spot.point)
        for mode in FAILURES:
            if spot.suffers(mode):
                yield from (strike(before, mode, spot.point, answer) for answer in ANSWERS)


def every_look(before: Trial, calls: Sequence[Call]) -> Iterator[Trial]:
    """The last stage failing to look, in every way at every spot."""
    for spot in spots(calls):
        yield from (strike(before, mode, spot.point) for mode in LOOKING if spot.suffers(mode))


def after_a_failure(before: Trial, calls: Sequence[Call], most: int) -> list[Trial]:
    """The last stage suffering a failure, going on, and being killed some calls later."""
    chosen = choose(calls, most)
    trials = []
    for index, spot in enumerate(spot for spot in chosen if spot.suffers("error")):
        trial = strike(before, "error" if index % 3 else "dead disk", spot.point)
        kill = ("kill", spot.point + 3 + 7 * (index % 11))
        stage = replace(trial.stages[-1], answer="repeat", then=kill)
        trials.append(replace(trial, stages=(*trial.stages[:-1], stage)))
    return trials


def half_committed(before: Trial, calls: Sequence[Call]) -> Trial:
    """The trial killed between the last commit of steps and the commit of their episodes."""
    commits = [
        call.point for call in calls if "link" in call.name and call.other.startswith("/steps/_delta_log")
    ]
    return strike(before, "kill", commits[-1] + 1)


def then(before: Trial, *stages: Stage) -> Trial:
    """The trial with further stages."""
    return replace(before, stages=(*before.stages, *stages))


def drawn(lengths: dict[str, int], count: int, seed: int) -> Iterator[Trial]:
    """Trials drawn at random: a workload that suffers something, then recoveries or writers that do too.

    Args:
        lengths: how many points each workload has about.
        count: how many trials.
        seed: draws others.
    """
    source = random.Random(seed)
    for _ in range(count):
        name = source.choice(
            ["record", "roll_out", "record_busily", "record_in_bulk", "recover", "succeed", *TEAMS]
        )
        later = [source.choice(["recover", "recover", "succeed"]) for _ in range(source.choice([1, 1, 2, 3]))]
        if name in TEAMS:
            later = ["recover"] * len(later)
        stages = [
            _struck_at_random(source, stage, lengths) for stage in (PLAIN[name].stages[0].workload, *later)
        ]
        names = [stage.workload for stage in stages]
        # A writer plays its script once: its episodes are known by their keys.
        if names.count("succeed") > 1:
            stages = [stage for stage in stages if stage.workload != "succeed"] + [Stage("succeed")]
        beside = source.random() < 0.1 and name not in TEAMS
        yield Trial(PLAIN[name].template, tuple(stages), bystander=beside)


def _struck_at_random(source: random.Random, workload: str, lengths: dict[str, int]) -> Stage:
    point = source.randrange(lengths[workload])
    twin = workload == "recover" and source.random() < 0.3
    if source.random() < 0.7:
        return Stage(workload, source.choice(list(KILLS)), point, twin=twin)
    kill = ("kill", point + source.randrange(1, 200)) if source.random() < 0.5 else None
    answer = source.choice(ANSWERS)
    return Stage(workload, source.choice(list(FAILURES)), point, answer, twin=twin, then=kill)
