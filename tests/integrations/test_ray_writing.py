"""Writing a store in Ray Data, when tasks and drivers fail too, compared with what was recorded.

`make test-rllib` runs these tests on a small Ray cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from gymnasium import spaces

import episodelake as el
from episodelake.store import staging as staging_module
from episodelake.store import vacuum as vacuum_module
from episodelake.store.delta.table import Table
from episodelake.store.staging import staging
from object_server import BUCKET, FaultyProxy, Rule, new_url, shared_server
from test_ray_reading import LENGTHS, SPACES, recorded
from waiting import PATIENCE

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("cluster")]


def emptied(source: el.EpisodeStore, path: Path) -> Path:
    """An empty store with the spaces of another."""
    spaces = {"observation_space": source.observation_space, "action_space": source.action_space}
    el.create(path, **spaces)
    return path


def check_equal(path: Path, source: el.EpisodeStore, count: int = len(LENGTHS)) -> None:
    """The store has the episodes of the other, each once, and nothing waits in it."""
    check_episodes(el.open(path), source, count)
    assert not waiting(path)


def waiting(path: Path) -> list[str]:
    """What writes have left in a store and beside it."""
    return [*os.listdir(path / ".writing"), *(name for name in os.listdir(path.parent) if name[0] == ".")]


def check_episodes(found: el.EpisodeStore, expected: el.EpisodeStore, count: int = len(LENGTHS)) -> None:
    """A store has the episodes of another, each once."""
    assert len(found) == count
    assert not found.verify().faults
    here, there = (
        [str(rows.drop("episode_id").rows()) for rows in steps.partition_by("episode_id")]
        for steps in (found.steps.collect(), expected.steps.collect())
    )
    assert sorted(here) == sorted(there * (count // len(there)))


@pytest.mark.parametrize("kind", SPACES)
def test_what_was_read_is_written_and_once(tmp_path: Path, kind: str) -> None:
    """Steps with their last observations come back as they were; the same write again adds nothing."""
    from episodelake.integrations.ray import read_steps, write_steps

    source, _ = recorded(tmp_path / "s", *SPACES[kind])
    target = emptied(source, tmp_path / "t")
    read = read_steps(tmp_path / "s", last=True, override_num_blocks=3)
    report = write_steps(read, target, write_id="nightly")
    assert (report.episodes, report.steps, report.present) == (len(LENGTHS), sum(LENGTHS), 0)
    assert not [what for what in report.lost if "action" in what or "reward" in what]
    check_equal(target, source)
    version = el.open(target).version
    again = write_steps(read, target, write_id="nightly")
    assert (again.episodes, again.present) == (0, len(LENGTHS)) and el.open(target).version == version
    assert write_steps(read, target, write_id="nightly 2").episodes == len(LENGTHS)
    assert len(el.open(target)) == 2 * len(LENGTHS)


def test_seeds_and_metadata_of_episodes_come_along(tmp_path: Path) -> None:
    """A copy has the seeds and metadata of its episodes; a chosen column has its value in each row."""
    from episodelake.integrations.ray import read_steps, write_steps

    box = spaces.Box(-9, 9, (2,), np.float32)
    source = el.create(tmp_path / "s", observation_space=box, action_space=spaces.Discrete(3))
    with source.writer() as writer:
        for number in range(4):
            length = number + 1
            writer.write_episode(
                observations=np.zeros((length + 1, 2), np.float32),
                actions=[0] * length,
                rewards=[1.0] * length,
                terminations=True,
                truncations=False,
                seed=100 + number if number else None,
                metadata={"level": number} if number % 2 else {"word": "w"},
            )
    facts = ["seed", "metadata.level", "metadata.word"]
    target = emptied(source.refresh(), tmp_path / "t")
    read = read_steps(tmp_path / "s", last=True)
    assert write_steps(read, target, write_id="a").lost == {}
    copied = el.open(target).episodes.select("length", *facts).collect().sort("length")
    assert copied.equals(source.episodes.select("length", *facts).collect())
    chosen = read_steps(tmp_path / "s", ["metadata.level", "t", "seed"], where="length > 2").to_pandas()
    assert chosen["seed"].tolist() == [102] * 3 + [103] * 4 and chosen["t"].tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert chosen["metadata.level"].tolist()[3:] == [3] * 4 and set(
        read_steps(tmp_path / "s").columns()
    ).isdisjoint(facts)


@pytest.mark.parametrize("kind", ["vectors", "discrete"])
def test_steps_without_last_observations(tmp_path: Path, kind: str) -> None:
    """Where no row of a block is a last observation, tensors stay as they are."""
    from episodelake.integrations.ray import read_steps, write_steps

    source, _ = recorded(tmp_path / "s", *SPACES[kind])
    target = emptied(source, tmp_path / "t")
    read = read_steps(tmp_path / "s", override_num_blocks=3)
    report = write_steps(read, target, write_id="a", last_observation="repeat")
    assert report.steps == sum(LENGTHS)
    rewards = source.transitions.select("reward").collect()
    assert el.open(target).transitions.select("reward").collect().equals(rewards)


def rows_of(source: el.EpisodeStore) -> pa.Table:
    """All rows, as a plain table."""
    return source.steps.collect().to_arrow()


def test_rows_of_an_episode_in_several_blocks_are_refused_or_brought_together(tmp_path: Path) -> None:
    """Torn episodes are named before the commit; after `repartition` by key they are whole, in any order."""
    import ray

    from episodelake.integrations.ray import write_steps

    source, _ = recorded(tmp_path / "s", *SPACES["discrete"])
    target = emptied(source, tmp_path / "t")
    shuffled = rows_of(source).take(np.random.default_rng(0).permutation(source.steps.collect().height))
    torn = ray.data.from_arrow([shuffled.slice(start, 30) for start in range(0, len(shuffled), 30)])
    with pytest.raises(ray.exceptions.RayTaskError, match=r"dataset\.repartition"):
        write_steps(torn, target, write_id="a")
    # Without gaps, only the driver can see it: also the first row of an episode alone.
    rows = rows_of(source)
    for cut in (10, 9):
        halves = ray.data.from_arrow([rows.slice(0, cut), rows.slice(cut)])
        with pytest.raises(el.errors.DatasetError, match=r"Nothing was written: .* several blocks \(1\)"):
            write_steps(halves, target, write_id="a")
    nameless = ray.data.from_arrow(rows.drop_columns(["episode_id", "t"]))
    with pytest.raises(ray.exceptions.RayTaskError, match="episode"):
        names = ("observation", "action", "reward", "terminated", "truncated")
        write_steps(nameless, target, write_id="a", mapping={name: name for name in names})
    assert not len(el.open(target)) and not waiting(target)
    whole = torn.repartition(4, keys=["episode_id"])
    assert write_steps(whole, target, write_id="a").episodes == len(LENGTHS)
    check_equal(target, source)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.filter(pl.col("t") != 2), r"(?s)has a gap: .*write_steps skips no episode"),
        (lambda rows: pl.concat([rows, rows.head(1)]), "has step 0 twice"),
        (lambda rows: rows.with_columns(observation=pl.lit("x")), "column 'observation': expected int64"),
        (lambda rows: rows.drop("action"), "no column for action"),
    ],
)
def test_wrong_rows_leave_nothing(tmp_path: Path, change: Any, message: str) -> None:
    """Gaps, duplicates, values outside the space and missing columns: the error says so, nothing stays."""
    import ray

    from episodelake.integrations.ray import write_steps

    source, _ = recorded(tmp_path / "s", *SPACES["discrete"])
    target = emptied(source, tmp_path / "t")
    rows = change(source.steps.collect()).to_arrow()
    with pytest.raises(ray.exceptions.RayTaskError, match=message):
        write_steps(ray.data.from_arrow(rows), target, write_id="a")
    assert not len(el.open(target)) and not waiting(target)


@pytest.mark.parametrize("kind", ["vectors", "discrete"])
def test_batches_of_numpy_are_refused_and_others_written(tmp_path: Path, kind: str) -> None:
    """NumPy makes NaN of the NULL beside a last observation; batches of pandas and single rows keep it."""
    import ray

    from episodelake.integrations.ray import read_steps, write_steps

    source, _ = recorded(tmp_path / "s", *SPACES[kind])
    target = emptied(source, tmp_path / "t")
    read = read_steps(tmp_path / "s", last=True)
    with pytest.raises(ray.exceptions.RayTaskError, match=r"(?s)'reward' has NaN .*batch_format='pyarrow'"):
        write_steps(read.map_batches(lambda rows: rows, batch_size=None), target, write_id="a")
    assert not len(el.open(target)) and not waiting(target)
    frames = read.map_batches(lambda rows: rows, batch_size=None, batch_format="pandas")
    for write_id, dataset in (("a", frames), ("b", read.map(lambda row: row))):
        assert write_steps(dataset, target, write_id=write_id).episodes == len(LENGTHS)
    check_equal(target, source, 2 * len(LENGTHS))


def test_killed_tasks_are_tried_again(tmp_path: Path) -> None:
    """A worker that dies while its task has staged some episodes leaves nothing twice."""
    from episodelake.integrations.ray import read_steps, writing

    source, _ = recorded(tmp_path / "s", *SPACES["vectors"])
    target, marker = emptied(source, tmp_path / "t"), tmp_path / "died"

    class Dying(writing.StoreDatasink):
        def write(self, blocks: Any, ctx: Any) -> Any:
            staged = super().write(blocks, ctx)
            if ctx.task_idx == 1 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return staged

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "StoreDatasink", Dying)
        read = read_steps(tmp_path / "s", last=True, override_num_blocks=3)
        report = writing.write_steps(read, target, write_id="a")
    assert marker.exists() and report.episodes == len(LENGTHS)
    check_equal(target, source)


@contextlib.contextmanager
def logged_syncs(log: Path) -> Iterator[None]:
    """Append each fsync of this process to a file: path, inode, size, and the names in a folder."""
    fsync = os.fsync

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        state = os.fstat(descriptor)
        names = os.listdir(descriptor) if stat.S_ISDIR(state.st_mode) else []
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        line = json.dumps([path, state.st_ino, state.st_size, names])
        with log.open("a") as file:
            file.write(f"{line}\n")

    os.fsync = synced
    try:
        yield
    finally:
        os.fsync = fsync


def test_a_commit_names_durable_files_and_little_else_is_synced(tmp_path: Path) -> None:
    """The last commit is synced after its files and their names; of a staged store, only steps are synced."""
    from episodelake.integrations.ray import read_steps, writing

    source, _ = recorded(tmp_path / "s", *SPACES["vectors"])
    target, log = emptied(source, tmp_path / "t"), tmp_path / "syncs"

    class Logged(writing.StoreDatasink):
        def write(self, blocks: Any, ctx: Any) -> Any:
            with logged_syncs(log):
                return super().write(blocks, ctx)

    with pytest.MonkeyPatch.context() as patch, logged_syncs(log):
        patch.setattr(writing, "StoreDatasink", Logged)
        read = read_steps(tmp_path / "s", last=True, override_num_blocks=3)
        writing.write_steps(read, target, write_id="a")
    check_equal(target, source)
    syncs = [json.loads(line) for line in log.read_text().splitlines()]
    committed = max(place for place, sync in enumerate(syncs) if "/episodes/_delta_log/." in sync[0])
    sizes = {inode: size for _, inode, size, _ in syncs[:committed]}
    for table in ("steps", "episodes", "runs"):
        synced = set().union(*(names for path, *_, names in syncs[:committed] if path == f"{target}/{table}"))
        files = DeltaTable(target / table).file_uris()
        assert files
        for state in map(os.stat, files):
            assert sizes[state.st_ino] == state.st_size
        assert {Path(file).name for file in files} <= synced
    staged = [path for path, *_ in syncs if f"{target}/.writing/" in path]
    assert len(staged) == 3 and all("/steps/" in path and path.endswith(".parquet") for path in staged)


DRIVER = """
import os, signal, sys
import ray
from episodelake.integrations.ray import read_steps, write_steps, writing

