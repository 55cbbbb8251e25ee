"""Pausing, discarding, and going on without a reset: what is stored, against plain loops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import Autoreset

import episodelake as el
from agent_environments import Comings, Turns
from nasty_environments import (
    Rollout,
    SameStep,
    SmallEnv,
    advance,
    assert_recorded,
    new_store,
    play,
    seeds,
)
from plain_agents import check_agents, play_parallel, play_turns, random_policy
from test_pool_recorder import Pool

PUSH = np.zeros(2, np.float32)


def steps(env: Any, count: int) -> None:
    """Take some steps."""
    for _ in range(count):
        env.step(PUSH)


def alone(env: gym.Env, seed: int, count: int) -> Rollout:
    """Reset an environment and take some steps with it, unrecorded."""
    observation, info = env.reset(seed=seed)
    rollout = Rollout([observation], [info])
    for _ in range(count):
        advance(env, rollout, PUSH)
    return rollout


def shapes(store: el.EpisodeStore) -> list[tuple[int, str, int | None]]:
    """Return length, end reason and seed of every episode, in order."""
    return [(episode.length, episode.end_reason, episode.seed) for episode in store.refresh()]


def test_a_pause_cuts_the_episode_and_ends_with_the_next_reset(tmp_path: Path) -> None:
    """Steps and resets of the pause reach the environment, and nothing of it is stored."""
    env, truth = SmallEnv(9), SmallEnv(9)
    store = new_store(tmp_path, env)
    with store.record(env) as recorder:
        recorder.reset(seed=1)
        steps(recorder, 2)
        recorder.pause()
        recorder.pause()
        assert recorder.paused and recorder.episode_id is None
        steps(recorder, 3)
        recorder.log(lost=1)
        recorder.reset(seed=2)
        steps(recorder, 2)
        recorder.resume()
        recorder.resume()
        assert not recorder.paused
        recorder.log(lost=2)
        steps(recorder, 2)
        recorder.reset(seed=3)
        steps(recorder, 4)
    assert shapes(store) == [(2, "cut", 1), (4, "cut", 3)]
    assert_recorded(store[0], alone(truth, 1, 2), env, "cut")
    truth.reset()
    assert_recorded(store[1], alone(truth, 3, 4), env, "cut")
    assert not any("policy.lost" in name for name in store.steps.collect_schema().names())
    assert env.stepped == 13 and not store.verify().faults


@pytest.mark.parametrize("started", [False, True])
def test_a_pause_without_a_step_stores_nothing(tmp_path: Path, started: bool) -> None:
    """Before the first reset, and right behind one."""
    store = new_store(tmp_path, SmallEnv(9))
    with store.record(SmallEnv(9)) as recorder:
        if started:
            recorder.reset(seed=1)
        recorder.pause()
        recorder.reset(seed=2)
        steps(recorder, 12)  # past the end: the environment does not mind, so the recorder does not
        recorder.resume()
        recorder.reset(seed=3)
        steps(recorder, 9)
    assert shapes(store) == [(9, "terminated", 3)]


def test_a_pause_behind_the_end_keeps_the_end(tmp_path: Path) -> None:
    """The flags, the callback's metadata and what is logged behind the last step are stored."""
    store = new_store(tmp_path, SmallEnv(3))
    with store.record(SmallEnv(3), episode_callback=lambda episode: {"n": episode.number}) as recorder:
        recorder.reset(seed=1)
        steps(recorder, 3)
        recorder.pause()
        recorder.log(value=7)
        recorder.reset(seed=2)
        recorder.resume()
    (episode,) = store.refresh()
    assert (episode.end_reason, episode.metadata, episode.policy["value"][-1]) == ("terminated", {"n": 0}, 7)


