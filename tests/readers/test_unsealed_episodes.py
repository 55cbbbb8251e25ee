"""Unsealed episodes in the explorer: read from journals, beside a writer in another process."""

import fcntl
import gc
import json
import operator
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from mpe2 import simple_spread_v3

import episodelake as el
from episodelake.explorer.listing import EpisodeList
from episodelake.explorer.live.growing import ENDED, RECORDING, STOPPED, Recordings, state_of
from episodelake.explorer.live.watch import Watch
from episodelake.readers import unsealed as journals
from episodelake.readers.unsealed import JournalFollower, Unsealed
from episodelake.store.errors import StoreAccessError
from episodelake.store.files.locks import OWNER_BYTES
from episodelake.store.journal.reading import PartReader
from episodelake.store.journal.records import BATCH, encode
from episodelake.store.journal.run_journal import PartWriter, lock_path, part_paths
from live_writer import SPACES, LiveWriter


@pytest.fixture
def store(tmp_path: Path) -> el.EpisodeStore:
    """An empty store with a camera."""
    return el.create(tmp_path / "store", observation_space=SPACES, action_space=Discrete(4))


@pytest.fixture
def writer(store: el.EpisodeStore) -> Iterator[LiveWriter]:
    """A writer on it."""
    writer = LiveWriter(Path(store.path))
    yield writer
    writer.kill()


class Clock:
    """A watch whose every look is due."""

    def __init__(self, store: el.EpisodeStore) -> None:
        self.watch = Watch(store)
        self._now = 0.0

    def recorded(self) -> Unsealed:
        """The unsealed episodes."""
        self._now += 1e6
        return self.watch.recorded(lambda: self._now)

    def look(self) -> EpisodeList:
        """The episodes of the newest version."""
        self._now += 1e6
        return self.watch.look(lambda: self._now).episodes


def test_an_episode_grows_until_it_is_sealed(store: el.EpisodeStore, writer: LiveWriter) -> None:
    """Length and return follow the writer; with its seal the episode becomes a row under the same id."""
    clock = Clock(store)
    assert not clock.recorded().episodes
    writer.ask("step 3")
    (first,) = clock.recorded().episodes
    assert (first.record.length, first.record.episode_return, state_of(first)) == (3, 6.0, RECORDING)
    assert len(clock.recorded().writers) == 1
    writer.ask("step 4")
    (second,) = clock.recorded().episodes
    assert (second.id, second.record.length, second.record.episode_return) == (first.id, 7, 28.0)
    writer.ask("end")
    (ended,) = clock.recorded().episodes
    assert (state_of(ended), ended.record.length, ended.record.end_reason) == (ENDED, 8, "terminated")
    writer.ask("seal")
    assert [each.id for each in clock.recorded().episodes] == [first.id]
    assert clock.look().position_of(first.id) == 0
    assert not clock.recorded().episodes and clock.recorded().writers
    writer.ask("close")
    assert not clock.recorded().writers


def test_its_steps_are_those_that_are_sealed_later(store: el.EpisodeStore, writer: LiveWriter) -> None:
    """A growing episode has the observations, infos and frames that the sealed one has."""
    clock = Clock(store)
    writer.ask("step 2")
    (listed,) = clock.recorded().episodes
    recordings = clock.watch.recordings
    early = recordings.episode(listed.id)
    assert early is not None and early.length == 2
    assert recordings.episode(listed.id) is early
    writer.ask("step 5")
    _forget_the_pause(recordings)
    late = recordings.episode(listed.id)
    assert late is not None and (late.id, late.length, late.seed) == (listed.id, 7, 7)
    writer.ask("end")
    writer.ask("close")
    sealed = store.refresh()[listed.id]
    for name in ("camera", "place"):
        np.testing.assert_array_equal(late.observations[name], sealed.observations[name][:8])
        np.testing.assert_array_equal(early.observations[name], sealed.observations[name][:3])
    np.testing.assert_array_equal(late.rewards, sealed.rewards[:7])
    assert late.infos == sealed.infos[:8] and late.infos[3] == {"t": 3}
    assert late.frames(4)[0, 0, 0, 0] == 4
    recordings.close()


def _forget_the_pause(recordings: Recordings) -> None:
    for copy in recordings._copies.values():
        copy._earliest = 0.0


