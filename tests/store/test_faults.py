"""Crashes and failures at every kind of call that changes or reads a file: what was promised holds, whatever
happens.

Each test strikes one workload at some of its points (`faults.plans.choose`); `test_faults_long.py` strikes it
at all of them. A report names the trials that went wrong; `python tests/faults TRIAL` runs one of them again.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import episodelake as el
from faults.campaign import Campaign, campaign, report
from faults.faults import LOOKS, WRITE, Outcome, Stage, Trial
from faults.plans import (
    LOOKED,
    PLAIN,
    after_a_failure,
    blinded,
    choose,
    failing,
    half_committed,
    killed,
    then,
)
from faults.shim import Call
from faults.truth import SPACES
from waiting import PATIENCE

# `make test-crashes` runs them, and so does the continuous integration.
pytestmark = pytest.mark.slow

#: How many points of each workload are chosen for kills, and how many for failures.
KILLED = {
    "create": 10,
    "change_card": 3,
    "record": 25,
    "roll_out": 10,
    "record_busily": 10,
    "record_in_bulk": 12,
    "record_team": 6,
    "take_turns": 5,
    "take_turns_busily": 4,
    "recover a team": 4,
    "recover": 12,
    "recover beside a live writer": 4,
    "two recoveries": 5,
    "succeed": 7,
    "checkpoint": 2,
    "compact": 6,
    "cluster": 3,
    "delete": 6,
    "vacuum": 4,
    "annotate": 6,
    "drop_annotations": 3,
    "tag": 3,
    "merge": 6,
}
FAILING = {
    "create": 3,
    "change_card": 3,
    "record": 13,
    "roll_out": 5,
    "record_busily": 4,
    "record_in_bulk": 6,
    "record_team": 5,
    "take_turns": 5,
    "recover a team": 2,
    "recover": 6,
    "succeed": 3,
    "compact": 3,
    "delete": 3,
    "vacuum": 3,
    "annotate": 3,
    "tag": 3,
    "merge": 3,
}
#: How many looks at files fail in each workload; three where nothing is said.
BLINDED = {"recover": 14, "succeed": 7, "open and read": 7, "verify": 7}
MAINTENANCE = ("compact", "cluster", "delete", "vacuum", "annotate", "drop_annotations", "tag", "merge")

#: Function, and a part of the path: among the points of the workloads there must be such calls.
EXPECTED = {
    ("mkdir", "/journal/"),
    ("open", ".frames"),
    ("write", ".frames"),
    ("fsync", "/journal/"),
    ("unlink", ".frames"),
    ("rmdir", "/journal/"),
    ("write", "/steps/"),
    ("fsync", "/steps/"),
    ("write", "/episodes/"),
    ("fsync", "/episodes/"),
    ("write", "/runs/"),
    ("write", "/_delta_log/"),
    ("fsync", "/_delta_log/"),
    ("link", "/steps/_delta_log/"),
    ("link", "/episodes/_delta_log/"),
    ("link", "/runs/_delta_log/"),
    ("unlink", "/.lock"),
    ("link", "/store.json"),
    ("rename", "/card.json"),
}

#: The same for looks at files, through Python, Arrow, delta-rs and DuckDB.
EXPECTED_LOOKS = {
    ("open", "/store.json"),
    ("opendir", "/journal"),
    ("readdir", "/journal"),
    ("lstat64", "/journal"),
    ("mmap", ".frames"),
    ("pread", "/seals.log"),
    ("readdir", "/steps/_delta_log"),
    ("open", "/steps/_delta_log/"),
    ("pread", "/episodes/_delta_log/"),
    ("pread", "/steps/"),
    ("pread", "/episodes/"),
    ("pread", "/runs/"),
}

#: What damage is done to which template, and the invariant that must notice.
DAMAGES = {
    "lose_the_journal": ("dead", "nothing_journalled_is_lost"),
    "change_a_reward": ("full", "sums_agree_between_episodes_and_steps"),
    "double_the_rows": ("full", "as found"),
    "shorten_a_segment": ("full", "as found"),
    "forget_the_last_commit": ("full", "what_was_visible_stays_visible"),
    "lose_an_old_segment": ("worn", "old_snapshot_still_reads"),
}


@pytest.fixture(scope="module")
def harness() -> Iterator[Campaign]:
    """Processes that run trials, and the folder that they use."""
    with campaign() as started:
        yield started


def assert_right(outcomes: Sequence[Outcome]) -> None:
    """Fail with a report unless every invariant held in every trial, and nearly all faults acted."""
    assert not any(outcome.wrong for outcome in outcomes), f"\n{report(outcomes)}"
    acted = sum(bool(outcome.acted) for outcome in outcomes)
    assert acted >= 0.75 * len(outcomes), f"\n{report(outcomes)}"


def _name(call: Call) -> str:
    return call.name.removesuffix("at")


def test_points_are_at_all_calls_that_matter(harness: Campaign) -> None:
    """The points include writes, syncs, links, renames and removals of journals, segments, logs and names."""
    found = {
        (_name(call), path)
        for name in ("create", "change_card", "record", "roll_out", "recover")
        for call in harness.survey(PLAIN[name])
        for path in (call.path, call.other)
    }
    lacking = {
        (name, part)
        for name, part in EXPECTED
        if not any(name == seen and part.lstrip("/") in path for seen, path in found)
    }
    assert not lacking


def test_looks_are_counted_at_all_files_that_matter(harness: Campaign) -> None:
    """The looks include opening, listing and reading journals, logs and Parquet files, in every library."""
    looks = [call for name in ("recover", "open and read") for call in harness.survey(LOOKED[name], LOOKS)]
    lacking = {
        (name, part)
        for name, part in EXPECTED_LOOKS
        if not any(call.name == name and part in call.path for call in looks)
    }
    assert not lacking


@pytest.mark.parametrize("name", ["create", "record", "roll_out", "compact", "annotate", "merge"])
def test_no_change_escapes_the_shim(harness: Campaign, name: str) -> None:
    """Every byte of every file that a workload makes was written, linked or renamed by a counted call."""
    calls, before, after = harness.observe(PLAIN[name])
    written: dict[str, int] = {}
    for call in calls:
        if call.kind == WRITE:
            written[call.path] = written.get(call.path, 0) + call.size
        elif call.other:
            written[call.other] = written.get(call.path, 0)
    made = {path: size for path, size in after.items() if path not in before and size}
    linked = {
        call.other for call in calls if not call.path.startswith(("/runs", "/steps", "/episodes", "/."))
    }
    lacking = {path for path, size in made.items() if written.get(path, 0) < size} - linked
    assert made
    assert not lacking
    assert not any(call.name == "fopen" for call in calls)


@pytest.mark.parametrize("damage", DAMAGES)
def test_invariants_notice_damage(harness: Campaign, damage: str) -> None:
    """Damage done on purpose is noticed by the invariant that speaks of it."""
    template, invariant = DAMAGES[damage]
    (outcome,) = harness.run([Trial(template, (Stage(damage),))])
    assert any(invariant in sentence for sentence in outcome.wrong), outcome


@pytest.mark.parametrize("name", KILLED)
def test_a_kill_loses_and_doubles_nothing(harness: Campaign, name: str) -> None:
    """Killed before or after any call that changes a file, a store keeps every invariant."""
    trials = killed(PLAIN[name], choose(harness.survey(PLAIN[name]), KILLED[name]))
    if name in MAINTENANCE:
        again = Stage(PLAIN[name].stages[-1].workload)
        trials = [then(trial, again) if number % 2 else trial for number, trial in enumerate(trials)]
    outcomes = harness.run(trials)
    assert_right(outcomes)


def test_a_kill_between_the_commits_and_in_the_recovery(harness: Campaign) -> None:
    """A writer dies between the commits of steps and episodes, then its recovery dies too, anywhere."""
    first = then(half_committed(PLAIN["record"], harness.survey(PLAIN["record"])), Stage("recover"))
    assert_right(harness.run(killed(first, choose(harness.survey(first), 12))))


# Two seals wait in line. While the first is at work, an episode ends in a journal part that holds none of its
# rows; the first is finished, and the process dies as the second begins.
END_APART = """
import os, sys, threading
import numpy as np
import episodelake as el
from episodelake.writers.session import seal_queue
sys.path.insert(0, sys.argv[2])
from waiting import wait_for_journal, wait_until