@pytest.mark.parametrize("wrap", [Autoreset, SameStep])
def test_recording_resumes_with_the_next_autoreset(tmp_path: Path, wrap: Any) -> None:
    """Where the environment resets itself, its next episode is recorded from its first observation."""
    env: Any = wrap(SmallEnv(4)) if wrap is Autoreset else SameStep(4)
    calls = 5 if wrap is Autoreset else 4  # of one episode
    store = new_store(tmp_path, env)
    with store.record(env) as recorder:
        recorder.reset(seed=1)
        steps(recorder, 2)
        recorder.pause()
        steps(recorder, calls)
        recorder.resume()
        steps(recorder, 2 * calls)
    found = [(e.length, e.end_reason, e.observations[0, 1].item()) for e in store.refresh()]
    assert found[:2] == [(2, "cut", 0.0), (4, "terminated", 2.0)]
    assert not store.verify().faults


def test_an_exception_before_a_pause_still_wants_a_reset(tmp_path: Path) -> None:
    """A pause is no way round a step that failed."""
    store = new_store(tmp_path, SmallEnv(9))
    with store.record(SmallEnv(9)) as recorder:
        recorder.reset()
        with pytest.raises(el.errors.SpaceMismatchError):
            recorder.unwrapped.look = lambda: "nothing"  # type: ignore[attr-defined]
            recorder.step(PUSH)
        recorder.pause()
        recorder.resume()
        with pytest.raises(el.errors.RecorderStateError, match="exception"):
            recorder.step(PUSH)


@pytest.mark.parametrize("taken", [0, 2, 4])
@pytest.mark.parametrize("flushed", [False, True])
def test_a_discarded_episode_is_gone(tmp_path: Path, taken: int, flushed: bool) -> None:
    """Before its first step, in the middle, or behind its end; its rows may be in the journal already."""
    store = new_store(tmp_path, SmallEnv(4))
    with store.record(SmallEnv(4)) as recorder:
        play(recorder, seeds(1))
        recorder.reset(seed=2)
        steps(recorder, min(taken, 3))
        if flushed:
            recorder.flush()
        steps(recorder, taken - min(taken, 3))
        recorder.log(value=1)
        gone = recorder.episode_id
        recorder.discard_episode()
        with pytest.raises(el.errors.RecorderStateError, match="no episode to discard"):
            recorder.discard_episode()
        assert recorder.episode_id is None
        steps(recorder, min(1, 4 - taken))  # unrecorded
        play(recorder, seeds(3))
        assert recorder.episode_id != gone
    assert shapes(store) == [(4, "terminated", 1), (4, "terminated", 3)]
    assert len({episode.id for episode in store}) == 2 and gone not in [episode.id for episode in store]
    assert not store.verify().faults


def test_callbacks_cannot_change_what_is_being_recorded(tmp_path: Path) -> None:
    """A callback that pauses or discards is refused, and says what to do."""
    store = new_store(tmp_path, SmallEnv(4))
    calls: list[Any] = []
    options = {"step_callback": lambda step: calls[0](), "episode_callback": lambda episode: calls[0]()}
    for name, callback in options.items():
        with store.record(SmallEnv(4), **{name: callback}) as recorder:
            for call in (recorder.pause, recorder.resume, recorder.discard_episode):
                calls[:] = [call]
                with pytest.raises(el.errors.RecorderStateError, match=r"StepData\.end"):
                    play(recorder, seeds(1))
                assert not recorder.paused
            calls[:] = [lambda: None]


def test_a_closed_recorder_neither_pauses_nor_discards(tmp_path: Path) -> None:
    """As every other call."""
    recorder = new_store(tmp_path, SmallEnv(4)).record(SmallEnv(4))
    recorder.close()
    for call in (recorder.pause, recorder.resume, recorder.discard_episode):
        with pytest.raises(el.errors.RecorderStateError, match="closed"):
            call()


