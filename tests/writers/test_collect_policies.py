"""Random actions, their inverse mapping, gradients in recurrent states, rendering, and sums of stats."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import polars as pl
import pytest
from gymnasium.vector import SyncVectorEnv

import episodelake as el
from collecting_parts import VaryingEnv, forgetful, make_varying
from episodelake.testing.adapters import case
from nasty_environments import SmallEnv, new_store

ENVS: dict[str, Callable[..., Any]] = {
    "single": lambda **options: VaryingEnv(**options),
    "vector": lambda **options: SyncVectorEnv([lambda: VaryingEnv(**options)] * 3),
}


def never(*arguments: Any) -> Any:
    """A policy or a hook that is not to be called."""
    raise AssertionError(f"called with {arguments}")


def half(actions: Any) -> Any:
    """A mapping of actions."""
    return actions / 2


# Random actions


def test_random_actions_leave_the_state(tmp_path: Path) -> None:
    """The policy that takes over within an episode has the state that it left, or the initial one."""
    store = new_store(tmp_path, VaryingEnv(longest=10**6))
    seen = []

    def policy(observation: Any, info: Any, state: Any) -> Any:
        seen.append(state)
        return np.zeros(2, np.float32), None, state + 1

    with store.record(VaryingEnv(longest=10**6)) as recorder:
        for random in (True, False, True, False):
            el.collect(recorder, el.Policy(policy, initial_state=10), store, steps=2, random=random)
    assert seen == [10, 11, 12, 13]


# Gradients


class Carry(NamedTuple):
    """A state with parts."""

    hidden: Any
    cell: Any


@pytest.mark.further
@pytest.mark.parametrize("kind", ENVS)
def test_states_have_no_gradients(tmp_path: Path, kind: str) -> None:
    """A recurrent network of PyTorch is given its state without a graph, in every nesting, at every step."""
    torch = pytest.importorskip("torch")
    env = ENVS[kind]()
    store = new_store(tmp_path, env)
    count = 1 if kind == "single" else env.num_envs
    cell = torch.nn.LSTMCell(3, 2)
    learned = torch.nn.Parameter(torch.ones(count, 2))
    initial = {"carry": Carry(learned, [learned * 2]), "asked": (np.zeros(count),)}
    states = []

    def policy(observation: Any, info: Any, state: Any) -> Any:
        carry = state["carry"]
        tensors = carry.hidden, carry.cell[0]
        assert isinstance(carry, Carry) and isinstance(carry.cell, list)
        states.append([(tensor.grad_fn, tensor.requires_grad) for tensor in tensors])
        hidden, memory = cell(torch.as_tensor(observation).reshape(count, 3), tensors)
        assert hidden.grad_fn is not None
        action = torch.tanh(hidden).reshape(env.action_space.shape)
        extras = {"hidden": hidden if kind == "vector" else hidden[0]}
        return action, extras, {"carry": Carry(hidden, [memory]), "asked": (state["asked"][0] + 1,)}

    with store.record(env) as recorder:
        for _ in range(2):
            el.collect(recorder, el.Policy(policy, initial_state=initial, record_state=True), store, steps=20)
    assert len(states) >= 14 and all(state == [(None, False)] * 2 for state in states)
    rows = store.refresh().transitions.sort("episode_id", "t").collect()
    # What was recorded is what the network computed: the state of the next step is the hidden one of this.
    for _, episode in rows.group_by("episode_id"):
        told = [np.ravel(value).tolist() for value in episode["policy.hidden"].to_list()]
        given = [np.ravel(value).tolist() for value in episode["policy.state.carry.0"].to_list()]
        assert given == [[1.0, 1.0], *told[:-1]]


def test_states_without_gradients_are_the_policys_own(tmp_path: Path) -> None:
    """A state that has nothing to detach is handed on as the object it is, whatever class it has."""

    class Own(dict):
        pass

    store = new_store(tmp_path, VaryingEnv())
    given: list[Any] = []

    def policy(observation: Any, info: Any, state: Any) -> Any:
        assert state is None or state is given[-1]
        given.append(Own(part=[np.zeros(1)]))
        return np.zeros(2, np.float32), None, given[-1]

    el.collect(VaryingEnv(), policy, store, steps=20, seed=0)
    assert len(given) == 20


@pytest.mark.further
def test_workers_detach_too(tmp_path: Path) -> None:
    """States lose their gradients in worker processes."""
    store = new_store(tmp_path, VaryingEnv())
    stats = el.collect(make_varying, forgetful, store, steps=30, workers=1, seed=1)
    assert stats.steps == 30 and not stats.failures


@pytest.mark.further
def test_workers_sample_too(tmp_path: Path) -> None:
    """`random` and the inverse mapping reach worker processes."""
    store = new_store(tmp_path, VaryingEnv())
    policy = el.Policy(forgetful, map_action_inverse=half)
    el.collect(make_varying, policy, store, steps=9, workers=1, seed=1, random=True)
    rows = store.refresh().transitions.collect()
    assert rows.height == 9
    assert np.allclose(np.array(rows["policy.raw_action"].to_list()), np.array(rows["action"].to_list()) / 2)


# Rendering


class Drawn(VaryingEnv):
    """Counts how often it is drawn."""

    metadata: dict[str, Any] = {"render_modes": ["human"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = "human") -> None:
        super().__init__()
        self.render_mode = render_mode
        self.drawn: list[int] = []

    def render(self) -> None:
        """Note the step."""
        self.drawn.append(self.t)


def test_a_pause_follows_each_drawing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each step the environment draws, and then the call waits; of a vector all draw, once a step."""
    waited: list[float] = []
    monkeypatch.setattr("episodelake.writers.collecting.display.sleep", waited.append)
    store = new_store(tmp_path, VaryingEnv())
    env = Drawn()
    el.collect(env, None, store, steps=12, seed=0, render=0.25)
    steps = store.refresh().transitions.sort("episode_id", "t").collect()
    assert env.drawn == [t + 1 for t in steps["t"]] and waited == [0.25] * 12
    el.collect(env, None, store, steps=5, render=True)
    el.collect(SyncVectorEnv([Drawn, Drawn]), None, store, steps=8, render=0)
    assert len(waited) == 12
    for wrong in ("fast", -1, float("nan"), float("inf"), [1]):
        with case(wrong), pytest.raises(el.errors.InvalidArgumentError, match="render="):
            el.collect(Drawn(), None, store, steps=1, render=wrong)


