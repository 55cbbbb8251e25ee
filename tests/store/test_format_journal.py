"""docs/format.md says enough of journals: a reader written from it alone finds what a recovery does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el
import independent_journal
from agent_environments import Comings, Turns
from independent_checks import assert_agree, assert_lane, play_some
from maintenance_stores import crashed_copy
from plain_agents import play_parallel, play_turns, random_policy
from waiting import wait_for_journal

# Everything comes into the journal soon, and nothing is sealed unasked however slow the machine is.
LIVE: dict[str, Any] = {"flush_seconds": 0.01, "seal_seconds": 1e6}


def journal_of(store: el.EpisodeStore, recorder: Any) -> Path:
    """The folder of a recorder's journal."""
    return store.path / "journal" / recorder.run_id


def assert_recovered(
    store: el.EpisodeStore, run_id: str, folder: Path
) -> list[independent_journal.Recoverable]:
    """In a copy whose writer is dead, recovery finds what the independent reader does."""
    path = crashed_copy(store, folder)
    header, found = independent_journal.read_journal(path, run_id)
    assert header["run_id"] == run_id
    known = set(el.open(path).episodes.collect()["episode_id"])
    el.recover(path)
    after = [each for each in el.open(path) if each.id not in known]
    groups = {group.name: (group.observation_space, group.action_space) for group in store.agent_groups}
    assert [each.number for each in found] == [
        ours.number for ours in sorted(after, key=lambda one: one.number)
    ]
    for each, ours in zip(found, sorted(after, key=lambda one: one.number), strict=True):
        assert (each.end_reason, each.length, each.seed) == (ours.end_reason, ours.length, ours.seed)
        assert each.agents == list(ours.agents)
        for name, lane in zip(ours.agents or [None], each.lanes, strict=True):
            one = ours if name is None else ours.agent(name)
            spaces_of = (store.observation_space, store.action_space)
            if name is not None:
                (group,) = (group.name for group in store.agent_groups if name in group.agents)
                spaces_of = groups[group]
            assert_lane(lane, one, *spaces_of)
    assert_agree(path)
    return found


def test_a_live_journal_is_read(tmp_path: Path) -> None:
    """Sealed episodes are left out; finished ones and the one that goes on are there, their reasons right."""
    env = gymnasium.make("CartPole-v1")
    store = el.create(tmp_path / "store", env)
    with store.record(env, durability="fsync", **LIVE) as recorder:
        play_some(recorder, range(3), 0)
        recorder.seal()
        total = play_some(recorder, range(10, 13), 7)
        # The seal took the four episodes before, the unfinished one as soon as this reset ended it.
        wait_for_journal(journal_of(store, recorder), total, ended=3, first=4)
        found = assert_recovered(store, recorder.run_id, tmp_path / "copy")
    assert [each.end_reason for each in found] == ["terminated"] * 3 + ["interrupted"]
    assert found[-1].length == 7 and found[0].lanes[0].policy[-1] == {"value": -1.0}


