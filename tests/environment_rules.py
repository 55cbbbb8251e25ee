"""`EnvironmentContract`: the rules for recorders that wrap environments, beside those of `RecorderContract`.

They concern what only such recorders have: callbacks, the choice of infos, pauses, discarded episodes, and
exceptions of the environment. The truth is the history of the scripted environments.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import pickle
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import episodelake as el
from episodelake.testing import Driver, PlayedEpisode, RecorderAdapter, RecorderContract, ScriptedEnv
from episodelake.testing.adapters import case, play
from episodelake.testing.environments import assert_infos
from episodelake.testing.recorder_rules import Recording, check_episode, logged_row
from episodelake.testing.spaces import BOX, KINDS, PUSH
from episodelake.testing.values import same, stack
from episodelake.writers.rows import arrivals, step_rows, vector_buffer
from episodelake.writers.session.journal import RunJournal
from waiting import journals, steps_told, wait_until

#: Longer than any test, so that only counts make a journal or a segment.
LATER: Any = {"flush_seconds": 1e6, "seal_seconds": 1e6}
ERRORS = (TimeoutError, KeyboardInterrupt)
#: Places in what `step` returns, and what does not fit there.
MISFITS: dict[str, tuple[int, Any]] = {"observation": (0, np.zeros(3)), "reward": (1, "much"), "info": (4, 5)}
MISFIT_ERRORS = (el.errors.SpaceMismatchError, TypeError, ValueError, AttributeError)
#: What no step callback may return, and values that fit no step.
NONSENSE: tuple[Any, ...] = (5, "text", [1], object(), True, (1, 2))
WRONG: tuple[dict[str, Any], ...] = (
    *({"observation": value} for value in (None, np.zeros(4, np.float32), "text")),
    *({"reward": value} for value in (None, "much")),
    {"action": np.zeros(3, np.float32)},
    *({name: 5} for name in ("info", "policy", "extra")),
    {"terminated": "yes"},
    {"end": "continued"},
)

#: Rules about code that recorders share: `make test` runs them for one recorder of each kind.
SHARED_RULES = (
    "test_spaces_are_stored_exactly_by_themselves",
    "test_rewards_of_every_number_type_are_stored",
    "test_vector_rewards_are_stored",
    "test_integers_are_exact_or_refused",
    "test_values_are_cast_only_where_it_is_asked_for",
    "test_seeds_of_any_size_come_back",
    "test_a_key_may_change_its_type_between_runs",
    "test_handles_at_the_same_time_keep_apart",
    "test_recording_nothing_leaves_an_empty_store",
    "test_an_exception_in_the_block_keeps_what_there_was",
    "test_a_closed_recorder_refuses_to_go_on",
    "test_closing_closes_the_environment_once",
    "test_recorders_are_neither_copied_nor_pickled",
    "test_what_cannot_be_recorded_is_refused",
    "test_only_chosen_infos_are_stored",
    "test_callbacks_cannot_change_what_is_being_recorded",
    "test_an_action_that_does_not_fit_leaves_all_as_it_was",
    "test_a_full_disk_stops_a_step_before_the_environment_moves",
    "test_steps_reach_the_journal_by_count",
    "test_episodes_show_by_count",
)


def lane_of(step: el.types.StepData) -> int:
    """Which environment a step is of."""
    return int(step.agent.rpartition("_")[2]) if step.agent else step.env_index


class Failing(ScriptedEnv):
    """Raises at the given calls of `step` or, once each, of `reset`; before or after it has moved."""

    fails: frozenset[int] = frozenset()
    way = "before"
    error: BaseException = TimeoutError("mine")
    resets = steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin, then perhaps raise."""
        self.resets += 1
        result = super().reset(seed=seed, options=options)
        if self.way == "reset" and self.resets in self.fails:
            raise self.error
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        """Move, and perhaps raise."""
        self.steps += 1
        failing = self.steps in self.fails
        if failing and self.way == "before":
            raise self.error
        result = super().step(action)
        if failing and self.way == "after":
            raise self.error
        if failing and self.way in MISFITS:
            place, value = MISFITS[self.way]
            return *result[:place], value, *result[place + 1 :]  # type: ignore[return-value]
        return result


class Drawing(ScriptedEnv):
    """Draws from its generator at each reset."""

    def reset(self, **arguments: Any) -> tuple[Any, Any]:
        """Begin."""
        result = super().reset(**arguments)
        self.np_random.random()
        return result


@dataclass
class Piece:
    """The steps of an environment's episode that one stored episode must have."""

    rollout: PlayedEpisode
    start: int
    stop: int

    def check(self, episode: Any, env: ScriptedEnv, told: Sequence[Any]) -> None:
        """Fail unless a stored episode has exactly these."""
        rows, steps = slice(self.start, self.stop + 1), slice(self.start, self.stop)
        cut = self.rollout.cut(self.stop)
        parts = {name: getattr(cut, name)[steps] for name in ("actions", "rewards")}
        flags = {name: getattr(cut, name)[steps] for name in ("terminations", "truncations")}
        kept = PlayedEpisode(cut.observations[rows], cut.infos[rows], **parts, **flags)
        check_episode(episode, kept, env, told[rows])
        # Without a seed, that of the first episode is the one that the environment drew.
        if self.start or self.rollout.seed is not None:
            assert episode.seed == (None if self.start else self.rollout.seed)