source, target, point, address = sys.argv[1:]
ray.init(address=address, log_to_driver=False)
merge = writing.merge_stores

def dying(*arguments, **options):
    if point == "after":
        merge(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)

writing.merge_stores = dying
write_steps(read_steps(source, last=True, override_num_blocks=3), target, write_id="a")
"""


def kill_driver(source: Path, target: Path, point: str) -> None:
    """Run a driver that is killed before or after its commit."""
    import ray

    address = ray.get_runtime_context().gcs_address
    arguments = [sys.executable, "-c", DRIVER, str(source), str(target), point, address]
    killed = subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_killed_driver(tmp_path: Path, point: str) -> None:
    """Before the commit nothing shows, after it everything; the same write then makes it whole."""
    from episodelake.integrations.ray import read_steps, write_steps

    source, _ = recorded(tmp_path / "s", *SPACES["vectors"])
    target = emptied(source, tmp_path / "t")
    kill_driver(tmp_path / "s", target, point)
    assert len(el.open(target)) == (0 if point == "before" else len(LENGTHS))
    report = write_steps(read_steps(tmp_path / "s", last=True), target, write_id="a")
    added = (report.episodes, report.present)
    assert added == ((len(LENGTHS), 0) if point == "before" else (0, len(LENGTHS)))
    check_equal(target, source)


def test_vacuum_deletes_what_a_killed_driver_left(tmp_path: Path) -> None:
    """Its lock is free; what a live driver has staged stays."""
    source, _ = recorded(tmp_path / "s", *SPACES["vectors"])
    target = emptied(source, tmp_path / "t")
    kill_driver(tmp_path / "s", target, "before")
    store, layout = el.open(target), source.handle.layout
    left = [name for name in waiting(target) if not name.endswith(".lock")]
    assert left and store.vacuum(dry_run=True).files
    with staging(el.open(target).handle.layout, "alive") as place:
        (place / "part").write(b"rows")
        deleted = store.vacuum().files
        assert deleted and all(name.startswith(f".writing/{left[0]}/") for name in deleted)
        assert (place / "part").exists()
    assert not waiting(target) and not store.vacuum().files and layout.root.exists()


def test_the_same_write_twice_at_a_time(tmp_path: Path) -> None:
    """In a folder the second driver is refused at once; whoever gets past that, at the commit."""
    import ray

    from episodelake.integrations.ray import read_steps, write_steps, writing

    source, _ = recorded(tmp_path / "s", *SPACES["vectors"])
    target = emptied(source, tmp_path / "t")
    read = read_steps(tmp_path / "s", last=True)
    merge, messages = writing.merge_stores, []

    def second(*arguments: Any, **options: Any) -> Any:
        with pytest.raises(el.errors.ConcurrentCommitError, match="runs this write") as caught:
            write_steps(read, target, write_id="a")
        messages.append(str(caught.value))
        return merge(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "merge_stores", second)
        assert write_steps(read, target, write_id="a").episodes == len(LENGTHS)
    assert len(messages) == 1
    check_equal(target, source)

    def beaten(*arguments: Any, **options: Any) -> Any:
        # As a driver on an object store, where no lock keeps it away.
        patch.setattr(writing, "merge_stores", merge)
        patch.setattr(writing, "staging", lambda layout, name: staging(layout, "other"))
        write_steps(read, target, write_id="b")
        return merge(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "merge_stores", beaten)
        with pytest.raises(el.errors.ConcurrentCommitError, match="committed the same write"):
            write_steps(read, target, write_id="b")
    check_equal(target, source, 2 * len(LENGTHS))
    assert ray.is_initialized()


def test_rewards_of_several_objectives(tmp_path: Path) -> None:
    """Where rewards are tensors too, the flags tell the row of a last observation."""
    from episodelake.integrations.ray import read_steps, write_steps

    box = spaces.Box(-1, 1, (2,), np.float64)
    source = el.create(tmp_path / "s", observation_space=box, action_space=box, reward_shape=(2,))
    with source.writer() as writer:
        for length in (3, 1, 5):
            episode = writer.begin(box.sample())
            for t in range(length):
                episode.append(box.sample(), [t, 0.0], box.sample(), truncated=t + 1 == length)
    source = source.refresh()
    el.create(tmp_path / "t", observation_space=box, action_space=box, reward_shape=(2,))
    report = write_steps(read_steps(tmp_path / "s", last=True), tmp_path / "t", write_id="a")
    assert (report.episodes, report.steps) == (3, 9)
    check_equal(tmp_path / "t", source, 3)


def test_actions_that_are_lost_are_counted(tmp_path: Path) -> None:
    """An action in the row of a last observation is lost, a tensor of zeros there is none."""
    import ray

    from episodelake.integrations.ray import write_steps

    box = spaces.Box(-1, 1, (2,), np.float32)
    el.create(tmp_path / "t", observation_space=box, action_space=box)
    ones = np.ones((3, 2), np.float32)
    for write_id, last in (("zeros", 0.0), ("ones", 1.0)):
        actions = ones.copy()
        actions[2] = last
        rows = pa.table(
            {
                "episode_id": [write_id] * 3,
                "t": [0, 1, 2],
                "observation": ray.data.extensions.ArrowTensorArray.from_numpy(ones),
                "action": ray.data.extensions.ArrowTensorArray.from_numpy(actions),
                "reward": [1.0, 2.0, None],
                "terminated": [False, True, None],
                "truncated": [False, False, None],
            }
        )
        report = write_steps(ray.data.from_arrow(rows), tmp_path / "t", write_id=write_id)
        assert report.steps == 2 and list(report.lost.values()) == ([1] if last else [])


def test_a_store_on_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks upload what they staged, the object store copies it, and nothing stays; a killed driver's parts
    wait for `vacuum`.
    """
    from episodelake.integrations.ray import read_steps, write_steps, writing

    monkeypatch.setenv("EPISODELAKE_SPOOL", str(tmp_path / "spool"))
    server, url = shared_server(), new_url()
    options = server.storage_options()

    def parts() -> list[str]:
        names = server.keys(url.removeprefix(f"s3://{BUCKET}/"))
        return [name for name in names if name.startswith(".writing")]

    def opened() -> el.EpisodeStore:
        return el.open(url, storage_options=options)

    source, _ = recorded(tmp_path / "s", *SPACES["vectors"])
    made = {"observation_space": source.observation_space, "action_space": source.action_space}
    el.create(url, **made, storage_options=options)
    read = read_steps(tmp_path / "s", last=True, override_num_blocks=3)
    to: Any = {"path": url, "storage_options": options}
    report = write_steps(read, write_id="a", **to)
    assert (report.episodes, report.steps) == (len(LENGTHS), sum(LENGTHS))
    check_episodes(opened(), source)
    assert not parts()
    assert write_steps(read, write_id="a", **to).present == len(LENGTHS)

    with monkeypatch.context() as patch:
        patch.setattr(writing, "merge_stores", lambda *_, **__: 1 / 0)
        patch.setattr(staging_module, "clear", lambda place: None)
        with pytest.raises(ZeroDivisionError):
            write_steps(read, write_id="b", **to)
    left, store = parts(), opened()
    assert left and not store.vacuum().files
    time.sleep(1.1)  # an object store tells times in seconds
    with monkeypatch.context() as patch:
        patch.setattr(vacuum_module, "_GRACE", timedelta(0))
        assert sorted(store.vacuum(timedelta(0)).files) == left
    assert write_steps(read, write_id="b", **to).episodes == len(LENGTHS)
    check_episodes(opened(), source, 2 * len(LENGTHS))


