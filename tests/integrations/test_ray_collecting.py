"""Collecting and recording with actors of Ray, when actors and drivers die too.

`make test-rllib` runs these tests on a small Ray cluster.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import episodelake as el
from collecting_parts import Doomed, VaryingEnv, counting, make_varying, plain_steps, slowly, tilt, tilting
from nasty_environments import new_store
from waiting import PATIENCE, journals, steps_told, wait_until

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("cluster")]
QUICK: dict[str, Any] = {"flush_seconds": 0.05, "seal_seconds": 1e6}


def contents(store: el.EpisodeStore) -> list[str]:
    """All episodes but for their ids, run by run and in the order of each run."""
    columns = ["number", "seed", "length", "end_reason", "name"]
    names = store.runs.collect().select("run_id", "name", "metadata.worker")
    episodes = store.refresh().episodes.collect().join(names, on="run_id").select("episode_id", *columns)
    rows = store.steps.collect().join(episodes, on="episode_id").sort("name", "number", "t")
    return [str(row) for row in rows.drop("episode_id", "run_id", strict=False).rows()]


@pytest.mark.parametrize("goal", [{"episodes": 25}, {"steps": 101}])
def test_actors_record_what_local_workers_record(tmp_path: Path, goal: dict[str, int]) -> None:
    """Episodes, seeds, states, statistics: all as with worker processes of the same number."""
    from episodelake.integrations.ray import collect

    here, there = (new_store(tmp_path / name, VaryingEnv()) for name in ("local", "ray"))
    options: dict[str, Any] = {**goal, "seed": 7, "run": "pair", "metadata": {"lot": 3}}
    local = el.collect(make_varying, counting, here, workers=2, **options)
    told: list[el.types.CollectProgress] = []
    remote = collect(
        make_varying, counting, tmp_path / "ray" / "store", actors=2, progress=told.append, **options
    )
    assert contents(there.refresh()) == contents(here.refresh()) != []
    assert remote.ended.equals(local.ended) and remote.unfinished == local.unfinished
    assert [(w.index, w.steps, w.episodes, w.failure) for w in remote.workers] == [
        (w.index, w.steps, w.episodes, None) for w in local.workers
    ]
    assert set(remote.run_ids) == set(there.refresh().runs.collect()["run_id"])
    assert remote.return_mean == local.return_mean == np.mean(remote.returns)
    assert told[-1].done == told[-1].total == next(iter(goal.values()))
    assert (told[-1].steps, told[-1].episodes) == (remote.steps, remote.episodes)
    assert there.refresh().verify().faults == ()


def test_actors_record_what_a_plain_loop_sees(tmp_path: Path) -> None:
    """Statistics are the sum of two plain loops; functions of a script need not be importable."""
    from episodelake.integrations.ray import collect

    def make() -> VaryingEnv:
        return VaryingEnv()

    def seed(number: int) -> int:
        return 900 + number

    new_store(tmp_path, VaryingEnv())
    stats = collect(make, lambda *asked: tilting(*asked), tmp_path / "store", episodes=7, actors=3, seed=seed)
    rollouts = []
    for worker in range(3):
        for episode in range(worker, 7, 3):
            rollouts += plain_steps(VaryingEnv(), tilt, 10, seed=900 + episode)[:1]
    assert stats.returns.tolist() == [float(sum(rollout.rewards)) for rollout in rollouts]
    assert stats.lengths.tolist() == [len(rollout.rewards) for rollout in rollouts]
    assert stats.terminated == sum(rollout.terminations[-1] for rollout in rollouts)
    assert (stats.episodes, stats.unfinished, stats.interrupted) == (7, 0, False)


def test_dead_actors_are_named_and_their_journals_recovered(tmp_path: Path) -> None:
    """SIGKILL, an exception and os._exit each end one of four actors; the others go on, nothing is lost."""
    from episodelake.integrations.ray import collect

    store = new_store(tmp_path, VaryingEnv())
    (tmp_path / "claims").mkdir()
    policy = Doomed(tmp_path / "claims", tmp_path / "store", ("kill", "raise", "exit"), after=40)
    with pytest.warns(RuntimeWarning, match="^Worker") as warned:
        stats = collect(make_varying, policy, tmp_path / "store", steps=400, actors=4, seed=1, **QUICK)
    places = {each.filename for each in warned if str(each.message).startswith("Worker")}
    assert places == {__file__}
    raised = [report for report in stats.failures if "lost its way" in str(report.failure)]
    killed = [report for report in stats.failures if report not in raised]
    assert len(raised) == 1 and "Traceback" in str(raised[0].failure) and not raised[0].recovered
    assert len(killed) == 2 and all(report.recovered for report in killed)
    assert all("died unexpectedly" in str(report.failure) for report in killed)
    texts = " ".join(str(warning.message) for warning in warned)
    assert texts.count("Its journal was recovered.") == 2 and "39 steps of it are in the store" in texts
    assert sorted(report.steps for report in stats.workers) == [39, 39, 39, 100]
    assert recorded(store) == {w.run_id: w.steps for w in stats.workers}
    assert stats.steps == 217 and journals(tmp_path / "store") == []
    assert store.refresh().verify().faults == ()


def test_an_actor_that_ray_kills_for_memory(tmp_path: Path) -> None:
    """The warning says so in one line, with what helps; the others go on, and its journal is recovered."""
    import ray

    from episodelake.integrations.ray import collect, collecting

    store = new_store(tmp_path, VaryingEnv())
    (tmp_path / "claims").mkdir()
    policy = Doomed(tmp_path / "claims", tmp_path / "store", ("kill",), after=40)
    get = ray.get

    def starved(heard: Any) -> Any:
        try:
            return get(heard)
        except ray.exceptions.RayActorError as error:
            # As the memory monitor of a node reports the actors that it kills.
            text = "1 worker(s) were killed due to the node running low on memory.\nTop 10 memory users: ..."
            raise ray.exceptions.OutOfMemoryError(text) from error

    with pytest.MonkeyPatch.context() as patch, pytest.warns(RuntimeWarning, match="^Worker") as warned:
        patch.setattr(collecting.ray, "get", starved)
        stats = collect(make_varying, policy, tmp_path / "store", steps=200, actors=2, seed=1, **QUICK)
    (message,) = (str(each.message) for each in warned if str(each.message).startswith("Worker"))
    assert "Its journal was recovered. 39 steps of it are in the store." in message
    assert message.endswith("memory for each, such as actor_options={'memory': 4 << 30}.")
    assert "running low on memory. Use fewer actors" in message and "Top 10" not in message
    assert sorted(report.steps for report in stats.workers) == [39, 100]
    assert recorded(store) == {w.run_id: w.steps for w in stats.workers} and stats.steps == 139
    assert journals(tmp_path / "store") == [] and store.refresh().verify().faults == ()


def test_an_actor_that_the_driver_kills_while_others_wait(tmp_path: Path) -> None:
    """`ray.kill` ends one actor; more actors than the cluster has room for take their turns."""
    import ray

    from episodelake.integrations.ray import collect, collecting

    store = new_store(tmp_path, VaryingEnv())
    pools = []

    class Watched(collecting._ActorPool):
        def start(self, config: bytes, shares: Any) -> None:
            super().start(config, shares)
            pools.append(self)

        def poll(self) -> None:
            super().poll()
            first = self.workers[0]
            waiting = [path for path in journals(tmp_path / "store") if path.name == first.run_id]
            if first.running and waiting and steps_told(waiting[0]) >= 20:
                ray.kill(first.actor)

    with pytest.MonkeyPatch.context() as patch, pytest.warns(RuntimeWarning, match="Worker 0 of 3"):
        patch.setattr(collecting, "_ActorPool", Watched)
        options: dict[str, Any] = {**QUICK, "actor_options": {"num_cpus": 2}}
        stats = collect(make_varying, slowly, tmp_path / "store", steps=300, actors=3, seed=1, **options)
    first, *others = stats.workers
    assert first.recovered and 20 <= first.steps < 100 and "ray.kill" in str(first.failure)
    assert [(w.steps, w.failure) for w in others] == [(100, None)] * 2
    assert store.refresh().episodes.collect()["length"].sum() == stats.steps


DRIVER = """
import sys
import ray
from collecting_parts import make_varying, slowly
from episodelake.integrations.ray import collect

