"""What a vector recorder keeps beside the steps: infos, logged values, callbacks, foreign arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

import episodelake as el
from episodelake.testing import ScriptedEnv, assert_recorded, script
from episodelake.testing.adapters import case
from nasty_environments import Rollout, SmallEnv, same_info
from vector_rollouts import MODES, Maker, alone, batches

MODE_NAMES = [mode.value for mode in MODES]
STILL = np.zeros((3, 2), np.float32)


class Telling(SmallEnv):
    """Tells each key only now and then, and values of its own types."""

    def tell(self) -> Any:
        """Return what belongs to this time step."""
        told: dict[str, Any] = {"t": self.t}
        if self.t % 2:
            told["odd"] = np.float32(self.t) / 2
        if self.t == 2:
            told["picture"] = np.full((2, 3), self.t, np.uint8)
            told["word"] = "two"
        if self.t > 1:
            told["deep"] = {"er": {"x": float(self.t)}, "list": [self.t]}
        return told


class Scripted(VectorEnv):
    """A vector environment that hands out what a script says: observations, flags and infos of each call."""

    def __init__(self, count: int, script: list[tuple[Any, Any, Any]], mode: AutoresetMode) -> None:
        self.num_envs = count
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (), np.float64)
        self.single_action_space = spaces.Discrete(3)
        self.script, self.calls = script, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Begin with the first line."""
        self.calls = 0
        return self.script[0][0], self.script[0][2]

    def step(self, actions: Any) -> Any:
        """Hand out the next line."""
        self.calls += 1
        observations, done, infos = self.script[self.calls]
        return observations, np.ones(self.num_envs), done, np.zeros(self.num_envs, bool), infos


def recorded(folder: Path, envs: VectorEnv, steps: int, **arguments: Any) -> list[el.Episode]:
    """Record so many steps of a vector environment and return the episodes in the order of their numbers."""
    store = el.create(folder / "store", envs)
    with store.record(envs, **arguments) as recorder:
        recorder.reset(seed=10)
        for _ in range(steps):
            recorder.step(np.zeros(envs.num_envs, np.int64))
    assert store.refresh().verify().faults == ()
    return sorted(store, key=lambda episode: episode.number)


def test_infos_without_masks_are_everybodys(tmp_path: Path) -> None:
    """An array of one entry for each environment is taken apart; any other value is told of each of them."""
    infos = {
        "own": np.array([1.5, 2.5]),
        "all": "x",
        "number": 7,
        "deep": {"own": np.array([1, 2])},
        "_odd": 3,
    }
    script = [(np.zeros(2), None, infos), (np.ones(2), np.zeros(2, bool), infos)]
    episodes = recorded(tmp_path, Scripted(2, script, AutoresetMode.NEXT_STEP), 1)
    for index, episode in enumerate(episodes):
        expected = {"own": 1.5 + index, "all": "x", "number": 7, "deep": {"own": 1 + index}, "_odd": 3}
        assert episode.infos == [expected, expected]


def test_a_mask_of_the_outer_key_covers_what_is_inside(tmp_path: Path) -> None:
    """Nested infos under a mask are absent outside it, also where the inner keys have no masks."""
    infos = {"deep": {"x": np.array([1, 2])}, "_deep": np.array([False, True])}
    script = [(np.zeros(2), None, infos), (np.ones(2), np.zeros(2, bool), {})]
    episodes = recorded(tmp_path, Scripted(2, script, AutoresetMode.NEXT_STEP), 1)
    assert [episode.infos[0] for episode in episodes] == [{}, {"deep": {"x": 2}}]


@pytest.mark.parametrize("objects", [True, False])
def test_the_final_observation_may_be_a_batch_or_single_values(tmp_path: Path, objects: bool) -> None:
    """Under SAME_STEP `final_obs` is taken as an array of objects or as a whole batch, and copied at once."""
    final: Any = np.array([None, 9.0], object) if objects else np.array([-1.0, 9.0])
    done = np.array([False, True])
    told = {
        "final_obs": final,
        "_final_obs": done,
        "final_info": {"x": np.array([0, 5]), "_x": done},
        "_final_info": done,
    }
    envs = Scripted(
        2,
        [(np.zeros(2), None, {}), (np.ones(2), done, told), (np.ones(2), ~done & done, {})],
        AutoresetMode.SAME_STEP,
    )
    store = el.create(tmp_path / "store", envs)
    with store.record(envs) as recorder:
        recorder.reset()
        recorder.step(np.zeros(2, np.int64))
        final[1] = -77.0
        recorder.step(np.zeros(2, np.int64))
    first, second, third = sorted(store.refresh(), key=lambda episode: episode.number)
    assert first.observations.tolist() == [0, 1, 1] and second.observations.tolist() == [0, 9]
    assert second.infos == [{}, {"x": 5}] and second.end_reason == "terminated"
    assert third.observations.tolist() == [1, 1] and third.env_index == 1 and third.infos == [{}, {}]


