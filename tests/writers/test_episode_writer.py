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
from strategies import same

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
