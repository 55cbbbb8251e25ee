"""Import and export of whole datasets: once, whole or not at all, with a report of what is lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import polars as pl
import pytest
from gymnasium import spaces
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

import episodelake as el
from episodelake.readers.exporting import export as exporting
from episodelake.store.files import touching, visible
from episodelake.writers.importing import formats
from test_cli import printed, refused
from waiting import PATIENCE

FURTHER = pytest.mark.further
SPACE = spaces.Dict({"x": spaces.Box(-9, 9, (2,), np.float32), "n": spaces.Discrete(9)})
ACTIONS = spaces.Box(-1, 1, (3,), np.float32)


def buffers(lengths: list[int]) -> Iterator[EpisodeBuffer]:
    """Episodes of these lengths with random values."""
    random = np.random.default_rng(0)
    for index, length in enumerate(lengths):
        flags = np.arange(length) == length - 1
        yield EpisodeBuffer(
            id=index,
            seed=index + 5,
            options={"level": index, "inner": {"gap": 0.5}},
            observations={
                "x": random.normal(size=(length + 1, 2)).astype(np.float32).clip(-9, 9),
                "n": random.integers(0, 9, length + 1),
            },
            actions=random.uniform(-1, 1, (length, 3)).astype(np.float32),
            rewards=random.normal(size=length),
            terminations=flags & (index % 3 == 0),
            truncations=flags & (index % 3 == 1),
            infos={"cost": random.random(length + 1), "deep": {"force": random.random((length + 1, 2))}},
        )


def dataset(folder: Path, data_format: str, lengths: list[int]) -> tuple[Path, list[EpisodeBuffer]]:
    """A Minari dataset in a folder, and what it holds."""
    data = folder / "data"
    data.mkdir(parents=True)
    storage = MinariStorage.new(data, SPACE, ACTIONS, data_format=data_format)
    recorded = list(buffers(lengths))
    storage.update_episodes(recorded)
    storage.update_episode_metadata([{"level": index} for index in range(len(recorded))])
    told_of_all = {"dataset_id": "test/walk-v0", "minari_version": "0.5.4", "author": {"B", "A"}}
    storage.update_metadata({**told_of_all, "algorithm_name": "none"})
    return folder, recorded


def check(store: el.EpisodeStore, recorded: list[EpisodeBuffer]) -> None:
    """Compare a store with what a dataset holds."""
    assert len(store) == len(recorded)
    for episode, expected in zip(store, recorded, strict=True):
        for name in ("x", "n"):
            assert np.array_equal(episode.observations[name], expected.observations[name])
        assert np.array_equal(episode.actions, expected.actions)
        assert np.array_equal(episode.rewards, expected.rewards)
        assert np.array_equal(episode.terminations, expected.terminations)
        assert np.array_equal(episode.truncations, expected.truncations)
        assert np.array_equal(episode.info_arrays["cost"], expected.infos["cost"])
        assert np.array_equal(np.stack(episode.info_arrays["deep"]["force"]), expected.infos["deep"]["force"])
        assert (episode.seed, episode.options) == (expected.seed, expected.options)


@pytest.mark.parametrize("data_format", ["hdf5", "arrow", pytest.param("parquet", marks=FURTHER)])
def test_a_minari_dataset_comes_in_whole_and_once(tmp_path: Path, data_format: str) -> None:
    """Every value, seed, option and the card; a second import adds nothing."""
    folder, recorded = dataset(tmp_path / "walk", data_format, [3, 1, 70])
    report = el.import_dataset(folder, tmp_path / "store")
    assert (report.episodes, report.steps, report.present, dict(report.lost)) == (3, 74, 0, {})
    store = el.open(tmp_path / "store")
    check(store, recorded)
    assert [episode.metadata["level"] for episode in store] == [0, 1, 2]
    assert [episode.end_reason for episode in store] == ["terminated", "truncated", "cut"]
    assert (store.card["author"], store.card["algorithm"]) == (["A", "B"], "none")
    assert not store.verify().faults
    again = el.import_dataset(folder, store)
    assert (again.episodes, again.steps, again.present) == (0, 0, 3)
    assert sorted(os.listdir(tmp_path)) == ["store", "walk"]


@pytest.mark.further
def test_a_long_episode_of_an_arrow_dataset_comes_in_whole(tmp_path: Path) -> None:
    """With 40,000 steps, of which Minari's reader gives the first 32,767."""
    folder, recorded = dataset(tmp_path / "walk", "arrow", [40_000, 2])
    el.import_dataset(folder, tmp_path / "store")
    check(el.open(tmp_path / "store"), recorded)