def test_a_killed_writer(store: el.EpisodeStore, writer: LiveWriter) -> None:
    """Its rows stay listed, waiting for recovery, until they are recovered."""
    clock = Clock(store)
    writer.ask("step 3")
    clock.recorded()
    writer.kill()
    (left,) = clock.recorded().episodes
    assert state_of(left) == STOPPED and not clock.recorded().writers
    assert clock.watch.recordings.episode(left.id) is not None
    el.recover(store.path)
    assert [each.id for each in clock.recorded().episodes] == [left.id]
    assert clock.look().position_of(left.id) == 0
    assert not clock.recorded().episodes


def test_a_journal_that_vanishes(store: el.EpisodeStore, writer: LiveWriter) -> None:
    """Its episodes go with the next look for a version; one that is open stays as it was."""
    clock = Clock(store)
    writer.ask("step 3")
    (listed,) = clock.recorded().episodes
    opened = clock.watch.recordings.episode(listed.id)
    shutil.rmtree(Path(store.path) / "journal")
    clock.recorded()
    clock.look()
    assert not clock.recorded().episodes
    _forget_the_pause(clock.watch.recordings)
    assert clock.watch.recordings.episode(listed.id) is opened


@pytest.mark.parametrize("kept", [1, 40, 200])
def test_a_torn_end_is_read_once_it_is_whole(store: el.EpisodeStore, writer: LiveWriter, kept: int) -> None:
    """Of a record that is still being written nothing is used; it counts when all its bytes are there."""
    clock = Clock(store)
    writer.ask("step 3")
    folder = next((Path(store.path) / "journal").glob("*/"))
    (part,) = part_paths(folder)
    before = part.stat().st_size
    assert clock.recorded().episodes[0].record.length == 3
    writer.ask("step 4")
    writer.kill()
    whole = part.read_bytes()
    part.write_bytes(whole[: before + kept])
    assert clock.recorded().episodes[0].record.length == 3
    part.write_bytes(whole)
    assert clock.recorded().episodes[0].record.length == 7


def test_reading_leaves_the_journal_alone(store: el.EpisodeStore, writer: LiveWriter) -> None:
    """No descriptor or mapping of a journal stays, and its folder has the files that it had."""
    clock = Clock(store)
    writer.ask("step 3")
    files = {path: path.stat().st_mtime_ns for path in (Path(store.path) / "journal").rglob("*")}
    (listed,) = clock.recorded().episodes
    assert clock.watch.recordings.episode(listed.id) is not None
    assert {path: path.stat().st_mtime_ns for path in (Path(store.path) / "journal").rglob("*")} == files
    mine = Path("/proc/self")
    journal = str(Path(store.path) / "journal")
    opened = [os.readlink(path) for path in (mine / "fd").iterdir() if path.exists()]
    assert not [path for path in opened if path.startswith(journal)]
    assert journal not in (mine / "maps").read_text()


def test_damaged_journals_are_left_to_recovery(store: el.EpisodeStore, writer: LiveWriter) -> None:
    """A journal with impossible content is not followed; other runs are."""
    writer.ask("step 3")
    other = LiveWriter(Path(store.path))
    other.ask("step 2")
    folder = next((Path(store.path) / "journal").glob("*/"))
    (part,) = part_paths(folder)
    data = bytearray(part.read_bytes())
    data[70] ^= 255
    part.write_bytes(data)
    clock = Clock(store)
    assert len(clock.recorded().episodes) == 1 and len(clock.recorded().writers) == 2
    other.kill()


def test_several_agents_at_once(tmp_path: Path) -> None:
    """An unsealed episode of several agents has the length and the rewards of each."""
    env = simple_spread_v3.parallel_env(N=2, max_cycles=50)
    store = el.create(tmp_path / "team", env)
    with store.record(env) as recorded:
        recorded.reset(seed=3)
        total = 0.0
        for _ in range(5):
            actions = {agent: 1 for agent in recorded.agents}
            _, rewards, *_ = recorded.step(actions)
            total += sum(rewards.values())
        recorded.flush()
        clock = Clock(store)
        (listed,) = clock.recorded().episodes
        assert listed.record.length == 5 and listed.record.episode_return == pytest.approx(total)
        episode = clock.watch.recordings.episode(listed.id)
        assert episode is not None and len(episode.agents) == 2
        assert {episode.agent(agent).length for agent in episode.agents} == {5}