KILLED = """
import os, signal, sys
import numpy as np
import episodelake as el
from gymnasium.vector import SyncVectorEnv
from nasty_environments import SmallEnv

store = el.open(sys.argv[1])
kind, durability, when = sys.argv[2:]
envs = SmallEnv(9) if kind == "single" else SyncVectorEnv([lambda: SmallEnv(9)] * 2)
recorder = store.record(envs, run="a", durability=durability, flush_seconds=1e6, seal_seconds=1e6)
for seed in range(3):
    recorder.reset(seed=seed)
    for _ in range(5):
        recorder.step(np.zeros(recorder.action_space.shape, np.float32))
if when == "journalled":
    recorder.flush()
recorder.discard_episode(*([1] if kind == "vector" else []))
if when != "journalled":
    recorder.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("kind", "durability"),
    [("single", "flush"), ("single", "fsync"), ("single", "none"), ("vector", "flush")],
)
@pytest.mark.parametrize("when", ["journalled", "in memory"])
def test_no_recovery_brings_a_discarded_episode_back(
    tmp_path: Path, kind: str, durability: str, when: str
) -> None:
    """Whether its rows were in the journal when it was discarded or not."""
    new_store(tmp_path, SmallEnv(9))
    path = tmp_path / "store"
    folders = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-c", KILLED, str(path), kind, durability, when]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)}, timeout=120)
    assert done.returncode == -signal.SIGKILL
    el.recover(path)
    store = el.open(path)
    if kind == "single":
        assert shapes(store) == [(5, "cut", 0), (5, "cut", 1)]
    else:
        found = sorted((e.env_index, e.seed, e.end_reason) for e in store)
        kept = [(0, 0, "cut"), (0, 1, "cut"), (0, 2, "interrupted"), (1, 1, "cut"), (1, 2, "cut")]
        assert found == kept and {e.length for e in store} == {5}
    assert not store.verify().faults


@pytest.mark.parametrize("flushed", [False, True])
def test_an_open_episode_is_discarded_beside_others(tmp_path: Path, flushed: bool) -> None:
    """The others go on, and the discarded one takes nothing more."""
    store = new_store(tmp_path, SmallEnv())
    with store.writer(flush_seconds=1e6, seal_seconds=1e6) as writer:
        kept, gone = (writer.begin(np.zeros(3, np.float32), seed=seed) for seed in (1, 2))
        for episode in (kept, gone, kept):
            episode.append(PUSH, 1.0, np.ones(3, np.float32))
        if flushed:
            writer.flush()
        gone.discard()
        if flushed:
            (part,) = (tmp_path / "store" / "journal").rglob("*.frames")
            assert b'"discard"' in part.read_bytes()
        for call in (gone.discard, gone.end, lambda: gone.append(PUSH, 1.0, np.ones(3, np.float32))):
            with pytest.raises(el.errors.RecorderStateError, match="has ended"):
                call()
        kept.append(PUSH, 1.0, np.ones(3, np.float32), terminated=True)
        kept.end()
        with pytest.raises(el.errors.RecorderStateError, match="has ended"):
            kept.discard()
    assert shapes(store) == [(3, "terminated", 1)]
    assert not store.verify().faults


def once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: BaseException) -> None:
    """Have the next call of a method fail before it does anything, and the later ones work."""
    method = getattr(owner, name)

    def failing(*args: Any) -> Any:
        monkeypatch.setattr(owner, name, method)
        raise error

    monkeypatch.setattr(owner, name, failing)


@pytest.mark.sample(2)
@pytest.mark.parametrize("repeated", [True, False])
@pytest.mark.parametrize("place", ["forget", "flush"])
@pytest.mark.parametrize("team", [False, True])
def test_a_discard_that_fails_may_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, team: bool, place: str, repeated: bool
) -> None:
    """Interrupted anywhere, or without a journal, nothing of the episode is stored, not even by `close`."""
    here = np.zeros(3, np.float32)
    spaces = Box(-9, 9, (3,), np.float32), Box(-1, 1, (2,), np.float32)
    names = ("observation_space", "action_space")
    kind: dict[str, Any] = {"agents": {"a": spaces}} if team else dict(zip(names, spaces, strict=True))
    store = el.create(tmp_path / "store", **kind)
    options = {"flush_seconds": 1e6, "seal_seconds": 1e6}
    with (store.team_writer if team else store.writer)(**options) as writer:
        gone = writer.begin({"a": here} if team else here)
        step = [PUSH, 1.0, here]
        gone.append(*([{"a": value} for value in step] if team else step))
        writer.flush()
        session = writer.session
        owner = session.finished if place == "forget" else session
        error = KeyboardInterrupt() if place == "forget" else el.errors.StoreAccessError("full")
        once(monkeypatch, owner, place, error)
        with pytest.raises(type(error)):
            gone.discard()
        with pytest.raises(el.errors.RecorderStateError, match="has ended"):
            gone.append(*([{"a": value} for value in step] if team else step))
        if repeated:
            gone.discard()
            (part,) = (tmp_path / "store" / "journal").rglob("*.frames")
            assert b'"discard"' in part.read_bytes()
            with pytest.raises(el.errors.RecorderStateError, match="has ended already"):
                gone.discard()
    assert len(store.refresh()) == 0 and not store.verify().faults


def test_a_callback_goes_on_without_a_reset(tmp_path: Path) -> None:
    """The next episode begins with the last row's observation, info and extra columns, as recorded."""
    truth = alone(SmallEnv(9), 1, 9)

    def split(step: el.types.StepData) -> el.types.StepData:
        end: Any = "continue" if step.t in (0, 3) else False
        return replace(step, truncated=step.t == 3, extra={"at": step.t}, end=end)

    store = new_store(tmp_path, SmallEnv(9))
    seen: list[int] = []
    callbacks = {"step_callback": split, "episode_callback": lambda episode: seen.append(episode.length)}
    with store.record(SmallEnv(9), **callbacks) as env:
        env.reset(seed=1, options={"level": 2})
        for t in range(9):
            env.log(t=t)
            env.step(PUSH)
    assert shapes(store) == [(3, "truncated", 1), (3, "truncated", None), (3, "terminated", None)]
    assert seen == [3, 3, 3]
    for k, episode in enumerate(store):
        rows = slice(3 * k, 3 * k + 4)
        assert np.array_equal(episode.observations, np.array(truth.observations[rows]))
        assert list(episode.infos) == truth.infos[rows]
        assert episode.rewards.tolist() == truth.rewards[3 * k : 3 * k + 3]
        assert list(episode.policy["t"][:3]) == [3 * k, 3 * k + 1, 3 * k + 2]
        assert list(episode.extra["at"]) == [3 if k else 0, 1, 2, 3]
        assert episode.options == (None if k else {"level": 2})
    assert not store.verify().faults