def test_frames_stored_as_jpeg_are_reported(tmp_path: Path) -> None:
    """They come in as Minari decodes them, and count as lossy."""
    space = spaces.Box(0, 255, (32, 32, 3), np.uint8)
    frames = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8)
    for jpeg in (True, False):
        data = tmp_path / str(jpeg)
        data.mkdir()
        storage = MinariStorage.new(data, space, spaces.Discrete(2), jpeg_encoding=jpeg)
        flags = np.array([False, False, True])
        storage.update_episodes(
            [EpisodeBuffer(0, None, None, frames, np.zeros(3, int), np.ones(3), flags, ~flags & flags)]
        )
        report = el.import_dataset(data, tmp_path / f"store{jpeg}")
        (expected,) = storage.get_episodes([0])
        decoded = el.open(tmp_path / f"store{jpeg}")[0].observations
        assert np.array_equal(decoded, expected["observations"])
        assert np.array_equal(decoded, frames) is not jpeg
        assert list(report.lost.values()) == ([4] if jpeg else [])


def test_a_damaged_episode_is_named_or_skipped(tmp_path: Path) -> None:
    """Without `on_error="skip"` the store is as it was; with it the other episodes come in."""
    folder, recorded = dataset(tmp_path / "walk", "arrow", [3, 4, 5])
    (file,) = (folder / "data" / "1").glob("*.arrow")
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(el.errors.DatasetError, match=r"Episode 1 of .*walk"):
        el.import_dataset(folder, tmp_path / "store")
    assert not (tmp_path / "store").exists()
    report = el.import_dataset(folder, tmp_path / "store", on_error="skip")
    assert [key for key, _ in report.skipped] == ["1"]
    check(el.open(tmp_path / "store"), [recorded[0], recorded[2]])
    assert sorted(os.listdir(tmp_path)) == ["store", "walk"]


def test_episodes_behind_a_damaged_one_of_an_open_file_come_in(tmp_path: Path) -> None:
    """HDF5 episodes are read in one go, which begins anew behind one that is damaged; also of a selection."""
    folder, recorded = dataset(tmp_path / "walk", "hdf5", [3, 4, 5, 6])
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        del file["episode_1"]["rewards"]
    report = el.import_dataset(folder, tmp_path / "store", on_error="skip")
    assert [key for key, _ in report.skipped] == ["1"]
    check(el.open(tmp_path / "store"), [recorded[0], *recorded[2:]])
    some = minari.MinariDataset(folder / "data", episode_indices=np.array([3, 0, 2]))
    el.import_dataset(some, tmp_path / "some")
    check(el.open(tmp_path / "some"), [recorded[int(index)] for index in some.episode_indices])


