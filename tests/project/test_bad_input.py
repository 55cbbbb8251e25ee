"""Bad input: damaged and missing files, wrong paths, wrong values, bad queries, full disks, closed doors.

Each gets an error of the library's tree that says where the fault is, and costs nothing that was recorded.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import VectorEnv

import episodelake as el
import independent_journal
from agent_environments import Comings, Turns
from effort import some, with_folders
from episodelake.testing.adapters import case
from nasty_environments import (
    Nested,
    Rollout,
    SmallEnv,
    WrongAt,
    assert_recorded,
    new_store,
    play,
    seeds,
)
from pools import Pool
from strategies import same
from test_fuzzing import changed
from waiting import PATIENCE, journals

PUSH = np.zeros(2, np.float32)
RUNS = 3
TESTS = str(Path(__file__).parents[1])


@pytest.fixture(scope="module")
def whole_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of three runs with two episodes each; tests work on copies."""
    folder = tmp_path_factory.mktemp("whole")
    store = new_store(folder, SmallEnv())
    for run in range(RUNS):
        with store.record(SmallEnv(300), run=f"run{run}") as recorder:
            play(recorder, seeds(2 * run, 2 * run + 1))
    return folder / "store"


@pytest.fixture
def path(whole_store: Path, tmp_path: Path) -> Path:
    """A copy of that store."""
    return Path(shutil.copytree(whole_store, tmp_path / "store"))


def truth() -> list[Rollout]:
    """What the six episodes of `whole_store` are."""
    return [play(SmallEnv(300), seeds(2 * run, 2 * run + 1))[k] for run in range(RUNS) for k in range(2)]


def numbers(path: Path) -> dict[int, tuple[np.ndarray, ...]]:
    """Read all episodes: by seed, their observations, actions, rewards and flags."""
    return {
        episode.seed: (episode.observations, episode.actions, episode.rewards, episode.terminations)
        for episode in el.open(path)
        if episode.seed is not None
    }


# Flags and masks, wherever values come in

SEEN = np.zeros(3, np.float32)
NO_FLAGS = ["False", "", b"x", 2, -1, 0.5, float("nan"), None, [True], np.array([0, 1]), np.ma.masked]
HIDDEN = np.ma.array([1, 777, 2], mask=[False, True, False], dtype=np.float32)
HIDDEN_PUSH = HIDDEN[:2]
WHOLE = {
    "observations": np.zeros((3, 3), np.float32),
    "actions": np.zeros((2, 2), np.float32),
    "rewards": [1.0, 2.0],
    "terminations": True,
    "truncations": False,
}


class Saying(SmallEnv):
    """An environment whose second step ends with what it is made with, in place of its own."""

    def __init__(self, **says: Any) -> None:
        super().__init__()
        self.says = says

    def step(self, action: Any) -> Any:
        """Step, and say it at the second step."""
        result = super().step(action)
        names = ("observation", "reward", "terminated", "truncated", "info")
        return tuple(self.says.get(n, v) if self.t == 2 else v for n, v in zip(names, result, strict=True))


