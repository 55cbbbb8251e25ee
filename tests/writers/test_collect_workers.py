"""Collection in worker processes: shares, seeds, deaths of several kinds, and Ctrl-C."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import gymnasium as gym
import numpy as np
import pytest

import episodelake as el
from collecting_parts import Doomed, VaryingEnv, counting, make_varying
from episodelake.testing.adapters import case
from nasty_environments import new_store
from waiting import PATIENCE, journals, steps_told, wait_until

TESTS = Path(__file__).parents[1]


def rows(folder: Path, query: str) -> list[Any]:
    """What DuckDB finds in the episodes files."""
    return duckdb.sql(query.replace("EPISODES", f"'{folder}/store/episodes/*.parquet'")).fetchall()


@pytest.mark.further
def test_shares_seeds_and_state(tmp_path: Path) -> None:
    """Workers share the steps evenly, each plays a seed of its own, and the same call gives the same."""
    contents = []
    for name in ("one", "two"):
        store = new_store(tmp_path / name, VaryingEnv())
        stats = el.collect(
            make_varying, counting, store, steps=31, workers=2, seed=7, run="pair", metadata={"lot": 3}
        )
        assert [(w.index, w.steps, w.exit_code, w.failure) for w in stats.workers] == [
            (0, 16, None, None),
            (1, 15, None, None),
        ]
        assert (stats.steps, stats.interrupted, stats.failures) == (31, False, ())
        runs = store.refresh().runs.collect().sort("name")
        assert runs["name"].to_list() == ["pair-w0", "pair-w1"]
        assert runs["metadata.worker"].to_list() == [0, 1] and runs["metadata.lot"].to_list() == [3, 3]
        assert set(stats.run_ids) == set(runs["run_id"])
        by_run = [list(store.filter(f"run_id = '{run}'")) for run in stats.run_ids]
        contents.append([[episode.observations for episode in episodes] for episodes in by_run])
        for episodes in by_run:
            assert episodes[0].seed is not None
            for episode in episodes:
                assert list(episode.policy["asked"][: episode.length]) == list(range(episode.length))
            finished = [episode for episode in episodes if episode.end_reason != "cut"]
            assert len(episodes) - len(finished) <= 1
        ended = [e for episodes in by_run for e in episodes if e.end_reason != "cut"]
        assert stats.lengths.tolist() == [episode.length for episode in ended]
        assert stats.returns.tolist() == [episode.episode_return for episode in ended]
    first, second = contents
    assert all(
        np.array_equal(a, b) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True)
    )
    assert not np.array_equal(first[0][0][0], first[1][0][0])


@pytest.mark.further
def test_deaths_are_reported_and_their_journals_recovered(tmp_path: Path) -> None:
    """SIGKILL, an exception and os._exit each end one of four workers; the others go on, nothing is lost."""
    store = new_store(tmp_path, VaryingEnv())
    claims = tmp_path / "claims"
    claims.mkdir()
    policy = Doomed(claims, tmp_path / "store", ("kill", "raise", "exit"), after=40)
    options: Any = {"flush_seconds": 0.05, "seal_seconds": 1e6}
    with pytest.warns(RuntimeWarning, match="^Worker") as warned:
        stats = el.collect(make_varying, policy, store, steps=400, workers=4, seed=1, **options)
    places = {each.filename for each in warned if str(each.message).startswith("Worker")}
    assert places == {__file__}
    (sound,) = set(stats.workers) - set(stats.failures)
    deaths = {report.exit_code: report for report in stats.failures}
    assert deaths.keys() == {None, 7, -9} and len(stats.failures) == 3
    assert "Killed" in str(deaths[-9].failure) and deaths[-9].recovered and deaths[7].recovered
    raised = str(deaths[None].failure)
    assert "the policy has lost its way" in raised and "Traceback" in raised
    assert sound.steps == 100 and {report.steps for report in stats.failures} == {39}
    assert stats.steps == 100 + 3 * 39
    texts = " ".join(str(warning.message) for warning in warned)
    assert all(f"exit code {code}" in texts for code in (7, -9)) and "lost its way" in texts
    assert str(stats).count("worker ") == 3
    # Every step is in the store, whoever recorded it; a death cut one episode short at the most.
    found = {
        run: (int(steps), ended)
        for run, steps, ended in rows(
            tmp_path,
            "select run_id, sum(length), count(*) filter (terminated or truncated) from EPISODES group by 1",
        )
    }
    assert found == {str(w.run_id): (w.steps, w.episodes) for w in stats.workers}
    assert stats.episodes == sum(ended for _, ended in found.values()) == len(stats.returns)
    reasons = {reason for (reason,) in rows(tmp_path, "select distinct end_reason from EPISODES")}
    assert reasons <= {"terminated", "truncated", "cut", "interrupted"}
    assert not any((tmp_path / "store" / "journal").iterdir())
    report = store.refresh().verify()
    assert report.faults == ()


PROGRAM = """
import signal
import sys
import episodelake as el
import collecting_parts
from collecting_parts import VaryingEnv, make_varying


