"""The long campaign against crashes: every fault at every point of every workload, every look at a file that
fails, and random combinations.

`EPISODELAKE_FAULT_TRIALS` bounds how many trials are run (2,000 unless set), and again how many looks fail;
`make test-faults` sets it. What does not fit is drawn anew with `EPISODELAKE_FAULT_SEED`. The count for each
workload is printed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from faults.campaign import Campaign, campaign, report
from faults.faults import LOOKS
from faults.plans import LOOKED, PLAIN, blinded, drawn, every, every_look, killed
from faults.shim import spots

pytestmark = pytest.mark.slow

MOST = int(os.environ.get("EPISODELAKE_FAULT_TRIALS", "2000"))
SEED = int(os.environ.get("EPISODELAKE_FAULT_SEED", "0"))
#: How much of the bound goes to combinations; the workloads share the rest by how many points they have.
AT_RANDOM = 0.25


@pytest.fixture(scope="module")
def harness() -> Iterator[Campaign]:
    """Processes that run trials, and the folder that they use."""
    with campaign() as started:
        yield started


@pytest.fixture(scope="module")
def lengths(harness: Campaign) -> dict[str, int]:
    """How many points each workload has."""
    return {name: 2 * len(harness.survey(trial)) for name, trial in PLAIN.items()}


@pytest.mark.parametrize("name", PLAIN)
def test_every_fault_at_every_point(
    harness: Campaign, lengths: dict[str, int], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No fault at any point of a workload breaks an invariant."""
    calls = harness.survey(PLAIN[name])
    trials = list(every(PLAIN[name], calls))
    share = max(int(MOST * (1 - AT_RANDOM) * lengths[name] / sum(lengths.values())), 1)
    if len(trials) > share:
        # First each point killed once, then whatever else there is room for.
        once = killed(PLAIN[name], spots(calls))
        source = random.Random(SEED)
        trials = source.sample(once, min(share // 2, len(once))) + source.sample(trials, share - share // 2)
    outcomes = harness.run(trials)
    with capsys.disabled():
        print(f"\n{report(outcomes)}")
    assert not any(outcome.wrong for outcome in outcomes)


@pytest.fixture(scope="module")
def looks(harness: Campaign) -> dict[str, int]:
    """How many looks at files each workload takes."""
    return {name: len(harness.survey(trial, LOOKS)) for name, trial in LOOKED.items()}


@pytest.mark.parametrize("name", LOOKED)
def test_every_look_fails_once(
    harness: Campaign, looks: dict[str, int], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No open, read, stat or list call of a workload that fails passes for damage."""
    calls = harness.survey(LOOKED[name], LOOKS)
    share = max(int(MOST * looks[name] / sum(looks.values())), 1)
    # First each look once, the ways to fail in turn, then whatever else there is room for.
    trials = blinded(LOOKED[name], calls, share)
    more = list(every_look(LOOKED[name], calls))
    trials += random.Random(SEED).sample(more, min(max(share - len(trials), 0), len(more)))
    outcomes = harness.run(trials)
    with capsys.disabled():
        print(f"\n{report(outcomes)}")
    assert not any(outcome.wrong for outcome in outcomes)


def test_faults_upon_faults(
    harness: Campaign, lengths: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    """No combination of faults drawn at random, in a writer and in the recoveries after it, breaks one."""
    outcomes = harness.run(list(drawn(lengths, int(MOST * AT_RANDOM), SEED)))
    with capsys.disabled():
        print(f"\n{report(outcomes)}")
    assert not any(outcome.wrong for outcome in outcomes)