class Model:
    """The expected content of a store, computed from the calls and from what the environments returned.

    Args:
        joint: the environments are agents of one episode.
        goes_on: a callback begins the next episode after two steps, without a reset.
    """

    def __init__(self, envs: Sequence[ScriptedEnv], *, joint: bool = False, goes_on: bool = False) -> None:
        self.envs, self.joint, self.goes_on, self.paused = envs, joint, goes_on, False
        self.stored: list[list[Piece]] = [[] for _ in envs]
        #: The number of each current episode in the history, and its first step.
        self.open: list[tuple[int, int] | None] = [None] * len(envs)
        self.begun = [0] * len(envs)

    def watch(self) -> None:
        """Note what has begun, and what goes on without a reset."""
        for lane, env in enumerate(self.envs):
            for number in range(self.begun[lane], len(env.history)):
                self.finish(lane)
                self.open[lane] = None if self.paused else (number, 0)
            self.begun[lane] = len(env.history)
        if self.goes_on:
            split = [lane for lane in range(len(self.envs)) if self._splits(lane)]
            for lane in range(len(self.envs)) if self.joint and split else split:
                self._go_on(lane)

    def finish(self, lane: int, length: int | None = None) -> None:
        """The current episode ends."""
        found, self.open[lane] = self.open[lane], None
        if found is not None:
            rollout = self.envs[lane].history[found[0]]
            stop = len(rollout.actions) if length is None else length
            self.stored[lane] += [Piece(rollout, found[1], stop)] if stop > found[1] else []

    def pause(self) -> None:
        """All current episodes end."""
        for lane in range(len(self.envs)):
            self.finish(lane)
        self.paused = True

    def flush(self) -> None:
        """Episodes that the environment has ended are current no more."""
        for lane, found in enumerate(self.open):
            if found is not None and self.envs[lane].history[found[0]].done:
                self.finish(lane)

    def check(self, episodes: Sequence[Any], adapter: RecorderAdapter) -> None:
        """Fail unless exactly this is stored."""
        self.pause()
        for lane, pieces in enumerate(self.stored):
            found = adapter.episodes(episodes, lane)
            lengths = [piece.stop - piece.start for piece in pieces]
            assert [episode.length for episode in found] == lengths, f"environment {lane}"
            for episode, piece in zip(found, pieces, strict=True):
                with case(f"environment {lane}, episode of {episode.length} steps"):
                    piece.check(episode, self.envs[lane], adapter.kept_infos(piece.rollout, lane))

    def _splits(self, lane: int) -> bool:
        found = self.open[lane]
        if found is None:
            return False
        rollout = self.envs[lane].history[found[0]]
        return not rollout.done and len(rollout.actions) - found[1] == 2

    def _go_on(self, lane: int) -> None:
        found = self.open[lane]
        if found is not None:
            rollout = self.envs[lane].history[found[0]]
            self.finish(lane)
            if not rollout.done:
                self.open[lane] = found[0], len(rollout.actions)