class SayingBatches(VectorEnv):
    """Two environments as a batch, whose second step says what it is made with."""

    def __init__(self, **says: Any) -> None:
        self.metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}
        self.num_envs = 2
        self.single_observation_space = SmallEnv().observation_space
        self.single_action_space = SmallEnv().action_space
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, 2)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, 2)
        self.says, self.t = says, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Begin."""
        return np.zeros((2, 3), np.float32), {}

    def step(self, actions: Any) -> Any:
        """Step, and say it at the second step."""
        self.t += 1
        plain = {
            "observation": np.zeros((2, 3), np.float32),
            "reward": np.ones(2),
            "terminated": np.zeros(2, bool),
            "truncated": np.zeros(2, bool),
            "info": {},
        }
        return tuple((plain | (self.says if self.t == 2 else {})).values())


def append(store: el.EpisodeStore, **says: Any) -> None:
    """Append two steps; the second has these values."""
    with store.writer() as writer:
        episode = writer.begin(SEEN)
        episode.append(PUSH, 1.0, SEEN)
        plain = {"action": PUSH, "reward": 1.0, "observation": SEEN, "terminated": False, "truncated": False}
        episode.append(**plain | says)


def write(store: el.EpisodeStore, **says: Any) -> None:
    """Write a whole episode with these values."""
    with store.writer() as writer:
        writer.write_episode(**WHOLE | says)


def record(store: el.EpisodeStore, **says: Any) -> None:
    """Record an environment that says them."""
    with store.record(Saying(**says)) as recorder:
        take_two(recorder)


def record_batches(store: el.EpisodeStore, **says: Any) -> None:
    """Record a vector environment that says them."""
    with store.record(SayingBatches(**says)) as recorder:
        recorder.reset()
        recorder.step(np.zeros((2, 2), np.float32))
        recorder.step(np.zeros((2, 2), np.float32))


def take_two(env: Any) -> None:
    """Reset and take two steps."""
    env.reset(seed=0)
    env.step(PUSH)
    env.step(PUSH)


def answer(store: el.EpisodeStore, **says: Any) -> None:
    """Record with a step callback that changes them."""

    def changed(step: el.types.StepData) -> el.types.StepData:
        return dataclasses.replace(step, **says) if step.t == 2 else step

    with store.record(SmallEnv(), step_callback=changed) as recorder:
        take_two(recorder)


_WHAT_IS_NO_FLAG_IS_REFUSED: Any = [
    *itertools.product(NO_FLAGS, ["terminated", "truncated"], [append, write, record, record_batches, answer])
]


@pytest.mark.parametrize("cases", some(_WHAT_IS_NO_FLAG_IS_REFUSED))
def test_what_is_no_flag_is_refused(tmp_path: Path, cases: Any) -> None:
    """A flag is a boolean, or 0 or 1: nothing else becomes True or False, on any way in."""
    for folder, (given, name, way) in with_folders(cases, tmp_path):
        with case((given, name, way)):
            store = new_store(folder, SmallEnv())
            if way is write:
                name = {"terminated": "terminations", "truncated": "truncations"}[name]
            if way in (write, record_batches) and np.ndim(given):
                given = [0.5, 0]
            if way is record_batches and np.ndim(given) == 0:
                given = [given, given]
            refused = pytest.raises(
                (el.errors.SpaceMismatchError, el.errors.InvalidArgumentError),
                match=r"expected (True or|bool)|mask",
            )
            with refused:
                way(store, **{name: given})
            assert all(episode.length == 1 for episode in store.refresh())


def test_one_and_zero_are_flags(tmp_path: Path) -> None:
    """Whatever type of number says it, 1 is a flag that is set."""
    for number, (given, way) in enumerate(
        itertools.product(
            [True, 1, 1.0, np.True_, np.int8(1), np.float32(1), np.array(1), np.array([True])],
            [append, record],
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        with case((given, way)):
            store = new_store(folder, SmallEnv())
            way(
                store, terminated=given, truncated=given.dtype.type(0) if isinstance(given, np.generic) else 0
            )
            (episode,) = store.refresh()
            assert episode.terminations.tolist() == [False, True] and not episode.truncations.any()


def test_masked_arrays_are_refused(tmp_path: Path) -> None:
    """No column keeps a mask, so an array with a masked element is refused on every way in."""
    cases: list[Any] = [
        (append, {"observation": HIDDEN}),
        (append, {"observation": list(HIDDEN)}),
        (append, {"action": HIDDEN_PUSH}),
        (append, {"reward": np.ma.masked}),
        (append, {"info": {"m": HIDDEN}}),
        (append, {"info": {"deep": [{"m": HIDDEN}]}}),
        (append, {"policy": {"m": HIDDEN}}),
        (append, {"extra": {"m": HIDDEN}}),
        (write, {"observations": np.ma.array(np.zeros((3, 3), np.float32), mask=np.eye(3))}),
        (write, {"observations": [SEEN, SEEN, HIDDEN]}),
        (write, {"actions": np.ma.array(np.zeros((2, 2), np.float32), mask=np.eye(2))}),
        (write, {"rewards": HIDDEN_PUSH}),
        (write, {"infos": [None, None, {"m": HIDDEN}]}),
        (write, {"policy": {"m": HIDDEN_PUSH}}),
        (write, {"extra": {"m": np.ma.array(np.zeros((3, 2)), mask=np.eye(3, 2))}}),
        (write, {"metadata": {"m": HIDDEN}}),
        (write, {"options": {"m": HIDDEN}}),
        (record, {"observation": HIDDEN}),
        (record, {"info": {"m": HIDDEN}}),
        (record_batches, {"observation": np.ma.array(np.zeros((2, 3), np.float32), mask=np.eye(2, 3))}),
        (record_batches, {"reward": HIDDEN_PUSH}),
        (record_batches, {"info": {"m": HIDDEN_PUSH}}),
        (record_batches, {"info": {"m": [HIDDEN, SEEN], "deep": {"m": HIDDEN_PUSH}}}),
        (answer, {"observation": HIDDEN}),
        (answer, {"extra": {"m": HIDDEN}}),
    ]
    for folder, (way, says) in with_folders(cases, tmp_path):
        with case((way, says)):
            store = new_store(folder, SmallEnv())
            with pytest.raises(
                el.errors.SpaceMismatchError, match=r"masked array with [123] masked elements"
            ):
                way(store, **says)
            assert all(episode.length == 1 for episode in store.refresh())


def test_arrays_without_a_masked_element_are_arrays(tmp_path: Path) -> None:
    """An array of numpy.ma that hides nothing is recorded as it stands."""
    store = new_store(tmp_path, SmallEnv())
    append(store, observation=np.ma.array([1, 2, 3], dtype=np.float32), info={"m": np.ma.array([3, 4])})
    (episode,) = store.refresh()
    assert episode.observations[2].tolist() == [1, 2, 3]
    assert type(episode.infos[2]["m"]) is np.ndarray and episode.infos[2]["m"].tolist() == [3, 4]


# Wrong values while recording


_WHAT_THE_ENVIRONMENT_GIVES_MUS: Any = [
    ("observation", np.zeros(4, np.float32)),
    ("observation", np.zeros((1, 3), np.float32)),
    ("observation", np.zeros(3, np.float64)),
    ("observation", np.zeros(3, np.int64)),
    ("observation", np.array(["a", "b", "c"])),
    ("observation", np.array([None] * 3)),
    ("observation", None),
    ("observation", "abc"),
    ("observation", {"a": 1}),
    ("observation", [1.0, 2.0]),
    ("reward", None),
    ("reward", "1"),
    ("reward", np.zeros((1, 1))),
    ("reward", np.zeros(2)),
    ("reward", 1j),
    ("reward", 10**400),
    ("reward", [1.0]),
]


@pytest.mark.parametrize("cases", some(_WHAT_THE_ENVIRONMENT_GIVES_MUS, 6))
def test_what_the_environment_gives_must_fit(tmp_path: Path, cases: Any) -> None:
    """A wrong observation or reward raises SpaceMismatchError naming it; the episode up to there is kept."""
    for folder, (what, wrong) in with_folders(cases, tmp_path):
        with case((what, wrong)):
            env = WrongAt(wrong, what, 3)
            store = new_store(folder, env)
            with store.record(env) as recorder:
                with pytest.raises(el.errors.SpaceMismatchError, match=what):
                    play(recorder, seeds(1))
                env.when = -1
                after = play(recorder, seeds(2))
            assert [episode.length for episode in store.refresh()] == [2, 8]
            assert_recorded(store[0], play(SmallEnv(8), seeds(1))[0].cut(2), env, "cut")
            assert_recorded(store[1], after[0], env)
            assert store.steps.collect().height == 3 + 9


@pytest.mark.parametrize("info", [5, [1], "text", None])
def test_an_info_that_is_no_mapping_costs_nothing(tmp_path: Path, info: Any) -> None:
    """An info that is no mapping is an error of the tree or read as empty; the steps before are kept."""
    env = WrongAt(info, "info", 3)
    store = new_store(tmp_path, env)
    try:
        with store.record(env) as recorder:
            play(recorder, seeds(1))
    except el.EpisodelakeError:
        pass
    episode = store.refresh()[0]
    assert same(episode.rewards[:2], np.array(play(SmallEnv(8), seeds(1))[0].rewards[:2]))
    assert store.steps.collect().height == episode.length + 1


def test_a_wrong_first_observation_starts_nothing(tmp_path: Path) -> None:
    """A reset whose observation does not fit raises; nothing is stored, and the next reset starts afresh."""
    env = WrongAt(np.zeros(5), "observation", 0)
    store = new_store(tmp_path, env)
    with store.record(env) as recorder:
        with pytest.raises(el.errors.SpaceMismatchError, match="observation"):
            recorder.reset(seed=1)
        with pytest.raises(el.errors.RecorderStateError):
            recorder.step(PUSH)
        env.when = -1
        plain = play(recorder, seeds(2))
    assert len(store.refresh()) == 1
    assert_recorded(store[0], plain[0], env)


# Paths


@pytest.mark.parametrize(
    "kind", ["nothing", "empty folder", "folder of others", "file", "through a file", "inner folder"]
)
def test_opening_what_is_no_store_is_refused(path: Path, tmp_path: Path, kind: str) -> None:
    """A path without a store is a StoreNotFoundError naming the path; nothing is made there."""
    target = tmp_path / "else"
    if kind == "empty folder":
        target.mkdir()
    elif kind == "folder of others":
        (target / "steps").mkdir(parents=True)
    elif kind == "file":
        target.write_text("text")
    elif kind == "through a file":
        (tmp_path / "file").write_text("text")
        target = tmp_path / "file" / "store"
    elif kind == "inner folder":
        target = path / "steps"
    before = sorted(tmp_path.rglob("*"))
    for call in (el.open, el.recover):
        with pytest.raises(el.errors.StoreNotFoundError) as caught:
            call(target)
        assert str(target) in str(caught.value)
        assert isinstance(caught.value, FileNotFoundError)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "options",
    [
        {"durability": "maybe"},
        {"flush_seconds": -1},
        {"seal_seconds": "x"},
        {"segment_bytes": 0},
        {"run": 5},
        {"metadata": 5},
    ],
)
def test_wrong_settings_of_a_recording_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    """A setting that means nothing is an error of the tree and leaves no run behind."""
    store = new_store(tmp_path, SmallEnv())
    for call in (lambda: store.record(SmallEnv(), **options), lambda: store.writer(**options)):
        with pytest.raises(el.EpisodelakeError):
            call()
    assert store.refresh().runs.collect().height == 0


@pytest.mark.parametrize("name", ["step_callback", "episode_callback"])
@pytest.mark.parametrize("kind", ["single", "vector", "pool", "parallel", "aec"])
def test_a_callback_that_is_no_function_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    """By every recorder, when it is made; no run begins."""
    makers: dict[str, Callable[[], Any]] = {
        "single": SmallEnv,
        "vector": lambda: gym.vector.SyncVectorEnv([SmallEnv]),
        "pool": lambda: Pool([SmallEnv()], 1),
        "parallel": Comings,
        "aec": Turns,
    }
    env = makers[kind]()
    store = el.create(tmp_path / "store", env)
    with pytest.raises(el.errors.InvalidArgumentError, match=f"{name}='x' is of type str"):
        store.record(env, **{name: "x"})
    assert not journals(store.path) and store.refresh().runs.collect().height == 0


# Versions and queries


@pytest.mark.parametrize("version", ["1", 1.5, [1]])
def test_a_version_that_is_no_number_is_refused(path: Path, version: Any) -> None:
    """A version of another type is an error of the tree."""
    with pytest.raises(el.EpisodelakeError):
        el.open(path, version=version)


@pytest.mark.parametrize("key", [1.5, None, (1, 2), b"x", {0}])
def test_a_key_of_another_type_is_refused(path: Path, key: Any) -> None:
    """An episode cannot be looked up by another type; the error is of the tree or a plain TypeError."""
    with pytest.raises((el.EpisodelakeError, TypeError)):
        el.open(path)[key]


@pytest.mark.parametrize("condition", [5, None, ["length > 1"], lambda row: True])
def test_a_condition_of_another_type_is_refused(path: Path, condition: Any) -> None:
    """A filter by something else is an error of the tree."""
    with pytest.raises(el.EpisodelakeError):
        el.open(path).filter(condition)


# Damaged files


def parquet(path: Path, table: str, number: int = 1) -> Path:
    """Return one Parquet file of a table."""
    return sorted((path / table).glob("*.parquet"))[number]


def damaged(file: Path) -> Iterator[str]:
    """Damage a file in each way in turn; say how."""
    whole = file.read_bytes()
    for size in (0, 1, 4, len(whole) // 2, len(whole) - 9, len(whole) - 1):
        file.write_bytes(whole[:size])
        yield f"cut to {size} of {len(whole)} bytes"
    for start in (len(whole) - 8, len(whole) - 4):
        file.write_bytes(whole[:start] + b"\xff" * 4 + whole[start + 4 :])
        yield f"four bytes at {start} overwritten"
    file.write_bytes(bytes(len(whole)))
    yield "zeroed"
    file.write_bytes(whole[::-1])
    yield "reversed"
    file.write_bytes(whole + b"more")
    yield "something appended"
    file.unlink()
    yield "gone"
    file.mkdir()
    yield "a folder"
    file.rmdir()
    file.write_bytes(whole)


def test_a_damaged_steps_file_is_named_and_costs_only_its_own_episodes(path: Path) -> None:
    """However a steps file is damaged, its episodes raise an error naming it; others are read."""
    file = parquet(path, "steps")
    plain = truth()
    for how in damaged(file):
        store = el.open(path)
        assert len(store) == 6, how
        lost = 0
        for position in range(6):
            episode_or_error: Any = None
            try:
                episode_or_error = store[position].observations
            except el.errors.CorruptStoreError as error:
                lost += 1
                assert file.name in str(error), how
                continue
            assert same(episode_or_error, np.array(plain[position].observations)), how
        assert lost in (0, 2) if how == "something appended" else lost == 2, how
    assert len(numbers(path)) == 6


def test_a_damaged_episodes_file_is_named(path: Path) -> None:
    """However an episodes file is damaged, opening or reading raises CorruptStoreError naming it."""
    file = parquet(path, "episodes")
    for how in damaged(file):
        with pytest.raises(el.errors.CorruptStoreError) as caught:
            numbers(path)
            if how == "something appended":
                raise el.errors.CorruptStoreError(str(file))
        assert file.name in str(caught.value), how
    assert len(numbers(path)) == 6


@pytest.mark.parametrize("count", [15, pytest.param(60, marks=pytest.mark.further)])
@pytest.mark.parametrize("table", ["steps", "episodes"])
def test_no_flipped_byte_goes_unseen(path: Path, table: str, count: int) -> None:
    """A changed byte anywhere in a Parquet file is an error naming the file, or changes nothing read."""
    file = parquet(path, table)
    whole = file.read_bytes()
    right = numbers(path)
    unseen, other = [], []
    for place in np.linspace(0, len(whole) - 1, count).astype(int):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            if not same(numbers(path), right):
                unseen.append(int(place))
        except el.errors.CorruptStoreError as error:
            assert file.name in str(error)
        except Exception as error:
            other.append((int(place), repr(error)[:80]))
    assert (unseen, other) == ([], [])


@pytest.mark.parametrize("table", ["steps", "episodes", "runs"])
@pytest.mark.parametrize("how", ["empty", "garbage", "json of something else", "gone", "table gone"])
def test_a_damaged_table_log_is_named(path: Path, table: str, how: str) -> None:
    """A table whose log is damaged or gone gives an error naming it, or answers rightly."""
    log = path / table / "_delta_log"
    last = sorted(log.glob("*.json"))[-1]
    if how == "table gone":
        shutil.rmtree(path / table)
    elif how == "gone":
        shutil.rmtree(log)
    else:
        last.write_text(
            {"empty": "", "garbage": "\x00\x01{{", "json of something else": '{"add": 5}\n[1]\n'}[how]
        )
    try:
        found = numbers(path)
        el.open(path).runs.collect()
    except el.errors.CorruptStoreError as error:
        assert table in str(error)
    else:
        assert set(found) <= set(range(6))
        assert all(same(found[seed][0], np.array(truth()[seed].observations)) for seed in found)
        assert table != "episodes"


def test_a_store_without_its_journal_folder_still_works(path: Path) -> None:
    """The journal folder may be gone, as after a copy that skips empty folders: it reads and records."""
    shutil.rmtree(path / "journal")
    store = el.open(path)
    assert len(numbers(path)) == 6
    assert el.recover(path) == []
    with store.record(SmallEnv()) as recorder:
        play(recorder, seeds(77))
    assert len(store.refresh()) == 7


def test_a_truncated_store_json_is_named(path: Path) -> None:
    """Wherever `store.json` breaks off, opening raises CorruptStoreError naming it."""
    file = path / "store.json"
    text = file.read_text().rstrip()
    for size in [*range(0, len(text), 23), len(text) - 1]:
        file.write_text(text[:size])
        with pytest.raises(el.errors.CorruptStoreError, match=r"store\.json"):
            el.open(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\x01\x02",
        b"\xff\xfe{}",
        b"[]",
        b"5",
        b"null",
        b'"text"',
        b"{}",
        b"{" * 100_000,
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"format": 1}',
        b'{"format": 1, "store_id": 5, "spaces": {}}',
        b'{"format": 1, "format": 1}',
        b'{"format": ' + b"9" * 10_000 + b"}",
        b'{"format": NaN}',
        b'{"format": 1e400}',
    ],
)
def test_a_hostile_store_json_is_an_error_of_the_tree(path: Path, content: bytes) -> None:
    """Whatever stands in `store.json`, opening raises an error of the tree naming the file."""
    (path / "store.json").write_bytes(content)
    for call in (el.open, el.recover):
        with pytest.raises((el.errors.CorruptStoreError, el.errors.FormatVersionError), match=r"store\.json"):
            call(path)


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of everything in nested JSON."""
    if above:
        yield above
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*above, key))


