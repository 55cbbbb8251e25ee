"""Strike writers with Ctrl-C at one line of the library, in forked children, and check the store.

Run as a program, it answers each line of JSON on standard input with one on standard output:

    {"scenario": ..., "folder": ...}                             the lines that a scenario executes
    {"strike": [file, line, visit], "scenario": ..., "after": ..., "folder": ...}
    {"kill": [open episodes], "scenario": ..., "folder": ...}    flush at its end, and die

It never uses a store itself, since the table library cannot be forked after its first use.

A line that ends a `with` block is left alone: the interpreter delivers no signal between the end of a block
and the release of its lock, and a trace function that raises there would leave the lock taken. The same holds
for a line with nothing but `try:`, which the interpreter leaves out of the block around it.
"""

from __future__ import annotations

import atexit
import dis
import gc
import json
import os
import shutil
import signal
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pyarrow as pa
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import SyncVectorEnv
from pettingzoo import AECEnv, ParallelEnv

import episodelake as el
import episodelake.store
import episodelake.writers
from episodelake.writers.session import run as env_packages
from preloading import preload
from waiting import PATIENCE, await_end

FOLDERS = tuple(
    str(Path(module.__file__ or "").parent) for module in (episodelake.store, episodelake.writers)
)
OBSERVATIONS, ACTIONS = Box(-np.inf, np.inf, (2,), np.float64), Discrete(5)
QUIET = {"flush_seconds": 1e5, "seal_seconds": 1e5}


# Content: episode k says k and t in every observation, and all else follows from them.


def length_of(k: int) -> int:
    """How many transitions episode k has until it terminates."""
    return 2 + k % 3


def seen(k: int, t: int) -> np.ndarray:
    """Observation t of episode k."""
    return np.array([k, t], np.float64)


class Finished:
    """The episodes that were finished, told to another process at once."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, k: int) -> None:
        """Episode k is finished, from the caller's point of view."""
        os.write(self._file, b"%d\n" % k)


class Env(gym.Env):
    """Episodes k = first, first + 1, ... that terminate after `length_of(k)` steps."""

    observation_space, action_space = OBSERVATIONS, ACTIONS

    def __init__(self, first: int = 0, finished: Finished | None = None) -> None:
        self._k, self._t = first - 1, 0
        self._finished = finished
        self._done = False

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict]:
        """Begin the next episode; the one before was recorded, or this would not be called."""
        super().reset(seed=seed)
        if self._done and self._finished is not None:
            self._finished.add(self._k)
        self._k, self._t, self._done = self._k + 1, 0, False
        return seen(self._k, 0), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Take the one right action."""
        assert action == (self._k + self._t) % 5
        reward = self._k + self._t / 2
        self._t += 1
        self._done = self._t >= length_of(self._k)
        return seen(self._k, self._t), reward, self._done, False, {}


class Pair(ParallelEnv):
    """Two agents that live through the same episode."""

    metadata: ClassVar[dict] = {"name": "pair"}
    possible_agents: ClassVar[list] = ["a_0", "a_1"]

    def __init__(self, finished: Finished | None = None) -> None:
        self._inner = Env(finished=finished)
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Box:
        """The same for both."""
        return OBSERVATIONS

    def action_space(self, agent: str) -> Discrete:
        """The same for both."""
        return ACTIONS

    def reset(self, seed: Any = None, options: Any = None) -> tuple[dict, dict]:
        """Begin with both."""
        self.agents = list(self.possible_agents)
        observation, _ = self._inner.reset()
        return dict.fromkeys(self.agents, observation), {agent: {} for agent in self.agents}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        """Both step."""
        observation, reward, done, _, _ = self._inner.step(actions["a_0"])
        told = [dict.fromkeys(self.agents, value) for value in (observation, reward, done, False)]
        infos = {agent: {} for agent in self.agents}
        self.agents = [] if done else self.agents
        return (*told, infos)  # type: ignore[return-value]


class Turns(AECEnv):
    """The same in turns."""

    metadata: ClassVar[dict] = {"name": "turns", "is_parallelizable": False}
    possible_agents: ClassVar[list] = ["a_0", "a_1"]
    observation_space, action_space = Pair.observation_space, Pair.action_space

    def __init__(self) -> None:
        super().__init__()
        self._k = -1

    def observe(self, agent: str) -> np.ndarray:
        """What an agent sees after so many turns of its own."""
        return seen(self._k, self._turns[agent])

    def reset(self, seed: Any = None, options: Any = None) -> None:
        """Begin with both."""
        self._k += 1
        self.agents = list(self.possible_agents)
        self._turns = dict.fromkeys(self.agents, 0)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = "a_0"

    def step(self, action: Any) -> None:
        """One agent's turn."""
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.rewards[agent] = self._k + self._turns[agent] / 2
        self._turns[agent] += 1
        if agent == "a_1" and self._turns[agent] >= length_of(self._k):
            self.terminations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()
        self.agent_selection = "a_1" if agent == "a_0" else "a_0"
        self._deads_step_first()


