"""The contract of `episodelake.testing` for every registered format."""

from __future__ import annotations

import importlib
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import h5py
import numpy as np
import polars as pl
import pytest
from hypothesis import settings

import episodelake as el
import peer_readers
import robot_files
from episodelake.readers.exporting.export import target_formats
from episodelake.store.common.exchange import entries, find_format
from episodelake.testing import FormatContract
from episodelake.testing.format_base import FormatSettings, copied
from episodelake.testing.format_cases import Case, all_cases
from episodelake.testing.format_compare import LOSSES, Difference, plain
from episodelake.testing.format_imports import ImportRules
from episodelake.testing.format_sources import SourceRules
from episodelake.writers.importing.formats import source_formats
from test_exchange_d4rl import d4rl_file
from test_exchange_dm_env import drq
from test_exchange_rerun import columns_of
from test_exchange_rllib import rows as rllib_rows
from test_exchange_rllib import written
from webdataset_samples import sample_differences, transitions

#: `make test` takes the cases before those of a space each, and one in so many of these.
_FIRST = next(number for number, case in enumerate(all_cases()) if case.name.startswith("observation "))
_EVERY = 6


#: Where files of other libraries are, written by these or as these do.
DATA = Path(__file__).parents[1] / "data" / "exchange"
#: What a format for training never loses.
ARRAYS = ("observations", "actions", "rewards")
IS_FULL = settings().max_examples > 20
#: Rules that the import and the export keep for every format: `make test` has them for some formats.
DRIVER_RULES = (
    "test_an_import_adds_each_episode_once",
    "test_an_interrupted_import_goes_on",
    "test_a_dry_run_tells_what_an_import_does",
    "test_a_store_of_another_kind_is_refused",
    "test_options_without_a_use_are_refused",
    "test_an_export_is_whole_or_not_there",
    "test_what_has_no_transition_is_not_written",
    "test_an_export_replaces_exports_alone",
    "test_what_appears_during_an_export_stays",
    "test_an_export_stays_outside_stores",
)
#: Rules that take seconds where reading a source does; the others show in the ordinary run that they hold.
ROUND_TRIP = "test_episodes_come_back_or_a_loss_names_what_does_not"
COSTLY_RULES = (
    "test_damage_is_an_error_with_its_place",
    "test_nothing_in_a_source_runs",
    "test_names_are_no_patterns",
    "test_memory_is_bounded",
)


class Sources(FormatSettings):
    """The sources that this run has time for.

    Attributes:
        golden: files and folders of `DATA` in this format.
    """

    golden: ClassVar[tuple[str, ...]] = ()

    def others(self, folder: Path) -> Iterator[Path]:
        """Yield sources that are written as another library does."""
        yield from ()

    def sources(self, folder: Path) -> Iterator[Path]:
        """The sample, and sources of other libraries: one of each in `make test`."""
        for name, found in (
            ("own", super().sources(folder / "own")),
            ("others", self.others(folder / "others")),
        ):
            (folder / name).mkdir(parents=True)
            yield from found if IS_FULL else islice(found, 1)
        for name in self.golden if IS_FULL else self.golden[:1]:
            origin = next((DATA / name).rglob("features.json")).parent if name == "rlds" else DATA / name
            yield copied(origin, folder / "golden")


class Contract(Sources, FormatContract):
    """The contract with the cases that this run has time for.

    Attributes:
        peer: reads an export as the library of the format does.
        needs: the package that the reader needs; `make test-peers` has those that the test extra lacks.
    """

    peer: ClassVar[Any] = None
    needs: ClassVar[str] = "numpy"

    def read_export(self, target: Path, store: el.EpisodeStore, options: Mapping[str, Any]) -> Any:
        """Its episodes as the peer gives them."""
        found = self.peer is not None and find_spec(self.needs) is not None
        return self.peer(target, store) if found else None

    def cases(self) -> Sequence[Case]:
        """The first cases, and some of the spaces; all in a full run."""
        cases = all_cases()
        if IS_FULL:
            return cases
        start = _FIRST + zlib.crc32(self.format.encode()) % _EVERY
        # Extreme values of many spaces in one store are much work, and samples of them as much again.
        return [
            case for case in (*cases[:_FIRST], *cases[start::_EVERY]) if not case.name.startswith("a Dict")
        ]


