"""Values that are nearly what a column takes: recorded exactly or refused, in every recorder and writer."""

from __future__ import annotations

import enum
from collections import OrderedDict, namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import polars as pl
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import episodelake as el
from agent_environments import Comings
from test_pool_recorder import Pool

ODD = 2**53 + 1
LARGE: list[Any] = [-ODD, np.uint64(ODD), np.array(ODD), 2**70 + 1]
EXACT: list[Any] = [-(2**60), np.int64(2**53 + 2), np.uint64(2**63), True]


class Outcome(str, enum.Enum):  # noqa: UP042
    """Text with a name."""

    WIN = "win"


class Level(int, enum.Enum):
    """A number with a name."""

    ONE = 1


class Share(float, enum.Enum):
    """A fraction with a name."""

    HALF = 0.5


class Key(bytes):
    """Bytes of a class of their own."""


class Loud(str):
    """Text that prints as something else."""

    def __str__(self) -> str:
        return "LOUD"


class Odd(int):
    """A number that converts to another one."""

    def __int__(self) -> int:
        return 99


Pair = namedtuple("Pair", "left right")
NAMED: dict[str, tuple[Any, Any]] = {
    "text": (Outcome.WIN, "win"),
    "number": (Level.ONE, 1),
    "fraction": (Share.HALF, 0.5),
    "bytes": (Key(b"k"), b"k"),
    "loud": (Loud("quiet"), "quiet"),
    "odd": (Odd(5), 5),
    "strenum": (enum.StrEnum("Side", {"LEFT": "left"}).LEFT, "left"),  # type: ignore[attr-defined]
    "flags": (enum.IntFlag("Bits", {"A": 1, "B": 2})(3), 3),
    "numpy_text": (np.str_("t"), "t"),
    "numpy_bytes": (np.bytes_(b"b"), b"b"),
    "complex": (np.complex64(1 + 2j), 1 + 2j),
    "half": (np.float16(0.5), 0.5),
    "pair": (Pair(1, Outcome.WIN), (1, "win")),
    "ordered": (OrderedDict(a=Outcome.WIN, b=[Level.ONE]), {"a": "win", "b": [1]}),
    "set": ({Outcome.WIN}, frozenset({"win"})),
}
GIVEN = {key: given for key, (given, _) in NAMED.items()}
WANTED = {key: wanted for key, (_, wanted) in NAMED.items()}