def make_long():
    return VaryingEnv(longest=10**6)


if __name__ == "__main__":
    store = el.open(sys.argv[1])
    # The handler of a collection that runs knows whether it was interrupted.
    tell = lambda state: print("asked" if signal.getsignal(signal.SIGINT).__self__.asked else "", flush=True)
    policy = getattr(collecting_parts, sys.argv[2])
    make = make_long if sys.argv[2] == "stuck" else make_varying
    options = {"progress": tell, "flush_seconds": 0.05, "seal_seconds": 1e6}
    try:
        el.collect(make, policy, store, steps=10**9, workers=2, seed=1, **options)
    except KeyboardInterrupt as interrupt:
        stats = interrupt.stats
        print("stats", stats.steps, stats.interrupted, len(stats.failures), flush=True)
        raise
"""


def start(folder: Path, policy: str = "slowly", steps: int = 10) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a collection with two workers, and wait until both have so many steps in their journals."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, str(program), str(folder / "store"), policy],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        start_new_session=True,
    )

    def both_record() -> bool:
        assert process.poll() is None, "the collection ended before it was to"
        told = [steps_told(journal) for journal in journals(folder / "store")]
        return len(told) == 2 and min(told) >= steps

    try:
        wait_until(both_record, f"{steps} steps in the journals of two workers")
    except BaseException:
        process.kill()
        raise
    return process, children(process.pid)


def children(parent: int) -> list[int]:
    """The worker processes below a process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(status[1]) == parent and b"spawn_main" in command:
                found.append(int(entry.name))
    return found


def wait_until_gone(pids: list[int]) -> None:
    """Wait until none of these processes lives."""
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the end of the workers")


@pytest.mark.further
def test_an_interrupt_stops_all_workers(tmp_path: Path) -> None:
    """One SIGINT to the whole group ends all workers after their step; what they recorded is sealed."""
    new_store(tmp_path, VaryingEnv())
    process, workers = start(tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGINT
    word, steps, interrupted, failures = output.split("\n")[-2].split()
    assert (word, interrupted, failures) == ("stats", "True", "0")
    assert rows(tmp_path, "select sum(length)::int from EPISODES") == [(int(steps),)]
    wait_until_gone(workers)
    assert not any((tmp_path / "store" / "journal").iterdir())


@pytest.mark.slow
def test_a_second_interrupt_kills_workers_that_hang(tmp_path: Path) -> None:
    """Workers that do not come back are killed by the second SIGINT, and their journals are recovered."""
    new_store(tmp_path, VaryingEnv())
    process, workers = start(tmp_path, "stuck", steps=30)
    process.send_signal(signal.SIGINT)
    # A second signal before the first was taken would be lost in it.
    assert process.stdout is not None
    assert any(line == "asked\n" for line in process.stdout)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE)
    assert output.split("\n")[-2].split() == ["stats", "60", "True", "2"]
    assert rows(tmp_path, "select sum(length)::int, any_value(end_reason) from EPISODES") == [
        (60, "interrupted")
    ]
    wait_until_gone(workers)


