"""Episodes that are continued, by the same and by other processes: they equal those of an unbroken loop."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Sequence, Text

import episodelake as el
import reopening_child as child
from episodelake.store.files import locks
from episodelake.store.recovery import reopening
from episodelake.store.rewrite import rows
from episodelake.store.segments import steps_file
from waiting import PATIENCE

SCRIPT = Path(child.__file__)
POINTS = ("reopened", "appended", "flushed", *child.POINTS)


def run_children(order: dict[str, Any]) -> list[int]:
    """Have another process do this, and return how each of its children ended."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recovered store, whose first process was killed in the middle of an episode."""
    path = tmp_path_factory.mktemp("interrupted") / "store"
    assert run_children({"record": str(path)}) == [-signal.SIGKILL]
    assert [run.interrupted for run in el.recover(path)] == [1]
    return path


@pytest.fixture
def store(interrupted: Path, tmp_path: Path) -> el.EpisodeStore:
    """A copy of it."""
    return el.open(interrupted).copy(tmp_path / "store")


def with_seed(store: el.EpisodeStore, seed: int) -> el.Episode:
    """Return the only episode with a seed."""
    (episode,) = store.refresh().filter(f"seed = {seed}")
    return episode


def assert_plain(episode: el.Episode, seed: int, length: int) -> None:
    """Fail unless an episode is what a plain loop of so many steps sees."""
    assert len(episode.actions) == episode.length == length
    observations = np.stack([child.observed(seed, t) for t in range(length + 1)])
    assert np.array_equal(episode.observations, observations)
    assert episode.actions.tolist() == list(range(length))
    assert episode.rewards.tolist() == [t / 7 for t in range(length)]
    assert episode.episode_return == sum(t / 7 for t in range(length))
    assert episode.terminations.tolist() == [t + 1 == child.WHOLE for t in range(length)]
    assert not episode.truncations.any()
    assert [info["t"] for info in episode.infos] == list(range(length + 1))
    assert list(episode.policy["v"][:length]) == [t / 2 for t in range(length)]
    assert (episode.seed, episode.options) == (seed, {"level": seed})


def assert_consistent(store: el.EpisodeStore) -> None:
    """Fail unless the store verifies, and another reader of Delta tables sees these episodes' rows alone."""
    assert not store.refresh().verify().faults
    found: dict[str, list[Any]] = {}
    for table, column in (("steps", "episode_id"), ("episodes", "row_count")):
        files = deltalake.DeltaTable(str(store.path / table)).file_uris()
        found[column] = [row for file in files for row in pq.read_table(file)[column].to_pylist()]
    assert len(found["episode_id"]) == sum(found["row_count"])
    assert set(found["episode_id"]) == {episode.id for episode in store}


@pytest.mark.further
def test_another_process_continues_an_interrupted_episode(store: el.EpisodeStore) -> None:
    """Its arrays, infos, policy values and facts are those of a loop without a break; the others stay."""
    old = with_seed(store, 7)
    assert (old.length, old.end_reason) == (child.CUT, "interrupted")
    with store.writer(run="second", **child.QUIET) as writer:
        episode = writer.reopen(old.id)
        assert (episode.length, episode.continues, episode.info) == (child.CUT, old.id, {"t": child.CUT})
        assert np.array_equal(episode.observation, child.observed(7, child.CUT))
        child.take_steps(episode, 7, child.CUT, child.WHOLE - 2)
        writer.flush()
        assert with_seed(store, 7).id == old.id
        child.take_steps(episode, 7, child.WHOLE - 2, child.WHOLE)
        row = episode.end({"done": True})
        assert (row.length, row.episode_id) == (child.WHOLE, episode.id)
    whole = with_seed(store, 7)
    assert_plain(whole, 7, child.WHOLE)
    assert whole.metadata == {"by": "A", "done": True, "continues": [old.id]}
    assert (whole.end_reason, whole.id, whole.started_at) == ("terminated", episode.id, old.started_at)
    for seed in (6, 8):
        assert_plain(with_seed(store, seed), seed, child.CUT)
    assert [e.seed for e in store] == [6, 8, 7]
    assert_consistent(store)
    assert [entry["operation"] for entry in store.history().to_dicts()[:2]] == ["seal", "reopen"]
    (before,) = el.open(store.path, version=store.version - 1).filter("seed = 7")
    assert_plain(before, 7, child.CUT)


