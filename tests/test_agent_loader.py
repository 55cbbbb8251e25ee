"""Loaders and statistics of stores of several agents: each equals a plain loop over the agents' episodes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import polars as pl
import pytest

import agent_environments as environments
import episodelake as el
import plain_agents as plain
from episodelake.readers.columns.selection import END_REASONS

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


def at(tree: Any, index: Any) -> Any:
    """An item of a nested value."""
    if isinstance(tree, dict):
        return {key: at(value, index) for key, value in tree.items()}
    return tree[index]


def same(found: Any, expected: Any) -> None:
    """Both are the same nested values."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            same(found[key], expected[key])
        return
    assert np.asarray(found).dtype == np.asarray(expected).dtype or np.ndim(expected) == 0
    np.testing.assert_array_equal(found, expected)


def loaded(loader: el.Loader) -> list[dict[str, Any]]:
    """The units of an epoch, one by one."""
    return [
        {key: at(value, number) for key, value in batch.items()}
        for batch in loader
        for number in range(len(batch["episode"]))
    ]


COLUMNS = [
    *("observation", "action", "reward", "next_observation", "terminated", "truncated"),
    *("episode", "agent_id", "t", "env_step", "end_reason", "info.mask"),
]


def check_transitions(view: el.EpisodeView, names: tuple[str, ...], loader: el.Loader) -> None:
    """The loader has the transitions of these agents, in order."""
    units = iter(loaded(loader))
    for number, part in parts(view, names):
        for t in range(part.length):
            unit = next(units)
            last = t == part.length - 1
            same(unit["observation"], at(part.observations, t))
            same(unit["next_observation"], at(part.observations, t + 1))
            same(unit["action"], at(part.actions, t))
            same(unit["reward"], part.rewards[t])
            assert unit["terminated"] == part.terminations[t]
            assert unit["truncated"] == (part.truncations[t] or (last and part.end_reason != "terminated"))
            assert (unit["episode"], unit["t"]) == (number, t)
            assert loader.agents[unit["agent_id"]] == part.agent_id
            assert unit["env_step"] == part.env_steps[t]
            assert END_REASONS[unit["end_reason"]] == (part.end_reason if last else "")
            if "info.mask" in unit:
                same(unit["info.mask"], part.infos[t]["mask"])
    assert next(units, None) is None


@pytest.mark.parametrize("cache", ["memory", "stream", "mmap"])
@pytest.mark.parametrize("agent", NAMES)
def test_agent_transitions(comings: el.EpisodeStore, agent: str, cache: Any, tmp_path: Path) -> None:
    """`agent=` loads the transitions of one agent, which may be missing in some episodes."""
    kept = el.Cache("mmap", folder=tmp_path) if cache == "mmap" else cache
    loader = comings.loader(5, columns=COLUMNS, agent=agent, cache=kept)
    check_transitions(comings, (agent,), loader)
    assert loader.agents == (agent,)


@pytest.mark.parametrize("cache", ["memory", "stream"])
@pytest.mark.parametrize("group", ["scout", "tank"])
def test_group_transitions(comings: el.EpisodeStore, group: str, cache: Any) -> None:
    """`group=` loads those of all of its agents, in a view too."""
    names = tuple(name for name in NAMES if name.startswith(group))
    for view in (comings, comings.filter(pl.col("length") > 1), comings[::-1], comings[1:4]):
        check_transitions(view, names, view.loader(4, columns=COLUMNS, group=group, cache=cache))


def test_turns(turns: el.EpisodeStore) -> None:
    """In an environment with turns a transition goes from one turn of an agent to its next."""
    columns = [name for name in COLUMNS if name != "info.mask"]
    check_transitions(turns, ("tank_0",), turns.loader(4, columns=columns, agent="tank_0"))
    both = ("scout_0", "scout_1")
    check_transitions(turns, both, turns.loader(4, columns=columns, group="scout"))