def test_going_on_without_flags_cuts(tmp_path: Path) -> None:
    """An episode that a callback ends without a flag has the end reason `cut`."""
    store = new_store(tmp_path, SmallEnv(9))
    with store.record(
        SmallEnv(9), step_callback=lambda step: replace(step, end="continue" if step.t == 2 else False)
    ) as env:
        env.reset(seed=1)
        steps(env, 5)
    assert shapes(store) == [(2, "cut", 1), (2, "cut", None), (1, "cut", None)]


def test_an_unknown_end_is_refused(tmp_path: Path) -> None:
    """A word with a slip is no True."""
    store = new_store(tmp_path, SmallEnv(9))
    end: Any = "continued"
    env = store.record(SmallEnv(9), step_callback=lambda step: replace(step, end=end))
    with env, pytest.raises(el.errors.InvalidArgumentError, match="'continued'"):
        env.reset()


# Several agents


def act(env: Any, count: int) -> None:
    """Take some steps of a parallel environment, or turns of one in turns."""
    for _ in range(count):
        if isinstance(env.unwrapped, Turns):
            env.step(None if any(env.last()[2:4]) else env.action_space(env.agent_selection).sample())
        else:
            env.step({agent: env.action_space(agent).sample() for agent in env.agents})


@pytest.mark.parametrize("make", [Comings, Turns])
def test_recorders_of_several_agents_pause_and_discard(tmp_path: Path, make: Any) -> None:
    """One episode is cut by a pause, one is discarded, and the one behind them is as a plain loop sees it."""
    store = el.create(tmp_path / "store", make())
    turns = make is Turns
    play_own = play_turns if turns else play_parallel
    with store.record(make(), flush_seconds=1e6) as recorder:
        recorder.reset(seed=1)
        act(recorder, 2)
        recorder.pause()
        act(recorder, 1)
        log = ("scout_0",)
        recorder.log(*log, lost=1)
        recorder.reset(seed=2)
        act(recorder, 2)
        recorder.resume()
        act(recorder, 1)
        recorder.reset(seed=3)
        act(recorder, 2)
        recorder.flush()
        recorder.discard_episode()
        act(recorder, 1)
        recorder.log(*log, lost=1)
        with pytest.raises(el.errors.RecorderStateError, match="no episode to discard"):
            recorder.discard_episode()
        play_own(recorder, random_policy(recorder, 4), 4)
        last = recorder.episode_id
    episodes: list[Any] = list(store.refresh())
    first, second = episodes
    assert (first.seed, first.end_reason, first.length) == (1, "cut", 2)
    assert second.seed == 4 and second.id == last
    plain = make()
    check_agents(second, play_own(plain, random_policy(plain, 4), 4))
    assert not any("lost" in name for name in store.steps.collect_schema().names())
    assert not store.verify().faults