class Pool:
    """A pool that serves its environments in turns, two at a time of three."""

    observation_space, action_space = OBSERVATIONS, ACTIONS
    num_envs = 3

    def __init__(self, finished: Finished | None = None) -> None:
        self._envs = [Env(1000 * index, finished) for index in range(self.num_envs)]
        self._ready: list[tuple[int, tuple]] = []
        self._elapsed = [0] * self.num_envs
        self._done = [True] * self.num_envs

    def async_reset(self) -> None:
        """Reset all."""
        for index in range(self.num_envs):
            self._reset(index)

    def _reset(self, index: int) -> None:
        observation, _ = self._envs[index].reset()
        self._elapsed[index], self._done[index] = 0, False
        self._ready.append((index, (observation, 0.0, False, False)))

    def send(self, action: Any, env_id: Any = None) -> None:
        """Step each, or reset it if it is done."""
        for index, own in zip(env_id.tolist(), action.tolist(), strict=True):
            if self._done[index]:
                self._reset(index)
                continue
            result = self._envs[index].step(own)[:4]
            self._elapsed[index] += 1
            self._done[index] = result[2]
            self._ready.append((index, result))

    def recv(self) -> tuple:
        """Give two that are ready."""
        chosen, self._ready = self._ready[:2], self._ready[2:]
        ids = np.array([index for index, _ in chosen])
        observations, rewards, terminated, truncated = (
            np.array(values) for values in zip(*(result for _, result in chosen), strict=True)
        )
        infos = {"env_id": ids, "elapsed_step": np.array([self._elapsed[index] for index in ids])}
        return observations, rewards, terminated, truncated, infos

    def close(self) -> None:
        """Nothing is open."""


# Scenarios: each yields its writer once it is open, and then uses it.

Scenario = Callable[[el.EpisodeStore, Finished], Iterator[Any]]
SCENARIOS: dict[str, tuple[Scenario, Callable[[], Any]]] = {}


def scenario(env: Callable[[], Any] = Env) -> Callable[[Scenario], Scenario]:
    """Name a scenario after its function; its store is for this kind of environment."""

    def named(function: Scenario) -> Scenario:
        SCENARIOS[function.__name__] = function, env
        return function

    return named


def _act(observations: np.ndarray) -> np.ndarray:
    """The right actions at some observations."""
    return np.asarray(observations).sum(-1).astype(np.int64) % 5


def _whole(k: int) -> dict[str, Any]:
    length = length_of(k) if k < 90 else 70
    return {
        "observations": np.stack([seen(k, t) for t in range(length + 1)]),
        "actions": np.array([(k + t) % 5 for t in range(length)]),
        "rewards": np.array([k + t / 2 for t in range(length)]),
        "terminations": k < 90,
        "truncations": False,
    }


