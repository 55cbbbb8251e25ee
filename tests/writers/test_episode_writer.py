"""The episode writer: episodes step by step, several at once, and whole ones; and each wrong way."""

from __future__ import annotations

import copy
import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el
from episodelake.testing.adapters import case
from nasty_environments import FLOATS, PUSHES, same_info
from strategies import same, stack, value_of

SPACES: dict[str, spaces.Space] = {
    "box": spaces.Box(-1, 1, (2, 3), np.float32),
    "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
    "half": spaces.Box(-1, 1, (2,), np.float16),
    "number": spaces.Box(-1, 1, (), np.float64),
    "discrete": spaces.Discrete(5, start=-2),
    "multi": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "bits": spaces.MultiBinary(4),
    "dict": spaces.Dict(
        {"b.c": spaces.Discrete(3), "a": spaces.Dict({"": spaces.Box(-1, 1, (2,), np.float32)})}
    ),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Tuple((spaces.Box(-1, 1, (1,), np.float64),)))),
    "text": spaces.Text(12),
    "sequence": spaces.Sequence(spaces.Box(-1, 1, (2,), np.float32)),
    "stacked sequence": spaces.Sequence(spaces.Discrete(9), stack=True),
    "ragged dict": spaces.Dict({"say": spaces.Text(4), "see": spaces.Box(-1, 1, (2,), np.float32)}),
    "one of": spaces.OneOf((spaces.Discrete(3), spaces.Text(3))),
    "graph": spaces.Graph(spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(4)),
}
LOOK = np.zeros(3, np.float32)
PUSH = np.zeros(2, np.float32)


def small_store(folder: Path, **arguments: Any) -> el.EpisodeStore:
    """Return an empty store of three numbers seen and two numbers done."""
    return el.create(folder / "store", observation_space=FLOATS, action_space=PUSHES, **arguments)


def look(*values: float) -> np.ndarray:
    """Return an observation."""
    return np.array(values or (0, 0, 0), np.float32)


def whole(length: int = 4, **changes: Any) -> dict[str, Any]:
    """Return the arguments of `write_episode` for an episode of `length` steps, some of them changed."""
    random = np.random.default_rng(length)
    flags = np.zeros(length, bool)
    flags[-1:] = True
    arguments = {
        "observations": random.normal(size=(length + 1, 3)).astype(np.float32),
        "actions": random.normal(size=(length, 2)).astype(np.float32),
        "rewards": random.normal(size=length),
        "terminations": flags,
        "truncations": np.zeros(length, bool),
    }
    return {**arguments, **changes}


def test_an_episode_is_written_step_by_step(tmp_path: Path) -> None:
    """What is begun, appended and ended comes back, with infos, policy, extra, seed, options and metadata."""
    store = small_store(tmp_path)
    with store.writer(run="import", metadata={"from": "tape"}) as writer:
        first = {"a": 1}, 2**90, {"o": [1]}, {"m": 1}, 3, {"x": 0}
        names = ("info", "seed", "options", "metadata", "env_index", "extra")
        episode = writer.begin(look(0, 0, 0), **dict(zip(names, first, strict=True)))
        episode.append(PUSH, 1.5, look(1, 1, 1), info={"b": "x"}, policy={"p": 0.5}, extra={"x": 1})
        episode.append(PUSH + 1, -0.5, look(2, 2, 2), truncated=True, policy={"p": 0.25}, extra={"x": 2})
        row = episode.end({"n": {"deep": True}})
        assert episode.id == row.episode_id
    stored = store.refresh()[row.episode_id]
    assert stored.observations[:, 0].tolist() == [0, 1, 2]
    assert stored.actions.tolist() == [[0, 0], [1, 1]]
    assert stored.rewards.tolist() == [1.5, -0.5]
    assert (stored.terminations.tolist(), stored.truncations.tolist()) == ([False] * 2, [False, True])
    assert stored.infos == [{"a": 1}, {"b": "x"}, {}]
    assert list(stored.policy["p"]) == [0.5, 0.25]
    assert list(stored.extra["x"]) == [0, 1, 2]
    assert (stored.seed, stored.options, stored.env_index) == (2**90, {"o": [1]}, 3)
    assert same_info(stored.metadata, {"m": 1, "n": {"deep": True}})
    assert stored.end_reason == "truncated"
    assert (row.run_id, row.number, row.length, row.episode_return) == (writer.run_id, 0, 2, 1.0)
    assert (row.terminated, row.truncated, row.end_reason, row.seed) == (False, True, "truncated", 2**90)
    assert row.metadata == stored.metadata