def test_what_cannot_be_rendered(tmp_path: Path) -> None:
    """An environment without a render mode is refused before it is reset; so is a flag that is none."""
    store = new_store(tmp_path, VaryingEnv())
    env = Drawn(render_mode=None)
    for envs in (env, SyncVectorEnv([lambda: env]), gym.wrappers.TimeLimit(env, 3)):
        with pytest.raises(el.errors.InvalidArgumentError, match=r'has no render mode.* render_mode="human"'):
            el.collect(envs, None, store, steps=1, render=True)
    with pytest.raises(el.errors.InvalidArgumentError, match=r"random=0\.1: expected True or False"):
        el.collect(env, None, store, steps=1, random=0.1)  # type: ignore[arg-type]
    with pytest.raises(el.errors.InvalidArgumentError, match="map_action_inverse is int"):
        el.collect(env, el.Policy(map_action_inverse=3), store, steps=1)  # type: ignore[arg-type]
    assert env.episode == -1 and store.refresh().runs.collect().is_empty()


# Sums


def test_what_cannot_be_added(tmp_path: Path) -> None:
    """Numbers other than 0, and returns with other objectives, are refused."""
    store = new_store(tmp_path, VaryingEnv())
    stats: Any = el.collect(VaryingEnv(), None, store, steps=3)
    for wrong in (1, None, "0"):
        with pytest.raises(TypeError):
            stats + wrong
        with pytest.raises(TypeError):
            wrong + stats
    returns = pl.Series("episode_return", np.zeros((stats.episodes, 2)))
    two = replace(stats, ended=stats.ended.with_columns(returns))
    with pytest.raises(el.errors.InvalidArgumentError, match="same number of objectives"):
        stats + two