@scenario()
def steps(store: el.EpisodeStore, finished: Finished) -> Iterator[Any]:
    """Two episodes at a time, step by step, one left open."""
    writer = store.writer(run="a", **QUIET)
    yield writer
    with writer:
        for k in range(0, 4, 2):
            pair = [writer.begin(seen(k + i, 0)) for i in range(2)]
            for t in range(4):
                for i, episode in enumerate(pair):
                    if t < length_of(k + i):
                        episode.append(
                            (k + i + t) % 5, k + i + t / 2, seen(k + i, t + 1), t + 1 == length_of(k + i)
                        )
            for i, episode in enumerate(pair):
                episode.end({"k": k + i})
                finished.add(k + i)
            writer.seal()
        left = writer.begin(seen(80, 0))
        left.append(0, 80.0, seen(80, 1))


@scenario()
def reopening(store: el.EpisodeStore, finished: Finished) -> Iterator[Any]:
    """An episode that is cut and sealed, continued by halves, and at last ended; once nothing is appended."""
    writer = store.writer(run="a", **QUIET)
    yield writer
    with writer:
        episode: Any = writer.begin(seen(2, 0))
        episode.append(2, 2.0, seen(2, 1))
        episode_id = episode.end().episode_id
        finished.add(2)
        writer.write_episode(**_whole(0))
        finished.add(0)
        for t in (1, None, 2):
            episode = writer.reopen(episode_id)
            if t is None:
                episode.discard()
            else:
                episode.append((2 + t) % 5, 2 + t / 2, seen(2, t + 1))
                episode.end()
        episode = writer.reopen(episode_id)
        episode.append(0, 3.5, seen(2, 4), True)


@scenario()
def arrays(store: el.EpisodeStore, finished: Finished) -> Iterator[Any]:
    """Short and long episodes from arrays, flushed and sealed."""
    writer = store.writer(run="a", durability="fsync", **QUIET)
    yield writer
    with writer:
        for k in (0, 90, 1, 91, 2):
            writer.write_episode(**_whole(k))
            finished.add(k)
            (writer.flush if k == 0 else writer.seal if k == 91 else int)()


@scenario()
def bulk(store: el.EpisodeStore, finished: Finished) -> Iterator[Any]:
    """Long episodes from arrays and Arrow data, from memory to segments; some are flushed."""
    writer = store.writer(run="a", segment_bytes=9_000, **QUIET)
    yield writer
    with writer:
        for k in range(90, 98, 2):
            writer.write_episode(**_whole(k))
            finished.add(k)
            whole = _whole(k + 1)
            writer.write_episodes(
                pa.table(
                    {
                        "observation": list(whole["observations"]),
                        "action": [*whole["actions"], None],
                        "reward": [*whole["rewards"], None],
                        "terminated": [False] * 70 + [None],
                        "truncated": [False] * 70 + [None],
                    }
                ),
                lengths=[70],
            )
            finished.add(k + 1)
            (writer.flush if k == 92 else int)()


def _play(env: Any, finished: Finished, episodes: int) -> None:
    for _ in range(episodes):
        observation, _ = env.reset()
        done = False
        while not done:
            env.log(value=observation[1])
            observation, _, done, _, _ = env.step(_act(observation))
        finished.add(int(observation[0]))


@scenario()
def recorder(store: el.EpisodeStore, finished: Finished) -> Iterator[Any]:
    """A recorder with an episode callback and logged values."""
    env = store.record(Env(), run="a", episode_callback=lambda episode: {"number": episode.number}, **QUIET)
    yield env
    with env:
        _play(env, finished, 2)
        env.flush()
        env.seal()
        _play(env, finished, 2)
        env.reset()
        env.step(_act(seen(4, 0)))


@scenario()
def discarding(store: el.EpisodeStore, finished: Finished) -> Iterator[Any]:
    """A recorder that is paused, and that discards episodes with and without rows in the journal."""
    env = store.record(Env(), run="a", **QUIET)
    yield env
    with env:
        _play(env, finished, 1)
        for k in (1, 2):
            env.reset()
            env.step(_act(seen(k, 0)))
            (env.flush if k == 1 else int)()
            env.discard_episode()
        _play(env, finished, 1)
        env.pause()
        env.reset()
        env.resume()
        _play(env, finished, 1)