class ObjectContract(Contract):
    """The contract of objects in memory of `view.to`, which hold transitions, no facts of episodes."""

    drops = (
        "spaces",
        "card",
        "environment",
        "run",
        "seed",
        "options",
        "metadata",
        "annotations",
        "artifacts",
    )

    def write_source(self, view: Any, target: Path, options: Any) -> tuple[Any, Mapping[str, int]]:
        """The object, and the losses of its warning."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            source = getattr(view.to, self.format)()
        text = "; ".join(str(each.message).partition(" does not hold: ")[2] for each in caught)
        return source, {each.strip(): 1 for each in text.split(";") if each}

    def allows(self, difference: Difference) -> bool:
        """Rewards and actions may be rounded to float32."""
        ours, theirs = difference.ours, difference.theirs
        numbers = all(isinstance(each, np.ndarray) and each.dtype.kind == "f" for each in (ours, theirs))
        rounded = numbers and ours.shape == theirs.shape and np.allclose(ours, theirs, 1e-6, equal_nan=True)
        return super().allows(difference) or (difference.part in ("rewards", "actions") and rounded)


class PeerContract(Sources, ImportRules, SourceRules):
    """The rules of formats that are read alone."""


@pytest.mark.further
class TestMinari(Contract):
    """Folders of Minari's own storage."""

    format = "minari"
    cannot_hold = LOSSES.keys() - {"spaces", *ARRAYS, "last observation"}
    peer = staticmethod(peer_readers.minari)
    exports = ({}, {"data_format": "arrow"}, {"data_format": "parquet"})


@pytest.mark.further
class TestD4RL(Contract):
    """HDF5 files with flat rows."""

    format = "d4rl"
    cannot_hold = LOSSES.keys() - {*ARRAYS, "last observation"}
    peer = staticmethod(peer_readers.d4rl)
    suffix = ".hdf5"

    def others(self, folder: Path) -> Iterator[Path]:
        """Without next observations, as most files of D4RL are."""
        d4rl_file(folder / "walk.hdf5", "next_observations")
        yield folder / "walk.hdf5"


@pytest.mark.further
class TestD3rlpy(Contract):
    """HDF5 files of `ReplayBuffer.dump`."""

    format = "d3rlpy"
    cannot_hold = LOSSES.keys() - {*ARRAYS}
    peer, needs = staticmethod(peer_readers.d3rlpy), "d3rlpy"
    golden = ("d3rlpy_continuous.h5", "d3rlpy_v1.h5", "d3rlpy_discrete.h5", "d3rlpy_tuple.h5")
    suffix = ".h5"


@pytest.mark.further
class TestRobomimic(Contract):
    """HDF5 files with a group for each demonstration."""

    format = "robomimic"
    cannot_hold = LOSSES.keys() - {*ARRAYS}
    peer, needs = staticmethod(peer_readers.robomimic), "robomimic"
    golden = ("robomimic.hdf5",)
    suffix = ".hdf5"


class TestLeRobot(Contract):
    """Folders of LeRobot v3.0."""

    format = "lerobot"
    further_rules: ClassVar = (ROUND_TRIP, *COSTLY_RULES)
    peer = staticmethod(peer_readers.lerobot)
    golden = ("lerobot-v3", "lerobot-v21")
    exports = ({"frames": "image"},)
    wrong_options = (({"frames": "gif"}, "expected one of 'copy', 'video', 'image'"),)