true_seal, begun, go_on = seal_queue.seal_segment, [], threading.Event()

def seal(*arguments):
    begun.append(arguments)
    if len(begun) > 1:
        os._exit(0)
    go_on.wait()
    true_seal(*arguments)

seal_queue.seal_segment = seal
writer = el.open(sys.argv[1]).writer(segment_bytes=1, flush_seconds=1e6, seal_seconds=1e6)
zero = np.zeros(2, np.float32)
episode = writer.begin(zero, seed=7)
for _ in range(3):
    episode.append(0, 1.0, zero)
whole = {"observations": np.zeros((71, 2), np.float32), "actions": np.zeros(70, np.int64)}
writer.write_episode(**whole, rewards=np.ones(70), terminations=True, truncations=False)
wait_until(lambda: begun, "the first seal")
episode.end({"note": "done"})
journal = writer._session.journal.directory

def wait_for_the_end():
    wait_for_journal(journal, 73, ended=2)
    go_on.set()

threading.Thread(target=wait_for_the_end, daemon=True).start()
writer.seal()
"""


def test_an_end_in_a_part_without_rows_is_kept(tmp_path: Path) -> None:
    """The part of the journal that holds an episode's end and none of its rows stays until it is sealed."""
    el.create(tmp_path / "store", **SPACES)
    command = [sys.executable, "-c", END_APART, str(tmp_path / "store"), str(Path(__file__).parents[1])]
    subprocess.run(command, check=True, timeout=PATIENCE)
    el.recover(tmp_path / "store")
    (episode,) = el.open(tmp_path / "store").filter("seed = 7")
    assert (len(episode), episode.end_reason, episode.metadata) == (3, "cut", {"note": "done"})