@pytest.mark.further
def test_workers_do_not_outlive_their_parent(tmp_path: Path) -> None:
    """When the parent is killed, the workers seal what they have and end."""
    new_store(tmp_path, VaryingEnv())
    process, workers = start(tmp_path)
    assert len(workers) == 2
    process.kill()
    process.communicate(timeout=PATIENCE)
    wait_until_gone(workers)
    assert el.recover(tmp_path / "store") == []
    assert rows(tmp_path, "select count(distinct run_id), sum(length) >= 20 from EPISODES") == [(2, True)]


def local_policy() -> Any:
    """A function that no other process can import."""

    def policy(observation: Any, info: Any, state: Any) -> Any:
        return np.zeros(2, np.float32)

    return policy


UNSENT: list[tuple[Any, dict[str, Any], str]] = [
    ((make_varying, local_policy()), {}, "policy cannot be sent"),
    ((lambda: VaryingEnv(), None), {}, "make_env cannot be sent"),
    ((make_varying, None), {"on_step": lambda step: None}, "on_step cannot be sent"),
    ((make_varying, None), {"step_callback": lambda step: None}, "step_callback cannot be sent"),
    ((VaryingEnv(), None), {}, "each makes an environment of its own: got VaryingEnv"),
    ((make_varying, None), {"seed": [1]}, "seed is a list of 1, .* expected at least 2"),
    ((make_varying, None), {"seed": lambda number: number}, "seed cannot be sent"),
    ((make_varying, None), {"workers": -1}, "workers=-1"),
    ((make_varying, 3), {}, "policy is int"),
]


def test_what_cannot_go_to_workers(tmp_path: Path) -> None:
    """What cannot be pickled, or makes no sense with workers, is named before a process is started."""
    store = new_store(tmp_path, VaryingEnv())
    for arguments, options, words in UNSENT:
        with case(words), pytest.raises(el.errors.InvalidArgumentError, match=words):
            el.collect(*arguments, store, **{"steps": 5, "workers": 2, **options})
    assert store.refresh().runs.collect().is_empty()


@pytest.mark.further
def test_a_policy_below_the_guard_of_the_script(tmp_path: Path) -> None:
    """The error says that workers do not run that part of the script."""
    new_store(tmp_path, VaryingEnv())
    (tmp_path / "script.py").write_text(
        "import sys\nimport episodelake as el\nfrom collecting_parts import make_varying\n"
        "if __name__ == '__main__':\n"
        "    def policy(observation, info, state): ...\n"
        "    el.collect(make_varying, policy, el.open(sys.argv[1]), steps=5, workers=1)\n"
    )
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "store")]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE)
    assert "without what is below `if __name__ == '__main__':`" in ended.stderr
    assert ended.returncode == 1 and "None of 1 workers could begin" in ended.stderr


@pytest.mark.further
def test_an_environment_that_cannot_be_made(tmp_path: Path) -> None:
    """If no worker could begin there is nothing to report but why."""
    store = new_store(tmp_path, VaryingEnv())
    with pytest.raises(el.errors.InvalidArgumentError, match=r"(?s)None of 2 workers.*No-Such-Env") as caught:
        el.collect("No-Such-Env-v0", None, store, episodes=5, workers=2)
    assert gym.error.NameNotFound.__name__ in str(caught.value)


@pytest.mark.further
def test_other_processes_may_begin_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may start a process of its own while workers begin."""
    others = []
    submit = ProcessPoolExecutor.submit

    def submitted(*words: Any) -> Any:
        others.append(multiprocessing.get_context("spawn").Process(target=time.sleep, args=(PATIENCE,)))
        others[-1].start()
        return submit(*words)

    monkeypatch.setattr(ProcessPoolExecutor, "submit", submitted)
    try:
        store = new_store(tmp_path, VaryingEnv())
        stats = el.collect(make_varying, None, store, episodes=1, workers=1)
    finally:
        for other in others:
            other.kill()
            other.join()
    assert (len(others), len(stats.ended), stats.failures) == (1, 1, ())