class TestRLDS(Contract):
    """Folders of TFDS."""

    format = "rlds"
    further_rules: ClassVar = (ROUND_TRIP, *COSTLY_RULES)
    cannot_hold = LOSSES.keys() - {"spaces", *ARRAYS}
    golden = ("rlds",)
    exports = ({}, {"images": "raw", "shard_bytes": 9000})
    wrong_options = (
        ({"images": "jpeg"}, "images='jpeg' is unknown"),
        ({"shard_bytes": 0}, "shard_bytes=0"),
        ({"version": 1}, "version=1"),
        ({"name": "1walk"}, "name='1walk'"),
    )


@pytest.mark.further
class TestRLlibRows(Contract):
    """Parquet with RLlib's columns."""

    format = "rllib"
    cannot_hold = LOSSES.keys() - {*ARRAYS}
    golden = ("rllib/rows", "rllib/json", "rllib/batches")
    peer = staticmethod(peer_readers.rllib_rows)
    exports = ({"kind": "rows"},)
    stable_keys = False

    def others(self, folder: Path) -> Iterator[Path]:
        """Rows without next observations, in an order of their own."""
        columns = rllib_rows([4, 1, 3], new_obs=None)
        yield written(folder / "rows.parquet", columns, [5, 0, 2, 1, 3, 4, 7, 6])


@pytest.mark.further
class TestRLlibEpisodes(Contract):
    """Parquet with states of RLlib's episodes."""

    format = "rllib"
    cannot_hold = LOSSES.keys() - {*ARRAYS}
    golden = ("rllib/episodes", "rllib/chunks")
    peer = staticmethod(peer_readers.rllib_episodes)
    exports = ({"kind": "episodes"}, {"kind": "episodes", "cut": "truncated"})
    stable_keys = False


class TestParquet(Contract):
    """Tables in one file."""

    format = "parquet"
    cannot_hold = LOSSES.keys() - {"spaces", *ARRAYS}
    peer = staticmethod(peer_readers.parquet)
    suffix = ".parquet"
    wrong_options = (({"layout": "rows"}, "layout='rows' is unknown"),)
    exports = ({}, {"layout": "steps"})

    def others(self, folder: Path) -> Iterator[Path]:
        """Rows without next observations."""
        rows = {"episode": [0, 0, 1, 2, 2], "action": [0, 1, 0, 1, 1], "reward": [1.0, 0.0, 2.0, 4.0, 3.0]}
        pl.DataFrame({**rows, "observation": [0.5, 1.5, 2.5, 3.5, 4.5]}).write_parquet(
            folder / "rows.parquet"
        )
        yield folder / "rows.parquet"


@pytest.mark.further
class TestCSV(Contract):
    """Tables as text."""

    format = "csv"
    suffix = ".csv"
    arguments: ClassVar[dict[str, Any]] = {"cast": "same_kind"}
    refusals = (el.errors.SpaceMismatchError,)

    def cases(self) -> Sequence[Case]:
        """Of the cameras the smallest, since each pixel is a column."""
        return [case.parts()[0] if case.name.startswith("video") else case for case in super().cases()]


@pytest.mark.further
class TestHuggingFace(Contract):
    """Folders of Parquet with a dataset card."""

    format = "huggingface"
    cannot_hold = LOSSES.keys() - {"spaces", *ARRAYS}
    wrong_options = (
        ({"images": "jpeg"}, "images='jpeg' is unknown; expected 'png' or 'array'"),
        ({"shard_mb": 0}, "shard_mb=0: expected a positive number"),
        ({"split": "splot"}, "no metadata of this key"),
        ({"layout": "rows"}, "layout='rows' is unknown"),
    )
    exports = ({}, {"layout": "steps", "images": "array"}, {"layout": "steps"}, {"images": "array"})


