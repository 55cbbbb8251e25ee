"""The contract of `collect`: rules for single, vector and pool environments and for several agents.

The truth is the history of the scripted environments. The policy acts by the observation alone and records
what it saw and how often it was asked in this episode.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import episodelake as el
import recorder_adapters as adapters
from collecting_parts import interrupted
from episodelake.testing import PlayedEpisode, RecorderAdapter, ScriptedEnv, script
from episodelake.testing.adapters import case
from episodelake.testing.environments import check_episode
from episodelake.testing.values import own, same, stack

SEES = spaces.Box(-np.inf, np.inf, (2,), np.float32)
ACTS = spaces.Box(-1, 1, (2,), np.float32)
LENGTHS = ((3, 1, 4), (2, 5), (1, 1, 6, 2))
SEEDS = [7, 3, 2**40, 11, 3, 0, 19, 23, 5, 31]


def act(observation: Any) -> Any:
    """Return the action of the policy, row by row."""
    return np.clip(np.nan_to_num(observation), -1, 1).astype(np.float32)


def play(observation: Any, info: Any, state: Any) -> Any:
    """The recurrent policy, of one environment or many; it changes its state in place."""
    asked = np.zeros(observation.shape[:-1]) if state is None else state["asked"][0]
    extras = {"asked": asked.copy(), "deep": {"seen": observation[..., 0], "step": info["step"]}}
    asked += 1
    return act(observation), extras, {"asked": (asked,)}


def never(*arguments: Any) -> Any:
    """A policy or a hook that is not to be called."""
    raise AssertionError(f"called with {arguments}")


class Drawn(ScriptedEnv):
    """Counts its drawings, and raises at one of its steps."""

    render_mode: Any = None
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["human"]}
    drawn = 0
    fails = 0

    def render(self) -> None:
        """Count."""
        self.drawn += 1

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        """Step, or fail before."""
        if self.fails and self.calls + 1 == self.fails:
            self.fails = 0
            raise ZeroDivisionError("mine")
        return super().step(action)


def check_policy(episode: Any, first: float = 0) -> None:
    """Fail unless the policy saw the row that it acted on, with a state that began with the episode."""
    rows = slice(0, episode.length)
    observations = np.asarray(episode.observations)[rows]
    assert same(np.asarray(episode.actions), act(observations))
    if episode.length:
        policy = episode.policy
        assert [float(value) for value in policy["asked"][rows]] == [first + t for t in range(episode.length)]
        seen = np.asarray(policy["deep"]["seen"][rows], np.float32)
        assert np.array_equal(seen, observations[:, 0], equal_nan=True)
        steps = [info["step"] for info in episode.infos[rows]]
        assert [int(value) for value in policy["deep"]["step"][rows]] == steps


class CollectContract:
    """Rules for every kind of environment."""

    adapter: ClassVar[RecorderAdapter]
    #: How many transitions one step may have.
    batch = 1
    #: Whether the environments are agents of one episode.
    joint = False
    #: Whether resets take seeds and options.
    resets = True
    #: Whether each environment has a share of the episodes: as it is asked for, or always.
    quotas: Sequence[bool] = (False,)
    policy: Any = staticmethod(play)

    def envs(self, lengths: Sequence[Sequence[int]] = LENGTHS) -> list[Any]:
        """Return a scripted environment for each lane."""
        infos = [{"step": t} for t in range(50)]
        found = []
        for lane in range(self.adapter.lanes):
            episodes = script(
                SEES, ACTS, lengths[lane % len(lengths)], seed=lane, infos=infos, rewards=(1.0, -2.5)
            )
            found.append(Drawn(SEES, ACTS, episodes))
        return found

    def make(self, envs: Sequence[Any]) -> Any:
        """Return what is collected in."""
        return self.adapter.make(envs)  # type: ignore[attr-defined]

    def first(self, seed: int) -> dict[str, Any]:
        """Return a seed as an argument, where there may be one."""
        return {"seed": seed} if self.resets else {}

    def stored(self, store: el.EpisodeStore, lane: int) -> list[Any]:
        """Return the episodes of an environment that have a step."""
        return [each for each in self.adapter.episodes(store.refresh(), lane) if each.length]

    def check(self, store: el.EpisodeStore, envs: Sequence[Any], begun: Sequence[Any] | None = None) -> None:
        """Fail unless exactly what was played is stored, or the given part of it."""
        for lane, env in enumerate(envs):
            found, true = self.stored(store, lane), env.recorded() if begun is None else begun[lane]
            if begun is None and not self.resets:
                # What was in flight at the end was never received.
                true = [*true[: len(found) - 1], true[len(found) - 1].cut(found[-1].length)]
            assert len(found) == len(true), f"environment {lane}"
            for episode, rollout in zip(found, true, strict=True):
                with case(f"environment {lane}, {len(rollout.actions)} steps"):
                    check_episode(episode, rollout, env, self.adapter.kept_infos(rollout, lane))
                    check_policy(episode)
                    late = list(episode.policy["asked"])[episode.length :]
                    assert not rollout.done or all(value is None for value in late)
                    assert rollout.seed is None or self.joint or episode.seed == rollout.seed

    def check_stats(self, stats: el.types.CollectStats, store: el.EpisodeStore) -> None:
        """Fail unless the statistics are those of the table of episodes."""
        table = store.refresh().episodes.collect()
        ended = table.filter(table["end_reason"] != "cut")
        assert (stats.steps, stats.episodes) == (table["length"].sum(), ended.height)
        assert stats.unfinished == table.height - ended.height
        assert sorted(stats.lengths.tolist()) == ended["length"].sort().to_list()
        assert sorted(stats.returns.tolist()) == ended["episode_return"].sort().to_list()
        flags = ended["terminated"].sum(), ended["truncated"].sum()
        assert (stats.terminated, stats.truncated) == flags

    def shares(self, envs: Sequence[Any], count: int, quotas: bool) -> list[int]:
        """Return how many of `count` episodes each environment gives: the first to begin, or its share."""
        lanes = len(envs)
        if self.joint or lanes == 1:
            return [count] * lanes
        if quotas:
            return [count // lanes + (lane < count % lanes) for lane in range(lanes)]
        pause = getattr(self.adapter, "mode", None) is AutoresetMode.NEXT_STEP
        begins = []
        for lane, env in enumerate(envs):
            lengths = itertools.cycle(len(rollout.actions) for rollout in env.episodes)
            starts = itertools.accumulate(lengths, lambda at, length: at + length + pause, initial=0)
            begins += [(start, lane) for start in itertools.islice(starts, count)]
        first = sorted(begins)[:count]
        return [sum(lane == each for _, each in first) for lane in range(lanes)]

    # Goals

    def test_steps_go_on_where_they_stood(self, tmp_path: Path) -> None:
        """Calls with steps end with the batch that reaches them, and are together one uninterrupted play."""
        envs = self.envs()
        store = self.adapter.create(tmp_path / "store", envs[0])
        with store.record(self.make(envs)) as recorder:
            goals = (1, 7, 1, 20)
            calls = [
                el.collect(recorder, self.policy, store, steps=goal, **(self.first(5) if not place else {}))
                for place, goal in enumerate(goals)
            ]
        for goal, stats in zip(goals, calls, strict=True):
            assert goal <= stats.steps < goal + self.batch and stats.run_ids == (recorder.run_id,)
        self.check(store, envs)
        total = sum(calls)
        assert isinstance(total, el.types.CollectStats) and total.run_ids == (recorder.run_id,)
        self.check_stats(total, store)
        assert store.verify().faults == ()

    def test_episodes_are_the_first_that_begin(self, tmp_path: Path) -> None:
        """Exactly so many whole episodes are stored, the first to begin or by share, each told once."""
        for quotas, count in itertools.product(self.quotas, (1, 2, 7)):
            envs, ended = self.envs(), []
            store = self.adapter.create(tmp_path / f"{quotas} {count}", envs[0])
            goal = {"episodes": count, **({"quotas": quotas} if self.resets else {})}
            env = self.make(envs)
            with case(goal):
                stats = el.collect(env, self.policy, store, **goal, **self.first(5), on_episode=ended.append)
                shares = self.shares(envs, count, quotas)
                self.check(store, envs, [each.recorded()[:n] for each, n in zip(envs, shares, strict=True)])
                self.check_stats(stats, store)
                assert (stats.episodes, stats.unfinished) == (count, 0)
                told = sorted((each.id, each.length, each.episode_return) for each in ended)
                assert told == sorted((each.id, each.length, each.episode_return) for each in store)
                assert all(each.closed == 0 for each in envs) and getattr(env, "closed", 0) in (0, False)

    def test_calls_of_all_kinds_count_exactly(self, tmp_path: Path) -> None:
        """Whatever is asked of one recorder in whatever order, counts agree and each episode was played."""
        for number in range(4):
            rng, envs = np.random.default_rng(number), self.envs()
            store, calls = self.adapter.create(tmp_path / str(number), envs[0]), []
            with case(number), store.record(self.make(envs)) as recorder:
                for _ in range(5):
                    kind, count = int(rng.integers(4)), int(rng.integers(1, 15))
                    goal = {"steps": count} if kind < 2 else {"episodes": count, "quotas": kind == 2}
                    if not (self.resets and True in self.quotas):
                        goal.pop("quotas", None)
                    seeded = self.first(count) if kind == 0 else {}
                    begun = len(envs[0].history)
                    calls.append(el.collect(recorder, self.policy, store, **goal, **seeded))
                    seeds = [rollout.seed for rollout in envs[0].history[begun:]]
                    assert not seeded or seeds[0] == count
                    assert kind < 2 or self.batch == 2 or len(seeds) > 0
                    if kind >= 2:
                        assert (calls[-1].episodes, calls[-1].unfinished) == (count, 0)
                        assert calls[-1].steps == calls[-1].lengths.sum()
                    else:
                        assert count <= calls[-1].steps < count + self.batch
            table = store.refresh().episodes.collect()
            assert table["length"].sum() == sum(stats.steps for stats in calls)
            assert (table["end_reason"] != "cut").sum() == sum(stats.episodes for stats in calls)
            for lane, env in enumerate(envs):
                played = iter(env.recorded())
                for episode in self.stored(store, lane):
                    rollout = next(each for each in played if self._begins(episode, each, env))
                    whole = rollout.cut(episode.length)
                    check_episode(episode, whole, env, self.adapter.kept_infos(whole, lane))
                    check_policy(episode)

    def test_a_recorder_that_somebody_else_stepped_begins_anew(self, tmp_path: Path) -> None:
        """The current observation is not known then; what was stepped by hand is kept."""
        envs = self.envs([[9]])
        store = self.adapter.create(tmp_path / "store", envs[0])
        with store.record(self.make(envs)) as recorder:
            first = el.collect(recorder, self.policy, store, steps=3)
            self.step(recorder, np.zeros((self.batch, 2), np.float32))
            before = [len(env.history) for env in envs]
            second = el.collect(recorder, self.policy, store, steps=3)
            assert [len(env.history) - n for env, n in zip(envs, before, strict=True)] == [1] * len(envs)
        assert sum(map(len, store.refresh())) == first.steps + self.batch + second.steps
        assert float(self.stored(store, 0)[-1].policy["asked"][0]) == 0

    def step(self, recorder: Any, actions: Any) -> None:
        """Take a step by hand."""
        recorder.step(actions if self.batch > 1 else actions[0])

    def _begins(self, episode: Any, rollout: PlayedEpisode, env: ScriptedEnv) -> bool:
        """Return whether an episode is the beginning of what was played."""
        rows = rollout.observations[: episode.length + 1]
        alike = same(episode.observations, stack(env.observation_space, rows))
        return alike and (not episode.terminated or rollout.terminations[-1])

    def test_a_step_callback_ends_episodes(self, tmp_path: Path) -> None:
        """Those that it ends count, and none is recorded beyond what was asked for."""
        for count in (1, 7):
            envs = self.envs()
            store = self.adapter.create(tmp_path / str(count), envs[0])
            end = lambda step: replace(step, end=step.t == 2)  # noqa: E731
            label = lambda episode: {"label": episode.length}  # noqa: E731
            callbacks = {"step_callback": end, "episode_callback": label}
            stats = el.collect(self.make(envs), self.policy, store, episodes=count, **callbacks)
            assert stats.episodes == len(store.refresh()) == count
            assert stats.steps == stats.lengths.sum() == sum(map(len, store))
            for lane in range(len(envs)):
                assert max([each.length for each in self.stored(store, lane)], default=0) <= 2
                for episode in self.stored(store, lane):
                    check_policy(episode)
            assert all(episode.metadata == {"label": len(episode)} for episode in store)

    # Policies

    def initial(self) -> Any:
        """Return a state to begin with; that of environment k is 100 (k + 1)."""
        state = 100.0 * np.arange(1, self.adapter.lanes + 1)
        return {"asked": (state if len(state) > 1 else state[0].reshape(()),)}

    def test_states_begin_anew_with_every_episode(self, tmp_path: Path) -> None:
        """A state begins with its initial value and is recorded as it was given, whatever the policy does."""
        envs, initial = self.envs(), self.initial()
        store = self.adapter.create(tmp_path / "store", envs[0])
        policy = el.Policy(self.policy, initial_state=initial, record_state=True)
        with store.record(self.make(envs)) as recorder:
            for _ in range(3):
                el.collect(recorder, policy, store, steps=9)
        assert str(initial) == str(self.initial())
        for lane in range(len(envs)):
            for episode in self.stored(store, lane):
                check_policy(episode, 100 * (lane + 1))
                (states,) = episode.policy["state"]["asked"]
                wanted = [100 * (lane + 1) + t for t in range(episode.length)]
                assert [float(state) for state in states[: episode.length]] == wanted

    def test_hooks_change_the_action_and_keep_the_raw_one(self, tmp_path: Path) -> None:
        """Noise comes from the seeded generator; the environment gets the mapped action, both are stored."""
        envs, noise, mapped = self.envs(), [], []

        def explore(action: Any, generator: np.random.Generator) -> Any:
            noise.append(generator.normal(size=action.shape).astype(np.float32))
            action += noise[-1]  # in place: the raw action must not change
            return action

        def map_action(action: Any) -> Any:
            mapped.append(np.clip(action, -0.5, 0.5))
            return own(mapped[-1])

        store = self.adapter.create(tmp_path / "store", envs[0])
        policy = el.Policy(self.policy, explore=explore, map_action=map_action)
        el.collect(self.make(envs), policy, store, steps=25, policy_seed=8)
        drawn = np.concatenate([each.ravel() for each in noise])
        if not self.joint:
            expected = np.random.default_rng(8).normal(size=len(drawn)).astype(np.float32)
            assert np.array_equal(drawn, expected)
        sent = {tuple(row.tolist()) for each in mapped for row in np.atleast_2d(each)}
        for lane, env in enumerate(envs):
            for episode, rollout in zip(self.stored(store, lane), env.recorded(), strict=self.resets):
                assert same(episode.actions, stack(ACTS, rollout.cut(episode.length).actions))
                assert {tuple(action.tolist()) for action in episode.actions} <= sent
                raw = np.stack(list(episode.policy["raw_action"])[: episode.length])
                assert same(raw, act(episode.observations[:-1]))

    def test_random_actions_are_those_without_a_policy(self, tmp_path: Path) -> None:
        """`random=True` asks nobody and draws what `policy=None` draws; `raw_action` is the inverse of it."""
        taken = []
        for policy in (el.Policy(never, explore=never, map_action=never), None, "inverse"):
            envs = self.envs()
            store = self.adapter.create(tmp_path / str(len(taken)), envs[0])
            twice = el.Policy(never, map_action_inverse=lambda action: 2 * action)
            asked = twice if policy == "inverse" else policy
            seed = {**self.first(3), **({} if self.resets else {"policy_seed": 5})}
            el.collect(self.make(envs), asked, store, steps=20, random=policy is not None, **seed)
            taken.append(
                [[own(action) for each in env.recorded() for action in each.actions] for env in envs]
            )
            for lane in range(len(envs)):
                for episode in self.stored(store, lane):
                    raw = episode.policy.get("raw_action")
                    assert (raw is not None) == (policy == "inverse")
                    assert raw is None or same(np.stack(raw[: episode.length]), 2 * episode.actions)
        one, two, three = taken
        assert same(one, two) and same(two, three)
        assert len({tuple(action.tolist()) for lane in one for action in lane}) >= 20

    # Observers

    def test_hooks_see_every_step(self, tmp_path: Path) -> None:
        """`on_step` is told what was recorded and counted; the last report of progress has everything."""
        envs, steps, reports = self.envs(), [], []
        store = self.adapter.create(tmp_path / "store", envs[0])
        hooks = {"on_step": steps.append, "progress": reports.append}
        stats = el.collect(self.make(envs), self.policy, store, episodes=5, **hooks)
        assert [step.steps for step in steps] == list(np.cumsum([step.recorded for step in steps]))
        assert (steps[-1].steps, steps[-1].episodes) == (stats.steps, 5)
        assert all(1 <= step.recorded <= self.batch or step.recorded == 0 for step in steps)
        last = reports[-1]
        assert (last.done, last.total, last.steps, last.episodes) == (5, 5, stats.steps, 5)
        assert last.return_mean == pytest.approx(stats.return_mean) and last.steps_per_second > 0
        rows = [row for step in steps for row in self._rows(step)]
        for lane in range(len(envs)):
            for episode in self.stored(store, lane):
                actions, rewards = episode.actions.tolist(), episode.rewards.tolist()
                for t, (seen, action) in enumerate(zip(episode.observations.tolist(), actions, strict=False)):
                    row = (*seen, *action, t, *([rewards[t]] if self.resets and not self.joint else []))
                    assert any(np.array_equal(row, each, equal_nan=True) for each in rows)

    def _rows(self, step: el.types.CollectStep) -> list[Any]:
        """Return observation, action, state and reward by environment; pools and agents are paid later."""
        if isinstance(step.observation, Mapping):
            asked = {agent: step.policy[agent]["asked"] for agent in step.action}
            return [(*step.observation[agent], *act, asked[agent]) for agent, act in step.action.items()]
        parts = [step.observation, step.action, np.reshape(step.policy["asked"], (-1, 1))]
        parts += [np.reshape(step.reward, (-1, 1))] if self.resets else []
        return np.concatenate([np.atleast_2d(part) for part in parts], axis=1).tolist()

    def test_every_step_is_rendered(self, tmp_path: Path) -> None:
        """The environment draws after each step, and only where it is asked to and has a render mode."""
        envs = self.envs()
        store = self.adapter.create(tmp_path / "store", envs[0])
        with pytest.raises(el.errors.InvalidArgumentError, match="render"):
            el.collect(self.make(envs), self.policy, store, steps=5, render=True)
        assert store.refresh().runs.collect().is_empty() and not envs[0].history
        for env in envs:
            env.render_mode = "human"
        made, counted = self.make(envs), []
        if self.joint:
            made.render_mode, made.render = "human", envs[0].render
        if self.resets:
            el.collect(made, self.policy, store, steps=9, render=True, on_step=counted.append)
            drawings = [env.drawn for env in envs[: 1 if self.joint else None]]
            assert drawings == [len(counted)] * len(drawings)
            el.collect(made, self.policy, store, steps=9)
            assert [env.drawn for env in envs[: len(drawings)]] == drawings

    # Early ends

    def test_an_interrupt_keeps_what_there_is(self, tmp_path: Path) -> None:
        """Ctrl-C ends the call after the current step; all that was played is visible and counted."""
        for goal in ("steps", "episodes"):
            envs = self.envs()
            store = self.adapter.create(tmp_path / goal, envs[0])

            def interrupt(step: el.types.CollectStep) -> None:
                if step.steps >= 16:
                    signal.raise_signal(signal.SIGINT)

            before, env = signal.getsignal(signal.SIGINT), self.make(envs)
            stats = interrupted(env, self.policy, store, **{goal: 1000}, on_step=interrupt)
            assert signal.getsignal(signal.SIGINT) is before and stats.interrupted
            assert 16 <= stats.steps < 16 + self.batch
            self.check(store, envs)
            self.check_stats(stats, store)
            again = el.collect(env, self.policy, store, episodes=2)
            assert again.episodes == 2 and again.run_ids != stats.run_ids

    def test_exceptions_keep_what_was_recorded(self, tmp_path: Path) -> None:
        """What a policy or an environment raises passes on; the steps before are stored."""
        for who in ("policy", "environment"):
            envs, asked = self.envs(), itertools.count(1)
            store = self.adapter.create(tmp_path / who, envs[0])

            def broken(*given: Any, who: str = who, asked: Any = asked) -> Any:
                if who == "policy" and next(asked) == 6:
                    raise ZeroDivisionError("mine")
                return play(*given)

            envs[-1].fails = 4 if who == "environment" else 0
            policy = {"lane": broken} if self.joint else broken
            with store.record(self.make(envs)) as recorder:
                with pytest.raises(ZeroDivisionError, match="mine"):
                    el.collect(recorder, policy, store, steps=100)
                failed = [len(env.history) for env in envs]
                stats = el.collect(recorder, self.policy, store, steps=9)
            assert 9 <= stats.steps < 9 + self.batch
            if who == "environment":
                assert all(len(env.history) > n for env, n in zip(envs, failed, strict=True))
            lost = 0
            for lane, env in enumerate(envs):
                played = iter(env.recorded())
                found = self.stored(store, lane)
                for episode in found:
                    rollout = next(each for each in played if self._begins(episode, each, env)).cut(
                        episode.length
                    )
                    check_episode(episode, rollout, env, self.adapter.kept_infos(rollout, lane))
                    check_policy(episode)
                lost += env.calls - sum(map(len, found))
            # Of the step that failed nothing is kept, of any environment.
            assert lost <= (len(envs) if who == "environment" else 0)
            assert store.verify().faults == ()

    # Resets

    def test_each_episode_has_its_own_seed_and_options(self, tmp_path: Path) -> None:
        """A list or a function gives a value to the episodes in the order in which they begin."""
        levels = [{"level": number % 3} for number in range(len(SEEDS))]
        forms: tuple[Callable[[Any], Any], ...] = (list, lambda values: values.__getitem__)
        for number, (form, quotas) in enumerate(itertools.product(forms, self.quotas)):
            envs = self.envs()
            store = self.adapter.create(tmp_path / str(number), envs[0])
            given = {"seed": form(SEEDS), "options": form(levels)}
            if not self.resets:
                with pytest.raises(el.errors.InvalidArgumentError, match="a pool takes no"):
                    el.collect(self.make(envs), self.policy, store, episodes=10, **given)
                continue
            with case((form, quotas)):
                goal = {"episodes": len(SEEDS), "quotas": quotas}
                el.collect(self.make(envs), self.policy, store, **goal, **given)
                table = store.refresh().episodes.collect().sort("number")
                assert table["seed"].to_list() == SEEDS
                assert [episode.options for episode in store] == levels or len(envs) > 1
                for lane, env in enumerate(envs):
                    found = self.stored(store, lane)
                    true = [rollout for rollout in env.recorded() if rollout.options is not None]
                    for episode, rollout in zip(found, true, strict=False):
                        check_episode(episode, rollout, env, self.adapter.kept_infos(rollout, lane))
                        if not self.joint:
                            assert (episode.seed, episode.options) == (rollout.seed, rollout.options)

    def test_a_function_of_seeds_goes_on_counting(self, tmp_path: Path) -> None:
        """Over several calls on one recorder no episode is cut, and each has the next number's seed."""
        if not self.resets:
            return
        envs = self.envs()
        store = self.adapter.create(tmp_path / "store", envs[0])
        with store.record(self.make(envs)) as recorder:
            for steps in (1, 6, 13):
                el.collect(recorder, self.policy, store, steps=steps, seed=lambda number: 100 + number)
        self.check(store, envs)
        table = store.refresh().episodes.collect().sort("number")
        assert table["seed"].sort().to_list() == list(range(100, 100 + table.height))
        assert table.filter(table["end_reason"] == "cut").height <= len(envs)