@pytest.mark.parametrize("name", FAILING)
def test_a_failure_loses_and_doubles_nothing(harness: Campaign, name: str) -> None:
    """Full disk, short or failing writes, failing sync, link, rename or removal, read-only folder: an error
    of the tree or none; when the fault has gone, going on, closing or recovering brings everything in.
    """
    assert_right(harness.run(failing(PLAIN[name], choose(harness.survey(PLAIN[name]), FAILING[name]))))


@pytest.mark.parametrize("name", LOOKED)
def test_a_look_that_fails_is_no_damage(harness: Campaign, name: str) -> None:
    """An open, read, stat or list call that fails (EIO, ESTALE, no descriptors, memory or permission), or
    reads less than was asked for, never passes for damage: no journal is set aside, nothing is deleted or
    left out, and the same call succeeds once the fault has gone.
    """
    calls = harness.survey(LOOKED[name], LOOKS)
    assert_right(harness.run(blinded(LOOKED[name], calls, BLINDED.get(name, 3))))


@pytest.mark.parametrize("name", ["record", "record_busily", "record_in_bulk"])
def test_a_kill_after_a_failure(harness: Campaign, name: str) -> None:
    """A writer that went on after a failure and is killed soon after keeps every invariant too."""
    assert_right(harness.run(after_a_failure(PLAIN[name], harness.survey(PLAIN[name]), 14)))


#: Trials that went wrong once, each with the call at which it strikes and how many points behind it.
FOUND_ONCE = [
    ("aged > succeed:read only:{}:close", "rmdir", "/journal/", 0),
    ("empty > roll_out:kill:{}:repeat > recover", "open", "/000001.frames", 1),
    ("empty > roll_out:kill:{}:repeat > recover", "open", "/000001.frames", 3),
    ("empty > roll_out:exit:{}:repeat", "write", "/000001.frames", 1),
    ("team > record_team:exit:{}:repeat", "write", "/000002.frames", 1),
]


@pytest.mark.parametrize(("text", "call", "path", "behind"), FOUND_ONCE)
def test_faults_that_were_found_once(harness: Campaign, text: str, call: str, path: str, behind: int) -> None:
    """A second close after the lock could not be removed; a journal whose writer had just begun a part, or
    was killed in its first frame.
    """
    calls = harness.survey(Trial.parse(text.format(0).removesuffix(" > recover")))
    point = next(each.point for each in calls if each.name == call and path in each.path)
    assert_right(harness.run([Trial.parse(text.format(point + behind))]))


def test_a_log_is_summed_up_under_faults(harness: Campaign) -> None:
    """The workload of that name writes the checkpoints of two tables, so that trials strike there."""
    paths = {each.path for each in harness.survey(PLAIN["checkpoint"])}
    assert {path.split("/")[1] for path in paths if ".checkpoint." in path} == {"steps", "episodes"}