def test_open_episodes_stay_open_across_seals(tmp_path: Path) -> None:
    """Sealing between the appends of open episodes neither shows them early nor breaks them."""
    store = small_store(tmp_path)
    with store.writer(seal_seconds=0.05, flush_seconds=0.01) as writer:
        slow = writer.begin(look(-1, 0, 0))
        for n in range(20):
            slow.append(PUSH, 1, look(-1, n + 1, 0))
            quick = writer.begin(look(n, 0, 0))
            quick.append(PUSH, 1, look(n, 1, 0), terminated=True)
            quick.end()
            if n % 5 == 0:
                writer.seal()
                assert len(store.refresh()) == n + 1
        slow.end()
    assert len(store.refresh()) == 21
    assert sorted(episode.length for episode in store) == [1] * 20 + [20]
    assert store.steps.collect().height == 20 * 2 + 21
    longest = max(store, key=len)
    assert longest.observations[:, 1].tolist() == list(range(21))


def test_everything_handed_over_is_copied(tmp_path: Path) -> None:
    """Arrays and mappings that change after the call keep their values of the call."""
    store = small_store(tmp_path)
    seen, done, info, policy = look(1, 1, 1), PUSH.copy(), {"list": [1]}, {"p": np.ones(2)}
    metadata: dict[str, Any] = {"m": [1]}
    with store.writer() as writer:
        episode = writer.begin(seen, info, metadata=metadata, extra=policy, options=metadata)
        for changed in (seen, done, policy["p"]):
            changed[:] = 5
        info["list"].append(2)
        metadata["m"].append(2)
        episode.append(done, 0, seen, info=info, policy=policy, extra=policy)
        for changed in (seen, done, policy["p"]):
            changed[:] = 9
        info["list"].append(3)
        episode.end()
    stored = store.refresh()[0]
    assert stored.observations[:, 0].tolist() == [1, 5]
    assert stored.actions[:, 0].tolist() == [5]
    assert [list(told["list"]) for told in stored.infos] == [[1], [1, 2]]
    assert np.asarray(stored.policy["p"]).tolist() == [[5, 5]]
    assert np.asarray(stored.extra["p"]).tolist() == [[1, 1], [5, 5]]
    assert list(stored.metadata["m"]) == [1]
    assert stored.options == {"m": [1]}


def test_append_after_a_flag_is_refused(tmp_path: Path) -> None:
    """After a step that ended the episode another one raises, and the episode is as it was."""
    for number, flags in enumerate(
        [{"terminated": True}, {"truncated": True}, {"terminated": True, "truncated": True}]
    ):
        with case(flags):
            _check_append_after_a_flag_is_refused(tmp_path / str(number), flags)


def _check_append_after_a_flag_is_refused(tmp_path: Path, flags: dict[str, bool]) -> None:
    store = small_store(tmp_path)
    with store.writer() as writer:
        episode = writer.begin(LOOK)
        episode.append(PUSH, 1, LOOK, **flags)
        with pytest.raises(el.errors.RecorderStateError):
            episode.append(PUSH, 1, LOOK)
        row = episode.end()
        for again in (episode.end, lambda: episode.append(PUSH, 1, LOOK)):
            with pytest.raises(el.errors.RecorderStateError):
                again()
    assert row.length == len(store.refresh()[0]) == 1


def test_ending_without_a_step_stores_nothing(tmp_path: Path) -> None:
    """An episode of no transition cannot be ended into the store, and closing drops it."""
    store = small_store(tmp_path)
    with store.writer() as writer:
        with pytest.raises(el.errors.RecorderStateError):
            writer.begin(LOOK).end()
        writer.begin(LOOK)
        episode = writer.begin(LOOK)
        episode.append(PUSH, 1, LOOK)
        episode.end()
    assert [episode.length for episode in store.refresh()] == [1]
    assert store.steps.collect().height == 2


