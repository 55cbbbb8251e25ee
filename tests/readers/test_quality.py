"""`view.quality` against plain loops over the episodes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from gymnasium import spaces

import episodelake as el
from effort import some, with_folders
from episodelake.testing.adapters import case

GAMMA = 0.9


def fill(path: Path) -> el.EpisodeStore:
    """Two runs of a grid walk, with a copied episode, a nearly copied one, and one of a single step."""
    store = el.create(
        path,
        observation_space=spaces.Box(-9, 9, (2,), np.float32),
        action_space=spaces.Discrete(3),
    )
    random = np.random.default_rng(3)
    for run in ("a", "b"):
        with store.writer(run=run) as writer:
            for number in range(6):
                length = 1 if number == 5 else 40
                whole = {
                    "observations": random.integers(-3, 4, (length + 1, 2)).astype(np.float32),
                    "actions": random.integers(0, 3, length),
                    "rewards": random.normal(size=length),
                }
                for copy in range({0: 2, 1: 2}.get(number, 1)):
                    if copy and number:
                        whole["rewards"] = whole["rewards"] + 1
                        whole["observations"][0] += 1
                    writer.write_episode(
                        **whole,
                        terminations=True,
                        truncations=False,
                        metadata={"level": number % 2},
                    )
    return store.refresh()


def by_loop(episodes: list[el.Episode]) -> dict[str, float]:
    """The measures of some episodes, worked out step by step."""
    returns, pairs, seen, near, copies, resemble = [], set(), [], [], 0, 0
    for episode in episodes:
        returns.append(sum(GAMMA**t * float(reward) for t, reward in enumerate(episode.rewards)))
        own = {(*map(float, episode.observations[t]), int(episode.actions[t])) for t in range(episode.length)}
        pairs |= own
        rows = (episode.observations.tobytes(), episode.actions.tobytes(), episode.rewards.tobytes())
        copies += rows in seen
        seen.append(rows)
        resemble += any(len(own & other) / len(own | other) > 0.9 for other in near)
        near.append(own)
    mean, least = sum(returns) / len(returns), min(returns)
    return {
        "episodes": len(episodes),
        "transitions": sum(episode.length for episode in episodes),
        "average_return": mean,
        "trajectory_quality": (mean - 2.0) / 6.0,
        "estimated_return_improvement": (max(returns) - mean) / (mean - least) if mean > least else 0.0,
        "unique_state_actions": len(pairs),
        "duplicates": copies,
        "near_duplicates": resemble,
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """One for all tests of this file, which only read it."""
    return fill(tmp_path_factory.mktemp("quality") / "store")


@pytest.mark.parametrize("by", [(), "name", ("name", "metadata.level")])
def test_measures_of_groups_equal_a_loop(store: el.EpisodeStore, by: str | tuple[str, ...]) -> None:
    """One row for each group, in the order of the groups."""
    names = dict(store.runs.select("run_id", "name").collect().iter_rows())
    keys = {"name": lambda episode: names[episode.run_id], "metadata.level": lambda e: e.metadata["level"]}
    columns = (by,) if isinstance(by, str) else by
    groups: dict[tuple, list[el.Episode]] = {}
    for episode in store:
        groups.setdefault(tuple(keys[name](episode) for name in columns), []).append(episode)
    found = store.quality(by, gamma=GAMMA, scores=(2.0, 8.0))
    assert found.select(columns).rows() == (
        sorted(groups) if columns else [()] * 0 or found.select([]).rows()
    )
    everything = by_loop(list(store))["unique_state_actions"]
    for row, key in zip(found.iter_rows(named=True), sorted(groups), strict=True):
        expected = by_loop(groups[key])
        assert {name: row[name] for name in expected} == pytest.approx(expected), key
        share = expected["unique_state_actions"] / everything
        assert row["state_action_coverage"] == pytest.approx(share)


def test_scores_come_from_the_card(tmp_path: Path) -> None:
    """Those of the call count before; without any there is no trajectory quality."""
    store = fill(tmp_path / "store")
    assert store.quality()["trajectory_quality"].to_list() == [None]
    store.card = {"ref_min_score": 1.0, "ref_max_score": 3.0}
    row = store.quality().row(0, named=True)
    assert row["trajectory_quality"] == pytest.approx((row["average_return"] - 1) / 2)


def test_states_of_an_expression(store: el.EpisodeStore) -> None:
    """Coverage of another view, by a state that the caller makes up."""
    half = store.filter("number < 4")
    found = half.quality(state="observation[1] > 0", reference=store)
    own = {
        (episode.observations[t, 0] > 0, episode.actions[t])
        for episode in half
        for t in range(episode.length)
    }
    assert found["unique_state_actions"].item() == len(own) == 6
    assert found["state_action_coverage"].item() == 1.0
    with pytest.raises(el.errors.QueryError, match="observatio"):
        store.quality(state="observatio")


def entropy_by_loop(states: np.ndarray, alpha: float, k: int) -> float:
    """The formula, state by state."""
    radii = [sorted(math.dist(one, other) for other in states)[k - 1] for one in states]
    mean = sum(radii) / len(radii)
    b = math.log(states.shape[1]) ** (1 - alpha)
    total = 0.0
    for radius in radii:
        r = radius / mean
        w = b * math.log(r + 1) ** alpha
        total += r * math.exp(-w) * w
    return total / len(radii)


@pytest.mark.further
def test_behavioural_entropy_equals_its_formula(tmp_path: Path) -> None:
    """Over all states where there are fewer than the sample; else the seed decides."""
    space = spaces.Dict({"a": spaces.Box(-9, 9, (3,), np.float64), "b": spaces.Discrete(7)})
    store = el.create(tmp_path / "store", observation_space=space, action_space=spaces.Discrete(2))
    random = np.random.default_rng(0)
    with store.writer() as writer:
        writer.write_episode(
            observations={"a": random.normal(size=(301, 3)), "b": random.integers(0, 7, 301)},
            actions=[0] * 300,
            rewards=[0.0] * 300,
            terminations=True,
            truncations=False,
        )
    store.refresh()
    observations = store[0].observations
    states = np.column_stack([observations["a"][:-1], observations["b"][:-1]])
    found = store.quality(alpha=0.5, neighbours=7)["behavioural_entropy"].item()
    assert found == pytest.approx(entropy_by_loop(states, 0.5, 7))
    few = [store.quality(samples=100, seed=seed)["behavioural_entropy"].item() for seed in (1, 1, 2)]
    assert few[0] == few[1] != few[2]
    assert store.quality(state='"observation.b"')["behavioural_entropy"].item() == 0.0
    assert store.quality(state="'text'")["behavioural_entropy"].item() is None


def test_columns_with_the_names_of_the_queries(tmp_path: Path) -> None:
    """A user's columns named like the parts of our statements change nothing."""
    store = el.create(
        tmp_path / "store", observation_space=spaces.Discrete(3), action_space=spaces.Discrete(2)
    )
    names = ["pair", "row", "grouped", "group", "value", "place", "state", "signature", "rows", "xored"]
    with store.writer(metadata={name: 1 for name in names}) as writer:
        for number in range(2):
            writer.write_episode(
                observations=[0, 1, 2],
                actions=[0, 1],
                rewards=[1.0, 1.0],
                terminations=True,
                truncations=False,
                extra={name: [7.0, 8.0, number] for name in names},
                metadata={name: number for name in names},
            )
    store.refresh()
    for by in ((), [f"metadata.{name}" for name in names]):
        found = store.quality(by)
        assert found["transitions"].sum() == 4 and found["unique_state_actions"].to_list()[0] == 2
    store.annotate(pl.DataFrame({"episode_id": [each.id for each in store], "grouped": [1, 2]}))
    assert store.quality("grouped")["grouped"].to_list() == [1, 2]