def test_unknown_sources_and_formats_are_told(tmp_path: Path) -> None:
    """What each near format lacks, and the known formats."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "metadata.json").write_text('{"author": "A"}')
    with pytest.raises(
        el.errors.DatasetError, match=r"has no known format \(.*minari: .* has no data_format"
    ):
        el.import_dataset(tmp_path / "data", tmp_path / "store")
    with pytest.raises(el.errors.InvalidArgumentError, match=r"Did you mean minari\?"):
        el.import_dataset(tmp_path / "data", tmp_path / "store", format="minary")
    with pytest.raises(el.errors.InvalidArgumentError, match="expected 'raise' or 'skip'"):
        el.import_dataset(tmp_path / "data", tmp_path / "store", on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(el.errors.DatasetError, match="no Minari dataset"):
        el.import_dataset(tmp_path / "nothing", tmp_path / "store", format="minari")
    with pytest.raises(el.errors.DatasetError, match="nothing does not exist, and"):
        el.import_dataset(tmp_path / "nothing", tmp_path / "store")
    (tmp_path / "bare").mkdir()
    with pytest.raises(el.errors.DatasetError, match="bare is an empty folder"):
        el.import_dataset(tmp_path / "bare", tmp_path / "store")
    (tmp_path / "bare").rmdir()
    folder, _ = dataset(tmp_path / "walk", "hdf5", [3])
    with pytest.raises(el.errors.InvalidArgumentError, match="cast='all' is unknown"):
        el.import_dataset(folder, tmp_path / "store", cast="all")  # type: ignore[arg-type]
    assert sorted(os.listdir(tmp_path)) == ["data", "walk"]


def test_formats_in_memory_only_are_told(tmp_path: Path) -> None:
    """An export to a format that can only be read names the method that makes its objects."""
    folder, _ = dataset(tmp_path / "walk", "hdf5", [3])
    el.import_dataset(folder, tmp_path / "store")
    with pytest.raises(
        el.errors.InvalidArgumentError, match=r"'tianshou' is unknown.*view\.to\.tianshou\(\)"
    ):
        el.open(tmp_path / "store").export(tmp_path / "out", format="tianshou")


def test_the_command_line_imports_and_exports(tmp_path: Path) -> None:
    """`import`, with a rehearsal, and `export` of what a condition chooses; errors have status 1."""
    folder, recorded = dataset(tmp_path / "walk", "hdf5", [3, 9])
    store, out = str(tmp_path / "store"), str(tmp_path / "out")
    assert "== First rows of steps ==" in printed("import", str(folder), store, "--dry-run")
    assert not Path(store).exists()
    report = json.loads(printed("import", str(folder), store, "--json"))
    assert (report["format"], report["episodes"], report["lost"]) == ("minari", 2, {})
    check(el.open(store), recorded)
    words = ("--filter", "length > 5", "--option", "data_format=arrow")
    exported = json.loads(printed("export", store, out, "--format", "minari", *words, "--json"))
    assert (exported["episodes"], exported["steps"]) == (1, 9)
    assert minari.MinariDataset(Path(out, "data")).total_episodes == 1
    assert "Did you mean minari?" in refused(1, "export", store, out + "2", "--format", "minary")
    assert "does not exist, and no installed" in refused(1, "import", str(tmp_path / "x"), store)
    assert "minari\ttrue\ttrue" in printed("formats")


def d4rl_file(path: Path, lengths: list[int]) -> Path:
    """A file without next observations, so that each episode loses something when it is read."""
    total = sum(lengths)
    path.parent.mkdir(exist_ok=True)
    ends = np.zeros(total, bool)
    ends[np.cumsum(lengths) - 1] = True
    with h5py.File(path, "w") as file:
        file["observations"] = np.random.default_rng(0).normal(size=(total, 2))
        file["actions"] = np.zeros((total, 1), np.float32)
        file["rewards"] = np.arange(total, dtype=float)
        file["terminals"] = ends
    return path


#: Kills itself before it reads the third episode, with the first two sealed or not; or at a later place.
SCRIPT = """
import os, signal, sys
import episodelake as el
from episodelake.importing import importer, staging
from episodelake.writers.importing import flat

source, target, place = sys.argv[1:]
written, flat._PART_BYTES = 0, 1
write = importer.write_loaded

def strike(*arguments, **keywords):
    os.kill(os.getpid(), signal.SIGKILL)

def struck(loaded, writer, *arguments):
    global written
    if written == 2:
        if place == "sealed":
            writer._session.seal()
        strike()
    written += 1
    return write(loaded, writer, *arguments)

def after(function):
    return lambda *arguments, **keywords: (function(*arguments, **keywords), strike())

if place in ("written", "sealed"):
    importer.write_loaded = struck
elif place == "read":
    staging._moved = el.EpisodeView.copy = staging.merge_stores = strike
elif place == "merged":
    el.EpisodeView.copy = after(el.EpisodeView.copy)
    staging.merge_stores = after(staging.merge_stores)
elif place == "deleted":  # by the rename that makes it the store, or as it is deleted after a copy
    staging.rename_durably = after(staging.rename_durably)
    copy = el.EpisodeView.copy

    def copied(view, *arguments, **keywords):
        copy(view, *arguments, **keywords)
        (view.path / "store.json").unlink()
        strike()

    el.EpisodeView.copy = copied
