"""One of several writers: reads `STORE STEPS` lines, records that many steps, and prints `closed`."""

from __future__ import annotations

import sys

import environments
import episodelake as el


def main() -> None:
    """Record once per input line, until the input ends."""
    env = environments.make("synthetic")
    actions = environments.make_actions(env)
    for line in sys.stdin:
        path, _, steps = line.strip().rpartition(" ")
        with el.open(path).record(env) as recorder:
            environments.run_steps(recorder, actions, int(steps))
        print("closed", flush=True)


if __name__ == "__main__":
    main()
