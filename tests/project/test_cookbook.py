"""The cookbook's answers are right: each equals a plain loop over rebuilt episodes, in SQL and in Polars."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import episodelake as el
from checkout import REPOSITORY
from episodelake.testing.adapters import case
from plain_returns import returns_to_go
from test_documentation import examples

PAGE = REPOSITORY / "docs" / "cookbook.md"
NUMBERS = range(1, 26)
#: Which store a question is about, where it is not CartPole's.
STORES = dict.fromkeys((14, 16, 20, 21), "lakes") | dict.fromkeys((15, 22, 23, 24), "arms")
Rows = list[tuple[Any, ...]]
LOOPS: dict[int, Callable[[el.EpisodeStore], Iterable[tuple[Any, ...]]]] = {}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    """The page, executed: by question what SQL and Polars said, and its stores by name."""
    text = PAGE.read_text("utf-8")
    titles = {
        line: int(found[1])
        for line, words in enumerate(text.splitlines(), 1)
        if (found := re.match(r"### (\d+)\.", words))
    }
    found: dict[Any, Any] = {}
    namespace: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("cookbook"))
        for example in examples(text):
            exec(compile(example.code, f"cookbook.md:{example.line}", "exec"), namespace)
            number = max((n for line, n in titles.items() if line < example.line), default=0)
            if number:
                # Taken out, so that no answer stands for the next question's.
                found[number] = (
                    *found.get(number, ()),
                    namespace.pop("same" if "same =" in example.code else "answer"),
                )
    return found | {name: namespace[name] for name in ("store", "lakes", "arms")}


def loop(number: int) -> Callable[[Any], Any]:
    """The plain loop that answers a question."""

    def kept(function: Any) -> Any:
        LOOPS[number] = function
        return function

    return kept


def named(store: el.EpisodeStore) -> dict[str, list[el.Episode]]:
    """Episodes by the name of their run, in the order of their numbers."""
    names = dict(store.runs.select("run_id", "name").collect().rows())
    found: dict[str, list[el.Episode]] = defaultdict(list)
    for episode in sorted(store, key=lambda episode: (names[episode.run_id], episode.number)):
        found[names[episode.run_id]].append(episode)
    return found


def policies(store: el.EpisodeStore) -> dict[str, list[el.Episode]]:
    """Episodes by policy, which is the first word of a run's name."""
    found: dict[str, list[el.Episode]] = defaultdict(list)
    for name, episodes in named(store).items():
        found[name.partition("-")[0]] += episodes
    return found


@loop(1)
def early_ends(store: el.EpisodeStore) -> Rows:
    """How short episodes ended, and where they stood then."""
    groups = defaultdict(list)
    for name, episodes in named(store).items():
        for episode in episodes:
            if episode.length < 60:
                fell = abs(episode.observations[-1][2]) > 0.2095
                cause = "the pole fell" if fell else "the cart left"
                groups[name, episode.end_reason, cause].append(episode.length)
    return [(*key, len(lengths), np.mean(lengths)) for key, lengths in sorted(groups.items())]


@loop(2)
def returns_by_run(store: el.EpisodeStore) -> Rows:
    """Mean return of each run, with the margin."""
    rows = []
    for name, episodes in named(store).items():
        returns = [sum(episode.rewards) for episode in episodes]
        rows.append(
            (name, len(returns), np.mean(returns), 1.96 * np.std(returns, ddof=1) / len(returns) ** 0.5)
        )
    return rows


@loop(3)
def returns_by_policy(store: el.EpisodeStore) -> Rows:
    """Mean over seeds, and the interquartile mean."""
    rows = []
    for policy in ("careful", "careless"):
        runs = [
            [sum(e.rewards) for e in found]
            for name, found in named(store).items()
            if name.startswith(policy + "-")
        ]
        means = [np.mean(run) for run in runs]
        ranked = sorted(value for run in runs for value in run)
        quarter = len(ranked) // 4
        rows.append(
            (policy, np.mean(means), np.std(means, ddof=1), np.mean(ranked[quarter : len(ranked) - quarter]))
        )
    return rows


@loop(4)
def learning_curves(store: el.EpisodeStore) -> Rows:
    """Mean of five returns."""
    return [
        (name, episode.number, np.mean([sum(one.rewards) for one in episodes[max(0, place - 4) : place + 1]]))
        for name, episodes in named(store).items()
        for place, episode in enumerate(episodes)
    ]


@loop(5)
def after_200_steps(store: el.EpisodeStore) -> Rows:
    """All steps of a run in a list, and the one at 200."""
    rows = []
    for name, episodes in named(store).items():
        steps = [(episode.number, t) for episode in episodes for t in range(len(episode.actions))]
        rows.append((name, *steps[200]))
    return rows