@scenario()
def discarding_vector(store: el.EpisodeStore, finished: Finished) -> Iterator[Any]:
    """The same with a vector environment; its first episodes are discarded, and reset behind a pause."""
    env = store.record(_vector_env(), run="a", **QUIET)
    yield env
    with env:
        observations, _ = env.reset()
        env.step(_act(observations))
        env.flush()
        env.discard_episode([0, 1])
        env.pause()
        env.reset()
        env.resume()
        _vector(env, finished, 7, log=False)


def _vector(env: Any, finished: Finished, calls: int, *, log: bool) -> None:
    observations, _ = env.reset()
    for _ in range(calls):
        if log:
            env.log(value=observations[:, 1])
        observations, _, terminated, _, _ = env.step(_act(observations))
        for k in observations[terminated, 0].astype(int).tolist():
            finished.add(k)


def _vector_env() -> Any:
    return SyncVectorEnv([lambda first=first: Env(first) for first in (0, 1001)])


@scenario()
def vector(store: el.EpisodeStore, finished: Finished) -> Iterator[Any]:
    """A vector environment, plain steps only."""
    env = store.record(_vector_env(), run="a", **QUIET)
    yield env
    with env:
        _vector(env, finished, 9, log=False)
        env.seal()
        for _ in range(4):
            env.session.flush()
            _vector(env, finished, 5, log=False)


@scenario()
def logged_vector(store: el.EpisodeStore, finished: Finished) -> Iterator[Any]:
    """A vector environment with logged values and an episode callback."""
    env = store.record(
        _vector_env(), run="a", episode_callback=lambda episode: {"number": episode.number}, **QUIET
    )
    yield env
    with env:
        _vector(env, finished, 7, log=True)
        env.flush()
        _vector(env, finished, 7, log=True)


@scenario()
def pool(store: el.EpisodeStore, finished: Finished) -> Iterator[Any]:
    """A pool that serves two of three environments at a time."""
    env = store.record(Pool(), run="a", **QUIET)
    yield env
    with env:
        env.async_reset()
        for turn in range(14):
            observations, _, terminated, _, infos = env.recv()
            for k in observations[terminated, 0].astype(int).tolist():
                finished.add(k)
            env.send(_act(observations), infos["env_id"])
            if turn == 8:
                env.seal()


@scenario(Pair)
def parallel(store: el.EpisodeStore, finished: Finished) -> Iterator[Any]:
    """PettingZoo, all agents at once."""
    env = store.record(Pair(), run="a", **QUIET)
    yield env
    with env:
        for k in range(3):
            observations, _ = env.reset()
            while env.agents:
                observations, *_ = env.step({agent: int(_act(observations[agent])) for agent in env.agents})
            finished.add(k)
            if k == 1:
                env.seal()
        env.reset()


@scenario(Turns)
def aec(store: el.EpisodeStore, finished: Finished) -> Iterator[Any]:
    """PettingZoo, in turns."""
    env = store.record(Turns(), run="a", **QUIET)
    yield env
    with env:
        for k in range(3):
            env.reset()
            for agent in env.agent_iter():
                observation, _, terminated, _, _ = env.last()
                env.log(agent, value=float(k))
                env.step(None if terminated else int(_act(observation)))
            finished.add(k)
            if k == 1:
                env.flush()


def _policy(observation: Any, info: Any, state: Any) -> Any:
    return _act(observation)


@scenario()
def collect(store: el.EpisodeStore, finished: Finished) -> Iterator[Any]:
    """`collect` with one environment."""
    yield None
    el.collect(Env(finished=finished), _policy, store, steps=9, **QUIET)


@scenario()
def collect_vector(store: el.EpisodeStore, finished: Finished) -> Iterator[Any]:
    """`collect` with a vector environment."""
    yield None
    envs = SyncVectorEnv([lambda first=first: Env(first, finished) for first in (0, 1001)])
    el.collect(envs, _policy, store, episodes=5, **QUIET)


