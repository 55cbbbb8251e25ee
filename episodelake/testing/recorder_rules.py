"""`RecorderContract`: the rules that hold for every way into a store, recorders and writers alike.

The truth is what a plain loop sees of the same scripted environments; see `ScriptedEnv`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars
import pytest
from gymnasium import spaces

from .. import EpisodeStore, errors, recover
from .. import open as open_store
from .adapters import RecorderAdapter, case, play
from .environments import (
    PlayedEpisode,
    ScriptedEnv,
    assert_infos,
    check_episode,
    check_outcomes,
    plain_loop,
    script,
)
from .infos import same_info
from .spaces import BOX, KINDS, PUSH
from .values import overwrite, own, same, stack

#: Those that are recorded by themselves, too.
ALONE = (*("box float16", "discrete int64", "image", "number", "text", "many", "one of", "pair", "a.b %."),)
LENGTHS = ((3, 1, 4), (2, 5), (1, 1, 6, 2))
NUMBERS = (1.0, -0.0, np.nan, 0.1, np.inf, -np.inf, 1e-320, 2.0**70, -3.5)


@dataclass
class Recording:
    """A store with recorded episodes, and the environments that they came from."""

    store: EpisodeStore
    envs: Sequence[ScriptedEnv]
    adapter: RecorderAdapter

    def pairs(self) -> list[tuple[int, Any, PlayedEpisode]]:
        """Return lane, stored episode and truth of every episode; fail unless there are as many of both."""
        pairs: list[tuple[int, Any, PlayedEpisode]] = []
        for lane, env in enumerate(self.envs):
            stored, true = self.adapter.episodes(self.store, lane), env.recorded()
            assert len(stored) == len(true), f"{len(stored)} episodes of environment {lane}, not {len(true)}"
            pairs += [(lane, episode, rollout) for episode, rollout in zip(stored, true, strict=True)]
        assert pairs
        return pairs

    def check(self, *, verified: bool = False) -> None:
        """Fail unless the store has exactly what the environments showed, and is sound if it is verified."""
        for lane, episode, rollout in self.pairs():
            with case(f"environment {lane}, episode of {len(rollout.actions)} steps"):
                check_episode(episode, rollout, self.envs[lane], self.adapter.kept_infos(rollout, lane))
        assert not verified or self.store.verify().faults == ()


class RecorderContract:
    """Rules for everything that fills a store. Subclass it in a test module and set `adapter`."""

    adapter: ClassVar[RecorderAdapter]

    @pytest.fixture(scope="class")
    @classmethod
    def sample(cls, tmp_path_factory: pytest.TempPathFactory) -> Recording:
        """Return a recording of every kind of space and info, which rules only read."""
        every = spaces.Dict(KINDS)
        # Long enough for every info.
        lengths = ((13, 12), (5, 9, 3), (9, 1, 4))
        envs = cls.envs(every, spaces.Dict(dict(reversed(KINDS.items()))), lengths, rewards=NUMBERS)
        return cls.record(tmp_path_factory.mktemp("sample"), envs, run="sample", metadata={"algo": "script"})

    @classmethod
    def envs(
        cls,
        observation_space: spaces.Space = BOX,
        action_space: spaces.Space = PUSH,
        lengths: Sequence[Sequence[int]] = LENGTHS,
        *,
        reuses: bool = False,
        infos: Sequence[Any] | None = None,
        rewards: Sequence[Any] = NUMBERS[:2],
    ) -> list[ScriptedEnv]:
        """Return one scripted environment for each lane of the adapter."""
        return [
            ScriptedEnv(
                observation_space,
                action_space,
                script(
                    observation_space,
                    action_space,
                    lengths[lane % len(lengths)],
                    seed=lane,
                    infos=cls.adapter.lane_infos(lane) if infos is None else infos,
                    rewards=rewards,
                ),
                reuses=reuses and cls.adapter.reuses,
            )
            for lane in range(cls.adapter.lanes)
        ]

    @classmethod
    def record(
        cls, path: Path, envs: Sequence[ScriptedEnv], episodes: int = 2, seed: int | None = 5, **options: Any
    ) -> Recording:
        """Record some episodes of each environment into a new store."""
        store = cls.adapter.create(path / "store", envs[0])
        with cls.adapter.open(store, envs, **options) as driver:
            play(driver, envs, episodes, seed)
        return Recording(store.refresh(), envs, cls.adapter)

    # The sample

    def test_environments_are_played_as_by_a_plain_loop(self, sample: Recording) -> None:
        """The recorder passes each action on unchanged, and neither adds nor leaves out a step or a reset."""
        for env in sample.envs:
            fresh = ScriptedEnv(env.observation_space, env.action_space, env.episodes)
            plain = plain_loop(fresh, env.calls)
            assert len(plain) == len(env.recorded())
            for ours, theirs in zip(env.recorded(), plain, strict=True):
                for name in ("actions", "observations"):
                    space = getattr(env, f"{name[:-1]}_space")
                    assert same(stack(space, getattr(ours, name)), stack(space, getattr(theirs, name)))

    def test_observations_and_actions_are_exact(self, sample: Recording) -> None:
        """Both come back to the last bit, dtype and shape, for every kind of space, and actions unclipped."""
        for lane, episode, rollout in sample.pairs():
            for name in ("observations", "actions"):
                space = getattr(sample.envs[lane], f"{name[:-1]}_space")
                for key, values in stack(space, getattr(rollout, name)).items():
                    with case(f"{name} of environment {lane}, {key!r}"):
                        assert same(getattr(episode, name)[key], values)

    def test_rewards_and_ends_are_exact(self, sample: Recording) -> None:
        """Rewards, NaN and infinities among them, returns, flags, lengths and end reasons are the loop's."""
        assert {rollout.end_reason for _, _, rollout in sample.pairs()} >= {"terminated", "truncated"}
        for lane, episode, rollout in sample.pairs():
            with case(f"environment {lane}"):
                assert len(episode) == episode.length == len(rollout.actions)
                check_outcomes(episode, rollout)

    def test_infos_are_exact(self, sample: Recording) -> None:
        """T+1 infos come back with their types, absent keys absent, whatever keys and values they have."""
        for lane, episode, rollout in sample.pairs():
            assert_infos(episode.infos, sample.adapter.kept_infos(rollout, lane))

    def test_episodes_have_ids_numbers_and_seeds(self, sample: Recording) -> None:
        """Ids are unique, numbers count from 0, a seed is that of the reset, and the run has its metadata."""
        for lane, episode, rollout in sample.pairs():
            with case(f"environment {lane}"):
                assert episode.seed == rollout.seed
        store = sample.store
        table = store.episodes.collect().sort("number")
        assert table["number"].to_list() == list(range(len(store)))
        assert table["episode_id"].n_unique() == len(store)
        (run,) = store.runs.collect().to_dicts()
        assert set(table["run_id"]) == {run["run_id"]} and run["run_id"].startswith("sample")
        assert (run["name"], run["metadata.algo"]) == ("sample", "script")

    def test_a_closed_run_leaves_a_sound_store(self, sample: Recording) -> None:
        """Polars and DuckDB read as many rows as the loop made; `verify` finds no fault, recovery nothing."""
        transitions = sum(len(rollout.actions) for _, _, rollout in sample.pairs())
        rows = transitions + len(sample.pairs())
        frame = sample.store.steps.collect()
        assert frame.height == rows and frame["reward"].count() == transitions
        names = [name.lower() for name in frame.columns]
        assert len(names) == len(set(names))
        read = sample.store.sql("select * from steps").pl()
        assert (read.height, read["reward"].count()) == (rows, transitions)
        assert sample.store.verify().faults == ()
        assert recover(sample.store.path) == []

    # Values

    def test_spaces_are_stored_exactly_by_themselves(self, tmp_path: Path) -> None:
        """A space that is not part of another one goes its own, often shorter way, and is as exact."""
        for name in filter(KINDS.__contains__, ALONE):
            with case(name):
                self.record(tmp_path / name, self.envs(KINDS[name], KINDS[name], infos=({},))).check()

    def test_rewards_of_every_number_type_are_stored(self, tmp_path: Path) -> None:
        """A reward may be any single number, an array of one item included, and comes back as its float64."""
        types = [np.float32(0.1), 3, np.int64(-7), True, np.bool_(False), np.array(0.5), np.float16(2), 2**60]
        rewards = [*types, np.array([2.0])] if self.adapter.faithful else types
        self.record(tmp_path / "types", self.envs(lengths=[[4, 5], [9]], rewards=rewards)).check()
        envs = self._raw(BOX, np.zeros((4, 2), np.float32), np.zeros((3, 2), np.float32), [np.ones(1)] * 3)
        for env in envs:
            env.reward_space = spaces.Box(-9, 9, (1,))  # type: ignore[attr-defined]
        self.record(tmp_path / "items", envs, 1, None).check()

    def test_nothing_that_was_handed_over_is_kept(self, tmp_path: Path) -> None:
        """Environments that overwrite their arrays and infos, and actions that change later, do no harm."""
        for name in ("box", "many", "pair"):
            with case(name):
                space = KINDS.get(name, BOX)
                self.record(tmp_path / name, self.envs(space, space, reuses=True)).check()

    def test_vector_rewards_are_stored(self, tmp_path: Path) -> None:
        """With a reward shape each step has several rewards, and the return is a list of sums."""
        rewards = [np.array([1.0, -2.0]), np.array([np.nan, 0.5]), np.array([3.0, 4.0])]
        envs = self.envs(rewards=rewards)
        for env in envs:
            env.reward_space = spaces.Box(-9, 9, (2,))  # type: ignore[attr-defined]
        store = self.adapter.create(tmp_path / "store", envs[0], reward_shape=(2,))
        with self.adapter.open(store, envs) as driver:
            play(driver, envs, 2)
        recording = Recording(store.refresh(), envs, self.adapter)
        recording.check()
        assert all(episode.rewards.shape == (len(episode), 2) for _, episode, _ in recording.pairs())

    def test_values_that_are_logged_stand_beside_their_observation(self, tmp_path: Path) -> None:
        """Policy values belong to the row that was current, are copied, and are absent elsewhere."""
        envs = self.envs()
        store = self.adapter.create(tmp_path / "store", envs[0])
        expected: list[dict[tuple[int, int], dict[str, Any]]] = [{} for _ in envs]
        with self.adapter.open(store, envs) as driver:
            driver.reset(5)
            for number in range(60):
                if all(env.ended() >= 2 for env in envs):
                    break
                places = [(len(env.recorded()) - 1 + (env.t == 0), env.t) for env in envs]
                if number % 2:
                    driver.log([_logged(number, lane, count=-1) for lane in range(len(envs))])
                values = [_logged(number, lane) for lane in range(len(envs))]
                for lane in driver.log(values):
                    # Of two values for one row and key the later counts.
                    expected[lane].setdefault(places[lane], {}).update(_logged(number, lane))
                for each in values:
                    overwrite(each)
                driver.step()
        recording = Recording(store.refresh(), envs, self.adapter)
        for lane in range(len(envs)):
            for number, episode in enumerate(self.adapter.episodes(recording.store, lane)):
                for t in range(episode.length + 1):
                    with case(f"environment {lane}, episode {number}, row {t}"):
                        assert same_info(logged_row(episode.policy, t), expected[lane].get((number, t), {}))
        recording.check()

    def test_seeds_of_any_size_come_back(self, tmp_path: Path) -> None:
        """A seed is kept exactly as a plain int, however wide, and 0 is a seed like any other."""
        seeds = (0, 7, 2**31, 2**63 - 1, 2**63, 2**64, 2**80, 2**200 + 1, None)
        envs = self.envs(lengths=[[9]])
        store = self.adapter.create(tmp_path / "store", envs[0])
        with self.adapter.open(store, envs) as driver:
            for seed in seeds:
                driver.reset(seed)
                driver.step()
        for _, episode, rollout in Recording(store.refresh(), envs, self.adapter).pairs():
            assert episode.seed == rollout.seed and type(episode.seed) is type(rollout.seed)

    def _raw(self, space: spaces.Space, observations: Any, actions: Any, rewards: Any) -> list[ScriptedEnv]:
        """Return environments that give such values as they are, in an episode that does not end."""
        count = len(actions)
        never = [False] * (count - 1)
        envs = []
        for _ in range(self.adapter.lanes):
            seen, infos, acts, paid = (
                own(list(values)) for values in (observations, [{}] * (count + 1), actions, rewards)
            )
            rollout = PlayedEpisode(seen, infos, acts, paid, [*never, True], [*never, False])
            envs.append(ScriptedEnv(space, PUSH, [rollout]))
            envs[-1].raw = True
        return envs

    def _refused(self, store: EpisodeStore, envs: Sequence[ScriptedEnv], match: str) -> None:
        """Fail unless stepping through values that do not fit raises, and all but them is stored."""
        driver = self.adapter.open(store, envs)
        with pytest.raises(errors.SpaceMismatchError, match=match), driver:
            driver.reset()
            for _ in range(6):
                driver.step()
        driver.recorder.close()

    def test_values_are_cast_only_where_it_is_asked_for(self, tmp_path: Path) -> None:
        """With `cast="same_kind"` float32 takes float64, rounded as numpy does; without it they raise."""
        seen = np.array([[0.1 * t, 1e-60] for t in range(8)])
        made = seen[:7] / 3
        envs = self._raw(PUSH, seen, made, [0.5] * 7)
        store = self.adapter.create(tmp_path / "store", envs[0])
        self._refused(store, envs, r"cast='same_kind'")
        assert len(store.refresh()) == 0
        if self.adapter.casts:
            envs = self._raw(PUSH, seen, made, [0.5] * 7)
            with self.adapter.open(store, envs, cast="same_kind") as driver:
                driver.reset()
                for _ in range(4):
                    driver.step()
            store.refresh()
            for lane in range(len(envs)):
                (episode,) = self.adapter.episodes(store, lane)
                assert same(episode.observations, seen[: episode.length + 1].astype(np.float32))
                assert same(episode.actions, made[: episode.length].astype(np.float32))

    def test_integers_are_exact_or_refused(self, tmp_path: Path) -> None:
        """A column of floats takes integers that it can hold; of others the error names the column."""
        odd, exact = 2**53 + 1, 2**60
        space = spaces.Box(-np.inf, np.inf, (), np.float64)
        pushes = np.zeros((6, 2), np.float32)
        for place, kind in enumerate((np.int64, np.uint64)):
            values = [kind(exact if t % 2 else 3) for t in range(7)]
            envs = self._raw(space, values, pushes, values[:6])
            store = self.adapter.create(tmp_path / str(place), envs[0])
            with case(kind), self.adapter.open(store, envs) as driver:
                driver.reset()
                for _ in range(4):
                    driver.step()
            store.refresh()
            for lane in range(len(envs)):
                (episode,) = self.adapter.episodes(store, lane)
                assert [int(value) for value in episode.observations] == values[: episode.length + 1]
                assert [int(value) for value in episode.rewards] == values[: episode.length]
            for what in ("observation", "reward"):
                wrong = [*values[:3], kind(odd), *values[4:]]
                given = (wrong, values[:6]) if what == "observation" else (values, wrong[:6])
                envs = self._raw(space, given[0], pushes, given[1])
                with case((kind, what)):
                    self._refused(store, envs, what)
            # The first of them has all its steps, the others those before the one that was refused.
            for lane in range(len(envs)):
                episodes = sorted(self.adapter.episodes(store.refresh(), lane), key=len)
                assert all(len(episode) <= 3 for episode in episodes[:-1])
                assert all(exact == max(episode.rewards) or len(episode) < 2 for episode in episodes)

    # Ends

    def test_closing_in_the_middle_cuts(self, tmp_path: Path) -> None:
        """Open episodes are kept as cut, without flags; another handle shows them when it is refreshed."""
        envs = self.envs(lengths=[[4], [5], [6]])
        store = self.adapter.create(tmp_path / "store", envs[0])
        watcher = open_store(store.path)
        driver = self.adapter.open(store, envs)
        driver.reset(1)
        for _ in range(3):
            driver.step()
        driver.close()
        driver.close()
        assert len(watcher) == 0 and watcher.steps.collect().height == 0
        recording = Recording(watcher.refresh(), envs, self.adapter)
        recording.check(verified=True)
        assert {episode.end_reason for _, episode, _ in recording.pairs()} == {"cut"}

    def test_a_reset_in_the_middle_cuts(self, tmp_path: Path) -> None:
        """A reset ends running episodes as cut; its seed and options are kept, without a step nothing is."""
        envs = self.envs(lengths=[[3, 4, 2, 5]])
        store = self.adapter.create(tmp_path / "store", envs[0])
        with self.adapter.open(store, envs) as driver:
            for seed in range(4):
                options = {"level": np.int64(seed), "deep": {"names": ["a", "ü"], "flag": None}}
                driver.reset(seed, options)
                overwrite(options)
                for _ in range(seed % 3):
                    driver.step()
            driver.reset()
        recording = Recording(store.refresh(), envs, self.adapter)
        recording.check(verified=True)
        rows = sum(len(rollout.actions) + 1 for _, _, rollout in recording.pairs())
        assert recording.store.steps.collect().height == rows
        for lane, env in enumerate(envs):
            stepped = [number for number, rollout in enumerate(env.history) if rollout.actions]
            for episode, number in zip(self.adapter.episodes(store, lane), stepped, strict=True):
                rollout, options = (
                    env.history[number],
                    {"level": number, "deep": {"names": ["a", "ü"], "flag": None}},
                )
                passed = None if rollout.options is None else options
                assert (episode.seed, episode.options) == (rollout.seed, passed)

    def test_recording_nothing_leaves_an_empty_store(self, tmp_path: Path) -> None:
        """A recorder that was never stepped leaves no episode, and a store that still answers."""
        envs = self.envs()
        store = self.adapter.create(tmp_path / "store", envs[0])
        self.adapter.open(store, envs).close()
        with self.adapter.open(store, envs) as driver:
            driver.reset(3)
        assert len(store.refresh()) == 0 and store.steps.collect().height == 0
        assert store.sql("select count(*) from transitions").fetchall() == [(0,)]

    def test_an_exception_in_the_block_keeps_what_there_was(self, tmp_path: Path) -> None:
        """Leaving a `with` block by an exception seals open episodes and passes it on."""
        envs = self.envs()
        store = self.adapter.create(tmp_path / "store", envs[0])
        with pytest.raises(ZeroDivisionError), self.adapter.open(store, envs) as driver:
            driver.reset(1)
            driver.step()
            raise ZeroDivisionError
        Recording(store.refresh(), envs, self.adapter).check(verified=True)

    def test_a_closed_recorder_refuses_to_go_on(self, tmp_path: Path) -> None:
        """After `close` another reset or step is an error, and no environment is touched."""
        envs = self.envs()
        store = self.adapter.create(tmp_path / "store", envs[0])
        driver = self.adapter.open(store, envs)
        driver.reset(1)
        driver.step()
        driver.close()
        touched = [(len(env.history), env.calls) for env in envs]
        for call in (driver.reset, driver.step):
            with pytest.raises(errors.RecorderStateError):
                call()
        if self.adapter.wraps:
            assert touched == [(len(env.history), env.calls) for env in envs]
        assert len(store.refresh()) > 0

    # Handles

    def test_handles_at_the_same_time_keep_apart(self, tmp_path: Path) -> None:
        """Two runs of one name, side by side, and one after them share a store and mix nothing up."""
        groups = [self.envs(), self.envs(lengths=[[2, 3]]), self.envs(lengths=[[1, 7]])]
        store = self.adapter.create(tmp_path / "store", groups[0][0])
        with (
            self.adapter.open(store, groups[0], run="a") as one,
            self.adapter.open(open_store(store.path), groups[1], run="a") as two,
        ):
            for driver in (one, two):
                driver.reset(1)
            for number in range(40):
                one.step()
                if number % 2:
                    two.step()
        with self.adapter.open(store, groups[2], run="a") as driver:
            play(driver, groups[2], 2)
        runs = store.refresh().runs.collect().sort("started_at")["run_id"].to_list()
        assert len(set(runs)) == 3
        counted = 0
        for envs in groups:
            wanted = [len(rollout.actions) for env in envs for rollout in env.recorded()]
            matches = [
                view
                for view in (store.filter(polars.col("run_id") == run) for run in runs)
                if self._holds(view, envs)
            ]
            assert len(matches) == 1, f"{len(matches)} runs have the episodes of {wanted}"
            counted += len(matches[0])
        assert counted == len(store) and store.verify().faults == ()

    def _holds(self, view: Any, envs: Sequence[ScriptedEnv]) -> bool:
        try:
            for lane, env in enumerate(envs):
                stored, true = self.adapter.episodes(view, lane), env.recorded()
                if len(stored) != len(true):
                    return False
                for episode, rollout in zip(stored, true, strict=True):
                    check_episode(episode, rollout, env, self.adapter.kept_infos(rollout, lane))
        except AssertionError:
            return False
        return True

    def test_a_key_may_change_its_type_between_runs(self, tmp_path: Path) -> None:
        """A value whose type contradicts the column of an earlier run comes back as it was recorded."""
        values = [1, "one", 1.5, [1], np.ones(2), {"a": 1}, True, None, 2**70, b"x"]
        infos = [{"key": value, "Key": value} for value in values]
        store, groups = None, []
        for info in infos:
            if not self.adapter.carries(info):
                continue
            envs = self.envs(lengths=[[2]], infos=[info])
            if store is None:
                store = self.adapter.create(tmp_path / "store", envs[0])
            with self.adapter.open(store, envs) as driver:
                play(driver, envs, 1)
            groups.append(envs)
        assert store is not None and len(groups) > 2
        store.refresh()
        for lane in range(self.adapter.lanes):
            true = [(env, rollout) for envs in groups for env in (envs[lane],) for rollout in env.recorded()]
            stored = self.adapter.episodes(store, lane)
            stored.sort(key=operator.attrgetter("started_at"))
            assert len(stored) == len(true)
            for episode, (env, rollout) in zip(stored, true, strict=True):
                check_episode(episode, rollout, env, self.adapter.kept_infos(rollout, lane))


def _logged(number: int, lane: int, **changed: Any) -> dict[str, Any]:
    own = np.array([number, lane], np.float32)
    seldom = {"seldom": 1} if number % 3 == lane else {}
    return {"count": number, "deep": {"own": own}, "word": f"{lane}.{number}", **seldom, **changed}


def logged_row(policy: Any, t: int) -> Any:
    """Return the policy values of a row, absent ones left out; rows behind the last value have none."""
    if not isinstance(policy, dict):
        value = policy[t] if t < len(policy) else None
        return value.item() if isinstance(value, np.generic) else value
    row = {name: logged_row(part, t) for name, part in policy.items()}
    return {
        name: value
        for name, value in row.items()
        if not (value is None or (isinstance(value, dict) and not value))
    }