@pytest.mark.further
def test_long_episodes_of_any_space_are_written(tmp_path: Path) -> None:
    """`write_episode` gives many rows of each space back exactly, as lists where they have no one shape."""
    for name, space in SPACES.items():
        length = 300 if name == "graph" else 2000
        random = np.random.default_rng(1)
        space.seed(1)
        seen = stack(space, [value_of(space, random) for _ in range(length + 1)])
        done = stack(space, [value_of(space, random) for _ in range(length)])
        store = el.create(tmp_path / name, observation_space=space, action_space=space)
        with store.writer() as writer:
            row = writer.write_episode(
                observations=seen,
                actions=done,
                rewards=np.arange(length),
                terminations=False,
                truncations=True,
            )
        episode = store.refresh()[row.episode_id]
        assert same(episode.observations, seen), name
        assert same(episode.actions, done), name
        assert same(episode.rewards, np.arange(length, dtype=np.float64))
        assert episode.truncations.tolist() == [False] * (length - 1) + [True]
        assert (row.length, row.end_reason) == (length, "truncated")


def test_infos_may_be_arrays(tmp_path: Path) -> None:
    """A mapping of arrays of length T+1 becomes one info per row, of plain numbers and smaller arrays."""
    store = small_store(tmp_path)
    infos = {
        "x": np.arange(5, dtype=np.int32),
        "v": np.arange(10.0).reshape(5, 2),
        "s": ["a", "b", "c", "d", "größe"],
        "odd key.": np.array([1, 0, 1, 0, 1], bool),
    }
    with store.writer() as writer:
        writer.write_episode(**whole(4, infos=infos))
    expected = [{key: values[t] for key, values in infos.items()} for t in range(5)]
    stored = store.refresh()[0].infos
    assert len(stored) == 5
    assert all(same_info(left, right) for left, right in zip(stored, expected, strict=True))


WRONG_BULK: dict[str, dict[str, Any]] = {
    "observations too short": {"observations": np.zeros((4, 3), np.float32)},
    "observations too long": {"observations": np.zeros((6, 3), np.float32)},
    "observations of another shape": {"observations": np.zeros((5, 4), np.float32)},
    "observations flat": {"observations": np.zeros(15, np.float32)},
    "observations deeper": {"observations": np.zeros((5, 3, 1), np.float32)},
    "observations of float64": {"observations": np.zeros((5, 3))},
    "observations of text": {"observations": np.zeros((5, 3), "U1")},
    "observations a dict": {"observations": {"a": np.zeros((5, 3), np.float32)}},
    "observations none": {"observations": None},
    "observations a number": {"observations": 5.0},
    "observations objects": {"observations": np.full((5, 3), None)},
    "observations ragged": {"observations": [[0, 0, 0], [0, 0], [0], [], [1]]},
    "actions too short": {"actions": np.zeros((3, 2), np.float32)},
    "actions as long as observations": {"actions": np.zeros((5, 2), np.float32)},
    "actions of another shape": {"actions": np.zeros((4, 3), np.float32)},
    "actions of complex": {"actions": np.zeros((4, 2), np.complex64)},
    "rewards too short": {"rewards": np.zeros(3)},
    "rewards too long": {"rewards": np.zeros(5)},
    "rewards deeper": {"rewards": np.zeros((4, 2))},
    "rewards a number": {"rewards": 1.0},
    "rewards text": {"rewards": ["a", "b", "c", "d"]},
    "rewards none": {"rewards": None},
    "rewards with a hole": {"rewards": [1.0, None, 2.0, 3.0]},
    "rewards complex": {"rewards": np.zeros(4, complex)},
    "terminations too short": {"terminations": np.zeros(3, bool)},
    "terminations too long": {"terminations": np.zeros(5, bool)},
    "terminations deeper": {"terminations": np.zeros((4, 1), bool)},
    "terminations early": {"terminations": np.array([False, True, False, False])},
    "terminations early and late": {"terminations": np.array([True, False, False, True])},
    "terminations text": {"terminations": ["no", "no", "no", "yes"]},
    "terminations fractions": {"terminations": np.array([0.0, 0.0, 0.0, 0.5])},
    "truncations too short": {"truncations": np.zeros(3, bool)},
    "truncations early": {"truncations": np.array([True, False, False, False])},
    "infos too short": {"infos": [{}] * 4},
    "infos too long": {"infos": [{}] * 6},
    "infos of arrays too short": {"infos": {"x": np.zeros(4)}},
    "infos of arrays too long": {"infos": {"x": np.zeros(6)}},
    "infos of arrays, one wrong": {"infos": {"x": np.zeros(5), "y": np.zeros(4)}},
    "infos of no mappings": {"infos": [1, 2, 3, 4, 5]},
    "infos a number": {"infos": 3},
    "infos of a number": {"infos": {"x": 3}},
    "policy too short": {"policy": {"p": np.zeros(3)}},
    "policy too long": {"policy": {"p": np.zeros(6)}},
    "policy a list": {"policy": [1, 2, 3, 4]},
    "extra too short": {"extra": {"x": np.zeros(4)}},
    "extra too long": {"extra": {"x": np.zeros(6)}},
    "extra of a number": {"extra": {"x": 1}},
    "extra rows too short": {"extra": [{"x": 1}] * 4},
    "extra of no mappings": {"extra": [1, 2, 3, 4, 5]},
    "extra a number": {"extra": 3},
}