@scenario(Pool)
def collect_pool(store: el.EpisodeStore, finished: Finished) -> Iterator[Any]:
    """`collect` with a pool."""
    yield None
    el.collect(Pool(finished), _policy, store, steps=14, **QUIET)


@scenario(Pair)
def collect_agents(store: el.EpisodeStore, finished: Finished) -> Iterator[Any]:
    """`collect` with agents that act at once, one policy for both."""
    yield None
    el.collect(Pair(finished), dict.fromkeys(Pair.possible_agents, _policy), store, episodes=3, **QUIET)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (Exception, KeyboardInterrupt):
        if not STRIKE.hit:
            raise


# Strikes


class Strike:
    """Counts the visits of lines, and raises at one of them."""

    def __init__(self) -> None:
        self.visits: Counter[tuple[str, int]] = Counter()
        self.target: tuple[str, int, int] | None = None
        self.hit = False
        self.armed = False

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        """The global trace function; a strike counts the visits in its own file only."""
        file = frame.f_code.co_filename
        counted = file == self.target[0] if self.target else file.startswith(FOLDERS)
        return self._line if counted else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and self.armed and frame.f_lasti not in _uninterruptible(frame.f_code):
            key = frame.f_code.co_filename, frame.f_lineno
            self.visits[key] += 1
            if self.target == (*key, self.visits[key]) and not self.hit:
                self.hit = True
                raise KeyboardInterrupt
        return self._line


@cache
def _uninterruptible(code: CodeType) -> frozenset[int]:
    """Where the instructions begin that no signal can interrupt."""
    found: set[int] = set()
    instructions = list(dis.get_instructions(code))
    for at, first in enumerate(instructions):
        names = [each.opname for each in instructions[at : at + 3]]
        values = [each.argval for each in instructions[at : at + 3]]
        if names == ["LOAD_CONST"] * 3 and values == [None] * 3:
            found |= {
                first.offset,
                *(each.offset for each in instructions[max(at - 2, 0) : at] if each.opname == "SWAP"),
            }
        elif names[0] == "NOP" or names[:2] == ["PUSH_EXC_INFO", "WITH_EXCEPT_START"]:
            found.add(first.offset)
    return frozenset(found)


STRIKE = Strike()


def perform(folder: Path, name: str, order: dict[str, Any]) -> None:
    """Run a scenario in this process, struck or not, and do what the order says afterwards."""
    warnings.simplefilter("ignore")
    STRIKE.target = tuple(order["strike"]) if "strike" in order else None
    parts = SCENARIOS[name][0](el.open(folder / "store"), Finished(folder / "finished"))
    sys.settrace(STRIKE.trace)
    writer = next(parts)
    if "kill" in order:
        # The end of the block flushes and dies.
        type(writer).__exit__ = lambda self, *_: (self.flush(), os.kill(os.getpid(), signal.SIGKILL))
    STRIKE.armed = True
    try:
        for _ in parts:
            pass
    except BaseException:
        # It may come out as an error of another kind, which names it as its cause.
        if not STRIKE.hit:
            raise
    finally:
        STRIKE.armed = False
        sys.settrace(None)
    said = {
        "hit": STRIKE.hit,
        "visits": [[*key, count] for key, count in STRIKE.visits.items()],
        "closed": False,
    }
    after = order.get("after", "close")
    if after == "close":
        del parts
        # What an interrupt left behind of `collect` is closed in the background, if it can be.
        said["closed"] = writer is not None and _repeat(writer.close)
        said["failed"] = writer is not None and not said["closed"]
        writer = None
        _await_background()
    elif after == "flush" and writer is not None and not writer._session.closed:
        # What was finished must then be in the journal, or in the store already.
        assert _repeat(writer.flush)
    else:
        atexit._run_exitfuncs()
    (folder / "said").write_text(json.dumps(said))


def _repeat(call: Callable[[], None]) -> bool:
    """Whether a call succeeds at the second attempt at the latest."""
    for _ in range(2):
        with _told():
            call()
            return True
    return False


