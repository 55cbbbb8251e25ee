"""The demo: record real environments, ask questions in SQL, rebuild every episode and replay it.

It uses the public API in a user's order: one store per environment, a run per policy, then queries, a chart,
and the proof that episodes come back exactly.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import polars as pl
from gymnasium.wrappers import AddRenderObservation

from ... import EpisodeStore, collect, create
from ...errors import StoreExistsError
from ...plugin import counted
from ...plugin.files import make_folder, names_in
from ...types import ReplayReport
from ..output.page import Page
from .drawings import drawn_series, histogram_drawing

POLICIES = ("random", "scripted")


@dataclass(frozen=True)
class Task:
    """An environment of the demo and a hand-written controller for it.

    Attributes:
        name: of the store's folder.
        env_id: what `gymnasium.make` takes.
        rule: the controller in words.
        control: the controller: from an observation to an action.
    """

    name: str
    env_id: str
    rule: str
    control: Callable[[Any], int]

    def play(self, observation: Any, info: Any, state: Any) -> int:
        """Return the controller's action, as a policy for `collect`."""
        return self.control(observation)


TASKS = (
    Task(
        "cartpole",
        "CartPole-v1",
        "push to the side to which the pole leans and turns",
        lambda observation: int(observation[2] + 2.0 * observation[3] > 0),
    ),
    Task(
        "mountaincar",
        "MountainCar-v0",
        "push the way the car rolls",
        lambda observation: 2 if observation[1] >= 0 else 0,
    ),
    Task("blackjack", "Blackjack-v1", "draw below 17", lambda observation: int(observation[0] < 17)),
)

QUESTIONS = (
    (
        "Which policy gets which return?",
        """\
SELECT runs."metadata.policy" AS policy, count(*) AS episodes,
       avg(episode_return) AS mean_return,
       min(episode_return) AS lowest, max(episode_return) AS highest
FROM episodes JOIN runs USING (run_id)
GROUP BY policy ORDER BY policy""",
    ),
    (
        "How do episodes end?",
        """\
SELECT runs."metadata.policy" AS policy, end_reason, count(*) AS episodes
FROM episodes JOIN runs USING (run_id)
GROUP BY ALL ORDER BY ALL""",
    ),
    (
        "Which episodes are the longest?",
        """\
SELECT episode_id, length, episode_return, seed
FROM episodes ORDER BY length DESC, episode_id LIMIT 3""",
    ),
)

#: The folder of the store with pictures, and how many episodes it has.
IMAGES, IMAGE_EPISODES = "cartpole-images", 6

ANGLES = "SELECT action, avg(observation[3]) FROM transitions GROUP BY action"


def run_demo(page: Page, path: Path, episodes: int) -> bool:
    """Run the demo.

    Args:
        page: the output.
        path: a new or empty folder.
        episodes: number to record per environment and policy.

    Returns:
        Whether every replayed episode was the same as the recorded one.

    Raises:
        StoreExistsError: the folder is not empty.
        StoreAccessError: the folder cannot be written.
    """
    _make_folder(path)
    page.heading(f"1  Record real environments into {path}")
    stores = _record_all(page, path, episodes)
    _record_images(page, stores[TASKS[0].name], path / IMAGES)
    page.heading("2  Ask in SQL, here of each store")
    for question, text in QUESTIONS:
        page.line()
        page.line(question, "bold")
        page.block(text, "cyan")
        answers = [
            store.query(text).select(pl.lit(name).alias("store"), "*") for name, store in stores.items()
        ]
        page.frame(pl.concat(answers))
    page.heading("3  Returns")
    for task in TASKS:
        page.line()
        page.line(f"{task.env_id}: how often each return occurs", "bold")
        histogram_drawing(drawn_series(stores[task.name], "returns", "run.policy")).write(page)
    page.heading("4  Rebuild all episodes and replay them")
    same = _replay_all(page, path, stores)
    page.heading("5  Try next")
    for command in next_commands(path):
        page.block(shlex.join(command), "cyan")
    return same


def next_commands(path: Path) -> list[list[str]]:
    """Return the words of commands that look further into the demo's stores; the last opens the page."""
    # `make demo` runs a program that is not on the path.
    own = sys.argv[0]
    program = own if Path(own).name == "episodelake" and not shutil.which("episodelake") else "episodelake"
    return [
        [program, "info", str(path / "cartpole")],
        [program, "show", str(path / "mountaincar"), "-1"],
        [program, "sql", str(path / "cartpole"), ANGLES],
        [program, "explore", str(path)],
    ]