def test_each_step_may_have_own_columns_of_its_own(tmp_path: Path) -> None:
    """A mapping for each step lacks what the step has not; taken names are refused."""
    store = small_store(tmp_path)
    rows = [{"x": 1, "y": None}, None, {"x": 3}, {}, {"z": "a"}]
    with store.writer() as writer:
        writer.write_episode(**whole(4, extra=rows))
        with pytest.raises(el.errors.InvalidArgumentError, match="reward"):
            writer.write_episode(**whole(4, extra=[None] * 4 + [{"reward": 1}]))
    (stored,) = store.refresh()
    assert {name: list(values) for name, values in stored.extra.items()} == {
        "x": [1, None, 3, None, None],
        "y": [None] * 5,
        "z": [None, None, None, None, "a"],
    }


def test_a_wrong_whole_episode_is_refused_whole(tmp_path: Path) -> None:
    """A wrong length, dtype, shape or flag raises SpaceMismatchError; nothing of it is recorded."""
    store = small_store(tmp_path)
    with store.writer() as writer:
        first = writer.write_episode(**whole(4))
        for name, wrong in WRONG_BULK.items():
            with case(name), pytest.raises(el.errors.SpaceMismatchError):
                writer.write_episode(**whole(4, **wrong))
        last = writer.write_episode(**whole(6))
    assert [episode.id for episode in store.refresh()] == [first.episode_id, last.episode_id]
    assert store.steps.collect().height == 5 + 7
    assert same(store[1].observations, whole(6)["observations"])


@pytest.mark.parametrize("flags", [False, np.zeros(0, bool)])
def test_a_whole_episode_of_no_step_is_refused(tmp_path: Path, flags: Any) -> None:
    """An episode of no transition is a ValueError of the tree and leaves nothing."""
    store = small_store(tmp_path)
    with store.writer() as writer, pytest.raises(el.EpisodelakeError) as caught:
        writer.write_episode(**whole(0, terminations=flags, truncations=flags))
    assert isinstance(caught.value, ValueError)
    assert len(store.refresh()) == 0


WRONG_VALUES: list[tuple[str, Any]] = [
    ("dict", {"b.c": np.zeros(3, np.int64)}),
    (
        "dict",
        {"b.c": np.zeros(3, np.int64), "a": {"": np.zeros((3, 2), np.float32), "more": np.zeros(3)}},
    ),
    ("dict", {"b.c": np.zeros(3, np.int64), "a": {"": np.zeros((2, 2), np.float32)}}),
    ("dict", {"b.c": np.zeros(2, np.int64), "a": {"": np.zeros((3, 2), np.float32)}}),
    ("dict", [{"b.c": 0}, {"b.c": 0}, {"b.c": 0}]),
    ("tuple", (np.zeros(3, np.int64),)),
    ("tuple", (np.zeros(3, np.int64), (np.zeros((2, 1)),))),
    ("tuple", np.zeros((3, 2))),
    ("text", ["a", "b"]),
    ("text", ["a", "b", 3]),
    ("text", ["a", "b", None]),
    ("text", "abc"),
    ("sequence", [(), (), (np.zeros(3, np.float32),)]),
    ("sequence", [(), (), 5]),
    ("one of", [(0, 1), (1, "a"), (2, "b")]),
    ("one of", [(0, 1), (1, "a"), (0, "b")]),
    ("discrete", np.zeros(3)),
    ("discrete", [0, 1, 2.5]),
    ("discrete", [0, 1, 2**64]),
    ("image", np.zeros((3, 4, 4, 3), np.int64)),
    ("image", np.full((3, 4, 4, 3), 300).tolist()),
    ("image", np.full((3, 4, 4, 3), -1).tolist()),
    ("image", np.full((3, 4, 4, 3), 0.5).tolist()),
    ("bits", np.full((3, 4), 2.0)),
]