@pytest.mark.parametrize("table", ["steps", "episodes"])
def test_four_jobs_after_a_commit_whose_answer_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, table: str
) -> None:
    """The object store has the commit and then answers nothing; the job runs again, from two machines."""
    from episodelake.integrations.ray import read_steps, write_steps

    url, append, lost = new_url(), Table._append, []
    proxy = FaultyProxy(shared_server())
    request.addfinalizer(proxy.close)
    options = proxy.storage_options(max_retries="1")
    source, _ = recorded(tmp_path / "s", *SPACES["vectors"])
    made = {"observation_space": source.observation_space, "action_space": source.action_space}
    el.create(url, **made, storage_options=options)
    read = read_steps(tmp_path / "s", last=True, override_num_blocks=3)

    def opened() -> el.EpisodeStore:
        return el.open(url, storage_options=options)

    def losing(self: Table, actions: Any, information: Any) -> bool:
        committed = append(self, actions, information)
        if committed and self.path.name == table and any("add" in action for action in actions):
            lost.append(self.version)
            proxy.rules(Rule("answer", times=None))
            raise ConnectionResetError("the answer was lost")
        return committed

    monkeypatch.setenv("EPISODELAKE_SPOOL", str(tmp_path / "spool"))
    with monkeypatch.context() as patch:
        patch.setattr(Table, "_append", losing)
        with pytest.raises(el.errors.StoreAccessError):
            write_steps(read, url, write_id="a", storage_options=options)
    assert len(lost) == 1
    proxy.rules()
    committed = len(LENGTHS) if table == "episodes" else 0
    assert len(opened()) == committed
    for job in range(4):
        monkeypatch.setenv("EPISODELAKE_SPOOL", str(tmp_path / f"spool of another machine {job % 2}"))
        report = write_steps(read, url, write_id="a", storage_options=options)
        there = committed or (len(LENGTHS) if job else 0)
        assert (report.episodes, report.present) == (len(LENGTHS) - there, there)
        check_episodes(opened(), source)


