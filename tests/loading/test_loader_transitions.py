"""`steps_where`, and loaders of chosen transitions, beside the rules of `LoaderContract`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agent_environments as environments
import episodelake as el
import plain_agents
from effort import looped
from episodelake.readers.loading.number_sets import NumberSet
from loader_batches import all_places, places
from loader_cases import FACTORS
from loader_stores import make_world

PLACES = ["episode", "t"]
TEXT = "reward > 0"
EXPRESSION = pl.col("reward") > 0


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Views in odd orders."""
    return make_world(tmp_path_factory.mktemp("chosen") / "store").views


def rewarded(view: el.EpisodeView) -> list[tuple[int, int]]:
    """The transitions with a positive reward, as (episode, t)."""
    return [(n, t) for n, t in all_places(view) if not view[n].rewards[t] <= 0]


@given(st.lists(st.booleans(), max_size=300))
def test_sets_of_numbers_find_places_and_counts(marks: list[bool]) -> None:
    """The k-th number and how many are below a number are those of a sorted list."""
    members = [number for number, marked in enumerate(marks) if marked]
    found = NumberSet(np.array(marks, bool))
    assert len(found) == len(members)
    assert found[np.arange(len(members))].tolist() == members
    every = np.arange(len(marks) + 1)
    assert found.below(every).tolist() == [sum(marks[:number]) for number in every]


@pytest.mark.further
@looped("name", FACTORS["view"])
def test_steps_are_those_of_a_loop(views: dict[str, Any], name: str) -> None:
    """Conditions in SQL and in Polars find the same rows, those that a user would find by hand."""
    view = views[name]
    for condition in (TEXT, EXPRESSION):
        rows = view.steps_where(condition)
        assert rows.collect_schema() == view.transitions.collect_schema()
        assert rows.collect().equals(view.transitions.filter(EXPRESSION).collect())
        assert len(rows.collect()) == len(rewarded(view))


def test_chosen_units_are_drawn_by_their_episodes(views: dict[str, Any]) -> None:
    """Each episode comes as often as others, whichever number of its units is chosen."""
    view = views["all"]
    expected = rewarded(view)
    counts = Counter(n for n, _ in expected)
    loader = view.loader(len(expected), weights="episodes", columns=PLACES, transitions=TEXT, seed=3)
    episodes = Counter(n for _ in range(60) for n, _ in places(loader))
    share = np.mean([episodes[n] for n in counts])
    assert episodes.keys() == counts.keys() and all(0.5 < episodes[n] / share < 1.6 for n in counts)


def test_priorities_and_map_datasets_count_the_chosen_units(views: dict[str, Any]) -> None:
    """`unit` of a batch, an update, and the number of an item in a dataset are among the chosen ones."""
    view = views["odd"]
    expected = rewarded(view)
    loader = view.loader(32, weights=el.Prioritized(alpha=1.0), columns=PLACES, transitions=TEXT)
    batch = next(iter(loader))
    assert places([batch]) == [expected[unit] for unit in batch["unit"]]
    loader.update_priorities(np.arange(len(expected)), np.eye(len(expected))[2])
    assert set(places([loader.take(50)])) == {expected[2]}
    torch = pytest.importorskip("torch")
    dataset = view.loader(4, columns=PLACES, transitions=TEXT, output="torch").map_dataset()
    assert len(dataset) == len(expected)
    batches = torch.utils.data.DataLoader(dataset, batch_size=5, collate_fn=dataset.collate)
    assert places(batches) == expected


def test_a_state_of_another_choice_is_refused(views: dict[str, Any]) -> None:
    """Of all units, of another condition, and of chosen ones for all; states of before fit loaders of all."""
    view = views["all"]
    loaders = [view.loader(4, columns=PLACES, transitions=each) for each in (None, TEXT, "reward > 0.5")]
    for one in loaders:
        for other in loaders:
            if one is other:
                one.load_state_dict(other.state_dict())
            else:
                with pytest.raises(el.errors.LoaderStateError, match="transitions: "):
                    one.load_state_dict(other.state_dict())
    state = loaders[0].state_dict()
    del state["identity"]["transitions"]
    loaders[0].load_state_dict(state)
    assert places(loaders[0]) == all_places(view)


@pytest.mark.further
def test_conditions_see_the_view_and_the_next_row(views: dict[str, Any]) -> None:
    """Values of the next row, aggregates over the view, subqueries and parameters; NULL is not chosen."""
    view = views["scattered"]
    rewards = [reward for episode in view for reward in episode.rewards]
    infos = {
        (n, t)
        for n, episode in enumerate(view)
        for t, info in enumerate(episode.infos[1:])
        if info.get("battery", 0) > 0.5
    }
    above = [place for place in all_places(view) if view[place[0]].rewards[place[1]] > np.mean(rewards)]
    for condition, expected in (
        ('"next_info.battery" > 0.5', infos),
        (pl.col("next_info.battery") > 0.5, infos),
        ("reward > (SELECT avg(reward) FROM transitions)", above),
        (pl.col("reward") > pl.col("reward").mean(), above),
        (
            "episode_id IN (SELECT episode_id FROM episodes WHERE length > 4)",
            [place for place in all_places(view) if view[place[0]].length > 4],
        ),
        ("t = 0 -- the first", [(n, 0) for n in range(len(view))]),
        (pl.lit(True), all_places(view)),
    ):
        assert places(view.loader(8, columns=PLACES, transitions=condition)) == sorted(expected), condition
        assert len(view.steps_where(condition).collect()) == len(expected)
    for condition, parameters in (("t = ?", [2]), ("t = $t", {"t": 2})):
        found = view.steps_where(condition, parameters).collect()
        assert len(found) == sum(episode.length > 2 for episode in view)