def test_a_callback_goes_on_with_all_agents_that_are_there(tmp_path: Path) -> None:
    """Whom the environment took away ends; the others begin the next episode where they are."""
    plain = Comings()
    lanes = play_parallel(plain, random_policy(plain, 1), 1)
    splits = (3, 5)

    def split(step: el.types.StepData) -> el.types.StepData:
        at = step.agent == "tank_0" and step.t > 0 and made[-1] in splits
        return replace(step, truncated=at or step.truncated, end="continue" if at else False)

    class Counting(Comings):
        def step(self, actions: dict[str, Any]) -> Any:
            result = super().step(actions)
            made.append(self._step)
            return result

    made = [0]
    store = el.create(tmp_path / "store", Comings())
    with store.record(Counting(), step_callback=split, state=True) as recorder:
        play_parallel(recorder, random_policy(recorder, 1), 1)
    episodes: list[Any] = list(store.refresh())
    assert [(e.length, e.seed) for e in episodes] == [(3, 1), (2, None), (3, None)]
    assert [sorted(e.agents) for e in episodes] == [
        ["scout_0", "scout_1", "tank_0"],
        ["scout_1", "tank_0"],
        ["scout_1", "tank_0", "tank_1"],
    ]
    assert [e.agent("tank_0").end_reason for e in episodes] == ["truncated"] * 3
    for name in lanes:
        lane, parts = lanes[name], [e.agent(name) for e in episodes if name in e.agents]
        assert np.concatenate([part.rewards for part in parts]).tolist() == lane.rewards
        seen = [step for e in episodes if name in e.agents for step in e.agent(name).infos]
        assert len(seen) == len(lane.infos) + len(parts) - 1
    assert [e.states[:, 0].tolist() for e in episodes] == [[0, 1, 2, 3], [3, 4, 5], [5, 6, 7, 8]]
    assert not store.verify().faults


def test_agents_in_turns_cannot_go_on(tmp_path: Path) -> None:
    """Outcomes of the last turns are not known yet, so it is refused."""
    store = el.create(tmp_path / "store", Turns())
    end: Any = "continue"
    recorder = store.record(Turns(), step_callback=lambda step: replace(step, end=end))
    with recorder, pytest.raises(el.errors.InvalidArgumentError, match="end=True"):
        recorder.reset()


# Many environments


class Quiet(SmallEnv):
    """Has no infos, so that a vector recorder takes its shortest way."""

    def tell(self) -> Any:
        """Say nothing."""
        return {}