@pytest.mark.further
class TestWebDataset(Contract):
    """Tar files with a sample for each episode or transition."""

    format = "webdataset"
    cannot_hold = LOSSES.keys() - {*ARRAYS}
    wrong_options = (
        ({"layout": "rows"}, "layout='rows' is unknown"),
        ({"images": "jpeg"}, "images='jpeg' is unknown"),
        ({"shard_bytes": True}, "shard_bytes=True"),
        ({"shard_episodes": 0}, "shard_episodes=0"),
    )
    exports = ({}, {"layout": "transitions"}, {"layout": "transitions", "images": "raw"})

    def read_export(self, target: Path, store: el.EpisodeStore, options: Mapping[str, Any]) -> Any:
        """Samples of transitions; those of episodes are compared by the names of their members."""
        return transitions(target, store) if options else None

    def check_export(self, store: Any, target: Path, options: Any, lost: Any) -> Iterator[str]:
        """Samples of episodes have every value."""
        yield from super().check_export(store, target, options, lost)
        for episode, path, ours, theirs in sample_differences(store, target) if not options else ():
            yield f"{path} of {episode}: {ours!r:.300} is {theirs!r:.300}"


@pytest.mark.skipif(find_spec("rerun") is None, reason="needs rerun-sdk")
@pytest.mark.further
class TestRerun(Contract):
    """Recordings of Rerun."""

    format = "rerun"
    needs = "rerun"
    wrong_options = (
        ({"images": "gif"}, "images='gif' is unknown; expected one of 'png', 'jpeg', 'raw'"),
        ({"fps": 0}, "fps=0: expected a positive number"),
        ({"fps": 9, "time": "reward"}, "Leave out one of them"),
        ({"time": "rewards"}, "is no column of steps with seconds or times. Did you mean reward?"),
    )

    def check_export(self, store: Any, target: Path, options: Any, lost: Any) -> Iterator[str]:
        """Rewards are at their steps, and metadata have their own type whatever stores went out before."""
        for file, episode in zip(sorted(target.glob("*.rrd")), store, strict=True):
            _, entities = columns_of(file)
            found = [row for row in entities["/reward"]["Scalars:scalars"] if row]
            if plain(found) != [plain(np.atleast_1d(each)) for each in episode.rewards]:
                yield f"rewards of {episode.id}: {found}"
            facts = entities["/__properties/episode"]
            for key, value in episode.metadata.items():
                held = isinstance(value, bool | float | str) or (
                    isinstance(value, int) and abs(value) < 2**63
                )
                if held and key.isidentifier() and facts[f"metadata.{key}"] != [[value]]:
                    yield f"metadata {key} of {episode.id}: {facts[f'metadata.{key}']}"


@pytest.mark.further
class TestTianshou(PeerContract):
    """Files of `save_hdf5`; buffers in memory are tested beside their library."""

    format = "tianshou"
    golden = ("tianshou.hdf5",)


@pytest.mark.further
class TestTorchRL(PeerContract):
    """Folders of TensorDicts."""

    format = "torchrl"
    golden = ("torchrl-dumps",)


@pytest.mark.further
class TestImitation(PeerContract):
    """Folders of trajectories."""

    format = "imitation"
    golden = ("imitation", "imitation-fragments")


@pytest.mark.further
class TestOGBench(PeerContract):
    """Files of NumPy without rewards."""

    format = "ogbench"
    golden = ("ogbench-navigate.npz", "ogbench-visual.npz")


@pytest.mark.further
class TestDopamine(PeerContract):
    """Checkpoints of a ring."""

    format = "dopamine"
    golden = ("dopamine-ring", "dopamine-logged")


@pytest.mark.further
class TestDmEnv(PeerContract):
    """Folders of time steps."""

    format = "dm_env"

    def others(self, folder: Path) -> Iterator[Path]:
        """Episodes of DrQ-v2."""
        drq(folder / "buffer", [0.0, 1.0, 1.0])
        yield folder / "buffer"


@pytest.mark.further
class TestAloha(PeerContract):
    """HDF5 files of ALOHA, an episode each."""

    format = "aloha"

    def others(self, folder: Path) -> Iterator[Path]:
        """Demonstrations with images."""
        robot_files.aloha(folder / "aloha")
        yield folder / "aloha"


@pytest.mark.further
class TestManiSkill(PeerContract):
    """HDF5 files with a JSON file each."""

    format = "maniskill"

    def others(self, folder: Path) -> Iterator[Path]:
        """Demonstrations in a folder."""
        (folder / "PickCube").mkdir()
        robot_files.maniskill(folder / "PickCube" / "demo.h5")
        yield folder / "PickCube"