def test_conditions_that_make_no_sense_are_refused(views: dict[str, Any], tmp_path: Path) -> None:
    """The error says what was wrong; where units or the rest of a loader have no such choice, it says so."""
    view = views["all"]
    (tmp_path / "other.csv").write_text("a\n1\n")
    outside = f"t IN (SELECT a FROM read_csv('{tmp_path}/other.csv'))"
    for condition, text in (
        ("rewardd > 0", "reward"),
        (pl.col("rewardd") > 0, "rewardd.*\nAvailable columns of transitions: .*reward"),
        ("reward", "gives DOUBLE"),
        (pl.col("reward"), "gives Float64"),
        ("reward > 0; DROP TABLE steps", "no SQL expression|valid"),
        ("reward > 0) OR (true", "no SQL expression|valid"),
        (outside, "no part of the store|other.csv"),
        (3, "type int was given"),
    ):
        for ask in (view.steps_where, lambda each: view.loader(transitions=each)):
            with pytest.raises(el.errors.QueryError, match=text):
                ask(condition)
    with pytest.raises(el.errors.QueryError, match="parameters="):
        view.steps_where(EXPRESSION, [1])
    for options, text in (
        ({"units": el.Episodes()}, "Episodes.. have none.*filter"),
        ({"units": el.Windows(3, pad="left")}, "pad='left'"),
        ({"cache": "stream"}, "cache='stream'"),
        ({"follow": el.Follow()}, "follow"),
        ({"transitions": "reward < -1e9"}, "No Transitions.. begins with .* reward < -1e9"),
        ({"transitions": EXPRESSION & False}, "begins with"),
        ({"transitions": "t = 1", "units": el.Windows(2, stride=2)}, "begins with"),
    ):
        with pytest.raises(el.errors.InvalidArgumentError, match=text):
            view.loader(**{"transitions": TEXT, **options})


def test_steps_of_several_agents_are_found_and_not_loaded(tmp_path: Path) -> None:
    """`steps_where` has the rows of each agent; a loader says that it cannot choose among them."""
    store = el.create(tmp_path / "turns", environments.Turns())
    with store.record(environments.Turns()) as env:
        for seed in range(2):
            plain_agents.play_turns(env, plain_agents.random_policy(env, seed), seed, 9)
    store.refresh()
    (name,) = [each for each in store.transitions.collect_schema().names() if each.endswith("reward")][:1]
    expected = store.transitions.filter(pl.col("t") % 2 == 1).collect()
    assert len(expected)
    for condition in ("t % 2 = 1", pl.col("t") % 2 == 1, f'"{name}" IS NOT NULL AND t % 2 = 1'):
        assert store.steps_where(condition).collect().equals(expected)
    group = store.agent_groups[0].name
    choices: tuple[dict[str, Any], ...] = ({"group": group}, {"joint": True})
    for options in choices:
        with pytest.raises(el.errors.InvalidArgumentError, match="single agent"):
            store.loader(transitions="t = 1", **options)


def test_transitions_without_a_next_observation_stay_left_out(tmp_path: Path) -> None:
    """A chosen last transition whose next observation is missing is loaded only where batches allow it."""
    box = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    store = el.create(tmp_path / "store", observation_space=box, action_space=gymnasium.spaces.Discrete(2))
    with store.writer() as writer:
        for missing in (True, False):
            writer.write_episode(
                observations=np.ones((3 + (not missing), 1), np.float32),
                actions=np.zeros(3, np.int64),
                rewards=np.array([1.0, 0.0, 1.0]),
                terminations=True,
                truncations=False,
                last_observation="missing" if missing else "present",
            )
    store.refresh()
    with_next = [*PLACES, "next_observation"]
    assert places(store.loader(transitions=TEXT, columns=with_next)) == [(0, 0), (1, 0), (1, 2)]
    assert places(store.loader(transitions=TEXT, columns=PLACES)) == [(0, 0), (0, 2), (1, 0), (1, 2)]
    # Their units have other numbers, so the states of either do not fit the other, chosen or not.
    for condition in (None, TEXT):
        loaders = [store.loader(transitions=condition, columns=columns) for columns in (with_next, PLACES)]
        for one, other in (loaders, loaders[::-1]):
            with pytest.raises(el.errors.LoaderStateError, match="left_out"):
                one.load_state_dict(other.state_dict())