@pytest.mark.parametrize(
    "points",
    [
        ("flushed", "steps committed"),
        pytest.param(POINTS, marks=pytest.mark.further),
    ],
    ids=["some", "all"],
)
@pytest.mark.further
def test_a_kill_leaves_the_old_episode_or_the_whole(
    store: el.EpisodeStore, tmp_path: Path, points: tuple[str, ...]
) -> None:
    """Readers see exactly one of them as found and after recovery, which loses nothing that was flushed."""
    old = with_seed(store, 7)
    folders = [tmp_path / str(number) for number in range(len(points))]
    children = [
        {"folder": str(folder), "episode": old.id, "point": point}
        for folder, point in zip(folders, points, strict=True)
    ]
    ends = run_children({"store": str(store.path), "children": children})
    assert ends == [-signal.SIGKILL] * len(points)
    for folder, point in zip(folders, points, strict=True):
        found = el.open(folder / "store")
        committed = POINTS.index(point) >= POINTS.index("episodes committed")
        assert_plain(with_seed(found, 7), 7, child.WHOLE if committed else child.CUT)
        el.recover(folder / "store")
        kept = with_seed(found, 7)
        length = {"reopened": child.CUT, "flushed": child.WHOLE - 1}.get(point, child.WHOLE)
        assert_plain(kept, 7, child.CUT if point == "appended" else length)
        assert kept.end_reason == (
            "terminated" if length == child.WHOLE and point != "appended" else "interrupted"
        )
        assert (kept.id == old.id) == (kept.length == child.CUT)
        assert kept.metadata.get("continues") == (None if kept.id == old.id else [old.id])
        for seed in (6, 8):
            assert_plain(with_seed(found, seed), seed, child.CUT)
        assert_consistent(found)
        assert not list((folder / "store" / "journal").glob("second*"))


@pytest.mark.further
def test_an_episode_is_continued_again_and_again(store: el.EpisodeStore) -> None:
    """Each process may name the first id; one that appends nothing, or discards, changes nothing."""
    ids = [with_seed(store, 7).id]
    for stop in (5, 6):
        with store.writer(**child.QUIET) as writer:
            episode = writer.reopen(ids[0])
            assert episode.continues == ids[-1]
            child.take_steps(episode, 7, episode.length, stop)
            ids.append(episode.id)
    with store.writer(**child.QUIET) as writer:
        episode = writer.reopen(ids[1])
        with pytest.raises(
            el.errors.RecorderStateError, match=r"Nothing was appended to .* it stays as it was"
        ):
            episode.end({"lost": True})
        episode = writer.reopen(ids[0])
        child.take_steps(episode, 7, 6, 8)
        writer.flush()
        episode.discard()
        writer.reopen(ids[0])
    found = with_seed(store, 7)
    assert (found.id, found.metadata["continues"]) == (ids[-1], ids[:-1])
    with store.writer(**child.QUIET) as writer:
        child.take_steps(writer.reopen(ids[0]), 7, 6, child.WHOLE)
        # Not sealed yet: the journal alone has them.
        assert with_seed(store, 7).id == ids[-1]
    assert_plain(with_seed(store, 7), 7, child.WHOLE)
    assert_consistent(store)