class TestDiffusionPolicy(PeerContract):
    """Zarr stores."""

    further_rules: ClassVar = (*DRIVER_RULES, *COSTLY_RULES)

    format = "diffusion_policy"

    def others(self, folder: Path) -> Iterator[Path]:
        """A folder and a zip file."""
        for version, name in ((2, "replay.zarr"), (3, "replay3.zarr"), (2, "replay.zarr.zip")):
            robot_files.replay_buffer(folder / name, version)
            yield folder / name


@pytest.mark.further
class TestBridge(PeerContract):
    """Folders of images and pickles, which need trust; see `test_exchange_trees.py`."""

    format = "bridge"


@pytest.mark.further
class TestSB3(PeerContract):
    """Pickles, which need trust; see `test_exchange_buffers.py`."""

    format = "sb3"


class TestTree(PeerContract):
    """Arrays of any names, by a mapping."""

    further_rules = DRIVER_RULES

    format = "tree"
    arguments: ClassVar[dict[str, Any]] = {
        "mapping": {"observation": "pose", "action": "cmd", "episode": "ends"},
        "format": "tree",
    }

    def others(self, folder: Path) -> Iterator[Path]:
        """Rows of two episodes."""
        with h5py.File(folder / "rows.h5", "w") as file:
            file["pose"] = robot_files.numbers(0, 9, 3)
            file["cmd"] = robot_files.numbers(1, 9, 2)
            file["ends"] = np.array([5, 9])
        yield folder / "rows.h5"


class TableContract(Contract):
    """Tables of transitions without metadata."""

    format = "table"
    drops = ("spaces", "card")

    def cases(self) -> Sequence[Case]:
        """Those that need no dtypes beside the values."""
        return all_cases()[:1]

    def write_source(self, view: Any, target: Path, options: Any) -> tuple[Any, Mapping[str, int]]:
        """The rows of an export to Parquet."""
        with TemporaryDirectory() as folder:
            lost = view.export(Path(folder, "rows.parquet"), format="parquet").lost
            self.put(pl.read_parquet(Path(folder, "rows.parquet")), target)
        return target, lost

    def put(self, rows: pl.DataFrame, target: Path) -> None:
        """Write the rows into a folder of Parquet files."""
        target.mkdir()
        rows.write_parquet(target / "part.parquet")


@pytest.mark.further
class TestFolder(TableContract):
    """Folders of Parquet files."""


class TestDelta(TableContract):
    """Delta tables."""

    further_rules = DRIVER_RULES

    # They have no such name.
    odd_names = ("p%20q",)

    def put(self, rows: pl.DataFrame, target: Path) -> None:
        """Write the rows as a Delta table."""
        rows.write_delta(target)

    def test_tables_of_wider_types_are_the_same(self, tmp_path: Path) -> None:
        """A log has the sizes of its files, which cannot be rewritten; folders have the rule."""


@pytest.mark.further
class TestTable(PeerContract):
    """Tables of other kinds than those of exports."""

    format = "table"

    def others(self, folder: Path) -> Iterator[Path]:
        """The same rows as JSON Lines, Arrow, and arrays of NumPy."""
        rows = pl.DataFrame(
            {
                "episode": [0, 0, 0, 1],
                "observation": [1.0, 2.0, 3.0, 4.0],
                "next_observation": [2.0, 3.0, 4.0, 5.0],
                "action": [0, 1, 0, 1],
                "reward": [1.0, 0.0, 2.0, 4.0],
                "terminated": [False, False, True, True],
                "truncated": [False] * 4,
            }
        )
        rows.write_ndjson(folder / "rows.jsonl")
        yield folder / "rows.jsonl"
        rows.write_ipc(folder / "rows.arrow", compression="uncompressed")
        yield folder / "rows.arrow"
        np.savez(folder / "rows.npz", **{name: rows[name].to_numpy() for name in rows.columns})
        yield folder / "rows.npz"


