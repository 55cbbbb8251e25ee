"""Crashes: what a killed writer leaves behind, what recovery makes of it, and what it must leave alone.

The writers that die are processes of their own; each plays a `SmallEnv`, so that a plain loop over the same
environment says what their episodes truly were.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import episodelake as el
import independent_journal
from episodelake.store.dynamic import values
from episodelake.store.journal import reading as journal_reading
from episodelake.store.spaces import describe
from nasty_environments import SmallEnv, assert_recorded, new_store, play, seeds
from strategies import same
from waiting import PATIENCE, said, steps_told

PUSH = np.zeros(2, np.float32)
LENGTH = 40
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([*map(str, Path(__file__).parents[:2]), os.environ.get("PYTHONPATH", "")]),
}

BEGIN = """
import os, sys, time
from pathlib import Path
import numpy as np
import episodelake as el
from nasty_environments import SmallEnv, play, seeds
from waiting import wait_for_journal

path = Path(sys.argv[1])
store = el.open(path)

def journalled(recorder, steps, ended=0):
    wait_for_journal(path / "journal" / recorder.run_id, steps, ended=ended)
"""

# Two whole episodes and 25 steps of a third; each five of these are waited for until they are in the journal.
IDLE = (
    BEGIN
    + """
settings = {"run": "idle", "metadata": {"who": "idle"}, "flush_seconds": 0.02, "seal_seconds": 1e6}
recorder = store.record(SmallEnv(40), **settings)
play(recorder, seeds(0))
play(recorder, seeds(1))
recorder.reset(seed=2, options={"o": 1})
recorder.action_space.seed(0)
for part in range(5):
    for _ in range(5):
        recorder.log(step=recorder.unwrapped.t)
        recorder.step(recorder.action_space.sample())
    journalled(recorder, 80 + 5 * (part + 1), ended=2)
print("ready", flush=True)
time.sleep(600)
"""
)

# Episodes without end, sealed and flushed as often as it goes.
BUSY = (
    BEGIN
    + """
with store.record(SmallEnv(40), run="busy", flush_seconds=0.01, seal_seconds=0.03) as recorder:
    for seed in range(10**9):
        play(recorder, seeds(seed))
        if seed % 50 == 0:
            recorder.seal()
            print(seed, flush=True)