def test_a_missing_final_observation_is_told(tmp_path: Path) -> None:
    """An environment that says SAME_STEP and gives no last observation gets an error; the rest is kept."""
    done = np.array([True, False])
    script = [(np.zeros(2), None, {}), (np.ones(2), done & ~done, {}), (np.ones(2), done, {})]
    envs = Scripted(2, script, AutoresetMode.SAME_STEP)
    store = el.create(tmp_path / "store", envs)
    with store.record(envs) as recorder:
        recorder.reset()
        recorder.step(np.zeros(2, np.int64))
        with pytest.raises(el.errors.SpaceMismatchError, match="final_obs"):
            recorder.step(np.zeros(2, np.int64))
    assert [(episode.length, episode.end_reason) for episode in store.refresh()] == [(1, "cut")] * 2


def test_a_logged_value_of_another_size_is_refused(tmp_path: Path) -> None:
    """A value without one entry for each environment is an error that says so, and nothing is kept of it."""
    for number, value in enumerate(
        [5, np.zeros(2), np.zeros(()), [1, 2], "abc", None, {"deep": np.zeros(4)}]
    ):
        with case(value):
            _check_a_logged_value_of_another_size_is_refused(tmp_path / str(number), value)


def _check_a_logged_value_of_another_size_is_refused(tmp_path: Path, value: Any) -> None:
    envs = SyncVectorEnv([lambda: SmallEnv(9)] * 3)
    store = el.create(tmp_path / "store", envs)
    with store.record(envs) as recorder:
        recorder.reset(seed=10)
        with pytest.raises(el.errors.SpaceMismatchError, match="one entry for each"):
            recorder.log(value=value)
        with pytest.raises(el.errors.SpaceMismatchError, match="mask"):
            recorder.log(value=np.zeros(3), mask=np.zeros(3))
        recorder.step(STILL)
    assert [episode.policy for episode in store.refresh()] == [{}] * 3


class Widening(SmallEnv):
    """Its info has an array that is longer at every step."""

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """One more number each time."""
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"legal": np.arange(self.t)}


def test_arrays_whose_size_changes_from_step_to_step(tmp_path: Path) -> None:
    """Infos and logged values of one key, with another length in each step, come back as they were."""
    for number, mode in enumerate(MODES):
        with case(mode):
            _check_arrays_whose_size_changes_from_step_to_step(tmp_path / str(number), mode)


def _check_arrays_whose_size_changes_from_step_to_step(tmp_path: Path, mode: AutoresetMode) -> None:
    envs = SyncVectorEnv([lambda: Widening(4)] * 3, autoreset_mode=mode)
    store = el.create(tmp_path / "store", envs)
    with store.record(envs, flush_seconds=1e6) as recorder:
        recorder.reset(seed=0)
        for step in range(4):
            recorder.log(seen=np.full((3, step + 2), step), own=[np.arange(step + env) for env in range(3)])
            recorder.step(np.zeros((3, 2), np.float32))
    for episode in store.refresh():
        assert [info["legal"].tolist() for info in episode.infos[1:]] == [[*range(t)] for t in range(1, 5)]
        assert [each.tolist() for each in episode.policy["seen"][:4]] == [[t] * (t + 2) for t in range(4)]
        own = [list(range(t + episode.env_index)) for t in range(4)]
        assert [each.tolist() for each in episode.policy["own"][:4]] == own
    assert len(store) == 3
    assert not store.verify().faults


def test_infos_as_a_list_are_recorded_like_infos_as_a_mapping(tmp_path: Path) -> None:
    """Gymnasium's `DictInfoToList` changes the form of infos, and nothing of what is recorded."""
    for number, mode in enumerate(MODES):
        with case(mode):
            _check_infos_as_a_list_are_recorded_like_infos_as_a_mapping(tmp_path / str(number), mode)


