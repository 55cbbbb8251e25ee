"""`MeasuredView`: the methods of views that measure, whose modules are imported with their first use."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

from ...store.common.progress import Progress
from ..context import ContextView

if TYPE_CHECKING:
    import polars as pl

    from .column_stats import Stats
    from .health import HealthReport

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


class MeasuredView(ContextView):
    """The part of a view that measures its episodes."""

    def stats(
        self,
        columns: Sequence[str] | None = None,
        *,
        quantiles: Sequence[float] = QUANTILES,
        cache_folder: str | PathLike[str] | None = None,
        agent: str | None = None,
        group: str | None = None,
        progress: bool | Progress = False,
    ) -> Stats:
        """Exact statistics of columns: count, mean, standard deviation, extremes and true quantiles.

        They are those of this version and these episodes, and are kept on disk by column, so that asking
        again costs nothing. A column is read whole, one at a time (frames in parts). What `ColumnStats` says
        of a column holds for parts of nested ones too, which stand under their dotted names.

        A named column whose rows differ in length (Sequence, Text and Graph spaces, lists) has statistics of
        all its values together, in UTF-8 bytes for texts, and under `len(name)` those of the lengths.

        Args:
            columns: names; None for observations, actions, rewards and all columns of infos, policy and users
                that are numbers or arrays of one shape.
            quantiles: their probabilities.
            cache_folder: where they are kept; None for the environment variable EPISODELAKE_CACHE, or else
                the user's cache directory. One that cannot be written to is a `RuntimeWarning`.
            agent, group: measure the rows of one agent, or of all agents of a group; a store of several
                agents needs one of them.
            progress: True for a bar on the terminal, or a function called with the columns measured so far
                and all of them.

        Raises:
            InvalidArgumentError: there is no such column (the message names those that are), a probability
                is not from 0 to 1, or the view has no episode.
            CorruptStoreError: a file of the store is damaged.
        """
        from .measuring import measured

        return measured(self.context, columns, quantiles, cache_folder, agent, group, progress)

    def quality(
        self,
        by: str | Sequence[str] = (),
        *,
        state: str | None = None,
        gamma: float = 1.0,
        reference: ContextView | None = None,
        scores: tuple[float, float] | None = None,
        alpha: float = 0.7,
        neighbours: int = 10,
        samples: int = 2000,
        seed: int = 0,
        progress: bool | Progress = False,
    ) -> pl.DataFrame:
        """Measure how good these episodes are to learn from.

        Args:
            by: columns of `episodes` or `runs`, such as "run_id" or "metadata.level"; each combination
                of their values is measured on its own.
            state: an SQL expression over `transitions` for what counts as a state, such as
                `"round(observation[1], 1)"`; by default all of the observation. Continuous observations are
                hardly ever equal, so coverage means something only if you round them.
            gamma: the discount factor of returns, from 0 to 1.
            reference: the episodes whose distinct pairs of state and action are the full coverage; by default
                this view.
            scores: the returns of a random and of an expert policy; by default `ref_min_score` and
                `ref_max_score` of the card.
            alpha, neighbours: of the entropy; from 0 and from 2 (a state is its own nearest neighbour).
            samples: how many states of each group the entropy is estimated from, drawn with `seed`.
            seed: the same seed and the same episodes give the same entropy.
            progress: True for a bar on the terminal, or a function called with the passes over the episodes
                done and all of them.

        Returns:
            One row for each group, after the columns `by`:

            - `episodes`, `transitions`: counts.
            - `average_return`: the mean discounted return.
            - `trajectory_quality`: (average_return - low) / (high - low) with the scores; NULL without them
              (Schweighofer et al., "A Dataset Perspective on Offline Reinforcement Learning", 2022).
            - `estimated_return_improvement`: (largest - mean) / mean of the returns, all less the smallest; 0
              if they are equal (Swazinna, Udluft and Runkler, "Measuring Data Quality for Dataset Selection
              in Offline Reinforcement Learning", 2021).
            - `unique_state_actions`: distinct pairs of state and action, compared by 64-bit hashes.
            - `state_action_coverage`: the same over those of the reference (SACo, Schweighofer et al.).
            - `duplicates`: episodes whose steps are those of an earlier one of the group.
            - `near_duplicates`: episodes that share about 90 % or more of their distinct pairs of state and
              action with an earlier one of the group, duplicates included (MinHash of 64 values).
            - `behavioural_entropy`: see `readers.measures.quality`; NULL unless the states are
              numbers, of one shape and none NULL.

            In a store of rollouts a message is a state, and the entropy NULL; duplicates have equal messages,
            tokens and log-probabilities, whatever their rewards.

        Raises:
            InvalidArgumentError: an argument is out of its range; there is no such column; the view has no
                episode; the store has several agents or objectives.
            QueryError: `state` is no SQL expression over `transitions`.
        """
        from .quality import measured

        entropy = (alpha, neighbours, samples, seed)
        return measured(self.context, by, state, gamma, reference, scores, entropy, progress)

    def health(self, *, ignore: Sequence[str] = (), progress: bool | Progress = False) -> HealthReport:
        """Look for values, endings and repetitions that are wrong, or look wrong.

        docs/quality.md says what each kind of finding means. A finding is a hint: constant sensors and
        repeated seeds may be meant. Values of infos and of the policy are not read.

        Args:
            ignore: kinds of findings to leave out, such as `["cut"]`.
            progress: True for a bar on the terminal, or a function called with the episodes read so far and
                all.

        Returns:
            A report; `report.findings[0].positions` are the episodes of the first finding in this view.

        Raises:
            InvalidArgumentError: there is no such kind of finding.
            CorruptStoreError: a file of the store is damaged.
        """
        from .health import examined

        return examined(self.context, ignore, progress)
