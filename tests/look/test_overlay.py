"""Episodes over each other: aligned and compared as plain loops do."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import episodelake as el
from picture_stores import drawn, rows_of, told


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Three episodes of 6, 9 and 12 steps: equal to t = 4, where the second has another reward."""
    path = tmp_path_factory.mktemp("overlay") / "store"
    store = el.create(path, observation_space=Box(-9, 99, (2,), np.float32), action_space=Discrete(3))
    with store.writer(run="run") as writer:
        for number, length in enumerate((6, 9, 12)):
            rewards = np.arange(length, dtype=float)
            rewards[4] += number == 1
            writer.write_episode(
                observations=np.full((length + 1, 2), np.nan, np.float32),
                actions=np.arange(length) % 3,
                rewards=rewards,
                terminations=True,
                truncations=False,
            )
    return store.refresh()


def lines(chart: Any) -> dict[str, list[tuple[int, float]]]:
    """The points of each episode's line."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows_of(chart, "line"):
        found.setdefault(row["episode"], []).append((row["at"], row["value"]))
    return found


@pytest.mark.parametrize("align", ["start", "end", "reward >= 3"])
def test_alignment(store: el.EpisodeStore, align: str) -> None:
    """Each line has all steps of its episode, moved so that what aligns them stands at 0."""
    found = lines(store.plot.overlay(["reward"], align))
    for episode in store:
        zero = {"start": 0, "end": episode.length, "reward >= 3": 3}[align]
        assert found[episode.id] == [(t - zero, value) for t, value in enumerate(episode.rewards.tolist())]


@pytest.mark.further
def test_first_divergence(store: el.EpisodeStore) -> None:
    """The first step at which two differ is named and marked; NaN equals NaN, and equal ones have none."""
    chart = store.plot.overlay()
    assert "first differ at 4, in reward" in told(chart)
    assert {row["at"] for row in rows_of(chart, "rule")} == {4}
    assert (
        "differ" not in told(store[::2].plot.overlay()) and rows_of(store[::2].plot.overlay(), "rule") == []
    )
    assert len(np.unique(drawn(chart))) > 5
    later = lines(store[1:].plot.overlay(["reward"], "reward >= 3"))
    assert {key: line[0][0] for key, line in later.items()} == {store[k].id: -3 for k in (1, 2)}


@pytest.mark.further
def test_the_legend_tells_episodes_apart(tmp_path: Path) -> None:
    """Long names of runs hide no number, as drawn; runs of one name differ by their ids."""
    store = el.create(tmp_path / "store", observation_space=Box(-1, 1, (1,)), action_space=Discrete(2))
    for _ in range(2):
        with store.writer(run="sac-lr0.0003-batch256-seed2-of-a-long-sweep-of-everything") as writer:
            for _ in range(3):
                writer.write_episode(
                    observations=np.zeros((3, 1), np.float32),
                    actions=[0, 1],
                    rewards=[1.0, 2.0],
                    terminations=True,
                    truncations=False,
                )
    for view in (store.refresh(), store.refresh()[:3]):
        view.plot.overlay(["reward"]).save(tmp_path / "chart.svg")
        labels = re.findall(r"<text[^>]*>(sac[^<]*)</text>", (tmp_path / "chart.svg").read_text())
        assert len(set(labels)) == len(labels) == len(view)
        assert [label.rpartition("/")[2] for label in labels] == [str(n % 3) for n in range(len(view))]


def test_what_is_left_out_is_told(store: el.EpisodeStore) -> None:
    """Episodes without a hit and beyond the most that are drawn are counted; a bad condition is an error."""
    assert "holds nowhere in 1 episode" in told(store.plot.overlay(["reward"], "t > 8"))
    with pytest.raises(el.errors.NothingToDrawError, match="holds in no step"):
        store.plot.overlay(["reward"], "reward > 1000")
    with pytest.raises(el.errors.QueryError, match="reward"):
        store.plot.overlay(["reward"], "rewad > 1")
    with pytest.raises(el.errors.QueryError):
        store.plot.overlay(["reward"], "true) OR (SELECT count(*) FROM read_csv('/etc/passwd')) > 0 OR (true")
