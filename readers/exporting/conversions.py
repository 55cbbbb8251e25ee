"""`view.to`: the door to objects of other libraries in memory, each imported with its first use."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import polars as pl
import pyarrow as pa

from ...store.common.arguments import flag, one_of
from ...store.common.losses import Losses
from ...store.common.optional_packages import require
from ..frames import episodes_frame, runs_frame, steps_frame, transitions_only
from ..loading.feeding import FeedingView
from .holds import Holds
from .in_memory import BUFFERS, FlatTransitions, flat_transitions
from .step_arrays import refuse_agents
from .target import Export

TableName = Literal["transitions", "steps", "episodes", "runs"]
#: Rows that become features at a time: the files of their images fit into one Arrow array.
_FEATURE_ROWS = 1 << 12
_TABLES = ("transitions", "steps", "episodes", "runs")


class Conversions:
    """The episodes of a view as objects of other libraries, in main memory.

    Each method reads all episodes of the view and returns an object whose arrays belong to the caller: they
    are copies, and changing them does not change the store. At its peak a conversion needs about twice the
    memory of its result.

    What the library cannot hold is a `RuntimeWarning` that lists it with counts;
    `warnings.simplefilter("error", RuntimeWarning)` makes it an error. Replay buffers need a flag where an
    episode ends: the last transition of one that was cut or interrupted counts as truncated there, and a last
    transition whose next observation is missing is left out. Both are among the losses.

    All methods raise `MissingPackageError` if the library is not installed, `DatasetError` if it cannot hold
    the episodes at all (several agents, vector rewards, spaces that it does not know), `CorruptStoreError`
    for a damaged file, and `InvalidArgumentError` for arguments that make no sense. An empty view is an
    `InvalidArgumentError` for those that make a buffer.
    """

    def __init__(self, view: FeedingView) -> None:
        self._view = view

    def pandas(self, table: TableName = "transitions", *, arrow: bool = False) -> Any:
        """Return a table as a `pandas.DataFrame`; nothing is lost.

        Args:
            table: "transitions" (T rows per episode), "steps" (T+1 rows), "episodes" or "runs", with the
                columns of the attributes of this name.
            arrow: columns with Arrow's types, which keep integers and flags with NULLs as they are. Otherwise
                columns have NumPy's types: an integer column with a NULL is float64, exact to 2**53, and a
                flag with a NULL is an object.

        Returns:
            One row per transition, step, episode or run, in the order of the view, with a `RangeIndex`.
            Values of arrays are one-dimensional NumPy arrays in C order, or have Arrow's list types with
            `arrow=True`.
        """
        arrow = flag("arrow", arrow)
        require("pandas", "view.to.pandas()")
        frame = self._frame(table).collect()
        return frame.to_pandas(use_pyarrow_extension_array=arrow)

    def torchrl(self, *, buffer: bool = False) -> Any:
        """Return the transitions as a `TensorDict` in the layout of TorchRL's collectors (TED).

        Keys are "observation", "action", ("next", "observation"), ("next", "reward"), ("next", "done"),
        ("next", "terminated"), ("next", "truncated"), the flags "done", "terminated" and "truncated" before
        each transition, which are False, and ("collector", "traj_ids"), the episode's place in the view.
        Parts of Dict and Tuple spaces are nested TensorDicts. Actions of Discrete spaces are numbers, not
        one-hot.

        Args:
            buffer: return a `TensorDictReplayBuffer` that holds them, in main memory, instead.

        Returns:
            Batch size (N,), on the CPU. Observations and actions have the dtypes of their spaces; rewards are
            float32, as TorchRL's environments give them, of shape (N, 1) or (N, k), and flags bool of shape
            (N, 1).
        """
        buffer = flag("buffer", buffer)
        purpose = "view.to.torchrl()"
        require("tensordict", purpose)
        data = require("torchrl.data", purpose, "torchrl") if buffer else None
        from .in_memory import ted_tensordict, torchrl_buffer

        target = "A TensorDict of transitions"
        flat, export = self._flat(target)
        found = torchrl_buffer(data, flat) if buffer else ted_tensordict(flat)
        _warn(target, export.losses)
        return found

    def tianshou(self) -> Any:
        """Return a full `tianshou.data.ReplayBuffer` of N transitions.

        Observations and actions have the dtypes of their spaces, Dicts are of the class `Batch`, rewards are
        float64 of shape (N,) or (N, k). For a buffer with room for more, or of another class, call
        `other.update(view.to.tianshou())`.
        """
        data = require("tianshou.data", "view.to.tianshou()", "tianshou")
        from .in_memory import tianshou_buffer

        target = "Tianshou's ReplayBuffer"
        flat, export = self._flat(target)
        found = tianshou_buffer(data, flat, export.context)
        _warn(target, export.losses)
        return found

    def sb3(self, *, buffer_size: int | None = None, device: str = "auto") -> Any:
        """Return a `ReplayBuffer` of Stable-Baselines3, or a `DictReplayBuffer` for observations of a Dict.

        It has one environment, and handles timeouts: `dones` are either flag, and `timeouts` those of
        transitions that are truncated and not terminated. Actions of a Box are scaled from its bounds to -1
        to 1, as the off-policy algorithms store and expect them. So `model.replay_buffer = view.to.sb3()` is
        ready for `model.train`. Rewards are float32, and so are actions of float64. Images stand as recorded;
        a model whose environment is wrapped in `VecTransposeImage` needs a store of such images.

        Args:
            buffer_size: its room, at least the N transitions; None for exactly these.
            device: the device of sampled batches.
        """
        buffers = require("stable_baselines3.common.buffers", "view.to.sb3()", "stable-baselines3")
        from .in_memory import sb3_buffer

        target = "SB3's ReplayBuffer"
        flat, export = self._flat(target, replace(BUFFERS, both="terminated"))
        found = sb3_buffer(buffers, flat, export.context, buffer_size, device)
        _warn(target, export.losses)
        return found

    def imitation(self) -> list[Any]:
        """Return a list of imitation's `TrajectoryWithRew`, one for each episode in the order of the view.

        Observations of a Dict are a `DictObs`; rewards are float64, and entry t of `infos` is the info that
        came with observation t+1. `terminal` is True where the environment terminated or truncated the
        episode: imitation does not distinguish them. The first info, seeds, options and metadata stay behind.
        """
        types = require("imitation.data.types", "view.to.imitation()", "imitation")
        from .in_memory import TRAJECTORIES, imitation_trajectories

        target = "imitation's TrajectoryWithRew"
        export = self._export(target, TRAJECTORIES)
        export.count_losses_of_transitions()
        found = imitation_trajectories(types, export)
        _warn(target, export.losses)
        return found

    def d3rlpy(self) -> Any:
        """Return a `d3rlpy.dataset.ReplayBuffer` of all episodes, without a limit.

        It goes through the file of `view.export(format="d3rlpy")` in a temporary folder and holds the same:
        an episode that did not terminate has its last observation as a further row. The size of a discrete
        action space is that of the space, not that of the actions that occur.
        """
        dataset = require("d3rlpy.dataset", "view.to.d3rlpy()", "d3rlpy")
        from .in_memory import d3rlpy_buffer

        found, lost = d3rlpy_buffer(dataset, self._view.context)
        _warn("d3rlpy's ReplayBuffer", lost)
        return found

    def minari(self, *, data_format: str = "hdf5") -> Any:
        """Return a `minari.MinariDataset`, as `view.export(format="minari")` writes it.

        Its folder is temporary: it is deleted with the dataset, or when the program ends. Export to keep it.

        Args:
            data_format: "hdf5", "arrow" or "parquet".
        """
        minari = require("minari", "view.to.minari()", "'episodelake[minari]'")
        from .in_memory import minari_dataset

        found, lost = minari_dataset(minari, self._view.context, data_format)
        _warn("A MinariDataset", lost)
        return found

    def rllib(self) -> list[Any]:
        """Return a list of RLlib's `SingleAgentEpisode`, one for each episode in the order of the view.

        Values are stacked arrays (`is_numpy`), infos come along, and numbers that the policy recorded at
        every step are `extra_model_outputs`. Flags are those of the store: an episode that was cut is not
        done. A last transition whose next observation is missing is left out. Seeds, options, metadata and
        your own step columns stay behind.
        """
        module = require("ray.rllib.env.single_agent_episode", "view.to.rllib()", "'ray[rllib]'")
        from .rllib import EPISODES, rllib_episodes

        target = "RLlib's SingleAgentEpisode"
        export = self._export(target, EPISODES)
        export.count_losses()
        found = rllib_episodes(module, export)
        _warn(target, export.losses)
        return found

    def huggingface(
        self, table: TableName = "transitions", *, images: Literal["png", "array"] = "png"
    ) -> Any:
        """Return a table as a `datasets.Dataset` in main memory; nothing of it is lost.

        Vectors are a `List` of a fixed length, arrays of up to five dimensions `Array2D` to `Array5D`, in the
        dtypes of their spaces. Other arrays are lists in C order.

        Args:
            table: as for `pandas`.
            images: grey and RGB frames of uint8 are an `Image` ("png", lossless, which needs Pillow), or an
                `Array2D` or `Array3D` ("array").
        """
        one_of("images", images, ("png", "array"))
        datasets = require("datasets", "view.to.huggingface()")
        from .huggingface import FeatureColumns

        columns = FeatureColumns(self._view.context.snapshot.schema, images)
        rows = self._frame(table).collect().to_arrow()
        starts = range(0, max(rows.num_rows, 1), _FEATURE_ROWS)
        parts = [columns.with_images(rows.slice(start, _FEATURE_ROWS)) for start in starts]
        features = datasets.Features.from_dict(columns.features(parts[0].schema))
        found = pa.concat_tables(map(columns.finish, parts))
        return datasets.Dataset(datasets.table.table_cast(found, features.arrow_schema))

    def _frame(self, table: str) -> pl.LazyFrame:
        snapshot, positions = self._view.context.snapshot, self._view.context.positions
        one_of("table", table, _TABLES)
        if table in ("episodes", "runs"):
            return (episodes_frame if table == "episodes" else runs_frame)(snapshot, positions)
        steps = steps_frame(snapshot, positions)
        return steps if table == "steps" else transitions_only(steps)

    def _flat(self, target: str, holds: Holds = BUFFERS) -> tuple[FlatTransitions, Export]:
        export = self._export(target, holds)
        export.count_losses_of_transitions()
        return flat_transitions(self._view), export

    def _export(self, target: str, holds: Holds) -> Export:
        refuse_agents(self._view.context, target)
        return Export(self._view.context, Losses(), {}, lambda done: None, holds)


def _warn(target: str, losses: Mapping[str, int]) -> None:
    """Warn of what a conversion lost, at the line that called it."""
    if losses:
        lines = "; ".join(f"{what} ({count:,})" for what, count in losses.items())
        warnings.warn(f"{target} does not hold: {lines}.", RuntimeWarning, stacklevel=3)
