"""Collection from environments of PettingZoo, compared with plain loops over the same seeded environments."""

from __future__ import annotations

import copy
import signal
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pettingzoo
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import episodelake as el
from agent_environments import Comings, Turns
from collecting_parts import interrupted
from effort import examples
from strategies import same


class Repeatable:
    """A reset without a seed follows from the last one that had one."""

    begun = 0

    def reset(self, seed: int | None = None, options: dict | None = None) -> Any:
        """Reset with a number that counts on."""
        self.begun = self.begun + 1 if seed is None else 100 * seed
        return super().reset(self.begun, options)  # type: ignore[misc]


class Together(Repeatable, Comings):
    """All agents act at once."""


class InTurns(Repeatable, Turns):
    """Agents take turns."""


def scout(observation: Any, info: Any, state: Any) -> Any:
    """A recurrent policy of a scout; its state says how often it was asked in this episode."""
    asked = 0 if state is None else state["asked"][0]
    return int(observation.sum() + asked) % 3, {"asked": asked}, {"asked": np.array([asked + 1])}


def tank(observation: Any, info: Any, state: Any) -> Any:
    """A policy of a tank, without a state."""
    fuel = float(observation["fuel"])
    return np.array([np.sin(fuel), 0.25], np.float32), {"distribution": {"mean": fuel}}


POLICIES = {"scout": scout, "tank": tank}


@dataclass
class Part:
    """What a plain loop saw of one agent."""

    observations: list[Any] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    asked: int = 0

    def act(self, agent: str, observation: Any) -> Any:
        """Act as the agent's policy does."""
        state = {"asked": np.array([self.asked])} if self.asked else None
        self.asked += 1
        action = POLICIES[agent[:-2]](observation, {}, state)[0]
        self.actions.append(copy.deepcopy(action))
        return action


def play_together(env: Comings, seed: int | None, most: int) -> dict[str, Part]:
    """Play an episode of at most so many steps, all agents at once."""
    parts: dict[str, Part] = {}
    observations, _ = env.reset(seed=seed)
    while True:
        for agent, observation in observations.items():
            parts.setdefault(agent, Part()).observations.append(copy.deepcopy(observation))
        if not env.agents or not most:
            return parts
        most -= 1
        actions = {agent: parts[agent].act(agent, parts[agent].observations[-1]) for agent in env.agents}
        observations, rewards, *_ = env.step(actions)
        for agent, reward in rewards.items():
            parts[agent].rewards.append(reward)


def play_in_turns(env: Turns, seed: int | None, most: int) -> dict[str, Part]:
    """Play an episode of at most so many turns."""
    parts: dict[str, Part] = {}
    env.reset(seed=seed)
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, _ = env.last()
        part = parts.setdefault(agent, Part())
        if part.actions:
            part.rewards.append(reward)
        part.observations.append(copy.deepcopy(observation))
        if not most:
            break
        done = terminated or truncated
        most -= not done
        env.step(None if done else part.act(agent, observation))
    return parts


KINDS = {"together": (Together, play_together, 8), "turns": (InTurns, play_in_turns, 9)}


def plain(kind: str, seed: int, steps: int) -> list[dict[str, Part]]:
    """Play so many steps in episodes; the first is seeded."""
    make, play, length = KINDS[kind]
    env, found = make(), []
    for begun in range(0, steps, length):
        found.append(play(env, None if begun else seed, min(length, steps - begun)))
    return found


def assert_played(episode: el.TeamEpisode, parts: dict[str, Part]) -> None:
    """Fail unless an episode is what a plain loop saw, as far as that one looked."""
    for agent, part in parts.items():
        own = episode.agent(agent)
        actions = np.asarray(part.actions, own.actions.dtype).reshape(own.actions.shape)
        assert same(own.actions, actions)
        assert own.rewards.tolist()[: len(part.rewards)] == part.rewards
        for t, seen in enumerate(part.observations):
            stored = own.observations
            stored = {key: stored[key][t] for key in seen} if isinstance(seen, dict) else stored[t]
            assert same(stored, seen)
        if agent.startswith("scout"):
            assert list(own.policy.get("asked", ()))[: own.length] == list(range(own.length))
        else:
            assert (
                list(own.policy.get("distribution", {}).get("mean", ()))[: own.length]
                == own.observations["fuel"].tolist()[:-1]
            )