def _await_background() -> None:
    """Wait for the writers that `collect` left behind; the background thread closes them."""
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("episodelake"):
            thread.join(PATIENCE)


def _journals(folder: Path) -> list[str]:
    found = (path.name for path in (folder / "store" / "journal").iterdir())
    return [name for name in found if name != "maintenance.lock"]


def check(folder: Path, *, closed: bool) -> list[str]:
    """What is wrong with a store, in words."""
    store = el.open(folder / "store")
    journals = _journals(folder)
    problems = [f"closed, and the journal is there: {journals}"] if closed and journals else []
    el.recover(folder / "store")
    store.refresh()
    problems += [] if store.verify().ok else [str(store.verify())]
    problems += [f"set aside: {name}" for name in _journals(folder)]
    counted: Counter[int] = Counter()
    for episode in store:
        agents = [episode.agent(name) for name in episode.agents] if episode.agents else [episode]
        k = int(agents[0].observations[0][0])
        counted[k] += 1
        # In turns, the first agent may have made all its own before the second one's turn was struck.
        waits = len(agents) == 2 and agents[1].length < length_of(k)
        for agent in agents:
            problems += _wrong(agent, k, may_go_on=waits and agent is agents[0])
    finished = [int(k) for k in (folder / "finished").read_text().split()]
    problems += [f"episode {k} is lost" for k in finished if not counted[k]]
    problems += [f"episode {k} is there {count} times" for k, count in counted.items() if count > 1]
    return problems


def _wrong(episode: Any, k: int, *, may_go_on: bool = False) -> list[str]:
    length = length_of(k) if k < 90 or k >= 1000 else 70
    whole = episode.length == length and not 90 <= k < 1000
    if episode.length > length:
        return [f"episode {k} has {episode.length} transitions"]
    rows = range(episode.length)
    said = (
        episode.observations.tolist() == [[k, t] for t in range(episode.length + 1)],
        episode.actions.tolist() == [(k + t) % 5 for t in rows],
        episode.rewards.tolist() == [k + t / 2 for t in rows],
        bool(episode.terminated) == whole or (may_go_on and not episode.terminated),
        not episode.truncated,
    )
    return [] if all(said) else [f"episode {k} has wrong content: {said}"]


# The program


def in_child(work: Callable[[], None]) -> int:
    """The exit code of a forked child that does this; 99 for one that hangs."""
    child = os.fork()
    if not child:
        status = 70
        try:
            work()
            status = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return await_end(child)


def answer(order: dict[str, Any]) -> dict[str, Any]:
    """Do what an order says."""
    name, root = order["scenario"], Path(order["folder"])
    made, env = root / f"made-{name}", SCENARIOS[name][1]
    if not made.exists():
        spaces = {} if env is not Env else {"observation_space": OBSERVATIONS, "action_space": ACTIONS}
        in_child(lambda: (el.create(made, *(() if spaces else (env(),)), **spaces), None)[1])
    folder = root / "work"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copytree(made, folder / "store")
    (folder / "finished").touch()
    code = in_child(lambda: perform(folder, name, order))
    if code != (-signal.SIGKILL if "kill" in order else 0):
        return {"problems": [f"the writer ended with {code}"], "hit": True}
    said = {"hit": True, "visits": [], "closed": False}
    if "kill" in order:
        for k in order["kill"]:
            Finished(folder / "finished").add(k)
    else:
        said = json.loads((folder / "said").read_text())

    def look() -> None:
        (folder / "problems").write_text(json.dumps(check(folder, closed=said["closed"])))

    code = in_child(look)
    problems = json.loads((folder / "problems").read_text()) if not code else [f"the check ended with {code}"]
    if said.get("failed"):
        problems.append("close() again failed")
    return {"problems": problems, "hit": said["hit"], "visits": said["visits"]}


if __name__ == "__main__":
    # What is installed is read once for all children, and they need not look at what was imported.
    preload()
    env_packages.versions_of((Env,), (), ())
    gc.freeze()
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
