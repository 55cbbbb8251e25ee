"""Lakes of a thousand stores and a million episodes: listing them, and SQL beside DuckDB on the bare files.

DuckDB gets the list of files, and the name of the folder as its column of stores.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import duckdb
import numpy as np
from gymnasium.spaces import Box, Discrete

import episodelake as el
from bare_files import files_of
from measure import Row, interleave, scaled
from setting import Setting
from sql import check_agreement, timed

PER_STORE = 1000
LIST_SECONDS, TARGET = 2.0, 1.5
QUERIES = {
    "one number": "select avg(episode_return), count(*) from {episodes}",
    "group by store": """select {store}, avg(episode_return), max(length) from {episodes}
        group by 1 order by 1""",
    "one store": "select count(*), avg(length) from {episodes} where {store} = 'group-3/store-0003'",
    "longest": "select {store}, episode_id, length from {episodes} order by length desc, 1, 2 limit 10",
}


def run(setting: Setting) -> list[Row]:
    """Build the lake once, then list and ask it."""
    count = setting.choose(1000, 30)
    root: Path = setting.fresh("lake")
    build(root, count)
    words = f"{count:,} stores"
    lake = el.lake(root)
    lake.stores()
    sides = {
        "new": timed(lambda: el.lake(root).stores()),
        "unchanged": timed(lambda: lake.refresh().stores()),
        "grown": lambda: _grown(lake, root),
    }
    listed = {name: scaled(values, 1.0) for name, values in interleave(sides, setting.repeats).items()}
    rows = [
        Row(f"list {words}, new lake", "s", listed["new"], limit=LIST_SECONDS),
        Row(f"list {words} again, unchanged", "s", listed["unchanged"]),
        Row(f"list {words} again, 10 have grown", "s", listed["grown"]),
    ]
    bare = duckdb.connect()
    paths = [file for store in sorted(root.glob("*/*")) for file in files_of(store, "episodes")]
    files = ", ".join(f"'{path}'" for path in paths)
    lake.refresh()
    first = timed(lambda: lake.sql("select count(*) from episodes").fetchall())()
    rows.append(Row(f"first SQL, {words}: every footer and page is checked", "s", scaled([first], 1.0)))
    for name, text in QUERIES.items():
        ours = text.format(store="store", episodes="episodes")
        folder = f"regexp_extract(filename, '{root}/(.*)/episodes/', 1)"
        theirs = text.format(store=folder, episodes=f"read_parquet([{files}])")
        check_agreement(name, lake.sql(ours).fetchall(), bare.sql(theirs).fetchall())
        asked = {
            "ours": timed(lambda query=ours: lake.sql(query).fetchall()),
            "bare": timed(lambda query=theirs: bare.sql(query).fetchall()),
        }
        costs = {side: scaled(each, 1e3) for side, each in interleave(asked, 2 * setting.repeats).items()}
        rows.append(
            Row(
                f"SQL over {words}, {len(paths) * PER_STORE:,} episodes: {name}",
                "ms",
                costs["ours"],
                "DuckDB on the files",
                costs["bare"],
                ratio_target=TARGET,
            )
        )
    return rows


def build(root: Path, count: int) -> None:
    """Make stores of a thousand episodes; ten are recorded, and the others are copies of them."""
    spaces = {"observation_space": Box(-1.0, 1.0, (2,), np.float32), "action_space": Discrete(2)}
    random = np.random.default_rng(0)
    for number in range(count):
        path = root / f"group-{number % 10}" / f"store-{number:04d}"
        if number >= 10:
            shutil.copytree(root / f"group-{number % 10}" / f"store-{number % 10:04d}", path)
            continue
        with el.create(path, **spaces).writer(run="run", metadata={"lr": number / 10}) as writer:
            for episode in range(PER_STORE):
                length = 1 + episode % 2
                writer.write_episode(
                    observations=np.zeros((length + 1, 2), np.float32),
                    actions=np.zeros(length, np.int64),
                    rewards=random.standard_normal(length),
                    terminations=True,
                    truncations=False,
                )


def _grown(lake: el.types.Lake, root: Path) -> float:
    """Seconds to list again after ten stores have got two commits."""
    for store in sorted(root.glob("*/*"))[:10]:
        opened = el.open(store)
        ids = opened.episodes.select("episode_id").collect()
        opened.annotate(ids.with_columns(mark=np.full(ids.height, time.time())))
        opened.drop_annotation("mark")
    return timed(lambda: lake.refresh().stores())()