@pytest.mark.parametrize("cache", ["memory", "stream"])
def test_windows_and_whole_parts(comings: el.EpisodeStore, cache: Any) -> None:
    """Windows never leave the part of an agent; a whole episode is one such part."""
    windows = loaded(comings.loader(3, el.Windows(3), columns=COLUMNS[:10], group="tank", cache=cache))
    expected = [
        (number, part, first)
        for number, part in parts(comings, NAMES[1::2])
        for first in range(part.length - 2)
    ]
    assert len(windows) == len(expected) > 5
    for unit, (number, part, first) in zip(windows, expected, strict=True):
        same(unit["observation"], at(part.observations, slice(first, first + 3)))
        same(unit["reward"], part.rewards[first : first + 3])
        assert unit["episode"] == number
        assert unit["env_step"].tolist() == part.env_steps[first : first + 3].tolist()
    whole = list(comings.loader(1, el.Episodes(), agent="scout_1", cache=cache))
    own = [part for _, part in parts(comings, ("scout_1",))]
    assert len(whole) == len(own) > 1
    for batch, part in zip(whole, own, strict=True):
        same(at(batch["observation"], 0), part.observations)


def test_n_steps(comings: el.EpisodeStore) -> None:
    """Returns over n steps end with the agent, not with the episode."""
    units = loaded(comings.loader(4, el.NSteps(3, gamma=0.5), columns=["reward", "episode"], group="scout"))
    expected = [
        sum(0.5**k * reward for k, reward in enumerate(part.rewards[t : t + 3]))
        for _, part in parts(comings, NAMES[::2])
        for t in range(part.length)
    ]
    np.testing.assert_allclose([unit["reward"] for unit in units], expected)


@pytest.mark.parametrize("cache", ["memory", "stream"])
def test_shuffled_and_resumed(comings: el.EpisodeStore, cache: Any) -> None:
    """A shuffled epoch has every unit once, and a state continues it; another agent's state is refused."""

    def make(**given: Any) -> el.Loader:
        return comings.loader(
            4, columns=["reward", "t", "episode", "agent_id"], shuffle=True, seed=3, cache=cache, **given
        )

    def keys(units: list[dict[str, Any]]) -> list[tuple[int, ...]]:
        return [(unit["episode"], unit["agent_id"], unit["t"]) for unit in units]

    all_units = keys(loaded(make(group="scout")))
    ordered = keys(loaded(comings.loader(4, columns=["t", "episode", "agent_id"], group="scout")))
    assert sorted(all_units) == sorted(ordered) and all_units != ordered
    loader = make(group="scout")
    batches = iter(loader)
    first = [next(batches) for _ in range(2)]
    state = loader.state_dict()
    again = make(group="scout")
    again.load_state_dict(state)
    assert keys(loaded(again)) == all_units[sum(len(batch["t"]) for batch in first) :]
    with pytest.raises(el.errors.LoaderStateError):
        make(agent="scout_0").load_state_dict(state)
    copy = pickle.loads(pickle.dumps(make(group="scout")))
    assert keys(loaded(copy)) == all_units


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


def test_transforms(comings: el.EpisodeStore) -> None:
    """Returns to go are those of the agent's own rewards."""
    loader = comings.loader(
        4, columns=["episode"], agent="tank_0", transforms=[el.ReturnToGo(), lambda batch: batch]
    )
    found = np.array([unit["return_to_go"] for unit in loaded(loader)])
    expected = np.concatenate(
        [np.cumsum(part.rewards[::-1])[::-1] for _, part in parts(comings, ("tank_0",))]
    )
    np.testing.assert_allclose(found, expected)


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


def joint_rows(part: Any, step: int) -> int | None:
    """The row of an agent at a step of the environment; None if it is absent."""
    found = np.flatnonzero(part.env_steps == step)
    return int(found[0]) if len(found) else None


JOINT = ["observation", "action", "reward", "next_observation", "terminated", "truncated"]


