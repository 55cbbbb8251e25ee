"""What deletion reaches: after `delete` and `vacuum`, which files of a store still hold the deleted bytes.

The search knows nothing of the library: raw bytes of every file, and every cell of every Parquet file.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
from gymnasium import spaces

import episodelake as el

SPACES = {
    "observation_space": spaces.Dict({"frame": spaces.Box(0, 255, (16,), np.uint8), "text": spaces.Text(40)}),
    "action_space": spaces.Discrete(2),
}
SECRET = "SECRET-of-the-deleted"


def holders(path: Path, needle: bytes) -> set[str]:
    """Return the files of a store that hold some bytes, plain or in a cell of a Parquet file."""
    found = set()
    for file in path.rglob("*"):
        if not file.is_file():
            continue
        data = file.read_bytes()
        if data[:4] == b"PAR1":
            data += str(pq.read_table(file, partitioning=None).to_pylist()).encode()
        if needle in data:
            found.add(file.relative_to(path).as_posix())
    return found


def folders(files: set[str]) -> set[str]:
    """Return the top folders of some files."""
    return {name.partition("/")[0] for name in files}


def record(store: el.EpisodeStore, run: str, secret: str, durability: str = "flush") -> el.EpisodeWriter:
    """Write an episode that says a secret wherever an episode can, and return the writer."""
    writer = store.writer(run=run, durability=durability)
    frame = np.frombuffer(secret.encode()[:16].ljust(16), np.uint8).copy()
    observation = {"frame": frame, "text": "".join(filter(str.isalnum, secret))[:40]}
    episode = writer.begin(
        observation, {"note": f"info {secret}"}, options={"option": secret}, metadata={"meta": secret}
    )
    episode.append(
        1,
        987654.25 if secret == SECRET else 1.0,
        observation,
        terminated=True,
        info={"note": secret},
        policy={"thought": secret},
    )
    episode.end()
    return writer


def test_deleted_episodes_leave_no_bytes(tmp_path: Path) -> None:
    """Steps, rows and annotations lose all of them; ids and extremes stay in the logs, as documented."""
    store = el.create(tmp_path / "store", **SPACES)
    record(store, "kept", "harmless").close()
    record(store, "gone", SECRET).close()
    store.refresh()
    gone = store.filter("run_id like 'gone-%'")
    (episode_id,) = gone.episodes.select("episode_id").collect()["episode_id"]
    store.annotate(gone.episodes.select("episode_id", label=pl.lit(f"label {SECRET}")))
    store.annotate(
        gone.steps.select("episode_id", "t", mark=pl.lit(f"mark {SECRET}")), on=("episode_id", "t")
    )
    store.tag("before")
    assert folders(holders(store.path, SECRET.encode())) == {"steps", "episodes", "annotations"}
    store.delete("run_id like 'gone-%'")
    store.vacuum(timedelta(0))
    assert holders(store.path, SECRET.encode()), "a tag keeps the version"
    store.untag("before")
    store.vacuum(timedelta(0))

    assert holders(store.path, SECRET.encode()) == set()
    assert holders(store.path, "".join(filter(str.isalnum, SECRET)).encode()) == set()
    left = {name.rpartition("/")[0] for name in holders(store.path, episode_id.encode())}
    assert left == {"episodes/_delta_log", "steps/_delta_log"}
    assert {name.rpartition("/")[0] for name in holders(store.path, b"987654.25")} == {"episodes/_delta_log"}
    assert folders(holders(store.path, episode_id.partition("/")[0].encode())) == {
        "runs",
        "steps",
        "episodes",
    }
    assert store.verify().ok and len(store) == 1


def test_the_journal_of_a_live_writer_keeps_deleted_bytes_until_it_closes(tmp_path: Path) -> None:
    """What a live writer sealed may be in its journal until it closes, and does not come back."""
    store = el.create(tmp_path / "store", **SPACES)
    writer = record(store, "gone", SECRET, durability="fsync")
    writer.seal()
    store.refresh().delete("true")
    store.vacuum(timedelta(0))
    assert folders(holders(store.path, SECRET.encode())) <= {"journal"}
    writer.close()
    store.refresh().vacuum(timedelta(0))
    assert holders(store.path, SECRET.encode()) == set()
    assert len(store.refresh()) == 0


def test_what_belongs_to_runs_and_the_store_stays(tmp_path: Path) -> None:
    """Metadata of runs, the card and names of columns are not an episode's and stay."""
    store = el.create(tmp_path / "store", **SPACES, card={"about": "card-words"})
    with store.writer(run="r", metadata={"about": "run-words"}) as writer:
        episode = writer.begin({"frame": np.zeros(16, np.uint8), "text": ""}, {"column-words": 1})
        episode.append(1, 1.0, {"frame": np.zeros(16, np.uint8), "text": ""}, terminated=True)
        episode.end()
    store.refresh().delete("true")
    store.vacuum(timedelta(0))
    assert holders(store.path, b"card-words") == {"card.json"}
    assert folders(holders(store.path, b"run-words")) == {"runs"}
    assert folders(holders(store.path, b"column-words")) == {"steps"}
    assert all("_delta_log" in name for name in holders(store.path, b"column-words"))