def test_only_the_newest_are_listed(store: el.EpisodeStore) -> None:
    """Of many unsealed episodes all are counted, and those that began last are listed."""
    seen = {"camera": np.zeros((16, 12, 3), np.uint8), "place": np.zeros(2, np.float32)}
    with store.writer(seal_seconds=3600) as writer:
        for number in range(12):
            episode = writer.begin(seen)
            episode.append(0, float(number), seen, terminated=True)
            episode.end()
        writer.flush()
        follower = JournalFollower(store.handle)
        unsealed = follower.poll(lambda run_id: np.arange(4), most=5)
        assert unsealed.count == 8
        assert [each.record.number for each in unsealed.episodes] == [11, 10, 9, 8, 7]
        assert json.loads(unsealed.episodes[0].header.metadata) == {}


def _two_parts(writer: LiveWriter) -> Path:
    """Let an episode reach over two parts of a journal, and return its folder."""
    for line in ("step 2", "end", "step 3", "step 3", "seal", "step 4"):
        writer.ask(line)
    folder = next((writer.store / "journal").glob("*/"))
    assert len(part_paths(folder)) == 2
    return folder


def test_an_episode_ends_where_its_journal_is_damaged(store: el.EpisodeStore, writer: LiveWriter) -> None:
    """Rows behind a gap between two parts are left out, as recovery leaves them out."""
    folder = _two_parts(writer)
    writer.kill()
    first = part_paths(folder)[0]
    data = bytearray(first.read_bytes())
    # In the last batch, before the end mark.
    data[-200] ^= 255
    first.write_bytes(data)
    clock = Clock(store)
    clock.look()
    (listed,) = clock.recorded().episodes
    growing = clock.watch.recordings.episode(listed.id)
    assert growing is not None
    rewards = growing.rewards
    el.recover(store.path)
    recovered = store.refresh()[listed.id]
    assert (listed.record.length, growing.length, recovered.length) == (3, 3, 3)
    np.testing.assert_array_equal(rewards, recovered.rewards)
    assert listed.record.episode_return == recovered.episode_return


def test_an_episode_reaches_over_two_parts(store: el.EpisodeStore, writer: LiveWriter) -> None:
    """Without damage the rows of both parts follow on, however the polls fall between them."""
    clock = Clock(store)
    for line in ("step 2", "end", "step 3"):
        writer.ask(line)
    clock.recorded()
    for line in ("step 3", "seal", "step 4"):
        writer.ask(line)
    clock.look()
    (listed,) = clock.recorded().episodes
    writer.ask("step 1")
    (longer,) = clock.recorded().episodes
    growing = clock.watch.recordings.episode(listed.id)
    assert growing is not None
    assert (listed.record.length, longer.record.length, growing.length) == (10, 11, 11)


def test_an_episode_that_was_sealed_and_deleted_is_not_listed(
    store: el.EpisodeStore, writer: LiveWriter
) -> None:
    """Its part stays for the episode beside it, and a page that is opened now lists that one only."""
    _two_parts(writer)
    first = store.refresh()[0]
    store.delete(f"episode_id = '{first.id}'")
    clock = Clock(el.open(store.path))
    (listed,) = clock.recorded().episodes
    assert listed.id != first.id and listed.record.length == 10


def test_a_discarded_episode_goes_with_its_part(store: el.EpisodeStore) -> None:
    """It is listed no longer although no poll has read that it was discarded."""
    seen = {"camera": np.zeros((16, 12, 3), np.uint8), "place": np.zeros(2, np.float32)}
    with store.writer(seal_seconds=3600) as writer:
        whole = writer.begin(seen)
        whole.append(0, 1.0, seen, terminated=True)
        whole.end()
        discarded = writer.begin(seen)
        discarded.append(0, 1.0, seen)
        writer.flush()
        clock = Clock(store)
        assert clock.recorded().count == 2
        discarded.discard()
        writer.seal()
        # The seal has removed the part with the record of it.
        assert not part_paths(next((Path(store.path) / "journal").glob("*/")))
        clock.recorded()
        assert len(clock.look()) == 1
        assert not clock.recorded().episodes


def test_a_batch_that_was_cut_off_again(store: el.EpisodeStore, writer: LiveWriter) -> None:
    """A part that goes on otherwise, after a batch that was read could not be synced, is read anew."""
    clock = Clock(store)
    writer.ask("step 3")
    (part,) = part_paths(next((Path(store.path) / "journal").glob("*/")))
    before = part.stat().st_size
    writer.ask("step 5")
    assert clock.recorded().episodes[0].record.length == 8
    writer.kill()
    rows = next(iter(PartReader(part).batches())).rows.slice(0, 0)
    events = json.dumps([{"event": "discard", "number": 0}]).encode()
    discard = b"".join(encode(BATCH, 8, 1, events, memoryview(rows.serialize())))
    part.write_bytes(part.read_bytes()[:before] + discard)
    assert not clock.recorded().episodes