ray.init(address=sys.argv[2], log_to_driver=False)
options = {"flush_seconds": 0.05, "seal_seconds": 1e6}
try:
    collect(make_varying, slowly, sys.argv[1], steps=10**9, actors=2, seed=1, **options)
except KeyboardInterrupt as interrupt:
    print("stats", interrupt.stats.steps, interrupt.stats.interrupted, len(interrupt.stats.failures))
    raise
"""


def driver_of(folder: Path) -> tuple[subprocess.Popen[str], dict[str, int]]:
    """A driver whose two actors play, and what their journals have by now: steps by run."""
    import ray

    arguments = [str(folder / "store"), ray.get_runtime_context().gcs_address]
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, *arguments], stdout=subprocess.PIPE, text=True)

    def told() -> dict[str, int]:
        assert driver.poll() is None, "the driver ended before it was to"
        return {path.name: steps_told(path) for path in journals(folder / "store")}

    try:
        wait_until(lambda: len(told()) == 2 and min(told().values()) >= 20, "20 steps of two actors")
        return driver, told()
    except BaseException:
        driver.kill()
        raise


def recorded(store: el.EpisodeStore) -> dict[str, int]:
    """The transitions of each run."""
    return dict(store.refresh().episodes.collect().group_by("run_id").agg(pl.col("length").sum()).iter_rows())


def test_a_killed_driver_leaves_journals_to_recover(tmp_path: Path) -> None:
    """Ray ends the actors of a dead driver; `recover` brings back what they had in their journals."""
    store = new_store(tmp_path, VaryingEnv())
    driver, least = driver_of(tmp_path)
    driver.kill()
    driver.communicate(timeout=PATIENCE)

    def all_dead() -> bool:
        el.recover(tmp_path / "store")
        return not journals(tmp_path / "store")

    wait_until(all_dead, "the end of the actors")
    there = recorded(store)
    assert there.keys() == least.keys() and all(there[run] >= least[run] for run in least)
    assert store.refresh().verify().faults == ()


def test_an_interrupt_stops_all_actors(tmp_path: Path) -> None:
    """After Ctrl-C in the driver, actors seal what they have, and the statistics count it."""
    store = new_store(tmp_path, VaryingEnv())
    driver, least = driver_of(tmp_path)
    driver.send_signal(signal.SIGINT)
    output, _ = driver.communicate(timeout=PATIENCE)
    there = recorded(store)
    assert f"stats {sum(there.values())} True 0" in output
    assert all(there[run] >= least[run] for run in least) and journals(tmp_path / "store") == []


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("No-Such-Env-v0", None), {}, r"(?s)None of 2 workers.*NameNotFound"),
        ((VaryingEnv(), None), {}, "each makes an environment of its own"),
        (
            (make_varying, partial(tilting, threading.Lock())),
            {},
            "policy cannot be sent.*Actors get",
        ),
        ((make_varying, None), {"actors": 0}, "actors=0"),
        ((make_varying, None), {"workers": 2}, r"workers=2: here actors="),
        ((make_varying, None), {"steps": 3, "episodes": 3}, "exactly one of steps"),
        ((make_varying, None), {"colour": 3}, "'colour'"),
    ],
)
def test_bad_arguments(tmp_path: Path, arguments: Any, options: Any, message: str) -> None:
    """A failed environment comes with its traceback; arguments are refused before an actor starts."""
    from episodelake.integrations.ray import collect

    store = new_store(tmp_path, VaryingEnv())
    with pytest.raises(el.errors.InvalidArgumentError, match=message):
        collect(*arguments, tmp_path / "store", **{"episodes": 5, "actors": 2, **options})
    assert store.refresh().runs.collect().is_empty()


def test_a_store_that_is_missing_or_in_memory(tmp_path: Path) -> None:
    """The driver says so; no actor starts."""
    from episodelake.integrations.ray import collect, recorder_actor

    for call in (recorder_actor, lambda path: collect(make_varying, None, path, episodes=1, actors=1)):
        with pytest.raises(el.errors.StoreNotFoundError):
            call(tmp_path / "none")
        with pytest.raises(el.errors.InvalidArgumentError, match="in the memory of"):
            call("memory://ray-collect")
    new_store(tmp_path, VaryingEnv())
    with pytest.raises(el.errors.InvalidArgumentError, match="There is no option 'durabilty'"):
        recorder_actor(tmp_path / "store", durabilty="none")


def whole(length: int) -> dict[str, Any]:
    """An episode of a `VaryingEnv`, as arrays."""
    return {
        "observations": np.full((length + 1, 3), length, np.float32),
        "actions": np.zeros((length, 2), np.float32),
        "rewards": np.arange(length, dtype=np.float64),
        "terminations": True,
        "truncations": False,
    }


def step(value: float) -> dict[str, Any]:
    """A transition of a `VaryingEnv`."""
    return {
        "action": np.zeros(2, np.float32),
        "reward": value,
        "observation": np.full(3, value, np.float32),
        "policy": {"value": value},
    }


def test_all_that_a_recorder_acknowledged_survives_its_death(tmp_path: Path) -> None:
    """Killed between calls, whole episodes, tables and half episodes are there after `recover`."""
    import ray

    from episodelake.integrations.ray import recorder_actor

    store = new_store(tmp_path, VaryingEnv())
    recorder = recorder_actor(tmp_path / "store", run="shared", **QUICK)

    @ray.remote(num_cpus=0)
    def send(recorder: Any, length: int) -> str:
        return ray.get(recorder.write_episode.remote(**whole(length)))

    ids = ray.get([send.remote(recorder, length) for length in (2, 3, 4)])
    other = new_store(tmp_path / "other", VaryingEnv())
    with other.writer() as writer:
        writer.write_episode(**whole(5))
    assert ray.get(recorder.write_episodes.remote(other.refresh().steps.collect().to_arrow())) == 1
    half = ray.get(recorder.begin.remote(np.zeros(3, np.float32), seed=5))
    assert ray.get(recorder.append.remote(half, [step(1.0), step(2.0)])) == 2
    assert ray.get(recorder.append.remote(half, [step(3.0)])) == 3
    ended = ray.get(recorder.begin.remote(np.zeros(3, np.float32)))
    ray.get(recorder.append.remote(ended, [{**step(1.0), "terminated": True}]))
    ray.get(recorder.end.remote(ended, {"grade": "A"}))
    assert len(store.refresh()) == 0
    pid = ray.get(recorder.__ray_call__.remote(lambda self: os.getpid()))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(recorder.append.remote(half, [step(4.0)]))
    el.recover(tmp_path / "store")
    store = store.refresh()
    assert {episode.length for episode in store} == {1, 2, 3, 4, 5} and len(store) == 6
    assert [store[each].length for each in ids] == [2, 3, 4]
    assert store[half].rewards.tolist() == [1.0, 2.0, 3.0] and store[half].end_reason == "interrupted"
    assert store[half].policy["value"][:3].tolist() == [1.0, 2.0, 3.0]
    assert (store[ended].end_reason, store[ended].metadata["grade"]) == ("terminated", "A")
    assert store.verify().faults == ()


def test_a_recorder_refuses_and_goes_on(tmp_path: Path) -> None:
    """A step that does not fit keeps those before it; unknown episodes are named; duplicates are skipped."""
    import ray

    from episodelake.integrations.ray import recorder_actor

    store = new_store(tmp_path, VaryingEnv())
    recorder = recorder_actor(tmp_path / "store", on_duplicate="skip")
    episode = ray.get(recorder.begin.remote(np.zeros(3, np.float32)))
    wrong = {**step(2.0), "observation": "left"}
    with pytest.raises(el.errors.SpaceMismatchError, match="observation") as caught:
        ray.get(recorder.append.remote(episode, [step(1.0), wrong, step(3.0)]))
    assert "Step 1 of 3 failed" in str(caught.value)
    assert ray.get(recorder.append.remote(episode, [step(4.0)])) == 2
    with pytest.raises(el.errors.InvalidArgumentError, match=r"steps={.*expected a list .* \[step\]"):
        ray.get(recorder.append.remote(episode, step(5.0)))
    with pytest.raises(el.errors.InvalidArgumentError, match="No episode 'x' is open"):
        ray.get(recorder.end.remote("x"))
    assert ray.get(recorder.write_episode.remote(**whole(2), source_key="a")) is not None
    assert ray.get(recorder.write_episode.remote(**whole(2), source_key="a")) is None
    ray.get(recorder.seal.remote())
    assert [each.length for each in store.refresh()] == [2]
    run = ray.get(recorder.run_id.remote())
    ray.get(recorder.close.remote())
    assert store.refresh()[episode].rewards.tolist() == [1.0, 4.0]
    assert store.runs.collect()["run_id"].to_list() == [run]
    with pytest.raises(el.errors.RecorderStateError):
        ray.get(recorder.write_episode.remote(**whole(2)))


def descendants(parent: int) -> list[int]:
    """The processes below a process, whoever leads their groups."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                status = (entry / "stat").read_text().rpartition(")")[2].split()
                below.setdefault(int(status[1]), []).append(int(entry.name))
    found = [parent]
    for pid in found:
        found += below.get(pid, [])
    return found