class Model:
    """What must be stored of several environments, by the rows that a plain loop sees."""

    def __init__(self, count: int, *, goes_on: bool) -> None:
        self.stored: list[tuple[int, list[Any], str]] = []
        self.paused = False
        self._goes_on = goes_on
        self._rows: list[list[Any] | None] = [None] * count
        self._done = [False] * count

    def begin(self, env: int, observation: Any) -> None:
        """An environment shows its first observation."""
        self._finish(env)
        self._rows[env] = None if self.paused else [observation.tolist()]

    def step(self, env: int, observation: Any, done: bool) -> None:
        """An environment made a step."""
        rows = self._rows[env]
        if rows is None or self._done[env]:
            return
        rows.append(observation.tolist())
        self._done[env] = bool(done)
        if self._goes_on and observation[0] == 2 and not done:
            self._finish(env)
            self._rows[env] = [observation.tolist()]

    def pause(self) -> None:
        """Everything in hand ends."""
        for env in range(len(self._rows)):
            self._finish(env)
        self.paused = True

    def flush(self) -> None:
        """What has ended is no longer in hand."""
        for env in np.flatnonzero(self._done).tolist():
            self._finish(env)

    def discard(self, env: int) -> bool:
        """Drop an episode; tell whether there is one."""
        found, self._rows[env], self._done[env] = self._rows[env] is not None, None, False
        return found

    def _finish(self, env: int) -> None:
        rows = self._rows[env]
        if rows is not None and len(rows) > 1:
            self.stored.append((env, rows, "terminated" if self._done[env] else "cut"))
        self._rows[env], self._done[env] = None, False

    def meddle(self, recorder: Any, rng: np.random.Generator) -> None:
        """Perhaps pause, resume, discard or flush."""
        kind = rng.integers(12)
        if kind == 0:
            recorder.pause()
            self.pause()
        elif kind <= 2:
            recorder.resume()
            self.paused = False
        elif kind == 3:
            recorder.flush()
            self.flush()
        elif kind <= 6:
            env = int(rng.integers(len(self._rows)))
            if self.discard(env):
                recorder.discard_episode(env if kind == 4 else [env])
            else:
                with pytest.raises(el.errors.RecorderStateError, match="no episode to discard"):
                    recorder.discard_episode(env)
        assert recorder.paused == self.paused

    def check(self, store: el.EpisodeStore, recorder: Any) -> None:
        """Fail unless exactly this was stored."""
        self.pause()
        assert not store.refresh().verify().faults
        found = sorted((e.env_index, e.number, e.observations.tolist(), e.end_reason) for e in store)
        by_env = sorted(self.stored, key=lambda each: each[0])
        assert [(each[0], *each[2:]) for each in found] == by_env
        assert recorder.episodes == len(by_env)
        assert recorder.transitions == sum(len(rows) - 1 for _, rows, _ in by_env)


def go_on(step: el.types.StepData) -> el.types.StepData:
    """Go on with the next episode wherever the environment has made two steps."""
    return replace(step, end="continue" if step.observation[0] == 2 else False)


MODES = tuple(AutoresetMode)
LENGTHS = (2, 3, 5)
# A flush or seal by chance between the end of an episode and its last values.
STORED = "ignore:The episodes of the environments:RuntimeWarning"


def log_if_open(recorder: Any, value: np.ndarray) -> None:
    """Log a value, unless all episodes that it is for are stored."""
    try:
        recorder.log(value=value)
    except el.errors.RecorderStateError as error:
        assert "are stored" in str(error)


