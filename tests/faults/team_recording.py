"""Plays scripts of multi-agent episodes through the recorders of PettingZoo; the workloads made of them."""

from __future__ import annotations

import os
from typing import Any

import episodelake as el

from .recording import Act, Context, Performance
from .teams import TEAM_SPACES, InTurn, TeamScript, Together
from .truth import CARD


class TeamRecording(Performance):
    """Acts of a `ParallelRecorder`; it has no acts "end" and "whole"."""

    def _start(self) -> Any:
        return self.store.record(Together(dict(self.scripts)), metadata={"run": self.name}, **self.options)

    def _do_begin(self, key: int) -> None:
        self.writer.reset(seed=key)
        for cut in self.open:
            self._end(cut)
        self.open = {key: None}
        self.steps[key] = 0

    def _do_step(self, key: int, until: int) -> None:
        script = self.scripts[key]
        for step in range(self.steps[key], until):
            agents = list(self.writer.agents)
            for agent in agents:
                self.writer.log(agent, **script.policy(step))
            self.writer.step({agent: script.action(agent, step) for agent in agents})
            self.steps[key] = step + 1
        self._end_if_done(key)

    def _end_if_done(self, key: int) -> None:
        if self.steps[key] == self.scripts[key].length and self.scripts[key].ending != "cut":
            self.open = {}
            self._end(key)

    def _promise_journal(self) -> None:
        settled = {
            key: self.scripts[key].settled(steps) if key in self.open and not self.closed else steps
            for key, steps in self.steps.items()
        }
        self.context.log.note(journalled=settled, finished=self.ended, orderly=self.orderly)

    @property
    def closed(self) -> bool:
        """Whether the run was closed, so that no turn waits for its outcome."""
        return self.writer._session.closed


class TurnRecording(TeamRecording):
    """The same through an `AECRecorder`."""

    def _start(self) -> Any:
        return self.store.record(InTurn(dict(self.scripts)), metadata={"run": self.name}, **self.options)

    def _do_step(self, key: int, until: int) -> None:
        script = self.scripts[key]
        for step in range(self.steps[key], until):
            agent = self.writer.agent_selection
            self.writer.log(**script.policy(step))
            self.writer.step(script.action(agent, step))
            self.steps[key] = step + 1
        while until == script.length and script.ending != "cut" and self.writer.agents:
            self.writer.step(None)
        self._end_if_done(key)


def _scripts(*scripts: TeamScript) -> dict[int, TeamScript]:
    return {script.key: script for script in scripts}


# Episode 302 has more rows than the first row buffer holds.
TOGETHER = _scripts(
    TeamScript(300, 5, "terminated"),
    TeamScript(301, 4, "truncated", late=True),
    TeamScript(302, 130, "terminated"),
    TeamScript(303, 6, "cut"),
)
TOGETHER_ACTS: list[Act] = [
    *(("begin", 300), ("step", 300, 5), ("begin", 301), ("step", 301, 2), ("seal",), ("step", 301, 4)),
    *(("begin", 302), ("step", 302, 130), ("seal",), ("begin", 303), ("step", 303, 5)),
]
IN_TURN = _scripts(
    TeamScript(310, 7, "terminated", turns=True),
    TeamScript(311, 9, "truncated", turns=True, late=True),
    TeamScript(312, 300, "terminated", turns=True),
    TeamScript(313, 5, "cut", turns=True),
    TeamScript(314, 6, "cut", turns=True),
)
IN_TURN_ACTS: list[Act] = [
    *(("begin", 310), ("step", 310, 7), ("begin", 311), ("step", 311, 4), ("seal",), ("step", 311, 9)),
    *(("begin", 313), ("step", 313, 5), ("begin", 312), ("step", 312, 300), ("seal",)),
    *(("begin", 314), ("step", 314, 5)),
]
LAST_TEAM = TeamScript(99, 4, "terminated")
TEAM_SCRIPTS = {**TOGETHER, **IN_TURN, LAST_TEAM.key: LAST_TEAM}


def create_team(context: Context) -> None:
    """Create a store for several agents."""
    el.create(context.path, agents=TEAM_SPACES, card=CARD)


def record_team(context: Context) -> None:
    """Record agents that act at once: journal, seal twice, commit, clean up."""
    TeamRecording(context, "together", TOGETHER, {}).play([*TOGETHER_ACTS, ("close",)])


def take_turns(context: Context) -> None:
    """Record agents that take turns, with a journal that survives the machine."""
    TurnRecording(context, "turns", IN_TURN, {"durability": "fsync"}).play([*IN_TURN_ACTS, ("close",)])


def take_turns_busily(context: Context) -> None:
    """The same, while the background thread journals and seals whenever it can."""
    options = {"segment_bytes": 1, "flush_seconds": 0.002}
    TurnRecording(context, "busy turns", IN_TURN, options).play([*IN_TURN_ACTS, ("close",)])


def create_dead_team(context: Context) -> None:
    """A store with two runs whose writers died in an episode, after a seal."""
    create_team(context)
    together = TeamRecording(context, "together", TOGETHER, {})
    in_turn = TurnRecording(context, "turns", IN_TURN, {})
    together.play(TOGETHER_ACTS)
    in_turn.play(IN_TURN_ACTS)
    for performance in (together, in_turn):
        performance.writer.session.flush()
        performance._promise_journal()
    os._exit(0)


def record_last_team(path: Any) -> el.EpisodeStore:
    """Record one more episode, as the next writer would."""
    store = el.open(path)
    with store.record(Together({LAST_TEAM.key: LAST_TEAM}), run="last") as recorder:
        recorder.reset(seed=LAST_TEAM.key)
        for step in range(LAST_TEAM.length):
            for agent in recorder.agents:
                recorder.log(agent, **LAST_TEAM.policy(step))
            recorder.step({agent: LAST_TEAM.action(agent, step) for agent in recorder.agents})
    return store.refresh()
