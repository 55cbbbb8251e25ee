"""Measure the memory that a loader takes, in a process that has done nothing else.

`python sampling_memory.py SMALL LARGE` draws a batch from a small store first, so that code and thread pools
are loaded, and then makes a loader of LARGE and draws 100 batches. It prints JSON: bytes at the peak and at
the end, above what the process had before, and the bytes of the arrays that the loader holds. Linux only.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import episodelake as el
from memory import memory_of

SIZE = 256


def main() -> None:
    """Sample both stores and print what the second one took."""
    small, large = sys.argv[1:3]
    next(iter(el.open(small).loader(SIZE, shuffle=True)))
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to what is held now
    before = memory_of("VmRSS")
    loader = el.open(large).loader(SIZE, shuffle=True)
    for _ in itertools.islice(loader, 100):
        pass
    found = {"peak": memory_of("VmHWM") - before, "steady": memory_of("VmRSS") - before}
    print(json.dumps({**found, "held": loader.nbytes}))


if __name__ == "__main__":
    main()