def test_what_cannot_be_measured_is_refused(store: el.EpisodeStore, tmp_path: Path) -> None:
    """With a reason."""
    store.annotate(pl.DataFrame({"episode_id": [store[0].id], "duplicates": [1]}))
    with pytest.raises(el.errors.InvalidArgumentError, match="name of a measure"):
        store.quality("duplicates")
    with pytest.raises(el.errors.InvalidArgumentError, match="run_id"):
        store.quality("run_ids")
    with pytest.raises(el.errors.InvalidArgumentError, match="no episode"):
        store.filter("length > 1000").quality()
    many = el.create(
        tmp_path / "store",
        observation_space=spaces.Discrete(3),
        action_space=spaces.Discrete(2),
        reward_shape=(2,),
    )
    with pytest.raises(el.errors.InvalidArgumentError, match="several objectives"):
        many.quality()


_ARGUMENTS_OUT_OF_RANGE_ARE_REF: Any = [
    *[("gamma", value) for value in (-0.1, 1.1, math.nan, True, "1", None, [0.9], np.float64("inf"))],
    *[("alpha", value) for value in (-1.0, math.nan, math.inf, np.bool_(True), "0.7", None)],
    *[("neighbours", value) for value in (0, 1, -3, 2.0, True, "2", None, 2**63)],
    *[("samples", value) for value in (0, 1, 2.5, False, np.float32(9), "9", 10**30)],
    *[("seed", value) for value in (-1, 0.0, True, "0", None)],
    *[("scores", value) for value in ((5, 5), (9, 1), (1,), (0, math.nan), "01", 3, ("0", "1"))],
]


