"""Start-up of whole processes: importing Episodelake, and its commands on a store of a million episodes.

The peer of each row is a process that imports DuckDB, Polars and Arrow and ends, which is the lower limit.
The store is as a thousand seals leave it, never compacted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence

from measure import Row, interleave, scaled
from opening import PER_SEGMENT, build
from setting import Setting

IMPORTS = "import duckdb, polars, pyarrow"
PROGRAM = "from episodelake.terminal.start import main; main()"
IMPORT_SECONDS = 0.5
INFO_SECONDS = 1.0
SHOWN = 50


def run(setting: Setting) -> list[Row]:
    """Build the store once, then start the processes in turn."""
    segments = setting.choose(1000, 20)
    path = setting.fresh("startup")
    build(path, segments)
    episodes = segments * PER_SEGMENT
    found = json.loads(_output(["info", str(path), "--json"]))
    if found["episodes"] != episodes:
        raise AssertionError(f"expected {episodes} episodes, info says {found['episodes']}")
    listing = ["ls", str(path), "--limit", str(SHOWN)]
    if len(_output(listing).splitlines()) != SHOWN + 1:
        raise AssertionError("ls does not list as many episodes as were asked for")
    sides = {
        "imports": lambda: _seconds(["-c", IMPORTS]),
        "import": lambda: _seconds(["-c", "import episodelake"]),
        "info": lambda: _seconds(_words(["info", str(path)])),
        "ls": lambda: _seconds(_words(listing)),
        "sorted": lambda: _seconds(_words([*listing, "--order-by", "episode_return"])),
        "show": lambda: _seconds(_words(["show", str(path), "-1"])),
    }
    costs = {name: scaled(values, 1.0) for name, values in interleave(sides, setting.repeats).items()}
    peer = ("importing DuckDB, Polars, Arrow", costs["imports"])
    many = f"{episodes:,} episodes in {segments:,} segments"
    return [
        Row("import episodelake, a process", "s", costs["import"], *peer, limit=IMPORT_SECONDS),
        Row(f"episodelake info, {many}", "s", costs["info"], *peer, limit=INFO_SECONDS),
        Row(f"episodelake ls, {many}", "s", costs["ls"], *peer),
        Row(f"episodelake ls --order-by, {many}", "s", costs["sorted"], *peer),
        Row(f"episodelake show, {many}", "s", costs["show"], *peer),
    ]


def _words(command: Sequence[str]) -> list[str]:
    return ["-c", PROGRAM, *command]


def _seconds(words: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def _output(command: Sequence[str]) -> str:
    words = [sys.executable, *_words(command)]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout
