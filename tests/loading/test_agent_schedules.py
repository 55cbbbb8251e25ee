"""Agents that come and go at any time, resets in the middle, seals in between: what Hypothesis thinks of."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, Space, Text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pettingzoo import ParallelEnv

import episodelake as el
from effort import examples
from plain_agents import check_agents, play_parallel, random_policy
from waiting import PATIENCE

#: Fixed and ragged spaces; observations are made of a number, so that the same moment gives the same value.
OBSERVATIONS: list[tuple[Space, Any]] = [
    (Box(-9, 999, (3,), np.float32), lambda n: np.full(3, n, np.float32)),
    (Box(0, 255, (2, 2), np.uint8), lambda n: np.full((2, 2), n, np.uint8)),
    (Text(5), lambda n: "x" * (n % 5 + 1)),
    (MultiBinary(3), lambda n: np.array([n % 2, 1, 0], np.int8)),
]
ACTIONS: list[Space] = [Discrete(4), Box(-1, 1, (2,), np.float64)]


@dataclass(frozen=True)
class Part:
    """One agent: which spaces it has, when it comes and leaves, how it ends."""

    observation: int
    action: int
    comes: int
    stays: int
    terminated: bool


class Scheduled(ParallelEnv):
    """An environment whose agents keep a schedule; it goes on until the last one has left."""

    metadata: ClassVar[dict] = {"name": "scheduled_v0"}

    def __init__(self, parts: dict[str, Part]) -> None:
        self.parts = parts
        self.possible_agents = list(parts)
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Space:
        """The agent's own."""
        return OBSERVATIONS[self.parts[agent].observation][0]

    def action_space(self, agent: str) -> Space:
        """The agent's own."""
        return ACTIONS[self.parts[agent].action]

    def _seen(self, agent: str) -> tuple[Any, dict[str, Any]]:
        number = 7 * self._step + self.possible_agents.index(agent)
        info = {"n": number} if number % 3 else {}
        return OBSERVATIONS[self.parts[agent].observation][1](number), info

    def _all(self, agents: list[str]) -> tuple[dict, dict]:
        found = {agent: self._seen(agent) for agent in agents}
        return {a: seen for a, (seen, _) in found.items()}, {a: info for a, (_, info) in found.items()}

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """Begin with those that are there at once, and at least with one."""
        self._random = np.random.default_rng(seed)
        self._step = 0
        first = min(part.comes for part in self.parts.values())
        self._shift = first
        self.agents = [agent for agent, part in self.parts.items() if part.comes == first]
        return self._all(self.agents)

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        """One step by the schedule."""
        self._step += 1
        now = self._step + self._shift
        acted = list(self.agents)
        left = [agent for agent in acted if now >= self.parts[agent].comes + self.parts[agent].stays]
        come = [agent for agent, part in self.parts.items() if part.comes == now]
        if not come and len(left) == len(acted) and any(p.comes > now for p in self.parts.values()):
            # Nobody would be there before the next one comes: it comes at once.
            self._shift += min(p.comes for p in self.parts.values() if p.comes > now) - now
            now = self._step + self._shift
            come = [agent for agent, part in self.parts.items() if part.comes == now]
        self.agents = [agent for agent in acted if agent not in left] + come
        observations, infos = self._all([*acted, *come])
        rewards = {agent: float(self._random.normal()) for agent in acted}
        terminations = {agent: agent in left and self.parts[agent].terminated for agent in acted}
        truncations = {agent: agent in left and not self.parts[agent].terminated for agent in acted}
        return observations, rewards, terminations, truncations, infos


parts = st.builds(
    Part,
    st.integers(0, len(OBSERVATIONS) - 1),
    st.integers(0, len(ACTIONS) - 1),
    st.integers(0, 5),
    st.integers(1, 6),
    st.booleans(),
)
teams = st.dictionaries(st.sampled_from(["a_0", "a_1", "b", "B.x", "c d"]), parts, min_size=1)


@given(
    teams,
    st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=1, max_size=4),
    st.sampled_from([3, 131_072]),
)
@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_schedule_is_recorded_as_a_plain_loop_sees_it(
    team: dict[str, Part], plan: list[tuple[int, bool]], group_rows: int
) -> None:
    """Whoever comes and goes, wherever a reset or a seal falls, each agent has what a plain loop saw."""
    from episodelake.store.segments import steps_file as sealing

    kept = sealing.GROUP_ROWS
    sealing.GROUP_ROWS = group_rows
    try:
        with tempfile.TemporaryDirectory() as folder:
            store = el.create(Path(folder, "store"), Scheduled(team))
            with store.record(Scheduled(team)) as recorder:
                for seed, (steps, seals) in enumerate(plan):
                    play_parallel(recorder, random_policy(recorder, seed), seed, steps)
                    if seals:
                        recorder.seal()
            store.refresh()
            assert [episode.seed for episode in store] == list(range(len(plan)))
            for episode, (steps, _) in zip(store, plan, strict=True):
                env = Scheduled(team)
                lanes = play_parallel(env, random_policy(env, episode.seed), episode.seed, steps)
                check_agents(episode, lanes)
                assert (episode.end_reason == "cut") == bool(env.agents)
                assert episode.terminated == (
                    not env.agents and all(lane.terminations[-1] for lane in lanes.values())
                )
            assert not store.verify().faults
            store.compact()
            assert not store.verify().faults
    finally:
        sealing.GROUP_ROWS = kept


def test_importing_does_not_import_pettingzoo() -> None:
    """Neither PettingZoo nor MO-Gymnasium is imported until a user does."""
    program = (
        "import sys, episodelake; "
        "print([name for name in sys.modules if name.startswith(('pettingzoo', 'mo_gymnasium'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stdout.strip() == "[]"