def _check_infos_as_a_list_are_recorded_like_infos_as_a_mapping(tmp_path: Path, mode: AutoresetMode) -> None:
    frames = []
    for name, wrap in (("plain", lambda envs: envs), ("listed", DictInfoToList)):
        envs = SyncVectorEnv([lambda: Telling(3), lambda: Telling(5)], autoreset_mode=mode)
        store = el.create(tmp_path / name, envs)
        el.collect(wrap(envs), None, store, episodes=5, seed=0)
        frames.append(store.refresh().steps.collect().drop("episode_id"))
    assert {"info.odd", "info.picture", "info.word", "info.deep.er.x"} <= set(frames[0].columns)
    assert frames[0].schema == frames[1].schema and frames[0].equals(frames[1])


class Paying(VectorWrapper):
    """Adds a key with every step, without a mask, and one at environments that are done."""

    def step(self, actions: Any) -> Any:
        """Add the reward, and how the episode went."""
        *result, infos = self.env.step(actions)
        done = result[2] | result[3]
        infos["paid"] = result[1].copy()
        if done.any():
            infos |= {"verdict": np.where(done, "over", ""), "_verdict": done}
        return *result, infos


CHAINS: dict[str, Callable[[VectorEnv], VectorEnv]] = {
    "statistics": lambda envs: RecordEpisodeStatistics(envs, stats_key="sums"),
    "listed": lambda envs: DictInfoToList(RecordEpisodeStatistics(envs, stats_key="sums")),
    "paying": lambda envs: Paying(RecordEpisodeStatistics(envs, stats_key="sums")),
}


def _wrapped(rollout: Rollout, mode: AutoresetMode, *, paying: bool, first: bool) -> None:
    """Add what vector-level wrappers add to the infos of one episode, but for the time it took."""
    if rollout.terminations[-1]:
        rollout.infos[-1]["sums"] = {"r": sum(rollout.rewards), "l": len(rollout.rewards)}
    if paying:
        for info, reward in zip(rollout.infos[1:], rollout.rewards, strict=True):
            info["paid"] = reward
        if rollout.terminations[-1]:
            rollout.infos[-1]["verdict"] = "over"
        if mode is AutoresetMode.NEXT_STEP and not first:
            rollout.infos[0]["paid"] = 0.0


@pytest.mark.parametrize("mode", MODES, ids=MODE_NAMES)
@pytest.mark.further
def test_infos_of_vector_level_wrappers_stand_beside_their_step(tmp_path: Path, mode: AutoresetMode) -> None:
    """Infos that they add at the end of an episode belong to its last row, as in one-by-one rollouts."""
    callbacks: dict[str, Any] = {"statistics": lambda step: None, "listed": None, "paying": lambda step: None}
    for chain, callback in [*callbacks.items(), ("paying", None)]:
        with case((chain, callback)):
            _check_wrapper(tmp_path / f"{chain} {callback is None}", mode, chain, callback)


def _check_wrapper(tmp_path: Path, mode: AutoresetMode, chain: str, callback: Any) -> None:
    # With a mask Gymnasium's statistics start over for all sub-environments, so there all end together.
    lengths = (3, 3, 3) if mode is AutoresetMode.DISABLED else (3, 1, 4)
    makers: list[Maker] = [lambda n=n: Telling(n) for n in lengths]
    envs = CHAINS[chain](
        (AsyncVectorEnv if chain == "paying" else SyncVectorEnv)(makers, autoreset_mode=mode)
    )
    taken = batches(envs, 11)
    store = el.create(tmp_path / "store", envs)
    with store.record(envs, step_callback=callback) as recorder:
        recorder.reset(seed=10)
        for actions in taken:
            *_, terminations, truncations, _ = recorder.step(actions)
            if mode is AutoresetMode.DISABLED and (done := terminations | truncations).any():
                recorder.reset(options={"reset_mask": done})
    plain = alone(makers, taken, mode, envs.action_space)
    store.refresh()
    for index, rollouts in enumerate(plain):
        episodes = sorted((e for e in store if e.env_index == index), key=lambda e: e.number)
        for place, (episode, rollout) in enumerate(zip(episodes, rollouts, strict=True)):
            _wrapped(rollout, mode, paying=chain == "paying", first=place == 0)
            infos = [dict(info) for info in episode.infos]
            for info in infos:
                # The time that the episode took is the machine's.
                assert ("sums" in info) == (info.get("sums", {}).pop("t", None) is not None)
            assert all(map(same_info, infos, rollout.infos)), (index, place)


