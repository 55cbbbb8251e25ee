"""`FeedingView`: the method of views that makes loaders, whose modules are imported with its first use."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from ...store.common.arguments import flag, naming_arguments, whole_number
from ..context import ContextView, SqlCondition

if TYPE_CHECKING:
    import polars as pl

    from ..columns.mapped import Cache, CacheKind
    from .config import Weights
    from .feed import Batches, Shard
    from .follow_window import Follow
    from .loader import Loader
    from .outputs import Output, OutputName
    from .priorities import Prioritized
    from .transforms.on_read import BatchTransform, EpisodeTransform
    from .transforms.torch_module import TorchModule
    from .units import Units


class FeedingView(ContextView):
    """The part of a view that feeds learners."""

    @naming_arguments()
    def loader(
        self,
        batch_size: int | Batches = 256,
        units: Units | None = None,
        *,
        columns: Sequence[str] | None = None,
        window: int | None = None,
        n_step: int | None = None,
        gamma: float | None = None,
        shuffle: bool = False,
        seed: int = 0,
        weights: Weights | Prioritized | None = None,
        transforms: Sequence[EpisodeTransform | BatchTransform | TorchModule] = (),
        output: OutputName | Output = "numpy",
        cache: CacheKind | Cache = "memory",
        shard: tuple[int, int] | Literal["distributed"] | Shard = (0, 1),
        follow: Follow | None = None,
        agent: str | None = None,
        group: str | None = None,
        joint: bool = False,
        transitions: pl.Expr | str | SqlCondition | None = None,
    ) -> Loader:
        """Return a loader: batches of transitions, windows or other units for a learner.

        Args:
            batch_size: units of a batch; `Batches` also drops the last batch and makes batches ahead.
            units: the kind of unit: `Transitions()` (the default), `NSteps(5)`, `Windows(64)`, `Deltas(...)`
                or `Episodes()`; of rollouts `Packed(8192)` or `Padded(4096)` for their tokens.
            columns: keys of a batch; None for the default keys of the kind of unit. A part of a Dict or Tuple
                space is a key too (`observation.camera`), and so is what came with the next observation
                (`next_info.cost`, `next_policy.value`), a column of texts, and a column of episodes
                (`metadata.task`, `episode_return`), whose value each row of an episode has.
            window: short for `Windows(window)`.
            n_step: short for `NSteps(n_step, gamma=gamma)`.
            gamma: discount of `n_step`, 0 to 1; 0.99 by default.
            shuffle: yield each unit once an epoch, in random order.
            seed: of the order; the same seed, epoch and view give the same order on every machine.
            weights: draw units with replacement: "steps" (all units alike), "episodes" (an episode, all
                alike, then one of its units), a Polars expression over the episodes or an array with a number
                for each episode (episodes by weight), or `Prioritized` (units by priority).
            transforms: applied in turn; first those of whole episodes (`ReturnToGo`, `GAE`, `Relabel`,
                `FrameStack`), whose columns every batch has, then those of batches, last `TorchModule`.
            output: "numpy" arrays, "torch" tensors, "jax" arrays or a "tensordict"; `Output` for a device,
                and for the form of values that differ in length.
            cache: where the columns are: "memory", "mmap" or "stream"; `Cache` for a folder and limits.
            shard: (rank, world), one of `world` disjoint shares of equal length; "distributed" for this
                process's share in torch.distributed; `Shard` for units that do not divide by `world`.
            follow: draw for ever from the newest version of the store; see `FollowingLoader`. A filter
                applies to new episodes too.
            agent: in a store of several agents, the agent to load; its part of each episode counts as an
                episode. The keys `agent_id` (a number, index into `Loader.agents`) and `env_step` are there
                too, and `episode` counts the view's episodes.
            group: load all agents of a group, each agent's part of an episode as an episode.
            joint: load all agents of a step (of `group`, or of all groups) together: arrays have an axis of
                agents after those of the unit, and `agent_mask` is True where an agent acts.
            transitions: only the units that begin with a transition which fulfils a condition, as for
                `steps_where`; those of `NSteps`, `Windows` and `Deltas` may have others too.

        A `RuntimeWarning` counts the last transitions that are left out, since the observation after them is
        missing; columns without next observations, or `next_observation_present`, keep them.

        Raises:
            InvalidArgumentError: an argument makes no sense; there is no such column, or no such unit.
            MissingPackageError: the package of the output is not installed.
            QueryError: the weights' expression or the condition of `transitions` is not valid.
            CorruptStoreError: a file of the store is damaged.
            StoreAccessError: the cache folder cannot be written, is full, or may not hold that much.
        """
        from ..columns.mapped import Cache
        from .config import LoaderConfig, choose_units
        from .feed import Batches, Shard
        from .feeding import following_loader, loader_of
        from .outputs import Output
        from .transforms.on_read import TransformPipeline

        config = LoaderConfig(
            choose_units(units, window=window, n_step=n_step, gamma=gamma),
            columns,
            TransformPipeline.of(transforms),
            Batches.of(batch_size),
            Shard.of(shard),
            Output.of(output).converter(),
            whole_number("seed", seed, 0),
            flag("shuffle", shuffle),
            weights,
            Cache.of(cache),
            agent,
            group,
            flag("joint", joint),
            transitions,
        )
        make = loader_of if follow is None else partial(following_loader, follow)
        return make(self.context, config)