def check_joint(unit: dict[str, Any], episode: Any, agents: tuple[str, ...], prefix: str, t: int) -> None:
    """A joint transition has what each agent has at that step, and zeros for those that are absent."""
    for slot, name in enumerate(agents):
        part = episode.agent(name) if name in episode.agents else None
        row = None if part is None else joint_rows(part, t)
        acts = part is not None and row is not None and row < part.length
        assert unit[f"{prefix}agent_mask"][slot] == acts
        if part is None or row is None:
            for key in JOINT:
                if key != "next_observation":  # it may be there at the next step
                    same(at(unit[f"{prefix}{key}"], slot), zeros_like(at(unit[f"{prefix}{key}"], slot)))
            continue
        same(at(unit[f"{prefix}observation"], slot), at(part.observations, row))
        if acts:
            same(at(unit[f"{prefix}next_observation"], slot), at(part.observations, row + 1))
            same(at(unit[f"{prefix}action"], slot), part.actions[row])
            same(at(unit[f"{prefix}reward"], slot), part.rewards[row])
            last = row == part.length - 1
            assert unit[f"{prefix}terminated"][slot] == part.terminations[row]
            assert unit[f"{prefix}truncated"][slot] == (
                part.truncations[row] or (last and part.end_reason != "terminated")
            )


def zeros_like(tree: Any) -> Any:
    """The same nested value, of zeros."""
    return {key: zeros_like(value) for key, value in tree.items()} if isinstance(tree, dict) else tree * 0


@pytest.mark.parametrize("cache", ["memory", "stream", "mmap"])
def test_joint_transitions(comings: el.EpisodeStore, cache: Any, tmp_path: Path) -> None:
    """A joint unit has all agents of a step in a fixed order, of one group or of all."""
    kept = el.Cache("mmap", folder=tmp_path) if cache == "mmap" else cache
    for view in (comings, comings[::-1], comings[1:2]):
        columns = [*JOINT, "agent_mask", "episode", "t"]
        loader = view.loader(4, columns=columns, group="tank", joint=True, cache=kept)
        assert loader.agents == {"tank": ("tank_0", "tank_1")}
        units = loaded(loader)
        expected = [(number, t) for number, episode in enumerate(view) for t in range(episode.length)]
        assert [(unit["episode"], unit["t"]) for unit in units] == expected
        for unit in units:
            check_joint(unit, view[int(unit["episode"])], NAMES[1::2], "", int(unit["t"]))
    both = comings.loader(4, columns=["episode", "t"], joint=True, cache=kept)
    assert list(next(iter(both))) == ["episode", "t"]
    default = comings.loader(len(units_of(comings)), joint=True, cache=kept)
    assert default.agents == {"scout": NAMES[::2], "tank": NAMES[1::2]}
    (batch,) = default
    assert sorted(batch) == sorted(f"{group}.{key}" for group in ("scout", "tank") for key in columns[:-2])
    for number, (place, t) in enumerate(units_of(comings)):
        unit = at(batch, number)
        check_joint(unit, comings[place], NAMES[::2], "scout.", t)
        check_joint(unit, comings[place], NAMES[1::2], "tank.", t)


def units_of(view: el.EpisodeView) -> list[tuple[int, int]]:
    """The number of the episode and the step of each joint unit."""
    return [(number, t) for number, episode in enumerate(view) for t in range(episode.length)]