"""
)


@contextmanager
def process(script: str, path: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a script on a store; kill it in the end if it lives still."""
    command = [sys.executable, "-c", script, str(path), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as child:
        try:
            yield child
        finally:
            child.kill()


def killed(script: str, path: Path, lines: int = 1) -> None:
    """Run a script until it has printed some lines, and kill it."""
    with process(script, path) as child:
        for _ in range(lines):
            said(child)
        child.send_signal(signal.SIGKILL)
        child.wait(PATIENCE)


def run(script: str, path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script on a store to its end."""
    return subprocess.run(
        [sys.executable, "-c", script, str(path), *arguments],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=PATIENCE,
        check=False,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An empty store."""
    new_store(tmp_path, SmallEnv())
    return tmp_path / "store"


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose writer was killed in the middle of its third episode; tests work on copies."""
    folder = tmp_path_factory.mktemp("crashed")
    new_store(folder, SmallEnv())
    killed(IDLE, folder / "store")
    return folder / "store"


@pytest.fixture
def dead(crashed: Path, tmp_path: Path) -> Path:
    """A copy of that store."""
    return Path(shutil.copytree(crashed, tmp_path / "dead"))


def journal_of(path: Path) -> Path:
    """Return the largest file in the journal folder."""
    files = [file for file in (path / "journal").rglob("*") if file.is_file()]
    return max(files, key=lambda file: file.stat().st_size)


def assert_idle_recovered(path: Path, steps: int = 25) -> None:
    """Fail unless the episodes of `IDLE` are there once, the last of them interrupted after `steps`."""
    store = el.open(path)
    env = SmallEnv(LENGTH)
    reasons = ["terminated", "terminated", "interrupted"]
    assert len(store) == 3
    for number, episode in enumerate(store):
        plain = play(env, seeds(number), limit=steps if number == 2 else None)[0]
        assert_recorded(episode, plain, env, reasons[number])
        assert episode.seed == episode.number == number
    assert store.steps.collect().height == 41 + 41 + steps + 1
    assert store.transitions.collect().height == 40 + 40 + steps


def assert_true(episode: el.Episode, length: int = LENGTH) -> None:
    """Fail unless a recovered episode is a beginning of the true one with its seed."""
    plain = play(SmallEnv(length), seeds(episode.seed), limit=len(episode))[0]
    assert same(episode.observations[:, [0, 2]], np.array(plain.observations)[:, [0, 2]])
    assert same(episode.actions, np.array(plain.actions))
    assert same(episode.rewards, np.array(plain.rewards))
    assert episode.infos == plain.infos
    assert episode.terminated is (len(episode) == length)


def test_recovery_finds_all_that_was_journalled(dead: Path) -> None:
    """A killed writer's finished episodes are whole, its unfinished one is interrupted with all its rows."""
    assert len(el.open(dead)) == 0
    calls: list[tuple[int, int]] = []
    recovered = el.recover(dead, progress=lambda done, total: calls.append((done, total)))
    assert [(run.episodes, run.interrupted, run.steps) for run in recovered] == [(3, 1, 105)]
    assert calls == [(1, 1)]
    assert_idle_recovered(dead)
    last = el.open(dead)[2]
    assert list(last.policy["step"]) == list(range(25))
    assert last.options == {"o": 1}
    assert (last.terminated, last.truncated) == (False, False)


def test_recovery_keeps_the_run(dead: Path) -> None:
    """The run of a killed writer is there with its name and metadata, and owns the recovered episodes."""
    recovered = el.recover(dead)
    runs = el.open(dead).runs.collect()
    assert runs.height == 1
    row = runs.row(0, named=True)
    assert (row["name"], row["metadata.who"]) == ("idle", "idle")
    assert row["run_id"] == recovered[0].run_id
    assert {episode.run_id for episode in el.open(dead)} == {row["run_id"]}


def test_recovering_twice_adds_nothing(dead: Path) -> None:
    """A second recovery finds nothing and changes nothing."""
    assert len(el.recover(dead)) == 1
    version = el.open(dead).version
    assert el.recover(dead) == []
    assert el.open(dead).version == version
    assert_idle_recovered(dead)


def test_nothing_ends_before_it_began(dead: Path) -> None:
    """The files of a journal may tell of an earlier time than its events: their clock is coarser."""
    for file in [*dead.glob("journal/*/*"), *dead.glob("journal/*")]:
        os.utime(file, (0, 0))
    el.recover(dead)
    store = el.open(dead)
    assert_idle_recovered(dead)
    moments = store.episodes.collect().select("started_at", "ended_at")
    assert (moments["started_at"] <= moments["ended_at"]).all() and moments["ended_at"].is_sorted()
    assert (store.runs.collect()["ended_at"] >= moments["ended_at"].max()).all()


@pytest.mark.parametrize("how", ["record", "writer"])
def test_the_next_writer_recovers(dead: Path, how: str) -> None:
    """The next recording into the store brings back what the killed one left, beside its own."""
    store = el.open(dead)
    if how == "record":
        with store.record(SmallEnv(3), run="next") as recorder:
            play(recorder, seeds(50))
    else:
        with store.writer(run="next") as writer:
            episode = writer.begin(np.zeros(3, np.float32), seed=50)
            episode.append(PUSH, 1, np.ones(3, np.float32))
            episode.end()
    assert el.recover(dead) == []
    reasons = {episode.seed: episode.end_reason for episode in store.refresh()}
    assert len(store) == 4
    assert (reasons[0], reasons[1], reasons[2]) == ("terminated", "terminated", "interrupted")
    assert_true(store.filter("seed = 2")[0])


def test_a_recovered_journal_put_back_adds_nothing(dead: Path) -> None:
    """If a crash leaves a journal after its commits, recovering it again does not add its episodes twice."""
    kept = shutil.copytree(dead / "journal", dead.parent / "kept")
    el.recover(dead)
    shutil.copytree(kept, dead / "journal", dirs_exist_ok=True)
    el.recover(dead)
    assert_idle_recovered(dead)
    assert el.recover(dead) == []


def test_a_journal_cut_short_loses_the_last_batch_only(dead: Path) -> None:
    """Some bytes missing at the end of a journal cost the steps of its last frame and nothing before them."""
    file = journal_of(dead)
    frames = list(independent_journal.frames(file.read_bytes()))
    os.truncate(file, file.stat().st_size - 7)
    *kept, torn = independent_journal.frames(file.read_bytes())
    assert (kept, torn) == (frames[:-1], None)
    # Each five steps were waited for; the flush thread may have written them in several frames.
    lost = 105 - steps_told(file.parent)
    assert 1 <= lost <= 5
    recovered = el.recover(dead)
    assert recovered[0].torn_bytes > 0
    assert_idle_recovered(dead, steps=25 - lost)


@pytest.mark.further
def test_a_journal_cut_anywhere_gives_what_is_before_the_cut(crashed: Path, tmp_path: Path) -> None:
    """Wherever a journal breaks off, recovery gives true beginnings, never fewer for a longer journal."""
    size = journal_of(crashed).stat().st_size
    counts = []
    for place in np.linspace(0, size, 30).astype(int):
        copy = Path(shutil.copytree(crashed, tmp_path / str(place)))
        os.truncate(journal_of(copy), place)
        el.recover(copy)
        assert el.recover(copy) == []
        for number, episode in enumerate(el.open(copy)):
            assert episode.seed == number
            assert_true(episode)
            assert episode.end_reason == ("terminated" if len(episode) == LENGTH else "interrupted")
        counts.append(el.open(copy).transitions.collect().height)
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 105)


# Recovers copies of a store whose journal is damaged at each of the given places, and says what came of it.
DAMAGE = """
import shutil, sys
import numpy as np
import episodelake as el
from nasty_environments import SmallEnv, play, seeds
from test_crash import Path, assert_true, journal_of

crashed = Path(sys.argv[1])
for place in map(int, sys.argv[2:]):
    print(place, "", end="", flush=True)
    copy = Path(shutil.copytree(crashed, crashed.parent / f"damaged {place}"))
    file = journal_of(copy)
    content = bytearray(file.read_bytes())
    content[place : place + 32] = bytes(byte ^ 0xA5 for byte in content[place : place + 32])
    file.write_bytes(content)
    try:
        try:
            el.recover(copy)
        except el.errors.CorruptStoreError as error:
            assert file.name in str(error), str(error)
        for episode in el.open(copy):
            assert_true(episode)
        with el.open(copy).record(SmallEnv(2)) as recorder:
            play(recorder, seeds(99))
        assert len(el.open(copy).filter("seed = 99")) == 1
    except BaseException as error:
        print(repr(error).replace("\\n", " ")[:100], flush=True)
    else:
        print("right", flush=True)
"""


@pytest.mark.further
def test_a_damaged_journal_never_gives_wrong_steps(dead: Path) -> None:
    """A journal with changed bytes gives true beginnings or an error naming it; others still write."""
    size = journal_of(dead).stat().st_size
    left = [str(place) for place in np.linspace(0, size - 40, 24).astype(int)]
    wrong = []
    while left:
        # A process of its own, for one that dies of the damage; the next goes on behind the deadly place.
        result = run(DAMAGE, dead, *left)
        lines = result.stdout.splitlines()
        assert lines, result.stderr
        wrong += [line for line in lines if not line.endswith("right")]
        left = left[len(lines) :]
    assert wrong == []


READINGS = [
    (describe._Builder, "build"),
    (values, "_from_json"),
    (journal_reading, "expanded"),
    (pa.ipc, "read_schema"),
    (pa.ipc, "read_record_batch"),
    (pq.ParquetFile, "read"),
]


@pytest.mark.parametrize(("owner", "name"), READINGS, ids=[name for _, name in READINGS])
def test_a_shortage_of_memory_is_no_damage(
    dead: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """Whatever recovery cannot read for want of memory, it raises MemoryError and sets no journal aside."""
    # Its episodes are in the store already, so that recovery reads files of each kind.
    shutil.copytree(dead / "journal", tmp_path / "journal")
    el.recover(dead)
    shutil.copytree(tmp_path / "journal", dead / "journal", dirs_exist_ok=True)
    real = getattr(owner, name)
    calls = 0

    def short(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise pa.ArrowMemoryError("malloc of size 64 failed")
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, short)
    failing = 0
    while failing <= calls:
        calls, failing = 0, failing + 1
        try:
            el.recover(dead)
        except MemoryError:
            assert list((dead / "journal").glob("*/*.frames"))
            assert not list((dead / "journal").glob("*.damaged"))
    monkeypatch.undo()
    assert calls == failing - 1 > 0
    assert_idle_recovered(dead)
    assert not list((dead / "journal").iterdir())


def test_strange_files_among_the_journals_do_not_stop_recovery(dead: Path) -> None:
    """Files of no journal are neither recovered nor a hindrance."""
    (dead / "journal" / "notes.txt").write_text("not a journal")
    (dead / "journal" / ".DS_Store").write_bytes(b"\x00\x01")
    (dead / "journal" / "folder").mkdir()
    assert len(el.recover(dead)) == 1
    assert_idle_recovered(dead)
    assert (dead / "journal" / "notes.txt").read_text() == "not a journal"


@pytest.mark.further
def test_several_dead_writers_are_all_recovered(path: Path) -> None:
    """Each killed writer's episodes are brought back under its own run."""
    with process(IDLE, path) as one, process(IDLE, path) as two:
        for child in (one, two):
            assert said(child) == "ready"
        for child in (one, two):
            child.kill()
            child.wait(PATIENCE)
    recovered = el.recover(path)
    assert len({found.run_id for found in recovered}) == 2
    store = el.open(path)
    assert sorted(episode.seed or 0 for episode in store) == [0, 0, 1, 1, 2, 2]
    assert [len(store.filter(f"run_id = '{found.run_id}'")) for found in recovered] == [3, 3]
    for episode in store:
        assert_true(episode)


def test_recovery_leaves_a_live_writer_alone(path: Path) -> None:
    """While a writer lives, recovery by others touches nothing of it; it goes on and seals all."""
    env = SmallEnv(LENGTH)
    recorder = el.open(path).record(env, flush_seconds=0.02)
    plain = play(recorder, seeds(0), limit=10)
    script = "import sys, episodelake as el; print(len(el.recover(sys.argv[1])), len(el.open(sys.argv[1])))"
    # The first recovery is of this process: it must not let go of the lock that the writer holds.
    assert el.recover(path) == []
    assert run(script, path).stdout.split() == ["0", "0"]
    with el.open(path).record(SmallEnv(3)) as other:
        play(other, seeds(9))
    assert run(script, path).stdout.split() == ["0", "1"]
    plain += play(recorder, seeds(1))
    recorder.close()
    mine = [episode for episode in el.open(path) if episode.run_id == recorder.run_id]
    assert len(mine) == 2
    for episode, rollout in zip(mine, plain, strict=True):
        assert_recorded(episode, rollout, env)


@pytest.mark.further
def test_a_writer_that_recorded_nothing_leaves_nothing(path: Path) -> None:
    """A writer that is killed before its first step leaves no episode, and its journal goes away."""
    script = (
        BEGIN
        + "recorder = store.record(SmallEnv())\nrecorder.reset()\nprint('ready', flush=True)\ntime.sleep(600)"
    )
    killed(script, path)
    el.recover(path)
    assert len(el.open(path)) == 0
    assert el.open(path).steps.collect().height == 0
    assert el.recover(path) == []


@pytest.mark.further
def test_rows_reach_the_journal_without_further_steps(path: Path) -> None:
    """Rows are in the journal after `flush_seconds`, even if the environment takes no further step."""
    script = BEGIN + (
        "recorder = store.record(SmallEnv(40), flush_seconds=0.05)\n"
        "play(recorder, seeds(0), limit=7)\njournalled(recorder, 7)\n"
        "print('ready', flush=True)\ntime.sleep(600)"
    )
    killed(script, path)
    el.recover(path)
    assert [(episode.length, episode.end_reason) for episode in el.open(path)] == [(7, "interrupted")]
    assert_true(el.open(path)[0])


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("ending", "code"), [("", 0), ("sys.exit(3)", 3), ("raise ValueError('mine')", 1), ("del recorder", 0)]
)
def test_an_unclosed_recorder_is_sealed_at_exit(path: Path, ending: str, code: int) -> None:
    """When the interpreter ends in an ordinary way, a recorder that nobody closed is sealed, cut included."""
    script = BEGIN + (
        "recorder = store.record(SmallEnv(40))\nfor seed in range(3):\n"
        f"    play(recorder, seeds(seed), limit=25 if seed == 2 else 40)\n{ending}"
    )
    result = run(script, path)
    assert result.returncode == code
    assert [(episode.length, episode.end_reason) for episode in el.open(path)] == [
        (40, "terminated"),
        (40, "terminated"),
        (25, "cut"),
    ]
    for episode in el.open(path):
        assert_true(episode)
    assert el.recover(path) == []
    assert "Exception ignored" not in result.stderr


@pytest.mark.further
def test_an_unclosed_writer_is_sealed_at_exit(path: Path) -> None:
    """The same holds for an episode writer with an open episode."""
    script = BEGIN + (
        "writer = store.writer()\nepisode = writer.begin(np.zeros(3, np.float32))\n"
        "for _ in range(5): episode.append(np.zeros(2, np.float32), 1, np.ones(3, np.float32))"
    )
    assert run(script, path).returncode == 0
    assert [(episode.length, episode.end_reason) for episode in el.open(path)] == [(5, "cut")]


@pytest.mark.further
def test_an_interrupt_at_the_keyboard_seals(path: Path) -> None:
    """Control-C in the middle of a recording in a `with` block leaves nothing to recover."""
    with process(BUSY, path) as child:
        said(child)
        said(child)
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=PATIENCE) != 0
    assert el.recover(path) == []
    episodes = list(el.open(path))
    assert [episode.number for episode in episodes] == list(range(len(episodes)))
    assert {episode.end_reason for episode in episodes[:-1]} == {"terminated"}
    for episode in episodes[-100:]:
        assert_true(episode)