NEW = [
    ...,
    None,
    True,
    -1,
    0,
    1.5,
    2**40,
    10**30,
    "",
    "x",
    "__import__('os')",
    "Tuple",
    "object",
    "O",
    [],
    {},
    [-1],
    [2**40],
]


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.further)])
@pytest.mark.parametrize("make", [SmallEnv, Nested])
def test_no_change_of_store_json_breaks_out_of_the_tree(
    tmp_path: Path, make: Callable[[], gym.Env], every: int
) -> None:
    """With any one value of `store.json` changed or gone, reading works or gives an error of the tree."""
    env = make()
    store = new_store(tmp_path, env)
    with store.record(env) as recorder:
        play(recorder, seeds(1))
    file = tmp_path / "store" / "store.json"
    right = json.loads(file.read_text())
    escaped = []
    for place, new in list(itertools.product(places(right), NEW))[::every]:
        file.write_text(json.dumps(changed(right, place, new)))
        try:
            opened = el.open(tmp_path / "store")
            _ = (opened[0].observations, opened[0].actions, opened[0].rewards, opened.observation_space)
        except el.EpisodelakeError:
            continue
        except BaseException as error:
            escaped.append(f"{place} = {new!r}: {error!r}"[:160])
    assert escaped == []


@pytest.mark.parametrize("version", [3, 99, 10**9])
def test_a_newer_format_is_refused(path: Path, version: int) -> None:
    """A store of a newer format raises FormatVersionError that names both versions, before anything else."""
    file = path / "store.json"
    file.write_text(json.dumps({"format": version, "something": "new"}))
    for call in (el.open, el.recover):
        with pytest.raises(el.errors.FormatVersionError, match=rf"(?s){version}"):
            call(path)
    with pytest.raises(el.errors.StoreExistsError):
        el.create(path, SmallEnv())