@pytest.mark.parametrize("cache", ["memory", "stream"])
def test_joint_windows_and_episodes(comings: el.EpisodeStore, cache: Any) -> None:
    """Joint windows and whole episodes have the axis of agents after that of time, also when shuffled."""
    columns = ["scout.observation", "tank.reward", "scout.agent_mask", "mask", "t", "episode"]
    loader = comings.loader(
        3, el.Windows(3, pad="left"), columns=columns, joint=True, shuffle=True, cache=cache
    )
    units = loaded(loader)
    assert len(units) == len(units_of(comings))
    for unit in units:
        assert unit["scout.observation"].shape == (3, 2, 2) and unit["tank.reward"].shape == (3, 2)
        episode = comings[int(unit["episode"])]
        for place, (t, real) in enumerate(zip(unit["t"], unit["mask"], strict=True)):
            tank = episode.agent("tank_0")
            row = joint_rows(tank, t)
            acts = real and row is not None and row < tank.length
            assert unit["tank.reward"][place, 0] == (tank.rewards[row] if acts else 0)
            late: Any = episode.agent("scout_1") if "scout_1" in episode.agents else None
            row = None if late is None or not real else joint_rows(late, t)
            assert unit["scout.agent_mask"][place, 1] == (row is not None and row < late.length)
            same(
                unit["scout.observation"][place, 1],
                np.zeros(2, np.float32) if row is None else late.observations[row],
            )
    for number, batch in enumerate(comings.loader(1, el.Episodes(), joint=True, cache=cache)):
        (whole,) = el.unpadded(batch)
        assert len(whole["scout.observation"]) == comings[number].length + 1 == len(whole["tank.action"]) + 1
        scout = comings[number].agent("scout_0")
        same(whole["scout.observation"][: scout.length + 1, 0], scout.observations)


def test_joint_resumes(comings: el.EpisodeStore) -> None:
    """A state continues a joint loader, and is refused by one of another kind."""

    def make(**given: Any) -> el.Loader:
        return comings.loader(4, columns=["t", "episode"], shuffle=True, **given)

    whole, loader = loaded(make(joint=True)), make(joint=True)
    next(iter(loader))
    state = loader.state_dict()
    again = make(joint=True)
    again.load_state_dict(state)
    assert loaded(again) == whole[4:]
    with pytest.raises(el.errors.LoaderStateError):
        make(joint=True, group="scout").load_state_dict(state)


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


def test_after_deletion_and_compaction(tmp_path: Path) -> None:
    """Rows that moved to other files load as before, without the episodes that were deleted."""
    store = recorded(tmp_path / "store", environments.Comings)
    loader = store.loader(4, columns=COLUMNS, group="tank")
    before = loaded(loader)
    store.delete(pl.col("episode_id") == store[0].id)
    store.compact()
    store.refresh()
    check_transitions(store, NAMES[1::2], store.loader(4, columns=COLUMNS, group="tank"))
    gone = sum(unit["episode"] == 0 for unit in before)
    assert store.loader(group="tank").units == len(before) - gone > 0
    joint = loaded(store.loader(4, columns=[*JOINT, "agent_mask", "episode", "t"], group="scout", joint=True))
    for unit in joint:
        check_joint(unit, store[int(unit["episode"])], NAMES[::2], "", int(unit["t"]))


def test_agents_have_the_values_of_their_episode(comings: el.EpisodeStore) -> None:
    """Columns of episodes are those of the whole episode, for one agent, a group and joint rows."""
    view = comings[::-1]
    rows = view.episodes.select("episode_id", "length").collect()
    for cache in (el.Cache(), el.Cache("stream", buffer_bytes=3000)):
        for chosen in ({"agent": NAMES[0]}, {"group": "scout"}, {"group": "scout", "joint": True}):
            keys = ["episode_id", "length", "episode", *(["agent_mask"] if "joint" in chosen else [])]
            count = 0
            for batch in view.loader(7, columns=keys, shuffle=True, cache=cache, **chosen):
                episodes = batch["episode"].tolist()
                there = batch.get("agent_mask", np.ones((len(episodes), 1), bool))
                for key, blank in (("episode_id", ""), ("length", 0)):
                    for number, mask, found in zip(
                        episodes, there, batch[key].reshape(there.shape), strict=True
                    ):
                        # An agent that acts no more has the value in the row of its last observation only.
                        assert set(found[mask]) <= {rows[key][number]}
                        assert set(found[~mask]) <= {rows[key][number], blank}
                count += len(episodes)
            assert count > len(view)