FORK = (
    BEGIN
    + """
recorder = store.record(SmallEnv(40), flush_seconds=0.02)
play(recorder, seeds(0), limit=10)
child = os.fork()
if child == 0:
    HOW
os.waitpid(child, 0)
for _ in range(5):
    recorder.step(np.zeros(2, np.float32))
play(recorder, seeds(1))
recorder.close()
"""
)


@pytest.mark.further
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "how", ["os._exit(0)", "sys.exit(0)", "del recorder; import gc; gc.collect(); os._exit(0)"]
)
def test_a_fork_that_ends_does_not_end_the_recording(path: Path, how: str) -> None:
    """A process forked in the middle of a recording may come and go without a trace in it."""
    result = run(FORK.replace("HOW", how), path)
    assert result.returncode == 0, result.stderr
    store = el.open(path)
    assert [(episode.length, episode.end_reason) for episode in store] == [(15, "cut"), (40, "terminated")]
    assert store.steps.collect().height == 16 + 41
    assert_true(store[1])
    assert same(store[0].observations[:, 0], np.arange(16, dtype=np.float32))


ORPHAN = (
    BEGIN
    + """
recorder = store.record(SmallEnv(40), flush_seconds=0.02)
play(recorder, seeds(0), limit=10)
journalled(recorder, 10)
child = os.fork()
if child == 0:
    time.sleep(600)
    os._exit(0)
print(child, flush=True)
time.sleep(600)
"""
)


