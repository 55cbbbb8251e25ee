"""Loaders and statistics of stores of several agents, beside the rules of `LoaderContract`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import polars as pl
import pytest

import agent_environments as environments
import episodelake as el
import plain_agents as plain

NAMES = ("scout_0", "tank_0", "scout_1", "tank_1")
BOX, DISCRETE = gym.spaces.Box(-9, 9, (2,), np.float32), gym.spaces.Discrete(3)


def recorded(path: Path, env_type: type, *, episodes: int = 6, **kwargs: Any) -> el.EpisodeStore:
    """A store with episodes of different lengths, in two segments; some are cut before all agents came."""
    store = el.create(path, env_type())
    for half in range(2):
        with store.record(env_type(), **kwargs) as env:
            for number in range(episodes // 2):
                seed = 10 * half + number
                steps = (10_000, 1, 4)[number % 3]
                play = plain.play_parallel if env_type is environments.Comings else plain.play_turns
                play(env, plain.random_policy(env, seed), seed, steps)
    return store.refresh()


@pytest.fixture(scope="module")
def comings(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Agents of two groups that come and go."""
    return recorded(tmp_path_factory.mktemp("comings") / "store", environments.Comings, state=True)


@pytest.fixture(scope="module")
def turns(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Agents that take turns."""
    return recorded(tmp_path_factory.mktemp("turns") / "store", environments.Turns)


def parts(view: el.EpisodeView, names: tuple[str, ...]) -> list[tuple[int, Any]]:
    """The parts of some agents that have a transition, with the number of their episode."""
    return [
        (number, episode.agent(name))
        for number, episode in enumerate(view)
        for name in episode.agents
        if name in names and episode.agent(name).length
    ]


def test_weights(comings: el.EpisodeStore) -> None:
    """Weights belong to the view's episodes; each agent's part has that of its episode."""
    chosen = np.arange(len(comings)) == 3
    for weights in (chosen.astype(float), pl.lit(1) * (pl.col("episode_id") == comings[3].id)):
        loader = comings.loader(8, columns=["episode", "agent_id"], group="scout", weights=weights)
        batch = next(iter(loader))
        assert set(batch["episode"]) == {3}
    drawn = comings.loader(400, columns=["episode"], agent="scout_1", weights="episodes").take(400)["episode"]
    assert set(drawn) == {number for number, _ in parts(comings, ("scout_1",))}


@pytest.mark.further
def test_annotations_and_workers(tmp_path: Path) -> None:
    """Columns added later belong to the agent's rows, in worker processes too."""
    store = recorded(tmp_path / "store", environments.Comings, episodes=2)
    keys = ("episode_id", "agent_id", "t")
    frame = store.steps.select(*keys, code=pl.col("t") * 10 + pl.col("agent_id").str.len_chars()).collect()
    store.annotate(frame, on=keys)
    loader = store.loader(4, columns=["code", "t", "episode"], group="tank", shuffle=True)
    batches = list(loader.torch_loader(2, multiprocessing_context="spawn"))
    assert len(batches) > 2
    for batch in batches:
        assert (batch["code"] == batch["t"] * 10 + 6).all()


@pytest.mark.parametrize(
    ("names", "given"), [(NAMES[::2], {"group": "scout"}), (NAMES[3:], {"agent": NAMES[3]})]
)
def test_stats(comings: el.EpisodeStore, names: tuple[str, ...], given: Any, tmp_path: Path) -> None:
    """Statistics are those of the agents' rows, with the observation of agents that never acted."""
    every = [each.agent(name) for each in comings for name in each.agents if name in names]
    for _ in range(2):  # measured, and kept
        stats = comings.stats(cache_folder=tmp_path, **given)
        rewards = np.concatenate([part.rewards for part in every])
        assert stats["reward"].rows == len(rewards)
        np.testing.assert_allclose(stats["reward"].mean, rewards.mean())
        np.testing.assert_allclose(stats["reward"].std, rewards.std())
        if "group" in given:
            seen = np.concatenate([part.observations for part in every])
            assert stats["observation"].rows == len(seen)
            np.testing.assert_allclose(stats["observation"].mean, seen.mean(axis=0, dtype=float))
        else:
            fuel = np.concatenate([part.observations["fuel"] for part in every])
            np.testing.assert_allclose(stats["observation.fuel"].mean, fuel.mean())
    cut = comings.stats(["truncated"], cache_folder=tmp_path, **given)["truncated"]
    ended = [np.arange(part.length) == part.length - 1 for part in every if part.end_reason != "terminated"]
    assert round(float(cut.mean * cut.count)) == sum(int(mask.sum()) for mask in ended)


def test_normalize(comings: el.EpisodeStore, tmp_path: Path) -> None:
    """Statistics of a group normalize the batches of its loader."""
    stats = comings.stats(group="scout", cache_folder=tmp_path)
    loader = comings.loader(
        1000, columns=["reward"], group="scout", transforms=[el.Normalize.from_stats(stats, "reward")]
    )
    assert abs(next(iter(loader))["reward"].mean()) < 1e-6


def test_agents_with_odd_names(tmp_path: Path) -> None:
    """Names with spaces, quotes, dots and other scripts load; one group has plain column names."""
    names = ("a b", "o'neil", "rot.1", "läufer/2", '"', "agent_id", "観測")
    spaces = {name: (BOX, DISCRETE) for name in names}

    class Odd(environments.Comings):
        possible_agents: ClassVar[list] = list(names)

        def observation_space(self, agent: str) -> gym.Space:
            return BOX

        def action_space(self, agent: str) -> gym.Space:
            return DISCRETE

        def look(self) -> dict[str, Any]:
            return {agent: np.full(2, names.index(agent), np.float32) for agent in names}

        def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
            self.agents = list(names)
            return self.look(), {}

        def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
            self.agents = []
            flags = dict.fromkeys(names, True)
            return self.look(), dict.fromkeys(names, 1.0), flags, dict.fromkeys(names, False), {}

    store = el.create(tmp_path / "odd", agents=spaces)
    with store.record(Odd()) as env:
        env.reset()
        env.step(dict.fromkeys(names, 1))
    store.refresh()
    assert store.loader(group=store.agent_groups[0].name).agents == names
    for number, name in enumerate(names):
        (batch,) = store.loader(agent=name)
        assert batch["observation"].tolist() == [[number, number]]


def test_errors(comings: el.EpisodeStore, tmp_path: Path) -> None:
    """What a loader cannot do it says, with the names that are there."""
    with pytest.raises(el.errors.InvalidArgumentError, match="groups are scout, tank"):
        comings.loader()
    with pytest.raises(el.errors.InvalidArgumentError, match="groups are scout, tank"):
        comings.stats()
    with pytest.raises(el.errors.InvalidArgumentError, match="no group 'scouts'"):
        comings.loader(group="scouts")
    with pytest.raises(el.errors.InvalidArgumentError, match=r"'scout_7'.*scout_0"):
        comings.loader(agent="scout_7")
    with pytest.raises(el.errors.InvalidArgumentError, match="in the group 'tank'"):
        comings.loader(agent="scout_0", group="tank")
    with pytest.raises(el.errors.InvalidArgumentError, match="expected the name of an agent"):
        comings.loader(agent=["scout_0"])  # type: ignore[arg-type]
    with pytest.raises(el.errors.InvalidArgumentError, match="cannot be followed"):
        comings.loader(agent="scout_0", follow=el.Follow())
    with pytest.raises(el.errors.InvalidArgumentError, match="view is empty"):
        comings.filter(pl.col("length") > 1000).loader(group="scout")
    with pytest.raises(el.errors.InvalidArgumentError, match=r"observation.fuel.*env_step"):
        comings.loader(columns=["fuel"], agent="tank_0")
    single = el.create(tmp_path / "single", observation_space=BOX, action_space=DISCRETE)
    with single.writer() as writer:
        writer.write_episode(
            observations=np.zeros((2, 2), np.float32),
            actions=[0],
            rewards=[0.0],
            terminations=True,
            truncations=False,
        )
    single.refresh()
    with pytest.raises(el.errors.InvalidArgumentError, match="single agent"):
        single.loader(agent="a")
    with pytest.raises(el.errors.InvalidArgumentError, match="single agent"):
        single.stats(group="a")
    with pytest.raises(el.errors.InvalidArgumentError, match="no column 'agent_id'"):
        single.loader(columns=["agent_id"])


def test_states_of_other_agents_are_refused(comings: el.EpisodeStore) -> None:
    """Of one agent for a group, of a group for all, of joint rows for others."""
    chosen: list[dict[str, Any]] = [
        {"agent": "scout_0"},
        {"group": "scout"},
        {"group": "scout", "joint": True},
        {"joint": True},
    ]
    loaders = [comings.loader(4, columns=["t", "episode"], shuffle=True, **each) for each in chosen]
    for one, other in itertools.permutations(loaders, 2):
        with pytest.raises(el.errors.LoaderStateError):
            one.load_state_dict(other.state_dict())


def test_keys_and_agents_of_all_groups(comings: el.EpisodeStore) -> None:
    """Without columns each group has its keys, with its name; `agents` has the order of their axes."""
    loader = comings.loader(4, joint=True)
    assert loader.agents == {"scout": NAMES[::2], "tank": NAMES[1::2]}
    keys = ["observation", "action", "reward", "next_observation", "terminated", "truncated", "agent_mask"]
    assert list(next(iter(loader))) == [f"{group}.{key}" for group in ("scout", "tank") for key in keys]
    assert comings.loader(4, group="scout").agents == NAMES[::2]
    assert list(next(iter(comings.loader(4, joint=True, columns=["episode", "t"])))) == ["episode", "t"]


def test_joint_errors(comings: el.EpisodeStore, turns: el.EpisodeStore) -> None:
    """Agents that act in turns have no joint steps; n-step returns and transforms of episodes are refused."""
    with pytest.raises(el.errors.InvalidArgumentError, match="act in turns"):
        turns.loader(joint=True)
    with pytest.raises(el.errors.InvalidArgumentError, match="NSteps"):
        comings.loader(n_step=3, joint=True)
    with pytest.raises(el.errors.InvalidArgumentError, match="ReturnToGo"):
        comings.loader(joint=True, transforms=[el.ReturnToGo()])
    with pytest.raises(el.errors.InvalidArgumentError, match="loads one"):
        comings.loader(joint=True, agent="scout_0")
    with pytest.raises(el.errors.InvalidArgumentError, match="begin with scout"):
        comings.loader(joint=True, columns=["reward"])
    with pytest.raises(el.errors.InvalidArgumentError, match="no group 'x'"):
        comings.loader(joint=True, group="x")
    with pytest.raises(el.errors.InvalidArgumentError, match="no column 'agent_id'"):
        comings.loader(joint=True, columns=["agent_id"])
    with pytest.raises(el.errors.InvalidArgumentError, match="cannot be followed"):
        comings.loader(joint=True, follow=el.Follow())