@pytest.mark.filterwarnings(STORED)
@pytest.mark.sample(10)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("callback", [None, go_on])
@pytest.mark.parametrize("kind", [SmallEnv, Quiet])
def test_vector_recorders_store_what_the_rules_say(
    tmp_path: Path, seed: int, mode: AutoresetMode, callback: Any, kind: Any
) -> None:
    """Whatever is paused, discarded and gone on with in which order."""
    rng, model = np.random.default_rng(seed), Model(len(LENGTHS), goes_on=callback is not None)
    envs = SyncVectorEnv([lambda n=n: kind(n) for n in LENGTHS], autoreset_mode=mode)
    store = el.create(tmp_path / "store", envs)
    actions = np.zeros((len(LENGTHS), 2), np.float32)
    with store.record(envs, step_callback=callback) as recorder:
        for _ in range(3):
            observations, _ = recorder.reset(seed=seed)
            done = np.zeros(len(LENGTHS), bool)
            for env, observation in enumerate(observations):
                model.begin(env, observation)
            for _ in range(40):
                model.meddle(recorder, rng)
                log_if_open(recorder, np.arange(len(LENGTHS)))
                waiting = done
                observations, _, terminated, _, infos = recorder.step(actions)
                done = terminated.copy()
                for env, observation in enumerate(observations):
                    if mode is AutoresetMode.NEXT_STEP and waiting[env]:
                        model.begin(env, observation)
                        continue
                    same_step = mode is AutoresetMode.SAME_STEP and done[env]
                    model.step(env, infos["final_obs"][env] if same_step else observation, done[env])
                    if same_step:
                        model.begin(env, observation)
                if mode is AutoresetMode.DISABLED and done.any():
                    model.meddle(recorder, rng)
                    observations, _ = recorder.reset(options={"reset_mask": done.copy()})
                    for env in np.flatnonzero(done).tolist():
                        model.begin(env, observations[env])
    model.check(store, recorder)


@pytest.mark.filterwarnings(STORED)
@pytest.mark.filterwarnings("error")
@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("callback", [None, go_on])
def test_pool_recorders_store_what_the_rules_say(tmp_path: Path, seed: int, callback: Any) -> None:
    """Two of three environments at a time."""
    rng, model = np.random.default_rng(seed), Model(len(LENGTHS), goes_on=callback is not None)
    pool: Any = Pool([SmallEnv(n) for n in LENGTHS], 2, seed)
    store = el.create(tmp_path / "store", pool)
    with store.record(pool, step_callback=callback) as recorder:
        recorder.async_reset()
        for _ in range(120):
            model.meddle(recorder, rng)
            observations, _, terminated, _, infos = recorder.recv()
            model.flush()  # a batch stores what ended before it
            for place, env in enumerate(infos["env_id"].tolist()):
                if infos["elapsed_step"][place] == 0:
                    model.begin(env, observations[place])
                else:
                    model.step(env, observations[place], terminated[place])
            model.meddle(recorder, rng)
            log_if_open(recorder, np.zeros(len(observations)))
            recorder.send(np.zeros((len(observations), 2), np.float32), infos["env_id"])
    model.check(store, recorder)


@pytest.mark.parametrize("mode", MODES)
def test_environments_go_on_with_their_infos_and_columns(tmp_path: Path, mode: AutoresetMode) -> None:
    """Row 0 of the next episode has the info and the columns of the last row, no seed, and no options."""
    envs = SyncVectorEnv([lambda: SmallEnv(9)] * 2, autoreset_mode=mode)
    truth = [alone(SmallEnv(9), seed, 5) for seed in (4, 5)]

    def split(step: el.types.StepData) -> el.types.StepData:
        at = step.t == 3 and step.env_index == 1
        extra = {"where": float(step.observation[0])}
        return replace(step, truncated=at or step.truncated, extra=extra, end="continue" if at else False)

    store = el.create(tmp_path / "store", envs)
    with store.record(envs, step_callback=split) as recorder:
        recorder.reset(seed=4, options={"level": 1})
        for t in range(5):
            recorder.log(t=np.full(2, t))
            recorder.step(np.zeros((2, 2), np.float32))
    first, second, third = sorted(store.refresh(), key=lambda each: (each.env_index or 0, each.number))
    found = [(e.length, e.end_reason, e.seed, e.options) for e in (first, second, third)]
    assert found == [(5, "cut", 4, {"level": 1}), (3, "truncated", 5, {"level": 1}), (2, "cut", None, None)]
    assert list(second.infos) == truth[1].infos[:4] and list(third.infos) == truth[1].infos[3:]
    assert third.extra["where"].tolist() == [3, 4, 5] and list(third.policy["t"][:2]) == [3, 4]
    assert third.rewards.tolist() == truth[1].rewards[3:]
    assert third.episode_return == sum(truth[1].rewards[3:])