@pytest.mark.sample
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("goal", [{"episodes": 3}, {"steps": 21}, {"steps": 1}])
def test_every_agent_plays_as_in_a_plain_loop(tmp_path: Path, kind: str, goal: dict[str, int]) -> None:
    """Policies by group see what a plain loop sees; so many steps or episodes are recorded."""
    make, _, length = KINDS[kind]
    env = make()
    store = el.create(tmp_path / "store", env)
    stats = el.collect(env, POLICIES, store, seed=4, **goal)
    rollouts = plain(kind, 4, goal.get("steps", 3 * length))
    assert len(store.refresh()) == len(rollouts) and stats.steps == sum(map(len, store))
    assert stats.steps == goal.get("steps", 3 * length)
    assert stats.episodes == goal.get("episodes", goal.get("steps", 0) // length)
    for episode, parts in zip(store, rollouts, strict=True):
        assert_played(episode, parts)
    assert store[0].seed == 4 and store.verify().faults == ()


@pytest.mark.parametrize("kind", KINDS)
def test_one_policy_for_all_answers_by_agent(tmp_path: Path, kind: str) -> None:
    """It is given mappings of the agents that act, and its answers are those of single policies."""
    make, _, length = KINDS[kind]
    env = make()
    store = el.create(tmp_path / "store", env)

    def all_of_them(observations: Any, infos: Any, states: Any) -> Any:
        assert observations.keys() == infos.keys() == states.keys()
        assert list(observations) == ([env.agent_selection] if kind == "turns" else env.agents)
        answers = {
            agent: POLICIES[agent[:-2]](seen, infos[agent], states[agent])
            for agent, seen in observations.items()
        }
        actions = {agent: answer[0] for agent, answer in answers.items()}
        extras = {agent: answer[1] for agent, answer in answers.items()}
        return actions, extras, {agent: answer[2] for agent, answer in answers.items() if len(answer) == 3}

    el.collect(env, el.Policy(all_of_them, record_state=True), store, episodes=2, seed=4)
    for episode, parts in zip(store.refresh(), plain(kind, 4, 2 * length), strict=True):
        assert_played(episode, parts)
        own = episode.agent("scout_0")
        states = [None if state is None else state["asked"].tolist() for state in own.policy["state"]]
        assert states[: own.length] == [None, *([t] for t in range(1, own.length))]


def test_statistics_are_those_of_the_episodes_table(tmp_path: Path) -> None:
    """Returns and lengths by agent are the table's, with NaN and 0 where an agent was not there."""
    env = Comings()
    store = el.create(tmp_path / "store", env)
    stats = el.collect(env, None, store, episodes=3, seed=1)
    rows = duckdb.sql(
        "select unnest(agents), unnest(agent_returns), unnest(agent_lengths), number, episode_return "
        f"from '{tmp_path}/store/episodes/*.parquet'"
    ).fetchall()
    assert len(rows) == 12
    for agent, total, length, number, whole in rows:
        assert stats.agent_returns[agent][number] == total and stats.returns[number] == whole
        assert stats.agent_lengths[agent][number] == length
    frame = stats.frame()
    assert frame["agents"].to_list() == [list(stats.agent_returns)]
    means = [values.mean() for values in stats.agent_returns.values()]
    assert np.allclose(frame["agent_return_means"].to_list()[0], means)
    assert "scout_1" in str(stats) and len(frame) == 1
    alone = el.collect(env, None, store, episodes=1, step_callback=lambda step: el_end(step, 1))
    assert list(alone.agent_returns) == ["scout_0", "tank_0"] and alone.lengths.tolist() == [1]


def el_end(step: el.types.StepData, longest: int) -> el.types.StepData:
    """End an episode after so many of an agent's steps."""
    return el.types.StepData(**{**vars(step), "end": step.t == longest})


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorder_goes_on_where_it_stood(tmp_path: Path, kind: str) -> None:
    """Calls on one recorder make the same episodes as a single call; a foreign step makes a reset."""
    env = KINDS[kind][0]()
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder:
        for steps in (1, 2, 15, 3):
            stats = el.collect(recorder, POLICIES, store, steps=steps, seed=4 if steps == 1 else None)
            assert stats.steps == steps
    for episode, parts in zip(store.refresh(), plain(kind, 4, 21), strict=True):
        assert_played(episode, parts)
    with store.record(env) as recorder:
        el.collect(recorder, POLICIES, store, steps=2, seed=4)
        if kind == "turns":
            recorder.step(scout(recorder.last()[0], {}, None)[0])
        else:
            recorder.step({agent: env.action_space(agent).sample() for agent in recorder.agents})
        el.collect(recorder, POLICIES, store, steps=1)
    assert [len(episode) for episode in store.refresh()[-2:]] == [3, 1]


@settings(max_examples=examples(30), deadline=None)
@given(
    kind=st.sampled_from(list(KINDS)),
    calls=st.lists(st.tuples(st.sampled_from(["steps", "episodes"]), st.integers(1, 20)), max_size=4),
    longest=st.integers(0, 9),
)
def test_calls_of_all_kinds_count_exactly(kind: str, calls: list, longest: int) -> None:
    """Whatever calls follow one another, each records exactly what it was asked for."""
    with tempfile.TemporaryDirectory() as folder:
        env = KINDS[kind][0]()
        store = el.create(Path(folder) / "store", env)
        steps = episodes = 0
        with store.record(env, step_callback=lambda step: el_end(step, longest + 2)) as recorder:
            for name, count in calls:
                count = min(count, 4) if name == "episodes" else count
                stats = el.collect(recorder, POLICIES, store, **{name: count})
                assert count == (stats.episodes if name == "episodes" else stats.steps)
                steps, episodes = steps + stats.steps, episodes + stats.episodes
        lengths = [len(episode) for episode in store.refresh()]
        assert sum(lengths) == steps and len(lengths) >= episodes


@pytest.mark.parametrize("kind", KINDS)
def test_each_episode_has_its_own_seed_and_options(tmp_path: Path, kind: str) -> None:
    """A list of seeds and a function for options give every episode its own, also over several calls."""
    make, _, length = KINDS[kind]
    env, seeds = make(), [4, 9, 4]
    store = el.create(tmp_path / "store", env)
    el.collect(env, POLICIES, store, episodes=3, seed=seeds, options=lambda number: {"level": number})
    with store.record(env) as recorder:
        for steps in (length + 2, 2 * length - 2):
            el.collect(recorder, POLICIES, store, steps=steps, seed=seeds.__getitem__)
    episodes = list(store.refresh())
    assert [episode.seed for episode in episodes] == seeds * 2
    assert [(episode.options or {}).get("level") for episode in episodes] == [0, 1, 2, None, None, None]
    for episode in episodes:
        assert_played(episode, plain(kind, episode.seed, length)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_random_actions_go_back_to_their_policies(tmp_path: Path, kind: str) -> None:
    """`random=True` asks no policy, draws what `policy=None` draws, and inverts the samples of a group."""

    def never(*arguments: Any) -> Any:
        raise AssertionError(f"called with {arguments}")

    env = KINDS[kind][0]()
    store = el.create(tmp_path / "store", env)
    for policy in (never, dict.fromkeys(POLICIES, never)):
        hooked = el.Policy(policy, explore=never, map_action_inverse={"tank": lambda action: 2 * action})
        el.collect(env, hooked, store, episodes=2, seed=4, policy_seed=5, random=True)
    el.collect(env, None, store, episodes=2, seed=4, policy_seed=5)
    episodes = list(store.refresh())
    for number, episode in enumerate(episodes):
        for agent in episode.agents:
            own = episode.agent(agent)
            assert same(own.actions, episodes[number % 2].agent(agent).actions)
            raw = own.policy.get("raw_action") if number < 4 and agent.startswith("tank") else None
            assert raw is None or np.array_equal(np.stack(raw[: own.length]), 2 * own.actions)
            assert (raw is None) is (number >= 4 or agent.startswith("scout"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_is_rendered(tmp_path: Path, kind: str) -> None:
    """The environment draws after each of its steps, or each turn; without a render mode it is refused."""
    env: Any = KINDS[kind][0]()
    store = el.create(tmp_path / "store", env)
    env.render_mode = None
    with pytest.raises(el.errors.InvalidArgumentError, match="has no render mode"):
        el.collect(env, POLICIES, store, steps=5, render=True)
    drawn: list[int] = []
    env.render_mode, env.render = "human", lambda: drawn.append(1)
    assert el.collect(env, POLICIES, store, steps=5, render=True).steps == len(drawn) == 5


def test_statistics_by_agent_add_up(tmp_path: Path) -> None:
    """A sum has the agents of both calls; one that was only in the second has NaN and 0 in the first."""
    env = Comings()
    store = el.create(tmp_path / "store", env)
    short = el.collect(env, None, store, episodes=1, step_callback=lambda step: el_end(step, 1))
    whole = el.collect(env, None, store, episodes=2, seed=1)
    total = sum([short, whole])
    assert isinstance(total, el.types.CollectStats) and total.episodes == 3
    rows = duckdb.sql(
        "select agents, agent_returns, agent_lengths "
        f"from '{tmp_path}/store/episodes/*.parquet' order by ended_at"
    ).fetchall()
    assert total.agent_returns.keys() == set(env.possible_agents) and len(rows) == 3
    for agent, returns in total.agent_returns.items():
        tables = [dict(zip(row[0], zip(*row[1:], strict=True), strict=True)) for row in rows]
        expected = [table.get(agent, (np.nan, 0)) for table in tables]
        assert np.array_equal(returns, [each for each, _ in expected], equal_nan=True)
        assert total.agent_lengths[agent].tolist() == [length for _, length in expected]
    assert np.isnan(total.agent_returns["tank_1"][0])


def test_random_moves_keep_to_the_mask(tmp_path: Path) -> None:
    """Without a policy the boards of tic-tac-toe are played by the rules, and a seed repeats them."""
    board = pettingzoo.make("aec", "classic/tictactoe_v3")
    store = el.create(tmp_path / "store", board)
    for _ in range(2):
        el.collect(board, None, store, episodes=10, seed=5)
    store.refresh()
    for episode in store:
        squares = [square for own in episode.actions.values() for square in own.tolist()]
        assert len(squares) == len(set(squares)) >= 5
    for first, second in zip(store[:10], store[10:], strict=True):
        assert all(same(first.actions[agent], second.actions[agent]) for agent in first.agents)
    assert len({str(episode.actions) for episode in store[:10]}) > 5


def test_hooks_by_agent(tmp_path: Path) -> None:
    """`map_action` and `initial_state` may be mappings; steps, ends and progress are told."""
    env = Comings()
    store = el.create(tmp_path / "store", env)
    steps: list[el.types.CollectStep] = []
    ended: list[el.types.EpisodeSummary] = []
    told: list[el.types.CollectProgress] = []
    stats = el.collect(
        env,
        el.Policy(
            POLICIES,
            initial_state={"scout_1": {"asked": np.array([50])}},
            map_action={"tank": lambda action: action / 2},
            explore={
                "tank_1": lambda action, generator: action + generator.normal(0, 0.01, 2).astype(np.float32)
            },
        ),
        store,
        episodes=2,
        on_step=steps.append,
        on_episode=ended.append,
        progress=told.append,
    )
    assert [step.steps for step in steps] == list(range(1, 17)) and steps[0].action.keys() == {
        "scout_0",
        "tank_0",
    }
    assert steps[2].terminated["scout_0"] and "scout_0" in steps[2].next_observation
    assert [summary.agent_lengths["tank_0"] for summary in ended] == [7, 7] and told[-1].done == 2
    assert [summary.episode_return for summary in ended] == stats.returns.tolist()
    for episode in store.refresh():
        own = episode.agent("tank_0")
        raw = np.stack(list(own.policy["raw_action"])[: own.length])
        assert np.array_equal(raw / 2, own.actions)
        late = episode.agent("tank_1")
        raw = np.stack(list(late.policy["raw_action"])[: late.length])
        assert 0 < np.abs(raw / 2 - late.actions).max() < 0.1
        assert list(episode.agent("scout_1").policy["asked"])[:2] == [50, 51]
        assert "raw_action" not in episode.agent("scout_0").policy


@pytest.mark.sample
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("goal", [{"steps": 1000}, {"episodes": 1000}])
def test_an_interrupt_keeps_what_there_is(tmp_path: Path, kind: str, goal: dict[str, int]) -> None:
    """Ctrl-C ends the call after the step in hand and seals."""
    env = KINDS[kind][0]()
    store = el.create(tmp_path / "store", env)

    def interrupt(step: el.types.CollectStep) -> None:
        if step.steps == 13:
            signal.raise_signal(signal.SIGINT)

    stats = interrupted(env, POLICIES, store, seed=4, on_step=interrupt, **goal)
    assert (stats.interrupted, stats.steps, stats.episodes, stats.unfinished) == (True, 13, 1, 1)
    for episode, parts in zip(store.refresh(), plain(kind, 4, 13), strict=True):
        assert_played(episode, parts)


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_keeps_what_was_recorded(tmp_path: Path, kind: str) -> None:
    """What a policy raises passes on; everything before it is in the store."""
    env = KINDS[kind][0]()
    store = el.create(tmp_path / "store", env)
    asked = 0

    def broken(observation: Any, info: Any, state: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 4:
            raise ZeroDivisionError("broken")
        return scout(observation, info, state)

    with pytest.raises(ZeroDivisionError, match="broken"):
        el.collect(env, {"scout": broken, "tank": tank}, store, seed=4, steps=100)
    (episode,) = store.refresh()
    (parts,) = plain(kind, 4, len(episode))
    assert_played(episode, parts)
    assert len(episode) >= 2 and episode.end_reason == "cut"


@pytest.mark.parametrize(
    ("policy", "options", "words"),
    [
        ({"scout": scout}, {}, "policy has no entry for the agent 'tank_0' of the group 'tank'"),
        ({**POLICIES, "plane": tank}, {}, r"policy has the key 'plane'; the agents are .*'scout_0'.*'tank'"),
        ({**POLICIES, "tank": 3}, {}, "policy is int, which cannot be called"),
        (el.Policy(POLICIES, map_action={"plane": abs}), {}, "map_action has the key 'plane'"),
        (
            el.Policy(POLICIES, map_action_inverse={"plane": abs}),
            {},
            "map_action_inverse has the key 'plane'",
        ),
        (el.Policy(POLICIES, initial_state=3), {}, "initial_state is int; expected a mapping"),
        ({**POLICIES, "tank": el.Policy(tank)}, {}, "policy is Policy, .* Wrap the whole mapping in one"),
        (POLICIES, {"autoreset_mode": "NextStep"}, "autoreset_mode"),
    ],
)
def test_mappings_that_name_no_agent(
    tmp_path: Path, policy: Any, options: dict[str, Any], words: str
) -> None:
    """They are refused before anything is played, and no run is left."""
    env = Comings()
    store = el.create(tmp_path / "store", env)
    with pytest.raises(el.errors.InvalidArgumentError, match=words):
        el.collect(env, policy, store, steps=1, **options)
    assert store.refresh().runs.collect().is_empty() and env.agents == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (1, "actions of the type int; expected a mapping by agent, of .*'scout_0', 'tank_0'"),
        ({"scout_0": 1}, r"actions of \['scout_0'\]; expected them by agent"),
        (({"scout_0": 1, "tank_0": np.zeros(2, np.float32)}, {"value": {"x": 1}}), "extras of"),
        (({"scout_0": 1, "tank_0": np.zeros(2, np.float32)}, None, 3), "states of the type int"),
    ],
)
def test_answers_that_are_not_by_agent(tmp_path: Path, answer: Any, words: str) -> None:
    """The message of a policy for all says what was expected."""
    env = Comings()
    store = el.create(tmp_path / "store", env)
    with pytest.raises(el.errors.InvalidArgumentError, match=words):
        el.collect(env, lambda observations, infos, states: answer, store, steps=1)


def test_a_mapping_is_for_several_agents(tmp_path: Path) -> None:
    """For an environment with one agent it is refused."""
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    store = el.create(tmp_path / "store", env)
    with pytest.raises(el.errors.InvalidArgumentError, match=r"policy is a mapping, which is for the agents"):
        el.collect(env, {"scout": scout}, store, steps=1)


@pytest.mark.further
def test_agents_in_workers(tmp_path: Path) -> None:
    """Each worker plays an environment of its own; statistics by agent are joined."""
    store = el.create(tmp_path / "store", Comings())
    stats = el.collect(Comings, POLICIES, store, episodes=5, workers=2, seed=1)
    assert stats.episodes == 5 == len(store.refresh())
    returns = store.sql("select unnest(agents) as agent, unnest(agent_returns) from episodes").fetchall()
    for agent, own in stats.agent_returns.items():
        assert sorted(own.tolist()) == sorted(total for name, total in returns if name == agent)