def test_wrong_nested_and_ragged_values_are_refused(tmp_path: Path) -> None:
    """Missing or additional keys, wrong lengths and values of another type raise SpaceMismatchError."""
    stores = {}
    for space, wrong in WRONG_VALUES:
        if space not in stores:
            spaces_ = {"observation_space": SPACES[space], "action_space": spaces.Discrete(2)}
            stores[space] = el.create(tmp_path / space, **spaces_)
        outcome = {"rewards": [0, 1], "terminations": True, "truncations": False}
        refused = pytest.raises(el.errors.SpaceMismatchError, match="observation")
        with case((space, wrong)), stores[space].writer() as writer, refused:
            writer.write_episode(observations=wrong, actions=[0, 1], **outcome)
    assert [len(store.refresh()) for store in stores.values()] == [0] * len(stores)


WRONG_STEP: dict[str, dict[str, Any]] = {
    "action of another shape": {"action": np.zeros(3, np.float32)},
    "action of float64": {"action": np.zeros(2)},
    "action none": {"action": None},
    "action text": {"action": "push"},
    "action objects": {"action": np.array([None, 1])},
    "action a dict": {"action": {"a": 1}},
    "observation of another shape": {"observation": np.zeros((3, 1), np.float32)},
    "observation of int64": {"observation": np.zeros(3, np.int64)},
    "observation none": {"observation": None},
    "observation ragged": {"observation": [1.0, [2.0], 3.0]},
    "observation short list": {"observation": [1.0, 2.0]},
    "reward none": {"reward": None},
    "reward text": {"reward": "1.0"},
    "reward an array": {"reward": np.zeros((1, 1))},
    "reward complex": {"reward": 1j},
    "reward too large": {"reward": 10**400},
    "info a list": {"info": [1]},
    "info a number": {"info": 1},
    "policy a list": {"policy": [1]},
    "extra a number": {"extra": 1},
}


def test_a_wrong_step_is_refused_whole(tmp_path: Path) -> None:
    """A value that does not fit raises SpaceMismatchError; nothing of it stays, in any episode."""
    store = small_store(tmp_path)
    values = {name: {"bad": 1} for name in ("info", "policy", "extra")}
    right: dict[str, Any] = {"action": PUSH, "reward": 1, "observation": look(7, 7, 7), "info": {"i": 1}}
    right.update(policy={"p": 1}, extra={"x": 1})
    refused = {**right, **values, "reward": 5, "terminated": True, "truncated": True}
    with store.writer(flush_seconds=0.01) as writer:
        for name, wrong in WRONG_STEP.items():
            episode, other = writer.begin(LOOK), writer.begin(LOOK, metadata={"other": True})
            episode.append(**right)
            with case(name), pytest.raises(el.errors.SpaceMismatchError):
                episode.append(**{**refused, **wrong})
            for _ in range(2):
                other.append(PUSH, 3, LOOK)
            episode.append(**{**right, "reward": 2})
            assert episode.end().length == other.end().length == 2, name
    assert len(store.refresh()) == 2 * len(WRONG_STEP)
    for stored in store:
        other = "other" in stored.metadata
        assert (stored.length, stored.end_reason) == (2, "cut") and not stored.terminations.any()
        assert stored.rewards.tolist() == ([3, 3] if other else [1, 2])
        assert stored.observations[:, 0].tolist() == ([0, 0, 0] if other else [0, 7, 7])
        assert stored.infos == ([{}] * 3 if other else [{}, {"i": 1}, {"i": 1}])
        assert list(stored.policy.get("p", [])) == ([] if other else [1, 1])
        assert "bad" not in stored.policy and "bad" not in stored.extra
    assert store.steps.collect().height == 6 * len(WRONG_STEP)


def test_a_wrong_first_observation_begins_nothing(tmp_path: Path) -> None:
    """A first observation that does not fit raises, and the next episode begins as if it had not been."""
    store = small_store(tmp_path)
    with store.writer() as writer:
        with pytest.raises(el.errors.SpaceMismatchError):
            writer.begin(np.zeros(4, np.float32))
        row = writer.write_episode(**whole(3))
    assert [episode.id for episode in store.refresh()] == [row.episode_id]
    assert store.steps.collect().height == 4