def test_which_environment_is_meant_must_be_said(tmp_path: Path) -> None:
    """Without an index, and for one that does not exist, nothing is discarded."""
    envs = SyncVectorEnv([lambda: SmallEnv(9)] * 3)
    store = el.create(tmp_path / "store", envs)
    with store.record(envs) as recorder:
        recorder.reset(seed=0)
        recorder.step(np.zeros((3, 2), np.float32))
        wrong: list[Any] = [None, -1, 3, 1.0, True, [0, 0], [], [True, False, False], "0"]
        for each in wrong:
            with pytest.raises(el.errors.InvalidArgumentError, match="from 0 to 2"):
                recorder.discard_episode(each)
        recorder.discard_episode(np.array([2]))
        with pytest.raises(el.errors.RecorderStateError, match=r"\[2\]"):
            recorder.discard_episode([0, 2])
        assert [each is None for each in recorder.episode_ids] == [False, False, True]
    assert {episode.env_index for episode in store.refresh()} == {0, 1}


def _push(observation: Any, info: Any, state: Any) -> Any:
    return PUSH


def test_collect_takes_no_paused_recorder_and_counts_what_goes_on(tmp_path: Path) -> None:
    """A pause is refused at once, and an episode that a callback begins is an episode."""
    store = new_store(tmp_path, SmallEnv(9))
    with store.record(SmallEnv(9), step_callback=go_on) as recorder:
        recorder.pause()
        with pytest.raises(el.errors.RecorderStateError, match="resume"):
            el.collect(recorder, _push, store, episodes=1)
        recorder.resume()
        assert el.collect(recorder, _push, store, episodes=3).episodes == 3
    assert [episode.length for episode in store.refresh()][:3] == [2, 7, 2]
    vector = el.create(tmp_path / "vector", SmallEnv(9))
    envs = SyncVectorEnv([lambda: SmallEnv(9)] * 2)
    with vector.record(envs, step_callback=go_on) as recorder:
        policy = lambda observations, infos, state: np.zeros((2, 2), np.float32)  # noqa: E731
        assert el.collect(recorder, policy, vector, steps=18).steps == 18
    assert sorted(episode.length for episode in vector.refresh()) == [2, 2, 7, 7]


@pytest.mark.parametrize("vector", [False, True])
def test_a_continued_episode_keeps_the_chosen_infos(tmp_path: Path, vector: bool) -> None:
    """Its row 0 has no info that was not selected, and its callback sees its own observations."""
    seen = []

    def remember(episode: el.types.EpisodeSummary) -> None:
        seen.append(np.asarray(episode.observations).tolist())

    def go_on(step: el.types.StepData) -> el.types.StepData | None:
        return replace(step, truncated=True, end="continue") if step.t == 2 else None

    class Told(gym.Env):
        """Counts its steps and tells two infos."""

        observation_space = gym.spaces.Discrete(20)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> tuple[int, dict]:
            """Begin at 0."""
            self.t = 0
            return self.t, {"kept": self.t, "left": "out"}

        def step(self, action: Any) -> tuple[int, float, bool, bool, dict]:
            """Count on to 5."""
            self.t += 1
            return self.t, 1.0, self.t == 5, False, {"kept": self.t, "left": "out"}

    store = el.create(tmp_path / "store", Told())
    env: Any = SyncVectorEnv([Told]) if vector else Told()
    recorder = store.record(env, step_callback=go_on, episode_callback=remember, record_infos=("kept",))
    with recorder as env:
        env.reset()
        for _ in range(5):
            env.step(np.zeros(1, int) if vector else 0)
    episodes = list(store.refresh())
    assert [episode.observations.tolist() for episode in episodes] == [[0, 1, 2], [2, 3, 4], [4, 5]] == seen
    infos = [[info for info in episode.infos] for episode in episodes]
    assert infos == [[{"kept": t} for t in rows] for rows in ([0, 1, 2], [2, 3, 4], [4, 5])]