class Frames(gymnasium.Env):
    """Frames that hardly change, so that a journal packs them."""

    observation_space = spaces.Dict(
        {"screen": spaces.Box(0, 255, (64, 64), np.uint8), "t": spaces.Discrete(999)}
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin with a dark screen."""
        super().reset(seed=seed)
        self.t = 0
        return self._look(), {"t": 0}

    def step(self, action: Any) -> Any:
        """One pixel more is lit."""
        self.t += 1
        return (
            self._look(),
            float(action),
            self.t == 40,
            False,
            {"t": self.t, "found": [self.t] * (self.t % 3)},
        )

    def _look(self) -> Any:
        screen = np.zeros((64, 64), np.uint8)
        screen.reshape(-1)[: self.t] = np.arange(self.t)
        return {"screen": screen, "t": self.t}


@pytest.mark.further
def test_packed_frames_of_a_journal_are_read(tmp_path: Path) -> None:
    """Images in a journal are packed in units of rows, and come back whole."""
    store = el.create(tmp_path / "store", Frames())
    with store.record(Frames(), **LIVE) as recorder:
        total = play_some(recorder, range(2), 25)
        wait_for_journal(journal_of(store, recorder), total, ended=2)
        parts = sorted(journal_of(store, recorder).glob("*.frames"))
        assert any(b"value_bytes" in part.read_bytes() for part in parts)
        assert len(assert_recovered(store, recorder.run_id, tmp_path / "copy")) == 3


def test_rows_of_many_environments_are_told_apart(tmp_path: Path) -> None:
    """A vector environment's rows alternate in the journal, and its episodes begin and end together."""
    envs = gymnasium.make_vec("CartPole-v1", num_envs=4)
    store = el.create(tmp_path / "store", envs)
    with store.record(envs, **LIVE) as recorder:
        envs.action_space.seed(0)
        recorder.reset(seed=0)
        for _ in range(60):
            recorder.step(recorder.action_space.sample())
        wait_for_journal(journal_of(store, recorder), recorder.transitions, ended=recorder.episodes)
        found = assert_recovered(store, recorder.run_id, tmp_path / "copy")
    assert len(found) > 8 and {each.end_reason for each in found} == {"terminated", "interrupted"}


@pytest.mark.parametrize(("make", "play"), [(Comings, play_parallel), (Turns, play_turns)])
def test_agents_of_a_journal_are_told_apart(make: Any, play: Any, tmp_path: Path) -> None:
    """Each agent's arrivals become a lane; agents that come late and leave early are there."""
    store = el.create(tmp_path / "store", make())
    recorder = store.record(make(), **LIVE)
    try:
        plain = [play(recorder, random_policy(recorder, seed), seed) for seed in range(2)]
        plain.append(play(recorder, random_policy(recorder, 2), 2, 5))
        steps = sum(len(lane.rewards) for lanes in plain for lane in lanes.values())
        wait_for_journal(journal_of(store, recorder), steps, ended=2)
        found = assert_recovered(store, recorder.run_id, tmp_path / "copy")
    finally:
        recorder.close()
    assert [each.end_reason for each in found][-1] == "interrupted" and len(found) == 3


def test_a_missing_last_observation_is_told_at_the_end(tmp_path: Path) -> None:
    """The `end` of an episode that lacks its last observation says so; others have all of theirs."""
    space = gymnasium.spaces.Dict(
        {"place": gymnasium.spaces.Box(-1, 1, (2,)), "word": gymnasium.spaces.Text(3)}
    )
    store = el.create(tmp_path / "store", observation_space=space, action_space=gymnasium.spaces.Discrete(2))
    with store.writer() as writer:
        for length, last in ((3, "missing"), (70, "missing"), (4, "present"), (80, "present")):
            count = length + (last == "present")
            writer.write_episode(
                observations={"place": np.zeros((count, 2), np.float32), "word": ["ab"] * count},
                actions=np.zeros(length, int),
                rewards=np.ones(length),
                terminations=False,
                truncations=length == 3,
                last_observation=last,
            )
        writer.flush()
        found = assert_recovered(store, writer.run_id, tmp_path / "copy")
    assert [len(each.lanes[0].observations) for each in found] == [3, 70, 5, 81]


def journal_of_four(path: Path) -> tuple[el.EpisodeStore, str, Path]:
    """A store whose writer died with four episodes in some frames of its journal; the run, the part."""
    env = gymnasium.make("CartPole-v1")
    store = el.create(path / "store", env)
    with store.record(env, **LIVE) as recorder:
        for seed in range(4):
            play_some(recorder, range(seed, seed), 8)
            wait_for_journal(journal_of(store, recorder), (seed + 1) * 8, ended=seed)
        copy = crashed_copy(store, path / "died")
    (part,) = (copy / "journal" / recorder.run_id).glob("*.frames")
    return el.open(copy), recorder.run_id, part


@pytest.mark.parametrize("cut", [1, 100, 1500])
def test_a_torn_journal_ends_where_it_tore(cut: int, tmp_path: Path) -> None:
    """What a crash cut off the end is lost; all whole frames before it count, for both readers."""
    store, run_id, part = journal_of_four(tmp_path)
    data = part.read_bytes()
    part.write_bytes(data[:-cut])
    whole = [frame for frame in independent_journal.frames(part.read_bytes()) if frame is not None]
    assert 0 < len(whole) < len(list(independent_journal.frames(data)))
    found = assert_recovered(store, run_id, tmp_path / "recovered")
    assert 0 < sum(each.length for each in found) < 32


@pytest.mark.parametrize("where", [0.3, 0.6])
def test_damage_within_a_journal_ends_open_episodes(where: float, tmp_path: Path) -> None:
    """A changed byte spoils its frame; the episodes that were open there end there, later ones count."""
    store, run_id, part = journal_of_four(tmp_path)
    data = bytearray(part.read_bytes())
    data[int(len(data) * where) + 70] ^= 1
    part.write_bytes(data)
    assert None in list(independent_journal.frames(bytes(data)))
    assert_recovered(store, run_id, tmp_path / "recovered")
    assert (tmp_path / "recovered" / "journal" / f"{run_id}.damaged").is_dir()