def test_a_run_that_cannot_be_read_hides_no_other(
    store: el.EpisodeStore, writer: LiveWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are listed, the problem is shown, and polls rest as ever."""
    writer.ask("step 3")
    other = LiveWriter(Path(store.path))
    other.ask("step 2")
    folder = next((Path(store.path) / "journal").glob("*/"))
    polls = []

    def listed(directory: Path) -> list[Path]:
        polls.append(directory)
        if directory == folder:
            raise StoreAccessError("Stale file handle")
        return part_paths(directory)

    monkeypatch.setattr(journals, "part_paths", listed)
    recordings = Watch(store).recordings
    episodes = EpisodeList(store)
    unsealed = recordings.look(episodes, lambda: 1e6)
    assert len(unsealed.episodes) == 1 and unsealed.problems == ("Stale file handle",)
    recordings.look(episodes, lambda: 1e6)
    assert len(polls) == 2
    other.kill()


def test_journals_of_other_hosts_are_left_alone(store: el.EpisodeStore, writer: LiveWriter) -> None:
    """Neither its episodes nor its writer are listed: this host cannot see whether the writer lives."""
    writer.ask("step 3")
    writer.kill()
    folder = next((Path(store.path) / "journal").glob("*/"))
    owner = json.loads(lock_path(folder).read_bytes())
    elsewhere = {**owner, "host": "elsewhere", "machine": "other", "boot": "other", "shared": False}
    lock_path(folder).write_bytes(json.dumps(elsewhere).encode().ljust(OWNER_BYTES))
    unsealed = Clock(store).recorded()
    assert not unsealed.episodes and not unsealed.writers


def test_recovery_waits_for_one_who_looks(store: el.EpisodeStore, writer: LiveWriter) -> None:
    """A journal whose lock another process shares for a moment is recovered all the same."""
    writer.ask("step 3")
    writer.kill()
    folder = next((Path(store.path) / "journal").glob("*/"))
    with open(lock_path(folder), "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        timer = threading.Timer(0.2, fcntl.flock, (file, fcntl.LOCK_UN))
        timer.start()
        assert [run.episodes for run in el.recover(store.path)] == [1]
        timer.join()


def test_copies_are_kept_while_pages_show_them(store: el.EpisodeStore, writer: LiveWriter) -> None:
    """Each open episode is copied once; unused copies are deleted, shown episodes stay readable."""
    clock = Clock(store)
    for _ in range(6):
        writer.ask("step 2")
        writer.ask("end")
    ids = [each.id for each in clock.recorded().episodes]
    recordings = clock.watch.recordings
    shown = [recordings.episode(each) for each in ids]
    assert len(shown) == 6 and all(map(operator.is_, map(recordings.episode, ids), shown))
    folders = [each._rows.snapshot.layout.journals.parent for each in shown if each is not None]
    recordings.drop_unused(3600)
    assert len(recordings._copies) == 6
    recordings.drop_unused(0)
    assert not recordings._copies and all(each is not None and each.length == 3 for each in shown)
    assert all(each is not None and len(each.rewards) == 3 for each in shown)
    assert all(folder.exists() for folder in folders)
    shown.clear()
    gc.collect()
    assert not any(folder.exists() for folder in folders)


def test_a_copy_that_failed_is_made_anew(
    store: el.EpisodeStore, writer: LiveWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a batch that could not be copied the episode has no hole."""
    clock = Clock(store)
    writer.ask("step 3")
    (listed,) = clock.recorded().episodes
    recordings = clock.watch.recordings
    assert recordings.episode(listed.id) is not None
    writer.ask("step 4")
    _forget_the_pause(recordings)
    with monkeypatch.context() as patch:
        patch.setattr(PartWriter, "append", _full)
        with pytest.raises(StoreAccessError):
            recordings.episode(listed.id)
    writer.ask("step 1")
    _forget_the_pause(recordings)
    episode = recordings.episode(listed.id)
    assert episode is not None
    np.testing.assert_array_equal(episode.rewards, np.arange(1, 9))
    recordings.close()


def _full(*_: object) -> None:
    raise StoreAccessError("No space left on device")