el.import_dataset(source, target, on_error="skip")
"""


@pytest.mark.parametrize(
    "place", ["sealed", *(pytest.param(each, marks=FURTHER) for each in ("written", "read", "merged"))]
)
@pytest.mark.parametrize("into_existing", [False, pytest.param(True, marks=FURTHER)])
def test_a_killed_import_is_invisible_and_goes_on(tmp_path: Path, place: str, into_existing: bool) -> None:
    """The same call adds every episode once."""
    source = d4rl_file(tmp_path / "walk.hdf5", [3, 1, 80, 9, 4])
    target = tmp_path / "store"
    given: Any = {"observation_space": spaces.Box(-np.inf, np.inf, (2,), np.float64)}
    if into_existing:
        el.create(target, **given, action_space=spaces.Box(-np.inf, np.inf, (1,), np.float32))
    if place == "merged":
        target.mkdir(exist_ok=True)  # so that a new store is a copy
    killed(source, target, place)
    if place != "merged":
        assert (len(el.open(target)) if into_existing else target.exists()) == 0
    report = el.import_dataset(source, target, on_error="skip")
    assert (report.episodes, report.present) == ((0, 5) if place == "merged" else (5, 0))
    rewards = np.concatenate([each.rewards for each in el.open(target)])
    assert sorted(rewards.tolist()) == list(range(97))
    assert sorted(os.listdir(tmp_path)) == ["store", "walk.hdf5"]


@pytest.mark.further
def test_the_command_line_decides_about_changed_sources(tmp_path: Path) -> None:
    """`--on-changed`, `--name` and `--max-bytes` are the arguments of the library; errors name them."""
    store, source = str(tmp_path / "store"), str(d4rl_file(tmp_path / "walk.hdf5", [3, 80]))
    printed("import", source, store)
    d4rl_file(tmp_path / "walk.hdf5", [3, 79])
    assert "--on-changed" in refused(1, "import", source, store)
    assert "--max-bytes" in refused(2, "import", source, store, "--max-bytes", "0")
    reports = [
        json.loads(printed("import", source, store, "--json", *words))
        for words in (("--on-changed", "keep"), ("--on-changed", "replace"), ("--name", "walker"))
    ]
    counts = [[each[name] for name in ("episodes", "present", "kept", "replaced")] for each in reports]
    assert counts == [[0, 1, 1, 0], [0, 1, 0, 1], [2, 0, 0, 0]]


def test_a_new_store_appears_in_one_step(tmp_path: Path) -> None:
    """By a rename; into an empty folder, which stays as it is, by a copy."""
    source = d4rl_file(tmp_path / "walk.hdf5", lengths := [3, 80, 9])
    target = tmp_path / "store"
    report = el.import_dataset(source, target, last_observation="repeat")
    store = el.open(target)
    assert [each.length for each in store] == lengths and report.episodes == 3
    assert not store.verify().faults and sorted(os.listdir(tmp_path)) == ["store", "walk.hdf5"]
    # The store goes on as any other.
    with store.writer() as writer:
        first = store[0]
        given = {"observations": first.observations, "actions": first.actions, "rewards": first.rewards}
        writer.write_episode(**given, terminations=first.terminations, truncations=first.truncations)
    assert len(store.refresh()) == 4
    (tmp_path / "empty").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "empty", target_is_directory=True)
    el.import_dataset(source, tmp_path / "link")
    assert len(el.open(tmp_path / "empty")) == 3 and (tmp_path / "link").is_symlink()
    assert stat.S_IMODE((tmp_path / "empty").stat().st_mode) == 0o700


def test_a_new_store_that_is_not_synced_is_not_said_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error after the rename is a warning that names no staging folder; the next call finds all there."""
    source = d4rl_file(tmp_path / "walk.hdf5", [3, 80])
    with monkeypatch.context() as patched:

        @touching("sync")
        def failing(path: Path) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

        patched.setattr(visible, "sync_path", failing)
        with pytest.warns(RuntimeWarning, match="may be lost") as warned:
            assert el.import_dataset(source, tmp_path / "store").episodes == 2
    assert "wait in" not in str(warned[0].message)
    report = el.import_dataset(source, tmp_path / "store")
    assert (report.episodes, report.present, len(el.open(tmp_path / "store"))) == (0, 2, 2)