@pytest.mark.further
def test_an_orphan_does_not_keep_a_dead_writer_alive(path: Path) -> None:
    """A process that was forked from a writer does not hold its journal when the writer itself is dead."""
    with process(ORPHAN, path) as child:
        orphan = int(said(child))
        child.send_signal(signal.SIGKILL)
        child.wait(PATIENCE)
        try:
            el.recover(path)
            assert [(episode.length, episode.end_reason) for episode in el.open(path)] == [
                (10, "interrupted")
            ]
        finally:
            os.kill(orphan, signal.SIGKILL)


LONG = (
    BEGIN
    + """
import resource

class Endless(SmallEnv):
    \"\"\"Does as little as it can, so that the recorder is what is measured.\"\"\"

    def step(self, action):
        self.t += 1
        self.sight[0] = self.t
        return self.sight, 1.0, self.t == self.length, False, {}

    sight = np.zeros(3, np.float32)

length = int(sys.argv[2])
env = Endless(length)
with store.record(env) as recorder:
    recorder.reset(seed=0)
    action = np.zeros(2, np.float32)
    for t in range(length):
        recorder.step(action)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
)


@pytest.mark.slow
def test_ten_million_steps_are_recorded_in_bounded_memory(tmp_path: Path) -> None:
    """An episode of ten million steps needs hardly more memory than one of a million, and is whole."""
    peaks = {}
    for length in (1_000_000, 10_000_000):
        new_store(tmp_path / str(length), SmallEnv())
        result = run(LONG, tmp_path / str(length) / "store", str(length))
        assert result.returncode == 0, result.stderr
        peaks[length] = int(result.stdout)
    assert peaks[10_000_000] - peaks[1_000_000] < 150, peaks
    store = el.open(tmp_path / "10000000" / "store")
    assert (store[0:1].episodes.collect()["length"][0], store[0].end_reason) == (10_000_000, "terminated")
    found = store.sql(
        "select count(*), min(t), max(t), count(reward), bool_and(observation[1] = t) from steps"
    ).fetchall()
    assert found == [(10_000_001, 0, 10_000_000, 10_000_000, True)]
