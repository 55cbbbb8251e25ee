"""Run trials by hand: `python tests/faults TRIAL ...`, written as a report writes them.

    python tests/faults "empty > record:kill:692:repeat > recover"

Without a trial the workloads are listed; with `points WORKLOAD` the points of one.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Run as a folder, the package is known to nobody yet.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from faults.campaign import campaign, report
from faults.faults import Trial
from faults.plans import PLAIN


def main(words: list[str]) -> int:
    """Do what the words say; 1 if something was wrong."""
    if not words:
        print("\n".join(f"{name:30} {trial}" for name, trial in PLAIN.items()))
        return 0
    with campaign(1) as harness:
        if words[0] == "points":
            for call in harness.survey(PLAIN[words[1]]):
                print(f"{call.point:5} {call.name:10} {call.path} {call.other} {call.size or ''}")
            return 0
        outcomes = harness.run([Trial.parse(word) for word in words])
    print(report(outcomes))
    return int(any(outcome.wrong for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