@pytest.mark.further
@pytest.mark.parametrize("copied", [True, False])
def test_an_import_killed_when_all_is_there_is_complete(tmp_path: Path, copied: bool) -> None:
    """The next call finds everything there, and removes what the first one left."""
    source = d4rl_file(tmp_path / "walk.hdf5", [3, 80])
    if copied:
        (tmp_path / "store").mkdir()
    killed(source, tmp_path / "store", "deleted")
    report = el.import_dataset(source, tmp_path / "store")
    assert (report.episodes, report.present) == (0, 2)
    assert len(el.open(tmp_path / "store")) == 2
    assert sorted(os.listdir(tmp_path)) == ["store", "walk.hdf5"]


@pytest.mark.further
def test_episodes_that_came_in_by_other_ways_are_not_added_again(tmp_path: Path) -> None:
    """An import finished while this one was interrupted, with the same arguments or with others."""
    source = d4rl_file(tmp_path / "walk.hdf5", [3, 80, 90])
    killed(source, tmp_path / "store", "sealed")
    assert el.import_dataset(source, tmp_path / "store", last_observation="drop").episodes == 3
    with pytest.raises(el.errors.DatasetError, match=r"episodes with other values than in .* \(3\)"):
        el.import_dataset(source, tmp_path / "store")
    report = el.import_dataset(source, tmp_path / "store", on_error="skip", on_changed="keep")
    assert (report.episodes, report.steps, report.present, report.kept) == (0, 0, 0, 3)
    killed(source, tmp_path / "other", "sealed")
    words: Any = {"cast": "same_kind", "observation_space": spaces.Box(-np.inf, np.inf, (2,), np.float64)}
    (staging,) = tmp_path.glob(".other.importing*")
    staging.rename(tmp_path / "aside")
    el.import_dataset(source, tmp_path / "other", **words)
    (tmp_path / "aside").rename(staging)
    report = el.import_dataset(source, tmp_path / "other", on_error="skip")
    assert (report.episodes, report.steps, report.present) == (0, 0, 3)
    assert len(el.open(tmp_path / "store")) == len(el.open(tmp_path / "other")) == 3


def killed(source: Path, target: Path, place: str) -> None:
    """Import in a process that kills itself at a place."""
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(source), str(target), place], timeout=PATIENCE, capture_output=True
    )
    assert process.returncode == -signal.SIGKILL, process.stderr.decode()


def test_sources_and_targets_that_are_in_each_others_way_are_refused(tmp_path: Path) -> None:
    """Stores as sources; a target that is, holds or lies in the source, or is not free."""
    source = d4rl_file(tmp_path / "data" / "walk.hdf5", [3, 4])
    store = el.create(tmp_path / "store", observation_space=SPACE, action_space=ACTIONS)
    for own in (store, store.path, store.filter("length > 1")):
        with pytest.raises(el.errors.InvalidArgumentError, match=r"is a store already.*el\.merge"):
            el.import_dataset(own, tmp_path / "new")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    shutil.copy(source, store.path / "walk.hdf5")
    for path, into in (
        (source, source),
        (source, tmp_path / "data"),
        (source, tmp_path / "link"),
        (tmp_path / "data", tmp_path / "data" / "store"),
        (store.path / "walk.hdf5", store),
    ):
        with pytest.raises(el.errors.InvalidArgumentError, match="Choose a store beside the source"):
            el.import_dataset(path, into, format="d4rl")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("x")
    with pytest.raises(el.errors.StoreExistsError, match="is not empty"):
        el.import_dataset(source, tmp_path / "full")
    with pytest.raises(el.errors.StoreAccessError, match="Not a directory"):
        el.import_dataset(source, tmp_path / "full" / "notes")
    assert sorted(os.listdir(tmp_path)) == ["data", "full", "link", "store"]
    assert sorted(os.listdir(tmp_path / "data")) == ["walk.hdf5"]