@pytest.mark.parametrize("table", ["steps", "episodes"])
def test_a_foreign_commit_is_named_and_can_be_undone(tmp_path: Path, table: str) -> None:
    """After Ray's `write_delta` onto a table, each use says what happened; without the commit all is as
    before.
    """
    import ray

    source, _ = recorded(tmp_path / "s", *SPACES["discrete"])
    before, path = source.steps.collect(), tmp_path / "s" / table
    ray.data.from_arrow(DeltaTable(path).to_pyarrow_table()).write_delta(str(path))
    with pytest.raises(
        el.errors.CorruptStoreError, match=r"not one of Episodelake: .*'WRITE'.*undo"
    ) as caught:
        el.open(tmp_path / "s")
    commit = re.search(r"The commit (\S+) is", str(caught.value))
    assert commit is not None
    Path(commit[1]).rename(tmp_path / "undone.json")
    store = el.open(tmp_path / "s")
    assert store.steps.collect().equals(before) and not store.verify().faults
    with store.writer() as writer:
        writer.begin(0).append(0, 1.0, 1, terminated=True)
    assert len(store.refresh()) == len(LENGTHS) + 1


def test_bad_arguments(tmp_path: Path) -> None:
    """No store, a store of agents, and an id that is no text are refused before a task runs."""
    from episodelake.integrations.ray import read_steps, write_steps

    recorded(tmp_path / "s", *SPACES["discrete"])
    read = read_steps(tmp_path / "s")
    with pytest.raises(el.errors.StoreNotFoundError):
        write_steps(read, tmp_path / "none", write_id="a")
    rows = pa.table({"episode_id": ["a"]})
    with pytest.raises(el.errors.InvalidArgumentError, match=r"dataset=pyarrow.Table.*from_arrow"):
        write_steps(rows, tmp_path / "s", write_id="a")
    for write_id in ("", chr(0xD800)):
        with pytest.raises(el.errors.InvalidArgumentError, match="write_id"):
            write_steps(read, tmp_path / "s", write_id=write_id)
    box = spaces.Box(-1, 1, (2,))
    el.create(tmp_path / "team", agents={"red": (box, box), "blue": (box, box)})
    with pytest.raises(el.errors.InvalidArgumentError, match="several agents"):
        write_steps(read, tmp_path / "team", write_id="a")
    with pytest.raises(el.errors.InvalidArgumentError, match="in the memory of"):
        el.create("memory://ray-target", observation_space=box, action_space=box)
        write_steps(read, "memory://ray-target", write_id="a")
