"""Make the committed store of several agents, and beside it, as JSON, what a reader must find in it.

Run by hand, once per format: `python tests/make_committed_agent_store.py`. See `make_committed_store.py` for
the rules; here `expected.json` is written from what plain loops over the same seeded environments saw.

The store has three runs: `together` recorded agents that act at once in two segments, `turns` agents that
take turns, and `killed` died in an episode of turns, with another one finished in its journal.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import episodelake as el
from agent_environments import Comings, Turns
from make_committed_store import plain, stacked, write_expected
from plain_agents import Lane, Policy, play_parallel, play_turns, random_policy
from waiting import wait_for_journal

FOLDER = Path(__file__).parent / "data" / "format-1-agents"
TOGETHER, TURNS = range(3), range(10, 12)
FINISHED, DYING, DIED_AFTER = 20, 21, 6


def logging(recorder: Any, seed: int) -> Policy:
    """A random policy that logs how often each agent was asked."""
    asked: dict[str, int] = {}
    act = random_policy(recorder, seed)

    def policy(agent: str, observation: Any, info: Mapping[str, Any]) -> Any:
        asked[agent] = asked.get(agent, 0) + 1
        recorder.log(agent, asked=asked[agent])
        return act(agent, observation, info)

    return policy


def make_store(path: Path) -> None:
    """Write two runs that closed, then die in the middle of the third one."""
    store = el.create(path, Comings(), card={"description": "The committed store of several agents"})
    with store.record(Comings(), run="together", state=True) as recorder:
        for seed in TOGETHER:
            play_parallel(recorder, logging(recorder, seed), seed)
            if seed == TOGETHER[0]:
                recorder.seal()
    with store.record(Turns(), run="turns") as recorder:
        for seed in TURNS:
            play_turns(recorder, logging(recorder, seed), seed)
    killed = store.record(Turns(), run="killed", durability="fsync", flush_seconds=0.01, seal_seconds=1e6)
    plain = [play_turns(killed, logging(killed, FINISHED), FINISHED)]
    plain.append(play_turns(killed, logging(killed, DYING), DYING, DIED_AFTER))
    steps = sum(len(lane.rewards) for lanes in plain for lane in lanes.values())
    wait_for_journal(path / "journal" / killed.run_id, steps, ended=1)
    os._exit(0)


def expected_agent(lane: Lane) -> dict[str, Any]:
    """Say what must come back of one agent, from what a plain loop saw."""
    count = len(lane.rewards)
    actions = [np.asarray(action).tolist() for action in lane.actions]
    return {
        "env_steps": lane.env_steps,
        "observations": plain(stacked(lane.observations)),
        "actions": plain(actions[:count]),
        "rewards": plain([float(reward) for reward in lane.rewards]),
        "terminations": lane.terminations,
        "truncations": lane.truncations,
        "infos": plain(lane.infos),
        "asked": list(range(1, count + 1)),
    }


def expected_episode(seed: int, lanes: dict[str, Lane], length: int, end_reason: str) -> dict[str, Any]:
    """Say what must come back of an episode."""
    agents = {agent: expected_agent(lane) for agent, lane in lanes.items()}
    return {"seed": seed, "length": length, "end_reason": end_reason, "agents": agents}


def together(seed: int) -> dict[str, Any]:
    """What a plain loop sees when all act at once; `Comings` lasts eight steps."""
    env = Comings()
    return expected_episode(seed, play_parallel(env, random_policy(env, seed), seed), 8, "truncated")


def turns(seed: int) -> dict[str, Any]:
    """What a plain loop sees when agents take turns; `Turns` lasts nine."""
    env = Turns()
    return expected_episode(seed, play_turns(env, random_policy(env, seed), seed), 9, "truncated")


def dying() -> dict[str, Any]:
    """What it sees until the death: turns whose outcome was not known by then are not there."""
    env = Turns()
    lanes = play_turns(env, random_policy(env, DYING), DYING, DIED_AFTER)
    return expected_episode(DYING, lanes, DIED_AFTER, "interrupted")


def main() -> None:
    """Make the store in a process of its own, since one of its writers must die, and write what it holds."""
    if len(sys.argv) == 2:
        make_store(Path(sys.argv[1]))
    # A fixed folder, since Delta writes the folder's first path into its log.
    folder = Path(tempfile.gettempdir()) / "episodelake-format-1-agents"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, __file__, str(folder / "store")], check=True)
    content = {
        "together": [together(seed) for seed in TOGETHER],
        "turns": [turns(seed) for seed in TURNS],
        "killed": [turns(FINISHED), dying()],
    }
    write_expected(folder, content, FOLDER)


if __name__ == "__main__":
    main()