def test_infos_of_resets_stay_with_the_next_episode(tmp_path: Path) -> None:
    """A key that resets give, or that `final_info` has, is not taken for a wrapper's."""

    class Opening(SmallEnv):
        """Gives a key with every reset and never with a step."""

        def tell(self) -> Any:
            return {"start": float(self.held), "t": 0} if self.t == 0 else {"t": self.t}

        def reset(self, **arguments: Any) -> Any:
            self.held = getattr(self, "held", 0) + 1
            return super().reset(**arguments)

    for number, wrap in enumerate((lambda envs: envs, *CHAINS.values())):
        envs = wrap(SyncVectorEnv([lambda: Opening(2)] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
        store = el.create(tmp_path / str(number), envs)
        with store.record(envs) as recorder:
            recorder.reset(seed=10)
            for _ in range(5):
                recorder.step(np.zeros((2, 2), np.float32))
        assert len(store.refresh()) == 6
        for episode in store:
            starts = ["start" in info for info in episode.infos]
            assert starts == [True] + [False] * episode.length
            assert [info["t"] for info in episode.infos] == list(range(episode.length + 1))


def test_infos_of_another_form_are_refused(tmp_path: Path) -> None:
    """Infos are a mapping, or a list with one for each environment."""
    for number, infos in enumerate(["text", [{}], [{}, {}, {}], [{}, 1], 5]):
        with case(infos):
            _check_infos_of_another_form_are_refused(tmp_path / str(number), infos)


def _check_infos_of_another_form_are_refused(tmp_path: Path, infos: Any) -> None:
    class Odd(VectorWrapper):
        def step(self, actions: Any) -> Any:
            return (*self.env.step(actions)[:4], infos)

    envs = SyncVectorEnv([SmallEnv, SmallEnv])
    store = el.create(tmp_path / "store", envs)
    with store.record(Odd(envs)) as recorder:
        recorder.reset()
        with pytest.raises(el.errors.SpaceMismatchError, match="infos is"):
            recorder.step(STILL[:2])


def test_masks_reset_exactly_the_masked(tmp_path: Path) -> None:
    """Who is reset in the middle of an episode is cut there and has its own seed; nobody else notices."""
    rng = np.random.default_rng(0)
    infos = [{"step": t} for t in range(20)]
    box, push = spaces.Box(-9, 9, (2,), np.float32), spaces.Discrete(3)
    alone = [ScriptedEnv(box, push, script(box, push, [5, 3, 4], seed=k, infos=infos)) for k in range(3)]
    envs = SyncVectorEnv([lambda env=env: env for env in alone], autoreset_mode=AutoresetMode.DISABLED)
    store = el.create(tmp_path / "store", envs)
    with store.record(envs) as recorder:
        recorder.reset(seed=[7, 8, 9])
        for number in range(30):
            recorder.step(np.array([env.action() for env in alone]))
            mask = np.array([env.waiting for env in alone]) | (rng.random(3) < 0.2)
            if mask.any():
                seeds: list[int | None] = [100 * number + k for k in range(3)]
                recorder.reset(seed=seeds, options={"reset_mask": mask})
    for index, env in enumerate(alone):
        found = sorted((e for e in store.refresh() if e.env_index == index), key=lambda e: e.number)
        assert len(found) == len(env.recorded())
        for episode, rollout in zip(found, env.recorded(), strict=True):
            assert_recorded(episode, rollout, env)
            assert episode.seed == rollout.seed


class Sharing(Scripted):
    """Tells one number of all at once, and a key that is no text, whose mask is no info of its own."""

    def step(self, actions: Any) -> Any:
        """Tell the number of the call."""
        *result, _ = super().step(actions)
        return *result, {"level": np.int16(self.calls), 7: np.array([1, 2]), "_7": np.array([True, False])}


def test_a_number_that_all_share_is_a_number(tmp_path: Path) -> None:
    """A numpy scalar in the infos comes back as a Python number, as it does from a single environment."""
    still = (np.zeros(2), np.zeros(2, bool), {})
    first, second = recorded(tmp_path, Sharing(2, [still] * 4, AutoresetMode.NEXT_STEP), 2)
    assert first.infos == [{}, {"level": 1, 7: 1}, {"level": 2, 7: 1}]
    assert second.infos == [{}, {"level": 1}, {"level": 2}] and type(second.infos[1]["level"]) is int