class TestSingle(CollectContract):
    """One environment."""

    adapter = adapters.Single()


@pytest.mark.further
class TestAutoreset(CollectContract):
    """One environment that resets itself with the step after an end."""

    adapter = adapters.AUTORESET()


class TestWithinStep(CollectContract):
    """One environment that resets itself within its last step."""

    adapter = adapters.WITHIN_STEP()


class Vector(CollectContract):
    """Vector environments."""

    batch = 3
    quotas = (False, True)


class TestVectorNextStep(Vector):
    """Those that begin the next episode with the step after an end."""

    further_rules = ("test_calls_of_all_kinds_count_exactly",)
    adapter = adapters.Vector(AutoresetMode.NEXT_STEP)


class TestVectorSameStep(Vector):
    """Those that begin the next episode within the last step."""

    adapter = adapters.Vector(AutoresetMode.SAME_STEP)


class TestVectorDisabled(Vector):
    """Those whose caller resets what has ended."""

    further_rules = ("test_calls_of_all_kinds_count_exactly",)
    adapter = adapters.Vector(AutoresetMode.DISABLED)


class StrictPool(adapters.Pool):
    """Refuses what EnvPool hangs or aborts at: batches that do not fill up, resets of what is in flight."""

    def async_reset(self) -> None:
        """Reset all of an idle pool."""
        assert not self.ready, "reset while environments are in flight"
        super().async_reset()

    def send(self, action: Any, env_id: Any = None) -> None:
        """Send to idle environments."""
        assert not {index for index, _ in self.ready}.intersection(np.asarray(env_id).tolist()), (
            "sent to twice"
        )
        super().send(action, env_id)

    def recv(self) -> tuple[Any, ...]:
        """Return a full batch."""
        assert len(self.ready) >= self.batch_size, "would wait for ever"
        return super().recv()


