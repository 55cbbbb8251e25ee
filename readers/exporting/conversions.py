"""`view.to`: the episodes of a view in the memory of other libraries, each imported with its first use.

The rule of every buffer is that of loaders: `terminated` and `truncated` are those of the store, and the last
transition of an episode with neither flag (cut or interrupted) counts as truncated. Otherwise n-step returns
and slices would run on into the next episode.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import polars as pl

from ...store.common.arguments import flag, one_of
from ...store.common.exchange import Losses, find_format
from ...store.common.optional_packages import require
from ...store.errors import InvalidArgumentError
from ...store.names import ACTION, EPISODE, OBSERVATION, REWARD, TERMINATED, TRUNCATED
from ..context import ReadContext
from ..frames import collected
from .capabilities import Holds
from .export import ExportReport, export_view
from .target import Export, refuse_agents

TableName = Literal["transitions", "steps", "episodes", "runs"]
#: An object of another library, and what it does not hold: counts, by a sentence that says what.
Converted = tuple[Any, Mapping[str, int]]
_TABLES = ("transitions", "steps", "episodes", "runs")
_KEYS = (OBSERVATION, ACTION, REWARD, "next_observation", TERMINATED, TRUNCATED, EPISODE)
#: What buffers of transitions hold.
BUFFERS = Holds(ends={"cut": "truncated", "interrupted": "truncated"})


class LoadableView(Protocol):
    """The part of an `EpisodeView` that conversions use."""

    context: ReadContext

    @property
    def loader(self) -> Any:
        """Make a loader; see `EpisodeView.loader`."""
        ...


@dataclass(frozen=True)
class FlatTransitions:
    """N transitions in the order of the view, in arrays that belong to the caller.

    Attributes:
        observation, action, next_observation: shape (N, ...), nested as the spaces are.
        reward: float64, shape (N,) or (N, k).
        terminated, truncated: bool, shape (N,).
        episode: int64, shape (N,): the episode's place in the view.
    """

    observation: Any
    action: Any
    reward: np.ndarray
    next_observation: Any
    terminated: np.ndarray
    truncated: np.ndarray
    episode: np.ndarray

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def done(self) -> np.ndarray:
        """bool, shape (N,): whether an episode ends with the transition."""
        return self.terminated | self.truncated


def flat_transitions(
    view: LoadableView, target: str, holds: Holds = BUFFERS
) -> tuple[FlatTransitions, Export]:
    """Return the transitions of a view, and their export, in which the losses are counted.

    Args:
        view: the episodes.
        target: what they become, for messages.
        holds: what that has a place for.

    Raises:
        DatasetError: the store has several agents.
        InvalidArgumentError: the view is empty, or a space has values without a fixed shape.
    """
    export = export_of(view, target, holds)
    schema = view.context.snapshot.schema
    parts = [*schema.observation.parts, *schema.action.parts]
    differing = [part.root for part in parts if not part.leaves]
    if differing:
        raise InvalidArgumentError(
            f"The values of {', '.join(differing)} differ in length, and {target} needs arrays of one shape.",
            hint="Load them with view.loader(...), or export to a format that holds episodes.",
        )
    export.count_losses_of_transitions()
    count = int(export.ends["length"].sum())
    (batch,) = view.loader(max(count, 1), columns=_KEYS)
    flat = FlatTransitions(**batch)
    # An episode without its last transition ends with the one before.
    ends = np.append(flat.episode[1:] != flat.episode[:-1], True)
    flat.truncated[ends & ~flat.terminated] = True
    return flat, export


def export_of(view: LoadableView, target: str, holds: Holds) -> Export:
    """Return the export of a view to an object in memory.

    Raises:
        DatasetError: the store has several agents.
    """
    refuse_agents(view.context, target)
    return Export(view.context, Losses(), {}, lambda done: None, holds)


def table_of(view: LoadableView, table: str) -> pl.LazyFrame:
    """Return the rows of a view in one of its tables.

    Raises:
        InvalidArgumentError: there is no such table.
    """
    return getattr(view, one_of("table", table, _TABLES))


def exported(context: ReadContext, target: Path, format: str, **options: Any) -> ExportReport:
    """Export episodes to a file or folder from which another library makes an object."""
    return export_view(
        context, target, format, overwrite=False, strict=False, progress=False, options=options
    )


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

    def __init__(self, view: LoadableView) -> None:
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
        frame = collected(table_of(self._view, table))
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
        return self._converted("torchrl", "A TensorDict of transitions", buffer=flag("buffer", buffer))

    def tianshou(self) -> Any:
        """Return a full `tianshou.data.ReplayBuffer` of N transitions.

        Observations and actions have the dtypes of their spaces, Dicts are of the class `Batch`, rewards are
        float64 of shape (N,) or (N, k). For a buffer with room for more, or of another class, call
        `other.update(view.to.tianshou())`.
        """
        return self._converted("tianshou", "Tianshou's ReplayBuffer")

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
        return self._converted("sb3", "SB3's ReplayBuffer", buffer_size=buffer_size, device=device)

    def imitation(self) -> list[Any]:
        """Return a list of imitation's `TrajectoryWithRew`, one for each episode in the order of the view.

        Observations of a Dict are a `DictObs`; rewards are float64, and entry t of `infos` is the info that
        came with observation t+1. `terminal` is True where the environment terminated or truncated the
        episode: imitation does not distinguish them. The first info, seeds, options and metadata stay behind.
        """
        return self._converted("imitation", "imitation's TrajectoryWithRew")

    def d3rlpy(self) -> Any:
        """Return a `d3rlpy.dataset.ReplayBuffer` of all episodes, without a limit.

        It goes through the file of `view.export(format="d3rlpy")` in a temporary folder and holds the same:
        an episode that did not terminate has its last observation as a further row. The size of a discrete
        action space is that of the space, not that of the actions that occur.
        """
        return self._converted("d3rlpy", "d3rlpy's ReplayBuffer")

    def minari(self, *, data_format: str = "hdf5") -> Any:
        """Return a `minari.MinariDataset`, as `view.export(format="minari")` writes it.

        Its folder is temporary: it is deleted with the dataset, or when the program ends. Export to keep it.

        Args:
            data_format: "hdf5", "arrow" or "parquet".
        """
        return self._converted("minari", "A MinariDataset", data_format=data_format)

    def rllib(self) -> list[Any]:
        """Return a list of RLlib's `SingleAgentEpisode`, one for each episode in the order of the view.

        Values are stacked arrays (`is_numpy`), infos come along, and numbers that the policy recorded at
        every step are `extra_model_outputs`. Flags are those of the store: an episode that was cut is not
        done. A last transition whose next observation is missing is left out. Seeds, options, metadata and
        your own step columns stay behind.
        """
        return self._converted("rllib", "RLlib's SingleAgentEpisode")

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
        return self._converted("huggingface", "A datasets.Dataset", table=table, images=images)

    def _converted(self, name: str, target: str, **options: Any) -> Any:
        """Return an object of a library, and warn of what was lost at the line that called."""
        made, lost = find_format("conversions", name)(self._view, target, **options)
        if lost:
            lines = "; ".join(f"{what} ({count:,})" for what, count in lost.items())
            warnings.warn(f"{target} does not hold: {lines}.", RuntimeWarning, stacklevel=3)
        return made