@pytest.mark.further
def test_what_cannot_be_reopened(store: el.EpisodeStore) -> None:
    """Ended, unknown and claimed episodes are refused with the reason, and nothing is written."""
    with store.writer(run="ended", **child.QUIET) as writer:
        for seed, flag in ((1, "terminations"), (2, "truncations")):
            flags = {"terminations": False, "truncations": False} | {flag: True}
            values = np.zeros((3, 2)), np.zeros(2, int), np.zeros(2)
            names = ("observations", "actions", "rewards")
            writer.write_episode(**dict(zip(names, values, strict=True)), **flags, seed=seed)
        flags = {"terminations": False, "truncations": False}
        values = np.zeros((2, 2)), np.zeros(2, int), np.zeros(2)
        arrays = dict(zip(names, values, strict=True))
        writer.write_episode(**arrays, **flags, seed=3, last_observation="missing")
    version = store.refresh().version
    with store.writer(run="one", **child.QUIET) as writer, store.writer(run="two", **child.QUIET) as other:
        for seed, reason in ((1, "terminated"), (2, "truncated")):
            with pytest.raises(
                el.errors.InvalidArgumentError, match=f"is {reason} after 2 steps, so nothing can"
            ):
                writer.reopen(with_seed(store, seed).id)
        with pytest.raises(
            el.errors.InvalidArgumentError, match="missing, so the next action would have no observation"
        ):
            writer.reopen(with_seed(store, 3).id)
        with pytest.raises(
            el.errors.EpisodeNotFoundError, match=r"no episode 'first/9'\. .* once it is stored"
        ):
            writer.reopen("first/9")
        old = with_seed(store, 7).id
        episode = writer.reopen(old)
        for each in (writer, other):
            with pytest.raises(el.errors.RecorderStateError, match=f"{writer.run_id}' continues the episode"):
                each.reopen(old)
        episode.discard()
        other.reopen(old)
    with pytest.raises(el.errors.RecorderStateError, match="is closed"):
        writer.reopen(old)
    assert store.refresh().version == version and with_seed(store, 7).id == old
    assert_consistent(store)


def test_the_old_episode_is_found_wherever_it_went(
    store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is replaced after a compaction, before the seal or in the middle of it."""
    store.delete("seed = 6")
    with store.writer(**child.QUIET) as writer:
        episode = writer.reopen(with_seed(store, 7).id)
        child.take_steps(episode, 7, child.CUT, child.WHOLE)
        episode.end()
        store.refresh().compact()
        # Set apart for the seal, it is compacted once more before the commit.
        apart = reopening._set_apart
        calls: list[int] = []

        def compacted(*args: Any) -> None:
            apart(*args)
            if not calls:
                store.refresh().compact()
            calls.append(1)

        monkeypatch.setattr(reopening, "_set_apart", compacted)
        writer.seal()
        assert len(calls) == 2
    assert_plain(with_seed(store, 7), 7, child.WHOLE)
    assert_consistent(store)


@pytest.mark.sample(1)
@pytest.mark.parametrize("how", ["deleted", "continued"])
def test_a_continuation_of_an_episode_that_is_gone_is_kept(
    store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Another host deleted or continued it meanwhile: nothing recorded is lost, and a warning says so."""
    old = with_seed(store, 7).id
    # Another host does not see this one's journals.
    monkeypatch.setattr(reopening, "_check_unclaimed", lambda *_: None)
    first, second = (store.writer(run=run, **child.QUIET) for run in ("one", "two"))
    child.take_steps(first.reopen(old), 7, child.CUT, 6)
    if how == "deleted":
        store.delete("seed = 7")
    else:
        child.take_steps(second.reopen(old), 7, child.CUT, child.WHOLE)
    second.close()
    with pytest.warns(RuntimeWarning, match=f"The episode '{old}', which the run '{first.run_id}' continues"):
        first.close()
    found = {e.length: e for e in store.refresh().filter("seed = 7")}
    assert found.keys() == ({6} if how == "deleted" else {6, child.WHOLE})
    for length, episode in found.items():
        assert_plain(episode, 7, length)
        assert episode.metadata["continues"] == [old]
    assert_consistent(store)


SPACES = {
    "frames": Dict({"image": Box(0, 255, (7, 5, 3), np.uint8), "bits": MultiBinary(3)}),
    "ragged": Sequence(Text(4, charset="ab")),
}
INFOS: list[dict[Any, Any]] = [
    {"n": 1, "x": np.arange(3, dtype=np.float16)},
    {"n": 0.5, "deep": {"er": (1, "two")}},
    {},
    {"n": "text", 5: b"bytes"},
    {"n": 2**80, "x": np.ones((2, 2), bool)},
    {"n": True},
]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("cut", [1, 3])
def test_every_value_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, cut: int) -> None:
    """Images, ragged spaces, vector rewards, values of mixed types: as in a store without a break."""
    # Several row groups, in old segments and in new ones.
    for module in (steps_file, rows):
        monkeypatch.setattr(module, "GROUP_ROWS", 2)
    space, stores = SPACES[name], []
    for broken in (True, False):
        store = el.create(
            tmp_path / str(broken), observation_space=space, action_space=Discrete(9), reward_shape=(2,)
        )
        space.seed(3)
        writer = store.writer(**child.QUIET)
        episode: Any = writer.begin(space.sample(), INFOS[0], seed=2**70, extra={"own": 1})
        for t in range(5):
            if broken and t == cut:
                late = {"said": "late", "v": -1}
                writer.session.rows.end(episode._live, "cut", late=late)
                writer.close()
                writer = store.writer(**child.QUIET)
                episode = writer.reopen(store.refresh()[-1].id)
                policy = {"v": t}
            else:
                policy = {"v": t, "said": "late" if t == cut else None}
            step = t, [t, 1 / 3], space.sample(), False, t == 4, INFOS[t + 1]
            episode.append(*step, policy=policy, extra={"own": t / 2})
        writer.close()
        stores.append(store.refresh())
    ((found,), (expected,)) = stores
    assert found.length == 5 and found.seed == 2**70
    for part in ("observations", "actions", "rewards", "truncations", "policy", "extra"):
        same(getattr(found, part), getattr(expected, part))
    same(list(found.infos), INFOS)
    assert found.episode_return == expected.episode_return
    assert not stores[0].verify().faults