@loop(6)
def best_and_worst(store: el.EpisodeStore) -> Rows:
    """The first of those with the greatest and the least return."""
    rows = []
    for name, episodes in named(store).items():
        best, worst = episodes[0], episodes[0]
        for episode in episodes[1:]:
            best = episode if sum(episode.rewards) > sum(best.rewards) else best
            worst = episode if sum(episode.rewards) < sum(worst.rewards) else worst
        rows.append((name, best.number, worst.number))
    return rows


@loop(7)
def survivors(store: el.EpisodeStore) -> Rows:
    """Episodes longer than a moment."""
    return [
        (policy, moment, np.mean([len(episode.actions) > moment for episode in episodes]))
        for policy, episodes in policies(store).items()
        for moment in (20, 40, 80)
    ]


@loop(8)
def discounted(store: el.EpisodeStore) -> Rows:
    """The recursion of the discounted return."""
    return [
        (name, np.mean([returns_to_go(list(episode.rewards), 0.99)[0] for episode in episodes]))
        for name, episodes in named(store).items()
    ]


@loop(9)
def ahead(store: el.EpisodeStore) -> Rows:
    """The same at every step."""
    groups = defaultdict(list)
    for episode in store:
        for t, value in enumerate(returns_to_go(list(episode.rewards), 0.95)):
            groups[t // 50].append(value)
    return [(fifty, np.mean(values), len(values)) for fifty, values in sorted(groups.items())]


@loop(10)
def effective_samples(store: el.EpisodeStore) -> Rows:
    """Products of likelihood ratios."""
    rows = []
    for name, episodes in named(store).items():
        weights = []
        for episode in episodes:
            target = np.where(episode.actions == episode.policy["rule"], 0.85, 0.15)
            weights.append(math.prod(target / episode.policy["probability"]))
        rows.append((name, sum(weights) ** 2 / sum(weight**2 for weight in weights), len(episodes)))
    return rows


@loop(11)
def differences(store: el.EpisodeStore) -> Rows:
    """Steps at which the action is not the rule."""
    groups = defaultdict(list)
    for name, episodes in named(store).items():
        for episode in episodes:
            for t, action in enumerate(episode.actions):
                groups[name, bool(episode.observations[t][2] > 0)].append(action != episode.policy["rule"][t])
    return [(*key, np.mean(values), len(values)) for key, values in sorted(groups.items())]


@loop(12)
def changes(store: el.EpisodeStore) -> Rows:
    """Actions that differ from the one before."""
    return [
        (name, np.mean(np.concatenate([episode.actions[1:] != episode.actions[:-1] for episode in episodes])))
        for name, episodes in named(store).items()
    ]


@loop(13)
def pushes(store: el.EpisodeStore) -> Rows:
    """Changes of the velocity."""
    groups = defaultdict(list)
    for episode in store:
        speeds = episode.observations[:, 1].astype(float)
        for t, action in enumerate(episode.actions):
            groups[int(action)].append(speeds[t + 1] - speeds[t])
    return [(action, np.mean(values), np.std(values, ddof=1)) for action, values in sorted(groups.items())]


@loop(14)
def actions(lakes: el.EpisodeStore) -> Rows:
    """A counter."""
    counts = Counter(int(action) for episode in lakes for action in episode.actions)
    return [(action, counts[action], counts[action] / counts.total()) for action in range(4)]


@loop(15)
def saturated(arms: el.EpisodeStore) -> Rows:
    """Actions at the limits."""
    taken = np.concatenate([episode.actions[:, 0] for episode in arms])
    return [(len(taken), np.mean(np.abs(taken) >= 2))]


@loop(16)
def visits(lakes: el.EpisodeStore) -> Rows:
    """A counter of places."""
    counts = Counter(int(place) for episode in lakes for place in episode.observations)
    return [(place // 4, place % 4, count) for place, count in sorted(counts.items())]


@loop(17)
def never_seen(store: el.EpisodeStore) -> Rows:
    """Cells that no observation falls into."""
    seen = {
        (math.floor(float(place) * 5), math.floor(float(angle) * 20))
        for episode in store
        for place, _, angle, _ in episode.observations
    }
    return [(a, b) for a in range(-2, 2) for b in range(-4, 4) if (a, b) not in seen]


@loop(18)
def first_leans(store: el.EpisodeStore) -> Rows:
    """The first index at which the angle is large."""
    rows = []
    for name, episodes in named(store).items():
        firsts = [
            np.flatnonzero(np.abs(episode.observations[:, 2]) > 0.1)[:1].tolist() for episode in episodes
        ]
        times = [first[0] for first in firsts if first]
        rows.append((name, len(times), len(firsts) - len(times), np.median(times)))
    return rows


@loop(19)
def spread(store: el.EpisodeStore) -> Rows:
    """Quantiles by numpy."""
    groups = defaultdict(list)
    for episode in store:
        for t, observation in enumerate(episode.observations):
            if t % 25 == 0:
                groups[t].append(abs(float(observation[2])))
    return [(t, len(values), *np.quantile(values, [0.1, 0.5, 0.9])) for t, values in sorted(groups.items())]


@loop(20)
def successes(lakes: el.EpisodeStore) -> Rows:
    """Wilson's interval as it is usually written."""
    rows = []
    for name, episodes in named(lakes).items():
        hits, n, z = sum(episode.infos[-1]["success"] for episode in episodes), len(episodes), 1.96
        middle, half = (
            hits / n + z * z / (2 * n),
            z * math.sqrt(hits * (n - hits) / n**3 + z * z / (4 * n * n)),
        )
        rows.append((name, hits / n, (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)))
    return rows


@loop(21)
def hacked(lakes: el.EpisodeStore) -> Rows:
    """Returns beside successes."""
    rows = []
    for name, episodes in named(lakes).items():
        won = [any(info.get("success", False) for info in episode.infos) for episode in episodes]
        returns, lengths = [sum(e.rewards) for e in episodes], [len(e.actions) for e in episodes]
        rows.append((name, np.mean(returns), np.mean(won), np.mean(lengths)))
    return sorted(rows, key=lambda row: -row[1])


@loop(22)
def outliers(arms: el.EpisodeStore) -> Rows:
    """Rewards far from the median."""
    rewards = np.concatenate([episode.rewards for episode in arms])
    middle = np.median(rewards)
    limit = 20 * np.median(np.abs(rewards - middle))
    return [
        (episode.id, t, reward)
        for episode in sorted(arms, key=lambda episode: episode.id)
        for t, reward in enumerate(episode.rewards)
        if abs(reward - middle) > limit
    ]


@loop(23)
def dead(arms: el.EpisodeStore) -> Rows:
    """Smallest and largest value of each number."""
    seen = np.concatenate([episode.observations for episode in arms])
    return [
        (element, np.nanmin(values), np.nanmax(values), bool(np.nanmin(values) == np.nanmax(values)))
        for element, values in enumerate(seen.T)
    ]


@loop(24)
def holes(arms: el.EpisodeStore) -> Rows:
    """Where observations are NaN."""
    found = [
        (int(element), episode.id, int(t))
        for episode in arms
        for t, element in np.argwhere(np.isnan(episode.observations))
    ]
    rows = []
    for element in sorted({one[0] for one in found}):
        here = [one for one in found if one[0] == element]
        rows.append((element, len(here), len({one[1] for one in here}), min(one[2] for one in here)))
    return rows


@loop(25)
def step_times(store: el.EpisodeStore) -> Rows:
    """Seconds between beginning and end."""
    rows = []
    for name, episodes in named(store).items():
        lasted = sum((episode.ended_at - episode.started_at).total_seconds() for episode in episodes)
        rows.append((name, lasted * 1000 / sum(len(episode.actions) for episode in episodes)))
    return rows


def check_rows(frame: pl.DataFrame, wanted: Rows, which: str) -> None:
    """Compare rows; numbers but for the rounding of single precision."""
    assert frame.height == len(wanted), f"{which}: {frame.height} rows for {len(wanted)}"
    for row, right in zip(frame.rows(), wanted, strict=True):
        assert len(row) == len(right)
        for value, other in zip(row, right, strict=True):
            if isinstance(value, float):
                assert value == pytest.approx(float(other), rel=1e-5, abs=1e-7), f"{which}: {row} for {right}"
            else:
                assert value == other, f"{which}: {row} for {right}"


def test_an_answer_is_that_of_a_plain_loop(answers: dict[Any, Any]) -> None:
    """What SQL and Polars answer to a question is what a loop over the episodes finds."""
    for number in NUMBERS:
        with case(number):
            store = answers[STORES.get(number, "store")]
            wanted = list(LOOPS[number](store))
            assert wanted
            by_sql, by_polars = answers[number]
            assert by_sql.columns == by_polars.columns
            check_rows(by_sql, wanted, "SQL")
            check_rows(by_polars, wanted, "Polars")


def test_the_page_has_all_questions() -> None:
    """There are 25 questions, numbered in order, and a loop for each."""
    found = [
        int(number) for number in re.findall(r"^### (\d+)\.", Path(PAGE).read_text("utf-8"), re.MULTILINE)
    ]
    assert found == list(NUMBERS) == sorted(LOOPS)
