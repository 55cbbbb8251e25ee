"""The demo: record real environments, ask questions in SQL, rebuild every episode and replay it.

It uses the public API in a user's order: one store per environment, a run per policy, then queries, a chart,
and the proof that episodes come back exactly. Its folder is replaced only if a demo alone wrote into it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import polars as pl

from ..._store import EpisodeStore, create, open_store
from ...readers.amounts import counted
from ...readers.replaying.replay import ReplayReport, replay
from ...store.errors import StoreExistsError
from ...store.files import guard_access, locate
from ...store.layout import ANNOTATIONS, ARTIFACTS, CARD, JOURNAL, MANIFEST, TABLES, TAGS
from ...writers.collecting.collect import collect
from ..output.grid import Grid
from ..output.page import INDENT, Page
from .drawings import RunSeries, histogram_drawing

POLICIES = ("random", "scripted")
MARK = "demo.json"
MADE_BY = {"made_by": "episodelake demo"}


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

RETURNS = """\
SELECT runs."metadata.policy" AS policy, episode_return
FROM episodes JOIN runs USING (run_id)"""

ANGLES = "SELECT action, avg(observation[3]) FROM transitions GROUP BY action"


def run_demo(page: Page, path: Path, episodes: int) -> bool:
    """Run the whole demo.

    Args:
        page: the output.
        path: a new or empty folder, or one of an earlier demo, which is replaced.
        episodes: number to record per environment and policy.

    Returns:
        Whether every replayed episode was the same as the recorded one.

    Raises:
        StoreExistsError: the folder holds something that no demo wrote.
        StoreAccessError: the folder cannot be written.
    """
    prepare_folder(path, [task.name for task in TASKS])
    page.heading(f"1  Record real environments into {path}")
    stores = _record_all(page, path, episodes)
    page.heading("2  Ask in SQL, here of each store")
    for question, text in QUESTIONS:
        page.line()
        page.line(question, "bold")
        page.code(text, "sql")
        answers = [
            store.query(text).select(pl.lit(name).alias("store"), "*") for name, store in stores.items()
        ]
        page.frame(pl.concat(answers))
    page.heading("3  Returns")
    for task in TASKS:
        page.line()
        page.line(f"{task.env_id}: how often each return occurs", "bold")
        returns = stores[task.name].query(RETURNS)
        series = [
            RunSeries(policy, "", returns.filter(policy=policy)["episode_return"].to_numpy(), "series")
            for policy in POLICIES
        ]
        histogram_drawing(series).write(page)
    page.heading("4  Rebuild all episodes and replay them")
    same = _replay_all(page, path, stores)
    page.heading("5  Try next")
    for command in next_commands(path):
        page.code(_for_a_shell(command, page.width), "bash")
    return same


def next_commands(path: Path) -> list[list[str]]:
    """Return the words of three commands that look further into the demo's stores."""
    program = _program()
    return [
        [program, "info", str(path / "cartpole")],
        [program, "show", str(path / "mountaincar"), "-1"],
        [program, "sql", str(path / "cartpole"), ANGLES],
    ]


def _for_a_shell(command: list[str], width: int) -> str:
    """Return a command as one types it, its last word on a line of its own if it is long."""
    line = shlex.join(command)
    if len(line) + INDENT <= width:
        return line
    return f"{shlex.join(command[:-1])} \\\n  {shlex.quote(command[-1])}"


def _program() -> str:
    """Return how this program is called from here: by its name if the shell finds it so."""
    called = Path(sys.argv[0])
    if called.name != "episodelake" or shutil.which("episodelake") == str(called.absolute()):
        return "episodelake"
    here = Path.cwd()
    return str(called.relative_to(here)) if called.is_relative_to(here) else str(called)


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
                metadata={"policy": policy, "recorded_by": MADE_BY["made_by"]},
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


def _replay_all(page: Page, path: Path, stores: dict[str, EpisodeStore]) -> bool:
    """Replay every episode, and write the verdict on the longest one of each store."""
    first = TASKS[0]
    page.code(_replay_code(path / first.name, _longest(stores[first.name]), first.env_id), "python")
    rows, every = [], []
    for task in TASKS:
        env = gymnasium.make(task.env_id)
        reports = {episode.id: replay(episode, env) for episode in stores[task.name]}
        env.close()
        every += reports.values()
        longest = reports[_longest(stores[task.name])]
        rows.append((task.name, longest.episode_id, longest.transitions, _verdict(longest)))
    page.table(Grid.of(("store", "longest episode", "transitions", "replayed"), rows))
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


# The folder


def prepare_folder(path: Path, names: Sequence[str]) -> None:
    """Make the folder and its mark; remove the stores `names` of an earlier demo.

    Raises:
        StoreExistsError: the folder holds something that no demo wrote; nothing was changed.
        CorruptStoreError: a store of an earlier demo is damaged, so its contents are unknown.
        StoreAccessError: the folder cannot be read or written.
    """
    with guard_access("make the demo's folder", path):
        path.mkdir(parents=True, exist_ok=True)
        present = sorted(entry.name for entry in path.iterdir())
    if present and not _is_marked(path):
        raise StoreExistsError(
            f"{path} holds {_listed(present)} and was not made by the demo, which replaces only a folder of "
            "its own. Choose another one with --path."
        )
    foreign = [name for name in present if name not in (MARK, *names)]
    foreign += [f"{name} (with runs of your own)" for name in names if _has_other_runs(path / name)]
    foreign += [f"{name}/{entry}" for name in names for entry in _others(path / name)]
    if foreign:
        raise StoreExistsError(
            f"{path} is the folder of an earlier demo, but also holds {_listed(foreign)}. Move that away, or "
            "choose another folder with --path."
        )
    locate(path / MARK).write(json.dumps(MADE_BY).encode())
    with guard_access("replace the earlier demo", path):
        for name in names:
            if (path / name).exists():
                shutil.rmtree(path / name)


def _others(store: Path) -> list[str]:
    """Return names in a store's folder that no store has."""
    if store.is_symlink() or not store.is_dir():
        return [""] if os.path.lexists(store) else []
    known = {MANIFEST, CARD, *TABLES, JOURNAL, ANNOTATIONS, ARTIFACTS, TAGS}
    return sorted(entry.name for entry in store.iterdir() if entry.name not in known)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _is_marked(path: Path) -> bool:
    try:
        return json.loads((path / MARK).read_bytes()) == MADE_BY
    except (OSError, ValueError):
        return False


def _has_other_runs(store: Path) -> bool:
    """Return whether a store has runs that no demo recorded; a folder that never became a store has none."""
    if not (store / MANIFEST).exists():
        return False
    runs = open_store(store).sql("FROM runs")
    if "metadata.recorded_by" in runs.columns:
        runs = runs.filter(f""" "metadata.recorded_by" IS DISTINCT FROM '{MADE_BY["made_by"]}' """)
    return runs.aggregate("count(*)").fetchall() != [(0,)]