@pytest.mark.parametrize("cases", some(_ARGUMENTS_OUT_OF_RANGE_ARE_REF, 14))
def test_arguments_out_of_range_are_refused(tmp_path: Path, cases: Any) -> None:
    """A wrong argument is refused by its name before anything is computed."""
    for folder, (name, value) in with_folders(cases, tmp_path):
        with case((name, value)), pytest.raises(el.errors.InvalidArgumentError, match=name):
            fill(folder / "store").quality(**{name: value})  # pyright: ignore[reportArgumentType]


def test_numpy_scalars_are_numbers(tmp_path: Path) -> None:
    """Scalars of NumPy give what Python's numbers give."""
    store = fill(tmp_path / "store")
    given = store.quality(
        gamma=np.float64(GAMMA),
        alpha=np.float64(0.5),
        neighbours=np.int8(3),  # pyright: ignore[reportArgumentType]
        samples=np.uint16(50),  # pyright: ignore[reportArgumentType]
        seed=np.int64(2),  # pyright: ignore[reportArgumentType]
        scores=tuple(np.array([0.0, 2.0])),  # pyright: ignore[reportArgumentType]
    )
    expected = store.quality(gamma=GAMMA, alpha=0.5, neighbours=3, samples=50, seed=2, scores=(0.0, 2.0))
    assert given.equals(expected) and given["behavioural_entropy"].item() > 0


@pytest.mark.parametrize(
    "space",
    [
        spaces.Sequence(spaces.Discrete(3)),
        spaces.OneOf((spaces.Discrete(3), spaces.Box(0, 1, (2,)))),
        spaces.Dict({}),
        spaces.Box(0, 1, (0,)),
    ],
)
def test_states_that_are_no_points_have_no_entropy(tmp_path: Path, space: spaces.Space) -> None:
    """States of no, of several and of unequal dimensions give NULL."""
    store = el.create(tmp_path / "store", observation_space=space, action_space=spaces.Discrete(2))
    space.seed(0)
    with store.writer() as writer:
        episode = writer.begin(space.sample())
        for _ in range(6):
            episode.append(0, 1.0, space.sample())
        episode.end()
    measured = store.refresh().quality()
    assert measured.select("transitions", "behavioural_entropy").row(0) == (6, None)


def test_null_states_have_no_entropy(tmp_path: Path) -> None:
    """A state that is NULL at times gives NULL."""
    measured = fill(tmp_path / "store").quality(state="CASE WHEN t = 0 THEN NULL ELSE t END")
    assert measured["behavioural_entropy"].item() is None


def test_progress_counts_passes(store: el.EpisodeStore) -> None:
    """The progress is called with growing numbers, up to all passes."""
    calls: list[tuple[int, int]] = []
    store.quality(progress=lambda done, total: calls.append((done, total)))
    assert calls == [(done, 4) for done in range(5)]