def test_the_error_says_what_was_wrong(tmp_path: Path) -> None:
    """A SpaceMismatchError names the column, and the shapes and dtypes expected and got."""
    store = small_store(tmp_path)
    with store.writer() as writer:
        with pytest.raises(
            el.errors.SpaceMismatchError, match=r"(?s)action.*\(2,\).*\(5,\)|action.*\(5,\).*\(2,\)"
        ):
            writer.begin(LOOK).append(np.zeros(5, np.float32), 1, LOOK)
        with pytest.raises(
            el.errors.SpaceMismatchError,
            match=r"(?s)observation.*float32.*float64|observation.*float64.*float32",
        ):
            writer.begin(np.zeros(3))


def test_a_seed_of_any_size_is_kept(tmp_path: Path) -> None:
    """Seeds of an import may be negative or wide and come back exactly."""
    store, numbers = small_store(tmp_path), [0, -1, -(2**63), 2**63, -(2**100), None]
    with store.writer() as writer:
        assert [writer.write_episode(**whole(2, seed=seed)).seed for seed in numbers] == numbers
    assert [episode.seed for episode in store.refresh()] == numbers


def test_plain_python_numbers_and_lists_are_taken(tmp_path: Path) -> None:
    """Observations and actions may be plain lists of numbers, and a narrower dtype that casts safely."""
    store = small_store(tmp_path)
    with store.writer() as writer:
        episode = writer.begin([0, 1, 2])
        episode.append((0.5, 1), 1, np.array([1, 2, 3], np.float16))
        episode.append(np.array([1, 2], np.int8), True, [0.1, float("nan"), float("inf")])
        episode.end()
    stored = store.refresh()[0]
    assert same(stored.observations, np.array([[0, 1, 2], [1, 2, 3], [0.1, np.nan, np.inf]], np.float32))
    assert same(stored.actions, np.array([[0.5, 1], [1, 2]], np.float32))


def test_a_long_episode_beside_short_ones(tmp_path: Path) -> None:
    """A whole episode of 300,000 steps, larger than a row group, stands between short ones unharmed."""
    store = small_store(tmp_path)
    with store.writer() as writer:
        for length in (2, 300_000, 3):
            writer.write_episode(**whole(length))
    assert [episode.length for episode in store.refresh()] == [2, 300_000, 3]
    for episode in store:
        assert same(episode.observations, whole(episode.length)["observations"])
        assert same(episode.rewards, whole(episode.length)["rewards"])
    assert store.sql("select sum(t) from steps").fetchall()[0][0] == sum(
        n * (n + 1) // 2 for n in (2, 300_000, 3)
    )


def test_many_short_episodes(tmp_path: Path) -> None:
    """Thousands of episodes of one step land in few files and keep their order."""
    store = small_store(tmp_path)
    with store.writer() as writer:
        for number in range(3000):
            episode = writer.begin(look(number, 0, 0))
            episode.append(PUSH, number, look(number, 1, 0), terminated=True)
            episode.end()
    assert [episode.episode_return for episode in store.refresh()] == list(range(3000))
    assert len(list((tmp_path / "store" / "steps").glob("*.parquet"))) < 10


def test_rows_of_infos_are_any_sequence(tmp_path: Path) -> None:
    """Infos are mappings in a list, a tuple or an iterator."""
    for number, form in enumerate([list, tuple, iter]):
        with case(form):
            _check_rows_of_infos_are_any_sequence(tmp_path / str(number), form)


def _check_rows_of_infos_are_any_sequence(tmp_path: Path, form: Any) -> None:
    box = spaces.Box(-1, 1, (1,))
    store = el.create(tmp_path / "store", observation_space=box, action_space=box)
    with store.writer() as writer:
        writer.write_episode(
            observations=np.zeros((3, 1), np.float32),
            actions=np.zeros((2, 1), np.float32),
            rewards=[1.0, 2.0],
            terminations=[False, True],
            truncations=False,
            infos=form([{"a": 1}, None, {"a": 3}]),
        )
    (episode,) = store.refresh()
    assert episode.infos == [{"a": 1}, {}, {"a": 3}]


def test_writers_are_neither_copied_nor_pickled(tmp_path: Path) -> None:
    """Nor are open episodes; copy, deepcopy and pickle raise an error of the tree, and writing goes on."""
    store = small_store(tmp_path)
    with store.writer() as writer:
        episode = writer.begin(LOOK)
        for thing, attempt in itertools.product((writer, episode), (copy.copy, copy.deepcopy, pickle.dumps)):
            with pytest.raises(el.errors.RecorderStateError, match=type(thing).__name__):
                attempt(thing)
        episode.append(PUSH, 1, LOOK)
    assert len(store.refresh()) == 1
