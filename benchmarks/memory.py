"""Measure the memory that opening a store takes, in a process that has done nothing else.

`python memory.py SMALL LARGE` opens and filters a small store first, so that code and thread pools are
loaded, and then opens LARGE and counts its episodes. It prints JSON: bytes at the peak and bytes still held,
both above the process's memory before. Linux only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import polars as pl

import episodelake as el


def main() -> None:
    """Open both stores and print the memory of the second one."""
    small, large = sys.argv[1:3]
    len(el.open(small).filter(pl.col("episode_return") > 0.0))
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to what is held now
    before = memory_of("VmRSS")
    store = el.open(large)
    len(store)
    answer = {"peak": memory_of("VmHWM") - before, "held": memory_of("VmRSS") - before}
    print(json.dumps(answer))


def memory_of(field: str, process: int | str = "self") -> int:
    """Return a field of a process's /proc/.../status in bytes."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


if __name__ == "__main__":
    main()