@pytest.mark.further
def test_all_sources_suggest_the_same_spaces(tmp_path: Path) -> None:
    """Whole numbers 1 and 3 as actions, and -2 among them, of a table, RLlib's rows and D4RL."""
    for actions, expected in (([1, 3, 1], spaces.Discrete(4)), ([1, -2, 1], spaces.Discrete(4, start=-2))):
        columns = {
            "eps_id": ["a"] * 3,
            "obs": [[0.5, float(t)] for t in range(3)],
            "new_obs": [[0.5, t + 1.0] for t in range(3)],
            "actions": actions,
            "rewards": [1.0] * 3,
        }
        pl.DataFrame(columns).write_parquet(tmp_path / "rows.parquet")
        with h5py.File(d4rl_file(tmp_path / "rows.hdf5", [3]), "a") as file:
            del file["actions"]
            file["actions"] = np.array(actions)
        words: Any = {"observation": "obs", "action": "actions", "reward": "rewards", "episode": "eps_id"}
        for name, given in (
            ("rows.parquet", {"format": "rllib"}),
            ("rows.parquet", {"format": "table", "mapping": el.ColumnMapping(**words)}),
            ("rows.hdf5", {}),
        ):
            report = el.import_dataset(tmp_path / name, tmp_path / "store", dry_run=True, **given)
            box = spaces.Box(-np.inf, np.inf, (2,), np.float64)
            assert (report.observation_space, report.action_space) == (box, expected)


def test_an_object_store_is_a_target(tmp_path: Path) -> None:
    """A new store and one that is there already; what is staged does not stay."""
    source = d4rl_file(tmp_path / "walk.hdf5", [3, 70])
    report = el.import_dataset(source, "memory://imported")
    assert (report.episodes, report.present) == (2, 0)
    report = el.import_dataset(d4rl_file(tmp_path / "walk.hdf5", [3, 70, 5]), "memory://imported")
    assert (report.episodes, report.present) == (1, 2)
    assert [each.length for each in el.open("memory://imported")] == [3, 70, 5]
    assert os.listdir(tmp_path) == ["walk.hdf5"]


def _arrays(buffer: EpisodeBuffer) -> dict[str, Any]:
    names = ("observations", "actions", "rewards", "terminations", "truncations")
    return {name: getattr(buffer, name) for name in names}


def test_formats_are_listed() -> None:
    """Each with what it reads and writes."""
    listed = el.formats()
    assert set(listed["name"]) >= set(formats.source_formats())
    (row,) = listed.filter(name="minari").to_dicts()
    assert row["reads"] and row["writes"] and row["extra"]


def test_episodes_of_minari_in_memory(tmp_path: Path) -> None:
    """Buffers of a collector, as lists or arrays, and episodes of a dataset are what the dataset is."""
    folder, recorded = dataset(tmp_path / "walk", "hdf5", [3, 1, 5])
    spaces_of = {"observation_space": SPACE, "action_space": ACTIONS}
    el.import_dataset(folder, tmp_path / "expected")
    expected = el.open(tmp_path / "expected")
    with pytest.raises(el.errors.InvalidArgumentError, match="dataset of Minari, which states its spaces"):
        el.import_dataset(folder, tmp_path / "no", **spaces_of)
    lists = [
        replace(
            each,
            observations={name: list(values) for name, values in each.observations.items()},
            actions=list(each.actions),
            rewards=each.rewards.tolist(),
            terminations=each.terminations.tolist(),
            truncations=each.truncations.tolist(),
        )
        for each in recorded
    ]
    data = list(minari.MinariDataset(folder / "data").iterate_episodes())
    for name, source in (("buffers", recorded), ("lists", lists), ("data", data)):
        report = el.import_dataset(source, tmp_path / name, **spaces_of)
        assert (report.format, report.episodes, dict(report.lost)) == ("minari", 3, {})
        store = el.open(tmp_path / name)
        for ours, theirs in zip(store, expected, strict=True):
            for part in ("x", "n"):
                assert np.array_equal(ours.observations[part], theirs.observations[part])
            assert np.array_equal(ours.actions, theirs.actions)
            assert np.array_equal(ours.rewards, theirs.rewards)
            assert str(ours.infos) == str(theirs.infos) and ours.end_reason == theirs.end_reason
            if name != "data":
                assert (ours.seed, ours.options) == (theirs.seed, theirs.options)
    report = el.import_dataset(recorded[0], tmp_path / "one")
    box, whole = (report.observation_space[name] for name in ("x", "n"))  # type: ignore[index]
    assert box == spaces.Box(-np.inf, np.inf, (2,), np.float32) and isinstance(whole, spaces.Discrete)
    with pytest.raises(el.errors.DatasetError, match="Item 1 of the list is a str"):
        el.import_dataset([recorded[0], "x"], tmp_path / "no")