@pytest.mark.parametrize("count", [None, 2])
def test_the_state_of_an_episode_of_one_step_is_none(tmp_path: Path, count: int | None) -> None:
    """Where every policy call is the first of its episode, `policy.state` is None and not missing."""

    def remembering(observation: Any, info: Any, state: Any) -> Any:
        shape = () if count is None else (count,)
        return np.zeros((*shape, 2), np.float32), {}, np.zeros((*shape, 3))

    store = new_store(tmp_path, SmallEnv(1))
    env: Any = SmallEnv(1) if count is None else SyncVectorEnv([lambda: SmallEnv(1)] * count)
    el.collect(env, el.Policy(remembering, record_state=True), store, episodes=1)
    (episode,) = store.refresh()
    assert episode.length == 1 and episode.policy["state"] == [None]


# Without a store, and without gradients


@pytest.mark.parametrize(
    ("kind", "goal"), [("single", {"steps": 40}), ("vector", {"episodes": 7}), ("vector", {"steps": 40})]
)
def test_without_a_store_the_statistics_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, goal: dict[str, Any]
) -> None:
    """They are those of the same call with a store, and nothing is left of the episodes."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    heard: list[list[Any]] = [[], []]
    stored, alone = (
        el.collect(
            ENVS[kind](),
            None,
            store,
            **goal,
            seed=3,
            on_episode=into.append,
            episode_callback=lambda each: {},
        )
        for store, into in zip((new_store(tmp_path / "store", ENVS[kind]()), None), heard, strict=True)
    )
    assert alone.ended.equals(stored.ended) and alone.episodes > 2
    assert (alone.steps, alone.unfinished, alone.run_ids) == (stored.steps, stored.unfinished, ())
    assert [each.length for each in heard[1]] == [each.length for each in heard[0]] == alone.lengths.tolist()
    with pytest.raises(AssertionError, match="called with"):
        el.collect(ENVS[kind](), never, **goal)
    assert not list((tmp_path / "temporary").iterdir())


def test_what_has_no_effect_without_a_store(tmp_path: Path) -> None:
    """Options for what is stored are refused, workers name no runs, and a recorder has its own store."""
    for name, value in {"run": "x", "metadata": {}, "seal_seconds": 1.0, "record_infos": True}.items():
        with pytest.raises(el.errors.InvalidArgumentError, match=f"{name}=.*no store"):
            el.collect(VaryingEnv(), None, episodes=1, **{name: value})
    with pytest.raises(el.errors.InvalidArgumentError, match="makes an environment of its own"):
        el.collect(VaryingEnv(), None, episodes=1, workers=2)
    store = new_store(tmp_path, VaryingEnv())
    with store.record(VaryingEnv()) as recorder:
        assert el.collect(recorder, None, episodes=3, seed=0).run_ids == (recorder.run_id,)
    assert len(store.refresh()) == 3


@pytest.mark.further
def test_workers_without_a_store() -> None:
    """Workers add up to the goal, and their reports name no runs."""
    stats = el.collect(make_varying, None, episodes=5, workers=2, seed=1)
    assert stats.episodes == 5 and stats.run_ids == () and not stats.failures
    assert [(each.episodes, each.run_id) for each in stats.workers] == [(3, None), (2, None)]


def test_modules_play_without_gradients() -> None:
    """Modules and their methods are called without gradients, functions as they are; agents' policies too."""
    torch = pytest.importorskip("torch")
    seen: list[bool] = []

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def forward(self, observation: Any, info: Any, state: Any) -> Any:
            value = self.layer(torch.ones(2))
            seen.append(value.requires_grad)
            return np.zeros(2, np.float32), {"value": value.detach()}

        def act(self, *given: Any, scale: float = 1.0) -> Any:
            return self.forward(*given)

        def chosen(self, observations: Any, infos: Any, states: Any) -> Any:
            self.forward(None, None, None)
            return dict.fromkeys(observations, 0)

    module = Module()
    calls: dict[str, tuple[Any, bool]] = {
        "module": (module, False),
        "method": (module.act, False),
        "partial": (partial(module.act, scale=2.0), False),
        "wrapped": (el.Policy(module), False),
        "function": (lambda *given: module(*given), True),
    }
    for name, (policy, expected) in calls.items():
        seen.clear()
        el.collect(VaryingEnv(), policy, steps=3)
        assert seen == [expected] * 3, name
    assert torch.is_grad_enabled()
    mpe = pytest.importorskip("mpe2.simple_v3").parallel_env(max_cycles=3)
    for policy in (module.chosen, {"agent_0": lambda *given: 0}):
        seen.clear()
        el.collect(mpe, policy, episodes=1, seed=0)
        assert not any(seen)