CHECKED = [each for name, each in globals().items() if name[:4] == "Test" and hasattr(each, "format")]
#: Those of rollouts hold no other episodes; `test_rollout_formats.py` tests them.
OF_ROLLOUTS = {
    name
    for role in ("sources", "targets")
    for name, entry in entries(role).items()
    if entry.value.startswith("episodelake.rollouts.")
}
REGISTERED = {*source_formats(), *target_formats()} - OF_ROLLOUTS
#: Formats that have no class above, such as those of other packages, get the contract as it is.
for _name in REGISTERED - {each.format for each in CHECKED}:
    globals()[f"Test_{_name}"] = type(f"Test_{_name}", (Contract,), {"format": _name})


@pytest.mark.parametrize("name", sorted(REGISTERED))
def test_every_registered_format_has_sources(tmp_path: Path, name: str) -> None:
    """The rules need a source of each format that can be imported, except of those that need trust."""
    classes = [each for key, each in globals().items() if key[:4] == "Test"]
    found = [each() for each in classes if getattr(each, "format", None) == name]
    sources = [(each, source) for each in found for source in each.sources(tmp_path / type(each).__name__)]
    assert found and (sources or name in ("bridge", "sb3", "webdataset", "rerun"))
    read = {each.imported(source, tmp_path / "x", dry_run=True).format for each, source in sources}
    assert read <= {getattr(find_format("sources", name), "name", name)}


def _is_further(contract: type[Contract]) -> bool:
    """Whether only `make test-cases` runs all cases of a format."""
    return hasattr(contract, "pytestmark") or ROUND_TRIP in getattr(contract, "further_rules", ())


@pytest.mark.parametrize(
    "contract",
    [each for each in CHECKED if issubclass(each, Contract) and each is not TestFolder and _is_further(each)],
    ids=lambda each: each.__name__,
)
def test_a_few_cases_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, contract: type[Contract]
) -> None:
    """Of formats whose cases `make test-cases` runs: one of the first, one of a space, and a camera."""
    if contract is TestRerun and find_spec("rerun") is None:
        pytest.skip("needs rerun")
    number = CHECKED.index(contract)
    first, single = all_cases()[number % 13], all_cases()[_FIRST + number]
    cameras = all_cases()[_FIRST - 1].parts()
    chosen = [first, single, cameras[number % len(cameras)]]
    monkeypatch.setattr(contract, "cases", lambda self: chosen)
    contract().test_episodes_come_back_or_a_loss_names_what_does_not(tmp_path)


@pytest.mark.peers
@pytest.mark.parametrize("contract", [TestD3rlpy, TestRobomimic, TestRerun], ids=lambda each: each.__name__)
def test_its_own_library_reads_every_export(tmp_path: Path, contract: type[Contract]) -> None:
    """The library is in the environment of `make test-peers`."""
    importlib.import_module(contract.needs)
    contract().test_episodes_come_back_or_a_loss_names_what_does_not(tmp_path)


@pytest.mark.further
@pytest.mark.parametrize(
    "contract",
    # The others run with all cases themselves.
    [each for each in CHECKED if issubclass(each, Contract) and not hasattr(each, "pytestmark")],
    ids=lambda each: each.__name__,
)
def test_every_case_comes_back(tmp_path: Path, contract: type[Contract]) -> None:
    """Of every space by itself, for each kind of export."""
    contract().test_episodes_come_back_or_a_loss_names_what_does_not(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("torchrl", marks=pytest.mark.further),
        *(pytest.param(each, marks=pytest.mark.peers) for each in ("tianshou", "sb3", "imitation")),
    ],
)
def test_objects_in_memory_come_back(tmp_path: Path, name: str) -> None:
    """Transitions of every store, or a loss names what does not, or the conversion refuses the store."""
    contract = type(name, (ObjectContract,), {"format": name})()
    contract.test_episodes_come_back_or_a_loss_names_what_does_not(tmp_path)