def same(found: Any, expected: Any) -> None:
    """Both are the same nested values, of the same types."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            same(found[key], value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            same(*pair)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype and np.array_equal(found, expected)
    else:
        assert found == expected


@pytest.fixture
def no_garbage() -> Iterator[None]:
    """Python swallows what is raised while it collects a lock of another test: no interrupt goes there."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage")
def test_an_interrupt_while_a_lock_is_taken_releases_it(tmp_path: Path) -> None:
    """Whoever handles an interrupt at any line, and so keeps its traceback, can take the lock at once."""
    path = tmp_path / "maintenance.lock"
    kept: list[KeyboardInterrupt] = []
    left = 0

    def struck(frame: types.FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != locks.__file__:
            return None
        left -= event == "line"
        if left == 0 and event == "line":
            raise KeyboardInterrupt
        return struck

    for line in range(1, 200):
        left, lock = line, None
        sys.settrace(struck)
        try:
            lock = locks.FileLock.wait_for(path, 0)
            break
        except KeyboardInterrupt as error:
            kept.append(error)
        finally:
            sys.settrace(None)
        lock = locks.FileLock.wait_for(path, 0)
        assert lock is not None, traceback.format_exception(kept[-1])[-1]
        lock.release(remove=line % 2 == 0)
    assert len(kept) > 20 and lock is not None
    lock.release(remove=True)


@pytest.mark.usefixtures("no_garbage")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_while_a_lock_is_dropped_releases_it(tmp_path: Path) -> None:
    """Python swallows the interrupt, and the lock is free all the same."""
    path = tmp_path / "maintenance.lock"
    left = 0

    def struck(frame: types.FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_name in ("release", "is_ours"):
            left -= event == "line"
            if left == 0 and event == "line":
                raise KeyboardInterrupt
            return struck
        return struck if frame.f_code.co_name == "__del__" else None

    for line in range(1, 100):
        lock = locks.FileLock.wait_for(path, 0)
        assert lock is not None
        left = line
        sys.settrace(struck)
        try:
            lock = None
        finally:
            sys.settrace(None)
        assert not locks.holder(path)[0], line
        if left > 0:
            break
    assert 5 < line < 99
