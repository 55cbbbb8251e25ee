"""The demo: record real environments, ask questions in SQL, rebuild an episode and replay it.

Everything is done with the public API, in the order in which a user would: one store per environment, a run
per policy, then queries, a chart, and the proof that an episode comes back exactly.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from ..._store import EpisodeStore, create
from ...readers.replaying.replay import ReplayReport, replay
from ..output.charts import histogram
from ..output.grid import Grid, grid_of
from ..output.page import INDENT, Page
from .demo_folder import prepare_folder

POLICIES = ("random", "scripted")
COLORS = {"random": "yellow", "scripted": "green"}


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
        page: where it is told.
        path: a new or empty folder, or one of an earlier demo, which is replaced.
        episodes: how many to record per environment and policy.

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
        _ask(page, stores, question, text)
    page.heading("3  Returns")
    for task in TASKS:
        _chart(page, task, stores[task.name])
    page.heading("4  Rebuild an episode and replay it")
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


# Recording


def _record_all(page: Page, path: Path, episodes: int) -> dict[str, EpisodeStore]:
    """Record every task with every policy; the stores by name, showing all of it."""
    started, steps, stores = time.perf_counter(), 0, {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=max(page.width - 60, 10)),
        MofNCompleteColumn(),
        TextColumn("episodes {task.fields[steps]:>9,} steps"),
    )
    with Progress(*columns, console=page.console, disable=not page.is_terminal) as progress:
        for task in TASKS:
            env = gymnasium.make(task.env_id)
            card = {"description": f"{task.env_id}, recorded by `episodelake demo`", "scripted": task.rule}
            store = stores[task.name] = create(path / task.name, env, card=card)
            for policy in POLICIES:
                bar = progress.add_task(f"{task.env_id:<14} {policy:<8}", total=episodes, steps=0)

                def advance(steps: int, bar: Any = bar) -> None:
                    progress.update(bar, advance=1, steps=steps)

                recorded = _record(task, store, policy, episodes, advance)
                steps += recorded
                if not page.is_terminal:
                    page.line(f"{task.env_id:<14} {policy:<8} {episodes} episodes {recorded:>7} steps")
            store.refresh()
    seconds = time.perf_counter() - started
    count = sum(map(len, stores.values()))
    page.line()
    page.line(
        f"{count:,} episodes with {steps:,} transitions recorded and committed in {seconds:.1f} s.", "bold"
    )
    for task in TASKS:
        page.parts(("scripted", COLORS["scripted"]), (f" in {task.env_id}: {task.rule}", ""))
    return stores


def _record(
    task: Task, store: EpisodeStore, policy: str, episodes: int, advance: Callable[[int], None]
) -> int:
    """Record one run, seeds 0, 1, ...; returns the number of transitions."""
    steps = 0
    metadata = {"policy": policy, "recorded_by": "episodelake demo"}
    with store.record(gymnasium.make(task.env_id), run=policy, metadata=metadata) as env:
        env.action_space.seed(0)
        for seed in range(episodes):
            observation, _ = env.reset(seed=seed)
            done = False
            while not done:
                action = task.control(observation) if policy == "scripted" else env.action_space.sample()
                observation, _, terminated, truncated, _ = env.step(action)
                done = terminated or truncated
                steps += 1
            advance(steps)
    return steps


# Questions


def _ask(page: Page, stores: dict[str, EpisodeStore], question: str, text: str) -> None:
    """Ask every store the same, and write the answers as one table."""
    page.line()
    page.line(question, "bold")
    page.code(text, "sql")
    page.line()
    grids = {name: grid_of(store.sql(text).to_arrow_table(), exact=False) for name, store in stores.items()}
    page.table(_joined(page, grids))


def _joined(page: Page, grids: dict[str, Grid]) -> Grid:
    """Grids of the same columns below each other, the store's name in front."""
    rows = []
    for name, grid in grids.items():
        for index, row in enumerate(grid.rows):
            rows.append(("" if index and page.is_terminal else name, *row))
    first = next(iter(grids.values()))
    return Grid(("store", *first.headers), tuple(rows), (False, *first.right))


# Chart


def _chart(page: Page, task: Task, store: EpisodeStore) -> None:
    """Draw how the returns of both policies are spread, over one axis."""
    frame = store.sql(RETURNS).pl()
    series = {policy: frame.filter(policy=policy)["episode_return"].to_numpy() for policy in POLICIES}
    label, margin = 10, 16
    chart = histogram(series, page.width - label - margin, 3, page.glyphs)
    page.line()
    page.line(f"{task.env_id}: how often each return occurs", "bold")
    used = max(len(line) for lines in chart.bars.values() for line in lines)
    for policy, lines in chart.bars.items():
        mean = f"  mean {series[policy].mean():.2f}"
        for index, line in enumerate(lines):
            last = index == len(lines) - 1
            page.parts(
                ((policy if last else "").ljust(label), COLORS[policy]),
                (line.ljust(used), COLORS[policy]),
                (mean if last else "", ""),
            )
        page.parts((" " * label, ""), (page.glyphs.rule * used, "bright_black"))
    page.parts((" " * label, ""), (chart.axis, "bright_black"))


# Replay


def _replay_all(page: Page, path: Path, stores: dict[str, EpisodeStore]) -> bool:
    """Replay the longest episode of each store in full view, then all the others."""
    page.line()
    first = TASKS[0]
    longest = {name: _longest(store) for name, store in stores.items()}
    page.code(_replay_code(path / first.name, longest[first.name], first.env_id), "python")
    page.line()
    replays: dict[str, list[ReplayReport]] = {}
    for task in TASKS:
        env = gymnasium.make(task.env_id)
        replays[task.name] = [replay(episode, env) for episode in stores[task.name]]
        env.close()
    shown = [
        (name, told.episode_id, *_verdicts(told))
        for name, all_of_it in replays.items()
        for told in all_of_it
        if told.episode_id == longest[name]
    ]
    page.table(Grid.of(("store", "episode", "observations", "rewards", "flags"), shown))
    every = [told for all_of_it in replays.values() for told in all_of_it]
    different = sum(not told.same for told in every)
    steps = sum(told.transitions for told in every)
    page.line()
    if different:
        page.line(f"{different} of {len(every)} replayed episodes differ from what was recorded.", "bold red")
    else:
        page.line(
            f"All {len(every):,} episodes were replayed so: {steps:,} transitions, no difference.",
            "bold green",
        )
    page.line("Compared exactly: observations, rewards, terminations and truncations.")
    return not different


def _verdicts(report: ReplayReport) -> Iterator[str]:
    """Yield how many observations, rewards and flags were compared, and the verdict on each."""
    transitions = report.compared
    counts = (("observation", transitions + 1), ("reward", transitions), ("t", 2 * transitions))
    for name, count in counts:
        differs = any(difference.leaf.startswith(name) for difference in report.differences)
        yield f"DIFFER at step {report.differences[0].step}" if differs else f"{count} same"


def _longest(store: EpisodeStore) -> str:
    text = "SELECT episode_id FROM episodes ORDER BY length DESC, episode_id LIMIT 1"
    return store.sql(text).fetchall()[0][0]


def _replay_code(path: Path, episode_id: str, env_id: str) -> str:
    return f"""\
store = el.open({str(path)!r})
episode = store[{episode_id!r}]
env = gymnasium.make({env_id!r})
env.reset(seed=episode.seed)
for action in episode.actions:
    env.step(action)  # compare with episode.observations"""