class EnvironmentContract(RecorderContract):
    """Rules for recorders that wrap environments."""

    #: Whether the environments are agents of one episode, which end, pause and go together.
    joint = False
    #: Whether a callback may go on without a reset.
    continues = True

    def lockstep(self) -> RecorderAdapter:
        """The adapter, where nothing is in flight between two steps."""
        return self.adapter

    def runs(self, store: el.EpisodeStore) -> dict[str, list[Any]]:
        """Return the episodes of each run; fail unless the store is sound."""
        found: dict[str, list[Any]] = {}
        for episode in store.refresh():
            found.setdefault(episode.run_id, []).append(episode)
        assert not store.verify().faults
        return found

    def opened(self, path: Path, envs: Sequence[ScriptedEnv], **options: Any) -> tuple[Any, Driver]:
        """A store and a driver that has been reset."""
        store = self.adapter.create(path / "store", envs[0])
        driver = self.lockstep().open(store, envs, **options)
        driver.reset(5)
        return store, driver

    # The caller

    def test_the_caller_gets_the_very_objects(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The recorder returns the very objects that the environment returned, not copies."""
        _, driver = self.opened(tmp_path, self.envs())
        inner, given = driver.recorder.env, []

        def remember(method: Callable[..., Any]) -> Callable[..., Any]:
            def remembering(*args: Any, **named: Any) -> Any:
                given.append(method(*args, **named))
                return given[-1]

            return remembering

        for name in ("reset", "step", "recv"):
            if callable(method := getattr(inner, name, None)):
                monkeypatch.setattr(inner, name, remember(method))
        for _ in range(5):
            driver.step()
            ours: Any = driver.returned  # type: ignore[attr-defined]
            assert len(ours) == len(given[-1]) and all(map(lambda a, b: a is b, ours, given[-1]))
        driver.close()

    def test_closing_closes_the_environment_once(self, tmp_path: Path) -> None:
        """A second close does nothing, and an error of the environment's close comes when all is sealed."""
        for broken in (False, True):
            envs = self.envs()
            store, driver = self.opened(tmp_path / str(broken), envs)
            driver.step()
            inner = driver.recorder.env
            if broken:
                inner.close = _hang  # type: ignore[method-assign]
                with pytest.raises(OSError, match="hangs"):
                    driver.close()
            driver.close()
            driver.close()
            if not self.joint:
                with pytest.raises(el.errors.RecorderStateError):
                    driver.log([{"late": 1}] * len(envs))
            recorder, lane = driver.recorder, [] if self.joint or len(envs) == 1 else [0]
            for call in (recorder.pause, recorder.resume, partial(recorder.discard_episode, *lane)):
                with pytest.raises(el.errors.RecorderStateError, match="closed"):
                    call()
            assert broken or envs[0].closed == 1 or inner.closed == 1
            assert len(store.refresh()) > 0

    def test_recorders_are_neither_copied_nor_pickled(self, tmp_path: Path) -> None:
        """copy, deepcopy and pickle raise an error of the tree, and recording goes on."""
        envs = self.envs()
        store, driver = self.opened(tmp_path, envs)
        with driver:
            for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(el.errors.RecorderStateError, match=type(driver.recorder).__name__):
                    attempt(driver.recorder)
            driver.step()
        assert len(store.refresh()) > 0

    def test_seal_shows_finished_episodes_only(self, tmp_path: Path) -> None:
        """After `seal` a reader sees the episodes that have ended, by the ids that the recorder showed."""
        envs, ids = self.envs(), set()
        store, driver = self.opened(tmp_path, envs)
        with driver:
            for _ in range(4):
                for _ in range(3):
                    ids |= {*self._ids(driver.recorder)} - {None}
                    driver.step()
                driver.recorder.seal()
                driver.recorder.seal()
                for lane, env in enumerate(envs):
                    for episode in self.adapter.episodes(store.refresh(), lane):
                        assert self.joint or episode.end_reason != "cut"
                    if not self.joint and self.lockstep() is self.adapter:
                        assert len(self.adapter.episodes(store, lane)) == env.ended()
        ids |= {episode.id for episode in store.refresh() if episode.length < 2}
        assert {episode.id for episode in store} <= ids
        found = Recording(store, envs, self.adapter)
        found.check(verified=True)
        if isinstance(driver.recorder, el.types.VectorRecorder | el.types.PoolRecorder):
            lengths = [episode.length for _, episode, _ in found.pairs()]
            assert (driver.recorder.episodes, driver.recorder.transitions) == (len(lengths), sum(lengths))

    def test_calls_out_of_turn_are_refused(self, tmp_path: Path) -> None:
        """Before the first reset and after an end without a reset, `step` raises and steps no environment."""
        envs = self.envs(lengths=[[2, 2]])
        store = self.adapter.create(tmp_path / "store", envs[0])
        driver: Any = self.adapter.open(store, envs)
        with driver:
            assert driver.recorder.paused is False and not any(self._ids(driver.recorder))
            log = lambda: driver.log([{"early": 1}] * len(envs))  # noqa: E731
            for early in (driver.act, log)[: self.early + (self.early and self.late)]:
                with pytest.raises(el.errors.RecorderStateError, match="reset"):
                    early()
            assert not any(env.calls for env in envs)
            driver.reset(5)
            while not all(env.waiting for env in envs) and envs[0].calls < 3:
                driver.step()
            while self.joint and driver.recorder.agents:
                driver.step()
            if self.waits:
                before = [env.calls for env in envs]
                with pytest.raises(el.errors.RecorderStateError, match="reset"):
                    driver.act()
                assert [env.calls for env in envs] == before
            driver.step()
            driver.step()
        found = Recording(store.refresh(), envs, self.adapter)
        found.check(verified=True)

    #: Whether a step before the first reset is refused, and whether an ended episode waits for the caller's.
    early, waits = True, False

    def _ids(self, recorder: Any) -> list[str | None]:
        """Return the ids of the open episodes, as the recorder shows them."""
        return recorder.episode_ids if hasattr(recorder, "episode_ids") else [recorder.episode_id]

    def test_an_action_that_does_not_fit_leaves_all_as_it_was(self, tmp_path: Path) -> None:
        """The error names the column before any environment is stepped, and recording goes on."""
        envs = self.envs(lengths=[[6]])
        store, driver = self.opened(tmp_path, envs)
        with driver:
            for number, wrong in enumerate((np.zeros(3, np.float32), np.zeros(2, complex), np.zeros((2, 1)))):
                driver.step()
                before = [env.calls for env in envs]
                for env in envs:
                    env.raw, env.action = True, lambda wrong=wrong: wrong  # type: ignore[method-assign]
                with case(number), pytest.raises(el.errors.SpaceMismatchError, match="action"):
                    driver.act()  # type: ignore[attr-defined]
                assert [env.calls for env in envs] == before
                for env in envs:
                    env.raw = False
                    del env.action
        Recording(store.refresh(), envs, self.adapter).check(verified=True)

    #: Whether the environments have generators of their own, whose seeds a recorder looks for.
    seeded = False

    def test_the_seed_that_an_environment_drew_is_kept(self, tmp_path: Path) -> None:
        """Without a seed the first episode has the generator's own, if it is known to begin there."""
        if self.seeded:
            envs = self.envs()
            for lane, env in enumerate(envs):
                env.__class__ = Drawing
                # An unused one, one that was set by hand, one that has been reset before.
                if lane == 1:
                    env.np_random = np.random.default_rng(3)
                if lane == 2:
                    env.reset(seed=4)
                    env.history.clear()
            found = self._recorded_without_a_seed(tmp_path / "fresh", envs)
            drawn = [envs[0].np_random_seed] if len(envs) == 1 else [envs[0].np_random_seed, None, None]
            assert [episodes[0].seed for episodes in found] == drawn and drawn[0] is not None
            assert all(episode.seed is None for episodes in found for episode in episodes[1:])
            for used in (True, False) if len(envs) == 1 else ():
                (env,) = envs = self.envs()
                env.__class__ = Drawing
                if used:
                    env.reset(seed=4)
                    env.history.clear()
                else:
                    env.np_random = np.random.default_rng(3)
                (episodes,) = self._recorded_without_a_seed(tmp_path / str(used), envs)
                assert [episode.seed for episode in episodes] == [None] * len(episodes)

    def _recorded_without_a_seed(self, path: Path, envs: Sequence[ScriptedEnv]) -> list[list[Any]]:
        found = self.record(path, envs, 2, None)
        return [self.adapter.episodes(found.store, lane) for lane in range(len(envs))]

    # The journal and the tables

    def test_steps_reach_the_journal_by_count(self, tmp_path: Path) -> None:
        """With `flush_steps` fewer transitions than asked ever wait, whatever time it is."""
        for every in (1, 4):
            envs = self.envs(infos=({},))
            with case(every):
                store, driver = self.opened(tmp_path / str(every), envs, flush_steps=every, **LATER)
                with driver:
                    (journal,) = journals(Path(store.path))
                    for _ in range(12):
                        driver.step()
                        # Outcomes of turns come with the next turn, those of a pool with the batch.
                        made = sum(env.calls for env in envs)
                        waiting = len(envs) if self.joint or self.lockstep() is not self.adapter else 0
                        assert made - waiting - every < steps_told(journal) <= made
                Recording(store.refresh(), envs, self.adapter).check(verified=False)

    def test_a_full_disk_stops_a_step_before_the_environment_moves(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A step that finds rows without a journal raises and can be made again; nothing is lost."""
        for small in (False, True) if self.lockstep() is self.adapter and self.continues else ():
            envs, refused = self.envs(lengths=[[9, 9]], infos=({},)), 0
            with monkeypatch.context() as patch, case(f"small buffers: {small}"):
                for module, name in _BUFFERS if small else ():
                    patch.setattr(module, name, 4)
                options = {} if small else {"flush_steps": 1}
                store, driver = self.opened(tmp_path / str(small), envs, **options, **LATER)
                with driver:
                    for number in range(12):
                        before = [env.calls for env in envs]
                        with monkeypatch.context() as broken:
                            if number % 6 > 2:
                                broken.setattr(RunJournal, "write", _fill)
                            try:
                                driver.step()
                            except el.errors.StoreAccessError:
                                refused += 1
                                assert [env.calls for env in envs] == before
                # Vectors go on with another block of rows.
                assert refused or (small and len(envs) > 1 and not self.joint)
                Recording(store.refresh(), envs, self.adapter).check(verified=True)

    def test_episodes_show_by_count(self, tmp_path: Path) -> None:
        """With `seal_episodes` or `seal_steps` episodes show soon after they end, without a call to seal."""
        for option, many in (("seal_episodes", 1), ("seal_episodes", 2), ("seal_steps", 4)):
            envs = self.envs(lengths=[[2, 2]], infos=({},))
            with case((option, many)):
                store, driver = self.opened(tmp_path / f"{option} {many}", envs, **{option: many}, **LATER)
                with driver:
                    while self._ended(envs) < 4:
                        driver.step()
                        assert len(store.refresh()) <= self._ended(envs)
                    ended = self._ended(envs)
                    driver.step()
                    driver.step()
                    waiting = 1 if (option, many) != ("seal_episodes", 1) else 0
                    wait_until(lambda e=ended - waiting, s=store: len(s.refresh()) >= e, "the seal")
                Recording(store.refresh(), envs, self.adapter).check(verified=False)

    def _ended(self, envs: Sequence[ScriptedEnv]) -> int:
        ended = [env.ended() for env in envs]
        return min(ended) if self.joint else sum(ended)

    def test_last_observations_take_values_until_they_are_stored(self, tmp_path: Path) -> None:
        """A flush or seal after the end stores them: the same values may be logged again, others raise."""
        for store_now in ("flush", "seal"):
            envs = self.envs(lengths=[[2, 3]], infos=({},))
            with case(store_now):
                store, driver = self.opened(tmp_path / store_now, envs, **LATER)
                with driver:
                    for _ in range(2):
                        driver.step()
                    values = [{"late": lane, "deep": {"late": [lane]}} for lane in range(len(envs))]
                    if list(driver.log(values)) != list(range(len(envs))) or not self.late:
                        continue
                    getattr(driver.recorder, store_now)()
                    if self.again:
                        driver.log(values)
                    with pytest.raises(el.errors.RecorderStateError, match=r"stored|reset"):
                        driver.log([{"other": 1}] * len(envs))
                    driver.step()
                    driver.step()
                Recording(store.refresh(), envs, self.adapter).check(verified=True)
                for lane in range(len(envs)):
                    first, *_ = self.adapter.episodes(store, lane)
                    rows = [logged_row(first.policy, t) for t in range(3)]
                    assert rows == [{}, {}, {"late": lane, "deep": {"late": [lane]}}], lane
                assert "policy.other" not in store.steps.collect_schema().names()

    #: Whether an ended episode takes values, and takes them again once it is stored.
    late, again = True, False

    # Callbacks

    def test_a_step_callback_sees_each_reset_and_step(self, tmp_path: Path) -> None:
        """It is shown what a plain loop sees and what was logged; a mapping that it returns is columns."""
        seen: list[list[el.types.StepData]] = [[] for _ in range(self.adapter.lanes)]
        shown: list[tuple[int, Any]] = []

        def watch(step: el.types.StepData) -> dict[str, Any]:
            shown.append((lane_of(step), step.env))
            seen[lane_of(step)].append(replace(step, **copy.deepcopy(_values(step)), env=None))
            return {"twice": 2 * step.t, "n.m": [step.t]}

        envs = self.envs(infos=[{"share": t / 4, "pair": np.array([t]), "word": str(t)} for t in range(9)])
        store = self.adapter.create(tmp_path / "store", envs[0])
        with self.adapter.open(store, envs, step_callback=watch) as driver:
            driver.reset(5)
            for number in range(40):
                driver.log([{"number": number}] * len(envs))
                driver.step()
            assert all(env is self.env_of(driver.recorder, envs, lane) for lane, env in shown)
        found = Recording(store.refresh(), envs, self.adapter)
        found.check(verified=True)
        for lane, env in enumerate(envs):
            steps = iter(seen[lane])
            episodes = iter(self.adapter.episodes(store, lane))
            for rollout in env.history:
                shown = [next(steps) for _ in range(len(rollout.actions) + 1)]
                with case(f"environment {lane}, episode of {len(rollout.actions)} steps"):
                    self._check_shown(shown, rollout, env, lane)
                    if rollout.actions:
                        episode = next(episodes)
                        assert list(episode.extra["twice"]) == [2 * step.t for step in shown]
                        assert [list(value) for value in episode.extra["n.m"]] == [[step.t] for step in shown]
                        for t, step in enumerate(shown[1:]):
                            assert dict(step.policy) == logged_row(episode.policy, t)
            assert next(steps, None) is None

    def env_of(self, recorder: Any, envs: Sequence[ScriptedEnv], lane: int) -> Any:
        """Return the environment that a step callback sees."""
        return recorder.env

    def _check_shown(self, shown: list[Any], rollout: PlayedEpisode, env: ScriptedEnv, lane: int) -> None:
        assert [step.t for step in shown] == list(range(len(shown)))
        first, *others = shown
        assert (first.action, first.reward, first.terminated, first.truncated) == (None,) * 4
        space = env.observation_space
        assert same(stack(space, [step.observation for step in shown]), stack(space, rollout.observations))
        space = env.action_space
        assert same(stack(space, [step.action for step in others]), stack(space, rollout.actions))
        assert [step.reward for step in others] == rollout.rewards
        assert [step.terminated for step in others] == rollout.terminations
        assert [step.truncated for step in others] == rollout.truncations
        assert_infos(_plain([step.info for step in shown]), _plain(self.adapter.kept_infos(rollout, lane)))

    def test_a_step_callback_replaces_what_is_recorded(self, tmp_path: Path) -> None:
        """Replaced values are recorded, returns are of what was recorded, and the caller sees no change."""

        def change(step: el.types.StepData) -> el.types.StepData:
            new = replace(step, observation=np.zeros(2, np.float32), info={"new": step.t}, policy={})
            outcome = {"reward": float(step.t), "action": np.ones(2, np.float32)}
            return replace(new, **outcome) if step.t else new

        envs = self.envs()
        store = self.adapter.create(tmp_path / "store", envs[0])
        with self.adapter.open(store, envs, step_callback=change) as driver:
            driver.reset(5)
            for number in range(12):
                driver.log([{"secret": number}] * len(envs))
                driver.step()
        for lane, episode, rollout in Recording(store.refresh(), envs, self.adapter).pairs():
            times = list(range(1, len(rollout.actions) + 1))
            assert episode.rewards.tolist() == times and episode.episode_return == sum(times), lane
            assert not episode.observations.any() and (episode.actions == 1).all()
            assert episode.infos == [{"new": t} for t in (0, *times)]
            assert [t for t in times if logged_row(episode.policy, t - 1)] == []

    def test_a_step_callback_ends_episodes(self, tmp_path: Path) -> None:
        """After `end=True` nothing is recorded until the next reset; agents of one episode end together."""
        for when in (0, 2, 3):
            envs = self.envs(lengths=[[3, 4, 3, 5]])
            end = lambda step, when=when: replace(step, end=step.t == when)  # noqa: E731
            with case(f"ended at {when}"):
                store = self.adapter.create(tmp_path / str(when), envs[0])
                with self.adapter.open(store, envs, step_callback=end) as driver:
                    play(driver, envs, 3, 5)
                for lane, env in enumerate(envs):
                    kept = [rollout.cut(when) for rollout in env.recorded() if when]
                    found = self.adapter.episodes(store.refresh(), lane)
                    assert len(found) == len(kept)
                    for episode, rollout in zip(found, kept, strict=True):
                        check_episode(episode, rollout, env, self.adapter.kept_infos(rollout, lane))

    def test_a_flag_of_a_step_callback_is_not_followed_by_silence(self, tmp_path: Path) -> None:
        """A callback that sets a flag alone ends the episode; going on without a reset is refused."""
        envs = self.envs(lengths=[[6]])
        early = lambda step: replace(step, truncated=True) if (lane_of(step), step.t) == (0, 2) else None  # noqa: E731
        store, driver = self.opened(tmp_path, envs, step_callback=early)
        with driver:
            with pytest.raises(el.errors.RecorderStateError, match=r"reset|lane_0"):
                for _ in range(5):
                    driver.step()
            driver.reset(7)
            driver.step()
        first, second = self.adapter.episodes(store.refresh(), 0)
        assert (first.length, first.end_reason, second.length) == (2, "truncated", 1)
        assert not store.verify().faults

    def test_what_a_step_callback_raises_or_gets_wrong_loses_nothing(self, tmp_path: Path) -> None:
        """Its exception passes on unchanged, and nonsense is an error of the tree; earlier steps are kept."""
        error = ZeroDivisionError("mine")
        answers: list[Any] = [error, *NONSENSE, *WRONG]
        store, played = self.adapter.create(tmp_path / "store", self.envs()[0]), {}
        for answer in answers:
            envs = self.envs(lengths=[[6]], infos=self.adapter.infos[:1])

            def wrong(step: el.types.StepData, answer: Any = answer) -> Any:
                if (lane_of(step), step.t) != (0, 3):
                    return None
                if isinstance(answer, Exception):
                    raise answer
                return replace(step, **answer) if isinstance(answer, dict) else answer

            with case(answer):
                driver = self.lockstep().open(store, envs, step_callback=wrong)
                with pytest.raises((ZeroDivisionError, el.EpisodelakeError)) as caught, driver:
                    driver.reset(5)
                    for _ in range(4):
                        driver.step()
                assert (caught.value is error) == (answer is error)
                played[driver.recorder.run_id] = answer, envs[0]
        runs = self.runs(store)
        for run, (answer, env) in played.items():
            with case(answer):
                (episode,) = self.adapter.episodes(runs[run], 0)
                kept = env.history[0].cut(2)
                check_episode(episode, kept, env, self.adapter.kept_infos(kept, 0))

    def test_an_episode_callback_sees_each_episode_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It reads the values that are stored, from memory or the journal; its answer is metadata."""
        for small in (False, True):
            if small:
                for module, name in _BUFFERS:
                    monkeypatch.setattr(module, name, 4)
            seen: dict[str, tuple[Any, dict[str, Any]]] = {}

            def note(episode: el.types.EpisodeSummary, seen: Any = seen) -> dict[str, Any]:
                names = ("observations", "actions", "rewards", "infos")
                names += tuple(f"reward_{name}" for name in ("mean", "std", "min", "max"))
                assert episode.id not in seen
                seen[episode.id] = episode, {name: getattr(episode, name) for name in names}
                return {"label": f"{episode.length} {episode.end_reason}", "odd ü.": {"n": [episode.number]}}

            envs = self.envs(lengths=[[3, 9], [1, 14]])
            with case(f"small buffers: {small}"):
                store = self.adapter.create(tmp_path / str(small), envs[0])
                with self.adapter.open(store, envs, episode_callback=note) as driver:
                    play(driver, envs, 2, 5)
                    driver.reset()
                    driver.step()
                assert seen.keys() == {episode.id for episode in store.refresh()}
                for episode in store:
                    self._check_summary(episode, *seen[episode.id])
                late = next(iter(seen.values()))[0]
                with pytest.raises(el.errors.RecorderStateError, match="while its episode callback runs"):
                    late.values.get("rewards") if late.values else None
                    replace(late, values=copy.copy(late.values)).reward_min  # noqa: B018

    def _check_summary(self, episode: Any, summary: el.types.EpisodeSummary, values: dict[str, Any]) -> None:
        facts = ("number", "length", "seed", "end_reason", "terminated", "truncated", "episode_return")
        assert [getattr(summary, name) for name in facts] == [getattr(episode, name) for name in facts]
        label = {"label": f"{episode.length} {episode.end_reason}", "odd ü.": {"n": [episode.number]}}
        assert episode.metadata == label
        for name in ("observations", "actions", "rewards"):
            assert same(values[name], dict(getattr(episode, name)) if self.joint else getattr(episode, name))
        rewards = np.concatenate(list(episode.rewards.values())) if self.joint else episode.rewards
        for name in ("mean", "std", "min", "max"):
            assert np.isclose(values[f"reward_{name}"], getattr(rewards, name)(), 1e-9)
        for agent in episode.agents if self.joint else (None,):
            stored = episode.infos[agent] if agent else episode.infos
            assert_infos(values["infos"][agent] if agent else values["infos"], stored)
        if self.joint:
            assert summary.agent_returns == episode.agent_returns
            assert summary.agent_lengths == episode.agent_lengths

    def test_what_an_episode_callback_raises_or_gets_wrong_costs_no_episode(self, tmp_path: Path) -> None:
        """Its exception passes on unchanged, nonsense is an error of the tree, and every episode is kept."""
        error = ZeroDivisionError("mine")
        store, played = self.adapter.create(tmp_path / "store", self.envs()[0]), {}
        for answer in (error, 5, "text", [1], object(), True):
            envs = self.envs(lengths=[[2, 3]], infos=self.adapter.infos[:1])
            answers: list[Any] = [answer]

            def wrong(episode: el.types.EpisodeSummary, answers: list[Any] = answers) -> Any:
                given = answers.pop() if answers else None
                if isinstance(given, Exception):
                    raise given
                return given

            with case(answer):
                driver = self.lockstep().open(store, envs, episode_callback=wrong)
                with pytest.raises((ZeroDivisionError, el.EpisodelakeError)) as caught, driver:
                    play(driver, envs, 2, 5)
                assert (caught.value is error) == (answer is error)
                played[driver.recorder.run_id] = answer, envs
        runs = self.runs(store)
        for run, (answer, envs) in played.items():
            with case(answer):
                for lane, env in enumerate(envs):
                    found = self.adapter.episodes(runs[run], lane)
                    true = [rollout for rollout in env.recorded() if rollout.done]
                    assert len(found) >= len(true) > 0
                    for episode, rollout in zip(found, true, strict=False):
                        check_episode(episode, rollout, env, self.adapter.kept_infos(rollout, lane))

    def test_callbacks_cannot_change_what_is_being_recorded(self, tmp_path: Path) -> None:
        """A callback that pauses, resumes or discards is refused, and told what to do."""
        for kind in ("step_callback", "episode_callback"):
            for name in ("pause", "resume", "discard_episode"):
                envs, drivers = self.envs(lengths=[[2, 2]]), []

                def call(_: Any, name: str = name, drivers: list[Driver] = drivers) -> Any:
                    return getattr(drivers[0].recorder, name)() if drivers else None

                with case(f"{name} in {kind}"):
                    store = self.adapter.create(tmp_path / kind / name, envs[0])
                    driver = self.lockstep().open(store, envs, **{kind: call})
                    drivers.append(driver)
                    with pytest.raises(el.errors.RecorderStateError, match=r"StepData\.end"):
                        play(driver, envs, 2, 5)
                        driver.close()
                    assert not driver.recorder.paused
                    drivers.clear()
                    driver.close()

    # Infos

    def test_only_chosen_infos_are_stored(self, tmp_path: Path) -> None:
        """`record_infos` chooses keys; others are never looked at, and a step callback sees all of them."""
        choices: tuple[Any, ...] = (True, False, ("share", "deep"), {"_private"}, ["pair"], ())
        infos = [{"share": t / 4, "pair": np.array([t]), "_private": t, "word": str(t)} for t in range(9)]
        for choice in choices:
            envs = self.envs(infos=infos)
            shown: list[int] = []
            count = lambda step, shown=shown: shown.append(len(step.info)) or None  # noqa: E731
            with case(choice), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                store = self.adapter.create(tmp_path / str(choice), envs[0])
                with self.adapter.open(store, envs, record_infos=choice, step_callback=count) as driver:
                    play(driver, envs, 2, 5)
                kept: set[str] = set()
                for lane, episode, rollout in Recording(store.refresh(), envs, self.adapter).pairs():
                    true = [_chosen(info, choice) for info in self.adapter.kept_infos(rollout, lane)]
                    assert_infos(episode.infos, true)
                    kept.update(*true)
                names = [name.partition("info.")[2] for name in store.steps.collect_schema().names()]
                assert {name for name in names if name} == kept
                assert min(shown) >= 4

    def test_what_cannot_be_recorded_is_refused(self, tmp_path: Path) -> None:
        """Other spaces and a choice of infos that is none leave no run; a key that never came is named."""
        envs = self.envs(infos=[{"speed": 1.0}])
        store = self.adapter.create(tmp_path / "store", envs[0])
        for others in ((KINDS["number"], PUSH), (BOX, KINDS["multi"])):
            with pytest.raises(el.errors.SpaceMismatchError, match="space"):
                self.adapter.open(store, self.envs(*others))
        for wrong in ("cost", None, 1, 0.5, ("cost", 3), b"cost"):
            with case(wrong), pytest.raises(el.errors.InvalidArgumentError, match="record_infos"):
                self.adapter.open(store, envs, record_infos=wrong)
        assert store.refresh().runs.collect().is_empty() and el.recover(store.path) == []
        for keys, told in ((("speed", "sped"), True), (("speed",), False)):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                with self.adapter.open(store, envs, record_infos=keys) as driver:
                    play(driver, envs, 1, 5)
            texts = [str(each.message) for each in caught if each.category is RuntimeWarning]
            assert any("'sped'" in text and "speed" in text for text in texts) == told

    # Pauses and discarded episodes

    def test_pauses_and_discarded_episodes(self, tmp_path: Path) -> None:
        """Whatever is paused, resumed, flushed, discarded and gone on with, exactly the rest is stored."""

        def go_on(step: el.types.StepData) -> el.types.StepData:
            at = step.t == 2 and not (step.terminated or step.truncated)
            return replace(step, end="continue" if at else False)

        store, models = self.adapter.create(tmp_path / "store", self.envs()[0]), {}
        for seed in range(6):
            rng, goes_on = np.random.default_rng(seed), seed % 3 == 2 and self.continues
            # Without infos and callbacks, recorders take their shortest way.
            envs = self.envs(lengths=[[3, 2, 5], [2, 4], [1, 3]], infos=None if seed % 2 else ({},))
            with case(f"seed {seed}"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = Model(envs, joint=self.joint, goes_on=goes_on)
                options = {"step_callback": go_on} if goes_on else {}
                with self.lockstep().open(store, envs, **options) as driver:
                    models[driver.recorder.run_id] = seed, model
                    driver.reset(5)
                    model.watch()
                    for number in range(40):
                        # Where nothing is recorded, or an agent has not come, there is no row for it.
                        with contextlib.suppress(*_NO_ROW):
                            driver.log([{"number": number}] * len(envs))
                        if number % 20 == 19:
                            driver.reset(number)
                        else:
                            driver.step()
                        model.watch()
                        self._meddle(driver.recorder, model, rng)
                        assert driver.recorder.paused == model.paused
        runs = self.runs(store)
        for run, (seed, model) in models.items():
            with case(f"seed {seed}"):
                model.check(runs.get(run, []), self.adapter)

    def _meddle(self, recorder: Any, model: Model, rng: np.random.Generator) -> None:
        kind, lane = int(rng.integers(10)), int(rng.integers(len(model.envs)))
        if kind == 0:
            recorder.pause()
            model.pause()
        elif kind <= 2:
            recorder.resume()
            model.paused = False
        elif kind == 3 and len(model.envs) > 1 and not self.joint:
            recorder.flush()
            model.flush()
        elif kind <= 5:
            lanes = range(len(model.envs)) if self.joint else [lane]
            chosen = [] if self.joint or len(model.envs) == 1 else [lane if kind == 4 else [lane]]
            if any(model.open[each] is not None for each in lanes):
                recorder.discard_episode(*chosen)
            else:
                with pytest.raises(el.errors.RecorderStateError, match="no episode to discard"):
                    recorder.discard_episode(*chosen)
            for each in lanes:
                model.open[each] = None

    def test_a_callback_goes_on_without_a_reset(self, tmp_path: Path) -> None:
        """With `end="continue"` the next episode begins with the last row's observation, info and columns."""

        def split(step: el.types.StepData) -> el.types.StepData:
            at = step.t == 2 and lane_of(step) == 0
            return replace(step, extra={"at": step.t}, end="continue" if at else False)

        envs = self.envs(lengths=[[5, 5]])
        store = self.adapter.create(tmp_path / "store", envs[0])
        with self.adapter.open(store, envs, step_callback=split) as driver:
            play(driver, envs, 1, 5)
        parts = self.adapter.episodes(store.refresh(), 0)[:3]
        (whole, *_), told = envs[0].recorded(), self.adapter.kept_infos(envs[0].recorded()[0], 0)
        assert [part.length for part in parts] == [2, 2, 1]
        assert [part.end_reason for part in parts] == ["cut", "cut", whole.end_reason]
        assert [part.seed for part in parts] == [whole.seed, None, None]
        for number, part in enumerate(parts):
            rows = slice(2 * number, 2 * number + part.length + 1)
            assert same(part.observations, stack(BOX, whole.observations[rows]))
            assert part.rewards.tolist() == whole.rewards[rows.start : rows.stop - 1]
            assert_infos(part.infos, told[rows])
            assert part.extra["at"].tolist() == [2 if number else 0, *range(1, part.length + 1)]
        assert not store.verify().faults

    # Exceptions

    def test_exceptions_of_the_environment_cost_no_step(self, tmp_path: Path) -> None:
        """The recorder stores the steps before an exception and raises it; only a reset may follow."""
        ways: dict[str, tuple[BaseException | None, ...]] = {
            "before": (TimeoutError("mine"), KeyboardInterrupt(), SystemExit(3), StopIteration()),
            "after": (TimeoutError("mine"), KeyboardInterrupt()),
            "reset": (TimeoutError("mine"), KeyboardInterrupt()),
            # An info that is none is mixed up with others by a batch.
            **dict.fromkeys(MISFITS if self.adapter.faithful else list(MISFITS)[:2], (None,)),
        }
        store, models = self.adapter.create(tmp_path / "store", self.envs()[0]), {}
        for way, errors in ways.items():
            with case(way):
                run, model = self._fail(store, way, errors)
                models[run] = way, model
        runs = self.runs(store)
        for run, (way, model) in models.items():
            with case(way):
                model.check(runs[run], self.adapter)

    def _fail(self, store: Any, way: str, errors: Sequence[BaseException | None]) -> tuple[str, Model]:
        """Record an environment that fails again and again, with one error after the other."""
        envs, turns = self.envs(lengths=[[4, 3, 5, 2]]), itertools.cycle(errors)
        for env in envs:
            env.__class__ = Failing
        failing: Any = envs[-1]
        failing.way, failing.error = way, next(turns)
        failing.fails = frozenset({2, 3, 6, 8} if way == "reset" else {3, 6, 7, 11, 15})
        model, met = Model(envs), 0
        with self.lockstep().open(store, envs) as driver:
            _persist(driver.reset)
            model.watch()
            for _ in range(25):
                lengths, begun = [env.t for env in envs], list(model.open)
                try:
                    driver.step()
                except BaseException as caught:
                    expected = failing.error
                    assert caught is expected or (expected is None and isinstance(caught, MISFIT_ERRORS))
                    met, failing.error = met + 1, next(turns)
                    model.open = begun
                    for lane, length in enumerate(lengths):
                        model.finish(lane, length)
                    model.begun = [len(env.history) for env in envs]
                    if not any(env.waiting for env in envs):
                        for _ in range(2):
                            with pytest.raises(el.errors.RecorderStateError, match=r"reset\("):
                                driver.step()
                    _persist(driver.reset)
                model.watch()
        assert met >= (1 if way == "reset" else 3)
        return driver.recorder.run_id, model


_NO_ROW = el.errors.RecorderStateError, el.errors.InvalidArgumentError
_BUFFERS = (
    (arrivals, "_FEWEST_ROWS"),
    (arrivals, "_MOST_ROWS"),
    (step_rows, "_FIRST_ROWS"),
    (vector_buffer, "_MOST_ROWS"),
)


def _values(step: el.types.StepData) -> dict[str, Any]:
    names = ("observation", "action", "reward", "info", "policy")
    return {name: getattr(step, name) for name in names}


def _plain(infos: Sequence[Any]) -> list[dict[Any, Any]]:
    """Infos with Python's numbers in the place of numpy's, of which batches have other ones."""
    return [
        {key: value.item() if isinstance(value, np.generic) else value for key, value in info.items()}
        for info in infos
    ]


def _chosen(info: Any, choice: Any) -> dict[Any, Any]:
    if choice is True:
        return dict(info)
    return {key: value for key, value in info.items() if choice and key in choice}


def _persist(reset: Callable[[], Any]) -> None:
    """Reset until it works."""
    while True:
        try:
            reset()
            return
        except ERRORS:
            pass


def _fill(*_: object) -> None:
    raise el.errors.StoreAccessError("the disk is full")


def _hang() -> None:
    raise OSError("the simulator hangs")