@pytest.mark.parametrize("version", [0, -1, "1", 1.0, True, None, [1]])
def test_a_senseless_format_is_refused(path: Path, version: Any) -> None:
    """A format that is no positive whole number is an error of the tree naming `store.json`."""
    file = path / "store.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": version}))
    with pytest.raises((el.errors.CorruptStoreError, el.errors.FormatVersionError), match=r"store\.json"):
        el.open(path)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_a_damaged_card_costs_nothing_but_the_card(path: Path, content: bytes) -> None:
    """With `card.json` damaged the episodes are read, and asking for the card names the file."""
    (path / "card.json").write_bytes(content)
    assert len(numbers(path)) == 6
    with pytest.raises(el.errors.CorruptStoreError, match=r"card\.json"):
        _ = el.open(path).card


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of three megabytes; only where this process may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if (
        not shutil.which("mount")
        or subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE).returncode
    ):
        pytest.skip("this process may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=PATIENCE)


def fill(folder: Path) -> Path:
    """Take all the space that is left."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 512, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return filler


@pytest.mark.parametrize("length", [50, 10**9])
def test_a_full_disk_loses_nothing_once_there_is_space(small_disk: Path, length: int) -> None:
    """Recording on a disk that fills up raises StoreAccessError; with space again all steps are sealed."""
    env = SmallEnv(length)
    store = new_store(small_disk, env)
    recorder = store.record(env, flush_seconds=0.02, seal_seconds=0.2)
    plain: list[Rollout] = play(recorder, seeds(1), limit=50)
    filler = fill(small_disk)
    with pytest.raises(el.errors.StoreAccessError) as caught:
        for _ in range(300):
            more = play(recorder, seeds(None), limit=1000)
            plain += more
    assert isinstance(caught.value, OSError)
    filler.unlink()
    recorder.close()
    episodes = list(store.refresh())
    assert len(episodes) >= len(plain)
    for episode, rollout in zip(episodes, plain, strict=False):
        assert_recorded(episode, rollout, env)
    for episode in episodes[len(plain) :]:
        times = episode.observations[:, 0].tolist()
        assert times == list(range(len(times)))


def test_close_on_a_full_disk_may_be_tried_again(small_disk: Path) -> None:
    """A close that finds no space raises StoreAccessError and keeps everything for the next close."""
    env = SmallEnv(2000)
    store = new_store(small_disk, env)
    recorder = store.record(env)
    plain = play(recorder, seeds(1, 2))
    filler = fill(small_disk)
    for _ in range(2):
        with pytest.raises(el.errors.StoreAccessError):
            recorder.close()
    assert len(el.open(small_disk / "store")) == 0
    filler.unlink()
    recorder.close()
    assert len(store.refresh()) == 2
    for episode, rollout in zip(store, plain, strict=True):
        assert_recorded(episode, rollout, env)


def test_no_store_is_created_on_a_full_disk(small_disk: Path) -> None:
    """Creating a store without space raises StoreAccessError, and with space again it can be created."""
    filler = fill(small_disk)
    with pytest.raises(el.errors.StoreAccessError):
        new_store(small_disk, SmallEnv())
    filler.unlink()
    try:
        store = new_store(small_disk, SmallEnv())
    except el.errors.StoreExistsError:
        store = el.open(small_disk / "store")
    assert len(store) == 0


LIMITED = """
import resource, signal, sys
import episodelake as el
import independent_journal
from nasty_environments import SmallEnv, play, seeds

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = el.open(sys.argv[1])
env = SmallEnv(int(sys.argv[2]))
done = 0
try:
    with store.record(env, flush_seconds=0.02) as recorder:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        for seed in range(10**9):
            play(recorder, seeds(seed))
            done += 1
except el.EpisodelakeError as error:
    print(type(error).__name__, done, env.stepped, flush=True)
"""


@pytest.mark.further
@pytest.mark.parametrize("length", [100, 10**9])
def test_a_file_that_cannot_grow_loses_nothing_that_was_journalled(tmp_path: Path, length: int) -> None:
    """A process whose files reach their size limit gets StoreAccessError; recovery finds what was written."""
    env = SmallEnv()
    new_store(tmp_path, env)
    result = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "store"), str(length)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert result.stdout, result.stderr
    name, done, stepped = result.stdout.split()
    assert name == "StoreAccessError"
    path = tmp_path / "store"
    sealed = sum(episode.length for episode in el.open(path))
    (journal,) = journals(path)
    left = sum(each.length for each in independent_journal.read_journal(path, journal.name)[1])
    el.recover(path)
    episodes = list(el.open(path))
    # How many steps a file of that size holds depends on how many went into a frame.
    assert 0 < sum(episode.length for episode in episodes) == sealed + left <= int(stepped)
    for number, episode in enumerate(episodes):
        plain = play(SmallEnv(length), seeds(number), limit=episode.length)[0]
        assert episode.seed == number
        assert same(episode.observations[:, [0, 2]], np.array(plain.observations)[:, [0, 2]])
        assert same(episode.rewards, np.array(plain.rewards))
        assert episode.end_reason == ("terminated" if episode.length == length else episode.end_reason)
    assert len(episodes) <= int(done) + 1


# Closed doors

STRANGER = """
import os, sys
import episodelake as el
import independent_journal
from nasty_environments import SmallEnv, play, seeds
# The libraries import parts of themselves at first use, from where a stranger may not be able to read.
el.create(sys.argv[3], SmallEnv()).sql("select count(*) from steps").fetchall()
if os.geteuid() == 0:
    os.seteuid(65534)
def attempt(call):
    try:
        return repr(call())
    except Exception as error:
        return f"{type(error).__name__} {isinstance(error, (el.EpisodelakeError, OSError))}: {error}"
action, path = sys.argv[1:3]
calls = {
    "create": lambda: el.create(path, SmallEnv()),
    "read": lambda: [el.open(path)[0].length, el.open(path).sql("select count(*) from steps").fetchall()],
    "record": lambda: el.open(path).record(SmallEnv()),
    "write": lambda: el.open(path).writer(),
    "card": lambda: setattr(el.open(path), "card", {"a": 1}),
    "recover": lambda: el.recover(path),
}
print(attempt(calls[action]), flush=True)
"""


def as_stranger(action: str, path: Path) -> str:
    """Do something as a user who owns nothing here; return what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(
            [sys.executable, "-c", STRANGER, action, str(path), f"{folder}/warm"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert result.stdout, result.stderr
    return result.stdout


@pytest.fixture
def public(whole_store: Path) -> Iterator[Path]:
    """A copy of the store that everybody may read and nobody but root may write."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(shutil.copytree(whole_store, Path(folder) / "store"))
        for entry in [path, *path.rglob("*")]:
            entry.chmod(0o555 if entry.is_dir() else 0o444)
        Path(folder).chmod(0o555)
        yield path
        for entry in [path.parent, path, *path.rglob("*")]:
            entry.chmod(0o755)


@pytest.mark.further
def test_a_store_that_may_only_be_read_is_read(public: Path) -> None:
    """Reading needs no permission to write."""
    assert as_stranger("read", public).strip() == f"[300, [({6 * 301},)]]"


@pytest.mark.sample(1)
@pytest.mark.parametrize("action", ["record", "write", "card"])
def test_writing_without_permission_is_refused(public: Path, action: str) -> None:
    """Recording into a store that may only be read raises StoreAccessError, which names the path."""
    answer = as_stranger(action, public)
    assert answer.startswith("StoreAccessError True")
    assert str(public) in answer


@pytest.mark.further
def test_creating_without_permission_is_refused(public: Path) -> None:
    """A store in a folder that may not be written raises StoreAccessError naming the path."""
    answer = as_stranger("create", public.parent / "other")
    assert answer.startswith("StoreAccessError True")
    assert str(public.parent) in answer


@pytest.mark.sample(1)
@pytest.mark.parametrize("closed", ["store.json", "episodes", "steps", "."])
def test_reading_without_permission_is_refused(public: Path, closed: str) -> None:
    """A file or folder that may not be read raises StoreAccessError naming it, not a damaged store."""
    (public / closed).chmod(0)
    answer = as_stranger("read", public)
    (public / closed).chmod(0o755)
    assert answer.startswith("StoreAccessError True")
    assert str(public) in answer


@pytest.mark.parametrize("place", ["journal", "steps", "runs"])
def test_a_file_in_place_of_a_folder_stops_recording_clearly(path: Path, place: str) -> None:
    """Where a folder of the store is a file, recording raises an error of the tree that names it."""
    shutil.rmtree(path / place)
    (path / place).write_text("in the way")
    with pytest.raises(el.EpisodelakeError, match=place), el.open(path).record(SmallEnv()) as recorder:
        play(recorder, seeds(1))
        recorder.seal()
    assert (path / place).read_text() == "in the way"


def test_a_hint_ends_the_text_and_stands_apart(tmp_path: Path) -> None:
    """The text of an error is complete; programs with advice of their own take it without the hint."""
    with pytest.raises(el.errors.StoreNotFoundError, match=r"does not exist\. Create one with") as caught:
        el.open(tmp_path / "none")
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.hint, str(error)) == (
        "Create one with episodelake.create.",
        f"{error.problem} {error.hint}",
    )