def _make_folder(path: Path) -> None:
    make_folder(path)
    present = names_in(path)
    if present:
        more = f" and {len(present) - 3} more" if len(present) > 3 else ""
        raise StoreExistsError(
            f"The folder {path} is not empty: it holds {', '.join(present[:3])}{more}. Remove it, or choose "
            "another with --path."
        )


def _record_all(page: Page, path: Path, episodes: int) -> dict[str, EpisodeStore]:
    """Record every task with every policy; return the stores by name, each at its newest version."""
    started, steps, stores = time.perf_counter(), 0, {}
    for task in TASKS:
        env = gymnasium.make(task.env_id)
        card = {"description": f"{task.env_id}, recorded by `episodelake demo`", "scripted": task.rule}
        store = stores[task.name] = create(path / task.name, env, card=card)
        for policy in POLICIES:
            stats = collect(
                env,
                task.play if policy == "scripted" else None,
                store,
                episodes=episodes,
                seed=list(range(episodes)),
                policy_seed=0,
                run=policy,
                metadata={"policy": policy},
            )
            steps += stats.steps
            amount = f"{counted(episodes, 'episode')}, {counted(stats.steps, 'step')}"
            page.line(f"{task.env_id:<14} {policy:<8} {amount}")
        env.close()
        store.refresh()
        page.line(f"{'':<14} scripted: {task.rule}")
    seconds = time.perf_counter() - started
    page.line(f"{steps:,} transitions recorded and committed in {seconds:.1f} s.", "bold")
    return stores


def _record_images(page: Page, plain: EpisodeStore, path: Path) -> None:
    """Record a few episodes of CartPole whose observations have a picture of every step."""
    if find_spec("pygame") is None:
        page.note("Without pygame there are no pictures: pip install 'episodelake[demo]' has it.")
        return
    with contextlib.closing(plain.make_env(render_mode="rgb_array")) as drawn:
        env = AddRenderObservation(drawn, render_only=False)
        store = create(path, env, card={"description": "CartPole-v1 with a picture of every step"})
        stats = collect(env, None, store, episodes=IMAGE_EPISODES, seed=0, policy_seed=0, run="random")
    amount = f"{counted(stats.episodes, 'episode')}, {counted(stats.steps, 'step')}"
    page.line(f"{'CartPole-v1':<14} {'random':<8} {amount}, with pictures of 400 x 600 in {IMAGES}")


def _replay_all(page: Page, path: Path, stores: dict[str, EpisodeStore]) -> bool:
    """Replay every episode, and write the verdict on the longest one of each store."""
    first = TASKS[0]
    page.block(_replay_code(path / first.name, _longest(stores[first.name]), first.env_id), "cyan")
    rows, every = [], []
    for task in TASKS:
        env = gymnasium.make(task.env_id)
        reports = {episode.id: episode.replay(env) for episode in stores[task.name]}
        env.close()
        every += reports.values()
        longest = reports[_longest(stores[task.name])]
        rows.append(
            {
                "store": task.name,
                "longest episode": longest.episode_id,
                "transitions": longest.transitions,
                "replayed": _verdict(longest),
            }
        )
    page.table(rows)
    different = sum(not report.same for report in every)
    steps = sum(report.transitions for report in every)
    if different:
        page.line(f"{different} of {len(every)} replayed episodes differ from what was recorded.", "bold red")
    else:
        page.line(
            f"All {len(every):,} episodes were replayed so: {steps:,} transitions, no difference.",
            "bold green",
        )
    page.line("Compared exactly: observations, rewards, terminations and truncations.")
    return not different


def _verdict(report: ReplayReport) -> str:
    return "same" if report.same else f"DIFFERS at step {report.differences[0].step}"


def _longest(store: EpisodeStore) -> str:
    return store.query("SELECT episode_id FROM episodes ORDER BY length DESC, episode_id LIMIT 1").item()


def _replay_code(path: Path, episode_id: str, env_id: str) -> str:
    return f"""\
store = el.open({str(path)!r})
episode = store[{episode_id!r}]
env = gymnasium.make({env_id!r})
env.reset(seed=episode.seed)
for action in episode.actions:
    env.step(action)  # compare with episode.observations"""