def test_installed_datasets_of_minari_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name stands for the folder, a file of that name comes first, and no name leads out of the folder."""
    dataset(tmp_path / "installed" / "test" / "walk-v0", "hdf5", [3])
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "installed"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    report = el.import_dataset("test/walk-v0", tmp_path / "store")
    assert (report.source, report.format, report.episodes) == ("test/walk-v0", "minari", 1)
    assert el.import_dataset(tmp_path / "installed/test/walk-v0", tmp_path / "store").present == 1
    for name in ("test/walk-v1", "test/../test/walk-v0", "test"):
        with pytest.raises(el.errors.DatasetError, match="no installed dataset of Minari has this"):
            el.import_dataset(name, tmp_path / "no")
    (tmp_path / "here" / "test" / "walk-v0").mkdir(parents=True)
    with pytest.raises(el.errors.DatasetError, match="empty folder"):
        el.import_dataset("test/walk-v0", tmp_path / "no")


def test_a_mapping_goes_to_the_format_of_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recognition comes first: a format that takes no mapping refuses it, and one that takes it gets it.

    A mapping names what a source lacks for a format whose container it has; a table is none of them.
    """
    folder, _ = dataset(tmp_path / "walk", "hdf5", [3])
    mapping = el.ColumnMapping(observation="a", action="b", episode="c")
    with pytest.raises(el.errors.InvalidArgumentError, match=r"'minari', .* that takes it .*: tree"):
        el.import_dataset(folder, tmp_path / "store", mapping=mapping)
    taken: list[Any] = []

    def opened(source: Any, options: formats.ImportOptions) -> Any:
        taken.append(options.mapping)
        raise el.errors.DatasetError("opened")

    def found(match: formats.Match) -> formats.Format:
        return formats.Format("theirs", None, "", lambda _: match, opened, ("mapping",))

    own = dict(formats.source_formats())
    for match, source in (
        (formats.Match("whole"), pl.DataFrame({"a": [1]})),
        (formats.Match("lacks names", 3, mappable=True), tmp_path / "walk"),
    ):
        known = {"table": own["table"], "theirs": found(match)}
        monkeypatch.setattr(formats, "source_formats", lambda known=known: known)
        with pytest.raises(el.errors.DatasetError, match="opened"):
            el.import_dataset(source, tmp_path / "store", mapping=mapping)
    assert taken == [mapping, mapping]
    with pytest.raises(el.errors.DatasetError, match="no known format"):
        el.import_dataset(tmp_path / "walk", tmp_path / "store")


def test_an_error_of_a_codec_is_not_one_of_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only files of the target that cannot be written are a `StoreAccessError`."""
    store = el.create(tmp_path / "store", observation_space=SPACE, action_space=ACTIONS)
    with store.writer() as writer:
        writer.write_episode(**_arrays(next(buffers([3]))))
    store.refresh()
    chosen = exporting.target_formats()["parquet"]

    def failing(error: OSError) -> Any:
        def write(export: Any, target: Path) -> None:
            if error.filename:
                error.filename = str(target / "data")
            raise error

        return write

    for error, kind, words in (
        (
            OSError("codec: no such frame"),
            el.errors.DatasetError,
            r"export to parquet failed: OSError: codec: no such",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), el.errors.StoreAccessError, "disk is full"),
        (
            PermissionError(errno.EACCES, "Denied", "x"),
            el.errors.StoreAccessError,
            "Could not write at .*out: Denied",
        ),
    ):
        monkeypatch.setattr(chosen, "write", failing(error), raising=False)
        with pytest.raises(kind, match=words):
            store.export(tmp_path / "out", format="parquet")
    assert os.listdir(tmp_path) == ["store"]