# As `ray start` does, which also makes the cluster the default for all other programs of the machine.
NODE = """
import signal, sys
from ray._private import node, parameter, services

address = sys.argv[1]
options = {"num_cpus": 1, "resources": {"far": 1}, "object_store_memory": 100 << 20}
ip = services.get_node_ip_address(address)
given = parameter.RayParams(gcs_address=address, node_ip_address=ip, include_log_monitor=False, **options)
node.Node(given, head=False, shutdown_at_exit=True, spawn_reaper=False)
signal.pause()
"""


def test_a_node_that_dies(tmp_path: Path) -> None:
    """All processes of a second node are killed: what its actor had in the journal is recovered."""
    import ray

    from episodelake.integrations.ray import collect

    store = new_store(tmp_path, VaryingEnv())
    address = ray.get_runtime_context().gcs_address
    node = subprocess.Popen([sys.executable, "-c", NODE, address])

    def kill(state: el.types.CollectProgress) -> None:
        begun = any(steps_told(journal) >= 20 for journal in journals(tmp_path / "store"))
        if node.poll() is None and begun:
            for pid in descendants(node.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            node.wait(PATIENCE)

    try:
        wait_until(lambda: "far" in ray.cluster_resources(), "the second node")
        options: dict[str, Any] = {**QUICK, "actor_options": {"resources": {"far": 1}}, "progress": kill}
        with pytest.warns(RuntimeWarning, match="Its journal was recovered"):
            stats = collect(make_varying, slowly, tmp_path / "store", steps=10**6, actors=1, **options)
    finally:
        node.terminate()
        node.wait(PATIENCE)
    assert stats.workers[0].recovered and 20 <= stats.steps < 10**6
    assert store.refresh().episodes.collect()["length"].sum() == stats.steps
    assert store.refresh().verify().faults == ()


def test_the_actor_learner_example_learns(tmp_path: Path) -> None:
    """Actors record, a following loader trains, and new weights make the returns rise."""
    from ray import cloudpickle

    import ray_actor_learner

    # Its folder is not on the path of the cluster's processes.
    cloudpickle.register_pickle_by_value(ray_actor_learner)
    returns = ray_actor_learner.learn(tmp_path / "store", actors=2, rounds=24)
    first, last = np.mean(returns[:6]), np.mean(returns[-6:])
    assert first < 60 and last > 100 and last > 3 * first
    store = el.open(tmp_path / "store")
    assert len(store) >= 24 * ray_actor_learner.EPISODES and len(store.runs.collect()) == 2