class Giving(gym.Env):
    """Gives one reward, one observation and one info, for ever."""

    action_space = spaces.Discrete(2)

    def __init__(self, reward: Any = 1.0, observation: Any = 0.0, info: dict[str, Any] | None = None) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (), np.float64)
        self.reward, self.observation, self.info = reward, observation, info or {}
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin."""
        return np.zeros(()), dict(self.info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        """Give."""
        self.t += 1
        return self.observation, self.reward, False, False, dict(self.info)


def plain(value: Any) -> Any:
    """A value as Python has it."""
    return value.item() if isinstance(value, np.generic | np.ndarray) and np.ndim(value) == 0 else value


@pytest.mark.sample(4)
@pytest.mark.parametrize("value", LARGE, ids=repr)
@pytest.mark.parametrize("what", ["reward", "observation"])
def test_an_integer_that_a_float_cannot_hold_is_refused(tmp_path: Path, what: str, value: Any) -> None:
    """Step by step, whole, in vectors and in pools: an error that names the column, and nothing is stored."""
    store = el.create(tmp_path / "store", Giving())
    with store.record(Giving(**{what: value})) as recorder:
        recorder.reset()
        with pytest.raises(el.errors.SpaceMismatchError, match=what):
            recorder.step(0)
    with store.writer() as writer:
        episode = writer.begin(0.0)
        with pytest.raises(el.errors.SpaceMismatchError, match=what):
            episode.append(0, *((value, 0.0) if what == "reward" else (0.0, value)))
        for length in (2, 200):
            arrays: dict[str, Any] = {"reward": [0.5] * length, "observation": [0.5] * (length + 1)}
            arrays[what][1] = value
            with pytest.raises(el.errors.SpaceMismatchError, match=what):
                writer.write_episode(
                    observations=arrays["observation"],
                    actions=np.zeros(length, np.int64),
                    rewards=arrays["reward"],
                    terminations=False,
                    truncations=False,
                )
    batch = np.array([int(value)] * 2)
    if batch.dtype != object:
        values = {"reward": np.zeros(2), "observation": np.zeros(2), what: batch}
        envs = SyncVectorEnv([Giving] * 2)
        with store.record(envs) as recorder:
            recorder.reset()
            small = {key: np.ones(2, batch.dtype) for key in values}
            for given in (small, small, values):
                # The second batch of small integers goes the short way, which must not let large ones pass.
                flags = np.zeros(2, bool)
                result = given["observation"], given["reward"], flags, flags, {}
                envs.step = lambda actions, result=result: result  # type: ignore[method-assign]
                if given is values:
                    with pytest.raises(el.errors.SpaceMismatchError, match=what):
                        recorder.step(np.zeros(2, np.int64))
                else:
                    recorder.step(np.zeros(2, np.int64))
    lengths = [episode.length for episode in store.refresh()]
    assert lengths == ([2, 2] if batch.dtype != object else [])
    assert store.verify().faults == ()


@pytest.mark.sample(2)
@pytest.mark.parametrize("value", EXACT, ids=repr)
def test_an_integer_that_a_float_holds_is_recorded(tmp_path: Path, value: Any) -> None:
    """Whatever the recorder, the number that comes back is the one that was given."""
    store = el.create(tmp_path / "store", Giving())
    with store.record(Giving(value, value)) as recorder:
        recorder.reset()
        recorder.step(0)
    envs = SyncVectorEnv([lambda: Giving(value, value)] * 2, autoreset_mode=AutoresetMode.DISABLED)
    with store.record(envs) as recorder:
        recorder.reset()
        recorder.step(np.zeros(2, np.int64))
    with store.writer() as writer:
        writer.write_episode(
            observations=[0.5, value], actions=[0], rewards=[value], terminations=False, truncations=False
        )
    episodes = list(store.refresh())
    assert len(episodes) == 4
    for episode in episodes:
        assert int(episode.rewards[0]) == int(episode.observations[1]) == int(value)


@pytest.mark.parametrize("parts", [[0.5, ODD], (ODD, 0.5), np.array([1, ODD]), [1, ODD]], ids=repr)
def test_an_integer_within_a_vector_reward_is_not_rounded(tmp_path: Path, parts: Any) -> None:
    """A list that mixes integers and fractions is looked at before numpy makes floats of it."""
    space = spaces.Discrete(2)
    store = el.create(tmp_path / "store", observation_space=space, action_space=space, reward_shape=(2,))
    with store.writer() as writer:
        episode = writer.begin(0)
        with pytest.raises(el.errors.SpaceMismatchError, match="reward"):
            episode.append(0, parts, 1)
        with pytest.raises(el.errors.SpaceMismatchError, match="reward"):
            writer.write_episode(
                observations=[0, 1], actions=[0], rewards=[parts], terminations=False, truncations=False
            )
        episode.append(0, [2**53, 0.5], 1)
        episode.end()
    assert store.refresh()[0].rewards.tolist() == [[2.0**53, 0.5]]
    assert store[0].episode_return == [2.0**53, 0.5]


@pytest.mark.parametrize("kind", ["single", "vector", "pool", "agents", "writer"])
def test_a_reward_may_be_an_array_of_one_item(tmp_path: Path, kind: str, recwarn: Any) -> None:
    """A store of scalar rewards takes np.array([2.0]) from each of its sources, without a warning."""
    item = np.array([2.0], np.float32)
    if kind == "agents":

        class Paid(Comings):
            """Pays in arrays."""

            def step(self, actions: Any) -> Any:
                """Pay."""
                observations, rewards, *rest = super().step(actions)
                return observations, dict.fromkeys(rewards, item), *rest

        env = Paid()
        store = el.create(tmp_path / "store", env)
        with store.record(env) as recorder:
            recorder.reset(seed=0)
            recorder.step({agent: env.action_space(agent).sample() for agent in env.agents})
        assert set(store.refresh()[0].agent_returns.values()) == {2.0}
        return
    store = el.create(tmp_path / "store", Giving())
    if kind == "single":
        with store.record(Giving(item), step_callback=lambda step: replace(step)) as recorder:
            recorder.reset()
            assert recorder.step(0)[1] is item
            recorder.step(0)
    elif kind == "vector":
        envs = SyncVectorEnv([Giving] * 2)
        with store.record(envs) as recorder:
            recorder.reset()
            flags = np.zeros(2, bool)
            result = np.ones(2), np.full((2, 1), 2.0), flags, flags, {}
            envs.step = lambda actions: result  # type: ignore[method-assign]
            for _ in range(2):
                recorder.step(np.zeros(2, np.int64))
    elif kind == "pool":
        pool = Pool([Giving()], 1)
        recv = pool.recv
        pool.recv = lambda: (lambda r: (r[0], np.full((1, 1), 2.0), *r[2:]))(recv())  # type: ignore[method-assign]
        with store.record(pool) as recorder:
            recorder.async_reset()
            recorder.recv()
            for _ in range(2):
                recorder.step(np.zeros(1, np.int64))
    else:
        with store.writer() as writer:
            episode = writer.begin(0.0)
            for _ in range(2):
                episode.append(0, item, 1.0)
            episode.end()
    for episode in store.refresh():
        assert (episode.rewards.tolist(), episode.episode_return) == ([2.0, 2.0], 4.0)
    assert len(store) == (2 if kind == "vector" else 1)
    assert not [each for each in recwarn if issubclass(each.category, DeprecationWarning)]


@pytest.mark.parametrize("length", [3, 3000])
def test_rewards_of_an_episode_may_be_arrays_of_one_item(tmp_path: Path, length: int) -> None:
    """A list of them, and an array of shape (T, 1); what makes no array of numbers is told."""
    store = el.create(tmp_path / "store", Giving())
    steps = {
        "observations": [0.0] * (length + 1),
        "actions": [0] * length,
        "terminations": True,
        "truncations": False,
    }
    with store.writer() as writer:
        for rewards in ([np.array([2.0])] * length, np.full((length, 1), 2, np.int64)):
            writer.write_episode(rewards=rewards, **steps)
        for wrong in ([np.array([1.0]), *[2.0] * (length - 1)], [[2**53 + 1]] * length, np.ones((length, 2))):
            with pytest.raises(el.errors.SpaceMismatchError):
                writer.write_episode(rewards=wrong, **steps)
    assert [episode.rewards.tolist() for episode in store.refresh()] == [[2.0] * length] * 2


def first_values(policy: dict[str, Any]) -> dict[str, Any]:
    """What the policy said first, with nested keys as they were."""
    return {key: first_values(part) if isinstance(part, dict) else part[0] for key, part in policy.items()}


def test_values_of_named_classes_are_stored_as_what_they_are(tmp_path: Path) -> None:
    """Enums and subclasses of plain types come back as their value in every column family, SQL included."""
    store = el.create(tmp_path / "store", Giving())
    env = Giving(info=GIVEN)
    with store.record(
        env, metadata=GIVEN, step_callback=lambda step: GIVEN, episode_callback=lambda episode: GIVEN
    ) as recorder:
        recorder.reset(options=GIVEN)
        recorder.log(**GIVEN)
        recorder.step(0)
    el.collect(Giving(), lambda observation, info, state: (0, GIVEN), store, steps=1)
    envs = SyncVectorEnv([Giving] * 2)
    with store.record(envs) as recorder:
        recorder.reset()
        recorder.log(**{key: [given] * 2 for key, given in GIVEN.items()})
        recorder.step(np.zeros(2, np.int64))
    first, *others = store.refresh()
    assert first.metadata == WANTED
    assert first.infos == [WANTED] * 2
    for episode in (first, *others):
        assert plain(first_values(episode.policy)) == WANTED
    for column in ("text", "loud", "strenum"):
        wanted = WANTED[column]
        found = store.sql(f"select count(*) as n from episodes where \"metadata.{column}\" = '{wanted}'")
        assert found.fetchall()[0][0] == 1
        found = store.sql(f"select count(*) as n from steps where \"policy.{column}\" = '{wanted}'")
        assert found.fetchall()[0][0] == 4


@pytest.mark.parametrize("explore", [None, lambda action, generator: action])
def test_samples_of_the_action_space_are_not_mapped(tmp_path: Path, explore: Any) -> None:
    """Without a policy `map_action` is not called: the environment gets what its space gave."""
    taken: list[float] = []

    class Pushed(Giving):
        """Keeps its actions."""

        action_space = spaces.Box(-2, 2, (1,), np.float64)

        def step(self, action: Any) -> Any:
            """Keep it."""
            taken.append(float(action[0]))
            return super().step(action)

    store = el.create(tmp_path / "store", Pushed())
    el.collect(
        Pushed(), el.Policy(map_action=lambda action: 9 * action, explore=explore), store, steps=9, seed=3
    )
    space = spaces.Box(-2, 2, (1,), np.float64)
    assert store.refresh()[0].actions.ravel().tolist() == taken
    assert all(space.contains(np.array([action])) for action in taken)
    envs = SyncVectorEnv([Pushed] * 2)
    taken.clear()
    el.collect(
        envs, el.Policy(map_action=lambda actions: 9 * actions, explore=explore), store, steps=8, seed=3
    )
    assert all(space.contains(np.array([action])) for action in taken)


def test_extras_of_different_shapes(tmp_path: Path) -> None:
    """A list has one value for each environment, of any shapes; a ragged tuple is refused."""
    store = el.create(tmp_path / "store", Giving())
    lists = [np.ones((2, 3)), np.zeros(4)]
    el.collect(
        SyncVectorEnv([Giving] * 2), lambda o, i, s: (np.zeros(2, int), {"own": lists}), store, steps=4
    )
    for episode in store.refresh():
        for value in episode.policy["own"][: episode.length]:
            assert np.array_equal(value, lists[episode.env_index])
    before = len(store), store.runs.collect().height
    pair = (np.ones((2, 3)), 3)
    with pytest.raises(el.errors.SpaceMismatchError, match="pair"):
        el.collect(
            SyncVectorEnv([Giving] * 2), lambda o, i, s: (np.zeros(2, int), {"pair": pair}), store, steps=4
        )
    assert (len(store.refresh()), store.runs.collect().height) == before
    pool = Pool([Giving() for _ in range(2)], 2)
    with store.record(pool) as recorder:
        recorder.async_reset()
        ids = recorder.recv()[-1]["env_id"]
        recorder.log(own=[lists[env] for env in ids.tolist()])
        recorder.step(np.zeros(2, np.int64), ids)
        run = recorder.run_id
    for episode in store.refresh():
        if episode.run_id == run:
            assert np.array_equal(episode.policy["own"][0], lists[episode.env_index])
    assert store.verify().faults == ()


LARGE_KEYS: dict[str, list[Any]] = {
    "beyond 64 bits": [2**63 + number for number in range(4)],
    "int64, then beyond": [2**60, 2**60 + 1, 2**63, 2**63 + 1],
    "int64, then a fraction": [2**60, 2**60 + 1, 0.5, 1],
}


@pytest.mark.parametrize("values", LARGE_KEYS.values(), ids=LARGE_KEYS)
def test_no_filter_finds_a_rounded_integer(tmp_path: Path, values: list[Any]) -> None:
    """Metadata that are shown rounded are not compared with integers that rounding would make equal."""
    box = spaces.Box(-1, 1, (1,), np.float64)
    store = el.create(tmp_path / "store", observation_space=box, action_space=box)
    with store.writer() as writer:
        for value in values:
            writer.write_episode(
                observations=np.zeros((2, 1)),
                actions=np.zeros((1, 1)),
                rewards=[1.0],
                terminations=True,
                truncations=False,
                metadata={"hash": value, "deep": {"hash": value}, "fraction": value / 3},
            )
    store.refresh()
    for name in ("metadata.hash", "metadata.deep.hash"):
        for filtering in (
            lambda name=name: store.filter(f'"{name}" = ?', [values[1]]),
            lambda name=name: store.filter(f'"{name}" = $x', {"x": values[1]}),
            lambda name=name: store.filter(f'"{name}" in (1, {values[1]})'),
            lambda name=name: store.filter(pl.col(name) == values[1]),
            lambda name=name: store.query(f'select * from episodes where "{name}" = ?', [values[1]]),
            lambda name=name: store.sql(f'from steps semi join episodes on "{name}" = {values[1]}'),
        ):
            with pytest.raises(el.errors.QueryError, match=f"{name}.*{values[1]}.*as text"):
                filtering()
    assert len(store.filter('"metadata.hash" > 0')) == 4
    assert len(store.filter('"metadata.fraction" < 9223372036854775811')) == 4
    assert len(store.query('from episodes where "metadata.fraction" < 9223372036854775811')) == 4