class TestPool(CollectContract):
    """Environments that are ready at different times."""

    adapter = adapters.PoolOf()
    batch = 2
    quotas = (True,)
    resets = False

    def make(self, envs: Sequence[Any]) -> Any:
        """Return a strict pool."""
        return StrictPool(envs, 2)

    def step(self, recorder: Any, actions: Any) -> None:
        """Step those that came last."""
        recorder.step(actions, recorder._last_ids)


class Agents(CollectContract):
    """Several agents."""

    joint = True
    policy: Any = {"lane": play}  # noqa: RUF012

    def test_one_policy_for_all_answers_by_agent(self, tmp_path: Path) -> None:
        """It is given mappings of the agents that act, and its answers are those of single policies."""
        envs = self.envs()
        store = self.adapter.create(tmp_path / "store", envs[0])
        made = self.make(envs)

        def all_of_them(observations: Any, infos: Any, states: Any) -> Any:
            assert observations.keys() == infos.keys() == states.keys()
            turn = [made.agent_selection] if isinstance(made, adapters.InTurns) else made.agents
            assert list(observations) == turn
            answers = {agent: play(seen, infos[agent], states[agent]) for agent, seen in observations.items()}
            return tuple({agent: answer[part] for agent, answer in answers.items()} for part in range(3))

        el.collect(made, el.Policy(all_of_them, record_state=True), store, episodes=3)
        self.check(store, envs)
        for episode in self.stored(store, 1):
            states = episode.policy.get("state", [None])[: episode.length]
            asked = [None if state is None else float(state["asked"][0]) for state in states]
            assert asked == [None, *range(1, episode.length)]

    def initial(self) -> Any:
        """Return a state for each agent."""
        return {f"lane_{lane}": {"asked": (np.array(100.0 * (lane + 1)),)} for lane in range(3)}


class TestParallel(Agents):
    """Agents that act together."""

    adapter = adapters.PARALLEL()

    def step(self, recorder: Any, actions: Any) -> None:
        """Step all."""
        recorder.step(dict.fromkeys(recorder.agents, actions[0]))


class TestTurns(Agents):
    """Agents that take turns."""

    further_rules = ("test_calls_of_all_kinds_count_exactly",)
    adapter = adapters.TURNS()
